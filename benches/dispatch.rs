//! What does it cost to get from an event to the handler?
//!
//! `cargo bench --bench dispatch` takes about half a minute; the client is a thread of the same process.
//! Sockets are Unix pairs handed to `attach`. The questions, by criterion group:
//!
//! * `event to handler`: from a client's write to the handler's call, with one client (the server is
//!   asleep when it speaks) and with 64 that speak at once (the mean of the 64).
//! * `enqueue`: 64 sockets of one group become ready at once, until the last reply, while 0, 1 and 4
//!   commands of the group report waits without end, each of which takes its lock twice.

mod common;

use std::time::Duration;

use common::{HAMMER, Served, one_group, per_connection, pool};
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};

const CROWD: usize = 64;

fn event_to_handler(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event to handler");
    for (name, scheduler) in [("pool", pool()), ("per-connection", per_connection())] {
        let served = Served::under(scheduler);
        for count in [1, CROWD] {
            let mut clients = served.clients(count);
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter_custom(|iterations| {
                    let sum: u64 = (0..iterations).map(|_| served.burst(&mut clients)).sum();
                    Duration::from_nanos(sum / count as u64)
                });
            });
        }
    }
    group.finish();
}

fn enqueue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("enqueue");
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(20)
        .throughput(Throughput::Elements(CROWD as u64));
    for count in [0, 1, 4] {
        let served = Served::under(one_group());
        let mut clients = served.clients(CROWD);
        let mut hammers = served.clients(count);
        for hammer in &mut hammers {
            hammer.send(HAMMER, served.bench.now());
            hammer.reply();
        }
        group.bench_function(BenchmarkId::new("pool", count), |bencher| {
            bencher.iter(|| served.burst(&mut clients));
        });
        served.server.drain(Duration::ZERO);
    }
    group.finish();
}

criterion_group! {
    name = dispatch;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    targets = event_to_handler, enqueue
}
criterion_main!(dispatch);
