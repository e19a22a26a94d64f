//! Hours of trouble in minutes, with an exact account: clients of every bad habit, under one scheduler
//! and then the other.
//!
//! `cargo run --release --example soak -- [--seconds N] [--seed S] [--scheduler pool|per-connection]`
//!
//! What has to be true, or the exit code is 1:
//!
//! * Each command that was sent whole got one reply, in its turn, or its connection was closed, and then
//!   for one of the reasons that there are here.
//! * In the server each command that began ended, each session that was opened was closed, each connection
//!   that was accepted is counted under one reason.
//! * At the end there are no connections, and as many threads and descriptors as before.
//!
//! The seed fixes what each client does, in which order; not how they meet.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{
    CloseReason, Conn, ConnId, Handler, Limits, Listen, LocalAddr, Next, PoolConfig, Resume,
    Scheduler, Server, ServerHandle, ThreadPerConnectionConfig, Woken,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longer than anything takes here: who waits for so long has been forgotten.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each kind of trouble is made so often at least, however long that takes.
const AT_LEAST: u64 = 100;

const CLIENTS: u64 = 16;

// ---- the server ----

/// A line is a command: a word, a token that comes back, a number.
#[derive(Default)]
struct Soak {
    begun: AtomicU64,
    ended: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    reasons: Mutex<BTreeMap<&'static str, u64>>,
    /// Of those that have parked; the oldest is resumed by whoever comes by.
    parked: Mutex<Vec<Resume>>,
}

struct Session {
    /// What the command that parks, streams or runs again replies, when it is done.
    token: String,
    left: u64,
}

/// A command that has begun, until it has ended: by whatever.
struct Running<'a>(&'a Soak);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}

const PIECE: [u8; 4096] = [b'.'; 4096];

