//! Promises about connections that have left the scheduler: they are their handler's until it returns,
//! and end as all others do.

mod common;

use std::thread;
use std::time::Duration;

use common::client::Client;
use common::{
    AMPLE, Harness, Options, Setup, everywhere, in_the_pool, patient_group, promised, until,
};
use thread_group_pool::{CloseReason, Limits, ThreadPerConnectionConfig};

everywhere! {
    a_detached_connection_is_its_handlers_until_that_returns,
    a_detached_connection_is_killed_while_it_writes,
    a_detached_connection_is_killed_while_it_reads,
    a_drain_waits_for_a_detached_connection,
    a_detached_connection_can_see_that_the_server_drains,
    a_detached_connection_is_killed_at_the_deadline_of_a_drain,
    a_panic_in_a_detached_connection_ends_that_one_only,
    a_detached_connection_ends_with_its_client,
    the_timeouts_of_reads_and_writes_hold_for_the_detached,
    replies_before_a_detachment_come_first,
}

in_the_pool! {
    the_detached_take_neither_slots_nor_threads_of_their_group,
    the_poller_knows_nothing_of_the_detached,
    the_detached_are_not_pinned_as_their_group_was,
}

promised! { [per_connection_tcp_only PerConnection Tcp]
    the_detached_count_for_no_cap_on_threads
}

const KILLED: &str = "farewell: the connection was killed\n";
const SOON: Duration = Duration::from_millis(100);

/// A client whose connection has detached.
fn detached(setup: Setup, options: Options, what: &str) -> (Harness, Client) {
    let server = setup.serve(options);
    let mut client = server.client();
    assert_eq!(client.ask(&format!("DETACH {what}")), "detached");
    assert_eq!(server.state(client.id), Some("detached"));
    (server, client)
}

/// What holds after the end of the only connection.
#[track_caller]
fn ended(server: Harness, why: CloseReason) {
    server.until_all_closed();
    assert_eq!(server.stage.reasons(), [why]);
    server.client().ping();
    server.finish();
}

fn a_detached_connection_is_its_handlers_until_that_returns(setup: Setup) {
    let (server, mut client) = detached(setup, Options::default(), "gate");
    // A `Resume` of before is of no use any more, and does no harm.
    assert!(!server.stage.take_resume("detached").resume());
    server.stage.open("gate");
    assert_eq!(client.rest(), "left\n");
    ended(server, CloseReason::HandlerClosed);
}

/// Their threads are made by workers, and a thread inherits its creator's pin.
#[cfg(target_os = "linux")]
fn the_detached_are_not_pinned_as_their_group_was(setup: Setup) {
    let pool = thread_group_pool::PoolConfig::default()
        .groups(1)
        .pin_groups(true);
    let (server, mut client) = detached(setup, Options::pool(pool), "gate");
    let allowed = |task: &str| {
        let status = std::fs::read_to_string(format!("/proc/self/{task}/status")).ok()?;
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"));
        line.map(str::to_owned)
    };
    // Those of other tests in this process, too.
    until("no detached thread is pinned", || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("this process");
        let mut seen = 0;
        for task in tasks {
            let id = task.expect("a thread").file_name();
            let task = format!("task/{}", id.to_string_lossy());
            let name = std::fs::read_to_string(format!("/proc/self/{task}/comm"));
            if name.is_ok_and(|name| name.trim() == "tgp-detached") {
                seen += 1;
                if allowed(&task).is_some_and(|cpus| Some(cpus) != allowed("")) {
                    return false;
                }
            }
        }
        assert!(seen > 0);
        true
    });
    server.stage.open("gate");
    assert_eq!(client.rest(), "left\n");
    ended(server, CloseReason::HandlerClosed);
}

#[cfg(not(target_os = "linux"))]
fn the_detached_are_not_pinned_as_their_group_was(_: Setup) {}

fn a_detached_connection_is_killed_while_it_writes(setup: Setup) {
    let (server, mut client) = detached(setup, Options::default(), "STREAM");
    client.read_big(0, 10_000_000);
    assert!(server.handle.kill(client.id));
    client.rest();
    ended(server, CloseReason::Killed);
    // One whose client does not read, likewise.
    let (server, client) = detached(setup, Options::default(), "STREAM");
    assert!(server.handle.kill(client.id));
    ended(server, CloseReason::Killed);
}

fn a_detached_connection_is_killed_while_it_reads(setup: Setup) {
    let (server, mut client) = detached(setup, Options::default(), "READ");
    assert!(server.handle.kill(client.id));
    assert_eq!(client.rest(), KILLED);
    ended(server, CloseReason::Killed);
}

fn a_drain_waits_for_a_detached_connection(setup: Setup) {
    let (mut server, mut client) = detached(setup, Options::default(), "gate");
    let mut idle = server.client();
    let running = server.take_server();
    let drain = thread::spawn(move || running.drain(AMPLE));
    assert!(idle.rest().starts_with("farewell"));
    assert!(!drain.is_finished());
    server.stage.open("gate");
    let farewell = "farewell: the server is shutting down\n";
    assert_eq!(client.rest(), format!("left\n{farewell}"));
    let report = drain.join().expect("no panic");
    assert!(report.clean(), "{report}");
    server.check(&server.stats());
}

