//! Any chunking of a byte string gives the same replies as one chunk, under both schedulers.
//!
//! The first byte of an input says how many chunk sizes follow; the rest is what a client sends.
//! Run it by `cargo fuzz run -s none conn_input`, with `fuzz/seeds/conn_input` to start from.

#![no_main]

use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thread_group_pool::{
    Conn, Handler, Next, PoolConfig, Scheduler, Server, ThreadPerConnectionConfig, Woken,
};

/// Echoes lines, in each of the ways in which a handler may come by its input. The first byte of a
/// line chooses:
/// * `+`: the next line belongs to it, and is read on the spot;
/// * `*`: the reply comes from a second run, without input;
/// * `#`: as many bytes as the next one says are read on the spot;
/// * `q`: the last reply;
/// * anything else: the line comes back.
struct Lines;

impl Handler for Lines {
    type Session = Vec<u8>;

    fn open(&self, conn: &mut Conn) -> io::Result<Vec<u8>> {
        conn.logged_in()?;
        conn.write_all(b"READY\n")?;
        Ok(Vec::new())
    }

    fn command(&self, later: &mut Vec<u8>, conn: &mut Conn) -> io::Result<Next> {
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            if conn.at_end() {
                let left = conn.buffered().len();
                conn.consume(left);
                writeln!(conn, "{left} bytes of no line")?;
            }
            return Ok(Next::input());
        };
        let mut line = conn.buffered()[..=end].to_vec();
        conn.consume(end + 1);
        match line[0] {
            b'+' => {
                conn.read_until(b'\n', &mut line)?;
                conn.write_all(&line)?;
            }
            b'*' => {
                *later = line;
                return Ok(Next::again());
            }
            b'#' => {
                let mut size = [0];
                let mut bytes = Vec::new();
                if conn.read(&mut size)? == 1 {
                    conn.take(size[0].into()).read_to_end(&mut bytes)?;
                }
                writeln!(conn, "{bytes:?}")?;
            }
            b'q' => {
                conn.write_all(&line)?;
                return Ok(Next::close());
            }
            _ => conn.write_all(&line)?,
        }
        Ok(Next::input())
    }

    fn woken(&self, later: &mut Vec<u8>, conn: &mut Conn, _: Woken) -> io::Result<Next> {
        conn.write_all(later)?;
        Ok(Next::input())
    }
}

/// How long a reply may take.
const PATIENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

fn servers() -> &'static [Server; 2] {
    static SERVERS: OnceLock<[Server; 2]> = OnceLock::new();
    SERVERS.get_or_init(|| {
        [
            Scheduler::Pool(PoolConfig::default().groups(1)),
            Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default()),
        ]
        .map(|scheduler| {
            let server = Server::builder().scheduler(scheduler).build();
            server.expect("a server without listeners")
        })
    })
}

/// The replies to `data`, sent in chunks of these sizes, over and over. Reads while it sends: a
/// server does not go on for a client that takes no replies.
fn replies(server: &Server, data: &[u8], sizes: &[u8]) -> Vec<u8> {
    let (mut client, end) = UnixStream::pair().expect("a socket pair");
    client.set_nonblocking(true).expect("a mode");
    let peer = end.try_clone().expect("a duplicate");
    let attached = server.handle().attach(end, Arc::new(Lines));
    attached.expect("below every limit");
    let mut sizes = sizes.iter().cycle();
    let mut sending = Some((data, peer));
    let mut replies = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return replies,
            Ok(n) => {
                replies.extend_from_slice(&buffer[..n]);
                continue;
            }
            // What came after a `q` has not been read.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return replies,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
        let mut wanted = PollFlags::IN;
        if let Some((rest, peer)) = &mut sending {
            let size = sizes
                .next()
                .map_or(usize::MAX, |size| 1 + usize::from(*size));
            match client.write(&rest[..size.min(rest.len())]) {
                Ok(n) if n < rest.len() => {
                    *rest = &rest[n..];
                    until_read(peer);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wanted |= PollFlags::OUT;
                }
                // All is sent, or the server has closed after a `q`.
                _ => {
                    let _ = client.shutdown(Shutdown::Write);
                    sending = None;
                }
            }
        }
        let mut fds = [PollFd::new(&client, wanted)];
        let ready = poll(&mut fds, Some(&PATIENCE)).expect("a poll");
        assert!(ready > 0, "no more came after {replies:?}");
    }
}

/// Lets the server take a chunk before the next one comes. What the target claims does not depend
/// on whether it does.
fn until_read(peer: &UnixStream) {
    for _ in 0..200 {
        if rustix::io::ioctl_fionread(peer).is_ok_and(|unread| unread == 0) {
            return;
        }
        std::thread::yield_now();
    }
}

fuzz_target!(|input: &[u8]| {
    let [count, rest @ ..] = input else { return };
    let (sizes, data) = rest.split_at(usize::from(*count % 8).min(rest.len()));
    let [pool, threads] = servers();
    let whole = replies(pool, data, &[]);
    assert_eq!(replies(pool, data, sizes), whole, "the pool, in chunks");
    assert_eq!(replies(threads, data, &[]), whole, "a thread, in one chunk");
    assert_eq!(replies(threads, data, sizes), whole, "a thread, in chunks");
    for server in servers() {
        let stats = server.handle().stats();
        assert_eq!((stats.lost_edges, stats.panics), (0, 0));
    }
});
