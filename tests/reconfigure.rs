//! Promises about other limits at run time: what was asked for holds from then on, all of it or nothing.

mod common;

use std::time::Duration;

use common::client::Client;
use common::{
    Harness, NEVER, Options, Setup, everywhere, in_the_pool, patient_group, promised, two_slots,
    until,
};
use thread_group_pool::{
    Applied, Limits, PoolConfig, Rejected, Scheduler, ThreadPerConnectionConfig,
};

everywhere! {
    a_server_tells_what_it_runs_with,
    a_shorter_idle_timeout_closes_whoever_is_idle,
    a_shorter_read_timeout_closes_whoever_owes,
    a_longer_idle_timeout_keeps_whoever_is_idle,
    a_command_timeout_holds_for_a_command_that_runs_already,
    fewer_connections_are_let_in_and_more_again,
    limits_that_contradict_each_other_change_nothing,
    what_cannot_be_changed_is_named_and_nothing_is_changed,
    limits_may_change_under_load,
}

in_the_pool! {
    more_slots_let_more_commands_run,
    more_threads_free_a_queue_at_the_cap,
    fewer_threads_end_no_command,
    fewer_threads_leave_as_they_come_free,
    a_shorter_stall_limit_opens_a_group_that_is_stopped,
    threads_that_wait_in_vain_leave_after_a_shorter_time,
    shorter_turns_hold_for_who_comes_from_then_on,
}

promised! { [per_connection_tcp_only PerConnection Tcp]
    fewer_threads_are_kept,
    threads_are_kept_for_a_shorter_time,
    fewer_threads_refuse_clients
}

const SOON: Duration = Duration::from_millis(100);

/// Changes the pool's limits.
#[track_caller]
fn change_pool(server: &Harness, change: impl FnOnce(PoolConfig) -> PoolConfig) -> Applied {
    let (scheduler, limits) = server.handle.configuration();
    let Scheduler::Pool(config) = scheduler else {
        unreachable!("it is the pool");
    };
    let changed = server
        .handle
        .reconfigure(Scheduler::Pool(change(config)), limits);
    changed.expect("it may be changed")
}

#[track_caller]
fn change_threads(
    server: &Harness,
    change: impl FnOnce(ThreadPerConnectionConfig) -> ThreadPerConnectionConfig,
) -> Applied {
    let (scheduler, limits) = server.handle.configuration();
    let Scheduler::ThreadPerConnection(config) = scheduler else {
        unreachable!("it is thread-per-connection");
    };
    let changed = server
        .handle
        .reconfigure(Scheduler::ThreadPerConnection(change(config)), limits);
    changed.expect("it may be changed")
}

#[track_caller]
fn change_limits(server: &Harness, change: impl FnOnce(Limits) -> Limits) -> Applied {
    let (scheduler, limits) = server.handle.configuration();
    let changed = server.handle.reconfigure(scheduler, change(limits));
    changed.expect("it may be changed")
}

/// What it runs with, to compare.
fn configuration(server: &Harness) -> String {
    format!("{:?}", server.handle.configuration())
}

fn a_server_tells_what_it_runs_with(setup: Setup) {
    let options = || Options {
        pool: PoolConfig::default().groups(3).oversubscribe(7),
        threads: ThreadPerConnectionConfig::default().thread_cache(7),
        limits: Limits::default().max_connections(77),
    };
    let server = setup.serve(options());
    let (scheduler, limits) = server.handle.configuration();
    assert_eq!(
        format!("{scheduler:?}"),
        format!("{:?}", setup.scheduler(&options()))
    );
    assert_eq!(limits, options().limits);
    let applied = server.handle.reconfigure(scheduler, limits);
    assert!(applied.expect("nothing differs").changed.is_empty());
    let applied = change_limits(&server, |limits| {
        limits.max_input(1 << 20).idle_timeout(NEVER)
    });
    assert_eq!(applied.changed, ["idle_timeout", "max_input"]);
    assert_eq!(server.handle.configuration().1.max_input, 1 << 20);
    server.finish();
}

fn a_shorter_idle_timeout_closes_whoever_is_idle(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(5);
    clients.iter_mut().for_each(Client::ping);
    change_limits(&server, |limits| {
        limits.idle_timeout(SOON).read_timeout(SOON)
    });
    for client in &mut clients {
        assert_eq!(
            client.rest(),
            "farewell: the client was silent for longer than idle_timeout\n"
        );
    }
    server.until_closed_as("idle_timeout", 5);
    server.finish();
}

