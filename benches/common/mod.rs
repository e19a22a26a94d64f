//! A server of the same process and its clients, for the benches that time single steps. Sockets are Unix pairs
//! handed to `attach`.

#![allow(dead_code)] // each bench uses its own part of this

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{
    Conn, Handler, Next, PoolConfig, Resume, Scheduler, Server, ThreadPerConnectionConfig, Woken,
};

/// A server that does not answer for this long ends the benchmark.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn pool() -> Scheduler {
    Scheduler::Pool(PoolConfig::default())
}

pub(crate) fn one_group() -> Scheduler {
    Scheduler::Pool(PoolConfig::default().groups(1))
}

pub(crate) fn per_connection() -> Scheduler {
    Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default())
}

// ---- the server ----

/// Commands and replies are a letter and eight bytes.
const FRAME: usize = 9;

/// Sent at this time, in nanoseconds since [`Bench::epoch`]. The reply is how long ago that was.
pub(crate) const STAMP: u8 = b's';
/// Report so many waits. The reply is how many nanoseconds they took together.
pub(crate) const WAITS: u8 = b'w';
/// The same, within a wait.
pub(crate) const NESTED: u8 = b'n';
/// Sleep for so many nanoseconds, in a reported wait.
pub(crate) const SLEEP: u8 = b'z';
/// Park so often, and be resumed before the handler has returned. The reply is how many nanoseconds that took.
pub(crate) const PARK: u8 = b'p';
/// The same, resumed by another thread.
pub(crate) const PARK_FOR_ANOTHER: u8 = b'a';
/// Reply at once, and then report waits until the connection is killed.
pub(crate) const HAMMER: u8 = b'h';

pub(crate) struct Bench {
    epoch: Instant,
    /// Resumes what comes.
    resumer: mpsc::Sender<Resume>,
}

/// The parks of the command that is being run.
#[derive(Default)]
pub(crate) struct Parks {
    left: u64,
    for_another: bool,
    begun: Option<Instant>,
}

impl Bench {
    pub(crate) fn now(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }

    /// The next park, or the reply after the last one.
    fn park(&self, parks: &mut Parks, conn: &mut Conn) -> io::Result<Next> {
        let Some(left) = parks.left.checked_sub(1) else {
            let time = parks.begun.map_or(0, |begun| nanos(begun.elapsed()));
            conn.write_all(&frame(PARK, time))?;
            return Ok(Next::input());
        };
        parks.left = left;
        let resume = conn.resume();
        if parks.for_another {
            // Ends with the server, which nobody asks anything then.
            let _ = self.resumer.send(resume);
        } else {
            resume.resume();
        }
        Ok(Next::park())
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

pub(crate) fn report_waits(count: u64) {
    for _ in 0..count {
        wait::during(black_box(WaitKind::RowLock), || black_box(()));
    }
}

impl Handler for Bench {
    type Session = Parks;

    fn open(&self, conn: &mut Conn) -> io::Result<Parks> {
        conn.logged_in()?;
        Ok(Parks::default())
    }

    fn woken(&self, parks: &mut Parks, conn: &mut Conn, _: Woken) -> io::Result<Next> {
        self.park(parks, conn)
    }

    fn command(&self, parks: &mut Parks, conn: &mut Conn) -> io::Result<Next> {
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
            NESTED => {
                let _outer = wait::enter(WaitKind::RowLock);
                let begun = Instant::now();
                report_waits(number);
                nanos(begun.elapsed())
            }
            SLEEP => {
                let time = Duration::from_nanos(number);
                wait::during(WaitKind::Sleep, || thread::sleep(time));
                number
            }
            PARK | PARK_FOR_ANOTHER => {
                *parks = Parks {
                    left: number,
                    for_another: letter == PARK_FOR_ANOTHER,
                    begun: Some(Instant::now()),
                };
                return self.park(parks, conn);
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

pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) bench: Arc<Bench>,
}

pub(crate) struct Client(UnixStream);

impl Served {
    pub(crate) fn under(scheduler: Scheduler) -> Self {
        let (resumer, resumes) = mpsc::channel::<Resume>();
        thread::spawn(move || resumes.iter().for_each(|resume| _ = resume.resume()));
        let bench = Bench {
            epoch: Instant::now(),
            resumer,
        };
        let server = Server::builder().scheduler(scheduler).build();
        Self {
            server: server.expect("a server without listeners"),
            bench: Arc::new(bench),
        }
    }

    pub(crate) fn clients(&self, count: usize) -> Vec<Client> {
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
    pub(crate) fn burst(&self, clients: &mut [Client]) -> u64 {
        for client in &mut *clients {
            client.send(STAMP, self.bench.now());
        }
        clients.iter_mut().map(Client::reply).sum()
    }

    /// A command of each client, at once, that does something `iterations` times. The mean of what they reply.
    pub(crate) fn mean(&self, clients: &mut [Client], letter: u8, iterations: u64) -> Duration {
        for client in &mut *clients {
            client.send(letter, iterations);
        }
        let sum: u64 = clients.iter_mut().map(Client::reply).sum();
        Duration::from_nanos(sum / clients.len() as u64)
    }
}

impl Client {
    pub(crate) fn send(&mut self, letter: u8, number: u64) {
        self.0
            .write_all(&frame(letter, number))
            .expect("the server is there");
    }

    pub(crate) fn reply(&mut self) -> u64 {
        let mut frame = [0; FRAME];
        self.0.read_exact(&mut frame).expect("a reply in time");
        let mut number = [0; FRAME - 1];
        number.copy_from_slice(&frame[1..]);
        u64::from_le_bytes(number)
    }
}
