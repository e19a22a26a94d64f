//! What to do next: the whole policy of a group, and the state that it decides over.
//!
//! Plain structs and plain moves. Nothing in this folder reads a clock, takes a lock, starts a
//! thread or does I/O: time comes in as [`Nanos`], and what should happen outside comes back as
//! [`Actions`]. So every short sequence of moves can be walked (`walk.rs`), and the same code runs
//! under loom, in the simulator and in the server. The design note is `README.md` beside this file.
//!
//! The moves, by who makes them:
//! * from outside: [`attach`](State::attach), [`kill`](State::kill), [`drain`](State::drain),
//!   [`stop`](State::stop);
//! * a worker, in a circle: [`take`](State::take), then what the [`Step`] says, then
//!   [`settle`](State::settle), [`harvested`](State::harvested) or [`slept`](State::slept);
//! * a worker inside a command: [`wait_begin`](State::wait_begin), [`wait_end`](State::wait_end),
//!   [`declare_long`](State::declare_long);
//! * the monitor: [`tick`](State::tick), then [`spawning`](State::spawning) and
//!   [`spawn_failed`](State::spawn_failed).

mod crew;
mod lanes;
mod table;
#[cfg(all(test, not(loom)))]
mod walk;

use std::time::Duration;

use crate::config::{LOOK_AGAIN, Limits, PoolConfig};
use crate::handler::CloseReason;
use crate::port::Event;
use crate::stats::GroupStats;

use crew::Crew;
pub(crate) use crew::WorkerId;
pub(crate) use lanes::Lane;
use lanes::Lanes;
use table::{Due, Phase, Table};
pub(crate) use table::{Key, Wake};

/// A moment, in nanoseconds since the server started. Monotonic; 584 years long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    pub(crate) fn from_duration(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Time passed since `earlier`; zero if that is not earlier, for the clocks of two threads may
    /// be read in one order and used in the other.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn after(self, time: Self) -> Self {
        Self(self.0.saturating_add(time.0))
    }
}

/// The limits that the policy reads, in its own unit.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) oversubscribe: usize,
    pub(crate) stall_limit: Nanos,
    pub(crate) handover: Nanos,
    pub(crate) kickup: Nanos,
    pub(crate) park_time: Nanos,
    pub(crate) creation_throttle: Nanos,
    pub(crate) idle_timeout: Nanos,
    pub(crate) read_timeout: Nanos,
    pub(crate) write_timeout: Nanos,
    /// A connection whose last read may have stopped short of what is there is read once more when
    /// it has been silent for so long. See [`LOOK_AGAIN`](crate::config::LOOK_AGAIN).
    pub(crate) look_again: Nanos,
}

impl Bounds {
    pub(crate) fn new(pool: &PoolConfig, limits: &Limits) -> Self {
        let ns = Nanos::from_duration;
        Self {
            oversubscribe: pool.oversubscribe,
            stall_limit: ns(pool.stall_limit),
            handover: ns(pool.handover),
            kickup: ns(pool.kickup),
            park_time: ns(pool.idle_timeout),
            creation_throttle: ns(pool.creation_throttle),
            idle_timeout: ns(limits.idle_timeout),
            read_timeout: ns(limits.read_timeout),
            write_timeout: ns(limits.write_timeout),
            look_again: ns(LOOK_AGAIN),
        }
    }

    fn shortest_timeout(&self) -> Nanos {
        self.idle_timeout
            .min(self.read_timeout)
            .min(self.write_timeout)
            .min(self.look_again)
    }
}

/// How a turn of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Wait for input. `in_command`: the rest of a command is owed, so the read clock runs.
    Idle { in_command: bool },
    /// Go to the tail of the lane.
    Again,
    /// Wait until the socket takes more output.
    Flush,
    /// Gone: out of the poller, session closed, socket closed.
    Closed,
}

/// What a turn leaves behind: how it ended, where the connection belongs from now on, and how often
/// the handler was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) end: End,
    pub(crate) lane: Lane,
    pub(crate) calls: u32,
    /// Input may be there that no event will announce: see [`Bounds::look_again`].
    pub(crate) look_again: bool,
}

/// A connection taken out of the table to be run.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) key: Key,
    pub(crate) task: T,
    pub(crate) wake: Wake,
}

/// What a worker does next.
#[derive(Debug)]
#[must_use]
pub(crate) enum Step<T> {
    /// Run this connection, then [`State::settle`].
    Run(Job<T>),
    /// Ask the poller, then [`State::harvested`]. Without `block`, only look.
    Poll { block: bool },
    /// Sleep until called, at most this long, then [`State::slept`].
    Park(Nanos),
    /// The thread ends; it is counted out already.
    Exit,
}

