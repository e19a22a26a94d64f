//! The convoy: everybody wants one row, and whoever waits for it too long begins again.

#![cfg(target_os = "linux")]

mod common;

use serde_json::Value;

use common::{Folder, refused, study, text};

#[test]
fn a_convoy_is_measured_on_every_scheduler_that_can_serve_it() {
    let folder = Folder::new("convoy");
    let json = folder.join("t.json");
    let args = "table --workload convoy --scheduler all --transport all --clients 8 --rounds 1 \
                --seconds 0.1 --warmup 0.02 --rows 1000 --lock-wait-timeout 50";
    let output = study(args).arg("--json").arg(&json).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(stdout.contains("  commit p99 ms"), "{stdout}");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4 * 2, "all but the event loop, over both");
    for cell in cells {
        assert_eq!(
            (&cell["errors"], &cell["lock_timeouts"]),
            (&0.into(), &0.into()),
            "{cell}"
        );
        assert!(cell["commit_p99_us"].is_number(), "{cell}");
    }
}

#[test]
fn the_patience_for_a_row_is_a_number_of_seconds() {
    refused(
        "table --workload convoy --lock-wait-timeout 0",
        "--lock-wait-timeout",
    );
}
