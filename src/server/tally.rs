//! How connections have ended since a drain began.

use std::collections::{HashMap, HashSet};

use crate::conn::{ConnId, Shared};
use crate::handler::CloseReason;
use crate::sync::Mutex;

/// Counts nothing until it is begun.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Option<Counts>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Those that were idle when it began, with the number of their commands then.
    were_idle: HashMap<ConnId, u64>,
    /// Those that the drain has killed, and that have not ended yet.
    condemned: HashSet<ConnId>,
    pub(crate) idle: usize,
    pub(crate) finished: usize,
    pub(crate) left: usize,
    pub(crate) killed: Vec<ConnId>,
}

impl Tally {
    pub(crate) fn begin<'a>(&self, idle: impl IntoIterator<Item = &'a Shared>) {
        let were_idle = idle
            .into_iter()
            .map(|shared| (shared.id(), shared.calls()))
            .collect();
        *self.0.lock() = Some(Counts {
            were_idle,
            ..Counts::default()
        });
    }

    /// The drain is about to kill it.
    pub(crate) fn condemn(&self, id: ConnId) {
        if let Some(counts) = &mut *self.0.lock() {
            counts.condemned.insert(id);
        }
    }

    /// It has ended, and is counted out by `remove`: for the report both are one.
    pub(crate) fn closed(&self, shared: &Shared, why: CloseReason, remove: impl FnOnce()) {
        let mut counts = self.0.lock();
        let Some(counts) = &mut *counts else {
            drop(counts);
            return remove();
        };
        let condemned = counts.condemned.remove(&shared.id());
        let calls = counts.were_idle.remove(&shared.id());
        match why {
            CloseReason::Draining if calls == Some(shared.calls()) => counts.idle += 1,
            CloseReason::Draining => counts.finished += 1,
            CloseReason::Killed if condemned => counts.killed.push(shared.id()),
            _ => counts.left += 1,
        }
        remove();
    }

    /// How those have ended that have, and who is left.
    pub(crate) fn counts<T>(&self, left: impl FnOnce() -> T) -> (Counts, T) {
        let counts = self.0.lock();
        (counts.clone().unwrap_or_default(), left())
    }
}
