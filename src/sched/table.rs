//! The connection table: a slot for each connection, its phase, and what is sticky.
//!
//! A slot is found by a [`Key`], which carries a generation: an event or a kill that comes too late
//! finds nobody. While a connection runs, its task is not in the slot but with the worker; that it
//! runs at most once at a time follows from there being one task.

use super::lanes::Lane;
use super::{Bounds, NEVER, Nanos};
use crate::handler::CloseReason;
use crate::id::Ticket;
use crate::mutant;
use crate::port::Readiness;

/// Names a connection of a group, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a poller token must hold an index and a generation: 64-bit targets only");

impl Key {
    /// Its place in the table, which a later connection has too.
    pub(crate) fn slot(self) -> usize {
        self.index as usize
    }

    pub(crate) fn to_token(self) -> usize {
        self.index as usize | (self.generation as usize) << 32
    }

    #[allow(clippy::cast_possible_truncation)] // the two halves, cut apart on purpose
    pub(crate) fn from_token(token: usize) -> Self {
        Self {
            index: token as u32,
            generation: (token >> 32) as u32,
        }
    }
}

/// Why a connection runs: what has happened to it since it last did. Sticky in every phase; what
/// ends a rest is [`ends`](Wake::ends)'s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) ready: Readiness,
    /// It is to be closed, for this reason.
    pub(crate) close: Option<CloseReason>,
    pub(crate) told: Told,
}

/// What else a connection may run for: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told(u8);

impl Told {
    /// It is to be read once more; see [`Bounds::look_again`].
    pub(crate) const LOOK: Self = Self(1);
    /// Somebody wants its handler to be called.
    pub(crate) const POKED: Self = Self(1 << 1);
    /// The time that it asked to be woken at has come.
    pub(crate) const DUE: Self = Self(1 << 2);
    /// What it has parked for has happened.
    pub(crate) const RESUMED: Self = Self(1 << 3);
    /// The command that it is at has been cancelled. It may have ended since.
    pub(crate) const INTERRUPTED: Self = Self(1 << 4);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn has_any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

impl Wake {
    pub(crate) fn is(&self, told: Told) -> bool {
        self.told.has_any_of(told)
    }

    pub(crate) fn tell(&mut self, told: Told) {
        self.told = self.told.and(told);
    }

    pub(crate) fn tell_if(&mut self, so: bool, told: Told) {
        if so {
            self.tell(told);
        }
    }

    /// Whether a connection that rests in `phase` must run instead.
    pub(super) fn ends(&self, phase: Phase) -> bool {
        let called = self.close.is_some() || self.is(Told::POKED.and(Told::DUE));
        match phase {
            Phase::Idle { in_command } => {
                called
                    || self.ready.input()
                    || self.is(Told::LOOK)
                    || (in_command && self.is(Told::INTERRUPTED))
            }
            // Its handler is not called before its output has left, but input is taken.
            Phase::Flushing { crammed } => {
                (self.close.is_some() && !mutant::is("a_slow_reader_is_not_killed"))
                    || self.is(Told::INTERRUPTED)
                    || self.ready.has_any_of(Readiness::WRITABLE)
                    || (self.ready.input() && !crammed && !mutant::is("a_slow_reader_is_not_read"))
            }
            // Input can wait; a client that has gone for good cannot, nor can what it is owed.
            Phase::Parked => {
                called
                    || self.is(Told::RESUMED.and(Told::INTERRUPTED))
                    || self
                        .ready
                        .has_any_of(Readiness::HUNG_UP.and(Readiness::WRITABLE))
            }
            Phase::Queued { .. } | Phase::Running | Phase::Free => false,
        }
    }
}

/// Where a connection is. Exactly one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is no connection.
    Free,
    /// At rest until input comes.
    Idle { in_command: bool },
    /// In a lane.
    Queued { lane: Lane },
    /// With a worker.
    Running,
    /// At rest until the socket takes more output, or has more input that may be taken.
    Flushing { crammed: bool },
    /// At rest until it is resumed.
    Parked,
}

impl Phase {
    pub(super) fn is_rest(self) -> bool {
        matches!(
            self,
            Self::Idle { .. } | Self::Flushing { .. } | Self::Parked
        )
    }
}

