//! Thread-per-connection: the same connections, each on a thread of its own, which goes back to a
//! cache when the connection has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registry::Registry;
use super::threads::Threads;
use crate::config::ThreadPerConnectionConfig;
use crate::conn::{Conn, Desk};
use crate::handler::CloseReason;
use crate::sched::End;
use crate::serve::{Cause, Connection, Place};
use crate::sync::{Condvar, Mutex};
use crate::wait::{self, WaitKind};

/// A silent client's first stretch is waited for in `recv` itself, which costs nothing beyond the
/// call; only then is a `poll` worth its price.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(200);

/// The running scheduler.
#[derive(Debug)]
pub(crate) struct ThreadPerConnection {
    config: ThreadPerConnectionConfig,
    threads: Arc<Threads>,
    registry: Arc<Registry>,
    cache: Mutex<Cache>,
    /// Cached threads sleep here.
    bed: Condvar,
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
    fn wait_begin(&self, kind: WaitKind) {
        self.0.count_wait(kind);
    }

    fn wait_end(&self) {}

    fn declare_long(&self) {}
}

impl ThreadPerConnection {
    pub(crate) fn new(config: ThreadPerConnectionConfig, registry: Arc<Registry>) -> Self {
        Self {
            config,
            threads: Arc::default(),
            registry,
            cache: Mutex::default(),
            bed: Condvar::default(),
        }
    }

    /// Gives a connection a thread, a cached one if there is; given back when there is none to be
    /// had.
    pub(crate) fn attach(
        self: &Arc<Self>,
        served: Box<dyn Connection>,
    ) -> Result<(), Box<dyn Connection>> {
        let mut cache = self.cache.lock();
        if cache.stopping {
            return Err(served);
        }
        let cached = cache.idle > cache.waiting.len();
        if !cached && cache.threads >= self.config.max_threads {
            return Err(served);
        }
        let number = cache.next;
        cache.next += 1;
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
            .spawn("tgp-conn".into(), self.config.stack_size, move || {
                this.work()
            });
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
            let left = self.config.idle_timeout.saturating_sub(begun.elapsed());
            if cache.stopping || cache.idle > self.config.thread_cache || left.is_zero() {
                cache.idle -= 1;
                cache.threads -= 1;
                return None;
            }
            self.bed.wait_for(&mut cache, left);
        }
    }

    /// A connection's life.
    fn serve(&self, mut served: Box<dyn Connection>, desk: &mut Desk) {
        let conn: &mut Conn = served.conn();
        conn.borrow(desk);
        if let Err(error) = conn.socket().set_read_timeout(RECEIVE_TIMEOUT) {
            return served.abandon(CloseReason::Io(error.kind()));
        }
        let mut cause = Cause::default();
        loop {
            cause.now = self.registry.now();
            let turn = served.advance(Place::Thread, cause);
            self.registry.count_commands(u64::from(turn.calls));
            if turn.end == End::Closed {
                break;
            }
            cause = served.wait(turn.end);
        }
        served.conn().give_back(desk);
    }

    /// Tells connections that are idle between two commands that no more will be read from them.
    /// Called again and again during a drain: each other one is found idle some time.
    pub(crate) fn drain(&self) {
        for shared in self.registry.all() {
            if shared.is_idle() {
                shared.end_input();
            }
        }
    }

    /// Sends every thread home that has no connection.
    pub(crate) fn stop(&self) {
        let mut cache = self.cache.lock();
        cache.stopping = true;
        let left = std::mem::take(&mut cache.waiting);
        drop(cache);
        self.bed.notify_all();
        for (_, mut served) in left {
            served.abandon(CloseReason::Draining);
        }
    }

    pub(crate) fn join(&self, deadline: Instant) -> usize {
        self.threads.join_all(deadline)
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }
}
