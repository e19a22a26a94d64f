//! One table: its rows, and which of them are locked.
//!
//! Rows are spread over [`SHARDS`] shards by id, each under a mutex that is held for a copy of one
//! row and never across a wait, an allocation of rows or a wake-up. A shard also holds the *row
//! locks* of its rows, so that an update of a free row is one mutex and nothing else.
//!
//! A row lock is what makes a transaction visible to others: it names the owner, keeps the row as
//! it was before the owner changed it (what others read, and what a rollback restores), and queues
//! those who wait. It is handed over, never dropped, while somebody waits: [`Table::release`] makes
//! the first waiter the owner *before* that thread wakes, so nobody can step in between, and whoever
//! times out or is killed finds out by [`Table::settle`] whether it became the owner after all.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::SqlError;
use crate::signal::Signal;

/// A power of two, so that the shard of an id is a mask; far above the number of CPUs, so that two
/// statements on different rows seldom meet.
const SHARDS: usize = 256;

pub(crate) const C_MAX: usize = 120;
const PAD_LEN: usize = 59;

/// A row of `sbtestN`; its id is its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) k: u32,
    c_len: u8,
    c: [u8; C_MAX],
    pad: [u8; PAD_LEN],
}

// A million rows are 184 MB: no padding, no pointer to anything.
const _: () = assert!(size_of::<Row>() == 184 && C_MAX <= u8::MAX as usize);

impl Row {
    /// The row that `id` starts with: `k` random, `c` and `pad` groups of eleven random digits, as
    /// sysbench fills its tables. The same on every run.
    fn generate(table: usize, id: u64, rows: u64) -> Self {
        let mut random = SplitMix(((table as u64) << 48) ^ id);
        let mut row = Self {
            k: (1 + random.next() % rows).min(u64::from(u32::MAX)) as u32,
            c_len: 119,
            c: [0; C_MAX],
            pad: [0; PAD_LEN],
        };
        digit_groups(&mut row.c[..119], &mut random);
        digit_groups(&mut row.pad, &mut random);
        row
    }

    pub(crate) fn c(&self) -> &[u8] {
        &self.c[..usize::from(self.c_len)]
    }

    pub(crate) fn pad(&self) -> &[u8] {
        &self.pad
    }

    /// # Errors
    /// If `value` does not fit.
    pub(crate) fn set_c(&mut self, value: &[u8]) -> Result<(), SqlError<'static>> {
        let too_long = SqlError::TooLong { column: "c" };
        let place = self.c.get_mut(..value.len()).ok_or(too_long)?;
        place.copy_from_slice(value);
        self.c_len = value.len() as u8;
        Ok(())
    }

    /// # Errors
    /// If `k` is at the end of its range.
    pub(crate) fn increment_k(&mut self) -> Result<(), SqlError<'static>> {
        self.k = self
            .k
            .checked_add(1)
            .ok_or(SqlError::OutOfRange { column: "k" })?;
        Ok(())
    }
}

/// Fills `out` with `ddddddddddd-ddddddddddd-...`.
fn digit_groups(out: &mut [u8], random: &mut SplitMix) {
    for group in out.chunks_mut(12) {
        let mut bits = random.next();
        for digit in group.iter_mut() {
            // The next decimal digit of `bits` read as a fraction: a multiplication, no division.
            let product = u128::from(bits) * 10;
            *digit = b'0' + (product >> 64) as u8;
            bits = product as u64;
        }
        if let [_, _, _, _, _, _, _, _, _, _, _, dash] = group {
            *dash = b'-';
        }
    }
}

/// Sebastiano Vigna's splitmix64: enough for test data, and started by any number.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A lock on one row.
struct RowLock {
    owner: Arc<Signal>,
    /// The row as it was when `owner` got the lock: the committed one.
    before: Row,
    /// First come, first served.
    waiters: VecDeque<Arc<Signal>>,
}

impl RowLock {
    fn is_owned_by(&self, session: &Arc<Signal>) -> bool {
        Arc::ptr_eq(&self.owner, session)
    }
}

struct Shard {
    rows: Vec<Row>,
    /// The locked rows, by their index in `rows`. Keeps its capacity, so locking allocates only
    /// until the busiest moment has been seen.
    locks: HashMap<usize, RowLock>,
}

/// Keeps two shards out of one cache line.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// How [`Table::update`] went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Updated {
    /// No such row.
    Absent,
    /// Done; `newly_locked` if the caller now owes a [`Table::release`].
    Done { newly_locked: bool },
    /// Somebody else, this session, has the row; the caller stands in the queue until
    /// [`Table::settle`].
    Queued { holder: u64 },
}

/// What becomes of the changes made under a lock that is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Commit,
    Rollback,
}

