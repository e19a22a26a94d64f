//! What to do next: the whole policy of a group, and the state that it decides over.
//!
//! Plain structs and plain moves. Nothing in this folder reads a clock, takes a lock, starts a
//! thread or does I/O: time comes in as [`Nanos`], and what should happen outside comes back as
//! [`Actions`]. So every short sequence of moves can be walked (`walk.rs`), and the same code runs
//! under loom, in the simulator and in the server. The design note is `README.md` beside this file.
//!
//! The moves, by who makes them:
//! * from outside: [`attach`](State::attach), [`kill`](State::kill),
//!   [`interrupt`](State::interrupt), [`poke`](State::poke), [`resume`](State::resume), [`boost`](State::boost), [`unboost`](State::unboost),
//!   [`drain`](State::drain), [`stop`](State::stop);
//! * a worker, in a circle: [`take`](State::take), then what the [`Step`] says, then
//!   [`settle`](State::settle), [`harvested`](State::harvested) or [`slept`](State::slept);
//! * a worker inside a command: [`wait_begin`](State::wait_begin), [`wait_end`](State::wait_end),
//!   [`declare_long`](State::declare_long);
//! * the monitor: [`tick`](State::tick), then [`judge`](State::judge),
//!   [`spawning`](State::spawning) and [`spawn_failed`](State::spawn_failed).
//!
//! What follows from a state is the policy's: [`conserving`] is ours, [`mariadb`] is for comparison.

mod conserving;
mod crew;
mod lanes;
mod mariadb;
#[cfg(all(test, not(loom)))]
mod mariadb_tests;
mod table;
mod timers;
// The fuzz target walks by its own choice only.
#[cfg(all(any(test, feature = "walk"), not(loom)))]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) mod walk;

use std::time::Duration;

pub(crate) use crate::config::Policy;
use crate::config::{CRAMMED, LOOK_AGAIN, Limits, PoolConfig};
use crate::handler::CloseReason;
pub(crate) use crate::id::Ticket;
use crate::mutant;
use crate::port::{Event, Readiness};
use crate::stats::GroupStats;

use crew::Crew;
pub(crate) use crew::{At, Kind, SeenWorker, Suspect, WorkerId};
pub(crate) use lanes::Lane;
use lanes::{LaneSet, Lanes};
use table::{Due, Marks, Slot, Table};
pub(crate) use table::{Key, Phase, SeenConn, Told, Wake};
use timers::Timers;

/// A moment, in nanoseconds since the server started. Monotonic; 584 years long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nanos(pub(crate) u64);

/// Further away than anything: no time-out, no deadline.
pub(crate) const NEVER: Nanos = Nanos(u64::MAX);

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

    fn twice(self) -> Self {
        self.after(self)
    }

    pub(crate) fn after(self, time: Self) -> Self {
        Self(self.0.saturating_add(time.0))
    }
}

/// The limits that the policy reads, in its own unit.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) policy: Policy,
    pub(crate) dedicated_listener: bool,
    pub(crate) oversubscribe: usize,
    pub(crate) stall_limit: Nanos,
    pub(crate) handover: Nanos,
    pub(crate) kickup: Nanos,
    pub(crate) park_time: Nanos,
    pub(crate) creation_throttle: Nanos,
    pub(crate) idle_timeout: Nanos,
    /// The same within a transaction.
    pub(crate) transaction_timeout: Nanos,
    pub(crate) read_timeout: Nanos,
    pub(crate) write_timeout: Nanos,
    /// The same for a client whose input is not taken any more.
    pub(crate) crammed_timeout: Nanos,
    /// A connection whose last read may have stopped short of what is there is read once more when
    /// it has been silent for so long. See [`LOOK_AGAIN`](crate::config::LOOK_AGAIN).
    pub(crate) look_again: Nanos,
}

impl Bounds {
    pub(crate) fn new(pool: &PoolConfig, limits: &Limits) -> Self {
        let ns = Nanos::from_duration;
        Self {
            policy: pool.policy,
            dedicated_listener: pool.dedicated_listener,
            oversubscribe: pool.oversubscribe,
            stall_limit: ns(pool.stall_limit),
            handover: ns(pool.handover),
            kickup: ns(pool.kickup),
            park_time: ns(pool.idle_timeout),
            creation_throttle: ns(pool.creation_throttle),
            idle_timeout: ns(limits.idle_timeout),
            transaction_timeout: ns(limits.idle_in_transaction_timeout),
            read_timeout: ns(limits.read_timeout),
            write_timeout: ns(limits.write_timeout),
            crammed_timeout: ns(limits.write_timeout.min(CRAMMED)),
            look_again: ns(LOOK_AGAIN),
        }
    }

