//! What clients are promised, under both schedulers and over both transports.

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sqlish::{Engine, EngineConfig, LINE_MAX, SqlishHandler};
use thread_group_pool::Limits;
use thread_group_pool::test_util::Chaos;

use common::{Kind, Site, Transport, code, everywhere, small};

fn under_all(test: impl Fn(&Site, Transport)) {
    everywhere(&Limits::default(), &small(), test);
}

#[test]
fn a_conversation_from_greeting_to_quit() {
    under_all(|site, transport| {
        let mut client = site.connect(transport);
        assert_eq!(client.ask("PING"), "OK");
        assert_eq!(client.ask("echo a\tb\\c"), "ROW\ta\\tb\\\\c\nOK");
        assert_eq!(client.value("SELECT c FROM sbtest1 WHERE id=1").len(), 119);
        let k: u64 = client
            .value("SELECT k FROM sbtest1 WHERE id=1")
            .parse()
            .expect("a number");
        client.run(&["BEGIN"]);
        assert_eq!(
            client.ask("UPDATE sbtest1 SET k=k+1 WHERE id=1;\r"),
            "OK\t1"
        );
        assert_eq!(
            client.value("SELECT k FROM sbtest1 WHERE id=1"),
            (k + 1).to_string()
        );
        client.run(&["ROLLBACK"]);
        assert_eq!(
            client.value("SELECT k FROM sbtest1 WHERE id=1"),
            k.to_string()
        );
        assert_eq!(code(&client.ask("DROP DATABASE test")), 1064);
        assert_eq!(client.ask("SELECT SLEEP(0.001)"), "ROW\t0\nOK");
        assert_eq!(
            client.ask("SELECT BENCHMARK(100, MD5('when'))"),
            "ROW\t0\nOK"
        );
        assert_eq!(client.ask("QUIT"), "OK");
        assert_eq!(client.rest(), "");
    });
}

#[test]
fn a_transaction_of_sysbench_reads_and_writes_as_it_does_in_mysql() {
    under_all(|site, transport| {
        let mut client = site.connect(transport);
        let mut other = site.connect(transport);
        let total = client.value("SELECT COUNT(*) FROM sbtest1");
        let sum: i64 = client
            .value("SELECT SUM(k) FROM sbtest1")
            .parse()
            .expect("a number");
        client.run(&["BEGIN"]);
        for range in [
            "SELECT c FROM sbtest1 WHERE id BETWEEN 401 AND 500",
            "SELECT c FROM sbtest1 WHERE id BETWEEN 401 AND 500 ORDER BY c",
            "SELECT DISTINCT c FROM sbtest1 WHERE id BETWEEN 401 AND 500 ORDER BY c",
        ] {
            assert_eq!(client.ask(range).lines().count(), 101, "{range}");
        }
        let k = client.value("SELECT k FROM sbtest1 WHERE id=500");
        assert_eq!(client.ask("DELETE FROM sbtest1 WHERE id=500"), "OK\t1");
        assert_eq!(other.value("SELECT COUNT(*) FROM sbtest1"), total);
        let insert = format!("INSERT INTO sbtest1 (id, k, c, pad) VALUES (500, {k}, 'c', 'pad')");
        assert_eq!(client.ask(&insert), "OK\t1");
        assert_eq!(client.ask("UPDATE sbtest1 SET k=k+1 WHERE id=7"), "OK\t1");
        client.run(&["COMMIT"]);
        assert_eq!(other.value("SELECT COUNT(*) FROM sbtest1"), total);
        assert_eq!(
            other.value("SELECT SUM(k) FROM sbtest1"),
            (sum + 1).to_string()
        );
        assert_eq!(other.value("SELECT pad FROM sbtest1 WHERE id=500"), "pad");
    });
}

#[test]
fn replies_come_in_order_however_the_statements_are_cut() {
    // Few enough that all replies fit into a socket, each as a message of its own: the client reads
    // none before it has sent everything, and a server whose replies are stuck reads no more.
    let statements: String = (0..50).map(|n| format!("ECHO {n}\nPING\n")).collect();
    let expected: String = (0..50).map(|n| format!("ROW\t{n}\nOK\nOK\n")).collect();
    under_all(|site, transport| {
        for chunk in [statements.len(), 1000, 7, 1] {
            let mut client = site.connect(transport);
            for piece in statements.as_bytes().chunks(chunk) {
                client.send(piece);
            }
            client.end_input();
            assert_eq!(client.rest(), expected, "in pieces of {chunk}");
        }
    });
}

