//! What sessions promise each other: transactions, locks, and how waits for them end.

use std::cell::Cell;
use std::sync::mpsc;
use std::thread;

use crate::{EngineConfig, Line, NoAdmin, next_line};

use super::*;

pub(super) fn engine() -> Arc<Engine> {
    // Long enough that no test passes because a wait timed out.
    patient_for(Duration::from_secs(600))
}

pub(super) fn patient_for(lock_wait_timeout: Duration) -> Arc<Engine> {
    Engine::new(EngineConfig {
        rows: 1000,
        tables: 2,
        lock_wait_timeout,
        ..EngineConfig::default()
    })
    .expect("it needs no thread")
}

/// A session with the id 1, 2, 3, ...
pub(super) fn sessions<const N: usize>(engine: &Arc<Engine>) -> [Session; N] {
    std::array::from_fn(|i| Session::new(engine, i as u64 + 1))
}

pub(super) fn ask(session: &mut Session, statement: &str) -> String {
    ask_under(session, statement, &NoAdmin)
}

fn ask_under(session: &mut Session, statement: &str, admin: &dyn Admin) -> String {
    let mut out = Vec::new();
    let flow = session.execute(statement.as_bytes(), &mut out, admin);
    assert!(flow.is_ok(), "a Vec takes everything");
    String::from_utf8(out).expect("replies are UTF-8")
}

/// Runs statements that all must succeed.
pub(super) fn run(session: &mut Session, statements: &[&str]) {
    for statement in statements {
        let reply = ask(session, statement);
        assert!(reply.starts_with("OK"), "{statement}: {reply}");
    }
}

/// The code of an `ERR` reply, 0 for any other.
pub(super) fn code(reply: &str) -> u16 {
    let code = reply
        .strip_prefix("ERR\t")
        .and_then(|rest| rest.split('\t').next());
    code.map_or(0, |code| code.parse().expect("a code is a number"))
}

fn k(session: &mut Session, id: u64) -> u64 {
    let reply = ask(session, &format!("SELECT k FROM sbtest1 WHERE id={id}"));
    let value = reply
        .strip_prefix("ROW\t")
        .and_then(|rest| rest.strip_suffix("\nOK\n"));
    value
        .and_then(|value| value.parse().ok())
        .expect("a row with one number")
}

pub(super) fn increment(id: u64) -> String {
    format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}")
}

/// Returns when that many sessions stand in the queue for a row of `sbtest1`.
pub(super) fn until_queued(engine: &Engine, id: i64, sessions: usize) {
    while engine.tables.now().table(0).waiters(id) != sessions {
        thread::yield_now();
    }
}

#[test]
fn a_point_select_returns_the_row_and_what_an_update_made_of_it() {
    let [mut me] = sessions(&engine());
    let row = ask(&mut me, "SELECT c FROM sbtest1 WHERE id=500");
    assert_eq!(row.len(), "ROW\t\nOK\n".len() + 119, "{row}");
    assert_eq!(
        ask(&mut me, "UPDATE sbtest1 SET c='a\\tb' WHERE id=500"),
        "OK\t1\n"
    );
    assert_eq!(
        ask(&mut me, "SELECT c FROM sbtest1 WHERE id=500"),
        "ROW\ta\\tb\nOK\n"
    );
    assert_eq!(
        ask(&mut me, "SELECT id FROM sbtest1 WHERE id=500"),
        "ROW\t500\nOK\n"
    );
    assert_eq!(
        ask(&mut me, "UPDATE sbtest1 SET c='' WHERE id=500"),
        "OK\t1\n"
    );
    assert_eq!(
        ask(&mut me, "SELECT c FROM sbtest1 WHERE id=500"),
        "ROW\t\nOK\n"
    );
    assert!(!me.holds_locks());
}

