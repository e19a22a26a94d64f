//! The servers, by hand: they are compared with each other, so they have to do the same, and those
//! that are written here have to do it as carefully as the library.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use study::cpu;
use study::load::{Clients, Endpoint, Load};
use study::options::ServerOptions;
use study::plan::{Protocol, Scheduler, Workload};
use study::server::Spec;

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(scheduler: Scheduler) -> Server {
        let spec = Spec {
            scheduler,
            protocol: Protocol::Text,
            endpoint: Endpoint::Tcp(([127, 0, 0, 1], 0).into()),
            rows: 100,
            options: ServerOptions::of_groups(1),
            disk: None,
            cpus: cpu::allowed().unwrap(),
        };
        let mut process = Command::new(env!("CARGO_BIN_EXE_study"))
            .args(spec.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim_end()
            .strip_prefix("LISTENING\t")
            .unwrap()
            .to_string();
        Server { process, address }
    }

    /// A greeted connection.
    fn connect(&self) -> BufReader<TcpStream> {
        let mut client = BufReader::new(TcpStream::connect(&self.address).unwrap());
        let greeting = line_of(&mut client);
        assert!(greeting.starts_with("READY\t"), "{greeting}");
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn line_of(client: &mut impl BufRead) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line
}

#[test]
fn statements_in_any_pieces_get_the_same_replies() {
    for scheduler in Scheduler::built() {
        let server = Server::start(scheduler);
        let mut client = server.connect();
        let input = b"PING\nECHO a\nSELECT c FROM sbtest1 WHERE id=7\nNONSENSE\nPING\n";
        for byte in input {
            client.get_mut().write_all(&[*byte]).unwrap();
        }
        let single: Vec<String> = (0..7).map(|_| line_of(&mut client)).collect();
        client.get_mut().write_all(input).unwrap();
        let together: Vec<String> = (0..7).map(|_| line_of(&mut client)).collect();
        assert_eq!(single, together, "{scheduler}");
        assert_eq!(
            (single[0].as_str(), single[6].as_str()),
            ("OK\n", "OK\n"),
            "{scheduler}"
        );
        assert!(single[5].starts_with("ERR\t"), "{scheduler}: {single:?}");
    }
}

#[test]
fn quit_and_a_line_without_end_close_after_their_reply() {
    for scheduler in Scheduler::built() {
        let server = Server::start(scheduler);
        let mut quitter = server.connect();
        quitter.get_mut().write_all(b"PING\nQUIT\n").unwrap();
        let mut rest = String::new();
        quitter.read_to_string(&mut rest).unwrap();
        assert!(rest.starts_with("OK\n"), "{scheduler}: {rest}");

        let mut endless = server.connect();
        // Exactly the limit: one byte more could be unread when the server closes, and reset the
        // reply.
        endless
            .get_mut()
            .write_all(&vec![b'x'; sqlish::LINE_MAX])
            .unwrap();
        assert!(line_of(&mut endless).starts_with("ERR\t"), "{scheduler}");
        assert_eq!(endless.read(&mut [0]).unwrap(), 0, "{scheduler}");
    }
}

/// Whoever sends statements and takes no replies fills both directions: the server's replies do not
/// fit, so it reads no more, so the statements do not fit either. From then on every reply is owed,
/// and all must come.
#[test]
fn a_client_that_does_not_read_loses_no_reply_and_stops_nobody_else() {
    const STATEMENT: &[u8] = b"SELECT c FROM sbtest1 WHERE id=1\n";
    for scheduler in Scheduler::built() {
        let server = Server::start(scheduler);
        let mut client = server.connect();
        let sent = send_until_full(client.get_ref(), STATEMENT);
        let whole = sent / STATEMENT.len();

        let mut other = server.connect();
        other.get_mut().write_all(b"PING\n").unwrap();
        assert_eq!(line_of(&mut other), "OK\n", "{scheduler}");

        for reply in 0..whole {
            assert!(
                line_of(&mut client).starts_with("ROW\t"),
                "{scheduler}: reply {reply} of {whole}"
            );
            assert!(
                line_of(&mut client).starts_with("OK"),
                "{scheduler}: reply {reply} of {whole}"
            );
        }
        // The conversation goes on where it stopped.
        client
            .get_mut()
            .write_all(&STATEMENT[sent % STATEMENT.len()..])
            .unwrap();
        assert!(line_of(&mut client).starts_with("ROW\t"), "{scheduler}");
    }
}

/// Sends statements until the socket has taken none for a while; how many bytes it took.
fn send_until_full(stream: &TcpStream, statement: &[u8]) -> usize {
    // A whole number of statements that no socket buffer takes at once.
    let batch = statement.repeat(1_000);
    let patience = Timespec {
        tv_sec: 0,
        tv_nsec: 200_000_000,
    };
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match (&*stream).write(&batch[sent % batch.len()..]) {
            Ok(n) => sent += n,
            Err(_) => {
                let mut writable = [PollFd::new(stream, PollFlags::OUT)];
                if poll(&mut writable, Some(&patience)).unwrap() == 0 {
                    break;
                }
            }
        }
        assert!(
            sent < 1 << 30,
            "the server takes statements and gets rid of no reply"
        );
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

/// With few rows, so that transactions meet: who loses a lock begins again, and nothing is an error.
#[test]
fn transactions_as_sysbench_sends_them_are_carried_by_every_server_that_can() {
    for scheduler in Scheduler::built() {
        let server = Server::start(scheduler);
        let endpoint = Endpoint::Tcp(server.address.parse().unwrap());
        for workload in [Workload::OltpRo, Workload::OltpRw] {
            if !scheduler.serves(workload) {
                continue;
            }
            let load = Load::new(endpoint.clone(), workload, 100, 8);
            let mut clients = Clients::connect(&load).unwrap();
            let took = clients.run_count(100, Duration::from_secs(60));
            assert!(took.is_ok(), "{workload} {scheduler}: {took:?}");
        }
        // Each statement of theirs does what it is to do: no row is gone.
        let mut client = server.connect();
        let count = b"SELECT COUNT(*) FROM sbtest1\n";
        client.get_mut().write_all(count).unwrap();
        assert_eq!(line_of(&mut client), "ROW\t100\n", "{scheduler}");
    }
}
