//! The lock and the sleeping place of a group, in one spelling for the real build, loom and shuttle.
//!
//! Only this file decides which they are. The real ones are parking_lot 0.13's *because that lock
//! barges*: a free lock goes to whoever is running and asks, never to a thread that is still
//! asleep. A fair lock hands itself to a sleeper, and behind sixteen burning threads on one core
//! everybody then waits for that sleeper's turn on the CPU.
//!
//! Loom is chosen by `all(test, loom)` and not by `loom` alone, so that another crate's
//! `--cfg loom` build, which sets the flag for every dependency, still gets the real thing. So is
//! shuttle.

#[cfg(not(all(test, any(loom, shuttle))))]
mod imp {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::time::Duration;

    /// One sleeper's place: a condition variable with a time-out.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(guard);
        }

        /// Sleeps for at most `time`. Whether it was the time or a waker that ended the sleep is
        /// for the state under the lock to say, so nothing is returned.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
            self.0.wait_for(guard, time);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(all(test, any(loom, shuttle)))]
mod imp {
    #[cfg(loom)]
    use loom as checker;
    #[cfg(shuttle)]
    use shuttle as checker;

    pub(crate) use checker::sync::atomic::{AtomicBool, AtomicU64};
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    const SHORT: Duration = Duration::from_secs(1);

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(checker::sync::Mutex<T>);

    /// The guard can be empty for the length of a `Condvar::wait`, because a checker's takes it by value.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T> {
        guard: Option<checker::sync::MutexGuard<'a, T>>,
        mutex: &'a Mutex<T>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(checker::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let guard = self.0.lock().expect("a checker stops at the first panic");
            MutexGuard {
                guard: Some(guard),
                mutex: self,
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.guard.as_ref().expect("only empty inside wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("only empty inside wait")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(checker::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.guard.take().expect("held by the caller");
            guard.guard = Some(
                self.0
                    .wait(inner)
                    .expect("a checker stops at the first panic"),
            );
        }

        /// A long time never passes here, so that a lost wake-up shows as a deadlock and is not
        /// papered over. A short one, the monitor's from tick to tick, passes as soon as the others
        /// have had their turn.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
            if time > SHORT {
                return self.wait(guard);
            }
            guard.guard = None;
            checker::thread::yield_now();
            *guard = guard.mutex.lock();
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub(crate) use imp::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard};

// The checkers know none, and need none: what is made once here is ordered by the locks around it.
pub(crate) use std::sync::OnceLock;
