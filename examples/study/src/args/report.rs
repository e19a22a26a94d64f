//! The arguments of `study report`.

use std::time::Duration;

use lexopt::Arg::{Long, Short};

use super::{Command, divide, duration, text, usable};
use crate::error::{Error, Result};
use crate::options::{ServerOptions, number};
use crate::plan::{self, HeavyKind, Light, Scheduler, Transport, Workload};
use crate::report::Plan;
use crate::{latency, run};

pub(super) fn report(
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    let (mut out, mut quick, mut seed) = (None, false, 0);
    let (mut workloads, mut clients, mut heavy) = (Workload::ALL.to_vec(), None, None);
    let (mut seconds, mut rounds, mut rows) = (None, None, None);
    let (mut server_cpus, mut client_cpus) = (None, None);
    while let Some(arg) = parser.next().map_err(Error::usage)? {
        match arg {
            Long("out") => out = Some(parser.value().map_err(Error::usage)?.into()),
            Long("quick") => quick = true,
            Long("workload") => workloads = plan::parse_names(&text(parser)?, &Workload::ALL)?,
            Long("clients") => clients = Some(plan::parse_clients(&text(parser)?, 1)?),
            Long("heavy") => heavy = Some(plan::parse_clients(&text(parser)?, 0)?),
            Long("seconds") => seconds = Some(duration("--seconds", &text(parser)?, false)?),
            Long("rounds") => rounds = Some(number("rounds", &text(parser)?, 1..=1_000)? as usize),
            Long("rows") => rows = Some(number("rows", &text(parser)?, 1..=100_000_000)?),
            Long("seed") => seed = number("seed", &text(parser)?, 0..=u64::MAX)?,
            Long("server-cpus") => server_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("client-cpus") => client_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(Error::usage(other.unexpected())),
        }
    }
    let out = out.ok_or_else(|| Error::usage("report needs a folder: --out DIR"))?;
    let ms = Duration::from_millis;
    let split = divide(cpus, server_cpus.clone(), client_cpus, core_of);
    let usual =
        |quickly: &str, slowly: &str| plan::parse_clients(if quick { quickly } else { slowly }, 0);
    let table = run::Plan {
        workloads,
        schedulers: Scheduler::ALL
            .into_iter()
            .filter(|one| one.is_usual())
            .collect(),
        transports: vec![Transport::Unix],
        clients: clients.map_or_else(|| usual("16,256,4096", "16..4096"), Ok)?,
        seconds: seconds.unwrap_or(ms(if quick { 250 } else { 1_000 })),
        warmup: ms(if quick { 50 } else { 250 }),
        rounds: rounds.unwrap_or(if quick { 1 } else { 3 }),
        rows: rows.unwrap_or(if quick { 100_000 } else { 1_000_000 }),
        options: ServerOptions::of_groups(split.server.len()),
        rate: None,
        ramp: Duration::ZERO,
        seed,
        disk: None,
        port: None,
        split,
    };
    let tcp = run::Plan {
        workloads: vec![Workload::PointSelect],
        transports: vec![Transport::Tcp],
        schedulers: vec![Scheduler::Pool, Scheduler::PerConnection],
        ..table.clone()
    };
    let mut one_core = table.split.clone();
    if server_cpus.is_none() {
        one_core.server.truncate(1);
    }
    let latency = latency::Plan {
        schedulers: vec![
            Scheduler::Pool,
            Scheduler::PerConnection,
            Scheduler::Mariadb,
        ],
        transport: Transport::Unix,
        light: Light::Open {
            clients: 16,
            rate: 400,
        },
        heavy: heavy.map_or_else(|| usual("0,2,8", "0,1,2,4,16"), Ok)?,
        kind: HeavyKind::Burn,
        heavy_time: ms(if quick { 100 } else { 500 }),
        mix: 1.0,
        seconds: seconds.unwrap_or(ms(if quick { 1_000 } else { 3_000 })),
        warmup: ms(if quick { 50 } else { 250 }),
        cold: false,
        rounds: table.rounds,
        split: one_core,
        rows: table.rows,
        options: ServerOptions::of_groups(1),
        seed,
    };
    Ok(Command::Report(Box::new(Plan {
        out,
        tables: vec![table, tcp],
        latency,
    })))
}
