//! What a machine makes of a crowd: the same scheduler, on as many virtual cores as one likes, beside
//! thread-per-connection, under a database's load.
//!
//! [`run`](super::run) asks whether the scheduler keeps its promises, in small worlds and to the last
//! event. Here it is asked for numbers, in worlds of thousands of clients: the decisions are made by the
//! code that ships, nothing is checked, and the machine is a few costs ([`Costs`]) that `study calibrate`
//! measures. The monitor looks each `handover` and costs nothing.
//!
//! The database ([`Engine`]) is one lock that every statement takes. Nobody reports waiting for it, as
//! nobody did in the database whose published curves this is compared with; whoever gives it up wakes one
//! that waits, and who is on a core meanwhile may take it first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::cpu::{Cpu, ThreadId};
use super::ns;
use super::rng::Rng;
use crate::config::{Limits, PoolConfig};
use crate::port::{Event as Input, Readiness};
use crate::sched::{
    Actions, Bounds, Call, End, Job, Key, Lane, NEVER, Nanos, State, Step, Turn, WorkerId,
};

/// The most events that a worker fetches from its poller at once, as in the server.
const BATCH: usize = crate::group::worker::BATCH;

/// What a machine takes for what a scheduler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// To switch a core to another thread.
    pub switch: Duration,
    /// From waking a thread until it may run, on the thread's side.
    pub wake: Duration,
    /// What a pool adds to each command: its lock, its lanes, its part of a look at the poller.
    pub dispatch: Duration,
    /// To create a thread.
    pub create: Duration,
    /// How long a thread runs until another one has its turn.
    pub slice: Duration,
}

/// The database below the statements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Engine {
    /// How long the lock is held for a statement of weight 1.
    pub hold: Duration,
    /// How much longer for each session inside, beyond `crowd_from`: whoever has the lock walks a list
    /// of them. A session is inside from when its thread is on the way to a statement, in a transaction
    /// until it has ended.
    pub crowd: Duration,
    /// So many do no harm.
    pub crowd_from: usize,
    /// By what part of itself everything takes longer for each connection that there is.
    pub stretch: f64,
}

/// A statement, as the database sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement {
    /// What it computes, its messages included; drawn evenly between a half and one and a half of it.
    pub cpu: Duration,
    /// How much it has to do under the lock; 0 leaves the lock alone.
    pub weight: f64,
}

/// Who runs the statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A pool; its groups share the cores.
    Pool(PoolConfig),
    /// A thread for each connection.
    ThreadPerConnection,
}

/// A world to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Crowd {
    /// The cores that all threads share. Clients are elsewhere.
    pub cores: usize,
    /// Connections, each with one client that sends as soon as it has been answered.
    pub clients: usize,
    /// Who runs the statements.
    pub by: By,
    /// The machine.
    pub costs: Costs,
    /// The database.
    pub engine: Engine,
    /// What a client sends, over and over: one statement, or a transaction of several.
    pub transaction: Vec<Statement>,
    /// From an answer until the next statement is there.
    pub turnaround: Duration,
    /// How many transactions are counted, after as many as there are clients.
    pub count: usize,
    /// One seed gives one run.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Transactions a second.
    pub per_second: f64,
    /// Half of the transactions were faster.
    pub p50: Duration,
    /// 99 of 100 were.
    pub p99: Duration,
    /// The most threads that there were, without the monitor.
    pub threads_peak: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A core has run for its stretch.
    Core(usize),
    /// A statement reaches the server.
    Sent(usize),
    /// A created thread is there.
    Born(ThreadId),
    /// The monitor looks at every group.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// In a pool: about to take.
    Asking,
    Polling {
        block: bool,
    },
    /// Parked, or waiting for input on a thread of its own.
    Resting,
    /// About to begin with this client's statement, if there is one.
    Beginning(usize),
    /// Computing.
    Computing(usize),
    /// About to try the lock: asleep there, if it waits.
    Locking(usize),
    /// Under the lock.
    Holding(usize),
    Settling(usize),
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    doing: Doing,
    /// The group and its worker, in a pool.
    of: Option<(usize, WorkerId)>,
    asleep: bool,
}

