//! Promises about the way from the socket to the session: strangers hold up nobody, use up nothing that
//! sessions need, and are gone after a while.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use common::client::{Client, Socket};
use common::stage::Stage;
use common::{
    AMPLE, Harness, NEVER, Options, PATIENCE, Setup, Transport, everywhere, in_the_pool, pair,
    patient_group, until,
};
use thread_group_pool::{Limits, Refusal, Server};

everywhere! {
    a_session_is_taken_by_who_has_logged_in,
    who_may_pass_the_limit_of_sessions_passes_it,
    strangers_have_a_limit_of_their_own,
    a_login_takes_no_longer_than_its_time_however_busy_it_is,
    an_attached_stream_has_its_time_to_log_in_too,
    a_stranger_sends_no_more_than_a_login_needs,
    an_address_has_no_more_than_its_connections,
    who_is_refused_and_reads_nothing_holds_up_nobody,
    who_is_refused_may_have_sent_something,
    a_full_house_is_entered_again_ten_thousand_times,
    #[cfg(unix)]
    a_thousand_strangers_hold_up_nobody,
}

in_the_pool! {
    who_has_to_wait_for_its_open_loses_no_time,
}

/// A server that asks for a login.
fn serve(setup: Setup, limits: Limits) -> Harness {
    let server = setup.serve(Options::limits(limits));
    server.stage.asks_for_login.store(true, SeqCst);
    server
}

/// Nobody is closed for taking time.
fn patient() -> Limits {
    Limits::default().login_timeout(NEVER)
}

fn session(server: &Harness) -> Client {
    let mut client = server.client();
    assert_eq!(client.ask("LOGIN"), "welcome");
    client
}

fn a_session_is_taken_by_who_has_logged_in(setup: Setup) {
    let server = serve(setup, patient().max_connections(2));
    let mut sessions = [session(&server), session(&server)];
    let mut strangers = server.clients(3);
    let [canceller, late, unwilling] = &mut strangers[..] else {
        unreachable!("three of them")
    };
    late.send("LOGIN");
    assert_eq!(
        late.rest(),
        "refused: too many connections (max_connections is 2)\n"
    );
    server.until_closed_as("too_many_connections", 1);
    assert_eq!(server.stats().refused, 1);
    assert_eq!(
        unwilling.ask("LOGIN IF POSSIBLE"),
        Refusal::TooManyConnections { limit: 2 }.to_string()
    );
    unwilling.ping();
    assert_eq!(server.stats().sessions, 2);
    // A request to cancel needs no session.
    let victim = sessions[0].id;
    assert_eq!(canceller.ask(&format!("KILL {victim}")), "true");
    sessions[0].rest();
    until("there is room", || server.stats().sessions == 1);
    assert_eq!(unwilling.ask("LOGIN IF POSSIBLE"), "welcome");
    assert_eq!(unwilling.ask("LOGIN"), "welcome", "again does nothing");
    assert_eq!(server.stats().sessions, 2);
    sessions[1].ping();
    server.finish();
}

fn who_may_pass_the_limit_of_sessions_passes_it(setup: Setup) {
    let server = serve(setup, patient().max_connections(1));
    let _session = session(&server);
    let mut root = server.client();
    assert_eq!(root.ask("LOGIN ROOT"), "welcome");
    assert_eq!(server.stats().sessions, 2);
    let mut other = server.client();
    other.send("LOGIN");
    assert!(other.rest().starts_with("refused: too many connections"));
    server.finish();
}

fn strangers_have_a_limit_of_their_own(setup: Setup) {
    let server = serve(setup, patient().max_logins(3));
    let mut sessions: Vec<_> = (0..5).map(|_| session(&server)).collect();
    let mut strangers = server.clients(3);
    assert_eq!(
        Client::connect_only(&server.at).rest(),
        "refused: too many clients that have not logged in (max_logins is 3)\n"
    );
    assert_eq!(strangers[0].ask("LOGIN"), "welcome");
    let mut next = server.client();
    next.ping();
    drop(next);
    until("one has gone", || server.stats().connections == 8);
    server.client().ping();
    sessions.iter_mut().for_each(Client::ping);
    assert_eq!(server.finish().refused, 1);
}

