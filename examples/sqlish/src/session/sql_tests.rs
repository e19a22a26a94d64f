//! What the statements beyond the point select and the update promise: ranges, inserts, deletes, tables.

use std::thread;

use super::tests::{ask, code, engine, increment, patient_for, run, sessions, until_queued};
use super::*;
use crate::EngineConfig;

/// An engine without tables.
fn bare() -> Arc<Engine> {
    Engine::new(EngineConfig {
        tables: 0,
        ..EngineConfig::default()
    })
    .expect("it needs no thread")
}

const CREATE: &str = "CREATE TABLE sbtest1(\n  id INTEGER NOT NULL AUTO_INCREMENT,\n  k INTEGER DEFAULT '0' NOT NULL,\n  \
     c CHAR(120) DEFAULT '' NOT NULL,\n  pad CHAR(60) DEFAULT '' NOT NULL,\n  PRIMARY KEY (id)\n) /*! ENGINE = innodb */ ";

/// A session in a table with the rows (1, 10, 'a', 'x'), (2, 20, 'b', 'x'), (3, 20, 'a', 'y').
fn three_rows(engine: &Arc<Engine>) -> Session {
    let mut me = Session::new(engine, 100);
    run(&mut me, &[CREATE, "CREATE INDEX k_1 ON sbtest1(k)"]);
    let insert =
        "INSERT INTO sbtest1(k, c, pad) VALUES(10, 'a', 'x'),(20, 'b', 'x') , ( 20 ,'a','y')";
    assert_eq!(ask(&mut me, insert), "OK\t3\n");
    me
}

/// The rows of a reply, values separated by blanks.
fn rows(session: &mut Session, statement: &str) -> Vec<String> {
    let reply = ask(session, statement);
    let rows = reply.strip_suffix("OK\n");
    let rows = rows.unwrap_or_else(|| panic!("{statement}: {reply}"));
    rows.lines()
        .map(|row| row.trim_start_matches("ROW\t").replace('\t', " "))
        .collect()
}

fn all(session: &mut Session) -> Vec<String> {
    rows(session, "SELECT * FROM sbtest1")
}

#[test]
fn ranges_of_generated_rows_are_whole_and_in_order() {
    let [mut me] = sessions(&engine());
    let ids: Vec<_> = (95..=194).map(|id: i64| id.to_string()).collect();
    assert_eq!(
        rows(
            &mut me,
            "SELECT id FROM sbtest1 WHERE id BETWEEN 95 AND 194"
        ),
        ids
    );
    let c = rows(&mut me, "SELECT c FROM sbtest1 WHERE id BETWEEN 95 AND 194");
    assert_eq!(c.len(), 100);
    let mut sorted = c.clone();
    sorted.sort();
    let ordered = "SELECT c FROM sbtest1 WHERE id BETWEEN 95 AND 194 ORDER BY c";
    assert_eq!(rows(&mut me, ordered), sorted);
    let distinct = "SELECT DISTINCT c FROM sbtest1 WHERE id BETWEEN 95 AND 194 ORDER BY c";
    assert_eq!(rows(&mut me, distinct), sorted, "all are different");
    let k: i64 = rows(&mut me, "SELECT k FROM sbtest1 WHERE id BETWEEN 95 AND 194")
        .iter()
        .map(|k| k.parse::<i64>().expect("a number"))
        .sum();
    let sum = "SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN 95 AND 194";
    assert_eq!(rows(&mut me, sum), [k.to_string()]);
    for (range, count) in [
        ("BETWEEN 990 AND 2000", 11),
        ("BETWEEN -5 AND 0", 0),
        ("BETWEEN 0 AND 99999999999999", 1000),
        ("BETWEEN 9 AND 5", 0),
        (">= 998", 3),
        ("< 3", 2),
        ("IN (1, 2, 2, 7000)", 2),
        ("= 1 OR id = 1 OR id BETWEEN 1 AND 2", 2),
    ] {
        let statement = format!("SELECT COUNT(*) FROM sbtest1 WHERE id {range}");
        assert_eq!(rows(&mut me, &statement), [count.to_string()], "{range}");
    }
}

