//! What clients of MySQL's protocol are promised, under both schedulers and over both transports.

mod common;

use std::time::Duration;

use sqlish::EngineConfig;
use thread_group_pool::Limits;

use common::mysql::{Mysql, code, login, packet};
use common::{PATIENCE, Site, Transport, everywhere, small};

fn under_all(test: impl Fn(&Site, Transport)) {
    everywhere(&Limits::default(), &small(), test);
}

/// That everybody else is served as if nothing had happened.
fn others_are_served(site: &Site, transport: Transport) {
    let mut other = Mysql::connect(site, transport);
    assert_eq!(other.ask("SELECT 1"), Ok(vec!["1".to_owned()]));
    let mut text = site.connect(transport);
    assert_eq!(text.ask("PING"), "OK");
}

#[test]
fn a_transaction_is_seen_by_clients_of_either_protocol_when_it_is_committed() {
    under_all(|site, transport| {
        let mut mysql = Mysql::connect(site, transport);
        let mut text = site.connect(transport);
        let before = text.value("SELECT k FROM sbtest1 WHERE id=1");
        assert_eq!(mysql.ask("BEGIN"), Ok(vec![]));
        assert_eq!(mysql.ask("UPDATE sbtest1 SET k=k+1 WHERE id=1"), Ok(vec![]));
        assert_eq!(text.value("SELECT k FROM sbtest1 WHERE id=1"), before);
        assert_eq!(mysql.ask("COMMIT"), Ok(vec![]));
        let after = text.value("SELECT k FROM sbtest1 WHERE id=1");
        assert_ne!(after, before);
        let k = "SELECT k FROM sbtest1 WHERE id=1";
        assert_eq!(mysql.ask(k), Ok(vec![after]));
        text.run(&["UPDATE sbtest1 SET k=k+1 WHERE id=1"]);
        assert_eq!(mysql.ask("SELECT nothing"), Err(1064));
        assert_eq!(mysql.ask(k), Ok(vec![text.value(k)]));
    });
}

#[test]
fn commands_are_answered_in_order_however_they_are_cut() {
    let commands: Vec<u8> = (0..50)
        .flat_map(|n| packet(0, format!("\x03SELECT {n}").as_bytes()))
        .collect();
    under_all(|site, transport| {
        for chunk in [commands.len(), 1000, 7, 1] {
            let mut client = Mysql::connect(site, transport);
            commands.chunks(chunk).for_each(|piece| client.send(piece));
            for n in 0..50 {
                assert_eq!(client.rows(), Ok(vec![n.to_string()]), "pieces of {chunk}");
            }
        }
    });
}

#[test]
fn waits_park_and_commits_are_answered_when_they_are_flushed() {
    let engine = EngineConfig {
        commit_delay: Duration::from_micros(100),
        ..small()
    };
    everywhere(&Limits::default(), &engine, |site, transport| {
        let mut holder = Mysql::connect(site, transport);
        let mut waiter = Mysql::connect(site, transport);
        let mut admin = Mysql::connect(site, transport);
        assert_eq!(
            holder.ask("UPDATE sbtest1 SET k=k+1 WHERE id=1"),
            Ok(vec![])
        );
        // The one before gives it up as soon as the server knows that it has gone.
        assert_eq!(
            holder.ask("SELECT GET_LOCK('x', 60)"),
            Ok(vec!["1".to_owned()])
        );
        waiter.query("SELECT GET_LOCK('x', 1000)");
        admin.ask_until("SHOW PROCESSLIST", "waiting for a named lock");
        assert_eq!(
            holder.ask("SELECT RELEASE_LOCK('x')"),
            Ok(vec!["1".to_owned()])
        );
        assert_eq!(waiter.rows(), Ok(vec!["1".to_owned()]));
    });
}