impl Soak {
    fn run(&self, session: &mut Session, conn: &mut Conn, line: &str) -> io::Result<Next> {
        self.begun.fetch_add(1, Relaxed);
        let _running = Running(self);
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (what, token, number) = (word(), word().to_owned(), word());
        let number: u64 = number.parse().map_err(io::Error::other)?;
        let time = Duration::from_micros(number);
        match what {
            "ECHO" => {}
            "BIG" => {
                for _ in 0..number {
                    conn.write_all(&PIECE)?;
                }
                writeln!(conn)?;
            }
            "BURN" => {
                let begun = Instant::now();
                while begun.elapsed() < time && !conn.is_cancelled() {
                    std::hint::spin_loop();
                }
            }
            "WAIT" => {
                let (wake, woken) = std::sync::mpsc::channel();
                let _scope = conn.on_cancel(move || _ = wake.send(()));
                wait::during(WaitKind::UserLock, || _ = woken.recv_timeout(time));
            }
            "BLOCK" => thread::sleep(time),
            "AGAIN" => {
                session.token = token;
                session.left = number;
                return Ok(Next::again());
            }
            "STREAM" => {
                session.token = token;
                session.left = number;
                conn.write_all(&PIECE)?;
                return Ok(Next::flush());
            }
            "SLEEP" => {
                session.token = token;
                return Ok(Next::park().until(Instant::now() + time));
            }
            "PARK" => {
                session.token = token;
                let mut parked = self.parked.lock().expect("nobody panics here");
                parked.push(conn.resume());
                if parked.len() > 3 {
                    parked.remove(0).resume();
                }
                // Or else by the time.
                return Ok(Next::park().until(Instant::now() + time));
            }
            "DETACH" => {
                session.token = token;
                return Ok(Next::detach());
            }
            "PANIC" => panic!("soak: told to"),
            "SUICIDE" => _ = conn.handle().kill(),
            "CLOSE" => {
                writeln!(conn, "{token}")?;
                return Ok(Next::close());
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        writeln!(conn, "{token}")?;
        Ok(Next::input())
    }
}

impl Handler for Soak {
    type Session = Session;

    fn open(&self, conn: &mut Conn) -> io::Result<Session> {
        conn.logged_in()?;
        writeln!(conn, "{}", conn.id())?;
        self.opened.fetch_add(1, Relaxed);
        Ok(Session {
            token: String::new(),
            left: 0,
        })
    }

    fn command(&self, session: &mut Session, conn: &mut Conn) -> io::Result<Next> {
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        let line = String::from_utf8_lossy(&conn.buffered()[..end]).into_owned();
        conn.consume(end + 1);
        self.run(session, conn, &line)
    }

    fn woken(&self, session: &mut Session, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        session.left = session.left.saturating_sub(1);
        if session.left > 0 && !conn.is_cancelled() {
            match why {
                Woken::Again => return Ok(Next::again()),
                Woken::Flushed => {
                    conn.write_all(&PIECE)?;
                    return Ok(Next::flush());
                }
                _ => {}
            }
        }
        if why == Woken::Flushed {
            writeln!(conn)?;
        }
        session.left = 0;
        writeln!(conn, "{}", session.token)?;
        Ok(Next::input())
    }

    fn detached(&self, session: &mut Session, conn: &mut Conn) -> io::Result<()> {
        writeln!(conn, "{}", session.token)?;
        conn.flush()?;
        // Until the client has said all.
        while conn.read(&mut [0; 64])? > 0 {}
        Ok(())
    }

    fn close(&self, _: Session, why: CloseReason) {
        self.closed.fetch_add(1, Relaxed);
        let mut reasons = self.reasons.lock().expect("nobody panics here");
        *reasons.entry(why.name()).or_default() += 1;
    }
}

// ---- the clients ----

/// Steele, Lea and Flood's generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What is left at the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server has closed, or reset.
    Closed,
    /// We have.
    Left,
}

struct Client {
    wire: Wire,
    id: ConnId,
    /// Tokens of commands sent whole, not answered yet.
    owed: std::collections::VecDeque<String>,
    input: Vec<u8>,
    token: u64,
    books: Arc<Books>,
}

/// What the clients count.
#[derive(Default)]
struct Books {
    did: Mutex<BTreeMap<&'static str, u64>>,
    connected: AtomicU64,
    sent: AtomicU64,
    replied: AtomicU64,
    /// Commands whose connection was closed before they were answered.
    closed: AtomicU64,
    /// Those whose client left.
    left: AtomicU64,
    next: AtomicU64,
}

impl Books {
    fn did(&self, what: &'static str) -> u64 {
        let mut did = self.did.lock().expect("nobody panics here");
        let n = did.entry(what).or_default();
        *n += 1;
        *n
    }
}

impl Client {
    fn connect(at: &LocalAddr, books: &Arc<Books>) -> Result<Self, Failure> {
        let wire = match at {
            LocalAddr::Tcp(at) => Wire::Tcp(TcpStream::connect(at)?),
            LocalAddr::Unix(at) => Wire::Unix(UnixStream::connect(at)?),
            at => return Err(format!("cannot connect to {at}").into()),
        };
        match &wire {
            Wire::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_write_timeout(Some(PATIENCE))?;
            }
            Wire::Unix(s) => {
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_write_timeout(Some(PATIENCE))?;
            }
        }
        books.connected.fetch_add(1, Relaxed);
        let mut client = Self {
            wire,
            id: ConnId::from(0),
            owed: Default::default(),
            input: Vec::new(),
            token: books.next.fetch_add(1_000_000, Relaxed),
            books: Arc::clone(books),
        };
        let greeting = client.line(4096)?.ok_or("closed before the greeting")?;
        client.id = ConnId::from(greeting.parse::<u64>()?);
        Ok(client)
    }

    /// A command, to be sent.
    fn command(&mut self, what: &str, number: u64) -> String {
        self.token += 1;
        let token = format!("t{}", self.token);
        let line = format!("{what} {token} {number}\n");
        self.owed.push_back(token);
        self.books.sent.fetch_add(1, Relaxed);
        line
    }

