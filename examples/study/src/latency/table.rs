//! Latencies for people: a group of rows for each scheduler, a column for each number of heavy
//! clients.

use super::{Cell, Outcome, Plan};
use crate::plan::{HeavyKind, Light, Scheduler};
use crate::table::{align, disturbed_line, millis, ratio, short};

/// The whole result.
pub fn render(plan: &Plan, outcome: &Outcome) -> String {
    let cells = &outcome.cells;
    let find = |scheduler: Scheduler, heavy: usize| {
        cells
            .iter()
            .find(|cell| cell.scheduler == scheduler && cell.heavy == heavy)
    };
    let row = |label: String, show: &dyn Fn(usize) -> Option<String>| {
        let fields = plan
            .heavy
            .iter()
            .map(|heavy| show(*heavy).unwrap_or_else(|| "-".into()));
        std::iter::once(label).chain(fields).collect::<Vec<_>>()
    };
    let mut grid = vec![row("heavy clients".into(), &|heavy| {
        Some(heavy.to_string())
    })];
    for &scheduler in &plan.schedulers {
        grid.push(vec![scheduler.to_string()]);
        let mut show = |label: &str, of: &dyn Fn(&Cell) -> Option<String>| {
            grid.push(row(format!("  {label}"), &|heavy| {
                find(scheduler, heavy).and_then(of)
            }));
        };
        let beside_heavy =
            |of: fn(&Cell) -> f64| move |cell: &Cell| (cell.heavy > 0).then(|| few(of(cell)));
        show("light p50 ms", &|cell| Some(millis(cell.p50_us)));
        show("light p99 ms", &|cell| Some(millis(cell.p99_us)));
        show("light max ms", &|cell| Some(millis(cell.max_us)));
        show("light/s", &|cell| Some(short(cell.qps)));
        show("heavy/s", &beside_heavy(|cell| cell.heavy_qps));
        show(
            "  each, mean",
            &beside_heavy(|cell| cell.heavy_each_qps_mean),
        );
        show("  each, min", &beside_heavy(|cell| cell.heavy_each_qps_min));
        show("errors", &|cell| Some(cell.errors.total().to_string()));
        show("threads, peak", &|cell| {
            Some(cell.server_threads_peak.to_string())
        });
    }
    let below = Scheduler::PerConnection;
    if plan.schedulers.contains(&below) {
        for &above in plan.schedulers.iter().filter(|above| **above != below) {
            grid.push(row(format!("p99, {above} / {below}"), &|heavy| {
                Some(ratio(
                    find(above, heavy)?.p99_us,
                    find(below, heavy)?.p99_us,
                ))
            }));
        }
    }
    let disturbed = cells.iter().map(|cell| cell.disturbed).sum();
    format!(
        "{}{}{}{}",
        title(plan, &outcome.heavy_statement),
        align(&grid),
        errors_line(cells),
        disturbed_line(plan.rounds_in_all(), disturbed)
    )
}

fn title(plan: &Plan, heavy_statement: &str) -> String {
    let light = match plan.light {
        Light::Open { clients, rate } => format!(
            "{rate}/s by {clients} clients, counted from when they were due\n\
             (open loop: one in each slot of 1/{rate} s, at a seeded random place in it)"
        ),
        Light::Closed { clients } => {
            format!("by {clients} clients in a closed loop, counted from when they were sent")
        }
    };
    let unit = match plan.kind {
        HeavyKind::Burn => "of CPU, as calibrated with a lone client",
        HeavyKind::Hooked => "asleep, announced",
        HeavyKind::Unseen => "asleep, unannounced",
    };
    let often = if plan.mix < 1.0 {
        format!("with probability {}, else a point select", plan.mix)
    } else {
        "back to back".to_string()
    };
    let rounds = match plan.rounds {
        1 => "one round".to_string(),
        n => format!("median of {n} rounds"),
    };
    let begin = if plan.cold {
        "from the start"
    } else {
        "from when each heavy client has had its first reply and the light ones have caught up"
    };
    format!(
        "light: point selects over {}, {light}\n\
         heavy: {:?} {unit}, {often}: {heavy_statement}\n\
         {rounds} of {:?}, {begin}\n",
        plan.transport, plan.heavy_time, plan.seconds
    )
}

