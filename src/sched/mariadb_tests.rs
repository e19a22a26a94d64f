//! MariaDB's policy has the gaps that it is there to show, and no others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::table::Phase;
use super::*;
use crate::port::Readiness;

const MS: Nanos = Nanos(1_000_000);
const TICK: u64 = 500;

/// A group with what is outside of it: each call is followed at once, the monitor looks each
/// millisecond, and commands run for as long as the test says.
struct Pool {
    sched: State<usize>,
    now: Nanos,
    keys: Vec<Key>,
    lanes: Vec<Lane>,
    running: BTreeMap<usize, WorkerId>,
    listener: Option<WorkerId>,
}

impl Pool {
    /// A listener, a parked worker, and connections of low priority at rest, at this time after a
    /// tick that found nothing.
    fn at_rest(config: PoolConfig, connections: usize, after_tick: u64) -> Self {
        let mut pool = Self::empty(config);
        for conn in 0..connections {
            pool.attach();
            pool.ends(conn, End::Idle { in_command: false });
        }
        for _ in 0..3 * TICK + after_tick {
            pool.pass();
        }
        assert_eq!(pool.sched.threads(), 2);
        assert!(pool.listener.is_some() && pool.running.is_empty());
        pool
    }

    fn empty(config: PoolConfig) -> Self {
        let limits = Limits::default();
        let mut pool = Self {
            sched: State::new(Bounds::new(&config, &limits)),
            now: Nanos(0),
            keys: Vec::new(),
            lanes: Vec::new(),
            running: BTreeMap::new(),
            listener: None,
        };
        let first = pool.sched.spawning(Nanos(0), false, false);
        pool.asks(first);
        pool
    }

    fn asks(&mut self, worker: WorkerId) {
        let (step, actions) = self.sched.take(worker, self.now);
        match step {
            Step::Run(job) => _ = self.running.insert(job.task, worker),
            Step::Poll { block } => {
                assert!(block);
                self.listener = Some(worker);
            }
            Step::Park(_) => assert_eq!(actions.call, Call::Nobody),
            Step::Exit => panic!("nobody leaves"),
        }
        self.perform(actions);
    }

    fn perform(&mut self, actions: Actions) {
        match actions.call {
            Call::Nobody => {}
            Call::Worker(worker) => {
                assert!(self.sched.slept(worker, false));
                self.asks(worker);
            }
            Call::Poller => self.readable(&[]),
            Call::Spawn => self.look(),
            Call::Spare => unreachable!("the other policy's"),
        }
    }

    fn look(&mut self) {
        let actions = self.sched.tick(self.now);
        if actions.call == Call::Spawn {
            let due_to_stall = self.sched.due_to_stall();
            let worker = self.sched.spawning(self.now, due_to_stall, false);
            self.asks(worker);
        } else {
            self.perform(actions);
        }
    }

    /// A millisecond passes, and the monitor looks.
    fn pass(&mut self) {
        self.now = self.now.after(MS);
        self.look();
    }

    fn pass_until_the_tick(&mut self) {
        self.pass();
        while !self.now.0.is_multiple_of(TICK * MS.0) {
            self.pass();
        }
    }

    fn attach(&mut self) -> usize {
        let conn = self.keys.len();
        let (key, actions) = self.sched.attach(conn, self.now).expect("not stopped");
        self.keys.push(key);
        self.lanes.push(Lane::Low);
        self.perform(actions);
        conn
    }

    /// The poller returns with input of these; nothing happens if nobody is in it.
    fn readable(&mut self, conns: &[usize]) {
        let Some(listener) = self.listener.take() else {
            return;
        };
        let events: Vec<Event> = conns
            .iter()
            .map(|conn| Event {
                token: self.keys[*conn].to_token(),
                readiness: Readiness::READABLE,
            })
            .collect();
        self.sched.harvested(listener, events, self.now);
        self.asks(listener);
    }

    fn ends(&mut self, conn: usize, end: End) {
        self.ends_and_says(conn, end, None);
    }

    fn ends_and_says(&mut self, conn: usize, end: End, holding: Option<bool>) {
        let worker = self.running.remove(&conn).expect("it runs");
        let turn = Turn {
            end,
            lane: self.lanes[conn],
            holding,
            in_transaction: false,
            look_again: false,
            calls: 1,
            heard: true,
            until: NEVER,
        };
        let _ = self
            .sched
            .settle(worker, self.keys[conn], conn, turn, self.now);
        self.asks(worker);
    }

    fn waits(&mut self, conn: usize) {
        let actions = self.sched.wait_begin(self.running[&conn], None, self.now);
        self.perform(actions);
    }

    fn goes_on(&mut self, conn: usize) {
        self.sched.wait_end(self.running[&conn], self.now);
    }

    fn runs(&self, conn: usize) -> bool {
        self.running.contains_key(&conn)
    }

    fn lane(&self, conn: usize) -> &'static str {
        match self.sched.table.phase(self.keys[conn]) {
            Phase::Queued { lane } => lane.name(),
            phase => panic!("it is {phase:?}"),
        }
    }
}

