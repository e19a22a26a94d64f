//! The highest rate that a server bears: the largest at which the 99th percentile, counted from
//! when statements were due, stays under a bound.
//!
//! The search begins with what a closed loop gets, which no rate can exceed for long, and halves
//! the interval by ratio. Rates above the knee grow a queue, so their percentile depends on how
//! long one looks; which side of the bound it is on does not.

use std::time::Duration;

use crate::child::Server;
use crate::error::Result;
use crate::plan::{Scheduler, Transport, Workload};
use crate::run::{self, Plan};
use crate::stats::Spread;
use crate::table::{align, millis, short};

/// The search ends when the rate is known to this factor.
const KNOWN: f64 = 1.05;

/// Nor does it look below this part of the closed loop's throughput.
const LEAST: f64 = 0.01;

/// A rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// What was due a second.
    pub rate: u64,
    /// The median of the rounds' 99th percentiles.
    pub p99_us: f64,
    /// Statements that failed, or were not answered in time.
    pub errors: u64,
}

impl Probe {
    fn is_borne(&self, bound: Duration) -> bool {
        self.errors == 0 && self.p99_us <= bound.as_secs_f64() * 1e6
    }
}

/// What one server bears with one number of clients.
#[derive(Debug, Clone)]
pub struct Knee {
    /// What was sent.
    pub workload: Workload,
    /// To which server.
    pub scheduler: Scheduler,
    /// Over what.
    pub transport: Transport,
    /// By how many clients.
    pub clients: usize,
    /// What the same clients get in a closed loop.
    pub closed_qps: f64,
    /// In the order in which they were tried.
    pub probes: Vec<Probe>,
    bound: Duration,
}

impl Knee {
    /// The highest rate that was borne, if any was.
    pub fn best(&self) -> Option<Probe> {
        let borne = self
            .probes
            .iter()
            .filter(|probe| probe.is_borne(self.bound));
        borne.copied().max_by_key(|probe| probe.rate)
    }
}

/// Finds the knee of each cell of `plan`. `hears` gets a line for each rate that was tried.
pub fn run(plan: &Plan, bound: Duration, mut hears: impl FnMut(String)) -> Result<Vec<Knee>> {
    let mut knees = Vec::new();
    for &workload in &plan.workloads {
        for &transport in &plan.transports {
            for (index, &scheduler) in plan.schedulers.iter().enumerate() {
                if !scheduler.serves(workload) {
                    continue;
                }
                let mut server = Server::start(&plan.order(index, transport)?)?;
                server.settle()?;
                for &clients in &plan.clients {
                    let closed = Plan {
                        rate: None,
                        ..plan.clone()
                    };
                    let closed_qps = run::measure(&closed, workload, clients, &mut server)?.qps;
                    let probe = |rate: u64| {
                        let plan = Plan {
                            rate: Some(rate),
                            ..plan.clone()
                        };
                        let mut rounds = Vec::new();
                        for _ in 0..plan.rounds {
                            rounds.push(run::measure(&plan, workload, clients, &mut server)?);
                        }
                        let probe = Probe {
                            rate,
                            p99_us: Spread::of(rounds.iter().map(|round| round.p99_us)).median,
                            errors: rounds.iter().map(|round| round.errors.total()).sum(),
                        };
                        hears(format!(
                            "{workload} {transport} {clients} clients {scheduler}: {rate}/s, p99 {} \
                             ms",
                            millis(probe.p99_us)
                        ));
                        Ok(probe)
                    };
                    knees.push(Knee {
                        workload,
                        scheduler,
                        transport,
                        clients,
                        closed_qps,
                        probes: search(closed_qps, bound, probe)?,
                        bound,
                    });
                }
            }
        }
    }
    Ok(knees)
}

