//! The figures of a report, each made of what was measured, with a sentence that says what it
//! shows.

use super::Data;
use super::chart::{Chart, Scale, Series};
use crate::plan::{Scheduler, Transport, Workload};
use crate::published::Published;
use crate::run::{Cell, QUANTILES};
use crate::table::millis;

/// A chart with its words.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its name in addresses and files.
    pub id: &'static str,
    /// Its heading.
    pub title: String,
    /// What it shows.
    pub sentence: String,
    /// The picture.
    pub chart: Chart,
}

/// All figures that there is data for.
pub fn all(data: &Data, published: &[Published<'_>]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for workload in Workload::ALL {
        let cells: Vec<&Cell> = data.of(workload, Transport::Unix).collect();
        if cells.is_empty() {
            continue;
        }
        figures.push(throughput(workload, &cells));
        figures.push(slowest(workload, &cells));
        figures.extend(commits(workload, &cells));
        figures.extend(shapes(workload, &cells, published));
    }
    let selects: Vec<&Cell> = data.of(Workload::PointSelect, Transport::Unix).collect();
    if !selects.is_empty() {
        figures.push(distribution(&selects));
        figures.push(threads(&selects));
        figures.push(memory(&selects));
    }
    figures.extend(sockets(data));
    figures.extend(beside_heavy(data));
    figures
}

fn ids(workload: Workload) -> (&'static str, &'static str, &'static str) {
    match workload {
        Workload::Ping => ("qps-ping", "p99-ping", "shape-ping"),
        Workload::PointSelect => ("qps-point-select", "p99-point-select", "shape-point-select"),
        Workload::UpdateNokey => ("qps-update-nokey", "p99-update-nokey", "shape-update-nokey"),
        Workload::OltpRo => ("qps-oltp-ro", "p99-oltp-ro", "shape-oltp-ro"),
        Workload::OltpRw => ("qps-oltp-rw", "p99-oltp-rw", "shape-oltp-rw"),
        Workload::Convoy => ("qps-convoy", "p99-convoy", "shape-convoy"),
        Workload::Mixed => ("qps-mixed", "p99-mixed", "shape-mixed"),
        Workload::Disk => ("qps-disk", "p99-disk", "shape-disk"),
    }
}

/// The same colour everywhere.
fn colour(scheduler: Scheduler) -> usize {
    match scheduler {
        Scheduler::Pool => 0,
        Scheduler::PerConnection => 1,
        Scheduler::Mariadb => 2,
        Scheduler::StdLoop => 3,
        Scheduler::EventLoop => 4,
        Scheduler::Tokio => 5,
        Scheduler::TokioBlocking => 6,
        // A report has neither.
        Scheduler::OneShot | Scheduler::EventLoopMt => 7,
    }
}

/// A line for each scheduler that has a cell.
fn lines(cells: &[&Cell], value: impl Fn(&Cell) -> f64) -> Vec<Series> {
    let of = |scheduler: Scheduler| Series {
        name: scheduler.to_string(),
        colour: colour(scheduler),
        dashed: false,
        points: cells
            .iter()
            .filter(|cell| cell.scheduler == scheduler)
            .map(|cell| (cell.clients as f64, value(cell)))
            .collect(),
    };
    let series = Scheduler::ALL.map(of);
    series
        .into_iter()
        .filter(|s| !s.points.is_empty())
        .collect()
}

fn over_clients(y: &str, y_scale: Scale, series: Vec<Series>) -> Chart {
    Chart {
        x: "clients".into(),
        y: y.into(),
        x_scale: Scale::Doubling,
        y_scale,
        series,
    }
}

fn find<'a>(cells: &[&'a Cell], scheduler: Scheduler, clients: usize) -> Option<&'a Cell> {
    let mut cells = cells.iter().copied();
    cells.find(|cell| cell.scheduler == scheduler && cell.clients == clients)
}

fn most_clients(cells: &[&Cell]) -> usize {
    cells.iter().map(|cell| cell.clients).max().unwrap_or(0)
}