#[test]
fn selects_filter_sort_limit_and_add_up() {
    let mut me = three_rows(&bare());
    for (statement, expected) in [
        (
            "SELECT * FROM sbtest1",
            &["1 10 a x", "2 20 b x", "3 20 a y"][..],
        ),
        ("SELECT c, id FROM sbtest1 WHERE k IN (20)", &["b 2", "a 3"]),
        (
            "SELECT id FROM sbtest1 WHERE k BETWEEN 0 AND 10 OR k BETWEEN 20 AND 30",
            &["1", "2", "3"],
        ),
        ("SELECT id FROM sbtest1 WHERE k = 10 OR id = 3", &["1", "3"]),
        (
            "SELECT count(k) FROM sbtest1 WHERE k BETWEEN 15 AND 25",
            &["2"],
        ),
        (
            "SELECT COUNT(*), SUM(k), MIN(id), MAX(k) AS m FROM sbtest1",
            &["3 50 1 20"],
        ),
        (
            "SELECT SUM(k), COUNT(*) FROM sbtest1 WHERE id = 9",
            &["NULL 0"],
        ),
        ("SELECT DISTINCT c FROM sbtest1", &["a", "b"]),
        (
            "SELECT DISTINCT k, pad FROM sbtest1 ORDER BY k DESC LIMIT 2",
            &["20 x", "20 y"],
        ),
        ("SELECT id FROM sbtest1 ORDER BY c DESC LIMIT 1", &["2"]),
        ("SELECT id FROM sbtest.sbtest1 LIMIT 2", &["1", "2"]),
        ("SELECT id FROM sbtest1 WHERE k = -99999999999", &[]),
    ] {
        assert_eq!(rows(&mut me, statement), expected, "{statement}");
    }
}

#[test]
fn an_index_changes_no_answer() {
    let engine = bare();
    let [mut other] = sessions(&engine);
    let mut me = three_rows(&engine);
    run(&mut me, &[&CREATE.replace("sbtest1", "plain")]);
    run(
        &mut me,
        &["INSERT INTO plain(k, c, pad) VALUES(10,'a','x'),(20,'b','x'),(20,'a','y')"],
    );
    run(&mut me, &["BEGIN"]);
    for table in ["sbtest1", "plain"] {
        let rows = "(7, 20, 'n', ''), (-7, 21, 'n', ''), (1000000, 20, 'f', '')";
        run(
            &mut me,
            &[
                &format!("UPDATE {table} SET k=k+1 WHERE id=2"),
                &format!("DELETE FROM {table} WHERE id=1"),
                &format!("INSERT INTO {table} (id, k, c, pad) VALUES {rows}"),
            ],
        );
    }
    for session in [&mut me, &mut other] {
        let mut seen = |table: &str| {
            let statement = format!(
                "SELECT id FROM {table} WHERE k IN (10, 20) OR k BETWEEN 21 AND 22 ORDER BY id"
            );
            rows(session, &statement)
        };
        assert_eq!(seen("sbtest1"), seen("plain"));
    }
    run(&mut me, &["ROLLBACK"]);
    assert_eq!(
        rows(&mut me, "SELECT id FROM sbtest1 WHERE k IN (10, 20)"),
        ["1", "2", "3"]
    );
}

