//! Promises about clients that leave: at whatever moment and in whatever way, the connection ends,
//! its session is closed, and nobody else notices.

mod common;

use std::io::ErrorKind;
use std::sync::atomic::Ordering::SeqCst;

use common::client::Client;
use common::{Harness, Options, Setup, everywhere, until};
use thread_group_pool::{CloseReason, Limits, Stats};

everywhere! {
    a_client_may_leave_before_it_is_greeted,
    a_client_may_leave_right_after_connecting,
    a_client_may_leave_while_it_is_idle,
    a_client_may_leave_in_the_middle_of_a_command,
    a_client_may_leave_while_its_command_runs,
    a_client_may_leave_while_its_command_reads,
    a_client_may_leave_in_the_middle_of_a_reply,
    a_client_may_leave_in_the_middle_of_a_reply_that_the_handler_waits_to_write,
    a_client_that_sends_no_more_gets_what_it_asked_for,
    a_client_that_sends_no_more_gets_all_of_a_large_reply,
    half_a_command_before_the_end_is_dropped,
    the_end_may_come_while_a_command_runs,
    a_handler_that_reads_sees_the_end,
}

/// In which way a client leaves.
type Leave = fn(Client);

/// Closing, and resetting.
const WAYS: [Leave; 2] = [drop::<Client>, Client::reset];

/// Runs `stage` for each way of leaving, and checks what is left of it.
fn each_way(setup: Setup, options: fn() -> Options, stage: impl Fn(&Harness, Leave)) {
    for leave in WAYS {
        let server = setup.serve(options());
        let mut witness = server.client();
        stage(&server, leave);
        until("the client's connection has ended", || {
            server.stats().connections == 1
        });
        witness.ping();
        assert_eq!(server.closed_as("client_closed"), 1, "{:?}", server.stats());
        assert_eq!(server.stage.reasons(), [CloseReason::ClientClosed]);
        server.finish();
    }
}

fn a_client_may_leave_before_it_is_greeted(setup: Setup) {
    each_way(setup, Options::default, |server, leave| {
        server.stage.open_waits.store(true, SeqCst);
        let client = Client::connect_only(&server.at);
        until("it is being opened", || {
            server.stage.running("open").now == 1
        });
        leave(client);
        server.stage.open("open");
    });
}

fn a_client_may_leave_right_after_connecting(setup: Setup) {
    let server = setup.serve(Options::default());
    for n in 0..100 {
        WAYS[n % 2](Client::connect_only(&server.at));
    }
    server.client().ping();
    // Windows takes one that was reset in the backlog out of it, and the last one has come behind them all.
    let all_came = |stats: &Stats| cfg!(windows) || stats.closed == 101;
    until("all have come and gone", || {
        let stats = server.stats();
        all_came(&stats) && stats.opened == stats.closed
    });
    server.finish();
}

fn a_client_may_leave_while_it_is_idle(setup: Setup) {
    each_way(setup, Options::default, |server, leave| {
        let mut client = server.client();
        client.ping();
        until("it is idle", || server.state(client.id) == Some("idle"));
        leave(client);
    });
}

fn a_client_may_leave_in_the_middle_of_a_command(setup: Setup) {
    each_way(setup, Options::default, |server, leave| {
        let mut client = server.client();
        client.send_bytes(b"ECHO ha");
        until("its half is there", || {
            server.state(client.id) == Some("reading")
        });
        leave(client);
    });
}

fn a_client_may_leave_while_its_command_runs(setup: Setup) {
    each_way(setup, Options::default, |server, leave| {
        let mut client = server.client();
        client.send("WAIT gate");
        until("it waits", || server.stage.running("WAIT").now == 1);
        leave(client);
        server.stage.open("gate");
    });
}

/// The handler's own read meets the end, or the reset, as that of a std stream would; what comes of
/// it is the handler's error.
fn a_client_may_leave_while_its_command_reads(setup: Setup) {
    for leave in WAYS {
        let server = setup.serve(Options::default());
        let mut client = server.client();
        client.send("READ 10\nabc");
        until("it reads", || server.stage.running("READ").now == 1);
        leave(client);
        server.until_all_closed();
        server.client().ping();
        let why = server.stage.reasons()[0];
        let end = CloseReason::Handler(ErrorKind::UnexpectedEof);
        assert!([CloseReason::ClientClosed, end].contains(&why), "{why}");
        server.finish();
    }
}

fn a_client_may_leave_in_the_middle_of_a_reply(setup: Setup) {
    let options = || Options::limits(Limits::default().output_bound(64 << 20));
    each_way(setup, options, |server, leave| {
        let mut client = server.client();
        client.send("BIG 50000000");
        client.read_big(0, 100_000);
        until("the rest waits for it", || {
            server.state(client.id) == Some("flushing")
        });
        leave(client);
    });
}

fn a_client_may_leave_in_the_middle_of_a_reply_that_the_handler_waits_to_write(setup: Setup) {
    each_way(setup, Options::default, |server, leave| {
        let mut client = server.client();
        client.send("BIG 50000000");
        client.read_big(0, 100_000);
        until("the handler waits", || {
            server.stats().waits.iter().any(|wait| wait.count > 0)
        });
        assert_eq!(server.stage.running("BIG").now, 1);
        leave(client);
    });
}

fn a_client_that_sends_no_more_gets_what_it_asked_for(setup: Setup) {
    let server = setup.serve(Options::default());
    for n in 0..50 {
        let mut client = server.client();
        client.send(&["ECHO reply"; 100].join("\n"));
        client.half_close();
        assert_eq!(client.rest(), "reply\n".repeat(100), "client {n}");
    }
    server.until_closed_as("client_closed", 50);
    server.finish();
}

fn a_client_that_sends_no_more_gets_all_of_a_large_reply(setup: Setup) {
    const SIZE: usize = 10_000_000;
    let bounds = [Limits::default(), Limits::default().output_bound(64 << 20)];
    for limits in bounds {
        let server = setup.serve(Options::limits(limits));
        let mut client = server.client();
        client.send(&format!("BIG {SIZE}"));
        client.half_close();
        client.read_big(0, SIZE);
        assert_eq!(client.rest(), "\n");
        server.until_closed_as("client_closed", 1);
        server.finish();
    }
}

fn half_a_command_before_the_end_is_dropped(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send_bytes(b"ECHO whole\nECHO ha");
    client.half_close();
    assert_eq!(client.rest(), "whole\n");
    server.until_closed_as("client_closed", 1);
    server.finish();
}

fn the_end_may_come_while_a_command_runs(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("WAIT gate");
    until("it waits", || server.stage.running("WAIT").now == 1);
    client.send("ECHO more");
    client.half_close();
    server.stage.open("gate");
    assert_eq!(client.rest(), "waited\nmore\n");
    server.until_closed_as("client_closed", 1);
    server.finish();
}

fn a_handler_that_reads_sees_the_end(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send_bytes(b"READ 10\nabc");
    until("it reads", || server.stage.running("READ").now == 1);
    client.half_close();
    let rest = client.rest();
    assert!(
        rest.starts_with("farewell: the handler failed: unexpected end"),
        "{rest:?}"
    );
    server.until_closed_as("handler", 1);
    server.finish();
}
