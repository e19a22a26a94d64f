//! `study disk`: random writes of 4 KiB to a file, through handlers. Nothing is computed, so what is
//! measured is how many commands a scheduler keeps waiting for the disk at a time, and with how many
//! threads. The pool runs twice: telling the scheduler of each write, and not.
//!
//! The disk is asked by `fio` too, where that is installed: as many threads, the same file, and no
//! server between them and the disk.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::os;
use crate::plan::{Scheduler, show_cpus};
use crate::run::{self, Cell, Progress};
use crate::table::{align, errors_line, millis, ratio, short};

/// Bytes of a write, and what its place in the file is a multiple of.
pub const BLOCK: usize = 4096;

/// When a write is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// When `fdatasync` after it has returned. The file system makes one flush of many, so this gains the
    /// most by many writes at a time.
    Fsync,
    /// When the disk has taken it: direct I/O, past the page cache, and no flush.
    Direct,
}

impl Sync {
    const ALL: [Sync; 2] = [Sync::Fsync, Sync::Direct];

    fn name(self) -> &'static str {
        match self {
            Sync::Fsync => "fsync",
            Sync::Direct => "direct",
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sync {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = || {
            Error::usage(format!(
                "no way to write '{text}'; there are: fsync, direct"
            ))
        };
        let mut all = Self::ALL.into_iter();
        all.find(|one| one.name() == text).ok_or_else(known)
    }
}

/// What a server writes, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The file, which exists and has its size.
    pub file: PathBuf,
    /// When a write is done.
    pub sync: Sync,
    /// Whether the scheduler is told of each write.
    pub hooks: bool,
}

impl Disk {
    /// The arguments that a server process is given, each of which [`take`](Self::take) reads back.
    pub(crate) fn to_args(&self) -> [OsString; 3] {
        let hooks = if self.hooks { "hooked" } else { "unhooked" };
        [
            "--disk".into(),
            format!("{},{hooks}", self.sync).into(),
            self.file.clone().into(),
        ]
    }

    /// From the two values of `--disk`.
    pub(crate) fn take(how: &str, file: PathBuf) -> Result<Disk> {
        let (sync, hooks) = how.split_once(',').unwrap_or((how, ""));
        Ok(Disk {
            file,
            sync: sync.parse()?,
            hooks: hooks == "hooked",
        })
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of which the scheduler is told, or not; run once for each way. `rows` are the blocks of the file.
    pub table: run::Plan,
    /// When a write is done.
    pub sync: Sync,
    /// With wait hooks, without them, or both, in this order.
    pub hooks: Vec<bool>,
    /// The folder of the file.
    pub folder: PathBuf,
}

/// All that was measured.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// With and without hooks.
    pub passes: Vec<(bool, Vec<Cell>)>,
    /// By number of threads; `None` where there is no `fio`.
    pub fio: Vec<(usize, Option<Fio>)>,
}

/// What `fio` made of the same file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fio {
    /// Writes a second.
    pub writes: f64,
    /// The slowest of a hundred, its flush included.
    pub p99_us: f64,
}

impl Plan {
    /// How many rounds that is in all.
    pub fn rounds_in_all(&self) -> usize {
        self.table.rounds_in_all() * self.hooks.len()
    }
}

/// The file, until this is dropped.
struct Written(PathBuf);

