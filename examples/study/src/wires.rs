//! The clients' ends of many connections, on one thread: sends statements, reads replies, and counts
//! what goes wrong. When a statement is sent, and what its reply is counted as, is the caller's.
//!
//! Each statement costs two system calls, one `send` and one `recv`; `epoll_wait` is shared by the
//! clients that are ready at once. A client is registered once, edge-triggered, and never touched
//! again: a reply makes an edge, and one `recv` that comes back shorter than its buffer has emptied
//! the socket. The one edge that can be missed this way, the end of the stream arriving together
//! with the last bytes, is flagged in the event, and then the socket is read to its end. Nothing is
//! allocated while statements go to and fro. (On Windows a socket is always read until nothing comes,
//! which has it watched again: three or four calls.)

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::os::{Socket, Watch, open};
use crate::reply::{Lost, ReplyReader};
use crate::script::{ANY_ROWS, Script};

/// Events taken from the kernel at once. More would let replies grow old in the batch.
pub(crate) const BATCH: usize = 512;

/// One `recv`'s worth. No reply of these workloads is near it, so a reply comes in one piece.
const INBOX: usize = 16 * 1024;

/// How long to wait before asking a full backlog again.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_micros(200);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// What went wrong, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors {
    /// Replies that said `ERR`.
    pub refused: u64,
    /// Replies that are no reply, have the wrong number of rows, or that nobody asked for.
    pub malformed: u64,
    /// Connections that ended or failed under a client. It stays away after that.
    pub lost: u64,
    /// Clients whose reply had not come when the time to drain was over. They stay away after that.
    pub stuck: u64,
    /// The first of them, in words.
    pub first: Option<String>,
}

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.refused + self.malformed + self.lost + self.stuck
    }

    /// Adds those of another run, which came later.
    pub fn add(&mut self, later: &Errors) {
        self.refused += later.refused;
        self.malformed += later.malformed;
        self.lost += later.lost;
        self.stuck += later.stuck;
        if self.first.is_none() {
            self.first.clone_from(&later.first);
        }
    }
}

/// Connected, greeted clients, numbered from 0.
pub(crate) struct Wires {
    watch: Watch,
    wires: Vec<Wire>,
    inbox: Box<[u8]>,
    /// Times are nanoseconds since this.
    origin: Instant,
    waiting: usize,
    gone: usize,
    /// Those since the caller last emptied it.
    pub(crate) errors: Errors,
    /// Lock waits that took too long, likewise.
    pub(crate) timeouts: u64,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: Socket,
    reply: ReplyReader,
    state: State,
    /// The `ROW` lines of a correct reply.
    pub(crate) expected: u32,
    /// When the last statement was sent.
    pub(crate) sent_at: u64,
    /// For the caller, too.
    pub(crate) script: Script,
    /// For the caller to count in, in a cache line that is touched anyway.
    pub(crate) completed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is owed either way.
    Idle,
    /// A reply is owed.
    Waiting,
    /// The connection is of no use any more.
    Gone,
}

