//! The book kept beside the scheduler: what must be so, from what was seen to happen.
//!
//! It hears of every move and of its outcome, and knows of the scheduler only what the design note
//! says. What follows from that must be what the scheduler says of itself ([`Book::compare`]), must
//! allow what it does ([`Book::runs`]), and must not leave anything undone ([`Book::nobody_missing`],
//! [`Book::elapse`]).

use std::time::Duration;

use super::trace::Ended;
use super::{Violation, ns};
use crate::config::PoolConfig;
use crate::group::monitor::{LINGER, RETRY};
use crate::stats::GroupStats;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Control,
    High,
    Low,
    Long,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Queued { lane: Lane, since: u64, place: u64 },
    Held,
    Idle,
    Gone,
}

#[derive(Clone, Debug)]
struct Conn {
    at: At,
    high: bool,
    was_long: bool,
    /// It is to be closed.
    closing: bool,
    /// There has been input since a worker last took it.
    input: bool,
}

/// A command, or a turn of them, on a worker.
#[derive(Clone, Copy, Debug)]
struct Turn {
    conn: usize,
    /// Moved forward by the time that it has waited.
    started: u64,
    ran: u64,
    waiting: bool,
    long: bool,
    declared: bool,
}

#[derive(Clone, Copy, Debug)]
enum Worker {
    Gone,
    /// Starting, called, or looking right now.
    Coming,
    Parked,
    Polling {
        called: bool,
    },
    Running(Turn),
}

#[derive(Debug)]
pub(super) struct Book {
    slots: usize,
    max_long: usize,
    max_threads: usize,
    stall_limit: u64,
    handover: u64,
    kickup: u64,
    throttle: u64,
    conns: Vec<Conn>,
    workers: Vec<Worker>,
    /// In the lanes, in the order of [`Lane`].
    queued: [usize; 4],
    resting: usize,
    places: u64,
    draining: bool,
    created_at: u64,
    failed_at: Option<u64>,
    /// When somebody last left the long lane who was old enough to be promoted.
    promoted_at: u64,
    /// For how long work, or the poller, has been left alone with somebody there to see to it.
    work_left: u64,
    poller_left: u64,
    /// Looks of the monitor since something last happened.
    quiet: u32,
    threads_peak: usize,
    violation: Option<Violation>,
}

impl Book {
    pub(super) fn new(pool: &PoolConfig) -> Self {
        Self {
            slots: 1 + pool.oversubscribe,
            max_long: pool.oversubscribe,
            max_threads: pool.max_threads,
            stall_limit: ns(pool.stall_limit),
            handover: ns(pool.handover),
            kickup: ns(pool.kickup),
            throttle: ns(pool.creation_throttle),
            conns: Vec::new(),
            workers: Vec::new(),
            queued: [0; 4],
            resting: 0,
            places: 0,
            draining: false,
            created_at: 0,
            failed_at: None,
            promoted_at: 0,
            work_left: 0,
            poller_left: 0,
            quiet: 0,
            threads_peak: 0,
            violation: None,
        }
    }

    /// Writes down a violation; the first one is what matters.
    pub(super) fn breaks(&mut self, invariant: u8, now: u64, what: impl Into<String>) {
        let at = Duration::from_nanos(now);
        let what = what.into();
        self.violation.get_or_insert(Violation {
            invariant,
            at,
            what,
        });
    }

    pub(super) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    // ---- what follows ----

    fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.workers.iter().filter_map(|worker| match worker {
            Worker::Running(turn) => Some(turn),
            _ => None,
        })
    }

    /// Those that hold a slot.
    fn active(&self) -> impl Iterator<Item = &Turn> {
        self.turns().filter(|turn| !turn.waiting && !turn.long)
    }

    fn long(&self) -> usize {
        let long = |turn: &&Turn| !turn.waiting && turn.long;
        self.turns().filter(long).count()
    }

    /// Those, and the ones of which the same is to be expected.
    fn long_or_likely(&self) -> usize {
        let likely = |turn: &&Turn| !turn.waiting && (turn.long || self.conns[turn.conn].was_long);
        self.turns().filter(likely).count()
    }

    fn count(&self, is: impl Fn(&Worker) -> bool) -> usize {
        self.workers.iter().filter(|worker| is(worker)).count()
    }

    pub(super) fn threads(&self) -> usize {
        self.count(|worker| !matches!(worker, Worker::Gone))
    }

    pub(super) fn threads_peak(&self) -> usize {
        self.threads_peak
    }

    pub(super) fn connections(&self) -> usize {
        self.conns.iter().filter(|conn| conn.at != At::Gone).count()
    }

    fn polling(&self) -> bool {
        self.count(|worker| matches!(worker, Worker::Polling { .. })) > 0
    }

    pub(super) fn is_parked(&self, worker: usize) -> bool {
        matches!(self.workers[worker], Worker::Parked)
    }

    /// Whether the poller's turn to take has come without an event.
    pub(super) fn is_called(&self, worker: usize) -> bool {
        matches!(
            self.workers[worker],
            Worker::Coming | Worker::Polling { called: true }
        )
    }

    fn fresh(&self, now: u64) -> bool {
        // One whose last command was long counts as having run for `handover` from the start.
        self.active().any(|turn| {
            !self.conns[turn.conn].was_long && now.saturating_sub(turn.started) < self.handover
        })
    }

    fn gate_open(&self, now: u64) -> bool {
        self.active().count() < self.slots && !self.fresh(now)
    }

    /// Whether a lane offers somebody, but for those that age promotes.
    fn offer(&self) -> bool {
        let [control, high, low, long] = self.queued;
        control + high + low > 0 || (long > 0 && self.long_or_likely() < self.max_long)
    }

    /// Whether age must have promoted somebody by the next tick.
    fn promotes(&self, now: u64) -> bool {
        let aged = |conn: &Conn| match conn.at {
            At::Queued {
                lane: Lane::Long,
                since,
                ..
            } => now >= since.saturating_add(self.kickup),
            _ => false,
        };
        now.saturating_sub(self.promoted_at) >= self.kickup && self.conns.iter().any(aged)
    }

    /// Whether a thread could be had, for certain: at the longest pause.
    fn creatable(&self, now: u64) -> bool {
        let failed = self.failed_at.is_some_and(|at| now < at + ns(RETRY));
        let threads = self.threads();
        let waiting = self.turns().filter(|turn| turn.waiting).count();
        let paused = threads - waiting >= self.slots
            && self.active().next().is_some()
            && now.saturating_sub(self.created_at) < 4 * self.throttle;
        threads < self.max_threads && !failed && !paused
    }

    /// Nothing is to be done, and somebody waits for there to be.
    pub(super) fn at_rest(&self) -> bool {
        self.queued == [0; 4]
            && self.turns().next().is_none()
            && self.polling()
            && self
                .count(|worker| matches!(worker, Worker::Coming | Worker::Polling { called: true }))
                == 0
    }

    // ---- what happens to connections ----

    fn enqueue(&mut self, conn: usize, now: u64) {
        self.places += 1;
        let book = &self.conns[conn];
        let lane = match (book.closing, book.high, book.was_long) {
            (true, ..) => Lane::Control,
            (_, true, _) => Lane::High,
            (_, _, true) => Lane::Long,
            _ => Lane::Low,
        };
        match book.at {
            At::Queued { lane, since, .. } => self.leaves_lane(lane, since, now),
            At::Idle => self.resting -= 1,
            At::Held | At::Gone => {}
        }
        self.queued[lane as usize] += 1;
        self.conns[conn].at = At::Queued {
            lane,
            since: now,
            place: self.places,
        };
    }

    fn leaves_lane(&mut self, lane: Lane, since: u64, now: u64) {
        self.queued[lane as usize] -= 1;
        if lane == Lane::Long && now.saturating_sub(since) >= self.kickup {
            self.promoted_at = now;
        }
    }

    pub(super) fn attached(&mut self, conn: usize, high: bool, now: u64) {
        assert_eq!(conn, self.conns.len(), "connections are numbered in order");
        self.conns.push(Conn {
            at: At::Gone,
            high,
            was_long: false,
            closing: true, // as far as the lane goes: whoever is new queues in the control lane
            input: false,
        });
        self.enqueue(conn, now);
        self.conns[conn].closing = false;
    }

    /// It is to be closed: killed, or idle in a drain.
    fn close_soon(&mut self, conn: usize, now: u64) {
        self.conns[conn].closing = true;
        match self.conns[conn].at {
            At::Idle => self.enqueue(conn, now),
            At::Queued { lane, .. } if lane != Lane::Control => self.enqueue(conn, now),
            At::Queued { .. } | At::Held | At::Gone => {}
        }
    }

    pub(super) fn killed(&mut self, conn: usize, now: u64) {
        self.close_soon(conn, now);
    }

    pub(super) fn drained(&mut self, now: u64) {
        self.draining = true;
        let place = self.places;
        for conn in 0..self.conns.len() {
            // They come in one moment, in no order.
            self.places = place;
            if self.conns[conn].at == At::Idle {
                self.close_soon(conn, now);
            }
        }
    }

    pub(super) fn harvested(&mut self, worker: usize, conns: &[usize], now: u64) {
        self.workers[worker] = Worker::Coming;
        for conn in conns {
            self.conns[*conn].input = true;
            if self.conns[*conn].at == At::Idle {
                self.enqueue(*conn, now);
            }
        }
    }

    /// A worker was given this connection to run. `input`, `close`: what it was told.
    pub(super) fn runs(&mut self, worker: usize, conn: usize, told: (bool, bool), now: u64) {
        let (held, active) = (self.conns[conn].at, self.active().count());
        match held {
            At::Queued { lane, since, place } => {
                self.check_order(conn, lane, (since, place), now);
                self.leaves_lane(lane, since, now);
            }
            At::Held => self.breaks(3, now, format!("connection {conn} runs twice at once")),
            At::Idle | At::Gone => {
                self.breaks(
                    3,
                    now,
                    format!("connection {conn} runs, and it is {held:?}"),
                );
            }
        }
        if active >= self.slots {
            self.breaks(7, now, format!("{active} commands hold a slot already"));
        }
        if self.fresh(now) {
            self.breaks(7, now, format!("{conn} runs, and another has just begun"));
        }
        let book = &mut self.conns[conn];
        let owed = (book.input, book.closing);
        if owed != told {
            let what =
                format!("connection {conn} is told {told:?} of input and close, not {owed:?}");
            self.breaks(4, now, what);
        }
        let book = &mut self.conns[conn];
        book.input = false;
        book.at = At::Held;
        self.quiet = 0;
        self.workers[worker] = Worker::Running(Turn {
            conn,
            started: now,
            ran: 0,
            waiting: false,
            long: false,
            declared: false,
        });
    }

    /// In a lane, who came first goes first; a more urgent lane goes first, but for age.
    fn check_order(&mut self, conn: usize, lane: Lane, (since, place): (u64, u64), now: u64) {
        let aged = now.saturating_sub(since) >= self.kickup;
        if lane == Lane::Long && self.long_or_likely() >= self.max_long && !aged {
            self.breaks(7, now, format!("a long command too many, of {conn}"));
        }
        // Age may turn the order of the long ones around.
        let earlier = |other: &Conn| match other.at {
            At::Queued {
                lane: l, place: p, ..
            } => l == lane && lane != Lane::Long && p < place,
            _ => false,
        };
        if let Some(other) = self.conns.iter().position(earlier) {
            self.breaks(9, now, format!("{conn} goes before {other}, in {lane:?}"));
        }
        let urgent = self.queued[..lane as usize]
            .iter()
            .take(if aged { 0 } else { 4 });
        if urgent.sum::<usize>() > 0 {
            let lanes = self.queued;
            self.breaks(
                9,
                now,
                format!("{conn} of {lane:?} goes first, of {lanes:?}"),
            );
        }
    }

    pub(super) fn settled(&mut self, worker: usize, conn: usize, end: Ended, now: u64) {
        let Worker::Running(turn) = self.workers[worker] else {
            return self.breaks(3, now, format!("worker {worker} settles and has nothing"));
        };
        debug_assert_eq!(turn.conn, conn);
        // One that had to share the CPU is long only by as many bounds as there were sharers.
        let sharers = (self.active().count() + self.long()) as u64;
        let ran = now.saturating_sub(turn.started);
        let was_long = turn.declared || ran >= self.stall_limit * sharers;
        self.workers[worker] = Worker::Coming;
        let draining = self.draining;
        let book = &mut self.conns[conn];
        book.was_long = was_long;
        match end {
            Ended::Closed => book.at = At::Gone,
            Ended::Again => self.enqueue(conn, now),
            Ended::Idle => {
                book.closing |= draining;
                if book.closing || book.input {
                    self.enqueue(conn, now);
                } else {
                    book.at = At::Idle;
                    self.resting += 1;
                }
            }
        }
    }

    // ---- what happens to workers ----

    pub(super) fn spawning(&mut self, worker: usize, now: u64) {
        if self.workers.len() <= worker {
            self.workers.resize(worker + 1, Worker::Gone);
        }
        if !matches!(self.workers[worker], Worker::Gone) {
            self.breaks(5, now, format!("there is a worker {worker} already"));
        }
        if let Some(at) = self.failed_at
            && now < at + ns(RETRY)
        {
            self.breaks(13, now, "a thread is asked for too soon after a failure");
        }
        self.workers[worker] = Worker::Coming;
        self.created_at = now;
        self.threads_peak = self.threads_peak.max(self.threads());
        if self.threads() > self.max_threads {
            self.breaks(7, now, format!("{} threads", self.threads()));
        }
    }

    pub(super) fn spawn_failed(&mut self, worker: usize, now: u64) {
        self.workers[worker] = Worker::Gone;
        self.failed_at = Some(now);
    }

    pub(super) fn polls(&mut self, worker: usize, block: bool, now: u64) {
        if self.polling() {
            self.breaks(5, now, "two workers are in the poller");
        }
        self.workers[worker] = Worker::Polling { called: !block };
    }

    pub(super) fn parks(&mut self, worker: usize) {
        self.workers[worker] = Worker::Parked;
    }

    pub(super) fn slept(&mut self, worker: usize, stays: bool, now: u64) {
        if !stays && !self.is_parked(worker) {
            self.breaks(4, now, format!("a time-out has lost a call to {worker}"));
        }
        if !stays {
            self.leaves(worker, now);
        }
    }

    pub(super) fn leaves(&mut self, worker: usize, now: u64) {
        self.workers[worker] = Worker::Gone;
        if self.threads() == 0 && !self.draining {
            self.breaks(2, now, "the last worker has left");
        }
    }

    pub(super) fn called(&mut self, worker: usize, now: u64) {
        if !self.is_parked(worker) {
            self.breaks(
                4,
                now,
                format!("worker {worker} is called, and is not parked"),
            );
        }
        self.workers[worker] = Worker::Coming;
    }

    pub(super) fn rung(&mut self, now: u64) {
        let polling = |worker: &&mut Worker| matches!(worker, Worker::Polling { .. });
        match self.workers.iter_mut().find(polling) {
            Some(worker) => *worker = Worker::Polling { called: true },
            None => self.breaks(4, now, "the poller is rung, and nobody is there"),
        }
    }

    fn turn(&mut self, worker: usize) -> Option<&mut Turn> {
        match &mut self.workers[worker] {
            Worker::Running(turn) => Some(turn),
            _ => None,
        }
    }

    pub(super) fn wait_begins(&mut self, worker: usize, now: u64) {
        if let Some(turn) = self.turn(worker) {
            turn.waiting = true;
            turn.ran = now.saturating_sub(turn.started);
        }
    }

    pub(super) fn wait_ends(&mut self, worker: usize, now: u64) {
        if let Some(turn) = self.turn(worker) {
            turn.waiting = false;
            turn.started = now.saturating_sub(turn.ran);
        }
    }

    pub(super) fn says_long(&mut self, worker: usize) {
        if let Some(turn) = self.turn(worker) {
            turn.long = true;
            turn.declared = true;
        }
    }

    pub(super) fn ticks(&mut self, now: u64) {
        let bound = self.stall_limit;
        for worker in &mut self.workers {
            if let Worker::Running(turn) = worker {
                turn.long |= !turn.waiting && now.saturating_sub(turn.started) >= bound;
            }
        }
        // One more look before it sleeps, one at a deadline that was known before, and one each for
        // a ring that comes as it looks.
        self.quiet = if self.at_rest() { self.quiet + 1 } else { 0 };
        if self.quiet > LINGER + 4 {
            self.breaks(6, now, "the monitor looks on, and nothing is to be seen");
        }
    }

    // ---- what must be so ----

    /// The scheduler's own counts are those of the book.
    pub(super) fn compare(&mut self, stats: &GroupStats, now: u64) {
        let waiting = self.turns().filter(|turn| turn.waiting).count();
        let rows = [
            (3, "connections", stats.connections, self.connections()),
            (4, "queued", stats.queued, self.queued.iter().sum()),
            (13, "threads", stats.threads, self.threads()),
            (5, "active", stats.active, self.active().count()),
            (5, "long", stats.long, self.long()),
            (5, "waiting", stats.waiting, waiting),
            (
                5,
                "parked",
                stats.standby,
                self.count(|w| matches!(w, Worker::Parked)),
            ),
            (
                5,
                "listeners",
                usize::from(stats.has_listener),
                usize::from(self.polling()),
            ),
        ];
        for (invariant, name, said, is) in rows {
            if said != is {
                self.breaks(
                    invariant,
                    now,
                    format!("{said} {name}, says the scheduler, not {is}"),
                );
            }
        }
    }

    /// 1, as far as it holds at once: for what a move has changed nobody waits for a tick.
    pub(super) fn nobody_missing(&mut self, now: u64) {
        let coming = (0..self.workers.len()).any(|worker| self.is_called(worker));
        let free = |w: &Worker| matches!(w, Worker::Parked | Worker::Polling { called: false });
        if !coming && self.offer() && self.gate_open(now) && self.count(free) > 0 {
            let lanes = self.queued;
            self.breaks(
                1,
                now,
                format!("nobody is called, with {lanes:?} in the lanes"),
            );
        }
    }

    /// 1 and 2, at rest: time has passed since `then`, and `counted` of it while nobody was on the
    /// way, and not the monitor either.
    pub(super) fn elapse(&mut self, then: u64, now: u64, counted: u64) {
        if self.violation.is_some() {
            return;
        }
        let parked = self.count(|w| matches!(w, Worker::Parked)) > 0;
        let somebody = parked || self.creatable(then);
        let offer = self.offer() || self.promotes(then);
        let work = offer && self.gate_open(then) && (somebody || self.polling());
        let unwatched = self.resting > 0 && !self.polling() && somebody;
        let count = |is: bool, so_far: u64| if is { so_far + counted } else { 0 };
        self.work_left = count(work, self.work_left);
        self.poller_left = count(unwatched, self.poller_left);
        // A tick, and as much again for what it costs to make it.
        let bound = 2 * self.handover;
        let recently = self
            .failed_at
            .is_some_and(|at| now < at + ns(RETRY) + 2 * bound);
        let after_failure = |invariant| if recently && !parked { 13 } else { invariant };
        if self.work_left > bound {
            let what = format!(
                "{:?} in the lanes, the gate is open, nobody comes",
                self.queued
            );
            self.breaks(after_failure(1), now, what);
        }
        if self.poller_left > 2 * bound {
            let what = format!("{} at rest, nobody polls, nobody comes", self.resting);
            self.breaks(after_failure(2), now, what);
        }
    }
}
