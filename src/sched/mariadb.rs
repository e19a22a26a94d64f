//! MariaDB's policy, gaps included, to compare with and to study. The design note says which step of
//! its algorithm is where, and what cannot be the same here.
//!
//! Slots limit only who may take from the lanes, and only between two commands; they never cause a
//! wake-up. A thread is called when nobody is engaged, or at a tick when nothing has moved since the
//! one before. So a command that finds parked workers may wait for one to two ticks.

use super::lanes::LaneSet;
use super::table::{Phase, Slot};
use super::{Call, Cause, Lane, NEVER, Nanos, State, Step, WorkerId};

/// What the policy remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// The last tick found commands that wait and nobody who took any: the gate is open for whoever
    /// looks next.
    stalled: bool,
    /// Events that listeners have brought since the last tick.
    io_events: usize,
    /// Attempts to take from the lanes since the last tick, vain ones too.
    takes: usize,
    /// What the listener that has just harvested is to do.
    harvest: Harvest,
    /// How many were queued when the last move was over, but for those that the poller would bring
    /// and nobody is there to be brought.
    queued: usize,
    /// A thread has been asked for, and the monitor has not answered yet. It counts as engaged.
    wanted: bool,
    wanted_by_tick: bool,
    /// When the stall check is due. Ticks are at multiples of the stall limit, so that a monitor which
    /// is rung in between neither makes one nor puts one off.
    tick_at: Nanos,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Harvest {
    /// It is no listener that asks.
    #[default]
    No,
    /// The lanes were empty: it takes one itself.
    Pick,
    /// They were not, or it only listens: it goes on listening.
    Leave,
}

impl Counters {
    /// A worker leaves the poller's side for good, or for a command.
    pub(super) fn left(&mut self) {
        self.stalled = false;
    }

    /// The monitor creates the thread that was asked for, or cannot; then nobody asks again.
    pub(super) fn answered(&mut self) {
        self.wanted = false;
        self.wanted_by_tick = false;
    }

    pub(super) fn stalled(&self) -> bool {
        self.stalled
    }

    pub(super) fn due_to_stall(&self) -> bool {
        self.wanted_by_tick
    }
}

/// Where a connection queues: there are two lanes, and logins are high.
pub(super) fn lane<T>(slot: &Slot<T>) -> Lane {
    if slot.wake.close.is_none() && slot.lane == Lane::Low {
        Lane::Low
    } else {
        Lane::High
    }
}

pub(super) fn next_step<T>(s: &mut State<T>, worker: WorkerId, now: Nanos) -> (Step<T>, Call) {
    match std::mem::take(&mut s.mariadb.harvest) {
        Harvest::Pick => {
            // Nobody takes its place in the poller.
            let step = take(s, worker, now).unwrap_or_else(|| s.poll(worker, true));
            return (step, Call::Nobody);
        }
        Harvest::Leave => {
            let poll = s.poll(worker, true);
            let call = leave(s, now);
            s.mariadb.queued = s.lanes.len();
            return (poll, call);
        }
        Harvest::No => {}
    }
    // Its last connection has more input, or so: the poller would bring it to the listener.
    let brought = s.mariadb.queued == 0 && s.lanes.len() > 0;
    if brought && s.crew.listener().is_none() {
        // Which is this one, and what else there is comes with it.
        return (s.poll(worker, true), s.call_poller(now));
    }
    // The listener would take it in spite of the gate, and this one its place in the poller.
    let passes = brought && !s.bounds.dedicated_listener;
    let open = engaged(s) <= s.bounds.oversubscribe || s.mariadb.stalled;
    if (open || passes)
        && let Some(run) = take(s, worker, now)
    {
        return (run, Call::Nobody);
    }
    if s.crew.listener().is_none() {
        return (s.poll(worker, true), Call::Nobody);
    }
    s.crew.park(worker);
    (Step::Park(s.bounds.park_time), Call::Nobody)
}

/// The worker takes whoever is next, if there is somebody.
fn take<T>(s: &mut State<T>, worker: WorkerId, now: Nanos) -> Option<Step<T>> {
    s.mariadb.takes += 1;
    let (run, _) = s.start(worker, LaneSet::ALL, NEVER, now)?;
    s.mariadb.left();
    s.mariadb.queued = s.lanes.len();
    Some(run)
}

/// A listener has brought `events`, or has been rung for one that did not come by the poller. There
/// were `before` in the lanes.
pub(super) fn harvested<T>(s: &mut State<T>, events: usize, before: usize, rung: bool) {
    s.mariadb.io_events += events + usize::from(rung);
    s.mariadb.harvest = if (rung || before == 0) && !s.bounds.dedicated_listener {
        Harvest::Pick
    } else {
        Harvest::Leave
    };
}

/// Those who run, or are about to.
fn engaged<T>(s: &State<T>) -> usize {
    s.crew.engaged() + usize::from(s.mariadb.wanted)
}

pub(super) fn call<T>(s: &mut State<T>, cause: Cause, now: Nanos) -> Call {
    if s.stopping {
        return Call::Nobody;
    }
    let missing = match cause {
        Cause::Report => return report(s, now),
        Cause::Arrival => {
            // Groups without connections have no ticks. And with this one alone there is nobody to
            // whom a tick could matter.
            if s.table.len() == 1 {
                schedule_tick(s, now);
            }
            s.lanes.len() > s.mariadb.queued
        }
        Cause::Wait => s.lanes.len() > 0 || s.crew.listener().is_none(),
    };
    s.mariadb.queued = s.lanes.len();
    if missing && engaged(s) == 0 {
        wake_or_create(s, now)
    } else {
        Call::Nobody
    }
}

