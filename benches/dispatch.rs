//! What does it cost to get from an event to the handler, and to say "I am about to block"?
//!
//! `cargo bench --bench dispatch` takes about a minute; the client is a thread of the same process.
//! Sockets are Unix pairs handed to `attach`. The questions, by criterion group:
//!
//! * `event to handler`: from a client's write to the handler's call, with one client (the server is
//!   asleep when it speaks) and with 64 that speak at once (the mean of the 64).
//! * `wait`: one `wait::during` around nothing: on a plain thread, in a command, and in 2 and 4
//!   commands of one group at once, which share its lock.
//! * `enqueue`: 64 sockets of one group become ready at once, until the last reply, while 0, 1 and 4
//!   commands of the group report waits without end, each of which takes its lock twice.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{
    Conn, Handler, Next, PoolConfig, Scheduler, Server, ThreadPerConnectionConfig,
};

const CROWD: usize = 64;

/// A server that does not answer for this long ends the benchmark.
const PATIENCE: Duration = Duration::from_secs(60);

fn pool() -> Scheduler {
    Scheduler::Pool(PoolConfig::default())
}

fn one_group() -> Scheduler {
    Scheduler::Pool(PoolConfig::default().groups(1))
}

fn per_connection() -> Scheduler {
    Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default())
}

// ---- the server ----

/// Commands and replies are a letter and eight bytes.
const FRAME: usize = 9;

/// Sent at this time, in nanoseconds since [`Bench::epoch`]. The reply is how long ago that was.
const STAMP: u8 = b's';
/// Report so many waits. The reply is how many nanoseconds they took together.
const WAITS: u8 = b'w';
/// Reply at once, and then report waits until the connection is killed.
const HAMMER: u8 = b'h';

struct Bench {
    epoch: Instant,
}

impl Bench {
    fn now(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn report_waits(count: u64) {
    for _ in 0..count {
        wait::during(black_box(WaitKind::RowLock), || black_box(()));
    }
}

impl Handler for Bench {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()?;
        Ok(())
    }

    fn command(&self, _: &mut (), conn: &mut Conn) -> io::Result<Next> {
        let now = self.now();
        let Some((&[letter, ref number @ ..], _)) = conn.buffered().split_first_chunk::<FRAME>()
        else {
            return Ok(Next::input());
        };
        let number = u64::from_le_bytes(*number);
        conn.consume(FRAME);
        let reply = match letter {
            WAITS => {
                let begun = Instant::now();
                report_waits(number);
                nanos(begun.elapsed())
            }
            _ => now.saturating_sub(number),
        };
        conn.write_all(&frame(letter, reply))?;
        if letter == HAMMER {
            conn.flush()?;
            while !conn.is_cancelled() {
                report_waits(100);
            }
        }
        Ok(Next::input())
    }
}

fn frame(letter: u8, number: u64) -> [u8; FRAME] {
    let mut frame = [letter; FRAME];
    frame[1..].copy_from_slice(&number.to_le_bytes());
    frame
}

// ---- its clients ----

struct Served {
    server: Server,
    bench: Arc<Bench>,
}

struct Client(UnixStream);

impl Served {
    fn under(scheduler: Scheduler) -> Self {
        let bench = Bench {
            epoch: Instant::now(),
        };
        let server = Server::builder().scheduler(scheduler).build();
        Self {
            server: server.expect("a server without listeners"),
            bench: Arc::new(bench),
        }
    }

    fn clients(&self, count: usize) -> Vec<Client> {
        let client = |_| {
            let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
            ours.set_read_timeout(Some(PATIENCE)).expect("not zero");
            self.server
                .handle()
                .attach(theirs, Arc::clone(&self.bench))
                .expect("a place in the server");
            let mut client = Client(ours);
            client.send(STAMP, 0);
            client.reply();
            client
        };
        (0..count).map(client).collect()
    }

    /// All speak at once. The sum of the times from each one's write to its handler.
    fn burst(&self, clients: &mut [Client]) -> u64 {
        for client in &mut *clients {
            client.send(STAMP, self.bench.now());
        }
        clients.iter_mut().map(Client::reply).sum()
    }

    /// `iterations` waits in a command of each client, at once. The mean time of these commands.
    fn waits(&self, clients: &mut [Client], iterations: u64) -> Duration {
        for client in &mut *clients {
            client.send(WAITS, iterations);
        }
        let sum: u64 = clients.iter_mut().map(Client::reply).sum();
        Duration::from_nanos(sum / clients.len() as u64)
    }
}

impl Client {
    fn send(&mut self, letter: u8, number: u64) {
        self.0
            .write_all(&frame(letter, number))
            .expect("the server is there");
    }

    fn reply(&mut self) -> u64 {
        let mut frame = [0; FRAME];
        self.0.read_exact(&mut frame).expect("a reply in time");
        let mut number = [0; FRAME - 1];
        number.copy_from_slice(&frame[1..]);
        u64::from_le_bytes(number)
    }
}

// ---- the questions ----

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

fn wait(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wait");
    group.bench_function("no worker", |bencher| bencher.iter(|| report_waits(1)));
    let served = Served::under(per_connection());
    let mut clients = served.clients(1);
    group.bench_function("per-connection", |bencher| {
        bencher.iter_custom(|iterations| served.waits(&mut clients, iterations));
    });
    let served = Served::under(one_group());
    for count in [1, 2, 4] {
        let mut clients = served.clients(count);
        group.bench_function(BenchmarkId::new("pool", count), |bencher| {
            bencher.iter_custom(|iterations| served.waits(&mut clients, iterations));
        });
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
    targets = event_to_handler, wait, enqueue
}
criterion_main!(dispatch);
