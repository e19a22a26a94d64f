//! Promises about kills: whatever a connection is doing, a kill ends it, says so to its client if
//! that can still be told, and is counted as what it is.

mod common;

use common::client::Client;
use common::{Harness, Options, Setup, everywhere, in_the_pool, two_slots, until};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use thread_group_pool::{CloseReason, Limits};

everywhere! {
    an_idle_connection_is_killed,
    a_connection_that_owes_the_rest_of_a_command_is_killed,
    a_connection_that_waits_is_killed_when_it_returns,
    a_connection_in_a_blocked_read_is_killed_at_once,
    a_connection_in_a_blocked_write_is_killed_at_once,
    a_connection_whose_reply_nobody_reads_is_killed_at_once,
    a_connection_that_is_being_opened_is_killed,
    a_connection_may_kill_itself,
    a_connection_may_kill_another,
    the_dead_are_not_killed_again,
    a_kill_by_an_id_that_nobody_has_finds_nobody,
    kills_that_race_with_commands_and_hang_ups_lose_nothing,
}

in_the_pool! {
    a_queued_connection_is_killed_unrun,
    a_connection_that_nobody_polls_is_killed,
}

const FAREWELL: &str = "farewell: the connection was killed\n";

/// A client, and a witness who must not notice.
fn victim(server: &Harness) -> (Client, Client) {
    (server.client(), server.client())
}

#[track_caller]
fn kill(server: &Harness, client: &Client) {
    assert!(server.handle.kill(client.id), "it is alive");
}

/// What holds after a kill.
#[track_caller]
fn was_killed(server: Harness, mut witness: Client) {
    server.until_closed_as("killed", 1);
    assert_eq!(server.stage.reasons(), [CloseReason::Killed]);
    witness.ping();
    assert_eq!(server.stats().connections, 1);
    server.finish();
}

fn an_idle_connection_is_killed(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = victim(&server);
    client.ping();
    until("it is idle", || server.state(client.id) == Some("idle"));
    kill(&server, &client);
    assert_eq!(client.rest(), FAREWELL);
    was_killed(server, witness);
}

fn a_connection_that_owes_the_rest_of_a_command_is_killed(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = victim(&server);
    client.send_bytes(b"ECHO ha");
    until("the half is there", || {
        server.state(client.id) == Some("reading")
    });
    kill(&server, &client);
    assert_eq!(client.rest(), FAREWELL);
    was_killed(server, witness);
}

fn a_connection_that_waits_is_killed_when_it_returns(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = victim(&server);
    client.send("WAIT gate\nECHO never");
    until("it waits", || server.stage.running("WAIT").now == 1);
    let handle = server.handle.find(client.id).expect("it lives");
    assert!(!handle.is_cancelled());
    assert!(handle.kill());
    assert!(handle.is_cancelled());
    assert!(handle.kill(), "it lives still, and may be killed again");
    server.stage.open("gate");
    // The command had been run, so its reply may come; the next one was not.
    let rest = client.rest();
    assert!(rest.ends_with(FAREWELL), "{rest:?}");
    assert_eq!(server.stage.running("ECHO").ever, 0);
    was_killed(server, witness);
}

fn a_connection_in_a_blocked_read_is_killed_at_once(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = victim(&server);
    client.send("READ 10\nabc");
    until("it reads", || {
        server.stats().waits.iter().any(|wait| wait.count > 0)
    });
    kill(&server, &client);
    assert_eq!(client.rest(), FAREWELL);
    was_killed(server, witness);
}

fn a_connection_in_a_blocked_write_is_killed_at_once(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = victim(&server);
    client.send("BIG 50000000");
    until("it writes", || {
        server.stats().waits.iter().any(|wait| wait.count > 0)
    });
    kill(&server, &client);
    was_killed(server, witness);
    // What had been sent is all there is: there was no room for a farewell.
    assert!(!client.rest().ends_with(FAREWELL));
}

fn a_connection_whose_reply_nobody_reads_is_killed_at_once(setup: Setup) {
    let server = setup.serve(Options::limits(Limits::default().output_bound(64 << 20)));
    let (mut client, witness) = victim(&server);
    client.send("BIG 50000000");
    until("its reply waits", || {
        server.state(client.id) == Some("flushing")
    });
    kill(&server, &client);
    was_killed(server, witness);
    assert!(!client.rest().ends_with(FAREWELL));
}

