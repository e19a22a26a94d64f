//! Who is connected, and everything that is counted: the one place that both schedulers report to.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::conn::{ConnId, Shared};
use crate::handler::{CloseReason, Refusal};
use crate::os::clock::Clock;
use crate::os::socket::Socket;
use crate::stats::{ConnInfo, Stats, WaitStats};
use crate::sync::{Condvar, Mutex};
use crate::wait::WaitKind;

/// What a connection is doing, as [`ConnInfo`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnState {
    New = 0,
    Idle = 1,
    Reading = 2,
    Running = 3,
    Writing = 4,
    Parked = 5,
    Detached = 6,
}

impl ConnState {
    pub(crate) fn from_u8(state: u8) -> Self {
        match state {
            1 => Self::Idle,
            2 => Self::Reading,
            3 => Self::Running,
            4 => Self::Writing,
            5 => Self::Parked,
            6 => Self::Detached,
            _ => Self::New,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Idle => "idle",
            Self::Reading => "reading",
            Self::Running => "running",
            Self::Writing => "writing",
            Self::Parked => "parked",
            Self::Detached => "detached",
        }
    }
}

/// All counters are plain statistics: Relaxed, because nothing is concluded from one about another.
#[derive(Debug)]
pub(crate) struct Registry {
    live: Mutex<HashMap<ConnId, Arc<Shared>>>,
    /// Notified when the last connection has ended.
    empty: Condvar,
    clock: Clock,
    next_id: AtomicU64,
    opened: AtomicU64,
    closes: [AtomicU64; CloseReason::NAMES.len()],
    /// How many have begun, and for how many nanoseconds those lasted that are over.
    waits: [(AtomicU64, AtomicU64); WaitKind::COUNTED.len()],
    refused: AtomicU64,
    panics: AtomicU64,
    lost_edges: AtomicU64,
    accept_errors: AtomicU64,
    /// Those of connections that have ended.
    commands: AtomicU64,
}

impl Registry {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            live: Mutex::new(HashMap::new()),
            empty: Condvar::default(),
            clock,
            next_id: AtomicU64::new(1),
            opened: AtomicU64::new(0),
            closes: Default::default(),
            waits: Default::default(),
            refused: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            lost_edges: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            commands: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// A moment on the server's clock.
    pub(crate) fn at(&self, moment: Instant) -> u64 {
        self.clock.at(moment)
    }

    /// Enters a new connection, if there is room for one; else the socket comes back.
    pub(crate) fn admit(
        &self,
        limit: usize,
        socket: Socket,
    ) -> Result<Arc<Shared>, (Socket, Refusal)> {
        let peer = socket.peer();
        let mut live = self.live.lock();
        if live.len() >= limit {
            return Err((socket, Refusal::TooManyConnections { limit }));
        }
        let id = self.next_id.fetch_add(1, Relaxed).into();
        let shared = Arc::new(Shared::new(id, socket, peer));
        live.insert(id, Arc::clone(&shared));
        drop(live);
        self.opened.fetch_add(1, Relaxed);
        Ok(shared)
    }

    /// Takes back an admission: the connection was never started.
    pub(crate) fn forget(&self, id: ConnId) {
        self.opened.fetch_sub(1, Relaxed);
        self.remove(id);
    }

    pub(crate) fn closed(&self, shared: &Shared, why: &CloseReason) {
        self.closes[why.index()].fetch_add(1, Relaxed);
        let commands = shared.commands.load(Relaxed);
        self.commands.fetch_add(commands, Relaxed);
        self.remove(shared.id());
    }

    fn remove(&self, id: ConnId) {
        let mut live = self.live.lock();
        let gone = live.remove(&id);
        let last = live.is_empty();
        drop(live);
        drop(gone);
        if last {
            self.empty.notify_all();
        }
    }

    /// Waits until nobody is connected. False: the time was over first.
    pub(crate) fn wait_empty(&self, deadline: Instant) -> bool {
        let mut live = self.live.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if live.is_empty() || left.is_zero() {
                return live.is_empty();
            }
            self.empty.wait_for(&mut live, left);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live.lock().len()
    }

    pub(crate) fn find(&self, id: ConnId) -> Option<Arc<Shared>> {
        self.live.lock().get(&id).cloned()
    }

    /// A copy of the list, so that nobody is held up while it is used.
    pub(crate) fn all(&self) -> Vec<Arc<Shared>> {
        self.live.lock().values().cloned().collect()
    }

    pub(crate) fn infos(&self) -> Vec<ConnInfo> {
        let now = self.now();
        let mut all = self.all();
        all.sort_unstable_by_key(|shared| shared.id());
        all.iter()
            .map(|shared| ConnInfo {
                id: shared.id(),
                peer: shared.peer().to_string(),
                state: shared.state().name(),
                since: Duration::from_nanos(now.saturating_sub(shared.since.load(Relaxed))),
                commands: shared.commands.load(Relaxed),
            })
            .collect()
    }

    pub(crate) fn count_panic(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_lost_edge(&self) {
        self.lost_edges.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_accept_error(&self) {
        self.accept_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_wait(&self, kind: WaitKind) {
        self.waits[kind.index()].0.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_wait_time(&self, kind: WaitKind, time: Duration) {
        let (_, total) = &self.waits[kind.index()];
        total.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let nonzero = |counter: &AtomicU64| Some(counter.load(Relaxed)).filter(|n| *n > 0);
        let closes: Vec<_> = CloseReason::NAMES
            .iter()
            .zip(&self.closes)
            .filter_map(|(name, counter)| Some((*name, nonzero(counter)?)))
            .collect();
        let running: u64 = self
            .live
            .lock()
            .values()
            .map(|shared| shared.commands.load(Relaxed))
            .sum();
        Stats {
            closed: closes.iter().map(|(_, n)| n).sum(),
            opened: self.opened.load(Relaxed),
            refused: self.refused.load(Relaxed),
            connections: self.len(),
            commands: self.commands.load(Relaxed) + running,
            panics: self.panics.load(Relaxed),
            lost_edges: self.lost_edges.load(Relaxed),
            accept_errors: self.accept_errors.load(Relaxed),
            closes,
            waits: WaitKind::COUNTED
                .iter()
                .zip(&self.waits)
                .filter_map(|(kind, (count, total))| {
                    Some(WaitStats {
                        kind: *kind,
                        count: nonzero(count)?,
                        total: Duration::from_nanos(total.load(Relaxed)),
                    })
                })
                .collect(),
            ..Stats::default()
        }
    }
}
