//! Results for machines: JSON and CSV, with the same fields under the same names.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::calibrate::Calibration;
use crate::disk;
use crate::error::{Error, Result};
use crate::knee::Knee;
use crate::latency;
use crate::machine::Machine;
use crate::mysql::{self, Comparison};
use crate::plan::{KINDS, show_cpus};
use crate::report::Data;
use crate::run::{Cell, Commits, QUANTILES};
use crate::simulate;

/// A file that results will be written to. It is opened before the measurement, so that an hour of
/// it is not lost to a folder that does not exist.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens or creates the file. What it holds stays until there is something to replace it.
    pub fn open(path: &Path) -> Result<Output> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = file
            .map_err(|error| Error::usage(format!("cannot write {}: {error}", path.display())))?;
        Ok(Output {
            path: path.to_path_buf(),
            file,
        })
    }

    /// Replaces what the file holds.
    pub fn write(mut self, text: &str) -> Result<()> {
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all(text.as_bytes()));
        written
            .map_err(|error| Error::run(format!("cannot write {}: {error}", self.path.display())))
    }
}

/// `{"machine": {..}, "cells": [{..}, ..]}`.
pub fn json(machine: &Machine, cells: &[Cell]) -> String {
    let cells: Vec<_> = cells
        .iter()
        .map(|cell| {
            let mut fields = fields(cell);
            if !cell.seconds.is_empty() {
                fields.insert("kinds".into(), KINDS.map(|(name, _)| name).to_vec().into());
                fields.insert("seconds".into(), json!(cell.seconds));
            }
            fields
        })
        .collect();
    pretty(&json!({ "machine": facts(machine), "cells": cells }))
}

/// `{"machine": {..}, "heavy_statement": "..", "cells": [{..}, ..]}`.
pub fn latency_json(machine: &Machine, outcome: &latency::Outcome) -> String {
    let cells: Vec<_> = outcome.cells.iter().map(latency_fields).collect();
    pretty(&json!({
        "machine": facts(machine),
        "heavy_statement": outcome.heavy_statement,
        "cells": cells,
    }))
}

/// `{"machine": {..}, "sync": "..", "cells": [{"hooks": .., ..}, ..], "fio": [{..}, ..]}`.
pub fn disk_json(machine: &Machine, sync: disk::Sync, outcome: &disk::Outcome) -> String {
    let cells = outcome.passes.iter().flat_map(|(hooks, cells)| {
        cells.iter().map(move |cell| {
            let mut fields = fields(cell);
            fields.insert("hooks".into(), json!(hooks));
            fields
        })
    });
    let fio = outcome.fio.iter().filter_map(|(threads, fio)| {
        let fio = fio.as_ref()?;
        Some(json!({
            "threads": threads,
            "writes": rounded(fio.writes, 1.0),
            "p99_us": rounded(fio.p99_us, 10.0),
        }))
    });
    pretty(&json!({
        "machine": facts(machine),
        "sync": sync.to_string(),
        "cells": cells.collect::<Vec<_>>(),
        "fio": fio.collect::<Vec<_>>(),
    }))
}

/// `{"machine": {..}, "calibration": {..}}`.
pub fn calibration_json(machine: &Machine, calibration: &Calibration) -> String {
    pretty(&json!({ "machine": facts(machine), "calibration": calibration.json() }))
}

/// `{"machine": {..}, "calibration": {..}, "validation": [..], "points": [..], "published": [..]}`.
pub fn simulation_json(machine: &Machine, outcome: &simulate::Outcome) -> String {
    let mut all = simulate::json(outcome);
    all["machine"] = facts(machine);
    pretty(&all)
}

/// `{"machine": {..}, "versions": "..", "cells": [{..}, ..], "ratios": [{..}, ..]}`.
pub fn mysql_json(machine: &Machine, versions: &str, cells: &[mysql::Cell]) -> String {
    let ratios = cells.iter().filter_map(|above| {
        let base = above.target.base()?;
        let here = |cell: &&mysql::Cell| {
            (cell.script, cell.threads, cell.target) == (above.script, above.threads, base)
        };
        let Comparison { qps, cpu } = Comparison::of(above, cells.iter().find(here)?)?;
        Some(object([
            ("workload", json!(above.script.name())),
            ("server", json!(above.target.server())),
            ("scheduler", json!(above.target.scheduler())),
            ("to", json!(base.scheduler())),
            ("clients", json!(above.threads)),
            ("qps_ratio", rounded(qps.median, 1e4)),
            ("qps_ratio_low", rounded(qps.low, 1e4)),
            ("qps_ratio_high", rounded(qps.high, 1e4)),
            ("server_cpu_ratio", rounded(cpu.median, 1e4)),
            ("server_cpu_ratio_low", rounded(cpu.low, 1e4)),
            ("server_cpu_ratio_high", rounded(cpu.high, 1e4)),
        ]))
    });
    pretty(&json!({
        "machine": facts(machine),
        "versions": versions,
        "cells": cells.iter().map(mysql_fields).collect::<Vec<_>>(),
        "ratios": ratios.collect::<Vec<_>>(),
    }))
}

