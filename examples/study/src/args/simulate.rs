//! The arguments of `study calibrate` and `study simulate`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::Arg::{Long, Short};

use super::{Command, divide, duration, text, usable};
use crate::calibrate::Calibration;
use crate::error::{Error, Result};
use crate::options::{ServerOptions, number};
use crate::plan::{self, Scheduler, Transport, Workload};
use crate::run;
use crate::simulate::Plan;

/// What was asked for.
#[derive(Debug)]
pub struct Simulate {
    /// What to measure, and to simulate.
    pub plan: Plan,
    /// What has been measured before.
    pub calibration: Option<Calibration>,
    /// Whether more is wanted than the calibration.
    pub simulate: bool,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
}

/// The schedulers that the simulator knows.
const KNOWN: [Scheduler; 3] = [
    Scheduler::Pool,
    Scheduler::Mariadb,
    Scheduler::PerConnection,
];

pub(super) fn calibrate(
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    either(parser, cpus, core_of, false)
}

pub(super) fn simulate(
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    either(parser, cpus, core_of, true)
}

fn either(
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
    simulate: bool,
) -> Result<Command> {
    let mut cores = vec![8, 16, 24, 64, 128];
    let mut clients = plan::parse_clients("16..65536", 1)?;
    let mut schedulers = vec![Scheduler::Pool, Scheduler::PerConnection];
    let (mut calibration, mut real, mut published) = (None, true, true);
    let (mut seconds, mut rounds, mut seed, mut json) = (Duration::from_secs(1), 3, 0, None);
    let (mut server_cpus, mut client_cpus) = (None, None);
    while let Some(arg) = parser.next().map_err(Error::usage)? {
        match arg {
            Long("cores") if simulate => cores = plan::parse_clients(&text(parser)?, 1)?,
            Long("clients") if simulate => clients = plan::parse_clients(&text(parser)?, 1)?,
            Long("scheduler") if simulate => {
                schedulers = plan::parse_names(&text(parser)?, &Scheduler::ALL)?;
                if let Some(other) = schedulers.iter().find(|s| !KNOWN.contains(s)) {
                    return Err(Error::usage(format!("{other} cannot be simulated")));
                }
            }
            Long("calibration") if simulate => {
                calibration = Some(read(Path::new(&parser.value().map_err(Error::usage)?))?);
            }
            Long("no-real") if simulate => real = false,
            Long("no-published") if simulate => published = false,
            Long("seed") if simulate => seed = number("seed", &text(parser)?, 0..=u64::MAX)?,
            Long("seconds") => seconds = duration("--seconds", &text(parser)?, false)?,
            Long("rounds") => rounds = number("rounds", &text(parser)?, 1..=1_000)? as usize,
            Long("server-cpus") => server_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("client-cpus") => client_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("json") => json = Some(parser.value().map_err(Error::usage)?.into()),
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(Error::usage(other.unexpected())),
        }
    }
    if let Some(many) = cores.iter().find(|cores| **cores > 1_024) {
        return Err(Error::usage(format!(
            "a pool has up to 1024 groups, one for each core, not {many}"
        )));
    }
    let split = divide(cpus, server_cpus, client_cpus, core_of);
    let measured = run::Plan {
        workloads: vec![Workload::PointSelect],
        schedulers: vec![
            Scheduler::EventLoop,
            Scheduler::Pool,
            Scheduler::PerConnection,
        ],
        transports: vec![Transport::Unix],
        clients: vec![16],
        seconds,
        warmup: seconds.min(Duration::from_millis(250)),
        rounds,
        rows: 100_000,
        options: ServerOptions::of_groups(split.server.len()),
        rate: None,
        ramp: Duration::ZERO,
        seed,
        disk: None,
        port: None,
        split,
    };
    let compared = run::Plan {
        schedulers: vec![Scheduler::Pool, Scheduler::PerConnection],
        clients: vec![16, 64, 256, 1_024],
        ..measured.clone()
    };
    let plan = Plan {
        cores,
        clients,
        schedulers,
        calibration: measured,
        real: real.then_some(compared),
        published,
        seed,
    };
    Ok(Command::Simulate(Box::new(Simulate {
        plan,
        calibration,
        simulate,
        json,
    })))
}

fn read(path: &Path) -> Result<Calibration> {
    let text = fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("cannot read {}: {error}", path.display())))?;
    Calibration::read(&text)
}
