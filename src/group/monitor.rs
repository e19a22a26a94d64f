//! The monitor: one thread for all groups, which watches what only time can change.
//!
//! It ticks while some group has queued work or nobody in its poller, lingers for a few quiet ticks
//! (else every lone command would have to wake it), and then sleeps until it is rung or a deadline
//! comes. An idle server has no wake-ups at all. It also creates all threads after start: so a wait
//! hook never creates one under a user's lock, affinity is not inherited from a pinned worker, and
//! there is one place that retries.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::{Group, Guarded, Task};
use crate::mutant;
use crate::port::{Doors, Report, Threads};
use crate::sched::{Call, Nanos, Suspect, WorkerId};
use crate::sync::{AtomicBool, Condvar, Mutex};

/// Quiet ticks before the monitor sleeps; under the model checker one stands for all.
pub(crate) const LINGER: u32 = if cfg!(all(test, loom)) { 1 } else { 10 };

/// Looks without finding anything, after which they come half as often.
const CALM: u32 = 8;

/// After a thread creation failed, the next one is tried so much later.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// How the groups reach the monitor.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// The monitor is about to sleep, or sleeps. Relaxed, because the edge that matters is that of
    /// the group's lock: the monitor sets this and then locks each group once more. Whoever needs
    /// ticks and changed the group before that is seen there; whoever changed it after has the
    /// monitor's unlock before its own lock, and with it this store.
    asleep: AtomicBool,
    rung: Mutex<Rung>,
    bed: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    rung: bool,
    stopped: bool,
}

impl Bell {
    /// There is something to watch. Costs a load while the monitor ticks.
    pub(crate) fn ring(&self) {
        if self.asleep.load(Relaxed) {
            self.ring_now();
        }
    }

    /// There is something to do that does not wait for the next tick: a thread is wanted.
    pub(crate) fn ring_now(&self) {
        self.rung.lock().rung = true;
        self.bed.notify_one();
    }

    /// Ends the monitor.
    pub(crate) fn stop(&self) {
        self.rung.lock().stopped = true;
        self.bed.notify_one();
    }

    /// Sleeps until rung, or for `time`. False: the monitor is to end.
    fn sleep(&self, time: Option<Duration>) -> bool {
        let mut rung = self.rung.lock();
        if !rung.rung && !rung.stopped {
            // A spurious wake-up costs a tick and nothing else.
            match time {
                Some(time) => self.bed.wait_for(&mut rung, time),
                None => self.bed.wait(&mut rung),
            }
        }
        rung.rung = false;
        !rung.stopped
    }
}

/// The monitor's work over its groups.
#[derive(Debug)]
pub(crate) struct Monitor<'a, D, T, S> {
    pub(crate) groups: &'a [std::sync::Arc<Group<D, T>>],
    pub(crate) bell: &'a Bell,
    pub(crate) threads: &'a S,
    pub(crate) settings: &'a Settings,
}

/// What it keeps to; the numbers may change while it runs.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Time between two ticks, in nanoseconds. Relaxed: a number by itself, read anew at each tick.
    tick: AtomicU64,
    /// Whether ticks are at multiples of that, and a ring in between puts none off.
    aligned: bool,
    /// Threads of all groups together. Relaxed, as `tick`.
    max_threads: AtomicUsize,
}

impl Settings {
    pub(crate) fn new(tick: Duration, aligned: bool, max_threads: usize) -> Self {
        let this = Self {
            tick: AtomicU64::new(0),
            aligned,
            max_threads: AtomicUsize::new(0),
        };
        this.set(tick, max_threads);
        this
    }

    pub(crate) fn set(&self, tick: Duration, max_threads: usize) {
        let tick = Nanos::from_duration(tick).0;
        // Relaxed: see the fields.
        self.tick.store(tick, Relaxed);
        self.max_threads.store(max_threads, Relaxed);
    }
}

