//! The workers of a group: where each is, and the counts that follow from it.
//!
//! A worker goes in a circle: *starting* → idle → one of {*running*, *polling*, *parked*} → idle. A
//! running one may be *waiting* in between (a reported wait). Whoever calls a parked worker moves
//! it to *coming* on the spot: the call is a token that a time-out cannot override, and nobody is
//! called twice for one need.

use super::Nanos;

/// A worker's place in the crew; reused after the worker has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WorkerId(u32);

impl WorkerId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// No such worker.
    Free,
    /// Its thread is being created.
    Starting,
    /// Called, and on the way to look.
    Coming,
    /// Has nothing in hand, and is looking at the state right now.
    Idle,
    Polling,
    Parked,
    Running,
    Waiting,
}

#[derive(Clone, Debug)]
struct Worker {
    at: At,
    /// Running or waiting: the command has given up its slot for taking long.
    long: bool,
    /// Running: when the command started, moved forward by the time that it has waited.
    started: Nanos,
    /// Waiting: how long the command had been running.
    ran: Nanos,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Crew {
    workers: Vec<Worker>,
    free: Vec<WorkerId>,
    /// Running and not long: those that hold a slot. At most 1 + oversubscribe, but for those that
    /// came back from a wait.
    active: Vec<WorkerId>,
    /// The last one was parked last and is called first: its cache is warm, and those at the
    /// bottom age out.
    parked: Vec<WorkerId>,
    /// In the poller, or about to be.
    listener: Option<WorkerId>,
    /// The listener has been rung, and is coming.
    listener_called: bool,
    starting_or_coming: usize,
    waiting: usize,
    long: usize,
    threads: usize,
    /// The monitor has been asked for a thread and has not looked yet.
    asked: bool,
    created_at: Nanos,
    retry_at: Nanos,
}

impl Crew {
    fn at(&mut self, worker: WorkerId) -> &mut Worker {
        &mut self.workers[worker.index()]
    }

    // ---- counts ----

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Long and not in a wait.
    pub(super) fn long(&self) -> usize {
        self.long
    }

    pub(super) fn listener(&self) -> Option<WorkerId> {
        self.listener
    }

    /// How many are on the way to look at the state.
    pub(super) fn coming(&self) -> usize {
        self.starting_or_coming + usize::from(self.listener_called)
    }

    /// Whether a command that holds a slot started less than `handover` ago.
    pub(super) fn any_fresh(&self, now: Nanos, handover: Nanos) -> bool {
        self.active
            .iter()
            .any(|w| now.since(self.workers[w.index()].started) < handover)
    }

    pub(super) fn created_at(&self) -> Nanos {
        self.created_at
    }

    pub(super) fn retry_at(&self) -> Nanos {
        self.retry_at
    }

    // ---- a worker's circle ----

    pub(super) fn spawning(&mut self, now: Nanos) -> WorkerId {
        let worker = self.free.pop().unwrap_or_else(|| {
            self.workers.push(Worker {
                at: At::Free,
                long: false,
                started: now,
                ran: Nanos(0),
            });
            WorkerId(
                u32::try_from(self.workers.len() - 1).expect("more workers than threads can exist"),
            )
        });
        self.at(worker).at = At::Starting;
        self.starting_or_coming += 1;
        self.threads += 1;
        self.created_at = now;
        // That was the answer; whoever is missing beside this one is asked for anew.
        self.asked = false;
        worker
    }

    pub(super) fn spawn_failed(&mut self, worker: WorkerId, retry: Nanos) {
        debug_assert_eq!(self.at(worker).at, At::Starting);
        self.starting_or_coming -= 1;
        self.leave(worker);
        self.retry_at = retry;
    }

    /// The worker looks at the state with nothing in hand.
    pub(super) fn arrived(&mut self, worker: WorkerId) {
        match self.at(worker).at {
            At::Starting | At::Coming => self.starting_or_coming -= 1,
            At::Parked => self.parked.retain(|w| *w != worker),
            At::Idle => {}
            at @ (At::Free | At::Polling | At::Running | At::Waiting) => {
                debug_assert!(false, "a worker that is {at:?} asks for work");
            }
        }
        self.at(worker).at = At::Idle;
    }

