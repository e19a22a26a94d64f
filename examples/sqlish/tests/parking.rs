//! What clients are promised of statements that wait without a thread: commits in groups, and named
//! locks.

mod common;

use std::thread;
use std::time::Duration;

use sqlish::{CommitWait, EngineConfig};
use thread_group_pool::Limits;

use common::{Client, Kind, Site, Transport, code, everywhere, small};

/// A flush that takes `delay`.
fn flushing(delay: Duration) -> EngineConfig {
    EngineConfig {
        commit_delay: delay,
        ..small()
    }
}

/// A flush that is likely to be seen; nothing depends on that.
const SLOW: Duration = Duration::from_millis(200);

// `GET_LOCK` with -1 where nobody should have the lock: the server may not have seen yet that the
// clients of the transport before have gone.

fn k(client: &mut Client, id: u64) -> u64 {
    let k = client.value(&format!("SELECT k FROM sbtest1 WHERE id={id}"));
    k.parse().expect("a number")
}

/// The value that will come, as the one of the one row.
fn value_of(reply: &str) -> &str {
    reply
        .strip_prefix("ROW\t")
        .and_then(|rest| rest.strip_suffix("\nOK"))
        .unwrap_or_else(|| panic!("{reply}"))
}

#[test]
fn commits_of_many_are_all_done_whichever_way_they_wait() {
    const CLIENTS: u64 = 20;
    const ROUNDS: u64 = 5;
    for commit_wait in [CommitWait::Park, CommitWait::Hook] {
        let engine = EngineConfig {
            commit_wait,
            ..flushing(Duration::from_micros(200))
        };
        everywhere(&Limits::default(), &engine, |site, transport| {
            let mut watcher = site.connect(transport);
            let before: Vec<_> = (0..=CLIENTS).map(|id| k(&mut watcher, 1 + id)).collect();
            thread::scope(|scope| {
                for id in 2..2 + CLIENTS {
                    scope.spawn(move || {
                        let mut client = site.connect(transport);
                        for _ in 0..ROUNDS {
                            // Each its own row, and all of them one.
                            let own = format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}");
                            let shared = "UPDATE sbtest1 SET k=k+1 WHERE id=1";
                            client.run(&["BEGIN", &own, shared, "COMMIT"]);
                            assert_eq!(client.ask(&own), "OK\t1");
                            // This commits too, and the next transaction is open behind it.
                            client.run(&["BEGIN", &own, "BEGIN", &own, "ROLLBACK"]);
                        }
                    });
                }
            });
            assert_eq!(k(&mut watcher, 1), before[0] + CLIENTS * ROUNDS);
            for id in 2..2 + CLIENTS {
                assert_eq!(k(&mut watcher, id), before[id as usize - 1] + 3 * ROUNDS);
            }
        });
    }
}

#[test]
fn what_was_sent_behind_a_commit_is_answered_behind_it() {
    everywhere(
        &Limits::default(),
        &flushing(Duration::from_micros(200)),
        |site, transport| {
            let mut client = site.connect(transport);
            client.send("BEGIN\nUPDATE sbtest1 SET k=k+1 WHERE id=1\nCOMMIT\nECHO x\n");
            client.send("UPDATE sbtest1 SET k=k+1 WHERE id=1\nPING\nCOMMIT\nBEGIN\n");
            client.send("UPDATE sbtest1 SET k=k+1 WHERE id=1\nCOMMIT\n");
            client.end_input();
            let expected = "OK\nOK\t1\nOK\nROW\tx\nOK\nOK\t1\nOK\nOK\nOK\nOK\t1\nOK\n";
            assert_eq!(client.rest(), expected);
        },
    );
}

#[test]
fn nobody_sees_a_commit_or_gets_its_locks_before_it_is_flushed() {
    everywhere(&Limits::default(), &flushing(SLOW), |site, transport| {
        let mut watcher = site.connect(transport);
        let before = k(&mut watcher, 1);
        let mut one = site.connect(transport);
        one.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=1"]);
        one.send("COMMIT\n");
        watcher.ask_until("SHOW PROCESSLIST", "committing");
        let seen = k(&mut watcher, 1);
        let list = watcher.ask("SHOW PROCESSLIST");
        // Only if it is still being flushed after the look, on however slow a machine.
        if list.contains("committing") {
            assert_eq!(seen, before);
            assert!(list.contains("\tparked\t"), "{list}");
        }
        let mut two = site.connect(transport);
        two.run(&["BEGIN"]);
        // It waits for the lock, if the flush is not over, and has it after it.
        assert_eq!(two.ask("UPDATE sbtest1 SET k=k+1 WHERE id=1"), "OK\t1");
        assert_eq!(k(&mut two, 1), before + 2);
        assert_eq!(one.reply(), "OK");
        two.run(&["ROLLBACK"]);
        assert_eq!(k(&mut watcher, 1), before + 1);
    });
}

