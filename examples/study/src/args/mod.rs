//! The command line.

mod latency;
mod mysql;
mod report;
mod simulate;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt;

use crate::cpu::{self, Split};
use crate::disk::{self, Sync};
use crate::doctor;
use crate::error::{Error, Result};
use crate::options::{ServerOptions, number};
use crate::plan::{self, CLIENTS_MAX, Scheduler, Transport, Workload};
use crate::run::Plan;

pub use latency::Latency;
pub use mysql::{Asked, Mysql};
pub use simulate::Simulate;

/// What `--help` prints.
pub const HELP: &str = "\
study measures one database server under several schedulers.

study table [options]: how many statements a second, with 16 to 4096 clients

  --workload LIST      ping, point_select, update_nokey, oltp_ro,
                       oltp_rw, convoy (everybody updates one row, in transac-
                       tions of three statements), mixed, or all          [point_select]
  --scheduler LIST     pool, mariadb (the pool with MariaDB's algorithm and
                       defaults), per-connection, std-loop (a hand-written thread-
                       per-connection loop), event-loop (one epoll thread and no
                       scheduler: the floor), or all               [pool,per-connection]
                       With the feature of the same name: event-loop-mt (the same in a
                       process with a second thread, which sleeps), tokio (a task for each con-
                       nection, which runs the statements itself), tokio-blocking (each
                       in spawn_blocking), one-shot (the pool, re-arming each con-
                       nection with a system call after each turn)
  --transport LIST     unix, tcp, or all                           [unix; Windows: tcp]
  --clients LIST       16,64,256 or doubling: 16..4096, 16,32,...,4096   [16..4096]
  --seconds S          how long a round measures                   [1]
  --warmup S           how long it warms up before                 [0.25]
  --rounds N           rounds of each cell, schedulers interleaved [3]
  --server-cpus LIST   where the servers run, as 0,2-5             [three quarters]
  --client-cpus LIST   where the load generator runs               [a quarter, at least one]
  --rows N             rows of the table that every server builds  [1000000]
  --rate N             statements, or transactions, due a second, of all clients
                       together; latency counts from when they were due   [closed loop]
  --find-knee MS       find the highest rate whose 99th percentile is at most MS
  --seed N             the same seed makes the same statements     [0]
  --port N             TCP port of the first server, the next one takes N + 1   [free ones]
  --json FILE          also write the machine and all cells as JSON
  --csv FILE           also write all cells as CSV

study single [options]: one client, the floor of latency, Unix against TCP; options as
for table                                         [ping,point_select]

study mixed [options]: transactions of a business by weight (catalogue 60, register 25,
temporary 10, report 5), a minute and second by second; options as for table, and

  --ramp-up S          until the last client has joined            [5]
  --clients, --seconds, --rounds   as above                        [64, 20, 1]

study disk [options]: writes of 4 KiB to random places of a file, each a command; the pool
with wait hooks and without them, thread-per-connection, and fio if it is installed

  --sync HOW           fsync (each write is flushed) or direct (past the page cache) [fsync]
  --hooks LIST         on, off (each write is told to the scheduler, or not), or both [both]
  --dir DIR            where the file goes, which is taken away again  [the temporary folder]
  --rows N             blocks of the file                          [16384]
  --clients, --seconds, --rounds, --scheduler (pool, mariadb, per-connection), the CPUs
  and --json as for table                                          [1,100,1000, 2, 3]

study latency [options]: how long a point select takes while other clients of the
same server send heavy statements

  --heavy LIST         numbers of heavy clients, as for --clients  [0,1,2,4,16]
  --heavy-kind KIND    burn (CPU), hooked (a sleep that the scheduler is told of),
                       unseen (a sleep that it is not told of)     [burn]
  --heavy-ms N         how long a heavy statement takes alone      [500]
  --mix P              probability that a heavy client sends a heavy statement and
                       not a point select, which no figure counts  [1]
  --light N            light clients                               [16]
  --rate N             light statements a second, all together: one is due in each
                       slot of 1/N s, at a seeded random place in it, and its
                       latency counts from then                    [400]
  --light-closed N     N light clients in a closed loop instead
  --scheduler LIST     as above                                    [pool,per-connection]
  --cold               measure from the start, rather than when each heavy client has
                       had its first reply and the light ones have caught up
  --seconds, --warmup, --rounds, --transport (one), --client-cpus, --rows, --seed,
  --json               as above                                    [3, 0.25, 3, unix]
  --server-cpus LIST   as above                                    [one]

