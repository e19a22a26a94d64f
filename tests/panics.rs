//! Promises about panics: whichever callback panics, one connection ends, it is counted, and the
//! worker goes on.

mod common;

use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::client::Client;
use common::{Harness, Options, Setup, everywhere, pair, patient_group, until};
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{
    CloseReason, Conn, Handler, Limits, Next, PoolConfig, ThreadPerConnectionConfig,
};

everywhere! {
    a_panic_in_open_ends_one_connection,
    a_panic_in_a_command_ends_one_connection,
    a_panic_in_woken_ends_one_connection,
    a_panic_in_a_reported_wait_ends_the_wait,
    a_panic_in_close_ends_there,
    a_panic_in_the_drop_of_a_session_ends_there,
    a_panic_in_farewell_ends_there,
    a_panic_in_refuse_ends_there,
    a_server_in_which_every_callback_panics_serves_on,
    pipelined_commands_behind_a_panic_are_not_run,
    a_handler_that_goes_with_its_last_connection_may_wait_and_panic,
}

/// One worker, so that it is the one that goes on. Under thread-per-connection the thread goes back
/// to its cache.
fn one_worker() -> Options {
    Options::pool(PoolConfig::default().groups(1))
}

/// Lets `cause` make something panic, with a witness who must not notice.
fn panics(setup: Setup, reason: &str, cause: impl Fn(&Harness)) {
    let server = setup.serve(one_worker());
    let mut witness = server.client();
    cause(&server);
    until("one connection has ended", || server.stats().closed == 1);
    assert_eq!(server.closed_as(reason), 1, "{:?}", server.stats());
    witness.ping();
    server.client().ping();
    assert_eq!(server.finish().panics, 1);
}

fn a_panic_in_open_ends_one_connection(setup: Setup) {
    panics(setup, "panicked", |server| {
        server.stage.open_panics.store(1, SeqCst);
        let mut client = Client::connect_only(&server.at);
        assert_eq!(
            client.rest(),
            "refused: the handler refused the connection\n"
        );
        assert_eq!(server.stage.sessions().opened, 1, "the witness's");
    });
}

fn a_panic_in_a_command_ends_one_connection(setup: Setup) {
    panics(setup, "panicked", |server| {
        let mut client = server.client();
        client.send("PANIC");
        assert_eq!(client.rest(), "farewell: the handler panicked\n");
        assert_eq!(server.stage.reasons(), [CloseReason::Panicked]);
    });
}

fn a_panic_in_woken_ends_one_connection(setup: Setup) {
    panics(setup, "panicked", |server| {
        let mut client = server.client();
        assert_eq!(client.ask("PANIC IN woken"), "will");
        client.send("AGAIN 1\nECHO never");
        assert_eq!(client.rest(), "farewell: the handler panicked\n");
    });
}

fn a_panic_in_a_reported_wait_ends_the_wait(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    for _ in 0..5 {
        let mut client = server.client();
        client.send("PANIC WAITING");
        assert_eq!(client.rest(), "farewell: the handler panicked\n");
    }
    // Were a wait still open, or a slot still taken, nobody would be served here.
    server.client().ping();
    if setup.is_pool() {
        until("no command runs or waits", || {
            let group = server.group();
            (group.active, group.waiting) == (0, 0)
        });
        assert_eq!(server.stats().threads_peak, server.stats().threads);
    }
    assert_eq!(server.finish().panics, 5);
}

fn a_panic_in_close_ends_there(setup: Setup) {
    panics(setup, "client_closed", |server| {
        let mut client = server.client();
        assert_eq!(client.ask("PANIC IN close"), "will");
    });
}

fn a_panic_in_the_drop_of_a_session_ends_there(setup: Setup) {
    panics(setup, "client_closed", |server| {
        let mut client = server.client();
        assert_eq!(client.ask("PANIC IN drop"), "will");
    });
}

