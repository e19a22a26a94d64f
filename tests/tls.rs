//! Promises about TLS, by the transport of `examples/tls_echo/transport.rs`, with rustls for the client too.

mod common;
#[path = "../examples/tls_echo/main.rs"]
mod tls_echo;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use common::client::Socket;
use common::stage::{PATTERN, Session, Stage};
use common::{AMPLE, NEVER, Options, Setup, everywhere, patient_group, until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use thread_group_pool::{
    CloseReason, Conn, Handler, Limits, LocalAddr, Next, Server, ServerHandle, Woken,
};
use tls_echo::Tls;

everywhere! {
    a_line_comes_back_over_tls,
    two_commands_in_one_record_are_both_run,
    a_record_in_two_segments_is_one_command,
    bytes_one_at_a_time_are_a_handshake_and_a_command,
    close_notify_is_an_end_and_is_answered_by_one,
    an_end_without_close_notify_is_told_apart,
    keys_may_change_while_a_large_reply_waits,
    a_client_that_sends_all_before_it_reads_gets_all_replies,
    last_words_come_before_a_proper_end,
    words_behind_a_large_reply_are_read,
    over_tls_a_silence_longer_than_the_read_timeout_is_no_end,
    silent_peers_in_the_middle_of_a_handshake_hold_no_worker,
    who_speaks_no_tls_is_told_so_and_closed,
    a_client_that_is_silent_in_its_handshake_is_gone_when_its_login_is_over,
}

// ---- the server: the stage, over TLS ----

struct OverTls {
    stage: Arc<Stage>,
    config: Arc<ServerConfig>,
}

impl Handler for OverTls {
    type Session = Option<Session>;

    fn open(&self, conn: &mut Conn) -> io::Result<Self::Session> {
        conn.upgrade(|raw| Tls::new(&self.config, raw))?;
        Ok(None)
    }

    fn command(&self, session: &mut Self::Session, conn: &mut Conn) -> io::Result<Next> {
        if session.is_none() {
            *session = Some(Handler::open(&*self.stage, conn)?);
        }
        match session {
            Some(session) => self.stage.command(session, conn),
            None => Ok(Next::close()),
        }
    }

    fn woken(&self, session: &mut Self::Session, conn: &mut Conn, why: Woken) -> io::Result<Next> {
        match session {
            Some(session) => self.stage.woken(session, conn, why),
            None => Ok(Next::input()),
        }
    }

    fn farewell(&self, session: &mut Self::Session, out: &mut Vec<u8>, why: &CloseReason) {
        if let Some(session) = session {
            self.stage.farewell(session, out, why);
        }
    }

    fn close(&self, session: Self::Session, why: CloseReason) {
        if let Some(session) = session {
            self.stage.close(session, why);
        }
    }
}

struct Running {
    stage: Arc<Stage>,
    server: Server,
    handle: ServerHandle,
    at: LocalAddr,
    client: Arc<ClientConfig>,
}

fn serve(setup: Setup, options: Options) -> Running {
    let stage = Arc::new(Stage::default());
    let over_tls = OverTls {
        stage: Arc::clone(&stage),
        config: tls_echo::everybodys().expect("a configuration"),
    };
    let server = Server::builder()
        .scheduler(setup.scheduler(&options))
        .limits(options.limits)
        .listen(setup.listen(), Arc::new(over_tls))
        .build()
        .expect("the server starts");
    let mut roots = RootCertStore::empty();
    let cert = CertificateDer::from_pem_slice(tls_echo::CERTIFICATE.as_bytes());
    roots.add(cert.expect("a certificate")).expect("a root");
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Running {
        at: server.local_addrs()[0].clone(),
        handle: server.handle(),
        stage,
        server,
        client: Arc::new(client),
    }
}

impl Running {
    fn closed(&self, name: &str) -> u64 {
        let closes = self.handle.stats().closes;
        closes.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1)
    }

    #[track_caller]
    fn until_closed(&self, name: &str, n: u64) {
        until(&format!("{n} closed as {name}"), || self.closed(name) == n);
    }

    fn connection(&self) -> ClientConnection {
        let name = ServerName::try_from("localhost").expect("a name");
        ClientConnection::new(Arc::clone(&self.client), name).expect("a client")
    }

    /// One who has been greeted; its first command is an `ECHO`.
    #[track_caller]
    fn client(&self) -> Client {
        let mut client = Client::shake(self.connection(), Socket::connect(&self.at));
        client.send("ECHO first");
        assert!(client.line().starts_with("hello "));
        assert_eq!(client.line(), "first");
        client
    }

    fn end(self) {
        self.stage.open_all();
        let report = self.server.drain(AMPLE);
        assert!(report.clean(), "{report}");
        let stats = self.handle.stats();
        assert_eq!((stats.threads, stats.lost_edges), (0, 0), "{stats:?}");
        assert_eq!(stats.opened, stats.closed, "{stats:?}");
    }
}