/// The rates to be tried, each chosen by what came of those before.
fn search(
    closed_qps: f64,
    bound: Duration,
    mut probe: impl FnMut(u64) -> Result<Probe>,
) -> Result<Vec<Probe>> {
    let mut probes = Vec::new();
    let (mut borne, mut not) = (closed_qps * LEAST, closed_qps.max(1.0) * 1.1);
    while not / borne.max(0.5) > KNOWN {
        let rate = (borne.max(0.5) * not).sqrt().round().max(1.0);
        if rate <= borne || rate >= not {
            break;
        }
        let tried = probe(rate as u64)?;
        probes.push(tried);
        if tried.is_borne(bound) {
            borne = rate;
        } else {
            not = rate;
        }
    }
    Ok(probes)
}

/// For people: two rows for each scheduler, a column for each number of clients.
pub fn render(plan: &Plan, bound: Duration, knees: &[Knee]) -> String {
    let mut text = String::new();
    for &workload in &plan.workloads {
        for &transport in &plan.transports {
            let row = |label: String, of: &dyn Fn(usize) -> Option<String>| {
                let fields = plan
                    .clients
                    .iter()
                    .map(|n| of(*n).unwrap_or_else(|| "-".into()));
                std::iter::once(label).chain(fields).collect::<Vec<_>>()
            };
            let mut grid = vec![row("clients".into(), &|n| Some(n.to_string()))];
            for &scheduler in &plan.schedulers {
                let find = |clients: usize| {
                    knees.iter().find(|knee| {
                        (knee.workload, knee.transport, knee.scheduler, knee.clients)
                            == (workload, transport, scheduler, clients)
                    })
                };
                grid.push(row(scheduler.to_string(), &|n| {
                    Some(short(find(n)?.best()?.rate as f64))
                }));
                grid.push(row("  p99 ms".into(), &|n| {
                    Some(millis(find(n)?.best()?.p99_us))
                }));
                grid.push(row("  closed loop".into(), &|n| {
                    Some(short(find(n)?.closed_qps))
                }));
            }
            text.push_str(&format!(
                "{workload} over {transport}, the highest rate with a 99th percentile of at most \
                 {bound:?}, {}/s\n{}\n",
                workload.unit(),
                align(&grid)
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(5);

    /// A server that bears `capacity` and queues above.
    fn found(capacity: f64, closed: f64) -> (Option<u64>, usize) {
        let server = |rate: u64| {
            let share = rate as f64 / capacity;
            let p99_us = if share < 1.0 { 1_000.0 } else { 1e6 * share };
            Ok(Probe {
                rate,
                p99_us,
                errors: 0,
            })
        };
        let knee = Knee {
            workload: Workload::Ping,
            scheduler: Scheduler::Pool,
            transport: Transport::Unix,
            clients: 1,
            closed_qps: closed,
            probes: search(closed, BOUND, server).unwrap(),
            bound: BOUND,
        };
        (knee.best().map(|probe| probe.rate), knee.probes.len())
    }

    #[test]
    fn the_knee_is_found_to_a_twentieth_in_a_dozen_probes() {
        for capacity in [1_500.0, 20_000.0, 99_000.0] {
            let (rate, probes) = found(capacity, 100_000.0);
            let ratio = capacity / rate.unwrap() as f64;
            assert!(
                (1.0..=KNOWN * 1.01).contains(&ratio),
                "{capacity}: {rate:?}"
            );
            assert!(probes <= 12, "{probes}");
        }
    }

    #[test]
    fn a_server_that_bears_nothing_has_no_knee() {
        assert_eq!(found(0.0, 1_000.0).0, None);
        assert_eq!(found(0.0, 0.0).0, None);
    }

    #[test]
    fn a_probe_with_errors_is_not_borne_however_fast_it_was() {
        let probe = |errors, p99_us| Probe {
            rate: 1,
            p99_us,
            errors,
        };
        assert!(probe(0, 5_000.0).is_borne(BOUND));
        assert!(!probe(1, 10.0).is_borne(BOUND) && !probe(0, 5_001.0).is_borne(BOUND));
    }
}
