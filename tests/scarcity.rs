//! Promises about a system that gives no more: no thread, no descriptor. Each in a process of its
//! own, whose limits it lowers. Nothing is lost, and when there is more again, all goes on.
#![cfg(unix)] // limits of the process are lowered, and Windows has none

mod common;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use common::client::{Client, Socket};
use common::process::{allow_threads, alone, descriptors, leave_address_space, limit};
use common::{AMPLE, Options, Setup, Transport, everywhere, in_the_pool, until};
use rustix::process::Resource;
use thread_group_pool::{ListenerState, LocalAddr, PoolConfig, ThreadPerConnectionConfig};

in_the_pool! {
    a_group_that_gets_no_thread_goes_on_with_those_that_it_has,
    a_connection_that_detaches_and_gets_no_thread_is_closed,
    the_last_words_of_those_that_got_no_thread_cost_the_group_nothing,
}

everywhere! {
    without_descriptors_clients_wait_until_there_are_some,
    without_descriptors_a_server_does_not_start,
    without_threads_a_server_does_not_start_or_refuses,
}

/// So much address space that no stack of a new thread fits in.
const STACK: usize = 1 << 30;

/// Forbids new threads: their stacks are larger than what is left of the address space. Everything
/// else has some room.
fn forbid_threads() {
    leave_address_space(STACK as u64 / 2);
}

/// One more thread would have been needed for each of the waits; the last to come has to wait, is
/// served when one of them is over, and all are served when threads can be had again.
fn a_group_that_gets_no_thread_goes_on_with_those_that_it_has(setup: Setup) {
    alone(setup.test, || {
        let pool = PoolConfig::default().groups(1).stack_size(STACK);
        let server = setup.serve(Options::pool(pool));
        let mut clients = server.clients(6);
        let mut other = server.client();
        clients[0].send("WAIT first");
        until("one waits", || server.stage.running("WAIT").now == 1);
        other.ping();
        forbid_threads();
        // A thread may be on its way still, or parked.
        for client in &mut clients[1..] {
            client.send("WAIT second");
        }
        until("a thread was refused", || server.stats().spawn_failures > 0);
        let waiting = server.stage.running("WAIT").now;
        assert!(waiting < 6, "{waiting}");
        other.send("ECHO in the end");
        server.stage.open("first");
        assert_eq!(clients[0].line(), "waited");
        if waiting > 1 {
            server.stage.open("second");
        } else {
            allow_threads();
            until("threads come again", || {
                server.stage.running("WAIT").now == 5
            });
            server.stage.open("second");
        }
        for client in &mut clients[1..] {
            assert_eq!(client.line(), "waited");
        }
        assert_eq!(other.line(), "in the end");
        allow_threads();
        // The limit of threads is what it was.
        for client in &mut clients {
            client.send("WAIT third");
        }
        until("all of them wait", || server.stage.running("WAIT").now == 6);
        other.ping();
        server.stage.open("third");
        for client in &mut clients {
            assert_eq!(client.line(), "waited");
        }
        server.finish();
    });
}

fn a_connection_that_detaches_and_gets_no_thread_is_closed(setup: Setup) {
    alone(setup.test, || {
        let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
        let mut other = server.client();
        let mut client = server.client();
        // Less than the stack of a detached connection's thread.
        leave_address_space(1 << 20);
        client.send("ECHO before\nDETACH gate");
        assert_eq!(
            client.rest(),
            "before\nfarewell: no thread is free for the detached connection\n"
        );
        allow_threads();
        server.until_closed_as("no_thread", 1);
        assert_eq!(server.stage.running("detached").ever, 0);
        assert!(server.stats().spawn_failures > 0);
        other.ping();
        assert_eq!(server.client().ask("DETACH READ"), "detached");
        server.finish();
    });
}

/// Who leaves has no command any more, on the worker that closes it: a wait there gives no slot up and
/// takes none.
fn the_last_words_of_those_that_got_no_thread_cost_the_group_nothing(setup: Setup) {
    const ROUNDS: u64 = 10;
    alone(setup.test, || {
        let pool = PoolConfig::default().groups(1).oversubscribe(1);
        let server = setup.serve(Options::pool(pool));
        server.stage.end_reports.store(true, SeqCst);
        let mut other = server.client();
        for _ in 0..ROUNDS {
            let mut client = server.client();
            leave_address_space(1 << 20);
            client.send("DETACH gate");
            assert!(client.rest().starts_with("farewell: no thread"));
            allow_threads();
            other.ping();
        }
        server.until_closed_as("no_thread", ROUNDS);
        // Its worker settles after it has closed it.
        until("no slot is taken", || {
            let group = server.group();
            (group.active, group.waiting) == (0, 0)
        });
        other.ping();
        server.finish();
    });
}

