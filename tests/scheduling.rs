//! Promises about who runs when: waits that are reported and waits that are not, long commands and
//! short ones, and the bounds on both.
//!
//! Where time opens slots, tests count what has run and do not look at the clock: each waits for
//! something that can only come if the promise is kept.

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::client::Client;
use common::{NEVER, Options, Setup, everywhere, in_the_pool, patient_group, two_slots, until};
use thread_group_pool::{Limits, PoolConfig, ThreadPerConnectionConfig};

in_the_pool! {
    a_reported_wait_opens_the_gate_at_once,
    a_nested_wait_is_one_wait,
    who_comes_back_from_a_wait_is_not_held_up,
    a_command_that_blocks_untold_does_not_stop_its_group,
    a_command_that_computes_does_not_stop_its_group,
    a_group_that_is_stopped_does_not_stop_another,
    oversubscription_holds,
    long_commands_of_known_sessions_leave_room_for_short_ones,
    a_session_that_is_known_for_long_commands_is_not_kept_out_for_ever,
    a_command_that_says_that_it_is_long_gives_its_slot_at_once,
    short_commands_do_not_wait_behind_long_ones,
    the_cap_on_threads_holds_and_whoever_waited_is_served,
    #[cfg_attr(windows, ignore = "Wine loses a poll's answer when the thread that asked ends; see the README")]
    threads_that_are_not_needed_leave_but_for_the_last,
    every_lane_is_seen_in_the_queues,
    one_that_holds_something_and_goes_on_and_on_starves_nobody,
    one_that_logs_in_and_goes_on_and_on_starves_nobody,
}

everywhere! {
    commands_that_wait_for_one_another_come_to_an_end,
}

fn a_reported_wait_opens_the_gate_at_once(setup: Setup) {
    // A minute would pass here before time opened anything.
    let server = setup.serve(Options::pool(patient_group()));
    let mut waiters = server.clients(10);
    let mut other = server.client();
    for client in &mut waiters {
        client.send("WAIT gate");
    }
    until("all of them wait", || {
        server.stage.running("WAIT").now == 10
    });
    for _ in 0..100 {
        other.ping();
    }
    assert_eq!(server.group().waiting, 10);
    server.stage.open("gate");
    for client in &mut waiters {
        assert_eq!(client.line(), "waited");
    }
    let stats = server.finish();
    let group = &stats.groups[0];
    assert_eq!(group.stalls, 0, "{group:?}");
    assert_eq!(group.creations_due_to_stall, 0, "{group:?}");
    let waits: u64 = stats.waits.iter().map(|wait| wait.count).sum();
    assert_eq!(waits, 10, "{:?}", stats.waits);
}

fn a_nested_wait_is_one_wait(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let mut client = server.client();
    client.send("NEST gate");
    until("it waits", || server.stage.running("NEST").now == 1);
    server.client().ping();
    assert_eq!(server.group().waiting, 1);
    server.stage.open("gate");
    assert_eq!(client.line(), "nested");
    // Were the inner end taken for the outer one, or the outer one missed, a slot would be gone or
    // open for ever.
    until("it is over", || {
        let group = server.group();
        (group.active, group.waiting) == (0, 0)
    });
    server.finish();
}

fn who_comes_back_from_a_wait_is_not_held_up(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let mut waiter = server.client();
    let mut blocker = server.client();
    waiter.send("WAIT first");
    until("one waits", || server.stage.running("WAIT").now == 1);
    blocker.send("BLOCK second");
    until("one blocks", || server.stage.running("BLOCK").now == 1);
    // The only slot is taken; the one that waited may hold what others want, and goes on.
    server.stage.open("first");
    assert_eq!(waiter.line(), "waited");
    server.stage.open("second");
    assert_eq!(blocker.line(), "blocked");
    server.finish();
}

