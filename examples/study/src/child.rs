//! The parent's side of a server process: starts it, waits until it listens, tells when it has come
//! to rest, and sees to it that it ends.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::load::Endpoint;
use crate::mysql::mariadb;
use crate::options::ServerOptions;
use crate::os;
use crate::plan::{Protocol, Scheduler, Transport};
use crate::process;
use crate::server::Spec;

/// How long a server may take to build its rows and listen.
const START_WITHIN: Duration = Duration::from_secs(120);

/// How long it may take to be rid of its clients after they have left.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);

/// A server is at rest when it has used no CPU for this long; two ticks of the clock that tells.
const QUIET: Duration = Duration::from_millis(20);

/// Descriptors that a server may open after it has said that it listens, such as the poller of a
/// thread that starts late.
const LATE_DESCRIPTORS: usize = 8;

/// A server to be started: [`Spec`] but for the place where it listens.
#[derive(Debug, Clone)]
pub struct Order {
    /// Which one.
    pub scheduler: Scheduler,
    /// What it speaks.
    pub protocol: Protocol,
    /// Over what.
    pub transport: Transport,
    /// The TCP port; 0 is any free one.
    pub port: u16,
    /// Rows of the table.
    pub rows: u64,
    /// How it is set.
    pub options: ServerOptions,
    /// What it writes, and nothing else; `None` is a database.
    pub disk: Option<Disk>,
    /// Where it may run.
    pub cpus: Vec<usize>,
}

/// A running server process. It ends when this is dropped, and when this process ends, however it
/// does.
#[derive(Debug)]
pub struct Server {
    process: Child,
    /// The process that serves: this one, or one that it looks after.
    pid: u32,
    endpoint: Endpoint,
    name: &'static str,
    is_ours: bool,
    /// Goes when the process has gone.
    _folder: Option<Folder>,
    descriptors_idle: usize,
}

impl Server {
    /// Starts this program again as a server and waits until it listens.
    pub fn start(order: &Order) -> Result<Server> {
        let (endpoint, folder) = match order.transport {
            Transport::Tcp => (Endpoint::Tcp(([127, 0, 0, 1], order.port).into()), None),
            Transport::Unix => {
                let folder = Folder::create()?;
                (Endpoint::Unix(folder.socket()), Some(folder))
            }
        };
        let spec = Spec {
            scheduler: order.scheduler,
            protocol: order.protocol,
            endpoint,
            rows: order.rows,
            options: order.options,
            disk: order.disk.clone(),
            cpus: order.cpus.clone(),
        };
        let args = spec.to_args();
        Server::spawn(&args, order.scheduler.name(), true, spec.endpoint, folder)
    }

    /// Starts this program again as the keeper of a MariaDB and waits until that listens.
    pub fn start_mariadb(order: &mariadb::Order) -> Result<Server> {
        let folder = Folder::create()?;
        let endpoint = match order.transport {
            Transport::Tcp => Endpoint::Tcp(([127, 0, 0, 1], 0).into()),
            Transport::Unix => Endpoint::Unix(folder.socket()),
        };
        let args = order.to_args(&folder.0, &folder.socket());
        Server::spawn(&args, order.handling.label(), false, endpoint, Some(folder))
    }

    fn spawn(
        args: &[OsString],
        name: &'static str,
        is_ours: bool,
        endpoint: Endpoint,
        folder: Option<Folder>,
    ) -> Result<Server> {
        // Out of reach of the terminal's Ctrl-C: the server sees its parent leave, and tidies up.
        let process = os::this_program()
            .and_then(|mut program| {
                program
                    .args(args)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
            })
            .map_err(|error| Error::run(format!("cannot start the server process: {error}")))?;
        let mut server = Server {
            pid: process.id(),
            process,
            endpoint,
            name,
            is_ours,
            _folder: folder,
            descriptors_idle: 0,
        };
        server.await_listening()?;
        server.descriptors_idle = process::descriptors(server.pid).map_err(|_| server.died())?;
        Ok(server)
    }