// ---- the client ----

struct Client(BufReader<StreamOwned<ClientConnection, Socket>>);

impl Client {
    #[track_caller]
    fn shake(mut tls: ClientConnection, mut socket: Socket) -> Self {
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).expect("a handshake");
        }
        Self(BufReader::new(StreamOwned::new(tls, socket)))
    }

    fn tls(&mut self) -> &mut ClientConnection {
        &mut self.0.get_mut().conn
    }

    fn socket(&mut self) -> &mut Socket {
        &mut self.0.get_mut().sock
    }

    #[track_caller]
    fn send(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").expect("it is sent");
    }

    /// What a line is on the wire.
    fn record(&mut self, line: &str) -> Vec<u8> {
        let tls = self.tls();
        tls.writer().write_all(line.as_bytes()).expect("a record");
        let mut record = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut record).expect("a record");
        }
        record
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        assert_eq!(line.pop(), Some('\n'), "the end, after {line:?}");
        line
    }

    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    /// Reads the reply to `BIG n` from its byte `from` to its byte `to`.
    #[track_caller]
    fn read_big(&mut self, from: usize, to: usize) {
        let mut got = vec![0; PATTERN.len()];
        let mut at = from;
        while at < to {
            let begin = at % PATTERN.len();
            let n = (PATTERN.len() - begin).min(to - at);
            self.0.read_exact(&mut got[..n]).expect("a piece");
            assert!(got[..n] == PATTERN[begin..begin + n], "at {at}");
            at += n;
        }
    }
}

// ---- the promises ----

fn a_line_comes_back_over_tls(setup: Setup) {
    let running = serve(setup, Options::default());
    let mut clients: Vec<_> = (0..5).map(|_| running.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("ECHO {n}")), n.to_string());
    }
    running.end();
}

fn two_commands_in_one_record_are_both_run(setup: Setup) {
    let running = serve(setup, Options::default());
    let mut client = running.client();
    for n in 0..20 {
        // In one segment too, and nothing more comes that could remind the server of the second one.
        let record = client.record(&format!("ECHO one {n}\nECHO two {n}\n"));
        client.socket().write_all(&record).expect("sent");
        assert_eq!(client.line(), format!("one {n}"));
        assert_eq!(client.line(), format!("two {n}"));
    }
    // More than the server's buffer in records that come together.
    let words: Vec<_> = (0..4000).map(|n| format!("ECHO word-{n}")).collect();
    let records = client.record(&(words.join("\n") + "\n"));
    client.socket().write_all(&records).expect("sent");
    for n in 0..4000 {
        assert_eq!(client.line(), format!("word-{n}"));
    }
    running.end();
}

fn a_record_in_two_segments_is_one_command(setup: Setup) {
    let running = serve(setup, Options::pool(patient_group()));
    let mut client = running.client();
    // In its head, behind it, in its body, before its end.
    for cut in [1, 4, 5, 6, 20, 33] {
        let record = client.record("ECHO in two\n");
        assert_eq!(record.len(), 34, "head, text, kind and seal");
        client.socket().write_all(&record[..cut]).expect("sent");
        // Somebody else is served meanwhile.
        running.client();
        client.socket().write_all(&record[cut..]).expect("sent");
        assert_eq!(client.line(), "in two");
    }
    running.end();
}

fn bytes_one_at_a_time_are_a_handshake_and_a_command(setup: Setup) {
    struct Dribble(Socket);
    impl Read for Dribble {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = into.len().min(1);
            self.0.read(&mut into[..n])
        }
    }
    impl Write for Dribble {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(&bytes[..bytes.len().min(1)])
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let running = serve(setup, Options::default());
    let socket = Dribble(Socket::connect(&running.at));
    let mut client = BufReader::new(StreamOwned::new(running.connection(), socket));
    for word in ["one", "two"] {
        writeln!(client.get_mut(), "ECHO {word}").expect("sent");
        let mut line = String::new();
        while line != format!("{word}\n") {
            line.clear();
            assert!(client.read_line(&mut line).expect("a line") > 0);
        }
    }
    running.end();
}

