//! Thread-per-connection: the same connections, each on a thread of its own, which goes back to a
//! cache when the connection has ended.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::abandon;
use super::bed::Bed;
use super::registry::Registry;
use super::threads::{Left, Threads};
use crate::config::ThreadPerConnectionConfig;
use crate::conn::{ConnId, Desk, Shared, Waiting};
use crate::event::EventKind;
use crate::handler::CloseReason;
use crate::sched::{End, Nanos, Turn};
use crate::serve::{Cause, Connection, Place, discard};
use crate::stats::Times;
use crate::sync::{Condvar, Mutex};
use crate::wait::{self, WaitKind};

/// The name of the threads that run connections.
pub(super) const NAME: &str = "tgp-conn";

/// The running scheduler.
#[derive(Debug)]
pub(crate) struct ThreadPerConnection {
    config: Mutex<ThreadPerConnectionConfig>,
    threads: Arc<Threads>,
    registry: Arc<Registry>,
    /// Of a thread that runs connections.
    name: &'static str,
    cache: Mutex<Cache>,
    /// Cached threads sleep here.
    bed: Condvar,
}

#[derive(Default)]
struct Cache {
    /// Connections that a thread is on its way to, numbered, and since when.
    waiting: VecDeque<(u64, Box<dyn Connection>, u64)>,
    next: u64,
    /// Threads without a connection.
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("waiting", &self.waiting.len())
            .field("idle", &self.idle)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Counts waits, and shows them; there is no slot to give up.
struct Counting {
    registry: Arc<Registry>,
    /// Whom its thread serves.
    serves: Mutex<Weak<Shared>>,
}

impl Counting {
    fn show(&self, waiting: Option<Waiting>) {
        if let Some(shared) = self.serves.lock().upgrade() {
            shared.set_waiting(waiting);
        }
    }
}

impl wait::Place for Counting {
    fn wait_begin(&self, kind: WaitKind, holder: Option<ConnId>) {
        // Relaxed: a statistic.
        self.registry.meters().waits_begun[kind.index()].fetch_add(1, Relaxed);
        self.show(Some(Waiting {
            kind,
            since: self.registry.now(),
            holder,
        }));
    }

    fn wait_end(&self, kind: WaitKind, time: Duration) {
        self.show(None);
        let meter = &self.registry.meters().waits[kind.index()];
        meter.add(Nanos::from_duration(time).0);
    }

    fn declare_long(&self) {}
}

impl ThreadPerConnection {
    pub(crate) fn new(
        config: ThreadPerConnectionConfig,
        registry: Arc<Registry>,
        name: &'static str,
    ) -> Arc<Self> {
        Arc::new(Self {
            config: Mutex::new(config),
            threads: Arc::default(),
            registry,
            name,
            cache: Mutex::default(),
            bed: Condvar::default(),
        })
    }

    /// Gives a connection a thread, a cached one if there is; given back when there is none to be
    /// had.
    pub(crate) fn attach(
        self: &Arc<Self>,
        served: Box<dyn Connection>,
    ) -> Result<(), Box<dyn Connection>> {
        let (max_threads, stack_size) = {
            let config = self.config.lock();
            (config.max_threads, config.stack_size)
        };
        let mut cache = self.cache.lock();
        if cache.stopping {
            return Err(served);
        }
        let cached = cache.idle > cache.waiting.len();
        if !cached && cache.threads >= max_threads {
            drop(cache);
            self.registry.tell(EventKind::CapReached { group: None });
            return Err(served);
        }
        let number = cache.next;
        cache.next += 1;
        cache
            .waiting
            .push_back((number, served, self.registry.now()));
        if cached {
            drop(cache);
            self.bed.notify_one();
            return Ok(());
        }
        cache.threads += 1;
        drop(cache);
        let this = Arc::clone(self);
        let spawned = self
            .threads
            .spawn(self.name.into(), stack_size, move || this.work());
        let Err(error) = spawned else {
            self.registry.tell(EventKind::ThreadCreated {
                group: None,
                due_to_stall: false,
                over_cap: false,
            });
            return Ok(());
        };
        self.registry.tell(EventKind::CreationFailed {
            group: None,
            error: error.kind(),
        });
        let mut cache = self.cache.lock();
        cache.threads -= 1;
        // A thread that has become free meanwhile may have taken it, or be about to.
        let Some(at) = cache.waiting.iter().position(|(n, ..)| *n == number) else {
            return Ok(());
        };
        if cache.idle >= cache.waiting.len() {
            drop(cache);
            self.bed.notify_one();
            return Ok(());
        }
        match cache.waiting.remove(at) {
            Some((_, served, _)) => Err(served),
            None => Ok(()),
        }
    }

    /// Starts a thread that waits for a connection.
    pub(crate) fn keep_one_ready(self: &Arc<Self>) -> io::Result<()> {
        let stack_size = self.config.lock().stack_size;
        self.cache.lock().threads += 1;
        let this = Arc::clone(self);
        let spawned = self
            .threads
            .spawn(self.name.into(), stack_size, move || this.work());
        if spawned.is_err() {
            self.cache.lock().threads -= 1;
        }
        spawned
    }

