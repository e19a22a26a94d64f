//! One table: its rows, and which of them are locked.
//!
//! Rows are spread over [`SHARDS`] shards by id, in blocks of [`BLOCK`], each shard under a mutex that is
//! never held across a wait or a wake-up: for one row, or for a block of a range. A shard also holds the
//! *row locks* of its rows, so that an update of a free row is one mutex and nothing else.
//!
//! A row lock is what makes a transaction visible to others: it names the owner, keeps the row as
//! it was before the owner changed it (what others read, and what a rollback restores), and queues
//! those who wait. It is handed over, never dropped, while somebody waits: [`Table::release`] makes
//! the first waiter the owner *before* that thread wakes, so nobody can step in between, and whoever
//! times out or is killed finds out by [`Table::settle`] whether it became the owner after all.
//!
//! A row that is not there is a place marked absent: to insert is to change an absent row, and to delete
//! to make a row absent, so that locks and rollbacks know nothing of either. Ids from 1 on without large
//! gaps are places in a vector; any other id is in a map.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::error::SqlError;
use crate::signal::Signal;

/// A power of two, so that the shard of an id is a mask; far above the number of CPUs, so that two
/// statements on different rows seldom meet.
const SHARDS: usize = 256;

/// Rows next to each other that are in one shard: a range of a hundred takes few mutexes, and the busiest
/// rows of a benchmark, which lie together, are still in several.
const BLOCK: usize = 16;

/// How many places beyond its last one a shard makes room for at once; an id further off is in the map.
const GAP: usize = 4 * BLOCK;

pub(crate) const C_MAX: usize = 120;
pub(crate) const PAD_MAX: usize = 60;

/// A row of `sbtestN`; its id is its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) k: i32,
    /// [`ABSENT`]: there is no such row.
    c_len: u8,
    pad_len: u8,
    c: [u8; C_MAX],
    pad: [u8; PAD_MAX],
}

// A million rows are 188 MB: no pointer to anything.
const _: () = assert!(size_of::<Row>() == 188 && C_MAX < ABSENT as usize);

const ABSENT: u8 = u8::MAX;

impl Row {
    const NONE: Self = Self {
        k: 0,
        c_len: ABSENT,
        pad_len: 0,
        c: [0; C_MAX],
        pad: [0; PAD_MAX],
    };

    /// The row that `id` starts with: `k` random, `c` and `pad` groups of eleven random digits, as
    /// sysbench fills its tables. The same on every run.
    fn generate(table: usize, id: i64, rows: u64) -> Self {
        let mut random = SplitMix(((table as u64) << 48) ^ id as u64);
        let mut row = Self {
            k: (1 + random.next() % rows).min(i32::MAX as u64) as i32,
            c_len: 119,
            pad_len: 59,
            ..Self::NONE
        };
        digit_groups(&mut row.c[..119], &mut random);
        digit_groups(&mut row.pad[..59], &mut random);
        row
    }

