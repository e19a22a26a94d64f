//! Promises about how connections come in: by listeners, of which there may be several, and by hand.

mod common;

#[cfg(unix)]
use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
#[cfg(unix)]
use std::os::fd::{AsFd, OwnedFd};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
#[cfg(unix)]
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
#[cfg(unix)]
use std::sync::{Mutex, mpsc::channel};
use std::thread;

use common::client::{Client, Socket};
use common::stage::Stage;
use common::{
    AMPLE, Harness, Options, Setup, Transport, everywhere, in_the_pool, patient_group, until,
    unused_path,
};
#[cfg(unix)]
use rustix::net::{Shutdown, shutdown};
#[cfg(unix)]
use thread_group_pool::EventKind;
use thread_group_pool::{
    BuildError, Conn, Handler, Limits, Listen, Listener, ListenerState, LocalAddr, Next, Refusal,
    Server, Stream, ThreadPerConnectionConfig,
};

everywhere! {
    a_stream_is_served_without_a_listener,
    a_stream_over_the_limit_is_given_back,
    a_stream_that_comes_while_the_server_drains_is_given_back,
    a_stream_that_was_made_non_blocking_is_served,
    several_listeners_have_different_handlers,
    listeners_may_share_a_handler,
    a_peer_is_known,
    a_crowd_that_connects_at_once_is_let_in,
    a_place_that_is_taken_is_refused_and_nothing_is_left_bound,
    a_listener_that_somebody_else_made_is_served,
    who_waits_in_a_backlog_is_served_by_the_successor,
    #[cfg(unix)]
    who_waits_in_a_backlog_is_served_by_another_process,
    a_listener_that_is_handed_to_and_fro_loses_nobody,
    #[cfg(unix)]
    a_dead_listener_is_reported_and_costs_the_others_nothing,
    who_waits_in_a_backlog_is_told_of_the_drain,
    a_flood_at_one_listener_does_not_starve_another,
}

in_the_pool! {
    who_connects_while_every_thread_is_busy_is_served_in_time,
}

/// A connected pair: what the server is given, and what its client keeps.
fn pair(setup: Setup) -> (Stream, Socket) {
    match setup.transport {
        Transport::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let at = listener.local_addr().expect("its address");
            let theirs = TcpStream::connect(at).expect("it listens");
            let (ours, _) = listener.accept().expect("it has been connected to");
            (ours.into(), Socket::Tcp(theirs))
        }
        #[cfg(unix)]
        Transport::Unix => {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            (ours.into(), Socket::Unix(theirs))
        }
    }
}

/// A server that listens nowhere.
fn deaf(setup: Setup, options: Options) -> (Server, Arc<Stage>) {
    let server = Server::builder()
        .scheduler(setup.scheduler(&options))
        .limits(options.limits)
        .build()
        .expect("the server starts");
    assert!(server.local_addrs().is_empty());
    (server, Arc::<Stage>::default())
}

fn a_stream_is_served_without_a_listener(setup: Setup) {
    let (server, stage) = deaf(setup, Options::default());
    let mut clients = Vec::new();
    for _ in 0..10 {
        let (ours, theirs) = pair(setup);
        let id = server.handle().attach(ours, Arc::clone(&stage));
        let mut client = Client::over(theirs);
        assert_eq!(client.id, id.expect("there is room"));
        assert_eq!(client.ask("LISTENER"), usize::MAX.to_string());
        clients.push(client);
    }
    clients.iter_mut().for_each(Client::ping);
    assert!(server.drain(AMPLE).clean());
    for client in &mut clients {
        assert!(client.rest().starts_with("farewell"));
    }
}

/// Talks over a stream that the server has given back: it is as it was.
fn works(mut stream: Stream, mut theirs: Socket) {
    theirs.write_all(b"to").expect("it is open");
    let mut got = [0; 2];
    match &mut stream {
        Stream::Tcp(ours) => {
            ours.read_exact(&mut got).expect("it is open");
            ours.write_all(b"fro").expect("it is open");
        }
        #[cfg(unix)]
        Stream::Unix(ours) => {
            ours.read_exact(&mut got).expect("it is open");
            ours.write_all(b"fro").expect("it is open");
        }
        stream => unreachable!("another kind of stream: {stream:?}"),
    }
    assert_eq!(&got, b"to");
    // Nothing has been written to it before, such as words of refusal: those are the caller's.
    let mut got = [0; 3];
    theirs.read_exact(&mut got).expect("it is open");
    assert_eq!(&got, b"fro");
}