struct Group {
    state: State<usize>,
    ready: VecDeque<usize>,
    rung: bool,
    /// The threads of its workers, by the workers' numbers.
    threads: Vec<ThreadId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// Its place in the transaction.
    at: usize,
    sent: bool,
    inside: bool,
    began: u64,
}

struct World<'a> {
    crowd: &'a Crowd,
    rng: Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    cpu: Cpu,
    threads: Vec<Thread>,
    alive: usize,
    peak: usize,
    groups: Vec<Group>,
    keys: Vec<Option<Key>>,
    clients: Vec<Client>,
    inside: usize,
    holder: Option<ThreadId>,
    waiting: VecDeque<ThreadId>,
    /// Transactions that ended, and since when they count.
    done: usize,
    since: u64,
    times: Vec<u64>,
}

/// Runs until enough transactions have been counted.
///
/// # Panics
/// If there is no statement, or the pool would be refused by a server.
pub fn measure(crowd: &Crowd) -> Measured {
    assert!(
        !crowd.transaction.is_empty(),
        "a transaction has statements"
    );
    let mut world = World::new(crowd);
    world.begin();
    let wanted = crowd.clients + crowd.count.max(1);
    while world.done < wanted {
        while let Some((core, stretch)) = world.cpu.start() {
            world.later(stretch, Event::Core(core));
        }
        let Some(Reverse((at, _, event))) = world.events.pop() else {
            break;
        };
        world.now = at;
        world.happens(event);
    }
    world.measured()
}

impl<'a> World<'a> {
    fn new(crowd: &'a Crowd) -> Self {
        let Costs { switch, slice, .. } = crowd.costs;
        Self {
            crowd,
            rng: Rng::new(crowd.seed),
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            cpu: Cpu::new(crowd.cores, ns(slice), ns(switch)),
            threads: Vec::new(),
            alive: 0,
            peak: 0,
            groups: Vec::new(),
            keys: vec![None; crowd.clients],
            clients: vec![Client::default(); crowd.clients],
            inside: 0,
            holder: None,
            waiting: VecDeque::new(),
            done: 0,
            since: 0,
            times: Vec::new(),
        }
    }

    fn begin(&mut self) {
        match &self.crowd.by {
            By::ThreadPerConnection => {
                for _ in 0..self.crowd.clients {
                    self.threads.push(Thread {
                        doing: Doing::Resting,
                        of: None,
                        asleep: true,
                    });
                }
                (self.alive, self.peak) = (self.crowd.clients, self.crowd.clients);
            }
            By::Pool(pool) => {
                pool.check().expect("a pool that a server would take");
                for group in 0..pool.groups {
                    self.groups.push(Group {
                        state: State::new(Bounds::new(pool, &Limits::default())),
                        ready: VecDeque::new(),
                        rung: false,
                        threads: Vec::new(),
                    });
                    self.spawn(group);
                }
                for client in 0..self.crowd.clients {
                    let group = client % pool.groups;
                    let now = Nanos(self.now);
                    if let Ok((key, actions)) = self.groups[group].state.attach(client, now) {
                        self.keys[client] = Some(key);
                        self.perform(group, actions);
                    }
                }
                self.later(ns(pool.handover), Event::Tick);
            }
        }
        for client in 0..self.crowd.clients {
            let at = self.rng.below(1_000_000);
            self.later(at, Event::Sent(client));
        }
    }

    fn later(&mut self, after: u64, event: Event) {
        self.count += 1;
        self.events
            .push(Reverse((self.now + after, self.count, event)));
    }

