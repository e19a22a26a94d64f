//! For the tests of those who write a [`Handler`]: a server without a listener, clients over socket
//! pairs, time that the test moves, both schedulers by one macro, and trouble on purpose.
//! Feature `test-util`, for `[dev-dependencies]` alone.
//!
//! ```
//! # mod tests {
//! # use std::io::{self, Write};
//! use std::sync::Arc;
//! use std::time::Duration;
//! use thread_group_pool::test_util::{Chaos, Kind};
//! use thread_group_pool::{CloseReason, Conn, Handler, Limits, Next};
//!
//! /// Every line comes back.
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Session = ();
//!
//!     fn open(&self, conn: &mut Conn) -> io::Result<()> {
//!         conn.logged_in()
//!     }
//!
//!     fn command(&self, _: &mut (), conn: &mut Conn) -> io::Result<Next> {
//!         let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
//!             return Ok(Next::input());
//!         };
//!         let line = conn.buffered()[..=end].to_vec();
//!         conn.consume(end + 1);
//!         conn.write_all(&line)?;
//!         Ok(Next::input())
//!     }
//!
//!     fn farewell(&self, _: &mut (), out: &mut Vec<u8>, why: &CloseReason) {
//!         out.extend_from_slice(format!("bye: {why}\n").as_bytes());
//!     }
//! }
//!
//! // In a file of tests without `#[test]` functions around it: each of these becomes two tests.
//! thread_group_pool::under_both_schedulers! {
//!     fn a_silent_client_is_told_why_it_is_closed(kind) {
//!         let kit = kind.kit().serve(Arc::new(Echo));
//!         let mut client = kit.client();
//!         client.send("hello\n");
//!         assert_eq!(client.line(), "hello");
//!         kit.advance(Limits::default().idle_timeout); // eight hours, at once
//!         assert!(client.rest().starts_with("bye: the client was silent"));
//!         assert_eq!(kit.finish(), [CloseReason::IdleTimeout]);
//!     }
//!
//!     fn commands_in_pieces_are_answered_whoever_runs_them(kind) {
//!         let kit = kind.kit().chaos(Chaos::all()).serve(Arc::new(Echo));
//!         let mut client = kit.client();
//!         client.send("one\ntwo\n");
//!         assert_eq!((client.line(), client.line()), ("one".into(), "two".into()));
//!         kit.finish();
//!     }
//!
//!     fn a_kill_at_any_moment_leaves_nothing_behind(kind) {
//!         let kit = kind.kit().serve(Arc::new(Echo));
//!         for n in 1.. {
//!             let mut client = kit.doomed_client(n);
//!             client.try_send("one\ntwo\n");
//!             client.end_input();
//!             if client.rest() == "one\ntwo\n" {
//!                 break; // it had fewer callbacks than that
//!             }
//!         }
//!         kit.finish();
//!     }
//! }
//! # pub fn all() {
//! #     for kind in [Kind::Pool, Kind::PerConnection] {
//! #         a_silent_client_is_told_why_it_is_closed::promise(kind);
//! #         commands_in_pieces_are_answered_whoever_runs_them::promise(kind);
//! #         a_kill_at_any_moment_leaves_nothing_behind::promise(kind);
//! #     }
//! # }
//! # }
//! # fn main() { tests::all() }
//! ```

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::{Limits, PoolConfig, Scheduler, ThreadPerConnectionConfig};
use crate::conn::{Conn, ConnId};
use crate::handler::{CloseReason, Handler, Next, Refusal, Woken};
use crate::os::test_door::TestDoor;
use crate::server::{Server, ServerHandle};
use crate::sync::Mutex;
use crate::wait;

/// What a client waits for its server, and a server for its handlers, before the test has failed. Time in
/// which the machine stood still does not count.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most that counts of one step of that.
const STEP: Duration = Duration::from_millis(100);

/// Under which scheduler a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Scheduler::Pool`].
    Pool,
    /// [`Scheduler::ThreadPerConnection`].
    PerConnection,
}

