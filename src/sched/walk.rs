//! Walks the scheduler through every sequence of moves of a small world, and through long random
//! ones of a larger world.
//!
//! A [`World`] is a group's [`State`] with what surrounds it: workers that are each at one point of
//! their loop, connections, the poller, the monitor, a clock. A [`Move`] is one step of one of them,
//! as the group's code, the kernel or a client may make it. After each move [`World::check`] looks
//! at what must hold at any time; [`World::come_to_rest`] then lets a copy of the world do what it
//! is bound to do by itself, and looks at what must hold at rest.
//!
//! The numbers of the invariants are those of the list at [`World::check_at_rest`].

use std::collections::HashSet;
use std::fmt::Debug;

use super::table::{Phase, Slot};
use super::*;
use crate::port::Readiness;

/// A millisecond: what the clock of a world moves by, and `handover`.
const MS: Nanos = Nanos(1_000_000);
/// After a thread could not be created; as the monitor does it.
const RETRY: Nanos = Nanos(2 * MS.0);

const fn bounds(oversubscribe: usize) -> Bounds {
    Bounds {
        policy: Policy::Conserving,
        dedicated_listener: false,
        oversubscribe,
        stall_limit: Nanos(2 * MS.0),
        handover: MS,
        kickup: NEVER,
        park_time: MS,
        creation_throttle: Nanos(0),
        idle_timeout: NEVER,
        transaction_timeout: NEVER,
        read_timeout: NEVER,
        write_timeout: NEVER,
        crammed_timeout: NEVER,
        look_again: NEVER,
    }
}

const NOTHING: Readiness = Readiness::NOTHING;
const READABLE: Readiness = Readiness::READABLE;
const READ_CLOSED: Readiness = Readiness::READ_CLOSED;
const PRIORITY: Readiness = Readiness::PRIORITY;
const WRITABLE: Readiness = Readiness::WRITABLE;
const HUNG_UP: Readiness = Readiness::HUNG_UP;

const IDLE: End = End::Idle { in_command: false };
const IN_COMMAND: End = End::Idle { in_command: true };
const FLUSH: End = End::Flush {
    crammed: false,
    moved: true,
};
/// Less has left than sets the clock.
const STILL: End = End::Flush {
    crammed: false,
    moved: false,
};
const CRAM: End = End::Flush {
    crammed: true,
    moved: true,
};
/// Which park it is follows from the connection.
const PARK: End = End::Park { ticket: 0 };
/// How far ahead a handler asks to be woken.
const SOON: Nanos = Nanos(2 * MS.0);

/// What may happen in a world, and how much of it there is.
#[derive(Clone, Debug)]
struct Setup {
    connections: usize,
    max_threads: usize,
    bounds: Bounds,
    ready: &'static [Readiness],
    ends: &'static [End],
    lanes: &'static [Lane],
    waits: bool,
    longs: bool,
    /// Threads are found blocked, or not blocked any more.
    detects: bool,
    /// Handlers ask to be woken.
    untils: bool,
    pokes: bool,
    /// Commands are cancelled, and not their connections.
    interrupts: bool,
    /// Turns are not for what a client asked for.
    unheard: bool,
    /// Sessions are in a transaction.
    transactions: bool,
    /// Parked connections are resumed, in time and too late, and resumes are dropped.
    resumes: bool,
    /// What sessions say that they hold, if they do not keep silent about it.
    holds: &'static [bool],
    boosts: bool,
    kills: bool,
    drains: bool,
    stops: bool,
    threads_fail: bool,
    /// The cap is lowered by one thread, once.
    lowers: bool,
}

impl Setup {
    /// One connection, one worker, short commands.
    const fn plain(connections: usize, max_threads: usize) -> Self {
        Self {
            connections,
            max_threads,
            bounds: bounds(1),
            ready: &[READABLE],
            ends: &[IDLE, End::Again, End::Closed],
            lanes: &[Lane::Low],
            waits: false,
            longs: false,
            detects: false,
            untils: false,
            pokes: false,
            interrupts: false,
            unheard: false,
            transactions: false,
            resumes: false,
            holds: &[],
            boosts: false,
            kills: false,
            drains: false,
            stops: false,
            threads_fail: false,
            lowers: false,
        }
    }
}

/// A connection in a worker's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hand {
    conn: usize,
    to_close: bool,
    killed: bool,
}

/// Where a worker's thread is in its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// There is no thread.
    Gone,
    /// Asks what to do next.
    Asking,
    Polling {
        block: bool,
    },
    Parked {
        called: bool,
    },
    Running(Hand),
    Waiting(Hand),
}

/// A connection as its client and its handler know it.
#[derive(Clone, Debug, Default)]
struct Conn {
    key: Option<Key>,
    /// A worker has had it: it is registered with the poller.
    opened: bool,
    killed: bool,
    /// What the poller has said of it since a worker last took it.
    unseen: Readiness,
    /// It has been poked since, and its command cancelled.
    poked: bool,
    interrupted: bool,
    /// When it was last heard, or took something.
    since: Nanos,
    /// Its last `Resume`, which its handler makes whenever the one before is of no use any more.
    made: Ticket,
    /// That has been used, and the park that it is for has not been over yet.
    resumed: bool,
}

/// Where the monitor is in its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Monitor {
    Awake,
    /// It has ticked and is about to count a worker in.
    Spawning {
        due_to_stall: bool,
        excess: bool,
    },
    /// It has counted this worker in, and creates its thread.
    Creating(WorkerId),
    /// It has said that it sleeps, has ticked, and is about to read the deadlines.
    Drowsy {
        rung: bool,
    },
    Asleep {
        until: Option<Nanos>,
    },
}

/// What a turn leaves behind.
#[derive(Clone, Copy, Debug)]
struct Leave {
    end: End,
    lane: Lane,
    holding: Option<bool>,
    in_transaction: bool,
    heard: bool,
    until: bool,
}

