//! What the program promises to whoever starts it: its output, its exit codes, its signals.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn sqlish(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sqlish"));
    command.args(arguments.split_whitespace());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `sqlish serve`, ended with the test.
struct Served {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Served {
    fn start(arguments: &str) -> Self {
        let mut child = sqlish(&format!("serve --rows 100 {arguments}"))
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, output }
    }

    /// What the next line says that it listens on.
    fn address(&mut self, kind: &str) -> String {
        self.address_of("listening", kind)
    }

    fn address_of(&mut self, what: &str, kind: &str) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it prints UTF-8");
        let address = line.strip_prefix(&format!("{what} on {kind} "));
        address
            .unwrap_or_else(|| panic!("{line}"))
            .trim_end()
            .to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
    }

    /// Its exit code and what else it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.output
            .read_to_string(&mut rest)
            .expect("it prints UTF-8");
        (self.child.wait().expect("it ends").code(), rest)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Gone already, when the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `sqlish client` with this as its input.
fn client(arguments: &str, statements: &str) -> Output {
    let mut command = sqlish(&format!("client {arguments}"));
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is piped");
    // It may end before it has read everything; its exit code tells.
    let _ = input.write_all(statements.as_bytes());
    drop(input);
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it prints UTF-8")
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sqlish-program-{}-{name}.sock", std::process::id()))
}

#[test]
fn it_serves_tcp_and_unix_at_once_and_drains_on_sigterm() {
    for scheduler in ["pool --groups 2", "per-connection"] {
        let path = socket_path("both");
        let mut served = Served::start(&format!(
            "--scheduler {scheduler} --tcp 127.0.0.1:0 --unix {}",
            path.display()
        ));
        let (tcp, unix) = (served.address("tcp"), served.address("unix"));
        for address in [format!("--tcp {tcp}"), format!("--unix {unix}")] {
            let output = client(
                &address,
                "PING\n\nECHO hello; \nselect id from sbtest1 where id=7",
            );
            assert_eq!(text(&output.stdout), "OK\nROW\thello\nOK\nROW\t7\nOK\n");
            assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        }
        served.signal(Signal::TERM);
        let (code, report) = served.end();
        assert_eq!(code, Some(0), "{report}");
        assert!(!report.is_empty(), "it reports how the drain went");
        assert!(!path.exists(), "the socket's path is left over");
    }
}

/// Every worker waits for one row, at the cap; nobody else gets in, and the one who holds it is killed. (Under
/// MariaDB's own policy no worker is left for that: the administrator is served, and the waits time out.)
#[test]
fn an_administrator_shows_and_kills_when_every_worker_waits_for_one_lock() {
    for scheduler in [
        "pool --groups 2 --thread-pool-max-threads 4",
        "per-connection --max-threads 17 --thread-cache-size 0",
    ] {
        let mut served = Served::start(&format!(
            "--scheduler {scheduler} --tcp 127.0.0.1:0 --admin-tcp 127.0.0.1:0"
        ));
        let tcp = served.address("tcp");
        let admin = served.address_of("admin", "tcp");
        let mut holder = TcpStream::connect(&tcp).expect("it listens");
        let update = b"BEGIN\nUPDATE sbtest1 SET k=k+1 WHERE id=1\n";
        holder.write_all(update).expect("it reads");
        let mut holder = BufReader::new(holder);
        let mut line = String::new();
        holder.read_line(&mut line).expect("a greeting");
        let id = line.split('\t').nth(1).expect("its id").to_owned();
        for reply in ["OK\n", "OK\t1\n"] {
            line.clear();
            holder.read_line(&mut line).expect("a reply");
            assert_eq!(line, reply);
        }
        let waiting: Vec<_> = (0..16)
            .map(|_| {
                let mut client = TcpStream::connect(&tcp).expect("it listens");
                let update = b"UPDATE sbtest1 SET k=k+1 WHERE id=1\nQUIT\n";
                client.write_all(update).expect("it reads");
                client
            })
            .collect();
        let ask = |statements: &str| {
            let output = client(&format!("--tcp {admin}"), statements);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            text(&output.stdout).to_owned()
        };
        let are_waiting = || {
            let list = ask("SHOW PROCESSLIST\n");
            list.lines()
                .filter(|row| row.contains("UPDATE sbtest1"))
                .count()
        };
        while are_waiting() < 3 {
            std::thread::yield_now();
        }
        assert_eq!(ask(&format!("KILL {id}\n")), "OK\n");
        for mut client in waiting {
            let mut replies = String::new();
            client.read_to_string(&mut replies).expect("it is served");
            assert!(replies.ends_with("OK\t1\nOK\n"), "{replies}");
        }
        let output = client(&format!("--tcp {tcp}"), "PING\n");
        assert_eq!(text(&output.stdout), "OK\n");
        served.signal(Signal::TERM);
        let (code, report) = served.end();
        assert_eq!(code, Some(0), "{report}");
    }
}