#[test]
fn a_row_that_does_not_exist_is_no_error() {
    let [mut me] = sessions(&engine());
    for id in [0, 1001, u64::MAX] {
        assert_eq!(
            ask(&mut me, &format!("SELECT c FROM sbtest1 WHERE id={id}")),
            "OK\n"
        );
        assert_eq!(ask(&mut me, &increment(id)), "OK\t0\n");
    }
}

#[test]
fn every_mistake_has_its_code_and_the_session_goes_on() {
    let [mut me] = sessions(&engine());
    let too_long = format!("UPDATE sbtest1 SET c='{}' WHERE id=1", "x".repeat(121));
    let long_name = format!("SELECT RELEASE_LOCK('{}')", "x".repeat(65));
    for (statement, expected) in [
        ("SELEKT 1", 1064),
        ("SELECT c FROM sbtest3 WHERE id=1", 1146),
        ("SELECT c FROM sbtest0 WHERE id=1", 1146),
        ("SELECT c FROM sbtest01 WHERE id=1", 1146),
        ("UPDATE users SET k=k+1 WHERE id=1", 1146),
        ("SELECT x FROM sbtest1 WHERE id=1", 1054),
        (too_long.as_str(), 1406),
        ("ANSWER 00", 1045),
        ("SHOW THREAD_POOL GROUPS", 1235),
        ("SHOW THREAD_POOL STATS", 1235),
        ("SHOW THREAD_POOL QUEUES", 1235),
        ("SHOW THREAD_POOL WAITS", 1235),
        ("SET autocommit=perhaps", 1231),
        ("SET no_such_variable=1", 1193),
        ("SET GLOBAL thread_pool_size=1", 1193),
        ("SET SESSION thread_pool_priority=urgent", 1231),
        ("SELECT GET_LOCK('', 1)", 3057),
        (long_name.as_str(), 3057),
        ("SELECT GET_LOCK('a', 1e9)", 1064),
        ("SELECT NOW()", 1064),
        ("SHOW PROCESSLIST", 1235),
        ("KILL 1", 1235),
    ] {
        assert_eq!(code(&ask(&mut me, statement)), expected, "{statement}");
    }
    let mut out = Vec::new();
    let flow = me.execute(b"ECHO \xff", &mut out, &NoAdmin);
    assert!(matches!(flow, Ok(Flow::Continue)) && out.starts_with(b"ERR\t1300\t"));
    assert_eq!(ask(&mut me, "PING"), "OK\n");
}

#[test]
fn a_blank_line_has_no_reply_and_a_lone_semicolon_is_an_error() {
    let [mut me] = sessions(&engine());
    for blank in ["", "\r", "  "] {
        assert_eq!(ask(&mut me, blank), "");
    }
    for empty in [";", " ; \r"] {
        assert_eq!(ask(&mut me, empty), "ERR\t1065\tQuery was empty\n");
    }
}

#[test]
fn quit_is_answered_and_ends_the_session() {
    let [mut me] = sessions(&engine());
    let mut out = Vec::new();
    assert!(matches!(
        me.execute(b"quit;\r", &mut out, &NoAdmin),
        Ok(Flow::Quit)
    ));
    assert_eq!(out, b"OK\n");
}

#[test]
fn nobody_sees_a_change_before_it_is_committed() {
    let engine = engine();
    let [mut me, mut other] = sessions(&engine);
    let before = k(&mut other, 7);
    run(&mut me, &["BEGIN", &increment(7)]);
    assert!(me.in_transaction() && me.holds_locks());
    assert_eq!((k(&mut me, 7), k(&mut other, 7)), (before + 1, before));
    run(&mut me, &["COMMIT"]);
    assert!(!me.in_transaction() && !me.holds_locks());
    assert_eq!(k(&mut other, 7), before + 1);
}

