//! The whole group with up to ten threads at a time, in some orders of very many: at random, and by
//! PCT, which is better at a bug that takes few switches in the right places.
//!
//! Loom proves what it can finish, kernels of a few threads; here is everything at once. What fails
//! prints its schedule, and `THREAD_GROUP_SCHEDULE=... cargo shuttle` runs that one again. Shuttle
//! has no time either: short sleeps are over when the others have had a turn, long ones never are.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, MaxSteps, Runner};

use super::fakes::{
    CLOSED, Count, FLUSH, Fresh, Hire, IDLE, PARK, STARTED, TestGroup, attach, group_with, me,
    reader, run_alone, spawn, start,
};
use crate::mutant;
use crate::port::Readiness;
use crate::sched::{Key, Nanos, Told, Turn, Wake};
use crate::wait::WaitKind;

const SCHEDULE: &str = "THREAD_GROUP_SCHEDULE";
const SCHEDULES: usize = 3000;
/// How many switches PCT puts in the right places.
const DEPTH: usize = 3;
/// A run has about two thousand; more than this, and somebody goes round in circles.
const STEPS: usize = 50_000;

fn check(name: &str, scenario: fn()) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS);
    if let Ok(schedule) = std::env::var(SCHEDULE) {
        let scheduler = ReplayScheduler::new_from_encoded(&schedule);
        Runner::new(scheduler, config).run(scenario);
        return;
    }
    let begun = Instant::now();
    let threads = Arc::new(AtomicUsize::new(0));
    let started = Arc::clone(&threads);
    let counted = move || {
        STARTED.set(1);
        scenario();
        started.fetch_max(STARTED.get(), Relaxed);
    };
    Runner::new(RandomScheduler::new(SCHEDULES), config.clone()).run(counted.clone());
    Runner::new(PctScheduler::new(DEPTH, SCHEDULES), config).run(counted);
    let threads = threads.load(Relaxed);
    // Not by a macro: this is worth seeing when nothing fails.
    let _ = writeln!(
        io::stderr(),
        "{name}: up to {threads} threads started, 2 x {SCHEDULES} schedules, {:?}",
        begun.elapsed()
    );
    assert!(threads >= 10, "{threads} threads");
}

/// A connection that closes when it is told to, and else does as `turn` says.
fn attach_until_closed(
    group: &TestGroup,
    closed: &Count,
    mut turn: impl FnMut(Key, &Wake) -> Turn + Send + 'static,
) -> Key {
    let closed = closed.clone();
    attach(group, move |key, wake| {
        if wake.close.is_some() {
            closed.up();
            return CLOSED;
        }
        turn(key, wake)
    })
}

