//! The real programs: `sysbench`, `mariadb` and `mariadb-admin` against `sqlish serve`.
//!
//! Where they are missing, these tests say how to install them and pass; with the environment variable
//! `CI` set they fail.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Whether there is such a program.
fn there_is(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        let how = format!("{program} is missing: apt-get install -y sysbench mariadb-client");
        assert!(std::env::var_os("CI").is_none(), "{how}");
        eprintln!("{how}");
    }
    there
}

/// `sqlish serve`, ended with the test.
struct Served {
    child: Child,
    port: String,
    socket: PathBuf,
}

impl Served {
    fn start(name: &str, options: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("sqlish-{name}-{}", std::process::id()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_sqlish"))
            .args(["serve", "--mysql-tcp", "127.0.0.1:0", "--mysql-unix"])
            .arg(&socket)
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut line = || lines.next().expect("a line").expect("in UTF-8");
        let (tcp, _unix) = (line(), line());
        let port = tcp.rsplit(':').next().expect("a port").to_owned();
        Self {
            child,
            port,
            socket,
        }
    }

    /// How a program is told where the server is.
    fn at(&self, over: &str, option: &str) -> Vec<String> {
        match over {
            "tcp" => vec![
                format!("--{option}host=127.0.0.1"),
                format!("--{option}port={}", self.port),
            ],
            _ => vec![format!("--{option}socket={}", self.socket.display())],
        }
    }

    /// What a program says, and whether it succeeded.
    fn run(&self, program: &str, over: &str, arguments: &[&str]) -> (bool, String) {
        let option = if program == "sysbench" { "mysql-" } else { "" };
        let mut command = Command::new(program);
        if program != "sysbench" {
            command.arg("--no-defaults");
        }
        let output = command
            .args(self.at(over, option))
            .args(arguments)
            .output()
            .expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.success(), said)
    }

    fn sysbench(&self, over: &str, arguments: &str) -> String {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let (succeeded, said) = self.run("sysbench", over, &arguments);
        assert!(succeeded, "sysbench {arguments:?}: {said}");
        said
    }

