//! Promises about connections that rest for another reason than input: until they are resumed, until
//! their output has left, until a time, or until somebody pokes them.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::client::Client;
use common::process::allow_descriptors;
use common::{
    AMPLE, Harness, Options, Setup, Transport, everywhere, in_the_pool, patient_group, two_slots,
    until,
};
use thread_group_pool::{CloseReason, DrainReport, Limits, PoolConfig};

everywhere! {
    a_parked_connection_goes_on_when_it_is_resumed_from_another_thread,
    a_resume_may_come_before_the_handler_has_returned,
    a_resume_counts_once,
    a_connection_whose_last_resume_is_dropped_is_closed,
    a_connection_that_nobody_can_resume_is_closed,
    a_resume_that_is_dropped_before_the_park_closes_it,
    a_clone_of_a_resume_keeps_the_park,
    a_park_ends_at_its_time,
    a_resume_that_comes_before_the_time_cancels_it,
    a_resume_after_the_time_does_nothing,
    a_resume_that_was_given_up_does_nothing_to_a_later_park,
    the_resume_of_an_earlier_park_does_nothing,
    a_parked_connection_is_killed,
    a_parked_connection_that_is_poked_may_park_on,
    a_park_that_a_poke_has_ended_is_not_resumed,
    a_client_that_hangs_up_ends_its_park,
    a_client_that_has_hung_up_before_the_park_ends_it,
    a_client_that_sends_no_more_stays_parked,
    a_drain_waits_for_a_parked_connection,
    a_parked_connection_is_killed_at_the_deadline_of_a_drain,
    replies_before_a_park_leave,
    a_large_reply_leaves_while_its_connection_is_parked,
    what_is_pipelined_behind_a_park_is_answered_after_it_in_order,
    neither_the_idle_nor_the_read_timeout_ends_a_park,
    resumes_that_race_with_kills_lose_nothing,
    resumes_that_race_with_the_time_count_or_do_not,

    a_streamed_reply_arrives_whole_with_one_call_for_each_flush,
    a_streamed_reply_that_nobody_reads_is_given_up_after_the_write_timeout,
    a_connection_is_killed_while_it_streams,
    a_poke_waits_for_the_output_of_a_stream,

    a_connection_is_woken_at_its_time,
    input_that_is_there_cancels_the_time,
    the_idle_timeout_holds_beside_a_time,
    a_drain_closes_a_connection_that_waits_for_its_time,

    a_poke_wakes_an_idle_connection,
    a_poke_while_a_command_runs_comes_after_it,
    pokes_that_come_together_are_one,
    a_poke_reaches_whoever_has_taken_no_handle_with_the_next_command,
    a_poke_finds_nobody_before_the_open_and_after_the_end,
    the_reachable_are_closed_for_their_true_reasons,
}

in_the_pool! {
    #[cfg_attr(windows, ignore = "Wine looks at every poll for each event: a crowd takes minutes")]
    a_thousand_parked_connections_hold_no_thread,
    #[cfg_attr(windows, ignore = "Wine looks at every poll for each event: a crowd takes minutes")]
    a_stream_that_nobody_reads_holds_no_thread,
    a_resumed_connection_goes_before_those_that_queue,
}

const SOON: Duration = Duration::from_millis(100);

/// A server, and a client whose connection is parked under the name "p".
fn parked(setup: Setup, command: &str) -> (Harness, Client) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send(command);
    until_parked(&server, &client);
    (server, client)
}

#[track_caller]
fn until_parked(server: &Harness, client: &Client) {
    until("it is parked", || server.state(client.id) == Some("parked"));
}

/// Lets so much time pass.
fn pass(time: Duration) {
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= time);
}

#[track_caller]
fn poke(server: &Harness, client: &Client) {
    let handle = server.handle.find(client.id).expect("it lives");
    assert!(handle.poke());
}

// ---- parks ----

