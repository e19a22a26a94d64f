//! Promises about what may stand between a connection and its socket, with a transport that does all that
//! one may do and encrypts nothing worth the name. TLS itself is in `tls.rs`.

mod common;

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Transport as Over;
use common::client::Client;
use common::stage::PATTERN;
use common::{AMPLE, NEVER, Options, Setup, everywhere, in_the_pool, patient_group, until};
use thread_group_pool::{
    CloseReason, Conn, ConnInfo, Handler, Limits, LocalAddr, Next, Raw, Server, Transport, Woken,
};

everywhere! {
    both_directions_go_through_the_transport,
    what_is_queued_before_an_upgrade_leaves_as_it_is,
    an_upgrade_over_buffered_plaintext_is_refused,
    an_upgrade_over_plaintext_that_came_while_it_waited_is_refused,
    a_handshake_that_began_while_the_upgrade_waited_is_taken_up,
    what_is_buffered_may_be_the_beginning_of_a_handshake,
    there_is_one_transport_at_most,
    a_handshake_that_stops_anywhere_holds_no_worker,
    input_that_a_transport_took_while_it_wrote_is_not_forgotten,
    several_commands_that_a_transport_took_at_once_are_all_run,
    words_before_the_handshake_wait_for_it,
    a_handler_may_wait_for_the_handshake_and_for_its_client,
    more_words_than_may_be_queued_wait_for_the_handshake,
    a_transport_that_sends_before_it_reads_is_not_asked_over_and_over,
    a_large_reply_goes_through_in_the_clients_time,
    an_end_that_nobody_announced_is_not_shown,
    an_end_is_announced_to_the_client,
    a_handshake_that_fails_closes_its_connection_only,
    a_transport_that_panics_closes_its_connection_only,
    a_silent_client_is_closed_through_the_transport,
    an_end_that_was_found_while_a_reply_waited_is_not_the_reason_of_another_close,
    an_end_that_was_found_while_a_reply_waited_is_found_when_it_is_read,
    a_handshake_that_fails_while_words_wait_for_it_is_why_it_closes,
    what_a_transport_holds_counts_for_the_budget,
    what_came_before_a_transport_counts_until_it_is_taken,
}

in_the_pool! {
    last_words_that_do_not_fit_follow_through_the_transport,
    a_transport_that_panics_over_last_words_harms_nobody,
}

// ---- the transport ----

/// What both sides do to a byte.
const MASK: u8 = 0x55;
/// What both sides say first.
const HELLO: &[u8; 6] = b"HELLO!";
/// What says that nothing more comes, as it is on the wire.
const END: u8 = 0xff;
/// What a record begins and ends with, of which nothing is handed out before it is whole.
const RECORD: u8 = 0xfe;

/// Keeps what it has read ahead, and reads ahead wherever it can.
struct Masked {
    raw: Raw,
    /// Has come, masked.
    come: Vec<u8>,
    /// Is to leave, masked.
    leaves: Vec<u8>,
    greeted: bool,
    ended: bool,
    broken: bool,
    /// So much goes before its hello.
    padding: usize,
    /// Says only once that reading has failed.
    forgets: bool,
    /// In the method of that name, from that call on.
    panics: (String, Arc<AtomicBool>),
    calls: Arc<AtomicUsize>,
}

impl Masked {
    fn new(raw: Raw, masker: &Masker) -> Self {
        Self {
            raw,
            come: Vec::new(),
            leaves: vec![b'p'; masker.first],
            greeted: false,
            ended: false,
            broken: false,
            padding: masker.padding,
            forgets: masker.forgets,
            panics: (masker.panics.into(), Arc::clone(&masker.calm)),
            calls: Arc::clone(&masker.calls),
        }
    }

    fn reaches(&self, method: &str) {
        self.calls.fetch_add(1, SeqCst);
        let (panics, calm) = &self.panics;
        assert!(
            panics != method || calm.load(SeqCst),
            "told to, in {method}"
        );
    }

    /// Takes what there is, to the last byte.
    fn read_ahead(&mut self) -> io::Result<()> {
        let mut some = [0; 1000];
        loop {
            match self.raw.read(&mut some)? {
                0 => {
                    self.broken = true;
                    return Ok(());
                }
                n => self.come.extend(&some[..n]),
            }
        }
    }
}

fn or_nothing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    })
}