study mysql [options]: the installed sysbench, by MySQL's protocol, against sqlish under
each scheduler; pairs of rounds, their ratio and how sure it is

  --against mariadb    and against the installed MariaDB, under both of its
                       schedulers, in a folder that is removed afterwards
  --script LIST        point_select, read_only, update_non_index, read_write,
                       write_only, update_index, random_points, random_ranges, or
                       all                             [the first four]
  --threads LIST       sysbench's threads, as --clients above [16,64,256,1024,4096]
  --ps-mode MODE       auto (prepared statements) or disable       [auto]
  --scheduler LIST     pool, mariadb, per-connection   [pool,per-connection]
  --transport NAME     unix or tcp                                 [unix]
  --seconds S, --warmup S   whole seconds                          [5, 1]
  --heavy LIST         instead: point selects at a fixed rate beside so many clients
                       that send SELECT BENCHMARK back to back, in one group
  --heavy-ms N, --light N, --rate N   as for latency               [500, 16, 400]
  --rounds, --rows, --server-cpus, --client-cpus, --json   as above

study report --out DIR [options]: one run of everything, then DIR/index.html with
figures, each picture as a file of its own, and the numbers as CSV and JSON

  --quick              fewer clients, shorter rounds: under three minutes
  --heavy LIST         numbers of heavy clients                    [0,1,2,4,16]
  --workload, --clients, --seconds, --rounds, --rows, --seed, --server-cpus,
  --client-cpus        as above                                    [all workloads]

study calibrate [options]: what this machine takes for what the simulator counts: to
switch, wake and create a thread, to dispatch a command, to take a lock

  --seconds, --rounds, --server-cpus, --client-cpus, --json   as above   [1, 3]

study simulate [options]: the scheduler that ships, on virtual cores: this machine beside
what is measured on it, larger ones, and those of the published tables

  --cores LIST         as for --clients                            [8,16,24,64,128]
  --clients LIST       as above                                    [16..65536]
  --scheduler LIST     pool, mariadb, per-connection               [pool,per-connection]
  --calibration FILE   what study calibrate --json wrote           [measured first]
  --no-real            leave out what is measured here for comparison
  --no-published       leave out the published machines
  --seed, --seconds, --rounds, --server-cpus, --client-cpus, --json   as above

study doctor [options]: what on this machine will spoil a server's latency, why, and
what to do; the exit code is 1 when something will

  --clients N          how many connections the server is to hold  [4096]
  --json               for programs
  --root DIR           look at the proc and sys below DIR          [/]