fn a_parked_connection_goes_on_when_it_is_resumed_from_another_thread(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p");
    let resume = server.stage.take_resume("p");
    assert_eq!(resume.id(), client.id);
    let resumed = thread::spawn(move || resume.resume());
    assert!(resumed.join().expect("no panic"));
    assert_eq!(client.line(), "resumed");
    client.ping();
    assert_eq!(server.stage.running("Resumed").ever, 1);
    server.finish();
}

fn a_resume_may_come_before_the_handler_has_returned(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for _ in 0..20 {
        assert_eq!(client.ask("EARLY"), "true false");
        assert_eq!(client.line(), "resumed");
    }
    client.ping();
    server.finish();
}

fn a_resume_counts_once(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p");
    let resume = server.stage.take_resume("p");
    let other = resume.clone();
    assert!(resume.resume());
    assert!(!resume.resume());
    assert!(!other.resume());
    assert_eq!(client.line(), "resumed");
    client.ping();
    assert_eq!(server.stage.running("Resumed").ever, 1);
    server.finish();
}

const UNRESUMED: &str = "farewell: nobody is left who could resume the connection\n";

fn a_connection_whose_last_resume_is_dropped_is_closed(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p\nECHO never");
    drop(server.stage.take_resume("p"));
    assert_eq!(client.rest(), UNRESUMED);
    server.until_closed_as("unresumed", 1);
    assert_eq!(server.stage.reasons(), [CloseReason::Unresumed]);
    assert_eq!(server.stage.running("ECHO").ever, 0);
    server.finish();
}

fn a_connection_that_nobody_can_resume_is_closed(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("ECHO before\nRECKLESS\nECHO never");
    assert_eq!(client.rest(), format!("before\n{UNRESUMED}"));
    // A `Resume` that has been used serves no second park.
    let mut client = server.client();
    assert_eq!(client.ask("EARLY"), "true false");
    assert_eq!(client.line(), "resumed");
    client.send("RECKLESS");
    assert_eq!(client.rest(), UNRESUMED);
    server.until_closed_as("unresumed", 2);
    server.finish();
}

fn a_resume_that_is_dropped_before_the_park_closes_it(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("RECKLESS dropped");
    assert_eq!(client.rest(), UNRESUMED);
    server.until_closed_as("unresumed", 1);
    server.finish();
}

fn a_clone_of_a_resume_keeps_the_park(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p");
    let resume = server.stage.take_resume("p");
    drop(resume.clone());
    let other = resume.clone();
    drop(resume);
    assert_eq!(server.state(client.id), Some("parked"));
    assert!(other.resume());
    assert_eq!(client.line(), "resumed");
    server.finish();
}

fn a_park_ends_at_its_time(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for command in ["SLEEP 50", "PARK p 50"] {
        let begun = Instant::now();
        assert_eq!(client.ask(command), "due");
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
    client.ping();
    assert_eq!(server.stage.running("Due").ever, 2);
    server.finish();
}

fn a_resume_that_comes_before_the_time_cancels_it(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p 3600000");
    assert!(server.stage.take_resume("p").resume());
    assert_eq!(client.line(), "resumed");
    client.ping();
    assert_eq!(server.stage.running("Due").ever, 0);
    server.finish();
}

fn a_resume_after_the_time_does_nothing(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("PARK p 5"), "due");
    let resume = server.stage.take_resume("p");
    assert!(!resume.resume(), "that park is over");
    client.ping();
    assert_eq!(server.stage.running("Resumed").ever, 0);
    server.finish();
}

/// The story: a command had waited for a lock and given up. Its request, with the `Resume` in it, was
/// dropped, as it should be; and the next pause of that session closed its connection.
fn a_resume_that_was_given_up_does_nothing_to_a_later_park(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("PARK p 5"), "due");
    drop(server.stage.take_resume("p"));
    assert_eq!(client.ask("SLEEP 5"), "due");
    assert_eq!(client.ask("PARK p 5"), "due");
    client.send("SLEEP 50");
    until_parked(&server, &client);
    drop(server.stage.take_resume("p"));
    assert_eq!(client.line(), "due");
    client.ping();
    server.finish();
}

