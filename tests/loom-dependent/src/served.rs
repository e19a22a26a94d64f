//! The pool in this crate's builds, `--cfg loom` included, is the one that ships.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{Conn, Handler, Next, Server};

struct Echo;

impl Handler for Echo {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()?;
        Ok(())
    }

    fn command(&self, _: &mut (), conn: &mut Conn) -> io::Result<Next> {
        let input = conn.buffered().to_vec();
        conn.consume(input.len());
        wait::during(WaitKind::Other("a reply"), || conn.write_all(&input))?;
        Ok(Next::input())
    }
}

/// Outside a model: there, loom's locks panic.
#[test]
fn a_server_in_a_build_for_loom_serves() {
    let server = Server::builder().build().expect("its threads");
    let (mut client, theirs) = UnixStream::pair().expect("a pair of sockets");
    let timeout = Some(Duration::from_secs(60));
    client.set_read_timeout(timeout).expect("not zero");
    let attached = server.handle().attach(theirs, Arc::new(Echo));
    attached.expect("a place in the server");
    client.write_all(b"ping").expect("it reads");
    let mut reply = [0; 4];
    client.read_exact(&mut reply).expect("a reply in time");
    assert_eq!(&reply, b"ping");
    let waits = server.handle().stats().waits;
    let counts: Vec<_> = waits.iter().map(|wait| (wait.kind, wait.count)).collect();
    assert_eq!(counts, [(WaitKind::Other("other"), 1)]);
    let report = server.drain(Duration::from_secs(60));
    assert!(report.clean(), "{report}");
}