impl<D, T, S> Monitor<'_, D, T, S>
where
    D: Doors,
    T: Task<D::Interest>,
    S: Threads<Id = WorkerId>,
{
    /// The monitor's life, on its own thread.
    pub(crate) fn run(&self) {
        let (mut quiet, mut calm) = (0, 0);
        let mut ticks = Vec::with_capacity(self.groups.len());
        loop {
            let seen = self.tick(&mut ticks);
            quiet = if seen.again { 0 } else { quiet + 1 };
            calm = if seen.found { 0 } else { calm + 1 };
            let awake = if quiet < LINGER {
                self.bell.sleep(Some(self.until_tick(calm)))
            } else {
                quiet = 0;
                self.sleep_until_rung(&mut ticks)
            };
            if !awake {
                return;
            }
        }
    }

    /// While ticks find nothing they come less often, down to a quarter: all that they watch for then
    /// is the first long command after many short ones. (One that is likely to be long hands over by
    /// itself.) Each tick takes the CPU from somebody; one each millisecond cost short commands 2 to 3 %
    /// of their throughput.
    fn until_tick(&self, calm: u32) -> Duration {
        // Relaxed: see the field.
        let tick = self.settings.tick.load(Relaxed);
        Duration::from_nanos(if self.settings.aligned {
            tick - self.groups.first().map_or(0, |group| group.now().0 % tick)
        } else {
            // The tick after a ring is to find what rang a whole tick old.
            tick << (calm / CALM).min(2)
        })
    }

    /// Sleeps until somebody rings or a deadline comes; see [`Bell::asleep`] for why nobody's need
    /// is lost in between.
    fn sleep_until_rung(&self, ticks: &mut Vec<Tick>) -> bool {
        self.bell.asleep.store(true, Relaxed);
        let awake = if !mutant::is("the_monitor_does_not_look_again") && self.tick(ticks).again {
            self.bell.sleep(Some(self.until_tick(0)))
        } else {
            let now = self.groups.first().map_or(Nanos(0), |g| g.now());
            let due = self
                .groups
                .iter()
                .filter_map(|g| g.next_deadline(now))
                .min();
            self.bell.sleep(due.map(|due| due.since(now).to_duration()))
        };
        self.bell.asleep.store(false, Relaxed);
        awake
    }

    /// One look at every group. What is found is put together in `ticks`, whose memory is used again: while
    /// a server is busy there is a look in every few milliseconds.
    pub(crate) fn tick(&self, ticks: &mut Vec<Tick>) -> Seen {
        ticks.clear();
        ticks.extend(self.groups.iter().map(|g| g.tick()));
        let mut total: usize = ticks.iter().map(|t| t.threads).sum();
        let max_threads = self.settings.max_threads.load(Relaxed);
        self.share_out_excess(total, max_threads, ticks);
        // Two threads are kept back for every group that has fewer: one group's waits must not
        // leave another without a listener.
        let mut reserved: usize = ticks.iter().map(|t| 2usize.saturating_sub(t.threads)).sum();
        let (mut again, mut found) = (false, false);
        for (index, tick) in ticks.iter().enumerate() {
            again |= tick.again;
            found |= tick.spawn || tick.called || !tick.suspects.is_empty();
            for report in &tick.reports {
                self.threads.report(index, *report);
            }
            self.look_at(index, &tick.suspects);
            if !(tick.spawn || tick.spare) {
                continue;
            }
            again = true;
            let kept = usize::from(tick.threads < 2);
            if total + reserved - kept < max_threads {
                reserved -= kept;
                total += 1;
                self.spawn(index, tick.due_to_stall, false);
            } else if tick.spare {
                // Nobody is missing.
            } else if self.groups[index].capped() && !mutant::is("a_holder_keeps_to_the_cap") {
                total += 1;
                self.spawn(index, tick.due_to_stall, true);
            } else {
                self.threads.report(index, Report::Capped);
            }
        }
        Seen { again, found }
    }

    /// Threads beyond the cap are those of all groups together: when one leaves within the cap, there
    /// is one less beyond it elsewhere.
    fn share_out_excess(&self, total: usize, max_threads: usize, ticks: &[Tick]) {
        let mut excess = total.saturating_sub(max_threads);
        for (group, tick) in self.groups.iter().zip(ticks) {
            if tick.excess > excess {
                group.limit_excess(excess);
            }
            excess -= tick.excess.min(excess);
        }
        // More than the groups know of: the cap has been lowered. Each keeps two.
        for (group, tick) in self.groups.iter().zip(ticks) {
            let more = tick.threads.saturating_sub(2 + tick.excess).min(excess);
            if more > 0 {
                group.add_excess(more);
                excess -= more;
            }
        }
    }

    /// Looks which commands past the stall bound burn a CPU, and which are blocked without having
    /// said so.
    fn look_at(&self, index: usize, suspects: &[Suspect]) {
        for suspect in suspects {
            let blocked = self.threads.is_blocked(index, suspect.worker);
            if let Some(report) = self.groups[index].judge(*suspect, blocked) {
                self.threads.report(index, report);
            }
        }
    }

    fn spawn(&self, index: usize, due_to_stall: bool, excess: bool) {
        let group = &self.groups[index];
        let worker = group.spawning(due_to_stall, excess);
        let report = match self.threads.spawn(index, worker) {
            Ok(()) => Report::Created {
                due_to_stall,
                excess,
            },
            Err(error) => {
                if !mutant::is("a_failed_thread_stays_counted") {
                    let retry = group.now().after(Nanos::from_duration(RETRY));
                    group.spawn_failed(worker, retry);
                }
                Report::CreationFailed(error.kind())
            }
        };
        self.threads.report(index, report);
    }
}