impl Transport for Masked {
    fn handshake(&mut self) -> io::Result<bool> {
        self.reaches("handshake");
        if !self.leaves.is_empty() {
            self.flush()?;
        }
        if self.greeted {
            return Ok(true);
        }
        or_nothing(self.read_ahead())?;
        let n = self.come.len().min(HELLO.len());
        if self.come[..n] != HELLO[..n] {
            self.leaves.extend(b"BAD\n");
            return Err(io::ErrorKind::InvalidData.into());
        }
        if n < HELLO.len() {
            return if self.broken {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(false)
            };
        }
        self.come.drain(..n);
        self.leaves.resize(self.padding, b'p');
        self.leaves.extend(HELLO);
        self.greeted = true;
        Ok(self.padding == 0)
    }

    fn close(&mut self) -> io::Result<()> {
        self.reaches("close");
        self.leaves.push(END);
        self.flush()
    }

    fn input_bytes(&self) -> usize {
        self.reaches("input_bytes");
        self.come.len()
    }
}

impl Read for Masked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        assert!(self.greeted, "the handshake comes first");
        self.reaches("read");
        // A byte at a time, as if each were a record.
        let waits = match self.come.split_first() {
            Some((&RECORD, rest)) => !rest.contains(&RECORD),
            come => come.is_none(),
        };
        if waits && !self.ended {
            or_nothing(self.read_ahead())?;
        }
        if self.come.first() == Some(&RECORD)
            && let Some(end) = self.come[1..].iter().position(|byte| *byte == RECORD)
        {
            self.come.remove(1 + end);
            self.come.remove(0);
        }
        match self.come.first().copied() {
            Some(RECORD) if !self.broken => Err(io::ErrorKind::WouldBlock.into()),
            _ if self.ended => Ok(0),
            Some(END) => {
                self.ended = true;
                Ok(0)
            }
            Some(_) => {
                let n = into.len().min(self.come.len()).min(3);
                let n = self.come[..n].iter().position(|b| *b == END).unwrap_or(n);
                for (to, byte) in into.iter_mut().zip(self.come.drain(..n)) {
                    *to = byte ^ MASK;
                }
                Ok(n)
            }
            None if self.broken => {
                self.ended = self.forgets;
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Masked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(self.greeted, "the handshake comes first");
        self.reaches("write");
        // As one would that looks for an answer to its own words.
        or_nothing(self.read_ahead())?;
        self.flush()?;
        let n = bytes.len().min(20_000);
        self.leaves
            .extend(bytes[..n].iter().map(|byte| byte ^ MASK));
        or_nothing(self.flush())?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.reaches("flush");
        while !self.leaves.is_empty() {
            let n = self.raw.write(&self.leaves)?;
            self.leaves.drain(..n);
        }
        Ok(())
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        self.reaches("drop");
    }
}

// ---- the handler and its clients ----

/// Runs lines: `mask` and `mask now` upgrade, `big n` answers with so much, `stop` waits until the test lets it
/// go on, `read` reads another line by itself, anything else comes back.
#[derive(Debug, Default)]
struct Masker {
    /// From the first byte on.
    at_once: bool,
    panics: &'static str,
    /// No panics yet.
    calm: Arc<AtomicBool>,
    /// Goes before its hello, when the client's has come. While it has something to send it reads nothing.
    padding: usize,
    /// Goes before it reads anything.
    first: usize,
    forgets: bool,
    /// Of the transports' methods.
    calls: Arc<AtomicUsize>,
    inside: AtomicUsize,
    reasons: Mutex<Vec<CloseReason>>,
    go_on: AtomicUsize,
}

impl Handler for Masker {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        if self.at_once {
            conn.upgrade(|raw| Ok(Masked::new(raw, self)))?;
        }
        conn.logged_in()?;
        conn.write_all(b"welcome\n")
    }

    fn command(&self, (): &mut (), conn: &mut Conn) -> io::Result<Next> {
        let Some(end) = conn.buffered().iter().position(|b| *b == b'\n') else {
            return Ok(Next::input());
        };
        let line = String::from_utf8_lossy(&conn.buffered()[..end]).into_owned();
        conn.consume(end + 1);
        self.inside.fetch_add(1, SeqCst);
        let done = self.run(conn, &line);
        self.inside.fetch_sub(1, SeqCst);
        done
    }

    fn woken(&self, (): &mut (), conn: &mut Conn, _: Woken) -> io::Result<Next> {
        conn.write_all(b"woken\n")?;
        Ok(Next::input())
    }

    fn farewell(&self, (): &mut (), out: &mut Vec<u8>, why: &CloseReason) {
        out.extend(format!("farewell: {why}\n").bytes());
    }

    fn close(&self, (): (), why: CloseReason) {
        self.reasons.lock().unwrap().push(why);
    }
}