fn a_shorter_read_timeout_closes_whoever_owes(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut idle = server.client();
    let mut client = server.client();
    client.send_bytes(b"ECHO ha");
    until("its half is there", || {
        server.state(client.id) == Some("reading")
    });
    change_limits(&server, |limits| limits.read_timeout(SOON));
    assert!(client.rest().starts_with("farewell: the rest of a command"));
    server.until_closed_as("read_timeout", 1);
    idle.ping();
    server.finish();
}

fn a_longer_idle_timeout_keeps_whoever_is_idle(setup: Setup) {
    let limits = Limits::default().idle_timeout(20 * SOON).read_timeout(SOON);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    change_limits(&server, |limits| limits.idle_timeout(NEVER));
    let begun = std::time::Instant::now();
    until("the old time is over", || begun.elapsed() > 25 * SOON);
    client.ping();
    server.finish();
}

/// Nothing had to be watched before.
fn a_command_timeout_holds_for_a_command_that_runs_already(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.send("OBEY gate");
    until("it runs", || server.stage.running("OBEY").now == 1);
    change_limits(&server, |limits| limits.command_timeout(SOON));
    assert_eq!(
        client.line(),
        "cancelled: the command took longer than command_timeout"
    );
    client.ping();
    server.finish();
}

fn fewer_connections_are_let_in_and_more_again(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(3);
    change_limits(&server, |limits| limits.max_connections(2));
    let refused = Client::connect_only(&server.at).rest();
    assert_eq!(
        refused,
        "refused: too many connections (max_connections is 2)\n"
    );
    clients.iter_mut().for_each(Client::ping);
    change_limits(&server, |limits| limits.max_connections(4));
    clients.push(server.client());
    clients.iter_mut().for_each(Client::ping);
    server.finish();
}

fn limits_that_contradict_each_other_change_nothing(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    let before = configuration(&server);
    let (scheduler, limits) = server.handle.configuration();
    let wrong = limits
        .clone()
        .max_connections(1)
        .read_timeout(Duration::from_secs(99))
        .idle_timeout(SOON);
    let wrong_scheduler = match &scheduler {
        Scheduler::Pool(config) => Scheduler::Pool(config.clone().max_threads(3)),
        Scheduler::ThreadPerConnection(config) => {
            Scheduler::ThreadPerConnection(config.clone().thread_cache(9).max_threads(8))
        }
        other => unreachable!("another scheduler: {other:?}"),
    };
    let names = if setup.is_pool() {
        ["max_threads = 3", "groups = 2"]
    } else {
        ["thread_cache = 9", "max_threads = 8"]
    };
    for (scheduler, limits, names) in [
        (
            scheduler,
            wrong,
            ["read_timeout = 99s", "idle_timeout = 100ms"],
        ),
        (wrong_scheduler, limits.max_connections(1), names),
    ] {
        let rejected = server
            .handle
            .reconfigure(scheduler, limits)
            .expect_err("it cannot be");
        assert!(matches!(rejected, Rejected::Invalid(_)), "{rejected}");
        let text = rejected.to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert_eq!(configuration(&server), before);
    }
    server.client().ping();
    client.ping();
    server.finish();
}

fn what_cannot_be_changed_is_named_and_nothing_is_changed(setup: Setup) {
    let server = setup.serve(Options::default());
    let before = configuration(&server);
    let (scheduler, limits) = server.handle.configuration();
    let (other, fixed, names): (_, _, &[&str]) = match scheduler {
        Scheduler::Pool(config) => (
            Scheduler::ThreadPerConnection(ThreadPerConnectionConfig::default()),
            // One that may be changed is among them.
            Scheduler::Pool(
                config
                    .groups(3)
                    .oversubscribe(7)
                    .pin_groups(true)
                    .stack_size(1 << 20),
            ),
            &["groups", "pin_groups", "stack_size"],
        ),
        Scheduler::ThreadPerConnection(config) => (
            Scheduler::Pool(PoolConfig::default()),
            Scheduler::ThreadPerConnection(config.thread_cache(7).stack_size(1 << 20)),
            &["stack_size"],
        ),
        other => unreachable!("another scheduler: {other:?}"),
    };
    for (scheduler, names) in [(other, &["scheduler"][..]), (fixed, names)] {
        let rejected = server
            .handle
            .reconfigure(scheduler, limits.clone().max_connections(1))
            .expect_err("it cannot be changed");
        let Rejected::Fixed(named) = &rejected else {
            panic!("{rejected}");
        };
        assert_eq!(named, names);
        assert!(rejected.to_string().starts_with(names[0]), "{rejected}");
        assert_eq!(configuration(&server), before);
    }
    server.clients(3).iter_mut().for_each(Client::ping);
    server.finish();
}