#[test]
fn rollback_and_the_end_of_a_session_restore_every_row() {
    let engine = engine();
    let [mut me, mut leaver] = sessions(&engine);
    let before = [k(&mut me, 1), k(&mut me, 2)];
    run(
        &mut me,
        &[
            "BEGIN",
            &increment(1),
            &increment(1),
            &increment(2),
            "ROLLBACK",
        ],
    );
    assert_eq!([k(&mut me, 1), k(&mut me, 2)], before);
    run(&mut leaver, &["BEGIN", &increment(1), &increment(2)]);
    drop(leaver);
    assert_eq!([k(&mut me, 1), k(&mut me, 2)], before);
    run(&mut me, &[&increment(1)]);
    assert_eq!(k(&mut me, 1), before[0] + 1);
}

#[test]
fn a_second_begin_commits_the_first() {
    let [mut me] = sessions(&engine());
    let before = k(&mut me, 1);
    run(
        &mut me,
        &[
            "BEGIN",
            &increment(1),
            "START TRANSACTION",
            &increment(1),
            "ROLLBACK",
        ],
    );
    assert_eq!(k(&mut me, 1), before + 1);
}

#[test]
fn waiters_get_the_lock_in_the_order_in_which_they_came() {
    let engine = engine();
    let [mut holder, waiters @ ..] = sessions::<5>(&engine);
    let before = k(&mut holder, 3);
    run(&mut holder, &["BEGIN", &increment(3)]);
    let (order, served) = mpsc::channel();
    thread::scope(|scope| {
        for (number, mut waiter) in waiters.into_iter().enumerate() {
            let order = order.clone();
            scope.spawn(move || {
                run(&mut waiter, &["BEGIN", &increment(3)]);
                // Sent before the lock is given up, so the next one sends later.
                order
                    .send((number, k(&mut waiter, 3)))
                    .expect("the test listens");
                run(&mut waiter, &["COMMIT"]);
            });
            until_queued(&engine, 3, number + 1);
        }
        run(&mut holder, &["COMMIT"]);
    });
    drop(order);
    let expected: Vec<_> = (0..4)
        .map(|number| (number, before + 2 + number as u64))
        .collect();
    assert_eq!(served.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn an_autocommit_update_that_waited_keeps_no_lock() {
    let engine = engine();
    let [mut holder, mut waiter, mut third] = sessions(&engine);
    run(&mut holder, &["BEGIN", &increment(3)]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            run(&mut waiter, &[&increment(3)]);
            waiter
        });
        until_queued(&engine, 3, 1);
        run(&mut holder, &["ROLLBACK"]);
        assert!(!waiter.join().expect("it got the lock").holds_locks());
    });
    run(&mut third, &[&increment(3)]);
}

#[test]
fn a_wait_for_a_lock_times_out_and_the_transaction_goes_on() {
    let engine = patient_for(Duration::from_millis(20));
    let [mut holder, mut waiter] = sessions(&engine);
    run(&mut holder, &["BEGIN", &increment(3)]);
    run(&mut waiter, &["BEGIN", &increment(4)]);
    assert_eq!(code(&ask(&mut waiter, &increment(3))), 1205);
    assert!(waiter.in_transaction() && waiter.holds_locks());
    until_queued(&engine, 3, 0);
    run(&mut holder, &["COMMIT"]);
    run(&mut waiter, &[&increment(3), "COMMIT"]);
}

#[test]
fn whoever_closes_a_circle_of_waits_is_rolled_back_at_once() {
    for round in 0..50 {
        let engine = engine();
        let sessions = sessions::<3>(&engine);
        let before = k(&mut Session::new(&engine, 9), 1);
        let barrier = std::sync::Barrier::new(3);
        let codes: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .into_iter()
                .zip(1..)
                .map(|(mut session, id)| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        run(&mut session, &["BEGIN", &increment(id)]);
                        barrier.wait();
                        let reply = ask(&mut session, &increment(id % 3 + 1));
                        assert_eq!(session.in_transaction(), code(&reply) == 0);
                        run(&mut session, &["COMMIT"]);
                        code(&reply)
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("it ended"))
                .collect()
        });
        let victims = codes.iter().filter(|code| **code == 1213).count();
        assert_eq!(
            (victims, codes.iter().sum::<u16>()),
            (1, 1213),
            "round {round}: {codes:?}"
        );
        let mut reader = Session::new(&engine, 9);
        let grown = k(&mut reader, 1) - before;
        assert!(
            grown == 1 || grown == 2,
            "one or two transactions committed it: {grown}"
        );
    }
}

