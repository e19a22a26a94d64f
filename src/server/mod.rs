//! What users touch: the builder, the running server, its handle, its end.

mod accept;
mod admin;
pub(crate) mod bed;
mod budget;
mod drain;
pub(crate) mod events;
pub(crate) mod linger;
mod listen;
mod pool;
mod reconfigure;
pub(crate) mod registry;
mod see;
#[cfg(all(test, unix, not(any(loom, shuttle))))]
mod serve_tests;
pub(crate) mod tally;
#[cfg(feature = "test-util")]
mod test_door;
mod thread_per_connection;
mod threads;
mod watch;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use crate::config::{Limits, Scheduler};
use crate::conn::{Conn, ConnHandle, ConnId, Shared};
use crate::error::{AttachError, BuildError};
use crate::event::Event;
use crate::handler::{CloseReason, Handler, Refusal};
use crate::os::bell::Bell;
use crate::os::clock::Clock;
use crate::os::socket::Socket;
#[cfg(feature = "test-util")]
use crate::os::test_door::TestDoor;
use crate::serve::{Budget, Connection, Served, discard};
use crate::stream::{Listener, LocalAddr, Stream};
use crate::sync::Mutex;

use accept::{Accepting, Listening};
use admin::{Part, Side};
use drain::Ending;
pub use drain::{AbandonedThread, Drain, DrainReport};
use events::{Events, Hook};
use linger::Linger;
use listen::Record;
pub use listen::{Listen, ListenerInfo, ListenerState};
use pool::Pool;
use reconfigure::Settings;
pub use reconfigure::{Applied, Rejected};
use registry::Registry;
use thread_per_connection::ThreadPerConnection;
use threads::Threads;
use watch::Watching;

type Admit = Box<dyn FnOnce(ServerHandle, usize) -> Box<dyn Fn(Stream) + Send>>;

/// A listener as it was asked for.
struct Asked {
    at: Listen,
    side: Side,
    admit: Admit,
}

/// Puts a server together; see [`Server::builder`].
#[derive(Default)]
pub struct ServerBuilder {
    scheduler: Scheduler,
    limits: Limits,
    listeners: Vec<Asked>,
    on_event: Option<Hook>,
    #[cfg(feature = "test-util")]
    test_door: Option<Arc<TestDoor>>,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listeners: Vec<_> = self.listeners.iter().map(|asked| &asked.at).collect();
        f.debug_struct("ServerBuilder")
            .field("scheduler", &self.scheduler)
            .field("limits", &self.limits)
            .field("listeners", &listeners)
            .field("on_event", &self.on_event.is_some())
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

    /// Whom to tell what an operator wants to know: a stall, a thread that could not be had, a client
    /// that was refused. The [`event`](crate::event) module says what there is, which thread calls it, and
    /// how often at most. The last one that is given counts.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(hook));
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
    pub fn listen<H: Handler>(self, at: Listen, handler: Arc<H>) -> Self {
        self.add(at, handler, Side::Main)
    }

    /// Adds an admin listener: a way in for those who look after the server, which works when every
    /// worker of every group is blocked, all sessions are taken, or no thread or descriptor is left (one of
    /// each is kept back, for one connection). Its connections
    /// have an accept thread and threads of their own, one for each, under either scheduler, and a limit
    /// of their own ([`Limits::max_admin_connections`]). They are seen and killed as all others are, and
    /// end last in a drain. Whoever may connect there must be known: bind it to a loopback address or a
    /// path, or have the handler ask for a login.
    #[doc(alias = "extra_port")]
    pub fn admin<H: Handler>(self, at: Listen, handler: Arc<H>) -> Self {
        self.add(at, handler, Side::Admin)
    }