#[test]
fn whoever_is_killed_is_told_so_in_reply_to_its_next_command() {
    under_all(|site, transport| {
        let mut victim = Mysql::connect(site, transport);
        let id = victim.ask("SELECT CONNECTION_ID()").expect("a row")[0].clone();
        let mut admin = Mysql::connect(site, transport);
        assert_eq!(admin.ask(&format!("KILL {id}")), Ok(vec![]));
        let (sequence, error) = victim.packet();
        assert_eq!((sequence, code(&error)), (1, 1927));
        assert_eq!(admin.ask("KILL 4000000000"), Err(1094));
        // The command of its own, too.
        let mut victim = Mysql::connect(site, transport);
        let id = victim.ask("SELECT CONNECTION_ID()").expect("a row")[0].clone();
        let id: u32 = id.parse().expect("a number");
        admin.send(&packet(0, &[&[0x0c][..], &id.to_le_bytes()].concat()));
        assert_eq!(admin.rows(), Ok(vec![]));
        assert_eq!(code(&victim.packet().1), 1927);
    });
}

#[test]
fn one_session_too_many_is_told_so() {
    let limits = Limits::default().max_connections(2);
    everywhere(&limits, &small(), |site, transport| {
        let _one = Mysql::connect(site, transport);
        let _two = Mysql::connect(site, transport);
        let mut third = Mysql::call(site, transport);
        let (_, first) = third.packet();
        let error = if first[0] == 0xff {
            first
        } else {
            third.log_in();
            let (sequence, error) = third.packet();
            assert_eq!(sequence, 2);
            error
        };
        assert_eq!(code(&error), 1040);
        assert!(third.try_packet().is_none());
        drop((_one, _two));
        while site.server.handle().stats().connections > 0 {
            std::thread::yield_now();
        }
    });
}

// ---- broken clients ----

#[test]
fn bytes_that_are_no_login_get_an_error_and_a_close() {
    let whole = login();
    let mut wrong = vec![
        // A client that wants TLS, which was not offered; one of before 4.1; nothing; noise.
        packet(
            1,
            &[(whole[0]), whole[1] | 8, whole[2], whole[3], 0, 0, 0, 1, 45],
        ),
        packet(1, &[&[1, 0, 0, 0][..], &whole[4..]].concat()),
        packet(1, &[]),
        packet(1, &[255; 300]),
        // Out of order, and longer than any login.
        packet(0, &whole),
        vec![255, 255, 255, 1],
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
    ];
    wrong.extend(
        (0..whole.len() - 23)
            .step_by(7)
            .map(|cut| packet(1, &whole[..cut])),
    );
    under_all(|site, transport| {
        for bytes in &wrong {
            let mut client = Mysql::call(site, transport);
            client.packet();
            client.send(bytes);
            let error = client.try_packet();
            // A close with bytes unread is a reset over TCP, and may overtake the error.
            if let Some((_, error)) = error {
                assert!(
                    [1043, 1045, 1153, 1156].contains(&code(&error)),
                    "{bytes:?}"
                );
            }
            assert!(client.try_packet().is_none(), "{bytes:?}");
        }
        others_are_served(site, transport);
    });
}

#[test]
fn who_asks_for_tls_and_sends_noise_is_closed_and_holds_no_worker() {
    let ask = {
        let mut ask = login()[..32].to_vec();
        ask[1] |= 8;
        packet(1, &ask)
    };
    under_all(|site, transport| {
        for noise in [
            &b"GET / HTTP/1.0\r\n\r\n"[..],
            &[0; 100],
            &[22, 3, 1, 255, 255],
        ] {
            let mut client = Mysql::call_for_tls(site, transport);
            let (_, greeting) = client.packet();
            let version = greeting
                .iter()
                .position(|byte| *byte == 0)
                .expect("its end");
            assert_ne!(greeting[version + 1 + 4 + 9 + 1] & 8, 0, "it is offered");
            client.send(&[&ask, noise].concat());
            others_are_served(site, transport);
            client.end();
            assert!(client.is_closed());
        }
        // A login that says that it came by TLS, and did not.
        let mut client = Mysql::call_for_tls(site, transport);
        client.packet();
        let mut liar = login();
        liar[1] |= 8;
        client.send(&packet(1, &liar));
        assert_eq!(code(&client.packet().1), 1043);
        assert!(client.try_packet().is_none());
    });
}