/// More than a socket holds.
const BIG: usize = 20_000_000;

fn big(conn: &mut Conn, mut left: usize) -> io::Result<()> {
    while left > 0 {
        let n = left.min(PATTERN.len());
        conn.write_all(&PATTERN[..n])?;
        left -= n;
    }
    conn.write_all(b"\n")
}

impl Masker {
    fn run(&self, conn: &mut Conn, line: &str) -> io::Result<Next> {
        let make = |raw| Ok(Masked::new(raw, self));
        match line.split_once(' ').unwrap_or((line, "")) {
            ("mask", "") => {
                conn.write_all(b"begin\n")?;
                if let Err(error) = conn.upgrade(make) {
                    writeln!(conn, "{:?}: {error}", error.kind())?;
                }
            }
            ("mask", "now") => conn.upgrade_with_buffered(make)?,
            ("mask", "behind") => {
                big(conn, BIG)?;
                return self.run(conn, "mask");
            }
            ("mask", "now behind") => {
                big(conn, BIG)?;
                conn.upgrade_with_buffered(make)?;
            }
            ("mask", "before") => {
                conn.write_all(b"begin\n")?;
                conn.upgrade(make)?;
                big(conn, BIG)?;
            }
            ("mask", "flush") => {
                conn.write_all(b"begin\n")?;
                conn.upgrade(make)?;
                // Waits for the handshake, and then for a line.
                conn.write_all(b"flushed\n")?;
                conn.flush()?;
                return self.read(conn);
            }
            ("mask", "park") => {
                conn.write_all(b"begin\n")?;
                conn.upgrade(make)?;
                conn.write_all(b"parked\n")?;
                let soon = std::time::Instant::now() + Duration::from_millis(20);
                return Ok(Next::park().until(soon));
            }
            ("big", n) => {
                big(conn, n.parse().map_err(io::Error::other)?)?;
            }
            ("stop", _) => {
                let n = self.go_on.load(SeqCst);
                while self.go_on.load(SeqCst) == n {
                    std::thread::sleep(Duration::from_millis(1));
                }
                conn.write_all(b"stopped\n")?;
            }
            ("read", _) => return self.read(conn),
            ("mine", _) => {
                let is_there = conn.transport::<Masked>().is_some();
                writeln!(conn, "{is_there}")?;
            }
            _ => writeln!(conn, "{line}")?,
        }
        Ok(Next::input())
    }

    fn read(&self, conn: &mut Conn) -> io::Result<Next> {
        let mut line = String::new();
        io::BufRead::read_line(conn, &mut line)?;
        write!(conn, "read {line}")?;
        Ok(Next::input())
    }
}

struct Running {
    masker: Arc<Masker>,
    server: Server,
    at: LocalAddr,
}

impl Running {
    fn end(self) -> Vec<CloseReason> {
        let handle = self.server.handle();
        let report = self.server.drain(AMPLE);
        assert!(report.clean(), "{report}");
        let stats = handle.stats();
        assert_eq!((stats.threads, stats.lost_edges), (0, 0), "{stats:?}");
        self.masker.reasons.lock().unwrap().clone()
    }

    fn connect(&self) -> Client {
        let mut client = Client::connect_only(&self.at);
        assert_eq!(client.line(), "welcome");
        client
    }

    /// One whose handshake is done.
    fn masked(&self) -> MaskedClient {
        let mut client = self.connect();
        client.send("mask");
        assert_eq!(client.line(), "begin");
        MaskedClient::shake(client)
    }

    fn closed(&self, name: &str) -> u64 {
        let closes = self.server.handle().stats().closes;
        closes.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1)
    }

    fn until_closed(&self, name: &str) {
        until(&format!("one is closed as {name}"), || {
            self.closed(name) == 1
        });
    }
}

fn serve(setup: Setup, options: Options, masker: Masker) -> Running {
    let masker = Arc::new(masker);
    let server = Server::builder()
        .scheduler(setup.scheduler(&options))
        .limits(options.limits)
        .listen(setup.listen(), Arc::clone(&masker))
        .build()
        .expect("the server starts");
    let at = server.local_addrs()[0].clone();
    Running { masker, server, at }
}

