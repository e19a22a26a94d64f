//! Conversations without a server: what each command answers, and what becomes of nonsense.

#![allow(unused_must_use)] // where the reply is what counts, and not whether the connection goes on

use std::borrow::Cow;
use std::sync::Arc;

use super::login::{PLUGIN, answer_to};
use super::packet::{Framed, next_packet, put_packet};
use super::wire::{Reader, put_bytes};
use super::*;
use crate::{Engine, EngineConfig, Flow, NoAdmin};

const MAX: usize = 64 * 1024;

/// What a client of today says that it can do.
const TODAY: u32 = capability::OFFERED & !capability::CONNECT_WITH_DB;

struct Client {
    connection: Connection,
    /// Replies that have not been read.
    out: Vec<u8>,
    sequence: u8,
}

impl Client {
    fn new(users: Users) -> Self {
        let engine = Engine::new(EngineConfig {
            rows: 1000,
            ..EngineConfig::default()
        });
        let engine = engine.expect("it needs no thread");
        let connection = Connection::new(&engine, 7, Arc::new(users), MAX);
        let mut client = Self {
            connection: connection.expect("there is randomness"),
            out: Vec::new(),
            sequence: 0,
        };
        client.connection.greet(&mut client.out);
        client
    }

    fn logged_in(capabilities: u32) -> Self {
        let mut client = Self::new(Users::default());
        client.packet();
        client.send(&answer(capabilities, "ann", b"", PLUGIN));
        assert_eq!(client.packet()[0], 0);
        client
    }

    /// Feeds bytes and lets the server take from them what it can; what it leaves.
    fn feed(&mut self, mut bytes: &[u8]) -> (usize, Flow) {
        loop {
            let step = self.connection.step(bytes, &mut self.out, &NoAdmin);
            match step.expect("a Vec takes everything") {
                Step::Incomplete => return (bytes.len(), Flow::Continue),
                // As if what comes behind it were what TLS makes of it.
                Step::Secure { consumed } => bytes = &bytes[consumed..],
                Step::Taken { consumed, flow } => {
                    bytes = &bytes[consumed..];
                    if flow != Flow::Continue {
                        return (bytes.len(), flow);
                    }
                }
            }
        }
    }

    /// Sends the next packet of the conversation.
    fn send(&mut self, payload: &[u8]) -> Flow {
        let mut bytes = Vec::new();
        put_packet(&mut bytes, &mut self.sequence, |out| {
            out.extend_from_slice(payload)
        });
        let (left, flow) = self.feed(&bytes);
        assert_eq!(left, 0);
        flow
    }

    /// Sends a command.
    fn command(&mut self, command: u8, argument: &[u8]) -> Flow {
        self.sequence = 0;
        self.send(&[&[command], argument].concat())
    }

    fn query(&mut self, text: &str) {
        assert_eq!(self.command(3, text.as_bytes()), Flow::Continue);
    }

    /// The next packet of a reply; they must be numbered without a gap.
    fn packet(&mut self) -> Vec<u8> {
        match next_packet(&self.out, self.sequence, usize::MAX) {
            Framed::Packet {
                payload,
                consumed,
                next,
            } => {
                self.sequence = next;
                let payload = payload.into_owned();
                self.out.drain(..consumed);
                payload
            }
            other => panic!("{other:?} of {:?}", self.out),
        }
    }

