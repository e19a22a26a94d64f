//! A MariaDB to stand beside: installed in a folder of its own, served from there, gone with it.
//!
//! A child of this program keeps it: makes the folder's database, starts `mariadbd`, says where it
//! listens, and waits until its standard input ends, as its parent's end sees to. Then it ends `mariadbd`
//! and removes the folder. No service of the machine is touched, and no file of one is read.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use lexopt::ValueExt;

use crate::cpu;
use crate::error::{Error, Result};
use crate::options::number;
use crate::os;
use crate::plan::{self, Transport};
use crate::process;
use crate::server;

/// The hidden subcommand.
const SUBCOMMAND: &str = "mariadb-server";

/// How to come by it.
const MISSING: &str = "mariadbd and mariadb-install-db are missing: apt-get install -y mariadb-server \
                       (its service need not run)";

/// How long it may take until it listens.
const START_WITHIN: Duration = Duration::from_secs(60);

/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// How it gives threads to connections: its variable `thread_handling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Handling {
    /// Its own thread groups.
    Pool,
    /// A thread for each connection.
    PerConnection,
}

impl Handling {
    /// In the order of a table.
    pub const ALL: [Handling; 2] = [Handling::Pool, Handling::PerConnection];

    /// How MariaDB spells it.
    pub fn name(self) -> &'static str {
        match self {
            Handling::Pool => "pool-of-threads",
            Handling::PerConnection => "one-thread-per-connection",
        }
    }

    /// In a table that holds more than MariaDB.
    pub fn label(self) -> &'static str {
        match self {
            Handling::Pool => "MariaDB pool-of-threads",
            Handling::PerConnection => "MariaDB one-thread-per-connection",
        }
    }
}

plan::spelled_by_name!(Handling, "thread_handling");

/// A MariaDB to be started.
#[derive(Debug, Clone)]
pub struct Order {
    /// How.
    pub handling: Handling,
    /// Over what.
    pub transport: Transport,
    /// Thread groups.
    pub groups: usize,
    /// Where it may run.
    pub cpus: Vec<usize>,
}

impl Order {
    /// The arguments that [`main_if_asked`] reads back.
    pub(crate) fn to_args(&self, folder: &Path, socket: &Path) -> Vec<OsString> {
        vec![
            SUBCOMMAND.into(),
            "--handling".into(),
            self.handling.name().into(),
            "--transport".into(),
            self.transport.name().into(),
            "--groups".into(),
            self.groups.to_string().into(),
            "--cpus".into(),
            plan::show_cpus(&self.cpus).into(),
            "--folder".into(),
            folder.into(),
            "--socket".into(),
            socket.into(),
        ]
    }
}

/// Which one is installed.
///
/// # Errors
/// A usage error that says how to come by it.
pub fn check() -> Result<String> {
    let (daemon, _) = programs()?;
    let said = Command::new(daemon)
        .args(["--no-defaults", "--version"])
        .output();
    let said = said.map_err(|error| Error::usage(format!("mariadbd does not run: {error}")))?;
    // "mariadbd  Ver 10.11.6-MariaDB for debian-linux-gnu on x86_64 (Debian 12)"
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said
        .split_whitespace()
        .nth(2)
        .unwrap_or("of unknown version");
    Ok(format!("mariadbd {version}"))
}

fn programs() -> Result<(PathBuf, PathBuf)> {
    let install = super::find("mariadb-install-db");
    let both = super::find("mariadbd").zip(install);
    both.ok_or_else(|| Error::usage(MISSING))
}

/// Keeps a MariaDB, if this process was started to do that. Returns only when it was not, or at the end.
pub fn main_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let Err(error) = Keeper::from_args(args).and_then(|mut keeper| keeper.keep());
    let _ = writeln!(io::stdout(), "FAILED\t{error}");
    Some(ExitCode::from(error.exit_code()))
}

struct Keeper {
    order: Order,
    /// Removed at the end, with all that is in it.
    folder: PathBuf,
    socket: PathBuf,
    running: Option<Child>,
}

