//! `study latency`: how long a point select takes while other clients of the same server send heavy
//! statements.
//!
//! Each round has a server of its own, so that no round finds the threads that another one made.
//! Rounds interleave the schedulers, and each begins with another of them; in the same round of the
//! same number of heavy clients all schedulers get the same statements at the same times.

pub mod load;
pub mod table;

use std::time::Duration;

use crate::child::{Order, Server};
use crate::cpu::Split;
use crate::error::{Error, Result};
use crate::load::{Errors, Moment};
use crate::options::ServerOptions;
use crate::plan::{HeavyKind, Light, Protocol, Scheduler, Transport};
use crate::process::{self, CpuUse};
use crate::run::Progress;
use crate::stats::Spread;
use crate::wires::Wires;

use load::Load;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which servers.
    pub schedulers: Vec<Scheduler>,
    /// Over what.
    pub transport: Transport,
    /// The light clients.
    pub light: Light,
    /// How many heavy clients; ascending.
    pub heavy: Vec<usize>,
    /// What those send.
    pub kind: HeavyKind,
    /// How long it takes: CPU time of a burn, else the time slept.
    pub heavy_time: Duration,
    /// How likely a heavy client is to send a heavy statement.
    pub mix: f64,
    /// How long a round measures.
    pub seconds: Duration,
    /// How long it warms up at least.
    pub warmup: Duration,
    /// Measure from the start.
    pub cold: bool,
    /// How many rounds a cell gets.
    pub rounds: usize,
    /// Who runs on which CPUs.
    pub split: Split,
    /// Rows of the table.
    pub rows: u64,
    /// Limits of the pool.
    pub options: ServerOptions,
    /// The same seed makes the same statements at the same times.
    pub seed: u64,
}

impl Plan {
    /// How many rounds that is in all.
    pub fn rounds_in_all(&self) -> usize {
        self.schedulers.len() * self.heavy.len() * self.rounds
    }

    /// Descriptors that this process will need: the clients' and some for itself.
    pub fn files_needed(&self) -> usize {
        self.light.clients() + self.heavy.iter().max().unwrap_or(&0) + 64
    }

    fn start(&self, scheduler: Scheduler) -> Result<Server> {
        let mut server = Server::start(&Order {
            scheduler,
            protocol: Protocol::Text,
            transport: self.transport,
            port: 0,
            rows: self.rows,
            options: self.options,
            disk: None,
            cpus: self.split.server.clone(),
        })?;
        server.settle()?;
        Ok(server)
    }

    /// Several times as long as all heavy clients' statements take one after the other.
    fn patience(&self, heavy: usize) -> Duration {
        Duration::from_secs(10) + self.heavy_time.saturating_mul(4 * heavy as u32)
    }
}

/// All that was measured.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What the heavy clients sent.
    pub heavy_statement: String,
    /// One for each scheduler and number of heavy clients.
    pub cells: Vec<Cell>,
}

/// One scheduler beside one number of heavy clients.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Which server.
    pub scheduler: Scheduler,
    /// How many heavy clients.
    pub heavy: usize,
    /// What they sent.
    pub kind: HeavyKind,
    /// Light latency: the median of the rounds' medians.
    pub p50_us: f64,
    /// The median of their 99th percentiles.
    pub p99_us: f64,
    /// The largest of all rounds.
    pub max_us: f64,
    /// Light statements a second; the median.
    pub qps: f64,
    /// Heavy statements a second, of all heavy clients; the median.
    pub heavy_qps: f64,
    /// Of the heavy client that got the least in any round; 0 without heavy clients.
    pub heavy_each_qps_min: f64,
    /// Of a heavy client on average; 0 without heavy clients.
    pub heavy_each_qps_mean: f64,
    /// The errors of all rounds.
    pub errors: Errors,
    /// The most threads that a server had in any round.
    pub server_threads_peak: u64,
    /// Rounds in which other processes took more than [`process::DISTURBED`] of these CPUs.
    pub disturbed: usize,
}

