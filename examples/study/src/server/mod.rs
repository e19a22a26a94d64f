//! The server process: what runs in the child that [`crate::child`] starts.
//!
//! It binds itself to its CPUs before it starts a thread, builds the engine, listens, says so in
//! one line on standard output (`LISTENING\t<endpoint>` or `FAILED\t<why>`) and serves until its
//! standard input ends. That input is a pipe whose other end only the parent holds, so it ends when
//! the parent does, however it dies: no server outlives the tool.
//!
//! All servers run the same engine, the same parser and the same replies, all of them
//! sqlish's. They differ in who reads a socket and which thread then runs the statement, and that
//! is what is measured.

mod disk;
#[cfg(target_os = "linux")]
mod event_loop;
mod library;
mod std_loop;
#[cfg(any(feature = "tokio", feature = "tokio-blocking"))]
mod tokio;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use lexopt::ValueExt;
use socket2::{Domain, SockAddr, Socket, Type};
use sqlish::{
    Engine, Flow, Line, MysqlHandler, MysqlUsers, NoAdmin, Session, SqlishHandler, next_line,
};
use thread_group_pool::PoolConfig;

use crate::cpu;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::load::Endpoint;
use crate::options::ServerOptions;
use crate::plan::{self, Protocol, Scheduler};
use crate::process;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "server";

/// Room for every client of the largest table to knock at once; the kernel cuts it to `somaxconn`.
const BACKLOG: u16 = 4096;

/// What to serve, and where.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Which of the servers.
    pub scheduler: Scheduler,
    /// What it speaks; the two that are written by hand speak text.
    pub protocol: Protocol,
    /// Port 0 takes a free one.
    pub endpoint: Endpoint,
    /// Rows of the table.
    pub rows: u64,
    /// How it is set.
    pub options: ServerOptions,
    /// What it writes, and nothing else; `None` is a database.
    pub disk: Option<Disk>,
    /// Where it may run.
    pub cpus: Vec<usize>,
}

impl Spec {
    /// The arguments that [`main_if_asked`] reads back.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec![
            SUBCOMMAND.into(),
            "--scheduler".into(),
            self.scheduler.name().into(),
            "--protocol".into(),
            self.protocol.name().into(),
        ];
        match &self.endpoint {
            Endpoint::Unix(path) => args.extend(["--unix".into(), path.into()]),
            Endpoint::Tcp(address) => args.extend(["--tcp".into(), address.to_string().into()]),
        }
        args.extend(["--rows".into(), self.rows.to_string().into()]);
        args.extend(self.options.to_args());
        args.extend(self.disk.iter().flat_map(Disk::to_args));
        args.extend(["--cpus".into(), plan::show_cpus(&self.cpus).into()]);
        args
    }

    fn from_args(args: impl Iterator<Item = OsString>) -> Result<Spec> {
        use lexopt::Arg::Long;
        let (mut scheduler, mut endpoint, mut rows, mut cpus) = (None, None, None, None);
        let mut disk = None;
        let mut protocol = Protocol::Text;
        let mut options = ServerOptions::of_groups(1);
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(arg) = parser.next().map_err(Error::usage)? {
            match arg {
                Long("scheduler") => scheduler = Some(value(&mut parser)?.parse()?),
                Long("protocol") => protocol = value(&mut parser)?.parse()?,
                Long("unix") => {
                    endpoint = Some(Endpoint::Unix(parser.value().map_err(Error::usage)?.into()));
                }
                Long("tcp") => {
                    endpoint = Some(Endpoint::Tcp(parsed(&mut parser)?));
                }
                Long("rows") => rows = Some(parsed(&mut parser)?),
                Long("disk") => {
                    let how = value(&mut parser)?;
                    disk = Some(Disk::take(
                        &how,
                        parser.value().map_err(Error::usage)?.into(),
                    )?);
                }
                Long("cpus") => cpus = Some(plan::parse_cpus(&value(&mut parser)?)?),
                Long(name) => {
                    let name = name.to_owned();
                    options.take(&name, &mut parser)?;
                }
                other => return Err(Error::usage(other.unexpected())),
            }
        }
        match (scheduler, endpoint, rows, cpus) {
            (Some(scheduler), Some(endpoint), Some(rows), Some(cpus)) => Ok(Spec {
                scheduler,
                protocol,
                endpoint,
                rows,
                options,
                disk,
                cpus,
            }),
            _ => Err(Error::usage(
                "server needs --scheduler, --unix or --tcp, --rows and --cpus",
            )),
        }
    }
}

fn value(parser: &mut lexopt::Parser) -> Result<String> {
    parser
        .value()
        .and_then(ValueExt::string)
        .map_err(Error::usage)
}

fn parsed<T>(parser: &mut lexopt::Parser) -> Result<T>
where
    T: FromStr,
    T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    parser
        .value()
        .and_then(|value| value.parse())
        .map_err(Error::usage)
}

/// Serves, if this process was started to do that; every program that starts servers calls it first
/// in its `main`. Returns only when it was not, or when the server could not start.
pub fn main_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let Err(error) = Spec::from_args(args).and_then(|spec| serve(&spec));
    let _ = writeln!(io::stdout(), "FAILED\t{error}");
    Some(ExitCode::from(error.exit_code()))
}