fn a_command_that_blocks_untold_does_not_stop_its_group(setup: Setup) {
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    let mut other = server.client();
    let mut blockers = server.clients(10);
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("all block", || server.stage.running("BLOCK").now == 10);
    for _ in 0..100 {
        other.ping();
    }
    server.stage.open("gate");
    for client in &mut blockers {
        assert_eq!(client.line(), "blocked");
    }
    server.finish();
}

fn a_command_that_computes_does_not_stop_its_group(setup: Setup) {
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    let mut other = server.client();
    let mut burners = server.clients(6);
    for client in &mut burners {
        client.send("SPIN gate");
    }
    until("all compute", || server.stage.running("SPIN").now == 6);
    for _ in 0..20 {
        other.ping();
    }
    server.stage.open("gate");
    for client in &mut burners {
        assert_eq!(client.line(), "spun");
    }
    let stats = server.finish();
    assert!(stats.groups[0].stalls > 0, "{stats:?}");
}

fn a_group_that_is_stopped_does_not_stop_another(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group().groups(2)));
    let mut clients = server.clients(2);
    clients[0].send("BLOCK gate");
    until("one group is stopped", || {
        server.stage.running("BLOCK").now == 1
    });
    for _ in 0..100 {
        clients[1].ping();
    }
    server.stage.open("gate");
    assert_eq!(clients[0].line(), "blocked");
    server.finish();
}

fn oversubscription_holds(setup: Setup) {
    // Two slots; time opens the second one and marks nothing as long.
    let server = setup.serve(Options::pool(two_slots()));
    let mut clients = server.clients(10);
    for client in &mut clients {
        client.send("BLOCK gate");
    }
    until("both slots are taken, and all others queue", || {
        server.stage.running("BLOCK").now == 2 && server.group().queued == 8
    });
    assert!(server.group().stalled);
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.line(), "blocked");
        client.send("BURN 2\nBURN 2\nBURN 2\nBURN 2");
    }
    for client in &mut clients {
        for _ in 0..4 {
            assert_eq!(client.line(), "burnt");
        }
    }
    assert_eq!(server.stage.running("BLOCK").most, 2);
    assert!(server.stage.running("BURN").most <= 2);
    server.finish();
}

/// A session whose last command was long is not given a slot while `oversubscribe` long commands
/// run. What has been given a slot and has not turned out to be long yet comes on top: that is at
/// most a group's slots, so `2 * oversubscribe` in all.
fn long_commands_of_known_sessions_leave_room_for_short_ones(setup: Setup) {
    const OVERSUBSCRIBE: usize = 2;
    // Only what says so is long, lest a busy machine makes a ping so; and age promotes nobody.
    let pool = PoolConfig::default()
        .groups(1)
        .oversubscribe(OVERSUBSCRIBE)
        .stall_limit(Duration::from_secs(60))
        .kickup(NEVER);
    let server = setup.serve(Options::pool(pool));
    let mut other = server.client();
    let mut long = server.clients(8);
    server.stage.open("known");
    for client in &mut long {
        assert_eq!(client.ask("LONG known"), "spun");
        client.send("LONG gate");
    }
    until("some run, and the others queue", || {
        let (group, running) = (server.group(), server.stage.running("LONG").now);
        group.long >= OVERSUBSCRIBE && running + group.queued == 8
    });
    for _ in 0..50 {
        other.ping();
    }
    let running = server.stage.running("LONG").now;
    assert!(
        (OVERSUBSCRIBE..=2 * OVERSUBSCRIBE).contains(&running),
        "{running} of 8 run"
    );
    server.stage.open("gate");
    for client in &mut long {
        assert_eq!(client.line(), "spun");
    }
    server.finish();
}

