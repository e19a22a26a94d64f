//! The worker's loop: take, then run, poll or park, then take again.

use std::sync::Arc;
use std::time::Instant;

use super::{Group, Task};
use crate::port::Doors;
use crate::sched::{Job, Step, WorkerId};

/// Events taken from the poller at a time. More would keep the lock longer; what is left comes next
/// time, in order.
pub(crate) const BATCH: usize = 1024;

impl<D: Doors, T: Task<D::Interest>> Group<D, T> {
    /// A worker's life, on its own thread. Returns when its time parked is over, or the group stops.
    pub(crate) fn work(&self, me: WorkerId) {
        let mut desk = T::Desk::default();
        let mut events = Vec::with_capacity(BATCH);
        let mut now = self.now();
        let mut guard = self.guarded.lock();
        let bed = Arc::clone(&guard.beds[me.index()]);
        loop {
            let (step, actions) = guard.sched.take(me, now);
            match step {
                Step::Run(Job {
                    key,
                    mut task,
                    wake,
                }) => {
                    self.perform(guard, actions);
                    let turn = task.turn(key, wake, now, self.doors.interest(), &mut desk);
                    now = self.now();
                    guard = self.guarded.lock();
                    if let Some(gone) = guard.sched.settle(me, key, task, turn, now) {
                        drop(guard);
                        gone.left();
                        guard = self.guarded.lock();
                    }
                }
                Step::Poll { block } => {
                    self.perform(guard, actions);
                    self.doors.poll(block, &mut events);
                    now = self.now();
                    guard = self.guarded.lock();
                    guard.sched.harvested(me, events.drain(..), now);
                }
                Step::Park(time) => {
                    let time = time.to_duration();
                    let begun = Instant::now();
                    while guard.sched.is_parked(me) && begun.elapsed() < time {
                        bed.wait_for(&mut guard, time.saturating_sub(begun.elapsed()));
                    }
                    let called = !guard.sched.is_parked(me);
                    if !guard.sched.slept(me, !called) {
                        return;
                    }
                    now = self.now();
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