    fn add<H: Handler>(mut self, at: Listen, handler: Arc<H>, side: Side) -> Self {
        let admit: Admit = Box::new(move |server, index| {
            Box::new(move |stream| server.accept(stream, &handler, index, side))
        });
        self.listeners.push(Asked { at, side, admit });
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
        let mut bound = Vec::new();
        for asked in self.listeners {
            let (acceptor, at) = asked.at.bind()?;
            let record = Arc::new(Record::new(at, asked.side == Side::Admin));
            bound.push((acceptor, record, asked.side, asked.admit));
        }

        let bell = || {
            let bell = Bell::new().map(Arc::new);
            bell.map_err(|source| BuildError::Resources {
                what: "a descriptor",
                source,
            })
        };
        let main_bell = bell()?;
        let clock = Clock::start();
        #[cfg(feature = "test-util")]
        let clock = self.test_door.as_ref().map_or(clock, |d| d.clock.clone());
        let events = Arc::new(Events::new(self.on_event));
        let registry = Arc::new(Registry::new(clock.clone(), Arc::clone(&main_bell), events));
        let settings = Settings::new(self.scheduler, self.limits);
        let linger = Linger::start(
            settings.limits.max_lingering,
            settings.limits.linger_timeout,
        )
        .map_err(|source| BuildError::Resources {
            what: "a thread and its poller",
            source,
        })?;
        let admin = if bound.iter().any(|(.., side, _)| *side == Side::Admin) {
            let bell = bell()?;
            let registry = Arc::new(registry.beside(Arc::clone(&bell)));
            Some((Part::admin(&settings.admin_limits, &registry)?, bell))
        } else {
            None
        };
        let (admin, admin_bell) = admin.unzip();
        // On failure it is dropped, which stops it.
        let watching = Watching::start("tgp-watch", &registry, settings.looks())?;
        let runner = match &settings.scheduler {
            Scheduler::Pool(config) => {
                Runner::Pool(Pool::start(config, &settings.limits, &registry, &clock)?)
            }
            Scheduler::ThreadPerConnection(config) => Runner::Thread(ThreadPerConnection::new(
                config.clone(),
                Arc::clone(&registry),
                thread_per_connection::NAME,
            )),
        };
        let handle = ServerHandle(Arc::new(Core {
            registry,
            settings: Mutex::new(settings),
            runner,
            watching,
            linger,
            ending: Ending::default(),
            admin,
            records: bound.iter().map(|(_, r, ..)| Arc::clone(r)).collect(),
            #[cfg(feature = "test-util")]
            test_door: self.test_door,
        }));
        // On failure it is dropped, which stops what has been started.
        let mut server = Server {
            addrs: handle.listeners().into_iter().map(|info| info.at).collect(),
            handle,
            accepting: None,
            admin_accepting: None,
            ended: false,
        };
        server.tell_events()?;
        let mut main = Vec::new();
        let mut admin = Vec::new();
        for (index, (acceptor, record, side, admit)) in bound.into_iter().enumerate() {
            let list = if side == Side::Admin {
                &mut admin
            } else {
                &mut main
            };
            list.push(Listening {
                acceptor,
                record,
                admit: admit(server.handle.clone(), index),
            });
        }
        let core = &server.handle.0;
        let login_timeout = || {
            let core = Arc::clone(core);
            move || core.settings.lock().limits.login_timeout
        };
        let registry = &core.registry;
        let accepting = Accepting::start(
            "tgp-accept",
            main,
            registry,
            &main_bell,
            login_timeout(),
            false,
        )?;
        let mut admin_accepting = None;
        if let (Some(part), Some(bell)) = (&core.admin, admin_bell) {
            let timeout = login_timeout();
            admin_accepting = Some(Accepting::start(
                "tgp-admin",
                admin,
                &part.registry,
                &bell,
                timeout,
                true,
            )?);
        }
        server.accepting = Some(accepting);
        server.admin_accepting = admin_accepting;
        Ok(server)
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
    watching: Watching,
    linger: Linger,
    ending: Ending,
    /// What the admin listeners have for themselves.
    admin: Option<Part>,
    records: Vec<Arc<Record>>,
    #[cfg(feature = "test-util")]
    test_door: Option<Arc<TestDoor>>,
}

/// A running server. Dropping it drains it with a deadline of [`Server::DROP_DEADLINE`].
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    addrs: Vec<LocalAddr>,
    accepting: Option<Accepting>,
    admin_accepting: Option<Accepting>,
    ended: bool,
}

impl Server {
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

    /// Stops accepting, and gives the listeners to a successor, in the order in which they were given to
    /// the builder, without those that are dead and without the admin listeners: another server in this
    /// process ([`Listen::inherited`]), or another process, to which their descriptors are passed. Who has
    /// been accepted is served to the end; who waits in a backlog waits for the successor, and nobody is
    /// refused. The path of a Unix listener stays. The listeners are non-blocking. A second call returns
    /// none.
    ///
    /// Not to be called by [`Handler::refuse`], which runs on the thread that accepts.
    pub fn stop_accepting(&self) -> Vec<Listener> {
        let accepting = self.accepting.as_ref();
        accepting.map_or_else(Vec::new, Accepting::hand_over)
    }

    /// Starts to tell of events, if there is somebody to tell.
    fn tell_events(&self) -> Result<(), BuildError> {
        let registry = &self.handle.0.registry;
        let panics = Arc::clone(registry);
        registry
            .events()
            .start(move || panics.count_panic_silently())
            .map_err(|source| BuildError::Resources {
                what: "a thread",
                source,
            })
    }
}

/// Reaches a server from anywhere, for as long as it runs and harmlessly afterwards.
#[derive(Clone, Debug)]
pub struct ServerHandle(Arc<Core>);

impl ServerHandle {
    /// The listeners, in the order in which they were given to the builder, and what they are doing now.
    pub fn listeners(&self) -> Vec<ListenerInfo> {
        self.0.records.iter().map(|record| record.info()).collect()
    }