/// What a look at every group found.
pub(crate) struct Seen {
    /// Some group wants another one soon.
    pub(crate) again: bool,
    /// There was something to be done.
    found: bool,
}

/// What a look at one group found.
pub(crate) struct Tick {
    spawn: bool,
    /// A thread is wished for, if there is room.
    spare: bool,
    /// Somebody is called.
    called: bool,
    due_to_stall: bool,
    again: bool,
    threads: usize,
    /// Of these, beyond the cap.
    excess: usize,
    suspects: Vec<Suspect>,
    reports: Vec<Report>,
}

impl<D: Doors, T: Task<D::Interest>> Group<D, T> {
    fn tick(&self) -> Tick {
        self.ticks.fetch_add(1, Relaxed);
        let now = self.now();
        let mut guard = self.guarded.lock();
        let (stalls, _) = guard.sched.troubles();
        let actions = guard.sched.tick(now);
        let stalls = guard.sched.troubles().0 - stalls;
        let suspects = guard.sched.suspects(now);
        let tick = Tick {
            spawn: actions.call == Call::Spawn,
            spare: actions.call == Call::Spare,
            called: actions.call != Call::Nobody,
            due_to_stall: guard.sched.due_to_stall(),
            again: actions.tick,
            threads: guard.sched.threads(),
            excess: guard.sched.excess(),
            reports: guard.reports(stalls, &suspects, now),
            suspects,
        };
        // The monitor is who would be rung.
        let call = match actions.call {
            Call::Spawn | Call::Spare => Call::Nobody,
            call => call,
        };
        let others = guard.sched.call_for_slots(now);
        self.perform_for_many(guard, &others, crate::sched::Actions { call, tick: false });
        tick
    }

    /// How often the monitor has looked at it; wraps.
    #[cfg(feature = "test-util")]
    pub(crate) fn ticks(&self) -> u32 {
        // Relaxed: what a tick does is seen under the group's lock.
        self.ticks.load(Relaxed)
    }