const IDLE: End = End::Idle { in_command: false };

/// Lets a gap come up at each time between two ticks, and sees that the command which falls into it
/// is run between one and two ticks later.
#[track_caller]
fn lasts_one_to_two_ticks(config: &PoolConfig, gap: impl Fn(&mut Pool)) {
    for after_tick in (0..TICK).step_by(50) {
        let mut pool = Pool::at_rest(config.clone(), 2, after_tick);
        let began = pool.now;
        gap(&mut pool);
        assert!(pool.runs(0) && !pool.runs(1));
        while !pool.runs(1) {
            pool.pass();
            // Its input is there for whoever polls.
            if pool.sched.table.phase(pool.keys[1]).is_rest() {
                pool.readable(&[1]);
            }
            assert!(pool.now.since(began) <= Nanos(2 * TICK * MS.0));
        }
        assert_eq!(
            pool.now.since(began),
            Nanos((2 * TICK - after_tick) * MS.0),
            "the second tick from then on"
        );
    }
}

#[test]
fn behind_a_listener_that_took_a_long_command_nobody_polls_for_one_to_two_ticks() {
    lasts_one_to_two_ticks(&PoolConfig::mariadb(), |pool| {
        pool.readable(&[0]);
        assert_eq!(pool.listener, None);
        assert_eq!(pool.sched.crew.parked(), 1, "who could poll");
    });
}

#[test]
fn behind_a_long_command_of_its_batch_a_command_waits_for_one_to_two_ticks() {
    lasts_one_to_two_ticks(&PoolConfig::mariadb(), |pool| {
        pool.readable(&[0, 1]);
        assert_eq!(pool.lane(1), "low");
        assert_eq!(pool.sched.crew.parked(), 1, "who could run it");
    });
}

#[test]
fn a_dedicated_listener_whose_only_worker_waits_creates_no_thread_for_one_to_two_ticks() {
    lasts_one_to_two_ticks(&PoolConfig::mariadb().dedicated_listener(true), |pool| {
        pool.readable(&[0]);
        pool.waits(0);
        pool.readable(&[1]);
        assert_eq!(pool.lane(1), "low");
        assert_eq!(pool.sched.crew.active(), 0);
    });
}

#[test]
fn a_dedicated_listener_whose_only_worker_burns_wakes_nobody_for_one_to_two_ticks() {
    lasts_one_to_two_ticks(&PoolConfig::mariadb().dedicated_listener(true), |pool| {
        pool.readable(&[0]);
        pool.readable(&[1]);
        assert_eq!(pool.lane(1), "low");
        assert!(pool.listener.is_some());
    });
}

#[test]
fn a_wait_that_leaves_nobody_to_poll_wakes_somebody_at_once() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 2, 100);
    pool.readable(&[0]);
    assert_eq!(pool.listener, None);
    pool.waits(0);
    assert!(pool.listener.is_some());
}

#[test]
fn a_worker_that_is_done_takes_nothing_while_the_limit_runs_itself_included() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb().oversubscribe(1), 4, 100);
    // Two come back from waits beside a third: above the limit, which holds nobody back there.
    for conn in [0, 1] {
        pool.readable(&[conn]);
        pool.waits(conn);
    }
    pool.readable(&[2]);
    pool.goes_on(0);
    pool.goes_on(1);
    assert_eq!(pool.sched.crew.active(), 3);
    let queued = pool.attach();
    pool.ends(0, IDLE);
    assert!(!pool.runs(queued), "three, with the one that is done");
    assert!(pool.listener.is_some(), "but it may listen");
    pool.ends(1, IDLE);
    assert!(!pool.runs(queued), "two, with the one that is done");
    pool.ends(2, IDLE);
    assert!(pool.runs(queued));
}

#[test]
fn a_stall_opens_the_gate_for_one() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb().oversubscribe(1), 4, 0);
    for conn in [0, 1] {
        pool.readable(&[conn]);
        pool.waits(conn);
    }
    pool.readable(&[2]);
    pool.goes_on(0);
    pool.goes_on(1);
    pool.ends(1, IDLE);
    // Two burn, and one listens.
    let queued = [pool.attach(), pool.attach()];
    pool.pass_until_the_tick();
    assert!(!pool.runs(queued[0]) && pool.sched.stats.stalls == 0);
    pool.pass_until_the_tick();
    assert_eq!(pool.sched.stats.stalls, 1);
    assert!(pool.runs(queued[0]) && !pool.runs(queued[1]));
    assert!(!pool.sched.stats().stalled);
}

#[test]
fn the_throttle_has_mariadbs_table_and_nothing_below_a_stall_limit_of_500_ms() {
    let table = [
        (1, 0),
        (3, 0),
        (4, 50),
        (7, 50),
        (8, 100),
        (15, 100),
        (16, 20),
        (99, 20),
    ];
    for (limit, factor) in [(500, 1), (499, 0), (10, 0), (1500, 1)] {
        for (threads, pause) in table {
            let config = PoolConfig::mariadb().stall_limit(Duration::from_millis(limit));
            let mut pool = Pool::empty(config);
            while pool.sched.threads() < threads {
                let _ = pool.sched.spawning(Nanos(0), false, false);
            }
            assert_eq!(
                mariadb::throttle(&pool.sched),
                Nanos(factor * pause * MS.0),
                "{threads} threads, {limit} ms"
            );
        }
    }
}

