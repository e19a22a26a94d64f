//! The command of a connection as others see it: its number, whether it has been cancelled, and whom
//! to call then.
//!
//! A command is what its handler does from the call that begins it to the time when it waits for the
//! next one. Its connection's worker alone begins and ends it, with a store each. Whoever cancels it
//! leaves its number beside that, and the worker compares: so a cancellation that comes too late is that of
//! another number.
//!
//! Callbacks are called by whoever cancels, one after the other and with no lock of ours held, and each
//! at most once. The end of a callback's scope waits for one that is being called: what comes after the
//! scope is not interrupted by it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use crate::mutant;
use crate::sync::{AtomicU64, Condvar, Mutex};

/// What has been done to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Killed = 1,
    TimedOut = 2,
    HungUp = 3,
}

/// The lowest bit of the last command: it is not over.
const UNDERWAY: u64 = 1;

/// The lower bits of the one that has been cancelled: the cause.
const BITS: u32 = 2;

/// Whose callbacks are to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Those that this command has registered.
    Command(u64),
    /// All: the connection is to be closed.
    All,
}

type Call = Box<dyn FnOnce() + Send>;

/// One connection's.
#[repr(C)] // the numbers are among what each turn touches
pub(crate) struct Command {
    /// The number of the last command, and whether it is underway. Its worker's; Relaxed, for a number by
    /// itself.
    last: AtomicU64,
    /// The command of the highest number that has been cancelled, and the first cause. Relaxed: nothing
    /// else is read on the strength of it; what a callback needs is carried by the lock of the callbacks.
    cancelled: AtomicU64,
    callbacks: Mutex<Callbacks>,
    /// Notified when a callback has returned.
    returned: Condvar,
}

#[derive(Default)]
struct Callbacks {
    last: u64,
    list: Vec<Callback>,
}

struct Callback {
    id: u64,
    /// The command that has registered it.
    command: u64,
    /// `None`: it is being called.
    call: Option<Call>,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Command").field(&self.number()).finish()
    }
}

impl Command {
    pub(crate) fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            callbacks: Mutex::new(Callbacks::default()),
            returned: Condvar::default(),
        }
    }

    // ---- its worker's ----

    /// The next command begins.
    pub(crate) fn begin(&self) {
        self.last
            .store((self.number() + 1) << 1 | UNDERWAY, Relaxed);
    }

    /// It ends. A cancellation that has come is forgotten; one that comes finds nothing.
    pub(crate) fn end(&self) {
        self.last.store(self.number() << 1, Relaxed);
    }

    /// The number of the last command that has begun.
    pub(crate) fn number(&self) -> u64 {
        self.last.load(Relaxed) >> 1
    }

    /// Calls `call` when the command is cancelled, or the connection, as `is_cancelled` says: at once
    /// if that has happened already.
    pub(crate) fn register(
        &self,
        is_cancelled: impl Fn() -> bool,
        call: impl FnOnce() + Send + 'static,
    ) -> Registered {
        let too_early = mutant::is("a_callback_looks_before_it_is_registered") && !is_cancelled();
        let mut callbacks = self.callbacks.lock();
        // Under the lock: whoever cancels does that first, and then looks for callbacks.
        if !too_early && is_cancelled() {
            drop(callbacks);
            return Registered::Called {
                panicked: !contained(call),
            };
        }
        callbacks.last += 1;
        let id = callbacks.last;
        let command = self.number();
        callbacks.list.push(Callback {
            id,
            command,
            call: Some(Box::new(call)),
        });
        Registered::Kept(id)
    }

    /// The scope of a callback ends. Waits for it if it is being called. False: what it owns has
    /// panicked when it was dropped.
    pub(crate) fn forget(&self, id: u64) -> bool {
        let mut callbacks = self.callbacks.lock();
        while let Some(at) = callbacks.list.iter().position(|c| c.id == id) {
            if let Some(call) = callbacks.list[at].call.take() {
                callbacks.list.remove(at);
                drop(callbacks);
                // It may own what takes locks when it is dropped.
                return contained(|| drop(call));
            }
            if mutant::is("a_scope_does_not_wait_for_its_callback") {
                break;
            }
            self.returned.wait(&mut callbacks);
        }
        true
    }

    /// As [`forget`](Self::forget), for all of them: a handler has leaked some. Returns how many
    /// panicked.
    pub(crate) fn forget_all(&self) -> usize {
        let mut panics = 0;
        loop {
            let first = self.callbacks.lock().list.first().map(|c| c.id);
            match first {
                Some(id) => panics += usize::from(!self.forget(id)),
                None => return panics,
            }
        }
    }

    // ---- everybody's ----

    /// The number of the command that runs, waits or rests, if there is one.
    pub(crate) fn current(&self) -> Option<u64> {
        let last = self.last.load(Relaxed);
        (last & UNDERWAY != 0).then_some(last >> 1)
    }

    /// What has cancelled it.
    pub(crate) fn cause(&self) -> Option<Cause> {
        let cancelled = self.cancelled.load(Relaxed);
        if cancelled == 0 {
            return None;
        }
        let anyones = mutant::is("a_kill_does_not_look_at_the_number");
        let current = self.current()?;
        (cancelled >> BITS == current || anyones).then_some(match cancelled & ((1 << BITS) - 1) {
            2 => Cause::TimedOut,
            3 => Cause::HungUp,
            _ => Cause::Killed,
        })
    }

    /// Cancels command `number`. The callbacks are not called yet.
    pub(crate) fn cancel(&self, number: u64, cause: Cause) -> Verdict {
        if self.current() != Some(number) {
            return Verdict::Over;
        }
        // It may end now, and others begin, and be cancelled: theirs stay. Relaxed: see the field.
        let newer = |old: u64| (old >> BITS < number).then_some(number << BITS | cause as u64);
        match self.cancelled.fetch_update(Relaxed, Relaxed, newer) {
            Ok(_) => Verdict::Cancelled,
            Err(old) if old >> BITS == number => Verdict::Already,
            Err(_) => Verdict::Over,
        }
    }

    /// Calls the callbacks of what has been cancelled. Returns how many panicked.
    pub(crate) fn call(&self, whose: Whose) -> usize {
        let mut panics = 0;
        let mut callbacks = self.callbacks.lock();
        while let Some((id, call)) = callbacks.take(whose) {
            drop(callbacks);
            panics += usize::from(!contained(call));
            callbacks = self.callbacks.lock();
            callbacks.list.retain(|c| c.id != id);
            self.returned.notify_all();
        }
        panics
    }
}

