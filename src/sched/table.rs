//! The connection table: a slot for each connection, its phase, and what is sticky.
//!
//! A slot is found by a [`Key`], which carries a generation: an event or a kill that comes too late
//! finds nobody. While a connection runs, its task is not in the slot but with the worker; that it
//! runs at most once at a time follows from there being one task.

use super::lanes::Lane;
use super::{Bounds, Nanos};
use crate::handler::CloseReason;
use crate::port::Readiness;

/// Names a connection of a group, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a poller token must hold an index and a generation: 64-bit targets only");

impl Key {
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

/// Why a connection runs: what has happened to it since it last did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) ready: Readiness,
    /// It is to be closed, for this reason.
    pub(crate) close: Option<CloseReason>,
    /// It is to be read once more; see [`Bounds::look_again`].
    pub(crate) look: bool,
}

impl Wake {
    /// Whether a connection that rests in `phase` must run instead.
    pub(super) fn ends(&self, phase: Phase) -> bool {
        match phase {
            Phase::Flushing => self.close.is_some() || self.ready.writable,
            Phase::Idle { .. } => self.close.is_some() || self.look || self.ready.input(),
            Phase::Queued { .. } | Phase::Running => false,
        }
    }
}

/// Where a connection is. Exactly one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// At rest until input comes.
    Idle { in_command: bool },
    /// In a lane.
    Queued { lane: Lane },
    /// With a worker.
    Running,
    /// At rest until the socket takes more output.
    Flushing,
}