struct MaskedClient(Client);

fn mask(text: &str) -> Vec<u8> {
    text.bytes().map(|byte| byte ^ MASK).collect()
}

impl MaskedClient {
    #[track_caller]
    fn shake(mut client: Client) -> Self {
        client.send_bytes(HELLO);
        let mut this = Self(client);
        this.expect_hello();
        this
    }

    #[track_caller]
    fn expect_hello(&mut self) {
        assert_eq!(self.bytes(HELLO.len()), HELLO);
    }

    #[track_caller]
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        let mut at = 0;
        while at < n {
            match self.0.read_raw(&mut bytes[at..]).expect("bytes") {
                0 => panic!("the end, after {at} of {n} bytes"),
                got => at += got,
            }
        }
        bytes
    }

    fn send(&mut self, lines: &str) {
        self.0.send_bytes(&mask(&format!("{lines}\n")));
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            match self.bytes(1)[0] ^ MASK {
                b'\n' => return line,
                byte => line.push(byte.into()),
            }
        }
    }

    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    /// Reads the reply to `big n` from its byte `at` to its end.
    #[track_caller]
    fn read_big(&mut self, mut at: usize, n: usize) {
        while at < n {
            let begin = at % PATTERN.len();
            let got = self.bytes((PATTERN.len() - begin).min(n - at));
            let same = got.iter().zip(&PATTERN[begin..]);
            assert!(
                same.into_iter().all(|(got, it)| got ^ MASK == *it),
                "at {at}"
            );
            at += got.len();
        }
        assert_eq!(self.line(), "");
    }
}

// ---- the promises ----

fn both_directions_go_through_the_transport(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.masked();
    assert_eq!(client.ask("one"), "one");
    for byte in mask("byte by byte\n") {
        client.0.send_bytes(&[byte]);
    }
    assert_eq!(client.line(), "byte by byte");
    assert_eq!(client.ask("mine"), "true");
    assert_eq!(running.connect().ask("mine"), "false");
    running.end();
}

fn what_is_queued_before_an_upgrade_leaves_as_it_is(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.connect();
    client.send("before\nmask");
    assert_eq!(client.line(), "before");
    assert_eq!(client.line(), "begin");
    let mut client = MaskedClient::shake(client);
    assert_eq!(client.ask("after"), "after");
    running.end();
}

fn an_upgrade_over_buffered_plaintext_is_refused(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.connect();
    // In one piece: somebody wants it to be taken for what the client said in secret.
    client.send("mask\ninjected");
    assert_eq!(client.line(), "begin");
    assert!(
        client
            .line()
            .starts_with("InvalidData: plaintext is buffered")
    );
    assert_eq!(client.line(), "injected", "and it goes on as it was");
    running.end();
}

/// While the words before it leave, the server reads on. That makes no difference.
fn an_upgrade_over_plaintext_that_came_while_it_waited_is_refused(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.connect();
    client.send("mask behind");
    client.read_big(0, 10);
    // More than sockets hold: when it has been sent, the server has taken some of it.
    let injected = "x".repeat(1000);
    client.send(&vec![&injected[..]; 10_000].join("\n"));
    client.read_big(10, BIG);
    assert_eq!((client.line(), client.line()), ("".into(), "begin".into()));
    let refused = client.line();
    assert!(refused.starts_with("InvalidData"), "{refused}");
    for n in 0..10_000 {
        assert!(client.line() == injected, "reply {n}");
    }
    running.end();
}

fn a_handshake_that_began_while_the_upgrade_waited_is_taken_up(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.connect();
    client.send("mask now behind");
    client.read_big(0, 10);
    client.send_bytes(HELLO);
    client.read_big(10, BIG / 2);
    client.send_bytes(&mask("with it\n"));
    client.read_big(BIG / 2, BIG);
    assert_eq!(client.line(), "");
    let mut client = MaskedClient(client);
    client.expect_hello();
    assert_eq!(client.line(), "with it");
    running.end();
}

