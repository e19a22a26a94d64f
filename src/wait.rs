//! "I am about to block": how a handler tells its scheduler.
//!
//! A command in a reported wait gives its slot up at once, so another one runs meanwhile. Report
//! waits that are likely to be long (row locks, disk, another server, a sleep); a mutex that is
//! held for microseconds is not worth it.
//!
//! ```
//! use thread_group_pool::wait::{self, WaitKind};
//! # let receiver = { let (s, r) = std::sync::mpsc::channel(); s.send(1).unwrap(); r };
//! let answer = wait::during(WaitKind::Other("reply"), || receiver.recv());
//! # assert_eq!(answer, Ok(1));
//! ```
//!
//! The thread that takes the slot is a parked one, or else a new one. New ones are created one after
//! the other, so when many commands start to wait at once, and as many threads are not parked yet, the
//! next command waits until the last of them has been created.
//!
//! | question | answer |
//! |---|---|
//! | which thread | the one that runs the command; on any other it does nothing and costs a look at a thread-local |
//! | which locks may the caller hold | any: the pool's own lock is a leaf, and no thread is created here |
//! | does it block | never beyond that lock; coming back from a wait is never held up |
//! | nested | only the outermost counts |
//! | panics | the guard ends the wait when it is dropped, by unwinding too |

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::id::ConnId;

/// What is waited for. All but the last two are MariaDB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// Not said.
    Unknown,
    /// A deliberate pause.
    Sleep,
    /// Reading or writing a file.
    DiskIo,
    /// A lock on a row.
    RowLock,
    /// A lock on everything.
    GlobalLock,
    /// A lock on a table's definition.
    MetaDataLock,
    /// A lock on a table.
    TableLock,
    /// A lock that a user asked for by name.
    UserLock,
    /// The replication log.
    Binlog,
    /// A commit that waits for others to commit with.
    GroupCommit,
    /// `fsync` and the like.
    Sync,
    /// A socket. [`Conn`](crate::Conn) reports its own.
    Net,
    /// Not reported by the handler: the pool found the thread blocked when the command had run past the
    /// stall limit. Seen in statistics only.
    Detected,
    /// Anything else, by name. All of these are counted as one kind.
    Other(&'static str),
}

impl WaitKind {
    pub(crate) const COUNTED: [Self; 14] = [
        Self::Unknown,
        Self::Sleep,
        Self::DiskIo,
        Self::RowLock,
        Self::GlobalLock,
        Self::MetaDataLock,
        Self::TableLock,
        Self::UserLock,
        Self::Binlog,
        Self::GroupCommit,
        Self::Sync,
        Self::Net,
        Self::Detected,
        Self::Other("other"),
    ];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Unknown => 0,
            Self::Sleep => 1,
            Self::DiskIo => 2,
            Self::RowLock => 3,
            Self::GlobalLock => 4,
            Self::MetaDataLock => 5,
            Self::TableLock => 6,
            Self::UserLock => 7,
            Self::Binlog => 8,
            Self::GroupCommit => 9,
            Self::Sync => 10,
            Self::Net => 11,
            Self::Detected => 12,
            Self::Other(_) => 13,
        }
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(name) => f.write_str(name),
            kind => write!(f, "{kind:?}"),
        }
    }
}

/// Runs `blocking`, which is likely to block, as a reported wait.
pub fn during<R>(kind: WaitKind, blocking: impl FnOnce() -> R) -> R {
    let _waiting = enter(kind);
    blocking()
}

/// As [`during`], and says for which connection's command it waits: the holder of the lock, say.
///
/// As long as the wait lasts, what the holder has queued, or queues, goes before everything else, and
/// may have a thread beyond the cap; so do those that the holder itself waits for, as far as it has said
/// so.
/// Without it, whoever is waited for queues behind those that wait for it. A holder that is unknown
/// here or has gone is no error. The wait is for this holder to its end: when the lock passes to another, who has not
/// said so by [`Conn::set_holding`](crate::Conn::set_holding), end this one and begin one for that.
pub fn during_for<R>(kind: WaitKind, holder: ConnId, blocking: impl FnOnce() -> R) -> R {
    let _waiting = enter_for(kind, holder);
    blocking()
}

/// Reports a wait that lasts until the guard is dropped. Prefer [`during`], which cannot be held
/// too long.
#[inline] // without it, a thread that is no worker pays more for the calls than for the look
pub fn enter(kind: WaitKind) -> Guard {
    begin(kind, None)
}

/// As [`enter`], for a known holder; see [`during_for`].
pub fn enter_for(kind: WaitKind, holder: ConnId) -> Guard {
    begin(kind, Some(holder))
}

#[inline]
fn begin(kind: WaitKind, holder: Option<ConnId>) -> Guard {
    // `try_with`: a destructor of another thread-local may wait when this one has gone already.
    let counted = WORKER.try_with(|worker| worker.get().map(|worker| worker.begin(kind, holder)));
    Guard {
        counted: matches!(counted, Ok(Some(()))),
        _not_send: PhantomData,
    }
}

/// Ends a reported wait when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct Guard {
    counted: bool,
    _not_send: PhantomData<*const ()>,
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            let _ = WORKER.try_with(|worker| worker.get().map(Worker::end));
        }
    }
}

