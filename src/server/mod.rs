//! What users touch: the builder, the running server, its handle, its end.

mod accept;
pub(crate) mod bed;
mod pool;
mod reconfigure;
pub(crate) mod registry;
mod thread_per_connection;
mod threads;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::config::{Limits, Scheduler};
use crate::conn::{Conn, ConnHandle, ConnId, Shared};
use crate::error::{AttachError, BuildError};
use crate::handler::{CloseReason, Handler, Refusal};
use crate::os::clock::Clock;
use crate::os::listener::{Acceptor, Door};
use crate::os::socket::Socket;
use crate::os::thread_state::ThreadId;
use crate::serve::{Budget, Connection, Served};
use crate::stats::{ConnInfo, QueueEntry, Stats, WaitStats};
use crate::stream::{LocalAddr, Stream};
use crate::sync::Mutex;
use crate::wait::WaitKind;

use accept::Listening;
use pool::Pool;
use reconfigure::Settings;
pub use reconfigure::{Applied, Rejected};
use registry::Registry;
use thread_per_connection::ThreadPerConnection;
use threads::Threads;

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Listen {
    place: ListenPlace,
    backlog: i32,
}

#[derive(Clone, Debug)]
enum ListenPlace {
    Tcp(String),
    Unix(PathBuf),
}

/// Linux cuts it down to `net.core.somaxconn`, which is 4096 by default.
const BACKLOG: i32 = 4096;

impl Listen {
    /// A TCP address, `host:port`; port 0 lets the system choose. Address reuse is on, no-delay is
    /// set on each connection, and an IPv6 address takes IPv6 clients only.
    pub fn tcp(address: impl Into<String>) -> Self {
        Self {
            place: ListenPlace::Tcp(address.into()),
            backlog: BACKLOG,
        }
    }

    /// A Unix socket at `path`. A socket that a dead server left there is replaced; one in use, or
    /// a file that is no socket, is refused. The path is removed at the end if it is still ours.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self {
            place: ListenPlace::Unix(path.into()),
            backlog: BACKLOG,
        }
    }

    /// How many connections may wait to be accepted. Default 4096; Linux cuts it down to
    /// `net.core.somaxconn`.
    #[doc(alias = "back_log")]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.backlog = i32::from(backlog);
        self
    }

    fn bind(&self) -> Result<Acceptor, BuildError> {
        match &self.place {
            ListenPlace::Tcp(address) => Acceptor::tcp(address, self.backlog),
            ListenPlace::Unix(path) => Acceptor::unix(path, self.backlog),
        }
        .map_err(|source| BuildError::Listen {
            address: self.to_string(),
            source,
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ListenPlace::Tcp(address) => write!(f, "tcp {address}"),
            ListenPlace::Unix(path) => write!(f, "unix {}", path.display()),
        }
    }
}

type Admit = Box<dyn FnOnce(ServerHandle, usize) -> Box<dyn Fn(Stream) + Send>>;

/// Puts a server together; see [`Server::builder`].
#[derive(Default)]
pub struct ServerBuilder {
    scheduler: Scheduler,
    limits: Limits,
    listeners: Vec<(Listen, Admit)>,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listeners: Vec<_> = self.listeners.iter().map(|(listen, _)| listen).collect();
        f.debug_struct("ServerBuilder")
            .field("scheduler", &self.scheduler)
            .field("limits", &self.limits)
            .field("listeners", &listeners)
            .finish()
    }
}

impl ServerBuilder {
    /// How connections get threads. Default: the pool with its defaults.
    pub fn scheduler(mut self, scheduler: Scheduler) -> Self {
        self.scheduler = scheduler;
        self
    }

    /// Limits of each connection.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Adds a listener, whose connections `handler` serves. Several listeners may have different
    /// handlers or share one. A server without any listener serves what is given to
    /// [`ServerHandle::attach`].
    ///
    /// ```no_run
    /// # use std::{io, sync::Arc};
    /// # use thread_group_pool::{Conn, Handler, Listen, Next, Server};
    /// # struct Kv;
    /// # impl Handler for Kv {
    /// #     type Session = ();
    /// #     fn open(&self, _: &mut Conn) -> io::Result<()> { Ok(()) }
    /// #     fn command(&self, _: &mut (), _: &mut Conn) -> io::Result<Next> { Ok(Next::close()) }
    /// # }
    /// let kv = Arc::new(Kv);
    /// let server = Server::builder()
    ///     .listen(Listen::tcp("127.0.0.1:6400"), kv.clone())
    ///     .listen(Listen::unix("/run/kv.sock"), kv)
    ///     .build()?;
    /// # Ok::<_, thread_group_pool::BuildError>(())
    /// ```
    pub fn listen<H: Handler>(mut self, at: Listen, handler: Arc<H>) -> Self {
        let admit: Admit = Box::new(move |server, index| {
            Box::new(move |stream| server.accept(stream, &handler, index))
        });
        self.listeners.push((at, admit));
        self
    }

