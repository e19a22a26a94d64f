//! `study mysql` as its users meet it: tiny runs, and what it says when it cannot.
//!
//! Where `sysbench` is missing, these tests say how to install it and pass; with the environment variable
//! `CI` set they fail. MariaDB is another's program that one may stand beside: without it nothing fails.

#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use common::{Folder, refused, study, text};

const TINY: &str = "--seconds 1 --warmup 0 --rounds 1 --rows 1000";

fn there_is_sysbench() -> bool {
    let there = Command::new("sysbench").arg("--version").output().is_ok();
    if !there {
        let how = "sysbench is missing: apt-get install -y sysbench";
        assert!(std::env::var_os("CI").is_none(), "{how}");
        eprintln!("{how}");
    }
    there
}

fn there_is_mariadb() -> bool {
    let there = study::mysql::mariadb::check();
    if let Err(how) = &there {
        eprintln!("{how}");
    }
    there.is_ok()
}

/// Runs it without errors; what it prints, and its JSON.
fn tiny(name: &str, args: &str) -> (String, Value) {
    let folder = Folder::new(&format!("mysql-{name}"));
    let json = folder.join("m.json");
    let output = study(&format!("mysql {TINY} {args}"))
        .env("TMPDIR", &folder.0)
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    let value: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert!(value["machine"]["command_line"].is_string(), "{value}");
    assert!(value["versions"].as_str().unwrap().starts_with("sysbench "));
    fs::remove_file(json).unwrap();
    let left = fs::read_dir(&folder.0).unwrap().count();
    assert_eq!(left, 0, "nothing is left behind");
    (stdout, value)
}

/// Server, scheduler, script and threads of each cell, or of each ratio.
fn keys(list: &Value) -> Vec<String> {
    let of = |cell: &Value| {
        let text = |name: &str| cell[name].as_str().unwrap().to_owned();
        let (server, scheduler, script) = (text("server"), text("scheduler"), text("workload"));
        format!("{script} {server} {scheduler} {}", cell["clients"])
    };
    list.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn both_schedulers_are_driven_over_both_sockets_and_in_both_modes_of_statements() {
    if !there_is_sysbench() {
        return;
    }
    for (transport, mode) in [("unix", "auto"), ("tcp", "disable")] {
        let args = format!(
            "--threads 4 --script point_select,read_write --transport {transport} --ps-mode {mode}"
        );
        let (stdout, json) = tiny(transport, &args);
        assert_eq!(
            keys(&json["cells"]),
            [
                "point_select sqlish pool 4",
                "point_select sqlish per-connection 4",
                "read_write sqlish pool 4",
                "read_write sqlish per-connection 4",
            ]
        );
        for cell in json["cells"].as_array().unwrap() {
            assert_eq!(cell["transport"], transport);
            // Not that rates are above 0: a machine that stands still answers nothing in the window.
            let numbers = "qps qps_min qps_max tps mean_us p99_us max_us ignored_errors \
                           server_rss_kib server_cpu_s client_cpu_s client_busy";
            for number in numbers.split_whitespace() {
                assert!(cell[number].is_number(), "{number} in {cell}");
            }
            assert!(cell["server_threads_peak"].as_u64().unwrap() > 0, "{cell}");
        }
        assert!(
            stdout.contains(&format!(
                "read_write over {transport}, queries/s, one round of 1s"
            )) && stdout.contains(&format!("--db-ps-mode={mode}\n"))
                && stdout.contains("pool / per-connection"),
            "{stdout}"
        );
    }
}

#[test]
fn point_selects_are_measured_beside_heavy_statements() {
    if !there_is_sysbench() {
        return;
    }
    let (stdout, json) = tiny("heavy", "--heavy 0,1 --heavy-ms 20 --light 4 --rate 100");
    let cells = json["cells"].as_array().unwrap();
    let heavy: Vec<_> = cells.iter().map(|cell| cell["heavy"].as_u64()).collect();
    assert_eq!(heavy, [Some(0), Some(1), Some(0), Some(1)]);
    for cell in cells {
        assert!(cell["p99_us"].is_number(), "{cell}");
        assert!(cell["digests"].as_u64().unwrap() > 0, "{cell}");
        assert!(cell["heavy"] != 0 || cell["heavy_qps"] == 0.0, "{cell}");
    }
    assert!(stdout.contains("100/s by 4 threads"), "{stdout}");
}

#[test]
fn mariadb_stands_beside_in_both_its_modes_and_leaves_nothing() {
    if !there_is_sysbench() || !there_is_mariadb() {
        return;
    }
    let (stdout, json) = tiny(
        "mariadb",
        "--against mariadb --scheduler pool --script point_select --threads 4",
    );
    assert_eq!(
        keys(&json["cells"]),
        [
            "point_select sqlish pool 4",
            "point_select mariadb pool-of-threads 4",
            "point_select mariadb one-thread-per-connection 4",
        ]
    );
    let versions = json["versions"].as_str().unwrap();
    assert!(versions.contains("MariaDB"), "{versions}");
    assert!(
        stdout.contains("MariaDB pool-of-threads / one-thread-per-connection"),
        "{stdout}"
    );
}

/// Standard error of the tool is a pipe that the keeper inherits, which ends as it does.
#[test]
fn no_mariadb_outlives_the_tool() {
    if !there_is_sysbench() || !there_is_mariadb() {
        return;
    }
    let folder = Folder::new("mysql-orphans");
    let args = format!(
        "mysql --against mariadb --scheduler pool --script point_select --threads 4 {TINY} --rounds 100"
    );
    let mut tool = study(&args)
        .env("TMPDIR", &folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(tool.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("1/") {
        line.clear();
        let more = stderr.read_line(&mut line).unwrap() > 0;
        assert!(more, "the tool ended early");
    }
    let data = |entry: &fs::DirEntry| entry.path().join("data").is_dir();
    let entries = fs::read_dir(&folder.0).unwrap().map(Result::unwrap);
    assert_eq!(entries.filter(data).count(), 2, "one for each mode");
    kill_process(Pid::from_child(&tool), Signal::KILL).unwrap();
    assert!(!tool.wait().unwrap().success());
    stderr.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn what_is_missing_is_named_with_how_to_come_by_it() {
    let folder = Folder::new("mysql-nothing-here");
    let output = study("mysql").env("PATH", &folder.0).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("apt-get install -y sysbench") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn bad_arguments_are_one_line_and_exit_code_2() {
    refused("mysql --against postgres", "mariadb");
    refused("mysql --scheduler event-loop", "event-loop");
    refused("mysql --script insert", "point_select");
}
