//! A lock of the embedder's, and its models.

use thread_group_pool::wait::{self, WaitKind};

use crate::sync::{Condvar, Mutex};

/// The lock on a row. Without a guard: a transaction holds it, from one command to a later one.
#[derive(Debug)]
pub struct RowLock {
    held: Mutex<bool>,
    freed: Condvar,
}

impl RowLock {
    #[expect(clippy::new_without_default, reason = "a lock is made on purpose")]
    pub fn new() -> Self {
        Self {
            held: Mutex::new(false),
            freed: Condvar::new(),
        }
    }

    /// Waits until nobody holds the row.
    pub fn lock(&self) {
        let mut held = self.held.lock().expect("nothing panics under it");
        if *held {
            held = wait::during(WaitKind::RowLock, move || {
                while *held {
                    held = self.freed.wait(held).expect("nothing panics under it");
                }
                held
            });
        }
        *held = true;
    }

    pub fn unlock(&self) {
        *self.held.lock().expect("nothing panics under it") = false;
        self.freed.notify_one();
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use loom::thread;

    use super::*;

    /// A row, and how many hold it.
    type Row = (RowLock, AtomicU32);

    fn command((lock, holders): &Row) {
        lock.lock();
        assert_eq!(holders.fetch_add(1, Relaxed), 0);
        holders.fetch_sub(1, Relaxed);
        lock.unlock();
    }

    #[test]
    fn commands_hold_a_row_one_after_the_other_and_none_waits_for_ever() {
        loom::model(|| {
            let row: Arc<Row> = Arc::new((RowLock::new(), AtomicU32::new(0)));
            let others = [(); 2].map(|()| {
                let row = Arc::clone(&row);
                thread::spawn(move || command(&row))
            });
            command(&row);
            for other in others {
                other.join().expect("loom stops at the first panic");
            }
        });
    }

    /// Loom looks into a reported wait as if nothing were around it.
    #[test]
    #[should_panic(expected = "a count was lost")]
    fn what_goes_wrong_inside_a_reported_wait_is_found() {
        fn count(counter: &AtomicU32) {
            wait::during(WaitKind::Unknown, || {
                let counted = counter.load(Relaxed);
                counter.store(counted + 1, Relaxed);
            });
        }
        loom::model(|| {
            let counter = Arc::new(AtomicU32::new(0));
            let other = {
                let counter = Arc::clone(&counter);
                thread::spawn(move || count(&counter))
            };
            count(&counter);
            other.join().expect("loom stops at the first panic");
            assert_eq!(counter.load(Relaxed), 2, "a count was lost");
        });
    }
}