fn throughput(workload: Workload, cells: &[&Cell]) -> Figure {
    let clients = most_clients(cells);
    let pool = |clients| find(cells, Scheduler::Pool, clients).map(|cell| cell.qps.median);
    let mut sentence = String::new();
    let below = find(cells, Scheduler::PerConnection, clients).map(|cell| cell.qps.median);
    if let (Some(pool), Some(below)) = (pool(clients), below.filter(|qps| *qps > 0.0)) {
        sentence = format!(
            "With {clients} clients the pool does {:.2} times what thread-per-connection does. ",
            pool / below
        );
    }
    // Where the pool loses by more than what rounds differ by.
    let losses: Vec<String> = Scheduler::ALL
        .iter()
        .filter_map(|other| {
            let worst = cells
                .iter()
                .filter(|cell| cell.scheduler == *other && cell.qps.median > 0.0)
                .filter_map(|cell| Some((pool(cell.clients)? / cell.qps.median, cell.clients)))
                .min_by(|a, b| a.0.total_cmp(&b.0))?;
            (worst.0 < 0.97).then(|| format!("{other} ({:.2}x with {})", worst.0, worst.1))
        })
        .collect();
    sentence += &if losses.is_empty() {
        "Nowhere is it behind another by more than 3 %.".to_string()
    } else {
        format!("It is behind, where that is worst, {}.", losses.join(", "))
    };
    Figure {
        id: ids(workload).0,
        title: format!("{workload}: {} a second", workload.unit()),
        sentence,
        chart: over_clients(
            &format!("{}/s", workload.unit()),
            Scale::Linear,
            lines(cells, |cell| cell.qps.median),
        ),
    }
}

fn slowest(workload: Workload, cells: &[&Cell]) -> Figure {
    let clients = most_clients(cells);
    let at = |scheduler| find(cells, scheduler, clients).map(|cell| millis(cell.p99_us));
    let parts: Vec<String> = Scheduler::ALL
        .iter()
        .filter_map(|scheduler| Some(format!("{scheduler} {} ms", at(*scheduler)?)))
        .collect();
    Figure {
        id: ids(workload).1,
        title: format!("{workload}: the slowest of a hundred"),
        sentence: format!(
            "With {clients} clients, one of a hundred {} takes at least: {}.",
            workload.unit(),
            parts.join(", ")
        ),
        chart: over_clients(
            "99th percentile, ms",
            Scale::Decades,
            lines(cells, |cell| cell.p99_us / 1e3),
        ),
    }
}

/// Of the workload that is about them.
fn commits(workload: Workload, cells: &[&Cell]) -> Option<Figure> {
    if workload != Workload::Convoy {
        return None;
    }
    let of = |cell: &Cell| cell.commits.map_or(0.0, |commits| commits.p99_us / 1e3);
    let timeouts: u64 = cells
        .iter()
        .filter_map(|cell| Some(cell.commits?.lock_timeouts))
        .sum();
    Some(Figure {
        id: "commit-convoy",
        title: "convoy: how long a commit takes".into(),
        sentence: format!(
            "Everybody waits for the row whose holder commits here, so this is how long the convoy \
             stands; {timeouts} lock waits took too long."
        ),
        chart: over_clients(
            "commit, 99th percentile, ms",
            Scale::Decades,
            lines(cells, of),
        ),
    })
}