/// Whom to call. The called one has been moved to "coming" already, so nobody else is called for
/// the same need, and no time-out can lose the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Nobody,
    /// Notify this parked worker.
    Worker(WorkerId),
    /// Ring the poller: the listener is the one to come.
    Poller,
    /// Nobody is free: the monitor should create a thread.
    Spawn,
}

/// What the outside must do after a move, once the lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that is not carried out is a lost wake-up"]
pub(crate) struct Actions {
    pub(crate) call: Call,
    /// The monitor has something to watch here; wake it if it sleeps.
    pub(crate) tick: bool,
}

/// A group: connections, lanes, workers. See the module's head for the moves.
#[derive(Clone, Debug)]
pub(crate) struct State<T> {
    bounds: Bounds,
    table: Table<T>,
    lanes: Lanes,
    crew: Crew,
    draining: bool,
    stopping: bool,
    /// When somebody last looked at the poller.
    polled_at: Nanos,
    /// When the deadlines are to be swept next; see `sweep`.
    sweep_at: Nanos,
    /// No resting connection has a deadline before this. The monitor sleeps until then at most,
    /// so whoever comes to rest with a nearer one has it told.
    due: Nanos,
    /// The shortest time from coming to rest to what is due then.
    shortest_timeout: Nanos,
    /// `due` has come nearer and the monitor has not looked since.
    due_moved: bool,
    /// When a long command was last let in beyond the bound; see `kick_up`.
    kicked_up_at: Nanos,
    stats: GroupStats,
}

