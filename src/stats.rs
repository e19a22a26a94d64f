//! What can be seen of a running server: plain numbers, taken at one moment.

use std::fmt;
use std::time::Duration;

use crate::conn::ConnId;
use crate::histogram::Histogram;
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
    /// Commands that were killed, and not their connections.
    pub commands_killed: u64,
    /// Commands that took longer than [`Limits::command_timeout`](crate::Limits).
    pub commands_timed_out: u64,
    /// Commands that were told that their client had left ([`HangUp::Flag`](crate::HangUp)).
    pub commands_hung_up: u64,
    /// Connections that had input which no readiness event announced: a fault of the poller or of
    /// this crate, found by the backstop. 0 in every test.
    pub lost_edges: u64,
    /// Memory of half commands, and of what transports hold of them, over all connections; see
    /// [`Limits::input_budget`](crate::Limits::input_budget).
    pub input_bytes: usize,
    /// Errors of `accept` after which the listener rested for a moment (no descriptors, no memory).
    pub accept_errors: u64,
    /// Closed sockets whose clients have not closed their side yet, now; see
    /// [`Limits::linger_timeout`](crate::Limits).
    pub lingering: usize,
    /// Sockets that were closed at once because [`Limits::max_lingering`](crate::Limits) lingered, ever.
    pub not_lingered: u64,
    /// Threads that run connections, now.
    #[doc(alias = "Threadpool_threads")]
    pub threads: usize,
    /// The most there have been.
    pub threads_peak: usize,
    /// Threads that have been created to run connections, ever.
    #[doc(alias = "Threads_created")]
    pub threads_created: u64,
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
    /// How many of its group are before it, in its own lane and in more urgent ones.
    pub ahead: usize,
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
    /// something, and for a tenth of a second after; and those that a lower `max_threads` leaves out, until
    /// their commands have ended.
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
    /// Thread creations that the operating system refused; not among the others.
    pub creation_failures: u64,
    /// Of the threads created, because a command was past the handover bound or the stall limit.
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
    /// Commands that have ended and were long: for as many stall limits as there were commands to share
    /// the CPU with, or by their own word.
    pub long_commands: u64,
    /// How often the poller went to another thread than the last time.
    pub handovers: u64,
    /// How often whoever was in the poller was called from there.
    pub rings: u64,
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
    /// Of these, by a thread that came out of the poller with it.
    #[doc(alias = "DEQUEUES_BY_LISTENER")]
    pub dequeues_by_listener: u64,
    /// Calls of the handler.
    pub commands: u64,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// It has come, and nobody has opened it yet.
    New,
    /// Between two commands: it waits for its client.
    Idle,
    /// It waits for the rest of a command.
    Reading,
    /// It waits in a lane for a thread.
    Queued,
    /// Its handler runs.
    Running,
    /// Its handler waits, and has said so; or, as [`WaitKind::Detected`], was found to.
    Waiting(WaitKind),
    /// It waits until its client takes more of a reply.
    Flushing,
    /// It has given its thread up until it is resumed.
    Parked,
    /// It has left the scheduler.
    Detached,
    /// It is being closed.
    Closing,
}

impl Activity {
    /// Its name; that of a wait without its kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Idle => "idle",
            Self::Reading => "reading",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting(_) => "waiting",
            Self::Flushing => "flushing",
            Self::Parked => "parked",
            Self::Detached => "detached",
            Self::Closing => "closing",
        }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(kind) => write!(f, "waiting ({kind})"),
            other => f.write_str(other.name()),
        }
    }
}