    /// Checks every limit, binds every listener, starts the threads. The server is serving when
    /// this returns.
    ///
    /// Call it from a thread that is not pinned and whose signal mask suits the workers: threads
    /// inherit both.
    ///
    /// # Errors
    /// A limit out of range, two limits that contradict each other (both are named), an address
    /// that cannot be bound, or no thread or poller from the operating system. Nothing is left
    /// running or bound then.
    pub fn build(self) -> Result<Server, BuildError> {
        self.limits.check()?;
        match &self.scheduler {
            Scheduler::Pool(config) => config.check()?,
            Scheduler::ThreadPerConnection(config) => config.check()?,
        }
        let (places, admits): (Vec<_>, Vec<_>) = self.listeners.into_iter().unzip();
        let acceptors = places
            .iter()
            .map(Listen::bind)
            .collect::<Result<Vec<_>, _>>()?;
        let addrs = acceptors
            .iter()
            .zip(&places)
            .map(|(acceptor, place)| {
                acceptor.local_addr().map_err(|source| BuildError::Listen {
                    address: place.to_string(),
                    source,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;

        let clock = Clock::start();
        let registry = Arc::new(Registry::new(clock));
        let scheduler = self.scheduler;
        let runner = match &scheduler {
            Scheduler::Pool(config) => {
                Runner::Pool(Pool::start(config, &self.limits, &registry, clock)?)
            }
            Scheduler::ThreadPerConnection(config) => Runner::Thread(ThreadPerConnection::start(
                config.clone(),
                &self.limits,
                Arc::clone(&registry),
            )?),
        };
        let handle = ServerHandle(Arc::new(Core {
            registry,
            settings: Mutex::new(Settings {
                scheduler,
                limits: Arc::new(self.limits),
            }),
            runner,
            draining: AtomicBool::new(false),
        }));
        let listening = acceptors
            .into_iter()
            .zip(admits)
            .enumerate()
            .map(|(index, (acceptor, admit))| Listening {
                acceptor,
                admit: admit(handle.clone(), index),
            })
            .collect::<Vec<_>>();
        let mut server = Server {
            handle,
            addrs,
            accepting: None,
        };
        if !listening.is_empty() {
            // On failure `server` is dropped, which stops what has been started.
            server.accepting = Some(Accepting::start(listening, &server.handle)?);
        }
        Ok(server)
    }
}

/// The accept thread and how to stop it.
#[derive(Debug)]
struct Accepting {
    thread: JoinHandle<()>,
    door: Arc<Door>,
    /// Relaxed: the door, woken after the store and read before the load, is the edge.
    stop: Arc<AtomicBool>,
}

impl Accepting {
    fn start(listening: Vec<Listening>, handle: &ServerHandle) -> Result<Self, BuildError> {
        let refused = |what| move |source| BuildError::Resources { what, source };
        let door = Arc::new(Door::new().map_err(refused("a socket pair"))?);
        let stop = Arc::new(AtomicBool::new(false));
        let registry = Arc::clone(&handle.0.registry);
        let thread = {
            let (door, stop) = (Arc::clone(&door), Arc::clone(&stop));
            thread::Builder::new()
                .name("tgp-accept".into())
                .spawn(move || accept::run(listening, &door, &stop, &registry))
                .map_err(refused("a thread"))?
        };
        Ok(Self { thread, door, stop })
    }

    fn stop(self) {
        self.stop.store(true, Relaxed);
        self.door.wake();
        // An error is a panic of ours, which the panic hook has reported.
        let _ = self.thread.join();
    }
}

#[derive(Debug)]
enum Runner {
    Pool(Pool),
    Thread(Arc<ThreadPerConnection>),
}

impl Runner {
    fn budget(&self) -> Budget {
        match self {
            Self::Pool(pool) => pool.budget(),
            Self::Thread(_) => Budget::UNBOUNDED,
        }
    }

    fn threads(&self) -> &Arc<Threads> {
        match self {
            Self::Pool(pool) => pool.threads(),
            Self::Thread(threads) => threads.threads(),
        }
    }
}

#[derive(Debug)]
struct Core {
    registry: Arc<Registry>,
    settings: Mutex<Settings>,
    runner: Runner,
    /// Relaxed: it only refuses early. A connection that misses it is drained by its scheduler, or
    /// given back by one that has stopped.
    draining: AtomicBool,
}

/// A running server. Dropping it drains it with a deadline of [`Server::DROP_DEADLINE`].
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    addrs: Vec<LocalAddr>,
    accepting: Option<Accepting>,
}

impl Server {
    /// How long dropping a server waits for running commands.
    pub const DROP_DEADLINE: Duration = Duration::from_secs(5);

    /// After the deadline of a drain: how long killed connections, and then threads, are waited for.
    const KILL_GRACE: Duration = Duration::from_secs(1);

    /// Starts putting a server together.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where the server listens, in the order in which the listeners were given.
    pub fn local_addrs(&self) -> &[LocalAddr] {
        &self.addrs
    }

    /// A handle that may be kept and used from anywhere.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Ends the server in stages, and says who was left at each.
    ///
    /// First it stops accepting and closes the idle connections; what they had sent is answered
    /// before. Running commands, and those whose first half has arrived, may finish until
    /// `deadline` has passed; then what is left is killed, and after one more second abandoned. Then
    /// every thread is joined that ends within one more second; the others are reported. No handler
    /// can delay this call beyond `deadline` and three seconds; a `refuse` that blocks, against its
    /// contract, or the destructor of a thread-local can.
    pub fn drain(mut self, deadline: Duration) -> DrainReport {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Duration) -> DrainReport {
        let begun = Instant::now();
        let core = Arc::clone(&self.handle.0);
        if let Some(accepting) = self.accepting.take() {
            accepting.stop();
        }
        core.draining.store(true, Relaxed);
        let open = core.registry.len();
        let finish_by = begun + deadline.min(Duration::from_secs(u64::from(u32::MAX)));
        let finished = core.finish(finish_by);
        let mut report = DrainReport {
            finished: open,
            ..DrainReport::default()
        };
        if !finished {
            let left = core.registry.all();
            report.killed = left.len();
            report.finished = open.saturating_sub(left.len());
            for shared in left {
                shared.cancel(CloseReason::Killed);
            }
            core.registry.wait_empty(Instant::now() + Self::KILL_GRACE);
        }
        let join_by = finish_by.max(Instant::now()) + Self::KILL_GRACE;
        report.abandoned_threads = match &core.runner {
            Runner::Pool(pool) => {
                pool.stop();
                pool.join(join_by)
            }
            Runner::Thread(threads) => {
                threads.stop();
                threads.join(join_by)
            }
        };
        report.abandoned = core.registry.all().iter().map(|s| s.id()).collect();
        report.killed = report.killed.saturating_sub(report.abandoned.len());
        report.elapsed = begun.elapsed();
        report
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `drain` there is nothing left, and this returns at once.
        if !self.handle.0.draining.load(Relaxed) {
            self.end(Self::DROP_DEADLINE);
        }
    }
}

/// What became of the connections of a server that was drained.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DrainReport {
    /// Connections that were idle, or finished in time.
    pub finished: usize,
    /// Connections that were killed at the deadline.
    pub killed: usize,
    /// Connections whose handler did not return even then.
    pub abandoned: Vec<ConnId>,
    /// Threads that had not ended: those of abandoned connections, which go on until the handler
    /// returns.
    pub abandoned_threads: usize,
    /// How long it took.
    pub elapsed: Duration,
}

impl DrainReport {
    /// Whether every connection finished in time and every thread was joined.
    pub fn clean(&self) -> bool {
        self.killed == 0 && self.abandoned.is_empty() && self.abandoned_threads == 0
    }
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "drained in {:?}: {} finished, {} killed, {} abandoned; {} threads left",
            self.elapsed,
            self.finished,
            self.killed,
            self.abandoned.len(),
            self.abandoned_threads
        )
    }
}

