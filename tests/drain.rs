//! Promises about the end of a server: in stages, within its deadline, and with a report that is true.

mod common;

use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use common::client::Client;
use common::process::allow_descriptors;
use common::{
    AMPLE, Harness, Kind, Options, Setup, Transport, everywhere, in_the_pool, pair, two_slots,
    until,
};
use thread_group_pool::{
    CloseReason, ConnId, Drain, DrainReport, Limits, LocalAddr, PoolConfig, Refusal, Server,
};

everywhere! {
    idle_connections_are_closed_with_a_farewell,
    running_commands_finish_first,
    what_was_pipelined_behind_them_is_answered,
    the_rest_of_a_command_is_waited_for,
    the_rest_of_a_login_is_not_waited_for,
    the_rest_of_a_command_is_not_waited_for_beyond_the_deadline,
    a_large_reply_is_sent_to_its_end,
    #[cfg_attr(windows, ignore = "a second for fifty megabytes is too short under Wine")]
    a_reply_that_nobody_reads_does_not_hold_up_the_end_for_ever,
    a_command_that_always_runs_again_is_killed_at_the_deadline,
    a_handler_that_never_returns_is_reported_and_closed_if_it_does,
    a_client_that_goes_on_sending_does_not_hold_up_the_end,
    nobody_gets_in_while_the_server_drains,
    a_server_without_connections_ends_at_once,
    a_server_that_is_dropped_drains,
    a_transaction_may_be_finished,
    a_transaction_without_a_time_is_nothing_special,
    a_transaction_that_is_not_finished_is_killed_when_its_time_is_over,
    a_command_may_ask_for_the_end,
    whoever_asks_again_hastens_the_end,
    a_close_that_never_returns_is_reported,
    #[cfg_attr(windows, ignore = "Wine looks at every poll for each event: a crowd takes minutes")]
    in_a_crowd_everybody_is_accounted_for,
    the_server_may_be_looked_at_when_it_has_ended,
}

in_the_pool! {
    commands_that_queue_are_answered,
    connections_of_a_group_whose_threads_never_return_are_closed,
}

/// Drains on a thread of its own, and waits until it has begun: an idle client has been told.
fn drain_in_background(server: &mut Harness) -> thread::JoinHandle<DrainReport> {
    let mut idle = server.client();
    until("it is idle", || server.state(idle.id) == Some("idle"));
    let running = server.take_server();
    let thread = thread::spawn(move || running.drain(AMPLE));
    assert_eq!(idle.rest(), FAREWELL);
    thread
}

fn listens(at: &LocalAddr) -> bool {
    match at {
        LocalAddr::Tcp(at) => TcpStream::connect(at).is_ok(),
        #[cfg(unix)]
        LocalAddr::Unix(at) => UnixStream::connect(at).is_ok(),
        at => unreachable!("another kind of address: {at}"),
    }
}

/// What the end of a server that nobody was cut off from looks like.
#[track_caller]
fn ended_well(server: &Harness, report: &DrainReport, (idle, finished): (usize, usize)) {
    assert!(report.clean(), "{report}");
    let counts = (report.idle, report.finished, report.left);
    assert_eq!(counts, (idle, finished, 0), "{report}");
    server.check(&server.stats());
}

const FAREWELL: &str = "farewell: the server is shutting down\n";
const KILLED: &str = "farewell: the connection was killed\n";

/// A deadline that is to be met by nobody who does not end by himself.
const SOON: Duration = Duration::from_millis(100);

fn idle_connections_are_closed_with_a_farewell(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut clients = server.clients(20);
    clients.iter_mut().for_each(Client::ping);
    until("all of them rest", || {
        let idle = |c: &Client| server.state(c.id) == Some("idle");
        clients.iter().all(idle)
    });
    let report = server.take_server().drain(AMPLE);
    for client in &mut clients {
        assert_eq!(client.rest(), FAREWELL);
    }
    assert_eq!(server.closed_as("draining"), 20, "{:?}", server.stats());
    ended_well(&server, &report, (20, 0));
}