fn what_is_buffered_may_be_the_beginning_of_a_handshake(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    for cut in 0..=HELLO.len() {
        let mut client = running.connect();
        let mut first = b"mask now\n".to_vec();
        first.extend(&HELLO[..cut]);
        client.send_bytes(&first);
        until("it has been upgraded", || {
            running.masker.inside.load(SeqCst) == 0
        });
        let mut rest = HELLO[cut..].to_vec();
        rest.extend(mask("with it\n"));
        client.send_bytes(&rest);
        let mut client = MaskedClient(client);
        client.expect_hello();
        assert_eq!(client.line(), "with it");
    }
    // All of it ahead, with two commands behind.
    let mut client = running.connect();
    let mut all = b"mask now\n".to_vec();
    all.extend(HELLO);
    all.extend(mask("one\ntwo\n"));
    client.send_bytes(&all);
    let mut client = MaskedClient(client);
    client.expect_hello();
    assert_eq!((client.line(), client.line()), ("one".into(), "two".into()));
    running.end();
}

fn there_is_one_transport_at_most(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.masked();
    client.send("mask");
    assert_eq!(client.line(), "begin");
    assert!(client.line().starts_with("AlreadyExists"));
    running.end();
}

fn a_handshake_that_stops_anywhere_holds_no_worker(setup: Setup) {
    let mut options = Options::pool(patient_group().max_threads(2));
    options.limits = Limits::default().login_timeout(NEVER);
    options.threads = options.threads.thread_cache(0);
    let running = serve(
        setup,
        options,
        Masker {
            at_once: true,
            ..Masker::default()
        },
    );
    let mut silent: Vec<_> = (0..60)
        .map(|n| {
            let mut client = Client::connect_only(&running.at);
            client.send_bytes(&HELLO[..n % HELLO.len()]);
            client
        })
        .collect();
    until("all are there", || {
        running.server.handle().stats().connections == 60
    });
    // Somebody else is served meanwhile, and each of them when it goes on.
    let mut client = MaskedClient::shake(Client::connect_only(&running.at));
    assert_eq!(client.line(), "welcome");
    assert_eq!(client.ask("quick"), "quick");
    if setup.is_pool() {
        let stats = running.server.handle().stats();
        let group = &stats.groups[0];
        assert_eq!((group.waiting, group.long), (0, 0), "{group:?}");
        assert!(group.threads <= 2, "{group:?}");
    }
    for (n, mut client) in silent.drain(..).enumerate() {
        client.send_bytes(&HELLO[n % HELLO.len()..]);
        let mut client = MaskedClient(client);
        client.expect_hello();
        assert_eq!(client.line(), "welcome");
        assert_eq!(client.ask("here"), "here");
    }
    running.end();
}

/// The transport reads ahead when it writes, and has then what no event will announce.
fn input_that_a_transport_took_while_it_wrote_is_not_forgotten(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.masked();
    for n in 0..20 {
        client.send("stop");
        until("it runs", || running.masker.inside.load(SeqCst) == 1);
        // Arrives while the command runs, so that it is there when the reply is written.
        client.send(&format!("behind {n}"));
        running.masker.go_on.fetch_add(1, SeqCst);
        assert_eq!(client.line(), "stopped");
        assert_eq!(client.line(), format!("behind {n}"));
    }
    running.end();
}

fn several_commands_that_a_transport_took_at_once_are_all_run(setup: Setup) {
    let options = Options::pool(patient_group().turn_commands(3));
    let running = serve(setup, options, Masker::default());
    let mut client = running.masked();
    let words: Vec<_> = (0..1000).map(|n| format!("word {n}")).collect();
    client.send(&words.join("\n"));
    for word in &words {
        assert_eq!(client.line(), *word);
    }
    client.send("read\nby itself\nand another");
    assert_eq!(client.line(), "read by itself");
    assert_eq!(client.line(), "and another");
    running.end();
}

fn words_before_the_handshake_wait_for_it(setup: Setup) {
    let running = serve(
        setup,
        Options::default(),
        Masker {
            at_once: true,
            ..Masker::default()
        },
    );
    let mut client = MaskedClient::shake(Client::connect_only(&running.at));
    assert_eq!(client.line(), "welcome");
    let mut client = running.connect_masked_at_once();
    client.send("still there");
    assert_eq!(client.line(), "still there");
    running.end();
}

impl Running {
    fn connect_masked_at_once(&self) -> MaskedClient {
        let mut client = Client::connect_only(&self.at);
        for byte in HELLO {
            client.send_bytes(&[*byte]);
        }
        let mut client = MaskedClient(client);
        client.expect_hello();
        assert_eq!(client.line(), "welcome");
        client
    }
}

