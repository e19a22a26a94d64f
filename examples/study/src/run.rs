//! Runs a plan: every workload and transport, every number of clients, every round, every
//! scheduler.
//!
//! One server process for each scheduler lives through all the cells of a workload and transport.
//! When it is not its turn it sleeps: its clients are gone and its last work is done before the
//! next server is measured (that is waited for and checked), and none of them has a timer
//! running without clients. Rounds interleave the schedulers, and each round begins with another of
//! them, so that a machine that warms up or a neighbour that wakes up hits all alike. Numbers of
//! clients ascend, so that what a large number leaves in a server colours no smaller one.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::child::{Order, Server};
use crate::cpu::Split;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::load::{Clients, Errors, Load, Moment};
use crate::options::ServerOptions;
use crate::plan::{KINDS, Protocol, Scheduler, Transport, Workload};
use crate::process::{self, CpuUse};
use crate::stats::Spread;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What is sent.
    pub workloads: Vec<Workload>,
    /// To which servers.
    pub schedulers: Vec<Scheduler>,
    /// Over what.
    pub transports: Vec<Transport>,
    /// By how many clients; ascending.
    pub clients: Vec<usize>,
    /// How long a round measures.
    pub seconds: Duration,
    /// How long it warms up before.
    pub warmup: Duration,
    /// How many rounds a cell gets.
    pub rounds: usize,
    /// Who runs on which CPUs.
    pub split: Split,
    /// Rows of the table.
    pub rows: u64,
    /// How the servers are set.
    pub options: ServerOptions,
    /// What is due a second, of all clients together; `None` is a closed loop.
    pub rate: Option<u64>,
    /// How long it takes until the last client has joined.
    pub ramp: Duration,
    /// The same seed makes the same statements.
    pub seed: u64,
    /// What is written, for [`Workload::Disk`]; no other has one.
    pub disk: Option<Disk>,
    /// The first server's TCP port, the next one's is one more; `None` for free ones.
    pub port: Option<u16>,
}

impl Plan {
    /// How many rounds that is in all.
    pub fn rounds_in_all(&self) -> usize {
        let served = |workload: &Workload| {
            let schedulers = self.schedulers.iter();
            schedulers.filter(|s| s.serves(*workload)).count()
        };
        let pairs: usize = self.workloads.iter().map(served).sum();
        pairs * self.transports.len() * self.clients.len() * self.rounds
    }

    /// Descriptors that this process will need: the clients' and some for itself.
    pub fn files_needed(&self) -> usize {
        self.clients.iter().max().unwrap_or(&0) + 64
    }

    pub(crate) fn order(&self, index: usize, transport: Transport) -> Result<Order> {
        let port = match self.port {
            None => 0,
            Some(first) => u16::try_from(usize::from(first) + index).map_err(|_| {
                Error::usage(format!(
                    "there are no {} ports from {first} on",
                    self.schedulers.len()
                ))
            })?,
        };
        Ok(Order {
            scheduler: self.schedulers[index],
            protocol: Protocol::Text,
            transport,
            port,
            rows: self.rows,
            options: self.options,
            disk: self.disk.clone(),
            cpus: self.split.server.clone(),
        })
    }
}

/// One field of the table.
#[derive(Debug, Clone)]
pub struct Cell {
    /// What was sent.
    pub workload: Workload,
    /// To which server.
    pub scheduler: Scheduler,
    /// Over what.
    pub transport: Transport,
    /// By how many clients.
    pub clients: usize,
    /// At which rate; `None` in a closed loop.
    pub rate: Option<u64>,
    /// Statements a second over the rounds.
    pub qps: Spread,
    /// Latency: the median of the rounds' medians.
    pub p50_us: f64,
    /// Of all rounds together, at [`QUANTILES`].
    pub quantiles_us: Vec<f64>,
    /// The median of their 95th percentiles.
    pub p95_us: f64,
    /// The median of their 99th percentiles.
    pub p99_us: f64,
    /// The largest of all rounds.
    pub max_us: f64,
    /// What the last round completed in each second, by [`KINDS`].
    pub seconds: Vec<[u64; KINDS.len()]>,
    /// Of workloads with commits.
    pub commits: Option<Commits>,
    /// The errors of all rounds.
    pub errors: Errors,
    /// The most threads that the server had in any round.
    pub server_threads_peak: u64,
    /// The most memory that it had resident in any round.
    pub server_rss_kib: u64,
    /// CPU time of the server in a round's window; the median.
    pub server_cpu_s: f64,
    /// CPU time of the load generator in a round's window; the median.
    pub client_cpu_s: f64,
    /// The part of the window that the load generator was busy; the median. At 1 it is the client
    /// that was measured.
    pub client_busy: f64,
    /// Jain's fairness index over the clients; the median.
    pub jain_fairness: f64,
    /// Rounds in which other processes took more than [`process::DISTURBED`] of these CPUs from server and
    /// client.
    pub disturbed: usize,
}

