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

    /// Whether a statement that has to wait may leave its thread, by [`Flow::Park`](crate::Flow).
    /// If not it blocks.
    fn parks(&self) -> bool {
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

/// A table of text.
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
