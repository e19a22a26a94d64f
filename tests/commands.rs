//! Promises about commands: each is run once, in order, whatever pieces it arrives in.

mod common;

use std::time::Duration;

use common::{Options, Setup, everywhere, in_the_pool, patient_group, two_slots, until};
use thread_group_pool::Limits;

everywhere! {
    an_echo_comes_back,
    a_client_is_greeted_before_it_says_anything,
    pipelined_commands_are_answered_in_order,
    half_a_command_holds_no_thread_and_completes_later,
    a_command_may_arrive_byte_by_byte,
    a_handler_may_read_the_rest_of_a_command_by_itself,
    a_handler_that_reads_on_takes_from_what_is_buffered_first,
    a_command_that_runs_again_is_not_overtaken_by_its_own_input,
    a_rest_that_is_owed_may_be_a_command_later,
    a_command_as_long_as_the_limit_is_taken_and_a_longer_one_is_not,
    what_the_handler_asked_to_close_is_closed_after_its_last_reply,
    a_last_reply_is_not_overtaken_by_a_reset,
    a_last_reply_may_be_a_large_one,
    an_error_of_the_handler_closes_its_connection_only,
}

in_the_pool! {
    a_long_pipeline_shares_the_group_with_others,
    a_turn_of_many_short_commands_ends,
}

fn an_echo_comes_back(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("ECHO one"), "one");
    assert_eq!(client.ask("ECHO two"), "two");
    assert_eq!(client.ask("ID"), client.id.to_string());
    drop(client);
    server.until_closed_as("client_closed", 1);
    let stats = server.finish();
    // Three commands, and the end of input.
    assert_eq!(stats.commands, 4, "{stats:?}");
}

fn a_client_is_greeted_before_it_says_anything(setup: Setup) {
    let server = setup.serve(Options::default());
    let clients = server.clients(20);
    let mut ids: Vec<_> = clients.iter().map(|client| client.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 20, "each has an id of its own");
    server.finish();
}

fn pipelined_commands_are_answered_in_order(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    // More than a turn takes, and more than a buffer holds.
    let words: Vec<_> = (0..5000).map(|n| format!("word-{n}")).collect();
    let lines: Vec<_> = words.iter().map(|word| format!("ECHO {word}")).collect();
    client.send(&lines.join("\n"));
    for word in &words {
        assert_eq!(client.line(), *word);
    }
    server.finish();
}

/// Both of the group's threads are blocked while a long pipeline arrives for each, and one other
/// command. When they go on, the one command does not wait until a pipeline is through.
fn a_long_pipeline_shares_the_group_with_others(setup: Setup) {
    const LENGTH: usize = 20_000;
    let server = setup.serve(Options::pool(two_slots().max_threads(2)));
    let mut busy = server.clients(2);
    let mut other = server.client();
    for client in &mut busy {
        client.send("BLOCK gate");
        client.send(&["ECHO x"; LENGTH].join("\n"));
    }
    until("both threads are blocked", || {
        server.stage.running("BLOCK").now == 2
    });
    other.send("COUNT ECHO");
    server.stage.open("gate");
    let before: usize = other.line().parse().expect("a number");
    assert!(before < LENGTH / 2, "{before} commands came first");
    for client in &mut busy {
        assert_eq!(client.line(), "blocked");
        for _ in 0..LENGTH {
            assert_eq!(client.line(), "x");
        }
    }
    server.finish();
}

fn half_a_command_holds_no_thread_and_completes_later(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let mut halves = server.clients(20);
    for client in &mut halves {
        client.send_bytes(b"ECHO ha");
    }
    until("all halves have been seen", || {
        let all = server.handle.connections();
        all.iter()
            .filter(|info| info.state.name() == "reading")
            .count()
            == 20
    });
    if setup.is_pool() {
        let group = server.group();
        assert_eq!(
            (group.active, group.waiting, group.long),
            (0, 0, 0),
            "{group:?}"
        );
    }
    server.client().ping();
    for client in &mut halves {
        client.send_bytes(b"lf\n");
    }
    for client in &mut halves {
        assert_eq!(client.line(), "half");
    }
    server.finish();
}

fn a_command_may_arrive_byte_by_byte(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for byte in b"ECHO slowly\nECHO but surely\n" {
        client.send_bytes(&[*byte]);
    }
    assert_eq!(client.line(), "slowly");
    assert_eq!(client.line(), "but surely");
    server.finish();
}

