//! The commits as they happen, for those who follow them: `SUBSCRIBE`.
//!
//! There is one log of the last [`KEPT`] commits, and whoever follows has its place in it. So a
//! follower that does not keep up costs no memory but its buffers; one whose place has been overwritten
//! has missed something, and is cut off. While nobody follows, a commit costs a load.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thread_group_pool::{Cancelled, Conn};

use crate::catalog::Catalog;
use crate::engine::Place;
use crate::error::SqlError;
use crate::protocol;

/// How many commits a follower may lag behind.
pub(crate) const KEPT: usize = 8192;

/// How much a follower takes from the log in one go, in bytes.
const BATCH: usize = 32 * 1024;

/// How often a follower that waits looks whether the server drains, which calls nobody.
const LOOK: Duration = Duration::from_millis(100);

/// How many rows of a commit are named; of a larger one it is said how many there were.
const NAMED: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Relaxed: a commit that sees too few of them is one that happens at the same time as the
    /// `SUBSCRIBE`, and came before it.
    followers: AtomicUsize,
    log: Mutex<Log>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    /// The number of the first line that is kept.
    first: u64,
    lines: VecDeque<String>,
}

impl Log {
    fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Takes what comes after the place `at`, at most a batch, and moves it on. False: some of it is
    /// not there any more.
    fn take(&self, at: &mut u64, batch: &mut Vec<u8>) -> bool {
        if *at < self.first {
            return false;
        }
        let from = usize::try_from(*at - self.first).unwrap_or(usize::MAX);
        for line in self.lines.range(from.min(self.lines.len())..) {
            if batch.len() >= BATCH {
                break;
            }
            batch.extend_from_slice(line.as_bytes());
            *at += 1;
        }
        true
    }
}

/// What a follower finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Lines,
    Lagging,
    /// It is to end.
    Cancelled,
    /// So is the server.
    Draining,
}

impl Feed {
    /// Whether commits are told of: then their rows have to stay locked until they have been.
    pub(crate) fn is_followed(&self) -> bool {
        // Relaxed: see the field.
        self.followers.load(Relaxed) > 0
    }

    /// A commit of session `id`, which still has these rows locked: so what commits one row after another
    /// is told of in that order.
    pub(crate) fn publish(&self, id: u64, held: &[Place], catalog: &Catalog) {
        if held.is_empty() || !self.is_followed() {
            return;
        }
        let mut rows = String::new();
        for place in held.iter().take(NAMED) {
            // A String takes everything.
            let table = catalog.name_of(place.table).unwrap_or("?");
            let _ = write!(rows, "\t{table}:{}", place.id);
        }
        if held.len() > NAMED {
            let _ = write!(rows, "\t+{}", held.len() - NAMED);
        }
        let mut log = self.log.lock();
        let number = log.end();
        if log.lines.len() >= KEPT {
            log.lines.pop_front();
            log.first += 1;
        }
        log.lines.push_back(format!("ROW\t{number}\t{id}{rows}\n"));
        drop(log);
        self.bell.notify_all();
    }

    /// Sends every commit from now on, until the connection is killed or leaves, or lags, or the server
    /// drains and there are no more.
    pub(crate) fn follow(self: &Arc<Self>, conn: &mut Conn) -> io::Result<()> {
        let mut at = {
            let log = self.log.lock();
            // Relaxed: see the field.
            self.followers.fetch_add(1, Relaxed);
            log.end()
        };
        let _following = Following(self);
        writeln!(conn, "ROW\tsubscribed\t{at}")?;
        conn.flush()?;
        let mut batch = Vec::new();
        loop {
            batch.clear();
            match self.next(&mut at, &mut batch, conn) {
                Found::Lines => {
                    conn.write_all(&batch)?;
                    // Blocks while the client takes nothing, for as long as the write time-out lets it.
                    conn.flush()?;
                }
                Found::Lagging => return protocol::error(conn, &SqlError::Lagging),
                // Its last words are the server's.
                Found::Cancelled if matches!(conn.cancelled(), Some(Cancelled::Closing(_))) => {
                    return Ok(());
                }
                Found::Draining => return Ok(()),
                Found::Cancelled => return protocol::error(conn, &SqlError::Interrupted),
            }
        }
    }

    /// Waits for commits.
    fn next(self: &Arc<Self>, at: &mut u64, batch: &mut Vec<u8>, conn: &Conn) -> Found {
        let feed = Arc::clone(self);
        let _scope = conn.on_cancel(move || {
            // Not between a follower's look and its sleep.
            drop(feed.log.lock());
            feed.bell.notify_all();
        });
        let mut log = self.log.lock();
        let found = loop {
            if conn.is_cancelled() {
                break Found::Cancelled;
            }
            if !log.take(at, batch) {
                break Found::Lagging;
            }
            if !batch.is_empty() {
                break Found::Lines;
            }
            if conn.is_draining() {
                break Found::Draining;
            }
            self.bell.wait_for(&mut log, LOOK);
        };
        // Before the scope ends, which waits for a callback that takes it.
        drop(log);
        found
    }
}

struct Following<'a>(&'a Feed);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        let mut log = self.0.log.lock();
        // Relaxed: see the field.
        if self.0.followers.fetch_sub(1, Relaxed) == 1 {
            // Nobody wants it any more.
            log.first = log.end();
            log.lines = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Tables;

    #[test]
    fn a_commit_is_told_of_to_those_who_follow_and_to_nobody_else() {
        let (feed, catalog) = (Feed::default(), Tables::generate(1, 10).now());
        let place = |id| Place { table: 0, id };
        feed.publish(1, &[place(1)], &catalog);
        assert_eq!(feed.log.lock().end(), 0, "nobody follows");
        feed.followers.fetch_add(1, Relaxed);
        feed.publish(1, &[], &catalog);
        feed.publish(2, &[place(1), place(7)], &catalog);
        let many: Vec<_> = (1..=20).map(place).collect();
        feed.publish(3, &many, &catalog);
        let (mut at, mut batch) = (0, Vec::new());
        assert!(feed.log.lock().take(&mut at, &mut batch));
        let text = String::from_utf8(batch).expect("text");
        assert!(
            text.starts_with("ROW\t0\t2\tsbtest1:1\tsbtest1:7\nROW\t1\t3\t"),
            "{text}"
        );
        assert!(text.ends_with("sbtest1:16\t+4\n"), "{text}");
        assert_eq!(at, 2);
    }

    #[test]
    fn whoever_lags_by_more_than_is_kept_finds_out_and_costs_nothing_meanwhile() {
        let (feed, catalog) = (Feed::default(), Tables::generate(1, 10).now());
        let place = |id| Place { table: 0, id };
        feed.followers.fetch_add(1, Relaxed);
        for _ in 0..KEPT {
            feed.publish(1, &[place(1)], &catalog);
        }
        let mut batch = Vec::new();
        assert!(feed.log.lock().take(&mut 0, &mut batch));
        assert!(batch.len() < BATCH + 100, "a batch at a time");
        feed.publish(1, &[place(1)], &catalog);
        assert_eq!(feed.log.lock().lines.len(), KEPT);
        assert!(!feed.log.lock().take(&mut 0, &mut batch));
        assert!(feed.log.lock().take(&mut 1, &mut batch));
        drop(Following(&feed));
        assert_eq!(feed.log.lock().lines.len(), 0);
        assert_eq!(feed.log.lock().end(), KEPT as u64 + 1, "numbers go on");
    }
}