/// One connection, as [`ServerHandle::connections`](crate::ServerHandle::connections) shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnInfo {
    /// Its id.
    pub id: ConnId,
    /// Who is at the other end.
    pub peer: String,
    /// What it is doing.
    pub state: Activity,
    /// For how long. Under thread-per-connection, where nobody looks at the clock when a command
    /// begins, to within a second.
    pub since: Duration,
    /// Calls of the handler so far.
    pub commands: u64,
    /// The number of the command that it is at, if it is at one: see
    /// [`ConnHandle::kill_command`](crate::ConnHandle::kill_command).
    pub command: Option<u64>,
    /// Its group; `None` under thread-per-connection.
    pub group: Option<usize>,
    /// The lane in which it is queued, or would be: as [`QueueEntry::lane`]. `None` under
    /// thread-per-connection.
    pub lane: Option<&'static str>,
    /// How many are queued before it, if it is queued.
    pub ahead: Option<usize>,
    /// For whose command it waits, if it does and has said so ([`wait::during_for`](crate::wait::during_for)).
    pub waits_for: Option<ConnId>,
    /// Whether others may be waiting for what it holds, by its own word or theirs. False under
    /// thread-per-connection, which has no use for it.
    pub holding: bool,
    /// Whether it is a session: whether [`Conn::logged_in`](crate::Conn::logged_in) has been called.
    pub logged_in: bool,
    /// Whether it is in a transaction, by [`Conn::set_in_transaction`](crate::Conn::set_in_transaction).
    pub in_transaction: bool,
    /// Whether it has been killed, or is to be closed for another reason.
    pub cancelled: bool,
    /// Bytes of buffers that it had when its last turn ended. A connection at rest in the pool has none,
    /// unless half a command or half a reply is in it, and what its transport has of its
    /// [input](crate::Transport::input_bytes).
    pub buffer_bytes: usize,
    /// What [`Handler::session_bytes`](crate::Handler::session_bytes) said after its last command.
    pub session_bytes: usize,
}

/// What a thread that runs connections is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkerState {
    /// It is being created.
    Starting,
    /// It has been called, and is on the way.
    Coming,
    /// It looks for what to do.
    Looking,
    /// It waits in the poller of its group, or, under thread-per-connection, for its client.
    Polling,
    /// It waits to be called.
    Parked,
    /// It runs a command.
    Running,
    /// Its command waits, and has said so; or, as [`WaitKind::Detected`], was found to.
    Waiting(WaitKind),
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Coming => "coming",
            Self::Looking => "looking",
            Self::Polling => "polling",
            Self::Parked => "parked",
            Self::Running => "running",
            Self::Waiting(kind) => return write!(f, "waiting ({kind})"),
        })
    }
}

/// One thread that runs connections, as [`ServerHandle::workers`](crate::ServerHandle::workers) shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its group; `None` under thread-per-connection.
    pub group: Option<usize>,
    /// Its number in the group: thread `tgp-g0-w3` is number 3 of group 0. Under thread-per-connection
    /// all are 0.
    pub worker: usize,
    /// What it is doing.
    pub state: WorkerState,
    /// Whose command it runs.
    pub conn: Option<ConnId>,
    /// For how long its command has run, waits not counted, or waits now; or for how long the thread
    /// has been on the way. Zero otherwise.
    pub since: Duration,
    /// Whether its command has run past the stall limit, or said that it would, and holds no slot.
    pub long: bool,
    /// For whose command its command waits, if it does and has said so.
    pub waits_for: Option<ConnId>,
}

/// How long things took; see [`ServerHandle::times`](crate::ServerHandle::times).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Times {
    /// How long connections were queued before a thread took them, by lane, those lanes that were used:
    /// all of them. Empty under thread-per-connection.
    pub queued: Vec<(&'static str, Histogram)>,
    /// How long commands took, waits included. Commands of a few microseconds are measured several at a
    /// time, and each counts as the mean of them, or of those just before: the pool does not look at the clock
    /// for each. Under
    /// thread-per-connection one turn in [`SAMPLED`](Times::SAMPLED) is measured.
    pub commands: Histogram,
    /// How long threads took to run that had been called from where they were parked, rung out of the
    /// poller, or created: runnable, and not running yet. Under thread-per-connection: from the
    /// connection's arrival until its thread has it.
    pub started: Histogram,
    /// How long commands waited, by kind, those kinds that occurred, as far as they said so: blocked, and
    /// not runnable.
    pub waits: Vec<(WaitKind, Histogram)>,
}

impl Times {
    /// Under thread-per-connection, one turn of a connection in so many is measured.
    pub const SAMPLED: u64 = 64;
}

/// Everything that is to be seen; see [`ServerHandle::snapshot`](crate::ServerHandle::snapshot).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The counters.
    pub stats: Stats,
    /// The connections, by id.
    pub connections: Vec<ConnInfo>,
    /// Who is queued, as [`ServerHandle::queues`](crate::ServerHandle::queues) has it.
    pub queues: Vec<QueueEntry>,
    /// The threads that run connections, by group.
    pub workers: Vec<WorkerInfo>,
    /// How long things took.
    pub times: Times,
}