fn a_panic_in_farewell_ends_there(setup: Setup) {
    panics(setup, "killed", |server| {
        let mut client = server.client();
        assert_eq!(client.ask("PANIC IN farewell"), "will");
        assert!(server.handle.kill(client.id));
        assert_eq!(client.rest(), "");
        until("its session is closed", || {
            server.stage.sessions().closed == 1
        });
    });
}

fn a_panic_in_refuse_ends_there(setup: Setup) {
    let options = Options {
        limits: Limits::default().max_connections(1),
        ..one_worker()
    };
    let server = setup.serve(options);
    server.stage.refuse_panics.store(true, SeqCst);
    let mut witness = server.client();
    assert_eq!(Client::connect_only(&server.at).rest(), "");
    witness.ping();
    drop(witness);
    server.until_all_closed();
    // The acceptor has gone on.
    server.client().ping();
    let stats = server.finish();
    assert_eq!((stats.panics, stats.refused), (1, 1));
}

fn a_server_in_which_every_callback_panics_serves_on(setup: Setup) {
    const ROUNDS: u64 = 20;
    let server = setup.serve(one_worker());
    for _ in 0..ROUNDS {
        server.stage.open_panics.store(1, SeqCst);
        Client::connect_only(&server.at).rest();
        let mut clients = server.clients(4);
        clients[0].send("PANIC");
        assert_eq!(clients[1].ask("PANIC IN close"), "will");
        assert_eq!(clients[2].ask("PANIC IN drop"), "will");
        assert_eq!(clients[3].ask("PANIC IN farewell"), "will");
        assert!(server.handle.kill(clients[3].id));
        clients[3].rest();
    }
    server.until_all_closed();
    server.client().ping();
    let stats = server.finish();
    assert_eq!(stats.panics, 5 * ROUNDS, "{stats:?}");
    // Nobody's panic has cost a thread: it takes no more of them than there are clients at a time.
    assert!(stats.threads_peak <= 16, "{stats:?}");
}

fn pipelined_commands_behind_a_panic_are_not_run(setup: Setup) {
    panics(setup, "panicked", |server| {
        let mut client = server.client();
        client.send("ECHO one\nPANIC\nECHO two");
        // The reply before it had been given.
        assert_eq!(client.rest(), "one\nfarewell: the handler panicked\n");
    });
}

/// A handler that nobody keeps but its connection.
struct Mayfly(Arc<AtomicU64>);

impl Handler for Mayfly {
    type Session = ();

    fn open(&self, conn: &mut Conn) -> io::Result<()> {
        conn.logged_in()
    }

    fn command(&self, (): &mut (), _: &mut Conn) -> io::Result<Next> {
        Ok(Next::close())
    }
}

impl Drop for Mayfly {
    fn drop(&mut self) {
        wait::during(WaitKind::Sync, || self.0.fetch_add(1, SeqCst));
        // Without a word, so that its thread is back soon.
        resume_unwind(Box::new("told to, in a destructor"));
    }
}

fn a_handler_that_goes_with_its_last_connection_may_wait_and_panic(setup: Setup) {
    const ROUNDS: u64 = 20;
    let server = setup.serve(Options {
        threads: ThreadPerConnectionConfig::default()
            .thread_cache(16)
            .max_threads(16),
        pool: PoolConfig::default().groups(1).oversubscribe(1),
        ..Options::default()
    });
    let mut witness = server.client();
    let ended = Arc::new(AtomicU64::new(0));
    for round in 1..=ROUNDS {
        let (theirs, mut ours) = pair();
        let mayfly = Arc::new(Mayfly(Arc::clone(&ended)));
        until("there is a thread for it", || {
            server.stats().connections == 1
        });
        server.handle.attach(theirs, mayfly).expect("there is room");
        ours.write_all(b"end").expect("it is sent");
        until("its handler has gone", || ended.load(SeqCst) == round);
        witness.ping();
    }
    until("nobody has a command", || {
        let groups = server.stats().groups;
        groups.iter().all(|group| group.active + group.waiting == 0)
    });
    server.finish();
}