impl Keeper {
    fn from_args(args: impl Iterator<Item = OsString>) -> Result<Keeper> {
        use lexopt::Arg::Long;
        let mut parser = lexopt::Parser::from_args(args);
        let (mut folder, mut socket) = (PathBuf::new(), PathBuf::new());
        let mut order = Order {
            handling: Handling::Pool,
            transport: Transport::Unix,
            groups: 1,
            cpus: Vec::new(),
        };
        while let Some(arg) = parser.next().map_err(Error::usage)? {
            let Long(name) = arg else {
                return Err(Error::usage(arg.unexpected()));
            };
            let name = name.to_owned();
            let value = parser.value().map_err(Error::usage)?;
            let text = || value.clone().string().map_err(Error::usage);
            match name.as_str() {
                "handling" => order.handling = text()?.parse()?,
                "transport" => order.transport = text()?.parse()?,
                "groups" => order.groups = number("groups", &text()?, 1..=4_096)? as usize,
                "cpus" => order.cpus = plan::parse_cpus(&text()?)?,
                "folder" => folder = value.into(),
                "socket" => socket = value.into(),
                _ => return Err(Error::usage(Long(&name).unexpected())),
            }
        }
        Ok(Keeper {
            order,
            folder,
            socket,
            running: None,
        })
    }

    fn keep(&mut self) -> Result<Infallible> {
        cpu::pin(&self.order.cpus)?;
        process::raise_file_limit(0)?;
        let (daemon, install) = programs()?;
        let data = self.folder.join("data");
        self.install(&install, &data)?;
        let port = match self.order.transport {
            Transport::Unix => None,
            Transport::Tcp => Some(free_port()?),
        };
        let pid = self.start(&daemon, &data, port)?;
        self.wait_until_it_serves()?;
        let place = match port {
            None => self.socket.display().to_string(),
            Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
        };
        // A parent that no longer listens has left, which standard input will tell.
        let said = writeln!(io::stdout(), "LISTENING\t{place}\t{pid}");
        let _ = said.and_then(|()| io::stdout().flush());
        server::wait_for_the_parent_to_leave().map_err(Error::run)?;
        self.end();
        std::process::exit(0)
    }

    fn install(&self, program: &Path, data: &Path) -> Result<()> {
        let output = Command::new(program)
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .args(as_root())
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(|error| Error::run(format!("mariadb-install-db: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let why = said.lines().rfind(|line| line.contains("ERROR"));
        Err(Error::run(format!(
            "mariadb-install-db: {}",
            why.or(said.lines().last()).unwrap_or("it said nothing")
        )))
    }

    /// As a server for thousands of clients is set: nothing waits for a disk, and nothing is limited
    /// that the other servers do not limit.
    fn start(&mut self, program: &Path, data: &Path, port: Option<u16>) -> Result<u32> {
        let failed = |error: io::Error| Error::run(format!("mariadbd: {error}"));
        let init = self.folder.join("init.sql");
        fs::write(&init, "CREATE DATABASE sbtest;\n").map_err(failed)?;
        let log = File::create(self.log()).map_err(failed)?;
        let mut command = Command::new(program);
        command
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", self.socket.display()))
            .arg(format!("--pid-file={}", self.folder.join("pid").display()))
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--thread-handling={}", self.order.handling))
            .arg(format!("--thread-pool-size={}", self.order.groups))
            .args(as_root())
            .args([
                "--max-connections=100000",
                "--thread-cache-size=16384",
                "--back-log=4096",
                "--max-prepared-stmt-count=1048576",
                "--table-open-cache=16000",
                "--innodb-buffer-pool-size=2G",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-flush-method=O_DIRECT",
                "--performance-schema=OFF",
                "--skip-log-bin",
            ]);
        match port {
            None => command.arg("--skip-networking"),
            Some(port) => command.args(["--bind-address=127.0.0.1", &format!("--port={port}")]),
        };
        let running = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let pid = running.id();
        self.running = Some(running);
        Ok(pid)
    }

    /// It listens before it is ready, and greets when it is.
    fn wait_until_it_serves(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        loop {
            let ended = self.running.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                let why = log.lines().rfind(|line| line.contains("[ERROR]"));
                return Err(Error::run(format!(
                    "mariadbd ended ({status}): {}",
                    why.unwrap_or("it did not say why")
                )));
            }
            if greets(&self.socket) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::run(format!(
                    "mariadbd does not serve after {START_WITHIN:?}"
                )));
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Its tables are not wanted any more, so it need not write them.
    fn end(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.kill();
            let _ = running.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn greets(socket: &Path) -> bool {
    let greeted = || {
        let mut stream = os::connect_unix(socket, START_WITHIN)?;
        stream.read_exact(&mut [0; 5])
    };
    greeted().is_ok()
}

/// It refuses to run as root unless it is told that this is meant.
fn as_root() -> Option<&'static str> {
    os::is_root().then_some("--user=root")
}

/// A port that nobody listens on just now.
fn free_port() -> Result<u16> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok(address.port())
    });
    free.map_err(|error| Error::usage(format!("there is no free port: {error}")))
}