    fn packets(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| (!self.out.is_empty()).then(|| self.packet())).collect()
    }

    /// The code and the SQLSTATE of an error.
    fn error(&mut self) -> (u16, String) {
        let packet = self.packet();
        assert_eq!(packet[0], 0xff, "{packet:?}");
        assert!(self.out.is_empty());
        let code = u16::from_le_bytes([packet[1], packet[2]]);
        let state = packet.get(3..9).filter(|state| state[0] == b'#');
        let state = state.map_or(Cow::Borrowed(""), |state| {
            String::from_utf8_lossy(&state[1..])
        });
        (code, state.into_owned())
    }

    /// Reads an `OK`: the rows affected, the last id, and the status.
    fn ok(&mut self) -> (u64, u64, u16) {
        let packet = self.packet();
        assert_eq!(packet[0], 0, "{packet:?}");
        assert!(self.out.is_empty());
        let mut reader = Reader::new(&packet[1..]);
        let read = (reader.lenenc(), reader.lenenc(), reader.u16());
        (
            read.0.expect("rows"),
            read.1.expect("an id"),
            read.2.expect("a status"),
        )
    }

    fn prepare(&mut self, text: &str) -> (u32, u16, u16) {
        self.command(0x16, text.as_bytes());
        let packets = self.packets();
        let mut reader = Reader::new(&packets[0]);
        assert_eq!(reader.u8(), Some(0), "{packets:?}");
        let id = reader.u32().expect("an id");
        (
            id,
            reader.u16().expect("columns"),
            reader.u16().expect("parameters"),
        )
    }

    fn execute(&mut self, id: u32, values: &[u8]) {
        let argument = [&id.to_le_bytes()[..], &[0, 1, 0, 0, 0], values].concat();
        self.command(0x17, &argument);
    }
}

fn answer(capabilities: u32, user: &str, proof: &[u8], plugin: &str) -> Vec<u8> {
    let mut packet = capabilities.to_le_bytes().to_vec();
    packet.extend_from_slice(&[0, 0, 0, 1, 45]);
    packet.extend_from_slice(&[0; 23]);
    packet.extend_from_slice(user.as_bytes());
    packet.push(0);
    put_bytes(&mut packet, proof);
    if capabilities & capability::CONNECT_WITH_DB != 0 {
        packet.extend_from_slice(b"sbtest\0");
    }
    packet.extend_from_slice(plugin.as_bytes());
    packet.push(0);
    packet
}

/// The scramble of a greeting.
fn scramble(greeting: &[u8]) -> [u8; 20] {
    let mut reader = Reader::new(greeting);
    assert_eq!(reader.u8(), Some(10));
    reader.nul_bytes();
    assert_eq!(reader.u32(), Some(7));
    let first = reader.bytes(8).expect("eight bytes");
    reader.bytes(19);
    let second = reader.bytes(12).expect("twelve bytes");
    let all = [first, second].concat();
    all.try_into().expect("twenty bytes")
}

#[test]
fn a_client_logs_in_with_its_password_at_once_or_after_a_switch() {
    let users = || Users::new([("ann".to_owned(), "secret".to_owned())]);
    for (password, expected) in [("secret", 0), ("wrong", 0xff)] {
        let mut client = Client::new(users());
        let scramble = scramble(&client.packet());
        let proof = answer_to(&scramble, password.as_bytes());
        client.send(&answer(TODAY, "ann", &proof, PLUGIN));
        assert_eq!(client.packet()[0], expected, "{password}");

        let mut client = Client::new(users());
        let greeting = client.packet();
        client.send(&answer(TODAY, "ann", &[9; 32], "caching_sha2_password"));
        let switch = client.packet();
        assert_eq!(switch[0], 0xfe);
        let named = Reader::new(&switch[1..]).nul_bytes();
        assert_eq!(named, PLUGIN.as_bytes());
        let proof = answer_to(&self::scramble(&greeting), password.as_bytes());
        client.send(&proof);
        assert_eq!(client.packet()[0], expected, "{password} after a switch");
    }
    let mut client = Client::new(users());
    client.packet();
    let flow = client.send(&answer(TODAY, "bob", b"", PLUGIN));
    assert_eq!(
        (flow, client.error()),
        (Flow::Quit, (1045, "28000".to_owned()))
    );
}

#[test]
fn nothing_is_offered_that_is_not_there() {
    let mut client = Client::new(Users::default());
    let greeting = client.packet();
    assert_eq!(capability::OFFERED & capability::SSL, 0);
    assert!(greeting.ends_with(b"mysql_native_password\0"));
    for wrong in [
        answer(TODAY | capability::SSL, "ann", b"", PLUGIN),
        answer(TODAY & !capability::PROTOCOL_41, "ann", b"", PLUGIN),
        (TODAY | capability::SSL).to_le_bytes().to_vec(),
        Vec::new(),
        vec![255; 40],
    ] {
        let mut client = Client::new(Users::default());
        client.packet();
        assert_eq!(client.send(&wrong), Flow::Quit, "{wrong:?}");
        assert_eq!(client.error().0, 1043);
    }
}