fn the_resume_of_an_earlier_park_does_nothing(setup: Setup) {
    let (server, mut client) = parked(setup, "STALE p");
    let (stale, resume) = (
        server.stage.take_resume("p"),
        server.stage.take_resume("not p"),
    );
    assert!(!stale.resume());
    drop(stale);
    assert_eq!(server.state(client.id), Some("parked"));
    assert!(resume.resume());
    assert_eq!(client.line(), "resumed");
    // Neither does one whose park has been resumed.
    client.send("PARK p");
    until_parked(&server, &client);
    assert!(!resume.resume());
    drop(resume);
    assert!(server.stage.take_resume("p").resume());
    assert_eq!(client.line(), "resumed");
    server.finish();
}

fn a_parked_connection_is_killed(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p\nECHO never");
    let resume = server.stage.take_resume("p");
    assert!(server.handle.kill(client.id));
    assert!(!resume.resume(), "that park is over");
    assert_eq!(client.rest(), "farewell: the connection was killed\n");
    server.until_closed_as("killed", 1);
    assert_eq!(server.stage.running("ECHO").ever, 0);
    assert_eq!(server.stage.running("Resumed").ever, 0);
    server.finish();
}

fn a_parked_connection_that_is_poked_may_park_on(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p");
    for _ in 0..3 {
        poke(&server, &client);
        assert_eq!(client.line(), "poked");
        until_parked(&server, &client);
    }
    assert!(server.stage.take_resume("p").resume());
    assert_eq!(client.line(), "resumed");
    client.ping();
    server.finish();
}

fn a_park_that_a_poke_has_ended_is_not_resumed(setup: Setup) {
    let (server, mut client) = parked(setup, "NAP p");
    poke(&server, &client);
    assert_eq!(client.line(), "poked");
    client.ping();
    assert!(!server.stage.take_resume("p").resume());
    assert_eq!(client.ask("SLEEP 5"), "due");
    assert_eq!(server.stage.running("Resumed").ever, 0);
    server.finish();
}

/// In the ways in which a client may close both directions. One that closes a TCP connection has
/// closed its own direction only, as far as can be told before something is sent to it.
fn hang_up(setup: Setup, client: Client) {
    match setup.transport {
        Transport::Tcp => client.reset(),
        #[cfg(unix)]
        Transport::Unix => drop(client),
    }
}

fn a_client_that_hangs_up_ends_its_park(setup: Setup) {
    let (server, client) = parked(setup, "PARK p");
    let mut witness = server.client();
    hang_up(setup, client);
    server.until_closed_as("client_closed", 1);
    assert_eq!(server.stage.reasons(), [CloseReason::ClientClosed]);
    assert!(!server.stage.take_resume("p").resume());
    witness.ping();
    server.finish();
}

/// The event that says so was seen before the command that parks was run.
fn a_client_that_has_hung_up_before_the_park_ends_it(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots()));
    let mut blockers = server.clients(2);
    let mut client = server.client();
    if setup.transport == Transport::Tcp {
        // A reset takes along what was sent and has not been read.
        client.send("WAIT other\nPARK p");
        until("it waits", || server.stage.running("WAIT").now == 1);
    }
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    if setup.transport != Transport::Tcp {
        client.send("PARK p");
    }
    hang_up(setup, client);
    if setup.is_pool() && setup.transport != Transport::Tcp {
        until("it queues", || server.group().queued == 1);
    }
    server.stage.open_all();
    server.until_closed_as("client_closed", 1);
    assert!(!server.stage.take_resume("p").resume());
    server.finish();
}

fn a_client_that_sends_no_more_stays_parked(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p\nECHO after");
    client.half_close();
    // Whoever looks at events of that group has seen this one by then.
    let mut others = server.clients(4);
    others.iter_mut().for_each(Client::ping);
    assert_eq!(server.state(client.id), Some("parked"));
    assert!(server.stage.take_resume("p").resume());
    assert_eq!(client.rest(), "resumed\nafter\n");
    server.until_closed_as("client_closed", 1);
    others.iter_mut().for_each(Client::ping);
    server.finish();
}

