//! What the `mysql` crate, a client that knows nothing of ours, finds: text and binary rows, transactions,
//! errors with their numbers, and a connection that is lost.

mod common;

use mysql::prelude::Queryable;
use mysql::{Conn, Error, Opts, OptsBuilder, TxOpts, Value};
use thread_group_pool::Limits;

use common::{PATIENCE, Site, Transport, everywhere, small};

fn under_all(test: impl Fn(&Site, Transport)) {
    everywhere(&Limits::default(), &small(), test);
}

fn options(site: &Site, transport: Transport) -> Opts {
    let options = OptsBuilder::new()
        .user(Some("ann"))
        .prefer_socket(false)
        .read_timeout(Some(PATIENCE))
        .write_timeout(Some(PATIENCE));
    match transport {
        Transport::Tcp => {
            let at = site.mysql_tcp();
            let ip = Some(at.ip().to_string());
            options.ip_or_hostname(ip).tcp_port(at.port())
        }
        Transport::Unix => {
            let path = site.mysql_path().display().to_string();
            options.socket(Some(path))
        }
    }
    .into()
}

fn connect(site: &Site, transport: Transport) -> Conn {
    Conn::new(options(site, transport)).expect("it logs in")
}

/// The number and the state of the server's error.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: mysql::Result<T>) -> (u16, String) {
    match result {
        Err(Error::MySqlError(error)) => (error.code, error.state),
        other => panic!("no error of the server's: {other:?}"),
    }
}

const K: &str = "SELECT k FROM sbtest1 WHERE id=?";

fn k(conn: &mut Conn, id: u32) -> Option<i64> {
    conn.exec_first(K, (id,)).expect("a reply")
}

#[test]
fn both_protocols_show_the_same_rows() {
    under_all(|site, transport| {
        let mut conn = connect(site, transport);
        for id in [1, 7, 1000] {
            let text = format!("SELECT k FROM sbtest1 WHERE id={id}");
            let text: Option<i64> = conn.query_first(text).expect("a reply");
            assert!(text.is_some());
            assert_eq!(k(&mut conn, id), text);
        }
        assert_eq!(k(&mut conn, 1001), None);
        let between = "SELECT c FROM sbtest1 WHERE id BETWEEN 11 AND 110 ORDER BY c";
        let text: Vec<String> = conn.query(between).expect("rows");
        let between = "SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ? ORDER BY c";
        let binary: Vec<String> = conn.exec(between, (11, 110)).expect("rows");
        assert_eq!((text.len(), &text), (100, &binary));
        assert!(text.is_sorted());
        let sum = "SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN ? AND ?";
        let sum: Option<i64> = conn.exec_first(sum, (1, 3)).expect("a sum");
        let each = (1..=3).map(|id| k(&mut conn, id).unwrap_or_default());
        assert_eq!(sum, Some(each.sum()));
    });
}

#[test]
fn what_is_written_is_counted_and_read_back() {
    under_all(|site, transport| {
        let mut conn = connect(site, transport);
        let insert = "INSERT INTO sbtest1 (id, k, c, pad) VALUES (?, ?, ?, ?)";
        let odd = "it's \\ \"odd\" \u{fc}";
        conn.exec_drop(insert, (5001, -3, odd, "")).expect("done");
        assert_eq!(conn.affected_rows(), 1);
        assert_eq!(k(&mut conn, 5001), Some(-3));
        let c = "SELECT c FROM sbtest1 WHERE id=5001";
        assert_eq!(conn.query_first(c).expect("a row"), Some(odd.to_owned()));
        let update = "UPDATE sbtest1 SET k=k+1 WHERE id=?";
        // One that is prepared once, and run often.
        let update = conn.prep(update).expect("prepared");
        for n in 0..10 {
            conn.exec_drop(&update, (5001,)).expect("done");
            assert_eq!(k(&mut conn, 5001), Some(n - 2));
        }
        conn.close(update).expect("closed");
        conn.query_drop("DELETE FROM sbtest1 WHERE id=5001")
            .expect("done");
        assert_eq!(conn.affected_rows(), 1);
        conn.query_drop("DELETE FROM sbtest1 WHERE id=5001")
            .expect("done");
        assert_eq!(conn.affected_rows(), 0);
    });
}

