//! The handler of the tests: a session does what its client tells it, a line at a time, and waits
//! where the test tells it to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{
    Class, CloseReason, Conn, ConnHandle, Handler, Next, Priority, Refusal, Resume, Woken,
};

/// What the reply to `BIG n` consists of, again and again.
pub(crate) static PATTERN: [u8; 8192] = {
    let mut pattern = [0; 8192];
    let mut i = 0;
    while i < pattern.len() {
        // A period that divides the length of no buffer.
        pattern[i] = b'a' + (i % 23) as u8;
        i += 1;
    }
    pattern
};

/// The commands.
///
/// | line | what it does | reply |
/// |---|---|---|
/// | `ECHO text` | | `text` |
/// | `ID` | | the connection's id |
/// | `LISTENER` | | the listener's index |
/// | `COUNT word` | | how many commands of that name have begun |
/// | `BIG n` | | n bytes of [`PATTERN`] and a line end |
/// | `IGNORE n` | does not care whether its reply can be sent | as `BIG` |
/// | `BURN ms` | keeps a CPU busy | `burnt` |
/// | `SPIN gate` | keeps a CPU busy until the gate is open | `spun` |
/// | `LONG gate` | the same, and says beforehand that it is long | `spun` |
/// | `WAIT gate` | waits for a gate, and says so | `waited` |
/// | `NEST gate` | the same, with another wait inside | `nested` |
/// | `BLOCK gate` | waits for a gate, and tells nobody | `blocked` |
/// | `STALL gate other` | the same, then keeps a CPU busy until the other gate is open | `stalled` |
/// | `OPEN gate` | opens a gate | `open` |
/// | `SPINTO n` | keeps a CPU busy until n `ECHO`s have begun | `spun` |
/// | `NUDGE n` | reports n waits that are over at once | `nudged` |
/// | `GRIND gate` | keeps a CPU busy until the gate is open, with many waits that are over at once | `ground` |
/// | `READ n` | reads n bytes, blocking | `read`, and the bytes |
/// | `OWE` | owes the rest of a command | none |
/// | `AGAIN n` | asks n times to run again | `again`, n |
/// | `KILL` | kills its own connection | `killed` |
/// | `KILL id` | kills a connection | `true` if there was one |
/// | `SHUTDOWN ms` | asks for a drain within so long | `true` if nobody had before |
/// | `PANIC` | panics | |
/// | `PANIC WAITING` | panics in a reported wait | |
/// | `PANIC IN callback` | the session's `woken`, `farewell`, `close` or `drop` will | `will` |
/// | `CLOSE` | asks for the close | `bye` |
/// | `ERR` | fails | |
/// | `STREAM n` | n times a kilobyte of a large reply, flushed each time | as `BIG` |
/// | `PARK name` | parks; the test finds the `Resume` under this name | none |
/// | `PARK name ms` | the same, for so long at most | none |
/// | `NAP name` | as `PARK`, but is done with it when it is poked | none |
/// | `BIGPARK n` | parks, as "big" | as `BIG` |
/// | `EARLY` | resumes itself twice, then parks | `true false` |
/// | `STALE name` | makes a `Resume` of that name, another one, and parks for that one | none |
/// | `RECKLESS` | parks without a `Resume` | none |
/// | `RECKLESS dropped` | drops its `Resume`, and parks | none |
/// | `SLEEP ms` | parks for so long | none |
/// | `TICK ms` | wants to be woken after so long | `ticking` |
/// | `HANDLE` | takes a handle of its connection | `taken` |
/// | `POKE n` | pokes its own connection n times | `poking` |
/// | `DETACH gate` | detaches, and waits for the gate | `detached`, and then `left` |
/// | `DETACH STREAM` | detaches, and writes without end | `detached`, and [`PATTERN`] |
/// | `DETACH READ` | detaches, and reads without end | `detached` |
/// | `DETACH DRAIN` | detaches, until the server drains | `detached`, and then `left` |
/// | `DETACH PANIC` | detaches, and panics | `detached` |
/// | `TURN High` | the next turn has this priority | `set` |
/// | `PRIORITY High` | the session has this priority | `set` |
/// | `TRANSACTION true` | whether the session is in one | `set` |
/// | `HOLD true` | whether the session holds something | `set` |
/// | `WEIGH n` | the session says that it takes n bytes | `weighed` |
/// | `NUMBER` | | the command's number |
/// | `HEED gate` | waits for a gate, or to be cancelled, and sleeps meanwhile | `heeded`, or `cancelled:` and why |
/// | `OBEY gate` | the same, and keeps a CPU busy | `obeyed`, or `cancelled:` and why |
/// | `SPITE gate` | as `HEED`, but its callback panics | |
/// | `LEAK` | leaks the scope of a callback that opens the gate `leak` | `leaked` |
/// | `KILL SELF` | kills itself, not its connection, and asks to be called then | `true`, how often it was called, and why |
/// | `KILL id number` | kills a command | `true` if it was at that one |
/// | `DETACH HEED` | detaches, and waits to be cancelled | `detached`, and then `cancelled:` and why |
/// | `AWAIT id gate` | waits for a gate, and says for whose command | `waited` |
/// | `CHALLENGE` | a step of a login | `prove it` |
/// | `LOGIN` | logs in, if [`Stage::asks_for_login`] | `welcome` |
/// | `LOGIN IF POSSIBLE` | the same, and goes on in any case | `welcome`, or why not |
/// | `LOGIN ROOT` | the same, whatever the limit is | `welcome` |
///
/// Who is woken replies with the reason: `resumed`, `due`, `poked`, or `cancelled:` and why. After a poke it parks again if it
/// was parked, with the same `Resume`.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    gates: Arc<Mutex<Gates>>,
    bell: Arc<Condvar>,
    /// What is inside the handler: commands by their first word, and `open`.
    running: Mutex<BTreeMap<String, Gauge>>,
    reasons: Mutex<Vec<CloseReason>>,
    resumes: Mutex<BTreeMap<String, Resume>>,
    handles: Mutex<Vec<ConnHandle>>,
    /// The next so many calls of `open` panic, or fail.
    pub(crate) open_panics: AtomicUsize,
    pub(crate) open_errors: AtomicUsize,
    /// These callbacks wait at the gate of their name.
    pub(crate) open_waits: AtomicBool,
    pub(crate) close_waits: AtomicBool,
    /// `farewell` and `close` report a wait.
    pub(crate) end_reports: AtomicBool,
    pub(crate) refuse_panics: AtomicBool,
    /// Clients have to log in.
    pub(crate) asks_for_login: AtomicBool,
    opened: AtomicU64,
    closed: AtomicU64,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Gates {
    open: BTreeSet<String>,
    all: bool,
}

