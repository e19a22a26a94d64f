//! Who is connected, and everything that is counted: the one place that both schedulers report to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::budget::HalfCommands;
use super::events::Events;
use super::tally::Tally;
use super::watch::Watch;
use crate::config::Limits;
use crate::conn::{ConnId, Shared};
use crate::event::EventKind;
use crate::handler::{CloseReason, Refusal};
use crate::histogram::SharedHistogram;
use crate::os::bell::Bell;
use crate::os::clock::Clock;
use crate::os::socket::Socket;
use crate::stats::{Activity, Stats};
use crate::stream::{LocalAddr, Peer};
use crate::sync::{Condvar, Mutex};
use crate::wait::WaitKind;

/// What a connection is doing, as [`ConnInfo`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnState {
    New = 0,
    Idle = 1,
    Reading = 2,
    Running = 3,
    Flushing = 4,
    Parked = 5,
    Detached = 6,
    Closing = 7,
}

impl ConnState {
    pub(crate) fn from_u8(state: u8) -> Self {
        match state {
            1 => Self::Idle,
            2 => Self::Reading,
            3 => Self::Running,
            4 => Self::Flushing,
            5 => Self::Parked,
            6 => Self::Detached,
            7 => Self::Closing,
            _ => Self::New,
        }
    }

    /// What to show, unless its scheduler knows better.
    pub(crate) fn activity(self) -> Activity {
        match self {
            Self::New => Activity::New,
            Self::Idle => Activity::Idle,
            Self::Reading => Activity::Reading,
            Self::Running => Activity::Running,
            Self::Flushing => Activity::Flushing,
            Self::Parked => Activity::Parked,
            Self::Detached => Activity::Detached,
            Self::Closing => Activity::Closing,
        }
    }
}

/// The connections that there are, and what of them is limited.
#[derive(Debug, Default)]
struct Live {
    /// By id, so that the list can be walked in pieces.
    map: BTreeMap<ConnId, Arc<Shared>>,
    /// Those that have not logged in, by when their time began.
    logins: BTreeSet<(u64, ConnId)>,
    addresses: HashMap<IpAddr, usize>,
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
        self.too_many_from(address(peer), limits.max_per_address)
    }

    fn too_many_from(&self, address: Option<IpAddr>, limit: usize) -> Option<Refusal> {
        let from = address.and_then(|ip| self.addresses.get(&ip));
        (from.is_some_and(|n| *n >= limit)).then_some(Refusal::TooManyFromAddress { limit })
    }

    fn count(&mut self, address: Option<IpAddr>) {
        if let Some(ip) = address {
            *self.addresses.entry(ip).or_default() += 1;
        }
    }

    fn uncount(&mut self, address: Option<IpAddr>) {
        if let Some(ip) = address
            && let Some(n) = self.addresses.get_mut(&ip)
        {
            *n -= 1;
            if *n == 0 {
                self.addresses.remove(&ip);
            }
        }
    }

    fn remove(&mut self, id: ConnId) -> Option<Arc<Shared>> {
        let gone = self.map.remove(&id)?;
        if let Some(began) = gone.login() {
            self.logins.remove(&(began, id));
        }
        self.uncount(address(&gone.peer()));
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
    /// Notified when the last connection has ended, and when whoever waits for that is to look again.
    empty: Condvar,
    tally: Tally,
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
    refused: AtomicU64,
    panics: AtomicU64,
    lost_edges: AtomicU64,
    accept_errors: AtomicU64,
    /// Those of connections that have ended.
    commands: AtomicU64,
    cancels: Arc<Cancels>,
    half_commands: HalfCommands,
    /// Set once, when the end begins. Relaxed: it only refuses early, and tells handlers. A connection that
    /// misses it is drained by its scheduler, or given back by one that has stopped.
    draining: AtomicBool,
    watch: Watch,
    meters: ThreadMeters,
    events: Arc<Events>,
}

/// What has stopped commands, and what has gone wrong with that.
#[derive(Debug)]
pub(crate) struct Cancels {
    pub(crate) killed: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) hung_up: AtomicU64,
    /// Callbacks that panicked.
    pub(crate) panics: AtomicU64,
    events: Arc<Events>,
}

impl Cancels {
    fn new(events: Arc<Events>) -> Self {
        Self {
            killed: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            hung_up: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            events,
        }
    }

    /// A callback of this connection's has panicked.
    pub(crate) fn panicked(&self, id: ConnId) {
        self.panics.fetch_add(1, Relaxed);
        self.events.tell(EventKind::Panicked { conn: Some(id) });
    }
}

/// What thread-per-connection measures. Statistics, as the counters are.
#[derive(Debug, Default)]
pub(crate) struct ThreadMeters {
    pub(crate) commands: SharedHistogram,
    /// How long it took until a thread had a new connection.
    pub(crate) came: SharedHistogram,
    /// How many waits have begun, and how long those lasted that are over.
    pub(crate) waits_begun: [AtomicU64; WaitKind::COUNTED.len()],
    pub(crate) waits: [SharedHistogram; WaitKind::COUNTED.len()],
}

