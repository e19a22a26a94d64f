//! Promises about commands that are stopped and whose connections are not: whatever the command is at,
//! a kill by its number stops it and no other, what takes too long is told so, and a client that has
//! left is noticed where that is asked for.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::client::Client;
use common::stage::PATTERN;
use common::{Harness, NEVER, Options, Setup, everywhere, in_the_pool, two_slots, until};
use thread_group_pool::{CloseReason, HangUp, Limits};

everywhere! {
    a_command_that_computes_sees_that_it_is_killed,
    a_command_in_a_wait_of_its_own_is_ended_at_once,
    a_parked_command_is_killed_at_once,
    a_command_that_owes_the_rest_of_its_input_is_killed_at_once,
    a_command_that_streams_to_a_slow_reader_is_killed,
    a_detached_command_is_killed,
    an_idle_connection_has_no_command_to_kill,
    a_kill_of_a_command_that_is_over_spares_the_next_one,
    a_command_may_kill_itself_and_ask_to_be_told_later,
    a_command_may_kill_another,
    a_kill_under_a_lock_of_ones_own_takes_none_of_ours,
    a_callback_is_called_when_its_connection_is_killed,
    a_callback_that_panics_ends_its_connection_and_no_other,
    a_leaked_scope_is_over_with_its_call,
    kills_that_race_with_the_ends_of_commands_hit_no_other,
    a_command_that_takes_too_long_is_told_so,
    a_parked_command_that_takes_too_long_is_told_so,
    short_commands_are_not_taken_for_one_long_one,
    a_client_that_left_is_ignored_by_default,
    a_command_is_told_that_its_client_has_left,
    a_parked_command_is_told_that_its_client_has_left,
    a_command_whose_client_has_left_is_killed,
    a_client_that_stays_is_not_taken_for_one_that_left,
    a_client_may_not_be_silent_for_long_in_a_transaction,
    a_poke_does_not_make_a_silent_client_heard,
    a_client_that_comes_late_has_its_own_time_to_be_silent,
}

in_the_pool! {
    a_queued_command_has_not_begun,
    a_command_of_a_group_without_threads_is_killed,
}

const KILLED: &str = "cancelled: the command was killed";

/// Long enough that a busy machine does not make slow what is not, where that matters.
const SOON: Duration = Duration::from_millis(100);

/// Waits until a connection is at a command, and says at which.
#[track_caller]
fn number(server: &Harness, client: &Client) -> u64 {
    let handle = server.handle.find(client.id).expect("it lives");
    let mut number = None;
    until("it is at a command", || {
        number = handle.command();
        number.is_some()
    });
    number.expect("it is at one")
}

/// Kills what a client's connection is at.
#[track_caller]
fn kill(server: &Harness, client: &Client) {
    let number = number(server, client);
    let all = server.handle.connections();
    let info = all.iter().find(|info| info.id == client.id);
    assert_eq!(info.expect("it is there").command, Some(number));
    for other in [0, number - 1, number + 1, u64::MAX] {
        assert!(!server.handle.kill_command(client.id, other), "{other}");
    }
    assert!(server.handle.kill_command(client.id, number));
}

/// What holds after the kill of one command: its connection goes on, and nobody else has noticed.
#[track_caller]
fn goes_on(server: Harness, mut clients: Vec<Client>) {
    clients.iter_mut().for_each(Client::ping);
    assert!(server.stage.reasons().is_empty());
    assert_eq!(server.stats().commands_killed, 1);
    server.finish();
}

// ---- kills ----

fn killed_while(setup: Setup, command: &str) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = (server.client(), server.client());
    client.send(&format!("{command} gate\nECHO next"));
    until("it runs", || server.stage.running(command).now == 1);
    kill(&server, &client);
    assert_eq!(client.line(), KILLED);
    assert_eq!(client.line(), "next");
    goes_on(server, vec![client, witness]);
}

fn a_command_that_computes_sees_that_it_is_killed(setup: Setup) {
    killed_while(setup, "OBEY");
}

fn a_command_in_a_wait_of_its_own_is_ended_at_once(setup: Setup) {
    killed_while(setup, "HEED");
}