#[test]
fn a_thread_that_is_throttled_is_asked_for_again_only_at_the_next_tick() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 4, 0);
    for conn in 0..4 {
        while pool.listener.is_none() {
            pool.pass();
        }
        pool.readable(&[conn]);
    }
    pool.pass_until_the_tick();
    // Four burn and nobody polls, which the next tick sees; one more comes just before.
    for _ in 0..TICK - 20 {
        pool.pass();
    }
    pool.attach();
    let _ = pool.sched.spawning(pool.now, false, false);
    let (creations, throttles) = (pool.sched.stats.creations, pool.sched.stats.throttles);
    for _ in 0..TICK {
        pool.pass();
    }
    assert_eq!(pool.sched.stats.throttles, throttles + 1);
    assert_eq!(pool.sched.stats.creations, creations);
    pool.pass_until_the_tick();
    assert_eq!(pool.sched.stats.creations, creations + 1);
    assert_eq!(pool.sched.stats.creations_due_to_stall, 3);
}

#[test]
fn no_more_threads_are_created_than_there_are_connections() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 1, 0);
    pool.readable(&[0]);
    for _ in 0..10 {
        pool.pass_until_the_tick();
    }
    assert_eq!(pool.sched.threads(), 2);
}

#[test]
fn age_moves_a_command_to_the_tail_of_the_high_lane_and_only_at_a_tick() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 4, 100);
    pool.lanes[2] = Lane::High;
    pool.readable(&[2]);
    pool.ends(2, IDLE);
    while pool.listener.is_none() {
        pool.pass();
    }
    // So that nobody comes for those that are queued.
    let gate = |pool: &mut Pool| pool.sched.mariadb.takes_one();
    pool.readable(&[0, 1]);
    let began = pool.now;
    while pool.now.since(began) < Nanos(1000 * MS.0) {
        assert_eq!(pool.lane(1), "low");
        gate(&mut pool);
        pool.pass();
    }
    let late = pool.attach();
    assert_eq!((pool.lane(1), pool.lane(late)), ("low", "high"));
    gate(&mut pool);
    pool.pass_until_the_tick();
    let order: Vec<Key> = pool.sched.lanes.entries().map(|(_, key, _)| key).collect();
    assert_eq!(pool.lane(1), "high");
    assert_eq!(order, [pool.keys[late], pool.keys[1]]);
}

#[test]
fn a_pipeline_does_not_keep_others_from_being_polled() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 2, 100);
    pool.readable(&[0]);
    assert_eq!(pool.listener, None);
    // The poller is rung, and would bring what else there is.
    let polls = pool.sched.stats.polls_by_listener;
    pool.ends(0, End::Again);
    assert_eq!(pool.sched.stats.polls_by_listener, polls + 1);
    assert!(pool.runs(0));
}

#[test]
fn a_killed_connection_is_closed_by_the_listener_and_without_one_waits_for_a_tick() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 3, 100);
    pool.attach();
    let kill = |pool: &mut Pool, conn: usize| {
        let actions = pool.sched.kill(pool.keys[conn], pool.now);
        pool.perform(actions);
    };
    // While another command burns.
    kill(&mut pool, 0);
    assert!(pool.runs(0) && pool.listener.is_none());
    kill(&mut pool, 1);
    assert!(!pool.runs(1));
    pool.pass_until_the_tick();
    pool.pass_until_the_tick();
    assert!(pool.runs(1));
}

#[test]
fn what_mariadb_does_not_know_has_no_effect() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 2, 100);
    pool.readable(&[0, 1]);
    let worker = pool.running[&0];
    for actions in [
        pool.sched.declare_long(worker, pool.now),
        pool.sched.boost(pool.keys[1], pool.now),
    ] {
        assert_eq!(actions.call, Call::Nobody);
    }
    assert_eq!((pool.lane(1), pool.sched.stats().long), ("low", 0));
}

/// It was taken off a count that it had never been added to.
#[test]
fn a_holder_that_is_waited_for_no_more_while_it_runs_is_what_it_says() {
    let mut pool = Pool::at_rest(PoolConfig::mariadb(), 2, 100);
    for holding in [true, false] {
        pool.readable(&[0]);
        let _ = pool.sched.boost(pool.keys[0], pool.now);
        let _ = pool.sched.unboost(pool.keys[0], pool.now);
        pool.ends_and_says(0, IDLE, Some(holding));
        let slot = pool.sched.table.get(pool.keys[0]).expect("it is connected");
        assert_eq!(
            (slot.is(Marks::HOLDING), slot.boosted, slot.disowned),
            (holding, 0, 0)
        );
    }
}