/// A stream without an end would make each drain take the whole of its time.
fn a_detached_connection_can_see_that_the_server_drains(setup: Setup) {
    let (mut server, mut client) = detached(setup, Options::default(), "DRAIN");
    let report = server.take_server().drain(AMPLE);
    assert_eq!(
        client.rest(),
        "left\nfarewell: the server is shutting down\n"
    );
    assert!(report.clean() && report.finished == 1, "{report}");
    server.check(&server.stats());
}

fn a_detached_connection_is_killed_at_the_deadline_of_a_drain(setup: Setup) {
    for what in ["READ", "STREAM"] {
        let (mut server, _client) = detached(setup, Options::default(), what);
        let report = server.take_server().drain(SOON);
        assert_eq!(
            (report.connections(), report.killed.len()),
            (1, 1),
            "{report}"
        );
        assert!(report.abandoned_threads.is_empty(), "{report}");
        assert_eq!(server.stage.reasons(), [CloseReason::Killed]);
        server.check(&server.stats());
    }
}

fn a_panic_in_a_detached_connection_ends_that_one_only(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut witness = server.client();
    let mut client = server.client();
    client.send("DETACH PANIC");
    assert_eq!(client.rest(), "detached\nfarewell: the handler panicked\n");
    server.until_closed_as("panicked", 1);
    witness.ping();
    assert_eq!(server.finish().panics, 1);
}

fn a_detached_connection_ends_with_its_client(setup: Setup) {
    let (server, mut client) = detached(setup, Options::default(), "READ");
    client.half_close();
    assert_eq!(client.rest(), "left\n");
    ended(server, CloseReason::HandlerClosed);
    let (server, client) = detached(setup, Options::default(), "STREAM");
    client.reset();
    ended(server, CloseReason::ClientClosed);
}

fn the_timeouts_of_reads_and_writes_hold_for_the_detached(setup: Setup) {
    let limits = || Limits::default().read_timeout(SOON).write_timeout(SOON);
    let (server, mut client) = detached(setup, Options::limits(limits()), "READ");
    assert!(client.rest().starts_with("farewell: the rest of a command"));
    ended(server, CloseReason::ReadTimeout);
    let (server, _client) = detached(setup, Options::limits(limits()), "STREAM");
    ended(server, CloseReason::WriteTimeout);
}

fn replies_before_a_detachment_come_first(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("ECHO one\nECHO two\nDETACH gate");
    server.stage.open("gate");
    assert_eq!(client.rest(), "one\ntwo\ndetached\nleft\n");
    ended(server, CloseReason::HandlerClosed);
}

fn the_detached_take_neither_slots_nor_threads_of_their_group(setup: Setup) {
    // A command that kept its slot would keep all others out.
    let server = setup.serve(Options::pool(patient_group().max_threads(2)));
    let mut clients = server.clients(5);
    for client in &mut clients {
        assert_eq!(client.ask("DETACH gate"), "detached");
    }
    let mut others = server.clients(3);
    for _ in 0..20 {
        others.iter_mut().for_each(Client::ping);
    }
    others[0].send("WAIT gate");
    until("it waits", || server.stage.running("WAIT").now == 1);
    others[1].ping();
    let stats = server.stats();
    let group = &stats.groups[0];
    assert!(group.threads <= 2, "{group:?}");
    assert_eq!(group.connections, 3, "{group:?}");
    assert_eq!(stats.threads, group.threads + 5, "{stats:?}");
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.rest(), "left\n");
    }
    server.finish();
}

fn the_detached_count_for_no_cap_on_threads(setup: Setup) {
    let threads = ThreadPerConnectionConfig::default()
        .max_threads(2)
        .thread_cache(2);
    let server = setup.serve(Options {
        threads,
        ..Options::default()
    });
    let mut detached = server.clients(2);
    for client in &mut detached {
        assert_eq!(client.ask("DETACH gate"), "detached");
    }
    let mut others = server.clients(2);
    others.iter_mut().for_each(Client::ping);
    let refused = Client::connect_only(&server.at).rest();
    assert!(refused.starts_with("refused: no thread"), "{refused}");
    // Their threads do not come back to those that count.
    server.stage.open("gate");
    for client in &mut detached {
        assert_eq!(client.rest(), "left\n");
    }
    until("their threads have ended", || server.stats().threads == 2);
    let refused = Client::connect_only(&server.at).rest();
    assert!(refused.starts_with("refused: no thread"), "{refused}");
    drop(others);
    server.until_all_closed();
    server.clients(2).iter_mut().for_each(Client::ping);
    server.finish();
}

fn the_poller_knows_nothing_of_the_detached(setup: Setup) {
    let (server, mut client) = detached(setup, Options::pool(patient_group()), "gate");
    until("a thread is in the poller", || server.group().has_listener);
    let before = server.group();
    for _ in 0..20 {
        client.send("ECHO never");
        thread::yield_now();
    }
    client.half_close();
    let mut other = server.client();
    other.ping();
    until("a thread is in the poller", || server.group().has_listener);
    // The other's connection, its command, and one more for good measure.
    let polls = server.group().polls_by_listener - before.polls_by_listener;
    assert!(polls <= 4, "{polls}");
    server.stage.open("gate");
    assert_eq!(client.rest(), "left\n");
    assert_eq!(server.stage.running("ECHO").ever, 1);
    server.finish();
}
