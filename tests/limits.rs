//! Promises about limits: each is met for its own reason, tells its client so, and costs nobody else
//! anything.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::client::Client;
use common::{Harness, NEVER, Options, Setup, everywhere, in_the_pool, two_slots, until};
use thread_group_pool::wait::WaitKind;
use thread_group_pool::{Limits, PoolConfig, ThreadPerConnectionConfig};

everywhere! {
    a_silent_client_is_closed_as_idle,
    a_client_that_talks_is_not_idle,
    a_client_whose_command_is_long_is_not_idle,
    half_a_command_is_waited_for_no_longer_than_the_read_timeout,
    an_owed_rest_is_waited_for_no_longer_than_the_read_timeout,
    a_handler_that_reads_waits_no_longer_than_the_read_timeout,
    a_reply_that_nobody_reads_is_given_up_after_the_write_timeout,
    a_handler_that_writes_waits_no_longer_than_the_write_timeout,
    a_slow_reader_gets_everything_while_others_are_served,
    a_slow_reader_may_be_slower_than_the_write_timeout_in_all,
    a_client_too_many_is_refused_and_there_is_room_again_afterwards,
    a_failed_open_is_refused,
    a_limit_that_cannot_be_is_refused_with_both_values,
}

in_the_pool! {
    #[cfg_attr(windows, ignore = "Wine lets seven clients in too slowly for its idle time-out")]
    a_client_that_is_only_queued_is_not_idle,
    #[cfg_attr(windows, ignore = "Wine lets seven clients in too slowly for its idle time-out")]
    a_client_that_nobody_polls_is_not_idle,
    a_slow_reader_holds_no_thread,
}

/// Long enough that a busy machine does not make a client silent that is not, where that matters.
const SOON: Duration = Duration::from_millis(100);

/// Only what a test is about is to be met.
fn patient() -> Limits {
    Limits::default()
        .idle_timeout(NEVER)
        .read_timeout(NEVER)
        .write_timeout(NEVER)
}

/// Lets so much time pass.
fn pass(time: Duration) {
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= time);
}

// ---- silence ----

fn a_silent_client_is_closed_as_idle(setup: Setup) {
    let limits = patient().read_timeout(SOON).idle_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let begun = Instant::now();
    let mut clients = server.clients(10);
    for client in &mut clients {
        let rest = client.rest();
        assert!(rest.ends_with("farewell: the client was silent for longer than idle_timeout\n"));
        assert!(begun.elapsed() >= SOON);
    }
    server.until_closed_as("idle_timeout", 10);
    server.finish();
}

fn a_client_that_talks_is_not_idle(setup: Setup) {
    let limits = patient().read_timeout(SOON).idle_timeout(5 * SOON);
    let server = setup.serve(Options::limits(limits));
    let mut silent = server.client();
    let mut client = server.client();
    let begun = Instant::now();
    // Until someone who says nothing has been closed, and longer.
    let mut rounds = 0;
    while begun.elapsed() < 8 * SOON || server.closed_as("idle_timeout") == 0 {
        rounds += 1;
        assert!(rounds < 1000, "the silent one is still there");
        let asked = Instant::now();
        client.try_to_send(b"ECHO still here\n");
        match client.line_or_end() {
            Some(line) if line == "still here" => {}
            // The machine may have slept instead of us.
            end => return assert!(asked.elapsed() >= 5 * SOON, "{end:?}"),
        }
        thread::sleep(SOON / 10);
    }
    silent.rest();
    server.finish();
}

fn a_client_whose_command_is_long_is_not_idle(setup: Setup) {
    let limits = patient().read_timeout(SOON).idle_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    client.send("WAIT gate");
    pass(3 * SOON);
    server.stage.open("gate");
    assert_eq!(client.line(), "waited");
    server.finish();
}