/// A connection, as [`State::see_table`](super::State::see_table) shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenConn {
    pub(crate) key: Key,
    pub(crate) phase: Phase,
    /// When it came to rest after its last command.
    pub(crate) since: Nanos,
    /// Where it queues, or would.
    pub(crate) lane: Lane,
    /// Others may be waiting for what its session holds.
    pub(crate) holding: bool,
}

/// What is due with a connection that has rested for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Close(CloseReason),
    /// Read once more.
    Look,
}

const _: () = assert!(size_of::<Slot<Box<dyn Fn()>>>() == 64);

/// One cache line: a turn touches a slot two or three times, and thousands of slots take turns.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Slot<T> {
    /// `None` while a worker has it, and in a free slot.
    pub(super) task: Option<T>,
    /// Since when its client is silent, or takes nothing: when its last command, or output, ended.
    pub(super) since: Nanos,
    /// When it asked to be woken, at the latest; see [`Timers`](super::timers::Timers).
    pub(super) until: Nanos,
    generation: u32,
    /// The last park that has been resumed.
    pub(super) resumed: Ticket,
    /// The park that it is in, while it is parked.
    pub(super) ticket: Ticket,
    pub(super) phase: Phase,
    /// Where it queues next.
    pub(super) lane: Lane,
    pub(super) wake: Wake,
    pub(super) marks: Marks,
    /// How many say that they wait for this connection; and how many of these have stopped during its
    /// turn, for whose end it goes on to count as waited for: it has a thread.
    pub(super) boosted: u32,
    pub(super) unboosted: u32,
    /// And of how many that still wait it has said that they do not wait for it any more.
    pub(super) disowned: u32,
}

/// What is known of a connection beside its phase: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u8);

impl Marks {
    /// Its last command ran past the stall bound.
    pub(super) const WAS_LONG: Self = Self(1);
    /// Its last read may have stopped short of what is there.
    pub(super) const LOOK_AGAIN: Self = Self(1 << 1);
    /// Others may be waiting for what its session holds.
    pub(super) const HOLDING: Self = Self(1 << 2);
    /// Its session is in a transaction.
    pub(super) const IN_TRANSACTION: Self = Self(1 << 3);
    /// Its last [`Resume`](crate::Resume) was dropped unused, rather than used.
    pub(super) const DROPPED: Self = Self(1 << 4);

    const fn when(self, so: bool) -> Self {
        if so { self } else { Self(0) }
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn set(&mut self, mark: Self, so: bool) {
        self.0 = self.0 & !mark.0 | mark.when(so).0;
    }
}

impl<T> Slot<T> {
    fn free() -> Self {
        Self {
            task: None,
            since: Nanos(0),
            until: NEVER,
            generation: 0,
            resumed: 0,
            ticket: 0,
            phase: Phase::Free,
            lane: Lane::Control,
            wake: Wake::default(),
            marks: Marks::default(),
            boosted: 0,
            unboosted: 0,
            disowned: 0,
        }
    }

    pub(super) fn is(&self, mark: Marks) -> bool {
        self.marks.0 & mark.0 != 0
    }

    pub(super) fn mark(&mut self, mark: Marks, so: bool) {
        self.marks.set(mark, so);
    }

    /// What a turn says of these.
    pub(super) fn turned(&mut self, was_long: bool, look_again: bool, in_transaction: bool) {
        let stay = Marks::HOLDING.and(Marks::DROPPED);
        self.marks = Marks(self.marks.0 & stay.0)
            .and(Marks::WAS_LONG.when(was_long))
            .and(Marks::LOOK_AGAIN.when(look_again))
            .and(Marks::IN_TRANSACTION.when(in_transaction));
    }

    /// The park that it is in, or is about to enter, may have been resumed already.
    pub(super) fn take_resume(&mut self) {
        if self.ticket != 0 && self.resumed == self.ticket {
            if self.is(Marks::DROPPED) {
                self.wake.close.get_or_insert(CloseReason::Unresumed);
            } else {
                self.wake.tell(Told::RESUMED);
            }
        }
    }

    /// Whether it may have a thread beyond the cap.
    fn holds(&self) -> bool {
        self.is(Marks::HOLDING) || self.boosted > 0
    }

    /// Whether a drain leaves it alone while it is idle: in the middle of a command, or, if these are spared, of
    /// a transaction. Half a login is nothing that has begun.
    pub(super) fn goes_on(&self, in_command: bool, sparing: bool) -> bool {
        let logs_in = self.lane == Lane::Control;
        (in_command && !logs_in) || (sparing && self.is(Marks::IN_TRANSACTION))
    }