fn a_connection_that_is_being_opened_is_killed(setup: Setup) {
    let server = setup.serve(Options::default());
    let witness = server.client();
    server.stage.open_waits.store(true, SeqCst);
    let mut client = Client::connect_only(&server.at);
    until("it is being opened", || {
        server.stage.running("open").now == 1
    });
    client.id = server.handle.connections()[1].id;
    client.send("ECHO never");
    kill(&server, &client);
    server.stage.open("open");
    let rest = client.rest();
    assert!(rest.ends_with(FAREWELL), "{rest:?}");
    assert_eq!(server.stage.running("ECHO").ever, 0);
    was_killed(server, witness);
}

fn a_connection_may_kill_itself(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = victim(&server);
    client.send("KILL\nECHO never");
    assert_eq!(client.rest(), format!("killed\n{FAREWELL}"));
    assert_eq!(server.stage.running("ECHO").ever, 0);
    was_killed(server, witness);
}

fn a_connection_may_kill_another(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, mut witness) = victim(&server);
    assert_eq!(witness.ask(&format!("KILL {}", client.id)), "true");
    assert_eq!(client.rest(), FAREWELL);
    server.until_closed_as("killed", 1);
    assert_eq!(witness.ask(&format!("KILL {}", client.id)), "false");
    was_killed(server, witness);
}

fn the_dead_are_not_killed_again(setup: Setup) {
    let server = setup.serve(Options::default());
    for end in ["killed", "handler_closed", "client_closed"] {
        let mut client = server.client();
        let handle = server.handle.find(client.id).expect("it lives");
        match end {
            "killed" => assert!(handle.kill()),
            "handler_closed" => client.send("CLOSE"),
            _ => client.half_close(),
        }
        client.rest();
        server.until_closed_as(end, 1);
        assert!(!handle.kill(), "{end}");
        assert!(!server.handle.kill(client.id), "{end}");
        assert!(server.handle.find(client.id).is_none(), "{end}");
    }
    let handle = server.handle.clone();
    let stats = server.finish();
    assert!(!handle.kill(1.into()));
    assert_eq!(stats.closed, 3);
}

fn a_kill_by_an_id_that_nobody_has_finds_nobody(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut witness = server.client();
    for id in [0, witness.id.get() + 1, u64::MAX] {
        assert!(!server.handle.kill(id.into()), "{id}");
    }
    witness.ping();
    server.finish();
}

/// Whoever of the client, the command and the kill comes first: the connection is closed once, and
/// is counted for one of their reasons.
fn kills_that_race_with_commands_and_hang_ups_lose_nothing(setup: Setup) {
    const ROUNDS: u64 = 300;
    let server = setup.serve(Options::default());
    for round in 0..ROUNDS {
        let mut client = server.client();
        let handle = server.handle.find(client.id).expect("it lives");
        thread::scope(|scope| {
            scope.spawn(|| handle.kill());
            match round % 4 {
                0 => client.try_to_send(b"ECHO one\nECHO two\n"),
                1 => client.half_close(),
                2 => drop(client),
                _ => client.reset(),
            }
        });
    }
    server.until_all_closed();
    server.client().ping();
    let reasons = server.stage.reasons();
    assert!(
        reasons
            .iter()
            .all(|why| matches!(why, CloseReason::Killed | CloseReason::ClientClosed))
    );
    assert!(server.finish().closed > ROUNDS);
}

fn a_queued_connection_is_killed_unrun(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots()));
    let mut blockers = server.clients(2);
    let (mut client, mut witness) = victim(&server);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    client.send("ECHO never");
    witness.send("ID");
    until("they queue", || server.group().queued == 2);
    kill(&server, &client);
    server.stage.open("gate");
    assert_eq!(client.rest(), FAREWELL);
    assert_eq!(witness.line(), witness.id.to_string());
    assert_eq!(server.stage.running("ECHO").ever, 0);
    drop(blockers);
    until("the blockers have gone", || server.stats().connections == 1);
    assert_eq!(server.closed_as("killed"), 1);
    server.finish();
}

/// Every thread is in a command: the kill waits in the control lane for the first that is free.
fn a_connection_that_nobody_polls_is_killed(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots().max_threads(2)));
    let mut blockers = server.clients(2);
    let (mut client, mut witness) = victim(&server);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both threads are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    kill(&server, &client);
    witness.send("ECHO ping");
    server.stage.open("gate");
    assert_eq!(client.rest(), FAREWELL);
    assert_eq!(witness.line(), "ping");
    server.until_closed_as("killed", 1);
    server.finish();
}
