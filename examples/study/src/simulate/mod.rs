//! `study simulate`: the scheduler that ships, on machines that are not here.
//!
//! Three tables. First what the simulator says of this machine, beside what is measured on it, with the
//! error: who has not seen that should believe nothing of the rest. Then machines of as many cores as are
//! asked for, with this one's costs. Then the published machines ([`published`]), each fitted on its point
//! selects alone and judged on its other curves.

pub mod published;

use std::time::Duration;

use serde_json::{Value, json};
use thread_group_pool::PoolConfig;
use thread_group_pool::sim::crowd::{self, By, Crowd, Engine, Measured, Statement};

use crate::calibrate::Calibration;
use crate::error::Result;
use crate::plan::{Scheduler, Workload};
use crate::run::{self, Cell, Progress};
use crate::table::{align, millis, short};

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Machines of so many cores.
    pub cores: Vec<usize>,
    /// So many clients on each.
    pub clients: Vec<usize>,
    /// Those that the simulator knows: the pool, MariaDB's, and thread-per-connection.
    pub schedulers: Vec<Scheduler>,
    /// What is measured here, to calibrate.
    pub calibration: run::Plan,
    /// What is measured here, to be held against the simulator; `None` leaves that out.
    pub real: Option<run::Plan>,
    /// Whether the published machines are simulated.
    pub published: bool,
    /// One seed gives one run.
    pub seed: u64,
}

impl Plan {
    /// Descriptors that this process will need.
    pub fn files_needed(&self) -> usize {
        let plans = [Some(&self.calibration), self.real.as_ref()];
        let needed = plans.into_iter().flatten().map(run::Plan::files_needed);
        needed.max().unwrap_or(0)
    }
}

/// A world that was run, and what came of it.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Cores.
    pub cores: usize,
    /// Who ran the statements.
    pub scheduler: Scheduler,
    /// Clients.
    pub clients: usize,
    /// What came of it.
    pub measured: Measured,
}

/// All that came out.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What the machine takes.
    pub calibration: Calibration,
    /// What was measured here.
    pub real: Vec<Cell>,
    /// What was simulated of here.
    pub here: Vec<Point>,
    /// The other machines.
    pub points: Vec<Point>,
    /// The published ones.
    pub published: Vec<published::Judged>,
}

/// The transactions that are counted in a run, beside one for each client.
const COUNT: usize = 4_000;

fn by(scheduler: Scheduler, groups: usize) -> By {
    match scheduler {
        Scheduler::Pool => By::Pool(PoolConfig::default().groups(groups)),
        Scheduler::Mariadb => By::Pool(PoolConfig::mariadb().groups(groups)),
        _ => By::ThreadPerConnection,
    }
}

/// This machine's statements, on a machine of so many cores.
fn here(
    plan: &Plan,
    calibration: &Calibration,
    cores: usize,
) -> impl Fn(Scheduler, usize) -> Point {
    let seed = plan.seed;
    let costs = calibration.costs();
    let engine = Engine {
        hold: calibration.hold,
        crowd: calibration.contention,
        crowd_from: cores,
        stretch: 0.0,
    };
    let statement = calibration.statement;
    // What a thread for each connection adds beyond the switches, which the simulator counts itself:
    // its system calls have nothing to share them with.
    let alone = calibration
        .threads
        .saturating_sub(costs.switch + costs.wake);
    move |scheduler, clients| {
        let cpu = match scheduler {
            Scheduler::PerConnection => statement + alone,
            _ => statement,
        };
        let measured = crowd::measure(&Crowd {
            cores,
            clients,
            by: by(scheduler, cores),
            costs,
            engine,
            transaction: vec![Statement { cpu, weight: 1.0 }],
            turnaround: Duration::from_micros(20),
            count: COUNT,
            seed,
        });
        Point {
            cores,
            scheduler,
            clients,
            measured,
        }
    }
}

