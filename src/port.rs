//! The doors: what a group needs of the outside, so that loom and the operating system can
//! each stand behind them. The simulator needs less: it makes the moves itself.

use std::io;

/// What the poller saw of a connection: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness(u8);

impl Readiness {
    pub(crate) const NOTHING: Self = Self(0);
    pub(crate) const READABLE: Self = Self(1);
    /// The peer will send no more, or the connection is broken.
    pub(crate) const READ_CLOSED: Self = Self(1 << 1);
    /// Urgent data, at whose mark a read stops short.
    pub(crate) const PRIORITY: Self = Self(1 << 2);
    pub(crate) const WRITABLE: Self = Self(1 << 3);
    /// The peer has gone: it will neither send nor receive.
    pub(crate) const HUNG_UP: Self = Self(1 << 4);
    /// What a connection that is well has not.
    pub(crate) const RARE: Self = Self::READ_CLOSED.and(Self::PRIORITY).and(Self::HUNG_UP);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// `self`, if it is so.
    pub(crate) const fn when(self, so: bool) -> Self {
        if so { self } else { Self::NOTHING }
    }

    pub(crate) const fn has_any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether a read would bring something new.
    pub(crate) const fn input(self) -> bool {
        self.has_any_of(Self::READABLE.and(Self::READ_CLOSED).and(Self::PRIORITY))
    }

    #[cfg(all(any(test, feature = "walk"), not(loom)))]
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.0)
    }
}

/// A readiness event: the token that the connection was registered with, and what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) token: usize,
    pub(crate) readiness: Readiness,
}

/// A group's outside.
pub(crate) trait Doors: Send + Sync {
    /// What a task registers itself with.
    type Interest;

    fn interest(&self) -> &Self::Interest;

    /// Waits for events, or only looks, and puts what came into `events`. Called by one thread at a
    /// time, the listener. Returns without events when [`wake`](Self::wake) was called.
    fn poll(&self, block: bool, events: &mut Vec<Event>);

    /// Makes the current or else the next blocking [`poll`](Self::poll) return.
    fn wake(&self);

    /// Nanoseconds since the server started; never backwards.
    fn now(&self) -> u64;
}

/// What the monitor has found in a group, or done to it. Connections are named by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A command has run past the stall bound.
    Stalled {
        id: Option<u64>,
        time: u64,
    },
    /// It has been found blocked, though it had not said so.
    Detected {
        id: Option<u64>,
        time: u64,
    },
    Created {
        due_to_stall: bool,
        excess: bool,
    },
    CreationFailed(io::ErrorKind),
    /// A thread was wanted, and the cap left no room for one.
    Capped,
    /// Nobody came for the oldest of so many queued connections for so long.
    Overloaded {
        time: u64,
        queued: usize,
    },
}

/// Where new workers come from. Called by the monitor alone, with no lock held.
pub(crate) trait Threads {
    type Id;

    /// Starts the thread of worker `id` of group `group`.
    fn spawn(&self, group: usize, id: Self::Id) -> io::Result<()>;

    /// Something has happened that whoever runs the server may want to know.
    fn report(&self, _group: usize, _what: Report) {}

    /// Whether that thread is blocked, rather than running or waiting for a CPU, as far as can be
    /// told.
    fn is_blocked(&self, group: usize, id: Self::Id) -> bool;
}