#[test]
fn a_transaction_is_all_or_nothing() {
    const UPDATE: &str = "UPDATE sbtest1 SET k=k+1 WHERE id=?";
    under_all(|site, transport| {
        let mut conn = connect(site, transport);
        let mut other = connect(site, transport);
        let before = k(&mut other, 1).expect("a row");
        for (commits, after) in [(false, before), (true, before + 1)] {
            let mut transaction = conn.start_transaction(TxOpts::default()).expect("begun");
            transaction.exec_drop(UPDATE, (1,)).expect("done");
            let mine: Option<i64> = transaction.exec_first(K, (1,)).expect("a row");
            assert_eq!((mine, k(&mut other, 1)), (Some(before + 1), Some(before)));
            if commits {
                transaction.commit().expect("committed");
            } else {
                // As one that is dropped.
                drop(transaction);
            }
            assert_eq!(k(&mut other, 1), Some(after));
        }
        // A connection that is made new has no transaction either, and holds no lock.
        conn.query_drop("BEGIN").expect("begun");
        conn.exec_drop(UPDATE, (2,)).expect("done");
        conn.reset().expect("reset");
        other.exec_drop(UPDATE, (2,)).expect("nobody holds it");
    });
}

#[test]
fn a_prepared_statement_finds_the_table_that_there_is_now() {
    const CREATE: &str = "CREATE TABLE t(id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT '0' NOT NULL, \
                          c CHAR(120) DEFAULT '' NOT NULL, pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY KEY (id))";
    under_all(|site, transport| {
        let mut mine = connect(site, transport);
        let mut others = connect(site, transport);
        let select = "SELECT COUNT(*), SUM(k) FROM t WHERE id BETWEEN ? AND ?";
        let gone = (1146, "42S02".to_owned());
        assert_eq!(refused(mine.prep(select)), gone);
        others.query_drop(CREATE).expect("it is made");
        let select = mine.prep(select).expect("it is prepared");
        others.query_drop("DROP TABLE t").expect("it is dropped");
        let ask = |mine: &mut Conn| mine.exec_first::<(i64, i64), _, _>(&select, (1, 9));
        assert_eq!(refused(ask(&mut mine)), gone);
        for k in [1, 2] {
            let insert = format!("INSERT INTO t(k) VALUES({k}),({k})");
            others.query_drop(CREATE).expect("it is made");
            others.query_drop(insert).expect("it has two rows");
            let found = Some((2, 2 * k));
            assert_eq!(ask(&mut mine).expect("it is there"), found);
            let index = "CREATE INDEX k_t ON t(k)";
            others.query_drop(index).expect("it is indexed");
            assert_eq!(ask(&mut mine).expect("it is there"), found);
            others.query_drop("DROP TABLE t").expect("it is dropped");
            assert_eq!(refused(ask(&mut mine)), gone);
        }
    });
}

#[test]
fn errors_have_mysqls_numbers_and_the_connection_goes_on() {
    under_all(|site, transport| {
        let mut conn = connect(site, transport);
        let known = [
            ("SELEC 1", 1064, "42000"),
            ("SELECT k FROM nothing WHERE id=1", 1146, "42S02"),
            ("SELECT x FROM sbtest1 WHERE id=1", 1054, "42S22"),
            (
                "INSERT INTO sbtest1 (id, k, c, pad) VALUES (1, 1, 'c', 'p')",
                1062,
                "23000",
            ),
            ("KILL 4000000000", 1094, "HY000"),
        ];
        for (statement, code, state) in known {
            let expected = (code, state.to_owned());
            assert_eq!(refused(conn.query_drop(statement)), expected, "{statement}");
            conn.ping().expect("it goes on");
        }
        assert_eq!(refused(conn.prep("SELEC ?")), (1064, "42000".to_owned()));
        let few = conn.exec_first::<Value, _, _>(K, ());
        assert!(few.is_err(), "{few:?}");
        assert_eq!(conn.query_first("SELECT 1").expect("a row"), Some(1));
    });
}

#[test]
fn a_lost_connection_is_an_error_and_a_new_one_works() {
    under_all(|site, transport| {
        let mut boss = connect(site, transport);
        let mut conn = connect(site, transport);
        conn.query_drop("BEGIN").expect("begun");
        conn.query_drop("UPDATE sbtest1 SET k=k+1 WHERE id=9")
            .expect("done");
        boss.query_drop(format!("KILL {}", conn.connection_id()))
            .expect("killed");
        // It is told so, if it looks before it writes; and the second time there is nobody.
        let lost = conn.query_drop("SELECT 1");
        assert!(lost.is_err());
        assert!(conn.ping().is_err());
        drop(conn);
        // What it had locked is free, and what it had written is not there.
        let mut conn = connect(site, transport);
        conn.query_drop("UPDATE sbtest1 SET k=k+1 WHERE id=9")
            .expect("nobody holds it");
        assert_eq!(conn.affected_rows(), 1);
    });
}