#[test]
fn inserts_and_deletes_are_seen_by_others_when_they_are_committed() {
    let engine = bare();
    let mut me = three_rows(&engine);
    let [mut other] = sessions(&engine);
    let before = all(&mut other);
    run(&mut me, &["BEGIN", "DELETE FROM sbtest1 WHERE id=2"]);
    run(
        &mut me,
        &["INSERT INTO sbtest1 (id, k, c, pad) VALUES (2, 9, 'new', ''), (50, 8, '', 'p')"],
    );
    assert_eq!(
        all(&mut me),
        ["1 10 a x", "2 9 new ", "3 20 a y", "50 8  p"]
    );
    assert_eq!(all(&mut other), before);
    assert_eq!(rows(&mut other, "SELECT COUNT(*) FROM sbtest1"), ["3"]);
    run(&mut me, &["ROLLBACK"]);
    assert_eq!(all(&mut me), before);
    run(&mut me, &["BEGIN", "DELETE FROM sbtest1 WHERE id=2"]);
    assert_eq!(ask(&mut me, "DELETE FROM sbtest1 WHERE id=2"), "OK\t0\n");
    assert_eq!(ask(&mut me, &increment(2)), "OK\t0\n");
    run(&mut me, &["COMMIT"]);
    assert_eq!(all(&mut other), ["1 10 a x", "3 20 a y"]);
    run(&mut me, &["BEGIN", "DELETE FROM sbtest1 WHERE id=1"]);
    drop(me);
    assert_eq!(all(&mut other), ["1 10 a x", "3 20 a y"]);
}

/// Several sessions insert, change, delete, commit and roll back, each its own rows, which lie next to
/// those of the others: what is there at the end is what each has committed, by either way of looking.
#[test]
fn what_was_committed_is_there_whatever_others_have_done_beside_it() {
    const SESSIONS: i64 = 4;
    for with_index in [false, true] {
        let engine = bare();
        let mut me = Session::new(&engine, 100);
        run(&mut me, &[CREATE]);
        if with_index {
            run(&mut me, &["CREATE INDEX k_1 ON sbtest1(k)"]);
        }
        let worker = |number: i64| {
            let mut session = Session::new(&engine, number as u64);
            let mut random = number as u64 + 1;
            let mut next = move |n: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) % n
            };
            let mut committed = std::collections::BTreeMap::new();
            for _ in 0..60 {
                let mut now = committed.clone();
                run(&mut session, &["BEGIN"]);
                for _ in 0..next(6) {
                    // Some far off, where rows are kept in another way until others come near.
                    let far = [0, 0, 30_000, -100][next(4) as usize];
                    let id = far + 1 + number + SESSIONS * next(20) as i64;
                    let k = next(10) as i64;
                    let statement = match now.get_mut(&id) {
                        None => {
                            now.insert(id, k);
                            format!("INSERT INTO sbtest1(id, k) VALUES({id}, {k})")
                        }
                        Some(k) if next(2) == 0 => {
                            *k += 1;
                            format!("UPDATE sbtest1 SET k=k+1 WHERE id={id}")
                        }
                        Some(_) => {
                            now.remove(&id);
                            format!("DELETE FROM sbtest1 WHERE id={id}")
                        }
                    };
                    assert_eq!(ask(&mut session, &statement), "OK\t1\n", "{statement}");
                }
                if next(3) > 0 {
                    run(&mut session, &["COMMIT"]);
                    committed = now;
                } else {
                    run(&mut session, &["ROLLBACK"]);
                }
            }
            committed
        };
        let expected: std::collections::BTreeMap<i64, i64> = thread::scope(|scope| {
            let workers: Vec<_> = (0..SESSIONS)
                .map(|number| scope.spawn(move || worker(number)))
                .collect();
            let mut each = workers.into_iter();
            let mut all = std::collections::BTreeMap::new();
            each.by_ref()
                .for_each(|one| all.extend(one.join().expect("it ends")));
            all
        });
        let lines = |rows: &mut dyn Iterator<Item = (&i64, &i64)>| -> Vec<String> {
            rows.map(|(id, k)| format!("{id} {k}")).collect()
        };
        let found = rows(&mut me, "SELECT id, k FROM sbtest1 ORDER BY id");
        assert_eq!(found, lines(&mut expected.iter()));
        for k in 0..12 {
            let by_k = format!("SELECT id, k FROM sbtest1 WHERE k BETWEEN {k} AND {k} ORDER BY id");
            let with = |(_, value): &(&i64, &i64)| **value == k;
            assert_eq!(
                rows(&mut me, &by_k),
                lines(&mut expected.iter().filter(with))
            );
        }
        assert!(!me.holds_locks());
    }
}