fn a_parked_command_is_killed_at_once(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = (server.client(), server.client());
    client.send("PARK it\nECHO next");
    until("it is parked", || server.state(client.id) == Some("parked"));
    let resume = server.stage.take_resume("it");
    kill(&server, &client);
    assert_eq!(client.line(), KILLED);
    assert_eq!(client.line(), "next");
    assert!(!resume.resume(), "its park is over");
    goes_on(server, vec![client, witness]);
}

fn a_command_that_owes_the_rest_of_its_input_is_killed_at_once(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = (server.client(), server.client());
    client.send("OWE");
    until("it waits for more", || {
        server.state(client.id) == Some("reading")
    });
    kill(&server, &client);
    assert_eq!(client.line(), KILLED);
    goes_on(server, vec![client, witness]);
}

/// In the pool at once; with a thread of its own, when what is on its way has left.
fn a_command_that_streams_to_a_slow_reader_is_killed(setup: Setup) {
    const KILOBYTES: usize = 50_000;
    let server = setup.serve(Options::default());
    let (mut client, witness) = (server.client(), server.client());
    client.send(&format!("STREAM {KILOBYTES}"));
    client.read_big(0, 1000);
    until("the rest waits for it", || {
        server.state(client.id) == Some("flushing")
    });
    kill(&server, &client);
    if setup.is_pool() {
        let handle = server.handle.find(client.id).expect("it lives");
        until("it has been told", || handle.command().is_none());
    }
    let mut at = 1000;
    let line = client.line();
    for byte in line.bytes() {
        if byte != PATTERN[at % PATTERN.len()] {
            break;
        }
        at += 1;
    }
    assert!(at < KILOBYTES * 1024, "all of it");
    assert!(line.ends_with(KILLED), "{} bytes, {at}", line.len());
    goes_on(server, vec![client, witness]);
}

fn a_detached_command_is_killed(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, mut witness) = (server.client(), server.client());
    client.send("DETACH HEED");
    assert_eq!(client.line(), "detached");
    until("it is detached", || {
        server.state(client.id) == Some("detached")
    });
    kill(&server, &client);
    assert_eq!(client.rest(), format!("{KILLED}\n"));
    witness.ping();
    server.until_closed_as("handler_closed", 1);
    server.finish();
}

fn an_idle_connection_has_no_command_to_kill(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    let handle = server.handle.find(client.id).expect("it lives");
    assert_eq!(handle.command(), None);
    let at: u64 = client.ask("NUMBER").parse().expect("a number");
    until("it is idle", || handle.command().is_none());
    for number in 0..at + 2 {
        assert!(!handle.kill_command(number));
        assert!(!server.handle.kill_command(client.id, number));
    }
    // It is the connection's place in the count, not the server's.
    let next: u64 = client.ask("NUMBER").parse().expect("a number");
    assert_eq!(next, at + 1);
    drop(client);
    server.until_closed_as("client_closed", 1);
    assert!(!handle.kill_command(next));
    assert_eq!(handle.command(), None);
    assert_eq!(server.finish().commands_killed, 0);
}

fn a_kill_of_a_command_that_is_over_spares_the_next_one(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    let over: u64 = client.ask("NUMBER").parse().expect("a number");
    client.send("HEED gate");
    until("it waits", || server.stage.running("HEED").now == 1);
    assert!(!server.handle.kill_command(client.id, over));
    server.stage.open("gate");
    assert_eq!(client.line(), "heeded");
    assert_eq!(server.finish().commands_killed, 0);
}

fn a_command_may_kill_itself_and_ask_to_be_told_later(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = (server.client(), server.client());
    assert_eq!(client.ask("KILL SELF"), format!("true 2 {KILLED}"));
    goes_on(server, vec![client, witness]);
}

fn a_command_may_kill_another(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, mut killer) = (server.client(), server.client());
    client.send("HEED gate");
    until("it waits", || server.stage.running("HEED").now == 1);
    let (id, number) = (client.id, number(&server, &client));
    assert_eq!(killer.ask(&format!("KILL {id} {}", number + 1)), "false");
    assert_eq!(killer.ask(&format!("KILL {id} {number}")), "true");
    assert_eq!(client.line(), KILLED);
    assert_eq!(killer.ask(&format!("KILL {id} {number}")), "false");
    goes_on(server, vec![client, killer]);
}

