//! Thread-per-connection: the same connections, each on a thread of its own, which goes back to a
//! cache when the connection has ended.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::bed::Bed;
use super::registry::{ConnState, Registry};
use super::threads::Threads;
use crate::config::{Limits, ThreadPerConnectionConfig};
use crate::conn::{ConnId, Desk};
use crate::error::BuildError;
use crate::handler::CloseReason;
use crate::sched::{End, Nanos};
use crate::serve::{Cause, Connection, Place};
use crate::sync::{Condvar, Mutex};
use crate::wait::{self, WaitKind};

/// The names of the watch and of the threads that run connections.
pub(super) const NAMES: [&str; 2] = ["tgp-watch", "tgp-conn"];

const WATCH_STACK: usize = 256 * 1024;

/// The running scheduler.
#[derive(Debug)]
pub(crate) struct ThreadPerConnection {
    settings: Mutex<Settings>,
    threads: Arc<Threads>,
    /// Apart from those that run connections, and that are counted.
    watch_thread: Arc<Threads>,
    registry: Arc<Registry>,
    /// Of a thread that runs connections.
    name: &'static str,
    cache: Mutex<Cache>,
    /// Cached threads sleep here.
    bed: Condvar,
    /// The watch sleeps here.
    watch_bed: Condvar,
}

#[derive(Debug)]
struct Settings {
    config: ThreadPerConnectionConfig,
    idle_timeout: Duration,
    read_timeout: Duration,
}

impl Settings {
    fn new(config: ThreadPerConnectionConfig, limits: &Limits) -> Self {
        Self {
            config,
            idle_timeout: limits.idle_timeout,
            read_timeout: limits.read_timeout,
        }
    }
}