/// The quantiles at which a cell keeps its latencies, from the fastest to the slowest.
pub const QUANTILES: [f64; 15] = [
    0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0,
];

/// How the commits of a cell fared, from when `COMMIT` was sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commits {
    /// The median of the rounds' medians.
    pub p50_us: f64,
    /// The median of their 99th percentiles.
    pub p99_us: f64,
    /// Row locks that were waited for in vain, in all rounds.
    pub lock_timeouts: u64,
}

/// What a round says as it ends.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Rounds done, this one included.
    pub done: usize,
    /// Rounds in all.
    pub of: usize,
    /// What was measured and what came out, in a few words.
    pub message: String,
}

/// Runs all of it, on the calling thread, which should be bound to the client's CPUs. `progress`
/// hears of every round.
pub fn run(plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let mut done = 0;
    for &workload in &plan.workloads {
        for &transport in &plan.transports {
            let mut servers = (0..plan.schedulers.len())
                .map(|index| Server::start(&plan.order(index, transport)?))
                .collect::<Result<Vec<_>>>()?;
            for server in &mut servers {
                server.settle()?;
            }
            // A row for each scheduler, as a reader of the table goes.
            let mut rows: Vec<Vec<Cell>> = plan.schedulers.iter().map(|_| Vec::new()).collect();
            for &clients in &plan.clients {
                let mut rounds: Vec<Vec<Round>> =
                    plan.schedulers.iter().map(|_| Vec::new()).collect();
                for turn in 0..plan.rounds {
                    for step in 0..servers.len() {
                        let index = (turn + step) % servers.len();
                        if !plan.schedulers[index].serves(workload) {
                            continue;
                        }
                        let round = measure(plan, workload, clients, &mut servers[index])?;
                        done += 1;
                        progress(Progress {
                            done,
                            of: plan.rounds_in_all(),
                            message: format!(
                                "{workload} {transport} {clients} clients {}: {:.0}/s",
                                plan.schedulers[index], round.qps
                            ),
                        });
                        rounds[index].push(round);
                    }
                }
                for (index, rounds) in rounds.iter().enumerate() {
                    if rounds.is_empty() {
                        continue;
                    }
                    rows[index].push(cell(
                        workload,
                        plan.schedulers[index],
                        transport,
                        (clients, plan.rate),
                        rounds,
                    ));
                }
            }
            cells.extend(rows.into_iter().flatten());
        }
    }
    Ok(cells)
}

/// One server under one load, once.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) qps: f64,
    latencies: Histogram<u64>,
    p50_us: f64,
    p95_us: f64,
    pub(crate) p99_us: f64,
    max_us: f64,
    seconds: Vec<[u64; KINDS.len()]>,
    commits: Commits,
    pub(crate) errors: Errors,
    size: process::Size,
    server_cpu_s: f64,
    client_cpu_s: f64,
    client_busy: f64,
    jain: f64,
    disturbed: bool,
}

pub(crate) fn measure(
    plan: &Plan,
    workload: Workload,
    clients: usize,
    server: &mut Server,
) -> Result<Round> {
    let pid = server.pid();
    let endpoint = server.endpoint().clone();
    let load = Load {
        rate: plan.rate,
        ramp: plan.ramp,
        seed: plan.seed,
        ..Load::new(endpoint, workload, plan.rows, clients)
    };
    let mut clients = Clients::connect(&load)?;
    let cpus = plan.split.all();
    let (mut opened, mut closed) = Default::default();
    let mut size = process::Size::default();
    let measured = clients.run_for(plan.warmup, plan.seconds, |moment| match moment {
        Moment::Opens => opened = CpuUse::read(pid, &cpus),
        Moment::Passes => size = size.max(process::size(pid).unwrap_or_default()),
        Moment::Closes => closed = CpuUse::read(pid, &cpus),
    })?;
    let used = CpuUse::since(closed, opened);
    drop(clients);
    server.settle()?;
    let quantile = |q| measured.latencies.value_at_quantile(q) as f64 / 1e3;
    let of_commits = |q| measured.commits.value_at_quantile(q) as f64 / 1e3;
    Ok(Round {
        qps: measured.qps(),
        p50_us: quantile(0.50),
        p95_us: quantile(0.95),
        p99_us: quantile(0.99),
        max_us: measured.latencies.max() as f64 / 1e3,
        seconds: measured.seconds.clone(),
        commits: Commits {
            p50_us: of_commits(0.50),
            p99_us: of_commits(0.99),
            lock_timeouts: measured.lock_timeouts,
        },
        size,
        server_cpu_s: used.server.as_secs_f64(),
        client_cpu_s: measured.client_cpu.as_secs_f64(),
        client_busy: measured.client_busy(),
        jain: measured.jain,
        disturbed: used.is_disturbed(measured.window),
        errors: measured.errors,
        latencies: measured.latencies,
    })
}

