//! The tool as its users meet it: a tiny table of each scheduler, what it says when it cannot, and
//! that no server outlives it.

#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use common::{Folder, refused, study, text};
use study::plan::Scheduler;

const TINY: &str = "--clients 4 --seconds 0.1 --warmup 0.02 --rows 100";

/// A table with one column over both transports; its JSON.
fn tiny_table(scheduler: &str, workload: &str) -> Value {
    let folder = Folder::new(&format!("table-{scheduler}-{workload}"));
    let (json, csv) = (folder.join("t.json"), folder.join("t.csv"));
    let args = format!(
        "table --scheduler {scheduler} --workload {workload} --transport all --rounds 1 {TINY}"
    );
    let Output {
        status,
        stdout,
        stderr,
    } = study(&args)
        .arg("--json")
        .arg(&json)
        .arg("--csv")
        .arg(&csv)
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{stderr}\n{stdout}");
    assert!(
        stdout.contains(&format!("\n{scheduler} ")) && stdout.contains("errors: 0"),
        "{stdout}"
    );
    assert!(
        stderr.contains("2/2 "),
        "plain lines where there is no terminal: {stderr}"
    );
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), 3);
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2);
    for cell in cells {
        // Not that it is above 0: on a machine that stands still nothing is answered in a tenth of a second.
        assert!(cell["qps"].is_number(), "{cell}");
        assert_eq!(
            (&cell["errors"], &cell["clients"]),
            (&0.into(), &4.into()),
            "{cell}"
        );
        assert!(cell["server_threads_peak"].as_u64().unwrap() > 0, "{cell}");
        assert!(cell["server_rss_kib"].as_u64().unwrap() > 0, "{cell}");
    }
    json
}

#[test]
fn the_pool_is_measured() {
    tiny_table("pool", "ping");
}

#[test]
fn thread_per_connection_is_measured() {
    let json = tiny_table("per-connection", "ping");
    let threads = json["cells"][0]["server_threads_peak"].as_u64().unwrap();
    assert!(
        threads >= 4,
        "a thread for each of 4 clients, not {threads}"
    );
}

#[test]
fn the_std_loop_is_measured() {
    tiny_table("std-loop", "ping");
}

#[test]
fn the_event_loop_is_measured() {
    let json = tiny_table("event-loop", "ping");
    assert_eq!(json["cells"][0]["server_threads_peak"], 1);
}

#[cfg(feature = "event-loop-mt")]
#[test]
fn the_event_loop_is_measured_beside_a_thread_that_sleeps() {
    let json = tiny_table("event-loop-mt", "ping");
    assert_eq!(json["cells"][0]["server_threads_peak"], 2);
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_is_measured_on_as_many_threads_as_the_server_has_cpus() {
    let json = tiny_table("tokio", "ping");
    let cpus = study::plan::parse_cpus(json["machine"]["server_cpus"].as_str().unwrap());
    let cpus = cpus.unwrap().len();
    // Beside the one that waits for the parent to leave.
    assert_eq!(json["cells"][0]["server_threads_peak"], 1 + cpus);
}

#[cfg(feature = "tokio-blocking")]
#[test]
fn tokio_with_its_blocking_pool_is_measured() {
    tiny_table("tokio-blocking", "ping");
}

#[cfg(feature = "one-shot")]
#[test]
fn the_pool_that_re_arms_is_measured() {
    tiny_table("one-shot", "ping");
}

#[test]
fn a_peer_that_was_not_built_in_is_refused_with_the_feature_that_it_needs() {
    for scheduler in Scheduler::ALL {
        if !Scheduler::built().contains(&scheduler) {
            let feature = format!("--features {scheduler}");
            refused(&format!("table --scheduler pool,{scheduler}"), &feature);
            refused(&format!("latency --scheduler {scheduler}"), &feature);
        }
    }
}

#[test]
fn the_help_names_every_scheduler() {
    let output = study("table --help").output().unwrap();
    let help = text(&output.stdout);
    for scheduler in Scheduler::ALL {
        assert!(help.contains(scheduler.name()), "no {scheduler} in\n{help}");
    }
}

#[test]
fn selects_and_updates_find_their_rows_on_every_server() {
    for scheduler in Scheduler::built() {
        let scheduler = scheduler.name();
        tiny_table(scheduler, "point_select");
        tiny_table(scheduler, "update_nokey");
    }
}

#[test]
fn several_schedulers_get_a_row_each_and_their_ratios() {
    let output = study(&format!("table --scheduler all --rounds 2 {TINY}"))
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    for line in [
        "point_select over unix, statements/s, median of 2 rounds of 100ms",
        "pool / per-connection ",
        "pool / event-loop ",
        "per-connection / std-loop, best rounds ",
        "other machines, other engine: compare shapes, never heights",
        "pitbull, 24 cores",
    ] {
        assert!(stdout.contains(line), "no '{line}' in\n{stdout}");
    }
    // Each round begins with another scheduler.
    let mut built: Vec<&str> = Scheduler::built().iter().map(|one| one.name()).collect();
    let order: Vec<&str> = stderr
        .lines()
        .filter(|line| line.contains(&format!("/{} ", 2 * built.len())))
        .filter_map(|line| line.split_once("clients ")?.1.split_once(':'))
        .map(|(scheduler, _)| scheduler)
        .collect();
    let mut expected = built.clone();
    built.rotate_left(1);
    expected.extend(built);
    assert_eq!(order, expected);
}

#[test]
fn what_cannot_be_done_is_one_line_and_exit_code_2() {
    refused("", "study table");
    refused("table --clients many", "'many'");
    refused("table --server-cpus 1000", "CPU 1000");
    refused(
        "table --json /no/such/folder/t.json",
        "/no/such/folder/t.json",
    );
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port();
    for scheduler in Scheduler::built() {
        let args = format!("table --transport tcp --port {port} --scheduler {scheduler} {TINY}");
        refused(&args, &port.to_string());
    }
}

#[test]
fn a_file_limit_that_is_too_low_is_said_before_anything_runs() {
    // A hard limit cannot be raised again, so it is set in a shell of its own.
    let script = format!(
        "ulimit -n 100 && exec {} table --clients 4096",
        env!("CARGO_BIN_EXE_study")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("4160 open files") && stderr.contains("100"),
        "{stderr}"
    );
}

/// Standard error of the tool is a pipe that its servers inherit, so that pipe ends when the last
/// of them has ended. A server that outlived the tool would hang this test.
#[test]
fn no_server_outlives_the_tool_however_it_dies() {
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let folder = Folder::new(&format!("orphans-{}", signal.as_raw()));
        let mut tool = study(
            "table --scheduler all --workload ping --clients 4 \
                              --seconds 0.1 --rounds 1000 --rows 100",
        )
        .env("TMPDIR", &folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let mut stderr = BufReader::new(tool.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("1/") {
            line.clear();
            assert!(
                stderr.read_line(&mut line).unwrap() > 0,
                "the tool ended early"
            );
        }
        let servers = Scheduler::built().len();
        assert_eq!(sockets(&folder.0), servers, "one for each server");
        kill_process(Pid::from_child(&tool), signal).unwrap();
        assert!(!tool.wait().unwrap().success());
        stderr.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(sockets(&folder.0), 0, "{signal:?} leaves no socket behind");
    }
}

fn sockets(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}