fn a_handler_may_wait_for_the_handshake_and_for_its_client(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.connect();
    client.send("mask flush");
    assert_eq!(client.line(), "begin");
    // With a command behind it, that the handshake takes along.
    let mut all = HELLO.to_vec();
    all.extend(mask("a line\nanother one\n"));
    client.send_bytes(&all);
    let mut client = MaskedClient(client);
    client.expect_hello();
    assert_eq!(client.line(), "flushed");
    assert_eq!(client.line(), "read a line");
    assert_eq!(client.line(), "another one");
    // Parked with words for the client that wait for a handshake.
    let mut client = running.connect();
    client.send("mask park");
    assert_eq!(client.line(), "begin");
    let mut client = MaskedClient::shake(client);
    assert_eq!(client.line(), "parked");
    assert_eq!(client.line(), "woken");
    running.end();
}

fn more_words_than_may_be_queued_wait_for_the_handshake(setup: Setup) {
    let limits = Limits::default().output_bound(64 * 1024);
    let running = serve(setup, Options::limits(limits), Masker::default());
    let mut client = running.connect();
    client.send("mask before");
    assert_eq!(client.line(), "begin");
    until("it waits", || {
        !running.server.handle().stats().waits.is_empty()
    });
    let mut client = MaskedClient::shake(client);
    client.read_big(0, BIG);
    assert_eq!(client.ask("after"), "after");
    running.end();
}

/// What has come stays with the socket meanwhile, and so the socket goes on being readable.
fn a_transport_that_sends_before_it_reads_is_not_asked_over_and_over(setup: Setup) {
    let masker = Masker {
        padding: BIG,
        ..Masker::default()
    };
    let running = serve(setup, Options::default(), masker);
    let mut client = running.connect();
    client.send("mask");
    assert_eq!(client.line(), "begin");
    client.send_bytes(HELLO);
    let mut client = MaskedClient(client);
    assert_eq!(client.bytes(10), [b'p'; 10]);
    client.send("before it is done");
    let before = running.masker.calls.load(SeqCst);
    for n in 0..200 {
        assert_eq!(running.connect().ask(&n.to_string()), n.to_string());
    }
    let calls = running.masker.calls.load(SeqCst) - before;
    assert!(calls < 100, "{calls} calls");
    assert!(client.bytes(BIG - 10).iter().all(|byte| *byte == b'p'));
    client.expect_hello();
    assert_eq!(client.line(), "before it is done");
    running.end();
}

fn a_large_reply_goes_through_in_the_clients_time(setup: Setup) {
    const SIZE: usize = 5_000_000;
    for bound in [Limits::default().output_bound, 2 * SIZE] {
        let options = Options::limits(Limits::default().output_bound(bound));
        let running = serve(setup, options, Masker::default());
        let mut client = running.masked();
        client.send(&format!("big {SIZE}\nafter"));
        until("it does not fit", || {
            let seen = running.server.handle().connections();
            seen[0].state.name() == "flushing" || !running.server.handle().stats().waits.is_empty()
        });
        client.read_big(0, SIZE);
        assert_eq!(client.line(), "after");
        running.end();
    }
}

/// As long as a socket may linger: no machine is too slow for that.
const LONG: Duration = Duration::from_secs(60);

/// Has a client killed whose socket is full of replies, with little behind them that waits: to be read by
/// `then`. Not under thread-per-connection: there a thread has to be called out of its write.
fn killed_while_a_little_waits(setup: Setup, masker: Masker, then: impl Fn(&Running, Client)) {
    let limits = Limits::default().linger_timeout(LONG);
    let running = serve(setup, Options::limits(limits), masker);
    let handle = running.server.handle();
    let mut other = running.connect();
    let mut client = running.masked();
    // No further reply is made for a client that does not take 16 KiB of the last ones.
    client.send(&vec!["big 20000"; 4000].join("\n"));
    let flushing = || {
        let seen = handle.connections();
        let flushes = |seen: &&ConnInfo| seen.state.name() == "flushing";
        seen.iter()
            .find(flushes)
            .map(|seen| (seen.id, seen.commands))
    };
    // And it stays so: a socket may find more room while its other end has just been filled.
    until("it does not fit", || {
        let before = flushing();
        (0..100).for_each(|_| assert_eq!(other.ask("ping"), "ping"));
        before.is_some() && before == flushing()
    });
    assert!(flushing().is_some_and(|(id, _)| handle.kill(id)));
    running.until_closed("killed");
    then(&running, client.0);
    until("nobody lingers", || handle.stats().lingering == 0);
    assert_eq!(other.ask("still"), "still");
    running.end();
}

