//! What the promises are tested with: a handler that does what its clients tell it to, clients that
//! give up after a while, and a harness that runs a promise under each scheduler and transport.
//!
//! Nothing here sleeps in order that something may have happened meanwhile: a test waits for a
//! condition ([`until`]), a command waits for its gate ([`stage::Stage::open`]). A hang is a failure
//! after [`PATIENCE`], so a slow machine makes a test slow and not wrong.

#![allow(dead_code, unused_macros, unused_imports)] // each file of tests uses its own part of this

pub(crate) mod client;
pub(crate) mod process;
pub(crate) mod stage;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use thread_group_pool::{
    BuildError, ConnId, GroupStats, Limits, Listen, LocalAddr, PoolConfig, Scheduler, Server,
    ServerHandle, Stats, Stream, ThreadPerConnectionConfig,
};

use client::{Client, Socket};
use stage::Stage;

/// After this long, what a test waits for counts as never happening. The time is that of a machine
/// that runs: where it stands still for seconds, as virtual ones do, everybody's time-outs are over
/// at once and nobody has had a chance, so no wait is measured in one piece (see [`PIECE`]).
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The most that counts of a wait's single step.
pub(crate) const PIECE: Duration = Duration::from_millis(100);

/// The deadline of a drain that is not to meet it: a server that hangs does.
pub(crate) const AMPLE: Duration = PATIENCE.saturating_mul(3);

/// Longer than any test runs: a limit that is not to be met.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

/// Waits until `holds`.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut waited = Duration::ZERO;
    while !holds() {
        assert!(
            waited < PATIENCE,
            "{PATIENCE:?} are over, and not yet: {what}"
        );
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(1));
        waited += begun.elapsed().min(PIECE);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool,
    PerConnection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    #[cfg(unix)]
    Unix,
}

/// Under what a promise is being tested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// The test's full name.
    pub(crate) test: &'static str,
    pub(crate) kind: Kind,
    pub(crate) transport: Transport,
}

