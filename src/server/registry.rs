//! Who is connected, and everything that is counted: the one place that both schedulers report to.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::config::Limits;
use crate::conn::{ConnId, Shared};
use crate::handler::{CloseReason, Refusal};
use crate::os::bell::Bell;
use crate::os::clock::Clock;
use crate::os::socket::Socket;
use crate::stats::{ConnInfo, Stats, WaitStats};
use crate::stream::Peer;
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

/// The connections that there are, and what of them is limited.
#[derive(Debug, Default)]
struct Live {
    map: HashMap<ConnId, Entry>,
    /// Those that have not logged in, by when their time began.
    logins: BTreeSet<(u64, ConnId)>,
    addresses: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Entry {
    shared: Arc<Shared>,
    /// When its time began, if it has not logged in.
    login: Option<u64>,
}

impl Live {
    fn sessions(&self) -> usize {
        self.map.len() - self.logins.len()
    }

    /// Why there is no room for one more from `peer`, if there is none.
    fn refuses(&self, limits: &Limits, peer: &Peer) -> Option<Refusal> {
        if self.logins.len() >= limits.max_logins {
            let limit = limits.max_logins;
            return Some(Refusal::TooManyLogins { limit });
        }
        let from = address(peer).and_then(|ip| self.addresses.get(&ip));
        let limit = limits.max_per_address;
        (from.is_some_and(|n| *n >= limit)).then_some(Refusal::TooManyFromAddress { limit })
    }

    fn remove(&mut self, id: ConnId) -> Option<Entry> {
        let gone = self.map.remove(&id)?;
        if let Some(began) = gone.login {
            self.logins.remove(&(began, id));
        }
        if let Some(ip) = address(gone.shared.peer())
            && let Some(n) = self.addresses.get_mut(&ip)
        {
            *n -= 1;
            if *n == 0 {
                self.addresses.remove(&ip);
            }
        }
        Some(gone)
    }
}

/// By what a client is known for one of several from the same place.
fn address(peer: &Peer) -> Option<IpAddr> {
    match peer {
        Peer::Tcp(address) => Some(address.ip().to_canonical()),
        Peer::Unix | Peer::Unknown => None,
    }
}

/// How many logins are looked at in one go.
const EXPIRED: usize = 64;

/// All counters are plain statistics: Relaxed, because nothing is concluded from one about another.
#[derive(Debug)]
pub(crate) struct Registry {
    live: Mutex<Live>,
    /// Notified when the last connection has ended.
    empty: Condvar,
    /// Wakes the accept thread; rung for one that was attached and logs in, and for a vacancy.
    bell: Arc<Bell>,
    /// The accept thread has no descriptor, and wants to know when one may have become free; and one has.
    wanting: AtomicBool,
    vacancy: AtomicBool,
    clock: Clock,
    /// The time, in nanoseconds, by which logins are measured: the one that the accept thread has seen
    /// pass. A process that stood still takes no time from anybody's login.
    login_clock: AtomicU64,
    /// Shared by the registries of a server, so that an id names one connection.
    next_id: Arc<AtomicU64>,
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
    /// A server's registry.
    pub(crate) fn new(clock: Clock, bell: Arc<Bell>) -> Self {
        Self::with_ids(clock, bell, Arc::new(AtomicU64::new(1)))
    }

    /// Another one of the same server, for connections that count apart.
    pub(crate) fn beside(&self, bell: Arc<Bell>) -> Self {
        Self::with_ids(self.clock, bell, Arc::clone(&self.next_id))
    }

