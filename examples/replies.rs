//! Replies of any size, in each of the ways in which they can be made, and neighbours to be disturbed by
//! them: what `benches/peers.py` measures.
//!
//! `cargo run --release --example replies [--per-connection] [ADDR]`; one group of eight threads at most in
//! the pool. A line is a command: `ECHO x`; `BIG n`, so many bytes written in one call; `STREAM n`, the same
//! in pieces; `BEGIN` and `COMMIT`; `SLEEP ms`, parked; `HANG`, for ever; `THREADS`, the threads of the
//! pool, how many of them are at something, and the most that there have been. A line on standard input
//! drains, with a second for commands and one more for transactions, and the report comes on standard output.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use thread_group_pool::{
    Conn, Drain, Handler, Limits, Listen, Next, PoolConfig, Scheduler, Server, Woken,
};

struct Replies;

/// What is left of a reply that streams.
type Left = usize;

const PIECE: [u8; 16 * 1024] = [b'.'; 16 * 1024];

fn piece(conn: &mut Conn, left: &mut Left) -> io::Result<()> {
    let n = PIECE.len().min(*left);
    conn.write_all(&PIECE[..n])?;
    *left -= n;
    if *left == 0 {
        conn.write_all(b"\n")?;
    }
    Ok(())
}

impl Handler for Replies {
    type Session = Left;

    fn open(&self, conn: &mut Conn) -> io::Result<Left> {
        conn.logged_in()?;
        Ok(0)
    }

    fn command(&self, left: &mut Left, conn: &mut Conn) -> io::Result<Next> {
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        let line = String::from_utf8_lossy(&conn.buffered()[..end]).into_owned();
        conn.consume(end + 1);
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let number = || rest.parse().map_err(io::Error::other);
        match word {
            "ECHO" => writeln!(conn, "{rest}")?,
            "BIG" => {
                *left = number()?;
                while *left > 0 {
                    piece(conn, left)?;
                }
            }
            "STREAM" => {
                *left = number()?;
                piece(conn, left)?;
                return Ok(Next::flush());
            }
            "BEGIN" | "COMMIT" => {
                conn.set_in_transaction(word == "BEGIN");
                conn.write_all(b"ok\n")?;
            }
            "SLEEP" => {
                let time = Duration::from_millis(number()? as u64);
                return Ok(Next::park().until(Instant::now() + time));
            }
            "HANG" => loop {
                thread::park();
            },
            "THREADS" => {
                let stats = conn.server().stats();
                let busy = stats.groups.iter().map(|g| g.active + g.waiting + g.long);
                let busy: usize = busy.sum();
                writeln!(conn, "{} {busy} {}", stats.threads, stats.threads_peak)?;
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(Next::input())
    }

    fn woken(&self, left: &mut Left, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        match why {
            Woken::Flushed if *left > 0 => {
                piece(conn, left)?;
                return Ok(Next::flush());
            }
            Woken::Flushed => {}
            _ => conn.write_all(b"slept\n")?,
        }
        Ok(Next::input())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let scheduler = match args.next_if_eq("--per-connection") {
        Some(_) => Scheduler::ThreadPerConnection(Default::default()),
        None => Scheduler::Pool(PoolConfig::default().groups(1).max_threads(8)),
    };
    let addr = args.next().unwrap_or("127.0.0.1:3313".into());
    // More than any reply of `BIG` here: it is queued, and no thread waits for its client.
    let limits = Limits::default().output_bound(256 << 20);
    let server = Server::builder()
        .scheduler(scheduler)
        .limits(limits)
        .listen(Listen::tcp(addr), Arc::new(Replies))
        .build()?;
    println!("listening on {}; Enter drains", server.local_addrs()[0]);
    io::stdin().read_line(&mut String::new())?;
    let second = Duration::from_secs(1);
    let report = server.drain(Drain::within(second).transactions(second));
    println!("{report}");
    // Not waiting for a handler that hangs.
    std::process::exit(0);
}
