//! The published machines, simulated. What is fitted of each is fitted on its point selects alone: how long
//! a statement computes, how long the engine's lock is held, from which crowd on it is held for longer and
//! by how much, and what each connection costs everybody. The other workloads are these statements again, by
//! `transaction`, whose weights are the same for all machines.
//!
//! Judged is what a scheduler is chosen by: with how many clients thread-per-connection has lost half of
//! its best, and what share of its best the pool keeps at 4096.

use std::time::Duration;

use serde_json::{Value, json};
use thread_group_pool::sim::crowd::{self, Crowd, Engine, Statement};

use super::{COUNT, by};
use crate::calibrate::Calibration;
use crate::error::{Error, Result};
use crate::plan::Scheduler;
use crate::published::{self, Published};
use crate::table::{align, short};

/// A statement's share of what a point select computes, and of what it does under the lock.
type Weights = (f64, f64);

const POINT: Weights = (1.0, 0.0);
/// A hundred rows, some of them sorted: three times a point select.
const RANGE: Weights = (3.0, 0.0);
const BEGIN: Weights = (0.5, 1.0);
/// A row that is written: it is locked, logged, and told of in the indices.
const WRITE: Weights = (2.0, 5.0);
const COMMIT: Weights = (0.5, 0.5);

/// What a client sends, in point selects: sysbench's transactions.
///
/// Of the lock: who begins draws up a list of all who are inside (weight 1), which a point select outside of
/// a transaction does too; reading within it takes no more; a write comes back to it five times; a commit
/// leaves the list. These are round numbers, and not those of any machine.
fn transaction(workload: &str) -> Option<Vec<Weights>> {
    let reads = [BEGIN].into_iter().chain([POINT; 10]).chain([RANGE; 4]);
    Some(match workload {
        "point_select" => vec![(1.0, 1.0)],
        "update_nokey" => vec![(2.0, WRITE.1 + 1.0)],
        "oltp_ro" => reads.chain([COMMIT]).collect(),
        "oltp_rw" => reads.chain([WRITE; 4]).chain([COMMIT]).collect(),
        _ => return None,
    })
}

/// The clients of the published tables, and some more: where half is lost may lie beyond them.
const CLIENTS: [usize; 11] = [
    16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384,
];
/// The last one of theirs.
const LAST: usize = 4_096;

/// What was fitted of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// What a point select computes.
    pub statement: Duration,
    /// The database.
    pub engine: Engine,
}

/// One workload on one machine.
#[derive(Debug, Clone)]
pub struct Judged {
    /// What its page calls the machine.
    pub machine: String,
    /// Its cores.
    pub cores: usize,
    /// The workload.
    pub workload: String,
    /// What was fitted.
    pub fit: Fit,
    /// By clients: threads and pool, published (where they are) and simulated.
    pub curves: Vec<Row>,
    /// With how many clients threads have lost half of their best, published and simulated.
    pub fall: (Fall, Fall),
    /// What the pool keeps at 4096, published and simulated.
    pub kept: (f64, f64),
}

/// A number of clients: threads and pool, each published and simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Clients.
    pub clients: usize,
    /// Thread-per-connection.
    pub threads: (Option<f64>, f64),
    /// The pool.
    pub pool: (Option<f64>, f64),
}

/// Where half of the best is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fall {
    /// With so many clients, between two that were tried.
    At(f64),
    /// With more than were tried.
    Beyond(usize),
}

impl Fall {
    fn of(curve: &[(usize, f64)]) -> Fall {
        let best = curve.iter().map(|(_, qps)| *qps).fold(0.0, f64::max);
        let half = best / 2.0;
        // After the best one: a curve rises from below half too.
        let from = curve.iter().position(|(_, qps)| *qps == best).unwrap_or(0);
        for pair in curve[from..].windows(2) {
            let ((n0, q0), (n1, q1)) = (pair[0], pair[1]);
            if q1 < half {
                let share = (q0.ln() - half.ln()) / (q0.ln() - q1.ln());
                let (n0, n1) = ((n0 as f64).ln(), (n1 as f64).ln());
                return Fall::At((n0 + share * (n1 - n0)).exp());
            }
        }
        Fall::Beyond(curve.last().map_or(0, |(clients, _)| *clients))
    }