fn everything_at_once() {
    let second = Nanos(1_000_000_000);
    let bell = Arc::default();
    let group = group_with(Fresh::Not, &bell, |bounds| {
        bounds.stall_limit = Nanos(3 * second.0);
        bounds.park_time = second;
        // Who was long queues behind the command that waits for it, until age promotes it.
        bounds.kickup = second;
    });
    Hire::new(&group, &bell, 4).beside(|| {
        let workers = start(&group, 2);
        let closed = Count::default();
        let seen = [Count::default(), Count::default()];
        let [first, second] = seen.each_ref().map(|seen| reader(&group, seen));
        // Waits for what the first reader is sent, and says so.
        let waited = Count::default();
        let waiting = {
            let (weak, seen, waited) = (Arc::downgrade(&group), seen[0].clone(), waited.clone());
            attach_until_closed(&group, &closed, move |_, wake| {
                if wake.ready.input() {
                    let group = weak.upgrade().expect("it runs this");
                    group.wait_begin(me(), WaitKind::Unknown, None);
                    seen.wait_for(2);
                    group.wait_end(me(), Nanos(0));
                    waited.up();
                }
                IDLE
            })
        };
        // Waits for what the second reader is sent, and does not say so.
        let blocked = Count::default();
        let blocking = {
            let (seen, blocked) = (seen[1].clone(), blocked.clone());
            attach_until_closed(&group, &closed, move |_, wake| {
                if wake.ready.input() {
                    seen.wait_for(2);
                    blocked.up();
                }
                IDLE
            })
        };
        // Parks, and is resumed.
        let (parks, resumed) = (Count::default(), Count::default());
        let parking = {
            let (parks, resumed) = (parks.clone(), resumed.clone());
            attach_until_closed(&group, &closed, move |_, wake| {
                if wake.is(Told::RESUMED) {
                    resumed.up();
                } else if wake.ready.input() {
                    parks.up();
                    return PARK;
                }
                IDLE
            })
        };
        // Has more to say than its client reads.
        let flushed = Count::default();
        let flushing = {
            let flushed = flushed.clone();
            attach_until_closed(&group, &closed, move |_, wake| {
                if wake.ready.has_any_of(Readiness::WRITABLE) {
                    flushed.up();
                    return IDLE;
                }
                FLUSH
            })
        };
        let killed = attach_until_closed(&group, &closed, |_, _| IDLE);
        let poked = Count::default();
        let poking = {
            let poked = poked.clone();
            attach_until_closed(&group, &closed, move |_, wake| {
                if wake.is(Told::POKED) {
                    poked.up();
                }
                IDLE
            })
        };
        let clients = [
            {
                let group = Arc::clone(&group);
                spawn(move || {
                    for (key, send) in [&first, &second] {
                        send(*key, &group);
                        send(*key, &group);
                    }
                    group.doors.input(parking);
                })
            },
            {
                let group = Arc::clone(&group);
                spawn(move || {
                    group.doors.input(waiting);
                    group.doors.input(blocking);
                    group.doors.event(flushing, Readiness::WRITABLE);
                })
            },
            {
                let group = Arc::clone(&group);
                spawn(move || {
                    group.doors.input(killed);
                    assert!(group.kill(killed));
                    group.poke(poking);
                })
            },
            {
                let group = Arc::clone(&group);
                spawn(move || {
                    parks.wait_for(1);
                    assert!(group.resume(parking, 1, false));
                })
            },
        ];
        for (count, n) in [
            (&seen[0], 2),
            (&seen[1], 2),
            (&waited, 1),
            (&blocked, 1),
            (&resumed, 1),
            (&flushed, 1),
            (&poked, 1),
            (&closed, 1),
        ] {
            count.wait_for(n);
        }
        for client in clients {
            client.join().unwrap();
        }
        group.drain(false);
        closed.wait_for(6);
        group.stop();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(closed.is(), 6);
    });
    let stats = group.stats();
    assert_eq!((stats.threads, stats.active, stats.waiting), (0, 0, 0));
    assert_eq!((stats.long, stats.blocked, stats.over_cap), (0, 0, 0));
}

#[test]
fn a_whole_group_loses_nobody() {
    check("clients, monitor, workers", everything_at_once);
}

/// Whoever looks for a bug wants to see it twice.
#[test]
fn a_schedule_that_fails_fails_again() {
    for mutant in ["a_worker_parks_out_of_the_lock", "settle_forgets_an_event"] {
        let whole = "a_whole_group_loses_nobody";
        let (failed, said) = run_alone(module_path!(), whole, &[(mutant::VARIABLE, mutant)]);
        assert!(failed, "{whole} does not find {mutant}:\n{said}");
        // The monitor may tick for ever, for what nobody will come for.
        let finding = ["deadlock!", "exceeded max_steps"]
            .into_iter()
            .find(|finding| said.contains(finding))
            .unwrap_or_else(|| panic!("{mutant} is found as\n{said}"));
        let schedule = said
            .split_once("failing schedule:")
            .and_then(|(_, rest)| rest.split('"').nth(1))
            .unwrap_or_else(|| panic!("no schedule in\n{said}"))
            .trim();
        let again = [(mutant::VARIABLE, mutant), (SCHEDULE, schedule)];
        let (failed, said) = run_alone(module_path!(), whole, &again);
        assert!(failed && said.contains(finding), "not found again:\n{said}");
    }
}
