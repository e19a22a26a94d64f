//! The scheduler as the simulator knows it: every contact with [`State`] is here, and each move is
//! written into the [`Book`].
//!
//! The simulator's names are plain numbers: a connection's, never used again, and a worker's.

use super::book::Book;
use super::ns;
use super::trace::Ended;
use crate::config::{Limits, PoolConfig};
use crate::group::monitor::RETRY;
use crate::port::{Event, Readiness};
use crate::sched::{
    Actions, Bounds, Call, Job, Key, Lane, NEVER, Nanos, State, Step, Turn, WorkerId,
};

/// What a worker is to do.
pub(super) enum Next {
    Run {
        conn: usize,
        close: bool,
        read_closed: bool,
    },
    Poll {
        block: bool,
    },
    Park {
        time: u64,
    },
    Exit,
}

/// Whom the outside must wake.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    Nothing,
    Worker(usize),
    Poller,
    Thread,
    /// If there is room.
    Spare,
}

/// What the monitor found.
pub(super) struct Tick {
    pub(super) asks: Asks,
    /// Workers that are called beside.
    pub(super) others: Vec<usize>,
    pub(super) due_to_stall: bool,
    pub(super) again: bool,
}

/// An event of a connection, as the poller has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) conn: usize,
    pub(super) read_closed: bool,
}

pub(super) struct Policy {
    state: State<usize>,
    keys: Vec<Key>,
    high: Vec<bool>,
    workers: Vec<WorkerId>,
    pub(super) book: Book,
}

impl Policy {
    pub(super) fn new(pool: &PoolConfig) -> Self {
        Self {
            state: State::new(Bounds::new(pool, &Limits::default())),
            keys: Vec::new(),
            high: Vec::new(),
            workers: Vec::new(),
            book: Book::new(pool),
        }
    }

    /// What a move asked for, written down and checked. The second: the monitor is to be rung if it
    /// sleeps.
    fn asks(&mut self, actions: Actions, now: u64) -> (Asks, bool) {
        let asks = match actions.call {
            Call::Nobody => Asks::Nothing,
            Call::Worker(worker) => {
                self.book.called(worker.index(), now);
                Asks::Worker(worker.index())
            }
            Call::Poller => {
                self.book.rung(now);
                Asks::Poller
            }
            Call::Spawn => Asks::Thread,
            Call::Spare => Asks::Spare,
        };
        self.book.nobody_missing(now);
        self.compare(now);
        (asks, actions.tick)
    }

    fn compare(&mut self, now: u64) {
        self.book.compare(&self.state.stats(), now);
    }

    // ---- from outside ----

    /// The next connection.
    pub(super) fn attach(&mut self, high: bool, now: u64) -> (Asks, bool) {
        let conn = self.keys.len();
        match self.state.attach(conn, Nanos(now)) {
            Ok((key, actions)) => {
                self.keys.push(key);
                self.high.push(high);
                self.book.attached(conn, high, now);
                self.asks(actions, now)
            }
            Err(_) => {
                self.book.breaks(11, now, "refused before the stop");
                (Asks::Nothing, false)
            }
        }
    }

    pub(super) fn kill(&mut self, conn: usize, now: u64) -> (Asks, bool) {
        if !self.state.contains(self.keys[conn]) {
            self.book
                .breaks(3, now, format!("connection {conn} is not there"));
        }
        let actions = self.state.kill(self.keys[conn], Nanos(now));
        self.book.killed(conn, now);
        self.asks(actions, now)
    }

    pub(super) fn drain(&mut self, now: u64) -> (Asks, bool) {
        let actions = self.state.drain(false, Nanos(now));
        self.book.drained(now);
        self.asks(actions, now)
    }

    /// Parked workers to be woken, and whether to ring the poller.
    pub(super) fn stop(&mut self, now: u64) -> (Vec<usize>, bool) {
        let (workers, poller) = self.state.stop();
        let workers: Vec<usize> = workers.iter().map(|worker| worker.index()).collect();
        for worker in &workers {
            self.book.called(*worker, now);
        }
        (workers, poller)
    }

    pub(super) fn leftovers(&mut self) -> usize {
        self.state.leftovers().len()
    }

    // ---- a worker ----

    pub(super) fn take(&mut self, worker: usize, now: u64) -> (Next, (Asks, bool)) {
        let (step, actions) = self.state.take(self.workers[worker], Nanos(now));
        let next = match step {
            Step::Run(Job {
                key, task, wake, ..
            }) => {
                let (close, read_closed) = (
                    wake.close.is_some(),
                    wake.ready.has_any_of(Readiness::READ_CLOSED),
                );
                if key != self.keys[task] {
                    self.book.breaks(3, now, "a connection has another's key");
                }
                let told = (wake.ready.input(), close);
                self.book.runs(worker, task, told, now);
                Next::Run {
                    conn: task,
                    close,
                    read_closed,
                }
            }
            Step::Poll { block } => {
                self.book.polls(worker, block, now);
                Next::Poll { block }
            }
            Step::Park(time) => {
                self.book.parks(worker);
                Next::Park { time: time.0 }
            }
            Step::Exit => {
                self.book.leaves(worker, now);
                Next::Exit
            }
        };
        (next, self.asks(actions, now))
    }

