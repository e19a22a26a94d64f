//! Nobody who holds a lock waits for a thread behind those who wait for that lock.
//!
//! Each test takes all the threads that the pool may have with sessions that wait, and then needs one
//! for whoever they wait for. The stall limit and the age that promotes a command are as long as the
//! tests' patience, so no timer of the scheduler's helps.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use sqlish::EngineConfig;
use thread_group_pool::{ConnId, Limits, PoolConfig};

use common::{Client, Kind, PATIENCE, Site, Transport, code, small};

/// A pool of one group and this many threads.
fn narrow(threads: usize) -> PoolConfig {
    PoolConfig::default()
        .groups(1)
        .max_threads(threads)
        .stall_limit(PATIENCE)
        .kickup(PATIENCE)
}

fn site(pool: PoolConfig, limits: Limits) -> Site {
    Site::with_pool(Kind::Pool, pool, small(), limits)
}

/// Runs a test, and says how long it took: less than the stall limit, or a timer has ended it.
fn ends(name: &str, test: impl FnOnce()) {
    let begun = Instant::now();
    test();
    let took = begun.elapsed();
    // Where a timer had to help, this is as long as the timer.
    println!("{name}: {took:?}");
    assert!(took < PATIENCE, "{name} took {took:?}");
}

fn connect<const N: usize>(site: &Site) -> [Client; N] {
    std::array::from_fn(|_| site.connect(Transport::Unix))
}

fn increment(id: u64) -> String {
    format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}")
}

/// Returns when as many threads wait as there may be, or all the sessions that are to.
fn until_waiting(site: &Site, threads: usize) {
    let waiting = || {
        let groups = site.server.handle().stats().groups;
        groups.iter().map(|group| group.waiting).sum::<usize>()
    };
    while waiting() < threads {
        thread::yield_now();
    }
}

/// Sends a statement that waits from each, and returns when they have all the threads.
fn fill(site: &Site, threads: usize, waiters: &mut [Client], statement: &str) {
    for waiter in waiters.iter_mut() {
        waiter.send(format!("{statement}\n"));
    }
    until_waiting(site, threads.min(waiters.len()));
}

#[test]
fn a_holder_behind_waiters_at_the_cap_goes_through() {
    let site = site(narrow(4), Limits::default());
    ends("a holder behind waiters at the cap", || {
        let [mut holder, mut waiters @ ..] = connect::<13>(&site);
        holder.run(&["BEGIN", &increment(1)]);
        fill(&site, 4, &mut waiters, &increment(1));
        holder.run(&["COMMIT"]);
        for waiter in &mut waiters {
            assert_eq!(waiter.reply(), "OK\t1");
        }
    });
    let groups = site.server.handle().stats().groups;
    assert!(groups[0].threads_over_cap > 0, "it never came to the cap");
    assert!(groups[0].boosts > 0, "nobody has said for whom it waits");
}

/// For comparison: there only the waiters' own time-outs make room for it.
#[test]
fn under_mariadbs_policy_a_holder_behind_waiters_at_the_cap_waits_for_their_time_outs() {
    let engine = EngineConfig {
        lock_wait_timeout: Duration::from_millis(300),
        ..small()
    };
    let pool = PoolConfig::mariadb().groups(1).max_threads(4);
    let site = Site::with_pool(Kind::Pool, pool, engine, Limits::default());
    let [mut holder, mut waiters @ ..] = connect::<13>(&site);
    holder.run(&["BEGIN", &increment(1)]);
    fill(&site, 4, &mut waiters, &increment(1));
    let begun = Instant::now();
    holder.run(&["COMMIT"]);
    println!("under mariadb's policy: {:?}", begun.elapsed());
    let lost = waiters
        .iter_mut()
        .map(Client::reply)
        .filter(|reply| code(reply) == 1205)
        .count();
    assert!(lost > 0, "the holder came before a lock wait timed out");
}

#[test]
fn sixty_four_holders_that_wait_for_one_row_go_through_with_four_threads() {
    let site = site(narrow(4), Limits::default());
    ends("64 holders that wait for one row", || {
        let mut first = site.connect(Transport::Unix);
        first.run(&["BEGIN", &increment(100)]);
        let mut holders: Vec<_> = (0..64).map(|_| site.connect(Transport::Unix)).collect();
        for (holder, id) in holders.iter_mut().zip(1..) {
            holder.run(&["BEGIN", &increment(id)]);
        }
        fill(&site, 4, &mut holders, &increment(100));
        first.run(&["COMMIT"]);
        // Whoever has the row commits, so the next one gets it; they come in any order.
        thread::scope(|scope| {
            for mut holder in holders {
                scope.spawn(move || {
                    assert_eq!(holder.reply(), "OK\t1");
                    holder.run(&["COMMIT"]);
                });
            }
        });
    });
}