#[test]
fn a_killed_session_stops_waiting_for_a_lock() {
    let engine = engine();
    let [mut holder, mut waiter, mut third] = sessions(&engine);
    run(&mut holder, &["BEGIN", &increment(3)]);
    thread::scope(|scope| {
        let waiter = scope.spawn(move || ask(&mut waiter, &increment(3)));
        until_queued(&engine, 3, 1);
        assert!(engine.cancel(2));
        assert_eq!(code(&waiter.join().expect("it was told")), 1317);
        until_queued(&engine, 3, 0);
    });
    assert!(!engine.cancel(2), "it has left");
    run(&mut holder, &["COMMIT"]);
    run(&mut third, &[&increment(3)]);
}

/// A server whose connection is gone from the second question on.
#[derive(Default)]
struct Gone(Cell<bool>);

impl Admin for Gone {
    fn cancelled(&self) -> bool {
        self.0.replace(true)
    }
}

#[test]
fn whatever_takes_time_asks_whether_the_connection_is_gone() {
    let engine = engine();
    let [mut holder, mut me] = sessions(&engine);
    run(&mut holder, &["BEGIN", &increment(3)]);
    for statement in [
        &increment(3),
        "SELECT SLEEP(100000)",
        "SELECT SLEEP_UNSEEN(100000)",
        "SELECT BENCHMARK(18446744073709551615, MD5('x'))",
    ] {
        assert_eq!(
            code(&ask_under(&mut me, statement, &Gone::default())),
            1317,
            "{statement}"
        );
    }
}

#[test]
fn a_killed_session_stops_sleeping_and_computing() {
    let engine = engine();
    for statement in [
        "SELECT SLEEP(1e9)",
        "SELECT SLEEP(100000)",
        "SELECT SLEEP_UNSEEN(100000)",
        "SELECT BENCHMARK(1000, MD5('x'))",
    ] {
        let mut me = Session::new(&engine, 1);
        me.canceller().cancel();
        let expected = if statement.contains("1e9") {
            1064
        } else {
            1317
        };
        assert_eq!(code(&ask(&mut me, statement)), expected, "{statement}");
    }
}

#[test]
fn sleep_and_benchmark_return_zero() {
    let [mut me] = sessions(&engine());
    assert_eq!(ask(&mut me, "SELECT SLEEP(0.001)"), "ROW\t0\nOK\n");
    assert_eq!(ask(&mut me, "SELECT SLEEP_UNSEEN(0.001)"), "ROW\t0\nOK\n");
    assert_eq!(
        ask(&mut me, "SELECT BENCHMARK(10, MD5('when'))"),
        "ROW\t0\nOK\n"
    );
}

#[test]
fn without_the_secret_nothing_is_served() {
    let engine = Engine::new(EngineConfig {
        rows: 10,
        login_secret: Some("secret".to_owned()),
        ..EngineConfig::default()
    })
    .expect("it needs no thread");
    let [mut me, mut intruder] = sessions(&engine);
    for statement in [
        "PING",
        "SELECT c FROM sbtest1 WHERE id=1",
        "KILL 2",
        "ECHO x",
    ] {
        assert_eq!(code(&ask(&mut me, statement)), 1045, "{statement}");
    }
    let nonce = challenge(&mut me);
    assert_eq!(code(&ask(&mut me, "PING")), 1045);
    let answer = crate::login::answer(&nonce, "secret");
    assert_eq!(ask(&mut me, &format!("ANSWER {answer}")), "OK\n");
    assert!(me.is_logged_in());
    assert_eq!(ask(&mut me, "PING"), "OK\n");

    assert_ne!(challenge(&mut intruder), nonce);
    let mut out = Vec::new();
    let flow = intruder.execute(format!("ANSWER {answer}").as_bytes(), &mut out, &NoAdmin);
    assert!(matches!(flow, Ok(Flow::Quit)) && out.starts_with(b"ERR\t1045\t"));
    assert_eq!(code(&ask(&mut intruder, &format!("ANSWER {answer}"))), 1045);
    assert!(!intruder.is_logged_in());
}

