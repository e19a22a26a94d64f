//! `study mysql`: the installed `sysbench` against sqlish under each scheduler, by MySQL's protocol, and
//! against MariaDB itself.
//!
//! All servers live through the whole run, and are loaded one at a time. Rounds interleave them, each
//! beginning with another, and the n-th round of one scheduler with the n-th of the other is a pair: what
//! is said of their ratio is said of pairs.
//!
//! [`sysbench`] is the client, [`mariadb`] the other server; [`heavy`] measures point selects beside heavy
//! statements instead; [`table`] shows the results.

pub mod heavy;
pub mod mariadb;
pub mod sysbench;
pub mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::child::{self, Server};
use crate::cpu::Split;
use crate::error::Result;
use crate::load::Moment;
use crate::options::ServerOptions;
use crate::plan::{Protocol, Scheduler, Transport};
use crate::process::{self, CpuUse};
use crate::run::Progress;
use crate::stats::{Estimate, Spread};

use mariadb::Handling;
use sysbench::{Job, PsMode, Report, Sysbench};

/// The scripts of `sysbench` that leave as many rows as they found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Script {
    /// One row by primary key.
    PointSelect,
    /// A transaction of ten of these and four ranges of a hundred rows.
    ReadOnly,
    /// One row gets a new `c`.
    UpdateNonIndex,
    /// The transaction that reads, with two updates, a delete and an insert.
    ReadWrite,
    /// The writes of that alone.
    WriteOnly,
    /// One row gets a new `k`, which an index covers.
    UpdateIndex,
    /// Ten rows by the index.
    RandomPoints,
    /// Ten ranges by the index.
    RandomRanges,
}

impl Script {
    /// In the order of a help page.
    pub const ALL: [Script; 8] = [
        Script::PointSelect,
        Script::ReadOnly,
        Script::UpdateNonIndex,
        Script::ReadWrite,
        Script::WriteOnly,
        Script::UpdateIndex,
        Script::RandomPoints,
        Script::RandomRanges,
    ];

    /// Those of the published tables.
    pub const USUAL: [Script; 4] = [
        Script::PointSelect,
        Script::ReadOnly,
        Script::UpdateNonIndex,
        Script::ReadWrite,
    ];

    /// How it is spelled: as the file, without its `oltp_` or `select_`.
    pub fn name(self) -> &'static str {
        match self {
            Script::PointSelect => "point_select",
            Script::ReadOnly => "read_only",
            Script::UpdateNonIndex => "update_non_index",
            Script::ReadWrite => "read_write",
            Script::WriteOnly => "write_only",
            Script::UpdateIndex => "update_index",
            Script::RandomPoints => "random_points",
            Script::RandomRanges => "random_ranges",
        }
    }
}

crate::plan::spelled_by_name!(Script, "script");

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// sqlish under a scheduler of the library.
    Sqlish(Scheduler),
    /// MariaDB.
    Mariadb(Handling),
}

impl Target {
    /// The program, for JSON.
    pub fn server(self) -> &'static str {
        match self {
            Target::Sqlish(_) => "sqlish",
            Target::Mariadb(_) => "mariadb",
        }
    }

    /// The scheduler, for JSON.
    pub fn scheduler(self) -> &'static str {
        match self {
            Target::Sqlish(scheduler) => scheduler.name(),
            Target::Mariadb(handling) => handling.name(),
        }
    }

    /// In a table.
    pub fn label(self) -> &'static str {
        match self {
            Target::Sqlish(scheduler) => scheduler.name(),
            Target::Mariadb(handling) => handling.label(),
        }
    }

    /// What it is compared with, if that is measured: the same server's thread-per-connection.
    pub fn base(self) -> Option<Target> {
        match self {
            Target::Sqlish(Scheduler::PerConnection) | Target::Mariadb(Handling::PerConnection) => {
                None
            }
            Target::Sqlish(_) => Some(Target::Sqlish(Scheduler::PerConnection)),
            Target::Mariadb(_) => Some(Target::Mariadb(Handling::PerConnection)),
        }
    }
}

/// What both experiments are told.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Which servers.
    pub targets: Vec<Target>,
    /// Over what.
    pub transport: Transport,
    /// How statements are sent.
    pub ps_mode: PsMode,
    /// How long a round measures; whole seconds.
    pub seconds: Duration,
    /// How long it warms up before; whole seconds.
    pub warmup: Duration,
    /// How many rounds a cell gets.
    pub rounds: usize,
    /// Who runs on which CPUs.
    pub split: Split,
    /// Rows of the table.
    pub rows: u64,
    /// How the servers are set.
    pub options: ServerOptions,
}

