//! Windows: mio's poller, what std and three small crates reach. There is no unsafe code here, so of
//! another process nothing is known but that it runs: threads, memory and CPU time of a server are 0.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::windows::fs::FileExt;
use std::os::windows::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use mio::{Events, Interest, Poll, Token};

use crate::error::Result;
use crate::process::Size;
use crate::wires::{BATCH, Endpoint, open_tcp};

// ---- sockets ----

/// A client's end.
#[derive(Debug)]
pub(crate) struct Socket(mio::net::TcpStream);

/// A full backlog is waited out until `deadline`.
pub(crate) fn open(endpoint: &Endpoint, deadline: Instant) -> io::Result<Socket> {
    let Endpoint::Tcp(address) = endpoint else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "there are no Unix sockets on Windows",
        ));
    };
    let tcp = open_tcp(*address, deadline)?;
    tcp.set_nonblocking(true)?;
    Ok(Socket(mio::net::TcpStream::from_std(tcp)))
}

impl Socket {
    /// What is there now. When nothing is, mio has the socket watched again.
    pub(crate) fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    /// What fits now.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }

    /// Waits for something to receive, for so long at most.
    #[allow(clippy::unused_self)] // as it is elsewhere
    pub(crate) fn wait(&self, time: Duration) -> io::Result<()> {
        thread::sleep(time.min(LOOK));
        Ok(())
    }
}

/// How often is looked for a greeting.
const LOOK: Duration = Duration::from_millis(1);

/// Sockets that are waited for together. Readiness is told once, and again when a read has found
/// nothing.
pub(crate) struct Watch {
    poll: Poll,
    events: Events,
    ready: Vec<usize>,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Watch> {
        Ok(Watch {
            poll: Poll::new()?,
            events: Events::with_capacity(BATCH),
            ready: Vec::with_capacity(BATCH),
        })
    }

    pub(crate) fn add(&self, socket: &mut Socket, index: usize) -> io::Result<()> {
        let registry = self.poll.registry();
        registry.register(&mut socket.0, Token(index), Interest::READABLE)
    }

    /// Waits until some are ready, for so long at most, and returns how many.
    pub(crate) fn wait(&mut self, time: Duration) -> io::Result<usize> {
        self.poll.poll(&mut self.events, Some(time))?;
        self.ready.clear();
        let tokens = self.events.iter().map(|event| event.token().0);
        self.ready.extend(tokens);
        Ok(self.ready.len())
    }

    /// The `at`-th of them: its index, and whether it must be read until nothing comes.
    pub(crate) fn ready(&self, at: usize) -> (usize, bool) {
        (self.ready[at], true)
    }
}

/// Two that are connected.
pub(crate) fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    ours.set_nodelay(true)?;
    loop {
        let (theirs, from) = listener.accept()?;
        // Somebody else may have come first.
        if from == ours.local_addr()? {
            theirs.set_nodelay(true)?;
            return Ok((ours, theirs));
        }
    }
}

pub(crate) fn connect_unix(_: &Path, _: Duration) -> io::Result<TcpStream> {
    Err(io::ErrorKind::Unsupported.into())
}

// ---- files ----

/// Past the page cache cannot be: what it asks of memory and lengths is another system's.
pub(crate) fn open_to_write(path: &Path, direct: bool) -> io::Result<File> {
    if direct {
        return Err(io::ErrorKind::Unsupported.into());
    }
    OpenOptions::new().write(true).open(path)
}

pub(crate) fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = file.seek_write(bytes, at)?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

// ---- affinity ----

/// A mask of affinity has room for this many.
pub const CPUS_MAX: usize = usize::BITS as usize;

/// The CPUs this process may run on, ascending.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    affinity::get_process_affinity().map_err(|error| io::Error::other(error.to_string()))
}

/// Binds this process, and every process that it starts from now on, to `cpus`, all below
/// [`CPUS_MAX`].
pub(crate) fn run_on(cpus: &[usize]) -> io::Result<()> {
    affinity::set_process_affinity(cpus).map_err(|error| io::Error::other(error.to_string()))
}

// ---- what the kernel knows of a process ----

/// Not known here.
pub(crate) fn size(_: u32) -> io::Result<Size> {
    Ok(Size::default())
}

/// Not known here.
pub(crate) fn cpu_time(_: u32) -> io::Result<Duration> {
    Ok(Duration::ZERO)
}

/// Not known here, so nobody is found to disturb.
pub(crate) fn busy_time(_: &[usize]) -> io::Result<Duration> {
    Ok(Duration::ZERO)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    ThreadTime::try_now().map_or(Duration::ZERO, |time| time.as_duration())
}

/// Not known here.
pub(crate) fn descriptors(_: u32) -> io::Result<usize> {
    Ok(0)
}

/// A process may have 16 million handles, and nobody lowers that.
pub fn raise_file_limit(_: usize) -> Result<()> {
    Ok(())
}

// ---- this process and its children ----

/// There is nothing to be set: how late a sleep ends is the system's.
pub(crate) fn wake_precisely() {}

/// A child gets no Ctrl-C of the console.
const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;

/// This program, to be started again.
pub(crate) fn this_program() -> io::Result<Command> {
    let mut program = Command::new(std::env::current_exe()?);
    program.creation_flags(CREATE_NEW_PROCESS_GROUP);
    Ok(program)
}

/// Nothing here asks for more.
pub(crate) fn is_root() -> bool {
    false
}

/// The system's name.
pub(crate) fn system() -> String {
    "Windows".into()
}