    /// The rows of a statement, without the names of the columns.
    fn ask(&self, over: &str, statement: &str) -> String {
        let arguments = ["--user=ann", "-N", "-B", "-e", statement];
        let (succeeded, said) = self.run("mariadb", over, &arguments);
        assert!(succeeded, "{statement}: {said}");
        said.trim_end().to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

const SCHEDULERS: [&str; 2] = ["pool", "per-connection"];

/// The number behind a label in what sysbench says.
fn number(said: &str, label: &str) -> u64 {
    let line = said
        .lines()
        .find_map(|line| line.trim().strip_prefix(label));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("{label} in {said}"))
}

#[test]
fn all_ten_scripts_of_sysbench_run() {
    if !there_is("sysbench") {
        return;
    }
    for scheduler in SCHEDULERS {
        let server = Served::start(
            &format!("ten-{scheduler}"),
            &format!("--tables 0 --scheduler {scheduler}"),
        );
        for (number, script) in [
            "oltp_point_select",
            "oltp_read_only",
            "oltp_read_write",
            "oltp_write_only",
            "oltp_update_index",
            "oltp_update_non_index",
            "oltp_insert",
            "oltp_delete",
            "select_random_points",
            "select_random_ranges",
        ]
        .iter()
        .enumerate()
        {
            let over = ["tcp", "unix"][number % 2];
            let common = format!("{script} --table-size=300 --threads=4");
            server.sysbench(over, &format!("{common} prepare"));
            for mode in ["auto", "disable"] {
                let run = format!("{common} --events=40 --time=0 --db-ps-mode={mode} run");
                let said = server.sysbench(over, &run);
                assert_eq!(self::number(&said, "total number of events:"), 40, "{said}");
            }
            server.sysbench(over, &format!("{common} cleanup"));
        }
    }
}

#[test]
fn what_sysbench_has_committed_is_there_and_nothing_else() {
    if !there_is("sysbench") || !there_is("mariadb") {
        return;
    }
    for scheduler in SCHEDULERS {
        for (over, mode) in [("tcp", "auto"), ("unix", "disable")] {
            let server = Served::start(
                &format!("sum-{scheduler}-{over}"),
                &format!("--tables 0 --scheduler {scheduler}"),
            );
            // Every transaction adds 1 to each of two rows, and replaces none: without its delete and
            // insert, which give a row another k, the sum tells how many were committed.
            let common = "oltp_read_write --table-size=200 --tables=2 --index-updates=2 \
                          --delete-inserts=0 --threads=16";
            server.sysbench(over, &format!("{common} prepare"));
            let totals = || -> Vec<u64> {
                let of = |table| format!("SELECT COUNT(*), SUM(k) FROM sbtest{table}");
                let both = [server.ask(over, &of(1)), server.ask(over, &of(2))];
                let numbers = both.iter().flat_map(|line| line.split_whitespace());
                numbers.map(|n| n.parse().expect("a number")).collect()
            };
            let before = totals();
            let run = format!("{common} --events=400 --time=0 --db-ps-mode={mode} run");
            let said = server.sysbench(over, &run);
            assert_eq!(number(&said, "transactions:"), 400);
            let after = totals();
            assert_eq!((after[0], after[2]), (200, 200));
            let added = after[1] + after[3] - before[1] - before[3];
            assert_eq!(added, 2 * 400, "{scheduler} over {over}: {said}");
            // With them, the rows are still as many.
            let common = "oltp_read_write --table-size=200 --tables=2 --threads=16";
            let run = format!("{common} --events=200 --time=0 --db-ps-mode={mode} run");
            server.sysbench(over, &run);
            let after = totals();
            assert_eq!((after[0], after[2]), (200, 200));
        }
    }
}

#[test]
fn mariadbs_own_client_is_served() {
    if !there_is("mariadb") || !there_is("mariadb-admin") {
        return;
    }
    for scheduler in SCHEDULERS {
        let server = Served::start(
            &format!("client-{scheduler}"),
            &format!("--rows 100 --scheduler {scheduler}"),
        );
        for over in ["tcp", "unix"] {
            let seen = server.ask(
                over,
                "SELECT id FROM sbtest1 LIMIT 2; USE sbtest; SELECT 'a\tb'",
            );
            assert_eq!(seen, "1\n2\na\\tb");
            let (fine, said) = server.run("mariadb", over, &["--user=ann", "-e", "bogus"]);
            assert!(!fine && said.contains("ERROR 1064 (42000)"), "{said}");
            let (fine, said) = server.run("mariadb", over, &["--user=ann", "-px", "-e", "x"]);
            assert!(!fine && said.contains("ERROR 1045 (28000)"), "{said}");
            for (command, expected) in [
                ("ping", "mysqld is alive"),
                ("status", "Threads: "),
                ("processlist", "Query"),
                ("variables", "thread_handling"),
                ("extended-status", "Threadpool_threads"),
                ("version", "sqlish"),
            ] {
                let (fine, said) = server.run("mariadb-admin", over, &["--user=ann", command]);
                assert!(fine && said.contains(expected), "{command}: {said}");
            }
            let sleeper = server.at(over, "");
            let mut sleeper = Command::new("mariadb")
                .args(["--no-defaults", "--user=bob", "-e", "SELECT SLEEP(1000)"])
                .args(sleeper)
                .stderr(Stdio::piped())
                .spawn()
                .expect("it runs");
            let id = loop {
                let list = server.ask(over, "SHOW PROCESSLIST");
                if let Some(line) = list.lines().find(|line| line.contains("SLEEP(1000)")) {
                    break line.split('\t').next().expect("an id").to_owned();
                }
            };
            let (fine, said) = server.run("mariadb-admin", over, &["--user=ann", "kill", &id]);
            assert!(fine, "{said}");
            assert!(!sleeper.wait().expect("it ends").success());
        }
    }
}

#[test]
fn users_with_passwords_log_in_and_nobody_else() {
    if !there_is("mariadb") {
        return;
    }
    let server = Served::start("users", "--rows 10 --user ann:secret --user bob:");
    for over in ["tcp", "unix"] {
        for (arguments, expected) in [
            (&["--user=ann", "-psecret"][..], true),
            (
                &[
                    "--user=ann",
                    "-psecret",
                    "--default-auth=caching_sha2_password",
                ],
                true,
            ),
            (&["--user=ann", "-pother"], false),
            (&["--user=ann"], false),
            (&["--user=bob"], true),
            (&["--user=carl"], false),
        ] {
            let arguments = [arguments, &["-e", "SELECT 1"]].concat();
            let (fine, said) = server.run("mariadb", over, &arguments);
            assert_eq!(fine, expected, "{arguments:?}: {said}");
        }
    }
}

#[test]
fn mariadbs_own_client_gets_tls_if_it_asks_for_it() {
    if !there_is("mariadb") {
        return;
    }
    let with = ["--user=ann", "-psecret", "--ssl"];
    for scheduler in SCHEDULERS {
        let options = format!("--rows 100 --user ann:secret --scheduler {scheduler}");
        let server = Served::start(&format!("tls-{scheduler}"), &format!("{options} --tls"));
        for over in ["tcp", "unix"] {
            let ask = |options: &[&str], statement: &str| {
                server.run("mariadb", over, &[options, &["-e", statement]].concat())
            };
            let (fine, said) = ask(&with, "status\nSELECT COUNT(*) FROM sbtest1");
            assert!(fine && said.contains("Cipher in use is"), "{said}");
            assert!(said.ends_with("100\n"), "{said}");
            // More than a record, and more than a socket holds.
            let select = "SELECT c FROM sbtest1; ".repeat(200);
            let (fine, said) = ask(&[&with[..], &["-N"]].concat(), &select);
            assert!(fine && said.lines().count() == 200 * 100, "{}", said.len());
            let (fine, said) = ask(&["--user=ann", "-pwrong", "--ssl"], "SELECT 1");
            assert!(!fine && said.contains("ERROR 1045"), "{said}");
            // Who does not ask is served as ever.
            let (fine, said) = ask(&["--user=ann", "-psecret", "--skip-ssl"], "status");
            assert!(fine && said.contains("Not in use"), "{said}");
            // A certificate that nobody has signed shows nobody who the server is.
            let (fine, said) = ask(
                &[&with[..], &["--ssl-verify-server-cert"]].concat(),
                "SELECT 1",
            );
            assert!(!fine && said.contains("ERROR 2026"), "{said}");
        }
        let without = Served::start(&format!("no-tls-{scheduler}"), &options);
        for over in ["tcp", "unix"] {
            let (_, said) = without.run("mariadb", over, &[&with[..], &["-e", "status"]].concat());
            assert!(!said.contains("Cipher in use is"), "{said}");
        }
    }
}

#[test]
fn certificates_of_ones_own_are_used_and_bad_ones_are_told() {
    let folder = std::env::temp_dir().join(format!("sqlish-certs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    std::fs::write(&cert, made.cert.pem()).expect("a file");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
    let files = format!("--tls-cert {} --tls-key {}", cert.display(), key.display());
    if there_is("mariadb") {
        let server = Served::start("own-cert", &format!("--rows 10 {files}"));
        let trust = format!("--ssl-ca={}", cert.display());
        let host = [
            "--host=localhost",
            "--protocol=tcp",
            "--ssl-verify-server-cert",
        ];
        let arguments = [&["--user=ann", &trust, "-e", "status"][..], &host].concat();
        let (fine, said) = server.run("mariadb", "tcp", &arguments);
        assert!(fine && said.contains("Cipher in use is"), "{said}");
    }
    let refused = |options: &str, needle: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_sqlish"))
            .arg("serve")
            .args(options.split_whitespace())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(
            said.lines().count() == 1 && said.contains(needle),
            "{options}: {said}"
        );
    };
    let mysql = "--mysql-tcp 127.0.0.1:0";
    refused(&format!("--tcp 127.0.0.1:0 {files}"), "--mysql-tcp");
    refused(
        &format!("{mysql} --tls-cert {}", cert.display()),
        "--tls-key",
    );
    refused(
        &format!(
            "{mysql} --tls-cert /no/such/file --tls-key {}",
            key.display()
        ),
        "/no/such/file",
    );
    let swapped = format!("--tls-cert {} --tls-key {}", key.display(), cert.display());
    refused(&format!("{mysql} {swapped}"), "key.pem");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn the_pool_is_shown_in_mariadbs_words_and_can_be_changed() {
    if !there_is("mariadb") {
        return;
    }
    let server = Served::start("words", "--rows 10 --thread-pool-size 2");
    let ask = |statement: &str| server.ask("unix", statement);
    let schema = "information_schema.";
    assert_eq!(
        ask(&format!("SELECT COUNT(*) FROM {schema}thread_pool_groups")),
        "2"
    );
    let groups = "SELECT GROUP_ID, CONNECTIONS, THREADS, ACTIVE_THREADS, STANDBY_THREADS, QUEUE_LENGTH, \
                  HAS_LISTENER, IS_STALLED FROM INFORMATION_SCHEMA.THREAD_POOL_GROUPS";
    assert_eq!(ask(groups).lines().count(), 2);
    let stats = "SELECT GROUP_ID, THREAD_CREATIONS, THREAD_CREATIONS_DUE_TO_STALL, WAKES, \
                 WAKES_DUE_TO_STALL, THROTTLES, STALLS, POLLS_BY_LISTENER, POLLS_BY_WORKER, \
                 DEQUEUES_BY_LISTENER, DEQUEUES_BY_WORKER FROM INFORMATION_SCHEMA.THREAD_POOL_STATS";
    assert_eq!(ask(stats).lines().count(), 2);
    let queues = "SELECT GROUP_ID, POSITION, PRIORITY, CONNECTION_ID, QUEUEING_TIME_MICROSECONDS FROM \
                  INFORMATION_SCHEMA.THREAD_POOL_QUEUES";
    ask(queues);
    ask("SELECT SLEEP(0.001)");
    let waits = format!("SELECT COUNT FROM {schema}THREAD_POOL_WAITS WHERE REASON = 'SLEEP'");
    assert_eq!(ask(&waits), "1");
    let polls = format!("SELECT SUM(POLLS_BY_LISTENER) FROM {schema}THREAD_POOL_STATS");
    for _ in 0..50 {
        ask("SELECT 1");
    }
    let before: u64 = ask(&polls).parse().expect("a number");
    let flushed = ask(&format!("FLUSH THREAD_POOL_STATS; {polls}"));
    assert!(flushed.parse::<u64>().expect("a number") < before);
    assert_eq!(ask(&waits), "1", "those are flushed by themselves");
    assert_eq!(ask(&format!("FLUSH THREAD_POOL_WAITS; {waits}")), "");
    assert_eq!(
        ask("SET GLOBAL thread_pool_oversubscribe = 7; SHOW VARIABLES LIKE 'thread\\_pool\\_o%'"),
        "thread_pool_oversubscribe\t7"
    );
    assert_eq!(ask("SELECT @@global.thread_pool_oversubscribe"), "7");
    assert!(ask("SHOW STATUS LIKE 'Threads%'").contains("Threads_connected\t1"));
    assert!(ask("SHOW GLOBAL STATUS LIKE 'Threadpool%'").contains("Threadpool_idle_threads"));
    for (statement, code) in [
        ("SET GLOBAL thread_pool_size = 3", "1238"),
        ("SET GLOBAL thread_pool_oversubscribe = 0", "1231"),
        ("SET GLOBAL thread_pool_stall_limit = many", "1231"),
        ("SET thread_pool_oversubscribe = 3", "1229"),
        ("SET GLOBAL no_such_thing = 3", "1193"),
        (
            "SET GLOBAL thread_pool_oversubscribe = 9, GLOBAL no_such_thing = 3",
            "1193",
        ),
    ] {
        let (fine, said) = server.run("mariadb", "tcp", &["--user=ann", "-e", statement]);
        assert!(
            !fine && said.contains(&format!("ERROR {code} ")),
            "{statement}: {said}"
        );
    }
    assert_eq!(ask("SELECT @@global.thread_pool_oversubscribe"), "7");
}

#[test]
fn threads_that_were_created_are_counted_under_either_scheduler() {
    if !there_is("mariadb") {
        return;
    }
    for scheduler in SCHEDULERS {
        let options = format!("--rows 10 --scheduler {scheduler}");
        let server = Served::start(&format!("created-{scheduler}"), &options);
        let said = server.ask("unix", "SHOW STATUS LIKE 'Threads_created'");
        let count = said.strip_prefix("Threads_created\t");
        let count = count.and_then(|count| count.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count > 0), "{scheduler}: {said}");
    }
}