fn errors_line(cells: &[Cell]) -> String {
    let total: u64 = cells.iter().map(|cell| cell.errors.total()).sum();
    let first = cells
        .iter()
        .find_map(|cell| Some((cell, cell.errors.first.as_ref()?)));
    match first {
        None => format!("errors: {total}\n"),
        Some((cell, first)) => format!(
            "errors: {total}; the first, beside {} heavy clients of {}: {first}\n",
            cell.heavy, cell.scheduler
        ),
    }
}

/// Three digits of a rate that may be one every few seconds.
fn few(rate: f64) -> String {
    match rate {
        r if r < 9.995 => format!("{r:.2}"),
        r if r < 99.95 => format!("{r:.1}"),
        r => short(r),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpu::Split;
    use crate::load::Errors;
    use crate::options::ServerOptions;
    use crate::plan::Transport;

    pub(crate) fn cell(scheduler: Scheduler, heavy: usize, p99_us: f64) -> Cell {
        Cell {
            scheduler,
            heavy,
            kind: HeavyKind::Burn,
            p50_us: 123.456,
            p99_us,
            max_us: 40_000.0,
            qps: 399.6,
            heavy_qps: heavy as f64 / 2.0,
            heavy_each_qps_min: 0.25,
            heavy_each_qps_mean: 0.5,
            errors: Errors::default(),
            server_threads_peak: 5,
            disturbed: 0,
        }
    }

    fn plan() -> Plan {
        Plan {
            schedulers: vec![Scheduler::Pool, Scheduler::PerConnection],
            transport: Transport::Unix,
            light: Light::Open {
                clients: 16,
                rate: 400,
            },
            heavy: vec![0, 16],
            kind: HeavyKind::Burn,
            heavy_time: Duration::from_millis(500),
            mix: 1.0,
            seconds: Duration::from_secs(3),
            warmup: Duration::ZERO,
            cold: false,
            rounds: 3,
            split: Split {
                server: vec![0],
                client: vec![1],
            },
            rows: 1,
            options: ServerOptions::of_groups(1),
            seed: 0,
        }
    }

    #[test]
    fn a_table_has_a_group_for_each_scheduler_a_column_for_each_count_and_the_ratio() {
        let outcome = Outcome {
            heavy_statement: "SELECT BENCHMARK(7, MD5('x'))".into(),
            cells: vec![
                cell(Scheduler::Pool, 0, 200.0),
                cell(Scheduler::Pool, 16, 5_000.0),
                cell(Scheduler::PerConnection, 0, 200.0),
                cell(Scheduler::PerConnection, 16, 20_000.0),
            ],
        };
        let expected = "\
light: point selects over unix, 400/s by 16 clients, counted from when they were due
(open loop: one in each slot of 1/400 s, at a seeded random place in it)
heavy: 500ms of CPU, as calibrated with a lone client, back to back: SELECT BENCHMARK(7, MD5('x'))
median of 3 rounds of 3s, from when each heavy client has had its first reply and the light ones have caught up
heavy clients                   0     16
pool
  light p50 ms               0.12   0.12
  light p99 ms               0.20   5.00
  light max ms               40.0   40.0
  light/s                     400    400
  heavy/s                       -   8.00
    each, mean                  -   0.50
    each, min                   -   0.25
  errors                        0      0
  threads, peak                 5      5
per-connection
  light p50 ms               0.12   0.12
  light p99 ms               0.20   20.0
  light max ms               40.0   40.0
  light/s                     400    400
  heavy/s                       -   8.00
    each, mean                  -   0.50
    each, min                   -   0.25
  errors                        0      0
  threads, peak                 5      5
p99, pool / per-connection  1.00x  0.25x
errors: 0
";
        assert_eq!(render(&plan(), &outcome), expected);
    }

    #[test]
    fn the_title_says_what_was_different() {
        let plan = Plan {
            light: Light::Closed { clients: 2_000 },
            kind: HeavyKind::Unseen,
            mix: 0.1,
            cold: true,
            rounds: 1,
            ..plan()
        };
        let title = title(&plan, "SELECT SLEEP_UNSEEN(0.5)");
        for part in [
            "2000 clients in a closed loop, counted from when they were sent",
            "500ms asleep, unannounced, with probability 0.1, else a point select",
            "one round of 3s, from the start",
        ] {
            assert!(title.contains(part), "no '{part}' in {title}");
        }
    }
}
