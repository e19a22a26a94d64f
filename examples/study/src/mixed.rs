//! `study mixed`: a business day in short. Clients join one after the other, then a period is
//! measured, by kind of transaction, a minute and second by second.

use crate::plan::KINDS;
use crate::run::{Cell, Plan};
use crate::table::{align, millis, short};

/// Seconds in a line.
const LINE: usize = 10;

/// For people: per scheduler what it did a minute, then each second.
pub fn render(plan: &Plan, cells: &[Cell]) -> String {
    let mut grid = vec![vec![
        "transactions a minute".to_string(),
        "clients".into(),
        "all".into(),
    ]];
    grid[0].extend(KINDS.map(|(name, weight)| format!("{name} {weight}%")));
    grid[0].extend(["p50 ms".into(), "p99 ms".into(), "errors".into()]);
    for cell in cells {
        let a_minute = |done: u64| {
            let seconds = plan.seconds.as_secs_f64();
            short(done as f64 * 60.0 / seconds)
        };
        let of_kind = |kind: usize| cell.seconds.iter().map(|second| second[kind]).sum::<u64>();
        let mut row = vec![
            cell.scheduler.to_string(),
            cell.clients.to_string(),
            a_minute((0..KINDS.len()).map(of_kind).sum()),
        ];
        row.extend((0..KINDS.len()).map(|kind| a_minute(of_kind(kind))));
        row.extend([millis(cell.p50_us), millis(cell.p99_us)]);
        row.push(cell.errors.total().to_string());
        grid.push(row);
    }
    let mut text = format!(
        "mixed: joined over {:?}, then measured for {:?}{}\n{}",
        plan.ramp,
        plan.seconds,
        if plan.rounds > 1 {
            ", the last round"
        } else {
            ""
        },
        align(&grid)
    );
    for cell in cells {
        text.push_str(&format!(
            "\n{}, {} clients, transactions in each second\n",
            cell.scheduler, cell.clients
        ));
        let all: Vec<u64> = cell
            .seconds
            .iter()
            .map(|second| second.iter().sum())
            .collect();
        let lines = all.chunks(LINE).enumerate().map(|(at, line)| {
            let first = format!("from {}", at * LINE);
            std::iter::once(first)
                .chain(line.iter().map(u64::to_string))
                .collect::<Vec<_>>()
        });
        text.push_str(&align(&lines.collect::<Vec<_>>()));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::args::{Command, parse};
    use crate::plan::{Scheduler, Workload};
    use crate::record::tests::cell;

    #[test]
    fn a_minute_is_reckoned_from_what_was_measured_and_each_second_is_shown() {
        let args = ["mixed", "--seconds", "2", "--ramp-up", "1"];
        let plan = match parse(args.map(Into::into), &[0, 1], |cpu| cpu) {
            Ok(Command::Mixed(table)) => table.plan,
            other => panic!("{other:?}"),
        };
        assert_eq!(plan.workloads, [Workload::Mixed]);
        assert_eq!(plan.ramp, Duration::from_secs(1));
        let cell = Cell {
            seconds: vec![[60, 25, 10, 5], [6, 2, 1, 1]],
            ..cell(Scheduler::Pool, 64, 55.0)
        };
        let text = render(&plan, &[cell]);
        let row = text.lines().find(|line| line.starts_with("pool ")).unwrap();
        let fields: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            fields[..7],
            ["pool", "64", "3300", "1980", "810", "330", "180"]
        );
        assert!(text.ends_with("from 0  100  10\n"), "{text}");
    }
}
