//! Promises about readiness: a connection is registered once and never again, so an event that is
//! missed, or a read that is taken for the last one and was not, is a client that waits for ever.
//! The traps, each over each transport that has it; and crowds of clients that chop up what they say.

mod common;

use std::io::ErrorKind;
#[cfg(unix)]
use std::io::IoSlice;
#[cfg(unix)]
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use common::client::{Client, Socket};
use common::{
    Harness, Options, Setup, everywhere, in_the_pool, short_idle_timeout, two_slots, until,
};
#[cfg(unix)]
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use socket2::SockRef;
use thread_group_pool::PoolConfig;

everywhere! {
    the_end_of_input_is_seen_while_idle,
    the_end_of_input_is_seen_while_running,
    urgent_data_hides_nothing_behind_it,
    #[cfg(unix)]
    a_message_that_carries_descriptors_hides_nothing_behind_it,
    data_that_fills_the_buffer_exactly_is_not_the_last,
    data_that_arrives_while_a_command_runs_is_not_lost,
    a_blocking_read_leaves_nothing_behind,
    many_clients_in_any_pieces_are_all_answered,
    one_event_is_one_call,
}

in_the_pool! {
    the_end_of_input_is_seen_while_queued,
    the_end_of_input_is_seen_when_nobody_polls,
}

// ---- the end of the stream ----

fn the_end_of_input_is_seen_while_idle(setup: Setup) {
    let server = setup.serve(Options::default());
    for n in 1..=100 {
        let mut client = server.client();
        client.ping();
        client.half_close();
        assert_eq!(client.rest(), "");
        server.until_closed_as("client_closed", n);
    }
    server.finish();
}

fn the_end_of_input_is_seen_while_running(setup: Setup) {
    let server = setup.serve(Options::default());
    for n in 1..=20 {
        let mut client = server.client();
        client.send(&format!("WAIT {n}"));
        until("it runs", || server.stage.running("WAIT").now == 1);
        // The end comes with data before it, or alone.
        if n % 2 == 0 {
            client.send("ECHO more");
        }
        client.half_close();
        // A later event has been seen, so that of the end has.
        server.client().ping();
        server.stage.open(&n.to_string());
        let more = if n % 2 == 0 { "more\n" } else { "" };
        assert_eq!(client.rest(), format!("waited\n{more}"));
    }
    server.until_all_closed();
    server.finish();
}

fn the_end_of_input_is_seen_while_queued(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots()));
    let mut blockers = server.clients(2);
    let mut ending = server.clients(10);
    let mut witness = server.client();
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    for client in &mut ending {
        client.send("ECHO last");
    }
    until("they queue", || server.group().queued == 10);
    for client in &ending {
        client.half_close();
    }
    witness.send("ECHO ping");
    until("a later event has been seen", || {
        server.group().queued == 11
    });
    server.stage.open("gate");
    for client in &mut ending {
        assert_eq!(client.rest(), "last\n");
    }
    assert_eq!(witness.line(), "ping");
    server.until_closed_as("client_closed", 10);
    server.finish();
}

/// The data and the end are one event.
fn the_end_of_input_is_seen_when_nobody_polls(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots().max_threads(2)));
    let mut blockers = server.clients(2);
    let mut ending = server.clients(10);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both threads are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    for client in &mut ending {
        client.send("ECHO last");
        client.half_close();
    }
    server.stage.open("gate");
    for client in &mut ending {
        assert_eq!(client.rest(), "last\n");
    }
    server.until_closed_as("client_closed", 10);
    server.finish();
}

// ---- marks that stop a read ----

/// Sends a byte out of band. False if this kind of socket has no such thing here.
fn send_urgent(client: &Client) -> bool {
    let socket = match client.socket() {
        Socket::Tcp(tcp) => SockRef::from(tcp),
        #[cfg(unix)]
        Socket::Unix(unix) => SockRef::from(unix),
    };
    match socket.send_out_of_band(b"!") {
        Ok(sent) => sent == 1,
        Err(error) if error.kind() == ErrorKind::Unsupported => false,
        Err(error) => panic!("sending urgent data: {error}"),
    }
}

/// Sends bytes in one message with a descriptor.
#[cfg(unix)]
fn send_with_descriptor(client: &Client, bytes: &[u8], descriptor: impl AsFd) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = rustix::net::sendmsg(
        client.socket().as_fd(),
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::empty(),
    );
    assert_eq!(sent, Ok(bytes.len()));
}