/// Serves until standard input ends, then leaves without a farewell: what is open is the parent's,
/// which is gone or has measured all it wanted. The drain of the library has tests of its own.
fn serve(spec: &Spec) -> Result<Infallible> {
    cpu::pin(&spec.cpus)?;
    process::raise_file_limit(0)?;
    if let Some(disk) = &spec.disk {
        let handler = disk::DiskHandler::new(disk).map_err(Error::usage)?;
        let scheduler = match spec.scheduler {
            Scheduler::Mariadb => library::pool(PoolConfig::mariadb(), &spec.options),
            Scheduler::PerConnection => library::per_connection(),
            _ => library::pool(PoolConfig::default(), &spec.options),
        };
        let (endpoint, _running) = library::start(&spec.endpoint, scheduler, handler)?;
        return see_it_through(&endpoint, wait_for_the_parent_to_leave);
    }
    let engine = Engine::new(spec.options.engine(spec.rows)).map_err(Error::run)?;
    // The one place where a name becomes a server.
    let scheduler = match spec.scheduler {
        Scheduler::Pool => library::pool(PoolConfig::default(), &spec.options),
        Scheduler::Mariadb => library::pool(PoolConfig::mariadb(), &spec.options),
        Scheduler::PerConnection => library::per_connection(),
        Scheduler::StdLoop => {
            let (socket, endpoint) = bound(&spec.endpoint)?;
            std_loop::start(socket, &endpoint, engine).map_err(Error::run)?;
            return see_it_through(&endpoint, wait_for_the_parent_to_leave);
        }
        #[cfg(not(target_os = "linux"))]
        Scheduler::EventLoop | Scheduler::EventLoopMt => {
            return Err(Error::usage("it needs epoll"));
        }
        #[cfg(target_os = "linux")]
        Scheduler::EventLoop | Scheduler::EventLoopMt => {
            if spec.scheduler == Scheduler::EventLoopMt {
                std::thread::spawn(std::thread::park);
            }
            let (socket, endpoint) = bound(&spec.endpoint)?;
            let mut event_loop = event_loop::new(socket, engine).map_err(Error::run)?;
            return see_it_through(&endpoint, || event_loop.run_until(io::stdin()));
        }
        #[cfg(any(feature = "tokio", feature = "tokio-blocking"))]
        Scheduler::Tokio | Scheduler::TokioBlocking => {
            let (socket, endpoint) = bound(&spec.endpoint)?;
            let blocking = spec.scheduler == Scheduler::TokioBlocking;
            let _running = tokio::start(socket, &endpoint, engine, spec.cpus.len(), blocking)
                .map_err(Error::run)?;
            return see_it_through(&endpoint, wait_for_the_parent_to_leave);
        }
        #[cfg(feature = "one-shot")]
        Scheduler::OneShot => {
            let mut config = PoolConfig::default();
            config.one_shot = true;
            library::pool(config, &spec.options)
        }
        #[allow(unreachable_patterns)] // with every feature
        other => {
            other.check_built()?;
            return Err(Error::usage(format!("no server is called '{other}'")));
        }
    };
    let text = SqlishHandler::new(engine);
    let (endpoint, _running) = match spec.protocol {
        Protocol::Text => library::start(&spec.endpoint, scheduler, text)?,
        Protocol::Mysql => {
            let mysql = MysqlHandler::beside(&text, MysqlUsers::default());
            library::start(&spec.endpoint, scheduler, mysql)?
        }
    };
    see_it_through(&endpoint, wait_for_the_parent_to_leave)
}

/// Says that the server listens, serves, and leaves with it still running: exiting is how it ends.
fn see_it_through(
    endpoint: &Endpoint,
    serve: impl FnOnce() -> io::Result<()>,
) -> Result<Infallible> {
    // A parent that no longer listens has left, which standard input will tell.
    let _ = writeln!(io::stdout(), "LISTENING\t{endpoint}").and_then(|()| io::stdout().flush());
    serve().map_err(Error::run)?;
    if let Endpoint::Unix(path) = endpoint {
        // The folder is the parent's, which may have died before it could take it away. Both may be
        // gone already.
        let _ = fs::remove_file(path);
        let _ = path.parent().map(fs::remove_dir);
    }
    std::process::exit(0)
}

pub(crate) fn wait_for_the_parent_to_leave() -> io::Result<()> {
    let mut ignored = [0; 64];
    loop {
        match io::stdin().read(&mut ignored) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A listening socket for the hand-written servers, and where it listens.
fn bound(endpoint: &Endpoint) -> Result<(Socket, Endpoint)> {
    let failed = |error: io::Error| Error::usage(format!("cannot listen on {endpoint}: {error}"));
    match endpoint {
        Endpoint::Unix(path) => bind_unix(path).map(|socket| (socket, endpoint.clone())),
        Endpoint::Tcp(address) => {
            bind_tcp(*address).map(|(socket, address)| (socket, Endpoint::Tcp(address)))
        }
    }
    .map_err(failed)
}

fn bind_unix(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG.into())?;
    Ok(socket)
}

fn bind_tcp(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // On Windows it would let anybody take a port that somebody listens on.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG.into())?;
    let address = socket.local_addr()?.as_socket();
    Ok((socket, address.ok_or(io::ErrorKind::AddrNotAvailable)?))
}

/// Runs every whole statement in `input`, replies to `out`; how many bytes that used, and whether
/// the conversation goes on. The hand-written servers share it.
fn answer(session: &mut Session, input: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, Flow)> {
    let mut used = 0;
    loop {
        match next_line(&input[used..]) {
            Line::Complete { line, consumed } => {
                used += consumed;
                match session.execute(line, out, &NoAdmin)? {
                    Flow::Continue => {}
                    // Nobody parks under `NoAdmin`.
                    Flow::Quit | Flow::Park | Flow::Subscribe => return Ok((used, Flow::Quit)),
                }
            }
            Line::Incomplete => return Ok((used, Flow::Continue)),
            Line::TooLong => {
                sqlish::too_long(out)?;
                return Ok((input.len(), Flow::Quit));
            }
        }
    }
}
