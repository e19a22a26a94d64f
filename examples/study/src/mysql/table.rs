//! Results for people: a row for each server, a column for each number of clients.

use super::{Cell, Comparison, Plan, Script, Setting, Target, heavy};
use crate::stats::Estimate;
use crate::table::{CLIENT_SATURATED, align, busy, disturbed_line, millis, ratio, short};

/// The whole result of [`super::run`].
pub fn render(plan: &Plan, versions: &str, cells: &[Cell]) -> String {
    let mut text = String::new();
    for &script in &plan.scripts {
        let here: Vec<&Cell> = cells.iter().filter(|cell| cell.script == script).collect();
        text.push_str(&of_script(plan, versions, script, &here));
        text.push('\n');
    }
    let ignored: u64 = cells.iter().map(|cell| cell.ignored_errors).sum();
    text.push_str(&format!(
        "deadlocks and lock wait time-outs, after which sysbench tries again: {ignored}; other errors: 0\n"
    ));
    let disturbed = cells.iter().map(|cell| cell.disturbed).sum();
    text.push_str(&disturbed_line(plan.rounds_in_all(), disturbed));
    text
}

fn rounds(setting: &Setting) -> String {
    match setting.rounds {
        1 => format!("one round of {:?}", setting.seconds),
        n => format!("median of {n} rounds of {:?}", setting.seconds),
    }
}

fn of_script(plan: &Plan, versions: &str, script: Script, cells: &[&Cell]) -> String {
    let setting = &plan.setting;
    let title = format!(
        "{script} over {}, queries/s, {}, {versions}, --db-ps-mode={}",
        setting.transport,
        rounds(setting),
        setting.ps_mode,
    );
    let find = |target: Target, threads: usize| {
        let mut cells = cells.iter();
        cells
            .find(|cell| cell.target == target && cell.threads == threads)
            .copied()
    };
    let row = |label: &str, show: &dyn Fn(usize) -> Option<String>| {
        let fields = plan.threads.iter();
        let fields = fields.map(|threads| show(*threads).unwrap_or_else(|| "-".into()));
        std::iter::once(label.to_owned())
            .chain(fields)
            .collect::<Vec<_>>()
    };
    let mut grid = vec![row("threads", &|threads| Some(threads.to_string()))];
    for &target in &setting.targets {
        let mut show = |label: &str, of: &dyn Fn(&Cell) -> String| {
            grid.push(row(label, &|threads| find(target, threads).map(of)));
        };
        show(target.label(), &|cell| short(cell.qps.median));
        if setting.rounds > 1 {
            show("  min-max", &|cell| {
                format!("{}-{}", short(cell.qps.min), short(cell.qps.max))
            });
        }
        show("  p99 ms", &|cell| millis(cell.p99_us));
        show("  server's CPU, us a query", &|cell| {
            let cpu = crate::stats::Spread::of(cell.cpu_us_rounds.iter().copied());
            format!("{:.1}", cpu.median)
        });
        show("  client busy", &|cell| busy(cell.client_busy));
        let mut here = cells.iter().filter(|cell| cell.target == target);
        if here.any(|cell| cell.ignored_errors > 0) {
            show("  deadlocks, time-outs", &|cell| {
                cell.ignored_errors.to_string()
            });
        }
    }
    for &above in &setting.targets {
        let Some(below) = above.base().filter(|base| setting.targets.contains(base)) else {
            continue;
        };
        let mut show = |label: &str, of: &dyn Fn(Comparison) -> String| {
            grid.push(row(label, &|threads| {
                let pair = (find(above, threads)?, find(below, threads)?);
                Comparison::of(pair.0, pair.1).map(of)
            }));
        };
        let interval = |of: Estimate| format!("{:.2}-{:.2}", of.low, of.high);
        show(
            &format!("{} / {}", above.label(), below.scheduler()),
            &|c| ratio(c.qps.median, 1.0),
        );
        if setting.rounds > 1 {
            show("  95 %", &|c| interval(c.qps));
        }
        show("  server's CPU a query", &|c| ratio(c.cpu.median, 1.0));
        if setting.rounds > 1 {
            show("  95 %", &|c| interval(c.cpu));
        }
    }
    let mut text = format!("{title}\n{}", align(&grid));
    if cells
        .iter()
        .any(|cell| cell.client_busy >= CLIENT_SATURATED)
    {
        text.push_str(
            "!: sysbench had no CPU left; compare what a query costs the server, not queries/s\n",
        );
    }
    text
}