Settings of the servers, for table, latency and mysql:

  --groups N           groups of the pool        [one for each server CPU; latency: 1]
  --max-threads N      threads of the pool                         [the pool's default]
  --stall-limit-ms N   when a command gives its slot to others     [the pool's default]
  --commit-delay-us N  how long the flush of a group of commits takes       [0: none]
  --commit-wait HOW    how a commit waits for it: park (its connection leaves the
                       thread) or hook (its thread blocks, in a reported wait) [park]
  --lock-wait-timeout S  how long a statement waits for a row      [50]
  --work-us US         CPU that each PING burns                    [0]
  --lock-us US         CPU that it burns under a lock that all of them share [0]

The table goes to standard output, progress and warnings to standard error. The exit
code is 2 when the run cannot be made as asked, 1 when it fails or a cell has errors.
";

/// What was asked for.
#[derive(Debug)]
pub enum Command {
    /// Print [`HELP`].
    Help,
    /// Measure throughput and print a table.
    Table(Box<Table>),
    /// Measure one client.
    Single(Box<Table>),
    /// Measure the mixed business, second by second.
    Mixed(Box<Table>),
    /// Measure writes to a file.
    Disk(Box<Disk>),
    /// Measure latency beside heavy statements and print a table.
    Latency(Box<Latency>),
    /// Measure with `sysbench`, by MySQL's protocol, and print a table.
    Mysql(Box<Mysql>),
    /// Measure everything and write a page.
    Report(Box<crate::report::Plan>),
    /// Measure what the simulator needs, and simulate if that was asked for.
    Simulate(Box<Simulate>),
    /// Look at the machine.
    Doctor(doctor::Plan),
}

/// The arguments of `study table`.
#[derive(Debug)]
pub struct Table {
    /// What to measure.
    pub plan: Plan,
    /// Find the highest rate whose 99th percentile stays under this.
    pub knee: Option<Duration>,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
    /// Where the CSV goes.
    pub csv: Option<PathBuf>,
}

/// The arguments of `study disk`.
#[derive(Debug)]
pub struct Disk {
    /// What to measure.
    pub plan: disk::Plan,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
}

/// Reads the arguments, without the program's name. `cpus` are those that may be used, and
/// `core_of` says which of them are one core.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    let mut parser = lexopt::Parser::from_args(args);
    match parser.next().map_err(Error::usage)? {
        Some(Value(name)) if name == "table" => table(Preset::Table, &mut parser, cpus, core_of),
        Some(Value(name)) if name == "single" => table(Preset::Single, &mut parser, cpus, core_of),
        Some(Value(name)) if name == "mixed" => table(Preset::Mixed, &mut parser, cpus, core_of),
        Some(Value(name)) if name == "disk" => table(Preset::Disk, &mut parser, cpus, core_of),
        Some(Value(name)) if name == "latency" => latency::latency(&mut parser, cpus, core_of),
        Some(Value(name)) if name == "mysql" => mysql::mysql(&mut parser, cpus, core_of),
        Some(Value(name)) if name == "report" => report::report(&mut parser, cpus, core_of),
        Some(Value(name)) if name == "calibrate" => simulate::calibrate(&mut parser, cpus, core_of),
        Some(Value(name)) if name == "simulate" => simulate::simulate(&mut parser, cpus, core_of),
        Some(Value(name)) if name == "doctor" => doctor(&mut parser),
        Some(Value(name)) if name == "help" => Ok(Command::Help),
        Some(Long("help") | Short('h')) => Ok(Command::Help),
        Some(Value(name)) => Err(Error::usage(format!(
            "no subcommand '{}'; there are: table, single, mixed, disk, latency, mysql, report, calibrate, simulate, doctor (see --help)",
            name.to_string_lossy()
        ))),
        Some(other) => Err(Error::usage(other.unexpected())),
        None => Err(Error::usage(
            "what to do? There are: study table, study single, study mixed, study disk, study latency, study mysql, study report, study calibrate, study simulate, study doctor (see --help)",
        )),
    }
}

/// What the options of `table` begin with, under another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preset {
    Table,
    /// One client over both sockets.
    Single,
    /// The mixed business, with a ramp-up.
    Mixed,
    /// Writes to a file.
    Disk,
}

