//! What all sessions share: the tables, who is connected, and who waits for whom.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::board::Shown;
use crate::catalog::{Catalog, Tables};
use crate::commit::GroupCommit;
use crate::feed::Feed;
use crate::ping::PingLoad;
use crate::signal::Signal;
use crate::table::Outcome;
use crate::user_lock::UserLocks;

/// How an [`Engine`] is made.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Rows per table, with ids from 1. A million takes 188 MB and a fraction of a second.
    pub rows: u64,
    /// Tables to begin with: `sbtest1` to `sbtestN`.
    pub tables: usize,
    /// How long a statement waits for a row lock before it fails with 1205; InnoDB's default, 50 s.
    pub lock_wait_timeout: Duration,
    /// If set, `LOGIN` is answered by a challenge, and nothing else is served before it is met.
    pub login_secret: Option<String>,
    /// How long the flush of a group of commits takes, 0 up. 0, the default, is none: a commit is done at
    /// once, as with `innodb_flush_log_at_trx_commit=0`.
    pub commit_delay: Duration,
    /// How a commit waits for its flush.
    pub commit_wait: CommitWait,
    /// CPU that each `PING` burns, without a lock, and under one that all of them share: a command of a
    /// known size, to measure schedulers with. 0, the default, is none.
    pub ping_work: Duration,
    /// See [`ping_work`](Self::ping_work).
    pub ping_lock: Duration,
}

/// How a commit waits for its group's flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitWait {
    /// Its session leaves the thread, where the server [can](crate::Admin::parks) do that.
    #[default]
    Park,
    /// It blocks, in a reported wait.
    Hook,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            rows: 1_000_000,
            tables: 1,
            lock_wait_timeout: Duration::from_secs(50),
            login_secret: None,
            commit_delay: Duration::ZERO,
            commit_wait: CommitWait::default(),
            ping_work: Duration::ZERO,
            ping_lock: Duration::ZERO,
        }
    }
}

/// The tables and all that its sessions share.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) tables: Arc<Tables>,
    pub(crate) group_commit: Option<GroupCommit>,
    pub(crate) user_locks: UserLocks,
    pub(crate) ping_load: Option<PingLoad>,
    /// How long new sessions wait for a row; `SET GLOBAL` changes it.
    lock_wait_timeout: Mutex<Duration>,
    /// Who follows the commits.
    pub(crate) feed: Arc<Feed>,
    /// The sessions by id, for `KILL` and `SHOW PROCESSLIST`; touched when one begins or ends.
    clients: Mutex<HashMap<u64, Arc<Signal>>>,
    /// Held while somebody looks for a circle of waits, so that of the sessions that close one
    /// together exactly one, the last, finds it.
    circles: Mutex<()>,
}

/// A row, by table index and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) table: usize,
    pub(crate) id: i64,
}

/// How many waits the search for a circle follows; what is longer is left to the timeout.
const CHAIN_MAX: usize = 1000;

impl Engine {
    /// Builds the tables, and starts the thread that flushes commits, if they are flushed. It ends with
    /// the engine.
    ///
    /// # Errors
    /// If that thread cannot be started.
    pub fn new(config: EngineConfig) -> io::Result<Arc<Self>> {
        let tables = Arc::new(Tables::generate(config.tables, config.rows));
        let delay = config.commit_delay;
        let feed = Arc::<Feed>::default();
        let group_commit = (!delay.is_zero())
            .then(|| GroupCommit::start(delay, Arc::clone(&tables), Arc::clone(&feed)))
            .transpose()?;
        Ok(Arc::new(Self {
            tables,
            group_commit,
            user_locks: UserLocks::default(),
            feed,
            ping_load: PingLoad::new(config.ping_work, config.ping_lock),
            lock_wait_timeout: Mutex::new(config.lock_wait_timeout),
            config,
            clients: Mutex::default(),
            circles: Mutex::default(),
        }))
    }

    /// How long a session that begins now waits for a row.
    pub(crate) fn lock_wait_timeout(&self) -> Duration {
        *self.lock_wait_timeout.lock()
    }

    pub(crate) fn set_lock_wait_timeout(&self, timeout: Duration) {
        *self.lock_wait_timeout.lock() = timeout;
    }

    /// Tells the session `id` to stop whatever it waits for or computes; whether there is one.
    /// Closing its connection is the server's part.
    pub fn cancel(&self, id: u64) -> bool {
        let client = self.clients.lock().get(&id).map(Arc::clone);
        match client {
            Some(client) => {
                client.cancel();
                true
            }
            None => false,
        }
    }

    pub(crate) fn enter(&self, id: u64) -> Arc<Signal> {
        let client = Arc::new(Signal::new(id));
        self.clients.lock().insert(id, Arc::clone(&client));
        client
    }

    pub(crate) fn leave(&self, id: u64, client: &Arc<Signal>) {
        let mut clients = self.clients.lock();
        // Under a server that gives an id twice, it is the later session's by now.
        if clients
            .get(&id)
            .is_some_and(|entered| Arc::ptr_eq(entered, client))
        {
            clients.remove(&id);
        }
    }

    pub(crate) fn shown(&self, id: u64) -> Option<Shown> {
        let client = self.clients.lock().get(&id).map(Arc::clone)?;
        Some(client.board.shown())
    }

    /// Whether `waiter`, queued for the row at `place`, waits for somebody who waits, by however
    /// many steps, for a row that `waiter` has locked.
    ///
    /// Each session waits for one row at a time, so this follows a chain, not a graph. It is true at
    /// the end of the walk although rows change hands during it: a session on the chain that still
    /// waits cannot have released anything since it was visited, and one that has been granted its
    /// row ends the chain. (One that gives up just now may leave a circle that is no longer: then a
    /// transaction is restarted for nothing.)
    pub(crate) fn closes_a_circle(&self, waiter: &Arc<Signal>, place: Place) -> bool {
        let _one_at_a_time = self.circles.lock();
        // It has every table that anybody waits in.
        let catalog = self.tables.now();
        waiter.set_waiting_for(Some(place));
        let mut row = place;
        for _ in 0..CHAIN_MAX {
            let Some(owner) = catalog.table(row.table).owner(row.id) else {
                return false;
            };
            if Arc::ptr_eq(&owner, waiter) {
                let granted_meanwhile = row == place;
                if !granted_meanwhile {
                    // Before anybody else searches, so that they do not walk round this circle.
                    waiter.set_waiting_for(None);
                }
                return !granted_meanwhile;
            }
            match owner.waiting_for() {
                // It has been granted this row and not woken yet.
                Some(next) if next == row => return false,
                Some(next) => row = next,
                None => return false,
            }
        }
        false
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Gives up locks of `owner`, and wakes those who get them.
pub(crate) fn release(
    catalog: &Catalog,
    held: impl Iterator<Item = Place>,
    owner: &Arc<Signal>,
    outcome: Outcome,
) {
    for place in held {
        if let Some(next) = catalog.table(place.table).release(place.id, owner, outcome) {
            next.ring();
        }
    }
}

/// When a wait of `duration` that starts now is over; `None` is never.
pub(crate) fn deadline(duration: Duration) -> Option<Instant> {
    Instant::now().checked_add(duration)
}