fn running_commands_finish_first(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut running = server.clients(5);
    for client in &mut running {
        client.send("WAIT gate");
    }
    until("they run", || server.stage.running("WAIT").now == 5);
    let drain = drain_in_background(&mut server);
    // The idle one has gone before those that run have finished.
    assert!(!drain.is_finished());
    server.stage.open("gate");
    for client in &mut running {
        assert_eq!(client.rest(), format!("waited\n{FAREWELL}"));
    }
    ended_well(&server, &drain.join().expect("no panic"), (1, 5));
}

fn what_was_pipelined_behind_them_is_answered(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("WAIT gate\nECHO one\nECHO two");
    until("it runs", || server.stage.running("WAIT").now == 1);
    let drain = drain_in_background(&mut server);
    server.stage.open("gate");
    assert_eq!(client.rest(), format!("waited\none\ntwo\n{FAREWELL}"));
    ended_well(&server, &drain.join().expect("no panic"), (1, 1));
}

fn the_rest_of_a_command_is_waited_for(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut half = server.client();
    let mut owing = server.client();
    half.send_bytes(b"ECHO ha");
    owing.send("OWE");
    until("both are in the middle of a command", || {
        let all = server.handle.connections();
        all.iter().all(|info| info.state.name() == "reading")
    });
    let drain = drain_in_background(&mut server);
    half.send_bytes(b"lf\n");
    assert_eq!(half.rest(), format!("half\n{FAREWELL}"));
    assert!(!drain.is_finished());
    owing.send("ECHO paid");
    assert_eq!(owing.rest(), format!("paid\n{FAREWELL}"));
    ended_well(&server, &drain.join().expect("no panic"), (1, 2));
}

fn the_rest_of_a_login_is_not_waited_for(setup: Setup) {
    let mut server = setup.serve(Options::default());
    server.stage.asks_for_login.store(true, SeqCst);
    let mut client = server.client();
    client.send_bytes(b"LOG");
    until("half of it is there", || {
        server.state(client.id) == Some("reading")
    });
    let report = server.take_server().drain(AMPLE);
    assert_eq!(client.rest(), FAREWELL);
    ended_well(&server, &report, (1, 0));
}

fn the_rest_of_a_command_is_not_waited_for_beyond_the_deadline(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut idle = server.client();
    let mut half = server.client();
    half.send_bytes(b"ECHO ha");
    until("the half is there", || {
        server.state(half.id) == Some("reading")
    });
    let report = drain_soon(&mut server);
    assert!(idle.rest().starts_with("farewell"));
    assert_eq!(half.rest(), KILLED);
    assert_eq!((report.idle, report.killed.as_slice()), (1, &[half.id][..]));
    assert!(report.abandoned.is_empty() && report.abandoned_threads.is_empty());
    server.check(&server.stats());
}

fn a_large_reply_is_sent_to_its_end(setup: Setup) {
    const SIZE: usize = 20_000_000;
    for bound in [Limits::default().output_bound, 64 << 20] {
        let mut server = setup.serve(Options::limits(Limits::default().output_bound(bound)));
        let mut client = server.client();
        client.send(&format!("BIG {SIZE}"));
        client.read_big(0, 10);
        let drain = drain_in_background(&mut server);
        client.read_big(10, SIZE);
        // There may be no room for last words when they are said; the socket lingers for them.
        assert_eq!(client.rest(), format!("\n{FAREWELL}"));
        ended_well(&server, &drain.join().expect("no panic"), (1, 1));
    }
}

fn a_reply_that_nobody_reads_does_not_hold_up_the_end_for_ever(setup: Setup) {
    for bound in [Limits::default().output_bound, 64 << 20] {
        let mut server = setup.serve(Options::limits(Limits::default().output_bound(bound)));
        let mut client = server.client();
        client.send("BIG 50000000");
        client.read_big(0, 10);
        let report = drain_soon(&mut server);
        assert_eq!(report.killed, [client.id], "{report}");
        assert_eq!(
            (report.connections(), report.abandoned_threads.len()),
            (1, 0)
        );
        server.check(&server.stats());
    }
}

/// Drains with a deadline that some of the connections do not meet. It must not wait for handlers
/// that do not return; how long it took is not looked at, for that is the machine's affair as well.
fn drain_soon(server: &mut Harness) -> DrainReport {
    let running = server.take_server();
    let drain = thread::spawn(move || running.drain(SOON));
    until("the drain has given up", || drain.is_finished());
    let report = drain.join().expect("no panic");
    assert!(report.elapsed >= SOON, "{report}");
    assert!(!report.clean(), "{report}");
    report
}