impl Leave {
    fn with(end: End, lane: Lane) -> Self {
        Self {
            end,
            lane,
            holding: None,
            in_transaction: false,
            heard: true,
            until: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Move {
    // The outside.
    Attach(usize),
    Kill(usize),
    /// A kill by a handle that was kept too long.
    KillGone,
    Poke(usize),
    Interrupt(usize),
    /// By its last `Resume`, used or dropped; by the one before.
    Resume(usize, bool),
    Late(usize),
    Boost(usize),
    Unboost(usize),
    Drain,
    Stop,
    Lower,
    Pass,
    // A worker, by its number.
    Take(usize),
    /// The poller returns with nothing; with something of a connection; with something of one that
    /// has gone.
    Nothing(usize),
    Event(usize, usize, Readiness),
    Stale(usize, Readiness),
    /// The sleep of a parked worker ends.
    Woken(usize),
    Turn(usize, Leave),
    WaitBegin(usize),
    WaitEnd(usize),
    Long(usize),
    // The monitor. Whose threads it looks at are blocked, or are not.
    Tick(bool),
    Spawn,
    Created,
    NotCreated,
    Sleep,
}

#[derive(Clone, Debug)]
struct World {
    setup: &'static Setup,
    sched: State<usize>,
    now: Nanos,
    workers: Vec<At>,
    conns: Vec<Conn>,
    gone: Option<Key>,
    /// The poller has been rung and has not returned since.
    rung: bool,
    monitor: Monitor,
    /// How many threads there may be.
    cap: usize,
    /// How far a clock that was read early may be behind. Whoever makes a move reads the clock
    /// before it has the lock.
    lag: Nanos,
}

impl World {
    /// A group as it starts: one worker, its thread created, nobody connected.
    fn new(setup: &'static Setup) -> Self {
        let mut sched = State::new(setup.bounds.clone());
        let first = sched.spawning(Nanos(0), false, false);
        let mut world = Self {
            setup,
            sched,
            now: MS,
            workers: vec![At::Gone; setup.max_threads],
            conns: vec![Conn::default(); setup.connections],
            gone: None,
            rung: false,
            monitor: Monitor::Awake,
            cap: setup.max_threads,
            lag: Nanos(0),
        };
        world.workers[first.index()] = At::Asking;
        world
    }

    // ---- moves ----

    fn moves(&self) -> Vec<Move> {
        let setup = self.setup;
        let mut moves = vec![Move::Pass];
        for (c, conn) in self.conns.iter().enumerate() {
            match conn.key {
                None => moves.push(Move::Attach(c)),
                Some(_) if setup.kills && !conn.killed => moves.push(Move::Kill(c)),
                Some(_) => {}
            }
            if let Some(key) = conn.key
                && setup.boosts
            {
                // By one at a time: how many there are makes no other difference.
                let slot = self.sched.table.get(key).expect("it is connected");
                let waited_for = slot.boosted > slot.unboosted;
                if waited_for || slot.disowned > 0 {
                    moves.push(Move::Unboost(c));
                }
                if !waited_for && slot.disowned <= 1 {
                    moves.push(Move::Boost(c));
                }
            }
            if !conn.opened {
                continue;
            }
            if setup.pokes && !conn.poked {
                moves.push(Move::Poke(c));
            }
            if setup.interrupts && !conn.interrupted {
                moves.push(Move::Interrupt(c));
            }
            if setup.resumes && conn.made > 0 {
                moves.push(Move::Late(c));
                if !conn.resumed {
                    moves.extend([false, true].map(|dropped| Move::Resume(c, dropped)));
                }
            }
        }
        if setup.kills && self.gone.is_some() {
            moves.push(Move::KillGone);
        }
        if setup.drains && !self.sched.draining {
            moves.push(Move::Drain);
        }
        // The monitor sees it when it looks next.
        let looks = !matches!(self.monitor, Monitor::Spawning { .. });
        if setup.lowers && self.cap == setup.max_threads && looks && !self.sched.stopping {
            moves.push(Move::Lower);
        }
        for (w, at) in self.workers.iter().enumerate() {
            self.moves_of(w, *at, &mut moves);
        }
        match self.monitor {
            // It may tick at any time: another group has something to watch.
            Monitor::Awake | Monitor::Asleep { .. } if !self.sched.stopping => {
                moves.push(Move::Tick(false));
                if setup.detects {
                    moves.push(Move::Tick(true));
                }
            }
            Monitor::Awake | Monitor::Asleep { .. } => {}
            Monitor::Spawning { .. } => moves.push(Move::Spawn),
            Monitor::Creating(_) => {
                moves.push(Move::Created);
                if setup.threads_fail {
                    moves.push(Move::NotCreated);
                }
            }
            Monitor::Drowsy { .. } => moves.push(Move::Sleep),
        }
        // The monitor has been joined before a group is stopped.
        let monitor_ended = matches!(self.monitor, Monitor::Awake | Monitor::Asleep { .. });
        if setup.stops && !self.sched.stopping && monitor_ended {
            moves.push(Move::Stop);
        }
        moves
    }

    fn moves_of(&self, w: usize, at: At, moves: &mut Vec<Move>) {
        let setup = self.setup;
        match at {
            At::Gone => {}
            At::Asking => moves.push(Move::Take(w)),
            At::Polling { block } => {
                if !block || self.rung {
                    moves.push(Move::Nothing(w));
                }
                for ready in setup.ready {
                    for (c, conn) in self.conns.iter().enumerate() {
                        if conn.opened {
                            moves.push(Move::Event(w, c, *ready));
                        }
                    }
                }
                if self.gone.is_some() {
                    moves.push(Move::Stale(w, setup.ready[0]));
                }
            }
            // Uncalled: its time is over.
            At::Parked { .. } => moves.push(Move::Woken(w)),
            At::Running(hand) => {
                for end in setup.ends {
                    if hand.killed && *end != End::Closed {
                        continue;
                    }
                    for lane in setup.lanes {
                        let leave = Leave::with(*end, *lane);
                        moves.push(Move::Turn(w, leave));
                        let rests = matches!(end, End::Idle { .. } | End::Park { .. });
                        if setup.untils && rests {
                            let until = true;
                            moves.push(Move::Turn(w, Leave { until, ..leave }));
                        }
                        if setup.unheard {
                            let heard = false;
                            moves.push(Move::Turn(w, Leave { heard, ..leave }));
                        }
                        if setup.transactions {
                            let in_transaction = true;
                            let leave = Leave {
                                in_transaction,
                                ..leave
                            };
                            moves.push(Move::Turn(w, leave));
                        }
                        for holding in setup.holds {
                            let holding = Some(*holding);
                            moves.push(Move::Turn(w, Leave { holding, ..leave }));
                        }
                    }
                }
                if setup.waits {
                    moves.push(Move::WaitBegin(w));
                }
                if setup.longs {
                    moves.push(Move::Long(w));
                }
            }
            At::Waiting(_) => {
                moves.push(Move::WaitEnd(w));
                if setup.longs {
                    moves.push(Move::Long(w));
                }
            }
        }
    }

    fn make(&mut self, step: Move) {
        let now = Nanos(self.now.0 - self.lag.0);
        match step {
            Move::Attach(c) => match self.sched.attach(c, now) {
                Ok((key, actions)) => {
                    self.conns[c] = Conn {
                        key: Some(key),
                        since: now,
                        ..Conn::default()
                    };
                    self.perform(actions);
                }
                Err(task) => assert!(task == c && self.sched.stopping),
            },
            Move::Kill(c) => {
                let key = self.conns[c].key.expect("it is connected");
                self.conns[c].killed = true;
                assert!(self.sched.contains(key));
                let actions = self.sched.kill(key, now);
                self.perform(actions);
            }
            Move::KillGone => {
                let key = self.gone.expect("one has gone");
                assert!(!self.sched.contains(key));
                let actions = self.sched.kill(key, now);
                self.perform(actions);
            }
            Move::Poke(c) => {
                self.conns[c].poked = true;
                let key = self.conns[c].key.expect("it is connected");
                let actions = self.sched.poke(key, now);
                self.perform(actions);
            }
            Move::Interrupt(c) => {
                self.conns[c].interrupted = true;
                let key = self.conns[c].key.expect("it is connected");
                let actions = self.sched.interrupt(key, now);
                self.perform(actions);
            }
            Move::Resume(c, dropped) => {
                let conn = &mut self.conns[c];
                conn.resumed = true;
                let (key, made) = (conn.key.expect("it is connected"), conn.made);
                let (won, actions) = self.sched.resume(key, made, dropped, now);
                assert!(won, "a resume in time counts");
                self.perform(actions);
            }
            Move::Late(c) => {
                let conn = &self.conns[c];
                let key = conn.key.expect("it is connected");
                let before = self.sched.table.phase(key);
                let (won, actions) = self.sched.resume(key, conn.made - 1, false, now);
                assert!(!won, "a late resume counts");
                assert_eq!(self.sched.table.phase(key), before);
                self.perform(actions);
            }
            Move::Boost(c) => {
                let key = self.conns[c].key.expect("it is connected");
                let actions = self.sched.boost(key, now);
                self.perform(actions);
            }
            Move::Unboost(c) => {
                let key = self.conns[c].key.expect("it is connected");
                let actions = self.sched.unboost(key, now);
                self.perform(actions);
            }
            Move::Drain => {
                let actions = self.sched.drain(self.setup.transactions, now);
                self.perform(actions);
            }
            Move::Stop => self.stop(),
            Move::Lower => {
                self.cap -= 1;
                let known = self.cap + self.sched.excess();
                let more = self.sched.threads().saturating_sub(known);
                if more > 0 {
                    let (workers, actions) = self.sched.add_excess(more, now);
                    self.called(&workers);
                    self.perform(actions);
                }
            }
            Move::Pass => self.now = self.now.after(MS),
            Move::Take(w) => self.take(w, now),
            Move::Nothing(w) => self.harvest(w, None, now),
            Move::Stale(w, ready) => {
                let key = self.gone.expect("one has gone");
                self.harvest(w, Some((key, ready)), now);
            }
            Move::Event(w, c, ready) => {
                let conn = &mut self.conns[c];
                conn.unseen = conn.unseen.and(ready);
                let key = conn.key.expect("it is connected");
                self.harvest(w, Some((key, ready)), now);
            }
            Move::Woken(w) => {
                let At::Parked { called } = self.workers[w] else {
                    panic!("worker {w} is not parked");
                };
                let id = self.id(w);
                assert_eq!(self.sched.is_parked(id), !called);
                let stays = self.sched.slept(id, true);
                assert!(stays || !called, "4: a time-out has lost a call");
                self.workers[w] = if stays { At::Asking } else { At::Gone };
                assert!(
                    self.workers.iter().any(|at| *at != At::Gone),
                    "the last has left"
                );
            }
            Move::Turn(w, leave) => self.turn(w, leave, now),
            Move::WaitBegin(w) => {
                let At::Running(hand) = self.workers[w] else {
                    panic!("worker {w} does not run");
                };
                self.workers[w] = At::Waiting(hand);
                let actions = self.sched.wait_begin(self.id(w), None, now);
                self.perform(actions);
            }
            Move::WaitEnd(w) => {
                let At::Waiting(hand) = self.workers[w] else {
                    panic!("worker {w} does not wait");
                };
                self.workers[w] = At::Running(hand);
                self.sched.wait_end(self.id(w), now);
            }
            Move::Long(w) => {
                let actions = self.sched.declare_long(self.id(w), now);
                self.perform(actions);
            }
            Move::Tick(blocked) => self.tick(now, blocked),
            Move::Spawn => {
                let Monitor::Spawning {
                    due_to_stall,
                    excess,
                } = self.monitor
                else {
                    panic!("the monitor is not about to create a thread");
                };
                let worker = self.sched.spawning(now, due_to_stall, excess);
                while self.workers.len() <= worker.index() {
                    self.workers.push(At::Gone);
                }
                assert_eq!(self.workers[worker.index()], At::Gone);
                self.monitor = Monitor::Creating(worker);
            }
            Move::Created | Move::NotCreated => {
                let Monitor::Creating(worker) = self.monitor else {
                    panic!("the monitor creates no thread");
                };
                self.monitor = Monitor::Awake;
                if matches!(step, Move::Created) {
                    self.workers[worker.index()] = At::Asking;
                } else {
                    self.sched.spawn_failed(worker, now.after(RETRY));
                }
            }
            Move::Sleep => {
                let until = self.sched.next_deadline(self.now);
                self.monitor = match self.monitor {
                    Monitor::Drowsy { rung: true } => Monitor::Awake,
                    _ => Monitor::Asleep { until },
                };
            }
        }
    }

    fn id(&self, w: usize) -> WorkerId {
        self.sched.crew.id(w)
    }

    /// Carries out what a move asked for.
    fn perform(&mut self, actions: Actions) {
        match actions.call {
            Call::Nobody => {}
            Call::Worker(worker) => {
                let at = &mut self.workers[worker.index()];
                assert_eq!(
                    *at,
                    At::Parked { called: false },
                    "4: a worker is called twice"
                );
                *at = At::Parked { called: true };
            }
            Call::Poller => {
                let polls = |at: &At| matches!(at, At::Polling { .. });
                assert!(self.workers.iter().any(polls), "nobody is there to be rung");
                self.rung = true;
            }
            Call::Spawn => self.ring(),
            Call::Spare => unreachable!("only the monitor is told"),
        }
        if actions.tick {
            self.ring();
        }
        // MariaDB's policy waits for ticks.
        if self.is_mariadb() {
            return;
        }
        // 1, as far as it holds at once: for what a move has changed nobody waits for a tick.
        let sched = &self.sched;
        let free = |at: &At| matches!(at, At::Parked { called: false } | At::Polling { .. });
        let now = Nanos(self.now.0 - self.lag.0);
        let work = work(sched, now) && !sched.stopping;
        let called = sched.crew.coming() > 0;
        assert!(
            called || !work || !self.workers.iter().any(free),
            "1: nobody is called"
        );
    }

    fn is_mariadb(&self) -> bool {
        self.setup.bounds.policy == Policy::Mariadb
    }

    fn ring(&mut self) {
        match &mut self.monitor {
            Monitor::Drowsy { rung } => *rung = true,
            Monitor::Asleep { .. } => self.monitor = Monitor::Awake,
            Monitor::Awake | Monitor::Spawning { .. } | Monitor::Creating(_) => {}
        }
    }

    fn stop(&mut self) {
        let (workers, poller) = self.sched.stop();
        self.called(&workers);
        self.rung |= poller;
    }

    fn called(&mut self, workers: &[WorkerId]) {
        for worker in workers {
            let at = &mut self.workers[worker.index()];
            assert_eq!(*at, At::Parked { called: false });
            *at = At::Parked { called: true };
        }
    }

    fn take(&mut self, w: usize, now: Nanos) {
        assert_eq!(self.workers[w], At::Asking);
        let (step, actions) = self.sched.take(self.id(w), now);
        self.workers[w] = match step {
            Step::Run(Job {
                key, task, wake, ..
            }) => {
                let slots = 1 + self.setup.bounds.oversubscribe;
                assert!(self.is_mariadb() || self.sched.crew.active() <= slots);
                let conn = &mut self.conns[task];
                assert_eq!(conn.key, Some(key));
                let all = wake.ready.and(conn.unseen);
                assert_eq!(all, wake.ready, "3: readiness is lost");
                assert!(!conn.poked || wake.is(Told::POKED), "a poke is lost");
                assert!(
                    !conn.interrupted || wake.is(Told::INTERRUPTED),
                    "a cancellation is lost"
                );
                assert!(
                    !conn.killed || wake.close == Some(CloseReason::Killed),
                    "a kill is lost"
                );
                conn.unseen = NOTHING;
                conn.opened = true;
                conn.poked = false;
                conn.interrupted = false;
                if self.setup.resumes && (conn.made == 0 || wake.is(Told::RESUMED)) {
                    conn.made += 1;
                    conn.resumed = false;
                }
                At::Running(Hand {
                    conn: task,
                    to_close: wake.close.is_some(),
                    killed: conn.killed,
                })
            }
            Step::Poll { block } => At::Polling { block },
            Step::Park(time) => {
                assert!(time <= self.setup.bounds.park_time);
                At::Parked { called: false }
            }
            Step::Exit => At::Gone,
        };
        self.perform(actions);
    }

    fn harvest(&mut self, w: usize, event: Option<(Key, Readiness)>, now: Nanos) {
        assert!(matches!(self.workers[w], At::Polling { .. }));
        self.rung = false;
        self.workers[w] = At::Asking;
        let events = event.map(|(key, readiness)| Event {
            token: key.to_token(),
            readiness,
        });
        self.sched.harvested(self.id(w), events, now);
        // Under one lock. Ours does not need that.
        if self.is_mariadb() {
            self.take(w, now);
        }
    }

    fn turn(&mut self, w: usize, leave: Leave, now: Nanos) {
        let At::Running(hand) = self.workers[w] else {
            panic!("worker {w} does not run");
        };
        let conn = &self.conns[hand.conn];
        let key = conn.key.expect("it is connected");
        let end = match leave.end {
            End::Park { .. } => End::Park { ticket: conn.made },
            end => end,
        };
        let until = if leave.until { now.after(SOON) } else { NEVER };
        let turn = Turn {
            end,
            lane: leave.lane,
            holding: leave.holding,
            in_transaction: leave.in_transaction,
            look_again: false,
            calls: 1,
            heard: leave.heard,
            until,
        };
        let moved = matches!(end, End::Flush { moved: true, .. });
        if leave.heard || moved {
            self.conns[hand.conn].since = now;
        }
        let gone = self.sched.settle(self.id(w), key, hand.conn, turn, now);
        self.workers[w] = At::Asking;
        assert_eq!(gone, (end == End::Closed).then_some(hand.conn));
        if gone.is_some() {
            assert!(!self.sched.contains(key));
            self.conns[hand.conn] = Conn::default();
            self.gone = Some(key);
        }
    }

    fn tick(&mut self, now: Nanos, blocked: bool) {
        let actions = self.sched.tick(now);
        let others = self.sched.call_for_slots(now);
        self.called(&others);
        let suspects = self.sched.suspects(now);
        let mut again = actions.tick;
        let due_to_stall = self.sched.due_to_stall();
        self.monitor = Monitor::Awake;
        if matches!(actions.call, Call::Spawn | Call::Spare) {
            again = true;
            if self.sched.threads() < self.cap {
                self.monitor = Monitor::Spawning {
                    due_to_stall,
                    excess: false,
                };
            } else if actions.call == Call::Spawn && self.sched.capped(now) {
                assert!(
                    self.sched.excess() < self.sched.table.holding(),
                    "7: no holder"
                );
                self.monitor = Monitor::Spawning {
                    due_to_stall,
                    excess: true,
                };
            }
        } else {
            self.perform(Actions {
                tick: false,
                ..actions
            });
        }
        let room = self.sched.threads().saturating_sub(self.cap);
        self.sched.limit_excess(room);
        for suspect in suspects {
            let actions = self.sched.judge(suspect, blocked, now);
            again |= actions.tick;
            self.perform(Actions {
                tick: false,
                ..actions
            });
        }
        if !again && self.monitor == Monitor::Awake {
            self.monitor = Monitor::Drowsy { rung: false };
        }
    }

    // ---- what must hold at any time ----

    fn check(&self) {
        let State {
            table, lanes, crew, ..
        } = &self.sched;
        crew.check();
        table.check();
        assert!(
            crew.threads() <= self.cap + crew.excess(),
            "7: the cap is exceeded"
        );
        assert_eq!(
            table.len(),
            self.conns.iter().filter(|c| c.key.is_some()).count()
        );

        // 3: a connection is in one place. A key in a lane is that of a queued connection, and each
        // queued connection is in its lane, once.
        for (lane, key, _) in lanes.entries() {
            let slot = table.get(key).expect("a lane holds somebody who has gone");
            assert_eq!(slot.phase, Phase::Queued { lane });
        }
        for (c, conn) in self.conns.iter().enumerate() {
            let Some(key) = conn.key else { continue };
            let slot = table.get(key).expect("it is connected");
            let queued = lanes.entries().filter(|(_, k, _)| *k == key).count();
            let held = self.workers.iter().filter(|at| at.holds(c)).count();
            assert_eq!(
                queued,
                usize::from(matches!(slot.phase, Phase::Queued { .. }))
            );
            assert_eq!(held, usize::from(slot.phase == Phase::Running));
            assert!(held == 1 || slot.task == Some(c));
            self.check_nothing_lost(conn, slot);
        }
    }

    /// 3: what has happened to a connection either is sticky or runs it.
    fn check_nothing_lost(&self, conn: &Conn, slot: &Slot<usize>) {
        let all = slot.wake.ready.and(conn.unseen);
        assert_eq!(all, slot.wake.ready, "readiness is lost");
        assert!(!conn.poked || slot.wake.is(Told::POKED), "a poke is lost");
        assert!(
            !conn.interrupted || slot.wake.is(Told::INTERRUPTED),
            "a cancellation is lost"
        );
        assert!(
            !conn.resumed || slot.resumed == conn.made,
            "a resume is lost"
        );
        match slot.phase {
            Phase::Idle { in_command } => {
                assert_eq!(slot.since, conn.since, "whose silence is this?");
                assert!(!conn.killed, "a killed connection rests");
                assert!(!conn.poked, "a poked connection rests");
                assert!(
                    !conn.unseen.input(),
                    "input is there, and the connection rests"
                );
                let goes_on =
                    slot.is(Marks::IN_TRANSACTION) || (in_command && slot.lane != Lane::Control);
                assert!(goes_on || !self.sched.draining, "idle in a drain");
                assert!(
                    !in_command || !conn.interrupted,
                    "it rests in a command that was cancelled"
                );
            }
            Phase::Flushing { crammed } => {
                assert_eq!(slot.since, conn.since, "since when does nothing leave?");
                assert!(!conn.killed, "a killed connection rests");
                assert!(
                    !conn.interrupted,
                    "it rests in a command that was cancelled"
                );
                assert!(
                    !conn.unseen.has_any_of(WRITABLE),
                    "there is room, and the connection rests"
                );
                assert!(
                    crammed || !conn.unseen.input(),
                    "input may be taken, and the connection rests"
                );
            }
            Phase::Parked => {
                assert!(!conn.killed, "a killed connection rests");
                assert!(!conn.poked, "a poked connection rests");
                assert!(!conn.resumed, "a resumed connection rests");
                assert!(
                    !conn.interrupted,
                    "it rests in a command that was cancelled"
                );
                assert!(
                    !conn.unseen.has_any_of(HUNG_UP.and(WRITABLE)),
                    "its client has gone, and the connection rests"
                );
            }
            Phase::Queued { lane } => {
                if self.is_mariadb() {
                    assert!(matches!(lane, Lane::High | Lane::Low));
                    return;
                }
                let urgent = matches!(lane, Lane::Control | Lane::Holding);
                assert!(urgent || !conn.killed, "a killed connection queues");
                assert_eq!(
                    lane == Lane::Holding,
                    slot.is(Marks::HOLDING) || slot.boosted > 0,
                    "whoever holds something is in the lane of those who do"
                );
            }
            Phase::Running => {}
            Phase::Free => panic!("it is connected"),
        }
    }

    // ---- what must hold at rest ----

    /// Does what the world is bound to do by itself, while no command ends: calls are followed,
    /// the monitor ticks if it is awake, threads that are asked for are created.
    ///
    /// `known` holds worlds that are known to come to rest in order; those met on the way are added.
    fn come_to_rest(&mut self, known: &mut HashSet<Code>) -> bool {
        let mut met = Vec::new();
        for _ in 0..1000 {
            while let Some(step) = self.bound_move() {
                self.make(step);
                self.check();
            }
            let code = self.encode();
            if known.contains(&code) {
                known.extend(met);
                return false;
            }
            // Asleep: nothing more happens. Awake for ever: the same things happen again.
            if matches!(self.monitor, Monitor::Asleep { .. }) || met.contains(&code) {
                known.extend(met);
                return true;
            }
            met.push(code);
            self.make(Move::Pass);
            if self.monitor == Monitor::Awake && !self.sched.stopping {
                self.make(Move::Tick(false));
            }
        }
        panic!("this world does not come to rest");
    }

    /// A move that somebody is about to make.
    fn bound_move(&self) -> Option<Move> {
        match self.monitor {
            Monitor::Spawning { .. } => return Some(Move::Spawn),
            Monitor::Creating(_) => return Some(Move::Created),
            Monitor::Drowsy { .. } => return Some(Move::Sleep),
            Monitor::Awake | Monitor::Asleep { .. } => {}
        }
        self.workers
            .iter()
            .enumerate()
            .find_map(|(w, at)| match at {
                At::Asking => Some(Move::Take(w)),
                At::Polling { block } if self.rung || !block => Some(Move::Nothing(w)),
                At::Parked { called: true } => Some(Move::Woken(w)),
                _ => None,
            })
    }

    /// 1. *Work conservation*: work, an open gate and somebody to do it do not coexist.
    /// 2. *Poll coverage*: while a connection rests somebody is in the poller, unless every thread
    ///    that there may be is in a command.
    /// 4. *Tokens*: nobody is on the way for ever.
    ///
    /// And the monitor does not sleep beyond a deadline.
    fn check_at_rest(&self) {
        if self.sched.stopping {
            let gone = |at: &At| matches!(at, At::Gone | At::Running(_) | At::Waiting(_));
            assert!(self.workers.iter().all(gone), "11: somebody has not gone");
            return;
        }
        let sched = &self.sched;
        assert_eq!(sched.crew.coming(), 0, "4: somebody is on the way for ever");
        if self.is_mariadb() {
            // What the ticks come to in the end.
            let polled = sched.crew.listener().is_some();
            let missing = sched.lanes.len() > 0 || (!polled && sched.table.resting() > 0);
            let parked = sched.crew.parked() > 0;
            assert!(!missing || !parked, "1, 2: ticks wake nobody");
        } else {
            self.check_conserved();
        }
        let swept = sched.table.earliest_deadline(&self.setup.bounds);
        let swept = swept.map(|due| due.max(sched.sweep_at));
        // Or a handler has asked for that moment.
        let due = swept.into_iter().chain(sched.timers.earliest()).min();
        if let (Monitor::Asleep { until }, Some(due)) = (self.monitor, due) {
            assert!(
                until.unwrap_or(NEVER) <= due,
                "the monitor sleeps until {until:?}, and a deadline is at {due:?}"
            );
        }
    }

    /// 1, 2 and 7 as our policy keeps them.
    fn check_conserved(&self) {
        let sched = &self.sched;
        let now = self.now.after(self.setup.bounds.handover);
        let free = |at: &At| matches!(at, At::Parked { .. } | At::Polling { .. });
        let somebody = self.workers.iter().any(free) || sched.threads() < self.cap;
        // Long commands wait at their bound, but not beyond the age that promotes.
        let asleep =
            matches!(self.monitor, Monitor::Asleep { until: Some(until) } if until != NEVER);
        let promoted = self.setup.bounds.kickup != NEVER
            && !asleep
            && sched.lanes.len() > 0
            && sched.crew.ordinary_allowed();
        let work = work(sched, now) || (promoted && conserving::gate_open(sched, now));
        assert!(!(work && somebody), "1: work waits, and so does a worker");
        // 7: and whoever holds something may have a thread beyond the cap.
        let held = sched.lanes.offer(LaneSet::HOLDING) && conserving::gate_open(sched, now);
        assert!(!held, "7: one that holds something waits for a thread");
        let polled = sched.crew.listener().is_some();
        let resting_holder = self.conns.iter().filter_map(|c| c.key).any(|key| {
            let slot = sched.table.get(key).expect("it is connected");
            slot.phase.is_rest() && (slot.is(Marks::HOLDING) || slot.boosted > 0)
        });
        assert!(
            polled || !resting_holder,
            "7: nobody polls for those that hold something"
        );
        assert!(
            sched.crew.excess() <= sched.table.holding() || self.any_parked() || self.all_busy(),
            "7: a thread stays beyond the cap"
        );
        assert!(
            polled || sched.table.resting() == 0 || !somebody,
            "2: nobody polls"
        );
    }

    /// Somebody is parked, and leaves when the time is over.
    fn any_parked(&self) -> bool {
        let parked = |at: &At| matches!(at, At::Parked { .. });
        self.workers.iter().any(parked)
    }

    /// Each has a command: whoever is beyond a cap that was lowered leaves when that has ended.
    fn all_busy(&self) -> bool {
        let busy = |at: &At| matches!(at, At::Gone | At::Running(_) | At::Waiting(_));
        self.workers.iter().all(busy)
    }

    /// Ends every command as soon as it can end, until nothing is left to be done; then, where
    /// there are deadlines, lets all of them pass.
    fn finish(&mut self, known: &mut HashSet<Code>) {
        for _ in 0..1000 {
            let ending = self
                .workers
                .iter()
                .enumerate()
                .find_map(|(w, at)| match at {
                    At::Running(hand) if hand.to_close || self.conns[hand.conn].killed => {
                        Some(Move::Turn(w, Leave::with(End::Closed, Lane::Low)))
                    }
                    At::Running(_) => Some(Move::Turn(w, Leave::with(IDLE, Lane::Low))),
                    At::Waiting(_) => Some(Move::WaitEnd(w)),
                    _ => None,
                });
            if let Some(step) = ending {
                self.make(step);
            } else {
                self.check_finished();
                match self.monitor {
                    Monitor::Asleep { until: Some(until) }
                        if until != NEVER && !self.sched.stopping =>
                    {
                        self.now = self.now.max(until);
                        self.make(Move::Tick(false));
                    }
                    _ => return,
                }
            }
            if !self.come_to_rest(known) {
                return;
            }
        }
        panic!("this world does not finish");
    }

    fn check_finished(&self) {
        self.check_at_rest();
        let mut sched = self.sched.clone();
        if sched.stopping {
            let mut left = sched.leftovers();
            left.sort_unstable();
            let connected = |c: &usize| self.conns[*c].key.is_some();
            assert!(
                left.iter().eq((0..self.conns.len())
                    .filter(connected)
                    .collect::<Vec<_>>()
                    .iter())
            );
            assert_eq!((sched.threads(), sched.table.len()), (0, 0));
            return;
        }
        assert_eq!(sched.lanes.len(), 0, "somebody is never served");
        assert!(
            self.conns.iter().all(|c| !c.killed),
            "a killed connection lives"
        );
        // Whoever is in the middle of something may finish; its deadline sees to it that it does.
        let owing = |key: Key| {
            let idle = matches!(sched.table.phase(key), Phase::Idle { in_command: false });
            !idle
                || sched
                    .table
                    .get(key)
                    .is_some_and(|slot| slot.is(Marks::IN_TRANSACTION))
        };
        assert!(
            !sched.draining || sched.table.keys().all(owing),
            "idle in a drain"
        );
        assert!(sched.threads() > 0);
    }

    /// Brings a copy to rest with the commands that run running on, then with these ended.
    fn check_rests(&self, known: &mut Known) {
        let mut world = self.clone();
        if world.come_to_rest(&mut known.resting) {
            world.check_at_rest();
            let mut world = world.clone();
            world.finish(&mut known.finishing);
        }
    }

    /// Everything that the future depends on, but for names: worlds that differ in which worker or
    /// which connection is which have the same code.
    fn encode(&self) -> Code {
        let bounds = &self.setup.bounds;
        let State {
            table,
            lanes,
            crew,
            draining,
            stopping,
            polled_at,
            sweep_at,
            due,
            due_moved,
            kicked_up_at,
            judged_at,
            timers,
            mariadb,
            ..
        } = &self.sched;
        let mut code = Vec::with_capacity(64);
        code.push(self.cap as u64);
        let mut conns: Vec<(Option<usize>, [u64; 14])> = Vec::with_capacity(self.conns.len());
        for (c, conn) in self.conns.iter().enumerate() {
            let Some(key) = conn.key else { continue };
            let slot = table.code(key, self.now, bounds);
            let known = table.get(key).expect("it is connected");
            let bits = [
                conn.opened,
                conn.killed,
                conn.poked,
                conn.interrupted,
                conn.resumed,
                conn.made > 0,
                known.ticket == conn.made,
                known.resumed == conn.made,
            ];
            let ghost = bits.iter().fold(0, |all, bit| all * 2 + u64::from(*bit));
            let queued = lanes.entries().enumerate().find(|(_, (_, k, _))| *k == key);
            let [lane, place, waited, before] = queued.map_or([0; 4], |(place, (lane, _, at))| {
                if bounds.kickup == NEVER {
                    return [lane as u64, 1 + place as u64, 0, 0];
                }
                let waited = self.now.since(at).min(bounds.kickup);
                let before = lanes.entries().filter(|(.., other)| *other < at).count();
                [lane as u64, 1 + place as u64, waited.0, before as u64]
            });
            let holder = self.workers.iter().position(|at| at.holds(c));
            let mut code = [0; 14];
            code[..8].copy_from_slice(&slot);
            code[8..].copy_from_slice(&[conn.unseen.bits(), ghost, lane, place, waited, before]);
            conns.push((holder, code));
        }
        if bounds.kickup != NEVER {
            code.push(self.now.since(*kicked_up_at).min(bounds.kickup).0);
            code.push(u64::from(lanes.yielded()));
        }
        // A command is long by as many bounds as share the CPU.
        let oldest = Nanos(bounds.stall_limit.0 * self.setup.max_threads as u64);
        let mut workers = Vec::with_capacity(self.workers.len());
        for (w, at) in self.workers.iter().enumerate() {
            let (at, to_close) = match at {
                At::Gone => (0, false),
                At::Asking => (1, false),
                At::Polling { block } => (2, *block),
                At::Parked { called } => (3, *called),
                At::Running(hand) => (4, hand.to_close),
                At::Waiting(hand) => (5, hand.to_close),
            };
            let creating = matches!(self.monitor, Monitor::Creating(id) if id.index() == w);
            let known = crew.has(w).then(|| crew.code(crew.id(w), self.now, oldest));
            let held = conns
                .iter()
                .find(|(holder, _)| *holder == Some(w))
                .map(|(_, code)| *code);
            workers.push((at, to_close, creating, known, held));
        }
        workers.sort_unstable();
        for (at, to_close, creating, known, held) in workers {
            code.extend([at, u64::from(to_close) * 2 + u64::from(creating)]);
            code.extend(known.unwrap_or_default());
            code.extend(held.unwrap_or_default());
        }
        conns.retain(|(holder, _)| holder.is_none());
        conns.sort_unstable();
        for (_, conn) in conns {
            code.extend(conn);
        }
        code.extend(crew.code_of_all(self.now, Nanos(4 * bounds.creation_throttle.0)));
        code.extend([u64::from(*draining), u64::from(*stopping)]);
        code.push(self.now.since(*polled_at).min(bounds.handover).0);
        let ahead = |at: Nanos| {
            if at == NEVER {
                100
            } else {
                at.since(self.now).0
            }
        };
        if bounds.idle_timeout != NEVER {
            code.push(ahead(*sweep_at));
        }
        code.extend([ahead(*due), u64::from(*due_moved)]);
        if self.setup.untils {
            code.push(timers.earliest().map_or(101, ahead));
        }
        if self.is_mariadb() {
            code.extend(mariadb.code(self.now));
        }
        if self.setup.detects {
            code.push(self.now.since(*judged_at).min(bounds.stall_limit).0);
        }
        let (monitor, detail) = match self.monitor {
            Monitor::Awake => (0, 0),
            Monitor::Spawning { .. } => (1, 0),
            Monitor::Creating(_) => (2, 0),
            Monitor::Drowsy { rung } => (3, u64::from(rung)),
            Monitor::Asleep { until } => (4, ahead(until.unwrap_or(NEVER))),
        };
        code.extend([
            monitor,
            detail,
            u64::from(self.rung),
            u64::from(self.gone.is_some()),
        ]);
        code.into_iter().map(small).collect()
    }
}

/// A world in few bytes.
type Code = Box<[u8]>;

/// Times are whole milliseconds here, and everything else is a small number.
fn small(n: u64) -> u8 {
    let n = if n >= MS.0 { 128 + n / MS.0 } else { n };
    u8::try_from(n).expect("times and counts of a small world")
}

/// Whether a command is queued that may start.
fn work(sched: &State<usize>, now: Nanos) -> bool {
    sched.lanes.offer(conserving::open_lanes(sched)) && conserving::gate_open(sched, now)
}

impl At {
    fn holds(&self, c: usize) -> bool {
        matches!(self, At::Running(hand) | At::Waiting(hand) if hand.conn == c)
    }
}

/// Worlds that are known to come to rest, and to finish, in order.
#[derive(Default)]
struct Known {
    resting: HashSet<Code>,
    finishing: HashSet<Code>,
}

/// Prints how a world came about, should its check panic.
struct Story<F: Fn()>(F);

impl<F: Fn()> Drop for Story<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

// ---- the exhaustive walk ----

/// Visits every world that up to `depth` moves lead to, shortest ways first, and checks each.
/// Returns how many there are, and whether that is all: no more moves lead anywhere new.
fn walk(setup: &'static Setup, depth: usize) -> (usize, bool) {
    let start = World::new(setup);
    let mut seen = HashSet::from([start.encode()]);
    let mut known = Known::default();
    // Each world's move, and the place of the one before it.
    let mut ways: Vec<(usize, Move)> = vec![(0, Move::Pass)];
    let mut edge = vec![(0, start)];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (place, world) in edge {
            for step in world.moves() {
                let _story = Story(|| tell(&ways, place, step));
                let mut world = world.clone();
                world.make(step);
                if seen.insert(world.encode()) {
                    world.check();
                    world.check_rests(&mut known);
                    next.push((0, world));
                    drop(_story);
                    ways.push((place, step));
                    let last = next.last_mut().expect("just pushed");
                    last.0 = ways.len() - 1;
                }
            }
        }
        if next.is_empty() {
            return (seen.len(), true);
        }
        edge = next;
    }
    (seen.len(), false)
}

fn tell(ways: &[(usize, Move)], mut place: usize, last: Move) {
    let mut moves = vec![last];
    while place != 0 {
        moves.push(ways[place].1);
        place = ways[place].0;
    }
    moves.reverse();
    eprintln!("the moves that led here: {moves:?}");
}

/// Walks a world to its end, and finds no fewer worlds than there were when the test was written:
/// fewer would mean that the walk has lost something.
#[track_caller]
fn walk_all(setup: Setup, least: usize) {
    let (worlds, complete) = walk(Box::leak(Box::new(setup)), usize::MAX);
    println!("{worlds} worlds");
    assert!(complete);
    assert!(worlds >= least, "{worlds} worlds, and there were {least}");
}

#[test]
fn every_sequence_of_short_commands_keeps_the_invariants() {
    walk_all(Setup::plain(2, 2), 109_715);
}

#[test]
fn every_sequence_with_waits_keeps_the_invariants() {
    walk_all(
        Setup {
            waits: true,
            ..Setup::plain(2, 2)
        },
        251_751,
    );
}

#[test]
fn every_sequence_with_long_commands_keeps_the_invariants() {
    walk_all(
        Setup {
            longs: true,
            ..Setup::plain(2, 1)
        },
        4_874,
    );
}

#[test]
fn every_sequence_in_which_age_promotes_keeps_the_invariants() {
    walk_all(
        Setup {
            bounds: Bounds {
                kickup: Nanos(2 * MS.0),
                ..bounds(1)
            },
            longs: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(2, 1)
        },
        10_430,
    );
}

#[test]
fn every_sequence_in_which_the_old_go_before_the_urgent_keeps_the_invariants() {
    walk_all(
        Setup {
            bounds: Bounds {
                kickup: Nanos(2 * MS.0),
                ..bounds(1)
            },
            lanes: &[Lane::Low, Lane::Control],
            ends: &[IDLE, End::Again],
            ..Setup::plain(2, 1)
        },
        14_654,
    );
}

#[test]
fn every_sequence_with_kills_and_slow_readers_keeps_the_invariants() {
    walk_all(
        Setup {
            kills: true,
            waits: true,
            ready: &[READABLE, WRITABLE],
            ends: &[IDLE, FLUSH, CRAM, End::Again, End::Closed],
            ..Setup::plain(1, 2)
        },
        158_650,
    );
}

#[test]
fn every_sequence_with_a_drain_and_a_stop_keeps_the_invariants() {
    walk_all(
        Setup {
            drains: true,
            transactions: true,
            stops: true,
            ends: &[IDLE, IN_COMMAND, End::Again, End::Closed],
            ..Setup::plain(1, 2)
        },
        159_140,
    );
}

#[test]
fn every_sequence_in_which_threads_cannot_be_had_keeps_the_invariants() {
    walk_all(
        Setup {
            threads_fail: true,
            ..Setup::plain(2, 2)
        },
        123_523,
    );
}

#[test]
fn every_sequence_in_which_the_cap_is_lowered_keeps_the_invariants() {
    walk_all(
        Setup {
            lowers: true,
            waits: true,
            ends: &[IDLE],
            ..Setup::plain(1, 3)
        },
        253_650,
    );
}

/// Parks and what ends them: resumes in time, too late and dropped, hang-ups, pokes, times.
fn parking(max_threads: usize) -> Setup {
    Setup {
        resumes: true,
        pokes: true,
        untils: true,
        ready: &[READABLE, HUNG_UP],
        ends: &[IDLE, PARK, End::Closed],
        ..Setup::plain(1, max_threads)
    }
}

#[test]
fn every_sequence_with_parks_keeps_the_invariants() {
    walk_all(parking(1), 183_247);
}

#[test]
fn every_sequence_with_parks_kills_and_slow_readers_keeps_the_invariants() {
    walk_all(
        Setup {
            kills: true,
            drains: true,
            untils: false,
            ready: &[READABLE, WRITABLE],
            ends: &[IDLE, PARK, FLUSH, CRAM, End::Closed],
            ..parking(1)
        },
        77_506,
    );
}

#[test]
fn every_sequence_with_holders_keeps_the_invariants() {
    walk_all(
        Setup {
            holds: &[true],
            waits: true,
            ends: &[IDLE, End::Again, End::Closed],
            ..Setup::plain(1, 1)
        },
        113_325,
    );
}

/// In a convoy a lock passes on, and those that wait for it have all named whoever had it as they came.
#[test]
fn who_says_that_it_holds_nothing_is_waited_for_no_more() {
    for (says, lane) in [(Some(false), Lane::Low), (None, Lane::Holding)] {
        let mut bench = Bench::running();
        let _ = bench.sched.boost(bench.key, bench.now);
        bench.holding = says;
        bench.settle(End::Again, Lane::Low);
        assert_eq!(bench.sched.table.phase(bench.key), Phase::Queued { lane });
        // Who waited in vain leaves, and takes nothing from who has come since.
        let _ = bench.sched.boost(bench.key, bench.now);
        let _ = bench.sched.unboost(bench.key, bench.now);
        let lane = Lane::Holding;
        assert_eq!(bench.sched.table.phase(bench.key), Phase::Queued { lane });
        let _ = bench.sched.unboost(bench.key, bench.now);
        let lane = Lane::Low;
        assert_eq!(bench.sched.table.phase(bench.key), Phase::Queued { lane });
    }
}

/// Each of those who wait counts once, whether they come and go before its turn, during that, or after it.
#[test]
fn whoever_is_waited_for_goes_first_until_the_last_one_has_stopped() {
    let low = Phase::Queued { lane: Lane::Low };
    let holding = Phase::Queued {
        lane: Lane::Holding,
    };
    let mut bench = Bench::in_phase("low");
    let phase = |bench: &Bench| bench.sched.table.phase(bench.key);
    bench.happen("boost");
    bench.happen("boost");
    bench.happen("boost+unboost");
    let _ = bench.sched.unboost(bench.key, bench.now);
    assert_eq!(phase(&bench), holding, "one is left");
    bench.run();
    // The one who stops during its turn goes on to count until the end of that, and so does who comes then
    // for the first time only.
    let _ = bench.sched.unboost(bench.key, bench.now);
    assert_eq!(bench.sched.stats().holding, 1);
    bench.happen("boost");
    bench.happen("boost");
    bench.settle(End::Again, Lane::Low);
    assert_eq!(phase(&bench), holding);
    let _ = bench.sched.unboost(bench.key, bench.now);
    assert_eq!(phase(&bench), holding, "one is left");
    let _ = bench.sched.unboost(bench.key, bench.now);
    assert_eq!(phase(&bench), low);
    let stats = bench.sched.stats();
    assert_eq!((stats.boosts, stats.holding), (5, 0));
}

#[test]
fn every_sequence_with_boosts_of_those_who_say_what_they_hold_keeps_the_invariants() {
    walk_all(
        Setup {
            boosts: true,
            holds: &[false],
            ends: &[IDLE, End::Closed],
            ..Setup::plain(1, 1)
        },
        232_956,
    );
}

#[test]
fn every_sequence_with_boosts_keeps_the_invariants() {
    walk_all(
        Setup {
            boosts: true,
            waits: true,
            ends: &[IDLE, End::Again, End::Closed],
            ..Setup::plain(1, 1)
        },
        247_745,
    );
}

#[test]
fn every_sequence_in_which_threads_are_found_blocked_keeps_the_invariants() {
    walk_all(
        Setup {
            detects: true,
            waits: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(1, 2)
        },
        96_393,
    );
}

/// Timeouts of some ticks: idle, in a command, and flushing.
fn short_timeouts(oversubscribe: usize) -> Bounds {
    Bounds {
        idle_timeout: Nanos(4 * MS.0),
        read_timeout: Nanos(2 * MS.0),
        write_timeout: Nanos(3 * MS.0),
        crammed_timeout: Nanos(2 * MS.0),
        ..bounds(oversubscribe)
    }
}

#[test]
fn every_sequence_with_deadlines_keeps_the_invariants() {
    walk_all(
        Setup {
            bounds: short_timeouts(1),
            ready: &[READABLE, WRITABLE],
            ends: &[IDLE, IN_COMMAND, FLUSH, STILL, CRAM, End::Closed],
            ..Setup::plain(1, 1)
        },
        35_392,
    );
}

#[test]
fn every_sequence_with_turns_that_nobody_asked_for_keeps_the_invariants() {
    walk_all(
        Setup {
            bounds: Bounds {
                transaction_timeout: Nanos(2 * MS.0),
                ..short_timeouts(1)
            },
            unheard: true,
            transactions: true,
            ready: &[READABLE, WRITABLE],
            ends: &[IDLE, IN_COMMAND, FLUSH, STILL, End::Closed],
            ..Setup::plain(1, 1)
        },
        55_931,
    );
}

#[test]
fn every_sequence_with_commands_that_are_cancelled_keeps_the_invariants() {
    walk_all(
        Setup {
            interrupts: true,
            ready: &[READABLE, WRITABLE],
            ends: &[IDLE, IN_COMMAND, PARK, FLUSH, End::Again, End::Closed],
            ..Setup::plain(1, 2)
        },
        103_028,
    );
}

/// MariaDB's policy, whose ticks are two milliseconds apart here.
const fn mariadb(setup: Setup) -> Setup {
    Setup {
        bounds: Bounds {
            policy: Policy::Mariadb,
            ..setup.bounds
        },
        ..setup
    }
}

const fn dedicated(setup: Setup) -> Setup {
    Setup {
        bounds: Bounds {
            dedicated_listener: true,
            ..setup.bounds
        },
        ..setup
    }
}

#[test]
fn every_sequence_under_mariadbs_policy_keeps_what_any_policy_must() {
    walk_all(mariadb(Setup::plain(2, 2)), 196_127);
}

#[test]
fn every_sequence_with_waits_under_mariadbs_policy_keeps_what_any_policy_must() {
    walk_all(
        mariadb(Setup {
            waits: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(2, 2)
        }),
        269_295,
    );
}

/// It knows nothing of holders: there are two lanes.
#[test]
fn every_sequence_with_boosts_under_mariadbs_policy_keeps_what_any_policy_must() {
    walk_all(
        mariadb(Setup {
            boosts: true,
            holds: &[true],
            waits: true,
            ends: &[IDLE, End::Again, End::Closed],
            ..Setup::plain(1, 2)
        }),
        40_782,
    );
}

#[test]
fn every_sequence_with_a_dedicated_listener_keeps_what_any_policy_must() {
    walk_all(
        dedicated(mariadb(Setup {
            waits: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(2, 3)
        })),
        56_934,
    );
}

#[test]
fn every_sequence_with_kills_and_a_drain_under_mariadbs_policy_keeps_what_any_policy_must() {
    walk_all(
        mariadb(Setup {
            ready: &[READABLE],
            ends: &[IDLE, IN_COMMAND, End::Again, End::Closed],
            lanes: &[Lane::Low],
            waits: false,
            ..everything(1, 2)
        }),
        311_471,
    );
}

/// All that can happen, but for deadlines.
const fn everything(connections: usize, max_threads: usize) -> Setup {
    Setup {
        ready: &[READABLE, WRITABLE],
        ends: &[IDLE, IN_COMMAND, FLUSH, CRAM, End::Again, End::Closed],
        lanes: &[Lane::Low, Lane::Control],
        waits: true,
        longs: true,
        kills: true,
        drains: true,
        stops: true,
        threads_fail: true,
        ..Setup::plain(connections, max_threads)
    }
}

#[test]
fn every_sequence_of_all_that_can_happen_to_one_connection_keeps_the_invariants() {
    walk_all(everything(1, 1), 41_322);
}

/// Minutes, and gigabytes: `cargo test --profile loom -- --ignored walks_of_more`.
#[test]
#[ignore = "long; for whoever changes the policy"]
fn walks_of_more_than_a_million_worlds_keep_the_invariants() {
    walk_all(mariadb(everything(1, 2)), 1_585_104);
    walk_all(everything(1, 2), 4_310_041);
    walk_all(
        Setup {
            longs: true,
            ..Setup::plain(2, 2)
        },
        373_890,
    );
    walk_all(
        Setup {
            bounds: Bounds {
                kickup: Nanos(2 * MS.0),
                ..bounds(1)
            },
            longs: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(2, 2)
        },
        831_850,
    );
    walk_all(
        Setup {
            detects: true,
            waits: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(2, 2)
        },
        719_412,
    );
    // These two are too many to walk to the end.
    for (boosts, least) in [(false, 74_844), (true, 245_263)] {
        let setup = Setup {
            holds: if boosts { &[] } else { &[true] },
            boosts,
            waits: true,
            ends: &[IDLE, End::Closed],
            ..Setup::plain(2, 1)
        };
        let (worlds, _) = walk(Box::leak(Box::new(setup)), 18);
        println!("{worlds} worlds");
        assert!(worlds >= least, "{worlds} worlds, and there were {least}");
    }
    walk_all(
        Setup {
            lanes: &[Lane::Low, Lane::Control],
            ..Setup::plain(2, 2)
        },
        289_508,
    );
    walk_all(
        Setup {
            kills: true,
            ..Setup::plain(2, 2)
        },
        478_461,
    );
    walk_all(
        Setup {
            drains: true,
            stops: true,
            ..Setup::plain(2, 2)
        },
        533_457,
    );
    walk_all(
        Setup {
            bounds: short_timeouts(1),
            ready: &[READABLE, WRITABLE],
            ends: &[IDLE, IN_COMMAND, FLUSH, CRAM, End::Closed],
            ..Setup::plain(1, 2)
        },
        911_281,
    );
    walk_all(
        Setup {
            waits: true,
            ..Setup::plain(2, 3)
        },
        6_509_830,
    );
    walk_all(
        Setup {
            bounds: Bounds {
                creation_throttle: MS,
                ..bounds(1)
            },
            ..Setup::plain(2, 3)
        },
        5_517_637,
    );
}

// ---- long random walks ----

/// xorshift64*: enough for choosing moves, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits") % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const WALKS: u64 = 300;
const MOVES: usize = 1000;

/// Larger limits than a walk to the end can have, every kind of readiness, and ages that promote.
const fn crowd() -> Setup {
    Setup {
        bounds: Bounds {
            stall_limit: Nanos(6 * MS.0),
            kickup: Nanos(3 * MS.0),
            creation_throttle: MS,
            idle_timeout: Nanos(40 * MS.0),
            transaction_timeout: Nanos(30 * MS.0),
            read_timeout: Nanos(15 * MS.0),
            write_timeout: Nanos(20 * MS.0),
            crammed_timeout: Nanos(10 * MS.0),
            ..bounds(2)
        },
        ready: &[READABLE, READ_CLOSED, PRIORITY, WRITABLE, HUNG_UP],
        lanes: &[Lane::Low, Lane::High, Lane::Control],
        ends: &[IDLE, IN_COMMAND, PARK, FLUSH, CRAM, End::Again, End::Closed],
        detects: true,
        untils: true,
        pokes: true,
        interrupts: true,
        unheard: true,
        transactions: true,
        resumes: true,
        holds: &[true],
        boosts: true,
        ..everything(6, 4)
    }
}

/// Clocks are read before the lock is there. `WALK_SEED=n` repeats one walk, and prints it.
#[test]
fn long_random_walks_keep_the_invariants() {
    walk_all_at_random(crowd());
}

#[test]
fn long_random_walks_under_mariadbs_policy_keep_what_any_policy_must() {
    walk_all_at_random(mariadb(crowd()));
}

fn walk_all_at_random(setup: Setup) {
    let setup: &'static Setup = Box::leak(Box::new(setup));
    let one = std::env::var("WALK_SEED")
        .ok()
        .map(|seed| seed.parse().expect("a number"));
    for seed in one.map_or(1..=WALKS, |seed| seed..=seed) {
        let _story = Story(|| eprintln!("WALK_SEED={seed} repeats this walk"));
        walk_at_random(setup, seed, one.is_some());
    }
}

fn walk_at_random(setup: &'static Setup, seed: u64, print: bool) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    // Some walks have many ends and some have few, so that some are busy and some are not.
    let (calm, stalling) = (1 + random.below(4), 1 + random.below(8));
    let mut world = World::new(setup);
    for count in 0..MOVES {
        let moves = world.moves();
        let step = moves[random.below(moves.len())];
        let rare = match step {
            Move::Stop | Move::Drain => 200,
            Move::Kill(_) | Move::KillGone | Move::Long(_) => 8,
            Move::Boost(_) | Move::Unboost(_) => 8,
            Move::Poke(_) | Move::Interrupt(_) | Move::Resume(..) | Move::Late(_) => 4,
            Move::Pass => 2 * calm,
            Move::Event(..) | Move::Stale(..) => calm,
            Move::Turn(_, leave) if leave.end == End::Closed => 4 * stalling,
            Move::Turn(..) | Move::WaitEnd(_) => stalling,
            Move::Woken(w) if world.workers[w] == (At::Parked { called: false }) => 20,
            _ => 1,
        };
        if !random.one_in(rare) {
            continue;
        }
        world.lag = if random.one_in(4) { MS } else { Nanos(0) };
        if print {
            println!("{:?} {step:?}", world.now);
        }
        world.make(step);
        world.check();
        if count % 50 == 0 {
            world.lag = Nanos(0);
            world.check_rests(&mut Known::default());
        }
    }
}

// ---- walks that a fuzzer chooses ----

/// Walks where the bytes say: the first one chooses the policy, each other one a move. See the fuzz
/// target `sched_events`.
#[allow(unreachable_pub)] // it is public with the feature `walk`
pub fn walk_by_bytes(bytes: &[u8]) {
    static SETUPS: [Setup; 3] = [crowd(), mariadb(crowd()), dedicated(mariadb(crowd()))];
    let [first, rest @ ..] = bytes else { return };
    let mut world = World::new(&SETUPS[usize::from(*first) % SETUPS.len()]);
    let mut late = false;
    for byte in rest {
        // The clock of the next move is read before somebody else's move.
        if *byte == u8::MAX {
            late = true;
            continue;
        }
        let moves = world.moves();
        world.lag = if std::mem::take(&mut late) {
            MS
        } else {
            Nanos(0)
        };
        world.make(moves[usize::from(*byte) % moves.len()]);
        world.check();
    }
    world.lag = Nanos(0);
    world.check_rests(&mut Known::default());
}

#[test]
fn a_walk_by_bytes_goes_somewhere_and_is_checked() {
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(2000).collect();
    for policy in 0..3 {
        walk_by_bytes(&[&[policy], &bytes[..]].concat());
    }
}

// ---- each phase and each event ----

/// A connection in the middle of the table, and a worker that has nothing in hand or has it.
struct Bench {
    sched: State<usize>,
    worker: WorkerId,
    key: Key,
    now: Nanos,
    /// What its session says that it holds.
    holding: Option<bool>,
}

impl Bench {
    /// A connection that is being run.
    fn running() -> Self {
        let mut sched = State::new(short_timeouts(1));
        let worker = sched.spawning(Nanos(0), false, false);
        let (key, _) = sched.attach(0, Nanos(0)).expect("not stopped");
        let mut bench = Self {
            sched,
            worker,
            key,
            now: Nanos(0),
            holding: None,
        };
        bench.run();
        bench
    }

    fn run(&mut self) {
        let (step, _) = self.sched.take(self.worker, self.now);
        assert!(matches!(step, Step::Run(_)));
    }

    /// A connection in the phase of this name.
    fn in_phase(name: &str) -> Self {
        let mut bench = Self::running();
        match name {
            "running" => {}
            "idle" => bench.settle(IDLE, Lane::Low),
            "in-command" => bench.settle(IN_COMMAND, Lane::Low),
            "flushing" => bench.settle(FLUSH, Lane::Low),
            "crammed" => bench.settle(CRAM, Lane::Low),
            "parked" => bench.settle(End::Park { ticket: 1 }, Lane::Low),
            "low" => bench.settle(End::Again, Lane::Low),
            "high" => bench.settle(End::Again, Lane::High),
            "control" => bench.settle(End::Again, Lane::Control),
            "long" => {
                let _ = bench.sched.declare_long(bench.worker, bench.now);
                bench.settle(End::Again, Lane::Low);
            }
            "holding" => {
                bench.holding = Some(true);
                bench.settle(End::Again, Lane::Low);
            }
            "gone" => bench.settle(End::Closed, Lane::Low),
            name => panic!("no phase {name}"),
        }
        assert_eq!(bench.phase(), name);
        bench
    }

    fn settle(&mut self, end: End, lane: Lane) {
        let turn = Turn {
            end,
            lane,
            holding: self.holding,
            in_transaction: false,
            look_again: false,
            calls: 1,
            heard: true,
            until: self.now.after(SOON),
        };
        let _ = self.sched.settle(self.worker, self.key, 0, turn, self.now);
    }

    fn harvest(&mut self, readiness: Readiness) {
        let State { crew, .. } = &mut self.sched;
        // The poller comes back to a second worker, which then parks.
        let worker = crew.spawning(self.now, false);
        crew.arrived(worker);
        crew.poll(worker, true);
        let token = self.key.to_token();
        self.sched
            .harvested(worker, [Event { token, readiness }], self.now);
        self.sched.crew.park(worker);
    }

    fn happen(&mut self, event: &str) {
        match event {
            "nothing" => {}
            "readable" => self.harvest(READABLE),
            "read-closed" => self.harvest(READ_CLOSED),
            "priority" => self.harvest(PRIORITY),
            "writable" => self.harvest(WRITABLE),
            "kill" => _ = self.sched.kill(self.key, self.now),
            "hung-up" => self.harvest(HUNG_UP),
            "poke" => _ = self.sched.poke(self.key, self.now),
            "interrupt" => _ = self.sched.interrupt(self.key, self.now),
            "resume" => _ = self.sched.resume(self.key, 1, false, self.now),
            "drop" => _ = self.sched.resume(self.key, 1, true, self.now),
            "late" => {
                let (won, _) = self.sched.resume(self.key, 0, false, self.now);
                assert!(!won);
            }
            "boost" => _ = self.sched.boost(self.key, self.now),
            "boost+unboost" => {
                let _ = self.sched.boost(self.key, self.now);
                let _ = self.sched.unboost(self.key, self.now);
            }
            "due" => {
                self.now = self.now.after(SOON);
                let _ = self.sched.tick(self.now);
            }
            "drain" => _ = self.sched.drain(false, self.now),
            "deadline" => {
                self.now = self.now.after(Nanos(1000 * MS.0));
                let _ = self.sched.tick(self.now);
            }
            "take" => _ = self.sched.take(self.worker, self.now),
            "turn:idle" => self.settle(IDLE, Lane::Low),
            "turn:in-command" => self.settle(IN_COMMAND, Lane::Low),
            "turn:again" => self.settle(End::Again, Lane::Low),
            "turn:park" => self.settle(End::Park { ticket: 1 }, Lane::Low),
            "turn:flush" => self.settle(FLUSH, Lane::Low),
            "turn:cram" => self.settle(CRAM, Lane::Low),
            "turn:closed" => self.settle(End::Closed, Lane::Low),
            name => panic!("no event {name}"),
        }
    }

    fn phase(&self) -> &'static str {
        match self.sched.table.get(self.key).map(|slot| slot.phase) {
            None | Some(Phase::Free) => "gone",
            Some(Phase::Idle { in_command: false }) => "idle",
            Some(Phase::Idle { in_command: true }) => "in-command",
            Some(Phase::Running) => "running",
            Some(Phase::Flushing { crammed: false }) => "flushing",
            Some(Phase::Flushing { crammed: true }) => "crammed",
            Some(Phase::Parked) => "parked",
            Some(Phase::Queued { lane }) => lane.name(),
        }
    }
}

/// Reads a table: for each cell its row's and its column's name, and itself.
fn cells(table: &str) -> Vec<(&str, &str, &str)> {
    let mut lines = table.lines().filter(|line| !line.is_empty());
    let columns: Vec<&str> = lines.next().expect("a head").split_whitespace().collect();
    lines
        .flat_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words.len(), 1 + columns.len(), "a row with a hole: {line}");
            let cells = columns.iter().zip(words[1..].to_vec());
            cells
                .map(|(column, cell)| (words[0], *column, cell))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// What phase follows, in each phase, on each event. `=`: the same; `.`: cannot happen.
const PHASES: &str = "
                idle       in-command  parked    holding  control  high     low      long     running     flushing    crammed   gone
readable        low        low         =         =        =        =        =        =        =           low         =         =
read-closed     low        low         =         =        =        =        =        =        =           low         =         =
priority        low        low         =         =        =        =        =        =        =           low         =         =
writable        =          =           low       =        =        =        =        =        =           low         low       =
hung-up         =          =           low       =        =        =        =        =        =           =           =         =
poke            low        low         low       =        =        =        =        =        =           =           =         =
interrupt       =          control     control   =        =        =        =        =        =           control     control   =
resume          =          =           control   =        =        =        =        =        =           =           =         =
drop            =          =           control   =        =        =        =        =        =           =           =         =
late            =          =           =         =        =        =        =        =        =           =           =         =
boost           =          =           =         =        holding  holding  holding  holding  =           =           =         =
boost+unboost   =          =           =         =        =        =        =        =        =           =           =         =
kill            control    control     control   =        =        control  control  control  =           control     control   =
drain           control    =           =         =        =        =        =        =        =           =           =         =
due             low        control     low       =        =        =        =        =        =           =           control   =
deadline        control    control     low       =        =        =        =        =        =           control     control   =
take            =          =           =         running  running  running  running  running  .           =           =         =
turn:idle       .          .           .         .        .        .        .        .        idle        .           .         .
turn:in-command .          .           .         .        .        .        .        .        in-command  .           .         .
turn:park       .          .           .         .        .        .        .        .        parked      .           .         .
turn:again      .          .           .         .        .        .        .        .        low         .           .         .
turn:flush      .          .           .         .        .        .        .        .        flushing    .           .         .
turn:cram       .          .           .         .        .        .        .        .        crammed     .           .         .
turn:closed     .          .           .         .        .        .        .        .        gone        .           .         .
";

#[test]
fn each_event_leads_from_each_phase_to_the_phase_in_the_table() {
    for (event, phase, after) in cells(PHASES) {
        if after == "." {
            continue;
        }
        let mut bench = Bench::in_phase(phase);
        bench.happen(event);
        let expected = if after == "=" { phase } else { after };
        assert_eq!(bench.phase(), expected, "{event} while {phase}");
        bench.sched.crew.check();
        bench.sched.table.check();
    }
}

/// What phase follows a turn, by what happened while it ran.
const TURNS: &str = "
                turn:idle  turn:in-command  turn:park  turn:again  turn:flush  turn:cram  turn:closed
nothing         idle       in-command       parked     low         flushing    crammed    gone
readable        low        low              parked     low         low         crammed    gone
read-closed     low        low              parked     low         low         crammed    gone
priority        low        low              parked     low         low         crammed    gone
writable        idle       in-command       low        low         low         low        gone
hung-up         idle       in-command       low        low         flushing    crammed    gone
poke            low        low              low        low         flushing    crammed    gone
interrupt       idle       control          control    control     control     control    gone
resume          idle       in-command       control    low         flushing    crammed    gone
drop            idle       in-command       control    low         flushing    crammed    gone
late            idle       in-command       parked     low         flushing    crammed    gone
boost           idle       in-command       parked     holding     flushing    crammed    gone
boost+unboost   idle       in-command       parked     low         flushing    crammed    gone
kill            control    control          control    control     control     control    gone
drain           control    in-command       parked     low         flushing    crammed    gone
due             idle       in-command       parked     long        flushing    crammed    gone
deadline        idle       in-command       parked     long        flushing    crammed    gone
";

#[test]
fn what_happens_during_a_turn_leads_to_the_phase_in_the_table() {
    for (event, turn, after) in cells(TURNS) {
        let mut bench = Bench::running();
        bench.happen(event);
        bench.happen(turn);
        assert_eq!(bench.phase(), after, "{event}, then {turn}");
        bench.sched.crew.check();
        bench.sched.table.check();
    }
}

#[test]
fn what_happened_during_a_flush_is_seen_when_it_ends() {
    let mut bench = Bench::in_phase("flushing");
    for ready in [READ_CLOSED, PRIORITY, WRITABLE] {
        bench.harvest(ready);
    }
    let (step, _) = bench.sched.take(bench.worker, bench.now);
    let Step::Run(job) = step else {
        panic!("it is queued");
    };
    assert_eq!(job.wake.ready, READ_CLOSED.and(PRIORITY).and(WRITABLE));
}

#[test]
fn a_kill_overrides_a_milder_reason_and_a_milder_one_does_not_override_a_kill() {
    for (first, second) in [("kill", "drain"), ("drain", "kill"), ("deadline", "kill")] {
        let mut bench = Bench::in_phase("idle");
        bench.happen(first);
        bench.happen(second);
        let (step, _) = bench.sched.take(bench.worker, bench.now);
        let Step::Run(job) = step else {
            panic!("it is queued");
        };
        assert_eq!(job.wake.close, Some(CloseReason::Killed));
    }
}

#[test]
fn a_thread_is_put_off_only_while_many_commands_are_on_the_cpu() {
    // Three commands hold slots and a fourth one has given its own up; all have run for long enough
    // to let another one run. A fifth thread is due only when the pause since the last creation is
    // over.
    let later = |ms| Nanos(ms * MS.0);
    let mut sched = State::new(Bounds {
        creation_throttle: later(10),
        stall_limit: later(100),
        ..bounds(3)
    });
    let mut start = |now| {
        let worker = sched.spawning(now, false, false);
        let _ = sched.attach(0, now).expect("not stopped");
        let (step, _) = sched.take(worker, now);
        assert!(matches!(step, Step::Run(_)));
        worker
    };
    let workers = [1, 2, 3, 4].map(|ms| start(later(ms)));
    let _ = sched.declare_long(workers[0], later(4));
    let _ = sched.attach(0, later(5)).expect("not stopped");
    assert_eq!(sched.tick(later(13)).call, Call::Nobody);
    assert_eq!(sched.stats.throttles, 1);
    assert_eq!(sched.tick(later(14)).call, Call::Spawn);

    // One in a wait takes no CPU, and may be waiting for just the thread that is put off.
    let _ = sched.wait_begin(workers[3], None, later(13));
    assert_eq!(sched.tick(later(13)).call, Call::Spawn);
}

#[test]
fn beside_a_long_command_a_worker_is_called_for_each_slot_that_is_open() {
    let mut sched = State::new(Bounds {
        oversubscribe: 3,
        ..bounds(0)
    });
    let workers: Vec<_> = (0..6).map(|_| sched.spawning(MS, false, false)).collect();
    for worker in &workers {
        let _ = sched.take(*worker, MS);
    }
    let later = |ms| Nanos(ms * MS.0);
    for _ in 0..9 {
        let _ = sched.attach(0, later(1)).expect("not stopped");
    }
    // Among short ones, one at a time.
    let _ = sched.tick(later(1));
    assert!(sched.call_for_slots(later(1)).is_empty());
    let (step, _) = sched.take(workers[5], later(1));
    assert!(matches!(step, Step::Run(_)));
    let _ = sched.declare_long(workers[5], later(1));
    let _ = sched.tick(later(3));
    let called = sched.call_for_slots(later(3));
    assert_eq!((called.is_empty(), sched.crew.coming()), (false, 4));
    assert!(sched.call_for_slots(later(3)).is_empty(), "they are coming");
}

#[test]
fn when_several_long_commands_end_at_once_no_more_of_their_kind_begin_than_the_bound_allows() {
    let mut sched = State::new(Bounds {
        oversubscribe: 2,
        ..bounds(0)
    });
    let workers: Vec<_> = (0..4).map(|_| sched.spawning(MS, false, false)).collect();
    for _ in 0..4 {
        let _ = sched.attach(0, MS).expect("not stopped");
    }
    let again = Turn {
        end: End::Again,
        lane: Lane::Low,
        holding: None,
        in_transaction: false,
        look_again: false,
        calls: 1,
        heard: true,
        until: NEVER,
    };
    // Each says that it is long, and ends as soon as all have begun.
    let begun = workers.iter().map(|worker| {
        let (step, _) = sched.take(*worker, MS);
        let Step::Run(job) = step else {
            panic!("they say that they are long: {step:?}");
        };
        let _ = sched.declare_long(*worker, MS);
        (*worker, job.key)
    });
    for (worker, key) in begun.collect::<Vec<_>>() {
        let _ = sched.settle(worker, key, 0, again, MS);
    }
    let later = Nanos(2 * MS.0);
    let runs = workers.iter().filter(|worker| {
        let (step, _) = sched.take(**worker, later);
        matches!(step, Step::Run(_))
    });
    assert_eq!(runs.count(), 2);
    // The others wait for these two to be found long, or not: that is the monitor's to do.
    assert!(sched.tick(later).tick, "it would sleep");
}

#[test]
fn while_a_long_command_runs_a_thread_is_had_ready_for_who_waits_at_the_gate() {
    let mut sched = State::new(bounds(0));
    let mut start = |long| {
        let worker = sched.spawning(MS, false, false);
        let _ = sched.attach(0, MS).expect("not stopped");
        let (step, _) = sched.take(worker, MS);
        assert!(matches!(step, Step::Run(_)));
        if long {
            let _ = sched.declare_long(worker, MS);
        }
    };
    start(true);
    start(false);
    // The gate is shut, and nobody waits at it.
    assert_eq!(sched.tick(MS).call, Call::Nobody);
    let _ = sched.attach(0, MS).expect("not stopped");
    assert_eq!(sched.tick(MS).call, Call::Spare);
    assert_eq!(sched.stats.throttles, 0, "it is a wish");
    // One is enough for the one slot that can open, be it on its way or there.
    let ready = sched.spawning(MS, false, false);
    assert_eq!(sched.tick(MS).call, Call::Nobody);
    let (step, _) = sched.take(ready, MS);
    assert!(matches!(step, Step::Park(_)));
    assert_eq!(sched.tick(MS).call, Call::Nobody);
    // Short commands among themselves have no need of it.
    let mut sched = State::new(bounds(0));
    let worker = sched.spawning(MS, false, false);
    let _ = sched.attach(0, MS).expect("not stopped");
    let _ = sched.take(worker, MS);
    let _ = sched.attach(0, MS).expect("not stopped");
    assert_eq!(sched.tick(MS).call, Call::Nobody);
}

#[test]
fn a_thread_that_could_not_be_had_is_counted_nowhere() {
    let mut bench = Bench::in_phase("holding");
    let worker = bench.sched.spawning(bench.now, true, true);
    bench.sched.spawn_failed(worker, bench.now);
    let stats = bench.sched.stats();
    assert_eq!((stats.creations, stats.creations_due_to_stall), (1, 0));
    assert_eq!((stats.threads_over_cap, stats.over_cap), (0, 0));
}

#[test]
fn the_time_of_one_found_blocked_counts_although_it_says_then_that_it_is_long() {
    let mut bench = Bench::running();
    for blocked in [false, true] {
        bench.now = bench.now.after(SOON);
        let _ = bench.sched.tick(bench.now);
        for suspect in bench.sched.suspects(bench.now) {
            let _ = bench.sched.judge(suspect, blocked, bench.now);
        }
    }
    assert_eq!(bench.sched.stats().blocked, 1);
    bench.now = bench.now.after(SOON);
    let _ = bench.sched.declare_long(bench.worker, bench.now);
    bench.settle(IDLE, Lane::Low);
    assert_eq!(bench.sched.stats().detected_time, SOON.to_duration());
}

#[test]
fn threads_past_the_bound_are_looked_at_once_for_each_bound() {
    let mut bench = Bench::running();
    let looks = [1, 2, 3, 4, 5].map(|ms| {
        bench.now = Nanos(ms * MS.0);
        if ms == 1 {
            let other = bench.sched.spawning(bench.now, false, false);
            let _ = bench.sched.attach(1, bench.now).expect("not stopped");
            let (step, _) = bench.sched.take(other, bench.now);
            assert!(matches!(step, Step::Run(_)));
        }
        let _ = bench.sched.tick(bench.now);
        bench.sched.suspects(bench.now).len()
    });
    // The bound is two milliseconds. At the third one the other command passes it, and is looked at at once.
    assert_eq!(looks, [0, 1, 2, 0, 2]);
}

#[test]
fn a_thread_beyond_the_cap_stays_for_a_while_after_the_last_who_held_something() {
    let mut sched: State<usize> = State::new(Bounds {
        park_time: NEVER,
        ..bounds(1)
    });
    let later = |ms| Nanos(ms * MS.0);
    let first = sched.spawning(Nanos(0), false, false);
    let (key, _) = sched.attach(0, Nanos(0)).expect("not stopped");
    let turn = |holding| Turn {
        end: IDLE,
        lane: Lane::Low,
        holding: Some(holding),
        in_transaction: false,
        look_again: false,
        calls: 1,
        heard: true,
        until: NEVER,
    };
    let (step, _) = sched.take(first, Nanos(0));
    assert!(matches!(step, Step::Run(_)));
    let _ = sched.settle(first, key, 0, turn(true), Nanos(0));
    let (step, _) = sched.take(first, Nanos(0));
    assert!(matches!(step, Step::Poll { block: true }));
    // It comes for a command of one that holds something, which then holds nothing more.
    let second = sched.spawning(later(1000), false, true);
    let (step, _) = sched.take(second, later(1000));
    assert!(matches!(step, Step::Park(time) if time != NEVER));
    let _ = sched.poke(key, later(1000));
    assert!(sched.slept(second, false));
    let (step, _) = sched.take(second, later(1000));
    assert!(matches!(step, Step::Run(_)));
    let _ = sched.settle(second, key, 0, turn(false), later(1001));
    let (step, _) = sched.take(second, later(1001));
    let Step::Park(time) = step else {
        panic!("soon somebody may hold something again: {step:?}");
    };
    assert!(sched.slept(second, false));
    let (step, _) = sched.take(second, later(1001).after(time));
    assert!(matches!(step, Step::Exit), "{step:?}");
}

#[test]
fn shorter_timeouts_hold_for_who_rests_and_for_who_comes_to_rest() {
    const LONG: Nanos = Nanos(1_000_000 * MS.0);
    let later = |ms| Nanos(ms * MS.0);
    let long = Bounds {
        idle_timeout: LONG,
        read_timeout: LONG,
        write_timeout: LONG,
        crammed_timeout: LONG,
        ..bounds(1)
    };
    let mut bench = Bench::running();
    let _ = bench.sched.rebound(long.clone(), later(0));
    let _ = bench.sched.tick(later(0));
    let asleep = bench.sched.next_deadline(later(0));
    assert_eq!(asleep, Some(LONG), "whoever runs may rest then");
    // It runs on: those who come to rest are looked at in time.
    let _ = bench.sched.rebound(short_timeouts(1), later(1));
    let _ = bench.sched.tick(later(1));
    assert_eq!(bench.sched.next_deadline(later(1)), Some(later(3)));
    bench.now = later(1);
    bench.settle(IDLE, Lane::Low);
    // It rests: the sweep was put off for long.
    let _ = bench.sched.rebound(long, later(2));
    let _ = bench.sched.tick(later(2));
    let _ = bench.sched.rebound(short_timeouts(1), later(6));
    let _ = bench.sched.tick(later(6));
    let slot = bench.sched.table.get(bench.key).expect("it lives");
    assert_eq!(slot.wake.close, Some(CloseReason::IdleTimeout));
}