#[test]
fn ids_that_are_not_given_are_chosen_and_go_on_behind_the_largest() {
    let engine = bare();
    let mut me = three_rows(&engine);
    run(&mut me, &["INSERT INTO sbtest1 VALUES (NULL, 1, 'n', '')"]);
    assert_eq!(rows(&mut me, "SELECT LAST_INSERT_ID()"), ["4"]);
    run(
        &mut me,
        &["INSERT INTO sbtest1 (id, k) VALUES (0, 1), (DEFAULT, 1)"],
    );
    assert_eq!(rows(&mut me, "SELECT LAST_INSERT_ID()"), ["5"]);
    run(
        &mut me,
        &[
            "INSERT INTO sbtest1 (id) VALUES (1000)",
            "INSERT INTO sbtest1 (pad) VALUES ('last')",
        ],
    );
    assert_eq!(
        rows(&mut me, "SELECT id FROM sbtest1 WHERE id > 3"),
        ["4", "5", "6", "1000", "1001"]
    );
    run(&mut me, &["INSERT INTO sbtest1 (id) VALUES (2147483647)"]);
    assert_eq!(
        code(&ask(&mut me, "INSERT INTO sbtest1 (k) VALUES (1)")),
        1467
    );
    assert_eq!(
        code(&ask(
            &mut me,
            "INSERT INTO sbtest1 (id) VALUES (2147483648)"
        )),
        1264
    );
}

#[test]
fn ids_far_apart_and_below_zero_are_rows_as_any_other() {
    let engine = bare();
    let mut me = three_rows(&engine);
    let ids = [-2147483648i64, -1, 5000, 20_000, 1_000_000, 2_000_000_000];
    for id in ids {
        run(
            &mut me,
            &[&format!("INSERT INTO sbtest1 (id, k) VALUES ({id}, 7)")],
        );
    }
    // What was far off is reached by those that come after the others.
    for id in 4..=6000 {
        let insert = format!("INSERT INTO sbtest1 (id, k) VALUES ({id}, 1)");
        assert_eq!(
            code(&ask(&mut me, &insert)),
            if id == 5000 { 1062 } else { 0 }
        );
    }
    let seven = rows(&mut me, "SELECT id FROM sbtest1 WHERE k = 7");
    assert_eq!(seven, ids.map(|id| id.to_string()));
    for id in ids {
        assert_eq!(
            ask(&mut me, &format!("DELETE FROM sbtest1 WHERE id={id}")),
            "OK\t1\n"
        );
    }
    assert_eq!(
        rows(&mut me, "SELECT COUNT(*), MIN(id), MAX(id) FROM sbtest1"),
        ["5999 1 6000"]
    );
}

#[test]
fn a_statement_that_fails_does_nothing_of_it() {
    let engine = bare();
    let mut me = three_rows(&engine);
    let before = all(&mut me);
    let duplicate = "INSERT INTO sbtest1 (id, k) VALUES (10, 1), (11, 1), (3, 1), (12, 1)";
    let long = format!(
        "INSERT INTO sbtest1 (id, pad) VALUES (10, ''), (11, '{}')",
        "x".repeat(61)
    );
    for begin in [false, true] {
        if begin {
            run(&mut me, &["BEGIN", "INSERT INTO sbtest1 (id) VALUES (20)"]);
        }
        assert_eq!(
            ask(&mut me, duplicate),
            "ERR\t1062\tDuplicate entry '3' for key 'PRIMARY'\n"
        );
        assert_eq!(code(&ask(&mut me, &long)), 1406);
        assert_eq!(me.in_transaction(), begin);
        if begin {
            assert_eq!(
                all(&mut me).len(),
                before.len() + 1,
                "what was before it stays"
            );
            run(&mut me, &["ROLLBACK"]);
        }
        assert_eq!(all(&mut me), before);
        assert!(!me.holds_locks());
    }
}