/// It is in the middle of something, for ever; between two of its steps it can be ended.
fn a_command_that_always_runs_again_is_killed_at_the_deadline(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("AGAIN 18446744073709551615");
    until("it runs", || server.stage.running("AGAIN").ever == 1);
    let report = drain_soon(&mut server);
    assert_eq!(report.killed, [client.id], "{report}");
    assert!(report.abandoned_threads.is_empty(), "{report}");
    assert_eq!(client.rest(), KILLED);
    server.check(&server.stats());
}

/// When the handler returns at last, its connection and its thread end like any other.
fn a_handler_that_never_returns_is_reported_and_closed_if_it_does(setup: Setup) {
    for command in ["BLOCK", "WAIT"] {
        never_returns(setup, command);
    }
}

fn never_returns(setup: Setup, command: &str) {
    let mut server = setup.serve(Options::default());
    let mut idle = server.client();
    let mut stuck = server.client();
    until("it is idle", || server.state(idle.id) == Some("idle"));
    stuck.send(&format!("{command} gate\nECHO never"));
    until("it blocks", || server.stage.running(command).now == 1);
    let report = drain_soon(&mut server);
    assert!(idle.rest().starts_with("farewell"));
    assert_eq!(report.abandoned, [stuck.id], "{report}");
    assert_eq!((report.idle, report.connections()), (1, 2), "{report}");
    let [thread] = &report.abandoned_threads[..] else {
        panic!("one thread: {report}");
    };
    assert_eq!(thread.connection, Some(stuck.id), "{report}");
    // Under thread-per-connection this is looked at once a second.
    let running = thread.running.expect("it runs a command");
    assert!(!setup.is_pool() || running >= SOON, "{report}");
    assert!(
        thread
            .name
            .starts_with(if setup.is_pool() { "tgp-g" } else { "tgp-conn" }),
        "{report}"
    );
    let stats = server.stats();
    assert_eq!((stats.threads, stats.connections), (1, 1), "{stats:?}");

    server.stage.open("gate");
    let rest = stuck.rest();
    assert!(rest.ends_with(KILLED), "{rest:?}");
    until("its connection and its thread have gone", || {
        let stats = server.stats();
        stats.threads == 0 && stats.connections == 0
    });
    assert_eq!(server.stage.running("ECHO").ever, 0);
    server.check(&server.stats());
}