impl Setting {
    /// Refuses what the machine lacks; the client, and the versions of what others have written.
    ///
    /// # Errors
    /// A usage error that says what to install.
    pub fn check(&self) -> Result<(Sysbench, String)> {
        let sysbench = Sysbench::find()?;
        let mut versions = sysbench.version.clone();
        if self.targets.iter().any(|t| matches!(t, Target::Mariadb(_))) {
            versions = format!("{versions}, {}", mariadb::check()?);
        }
        Ok((sysbench, versions))
    }

    /// Starts a server that has its table and is at rest.
    fn start(&self, target: Target, sysbench: &Sysbench) -> Result<Server> {
        let cpus = self.split.server.clone();
        let mut server = match target {
            Target::Sqlish(scheduler) => Server::start(&child::Order {
                scheduler,
                protocol: Protocol::Mysql,
                transport: self.transport,
                port: 0,
                rows: self.rows,
                options: self.options,
                disk: None,
                cpus,
            })?,
            Target::Mariadb(handling) => {
                let server = Server::start_mariadb(&mariadb::Order {
                    handling,
                    transport: self.transport,
                    groups: self.options.groups,
                    cpus,
                })?;
                sysbench.prepare(server.endpoint(), self.rows)?;
                server
            }
        };
        server.settle()?;
        Ok(server)
    }

    /// The options of a script of `sysbench`.
    fn options(&self) -> Vec<String> {
        vec![
            format!("--table-size={}", self.rows),
            format!("--db-ps-mode={}", self.ps_mode),
        ]
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// On what.
    pub setting: Setting,
    /// What is sent.
    pub scripts: Vec<Script>,
    /// By how many clients; ascending.
    pub threads: Vec<usize>,
}

impl Plan {
    /// How many rounds that is in all.
    pub fn rounds_in_all(&self) -> usize {
        let cells = self.setting.targets.len() * self.scripts.len() * self.threads.len();
        cells * self.setting.rounds
    }

    /// Descriptors that `sysbench` and a server will need, each.
    pub fn files_needed(&self) -> usize {
        self.threads.iter().max().unwrap_or(&0) + 64
    }
}

/// One field of the table.
#[derive(Debug, Clone)]
pub struct Cell {
    /// What was sent.
    pub script: Script,
    /// To which server.
    pub target: Target,
    /// Over what.
    pub transport: Transport,
    /// By how many clients.
    pub threads: usize,
    /// Statements a second over the rounds.
    pub qps: Spread,
    /// The same round by round, to be paired.
    pub qps_rounds: Vec<f64>,
    /// CPU time of the server for each statement, round by round.
    pub cpu_us_rounds: Vec<f64>,
    /// Transactions a second; the median.
    pub tps: f64,
    /// The median of the rounds' mean times of a transaction.
    pub mean_us: f64,
    /// The median of their 99th percentiles.
    pub p99_us: f64,
    /// The longest of all rounds.
    pub max_us: f64,
    /// Deadlocks and row locks that were waited for in vain, in all rounds.
    pub ignored_errors: u64,
    /// The most threads that the server had at either end of a window.
    pub server_threads_peak: u64,
    /// The most memory that it had resident then.
    pub server_rss_kib: u64,
    /// CPU time of the server in a round's window; the median.
    pub server_cpu_s: f64,
    /// CPU time of `sysbench` in a round's window; the median.
    pub client_cpu_s: f64,
    /// The part of its CPUs that `sysbench` used; the median. At 1 it is the client that was measured.
    pub client_busy: f64,
    /// Rounds in which other processes took more than [`process::DISTURBED`] of these CPUs from server
    /// and client.
    pub disturbed: usize,
}

/// How a cell compares with another one of the same rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Of statements a second.
    pub qps: Estimate,
    /// Of the server's CPU time for each.
    pub cpu: Estimate,
}

impl Comparison {
    /// `None` without a round.
    pub fn of(above: &Cell, below: &Cell) -> Option<Comparison> {
        Some(Comparison {
            qps: Estimate::of_pairs(&above.qps_rounds, &below.qps_rounds)?,
            cpu: Estimate::of_pairs(&above.cpu_us_rounds, &below.cpu_us_rounds)?,
        })
    }
}

