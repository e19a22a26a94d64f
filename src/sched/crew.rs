//! The workers of a group: where each is, and the counts that follow from it.
//!
//! A worker goes in a circle: *starting* → idle → one of {*running*, *polling*, *parked*} → idle. A
//! running one may be *waiting* in between (a reported wait). Whoever calls a parked worker moves
//! it to *coming* on the spot: the call is a token that a time-out cannot override, and nobody is
//! called twice for one need.

use super::table::Key;
use super::{NEVER, Nanos};
use crate::mutant;

/// A worker's place in the crew; reused after the worker has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WorkerId(u32);

impl WorkerId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A worker whose command has run past the stall bound, and when that started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) worker: WorkerId,
    /// Whose command it is.
    pub(crate) conn: Option<Key>,
    pub(crate) started: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
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

/// What a command that runs counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has a slot.
    Slot,
    /// It has given up its slot for taking long.
    Long,
    /// It has given up its slot, for its thread was found blocked though it had not said so.
    Detected,
}

#[derive(Clone, Debug)]
struct Worker {
    at: At,
    /// Running or waiting, and for parking thereafter.
    kind: Kind,
    /// Running or waiting: for which connection; and whether that may have a thread beyond the cap.
    conn: Option<Key>,
    holder: bool,
    /// Running: likely to be long, so it counts as having run for `handover` from the start.
    suspect: bool,
    /// Running or waiting: the handler has said that it is long.
    declared: bool,
    /// Waiting: for which connection, by its id, if it has said so.
    waits_for: Option<u64>,
    /// When it was found blocked.
    detected_at: Nanos,
    /// Running: when the command started, moved forward by the time that it has waited.
    started: Nanos,
    /// Waiting: how long the command had been running.
    ran: Nanos,
    /// Waiting: since when. Starting and coming: when it was called.
    since: Nanos,
}