fn a_stream_over_the_limit_is_given_back(setup: Setup) {
    let limits = Limits::default().max_logins(1);
    let threads = ThreadPerConnectionConfig::default()
        .thread_cache(0)
        .max_threads(1);
    let options = Options {
        limits,
        threads,
        ..Options::default()
    };
    let (server, stage) = deaf(setup, options);
    stage.asks_for_login.store(true, SeqCst);
    let (ours, theirs) = pair(setup);
    let attach = |stream| server.handle().attach::<Stage>(stream, Arc::clone(&stage));
    attach(ours).expect("there is room");
    let mut client = Client::over(theirs);
    let (ours, theirs) = pair(setup);
    let refused = attach(ours).expect_err("there is no room");
    assert_eq!(refused.why, Refusal::TooManyLogins { limit: 1 });
    assert!(refused.to_string().contains("max_logins is 1"));
    works(refused.stream, theirs);
    client.ping();
    drop(client);
    until("there is room", || server.handle().stats().connections == 0);
    let (ours, theirs) = pair(setup);
    let mut stream = Some(ours);
    // Under thread-per-connection the thread may be on its way out still.
    until("it is let in", || {
        match attach(stream.take().expect("given back")) {
            Ok(_) => true,
            Err(refused) => {
                assert_eq!(refused.why, Refusal::NoThread);
                stream = Some(refused.stream);
                false
            }
        }
    });
    Client::over(theirs).ping();
    assert!(server.drain(AMPLE).clean());
}

fn a_stream_that_comes_while_the_server_drains_is_given_back(setup: Setup) {
    let (server, stage) = deaf(setup, Options::default());
    let handle = server.handle();
    let mut clients: Vec<_> = (0..2)
        .map(|_| {
            let (ours, theirs) = pair(setup);
            handle
                .attach(ours, Arc::clone(&stage))
                .expect("there is room");
            Client::over(theirs)
        })
        .collect();
    let [busy, idle] = &mut clients[..] else {
        unreachable!()
    };
    busy.send("WAIT gate");
    until("it waits", || stage.running("WAIT").now == 1);
    let drain = thread::spawn(move || server.drain(AMPLE));
    assert!(idle.rest().starts_with("farewell"));
    for when in ["while it drains", "when it has ended"] {
        let (ours, theirs) = pair(setup);
        let refused = handle.attach(ours, Arc::clone(&stage));
        let refused = refused.expect_err("nobody gets in");
        assert_eq!(refused.why, Refusal::Draining, "{when}");
        works(refused.stream, theirs);
        stage.open("gate");
        until("the drain is over", || drain.is_finished());
    }
    assert!(drain.join().expect("no panic").clean());
}

fn a_stream_that_was_made_non_blocking_is_served(setup: Setup) {
    let (server, stage) = deaf(setup, Options::default());
    let (ours, theirs) = pair(setup);
    match &ours {
        Stream::Tcp(ours) => ours.set_nonblocking(true),
        #[cfg(unix)]
        Stream::Unix(ours) => ours.set_nonblocking(true),
        stream => unreachable!("another kind of stream: {stream:?}"),
    }
    .expect("it can be");
    server.handle().attach(ours, stage).expect("there is room");
    let mut client = Client::over(theirs);
    client.send("READ 3");
    client.send_bytes(b"abc");
    assert_eq!(client.line(), "read abc");
    client.send("BIG 5000000");
    client.read_big(0, 5_000_000);
    assert_eq!(client.line(), "");
    assert!(server.drain(AMPLE).clean());
}

/// Another protocol: whatever comes is turned round, byte by byte.
#[derive(Debug, Default)]
struct Reverse;

impl Handler for Reverse {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()?;
        writeln!(conn, "hello {}", conn.id())
    }

    fn command(&self, (): &mut (), conn: &mut Conn) -> io::Result<Next> {
        let line: Vec<u8> = conn.buffered().to_vec();
        let Some(end) = line.iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        conn.consume(end + 1);
        let reversed: Vec<u8> = line[..end].iter().rev().copied().collect();
        conn.write_all(&reversed)?;
        conn.write_all(b"\n")?;
        Ok(Next::input())
    }
}

