//! `study report`: one run of everything, then one page that needs nothing else, with the data
//! beside it as CSV and JSON.

pub mod chart;
pub mod figures;
pub mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::plan::{Scheduler, Transport, Workload};
use crate::published;
use crate::run::{self, Cell, Progress};
use crate::{latency, record};

/// What MariaDB's rows with the shortest stall limit that its manual advises are called.
pub const TUNED: &str = "mariadb, stall limit 10 ms";

/// The stall limit of those; MariaDB's default is 500 ms.
const TUNED_STALL_LIMIT: Duration = Duration::from_millis(10);

/// What to measure, and where the report goes.
#[derive(Debug)]
pub struct Plan {
    /// The folder; it is made.
    pub out: PathBuf,
    /// The tables: every workload over Unix sockets, then point selects over TCP.
    pub tables: Vec<run::Plan>,
    /// Light statements beside heavy ones.
    pub latency: latency::Plan,
}

impl Plan {
    /// How many rounds that is in all.
    pub fn rounds_in_all(&self) -> usize {
        let tables = self.tables.iter().map(run::Plan::rounds_in_all);
        tables.sum::<usize>() + self.latency.rounds_in_all() + self.tuned().rounds_in_all()
    }

    /// Descriptors that this process will need.
    pub fn files_needed(&self) -> usize {
        let tables = self.tables.iter().map(run::Plan::files_needed);
        tables
            .chain([self.latency.files_needed()])
            .max()
            .unwrap_or(0)
    }

    fn tuned(&self) -> latency::Plan {
        let mut plan = self.latency.clone();
        plan.schedulers = vec![Scheduler::Mariadb];
        plan.options.stall_limit = Some(TUNED_STALL_LIMIT);
        plan
    }
}

/// All that was measured.
#[derive(Debug, Clone, Default)]
pub struct Data {
    /// The tables' cells.
    pub cells: Vec<Cell>,
    /// Light statements beside heavy ones, each under its scheduler's name or [`TUNED`].
    pub latency: Vec<(String, latency::Cell)>,
}

impl Data {
    pub(crate) fn of(
        &self,
        workload: Workload,
        transport: Transport,
    ) -> impl Iterator<Item = &Cell> {
        self.cells
            .iter()
            .filter(move |cell| (cell.workload, cell.transport) == (workload, transport))
    }

    /// The errors of all cells, but for [`unanswered`](Self::unanswered).
    pub fn errors(&self) -> u64 {
        let tables = self.cells.iter().map(|cell| cell.errors.total());
        let beside = self.latency.iter().map(|(_, cell)| cell.errors.total());
        tables.chain(beside).sum::<u64>() - self.unanswered()
    }

    /// Light statements that MariaDB's policy left without a reply beside heavy ones. It serves fewer of
    /// them a second than are due, so that their queue grows for as long as one measures: a result, which
    /// the figure shows as their latency, and no fault of the run. Under any other scheduler it would be one.
    pub fn unanswered(&self) -> u64 {
        let theirs = self.latency.iter().map(|(_, cell)| cell);
        theirs
            .filter(|cell| cell.scheduler == Scheduler::Mariadb)
            .map(|cell| cell.errors.stuck)
            .sum()
    }
}

