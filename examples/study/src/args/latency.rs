//! The arguments of `study latency`.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg::{Long, Short};

use super::{Command, divide, duration, text, usable};
use crate::error::{Error, Result};
use crate::latency::Plan;
use crate::options::{ServerOptions, number};
use crate::plan::{self, CLIENTS_MAX, HeavyKind, Light, Scheduler, Transport};

/// What was asked for.
#[derive(Debug)]
pub struct Latency {
    /// What to measure.
    pub plan: Plan,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
}

pub(super) fn latency(
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    let mut schedulers = vec![Scheduler::Pool, Scheduler::PerConnection];
    let mut transport = Transport::USUAL;
    let mut heavy = vec![0, 1, 2, 4, 16];
    let (mut kind, mut heavy_time, mut mix) = (HeavyKind::Burn, Duration::from_millis(500), 1.0);
    let (mut light, mut rate, mut light_closed) = (None, None, None);
    let (mut seconds, mut warmup) = (Duration::from_secs(3), Duration::from_millis(250));
    let (mut rounds, mut cold, mut rows, mut json) = (3, false, 1_000_000, None);
    let (mut server_cpus, mut client_cpus) = (None, None);
    let (mut options, mut seed) = (ServerOptions::of_groups(1), 0);
    while let Some(arg) = parser.next().map_err(Error::usage)? {
        match arg {
            Long("scheduler") => schedulers = plan::parse_schedulers(&text(parser)?)?,
            Long("transport") => transport = text(parser)?.parse()?,
            Long("heavy") => heavy = plan::parse_clients(&text(parser)?, 0)?,
            Long("heavy-kind") => kind = text(parser)?.parse()?,
            Long("heavy-ms") => heavy_time = millis("heavy-ms", &text(parser)?)?,
            Long("mix") => mix = probability("--mix", &text(parser)?)?,
            Long("light") => light = Some(clients("light", &text(parser)?)?),
            Long("rate") => rate = Some(number("rate", &text(parser)?, 1..=1_000_000)?),
            Long("light-closed") => {
                light_closed = Some(clients("light-closed", &text(parser)?)?);
            }
            Long("seconds") => seconds = duration("--seconds", &text(parser)?, false)?,
            Long("warmup") => warmup = duration("--warmup", &text(parser)?, true)?,
            Long("cold") => cold = true,
            Long("rounds") => rounds = number("rounds", &text(parser)?, 1..=1_000)? as usize,
            Long("server-cpus") => server_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("client-cpus") => client_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("rows") => rows = number("rows", &text(parser)?, 1..=100_000_000)?,
            Long("seed") => seed = number("seed", &text(parser)?, 0..=u64::MAX)?,
            Long("json") => json = Some(parser.value().map_err(Error::usage)?.into()),
            Long("help") | Short('h') => return Ok(Command::Help),
            Long(name) => {
                let name = name.to_owned();
                options.take(&name, parser)?;
            }
            other => return Err(Error::usage(other.unexpected())),
        }
    }
    let light = match (light_closed, light, rate) {
        (Some(clients), None, None) => Light::Closed { clients },
        (Some(_), _, _) => {
            return Err(Error::usage(
                "--light-closed replaces the open loop, which --light and --rate describe",
            ));
        }
        (None, clients, rate) => Light::Open {
            clients: clients.unwrap_or(16),
            rate: rate.unwrap_or(400),
        },
    };
    options.check()?;
    let one_core = server_cpus.is_none();
    let mut split = divide(cpus, server_cpus, client_cpus, core_of);
    if one_core {
        split.server.truncate(1);
    }
    let plan = Plan {
        schedulers,
        transport,
        light,
        heavy,
        kind,
        heavy_time,
        mix,
        seconds,
        warmup,
        cold,
        rounds,
        split,
        rows,
        options,
        seed,
    };
    Ok(Command::Latency(Box::new(Latency { plan, json })))
}

fn clients(name: &str, text: &str) -> Result<usize> {
    number(name, text, 1..=CLIENTS_MAX as u64).map(|n| n as usize)
}

fn millis(name: &str, text: &str) -> Result<Duration> {
    number(name, text, 1..=60_000).map(Duration::from_millis)
}

