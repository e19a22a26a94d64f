//! The arguments of `study mysql`.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg::{Long, Short};

use super::{Command, divide, text, usable};
use crate::error::{Error, Result};
use crate::mysql::mariadb::Handling;
use crate::mysql::sysbench::PsMode;
use crate::mysql::{Plan, Script, Setting, Target, heavy};
use crate::options::{ServerOptions, number};
use crate::plan::{self, CLIENTS_MAX, Scheduler, Transport};

/// What was asked for.
#[derive(Debug)]
pub struct Mysql {
    /// What to measure.
    pub plan: Asked,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
}

/// Which of the two experiments.
#[derive(Debug)]
pub enum Asked {
    /// How many statements a second.
    Throughput(Plan),
    /// How long light ones take beside heavy ones.
    Heavy(heavy::Plan),
}

pub(super) fn mysql(
    parser: &mut lexopt::Parser,
    cpus: &[usize],
    core_of: impl Fn(usize) -> usize,
) -> Result<Command> {
    let mut schedulers = vec![Scheduler::Pool, Scheduler::PerConnection];
    let (mut transport, mut ps_mode) = (Transport::Unix, PsMode::Auto);
    let (mut scripts, mut threads, mut heavy) = (None, None, None);
    let (mut heavy_ms, mut light, mut rate) = (None, None, None);
    let (mut seconds, mut warmup, mut rounds) = (5, 1, 3);
    let (mut against, mut rows, mut json) = (false, 1_000_000, None);
    let (mut server_cpus, mut client_cpus) = (None, None);
    let mut options = ServerOptions::of_groups(0);
    while let Some(arg) = parser.next().map_err(Error::usage)? {
        match arg {
            Long("script") => {
                let list = text(parser)?;
                scripts = Some(plan::parse_names(&list, &Script::ALL)?);
            }
            Long("against") => match text(parser)?.as_str() {
                "mariadb" => against = true,
                other => {
                    return Err(Error::usage(format!(
                        "no server '{other}'; there are: mariadb"
                    )));
                }
            },
            Long("scheduler") => schedulers = plan::parse_names(&text(parser)?, &Scheduler::ALL)?,
            Long("transport") => transport = text(parser)?.parse()?,
            Long("ps-mode") => ps_mode = text(parser)?.parse()?,
            Long("threads") => threads = Some(plan::parse_clients(&text(parser)?, 1)?),
            Long("heavy") => heavy = Some(plan::parse_clients(&text(parser)?, 0)?),
            Long("heavy-ms") => heavy_ms = Some(number("heavy-ms", &text(parser)?, 1..=60_000)?),
            Long("light") => {
                light = Some(number("light", &text(parser)?, 1..=CLIENTS_MAX as u64)?);
            }
            Long("rate") => rate = Some(number("rate", &text(parser)?, 1..=1_000_000)?),
            Long("seconds") => seconds = number("seconds", &text(parser)?, 1..=3_600)?,
            Long("warmup") => warmup = number("warmup", &text(parser)?, 0..=3_600)?,
            Long("rounds") => rounds = number("rounds", &text(parser)?, 1..=1_000)? as usize,
            Long("server-cpus") => server_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("client-cpus") => client_cpus = Some(usable(&text(parser)?, cpus)?),
            Long("rows") => rows = number("rows", &text(parser)?, 1..=100_000_000)?,
            Long("json") => json = Some(parser.value().map_err(Error::usage)?.into()),
            Long("help") | Short('h') => return Ok(Command::Help),
            Long(name) => {
                let name = name.to_owned();
                options.take(&name, parser)?;
            }
            other => return Err(Error::usage(other.unexpected())),
        }
    }
    let ours = |scheduler: &&Scheduler| {
        matches!(
            scheduler,
            Scheduler::Pool | Scheduler::Mariadb | Scheduler::PerConnection | Scheduler::OneShot
        )
    };
    if let Some(scheduler) = schedulers.iter().find(|one| !ours(one)) {
        return Err(Error::usage(format!(
            "{scheduler} does not speak MySQL's protocol; those that do: pool, mariadb, per-connection"
        )));
    }
    if heavy.is_none() && (heavy_ms.is_some() || light.is_some() || rate.is_some()) {
        return Err(Error::usage(
            "--heavy-ms, --light and --rate are for --heavy",
        ));
    }
    if heavy.is_some() && (scripts.is_some() || threads.is_some()) {
        return Err(Error::usage(
            "--heavy sends point selects from --light clients: leave out --script and --threads",
        ));
    }
    let one_core = heavy.is_some() && server_cpus.is_none();
    let mut split = divide(cpus, server_cpus, client_cpus, core_of);
    if one_core {
        split.server.truncate(1);
    }
    if options.groups == 0 {
        options.groups = if heavy.is_some() {
            1
        } else {
            split.server.len()
        };
    }
    options.check()?;
    let mut targets: Vec<_> = schedulers.into_iter().map(Target::Sqlish).collect();
    if against {
        targets.extend(Handling::ALL.map(Target::Mariadb));
    }
    let setting = Setting {
        targets,
        transport,
        ps_mode,
        seconds: Duration::from_secs(seconds),
        warmup: Duration::from_secs(warmup),
        rounds,
        split,
        rows,
        options,
    };
    let plan = match heavy {
        Some(heavy) => Asked::Heavy(heavy::Plan {
            setting,
            heavy,
            heavy_time: Duration::from_millis(heavy_ms.unwrap_or(500)),
            light: light.unwrap_or(16) as usize,
            rate: rate.unwrap_or(400),
        }),
        None => Asked::Throughput(Plan {
            setting,
            scripts: scripts.unwrap_or(Script::USUAL.to_vec()),
            threads: threads.unwrap_or(vec![16, 64, 256, 1_024, 4_096]),
        }),
    };
    Ok(Command::Mysql(Box::new(Mysql { plan, json })))
}

