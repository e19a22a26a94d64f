//! The installed `sysbench`: what it is told, and what it says.
//!
//! Between its warm-up and its end it reports twice, and counts afresh after the first report: what
//! it says in the second is the window. It would run longer than that, so that no client has begun to leave
//! when the window closes, and is ended when it has reported: with thousands of threads under load it takes
//! seconds to minutes to end by itself, or fails in that.

use std::io::{self, BufRead, BufReader, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::load::{Endpoint, Moment};
use crate::mysql::Script;

/// How to come by it.
const MISSING: &str = "sysbench is missing: apt-get install -y sysbench, or see \
                       https://github.com/akopytov/sysbench";

/// How the last line of a report begins.
const LAST_LINE: &str = "execution time (avg/stddev):";

/// The program.
#[derive(Debug, Clone)]
pub struct Sysbench {
    program: PathBuf,
    /// What it calls itself.
    pub version: String,
}

/// How the driver sends statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PsMode {
    /// Prepared once, executed many times.
    Auto,
    /// As text.
    Disable,
}

impl PsMode {
    /// In the order of a help page.
    pub const ALL: [PsMode; 2] = [PsMode::Auto, PsMode::Disable];

    /// How `sysbench` spells it.
    pub fn name(self) -> &'static str {
        match self {
            PsMode::Auto => "auto",
            PsMode::Disable => "disable",
        }
    }
}

crate::plan::spelled_by_name!(PsMode, "mode of prepared statements");

/// A run of it.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// Which script: one of its own, or a file.
    pub script: &'a Path,
    /// Options of that script, and the size of its table.
    pub options: &'a [String],
    /// Which server.
    pub endpoint: &'a Endpoint,
    /// How many clients.
    pub threads: usize,
    /// Transactions a second, of all of them together; `None` is a closed loop.
    pub rate: Option<u64>,
    /// Whole seconds before the window.
    pub warmup: Duration,
    /// Whole seconds of the window.
    pub seconds: Duration,
    /// Whole seconds after it, in which it goes on if nobody ends it.
    pub after: Duration,
}