fn challenge(session: &mut Session) -> String {
    let reply = ask(session, "LOGIN ann");
    let nonce = reply
        .strip_prefix("ROW\tchallenge\t")
        .and_then(|rest| rest.strip_suffix("\nOK\n"));
    nonce.expect("a challenge").to_owned()
}

/// A server with one connection, which knows itself and can be killed.
struct OneConnection;

impl Admin for OneConnection {
    fn connections(&self) -> Option<Vec<crate::Connection>> {
        let (peer, since) = ("nowhere".to_owned(), Duration::from_millis(1500));
        Some(vec![crate::Connection {
            id: 1,
            peer,
            state: "running".to_owned(),
            since,
            why: "because".to_owned(),
        }])
    }

    fn kill(&self, id: u64) -> Option<bool> {
        Some(id == 1)
    }
}

#[test]
fn the_process_list_tells_who_runs_what() {
    let [mut me, mut other] = sessions(&engine());
    run(&mut me, &["LOGIN ann"]);
    let names = "ROW\tID\tUSER\tHOST\tCOMMAND\tTIME\tSTATE\tINFO\tWHY\n";
    assert_eq!(
        ask_under(&mut me, "show processlist;", &OneConnection),
        format!(
            "{names}ROW\t1\tann\tnowhere\trunning\t1.500\tlisting\tshow processlist\tbecause\nOK\n"
        )
    );
    assert_eq!(
        ask_under(&mut other, "SHOW PROCESSLIST", &OneConnection),
        format!("{names}ROW\t1\tann\tnowhere\trunning\t1.500\tNULL\tNULL\tbecause\nOK\n")
    );
}

#[test]
fn kill_reaches_the_session_and_knows_who_is_not_there() {
    let [mut me, mut other] = sessions(&engine());
    assert_eq!(code(&ask_under(&mut other, "KILL 7", &OneConnection)), 1094);
    assert_eq!(ask_under(&mut other, "KILL 1", &OneConnection), "OK\n");
    assert_eq!(code(&ask(&mut me, "SELECT SLEEP(100000)")), 1317);
}

/// The one value of the one row.
fn value(session: &mut Session, statement: &str) -> String {
    let reply = ask(session, statement);
    let value = reply
        .strip_prefix("ROW\t")
        .and_then(|rest| rest.strip_suffix("\nOK\n"));
    value
        .unwrap_or_else(|| panic!("{statement}: {reply}"))
        .to_owned()
}

#[test]
fn a_named_lock_is_one_sessions_until_it_has_given_it_back_as_often_as_it_got_it() {
    let [mut me, mut other] = sessions(&engine());
    for (mine, statement, expected) in [
        (true, "SELECT RELEASE_LOCK('a')", "NULL"),
        (true, "SELECT IS_FREE_LOCK('a')", "1"),
        (true, "SELECT IS_USED_LOCK('a')", "NULL"),
        (true, "SELECT GET_LOCK('a', 0)", "1"),
        (true, "select get_lock( 'A' , -1 )", "1"),
        (true, "SELECT GET_LOCK('b', 0.5)", "1"),
        (false, "SELECT IS_FREE_LOCK('a')", "0"),
        (false, "SELECT IS_USED_LOCK('a')", "1"),
        (false, "SELECT GET_LOCK('a', 0)", "0"),
        (false, "SELECT GET_LOCK('a', 0.01)", "0"),
        (false, "SELECT RELEASE_LOCK('a')", "0"),
        (true, "SELECT RELEASE_LOCK('a')", "1"),
        (false, "SELECT GET_LOCK('a', 0)", "0"),
        (true, "SELECT RELEASE_LOCK('a')", "1"),
        (false, "SELECT GET_LOCK('a', 0)", "1"),
        (true, "SELECT RELEASE_ALL_LOCKS()", "1"),
        (false, "SELECT GET_LOCK('b', 0)", "1"),
        (false, "SELECT GET_LOCK('b', 0)", "1"),
        (false, "SELECT RELEASE_ALL_LOCKS()", "3"),
    ] {
        let session = if mine { &mut me } else { &mut other };
        assert_eq!(value(session, statement), expected, "{statement}");
    }
}