#[cfg(test)]
mod tests {
    use super::super::tests::parsed;
    use super::*;

    fn asked(line: &str) -> Mysql {
        match parsed(line) {
            Ok(Command::Mysql(mysql)) => *mysql,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_plain_command_sends_the_published_scripts_to_both_schedulers() {
        let Asked::Throughput(plan) = asked("mysql").plan else {
            panic!("it is about throughput")
        };
        assert_eq!(plan.scripts, Script::USUAL);
        assert_eq!(plan.threads, [16, 64, 256, 1_024, 4_096]);
        assert_eq!(
            plan.setting.targets,
            [Scheduler::Pool, Scheduler::PerConnection].map(Target::Sqlish)
        );
        assert_eq!(plan.setting.options.groups, plan.setting.split.server.len());
        assert_eq!(plan.rounds_in_all(), 4 * 5 * 2 * 3);
    }

    #[test]
    fn every_option_is_heard() {
        let line = "mysql --against mariadb --script read_write,random_points --threads 2,4 \
                    --scheduler mariadb --transport tcp --ps-mode disable --seconds 2 --warmup 0 \
                    --rounds 5 --rows 9 --groups 2 --server-cpus 0,1 --client-cpus 2 --json a.json";
        let Mysql { plan, json } = asked(line);
        assert_eq!(json, Some("a.json".into()));
        let Asked::Throughput(plan) = plan else {
            panic!("it is about throughput")
        };
        let Setting {
            targets, options, ..
        } = &plan.setting;
        assert_eq!(
            targets.as_slice(),
            [
                Target::Sqlish(Scheduler::Mariadb),
                Target::Mariadb(Handling::Pool),
                Target::Mariadb(Handling::PerConnection)
            ]
        );
        assert_eq!(plan.scripts, [Script::ReadWrite, Script::RandomPoints]);
        assert_eq!((plan.threads.as_slice(), options.groups), (&[2, 4][..], 2));
        let setting = &plan.setting;
        assert_eq!(
            (setting.transport, setting.ps_mode, setting.rows),
            (Transport::Tcp, PsMode::Disable, 9)
        );
        assert_eq!(
            (setting.seconds, setting.warmup, setting.rounds),
            (Duration::from_secs(2), Duration::ZERO, 5)
        );
    }

    #[test]
    fn heavy_clients_share_one_group_on_one_core_with_light_ones() {
        let line = "mysql --heavy 1,2,4 --heavy-ms 20 --light 3 --rate 50";
        let Asked::Heavy(plan) = asked(line).plan else {
            panic!("it is about latency")
        };
        assert_eq!((plan.heavy.as_slice(), plan.light), (&[1, 2, 4][..], 3));
        assert_eq!(
            (plan.rate, plan.heavy_time),
            (50, Duration::from_millis(20))
        );
        assert_eq!(
            (plan.setting.split.server.as_slice(), plan.setting.options),
            (&[0][..], ServerOptions::of_groups(1))
        );
    }

    #[test]
    fn what_cannot_be_is_one_line_and_exit_code_2() {
        for line in [
            "mysql --against postgres",
            "mysql --script oltp_point_select",
            "mysql --script insert",
            "mysql --threads 0",
            "mysql --seconds 0.5",
            "mysql --seconds 0",
            "mysql --ps-mode on",
            "mysql --scheduler event-loop",
            "mysql --scheduler pool,std-loop",
            "mysql --transport unix,tcp",
            "mysql --heavy x",
            "mysql --rate 5",
            "mysql --heavy 1 --threads 4",
            "mysql --heavy 1 --script read_only",
            "mysql --rows 0",
            "mysql --nonsense",
            "mysql extra",
        ] {
            let error = parsed(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            let text = error.to_string();
            assert!(!text.contains('\n') && !text.is_empty(), "{line}: {text}");
        }
        assert!(matches!(parsed("mysql --help"), Ok(Command::Help)));
    }
}