/// Every curve as shares of its own best, the published ones too.
fn shapes(workload: Workload, cells: &[&Cell], published: &[Published<'_>]) -> Option<Figure> {
    let mut series = Vec::new();
    for scheduler in [Scheduler::Pool, Scheduler::PerConnection] {
        let points: Vec<(f64, f64)> = cells
            .iter()
            .filter(|cell| cell.scheduler == scheduler)
            .map(|cell| (cell.clients as f64, cell.qps.median))
            .collect();
        if !points.is_empty() {
            series.push(Series {
                name: format!("{scheduler}, here"),
                colour: colour(scheduler),
                dashed: false,
                points: shares(points),
            });
        }
    }
    let here: Vec<&Published<'_>> = published
        .iter()
        .filter(|value| value.workload == workload.name())
        .collect();
    let mut curves: Vec<(&str, u32, &str)> = Vec::new();
    for value in &here {
        let curve = (value.machine, value.cores, value.scheduler);
        if !curves.contains(&curve) {
            curves.push(curve);
        }
    }
    // Without one there is nothing to compare with.
    let most = here.iter().map(|value| value.clients).max()?;
    let mut kept = Vec::new();
    for (at, (machine, cores, scheduler)) in curves.into_iter().enumerate() {
        let points = here
            .iter()
            .filter(|value| (value.machine, value.scheduler) == (machine, scheduler))
            .map(|value| (value.clients as f64, value.qps as f64))
            .collect();
        let points = shares(points);
        kept.extend(points.last().map(|(_, share)| (scheduler, *share)));
        series.push(Series {
            name: format!("{scheduler}, {machine}, {cores} cores"),
            colour: 2 + at,
            dashed: true,
            points,
        });
    }
    let range = |scheduler: &str| {
        let of = kept
            .iter()
            .filter(|(of, _)| *of == scheduler)
            .map(|(_, share)| *share);
        let (least, most) = of.fold((1.0f64, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
        format!("{:.0} to {:.0} %", least * 100.0, most * 100.0)
    };
    Some(Figure {
        id: ids(workload).2,
        title: format!("{workload}: the shape, beside MariaDB's own machines"),
        sentence: format!(
            "Each curve as a share of its own best; other machines and another engine, so heights \
             say nothing. With {most} clients MariaDB 5.5 kept {} of its best with its pool and {} \
             with thread-per-connection.",
            range("pool"),
            range("per-connection")
        ),
        chart: over_clients("share of its own best", Scale::Linear, series),
    })
}

fn shares(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let best = points
        .iter()
        .map(|point| point.1)
        .fold(f64::MIN_POSITIVE, f64::max);
    points.into_iter().map(|(x, y)| (x, y / best)).collect()
}

fn distribution(cells: &[&Cell]) -> Figure {
    let clients = most_clients(cells);
    let here: Vec<&&Cell> = cells
        .iter()
        .filter(|cell| cell.clients == clients)
        .collect();
    let series = here.iter().map(|cell| Series {
        name: cell.scheduler.to_string(),
        colour: colour(cell.scheduler),
        dashed: false,
        points: cell
            .quantiles_us
            .iter()
            .zip(QUANTILES)
            .map(|(us, share)| (us / 1e3, share))
            .collect(),
    });
    let series: Vec<Series> = series.collect();
    let spread = here.iter().map(|cell| {
        let ratio = cell.p99_us / cell.p50_us.max(0.1);
        format!("{} {ratio:.1}", cell.scheduler)
    });
    Figure {
        id: "cdf-point-select",
        title: format!("point_select: all latencies, {clients} clients"),
        sentence: format!(
            "The part of the statements that were answered within a time; the steeper, the more \
             alike they fare. The slowest of a hundred over the middle one: {}.",
            spread.collect::<Vec<_>>().join(", ")
        ),
        chart: Chart {
            x: "latency, ms".into(),
            y: "part answered".into(),
            x_scale: Scale::Decades,
            y_scale: Scale::Linear,
            series,
        },
    }
}

fn threads(cells: &[&Cell]) -> Figure {
    let clients = most_clients(cells);
    let of = |s| find(cells, s, clients).map_or(0, |cell| cell.server_threads_peak);
    Figure {
        id: "threads",
        title: "Threads of the server".into(),
        sentence: format!(
            "With {clients} clients the pool has {} threads at most, thread-per-connection {}.",
            of(Scheduler::Pool),
            of(Scheduler::PerConnection)
        ),
        chart: over_clients(
            "threads, peak",
            Scale::Decades,
            lines(cells, |cell| cell.server_threads_peak as f64),
        ),
    }
}

fn memory(cells: &[&Cell]) -> Figure {
    let clients = most_clients(cells);
    let mib = |cell: &Cell| cell.server_rss_kib as f64 / 1024.0;
    let of = |s| find(cells, s, clients).map_or(0.0, mib);
    Figure {
        id: "memory",
        title: "Memory of the server".into(),
        sentence: format!(
            "Resident, the table included, which is the same for all: with {clients} clients the \
             pool has {:.0} MiB, thread-per-connection {:.0} MiB.",
            of(Scheduler::Pool),
            of(Scheduler::PerConnection)
        ),
        chart: over_clients("memory, MiB, peak", Scale::Linear, lines(cells, mib)),
    }
}

fn sockets(data: &Data) -> Option<Figure> {
    let workload = Workload::PointSelect;
    let over = |transport| -> Vec<&Cell> {
        data.of(workload, transport)
            .filter(|cell| matches!(cell.scheduler, Scheduler::Pool | Scheduler::PerConnection))
            .collect()
    };
    let (unix, tcp) = (over(Transport::Unix), over(Transport::Tcp));
    if unix.is_empty() || tcp.is_empty() {
        return None;
    }
    let mut series = Vec::new();
    for (cells, transport) in [(&unix, Transport::Unix), (&tcp, Transport::Tcp)] {
        for mut line in lines(cells, |cell| cell.qps.median) {
            line.name = format!("{}, {transport}", line.name);
            line.dashed = transport == Transport::Tcp;
            series.push(line);
        }
    }
    let ratios = [Scheduler::Pool, Scheduler::PerConnection].map(|scheduler| {
        let of = |cells: &[&Cell]| {
            let clients = most_clients(&tcp);
            find(cells, scheduler, clients).map_or(0.0, |cell| cell.qps.median)
        };
        let (unix, tcp) = (of(&unix), of(&tcp));
        format!(
            "{scheduler} {:.2} times",
            if tcp > 0.0 { unix / tcp } else { 0.0 }
        )
    });
    Some(Figure {
        id: "unix-tcp",
        title: "Unix sockets against TCP".into(),
        sentence: format!(
            "With {} clients a Unix socket carries as many point selects as TCP over the loopback \
             interface: {}.",
            most_clients(&tcp),
            ratios.join(", ")
        ),
        chart: over_clients("statements/s", Scale::Linear, series),
    })
}

fn beside_heavy(data: &Data) -> Option<Figure> {
    let mut names: Vec<(&str, usize)> = Vec::new();
    for (name, cell) in &data.latency {
        // The tuned row is of the same scheduler, and must not look the same.
        let colour = if *name == cell.scheduler.name() {
            colour(cell.scheduler)
        } else {
            5
        };
        if !names.contains(&(name, colour)) {
            names.push((name, colour));
        }
    }
    let mut places: Vec<usize> = data.latency.iter().map(|(_, cell)| cell.heavy).collect();
    places.sort_unstable();
    places.dedup();
    let most = *places.last()?;
    let series: Vec<Series> = names
        .iter()
        .map(|(name, colour)| Series {
            name: (*name).to_string(),
            colour: *colour,
            dashed: false,
            points: data
                .latency
                .iter()
                .filter(|(of, _)| of == name)
                .map(|(_, cell)| (cell.heavy as f64, cell.p99_us / 1e3))
                .collect(),
        })
        .collect();
    let parts: Vec<String> = data
        .latency
        .iter()
        .filter(|(_, cell)| cell.heavy == most)
        .map(|(name, cell)| format!("{name} {} ms", millis(cell.p99_us)))
        .collect();
    Some(Figure {
        id: "light-heavy",
        title: "Light statements beside heavy ones".into(),
        sentence: format!(
            "One of a hundred point selects takes at least so long beside {most} clients that burn \
             the CPU: {}.",
            parts.join(", ")
        ),
        chart: Chart {
            x: "heavy clients".into(),
            y: "light 99th percentile, ms".into(),
            x_scale: Scale::Places(places.iter().map(|n| *n as f64).collect()),
            y_scale: Scale::Decades,
            series,
        },
    })
}

#[cfg(test)]
pub(in crate::report) mod tests {
    use super::*;
    use crate::latency;
    use crate::published;
    use crate::record::tests::cell;
    use crate::run::Commits;

    /// Something of everything.
    pub(in crate::report) fn data() -> Data {
        let mut cells = Vec::new();
        for workload in Workload::ALL {
            for scheduler in Scheduler::ALL
                .into_iter()
                .filter(|s| s.is_usual() && s.serves(workload))
            {
                for clients in [16, 4096] {
                    let height = match scheduler {
                        Scheduler::EventLoop => 4e5,
                        Scheduler::Pool => 2e5,
                        _ => 1e5,
                    };
                    cells.push(Cell {
                        workload,
                        commits: workload.is_transaction().then_some(Commits {
                            p50_us: 1.0,
                            p99_us: 2.0,
                            lock_timeouts: 3,
                        }),
                        ..cell(scheduler, clients, height)
                    });
                }
            }
        }
        for scheduler in [Scheduler::Pool, Scheduler::PerConnection] {
            cells.push(Cell {
                transport: Transport::Tcp,
                ..cell(scheduler, 4096, 5e4)
            });
        }
        let mut latency = Vec::new();
        for (name, scheduler) in [
            ("pool", Scheduler::Pool),
            ("mariadb", Scheduler::Mariadb),
            (super::super::TUNED, Scheduler::Mariadb),
        ] {
            for heavy in [0, 16] {
                let cell = latency::table::tests::cell(scheduler, heavy, 1_000.0);
                latency.push((name.to_string(), cell));
            }
        }
        Data { cells, latency }
    }

    #[test]
    fn every_figure_has_data_a_sentence_and_a_name_of_its_own() {
        let figures = all(&data(), &published::all().unwrap());
        let mut ids: Vec<_> = figures.iter().map(|figure| figure.id).collect();
        // Seven workloads twice, the commits, four published ones, and five more.
        assert_eq!(ids.len(), 7 * 2 + 1 + 4 + 5, "{ids:?}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), figures.len(), "{ids:?}");
        for figure in &figures {
            assert!(!figure.chart.series.is_empty(), "{}", figure.id);
            for series in &figure.chart.series {
                assert!(!series.points.is_empty(), "{} {}", figure.id, series.name);
            }
            assert!(figure.sentence.ends_with('.'), "{}", figure.sentence);
        }
    }

    fn sentence(id: &str) -> String {
        let figures = all(&data(), &published::all().unwrap());
        figures
            .into_iter()
            .find(|figure| figure.id == id)
            .unwrap()
            .sentence
    }

    #[test]
    fn cells_that_the_pool_loses_are_named() {
        assert_eq!(
            sentence("qps-ping"),
            "With 4096 clients the pool does 2.00 times what thread-per-connection does. \
             It is behind, where that is worst, event-loop (0.50x with 16)."
        );
        // That one does not serve it.
        assert!(sentence("qps-convoy").ends_with("Nowhere is it behind another by more than 3 %."));
    }

    #[test]
    fn published_curves_are_shares_of_their_own_best() {
        let figures = all(&data(), &published::all().unwrap());
        let shape = figures
            .iter()
            .find(|f| f.id == "shape-point-select")
            .unwrap();
        assert_eq!(shape.chart.series.len(), 2 + 3 * 2);
        for series in &shape.chart.series {
            let best = series.points.iter().map(|p| p.1).fold(0.0, f64::max);
            assert_eq!(best, 1.0, "{}", series.name);
        }
        assert!(
            figures.iter().all(|f| f.id != "shape-ping"),
            "nobody published it"
        );
    }

    #[test]
    fn the_tuned_rows_are_told_from_the_others() {
        let figures = all(&data(), &[]);
        let figure = figures.iter().find(|f| f.id == "light-heavy").unwrap();
        let colours: Vec<usize> = figure.chart.series.iter().map(|s| s.colour).collect();
        assert_eq!(colours, [0, 2, 5]);
        assert!(
            figure.sentence.contains(super::super::TUNED),
            "{}",
            figure.sentence
        );
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        assert_eq!(all(&Data::default(), &published::all().unwrap()), []);
    }
}