/// There is no room for them when they are said, nor for the transport's own.
fn last_words_that_do_not_fit_follow_through_the_transport(setup: Setup) {
    killed_while_a_little_waits(setup, Masker::default(), |running, mut client| {
        assert_eq!(running.server.handle().stats().lingering, 1);
        let mut rest = client.rest_bytes();
        assert_eq!(rest.pop(), Some(END));
        let reply: Vec<_> = PATTERN.iter().cycle().take(20_000).chain(b"\n").collect();
        let (replies, words) = rest.split_at(rest.len() / reply.len() * reply.len());
        for got in replies.chunks(reply.len()) {
            assert!(got.iter().zip(&reply).all(|(got, it)| got ^ MASK == **it));
        }
        assert_eq!(words, mask("farewell: the connection was killed\n"));
    });
}

fn an_end_that_nobody_announced_is_not_shown(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.masked();
    client.send("whole");
    client.0.send_bytes(&mask("hal"));
    client.0.half_close();
    assert_eq!(client.line(), "whole");
    running.until_closed("truncated");
    // In the handshake.
    let mut early = running.connect();
    early.send("mask");
    assert_eq!(early.line(), "begin");
    early.send_bytes(&HELLO[..3]);
    drop(early);
    until("that one too", || running.closed("truncated") == 2);
    // One who ends properly has done so.
    let mut proper = running.masked();
    proper.send("last");
    proper.0.send_bytes(&[END]);
    assert_eq!(proper.line(), "last");
    running.until_closed("client_closed");
    assert_eq!(proper.bytes(1), [END]);
    running.end();
}

fn an_end_is_announced_to_the_client(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.masked();
    assert_eq!(client.ask("one"), "one");
    let reasons = running.end();
    assert_eq!(reasons, [CloseReason::Draining]);
    assert_eq!(client.line(), "farewell: the server is shutting down");
    assert_eq!(client.bytes(1), [END]);
    let mut byte = [0];
    assert_eq!(client.0.read_raw(&mut byte).expect("the end"), 0);
}

fn a_handshake_that_fails_closes_its_connection_only(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut other = running.masked();
    let mut client = running.connect();
    client.send("mask");
    assert_eq!(client.line(), "begin");
    client.send("GET / HTTP/1.1");
    // The transport's own last word.
    assert_eq!(client.rest(), "BAD\n");
    running.until_closed("transport");
    assert_eq!(other.ask("still"), "still");
    running.end();
}

fn a_transport_that_panics_closes_its_connection_only(setup: Setup) {
    for method in [
        "handshake",
        "read",
        "write",
        "flush",
        "close",
        "drop",
        "input_bytes",
    ] {
        let running = serve(
            setup,
            Options::default(),
            Masker {
                panics: method,
                ..Masker::default()
            },
        );
        let mut other = running.connect();
        let mut client = running.connect();
        client.send("mask");
        assert_eq!(client.line(), "begin");
        client.try_to_send(HELLO);
        client.try_to_send(&mask("one\n"));
        if matches!(method, "close" | "drop") {
            let mut client = MaskedClient(client);
            client.expect_hello();
            assert_eq!(client.line(), "one");
            client.0.send_bytes(&[END]);
            running.until_closed("client_closed");
        } else {
            client.rest_bytes();
            running.until_closed("panicked");
        }
        until("it is counted", || {
            running.server.handle().stats().panics == 1
        });
        assert_eq!(other.ask("still"), "still");
        running.end();
    }
}

fn a_transport_that_panics_over_last_words_harms_nobody(setup: Setup) {
    for method in ["write", "flush", "close", "drop"] {
        let masker = Masker {
            panics: method,
            ..Masker::default()
        };
        masker.calm.store(true, SeqCst);
        killed_while_a_little_waits(setup, masker, |running, mut client| {
            running.masker.calm.store(false, SeqCst);
            client.rest_bytes();
            // TCP may have had room for all of it: it does not announce a little.
            until("it is counted", || {
                setup.transport == Over::Tcp || running.server.handle().stats().panics == 1
            });
        });
    }
}