fn several_listeners_have_different_handlers(setup: Setup) {
    let options = Options::default();
    let stage = Arc::new(Stage::default());
    let fourth = match cfg!(unix) {
        true => Listen::unix(unused_path()),
        false => Listen::tcp("127.0.0.1:0"),
    };
    let server = Server::builder()
        .scheduler(setup.scheduler(&options))
        .listen(setup.listen(), Arc::clone(&stage))
        .listen(setup.listen(), Arc::new(Reverse))
        .listen(Listen::tcp("127.0.0.1:0"), Arc::clone(&stage))
        .listen(fourth, Arc::new(Reverse))
        .build()
        .expect("the server starts");
    let addrs = server.local_addrs().to_vec();
    assert_eq!(addrs.len(), 4);
    for _ in 0..5 {
        let mut clients: Vec<_> = addrs.iter().map(Client::connect).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            if index % 2 == 0 {
                assert_eq!(client.ask("LISTENER"), index.to_string());
            } else {
                assert_eq!(client.ask("LISTENER"), "RENETSIL");
            }
        }
    }
    let handle = server.handle();
    until("all have gone", || handle.stats().closed == 20);
    assert!(server.drain(AMPLE).clean());
}

fn listeners_may_share_a_handler(setup: Setup) {
    let options = Options::default();
    let stage = Arc::new(Stage::default());
    let server = Server::builder()
        .scheduler(setup.scheduler(&options))
        .listen(setup.listen(), Arc::clone(&stage))
        .listen(setup.listen(), Arc::clone(&stage))
        .build()
        .expect("the server starts");
    let mut one = Client::connect(&server.local_addrs()[0]);
    let mut other = Client::connect(&server.local_addrs()[1]);
    one.send("WAIT gate");
    until("it waits", || stage.running("WAIT").now == 1);
    assert_eq!(other.ask("OPEN gate"), "open");
    assert_eq!(one.line(), "waited");
    assert!(server.drain(AMPLE).clean());
}

fn a_peer_is_known(setup: Setup) {
    let server = setup.serve(Options::default());
    let client = server.client();
    let expected = match client.socket() {
        Socket::Tcp(tcp) => tcp.local_addr().expect("its address").to_string(),
        #[cfg(unix)]
        Socket::Unix(_) => "unix".to_owned(),
    };
    let info = server.handle.connections().remove(0);
    assert_eq!((info.id, info.peer), (client.id, expected));
    server.finish();
}

fn a_crowd_that_connects_at_once_is_let_in(setup: Setup) {
    let server = setup.serve(Options::default());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let mut clients = server.clients(2);
                    clients.iter_mut().for_each(Client::ping);
                }
            });
        }
    });
    server.until_all_closed();
    let stats = server.finish();
    assert_eq!((stats.opened, stats.refused), (400, 0), "{stats:?}");
}

fn a_place_that_is_taken_is_refused_and_nothing_is_left_bound(setup: Setup) {
    let server = setup.serve(Options::default());
    let taken = match &server.at {
        LocalAddr::Tcp(at) => Listen::tcp(at.to_string()),
        #[cfg(unix)]
        LocalAddr::Unix(at) => Listen::unix(at),
        at => unreachable!("another kind of address: {at}"),
    };
    let free = unused_path();
    let first = match cfg!(unix) {
        true => Listen::unix(&free),
        false => Listen::tcp("127.0.0.1:0"),
    };
    let built = Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .listen(first, Arc::<Stage>::default())
        .listen(taken, Arc::<Stage>::default())
        .build();
    let error = built.expect_err("somebody listens there");
    let BuildError::Listen { address, source } = &error else {
        panic!("another reason: {error}")
    };
    assert_eq!(*address, server.at.to_string());
    assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
    assert!(!free.exists(), "the listener that could be bound has gone");
    // The one whose place it is has not noticed.
    server.client().ping();
    server.finish();
}

/// Accepting is nobody's business who could be busy; being greeted is.
fn who_connects_while_every_thread_is_busy_is_served_in_time(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group().max_threads(2)));
    let mut blocker = server.client();
    blocker.send("BLOCK gate");
    until("the slot is taken", || {
        server.stage.running("BLOCK").now == 1
    });
    let waiting: Vec<_> = (0..10).map(|_| Socket::connect(&server.at)).collect();
    until("they have been let in", || server.stats().connections == 11);
    assert_eq!(server.stage.sessions().opened, 1);
    server.stage.open("gate");
    for socket in waiting {
        Client::over(socket).ping();
    }
    server.finish();
}