#[test]
fn tls_is_for_those_who_are_offered_it_and_ask_before_they_log_in() {
    let offered = || {
        let mut client = Client::new(Users::default());
        client.out.clear();
        (client.connection.sequence, client.sequence) = (0, 0);
        client.connection.offer_tls();
        client.connection.greet(&mut client.out);
        client.packet();
        client
    };
    let with_tls = answer(TODAY | capability::SSL, "ann", b"", PLUGIN);
    let mut client = offered();
    assert_eq!(client.send(&with_tls[..32]), Flow::Continue);
    assert!(client.out.is_empty(), "the answer is TLS's");
    assert_eq!(client.send(&with_tls), Flow::Continue);
    assert_eq!(client.packet()[0], 0);
    // Who asks for nothing is served without.
    let mut client = offered();
    client.send(&answer(TODAY, "ann", b"", PLUGIN));
    assert_eq!(client.packet()[0], 0);
    // A login that says that it came by TLS and did not; that did and says it did not; asking twice.
    for packets in [
        &[&with_tls[..]][..],
        &[&with_tls[..32], &answer(TODAY, "ann", b"", PLUGIN)],
        &[&with_tls[..32], &with_tls[..32]],
    ] {
        let mut client = offered();
        let flows: Vec<_> = packets.iter().map(|packet| client.send(packet)).collect();
        assert_eq!(flows.last(), Some(&Flow::Quit));
        assert_eq!(client.error().0, 1043);
    }
}

#[test]
fn every_beginning_of_a_login_is_refused_or_one() {
    let whole = answer(TODAY | capability::CONNECT_WITH_DB, "ann", b"", PLUGIN);
    for cut in 0..=whole.len() {
        let mut client = Client::new(Users::default());
        client.packet();
        let flow = client.send(&whole[..cut]);
        let first = client.packet()[0];
        assert!((flow == Flow::Quit) == (first == 0xff), "{cut}");
    }
}

#[test]
fn results_end_as_the_client_has_asked_for() {
    let columns_and_rows = 1 + 2 + 3;
    for (capabilities, marks) in [(TODAY, 1), (TODAY & !capability::DEPRECATE_EOF, 2)] {
        let mut client = Client::logged_in(capabilities);
        client.query("SELECT id, c FROM sbtest1 WHERE id BETWEEN 1 AND 3");
        let packets = client.packets();
        assert_eq!(packets.len(), columns_and_rows + marks);
        assert_eq!(packets[0], [2]);
        assert!(packets[1].starts_with(b"\x03def\x06sbtest\x07sbtest1"));
        let row = &packets[packets.len() - 2];
        assert!(row.starts_with(b"\x013\x77"), "{row:?}");
        let end = &packets[packets.len() - 1];
        assert_eq!((end[0], end.len()), (0xfe, if marks == 1 { 7 } else { 5 }));
    }
}

#[test]
fn the_status_tells_of_transactions_and_autocommit() {
    let mut client = Client::logged_in(TODAY);
    for (statement, affected, status) in [
        ("BEGIN", 0, 3),
        ("UPDATE sbtest1 SET k=k+1 WHERE id=1", 1, 3),
        ("COMMIT", 0, 2),
        ("SET autocommit=0", 0, 0),
        ("DELETE FROM sbtest1 WHERE id=1", 1, 1),
        ("ROLLBACK", 0, 0),
        ("SET autocommit=1", 0, 2),
    ] {
        client.query(statement);
        assert_eq!(client.ok(), (affected, 0, status), "{statement}");
    }
    client.query("INSERT INTO sbtest1 (k) VALUES (1), (2)");
    assert_eq!(client.ok(), (2, 1001, 2));
}