fn a_silent_client_is_closed_through_the_transport(setup: Setup) {
    let limits = Limits::default()
        .idle_timeout(Duration::from_millis(300))
        .read_timeout(Duration::from_millis(300));
    let running = serve(setup, Options::limits(limits), Masker::default());
    let mut client = running.masked();
    assert_eq!(client.ask("one"), "one");
    assert!(client.line().starts_with("farewell: the client was silent"));
    assert_eq!(client.bytes(1), [END]);
    running.until_closed("idle_timeout");
    // Killed while it waits for its client.
    let mut client = running.masked();
    client.send("read");
    until("it reads", || running.masker.inside.load(SeqCst) == 1);
    for seen in running.server.handle().connections() {
        running.server.handle().kill(seen.id);
    }
    running.until_closed("killed");
    running.end();
}

/// A client whose end nobody announced, and who takes nothing of a reply: that it takes nothing is what ends it.
fn an_end_that_was_found_while_a_reply_waited_is_not_the_reason_of_another_close(setup: Setup) {
    let limits = Limits::default().write_timeout(Duration::from_millis(300));
    let running = serve(setup, Options::limits(limits), Masker::default());
    let mut client = running.masked();
    client.send(&format!("big {BIG}"));
    client.0.half_close();
    running.until_closed("write_timeout");
    assert_eq!(running.end(), [CloseReason::WriteTimeout]);
}

/// Even if its transport says it only once.
fn an_end_that_was_found_while_a_reply_waited_is_found_when_it_is_read(setup: Setup) {
    for forgets in [false, true] {
        let masker = Masker {
            forgets,
            ..Masker::default()
        };
        let running = serve(setup, Options::default(), masker);
        let mut client = running.masked();
        client.send(&format!("big {BIG}\nbehind"));
        client.0.half_close();
        client.read_big(0, BIG);
        assert_eq!(client.line(), "behind");
        running.until_closed("truncated");
        running.end();
    }
}

fn a_handshake_that_fails_while_words_wait_for_it_is_why_it_closes(setup: Setup) {
    let running = serve(setup, Options::default(), Masker::default());
    let mut client = running.connect();
    client.send("mask before");
    assert_eq!(client.line(), "begin");
    until("it waits", || {
        !running.server.handle().stats().waits.is_empty()
    });
    client.send("GET / HTTP/1.1");
    assert_eq!(client.rest(), "BAD\n");
    running.until_closed("transport");
    running.end();
}

/// Half a record is memory as half a command is, though nothing of it has been handed out.
fn what_a_transport_holds_counts_for_the_budget(setup: Setup) {
    let limits = Limits::default().max_input(1 << 16).input_budget(1 << 17);
    let running = serve(setup, Options::limits(limits), Masker::default());
    let held = || running.server.handle().stats().input_bytes;
    let half_a_record = |bytes: usize| {
        let mut client = running.masked();
        client.0.send_bytes(&[RECORD]);
        client.0.send_bytes(&vec![b'x' ^ MASK; bytes]);
        client
    };
    let mut largest = half_a_record(60_000);
    until("it counts", || held() >= 60_000);
    let mut others = [half_a_record(40_000), half_a_record(40_000)];
    running.until_closed("input_budget");
    let word = largest.0.rest_bytes();
    let word: String = word.iter().map(|byte| char::from(byte ^ MASK)).collect();
    assert!(word.contains("input_budget"), "{word}");
    for client in &mut others {
        client.0.send_bytes(&[b'\n' ^ MASK, RECORD]);
        assert_eq!(client.line().len(), 40_000);
    }
    until("it is given back", || held() == 0);
    running.end();
}

/// A transport that has much to send before it reads: what came before it is held for it meanwhile.
fn what_came_before_a_transport_counts_until_it_is_taken(setup: Setup) {
    let masker = Masker {
        first: BIG,
        ..Masker::default()
    };
    let running = serve(setup, Options::default(), masker);
    let handle = running.server.handle();
    let held = || handle.stats().input_bytes;
    let mut client = running.connect();
    client.send("mask now behind");
    client.read_big(0, 10);
    let word = "x".repeat(50_000);
    client.send_bytes(HELLO);
    client.send_bytes(&mask(&word));
    until("it has been read", || held() >= word.len());
    client.read_big(10, BIG);
    assert_eq!(client.line(), "");
    until("its turn is over", || {
        handle.connections()[0].state.name() == "flushing"
    });
    assert!(held() >= word.len(), "{}", held());
    let mut client = MaskedClient(client);
    assert!(client.bytes(BIG).iter().all(|byte| *byte == b'p'));
    client.expect_hello();
    client.send("");
    assert_eq!(client.line(), word);
    until("it is given back", || held() == 0);
    running.end();
}