fn table(
    preset: Preset,
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    let mut workloads = vec![Workload::PointSelect];
    let mut schedulers = vec![Scheduler::Pool, Scheduler::PerConnection];
    let mut transports = vec![Transport::USUAL];
    let mut clients = plan::parse_clients("16..4096", 1)?;
    let (mut seconds, mut warmup, mut rounds) =
        (Duration::from_secs(1), Duration::from_millis(250), 3);
    let mut ramp = Duration::ZERO;
    match preset {
        Preset::Table => {}
        Preset::Single => {
            workloads.insert(0, Workload::Ping);
            (clients, transports) = (vec![1], Transport::ALL.to_vec());
        }
        Preset::Mixed => {
            (workloads, clients) = (vec![Workload::Mixed], vec![64]);
            (seconds, rounds) = (Duration::from_secs(20), 1);
            ramp = Duration::from_secs(5);
        }
        Preset::Disk => {
            (workloads, clients) = (vec![Workload::Disk], vec![1, 100, 1_000]);
            seconds = Duration::from_secs(2);
        }
    }
    let (mut server_cpus, mut client_cpus) = (None, None);
    // sqlish's own default: 184 MB and a quarter of a second for each server that is started.
    let (mut rows, mut seed, mut port) = (1_000_000, 0, None);
    let (mut sync, mut hooks) = (Sync::Fsync, vec![true, false]);
    let mut folder = std::env::temp_dir();
    if preset == Preset::Disk {
        rows = 16_384;
    }
    let mut options = ServerOptions::of_groups(0);
    let (mut json, mut csv, mut rate, mut knee) = (None, None, None, None);
    while let Some(arg) = parser.next().map_err(Error::usage)? {
        match arg {
            Long("sync") if preset == Preset::Disk => sync = text(parser)?.parse()?,
            Long("dir") if preset == Preset::Disk => {
                folder = parser.value().map_err(Error::usage)?.into();
            }
            Long("hooks") if preset == Preset::Disk => {
                hooks = match text(parser)?.as_str() {
                    "on" => vec![true],
                    "off" => vec![false],
                    "both" => vec![true, false],
                    other => {
                        return Err(Error::usage(format!(
                            "hooks are on, off or both, not '{other}'"
                        )));
                    }
                };
            }
            Long("workload") if preset != Preset::Disk => {
                workloads = plan::parse_names(&text(parser)?, &Workload::ALL)?
            }
            Long("scheduler") => schedulers = plan::parse_schedulers(&text(parser)?)?,
            Long("transport") => transports = plan::parse_names(&text(parser)?, &Transport::ALL)?,
            Long("ramp-up") if preset == Preset::Mixed => {
                ramp = duration("--ramp-up", &text(parser)?, true)?;
            }
            Long("clients") => clients = plan::parse_clients(&text(parser)?, 1)?,
            Long("seconds") => seconds = duration("--seconds", &text(parser)?, false)?,
            Long("warmup") => warmup = duration("--warmup", &text(parser)?, true)?,
            Long("rounds") => rounds = number("rounds", &text(parser)?, 1..=1_000)? as usize,
            Long("server-cpus") => server_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("client-cpus") => client_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("rows") => rows = number("rows", &text(parser)?, 1..=100_000_000)?,
            Long("rate") => rate = Some(number("rate", &text(parser)?, 1..=10_000_000)?),
            Long("find-knee") => {
                let ms = number("find-knee", &text(parser)?, 1..=60_000)?;
                knee = Some(Duration::from_millis(ms));
            }
            Long("seed") => seed = number("seed", &text(parser)?, 0..=u64::MAX)?,
            Long("port") => port = Some(number("port", &text(parser)?, 1..=65_535)? as u16),
            Long("json") => json = Some(parser.value().map_err(Error::usage)?.into()),
            Long("csv") => csv = Some(parser.value().map_err(Error::usage)?.into()),
            Long("help") | Short('h') => return Ok(Command::Help),
            Long(name) => {
                let name = name.to_owned();
                options.take(&name, parser)?;
            }
            other => return Err(Error::usage(other.unexpected())),
        }
    }
    let split = divide(cpus, server_cpus, client_cpus, core_of);
    if options.groups == 0 {
        options.groups = split.server.len();
    }
    options.check()?;
    let plan = Plan {
        workloads,
        schedulers,
        transports,
        clients,
        seconds,
        warmup,
        rounds,
        split,
        rows,
        options,
        rate,
        ramp,
        seed,
        disk: None,
        port,
    };
    if preset == Preset::Disk {
        if knee.is_some() || csv.is_some() {
            return Err(Error::usage("disk has neither --find-knee nor --csv"));
        }
        if let Some(other) = plan.schedulers.iter().find(|s| !s.serves(Workload::Disk)) {
            return Err(Error::usage(format!("{other} writes to no disk")));
        }
        let plan = disk::Plan {
            table: plan,
            sync,
            hooks,
            folder,
        };
        return Ok(Command::Disk(Box::new(Disk { plan, json })));
    }
    if knee.is_some() && (rate.is_some() || csv.is_some()) {
        return Err(Error::usage(
            "--find-knee chooses the rates itself and writes no CSV: leave out --rate and --csv",
        ));
    }
    let asked = Box::new(Table {
        plan,
        knee,
        json,
        csv,
    });
    Ok(match preset {
        Preset::Table | Preset::Disk => Command::Table(asked),
        Preset::Single => Command::Single(asked),
        Preset::Mixed => Command::Mixed(asked),
    })
}