#[test]
fn an_insert_waits_for_whoever_has_inserted_or_deleted_the_row() {
    let engine = engine();
    for (first, outcome, expected) in [
        ("DELETE FROM sbtest1 WHERE id=5", "COMMIT", 0),
        ("DELETE FROM sbtest1 WHERE id=5", "ROLLBACK", 1062),
        ("INSERT INTO sbtest1 (id) VALUES (5)", "ROLLBACK", 0),
        ("INSERT INTO sbtest1 (id) VALUES (5)", "COMMIT", 1062),
    ] {
        let [mut holder, mut waiter] = sessions(&engine);
        ask(&mut holder, "INSERT INTO sbtest1 (id) VALUES (5)");
        if first.starts_with("INSERT") {
            run(&mut holder, &["DELETE FROM sbtest1 WHERE id=5"]);
        }
        run(&mut holder, &["BEGIN", first]);
        let reply = thread::scope(|scope| {
            let waiting = scope.spawn(|| ask(&mut waiter, "INSERT INTO sbtest1 (id) VALUES (5)"));
            until_queued(&engine, 5, 1);
            run(&mut holder, &[outcome]);
            waiting.join().expect("it got the lock")
        });
        assert_eq!(code(&reply), expected, "{first}, {outcome}");
        assert!(!waiter.holds_locks());
    }
}

#[test]
fn an_update_that_waited_for_a_delete_finds_no_row() {
    let engine = engine();
    let [mut holder, mut waiter] = sessions(&engine);
    run(&mut holder, &["BEGIN", "DELETE FROM sbtest1 WHERE id=5"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&mut waiter, &increment(5)));
        until_queued(&engine, 5, 1);
        run(&mut holder, &["COMMIT"]);
        assert_eq!(waiting.join().expect("it got the lock"), "OK\t0\n");
    });
    assert!(!waiter.holds_locks());
}

#[test]
fn a_multi_row_insert_that_times_out_keeps_nothing_but_the_transaction() {
    let engine = patient_for(Duration::from_millis(20));
    let [mut holder, mut waiter] = sessions(&engine);
    run(
        &mut holder,
        &["BEGIN", "INSERT INTO sbtest1 (id) VALUES (2001)"],
    );
    run(&mut waiter, &["BEGIN", &increment(4)]);
    let insert = "INSERT INTO sbtest1 (id) VALUES (2000), (2001)";
    assert_eq!(code(&ask(&mut waiter, insert)), 1205);
    assert_eq!(
        rows(&mut waiter, "SELECT id FROM sbtest1 WHERE id > 1000"),
        [""; 0]
    );
    run(&mut holder, &["ROLLBACK"]);
    run(&mut waiter, &[insert, "COMMIT"]);
    assert_eq!(
        rows(&mut holder, "SELECT id FROM sbtest1 WHERE id > 1000"),
        ["2000", "2001"]
    );
}

#[test]
fn tables_come_and_go() {
    let engine = bare();
    let [mut me, mut other] = sessions(&engine);
    assert_eq!(
        code(&ask(&mut me, "SELECT c FROM sbtest1 WHERE id=1")),
        1146
    );
    run(&mut me, &[CREATE]);
    assert_eq!(code(&ask(&mut other, CREATE)), 1050);
    run(
        &mut other,
        &[&CREATE.replace("TABLE", "TABLE IF NOT EXISTS")],
    );
    run(
        &mut other,
        &[
            "INSERT INTO SBTEST1 (k) VALUES (1)",
            "CREATE INDEX k_1 ON sbtest1(k)",
        ],
    );
    assert_eq!(code(&ask(&mut me, "CREATE INDEX k_1 ON sbtest1(k)")), 1061);
    run(
        &mut me,
        &[
            &CREATE.replace("sbtest1", "`Other`"),
            "INSERT INTO other (k) VALUES (1)",
        ],
    );
    assert_eq!(rows(&mut me, "SHOW TABLES")[1..], ["other", "sbtest1"]);
    // A transaction that has a row of it goes on, and its row is gone.
    run(&mut other, &["BEGIN", &increment(1)]);
    run(
        &mut me,
        &["DROP TABLE sbtest1", "DROP TABLE IF EXISTS sbtest1"],
    );
    assert_eq!(code(&ask(&mut me, "DROP TABLE sbtest1")), 1146);
    assert_eq!(code(&ask(&mut other, &increment(1))), 1146);
    run(&mut me, &[CREATE]);
    assert_eq!(all(&mut other), [""; 0]);
    run(&mut other, &["ROLLBACK"]);
    assert_eq!(all(&mut other), [""; 0]);
    for statement in [
        "CREATE TABLE x (id INT PRIMARY KEY)",
        "CREATE TABLE x (id INT, k INT, c CHAR(10), pad CHAR(10))",
        "CREATE TABLE x (id INT PRIMARY KEY, k INT, c CHAR(200), pad CHAR(10))",
        "CREATE TABLE x (id INT PRIMARY KEY, name TEXT)",
        "CREATE INDEX c ON sbtest1(c)",
    ] {
        assert_eq!(code(&ask(&mut me, statement)), 1235, "{statement}");
    }
}