/// A worker, as [`State::see_crew`](super::State::see_crew) shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenWorker {
    pub(crate) worker: WorkerId,
    pub(crate) at: At,
    /// Running or waiting: what its command counts as, for which connection, and when it started,
    /// moved forward by the time that it has waited.
    pub(crate) kind: Kind,
    pub(crate) conn: Option<Key>,
    pub(crate) started: Nanos,
    /// Waiting: since when, and for which connection, by its id, if it has said so.
    pub(crate) since: Nanos,
    pub(crate) waits_for: Option<u64>,
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
    starting: usize,
    /// Called from where they were parked, and coming.
    woken: usize,
    waiting: usize,
    long: usize,
    detected: usize,
    /// Running or waiting, without the right to a thread beyond the cap.
    ordinary: usize,
    threads: usize,
    /// Of these, beyond the cap.
    excess: usize,
    /// When the command of somebody who holds something was last started.
    held_at: Nanos,
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

    /// Running in a slot, and likely to become long.
    pub(super) fn likely_long(&self) -> usize {
        let suspect = |w: &&WorkerId| self.workers[w.index()].suspect;
        self.active.iter().filter(suspect).count()
    }

    /// Found blocked, though they had not said so.
    pub(super) fn detected(&self) -> usize {
        self.detected
    }

    /// Threads beyond the cap.
    pub(super) fn excess(&self) -> usize {
        self.excess
    }

    pub(super) fn held_at(&self) -> Nanos {
        self.held_at
    }

    /// There is room within the cap: no more than these are beyond it.
    pub(super) fn limit_excess(&mut self, excess: usize) {
        self.excess = self.excess.min(excess);
    }

    /// The cap is lower than the threads that there are: so many more are beyond it, but for two.
    pub(super) fn add_excess(&mut self, more: usize) {
        self.excess = (self.excess + more).min(self.threads.saturating_sub(2));
    }

    /// Whether an ordinary command may start: those that run have threads within the cap.
    pub(super) fn ordinary_allowed(&self) -> bool {
        self.excess == 0 || self.ordinary + self.excess < self.threads
    }

    pub(super) fn listener(&self) -> Option<WorkerId> {
        self.listener
    }

    /// How many are on the way to look at the state.
    pub(super) fn coming(&self) -> usize {
        self.starting + self.woken + usize::from(self.listener_called)
    }

    /// Whether a command that holds a slot, and is likely to be short, started less than `handover`
    /// ago.
    pub(super) fn any_fresh(&self, now: Nanos, handover: Nanos) -> bool {
        self.active.iter().any(|w| {
            let w = &self.workers[w.index()];
            !w.suspect && now.since(w.started) < handover
        })
    }

    /// All but the one in the poller, those that are parked or called from there, and those that
    /// wait: what MariaDB counts as active. One whose thread is being created counts.
    pub(super) fn engaged(&self) -> usize {
        let listening = usize::from(self.listener.is_some());
        self.threads - listening - self.parked.len() - self.woken - self.waiting
    }

    pub(super) fn created_at(&self) -> Nanos {
        self.created_at
    }

    pub(super) fn retry_at(&self) -> Nanos {
        self.retry_at
    }

    // ---- a worker's circle ----

    pub(super) fn spawning(&mut self, now: Nanos, excess: bool) -> WorkerId {
        let worker = self.free.pop().unwrap_or_else(|| {
            self.workers.push(Worker {
                at: At::Free,
                kind: Kind::Slot,
                conn: None,
                holder: false,
                suspect: false,
                declared: false,
                waits_for: None,
                detected_at: now,
                started: now,
                ran: Nanos(0),
                since: now,
            });
            WorkerId(
                u32::try_from(self.workers.len() - 1).expect("more workers than threads can exist"),
            )
        });
        let w = self.at(worker);
        w.at = At::Starting;
        w.since = now;
        // What it is created for, should it fail.
        w.holder = excess;
        self.starting += 1;
        self.threads += 1;
        self.excess += usize::from(excess);
        self.created_at = now;
        // That was the answer; whoever is missing beside this one is asked for anew.
        self.asked = false;
        worker
    }

    /// Returns whether it was to be beyond the cap.
    pub(super) fn spawn_failed(&mut self, worker: WorkerId, retry: Nanos) -> bool {
        debug_assert_eq!(self.at(worker).at, At::Starting);
        let excess = self.at(worker).holder;
        self.starting -= 1;
        self.excess -= usize::from(excess && self.excess > 0);
        self.leave(worker);
        self.retry_at = retry;
        excess
    }

    /// The worker looks at the state with nothing in hand.
    pub(super) fn arrived(&mut self, worker: WorkerId) {
        match self.at(worker).at {
            At::Coming if mutant::is("who_was_called_never_arrives") => {}
            At::Starting => self.starting -= 1,
            At::Coming => self.woken -= 1,
            At::Parked => self.parked.retain(|w| *w != worker),
            At::Idle => {}
            at @ (At::Free | At::Polling | At::Running | At::Waiting) => {
                debug_assert!(false, "a worker that is {at:?} asks for work");
            }
        }
        self.at(worker).at = At::Idle;
    }

    pub(super) fn run(
        &mut self,
        worker: WorkerId,
        conn: Key,
        holder: bool,
        suspect: bool,
        now: Nanos,
    ) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Idle);
        w.at = At::Running;
        w.kind = Kind::Slot;
        w.conn = Some(conn);
        w.holder = holder;
        w.suspect = suspect;
        w.declared = false;
        w.started = now;
        self.active.push(worker);
        self.ordinary += usize::from(!holder);
        if holder {
            self.held_at = now;
        }
    }

    /// The command has ended; whether it was long: for `bound`, as many times over as there were
    /// commands that shared the CPU with it. A short one that had to wait for its turn of the CPU,
    /// behind long ones, is not to be taken for one of them.
    pub(super) fn finish(&mut self, worker: WorkerId, now: Nanos, bound: Nanos) -> bool {
        let sharers = (self.active.len() + self.long) as u64;
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Running);
        w.at = At::Idle;
        w.conn = None;
        let (mut kind, holder) = (w.kind, w.holder);
        let ran = now.since(w.started);
        let long = w.declared || ran.0 >= bound.0.saturating_mul(sharers);
        if mutant::is("a_long_command_ends_as_a_short_one") {
            kind = Kind::Slot;
        }
        self.ordinary -= usize::from(!holder);
        self.uncount(worker, kind);
        long && kind != Kind::Detected
    }

    fn count(&mut self, worker: WorkerId, kind: Kind) {
        match kind {
            Kind::Slot => self.active.push(worker),
            Kind::Long => self.long += 1,
            Kind::Detected => self.detected += 1,
        }
    }

    fn uncount(&mut self, worker: WorkerId, kind: Kind) {
        match kind {
            Kind::Slot => {
                // The one that started last is likely to end first.
                if let Some(at) = self.active.iter().rposition(|w| *w == worker) {
                    self.active.swap_remove(at);
                }
            }
            Kind::Long => self.long -= 1,
            Kind::Detected => self.detected -= 1,
        }
    }

    pub(super) fn poll(&mut self, worker: WorkerId, block: bool) {
        debug_assert_eq!(self.at(worker).at, At::Idle);
        debug_assert_eq!(self.listener, None);
        self.at(worker).at = At::Polling;
        self.listener = Some(worker);
        // One that only looks is as good as called: it takes next.
        self.listener_called = !block;
    }

    /// Whether it had been rung.
    pub(super) fn polled(&mut self, worker: WorkerId) -> bool {
        debug_assert_eq!(self.listener, Some(worker));
        self.at(worker).at = At::Idle;
        self.listener = None;
        let rung = self.listener_called;
        self.listener_called &= mutant::is("a_listener_that_was_rung_never_arrives");
        rung
    }

    pub(super) fn park(&mut self, worker: WorkerId) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Idle);
        w.at = At::Parked;
        // Whoever burnt CPU for long is owed less of it by the kernel than a fresh thread, so it is
        // called last.
        if std::mem::replace(&mut w.kind, Kind::Slot) == Kind::Long {
            self.parked.insert(0, worker);
        } else {
            self.parked.push(worker);
        }
    }

    pub(super) fn is_parked(&self, worker: WorkerId) -> bool {
        self.workers[worker.index()].at == At::Parked
    }

    /// Whether somebody stays if a worker leaves: the last one does not, nor one that is the last but
    /// for threads that are only being created.
    pub(super) fn may_leave(&self) -> bool {
        self.threads > 1 + self.starting + self.woken
    }

    /// A worker that is idle or parked leaves for good.
    pub(super) fn exit(&mut self, worker: WorkerId) {
        self.parked.retain(|w| *w != worker);
        self.leave(worker);
        // Whoever leaves, there is one less beyond the cap.
        self.excess = self.excess.saturating_sub(1);
    }

    fn leave(&mut self, worker: WorkerId) {
        self.at(worker).at = At::Free;
        self.free.push(worker);
        self.threads -= 1;
    }

    // ---- inside a command ----

    pub(super) fn wait_begin(&mut self, worker: WorkerId, holder: Option<u64>, now: Nanos) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Running);
        w.at = At::Waiting;
        w.waits_for = holder;
        w.since = now;
        w.ran = now.since(w.started);
        let kind = w.kind;
        if kind == Kind::Detected {
            w.kind = Kind::Long;
        }
        self.uncount(worker, kind);
        self.waiting += 1;
    }

    pub(super) fn wait_end(&mut self, worker: WorkerId, now: Nanos) {
        let w = self.at(worker);
        debug_assert_eq!(w.at, At::Waiting);
        w.at = At::Running;
        w.waits_for = None;
        // The stall bound is on running, not on waiting.
        w.started = now.since(w.ran);
        let kind = w.kind;
        self.count(worker, kind);
        self.waiting -= 1;
    }

    /// Whose command each worker runs, or waits in.
    pub(super) fn running(&self) -> Vec<(WorkerId, Key)> {
        let ids = (0..).map(WorkerId);
        ids.zip(&self.workers)
            .filter(|(_, w)| matches!(w.at, At::Running | At::Waiting))
            .filter_map(|(id, w)| Some((id, w.conn?)))
            .collect()
    }

    /// The handler has said that its command is long.
    pub(super) fn declare_long(&mut self, worker: WorkerId) {
        self.at(worker).declared = true;
        self.becomes(worker, Kind::Long);
    }

    fn becomes(&mut self, worker: WorkerId, kind: Kind) {
        let w = self.at(worker);
        let before = std::mem::replace(&mut w.kind, kind);
        if w.at == At::Running && before != kind {
            self.uncount(worker, before);
            self.count(worker, kind);
        }
    }

    /// Commands that have run for `bound` become long. Returns how many did.
    pub(super) fn mark_stalled(&mut self, now: Nanos, bound: Nanos) -> usize {
        let stalled: Vec<WorkerId> = self
            .active
            .iter()
            .copied()
            .filter(|w| now.since(self.workers[w.index()].started) >= bound)
            .collect();
        for worker in &stalled {
            self.becomes(*worker, Kind::Long);
        }
        stalled.len()
    }

    /// Commands that have run for `bound`, each with when it started: their threads may be blocked,
    /// or not be blocked any more.
    pub(super) fn suspects(&self, now: Nanos, bound: Nanos) -> Vec<Suspect> {
        let ids = (0..).map(WorkerId);
        ids.zip(&self.workers)
            .filter(|(_, w)| w.at == At::Running && now.since(w.started) >= bound)
            .map(|(worker, w)| Suspect {
                worker,
                conn: w.conn,
                started: w.started,
            })
            .collect()
    }

    /// A suspect's thread has been looked at. Returns for how long it had been known to be blocked,
    /// if that is over, and whether it has just become known.
    pub(super) fn judge(&mut self, suspect: Suspect, blocked: bool, now: Nanos) -> (Nanos, bool) {
        let w = self.at(suspect.worker);
        // It may have ended meanwhile, and another one begun.
        let same = w.started == suspect.started || mutant::is("a_verdict_outlives_its_command");
        if w.at != At::Running || !same {
            return (Nanos(0), false);
        }
        let known = w.kind == Kind::Detected;
        if known == blocked {
            return (Nanos(0), false);
        }
        let since = std::mem::replace(&mut w.detected_at, now);
        self.becomes(
            suspect.worker,
            if blocked { Kind::Detected } else { Kind::Long },
        );
        if known {
            (now.since(since), false)
        } else {
            (Nanos(0), true)
        }
    }

    /// For how long a worker's command has been known to be blocked.
    pub(super) fn blocked_for(&self, worker: WorkerId, now: Nanos) -> Nanos {
        let w = &self.workers[worker.index()];
        match w.kind {
            Kind::Detected if w.at == At::Running => now.since(w.detected_at),
            _ => Nanos(0),
        }
    }

    // ---- calls ----

    pub(super) fn call_parked(&mut self, now: Nanos) -> Option<WorkerId> {
        let worker = self.parked.pop()?;
        let w = self.at(worker);
        w.at = At::Coming;
        w.since = now;
        self.woken += 1;
        Some(worker)
    }

    /// Whether the poller is to be rung: somebody is in it and has not been rung yet.
    pub(super) fn call_poller(&mut self) -> bool {
        self.listener.is_some() && !std::mem::replace(&mut self.listener_called, true)
    }

    pub(super) fn call_all(&mut self) -> Vec<WorkerId> {
        std::iter::from_fn(|| self.call_parked(NEVER)).collect()
    }

    /// Whether the monitor is to be asked for a thread: once for each look that it takes.
    pub(super) fn ask_for_thread(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    pub(super) fn tick_seen(&mut self) {
        self.asked = false;
    }

    // ---- what there is to see ----

    /// When a worker was called, or its thread asked for, if it has come for work and not looked yet.
    pub(super) fn called_at(&self, worker: WorkerId) -> Option<Nanos> {
        let w = &self.workers[worker.index()];
        let comes = matches!(w.at, At::Starting | At::Coming) && w.since != NEVER;
        comes.then_some(w.since)
    }

    /// Workers from this index on, as many as there is room for. Returns where to go on.
    pub(super) fn see(&self, from: usize, into: &mut Vec<SeenWorker>) -> Option<usize> {
        let to = self.workers.len().min(from + into.capacity() - into.len());
        let ids = (0..).map(WorkerId).zip(&self.workers);
        let seen = ids.take(to).skip(from).map(|(worker, w)| SeenWorker {
            worker,
            at: w.at,
            kind: w.kind,
            conn: w.conn,
            started: w.started,
            since: w.since,
            waits_for: w.waits_for,
        });
        into.extend(seen.filter(|w| w.at != At::Free));
        (to < self.workers.len()).then_some(to)
    }
}