const DRAINED: &str = "farewell: the server is shutting down\n";

/// Drains on a thread of its own, and waits until it has begun: an idle client has been told.
fn drain(server: &mut Harness, deadline: Duration) -> thread::JoinHandle<DrainReport> {
    let mut idle = server.client();
    let running = server.take_server();
    let thread = thread::spawn(move || running.drain(deadline));
    assert_eq!(idle.rest(), DRAINED);
    thread
}

fn a_drain_waits_for_a_parked_connection(setup: Setup) {
    let (mut server, mut client) = parked(setup, "PARK p\nECHO after");
    let drain = drain(&mut server, AMPLE);
    assert!(!drain.is_finished());
    assert_eq!(server.state(client.id), Some("parked"));
    assert!(server.stage.take_resume("p").resume());
    assert_eq!(client.rest(), format!("resumed\nafter\n{DRAINED}"));
    let report = drain.join().expect("no panic");
    assert!(report.clean(), "{report}");
    server.check(&server.stats());
}

fn a_parked_connection_is_killed_at_the_deadline_of_a_drain(setup: Setup) {
    let (mut server, mut client) = parked(setup, "PARK p");
    let report = server.take_server().drain(SOON);
    assert_eq!(
        (report.connections(), report.killed.len()),
        (1, 1),
        "{report}"
    );
    assert!(report.abandoned_threads.is_empty(), "{report}");
    assert_eq!(client.rest(), "farewell: the connection was killed\n");
    assert!(!server.stage.take_resume("p").resume());
    server.check(&server.stats());
}

fn replies_before_a_park_leave(setup: Setup) {
    let (server, mut client) = parked(setup, "ECHO one\nECHO two\nPARK p");
    assert_eq!((client.line(), client.line()), ("one".into(), "two".into()));
    assert_eq!(server.state(client.id), Some("parked"));
    server.stage.take_resume("p").resume();
    assert_eq!(client.line(), "resumed");
    server.finish();
}

fn a_large_reply_leaves_while_its_connection_is_parked(setup: Setup) {
    const SIZE: usize = 20_000_000;
    let options = Options::limits(Limits::default().output_bound(64 << 20));
    let server = setup.serve(options);
    let mut client = server.client();
    // A pipeline would wait for the reply to be read: the command parks itself.
    client.send(&format!("BIGPARK {SIZE}"));
    until_parked(&server, &client);
    client.read_big(0, SIZE);
    assert_eq!(client.line(), "");
    // It runs now and then to write, and parks again.
    until_parked(&server, &client);
    assert_eq!(server.stage.running("Resumed").ever, 0);
    assert!(server.stage.take_resume("big").resume());
    assert_eq!(client.line(), "resumed");
    client.ping();
    server.finish();
}

fn what_is_pipelined_behind_a_park_is_answered_after_it_in_order(setup: Setup) {
    let (server, mut client) = parked(setup, "PARK p\nECHO one");
    client.send("ECHO two");
    client.send("EARLY\nECHO three");
    server.clients(4).iter_mut().for_each(Client::ping);
    assert_eq!(server.state(client.id), Some("parked"));
    assert!(server.stage.take_resume("p").resume());
    for reply in ["resumed", "one", "two", "true false", "resumed", "three"] {
        assert_eq!(client.line(), reply);
    }
    server.finish();
}

fn neither_the_idle_nor_the_read_timeout_ends_a_park(setup: Setup) {
    let limits = Limits::default().read_timeout(SOON).idle_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    client.send("PARK p");
    until_parked(&server, &client);
    pass(3 * SOON);
    assert!(server.stage.take_resume("p").resume());
    assert_eq!(client.line(), "resumed");
    server.finish();
}

