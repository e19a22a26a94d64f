//! Servers to test against, and a client that is told line by line what to expect.

#![allow(dead_code)] // each file of tests uses its own part of this

pub(crate) mod mysql;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlish::{Engine, EngineConfig, MysqlHandler, MysqlTls, MysqlUsers, SqlishHandler};
use thread_group_pool::{
    Limits, Listen, LocalAddr, PoolConfig, Scheduler, Server, ThreadPerConnectionConfig,
};

/// Longer than any test takes on a machine that works; a reply that is not there by then is a bug.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Few rows, and a lock wait that no test outlasts.
pub(crate) fn small() -> EngineConfig {
    EngineConfig {
        rows: 1000,
        lock_wait_timeout: 10 * PATIENCE,
        ..EngineConfig::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool,
    PerConnection,
}

/// A running server with a listener of each transport, for either protocol.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    pub(crate) server: Server,
    path: PathBuf,
    mysql_path: PathBuf,
    tls_path: PathBuf,
}

impl Site {
    pub(crate) fn new(kind: Kind, engine: EngineConfig, limits: Limits) -> Self {
        // One group: whatever blocks it blocks everybody.
        Self::with_pool(kind, PoolConfig::default().groups(1), engine, limits)
    }

    /// As `new`, with these limits of a pool, if it is one.
    pub(crate) fn with_pool(
        kind: Kind,
        pool: PoolConfig,
        engine: EngineConfig,
        limits: Limits,
    ) -> Self {
        let scheduler = match kind {
            Kind::Pool => Scheduler::Pool(pool),
            Kind::PerConnection => {
                Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default())
            }
        };
        let (path, mysql_path, tls_path) = (socket_path(), socket_path(), socket_path());
        let handler = SqlishHandler::new(Engine::new(engine).expect("a thread is left"));
        let mysql = MysqlHandler::beside(&handler, MysqlUsers::default());
        let tls = MysqlTls::self_signed().expect("there is randomness");
        let (tls, mysql) = (Arc::new(mysql.clone().offering(tls)), Arc::new(mysql));
        let server = Server::builder()
            .scheduler(scheduler)
            .limits(limits)
            .listen(
                Listen::tcp("127.0.0.1:0"),
                std::sync::Arc::new(handler.clone()),
            )
            .listen(Listen::unix(&path), std::sync::Arc::new(handler))
            .listen(Listen::tcp("127.0.0.1:0"), Arc::clone(&mysql))
            .listen(Listen::unix(&mysql_path), mysql)
            .listen(Listen::tcp("127.0.0.1:0"), Arc::clone(&tls))
            .listen(Listen::unix(&tls_path), tls)
            .build()
            .expect("the server starts");
        Self {
            kind,
            server,
            path,
            mysql_path,
            tls_path,
        }
    }

    /// Where a Unix socket is that offers TLS.
    pub(crate) fn tls_path(&self) -> &std::path::Path {
        &self.tls_path
    }

    pub(crate) fn tls_tcp(&self) -> std::net::SocketAddr {
        self.nth_tcp(2)
    }

    pub(crate) fn mysql_path(&self) -> &std::path::Path {
        &self.mysql_path
    }

    pub(crate) fn mysql_tcp(&self) -> std::net::SocketAddr {
        self.nth_tcp(1)
    }

    fn nth_tcp(&self, n: usize) -> std::net::SocketAddr {
        let tcp = |address: &LocalAddr| match address {
            LocalAddr::Tcp(address) => Some(*address),
            _ => None,
        };
        let mut addresses = self.server.local_addrs().iter().filter_map(tcp);
        addresses.nth(n).expect("it listens")
    }

    /// A client that has been greeted.
    pub(crate) fn connect(&self, transport: Transport) -> Client {
        let mut client = self.call(transport);
        let greeting = client.line();
        let id = greeting
            .strip_prefix("READY\t")
            .and_then(|rest| rest.split('\t').next());
        client.id = id
            .and_then(|id| id.parse().ok())
            .expect("a greeting with an id");
        client
    }

    /// A client that has connected and read nothing.
    pub(crate) fn call(&self, transport: Transport) -> Client {
        match transport {
            Transport::Tcp => {
                let tcp = self
                    .server
                    .local_addrs()
                    .iter()
                    .find_map(|address| match address {
                        LocalAddr::Tcp(address) => Some(address),
                        _ => None,
                    });
                let stream = TcpStream::connect(tcp.expect("it listens")).expect("it accepts");
                Client::tcp(stream)
            }
            Transport::Unix => Client::unix(UnixStream::connect(&self.path).expect("it accepts")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

/// Runs a test under both schedulers and over both transports.
pub(crate) fn everywhere(limits: &Limits, engine: &EngineConfig, test: impl Fn(&Site, Transport)) {
    for kind in [Kind::Pool, Kind::PerConnection] {
        let site = Site::new(kind, engine.clone(), limits.clone());
        for transport in [Transport::Tcp, Transport::Unix] {
            eprintln!("{kind:?} over {transport:?}");
            test(&site, transport);
        }
        assert_eq!(site.server.handle().stats().lost_edges, 0, "{kind:?}");
        let report = site.server.drain(PATIENCE);
        assert!(report.clean(), "{kind:?}: {report}");
    }
}

/// A path that no other test uses.
pub(crate) fn socket_path() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only uniqueness matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("sqlish-test-{}-{number}.sock", std::process::id()))
}

/// A connection that is driven by hand.
pub(crate) struct Client {
    pub(crate) id: u64,
    input: BufReader<Box<dyn Read + Send>>,
    output: Box<dyn Write + Send>,
    end_input: Arc<dyn Fn() + Send + Sync>,
}

impl Client {
    pub(crate) fn tcp(stream: TcpStream) -> Self {
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        stream.set_nodelay(true).expect("nodelay can be set");
        let clone = || stream.try_clone().expect("a descriptor is left");
        let (input, ender) = (clone(), clone());
        Self {
            id: 0,
            input: BufReader::new(Box::new(input)),
            output: Box::new(stream),
            end_input: Arc::new(move || ender.shutdown(Shutdown::Write).expect("it is open")),
        }
    }

    pub(crate) fn unix(stream: UnixStream) -> Self {
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        let clone = || stream.try_clone().expect("a descriptor is left");
        let (input, ender) = (clone(), clone());
        Self {
            id: 0,
            input: BufReader::new(Box::new(input)),
            output: Box::new(stream),
            end_input: Arc::new(move || ender.shutdown(Shutdown::Write).expect("it is open")),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.output
            .write_all(bytes.as_ref())
            .expect("the server takes it");
    }

    /// Says that nothing more will be sent; replies can still be read.
    pub(crate) fn end_input(&self) {
        (self.end_input)();
    }

    /// The next line, without its newline.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.input
            .read_line(&mut line)
            .expect("the server answers in UTF-8");
        assert!(line.ends_with('\n'), "the server closed after {line:?}");
        line.pop();
        line
    }

    /// The lines of one reply, joined by newlines.
    pub(crate) fn reply(&mut self) -> String {
        let mut reply = self.line();
        while reply
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("ROW"))
        {
            reply.push('\n');
            reply.push_str(&self.line());
        }
        reply
    }

    pub(crate) fn ask(&mut self, statement: &str) -> String {
        self.send(format!("{statement}\n"));
        self.reply()
    }

    /// Runs statements that all must succeed.
    pub(crate) fn run(&mut self, statements: &[&str]) {
        for statement in statements {
            let reply = self.ask(statement);
            assert!(reply.starts_with("OK"), "{statement}: {reply}");
        }
    }

    /// Asks until the reply contains `what`.
    pub(crate) fn ask_until(&mut self, statement: &str, what: &str) {
        while !self.ask(statement).contains(what) {
            std::thread::yield_now();
        }
    }

    /// The one value of the one row.
    pub(crate) fn value(&mut self, statement: &str) -> String {
        let reply = self.ask(statement);
        let value = reply
            .strip_prefix("ROW\t")
            .and_then(|rest| rest.strip_suffix("\nOK"));
        value
            .unwrap_or_else(|| panic!("{statement}: {reply}"))
            .to_owned()
    }

    /// What is left until the server closes. A reset counts as a close: it is what TCP makes of
    /// bytes that the server has not read.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.input.read_to_end(&mut rest);
        String::from_utf8(rest).expect("replies are UTF-8")
    }
}

/// The code of an `ERR` line, 0 for any other.
pub(crate) fn code(reply: &str) -> u16 {
    let code = reply
        .strip_prefix("ERR\t")
        .and_then(|rest| rest.split('\t').next());
    code.map_or(0, |code| code.parse().expect("a code is a number"))
}
