//! Promises about many connections: silent ones cost no thread, and all of them are served.

mod common;

use common::client::{Client, Socket};
use common::process::{allow_descriptors, alone, descriptors, threads};
use common::{Options, Setup, everywhere, in_the_pool, until};
use thread_group_pool::ThreadPerConnectionConfig;

in_the_pool! {
    thousands_of_idle_connections_are_served_by_few_threads,
}

everywhere! {
    a_crowd_that_speaks_at_once_is_answered,
}

/// Both ends of a connection are in this process.
fn crowd(setup: Setup, n: usize, then: impl FnOnce(Setup, usize)) {
    alone(setup.test, || {
        let needed = descriptors() + 2 * n + 100;
        if !allow_descriptors(needed as u64) {
            eprintln!("skipped: {needed} descriptors are not to be had");
            return;
        }
        then(setup, n);
    });
}

fn thousands_of_idle_connections_are_served_by_few_threads(setup: Setup) {
    crowd(setup, 2000, |setup, n| {
        let before = threads();
        let server = setup.serve(Options::default());
        let mut clients = server.clients(n);
        clients.iter_mut().for_each(Client::ping);
        clients.iter_mut().rev().for_each(Client::ping);
        let stats = server.stats();
        assert_eq!(stats.connections, n);
        // Two groups of a listener, 1 + 3 slots, and what a busy machine has made look long.
        assert!(stats.threads_peak <= 40, "{stats:?}");
        // Those of the pool, the acceptor, the monitor, the watch, who tells of events, and the one for
        // sockets that linger.
        assert!(threads() <= before + stats.threads_peak + 5);
        until("all are idle again", || {
            let groups = server.stats().groups;
            groups
                .iter()
                .all(|group| group.active == 0 && group.queued == 0)
        });
        // A third of them leave, and the others are still served.
        clients.drain(..n / 3);
        until("they have gone", || server.stats().connections == n - n / 3);
        clients.iter_mut().for_each(Client::ping);
        let stats = server.finish();
        assert_eq!(stats.opened, n as u64);
        for client in &mut clients {
            assert!(client.rest().starts_with("farewell"));
        }
    });
}

fn a_crowd_that_speaks_at_once_is_answered(setup: Setup) {
    let n = if setup.is_pool() { 1000 } else { 400 };
    crowd(setup, n, |setup, n| {
        let threads = ThreadPerConnectionConfig::default().stack_size(256 * 1024);
        let options = Options {
            threads,
            ..Options::default()
        };
        let server = setup.serve(options);
        // Nobody waits for a greeting before the next one connects.
        let sockets: Vec<_> = (0..n).map(|_| Socket::connect(&server.at)).collect();
        let mut clients: Vec<_> = sockets.into_iter().map(Client::over).collect();
        for round in 0..3 {
            for client in &mut clients {
                client.send(&format!("ECHO {round}"));
            }
            for client in &mut clients {
                assert_eq!(client.line(), round.to_string());
            }
        }
        let stats = server.finish();
        assert_eq!((stats.opened, stats.refused), (n as u64, 0), "{stats:?}");
    });
}