    /// Where it queues.
    pub(super) fn urgency(&self) -> Lane {
        match self.lane {
            _ if self.holds() => Lane::Holding,
            _ if self.wake.close.is_some() => Lane::Control,
            _ if self.wake.is(Told::RESUMED.and(Told::INTERRUPTED)) => Lane::Control,
            Lane::Low if self.is(Marks::WAS_LONG) => Lane::Long,
            lane => lane,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    resting: usize,
    holding: usize,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            resting: 0,
            holding: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many wait for the poller, or for whoever resumes them.
    pub(super) fn resting(&self) -> usize {
        self.resting
    }

    /// How many may have a thread beyond the cap.
    pub(super) fn holding(&self) -> usize {
        self.holding
    }

    /// Puts a new connection in, queued in this lane.
    pub(super) fn insert(&mut self, task: T, lane: Lane, now: Nanos) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::free());
            u32::try_from(self.slots.len() - 1)
                .expect("more connections than descriptors can exist")
        });
        let slot = &mut self.slots[index as usize];
        *slot = Slot {
            generation: slot.generation,
            phase: Phase::Queued { lane },
            since: now,
            task: Some(task),
            ..Slot::free()
        };
        Key {
            index,
            generation: slot.generation,
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<&Slot<T>> {
        self.slots
            .get(key.index as usize)
            .filter(|slot| slot.phase != Phase::Free && slot.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Slot<T>> {
        self.slots
            .get_mut(key.index as usize)
            .filter(|slot| slot.phase != Phase::Free && slot.generation == key.generation)
    }

    /// The slot of a connection that the caller is sure of: it is queued, or in the caller's hands.
    fn slot(&mut self, key: Key) -> &mut Slot<T> {
        let slot = &mut self.slots[key.index as usize];
        debug_assert!(slot.phase != Phase::Free && slot.generation == key.generation);
        slot
    }

    pub(super) fn running_mut(&mut self, key: Key) -> &mut Slot<T> {
        let slot = self.slot(key);
        debug_assert_eq!(slot.phase, Phase::Running);
        slot
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + use<T> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.phase != Phase::Free)
            .map(|(index, slot)| Key {
                #[allow(clippy::cast_possible_truncation)] // `insert` made it from a u32
                index: index as u32,
                generation: slot.generation,
            })
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Whether its last command was long.
    pub(super) fn was_long(&self, key: Key) -> bool {
        self.slots[key.index as usize].is(Marks::WAS_LONG)
    }

    /// Queued to running: the task leaves the table.
    pub(super) fn take(&mut self, key: Key) -> (T, Wake) {
        let slot = self.slot(key);
        debug_assert!(matches!(slot.phase, Phase::Queued { .. }));
        slot.phase = Phase::Running;
        let task = slot.task.take().expect("a queued connection has its task");
        (task, std::mem::take(&mut slot.wake))
    }

    /// To queued, from any other phase; the lane that it belongs in, by this rule.
    pub(super) fn queue(&mut self, key: Key, rule: impl FnOnce(&Slot<T>) -> Lane) -> Lane {
        let slot = self.slot(key);
        let lane = rule(slot);
        let rested = slot.phase.is_rest();
        slot.phase = Phase::Queued { lane };
        self.resting -= usize::from(rested);
        lane
    }

    /// Running to idle, flushing or parked. Returns since when its client is silent, and when it asked
    /// to be woken.
    pub(super) fn rest(&mut self, key: Key, phase: Phase) -> (Nanos, Nanos) {
        self.resting += 1;
        let slot = self.slot(key);
        debug_assert_eq!(slot.phase, Phase::Running);
        slot.phase = phase;
        (slot.since, slot.until)
    }

    /// Whether others may be waiting for what its session holds: by its own word, if it has given one,
    /// and by theirs.
    pub(super) fn settle_holding(&mut self, key: Key, holding: Option<bool>) {
        let slot = self.slot(key);
        let says = holding.unwrap_or(false);
        if slot.boosted == 0 && slot.is(Marks::HOLDING) == says {
            return;
        }
        let mut boosted = slot.boosted - std::mem::take(&mut slot.unboosted);
        if holding == Some(false) {
            slot.disowned += std::mem::take(&mut boosted);
        }
        self.hold(key, says, boosted);
    }

    fn hold(&mut self, key: Key, holding: bool, boosted: u32) {
        let slot = self.slot(key);
        let before = slot.holds();
        slot.mark(Marks::HOLDING, holding);
        slot.boosted = boosted;
        let after = slot.holds();
        self.holding = self.holding + usize::from(after) - usize::from(before);
    }

    /// One more waits for it.
    pub(super) fn boost(&mut self, key: Key) {
        let slot = self.slot(key);
        let (holding, boosted) = (slot.is(Marks::HOLDING), slot.boosted);
        self.hold(key, holding, boosted + 1);
    }

    /// One of them does not any more.
    pub(super) fn unboost(&mut self, key: Key) {
        let slot = self.slot(key);
        if slot.disowned > 0 {
            // Which of them it is makes no difference.
            slot.disowned -= 1;
        } else if slot.phase == Phase::Running {
            slot.unboosted += 1;
        } else {
            let (holding, boosted) = (slot.is(Marks::HOLDING), slot.boosted);
            self.hold(key, holding, boosted.saturating_sub(1));
        }
    }

    /// When something is due with a connection at rest.
    pub(super) fn due(&mut self, key: Key, bounds: &Bounds) -> Nanos {
        Self::deadline(self.slot(key), bounds).map_or(NEVER, |(due, _)| due)
    }

    /// Running to gone.
    pub(super) fn remove(&mut self, key: Key) {
        let slot = self.slot(key);
        debug_assert_eq!(slot.phase, Phase::Running);
        if !mutant::is("a_successor_has_the_same_key") {
            slot.generation = slot.generation.wrapping_add(1);
        }
        slot.phase = Phase::Free;
        slot.task = None;
        let held = slot.holds();
        self.free.push(key.index);
        self.holding -= usize::from(held);
    }

    /// Empties every slot that is not with a worker.
    pub(super) fn take_resting(&mut self) -> Vec<T> {
        let mut taken = Vec::new();
        for key in self.keys() {
            let slot = self.slot(key);
            if let Some(task) = slot.task.take() {
                slot.phase = Phase::Running;
                taken.push(task);
                self.remove(key);
            }
        }
        self.resting = 0;
        taken
    }

    /// Connections from this slot on, as many slots as there is room for. Returns where to go on.
    pub(super) fn see(&self, from: usize, into: &mut Vec<SeenConn>) -> Option<usize> {
        let to = self.slots.len().min(from + into.capacity() - into.len());
        for (index, slot) in (0..).zip(&self.slots).take(to).skip(from) {
            if slot.phase != Phase::Free {
                into.push(Self::seen(index, slot));
            }
        }
        (to < self.slots.len()).then_some(to)
    }

    fn seen(index: u32, slot: &Slot<T>) -> SeenConn {
        SeenConn {
            key: Key {
                index,
                generation: slot.generation,
            },
            phase: slot.phase,
            since: slot.since,
            lane: match slot.phase {
                Phase::Queued { lane } => lane,
                _ => slot.urgency(),
            },
            holding: slot.holds(),
        }
    }

    fn deadline(slot: &Slot<T>, bounds: &Bounds) -> Option<(Nanos, Due)> {
        let (time, why) = match slot.phase {
            Phase::Idle { in_command: false }
                if slot.is(Marks::IN_TRANSACTION)
                    && bounds.transaction_timeout < bounds.idle_timeout =>
            {
                (bounds.transaction_timeout, CloseReason::IdleInTransaction)
            }
            Phase::Idle { in_command: false } => (bounds.idle_timeout, CloseReason::IdleTimeout),
            Phase::Idle { in_command: true } => (bounds.read_timeout, CloseReason::ReadTimeout),
            Phase::Flushing { crammed: false } => (bounds.write_timeout, CloseReason::WriteTimeout),
            Phase::Flushing { crammed: true } => {
                (bounds.crammed_timeout, CloseReason::PipelineTooLong)
            }
            Phase::Queued { .. } | Phase::Running | Phase::Parked | Phase::Free => return None,
        };
        if slot.is(Marks::LOOK_AGAIN)
            && time > bounds.look_again
            && !matches!(slot.phase, Phase::Flushing { .. })
        {
            return Some((slot.since.after(bounds.look_again), Due::Look));
        }
        Some((slot.since.after(time), Due::Close(why)))
    }

    /// The first connection from this slot on with which something is due. A step of a scan, which so needs
    /// no list of those that it finds.
    pub(super) fn expired(&self, from: usize, now: Nanos, bounds: &Bounds) -> Option<(Key, Due)> {
        let mut slots = (0..).zip(&self.slots).skip(from);
        slots.find_map(|(index, slot)| {
            let (at, due) = Self::deadline(slot, bounds)?;
            let generation = slot.generation;
            (at <= now).then_some((Key { index, generation }, due))
        })
    }

    pub(super) fn earliest_deadline(&self, bounds: &Bounds) -> Option<Nanos> {
        self.slots
            .iter()
            .filter_map(|slot| Some(Self::deadline(slot, bounds)?.0))
            .min()
    }
}

#[cfg(all(any(test, feature = "walk"), not(loom)))]
impl<T> Table<T> {
    pub(super) fn phase(&self, key: Key) -> Phase {
        self.slots[key.index as usize].phase
    }

    /// The count and the free list say the same as the slots; a task is here unless it runs; and
    /// nobody rests whose rest has been ended.
    pub(super) fn check(&self) {
        let mut free: Vec<_> = self.free.clone();
        free.sort_unstable();
        free.dedup();
        assert_eq!(free.len(), self.free.len(), "a slot is free twice");
        let mut resting = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            let listed = self.free.iter().any(|free| *free as usize == index);
            assert_eq!(slot.phase == Phase::Free, listed);
            assert_eq!(
                slot.task.is_none(),
                matches!(slot.phase, Phase::Free | Phase::Running),
                "slot {index}: a task is lost or doubled"
            );
            if slot.phase.is_rest() {
                resting += 1;
                assert!(
                    !slot.wake.ends(slot.phase),
                    "slot {index} rests, and something has happened to it"
                );
            }
        }
        assert_eq!(self.resting, resting);
        let holding = |slot: &&Slot<T>| slot.phase != Phase::Free && slot.holds();
        assert_eq!(self.holding, self.slots.iter().filter(holding).count());
    }

    /// What the future of a connection depends on, with an age in place of a time. A generation only
    /// tells the living from the dead, so it is left out.
    pub(super) fn code(&self, key: Key, now: Nanos, bounds: &Bounds) -> [u64; 8] {
        let slot = self.get(key).expect("it is connected");
        let (phase, time) = match slot.phase {
            Phase::Idle { in_command: false } if slot.is(Marks::IN_TRANSACTION) => {
                (0, bounds.idle_timeout.min(bounds.transaction_timeout))
            }
            Phase::Idle { in_command: false } => (0, bounds.idle_timeout),
            Phase::Idle { in_command: true } => (1, bounds.read_timeout),
            Phase::Flushing { crammed: false } => (2, bounds.write_timeout),
            Phase::Flushing { crammed: true } => (6, bounds.crammed_timeout),
            // A turn that nobody asked for leaves the clock as it is.
            Phase::Running => (3, bounds.idle_timeout),
            Phase::Queued { .. } => (4, bounds.idle_timeout),
            Phase::Parked => (5, Nanos(0)),
            Phase::Free => unreachable!("`get` finds nobody there"),
        };
        let age = match time {
            NEVER => 0,
            time => now.since(slot.since).min(time).0,
        };
        let until = match slot.until {
            NEVER => 0,
            until => 1 + until.since(now).0,
        };
        let Wake { ready, close, told } = slot.wake;
        // A park is resumed, or is not; which one it is matters only beside that.
        let ahead = slot.ticket.wrapping_sub(slot.resumed);
        let bits = |bits: &[bool]| bits.iter().fold(0, |all, bit| all * 2 + u64::from(*bit));
        [
            phase,
            age,
            until,
            slot.lane as u64,
            bits(&[
                slot.boosted > 0,
                slot.boosted > slot.unboosted,
                slot.disowned > 0,
            ]) << 5
                // In the place of a mark that the walk has no use for.
                | bits(&[ahead == 0, false])
                | u64::from(slot.marks.0 & !Marks::LOOK_AGAIN.0),
            ready.bits(),
            close.map_or(0, |why| 1 + why.index() as u64),
            u64::from(told.0),
        ]
    }
}
