//! What those who follow the commits are promised.

mod common;

use std::sync::Arc;
use std::time::Duration;

use sqlish::{Engine, EngineConfig, SqlishHandler};
use thread_group_pool::test_util::{Chaos, Client, Kit, KitBuilder};
use thread_group_pool::{CloseReason, PoolConfig, under_both_schedulers};

use common::{code, small};

fn serve(kit: KitBuilder, engine: EngineConfig) -> Kit<SqlishHandler> {
    let engine = Engine::new(engine).expect("a thread is left");
    kit.serve(Arc::new(SqlishHandler::new(engine)))
}

fn greeted(kit: &Kit<SqlishHandler>) -> Client {
    let mut client = kit.client();
    assert!(client.line().starts_with("READY\t"));
    client
}

fn subscriber(kit: &Kit<SqlishHandler>) -> Client {
    let mut client = greeted(kit);
    client.send("SUBSCRIBE\n");
    assert!(client.line().starts_with("ROW\tsubscribed\t"));
    client
}

/// Runs statements whose reply is one line.
fn run(client: &mut Client, statements: &[&str]) {
    for statement in statements {
        client.send(format!("{statement}\n"));
        let reply = client.line();
        assert!(reply.starts_with("OK"), "{statement}: {reply}");
    }
}

const ONE: &str = "UPDATE sbtest1 SET k=k+1 WHERE id=1";
const TWO: &str = "UPDATE sbtest1 SET k=k+1 WHERE id=2";