fn doctor(parser: &mut lexopt::Parser) -> Result<Command> {
    let mut plan = doctor::Plan {
        root: "/".into(),
        clients: 4_096,
        json: false,
    };
    while let Some(arg) = parser.next().map_err(Error::usage)? {
        match arg {
            Long("clients") => {
                plan.clients = number("clients", &text(parser)?, 1..=CLIENTS_MAX as u64)?;
            }
            Long("json") => plan.json = true,
            Long("root") => plan.root = parser.value().map_err(Error::usage)?.into(),
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(Error::usage(other.unexpected())),
        }
    }
    Ok(Command::Doctor(plan))
}

/// Who runs where: as asked, and whoever was not mentioned gets what is left, or its usual part if
/// nothing is.
fn divide(
    cpus: &[usize],
    server: Option<Vec<usize>>,
    client: Option<Vec<usize>>,
    core_of: impl Fn(usize) -> usize,
) -> Split {
    let usual = cpu::split(cpus, core_of);
    let left = |taken: &[usize]| {
        cpus.iter()
            .copied()
            .filter(|cpu| !taken.contains(cpu))
            .collect::<Vec<_>>()
    };
    let or =
        |some: Vec<usize>, usual: &Vec<usize>| if some.is_empty() { usual.clone() } else { some };
    match (server, client) {
        (None, None) => usual,
        (Some(server), Some(client)) => Split { server, client },
        (None, Some(client)) => Split {
            server: or(left(&client), &usual.server),
            client,
        },
        (Some(server), None) => {
            let mut free = left(&server);
            // The client is one thread; more than its quarter would only be kept from others.
            free.drain(..free.len().saturating_sub(usual.client.len()));
            Split {
                client: or(free, &usual.client),
                server,
            }
        }
    }
}

fn text(parser: &mut lexopt::Parser) -> Result<String> {
    parser
        .value()
        .and_then(ValueExt::string)
        .map_err(Error::usage)
}

fn usable(text: &str, cpus: &[usize]) -> Result<Vec<usize>> {
    let list = plan::parse_cpus(text)?;
    cpu::check(&list, cpus)?;
    Ok(list)
}

/// The longest warm-up or measurement; longer ones are typing mistakes.
const DURATION_MAX: Duration = Duration::from_secs(3_600);