/// No worker is left to close them.
fn connections_of_a_group_whose_threads_never_return_are_closed(setup: Setup) {
    let mut server = setup.serve(Options::pool(two_slots().max_threads(2)));
    let mut stuck = server.clients(2);
    let mut others = server.clients(5);
    for client in &mut stuck {
        client.send("BLOCK gate");
    }
    until("both threads are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    others[0].send("ECHO never");
    let report = drain_soon(&mut server);
    assert_eq!(report.abandoned.len(), 2, "{report}");
    assert_eq!(report.abandoned_threads.len(), 2, "{report}");
    let mut killed = report.killed.clone();
    killed.sort_unstable();
    let others_ids: Vec<_> = others.iter().map(|client| client.id).collect();
    assert_eq!((killed, report.connections()), (others_ids, 7), "{report}");
    for client in &mut others {
        assert_eq!(client.rest(), KILLED);
    }
    server.stage.open("gate");
    until("the others have gone as well", || {
        let stats = server.stats();
        stats.threads == 0 && stats.connections == 0
    });
    assert_eq!(server.closed_as("killed"), 7, "{:?}", server.stats());
    server.check(&server.stats());
}

/// A client that always has one more command is served, and then told.
fn a_client_that_goes_on_sending_does_not_hold_up_the_end(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    let busy = thread::spawn(move || {
        let mut answered = 0;
        loop {
            client.try_to_send(b"ECHO more\n");
            match client.line_or_end() {
                Some(line) if line == "more" => answered += 1,
                last => return (answered, last),
            }
        }
    });
    until("it is being served", || {
        server.stage.running("ECHO").ever > 100
    });
    let report = server.take_server().drain(AMPLE);
    let (answered, last) = busy.join().expect("no panic");
    assert!(answered > 100);
    assert_eq!(
        last.map(|line| format!("{line}\n")).as_deref(),
        Some(FAREWELL)
    );
    // Between two of its commands it is idle for a moment.
    assert_eq!((report.idle + report.finished, report.left), (1, 0));
    ended_well(&server, &report, (report.idle, report.finished));
}

fn nobody_gets_in_while_the_server_drains(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("WAIT gate");
    until("it runs", || server.stage.running("WAIT").now == 1);
    let drain = drain_in_background(&mut server);
    assert!(!listens(&server.at));
    let (ours, _theirs) = pair();
    let refused = server.handle.attach(ours, Arc::clone(&server.stage));
    assert_eq!(refused.expect_err("draining").why, Refusal::Draining);
    server.stage.open("gate");
    assert_eq!(client.rest(), format!("waited\n{FAREWELL}"));
    drain.join().expect("no panic");
    assert!(!listens(&server.at));
}

fn a_server_without_connections_ends_at_once(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let report = server.take_server().drain(AMPLE);
    ended_well(&server, &report, (0, 0));
}

fn a_server_that_is_dropped_drains(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut clients = server.clients(5);
    drop(server.take_server());
    for client in &mut clients {
        assert_eq!(client.rest(), FAREWELL);
    }
    server.check(&server.stats());
    assert!(Server::DROP_DEADLINE > Duration::ZERO);
}

fn the_server_may_be_looked_at_when_it_has_ended(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let client = server.client();
    server.take_server().drain(AMPLE);
    assert!(server.handle.connections().is_empty());
    assert!(server.handle.find(client.id).is_none());
    assert!(!server.handle.kill(client.id));
    assert_eq!(server.stage.reasons(), [CloseReason::Draining]);
    server.check(&server.stats());
}

fn commands_that_queue_are_answered(setup: Setup) {
    let mut server = setup.serve(Options::pool(two_slots()));
    let mut blockers = server.clients(2);
    let mut queued = server.clients(10);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    for client in &mut queued {
        client.send("ECHO queued");
    }
    until("they queue", || server.group().queued == 10);
    // Nobody is free to tell an idle client, so the drain is known by it that nobody listens. Those
    // who come until then are let in, and leave.
    let running = server.take_server();
    let drain = thread::spawn(move || running.drain(AMPLE));
    until("nobody listens any more", || !listens(&server.at));
    server.stage.open("gate");
    for client in &mut queued {
        assert_eq!(client.rest(), format!("queued\n{FAREWELL}"));
    }
    for client in &mut blockers {
        assert_eq!(client.rest(), format!("blocked\n{FAREWELL}"));
    }
    let report = drain.join().expect("no panic");
    let ended = report.idle + report.finished;
    assert!(report.clean() && ended >= 12, "{report}");
    server.check(&server.stats());
}

// ---- transactions ----

/// Drains on a thread of its own; without waiting until it has begun.
fn drain_within(server: &mut Harness, how: Drain) -> thread::JoinHandle<DrainReport> {
    let running = server.take_server();
    thread::spawn(move || running.drain(how))
}

fn a_transaction_may_be_finished(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("TRANSACTION true"), "set");
    until("it is idle", || server.state(client.id) == Some("idle"));
    let mut idle = server.client();
    until("it is idle", || server.state(idle.id) == Some("idle"));
    let drain = drain_within(&mut server, Drain::within(AMPLE).transactions(AMPLE));
    assert_eq!(idle.rest(), FAREWELL);
    client.ping();
    client.ping();
    assert!(!drain.is_finished());
    assert_eq!(client.ask("TRANSACTION false"), "set");
    assert_eq!(client.rest(), FAREWELL);
    ended_well(&server, &drain.join().expect("no panic"), (1, 1));
}

fn a_transaction_without_a_time_is_nothing_special(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("TRANSACTION true"), "set");
    until("it is idle", || server.state(client.id) == Some("idle"));
    let report = server.take_server().drain(AMPLE);
    assert_eq!(client.rest(), FAREWELL);
    ended_well(&server, &report, (1, 0));
}