fn close_notify_is_an_end_and_is_answered_by_one(setup: Setup) {
    let running = serve(setup, Options::default());
    let mut client = running.client();
    let mut last = client.record("ECHO last\n");
    client.tls().send_close_notify();
    last.extend(client.record(""));
    client.socket().write_all(&last).expect("sent");
    assert_eq!(client.line(), "last");
    // An end without the server's own `close_notify` would be an error here.
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).expect("a proper end");
    assert_eq!(rest, b"");
    running.until_closed("client_closed", 1);
    // When the server ends it, likewise.
    let mut client = running.client();
    assert_eq!(client.ask("CLOSE"), "bye");
    client.0.read_to_end(&mut rest).expect("a proper end");
    running.until_closed("handler_closed", 1);
    running.end();
}

fn an_end_without_close_notify_is_told_apart(setup: Setup) {
    let running = serve(setup, Options::default());
    let mut client = running.client();
    client.send("ECHO whole");
    // Half a command, that a plain connection would show the handler as the last one.
    write!(client.0.get_mut(), "ECHO whole\nECHO ha").expect("sent");
    client.socket().shutdown(Shutdown::Write);
    assert_eq!(client.line(), "whole");
    assert_eq!(client.line(), "whole");
    running.until_closed("truncated", 1);
    assert_eq!(running.stage.reasons(), [CloseReason::Truncated]);
    // In the middle of a record.
    let mut client = running.client();
    let record = client.record("ECHO never\n");
    let half = &record[..record.len() / 2];
    client.socket().write_all(half).expect("sent");
    drop(client);
    running.until_closed("truncated", 2);
    assert_eq!(running.stage.running("ECHO").ever, 4);
    running.end();
}

fn keys_may_change_while_a_large_reply_waits(setup: Setup) {
    const SIZE: usize = 8_000_000;
    for bound in [Limits::default().output_bound, 2 * SIZE] {
        let running = serve(
            setup,
            Options::limits(Limits::default().output_bound(bound)),
        );
        let mut client = running.client();
        client.send(&format!("BIG {SIZE}"));
        until("it does not fit", || {
            let seen = running.handle.connections();
            seen[0].state.name() == "flushing" || !running.handle.stats().waits.is_empty()
        });
        // The server is to answer with one of its own, behind what it has begun to send.
        for n in 0..3 {
            client.tls().refresh_traffic_keys().expect("TLS 1.3");
            client.send(&format!("ECHO new keys {n}"));
        }
        client.read_big(0, SIZE);
        assert_eq!(client.line(), "");
        for n in 0..3 {
            assert_eq!(client.line(), format!("new keys {n}"));
        }
        assert_eq!(client.ask("ECHO after"), "after");
        running.end();
    }
}

/// Ten megabytes, more than sockets and transports hold; with new keys in between, twice.
fn a_client_that_sends_all_before_it_reads_gets_all_replies(setup: Setup) {
    const COMMANDS: usize = 10_000;
    let patient = Limits::default().read_timeout(NEVER).write_timeout(NEVER);
    let running = serve(setup, Options::limits(patient));
    let mut client = running.client();
    let word = "x".repeat(1000);
    for n in 0..COMMANDS {
        if n % 3000 == 2999 {
            client.tls().refresh_traffic_keys().expect("TLS 1.3");
        }
        client.send(&format!("ECHO {word}"));
    }
    for n in 0..COMMANDS {
        assert!(client.line() == word, "reply {n}");
    }
    assert_eq!(client.ask("ECHO after"), "after");
    running.end();
}

/// As long as a socket may linger: no machine is too slow for that.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// More than a read takes, and more than is read to make room for last words.
static MUCH: [u8; 300_000] = [b'x'; 300_000];

impl Client {
    /// All that comes until the server's `close_notify`; an end without one would be an error.
    #[track_caller]
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).expect("a proper end");
        rest
    }
}

fn last_words_come_before_a_proper_end(setup: Setup) {
    let limits = Limits::default().linger_timeout(LONG);
    let running = serve(setup, Options::limits(limits));
    // They go on sending: what is not read must not have the kernel reset the connection.
    let mut client = running.client();
    client.send("PANIC");
    client.0.get_mut().write_all(&MUCH).expect("sent");
    assert_eq!(client.rest(), "farewell: the handler panicked\n");
    drop(client);
    let mut client = running.client();
    client.send("WAIT gate");
    until("it waits", || running.stage.running("WAIT").now == 1);
    client
        .0
        .get_mut()
        .write_all(&MUCH[..100_000])
        .expect("sent");
    for seen in running.handle.connections() {
        running.handle.kill(seen.id);
    }
    running.stage.open("gate");
    let words = "waited\nfarewell: the connection was killed\n";
    assert_eq!(client.rest(), words);
    drop(client);
    let mut client = running.client();
    client.send("CLOSE");
    client.0.get_mut().write_all(&MUCH).expect("sent");
    assert_eq!(client.rest(), "bye\n");
    drop(client);
    until("nobody lingers", || running.handle.stats().lingering == 0);
    let mut clients: Vec<_> = (0..5).map(|_| running.client()).collect();
    running.end();
    for client in &mut clients {
        assert_eq!(client.rest(), "farewell: the server is shutting down\n");
    }
}