// ---- listeners that come from others and go to others ----

/// A listener that the test has made, and where to reach it.
fn made(setup: Setup) -> (Listener, LocalAddr) {
    match setup.transport {
        Transport::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let at = LocalAddr::Tcp(listener.local_addr().expect("its address"));
            (listener.into(), at)
        }
        #[cfg(unix)]
        Transport::Unix => {
            let path = unused_path();
            let listener = UnixListener::bind(&path).expect("a free path");
            (listener.into(), LocalAddr::Unix(path))
        }
    }
}

#[cfg(unix)]
fn duplicate(listener: &Listener) -> Listener {
    match listener {
        Listener::Tcp(tcp) => tcp.try_clone().expect("a descriptor").into(),
        #[cfg(unix)]
        Listener::Unix(unix) => unix.try_clone().expect("a descriptor").into(),
        listener => unreachable!("another kind of listener: {listener:?}"),
    }
}

/// A server with a listener that exists.
fn inheriting(setup: Setup, listener: Listener, stage: &Arc<Stage>) -> Server {
    Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .listen(
            Listen::inherited(listener).remove_path(true),
            Arc::clone(stage),
        )
        .build()
        .expect("the server starts")
}

fn exists(at: &LocalAddr) -> bool {
    match at {
        #[cfg(unix)]
        LocalAddr::Unix(path) => path.exists(),
        _ => true,
    }
}

fn a_listener_that_somebody_else_made_is_served(setup: Setup) {
    let (listener, at) = made(setup);
    let server = Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .listen(Listen::inherited(listener), Arc::<Stage>::default())
        .build()
        .expect("the server starts");
    assert_eq!(server.local_addrs(), std::slice::from_ref(&at));
    let mut client = Client::connect(&at);
    client.ping();
    assert_eq!(client.ask("LISTENER"), "0");
    assert!(server.drain(AMPLE).clean());
    // It is its maker's.
    assert!(exists(&at));
    if let LocalAddr::Unix(path) = &at {
        fs::remove_file(path).expect("it is there");
    }
}

fn who_waits_in_a_backlog_is_served_by_the_successor(setup: Setup) {
    let stage = Arc::<Stage>::default();
    let mut old = setup.serve(Options::default());
    let mut client = old.client();
    let server = old.take_server();
    let mut listeners = server.stop_accepting();
    assert_eq!(listeners.len(), 1);
    assert!(server.stop_accepting().is_empty());
    assert_eq!(
        server.handle().listeners()[0].state,
        ListenerState::Closed,
        "as far as this server is concerned"
    );
    let waiting: Vec<_> = (0..20).map(|_| Socket::connect(&old.at)).collect();
    let new = inheriting(setup, listeners.remove(0), &stage);
    for socket in waiting {
        Client::over(socket).ping();
    }
    // Who had been accepted is served to the end.
    client.ping();
    assert!(server.drain(AMPLE).clean());
    assert!(client.rest().starts_with("farewell"));
    assert!(exists(&old.at));
    Client::connect(&old.at).ping();
    assert_eq!(stage.sessions().opened, 21);
    assert!(new.drain(AMPLE).clean());
    assert!(setup.transport == Transport::Tcp || !exists(&old.at));
}

/// Set in the process that is the successor, which finds the listener at its standard input.
#[cfg(unix)]
const SUCCESSOR: &str = "TGP_TEST_SUCCESSOR";

#[cfg(unix)]
fn who_waits_in_a_backlog_is_served_by_another_process(setup: Setup) {
    const WAITING: u64 = 20;
    if env::var_os(SUCCESSOR).is_some() {
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = input.expect("the listener");
        let listener = match setup.transport {
            Transport::Tcp => Listener::Tcp(input.into()),
            #[cfg(unix)]
            Transport::Unix => Listener::Unix(input.into()),
        };
        let server = inheriting(setup, listener, &Arc::default());
        let handle = server.handle();
        until("all have been served", || handle.stats().closed == WAITING);
        assert!(server.drain(AMPLE).clean());
        return;
    }
    let mut old = setup.serve(Options::default());
    let mut client = old.client();
    let server = old.take_server();
    let listener = server.stop_accepting().remove(0);
    let waiting: Vec<_> = (0..WAITING).map(|_| Socket::connect(&old.at)).collect();
    let listener: OwnedFd = match listener {
        Listener::Tcp(tcp) => tcp.into(),
        #[cfg(unix)]
        Listener::Unix(unix) => unix.into(),
        listener => unreachable!("another kind of listener: {listener:?}"),
    };
    let successor = Command::new(env::current_exe().expect("a test knows its own program"))
        .args([setup.test, "--exact", "--test-threads=1"])
        .env(SUCCESSOR, "1")
        .stdin(listener)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started again");
    for socket in waiting {
        Client::over(socket).ping();
    }
    client.ping();
    let output = successor.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert!(setup.transport == Transport::Tcp || !exists(&old.at));
    assert!(server.drain(AMPLE).clean());
}

