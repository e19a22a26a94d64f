//! The command line: what the options are, and what they become.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use thread_group_pool::{Limits, PoolConfig, Scheduler, ThreadPerConnectionConfig};

use crate::engine::{CommitWait, EngineConfig};
use crate::mysql::{MysqlTls, Users as MysqlUsers};
use crate::{client, serve};

/// Exit code of bad arguments, and of a server or client that could not start.
const CANNOT_START: u8 = 2;

/// The program. Returns 0 when all went well, 1 when a statement failed (client) or a drain had to
/// cut somebody off (server), 2 when it could not start.
pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    let (name, result) = match command {
        Command::Serve(options) => ("serve", serve::run(options)),
        Command::Client(options) => ("client", client::run(options)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sqlish {name}: {error}");
        ExitCode::from(CANNOT_START)
    })
}

/// Help and version go to standard output; what is wrong with the arguments becomes one line.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        print!("{error}");
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprintln!("sqlish: a command is needed: serve or client (see --help)");
        return ExitCode::from(CANNOT_START);
    }
    let text = error.to_string();
    let first_paragraph = text.lines().take_while(|line| !line.is_empty());
    let line = first_paragraph.map(str::trim).collect::<Vec<_>>().join(" ");
    eprintln!(
        "sqlish: {} (see --help)",
        line.trim_start_matches("error: ")
    );
    ExitCode::from(CANNOT_START)
}

/// A small SQL server on in-memory tables, and its client.
#[derive(Debug, Parser)]
#[command(name = "sqlish", version, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or Ctrl-C.
    Serve(Box<ServeOptions>),
    /// Send statements from standard input, print the replies.
    Client(ClientOptions),
}

