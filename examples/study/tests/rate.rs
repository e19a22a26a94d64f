//! Statements by the clock, and the highest rate that a server bears.

#![cfg(target_os = "linux")]

mod common;

use serde_json::Value;

use common::{Folder, refused, study, text};

#[test]
fn every_workload_has_an_open_loop() {
    let folder = Folder::new("rate");
    let json = folder.join("t.json");
    let args = "table --workload all --scheduler pool,per-connection --clients 4 --rounds 1 \
                --seconds 0.1 --warmup 0.02 --rows 1000 --rate 100";
    let output = study(args).arg("--json").arg(&json).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(stdout.contains("open loop: 100 due a second"), "{stdout}");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 7 * 2);
    for cell in cells {
        assert_eq!(
            (&cell["rate"], &cell["errors"]),
            (&100.into(), &0.into()),
            "{cell}"
        );
    }
}

#[test]
fn the_knee_is_looked_for_on_each_server() {
    let folder = Folder::new("knee");
    let json = folder.join("t.json");
    let args = "table --workload ping --scheduler pool,event-loop --clients 2 --rounds 1 \
                --seconds 0.05 --warmup 0 --rows 10 --find-knee 1000";
    let output = study(args).arg("--json").arg(&json).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(
        stdout.contains("a 99th percentile of at most 1s"),
        "{stdout}"
    );
    let json: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let knees = json["knees"].as_array().unwrap();
    assert_eq!(knees.len(), 2);
    for knee in knees {
        assert!(!knee["probes"].as_array().unwrap().is_empty(), "{knee}");
    }
}

#[test]
fn rates_and_bounds_that_cannot_be_are_refused() {
    refused("table --rate 0", "--rate");
    refused("table --find-knee 5 --rate 10", "--find-knee");
}