#[test]
fn whoever_holds_a_named_lock_across_commands_goes_through() {
    let site = site(narrow(4), Limits::default());
    ends("GET_LOCK held across commands", || {
        let [mut named, mut rows, mut parked, mut waiters @ ..] = connect::<15>(&site);
        assert_eq!(named.value("SELECT GET_LOCK('a', -1)"), "1");
        rows.run(&["BEGIN", &increment(1)]);
        parked.send("SELECT GET_LOCK('a', -1)\n");
        named.ask_until("SHOW PROCESSLIST", "waiting for a named lock");
        fill(&site, 4, &mut waiters, &increment(1));
        // Not one of the threads is free, and nobody who has one waits for the named lock.
        named.run(&["PING"]);
        assert_eq!(named.value("SELECT RELEASE_LOCK('a')"), "1");
        assert_eq!(parked.reply(), "ROW\t1\nOK");
        rows.run(&["COMMIT"]);
        for waiter in &mut waiters {
            assert_eq!(waiter.reply(), "OK\t1");
        }
    });
}

#[test]
fn a_chain_of_two_holders_is_followed_to_its_end() {
    let site = site(narrow(4), Limits::default());
    ends("a two-level chain", || {
        let [mut end, mut middle, mut waiters @ ..] = connect::<14>(&site);
        end.run(&["BEGIN", &increment(1)]);
        middle.run(&["BEGIN", &increment(2)]);
        middle.send(format!("{}\n", increment(1)));
        until_waiting(&site, 1);
        fill(&site, 3, &mut waiters, &increment(2));
        until_waiting(&site, 4);
        end.run(&["COMMIT"]);
        assert_eq!(middle.reply(), "OK\t1");
        middle.run(&["COMMIT"]);
        for waiter in &mut waiters {
            assert_eq!(waiter.reply(), "OK\t1");
        }
    });
}

#[test]
fn a_holder_that_is_silent_in_its_transaction_is_closed_at_the_cap() {
    let limits = Limits::default()
        .idle_timeout(Duration::from_secs(1))
        .read_timeout(Duration::from_secs(1));
    let site = site(narrow(4), limits);
    ends("an idle holder", || {
        let [mut holder, mut waiters @ ..] = connect::<9>(&site);
        holder.run(&["BEGIN", &increment(1)]);
        for waiter in &mut waiters {
            waiter.send(format!("{}\n", increment(1)));
        }
        assert_eq!(code(&holder.rest()), 4031);
        for waiter in &mut waiters {
            assert_eq!(waiter.reply(), "OK\t1");
        }
    });
}

#[test]
fn an_administrator_kills_the_holder_at_the_cap() {
    let site = site(narrow(4), Limits::default());
    for by_statement in [false, true] {
        ends("a kill of the holder", || {
            let [mut holder, mut admin, mut waiters @ ..] = connect::<10>(&site);
            // Whoever holds something is served at the cap: this is the administrator's pass.
            assert_eq!(admin.value("SELECT GET_LOCK('admin', -1)"), "1");
            holder.run(&["BEGIN", &increment(1)]);
            fill(&site, 4, &mut waiters, &increment(1));
            if by_statement {
                assert_eq!(admin.ask(&format!("KILL {}", holder.id)), "OK");
            } else {
                assert!(site.server.handle().kill(ConnId::from(holder.id)));
            }
            assert_eq!(code(&holder.rest()), 1927);
            for waiter in &mut waiters {
                assert_eq!(waiter.reply(), "OK\t1");
            }
        });
    }
}

/// Five hundred transactions for one row, and eight threads: each waiter that gets the row needs a
/// thread again to commit, behind those that wait for it.
#[test]
fn a_convoy_of_five_hundred_on_one_row_moves_on() {
    const CLIENTS: u64 = 500;
    for commit_delay in [Duration::ZERO, Duration::from_micros(100)] {
        let engine = EngineConfig {
            // InnoDB's: whoever waits for longer is a failure of this test.
            lock_wait_timeout: Duration::from_secs(50),
            commit_delay,
            ..small()
        };
        let site = Site::with_pool(Kind::Pool, narrow(8).groups(2), engine, Limits::default());
        let mut watcher = site.connect(Transport::Unix);
        let k = |watcher: &mut Client| -> u64 {
            let k = watcher.value("SELECT k FROM sbtest1 WHERE id=1");
            k.parse().expect("a number")
        };
        let before = k(&mut watcher);
        ends(
            &format!("a convoy with a flush of {commit_delay:?}"),
            || {
                let mut clients: Vec<_> = (0..CLIENTS)
                    .map(|_| site.connect(Transport::Unix))
                    .collect();
                for client in &mut clients {
                    client.send(format!("BEGIN\n{}\n", increment(1)));
                }
                thread::scope(|scope| {
                    for mut client in clients {
                        let each = move || {
                            assert_eq!(client.reply(), "OK");
                            assert_eq!(client.reply(), "OK\t1");
                            client.run(&["COMMIT"]);
                        };
                        let small_stack = thread::Builder::new().stack_size(128 * 1024);
                        small_stack
                            .spawn_scoped(scope, each)
                            .expect("a thread is left");
                    }
                });
            },
        );
        assert_eq!(k(&mut watcher), before + CLIENTS);
    }
}
