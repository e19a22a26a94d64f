//! The pool: groups over real doors, their workers' threads, and the monitor's.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::registry::Registry;
use super::threads::Threads;
use crate::config::{Limits, PoolConfig};
use crate::conn::{self, Shared};
use crate::error::BuildError;
use crate::group::monitor::{Bell, Monitor};
use crate::group::worker::BATCH;
use crate::group::{Group, Task};
use crate::handler::CloseReason;
use crate::os::affinity::Cpus;
use crate::os::clock::Clock;
use crate::os::poller::{Poller, Registrar};
use crate::port;
use crate::sched::{Bounds, Key, Nanos, Turn, Wake, WorkerId};
use crate::serve::{Budget, Cause, Connection, Place};
use crate::stats::GroupStats;
use crate::sync::Mutex;
use crate::wait::{self, WaitKind};

pub(crate) type PoolGroup = Group<Poller, Box<dyn Connection>>;

impl Task<Registrar> for Box<dyn Connection> {
    type Desk = conn::Desk;

    fn turn(
        &mut self,
        key: Key,
        wake: Wake,
        now: Nanos,
        registrar: &Registrar,
        desk: &mut conn::Desk,
    ) -> Turn {
        self.conn().borrow(desk);
        let cause = Cause {
            ready: wake.ready,
            close: wake.close,
            look: wake.look,
            now: Some(now.0),
        };
        let turn = self.advance(Place::Poller(registrar, key.to_token()), cause);
        self.conn().give_back(desk);
        turn
    }
}

impl conn::Place for PoolGroup {
    fn kill(&self, token: usize) -> bool {
        Group::kill(self, Key::from_token(token))
    }
}

/// A worker's place, for its waits.
struct Seat {
    group: Arc<PoolGroup>,
    worker: WorkerId,
    registry: Arc<Registry>,
}

impl wait::Place for Seat {
    fn wait_begin(&self, kind: WaitKind) {
        self.registry.count_wait(kind);
        self.group.wait_begin(self.worker);
    }

    fn wait_end(&self) {
        self.group.wait_end(self.worker);
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
}

impl port::Threads for Workers {
    type Id = WorkerId;

    fn spawn(&self, index: usize, worker: WorkerId) -> io::Result<()> {
        let group = Arc::clone(&self.groups[index]);
        let registry = Arc::clone(&self.registry);
        let cpus = self.cpus.clone();
        // Linux shows 15 bytes.
        let name = format!("tgp-g{index}-w{}", worker.index());
        self.threads.spawn(name, self.stack_size, move || {
            if let Some(cpus) = cpus {
                cpus.pin_to(index);
            }
            wait::install(Arc::new(Seat {
                group: Arc::clone(&group),
                worker,
                registry,
            }));
            group.work(worker);
        })
    }
}

const CLOSE_STACK: usize = 2 * 1024 * 1024;

/// The running pool.
#[derive(Debug)]
pub(crate) struct Pool {
    groups: Vec<Arc<PoolGroup>>,
    bell: Arc<Bell>,
    threads: Arc<Threads>,
    monitor: Mutex<Option<JoinHandle<()>>>,
    budget: Budget,
}

impl Pool {
    pub(crate) fn start(
        config: &PoolConfig,
        limits: &Limits,
        registry: &Arc<Registry>,
        clock: Clock,
    ) -> Result<Self, BuildError> {
        let refused = |what| move |source| BuildError::Resources { what, source };
        let bell = Arc::new(Bell::default());
        let groups = (0..config.groups)
            .map(|_| {
                let poller = Poller::new(BATCH, clock).map_err(refused("a poller"))?;
                let bounds = Bounds::new(config, limits);
                Ok(Arc::new(Group::new(bounds, poller, Arc::clone(&bell))))
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        let threads = Arc::new(Threads::default());
        let workers = Workers {
            groups: groups.clone(),
            threads: Arc::clone(&threads),
            registry: Arc::clone(registry),
            cpus: config.pin_groups.then(Cpus::of_this_thread),
            stack_size: config.stack_size,
        };
        let pool = Self {
            groups,
            bell: Arc::clone(&bell),
            threads,
            monitor: Mutex::new(None),
            budget: Budget::of(config),
        };
        let started = pool.first_workers(&workers).and_then(|()| {
            let (max_threads, tick) = (config.max_threads, config.handover);
            std::thread::Builder::new()
                .name("tgp-monitor".into())
                .spawn(move || {
                    Monitor {
                        groups: &workers.groups,
                        bell: &bell,
                        threads: &workers,
                        tick,
                        max_threads,
                    }
                    .run();
                })
        });
        match started {
            Ok(monitor) => {
                *pool.monitor.lock() = Some(monitor);
                Ok(pool)
            }
            Err(error) => {
                pool.stop();
                pool.threads
                    .join_all(Instant::now() + Duration::from_secs(10));
                Err(refused("a thread")(error))
            }
        }
    }

    /// One worker for each group: its listener.
    fn first_workers(&self, workers: &Workers) -> io::Result<()> {
        for (index, group) in self.groups.iter().enumerate() {
            let worker = group.spawning(false);
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
        // As MariaDB does it. Ids are consecutive, so groups are filled evenly.
        #[allow(clippy::cast_possible_truncation)] // reduced to an index in the same step
        let group = &self.groups[shared.id().get() as usize % self.groups.len()];
        let place: Weak<PoolGroup> = Arc::downgrade(group);
        shared.place(place);
        group.attach(served).map(|_| ())
    }

    /// How much a connection may do in a turn.
    pub(crate) fn budget(&self) -> Budget {
        self.budget
    }

    pub(crate) fn drain(&self) {
        for group in &self.groups {
            group.drain();
        }
    }

    /// Sends every worker home and ends the monitor.
    pub(crate) fn stop(&self) {
        self.bell.stop();
        if let Some(monitor) = self.monitor.lock().take() {
            // An error is a panic of ours, which the panic hook has reported.
            let _ = monitor.join();
        }
        for group in &self.groups {
            group.stop();
        }
    }

    /// Closes the connections that no worker came for, on a thread of their own, and joins all
    /// threads. Returns how many had not ended when the time was over.
    pub(crate) fn join(&self, deadline: Instant) -> usize {
        let left: Vec<_> = self.groups.iter().flat_map(|g| g.leftovers()).collect();
        if !left.is_empty() {
            let close = move || {
                for mut served in left {
                    served.abandon(CloseReason::Killed);
                }
            };
            // Without a thread they are dropped: their sockets close, and nobody is told.
            let _ = self.threads.spawn("tgp-close".into(), CLOSE_STACK, close);
        }
        self.threads.join_all(deadline)
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }

    pub(crate) fn stats(&self) -> Vec<GroupStats> {
        self.groups
            .iter()
            .enumerate()
            .map(|(group, g)| GroupStats { group, ..g.stats() })
            .collect()
    }
}