/// Options of `sqlish serve`. What is not given has the library's default.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Listen on this address; may be given several times. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    pub(crate) tcp: Vec<String>,
    /// Listen on a Unix socket at this path; may be given several times.
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Vec<PathBuf>,
    /// Listen on this address for clients of MySQL's protocol; may be given several times.
    #[arg(long, value_name = "ADDR")]
    pub(crate) mysql_tcp: Vec<String>,
    /// The same at a path.
    #[arg(long, value_name = "PATH")]
    pub(crate) mysql_unix: Vec<PathBuf>,
    /// By MySQL's protocol, let in this user with this password and nobody else; may be given several
    /// times. Without, anybody is let in without a password.
    #[arg(long = "user", value_name = "NAME:PASSWORD", value_parser = user)]
    pub(crate) users: Vec<(String, String)>,
    /// By MySQL's protocol, go on by TLS with clients that ask for it. Without a certificate of yours, by one
    /// that is made at the start and that nobody has signed.
    #[arg(long)]
    tls: bool,
    /// The same with the certificate in this file, in PEM, with those that it was signed by.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        visible_alias = "ssl-cert"
    )]
    tls_cert: Option<PathBuf>,
    /// Its key.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        visible_alias = "ssl-key"
    )]
    tls_key: Option<PathBuf>,
    /// Listen on this address for those who look after the server: with threads and a limit of their own;
    /// may be given several times.
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin_tcp: Vec<String>,
    /// The same at a path.
    #[arg(long, value_name = "PATH")]
    pub(crate) admin_unix: Vec<PathBuf>,
    /// Serve metrics for Prometheus over HTTP on this address. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// How connections get threads.
    #[arg(long, value_enum, default_value_t = SchedulerName::Pool)]
    scheduler: SchedulerName,
    /// Seconds that running statements have to end after SIGTERM.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "10")]
    pub(crate) drain_timeout: Duration,
    /// Length of the queue of connections that are not accepted yet.
    #[arg(long, visible_alias = "back-log", value_name = "N")]
    pub(crate) backlog: Option<u16>,

    #[command(flatten)]
    tables: TableOptions,
    #[command(flatten)]
    limits: LimitOptions,
    /// Bytes of stack of a thread that runs statements.
    #[arg(long, visible_alias = "thread-stack", value_name = "BYTES", value_parser = bytes)]
    stack_size: Option<usize>,
    #[command(flatten)]
    pool: Option<PoolOptions>,
    #[command(flatten)]
    per_connection: Option<PerConnectionOptions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SchedulerName {
    /// Thread groups: few threads for all connections.
    Pool,
    /// The same with MariaDB's algorithm and its defaults, to compare.
    Mariadb,
    /// A thread for each connection.
    PerConnection,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Tables")]
struct TableOptions {
    /// Rows of each table.
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    rows: u64,
    /// Tables to begin with: sbtest1 to sbtestN.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    tables: u16,
    /// Seconds that a statement waits for a row lock.
    #[arg(long, visible_alias = "innodb-lock-wait-timeout", value_name = "S",
          value_parser = seconds, default_value = "50")]
    lock_wait_timeout: Duration,
    /// Microseconds that the flush of a group of commits takes; 0 is no flush and no group.
    #[arg(long, value_name = "US", value_parser = microseconds, default_value = "0")]
    commit_delay_us: Duration,
    /// How a commit waits for its flush.
    #[arg(long, value_enum, default_value_t = CommitWaitName::Park)]
    commit_wait: CommitWaitName,
    /// Serve only clients that prove that they know this secret.
    #[arg(long, value_name = "SECRET")]
    require_login: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CommitWaitName {
    /// Its connection parks, and holds no thread.
    Park,
    /// Its thread blocks, in a reported wait.
    Hook,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits of a connection")]
struct LimitOptions {
    /// Sessions at a time: connections that have logged in.
    #[arg(long, value_name = "N")]
    max_connections: Option<usize>,
    /// Connections at a time that have not logged in.
    #[arg(long, value_name = "N")]
    max_logins: Option<usize>,
    /// Connections at a time from one address.
    #[arg(long, value_name = "N")]
    max_per_address: Option<usize>,
    /// Connections at a time by the admin listeners.
    #[arg(long, visible_alias = "extra-max-connections", value_name = "N")]
    max_admin_connections: Option<usize>,
    /// Seconds that a login may take.
    #[arg(long, visible_alias = "login-timeout", value_name = "S", value_parser = seconds)]
    connect_timeout: Option<Duration>,
    /// Seconds that a client may be silent between two statements.
    #[arg(long, visible_alias = "idle-timeout", value_name = "S", value_parser = seconds)]
    wait_timeout: Option<Duration>,
    /// Seconds that a client may be silent in the middle of a statement.
    #[arg(long, visible_alias = "read-timeout", value_name = "S", value_parser = seconds)]
    net_read_timeout: Option<Duration>,
    /// Seconds that a client may take nothing of a reply.
    #[arg(long, visible_alias = "write-timeout", value_name = "S", value_parser = seconds)]
    net_write_timeout: Option<Duration>,
    /// Bytes of one statement. The protocol's own limit is 1 MiB.
    #[arg(long, visible_alias = "max-input", value_name = "BYTES", value_parser = bytes)]
    max_allowed_packet: Option<usize>,
    /// Bytes of reply that wait in memory for a slow reader.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    output_bound: Option<usize>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "With --scheduler pool or mariadb")]
struct PoolOptions {
    /// Thread groups.
    #[arg(long, visible_alias = "thread-pool-size", value_name = "N")]
    groups: Option<usize>,
    /// Threads of all groups together.
    #[arg(long, value_name = "N")]
    thread_pool_max_threads: Option<usize>,
    /// Commands beyond one that may be on the CPU at a time in a group.
    #[arg(long, value_name = "N")]
    thread_pool_oversubscribe: Option<usize>,
    /// Milliseconds after which a command gives its slot to others.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    thread_pool_stall_limit: Option<Duration>,
    /// Seconds that a thread without work lives.
    #[arg(long, value_name = "S", value_parser = seconds)]
    thread_pool_idle_timeout: Option<Duration>,
    /// Milliseconds after which a queued command goes before those of higher lanes.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    thread_pool_prio_kickup_timer: Option<Duration>,
    /// Milliseconds that a group may go without anybody in its poller.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    handover: Option<Duration>,
    /// Milliseconds between two thread creations in a busy group.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    creation_throttle: Option<Duration>,
    /// Pipelined commands that a connection may run in one turn.
    #[arg(long, value_name = "N")]
    turn_commands: Option<u32>,
    /// Milliseconds that a connection's pipelined commands may take in one turn.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    turn_time: Option<Duration>,
    /// Under mariadb: whether the listener only listens.
    #[arg(long, value_name = "on|off", value_parser = on_or_off)]
    thread_pool_dedicated_listener: Option<bool>,
    /// Pin each group to a CPU.
    #[arg(long)]
    pin_groups: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "With --scheduler per-connection")]
struct PerConnectionOptions {
    /// Threads kept for the next connection.
    #[arg(long, value_name = "N")]
    thread_cache_size: Option<usize>,
    /// Threads in all, hence connections.
    #[arg(long, value_name = "N")]
    max_threads: Option<usize>,
    /// Seconds that a kept thread waits for its next connection.
    #[arg(long, value_name = "S", value_parser = seconds)]
    thread_cache_timeout: Option<Duration>,
}

/// Options of `sqlish client`.
#[derive(Debug, Args)]
pub(crate) struct ClientOptions {
    #[command(flatten)]
    pub(crate) server: ServerAddress,
    /// Log in by this name.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// The server's secret, if it requires a login.
    #[arg(long, value_name = "SECRET", requires = "user")]
    pub(crate) secret: Option<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ServerAddress {
    /// Connect to this address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) tcp: Option<String>,
    /// Connect to the Unix socket at this path.
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,
}

/// Writes the options that were given over a config's defaults.
macro_rules! overlay {
    ($config:ident: $($field:ident = $given:expr),* $(,)?) => {
        $(
            if let Some(given) = $given {
                $config.$field = given;
            }
        )*
    };
}

fn user(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, password)) if !name.is_empty() => Ok((name.to_owned(), password.to_owned())),
        _ => Err("not a name, a colon and a password".to_owned()),
    }
}

