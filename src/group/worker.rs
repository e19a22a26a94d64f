//! The worker's loop: take, then run, poll or park, then take again.

use std::sync::Arc;

use super::{Group, Task};
use crate::mutant;
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
            let (step, mut actions) = guard.sched.take(me, now);
            match step {
                Step::Run(Job {
                    key,
                    mut task,
                    wake,
                }) => {
                    actions.tick &= !mutant::is("who_leaves_the_poller_does_not_ring");
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
                    if mutant::is("a_worker_parks_out_of_the_lock") {
                        drop(guard);
                        guard = self.guarded.lock();
                        bed.wait(&mut guard);
                    }
                    let until = now.after(time);
                    while guard.sched.is_parked(me) && now < until {
                        bed.wait_for(&mut guard, until.since(now).to_duration());
                        now = self.now();
                    }
                    if !guard.sched.slept(me, now >= until) {
                        return;
                    }
                }
                Step::Exit => return,
            }
        }
    }
}
