//! `study mysql --heavy`: point selects of `sysbench` at a fixed rate, beside other clients of the same
//! server that send `SELECT BENCHMARK` back to back.
//!
//! The heavy clients are a `sysbench` too, with a script of three functions. Each server is asked before
//! how many digests take the time that was asked for: MariaDB's MD5 is not sqlish's. Each round has a server
//! of its own, so that no round finds the threads that another one made.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::sysbench::{Job, Sysbench};
use super::{Round, Script, Setting, Target, Watch};
use crate::child::Folder;
use crate::error::{Error, Result};
use crate::process;
use crate::run::Progress;
use crate::stats::Spread;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// On what.
    pub setting: Setting,
    /// How many heavy clients; ascending.
    pub heavy: Vec<usize>,
    /// CPU time of a heavy statement.
    pub heavy_time: Duration,
    /// How many light clients.
    pub light: usize,
    /// Point selects a second, of all of them together.
    pub rate: u64,
}

impl Plan {
    /// How many rounds that is in all.
    pub fn rounds_in_all(&self) -> usize {
        self.setting.targets.len() * self.heavy.len() * self.setting.rounds
    }

    /// Descriptors that `sysbench` and a server will need, each.
    pub fn files_needed(&self) -> usize {
        self.light + self.heavy.iter().max().unwrap_or(&0) + 64
    }
}

/// One server beside one number of heavy clients.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Which server.
    pub target: Target,
    /// How many heavy clients.
    pub heavy: usize,
    /// Digests of one of their statements.
    pub digests: u64,
    /// The median of the rounds' mean latencies, counted from when a statement was due.
    pub mean_us: f64,
    /// The median of their 99th percentiles.
    pub p99_us: f64,
    /// The longest of all rounds.
    pub max_us: f64,
    /// Light statements a second; the median.
    pub qps: f64,
    /// Heavy statements a second, of all heavy clients; the median.
    pub heavy_qps: f64,
    /// The most threads that a server had at either end of a window.
    pub server_threads_peak: u64,
    /// Rounds in which other processes took more than [`process::DISTURBED`] of these CPUs.
    pub disturbed: usize,
}

/// Runs all of it, as [`super::run`] does.
///
/// # Errors
/// A server or `sysbench` that fails.
pub fn run(
    plan: &Plan,
    sysbench: &Sysbench,
    mut progress: impl FnMut(Progress),
) -> Result<Vec<Cell>> {
    let Plan { setting, .. } = plan;
    let targets = &setting.targets;
    let counts = targets.iter().map(|t| digests(plan, *t, sysbench));
    let digests = counts.collect::<Result<Vec<_>>>()?;
    let mut rows: Vec<Vec<Cell>> = targets.iter().map(|_| Vec::new()).collect();
    let mut done = 0;
    for &heavy in &plan.heavy {
        let mut rounds: Vec<Vec<(Round, f64)>> = targets.iter().map(|_| Vec::new()).collect();
        for turn in 0..setting.rounds {
            for step in 0..targets.len() {
                let index = (turn + step) % targets.len();
                let round = measure(plan, sysbench, targets[index], heavy, digests[index])?;
                done += 1;
                progress(Progress {
                    done,
                    of: plan.rounds_in_all(),
                    message: format!(
                        "{heavy} heavy clients {}: p99 {:.2} ms",
                        targets[index].label(),
                        round.0.report.p99_us / 1e3
                    ),
                });
                rounds[index].push(round);
            }
        }
        for (index, rounds) in rounds.iter().enumerate() {
            rows[index].push(cell(targets[index], heavy, digests[index], rounds));
        }
    }
    Ok(rows.into_iter().flatten().collect())
}

/// What the heavy clients run. `sysbench` reads it as it starts.
const SCRIPT: &str = "\
sysbench.cmdline.options = { digests = {'digests of a statement', 1000} }

function thread_init()
   connection = sysbench.sql.driver():connect()
   statement = string.format(\"SELECT BENCHMARK(%d, MD5('thread-group-pool'))\", sysbench.opt.digests)
end

function event()
   connection:query(statement)
end

function thread_done()
   connection:disconnect()
end
";

/// The script as a file, for as long as this lives.
fn script() -> Result<(Folder, PathBuf)> {
    let folder = Folder::create()?;
    let file = folder.0.join("heavy.lua");
    fs::write(&file, SCRIPT)
        .map_err(|error| Error::usage(format!("cannot write {}: {error}", file.display())))?;
    Ok((folder, file))
}

/// The calibration uses at least this much CPU, so that the clock's tick of 10 ms is a small part.
const SAMPLE: Duration = Duration::from_millis(300);

/// How many digests take the CPU time of a heavy statement.
fn digests(plan: &Plan, target: Target, sysbench: &Sysbench) -> Result<u64> {
    let server = plan.setting.start(target, sysbench)?;
    let (_folder, script) = script()?;
    let failed = |error| Error::run(format!("cannot read the server's CPU time: {error}"));
    let mut digests: u64 = 10_000;
    loop {
        let before = process::cpu_time(server.pid()).map_err(failed)?;
        let options = [format!("--digests={digests}")];
        sysbench.once(&script, &options, server.endpoint())?;
        let used = process::cpu_time(server.pid()).map_err(failed)? - before;
        if used >= SAMPLE {
            let share = plan.heavy_time.as_secs_f64() / used.as_secs_f64();
            return Ok((digests as f64 * share).ceil() as u64);
        }
        digests *= 2;
    }
}

fn measure(
    plan: &Plan,
    sysbench: &Sysbench,
    target: Target,
    heavy: usize,
    digests: u64,
) -> Result<(Round, f64)> {
    let Plan { setting, .. } = plan;
    let server = setting.start(target, sysbench)?;
    let options = setting.options();
    let after = Duration::from_secs(1);
    let light = Job {
        script: Script::PointSelect.path(),
        options: &options,
        endpoint: server.endpoint(),
        threads: plan.light,
        rate: Some(plan.rate),
        warmup: setting.warmup,
        seconds: setting.seconds,
        after,
    };
    let beside = match heavy {
        0 => None,
        threads => {
            let options = [format!("--digests={digests}")];
            // It is read as it starts, and not needed longer.
            let (_folder, script) = script()?;
            Some(sysbench.start(&Job {
                script: &script,
                options: &options,
                threads,
                rate: None,
                // The light ones begin after these.
                after: after * 2,
                ..light
            })?)
        }
    };
    let round = Watch::of(&server, setting).round(sysbench, &light)?;
    let heavy_qps = match beside {
        None => 0.0,
        Some(beside) => beside.finish(|_| {})?.qps,
    };
    Ok((round, heavy_qps))
}

fn cell(target: Target, heavy: usize, digests: u64, rounds: &[(Round, f64)]) -> Cell {
    let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(|(round, _)| of(round)));
    let threads = rounds.iter().map(|(round, _)| round.size.threads);
    Cell {
        target,
        heavy,
        digests,
        mean_us: spread(|round| round.report.mean_us).median,
        p99_us: spread(|round| round.report.p99_us).median,
        max_us: spread(|round| round.report.max_us).max,
        qps: spread(|round| round.report.qps).median,
        heavy_qps: Spread::of(rounds.iter().map(|(_, qps)| *qps)).median,
        server_threads_peak: threads.max().unwrap_or(0),
        disturbed: rounds.iter().filter(|(round, _)| round.disturbed).count(),
    }
}
