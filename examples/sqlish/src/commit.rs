//! Group commit: one thread that flushes what has gathered while it flushed before.
//!
//! A commit hands over its row locks and is gone: from then on it will be done, whatever becomes of
//! the session. The flush itself is a sleep, in place of the `fsync` of an engine that has a disk.
//! The locks are given up after it, by the thread that flushed: nobody is to see, or build on, what
//! is not durable, and whoever waits for them waits for no worker.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thread_group_pool::Resume;

use crate::catalog::Tables;
use crate::engine::{self, Place};
use crate::feed::Feed;
use crate::signal::Signal;
use crate::table::Outcome;

/// A transaction that is to be committed.
pub(crate) struct Commit {
    pub(crate) session: Arc<Signal>,
    pub(crate) held: Vec<Place>,
    /// `None`: the session blocks until its signal says that it is flushed.
    pub(crate) resume: Option<Resume>,
}

/// The flusher. Dropping it flushes what is left.
pub(crate) struct GroupCommit {
    log: Arc<Log>,
    flusher: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Log {
    queue: Mutex<Queue>,
    bell: Condvar,
}

#[derive(Default)]
struct Queue {
    commits: Vec<Commit>,
    closed: bool,
}

impl GroupCommit {
    /// # Errors
    /// If there is no thread to be had.
    pub(crate) fn start(flush: Duration, tables: Arc<Tables>, feed: Arc<Feed>) -> io::Result<Self> {
        let log = Arc::<Log>::default();
        let flusher = thread::Builder::new().name("flusher".to_owned()).spawn({
            let log = Arc::clone(&log);
            move || log.run(flush, &tables, &feed)
        })?;
        Ok(Self {
            log,
            flusher: Some(flusher),
        })
    }

    pub(crate) fn submit(&self, commit: Commit) {
        let mut queue = self.log.queue.lock();
        queue.commits.push(commit);
        let first = queue.commits.len() == 1;
        drop(queue);
        if first {
            self.log.bell.notify_one();
        }
    }
}

impl Log {
    fn run(&self, flush: Duration, tables: &Tables, feed: &Feed) {
        let mut batch = Vec::new();
        while self.next(&mut batch) {
            thread::sleep(flush);
            // It has every table that anybody has a lock in.
            let catalog = tables.now();
            for commit in &mut batch {
                feed.publish(commit.session.id(), &commit.held, &catalog);
                let held = commit.held.drain(..);
                engine::release(&catalog, held, &commit.session, Outcome::Commit);
            }
            for commit in batch.drain(..) {
                commit.session.set_flushed();
                if let Some(resume) = commit.resume {
                    // False: the session has ended meanwhile.
                    resume.resume();
                }
            }
        }
    }

    /// Waits for commits and takes all that there are; false when there will be no more.
    fn next(&self, batch: &mut Vec<Commit>) -> bool {
        let mut queue = self.queue.lock();
        while queue.commits.is_empty() {
            if queue.closed {
                return false;
            }
            self.bell.wait(&mut queue);
        }
        std::mem::swap(batch, &mut queue.commits);
        true
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        self.log.queue.lock().closed = true;
        self.log.bell.notify_one();
        // A resume may be the last to hold a server, and that the engine: then this is the flusher.
        if let Some(flusher) = self.flusher.take()
            && flusher.thread().id() != thread::current().id()
        {
            // It has nothing to say but that it panicked, which it has told already.
            let _ = flusher.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Updated;

    #[test]
    fn the_flusher_ends_with_its_owner_and_leaves_no_commit_undone() {
        let tables = Arc::new(Tables::generate(1, 10));
        let catalog = tables.now();
        let table = catalog.table(0);
        let (session, reader) = (Arc::new(Signal::new(1)), Arc::new(Signal::new(2)));
        let k = |id| table.read(id, &reader).map(|row| row.k);
        let before = [k(1), k(2)];
        let group = GroupCommit::start(
            Duration::from_millis(1),
            Arc::clone(&tables),
            Arc::default(),
        );
        let group = group.expect("a thread is left");
        for id in [1, 2] {
            let updated = table.change(id, &session, true, |row| row.increment_k());
            assert_eq!(updated, Ok(Updated::Done { newly_locked: true }));
            group.submit(Commit {
                session: Arc::clone(&session),
                held: vec![Place { table: 0, id }],
                resume: None,
            });
        }
        drop(group);
        assert_eq!(Arc::strong_count(&tables), 1, "it is still there");
        assert!(table.owner(1).is_none() && table.owner(2).is_none());
        assert_eq!([k(1), k(2)], before.map(|k| k.map(|k| k + 1)));
        assert!(session.take_flushed());
    }
}
