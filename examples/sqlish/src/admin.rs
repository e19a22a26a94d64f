//! What a statement may ask of the server that runs it.

use std::fmt::Debug;
use std::time::Duration;

use thread_group_pool::OnCancel;

/// The server, seen from a statement. `None` means that this server cannot tell, and becomes an
/// `ERR`: the engine and the sessions know nothing of threads and connections, so that they run
/// under any server.
pub trait Admin {
    /// The rows of `SHOW THREAD_POOL GROUPS`.
    fn thread_pool_groups(&self) -> Option<Grid> {
        None
    }

    /// The rows of `SHOW THREAD_POOL STATS`.
    fn thread_pool_stats(&self) -> Option<Grid> {
        None
    }

    /// The rows of `SHOW THREAD_POOL QUEUES`.
    fn thread_pool_queues(&self) -> Option<Grid> {
        None
    }

    /// The rows of `SHOW THREAD_POOL WAITS`.
    fn thread_pool_waits(&self) -> Option<Grid> {
        None
    }

    /// The connections, for `SHOW PROCESSLIST`. The statement adds what the engine knows of each.
    fn connections(&self) -> Option<Vec<Connection>> {
        None
    }

    /// Kills a connection; whether there was one by this id.
    fn kill(&self, _id: u64) -> Option<bool> {
        None
    }

    /// Kills the statement that a connection runs, if it runs one; whether there is a connection by this
    /// id.
    fn kill_query(&self, _id: u64) -> Option<bool> {
        None
    }

    /// Has `call` called when the statement that runs is killed or takes too long, until what this
    /// returns is dropped. `None`: this server calls nobody, and is asked now and then.
    fn on_cancel(&self, _call: Box<dyn FnOnce() + Send>) -> Option<OnCancel> {
        None
    }

    /// The server's variables, for `SHOW VARIABLES`.
    fn variables(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Sets one of them.
    ///
    /// # Errors
    /// If there is none, or if it cannot be set, or not to this.
    fn set_variable(&self, _name: &str, _value: &str) -> Result<(), Refused> {
        Err(Refused::Unknown)
    }

    /// The server's counters, for `SHOW STATUS`.
    fn status(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Lets the counters of `SHOW THREAD_POOL STATS` begin again at 0.
    fn flush_thread_pool_stats(&self) -> Option<()> {
        None
    }

    /// Lets those of `SHOW THREAD_POOL WAITS` begin again at 0.
    fn flush_thread_pool_waits(&self) -> Option<()> {
        None
    }

    /// Whether a statement that has to wait may leave its thread, by [`Flow::Park`](crate::Flow).
    /// If not it blocks.
    fn parks(&self) -> bool {
        false
    }

    /// Whether a session can leave the scheduler, by [`Flow::Subscribe`](crate::Flow), for good.
    fn detaches(&self) -> bool {
        false
    }

    /// Whether the statement that runs is to end, or its connection. Asked now and then by statements that
    /// burn CPU, and by those that wait, where nobody calls them.
    fn cancelled(&self) -> bool {
        false
    }
}

/// A server that can tell nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAdmin;

impl Admin for NoAdmin {}

/// Why a variable was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The server has none by this name.
    Unknown,
    /// It cannot change while the server runs.
    Fixed,
    /// The one by this name does not take this value.
    Wrong(&'static str),
}

/// A table of text; `NULL` is a value that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The names of the columns.
    pub columns: &'static [&'static str],
    /// The rows, each as long as `columns`.
    pub rows: Vec<Vec<String>>,
}

/// A connection as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The id that `KILL` takes.
    pub id: u64,
    /// Where it comes from.
    pub peer: String,
    /// What the scheduler has it do.
    pub state: String,
    /// For how long.
    pub since: Duration,
    /// Why it does not go on.
    pub why: String,
}

/// The columns of `SHOW THREAD_POOL GROUPS`: those of MariaDB's table, and five of ours.
pub(crate) const GROUPS: [&str; 13] = [
    "GROUP_ID",
    "CONNECTIONS",
    "THREADS",
    "ACTIVE_THREADS",
    "STANDBY_THREADS",
    "QUEUE_LENGTH",
    "HAS_LISTENER",
    "IS_STALLED",
    "WAITING_THREADS",
    "LONG_COMMANDS",
    "BLOCKED_COMMANDS",
    "HOLDING_CONNECTIONS",
    "THREADS_OVER_CAP",
];

/// The columns of `SHOW THREAD_POOL STATS`.
pub(crate) const STATS: [&str; 12] = [
    "GROUP_ID",
    "THREAD_CREATIONS",
    "THREAD_CREATIONS_DUE_TO_STALL",
    "WAKES",
    "WAKES_DUE_TO_STALL",
    "THROTTLES",
    "STALLS",
    "POLLS_BY_LISTENER",
    "POLLS_BY_WORKER",
    "DEQUEUES_BY_LISTENER",
    "DEQUEUES_BY_WORKER",
    "COMMANDS",
];

/// The columns of `SHOW THREAD_POOL QUEUES`.
pub(crate) const QUEUES: [&str; 5] = [
    "GROUP_ID",
    "POSITION",
    "PRIORITY",
    "CONNECTION_ID",
    "QUEUEING_TIME_MICROSECONDS",
];

/// The same with MariaDB's two priorities, and the lane behind them.
pub(crate) const QUEUES_BY_NUMBER: [&str; 6] = [
    "GROUP_ID",
    "POSITION",
    "PRIORITY",
    "CONNECTION_ID",
    "QUEUEING_TIME_MICROSECONDS",
    "LANE",
];

/// The columns of `SHOW THREAD_POOL WAITS`.
pub(crate) const WAITS: [&str; 3] = ["REASON", "COUNT", "TOTAL_MICROSECONDS"];

/// The columns of `SHOW PROCESSLIST`: MariaDB's, and one of ours.
pub(crate) const PROCESSLIST: [&str; 10] = [
    "Id", "User", "Host", "db", "Command", "Time", "State", "Info", "Progress", "Why",
];