/// Measures what is not given, and simulates all of it.
pub fn run(
    plan: &Plan,
    calibration: Calibration,
    progress: impl FnMut(Progress),
) -> Result<Outcome> {
    let mut outcome = Outcome {
        calibration,
        real: Vec::new(),
        here: Vec::new(),
        points: Vec::new(),
        published: Vec::new(),
    };
    if let Some(real) = &plan.real {
        outcome.real = run::run(real, progress)?;
        let at = here(plan, &calibration, real.split.server.len());
        let cells = outcome.real.iter();
        outcome.here = cells.map(|cell| at(cell.scheduler, cell.clients)).collect();
    }
    for &cores in &plan.cores {
        let at = here(plan, &calibration, cores);
        for &scheduler in &plan.schedulers {
            let points = plan.clients.iter().map(|clients| at(scheduler, *clients));
            outcome.points.extend(points);
        }
    }
    if plan.published {
        outcome.published = published::judge(&calibration, plan.seed)?;
    }
    Ok(outcome)
}

/// For people.
pub fn render(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = format!("measured here\n{}\n", outcome.calibration.render());
    if let Some(real) = &plan.real {
        text.push_str(&validation(real, outcome));
    }
    let head = |what: &str, clients: &[usize]| {
        let clients = clients.iter().map(usize::to_string);
        std::iter::once(what.to_string())
            .chain(clients)
            .collect::<Vec<_>>()
    };
    for &cores in &plan.cores {
        let mut grid = vec![head("clients", &plan.clients)];
        for &scheduler in &plan.schedulers {
            let of = |show: &dyn Fn(&Measured) -> String| {
                let here = outcome.points.iter();
                here.filter(|p| (p.cores, p.scheduler) == (cores, scheduler))
                    .map(|p| show(&p.measured))
                    .collect::<Vec<_>>()
            };
            let mut row = |label: &str, show: &dyn Fn(&Measured) -> String| {
                grid.push(std::iter::once(label.to_string()).chain(of(show)).collect());
            };
            row(scheduler.name(), &|m| short(m.per_second));
            row("  p99 ms", &|m| millis(m.p99.as_nanos() as f64 / 1e3));
            row("  threads", &|m| m.threads_peak.to_string());
        }
        text.push_str(&format!(
            "simulated: point_select on {cores} cores as this machine's, statements/s\n{}\n",
            align(&grid)
        ));
    }
    if plan.published {
        text.push_str(&published::render(&outcome.published));
    }
    text
}

/// The real runs beside the simulated ones.
fn validation(real: &run::Plan, outcome: &Outcome) -> String {
    let mut grid = vec![
        ["", "clients", "measured/s", "simulated/s", "error"]
            .map(String::from)
            .to_vec(),
    ];
    let mut errors = Vec::new();
    for (cell, point) in outcome.real.iter().zip(&outcome.here) {
        let error = point.measured.per_second / cell.qps.median.max(1.0) - 1.0;
        errors.push(error.abs());
        grid.push(vec![
            cell.scheduler.to_string(),
            cell.clients.to_string(),
            short(cell.qps.median),
            short(point.measured.per_second),
            format!("{:+.0} %", error * 100.0),
        ]);
    }
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let most = errors.iter().copied().fold(0.0, f64::max);
    format!(
        "{} on this machine, {} CPU for the server; the error is {:.0} % on the average, {:.0} % at most\n{}\n",
        Workload::PointSelect,
        real.split.server.len(),
        mean * 100.0,
        most * 100.0,
        align(&grid)
    )
}

/// For programs.
pub fn json(outcome: &Outcome) -> Value {
    let point = |p: &Point| {
        json!({
            "cores": p.cores,
            "scheduler": p.scheduler.name(),
            "clients": p.clients,
            "qps": p.measured.per_second.round(),
            "p99_us": p.measured.p99.as_micros() as u64,
            "threads_peak": p.measured.threads_peak,
        })
    };
    let pairs = outcome.real.iter().zip(&outcome.here);
    json!({
        "calibration": outcome.calibration.json(),
        "validation": pairs.map(|(cell, p)| json!({
            "scheduler": cell.scheduler.name(),
            "clients": cell.clients,
            "measured": cell.qps.median.round(),
            "simulated": p.measured.per_second.round(),
        })).collect::<Vec<_>>(),
        "points": outcome.points.iter().map(point).collect::<Vec<_>>(),
        "published": outcome.published.iter().map(published::Judged::json).collect::<Vec<_>>(),
    })
}