    fn next_deadline(&self, now: Nanos) -> Option<Nanos> {
        self.guarded.lock().sched.next_deadline(now)
    }

    fn capped(&self) -> bool {
        let now = self.now();
        self.guarded.lock().sched.capped(now)
    }

    fn limit_excess(&self, excess: usize) {
        self.guarded.lock().sched.limit_excess(excess);
    }

    /// What there is to say of it, if it has just been found blocked.
    fn judge(&self, suspect: Suspect, blocked: bool) -> Option<Report> {
        let now = self.now();
        let mut guard = self.guarded.lock();
        let (_, before) = guard.sched.troubles();
        let actions = guard.sched.judge(suspect, blocked, now);
        let detected = guard.sched.troubles().1 > before;
        let report = detected.then(|| Report::Detected {
            id: suspect.conn.map(|key| guard.id(key)),
            time: now.since(suspect.started).0,
        });
        self.perform(guard, actions);
        report
    }
}

impl<T> Guarded<T> {
    /// What there is to say after a tick in which so many commands were found to have run past the
    /// stall bound: those of the suspects that have started last.
    fn reports(&self, stalls: u64, suspects: &[Suspect], now: Nanos) -> Vec<Report> {
        let mut reports = Vec::new();
        if stalls > 0 {
            let mut stalled: Vec<&Suspect> = suspects.iter().collect();
            stalled.sort_unstable_by_key(|suspect| std::cmp::Reverse(suspect.started));
            for suspect in stalled.into_iter().take(stalls.min(8) as usize) {
                reports.push(Report::Stalled {
                    id: suspect.conn.map(|key| self.id(key)),
                    time: now.since(suspect.started).0,
                });
            }
            if reports.is_empty() {
                // MariaDB's policy finds a group stalled, and no command of it.
                reports.push(Report::Stalled { id: None, time: 0 });
            }
        }
        if let Some((time, queued)) = self.sched.overload(now) {
            let time = time.0;
            reports.push(Report::Overloaded { time, queued });
        }
        reports
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::group::see::tests::{Conn, Still};
    use crate::sched::Bounds;

    /// Workers get no thread, and are counted; and what is said of a cap.
    #[derive(Default)]
    struct Asked(Mutex<Vec<usize>>, Mutex<usize>);

    impl Threads for Asked {
        type Id = WorkerId;

        fn spawn(&self, group: usize, _: WorkerId) -> std::io::Result<()> {
            self.0.lock().push(group);
            Ok(())
        }

        fn report(&self, _: usize, what: Report) {
            *self.1.lock() += usize::from(what == Report::Capped);
        }

        fn is_blocked(&self, _: usize, _: WorkerId) -> bool {
            false
        }
    }

    type TestGroup = Group<Still, Conn>;

    /// Groups with so many threads each, of which so many are beyond the cap.
    fn groups(threads: &[(usize, usize)]) -> Vec<Arc<TestGroup>> {
        let group = |(threads, excess): &(usize, usize)| {
            let bounds = Bounds::new(&Default::default(), &Default::default());
            let group = Group::new(bounds, Still, Arc::new(Bell::default()));
            for n in 0..*threads {
                group.spawning(false, n < *excess);
            }
            Arc::new(group)
        };
        threads.iter().map(group).collect()
    }

    /// What `act` does with a monitor over these groups; and for which of them it has created threads.
    fn monitor<R>(
        groups: &[Arc<TestGroup>],
        max_threads: usize,
        act: impl FnOnce(&Monitor<'_, Still, Conn, Asked>) -> R,
    ) -> (R, Vec<usize>) {
        let threads = Asked::default();
        let done = act(&Monitor {
            groups,
            bell: &Bell::default(),
            threads: &threads,
            settings: &Settings::new(Duration::from_millis(1), false, max_threads),
        });
        (done, threads.0.into_inner())
    }

    fn over_cap(groups: &[Arc<TestGroup>]) -> Vec<usize> {
        groups.iter().map(|group| group.stats().over_cap).collect()
    }

    #[test]
    fn each_group_gets_the_threads_that_are_kept_back_for_it() {
        let groups = groups(&[(0, 0), (0, 0)]);
        for group in &groups {
            assert!(group.attach(Conn(0)).is_ok());
        }
        let ((), created) = monitor(&groups, 4, |monitor| _ = monitor.tick(&mut Vec::new()));
        assert_eq!(created, [0, 1]);
        // And none that is kept back for another one.
        let groups = self::groups(&[(0, 0), (0, 0)]);
        assert!(groups[0].attach(Conn(0)).is_ok());
        let ((), created) = monitor(&groups, 3, |monitor| _ = monitor.tick(&mut Vec::new()));
        assert_eq!(created, []);
    }

    #[test]
    fn a_thread_that_is_only_wished_for_is_had_within_the_cap_and_not_missed_at_it() {
        for (cap, created) in [(3, &[0][..]), (2, &[])] {
            let groups = groups(&[(0, 0)]);
            for long in [true, false] {
                let worker = groups[0].spawning(false, false);
                assert!(groups[0].attach(Conn(0)).is_ok());
                let (step, _) = groups[0].guarded.lock().sched.take(worker, Nanos(7));
                assert!(matches!(step, crate::sched::Step::Run(_)));
                if long {
                    groups[0].declare_long(worker);
                }
            }
            assert!(groups[0].attach(Conn(0)).is_ok());
            let (capped, asked) = monitor(&groups, cap, |monitor| {
                monitor.tick(&mut Vec::new());
                *monitor.threads.1.lock()
            });
            assert_eq!((capped, &asked[..]), (0, created));
        }
    }

    #[test]
    fn no_more_threads_are_beyond_the_cap_than_all_groups_have_beyond_it() {
        // Four are the cap: one thread within it has left, and so have two.
        for (threads, left) in [([(3, 1), (2, 1)], [1, 0]), ([(2, 1), (2, 1)], [0, 0])] {
            let groups = groups(&threads);
            monitor(&groups, 4, |monitor| _ = monitor.tick(&mut Vec::new()));
            assert_eq!(over_cap(&groups), left, "{threads:?}");
        }
    }

    #[test]
    fn when_the_cap_is_lowered_each_thread_beyond_it_is_one_groups() {
        for (max_threads, beyond) in [(8, [0, 0]), (7, [1, 0]), (5, [3, 0]), (4, [3, 1])] {
            let groups = groups(&[(5, 0), (3, 0)]);
            monitor(&groups, max_threads, |monitor| {
                _ = monitor.tick(&mut Vec::new())
            });
            assert_eq!(over_cap(&groups), beyond, "{max_threads}");
        }
    }

    #[test]
    fn looks_that_find_nothing_come_less_often_down_to_a_quarter() {
        let (ticks, _) = monitor(&[], 4, |monitor| {
            [0, CALM - 1, CALM, 2 * CALM - 1, 2 * CALM, 100 * CALM].map(|n| monitor.until_tick(n))
        });
        assert_eq!(ticks, [1, 1, 2, 2, 4, 4].map(Duration::from_millis));
    }

    #[test]
    fn a_monitor_with_nothing_to_watch_sleeps_until_it_is_rung() {
        let groups = groups(&[(1, 0)]);
        monitor(&groups, 4, |monitor| {
            std::thread::scope(|scope| {
                let running = scope.spawn(|| monitor.run());
                let begun = Instant::now();
                let sleeps = || monitor.bell.asleep.load(Relaxed);
                while !sleeps() && begun.elapsed() < Duration::from_secs(60) {
                    std::thread::yield_now();
                }
                let slept = sleeps();
                monitor.bell.stop();
                running.join().expect("no panic");
                assert!(slept, "it looks and looks");
            });
        });
    }
}