#[test]
fn a_session_that_ends_gives_its_named_locks_to_those_who_wait() {
    let engine = engine();
    let [mut holder, mut waiter] = sessions(&engine);
    assert_eq!(value(&mut holder, "SELECT GET_LOCK('a', 0)"), "1");
    thread::scope(|scope| {
        let waiter = scope.spawn(move || value(&mut waiter, "SELECT GET_LOCK('a', -1)"));
        // Transactions and named locks have nothing to do with each other.
        run(&mut holder, &["BEGIN", &increment(1), "ROLLBACK"]);
        assert_eq!(value(&mut holder, "SELECT IS_USED_LOCK('a')"), "1");
        drop(holder);
        assert_eq!(waiter.join().expect("it got the lock"), "1");
    });
    let mut third = Session::new(&engine, 3);
    assert_eq!(value(&mut third, "SELECT IS_FREE_LOCK('a')"), "1");
}

#[test]
fn whoever_closes_a_circle_of_named_locks_is_told_and_keeps_what_it_has() {
    let engine = engine();
    let [mut one, mut two, mut three] = sessions(&engine);
    for (session, name) in [(&mut one, "a"), (&mut two, "b"), (&mut three, "c")] {
        assert_eq!(
            value(session, &format!("SELECT GET_LOCK('{name}', 0)")),
            "1"
        );
    }
    thread::scope(|scope| {
        let one = scope.spawn(move || value(&mut one, "SELECT GET_LOCK('b', -1)"));
        let two = scope.spawn(move || {
            let got = value(&mut two, "SELECT GET_LOCK('c', -1)");
            drop(two);
            got
        });
        while ["b", "c"].map(|name| engine.user_locks.waiters(name)) != [1, 1] {
            thread::yield_now();
        }
        assert_eq!(code(&ask(&mut three, "SELECT GET_LOCK('a', -1)")), 3058);
        assert_eq!(value(&mut three, "SELECT IS_USED_LOCK('c')"), "3");
        assert_eq!(value(&mut three, "SELECT RELEASE_LOCK('c')"), "1");
        assert_eq!(two.join().expect("it got the lock"), "1");
        assert_eq!(one.join().expect("it got the lock"), "1");
    });
}

#[test]
fn the_scheduler_is_told_when_a_standing_changes_and_only_then() {
    let [mut me] = sessions(&engine());
    let plain = Standing {
        logged_in: true,
        in_transaction: false,
        holding: false,
        priority: Priority::Auto,
    };
    let in_transaction = Standing {
        in_transaction: true,
        ..plain
    };
    let holding = Standing {
        holding: true,
        ..plain
    };
    assert_eq!(me.changed_standing(), Some(plain));
    for (statement, expected) in [
        ("PING", None),
        ("SELECT c FROM sbtest1 WHERE id=1", None),
        (&*increment(1), None),
        ("BEGIN", Some(in_transaction)),
        (
            &*increment(1),
            Some(Standing {
                holding: true,
                ..in_transaction
            }),
        ),
        (&*increment(1), None),
        ("COMMIT", Some(plain)),
        ("SELECT GET_LOCK('a', 0)", Some(holding)),
        ("SELECT GET_LOCK('a', 0)", Some(holding)),
        ("SELECT RELEASE_LOCK('a')", Some(holding)),
        ("SELECT RELEASE_LOCK('a')", Some(plain)),
        (
            "SET SESSION thread_pool_priority = 'high'",
            Some(Standing {
                priority: Priority::High,
                ..plain
            }),
        ),
        ("set thread_pool_priority=AUTO", Some(plain)),
    ] {
        ask(&mut me, statement);
        assert_eq!(me.changed_standing(), expected, "{statement}");
    }
}