#[test]
fn errors_have_their_numbers_and_the_client_goes_on() {
    let mut client = Client::logged_in(TODAY);
    for (statement, code, state) in [
        ("BOGUS", 1064, "42000"),
        ("PING", 1064, "42000"),
        ("", 1065, "42000"),
        ("SELECT c FROM nothing WHERE id=1", 1146, "42S02"),
        ("SELECT x FROM sbtest1", 1054, "42S22"),
        ("INSERT INTO sbtest1 (id) VALUES (1)", 1062, "23000"),
        ("SELECT c FROM sbtest1 WHERE id=1\u{e4}", 1064, "42000"),
        ("SHOW THREAD_POOL GROUPS", 1235, "42000"),
    ] {
        client.query(statement);
        assert_eq!(client.error(), (code, state.to_owned()), "{statement}");
    }
    assert_eq!(client.command(3, b"SELECT '\xff'"), Flow::Continue);
    assert_eq!(client.error().0, 1300);
    for (command, argument, code) in [
        (0x04, &b"sbtest1\0"[..], 1047),
        (0x11, b"", 1047),
        (0x1c, &[1, 0, 0, 0], 1047),
        (0xee, b"", 1047),
        (0x17, &[1, 0], 1835),
        (0x17, &[9, 0, 0, 0, 0, 1, 0, 0, 0], 1243),
        (0x1a, &[9, 0, 0, 0], 1243),
        (0x0c, &[1], 1835),
        (0x02, b"mysql", 1049),
    ] {
        assert_eq!(client.command(command, argument), Flow::Continue);
        assert_eq!(client.error().0, code, "{command:#x}");
    }
    client.sequence = 0;
    assert_eq!(
        client.send(b""),
        Flow::Continue,
        "an empty packet is no command"
    );
    client.out.clear();
    client.command(0x0e, b"");
    client.ok();
}

#[test]
fn prepared_statements_take_values_and_return_them_as_they_are() {
    let mut client = Client::logged_in(TODAY);
    let select = client.prepare("SELECT id, k, c FROM sbtest1 WHERE id=? LIMIT 1");
    assert_eq!((select.1, select.2), (3, 1));
    let insert = client.prepare("INSERT INTO sbtest1 (id, k, c, pad) VALUES (?, ?, ?, ?)");
    assert_eq!((insert.1, insert.2), (0, 4));
    let mut values = vec![0, 1, 3, 0, 3, 0, 0xfe, 0, 0xfe, 0];
    values.extend_from_slice(&(-3i32).to_le_bytes());
    values.extend_from_slice(&70000i32.to_le_bytes());
    values.extend_from_slice(b"\x04it's\x03a\\b");
    client.execute(insert.0, &values);
    assert_eq!(client.ok(), (1, 0, 2));
    client.execute(
        select.0,
        &[&[0, 1, 3, 0][..], &(-3i32).to_le_bytes()].concat(),
    );
    let rows = client.packets();
    assert_eq!(rows.len(), 1 + 3 + 1 + 1);
    let expected = [
        &[0, 0][..],
        &(-3i32).to_le_bytes(),
        &70000i32.to_le_bytes(),
        b"\x04it's",
    ];
    assert_eq!(rows[4], expected.concat());
    // The kinds of the values are those of the last time, if they are not said again.
    client.execute(select.0, &[&[0, 0][..], &1i32.to_le_bytes()].concat());
    assert_eq!(client.packets().len(), 6);
    // A string for a number, and a number for a string, as in MySQL.
    client.execute(select.0, b"\0\x01\xfe\0\x021 ");
    assert_eq!(client.packets().len(), 6);
    client.execute(select.0, b"\0\x01\xfe\0\x01x");
    assert_eq!(client.error().0, 1064);
    let sum = client.prepare("SELECT SUM(k), COUNT(*) FROM sbtest1 WHERE id = ?");
    client.execute(sum.0, &[&[0, 1, 8, 0][..], &(-4i64).to_le_bytes()].concat());
    let rows = client.packets();
    assert_eq!(rows[3], [&[0, 0b100][..], &[0; 8]].concat(), "NULL and 0");
    for (text, code) in [
        ("SELECT ? FROM", 1064),
        ("SELEC ?", 1064),
        ("PING", 1064),
        ("", 1065),
        ("SELECT c FROM sbtest77 WHERE id = ?", 1146),
        ("SELECT SUM(k) FROM sbtest77 WHERE id = ?", 1146),
        (
            "INSERT INTO sbtest77 (id, k, c, pad) VALUES (?, ?, ?, ?)",
            1146,
        ),
        ("DELETE FROM sbtest77 WHERE id = ?", 1146),
    ] {
        client.command(0x16, text.as_bytes());
        assert_eq!(client.error().0, code, "{text}");
    }
}