fn a_listener_that_is_handed_to_and_fro_loses_nobody(setup: Setup) {
    let (listener, at) = made(setup);
    let stage = Arc::<Stage>::default();
    let first = inheriting(setup, listener, &stage);
    let over = AtomicBool::new(false);
    let (served, last) = thread::scope(|scope| {
        let mut server = first;
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut served = 0;
                    while !over.load(SeqCst) {
                        let mut client = Client::connect(&at);
                        client.ping();
                        client.send("CLOSE");
                        assert_eq!(client.rest(), "bye\n");
                        served += 1;
                    }
                    served
                })
            })
            .collect();
        for _ in 0..20 {
            let before = stage.sessions().opened;
            until("it serves", || stage.sessions().opened > before + 2);
            let listener = server.stop_accepting().remove(0);
            let successor = inheriting(setup, listener, &stage);
            // Whoever has not had its greeting when the drain begins is told that it is to go.
            let handle = server.handle();
            until("the old one's clients have gone", || {
                handle.stats().connections == 0
            });
            assert!(server.drain(AMPLE).clean());
            server = successor;
        }
        over.store(true, SeqCst);
        let served = clients
            .into_iter()
            .map(|client| client.join().expect("each is served"));
        (served.sum::<u64>(), server)
    });
    assert!(last.drain(AMPLE).clean());
    assert_eq!(stage.sessions().opened, served);
}

#[cfg(unix)]
fn a_dead_listener_is_reported_and_costs_the_others_nothing(setup: Setup) {
    let (listener, at) = made(setup);
    let kept = duplicate(&listener);
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let server = Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .on_event(move |event| {
            // The test may be over.
            let _ = tell.lock().expect("nobody panics").send(event.kind.clone());
        })
        .listen(
            Listen::inherited(listener).remove_path(true),
            Arc::<Stage>::default(),
        )
        .listen(setup.listen(), Arc::<Stage>::default())
        .build()
        .expect("the server starts");
    let handle = server.handle();
    Client::connect(&at).ping();
    match &kept {
        Listener::Tcp(tcp) => shutdown(tcp, Shutdown::Read),
        #[cfg(unix)]
        Listener::Unix(unix) => shutdown(unix, Shutdown::Read),
        listener => unreachable!("another kind of listener: {listener:?}"),
    }
    .expect("it is open");
    until("it is reported", || {
        handle.listeners()[0].state == ListenerState::Dead
    });
    let infos = handle.listeners();
    assert!(infos[0].last_error.is_some(), "{infos:?}");
    assert_eq!((infos[0].accepted, &infos[0].at), (1, &at));
    assert_eq!(infos[1].state, ListenerState::Accepting);
    until("it is told of", || {
        let died = |kind| matches!(kind, EventKind::ListenerDied { at: there, .. } if there == at);
        told.try_iter().any(died)
    });
    Client::connect(&server.local_addrs()[1]).ping();
    // Only what is of use is handed over.
    assert_eq!(server.stop_accepting().len(), 1);
    assert!(server.drain(AMPLE).clean());
}

fn a_flood_at_one_listener_does_not_starve_another(setup: Setup) {
    let stage = Arc::<Stage>::default();
    let server = Server::builder()
        .scheduler(setup.scheduler(&Options::default()))
        .listen(setup.listen(), Arc::clone(&stage))
        .listen(setup.listen(), stage)
        .build()
        .expect("the server starts");
    let [flooded, other] = server.local_addrs() else {
        unreachable!("two of them")
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    drop(Socket::connect(flooded));
                }
            });
        }
        let handle = server.handle();
        until("it floods", || handle.listeners()[0].accepted > 100);
        for _ in 0..50 {
            Client::connect(other).ping();
        }
        over.store(true, SeqCst);
    });
    let report = server.drain(AMPLE);
    assert!(report.clean(), "{report}");
}