/// The clock of a connection stops when its input is there: what it waits for then is us.
fn only_queued(setup: Setup, pool: PoolConfig, nobody_polls: bool) {
    let limits = patient().read_timeout(SOON).idle_timeout(SOON);
    let options = Options {
        pool,
        limits,
        ..Options::default()
    };
    let server = setup.serve(options);
    let mut blockers = server.clients(2);
    let mut queued = server.clients(5);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    for client in &mut queued {
        client.send("ECHO queued");
    }
    if !nobody_polls {
        until("they queue", || server.group().queued == 5);
    }
    pass(3 * SOON);
    server.stage.open("gate");
    for client in blockers.iter_mut().chain(&mut queued) {
        let line = client.line();
        assert!(["queued", "blocked"].contains(&line.as_str()), "{line}");
    }
    server.finish();
}

fn a_client_that_is_only_queued_is_not_idle(setup: Setup) {
    only_queued(setup, two_slots(), false);
}

fn a_client_that_nobody_polls_is_not_idle(setup: Setup) {
    only_queued(setup, two_slots().max_threads(2), true);
}

// ---- half a command ----

/// A client sends a part of a command and no more.
fn owes(setup: Setup, part: &[u8], word: &str) {
    let server = setup.serve(Options::limits(patient().read_timeout(SOON)));
    let mut idle = server.client();
    let mut client = server.client();
    let begun = Instant::now();
    client.send_bytes(part);
    assert_eq!(
        client.rest(),
        "farewell: the rest of a command did not arrive within read_timeout\n"
    );
    assert!(begun.elapsed() >= SOON);
    server.until_closed_as("read_timeout", 1);
    assert!(server.stage.running(word).now == 0);
    // Between commands another clock runs.
    idle.ping();
    server.finish();
}

fn half_a_command_is_waited_for_no_longer_than_the_read_timeout(setup: Setup) {
    owes(setup, b"ECHO ha", "ECHO");
}

fn an_owed_rest_is_waited_for_no_longer_than_the_read_timeout(setup: Setup) {
    owes(setup, b"OWE\n", "OWE");
}

fn a_handler_that_reads_waits_no_longer_than_the_read_timeout(setup: Setup) {
    owes(setup, b"READ 10\nabc", "READ");
}

// ---- replies ----

const SIZE: usize = 50_000_000;

/// Bounds on the output: one below the reply, so that the handler waits, and one above it.
const BELOW: usize = 1 << 20;
const ABOVE: usize = 64 << 20;

fn unread(setup: Setup, bound: usize) {
    let limits = patient().write_timeout(SOON).output_bound(bound);
    let server = setup.serve(Options::limits(limits));
    let mut witness = server.client();
    let mut client = server.client();
    let begun = Instant::now();
    client.send(&format!("BIG {SIZE}"));
    server.until_closed_as("write_timeout", 1);
    assert!(begun.elapsed() >= SOON);
    witness.ping();
    // It is no use to say farewell to one that does not read.
    assert!(!client.rest().contains("farewell"));
    server.finish();
}

fn a_reply_that_nobody_reads_is_given_up_after_the_write_timeout(setup: Setup) {
    unread(setup, ABOVE);
}

fn a_handler_that_writes_waits_no_longer_than_the_write_timeout(setup: Setup) {
    unread(setup, BELOW);
}

/// A client that has asked for much, has read a little, and reads no further for now.
fn slow_reader(setup: Setup, bound: usize) -> (Harness, Client) {
    let options = Options {
        pool: PoolConfig::default().groups(1),
        limits: patient().output_bound(bound),
        ..Options::default()
    };
    let server = setup.serve(options);
    let mut client = server.client();
    client.send(&format!("BIG {SIZE}"));
    client.read_big(0, 1000);
    until("the rest waits for it", || {
        server.state(client.id) == Some("flushing")
            // By its own word: one that was only found to be blocked is counted under no kind.
            || server.stats().waits.iter().any(|w| w.kind == WaitKind::Net && w.count > 0)
    });
    (server, client)
}

fn a_slow_reader_gets_everything_while_others_are_served(setup: Setup) {
    for bound in [BELOW, ABOVE] {
        let (server, mut client) = slow_reader(setup, bound);
        let mut others = server.clients(5);
        for at in (1000..SIZE).step_by(5_000_000) {
            others.iter_mut().for_each(Client::ping);
            client.read_big(at, SIZE.min(at + 5_000_000));
        }
        assert_eq!(client.line(), "");
        client.ping();
        server.finish();
    }
}