#[test]
fn sessions_that_wait_for_a_row_of_a_dropped_table_are_let_go() {
    let engine = engine();
    let [mut holder, mut waiter, mut dropper] = sessions(&engine);
    run(&mut holder, &["BEGIN", &increment(5)]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&mut waiter, &increment(5)));
        until_queued(&engine, 5, 1);
        run(
            &mut dropper,
            &[
                "DROP TABLE sbtest1",
                CREATE,
                "INSERT INTO sbtest1 (id) VALUES (5)",
            ],
        );
        run(&mut holder, &["COMMIT"]);
        assert_eq!(waiting.join().expect("it was let go"), "OK\t0\n");
    });
    assert_eq!(rows(&mut dropper, "SELECT k FROM sbtest1"), ["0"]);
}

#[test]
fn without_autocommit_every_statement_begins_a_transaction() {
    let engine = bare();
    let mut me = three_rows(&engine);
    let [mut other] = sessions(&engine);
    run(&mut me, &["SET autocommit=0"]);
    assert!(!me.in_transaction());
    run(&mut me, &[&increment(1)]);
    assert!(me.in_transaction());
    run(
        &mut me,
        &["ROLLBACK", &increment(1), "COMMIT", &increment(1)],
    );
    assert_eq!(rows(&mut other, "SELECT k FROM sbtest1 WHERE id=1"), ["11"]);
    run(&mut me, &["SET @@session.autocommit = ON"]);
    assert!(!me.in_transaction());
    assert_eq!(rows(&mut other, "SELECT k FROM sbtest1 WHERE id=1"), ["12"]);
}

#[test]
fn what_makes_or_unmakes_a_table_commits_what_is_open_even_if_it_fails() {
    for commit_delay in [Duration::ZERO, Duration::from_micros(100)] {
        let engine = Engine::new(EngineConfig {
            tables: 0,
            commit_delay,
            ..EngineConfig::default()
        });
        let engine = engine.expect("a thread can be had");
        let mut me = three_rows(&engine);
        let [mut other] = sessions(&engine);
        for (number, (statement, error)) in [
            (CREATE, 1050),
            ("DROP TABLE sbtest9", 1146),
            ("CREATE INDEX k_9 ON sbtest9(k)", 1146),
        ]
        .into_iter()
        .enumerate()
        {
            run(&mut me, &["BEGIN", &increment(1)]);
            assert_eq!(code(&ask(&mut me, statement)), error, "{statement}");
            assert!(!me.in_transaction() && !me.holds_locks(), "{statement}");
            let k = rows(&mut other, "SELECT k FROM sbtest1 WHERE id=1");
            assert_eq!(k, [(11 + number).to_string()], "{statement}");
        }
    }
}

