//! The world around the scheduler: clients, sockets, the poller, threads, locks, the monitor; and
//! the loop over its events.
//!
//! Threads do what `group/worker.rs` and `group/monitor.rs` do, step by step: a step is a burst on a
//! core and then one move, as long as the shipping code holds the lock. A clock that is read before
//! the lock is read before the burst, so a thread that loses its core in between comes with an old
//! one.

mod clients;
mod monitor;
mod worker;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use crate::sim::cpu::{Cpu, ThreadId};
use crate::sim::policy::{Asks, Policy, Seen};
use crate::sim::rng::Rng;
use crate::sim::trace::{self, Ended, Entry, What, Who};
use crate::sim::{Class, Latencies, Op, Report, Scenario, ns};

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
            // The monitor has seen to the latter.
            Asks::Nothing | Asks::Spare => {}
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