impl fmt::Debug for Wires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wires")
            .field("wires", &self.wires.len())
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Wires {
    /// Connects `clients`, one after the other, and waits for every greeting, all of it `within`.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        clients: usize,
        within: Duration,
        rows_per_reply: u32,
    ) -> Result<Wires> {
        let deadline = Instant::now() + within;
        let failed = |done: usize, step: &str, error: io::Error| {
            Error::run(format!(
                "client {} of {clients} {step} {endpoint}: {error}",
                done + 1
            ))
        };
        let watch =
            Watch::new().map_err(|error| Error::run(format!("cannot create a poller: {error}")))?;
        let mut wires = Vec::with_capacity(clients);
        for done in 0..clients {
            let socket = open(endpoint, deadline)
                .map_err(|error| failed(done, "cannot connect to", error))?;
            wires.push(Wire {
                socket,
                reply: ReplyReader::default(),
                state: State::Idle,
                expected: rows_per_reply,
                sent_at: 0,
                script: Script::default(),
                completed: 0,
            });
        }
        // Only now: the server greets the first while the last is still connecting.
        for (index, wire) in wires.iter_mut().enumerate() {
            await_greeting(&wire.socket, deadline)
                .map_err(|error| failed(index, "was not greeted by", error))?;
            watch
                .add(&mut wire.socket, index)
                .map_err(|error| failed(index, "cannot watch", error))?;
        }
        Ok(Wires {
            watch,
            wires,
            inbox: vec![0; INBOX].into_boxed_slice(),
            origin: Instant::now(),
            waiting: 0,
            gone: 0,
            errors: Errors::default(),
            timeouts: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.wires.len()
    }

    /// The time on the clock of `sent_at`.
    pub(crate) fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    /// How many clients are owed a reply.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether no connection is of any use any more.
    pub(crate) fn all_are_gone(&self) -> bool {
        self.gone == self.wires.len()
    }

    pub(crate) fn state(&self, index: usize) -> State {
        self.wires[index].state
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Wire {
        &mut self.wires[index]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Wire> {
        self.wires.iter_mut()
    }

    /// Sends the next statement of an idle client. Nothing of this client is under way, so its send
    /// buffer is empty and takes a statement whole; a kernel that does not is treated as a lost
    /// connection rather than half a statement.
    pub(crate) fn send(&mut self, index: usize, line: &[u8], now: u64) {
        let wire = &mut self.wires[index];
        let sent = loop {
            match wire.socket.send(line) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => break other,
            }
        };
        wire.state = State::Waiting;
        wire.sent_at = now;
        self.waiting += 1;
        match sent {
            Ok(n) if n == line.len() => {}
            Ok(n) => self.lose(index, || {
                format!("only {n} bytes of a statement could be sent")
            }),
            Err(error) => self.lose(index, || format!("cannot send: {error}")),
        }
    }

    /// Waits for replies, no longer than `timeout`, and hands each to `answered`: whose it is, when
    /// it was read, and whether it is a correct one. An incorrect one has been counted. The client
    /// is then idle, and `answered` may send its next statement.
    pub(crate) fn turn(
        &mut self,
        timeout: u64,
        mut answered: impl FnMut(&mut Wires, usize, u64, bool),
    ) -> Result<()> {
        let ready = match self.watch.wait(Duration::from_nanos(timeout)) {
            Ok(ready) => ready,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(Error::run(format!("cannot wait for replies: {error}"))),
        };
        let mut inbox = std::mem::take(&mut self.inbox);
        for at in 0..ready {
            let (index, to_the_end) = self.watch.ready(at);
            self.on_ready(index, to_the_end, &mut inbox, &mut answered);
        }
        self.inbox = inbox;
        Ok(())
    }

    /// Who is still owed a reply has waited `within` for it, and is out of the game.
    pub(crate) fn give_up(&mut self, within: Duration) {
        for index in 0..self.wires.len() {
            let wire = &self.wires[index];
            if wire.state != State::Waiting {
                continue;
            }
            let part = if wire.reply.is_inside() {
                "half a"
            } else {
                "no"
            };
            self.leave(index);
            self.errors.stuck += 1;
            self.errors.first.get_or_insert_with(|| {
                format!("client {index} got {part} reply within {within:?} of the end")
            });
        }
    }

    /// Reads what there is for one client.
    fn on_ready(
        &mut self,
        index: usize,
        to_the_end: bool,
        inbox: &mut [u8],
        answered: &mut impl FnMut(&mut Wires, usize, u64, bool),
    ) {
        while self.wires[index].state != State::Gone {
            let n = match self.wires[index].socket.recv(inbox) {
                Ok(n) => n,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        let what = || format!("client {index} cannot receive: {error}");
                        return self.lose(index, what);
                    }
                },
            };
            if n == 0 {
                return self.lose(index, || {
                    format!("client {index}: the server closed the connection")
                });
            }
            let now = self.now();
            if let Some(correct) = self.take(index, &inbox[..n]) {
                answered(self, index, now, correct);
            }
            if n < inbox.len() && !to_the_end {
                return;
            }
        }
    }

    /// Takes a piece of a reply; whether it completed one, and whether that was correct.
    fn take(&mut self, index: usize, piece: &[u8]) -> Option<bool> {
        let wire = &mut self.wires[index];
        if wire.state != State::Waiting {
            return self.garble(index, "bytes that nobody asked for", piece);
        }
        let (reply, used) = match wire.reply.feed(piece) {
            Ok(complete) => complete?,
            Err(_) => return self.garble(index, "a malformed reply", piece),
        };
        if used < piece.len() {
            return self.garble(index, "more than one reply", piece);
        }
        wire.state = State::Idle;
        self.waiting -= 1;
        let expected = wire.expected;
        if let Some(lost) = reply.lost {
            self.timeouts += u64::from(lost == Lost::TimedOut);
            return Some(false);
        }
        if !reply.ok {
            self.errors.refused += 1;
            self.errors
                .first
                .get_or_insert_with(|| format!("the server said {}", excerpt(piece)));
            return Some(false);
        }
        if expected != ANY_ROWS && reply.rows != expected {
            self.errors.malformed += 1;
            self.errors.first.get_or_insert_with(|| {
                format!("a reply with {} rows: {}", reply.rows, excerpt(piece))
            });
            return Some(false);
        }
        Some(true)
    }

    /// The stream makes no sense any more: whatever comes next could be taken for a reply to
    /// something else.
    fn garble(&mut self, index: usize, what: &str, piece: &[u8]) -> Option<bool> {
        self.leave(index);
        self.errors.malformed += 1;
        self.errors
            .first
            .get_or_insert_with(|| format!("{what}: {}", excerpt(piece)));
        None
    }

    fn lose(&mut self, index: usize, what: impl FnOnce() -> String) {
        self.leave(index);
        self.errors.lost += 1;
        self.errors.first.get_or_insert_with(what);
    }

    /// Out of the game. The socket stays open until the end: closing it would be a new event for
    /// the server.
    fn leave(&mut self, index: usize) {
        let wire = &mut self.wires[index];
        if wire.state == State::Waiting {
            self.waiting -= 1;
        }
        self.gone += usize::from(wire.state != State::Gone);
        wire.state = State::Gone;
    }
}

