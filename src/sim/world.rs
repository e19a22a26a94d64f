//! The world around the scheduler: clients, sockets, the poller, threads, locks, the monitor; and
//! the loop over its events.
//!
//! Threads do what `group/worker.rs` and `group/monitor.rs` do, step by step: a step is a burst on a
//! core and then one move, as long as the shipping code holds the lock. A clock that is read before
//! the lock is read before the burst, so a thread that loses its core in between comes with an old
//! one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::cpu::{Cpu, ThreadId};
use super::policy::{Asks, Next, Policy, Seen};
use super::rng::Rng;
use super::trace::{self, Ended, Entry, What, Who};
use super::{Class, Latencies, Load, Op, Report, Scenario, Span, SpawnFailure, ns};
use crate::group::monitor::LINGER;
use crate::group::worker::BATCH;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

// What things cost, by order of magnitude as measured on the shipping code.
const LOCK: u64 = US / 5;
const POLL: u64 = US;
const WAKE: u64 = 2 * US;
const READ: u64 = US;
const WRITE: u64 = 2 * US;
const TICK: u64 = US;
const CREATE: u64 = 70 * US;

/// What is left when clients stop is done by then; the longest is a queue of long commands.
const PATIENCE: u64 = 600_000 * MS;
/// How long the idle world is watched.
const IDLE: u64 = 2_000 * MS;

const MONITOR: ThreadId = 0;

/// The thread of a worker.
fn thread_of(worker: usize) -> ThreadId {
    worker + 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A core has run for its stretch.
    Core(usize),
    /// A thread's sleep is over, if it is still the same sleep.
    Timer {
        thread: ThreadId,
        sleep: u64,
    },
    Connect {
        client: usize,
    },
    Send {
        client: usize,
        conn: usize,
    },
    Kill,
}

/// A thread's next step, made when its burst is over, or what it sleeps in.
#[derive(Debug)]
enum Doing {
    Gone,
    /// About to take.
    Asking,
    /// About to look at the poller; asleep there if it is to block and there is nothing.
    Polling {
        block: bool,
    },
    /// About to bring what it found there.
    Returning {
        events: Vec<Seen>,
        read: u64,
    },
    /// Parked: asleep, or about to look why it woke.
    Parked,
    /// Reading a connection's input.
    Filling(Turn),
    /// In a command, between two of its steps; asleep if it blocks unseen.
    InCommand(Turn),
    /// Asleep in a reported wait, or about to end it.
    Waiting(Turn),
    Settling {
        turn: Turn,
        end: Ended,
        read: u64,
    },
    // The monitor's.
    Ticking {
        read: u64,
    },
    Creating {
        worker: usize,
    },
    Sleeping,
}

#[derive(Debug)]
struct Turn {
    conn: usize,
    close: bool,
    began: u64,
    calls: u32,
    /// The command being run, and what is left of it.
    command: Option<Command>,
    steps: VecDeque<Op>,
}

#[derive(Debug)]
struct Thread {
    doing: Doing,
    /// On a core or in the run queue.
    runnable: bool,
    /// Counts its sleeps.
    sleep: u64,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    number: u64,
    sent: u64,
}

#[derive(Debug)]
struct Conn {
    client: usize,
    open: bool,
    /// Known to the poller.
    registered: bool,
    /// What the client has sent and nobody has read, and what has been read.
    socket: VecDeque<Command>,
    buffer: VecDeque<Command>,
    hung_up: bool,
    /// The end of input has been read.
    at_end: bool,
    killed: bool,
    /// The number of the command that was answered last.
    answered: u64,
}

#[derive(Debug, Default)]
struct Client {
    class: usize,
    conn: Option<usize>,
    /// Commands that are not answered yet.
    open: usize,
}

#[derive(Debug, Default)]
struct Lock {
    holder: Option<ThreadId>,
    queue: VecDeque<ThreadId>,
}

#[derive(Debug, Default)]
struct Monitor {
    /// It has said that it sleeps: whoever needs ticks rings.
    asleep: bool,
    rung: bool,
    quiet: u32,
    /// When its sleep is to end, whatever becomes of the timer.
    until: Option<u64>,
    ticks: u64,
    /// Threads that were asked for after the start.
    spawns: u64,
}