#[test]
fn the_client_tells_by_its_exit_code_whether_a_statement_failed() {
    let mut served = Served::start("--tcp 127.0.0.1:0");
    let address = format!("--tcp {}", served.address("tcp"));
    let output = client(&address, "nonsense\nPING\n");
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert!(
        lines[0].starts_with("ERR\t1064\t") && lines[1..] == ["OK"],
        "{lines:?}"
    );
    let output = client(&address, "QUIT\nPING\n");
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "OK\n")
    );
}

#[test]
fn the_client_logs_in_where_a_secret_is_required() {
    let mut served = Served::start("--tcp 127.0.0.1:0 --require-login open-sesame");
    let address = format!("--tcp {}", served.address("tcp"));
    let output = client(
        &format!("{address} --user ann --secret open-sesame"),
        "PING\n",
    );
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "OK\n")
    );
    let output = client(&format!("{address} --user ann --secret guess"), "PING\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("sqlish client: login failed: ERR\t1045"));
    assert_eq!(client(&address, "PING\n").status.code(), Some(1));
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut served = Served::start("--tcp 127.0.0.1:0 --drain-timeout 100000");
    let address = served.address("tcp");
    let mut busy = sqlish(&format!("client --tcp {address}"));
    let mut busy = busy.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = busy.stdin.take().expect("it is piped");
    input
        .write_all(b"SELECT SLEEP(100000)\n")
        .expect("it reads");
    while !text(&client(&format!("--tcp {address}"), "SHOW PROCESSLIST\n").stdout)
        .contains("sleeping")
    {
        std::thread::yield_now();
    }
    // Two different ones, so that they cannot be merged while pending.
    served.signal(Signal::TERM);
    served.signal(Signal::INT);
    let (code, _) = served.end();
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
    assert_eq!(busy.wait().expect("it ends").code(), Some(2));
}

/// The reply to an HTTP request: its first line, and its body.
fn http(address: &str, request: &str) -> (String, String) {
    let mut client = TcpStream::connect(address).expect("it listens");
    client.write_all(request.as_bytes()).expect("it reads");
    let mut reply = String::new();
    client.read_to_string(&mut reply).expect("it answers");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
    let length = head
        .lines()
        .find_map(|l| l.strip_prefix("Content-Length: "));
    let length: usize = length.expect("a length").parse().expect("a number");
    assert_eq!(length, body.len());
    (
        head.lines().next().expect("a status").to_owned(),
        body.to_owned(),
    )
}

/// Samples by family, as the text format has them: each family with its help, its type, and then
/// its samples, each a name with its labels, and a value.
fn families(page: &str) -> BTreeMap<String, (String, Vec<(String, f64)>)> {
    let mut families: BTreeMap<String, (String, Vec<(String, f64)>)> = BTreeMap::new();
    let (mut helped, mut family) = (String::new(), String::new());
    let mut seen = BTreeSet::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a name and a text");
            assert!(text.ends_with('.'), "{line}");
            name.clone_into(&mut helped);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a type");
            assert_eq!(name, helped, "the help comes first");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert_eq!(kind == "histogram", name.ends_with("_seconds"), "{line}");
            name.clone_into(&mut family);
            let before = families.insert(family.clone(), (kind.to_owned(), Vec::new()));
            assert!(before.is_none(), "{family} comes twice");
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and a value");
            assert!(seen.insert(sample.to_owned()), "{sample} comes twice");
            let name = sample.split('{').next().expect("a name");
            let legal = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(
                name.starts_with("tgp_") && name.chars().all(legal),
                "{line}"
            );
            let (kind, samples) = families.get_mut(&family).expect("a family before it");
            let suffix = name.strip_prefix(&family).expect("it is of this family");
            match kind.as_str() {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                _ => assert_eq!(suffix, "", "{line}"),
            }
            if let Some(labels) = sample
                .strip_prefix(name)
                .filter(|labels| !labels.is_empty())
            {
                let inside = labels.strip_prefix('{').and_then(|l| l.strip_suffix('}'));
                for label in inside.expect("braces").split(',') {
                    let (_, quoted) = label.split_once('=').expect("a label and its value");
                    assert!(quoted.starts_with('"') && quoted.ends_with('"'), "{line}");
                }
            }
            let value: f64 = value.parse().expect("a number");
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            samples.push((sample.to_owned(), value));
        }
    }
    families
}

