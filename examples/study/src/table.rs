//! Results for people: a row for each scheduler, a column for each number of clients, and the
//! published table below.

use std::fmt::Write;

use crate::plan::{Scheduler, Transport, Workload};
use crate::process;
use crate::published::Published;
use crate::run::{Cell, Commits, Plan};

/// Which ratios a table shows, each the answer to a question: what does the pool gain, what does it
/// cost, and is the library's thread-per-connection as good as one that is written by hand? The
/// last compares the best rounds: that loop falls into one of two rhythms on one core, and a median
/// would compare luck.
const RATIOS: [(Scheduler, Scheduler, Of); 7] = [
    (Scheduler::Pool, Scheduler::PerConnection, Of::Medians),
    (Scheduler::Pool, Scheduler::EventLoop, Of::Medians),
    (Scheduler::Pool, Scheduler::EventLoopMt, Of::Medians),
    (Scheduler::Pool, Scheduler::Tokio, Of::Medians),
    (Scheduler::Pool, Scheduler::TokioBlocking, Of::Medians),
    (Scheduler::Pool, Scheduler::OneShot, Of::Medians),
    (Scheduler::PerConnection, Scheduler::StdLoop, Of::Bests),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Medians,
    Bests,
}

/// From this on the load generator itself may be what limits a cell.
pub(crate) const CLIENT_SATURATED: f64 = 0.95;

