//! The group that ships, over fake doors, in every order that loom can find.
//!
//! Each model is a kernel: the few threads and moves of one race that `src/sched/README.md` fears.
//! What is lost in it shows as a deadlock, for nothing here is woken by time: the clock stands
//! still unless a kernel moves it, and a parked worker is never parked for long enough. Run them by
//! `cargo loom`; `LOOM_MAX_PREEMPTIONS=3 cargo loom` looks further and takes longer.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use loom::thread::{self, JoinHandle};

use super::monitor::{Bell, Monitor, Settings};
use super::{Group, Task};
use crate::port::{Doors, Event, Readiness, Threads};
use crate::sched::{Bounds, End, Key, Lane, NEVER, Nanos, Policy, Turn, Wake, WorkerId};
use crate::sync::{Condvar, Mutex};

// ---- fakes ----

/// A poller that is told what is ready, and a clock.
#[derive(Default)]
struct Outside {
    poller: Mutex<Polled>,
    bed: Condvar,
    now: Mutex<u64>,
    /// By how much the clock goes on with each look at it.
    step: u64,
}

#[derive(Default)]
struct Polled {
    events: Vec<Event>,
    woken: bool,
    taken: bool,
}

impl Outside {
    fn input(&self, key: Key) {
        let readiness = Readiness::READABLE;
        let token = key.to_token();
        self.poller.lock().events.push(Event { token, readiness });
        self.bed.notify_one();
    }

    fn pass(&self, time: u64) {
        *self.now.lock() += time;
    }
}

impl Doors for Outside {
    type Interest = ();

    fn interest(&self) -> &() {
        &()
    }

    fn poll(&self, block: bool, events: &mut Vec<Event>) {
        let mut poller = self.poller.lock();
        assert!(!poller.taken, "two are in the poller");
        poller.taken = true;
        while block && poller.events.is_empty() && !poller.woken {
            self.bed.wait(&mut poller);
        }
        poller.taken = false;
        poller.woken = false;
        events.append(&mut poller.events);
    }

    fn wake(&self) {
        self.poller.lock().woken = true;
        self.bed.notify_one();
    }

    fn now(&self) -> u64 {
        let mut now = self.now.lock();
        *now += self.step;
        *now
    }
}

/// A connection that does in its turn what the kernel says.
struct Client(Box<dyn FnMut(Key, &Wake) -> End + Send>);

impl Task<()> for Client {
    type Desk = ();

    fn turn(&mut self, key: Key, wake: Wake, _: Nanos, (): &(), (): &mut ()) -> Turn {
        Turn {
            end: (self.0)(key, &wake),
            lane: Lane::Low,
            holding: false,
            look_again: false,
            calls: 1,
            until: NEVER,
        }
    }
}

type TestGroup = Group<Outside, Client>;

const IDLE: End = End::Idle { in_command: false };

/// How soon a command is not fresh any more, so that the group lets another one start.
#[derive(Clone, Copy)]
enum Fresh {
    /// Never: one command keeps its group's gate shut.
    Always,
    /// By the next look at the clock, which goes on by a second with each.
    Not,
    /// When the kernel lets time pass.
    Until,
}

fn group(fresh: Fresh, bell: &Arc<Bell>) -> Arc<TestGroup> {
    let bounds = Bounds {
        policy: Policy::Conserving,
        dedicated_listener: false,
        oversubscribe: 1,
        stall_limit: NEVER,
        handover: match fresh {
            Fresh::Always => NEVER,
            Fresh::Not | Fresh::Until => Nanos(1),
        },
        kickup: NEVER,
        park_time: NEVER,
        creation_throttle: Nanos(0),
        idle_timeout: NEVER,
        read_timeout: NEVER,
        write_timeout: NEVER,
        look_again: NEVER,
    };
    let outside = Outside {
        step: match fresh {
            Fresh::Not => 1_000_000_000,
            Fresh::Always | Fresh::Until => 0,
        },
        ..Outside::default()
    };
    Arc::new(Group::new(bounds, outside, Arc::clone(bell)))
}

loom::thread_local! {
    static ME: Cell<Option<WorkerId>> = Cell::new(None);
}

fn me() -> WorkerId {
    ME.with(|me| me.get().expect("a worker"))
}

