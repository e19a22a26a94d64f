//! A small report from end to end: every figure has data, and what can be refused is refused first.

#![cfg(target_os = "linux")]

mod common;

use std::fs;

use common::{Folder, refused, study, text};

#[test]
fn a_small_report_has_data_in_every_figure() {
    let folder = Folder::new("report");
    let out = folder.join("deep/report");
    let args = "report --quick --clients 2,4 --seconds 0.05 --rows 200 --heavy 0,1 --seed 5 --out";
    let output = study(args).arg(&out).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    assert!(stdout.trim_end().ends_with("index.html"), "{stdout}");
    let page = fs::read_to_string(out.join("index.html")).unwrap();
    // Seven workloads twice, the commits, four published shapes, and five more.
    let count = |what: &str| page.matches(what).count();
    assert_eq!((count("<section"), count("<figcaption>")), (24, 24));
    assert_eq!(count("<svg class=\"wide\""), 24);
    for figure in page.split("<section").skip(1) {
        assert!(
            figure.contains("<polyline") && figure.contains("<td>"),
            "{figure}"
        );
    }
    for part in [
        "<dt>seed</dt><dd>5</dd>",
        "<dt>commit</dt>",
        "<dt>processor</dt>",
        "--quick",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    for file in [
        "data.json",
        "throughput.csv",
        "cdf.csv",
        "latency.csv",
        "figures/memory.svg",
    ] {
        assert!(
            !fs::read_to_string(out.join(file)).unwrap().is_empty(),
            "{file}"
        );
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_it_is_measured() {
    refused("report", "--out");
    refused(
        "report --quick --out /proc/no/such/folder",
        "/proc/no/such/folder",
    );
}