/// The story: a session's command had taken long, or the machine had been busy for 10 ms. Then others
/// came to wait for what the session held, without telling: long commands, up to the bound. The
/// session's next command, which would have released it, waited for one of them to end.
fn a_session_that_is_known_for_long_commands_is_not_kept_out_for_ever(setup: Setup) {
    let pool = PoolConfig::default()
        .groups(1)
        .oversubscribe(1)
        .kickup(Duration::from_millis(20));
    let server = setup.serve(Options::pool(pool));
    let mut holder = server.client();
    server.stage.open("known");
    assert_eq!(holder.ask("LONG known"), "spun");
    let mut others = server.clients(3);
    for client in &mut others {
        client.send("SPIN gate");
    }
    until("they are at the bound", || server.group().long >= 1);
    assert_eq!(holder.ask("OPEN gate"), "open");
    for client in &mut others {
        assert_eq!(client.line(), "spun");
    }
    server.finish();
}

fn a_command_that_says_that_it_is_long_gives_its_slot_at_once(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let mut other = server.client();
    let mut long = server.client();
    long.send("LONG gate");
    until("it runs", || server.group().long == 1);
    for _ in 0..20 {
        other.ping();
    }
    server.stage.open("gate");
    assert_eq!(long.line(), "spun");
    server.finish();
}

/// Clients whose commands compute, back to back, and one whose commands do nothing. A long command
/// ends only after some more of the short ones have been run, so a short one that had to wait for a
/// long one would wait for ever.
fn short_commands_do_not_wait_behind_long_ones(setup: Setup) {
    const PINGS: usize = 50;
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    let mut light = server.client();
    let mut heavy = server.clients(4);
    for client in &mut heavy {
        for n in 1..=10 {
            client.send(&format!("SPINTO {}", n * PINGS / 10));
        }
    }
    until("long commands run", || {
        server.stage.running("SPINTO").now > 0
    });
    for _ in 0..PINGS {
        light.ping();
    }
    for client in &mut heavy {
        for _ in 0..10 {
            assert_eq!(client.line(), "spun");
        }
    }
    server.finish();
}

fn the_cap_on_threads_holds_and_whoever_waited_is_served(setup: Setup) {
    const CAP: usize = 6;
    let pool = PoolConfig::default().groups(2).max_threads(CAP);
    let server = setup.serve(Options::pool(pool));
    let mut clients = server.clients(30);
    for (round, command) in ["WAIT", "BLOCK", "WAIT"].into_iter().enumerate() {
        for client in &mut clients {
            client.send(&format!("{command} {round}"));
        }
        until("every thread is taken", || {
            server.stage.running(command).now == CAP
        });
        server.stage.open(&round.to_string());
        for client in &mut clients {
            assert!(["waited", "blocked"].contains(&client.line().as_str()));
        }
    }
    let stats = server.finish();
    assert_eq!(stats.threads_peak, CAP, "{stats:?}");
    let throttles: u64 = stats.groups.iter().map(|group| group.throttles).sum();
    assert!(throttles > 0, "{stats:?}");
}

fn threads_that_are_not_needed_leave_but_for_the_last(setup: Setup) {
    let pool = PoolConfig::default()
        .groups(2)
        .idle_timeout(Duration::from_millis(10));
    let server = setup.serve(Options::pool(pool));
    let mut clients = server.clients(20);
    for client in &mut clients {
        client.send("WAIT gate");
    }
    until("all wait", || server.stage.running("WAIT").now == 20);
    assert!(server.stats().threads >= 20);
    server.stage.open("gate");
    until("one thread is left of each group", || {
        let groups = server.stats().groups;
        groups
            .iter()
            .all(|group| group.threads == 1 && group.has_listener)
    });
    for client in &mut clients {
        assert_eq!(client.line(), "waited");
        client.ping();
    }
    server.finish();
}