/// `{"machine": {..}, "versions": "..", "cells": [{..}, ..]}`.
pub fn mysql_heavy_json(machine: &Machine, versions: &str, cells: &[mysql::heavy::Cell]) -> String {
    let cells = cells.iter().map(|cell| {
        object([
            ("server", json!(cell.target.server())),
            ("scheduler", json!(cell.target.scheduler())),
            ("heavy", json!(cell.heavy)),
            ("digests", json!(cell.digests)),
            ("mean_us", rounded(cell.mean_us, 10.0)),
            ("p99_us", rounded(cell.p99_us, 10.0)),
            ("max_us", rounded(cell.max_us, 10.0)),
            ("qps", rounded(cell.qps, 10.0)),
            ("heavy_qps", rounded(cell.heavy_qps, 1e3)),
            ("server_threads_peak", json!(cell.server_threads_peak)),
        ])
    });
    pretty(&json!({
        "machine": facts(machine),
        "versions": versions,
        "cells": cells.collect::<Vec<_>>(),
    }))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// `{"machine": {..}, "p99_bound_us": .., "knees": [{..}, ..]}`.
pub fn knee_json(machine: &Machine, bound: Duration, knees: &[Knee]) -> String {
    let knees = knees.iter().map(|knee| {
        let probes = knee.probes.iter().map(|probe| {
            json!({
                "rate": probe.rate,
                "p99_us": rounded(probe.p99_us, 10.0),
                "errors": probe.errors,
            })
        });
        object([
            ("workload", json!(knee.workload.name())),
            ("scheduler", json!(knee.scheduler.name())),
            ("transport", json!(knee.transport.name())),
            ("clients", json!(knee.clients)),
            ("closed_qps", rounded(knee.closed_qps, 1.0)),
            ("rate", json!(knee.best().map(|probe| probe.rate))),
            (
                "p99_us",
                json!(knee.best().map(|probe| rounded(probe.p99_us, 10.0))),
            ),
            ("probes", probes.collect()),
        ])
    });
    pretty(&json!({
        "machine": facts(machine),
        "p99_bound_us": bound.as_micros() as u64,
        "knees": knees.collect::<Vec<_>>(),
    }))
}

/// `{"machine": {..}, "seed": .., "cells": [..], "latency": [..]}`.
pub fn report_json(machine: &Machine, seed: u64, data: &Data) -> String {
    let cells = data.cells.iter().map(|cell| {
        let mut fields = fields(cell);
        let quantiles = cell.quantiles_us.iter().map(|us| rounded(*us, 10.0));
        fields.insert("quantiles_us".into(), quantiles.collect());
        fields
    });
    let latency = data.latency.iter().map(|(name, cell)| of_row(name, cell));
    pretty(&json!({
        "machine": facts(machine),
        "seed": seed,
        "quantiles": QUANTILES,
        "cells": cells.collect::<Vec<_>>(),
        "latency": latency.collect::<Vec<_>>(),
    }))
}

/// A line of names, then a line for each cell. No value of a cell holds a comma.
pub fn csv(cells: &[Cell]) -> String {
    lines(cells.iter().map(fields))
}

/// A line for each quantile of each cell.
pub fn cdf_csv(cells: &[Cell]) -> String {
    lines(cells.iter().flat_map(|cell| {
        QUANTILES
            .iter()
            .zip(&cell.quantiles_us)
            .map(|(quantile, us)| {
                object([
                    ("workload", json!(cell.workload.name())),
                    ("scheduler", json!(cell.scheduler.name())),
                    ("transport", json!(cell.transport.name())),
                    ("clients", json!(cell.clients)),
                    ("quantile", json!(quantile)),
                    ("latency_us", rounded(*us, 10.0)),
                ])
            })
    }))
}

/// A line for each row of light statements beside heavy ones. A row's name may hold a comma, which
/// becomes a semicolon.
pub fn latency_csv(rows: &[(String, latency::Cell)]) -> String {
    lines(
        rows.iter()
            .map(|(name, cell)| of_row(&name.replace(',', ";"), cell)),
    )
}

fn of_row(name: &str, cell: &latency::Cell) -> Map<String, Value> {
    let mut fields = object([("row", json!(name))]);
    fields.extend(latency_fields(cell));
    fields
}

fn lines(records: impl Iterator<Item = Map<String, Value>>) -> String {
    let mut text = String::new();
    for (index, fields) in records.enumerate() {
        if index == 0 {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            text.push_str(&names.join(","));
            text.push('\n');
        }
        let values: Vec<String> = fields
            .values()
            .map(|value| match value {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
            .collect();
        text.push_str(&values.join(","));
        text.push('\n');
    }
    text
}

fn facts(machine: &Machine) -> Value {
    json!({
        "cpu_model": machine.cpu_model,
        "cores": machine.cores,
        "kernel": machine.kernel,
        "governor": machine.governor,
        "quota": machine.quota,
        "server_cpus": show_cpus(&machine.split.server),
        "client_cpus": show_cpus(&machine.split.client),
        "commit": machine.commit,
        "command_line": machine.command_line,
        "date": machine.date,
    })
}

/// The one place that names a cell's fields, in the order that both formats keep.
fn fields(cell: &Cell) -> Map<String, Value> {
    let of_commits = |of: &dyn Fn(&Commits) -> Value| cell.commits.as_ref().map_or(Value::Null, of);
    let fields = [
        ("workload", json!(cell.workload.name())),
        ("scheduler", json!(cell.scheduler.name())),
        ("transport", json!(cell.transport.name())),
        ("clients", json!(cell.clients)),
        ("rate", json!(cell.rate)),
        ("qps", rounded(cell.qps.median, 1.0)),
        ("qps_min", rounded(cell.qps.min, 1.0)),
        ("qps_max", rounded(cell.qps.max, 1.0)),
        ("p50_us", rounded(cell.p50_us, 10.0)),
        ("p95_us", rounded(cell.p95_us, 10.0)),
        ("p99_us", rounded(cell.p99_us, 10.0)),
        ("max_us", rounded(cell.max_us, 10.0)),
        ("commit_p50_us", of_commits(&|c| rounded(c.p50_us, 10.0))),
        ("commit_p99_us", of_commits(&|c| rounded(c.p99_us, 10.0))),
        ("lock_timeouts", of_commits(&|c| json!(c.lock_timeouts))),
        ("errors", json!(cell.errors.total())),
        ("server_threads_peak", json!(cell.server_threads_peak)),
        ("server_rss_kib", json!(cell.server_rss_kib)),
        ("server_cpu_s", rounded(cell.server_cpu_s, 1e3)),
        ("client_cpu_s", rounded(cell.client_cpu_s, 1e3)),
        ("jain_fairness", rounded(cell.jain_fairness, 1e4)),
    ];
    object(fields)
}

/// Likewise for `study mysql`: the same names where it measures the same.
fn mysql_fields(cell: &mysql::Cell) -> Map<String, Value> {
    let each = |values: &[f64], per_unit: f64| {
        let values = values.iter().map(|value| rounded(*value, per_unit));
        values.collect::<Vec<_>>()
    };
    object([
        ("workload", json!(cell.script.name())),
        ("server", json!(cell.target.server())),
        ("scheduler", json!(cell.target.scheduler())),
        ("transport", json!(cell.transport.name())),
        ("clients", json!(cell.threads)),
        ("qps", rounded(cell.qps.median, 1.0)),
        ("qps_min", rounded(cell.qps.min, 1.0)),
        ("qps_max", rounded(cell.qps.max, 1.0)),
        ("qps_rounds", json!(each(&cell.qps_rounds, 1.0))),
        ("tps", rounded(cell.tps, 10.0)),
        ("mean_us", rounded(cell.mean_us, 10.0)),
        ("p99_us", rounded(cell.p99_us, 10.0)),
        ("max_us", rounded(cell.max_us, 10.0)),
        ("ignored_errors", json!(cell.ignored_errors)),
        ("server_threads_peak", json!(cell.server_threads_peak)),
        ("server_rss_kib", json!(cell.server_rss_kib)),
        ("server_cpu_s", rounded(cell.server_cpu_s, 1e3)),
        (
            "server_cpu_us_rounds",
            json!(each(&cell.cpu_us_rounds, 100.0)),
        ),
        ("client_cpu_s", rounded(cell.client_cpu_s, 1e3)),
        ("client_busy", rounded(cell.client_busy, 1e3)),
    ])
}

/// Likewise for `study latency`.
fn latency_fields(cell: &latency::Cell) -> Map<String, Value> {
    object([
        ("scheduler", json!(cell.scheduler.name())),
        ("heavy", json!(cell.heavy)),
        ("kind", json!(cell.kind.name())),
        ("p50_us", rounded(cell.p50_us, 10.0)),
        ("p99_us", rounded(cell.p99_us, 10.0)),
        ("max_us", rounded(cell.max_us, 10.0)),
        ("qps", rounded(cell.qps, 10.0)),
        ("heavy_qps", rounded(cell.heavy_qps, 1e3)),
        ("heavy_each_qps_min", rounded(cell.heavy_each_qps_min, 1e3)),
        (
            "heavy_each_qps_mean",
            rounded(cell.heavy_each_qps_mean, 1e3),
        ),
        ("errors", json!(cell.errors.total())),
        ("server_threads_peak", json!(cell.server_threads_peak)),
    ])
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields
        .into_iter()
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

/// As many digits as the instrument has.
fn rounded(value: f64, per_unit: f64) -> Value {
    json!((value * per_unit).round() / per_unit)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::Split;
    use crate::load::Errors;
    use crate::plan::{Scheduler, Transport, Workload};
    use crate::stats::Spread;

    pub(crate) fn cell(scheduler: Scheduler, clients: usize, qps: f64) -> Cell {
        Cell {
            workload: Workload::PointSelect,
            scheduler,
            transport: Transport::Unix,
            clients,
            rate: None,
            qps: Spread {
                median: qps,
                min: qps / 2.0,
                max: qps * 2.0,
            },
            p50_us: 10.04,
            quantiles_us: crate::run::QUANTILES.map(|q| 10.0 + q * 1e4).to_vec(),
            p95_us: 20.0,
            p99_us: 30_000.0,
            max_us: 40_000.0,
            seconds: Vec::new(),
            commits: None,
            errors: Errors::default(),
            server_threads_peak: 5,
            server_rss_kib: 1_000,
            server_cpu_s: 0.98765,
            client_cpu_s: 0.5,
            client_busy: 0.5,
            jain_fairness: 0.99996,
            disturbed: 0,
        }
    }

    #[test]
    fn json_has_the_promised_shape() {
        let machine = Machine::look(&Split {
            server: vec![0, 1],
            client: vec![2],
        });
        let text = json(&machine, &[cell(Scheduler::PerConnection, 16, 1234.56)]);
        let value: Value = serde_json::from_str(&text).unwrap();
        for fact in [
            "cpu_model",
            "kernel",
            "governor",
            "quota",
            "commit",
            "command_line",
            "date",
        ] {
            assert!(value["machine"][fact].is_string(), "{fact}");
        }
        assert_eq!(value["machine"]["server_cpus"], "0,1");
        let cell = value["cells"][0].as_object().unwrap();
        let names: Vec<_> = cell.keys().map(String::as_str).collect();
        let promised = "workload scheduler transport clients rate qps qps_min qps_max p50_us p95_us p99_us \
                        max_us commit_p50_us commit_p99_us lock_timeouts errors \
                        server_threads_peak server_rss_kib server_cpu_s client_cpu_s jain_fairness";
        assert_eq!(names.join(" "), promised);
        assert_eq!(cell["scheduler"], "per-connection");
        assert_eq!(cell["qps"], 1235.0);
        assert_eq!(cell["server_cpu_s"], 0.988);
        assert!(cell["commit_p50_us"].is_null(), "a select has no commit");
    }

    #[test]
    fn latencies_have_the_promised_fields() {
        let machine = Machine::look(&Split {
            server: vec![0],
            client: vec![1],
        });
        let outcome = latency::Outcome {
            heavy_statement: "SELECT SLEEP(1)".into(),
            cells: vec![latency::table::tests::cell(Scheduler::Pool, 4, 5_000.04)],
        };
        let value: Value = serde_json::from_str(&latency_json(&machine, &outcome)).unwrap();
        assert!(value["machine"]["command_line"].is_string());
        assert_eq!(value["heavy_statement"], "SELECT SLEEP(1)");
        let cell = value["cells"][0].as_object().unwrap();
        let names: Vec<_> = cell.keys().map(String::as_str).collect();
        let promised = "scheduler heavy kind p50_us p99_us max_us qps heavy_qps heavy_each_qps_min \
                        heavy_each_qps_mean errors server_threads_peak";
        assert_eq!(names.join(" "), promised);
        assert_eq!((&cell["kind"], &cell["heavy"]), (&"burn".into(), &4.into()));
        assert_eq!(
            (&cell["p99_us"], &cell["heavy_qps"]),
            (&5_000.0.into(), &2.0.into())
        );
    }

    #[test]
    fn csv_has_a_head_and_as_many_fields_in_every_line() {
        let text = csv(&[
            cell(Scheduler::Pool, 16, 10.0),
            cell(Scheduler::Pool, 32, 20.0),
        ]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() == 21));
        assert_eq!(
            (lines[0][3], lines[2][3], lines[1][1]),
            ("clients", "32", "pool")
        );
        assert_eq!(csv(&[]), "");
    }

    #[test]
    fn a_file_keeps_what_it_holds_until_there_is_something_better() {
        let path = std::env::temp_dir().join(format!("study-record-{}", std::process::id()));
        std::fs::write(&path, "an earlier result, and a long one").unwrap();
        let output = Output::open(&path).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "an earlier result, and a long one"
        );
        output.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_a_usage_error() {
        let error = Output::open(Path::new("/no/such/folder/x.json")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("/no/such/folder/x.json"));
    }
}
