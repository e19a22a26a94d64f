//! Every thread that runs connections: named, counted, joined or named at the end.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Instant;

use crate::id::ConnId;
use crate::os::affinity::Cpus;
use crate::sync::{Condvar, Mutex};

/// Starts threads and joins each of them: those that have ended whenever a new one is started, the
/// others at the end.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pen: Mutex<Pen>,
    /// Notified when a thread ends.
    ended: Condvar,
    /// Threads of these are pinned. Each starts without what it has inherited of that: a connection that
    /// detaches has its thread made by a worker.
    pinned: Option<Cpus>,
}

#[derive(Debug, Default)]
struct Pen {
    next: u64,
    running: HashMap<u64, JoinHandle<()>>,
    /// At the very end of their lives: joining them does not wait.
    done: Vec<u64>,
    peak: usize,
    failures: u64,
    /// Whose connection a thread has, where it keeps it for longer than a turn.
    serves: HashMap<ThreadId, ConnId>,
}

/// How many threads there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) live: usize,
    /// At most so far.
    pub(crate) peak: usize,
    pub(crate) created: u64,
    /// Creations that failed.
    pub(crate) failures: u64,
}

/// A thread that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) name: String,
    pub(crate) serves: Option<ConnId>,
}

impl Pen {
    fn take_done(&mut self) -> Vec<JoinHandle<()>> {
        let done = std::mem::take(&mut self.done);
        done.iter()
            .filter_map(|id| self.running.remove(id))
            .collect()
    }

    fn left(&self) -> Vec<Left> {
        let threads = self.running.values().map(JoinHandle::thread);
        threads
            .map(|thread| Left {
                name: thread.name().unwrap_or_default().to_owned(),
                serves: self.serves.get(&thread.id()).copied(),
            })
            .collect()
    }

    fn live(&self) -> usize {
        self.running.len() - self.done.len()
    }
}

impl Threads {
    pub(crate) fn new(pinned: Option<Cpus>) -> Self {
        Self {
            pinned,
            ..Self::default()
        }
    }

    /// Starts a thread. Errors are the operating system's, and counted.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: String,
        stack_size: usize,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        // Held over the creation, so that the thread is known before it can end.
        let mut pen = self.pen.lock();
        let ended = pen.take_done();
        let id = pen.next;
        pen.next += 1;
        let threads = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name(name)
            .stack_size(stack_size)
            .spawn(move || {
                if let Some(cpus) = &threads.pinned {
                    cpus.unpin();
                }
                let _leave = Leave { threads, id };
                run();
            });
        let result = match spawned {
            Ok(handle) => {
                pen.running.insert(id, handle);
                pen.peak = pen.peak.max(pen.live());
                Ok(())
            }
            Err(error) => {
                pen.failures += 1;
                Err(error)
            }
        };
        drop(pen);
        join(ended);
        result
    }

    /// The calling thread runs this connection until [`serves_nobody`](Self::serves_nobody).
    pub(crate) fn serves(&self, id: ConnId) {
        self.pen.lock().serves.insert(thread::current().id(), id);
    }

    pub(crate) fn serves_nobody(&self) {
        self.pen.lock().serves.remove(&thread::current().id());
    }

    /// Waits until all have ended, and joins them. Returns those that had not when the time was over:
    /// they are left to themselves.
    pub(crate) fn join_all(&self, deadline: Instant) -> Vec<Left> {
        let mut pen = self.pen.lock();
        loop {
            let ended = pen.take_done();
            if !ended.is_empty() {
                drop(pen);
                join(ended);
                pen = self.pen.lock();
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if pen.running.is_empty() || left.is_zero() {
                return pen.left();
            }
            self.ended.wait_for(&mut pen, left);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let pen = self.pen.lock();
        Counts {
            live: pen.live(),
            peak: pen.peak,
            created: pen.next - pen.failures,
            failures: pen.failures,
        }
    }
}

fn join(ended: Vec<JoinHandle<()>>) {
    for handle in ended {
        // An error is a panic of our own code, which has been reported by the panic hook.
        let _ = handle.join();
    }
}

/// Says that a thread has ended, by unwinding too.
struct Leave {
    threads: Arc<Threads>,
    id: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.threads.pen.lock().done.push(self.id);
        self.threads.ended.notify_all();
    }
}