impl ServeOptions {
    /// Who may log in by MySQL's protocol.
    ///
    /// # Errors
    /// If those of the text protocol must log in, and these need not.
    pub(crate) fn mysql_users(&self) -> Result<MysqlUsers, &'static str> {
        let listens = !self.mysql_tcp.is_empty() || !self.mysql_unix.is_empty();
        if listens && self.tables.require_login.is_some() && self.users.is_empty() {
            return Err("--require-login is for the text protocol: give --user too, for MySQL's");
        }
        Ok(MysqlUsers::new(self.users.iter().cloned()))
    }

    /// The TLS of MySQL's listeners, if they are to have any.
    ///
    /// # Errors
    /// If there are none, or if the files are of no use.
    pub(crate) fn mysql_tls(&self) -> Result<Option<MysqlTls>, Box<dyn Error>> {
        let files = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        if !self.tls && files.is_none() {
            return Ok(None);
        }
        if self.mysql_tcp.is_empty() && self.mysql_unix.is_empty() {
            return Err("TLS is for clients of MySQL's protocol: give --mysql-tcp too".into());
        }
        Ok(Some(match files {
            Some((certificate, key)) => MysqlTls::from_files(certificate, key)?,
            None => MysqlTls::self_signed()?,
        }))
    }

    pub(crate) fn engine(&self) -> EngineConfig {
        EngineConfig {
            rows: self.tables.rows,
            tables: usize::from(self.tables.tables),
            lock_wait_timeout: self.tables.lock_wait_timeout,
            login_secret: self.tables.require_login.clone(),
            commit_delay: self.tables.commit_delay_us,
            commit_wait: match self.tables.commit_wait {
                CommitWaitName::Park => CommitWait::Park,
                CommitWaitName::Hook => CommitWait::Hook,
            },
            ..EngineConfig::default()
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        let given = &self.limits;
        let mut limits = Limits::default();
        overlay!(limits:
            max_connections = given.max_connections,
            max_logins = given.max_logins,
            max_per_address = given.max_per_address,
            max_admin_connections = given.max_admin_connections,
            login_timeout = given.connect_timeout,
            idle_timeout = given.wait_timeout,
            read_timeout = given.net_read_timeout,
            write_timeout = given.net_write_timeout,
            max_input = given.max_allowed_packet,
            output_bound = given.output_bound,
        );
        // Shortening the one must not need the other to be named too.
        if given.net_read_timeout.is_none() {
            limits.read_timeout = limits.read_timeout.min(limits.idle_timeout);
        }
        limits
    }

    /// # Errors
    /// If an option was given that means nothing under the scheduler that was chosen.
    pub(crate) fn scheduler(&self) -> Result<Scheduler, &'static str> {
        match (self.scheduler, &self.pool, &self.per_connection) {
            (SchedulerName::Pool, Some(pool), None)
                if pool.thread_pool_dedicated_listener.is_some() =>
            {
                Err("--thread-pool-dedicated-listener needs --scheduler mariadb")
            }
            (SchedulerName::Pool, pool, None) => Ok(Scheduler::Pool(
                self.pool_config(PoolConfig::default(), pool.as_ref()),
            )),
            (SchedulerName::Mariadb, pool, None) => Ok(Scheduler::Pool(
                self.pool_config(PoolConfig::mariadb(), pool.as_ref()),
            )),
            (SchedulerName::PerConnection, None, given) => Ok(Scheduler::ThreadPerConnection(
                self.per_connection_config(given.as_ref()),
            )),
            (SchedulerName::Pool | SchedulerName::Mariadb, _, Some(_)) => Err(
                "--thread-cache-size, --thread-cache-timeout and --max-threads need \
                     --scheduler per-connection",
            ),
            (SchedulerName::PerConnection, Some(_), _) => Err(
                "--groups and the other options of thread groups need --scheduler pool or mariadb",
            ),
        }
    }

    fn pool_config(&self, mut config: PoolConfig, given: Option<&PoolOptions>) -> PoolConfig {
        overlay!(config: stack_size = self.stack_size);
        let Some(given) = given else { return config };
        overlay!(config:
            groups = given.groups,
            max_threads = given.thread_pool_max_threads,
            oversubscribe = given.thread_pool_oversubscribe,
            stall_limit = given.thread_pool_stall_limit,
            idle_timeout = given.thread_pool_idle_timeout,
            kickup = given.thread_pool_prio_kickup_timer,
            handover = given.handover,
            creation_throttle = given.creation_throttle,
            turn_commands = given.turn_commands,
            turn_time = given.turn_time,
            dedicated_listener = given.thread_pool_dedicated_listener,
        );
        config.pin_groups = given.pin_groups;
        config
    }

    fn per_connection_config(
        &self,
        given: Option<&PerConnectionOptions>,
    ) -> ThreadPerConnectionConfig {
        let mut config = ThreadPerConnectionConfig::default();
        overlay!(config: stack_size = self.stack_size);
        let Some(given) = given else { return config };
        overlay!(config:
            thread_cache = given.thread_cache_size,
            max_threads = given.max_threads,
            idle_timeout = given.thread_cache_timeout,
        );
        if given.thread_cache_size.is_none() {
            config.thread_cache = config.thread_cache.min(config.max_threads);
        }
        config
    }
}

