//! The accept thread: one for all listeners of a kind, a bounded amount of work for each connection; and
//! the clock of those that log in.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::listen::{ListenerState, Record};
use super::registry::Registry;
use super::threads::{Left, Threads};
use crate::error::BuildError;
use crate::os;
use crate::os::bell::Bell;
use crate::os::listener::{self, AcceptError, Acceptor, At};
use crate::stream::{Listener, Stream};
use crate::sync::{Condvar, Mutex};

const STACK: usize = 2 * 1024 * 1024;

/// Connections taken from one listener before the next has its turn.
const BATCH: usize = 16;

/// How long a listener rests when the system has no descriptor or memory for a connection: from the one,
/// doubled as often as it is in vain, to the other.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(20);

/// How often the clock of logins is looked at, while somebody logs in; and how much more than that counts
/// of a single look, lest a process that was stopped closes everybody.
const LOGIN_TICK: Duration = Duration::from_millis(100);

/// What is taken from a backlog at most, to be refused, before its listener is closed.
const LAST: usize = 4096;

/// A listener, and what becomes of its connections.
pub(super) struct Listening {
    pub(super) acceptor: Acceptor,
    pub(super) record: Arc<Record>,
    pub(super) admit: Box<dyn Fn(Stream) + Send>,
}

/// The accept thread and how to reach it.
#[derive(Debug)]
pub(super) struct Accepting {
    threads: Arc<Threads>,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct Gate {
    bell: Arc<Bell>,
    orders: Mutex<Orders>,
    /// Notified when the listeners have been given up.
    given_up: Condvar,
    registry: Arc<Registry>,
    /// A descriptor is kept for when there are no more.
    reserve: bool,
}

#[derive(Debug, Default)]
struct Orders {
    /// The listeners are to be given up; closed, unless they are to be handed over.
    give_up: Option<GiveUp>,
    /// They have been.
    done: bool,
    handed_over: Vec<Listener>,
    /// The thread is to end.
    end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GiveUp {
    Close,
    HandOver,
}

impl Accepting {
    /// Starts the thread, which is called `name`. `bell` wakes it. It runs without listeners too, for the
    /// sake of those that log in. With `reserve` it keeps a descriptor, so that somebody gets in when
    /// there are no more.
    pub(super) fn start(
        name: &str,
        listening: Vec<Listening>,
        registry: &Arc<Registry>,
        bell: &Arc<Bell>,
        login_timeout: impl Fn() -> Duration + Send + 'static,
        reserve: bool,
    ) -> Result<Self, BuildError> {
        let gate = Arc::new(Gate {
            bell: Arc::clone(bell),
            orders: Mutex::default(),
            given_up: Condvar::default(),
            registry: Arc::clone(registry),
            reserve,
        });
        let threads = Arc::new(Threads::default());
        let thread = {
            let gate = Arc::clone(&gate);
            // Here, so that it is there when the server has started.
            let reserve = gate.new_reserve();
            threads.spawn(name.to_owned(), STACK, move || {
                gate.run(listening, reserve, &login_timeout);
            })
        };
        thread.map_err(|source| BuildError::Resources {
            what: "a thread",
            source,
        })?;
        Ok(Self { threads, gate })
    }

    /// Stops accepting: who waits in a backlog is refused. Returns when nobody can connect any more, or
    /// the time is over.
    pub(super) fn close(&self, by: Instant) {
        self.give_up(GiveUp::Close, Some(by));
    }

    /// Stops accepting, and gives the listeners away with all who wait in their backlogs.
    pub(super) fn hand_over(&self) -> Vec<Listener> {
        self.give_up(GiveUp::HandOver, None);
        std::mem::take(&mut self.gate.orders.lock().handed_over)
    }

    fn give_up(&self, how: GiveUp, by: Option<Instant>) {
        let mut orders = self.gate.orders.lock();
        orders.give_up.get_or_insert(how);
        self.gate.bell.ring();
        while !orders.done {
            let Some(by) = by else {
                self.gate.given_up.wait(&mut orders);
                continue;
            };
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.gate.given_up.wait_for(&mut orders, left);
        }
    }

    /// Ends the thread, as far as no `refuse` blocks; else it is returned.
    pub(super) fn end(&self, by: Instant) -> Vec<Left> {
        let mut orders = self.gate.orders.lock();
        orders.give_up.get_or_insert(GiveUp::Close);
        orders.end = true;
        drop(orders);
        self.gate.bell.ring();
        self.threads.join_all(by)
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.end(Instant::now() + Duration::from_secs(1));
    }
}

/// A listener's rest.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    until: Option<Instant>,
    /// How long the last one was, if there has been no connection since.
    last: Duration,
}

impl Rest {
    fn begin(&mut self) {
        self.last = (self.last * 2).clamp(REST_MIN, REST_MAX);
        self.until = Some(Instant::now() + self.last);
    }
}

/// Says that the listeners have been given up, should the thread end by a panic too.
struct GivenUp<'a>(&'a Gate);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.orders.lock().done = true;
        self.0.given_up.notify_all();
    }
}