#[test]
fn prepared_statements_end_when_they_are_closed_and_with_a_reset() {
    let mut client = Client::logged_in(TODAY);
    let (first, ..) = client.prepare("COMMIT");
    let (second, ..) = client.prepare("UPDATE sbtest1 SET c=? WHERE id=1");
    // A long value in two pieces; neither is answered.
    for piece in [b"ab", b"cd"] {
        let argument = [&second.to_le_bytes()[..], &[0, 0], piece].concat();
        client.command(0x18, &argument);
    }
    client.execute(second, &[0, 1, 0xfe, 0]);
    assert_eq!(client.ok().0, 1);
    client.query("SELECT c FROM sbtest1 WHERE id=1");
    assert!(client.packets().contains(&b"\x04abcd".to_vec()));
    client.command(0x19, &first.to_le_bytes());
    assert!(client.out.is_empty(), "a close has no answer");
    client.execute(first, &[]);
    assert_eq!(client.error().0, 1243);
    client.query("BEGIN");
    client.ok();
    client.command(0x1f, b"");
    assert_eq!(client.ok().2, 2, "no transaction any more");
    client.execute(second, &[0, 0]);
    assert_eq!(client.error().0, 1243);
}

#[test]
fn several_packets_in_one_piece_and_one_in_several_are_the_same() {
    let mut bytes = Vec::new();
    for statement in [
        "SELECT 1",
        "BEGIN",
        "SELECT c FROM sbtest1 WHERE id=9",
        "COMMIT",
    ] {
        put_packet(&mut bytes, &mut 0, |out| {
            out.push(3);
            out.extend_from_slice(statement.as_bytes());
        });
    }
    let mut client = Client::logged_in(TODAY);
    assert_eq!(client.feed(&bytes), (0, Flow::Continue));
    let expected = std::mem::take(&mut client.out);
    for size in [1, 3, 50] {
        let mut client = Client::logged_in(TODAY);
        let mut pending = Vec::new();
        for piece in bytes.chunks(size) {
            pending.extend_from_slice(piece);
            let (left, _) = client.feed(&pending);
            pending.drain(..pending.len() - left);
        }
        assert_eq!(client.out, expected, "in pieces of {size}");
    }
}

#[test]
fn packets_out_of_order_or_too_long_are_answered_and_end_the_connection() {
    for (header, code) in [
        ([1, 0, 0, 1], 1156),
        ([0, 0, 2, 0], 1153),
        ([255, 255, 255, 0], 1153),
    ] {
        let mut client = Client::logged_in(TODAY);
        assert_eq!(client.feed(&header), (0, Flow::Quit));
        client.sequence = header[3].wrapping_add(1);
        assert_eq!(client.error().0, code, "{header:?}");
    }
}

#[test]
fn a_farewell_is_taken_for_the_reply_to_the_next_command() {
    let client = Client::logged_in(TODAY);
    let mut out = Vec::new();
    client
        .connection
        .farewell(&mut out, 1927, "Connection was killed");
    assert_eq!(&out[3..7], [1, 0xff, 0x87, 0x07]);
    let mut client = Client::new(Users::default());
    client.packet();
    let mut out = Vec::new();
    client
        .connection
        .farewell(&mut out, 1159, "Got timeout during the login");
    assert_eq!(out[3], 2, "the client's answer was to be 1");
}

#[test]
fn a_reply_of_more_than_16_mib_is_several_packets() {
    let mut out = Vec::new();
    let mut kinds = Vec::new();
    let mut sequence = 1;
    let mut reply = reply::MysqlReply {
        out: &mut out,
        sequence: &mut sequence,
        style: reply::Style::default(),
        kinds: &mut kinds,
    };
    let long = vec![b'x'; packet::PART_MAX];
    crate::reply::Reply::row(&mut reply, &[crate::reply::Value::Text(&long)]).expect("a Vec");
    assert_eq!(sequence, 3);
    let Framed::Packet { payload, .. } = next_packet(&out, 1, usize::MAX) else {
        panic!("it is whole");
    };
    let mut reader = Reader::new(&payload);
    assert!(reader.lenenc_bytes() == Some(&long[..]) && reader.remainder().is_empty());
}
