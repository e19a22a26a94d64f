//! The group that ships, over fake doors, in every order that loom can find.
//!
//! Each kernel is the few threads and moves of one race that `src/sched/README.md` fears, and has
//! a mutant: the same kernel without the step that prevents the race, in which loom must find
//! something. Run them by `cargo loom`; `LOOM_MAX_PREEMPTIONS=3 cargo loom` looks further and takes
//! longer.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use super::fakes::{
    CLOSED, Client, Count, FLUSH, Fresh, Hire, IDLE, PARK, STARTED, TestGroup, attach, group,
    group_with, me, reader, run_alone, spawn, start, stop, work_here,
};
use crate::command::{Cause, Command, Registered, Verdict, Whose};
use crate::mutant;
use crate::port::Readiness;
use crate::sched::{Nanos, Told, Turn};
use crate::sync::Mutex;
use crate::wait::WaitKind;

/// How far a kernel is taken.
#[derive(Clone, Copy)]
struct Reach {
    /// Unforced switches of thread in one order; without a bound it is every order that there is.
    preemptions: Option<usize>,
    /// Orders that there have been: fewer, and the kernel has shrunk to something that proves less.
    orders: usize,
}

/// Runs a kernel in every order within reach.
fn model(name: &str, reach: Reach, kernel: impl Fn() + Send + Sync + 'static) {
    let (orders, threads) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let mut builder = loom::model::Builder::new();
    // The bound of a run, from its environment, goes before the kernel's.
    builder.preemption_bound = builder.preemption_bound.or(reach.preemptions);
    let bound = builder.preemption_bound;
    builder.max_branches = 20_000;
    let (counted, started) = (Arc::clone(&orders), Arc::clone(&threads));
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        STARTED.set(1);
        kernel();
        started.fetch_max(STARTED.get(), Relaxed);
    });
    let (orders, threads) = (orders.load(Relaxed), threads.load(Relaxed));
    // Not by a macro: this is worth seeing when nothing fails.
    let _ = writeln!(
        io::stderr(),
        "{name}: {threads} threads, {}, {orders} orders, {:?}",
        bound.map_or("every order".into(), |n| format!("at most {n} preemptions")),
        begun.elapsed()
    );
    assert!((2..=5).contains(&threads), "{threads} threads");
    let least = reach.orders;
    // Of another run's bound nothing has been recorded.
    assert!(
        bound != reach.preemptions || orders >= least,
        "only {orders} orders, there were {least}: what has the kernel lost?"
    );
}

/// At most so many preemptions, at least so many orders.
const fn reach(preemptions: usize, orders: usize) -> Reach {
    Reach {
        preemptions: Some(preemptions),
        orders,
    }
}

const fn every_order(orders: usize) -> Reach {
    Reach {
        preemptions: None,
        orders,
    }
}

// ---- workers, lanes, the poller ----

#[test]
fn every_attached_connection_runs_once_while_workers_go_to_sleep() {
    for fresh in [Fresh::Always, Fresh::Not] {
        model(
            "attach, attach | worker | worker",
            reach(2, 1400),
            move || {
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
            },
        );
    }
}

#[test]
fn connections_that_are_attached_at_once_each_run_once() {
    model("attach | attach | worker", reach(3, 6000), || {
        let group = group(Fresh::Always, &Arc::default());
        let ran = Count::default();
        let workers = start(&group, 1);
        let attach_one = |group: &TestGroup, ran: Count| {
            attach(group, move |_, _| {
                ran.up();
                CLOSED
            });
        };
        let other = {
            let (group, ran) = (Arc::clone(&group), ran.clone());
            spawn(move || attach_one(&group, ran))
        };
        attach_one(&group, ran.clone());
        ran.wait_for(2);
        other.join().unwrap();
        stop(&group, workers);
        assert_eq!((ran.is(), group.leftovers().len()), (2, 0));
    });
}