/// Up to 120 bytes of what the server sent, fit to be printed.
fn excerpt(piece: &[u8]) -> String {
    piece[..piece.len().min(120)].escape_ascii().to_string()
}

/// Half a millennium fits.
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// Connects one client. A full backlog is waited out until `deadline`: with thousands of clients it
/// is no failure.
pub(crate) fn open_tcp(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            // All local ports are still in TIME_WAIT from earlier cells; the kernel frees one after
            // a second.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                thread::sleep(BACKLOG_PAUSE)
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits for the one line that opens a conversation: `READY\t<id>\t<version>`.
fn await_greeting(socket: &Socket, deadline: Instant) -> io::Result<()> {
    let mut line = [0; 256];
    let mut have = 0;
    loop {
        match socket.recv(&mut line[have..]) {
            Ok(0) => {
                return Err(io::Error::other(format!(
                    "closed after '{}'",
                    excerpt(&line[..have])
                )));
            }
            Ok(n) => have += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "no greeting in time",
                    ));
                }
                socket.wait(left)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        match line[..have].split_last() {
            Some((b'\n', text)) if text.starts_with(b"READY\t") => return Ok(()),
            Some((b'\n', _)) => {
                return Err(io::Error::other(format!(
                    "it said '{}'",
                    excerpt(&line[..have])
                )));
            }
            _ if have == line.len() => return Err(io::Error::other("a greeting without end")),
            _ => {}
        }
    }
}