/// Whoever comes first: the session is closed once, as killed, and it is not told of a resume that
/// did not count.
fn resumes_that_race_with_kills_lose_nothing(setup: Setup) {
    const ROUNDS: usize = 200;
    let server = setup.serve(Options::default());
    for round in 0..ROUNDS {
        let mut client = server.client();
        client.send("PARK p");
        let resume = server.stage.take_resume("p");
        let handle = server.handle.find(client.id).expect("it lives");
        let told = server.stage.running("Resumed").ever;
        let counted = thread::scope(|scope| {
            let killed = scope.spawn(|| handle.kill());
            let counted = resume.resume();
            assert!(killed.join().expect("no panic"));
            counted
        });
        client.rest();
        server.until_closed_as("killed", round as u64 + 1);
        let told = server.stage.running("Resumed").ever - told;
        assert!(told <= usize::from(counted), "round {round}");
    }
    assert_eq!(server.finish().closed, ROUNDS as u64);
}

/// A resume counts or the time does; the handler is told of that one, and once.
fn resumes_that_race_with_the_time_count_or_do_not(setup: Setup) {
    const ROUNDS: usize = 200;
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for round in 0..ROUNDS {
        client.send("PARK p 2");
        let resume = server.stage.take_resume("p");
        // Into the moment, more or less.
        let aim = Instant::now() + Duration::from_micros(1500 + 10 * (round as u64 % 100));
        while Instant::now() < aim {
            std::hint::spin_loop();
        }
        let counted = resume.resume();
        let told = client.line();
        assert_eq!(told, if counted { "resumed" } else { "due" }, "{round}");
        client.ping();
    }
    server.finish();
}

// ---- streams ----

/// More than the sockets of both sides hold.
const KILOBYTES: usize = 24_000;

fn a_streamed_reply_arrives_whole_with_one_call_for_each_flush(setup: Setup) {
    // No more may ever be queued than is let go of by a flush.
    let limits = Limits::default().output_bound(16 * 1024);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    client.send(&format!("STREAM {KILOBYTES}\nECHO after"));
    client.read_big(0, KILOBYTES * 1024);
    assert_eq!((client.line(), client.line()), ("".into(), "after".into()));
    assert_eq!(server.stage.running("Flushed").ever, KILOBYTES);
    server.finish();
}

/// A client that has asked for a stream and reads no more of it for now.
fn streaming(setup: Setup, options: Options) -> (Harness, Client) {
    let server = setup.serve(options);
    let mut client = server.client();
    client.send(&format!("STREAM {KILOBYTES}"));
    until("it waits for its reader", || {
        let before = server.stage.running("Flushed").ever;
        pass(Duration::from_millis(20));
        server.stage.running("STREAM").ever == 1 && server.stage.running("Flushed").ever == before
    });
    assert!(server.stage.running("Flushed").ever < KILOBYTES);
    (server, client)
}

fn a_streamed_reply_that_nobody_reads_is_given_up_after_the_write_timeout(setup: Setup) {
    let limits = Limits::default().write_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    let begun = Instant::now();
    client.send(&format!("STREAM {KILOBYTES}"));
    server.until_closed_as("write_timeout", 1);
    assert!(begun.elapsed() >= SOON);
    assert!(server.stage.running("Flushed").ever < KILOBYTES);
    assert!(!client.rest().contains("farewell"));
    server.finish();
}

fn a_connection_is_killed_while_it_streams(setup: Setup) {
    let (server, mut client) = streaming(setup, Options::default());
    assert!(server.handle.kill(client.id));
    server.until_closed_as("killed", 1);
    client.rest();
    assert!(server.stage.running("Flushed").ever < KILOBYTES);
    server.finish();
}