#[cfg(all(any(test, feature = "walk"), not(loom)))]
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
        assert_eq!(self.starting, those(&[At::Starting]).len());
        assert_eq!(self.woken, those(&[At::Coming]).len());
        assert_eq!(self.waiting, those(&[At::Waiting]).len());
        let running = |kind| -> Vec<usize> {
            let those = those(&[At::Running]).into_iter();
            those.filter(|w| self.workers[*w].kind == kind).collect()
        };
        assert_eq!(listed(&self.active), running(Kind::Slot));
        assert_eq!(self.long, running(Kind::Long).len());
        assert_eq!(self.detected, running(Kind::Detected).len());
        let busy = those(&[At::Running, At::Waiting]).into_iter();
        let ordinary = busy.filter(|w| !self.workers[*w].holder).count();
        assert_eq!(self.ordinary, ordinary);
        assert!(self.excess <= self.threads);
    }

    /// What the future of a worker depends on, with an age in place of a time: at what, long, how
    /// old (`oldest` at most), how far from the bottom of the parked ones.
    pub(super) fn code(&self, worker: WorkerId, now: Nanos, oldest: Nanos) -> [u64; 5] {
        let w = &self.workers[worker.index()];
        let age = match w.at {
            At::Running => now.since(w.started),
            At::Waiting => w.ran,
            _ => Nanos(0),
        };
        let parked = self.parked.iter().position(|p| *p == worker);
        [
            w.at as u64,
            w.kind as u64,
            u64::from(w.holder) * 4 + u64::from(w.suspect) * 2 + u64::from(w.declared),
            age.min(oldest).0,
            parked.map_or(0, |at| 1 + at as u64),
        ]
    }

    /// The same of the crew as a whole.
    pub(super) fn code_of_all(&self, now: Nanos, oldest: Nanos) -> [u64; 6] {
        [
            u64::from(self.listener_called),
            u64::from(self.asked),
            self.excess as u64,
            now.since(self.created_at).min(oldest).0,
            self.retry_at.since(now).0,
            now.since(self.held_at).min(oldest).0,
        ]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A crew of threads that have come, and have nothing in hand.
    fn crew<const N: usize>() -> (Crew, [WorkerId; N]) {
        let mut crew = Crew::default();
        let workers = [(); N].map(|()| crew.spawning(Nanos(0), false));
        for worker in workers {
            crew.arrived(worker);
        }
        (crew, workers)
    }

    #[test]
    fn who_was_parked_last_is_called_first() {
        let (mut crew, [a, b, c]) = crew();
        for worker in [a, b, c] {
            crew.park(worker);
        }
        let called = [(); 4].map(|()| crew.call_parked(Nanos(1)));
        assert_eq!(called, [Some(c), Some(b), Some(a), None]);
        crew.check();
    }

    #[test]
    fn whose_last_command_was_long_is_called_last() {
        let (mut crew, [a, b, c]) = crew();
        crew.park(a);
        crew.run(b, Key::from_token(0), false, false, Nanos(0));
        crew.declare_long(b);
        crew.finish(b, Nanos(1), NEVER);
        crew.park(b);
        crew.park(c);
        let called = [(); 3].map(|()| crew.call_parked(Nanos(1)));
        assert_eq!(called, [Some(c), Some(a), Some(b)]);
        // Once: it has been called since.
        crew.arrived(a);
        crew.arrived(b);
        crew.park(a);
        crew.park(b);
        assert_eq!(crew.call_parked(Nanos(1)), Some(b));
        crew.check();
    }

    #[test]
    fn the_last_who_is_not_on_the_way_stays() {
        let (mut crew, [a, b]) = crew();
        assert!(crew.may_leave());
        // The other one has been called, and may take a command that blocks at once.
        crew.park(b);
        assert_eq!(crew.call_parked(Nanos(1)), Some(b));
        assert!(!crew.may_leave());
        crew.arrived(b);
        crew.exit(b);
        assert!(!crew.may_leave(), "it is the last");
        // There may be no thread to be had for the other one.
        let other = crew.spawning(Nanos(1), false);
        assert!(!crew.may_leave());
        crew.arrived(other);
        assert!(crew.may_leave());
        crew.exit(a);
        assert!(!crew.may_leave());
        crew.check();
    }
}