impl Gate {
    fn run(
        &self,
        mut listening: Vec<Listening>,
        mut reserve: Option<File>,
        login_timeout: &dyn Fn() -> Duration,
    ) {
        let _given_up = GivenUp(self);
        let mut rests = vec![Rest::default(); listening.len()];
        let mut first = 0;
        let mut looked = Instant::now();
        loop {
            if self.obey(&mut listening) {
                return;
            }
            rests.truncate(listening.len());
            let now = Instant::now();
            let timeout = login_timeout();
            let tick = (timeout / 8).clamp(Duration::from_millis(1), LOGIN_TICK);
            let passed = now.saturating_duration_since(looked).min(tick + LOGIN_TICK);
            looked = now;
            let somebody = self.registry.pass_login_time(passed, timeout);
            if reserve.is_none() {
                reserve = self.new_reserve();
            }

            // A connection that has closed may have left a descriptor.
            let vacancy = self.registry.take_vacancy();
            for (rest, from) in rests.iter_mut().zip(&listening) {
                if vacancy {
                    rest.last = Duration::ZERO;
                }
                if rest.until.is_some_and(|until| vacancy || until <= now) {
                    rest.until = None;
                    from.record.set(ListenerState::Accepting);
                }
            }
            let rest = rests.iter().filter_map(|rest| rest.until).min();
            let rest = rest.map(|until| until.saturating_duration_since(now));
            let wait = rest.into_iter().chain(somebody.then_some(tick)).min();
            self.registry.want_vacancy(rest.is_some());
            let awake: Vec<usize> = (0..listening.len())
                .filter(|i| rests[*i].until.is_none())
                .collect();
            let acceptors: Vec<&Acceptor> = awake.iter().map(|i| &listening[*i].acceptor).collect();
            let Ok(ready) = listener::wait(&acceptors, &self.bell, wait) else {
                // No memory for the call: all rest.
                self.registry.count_accept_error();
                thread::sleep(REST_MAX);
                continue;
            };
            // Rotated, so that a flood on one listener does not starve those after it.
            first += 1;
            let mut dead = Vec::new();
            for turn in 0..awake.len() {
                let at = (first + turn) % awake.len();
                let index = awake[at];
                if ready[at] == At::Nobody {
                    continue;
                }
                let got = match batch(&listening[index], BATCH, &mut reserve) {
                    // Linux says so of a Unix listener that was shut.
                    Ok(0) if ready[at] == At::Shut => Err(io::ErrorKind::NotConnected.into()),
                    got => got,
                };
                match got {
                    Ok(_) => rests[index].last = Duration::ZERO,
                    Err(error) => {
                        let record = &listening[index].record;
                        if AcceptError::of(&error) == AcceptError::Shortage {
                            self.registry.count_accept_error();
                            record.failed(ListenerState::Resting, &error);
                            rests[index].begin();
                        } else {
                            record.failed(ListenerState::Dead, &error);
                            self.registry.tell_death(record.at(), &error);
                            dead.push(index);
                        }
                    }
                }
            }
            dead.sort_unstable();
            for index in dead.into_iter().rev() {
                listening.remove(index);
                rests.remove(index);
            }
        }
    }

    /// Does what somebody has asked for. True: the thread is to end.
    fn obey(&self, listening: &mut Vec<Listening>) -> bool {
        let (give_up, end) = {
            let orders = self.orders.lock();
            (orders.give_up.filter(|_| !orders.done), orders.end)
        };
        let Some(how) = give_up else {
            return end;
        };
        let mut handed_over = Vec::new();
        for from in listening.drain(..) {
            from.record.set(ListenerState::Closed);
            match how {
                GiveUp::Close => {
                    // They count as accepted, and are told.
                    let _ = batch(&from, LAST, &mut None);
                }
                GiveUp::HandOver => handed_over.push(from.acceptor.hand_over()),
            }
        }
        let mut orders = self.orders.lock();
        orders.handed_over = handed_over;
        orders.done = true;
        self.given_up.notify_all();
        orders.end
    }

    fn new_reserve(&self) -> Option<File> {
        self.reserve
            .then(|| File::open(os::NULL_DEVICE).ok())
            .flatten()
    }
}

/// Takes up to `most` connections from a listener. Returns how many, those that had gone again included.
fn batch(from: &Listening, most: usize, reserve: &mut Option<File>) -> io::Result<usize> {
    for taken in 0..most {
        match from.acceptor.accept() {
            Ok(stream) => {
                from.record.count_accepted();
                (from.admit)(stream);
            }
            Err(error) => match AcceptError::of(&error) {
                AcceptError::Empty => return Ok(taken),
                AcceptError::Passing => {}
                AcceptError::Shortage if reserve.take().is_some() => {}
                AcceptError::Shortage | AcceptError::Dead => return Err(error),
            },
        }
    }
    Ok(most)
}