#[test]
fn input_that_comes_while_its_connection_runs_is_not_lost() {
    for (fresh, workers, reach) in [
        (Fresh::Always, 1, reach(3, 700)),
        (Fresh::Not, 2, reach(2, 2800)),
    ] {
        model("input, input | worker..", reach, move || {
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
fn a_worker_whose_time_is_over_as_it_is_called_comes() {
    // Each look at the clock finds that the time parked is over. Of three workers one may leave even
    // while another is called; the first connection's command waits for the second one, and if all
    // have left by then, the monitor finds that.
    model(
        "attach, tick | worker | worker | worker",
        reach(2, 60_000),
        || {
            let bell = Arc::default();
            let group = group_with(Fresh::Not, &bell, |bounds| bounds.park_time = Nanos(1));
            let hire = Arc::new(Hire::new(&group, &bell, 4));
            let done = Count::default();
            let mut workers = start(&group, 3);
            {
                let (hire, done) = (Arc::clone(&hire), done.clone());
                attach(&group, move |_, _| {
                    let group = &hire.group;
                    let ran = Count::default();
                    {
                        let ran = ran.clone();
                        attach(group, move |_, _| {
                            ran.up();
                            CLOSED
                        });
                    }
                    group.wait_begin(me(), WaitKind::Unknown, None);
                    hire.tick();
                    ran.wait_for(1);
                    group.wait_end(me(), Nanos(0));
                    done.up();
                    CLOSED
                });
            }
            done.wait_for(1);
            workers.append(&mut hire.hired.lock());
            stop(&group, workers);
            assert_eq!(group.stats().threads, 0);
        },
    );
}

#[test]
fn the_next_need_is_called_for_when_the_first_has_been_seen_to() {
    model(
        "attach, then attach | worker | worker",
        reach(3, 30_000),
        || {
            let group = group(Fresh::Always, &Arc::default());
            let ran = Count::default();
            let workers = start(&group, 2);
            for n in 1..=2 {
                let ran_one = ran.clone();
                attach(&group, move |_, _| {
                    ran_one.up();
                    CLOSED
                });
                ran.wait_for(n);
            }
            stop(&group, workers);
            // One need, one call.
            assert!(group.stats().wakes <= 2, "{:?}", group.stats());
        },
    );
}

#[test]
fn work_behind_a_listener_that_was_rung_is_called_for() {
    // The second connection is for the listener, since the other worker waits; the third one is for
    // that other worker, when it has parked and the listener waits itself.
    model("attach, attach | worker | worker", reach(3, 60_000), || {
        let group = group(Fresh::Always, &Arc::default());
        let (second, third) = (Count::default(), Count::default());
        let workers = start(&group, 2);
        {
            let (weak, second) = (Arc::downgrade(&group), second.clone());
            attach(&group, move |_, _| {
                let group = weak.upgrade().expect("it runs this");
                group.wait_begin(me(), WaitKind::Unknown, None);
                second.wait_for(1);
                group.wait_end(me(), Nanos(0));
                CLOSED
            });
        }
        {
            let (weak, second, third) = (Arc::downgrade(&group), second.clone(), third.clone());
            attach(&group, move |_, _| {
                let group = weak.upgrade().expect("it runs this");
                second.up();
                let ran = third.clone();
                attach(&group, move |_, _| {
                    ran.up();
                    CLOSED
                });
                group.wait_begin(me(), WaitKind::Unknown, None);
                third.wait_for(1);
                group.wait_end(me(), Nanos(0));
                CLOSED
            });
        }
        third.wait_for(1);
        stop(&group, workers);
        assert_eq!(group.leftovers().len(), 0);
    });
}

#[test]
fn work_that_comes_as_the_listener_leaves_the_poller_is_run() {
    // The command that the listener leaves for waits for the connection that is attached meanwhile.
    model("input | attach | worker | worker", reach(2, 9000), || {
        let group = group(Fresh::Always, &Arc::default());
        let (ran, done) = (Count::default(), Count::default());
        let workers = start(&group, 2);
        let waiting = {
            let (weak, ran, done) = (Arc::downgrade(&group), ran.clone(), done.clone());
            attach(&group, move |_, wake| {
                if wake.ready.input() {
                    let group = weak.upgrade().expect("it runs this");
                    group.wait_begin(me(), WaitKind::Unknown, None);
                    ran.wait_for(1);
                    group.wait_end(me(), Nanos(0));
                    done.up();
                }
                IDLE
            })
        };
        let other = {
            let group = Arc::clone(&group);
            spawn(move || {
                attach(&group, move |_, _| {
                    ran.up();
                    CLOSED
                });
            })
        };
        group.doors.input(waiting);
        done.wait_for(1);
        other.join().unwrap();
        stop(&group, workers);
        let stats = group.stats();
        assert_eq!((stats.waiting, stats.active), (0, 0));
    });
}

#[test]
fn a_command_that_waits_leaves_nobodys_input_unseen() {
    // The first connection waits for the second one's input. No time passes, so only what the wait
    // itself calls can help.
    model(
        "input, input | worker | worker, waiting",
        reach(2, 3000),
        || {
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
                        group.wait_begin(me(), WaitKind::Unknown, None);
                        seen.wait_for(1);
                        group.wait_end(me(), Nanos(0));
                        done.up();
                    }
                    IDLE
                })
            };
            group.doors.input(waiting);
            send(reading, &group);
            done.wait_for(1);
            stop(&group, workers);
        },
    );
}