pub(crate) struct Table {
    shards: Box<[Padded]>,
}

impl Table {
    pub(crate) fn generate(table: usize, rows: u64) -> Self {
        let shards = (0..SHARDS as u64).map(|shard| {
            // Row `id` is at `(id - 1) / SHARDS` in shard `(id - 1) % SHARDS`.
            let ids = (shard + 1..=rows).step_by(SHARDS);
            Padded(Mutex::new(Shard {
                rows: ids.map(|id| Row::generate(table, id, rows)).collect(),
                locks: HashMap::new(),
            }))
        });
        Self {
            shards: shards.collect(),
        }
    }

    /// The shard of `id` and the row's index there; the index may be past the end.
    fn place(&self, id: u64) -> (&Mutex<Shard>, usize) {
        // Id 0 wraps to a place past the end of every shard.
        let number = id.wrapping_sub(1) as usize;
        (&self.shards[number % SHARDS].0, number / SHARDS)
    }

    /// The row as `reader` may see it: its own changes, else what was committed last.
    pub(crate) fn read(&self, id: u64, reader: &Arc<Signal>) -> Option<Row> {
        let (shard, index) = self.place(id);
        let shard = shard.lock();
        let row = shard.rows.get(index)?;
        if shard.locks.is_empty() {
            return Some(*row);
        }
        match shard.locks.get(&index) {
            Some(lock) if !lock.is_owned_by(reader) => Some(lock.before),
            _ => Some(*row),
        }
    }