#[test]
fn prometheus_can_read_the_metrics() {
    for scheduler in ["pool --groups 2", "per-connection"] {
        let arguments = format!("--scheduler {scheduler} --tcp 127.0.0.1:0 --metrics 127.0.0.1:0");
        let mut served = Served::start(&arguments);
        let address = served.address("tcp");
        let mut line = String::new();
        served.output.read_line(&mut line).expect("it prints UTF-8");
        let metrics = line
            .strip_prefix("metrics on http://")
            .and_then(|line| line.trim_end().strip_suffix("/metrics"))
            .expect("it says where");
        let statements = "PING\n".repeat(200) + "SELECT SLEEP(0.001)\n";
        let output = client(&format!("--tcp {address}"), &statements);
        assert_eq!(output.status.code(), Some(0));
        let (status, body) = http(metrics, "GET /metrics HTTP/1.0\r\n\r\n");
        assert_eq!(status, "HTTP/1.0 200 OK");
        let families = families(&body);
        let value = |family: &str, sample: &str| {
            let (_, samples) = &families[family];
            let found = samples.iter().find(|(name, _)| name == sample);
            found
                .unwrap_or_else(|| panic!("no {sample} in {samples:?}"))
                .1
        };
        assert!(value("tgp_commands_total", "tgp_commands_total") >= 201.0);
        assert_eq!(value("tgp_panics_total", "tgp_panics_total"), 0.0);
        assert!(value("tgp_command_seconds", "tgp_command_seconds_count") >= 3.0);
        if scheduler.starts_with("pool") {
            let low = "tgp_queue_seconds_count{lane=\"low\"}";
            assert!(value("tgp_queue_seconds", low) >= 1.0);
            let group = "tgp_group_commands_total{group=\"1\"}";
            value("tgp_group_commands_total", group);
        }
        // Of each histogram the buckets do not fall, and the last one is the count.
        for (family, (kind, samples)) in &families {
            if kind != "histogram" {
                continue;
            }
            let mut last = 0.0;
            for (sample, value) in samples {
                if sample.contains("_bucket") {
                    assert!(*value >= last, "{family}: {sample}");
                    last = *value;
                } else if sample.contains("_count") {
                    assert_eq!(*value, last, "{family}: {sample}");
                    last = 0.0;
                }
            }
        }
        let (status, _) = http(metrics, "GET /elsewhere HTTP/1.0\r\n\r\n");
        assert_eq!(status, "HTTP/1.0 404 Not Found");
        let (status, _) = http(metrics, "POST /metrics HTTP/1.0\r\n\r\n");
        assert_eq!(status, "HTTP/1.0 405 Method Not Allowed");
        served.signal(Signal::TERM);
        assert_eq!(served.end().0, Some(0));
    }
}

#[test]
fn what_cannot_work_is_told_in_one_line_with_exit_code_2() {
    let mut served = Served::start("--tcp 127.0.0.1:0");
    let taken = served.address("tcp");
    for arguments in [
        "",
        "prove",
        "serve",
        "serve --tcp 127.0.0.1:0 --speed 9",
        "serve --tcp 127.0.0.1:0 --rows none",
        "serve --rows 1 --tcp 127.0.0.1:0 --groups 0",
        "serve --tcp 127.0.0.1:0 --scheduler per-connection --groups 2",
        "serve --rows 1 --tcp nowhere",
        "serve --rows 1 --unix /nonexistent/directory/socket",
        "serve --rows 1 --unix /tmp/sqlish-no-metrics.sock --metrics nowhere",
        &format!("serve --rows 1 --tcp {taken}"),
        "client",
        "client --tcp 127.0.0.1:1",
        "client --unix /nonexistent/socket",
    ] {
        let output = sqlish(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert_eq!(text(&output.stdout), "", "{arguments}");
        assert_eq!(
            text(&output.stderr).lines().count(),
            1,
            "{arguments}: {output:?}"
        );
    }
}