/// What is due with a connection that has rested for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Close(CloseReason),
    /// Read once more.
    Look,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    generation: u32,
    pub(super) phase: Phase,
    /// Where it queues next.
    pub(super) lane: Lane,
    /// Its last command ran past the stall bound.
    pub(super) was_long: bool,
    pub(super) wake: Wake,
    /// Its last read may have stopped short of what is there.
    pub(super) look_again: bool,
    /// When it came to rest after its last command.
    pub(super) since: Nanos,
    /// `None` while a worker has it, and in a free slot.
    pub(super) task: Option<T>,
    free: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    resting: usize,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            resting: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many wait for the poller.
    pub(super) fn resting(&self) -> usize {
        self.resting
    }

    /// Puts a new connection in, queued in the control lane.
    pub(super) fn insert(&mut self, task: T, now: Nanos) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                phase: Phase::Running,
                lane: Lane::Control,
                was_long: false,
                look_again: false,
                wake: Wake::default(),
                since: now,
                task: None,
                free: true,
            });
            u32::try_from(self.slots.len() - 1)
                .expect("more connections than descriptors can exist")
        });
        let slot = &mut self.slots[index as usize];
        slot.phase = Phase::Queued {
            lane: Lane::Control,
        };
        slot.lane = Lane::Control;
        slot.was_long = false;
        slot.look_again = false;
        slot.wake = Wake::default();
        slot.since = now;
        slot.task = Some(task);
        slot.free = false;
        Key {
            index,
            generation: slot.generation,
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<&Slot<T>> {
        self.slots
            .get(key.index as usize)
            .filter(|slot| !slot.free && slot.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Slot<T>> {
        self.slots
            .get_mut(key.index as usize)
            .filter(|slot| !slot.free && slot.generation == key.generation)
    }

    /// The slot of a connection that the caller is sure of: it is queued, or in the caller's hands.
    fn slot(&mut self, key: Key) -> &mut Slot<T> {
        let slot = &mut self.slots[key.index as usize];
        debug_assert!(!slot.free && slot.generation == key.generation);
        slot
    }

    pub(super) fn phase(&self, key: Key) -> Phase {
        self.slots[key.index as usize].phase
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
            .filter(|(_, slot)| !slot.free)
            .map(|(index, slot)| Key {
                #[allow(clippy::cast_possible_truncation)] // `insert` made it from a u32
                index: index as u32,
                generation: slot.generation,
            })
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Queued to running: the task leaves the table.
    pub(super) fn take(&mut self, key: Key) -> (T, Wake) {
        let slot = self.slot(key);
        debug_assert!(matches!(slot.phase, Phase::Queued { .. }));
        slot.phase = Phase::Running;
        let task = slot.task.take().expect("a queued connection has its task");
        (task, std::mem::take(&mut slot.wake))
    }

    /// To queued, from any other phase; the lane that it belongs in.
    pub(super) fn queue(&mut self, key: Key) -> Lane {
        let slot = self.slot(key);
        let lane = match slot.lane {
            _ if slot.wake.close.is_some() => Lane::Control,
            Lane::Low if slot.was_long => Lane::Long,
            lane => lane,
        };
        let rested = matches!(slot.phase, Phase::Idle { .. } | Phase::Flushing);
        slot.phase = Phase::Queued { lane };
        self.resting -= usize::from(rested);
        lane
    }

    /// Running to idle or flushing.
    pub(super) fn rest(&mut self, key: Key, phase: Phase, since: Nanos) {
        self.resting += 1;
        let slot = self.slot(key);
        debug_assert_eq!(slot.phase, Phase::Running);
        slot.phase = phase;
        slot.since = since;
    }

    /// When something is due with a connection at rest.
    pub(super) fn due(&mut self, key: Key, bounds: &Bounds) -> Nanos {
        Self::deadline(self.slot(key), bounds).map_or(Nanos(u64::MAX), |(due, _)| due)
    }

    /// Running to gone.
    pub(super) fn remove(&mut self, key: Key) {
        let slot = self.slot(key);
        debug_assert_eq!(slot.phase, Phase::Running);
        slot.generation = slot.generation.wrapping_add(1);
        slot.free = true;
        slot.task = None;
        self.free.push(key.index);
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

    fn deadline(slot: &Slot<T>, bounds: &Bounds) -> Option<(Nanos, Due)> {
        if slot.free {
            return None;
        }
        let (time, why) = match slot.phase {
            Phase::Idle { in_command: false } => (bounds.idle_timeout, CloseReason::IdleTimeout),
            Phase::Idle { in_command: true } => (bounds.read_timeout, CloseReason::ReadTimeout),
            Phase::Flushing => (bounds.write_timeout, CloseReason::WriteTimeout),
            Phase::Queued { .. } | Phase::Running => return None,
        };
        if slot.look_again && time > bounds.look_again && slot.phase != Phase::Flushing {
            return Some((slot.since.after(bounds.look_again), Due::Look));
        }
        Some((slot.since.after(time), Due::Close(why)))
    }

    pub(super) fn expired(&self, now: Nanos, bounds: &Bounds) -> Vec<(Key, Due)> {
        self.keys()
            .filter_map(|key| {
                let (at, due) = Self::deadline(&self.slots[key.index as usize], bounds)?;
                (at <= now).then_some((key, due))
            })
            .collect()
    }

    pub(super) fn earliest_deadline(&self, bounds: &Bounds) -> Option<Nanos> {
        self.slots
            .iter()
            .filter_map(|slot| Some(Self::deadline(slot, bounds)?.0))
            .min()
    }
}

#[cfg(all(test, not(loom)))]
impl<T> Table<T> {
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
            assert_eq!(slot.free, listed);
            assert_eq!(
                slot.task.is_none(),
                slot.free || slot.phase == Phase::Running,
                "slot {index}: a task is lost or doubled"
            );
            if !slot.free && matches!(slot.phase, Phase::Idle { .. } | Phase::Flushing) {
                resting += 1;
                assert!(
                    !slot.wake.ends(slot.phase),
                    "slot {index} rests, and something has happened to it"
                );
            }
        }
        assert_eq!(self.resting, resting);
    }

    /// What the future of a connection depends on, with an age in place of a time. A generation only
    /// tells the living from the dead, so it is left out.
    pub(super) fn code(&self, key: Key, now: Nanos, bounds: &Bounds) -> [u64; 6] {
        let slot = self.get(key).expect("it is connected");
        let (phase, time) = match slot.phase {
            Phase::Idle { in_command: false } => (0, bounds.idle_timeout),
            Phase::Idle { in_command: true } => (1, bounds.read_timeout),
            Phase::Flushing => (2, bounds.write_timeout),
            Phase::Running => (3, Nanos(0)),
            Phase::Queued { .. } => (4, Nanos(0)),
        };
        let age = match time {
            Nanos(u64::MAX) => 0,
            time => now.since(slot.since).min(time).0,
        };
        [
            phase,
            age,
            slot.lane as u64,
            u64::from(slot.was_long),
            slot.wake.ready.bits(),
            slot.wake
                .close
                .as_ref()
                .map_or(0, |why| 1 + why.index() as u64),
        ]
    }
}

#[cfg(all(test, not(loom)))]
impl Readiness {
    pub(super) fn bits(self) -> u64 {
        [
            self.readable,
            self.read_closed,
            self.priority,
            self.writable,
        ]
        .iter()
        .fold(0, |bits, bit| bits * 2 + u64::from(*bit))
    }
}