/// Kills are called where an engine holds its own locks, which its callbacks do not take; those of
/// others are not waited for.
fn a_kill_under_a_lock_of_ones_own_takes_none_of_ours(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(8);
    for client in &mut clients {
        client.send("HEED gate");
    }
    until("all wait", || server.stage.running("HEED").now == 8);
    let lock = std::sync::Mutex::new(());
    thread::scope(|scope| {
        for client in &clients {
            let (lock, handle, id) = (&lock, &server.handle, client.id);
            let number = number(&server, client);
            scope.spawn(move || {
                let _held = lock.lock();
                assert!(handle.kill_command(id, number));
            });
        }
    });
    for client in &mut clients {
        assert_eq!(client.line(), KILLED);
        client.ping();
    }
    assert_eq!(server.finish().commands_killed, 8);
}

fn a_callback_is_called_when_its_connection_is_killed(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("HEED gate\nECHO never");
    until("it waits", || server.stage.running("HEED").now == 1);
    assert!(server.handle.kill(client.id));
    let rest = client.rest();
    assert_eq!(
        rest,
        "cancelled: the connection was killed\nfarewell: the connection was killed\n"
    );
    assert_eq!(server.stage.running("ECHO").ever, 0);
    server.until_closed_as("killed", 1);
    assert_eq!(server.finish().commands_killed, 0);
}

fn a_callback_that_panics_ends_its_connection_and_no_other(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, mut witness) = (server.client(), server.client());
    client.send("SPITE gate\nECHO never");
    until("it waits", || server.stage.running("SPITE").now == 1);
    // It is the killer's thread that it panics on.
    kill(&server, &client);
    let rest = client.rest();
    assert!(rest.ends_with("farewell: the handler panicked\n"), "{rest}");
    server.until_closed_as("panicked", 1);
    assert_eq!(server.stage.reasons(), [CloseReason::Panicked]);
    witness.ping();
    server.client().ping();
    assert_eq!(server.finish().panics, 1);
}

fn a_leaked_scope_is_over_with_its_call(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut client, witness) = (server.client(), server.client());
    assert_eq!(client.ask("LEAK"), "leaked");
    client.send("OBEY gate");
    until("it runs", || server.stage.running("OBEY").now == 1);
    kill(&server, &client);
    assert_eq!(client.line(), KILLED);
    client.send("HEED leak");
    until("the gate is shut", || server.stage.running("HEED").now == 1);
    server.stage.open("leak");
    assert_eq!(client.line(), "heeded");
    goes_on(server, vec![client, witness]);
}

/// Whoever comes first: each command is answered once, and the connection lives.
fn kills_that_race_with_the_ends_of_commands_hit_no_other(setup: Setup) {
    const ROUNDS: usize = 200;
    let server = setup.serve(Options::default());
    let mut client = server.client();
    let handle = server.handle.find(client.id).expect("it lives");
    let mut killed = 0;
    for round in 0..ROUNDS {
        let gate = format!("gate {round}").replace(' ', "");
        client.send(&format!("HEED {gate}\nNUMBER\nPARK {gate}\nECHO end"));
        until("it waits", || server.stage.running("HEED").now == 1);
        let number = handle.command().expect("it waits");
        let hit = thread::scope(|scope| {
            let killer = scope.spawn(|| handle.kill_command(number));
            server.stage.open(&gate);
            killer.join().expect("no panic")
        });
        killed += u64::from(hit);
        let first = client.line();
        assert!(["heeded", KILLED].contains(&first.as_str()), "{first}");
        assert!(hit || first == "heeded");
        assert_eq!(client.line(), (number + 1).to_string());
        let resume = server.stage.take_resume(&gate);
        let parked = number + 2;
        let (hit, resumed) = thread::scope(|scope| {
            let killer = scope.spawn(|| handle.kill_command(parked));
            let resumed = resume.resume();
            (killer.join().expect("no panic"), resumed)
        });
        killed += u64::from(hit);
        let line = client.line();
        assert!(["resumed", KILLED].contains(&line.as_str()), "{line}");
        assert!(hit || line == "resumed");
        // Whoever resumed it was told that it counts, so it is told, too.
        if resumed && line == KILLED {
            assert_eq!(client.line(), "resumed");
        }
        assert!(resumed || line == KILLED);
        assert_eq!(client.line(), "end");
    }
    client.ping();
    assert_eq!(server.finish().commands_killed, killed);
}