fn a_slow_reader_holds_no_thread(setup: Setup) {
    let (server, mut client) = slow_reader(setup, ABOVE);
    until("its thread has gone back to the poller", || {
        let group = server.group();
        (group.active, group.waiting, group.long) == (0, 0, 0) && group.has_listener
    });
    for _ in 0..50 {
        server.client().ping();
    }
    assert_eq!(server.state(client.id), Some("flushing"));
    client.read_big(1000, SIZE);
    assert_eq!(client.line(), "");
    server.finish();
}

/// The time-out is for a reader that takes nothing, not for one that takes its time.
fn a_slow_reader_may_be_slower_than_the_write_timeout_in_all(setup: Setup) {
    const TIMEOUT: Duration = Duration::from_millis(300);
    const STEPS: usize = 16;
    for bound in [BELOW, ABOVE] {
        let limits = patient().write_timeout(TIMEOUT).output_bound(bound);
        let server = setup.serve(Options::limits(limits));
        let mut client = server.client();
        client.send(&format!("BIG {SIZE}"));
        let begun = Instant::now();
        for n in 0..STEPS {
            let asked = Instant::now();
            let step = SIZE / STEPS;
            let read = catch_unwind(AssertUnwindSafe(|| {
                client.read_big(step * n, step * (n + 1));
            }));
            pass(TIMEOUT / 10);
            if asked.elapsed() >= TIMEOUT {
                // The machine made a pause of its own, and what came of that is right.
                return;
            }
            read.unwrap_or_else(|panic| resume_unwind(panic));
        }
        assert!(begun.elapsed() > TIMEOUT);
        assert_eq!(client.line(), "");
        server.finish();
    }
}

// ---- numbers ----

fn a_client_too_many_is_refused_and_there_is_room_again_afterwards(setup: Setup) {
    let server = setup.serve(Options::limits(patient().max_connections(5)));
    let mut clients = server.clients(5);
    for _ in 0..3 {
        let mut refused = Client::connect_only(&server.at);
        assert_eq!(
            refused.rest(),
            "refused: too many connections (max_connections is 5)\n"
        );
    }
    clients.iter_mut().for_each(Client::ping);
    drop(clients.pop());
    until("there is room", || server.stats().connections == 4);
    clients.push(server.client());
    clients.iter_mut().for_each(Client::ping);
    assert!(
        Client::connect_only(&server.at)
            .rest()
            .starts_with("refused: too many")
    );
    let stats = server.finish();
    // Those that were refused were opened as all others, and got no session.
    assert_eq!((stats.opened, stats.refused), (10, 4), "{stats:?}");
}

fn a_failed_open_is_refused(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut witness = server.client();
    server
        .stage
        .open_errors
        .store(3, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..3 {
        let mut refused = Client::connect_only(&server.at);
        assert_eq!(
            refused.rest(),
            "refused: the handler refused the connection\n"
        );
    }
    server.until_closed_as("open_failed", 3);
    witness.ping();
    server.client().ping();
    server.finish();
}

fn a_limit_that_cannot_be_is_refused_with_both_values(setup: Setup) {
    let refused = |options: Options, one: &str, other: &str| {
        let built = setup.build(options, &Arc::default());
        let error = built.expect_err("it cannot be").to_string();
        assert!(error.contains(one) && error.contains(other), "{error}");
    };
    let limits = Limits::default()
        .read_timeout(Duration::from_secs(99))
        .idle_timeout(SOON);
    refused(
        Options::limits(limits),
        "read_timeout = 99s",
        "idle_timeout = 100ms",
    );
    refused(
        Options::limits(Limits::default().max_connections(0)),
        "max_connections is 0",
        "at least 1",
    );
    if setup.is_pool() {
        let pool = PoolConfig::default().groups(8).max_threads(15);
        refused(Options::pool(pool), "max_threads = 15", "groups = 8");
    } else {
        let threads = ThreadPerConnectionConfig::default()
            .thread_cache(9)
            .max_threads(8);
        let options = Options {
            threads,
            ..Options::default()
        };
        refused(options, "thread_cache = 9", "max_threads = 8");
    }
}