    /// # Errors
    /// If one of them does not fit.
    pub(crate) fn new(k: i64, c: &[u8], pad: &[u8]) -> Result<Self, SqlError<'static>> {
        let k = i32::try_from(k).map_err(|_| SqlError::OutOfRange { column: "k" })?;
        let mut row = Self { k, ..Self::NONE };
        row.set_c(c)?;
        let too_long = SqlError::TooLong { column: "pad" };
        row.pad
            .get_mut(..pad.len())
            .ok_or(too_long)?
            .copy_from_slice(pad);
        row.pad_len = pad.len() as u8;
        Ok(row)
    }

    pub(crate) fn is_present(&self) -> bool {
        self.c_len != ABSENT
    }

    /// Deletes the row.
    pub(crate) fn clear(&mut self) {
        *self = Self::NONE;
    }

    /// Of a row that is present.
    pub(crate) fn c(&self) -> &[u8] {
        &self.c[..usize::from(self.c_len)]
    }

    pub(crate) fn pad(&self) -> &[u8] {
        &self.pad[..usize::from(self.pad_len)]
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

#[derive(Default)]
struct Shard {
    rows: Vec<Row>,
    /// The rows that have no place in `rows`.
    far: BTreeMap<i64, Row>,
    /// The locked rows. Keeps its capacity, so locking allocates only until the busiest moment has
    /// been seen.
    locks: HashMap<i64, RowLock>,
    /// The rows by `k`, as they are now, committed or not; if the table has that index.
    by_k: Option<BTreeSet<(i32, i64)>>,
}

/// Where an id is, if it is near enough.
#[derive(Clone, Copy)]
struct Spot {
    shard: usize,
    index: usize,
}

impl Spot {
    fn of(id: i64) -> Self {
        // Id 0 and negative ones wrap to a place past the end of every shard.
        let number = (id as u64).wrapping_sub(1) as usize;
        Self {
            shard: number / BLOCK % SHARDS,
            index: number / BLOCK / SHARDS * BLOCK + number % BLOCK,
        }
    }

    /// The id at an index of a shard.
    fn id(self) -> i64 {
        let block = self.index / BLOCK * SHARDS + self.shard;
        (block * BLOCK + self.index % BLOCK) as i64 + 1
    }
}

impl Shard {
    fn row(&self, id: i64, index: usize) -> Option<&Row> {
        match self.rows.get(index) {
            Some(row) => Some(row),
            None if self.far.is_empty() => None,
            None => self.far.get(&id),
        }
    }

    /// What `reader` may see of a row.
    fn seen(&self, id: i64, row: &Row, reader: &Arc<Signal>) -> Option<Row> {
        let row = match self.locks.get(&id) {
            Some(lock) if !lock.is_owned_by(reader) => lock.before,
            _ => *row,
        };
        row.is_present().then_some(row)
    }

    /// Changes a row that has a place, and what is indexed of it.
    fn alter<R>(&mut self, id: i64, index: usize, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        let row = match self.rows.get_mut(index) {
            Some(row) => row,
            None => self.far.get_mut(&id)?,
        };
        let Some(by_k) = &mut self.by_k else {
            return Some(change(row));
        };
        let before = row.is_present().then_some(row.k);
        let result = change(row);
        let after = row.is_present().then_some(row.k);
        if before != after {
            before.map(|k| by_k.remove(&(k, id)));
            after.map(|k| by_k.insert((k, id)));
        }
        Some(result)
    }

    /// Forgets a row of the map that is absent for everybody.
    fn tidy(&mut self, id: i64, index: usize) {
        if index >= self.rows.len() && self.far.get(&id).is_some_and(|row| !row.is_present()) {
            self.far.remove(&id);
        }
    }
}

/// Keeps two shards out of one cache line.
#[repr(align(128))]
#[derive(Default)]
struct Padded(Mutex<Shard>);

/// How [`Table::change`] went.
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
    /// The id that an insert without one gets next: more than any id that was inserted.
    next_id: AtomicI64,
    /// No row of a vector has an id above this one.
    last_near: AtomicI64,
    /// How many rows are, or were, in the shards' maps.
    far: AtomicUsize,
    /// Set before the shards are emptied, and read under the mutex of one.
    dropped: AtomicBool,
}