#[test]
fn half_a_statement_at_the_end_of_input_is_not_executed() {
    under_all(|site, transport| {
        let mut client = site.connect(transport);
        let k = client.value("SELECT k FROM sbtest1 WHERE id=2");
        client.send("PING\nUPDATE sbtest1 SET k=k+1 WHERE id=2");
        client.end_input();
        let rest = client.rest();
        let error = rest.strip_prefix("OK\n").expect("PING was answered");
        assert_eq!(code(error), 1064, "{error}");
        let mut other = site.connect(transport);
        assert_eq!(other.value("SELECT k FROM sbtest1 WHERE id=2"), k);
    });
}

#[test]
fn bytes_that_are_not_utf8_are_an_error_and_the_connection_goes_on() {
    under_all(|site, transport| {
        let mut client = site.connect(transport);
        client.send(b"ECHO \xc3\x28\n\xff\n");
        assert_eq!(code(&client.reply()), 1300);
        assert_eq!(code(&client.reply()), 1300);
        assert_eq!(client.ask("ECHO \u{e4}"), "ROW\t\u{e4}\nOK");
    });
}

#[test]
fn the_longest_line_is_served_and_a_longer_one_is_refused_with_a_close() {
    under_all(|site, transport| {
        let mut client = site.connect(transport);
        let text = "x".repeat(LINE_MAX - "ECHO \n".len());
        assert_eq!(
            client.ask(&format!("ECHO {text}")),
            format!("ROW\t{text}\nOK")
        );
        // As much as is looked at and no more, so that nothing unread turns the close into a reset.
        client.send(vec![b'x'; LINE_MAX]);
        assert_eq!(code(&client.reply()), 1153);
        assert_eq!(client.rest(), "");
    });
}

#[test]
fn kill_ends_whatever_a_connection_is_doing() {
    under_all(|site, transport| {
        let mut admin = site.connect(transport);
        let mut holder = site.connect(transport);
        holder.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=3"]);
        for (statement, doing) in [
            (
                "UPDATE sbtest1 SET k=k+1 WHERE id=3",
                "waiting for a row lock",
            ),
            ("SELECT SLEEP(100000)", "sleeping"),
            ("SELECT SLEEP_UNSEEN(100000)", "sleeping"),
            (
                "SELECT BENCHMARK(18446744073709551615, MD5('x'))",
                "computing",
            ),
        ] {
            let mut victim = site.connect(transport);
            victim.send(format!("{statement}\n"));
            admin.ask_until("SHOW PROCESSLIST", doing);
            assert_eq!(admin.ask(&format!("KILL {}", victim.id)), "OK");
            let last_words = victim.rest();
            assert!(!last_words.contains("OK"), "{statement}: {last_words}");
        }
        let mut idle = site.connect(transport);
        assert_eq!(admin.ask(&format!("KILL {}", idle.id)), "OK");
        assert_eq!(code(&idle.rest()), 1927);
        assert_eq!(code(&admin.ask("KILL 123456789")), 1094);
        holder.run(&["COMMIT"]);
        admin.run(&["UPDATE sbtest1 SET k=k+1 WHERE id=3"]);
    });
}

#[test]
fn kill_query_ends_a_statement_and_not_its_connection() {
    under_all(|site, transport| {
        let mut admin = site.connect(transport);
        let mut holder = site.connect(transport);
        holder.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=3"]);
        // The one before has gone, and gives up what it had as soon as the server knows.
        assert_eq!(holder.value("SELECT GET_LOCK('busy', 60)"), "1");
        let mut victim = site.connect(transport);
        for (statement, doing) in [
            (
                "UPDATE sbtest1 SET k=k+1 WHERE id=3",
                "waiting for a row lock",
            ),
            ("SELECT GET_LOCK('busy', -1)", "waiting for a named lock"),
            ("SELECT SLEEP(100000)", "sleeping"),
            ("SELECT SLEEP_UNSEEN(100000)", "sleeping"),
            (
                "SELECT BENCHMARK(18446744073709551615, MD5('x'))",
                "computing",
            ),
        ] {
            victim.send(format!("{statement}\nPING\n"));
            admin.ask_until("SHOW PROCESSLIST", doing);
            assert_eq!(admin.ask(&format!("KILL QUERY {}", victim.id)), "OK");
            assert_eq!(code(&victim.reply()), 1317, "{statement}");
            assert_eq!(victim.reply(), "OK");
        }
        // Between two statements there is nothing to kill, and the next one is not meant.
        assert_eq!(admin.ask(&format!("KILL QUERY {}", victim.id)), "OK");
        assert_eq!(victim.ask("PING"), "OK");
        assert_eq!(code(&admin.ask("KILL QUERY 123456789")), 1094);
        assert_eq!(admin.ask(&format!("KILL CONNECTION {}", victim.id)), "OK");
        assert_eq!(code(&victim.rest()), 1927);
    });
}

