//! `study single`: one client, so nobody waits for anybody: the floor of latency, and what a Unix
//! socket saves over TCP.

use crate::plan::{Scheduler, Transport};
use crate::run::{Cell, Plan};
use crate::table::{align, ratio};

/// For people: a row for each scheduler, a column for each figure.
pub fn render(plan: &Plan, cells: &[Cell]) -> String {
    let mut text = String::new();
    for &workload in &plan.workloads {
        let find = |scheduler: Scheduler, transport: Transport| {
            cells.iter().find(|cell| {
                (cell.workload, cell.scheduler, cell.transport) == (workload, scheduler, transport)
            })
        };
        let head = [
            "",
            "unix p50 us",
            "p99 us",
            "tcp p50 us",
            "p99 us",
            "unix/s",
            "tcp/s",
            "unix / tcp",
        ];
        let mut grid = vec![head.map(String::from).to_vec()];
        for &scheduler in &plan.schedulers {
            let (unix, tcp) = (
                find(scheduler, Transport::Unix),
                find(scheduler, Transport::Tcp),
            );
            let show = |cell: Option<&Cell>, of: fn(&Cell) -> f64, digits: usize| {
                cell.map_or("-".into(), |cell| format!("{:.digits$}", of(cell)))
            };
            let qps = |cell: &Cell| cell.qps.median;
            grid.push(vec![
                scheduler.to_string(),
                show(unix, |cell| cell.p50_us, 1),
                show(unix, |cell| cell.p99_us, 1),
                show(tcp, |cell| cell.p50_us, 1),
                show(tcp, |cell| cell.p99_us, 1),
                show(unix, qps, 0),
                show(tcp, qps, 0),
                unix.zip(tcp)
                    .map_or("-".into(), |(unix, tcp)| ratio(qps(unix), qps(tcp))),
            ]);
        }
        text.push_str(&format!("{workload}, one client\n{}\n", align(&grid)));
    }
    text.push_str(
        "published of one business program on one database: 86.2 points over a Unix socket, 77 \
         over TCP, 1.12x; another program, compare the ratio alone\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, parse};
    use crate::record::tests::cell;

    #[test]
    fn one_client_is_measured_over_both_sockets_and_the_gain_is_shown() {
        let args = ["single", "--workload", "point_select"];
        let plan = match parse(args.map(Into::into), &[0, 1], |cpu| cpu) {
            Ok(Command::Single(table)) => table.plan,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (plan.clients.as_slice(), plan.transports.as_slice()),
            ([1].as_slice(), Transport::ALL.as_slice())
        );
        let cells = [
            cell(Scheduler::Pool, 1, 30_000.0),
            Cell {
                transport: Transport::Tcp,
                p50_us: 20.0,
                ..cell(Scheduler::Pool, 1, 25_000.0)
            },
        ];
        let text = render(&plan, &cells);
        let row = text.lines().find(|line| line.starts_with("pool")).unwrap();
        let fields: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            fields,
            [
                "pool", "10.0", "30000.0", "20.0", "30000.0", "30000", "25000", "1.20x"
            ]
        );
    }
}