/// Runs `talk` while the connection is idle, and while it runs a command, so that all that is said
/// is there when the read comes. `talk` sends `ECHO one` to `ECHO four`.
fn idle_and_running(server: &Harness, talk: impl Fn(&mut Client)) {
    let mut client = server.client();
    for n in 0..20 {
        let gate = format!("gate-{}-{n}", client.id);
        let waits = n % 2 == 1;
        if waits {
            client.send(&format!("WAIT {gate}"));
            until("it runs", || server.stage.running("WAIT").now == 1);
        }
        talk(&mut client);
        if waits {
            server.stage.open(&gate);
            assert_eq!(client.line(), "waited");
        }
        for word in ["one", "two", "three", "four"] {
            assert_eq!(client.line(), word);
        }
        client.ping();
    }
}

fn urgent_data_hides_nothing_behind_it(setup: Setup) {
    let server = setup.serve(Options::default());
    idle_and_running(&server, |client| {
        client.send("ECHO one");
        send_urgent(client);
        client.send("ECHO two\nECHO three\nECHO four");
    });
    idle_and_running(&server, |client| {
        // The last command has no event after it but that of the mark.
        client.send("ECHO one\nECHO two\nECHO three");
        client.send_bytes(b"ECHO fo");
        send_urgent(client);
        client.send_bytes(b"ur\n");
    });
    idle_and_running(&server, |client| {
        send_urgent(client);
        client.send("ECHO one\nECHO two\nECHO three\nECHO four");
    });
    server.finish();
}

#[cfg(unix)]
fn a_message_that_carries_descriptors_hides_nothing_behind_it(setup: Setup) {
    let server = setup.serve(Options::default());
    idle_and_running(&server, |client| {
        let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
        client.send("ECHO one");
        match client.socket() {
            Socket::Unix(_) => send_with_descriptor(client, b"ECHO two\n", &writer),
            // What comes nearest.
            Socket::Tcp(_) => client.send("ECHO two"),
        }
        client.send("ECHO three\nECHO four");
    });
    idle_and_running(&server, |client| {
        client.send_bytes(b"ECHO o");
        if let Socket::Unix(_) = client.socket() {
            for byte in b"ne\nECHO two\n" {
                send_with_descriptor(client, &[*byte], std::io::stderr());
            }
        } else {
            client.send_bytes(b"ne\nECHO two\n");
        }
        client.send("ECHO three\nECHO four");
    });
    if let Socket::Unix(_) = server.client().socket() {
        descriptors_that_come_along_are_closed(&server);
    }
    server.finish();
}

#[cfg(unix)]
fn descriptors_that_come_along_are_closed(server: &Harness) {
    let mut client = server.client();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    send_with_descriptor(&client, b"ECHO with\n", &writer);
    assert_eq!(client.line(), "with");
    drop(writer);
    // The end of a pipe is seen when nobody else has its other side any more.
    assert_eq!(rustix::io::read(&reader, &mut [0_u8; 1]), Ok(0));
}

// ---- the size of a read ----

const READ: usize = 16 * 1024;

fn data_that_fills_the_buffer_exactly_is_not_the_last(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for reads in [1, 2, 3, 4, 8] {
        for size in [reads * READ - 1, reads * READ, reads * READ + 1] {
            let word = "x".repeat(size - "ECHO \n".len());
            // One command of just that size, alone.
            assert!(client.ask(&format!("ECHO {word}")) == word, "{size}");
            // A part of a command of just that size, and the rest when that has been taken in.
            client.send_bytes(format!("ECHO y{word}").as_bytes());
            until("it waits for the rest", || {
                server.state(client.id) == Some("reading")
            });
            client.send_bytes(b"z\n");
            assert!(client.line() == format!("y{word}z"), "{size}");
            // Commands that end there, with others behind them.
            client.send(&format!("ECHO {word}\nECHO then\nECHO {word}"));
            assert!(client.line() == word, "{size}");
            assert_eq!(client.line(), "then");
            assert!(client.line() == word, "{size}");
            // All of it there already when it is read.
            let gate = format!("{size}");
            client.send(&format!("WAIT {gate}"));
            until("it runs", || server.stage.running("WAIT").now == 1);
            client.send(&format!("ECHO {word}"));
            server.stage.open(&gate);
            assert_eq!(client.line(), "waited");
            assert!(client.line() == word, "{size}");
        }
    }
    server.finish();
}