fn a_queued_command_has_not_begun(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots()));
    let mut blockers = server.clients(2);
    let mut client = server.client();
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    client.send("ECHO queued");
    until("it queues", || server.group().queued == 1);
    let handle = server.handle.find(client.id).expect("it lives");
    assert_eq!(handle.command(), None);
    for number in 0..3 {
        assert!(!handle.kill_command(number));
    }
    server.stage.open("gate");
    assert_eq!(client.line(), "queued");
    assert_eq!(server.finish().commands_killed, 0);
}

/// All threads wait, and there may be no more of them: who is killed needs none.
fn a_command_of_a_group_without_threads_is_killed(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots().max_threads(2)));
    let mut clients = server.clients(2);
    for client in &mut clients {
        client.send("HEED gate");
    }
    until("all threads wait", || server.group().waiting == 2);
    kill(&server, &clients[1]);
    assert_eq!(clients[1].line(), KILLED);
    server.stage.open("gate");
    assert_eq!(clients[0].line(), "heeded");
    goes_on(server, clients);
}

// ---- what takes too long ----

const TOO_LONG: &str = "cancelled: the command took longer than command_timeout";

fn timed(setup: Setup) -> Harness {
    setup.serve(Options::limits(Limits::default().command_timeout(SOON)))
}

fn a_command_that_takes_too_long_is_told_so(setup: Setup) {
    let server = timed(setup);
    let mut client = server.client();
    for command in ["HEED gate", "OBEY gate"] {
        let begun = Instant::now();
        client.send(&format!("{command}\nECHO next"));
        assert_eq!(client.line(), TOO_LONG);
        assert!(begun.elapsed() >= SOON);
        assert_eq!(client.line(), "next");
    }
    assert!(server.stage.reasons().is_empty());
    let stats = server.finish();
    assert_eq!((stats.commands_timed_out, stats.commands_killed), (2, 0));
}

fn a_parked_command_that_takes_too_long_is_told_so(setup: Setup) {
    let server = timed(setup);
    let mut client = server.client();
    client.send("PARK it\nECHO next");
    assert_eq!(client.line(), TOO_LONG);
    assert_eq!(client.line(), "next");
    client.send("OWE");
    assert_eq!(client.line(), TOO_LONG);
    client.ping();
    assert_eq!(server.finish().commands_timed_out, 2);
}

fn short_commands_are_not_taken_for_one_long_one(setup: Setup) {
    // One that a machine's pause makes long does not mind.
    let server = timed(setup);
    let mut client = server.client();
    let begun = Instant::now();
    while begun.elapsed() < 4 * SOON {
        client.send(&["BURN 1"; 20].join("\n"));
        for _ in 0..20 {
            assert_eq!(client.line(), "burnt");
        }
    }
    let timed_out = server.finish().commands_timed_out;
    assert!(timed_out <= 1, "{timed_out}");
}

// ---- clients that leave ----

const LEFT: &str = "cancelled: the client left while its command ran\n";

fn watching(setup: Setup, hang_up: HangUp) -> Harness {
    setup.serve(Options::limits(Limits::default().hang_up(hang_up)))
}

fn a_client_that_left_is_ignored_by_default(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("HEED gate");
    until("it waits", || server.stage.running("HEED").now == 1);
    client.half_close();
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= 4 * SOON);
    assert_eq!(server.stage.running("HEED").now, 1);
    server.stage.open("gate");
    assert_eq!(client.rest(), "heeded\n");
    server.until_closed_as("client_closed", 1);
    assert_eq!(server.finish().commands_hung_up, 0);
}

/// The reply reaches one that only sends no more.
fn told(setup: Setup, command: &str) {
    let server = watching(setup, HangUp::Flag);
    let mut client = server.client();
    client.send(command);
    number(&server, &client);
    client.half_close();
    assert_eq!(client.rest(), LEFT);
    server.until_closed_as("client_closed", 1);
    let mut other = server.client();
    other.send("HEED gate");
    until("it waits", || server.stage.running("HEED").now == 1);
    other.reset();
    server.until_closed_as("client_closed", 2);
    assert_eq!(server.finish().commands_hung_up, 2);
}