/// Each command opens the gate of the one before it: they need one another's threads, down to the
/// last one.
fn commands_that_wait_for_one_another_come_to_an_end(setup: Setup) {
    let threads = ThreadPerConnectionConfig::default();
    let pool = PoolConfig::default().groups(2);
    let options = Options {
        pool,
        threads,
        ..Options::default()
    };
    let server = setup.serve(options);
    let mut clients = server.clients(50);
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&format!("WAIT {}", n + 1));
    }
    let mut last = server.client();
    assert_eq!(last.ask("OPEN 50"), "open");
    for n in (0..50).rev() {
        assert_eq!(clients[n].line(), "waited");
        assert_eq!(clients[n].ask(&format!("OPEN {n}")), "open");
    }
    clients.iter_mut().for_each(Client::ping);
    server.finish();
}

/// Whose word counts: the next turn's, then the session's, then the transaction's. For one turn only.
fn every_lane_is_seen_in_the_queues(setup: Setup) {
    const CASES: [(&[&str], &str); 9] = [
        (&["HOLD true", "PRIORITY Low"], "holding"),
        (&["TURN High"], "high"),
        (&["PRIORITY Low", "TURN High"], "high"),
        (&["TRANSACTION true"], "high"),
        (&["PRIORITY High"], "high"),
        (&["PRIORITY High", "TURN Low"], "low"),
        (&["TRANSACTION true", "PRIORITY Low"], "low"),
        (&["TURN High", "ECHO once"], "low"),
        (&["LONG known"], "long"),
    ];
    let server = setup.serve(Options::pool(two_slots().kickup(NEVER)));
    server.stage.open("known");
    let mut blockers = server.clients(2);
    let mut clients = server.clients(CASES.len());
    for (client, (commands, _)) in clients.iter_mut().zip(CASES) {
        for command in commands {
            client.ask(command);
        }
    }
    for client in &mut blockers {
        client.send("BLOCK gate");
    }
    until("both slots are taken", || {
        server.stage.running("BLOCK").now == 2
    });
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&format!("ECHO {n}"));
        until("it queues", || server.handle.queues().len() == n + 1);
    }
    let mut places = std::collections::BTreeMap::new();
    let queues = server.handle.queues();
    for (client, (commands, lane)) in clients.iter().zip(CASES) {
        let entry = queues.iter().find(|entry| entry.id == Some(client.id));
        let entry = entry.expect("it queues");
        assert_eq!(entry.lane, lane, "{commands:?}");
        // They came in the order of the table.
        let place: &mut usize = places.entry(lane).or_default();
        assert_eq!(entry.position, *place, "{commands:?}");
        *place += 1;
    }
    let order: Vec<_> = queues.iter().map(|entry| entry.lane).collect();
    assert!(order.is_sorted_by_key(|lane| {
        ["holding", "high", "low", "long"]
            .iter()
            .position(|l| l == lane)
    }));
    server.stage.open("gate");
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.line(), n.to_string());
    }
    assert!(server.handle.queues().is_empty());
    server.finish();
}

/// One that is queued again as soon as it has had its turn, in a lane that always goes first, beside others
/// that are to be served.
fn goes_on_and_on(setup: Setup, first: &str) {
    let options = Options {
        pool: PoolConfig::default()
            .groups(1)
            .kickup(Duration::from_millis(10)),
        limits: Limits::default().login_timeout(NEVER),
        ..Options::default()
    };
    let server = setup.serve(options);
    server.stage.asks_for_login.store(true, SeqCst);
    let mut other = server.client();
    assert_eq!(other.ask("LOGIN"), "welcome");
    let mut client = server.client();
    client.ask(first);
    client.send(&format!("HOLD {}\nAGAIN {}", first == "LOGIN", u64::MAX));
    assert_eq!(client.line(), "set");
    for _ in 0..5 {
        other.ping();
    }
    assert_eq!(server.client().ask("LOGIN"), "welcome");
    assert!(server.handle.kill(client.id));
    server.finish();
}

fn one_that_holds_something_and_goes_on_and_on_starves_nobody(setup: Setup) {
    goes_on_and_on(setup, "LOGIN");
}

fn one_that_logs_in_and_goes_on_and_on_starves_nobody(setup: Setup) {
    goes_on_and_on(setup, "CHALLENGE");
}
