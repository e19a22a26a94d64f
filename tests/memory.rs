//! Promises about memory: what clients can make the server hold, and what those hold who are silent.

mod common;

use std::sync::atomic::Ordering::SeqCst;

use common::{NEVER, Options, Setup, everywhere, until};
use thread_group_pool::Limits;

everywhere! {
    strangers_that_announce_much_hold_little,
    over_the_budget_the_largest_half_command_goes,
    a_half_command_that_grows_alone_goes_by_itself,
    what_was_needed_once_is_not_kept,
}

/// Much is announced, and not more is kept than somebody may send who has not logged in.
fn strangers_that_announce_much_hold_little(setup: Setup) {
    const STRANGERS: usize = 100;
    const MAX: usize = 64 * 1024;
    let server = setup.serve(Options::limits(Limits::default().login_timeout(NEVER)));
    server.stage.asks_for_login.store(true, SeqCst);
    let mut strangers = server.clients(STRANGERS);
    for client in &mut strangers {
        client.send_bytes(&[b'x'; 60_000]);
    }
    until("all of it has been read", || {
        let all = server.handle.connections();
        all.iter().all(|info| info.buffer_bytes >= 60_000)
    });
    for info in server.handle.connections() {
        assert!(info.buffer_bytes <= MAX + 16 * 1024, "{info:?}");
    }
    let held = server.stats().input_bytes;
    assert!(held <= STRANGERS * MAX, "{held}");
    for client in &mut strangers {
        client.try_to_send(&[b'x'; 10_000]);
    }
    server.until_closed_as("input_too_long", STRANGERS as u64);
    until("it is given back", || server.stats().input_bytes == 0);
    server.finish();
}

fn over_the_budget_the_largest_half_command_goes(setup: Setup) {
    const BUDGET: usize = 4 << 20;
    let limits = Limits::default().max_input(1 << 20).input_budget(BUDGET);
    let server = setup.serve(Options::limits(limits));
    let mut all = Vec::new();
    let mut half = |bytes: usize| {
        let before = server.stats().input_bytes;
        let mut client = server.client();
        client.send_bytes(b"ECHO ");
        client.send_bytes(&vec![b'x'; bytes]);
        until("it has been counted, or somebody has gone", || {
            let stats = server.stats();
            stats.input_bytes >= before + bytes || stats.closed > 0
        });
        all.push((client, bytes));
    };
    for _ in 0..20 {
        half(50_000);
    }
    half(900_000);
    while server.stats().closed == 0 {
        half(300_000);
    }
    server.until_closed_as("input_budget", 1);
    assert!(server.stats().input_bytes <= BUDGET);
    // The largest one, and it was told why.
    let (mut largest, _) = all.remove(20);
    let word = largest.rest();
    assert!(word.contains("input_budget"), "{word}");
    for (client, bytes) in &mut all {
        client.send("");
        assert_eq!(client.line().len(), *bytes);
    }
    until("it is given back", || server.stats().input_bytes == 0);
    server.finish();
}

/// Who sends without a pause has no turn that ends before it is too much.
fn a_half_command_that_grows_alone_goes_by_itself(setup: Setup) {
    let limits = Limits::default()
        .max_input(1 << 20)
        .input_budget((1 << 20) + (200 << 10));
    let server = setup.serve(Options::limits(limits));
    let mut small = server.client();
    small.send_bytes(b"ECHO ");
    small.send_bytes(&[b'x'; 250_000]);
    until("it has been counted", || {
        server.stats().input_bytes >= 250_000
    });
    let mut large = server.client();
    large.try_to_send(&[b'x'; 1_000_000]);
    server.until_closed_as("input_budget", 1);
    small.send("");
    assert_eq!(small.line().len(), 250_000);
    until("it is given back", || server.stats().input_bytes == 0);
    server.finish();
}

fn what_was_needed_once_is_not_kept(setup: Setup) {
    const ONCE: usize = 4_000_000;
    let server = setup.serve(Options::default());
    let mut client = server.client();
    let word = "x".repeat(ONCE);
    assert_eq!(client.ask(&format!("ECHO {word}")).len(), ONCE);
    until("it is at rest, without it", || {
        let seen = &server.handle.connections()[0];
        seen.state.name() == "idle" && seen.buffer_bytes <= 2 * 64 * 1024
    });
    if setup.is_pool() {
        until("it has none", || {
            server.handle.connections()[0].buffer_bytes == 0
        });
    }
    client.ping();
    server.finish();
}
