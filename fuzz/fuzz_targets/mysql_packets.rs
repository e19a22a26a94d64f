//! No bytes upset the MySQL side of `sqlish`: nothing panics, what is answered is packets in order, and
//! any chunking of the bytes gives the same answers as one chunk.
//!
//! The first byte of an input says whether the client has logged in, and in what pieces the rest, which
//! is what it sends, arrives. Run it by `cargo fuzz run -s none mysql_packets`, with
//! `fuzz/seeds/mysql_packets` to start from.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sqlish::{Admin, Engine, EngineConfig, Flow, MysqlConnection, MysqlStep, MysqlUsers};

/// Whoever waits or computes stops at once.
struct Hurry;

impl Admin for Hurry {
    fn cancelled(&self) -> bool {
        true
    }
}

/// An answer to the greeting, of a client of today without a password.
fn login() -> Vec<u8> {
    let mut answer = vec![0, 0, 0, 1];
    answer.extend((1u32 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 19 | 1 << 24).to_le_bytes());
    answer.extend([0, 0, 0, 1, 45]);
    answer.extend([0; 23]);
    answer.extend(b"ann\0\0mysql_native_password\0");
    answer[0] = answer.len() as u8 - 4;
    answer
}

/// Everything that the server says to a client that sends `bytes` in pieces of this size, without the
/// random part of the greeting.
fn converse(bytes: &[u8], piece: usize) -> Vec<u8> {
    let config = EngineConfig {
        rows: 20,
        ..EngineConfig::default()
    };
    let engine = Engine::new(config).expect("it needs no thread");
    let users = Arc::new(MysqlUsers::default());
    let mut connection =
        MysqlConnection::new(&engine, 7, users, 1 << 20).expect("there is randomness");
    let mut out = Vec::new();
    connection.offer_tls();
    connection.greet(&mut out);
    let greeting = out.len();
    let mut buffered = Vec::new();
    'pieces: for piece in bytes.chunks(piece) {
        buffered.extend_from_slice(piece);
        loop {
            match connection.step(&buffered, &mut out, &Hurry) {
                Ok(MysqlStep::Incomplete) => break,
                // What comes through TLS is plaintext again here.
                Ok(MysqlStep::Secure { consumed }) => {
                    assert!((1..=buffered.len()).contains(&consumed));
                    buffered.drain(..consumed);
                }
                Ok(MysqlStep::Taken { consumed, flow }) => {
                    assert!((1..=buffered.len()).contains(&consumed));
                    buffered.drain(..consumed);
                    match flow {
                        Flow::Continue => {}
                        Flow::Quit | Flow::Subscribe => break 'pieces,
                        Flow::Park => panic!("nobody parks here"),
                    }
                }
                Err(error) => panic!("a Vec takes everything: {error}"),
            }
        }
    }
    let mut last = Vec::new();
    connection.farewell(&mut last, 1053, "Server shutdown in progress");
    assert!(last.len() > 4);
    // Packet by packet, to the last byte.
    let mut at = 0;
    while at < out.len() {
        let header = out.get(at..at + 4).expect("a whole header");
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
        at += 4 + length;
    }
    assert_eq!(at, out.len(), "a packet that is cut");
    hide(&mut out, greeting);
    out
}

/// Blanks what is random: 8 and 12 bytes of the greeting, and the same in a request to log in otherwise.
fn hide(out: &mut [u8], greeting: usize) {
    let version = out[5..]
        .iter()
        .position(|byte| *byte == 0)
        .expect("its end");
    let first = 5 + version + 1 + 4;
    let second = greeting - b"\0mysql_native_password\0".len() - 12;
    let scramble = [&out[first..first + 8], &out[second..second + 12]].concat();
    out[first..first + 8].fill(0);
    out[second..second + 12].fill(0);
    if let Some(at) = out.windows(20).position(|window| window == scramble) {
        out[at..at + 20].fill(0);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, sent)) = data.split_first() else {
        return;
    };
    let bytes = if mode & 1 == 0 {
        [&login(), sent].concat()
    } else {
        sent.to_vec()
    };
    let whole = converse(&bytes, bytes.len().max(1));
    let cut = converse(&bytes, 1 + usize::from(mode >> 1));
    // A client that has been told to go is told when its bytes are looked at, whatever follows.
    assert_eq!(whole, cut);
});