/// Each command is sent before the one before it has been answered, some commands ahead: it arrives
/// before, during or after the last read of a turn, or while the turn comes to rest.
fn data_that_arrives_while_a_command_runs_is_not_lost(setup: Setup) {
    let server = setup.serve(Options::default());
    thread::scope(|scope| {
        for ahead in 1..=4 {
            let mut client = server.client();
            scope.spawn(move || {
                (0..ahead).for_each(|n| client.send(&format!("ECHO {n}")));
                for n in ahead..2000 {
                    assert_eq!(client.line(), (n - ahead).to_string());
                    client.send(&format!("ECHO {n}"));
                }
            });
        }
    });
    server.until_all_closed();
    server.finish();
}

/// A handler that reads on its own empties the socket at other moments than the scheduler does.
fn a_blocking_read_leaves_nothing_behind(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for size in [1, 100, READ - 7, READ, READ + 1, 2 * READ, 50_000] {
        let bytes = vec![b'x'; size];
        let expected = format!("read {}", "x".repeat(size));
        client.send(&format!("READ {size}"));
        until("it reads", || server.stage.running("READ").now == 1);
        client.send_bytes(&bytes);
        assert!(client.line() == expected, "{size}");
        client.send(&format!("READ {size}"));
        until("it reads", || server.stage.running("READ").now == 1);
        client.send_bytes(&bytes[1..]);
        client.send_bytes(b"xECHO then\nECHO th");
        assert!(client.line() == expected, "{size}");
        assert_eq!(client.line(), "then");
        client.send_bytes(b"is\n");
        assert_eq!(client.line(), "this");
    }
    server.finish();
}

// ---- crowds ----

/// Pseudo-random numbers: the same ones for the same seed.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).expect("48 bits") % n
    }
}

fn many_clients_in_any_pieces_are_all_answered(setup: Setup) {
    // Small budgets and limits, so that every way through the code is taken often.
    let pool = PoolConfig::default()
        .groups(2)
        .turn_commands(3)
        .idle_timeout(short_idle_timeout());
    let server = setup.serve(Options::pool(pool));
    thread::scope(|scope| {
        for seed in 1..=16 {
            let mut client = server.client();
            scope.spawn(move || chop(&mut client, seed));
        }
    });
    server.until_all_closed();
    server.finish();
}

/// Talks to the server in pieces: several commands at a time, some of them long, cut anywhere, with
/// pauses in which everything comes to rest.
fn chop(client: &mut Client, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for round in 0..60 {
        let mut lines = String::new();
        let mut replies = Vec::new();
        for n in 0..=dice.below(8) {
            let long = if dice.below(10) == 0 {
                dice.below(40_000)
            } else {
                dice.below(40)
            };
            let word = format!("{n}{}", "x".repeat(long));
            match dice.below(6) {
                0 => {
                    lines += &format!("READ {}\n{word}", word.len());
                    replies.push(format!("read {word}"));
                }
                1 => {
                    lines += "NUDGE 1\n";
                    replies.push("nudged".to_owned());
                }
                2 => {
                    lines += "OWE\nAGAIN 2\n";
                    replies.push("again 2".to_owned());
                }
                _ => {
                    lines += &format!("ECHO {word}\n");
                    replies.push(word);
                }
            }
        }
        let mut rest = lines.as_bytes();
        while !rest.is_empty() {
            let most = if dice.below(2) == 0 { 12 } else { rest.len() };
            let (piece, after) = rest.split_at(rest.len().min(1 + dice.below(most)));
            client.send_bytes(piece);
            rest = after;
            if dice.below(100) == 0 {
                thread::sleep(Duration::from_millis(dice.below(20) as u64));
            }
        }
        for reply in replies {
            let line = client.line();
            assert!(
                line == reply,
                "seed {seed}, round {round}: {line:?}, not {reply:?}"
            );
        }
    }
}

/// However many events there are, the handler is called once for each command, and once at the end.
fn one_event_is_one_call(setup: Setup) {
    const CLIENTS: u64 = 8;
    const COMMANDS: u64 = 500;
    let server = setup.serve(Options::default());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut client = server.client();
            scope.spawn(move || (0..COMMANDS).for_each(|_| client.ping()));
        }
    });
    server.until_all_closed();
    let stats = server.finish();
    assert_eq!(stats.commands, CLIENTS * (COMMANDS + 1), "{stats:?}");
}