fn a_transaction_that_is_not_finished_is_killed_when_its_time_is_over(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut inside = server.client();
    let mut outside = server.client();
    assert_eq!(inside.ask("TRANSACTION true"), "set");
    outside.send_bytes(b"ECHO ha");
    until("half a command is there", || {
        server.state(outside.id) == Some("reading")
    });
    let drain = drain_within(&mut server, Drain::within(SOON).transactions(AMPLE));
    // The time for commands is over.
    assert_eq!(outside.rest(), KILLED);
    inside.ping();
    server
        .handle
        .shutdown(Drain::within(SOON).transactions(SOON));
    assert_eq!(inside.rest(), KILLED);
    let report = drain.join().expect("no panic");
    assert_eq!(report.killed, [outside.id, inside.id], "{report}");
    server.check(&server.stats());
}

// ---- who asks ----

fn a_command_may_ask_for_the_end(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut idle = server.client();
    let mut client = server.client();
    let running = server.take_server();
    let served = thread::spawn(move || running.wait());
    assert!(!server.handle.is_shutting_down());
    client.send(&format!("SHUTDOWN {0}\nSHUTDOWN {0}", AMPLE.as_millis()));
    // Both were there before.
    assert_eq!(client.rest(), format!("true\nfalse\n{FAREWELL}"));
    assert_eq!(idle.rest(), FAREWELL);
    assert!(server.handle.is_shutting_down());
    let report = served.join().expect("no panic");
    assert!(report.clean(), "{report}");
    assert_eq!(report.connections(), 2, "{report}");
    server.check(&server.stats());
}

fn whoever_asks_again_hastens_the_end(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut half = server.client();
    half.send_bytes(b"ECHO ha");
    until("the half is there", || {
        server.state(half.id) == Some("reading")
    });
    let drain = drain_in_background(&mut server);
    assert!(
        !server.handle.shutdown(Duration::ZERO),
        "it was not the first"
    );
    assert_eq!(half.rest(), KILLED);
    let report = drain.join().expect("no panic");
    assert_eq!(report.killed, [half.id], "{report}");
    assert!(report.elapsed < AMPLE, "{report}");
    server.check(&server.stats());
}

fn a_close_that_never_returns_is_reported(setup: Setup) {
    let mut server = setup.serve(Options::default());
    let mut clients = server.clients(2);
    clients.iter_mut().for_each(Client::ping);
    server.stage.close_waits.store(true, SeqCst);
    let report = drain_soon(&mut server);
    let mut abandoned = report.abandoned.clone();
    abandoned.sort_unstable();
    assert_eq!(abandoned, ids(&clients), "{report}");
    let mut serving: Vec<_> = report
        .abandoned_threads
        .iter()
        .filter_map(|thread| thread.connection)
        .collect();
    serving.sort_unstable();
    assert_eq!(serving, ids(&clients), "{report}");
    server.stage.open("close");
    until("both have gone", || {
        let stats = server.stats();
        stats.threads == 0 && stats.connections == 0
    });
    server.check(&server.stats());
}

// ---- a crowd ----

fn ids(clients: &[Client]) -> Vec<ConnId> {
    clients.iter().map(|client| client.id).collect()
}

/// A thousand clients, in all states.
struct Crowd {
    idle: Vec<Client>,
    running: Vec<Client>,
    /// In transactions.
    inside: Vec<Client>,
    parked: Vec<Client>,
    slow: Vec<Client>,
    half: Client,
    stuck: Client,
}