/// What it said of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Statements.
    pub queries: f64,
    /// The same a second.
    pub qps: f64,
    /// Transactions a second.
    pub tps: f64,
    /// Deadlocks and row locks that were waited for in vain, after each of which it tries again. What
    /// else goes wrong ends it.
    pub ignored_errors: u64,
    /// The mean time of a transaction.
    pub mean_us: f64,
    /// The 99th percentile, in classes of a few per cent.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Sysbench {
    /// The one on the path.
    ///
    /// # Errors
    /// A usage error that says how to come by it.
    pub fn find() -> Result<Sysbench> {
        let program = super::find("sysbench").ok_or_else(|| Error::usage(MISSING))?;
        let said = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(|error| Error::usage(format!("sysbench does not run: {error}")))?;
        let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        Ok(Sysbench { program, version })
    }

    fn command(&self, script: &Path, endpoint: &Endpoint) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(script)
            .args(["--db-driver=mysql", "--mysql-user=root"])
            .args(match endpoint {
                Endpoint::Unix(path) => vec![format!("--mysql-socket={}", path.display())],
                Endpoint::Tcp(address) => vec![
                    format!("--mysql-host={}", address.ip()),
                    format!("--mysql-port={}", address.port()),
                ],
            })
            .stdin(Stdio::null());
        command
    }

    /// Makes the table.
    ///
    /// # Errors
    /// A failed run, in the words of `sysbench`.
    pub fn prepare(&self, endpoint: &Endpoint, rows: u64) -> Result<()> {
        let output = self
            .command(Path::new("oltp_common"), endpoint)
            .arg(format!("--table-size={rows}"))
            .arg("prepare")
            .output();
        let output = output.map_err(|error| Error::run(format!("sysbench: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(complaint("prepare", &String::from_utf8_lossy(&said)))
    }

    /// Sends the statement of a script once from a single client, and waits for its end.
    ///
    /// # Errors
    /// A failed run, in the words of `sysbench`.
    pub fn once(&self, script: &Path, options: &[String], endpoint: &Endpoint) -> Result<()> {
        let output = self
            .command(script, endpoint)
            .args(options)
            .args(["--threads=1", "--events=1", "--time=0", "run"])
            .output();
        let output = output.map_err(|error| Error::run(format!("sysbench: {error}")))?;
        let said = [output.stdout, output.stderr].concat();
        if output.status.success() {
            return Ok(());
        }
        Err(complaint("run", &String::from_utf8_lossy(&said)))
    }

    /// Starts a run and waits until all clients have connected.
    ///
    /// # Errors
    /// A failed run, in the words of `sysbench`.
    pub fn start(&self, job: &Job<'_>) -> Result<Running> {
        let time = job.warmup + job.seconds + job.after;
        let ends = [job.warmup, job.warmup + job.seconds];
        // A report at 0 is one that it does not know of: it begins to count then in any case.
        let reports = ends.iter().filter(|end| !end.is_zero());
        let reports: Vec<_> = reports.map(|end| end.as_secs().to_string()).collect();
        let mut command = self.command(job.script, job.endpoint);
        command
            .args(job.options)
            .arg(format!("--threads={}", job.threads))
            .arg(format!("--time={}", time.as_secs()))
            .arg(format!("--report-checkpoints={}", reports.join(",")))
            .args(["--percentile=99", "--events=0"]);
        if let Some(rate) = job.rate {
            command.arg(format!("--rate={rate}"));
        }
        let failed = |error| Error::run(format!("sysbench: {error}"));
        // Its complaints go to standard output and to standard error by turns.
        let (said, says) = io::pipe().map_err(failed)?;
        command
            .arg("run")
            .stdout(says.try_clone().map_err(failed)?)
            .stderr(says);
        let process = command.spawn().map_err(failed)?;
        // It holds the other end of the pipe, which is to end with the process.
        drop(command);
        let mut running = Running {
            process,
            warms_up: !job.warmup.is_zero(),
            lines: BufReader::new(said),
            said: String::new(),
        };
        while running.line()? != "Threads started!" {}
        Ok(running)
    }
}

/// A run that has begun. It ends with this.
#[derive(Debug)]
pub struct Running {
    process: Child,
    warms_up: bool,
    lines: BufReader<PipeReader>,
    said: String,
}

impl Running {
    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for its report, and ends it. `moment` hears when the window opens and when it closes.
    ///
    /// # Errors
    /// A failed run, in the words of `sysbench`.
    pub fn finish(mut self, mut moment: impl FnMut(Moment)) -> Result<Report> {
        if self.warms_up {
            while !self.line()?.ends_with("Checkpoint report:") {}
        }
        moment(Moment::Opens);
        while !self.line()?.ends_with("Checkpoint report:") {}
        moment(Moment::Closes);
        let begin = self.said.len();
        while !self.line()?.trim_start().starts_with(LAST_LINE) {}
        parse(&self.said[begin..])
            .ok_or_else(|| Error::run("sysbench reports in words that are not those of 1.0"))
    }

    fn line(&mut self) -> Result<String> {
        let begin = self.said.len();
        match self.lines.read_line(&mut self.said) {
            Ok(0) => Err(complaint("run", &self.said)),
            Ok(_) => Ok(self.said[begin..].trim_end().to_owned()),
            Err(error) => Err(Error::run(format!("cannot hear sysbench: {error}"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What it complains of, in its own first words on the matter.
fn complaint(what: &str, said: &str) -> Error {
    let fatal = said.lines().find(|line| line.contains("FATAL"));
    let line = fatal.or(said.lines().rfind(|line| !line.trim().is_empty()));
    Error::run(format!(
        "sysbench {what}: {}",
        line.unwrap_or("it said nothing").trim()
    ))
}

/// The first of the reports in `said`.
fn parse(said: &str) -> Option<Report> {
    let field = |label: &str| {
        let lines = said.lines().map(str::trim);
        lines.filter_map(|line| line.strip_prefix(label)).next()
    };
    let number = |label: &str| field(label)?.split_whitespace().next()?.parse::<f64>().ok();
    let per_second = |label: &str| {
        let (_, rate) = field(label)?.split_once('(')?;
        rate.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(Report {
        queries: number("queries:")?,
        qps: per_second("queries:")?,
        tps: per_second("transactions:")?,
        ignored_errors: number("ignored errors:")? as u64,
        mean_us: number("avg:")? * 1e3,
        p99_us: number("99th percentile:")? * 1e3,
        max_us: number("max:")? * 1e3,
    })
}

impl Script {
    /// The file that `sysbench` has of it, which is a name.
    pub(crate) fn path(self) -> &'static Path {
        Path::new(match self {
            Script::PointSelect => "oltp_point_select",
            Script::ReadOnly => "oltp_read_only",
            Script::ReadWrite => "oltp_read_write",
            Script::WriteOnly => "oltp_write_only",
            Script::UpdateIndex => "oltp_update_index",
            Script::UpdateNonIndex => "oltp_update_non_index",
            Script::RandomPoints => "select_random_points",
            Script::RandomRanges => "select_random_ranges",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What sysbench 1.0.20 said.
    const SAID: &str = "\
SQL statistics:
    queries performed:
        read:                            33619
        write:                           0
        other:                           4806
        total:                           38425
    transactions:                        2403   (1224.28 per sec.)
    queries:                             38425  (19576.72 per sec.)
    ignored errors:                      3      (1.50 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          3.0018s
    total number of events:              2403

Latency (ms):
         min:                                    0.82
         avg:                                    3.34
         max:                                   93.91
         99th percentile:                       15.27
         sum:                                 8035.37

SQL statistics:
    queries:                             1  (1.00 per sec.)
";

    #[test]
    fn the_first_report_is_the_one_that_counts() {
        let report = parse(SAID).unwrap();
        assert_eq!(
            (report.queries, report.qps, report.tps),
            (38_425.0, 19_576.72, 1_224.28)
        );
        assert_eq!(report.ignored_errors, 3);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(report.p99_us, 15_270.0) && close(report.max_us, 93_910.0));
        assert!(close(report.mean_us, 3_340.0));
        for without in ["queries:", "99th percentile:", "ignored errors:"] {
            assert_eq!(parse(&SAID.replace(without, "")), None, "{without}");
        }
    }

    #[test]
    fn what_sysbench_complains_of_is_told_in_its_words() {
        let said = "Running\nFATAL: unable to connect to MySQL server\nFATAL: later\n";
        assert_eq!(
            complaint("run", said).to_string(),
            "sysbench run: FATAL: unable to connect to MySQL server"
        );
        assert_eq!(
            complaint("run", "invalid option: --x\n\n").to_string(),
            "sysbench run: invalid option: --x"
        );
        assert_eq!(
            complaint("run", "").to_string(),
            "sysbench run: it said nothing"
        );
    }
}