/// Who is told of a thread's waits: its place in a scheduler.
pub(crate) trait Place: Send + Sync {
    /// `holder`: who is waited for, if that is known.
    fn wait_begin(&self, kind: WaitKind, holder: Option<ConnId>);
    fn wait_end(&self, kind: WaitKind, time: Duration);
    /// The command will be long.
    fn declare_long(&self);
}

struct Worker {
    place: Arc<dyn Place>,
    depth: Cell<u32>,
    /// There is no command: see [`unreported`].
    silent: Cell<bool>,
    /// The outermost wait.
    begun: Cell<Option<(WaitKind, Instant)>>,
}

impl Worker {
    fn begin(&self, kind: WaitKind, holder: Option<ConnId>) {
        if self.silent.get() {
            return;
        }
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if depth == 0 {
            self.begun.set(Some((kind, Instant::now())));
            self.place.wait_begin(kind, holder);
        }
    }

    fn ended(&self) {
        let (kind, begun) = self
            .begun
            .take()
            .unwrap_or_else(|| (WaitKind::Unknown, Instant::now()));
        self.place.wait_end(kind, begun.elapsed());
    }

    fn end(&self) {
        let depth = self.depth.get();
        // Zero: the guard outlived its command, which has been ended by `command_ended`, or there was none.
        if depth > 0 {
            self.depth.set(depth - 1);
            if depth == 1 {
                self.ended();
            }
        }
    }
}

thread_local! {
    static WORKER: OnceCell<Worker> = const { OnceCell::new() };
}

/// Makes the calling thread a worker at `place`, for the rest of its life. The first place counts.
pub(crate) fn install(place: Arc<dyn Place>) {
    let worker = Worker {
        place,
        depth: Cell::new(0),
        silent: Cell::new(false),
        begun: Cell::new(None),
    };
    WORKER.with(|w| {
        let _ = w.set(worker);
    });
}

/// The place of the calling thread.
#[cfg(feature = "test-util")]
pub(crate) fn place() -> Option<Arc<dyn Place>> {
    WORKER.with(|w| w.get().map(|worker| Arc::clone(&worker.place)))
}

/// The command on this thread has ended. A guard that it leaked must not keep the wait open.
#[inline]
pub(crate) fn command_ended() {
    WORKER.with(|w| {
        if let Some(worker) = w.get()
            && worker.depth.replace(0) > 0
        {
            worker.ended();
        }
    });
}

/// Runs what belongs to no command any more, on a worker that has none: its waits are not reported.
pub(crate) fn unreported<R>(rest: impl FnOnce() -> R) -> R {
    let set = |silent| WORKER.with(|w| w.get().map(|worker| worker.silent.set(silent)));
    set(true);
    let result = rest();
    set(false);
    result
}

/// The command on this thread says that it will be long.
pub(crate) fn declare_long() {
    WORKER.with(|w| {
        if let Some(worker) = w.get() {
            worker.place.declare_long();
        }
    });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

    #[derive(Default)]
    struct Counts {
        begun: AtomicU32,
        open: AtomicI32,
    }

    impl Place for Counts {
        fn wait_begin(&self, _: WaitKind, _: Option<ConnId>) {
            self.begun.fetch_add(1, Relaxed);
            self.open.fetch_add(1, Relaxed);
        }
        fn wait_end(&self, _: WaitKind, _: Duration) {
            self.open.fetch_sub(1, Relaxed);
        }
        fn declare_long(&self) {}
    }

    fn on_a_worker(f: impl FnOnce() + Send + 'static) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        let place = Arc::clone(&counts);
        std::thread::spawn(move || {
            install(place);
            f();
        })
        .join()
        .unwrap();
        counts
    }

    #[test]
    fn outside_a_worker_nothing_happens() {
        assert_eq!(during(WaitKind::Sleep, || 7), 7);
    }

    #[test]
    fn only_the_outermost_of_nested_waits_counts() {
        let counts = on_a_worker(|| {
            during(WaitKind::RowLock, || during(WaitKind::DiskIo, || ()));
        });
        assert_eq!(
            (counts.begun.load(Relaxed), counts.open.load(Relaxed)),
            (1, 0)
        );
    }

    #[test]
    fn a_panic_ends_the_wait() {
        let counts = on_a_worker(|| {
            let _ = std::panic::catch_unwind(|| during(WaitKind::Sleep, || panic!("in a wait")));
        });
        assert_eq!(counts.open.load(Relaxed), 0);
    }

    #[test]
    fn a_leaked_guard_is_ended_with_its_command() {
        let counts = on_a_worker(|| {
            std::mem::forget(enter(WaitKind::Sleep));
            command_ended();
        });
        assert_eq!(
            (counts.begun.load(Relaxed), counts.open.load(Relaxed)),
            (1, 0)
        );
    }

    #[test]
    fn where_there_is_no_command_there_is_no_wait() {
        let counts = on_a_worker(|| {
            unreported(|| {
                during(WaitKind::Sleep, command_ended);
                std::mem::forget(enter(WaitKind::DiskIo));
            });
            during(WaitKind::Sync, || ());
        });
        assert_eq!(
            (counts.begun.load(Relaxed), counts.open.load(Relaxed)),
            (1, 0)
        );
    }

    #[test]
    fn every_kind_is_counted_in_its_own_place() {
        for (i, kind) in WaitKind::COUNTED.iter().enumerate() {
            assert_eq!(kind.index(), i);
        }
    }
}
