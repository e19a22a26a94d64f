//! The load generator: any number of closed-loop clients on one thread.
//!
//! A closed-loop client sends a statement, waits for the reply, and sends the next. Each of them
//! costs two system calls a statement, one `recv` and one `send`; `epoll_wait` is shared by the
//! clients that are ready at once. A client is registered once, edge-triggered, and never touched
//! again: a reply makes an edge, and one `recv` that comes back shorter than its buffer has emptied
//! the socket. The one edge that can be missed this way, the end of the stream arriving together
//! with the last bytes, is flagged in the event, and then the socket is read to its end. Nothing is
//! allocated while a load runs.
//!
//! What is counted, exactly:
//! * throughput: correct replies read while the window was open, over the time that it was open;
//! * latency: of every statement *sent* while the window was open, however late its reply, so that
//!   the slowest are not cut off by the end. It ends when the client gets round to the reply: a
//!   busy client reports too much, never too little, and its CPU share shows it;
//! * errors: `ERR` replies, replies that are malformed or have the wrong number of rows,
//!   connections that end, and clients whose reply is still missing when the time to drain is over.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};

use crate::error::{Error, Result};
use crate::plan::Workload;
use crate::process::thread_cpu_time;
use crate::reply::ReplyReader;
use crate::request::Requests;
use crate::stats::jain;

/// Events taken from the kernel at once. More would let replies grow old in the batch.
const BATCH: usize = 512;

/// One `recv`'s worth. No reply of these workloads is near it, so a reply comes in one piece.
const INBOX: usize = 16 * 1024;

/// How long to wait before asking a full backlog again.
const BACKLOG_PAUSE: Duration = Duration::from_micros(200);

/// The longest latency that is told from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(600);

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

/// A load to be put on a server.
#[derive(Debug, Clone)]
pub struct Load {
    /// Which server.
    pub endpoint: Endpoint,
    /// What to send.
    pub workload: Workload,
    /// The ids go from 1 to this.
    pub rows: u64,
    /// How many clients.
    pub clients: usize,
    /// How long all of them together may take to connect and be greeted.
    pub connect_within: Duration,
    /// How long the last replies may take after the load has ended. What is missing then is stuck.
    pub drain_within: Duration,
}