fn cell(
    workload: Workload,
    scheduler: Scheduler,
    transport: Transport,
    (clients, rate): (usize, Option<u64>),
    rounds: &[Round],
) -> Cell {
    let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
    let mut errors = Errors::default();
    let mut latencies: Option<Histogram<u64>> = None;
    for round in rounds {
        errors.add(&round.errors);
        match &mut latencies {
            None => latencies = Some(round.latencies.clone()),
            // They are all made with the same bounds.
            Some(all) => drop(all.add(&round.latencies)),
        }
    }
    let quantile = |q| latencies.as_ref().map_or(0, |all| all.value_at_quantile(q));
    Cell {
        workload,
        scheduler,
        transport,
        clients,
        rate,
        qps: spread(|round| round.qps),
        p50_us: spread(|round| round.p50_us).median,
        quantiles_us: QUANTILES.map(|q| quantile(q) as f64 / 1e3).to_vec(),
        p95_us: spread(|round| round.p95_us).median,
        p99_us: spread(|round| round.p99_us).median,
        max_us: spread(|round| round.max_us).max,
        seconds: rounds
            .last()
            .map_or(Vec::new(), |round| round.seconds.clone()),
        commits: workload.is_transaction().then(|| Commits {
            p50_us: spread(|round| round.commits.p50_us).median,
            p99_us: spread(|round| round.commits.p99_us).median,
            lock_timeouts: rounds.iter().map(|round| round.commits.lock_timeouts).sum(),
        }),
        errors,
        server_threads_peak: rounds
            .iter()
            .map(|round| round.size.threads)
            .max()
            .unwrap_or(0),
        server_rss_kib: rounds
            .iter()
            .map(|round| round.size.rss_kib)
            .max()
            .unwrap_or(0),
        server_cpu_s: spread(|round| round.server_cpu_s).median,
        client_cpu_s: spread(|round| round.client_cpu_s).median,
        client_busy: spread(|round| round.client_busy).median,
        jain_fairness: spread(|round| round.jain).median,
        disturbed: rounds.iter().filter(|round| round.disturbed).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_takes_medians_of_rates_sums_of_errors_and_peaks_of_sizes() {
        let round = |qps: f64, max_us, refused, threads| Round {
            qps,
            latencies: {
                let mut latencies = crate::load::latencies().unwrap();
                latencies.record(qps as u64 * 1_000).unwrap();
                latencies
            },
            p50_us: 1.0,
            p95_us: 2.0,
            p99_us: qps,
            max_us,
            seconds: Vec::new(),
            commits: Commits {
                p50_us: qps / 10.0,
                p99_us: qps,
                lock_timeouts: refused,
            },
            errors: Errors {
                refused,
                first: Some(format!("of {qps}")),
                ..Errors::default()
            },
            size: process::Size {
                threads,
                rss_kib: 10,
            },
            server_cpu_s: 0.5,
            client_cpu_s: 0.25,
            client_busy: 0.25,
            jain: 1.0,
            disturbed: refused > 0,
        };
        let rounds = [
            round(10.0, 5.0, 1, 3),
            round(30.0, 9.0, 0, 8),
            round(20.0, 7.0, 2, 4),
        ];
        let of = |workload| {
            cell(
                workload,
                Scheduler::Pool,
                Transport::Unix,
                (4, None),
                &rounds,
            )
        };
        let convoy = of(Workload::Convoy).commits.unwrap();
        assert_eq!(
            (convoy.p50_us, convoy.p99_us, convoy.lock_timeouts),
            (2.0, 20.0, 3)
        );
        let cell = of(Workload::Ping);
        assert_eq!(cell.commits, None, "it has none");
        assert_eq!(
            cell.qps,
            Spread {
                median: 20.0,
                min: 10.0,
                max: 30.0
            }
        );
        assert_eq!(
            (cell.p99_us, cell.max_us, cell.server_threads_peak),
            (20.0, 9.0, 8)
        );
        assert_eq!(
            (cell.errors.total(), cell.errors.first.as_deref()),
            (3, Some("of 10"))
        );
        assert_eq!(cell.disturbed, 2);
        // Of 10, 20 and 30 us, to the precision of the histogram.
        let ends = [cell.quantiles_us[0], cell.quantiles_us[QUANTILES.len() - 1]];
        assert_eq!(ends.map(f64::round), [10.0, 30.0]);
    }
}