/// Long enough for a login on a busy machine; where the test is about its end.
const SOON: Duration = Duration::from_millis(200);

fn a_login_takes_no_longer_than_its_time_however_busy_it_is(setup: Setup) {
    let server = serve(setup, Limits::default().login_timeout(SOON));
    // One who is quick, on whatever machine.
    let mut logged_in = loop {
        let mut client = server.client();
        client.try_to_send(b"LOGIN\n");
        if client.line_or_end().as_deref() == Some("welcome") {
            break client;
        }
    };
    let mut busy = server.client();
    let mut half = server.client();
    half.send_bytes(b"LOG");
    let mut silent = server.client();
    let mut waited = 0;
    // A byte now and then, which is never silent for long, and steps of a login that are all right.
    loop {
        busy.try_to_send(b"CHALLENGE\n");
        match busy.line_or_end().as_deref() {
            Some("prove it") => {}
            Some(line) => {
                assert_eq!(
                    line,
                    "farewell: the client did not log in within login_timeout"
                );
                break;
            }
            // Over TCP, the words may have been overtaken by a reset.
            None => break,
        }
        waited += 1;
        assert!(waited < PATIENCE.as_millis(), "it is still there");
        thread::sleep(Duration::from_millis(1));
    }
    for client in [&mut half, &mut silent] {
        assert_eq!(
            client.rest(),
            "farewell: the client did not log in within login_timeout\n"
        );
    }
    logged_in.ping();
    until("all three are counted", || {
        server.closed_as("login_timeout") >= 3
    });
    logged_in.ping();
    server.finish();
}

fn an_attached_stream_has_its_time_to_log_in_too(setup: Setup) {
    let server = Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .limits(Limits::default().login_timeout(SOON))
        .build()
        .expect("the server starts");
    let stage = Arc::new(Stage::default());
    stage.asks_for_login.store(true, SeqCst);
    let (ours, theirs) = pair();
    let attached = server.handle().attach(ours, Arc::clone(&stage));
    attached.expect("there is room");
    let mut client = Client::over(theirs);
    assert!(client.rest().contains("login_timeout"));
    assert!(server.drain(AMPLE).clean());
}

fn a_stranger_sends_no_more_than_a_login_needs(setup: Setup) {
    let server = serve(setup, patient().max_login_input(16 * 1024));
    let long = "x".repeat(40_000);
    let mut stranger = server.client();
    stranger.try_to_send(format!("ECHO {long}").as_bytes());
    let words = stranger.rest();
    // A reset may overtake them: it has sent what nobody read.
    assert!(words.is_empty() || words.ends_with("a command was longer than max_input\n"));
    server.until_closed_as("input_too_long", 1);
    let mut client = session(&server);
    assert_eq!(client.ask(&format!("ECHO {long}")), long);
    // Together with the login, it is a session's.
    let mut client = server.client();
    client.send(&format!("LOGIN\nECHO {long}"));
    assert_eq!(client.line(), "welcome");
    assert_eq!(client.line(), long);
    server.finish();
}

fn an_address_has_no_more_than_its_connections(setup: Setup) {
    let server = serve(setup, patient().max_per_address(3));
    let mut clients = vec![session(&server), server.client(), server.client()];
    if setup.transport != Transport::Tcp {
        // It has no address.
        clients.push(server.client());
        clients.iter_mut().for_each(Client::ping);
        server.finish();
        return;
    }
    for _ in 0..3 {
        assert_eq!(
            Client::connect_only(&server.at).rest(),
            "refused: too many connections from this address (max_per_address is 3)\n"
        );
    }
    drop(clients.pop());
    until("one has gone", || server.stats().connections == 2);
    clients.push(server.client());
    clients.iter_mut().for_each(Client::ping);
    drop(clients);
    server.until_all_closed();
    let _all = server.clients(3);
    assert_eq!(server.finish().refused, 3);
}

fn who_is_refused_and_reads_nothing_holds_up_nobody(setup: Setup) {
    let server = serve(setup, patient().max_logins(1));
    let mut stranger = server.client();
    let _refused: Vec<_> = (0..300).map(|_| Socket::connect(&server.at)).collect();
    until("they have been refused", || server.stats().refused == 300);
    assert_eq!(stranger.ask("LOGIN"), "welcome");
    session(&server).ping();
    server.finish();
}

