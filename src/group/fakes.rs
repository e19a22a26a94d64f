//! The outside of a group under a model checker: doors, connections and threads that a test plays.
//!
//! The clock stands still unless a test moves it, and a parked worker has for ever, so what is lost
//! is woken by nothing else and shows as a deadlock.

// Shuttle needs less of it than loom.
#![cfg_attr(shuttle, allow(dead_code))]

use std::cell::Cell;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[cfg(loom)]
use loom as checker;
#[cfg(shuttle)]
use shuttle as checker;

use super::monitor::{Bell, Monitor, Settings};
use super::{Group, Task};
use crate::port::{Doors, Event, Readiness, Threads};
use crate::sched::{Bounds, End, Key, Lane, NEVER, Nanos, Policy, Turn, Wake, WorkerId};
use crate::sync::{Condvar, Mutex};

pub(super) use checker::thread::JoinHandle;

// ---- threads ----

std::thread_local! {
    /// How many threads this execution has started, with its main one. Not a checker's
    /// thread-local: a checker runs all threads of an execution on one of std's.
    pub(super) static STARTED: Cell<usize> = const { Cell::new(1) };
}

pub(super) fn spawn<R: 'static>(body: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R>
where
    R: Send,
{
    STARTED.set(STARTED.get() + 1);
    checker::thread::spawn(body)
}

// ---- doors ----

/// A poller that is told what is ready, and a clock.
#[derive(Default)]
pub(super) struct Outside {
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
    pub(super) fn input(&self, key: Key) {
        self.event(key, Readiness::READABLE);
    }

    pub(super) fn event(&self, key: Key, readiness: Readiness) {
        let token = key.to_token();
        self.poller.lock().events.push(Event { token, readiness });
        self.bed.notify_one();
    }

