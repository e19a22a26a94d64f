//! Our policy: work is conserved, and short commands never wait behind long ones.
//!
//! The group aims at one command on the CPU. One that reports a wait gives its slot up at once; each
//! one that has been running for `handover` opens one more slot, up to 1 + `oversubscribe`; one past
//! the stall bound gives its slot up for good. Long ones are bounded by `oversubscribe` beside that.

use super::lanes::LaneSet;
use super::table::Phase;
use super::{Call, Lane, NEVER, Nanos, State, Step, WorkerId};

/// How long a thread beyond the cap stays when nobody holds anything that it could be for: in a convoy
/// somebody soon does again, and creating a thread for each time would cost more than the command.
const SPARE: Nanos = Nanos(100_000_000);

pub(super) fn next_step<T>(s: &mut State<T>, worker: WorkerId, now: Nanos) -> (Step<T>, Call) {
    let from = open_lanes(s);
    if s.lanes.offer(from) && gate_open(s, now) {
        // Between two commands, look at the poller now and then: while commands are short, nobody
        // else needs to be woken to do it.
        if s.crew.listener().is_none()
            && s.table.resting() > 0
            && now.since(s.polled_at) >= s.bounds.handover
        {
            s.polled_at = now;
            return (s.poll(worker, false), Call::Nobody);
        }
        if let Some((run, suspect)) = s.start(worker, from, s.bounds.kickup, now) {
            // One that is likely to be long hands the poller and the next slot on at once: found out
            // by the next tick, it would have cost everybody two turns of the CPU, the monitor's and
            // that of the thread that it calls, behind a command that burns it.
            if suspect {
                return (run, call(s, now));
            }
            // Nobody is missing: the command is fresh, so the gate is shut, and its worker will look
            // at the poller. Unless that is one of those that are to leave.
            return (run, call_excess(s, now));
        }
    }
    // Beyond the cap, and what it was for is over.
    if too_many(s, now) && s.crew.may_leave() {
        s.crew.exit(worker);
        return (Step::Exit, call(s, now));
    }
    if s.crew.listener().is_none() && !watched_by_workers(s, now) {
        return (s.poll(worker, true), Call::Nobody);
    }
    s.crew.park(worker);
    let time = if s.crew.excess() > 0 {
        spare_time(s)
    } else {
        s.bounds.park_time
    };
    (Step::Park(time), Call::Nobody)
}

/// Whether a command may start now.
pub(super) fn gate_open<T>(s: &State<T>, now: Nanos) -> bool {
    s.crew.active() < 1 + s.bounds.oversubscribe && !s.crew.any_fresh(now, s.bounds.handover)
}

/// Those that are likely to be long count before they are found to be: when several end at once, as
/// many may follow, and not one for each slot that is open until the first of them is found out.
fn long_allowed<T>(s: &State<T>) -> bool {
    s.crew.long() + s.crew.likely_long() < s.bounds.oversubscribe
}

/// From which lanes a command may start, if one may.
pub(super) fn open_lanes<T>(s: &State<T>) -> LaneSet {
    if !s.crew.ordinary_allowed() {
        LaneSet::HOLDING
    } else if long_allowed(s) {
        LaneSet::ALL
    } else {
        LaneSet::SHORT
    }
}

/// While a worker runs short commands it looks at the poller itself, between two of them; a second
/// thread there would be woken for each event and could do nothing with it.
///
/// That somebody has done so of late is asked too. Where commands come back from waits one after the
/// other, somebody is always fresh, the gate is always shut, and none of them ever gets to look.
fn watched_by_workers<T>(s: &State<T>, now: Nanos) -> bool {
    let handover = s.bounds.handover;
    s.crew.any_fresh(now, handover) && now.since(s.polled_at) < handover.twice()
}

/// Nobody is in the poller, nor would look at it.
fn unwatched<T>(s: &State<T>, now: Nanos) -> bool {
    s.crew.listener().is_none() && s.table.resting() > 0 && !watched_by_workers(s, now)
}

/// Whether the passing of time can make somebody be missing, or will soon.
///
/// While a long command burns CPU it will: others come, for whose sake the monitor would be woken. It
/// stays awake instead, because a wake-up costs whoever does it his place before those that burn. Who
/// goes to sleep while another thread waits for the CPU leaves with less credit, in the kernel's books,
/// than he has; here it was all that the worker had, which ran the short commands in between.
pub(super) fn wants_ticks<T>(s: &State<T>) -> bool {
    s.lanes.offer(open_lanes(s))
        || (s.crew.listener().is_none() && s.table.resting() > 0)
        || s.crew.long() > 0
        // Others wait for one that is likely to be long: it is to be found so, or not.
        || (s.lanes.len() > 0 && s.crew.likely_long() > 0)
        || s.crew.excess() > s.table.holding()
}