    /// Where closed sockets stay for a moment.
    pub(crate) fn linger(&self) -> &Linger {
        &self.0.linger
    }

    /// The threads that run connections.
    pub(crate) fn threads(&self) -> &Arc<Threads> {
        self.0.runner.threads()
    }

    /// The handle of a connection, if it lives.
    pub fn find(&self, id: ConnId) -> Option<ConnHandle> {
        let core = &self.0;
        let among_admins = || core.admin.as_ref()?.registry.find(id);
        let shared = core.registry.find(id).or_else(among_admins);
        shared.as_ref().map(ConnHandle::of)
    }

    /// Kills one command of a connection, by its number ([`ConnHandle::kill_command`],
    /// [`ConnInfo::command`](crate::ConnInfo)); false if the connection is not at that command, or not there.
    pub fn kill_command(&self, id: ConnId, command: u64) -> bool {
        self.find(id).is_some_and(|conn| conn.kill_command(command))
    }

    /// Kills a connection ([`ConnHandle::kill`]); false if there is none with this id.
    pub fn kill(&self, id: ConnId) -> bool {
        self.find(id).is_some_and(|conn| conn.kill())
    }

    /// Serves a stream that the caller has accepted by itself.
    ///
    /// # Errors
    /// The stream comes back when as many have not logged in, or have come from its address, as may
    /// ([`Limits::max_logins`], [`Limits::max_per_address`]), or when the server is draining or without a
    /// thread for it; in the last case, and in a race for the last place, made blocking.
    pub fn attach<H: Handler>(
        &self,
        stream: impl Into<Stream>,
        handler: Arc<H>,
    ) -> Result<ConnId, AttachError> {
        let stream = stream.into();
        let id = self.admit(stream, &handler, usize::MAX, Side::Main, Socket::new)?;
        self.0.registry.watch_logins();
        Ok(id)
    }

    fn accept<H: Handler>(&self, stream: Stream, handler: &Arc<H>, listener: usize, side: Side) {
        // A listener of ours makes them as they are to be.
        let socket = |stream| Ok(Socket::accepted(stream));
        if let Err(refused) = self.admit(stream, handler, listener, side, socket) {
            self.part(side).registry.refused(&refused.why);
            let mut out = Vec::new();
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                handler.refuse(&mut out, &refused.why);
            }));
            if let Err(payload) = said {
                discard(payload);
                self.part(side).registry.count_panic();
            } else {
                let socket = Socket::accepted(refused.stream);
                self.0.linger.close_socket(socket, out);
            }
        }
    }

    fn admit<H: Handler>(
        &self,
        stream: Stream,
        handler: &Arc<H>,
        listener: usize,
        side: Side,
        socket: impl FnOnce(Stream) -> Result<Socket, (Stream, io::Error)>,
    ) -> Result<ConnId, AttachError> {
        let part = self.part(side);
        let limits = self.0.settings.lock().limits_of(side);
        // Before the stream is touched; `admit` looks again.
        let why = if part.registry.is_draining() {
            Some(Refusal::Draining)
        } else {
            part.registry.refuses(&limits)
        };
        if let Some(why) = why {
            return Err(AttachError { stream, why });
        }
        let socket = match socket(stream) {
            Ok(socket) => socket,
            Err((stream, _)) => {
                let why = Refusal::OpenFailed;
                return Err(AttachError { stream, why });
            }
        };
        #[cfg(feature = "test-util")]
        let socket = self.of_test(socket);
        let shared = part
            .registry
            .admit(&limits, socket)
            .map_err(|(socket, why)| given_back(socket, why))?;
        let registry = Arc::clone(part.registry);
        let conn = Conn::new(
            Arc::clone(&shared),
            limits,
            self.clone(),
            Arc::clone(&registry),
            listener,
        );
        let served: Box<dyn Connection> =
            Box::new(Served::new(Arc::clone(handler), conn, part.runner.budget()));
        let id = shared.id();
        let started = match part.runner {
            Runner::Pool(pool) => pool.attach(&shared, served),
            Runner::Thread(threads) => threads.attach(served),
        };
        let Err(served) = started else {
            return Ok(id);
        };
        drop(served);
        part.registry.forget(id);
        let why = if part.registry.is_draining() {
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

/// Closes connections whose scheduler has ended, on a thread of their own.
fn abandon(left: Vec<Box<dyn Connection>>, why: CloseReason, threads: &Arc<Threads>) {
    if left.is_empty() {
        return;
    }
    let there = Arc::clone(threads);
    // Without a thread they are dropped: their sockets close, and nobody is told.
    let _ = threads.spawn("tgp-close".into(), CLOSE_STACK, move || {
        for mut served in left {
            there.serves(served.conn().id());
            served.abandon(why);
            discard(served);
            there.serves_nobody();
        }
    });
}

const CLOSE_STACK: usize = 2 * 1024 * 1024;