#[test]
fn a_set_of_several_variables_sets_all_or_none() {
    let engine = bare();
    let mut me = three_rows(&engine);
    run(
        &mut me,
        &["SET autocommit=0, lock_wait_timeout=7", &increment(1)],
    );
    for wrong in [
        "SET autocommit=1, thread_pool_priority=high, lock_wait_timeout=1, no_such_variable=1",
        "SET GLOBAL lock_wait_timeout=9, autocommit=1, lock_wait_timeout=soon",
    ] {
        assert!(
            [1193, 1231].contains(&code(&ask(&mut me, wrong))),
            "{wrong}"
        );
        assert!(me.in_transaction(), "it was committed: {wrong}");
        let now = "SELECT @@autocommit, @@lock_wait_timeout, @@thread_pool_priority";
        assert_eq!(rows(&mut me, now), ["0 7 auto"], "{wrong}");
        let mut new = Session::new(&engine, 7);
        assert_eq!(rows(&mut new, "SELECT @@lock_wait_timeout"), ["50"]);
    }
}

/// A server without variables, of which another session sets one of the engine's whenever it is asked.
struct Meddler(std::cell::RefCell<Session>);

impl Admin for Meddler {
    fn set_variable(&self, _: &str, _: &str) -> Result<(), crate::admin::Refused> {
        run(
            &mut self.0.borrow_mut(),
            &["SET GLOBAL lock_wait_timeout=9"],
        );
        Err(crate::admin::Refused::Unknown)
    }
}

#[test]
fn a_set_that_fails_puts_back_what_it_has_set_and_nothing_else() {
    let engine = bare();
    let [mut me, other] = sessions(&engine);
    let mut out = Vec::new();
    let wrong = b"SET lock_wait_timeout=1, GLOBAL no_such_variable=1";
    let meddler = Meddler(other.into());
    let flow = me.execute(wrong, &mut out, &meddler);
    assert!(matches!(flow, Ok(Flow::Continue)), "{flow:?}");
    assert_eq!(code(str::from_utf8(&out).expect("text")), 1193);
    let now = "SELECT @@lock_wait_timeout, @@global.lock_wait_timeout";
    assert_eq!(rows(&mut me, now), ["50 9"]);
}

#[test]
fn the_time_that_new_sessions_wait_for_a_row_can_be_set() {
    let engine = bare();
    let [mut before] = sessions(&engine);
    run(&mut before, &["SET GLOBAL innodb_lock_wait_timeout=3"]);
    let mut after = Session::new(&engine, 7);
    let asked = "SELECT @@innodb_lock_wait_timeout, @@global.innodb_lock_wait_timeout";
    assert_eq!(rows(&mut before, asked), ["50 3"]);
    assert_eq!(rows(&mut after, asked), ["3 3"]);
}

#[test]
fn clients_get_what_they_ask_for_when_they_connect() {
    let [mut me] = sessions(&bare());
    run(
        &mut me,
        &[
            "SET NAMES utf8mb4",
            "SET sql_mode='ANSI', time_zone = '+00:00'",
            "USE sbtest",
        ],
    );
    assert_eq!(code(&ask(&mut me, "USE mysql")), 1049);
    for (statement, expected) in [
        (
            "select @@version_comment limit 1",
            "sqlish, served by thread-group-pool",
        ),
        ("SELECT DATABASE(), CONNECTION_ID()", "sbtest 1"),
        ("SELECT 1, 'a\\tb' AS b, NULL", "1 a\\tb NULL"),
        ("SELECT @@autocommit, @@global.sql_mode", "1 "),
        ("SELECT ROW_COUNT()", "-1"),
    ] {
        assert_eq!(rows(&mut me, statement), [expected], "{statement}");
    }
    let version = rows(&mut me, "SHOW VARIABLES LIKE 'version'");
    assert_eq!(version[1], format!("version {}", variables::VERSION));
    assert_eq!(
        rows(&mut me, "SHOW VARIABLES WHERE Variable_name = 'nothing'").len(),
        1
    );
    assert_eq!(code(&ask(&mut me, "SELECT @@no_such_variable")), 1193);
    assert_eq!(code(&ask(&mut me, "SET version = '1'")), 1238);
    assert_eq!(code(&ask(&mut me, "SELECT c FROM mysql.user")), 1049);
    assert_eq!(
        code(&ask(&mut me, "SELECT * FROM information_schema.nothing")),
        1109
    );
}