    /// Within a factor of two; what lies beyond what was published may be anywhere there.
    fn is_near(self, simulated: Fall) -> bool {
        match (self, simulated) {
            (Fall::At(a), Fall::At(b)) => (0.5..=2.0).contains(&(b / a)),
            (Fall::Beyond(a), Fall::At(b)) => b >= a as f64 / 2.0,
            (Fall::Beyond(_), Fall::Beyond(_)) => true,
            (Fall::At(a), Fall::Beyond(b)) => (b as f64) <= 2.0 * a,
        }
    }

    fn show(self) -> String {
        match self {
            Fall::At(clients) => format!("{clients:.0}"),
            Fall::Beyond(clients) => format!("> {clients}"),
        }
    }
}

impl Judged {
    /// Whether the fall is right, and what is kept.
    pub fn is_right(&self) -> (bool, bool) {
        let (published, simulated) = self.kept;
        (
            self.fall.0.is_near(self.fall.1),
            (published - simulated).abs() <= 0.15,
        )
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let (fall, kept) = self.is_right();
        let row = |row: &Row| {
            json!({
                "clients": row.clients,
                "per_connection": {"published": row.threads.0, "simulated": row.threads.1.round()},
                "pool": {"published": row.pool.0, "simulated": row.pool.1.round()},
            })
        };
        json!({
            "machine": self.machine,
            "cores": self.cores,
            "workload": self.workload,
            "fitted": self.workload == "point_select",
            "statement_us": self.fit.statement.as_nanos() as f64 / 1e3,
            "hold_us": self.fit.engine.hold.as_nanos() as f64 / 1e3,
            "crowd_ns": self.fit.engine.crowd.as_nanos() as u64,
            "crowd_from": self.fit.engine.crowd_from,
            "fall": {"published": self.fall.0.show(), "simulated": self.fall.1.show(), "right": fall},
            "kept": {"published": self.kept.0, "simulated": self.kept.1, "right": kept},
            "curves": self.curves.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

fn curve<'a>(
    all: &'a [Published<'a>],
    machine: &'a str,
    workload: &'a str,
    scheduler: Scheduler,
) -> Vec<(usize, f64)> {
    let of = |p: &&Published<'_>| {
        (p.machine, p.workload, p.scheduler) == (machine, workload, scheduler.name())
    };
    all.iter()
        .filter(of)
        .map(|p| (p.clients, p.qps as f64))
        .collect()
}

fn best(curve: &[(usize, f64)]) -> f64 {
    curve.iter().map(|(_, qps)| *qps).fold(0.0, f64::max)
}

/// The parameters that come nearest to a machine's point selects: by the two bounds that its throughput
/// has, the cores and the lock.
fn fit(cores: usize, threads: &[(usize, f64)], pool: &[(usize, f64)]) -> Fit {
    let last = pool.last().map_or(1.0, |(_, qps)| *qps);
    let stretch = (best(pool) / last.max(1.0) - 1.0).max(0.0) / LAST as f64;
    // What one core takes for one, in nanoseconds.
    let statement = cores as f64 / best(threads) * 1e9;
    let bound = statement / cores as f64;
    let mut nearest = (f64::MAX, 0.0, 0.0, 0);
    // A lock that is taken for longer than that by nobody in a crowd would be the bound of all that write.
    for hold in (1..=10).map(|part| bound * f64::from(part) / 50.0) {
        for crowd_from in [16, 32, 64, 128, 256, 512, 1_024, 2_048] {
            for step in 0..60 {
                let crowd = 1.15f64.powi(step);
                let off = |(clients, qps): &(usize, f64)| {
                    let more = clients.saturating_sub(crowd_from) as f64 * crowd;
                    let time = bound.max(hold + more) * (1.0 + stretch * *clients as f64);
                    (1e9 / time / qps).ln().powi(2)
                };
                let error = threads
                    .iter()
                    .filter(|(n, _)| *n >= 64)
                    .map(off)
                    .sum::<f64>();
                if error < nearest.0 {
                    nearest = (error, hold, crowd, crowd_from);
                }
            }
        }
    }
    let (_, hold, crowd, crowd_from) = nearest;
    let ns = |time: f64| Duration::from_nanos(time as u64);
    Fit {
        // Under the lock it computes too.
        statement: ns(statement - hold),
        engine: Engine {
            hold: ns(hold),
            crowd: ns(crowd),
            crowd_from,
            stretch,
        },
    }
}

/// Fits each machine on its point selects, and simulates all of its curves.
pub fn judge(calibration: &Calibration, seed: u64) -> Result<Vec<Judged>> {
    let all = published::all()?;
    let mut machines: Vec<(&str, usize)> = Vec::new();
    for one in &all {
        if !machines.contains(&(one.machine, one.cores as usize)) {
            machines.push((one.machine, one.cores as usize));
        }
    }
    // The largest first.
    machines.sort_by_key(|(_, cores)| std::cmp::Reverse(*cores));
    let mut judged = Vec::new();
    for (machine, cores) in machines {
        let of = |scheduler| curve(&all, machine, "point_select", scheduler);
        let fit = fit(cores, &of(Scheduler::PerConnection), &of(Scheduler::Pool));
        for workload in ["point_select", "update_nokey", "oltp_ro", "oltp_rw"] {
            let weights = transaction(workload)
                .ok_or_else(|| Error::run(format!("nothing is known of {workload}")))?;
            let simulate = |scheduler: Scheduler, clients: usize| {
                let statement = |(cpu, weight): &Weights| Statement {
                    cpu: fit.statement.mul_f64(*cpu),
                    weight: *weight,
                };
                let crowd = Crowd {
                    cores,
                    clients,
                    by: by(scheduler, cores),
                    costs: calibration.costs(),
                    engine: fit.engine,
                    transaction: weights.iter().map(statement).collect(),
                    turnaround: Duration::from_micros(100),
                    count: COUNT,
                    seed,
                };
                crowd::measure(&crowd).per_second
            };
            let (threads, pool) = (Scheduler::PerConnection, Scheduler::Pool);
            let published = [threads, pool].map(|s| curve(&all, machine, workload, s));
            let find = |curve: &[(usize, f64)], clients| {
                curve
                    .iter()
                    .find(|(n, _)| *n == clients)
                    .map(|(_, qps)| *qps)
            };
            let row = |clients| Row {
                clients,
                threads: (find(&published[0], clients), simulate(threads, clients)),
                pool: (find(&published[1], clients), simulate(pool, clients)),
            };
            let curves = CLIENTS.map(row).to_vec();
            let simulated: Vec<_> = curves
                .iter()
                .map(|row| (row.clients, row.threads.1))
                .collect();
            let theirs: Vec<_> = curves
                .iter()
                .take_while(|row| row.clients <= LAST)
                .collect();
            let share = |of: &dyn Fn(&Row) -> f64| {
                let best = theirs.iter().map(|row| of(row)).fold(0.0, f64::max);
                theirs.last().map_or(0.0, |row| of(row)) / best.max(1e-9)
            };
            judged.push(Judged {
                machine: machine.to_string(),
                cores,
                workload: workload.to_string(),
                fit,
                fall: (Fall::of(&published[0]), Fall::of(&simulated)),
                kept: (
                    share(&|row| row.pool.0.unwrap_or(0.0)),
                    share(&|row| row.pool.1),
                ),
                curves,
            });
        }
    }
    Ok(judged)
}

/// For people.
pub fn render(judged: &[Judged]) -> String {
    let mut text = String::new();
    for one in judged {
        let within = |row: &&Row| row.clients <= LAST;
        let mut grid = vec![vec!["clients".to_string()]];
        grid[0].extend(
            one.curves
                .iter()
                .filter(within)
                .map(|row| row.clients.to_string()),
        );
        let mut row = |label: &str, of: &dyn Fn(&Row) -> Option<f64>| {
            let fields = one.curves.iter().filter(within);
            let fields = fields.map(|row| of(row).map_or("-".into(), short));
            grid.push(std::iter::once(label.to_string()).chain(fields).collect());
        };
        row("per-connection, published", &|row| row.threads.0);
        row("  simulated", &|row| Some(row.threads.1));
        row("pool, published", &|row| row.pool.0);
        row("  simulated", &|row| Some(row.pool.1));
        let fitted = if one.workload == "point_select" {
            let Fit { statement, engine } = one.fit;
            format!(
                ", fitted: {:.0} us a statement, lock {:.2} us and {} ns for each inside beyond {}",
                statement.as_nanos() as f64 / 1e3,
                engine.hold.as_nanos() as f64 / 1e3,
                engine.crowd.as_nanos(),
                engine.crowd_from
            )
        } else {
            String::new()
        };
        text.push_str(&format!(
            "{}, {} cores, {}{fitted}\n{}\n",
            one.machine,
            one.cores,
            one.workload,
            align(&grid)
        ));
    }
    let mut grid = vec![
        [
            "",
            "",
            "half is lost with",
            "simulated",
            "",
            "pool keeps at 4096",
            "simulated",
            "",
        ]
        .map(String::from)
        .to_vec(),
    ];
    let said = |right: bool| if right { "right" } else { "wrong" }.to_string();
    let others: Vec<_> = judged
        .iter()
        .filter(|one| one.workload != "point_select")
        .collect();
    for one in &others {
        let (fall, kept) = one.is_right();
        grid.push(vec![
            one.machine.clone(),
            one.workload.clone(),
            one.fall.0.show(),
            one.fall.1.show(),
            said(fall),
            format!("{:.2}", one.kept.0),
            format!("{:.2}", one.kept.1),
            said(kept),
        ]);
    }
    let count = |right: &dyn Fn((bool, bool)) -> bool| {
        others.iter().filter(|one| right(one.is_right())).count()
    };
    text + &format!(
        "not fitted: {} of {} falls within a factor of 2, {} of {} shares within 0.15\n{}",
        count(&|right| right.0),
        others.len(),
        count(&|right| right.1),
        others.len(),
        align(&grid)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fall_is_where_half_of_the_best_is_lost_after_it() {
        let curve = [(16, 40.0), (32, 100.0), (64, 80.0), (128, 20.0)];
        let Fall::At(clients) = Fall::of(&curve) else {
            panic!("it falls")
        };
        // By logarithms: ln(80/50) of ln(80/20) of the way from 64 to 128.
        assert!((clients - 80.96).abs() < 0.1, "{clients}");
        assert_eq!(Fall::of(&curve[..3]), Fall::Beyond(64));
        assert!(
            Fall::At(100.0).is_near(Fall::At(199.0)) && !Fall::At(100.0).is_near(Fall::At(201.0))
        );
        assert!(
            Fall::Beyond(64).is_near(Fall::At(33.0)) && !Fall::Beyond(64).is_near(Fall::At(31.0))
        );
    }

    #[test]
    fn a_fit_finds_the_lock_that_made_a_curve() {
        let bound = 10_000.0;
        let made = |clients: usize| {
            let time = f64::max(bound, 1_600.0 + 40.0 * clients.saturating_sub(256) as f64);
            // The quarter that the pool loses, too.
            1e9 / (time * (1.0 + 0.25 * clients as f64 / LAST as f64))
        };
        let threads: Vec<_> = CLIENTS[..9].iter().map(|n| (*n, made(*n))).collect();
        let fit = fit(10, &threads, &[(16, 100.0), (LAST, 80.0)]);
        let crowd = fit.engine.crowd.as_nanos() as f64;
        assert!((34.0..46.0).contains(&crowd), "{fit:?}");
        assert!((fit.engine.stretch * LAST as f64 - 0.25).abs() < 1e-9);
    }

    #[test]
    fn sysbenchs_transactions_have_their_statements() {
        let statements = |name| transaction(name).map(|all| all.len());
        assert_eq!(statements("oltp_ro"), Some(16));
        assert_eq!(statements("oltp_rw"), Some(20));
        assert_eq!(
            (statements("point_select"), statements("ping")),
            (Some(1), None)
        );
    }
}