/// Runs all of it, on the calling thread, which should be bound to the client's CPUs. `progress`
/// hears of every round.
pub fn run(plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<Outcome> {
    let heavy_statement = heavy_statement(plan)?;
    let mut rows: Vec<Vec<Cell>> = plan.schedulers.iter().map(|_| Vec::new()).collect();
    let mut done = 0;
    for &heavy in &plan.heavy {
        let mut rounds: Vec<Vec<Round>> = plan.schedulers.iter().map(|_| Vec::new()).collect();
        for turn in 0..plan.rounds {
            for step in 0..plan.schedulers.len() {
                let index = (turn + step) % plan.schedulers.len();
                let scheduler = plan.schedulers[index];
                let round = {
                    let seed = plan.seed.wrapping_add(turn as u64);
                    measure(plan, scheduler, heavy, &heavy_statement, seed)?
                };
                done += 1;
                progress(Progress {
                    done,
                    of: plan.rounds_in_all(),
                    message: format!(
                        "{heavy} heavy clients {scheduler}: p99 {:.2} ms",
                        round.p99_us / 1e3
                    ),
                });
                rounds[index].push(round);
            }
        }
        for (index, rounds) in rounds.iter().enumerate() {
            rows[index].push(cell(plan.schedulers[index], heavy, plan.kind, rounds));
        }
    }
    Ok(Outcome {
        heavy_statement,
        cells: rows.into_iter().flatten().collect(),
    })
}

fn heavy_statement(plan: &Plan) -> Result<String> {
    let seconds = plan.heavy_time.as_secs_f64();
    Ok(match plan.kind {
        HeavyKind::Hooked => format!("SELECT SLEEP({seconds})"),
        HeavyKind::Unseen => format!("SELECT SLEEP_UNSEEN({seconds})"),
        HeavyKind::Burn if plan.heavy == [0] => benchmark(0),
        HeavyKind::Burn => benchmark((seconds * digests_per_second(plan)?).ceil() as u64),
    })
}

fn benchmark(digests: u64) -> String {
    format!("SELECT BENCHMARK({digests}, MD5('thread-group-pool'))")
}

/// The calibration uses at least this much CPU, so that the clock's tick of 10 ms is a small part.
const SAMPLE: Duration = Duration::from_millis(300);

/// More than it takes on any machine.
const SAMPLE_WITHIN: Duration = Duration::from_secs(60);

/// What a lone client gets for a second of the server's CPU. Not of the clock: a neighbour would
/// make the statements shorter.
fn digests_per_second(plan: &Plan) -> Result<f64> {
    let server = plan.start(plan.schedulers[0])?;
    let mut wires = Wires::connect(
        server.endpoint(),
        1,
        load::CONNECT_WITHIN,
        load::ROWS_PER_REPLY,
    )?;
    let failed = |error| Error::run(format!("cannot read the server's CPU time: {error}"));
    let mut digests = 1_000;
    loop {
        let before = process::cpu_time(server.pid()).map_err(failed)?;
        let statement = benchmark(digests) + "\n";
        load::ask(&mut wires, statement.as_bytes(), SAMPLE_WITHIN)?;
        let used = process::cpu_time(server.pid()).map_err(failed)? - before;
        if used >= SAMPLE {
            return Ok(digests as f64 / used.as_secs_f64());
        }
        digests *= 2;
    }
}

/// One server under one load, once.
#[derive(Debug)]
struct Round {
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    qps: f64,
    heavy_qps: Vec<f64>,
    errors: Errors,
    threads: u64,
    disturbed: bool,
}

fn measure(
    plan: &Plan,
    scheduler: Scheduler,
    heavy: usize,
    statement: &str,
    seed: u64,
) -> Result<Round> {
    let server = plan.start(scheduler)?;
    let (pid, cpus) = (server.pid(), plan.split.all());
    let load = Load {
        endpoint: server.endpoint().clone(),
        rows: plan.rows,
        light: plan.light,
        heavy,
        statement: format!("{statement}\n").into_bytes(),
        mix: plan.mix,
        warmup: plan.warmup,
        cold: plan.cold,
        measure: plan.seconds,
        patience: plan.patience(heavy),
        seed,
    };
    let (mut opened, mut closed) = Default::default();
    let mut threads = 0;
    let measured = load::run(&load, |moment| match moment {
        Moment::Opens => opened = CpuUse::read(pid, &cpus),
        Moment::Passes => threads = threads.max(process::size(pid).unwrap_or_default().threads),
        Moment::Closes => closed = CpuUse::read(pid, &cpus),
    })?;
    let quantile = |q| measured.latencies.value_at_quantile(q) as f64 / 1e3;
    Ok(Round {
        p50_us: quantile(0.50),
        p99_us: quantile(0.99),
        max_us: measured.latencies.max() as f64 / 1e3,
        qps: measured.qps,
        heavy_qps: measured.heavy_qps,
        errors: measured.errors,
        threads,
        disturbed: CpuUse::since(closed, opened).is_disturbed(plan.seconds),
    })
}

fn cell(scheduler: Scheduler, heavy: usize, kind: HeavyKind, rounds: &[Round]) -> Cell {
    let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
    let each = Spread::of(
        rounds
            .iter()
            .flat_map(|round| round.heavy_qps.iter().copied()),
    );
    // Not `sum`: that of nothing is -0.
    let heavy_qps = spread(|round| round.heavy_qps.iter().fold(0.0, |sum, qps| sum + qps)).median;
    let mut errors = Errors::default();
    for round in rounds {
        errors.add(&round.errors);
    }
    Cell {
        scheduler,
        heavy,
        kind,
        p50_us: spread(|round| round.p50_us).median,
        p99_us: spread(|round| round.p99_us).median,
        max_us: spread(|round| round.max_us).max,
        qps: spread(|round| round.qps).median,
        heavy_qps,
        heavy_each_qps_min: each.min,
        heavy_each_qps_mean: heavy_qps / heavy.max(1) as f64,
        errors,
        server_threads_peak: rounds.iter().map(|round| round.threads).max().unwrap_or(0),
        disturbed: rounds.iter().filter(|round| round.disturbed).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_keeps_the_worst_latency_and_the_heavy_client_that_got_the_least() {
        let round = |p99_us, max_us, heavy_qps: [f64; 2], stuck| Round {
            p50_us: 1.0,
            p99_us,
            max_us,
            qps: 100.0,
            heavy_qps: heavy_qps.to_vec(),
            errors: Errors {
                stuck,
                ..Errors::default()
            },
            threads: 3 + stuck,
            disturbed: stuck > 0,
        };
        let rounds = [
            round(10.0, 70.0, [1.0, 1.0], 0),
            round(30.0, 40.0, [0.25, 1.25], 2),
            round(20.0, 50.0, [2.0, 2.0], 0),
        ];
        let cell = cell(Scheduler::Pool, 2, HeavyKind::Burn, &rounds);
        assert_eq!((cell.p99_us, cell.max_us), (20.0, 70.0));
        assert_eq!((cell.heavy_qps, cell.heavy_each_qps_min), (2.0, 0.25));
        assert_eq!(cell.heavy_each_qps_mean, 1.0);
        assert_eq!((cell.errors.total(), cell.server_threads_peak), (2, 5));
        assert_eq!(cell.disturbed, 1);
        let none = super::cell(Scheduler::Pool, 0, HeavyKind::Burn, &[]);
        assert_eq!(format!("{}", none.heavy_each_qps_mean), "0");
    }
}
