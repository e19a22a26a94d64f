//! Promises about what clients leave behind, in a process of its own, whose threads and descriptors
//! are counted: nothing.
#![cfg(unix)] // /proc counts the threads and descriptors

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use common::client::Client;
use common::process::{alone, descriptors, threads};
use common::{Harness, Options, Setup, everywhere, until};
use thread_group_pool::{PoolConfig, ThreadPerConnectionConfig};

everywhere! {
    clients_that_leave_during_load_leave_nothing_behind,
    a_server_that_has_ended_leaves_nothing_behind,
    threads_that_come_and_go_leave_no_memory_behind,
}

/// How often each way of leaving is taken.
const TIMES: usize = 250;

/// Threads that are not needed end soon, so that they can be counted.
fn restless() -> Options {
    let soon = Duration::from_millis(20);
    Options {
        pool: PoolConfig::default().groups(2).idle_timeout(soon),
        threads: ThreadPerConnectionConfig::default().idle_timeout(soon),
        ..Options::default()
    }
}

/// What the process has, in threads and descriptors.
fn have() -> (usize, usize) {
    (threads(), descriptors())
}

fn until_have(what: (usize, usize)) {
    until(
        &format!("threads and descriptors are {what:?}, as before"),
        || have() == what,
    );
}

fn clients_that_leave_during_load_leave_nothing_behind(setup: Setup) {
    alone(setup.test, || {
        let server = setup.serve(restless());
        let mut first = server.client();
        first.ping();
        // One group has served, and each has its listener; so it is to be again.
        let before = have();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| load(&server, &over));
            }
            for way in [close, reset, half_close, leave_a_command, leave_a_reply] {
                (0..TIMES).for_each(|_| way(server.client()));
            }
            over.store(true, SeqCst);
        });
        until("all but the first have gone", || {
            let stats = server.stats();
            stats.connections == 1 && stats.opened == stats.closed + 1
        });
        first.ping();
        until_have(before);
        let stats = server.stats();
        assert_eq!(stats.opened as usize, 1 + 2 + 5 * TIMES, "{stats:?}");
        assert_eq!(server.closed_as("client_closed"), stats.closed, "{stats:?}");
        server.finish();
    });
}

/// A client that is served all the time.
fn load(server: &Harness, over: &AtomicBool) {
    let mut client = server.client();
    while !over.load(SeqCst) {
        client.ping();
    }
}

fn close(mut client: Client) {
    client.ping();
}

fn reset(mut client: Client) {
    client.send("ECHO unread");
    client.reset();
}

fn half_close(mut client: Client) {
    client.send("ECHO last");
    client.half_close();
    assert_eq!(client.rest(), "last\n");
}

fn leave_a_command(mut client: Client) {
    client.send_bytes(b"ECHO last\nECHO ha");
}

fn leave_a_reply(mut client: Client) {
    client.send("BIG 300000");
    client.read_big(0, 10);
}

fn a_server_that_has_ended_leaves_nothing_behind(setup: Setup) {
    alone(setup.test, || {
        let before = have();
        for _ in 0..3 {
            let server = setup.serve(Options::default());
            let mut clients = server.clients(20);
            clients.iter_mut().for_each(Client::ping);
            let handles: Vec<_> = clients
                .iter()
                .map(|client| server.handle.find(client.id).expect("it is connected"))
                .collect();
            // Handles that are kept must not keep descriptors.
            let of_server = server.handle.clone();
            server.finish();
            assert!(handles.iter().all(|handle| !handle.kill()));
            drop(clients);
            drop(of_server);
            until_have(before);
        }
    });
}

/// How much memory of the process is resident, in bytes; where that can be read.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kilobytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// A kilobyte that each of them left would be seen.
fn threads_that_come_and_go_leave_no_memory_behind(setup: Setup) {
    const AT_ONCE: usize = 20;
    const ROUNDS: usize = 200;
    alone(setup.test, || {
        let soon = Duration::from_millis(1);
        let options = Options {
            pool: PoolConfig::default().groups(1).idle_timeout(soon),
            threads: ThreadPerConnectionConfig::default().thread_cache(0),
            ..Options::default()
        };
        let server = setup.serve(options);
        let mut lives = 0;
        let mut round = |n: usize| {
            let gate = format!("gate {n}");
            let mut clients = server.clients(AT_ONCE);
            for client in &mut clients {
                client.send(&format!("WAIT {gate}"));
            }
            until("each has a thread", || {
                server.stage.running("WAIT").now == AT_ONCE
            });
            lives += server.stats().threads;
            server.stage.open(&gate);
            for client in &mut clients {
                assert_eq!(client.line(), "waited");
            }
            drop(clients);
            until("the threads have ended", || server.stats().threads <= 1);
        };
        // Allocators keep some for each thread that there was at once.
        (0..ROUNDS / 4).for_each(&mut round);
        let before = resident();
        (ROUNDS / 4..ROUNDS).for_each(&mut round);
        assert!(lives >= ROUNDS * AT_ONCE, "{lives}");
        if let Some((before, after)) = before.zip(resident()) {
            let more = after.saturating_sub(before);
            assert!(more < 1024 * AT_ONCE * ROUNDS / 4 * 3, "{before} {after}");
        }
        server.finish();
    });
}