/// The whole result of [`heavy::run`].
pub fn render_heavy(plan: &heavy::Plan, versions: &str, cells: &[heavy::Cell]) -> String {
    let setting = &plan.setting;
    let find = |target: Target, heavy: usize| {
        let mut cells = cells.iter();
        cells.find(|cell| cell.target == target && cell.heavy == heavy)
    };
    let row = |label: &str, show: &dyn Fn(usize) -> Option<String>| {
        let fields = plan.heavy.iter();
        let fields = fields.map(|heavy| show(*heavy).unwrap_or_else(|| "-".into()));
        std::iter::once(label.to_owned())
            .chain(fields)
            .collect::<Vec<_>>()
    };
    let mut grid = vec![row("heavy clients", &|heavy| Some(heavy.to_string()))];
    for &target in &setting.targets {
        grid.push(vec![target.label().to_owned()]);
        let mut show = |label: &str, of: &dyn Fn(&heavy::Cell) -> String| {
            grid.push(row(label, &|heavy| find(target, heavy).map(of)));
        };
        show("  light mean ms", &|cell| millis(cell.mean_us));
        show("  light p99 ms", &|cell| millis(cell.p99_us));
        show("  light max ms", &|cell| millis(cell.max_us));
        show("  light/s", &|cell| short(cell.qps));
        show("  heavy/s", &|cell| format!("{:.2}", cell.heavy_qps));
        show("  threads, peak", &|cell| {
            cell.server_threads_peak.to_string()
        });
    }
    for &above in &setting.targets {
        if let Some(below) = above.base().filter(|base| setting.targets.contains(base)) {
            let label = format!("p99, {} / {}", above.label(), below.scheduler());
            grid.push(row(&label, &|heavy| {
                let p99 = |target| find(target, heavy).map(|cell| cell.p99_us);
                Some(ratio(p99(above)?, p99(below)?))
            }));
        }
    }
    let disturbed = cells.iter().map(|cell| cell.disturbed).sum();
    format!(
        "light: oltp_point_select of {versions} over {}, {}/s by {} threads, counted from when they were due\n\
         heavy: {:?} of CPU, as calibrated on each server, back to back: SELECT BENCHMARK(n, MD5(..))\n\
         {}\n{}{}",
        setting.transport,
        plan.rate,
        plan.light,
        plan.heavy_time,
        rounds(setting),
        align(&grid),
        disturbed_line(plan.rounds_in_all(), disturbed)
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpu::Split;
    use crate::mysql::mariadb::Handling;
    use crate::mysql::sysbench::PsMode;
    use crate::options::ServerOptions;
    use crate::plan::{Scheduler, Transport};
    use crate::stats::Spread;

    const POOL: Target = Target::Sqlish(Scheduler::Pool);
    const PER_CONNECTION: Target = Target::Sqlish(Scheduler::PerConnection);

    pub(crate) fn cell(target: Target, threads: usize, qps: f64) -> Cell {
        Cell {
            script: Script::ReadWrite,
            target,
            transport: Transport::Unix,
            threads,
            qps: Spread {
                median: qps,
                min: qps / 2.0,
                max: qps * 2.0,
            },
            qps_rounds: vec![qps, qps / 2.0, qps * 2.0],
            cpu_us_rounds: vec![5e5 / qps, 1e6 / qps, 2e6 / qps],
            tps: qps / 20.0,
            mean_us: 500.0,
            p99_us: 30_000.0,
            max_us: 40_000.0,
            ignored_errors: 0,
            server_threads_peak: 5,
            server_rss_kib: 1_000,
            server_cpu_s: 0.98765,
            client_cpu_s: 0.5,
            client_busy: 0.5,
            disturbed: 0,
        }
    }

    fn setting(targets: &[Target]) -> Setting {
        Setting {
            targets: targets.to_vec(),
            transport: Transport::Unix,
            ps_mode: PsMode::Auto,
            seconds: Duration::from_secs(5),
            warmup: Duration::from_secs(1),
            rounds: 3,
            split: Split {
                server: vec![0],
                client: vec![1],
            },
            rows: 1,
            options: ServerOptions::of_groups(1),
        }
    }

    #[test]
    fn each_server_has_its_rows_and_is_compared_with_its_own_thread_per_connection() {
        let mariadb = Handling::ALL.map(Target::Mariadb);
        let plan = Plan {
            setting: setting(&[POOL, PER_CONNECTION, mariadb[0], mariadb[1]]),
            scripts: vec![Script::ReadWrite],
            threads: vec![16, 4096],
        };
        let mut cells = vec![
            cell(POOL, 16, 30_000.0),
            cell(POOL, 4096, 30_000.0),
            cell(PER_CONNECTION, 16, 20_000.0),
            cell(PER_CONNECTION, 4096, 10_000.0),
            cell(mariadb[0], 16, 1_000.0),
            cell(mariadb[1], 16, 2_000.0),
        ];
        cells[1].ignored_errors = 7;
        cells[3].client_busy = 0.99;
        cells[3].disturbed = 1;
        let expected = "\
read_write over unix, queries/s, median of 3 rounds of 5s, sysbench 1.0.20, --db-ps-mode=auto
threads                                                     16       4096
pool                                                       30k        30k
  min-max                                              15k-60k    15k-60k
  p99 ms                                                  30.0       30.0
  server's CPU, us a query                                33.3       33.3
  client busy                                              50%        50%
  deadlocks, time-outs                                       0          7
per-connection                                             20k        10k
  min-max                                              10k-40k   5000-20k
  p99 ms                                                  30.0       30.0
  server's CPU, us a query                                50.0      100.0
  client busy                                              50%       99%!
MariaDB pool-of-threads                                   1000          -
  min-max                                             500-2000          -
  p99 ms                                                  30.0          -
  server's CPU, us a query                              1000.0          -
  client busy                                              50%          -
MariaDB one-thread-per-connection                         2000          -
  min-max                                            1000-4000          -
  p99 ms                                                  30.0          -
  server's CPU, us a query                               500.0          -
  client busy                                              50%          -
pool / per-connection                                    1.50x      3.00x
  95 %                                               1.50-1.50  3.00-3.00
  server's CPU a query                                   0.67x      0.33x
  95 %                                               0.67-0.67  0.33-0.33
MariaDB pool-of-threads / one-thread-per-connection      0.50x          -
  95 %                                               0.50-0.50          -
  server's CPU a query                                   2.00x          -
  95 %                                               2.00-2.00          -
!: sysbench had no CPU left; compare what a query costs the server, not queries/s

deadlocks and lock wait time-outs, after which sysbench tries again: 7; other errors: 0
disturbed: in 1 of 24 rounds other processes used more than 10% of a CPU that was measured on
";
        let text = render(&plan, "sysbench 1.0.20", &cells);
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn light_statements_are_shown_beside_each_number_of_heavy_clients() {
        let plan = heavy::Plan {
            setting: setting(&[POOL, PER_CONNECTION]),
            heavy: vec![1, 4],
            heavy_time: Duration::from_millis(500),
            light: 16,
            rate: 400,
        };
        let cell = |target, heavy, p99_us| heavy::Cell {
            target,
            heavy,
            digests: 1_000_000,
            mean_us: 1_000.0,
            p99_us,
            max_us: 2e4,
            qps: 399.6,
            heavy_qps: 2.0,
            server_threads_peak: 5,
            disturbed: 0,
        };
        let cells = [
            cell(POOL, 1, 5_000.0),
            cell(POOL, 4, 6_000.0),
            cell(PER_CONNECTION, 4, 3_000.0),
        ];
        let text = render_heavy(&plan, "sysbench 1.0.20", &cells);
        for part in [
            "400/s by 16 threads",
            "  light p99 ms              5.00   6.00\n",
            "  light p99 ms                 -   3.00\n",
            "p99, pool / per-connection     -  2.00x\n",
        ] {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
    }
}