impl<T> State<T> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            shortest_timeout: bounds.shortest_timeout(),
            bounds,
            table: Table::new(),
            lanes: Lanes::default(),
            crew: Crew::default(),
            draining: false,
            stopping: false,
            polled_at: Nanos(0),
            sweep_at: Nanos(0),
            due: Nanos(u64::MAX),
            due_moved: false,
            kicked_up_at: Nanos(0),
            stats: GroupStats::default(),
        }
    }

    // ---- moves from outside ----

    /// A new connection: queued in the control lane, to be opened by a worker.
    ///
    /// A group that is stopping gives the task back.
    pub(crate) fn attach(&mut self, task: T, now: Nanos) -> Result<(Key, Actions), T> {
        if self.stopping {
            return Err(task);
        }
        let key = self.table.insert(task, now);
        self.lanes.push(Lane::Control, key, now);
        Ok((key, self.actions(now)))
    }

    /// Somebody killed the connection. Idle and flushing ones are queued to be closed, queued ones
    /// move to the control lane, a running one learns it when it settles.
    pub(crate) fn kill(&mut self, key: Key, now: Nanos) -> Actions {
        self.close_soon(key, CloseReason::Killed, now);
        self.actions(now)
    }

    /// Whether `key` is still a connection here.
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.table.get(key).is_some()
    }

    /// No new command starts waiting from now on: idle connections are queued to be closed; each
    /// other one is when it comes to rest between two commands.
    pub(crate) fn drain(&mut self, now: Nanos) -> Actions {
        self.draining = true;
        for key in self.table.keys() {
            if matches!(self.table.phase(key), Phase::Idle { in_command: false }) {
                self.close_soon(key, CloseReason::Draining, now);
            }
        }
        self.actions(now)
    }

    /// The end: every worker leaves at its next [`take`](Self::take), and nothing can be attached.
    /// Returns the parked workers, all of them called, and whether to ring the poller.
    pub(crate) fn stop(&mut self) -> (Vec<WorkerId>, bool) {
        self.stopping = true;
        (self.crew.call_all(), self.crew.call_poller())
    }

    /// Takes out the connections that no worker came for, after [`stop`](Self::stop).
    pub(crate) fn leftovers(&mut self) -> Vec<T> {
        debug_assert!(self.stopping);
        self.lanes.clear();
        self.table.take_resting()
    }

    // ---- moves of a worker ----

    /// A worker that has nothing in hand asks what to do.
    pub(crate) fn take(&mut self, worker: WorkerId, now: Nanos) -> (Step<T>, Actions) {
        let step = self.step(worker, now);
        // Nobody is missing. Who parks or polls has just found nothing to do, under this lock; and
        // a command that has just been taken is fresh: the gate is shut, and its worker will look
        // at the poller.
        let actions = Actions {
            call: Call::Nobody,
            tick: self.wants_ticks(),
        };
        (step, actions)
    }

    fn step(&mut self, worker: WorkerId, now: Nanos) -> Step<T> {
        self.crew.arrived(worker);
        if self.stopping {
            self.crew.exit(worker);
            return Step::Exit;
        }
        if self.lanes_offer() && self.gate_open(now) {
            // Between two commands, look at the poller now and then: while commands are short,
            // nobody else needs to be woken to do it.
            if self.crew.listener().is_none()
                && self.table.resting() > 0
                && now.since(self.polled_at) >= self.bounds.handover
            {
                self.polled_at = now;
                self.stats.polls_by_worker += 1;
                self.crew.poll(worker, false);
                return Step::Poll { block: false };
            }
            if let Some(key) = self.pick(now) {
                let (task, wake) = self.table.take(key);
                self.crew.run(worker, now);
                self.stats.dequeues += 1;
                return Step::Run(Job { key, task, wake });
            }
        }
        // While another worker is running short commands it looks at the poller itself; a second
        // thread there would be woken for each event and could do nothing with it.
        if self.crew.listener().is_none() && !self.crew.any_fresh(now, self.bounds.handover) {
            self.stats.polls_by_listener += 1;
            self.crew.poll(worker, true);
            return Step::Poll { block: true };
        }
        self.crew.park(worker);
        Step::Park(self.bounds.park_time)
    }

    /// The poller has returned to `worker` with these events; next it [`take`](Self::take)s.
    pub(crate) fn harvested(
        &mut self,
        worker: WorkerId,
        events: impl IntoIterator<Item = Event>,
        now: Nanos,
    ) {
        self.crew.polled(worker);
        self.polled_at = now;
        for Event { token, readiness } in events {
            let key = Key::from_token(token);
            // An event of a connection that has been closed meanwhile finds another generation.
            let Some(slot) = self.table.get_mut(key) else {
                continue;
            };
            // Sticky: if it does not end the rest, whoever settles the connection sees it.
            slot.wake.ready.merge(readiness);
            if slot.wake.ends(slot.phase) {
                self.enqueue(key, now);
            }
        }
    }

    /// A parked worker woke up. True: it was called, or must stay; next it [`take`](Self::take)s.
    /// False: its time is over and it is counted out. A call decides even when the time ran out.
    pub(crate) fn slept(&mut self, worker: WorkerId, timed_out: bool) -> bool {
        if self.crew.is_parked(worker) && timed_out && !self.stopping {
            // The last one is never parked for long: it would have found the poller free. But if it
            // is the last, it stays.
            if self.crew.threads() > 1 {
                self.crew.exit(worker);
                return false;
            }
        }
        true
    }

    /// Whether a parked worker has not been called.
    pub(crate) fn is_parked(&self, worker: WorkerId) -> bool {
        self.crew.is_parked(worker) && !self.stopping
    }

    /// A connection's turn has ended on `worker`; next it [`take`](Self::take)s.
    ///
    /// What arrived during the turn is not lost: a connection that was notified, killed or is to
    /// be drained is queued again instead of resting. A closed one is given back, to be dropped
    /// when the lock is not held.
    #[must_use = "dropping a task may run user code, which must not happen under the lock"]
    pub(crate) fn settle(
        &mut self,
        worker: WorkerId,
        key: Key,
        task: T,
        turn: Turn,
        now: Nanos,
    ) -> Option<T> {
        let was_long = self.crew.finish(worker);
        self.stats.commands += u64::from(turn.calls);
        let phase = match turn.end {
            End::Closed => {
                self.table.remove(key);
                return Some(task);
            }
            End::Again => None,
            End::Idle { in_command } => Some(Phase::Idle { in_command }),
            End::Flush => Some(Phase::Flushing),
        };
        let between_commands = phase == Some(Phase::Idle { in_command: false });
        let slot = self.table.running_mut(key);
        slot.task = Some(task);
        slot.lane = turn.lane;
        slot.was_long = was_long;
        slot.look_again = turn.look_again;
        // A turn without a command does not restart the idle clock, unless output has left.
        let since = if turn.calls > 0 || turn.end == End::Flush {
            now
        } else {
            slot.since
        };
        if self.draining && between_commands {
            slot.wake.close.get_or_insert(CloseReason::Draining);
        }
        match phase {
            Some(phase) if !slot.wake.ends(phase) => self.rest(key, phase, since),
            _ => self.enqueue(key, now),
        }
        None
    }

    /// The command on `worker` is about to block and says so: its slot is free at once.
    pub(crate) fn wait_begin(&mut self, worker: WorkerId, now: Nanos) -> Actions {
        self.crew.wait_begin(worker, now);
        self.actions(now)
    }

    /// It has stopped waiting. It goes on at once, even above the limit: holding it back would
    /// hold back what it has locked.
    pub(crate) fn wait_end(&mut self, worker: WorkerId, now: Nanos) {
        self.crew.wait_end(worker, now);
    }

    /// The command on `worker` says that it will be long.
    pub(crate) fn declare_long(&mut self, worker: WorkerId, now: Nanos) -> Actions {
        self.crew.mark_long(worker);
        self.actions(now)
    }

    // ---- moves of the monitor ----

    /// The monitor's look, about every `handover` while [`Actions::tick`] was asked for. Commands
    /// past the stall bound become long; whoever is missing is called; deadlines are swept.
    pub(crate) fn tick(&mut self, now: Nanos) -> Actions {
        self.crew.tick_seen();
        self.due_moved = false;
        self.stats.stalls += self.crew.mark_stalled(now, self.bounds.stall_limit);
        self.sweep(now);
        self.kick_up(now);
        let wakes = self.stats.wakes;
        let mut actions = self.actions(now);
        self.stats.wakes_due_to_stall += self.stats.wakes - wakes;
        if actions.call == Call::Spawn && !self.may_create(now) {
            self.stats.throttles += 1;
            actions.call = Call::Nobody;
        }
        actions
    }

    /// The monitor is about to create a thread: the worker that it will be, counted from now on.
    pub(crate) fn spawning(&mut self, now: Nanos, due_to_stall: bool) -> WorkerId {
        self.stats.creations += 1;
        self.stats.creations_due_to_stall += u64::from(due_to_stall);
        self.crew.spawning(now)
    }

    /// There was no thread to be had. The need stays, and so does the limit; the monitor comes back
    /// to it after `retry`.
    pub(crate) fn spawn_failed(&mut self, worker: WorkerId, retry: Nanos) {
        self.stats.creations -= 1;
        self.crew.spawn_failed(worker, retry);
    }

    /// The cap of all groups together left no room for a thread.
    pub(crate) fn capped(&mut self) {
        self.stats.throttles += 1;
    }

    // ---- what there is to see ----

    /// Commands that run and are not in a wait.
    pub(crate) fn running(&self) -> usize {
        self.crew.active() + self.crew.long()
    }

    pub(crate) fn threads(&self) -> usize {
        self.crew.threads()
    }

    pub(crate) fn stats(&self) -> GroupStats {
        GroupStats {
            connections: self.table.len(),
            threads: self.crew.threads(),
            active: self.crew.active(),
            standby: self.crew.parked(),
            waiting: self.crew.waiting(),
            long: self.crew.long(),
            queued: self.lanes.len(),
            has_listener: self.crew.listener().is_some(),
            stalled: self.lanes.len() > 0 && self.crew.active() > self.bounds.oversubscribe,
            ..self.stats.clone()
        }
    }

    // ---- the policy ----

    /// Whether a command may start now: the group aims at one on the CPU; each one that has been
    /// running for `handover` opens one more slot, up to 1 + `oversubscribe`.
    fn gate_open(&self, now: Nanos) -> bool {
        self.crew.active() < 1 + self.bounds.oversubscribe
            && !self.crew.any_fresh(now, self.bounds.handover)
    }

    fn long_allowed(&self) -> bool {
        self.crew.long() < self.bounds.oversubscribe
    }

    fn lanes_offer(&self) -> bool {
        self.lanes.offer(self.long_allowed())
    }

    fn pick(&mut self, now: Nanos) -> Option<Key> {
        self.lanes.pop(self.long_allowed(), now, self.bounds.kickup)
    }

    /// Nobody is in the poller, and nobody runs short commands and would look at it in between.
    fn unwatched(&self, now: Nanos) -> bool {
        self.crew.listener().is_none()
            && self.table.resting() > 0
            && !self.crew.any_fresh(now, self.bounds.handover)
    }

    /// Whether the passing of time alone can make somebody be missing.
    fn wants_ticks(&self) -> bool {
        !self.stopping
            && (self.lanes.len() > 0
                || self.due_moved
                || (self.crew.listener().is_none() && self.table.resting() > 0))
    }

    /// Sees to invariants 1 (work conservation) and 2 (poll coverage) after a move.
    fn actions(&mut self, now: Nanos) -> Actions {
        Actions {
            call: self.call(now),
            tick: self.wants_ticks(),
        }
    }

    fn call(&mut self, now: Nanos) -> Call {
        // Whoever is on the way takes, and whoever takes looks again: one at a time is enough.
        if self.stopping || self.crew.coming() > 0 {
            return Call::Nobody;
        }
        let work = self.lanes_offer() && self.gate_open(now);
        if !work && !self.unwatched(now) {
            return Call::Nobody;
        }
        if let Some(worker) = self.crew.call_parked() {
            self.stats.wakes += 1;
            return Call::Worker(worker);
        }
        if work && self.crew.listener().is_some() {
            return if self.crew.call_poller() {
                Call::Poller
            } else {
                Call::Nobody
            };
        }
        if self.crew.ask_for_thread() {
            Call::Spawn
        } else {
            Call::Nobody
        }
    }

    /// The throttle; see [`PoolConfig::creation_throttle`].
    fn may_create(&mut self, now: Nanos) -> bool {
        if now < self.crew.retry_at() {
            return false;
        }
        let base = 1 + self.bounds.oversubscribe;
        let factor = match self.crew.threads() {
            _ if self.crew.active() == 0 => 0,
            n if n < base => 0,
            n if n < 2 * base => 1,
            n if n < 4 * base => 2,
            _ => 4,
        };
        let pause = self.bounds.creation_throttle.0.saturating_mul(factor);
        now.since(self.crew.created_at()) >= Nanos(pause)
    }

    fn enqueue(&mut self, key: Key, now: Nanos) {
        let lane = self.table.queue(key);
        self.lanes.push(lane, key, now);
    }

    fn rest(&mut self, key: Key, phase: Phase, since: Nanos) {
        self.table.rest(key, phase, since);
        // Nothing is due before the shortest timeout is over, which is nearly always enough.
        if since.after(self.shortest_timeout) >= self.due {
            return;
        }
        let due = self.table.due(key, &self.bounds);
        if due < self.due {
            self.due = due;
            self.due_moved = true;
        }
    }

    /// Marks a connection to be closed and brings it to a worker as soon as it can be.
    fn close_soon(&mut self, key: Key, why: CloseReason, now: Nanos) {
        let Some(slot) = self.table.get_mut(key) else {
            return;
        };
        // A kill overrides a milder reason; otherwise the first one stands.
        if why == CloseReason::Killed {
            slot.wake.close = Some(why);
        } else {
            slot.wake.close.get_or_insert(why);
        }
        match slot.phase {
            Phase::Running => {}
            Phase::Idle { .. } | Phase::Flushing => self.enqueue(key, now),
            Phase::Queued { lane } => {
                if lane != Lane::Control {
                    slot.phase = Phase::Queued {
                        lane: Lane::Control,
                    };
                    self.lanes.promote(lane, key);
                }
            }
        }
    }

    /// Age promotes, at the bound on long commands too: each `kickup`, the one that has been kept
    /// waiting for longest goes on. What those that run are waiting for may be just that one.
    fn kick_up(&mut self, now: Nanos) {
        let kickup = self.bounds.kickup;
        if self.long_allowed() || now.since(self.kicked_up_at) < kickup {
            return;
        }
        if let Some(key) = self.lanes.kick_up(now, kickup)
            && let Some(slot) = self.table.get_mut(key)
        {
            slot.phase = Phase::Queued { lane: Lane::Low };
            self.kicked_up_at = now;
        }
    }

    /// Looks through the resting connections for those past their deadline, at most once a
    /// granule.
    ///
    /// A scan and not a timer wheel: activity is then a plain store of a timestamp, and the scan
    /// runs only while the monitor is up anyway, or when a deadline is known to have come.
    fn sweep(&mut self, now: Nanos) {
        if now < self.sweep_at {
            return;
        }
        let granule = (self.shortest_timeout.0 / 16).max(1_000_000);
        self.sweep_at = now.after(Nanos(granule));
        for (key, due) in self.table.expired(now, &self.bounds) {
            match due {
                Due::Close(why) => self.close_soon(key, why, now),
                Due::Look => {
                    if let Some(slot) = self.table.get_mut(key) {
                        slot.wake.look = true;
                        self.enqueue(key, now);
                    }
                }
            }
        }
    }

    /// How long the monitor may sleep: until the next resting connection is past its deadline.
    ///
    /// Those that are not at rest can have none before the shortest timeout is over, and are looked
    /// at again by then, so that not each one that comes to rest has to wake the monitor.
    pub(crate) fn next_deadline(&mut self, now: Nanos) -> Option<Nanos> {
        let resting = self.table.earliest_deadline(&self.bounds);
        let others =
            (self.table.resting() < self.table.len()).then(|| now.after(self.shortest_timeout));
        let due = resting.into_iter().chain(others).min();
        self.due = due.unwrap_or(Nanos(u64::MAX));
        due.map(|due| due.max(self.sweep_at))
    }
}
