//! What a session sleeps on: one condition, rung by whoever hands it a lock or kills it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use thread_group_pool::OnCancel;

use crate::admin::Admin;
use crate::board::Board;
use crate::engine::Place;

/// How often a sleeper asks whether it has been cancelled, under a server that tells nobody of that;
/// see [`Signal::told`].
const POLL: Duration = Duration::from_millis(100);

/// The bell of one session. A ring is remembered until the session looks, so none is lost; it is a
/// hint to look, never the news itself, so one too many does no harm.
#[derive(Debug)]
pub(crate) struct Signal {
    /// The session's, which is its connection's.
    id: u64,
    state: Mutex<State>,
    bell: Condvar,
    /// The row whose lock the session has queued for. Set only by a session that holds locks itself,
    /// under [`Engine`](crate::Engine)'s lock for circles; cleared by that session at any time.
    waiting_for: Mutex<Option<Place>>,
    /// Here, because an idle session is to be small.
    pub(crate) board: Board,
}

#[derive(Debug, Default)]
struct State {
    rung: bool,
    cancelled: bool,
    /// A cancellation rings.
    told: bool,
    /// The commit that the session has asked for is on disk, so to speak.
    flushed: bool,
}

/// Why [`Signal::wait`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Rung,
    Cancelled,
    TimedOut,
}

impl Signal {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            state: Mutex::default(),
            bell: Condvar::new(),
            waiting_for: Mutex::default(),
            board: Board::default(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Has a cancellation ring, for as long as what this returns lives.
    pub(crate) fn told<A: Admin + ?Sized>(self: &Arc<Self>, admin: &A) -> Option<Told<'_>> {
        let signal = Arc::clone(self);
        let scope = admin.on_cancel(Box::new(move || signal.ring()))?;
        self.state.lock().told = true;
        Some(Told {
            signal: self,
            _scope: scope,
        })
    }

    /// Call with no mutex held: the sleeper wakes into it.
    pub(crate) fn ring(&self) {
        self.state.lock().rung = true;
        self.bell.notify_one();
    }

    /// For good: every wait from now on ends at once.
    pub(crate) fn cancel(&self) {
        self.state.lock().cancelled = true;
        self.bell.notify_one();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.lock().cancelled
    }

    /// The commit is done. Call with no mutex held, as [`ring`](Self::ring).
    pub(crate) fn set_flushed(&self) {
        self.state.lock().flushed = true;
        self.bell.notify_one();
    }

    /// Whether the commit is done, told once.
    pub(crate) fn take_flushed(&self) -> bool {
        std::mem::take(&mut self.state.lock().flushed)
    }

    /// Blocks until the commit is done. Nothing else ends it: what has been handed over will be
    /// committed, and whoever is told otherwise is told wrong.
    pub(crate) fn wait_flushed(&self) {
        let mut state = self.state.lock();
        while !std::mem::take(&mut state.flushed) {
            self.bell.wait(&mut state);
        }
    }

    pub(crate) fn waiting_for(&self) -> Option<Place> {
        *self.waiting_for.lock()
    }

    pub(crate) fn set_waiting_for(&self, place: Option<Place>) {
        *self.waiting_for.lock() = place;
    }

    /// Sleeps until a ring after which `granted` is true, or as [`wait`](Self::wait).
    pub(crate) fn wait_until(
        &self,
        granted: impl Fn() -> bool,
        deadline: Option<Instant>,
        cancelled: &dyn Fn() -> bool,
    ) -> Woken {
        loop {
            match self.wait(deadline, cancelled) {
                Woken::Rung if granted() => return Woken::Rung,
                // A ring from an earlier wait that had ended when it came.
                Woken::Rung => {}
                given_up => return given_up,
            }
        }
    }

    /// Sleeps until rung, cancelled (here or by what `cancelled` says), or `deadline`; no deadline
    /// is never.
    pub(crate) fn wait(&self, deadline: Option<Instant>, cancelled: &dyn Fn() -> bool) -> Woken {
        loop {
            // Outside the mutex: it is the caller's code.
            if cancelled() {
                return Woken::Cancelled;
            }
            let mut state = self.state.lock();
            if !state.rung && !state.cancelled {
                let now = Instant::now();
                let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
                if left == Some(Duration::ZERO) {
                    return Woken::TimedOut;
                }
                let poll = (!state.told).then_some(POLL);
                match left.into_iter().chain(poll).min() {
                    Some(time) => _ = self.bell.wait_for(&mut state, time),
                    None => self.bell.wait(&mut state),
                }
            }
            if state.cancelled {
                return Woken::Cancelled;
            }
            if std::mem::take(&mut state.rung) {
                return Woken::Rung;
            }
        }
    }
}

/// A cancellation rings; see [`Signal::told`].
pub(crate) struct Told<'a> {
    signal: &'a Signal,
    _scope: OnCancel,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.signal.state.lock().told = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost_and_is_used_up() {
        let signal = Signal::new(1);
        signal.ring();
        assert_eq!(signal.wait(None, &|| false), Woken::Rung);
        assert_eq!(
            signal.wait(Some(Instant::now()), &|| false),
            Woken::TimedOut
        );
    }

    #[test]
    fn a_cancelled_session_never_sleeps_again() {
        let signal = Signal::new(1);
        signal.cancel();
        assert_eq!(signal.wait(None, &|| false), Woken::Cancelled);
        assert_eq!(signal.wait(None, &|| false), Woken::Cancelled);
    }

    #[test]
    fn a_sleeper_asks_whether_its_connection_is_gone() {
        assert_eq!(Signal::new(1).wait(None, &|| true), Woken::Cancelled);
        let asked = std::cell::Cell::new(0);
        let gone_later = || asked.replace(asked.get() + 1) == 2;
        assert_eq!(Signal::new(1).wait(None, &gone_later), Woken::Cancelled);
    }
}