impl Load {
    /// A load with the usual patience: 20 seconds to connect, 10 to drain.
    pub fn new(endpoint: Endpoint, workload: Workload, rows: u64, clients: usize) -> Load {
        let (connect_within, drain_within) = (Duration::from_secs(20), Duration::from_secs(10));
        Load {
            endpoint,
            workload,
            rows,
            clients,
            connect_within,
            drain_within,
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

/// What one run of a load measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// How long the window was open.
    pub window: Duration,
    /// Correct replies in it.
    pub completed: u64,
    /// Latencies, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// From the first statement, warm-up included, to the last reply.
    pub errors: Errors,
    /// CPU time of the load generator's thread while the window was open.
    pub client_cpu: Duration,
    /// Jain's fairness index over what each client completed in the window.
    pub jain: f64,
}

impl Measured {
    /// Correct replies a second.
    pub fn qps(&self) -> f64 {
        self.per_second(self.completed as f64)
    }

    /// The part of the window that the load generator was busy.
    pub fn client_busy(&self) -> f64 {
        self.per_second(self.client_cpu.as_secs_f64())
    }

    /// 0 for a window that closed as it opened, because no client was left.
    fn per_second(&self, amount: f64) -> f64 {
        let seconds = self.window.as_secs_f64();
        if seconds > 0.0 { amount / seconds } else { 0.0 }
    }
}

/// A moment of a run at which the caller may read a meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The warm-up is over, the window opens.
    Opens,
    /// The load is on, and some 20 ms have passed since the last look.
    Passes,
    /// The window has closed; the last replies are still to come.
    Closes,
}

/// How far [`Moment::Passes`] are apart. A look at `/proc` costs some 20 us of the client's CPU.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Connected, greeted clients. They can carry one load after the other.
pub struct Clients {
    epoll: OwnedFd,
    clients: Vec<Client>,
    events: Vec<epoll::Event>,
    inbox: Box<[u8]>,
    requests: Requests,
    rows_per_reply: u32,
    drain_within: Duration,
    /// Times are nanoseconds since this.
    origin: Instant,
    tally: Tally,
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("clients", &self.clients.len())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    reply: ReplyReader,
    state: State,
    sent_at: u64,
    completed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is owed either way.
    Idle,
    /// A reply is owed.
    Waiting,
    /// The connection is of no use any more.
    Gone,
}

/// The counters of one run.
#[derive(Debug)]
struct Tally {
    /// Whether a reply is followed by the next statement.
    sending: bool,
    /// Whether replies count.
    open: bool,
    /// Latencies of statements sent from here on are recorded.
    opened_at: u64,
    /// ... and before this.
    closed_at: u64,
    completed: u64,
    waiting: usize,
    latencies: Histogram<u64>,
    errors: Errors,
}

impl Clients {
    /// Connects all of them, one after the other, and waits for every greeting.
    pub fn connect(load: &Load) -> Result<Clients> {
        let deadline = Instant::now() + load.connect_within;
        let failed = |done: usize, step: &str, error: io::Error| {
            Error::run(format!(
                "client {} of {} {step} {}: {error}",
                done + 1,
                load.clients,
                load.endpoint
            ))
        };
        let latencies =
            Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, 3).map_err(Error::run)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::run(format!("cannot create an epoll instance: {error}")))?;
        let mut clients = Vec::with_capacity(load.clients);
        for done in 0..load.clients {
            let socket = open(&load.endpoint, deadline)
                .map_err(|error| failed(done, "cannot connect to", error))?;
            clients.push(Client {
                socket,
                reply: ReplyReader::default(),
                state: State::Idle,
                sent_at: 0,
                completed: 0,
            });
        }
        // Only now: the server greets the first while the last is still connecting.
        for (index, client) in clients.iter().enumerate() {
            await_greeting(&client.socket, deadline)
                .map_err(|error| failed(index, "was not greeted by", error))?;
            let interest = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            epoll::add(
                &epoll,
                &client.socket,
                epoll::EventData::new_u64(index as u64),
                interest,
            )
            .map_err(|error| failed(index, "cannot watch", error.into()))?;
        }
        Ok(Clients {
            epoll,
            clients,
            events: Vec::with_capacity(BATCH),
            inbox: vec![0; INBOX].into_boxed_slice(),
            requests: Requests::new(load.workload, load.rows, load.clients as u64),
            rows_per_reply: load.workload.rows_per_reply(),
            drain_within: load.drain_within,
            origin: Instant::now(),
            tally: Tally::new(latencies),
        })
    }

    /// Puts the load on for `warmup`, then measures it for `measure`, then waits for the last
    /// replies. The caller looks at its meters from in here rather than from another thread: alone
    /// in its process, a thread makes cheaper system calls on its descriptors.
    pub fn run_for(
        &mut self,
        warmup: Duration,
        measure: Duration,
        mut look: impl FnMut(Moment),
    ) -> Result<Measured> {
        self.begin();
        let opens_at = self.now() + nanos(warmup);
        self.carry_until(opens_at, &mut look)?;
        look(Moment::Opens);
        let cpu = thread_cpu_time();
        self.open_window();
        self.carry_until(self.tally.opened_at + nanos(measure), &mut look)?;
        self.close_window();
        let client_cpu = thread_cpu_time().saturating_sub(cpu);
        look(Moment::Closes);
        self.drain()?;
        Ok(Measured {
            window: Duration::from_nanos(self.tally.closed_at - self.tally.opened_at),
            completed: self.tally.completed,
            latencies: self.tally.latencies.clone(),
            errors: self.tally.errors.clone(),
            client_cpu,
            jain: jain(self.clients.iter().map(|client| client.completed)),
        })
    }

    fn carry_until(&mut self, end: u64, look: &mut impl FnMut(Moment)) -> Result<()> {
        let mut look_at = 0;
        let done = |clients: &Clients, now| {
            if now >= look_at {
                look(Moment::Passes);
                look_at = now + nanos(LOOK_EVERY);
            }
            now >= end || clients.tally.waiting == 0
        };
        self.turn_until(done, end)
    }

    /// Puts the load on until `count` statements have been answered and returns how long `count`
    /// took: the end is noticed between batches, so some more may have been answered, and their
    /// share of the time is taken off. An error of any client fails it: a time for less than what
    /// was asked is no time.
    pub fn run_count(&mut self, count: u64, within: Duration) -> Result<Duration> {
        self.begin();
        self.open_window();
        let gives_up_at = self.tally.opened_at + nanos(within);
        let done = |clients: &Clients, now| {
            clients.tally.completed >= count || now >= gives_up_at || clients.tally.waiting == 0
        };
        self.turn_until(done, gives_up_at)?;
        self.close_window();
        self.drain()?;
        let Tally {
            completed,
            errors,
            opened_at,
            closed_at,
            ..
        } = &self.tally;
        match &errors.first {
            Some(first) => Err(Error::run(format!(
                "{} errors, the first: {first}",
                errors.total()
            ))),
            None if *completed < count => Err(Error::run(format!(
                "{completed} of {count} statements answered in {within:?}"
            ))),
            None => {
                let share = count as f64 / (*completed).max(1) as f64;
                Ok(Duration::from_nanos(closed_at - opened_at).mul_f64(share))
            }
        }
    }

    fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    fn begin(&mut self) {
        self.tally.reset();
        let now = self.now();
        for client in &mut self.clients {
            client.completed = 0;
            if client.state == State::Idle {
                client.send_next(&mut self.requests, now, &mut self.tally);
            }
        }
    }

    fn open_window(&mut self) {
        for client in &mut self.clients {
            client.completed = 0;
        }
        self.tally.opened_at = self.now();
        self.tally.open = true;
    }

    fn close_window(&mut self) {
        self.tally.closed_at = self.now();
        self.tally.open = false;
        self.tally.sending = false;
    }

    /// Waits for the replies that are still owed; who gets none in time is stuck.
    fn drain(&mut self) -> Result<()> {
        let gives_up_at = self.now() + nanos(self.drain_within);
        self.turn_until(
            |clients, now| now >= gives_up_at || clients.tally.waiting == 0,
            gives_up_at,
        )?;
        for (index, client) in self.clients.iter_mut().enumerate() {
            if client.state == State::Waiting {
                client.leave(&mut self.tally);
                self.tally.errors.stuck += 1;
                self.tally.errors.first.get_or_insert_with(|| {
                    let part = if client.reply.is_inside() {
                        "half a"
                    } else {
                        "no"
                    };
                    format!(
                        "client {index} got {part} reply within {:?} of the end",
                        self.drain_within
                    )
                });
            }
        }
        Ok(())
    }

    /// Handles events until `done`, which is asked between batches. Sleeps no longer than until
    /// `wake_at`.
    fn turn_until(
        &mut self,
        mut done: impl FnMut(&Clients, u64) -> bool,
        wake_at: u64,
    ) -> Result<()> {
        loop {
            let now = self.now();
            if done(self, now) {
                return Ok(());
            }
            self.turn(wake_at.saturating_sub(now))?;
        }
    }

    /// One wait and the events it brings.
    fn turn(&mut self, timeout: u64) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let timeout = timespec(Duration::from_nanos(timeout));
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::run(format!("cannot wait for replies: {error}"))),
        }
        for event in &events {
            self.on_ready(event.data.u64() as usize, event.flags);
        }
        self.events = events;
        Ok(())
    }

    /// Reads what there is for one client and lets it send its next statement.
    fn on_ready(&mut self, index: usize, flags: epoll::EventFlags) {
        let over = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let to_the_end = flags.intersects(over);
        let Clients {
            clients,
            inbox,
            requests,
            rows_per_reply,
            origin,
            tally,
            ..
        } = self;
        let client = &mut clients[index];
        while client.state != State::Gone {
            let n = match recv(&client.socket, &mut inbox[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => n,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    return client
                        .lose(tally, || format!("client {index} cannot receive: {error}"));
                }
            };
            if n == 0 {
                return client.lose(tally, || {
                    format!("client {index}: the server closed the connection")
                });
            }
            let now = nanos(origin.elapsed());
            client.take(&inbox[..n], now, *rows_per_reply, tally);
            if client.state == State::Idle && tally.sending {
                client.send_next(requests, now, tally);
            }
            if n < inbox.len() && !to_the_end {
                return;
            }
        }
    }
}

