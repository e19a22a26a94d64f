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
    /// Clients that were refused, ever: as they came, or when they had logged in.
    pub refused: u64,
    /// Connections now.
    pub connections: usize,
    /// Of these, those that have logged in.
    pub sessions: usize,
    /// Connections now by the [admin listeners](crate::ServerBuilder::admin), which are counted in no other
    /// number here.
    pub admin_connections: usize,
    /// Clients that were refused there, ever.
    pub admin_refused: u64,
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
    /// Waits by kind, those kinds that occurred.
    #[doc(alias = "THREAD_POOL_WAITS")]
    pub waits: Vec<WaitStats>,
    /// Whether commands that block without saying so can be found: the states of threads can be read
    /// here, and the scheduler is the pool. Otherwise such commands count as long.
    pub detects_blocking: bool,
    /// One for each group; empty under thread-per-connection.
    #[doc(alias = "THREAD_POOL_GROUPS")]
    pub groups: Vec<GroupStats>,
}

/// Waits of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// What was waited for.
    pub kind: WaitKind,
    /// How often, so far.
    pub count: u64,
    /// How long those lasted that are over, in all.
    pub total: Duration,
}

/// A queued connection; see [`ServerHandle::queues`](crate::ServerHandle::queues).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "THREAD_POOL_QUEUES")]
pub struct QueueEntry {
    /// Its group.
    #[doc(alias = "GROUP_ID")]
    pub group: usize,
    /// Its place in its lane, from 0.
    #[doc(alias = "POSITION")]
    pub position: usize,
    /// Its lane: "holding", "control", "high", "low" or "long".
    #[doc(alias = "PRIORITY")]
    pub lane: &'static str,
    /// Which one it is, unless it has just gone.
    #[doc(alias = "CONNECTION_ID")]
    pub id: Option<ConnId>,
    /// For how long it has been queued.
    #[doc(alias = "QUEUEING_TIME_MICROSECONDS")]
    pub time: Duration,
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
    /// Threads whose command has run past the stall limit and was found blocked, though it had not
    /// reported a wait: its handler has forgotten a hook. Always 0 where thread states cannot be read.
    pub blocked: usize,
    /// Connections that others may be waiting for, by their own word or the others'.
    pub holding: usize,
    /// Threads beyond [`PoolConfig::max_threads`](crate::PoolConfig): at most one for each that holds
    /// something, and for a tenth of a second after.
    pub over_cap: usize,
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
    /// Commands that were found blocked, though they had not reported a wait.
    pub detected: u64,
    /// For how long they were known to be.
    pub detected_time: Duration,
    /// Connections that others said they wait for.
    pub boosts: u64,
    /// Threads that were created beyond the cap.
    pub threads_over_cap: u64,
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
    /// "writing" (to a slow reader), "parked" or "detached". A queued connection is shown as what it was before.
    pub state: &'static str,
    /// Since its last command began; under thread-per-connection to within a second.
    pub since: Duration,
    /// Calls of the handler so far.
    pub commands: u64,
}