    pub(super) fn run(&mut self, worker: WorkerId, now: Nanos) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Idle);
        w.at = At::Running;
        w.long = false;
        w.started = now;
        self.active.push(worker);
    }

    /// The command has ended; whether it was long.
    pub(super) fn finish(&mut self, worker: WorkerId) -> bool {
        let Worker { at, long, .. } = *self.at(worker);
        debug_assert_eq!(at, At::Running);
        if long {
            self.long -= 1;
        } else {
            self.active.retain(|w| *w != worker);
        }
        self.at(worker).at = At::Idle;
        long
    }

    pub(super) fn poll(&mut self, worker: WorkerId, block: bool) {
        debug_assert_eq!(self.at(worker).at, At::Idle);
        debug_assert_eq!(self.listener, None);
        self.at(worker).at = At::Polling;
        self.listener = Some(worker);
        // One that only looks is as good as called: it takes next.
        self.listener_called = !block;
    }

    pub(super) fn polled(&mut self, worker: WorkerId) {
        debug_assert_eq!(self.listener, Some(worker));
        self.at(worker).at = At::Idle;
        self.listener = None;
        self.listener_called = false;
    }

    pub(super) fn park(&mut self, worker: WorkerId) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Idle);
        w.at = At::Parked;
        // Whoever burnt CPU for long is owed less of it by the kernel than a fresh thread, so it is
        // called last.
        if std::mem::take(&mut w.long) {
            self.parked.insert(0, worker);
        } else {
            self.parked.push(worker);
        }
    }

    pub(super) fn is_parked(&self, worker: WorkerId) -> bool {
        self.workers[worker.index()].at == At::Parked
    }

    /// A worker that is idle or parked leaves for good.
    pub(super) fn exit(&mut self, worker: WorkerId) {
        self.parked.retain(|w| *w != worker);
        self.leave(worker);
    }

    fn leave(&mut self, worker: WorkerId) {
        self.at(worker).at = At::Free;
        self.free.push(worker);
        self.threads -= 1;
    }

    // ---- inside a command ----

    pub(super) fn wait_begin(&mut self, worker: WorkerId, now: Nanos) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Running);
        w.at = At::Waiting;
        w.ran = now.since(w.started);
        if w.long {
            self.long -= 1;
        } else {
            self.active.retain(|w| *w != worker);
        }
        self.waiting += 1;
    }

    pub(super) fn wait_end(&mut self, worker: WorkerId, now: Nanos) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Waiting);
        w.at = At::Running;
        // The stall bound is on running, not on waiting.
        w.started = now.since(w.ran);
        if w.long {
            self.long += 1;
        } else {
            self.active.push(worker);
        }
        self.waiting -= 1;
    }

    pub(super) fn mark_long(&mut self, worker: WorkerId) {
        let w = self.at(worker);
        if w.long {
            return;
        }
        w.long = true;
        if w.at == At::Running {
            self.active.retain(|w| *w != worker);
            self.long += 1;
        }
    }

    /// Commands that have run for `bound` become long. Returns how many did.
    pub(super) fn mark_stalled(&mut self, now: Nanos, bound: Nanos) -> u64 {
        let stalled: Vec<WorkerId> = self
            .active
            .iter()
            .copied()
            .filter(|w| now.since(self.workers[w.index()].started) >= bound)
            .collect();
        for worker in &stalled {
            self.mark_long(*worker);
        }
        stalled.len() as u64
    }

    // ---- calls ----

    pub(super) fn call_parked(&mut self) -> Option<WorkerId> {
        let worker = self.parked.pop()?;
        self.at(worker).at = At::Coming;
        self.starting_or_coming += 1;
        Some(worker)
    }

    /// Whether the poller is to be rung: somebody is in it and has not been rung yet.
    pub(super) fn call_poller(&mut self) -> bool {
        self.listener.is_some() && !std::mem::replace(&mut self.listener_called, true)
    }

    pub(super) fn call_all(&mut self) -> Vec<WorkerId> {
        std::iter::from_fn(|| self.call_parked()).collect()
    }

    /// Whether the monitor is to be asked for a thread: once for each look that it takes.
    pub(super) fn ask_for_thread(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    pub(super) fn tick_seen(&mut self) {
        self.asked = false;
    }
}

#[cfg(all(test, not(loom)))]
impl Crew {
    pub(super) fn has(&self, worker: usize) -> bool {
        worker < self.workers.len()
    }

    pub(super) fn id(&self, worker: usize) -> WorkerId {
        assert!(self.has(worker));
        WorkerId(u32::try_from(worker).expect("few"))
    }

    /// The counts and lists say the same as the workers themselves.
    pub(super) fn check(&self) {
        let those = |at: &[At]| -> Vec<usize> {
            (0..self.workers.len())
                .filter(|w| at.contains(&self.workers[*w].at))
                .collect()
        };
        let listed = |list: &[WorkerId]| -> Vec<usize> {
            let mut list: Vec<_> = list.iter().map(|w| w.index()).collect();
            list.sort_unstable();
            list
        };
        assert_eq!(self.threads, self.workers.len() - self.free.len());
        assert_eq!(listed(&self.free), those(&[At::Free]));
        assert_eq!(listed(&self.parked), those(&[At::Parked]));
        assert_eq!(listed(self.listener.as_slice()), those(&[At::Polling]));
        assert!(!self.listener_called || self.listener.is_some());
        assert_eq!(
            self.starting_or_coming,
            those(&[At::Starting, At::Coming]).len()
        );
        assert_eq!(self.waiting, those(&[At::Waiting]).len());
        let (long, active): (Vec<_>, Vec<_>) = those(&[At::Running])
            .into_iter()
            .partition(|w| self.workers[*w].long);
        assert_eq!(listed(&self.active), active);
        assert_eq!(self.long, long.len());
    }

    /// What the future of a worker depends on, with an age in place of a time: at what, long, how
    /// old (`oldest` at most), how far from the bottom of the parked ones.
    pub(super) fn code(&self, worker: WorkerId, now: Nanos, oldest: Nanos) -> [u64; 4] {
        let w = &self.workers[worker.index()];
        let age = match w.at {
            At::Running if !w.long => now.since(w.started),
            At::Waiting => w.ran,
            _ => Nanos(0),
        };
        let parked = self.parked.iter().position(|p| *p == worker);
        [
            w.at as u64,
            u64::from(w.long),
            age.min(oldest).0,
            parked.map_or(0, |at| 1 + at as u64),
        ]
    }

    /// The same of the crew as a whole.
    pub(super) fn code_of_all(&self, now: Nanos, oldest: Nanos) -> [u64; 4] {
        [
            u64::from(self.listener_called),
            u64::from(self.asked),
            now.since(self.created_at).min(oldest).0,
            self.retry_at.since(now).0,
        ]
    }
}