/// There is no room for them when they are said.
fn words_behind_a_large_reply_are_read(setup: Setup) {
    const SIZE: usize = 8_000_000;
    let limits = Limits::default()
        .output_bound(2 * SIZE)
        .linger_timeout(LONG);
    let running = serve(setup, Options::limits(limits));
    let mut client = running.client();
    client.send(&format!("BIG {SIZE}"));
    client.read_big(0, 10);
    let ended = std::thread::spawn(move || running.end());
    client.read_big(10, SIZE);
    assert_eq!(client.rest(), "\nfarewell: the server is shutting down\n");
    ended.join().expect("no panic");
}

/// Between two commands the read time-out does not run.
fn over_tls_a_silence_longer_than_the_read_timeout_is_no_end(setup: Setup) {
    let time = std::time::Duration::from_millis(100);
    let limits = Limits::default().read_timeout(time).idle_timeout(NEVER);
    let running = serve(setup, Options::limits(limits));
    let mut client = running.client();
    for n in 0..3 {
        assert_eq!(client.ask(&format!("ECHO {n}")), n.to_string());
        let begun = std::time::Instant::now();
        until("the time is over", || begun.elapsed() > 3 * time);
    }
    assert_eq!(client.ask("ECHO still"), "still");
    running.end();
}

fn silent_peers_in_the_middle_of_a_handshake_hold_no_worker(setup: Setup) {
    const PEERS: usize = 60;
    let mut options = Options::pool(patient_group().max_threads(2));
    options.limits = Limits::default().login_timeout(NEVER);
    let running = serve(setup, options);
    let mut silent: Vec<_> = (0..PEERS)
        .map(|n| {
            let mut tls = running.connection();
            let mut hello = Vec::new();
            tls.write_tls(&mut hello).expect("a hello");
            // Half a hello, or all of it and then silence where the answer is to be taken up.
            let sent = if n % 2 == 0 { hello.len() } else { n + 1 };
            let mut socket = Socket::connect(&running.at);
            socket.write_all(&hello[..sent]).expect("sent");
            (tls, socket, hello.split_off(sent))
        })
        .collect();
    until("all are there", || {
        running.handle.stats().connections == PEERS
    });
    let _served = running.client();
    if setup.is_pool() {
        let stats = running.handle.stats();
        let group = &stats.groups[0];
        assert_eq!((group.waiting, group.long), (0, 0), "{group:?}");
        assert!(group.threads <= 2, "{group:?}");
    }
    assert_eq!(running.handle.stats().sessions, 1);
    for (tls, mut socket, rest) in silent.drain(..) {
        socket.write_all(&rest).expect("sent");
        let mut client = Client::shake(tls, socket);
        client.send("ECHO awake");
        assert!(client.line().starts_with("hello "));
        assert_eq!(client.line(), "awake");
    }
    running.end();
}

fn who_speaks_no_tls_is_told_so_and_closed(setup: Setup) {
    let running = serve(setup, Options::default());
    let mut other = running.client();
    let mut socket = Socket::connect(&running.at);
    socket
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    let mut alert = Vec::new();
    match socket.read_to_end(&mut alert) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => {}
    }
    assert_eq!(alert.first(), Some(&0x15), "an alert: {alert:?}");
    running.until_closed("transport", 1);
    assert_eq!(other.ask("ECHO still"), "still");
    running.end();
}

fn a_client_that_is_silent_in_its_handshake_is_gone_when_its_login_is_over(setup: Setup) {
    let limits = Limits::default().login_timeout(std::time::Duration::from_millis(200));
    let running = serve(setup, Options::limits(limits));
    let mut socket = Socket::connect(&running.at);
    socket.write_all(b"\x16\x03\x01").expect("sent");
    let mut rest = Vec::new();
    match socket.read_to_end(&mut rest) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => {}
    }
    assert_eq!(rest, b"");
    running.until_closed("login_timeout", 1);
    running.end();
}
