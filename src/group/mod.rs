//! Who does it: the lock, the workers' loop, the monitor.
//!
//! Everything here follows one pattern: lock, ask [`sched`](crate::sched), unlock, *then* wake
//! somebody or run a command. [`Group::perform`] takes the guard by value, so waking under the lock
//! does not compile. No decision is made here.
//!
//! The lock is a leaf: nothing else is locked, created or called while it is held, so
//! [`wait_begin`](Group::wait_begin) may be called under any lock of the user's. It is held for the
//! length of a move in `sched`, which is some tens of nanoseconds but for a harvest (as long as
//! the batch) and a sweep (as long as the table). Whoever only looks takes it once for each
//! [`LOOK`](see::LOOK) entries.

#[cfg(all(test, any(loom, shuttle)))]
mod fakes;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod monitor;
pub(crate) mod see;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
pub(crate) mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crossbeam::utils::CachePadded;

use crate::mutant;
use crate::port::Doors;
use crate::sched::{Actions, Bounds, Call, Key, Nanos, State, Ticket, Turn, Wake, WorkerId};
use crate::stats::GroupStats;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::wait::WaitKind;

use monitor::Bell;
use see::Meters;

/// A connection as the group sees it: something that takes a turn. Exactly one worker has it then.
pub(crate) trait Task<I>: Send {
    /// What a worker lends to each connection that it runs: buffers.
    type Desk: Default;

    /// Its connection's id, for those who look at the group.
    fn id(&mut self) -> u64 {
        0
    }

    /// Runs the connection. Called without any lock. Must not panic.
    fn turn(
        &mut self,
        key: Key,
        wake: Wake,
        now: Nanos,
        interest: &I,
        desk: &mut Self::Desk,
    ) -> Turn;

    /// It has left the group. Called without any lock, on the worker that ran it.
    fn left(self)
    where
        Self: Sized,
    {
        drop(self);
    }
}

/// What the group's lock guards.
#[derive(Debug)]
struct Guarded<T> {
    sched: State<T>,
    /// Where each worker sleeps, by its index.
    beds: Vec<Arc<Condvar>>,
    /// For what each worker waits, by its index, if it does.
    waits: Vec<WaitKind>,
    /// The ids of the connections, by their slots.
    ids: Vec<u64>,
    meters: Box<Meters>,
}

impl<T> Guarded<T> {
    /// Says whose slot this is from now on.
    fn name(&mut self, key: Key, id: u64) {
        if self.ids.len() <= key.slot() {
            self.ids.resize(key.slot() + 1, 0);
        }
        self.ids[key.slot()] = id;
    }

    fn beds_of(&self, workers: &[WorkerId]) -> Vec<Arc<Condvar>> {
        let beds = workers.iter().map(|w| self.beds[w.index()].clone());
        beds.collect()
    }
}

/// A thread group.
#[derive(Debug)]
pub(crate) struct Group<D, T> {
    guarded: CachePadded<Mutex<Guarded<T>>>,
    bell: Arc<Bell>,
    doors: D,
    /// The monitor's ticks. Relaxed: see the worker's `Watch`.
    ticks: AtomicU32,
}

impl<D: Doors, T: Task<D::Interest>> Group<D, T> {
    pub(crate) fn new(bounds: Bounds, doors: D, bell: Arc<Bell>) -> Self {
        Self {
            guarded: CachePadded::new(Mutex::new(Guarded {
                sched: State::new(bounds),
                beds: Vec::new(),
                waits: Vec::new(),
                ids: Vec::new(),
                meters: Box::default(),
            })),
            bell,
            doors,
            ticks: AtomicU32::new(0),
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.doors.now())
    }

    /// Gives a new connection to the group; a group that is stopping gives it back.
    pub(crate) fn attach(&self, mut task: T) -> Result<Key, T> {
        let id = task.id();
        let now = self.now();
        let mut guard = self.guarded.lock();
        let (key, actions) = guard.sched.attach(task, now)?;
        guard.name(key, id);
        self.perform(guard, actions);
        Ok(key)
    }

    /// Kills a connection; false if it is gone.
    pub(crate) fn kill(&self, key: Key) -> bool {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let found = guard.sched.contains(key);
        let actions = guard.sched.kill(key, now);
        self.perform(guard, actions);
        found
    }