fn who_is_refused_may_have_sent_something(setup: Setup) {
    let server = serve(setup, patient().max_logins(1));
    let _stranger = server.client();
    let mut told = 0;
    for _ in 0..50 {
        let mut client = Client::connect_only(&server.at);
        client.try_to_send(b"LOGIN\nECHO first\n");
        // Over TCP, what comes after the close may cost it the words.
        told += usize::from(client.rest().starts_with("refused: too many clients"));
    }
    if setup.transport != Transport::Tcp {
        assert_eq!(told, 50);
    }
    server.finish();
}

/// Whoever leaves makes room, and who comes then is let in; none of this is ever forgotten.
fn a_full_house_is_entered_again_ten_thousand_times(setup: Setup) {
    let limits = patient().max_connections(1).max_logins(1);
    let server = serve(setup, limits);
    for round in 0..10_000 {
        // The one before may be on its way out still.
        let mut tries = 0;
        let mut client = loop {
            let mut client = Client::connect_only(&server.at);
            client.try_to_send(b"LOGIN\n");
            let greeted = client
                .line_or_end()
                .is_some_and(|line| line.starts_with("hello"));
            if greeted && client.line_or_end().as_deref() == Some("welcome") {
                break client;
            }
            tries += 1;
            assert!(tries < 30_000, "nobody gets in, in round {round}");
            thread::yield_now();
        };
        if round % 10 == 0 {
            let mut other = Client::connect_only(&server.at);
            other.try_to_send(b"LOGIN\n");
            let words = other.rest();
            assert!(
                words.is_empty() || words.contains("refused: too many connections"),
                "{words}"
            );
        }
        client.ping();
    }
    server.until_all_closed();
    server.finish();
}

/// A thousand that stop after each step: of their threads there are none, and whoever comes is served.
#[cfg(unix)]
fn a_thousand_strangers_hold_up_nobody(setup: Setup) {
    use common::process::{allow_descriptors, alone, threads};

    alone(setup.test, || {
        if !allow_descriptors(12_000) {
            return;
        }
        let options = Options {
            limits: patient(),
            threads: thread_group_pool::ThreadPerConnectionConfig::default().stack_size(64 * 1024),
            ..Options::default()
        };
        let server = setup.serve(options);
        server.stage.asks_for_login.store(true, SeqCst);
        session(&server).ping();
        let before = threads();
        let mut strangers = Vec::new();
        for step in ["connected", "greeted", "in half a line", "challenged"] {
            for _ in 0..1000 {
                let mut client = Client::connect_only(&server.at);
                if step != "connected" {
                    assert!(client.line().starts_with("hello"));
                }
                match step {
                    "in half a line" => client.send_bytes(b"LOG"),
                    "challenged" => assert_eq!(client.ask("CHALLENGE"), "prove it"),
                    _ => {}
                }
                strangers.push(client);
            }
            session(&server).ping();
            if setup.is_pool() {
                // As many as the slots of two groups need, whatever the thousands do.
                let now = threads();
                assert!(now <= before + 8, "{now} threads, {before} before");
            }
        }
        until("all are there", || server.stats().connections >= 4000);
        drop(strangers);
        server.until_all_closed();
        session(&server).ping();
        server.finish();
    });
}

/// The time for a login is the client's, and not that of the others in the queue.
fn who_has_to_wait_for_its_open_loses_no_time(setup: Setup) {
    let options = Options {
        pool: patient_group().max_threads(2),
        limits: Limits::default().login_timeout(SOON),
        ..Options::default()
    };
    let server = setup.serve(options);
    let mut blocker = server.client();
    blocker.send("BLOCK gate");
    until("the slot is taken", || {
        server.stage.running("BLOCK").now == 1
    });
    let waiting = Socket::connect(&server.at);
    until("it has been let in", || server.stats().connections == 2);
    let begun = std::time::Instant::now();
    until("its time would be over", || begun.elapsed() > 4 * SOON);
    server.stage.open("gate");
    Client::over(waiting).ping();
    server.finish();
}
