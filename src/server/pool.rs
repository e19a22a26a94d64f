//! The pool: groups over real doors, their workers' threads, and the monitor's.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::abandon;
use super::registry::Registry;
use super::threads::{Left, Threads};
use crate::config::{Limits, Policy, PoolConfig};
use crate::conn::{self, ConnId, Shared};
use crate::error::BuildError;
use crate::event::EventKind;
use crate::group::monitor::{Bell, Monitor, Settings};
use crate::group::worker::BATCH;
use crate::group::{Group, Task};
use crate::handler::CloseReason;
use crate::os::affinity::Cpus;
use crate::os::clock::Clock;
use crate::os::poller::{Poller, Registrar};
use crate::os::thread_state::ThreadId;
use crate::port::{self, Report};
#[cfg(all(unix, feature = "one-shot"))]
use crate::sched::End;
use crate::sched::{Bounds, Key, Nanos, Ticket, Turn, Wake, WorkerId};
use crate::serve::{Budget, Cause, Connection, Place, discard};
use crate::stats::GroupStats;
use crate::sync::Mutex;
use crate::wait::{self, WaitKind};

pub(crate) type PoolGroup = Group<Poller, Box<dyn Connection>>;

impl Task<Registrar> for Box<dyn Connection> {
    type Desk = conn::Desk;

    fn id(&mut self) -> u64 {
        self.conn().id().get()
    }

    fn turn(
        &mut self,
        key: Key,
        wake: Wake,
        now: Nanos,
        registrar: &Registrar,
        desk: &mut conn::Desk,
    ) -> Turn {
        let cause = Cause {
            wake,
            now: Some(now),
        };
        let turn = self.advance(Place::Poller(registrar, key.to_token()), cause, desk);
        #[cfg(all(unix, feature = "one-shot"))]
        if matches!(turn.end, End::Idle { .. }) {
            registrar.turn_ended(self.conn().socket(), key.to_token());
        }
        turn
    }

    fn left(mut self) {
        if !self.is_detached() {
            // The last of its handler may go with it.
            wait::unreported(|| discard(self));
            return;
        }
        let threads = Arc::clone(self.conn().server().threads());
        let id = self.conn().id();
        let cell = Arc::new(Mutex::new(Some(self)));
        let taken = Arc::clone(&cell);
        let there = Arc::clone(&threads);
        let spawned = threads.spawn("tgp-detached".into(), DETACHED_STACK, move || {
            let connection = taken.lock().take();
            if let Some(mut connection) = connection {
                there.serves(id);
                connection.run_detached();
                there.serves_nobody();
            }
        });
        if spawned.is_err()
            && let Some(mut connection) = cell.lock().take()
        {
            wait::unreported(|| {
                connection.abandon(CloseReason::NoThread);
                discard(connection);
            });
        }
    }
}

impl conn::Place for PoolGroup {
    fn kill(&self, token: usize) -> bool {
        Group::kill(self, Key::from_token(token))
    }

    fn poke(&self, token: usize) {
        Group::poke(self, Key::from_token(token));
    }

    fn interrupt(&self, token: usize) {
        Group::interrupt(self, Key::from_token(token));
    }

    fn resume(&self, token: usize, ticket: Ticket, dropped: bool) {
        Group::resume(self, Key::from_token(token), ticket, dropped);
    }

    fn boost(&self, token: usize) {
        Group::boost(self, Key::from_token(token));
    }

    fn unboost(&self, token: usize) {
        Group::unboost(self, Key::from_token(token));
    }
}

/// A worker's place, for its waits.
struct Seat {
    group: Arc<PoolGroup>,
    worker: WorkerId,
    registry: Arc<Registry>,
    /// Whom its command waits for.
    boosted: Mutex<Option<(Arc<dyn conn::Place>, usize)>>,
}

impl wait::Place for Seat {
    fn wait_begin(&self, kind: WaitKind, holder: Option<ConnId>) {
        self.group
            .wait_begin(self.worker, kind, holder.map(ConnId::get));
        // Whoever is waited for may wait itself. Then it has said so, and for whom, here, and that holds for as
        // long as it waits: chains need not be followed.
        let shared = holder.and_then(|id| self.registry.find(id));
        if let Some((place, token)) = shared.and_then(|shared| shared.scheduled()) {
            place.boost(token);
            *self.boosted.lock() = Some((place, token));
        }
    }

    fn wait_end(&self, _: WaitKind, time: Duration) {
        self.group.wait_end(self.worker, Nanos::from_duration(time));
        let boosted = self.boosted.lock().take();
        if let Some((place, token)) = boosted {
            place.unboost(token);
        }
    }

    fn declare_long(&self) {
        self.group.declare_long(self.worker);
    }
}