/// Makes two tests of each function, one for each scheduler: `name::pool` and `name::per_connection`. Its
/// argument is the [`Kind`](crate::test_util::Kind).
#[macro_export]
macro_rules! under_both_schedulers {
    ($($(#[$attribute:meta])* fn $name:ident($kind:ident) $body:block)*) => {
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[allow(dead_code)]
            pub(super) fn promise($kind: $crate::test_util::Kind) $body

            $(#[$attribute])*
            #[test]
            fn pool() {
                promise($crate::test_util::Kind::Pool);
            }

            $(#[$attribute])*
            #[test]
            fn per_connection() {
                promise($crate::test_util::Kind::PerConnection);
            }
        })*
    };
}

impl Kind {
    /// Starts putting a server together: one group, so that whatever blocks it blocks everybody; default
    /// limits; no trouble.
    pub fn kit(self) -> KitBuilder {
        KitBuilder {
            kind: self,
            pool: PoolConfig::default().groups(1),
            threads: ThreadPerConnectionConfig::default(),
            limits: Limits::default(),
            chaos: Chaos::default(),
        }
    }
}

/// Trouble on purpose, which no handler should mind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chaos {
    other_threads: bool,
    reads: Option<usize>,
    writes: Option<usize>,
}

impl Chaos {
    /// All that there is, at its worst.
    pub fn all() -> Self {
        Self::default().other_threads().reads(1).writes(1)
    }

    /// Each callback runs on a thread of its own, so that nothing is left in thread-locals; in the pool, for
    /// thread-per-connection promises one thread for all of them.
    pub fn other_threads(mut self) -> Self {
        self.other_threads = true;
        self
    }

    /// No read of the socket brings more than `bytes`: the handler is called for each piece.
    pub fn reads(mut self, bytes: usize) -> Self {
        self.reads = Some(bytes);
        self
    }

    /// No write takes more than `bytes`, that of a [`Conn`] included.
    pub fn writes(mut self, bytes: usize) -> Self {
        self.writes = Some(bytes);
        self
    }
}

/// Puts a [`Kit`] together.
#[derive(Clone, Debug)]
pub struct KitBuilder {
    kind: Kind,
    pool: PoolConfig,
    threads: ThreadPerConnectionConfig,
    limits: Limits,
    chaos: Chaos,
}

impl KitBuilder {
    /// Limits of each connection.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How the pool is to be, if it is one.
    pub fn pool(mut self, pool: PoolConfig) -> Self {
        self.pool = pool;
        self
    }

    /// How thread-per-connection is to be, if it is that.
    pub fn threads(mut self, threads: ThreadPerConnectionConfig) -> Self {
        self.threads = threads;
        self
    }

    /// Trouble for each connection.
    pub fn chaos(mut self, chaos: Chaos) -> Self {
        self.chaos = chaos;
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn serve<H: Handler>(self, handler: Arc<H>) -> Kit<H> {
        let Chaos {
            other_threads,
            reads,
            writes,
        } = self.chaos;
        let door = TestDoor::new(reads.unwrap_or(usize::MAX), writes.unwrap_or(usize::MAX));
        let scheduler = match self.kind {
            Kind::Pool => Scheduler::Pool(self.pool),
            Kind::PerConnection => Scheduler::ThreadPerConnection(self.threads),
        };
        let server = Server::builder()
            .scheduler(scheduler)
            .limits(self.limits)
            .test_door(door)
            .build();
        Kit {
            server: server.unwrap_or_else(|error| panic!("the server does not start: {error}")),
            handler,
            other_threads: other_threads && self.kind == Kind::Pool,
            reasons: Arc::default(),
        }
    }
}

/// A server under test. It has no listener: its clients come by [`client`](Self::client). Call
/// [`finish`](Self::finish) at the end: one that is dropped instead, by a test that fails, takes as long as a
/// [`Server`] that is dropped, several seconds if a client reads nothing or a command does not end.
#[derive(Debug)]
pub struct Kit<H> {
    server: Server,
    handler: Arc<H>,
    other_threads: bool,
    reasons: Arc<Mutex<Vec<CloseReason>>>,
}

impl<H: Handler> Kit<H> {
    /// A new client.
    ///
    /// # Panics
    /// If the server does not take it; see [`try_client`](Self::try_client).
    #[track_caller]
    pub fn client(&self) -> Client {
        match self.try_client() {
            Ok(client) => client,
            Err(error) => panic!("{error}"),
        }
    }

    /// A new client.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn try_client(&self) -> Result<Client, Refusal> {
        self.attach(None)
    }

    /// A new client, whose connection is killed just before its `n`th callback, which is made all the same
    /// ([`open`](Handler::open) is the first, [`close`](Handler::close) is not one). So a conversation
    /// can be cut off at each place where it can be.
    ///
    /// # Panics
    /// If the server does not take it.
    #[track_caller]
    pub fn doomed_client(&self, n: u64) -> Client {
        match self.attach(Some(n)) {
            Ok(client) => client,
            Err(error) => panic!("{error}"),
        }
    }

    fn attach(&self, kill_at: Option<u64>) -> Result<Client, Refusal> {
        let (ours, theirs) = pair().expect("a socket pair");
        let handler = Arc::new(Troubled {
            handler: Arc::clone(&self.handler),
            other_threads: self.other_threads,
            kill_at,
            reasons: Arc::clone(&self.reasons),
        });
        let id = (self.handle().attach(theirs, handler)).map_err(|error| error.why)?;
        ours.set_read_timeout(Some(STEP)).expect("it can be set");
        ours.set_write_timeout(Some(STEP)).expect("it can be set");
        Ok(Client { stream: ours, id })
    }

    /// The server's handle, for what it shows, and for kills.
    pub fn handle(&self) -> ServerHandle {
        self.server.handle()
    }

    /// Lets `time` pass for the server: its clock goes on by so much at once. It is moved when what clients
    /// have sent has been taken and no command runs; one that runs on, and says of no
    /// [`wait`](mod@crate::wait), is waited for for two seconds. When this returns, what fell due has been
    /// done: idle, login, read, write and command time-outs, [`Next::until`].
    ///
    /// The clock of the handler itself, [`Instant::now`], is not moved.
    pub fn advance(&self, time: Duration) {
        self.server.handle().pass(time);
    }

    /// Ends the server, once it has noticed what clients have sent and who has left, and returns why each
    /// connection that had a session was closed, in that order; those that were open until now are closed as
    /// [`CloseReason::Draining`].
    ///
    /// # Panics
    /// If a connection could not finish, or a thread or a readiness event has been lost.
    #[track_caller]
    pub fn finish(self) -> Vec<CloseReason> {
        let handle = self.server.handle();
        handle.settle();
        let report = self.server.drain(PATIENCE);
        assert!(report.clean(), "{report}");
        let stats = handle.stats();
        assert_eq!(stats.lost_edges, 0, "a readiness event was lost");
        assert_eq!((stats.threads, stats.connections), (0, 0), "left behind");
        self.reasons.lock().clone()
    }
}

/// What a [`Client`] has: on Windows a TCP connection over loopback.
#[cfg(unix)]
pub type PairStream = std::os::unix::net::UnixStream;
/// What a [`Client`] has: elsewhere than on Windows one of a pair of Unix sockets.
#[cfg(windows)]
pub type PairStream = std::net::TcpStream;

#[cfg(unix)]
fn pair() -> io::Result<(PairStream, PairStream)> {
    PairStream::pair()
}

#[cfg(windows)]
fn pair() -> io::Result<(PairStream, PairStream)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let ours = PairStream::connect(listener.local_addr()?)?;
    let own = ours.local_addr()?;
    // Somebody else may have come first.
    loop {
        let (theirs, from) = listener.accept()?;
        if from == own {
            ours.set_nodelay(true)?;
            return Ok((ours, theirs));
        }
    }
}