    /// A thread's life.
    fn work(&self) {
        let counting = Arc::new(Counting {
            registry: Arc::clone(&self.registry),
            serves: Mutex::default(),
        });
        let place: Arc<dyn wait::Place> = Arc::clone(&counting) as _;
        wait::install(place);
        let mut desk = Desk::default();
        while let Some(mut served) = self.next() {
            *counting.serves.lock() = Arc::downgrade(served.conn().shared());
            if !self.serve(served, &mut desk) {
                return;
            }
        }
    }

    /// The next connection; `None`: the thread is not needed any more, and counted out.
    fn next(&self) -> Option<Box<dyn Connection>> {
        let begun = Instant::now();
        let mut cache = self.cache.lock();
        cache.idle += 1;
        loop {
            if let Some((_, served, since)) = cache.waiting.pop_front() {
                cache.idle -= 1;
                drop(cache);
                let took = self.registry.now().saturating_sub(since);
                self.registry.meters().came.add(took);
                return Some(served);
            }
            // Anew each time: a change of these wakes all who wait here.
            let (idle_timeout, thread_cache) = {
                let config = self.config.lock();
                (config.idle_timeout, config.thread_cache)
            };
            let left = idle_timeout.saturating_sub(begun.elapsed());
            if cache.stopping || cache.idle > thread_cache || left.is_zero() {
                cache.idle -= 1;
                cache.threads -= 1;
                return None;
            }
            self.bed.wait_for(&mut cache, left);
        }
    }

    /// A connection's life. False: the thread has been counted out, and is to end.
    ///
    /// A turn costs what a loop written by hand costs: a blocking `recv` without a time-out, and no
    /// look at the clock, but for one turn in some. Deadlines are the [`watch`](super::watch)'s.
    fn serve(&self, mut served: Box<dyn Connection>, desk: &mut Desk) -> bool {
        let bed = Bed::new();
        self.threads.serves(served.conn().id());
        let place: Weak<Bed> = Arc::downgrade(&bed);
        served.conn().shared().place(place);
        served.conn().shared().receives();
        // The watch will look at it anyway.
        served.conn().shared().watched();
        served.conn().shared().placed(0);
        let mut cause = Cause {
            now: Some(Nanos(self.registry.now())),
            ..Cause::default()
        };
        // Not all from the same turn on: most connections are measured within their first few.
        let mut turns = served.conn().id().get();
        loop {
            turns = turns.wrapping_add(1);
            let turn = if turns.is_multiple_of(Times::SAMPLED) {
                self.measured(served.as_mut(), cause, desk)
            } else {
                served.advance(Place::Thread, cause, desk)
            };
            if turn.end == End::Closed {
                break;
            }
            cause = served.wait(&turn, &bed);
        }
        let detached = served.is_detached();
        if detached {
            // It counts for no cap from here on. Nor does it come back: there may be as many as may be.
            self.cache.lock().threads -= 1;
            served.run_detached();
        }
        self.threads.serves_nobody();
        served.conn().give_back(desk);
        // The last of its handler may go with it.
        discard(served);
        !detached
    }

    /// A turn, and how long its commands took.
    #[cold]
    fn measured(&self, served: &mut dyn Connection, cause: Cause, desk: &mut Desk) -> Turn {
        let begun = self.registry.now();
        let turn = served.advance(Place::Thread, cause, desk);
        if turn.calls > 0 {
            let took = self.registry.now().saturating_sub(begun);
            let commands = &self.registry.meters().commands;
            commands.add(took / u64::from(turn.calls));
        }
        turn
    }

    /// Tells connections that are idle between two commands (`spare`: but not in a transaction) that no
    /// more will be read from them. Called again and again during a drain: each other one is found idle some time.
    pub(crate) fn drain(&self, spare: bool) {
        for shared in self.registry.all() {
            if self.registry.is_idle(&shared) && !(spare && shared.is_in_transaction()) {
                shared.end_input(CloseReason::Draining);
            }
        }
    }

    /// Other limits, from now on.
    pub(crate) fn reconfigure(&self, config: ThreadPerConnectionConfig) {
        {
            // Whoever is about to wait has looked at them under this lock.
            let _cache = self.cache.lock();
            *self.config.lock() = config;
        }
        self.bed.notify_all();
    }

    /// Sends every thread home that has no connection.
    pub(crate) fn stop(&self) {
        let mut cache = self.cache.lock();
        cache.stopping = true;
        let left = std::mem::take(&mut cache.waiting);
        drop(cache);
        self.bed.notify_all();
        let left = left.into_iter().map(|(_, served, _)| served).collect();
        abandon(left, CloseReason::Killed, &self.threads);
    }

    /// Returns the threads that had not ended when the time was over.
    pub(crate) fn join(&self, deadline: Instant) -> Vec<Left> {
        self.threads.join_all(deadline)
    }

    /// Threads without a connection.
    pub(crate) fn cached(&self) -> usize {
        self.cache.lock().idle
    }

    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }
}
