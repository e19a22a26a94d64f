//! A real engine under the pool: nothing is lost, a kill ends what runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use sqlite_server::{BUSY, Sqlite};
use thread_group_pool::test_util::{Chaos, Client, Kit, KitBuilder};
use thread_group_pool::{CloseReason, under_both_schedulers};

/// A database of its own, gone with this.
struct Database(PathBuf);

impl Database {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "tgp-sqlite-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder can be made");
        Self(folder)
    }

    fn serve(&self, kit: KitBuilder) -> Kit<Sqlite> {
        kit.serve(Arc::new(
            Sqlite::new(self.0.join("db")).expect("it can be made"),
        ))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn greeted(kit: &Kit<Sqlite>) -> Client {
    let mut client = kit.client();
    assert_eq!(client.line(), format!("READY\t{}", client.id()));
    client
}

/// The lines of a reply.
fn ask(client: &mut Client, statement: &str) -> Vec<String> {
    client.send(format!("{statement}\n"));
    reply(client)
}

fn reply(client: &mut Client) -> Vec<String> {
    let mut lines = vec![client.line()];
    while lines.last().is_some_and(|line| line.starts_with("ROW")) {
        lines.push(client.line());
    }
    lines
}

#[track_caller]
fn run(client: &mut Client, statements: &[&str]) {
    for statement in statements {
        let reply = ask(client, statement);
        assert!(reply[0].starts_with("OK"), "{statement}: {reply:?}");
    }
}

fn value(client: &mut Client, statement: &str) -> i64 {
    let reply = ask(client, statement);
    assert_eq!(reply.len(), 2, "{reply:?}");
    reply[0][4..].parse().expect("a number")
}

const COUNTER: [&str; 2] = ["CREATE TABLE counter (n)", "INSERT INTO counter VALUES (0)"];

/// How long a kill may take; measured here and shown with `--nocapture`, and not asserted: the machine may be busy.
const KILL_BAR: Duration = Duration::from_millis(100);

/// More than a command has that is about to ask whether it is killed when it begins.
const A_WHILE: Duration = Duration::from_millis(10);

/// Goes on for ever.
const LONG: &str =
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) SELECT count(*) FROM c";

