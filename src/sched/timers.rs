//! When connections asked to be woken.
//!
//! A heap of moments. Changing one's mind leaves the old moment behind, and whoever takes it out
//! compares it with the slot's. So what is needed often, going back to rest without a moment, costs
//! nothing; and what is left behind is swept up when there is too much of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Nanos;
use super::table::{Key, Table};

#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, Key)>>,
}

impl Timers {
    pub(super) fn set<T>(&mut self, at: Nanos, key: Key, table: &Table<T>) {
        if self.heap.len() > 64 + 2 * table.len() {
            self.heap
                .retain(|Reverse((at, key))| is_set(*at, *key, table));
        }
        self.heap.push(Reverse((at, key)));
    }

    /// Takes out a connection whose moment has come.
    pub(super) fn pop<T>(&mut self, now: Nanos, table: &Table<T>) -> Option<Key> {
        while let Some(Reverse((at, key))) = self.heap.peek().copied()
            && at <= now
        {
            self.heap.pop();
            if is_set(at, key, table) {
                return Some(key);
            }
        }
        None
    }

    /// Nothing is due before this.
    pub(super) fn earliest(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

fn is_set<T>(at: Nanos, key: Key, table: &Table<T>) -> bool {
    table
        .get(key)
        .is_some_and(|slot| slot.until == at && slot.phase.is_rest())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sched::Lane;

    #[test]
    fn moments_that_were_given_up_do_not_pile_up() {
        let mut table = Table::new();
        let mut timers = Timers::default();
        let key = table.insert((), Lane::Low, Nanos(0));
        for at in 0..10_000 {
            timers.set(Nanos(at), key, &table);
            assert!(timers.heap.len() <= 67);
        }
    }
}