fn without_threads_a_server_does_not_start_or_refuses(setup: Setup) {
    alone(setup.test, || {
        let options = || Options {
            pool: PoolConfig::default().groups(2).stack_size(STACK),
            threads: ThreadPerConnectionConfig::default().stack_size(STACK),
            ..Options::default()
        };
        if setup.is_pool() {
            forbid_threads();
            let before = descriptors();
            let built = setup.build(options(), &Arc::default());
            let error = built.expect_err("it has no thread").to_string();
            assert!(error.contains("a thread"), "{error}");
            assert_eq!(descriptors(), before, "nothing is left open");
            allow_threads();
        }
        let server = setup.serve(options());
        let mut client = server.client();
        if !setup.is_pool() {
            forbid_threads();
            for n in 1..=3 {
                assert_eq!(
                    Client::connect_only(&server.at).rest(),
                    "refused: no thread is free to serve the connection\n"
                );
                let stats = server.stats();
                assert_eq!((stats.refused, stats.spawn_failures), (n, n), "{stats:?}");
                client.ping();
            }
            allow_threads();
            server.client().ping();
        }
        client.ping();
        server.finish();
    });
}

/// The clients' sockets exist before the last number is taken, and connecting needs none; accepting
/// does.
fn without_descriptors_clients_wait_until_there_are_some(setup: Setup) {
    alone(setup.test, || {
        let server = setup.serve(Options::default());
        let mut client = server.client();
        let sockets: Vec<_> = (0..5).map(|_| unconnected(setup)).collect();
        limit(Resource::Nofile, Some(descriptors() as u64 + 20));
        let mut fill = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            fill.push(file);
        }
        let begun = Instant::now();
        for socket in &sockets {
            socket.connect(&address(&server.at)).expect("it listens");
        }
        until("the acceptor has found out, several times", || {
            server.stats().accept_errors > 7
        });
        for _ in 0..100 {
            client.ping();
        }
        assert_eq!(server.stats().connections, 1);
        let info = server.handle.listeners().remove(0);
        assert!(info.shortages > 0 && info.last_error.is_some(), "{info:?}");
        // It rests: it has not tried again and again.
        let passed = begun.elapsed().as_millis() as u64;
        assert!(
            info.shortages <= 10 + passed / 20,
            "{info:?} in {passed} ms"
        );
        // Some of them get in as soon as there is room for them, and the others when there is more.
        drop(fill.split_off(fill.len() - 2));
        until("there is room for two", || server.stats().connections == 3);
        drop(fill);
        for socket in sockets {
            let socket = match setup.transport {
                Transport::Tcp => Socket::Tcp(socket.into()),
                Transport::Unix => Socket::Unix(socket.into()),
            };
            Client::over(socket).ping();
        }
        server.client().ping();
        let info = server.handle.listeners().remove(0);
        assert_eq!((info.state, info.accepted), (ListenerState::Accepting, 7));
        assert_eq!(server.finish().refused, 0);
    });
}

/// At each descriptor that a start needs.
fn without_descriptors_a_server_does_not_start(setup: Setup) {
    alone(setup.test, || {
        setup.serve(Options::default()).finish();
        let before = descriptors();
        let mut refused = 0;
        // Only what is opened now is limited.
        for files in 3.. {
            limit(Resource::Nofile, Some(files));
            let built = setup.build(Options::default(), &Arc::default());
            limit(Resource::Nofile, Some(before as u64 + 100));
            match built {
                Ok(server) => {
                    let at = server.local_addrs()[0].clone();
                    Client::connect(&at).ping();
                    assert!(server.drain(AMPLE).clean());
                    break;
                }
                Err(error) => {
                    assert!(error.to_string().contains("os error 24"), "{error}");
                    refused += 1;
                }
            }
            assert_eq!(descriptors(), before, "nothing is left open");
        }
        assert!(refused > 1, "{refused}");
    });
}

fn unconnected(setup: Setup) -> socket2::Socket {
    let domain = match setup.transport {
        Transport::Tcp => socket2::Domain::IPV4,
        Transport::Unix => socket2::Domain::UNIX,
    };
    socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket")
}

fn address(at: &LocalAddr) -> socket2::SockAddr {
    match at {
        LocalAddr::Tcp(at) => (*at).into(),
        LocalAddr::Unix(at) => socket2::SockAddr::unix(at).expect("it is short"),
        at => unreachable!("another kind of address: {at}"),
    }
}