under_both_schedulers! {
    fn no_update_is_lost_and_no_reader_sees_time_go_back(kind) {
        const WRITERS: i64 = 6;
        const ROUNDS: i64 = 30;
        let database = Database::new();
        let kit = database.serve(kind.kit());
        run(&mut greeted(&kit), &COUNTER);
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    let mut client = greeted(&kit);
                    for _ in 0..ROUNDS {
                        run(&mut client, &["BEGIN IMMEDIATE"]);
                        // The sum is the client's, so that a transaction is all that keeps it right.
                        let n = value(&mut client, "SELECT n FROM counter");
                        run(&mut client, &[&format!("UPDATE counter SET n = {}", n + 1), "COMMIT"]);
                    }
                });
            }
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = greeted(&kit);
                    let mut seen = 0;
                    while seen < WRITERS * ROUNDS {
                        let n = value(&mut client, "SELECT n FROM counter");
                        assert!(n >= seen, "{n} after {seen}");
                        seen = n;
                    }
                });
            }
        });
        let counted = value(&mut greeted(&kit), "SELECT n FROM counter");
        let lost = WRITERS * ROUNDS - counted;
        eprintln!("{kind:?}: {lost} of {} updates lost, bar 0", WRITERS * ROUNDS);
        assert_eq!(lost, 0);
        // They did meet, and said so.
        let waits = kit.handle().stats().waits;
        assert!(waits.iter().any(|w| w.kind.to_string() == "other" || w.kind == BUSY), "{waits:?}");
        kit.finish();
    }

    fn a_kill_ends_a_long_query_and_the_connection_goes_on(kind) {
        let database = Database::new();
        let kit = database.serve(kind.kit());
        let (mut victim, mut admin) = (greeted(&kit), greeted(&kit));
        let mut took = Vec::new();
        for _ in 0..20 {
            victim.send(format!("{LONG}\n"));
            // It has been running for a while.
            let runs = || kit.handle().connections().into_iter()
                .any(|c| c.id == victim.id() && c.command.is_some() && c.since >= A_WHILE);
            while !runs() {
                thread::yield_now();
            }
            let begun = Instant::now();
            run(&mut admin, &[&format!("KILL QUERY {}", victim.id())]);
            assert_eq!(reply(&mut victim), ["ERR\tinterrupted"]);
            took.push(begun.elapsed());
        }
        let worst = took.iter().max().expect("some");
        let bar = if *worst < KILL_BAR { "kept" } else { "NOT KEPT" };
        eprintln!("{kind:?}: worst of {} from KILL to reply {worst:.1?}, bar {KILL_BAR:?}: {bar}", took.len());
        // One that has gone is never hit again.
        run(&mut admin, &[&format!("KILL QUERY {}", victim.id())]);
        assert_eq!(value(&mut victim, "SELECT 7"), 7);
        victim.send(format!("{LONG}\n"));
        run(&mut admin, &[&format!("KILL {}", victim.id())]);
        assert!(victim.rest().ends_with("ERR\tthe connection was killed\n"));
        drop(admin);
        let reasons = kit.finish();
        assert_eq!(reasons, [CloseReason::Killed, CloseReason::ClientClosed]);
    }

    fn a_kill_ends_a_wait_for_a_lock_and_a_transaction(kind) {
        let database = Database::new();
        let kit = database.serve(kind.kit());
        let (mut holder, mut waiter, mut admin) = (greeted(&kit), greeted(&kit), greeted(&kit));
        run(&mut holder, &COUNTER);
        run(&mut holder, &["BEGIN IMMEDIATE", "UPDATE counter SET n = 1"]);
        waiter.send("BEGIN IMMEDIATE\n");
        let waits = || kit.handle().connections().into_iter()
            .any(|c| c.id == waiter.id() && c.state.name() == "waiting");
        while !waits() {
            thread::yield_now();
        }
        run(&mut admin, &[&format!("KILL QUERY {}", waiter.id())]);
        assert!(reply(&mut waiter)[0].starts_with("ERR\t"));
        // Its transaction is rolled back, and the lock is free.
        run(&mut admin, &[&format!("KILL {}", holder.id())]);
        holder.rest();
        run(&mut waiter, &["BEGIN IMMEDIATE", "UPDATE counter SET n = n + 10", "COMMIT"]);
        assert_eq!(value(&mut waiter, "SELECT n FROM counter"), 10);
        drop((admin, waiter));
        kit.finish();
    }

    fn a_session_goes_from_thread_to_thread_in_pieces(kind) {
        let database = Database::new();
        let kit = database.serve(kind.kit().chaos(Chaos::all()));
        let mut client = greeted(&kit);
        run(&mut client, &COUNTER);
        run(&mut client, &["BEGIN", "UPDATE counter SET n = n + 1", "COMMIT"]);
        assert_eq!(value(&mut client, "SELECT n FROM counter"), 1);
        assert_eq!(ask(&mut client, "SELECT 'a' || char(9) || 'b', NULL, 1.5"), ["ROW\ta\\tb\tNULL\t1.5", "OK\t0"]);
        let error = ask(&mut client, "SELECT nonesuch");
        assert!(error[0].starts_with("ERR\t") && error[0].contains("no such column"), "{error:?}");
        drop(client);
        kit.finish();
    }

    fn a_conversation_that_is_cut_off_anywhere_leaves_a_sound_database(kind) {
        let database = Database::new();
        let kit = database.serve(kind.kit());
        run(&mut greeted(&kit), &["CREATE TABLE pair (a, b)"]);
        for n in 1.. {
            let mut client = kit.doomed_client(n);
            client.try_send("BEGIN\nINSERT INTO pair (a) VALUES (1)\nUPDATE pair SET b = a\nCOMMIT\n");
            client.end_input();
            if client.rest().matches("OK").count() == 4 && n > 4 {
                break;
            }
        }
        let mut client = greeted(&kit);
        assert_eq!(value(&mut client, "SELECT count(*) FROM pair WHERE b IS NULL"), 0);
        drop(client);
        kit.finish();
    }
}