/// Makes four tests of each promise, one for each scheduler and transport; on Windows two, over TCP.
macro_rules! everywhere {
    ($($(#[$only:meta])* $promise:ident),* $(,)?) => {
        common::promised! { [pool_tcp Pool Tcp] $($(#[$only])* $promise),* }
        #[cfg(unix)]
        common::promised! { [pool_unix Pool Unix] $($(#[$only])* $promise),* }
        common::promised! { [per_connection_tcp PerConnection Tcp] $($(#[$only])* $promise),* }
        #[cfg(unix)]
        common::promised! { [per_connection_unix PerConnection Unix] $($(#[$only])* $promise),* }
    };
}
pub(crate) use everywhere;

/// Makes two tests of each promise that only the pool makes, one for each transport.
macro_rules! in_the_pool {
    ($($(#[$only:meta])* $promise:ident),* $(,)?) => {
        common::promised! { [in_pool_tcp Pool Tcp] $($(#[$only])* $promise),* }
        #[cfg(unix)]
        common::promised! { [in_pool_unix Pool Unix] $($(#[$only])* $promise),* }
    };
}
pub(crate) use in_the_pool;

macro_rules! promised {
    ([$setup:ident $kind:ident $transport:ident] $($(#[$only:meta])* $promise:ident),*) => {
        mod $setup {
            use super::common::{Kind, Setup, Transport};
            $(
                $(#[$only])*
                #[test]
                fn $promise() {
                    super::$promise(Setup {
                        test: concat!(stringify!($setup), "::", stringify!($promise)),
                        kind: Kind::$kind,
                        transport: Transport::$transport,
                    });
                }
            )*
        }
    };
}
pub(crate) use promised;

/// How the server of a test is to be.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) pool: PoolConfig,
    pub(crate) threads: ThreadPerConnectionConfig,
    pub(crate) limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // Not the machine's number of CPUs, so that every machine tests the same.
            pool: PoolConfig::default().groups(2),
            threads: ThreadPerConnectionConfig::default(),
            limits: Limits::default(),
        }
    }
}

impl Options {
    pub(crate) fn limits(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    pub(crate) fn pool(pool: PoolConfig) -> Self {
        Self {
            pool,
            ..Self::default()
        }
    }
}

/// When threads leave that have nothing to do, where a test wants them to come and go. Under Wine 8 they
/// stay: it throws a poll away that completes just when the thread ends that asked for it, though its
/// handle is bound to a completion port. (The server queues the result for that thread, drops it with the
/// thread's queue, and reports a completion whose answer nobody has written.) Windows does not.
pub(crate) fn short_idle_timeout() -> Duration {
    let is_wine = cfg!(windows) && std::path::Path::new(r"\\?\unix\").exists();
    match is_wine {
        true => NEVER,
        false => Duration::from_millis(5),
    }
}

/// One group in which time alone opens no slot: a command keeps what it has until it ends or says
/// that it waits. What runs although another command does, runs because of a reported wait.
pub(crate) fn patient_group() -> PoolConfig {
    PoolConfig::default()
        .groups(1)
        .handover(Duration::from_secs(60))
        .stall_limit(Duration::from_secs(60))
}

/// One group with two slots, of which time opens the second one and no third.
pub(crate) fn two_slots() -> PoolConfig {
    PoolConfig::default()
        .groups(1)
        .oversubscribe(1)
        .stall_limit(Duration::from_secs(60))
}

impl Setup {
    /// A server with `stage` for its handler.
    pub(crate) fn build(self, options: Options, stage: &Arc<Stage>) -> Result<Server, BuildError> {
        Server::builder()
            .scheduler(self.scheduler(&options))
            .limits(options.limits)
            .listen(self.listen(), Arc::clone(stage))
            .build()
    }

    /// A server that is running.
    pub(crate) fn serve(self, options: Options) -> Harness {
        let stage = Arc::new(Stage::default());
        let server = self.build(options, &stage).expect("the server starts");
        Harness {
            at: server.local_addrs()[0].clone(),
            handle: server.handle(),
            server: Some(server),
            stage,
        }
    }

    pub(crate) fn scheduler(self, options: &Options) -> Scheduler {
        match self.kind {
            Kind::Pool => Scheduler::Pool(options.pool.clone()),
            Kind::PerConnection => Scheduler::ThreadPerConnection(options.threads.clone()),
        }
    }

    /// A free place to listen.
    pub(crate) fn listen(self) -> Listen {
        match self.transport {
            Transport::Tcp => Listen::tcp("127.0.0.1:0"),
            #[cfg(unix)]
            Transport::Unix => Listen::unix(unused_path()),
        }
    }

    pub(crate) fn is_pool(self) -> bool {
        self.kind == Kind::Pool
    }
}

/// A connection that no listener has accepted, for a server to be given: of Unix sockets, on Windows over
/// TCP. The other end is the client's.
pub(crate) fn pair() -> (Stream, Socket) {
    #[cfg(unix)]
    {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        (ours.into(), Socket::Unix(theirs))
    }
    #[cfg(not(unix))]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("it has one");
        let theirs = std::net::TcpStream::connect(at).expect("it listens");
        let (ours, from) = listener.accept().expect("somebody has come");
        assert_eq!(from, theirs.local_addr().expect("it has one"), "a stranger");
        (ours.into(), Socket::Tcp(theirs))
    }
}

/// A path in the temporary folder that nobody else uses.
pub(crate) fn unused_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("tgp-test-{}-{n}.sock", std::process::id()))
}

/// A running server, its handler, and where to reach it.
#[derive(Debug)]
pub(crate) struct Harness {
    pub(crate) stage: Arc<Stage>,
    pub(crate) handle: ServerHandle,
    pub(crate) at: LocalAddr,
    server: Option<Server>,
}

impl Harness {
    /// A client that has been greeted.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.at)
    }

    pub(crate) fn clients(&self, n: usize) -> Vec<Client> {
        (0..n).map(|_| self.client()).collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// The first group, which in most tests is the only one.
    pub(crate) fn group(&self) -> GroupStats {
        self.stats().groups[0].clone()
    }

    /// What a connection is doing, as the server shows it.
    pub(crate) fn state(&self, id: ConnId) -> Option<&'static str> {
        let all = self.handle.connections();
        all.iter()
            .find(|info| info.id == id)
            .map(|info| info.state.name())
    }

    /// Waits until every connection that there was has ended.
    #[track_caller]
    pub(crate) fn until_all_closed(&self) {
        until("all connections have ended", || {
            let stats = self.stats();
            stats.connections == 0 && stats.opened == stats.closed
        });
    }

    /// How many connections have been closed for the reason of this name.
    pub(crate) fn closed_as(&self, reason: &str) -> u64 {
        let closes = self.stats().closes;
        closes
            .iter()
            .find(|(name, _)| *name == reason)
            .map_or(0, |(_, n)| *n)
    }

    /// Waits until so many connections have been closed for this reason.
    #[track_caller]
    pub(crate) fn until_closed_as(&self, reason: &str, n: u64) {
        until(&format!("{n} connections closed as {reason}"), || {
            self.closed_as(reason) >= n
        });
        assert_eq!(self.closed_as(reason), n, "{:?}", self.stats().closes);
    }

    /// The server by itself, for a test that ends it in its own way.
    pub(crate) fn take_server(&mut self) -> Server {
        self.server.take().expect("taken once")
    }

    /// Ends the server, which must be at peace: whatever the test was about, no thread, connection,
    /// session or readiness event has been lost.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Stats {
        self.stage.open_all();
        let report = self.take_server().drain(AMPLE);
        assert!(report.clean(), "{report}");
        let stats = self.stats();
        self.check(&stats);
        stats
    }

    /// What holds of every server at its end.
    #[track_caller]
    pub(crate) fn check(&self, stats: &Stats) {
        assert_eq!((stats.threads, stats.connections), (0, 0), "{stats:?}");
        assert_eq!(stats.opened, stats.closed, "{stats:?}");
        assert_eq!(stats.lost_edges, 0, "{stats:?}");
        for group in &stats.groups {
            let left = (
                group.connections,
                group.threads,
                group.active,
                group.waiting,
            );
            assert_eq!(left, (0, 0, 0, 0), "{group:?}");
            assert_eq!((group.long, group.queued), (0, 0), "{group:?}");
        }
        let sessions = self.stage.sessions();
        assert_eq!(
            sessions.opened, sessions.closed,
            "each session is closed once"
        );
        assert_eq!(sessions.opened, sessions.dropped, "each session is dropped");
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{:#?}\n{:#?}", self.stats(), self.handle.connections());
        }
        // A test that fails leaves commands at their gates, and the server would wait for them.
        self.stage.open_all();
    }
}