/// The client's end of a connection. What it waits for comes within a minute, or the test has failed.
#[derive(Debug)]
pub struct Client {
    stream: PairStream,
    id: ConnId,
}

impl Client {
    /// The id of its connection.
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Its socket, for what else a client may do to a server. Reads and writes on it time out after a tenth of a
    /// second.
    pub fn stream(&self) -> &PairStream {
        &self.stream
    }

    /// Sends all of it.
    ///
    /// # Panics
    /// If the server has closed, or does not take it.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.write(bytes.as_ref());
        sent.expect("the server takes it");
    }

    /// Sends as much as goes; whether that was all.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.write(bytes.as_ref()).is_ok()
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut patience = Patience::default();
        while !bytes.is_empty() {
            let sent = patience.with(|| (&self.stream).write(bytes))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// The next line, without its newline.
    ///
    /// # Panics
    /// If there is none, or it is not UTF-8.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        loop {
            // A byte at a time: what follows is left where it is, for whoever reads `stream`.
            let mut byte = [0];
            match self.read(&mut byte) {
                Ok(0) => panic!(
                    "the server closed after {:?}",
                    String::from_utf8_lossy(&line)
                ),
                Ok(_) if byte == *b"\n" => break,
                Ok(_) => line.push(byte[0]),
                Err(error) => panic!("no line: {error}"),
            }
        }
        String::from_utf8(line).expect("text in UTF-8")
    }

    /// The next `n` bytes.
    ///
    /// # Panics
    /// If they do not come.
    #[track_caller]
    pub fn exactly(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        let mut got = 0;
        while got < n {
            match self.read(&mut bytes[got..]) {
                Ok(0) => panic!("the server closed after {got} bytes of {n}"),
                Ok(more) => got += more,
                Err(error) => panic!("{got} bytes of {n}: {error}"),
            }
        }
        bytes
    }

    /// All that comes until the server closes.
    ///
    /// # Panics
    /// If it does not, or sends what is not UTF-8.
    #[track_caller]
    pub fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => rest.extend_from_slice(&piece[..n]),
                // It has closed, and something was on its way to it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the server does not close: {error}"),
            }
        }
        String::from_utf8(rest).expect("text in UTF-8")
    }

    /// Says that no more will be sent; replies can still be read.
    pub fn end_input(&self) {
        // The server may have closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Patience::default().with(|| self.stream.read(into))
    }
}

