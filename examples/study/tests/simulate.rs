//! `study calibrate` and `study simulate` from end to end.

#![cfg(target_os = "linux")]

mod common;

use serde_json::Value;

use common::{Folder, refused, study, text};

#[test]
fn what_calibrate_writes_simulate_reads() {
    let folder = Folder::new("simulate");
    let (measured, simulated) = (folder.join("c.json"), folder.join("s.json"));
    let output = study("calibrate --seconds 0.1 --rounds 1")
        .arg("--json")
        .arg(&measured)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output =
        study("simulate --seconds 0.1 --rounds 1 --cores 2,4 --clients 16,32 --no-published")
            .arg("--calibration")
            .arg(&measured)
            .arg("--json")
            .arg(&simulated)
            .output()
            .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    for part in ["the error is", "point_select on 4 cores"] {
        assert!(stdout.contains(part), "no {part} in\n{stdout}");
    }
    let json: Value = serde_json::from_str(&std::fs::read_to_string(simulated).unwrap()).unwrap();
    assert_eq!(json["points"].as_array().unwrap().len(), 2 * 2 * 2);
    assert_eq!(json["validation"].as_array().unwrap().len(), 2 * 4);
    let before: Value = serde_json::from_str(&std::fs::read_to_string(measured).unwrap()).unwrap();
    assert_eq!(json["calibration"], before["calibration"]);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    refused("simulate --scheduler event-loop", "cannot be simulated");
    refused("simulate --cores 2000", "1024 groups");
    refused("simulate --calibration /no/such", "cannot read");
    refused("calibrate --cores 2", "cores");
}