    /// Next it takes.
    pub(super) fn harvested(&mut self, worker: usize, seen: &[Seen], now: u64) {
        let events = seen.iter().map(|seen| Event {
            token: self.keys[seen.conn].to_token(),
            readiness: Readiness::READABLE.and(Readiness::READ_CLOSED.when(seen.read_closed)),
        });
        let id = self.workers[worker];
        self.state.harvested(id, events, Nanos(now));
        let alive = |conn: &usize| self.state.contains(self.keys[*conn]);
        let conns: Vec<usize> = seen.iter().map(|seen| seen.conn).filter(alive).collect();
        self.book.harvested(worker, &conns, now);
    }

    /// Whether it stays, and takes next.
    pub(super) fn slept(&mut self, worker: usize, now: u64) -> bool {
        let id = self.workers[worker];
        let timed_out = self.state.is_parked(id);
        let stays = self.state.slept(id, timed_out);
        self.book.slept(worker, stays, now);
        stays
    }

    /// Next it takes.
    pub(super) fn settle(
        &mut self,
        worker: usize,
        conn: usize,
        (end, calls): (Ended, u32),
        now: u64,
    ) {
        let turn = Turn {
            end: match end {
                Ended::Idle => crate::sched::End::Idle { in_command: false },
                Ended::Again => crate::sched::End::Again,
                Ended::Closed => crate::sched::End::Closed,
            },
            lane: if self.high[conn] {
                Lane::High
            } else {
                Lane::Low
            },
            holding: None,
            in_transaction: false,
            heard: true,
            look_again: false,
            calls,
            until: NEVER,
        };
        let (id, key) = (self.workers[worker], self.keys[conn]);
        let gone = self.state.settle(id, key, conn, turn, Nanos(now));
        if gone != (end == Ended::Closed).then_some(conn) {
            self.book
                .breaks(3, now, format!("settling {conn} gave back {gone:?}"));
        }
        self.book.settled(worker, conn, end, now);
    }

    pub(super) fn wait_begin(&mut self, worker: usize, now: u64) -> (Asks, bool) {
        let actions = self
            .state
            .wait_begin(self.workers[worker], None, Nanos(now));
        self.book.wait_begins(worker, now);
        self.asks(actions, now)
    }

    pub(super) fn wait_end(&mut self, worker: usize, now: u64) {
        self.state.wait_end(self.workers[worker], Nanos(now));
        self.book.wait_ends(worker, now);
        self.compare(now);
    }

    pub(super) fn say_long(&mut self, worker: usize, now: u64) -> (Asks, bool) {
        let actions = self.state.declare_long(self.workers[worker], Nanos(now));
        self.book.says_long(worker);
        self.asks(actions, now)
    }

    // ---- the monitor ----

    pub(super) fn tick(&mut self, now: u64) -> Tick {
        let actions = self.state.tick(Nanos(now));
        let others = self.state.call_for_slots(Nanos(now));
        let others: Vec<usize> = others.into_iter().map(WorkerId::index).collect();
        let due_to_stall = self.state.due_to_stall();
        self.book.ticks(now);
        for worker in &others {
            self.book.called(*worker, now);
        }
        let (asks, again) = self.asks(actions, now);
        Tick {
            asks,
            others,
            due_to_stall,
            again,
        }
    }

    /// The worker that the monitor is about to create a thread for.
    pub(super) fn spawning(&mut self, due_to_stall: bool, now: u64) -> usize {
        let id = self.state.spawning(Nanos(now), due_to_stall, false);
        if id.index() == self.workers.len() {
            self.workers.push(id);
        }
        self.book.spawning(id.index(), now);
        self.compare(now);
        id.index()
    }

    pub(super) fn spawn_failed(&mut self, worker: usize, now: u64) {
        let retry = Nanos(now + ns(RETRY));
        self.state.spawn_failed(self.workers[worker], retry);
        self.book.spawn_failed(worker, now);
        self.compare(now);
    }

    pub(super) fn capped(&mut self, now: u64) {
        if self.state.capped(Nanos(now)) {
            self.book
                .breaks(7, now, "a thread beyond the cap, and nobody holds");
        }
    }

    pub(super) fn next_deadline(&mut self, now: u64) -> Option<u64> {
        self.state.next_deadline(Nanos(now)).map(|due| due.0)
    }
}