impl Client {
    /// Sends the next statement. Nothing of this client is under way, so its send buffer is empty
    /// and takes a statement whole; a kernel that does not is treated as a lost connection rather
    /// than half a statement.
    fn send_next(&mut self, requests: &mut Requests, now: u64, tally: &mut Tally) {
        let line = requests.next_line();
        let sent = loop {
            match send(
                &self.socket,
                line,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Err(Errno::INTR) => continue,
                other => break other,
            }
        };
        self.state = State::Waiting;
        self.sent_at = now;
        tally.waiting += 1;
        match sent {
            Ok(n) if n == line.len() => {}
            Ok(n) => self.lose(tally, || {
                format!("only {n} bytes of a statement could be sent")
            }),
            Err(error) => self.lose(tally, || format!("cannot send: {error}")),
        }
    }

    /// Takes a piece of a reply.
    fn take(&mut self, piece: &[u8], now: u64, rows_per_reply: u32, tally: &mut Tally) {
        if self.state != State::Waiting {
            return self.garble(tally, "bytes that nobody asked for", piece);
        }
        let (reply, used) = match self.reply.feed(piece) {
            Ok(None) => return,
            Ok(Some(complete)) => complete,
            Err(_) => return self.garble(tally, "a malformed reply", piece),
        };
        if used < piece.len() {
            return self.garble(tally, "more than one reply", piece);
        }
        self.state = State::Idle;
        tally.waiting -= 1;
        if !reply.ok {
            tally.errors.refused += 1;
            tally
                .errors
                .first
                .get_or_insert_with(|| format!("the server said {}", excerpt(piece)));
        } else if reply.rows != rows_per_reply {
            tally.errors.malformed += 1;
            tally.errors.first.get_or_insert_with(|| {
                format!("a reply with {} rows: {}", reply.rows, excerpt(piece))
            });
        } else {
            if (tally.opened_at..tally.closed_at).contains(&self.sent_at) {
                tally.latencies.saturating_record(now - self.sent_at);
            }
            if tally.open {
                tally.completed += 1;
                self.completed += 1;
            }
        }
    }

