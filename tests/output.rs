//! Promises about replies that wait: for clients that send before they read, that read slowly, or not at
//! all.

mod common;

#[cfg(unix)]
use std::fs;
use std::thread;
use std::time::Duration;

use common::client::Client;
#[cfg(unix)]
use common::process::alone;
use common::{Harness, NEVER, Options, Setup, everywhere, in_the_pool, patient_group, until};
use thread_group_pool::Limits;

everywhere! {
    a_client_that_sends_all_before_it_reads_gets_all_replies,
    a_client_that_sends_all_behind_a_reply_that_the_handler_writes_gets_all_replies,
    a_client_that_sends_and_reads_at_once_may_send_any_amount,
    a_pipeline_that_is_too_long_ends_in_a_clean_close,
    a_pipeline_that_is_too_long_for_a_handler_that_writes_ends_in_a_clean_close,
    half_a_command_behind_a_reply_that_waits_is_completed_later,
    the_end_of_input_behind_a_reply_that_waits_is_seen_later,
    a_reader_that_takes_too_little_is_given_up,
    a_write_that_failed_closes_whatever_the_handler_makes_of_it,
    #[cfg(unix)]
    a_cursor_of_any_size_is_sent_in_little_memory,
}

in_the_pool! {
    more_slow_readers_than_threads_hold_none,
    nobody_holds_a_thread_between_the_pieces_of_a_cursor,
}

fn patient() -> Limits {
    Limits::default()
        .idle_timeout(NEVER)
        .read_timeout(NEVER)
        .write_timeout(NEVER)
        .linger_timeout(Duration::from_secs(60))
}

/// So many commands are ten megabytes, and so are their replies: more than any socket holds.
const COMMANDS: usize = 10_000;

fn word() -> String {
    "x".repeat(1000)
}

fn pipeline() -> String {
    let line = format!("ECHO {}", word());
    vec![line; COMMANDS].join("\n")
}

#[track_caller]
fn reads_all(client: &mut Client) {
    let word = word();
    for n in 0..COMMANDS {
        assert!(client.line() == word, "reply {n}");
    }
}

// ---- sending before reading ----

fn a_client_that_sends_all_before_it_reads_gets_all_replies(setup: Setup) {
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.send(&pipeline());
    reads_all(&mut client);
    client.ping();
    server.finish();
}

fn a_client_that_sends_all_behind_a_reply_that_the_handler_writes_gets_all_replies(setup: Setup) {
    const SIZE: usize = 20_000_000;
    let server = setup.serve(Options::limits(patient()));
    let mut client = server.client();
    client.send(&format!("BIG {SIZE}"));
    client.send(&pipeline());
    client.read_big(0, SIZE);
    assert_eq!(client.line(), "");
    reads_all(&mut client);
    client.ping();
    server.finish();
}

/// Little of it is held at a time.
fn a_client_that_sends_and_reads_at_once_may_send_any_amount(setup: Setup) {
    let server = setup.serve(Options::limits(patient().max_input(16 * 1024)));
    let mut client = server.client();
    let mut sender = client.twin();
    let sent = thread::spawn(move || sender.send(&pipeline()));
    reads_all(&mut client);
    sent.join().expect("no panic");
    client.ping();
    server.finish();
}

fn too_long(setup: Setup, first: &str) {
    let server = setup.serve(Options::limits(patient().max_input(64 * 1024)));
    let mut client = server.client();
    client.send(first);
    client.send(&pipeline());
    server.until_closed_as("pipeline_too_long", 1);
    client.rest();
    server.client().ping();
    server.finish();
}

fn a_pipeline_that_is_too_long_ends_in_a_clean_close(setup: Setup) {
    too_long(setup, "ECHO first");
}

fn a_pipeline_that_is_too_long_for_a_handler_that_writes_ends_in_a_clean_close(setup: Setup) {
    too_long(setup, "BIG 50000000");
}

/// A client whose reply waits, both where the handler waits for it and where nobody does.
fn with_a_reply_that_waits(setup: Setup, then: impl Fn(&Harness, Client)) {
    for bound in [1 << 20, 64 << 20] {
        let server = setup.serve(Options::limits(patient().output_bound(bound)));
        let mut client = server.client();
        client.send(&format!("BIG {SIZE}"));
        client.read_big(0, 1000);
        until("the rest waits for it", || {
            server.state(client.id) == Some("flushing")
                || server.stats().waits.iter().any(|w| w.count > 0)
        });
        then(&server, client);
        server.finish();
    }
}

const SIZE: usize = 20_000_000;

fn half_a_command_behind_a_reply_that_waits_is_completed_later(setup: Setup) {
    with_a_reply_that_waits(setup, |_, mut client| {
        client.send_bytes(b"ECHO ha");
        client.read_big(1000, SIZE);
        assert_eq!(client.line(), "");
        client.send_bytes(b"lf\n");
        assert_eq!(client.line(), "half");
    });
}