/// The whole result: per workload the measured tables, then the published one.
pub fn render(plan: &Plan, cells: &[Cell], published: &[Published<'_>]) -> String {
    let mut text = String::new();
    for &workload in &plan.workloads {
        for &transport in &plan.transports {
            let here: Vec<&Cell> = cells
                .iter()
                .filter(|cell| cell.workload == workload && cell.transport == transport)
                .collect();
            text.push_str(&measured(plan, workload, transport, &here));
            text.push('\n');
        }
        text.push_str(&published_table(workload, published));
        text.push('\n');
    }
    text.push_str(&errors_line(cells));
    let disturbed = cells.iter().map(|cell| cell.disturbed).sum();
    text.push_str(&disturbed_line(plan.rounds_in_all(), disturbed));
    text
}

fn measured(plan: &Plan, workload: Workload, transport: Transport, cells: &[&Cell]) -> String {
    let rounds = match plan.rounds {
        1 => "one round".to_string(),
        n => format!("median of {n} rounds"),
    };
    let by_the_clock = plan.rate.map_or(String::new(), |rate| {
        format!("\nopen loop: {rate} due a second by all clients together, latency from when due")
    });
    let title = format!(
        "{workload} over {transport}, {}/s, {rounds} of {:?}{by_the_clock}",
        workload.unit(),
        plan.seconds
    );
    let find = |scheduler: Scheduler, clients: usize| {
        cells
            .iter()
            .find(|cell| cell.scheduler == scheduler && cell.clients == clients)
            .copied()
    };
    let row = |label: String, show: &dyn Fn(usize) -> Option<String>| {
        let fields = plan
            .clients
            .iter()
            .map(|clients| show(*clients).unwrap_or_else(|| "-".into()));
        std::iter::once(label).chain(fields).collect::<Vec<_>>()
    };
    let mut grid = vec![row("clients".into(), &|clients| Some(clients.to_string()))];
    for &scheduler in &plan.schedulers {
        let mut show = |label: &str, of: &dyn Fn(&Cell) -> String| {
            grid.push(row(label.into(), &|clients| {
                find(scheduler, clients).map(of)
            }));
        };
        show(scheduler.name(), &|cell| short(cell.qps.median));
        if plan.rounds > 1 {
            show("  min-max", &|cell| {
                format!("{}-{}", short(cell.qps.min), short(cell.qps.max))
            });
        }
        show("  p99 ms", &|cell| millis(cell.p99_us));
        if workload.is_transaction() {
            let of = |cell: &Cell, of: fn(&Commits) -> String| {
                cell.commits.as_ref().map_or("-".into(), of)
            };
            show("  commit p50 ms", &|cell| of(cell, |c| millis(c.p50_us)));
            show("  commit p99 ms", &|cell| of(cell, |c| millis(c.p99_us)));
        }
        if workload.waits_for_rows() {
            show("  lock time-outs", &|cell| {
                let commits = cell.commits.as_ref();
                commits.map_or("-".into(), |c| c.lock_timeouts.to_string())
            });
        }
        show("  client busy", &|cell| busy(cell.client_busy));
        if cells
            .iter()
            .any(|cell| cell.scheduler == scheduler && cell.errors.total() > 0)
        {
            show("  errors", &|cell| cell.errors.total().to_string());
        }
    }
    for (above, below, of) in RATIOS {
        if !plan.schedulers.contains(&above) || !plan.schedulers.contains(&below) {
            continue;
        }
        let value = |cell: &Cell| {
            if of == Of::Medians {
                cell.qps.median
            } else {
                cell.qps.max
            }
        };
        let best = if of == Of::Bests { ", best rounds" } else { "" };
        grid.push(row(format!("{above} / {below}{best}"), &|clients| {
            Some(ratio(
                value(find(above, clients)?),
                value(find(below, clients)?),
            ))
        }));
    }
    let mut text = format!("{title}\n{}", align(&grid));
    if cells
        .iter()
        .any(|cell| cell.client_busy >= CLIENT_SATURATED)
    {
        text.push_str(
            "!: the load generator was busy all the time; this server may be able to do more\n",
        );
    }
    text
}

fn published_table(workload: Workload, published: &[Published<'_>]) -> String {
    let here: Vec<_> = published
        .iter()
        .filter(|value| value.workload == workload.name())
        .collect();
    if here.is_empty() {
        return format!("there is no published table of {workload}\n");
    }
    let distinct = |mut all: Vec<usize>| {
        all.sort_unstable();
        all.dedup();
        all
    };
    let clients = distinct(here.iter().map(|value| value.clients).collect());
    let mut machines: Vec<(&str, u32)> = Vec::new();
    for value in &here {
        if !machines.contains(&(value.machine, value.cores)) {
            machines.push((value.machine, value.cores));
        }
    }
    let find = |machine: &str, scheduler: Scheduler, clients: usize| {
        let found = here.iter().find(|value| {
            value.machine == machine
                && value.scheduler == scheduler.name()
                && value.clients == clients
        });
        found.map(|value| value.qps as f64)
    };
    let row = |label: String, show: &dyn Fn(usize) -> Option<String>| {
        let fields = clients
            .iter()
            .map(|clients| show(*clients).unwrap_or_else(|| "-".into()));
        std::iter::once(label).chain(fields).collect::<Vec<_>>()
    };
    let mut grid = vec![row("clients".into(), &|clients| Some(clients.to_string()))];
    let (above, below) = (Scheduler::Pool, Scheduler::PerConnection);
    for (machine, cores) in machines {
        grid.push(vec![format!("{machine}, {cores} cores")]);
        for scheduler in [above, below] {
            grid.push(row(format!("  {scheduler}"), &|clients| {
                Some(short(find(machine, scheduler, clients)?))
            }));
        }
        grid.push(row(format!("  {above} / {below}"), &|clients| {
            Some(ratio(
                find(machine, above, clients)?,
                find(machine, below, clients)?,
            ))
        }));
    }
    format!(
        "published by MariaDB for 5.5 and sysbench {workload}, {}/s\n\
         other machines, other engine: compare shapes, never heights\n{}",
        workload.unit(),
        align(&grid)
    )
}

pub(crate) fn errors_line(cells: &[Cell]) -> String {
    let total: u64 = cells.iter().map(|cell| cell.errors.total()).sum();
    match cells
        .iter()
        .find_map(|cell| Some((cell, cell.errors.first.as_ref()?)))
    {
        None => format!("errors: {total}\n"),
        Some((cell, first)) => format!(
            "errors: {total}; the first, with {} clients of {} over {} on {}: {first}\n",
            cell.clients, cell.workload, cell.transport, cell.scheduler
        ),
    }
}

/// Said only when it was so: a quiet machine is nothing to report.
pub(crate) fn disturbed_line(rounds: usize, disturbed: usize) -> String {
    match disturbed {
        0 => String::new(),
        n => format!(
            "disturbed: in {n} of {rounds} rounds other processes used more than {:.0}% of a CPU \
             that was measured on\n",
            process::DISTURBED * 100.0
        ),
    }
}

/// The first column to the left, the others to the right, each as wide as its widest field.
pub(crate) fn align(grid: &[Vec<String>]) -> String {
    let columns = grid.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        // A lone label may run over the columns beside it.
        let fields = grid
            .iter()
            .filter(|row| row.len() > 1)
            .filter_map(|row| row.get(column));
        fields.map(|field| field.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in grid {
        let mut line = String::new();
        for (column, (field, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = if column == 0 {
                write!(line, "{field:<width$}")
            } else {
                write!(line, "  {field:>width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Three or four digits, which is what rounds agree on.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 999_500.0 => format!("{:.0}k", v / 1e3),
        v => format!("{:.2}M", v / 1e6),
    }
}

pub(crate) fn millis(micros: f64) -> String {
    match micros / 1e3 {
        ms if ms < 9.995 => format!("{ms:.2}"),
        ms if ms < 99.95 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

pub(crate) fn busy(share: f64) -> String {
    let mark = if share >= CLIENT_SATURATED { "!" } else { "" };
    format!("{:.0}%{mark}", share * 100.0)
}

pub(crate) fn ratio(above: f64, below: f64) -> String {
    if below > 0.0 {
        format!("{:.2}x", above / below)
    } else {
        "-".into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpu::Split;
    use crate::published;
    use crate::record::tests::cell;

    fn plan(schedulers: &[Scheduler], clients: &[usize]) -> Plan {
        Plan {
            workloads: vec![Workload::PointSelect],
            schedulers: schedulers.to_vec(),
            transports: vec![Transport::Unix],
            clients: clients.to_vec(),
            seconds: Duration::from_secs(1),
            warmup: Duration::ZERO,
            rounds: 3,
            split: Split {
                server: vec![0],
                client: vec![1],
            },
            rows: 1,
            options: crate::options::ServerOptions::of_groups(1),
            rate: None,
            ramp: Duration::ZERO,
            seed: 0,
            disk: None,
            port: None,
        }
    }

    #[test]
    fn a_table_has_a_row_for_each_scheduler_a_column_for_each_count_and_the_ratio() {
        let plan = plan(&[Scheduler::Pool, Scheduler::PerConnection], &[16, 4096]);
        let cells = [
            cell(Scheduler::Pool, 16, 300_000.0),
            cell(Scheduler::Pool, 4096, 250_000.0),
            cell(Scheduler::PerConnection, 16, 200_000.0),
            cell(Scheduler::PerConnection, 4096, 100_000.0),
        ];
        let cells: Vec<&Cell> = cells.iter().collect();
        let expected = "\
point_select over unix, statements/s, median of 3 rounds of 1s
clients                       16       4096
pool                        300k       250k
  min-max              150k-600k  125k-500k
  p99 ms                    30.0       30.0
  client busy                50%        50%
per-connection              200k       100k
  min-max              100k-400k   50k-200k
  p99 ms                    30.0       30.0
  client busy                50%        50%
pool / per-connection      1.50x      2.50x
";
        assert_eq!(
            measured(&plan, Workload::PointSelect, Transport::Unix, &cells),
            expected
        );
    }

    #[test]
    fn a_convoy_shows_its_commits_and_its_lock_timeouts() {
        let plan = plan(&[Scheduler::Pool], &[16]);
        let convoy = Cell {
            workload: Workload::Convoy,
            commits: Some(Commits {
                p50_us: 1_500.0,
                p99_us: 25_000.0,
                lock_timeouts: 7,
            }),
            ..cell(Scheduler::Pool, 16, 1_000.0)
        };
        let text = measured(&plan, Workload::Convoy, Transport::Unix, &[&convoy]);
        for row in [
            "convoy over unix, transactions/s",
            "  commit p50 ms       1.50\n",
            "  commit p99 ms       25.0\n",
            "  lock time-outs         7\n",
        ] {
            assert!(text.contains(row), "no '{row}' in\n{text}");
        }
        let select = cell(Scheduler::Pool, 16, 1_000.0);
        let text = measured(&plan, Workload::PointSelect, Transport::Unix, &[&select]);
        assert!(
            !text.contains("commit") && !text.contains("time-outs"),
            "{text}"
        );
    }

    #[test]
    fn the_hand_written_loop_is_compared_by_its_best_round() {
        let plan = plan(&[Scheduler::PerConnection, Scheduler::StdLoop], &[16]);
        let mut best = cell(Scheduler::StdLoop, 16, 100.0);
        best.qps.max = 400.0;
        let cells = [cell(Scheduler::PerConnection, 16, 100.0), best];
        let text = measured(
            &plan,
            Workload::PointSelect,
            Transport::Unix,
            &cells.iter().collect::<Vec<_>>(),
        );
        assert!(
            text.contains("per-connection / std-loop, best rounds   0.50x"),
            "{text}"
        );
    }

    #[test]
    fn errors_a_saturated_client_and_a_disturbed_machine_are_seen() {
        let plan = plan(&[Scheduler::Pool], &[16]);
        let mut bad = cell(Scheduler::Pool, 16, 100.0);
        bad.client_busy = 0.991;
        bad.errors.stuck = 3;
        bad.disturbed = 2;
        bad.errors.first = Some("client 4 got no reply".into());
        let text = render(&plan, &[bad], &[]);
        assert!(
            text.contains("99%!") && text.contains("!: the load generator was busy"),
            "{text}"
        );
        assert!(text.contains("disturbed: in 2 of 3 rounds"), "{text}");
        assert!(
            text.contains("  errors") && text.contains("errors: 3; the first, with 16 clients"),
            "{text}"
        );
    }

    #[test]
    fn the_published_table_carries_its_caption_and_all_machines() {
        let text = published_table(Workload::PointSelect, &published::all().unwrap());
        assert!(
            text.contains("\nother machines, other engine: compare shapes, never heights\n"),
            "{text}"
        );
        for machine in [
            "facebook-maria1, 16 cores",
            "pitbull, 24 cores",
            "Windows, 8 cores",
        ] {
            assert!(text.contains(machine), "{text}");
        }
        assert!(text.contains("510.40x"), "pitbull at 4096: {text}");
        let none = published_table(Workload::Ping, &published::all().unwrap());
        assert_eq!(none, "there is no published table of ping\n");
    }

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        let all = [
            0.4,
            282.0,
            9_999.0,
            9_999.6,
            91_322.0,
            999_600.0,
            1_234_567.0,
        ]
        .map(short);
        assert_eq!(all, ["0", "282", "9999", "10k", "91k", "1.00M", "1.23M"]);
        assert_eq!(
            [81.0, 9_996.0, 25_340.0, 358_000.0].map(millis),
            ["0.08", "10.0", "25.3", "358"]
        );
        assert_eq!(ratio(1.0, 0.0), "-");
    }
}