#[test]
fn the_scheduler_is_told_of_one_kind_of_sleep_and_not_of_the_other() {
    let site = Site::new(Kind::Pool, small(), Limits::default());
    let mut admin = site.connect(Transport::Unix);
    for (statement, waiting) in [
        ("SELECT SLEEP(100000)", 1),
        ("SELECT SLEEP_UNSEEN(100000)", 0),
    ] {
        let mut sleeper = site.connect(Transport::Unix);
        sleeper.send(format!("{statement}\n"));
        admin.ask_until("SHOW PROCESSLIST", "sleeping");
        let groups = site.server.handle().stats().groups;
        let told: usize = groups.iter().map(|group| group.waiting).sum();
        assert_eq!(told, waiting, "{statement}");
        admin.run(&[&format!("KILL {}", sleeper.id)]);
        sleeper.rest();
    }
}

#[test]
fn a_connection_that_goes_away_gives_up_its_locks() {
    under_all(|site, transport| {
        let mut me = site.connect(transport);
        let k = me.value("SELECT k FROM sbtest1 WHERE id=4");
        let mut leaver = site.connect(transport);
        leaver.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=4"]);
        drop(leaver);
        me.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=4", "ROLLBACK"]);
        assert_eq!(me.value("SELECT k FROM sbtest1 WHERE id=4"), k);
    });
}

#[test]
fn many_who_wait_for_one_row_leave_the_server_serving_and_all_get_it() {
    const WAITERS: u64 = 20;
    under_all(|site, transport| {
        let mut holder = site.connect(transport);
        let k: u64 = holder
            .value("SELECT k FROM sbtest1 WHERE id=5")
            .parse()
            .expect("a number");
        holder.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=5"]);
        let mut waiters: Vec<_> = (0..WAITERS).map(|_| site.connect(transport)).collect();
        for waiter in &mut waiters {
            waiter.send("UPDATE sbtest1 SET k=k+1 WHERE id=5\n");
        }
        let mut watcher = site.connect(transport);
        while watcher
            .ask("SHOW PROCESSLIST")
            .matches("waiting for a row lock")
            .count() as u64
            != WAITERS
        {
            thread::yield_now();
        }
        holder.run(&["COMMIT"]);
        for waiter in &mut waiters {
            assert_eq!(waiter.reply(), "OK\t1");
        }
        let after = watcher.value("SELECT k FROM sbtest1 WHERE id=5");
        assert_eq!(after, (k + 1 + WAITERS).to_string());
    });
}

#[test]
fn a_deadlock_is_found_and_one_of_the_two_goes_through() {
    under_all(|site, transport| {
        let (mut one, mut two) = (site.connect(transport), site.connect(transport));
        one.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=6"]);
        two.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=7"]);
        one.send("UPDATE sbtest1 SET k=k+1 WHERE id=7\n");
        two.send("UPDATE sbtest1 SET k=k+1 WHERE id=6\n");
        let (one, two) = (one.reply(), two.reply());
        let mut codes = [code(&one), code(&two)];
        codes.sort_unstable();
        assert_eq!(codes, [0, 1213], "{one}, {two}");
    });
}

#[test]
fn show_tells_of_the_pool_and_says_when_there_is_none() {
    under_all(|site, transport| {
        let mut client = site.connect(transport);
        client.run(&["LOGIN ann"]);
        let list = client.ask("SHOW PROCESSLIST");
        let mine = format!("ROW\t{}\tann\t", client.id);
        let row = list
            .lines()
            .find(|line| line.starts_with(&mine))
            .expect("it lists the asker");
        let why = format!(
            "\tlisting\tSHOW PROCESSLIST\tconnection {} runs for ",
            client.id
        );
        assert!(row.contains(&why), "{row}");
        // Whoever asks is not queued.
        let queues = client.ask("SHOW THREAD_POOL QUEUES");
        if site.kind == Kind::PerConnection {
            assert_eq!(code(&queues), 1235, "{queues}");
        } else {
            let names = "GROUP_ID\tPOSITION\tPRIORITY\tCONNECTION_ID\tQUEUEING_TIME_MICROSECONDS";
            assert_eq!(queues, format!("ROW\t{names}\nOK"));
        }
        client.run(&["SET SESSION thread_pool_priority = high"]);
        assert_eq!(client.value("SELECT GET_LOCK('shown', -1)"), "1");
        assert_eq!(client.ask("SELECT SLEEP(0.001)"), "ROW\t0\nOK");
        let waits = client.ask("SHOW THREAD_POOL WAITS");
        let sleeps = waits.lines().find(|line| line.starts_with("ROW\tSleep\t"));
        assert!(
            waits.starts_with("ROW\tREASON\tCOUNT\tTOTAL_MICROSECONDS\n") && sleeps.is_some(),
            "{waits}"
        );
        for statement in ["SHOW THREAD_POOL GROUPS", "SHOW THREAD_POOL STATS"] {
            let reply = client.ask(statement);
            if site.kind == Kind::PerConnection {
                assert_eq!(code(&reply), 1235, "{reply}");
                continue;
            }
            let lines: Vec<Vec<_>> = reply
                .lines()
                .map(|line| line.split('\t').collect())
                .collect();
            let [names, group, ok] = lines.as_slice() else {
                panic!("{reply}")
            };
            assert_eq!((names[1], group[1], ok[0]), ("GROUP_ID", "0", "OK"));
            assert_eq!(names.len(), group.len());
            let holding = names.iter().position(|name| *name == "HOLDING_CONNECTIONS");
            assert_eq!(
                holding.map(|at| group[at]),
                statement.ends_with("GROUPS").then_some("1")
            );
        }
    });
}