impl Callbacks {
    /// The next one to be called, which stays in the list meanwhile.
    fn take(&mut self, whose: Whose) -> Option<(u64, Call)> {
        self.list.iter_mut().find_map(|callback| {
            let concerned = match whose {
                Whose::All => true,
                Whose::Command(number) => callback.command == number,
            };
            let call = callback.call.take_if(|_| concerned)?;
            Some((callback.id, call))
        })
    }
}

/// What became of a callback that was to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    Kept(u64),
    /// At once: the command, or the connection, had been cancelled.
    Called {
        panicked: bool,
    },
}

/// What a cancellation has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Cancelled,
    /// It had been cancelled, and goes on.
    Already,
    /// It has ended, or has not begun.
    Over,
}

/// Whether it returned.
fn contained(call: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(()) => true,
        Err(payload) => {
            // Its destructor may panic as well.
            std::mem::forget(payload);
            false
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn counter(count: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
        let count = Arc::clone(count);
        move || _ = count.fetch_add(1, Relaxed)
    }

    #[test]
    fn only_the_command_of_that_number_is_cancelled() {
        let command = Command::new();
        assert_eq!(command.current(), None);
        command.begin();
        command.end();
        command.begin();
        assert_eq!(command.current(), Some(2));
        for late in [0, 1, 3, u64::MAX] {
            assert_eq!(command.cancel(late, Cause::Killed), Verdict::Over);
        }
        assert_eq!(command.cause(), None);
        assert_eq!(command.cancel(2, Cause::TimedOut), Verdict::Cancelled);
        assert_eq!(command.cancel(2, Cause::Killed), Verdict::Already);
        assert_eq!(
            command.cause(),
            Some(Cause::TimedOut),
            "the first one counts"
        );
        command.end();
        assert_eq!(command.cancel(2, Cause::Killed), Verdict::Over);
        assert_eq!((command.cause(), command.current()), (None, None));
    }

    struct Spiteful;

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic!("told to");
        }
    }

    #[test]
    fn callbacks_are_called_once_and_by_whom_they_concern() {
        let (command, count) = (Command::new(), Arc::default());
        let never = || false;
        command.begin();
        let Registered::Kept(first) = command.register(never, counter(&count)) else {
            panic!("nothing has been cancelled");
        };
        assert_eq!(command.call(Whose::Command(7)), 0);
        assert_eq!(count.load(Relaxed), 0);
        command.register(never, || panic!("told to"));
        assert_eq!(command.call(Whose::Command(1)), 1);
        assert_eq!(command.call(Whose::All), 0);
        assert_eq!(count.load(Relaxed), 1);
        assert!(command.forget(first));
        let called = command.register(|| true, counter(&count));
        assert_eq!(called, Registered::Called { panicked: false });
        assert_eq!(count.load(Relaxed), 2);
        let own = Spiteful;
        command.register(never, move || drop(own));
        command.register(never, counter(&count));
        assert_eq!(command.forget_all(), 1, "what one owns has panicked");
        command.call(Whose::All);
        assert_eq!(count.load(Relaxed), 2);
    }
}
