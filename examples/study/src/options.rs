//! What a run may set of the servers that it measures. One place spells each option: for the command
//! line of the tool, and for that of the server process which it starts.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::Arg::Long;
use lexopt::ValueExt;
use sqlish::{CommitWait, EngineConfig};
use thread_group_pool::PoolConfig;

use crate::error::{Error, Result};

/// Settings of a server; what is `None` or zero is at its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOptions {
    /// Thread groups of a pool.
    pub groups: usize,
    /// Threads of all groups together.
    pub max_threads: Option<usize>,
    /// How long a command runs until it gives its slot to others; whole milliseconds.
    pub stall_limit: Option<Duration>,
    /// How long the flush of a group of commits takes; whole microseconds.
    pub commit_delay: Duration,
    /// How a commit waits for its flush.
    pub commit_wait: CommitWait,
    /// How long a statement waits for a row; whole seconds.
    pub lock_wait_timeout: Option<Duration>,
    /// CPU that each `PING` burns.
    pub ping_work: Duration,
    /// CPU that each `PING` burns under a lock that all of them share.
    pub ping_lock: Duration,
}

impl ServerOptions {
    /// Nothing set but the number of groups.
    pub fn of_groups(groups: usize) -> ServerOptions {
        ServerOptions {
            groups,
            max_threads: None,
            stall_limit: None,
            commit_delay: Duration::ZERO,
            commit_wait: CommitWait::default(),
            lock_wait_timeout: None,
            ping_work: Duration::ZERO,
            ping_lock: Duration::ZERO,
        }
    }

    /// Takes the value of the option `name`, or refuses it: each command knows its own already.
    pub(crate) fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<()> {
        let mut text = || {
            let text = parser.value().and_then(ValueExt::string);
            text.map_err(Error::usage)
        };
        match name {
            "groups" => self.groups = number(name, &text()?, 1..=4_096)? as usize,
            "max-threads" => {
                self.max_threads = Some(number(name, &text()?, 1..=1_000_000)? as usize);
            }
            "stall-limit-ms" => {
                let limit = number(name, &text()?, 1..=60_000)?;
                self.stall_limit = Some(Duration::from_millis(limit));
            }
            "commit-delay-us" => {
                let delay = number(name, &text()?, 0..=60_000_000)?;
                self.commit_delay = Duration::from_micros(delay);
            }
            "commit-wait" => {
                self.commit_wait = match text()?.as_str() {
                    "park" => CommitWait::Park,
                    "hook" => CommitWait::Hook,
                    other => {
                        return Err(Error::usage(format!(
                            "no way for a commit to wait '{other}'; there are: park, hook"
                        )));
                    }
                };
            }
            "lock-wait-timeout" => {
                let timeout = number(name, &text()?, 1..=3_600)?;
                self.lock_wait_timeout = Some(Duration::from_secs(timeout));
            }
            "work-us" => self.ping_work = micros(name, &text()?)?,
            "lock-us" => self.ping_lock = micros(name, &text()?)?,
            _ => return Err(Error::usage(Long(name).unexpected())),
        }
        Ok(())
    }

    /// The arguments that [`take`](Self::take) reads back.
    pub(crate) fn to_args(self) -> Vec<OsString> {
        let mut args = vec![format!("--groups={}", self.groups)];
        if let Some(threads) = self.max_threads {
            args.push(format!("--max-threads={threads}"));
        }
        if let Some(limit) = self.stall_limit {
            args.push(format!("--stall-limit-ms={}", limit.as_millis()));
        }
        args.push(format!(
            "--commit-delay-us={}",
            self.commit_delay.as_micros()
        ));
        args.push(format!(
            "--commit-wait={}",
            match self.commit_wait {
                CommitWait::Park => "park",
                CommitWait::Hook => "hook",
            }
        ));
        if let Some(timeout) = self.lock_wait_timeout {
            args.push(format!("--lock-wait-timeout={}", timeout.as_secs()));
        }
        for (name, time) in [("work-us", self.ping_work), ("lock-us", self.ping_lock)] {
            args.push(format!("--{name}={}", time.as_nanos() as f64 / 1e3));
        }
        args.into_iter().map(OsString::from).collect()
    }

    /// Whether a pool can be so.
    ///
    /// # Errors
    /// If there are fewer threads than its groups need.
    pub(crate) fn check(&self) -> Result<()> {
        if self.max_threads.is_some_and(|max| max < 2 * self.groups) {
            return Err(Error::usage(format!(
                "--max-threads is at least 2 for each of {} groups: one to run a command, one to \
                 listen",
                self.groups
            )));
        }
        Ok(())
    }

    pub(crate) fn pool(&self, mut config: PoolConfig) -> PoolConfig {
        config.groups = self.groups;
        config.max_threads = self.max_threads.unwrap_or(config.max_threads);
        config.stall_limit = self.stall_limit.unwrap_or(config.stall_limit);
        config
    }

    pub(crate) fn engine(&self, rows: u64) -> EngineConfig {
        let usual = EngineConfig::default();
        EngineConfig {
            rows,
            lock_wait_timeout: self.lock_wait_timeout.unwrap_or(usual.lock_wait_timeout),
            commit_delay: self.commit_delay,
            commit_wait: self.commit_wait,
            ping_work: self.ping_work,
            ping_lock: self.ping_lock,
            ..usual
        }
    }
}

/// A whole number within `range`, for the option `name`.
pub(crate) fn number(name: &str, text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64> {
    text.parse()
        .ok()
        .filter(|n| range.contains(n))
        .ok_or_else(|| {
            Error::usage(format!(
                "--{name} is a number from {} to {}, not '{text}'",
                range.start(),
                range.end()
            ))
        })
}

/// Longer work for one `PING` is a typing mistake.
const MICROS_MAX: f64 = 1e6;

fn micros(name: &str, text: &str) -> Result<Duration> {
    text.parse()
        .ok()
        .filter(|us| (0.0..=MICROS_MAX).contains(us))
        .map(|us: f64| Duration::from_nanos((us * 1e3).round() as u64))
        .ok_or_else(|| {
            Error::usage(format!(
                "--{name} is a number of microseconds from 0 to {MICROS_MAX}, not '{text}'"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: Vec<OsString>) -> Result<ServerOptions> {
        let mut options = ServerOptions::of_groups(0);
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(arg) = parser.next().unwrap() {
            let lexopt::Arg::Long(name) = arg else {
                panic!("{arg:?}")
            };
            let name = name.to_owned();
            options.take(&name, &mut parser)?;
        }
        Ok(options)
    }

    #[test]
    fn what_is_said_to_a_server_is_what_it_reads() {
        let all = ServerOptions {
            groups: 3,
            max_threads: Some(64),
            stall_limit: Some(Duration::from_millis(20)),
            commit_delay: Duration::from_micros(2_000),
            commit_wait: CommitWait::Hook,
            lock_wait_timeout: Some(Duration::from_secs(2)),
            ping_work: Duration::from_nanos(186),
            ping_lock: Duration::from_nanos(5_500),
        };
        for options in [all, ServerOptions::of_groups(1)] {
            assert_eq!(read(options.to_args()).unwrap(), options);
        }
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (arg, message) in [
            ("--groups=0", "--groups is a number from 1 to 4096, not '0'"),
            (
                "--work-us=-1",
                "--work-us is a number of microseconds from 0 to 1000000, not '-1'",
            ),
            (
                "--commit-wait=sleep",
                "no way for a commit to wait 'sleep'; there are: park, hook",
            ),
        ] {
            let error = read(vec![arg.into()]).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