/// What a move may have queued that MariaDB's listener would hear of from its poller: it is rung
/// where it would take it, and otherwise done for what it would do.
fn report<T>(s: &mut State<T>, now: Nanos) -> Call {
    let before = s.mariadb.queued;
    if s.lanes.len() <= before || s.crew.listener().is_none() {
        return Call::Nobody;
    }
    s.mariadb.queued = s.lanes.len();
    if before == 0 && !s.bounds.dedicated_listener {
        s.call_poller(now)
    } else {
        leave(s, now)
    }
}

/// A listener leaves to others what it has brought: it wakes somebody if nobody is engaged, but
/// creates a thread only if it is alone.
fn leave<T>(s: &mut State<T>, now: Nanos) -> Call {
    if s.lanes.len() == 0 || engaged(s) > 0 {
        return Call::Nobody;
    }
    match s.call_parked(now) {
        Some(call) => call,
        None if s.crew.threads() == 1 => create(s),
        None => Call::Nobody,
    }
}

fn wake_or_create<T>(s: &mut State<T>, now: Nanos) -> Call {
    if s.mariadb.wanted {
        // That one is on the way.
        return Call::Nobody;
    }
    if let Some(call) = s.call_parked(now) {
        return call;
    }
    if s.crew.threads() > s.table.len() {
        return Call::Nobody;
    }
    if engaged(s) > 0 && now.since(s.crew.created_at()) <= throttle(s) {
        s.stats.throttles += 1;
        return Call::Nobody;
    }
    create(s)
}

fn create<T>(s: &mut State<T>) -> Call {
    s.mariadb.wanted = true;
    Call::Spawn
}

const MS: u64 = 1_000_000;

/// The least time between two thread creations, by the threads that there are.
///
/// The factor was meant to scale with the stall limit. In integers it is 1 or 0, so below 500 ms
/// nothing is throttled.
pub(super) fn throttle<T>(s: &State<T>) -> Nanos {
    let factor = s.bounds.stall_limit.0 / s.bounds.stall_limit.0.max(500 * MS);
    let pause = match s.crew.threads() {
        n if n < 1 + s.bounds.oversubscribe => 0,
        0..8 => 50 * MS,
        8..16 => 100 * MS,
        _ => 20 * MS,
    };
    Nanos(pause * factor)
}

/// It ticks on a quiet server too.
pub(super) fn wants_ticks<T>(s: &State<T>) -> bool {
    s.table.len() > 0 || s.mariadb.wanted
}

fn schedule_tick<T>(s: &mut State<T>, now: Nanos) {
    let limit = s.bounds.stall_limit.0.max(1);
    s.mariadb.tick_at = Nanos((now.0 / limit).saturating_add(1).saturating_mul(limit));
}

/// A look of the monitor, which is a tick only if one is due.
pub(super) fn tick<T>(s: &mut State<T>, now: Nanos) -> Call {
    let mut call = Call::Nobody;
    if now >= s.mariadb.tick_at {
        schedule_tick(s, now);
        if s.table.len() > 0 {
            call = check_stall(s, now);
        }
    }
    if s.mariadb.wanted {
        Call::Spawn
    } else if call == Call::Nobody {
        // Deadlines may have passed.
        report(s, now)
    } else {
        call
    }
}

fn check_stall<T>(s: &mut State<T>, now: Nanos) -> Call {
    kick_up(s, now);
    let mut call = Call::Nobody;
    if s.crew.listener().is_none() && s.mariadb.io_events == 0 {
        call = wake_or_create(s, now);
    } else {
        s.mariadb.io_events = 0;
        // Not those that the deadlines of this moment have queued.
        if s.mariadb.queued > 0 && s.mariadb.takes == 0 {
            s.mariadb.stalled = true;
            s.stats.stalls += 1;
            call = wake_or_create(s, now);
        }
        s.mariadb.takes = 0;
    }
    s.mariadb.wanted_by_tick |= call == Call::Spawn;
    call
}

/// Age promotes: to the tail of the high lane, and only here.
fn kick_up<T>(s: &mut State<T>, now: Nanos) {
    let up = (Lane::Low, Lane::High);
    while let Some(key) = s.lanes.kick_up(up, false, now, s.bounds.kickup) {
        if let Some(slot) = s.table.get_mut(key) {
            slot.phase = Phase::Queued { lane: Lane::High };
        }
    }
}

#[cfg(all(any(test, feature = "walk"), not(loom)))]
impl Counters {
    /// As if somebody had taken a command, so that the next tick finds no stall.
    #[cfg(test)]
    pub(super) fn takes_one(&mut self) {
        self.takes += 1;
        self.io_events += 1;
    }

    /// What the future depends on, with the time to the next tick in place of its moment.
    pub(super) fn code(&self, now: Nanos) -> [u64; 8] {
        [
            u64::from(self.stalled),
            // Whether there were any is all that is asked.
            u64::from(self.io_events > 0),
            u64::from(self.takes > 0),
            self.harvest as u64,
            self.queued as u64,
            u64::from(self.wanted),
            u64::from(self.wanted_by_tick),
            self.tick_at.since(now).0,
        ]
    }
}