/// What a read or write says whose time is over, on Unix and on Windows.
fn is_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// How long has been waited.
#[derive(Default)]
struct Patience(Duration);

impl Patience {
    fn with(&mut self, mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            let begun = Instant::now();
            let result = attempt();
            self.0 += begun.elapsed().min(STEP);
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_over(&error) && self.0 < PATIENCE => {}
                result => return result,
            }
        }
    }
}

/// A handler in trouble.
struct Troubled<H> {
    handler: Arc<H>,
    other_threads: bool,
    kill_at: Option<u64>,
    reasons: Arc<Mutex<Vec<CloseReason>>>,
}

/// A session, and how many callbacks it has had.
struct Counted<S> {
    session: S,
    calls: u64,
}

impl<H: Handler> Troubled<H> {
    /// A callback.
    fn call<R: Send>(
        &self,
        calls: &mut u64,
        conn: &mut Conn,
        callback: impl FnOnce(&mut Conn) -> R + Send,
    ) -> R {
        *calls += 1;
        if self.kill_at == Some(*calls) {
            conn.handle().kill();
        }
        self.somewhere(|| callback(conn))
    }

    /// Runs on a thread of its own, if that is wanted, which is to the scheduler the one that waits for it.
    fn somewhere<R: Send>(&self, callback: impl FnOnce() -> R + Send) -> R {
        if !self.other_threads {
            return callback();
        }
        let place = wait::place();
        let run = || {
            if let Some(place) = place {
                wait::install(place);
            }
            let _ended = CommandEnded;
            callback()
        };
        thread::scope(|scope| match scope.spawn(run).join() {
            Ok(result) => result,
            Err(payload) => resume_unwind(payload),
        })
    }
}

/// Ends the waits that a callback has leaked, on the thread where it has.
struct CommandEnded;

impl Drop for CommandEnded {
    fn drop(&mut self) {
        wait::command_ended();
    }
}

impl<H: Handler> Handler for Troubled<H> {
    type Session = Counted<H::Session>;

    fn open(&self, conn: &mut Conn) -> io::Result<Self::Session> {
        let mut calls = 0;
        let session = self.call(&mut calls, conn, |conn| self.handler.open(conn))?;
        Ok(Counted { session, calls })
    }

    fn command(&self, counted: &mut Self::Session, conn: &mut Conn) -> io::Result<Next> {
        let Counted { session, calls } = counted;
        self.call(calls, conn, |conn| self.handler.command(session, conn))
    }

    fn woken(&self, counted: &mut Self::Session, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        let Counted { session, calls } = counted;
        self.call(calls, conn, |conn| self.handler.woken(session, conn, why))
    }

    fn detached(&self, counted: &mut Self::Session, conn: &mut Conn) -> io::Result<()> {
        let Counted { session, calls } = counted;
        self.call(calls, conn, |conn| self.handler.detached(session, conn))
    }

    fn farewell(&self, counted: &mut Self::Session, out: &mut Vec<u8>, why: &CloseReason) {
        self.handler.farewell(&mut counted.session, out, why);
    }

    fn refuse(&self, out: &mut Vec<u8>, why: &Refusal) {
        self.handler.refuse(out, why);
    }

    fn session_bytes(&self, counted: &Self::Session) -> usize {
        self.handler.session_bytes(&counted.session)
    }

    fn close(&self, counted: Self::Session, why: CloseReason) {
        self.reasons.lock().push(why);
        self.somewhere(|| self.handler.close(counted.session, why));
    }
}