    /// A write that fails because the server has closed is none that fails: a read will tell.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = match &mut self.wire {
            Wire::Tcp(s) => s.write_all(bytes),
            Wire::Unix(s) => s.write_all(bytes),
        };
        match written {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                ) =>
            {
                Ok(())
            }
            written => written,
        }
    }

    fn send(&mut self, what: &str, number: u64) -> io::Result<()> {
        let line = self.command(what, number);
        self.write(line.as_bytes())
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.wire {
            Wire::Tcp(s) => s.read(into),
            Wire::Unix(s) => s.read(into),
        }
    }

    /// The next line; `None`: the server has closed. Reads `size` at a time.
    fn line(&mut self, size: usize) -> Result<Option<String>, Failure> {
        let mut piece = [0; 4096];
        loop {
            if let Some(end) = self.input.iter().position(|b| *b == b'\n') {
                let line = String::from_utf8_lossy(&self.input[..end]).into_owned();
                self.input.drain(..=end);
                return Ok(Some(line));
            }
            match self.read(&mut piece[..size]) {
                Ok(0) => return Ok(None),
                Ok(n) => {
                    // A reply of dots is not kept.
                    let kept = piece[..n].iter().filter(|b| **b != b'.');
                    self.input.extend(kept);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return Ok(None),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        let who = (self.id, &self.owed);
                        return Err(format!("forgotten for {PATIENCE:?}: {who:?}").into());
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Reads until so many replies are owed, or the server has closed.
    fn settle(&mut self, left: usize, size: usize) -> Result<Option<End>, Failure> {
        while self.owed.len() > left {
            let Some(line) = self.line(size)? else {
                return Ok(Some(End::Closed));
            };
            if line.is_empty() {
                continue; // the end of the dots
            }
            match self.owed.pop_front() {
                Some(token) if token == line => self.books.replied.fetch_add(1, Relaxed),
                token => return Err(format!("{line:?} is the reply to {token:?}").into()),
            };
        }
        Ok(None)
    }

    /// The end of the connection, and of the account of it.
    fn end(self, end: End) {
        let of = match end {
            End::Closed => &self.books.closed,
            End::Left => &self.books.left,
        };
        of.fetch_add(self.owed.len() as u64, Relaxed);
    }

    /// Whatever is owed is answered, or the server closes.
    fn finish(mut self) -> Result<(), Failure> {
        let end = self.settle(0, 4096)?;
        self.end(end.unwrap_or(End::Left));
        Ok(())
    }

    /// As `finish`, but the server must close.
    fn must_be_closed(mut self) -> Result<(), Failure> {
        let end = match self.settle(0, 4096)? {
            Some(end) => end,
            None => match self.line(4096)? {
                None => End::Closed,
                Some(line) => return Err(format!("{line:?}, and nobody had asked").into()),
            },
        };
        self.end(end);
        Ok(())
    }

    fn reset(self) -> Result<(), Failure> {
        if let Wire::Tcp(tcp) = &self.wire {
            socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO))?;
        }
        self.end(End::Left);
        Ok(())
    }
}

/// What a client does with a connection.
const TROUBLES: [&str; 17] = [
    "talk",
    "hang up",
    "reset",
    "slow reader",
    "slow writer",
    "half a command",
    "pipeline",
    "kill",
    "kill a command",
    "panic",
    "park",
    "sleep",
    "again",
    "stream",
    "detach",
    "limits",
    "close",
];

fn trouble(
    what: &'static str,
    mut client: Client,
    random: &mut Random,
    server: &ServerHandle,
) -> Result<(), Failure> {
    match what {
        "talk" => {
            for _ in 0..random.below(8) {
                let word = ["ECHO", "BURN", "WAIT", "BLOCK"][random.below(4) as usize];
                client.send(word, random.below(2000))?;
                client.settle(0, 4096)?;
            }
            client.finish()
        }
        "hang up" => {
            client.send("WAIT", random.below(3000))?;
            client.send("BIG", random.below(64))?;
            client.end(End::Left);
            Ok(())
        }
        "reset" => {
            client.send("BIG", 1 + random.below(256))?;
            client.send("ECHO", 0)?;
            client.reset()
        }
        "slow reader" => {
            client.send("BIG", 256 + random.below(256))?;
            client.send("ECHO", 0)?;
            thread::sleep(Duration::from_millis(random.below(20)));
            let end = client.settle(0, 512)?;
            client.end(end.unwrap_or(End::Left));
            Ok(())
        }
        "slow writer" => {
            let line = client.command("ECHO", 0);
            for byte in line.as_bytes() {
                client.write(&[*byte])?;
                if random.below(4) == 0 {
                    thread::sleep(Duration::from_micros(random.below(500)));
                }
            }
            client.finish()
        }
        "half a command" => {
            client.send("ECHO", 0)?;
            client.write(b"ECHO half")?;
            client.settle(0, 4096)?;
            if random.below(50) == 0 {
                // The server waits for the rest, and not for ever.
                return client.must_be_closed();
            }
            client.end(End::Left);
            Ok(())
        }
        "pipeline" => {
            let n = 2 + random.below(60);
            let lines: String = (0..n)
                .map(|_| {
                    let word = ["ECHO", "BURN", "BIG", "AGAIN"][random.below(4) as usize];
                    client.command(word, 1 + random.below(4))
                })
                .collect();
            let cut = random.below(lines.len() as u64) as usize;
            client.write(&lines.as_bytes()[..cut])?;
            client.write(&lines.as_bytes()[cut..])?;
            client.finish()
        }
        "kill" => {
            let word =
                ["ECHO", "WAIT", "BURN", "SLEEP", "STREAM", "SUICIDE"][random.below(6) as usize];
            client.send(word, 1 + random.below(3000))?;
            client.send("ECHO", 0)?;
            thread::sleep(Duration::from_micros(random.below(1500)));
            if !server.kill(client.id) && word != "SUICIDE" {
                return Err("there is nobody to kill".into());
            }
            client.must_be_closed()
        }
        "kill a command" => {
            let word = ["WAIT", "BURN", "SLEEP", "PARK"][random.below(4) as usize];
            client.send(word, 1_000_000)?;
            thread::sleep(Duration::from_micros(random.below(1500)));
            let begun = Instant::now();
            // By then it is over, and one that parked may have been resumed before.
            let mut killed = false;
            while !killed && begun.elapsed() < Duration::from_secs(2) {
                let conn = server.find(client.id).ok_or("it is not there")?;
                killed = conn
                    .command()
                    .is_some_and(|number| conn.kill_command(number));
                thread::sleep(Duration::from_micros(100));
            }
            client.books.did(if killed { "(hit)" } else { "(missed)" });
            client.send("ECHO", 0)?;
            client.settle(0, 4096)?;
            client.finish()
        }
        "panic" => {
            client.send("ECHO", 0)?;
            client.send("PANIC", 0)?;
            client.send("ECHO", 0)?;
            client.must_be_closed()
        }
        "park" => {
            client.send("PARK", 20_000 + random.below(20_000))?;
            client.send("ECHO", 0)?;
            client.finish()
        }
        "sleep" => {
            client.send("SLEEP", random.below(5000))?;
            client.finish()
        }
        "again" => {
            client.send("AGAIN", 1 + random.below(20))?;
            client.finish()
        }
        "stream" => {
            client.send("STREAM", 1 + random.below(200))?;
            client.send("ECHO", 0)?;
            client.finish()
        }
        "detach" => {
            client.send("DETACH", 0)?;
            client.settle(0, 4096)?;
            if random.below(2) == 0 {
                server.kill(client.id);
            } else {
                match &client.wire {
                    Wire::Tcp(s) => s.shutdown(Shutdown::Write)?,
                    Wire::Unix(s) => s.shutdown(Shutdown::Write)?,
                }
            }
            client.must_be_closed()
        }
        "limits" => {
            let (mut scheduler, limits) = server.configuration();
            match &mut scheduler {
                Scheduler::Pool(pool) => {
                    pool.max_threads = 8 + random.below(200) as usize;
                    pool.oversubscribe = 1 + random.below(4) as usize;
                }
                Scheduler::ThreadPerConnection(threads) => {
                    threads.thread_cache = random.below(32) as usize;
                }
                other => return Err(format!("another scheduler: {other:?}").into()),
            }
            let limits = limits.max_input((64 * 1024) << random.below(4));
            let limits = limits.output_bound((16 * 1024) << random.below(6));
            server.reconfigure(scheduler, limits)?;
            client.send("ECHO", 0)?;
            client.finish()
        }
        _ => {
            client.send("CLOSE", 0)?;
            client.must_be_closed()
        }
    }
}

fn limits() -> Limits {
    Limits::default()
        .read_timeout(Duration::from_secs(1))
        .write_timeout(Duration::from_secs(20))
}

fn pool() -> PoolConfig {
    PoolConfig::default()
        .groups(2)
        .stall_limit(Duration::from_millis(50))
        .idle_timeout(Duration::from_millis(500))
}

// ---- the account ----

/// How many threads and descriptors the process has.
fn resources() -> io::Result<(usize, usize)> {
    let count = |of| Ok::<_, io::Error>(std::fs::read_dir(of)?.count());
    // The listing has a descriptor itself, each time.
    Ok((count("/proc/self/task")?, count("/proc/self/fd")?))
}

/// Waits until `holds`, or for so long that it never will.
fn until(mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if holds()? {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

/// One entry of the account.
fn check(what: &str, one: u64, other: u64, all: &mut bool) {
    let same = one == other;
    println!(
        "  {} {what}: {one} = {other}",
        if same { "ok " } else { "OFF" }
    );
    *all &= same;
}

fn soak(name: &str, scheduler: Scheduler, time: Duration, seed: u64) -> Result<bool, Failure> {
    let before = resources()?;
    let path = std::env::temp_dir().join(format!("soak-{}-{name}.sock", std::process::id()));
    let handler = Arc::new(Soak::default());
    let server = Server::builder()
        .scheduler(scheduler)
        .limits(limits())
        .listen(Listen::tcp("127.0.0.1:0"), Arc::clone(&handler))
        .listen(Listen::unix(PathBuf::from(&path)), Arc::clone(&handler))
        .build()?;
    let handle = server.handle();
    let idle = resources()?;
    let (books, over) = (Arc::new(Books::default()), AtomicBool::new(false));
    let begun = Instant::now();
    let failures: Vec<Failure> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (books, handle, over) = (&books, &handle, &over);
                let at = server.local_addrs();
                scope.spawn(move || -> Result<(), Failure> {
                    let mut random = Random(seed ^ (n << 32));
                    while begun.elapsed() < time || !enough(books) {
                        if over.load(Relaxed) {
                            break;
                        }
                        let mut what = TROUBLES[random.below(TROUBLES.len() as u64) as usize];
                        let at = &at[random.below(at.len() as u64) as usize];
                        // What only TCP can do.
                        if what == "reset" && matches!(at, LocalAddr::Unix(_)) {
                            what = "hang up";
                        }
                        let did = Client::connect(at, books)
                            .and_then(|client| trouble(what, client, &mut random, handle));
                        if let Err(error) = did {
                            over.store(true, Relaxed);
                            return Err(format!("{what}: {error}").into());
                        }
                        books.did(what);
                    }
                    Ok(())
                })
            })
            .collect();
        let ended = clients.into_iter().map(|client| client.join());
        ended
            .filter_map(|end| {
                end.unwrap_or_else(|_| Err("a client panicked".into()))
                    .err()
            })
            .collect()
    });
    println!("{name}, seed {seed}, {:.0?}:", begun.elapsed());
    let mut all = failures.is_empty();
    for failure in &failures {
        println!("  OFF {failure}");
    }
    handler.parked.lock().map_err(|_| "poisoned")?.clear();
    let emptied = until(|| Ok(handle.stats().connections == 0))?;
    let stats = handle.stats();
    check("connections are closed", u64::from(emptied), 1, &mut all);
    // A thread that goes on idle is none that is left; a descriptor is.
    let same = until(|| Ok(resources()?.1 == idle.1))?;
    let descriptors = resources()?.1;
    all &= same;
    println!(
        "  {} descriptors, idle: {descriptors} = {}",
        if same { "ok " } else { "OFF" },
        idle.1
    );
    let report = server.drain(PATIENCE);
    all &= report.clean();
    println!("  {} {report}", if report.clean() { "ok " } else { "OFF" });
    // A handle keeps what its server polls with.
    drop(handle);
    let end = || Ok(resources()? == before);
    let back = until(end)?;
    all &= back;
    let now = resources()?;
    println!(
        "  {} threads, descriptors: {now:?} = {before:?}",
        if back { "ok " } else { "OFF" }
    );

    let of = |counter: &AtomicU64| counter.load(Relaxed);
    let accounted = of(&books.replied) + of(&books.closed) + of(&books.left);
    check(
        "commands sent = replied + closed on + left",
        of(&books.sent),
        accounted,
        &mut all,
    );
    check(
        "commands begun = ended",
        of(&handler.begun),
        of(&handler.ended),
        &mut all,
    );
    check(
        "sessions opened = closed",
        of(&handler.opened),
        of(&handler.closed),
        &mut all,
    );
    check(
        "connected = accepted",
        of(&books.connected),
        stats.opened,
        &mut all,
    );
    check("accepted = closed", stats.opened, stats.closed, &mut all);
    let closes: u64 = stats.closes.iter().map(|(_, n)| n).sum();
    check("closed = for a reason", stats.closed, closes, &mut all);
    check("lost edges", stats.lost_edges, 0, &mut all);
    let did = books.did.lock().map_err(|_| "poisoned")?;
    check(
        "panics",
        stats.panics,
        did.get("panic").copied().unwrap_or(0),
        &mut all,
    );
    for trouble in TROUBLES {
        let n = did.get(trouble).copied().unwrap_or(0);
        if n < AT_LEAST {
            println!("  OFF {trouble}: {n} times");
            all = false;
        }
    }
    let reasons = handler.reasons.lock().map_err(|_| "poisoned")?;
    println!(
        "  {} commands: {} replied, {} closed on, {} left; troubles {did:?}; reasons {reasons:?}",
        of(&books.sent),
        of(&books.replied),
        of(&books.closed),
        of(&books.left),
    );
    Ok(all)
}

/// Whether each kind of trouble has been made often enough.
fn enough(books: &Books) -> bool {
    let did = books.did.lock().expect("nobody panics here");
    TROUBLES
        .iter()
        .all(|what| did.get(what).is_some_and(|n| *n >= AT_LEAST))
}

fn main() -> Result<ExitCode, Failure> {
    let (mut seconds, mut seed, mut which) = (60, 1, "both".to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        match name.as_str() {
            "--seconds" => seconds = value.parse()?,
            "--seed" => seed = value.parse()?,
            "--scheduler" => which = value,
            _ => return Err(format!("{name} is no option").into()),
        }
    }
    // Panics that are told to are no news.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let told = info.payload().downcast_ref() == Some(&"soak: told to");
        if !told {
            hook(info);
        }
    }));
    let schedulers = [
        ("pool", Scheduler::Pool(pool())),
        (
            "per-connection",
            Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default()),
        ),
    ];
    let mut all = true;
    for (name, scheduler) in schedulers {
        if which == "both" || which == name {
            all &= soak(name, scheduler, Duration::from_secs(seconds), seed)?;
        }
    }
    println!(
        "{}",
        if all {
            "the account balances"
        } else {
            "THE ACCOUNT IS OFF"
        }
    );
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}
