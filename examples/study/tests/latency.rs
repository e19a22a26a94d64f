//! `study latency` as its users meet it: tiny runs of each kind, and what it says when it cannot.

#![cfg(target_os = "linux")]

mod common;

use std::fs;

use serde_json::Value;

use common::{Folder, refused, study, text};

const TINY: &str = "--heavy-ms 5 --seconds 0.1 --warmup 0 --rounds 1 --rows 100";

/// Runs it without errors; what it prints, and its cells.
fn tiny(name: &str, args: &str) -> (String, Vec<Value>) {
    let folder = Folder::new(&format!("latency-{name}"));
    let json = folder.join("l.json");
    let output = study(&format!("latency {TINY} {args}"))
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(stdout.contains("\nerrors: 0\n"), "{stdout}");
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    assert!(json["machine"]["command_line"].is_string(), "{json}");
    assert!(
        json["heavy_statement"]
            .as_str()
            .unwrap()
            .starts_with("SELECT ")
    );
    let cells = json["cells"].as_array().unwrap().clone();
    for cell in &cells {
        assert_eq!(cell["errors"], 0, "{cell}");
        // Not that rates are above 0: a machine that stands still answers nothing in the window.
        for number in ["p50_us", "p99_us", "max_us", "qps"] {
            assert!(cell[number].is_number(), "{number} in {cell}");
        }
        for number in ["heavy_qps", "heavy_each_qps_min", "heavy_each_qps_mean"] {
            let beside_none = cell["heavy"] == 0 && cell[number] != 0.0;
            assert!(
                cell[number].is_number() && !beside_none,
                "{number} in {cell}"
            );
        }
        assert!(cell["server_threads_peak"].as_u64().unwrap() > 0, "{cell}");
    }
    (stdout, cells)
}

fn key(cell: &Value) -> (&str, u64, &str) {
    (
        cell["scheduler"].as_str().unwrap(),
        cell["heavy"].as_u64().unwrap(),
        cell["kind"].as_str().unwrap(),
    )
}

#[test]
fn both_schedulers_answer_everything_and_are_compared() {
    let (stdout, cells) = tiny("both", "--heavy 0,2");
    let keys: Vec<_> = cells.iter().map(key).collect();
    let expected = [
        ("pool", 0, "burn"),
        ("pool", 2, "burn"),
        ("per-connection", 0, "burn"),
        ("per-connection", 2, "burn"),
    ];
    assert_eq!(keys, expected);
    // What is due in the window has a latency, however late it is answered.
    assert!(cells.iter().all(|cell| cell["max_us"].as_f64() > Some(0.0)));
    for line in [
        "light: point selects over unix, 400/s by 16 clients, counted from when they were due",
        "heavy: 5ms of CPU, as calibrated with a lone client, back to back: SELECT BENCHMARK(",
        "\np99, pool / per-connection ",
    ] {
        assert!(stdout.contains(line), "no '{line}' in\n{stdout}");
    }
}

#[test]
fn sleeps_of_both_kinds_are_heavy_statements() {
    for (kind, statement) in [
        ("hooked", "SELECT SLEEP(0.005)"),
        ("unseen", "SELECT SLEEP_UNSEEN(0.005)"),
    ] {
        let args = format!("--heavy 3 --heavy-kind {kind} --light 4 --rate 1000");
        let (stdout, cells) = tiny(kind, &args);
        assert!(stdout.contains(statement), "{stdout}");
        assert_eq!(key(&cells[0]), ("pool", 3, kind));
        let threads = cells[1]["server_threads_peak"].as_u64().unwrap();
        assert!(
            threads >= 7,
            "a thread for each of 4 + 3 clients, not {threads}"
        );
    }
}

#[test]
fn a_closed_loop_may_begin_cold_and_over_tcp() {
    let args = "--heavy 1 --light-closed 8 --cold --transport tcp --mix 0.5 --heavy-kind hooked";
    let (stdout, cells) = tiny("closed", args);
    assert_eq!(cells.len(), 2);
    for part in [
        "over tcp, by 8 clients in a closed loop",
        "with probability 0.5, else a point select",
        "of 100ms, from the start",
    ] {
        assert!(stdout.contains(part), "no '{part}' in\n{stdout}");
    }
}

#[test]
fn the_limits_of_the_pool_reach_it() {
    let args = "--scheduler pool --heavy 4 --heavy-kind unseen --max-threads 2 --stall-limit-ms 1";
    let (_, cells) = tiny("limits", args);
    let threads = |cells: &[Value]| cells[0]["server_threads_peak"].as_u64().unwrap();
    let (_, free) = tiny(
        "free",
        "--scheduler pool --heavy 4 --heavy-kind hooked --heavy-ms 50",
    );
    // Beside the workers there are the same others in both.
    assert!(threads(&cells) < threads(&free), "{cells:?} {free:?}");
}

#[test]
fn the_hand_written_servers_can_be_measured_too() {
    let args = "--scheduler std-loop,event-loop --heavy 0,1 --heavy-kind hooked";
    let (stdout, cells) = tiny("hand-written", args);
    assert_eq!(cells.len(), 4);
    assert!(
        !stdout.contains("p99, "),
        "nothing to compare with: {stdout}"
    );
}

#[test]
fn what_cannot_be_done_is_one_line_and_exit_code_2() {
    refused("", "study latency");
    refused("latency --heavy-kind slow", "hooked");
    refused("latency --rate 5 --light-closed 5", "--light-closed");
    refused("latency --max-threads 1", "--max-threads");
    refused("latency --server-cpus 1000", "CPU 1000");
    refused(
        "latency --json /no/such/folder/l.json",
        "/no/such/folder/l.json",
    );
}