fn probability(name: &str, text: &str) -> Result<f64> {
    let probability = text.parse().ok();
    probability
        .filter(|p| *p > 0.0 && *p <= 1.0)
        .ok_or_else(|| {
            Error::usage(format!(
                "{name} is a probability above 0 and up to 1, not '{text}'"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use super::*;
    use crate::cpu::Split;

    fn plan(line: &str) -> Plan {
        match parsed(line) {
            Ok(Command::Latency(latency)) => latency.plan,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_plain_command_puts_everything_in_one_group_on_one_core() {
        let plan = plan("latency");
        assert_eq!(plan.schedulers, [Scheduler::Pool, Scheduler::PerConnection]);
        assert_eq!(plan.heavy, [0, 1, 2, 4, 16]);
        let open = Light::Open {
            clients: 16,
            rate: 400,
        };
        assert_eq!((plan.light, plan.kind), (open, HeavyKind::Burn));
        assert_eq!(plan.heavy_time, Duration::from_millis(500));
        assert_eq!(plan.options, ServerOptions::of_groups(1));
        let split = Split {
            server: vec![0],
            client: vec![3],
        };
        assert_eq!((plan.split, plan.mix, plan.cold), (split, 1.0, false));
    }

    #[test]
    fn every_option_is_heard() {
        let line = "latency --heavy 4 --heavy-ms 20 --heavy-kind unseen --mix 0.25 --light-closed 2000 \
                    --scheduler per-connection --groups 2 --max-threads 64 --stall-limit-ms 7 --cold \
                    --seconds 0.5 --warmup 0 --rounds 2 --transport tcp --server-cpus 0,1 \
                    --client-cpus 2 --rows 9 --json a.json";
        let Ok(Command::Latency(latency)) = parsed(line) else {
            panic!("{line}")
        };
        assert_eq!(latency.json, Some("a.json".into()));
        let plan = latency.plan;
        assert_eq!(plan.schedulers, [Scheduler::PerConnection]);
        assert_eq!((plan.heavy.as_slice(), plan.rows), (&[4][..], 9));
        assert_eq!(
            (plan.kind, plan.transport),
            (HeavyKind::Unseen, Transport::Tcp)
        );
        assert_eq!(plan.light, Light::Closed { clients: 2_000 });
        assert_eq!((plan.mix, plan.cold, plan.rounds), (0.25, true, 2));
        assert_eq!(plan.heavy_time, Duration::from_millis(20));
        assert_eq!(
            (plan.seconds, plan.warmup),
            (Duration::from_millis(500), Duration::ZERO)
        );
        let options = ServerOptions {
            max_threads: Some(64),
            stall_limit: Some(Duration::from_millis(7)),
            ..ServerOptions::of_groups(2)
        };
        assert_eq!(plan.options, options);
        let split = Split {
            server: vec![0, 1],
            client: vec![2],
        };
        assert_eq!(plan.split, split);
        assert_eq!((plan.rounds_in_all(), plan.files_needed()), (2, 2_068));
    }

    #[test]
    fn what_cannot_be_is_one_line_and_exit_code_2() {
        for line in [
            "latency --heavy x",
            "latency --heavy -1",
            "latency --heavy-ms 0",
            "latency --heavy-ms 60001",
            "latency --heavy-kind slow",
            "latency --mix 0",
            "latency --mix 1.1",
            "latency --mix NaN",
            "latency --light 0",
            "latency --rate 0",
            "latency --rate 1.5",
            "latency --light-closed 0",
            "latency --light-closed 5 --rate 5",
            "latency --light 5 --light-closed 5",
            "latency --max-threads 1",
            "latency --groups 2 --max-threads 3",
            "latency --stall-limit-ms 0",
            "latency --transport all",
            "latency --scheduler nobody",
            "latency --seconds 0",
            "latency --rounds 0",
            "latency --server-cpus 9",
            "latency --workload ping",
            "latency --cold=1",
            "latency extra",
        ] {
            let error = parsed(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            let text = error.to_string();
            assert!(!text.contains('\n') && !text.is_empty(), "{line}: {text}");
        }
    }
}
