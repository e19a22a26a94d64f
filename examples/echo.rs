//! The first server: every line comes back. Try it with `nc 127.0.0.1 3310`.
//!
//! `cargo run --example echo [ADDR]`

use std::io::{self, Write};
use std::sync::Arc;
use thread_group_pool::{CloseReason, Conn, Handler, Listen, Next, Server};

struct Echo;

impl Handler for Echo {
    type Session = u64;

    fn open(&self, conn: &mut Conn) -> io::Result<u64> {
        conn.logged_in()?;
        Ok(0)
    }

    fn command(&self, lines: &mut u64, conn: &mut Conn) -> io::Result<Next> {
        let (mut input, mut output) = conn.split();
        let Some(end) = input.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input()); // half a line: no thread is held while the rest arrives
        };
        output.write_all(&input.buffered()[..=end])?; // queued, and sent at the end of the turn
        input.consume(end + 1);
        *lines += 1;
        Ok(Next::input())
    }

    fn close(&self, lines: u64, why: CloseReason) {
        println!("{lines} lines, then {why}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:3310".into());
    let server = Server::builder()
        .listen(Listen::tcp(addr), Arc::new(Echo))
        .build()?;
    println!("listening on {}; Enter ends it", server.local_addrs()[0]);
    io::stdin().read_line(&mut String::new())?;
    println!("{}", server.drain(std::time::Duration::from_secs(5)));
    Ok(())
}