    pub(super) fn pass(&self, time: u64) {
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

// ---- connections ----

/// A connection that does in its turn what the test says.
pub(super) struct Client(Box<dyn FnMut(Key, &Wake) -> Turn + Send>);

impl Client {
    pub(super) fn new(turn: impl FnMut(Key, &Wake) -> Turn + Send + 'static) -> Self {
        Self(Box::new(turn))
    }
}

impl Task<()> for Client {
    type Desk = ();

    fn turn(&mut self, key: Key, wake: Wake, _: Nanos, (): &(), (): &mut ()) -> Turn {
        (self.0)(key, &wake)
    }
}

/// A turn of one command, and nothing else to say about it.
pub(super) const fn ends(end: End) -> Turn {
    Turn {
        end,
        lane: Lane::Low,
        holding: None,
        in_transaction: false,
        look_again: false,
        calls: 1,
        heard: true,
        until: NEVER,
    }
}

pub(super) const IDLE: Turn = ends(End::Idle { in_command: false });
pub(super) const CLOSED: Turn = ends(End::Closed);
pub(super) const FLUSH: Turn = ends(End::Flush {
    crammed: false,
    moved: true,
});
/// The first park, of which each of these connections has one.
pub(super) const PARK: Turn = ends(End::Park { ticket: 1 });

pub(super) fn attach(
    group: &TestGroup,
    turn: impl FnMut(Key, &Wake) -> Turn + Send + 'static,
) -> Key {
    let attached = group.attach(Client::new(turn));
    attached.unwrap_or_else(|_| panic!("the group has not been stopped"))
}

/// A connection that counts what it is sent, until it is to be closed.
pub(super) fn reader(
    group: &Arc<TestGroup>,
    seen: &Count,
) -> (Key, impl Fn(Key, &TestGroup) + use<>) {
    let sent = Arc::new(Mutex::new(0));
    let key = {
        let (sent, seen) = (Arc::clone(&sent), seen.clone());
        attach(group, move |_, wake| {
            if wake.close.is_some() {
                return CLOSED;
            }
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

// ---- groups ----

pub(super) type TestGroup = Group<Outside, Client>;

/// How soon a command is not fresh any more, so that the group lets another one start.
#[derive(Clone, Copy)]
pub(super) enum Fresh {
    /// Never: one command keeps its group's gate shut.
    Always,
    /// By the next look at the clock, which goes on by a second with each.
    Not,
    /// When the test lets time pass.
    Until,
}

pub(super) fn group(fresh: Fresh, bell: &Arc<Bell>) -> Arc<TestGroup> {
    group_with(fresh, bell, |_| ())
}

pub(super) fn group_with(
    fresh: Fresh,
    bell: &Arc<Bell>,
    change: impl FnOnce(&mut Bounds),
) -> Arc<TestGroup> {
    let mut bounds = Bounds {
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
        transaction_timeout: NEVER,
        read_timeout: NEVER,
        write_timeout: NEVER,
        crammed_timeout: NEVER,
        look_again: NEVER,
    };
    change(&mut bounds);
    let outside = Outside {
        step: match fresh {
            Fresh::Not => 1_000_000_000,
            Fresh::Always | Fresh::Until => 0,
        },
        ..Outside::default()
    };
    Arc::new(Group::new(bounds, outside, Arc::clone(bell)))
}

checker::thread_local! {
    static ME: Cell<Option<WorkerId>> = Cell::new(None);
}

/// Which worker runs the calling connection.
pub(super) fn me() -> WorkerId {
    ME.with(|me| me.get().expect("a worker"))
}

/// Works on the calling thread, until the group stops.
pub(super) fn work_here(group: &TestGroup, worker: WorkerId) {
    ME.with(|me| me.set(Some(worker)));
    group.work(worker);
}

pub(super) fn start(group: &Arc<TestGroup>, workers: usize) -> Vec<JoinHandle<()>> {
    (0..workers)
        .map(|_| start_as(group, group.spawning(false, false)))
        .collect()
}

fn start_as(group: &Arc<TestGroup>, worker: WorkerId) -> JoinHandle<()> {
    let group = Arc::clone(group);
    spawn(move || work_here(&group, worker))
}

pub(super) fn stop(group: &TestGroup, workers: Vec<JoinHandle<()>>) {
    group.stop();
    for worker in workers {
        worker.join().unwrap();
    }
}

/// Something that is counted, and waited for.
#[derive(Clone, Default)]
pub(super) struct Count(Arc<(Mutex<usize>, Condvar)>);

impl Count {
    pub(super) fn up(&self) {
        *self.0.0.lock() += 1;
        self.0.1.notify_all();
    }

    pub(super) fn is(&self) -> usize {
        *self.0.0.lock()
    }

    pub(super) fn wait_for(&self, n: usize) {
        let mut count = self.0.0.lock();
        while *count < n {
            self.0.1.wait(&mut count);
        }
    }
}

// ---- the monitor ----

/// What the monitor has: a group, the bell, and where threads come from.
pub(super) struct Hire {
    pub(super) group: Arc<TestGroup>,
    pub(super) bell: Arc<Bell>,
    /// How many threads may be there.
    pub(super) cap: usize,
    /// How many are not to be had before the first one is.
    pub(super) refusals: Mutex<usize>,
    /// What a look at a thread finds.
    pub(super) blocked: bool,
    pub(super) hired: Mutex<Vec<JoinHandle<()>>>,
}

impl Hire {
    pub(super) fn new(group: &Arc<TestGroup>, bell: &Arc<Bell>, cap: usize) -> Self {
        Self {
            group: Arc::clone(group),
            bell: Arc::clone(bell),
            cap,
            refusals: Mutex::default(),
            blocked: false,
            hired: Mutex::default(),
        }
    }

    fn monitor<R>(&self, act: impl FnOnce(&Monitor<'_, Outside, Client, Self>) -> R) -> R {
        act(&Monitor {
            groups: &[Arc::clone(&self.group)],
            bell: &self.bell,
            threads: self,
            settings: &Settings::new(Duration::from_millis(1), false, self.cap),
        })
    }

    /// The monitor looks once.
    pub(super) fn tick(&self) {
        self.monitor(|monitor| monitor.tick(&mut Vec::new()));
    }

    /// Runs `body` beside the monitor's own loop, then stops everything.
    pub(super) fn beside(self, body: impl FnOnce()) {
        let hire = Arc::new(self);
        let monitor = {
            let hire = Arc::clone(&hire);
            spawn(move || hire.monitor(|monitor| monitor.run()))
        };
        body();
        hire.bell.stop();
        monitor.join().unwrap();
        let hired = std::mem::take(&mut *hire.hired.lock());
        stop(&hire.group, hired);
    }
}

impl Threads for Hire {
    type Id = WorkerId;

    fn is_blocked(&self, _: usize, _: WorkerId) -> bool {
        self.blocked
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

// ---- mutants ----

/// Runs one test of this program in a process of its own, with these variables: whether it has
/// failed, and what it has said.
pub(super) fn run_alone(module: &str, test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let inside = module.split_once("::").map_or(module, |(_, inside)| inside);
    let this = std::env::current_exe().expect("this program has a path");
    let run = Command::new(this)
        .args([&format!("{inside}::{test}"), "--exact", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .expect("this program runs");
    let said = String::from_utf8_lossy(&run.stderr) + String::from_utf8_lossy(&run.stdout);
    (!run.status.success(), said.into_owned())
}