/// Measures all of it. `progress` hears of every round.
pub fn measure(plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<Data> {
    let of = plan.rounds_in_all();
    let mut before = 0;
    let mut data = Data::default();
    let mut pass = |before: usize, round: Progress| {
        progress(Progress {
            done: before + round.done,
            of,
            ..round
        });
    };
    for table in &plan.tables {
        data.cells
            .extend(run::run(table, |round| pass(before, round))?);
        before += table.rounds_in_all();
    }
    for (name, plan) in [(None, plan.latency.clone()), (Some(TUNED), plan.tuned())] {
        let outcome = latency::run(&plan, |round| pass(before, round))?;
        before += plan.rounds_in_all();
        data.latency.extend(outcome.cells.into_iter().map(|cell| {
            let name = name.unwrap_or(cell.scheduler.name());
            (name.to_string(), cell)
        }));
    }
    Ok(data)
}

/// The folder of the report, made and known to be writable before anything is measured.
///
/// # Errors
/// If it cannot be made or written to.
pub fn prepare(out: &Path) -> Result<()> {
    let pictures = out.join("figures");
    let made = fs::create_dir_all(&pictures).and_then(|()| {
        let probe = out.join("index.html");
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(probe)
    });
    made.map(drop)
        .map_err(|error| Error::usage(format!("cannot write to {}: {error}", out.display())))
}

/// Writes the page, its pictures and its data; the page's place.
pub fn write(plan: &Plan, machine: &Machine, data: &Data) -> Result<PathBuf> {
    let figures = figures::all(data, &published::all()?);
    let seed = plan.latency.seed;
    let facts = machine.facts().into_iter().chain([
        (
            "versions".into(),
            format!("thread-group-pool and study {}", env!("CARGO_PKG_VERSION")),
        ),
        ("seed".into(), seed.to_string()),
    ]);
    let facts: Vec<(String, String)> = facts.collect();
    let mut notes = machine.warnings();
    let disturbed: usize = data.cells.iter().map(|cell| cell.disturbed).sum::<usize>()
        + data
            .latency
            .iter()
            .map(|(_, cell)| cell.disturbed)
            .sum::<usize>();
    notes.push(format!("errors in all cells: {}", data.errors()));
    if data.unanswered() > 0 {
        notes.push(format!(
            "beside heavy clients MariaDB's policy left {} light statements without a reply to the end; each \
             counts as having taken until then",
            data.unanswered()
        ));
    }
    if disturbed > 0 {
        notes.push(format!(
            "in {disturbed} of {} rounds other processes used the CPUs that were measured on",
            plan.rounds_in_all()
        ));
    }
    notes.push(
        "the numbers are beside this page: throughput.csv, cdf.csv, latency.csv, and all of it in \
         data.json"
            .into(),
    );
    let mut files = vec![
        (
            "index.html".to_string(),
            page::page(&facts, &figures, &notes)?,
        ),
        ("data.json".into(), record::report_json(machine, seed, data)),
        ("throughput.csv".into(), record::csv(&data.cells)),
        ("cdf.csv".into(), record::cdf_csv(&data.cells)),
        ("latency.csv".into(), record::latency_csv(&data.latency)),
    ];
    for figure in &figures {
        files.push((format!("figures/{}.svg", figure.id), page::picture(figure)?));
    }
    for (name, text) in files {
        let path = plan.out.join(name);
        fs::write(&path, text)
            .map_err(|error| Error::run(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(plan.out.join("index.html"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, parse};

    fn plan(line: &str) -> Plan {
        let args = line.split_whitespace().map(Into::into);
        match parse(args, &[0, 1], |cpu| cpu) {
            Ok(Command::Report(plan)) => *plan,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_quick_report_has_every_workload_and_is_done_in_three_minutes() {
        let plan = plan("report --out x --quick");
        assert_eq!(plan.tables[0].workloads, Workload::ALL);
        assert!(plan.tables[0].schedulers.iter().all(|one| one.is_usual()));
        assert_eq!(plan.tables[1].transports, [Transport::Tcp]);
        // A quarter of a second a round for connecting and coming to rest, and each round of
        // `latency` starts a server and waits for the heavy statements.
        let rounds: f64 = plan
            .tables
            .iter()
            .map(|t| {
                (t.seconds + t.warmup).as_secs_f64() * t.rounds_in_all() as f64
                    + 0.25 * t.rounds_in_all() as f64
            })
            .sum();
        let beside = plan.latency.rounds_in_all() + plan.tuned().rounds_in_all();
        let each = plan.latency.seconds + plan.latency.warmup + Duration::from_secs(2);
        assert!(
            rounds + each.as_secs_f64() * beside as f64 <= 170.0,
            "{rounds} {beside}"
        );
    }

    #[test]
    fn a_report_is_a_page_pictures_and_data() {
        let mut plan = plan("report --out x --quick --seed 7");
        plan.out = std::env::temp_dir().join(format!("study-report-{}", std::process::id()));
        prepare(&plan.out).unwrap();
        let machine = Machine::look(&plan.latency.split);
        let page = write(&plan, &machine, &figures::tests::data()).unwrap();
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains("<dt>seed</dt><dd>7</dd>") && text.contains("<dt>kernel</dt>"));
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(plan.out.join("data.json")).unwrap()).unwrap();
        assert_eq!(json["seed"], 7);
        assert!(!json["cells"].as_array().unwrap().is_empty());
        for (file, lines) in [("latency.csv", 7), ("cdf.csv", 1 + 66 * 15)] {
            let text = fs::read_to_string(plan.out.join(file)).unwrap();
            assert_eq!(text.lines().count(), lines, "{file}");
        }
        assert!(plan.out.join("figures/light-heavy.svg").exists());
        fs::remove_dir_all(&plan.out).unwrap();
    }

    #[test]
    fn what_mariadbs_policy_leaves_unanswered_is_a_result_and_what_the_pool_does_an_error() {
        let stuck = |scheduler| {
            let mut data = figures::tests::data();
            let of = |(_, cell): &&mut (String, latency::Cell)| cell.scheduler == scheduler;
            let (_, cell) = data.latency.iter_mut().find(of).unwrap();
            cell.errors.stuck += 7;
            (data.errors(), data.unanswered())
        };
        let none = figures::tests::data();
        let (errors, unanswered) = (none.errors(), none.unanswered());
        assert_eq!(stuck(Scheduler::Mariadb), (errors, unanswered + 7));
        assert_eq!(stuck(Scheduler::Pool), (errors + 7, unanswered));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_usage_error() {
        let error = prepare(Path::new("/proc/no/such")).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }
}