/// Starts workers' threads.
struct Workers {
    groups: Vec<Arc<PoolGroup>>,
    threads: Arc<Threads>,
    registry: Arc<Registry>,
    cpus: Option<Cpus>,
    stack_size: usize,
    /// Who is which worker, by group.
    ids: Vec<Arc<Mutex<HashMap<usize, ThreadId>>>>,
}

impl port::Threads for Workers {
    type Id = WorkerId;

    fn spawn(&self, index: usize, worker: WorkerId) -> io::Result<()> {
        let group = Arc::clone(&self.groups[index]);
        let registry = Arc::clone(&self.registry);
        let cpus = self.cpus.clone();
        let ids = Arc::clone(&self.ids[index]);
        self.threads
            .spawn(name(index, worker), self.stack_size, move || {
                if let Some(cpus) = cpus {
                    cpus.pin_to(index);
                }
                ids.lock()
                    .insert(worker.index(), ThreadId::of_this_thread());
                wait::install(Arc::new(Seat {
                    group: Arc::clone(&group),
                    worker,
                    registry,
                    boosted: Mutex::default(),
                }));
                group.work(worker);
            })
    }

    fn is_blocked(&self, index: usize, worker: WorkerId) -> bool {
        let id = self.ids[index].lock().get(&worker.index()).copied();
        id.and_then(ThreadId::is_blocked).unwrap_or(false)
    }

    fn report(&self, group: usize, what: Report) {
        let ran = Duration::from_nanos;
        self.registry.tell(match what {
            Report::Stalled { id, time } => EventKind::Stalled {
                group,
                conn: id.map(ConnId::from),
                running: ran(time),
            },
            Report::Detected { id, time } => EventKind::HookForgotten {
                group,
                conn: id.map(ConnId::from),
                running: ran(time),
            },
            Report::Created {
                due_to_stall,
                excess,
            } => EventKind::ThreadCreated {
                group: Some(group),
                due_to_stall,
                over_cap: excess,
            },
            Report::CreationFailed(error) => EventKind::CreationFailed {
                group: Some(group),
                error,
            },
            Report::Capped => EventKind::CapReached { group: Some(group) },
            Report::Overloaded { time, queued } => EventKind::Overloaded {
                group,
                queued,
                oldest: ran(time),
            },
        });
    }
}

const DETACHED_STACK: usize = 2 * 1024 * 1024;
const MONITOR_STACK: usize = 2 * 1024 * 1024;

/// What a worker's thread is called; Linux shows 15 bytes.
fn name(group: usize, worker: WorkerId) -> String {
    format!("tgp-g{group}-w{}", worker.index())
}

/// The time between two looks of the monitor.
fn tick(config: &PoolConfig) -> Duration {
    match config.policy {
        Policy::Conserving => config.handover,
        Policy::Mariadb => config.stall_limit,
    }
}

/// The running pool.
#[derive(Debug)]
pub(crate) struct Pool {
    groups: Vec<Arc<PoolGroup>>,
    bell: Arc<Bell>,
    threads: Arc<Threads>,
    /// The monitor's; apart from those that run connections.
    monitor: Arc<Threads>,
    settings: Arc<Settings>,
    /// Of connections that are opened from now on.
    budget: Mutex<Budget>,
}

