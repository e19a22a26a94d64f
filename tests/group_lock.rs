//! The promise that nobody waits for a group's lock longer than a tick, 16 burning threads on one
//! core included.
//!
//! Times are compared with those of a bare `std` mutex in the same process, under the same load: a
//! machine that is busy with something else slows both down. The median is taken, because on one
//! core whoever has the lock may be interrupted while it has it, under any kind of lock; and the
//! best of some attempts, because that something else may be there in one half only. A lock that is
//! handed to threads that sleep makes nearly everybody wait, nearly always.
#![cfg(unix)] // a lock's cost is measured with Unix sockets and Linux's affinity

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use common::client::Client;
use common::process::alone;
use common::stage::grind;
use common::{Options, Setup, in_the_pool, until};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thread_group_pool::PoolConfig;

in_the_pool! {
    nobody_waits_for_the_lock_of_a_group_behind_burning_threads,
}

const BURNING: usize = 16;
const PINGS: usize = 100;
const ATTEMPTS: usize = 5;

/// The monitor's.
const TICK: Duration = Duration::from_millis(1);

fn nobody_waits_for_the_lock_of_a_group_behind_burning_threads(setup: Setup) {
    alone(setup.test, || {
        stay_on_one_core();
        let attempts: Vec<_> = (0..ATTEMPTS)
            .map(|_| (through_a_group(setup), through_a_mutex()))
            .collect();
        let kept = |(group, mutex): &(Duration, Duration)| *group < *mutex + TICK;
        assert!(attempts.iter().any(kept), "{attempts:?}");
    });
}

/// For this process, the threads that it will have included.
fn stay_on_one_core() {
    let allowed = sched_getaffinity(None).expect("it can be read");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.expect("there is one"));
    sched_setaffinity(None, &one).expect("it is one of the allowed");
}

/// How long a light command takes while 16 others compute and report waits all the time, each of
/// which takes the group's lock twice. The median.
fn through_a_group(setup: Setup) -> Duration {
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    let mut light = server.client();
    let mut burning = server.clients(BURNING);
    for client in &mut burning {
        client.send("GRIND gate");
    }
    until("all compute", || {
        server.stage.running("GRIND").now == BURNING
    });
    let time = median(|| light.ping());
    server.stage.open("gate");
    for client in &mut burning {
        assert_eq!(client.line(), "ground");
    }
    burning.iter_mut().for_each(Client::ping);
    server.finish();
    time
}

/// The same by hand: 16 threads that compute and take a lock, and an echo that takes it too.
fn through_a_mutex() -> Duration {
    let lock = Mutex::new(0_u64);
    let take = || *lock.lock().expect("nobody panics") += 1;
    let (burning, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (mut server, mut client) = UnixStream::pair().expect("a pair");
    thread::scope(|scope| {
        for _ in 0..BURNING {
            scope.spawn(|| {
                burning.fetch_add(1, SeqCst);
                while !over.load(SeqCst) {
                    grind(|| (0..2).for_each(|_| take()));
                }
            });
        }
        scope.spawn(|| {
            let mut byte = [0];
            while server.read(&mut byte).expect("it is open") == 1 {
                (0..4).for_each(|_| take());
                server.write_all(&byte).expect("it is open");
            }
        });
        until("all compute", || burning.load(SeqCst) == BURNING);
        let time = median(|| {
            client.write_all(&[1]).expect("it is open");
            client.read_exact(&mut [0]).expect("it is open");
        });
        over.store(true, SeqCst);
        drop(client);
        time
    })
}

fn median(mut ping: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..PINGS)
        .map(|_| {
            let begun = Instant::now();
            ping();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[PINGS / 2]
}