#[test]
fn whoever_is_killed_or_leaves_while_committing_has_committed_and_holds_nothing() {
    everywhere(&Limits::default(), &flushing(SLOW), |site, transport| {
        let mut watcher = site.connect(transport);
        for leaves in [false, true] {
            let before = [k(&mut watcher, 1), k(&mut watcher, 2)];
            let mut victim = site.connect(transport);
            victim.run(&["BEGIN"]);
            for id in [1, 2] {
                let update = format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}");
                assert_eq!(victim.ask(&update), "OK\t1");
            }
            victim.send("COMMIT\n");
            watcher.ask_until("SHOW PROCESSLIST", "committing");
            if leaves {
                drop(victim);
            } else {
                assert_eq!(watcher.ask(&format!("KILL {}", victim.id)), "OK");
                // At once, if the flush was not faster.
                let rest = victim.rest();
                let last = rest.lines().last().unwrap_or_default();
                assert_eq!(code(last), 1927, "{rest}");
            }
            // Both rows or none; handed over, so both. The locks are free with it.
            let mut other = site.connect(transport);
            other.run(&["BEGIN"]);
            for (id, before) in [1, 2].into_iter().zip(before) {
                let update = format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}");
                assert_eq!(other.ask(&update), "OK\t1");
                assert_eq!(k(&mut other, id), before + 2);
            }
            other.run(&["ROLLBACK"]);
        }
    });
}

#[test]
fn a_server_drains_while_commits_are_being_flushed() {
    for kind in [Kind::Pool, Kind::PerConnection] {
        let site = Site::new(kind, flushing(Duration::from_millis(50)), Limits::default());
        let mut clients: Vec<_> = (0..5).map(|_| site.connect(Transport::Unix)).collect();
        for (client, id) in clients.iter_mut().zip(1..) {
            client.run(&["BEGIN", &format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}")]);
            client.send("COMMIT\n");
        }
        let mut watcher = site.connect(Transport::Unix);
        watcher.ask_until("SHOW PROCESSLIST", "committing");
        let report = site.server.drain(Duration::from_secs(60));
        assert!(report.clean(), "{report}");
        for mut client in clients {
            let rest = client.rest();
            let (reply, farewell) = rest.split_once('\n').unwrap_or_default();
            // What had not been read when the drain began is not begun.
            assert!(reply == "OK" && code(farewell.trim_end()) == 1053 || code(reply) == 1053);
        }
    }
}

#[test]
fn named_locks_are_granted_in_the_order_in_which_they_were_asked_for() {
    everywhere(&Limits::default(), &small(), |site, transport| {
        let mut holder = site.connect(transport);
        assert_eq!(holder.value("SELECT GET_LOCK('a', -1)"), "1");
        let mut waiters = Vec::new();
        for queued in 1..=5 {
            let mut waiter = site.connect(transport);
            waiter.send("SELECT GET_LOCK('a', -1)\n");
            while holder
                .ask("SHOW PROCESSLIST")
                .matches("waiting for a named lock")
                .count()
                != queued
            {
                thread::yield_now();
            }
            waiters.push(waiter);
        }
        // They hold no thread: what the pool has is parked, in the poller, or runs this.
        assert!(holder.ask("SHOW PROCESSLIST").matches("\tparked\t").count() == 5);
        assert_eq!(holder.value("SELECT RELEASE_LOCK('a')"), "1");
        for waiter in &mut waiters {
            assert_eq!(value_of(&waiter.reply()), "1");
            let owner = waiter.id.to_string();
            assert_eq!(holder.value("SELECT IS_USED_LOCK('a')"), owner);
            // By its end, or by its word.
            if waiter.id % 2 == 0 {
                waiter.run(&["QUIT"]);
            } else {
                assert_eq!(waiter.value("SELECT RELEASE_ALL_LOCKS()"), "1");
            }
        }
        holder.ask_until("SELECT IS_FREE_LOCK('a')", "ROW\t1");
    });
}

#[test]
fn a_wait_for_a_named_lock_times_out_with_zero_and_leaves_the_queue() {
    everywhere(&Limits::default(), &small(), |site, transport| {
        let (mut holder, mut waiter) = (site.connect(transport), site.connect(transport));
        assert_eq!(holder.value("SELECT GET_LOCK('a', -1)"), "1");
        assert_eq!(waiter.value("SELECT GET_LOCK('a', 0.02)"), "0");
        assert_eq!(holder.value("SELECT RELEASE_LOCK('a')"), "1");
        assert_eq!(holder.value("SELECT IS_FREE_LOCK('a')"), "1");
        assert_eq!(waiter.value("SELECT GET_LOCK('a', 0)"), "1");
    });
}

#[test]
fn whoever_is_killed_or_leaves_while_waiting_for_a_named_lock_keeps_it_from_nobody() {
    everywhere(&Limits::default(), &small(), |site, transport| {
        let mut holder = site.connect(transport);
        assert_eq!(holder.value("SELECT GET_LOCK('a', -1)"), "1");
        let waiting = |holder: &mut Client, expected: usize| {
            while holder
                .ask("SHOW PROCESSLIST")
                .matches("waiting for a named lock")
                .count()
                != expected
            {
                thread::yield_now();
            }
        };
        let [mut killed, leaver, mut last] = std::array::from_fn(|queued| {
            let mut waiter = site.connect(transport);
            waiter.send("SELECT GET_LOCK('a', -1)\n");
            waiting(&mut holder, queued + 1);
            waiter
        });
        assert_eq!(holder.ask(&format!("KILL {}", killed.id)), "OK");
        assert_eq!(code(&killed.rest()), 1927);
        drop(leaver);
        // Over TCP a close looks like the end of input, and that is read after the statement.
        if transport == Transport::Unix {
            waiting(&mut holder, 1);
        }
        assert_eq!(holder.value("SELECT RELEASE_LOCK('a')"), "1");
        assert_eq!(value_of(&last.reply()), "1");
    });
}
