//! `sqlite-server PATH ADDR [pool|per-connection]`: serves until the end of its standard input.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sqlite_server::Sqlite;
use thread_group_pool::{Listen, Scheduler, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: sqlite-server PATH ADDR [pool|per-connection]";
    let path = arguments.next().ok_or(usage)?;
    let address = arguments.next().ok_or(usage)?;
    let scheduler = match arguments.next().as_deref() {
        None | Some("pool") => Scheduler::default(),
        Some("per-connection") => Scheduler::ThreadPerConnection(Default::default()),
        Some(_) => return Err(usage.into()),
    };
    let server = Server::builder()
        .scheduler(scheduler)
        .listen(Listen::tcp(address), Arc::new(Sqlite::new(path)?))
        .build()?;
    println!(
        "listening on {}; the end of the input ends it",
        server.local_addrs()[0]
    );
    io::copy(&mut io::stdin(), &mut io::sink())?;
    println!("{}", server.drain(Duration::from_secs(5)));
    Ok(())
}