#[derive(Default)]
struct Cache {
    /// Connections that a thread is on its way to, numbered.
    waiting: VecDeque<(u64, Box<dyn Connection>)>,
    next: u64,
    /// Threads without a connection.
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl Cache {
    /// Whether there is no connection.
    fn is_quiet(&self) -> bool {
        self.threads == self.idle && self.waiting.is_empty()
    }
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

/// Counts waits; there is no slot to give up.
struct Counting(Arc<Registry>);

impl wait::Place for Counting {
    fn wait_begin(&self, kind: WaitKind, _: Option<ConnId>) {
        self.0.count_wait(kind);
    }

    fn wait_end(&self, kind: WaitKind, time: Duration) {
        self.0.add_wait_time(kind, time);
    }

    fn declare_long(&self) {}
}

impl ThreadPerConnection {
    pub(crate) fn start(
        config: ThreadPerConnectionConfig,
        limits: &Limits,
        registry: Arc<Registry>,
        [watch_name, name]: [&'static str; 2],
    ) -> Result<Arc<Self>, BuildError> {
        let this = Arc::new(Self {
            settings: Mutex::new(Settings::new(config, limits)),
            threads: Arc::default(),
            watch_thread: Arc::default(),
            registry,
            name,
            cache: Mutex::default(),
            bed: Condvar::default(),
            watch_bed: Condvar::default(),
        });
        let watch = Arc::clone(&this);
        this.watch_thread
            .spawn(watch_name.into(), WATCH_STACK, move || watch.watch())
            .map_err(|source| BuildError::Resources {
                what: "a thread",
                source,
            })?;
        Ok(this)
    }

    /// Gives a connection a thread, a cached one if there is; given back when there is none to be
    /// had.
    pub(crate) fn attach(
        self: &Arc<Self>,
        served: Box<dyn Connection>,
    ) -> Result<(), Box<dyn Connection>> {
        let (max_threads, stack_size) = {
            let settings = self.settings.lock();
            (settings.config.max_threads, settings.config.stack_size)
        };
        let mut cache = self.cache.lock();
        if cache.stopping {
            return Err(served);
        }
        let cached = cache.idle > cache.waiting.len();
        if !cached && cache.threads >= max_threads {
            return Err(served);
        }
        let number = cache.next;
        cache.next += 1;
        if cache.is_quiet() {
            self.watch_bed.notify_one();
        }
        cache.waiting.push_back((number, served));
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
        if spawned.is_ok() {
            return Ok(());
        }
        let mut cache = self.cache.lock();
        cache.threads -= 1;
        // A thread that has become free meanwhile may have taken it, or be about to.
        let Some(at) = cache.waiting.iter().position(|(n, _)| *n == number) else {
            return Ok(());
        };
        if cache.idle >= cache.waiting.len() {
            drop(cache);
            self.bed.notify_one();
            return Ok(());
        }
        match cache.waiting.remove(at) {
            Some((_, served)) => Err(served),
            None => Ok(()),
        }
    }

    /// Starts a thread that waits for a connection.
    pub(crate) fn keep_one_ready(self: &Arc<Self>) -> io::Result<()> {
        let stack_size = self.settings.lock().config.stack_size;
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
        wait::install(Arc::new(Counting(Arc::clone(&self.registry))));
        let mut desk = Desk::default();
        while let Some(served) = self.next() {
            self.serve(served, &mut desk);
        }
    }

    /// The next connection; `None`: the thread is not needed any more, and counted out.
    fn next(&self) -> Option<Box<dyn Connection>> {
        let begun = Instant::now();
        let mut cache = self.cache.lock();
        cache.idle += 1;
        loop {
            if let Some((_, served)) = cache.waiting.pop_front() {
                cache.idle -= 1;
                return Some(served);
            }
            // Anew each time: a change of these wakes all who wait here.
            let (idle_timeout, thread_cache) = {
                let settings = self.settings.lock();
                (settings.config.idle_timeout, settings.config.thread_cache)
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

    /// A connection's life.
    ///
    /// A turn costs what a loop written by hand costs: a blocking `recv` without a time-out, and no
    /// look at the clock. Deadlines are the [`watch`](Self::watch)'s.
    fn serve(&self, mut served: Box<dyn Connection>, desk: &mut Desk) {
        let bed = Bed::new();
        let place: Weak<Bed> = Arc::downgrade(&bed);
        served.conn().shared().place(place);
        served.conn().shared().placed(0);
        let mut cause = Cause {
            now: Some(Nanos(self.registry.now())),
            ..Cause::default()
        };
        loop {
            let turn = served.advance(Place::Thread, cause, desk);
            if turn.end == End::Closed {
                break;
            }
            cause = served.wait(&turn, &bed);
        }
        if served.is_detached() {
            served.run_detached();
        }
        served.conn().give_back(desk);
    }

    /// The life of the thread that closes connections which are silent for too long. It looks at
    /// all of them, some times in a timeout, and not at all while there are none.
    pub(crate) fn watch(&self) {
        let mut cache = self.cache.lock();
        while !cache.stopping {
            if cache.is_quiet() {
                self.watch_bed.wait(&mut cache);
                continue;
            }
            let (idle_timeout, read_timeout) = {
                let settings = self.settings.lock();
                (settings.idle_timeout, settings.read_timeout)
            };
            let period = idle_timeout.min(read_timeout) / 8;
            let period = period.clamp(Duration::from_millis(5), Duration::from_secs(1));
            self.watch_bed.wait_for(&mut cache, period);
            drop(cache);
            self.look(idle_timeout, read_timeout);
            cache = self.cache.lock();
        }
    }

    fn look(&self, idle_timeout: Duration, read_timeout: Duration) {
        let now = self.registry.now();
        // Relaxed, all of it: statistics of the connection's thread, and our own notes beside them.
        // One that is read too early is read again at the next look.
        for shared in self.registry.all() {
            let commands = shared.commands.load(Relaxed);
            if shared.watched.swap(commands, Relaxed) != commands {
                // It has run since the last look: that is when its silence may have begun.
                shared.since.store(now, Relaxed);
                continue;
            }
            let silent = Duration::from_nanos(now.saturating_sub(shared.since.load(Relaxed)));
            match shared.state() {
                ConnState::Idle if silent >= idle_timeout => {
                    shared.end_input(CloseReason::IdleTimeout);
                }
                ConnState::Reading if silent >= read_timeout => {
                    shared.end_input(CloseReason::ReadTimeout);
                }
                _ => {}
            }
        }
    }

    /// Tells connections that are idle between two commands that no more will be read from them.
    /// Called again and again during a drain: each other one is found idle some time.
    pub(crate) fn drain(&self) {
        for shared in self.registry.all() {
            if shared.state() == ConnState::Idle {
                shared.end_input(CloseReason::Draining);
            }
        }
    }

    /// Other limits, from now on.
    pub(crate) fn reconfigure(&self, config: ThreadPerConnectionConfig, limits: &Limits) {
        {
            // Whoever is about to wait has looked at them under this lock.
            let _cache = self.cache.lock();
            *self.settings.lock() = Settings::new(config, limits);
        }
        self.watch_bed.notify_one();
        self.bed.notify_all();
    }

    /// Sends every thread home that has no connection.
    pub(crate) fn stop(&self) {
        let mut cache = self.cache.lock();
        cache.stopping = true;
        let left = std::mem::take(&mut cache.waiting);
        drop(cache);
        self.bed.notify_all();
        self.watch_bed.notify_all();
        for (_, mut served) in left {
            served.abandon(CloseReason::Draining);
        }
    }

    pub(crate) fn join(&self, deadline: Instant) -> usize {
        self.watch_thread.join_all(deadline);
        self.threads.join_all(deadline)
    }

    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }
}