/// Reaches a server from anywhere, for as long as it runs and harmlessly afterwards.
#[derive(Clone, Debug)]
pub struct ServerHandle(Arc<Core>);

impl ServerHandle {
    /// The counters, now.
    pub fn stats(&self) -> Stats {
        let core = &self.0;
        let (threads, threads_peak, spawn_failures) = core.runner.threads().counts();
        let mut stats = Stats {
            threads,
            threads_peak,
            spawn_failures,
            ..core.registry.stats()
        };
        if let Runner::Pool(pool) = &core.runner {
            stats.groups = pool.stats();
            stats.commands = stats.groups.iter().map(|g| g.commands).sum();
            stats.detects_blocking = ThreadId::of_this_thread().is_blocked().is_some();
            let count = stats.groups.iter().map(|g| g.detected).sum();
            if count > 0 {
                stats.waits.push(WaitStats {
                    kind: WaitKind::Detected,
                    count,
                    total: stats.groups.iter().map(|g| g.detected_time).sum(),
                });
            }
        }
        stats
    }

    /// The connections, now, by id.
    pub fn connections(&self) -> Vec<ConnInfo> {
        self.0.registry.infos()
    }

    /// Who is queued, now, group by group and in the order in which they will be served. Empty under
    /// thread-per-connection, where nobody is queued.
    pub fn queues(&self) -> Vec<QueueEntry> {
        let Runner::Pool(pool) = &self.0.runner else {
            return Vec::new();
        };
        pool.queues(&self.0.registry.all())
    }

