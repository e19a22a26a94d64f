//! Promises about sessions that hold what others wait for: however many threads there may be, and
//! however many of them wait, whoever is waited for gets one.
//!
//! Time opens nothing here: a command is long after a minute.

mod common;

use std::time::Duration;

use common::client::Client;
use common::{Harness, Options, Setup, in_the_pool, until};
use thread_group_pool::{PoolConfig, Stats};

in_the_pool! {
    a_holders_command_gets_a_thread_beyond_the_cap,
    holders_that_all_wait_for_one_of_them_come_to_an_end,
    who_is_waited_for_by_name_gets_a_thread_beyond_the_cap,
    who_is_waited_for_by_name_may_take_several_commands,
    a_chain_of_those_who_wait_for_each_other_comes_to_an_end,
    a_name_that_nobody_has_is_no_error,
    a_holder_that_does_nothing_is_killed,
    a_holder_may_kill_another,
    without_a_holder_the_cap_holds,
}

fn capped(groups: usize, max_threads: usize) -> Options {
    let pool = PoolConfig::default()
        .groups(groups)
        .max_threads(max_threads)
        .stall_limit(Duration::from_secs(60));
    Options::pool(pool)
}

/// Clients that wait for the gate "row", two at a time, for there are no more threads.
fn waiters(server: &Harness, n: usize, command: &str) -> Vec<Client> {
    let mut waiters = server.clients(n);
    for client in &mut waiters {
        client.send(command);
    }
    let word = command.split(' ').next().expect("a word");
    until("both threads wait", || {
        server.stage.running(word).now == 2 && server.group().waiting >= 2
    });
    waiters
}

#[track_caller]
fn all_waited(clients: &mut [Client]) {
    for client in clients {
        assert_eq!(client.line(), "waited");
    }
}

/// The threads beyond the cap leave when they are not needed, and there were never more of them than
/// holders.
#[track_caller]
fn all_is_as_before(server: Harness, max_threads: usize, holders: usize) -> Stats {
    until("the threads beyond the cap have left", || {
        let stats = server.stats();
        let threads: usize = stats.groups.iter().map(|group| group.threads).sum();
        stats.groups.iter().all(|group| group.over_cap == 0) && threads <= max_threads
    });
    server.client().ping();
    let stats = server.finish();
    assert!(stats.threads_peak <= max_threads + holders, "{stats:?}");
    for group in &stats.groups {
        assert_eq!(group.stalls, 0, "{group:?}");
    }
    stats
}

/// The story: all threads waited for a row, and the command that would have released it was queued
/// behind them.
fn a_holders_command_gets_a_thread_beyond_the_cap(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    let mut holder = server.client();
    assert_eq!(holder.ask("HOLD true"), "set");
    until("it holds", || server.group().holding == 1);
    let mut waiters = waiters(&server, 5, "WAIT row");
    for _ in 0..5 {
        holder.ping();
    }
    assert_eq!(
        server.stage.running("WAIT").now,
        2,
        "the others have no right to it"
    );
    assert_eq!(holder.ask("OPEN row"), "open");
    all_waited(&mut waiters);
    assert_eq!(holder.ask("HOLD false"), "set");
    until("it holds no more", || server.group().holding == 0);
    let stats = all_is_as_before(server, 2, 1);
    assert!(stats.groups[0].threads_over_cap >= 1, "{stats:?}");
}

fn holders_that_all_wait_for_one_of_them_come_to_an_end(setup: Setup) {
    const HOLDERS: usize = 16;
    let server = setup.serve(capped(2, 4));
    let mut last = server.client();
    let mut holders = server.clients(HOLDERS);
    for client in holders.iter_mut().chain([&mut last]) {
        assert_eq!(client.ask("HOLD true"), "set");
    }
    for client in &mut holders {
        client.send("WAIT row");
    }
    until("all of them wait", || {
        server.stage.running("WAIT").now == HOLDERS
    });
    assert_eq!(last.ask("OPEN row"), "open");
    all_waited(&mut holders);
    for client in &mut holders {
        assert_eq!(client.ask("HOLD false"), "set");
    }
    all_is_as_before(server, 4, HOLDERS + 1);
}

fn who_is_waited_for_by_name_gets_a_thread_beyond_the_cap(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    let mut holder = server.client();
    let command = format!("AWAIT {} row", holder.id);
    let mut waiters = waiters(&server, 5, &command);
    assert_eq!(server.group().holding, 1);
    assert_eq!(holder.ask("OPEN row"), "open");
    all_waited(&mut waiters);
    let stats = all_is_as_before(server, 2, 1);
    assert!(stats.groups[0].boosts >= 2, "{stats:?}");
    assert_eq!(stats.groups[0].holding, 0, "{stats:?}");
}