    fn shortest_timeout(&self) -> Nanos {
        self.idle_timeout
            .min(self.transaction_timeout)
            .min(self.read_timeout)
            .min(self.write_timeout)
            .min(self.crammed_timeout)
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
    /// Wait until the socket takes more output. `crammed`: input is not taken meanwhile, for there
    /// is too much of it already. `moved`: the write clock starts anew.
    Flush { crammed: bool, moved: bool },
    /// Wait until this park is resumed.
    Park { ticket: Ticket },
    /// Gone: out of the poller, session closed, socket closed.
    Closed,
}

/// What a turn leaves behind: how it ended, where the connection belongs from now on, and how often
/// the handler was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) end: End,
    pub(crate) lane: Lane,
    /// Whether others may be waiting for what the session holds, if it says. One that says no is not
    /// waited for any more, whoever may have begun to wait for it.
    pub(crate) holding: Option<bool>,
    pub(crate) in_transaction: bool,
    /// Input may be there that no event will announce: see [`Bounds::look_again`].
    pub(crate) look_again: bool,
    pub(crate) calls: u32,
    /// Of these, one at least was for what the client asked for. Where there was none, a poke say, its
    /// silence goes on.
    pub(crate) heard: bool,
    /// To be woken at this time at the latest, if it rests.
    pub(crate) until: Nanos,
}

/// A connection taken out of the table to be run.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) key: Key,
    pub(crate) task: T,
    pub(crate) wake: Wake,
    /// In which lane it was queued, and for how long.
    pub(crate) lane: Lane,
    pub(crate) queued: Nanos,
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
    /// Nobody is missing yet, but somebody will be: the monitor may create a thread, if there is room.
    Spare,
}

/// What the outside must do after a move, once the lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that is not carried out is a lost wake-up"]
pub(crate) struct Actions {
    pub(crate) call: Call,
    /// The monitor has something to watch here; wake it if it sleeps.
    pub(crate) tick: bool,
}

/// What kind of move has been made, where a policy reacts to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A connection has come, or has been resumed.
    Arrival,
    /// Something has happened to connections at rest, or to the limits.
    Report,
    /// A command has begun to wait.
    Wait,
}

/// A group: connections, lanes, workers. See the module's head for the moves.
#[derive(Clone, Debug)]
pub(crate) struct State<T> {
    bounds: Bounds,
    table: Table<T>,
    lanes: Lanes,
    crew: Crew,
    timers: Timers,
    draining: bool,
    /// Not those in a transaction.
    sparing: bool,
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
    /// The monitor's next look is due earlier than it has been told.
    due_moved: bool,
    /// When a long command was last let in beyond the bound; see `kick_up`.
    kicked_up_at: Nanos,
    /// When threads of commands past the stall bound were last looked at.
    judged_at: Nanos,
    /// Who was the last to listen, and when whoever listens was rung, for measuring.
    listened: Option<WorkerId>,
    /// Whether who is in the poller is there until something comes.
    listening: bool,
    /// Who has come out of the poller after that, and not taken anything since.
    harvester: Option<WorkerId>,
    rung_at: Nanos,
    /// What only MariaDB's policy remembers.
    mariadb: mariadb::Counters,
    stats: GroupStats,
    /// How the thread that is being created has been counted; there is one at a time.
    created_due_to_stall: bool,
}

