//! What does it cost to say "I am about to block", to give a thread up instead, and to wait at all?
//!
//! `cargo bench --bench waits` takes about a minute; the client is a thread of the same process. The
//! questions, by criterion group:
//!
//! * `guard`: one `wait::during` around nothing: on a plain thread, in a command, within another wait, and in
//!   2 and 4 commands of one group at once, which share its lock.
//! * `park`: one `Next::park` and what ends it, until the handler runs again: resumed before it has returned, and
//!   by another thread, which has to wake up for that.
//! * `commands that wait`: 64 clients send a command each that sleeps for a millisecond in a reported wait, until
//!   the last reply. A thread for each connection has nothing to decide; one group of a pool has to hand its slot on
//!   64 times, and to have so many threads. (The first round has them created, which the warm-up sees to.)

mod common;

use std::time::Duration;

use common::{
    Client, NESTED, PARK, PARK_FOR_ANOTHER, SLEEP, Served, WAITS, one_group, per_connection,
    report_waits,
};
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};

const CROWD: usize = 64;

/// What each of a crowd waits, in nanoseconds.
const WAIT: u64 = 1_000_000;

fn guard(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("guard");
    group.bench_function("no worker", |bencher| bencher.iter(|| report_waits(1)));
    for (name, scheduler) in [("per-connection", per_connection()), ("pool", one_group())] {
        let served = Served::under(scheduler);
        for count in [1, 2, 4] {
            let mut clients = served.clients(count);
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter_custom(|iterations| served.mean(&mut clients, WAITS, iterations));
            });
        }
        let mut clients = served.clients(1);
        group.bench_function(BenchmarkId::new(name, "nested"), |bencher| {
            bencher.iter_custom(|iterations| served.mean(&mut clients, NESTED, iterations));
        });
    }
    group.finish();
}

fn park(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("park");
    for (name, scheduler) in [("per-connection", per_connection()), ("pool", one_group())] {
        let served = Served::under(scheduler);
        let mut clients = served.clients(1);
        for (how, letter) in [("at once", PARK), ("by another", PARK_FOR_ANOTHER)] {
            group.bench_function(BenchmarkId::new(name, how), |bencher| {
                bencher.iter_custom(|iterations| served.mean(&mut clients, letter, iterations));
            });
        }
    }
    group.finish();
}

fn commands_that_wait(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commands that wait");
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(20)
        .throughput(Throughput::Elements(CROWD as u64));
    for (name, scheduler) in [("per-connection", per_connection()), ("pool", one_group())] {
        let served = Served::under(scheduler);
        let mut clients = served.clients(CROWD);
        group.bench_function(BenchmarkId::new(name, CROWD), |bencher| {
            bencher.iter(|| {
                for client in &mut clients {
                    client.send(SLEEP, WAIT);
                }
                clients.iter_mut().map(Client::reply).sum::<u64>()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = waits;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    targets = guard, park, commands_that_wait
}
criterion_main!(waits);