fn start_as(group: &Arc<TestGroup>, worker: WorkerId) -> JoinHandle<()> {
    let group = Arc::clone(group);
    thread::spawn(move || {
        ME.with(|me| me.set(Some(worker)));
        group.work(worker);
    })
}

fn start(group: &Arc<TestGroup>, workers: usize) -> Vec<JoinHandle<()>> {
    (0..workers)
        .map(|_| start_as(group, group.spawning(false, false)))
        .collect()
}

fn stop(group: &TestGroup, workers: Vec<JoinHandle<()>>) {
    group.stop();
    for worker in workers {
        worker.join().unwrap();
    }
}

/// Something that is counted, and waited for.
#[derive(Clone, Default)]
struct Count(Arc<(Mutex<usize>, Condvar)>);

impl Count {
    fn up(&self) {
        *self.0.0.lock() += 1;
        self.0.1.notify_all();
    }

    fn is(&self) -> usize {
        *self.0.0.lock()
    }

    fn wait_for(&self, n: usize) {
        let mut count = self.0.0.lock();
        while *count < n {
            self.0.1.wait(&mut count);
        }
    }
}

/// Runs a kernel in every order with at most `preemptions` unforced switches.
fn model(name: &str, preemptions: usize, kernel: impl Fn() + Send + Sync + 'static) {
    let orders = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let mut builder = loom::model::Builder::new();
    let preemptions = *builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    let counted = Arc::clone(&orders);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        kernel();
    });
    let orders = orders.load(Relaxed);
    // Not by a macro: this is worth seeing when nothing fails.
    let _ = writeln!(
        io::stderr(),
        "{name}: {orders} orders, {preemptions} preemptions, {:?}",
        begun.elapsed()
    );
    assert!(orders > 1);
}

