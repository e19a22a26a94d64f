//! The doors: what a group needs of the outside, so that loom and the operating system can
//! each stand behind them. The simulator needs less: it makes the moves itself.

use std::io;

/// What the poller saw of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    /// The peer will send no more, or the connection is broken.
    pub(crate) read_closed: bool,
    /// Urgent data, at whose mark a read stops short.
    pub(crate) priority: bool,
    pub(crate) writable: bool,
}

impl Readiness {
    pub(crate) fn merge(&mut self, other: Self) {
        self.readable |= other.readable;
        self.read_closed |= other.read_closed;
        self.priority |= other.priority;
        self.writable |= other.writable;
    }

    /// Whether a read would bring something new.
    pub(crate) fn input(self) -> bool {
        self.readable || self.read_closed || self.priority
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

/// Where new workers come from. Called by the monitor alone, with no lock held.
pub(crate) trait Threads {
    type Id;

    /// Starts the thread of worker `id` of group `group`.
    fn spawn(&self, group: usize, id: Self::Id) -> io::Result<()>;
}