#[test]
fn packets_that_make_no_sense_get_an_error_and_the_connection_goes_on() {
    under_all(|site, transport| {
        let mut client = Mysql::connect(site, transport);
        for (bytes, expected) in [
            (&b""[..], 1047),
            (b"\x03", 1065),
            (b"\x03SELECT '\xff\xfe'", 1300),
            (b"\x03\xc3", 1300),
            (b"\x16SELECT ?,", 1064),
            (b"\x17", 1835),
            (b"\x17\x01\0\0\0\0\x01\0\0\0", 1243),
            (b"\x1a\x01", 1243),
            (b"\x0c", 1835),
            (b"\x04t\0", 1047),
            (b"\x08", 1047),
            (b"\x11ann\0", 1047),
            (b"\x1c\x01\0\0\0\x01\0\0\0", 1047),
            (b"\xff\xff\xff", 1047),
        ] {
            client.send(&packet(0, bytes));
            assert_eq!(client.rows(), Err(expected), "{bytes:?}");
        }
        // A prepared statement whose values are cut off.
        client.send(&packet(
            0,
            b"\x16SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ?",
        ));
        let (_, prepared) = client.packet();
        let id: [u8; 4] = prepared[1..5].try_into().expect("an id");
        (0..3).for_each(|_| drop(client.packet()));
        let values = [0u8, 1, 3, 0, 0xfe, 0, 1, 0, 0, 0, 0xfe, 255, 255, 255];
        for cut in 0..=values.len() {
            let command = [&[0x17][..], &id, &[0, 1, 0, 0, 0], &values[..cut]].concat();
            client.send(&packet(0, &command));
            assert_eq!(client.rows(), Err(1835), "{cut}");
        }
        assert_eq!(client.ask("SELECT 1"), Ok(vec!["1".to_owned()]));
    });
}

#[test]
fn a_packet_with_a_wrong_number_or_a_giant_length_ends_the_connection() {
    under_all(|site, transport| {
        for (bytes, expected) in [
            (packet(7, b"\x03SELECT 1"), 1156),
            (vec![255, 255, 255, 0], 1153),
            (vec![0, 0, 0, 9], 1156),
        ] {
            let mut client = Mysql::connect(site, transport);
            client.send(&bytes);
            assert_eq!(code(&client.packet().1), expected);
            assert!(client.try_packet().is_none());
        }
        others_are_served(site, transport);
    });
}

#[test]
fn clients_that_stop_in_the_middle_hold_no_worker() {
    under_all(|site, transport| {
        // More of them than threads for statements, were they to hold one.
        let half: Vec<_> = (0..50)
            .map(|n| {
                let mut client = Mysql::connect(site, transport);
                let command = packet(0, b"\x03UPDATE sbtest1 SET k=k+1 WHERE id=123");
                client.send(&command[..1 + n % (command.len() - 1)]);
                client
            })
            .collect();
        let silent: Vec<_> = (0..50).map(|_| Mysql::call(site, transport)).collect();
        let before = Mysql::connect(site, transport).ask("SELECT SUM(k) FROM sbtest1");
        others_are_served(site, transport);
        drop((half, silent));
        while site.server.handle().stats().connections > 0 {
            std::thread::yield_now();
        }
        let after = Mysql::connect(site, transport).ask("SELECT SUM(k) FROM sbtest1");
        assert_eq!(before, after, "half a statement was executed");
    });
}

#[test]
fn half_a_packet_and_then_silence_is_ended_by_the_read_timeout() {
    let limits = Limits::default().read_timeout(Duration::from_millis(50));
    everywhere(&limits, &small(), |site, transport| {
        let mut client = Mysql::connect(site, transport);
        client.send(&packet(0, b"\x03SELECT 1")[..7]);
        let (sequence, error) = client.packet();
        assert_eq!((sequence, code(&error)), (1, 1159));
        assert!(client.try_packet().is_none());
    });
    assert!(PATIENCE > limits.read_timeout);
}
