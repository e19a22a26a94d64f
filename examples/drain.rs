//! A server that ends in stages: idle clients at once, the others when their command or transaction is
//! over. `src/guide/drain.md` explains it.
//!
//! `cargo run --example drain [ADDR]`, then `BEGIN`, `COMMIT`, `SLEEP ms` and `SHUTDOWN` from any line
//! client. Enter ends it as well, and a second Enter ends it at once.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use thread_group_pool::{
    CloseReason, Conn, Drain, DrainReport, Handler, Listen, Next, Refusal, Server, Woken,
};

struct Lines;

impl Handler for Lines {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()
    }

    fn command(&self, _: &mut (), conn: &mut Conn) -> io::Result<Next> {
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        let line = String::from_utf8_lossy(&conn.buffered()[..end]).into_owned();
        conn.consume(end + 1);
        match line.trim_end().split_once(' ').unwrap_or((&line, "")) {
            ("BEGIN", _) if conn.server().is_shutting_down() => writeln!(conn, "too late")?,
            ("BEGIN", _) => conn.set_in_transaction(true),
            ("COMMIT", _) => conn.set_in_transaction(false),
            ("SLEEP", ms) => {
                let time = Duration::from_millis(ms.parse().unwrap_or(0));
                return Ok(Next::park().until(Instant::now() + time));
            }
            ("SHUTDOWN", _) => _ = conn.server().shutdown(patient()),
            (other, _) => writeln!(conn, "what is {other:?}?")?,
        }
        writeln!(conn, "ok")?;
        Ok(Next::input())
    }

    fn woken(&self, _: &mut (), conn: &mut Conn, _: Woken) -> io::Result<Next> {
        writeln!(conn, "slept")?;
        Ok(Next::input())
    }

    fn farewell(&self, _: &mut (), out: &mut Vec<u8>, why: &CloseReason) {
        out.extend(format!("bye: {why}\n").bytes());
    }

    fn refuse(&self, out: &mut Vec<u8>, why: &Refusal) {
        out.extend(format!("no: {why}\n").bytes());
    }
}

/// Commands get ten seconds, and transactions twenty more.
fn patient() -> Drain {
    Drain::within(Duration::from_secs(10)).transactions(Duration::from_secs(20))
}

/// Each line on the terminal asks for the end; in a real server each SIGTERM does.
fn listen_to_the_terminal(server: &Server) {
    let server = server.handle();
    thread::spawn(move || {
        for _ in io::stdin().lines() {
            if !server.shutdown(patient()) {
                server.shutdown(Duration::ZERO); // asked for the second time
            }
        }
    });
}

fn tell(report: &DrainReport) {
    println!("{report}");
    for id in &report.killed {
        println!("connection {id} was killed");
    }
    for thread in &report.abandoned_threads {
        println!("{thread}: look at its handler");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:3311".into());
    let server = Server::builder()
        .listen(Listen::tcp(addr), Arc::new(Lines))
        .build()?;
    println!("listening on {}", server.local_addrs()[0]);
    listen_to_the_terminal(&server);
    let report = server.wait();
    tell(&report);
    std::process::exit(i32::from(!report.clean()));
}