/// Seconds, with or without a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// Milliseconds, with or without a fraction.
fn milliseconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number / 1000.0).map_err(|error| error.to_string())
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".to_owned()),
    }
}

/// Whole microseconds.
fn microseconds(text: &str) -> Result<Duration, String> {
    let number = text
        .parse()
        .map_err(|_| "not a whole number of microseconds".to_owned())?;
    Ok(Duration::from_micros(number))
}

/// Bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 1 << 10),
        Some((end, 'm' | 'M')) => (&text[..end], 1 << 20),
        Some((end, 'g' | 'G')) => (&text[..end], 1 << 30),
        _ => (text, 1),
    };
    let number: usize = number
        .parse()
        .map_err(|_| "not a number of bytes".to_owned())?;
    number
        .checked_mul(unit)
        .ok_or_else(|| "more bytes than can be counted".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn serve(options: &str) -> Result<Box<ServeOptions>, clap::Error> {
        let words = ["sqlish", "serve"]
            .into_iter()
            .chain(options.split_whitespace());
        match Cli::try_parse_from(words)?.command {
            Command::Serve(options) => Ok(options),
            Command::Client(_) => unreachable!("the command is serve"),
        }
    }

    #[test]
    fn the_declaration_of_the_options_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_limit_of_the_pool_is_an_option_under_mariadbs_name() {
        let options = serve(
            "--thread-pool-size 4 --thread-pool-max-threads 100 --thread-pool-oversubscribe 7 \
             --thread-pool-stall-limit 500 --thread-pool-idle-timeout 5 \
             --thread-pool-prio-kickup-timer 250 --handover 2 --creation-throttle 0.5 \
             --turn-commands 9 --turn-time 3 --pin-groups --thread-stack 256K",
        );
        let scheduler = options.expect("these are options").scheduler();
        let Ok(Scheduler::Pool(config)) = scheduler else {
            panic!("{scheduler:?}")
        };
        let expected = PoolConfig::default()
            .groups(4)
            .max_threads(100)
            .oversubscribe(7)
            .stall_limit(Duration::from_millis(500))
            .idle_timeout(Duration::from_secs(5))
            .kickup(Duration::from_millis(250))
            .handover(Duration::from_millis(2))
            .creation_throttle(Duration::from_micros(500))
            .turn_commands(9)
            .turn_time(Duration::from_millis(3))
            .pin_groups(true)
            .stack_size(256 * 1024);
        assert_eq!(config, expected);
    }

    #[test]
    fn mariadbs_algorithm_comes_with_its_defaults() {
        let options = serve("--scheduler mariadb --groups 1 --thread-pool-dedicated-listener on");
        let scheduler = options.expect("these are options").scheduler();
        let Ok(Scheduler::Pool(config)) = scheduler else {
            panic!("{scheduler:?}")
        };
        let expected = PoolConfig::mariadb().groups(1).dedicated_listener(true);
        assert_eq!(config, expected);
    }

    #[test]
    fn every_limit_of_a_connection_is_an_option() {
        let options = serve(
            "--max-connections 5 --wait-timeout 60 --net-read-timeout 1.5 --net-write-timeout 2 \
             --max-allowed-packet 1M --output-bound 65536",
        );
        let expected = Limits::default()
            .max_connections(5)
            .idle_timeout(Duration::from_secs(60))
            .read_timeout(Duration::from_millis(1500))
            .write_timeout(Duration::from_secs(2))
            .max_input(1 << 20)
            .output_bound(65536);
        assert_eq!(options.expect("these are options").limits(), expected);
    }

    #[test]
    fn every_limit_of_thread_per_connection_is_an_option() {
        let options = serve(
            "--scheduler per-connection --thread-cache-size 3 --max-threads 10 \
             --thread-cache-timeout 1 --stack-size 1M",
        );
        let scheduler = options.expect("these are options").scheduler();
        let Ok(Scheduler::ThreadPerConnection(config)) = scheduler else {
            panic!("{scheduler:?}")
        };
        let expected = ThreadPerConnectionConfig::default()
            .thread_cache(3)
            .max_threads(10)
            .idle_timeout(Duration::from_secs(1))
            .stack_size(1 << 20);
        assert_eq!(config, expected);
    }

    #[test]
    fn commits_are_flushed_in_groups_if_asked_and_then_park_unless_told_to_block() {
        let engine = |options| serve(options).expect("these are options").engine();
        let none = engine("");
        assert_eq!(none.commit_delay, Duration::ZERO);
        let park = engine("--commit-delay-us 150");
        assert_eq!(park.commit_delay, Duration::from_micros(150));
        assert_eq!(park.commit_wait, CommitWait::Park);
        let hook = engine("--commit-delay-us 150 --commit-wait hook");
        assert_eq!(hook.commit_wait, CommitWait::Hook);
    }

    #[test]
    fn lowering_one_limit_does_not_ask_for_another() {
        let options = serve("--wait-timeout 5 --scheduler per-connection --max-threads 10");
        let options = options.expect("these are options");
        assert_eq!(
            options.limits().check().map_err(|error| error.to_string()),
            Ok(())
        );
        let Ok(Scheduler::ThreadPerConnection(config)) = options.scheduler() else {
            panic!("the scheduler is per-connection");
        };
        assert_eq!(config.check().map_err(|error| error.to_string()), Ok(()));
    }

    #[test]
    fn nothing_given_is_the_librarys_defaults() {
        let options = serve("").expect("no option is needed");
        assert_eq!(options.limits(), Limits::default());
        let scheduler = options.scheduler();
        let Ok(Scheduler::Pool(config)) = scheduler else {
            panic!("{scheduler:?}")
        };
        assert_eq!(config, PoolConfig::default());
    }

    #[test]
    fn an_option_of_the_other_scheduler_is_refused_not_ignored() {
        for options in [
            "--scheduler per-connection --groups 2",
            "--scheduler per-connection --pin-groups",
            "--scheduler pool --thread-cache-size 2",
            "--scheduler mariadb --thread-cache-size 2",
            "--scheduler pool --thread-pool-dedicated-listener on",
        ] {
            assert!(
                serve(options)
                    .expect("these are options")
                    .scheduler()
                    .is_err(),
                "{options}"
            );
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for options in [
            "--rows 0",
            "--rows many",
            "--tables 1001",
            "--wait-timeout -1",
            "--wait-timeout 1e300",
            "--thread-pool-stall-limit NaN",
            "--max-allowed-packet 1T",
            "--max-allowed-packet 99999999999G",
            "--scheduler fair",
            "--scheduler mariadb --thread-pool-dedicated-listener perhaps",
            "--commit-delay-us 0.5",
            "--commit-wait never",
        ] {
            assert!(serve(options).is_err(), "{options}");
        }
    }

    #[test]
    fn a_client_connects_to_exactly_one_server() {
        for (options, fine) in [
            ("--tcp 127.0.0.1:1", true),
            ("--unix /tmp/x", true),
            ("--unix /tmp/x --user ann --secret x", true),
            ("", false),
            ("--tcp 127.0.0.1:1 --unix /tmp/x", false),
            ("--unix /tmp/x --secret x", false),
        ] {
            let words = ["sqlish", "client"]
                .into_iter()
                .chain(options.split_whitespace());
            assert_eq!(Cli::try_parse_from(words).is_ok(), fine, "{options}");
        }
    }
}