/// Runs all of it. The calling thread should be bound to the client's CPUs: what it starts is bound with
/// it. `progress` hears of every round.
///
/// # Errors
/// A server or `sysbench` that fails.
pub fn run(
    plan: &Plan,
    sysbench: &Sysbench,
    mut progress: impl FnMut(Progress),
) -> Result<Vec<Cell>> {
    let setting = &plan.setting;
    let targets = &setting.targets;
    let starts = targets.iter().map(|t| setting.start(*t, sysbench));
    let mut servers = starts.collect::<Result<Vec<_>>>()?;
    let mut cells = Vec::new();
    let mut done = 0;
    for &script in &plan.scripts {
        // A row for each server, as a reader of the table goes.
        let mut rows: Vec<Vec<Cell>> = targets.iter().map(|_| Vec::new()).collect();
        for &threads in &plan.threads {
            let mut rounds: Vec<Vec<Round>> = targets.iter().map(|_| Vec::new()).collect();
            for turn in 0..setting.rounds {
                for step in 0..targets.len() {
                    let index = (turn + step) % targets.len();
                    let round = measure(setting, sysbench, script, threads, &mut servers[index])?;
                    done += 1;
                    progress(Progress {
                        done,
                        of: plan.rounds_in_all(),
                        message: format!(
                            "{script} {threads} threads {}: {:.0}/s",
                            targets[index].label(),
                            round.report.qps
                        ),
                    });
                    rounds[index].push(round);
                }
            }
            for ((row, rounds), target) in rows.iter_mut().zip(&rounds).zip(targets) {
                row.push(cell((script, *target, setting.transport, threads), rounds));
            }
        }
        cells.extend(rows.into_iter().flatten());
    }
    Ok(cells)
}

/// One server under one load, once.
#[derive(Debug)]
struct Round {
    report: Report,
    size: process::Size,
    server_cpu_s: f64,
    client_cpu_s: f64,
    client_busy: f64,
    disturbed: bool,
}

impl Round {
    /// A tick of the clock is a large part of what few statements take.
    fn cpu_us(&self) -> f64 {
        self.server_cpu_s * 1e6 / self.report.queries.max(1.0)
    }
}

fn measure(
    setting: &Setting,
    sysbench: &Sysbench,
    script: Script,
    threads: usize,
    server: &mut Server,
) -> Result<Round> {
    let endpoint = server.endpoint().clone();
    let options = setting.options();
    let job = Job {
        script: script.path(),
        options: &options,
        endpoint: &endpoint,
        threads,
        rate: None,
        warmup: setting.warmup,
        seconds: setting.seconds,
        // Beside a thousand threads of its own, the one that reports comes late.
        after: Duration::from_secs(30),
    };
    let watch = Watch::of(server, setting);
    let round = watch.round(sysbench, &job)?;
    server.settle()?;
    Ok(round)
}

/// Looks at server and client as a window opens and closes.
struct Watch {
    server: u32,
    cpus: Vec<usize>,
    client_cpus: usize,
}

impl Watch {
    fn of(server: &Server, setting: &Setting) -> Watch {
        Watch {
            server: server.pid(),
            cpus: setting.split.all(),
            client_cpus: setting.split.client.len(),
        }
    }

    fn round(&self, sysbench: &Sysbench, job: &Job<'_>) -> Result<Round> {
        let running = sysbench.start(job)?;
        let client = running.pid();
        let mut size = process::Size::default();
        let mut looks = Vec::new();
        let report = running.finish(|moment| {
            if matches!(moment, Moment::Opens | Moment::Closes) {
                looks.push((
                    Instant::now(),
                    CpuUse::of_both(self.server, client, &self.cpus),
                ));
                size = size.max(process::size(self.server).unwrap_or_default());
            }
        })?;
        let (window, used) = match looks[..] {
            [(opened, before), (closed, after)] => (closed - opened, after.since(before)),
            _ => Default::default(),
        };
        let client_cpu_s = used.client.as_secs_f64();
        Ok(Round {
            report,
            size,
            server_cpu_s: used.server.as_secs_f64(),
            client_cpu_s,
            client_busy: client_cpu_s / (window.as_secs_f64() * self.client_cpus as f64),
            disturbed: used.is_disturbed(window),
        })
    }
}

fn cell(
    (script, target, transport, threads): (Script, Target, Transport, usize),
    rounds: &[Round],
) -> Cell {
    let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
    let peak = |of: fn(&Round) -> u64| rounds.iter().map(of).max().unwrap_or(0);
    Cell {
        script,
        target,
        transport,
        threads,
        qps: spread(|round| round.report.qps),
        qps_rounds: rounds.iter().map(|round| round.report.qps).collect(),
        cpu_us_rounds: rounds.iter().map(Round::cpu_us).collect(),
        tps: spread(|round| round.report.tps).median,
        mean_us: spread(|round| round.report.mean_us).median,
        p99_us: spread(|round| round.report.p99_us).median,
        max_us: spread(|round| round.report.max_us).max,
        ignored_errors: rounds.iter().map(|round| round.report.ignored_errors).sum(),
        server_threads_peak: peak(|round| round.size.threads),
        server_rss_kib: peak(|round| round.size.rss_kib),
        server_cpu_s: spread(|round| round.server_cpu_s).median,
        client_cpu_s: spread(|round| round.client_cpu_s).median,
        client_busy: spread(|round| round.client_busy).median,
        disturbed: rounds.iter().filter(|round| round.disturbed).count(),
    }
}

/// Where a program is: on the path, or where those of administrators are, which a user's path may lack.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/libexec".into()]);
    let mut files = places.map(|place| place.join(program));
    files.find(|file| file.is_file())
}