    /// The threads that run connections.
    pub(crate) fn threads(&self) -> &Arc<Threads> {
        self.0.runner.threads()
    }

    /// The handle of a connection, if it lives.
    pub fn find(&self, id: ConnId) -> Option<ConnHandle> {
        self.0.registry.find(id).as_ref().map(ConnHandle::of)
    }

    /// Kills a connection ([`ConnHandle::kill`]); false if there is none with this id.
    pub fn kill(&self, id: ConnId) -> bool {
        self.find(id).is_some_and(|conn| conn.kill())
    }

    /// Serves a stream that the caller has accepted by itself.
    ///
    /// # Errors
    /// The stream comes back when the server is at its connection limit, draining, or without a
    /// thread for it; in the last case, and in a race for the last place, made blocking.
    pub fn attach<H: Handler>(
        &self,
        stream: impl Into<Stream>,
        handler: Arc<H>,
    ) -> Result<ConnId, AttachError> {
        self.admit(stream.into(), &handler, usize::MAX)
    }

    fn accept<H: Handler>(&self, stream: Stream, handler: &Arc<H>, listener: usize) {
        if let Err(refused) = self.admit(stream, handler, listener) {
            self.0.registry.count_refused();
            let mut out = Vec::new();
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                handler.refuse(&mut out, &refused.why);
            }));
            if said.is_err() {
                self.0.registry.count_panic();
            } else if let Ok(socket) = Socket::new(refused.stream) {
                // A fresh socket takes a short message; if this one does not, nothing is lost.
                let _ = socket.write_now(&out);
            }
        }
    }

    fn admit<H: Handler>(
        &self,
        stream: Stream,
        handler: &Arc<H>,
        listener: usize,
    ) -> Result<ConnId, AttachError> {
        let core = &self.0;
        let limits = Arc::clone(&core.settings.lock().limits);
        let limit = limits.max_connections;
        // Before the stream is touched; `admit` looks again.
        let why = if core.draining.load(Relaxed) {
            Some(Refusal::Draining)
        } else if core.registry.len() >= limit {
            Some(Refusal::TooManyConnections { limit })
        } else {
            None
        };
        if let Some(why) = why {
            return Err(AttachError { stream, why });
        }
        let socket = match Socket::new(stream) {
            Ok(socket) => socket,
            Err((stream, _)) => {
                let why = Refusal::OpenFailed;
                return Err(AttachError { stream, why });
            }
        };
        let shared = core
            .registry
            .admit(limit, socket)
            .map_err(|(socket, why)| given_back(socket, why))?;
        let conn = Conn::new(Arc::clone(&shared), limits, self.clone(), listener);
        let served: Box<dyn Connection> = Box::new(Served::new(
            Arc::clone(handler),
            conn,
            Arc::clone(&core.registry),
            core.runner.budget(),
        ));
        let id = shared.id();
        let started = match &core.runner {
            Runner::Pool(pool) => pool.attach(&shared, served),
            Runner::Thread(threads) => threads.attach(served),
        };
        let Err(served) = started else {
            return Ok(id);
        };
        drop(served);
        core.registry.forget(id);
        let why = if core.draining.load(Relaxed) {
            Refusal::Draining
        } else {
            Refusal::NoThread
        };
        let shared = wait_for_last(shared);
        Err(given_back(shared.into_socket(), why))
    }
}

/// The only owner of a connection that was not started. Somebody may be looking at it right now: a
/// list of connections, a kill; none of them keeps it.
fn wait_for_last(mut shared: Arc<Shared>) -> Shared {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(shared) => return shared,
            Err(again) => shared = again,
        }
        thread::yield_now();
    }
}

fn given_back(socket: Socket, why: Refusal) -> AttachError {
    AttachError {
        stream: socket.into_stream(),
        why,
    }
}

impl Core {
    /// Lets every connection come to its end. False: the time was over first.
    fn finish(&self, by: Instant) -> bool {
        match &self.runner {
            Runner::Pool(pool) => {
                pool.drain();
                self.registry.wait_empty(by)
            }
            Runner::Thread(threads) => loop {
                threads.drain();
                let soon = Instant::now() + Duration::from_millis(5);
                if self.registry.wait_empty(soon.min(by)) {
                    return true;
                }
                if Instant::now() >= by {
                    return false;
                }
            },
        }
    }
}