fn a_poke_waits_for_the_output_of_a_stream(setup: Setup) {
    let (server, mut client) = streaming(setup, Options::default());
    poke(&server, &client);
    let others = server.clients(4);
    others.into_iter().for_each(|mut client| client.ping());
    assert_eq!(server.stage.running("Poked").ever, 0);
    client.read_big(0, KILOBYTES * 1024);
    assert_eq!(client.line(), "");
    assert_eq!(client.line(), "poked");
    assert_eq!(server.stage.running("Flushed").ever, KILOBYTES);
    server.finish();
}

fn a_stream_that_nobody_reads_holds_no_thread(setup: Setup) {
    let (server, mut client) = streaming(setup, Options::pool(patient_group()));
    until("nobody has it, and somebody listens", || {
        let group = server.group();
        (group.active, group.waiting, group.long) == (0, 0, 0) && group.has_listener
    });
    assert_eq!(server.state(client.id), Some("flushing"));
    client.read_big(0, KILOBYTES * 1024);
    assert_eq!(client.line(), "");
    // It never waited in a write.
    assert!(server.finish().waits.is_empty());
}

// ---- times ----

fn a_connection_is_woken_at_its_time(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(10);
    let begun = Instant::now();
    for client in &mut clients {
        assert_eq!(client.ask("TICK 50"), "ticking");
    }
    for client in &mut clients {
        assert_eq!(client.line(), "due");
        assert!(begun.elapsed() >= Duration::from_millis(50));
        client.ping();
    }
    assert_eq!(server.stage.running("Due").ever, 10);
    server.finish();
}

fn input_that_is_there_cancels_the_time(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("TICK 1\nECHO more");
    assert_eq!(client.line(), "ticking");
    assert_eq!(client.line(), "more");
    assert_eq!(client.ask("TICK 3600000"), "ticking");
    client.ping();
    pass(SOON);
    assert_eq!(server.stage.running("Due").ever, 0);
    server.finish();
}

const IDLE: &str = "farewell: the client was silent for longer than idle_timeout\n";

fn the_idle_timeout_holds_beside_a_time(setup: Setup) {
    let limits = Limits::default().read_timeout(SOON).idle_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut clients = server.clients(2);
    clients[0].send("TICK 3600000");
    clients[1].send("TICK 20");
    assert_eq!(clients[0].rest(), format!("ticking\n{IDLE}"));
    assert_eq!(clients[1].rest(), format!("ticking\ndue\n{IDLE}"));
    server.until_closed_as("idle_timeout", 2);
    server.finish();
}

fn a_drain_closes_a_connection_that_waits_for_its_time(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("TICK 3600000"), "ticking");
    let report = server.take_server().drain(AMPLE);
    assert!(report.clean(), "{report}");
    assert_eq!(client.rest(), DRAINED);
    assert_eq!(server.stage.reasons(), [CloseReason::Draining]);
    server.check(&server.stats());
}

// ---- pokes ----

fn a_poke_wakes_an_idle_connection(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("HANDLE"), "taken");
    for _ in 0..20 {
        poke(&server, &client);
        assert_eq!(client.line(), "poked");
    }
    client.ping();
    assert_eq!(server.stage.running("Poked").ever, 20);
    server.finish();
}

fn a_poke_while_a_command_runs_comes_after_it(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("HANDLE"), "taken");
    client.send("WAIT gate\nECHO more");
    until("it waits", || server.stage.running("WAIT").now == 1);
    poke(&server, &client);
    poke(&server, &client);
    server.stage.open("gate");
    assert_eq!(client.line(), "waited");
    let mut others = [client.line(), client.line()];
    others.sort();
    assert_eq!(others, ["more", "poked"]);
    client.ping();
    assert_eq!(server.stage.running("Poked").ever, 1);
    server.finish();
}

fn pokes_that_come_together_are_one(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("POKE 100"), "poking");
    assert_eq!(client.line(), "poked");
    client.ping();
    assert_eq!(server.stage.running("Poked").ever, 1);
    server.finish();
}