    fn with_ids(clock: Clock, bell: Arc<Bell>, next_id: Arc<AtomicU64>) -> Self {
        Self {
            live: Mutex::default(),
            empty: Condvar::default(),
            bell,
            wanting: AtomicBool::new(false),
            vacancy: AtomicBool::new(false),
            clock,
            login_clock: AtomicU64::new(0),
            next_id,
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

    /// Why there would be no room for one more now, whoever it is, if there is none.
    pub(crate) fn refuses(&self, limits: &Limits) -> Option<Refusal> {
        self.live.lock().refuses(limits, &Peer::Unknown)
    }

    /// Enters a new connection, if there is room for one; else the socket comes back.
    pub(crate) fn admit(
        &self,
        limits: &Limits,
        socket: Socket,
    ) -> Result<Arc<Shared>, (Socket, Refusal)> {
        let peer = socket.peer();
        let mut live = self.live.lock();
        if let Some(why) = live.refuses(limits, &peer) {
            return Err((socket, why));
        }
        if let Some(ip) = address(&peer) {
            *live.addresses.entry(ip).or_default() += 1;
        }
        let id = self.next_id.fetch_add(1, Relaxed).into();
        let shared = Arc::new(Shared::new(id, socket, peer));
        let began = self.login_clock.load(Relaxed);
        live.logins.insert((began, id));
        let entry = Entry {
            shared: Arc::clone(&shared),
            login: Some(began),
        };
        live.map.insert(id, entry);
        drop(live);
        self.opened.fetch_add(1, Relaxed);
        Ok(shared)
    }

    /// Wakes the accept thread, which looks at the clock while somebody logs in. Called after an admission
    /// by anybody else.
    pub(crate) fn watch_logins(&self) {
        self.bell.ring();
    }

    /// Whether the accept thread is to be woken when a connection ends.
    pub(crate) fn want_vacancy(&self, yes: bool) {
        self.wanting.store(yes, Relaxed);
    }

    /// Whether one has ended since.
    pub(crate) fn take_vacancy(&self) -> bool {
        self.vacancy.swap(false, Relaxed)
    }

    /// Makes a session of a connection, if there are fewer than `limit`.
    pub(crate) fn log_in(&self, id: ConnId, limit: usize) -> Result<(), Refusal> {
        let mut live = self.live.lock();
        let full = live.sessions() >= limit;
        let Some(entry) = live.map.get_mut(&id) else {
            return Ok(());
        };
        let Some(began) = entry.login else {
            return Ok(());
        };
        if full {
            drop(live);
            self.count_refused();
            return Err(Refusal::TooManyConnections { limit });
        }
        entry.login = None;
        live.logins.remove(&(began, id));
        Ok(())
    }

    /// Says how much time has passed for those who log in, and closes some of those whose time is over.
    /// Returns whether anybody is logging in.
    pub(crate) fn pass_login_time(&self, time: Duration, timeout: Duration) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // The accept thread alone changes it.
        let now = self.login_clock.load(Relaxed).saturating_add(nanos(time));
        self.login_clock.store(now, Relaxed);
        let timeout = nanos(timeout);
        let mut over = Vec::new();
        let mut live = self.live.lock();
        while over.len() < EXPIRED
            && let Some(&(began, id)) = live.logins.first()
            && now.saturating_sub(began) >= timeout
        {
            // Looked at once more after the same time, should it still be there.
            live.logins.remove(&(began, id));
            live.logins.insert((now, id));
            if let Some(entry) = live.map.get_mut(&id) {
                entry.login = Some(now);
                over.push(Arc::clone(&entry.shared));
            }
        }
        let any = !live.logins.is_empty();
        drop(live);
        for shared in over {
            // Who has not been opened has waited for us.
            if shared.token().is_some() {
                shared.cancel(CloseReason::LoginTimeout);
            }
        }
        any
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
        let gone = live.remove(id);
        let last = live.map.is_empty();
        drop(live);
        drop(gone);
        // Missed by one that is about to want it, which looks again by itself soon.
        if self.wanting.load(Relaxed) {
            self.vacancy.store(true, Relaxed);
            self.bell.ring();
        }
        if last {
            self.empty.notify_all();
        }
    }

    /// Waits until nobody is connected. False: the time was over first.
    pub(crate) fn wait_empty(&self, deadline: Instant) -> bool {
        let mut live = self.live.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if live.map.is_empty() || left.is_zero() {
                return live.map.is_empty();
            }
            self.empty.wait_for(&mut live, left);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live.lock().map.len()
    }

    pub(crate) fn find(&self, id: ConnId) -> Option<Arc<Shared>> {
        let live = self.live.lock();
        live.map.get(&id).map(|entry| Arc::clone(&entry.shared))
    }

    /// A copy of the list, so that nobody is held up while it is used.
    pub(crate) fn all(&self) -> Vec<Arc<Shared>> {
        let live = self.live.lock();
        let all = live.map.values();
        all.map(|entry| Arc::clone(&entry.shared)).collect()
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
        let live = self.live.lock();
        let commands = |entry: &Entry| entry.shared.commands.load(Relaxed);
        let running: u64 = live.map.values().map(commands).sum();
        let (connections, sessions) = (live.map.len(), live.sessions());
        drop(live);
        Stats {
            closed: closes.iter().map(|(_, n)| n).sum(),
            opened: self.opened.load(Relaxed),
            refused: self.refused.load(Relaxed),
            connections,
            sessions,
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