    /// Everything takes longer where there are many.
    fn stretched(&self, time: f64) -> u64 {
        let stretch = 1.0 + self.crowd.engine.stretch * self.crowd.clients as f64;
        // A time of this world: positive, and far below the range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let time = (time * stretch) as u64;
        time.max(1)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Core(core) => {
                let more = match self.cpu.look(core) {
                    // The slice is over.
                    None => Some(0),
                    Some(thread) => self.step(thread),
                };
                match more {
                    Some(more) => {
                        if let Some(stretch) = self.cpu.go_on(core, more) {
                            self.later(stretch, Event::Core(core));
                        }
                    }
                    None => self.cpu.leave(core),
                }
            }
            Event::Sent(client) => self.sent(client),
            Event::Born(thread) => self.wake(thread),
            Event::Tick => self.tick(),
        }
    }

    fn sent(&mut self, client: usize) {
        let now = self.now;
        let state = &mut self.clients[client];
        state.sent = true;
        if state.at == 0 {
            state.began = now;
        }
        if self.groups.is_empty() {
            // Its thread is on the way.
            self.enter(client);
            self.threads[client].doing = Doing::Beginning(client);
            self.wake(client);
        } else {
            let group = client % self.groups.len();
            self.groups[group].ready.push_back(client);
            self.wake_poller(group);
        }
    }

    fn enter(&mut self, client: usize) {
        if !std::mem::replace(&mut self.clients[client].inside, true) {
            self.inside += 1;
        }
    }

    // ---- threads ----

    fn wake(&mut self, thread: ThreadId) {
        let t = &mut self.threads[thread];
        if std::mem::replace(&mut t.asleep, false) {
            self.cpu.ready(thread, ns(self.crowd.costs.wake).max(1));
        }
    }

    fn sleeps(&mut self, thread: ThreadId, doing: Doing) -> Option<u64> {
        self.threads[thread].doing = doing;
        self.threads[thread].asleep = true;
        None
    }

    fn goes_on(&mut self, thread: ThreadId, doing: Doing, burst: u64) -> Option<u64> {
        self.threads[thread].doing = doing;
        Some(burst)
    }

    fn spawn(&mut self, group: usize) {
        let due = self.groups[group].state.due_to_stall();
        let worker = self.groups[group]
            .state
            .spawning(Nanos(self.now), due, false);
        let born = Thread {
            doing: Doing::Asking,
            of: Some((group, worker)),
            asleep: true,
        };
        let threads = &mut self.groups[group].threads;
        let thread = match threads.get(worker.index()) {
            Some(thread) => {
                self.threads[*thread] = born;
                *thread
            }
            None => {
                threads.push(self.threads.len());
                self.threads.push(born);
                self.threads.len() - 1
            }
        };
        self.alive += 1;
        self.peak = self.peak.max(self.alive);
        self.later(ns(self.crowd.costs.create), Event::Born(thread));
    }

    /// What a thread does when its burst is over; for how long it goes on, if it does.
    fn step(&mut self, thread: ThreadId) -> Option<u64> {
        match self.threads[thread].doing {
            Doing::Asking => self.take(thread),
            Doing::Resting => {
                let (group, worker) = self.threads[thread].of?;
                let state = &mut self.groups[group].state;
                let timed_out = state.is_parked(worker);
                if state.slept(worker, timed_out) {
                    self.take(thread)
                } else {
                    self.alive -= 1;
                    self.sleeps(thread, Doing::Gone)
                }
            }
            Doing::Polling { block } => self.look_at_poller(thread, block),
            Doing::Beginning(client) => {
                if !self.clients[client].sent {
                    // The turn that opens a connection.
                    return self.settle(thread, client);
                }
                self.clients[client].sent = false;
                self.enter(client);
                let cpu = self.statement(client).cpu.as_nanos() as f64;
                let drawn = cpu * (0.5 + self.rng.below(1_001) as f64 / 1e3);
                let burst = self.stretched(drawn);
                self.goes_on(thread, Doing::Computing(client), burst)
            }
            Doing::Computing(client) => {
                if self.statement(client).weight > 0.0 {
                    self.lock(thread, client)
                } else {
                    self.answer(thread, client)
                }
            }
            Doing::Locking(client) => self.lock(thread, client),
            Doing::Holding(client) => {
                self.holder = None;
                if let Some(next) = self.waiting.pop_front() {
                    self.wake(next);
                }
                self.answer(thread, client)
            }
            Doing::Settling(client) => self.settle(thread, client),
            Doing::Gone => self.sleeps(thread, Doing::Gone),
        }
    }

    fn statement(&self, client: usize) -> Statement {
        self.crowd.transaction[self.clients[client].at]
    }

    fn lock(&mut self, thread: ThreadId, client: usize) -> Option<u64> {
        if self.holder.is_some() {
            self.waiting.push_back(thread);
            return self.sleeps(thread, Doing::Locking(client));
        }
        self.holder = Some(thread);
        let engine = &self.crowd.engine;
        let crowd = self.inside.saturating_sub(engine.crowd_from) as f64;
        let one = engine.hold.as_nanos() as f64 + engine.crowd.as_nanos() as f64 * crowd;
        let burst = self.stretched(one * self.statement(client).weight);
        self.goes_on(thread, Doing::Holding(client), burst)
    }

    /// The statement is done, and its answer on the way.
    fn answer(&mut self, thread: ThreadId, client: usize) -> Option<u64> {
        let now = self.now;
        let state = &mut self.clients[client];
        state.at += 1;
        if state.at == self.crowd.transaction.len() {
            state.at = 0;
            state.inside = false;
            self.inside -= 1;
            self.done += 1;
            if self.done == self.crowd.clients {
                self.since = now;
            } else if self.done > self.crowd.clients {
                self.times.push(now - self.clients[client].began);
            }
        }
        let turnaround = ns(self.crowd.turnaround);
        self.later(turnaround, Event::Sent(client));
        if self.groups.is_empty() {
            return self.sleeps(thread, Doing::Resting);
        }
        let dispatch = ns(self.crowd.costs.dispatch).max(1);
        self.goes_on(thread, Doing::Settling(client), dispatch)
    }

    // ---- a pool's ----

    fn take(&mut self, thread: ThreadId) -> Option<u64> {
        let (group, worker) = self.threads[thread].of?;
        let (step, actions) = self.groups[group].state.take(worker, Nanos(self.now));
        let more = match step {
            Step::Run(Job { task, .. }) => self.goes_on(thread, Doing::Beginning(task), 1),
            Step::Poll { block } => self.goes_on(thread, Doing::Polling { block }, 1),
            Step::Park(_) => self.sleeps(thread, Doing::Resting),
            Step::Exit => {
                self.alive -= 1;
                self.sleeps(thread, Doing::Gone)
            }
        };
        self.perform(group, actions);
        more
    }

    fn look_at_poller(&mut self, thread: ThreadId, block: bool) -> Option<u64> {
        let (group, worker) = self.threads[thread].of?;
        let of = &mut self.groups[group];
        if block && of.ready.is_empty() && !of.rung {
            return self.sleeps(thread, Doing::Polling { block });
        }
        of.rung = false;
        let many = of.ready.len().min(BATCH);
        let keys = &self.keys;
        let seen = of.ready.drain(..many).filter_map(|client| {
            Some(Input {
                token: keys[client]?.to_token(),
                readiness: Readiness::READABLE,
            })
        });
        of.state.harvested(worker, seen, Nanos(self.now));
        self.take(thread)
    }

    fn settle(&mut self, thread: ThreadId, client: usize) -> Option<u64> {
        let (group, worker) = self.threads[thread].of?;
        let turn = Turn {
            end: End::Idle { in_command: false },
            lane: Lane::Low,
            holding: None,
            in_transaction: self.clients[client].at > 0,
            heard: true,
            look_again: false,
            calls: 1,
            until: NEVER,
        };
        if let Some(key) = self.keys[client] {
            let state = &mut self.groups[group].state;
            let gone = state.settle(worker, key, client, turn, Nanos(self.now));
            debug_assert_eq!(gone, None, "nobody closes");
        }
        self.take(thread)
    }

    fn wake_poller(&mut self, group: usize) {
        let polls = |thread: &&ThreadId| {
            let t = &self.threads[**thread];
            t.asleep && matches!(t.doing, Doing::Polling { .. })
        };
        if let Some(thread) = self.groups[group].threads.iter().find(polls).copied() {
            self.wake(thread);
        }
    }

    fn perform(&mut self, group: usize, actions: Actions) {
        match actions.call {
            Call::Nobody => {}
            Call::Worker(worker) => {
                let thread = self.groups[group].threads[worker.index()];
                self.wake(thread);
            }
            Call::Poller => {
                self.groups[group].rung = true;
                self.wake_poller(group);
            }
            Call::Spawn | Call::Spare => self.create(group),
        }
    }

    fn create(&mut self, group: usize) {
        if let By::Pool(pool) = &self.crowd.by
            && self.alive < pool.max_threads
        {
            self.spawn(group);
        }
    }

    fn tick(&mut self) {
        let By::Pool(pool) = &self.crowd.by else {
            return;
        };
        self.later(ns(pool.handover), Event::Tick);
        for group in 0..self.groups.len() {
            let now = Nanos(self.now);
            let actions = self.groups[group].state.tick(now);
            self.perform(group, actions);
            for suspect in self.groups[group].state.suspects(now) {
                let thread = self.groups[group].threads[suspect.worker.index()];
                let blocked = self.threads[thread].asleep;
                let actions = self.groups[group].state.judge(suspect, blocked, now);
                self.perform(group, actions);
            }
        }
    }

    fn measured(mut self) -> Measured {
        self.times.sort_unstable();
        let quantile = |per_cent: usize| {
            let at = (self.times.len() * per_cent / 100).min(self.times.len().saturating_sub(1));
            Duration::from_nanos(self.times.get(at).copied().unwrap_or(0))
        };
        let seconds = Duration::from_nanos(self.now - self.since).as_secs_f64();
        Measured {
            per_second: self.times.len() as f64 / seconds.max(1e-9),
            p50: quantile(50),
            p99: quantile(99),
            threads_peak: self.peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(cores: usize, clients: usize, by: By) -> Crowd {
        let us = Duration::from_micros;
        Crowd {
            cores,
            clients,
            by,
            costs: Costs {
                switch: us(2),
                wake: us(2),
                dispatch: us(1),
                create: us(50),
                slice: us(3_000),
            },
            engine: Engine {
                hold: us(1),
                crowd: Duration::from_nanos(50),
                crowd_from: 100,
                stretch: 0.0,
            },
            transaction: vec![Statement {
                cpu: us(100),
                weight: 1.0,
            }],
            turnaround: us(50),
            count: 3_000,
            seed: 1,
        }
    }

    fn pool(groups: usize) -> By {
        By::Pool(PoolConfig::default().groups(groups))
    }

    #[test]
    fn cores_are_what_a_statement_without_rivals_is_bounded_by() {
        for by in [pool(8), By::ThreadPerConnection] {
            for cores in [2, 8] {
                let measured = measure(&crowd(cores, 64, by.clone()));
                let bound = cores as f64 / 101e-6;
                assert!(
                    (0.7..1.01).contains(&(measured.per_second / bound)),
                    "{by:?} on {cores}: {measured:?}"
                );
            }
        }
    }

    #[test]
    fn a_crowd_at_the_lock_costs_threads_and_not_the_pool() {
        let kept = |by: By| {
            let few = measure(&crowd(8, 64, by.clone())).per_second;
            measure(&crowd(8, 2_000, by)).per_second / few
        };
        let (threads, pool) = (kept(By::ThreadPerConnection), kept(pool(8)));
        assert!(threads < 0.3 && pool > 0.9, "{threads} {pool}");
    }

    #[test]
    fn open_transactions_are_a_crowd_under_a_pool_too() {
        let of = |clients| {
            let mut crowd = crowd(8, clients, pool(8));
            crowd.transaction = vec![crowd.transaction[0]; 3];
            measure(&crowd).per_second
        };
        let kept = of(4_000) / of(64);
        assert!(kept < 0.7, "{kept}");
    }

    #[test]
    fn one_seed_gives_one_run() {
        for by in [pool(2), By::ThreadPerConnection] {
            let crowd = crowd(2, 50, by);
            let other = Crowd {
                seed: 2,
                ..crowd.clone()
            };
            assert_eq!(measure(&crowd), measure(&crowd));
            assert_ne!(measure(&crowd), measure(&other));
        }
    }
}