#[test]
fn without_a_scheduler_that_parks_a_commit_blocks_until_it_is_flushed() {
    let engine = Engine::new(EngineConfig {
        rows: 10,
        commit_delay: Duration::from_micros(100),
        ..EngineConfig::default()
    })
    .expect("a thread is left");
    let [mut me, mut other] = sessions(&engine);
    let before = k(&mut other, 1);
    run(&mut me, &["BEGIN", &increment(1), "BEGIN"]);
    assert!(me.in_transaction() && !me.holds_locks());
    assert_eq!(k(&mut other, 1), before + 1);
    // The lock is free, and what was not flushed for a commit was not committed.
    assert_eq!(ask(&mut other, &increment(1)), "OK\t1\n");
    run(&mut me, &[&increment(1), "ROLLBACK", "COMMIT"]);
    assert_eq!(k(&mut other, 1), before + 2);
    assert!(!other.holds_locks());
}

#[test]
fn no_increment_is_lost_and_money_is_conserved_under_contention() {
    let engine = engine();
    let mut reader = Session::new(&engine, 99);
    let before: u64 = (1..=4).map(|id| k(&mut reader, id)).sum();
    let committed: u64 = thread::scope(|scope| {
        let threads: Vec<_> = sessions::<8>(&engine)
            .into_iter()
            .zip(0u64..)
            .map(|(mut session, seed)| {
                scope.spawn(move || {
                    let mut committed = 0;
                    for turn in 0..200u64 {
                        // Pairs in either order, so that circles happen.
                        let (a, b) = ((seed + turn) % 4 + 1, (seed * 3 + turn * 7) % 4 + 1);
                        run(&mut session, &["BEGIN"]);
                        let done = [a, b].iter().all(|id| {
                            let reply = ask(&mut session, &increment(*id));
                            assert!(matches!(code(&reply), 0 | 1213), "{reply}");
                            code(&reply) == 0
                        });
                        if done && turn % 3 == 0 {
                            run(&mut session, &["ROLLBACK"]);
                        } else if done {
                            run(&mut session, &["COMMIT"]);
                            committed += 2;
                        }
                        run(&mut session, &[&increment(seed % 4 + 1)]);
                        committed += 1;
                    }
                    committed
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it ended"))
            .sum()
    });
    let after: u64 = (1..=4).map(|id| k(&mut reader, id)).sum();
    assert_eq!(after - before, committed);
}

#[test]
fn any_bytes_get_one_reply_per_line() {
    let [mut me] = sessions(&engine());
    let mut random = 1u64;
    for _ in 0..5000 {
        let mut input = b"SELECT c FROM sbtest1 WHERE id=7".to_vec();
        for _ in 0..3 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (random >> 33) as usize % input.len();
            input[at] = (random >> 24) as u8;
        }
        input.retain(|byte| *byte != b'\n');
        let mut out = Vec::new();
        let flow = me.execute(&input, &mut out, &NoAdmin);
        assert!(matches!(flow, Ok(Flow::Continue)));
        let mut replies = 0;
        while let Line::Complete { line, consumed } = next_line(&out) {
            replies += usize::from(line.starts_with(b"OK") || line.starts_with(b"ERR\t"));
            out.drain(..consumed);
        }
        assert_eq!(
            (replies, out.len()),
            (1, 0),
            "{}",
            String::from_utf8_lossy(&input)
        );
    }
}