fn limits_may_change_under_load(setup: Setup) {
    let server = setup.serve(Options::default());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..300 {
                    client.ping();
                    assert_eq!(client.ask("NUDGE 1"), "nudged");
                }
            });
        }
        for n in 1..100 {
            change_limits(&server, |limits| limits.max_connections(100 + n));
            if setup.is_pool() {
                change_pool(&server, |config| {
                    config
                        .oversubscribe(1 + n % 4)
                        .max_threads(4 + n % 7)
                        .stall_limit(Duration::from_millis(2 + n as u64 % 20))
                });
            } else {
                change_threads(&server, |config| config.thread_cache(n % 4));
            }
        }
    });
    server.finish();
}

// ---- the pool ----

fn more_slots_let_more_commands_run(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots()));
    let mut clients = server.clients(6);
    for client in &mut clients {
        client.send("BLOCK gate");
    }
    until("both slots are taken, and the others queue", || {
        server.stage.running("BLOCK").now == 2 && server.group().queued == 4
    });
    let applied = change_pool(&server, |config| config.oversubscribe(3));
    assert_eq!(applied.changed, ["oversubscribe"]);
    until("four run", || server.stage.running("BLOCK").now == 4);
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.line(), "blocked");
    }
    assert_eq!(server.stage.running("BLOCK").most, 4);
    server.finish();
}

fn more_threads_free_a_queue_at_the_cap(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots().max_threads(2)));
    let mut clients = server.clients(6);
    for client in &mut clients {
        client.send("WAIT gate");
    }
    until("both threads wait", || {
        server.stage.running("WAIT").now == 2
    });
    let applied = change_pool(&server, |config| config.max_threads(5));
    assert_eq!(applied.changed, ["max_threads"]);
    until("five wait", || server.stage.running("WAIT").now == 5);
    change_pool(&server, |config| config.max_threads(50));
    until("all wait", || server.stage.running("WAIT").now == 6);
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.line(), "waited");
    }
    server.finish();
}

fn shorter_turns_hold_for_who_comes_from_then_on(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let turns = |client: &mut Client| {
        client.ping();
        let before = server.group().dequeues;
        client.send("ECHO one\nECHO two\nECHO three\nECHO four");
        for word in ["one", "two", "three", "four"] {
            assert_eq!(client.line(), word);
        }
        server.group().dequeues - before
    };
    let mut old = server.client();
    change_pool(&server, |config| config.turn_commands(1));
    let mut new = server.client();
    assert!(turns(&mut new) >= 4);
    assert!(turns(&mut old) < 4);
    server.finish();
}

fn fewer_threads_end_no_command(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots()));
    let mut clients = server.clients(6);
    for client in &mut clients {
        client.send("WAIT gate");
    }
    until("all wait", || server.stage.running("WAIT").now == 6);
    change_pool(&server, |config| {
        config
            .max_threads(2)
            .idle_timeout(Duration::from_millis(10))
    });
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.line(), "waited");
    }
    until("the others have left", || server.group().threads <= 2);
    for client in &mut clients {
        client.send("WAIT again");
    }
    until("both threads wait", || {
        server.stage.running("WAIT").now == 2
    });
    assert!(server.group().threads <= 2);
    server.stage.open("again");
    for client in &mut clients {
        assert_eq!(client.line(), "waited");
    }
    server.finish();
}