fn the_end_of_input_behind_a_reply_that_waits_is_seen_later(setup: Setup) {
    with_a_reply_that_waits(setup, |server, mut client| {
        client.send("ECHO last");
        client.half_close();
        client.read_big(1000, SIZE);
        assert_eq!(client.rest(), "\nlast\n");
        server.until_closed_as("client_closed", 1);
    });
}

// ---- reading slowly ----

/// It takes something all the time.
fn a_reader_that_takes_too_little_is_given_up(setup: Setup) {
    for bound in [1 << 20, 64 << 20] {
        let limits = patient()
            .write_timeout(Duration::from_millis(200))
            .output_bound(bound);
        let server = setup.serve(Options::limits(limits));
        let mut client = server.client();
        client.send("BIG 50000000");
        let mut taken = 0;
        until("it is given up", || {
            if taken < 1_000_000 {
                client.read_big(taken, taken + 100);
                taken += 100;
            }
            server.closed_as("write_timeout") == 1
        });
        server.client().ping();
        server.finish();
    }
}

fn a_write_that_failed_closes_whatever_the_handler_makes_of_it(setup: Setup) {
    let limits = patient().write_timeout(Duration::from_millis(100));
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    client.send("IGNORE 50000000\nECHO never");
    server.until_closed_as("write_timeout", 1);
    assert_eq!(server.stage.running("ECHO").ever, 0);
    drop(client);
    server.finish();
}

const THREADS: usize = 4;

fn more_slow_readers_than_threads_hold_none(setup: Setup) {
    let options = Options {
        // A thread is added for those that wait, and for nothing else.
        pool: patient_group().max_threads(THREADS),
        limits: patient().output_bound(64 << 20),
        ..Options::default()
    };
    let server = setup.serve(options);
    let mut readers = server.clients(THREADS + 1);
    for client in &mut readers {
        client.send(&format!("BIG {SIZE}"));
        client.read_big(0, 1000);
    }
    until("all of their replies wait", || {
        readers
            .iter()
            .all(|client| server.state(client.id) == Some("flushing"))
    });
    for _ in 0..20 {
        server.client().ping();
    }
    let group = server.group();
    let busy = group.active + group.waiting + group.long;
    assert!(busy <= 1, "{group:?}");
    for client in &mut readers {
        client.read_big(1000, SIZE);
        assert_eq!(client.line(), "");
        client.ping();
    }
    let stats = server.finish();
    assert!(stats.threads_peak <= 2, "{stats:?}");
}

fn nobody_holds_a_thread_between_the_pieces_of_a_cursor(setup: Setup) {
    let options = Options {
        // A thread is added for those that wait, and for nothing else.
        pool: patient_group().max_threads(THREADS),
        limits: patient(),
        ..Options::default()
    };
    let server = setup.serve(options);
    let mut readers = server.clients(THREADS + 1);
    for client in &mut readers {
        client.send(&format!("STREAM {}", SIZE / 1024));
        client.read_big(0, 1000);
    }
    until("all of them wait", || {
        readers
            .iter()
            .all(|client| server.state(client.id) == Some("flushing"))
    });
    until("no thread does", || {
        let group = server.group();
        (group.active, group.waiting, group.long) == (0, 0, 0) && group.has_listener
    });
    server.client().ping();
    for client in &mut readers {
        client.read_big(1000, SIZE / 1024 * 1024);
        assert_eq!(client.line(), "");
    }
    let stats = server.finish();
    assert!(stats.threads_peak <= 2, "{stats:?}");
}

/// The most memory that this process has had, in bytes.
#[cfg(unix)]
fn most_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    1024 * kib
        .and_then(|kib| kib.parse::<usize>().ok())
        .expect("a number")
}

/// `TGP_CURSOR_MIB=1024` sends a gigabyte.
#[cfg(unix)]
fn a_cursor_of_any_size_is_sent_in_little_memory(setup: Setup) {
    let mib = std::env::var("TGP_CURSOR_MIB").map_or(100, |mib| mib.parse().expect("a number"));
    let size: usize = mib << 20;
    alone(setup.test, || {
        let server = setup.serve(Options::limits(patient()));
        let mut client = server.client();
        client.send(&format!("STREAM {}", size / 1024));
        client.read_big(0, 1000);
        until("it waits", || server.state(client.id) == Some("flushing"));
        let before = most_memory();
        for at in (1000..size).step_by(1 << 20) {
            client.read_big(at, size.min(at + (1 << 20)));
        }
        assert_eq!(client.line(), "");
        let grown = most_memory() - before;
        println!("{mib} MiB sent, {grown} bytes of memory more than before");
        assert!(grown < 4 << 20, "{grown} bytes more than before");
        server.finish();
    });
}