impl Registry {
    /// A server's registry.
    pub(crate) fn new(clock: Clock, bell: Arc<Bell>, events: Arc<Events>) -> Self {
        Self::with_ids(clock, bell, events, Arc::new(AtomicU64::new(1)))
    }

    /// Another one of the same server, for connections that count apart.
    pub(crate) fn beside(&self, bell: Arc<Bell>) -> Self {
        let (events, next_id) = (Arc::clone(&self.events), Arc::clone(&self.next_id));
        Self::with_ids(self.clock.clone(), bell, events, next_id)
    }

    fn with_ids(
        clock: Clock,
        bell: Arc<Bell>,
        events: Arc<Events>,
        next_id: Arc<AtomicU64>,
    ) -> Self {
        let cancels = Arc::new(Cancels::new(Arc::clone(&events)));
        Self {
            live: Mutex::default(),
            empty: Condvar::default(),
            bell,
            wanting: AtomicBool::new(false),
            vacancy: AtomicBool::new(false),
            tally: Tally::default(),
            clock,
            login_clock: AtomicU64::new(0),
            next_id,
            opened: AtomicU64::new(0),
            closes: Default::default(),
            meters: ThreadMeters::default(),
            events,
            refused: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            lost_edges: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            cancels,
            half_commands: HalfCommands::default(),
            draining: AtomicBool::new(false),
            watch: Watch::default(),
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
        live.count(address(&peer));
        let id = self.next_id.fetch_add(1, Relaxed).into();
        let shared = Arc::new(Shared::new(id, socket, peer, Arc::clone(&self.cancels)));
        let began = self.login_clock.load(Relaxed);
        live.logins.insert((began, id));
        shared.set_login(Some(began));
        let first = live.map.is_empty();
        live.map.insert(id, Arc::clone(&shared));
        drop(live);
        if first {
            self.watch.ring();
        }
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

    /// A connection is another client's than it seemed: it counts for that address, if there is room, and is
    /// known by that name from now on.
    pub(crate) fn recount(
        &self,
        shared: &Shared,
        peer: &Peer,
        limit: usize,
    ) -> Result<(), Refusal> {
        let (from, to) = (address(&shared.peer()), address(peer));
        let mut live = self.live.lock();
        if from != to && live.map.contains_key(&shared.id()) {
            if let Some(why) = live.too_many_from(to, limit) {
                drop(live);
                self.refused(&why);
                return Err(why);
            }
            live.uncount(from);
            live.count(to);
        }
        // Under the lock: it is uncounted under its name.
        shared.set_named(peer.clone());
        Ok(())
    }

    /// Makes a session of a connection, if there are fewer than `limit`.
    pub(crate) fn log_in(&self, id: ConnId, limit: usize) -> Result<(), Refusal> {
        let mut live = self.live.lock();
        let full = live.sessions() >= limit;
        let Some(began) = live.map.get(&id).and_then(|shared| shared.login()) else {
            return Ok(());
        };
        if full {
            drop(live);
            let why = Refusal::TooManyConnections { limit };
            self.refused(&why);
            return Err(why);
        }
        if let Some(shared) = live.map.get(&id) {
            shared.set_login(None);
        }
        live.logins.remove(&(began, id));
        Ok(())
    }

    /// Says how much time has passed for those who log in, and closes some of those whose time is over.
    /// Returns whether anybody is logging in.
    pub(crate) fn pass_login_time(&self, time: Duration, timeout: Duration) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let time = nanos(time);
        // The accept thread alone changes it, and a test.
        let before = self.login_clock.fetch_add(time, Relaxed);
        let now = before.saturating_add(time);
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
            if let Some(shared) = live.map.get(&id) {
                shared.set_login(Some(now));
                over.push(Arc::clone(shared));
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
        let remove = || self.remove(shared.id());
        self.tally.closed(shared, *why, remove);
    }

    fn remove(&self, id: ConnId) {
        let mut live = self.live.lock();
        let gone = live.remove(id);
        if let Some(gone) = &gone {
            self.half_commands.hold(gone, 0);
        }
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

    /// Half a command of a connection takes so much memory. If all of them take more than `budget`, the largest
    /// are closed.
    pub(crate) fn hold_input(&self, shared: &Shared, bytes: usize, budget: usize) {
        if self.half_commands.hold(shared, bytes) > budget {
            for largest in self.half_commands.weed(shared.id(), budget, || self.all()) {
                largest.cancel(CloseReason::InputBudget);
            }
        }
    }

    /// The end of these connections begins.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Whether it is between two commands, as a drain sees it: half a login is nothing that has begun.
    pub(crate) fn is_idle(&self, shared: &Shared) -> bool {
        let logs_in = || {
            let live = self.live.lock();
            live.map.contains_key(&shared.id()) && shared.login().is_some()
        };
        match shared.state() {
            ConnState::Idle => true,
            ConnState::Reading => logs_in(),
            _ => false,
        }
    }

    /// How connections have ended since a drain began.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whoever waits until nobody is connected looks at his deadline again.
    pub(crate) fn look_again(&self) {
        // Whoever has looked under this lock sleeps by now.
        drop(self.live.lock());
        self.empty.notify_all();
    }

    /// Waits until nobody is connected. False: the time was over first.
    pub(crate) fn wait_empty(&self, deadline: impl Fn() -> Instant) -> bool {
        let mut live = self.live.lock();
        loop {
            let left = deadline().saturating_duration_since(Instant::now());
            if live.map.is_empty() || left.is_zero() {
                return live.map.is_empty();
            }
            self.empty.wait_for(&mut live, left);
        }
    }

    /// Where the watch sleeps.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn len(&self) -> usize {
        self.live.lock().map.len()
    }

    pub(crate) fn find(&self, id: ConnId) -> Option<Arc<Shared>> {
        let live = self.live.lock();
        live.map.get(&id).map(Arc::clone)
    }

    /// A copy of the list, by id, so that nobody is held up while it is used; nor while it is made,
    /// which is done a piece at a time. Who comes meanwhile may be missing.
    pub(crate) fn all(&self) -> Vec<Arc<Shared>> {
        let mut all: Vec<Arc<Shared>> = Vec::new();
        let mut last = None;
        while self.add_piece(&mut last, &mut all) {}
        all
    }

    /// Adds the next piece of them to a list: those behind `last`, which becomes the last one of the piece. False:
    /// there are no more behind that.
    pub(crate) fn add_piece(&self, last: &mut Option<ConnId>, to: &mut Vec<Arc<Shared>>) -> bool {
        const PIECE: usize = 256;
        // Before the lock, as it may have to move what there is.
        to.reserve(PIECE);
        let before = to.len();
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let live = self.live.lock();
        to.extend(
            live.map
                .range((after, Bound::Unbounded))
                .take(PIECE)
                .map(|(_, shared)| Arc::clone(shared)),
        );
        drop(live);
        *last = to.last().map(|shared| shared.id());
        to.len() - before == PIECE
    }

    /// Something that the operator may want to know.
    pub(crate) fn tell(&self, kind: EventKind) {
        self.events.tell(kind);
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// As [`count_panic`](Self::count_panic), for a callback of a connection.
    pub(crate) fn count_panic_of(&self, id: ConnId) {
        self.count_panic_silently();
        self.tell(EventKind::Panicked { conn: Some(id) });
    }

    /// That of who is told of the events.
    pub(crate) fn count_panic_silently(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_panic(&self) {
        self.count_panic_silently();
        self.tell(EventKind::Panicked { conn: None });
    }

    pub(crate) fn count_lost_edge(&self) {
        self.lost_edges.fetch_add(1, Relaxed);
        self.tell(EventKind::LostEdge);
    }

    /// A listener has died.
    pub(crate) fn tell_death(&self, at: &LocalAddr, error: &io::Error) {
        self.tell(EventKind::ListenerDied {
            at: at.clone(),
            error: error.kind(),
        });
    }

    /// Counts a client that got no session, and tells of it.
    pub(crate) fn refused(&self, why: &Refusal) {
        self.refused.fetch_add(1, Relaxed);
        self.tell(EventKind::Refused { why: why.clone() });
    }

    pub(crate) fn count_accept_error(&self) {
        self.accept_errors.fetch_add(1, Relaxed);
        self.tell(EventKind::ListenerOut);
    }

    /// What thread-per-connection measures.
    pub(crate) fn meters(&self) -> &ThreadMeters {
        &self.meters
    }

    pub(crate) fn stats(&self) -> Stats {
        let nonzero = |counter: &AtomicU64| Some(counter.load(Relaxed)).filter(|n| *n > 0);
        let closes: Vec<_> = CloseReason::NAMES
            .iter()
            .zip(&self.closes)
            .filter_map(|(name, counter)| Some((*name, nonzero(counter)?)))
            .collect();
        let all = self.all();
        let running: u64 = all.iter().map(|shared| shared.commands.load(Relaxed)).sum();
        let (connections, sessions) = {
            let live = self.live.lock();
            (live.map.len(), live.sessions())
        };
        Stats {
            closed: closes.iter().map(|(_, n)| n).sum(),
            opened: self.opened.load(Relaxed),
            refused: self.refused.load(Relaxed),
            connections,
            sessions,
            commands: self.commands.load(Relaxed) + running,
            panics: self.panics.load(Relaxed) + self.cancels.panics.load(Relaxed),
            commands_killed: self.cancels.killed.load(Relaxed),
            commands_timed_out: self.cancels.timed_out.load(Relaxed),
            commands_hung_up: self.cancels.hung_up.load(Relaxed),
            lost_edges: self.lost_edges.load(Relaxed),
            accept_errors: self.accept_errors.load(Relaxed),
            input_bytes: self.half_commands.bytes(),
            closes,
            ..Stats::default()
        }
    }
}