    /// Applies `change` to a row that nobody else has locked, else queues the session for the lock.
    /// With `keep` the row is locked; without, the lock would be over with this call and is not
    /// even made.
    ///
    /// # Errors
    /// Those of `change`; the row is then as it was.
    pub(crate) fn update(
        &self,
        id: u64,
        session: &Arc<Signal>,
        keep: bool,
        change: impl FnOnce(&mut Row) -> Result<(), SqlError<'static>>,
    ) -> Result<Updated, SqlError<'static>> {
        let (shard, index) = self.place(id);
        let mut shard = shard.lock();
        let Shard { rows, locks } = &mut *shard;
        let Some(row) = rows.get_mut(index) else {
            return Ok(Updated::Absent);
        };
        let held = match locks.get_mut(&index) {
            Some(lock) if !lock.is_owned_by(session) => {
                lock.waiters.push_back(Arc::clone(session));
                return Ok(Updated::Queued {
                    holder: lock.owner.id(),
                });
            }
            held => held.is_some(),
        };
        if !keep || held {
            change(row)?;
            return Ok(Updated::Done {
                newly_locked: false,
            });
        }
        let before = *row;
        change(row)?;
        let owner = Arc::clone(session);
        locks.insert(
            index,
            RowLock {
                owner,
                before,
                waiters: VecDeque::new(),
            },
        );
        Ok(Updated::Done { newly_locked: true })
    }

    /// Whether the lock that `session` queued for is now its own.
    pub(crate) fn is_granted(&self, id: u64, session: &Arc<Signal>) -> bool {
        let (shard, index) = self.place(id);
        shard
            .lock()
            .locks
            .get(&index)
            .is_some_and(|lock| lock.is_owned_by(session))
    }

    /// Ends the wait of a `session` that will not wait longer: leaves the queue, unless it has been
    /// granted the lock meanwhile, which is what the answer tells.
    pub(crate) fn settle(&self, id: u64, session: &Arc<Signal>) -> bool {
        let (shard, index) = self.place(id);
        let mut shard = shard.lock();
        let Some(lock) = shard.locks.get_mut(&index) else {
            return false;
        };
        lock.waiters.retain(|waiter| !Arc::ptr_eq(waiter, session));
        lock.is_owned_by(session)
    }

    /// Who has the row locked.
    pub(crate) fn owner(&self, id: u64) -> Option<Arc<Signal>> {
        let (shard, index) = self.place(id);
        shard
            .lock()
            .locks
            .get(&index)
            .map(|lock| Arc::clone(&lock.owner))
    }

    /// Gives up a lock that `session` owns. The answer is the next owner, for the caller to wake: by
    /// then the shard's mutex is free again.
    #[must_use = "the next owner sleeps until it is woken"]
    pub(crate) fn release(
        &self,
        id: u64,
        session: &Arc<Signal>,
        outcome: Outcome,
    ) -> Option<Arc<Signal>> {
        let (shard, index) = self.place(id);
        let mut shard = shard.lock();
        let Shard { rows, locks } = &mut *shard;
        let lock = locks
            .get_mut(&index)
            .filter(|lock| lock.is_owned_by(session))?;
        if outcome == Outcome::Rollback {
            rows[index] = lock.before;
        }
        let Some(next) = lock.waiters.pop_front() else {
            locks.remove(&index);
            return None;
        };
        lock.owner = Arc::clone(&next);
        lock.before = rows[index];
        Some(next)
    }

    #[cfg(test)]
    pub(crate) fn waiters(&self, id: u64) -> usize {
        let (shard, index) = self.place(id);
        shard
            .lock()
            .locks
            .get(&index)
            .map_or(0, |lock| lock.waiters.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Arc<Signal> {
        Arc::new(Signal::new(7))
    }

    fn increment(row: &mut Row) -> Result<(), SqlError<'static>> {
        row.increment_k()
    }

    #[test]
    fn rows_have_the_shape_of_sysbench_and_are_the_same_on_every_run() {
        let (table, again) = (Table::generate(1, 600), Table::generate(1, 600));
        let me = session();
        for id in 1..=600 {
            let row = table.read(id, &me).expect("the row exists");
            assert_eq!((row.c().len(), row.pad().len()), (119, 59));
            for (at, byte) in row.c().iter().chain(b"-").chain(row.pad()).enumerate() {
                if at % 12 == 11 {
                    assert_eq!(*byte, b'-');
                } else {
                    assert!(byte.is_ascii_digit());
                }
            }
            assert!((1..=600).contains(&row.k));
            let same = again.read(id, &me).expect("the row exists");
            assert_eq!((row.c(), row.k), (same.c(), same.k));
        }
        assert!(table.read(0, &me).is_none());
        assert!(table.read(601, &me).is_none());
        assert!(table.read(u64::MAX, &me).is_none());
    }

    #[test]
    fn tables_differ_and_so_do_rows() {
        let (one, two) = (Row::generate(1, 1, 10), Row::generate(2, 1, 10));
        assert_ne!(one.c(), two.c());
        assert_ne!(one.c(), Row::generate(1, 2, 10).c());
    }

    #[test]
    fn others_read_the_committed_row_until_the_lock_is_released() {
        let table = Table::generate(1, 10);
        let (me, other) = (session(), session());
        let k = |reader| table.read(5, reader).expect("the row exists").k;
        let before = k(&me);
        assert_eq!(
            table.update(5, &me, true, increment),
            Ok(Updated::Done { newly_locked: true })
        );
        assert_eq!((k(&me), k(&other)), (before + 1, before));
        assert!(table.release(5, &me, Outcome::Commit).is_none());
        assert_eq!((k(&me), k(&other)), (before + 1, before + 1));
    }

    #[test]
    fn rollback_undoes_all_changes_under_one_lock() {
        let table = Table::generate(1, 10);
        let me = session();
        let before = table.read(5, &me).expect("the row exists");
        let first = table.update(5, &me, true, increment);
        assert_eq!(first, Ok(Updated::Done { newly_locked: true }));
        let second = table.update(5, &me, true, |row| row.set_c(b"changed"));
        assert_eq!(
            second,
            Ok(Updated::Done {
                newly_locked: false
            })
        );
        assert!(table.release(5, &me, Outcome::Rollback).is_none());
        let after = table.read(5, &me).expect("the row exists");
        assert_eq!((after.k, after.c()), (before.k, before.c()));
    }

    #[test]
    fn a_lock_passes_to_those_who_wait_in_the_order_in_which_they_came() {
        let table = Table::generate(1, 10);
        let sessions: Vec<_> = (0..4).map(|_| session()).collect();
        let done = table.update(5, &sessions[0], true, increment);
        assert_eq!(done, Ok(Updated::Done { newly_locked: true }));
        for waiter in &sessions[1..] {
            assert_eq!(
                table.update(5, waiter, true, increment),
                Ok(Updated::Queued { holder: 7 })
            );
        }
        assert!(
            !table.settle(5, &sessions[2]),
            "it was not granted the lock"
        );
        for (from, to) in [(0, 1), (1, 3)] {
            let next = table.release(5, &sessions[from], Outcome::Commit);
            assert!(next.is_some_and(|next| Arc::ptr_eq(&next, &sessions[to])));
            assert!(table.is_granted(5, &sessions[to]));
        }
        assert!(table.release(5, &sessions[3], Outcome::Commit).is_none());
        assert!(table.owner(5).is_none());
    }

    #[test]
    fn a_change_that_fails_leaves_the_row_and_no_lock() {
        let table = Table::generate(1, 10);
        let me = session();
        let too_long = table.update(5, &me, true, |row| row.set_c(&[b'x'; C_MAX + 1]));
        assert_eq!(too_long, Err(SqlError::TooLong { column: "c" }));
        assert!(table.owner(5).is_none());
        assert_eq!(table.update(99, &me, true, increment), Ok(Updated::Absent));
    }
}