fn duration(name: &str, text: &str, may_be_zero: bool) -> Result<Duration> {
    let duration = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration
        .filter(|d| *d <= DURATION_MAX && (may_be_zero || !d.is_zero()))
        .ok_or_else(|| {
            let least = if may_be_zero { "from" } else { "above" };
            Error::usage(format!(
                "{name} is a number of seconds {least} 0 and up to 3600, not '{text}'"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parsed(line: &str) -> Result<Command> {
        parse(
            line.split_whitespace().map(OsString::from),
            &[0, 1, 2, 3],
            |cpu| cpu,
        )
    }

    fn table(line: &str) -> Table {
        match parsed(line) {
            Ok(Command::Table(table)) => *table,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_plain_command_measures_both_schedulers_to_4096_clients() {
        let Table {
            plan, json, csv, ..
        } = table("table");
        assert_eq!(plan.workloads, [Workload::PointSelect]);
        assert_eq!(plan.schedulers, [Scheduler::Pool, Scheduler::PerConnection]);
        assert_eq!(plan.transports, [Transport::Unix]);
        assert_eq!(
            (
                plan.clients.first(),
                plan.clients.last(),
                plan.clients.len()
            ),
            (Some(&16), Some(&4096), 9)
        );
        assert_eq!(
            plan.split,
            Split {
                server: vec![0, 1, 2],
                client: vec![3]
            }
        );
        assert_eq!((plan.options.groups, json, csv), (3, None, None));
        // The promise of the README: under two minutes, half a second a round for connecting
        // included.
        let round = plan.seconds + plan.warmup + Duration::from_millis(500);
        assert!(round * plan.rounds_in_all() as u32 <= Duration::from_secs(120));
    }

    #[test]
    fn every_option_arrives_in_the_plan() {
        let Table {
            plan, json, csv, ..
        } = table(
            "table --workload all --scheduler event-loop,pool --transport unix,tcp \
             --clients 4,8 --seconds 0.1 --warmup 0 --rounds=11 --server-cpus 0-1 \
             --client-cpus 2 --rows 10 --groups 7 --port 4000 \
             --json a.json --csv a.csv",
        );
        assert_eq!(plan.workloads, Workload::ALL);
        assert_eq!(plan.schedulers, [Scheduler::EventLoop, Scheduler::Pool]);
        assert_eq!(plan.transports, [Transport::Unix, Transport::Tcp]);
        assert_eq!(plan.clients, [4, 8]);
        assert_eq!(
            (plan.seconds, plan.warmup, plan.rounds),
            (Duration::from_millis(100), Duration::ZERO, 11)
        );
        assert_eq!(
            plan.split,
            Split {
                server: vec![0, 1],
                client: vec![2]
            }
        );
        assert_eq!(
            (plan.rows, plan.options.groups, plan.port),
            (10, 7, Some(4000))
        );
        assert_eq!((json, csv), (Some("a.json".into()), Some("a.csv".into())));
        assert_eq!(
            (plan.rounds_in_all(), plan.files_needed()),
            // Seven workloads under two schedulers, but for those that wait in the event loop.
            ((7 * 2 - 3) * 2 * 2 * 11, 72)
        );
    }

    #[test]
    fn whoever_is_not_mentioned_gets_the_cpus_that_are_left() {
        assert_eq!(
            table("table --client-cpus 0").plan.split,
            Split {
                server: vec![1, 2, 3],
                client: vec![0]
            }
        );
        assert_eq!(
            table("table --server-cpus 3").plan.split,
            Split {
                server: vec![3],
                client: vec![2]
            }
        );
        assert_eq!(
            table("table --server-cpus 0-3").plan.split,
            Split {
                server: (0..4).collect(),
                client: vec![3]
            }
        );
    }

    #[test]
    fn what_cannot_be_is_one_line_and_exit_code_2() {
        for line in [
            "",
            "tabel",
            "--table",
            "table --clients",
            "table --clients 0",
            "table --seconds 0",
            "table --seconds -1",
            "table --seconds NaN",
            "table --seconds 3601",
            "table --warmup x",
            "table --rounds 0",
            "table --server-cpus 4",
            "table --client-cpus x",
            "table --scheduler pool,pool",
            "table --workload oltp",
            "table --transport udp",
            "table --port 65536",
            "table --groups 0",
            "table --rows 0",
            "table --rate 0",
            "table --find-knee 0",
            "table --find-knee 5 --rate 10",
            "table --find-knee 5 --csv x",
            "table --nonsense",
            "table extra",
        ] {
            let error = parsed(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(
                !error.to_string().contains('\n') && !error.to_string().is_empty(),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn help_is_given_wherever_it_is_asked_for() {
        for line in [
            "help",
            "--help",
            "-h",
            "table --help",
            "table --rounds 3 -h",
            "latency --help",
            "doctor --help",
        ] {
            assert!(matches!(parsed(line), Ok(Command::Help)), "{line}");
        }
    }
}