/// Where the monitor gets threads: from loom, but for the first ones, which are not to be had.
struct Hire {
    group: Arc<TestGroup>,
    refusals: Mutex<usize>,
    hired: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads for Hire {
    type Id = WorkerId;

    fn is_blocked(&self, _: usize, _: WorkerId) -> bool {
        false
    }

    fn spawn(&self, _: usize, worker: WorkerId) -> io::Result<()> {
        let mut refusals = self.refusals.lock();
        if *refusals > 0 {
            *refusals -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.hired.lock().push(start_as(&self.group, worker));
        Ok(())
    }
}

/// Runs `body` beside the monitor's own loop, which may have one more thread from `refusals` on.
fn beside_the_monitor(
    group: &Arc<TestGroup>,
    bell: &Arc<Bell>,
    refusals: usize,
    body: impl FnOnce(),
) {
    let hire = Arc::new(Hire {
        group: Arc::clone(group),
        refusals: Mutex::new(refusals),
        hired: Mutex::default(),
    });
    let monitor = {
        let (bell, hire) = (Arc::clone(bell), Arc::clone(&hire));
        thread::spawn(move || {
            let groups = [Arc::clone(&hire.group)];
            Monitor {
                groups: &groups,
                bell: &bell,
                threads: &*hire,
                settings: &Settings::new(Duration::from_millis(1), false, 2),
            }
            .run();
        })
    };
    body();
    bell.stop();
    monitor.join().unwrap();
    let hired = std::mem::take(&mut *hire.hired.lock());
    stop(group, hired);
}

/// Works as the group's first worker on the calling thread, until the group stops.
fn work_here(group: &TestGroup, worker: WorkerId) {
    ME.with(|me| me.set(Some(worker)));
    group.work(worker);
}

fn attach(group: &TestGroup, turn: impl FnMut(Key, &Wake) -> End + Send + 'static) -> Key {
    let attached = group.attach(Client(Box::new(turn)));
    attached.unwrap_or_else(|_| panic!("the group has not been stopped"))
}

// ---- kernels ----

#[test]
fn every_attached_connection_runs_once_while_workers_go_to_sleep() {
    for fresh in [Fresh::Always, Fresh::Not] {
        model("attach, attach | worker | worker", 2, move || {
            let group = group(fresh, &Arc::default());
            let ran = [Count::default(), Count::default()];
            let workers = start(&group, 2);
            for ran in ran.clone() {
                attach(&group, move |_, _| {
                    ran.up();
                    IDLE
                });
            }
            ran.iter().for_each(|ran| ran.wait_for(1));
            stop(&group, workers);
            assert_eq!(ran.map(|ran| ran.is()), [1, 1]);
            assert_eq!(group.leftovers().len(), 2);
        });
    }
}

#[test]
fn connections_that_are_attached_at_once_each_run_once() {
    model("attach | attach | worker", 3, || {
        let group = group(Fresh::Always, &Arc::default());
        let ran = Count::default();
        let workers = start(&group, 1);
        let attach_one = |group: &TestGroup, ran: Count| {
            attach(group, move |_, _| {
                ran.up();
                End::Closed
            });
        };
        let other = {
            let (group, ran) = (Arc::clone(&group), ran.clone());
            thread::spawn(move || attach_one(&group, ran))
        };
        attach_one(&group, ran.clone());
        ran.wait_for(2);
        other.join().unwrap();
        stop(&group, workers);
        assert_eq!((ran.is(), group.leftovers().len()), (2, 0));
    });
}

/// A connection that counts what it is sent.
fn reader(group: &Arc<TestGroup>, seen: &Count) -> (Key, impl Fn(Key, &TestGroup) + use<>) {
    let sent = Arc::new(Mutex::new(0));
    let key = {
        let (sent, seen) = (Arc::clone(&sent), seen.clone());
        attach(group, move |_, _| {
            // As a read does: takes whatever is there.
            for _ in 0..std::mem::take(&mut *sent.lock()) {
                seen.up();
            }
            IDLE
        })
    };
    let send = move |key, group: &TestGroup| {
        *sent.lock() += 1;
        group.doors.input(key);
    };
    (key, send)
}

#[test]
fn input_that_comes_while_its_connection_runs_is_not_lost() {
    for (fresh, workers, preemptions) in [(Fresh::Always, 1, 3), (Fresh::Not, 2, 2)] {
        model("input, input | worker..", preemptions, move || {
            let group = group(fresh, &Arc::default());
            let seen = Count::default();
            let workers = start(&group, workers);
            let (key, send) = reader(&group, &seen);
            send(key, &group);
            send(key, &group);
            seen.wait_for(2);
            stop(&group, workers);
        });
    }
}

#[test]
fn a_command_that_waits_leaves_nobodys_input_unseen() {
    // The first connection waits for the second one's input. No time passes, so only what the wait
    // itself calls can help.
    model("input, input | worker | worker, waiting", 2, || {
        let group = group(Fresh::Always, &Arc::default());
        let seen = Count::default();
        let workers = start(&group, 2);
        let (reading, send) = reader(&group, &seen);
        let done = Count::default();
        let waiting = {
            let (weak, seen, done) = (Arc::downgrade(&group), seen.clone(), done.clone());
            attach(&group, move |_, wake| {
                if wake.ready.input() {
                    let group = weak.upgrade().expect("it runs this");
                    group.wait_begin(me(), None);
                    seen.wait_for(1);
                    group.wait_end(me());
                    done.up();
                }
                IDLE
            })
        };
        group.doors.input(waiting);
        send(reading, &group);
        done.wait_for(1);
        stop(&group, workers);
    });
}

#[test]
fn a_killed_connection_is_closed_once_whatever_it_does() {
    for fresh in [Fresh::Always, Fresh::Not] {
        model("input, kill | kill | worker", 3, move || {
            let group = group(fresh, &Arc::default());
            let closed = Count::default();
            let workers = start(&group, 1);
            let key = {
                let closed = closed.clone();
                attach(&group, move |_, wake| {
                    if wake.close.is_none() {
                        return IDLE;
                    }
                    closed.up();
                    End::Closed
                })
            };
            let other = {
                let group = Arc::clone(&group);
                thread::spawn(move || group.kill(key))
            };
            group.doors.input(key);
            group.kill(key);
            closed.wait_for(1);
            other.join().unwrap();
            stop(&group, workers);
            assert_eq!((closed.is(), group.leftovers().len()), (1, 0));
            assert!(!group.kill(key));
        });
    }
}

#[test]
fn a_drain_closes_who_is_idle_and_who_comes_to_be() {
    model("input, drain | attach | worker", 2, || {
        let group = group(Fresh::Always, &Arc::default());
        let closed = Count::default();
        let workers = start(&group, 1);
        let attach_one = |group: &TestGroup, closed: Count| {
            attach(group, move |_, wake| {
                if wake.close.is_none() {
                    return IDLE;
                }
                closed.up();
                End::Closed
            })
        };
        let other = {
            let (group, closed) = (Arc::clone(&group), closed.clone());
            thread::spawn(move || _ = attach_one(&group, closed))
        };
        let key = attach_one(&group, closed.clone());
        group.doors.input(key);
        group.drain();
        closed.wait_for(2);
        other.join().unwrap();
        stop(&group, workers);
        assert_eq!((closed.is(), group.leftovers().len()), (2, 0));
    });
}

#[test]
fn a_stop_sends_everybody_home_and_loses_no_connection() {
    for fresh in [Fresh::Always, Fresh::Not] {
        model("stop | attach, input | worker | worker", 2, move || {
            let group = group(fresh, &Arc::default());
            let workers = start(&group, 2);
            let client = || Client(Box::new(|_, _| IDLE));
            assert!(group.attach(client()).is_ok());
            let other = {
                let group = Arc::clone(&group);
                thread::spawn(move || match group.attach(client()) {
                    Ok(key) => {
                        group.doors.input(key);
                        0
                    }
                    Err(_given_back) => 1,
                })
            };
            stop(&group, workers);
            let given_back = other.join().unwrap();
            assert_eq!(group.leftovers().len() + given_back, 2);
        });
    }
}

/// A connection whose command attaches another one and, without saying so, waits for it.
fn attach_one_that_waits_for_another(group: &Arc<TestGroup>) {
    let weak = Arc::downgrade(group);
    let ran = Count::default();
    attach(group, move |_, _| {
        let group = weak.upgrade().expect("it runs this");
        let other = ran.clone();
        attach(&group, move |_, _| {
            other.up();
            End::Closed
        });
        group.doors.pass(1);
        ran.wait_for(1);
        group.stop();
        End::Closed
    });
}

#[test]
fn the_monitor_does_not_sleep_through_a_queue() {
    // The gate is shut when the second connection is queued, and opens as time passes: only the
    // monitor can see that, and it must be awake.
    model("ring | monitor | (worker)", 3, || {
        let bell = Arc::new(Bell::default());
        let group = group(Fresh::Until, &bell);
        let first = group.spawning(false, false);
        attach_one_that_waits_for_another(&group);
        beside_the_monitor(&group, &bell, 0, || work_here(&group, first));
        assert_eq!(group.leftovers().len(), 0);
    });
}

#[test]
fn a_thread_that_cannot_be_had_is_asked_for_again() {
    model("ask | monitor, refused | (worker)", 3, || {
        let bell = Arc::new(Bell::default());
        let group = group(Fresh::Not, &bell);
        let first = group.spawning(false, false);
        attach_one_that_waits_for_another(&group);
        beside_the_monitor(&group, &bell, 1, || work_here(&group, first));
        assert_eq!(group.leftovers().len(), 0);
    });
}

#[test]
fn the_monitor_does_not_sleep_while_nobody_polls() {
    // The listener leaves the poller for a command that, without saying so, waits for the input of
    // another connection. While there was a listener the monitor had no reason to stay awake.
    model("ring, input | monitor | (worker)", 3, || {
        let bell = Arc::new(Bell::default());
        let group = group(Fresh::Until, &bell);
        let first = group.spawning(false, false);
        let seen = Count::default();
        let (reading, send) = reader(&group, &seen);
        let weak = Arc::downgrade(&group);
        let waiting = attach(&group, move |_, wake| {
            if !wake.ready.input() {
                return IDLE;
            }
            let group = weak.upgrade().expect("it runs this");
            send(reading, &group);
            group.doors.pass(1);
            seen.wait_for(1);
            group.stop();
            End::Closed
        });
        group.doors.input(waiting);
        beside_the_monitor(&group, &bell, 0, || work_here(&group, first));
        assert_eq!(group.leftovers().len(), 1);
    });
}