/// Sees to invariants 1 (work conservation) and 2 (poll coverage) after a move.
pub(super) fn call<T>(s: &mut State<T>, now: Nanos) -> Call {
    // Whoever is on the way takes, and whoever takes looks again: one at a time is enough.
    if s.stopping || s.crew.coming() > 0 {
        return Call::Nobody;
    }
    let work = s.lanes.offer(open_lanes(s)) && gate_open(s, now);
    if !work && !unwatched(s, now) {
        return call_excess(s, now);
    }
    if let Some(call) = s.call_parked(now) {
        return call;
    }
    if work && s.crew.listener().is_some() {
        return s.call_poller(now);
    }
    s.call_spawn()
}

fn spare_time<T>(s: &State<T>) -> Nanos {
    SPARE.min(s.bounds.park_time)
}

/// While long commands run and others wait for the gate, threads are had ready for when it opens, as many as
/// may pass it. One that is created only then waits for its first turn on the CPU, behind all that burn it, and
/// everybody with it: where sixteen sessions begin with a long command each, that made half of the time until a
/// short one got through.
pub(super) fn wants_spare<T>(s: &State<T>) -> bool {
    waited_for_beside_long(s) && s.crew.coming() + s.crew.parked() < s.bounds.oversubscribe.max(1)
}

/// Calls a worker for each slot that is open. One at a time is enough where the CPU is free; beside commands
/// that burn it, each waits for its turn before it can look, and they may as well wait together.
pub(super) fn call_for_slots<T>(s: &mut State<T>, now: Nanos) -> Vec<WorkerId> {
    let mut called = Vec::new();
    if waited_for_beside_long(s) {
        let slots = (1 + s.bounds.oversubscribe).saturating_sub(s.crew.active() + s.crew.coming());
        while called.len() < slots
            && let Some(Call::Worker(worker)) = s.call_parked(now)
        {
            called.push(worker);
        }
    }
    called
}

fn waited_for_beside_long<T>(s: &State<T>) -> bool {
    !s.stopping && s.crew.long() > 0 && s.lanes.offer(open_lanes(s))
}

/// There are more threads beyond the cap than anybody has needed of late.
fn too_many<T>(s: &State<T>, now: Nanos) -> bool {
    s.crew.excess() > s.table.holding() && now.since(s.crew.held_at()) >= spare_time(s)
}

/// A listener beyond the cap would stay for ever.
fn call_excess<T>(s: &mut State<T>, now: Nanos) -> Call {
    if too_many(s, now) && s.crew.listener().is_some() {
        s.call_poller(now)
    } else {
        Call::Nobody
    }
}

/// Whether a thread may be created beyond the cap: for the command of a session that holds
/// something, or to listen for one.
pub(super) fn may_exceed<T>(s: &State<T>, now: Nanos) -> bool {
    s.crew.excess() < s.table.holding()
        && ((s.lanes.offer(LaneSet::HOLDING) && gate_open(s, now)) || unwatched(s, now))
}

pub(super) fn tick<T>(s: &mut State<T>, now: Nanos) {
    mark_stalled(s, now);
    kick_up(s, now);
}

/// Commands past the stall bound give their slots up.
fn mark_stalled<T>(s: &mut State<T>, now: Nanos) {
    if s.crew.active() == 0 {
        return;
    }
    let stalls = s.crew.mark_stalled(now, s.bounds.stall_limit);
    if stalls > 0 {
        s.stats.stalls += stalls as u64;
        // Their threads are to be looked at now.
        s.judged_at = Nanos(0);
    }
}

/// The throttle; see [`PoolConfig::creation_throttle`](crate::PoolConfig::creation_throttle).
pub(super) fn may_create<T>(s: &State<T>, now: Nanos) -> bool {
    let base = 1 + s.bounds.oversubscribe;
    // Those that wait take no CPU from anybody, and may be waiting for just that thread.
    let busy = s.crew.threads() - s.crew.waiting() - s.crew.detected();
    let factor = match busy {
        _ if s.crew.active() == 0 => 0,
        n if n < base => 0,
        n if n < 2 * base => 1,
        n if n < 4 * base => 2,
        _ => 4,
    };
    let pause = s.bounds.creation_throttle.0.saturating_mul(factor);
    now.since(s.crew.created_at()) >= Nanos(pause)
}

/// Age promotes, at the bound on long commands too: each `kickup`, the one that has been kept
/// waiting for longest goes on. What those that run are waiting for may be just that one.
fn kick_up<T>(s: &mut State<T>, now: Nanos) {
    let kickup = s.bounds.kickup;
    if kickup == NEVER || long_allowed(s) || now.since(s.kicked_up_at) < kickup {
        return;
    }
    let up = (Lane::Long, Lane::Low);
    if let Some(key) = s.lanes.kick_up(up, true, now, kickup)
        && let Some(slot) = s.table.get_mut(key)
    {
        slot.phase = Phase::Queued { lane: Lane::Low };
        s.kicked_up_at = now;
    }
}