// ---- kill, drain, stop ----

#[test]
fn a_killed_connection_is_closed_once_whatever_it_does() {
    for fresh in [Fresh::Always, Fresh::Not] {
        model("input, kill | kill | worker", reach(3, 8000), move || {
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
                    CLOSED
                })
            };
            let other = {
                let group = Arc::clone(&group);
                spawn(move || group.kill(key))
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
fn a_slow_reader_that_is_killed_is_closed_once() {
    for reads in [false, true] {
        model("writable? | kill | worker", reach(3, 1400), move || {
            let group = group(Fresh::Always, &Arc::default());
            let closed = Count::default();
            let workers = start(&group, 1);
            let key = {
                let closed = closed.clone();
                attach(&group, move |_, wake| {
                    if wake.close.is_some() {
                        closed.up();
                        return CLOSED;
                    }
                    if wake.ready.has_any_of(Readiness::WRITABLE) {
                        return IDLE;
                    }
                    FLUSH
                })
            };
            let other = {
                let group = Arc::clone(&group);
                spawn(move || group.kill(key))
            };
            if reads {
                group.doors.event(key, Readiness::WRITABLE);
            }
            closed.wait_for(1);
            assert!(other.join().unwrap());
            stop(&group, workers);
            assert_eq!((closed.is(), group.leftovers().len()), (1, 0));
        });
    }
}

#[test]
fn a_slow_reader_that_sends_on_is_read() {
    model("input, input | worker", reach(3, 490), || {
        let group = group(Fresh::Always, &Arc::default());
        let seen = Count::default();
        let workers = start(&group, 1);
        let key = {
            let seen = seen.clone();
            attach(&group, move |_, wake| {
                if wake.ready.input() {
                    seen.up();
                }
                FLUSH
            })
        };
        group.doors.input(key);
        seen.wait_for(1);
        group.doors.input(key);
        seen.wait_for(2);
        stop(&group, workers);
        assert_eq!((seen.is(), group.leftovers().len()), (2, 1));
    });
}

#[test]
fn what_comes_too_late_for_a_connection_spares_its_successor() {
    model(
        "attach, attach | input, kill | worker",
        reach(3, 27_000),
        || {
            let group = group(Fresh::Always, &Arc::default());
            let (closed, ran) = (Count::default(), Count::default());
            let workers = start(&group, 1);
            let first = {
                let closed = closed.clone();
                attach(&group, move |_, _| {
                    closed.up();
                    CLOSED
                })
            };
            let other = {
                let group = Arc::clone(&group);
                spawn(move || {
                    group.doors.input(first);
                    group.kill(first);
                })
            };
            closed.wait_for(1);
            {
                let ran = ran.clone();
                attach(&group, move |_, wake| {
                    assert!(
                        wake.close.is_none() && !wake.ready.input(),
                        "this was for another connection"
                    );
                    ran.up();
                    IDLE
                });
            }
            ran.wait_for(1);
            other.join().unwrap();
            stop(&group, workers);
            assert_eq!((ran.is(), group.leftovers().len()), (1, 1));
        },
    );
}

#[test]
fn a_drain_closes_who_is_idle_and_who_comes_to_be() {
    model("input, drain | attach | worker", reach(2, 1400), || {
        let group = group(Fresh::Always, &Arc::default());
        let closed = Count::default();
        let workers = start(&group, 1);
        let attach_one = |group: &TestGroup, closed: Count| {
            attach(group, move |_, wake| {
                if wake.close.is_none() {
                    return IDLE;
                }
                closed.up();
                CLOSED
            })
        };
        let other = {
            let (group, closed) = (Arc::clone(&group), closed.clone());
            spawn(move || _ = attach_one(&group, closed))
        };
        let key = attach_one(&group, closed.clone());
        group.doors.input(key);
        group.drain(false);
        closed.wait_for(2);
        other.join().unwrap();
        stop(&group, workers);
        assert_eq!((closed.is(), group.leftovers().len()), (2, 0));
    });
}

#[test]
fn a_stop_sends_everybody_home_and_loses_no_connection() {
    for fresh in [Fresh::Always, Fresh::Not] {
        model(
            "stop | attach, input | worker | worker",
            reach(2, 1200),
            move || {
                let group = group(fresh, &Arc::default());
                let workers = start(&group, 2);
                let client = || Client::new(|_, _| IDLE);
                assert!(group.attach(client()).is_ok());
                let other = {
                    let group = Arc::clone(&group);
                    spawn(move || match group.attach(client()) {
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
            },
        );
    }
}

#[test]
fn a_thread_that_is_created_as_the_group_stops_goes_home() {
    model("stop | monitor | (worker)", reach(3, 1800), || {
        let bell = Arc::default();
        let group = group(Fresh::Until, &bell);
        let first = group.spawning(false, false);
        let ran = Count::default();
        {
            let (weak, ran) = (Arc::downgrade(&group), ran.clone());
            attach(&group, move |_, _| {
                let group = weak.upgrade().expect("it runs this");
                let ran = ran.clone();
                attach(&group, move |_, _| {
                    ran.up();
                    CLOSED
                });
                group.doors.pass(1);
                group.stop();
                CLOSED
            });
        }
        Hire::new(&group, &bell, 2).beside(|| work_here(&group, first));
        assert_eq!(group.stats().threads, 0);
        assert_eq!(group.leftovers().len() + ran.is(), 1);
    });
}

// ---- parked connections ----

#[test]
fn a_resume_that_comes_before_its_park_ends_it() {
    model("resume | worker", reach(5, 4500), || {
        let group = group(Fresh::Always, &Arc::default());
        let (parks, woken) = (Count::default(), Count::default());
        let workers = start(&group, 1);
        let key = {
            let (parks, woken) = (parks.clone(), woken.clone());
            attach(&group, move |_, wake| {
                if wake.is(Told::RESUMED) {
                    woken.up();
                    return CLOSED;
                }
                parks.up();
                PARK
            })
        };
        // From here on its handler has made the `Resume`, and may not have returned yet.
        parks.wait_for(1);
        assert!(group.resume(key, 1, false));
        woken.wait_for(1);
        stop(&group, workers);
        assert_eq!((woken.is(), group.leftovers().len()), (1, 0));
    });
}

/// A connection that parks, and goes back to rest when it is resumed.
fn parker(group: &TestGroup, woken: &Count, closed: &Count) -> crate::sched::Key {
    let (woken, closed) = (woken.clone(), closed.clone());
    let mut parked = false;
    attach(group, move |_, wake| {
        if wake.close.is_some() || wake.ready.has_any_of(Readiness::HUNG_UP) {
            closed.up();
            return CLOSED;
        }
        if wake.is(Told::RESUMED) {
            woken.up();
        }
        assert!(
            !parked || wake.is(Told::RESUMED),
            "woken for nothing: {wake:?}"
        );
        if std::mem::replace(&mut parked, true) {
            IDLE
        } else {
            PARK
        }
    })
}

#[test]
fn a_park_that_is_resumed_dropped_and_killed_ends_once() {
    model("kill | resume | drop | worker", reach(2, 2300), || {
        let group = group(Fresh::Always, &Arc::default());
        let (woken, closed) = (Count::default(), Count::default());
        let workers = start(&group, 1);
        let key = parker(&group, &woken, &closed);
        let [resume, drop] = [false, true].map(|dropped| {
            let group = Arc::clone(&group);
            spawn(move || group.resume(key, 1, dropped))
        });
        group.kill(key);
        closed.wait_for(1);
        let [resumed, dropped] = [resume, drop].map(|thread| thread.join().unwrap());
        stop(&group, workers);
        assert!(!(resumed && dropped), "one park has ended twice");
        assert!(woken.is() <= usize::from(resumed), "woken, by whom?");
        assert_eq!((closed.is(), group.leftovers().len()), (1, 0));
    });
}

#[test]
fn a_park_whose_client_hangs_up_is_closed_once_and_resumed_at_most_once() {
    model("hang-up | resume | worker", reach(3, 4000), || {
        let group = group(Fresh::Always, &Arc::default());
        let (woken, closed) = (Count::default(), Count::default());
        let workers = start(&group, 1);
        let key = parker(&group, &woken, &closed);
        let other = {
            let group = Arc::clone(&group);
            spawn(move || group.resume(key, 1, false))
        };
        let gone = Readiness::HUNG_UP.and(Readiness::READ_CLOSED);
        group.doors.event(key, gone);
        closed.wait_for(1);
        let resumed = other.join().unwrap();
        stop(&group, workers);
        assert!(woken.is() <= usize::from(resumed), "woken, by whom?");
        assert_eq!((closed.is(), group.leftovers().len()), (1, 0));
    });
}

#[test]
fn a_resume_that_comes_with_the_time_out_of_its_park_is_not_lost() {
    // As a handler does that parks again for the same `Resume` when its time is over.
    model("time-out | resume | worker", reach(3, 4500), || {
        let bell = Arc::default();
        let group = group(Fresh::Until, &bell);
        let (woken, due) = (Count::default(), Count::default());
        let workers = start(&group, 1);
        let key = {
            let (woken, due) = (woken.clone(), due.clone());
            let mut until = Some(Nanos(1));
            attach(&group, move |_, wake| {
                if wake.is(Told::RESUMED) {
                    woken.up();
                    return CLOSED;
                }
                if wake.is(Told::DUE) {
                    due.up();
                }
                Turn {
                    until: until.take().unwrap_or(PARK.until),
                    ..PARK
                }
            })
        };
        let other = {
            let group = Arc::clone(&group);
            spawn(move || group.resume(key, 1, false))
        };
        group.doors.pass(1);
        Hire::new(&group, &bell, 1).tick();
        woken.wait_for(1);
        assert!(other.join().unwrap());
        stop(&group, workers);
        assert!(due.is() <= 1);
        assert_eq!((woken.is(), group.leftovers().len()), (1, 0));
    });
}

#[test]
fn a_poke_that_comes_as_its_connection_parks_calls_it() {
    model("poke | worker", every_order(35_000), || {
        let group = group(Fresh::Always, &Arc::default());
        let poked = Count::default();
        let workers = start(&group, 1);
        let key = {
            let poked = poked.clone();
            attach(&group, move |_, wake| {
                if wake.is(Told::POKED) {
                    poked.up();
                    return IDLE;
                }
                PARK
            })
        };
        group.poke(key);
        poked.wait_for(1);
        stop(&group, workers);
        assert_eq!((poked.is(), group.leftovers().len()), (1, 1));
    });
}

#[test]
fn a_cancellation_that_comes_as_its_connection_parks_calls_it() {
    model("interrupt | worker", every_order(35_000), || {
        let group = group(Fresh::Always, &Arc::default());
        let told = Count::default();
        let workers = start(&group, 1);
        let key = {
            let told = told.clone();
            attach(&group, move |_, wake| {
                if wake.is(Told::INTERRUPTED) {
                    told.up();
                    return IDLE;
                }
                PARK
            })
        };
        group.interrupt(key);
        told.wait_for(1);
        stop(&group, workers);
        assert_eq!((told.is(), group.leftovers().len()), (1, 1));
    });
}

// ---- a command and whoever cancels it ----

#[test]
fn a_kill_of_a_command_that_ends_spares_the_next_one() {
    model("command, command | kill", every_order(380), || {
        let command = Arc::new(Command::new());
        command.begin();
        let other = {
            let command = Arc::clone(&command);
            spawn(move || {
                let verdict = command.cancel(1, Cause::Killed);
                if verdict == Verdict::Cancelled {
                    command.call(Whose::Command(1));
                }
                verdict
            })
        };
        let called = [Count::default(), Count::default()];
        for (n, called) in called.iter().enumerate() {
            if n > 0 {
                command.begin();
            }
            let call = called.clone();
            let cancelled = || command.cause().is_some();
            let registered = command.register(cancelled, move || call.up());
            if let Registered::Kept(id) = registered {
                assert!(command.forget(id));
            }
            assert!(n == 0 || !cancelled(), "for another command");
            command.end();
        }
        let verdict = other.join().unwrap();
        assert_eq!(called[1].is(), 0, "for another command");
        assert!(called[0].is() <= 1);
        assert!(called[0].is() == 0 || verdict == Verdict::Cancelled);
    });
}

#[test]
fn a_callback_that_is_registered_as_its_command_is_killed_is_called_once() {
    model("command | kill | kill", reach(3, 300), || {
        let command = Arc::new(Command::new());
        command.begin();
        let kill = |whose| {
            let command = Arc::clone(&command);
            spawn(move || {
                command.cancel(1, Cause::Killed);
                command.call(whose);
            })
        };
        let others = [kill(Whose::Command(1)), kill(Whose::All)];
        let called = Count::default();
        let count = called.clone();
        let cancelled = || command.cause().is_some();
        let _ = command.register(cancelled, move || count.up());
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(called.is(), 1, "called once");
    });
}

#[test]
fn a_callback_is_over_with_its_scope() {
    model("command | kill", every_order(30), || {
        let command = Arc::new(Command::new());
        command.begin();
        let busy = Arc::new(Mutex::new(false));
        let other = {
            let command = Arc::clone(&command);
            spawn(move || {
                command.cancel(1, Cause::Killed);
                command.call(Whose::Command(1));
            })
        };
        let cancelled = || command.cause().is_some();
        let call = {
            let busy = Arc::clone(&busy);
            move || {
                *busy.lock() = true;
                *busy.lock() = false;
            }
        };
        if let Registered::Kept(id) = command.register(cancelled, call) {
            assert!(command.forget(id));
        }
        assert!(!*busy.lock(), "after its scope");
        command.end();
        other.join().unwrap();
    });
}

// ---- the monitor ----

/// A connection whose command attaches another one and, without saying so, waits for it.
fn attach_one_that_waits_for_another(group: &Arc<TestGroup>) {
    let weak = Arc::downgrade(group);
    let ran = Count::default();
    attach(group, move |_, _| {
        let group = weak.upgrade().expect("it runs this");
        let other = ran.clone();
        attach(&group, move |_, _| {
            other.up();
            CLOSED
        });
        group.doors.pass(1);
        ran.wait_for(1);
        group.stop();
        CLOSED
    });
}

#[test]
fn the_monitor_does_not_sleep_through_a_queue() {
    // The gate is shut when the second connection is queued, and opens as time passes: only the
    // monitor can see that, and it must be awake.
    model("ring | monitor | (worker)", reach(3, 26_000), || {
        let bell = Arc::default();
        let group = group(Fresh::Until, &bell);
        let first = group.spawning(false, false);
        attach_one_that_waits_for_another(&group);
        Hire::new(&group, &bell, 2).beside(|| work_here(&group, first));
        assert_eq!(group.leftovers().len(), 0);
    });
}

#[test]
fn a_thread_that_cannot_be_had_is_asked_for_again() {
    model(
        "ask | monitor, refused | (worker)",
        reach(3, 34_000),
        || {
            let bell = Arc::default();
            let group = group(Fresh::Not, &bell);
            let first = group.spawning(false, false);
            attach_one_that_waits_for_another(&group);
            let hire = Hire {
                refusals: Mutex::new(1),
                ..Hire::new(&group, &bell, 2)
            };
            hire.beside(|| work_here(&group, first));
            assert_eq!(group.leftovers().len(), 0);
        },
    );
}

#[test]
fn the_monitor_does_not_sleep_while_nobody_polls() {
    // The listener leaves the poller for a command that, without saying so, waits for the input of
    // another connection. While there was a listener the monitor had no reason to stay awake.
    model("ring, input | monitor | (worker)", reach(3, 32_000), || {
        let bell = Arc::default();
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
            CLOSED
        });
        group.doors.input(waiting);
        Hire::new(&group, &bell, 2).beside(|| work_here(&group, first));
        assert_eq!(group.leftovers().len(), 1);
    });
}

#[test]
fn a_nearer_deadline_reaches_a_monitor_that_sleeps() {
    // Nothing else is due, so the monitor sleeps without end, or is about to.
    model("rest | monitor", reach(3, 1100), || {
        let bell = Arc::default();
        let group = group(Fresh::Until, &bell);
        let first = group.spawning(false, false);
        let weak = Arc::downgrade(&group);
        attach(&group, move |_, wake| {
            let group = weak.upgrade().expect("it runs this");
            if wake.is(Told::DUE) {
                group.stop();
                return CLOSED;
            }
            group.doors.pass(1);
            Turn {
                until: Nanos(1),
                ..IDLE
            }
        });
        Hire::new(&group, &bell, 1).beside(|| work_here(&group, first));
        assert_eq!(group.leftovers().len(), 0);
    });
}

#[test]
fn a_command_that_ends_as_it_is_found_stalled_is_counted_once() {
    model("tick, attach | worker", reach(4, 2400), || {
        let bell = Arc::default();
        let group = group_with(Fresh::Until, &bell, |bounds| bounds.stall_limit = Nanos(1));
        let (runs, ran) = (Count::default(), Count::default());
        let workers = start(&group, 1);
        {
            let (weak, runs) = (Arc::downgrade(&group), runs.clone());
            attach(&group, move |_, _| {
                weak.upgrade().expect("it runs this").doors.pass(2);
                runs.up();
                CLOSED
            });
        }
        runs.wait_for(1);
        Hire::new(&group, &bell, 1).tick();
        {
            let ran = ran.clone();
            attach(&group, move |_, _| {
                ran.up();
                CLOSED
            });
        }
        ran.wait_for(1);
        stop(&group, workers);
        let stats = group.stats();
        assert_eq!(
            (stats.active, stats.long, stats.blocked),
            (0, 0, 0),
            "somebody is still counted"
        );
    });
}

#[test]
fn a_verdict_on_a_command_that_has_ended_spares_the_next_one() {
    model("tick, judge | worker", reach(4, 2200), || {
        let bell = Arc::default();
        let group = group_with(Fresh::Until, &bell, |bounds| bounds.stall_limit = Nanos(1));
        let (runs, judged) = (Count::default(), Count::default());
        let workers = start(&group, 1);
        {
            let (weak, runs) = (Arc::downgrade(&group), runs.clone());
            attach(&group, move |_, _| {
                weak.upgrade().expect("it runs this").doors.pass(2);
                runs.up();
                CLOSED
            });
        }
        {
            let (weak, judged) = (Arc::downgrade(&group), judged.clone());
            attach(&group, move |_, _| {
                judged.wait_for(1);
                let blocked = weak.upgrade().expect("it runs this").stats().blocked;
                assert_eq!(blocked, 0, "another command was looked at");
                CLOSED
            });
        }
        runs.wait_for(1);
        let hire = Hire {
            blocked: true,
            ..Hire::new(&group, &bell, 1)
        };
        hire.tick();
        judged.up();
        stop(&group, workers);
    });
}

#[test]
fn a_holder_gets_a_thread_beyond_the_cap() {
    // One thread is all that may be, and its command waits for what another session holds.
    model("wait | monitor | (worker)", reach(2, 1000), || {
        let bell = Arc::default();
        let group = group(Fresh::Until, &bell);
        let first = group.spawning(false, false);
        let ran = Count::default();
        let holder = {
            let ran = ran.clone();
            attach(&group, move |_, wake| {
                if wake.is(Told::POKED) {
                    ran.up();
                }
                Turn {
                    holding: Some(!wake.is(Told::POKED)),
                    in_transaction: false,
                    ..IDLE
                }
            })
        };
        let weak = Arc::downgrade(&group);
        attach(&group, move |_, _| {
            let group = weak.upgrade().expect("it runs this");
            group.poke(holder);
            group.wait_begin(me(), WaitKind::Unknown, None);
            ran.wait_for(1);
            group.wait_end(me(), Nanos(0));
            group.stop();
            CLOSED
        });
        Hire::new(&group, &bell, 1).beside(|| work_here(&group, first));
        let stats = group.stats();
        assert_eq!((stats.threads, stats.over_cap), (0, 0));
        assert_eq!(stats.threads_over_cap, 1);
        assert_eq!(group.leftovers().len(), 1);
    });
}

// ---- mutants ----

/// Everybody waits for somebody else.
const DEADLOCK: &str = "deadlock; threads =";

/// The monitor looks again and again, and nobody else has anything to do.
const ENDLESS: &str = "exceeded maximum number of branches";

/// Loom may abort when it has found something, so it is left to a process of its own.
fn is_found(mutant: &str, kernel: &str, finding: &str) {
    let begun = Instant::now();
    let (failed, said) = run_alone(module_path!(), kernel, &[(mutant::VARIABLE, mutant)]);
    assert!(
        failed && said.contains(finding),
        "{kernel} does not find {mutant}:\n{said}"
    );
    let _ = writeln!(io::stderr(), "{mutant}: found, {:?}", begun.elapsed());
}

/// A test for each mutant: the step that is left out, the kernel that fails then, and on what.
macro_rules! mutants {
    ($($mutant:ident in $kernel:ident: $finding:expr;)*) => {
        mod a_kernel_fails_when {
            use super::{DEADLOCK, ENDLESS};

            $(
                #[test]
                fn $mutant() {
                    let _: fn() = super::$kernel;
                    super::is_found(stringify!($mutant), stringify!($kernel), $finding);
                }
            )*
        }
    };
}

mutants! {
    a_worker_parks_out_of_the_lock
        in every_attached_connection_runs_once_while_workers_go_to_sleep: DEADLOCK;
    a_called_listener_is_not_rung
        in connections_that_are_attached_at_once_each_run_once: DEADLOCK;
    settle_forgets_an_event
        in input_that_comes_while_its_connection_runs_is_not_lost: DEADLOCK;
    time_overrides_a_call
        in a_worker_whose_time_is_over_as_it_is_called_comes: DEADLOCK;
    who_was_called_never_arrives
        in the_next_need_is_called_for_when_the_first_has_been_seen_to: DEADLOCK;
    a_listener_that_was_rung_never_arrives
        in work_behind_a_listener_that_was_rung_is_called_for: DEADLOCK;
    a_wait_calls_nobody
        in work_that_comes_as_the_listener_leaves_the_poller_is_run: DEADLOCK;
    settle_forgets_a_kill
        in a_killed_connection_is_closed_once_whatever_it_does: DEADLOCK;
    a_slow_reader_is_not_killed
        in a_slow_reader_that_is_killed_is_closed_once: DEADLOCK;
    a_slow_reader_is_not_read
        in a_slow_reader_that_sends_on_is_read: DEADLOCK;
    a_successor_has_the_same_key
        in what_comes_too_late_for_a_connection_spares_its_successor: "for another connection";
    settle_forgets_the_drain
        in a_drain_closes_who_is_idle_and_who_comes_to_be: DEADLOCK;
    a_stop_does_not_ring_the_poller
        in a_stop_sends_everybody_home_and_loses_no_connection: DEADLOCK;
    a_worker_does_not_see_the_stop
        in a_thread_that_is_created_as_the_group_stops_goes_home: DEADLOCK;
    settle_forgets_a_resume
        in a_resume_that_comes_before_its_park_ends_it: DEADLOCK;
    a_park_may_end_twice
        in a_park_that_is_resumed_dropped_and_killed_ends_once: "one park has ended twice";
    a_poke_of_who_runs_is_lost
        in a_poke_that_comes_as_its_connection_parks_calls_it: DEADLOCK;
    an_interrupt_of_who_runs_is_lost
        in a_cancellation_that_comes_as_its_connection_parks_calls_it: DEADLOCK;
    a_kill_does_not_look_at_the_number
        in a_kill_of_a_command_that_ends_spares_the_next_one: "for another command";
    a_callback_looks_before_it_is_registered
        in a_callback_that_is_registered_as_its_command_is_killed_is_called_once: "called once";
    a_scope_does_not_wait_for_its_callback
        in a_callback_is_over_with_its_scope: "after its scope";
    the_monitor_does_not_look_again
        in the_monitor_does_not_sleep_through_a_queue: DEADLOCK;
    a_failed_thread_stays_counted
        in a_thread_that_cannot_be_had_is_asked_for_again: ENDLESS;
    who_leaves_the_poller_does_not_ring
        in the_monitor_does_not_sleep_while_nobody_polls: DEADLOCK;
    a_nearer_deadline_is_not_told
        in a_nearer_deadline_reaches_a_monitor_that_sleeps: DEADLOCK;
    a_long_command_ends_as_a_short_one
        in a_command_that_ends_as_it_is_found_stalled_is_counted_once: "still counted";
    a_verdict_outlives_its_command
        in a_verdict_on_a_command_that_has_ended_spares_the_next_one: "another command";
    a_holder_keeps_to_the_cap
        in a_holder_gets_a_thread_beyond_the_cap: ENDLESS;
}
