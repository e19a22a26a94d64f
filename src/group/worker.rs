//! The worker's loop: take, then run, poll or park, then take again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::see::Meters;
use super::{Group, Task};
use crate::mutant;
use crate::port::Doors;
use crate::sched::{Job, Nanos, Step, WorkerId};

/// Events taken from the poller at a time. More would keep the lock longer; what is left comes next
/// time, in order.
pub(crate) const BATCH: usize = 1024;

impl<D: Doors, T: Task<D::Interest>> Group<D, T> {
    /// A worker's life, on its own thread. Returns when its time parked is over, or the group stops.
    pub(crate) fn work(&self, me: WorkerId) {
        let mut desk = T::Desk::default();
        let mut events = Vec::with_capacity(BATCH);
        let mut watch = Watch::new(self);
        let mut guard = self.guarded.lock();
        let bed = Arc::clone(&guard.beds[me.index()]);
        guard.came(me, watch.now);
        loop {
            let (step, mut actions) = guard.sched.take(me, watch.now);
            match step {
                Step::Run(Job {
                    key,
                    mut task,
                    wake,
                    lane,
                    queued,
                }) => {
                    guard.meters.dequeued(lane, queued);
                    let ticking = actions.tick;
                    actions.tick &= !mutant::is("who_leaves_the_poller_does_not_ring");
                    self.perform(guard, actions);
                    let turn = task.turn(key, wake, watch.now, self.doors.interest(), &mut desk);
                    let measured = watch.turn_ended(self, ticking, turn.calls);
                    guard = self.guarded.lock();
                    if let Some((time, commands)) = measured {
                        guard.meters.ran(time, commands);
                    }
                    if let Some(gone) = guard.sched.settle(me, key, task, turn, watch.now) {
                        drop(guard);
                        gone.left();
                        guard = self.guarded.lock();
                    }
                }
                Step::Poll { block } => {
                    watch.rest(&mut guard.meters);
                    self.perform(guard, actions);
                    self.doors.poll(block, &mut events);
                    watch.look(self);
                    guard = self.guarded.lock();
                    guard.rung(watch.now);
                    guard.sched.harvested(me, events.drain(..), watch.now);
                }
                Step::Park(time) => {
                    watch.rest(&mut guard.meters);
                    if mutant::is("a_worker_parks_out_of_the_lock") {
                        drop(guard);
                        guard = self.guarded.lock();
                        bed.wait(&mut guard);
                    }
                    let until = watch.now.after(time);
                    while guard.sched.is_parked(me) && watch.now < until {
                        bed.wait_for(&mut guard, until.since(watch.now).to_duration());
                        watch.look(self);
                    }
                    guard.came(me, watch.now);
                    if !guard.sched.slept(me, watch.now >= until) {
                        return;
                    }
                }
                Step::Exit => {
                    // Who leaves may have called somebody to take its place.
                    self.perform(guard, actions);
                    return;
                }
            }
        }
    }
}

/// The time, as a worker knows it: looked up after each turn, unless turns are very short.
///
/// Looking costs as much as a tenth of the least command. What the time is needed for, when a command
/// began and how long it may go on, is a matter of milliseconds. So while turns take a few
/// microseconds only every few of them are followed by a look; and a tick of the monitor, which comes
/// while anything is queued, ends that, should one of them be long. So the time is wrong by no more
/// than the time between two ticks. Where nothing made the monitor tick when the turn began, it is
/// looked up.
struct Watch {
    now: Nanos,
    looked_at: Nanos,
    /// Turns since then, and how many there may be.
    turns: u32,
    skips: u32,
    ticks: u32,
    /// Commands of those turns.
    commands: u32,
    /// How long those that were measured last took at the mean.
    mean: Nanos,
}

/// Turns without a look in between, if each is shorter than `SHORT`; under the model checker none.
const SKIPS: u32 = if cfg!(all(test, any(loom, shuttle))) {
    0
} else {
    8
};
const SHORT: Nanos = Nanos(10_000);

impl Watch {
    fn new<D: Doors, T: Task<D::Interest>>(group: &Group<D, T>) -> Self {
        let now = group.now();
        Self {
            now,
            looked_at: now,
            turns: 0,
            skips: 0,
            ticks: 0,
            commands: 0,
            mean: Nanos(0),
        }
    }

    fn look<D: Doors, T: Task<D::Interest>>(&mut self, group: &Group<D, T>) {
        self.now = group.now();
        self.looked_at = self.now;
        self.turns = 0;
        self.commands = 0;
    }

    /// If it looked, how long the commands since the last look took at the mean, and how many they
    /// were.
    fn turn_ended<D: Doors, T: Task<D::Interest>>(
        &mut self,
        group: &Group<D, T>,
        ticking: bool,
        commands: u32,
    ) -> Option<(Nanos, u32)> {
        self.turns += 1;
        self.commands += commands;
        // Relaxed: one that is seen late is seen after the next turn.
        let ticks = group.ticks.load(Relaxed);
        if ticking && self.turns <= self.skips && ticks == self.ticks {
            return None;
        }
        self.ticks = ticks;
        let (before, turns, commands) = (self.looked_at, u64::from(self.turns), self.commands);
        self.look(group);
        let time = self.now.since(before).0;
        self.skips = if time < SHORT.0 * turns { SKIPS } else { 0 };
        match commands {
            0 => return None,
            1 => self.mean = Nanos(time),
            _ => self.mean = Nanos(time / u64::from(commands)),
        }
        Some((self.mean, commands))
    }

    /// The worker has nothing to run. Commands since the last look, of which no look will tell, took as
    /// long as those before them: else there would have been a tick.
    fn rest(&mut self, meters: &mut Meters) {
        if self.commands > 0 {
            meters.ran(self.mean, std::mem::take(&mut self.commands));
        }
    }
}