#[test]
fn nothing_is_served_before_the_login_that_the_server_requires() {
    let engine = EngineConfig {
        login_secret: Some("secret".to_owned()),
        ..small()
    };
    everywhere(&Limits::default(), &engine, |site, transport| {
        let mut client = site.connect(transport);
        assert_eq!(code(&client.ask("PING")), 1045);
        assert!(client.ask("LOGIN ann").starts_with("ROW\tchallenge\t"));
        assert_eq!(code(&client.ask("PING")), 1045);
        assert_eq!(code(&client.ask("ANSWER 00")), 1045);
        assert_eq!(client.rest(), "");
    });
}

#[test]
fn one_client_too_many_is_told_so() {
    everywhere(
        &Limits::default().max_connections(1),
        &small(),
        |site, transport| {
            let mut client = site.connect(transport);
            assert_eq!(code(&site.call(transport).rest()), 1040);
            assert_eq!(client.ask("PING"), "OK");
            assert_eq!(client.ask("QUIT"), "OK");
            assert_eq!(client.rest(), "");
            while site.server.handle().stats().connections != 0 {
                thread::yield_now();
            }
        },
    );
}

thread_group_pool::under_both_schedulers! {
    fn a_silent_client_is_told_why_it_is_closed(kind) {
        let engine = Engine::new(small()).expect("a thread is left");
        let kit = kind.kit().serve(Arc::new(SqlishHandler::new(engine)));
        let (mut idle, mut slow) = (kit.client(), kit.client());
        slow.send("PI");
        kit.advance(Limits::default().read_timeout);
        assert_eq!(code(slow.rest().lines().nth(1).expect("last words")), 1159);
        kit.advance(Limits::default().idle_timeout);
        assert_eq!(code(idle.rest().lines().nth(1).expect("last words")), 4031);
        kit.finish();
    }

    fn trouble_changes_no_answer(kind) {
        let engine = Engine::new(small()).expect("a thread is left");
        let kit = kind.kit().chaos(Chaos::all()).serve(Arc::new(SqlishHandler::new(engine)));
        let mut client = kit.client();
        client.send(
            "SELECT GET_LOCK('a', 1)\nBEGIN\nUPDATE sbtest1 SET c='new' WHERE id=1\n\
             SELECT c FROM sbtest1 WHERE id=1\nCOMMIT\nSELECT SLEEP(0.001)\nQUIT\n",
        );
        let replies = client.rest();
        let replies = replies.split_once('\n').expect("a greeting").1;
        assert_eq!(replies, "ROW\t1\nOK\nOK\nOK\t1\nROW\tnew\nOK\nOK\nROW\t0\nOK\nOK\n");
        kit.finish();
    }

    fn whoever_is_killed_wherever_it_is_leaves_no_lock(kind) {
        let engine = Engine::new(small()).expect("a thread is left");
        let kit = kind.kit().serve(Arc::new(SqlishHandler::new(engine)));
        for n in 1.. {
            let mut doomed = kit.doomed_client(n);
            doomed.try_send("BEGIN\nUPDATE sbtest1 SET k=k+1 WHERE id=1\nSELECT GET_LOCK('a', 0)\n");
            doomed.end_input();
            let whole = doomed.rest().matches("OK").count() == 3;
            let mut next = kit.client();
            next.send("UPDATE sbtest1 SET k=k+1 WHERE id=1\nSELECT GET_LOCK('a', -1)\nQUIT\n");
            assert!(next.rest().ends_with("\nOK\t1\nROW\t1\nOK\nOK\n"));
            if whole && n > 4 {
                break;
            }
        }
        kit.finish();
    }
}

#[test]
fn a_drain_tells_idle_clients_and_rolls_back() {
    for kind in [Kind::Pool, Kind::PerConnection] {
        let site = Site::new(kind, small(), Limits::default());
        let mut client = site.connect(Transport::Unix);
        client.run(&["BEGIN", "UPDATE sbtest1 SET k=k+1 WHERE id=1"]);
        let report = site.server.drain(Duration::from_secs(60));
        assert!(report.clean(), "{report}");
        assert_eq!(code(&client.rest()), 1053);
    }
}