struct World<'a> {
    scenario: &'a Scenario,
    rng: Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Tells events of one moment apart.
    count: u64,
    cpu: Cpu,
    threads: Vec<Thread>,
    policy: Policy,
    /// Connections with an event, in its order, and whether their end of input is one.
    ready: VecDeque<Seen>,
    poller_rung: bool,
    monitor: Monitor,
    conns: Vec<Conn>,
    clients: Vec<Client>,
    locks: BTreeMap<usize, Lock>,
    /// Clients send.
    busy: bool,
    commands: u64,
    latencies: Vec<Vec<u64>>,
    abandoned: Vec<usize>,
    trace: Vec<Entry>,
}

/// Runs a scenario to its end, or to the first violation.
///
/// # Panics
/// If the scenario's pool would be refused by a server, or a class's command does not give back a
/// lock.
pub fn run(scenario: &Scenario, seed: u64) -> Report {
    scenario
        .pool
        .check()
        .expect("a pool that a server would take");
    let mut world = World::new(scenario, seed);
    // Kept or not is in the book.
    let _ = world.live();
    world.report()
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let classes = scenario.classes.len();
        let of_class = |(class, with): (usize, &Class)| {
            let client = move || Client {
                class,
                ..Client::default()
            };
            std::iter::repeat_with(client).take(with.clients)
        };
        Self {
            scenario,
            rng: Rng::new(seed),
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            cpu: Cpu::new(scenario.cores, ns(scenario.slice), ns(scenario.switch)),
            threads: Vec::new(),
            policy: Policy::new(&scenario.pool),
            ready: VecDeque::new(),
            poller_rung: false,
            monitor: Monitor::default(),
            conns: Vec::new(),
            clients: scenario
                .classes
                .iter()
                .enumerate()
                .flat_map(of_class)
                .collect(),
            locks: BTreeMap::new(),
            busy: true,
            commands: 0,
            latencies: vec![Vec::new(); classes],
            abandoned: vec![0; classes],
            trace: Vec::new(),
        }
    }

    // ---- the run ----

    /// The whole of it; `None` if a promise was not kept on the way.
    fn live(&mut self) -> Option<()> {
        self.start_thread(MONITOR, Doing::Ticking { read: 0 });
        let first = self.policy.spawning(false, 0);
        self.start_thread(thread_of(first), Doing::Asking);
        for client in 0..self.clients.len() {
            let at = self.rng.below(5 * MS);
            self.later(at, Event::Connect { client });
        }
        if let Some(every) = self.scenario.faults.kill_every {
            self.later(ns(every), Event::Kill);
        }
        let end = ns(self.scenario.duration);
        self.play(end, |_| false)?;

        self.busy = false;
        if !self.scenario.abrupt {
            self.come_to_rest()?;
        }

        self.note(Who::Outside, What::Drain);
        let asks = self.policy.drain(self.now);
        self.perform(Who::Outside, asks);
        let empty = |world: &Self| world.policy.book.connections() == 0;
        self.play(self.now + PATIENCE, empty)?;
        self.demand(empty(self), 11, "a drain leaves connections")?;

        // The monitor is joined before a group is stopped: what it has begun it ends.
        let creating =
            |world: &Self| matches!(world.threads[MONITOR].doing, Doing::Creating { .. });
        self.play(self.now + PATIENCE, |world| !creating(world))?;
        self.threads[MONITOR].doing = Doing::Gone;
        self.note(Who::Outside, What::Stop);
        let (workers, poller) = self.policy.stop(self.now);
        for worker in workers {
            self.wake(thread_of(worker), WAKE);
        }
        if poller {
            self.ring_poller();
        }
        let gone = |world: &Self| world.policy.book.threads() == 0;
        self.play(self.now + PATIENCE, gone)?;
        self.demand(gone(self), 11, "a stop leaves workers")?;
        let left = self.policy.leftovers();
        self.demand(left == 0, 11, "a stop leaves connections")
    }

    /// Everybody is answered; then nothing happens.
    fn come_to_rest(&mut self) -> Option<()> {
        let done = |world: &Self| world.outstanding() == 0 && world.policy.book.at_rest();
        self.play(self.now + PATIENCE, done)?;
        self.demand(done(self), 4, "clients have stopped, and it does not end")?;
        self.play(self.now + IDLE, |_| false)?;
        self.demand(done(self), 4, "an idle world does not stay idle")
    }

    fn demand(&mut self, kept: bool, invariant: u8, what: &str) -> Option<()> {
        if !kept {
            self.policy.book.breaks(invariant, self.now, what);
        }
        kept.then_some(())
    }

    /// Lets things happen until `end`, or until it is `done`; `None` if a promise is not kept.
    fn play(&mut self, end: u64, done: impl Fn(&Self) -> bool) -> Option<()> {
        while !done(self) {
            while let Some((core, stretch)) = self.cpu.start() {
                self.later(self.now + stretch, Event::Core(core));
            }
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            let at = next.map_or(end, |at| at.min(end));
            let counted = self.nobody_comes_until().min(at).saturating_sub(self.now);
            self.policy.book.elapse(self.now, at, counted);
            self.now = at;
            if self.policy.book.violation().is_some() {
                return None;
            }
            match next {
                Some(at) if at < end => {}
                _ => break,
            }
            if let Some(Reverse((.., event))) = self.events.pop() {
                self.happens(event);
            }
        }
        self.policy.book.violation().is_none().then_some(())
    }

    fn later(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn note(&mut self, who: Who, what: What) {
        let at = Duration::from_nanos(self.now);
        self.trace.push(Entry { at, who, what });
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Core(core) => self.core(core),
            Event::Timer { thread, sleep } => {
                if self.threads[thread].sleep == sleep {
                    self.wake(thread, WAKE);
                }
            }
            Event::Connect { client } => self.connect(client),
            Event::Send { client, conn } => self.send(client, conn),
            Event::Kill => self.kill(),
        }
    }

    /// Until then nobody is about to look at the state: no worker, and not the monitor, which is so
    /// while it waits for a core or for a timer that is late.
    fn nobody_comes_until(&self) -> u64 {
        if self.threads[MONITOR].runnable || self.worker_comes() {
            return self.now;
        }
        self.monitor.until.unwrap_or(u64::MAX)
    }

    fn worker_comes(&self) -> bool {
        self.threads.iter().skip(1).enumerate().any(|(worker, t)| {
            t.runnable
                && match t.doing {
                    Doing::Asking | Doing::Returning { .. } | Doing::Settling { .. } => true,
                    Doing::Polling { block } => {
                        !block || self.poller_rung || !self.ready.is_empty()
                    }
                    Doing::Parked => self.policy.book.is_called(worker),
                    _ => false,
                }
        })
    }

    // ---- clients ----

    fn class_of(&self, client: usize) -> &'a Class {
        &self.scenario.classes[self.clients[client].class]
    }

    fn connect(&mut self, client: usize) {
        if !self.busy {
            return;
        }
        let class = self.class_of(client);
        let conn = self.conns.len();
        self.conns.push(Conn {
            client,
            open: true,
            registered: false,
            socket: VecDeque::new(),
            buffer: VecDeque::new(),
            hung_up: false,
            at_end: false,
            killed: false,
            answered: 0,
        });
        let of = self.clients[client].class;
        self.note(Who::Outside, What::Attach { conn, class: of });
        let asks = self.policy.attach(class.high, self.now);
        self.perform(Who::Outside, asks);
        self.clients[client].conn = Some(conn);
        self.clients[client].open = 0;
        self.send_later(client);
    }

    fn send_later(&mut self, client: usize) {
        let Some(conn) = self.clients[client].conn else {
            return;
        };
        let pause = match self.class_of(client).load {
            Load::Closed(span) | Load::Open(span) => self.rng.time(span),
            Load::Burst(every) => ns(every) - self.now % ns(every),
        };
        self.later(self.now + pause, Event::Send { client, conn });
    }

    fn send(&mut self, client: usize, conn: usize) {
        if !self.busy || self.clients[client].conn != Some(conn) {
            return;
        }
        let class = self.class_of(client);
        for _ in 0..class.pipeline {
            self.commands += 1;
            let command = Command {
                number: self.commands,
                sent: self.now,
            };
            self.conns[conn].socket.push_back(command);
        }
        self.clients[client].open += class.pipeline;
        let commands = class.pipeline;
        self.note(Who::Outside, What::Send { conn, commands });
        self.announce(conn, false);
        if self.rng.chance(class.hang_up_per_mille) {
            self.conns[conn].hung_up = true;
            self.note(Who::Outside, What::HangUp { conn });
            self.announce(conn, true);
            self.come_back(client);
        } else if !matches!(class.load, Load::Closed(_)) {
            self.send_later(client);
        }
    }

    /// The client's connection is no more; it makes another one.
    fn come_back(&mut self, client: usize) {
        self.clients[client].conn = None;
        let at = self.now + self.rng.time(Span::us(100, 5_000));
        self.later(at, Event::Connect { client });
    }

    fn kill(&mut self) {
        if let (Some(every), true) = (self.scenario.faults.kill_every, self.busy) {
            self.later(self.now + ns(every), Event::Kill);
        }
        let alive: Vec<usize> = (0..self.conns.len())
            .filter(|conn| self.conns[*conn].open && !self.conns[*conn].killed)
            .collect();
        if alive.is_empty() {
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // reduced to an index
        let conn = alive[self.rng.below(alive.len() as u64) as usize];
        self.conns[conn].killed = true;
        self.note(Who::Outside, What::Kill { conn });
        let asks = self.policy.kill(conn, self.now);
        self.perform(Who::Outside, asks);
    }

    /// Commands that somebody still waits for.
    fn outstanding(&self) -> usize {
        self.clients
            .iter()
            .filter(|client| client.conn.is_some())
            .map(|client| client.open)
            .sum()
    }

    // ---- the poller ----

    fn announce(&mut self, conn: usize, read_closed: bool) {
        if !self.conns[conn].registered {
            return;
        }
        match self.ready.iter_mut().find(|seen| seen.conn == conn) {
            Some(seen) => seen.read_closed |= read_closed,
            None => self.ready.push_back(Seen { conn, read_closed }),
        }
        self.wake_poller();
    }

    fn ring_poller(&mut self) {
        self.poller_rung = true;
        self.wake_poller();
    }

    fn wake_poller(&mut self) {
        let asleep = |t: &Thread| !t.runnable && matches!(t.doing, Doing::Polling { .. });
        if let Some(thread) = self.threads.iter().position(asleep) {
            self.wake(thread, WAKE);
        }
    }

    // ---- threads ----

    fn start_thread(&mut self, thread: ThreadId, doing: Doing) {
        if thread == self.threads.len() {
            self.threads.push(Thread {
                doing: Doing::Gone,
                runnable: false,
                sleep: 0,
            });
        }
        self.threads[thread].doing = doing;
        self.wake(thread, WAKE);
    }

    /// Ends a thread's sleep; its next step follows when it has run for `burst`.
    fn wake(&mut self, thread: ThreadId, burst: u64) {
        let t = &mut self.threads[thread];
        if t.runnable || matches!(t.doing, Doing::Gone) {
            return;
        }
        t.runnable = true;
        t.sleep += 1;
        self.cpu.ready(thread, burst);
    }

    fn sleep_for(&mut self, thread: ThreadId, time: u64) {
        let sleep = self.threads[thread].sleep;
        let at = self.now.saturating_add(time);
        self.later(at, Event::Timer { thread, sleep });
    }

    fn core(&mut self, core: usize) {
        let more = match self.cpu.look(core) {
            // The slice is over.
            None => Some(0),
            Some(MONITOR) => self.step_monitor(),
            Some(thread) => self.step_worker(thread),
        };
        match more {
            Some(more) => {
                if let Some(stretch) = self.cpu.go_on(core, more) {
                    self.later(self.now + stretch, Event::Core(core));
                }
            }
            None => self.cpu.leave(core),
        }
    }

    /// The thread goes on, with this step after so long on the core.
    fn goes_on(&mut self, thread: ThreadId, doing: Doing, burst: u64) -> Option<u64> {
        self.threads[thread].doing = doing;
        Some(burst)
    }

    /// The thread sleeps, and takes this step after.
    fn sleeps(&mut self, thread: ThreadId, doing: Doing) -> Option<u64> {
        self.threads[thread].doing = doing;
        self.threads[thread].runnable = false;
        None
    }

    /// Carries out what a move asked for.
    fn perform(&mut self, who: Who, (asks, tick): (Asks, bool)) {
        match asks {
            Asks::Nothing => {}
            Asks::Worker(worker) => {
                self.note(who, What::CallWorker { worker });
                self.wake(thread_of(worker), WAKE);
            }
            Asks::Poller => {
                self.note(who, What::RingPoller);
                self.ring_poller();
            }
            Asks::Thread => return self.ring_monitor(who),
        }
        if tick && self.monitor.asleep {
            self.ring_monitor(who);
        }
    }

    fn ring_monitor(&mut self, who: Who) {
        self.note(who, What::RingMonitor);
        self.monitor.rung = true;
        if matches!(self.threads[MONITOR].doing, Doing::Sleeping) {
            self.wake(MONITOR, WAKE);
        }
    }

    // ---- a worker ----

    fn step_worker(&mut self, thread: ThreadId) -> Option<u64> {
        let worker = thread - 1;
        match std::mem::replace(&mut self.threads[thread].doing, Doing::Gone) {
            Doing::Asking => self.take(thread, self.now),
            Doing::Polling { block } => self.look_at_poller(thread, block),
            Doing::Returning { events, read } => {
                let count = events.len();
                self.note(Who::Worker(worker), What::Harvest { events: count });
                self.policy.harvested(worker, &events, read);
                self.take(thread, read)
            }
            Doing::Parked => {
                let stays = self.policy.slept(worker, self.now);
                self.note(Who::Worker(worker), What::Slept { stays });
                if stays {
                    self.take(thread, self.now)
                } else {
                    self.sleeps(thread, Doing::Gone)
                }
            }
            Doing::Filling(turn) => {
                self.fill(&turn);
                self.advance(thread, turn)
            }
            Doing::InCommand(turn) => self.advance(thread, turn),
            Doing::Waiting(turn) => {
                self.note(Who::Worker(worker), What::WaitEnd);
                self.policy.wait_end(worker, self.now);
                self.advance(thread, turn)
            }
            Doing::Settling { turn, end, read } => {
                let conn = turn.conn;
                self.note(Who::Worker(worker), What::Settle { conn, end });
                self.policy.settle(worker, conn, (end, turn.calls), read);
                if end == Ended::Closed {
                    self.closed(conn);
                }
                self.take(thread, read)
            }
            doing @ (Doing::Gone
            | Doing::Ticking { .. }
            | Doing::Creating { .. }
            | Doing::Sleeping) => unreachable!("worker {worker} is at {doing:?}"),
        }
    }

    fn take(&mut self, thread: ThreadId, read: u64) -> Option<u64> {
        let worker = thread - 1;
        let who = Who::Worker(worker);
        let (next, tick) = self.policy.take(worker, read);
        let more = match next {
            Next::Run {
                conn,
                close,
                read_closed,
            } => {
                self.note(who, What::Run { conn });
                self.conns[conn].at_end |= read_closed;
                let turn = Turn {
                    conn,
                    close,
                    began: read,
                    calls: 0,
                    command: None,
                    steps: VecDeque::new(),
                };
                self.goes_on(thread, Doing::Filling(turn), READ)
            }
            Next::Poll { block } => {
                self.note(who, What::Poll { block });
                self.goes_on(thread, Doing::Polling { block }, POLL)
            }
            Next::Park { time } => {
                self.note(who, What::Park);
                self.sleep_for(thread, time);
                self.sleeps(thread, Doing::Parked)
            }
            Next::Exit => {
                self.note(who, What::Exit);
                self.sleeps(thread, Doing::Gone)
            }
        };
        self.perform(who, (Asks::Nothing, tick));
        more
    }

    fn look_at_poller(&mut self, thread: ThreadId, block: bool) -> Option<u64> {
        if block && self.ready.is_empty() && !self.poller_rung {
            return self.sleeps(thread, Doing::Polling { block });
        }
        self.poller_rung = false;
        let events = self.ready.drain(..self.ready.len().min(BATCH)).collect();
        let read = self.now;
        self.goes_on(thread, Doing::Returning { events, read }, LOCK)
    }

    fn fill(&mut self, turn: &Turn) {
        let conn = &mut self.conns[turn.conn];
        if !conn.registered {
            conn.registered = true;
            // What is there when a socket is registered is an event.
            if !conn.socket.is_empty() || conn.hung_up {
                let hung_up = conn.hung_up;
                self.announce(turn.conn, hung_up);
            }
        }
        let conn = &mut self.conns[turn.conn];
        conn.buffer.append(&mut conn.socket);
    }

    /// Goes on in a turn until it takes time.
    fn advance(&mut self, thread: ThreadId, mut turn: Turn) -> Option<u64> {
        let who = Who::Worker(thread - 1);
        loop {
            let Some(step) = turn.steps.pop_front() else {
                if let Some(command) = turn.command.take() {
                    turn.calls += 1;
                    self.answered(who, turn.conn, command);
                }
                if let Some(end) = self.turn_over(&turn) {
                    let read = self.now;
                    let doing = Doing::Settling { turn, end, read };
                    return self.goes_on(thread, doing, WRITE + LOCK);
                }
                turn.command = self.conns[turn.conn].buffer.pop_front();
                let client = self.conns[turn.conn].client;
                turn.steps.extend(&self.class_of(client).command);
                continue;
            };
            match step {
                Op::Burn(span) => {
                    let burst = self.rng.time(span);
                    return self.goes_on(thread, Doing::InCommand(turn), burst);
                }
                Op::Block(span) => {
                    self.note(who, What::Block);
                    let time = self.rng.time(span);
                    self.sleep_for(thread, time);
                    return self.sleeps(thread, Doing::InCommand(turn));
                }
                Op::Wait(span) => {
                    let time = self.rng.time(span);
                    self.wait_begin(who, thread);
                    self.sleep_for(thread, time);
                    return self.sleeps(thread, Doing::Waiting(turn));
                }
                Op::Lock(lock) => {
                    let lock = self.locks.entry(lock).or_default();
                    if lock.holder.is_none() {
                        lock.holder = Some(thread);
                    } else {
                        lock.queue.push_back(thread);
                        self.wait_begin(who, thread);
                        return self.sleeps(thread, Doing::Waiting(turn));
                    }
                }
                Op::Unlock(number) => {
                    let lock = self.locks.entry(number).or_default();
                    assert_eq!(lock.holder, Some(thread), "lock {number} is not its own");
                    lock.holder = lock.queue.pop_front();
                    if let Some(next) = lock.holder {
                        self.wake(next, WAKE);
                    }
                }
                Op::SayLong => {
                    self.note(who, What::SayLong);
                    let asks = self.policy.say_long(thread - 1, self.now);
                    self.perform(who, asks);
                }
            }
        }
    }

    fn wait_begin(&mut self, who: Who, thread: ThreadId) {
        self.note(who, What::WaitBegin);
        let asks = self.policy.wait_begin(thread - 1, self.now);
        self.perform(who, asks);
    }

    /// Whether the turn is to end before another command, and how.
    fn turn_over(&mut self, turn: &Turn) -> Option<Ended> {
        let pool = &self.scenario.pool;
        let conn = &self.conns[turn.conn];
        let spent = turn.calls >= pool.turn_commands || self.now - turn.began >= ns(pool.turn_time);
        // A running one learns of a kill when it looks, or when it settles.
        if turn.close || (conn.killed && self.rng.chance(500)) {
            Some(Ended::Closed)
        } else if conn.buffer.is_empty() {
            Some(if conn.at_end {
                Ended::Closed
            } else {
                Ended::Idle
            })
        } else {
            (turn.calls > 0 && spent).then_some(Ended::Again)
        }
    }

    fn answered(&mut self, who: Who, conn: usize, command: Command) {
        self.note(who, What::Answer { conn });
        let of = &mut self.conns[conn];
        if command.number <= of.answered {
            let what = format!("connection {conn}: an answer twice, or out of turn");
            self.policy.book.breaks(3, self.now, what);
        }
        self.conns[conn].answered = command.number;
        let client = self.conns[conn].client;
        let class = self.clients[client].class;
        if self.clients[client].conn != Some(conn) {
            self.abandoned[class] += 1;
            return;
        }
        self.latencies[class].push(self.now - command.sent);
        self.clients[client].open -= 1;
        if self.clients[client].open == 0 && matches!(self.class_of(client).load, Load::Closed(_)) {
            self.send_later(client);
        }
    }

    fn closed(&mut self, conn: usize) {
        let of = &mut self.conns[conn];
        of.open = false;
        of.registered = false;
        let (client, left) = (of.client, of.buffer.len() + of.socket.len());
        of.buffer.clear();
        of.socket.clear();
        self.ready.retain(|seen| seen.conn != conn);
        self.abandoned[self.clients[client].class] += left;
        if self.clients[client].conn == Some(conn) {
            self.come_back(client);
        }
    }

    // ---- the monitor ----

    fn step_monitor(&mut self) -> Option<u64> {
        match std::mem::replace(&mut self.threads[MONITOR].doing, Doing::Gone) {
            Doing::Ticking { read } => {
                self.monitor.ticks += 1;
                let tick = self.policy.tick(read);
                self.note(Who::Monitor, What::Tick { again: tick.again });
                match tick.asks {
                    Asks::Thread if self.policy.book.threads() < self.scenario.pool.max_threads => {
                        let worker = self.policy.spawning(tick.due_to_stall, self.now);
                        self.note(Who::Monitor, What::Spawning { worker });
                        self.goes_on(MONITOR, Doing::Creating { worker }, CREATE)
                    }
                    Asks::Thread => {
                        self.note(Who::Monitor, What::Capped);
                        self.policy.capped();
                        self.ticked(true)
                    }
                    asks => {
                        self.perform(Who::Monitor, (asks, false));
                        self.ticked(tick.again)
                    }
                }
            }
            Doing::Creating { worker } => {
                self.create(worker);
                self.ticked(true)
            }
            Doing::Sleeping => {
                self.monitor.until = None;
                self.monitor.rung = false;
                self.monitor.asleep = false;
                let read = self.now;
                self.goes_on(MONITOR, Doing::Ticking { read }, TICK)
            }
            // It has been joined.
            _ => self.sleeps(MONITOR, Doing::Gone),
        }
    }

    fn create(&mut self, worker: usize) {
        self.monitor.spawns += 1;
        let fails = match self.scenario.faults.spawns {
            SpawnFailure::Never => false,
            SpawnFailure::PerMille(per_mille) => self.rng.chance(per_mille),
            SpawnFailure::Nth(nth) => self.monitor.spawns == nth,
        };
        if fails {
            self.note(Who::Monitor, What::SpawnFailed { worker });
            self.policy.spawn_failed(worker, self.now);
        } else {
            self.note(Who::Monitor, What::Spawned { worker });
            self.start_thread(thread_of(worker), Doing::Asking);
        }
    }

    /// A look is over; `again`: some more are wanted.
    fn ticked(&mut self, again: bool) -> Option<u64> {
        let tick = ns(self.scenario.pool.handover);
        if self.monitor.asleep {
            let time = if again {
                Some(tick)
            } else {
                let due = self.policy.next_deadline(self.now);
                due.map(|due| due.saturating_sub(self.now))
            };
            return self.monitor_sleeps(time);
        }
        self.monitor.quiet = if again { 0 } else { self.monitor.quiet + 1 };
        if self.monitor.quiet < LINGER {
            return self.monitor_sleeps(Some(tick));
        }
        // It says that it sleeps, and looks once more.
        self.monitor.asleep = true;
        let read = self.now;
        self.goes_on(MONITOR, Doing::Ticking { read }, TICK)
    }

    fn monitor_sleeps(&mut self, time: Option<u64>) -> Option<u64> {
        if self.monitor.rung {
            return self.goes_on(MONITOR, Doing::Sleeping, LOCK);
        }
        if let Some(time) = time {
            let mut late = 0;
            if self.rng.chance(self.scenario.faults.lost_ticks_per_mille) {
                self.note(Who::Monitor, What::TimerLost);
                late = ns(self.scenario.pool.handover) * (1 + self.rng.below(20));
            }
            self.monitor.until = Some(self.now.saturating_add(time));
            self.sleep_for(MONITOR, time.saturating_add(late));
        }
        let until = self.monitor.until;
        self.note(Who::Monitor, What::Sleep { until });
        self.sleeps(MONITOR, Doing::Sleeping)
    }

    // ---- the report ----

    fn report(self) -> Report {
        let classes = self
            .scenario
            .classes
            .iter()
            .zip(self.latencies)
            .zip(self.abandoned)
            .map(|((class, mut times), abandoned)| {
                times.sort_unstable();
                let quantile = |per_cent: usize| {
                    let at = (times.len() * per_cent / 100).min(times.len().saturating_sub(1));
                    Duration::from_nanos(times.get(at).copied().unwrap_or(0))
                };
                Latencies {
                    name: class.name,
                    answered: times.len(),
                    abandoned,
                    p50: quantile(50),
                    p99: quantile(99),
                    max: quantile(100),
                }
            })
            .collect();
        Report {
            trace_hash: trace::hash(&self.trace),
            trace: self.trace,
            classes,
            threads_peak: self.policy.book.threads_peak(),
            ticks: self.monitor.ticks,
            violations: self.policy.book.violation().cloned().into_iter().collect(),
        }
    }
}