    /// Has a connection's handler called.
    pub(crate) fn poke(&self, key: Key) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let actions = guard.sched.poke(key, now);
        self.perform(guard, actions);
    }

    /// A connection's command has been cancelled.
    pub(crate) fn interrupt(&self, key: Key) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let actions = guard.sched.interrupt(key, now);
        self.perform(guard, actions);
    }

    /// Ends a park. False: it is over already.
    pub(crate) fn resume(&self, key: Key, ticket: Ticket, dropped: bool) -> bool {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let (won, actions) = guard.sched.resume(key, ticket, dropped, now);
        self.perform(guard, actions);
        won
    }

    /// Lets a connection go first, for somebody waits for it.
    pub(crate) fn boost(&self, key: Key) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let actions = guard.sched.boost(key, now);
        self.perform(guard, actions);
    }

    /// That one does not wait for it any more.
    pub(crate) fn unboost(&self, key: Key) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let actions = guard.sched.unboost(key, now);
        self.perform(guard, actions);
    }

    /// Other limits, from now on.
    pub(crate) fn rebound(&self, bounds: Bounds) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let (workers, actions) = guard.sched.rebound(bounds, now);
        self.perform_for_many(guard, &workers, actions);
    }

    /// The cap leaves out so many more of the threads here.
    fn add_excess(&self, more: usize) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let (workers, actions) = guard.sched.add_excess(more, now);
        self.perform_for_many(guard, &workers, actions);
    }

    /// Whose command each worker runs.
    pub(crate) fn running(&self) -> Vec<(WorkerId, Key)> {
        self.guarded.lock().sched.running()
    }

    /// Closes idle connections, and each other one when it comes to rest between commands.
    /// `spare`: not in a transaction.
    pub(crate) fn drain(&self, spare: bool) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let actions = guard.sched.drain(spare, now);
        self.perform(guard, actions);
    }

    /// Sends every worker home and lets nobody in. Does not wait for them.
    pub(crate) fn stop(&self) {
        let mut guard = self.guarded.lock();
        let (workers, poller) = guard.sched.stop();
        let beds = guard.beds_of(&workers);
        drop(guard);
        for bed in beds {
            bed.notify_one();
        }
        if poller && !mutant::is("a_stop_does_not_ring_the_poller") {
            self.doors.wake();
        }
    }

    /// The connections that no worker came for, after [`stop`](Self::stop).
    pub(crate) fn leftovers(&self) -> Vec<T> {
        self.guarded.lock().sched.leftovers()
    }

    /// The command on `worker` is about to block. A leaf: callable under any lock of the user's.
    /// `holder`: the id of the connection that it waits for, if that is known.
    pub(crate) fn wait_begin(&self, worker: WorkerId, kind: WaitKind, holder: Option<u64>) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        guard.waits[worker.index()] = kind;
        guard.meters.waits(kind);
        let mut actions = guard.sched.wait_begin(worker, holder, now);
        if mutant::is("a_wait_calls_nobody") {
            actions.call = Call::Nobody;
        }
        self.perform(guard, actions);
    }

    /// The command on `worker` goes on, after so long.
    pub(crate) fn wait_end(&self, worker: WorkerId, waited: Nanos) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        guard.sched.wait_end(worker, now);
        let kind = guard.waits[worker.index()];
        guard.meters.waited(kind, waited);
    }

    /// The command on `worker` will be long.
    pub(crate) fn declare_long(&self, worker: WorkerId) {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let actions = guard.sched.declare_long(worker, now);
        self.perform(guard, actions);
    }

    pub(crate) fn stats(&self) -> GroupStats {
        self.guarded.lock().sched.stats()
    }

    /// Counts a worker in whose thread the caller is about to create.
    pub(crate) fn spawning(&self, due_to_stall: bool, excess: bool) -> WorkerId {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let worker = guard.sched.spawning(now, due_to_stall, excess);
        if guard.beds.len() <= worker.index() {
            guard.beds.push(Arc::default());
            guard.waits.push(WaitKind::Unknown);
        }
        worker
    }

    /// Counts it out again: there was no thread.
    pub(crate) fn spawn_failed(&self, worker: WorkerId, retry: Nanos) {
        self.guarded.lock().sched.spawn_failed(worker, retry);
    }

    /// Carries out what a move asked for that has called several workers.
    fn perform_for_many(
        &self,
        guard: MutexGuard<'_, Guarded<T>>,
        workers: &[WorkerId],
        actions: Actions,
    ) {
        let beds = guard.beds_of(workers);
        self.perform(guard, actions);
        for bed in beds {
            bed.notify_one();
        }
    }

    /// Carries out what a move asked for. Takes the guard, because nobody is woken under the lock:
    /// who is woken wants it.
    #[inline(always)]
    fn perform(&self, guard: MutexGuard<'_, Guarded<T>>, actions: Actions) {
        let bed = match actions.call {
            Call::Worker(worker) => Some(guard.beds[worker.index()].clone()),
            Call::Nobody | Call::Poller | Call::Spawn | Call::Spare => None,
        };
        drop(guard);
        if let Some(bed) = bed {
            bed.notify_one();
        }
        if actions.call == Call::Poller && !mutant::is("a_called_listener_is_not_rung") {
            self.doors.wake();
        }
        if actions.call == Call::Spawn {
            self.bell.ring_now();
        } else if actions.tick {
            self.bell.ring();
        }
    }
}