/// The story: it was let past its waiters once, with the first command that came; that was not the
/// one that released the row.
fn who_is_waited_for_by_name_may_take_several_commands(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    let mut holder = server.client();
    let command = format!("AWAIT {} row", holder.id);
    let mut waiters = waiters(&server, 3, &command);
    for _ in 0..10 {
        holder.ping();
    }
    assert_eq!(holder.ask("OPEN row"), "open");
    all_waited(&mut waiters);
    all_is_as_before(server, 2, 1);
}

fn a_chain_of_those_who_wait_for_each_other_comes_to_an_end(setup: Setup) {
    // In one group, and across two.
    for groups in [1, 2] {
        for last_first in [false, true] {
            let server = setup.serve(capped(groups, 2 * groups));
            let mut last = server.client();
            let mut middle = server.client();
            let to_last = format!("AWAIT {} last", last.id);
            let to_middle = format!("AWAIT {} middle", middle.id);
            if last_first {
                middle.send(&to_last);
            }
            let mut first = server.clients(6);
            for client in &mut first {
                client.send(&to_middle);
            }
            until("every thread waits", || {
                server.stage.running("AWAIT").now >= 2 * groups
            });
            if !last_first {
                middle.send(&to_last);
            }
            until("the middle waits for the last", || {
                server
                    .stats()
                    .groups
                    .iter()
                    .map(|group| group.boosts)
                    .sum::<u64>()
                    > 0
                    && server.state(middle.id) == Some("waiting")
            });
            last.ping();
            assert_eq!(last.ask("OPEN last"), "open");
            assert_eq!(middle.line(), "waited");
            assert_eq!(middle.ask("OPEN middle"), "open");
            all_waited(&mut first);
            all_is_as_before(server, 2 * groups, 2);
        }
    }
}

fn a_name_that_nobody_has_is_no_error(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    server.stage.open("row");
    let mut client = server.client();
    assert_eq!(client.ask("AWAIT 77777 row"), "waited");
    let gone = server.client().id;
    server.until_closed_as("client_closed", 1);
    assert_eq!(client.ask(&format!("AWAIT {gone} row")), "waited");
    // One's own, too.
    assert_eq!(client.ask(&format!("AWAIT {} row", client.id)), "waited");
    client.ping();
    until("nobody is waited for", || server.group().holding == 0);
    all_is_as_before(server, 2, 1);
}

fn a_holder_that_does_nothing_is_killed(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    let mut holder = server.client();
    assert_eq!(holder.ask("HOLD true"), "set");
    assert_eq!(holder.ask("TRANSACTION true"), "set");
    let mut waiters = waiters(&server, 5, "WAIT row");
    assert!(server.handle.kill(holder.id));
    assert_eq!(holder.rest(), "farewell: the connection was killed\n");
    server.until_closed_as("killed", 1);
    until("it holds no more", || server.group().holding == 0);
    server.stage.open("row");
    all_waited(&mut waiters);
    all_is_as_before(server, 2, 1);
}

/// As an administrator's session does.
fn a_holder_may_kill_another(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    let mut admin = server.client();
    let mut holder = server.client();
    for client in [&mut admin, &mut holder] {
        assert_eq!(client.ask("HOLD true"), "set");
    }
    let mut waiters = waiters(&server, 5, "WAIT row");
    assert_eq!(admin.ask(&format!("KILL {}", holder.id)), "true");
    assert_eq!(holder.rest(), "farewell: the connection was killed\n");
    assert_eq!(admin.ask("OPEN row"), "open");
    all_waited(&mut waiters);
    all_is_as_before(server, 2, 2);
}

fn without_a_holder_the_cap_holds(setup: Setup) {
    let server = setup.serve(capped(1, 2));
    let mut holder = server.client();
    assert_eq!(holder.ask("HOLD true"), "set");
    assert_eq!(holder.ask("HOLD false"), "set");
    let mut waiters = waiters(&server, 5, "WAIT row");
    holder.send("ECHO ping");
    server.stage.open("row");
    all_waited(&mut waiters);
    assert_eq!(holder.line(), "ping");
    let stats = all_is_as_before(server, 2, 0);
    assert_eq!(stats.groups[0].threads_over_cap, 0, "{stats:?}");
}
