//! The memory that half commands take, over all connections, and whom it is taken from when that is too much.
//!
//! A connection says how much its own takes when its buffer grows beyond what a worker lends, and when it
//! rests. The sum is a counter; only when it is over the budget does anybody look at all connections, and
//! then at the largest half command first: few are closed, and those who send little are not.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use super::registry::ConnState;
use crate::conn::{ConnId, Shared};
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct HalfCommands {
    /// Relaxed: a sum, of which each part is changed together with the connection's own figure. Below zero for a
    /// moment, when somebody takes off what its owner is about to add.
    bytes: AtomicI64,
    /// One looks at a time: two would find the same ones.
    looking: Mutex<()>,
}

impl HalfCommands {
    /// What all of them take.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Relaxed)).unwrap_or(0)
    }

    /// That of a connection takes so much now; returns what all of them take.
    pub(crate) fn hold(&self, shared: &Shared, bytes: usize) -> usize {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        let more = signed(bytes) - signed(shared.set_held_input(bytes));
        if more != 0 {
            self.bytes.fetch_add(more, Relaxed);
        }
        self.bytes()
    }

    /// Which are to be closed, so that the others take no more than `budget`: the largest. Taken off at once, so
    /// that nobody else is chosen for what these are about to give back. `own` is whoever asks, whose bytes nobody
    /// has been shown; of the others those at rest: who wait for the rest of a command, or of what their transport makes it
    /// of, or have sent some behind a reply that they do not take.
    pub(crate) fn weed(
        &self,
        own: ConnId,
        budget: usize,
        all: impl FnOnce() -> Vec<Arc<Shared>>,
    ) -> Vec<Arc<Shared>> {
        let _looking = self.looking.lock();
        // Somebody else has been here.
        if self.bytes() <= budget {
            return Vec::new();
        }
        let waits = |shared: &Shared| {
            use ConnState::{Flushing, Idle, Reading};
            shared.id() == own || matches!(shared.state(), Idle | Reading | Flushing)
        };
        let mut largest: Vec<_> = all()
            .into_iter()
            .filter(|shared| shared.held_input() > 0 && waits(shared) && !shared.is_cancelled())
            .map(|shared| (Reverse(shared.held_input()), shared))
            .collect();
        largest.sort_unstable_by_key(|(bytes, shared)| (*bytes, shared.id()));
        let mut chosen = Vec::new();
        for (_, shared) in largest {
            if self.bytes() <= budget {
                break;
            }
            self.hold(&shared, 0);
            chosen.push(shared);
        }
        chosen
    }
}