    /// The stream makes no sense any more: whatever comes next could be taken for a reply to
    /// something else.
    fn garble(&mut self, tally: &mut Tally, what: &str, piece: &[u8]) {
        self.leave(tally);
        tally.errors.malformed += 1;
        tally
            .errors
            .first
            .get_or_insert_with(|| format!("{what}: {}", excerpt(piece)));
    }

    fn lose(&mut self, tally: &mut Tally, what: impl FnOnce() -> String) {
        self.leave(tally);
        tally.errors.lost += 1;
        tally.errors.first.get_or_insert_with(what);
    }

    /// Out of the game. The socket stays open until the end: closing it would be a new event for
    /// the server.
    fn leave(&mut self, tally: &mut Tally) {
        if self.state == State::Waiting {
            tally.waiting -= 1;
        }
        self.state = State::Gone;
    }
}

impl Tally {
    fn new(latencies: Histogram<u64>) -> Tally {
        let mut tally = Tally {
            sending: false,
            open: false,
            opened_at: 0,
            closed_at: 0,
            completed: 0,
            waiting: 0,
            latencies,
            errors: Errors::default(),
        };
        tally.reset();
        tally
    }

    /// For a new run: sending, with a window that is still to open.
    fn reset(&mut self) {
        self.sending = true;
        self.open = false;
        self.opened_at = u64::MAX;
        self.closed_at = u64::MAX;
        self.completed = 0;
        self.waiting = 0;
        self.latencies.reset();
        self.errors = Errors::default();
    }
}

/// Up to 120 bytes of what the server sent, fit to be printed.
fn excerpt(piece: &[u8]) -> String {
    piece[..piece.len().min(120)].escape_ascii().to_string()
}

/// Half a millennium fits.
fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Connects one client. A full backlog is waited out until `deadline`: with thousands of clients it
/// is no failure.
fn open(endpoint: &Endpoint, deadline: Instant) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Unix(path) => open_unix(path, deadline),
        Endpoint::Tcp(address) => open_tcp(*address, deadline),
    }
}

/// Non-blocking from the start: a blocking connect to a full Unix backlog cannot be given a
/// deadline.
fn open_unix(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                thread::sleep(BACKLOG_PAUSE)
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn open_tcp(address: SocketAddr, deadline: Instant) -> io::Result<OwnedFd> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream.into());
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
fn await_greeting(socket: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let mut line = [0; 256];
    let mut have = 0;
    loop {
        match recv(socket, &mut line[have..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(io::Error::other(format!(
                    "closed after '{}'",
                    excerpt(&line[..have])
                )));
            }
            Ok((n, _)) => have += n,
            Err(Errno::AGAIN) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "no greeting in time",
                    ));
                }
                match poll(
                    &mut [PollFd::new(socket, PollFlags::IN)],
                    Some(&timespec(left)),
                ) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
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