impl Pool {
    pub(crate) fn start(
        config: &PoolConfig,
        limits: &Limits,
        registry: &Arc<Registry>,
        clock: &Clock,
    ) -> Result<Self, BuildError> {
        let refused = |what| move |source| BuildError::Resources { what, source };
        let bell = Arc::new(Bell::default());
        let groups = (0..config.groups)
            .map(|_| {
                let poller = Poller::new(BATCH, clock.clone()).map_err(refused("a poller"))?;
                #[cfg(all(unix, feature = "one-shot"))]
                let poller = poller.one_shot(config.one_shot);
                let bounds = Bounds::new(config, limits);
                Ok(Arc::new(Group::new(bounds, poller, Arc::clone(&bell))))
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        let cpus = config.pin_groups.then(Cpus::of_this_thread);
        let threads = Arc::new(Threads::new(cpus.clone()));
        let workers = Workers {
            groups: groups.clone(),
            threads: Arc::clone(&threads),
            registry: Arc::clone(registry),
            cpus,
            stack_size: config.stack_size,
            ids: groups.iter().map(|_| Arc::default()).collect(),
        };
        // Between its ticks MariaDB's policy does nothing, so that they must come in time; ours looks at
        // whatever is due whenever it is rung.
        let aligned = config.policy == Policy::Mariadb;
        let settings = Arc::new(Settings::new(tick(config), aligned, config.max_threads));
        let pool = Self {
            groups,
            bell: Arc::clone(&bell),
            threads,
            monitor: Arc::default(),
            settings: Arc::clone(&settings),
            budget: Mutex::new(Budget::of(config)),
        };
        let started = pool.first_workers(&workers).and_then(|()| {
            pool.monitor
                .spawn("tgp-monitor".into(), MONITOR_STACK, move || {
                    Monitor {
                        groups: &workers.groups,
                        bell: &bell,
                        threads: &workers,
                        settings: &settings,
                    }
                    .run();
                })
        });
        match started {
            Ok(()) => Ok(pool),
            Err(error) => {
                let by = Instant::now() + Duration::from_secs(10);
                pool.stop(by);
                pool.threads.join_all(by);
                Err(refused("a thread")(error))
            }
        }
    }

    /// One worker for each group: its listener.
    fn first_workers(&self, workers: &Workers) -> io::Result<()> {
        for (index, group) in self.groups.iter().enumerate() {
            let worker = group.spawning(false, false);
            if let Err(error) = port::Threads::spawn(workers, index, worker) {
                group.spawn_failed(worker, Nanos::default());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes a connection in; given back when the pool has stopped.
    pub(crate) fn attach(
        &self,
        shared: &Shared,
        served: Box<dyn Connection>,
    ) -> Result<(), Box<dyn Connection>> {
        let group = &self.groups[self.group_of(shared.id())];
        let place: Weak<PoolGroup> = Arc::downgrade(group);
        shared.place(place);
        group.attach(served).map(|_| ())
    }

    /// How much a connection may do in a turn.
    pub(crate) fn budget(&self) -> Budget {
        *self.budget.lock()
    }

    pub(crate) fn drain(&self, spare: bool) {
        for group in &self.groups {
            group.drain(spare);
        }
    }

    /// Ends the monitor, if it can be done by then, and sends every worker home.
    pub(crate) fn stop(&self, by: Instant) -> Vec<Left> {
        self.bell.stop();
        let left = self.monitor.join_all(by);
        for group in &self.groups {
            group.stop();
        }
        left
    }

    /// Closes the connections that no worker came for, on a thread of their own, and joins all
    /// threads. Returns those that had not ended when the time was over.
    pub(crate) fn join(&self, deadline: Instant) -> Vec<Left> {
        self.close_leftovers();
        let left = self.threads.join_all(deadline);
        // Some had their last turn meanwhile, and have come back from it alive.
        if self.close_leftovers() {
            return self.threads.join_all(deadline);
        }
        left
    }

    /// Whether there are any.
    fn close_leftovers(&self) -> bool {
        let left: Vec<_> = self.groups.iter().flat_map(|g| g.leftovers()).collect();
        let any = !left.is_empty();
        abandon(left, CloseReason::Killed, &self.threads);
        any
    }

    /// Whose command each worker runs, by the names of their threads. `all`: the connections.
    pub(crate) fn running(&self, all: &[Arc<Shared>]) -> HashMap<String, ConnId> {
        let ids = self.ids(all);
        let mut running = HashMap::new();
        for (group, g) in self.groups.iter().enumerate() {
            for (worker, key) in g.running() {
                if let Some(id) = ids.get(&(group, key.to_token())) {
                    running.insert(name(group, worker), *id);
                }
            }
        }
        running
    }

    /// Who is who, by group and token.
    fn ids(&self, all: &[Arc<Shared>]) -> HashMap<(usize, usize), ConnId> {
        all.iter()
            .filter_map(|shared| Some(((self.group_of(shared.id()), shared.token()?), shared.id())))
            .collect()
    }

    /// Has the monitor look at every group, and waits until it has: a test has moved the clock.
    #[cfg(feature = "test-util")]
    pub(crate) fn tick_now(&self) {
        for group in &self.groups {
            let begun = group.ticks();
            // One that was under way may have looked at the clock before. Without a monitor nothing is due.
            while group.ticks().wrapping_sub(begun) < 2 && self.monitor.counts().live > 0 {
                self.bell.ring_now();
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    pub(crate) fn stats(&self) -> Vec<GroupStats> {
        self.groups
            .iter()
            .enumerate()
            .map(|(group, g)| GroupStats { group, ..g.stats() })
            .collect()
    }

    /// Other limits, from now on; those that can be changed.
    pub(crate) fn reconfigure(&self, config: &PoolConfig, limits: &Limits) {
        self.settings.set(tick(config), config.max_threads);
        *self.budget.lock() = Budget::of(config);
        for group in &self.groups {
            group.rebound(Bounds::new(config, limits));
        }
        self.bell.ring_now();
    }

    pub(crate) fn groups(&self) -> &[Arc<PoolGroup>] {
        &self.groups
    }

    /// As MariaDB does it. Ids are consecutive, so groups are filled evenly.
    #[allow(clippy::cast_possible_truncation)] // reduced to an index in the same step
    fn group_of(&self, id: ConnId) -> usize {
        id.get() as usize % self.groups.len()
    }
}
