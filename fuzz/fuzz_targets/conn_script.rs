//! Any script of what a client and its server do over a socket pair leaves what a simple model of them leaves:
//! the same replies in the same order, the same end, and nothing behind.
//!
//! The first byte of an input chooses the scheduler, each other one a step: a command that is sent whole or in
//! pieces, bytes that are read, the end of the client's side, a poke, a kill. Run it by
//! `cargo fuzz run -s none conn_script`, with `fuzz/seeds/conn_script` to start from.

#![no_main]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use thread_group_pool::{
    Conn, Handler, Limits, Next, PoolConfig, Scheduler, Server, ThreadPerConnectionConfig, Woken,
};

/// A command is a byte and a number; its reply is that number, and what belongs to it, and a new line.
#[derive(Default)]
struct Script {
    opened: AtomicU64,
    closed: AtomicU64,
}

const BIG: usize = 100_000;

#[derive(Default)]
struct Session {
    what: u8,
    number: u8,
    left: u8,
}

impl Handler for Script {
    type Session = Session;

    fn open(&self, conn: &mut Conn) -> io::Result<Session> {
        conn.logged_in()?;
        self.opened.fetch_add(1, SeqCst);
        Ok(Session::default())
    }

    fn command(&self, session: &mut Session, conn: &mut Conn) -> io::Result<Next> {
        let [what, number, ..] = *conn.buffered() else {
            return Ok(Next::input());
        };
        conn.consume(2);
        (session.what, session.number, session.left) = (what, number, number % 4);
        match what {
            b'b' => conn.write_all(&[b'.'; BIG])?,
            b'a' => return Ok(Next::again()),
            b's' => {
                conn.write_all(&[b'.'; 1000])?;
                return Ok(Next::flush());
            }
            b'p' => return Ok(Next::park().until(Instant::now())),
            // Two bytes more, read on the spot.
            b'r' => conn.read_exact(&mut [0; 2])?,
            b'q' => {
                writeln!(conn, "{number}")?;
                return Ok(Next::close());
            }
            b'!' => return Err(io::Error::other("told to")),
            _ => {}
        }
        writeln!(conn, "{number}")?;
        Ok(Next::input())
    }

    fn woken(&self, session: &mut Session, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        match why {
            // Between two commands it is none, and a park it ends.
            Woken::Poked if session.what == b'p' => {}
            Woken::Poked => return Ok(Next::input()),
            _ if session.left == 0 => {}
            Woken::Again => {
                session.left -= 1;
                return Ok(Next::again());
            }
            Woken::Flushed => {
                session.left -= 1;
                conn.write_all(&[b'.'; 1000])?;
                return Ok(Next::flush());
            }
            _ => {}
        }
        session.what = 0;
        writeln!(conn, "{}", session.number)?;
        Ok(Next::input())
    }

    fn close(&self, _: Session, _: thread_group_pool::CloseReason) {
        self.closed.fetch_add(1, SeqCst);
    }
}

/// How a conversation has to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// All is answered.
    Whole,
    /// It may have ended anywhere: the client was killed, or its command failed.
    Anywhere,
}

/// What is to be answered to these bytes, and how that ends.
fn model(sent: &[u8]) -> (Vec<u8>, End) {
    let (mut replies, mut rest) = (Vec::new(), sent);
    while let [what, number, behind @ ..] = rest {
        rest = behind;
        match what {
            b'b' => replies.extend([b'.'; BIG]),
            b's' => (0..=number % 4).for_each(|_| replies.extend([b'.'; 1000])),
            b'r' => match rest {
                [_, _, behind @ ..] => rest = behind,
                // The end comes in the middle, which is an error.
                _ => return (replies, End::Anywhere),
            },
            b'!' => return (replies, End::Anywhere),
            _ => {}
        }
        replies.extend(format!("{number}\n").bytes());
        if *what == b'q' {
            return (replies, End::Whole);
        }
    }
    (replies, End::Whole)
}

fn sides() -> &'static [(Server, Arc<Script>); 2] {
    static SIDES: OnceLock<[(Server, Arc<Script>); 2]> = OnceLock::new();
    SIDES.get_or_init(|| {
        [
            Scheduler::Pool(PoolConfig::default().groups(1)),
            Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default()),
        ]
        .map(|scheduler| {
            let limits = Limits::default().linger_timeout(Duration::from_millis(100));
            let server = Server::builder().scheduler(scheduler).limits(limits);
            let server = server.build().expect("a server without listeners");
            (server, Arc::default())
        })
    })
}

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads so many bytes at least, if there are so many; false: the end.
fn take(client: &mut UnixStream, got: &mut Vec<u8>, at_least: usize) -> bool {
    let mut buffer = [0; 16 * 1024];
    let wanted = got.len() + at_least;
    while got.len() < wanted {
        match client.read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => got.extend(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("no more came after {} bytes: {error}", got.len()),
        }
    }
    true
}

fuzz_target!(|input: &[u8]| {
    let [which, steps @ ..] = input else { return };
    let (server, script) = &sides()[usize::from(*which % 2)];
    let (mut client, end) = UnixStream::pair().expect("a socket pair");
    client.set_read_timeout(Some(PATIENCE)).expect("a time");
    client.set_write_timeout(Some(PATIENCE)).expect("a time");
    let attached = server.handle().attach(end, Arc::clone(script));
    let id = attached.expect("below every limit");
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    let mut killed = false;
    for (at, step) in steps.iter().take(100).enumerate() {
        let number = at as u8;
        let word = b"ebasprq!"[usize::from(step >> 4 & 7)];
        match step % 8 {
            // Whole, in halves, and two at once.
            0 | 1 => send(&mut client, &mut sent, &[word, number]),
            2 => send(&mut client, &mut sent, &[word]),
            3 => send(&mut client, &mut sent, &[word, number, b'e', number]),
            // What has been answered for sure by then.
            4 | 5 => {
                let missing = model(&sent).0.len().saturating_sub(got.len());
                if !take(&mut client, &mut got, missing) {
                    break;
                }
            }
            6 => {
                if let Some(conn) = server.handle().find(id) {
                    conn.poke();
                }
            }
            _ if step & 0x80 != 0 => {
                killed = true;
                server.handle().kill(id);
            }
            _ => std::thread::yield_now(),
        }
    }
    let _ = client.shutdown(Shutdown::Write);
    while take(&mut client, &mut got, 1) {}
    let (replies, end) = model(&sent);
    if killed || end == End::Anywhere {
        assert!(replies.starts_with(&got), "no part of what was asked for");
    } else {
        assert!(replies == got, "{} bytes, not {}", got.len(), replies.len());
    }
    drop(client);
    let begun = Instant::now();
    while server.handle().stats().connections > 0 {
        assert!(begun.elapsed() < PATIENCE, "a connection is left");
        std::thread::yield_now();
    }
    let stats = server.handle().stats();
    assert_eq!((stats.lost_edges, stats.panics), (0, 0));
    // One that was killed before its first turn has no session.
    assert_eq!(script.opened.load(SeqCst), script.closed.load(SeqCst));
});

/// It takes all of it while nothing is read: these replies fit into the memory that there is for them, and what
/// a server has closed is not sent.
fn send(client: &mut UnixStream, sent: &mut Vec<u8>, bytes: &[u8]) {
    sent.extend(bytes);
    let _ = client.write_all(bytes);
}