fn crowd(setup: Setup) -> (Harness, Crowd) {
    assert!(allow_descriptors(4096), "this test needs 2,100 descriptors");
    let server = setup.serve(Options {
        pool: PoolConfig::default().groups(2).max_threads(300),
        limits: Limits::default().output_bound(64 << 20),
        ..Options::default()
    });
    let mut all = Crowd {
        idle: server.clients(600),
        running: server.clients(200),
        inside: server.clients(100),
        parked: server.clients(88),
        slow: server.clients(10),
        half: server.client(),
        stuck: server.client(),
    };
    all.idle.iter_mut().for_each(Client::ping);
    let running = all.running.iter_mut();
    running.for_each(|client| client.send("WAIT gate"));
    for client in &mut all.inside {
        assert_eq!(client.ask("TRANSACTION true"), "set");
    }
    for (n, client) in all.parked.iter_mut().enumerate() {
        client.send(&format!("PARK {n}"));
    }
    let slow = all.slow.iter_mut();
    slow.for_each(|client| client.send("BIG 10000000"));
    all.half.send_bytes(b"ECHO ha");
    all.stuck.send("BLOCK never");
    until("all are where they are to be", || {
        let infos = server.handle.connections();
        let at = |state| {
            let infos = infos.iter();
            infos.filter(|info| info.state.name() == state).count()
        };
        let run = |word| server.stage.running(word).now;
        (run("WAIT"), run("BLOCK")) == (200, 1)
            && (at("idle"), at("parked")) == (700, 88)
            && (at("flushing"), at("reading")) == (10, 1)
    });
    (server, all)
}

/// Whoever is found in whatever state ends at the stage that is his.
fn in_a_crowd_everybody_is_accounted_for(setup: Setup) {
    let (mut server, all) = crowd(setup);
    let Crowd {
        mut idle,
        mut running,
        mut inside,
        mut parked,
        slow,
        mut half,
        mut stuck,
    } = all;
    let drain = drain_within(&mut server, Drain::within(AMPLE).transactions(AMPLE));
    for client in &mut idle {
        assert_eq!(client.rest(), FAREWELL);
    }
    server.stage.open("gate");
    for client in &mut running {
        assert_eq!(client.rest(), format!("waited\n{FAREWELL}"));
    }
    let commit = |client: &mut Client| {
        assert_eq!(client.ask("TRANSACTION false"), "set");
        assert_eq!(client.rest(), FAREWELL);
    };
    inside[..50].iter_mut().for_each(commit);
    until("the others are there still", || {
        server.stats().connections == 150
    });

    // The time for commands is over.
    server
        .handle
        .shutdown(Drain::within(Duration::ZERO).transactions(AMPLE));
    for client in &mut parked {
        assert_eq!(client.rest(), KILLED);
    }
    assert_eq!(half.rest(), KILLED);
    inside[50..75].iter_mut().for_each(commit);
    assert!(!drain.is_finished());

    // The time for transactions is over.
    server.handle.shutdown(Duration::ZERO);
    for client in &mut inside[75..] {
        assert_eq!(client.rest(), KILLED);
    }
    until("the drain has given up", || drain.is_finished());
    let report = drain.join().expect("no panic");
    let counts = (report.idle, report.finished, report.left);
    assert_eq!(counts, (600, 275, 0), "{report}");
    let mut killed = report.killed.clone();
    killed.sort_unstable();
    let mut expected = [ids(&parked), ids(&slow), vec![half.id], ids(&inside[75..])].concat();
    expected.sort_unstable();
    assert_eq!(killed, expected, "{report}");
    assert_eq!(report.abandoned, [stuck.id], "{report}");
    assert_eq!(report.connections(), 1000, "{report}");
    let threads: Vec<_> = report
        .abandoned_threads
        .iter()
        .map(|thread| thread.connection)
        .collect();
    assert_eq!(threads, [Some(stuck.id)], "{report}");

    server.stage.open("never");
    assert!(stuck.rest().ends_with(KILLED));
    until("all have gone", || {
        let stats = server.stats();
        stats.threads == 0 && stats.connections == 0
    });
    server.check(&server.stats());
}

/// `cargo test --release --test drain -- --ignored --nocapture`
#[test]
#[ignore = "measures, and asserts nothing of it"]
fn how_long_a_drain_of_a_crowd_takes() {
    for kind in [Kind::Pool, Kind::PerConnection] {
        let transports = [
            Transport::Tcp,
            #[cfg(unix)]
            Transport::Unix,
        ];
        for transport in transports {
            let setup = Setup {
                test: "",
                kind,
                transport,
            };
            let (mut server, all) = crowd(setup);
            let seconds = Duration::from_secs;
            let how = Drain::within(seconds(2)).transactions(seconds(1));
            let report = server.take_server().drain(how);
            println!("{kind:?} {transport:?}, 2 s + 1 s + 1 s + 1 s: {report}");
            server.stage.open_all();
            drop(all);
        }
    }
}