/// Counts those that are inside.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauge {
    pub(crate) now: usize,
    pub(crate) most: usize,
    pub(crate) ever: usize,
}

/// What has become of the sessions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sessions {
    /// `open` returned one.
    pub(crate) opened: u64,
    /// `close` was called with one.
    pub(crate) closed: u64,
    pub(crate) dropped: u64,
}

/// A panic in a command must not spoil the counts for the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a CPU busy for a while, and does `between` now and then.
pub(crate) fn grind(mut between: impl FnMut()) {
    for _ in 0..100 {
        (0..100).for_each(|_| std::hint::spin_loop());
        between();
    }
}

/// Takes one off a counter that is not at zero.
fn take_one(counter: &AtomicUsize) -> bool {
    counter
        .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
        .is_ok()
}

impl Stage {
    /// Opens a gate, for those that wait at it and for those that come.
    pub(crate) fn open(&self, gate: &str) {
        lock(&self.gates).open.insert(gate.to_owned());
        self.bell.notify_all();
    }

    pub(crate) fn open_all(&self) {
        lock(&self.gates).all = true;
        self.bell.notify_all();
    }

    fn is_open(&self, gate: &str) -> bool {
        let gates = lock(&self.gates);
        gates.all || gates.open.contains(gate)
    }

    fn pass(&self, gate: &str) {
        let mut gates = lock(&self.gates);
        while !gates.all && !gates.open.contains(gate) {
            gates = self
                .bell
                .wait(gates)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a gate is open or the command is cancelled.
    fn pass_or_stop(&self, gate: &str, conn: &Conn) {
        let mut gates = lock(&self.gates);
        while !gates.all && !gates.open.contains(gate) && !conn.is_cancelled() {
            gates = self
                .bell
                .wait(gates)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What wakes who is at a gate.
    fn alarm(&self) -> impl Fn() + Send + 'static {
        let (gates, bell) = (Arc::clone(&self.gates), Arc::clone(&self.bell));
        move || {
            // Not between its look and its sleep.
            drop(lock(&gates));
            bell.notify_all();
        }
    }

    /// How many commands of this name are inside the handler, and were at most.
    pub(crate) fn running(&self, word: &str) -> Gauge {
        lock(&self.running).get(word).copied().unwrap_or_default()
    }

    pub(crate) fn sessions(&self) -> Sessions {
        Sessions {
            opened: self.opened.load(SeqCst),
            closed: self.closed.load(SeqCst),
            dropped: self.dropped.load(SeqCst),
        }
    }

    /// Why connections were closed, as `close` was told.
    pub(crate) fn reasons(&self) -> Vec<CloseReason> {
        lock(&self.reasons).clone()
    }

    /// Takes the `Resume` of a command that has parked, or is about to.
    #[track_caller]
    pub(crate) fn take_resume(&self, name: &str) -> Resume {
        let mut taken = None;
        super::until("there is something to resume", || {
            taken = lock(&self.resumes).remove(name);
            taken.is_some()
        });
        taken.expect("it is there")
    }

    /// A `Resume` for the next park, which is given to the test.
    fn keep_resume(&self, name: &str, conn: &mut Conn) {
        let resume = conn.resume();
        lock(&self.resumes).insert(name.to_owned(), resume);
    }

    fn run(&self, session: &mut Session, conn: &mut Conn, line: &str) -> io::Result<Next> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let _inside = Inside::enter(self, word);
        let number = || rest.parse::<u64>().map_err(io::Error::other);
        let reply = match word {
            "ECHO" => rest.to_owned(),
            "ID" => conn.id().to_string(),
            "LISTENER" => conn.listener().to_string(),
            "COUNT" => self.running(rest).ever.to_string(),
            "BIG" => {
                let mut left = usize::try_from(number()?).expect("a length");
                while left > 0 {
                    let n = left.min(PATTERN.len());
                    conn.write_all(&PATTERN[..n])?;
                    left -= n;
                }
                String::new()
            }
            "IGNORE" => {
                for _ in 0..number()? / PATTERN.len() as u64 {
                    let _ = conn.write_all(&PATTERN);
                }
                return Ok(Next::input());
            }
            "BURN" => {
                let begun = Instant::now();
                let time = Duration::from_millis(number()?);
                while begun.elapsed() < time {
                    std::hint::spin_loop();
                }
                "burnt".to_owned()
            }
            "SPIN" | "LONG" => {
                if word == "LONG" {
                    conn.class(Class::Long);
                }
                while !self.is_open(rest) {
                    (0..10_000).for_each(|_| std::hint::spin_loop());
                }
                "spun".to_owned()
            }
            "WAIT" => {
                wait::during(WaitKind::UserLock, || self.pass(rest));
                "waited".to_owned()
            }
            "BLOCK" => {
                self.pass(rest);
                "blocked".to_owned()
            }
            "STALL" => {
                let (gate, other) = rest.split_once(' ').expect("two gates");
                self.pass(gate);
                while !self.is_open(other) {
                    (0..10_000).for_each(|_| std::hint::spin_loop());
                }
                "stalled".to_owned()
            }
            "NEST" => {
                wait::during(WaitKind::RowLock, || {
                    wait::during(WaitKind::DiskIo, || ());
                    self.pass(rest);
                });
                "nested".to_owned()
            }
            "OPEN" => {
                self.open(rest);
                "open".to_owned()
            }
            "SPINTO" => {
                let goal = number()?;
                while (self.running("ECHO").ever as u64) < goal {
                    (0..10_000).for_each(|_| std::hint::spin_loop());
                }
                "spun".to_owned()
            }
            "NUDGE" => {
                for _ in 0..number()? {
                    wait::during(WaitKind::Other("nudge"), || ());
                }
                "nudged".to_owned()
            }
            "GRIND" => {
                while !self.is_open(rest) {
                    grind(|| wait::during(WaitKind::Other("grind"), || ()));
                }
                "ground".to_owned()
            }
            "READ" => {
                let mut bytes = vec![0; usize::try_from(number()?).expect("a length")];
                conn.read_exact(&mut bytes)?;
                format!("read {}", String::from_utf8_lossy(&bytes))
            }
            "OWE" => return Ok(Next::more_input()),
            "AGAIN" => {
                session.again = number()?;
                return self.again(session, conn);
            }
            "NUMBER" => conn.command_number().to_string(),
            "HEED" | "SPITE" => {
                let alarm = self.alarm();
                let panics = word == "SPITE";
                let _scope = conn.on_cancel(move || {
                    alarm();
                    assert!(!panics, "told to, in a callback");
                });
                wait::during(WaitKind::UserLock, || self.pass_or_stop(rest, conn));
                stopped(conn, "heeded")
            }
            "OBEY" => {
                while !self.is_open(rest) && !conn.is_cancelled() {
                    (0..10_000).for_each(|_| std::hint::spin_loop());
                }
                stopped(conn, "obeyed")
            }
            "LEAK" => {
                let gates = Arc::clone(&self.gates);
                let open = move || _ = lock(&gates).open.insert("leak".to_owned());
                std::mem::forget(conn.on_cancel(open));
                "leaked".to_owned()
            }
            "KILL" if rest == "SELF" => {
                let calls = Arc::new(AtomicUsize::new(0));
                let count = || {
                    let calls = Arc::clone(&calls);
                    move || _ = calls.fetch_add(1, SeqCst)
                };
                let _before = conn.on_cancel(count());
                let handle = conn.handle();
                assert_eq!(handle.command(), Some(conn.command_number()));
                let killed = handle.kill_command(conn.command_number());
                let _after = conn.on_cancel(count());
                let calls = calls.load(SeqCst);
                format!("{killed} {calls} {}", stopped(conn, "not"))
            }
            "KILL" if rest.contains(' ') => {
                let (id, number) = rest.split_once(' ').expect("an id and a number");
                let [id, number] = [id, number].map(|n| n.parse::<u64>().expect("a number"));
                conn.server().kill_command(id.into(), number).to_string()
            }
            "KILL" if !rest.is_empty() => conn.server().kill(number()?.into()).to_string(),
            "KILL" => {
                assert!(conn.handle().kill(), "one that runs is alive");
                assert!(conn.is_cancelled());
                "killed".to_owned()
            }
            "SHUTDOWN" => {
                let within = Duration::from_millis(number()?);
                conn.server().shutdown(within).to_string()
            }
            "PANIC" if rest.is_empty() => panic!("told to"),
            "PANIC" if rest == "WAITING" => {
                wait::during(WaitKind::Other("panic"), || panic!("told to, in a wait"))
            }
            "PANIC" => {
                session.panics = rest.strip_prefix("IN ").expect("where to panic").to_owned();
                "will".to_owned()
            }
            "CLOSE" => {
                conn.write_all(b"bye\n")?;
                return Ok(Next::close());
            }
            "ERR" => return Err(io::Error::other("told to")),
            "STREAM" => {
                session.stream = number()?;
                session.streamed = 0;
                return session.stream(conn);
            }
            "PARK" | "NAP" => {
                let (name, ms) = rest.split_once(' ').unwrap_or((rest, ""));
                session.parked = Some(Parked {
                    until: ms.parse().ok().map(after),
                    again: word == "PARK",
                });
                self.keep_resume(name, conn);
                return Ok(session.park());
            }
            "BIGPARK" => {
                let size = usize::try_from(number()?).expect("a length");
                for at in (0..size).step_by(PATTERN.len()) {
                    conn.write_all(&PATTERN[..PATTERN.len().min(size - at)])?;
                }
                conn.write_all(b"\n")?;
                self.keep_resume("big", conn);
                return Ok(Next::park());
            }
            "EARLY" => {
                let resume = conn.resume();
                let (first, second) = (resume.resume(), resume.resume());
                writeln!(conn, "{first} {second}")?;
                return Ok(Next::park());
            }
            "STALE" => {
                self.keep_resume(rest, conn);
                self.keep_resume(&format!("not {rest}"), conn);
                return Ok(Next::park());
            }
            "RECKLESS" => {
                if rest == "dropped" {
                    drop(conn.resume());
                }
                return Ok(Next::park());
            }
            "SLEEP" => return Ok(Next::park().until(after(number()?))),
            "TICK" => {
                conn.write_all(b"ticking\n")?;
                return Ok(Next::input().until(after(number()?)));
            }
            "HANDLE" => {
                lock(&self.handles).push(conn.handle());
                "taken".to_owned()
            }
            "POKE" => {
                for _ in 0..number()? {
                    assert!(conn.handle().poke(), "one that runs is alive");
                }
                "poking".to_owned()
            }
            "DETACH" => {
                session.detached = rest.to_owned();
                self.keep_resume("detached", conn);
                return Ok(Next::detach());
            }
            "TURN" => {
                conn.write_all(b"set\n")?;
                return Ok(Next::input().priority(priority(rest)));
            }
            "PRIORITY" => {
                conn.set_priority(priority(rest));
                "set".to_owned()
            }
            "TRANSACTION" => {
                conn.set_in_transaction(rest == "true");
                "set".to_owned()
            }
            "HOLD" => {
                conn.set_holding(rest == "true");
                "set".to_owned()
            }
            "CHALLENGE" => "prove it".to_owned(),
            "LOGIN" => match rest {
                "ROOT" => {
                    conn.logged_in_privileged();
                    "welcome".to_owned()
                }
                "IF POSSIBLE" => match conn.logged_in() {
                    Ok(()) => "welcome".to_owned(),
                    Err(error) => error.to_string(),
                },
                _ => {
                    conn.logged_in()?;
                    "welcome".to_owned()
                }
            },
            "WEIGH" => {
                session.bytes = usize::try_from(number()?).expect("a length");
                "weighed".to_owned()
            }
            "AWAIT" => {
                let (id, gate) = rest.split_once(' ').expect("an id and a gate");
                let id: u64 = id.parse().expect("an id");
                wait::during_for(WaitKind::RowLock, id.into(), || self.pass(gate));
                "waited".to_owned()
            }
            _ => panic!("no such command: {line:?}"),
        };
        conn.write_all(reply.as_bytes())?;
        conn.write_all(b"\n")?;
        Ok(Next::input())
    }

    fn report_the_end(&self) {
        if self.end_reports.load(SeqCst) {
            wait::during(WaitKind::Other("end"), || ());
        }
    }

    fn again(&self, session: &mut Session, conn: &mut Conn) -> io::Result<Next> {
        session.turns += 1;
        if session.again == 0 {
            writeln!(conn, "again {}", session.turns - 1)?;
            session.turns = 0;
            return Ok(Next::input());
        }
        session.again -= 1;
        Ok(Next::again())
    }
}

/// What a command replies that stops when it is cancelled.
fn stopped(conn: &Conn, otherwise: &str) -> String {
    // A kill may come between the two.
    let was = conn.is_cancelled();
    let why = conn.cancelled().map(|why| format!("cancelled: {why}"));
    assert!(why.is_some() || !was);
    why.unwrap_or_else(|| otherwise.to_owned())
}

fn after(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

fn priority(name: &str) -> Priority {
    match name {
        "High" => Priority::High,
        "Low" => Priority::Low,
        _ => Priority::Auto,
    }
}

/// A command is inside the handler, until it leaves it in whatever way.
struct Inside<'a> {
    stage: &'a Stage,
    word: String,
}

impl<'a> Inside<'a> {
    fn enter(stage: &'a Stage, word: &str) -> Self {
        let mut running = lock(&stage.running);
        let gauge = running.entry(word.to_owned()).or_default();
        gauge.now += 1;
        gauge.ever += 1;
        gauge.most = gauge.most.max(gauge.now);
        drop(running);
        Self {
            stage,
            word: word.to_owned(),
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(gauge) = lock(&self.stage.running).get_mut(&self.word) {
            gauge.now -= 1;
        }
    }
}

/// A connection's session.
#[derive(Debug)]
pub(crate) struct Session {
    /// Counts the sessions that have been dropped.
    dropped: Arc<AtomicU64>,
    /// The callback that is to panic.
    panics: String,
    /// How often more the command wants to run.
    again: u64,
    /// How often it has run.
    turns: u64,
    /// How many kilobytes of a large reply are left, and how many have been written.
    stream: u64,
    streamed: usize,
    /// The command has parked.
    parked: Option<Parked>,
    /// What it does when it has detached.
    detached: String,
    /// What it says that it takes.
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Parked {
    until: Option<Instant>,
    /// After a poke too.
    again: bool,
}

impl Session {
    /// Panics if the client has asked for it.
    fn reaches(&self, callback: &str) {
        assert!(self.panics != callback, "told to, in {callback}");
    }

    fn park(&self) -> Next {
        let until = self.parked.and_then(|parked| parked.until);
        until.map_or(Next::park(), |at| Next::park().until(at))
    }

    fn stream(&mut self, conn: &mut Conn) -> io::Result<Next> {
        if self.stream == 0 {
            conn.write_all(b"\n")?;
            return Ok(Next::input());
        }
        let from = self.streamed % PATTERN.len();
        conn.write_all(&PATTERN[from..from + 1024])?;
        self.streamed += 1024;
        self.stream -= 1;
        Ok(Next::flush())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, SeqCst);
        self.reaches("drop");
    }
}

impl Handler for Stage {
    type Session = Session;

    fn open(&self, conn: &mut Conn) -> io::Result<Session> {
        let _inside = Inside::enter(self, "open");
        if self.open_waits.load(SeqCst) {
            self.pass("open");
        }
        assert!(!take_one(&self.open_panics), "told to, in open");
        if take_one(&self.open_errors) {
            return Err(io::Error::other("told to, in open"));
        }
        if !self.asks_for_login.load(SeqCst) {
            conn.logged_in()?;
        }
        writeln!(conn, "hello {}", conn.id())?;
        self.opened.fetch_add(1, SeqCst);
        Ok(Session {
            dropped: Arc::clone(&self.dropped),
            panics: String::new(),
            again: 0,
            turns: 0,
            stream: 0,
            streamed: 0,
            parked: None,
            detached: String::new(),
            bytes: 0,
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
        let _inside = Inside::enter(self, &format!("{why:?}"));
        session.reaches("woken");
        let word = match why {
            Woken::Again => return self.again(session, conn),
            Woken::Flushed => return session.stream(conn),
            Woken::Resumed => "resumed",
            Woken::Due => "due",
            Woken::Poked => "poked",
            Woken::Cancelled => "",
            why => unreachable!("another reason: {why:?}"),
        };
        let word = match word {
            "" => stopped(conn, "cancelled, and nobody knows why"),
            word => word.to_owned(),
        };
        writeln!(conn, "{word}")?;
        if why == Woken::Poked && session.parked.is_some_and(|parked| parked.again) {
            return Ok(session.park());
        }
        session.parked = None;
        Ok(Next::input())
    }

    fn detached(&self, session: &mut Session, conn: &mut Conn) -> io::Result<()> {
        let _inside = Inside::enter(self, "detached");
        assert!(
            thread::current()
                .name()
                .is_some_and(|name| name.starts_with("tgp-"))
        );
        conn.write_all(b"detached\n")?;
        conn.flush()?;
        match session.detached.as_str() {
            "STREAM" => loop {
                conn.write_all(&PATTERN)?;
            },
            "READ" => while conn.read(&mut [0; 64])? > 0 {},
            "DRAIN" => super::until("the server drains", || conn.is_draining()),
            "PANIC" => panic!("told to, in detached"),
            "HEED" => {
                let _scope = conn.on_cancel(self.alarm());
                self.pass_or_stop("never", conn);
                let reply = stopped(conn, "let go");
                return writeln!(conn, "{reply}");
            }
            gate => self.pass(gate),
        }
        conn.write_all(b"left\n")
    }

    fn farewell(&self, session: &mut Session, out: &mut Vec<u8>, why: &CloseReason) {
        self.report_the_end();
        session.reaches("farewell");
        out.extend(format!("farewell: {why}\n").bytes());
    }

    fn refuse(&self, out: &mut Vec<u8>, why: &Refusal) {
        assert!(!self.refuse_panics.load(SeqCst), "told to, in refuse");
        out.extend(format!("refused: {why}\n").bytes());
    }

    fn session_bytes(&self, session: &Session) -> usize {
        session.bytes
    }

    fn close(&self, session: Session, why: CloseReason) {
        self.closed.fetch_add(1, SeqCst);
        lock(&self.reasons).push(why);
        self.report_the_end();
        if self.close_waits.load(SeqCst) {
            self.pass("close");
        }
        session.reaches("close");
    }
}