impl Written {
    /// Makes it, every block of it written once: a hole is filled when it is first written to, and that
    /// would be measured.
    fn create(plan: &Plan) -> Result<Written> {
        let path = plan
            .folder
            .join(format!("study-disk-{}.dat", std::process::id()));
        let failed = |error| Error::usage(format!("cannot write {}: {error}", path.display()));
        let mut file = File::create_new(&path).map_err(failed)?;
        let this = Written(path.clone());
        let mut zeros = std::io::Read::take(std::io::repeat(0), plan.table.rows * BLOCK as u64);
        std::io::copy(&mut zeros, &mut file)
            .and_then(|_| file.sync_all())
            .map_err(failed)?;
        if plan.sync == Sync::Direct {
            open(&path, Sync::Direct).map_err(|error| {
                Error::usage(format!(
                    "no direct I/O in {}: {error}; name another folder with --dir",
                    plan.folder.display()
                ))
            })?;
        }
        Ok(this)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The file as a server opens it.
pub(crate) fn open(path: &Path, sync: Sync) -> std::io::Result<File> {
    os::open_to_write(path, sync == Sync::Direct)
}

/// Runs all of it. `progress` hears of every round.
pub fn run(plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<Outcome> {
    let file = Written::create(plan)?;
    let mut passes = Vec::new();
    let mut before = 0;
    for &hooks in &plan.hooks {
        let mut table = plan.table.clone();
        table.disk = Some(Disk {
            file: file.0.clone(),
            sync: plan.sync,
            hooks,
        });
        let cells = run::run(&table, |round| {
            progress(Progress {
                done: before + round.done,
                of: plan.rounds_in_all(),
                message: format!("{}, {}", round.message, told(hooks)),
            });
        })?;
        before += table.rounds_in_all();
        passes.push((hooks, cells));
    }
    let of = |clients: &usize| Ok((*clients, fio(plan, &file.0, *clients)?));
    let fio = plan.table.clients.iter().map(of).collect::<Result<_>>()?;
    Ok(Outcome { passes, fio })
}

fn told(hooks: bool) -> &'static str {
    if hooks { "hooks" } else { "no hooks" }
}

/// `None`: it is not there.
fn fio(plan: &Plan, file: &Path, threads: usize) -> Result<Option<Fio>> {
    let sync = match plan.sync {
        Sync::Fsync => "--fdatasync=1",
        Sync::Direct => "--direct=1",
    };
    let run = Command::new("fio")
        .args(["--name=study", "--rw=randwrite", "--bs=4k", "--norandommap"])
        .args(["--ioengine=psync", "--thread", "--group_reporting", sync])
        .args(["--time_based", "--output-format=json"])
        .arg(format!("--size={}", plan.table.rows * BLOCK as u64))
        .arg(format!("--numjobs={threads}"))
        .arg(format!("--ramp_time={}", plan.table.warmup.as_secs_f64()))
        .arg(format!("--runtime={}", plan.table.seconds.as_secs_f64()))
        .arg(format!(
            "--cpus_allowed={}",
            show_cpus(&plan.table.split.server)
        ))
        .arg(format!("--filename={}", file.display()))
        .stdin(Stdio::null())
        .output();
    let output = match run {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::run(format!("cannot run fio: {error}"))),
        Ok(output) => output,
    };
    let text = String::from_utf8_lossy(&output.stdout);
    read_fio(&text).map(Some).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        Error::run(format!("fio did not measure: {}", said.trim()))
    })
}

/// From its JSON, which warnings may precede.
fn read_fio(text: &str) -> Option<Fio> {
    let json: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = &json["jobs"][0];
    let p99 = |latency: &Value| latency["percentile"]["99.000000"].as_f64();
    let flush = p99(&job["sync"]["lat_ns"]).unwrap_or(0.0);
    Some(Fio {
        writes: job["write"]["iops"].as_f64()?,
        p99_us: (p99(&job["write"]["clat_ns"])? + flush) / 1e3,
    })
}

/// For people: writes a second, the slowest of a hundred and the threads of each server, over how many
/// write at a time.
pub fn render(plan: &Plan, outcome: &Outcome) -> String {
    let row = |label: String, show: &dyn Fn(usize) -> Option<String>| {
        let fields = plan.table.clients.iter().map(|clients| show(*clients));
        std::iter::once(label)
            .chain(fields.map(|field| field.unwrap_or_else(|| "-".into())))
            .collect::<Vec<_>>()
    };
    let mut text = String::new();
    for &transport in &plan.table.transports {
        let mut grid = vec![row("at a time".into(), &|clients| {
            Some(clients.to_string())
        })];
        for (hooks, cells) in &outcome.passes {
            let find = |scheduler: Scheduler, clients: usize| {
                cells.iter().find(|cell| {
                    (cell.scheduler, cell.clients, cell.transport)
                        == (scheduler, clients, transport)
                })
            };
            let told = told(*hooks);
            for &scheduler in &plan.table.schedulers {
                let mut show = |label: String, of: &dyn Fn(&Cell) -> String| {
                    grid.push(row(label, &|clients| find(scheduler, clients).map(of)));
                };
                show(format!("{scheduler}, {told}"), &|cell| {
                    short(cell.qps.median)
                });
                show("  min-max".into(), &|cell| {
                    format!("{}-{}", short(cell.qps.min), short(cell.qps.max))
                });
                show("  p99 ms".into(), &|cell| millis(cell.p99_us));
                show("  threads".into(), &|cell| {
                    cell.server_threads_peak.to_string()
                });
            }
            let qps = |scheduler, clients| Some(find(scheduler, clients)?.qps.median);
            for above in [Scheduler::Pool, Scheduler::Mariadb] {
                if plan.table.schedulers.contains(&above) {
                    let below = Scheduler::PerConnection;
                    grid.push(row(format!("{above} / {below}, {told}"), &|clients| {
                        Some(ratio(qps(above, clients)?, qps(below, clients)?))
                    }));
                }
            }
        }
        let fio = |clients: usize| outcome.fio.iter().find(|(of, _)| *of == clients)?.1;
        grid.push(row("fio, that many threads".into(), &|clients| {
            Some(short(fio(clients)?.writes))
        }));
        grid.push(row("  p99 ms".into(), &|clients| {
            Some(millis(fio(clients)?.p99_us))
        }));
        text.push_str(&format!(
            "writes of 4 KiB over {transport} a second, {}, to {} MiB in {}\n{}",
            plan.sync,
            plan.table.rows * BLOCK as u64 / (1024 * 1024),
            plan.folder.display(),
            align(&grid)
        ));
    }
    if outcome.fio.iter().all(|(_, fio)| fio.is_none()) {
        text.push_str("fio is not installed\n");
    }
    let cells: Vec<Cell> = outcome
        .passes
        .iter()
        .flat_map(|(_, cells)| cells.clone())
        .collect();
    text + &errors_line(&cells)
}