fn a_handler_may_read_the_rest_of_a_command_by_itself(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let mut client = server.client();
    client.send_bytes(b"READ 6\nabc");
    until("the handler reads", || {
        server.stage.running("READ").now == 1
    });
    // The wait for the client is reported by the connection itself, so others are served.
    server.client().ping();
    client.send_bytes(b"def");
    assert_eq!(client.line(), "read abcdef");
    client.ping();
    server.finish();
}

fn a_handler_that_reads_on_takes_from_what_is_buffered_first(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send_bytes(b"READ 3\nabcECHO next\nREAD 3\nde");
    assert_eq!(client.line(), "read abc");
    assert_eq!(client.line(), "next");
    // What is queued leaves before a read that blocks: the client may be waiting for just that.
    client.send_bytes(b"fECHO last\n");
    assert_eq!(client.line(), "read def");
    assert_eq!(client.line(), "last");
    server.finish();
}

fn a_command_that_runs_again_is_not_overtaken_by_its_own_input(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("AGAIN 100\nECHO after\nAGAIN 3\nECHO end");
    assert_eq!(client.line(), "again 100");
    assert_eq!(client.line(), "after");
    assert_eq!(client.line(), "again 3");
    assert_eq!(client.line(), "end");
    server.finish();
}

fn a_rest_that_is_owed_may_be_a_command_later(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("OWE");
    until("the rest is owed", || {
        server.state(client.id) == Some("reading")
    });
    client.ping();
    client.send("OWE\nECHO at once");
    assert_eq!(client.line(), "at once");
    server.finish();
}

fn a_command_as_long_as_the_limit_is_taken_and_a_longer_one_is_not(setup: Setup) {
    const MAX: usize = 40_000;
    let server = setup.serve(Options::limits(Limits::default().max_input(MAX)));
    let mut client = server.client();
    let word = "x".repeat(MAX - "ECHO \n".len());
    assert!(client.ask(&format!("ECHO {word}")) == word);
    assert!(client.ask(&format!("ECHO {word}")) == word);
    client.send_bytes(&[b'x'; MAX + 1]);
    assert!(client.rest().contains("longer than max_input"));
    server.until_closed_as("input_too_long", 1);
    server.finish();
}

fn what_the_handler_asked_to_close_is_closed_after_its_last_reply(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("ECHO first\nCLOSE\nECHO never");
    assert_eq!(client.rest(), "first\nbye\n");
    server.until_closed_as("handler_closed", 1);
    assert_eq!(server.stage.running("ECHO").ever, 1);
    server.finish();
}

fn a_last_reply_may_be_a_large_one(setup: Setup) {
    const SIZE: usize = 10_000_000;
    for bound in [Limits::default().output_bound, 2 * SIZE] {
        let server = setup.serve(Options::limits(Limits::default().output_bound(bound)));
        let mut client = server.client();
        client.send(&format!("BIG {SIZE}\nCLOSE"));
        until("it does not fit", || {
            server.state(client.id) == Some("flushing") || !server.stats().waits.is_empty()
        });
        client.read_big(0, SIZE);
        assert_eq!(client.rest(), "\nbye\n");
        server.until_closed_as("handler_closed", 1);
        server.finish();
    }
}

/// Closing a socket that holds unread input is answered with a reset, which may overtake the reply.
fn a_last_reply_is_not_overtaken_by_a_reset(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("WAIT gate\nCLOSE");
    client.send_bytes(&[b'x'; 50_000]);
    server.stage.open("gate");
    assert_eq!(client.line(), "waited");
    assert_eq!(client.line(), "bye");
    let mut end = [0];
    assert_eq!(client.read_raw(&mut end).expect("no reset"), 0);
    server.until_closed_as("handler_closed", 1);
    server.finish();
}

fn an_error_of_the_handler_closes_its_connection_only(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut other = server.client();
    let mut client = server.client();
    client.send("ECHO first\nERR\nECHO never");
    let rest = client.rest();
    assert!(
        rest.starts_with("first\nfarewell: the handler failed"),
        "{rest:?}"
    );
    server.until_closed_as("handler", 1);
    other.ping();
    server.finish();
}

fn a_turn_of_many_short_commands_ends(setup: Setup) {
    let pool = patient_group()
        .turn_commands(10)
        .turn_time(Duration::from_secs(60));
    let server = setup.serve(Options::pool(pool));
    let mut client = server.client();
    client.send(&["ECHO x"; 1000].join("\n"));
    for _ in 0..1000 {
        assert_eq!(client.line(), "x");
    }
    let stats = server.finish();
    // 1,000 commands, at most ten in a turn; a turn may also end because no more had arrived.
    assert!(stats.groups[0].dequeues >= 100, "{stats:?}");
}