    /// The number of the process that serves.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits until the server has let go of all its clients and does nothing more, so that it takes
    /// no time from the server that is measured next. From then on it costs nothing: all of ours sleep
    /// until a client comes. MariaDB tidies up behind its updates for as long as it likes, so it gets
    /// 20 seconds and no complaint.
    pub fn settle(&mut self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_WITHIN;
        let mut cpu_before = None;
        loop {
            let open = process::descriptors(self.pid()).map_err(|_| self.died())?;
            let cpu = process::cpu_time(self.pid()).map_err(|_| self.died())?;
            let let_go = !self.is_ours || open <= self.descriptors_idle + LATE_DESCRIPTORS;
            if let_go && cpu_before == Some(cpu) {
                return Ok(());
            }
            if Instant::now() > deadline {
                if !self.is_ours {
                    return Ok(());
                }
                return Err(Error::run(format!(
                    "the {} server holds {open} descriptors {SETTLE_WITHIN:?} after its \
                     clients have left (it began with \
                     {}), or finds no rest",
                    self.name, self.descriptors_idle
                )));
            }
            cpu_before = Some(cpu);
            thread::sleep(QUIET);
        }
    }

    fn await_listening(&mut self) -> Result<()> {
        let line = self.first_line()?;
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["LISTENING", place, ref pid @ ..] => {
                self.endpoint = match &self.endpoint {
                    Endpoint::Unix(_) => Endpoint::Unix(place.into()),
                    Endpoint::Tcp(_) => Endpoint::Tcp(
                        place
                            .parse()
                            .map_err(|_| Error::run(format!("'{place}' is no address")))?,
                    ),
                };
                if let Some(pid) = pid.first() {
                    self.pid = pid
                        .parse()
                        .map_err(|_| Error::run(format!("'{pid}' is no process")))?;
                }
                Ok(())
            }
            ["FAILED", why] => Err(Error::usage(format!("the {} server: {why}", self.name))),
            _ => Err(self.died()),
        }
    }

    /// What the server says, up to its first newline or the end.
    fn first_line(&mut self) -> Result<String> {
        let failed = |error: io::Error| Error::run(format!("cannot hear the server: {error}"));
        let Some(stdout) = self.process.stdout.take() else {
            return Ok(String::new());
        };
        let (tell, told) = mpsc::channel();
        // A pipe cannot be waited for with a deadline everywhere. If it is over, the server is killed,
        // and this ends.
        thread::Builder::new()
            .name("first line".into())
            .spawn(move || _ = tell.send(line_of(stdout)))
            .map_err(failed)?;
        let (line, stdout) = match told.recv_timeout(START_WITHIN) {
            Ok(heard) => heard.map_err(failed)?,
            Err(_) => {
                return Err(Error::run(format!(
                    "the {} server does not listen after {START_WITHIN:?}",
                    self.name
                )));
            }
        };
        self.process.stdout = Some(stdout);
        Ok(line)
    }

    fn died(&mut self) -> Error {
        // It may be a zombie: its pipes and its files in /proc end before it can be waited for.
        let _ = self.process.kill();
        let how = self
            .process
            .wait()
            .map_or_else(|error| error.to_string(), |status| status.to_string());
        Error::run(format!("the {} server died ({how})", self.name))
    }
}

/// What comes first, up to a newline or the end.
fn line_of(mut stdout: ChildStdout) -> io::Result<(String, ChildStdout)> {
    let mut line = Vec::new();
    let mut piece = [0; 256];
    while !line.contains(&b'\n') {
        match stdout.read(&mut piece)? {
            0 => break,
            n => line.extend_from_slice(&piece[..n]),
        }
    }
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok((String::from_utf8_lossy(line).into_owned(), stdout))
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_ours {
            // It has nothing to lose, and the next server must not wait for it.
            let _ = self.process.kill();
        } else {
            // The keeper ends what it keeps, and follows.
            drop(self.process.stdin.take());
        }
        let _ = self.process.wait();
    }
}

/// A folder of its own for a Unix socket, so that no other file is ever taken for it, or for other files
/// that go with it.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// # Errors
    /// A usage error: where folders for a while belong, none can be made.
    pub(crate) fn create() -> Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            // Relaxed: only that no two are the same matters.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("study-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Folder(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Error::usage(format!("cannot create a folder: {error}")));
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
