//! `study single` and `study mixed` from end to end.

#![cfg(target_os = "linux")]

mod common;

use serde_json::Value;

use common::{Folder, refused, study, text};

const TINY: &str = "--rounds 1 --seconds 0.1 --warmup 0.02 --rows 20000";

#[test]
fn one_client_is_measured_over_both_sockets() {
    let output = study(&format!("single --scheduler all {TINY}"))
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    for part in [
        "ping, one client",
        "point_select, one client",
        "unix / tcp",
        "event-loop",
    ] {
        assert!(stdout.contains(part), "no {part} in\n{stdout}");
    }
}

#[test]
fn the_mixed_business_joins_slowly_and_is_counted_second_by_second() {
    let folder = Folder::new("mixed");
    let json = folder.join("m.json");
    let output = study(&format!("mixed --clients 8 --ramp-up 0.1 {TINY}"))
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(
        stdout.contains("joined over 100ms, then measured for 100ms"),
        "{stdout}"
    );
    let json: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    for cell in json["cells"].as_array().unwrap() {
        assert_eq!(cell["errors"], 0, "{cell}");
        // On a machine that stands still nothing may be done in a tenth of a second.
        if let Some(seconds) = cell["seconds"].as_array() {
            assert_eq!(seconds[0].as_array().unwrap().len(), 4, "{cell}");
        }
    }
}

#[test]
fn a_ramp_is_of_the_mixed_business_alone() {
    refused("table --ramp-up 1", "ramp-up");
    refused("mixed --ramp-up x", "--ramp-up");
}