fn a_poke_reaches_whoever_has_taken_no_handle_with_the_next_command(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.ping();
    until("it is idle", || server.state(client.id) == Some("idle"));
    poke(&server, &client);
    client.send("ECHO ping");
    let mut lines = [client.line(), client.line()];
    lines.sort();
    assert_eq!(lines, ["ping", "poked"]);
    client.ping();
    assert_eq!(server.stage.running("Poked").ever, 1);
    server.finish();
}

fn a_poke_finds_nobody_before_the_open_and_after_the_end(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    let handle = server.handle.find(client.id).expect("it lives");
    client.send("CLOSE");
    assert_eq!(client.rest(), "bye\n");
    server.until_closed_as("handler_closed", 1);
    assert!(!handle.poke());
    server.finish();
}

/// Where they wait is another place than that of others under thread-per-connection; what ends it and
/// what is said then is the same.
fn the_reachable_are_closed_for_their_true_reasons(setup: Setup) {
    let limits = Limits::default().read_timeout(SOON).idle_timeout(5 * SOON);
    let server = setup.serve(Options::limits(limits));
    let mut clients = server.clients(5);
    for client in &mut clients {
        assert_eq!(client.ask("HANDLE"), "taken");
    }
    let [half, leaving, asking, killed, idle] = &mut clients[..] else {
        unreachable!("there are five");
    };
    half.send_bytes(b"ECHO ha");
    assert_eq!(
        half.rest(),
        "farewell: the rest of a command did not arrive within read_timeout\n"
    );
    leaving.half_close();
    asking.send("CLOSE");
    server.handle.kill(killed.id);
    for (client, end) in [
        (leaving, ""),
        (asking, "bye\n"),
        (killed, "farewell: the connection was killed\n"),
        (idle, IDLE),
    ] {
        // The machine may have made a pause of its own.
        let rest = client.rest();
        assert!([end, IDLE].contains(&rest.as_str()), "{rest}");
    }
    server.until_all_closed();
    assert!(server.closed_as("idle_timeout") >= 1);
    assert_eq!(server.closed_as("read_timeout"), 1);
    server.finish();
}

// ---- threads ----

fn a_thousand_parked_connections_hold_no_thread(setup: Setup) {
    const PARKED: usize = 1000;
    if !allow_descriptors(4 * PARKED as u64) {
        return;
    }
    let pool = PoolConfig::default().groups(1).max_threads(4);
    let server = setup.serve(Options::pool(pool));
    let mut clients = server.clients(PARKED);
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&format!("ECHO before\nPARK {n}"));
    }
    for client in &mut clients {
        assert_eq!(client.line(), "before");
    }
    until("all are parked", || {
        let all = server.handle.connections();
        all.iter().all(|info| info.state.name() == "parked")
    });
    until("their threads have nothing to do", || {
        let group = server.group();
        (group.active, group.long, group.waiting, group.blocked) == (0, 0, 0, 0)
    });
    server.client().ping();
    for n in 0..PARKED {
        assert!(server.stage.take_resume(&n.to_string()).resume());
    }
    for client in &mut clients {
        assert_eq!(client.line(), "resumed");
    }
    drop(clients);
    let stats = server.finish();
    assert!(stats.threads_peak <= 4, "{stats:?}");
}

fn a_resumed_connection_goes_before_those_that_queue(setup: Setup) {
    let pool = two_slots();
    let server = setup.serve(Options::pool(pool));
    let mut blockers = server.clients(2);
    let mut queued = server.clients(3);
    let mut client = server.client();
    client.send("PARK p");
    until_parked(&server, &client);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    for client in &mut queued {
        client.send("ECHO queued");
    }
    until("they queue", || server.group().queued == 3);
    assert!(server.stage.take_resume("p").resume());
    let queues = server.handle.queues();
    assert_eq!(queues.len(), 4, "{queues:?}");
    assert_eq!(queues[0].lane, "control");
    assert_eq!(queues[0].id, Some(client.id));
    server.stage.open("gate");
    assert_eq!(client.line(), "resumed");
    for client in &mut queued {
        assert_eq!(client.line(), "queued");
    }
    server.finish();
}