impl<T> State<T> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            shortest_timeout: bounds.shortest_timeout(),
            bounds,
            table: Table::new(),
            lanes: Lanes::default(),
            crew: Crew::default(),
            timers: Timers::default(),
            draining: false,
            sparing: false,
            stopping: false,
            polled_at: Nanos(0),
            sweep_at: Nanos(0),
            due: NEVER,
            due_moved: false,
            kicked_up_at: Nanos(0),
            judged_at: Nanos(0),
            listened: None,
            listening: false,
            harvester: None,
            rung_at: NEVER,
            mariadb: mariadb::Counters::default(),
            stats: GroupStats::default(),
            created_due_to_stall: false,
        }
    }

    // ---- moves from outside ----

    /// A new connection: queued, to be opened by a worker.
    ///
    /// A group that is stopping gives the task back.
    pub(crate) fn attach(&mut self, task: T, now: Nanos) -> Result<(Key, Actions), T> {
        if self.stopping {
            return Err(task);
        }
        let lane = match self.bounds.policy {
            Policy::Conserving => Lane::Control,
            Policy::Mariadb => Lane::High,
        };
        let key = self.table.insert(task, lane, now);
        self.lanes.push(lane, key, now);
        Ok((key, self.actions(Cause::Arrival, now)))
    }

    /// Somebody killed the connection. Idle and flushing ones are queued to be closed, queued ones
    /// move to the control lane, a running one learns it when it settles.
    pub(crate) fn kill(&mut self, key: Key, now: Nanos) -> Actions {
        self.close_soon(key, CloseReason::Killed, now);
        self.actions(Cause::Report, now)
    }

    /// Somebody wants the handler of a connection to be called: one at rest is queued, any other one
    /// learns it when it would come to rest.
    pub(crate) fn poke(&mut self, key: Key, now: Nanos) -> Actions {
        if let Some(slot) = self.table.get_mut(key) {
            let lost = slot.phase == Phase::Running && mutant::is("a_poke_of_who_runs_is_lost");
            slot.wake.tell_if(!lost, Told::POKED);
            self.end_rest(key, now);
        }
        self.actions(Cause::Report, now)
    }

    /// The command that a connection is at has been cancelled: one that rests in it is queued, any other
    /// one learns it when it would come to rest in it.
    pub(crate) fn interrupt(&mut self, key: Key, now: Nanos) -> Actions {
        if let Some(slot) = self.table.get_mut(key) {
            let lost =
                slot.phase == Phase::Running && mutant::is("an_interrupt_of_who_runs_is_lost");
            slot.wake.tell_if(!lost, Told::INTERRUPTED);
            self.end_rest(key, now);
        }
        self.actions(Cause::Report, now)
    }

    /// What a connection has parked for has happened, or cannot happen any more: then it is to be
    /// closed. A park that has not begun yet ends at once; one that is over, for whatever reason, is
    /// not concerned. False: it is over, or the connection has gone.
    pub(crate) fn resume(
        &mut self,
        key: Key,
        ticket: Ticket,
        dropped: bool,
        now: Nanos,
    ) -> (bool, Actions) {
        let mut won = false;
        if let Some(slot) = self.table.get_mut(key)
            && (slot.resumed < ticket || mutant::is("a_park_may_end_twice"))
        {
            slot.resumed = ticket;
            slot.mark(Marks::DROPPED, dropped);
            won = true;
            if slot.phase == Phase::Parked {
                won = slot.ticket == ticket;
                slot.take_resume();
                self.end_rest(key, now);
            }
        }
        (won, self.actions(Cause::Arrival, now))
    }

    /// Somebody waits for what this connection holds: until [`unboost`](Self::unboost) says that this is
    /// over, what it has queued goes first, and it may have a thread beyond the cap. If it waits itself, that
    /// is so of whom it waits for already, and for as long.
    pub(crate) fn boost(&mut self, key: Key, now: Nanos) -> Actions {
        if let Some(slot) = self.table.get(key)
            && self.bounds.policy == Policy::Conserving
        {
            let phase = slot.phase;
            self.table.boost(key);
            self.stats.boosts += 1;
            if let Phase::Queued { lane } = phase {
                self.promote(key, lane, Lane::Holding);
            }
        }
        self.actions(Cause::Report, now)
    }

    /// Somebody has stopped waiting for what this connection holds.
    pub(crate) fn unboost(&mut self, key: Key, now: Nanos) -> Actions {
        if self.contains(key) && self.bounds.policy == Policy::Conserving {
            self.table.unboost(key);
            if let Some(slot) = self.table.get(key)
                && let Phase::Queued {
                    lane: Lane::Holding,
                } = slot.phase
            {
                self.promote(key, Lane::Holding, slot.urgency());
            }
        }
        self.actions(Cause::Report, now)
    }

    /// Other limits, from now on. Returns the parked workers, all of them called, if they are to park for
    /// another time. Whoever makes this move then rings the monitor, which looks at every deadline anew.
    pub(crate) fn rebound(&mut self, bounds: Bounds, now: Nanos) -> (Vec<WorkerId>, Actions) {
        let anew = if bounds.park_time == self.bounds.park_time {
            Vec::new()
        } else {
            self.crew.call_all()
        };
        self.shortest_timeout = bounds.shortest_timeout();
        self.bounds = bounds;
        // It was put off by a part of the shortest timeout that was.
        self.sweep_at = now;
        (anew, self.actions(Cause::Report, now))
    }

    /// Whether `key` is still a connection here.
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.table.get(key).is_some()
    }

    /// No new command starts waiting from now on: idle connections are queued to be closed; each
    /// other one is when it comes to rest between two commands. `spare`: not in a transaction.
    pub(crate) fn drain(&mut self, spare: bool, now: Nanos) -> Actions {
        self.draining = true;
        self.sparing = spare;
        for key in self.table.keys() {
            let ends = self.table.get(key).is_some_and(|slot| match slot.phase {
                Phase::Idle { in_command } => !slot.goes_on(in_command, spare),
                _ => false,
            });
            if ends {
                self.close_soon(key, CloseReason::Draining, now);
            }
        }
        self.actions(Cause::Report, now)
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
    #[inline]
    pub(crate) fn take(&mut self, worker: WorkerId, now: Nanos) -> (Step<T>, Actions) {
        self.crew.arrived(worker);
        if self.stopping && !mutant::is("a_worker_does_not_see_the_stop") {
            self.crew.exit(worker);
            let nothing = Actions {
                call: Call::Nobody,
                tick: false,
            };
            return (Step::Exit, nothing);
        }
        let (step, call) = self.next_step(worker, now);
        self.harvester = None;
        let tick = self.wants_ticks();
        (step, Actions { call, tick })
    }

    /// Takes the next connection out of its lane, for `worker` to run it; and whether its command is
    /// likely to be long.
    #[inline(always)]
    fn start(
        &mut self,
        worker: WorkerId,
        from: LaneSet,
        kickup: Nanos,
        now: Nanos,
    ) -> Option<(Step<T>, bool)> {
        let (lane, key, at) = self.lanes.pop(from, now, kickup)?;
        let suspect = self.table.was_long(key);
        let (task, wake) = self.table.take(key);
        self.crew
            .run(worker, key, lane == Lane::Holding, suspect, now);
        self.stats.dequeues += 1;
        self.stats.dequeues_by_listener += u64::from(self.harvester == Some(worker));
        let job = Job {
            key,
            task,
            wake,
            lane,
            queued: now.since(at),
        };
        Some((Step::Run(job), suspect))
    }

    fn poll(&mut self, worker: WorkerId, block: bool) -> Step<T> {
        self.rung_at = NEVER;
        self.listening = block;
        if block {
            self.stats.polls_by_listener += 1;
            self.stats.handovers += u64::from(self.listened != Some(worker));
            self.listened = Some(worker);
        } else {
            self.stats.polls_by_worker += 1;
        }
        self.crew.poll(worker, block);
        Step::Poll { block }
    }

    /// The poller has returned to `worker` with these events; next it [`take`](Self::take)s, under
    /// the same lock.
    pub(crate) fn harvested(
        &mut self,
        worker: WorkerId,
        events: impl IntoIterator<Item = Event>,
        now: Nanos,
    ) {
        self.harvester = self.listening.then_some(worker);
        let rung = self.crew.polled(worker);
        let (before, mut count) = (self.lanes.len(), 0);
        self.polled_at = now;
        for Event { token, readiness } in events {
            count += 1;
            let key = Key::from_token(token);
            // An event of a connection that has been closed meanwhile finds another generation.
            let Some(slot) = self.table.get_mut(key) else {
                continue;
            };
            // Sticky: if it does not end the rest, whoever settles the connection sees it.
            slot.wake.ready = slot.wake.ready.and(readiness);
            self.end_rest(key, now);
        }
        if self.bounds.policy == Policy::Mariadb {
            mariadb::harvested(self, count, before, rung);
        }
    }

    /// A parked worker woke up. True: it was called, or must stay; next it [`take`](Self::take)s.
    /// False: its time is over and it is counted out. A call decides even when the time ran out.
    pub(crate) fn slept(&mut self, worker: WorkerId, timed_out: bool) -> bool {
        let waits = self.crew.is_parked(worker) || mutant::is("time_overrides_a_call");
        if waits && timed_out && !self.stopping {
            if self.crew.may_leave() {
                self.crew.exit(worker);
                self.mariadb.left();
                return false;
            }
            self.crew.arrived(worker);
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
    #[inline]
    pub(crate) fn settle(
        &mut self,
        worker: WorkerId,
        key: Key,
        task: T,
        turn: Turn,
        now: Nanos,
    ) -> Option<T> {
        self.unblocked(worker, now);
        let was_long = self.crew.finish(worker, now, self.bounds.stall_limit);
        self.stats.long_commands += u64::from(was_long);
        self.stats.commands += u64::from(turn.calls);
        if turn.end == End::Closed {
            self.table.remove(key);
            return Some(task);
        }
        let slot = self.table.running_mut(key);
        slot.task = Some(task);
        slot.lane = turn.lane;
        slot.turned(was_long, turn.look_again, turn.in_transaction);
        slot.until = turn.until;
        self.table.settle_holding(key, turn.holding);
        let slot = self.table.running_mut(key);
        if mutant::is("settle_forgets_an_event") {
            slot.wake.ready = Readiness::NOTHING;
        }
        if mutant::is("settle_forgets_a_kill") {
            slot.wake.close = None;
        }
        let phase = match turn.end {
            End::Again | End::Closed => None,
            End::Idle { in_command } => {
                let goes_on = slot.goes_on(in_command, self.sparing);
                if self.draining && !goes_on && !mutant::is("settle_forgets_the_drain") {
                    slot.wake.close.get_or_insert(CloseReason::Draining);
                }
                Some(Phase::Idle { in_command })
            }
            End::Flush { crammed, .. } => Some(Phase::Flushing { crammed }),
            End::Park { ticket } => {
                slot.ticket = ticket;
                if !mutant::is("settle_forgets_a_resume") {
                    slot.take_resume();
                }
                Some(Phase::Parked)
            }
        };
        // A turn without a command does not restart the clock of the client's silence, unless output
        // has left; and no more does a poke, or a moment that the handler asked for.
        let moved = matches!(turn.end, End::Flush { moved: true, .. });
        if turn.heard || moved {
            slot.since = now;
        }
        match phase {
            Some(phase) if !slot.wake.ends(phase) => self.rest(key, phase),
            _ => self.enqueue(key, now),
        }
        None
    }

    /// The command on `worker` is about to block and says so, and for whom it waits, if it knows:
    /// its slot is free at once.
    pub(crate) fn wait_begin(
        &mut self,
        worker: WorkerId,
        holder: Option<u64>,
        now: Nanos,
    ) -> Actions {
        self.unblocked(worker, now);
        self.crew.wait_begin(worker, holder, now);
        self.actions(Cause::Wait, now)
    }

    /// It has stopped waiting. It goes on at once, even above the limit: holding it back would
    /// hold back what it has locked.
    pub(crate) fn wait_end(&mut self, worker: WorkerId, now: Nanos) {
        self.crew.wait_end(worker, now);
    }

    /// The command on `worker` says that it will be long.
    pub(crate) fn declare_long(&mut self, worker: WorkerId, now: Nanos) -> Actions {
        if self.bounds.policy == Policy::Conserving {
            self.unblocked(worker, now);
            self.crew.declare_long(worker);
        }
        self.actions(Cause::Report, now)
    }

    // ---- moves of the monitor ----

    /// The monitor's look, about every `handover` while [`Actions::tick`] was asked for. Commands
    /// past the stall bound become long; whoever is missing is called; deadlines are swept.
    ///
    /// [`Call::Spawn`] and [`Call::Spare`] are put off here if it is too soon for another thread.
    pub(crate) fn tick(&mut self, now: Nanos) -> Actions {
        self.crew.tick_seen();
        self.due_moved = false;
        self.sweep(now);
        self.ring_timers(now);
        let wakes = self.stats.wakes;
        let mut actions = self.on_tick(now);
        self.stats.wakes_due_to_stall += self.stats.wakes - wakes;
        if matches!(actions.call, Call::Spawn | Call::Spare) && !self.may_create(now) {
            self.stats.throttles += u64::from(actions.call == Call::Spawn);
            actions.call = Call::Nobody;
        }
        actions
    }

    /// After a tick: who else is called.
    pub(crate) fn call_for_slots(&mut self, now: Nanos) -> Vec<WorkerId> {
        match self.bounds.policy {
            Policy::Conserving => conserving::call_for_slots(self, now),
            Policy::Mariadb => Vec::new(),
        }
    }

    /// Whose threads the monitor is to look at: commands that have run past the stall bound.
    pub(crate) fn suspects(&mut self, now: Nanos) -> Vec<Suspect> {
        if self.crew.long() + self.crew.detected() == 0
            || now.since(self.judged_at) < self.bounds.stall_limit
        {
            return Vec::new();
        }
        self.judged_at = now;
        self.crew.suspects(now, self.bounds.stall_limit)
    }

    /// It has looked: the thread is blocked, or is not.
    pub(crate) fn judge(&mut self, suspect: Suspect, blocked: bool, now: Nanos) -> Actions {
        let (time, detected) = self.crew.judge(suspect, blocked, now);
        self.stats.detected += u64::from(detected);
        self.stats.detected_time += time.to_duration();
        self.actions(Cause::Report, now)
    }

    /// The command on `worker` ends, or says something of itself: it is not blocked unsaid any more.
    fn unblocked(&mut self, worker: WorkerId, now: Nanos) {
        if self.crew.detected() > 0 {
            self.stats.detected_time += self.crew.blocked_for(worker, now).to_duration();
        }
    }

    /// The monitor is about to create a thread, beyond the cap or within it: the worker that it will
    /// be, counted from now on.
    pub(crate) fn spawning(&mut self, now: Nanos, due_to_stall: bool, excess: bool) -> WorkerId {
        self.stats.creations += 1;
        self.stats.creations_due_to_stall += u64::from(due_to_stall);
        self.created_due_to_stall = due_to_stall;
        self.stats.threads_over_cap += u64::from(excess);
        self.mariadb.answered();
        self.crew.spawning(now, excess)
    }

    /// There was no thread to be had. The need stays, and so does the limit; the monitor comes back
    /// to it after `retry`.
    pub(crate) fn spawn_failed(&mut self, worker: WorkerId, retry: Nanos) {
        let excess = self.crew.spawn_failed(worker, retry);
        self.stats.creations -= 1;
        self.stats.creation_failures += 1;
        self.stats.creations_due_to_stall -= u64::from(self.created_due_to_stall);
        self.stats.threads_over_cap -= u64::from(excess);
    }

    /// The cap of all groups together left no room for a thread. True: this one may be created
    /// beyond it, for a session that holds something.
    pub(crate) fn capped(&mut self, now: Nanos) -> bool {
        let excused = self.may_exceed(now);
        self.mariadb.answered();
        self.stats.throttles += u64::from(!excused);
        excused
    }

    /// Threads beyond the cap.
    pub(crate) fn excess(&self) -> usize {
        self.crew.excess()
    }

    /// There is room within the cap, elsewhere: no more than these are beyond it.
    pub(crate) fn limit_excess(&mut self, excess: usize) {
        self.crew.limit_excess(excess);
    }

    /// The cap has been lowered, and leaves out so many more of the threads here: they leave as they come
    /// free. Returns the parked workers, all of them called.
    pub(crate) fn add_excess(&mut self, more: usize, now: Nanos) -> (Vec<WorkerId>, Actions) {
        let mut called = Vec::new();
        // MariaDB's stay until they have been parked for long enough.
        if self.bounds.policy == Policy::Conserving {
            self.crew.add_excess(more);
            called = self.crew.call_all();
        }
        (called, self.actions(Cause::Report, now))
    }

    // ---- what there is to see ----

    /// Whether the thread that the monitor is asked for is to stand in for commands that run.
    pub(crate) fn due_to_stall(&self) -> bool {
        match self.bounds.policy {
            Policy::Conserving => self.crew.active() + self.crew.long() + self.crew.detected() > 0,
            Policy::Mariadb => self.mariadb.due_to_stall(),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.crew.threads()
    }

    /// Whose command each worker runs.
    pub(crate) fn running(&self) -> Vec<(WorkerId, Key)> {
        self.crew.running()
    }

    pub(crate) fn stats(&self) -> GroupStats {
        GroupStats {
            connections: self.table.len(),
            threads: self.crew.threads(),
            active: self.crew.active(),
            standby: self.crew.parked(),
            waiting: self.crew.waiting(),
            long: self.crew.long(),
            blocked: self.crew.detected(),
            holding: self.table.holding(),
            over_cap: self.crew.excess(),
            queued: self.lanes.len(),
            has_listener: self.crew.listener().is_some(),
            stalled: match self.bounds.policy {
                Policy::Conserving => {
                    self.lanes.len() > 0 && self.crew.active() > self.bounds.oversubscribe
                }
                Policy::Mariadb => self.mariadb.stalled(),
            },
            ..self.stats.clone()
        }
    }

    // Each of these goes on where the last one has stopped, with as many as there is room for in
    // `into`, so that nobody is held up for longer than that takes.

    /// Who is in the table, from this slot on. Returns where to go on.
    pub(crate) fn see_table(&self, from: usize, into: &mut Vec<SeenConn>) -> Option<usize> {
        self.table.see(from, into)
    }

    /// Who is in a lane, and since when, from this place on. Returns where to go on.
    pub(crate) fn see_lane(
        &self,
        lane: Lane,
        from: usize,
        into: &mut Vec<(Key, Nanos)>,
    ) -> Option<usize> {
        self.lanes.see(lane, from, into)
    }

    /// The workers from this index on. Returns where to go on.
    pub(crate) fn see_crew(&self, from: usize, into: &mut Vec<SeenWorker>) -> Option<usize> {
        self.crew.see(from, into)
    }

    /// When a worker that has not looked at the state yet was called, or its thread asked for.
    pub(crate) fn called_at(&self, worker: WorkerId) -> Option<Nanos> {
        self.crew.called_at(worker)
    }

    /// When whoever is in the poller was called from there, if it was.
    pub(crate) fn rung_at(&self) -> Option<Nanos> {
        (self.rung_at != NEVER).then_some(self.rung_at)
    }

    /// Commands that have run past the stall bound, and those that were found blocked.
    pub(crate) fn troubles(&self) -> (u64, u64) {
        (self.stats.stalls, self.stats.detected)
    }

    /// For how long the group has not got to somebody who may start, if that is longer than age may
    /// become; and how many are queued.
    pub(crate) fn overload(&self, now: Nanos) -> Option<(Nanos, usize)> {
        let time = now.since(self.oldest_queued()?);
        (time >= self.bounds.kickup).then_some((time, self.lanes.len()))
    }

    /// Since when whoever has waited longest of those that may start has waited, but for those that
    /// wait at the bound on long commands.
    fn oldest_queued(&self) -> Option<Nanos> {
        Lane::ALL
            .into_iter()
            .filter(|lane| *lane != Lane::Long)
            .filter_map(|lane| self.lanes.oldest(lane))
            .min()
    }

    // ---- the policy's questions ----

    fn next_step(&mut self, worker: WorkerId, now: Nanos) -> (Step<T>, Call) {
        match self.bounds.policy {
            Policy::Conserving => conserving::next_step(self, worker, now),
            Policy::Mariadb => mariadb::next_step(self, worker, now),
        }
    }

    fn on_tick(&mut self, now: Nanos) -> Actions {
        match self.bounds.policy {
            Policy::Conserving => {
                conserving::tick(self, now);
                let mut actions = self.actions(Cause::Report, now);
                if actions.call == Call::Nobody && conserving::wants_spare(self) {
                    actions.call = Call::Spare;
                }
                actions
            }
            Policy::Mariadb => Actions {
                call: mariadb::tick(self, now),
                tick: self.wants_ticks(),
            },
        }
    }

    fn wants_ticks(&self) -> bool {
        let policy_does = || match self.bounds.policy {
            Policy::Conserving => conserving::wants_ticks(self),
            Policy::Mariadb => mariadb::wants_ticks(self),
        };
        !self.stopping && (self.due_moved || policy_does())
    }

    fn may_create(&self, now: Nanos) -> bool {
        match self.bounds.policy {
            Policy::Conserving => now >= self.crew.retry_at() && conserving::may_create(self, now),
            // It was looked at when the thread was asked for.
            Policy::Mariadb => true,
        }
    }

    fn may_exceed(&self, now: Nanos) -> bool {
        match self.bounds.policy {
            Policy::Conserving => conserving::may_exceed(self, now),
            Policy::Mariadb => false,
        }
    }

    /// What the outside must do after a move.
    fn actions(&mut self, cause: Cause, now: Nanos) -> Actions {
        Actions {
            call: match self.bounds.policy {
                Policy::Conserving => conserving::call(self, now),
                Policy::Mariadb => mariadb::call(self, cause, now),
            },
            tick: self.wants_ticks(),
        }
    }

    // ---- what they have in common ----

    /// Calls a parked worker, if there is one.
    fn call_parked(&mut self, now: Nanos) -> Option<Call> {
        let worker = self.crew.call_parked(now)?;
        self.stats.wakes += 1;
        Some(Call::Worker(worker))
    }

    /// Rings whoever is in the poller, once.
    fn call_poller(&mut self, now: Nanos) -> Call {
        if self.crew.call_poller() {
            self.stats.rings += 1;
            self.rung_at = now;
            Call::Poller
        } else {
            Call::Nobody
        }
    }

    /// Asks for a thread, once for each look of the monitor.
    fn call_spawn(&mut self) -> Call {
        if self.crew.ask_for_thread() {
            Call::Spawn
        } else {
            Call::Nobody
        }
    }

    /// Queues a connection at rest if something has happened to it that ends the rest.
    #[inline(always)]
    fn end_rest(&mut self, key: Key, now: Nanos) {
        if let Some(slot) = self.table.get_mut(key)
            && slot.wake.ends(slot.phase)
        {
            self.enqueue(key, now);
        }
    }

    fn promote(&mut self, key: Key, from: Lane, to: Lane) {
        if from == to {
            return;
        }
        if let Some(slot) = self.table.get_mut(key) {
            slot.phase = Phase::Queued { lane: to };
            self.lanes.promote(key, (from, to));
        }
    }

    #[inline(always)]
    fn enqueue(&mut self, key: Key, now: Nanos) {
        let lane = match self.bounds.policy {
            Policy::Conserving => self.table.queue(key, Slot::urgency),
            Policy::Mariadb => self.table.queue(key, mariadb::lane),
        };
        self.lanes.push(lane, key, now);
    }

    /// Something is due at this time, and the monitor must not sleep for longer.
    fn due_by(&mut self, at: Nanos) {
        if at < self.due {
            self.due = at;
            self.due_moved = !mutant::is("a_nearer_deadline_is_not_told");
        }
    }

    fn rest(&mut self, key: Key, phase: Phase) {
        let (since, until) = self.table.rest(key, phase);
        if until != NEVER {
            self.timers.set(until, key, &self.table);
            self.due_by(until);
        }
        // Nothing is due before the shortest timeout is over, which is nearly always enough.
        if since.after(self.shortest_timeout) >= self.due {
            return;
        }
        let due = self.table.due(key, &self.bounds);
        self.due_by(due);
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
            // MariaDB's stays where it is.
            Phase::Queued { .. } if self.bounds.policy == Policy::Mariadb => {}
            Phase::Queued { lane } if lane != Lane::Holding => {
                self.promote(key, lane, Lane::Control);
            }
            _ => self.end_rest(key, now),
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
        let mut from = 0;
        while let Some((key, due)) = self.table.expired(from, now, &self.bounds) {
            from = key.slot() + 1;
            match due {
                Due::Close(why) => self.close_soon(key, why, now),
                Due::Look => {
                    if let Some(slot) = self.table.get_mut(key) {
                        slot.wake.tell(Told::LOOK);
                        self.end_rest(key, now);
                    }
                }
            }
        }
    }

    /// Wakes the connections that asked for it.
    fn ring_timers(&mut self, now: Nanos) {
        while let Some(key) = self.timers.pop(now, &self.table) {
            if let Some(slot) = self.table.get_mut(key) {
                slot.wake.tell(Told::DUE);
                self.end_rest(key, now);
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
        let due = due.map(|due| due.max(self.sweep_at));
        let due = due.into_iter().chain(self.timers.earliest()).min();
        self.due = due.unwrap_or(NEVER);
        due
    }
}