impl Table {
    pub(crate) fn generate(table: usize, rows: u64) -> Self {
        let new = Self::new();
        let end = rows as i64;
        for (shard, padded) in new.shards.iter().enumerate() {
            let ids = (0..).map(|index| Spot { shard, index }.id());
            // Ids of a shard rise with the index: the first one above the end ends it.
            let ids = ids.take_while(|id| *id <= end);
            padded.0.lock().rows = ids.map(|id| Row::generate(table, id, rows)).collect();
        }
        // Relaxed: nobody else has it yet.
        new.next_id.store(end + 1, Ordering::Relaxed);
        new.last_near.store(end, Ordering::Relaxed);
        new
    }

    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            next_id: AtomicI64::new(1),
            last_near: AtomicI64::new(0),
            far: AtomicUsize::new(0),
            dropped: AtomicBool::new(false),
        }
    }

    /// The shard of `id`, locked, and the row's index there; the index may be past the end.
    fn shard(&self, id: i64) -> (MutexGuard<'_, Shard>, usize) {
        let Spot { shard, index } = Spot::of(id);
        (self.shards[shard].0.lock(), index)
    }

    /// The row as `reader` may see it: its own changes, else what was committed last.
    pub(crate) fn read(&self, id: i64, reader: &Arc<Signal>) -> Option<Row> {
        let (shard, index) = self.shard(id);
        let row = shard.row(id, index)?;
        if shard.locks.is_empty() {
            return row.is_present().then_some(*row);
        }
        shard.seen(id, row, reader)
    }

    /// Shows all rows with ids in a range as `reader` may see them, in the order of their ids. Asks now
    /// and then whether to `stop`; whether it came to the end.
    pub(crate) fn range(
        &self,
        from: i64,
        to: i64,
        reader: &Arc<Signal>,
        stop: &dyn Fn() -> bool,
        mut visit: impl FnMut(i64, &Row),
    ) -> bool {
        // Relaxed, both: whoever must see a row has heard of its insert, which came after these stores.
        let last = || to.min(self.last_near.load(Ordering::Relaxed));
        if self.far.load(Ordering::Relaxed) == 0 {
            return self.near(from.max(1), last(), reader, stop, visit);
        }
        let mut rows = Vec::new();
        for padded in &self.shards {
            let shard = padded.0.lock();
            if from <= to {
                let far = shard.far.range(from..=to);
                rows.extend(far.filter_map(|(id, row)| Some((*id, shard.seen(*id, row, reader)?))));
            }
        }
        let near = |id, row: &Row| rows.push((id, *row));
        // Not before the maps: one that was moved out of a map before that was looked at is up to here, and
        // its shard's mutex carries the number.
        if !self.near(from.max(1), last(), reader, stop, near) {
            return false;
        }
        rows.sort_unstable_by_key(|(id, _)| *id);
        // One that has moved to its vector meanwhile was seen twice.
        rows.dedup_by_key(|(id, _)| *id);
        rows.iter().for_each(|(id, row)| visit(*id, row));
        true
    }

    fn near(
        &self,
        from: i64,
        to: i64,
        reader: &Arc<Signal>,
        stop: &dyn Fn() -> bool,
        mut visit: impl FnMut(i64, &Row),
    ) -> bool {
        let mut id = from;
        while id <= to {
            let (shard, index) = self.shard(id);
            let left = BLOCK - index % BLOCK;
            let end = to.min(id + left as i64 - 1);
            for (row, index) in (id..=end).zip(index..) {
                match shard.rows.get(index) {
                    None => break,
                    Some(place) if shard.locks.is_empty() => {
                        if place.is_present() {
                            visit(row, place);
                        }
                    }
                    Some(place) => {
                        if let Some(seen) = shard.seen(row, place, reader) {
                            visit(row, &seen);
                        }
                    }
                }
            }
            drop(shard);
            id = end + 1;
            // Each 16 Ki rows, which is some 0.2 ms.
            if id % (1024 * BLOCK as i64) == 1 && stop() {
                return false;
            }
        }
        true
    }

    /// The ids of all rows that may have, for somebody, a `k` in one of the ranges; `None` if there is no
    /// index to tell.
    pub(crate) fn with_k(&self, ranges: &[(i32, i32)]) -> Option<Vec<i64>> {
        let mut ids = Vec::new();
        for padded in &self.shards {
            let shard = padded.0.lock();
            let by_k = shard.by_k.as_ref()?;
            for &(from, to) in ranges.iter().filter(|(from, to)| from <= to) {
                let found = by_k.range((from, i64::MIN)..=(to, i64::MAX));
                ids.extend(found.map(|(_, id)| *id));
            }
            // What a locked row was before is not indexed.
            ids.extend(shard.locks.keys());
        }
        ids.sort_unstable();
        ids.dedup();
        Some(ids)
    }

    /// Begins to index the rows by `k`.
    pub(crate) fn index_k(&self) {
        for (number, padded) in self.shards.iter().enumerate() {
            let mut shard = padded.0.lock();
            let near = shard.rows.iter().enumerate().map(|(index, row)| {
                let shard = number;
                (Spot { shard, index }.id(), row)
            });
            let all = near.chain(shard.far.iter().map(|(id, row)| (*id, row)));
            let present = all.filter(|(_, row)| row.is_present());
            let by_k = present.map(|(id, row)| (row.k, id)).collect();
            shard.by_k = Some(by_k);
        }
    }

    /// The id of a row that is inserted without one.
    ///
    /// # Errors
    /// If there is none left.
    pub(crate) fn next_id(&self) -> Result<i64, SqlError<'static>> {
        // Relaxed: only that each is given once.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if id > i64::from(i32::MAX) {
            self.next_id
                .store(i64::from(i32::MAX) + 1, Ordering::Relaxed);
            return Err(SqlError::NoIdLeft);
        }
        Ok(id)
    }

    /// Inserts a row where there is none, as [`change`](Self::change).
    ///
    /// # Errors
    /// If there is one, or if the table has been dropped.
    pub(crate) fn insert(
        &self,
        id: i64,
        session: &Arc<Signal>,
        keep: bool,
        new: &Row,
    ) -> Result<Updated, SqlError<'static>> {
        let (mut shard, index) = self.shard(id);
        // Relaxed: the shard's mutex is the edge. Who empties the shards has set it before.
        if self.dropped.load(Ordering::Relaxed) {
            return Err(SqlError::TableDropped);
        }
        if shard.row(id, index).is_none() {
            self.make_place(&mut shard, id, index);
        }
        self.next_id
            .fetch_max(id.saturating_add(1), Ordering::Relaxed);
        Self::change_in(&mut shard, id, index, session, keep, |row| {
            if row.is_present() {
                return Err(SqlError::Duplicate { id });
            }
            *row = *new;
            Ok(())
        })
    }

    #[cold]
    fn make_place(&self, shard: &mut Shard, id: i64, index: usize) {
        let end = (index / BLOCK + 1) * BLOCK;
        if index >= shard.rows.len() + GAP {
            shard.far.insert(id, Row::NONE);
            self.far.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let begin = shard.rows.len();
        shard.rows.resize(end, Row::NONE);
        // What was far off has a place now.
        let moved: Vec<i64> = shard
            .far
            .keys()
            .copied()
            .filter(|id| (begin..end).contains(&Spot::of(*id).index))
            .collect();
        for id in moved {
            if let Some(row) = shard.far.remove(&id) {
                shard.rows[Spot::of(id).index] = row;
            }
        }
        let last = Spot {
            index: end - 1,
            ..Spot::of(id)
        }
        .id();
        self.last_near.fetch_max(last, Ordering::Relaxed);
    }

    /// Applies `change` to a row that nobody else has locked, else queues the session for the lock.
    /// With `keep` the row is locked; without, the lock would be over with this call and is not
    /// even made.
    ///
    /// # Errors
    /// Those of `change`, which must then have left the row as it was.
    pub(crate) fn change(
        &self,
        id: i64,
        session: &Arc<Signal>,
        keep: bool,
        change: impl FnOnce(&mut Row) -> Result<(), SqlError<'static>>,
    ) -> Result<Updated, SqlError<'static>> {
        let (mut shard, index) = self.shard(id);
        // Nobody waits for a row that is absent for all.
        match shard.row(id, index) {
            Some(row) if row.is_present() || shard.locks.contains_key(&id) => {}
            _ => return Ok(Updated::Absent),
        }
        let mut absent = false;
        let done = Self::change_in(&mut shard, id, index, session, keep, |row| {
            if row.is_present() {
                return change(row);
            }
            absent = true;
            Ok(())
        })?;
        Ok(match done {
            // Its own lock, on a row that it has deleted itself, or that was deleted while it waited.
            Updated::Done {
                newly_locked: false,
            } if absent => Updated::Absent,
            done => done,
        })
    }

    fn change_in(
        shard: &mut Shard,
        id: i64,
        index: usize,
        session: &Arc<Signal>,
        keep: bool,
        change: impl FnOnce(&mut Row) -> Result<(), SqlError<'static>>,
    ) -> Result<Updated, SqlError<'static>> {
        let held = match shard.locks.get_mut(&id) {
            Some(lock) if !lock.is_owned_by(session) => {
                lock.waiters.push_back(Arc::clone(session));
                return Ok(Updated::Queued {
                    holder: lock.owner.id(),
                });
            }
            held => held.is_some(),
        };
        let newly_locked = keep && !held;
        let mut before = Row::NONE;
        let changed = shard.alter(id, index, |row| {
            if newly_locked {
                before = *row;
            }
            change(row)
        });
        let Some(changed) = changed else {
            return Ok(Updated::Absent);
        };
        if changed.is_err() && !held {
            shard.tidy(id, index);
        }
        changed?;
        if newly_locked {
            let owner = Arc::clone(session);
            let lock = RowLock {
                owner,
                before,
                waiters: VecDeque::new(),
            };
            shard.locks.insert(id, lock);
        } else if !held {
            shard.tidy(id, index);
        }
        Ok(Updated::Done { newly_locked })
    }

    /// Whether the lock that `session` queued for is now its own.
    pub(crate) fn is_granted(&self, id: i64, session: &Arc<Signal>) -> bool {
        let (shard, _) = self.shard(id);
        let lock = shard.locks.get(&id);
        lock.is_some_and(|lock| lock.is_owned_by(session))
    }

    /// Ends the wait of a `session` that will not wait longer: leaves the queue, unless it has been
    /// granted the lock meanwhile, which is what the answer tells.
    pub(crate) fn settle(&self, id: i64, session: &Arc<Signal>) -> bool {
        let (mut shard, _) = self.shard(id);
        let Some(lock) = shard.locks.get_mut(&id) else {
            return false;
        };
        lock.waiters.retain(|waiter| !Arc::ptr_eq(waiter, session));
        lock.is_owned_by(session)
    }

    /// Who has the row locked.
    pub(crate) fn owner(&self, id: i64) -> Option<Arc<Signal>> {
        let (shard, _) = self.shard(id);
        shard.locks.get(&id).map(|lock| Arc::clone(&lock.owner))
    }

    /// Gives up a lock that `session` owns. The answer is the next owner, for the caller to wake: by
    /// then the shard's mutex is free again.
    #[must_use = "the next owner sleeps until it is woken"]
    pub(crate) fn release(
        &self,
        id: i64,
        session: &Arc<Signal>,
        outcome: Outcome,
    ) -> Option<Arc<Signal>> {
        let (mut shard, index) = self.shard(id);
        let Entry::Occupied(entry) = shard.locks.entry(id) else {
            return None;
        };
        let lock = entry.get();
        if !lock.is_owned_by(session) {
            return None;
        }
        if outcome == Outcome::Commit && lock.waiters.is_empty() {
            entry.remove();
            shard.tidy(id, index);
            return None;
        }
        if outcome == Outcome::Rollback {
            let before = lock.before;
            // None: the table has been dropped.
            shard.alter(id, index, |row| *row = before);
        }
        let committed = shard.row(id, index).copied().unwrap_or(Row::NONE);
        if let Some(lock) = shard.locks.get_mut(&id)
            && let Some(next) = lock.waiters.pop_front()
        {
            lock.owner = Arc::clone(&next);
            lock.before = committed;
            return Some(next);
        }
        shard.locks.remove(&id);
        shard.tidy(id, index);
        None
    }

    /// Empties the table for good. Row locks stay until their owners give them up.
    pub(crate) fn drop_rows(&self) {
        // Relaxed: each shard's mutex carries it to whoever inserts there later.
        self.dropped.store(true, Ordering::Relaxed);
        for padded in &self.shards {
            let mut shard = padded.0.lock();
            shard.rows = Vec::new();
            shard.far = BTreeMap::new();
            shard.by_k = None;
        }
    }

    /// Whether somebody has a lock on one of its rows.
    pub(crate) fn has_locks(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.any(|shard| !shard.0.lock().locks.is_empty())
    }

    pub(crate) fn is_dropped(&self) -> bool {
        // Relaxed: asked by whoever has the catalog's lock, as whoever drops.
        self.dropped.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn waiters(&self, id: i64) -> usize {
        let (shard, _) = self.shard(id);
        shard.locks.get(&id).map_or(0, |lock| lock.waiters.len())
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
        assert!(table.read(i64::MAX, &me).is_none());
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
            table.change(5, &me, true, increment),
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
        let first = table.change(5, &me, true, increment);
        assert_eq!(first, Ok(Updated::Done { newly_locked: true }));
        let second = table.change(5, &me, true, |row| row.set_c(b"changed"));
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
        let done = table.change(5, &sessions[0], true, increment);
        assert_eq!(done, Ok(Updated::Done { newly_locked: true }));
        for waiter in &sessions[1..] {
            assert_eq!(
                table.change(5, waiter, true, increment),
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

    /// A scan once asked how far the vectors go before it looked at the maps, and missed a row that moved from
    /// the one to the other in between.
    #[test]
    fn a_row_that_moves_from_the_map_to_its_vector_is_seen_by_every_scan() {
        // Of the last shard, so that a scan gets there late.
        let spot = Spot {
            shard: SHARDS - 1,
            index: GAP,
        };
        let (id, neighbour) = (spot.id(), spot.id() + 1);
        let row = Row::new(1, b"c", b"pad").expect("it fits");
        let insert = |table: &Table, id, session: &Arc<Signal>| {
            let done = table.insert(id, session, false, &row).expect("it is free");
            assert_eq!(
                done,
                Updated::Done {
                    newly_locked: false
                }
            );
        };
        let (reader, writer) = (session(), session());
        for _ in 0..300 {
            let table = Table::new();
            insert(&table, id, &writer);
            assert_eq!(table.far.load(Ordering::Relaxed), 1, "it is far off");
            // Room for its neighbour, and so for itself, is made behind this one.
            insert(&table, id - (GAP * SHARDS) as i64, &writer);
            let moved = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    insert(&table, neighbour, &writer);
                    moved.store(true, Ordering::Relaxed);
                });
                let mut last = false;
                while !last {
                    last = moved.load(Ordering::Relaxed);
                    let mut seen = 0;
                    table.range(id, id, &reader, &|| false, |_, _| seen += 1);
                    assert_eq!(seen, 1);
                }
            });
            let (shard, index) = table.shard(id);
            assert!(
                shard.far.is_empty() && shard.rows.len() > index,
                "it has moved"
            );
        }
    }

    #[test]
    fn a_change_that_fails_leaves_the_row_and_no_lock() {
        let table = Table::generate(1, 10);
        let me = session();
        let too_long = table.change(5, &me, true, |row| row.set_c(&[b'x'; C_MAX + 1]));
        assert_eq!(too_long, Err(SqlError::TooLong { column: "c" }));
        assert!(table.owner(5).is_none());
        assert_eq!(table.change(99, &me, true, increment), Ok(Updated::Absent));
    }
}