impl Outcome {
    /// Whether any cell had errors.
    pub fn has_errors(&self) -> bool {
        let mut cells = self.passes.iter().flat_map(|(_, cells)| cells);
        cells.any(|cell| cell.errors.total() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, parse};
    use crate::record::tests::cell;

    fn plan(line: &str) -> Plan {
        let args = line.split_whitespace().map(Into::into);
        match parse(args, &[0, 1], |cpu| cpu) {
            Ok(args::Command::Disk(disk)) => disk.plan,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn both_ways_to_write_are_measured_with_hooks_and_without() {
        let usual = plan("disk");
        assert_eq!(usual.table.clients, [1, 100, 1000]);
        assert_eq!(
            (usual.sync, usual.hooks.as_slice()),
            (Sync::Fsync, [true, false].as_slice())
        );
        let other = plan("disk --sync direct --hooks off --dir /x --clients 4");
        assert_eq!(
            (other.sync, other.hooks.as_slice()),
            (Sync::Direct, [false].as_slice())
        );
        assert_eq!((other.folder, other.table.clients), ("/x".into(), vec![4]));
    }

    #[test]
    fn what_a_server_is_told_is_what_it_reads() {
        for (sync, hooks) in [(Sync::Fsync, true), (Sync::Direct, false)] {
            let disk = Disk {
                file: "/a b".into(),
                sync,
                hooks,
            };
            let [_, how, file] = disk.to_args();
            assert_eq!(Disk::take(how.to_str().unwrap(), file.into()), Ok(disk));
        }
        assert!(Disk::take("never,hooked", "/a".into()).is_err());
    }

    #[test]
    fn fio_is_read_behind_its_warnings() {
        let said = "note: both iodepth >= 1 and synchronous I/O engine are selected\n{\"jobs\": [{\
                    \"write\": {\"iops\": 1234.5, \"clat_ns\": {\"percentile\": {\"99.000000\": 2000}}}, \
                    \"sync\": {\"lat_ns\": {\"percentile\": {\"99.000000\": 6000}}}}]}";
        let fio = read_fio(said).unwrap();
        assert_eq!((fio.writes, fio.p99_us), (1234.5, 8.0));
        assert_eq!(read_fio("fio: file not found"), None);
    }

    #[test]
    fn the_pool_is_compared_with_the_threads_of_its_own_pass() {
        let plan = plan("disk --clients 100");
        let pass = |hooks, pool| {
            let of = |scheduler, qps| cell(scheduler, 100, qps);
            (
                hooks,
                vec![
                    of(Scheduler::Pool, pool),
                    of(Scheduler::PerConnection, 1000.0),
                ],
            )
        };
        let outcome = Outcome {
            passes: vec![pass(true, 950.0), pass(false, 800.0)],
            fio: vec![(
                100,
                Some(Fio {
                    writes: 1100.0,
                    p99_us: 5.0,
                }),
            )],
        };
        let text = render(&plan, &outcome);
        let line = |start: &str| {
            let found = text.lines().find(|line| line.starts_with(start));
            found
                .and_then(|line| line.split_whitespace().last())
                .unwrap_or("")
                .to_string()
        };
        assert_eq!(line("pool / per-connection, hooks"), "0.95x");
        assert_eq!(line("pool / per-connection, no hooks"), "0.80x");
        assert_eq!(line("fio"), "1100");
        assert_eq!(line("  threads"), "5");
    }
}
