//! What can be seen of a running server: plain numbers, taken at one moment.

use std::time::Duration;

use crate::conn::ConnId;
use crate::wait::WaitKind;

/// A server's counters; see [`ServerHandle::stats`](crate::ServerHandle::stats).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Connections that got a session or tried to, ever.
    pub opened: u64,
    /// Connections that have ended, ever.
    pub closed: u64,
    /// Clients that were refused, ever.
    pub refused: u64,
    /// Connections now.
    pub connections: usize,
    /// Calls of [`Handler::command`](crate::Handler::command) and `woken`, ever.
    pub commands: u64,
    /// Callbacks that panicked, ever.
    pub panics: u64,
    /// Connections that had input which no readiness event announced: a fault of the poller or of
    /// this crate, found by the backstop. 0 in every test.
    pub lost_edges: u64,
    /// Errors of `accept` after which the listener rested for a moment (no descriptors, no memory).
    pub accept_errors: u64,
    /// Threads that run connections, now.
    #[doc(alias = "Threadpool_threads")]
    pub threads: usize,
    /// The most there have been.
    pub threads_peak: usize,
    /// Thread creations that the operating system refused, ever.
    pub spawn_failures: u64,
    /// Closed connections by reason ([`CloseReason::name`](crate::CloseReason::name)), those
    /// reasons that occurred.
    pub closes: Vec<(&'static str, u64)>,
    /// Reported waits by kind, those kinds that occurred.
    #[doc(alias = "THREAD_POOL_WAITS")]
    pub waits: Vec<(WaitKind, u64)>,
    /// One for each group; empty under thread-per-connection.
    #[doc(alias = "THREAD_POOL_GROUPS")]
    pub groups: Vec<GroupStats>,
}

/// One group's state and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats {
    /// Number of the group, from 0.
    pub group: usize,
    /// Connections that belong to it.
    pub connections: usize,
    /// Its threads.
    pub threads: usize,
    /// Threads whose command holds a slot: on the CPU, as far as the group knows.
    #[doc(alias = "ACTIVE_THREADS")]
    pub active: usize,
    /// Parked threads.
    #[doc(alias = "STANDBY_THREADS")]
    pub standby: usize,
    /// Threads whose command is in a reported wait.
    pub waiting: usize,
    /// Threads whose command has run past the stall limit, or said that it would.
    pub long: usize,
    /// Commands in the lanes.
    #[doc(alias = "QUEUE_LENGTH")]
    pub queued: usize,
    /// Whether a thread is in the poller.
    pub has_listener: bool,
    /// Commands wait, and every slot is taken.
    #[doc(alias = "IS_STALLED")]
    pub stalled: bool,
    /// Threads created.
    #[doc(alias = "THREAD_CREATIONS")]
    pub creations: u64,
    /// Of these, because a command was past the handover bound or the stall limit.
    #[doc(alias = "THREAD_CREATIONS_DUE_TO_STALL")]
    pub creations_due_to_stall: u64,
    /// Parked threads woken.
    pub wakes: u64,
    /// Of these, by the monitor.
    pub wakes_due_to_stall: u64,
    /// Thread creations put off by the throttle or the cap.
    pub throttles: u64,
    /// Commands that ran past the stall limit.
    pub stalls: u64,
    /// Polls by a listener: blocking.
    pub polls_by_listener: u64,
    /// Polls by a worker between two commands: not blocking.
    pub polls_by_worker: u64,
    /// Connections taken from the lanes.
    pub dequeues: u64,
    /// Calls of the handler.
    pub commands: u64,
}

/// One connection, as [`ServerHandle::connections`](crate::ServerHandle::connections) shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnInfo {
    /// Its id.
    pub id: ConnId,
    /// Who is at the other end.
    pub peer: String,
    /// "new", "idle" (between commands), "reading" (in the middle of one), "running" (in a wait too),
    /// "writing" (to a slow reader). A queued connection is shown as what it was before.
    pub state: &'static str,
    /// Since its last command began; under thread-per-connection to within a second.
    pub since: Duration,
    /// Calls of the handler so far.
    pub commands: u64,
}