/// Parked ones at once, the others when their commands have ended; and meanwhile no more of them start
/// than there may be threads.
fn fewer_threads_leave_as_they_come_free(setup: Setup) {
    let pool = two_slots().groups(2).idle_timeout(NEVER);
    let server = setup.serve(Options::pool(pool));
    let mut clients = server.clients(12);
    let (parked, busy) = clients.split_at_mut(6);
    for (gate, clients) in [("first", &mut *parked), ("second", &mut *busy)] {
        for client in clients {
            client.send(&format!("WAIT {gate}"));
        }
    }
    until("all wait", || server.stage.running("WAIT").now == 12);
    server.stage.open("first");
    for client in parked {
        assert_eq!(client.line(), "waited");
    }
    assert_eq!(
        change_pool(&server, |config| config.max_threads(4)).changed,
        ["max_threads"]
    );
    until("the parked ones have left", || server.stats().threads <= 6);
    assert_eq!(server.stage.running("WAIT").now, 6);
    server.stage.open("second");
    for client in busy {
        assert_eq!(client.line(), "waited");
    }
    until("the others have left", || server.stats().threads <= 4);
    until("nobody is beyond the cap", || {
        server
            .stats()
            .groups
            .iter()
            .all(|group| group.over_cap == 0)
    });
    for client in &mut clients {
        client.send("WAIT third");
    }
    until("all four wait", || server.stage.running("WAIT").now == 4);
    assert_eq!(server.stats().threads, 4);
    server.stage.open("third");
    for client in &mut clients {
        assert_eq!(client.line(), "waited");
    }
    server.finish();
}

fn a_shorter_stall_limit_opens_a_group_that_is_stopped(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let mut blocker = server.client();
    let mut other = server.client();
    blocker.send("BLOCK gate");
    until("it blocks", || server.stage.running("BLOCK").now == 1);
    other.send("ECHO ping");
    // It has to be woken out of a sleep of a minute, in which it is by now.
    let begun = std::time::Instant::now();
    until("the monitor has looked", || begun.elapsed() > SOON);
    change_pool(&server, |config| {
        config
            .handover(Duration::from_millis(1))
            .stall_limit(Duration::from_millis(10))
    });
    assert_eq!(other.line(), "ping");
    server.stage.open("gate");
    assert_eq!(blocker.line(), "blocked");
    server.finish();
}

fn threads_that_wait_in_vain_leave_after_a_shorter_time(setup: Setup) {
    let server = setup.serve(Options::pool(two_slots().idle_timeout(NEVER)));
    let mut clients = server.clients(6);
    for client in &mut clients {
        client.send("WAIT gate");
    }
    until("all wait", || server.stage.running("WAIT").now == 6);
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.line(), "waited");
    }
    until("their threads are parked", || server.group().standby >= 4);
    change_pool(&server, |config| {
        config.idle_timeout(Duration::from_millis(10))
    });
    until("they have left", || server.group().threads == 1);
    clients.iter_mut().for_each(Client::ping);
    server.finish();
}

// ---- thread-per-connection ----

/// A server with so many threads that wait for their next connection.
fn cached(setup: Setup, n: usize) -> Harness {
    let threads = ThreadPerConnectionConfig::default().idle_timeout(NEVER);
    let options = Options {
        threads,
        ..Options::default()
    };
    let server = setup.serve(options);
    drop(server.clients(n));
    server.until_all_closed();
    assert_eq!(server.stats().threads, n);
    server
}

fn fewer_threads_are_kept(setup: Setup) {
    let server = cached(setup, 5);
    let applied = change_threads(&server, |config| config.thread_cache(2));
    assert_eq!(applied.changed, ["thread_cache"]);
    until("the others have left", || server.stats().threads == 2);
    server.client().ping();
    server.finish();
}

fn threads_are_kept_for_a_shorter_time(setup: Setup) {
    let server = cached(setup, 5);
    change_threads(&server, |config| {
        config.idle_timeout(Duration::from_millis(10))
    });
    until("they have left", || server.stats().threads == 0);
    server.client().ping();
    server.finish();
}

fn fewer_threads_refuse_clients(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(3);
    change_threads(&server, |config| config.thread_cache(0).max_threads(3));
    let refused = Client::connect_only(&server.at).rest();
    assert!(refused.starts_with("refused: no thread"), "{refused}");
    clients.iter_mut().for_each(Client::ping);
    change_threads(&server, |config| config.max_threads(4));
    clients.push(server.client());
    clients.iter_mut().for_each(Client::ping);
    server.finish();
}