fn a_command_is_told_that_its_client_has_left(setup: Setup) {
    told(setup, "HEED gate");
}

fn a_parked_command_is_told_that_its_client_has_left(setup: Setup) {
    told(setup, "PARK it");
}

fn a_command_whose_client_has_left_is_killed(setup: Setup) {
    type Leave = fn(Client);
    let ways: [Leave; 3] = [drop, Client::reset, |mut client| {
        client.half_close();
        client.rest();
    }];
    for leave in ways {
        let server = watching(setup, HangUp::Kill);
        let mut witness = server.client();
        for command in ["HEED gate", "OBEY gate"] {
            let mut client = server.client();
            client.send(command);
            number(&server, &client);
            leave(client);
        }
        server.until_closed_as("hung_up", 2);
        assert_eq!(server.stage.reasons(), [CloseReason::HungUp; 2]);
        witness.ping();
        server.finish();
    }
}

fn a_client_that_stays_is_not_taken_for_one_that_left(setup: Setup) {
    let server = watching(setup, HangUp::Kill);
    let mut clients = server.clients(3);
    clients[0].send("HEED gate\nECHO pipelined");
    clients[1].send("PARK it");
    clients[2].send("OBEY gate");
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= 5 * SOON);
    server.stage.open("gate");
    assert!(server.stage.take_resume("it").resume());
    assert_eq!(clients[0].line(), "heeded");
    assert_eq!(clients[0].line(), "pipelined");
    assert_eq!(clients[1].line(), "resumed");
    assert_eq!(clients[2].line(), "obeyed");
    clients.iter_mut().for_each(Client::ping);
    server.finish();
}

// ---- silence ----

fn a_client_may_not_be_silent_for_long_in_a_transaction(setup: Setup) {
    let limits = Limits::default()
        .idle_timeout(NEVER)
        .idle_in_transaction_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut outside = server.client();
    let mut client = server.client();
    assert_eq!(client.ask("TRANSACTION true"), "set");
    let begun = Instant::now();
    assert_eq!(
        client.rest(),
        "farewell: the client was silent in a transaction for longer than \
         idle_in_transaction_timeout\n"
    );
    assert!(begun.elapsed() >= SOON / 2);
    server.until_closed_as("idle_in_transaction", 1);
    // Who has ended it may be silent again.
    assert_eq!(outside.ask("TRANSACTION true"), "set");
    assert_eq!(outside.ask("TRANSACTION false"), "set");
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= 3 * SOON);
    outside.ping();
    server.finish();
}

/// The story: a server that poked its clients, to have them told something now and then, never found
/// one idle.
fn a_poke_does_not_make_a_silent_client_heard(setup: Setup) {
    let limits = Limits::default()
        .read_timeout(3 * SOON)
        .idle_timeout(3 * SOON);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    assert_eq!(client.ask("HANDLE"), "taken");
    let handle = server.handle.find(client.id).expect("it lives");
    let mut pokes = 0;
    until("it is closed as idle", || {
        thread::sleep(SOON / 10);
        pokes += 1;
        handle.poke();
        server.closed_as("idle_timeout") == 1
    });
    let rest = client.rest();
    assert!(rest.ends_with("longer than idle_timeout\n"), "{rest}");
    assert!(rest.starts_with("poked\n") || pokes < 3, "{rest}");
    server.finish();
}

/// The story: the silence of a client that had said nothing yet was measured from the server's start.
fn a_client_that_comes_late_has_its_own_time_to_be_silent(setup: Setup) {
    let limits = Limits::default()
        .read_timeout(2 * SOON)
        .idle_timeout(2 * SOON);
    let server = setup.serve(Options::limits(limits));
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= 3 * SOON);
    let begun = Instant::now();
    let mut client = server.client();
    let rest = client.rest();
    assert!(rest.ends_with("longer than idle_timeout\n"), "{rest}");
    assert!(begun.elapsed() >= 2 * SOON);
    server.finish();
}
