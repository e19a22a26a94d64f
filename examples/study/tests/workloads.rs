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
fn writes_are_measured_with_hooks_and_without_beside_what_the_disk_can_do() {
    let folder = Folder::new("disk");
    let json = folder.join("d.json");
    for sync in ["fsync", "direct"] {
        let output = study("disk --clients 2,8 --rounds 1 --seconds 0.2 --warmup 0.02 --rows 64")
            .args(["--sync", sync, "--dir", "."])
            .arg("--json")
            .arg(&json)
            .output()
            .unwrap();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stderr}\n{stdout}");
        assert!(
            stdout.contains("pool / per-connection, no hooks"),
            "{stdout}"
        );
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let cells = json["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 2 * 2 * 2, "{json}");
        for cell in cells {
            assert_eq!(cell["errors"], 0, "{cell}");
        }
    }
    let left = std::fs::read_dir(".").unwrap();
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let left = left.map(|entry| name(entry.unwrap()));
    assert_eq!(
        left.filter(|name| name.starts_with("study-disk")).count(),
        0
    );
    refused("disk --scheduler std-loop", "writes to no disk");
    refused("disk --sync never", "no way to write");
    refused("disk --dir /proc/no/such", "cannot write");
    refused("table --hooks on", "hooks");
}

#[test]
fn a_ramp_is_of_the_mixed_business_alone() {
    refused("table --ramp-up 1", "ramp-up");
    refused("mixed --ramp-up x", "--ramp-up");
}