/// One who has connected counts as accepted: it gets an answer, if there is time for one.
fn who_waits_in_a_backlog_is_told_of_the_drain(setup: Setup) {
    for _ in 0..20 {
        let mut server = setup.serve(Options::default());
        let waiting: Vec<_> = (0..20).map(|_| Client::connect_only(&server.at)).collect();
        let report = server.take_server().drain(AMPLE);
        assert!(report.clean(), "{report}");
        for mut client in waiting {
            let words = client.rest();
            assert!(words.contains("the server is shutting down"), "{words:?}");
        }
        server.check(&server.stats());
    }
}

// ---- paths ----

#[cfg(unix)]
fn over_unix(path: &std::path::Path) -> Result<Server, BuildError> {
    Server::builder()
        .listen(Listen::unix(path), Arc::<Stage>::default())
        .build()
}

#[cfg(unix)]
#[test]
fn a_path_that_a_dead_server_left_is_replaced_and_is_removed_at_the_end() {
    let path = unused_path();
    drop(UnixListener::bind(&path).expect("a free path"));
    assert!(path.exists());
    let server = over_unix(&path).expect("nobody listens there");
    Client::connect(&server.local_addrs()[0]).ping();
    assert!(server.drain(AMPLE).clean());
    assert!(!path.exists());
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_a_socket_is_left_alone() {
    let path = unused_path();
    fs::write(&path, "precious").expect("a free path");
    let error = over_unix(&path).expect_err("it is a file").to_string();
    assert!(error.contains(&*path.to_string_lossy()), "{error}");
    assert_eq!(fs::read(&path).expect("it is there"), b"precious");
    fs::remove_file(&path).expect("it is there");
}

#[cfg(unix)]
#[test]
fn a_path_that_a_successor_has_taken_is_not_removed() {
    let path = unused_path();
    let server = over_unix(&path).expect("a free path");
    fs::remove_file(&path).expect("it is there");
    let successor = UnixListener::bind(&path).expect("a free path");
    assert!(server.drain(AMPLE).clean());
    assert!(path.exists());
    drop(successor);
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn a_place_that_cannot_be_is_refused_with_its_name() {
    for place in ["192.0.2.1:1", "127.0.0.1"] {
        let built = Server::builder()
            .listen(Listen::tcp(place), Arc::<Stage>::default())
            .build();
        let error = built.expect_err("it cannot be bound").to_string();
        assert!(error.contains(place), "{error}");
    }
    // On Windows there is no such socket at all.
    let built = Server::builder()
        .listen(
            Listen::unix("/nonexistent/folder/socket"),
            Arc::<Stage>::default(),
        )
        .build();
    let error = built.expect_err("there is no folder").to_string();
    assert!(error.contains("/nonexistent/folder/socket"), "{error}");
    assert!(cfg!(unix) || error.contains("no Unix sockets"), "{error}");
}

/// There it would let anybody take a port from its owner.
#[cfg(windows)]
#[test]
fn a_port_that_is_to_be_shared_is_refused() {
    let built = Server::builder()
        .listen(
            Listen::tcp("127.0.0.1:0").reuse_port(true),
            Arc::<Stage>::default(),
        )
        .build();
    let BuildError::Listen { source, .. } = built.expect_err("it cannot be") else {
        panic!("another reason");
    };
    assert_eq!(source.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn a_restart_need_not_wait_for_old_connections() {
    let setup = Setup {
        test: "a_restart_need_not_wait_for_old_connections",
        kind: common::Kind::Pool,
        transport: Transport::Tcp,
    };
    let old: Harness = setup.serve(Options::default());
    let at = old.at.to_string();
    let client = old.client();
    // The server closes first, so that its side of the connection is the one that lingers.
    old.finish();
    let new = Server::builder()
        .listen(
            Listen::tcp(at.trim_start_matches("tcp ")),
            Arc::<Stage>::default(),
        )
        .build()
        .expect("the address is free");
    drop(client);
    Client::connect(&new.local_addrs()[0]).ping();
    assert!(new.drain(AMPLE).clean());
}
