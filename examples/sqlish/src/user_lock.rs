//! Locks that users ask for by name: `GET_LOCK` and its kin.
//!
//! One mutex over all of them: they are few, and seldom taken. As with row locks, a lock that is
//! given up is handed to the first who waits before that one wakes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use thread_group_pool::Resume;

use crate::signal::Signal;

/// The named locks that somebody holds.
#[derive(Default)]
pub(crate) struct UserLocks(Mutex<Held>);

type Held = HashMap<String, UserLock>;

struct UserLock {
    owner: Arc<Signal>,
    /// How often its owner has asked for it and not given it back.
    times: u64,
    /// First come, first served.
    waiters: VecDeque<Waiter>,
}

struct Waiter {
    session: Arc<Signal>,
    /// If the session has parked; it is rung otherwise, which does no harm if it is about to park.
    resume: Option<Resume>,
}

impl Waiter {
    /// Call with no mutex held.
    fn wake(self) {
        match self.resume {
            Some(resume) => drop(resume.resume()),
            None => self.session.ring(),
        }
    }
}

/// What came of [`UserLocks::get`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Lock,
    /// This session has it; the caller stands in the queue until [`UserLocks::settle`].
    Queued {
        holder: u64,
    },
    /// Somebody has it, and the caller did not want to wait.
    Busy,
    /// Somebody has it who waits, by however many steps, for the caller.
    Circle,
}

impl UserLock {
    fn is_owned_by(&self, session: &Arc<Signal>) -> bool {
        Arc::ptr_eq(&self.owner, session)
    }

    /// Hands the lock to the first waiter, who is to be woken; false if there is none.
    fn hand_over(&mut self, woken: &mut Vec<Waiter>) -> bool {
        let Some(next) = self.waiters.pop_front() else {
            return false;
        };
        self.owner = Arc::clone(&next.session);
        self.times = 1;
        woken.push(next);
        true
    }
}

impl UserLocks {
    /// Takes a lock that is free or `session`'s own, or else, if it will `wait`, queues it.
    pub(crate) fn get(&self, name: &str, session: &Arc<Signal>, wait: bool) -> Got {
        let mut held = self.0.lock();
        let Some(lock) = held.get_mut(name) else {
            let lock = UserLock {
                owner: Arc::clone(session),
                times: 1,
                waiters: VecDeque::new(),
            };
            held.insert(name.to_owned(), lock);
            return Got::Lock;
        };
        if lock.is_owned_by(session) {
            lock.times += 1;
            return Got::Lock;
        }
        if !wait {
            return Got::Busy;
        }
        let owner = Arc::clone(&lock.owner);
        if waits_for(&held, Arc::clone(&owner), session) {
            return Got::Circle;
        }
        if let Some(lock) = held.get_mut(name) {
            lock.waiters.push_back(Waiter {
                session: Arc::clone(session),
                resume: None,
            });
        }
        Got::Queued { holder: owner.id() }
    }

    /// The queued `session` parks, and is to be resumed when it gets the lock; at once if it has
    /// got it meanwhile.
    pub(crate) fn park(&self, name: &str, session: &Arc<Signal>, resume: Resume) {
        let mut held = self.0.lock();
        let waiter = held.get_mut(name).and_then(|lock| {
            let mut waiters = lock.waiters.iter_mut();
            waiters.find(|waiter| Arc::ptr_eq(&waiter.session, session))
        });
        if let Some(waiter) = waiter {
            waiter.resume = Some(resume);
            return;
        }
        drop(held);
        resume.resume();
    }

    pub(crate) fn is_granted(&self, name: &str, session: &Arc<Signal>) -> bool {
        let held = self.0.lock();
        held.get(name).is_some_and(|lock| lock.is_owned_by(session))
    }

    /// Ends the wait of a queued `session`; whether it has got the lock.
    pub(crate) fn settle(&self, name: &str, session: &Arc<Signal>) -> bool {
        let mut held = self.0.lock();
        let Some(lock) = held.get_mut(name) else {
            return false;
        };
        lock.waiters
            .retain(|waiter| !Arc::ptr_eq(&waiter.session, session));
        lock.is_owned_by(session)
    }

    /// Gives a lock back, once. `None`: nobody has it; false: somebody else has.
    pub(crate) fn release(&self, name: &str, session: &Arc<Signal>) -> Option<bool> {
        let mut woken = Vec::new();
        let mut held = self.0.lock();
        let lock = held.get_mut(name)?;
        if !lock.is_owned_by(session) {
            return Some(false);
        }
        lock.times -= 1;
        if lock.times == 0 && !lock.hand_over(&mut woken) {
            held.remove(name);
        }
        drop(held);
        woken.into_iter().for_each(Waiter::wake);
        Some(true)
    }

    /// Gives back all that `session` has; how often it had asked for them.
    pub(crate) fn release_all(&self, session: &Arc<Signal>) -> u64 {
        let mut times = 0;
        let mut woken = Vec::new();
        self.0.lock().retain(|_, lock| {
            if !lock.is_owned_by(session) {
                return true;
            }
            times += lock.times;
            lock.hand_over(&mut woken)
        });
        woken.into_iter().for_each(Waiter::wake);
        times
    }

    /// Which session has a lock.
    pub(crate) fn owner(&self, name: &str) -> Option<u64> {
        self.0.lock().get(name).map(|lock| lock.owner.id())
    }

    #[cfg(test)]
    pub(crate) fn waiters(&self, name: &str) -> usize {
        let held = self.0.lock();
        held.get(name).map_or(0, |lock| lock.waiters.len())
    }
}

/// Whether `from` waits, by however many steps, for `session`. Each waits for one lock at a time, and
/// nobody who would close a circle is queued, so this follows a chain that ends.
fn waits_for(held: &Held, from: Arc<Signal>, session: &Arc<Signal>) -> bool {
    // Who holds nothing is waited for by nobody; it need not look through all the queues.
    if !held.values().any(|lock| lock.is_owned_by(session)) {
        return false;
    }
    let mut link = from;
    loop {
        let awaited = held.values().find(|lock| {
            let mut waiters = lock.waiters.iter();
            waiters.any(|waiter| Arc::ptr_eq(&waiter.session, &link))
        });
        match awaited {
            Some(lock) if lock.is_owned_by(session) => return true,
            Some(lock) => link = Arc::clone(&lock.owner),
            None => return false,
        }
    }
}
