//! From where something happens to who is told: a bounded queue, rate limits, and one thread.
//!
//! Whoever has something to tell takes one lock for a moment, and never waits for the callback.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::threads::{Left, Threads};
use crate::event::{Event, EventKind};
use crate::sync::{Condvar, Mutex};

/// Who is told.
pub(crate) type Hook = Arc<dyn Fn(&Event) + Send + Sync>;

const STACK: usize = 2 * 1024 * 1024;

/// How long the end waits for a callback that is busy.
const PATIENCE: Duration = Duration::from_secs(1);

const SECOND: Duration = Duration::from_secs(1);

/// The way of the events of one server.
#[derive(Default)]
pub(crate) struct Events {
    hook: Option<Hook>,
    queue: Mutex<Queue>,
    bell: Condvar,
    thread: Arc<Threads>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("hook", &self.hook.is_some())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Event>,
    kinds: [Gauge; EventKind::COUNT],
    /// Events that are owed: some of their kind have been suppressed.
    owed: usize,
    ended: bool,
}

/// How much of a kind there is.
#[derive(Default)]
struct Gauge {
    /// When the second began in which so many were told.
    begun: Option<Instant>,
    told: u32,
    /// The last one of which nothing was told, and how many more there were.
    last: Option<Event>,
}

impl Gauge {
    fn is_over(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now - begun >= SECOND)
    }
}

impl Queue {
    /// Takes an event in, or counts it. True: there is something new to tell.
    fn push(&mut self, kind: EventKind, now: Instant) -> bool {
        let owed_before = self.owed;
        let gauge = &mut self.kinds[kind.index()];
        let mut event = Event {
            kind,
            suppressed: 0,
        };
        if gauge.is_over(now) {
            (gauge.begun, gauge.told) = (Some(now), 0);
        }
        if let Some(last) = gauge.last.take() {
            self.owed -= 1;
            event.suppressed = last.suppressed + 1;
        }
        if gauge.told < Event::PER_SECOND && self.waiting.len() < Event::WAITING {
            gauge.told += 1;
            self.waiting.push_back(event);
            return true;
        }
        gauge.last = Some(event);
        self.owed += 1;
        owed_before == 0
    }

    /// Moves what is owed, and whose second is over, to those that wait.
    fn pay(&mut self, now: Instant, all: bool) {
        for gauge in &mut self.kinds {
            if (all || gauge.is_over(now))
                && let Some(last) = gauge.last.take()
            {
                self.owed -= 1;
                (gauge.begun, gauge.told) = (Some(now), 1);
                self.waiting.push_back(last);
            }
        }
    }
}

impl Events {
    pub(crate) fn new(hook: Option<Hook>) -> Self {
        Self {
            hook,
            ..Self::default()
        }
    }

    /// Starts the thread, if there is somebody to tell. `count_panic`: the callback has panicked.
    pub(crate) fn start(
        self: &Arc<Self>,
        count_panic: impl Fn() + Send + 'static,
    ) -> std::io::Result<()> {
        if self.hook.is_none() {
            return Ok(());
        }
        let this = Arc::clone(self);
        let run = move || this.run(count_panic);
        self.thread.spawn("tgp-event".into(), STACK, run)
    }

    /// Something has happened. Does not wait, and may be called under any lock of the user's.
    pub(crate) fn tell(&self, kind: EventKind) {
        if self.hook.is_none() {
            return;
        }
        let now = Instant::now();
        let news = {
            let mut queue = self.queue.lock();
            !queue.ended && queue.push(kind, now)
        };
        if news {
            self.bell.notify_one();
        }
    }

    /// What has happened is told, and nothing after it. Waits for that, but not for long.
    /// Its thread is returned if it has not ended.
    pub(crate) fn end(&self) -> Vec<Left> {
        self.queue.lock().ended = true;
        self.bell.notify_one();
        self.thread.join_all(Instant::now() + PATIENCE)
    }

    fn run(&self, count_panic: impl Fn()) {
        let Some(hook) = &self.hook else { return };
        while let Some(event) = self.next() {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| hook(&event))) {
                // Its destructor may panic as well.
                std::mem::forget(payload);
                count_panic();
            }
        }
    }

    fn next(&self) -> Option<Event> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(event) = queue.waiting.pop_front() {
                return Some(event);
            }
            let ended = queue.ended;
            if queue.owed > 0 {
                queue.pay(Instant::now(), ended);
                if queue.waiting.is_empty() {
                    self.bell.wait_for(&mut queue, SECOND / 4);
                }
            } else if ended {
                return None;
            } else {
                self.bell.wait(&mut queue);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn capped() -> EventKind {
        EventKind::CapReached { group: None }
    }

    #[test]
    fn so_many_of_a_kind_are_told_in_a_second_and_the_others_are_counted() {
        let mut queue = Queue::default();
        let begun = Instant::now();
        for _ in 0..100 {
            queue.push(capped(), begun);
        }
        // Of another kind nothing is suppressed.
        assert!(queue.push(EventKind::LostEdge, begun));
        assert_eq!(queue.waiting.len(), Event::PER_SECOND as usize + 1);
        queue.waiting.clear();
        queue.pay(begun, false);
        assert!(queue.waiting.is_empty());
        queue.pay(begun + SECOND, false);
        let event = queue.waiting.pop_front().expect("what was owed");
        assert_eq!(event.suppressed, 100 - 1 - u64::from(Event::PER_SECOND));
        assert_eq!(queue.owed, 0);
    }

    #[test]
    fn what_was_suppressed_is_told_with_the_next_of_its_kind() {
        let mut queue = Queue::default();
        let begun = Instant::now();
        for _ in 0..Event::PER_SECOND + 5 {
            queue.push(capped(), begun);
        }
        queue.waiting.clear();
        assert!(queue.push(capped(), begun + SECOND));
        assert_eq!(queue.waiting[0].suppressed, 5);
        assert_eq!(queue.owed, 0);
    }

    #[test]
    fn a_callback_that_is_busy_holds_nobody_up_and_no_more_than_so_many_events() {
        let mut queue = Queue::default();
        let begun = Instant::now();
        for second in 0..100 {
            for _ in 0..Event::PER_SECOND {
                queue.push(capped(), begun + second * SECOND);
            }
        }
        assert_eq!(queue.waiting.len(), Event::WAITING);
        let owed = queue.kinds[capped().index()].last.as_ref();
        let lost = 1000 - Event::WAITING as u64;
        assert_eq!(owed.map(|event| event.suppressed + 1), Some(lost));
    }
}