under_both_schedulers! {
    fn each_commit_is_told_of_in_order_and_a_rollback_is_not(kind) {
        for (commit_delay, chaos) in [
            (Duration::ZERO, Chaos::default()),
            (Duration::from_millis(1), Chaos::default()),
            (Duration::ZERO, Chaos::all()),
        ] {
            let engine = EngineConfig { commit_delay, ..small() };
            let kit = serve(kind.kit().chaos(chaos), engine);
            let (mut first, mut second) = (subscriber(&kit), subscriber(&kit));
            let mut client = greeted(&kit);
            run(&mut client, &["BEGIN", ONE, "ROLLBACK", TWO, "BEGIN", ONE, TWO, "COMMIT", "COMMIT"]);
            let mut late = subscriber(&kit);
            // This commits the one that is open.
            run(&mut client, &["BEGIN", ONE, "BEGIN", TWO, "ROLLBACK"]);
            let id = client.id();
            let lines = [
                format!("ROW\t0\t{id}\tsbtest1:2"),
                format!("ROW\t1\t{id}\tsbtest1:1\tsbtest1:2"),
                format!("ROW\t2\t{id}\tsbtest1:1"),
            ];
            for follower in [&mut first, &mut second] {
                assert_eq!([(); 3].map(|()| follower.line()), lines);
            }
            assert_eq!(late.line(), lines[2]);
            drop((first, second, late));
            // They are noticed to have gone by the next commits.
            while kit.handle().stats().connections > 1 {
                run(&mut client, &[ONE]);
            }
            drop(client);
            kit.finish();
        }
    }

    fn followers_are_outside_gate_and_cap_and_a_kill_ends_them(kind) {
        // As many as there may be threads, and more.
        let pool = PoolConfig::default().groups(1).max_threads(2);
        let kit = serve(kind.kit().pool(pool), small());
        let mut followers: Vec<_> = (0..5).map(|_| subscriber(&kit)).collect();
        let mut client = greeted(&kit);
        run(&mut client, &["PING", ONE]);
        for follower in &mut followers {
            assert!(follower.line().ends_with("\tsbtest1:1"));
        }
        for (which, statement, words) in [(0, "KILL", 1927), (1, "KILL QUERY", 1317)] {
            let follower = &mut followers[which];
            run(&mut client, &[&format!("{statement} {}", follower.id())]);
            assert_eq!(code(&follower.rest()), words);
        }
        run(&mut client, &[ONE]);
        for follower in &mut followers[2..] {
            assert!(follower.line().ends_with("\tsbtest1:1"));
        }
        for follower in &followers[2..] {
            run(&mut client, &[&format!("KILL {}", follower.id())]);
        }
        drop(client);
        kit.finish();
    }

    fn a_subscriber_gives_up_its_locks(kind) {
        let kit = serve(kind.kit(), small());
        let mut follower = greeted(&kit);
        run(&mut follower, &["BEGIN", ONE]);
        follower.send("SELECT GET_LOCK('mine', 0)\n");
        assert_eq!((follower.line(), follower.line()), ("ROW\t1".into(), "OK".into()));
        follower.send("SUBSCRIBE\n");
        assert!(follower.line().starts_with("ROW\tsubscribed"));
        let mut client = greeted(&kit);
        run(&mut client, &[ONE]);
        client.send("SELECT IS_FREE_LOCK('mine')\n");
        assert_eq!(client.line(), "ROW\t1");
        client.line();
        run(&mut client, &[&format!("KILL {}", follower.id())]);
        drop(client);
        kit.finish();
    }

    fn one_that_is_too_slow_is_cut_off_and_holds_up_nobody(kind) {
        let kit = serve(kind.kit(), small());
        let mut slow = subscriber(&kit);
        let mut client = greeted(&kit);
        // More than it may lag, and than fits into its socket.
        const COMMITS: usize = 40_000;
        let statements = format!("{ONE}\n").repeat(500);
        for _ in 0..COMMITS / 500 {
            client.send(&statements);
            for _ in 0..500 {
                assert_eq!(client.line(), "OK\t1");
            }
        }
        let got = slow.rest();
        let (rows, end): (Vec<_>, Vec<_>) = got.lines().partition(|line| line.starts_with("ROW"));
        assert!(rows.len() < COMMITS - 8192, "{}", rows.len());
        for (number, row) in rows.iter().enumerate() {
            assert!(row.starts_with(&format!("ROW\t{number}\t")), "{row}");
        }
        assert_eq!(end.len(), 1, "{end:?}");
        assert_eq!(code(end[0]), 1236);
        drop(client);
        let reasons = kit.finish();
        assert!(reasons.contains(&CloseReason::HandlerClosed), "{reasons:?}");
    }

    fn one_that_takes_nothing_for_the_write_time_out_is_closed(kind) {
        let kit = serve(kind.kit(), small());
        let slow = subscriber(&kit);
        let mut client = greeted(&kit);
        let statements = format!("{ONE}\n").repeat(500);
        let gone = || kit.handle().stats().connections == 1;
        // As soon as its socket is full, and it is.
        while !gone() {
            client.send(&statements);
            for _ in 0..500 {
                assert_eq!(client.line(), "OK\t1");
            }
            kit.advance(Duration::from_secs(60));
        }
        drop((client, slow));
        let reasons = kit.finish();
        assert!(reasons.contains(&CloseReason::WriteTimeout), "{reasons:?}");
    }
}

#[test]
fn a_drain_does_not_wait_for_a_subscriber() {
    for kind in [common::Kind::Pool, common::Kind::PerConnection] {
        let site = common::Site::new(kind, small(), thread_group_pool::Limits::default());
        let mut follower = site.connect(common::Transport::Unix);
        follower.send("SUBSCRIBE\n");
        assert!(follower.line().starts_with("ROW\tsubscribed"));
        // It would be killed when that is over.
        let report = site.server.drain(Duration::from_secs(60));
        assert!(report.clean() && report.finished == 1, "{report}");
        assert_eq!(code(&follower.rest()), 1053);
    }
}

#[test]
fn a_server_that_cannot_let_a_connection_go_says_so() {
    let engine = Engine::new(small()).expect("no thread is needed");
    let mut session = sqlish::Session::new(&engine, 1);
    let mut out = Vec::new();
    let flow = session.execute(b"SUBSCRIBE", &mut out, &sqlish::NoAdmin);
    assert!(matches!(flow, Ok(sqlish::Flow::Continue)));
    assert_eq!(code(&String::from_utf8_lossy(&out)), 1235);
}
