//! Promises about waits: those that are reported are counted, with their time; those that are not are
//! found, where the states of threads can be read.

mod common;

use std::time::{Duration, Instant};

use common::{NEVER, Options, Setup, everywhere, in_the_pool, until};
use thread_group_pool::wait::{self, WaitKind};
use thread_group_pool::{PoolConfig, Stats, WaitStats};

everywhere! {
    a_wait_is_counted_with_its_time_under_its_kind,
    waits_on_other_threads_are_not_counted,
    whether_blocking_can_be_found_is_said,
}

in_the_pool! {
    #[cfg_attr(not(target_os = "linux"), ignore = "whether a thread is blocked cannot be seen")]
    a_command_that_blocks_untold_is_found_and_gives_its_slot_up,
    a_command_that_computes_is_not_taken_for_a_blocked_one,
    #[cfg_attr(not(target_os = "linux"), ignore = "whether a thread is blocked cannot be seen")]
    a_command_that_blocks_and_then_computes_is_long_again,
    #[cfg_attr(not(target_os = "linux"), ignore = "whether a thread is blocked cannot be seen")]
    a_command_that_was_found_blocked_does_not_make_its_session_a_long_one,
    a_wait_that_is_reported_is_not_found_beside_that,
}

fn wait_of(stats: &Stats, kind: WaitKind) -> Option<&WaitStats> {
    stats.waits.iter().find(|wait| wait.kind == kind)
}

/// Lets so much time pass.
fn pass(time: Duration) {
    let begun = Instant::now();
    until("the time is over", || begun.elapsed() >= time);
}

const TIME: Duration = Duration::from_millis(20);

fn a_wait_is_counted_with_its_time_under_its_kind(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(3);
    clients[0].send("WAIT gate");
    clients[1].send("NEST gate");
    until("they wait", || {
        let stats = server.stats();
        [WaitKind::UserLock, WaitKind::RowLock]
            .iter()
            .all(|kind| wait_of(&stats, *kind).is_some_and(|wait| wait.count == 1))
    });
    pass(TIME);
    let stats = server.stats();
    // How long a wait has been is known when it is over.
    assert!(stats.waits.iter().all(|wait| wait.total.is_zero()));
    server.stage.open("gate");
    assert_eq!(clients[0].line(), "waited");
    assert_eq!(clients[1].line(), "nested");
    assert_eq!(clients[2].ask("NUDGE 10"), "nudged");
    let stats = server.finish();
    for kind in [WaitKind::UserLock, WaitKind::RowLock] {
        let wait = wait_of(&stats, kind).expect("it is counted");
        assert!(wait.count == 1 && wait.total >= TIME, "{wait:?}");
    }
    // The inner one is a part of the other.
    assert_eq!(wait_of(&stats, WaitKind::DiskIo), None);
    let other = wait_of(&stats, WaitKind::Other("other")).expect("it is counted");
    assert_eq!(other.count, 10, "{other:?}");
    assert_eq!(stats.waits.len(), 3, "{:?}", stats.waits);
}

fn waits_on_other_threads_are_not_counted(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    wait::during(WaitKind::Sleep, || client.ping());
    wait::during_for(WaitKind::Sleep, client.id, || client.ping());
    let guard = wait::enter_for(WaitKind::Sleep, client.id);
    client.ping();
    drop(guard);
    let stats = server.finish();
    assert!(stats.waits.is_empty(), "{:?}", stats.waits);
    assert!(stats.groups.iter().all(|group| group.boosts == 0));
}

fn whether_blocking_can_be_found_is_said(setup: Setup) {
    let server = setup.serve(Options::default());
    let says = server.stats().detects_blocking;
    assert_eq!(says, setup.is_pool() && cfg!(target_os = "linux"));
    server.finish();
}

fn one_group() -> PoolConfig {
    PoolConfig::default().groups(1)
}

fn a_command_that_blocks_untold_is_found_and_gives_its_slot_up(setup: Setup) {
    let server = setup.serve(Options::pool(one_group().oversubscribe(1)));
    let mut clients = server.clients(5);
    for client in &mut clients {
        client.send("BLOCK gate");
    }
    // More than there are slots, or may be long.
    // Somebody may look around still, whom the last of them has called.
    until("all are found, and nothing else runs", || {
        let group = server.group();
        (group.blocked, group.active, group.long) == (5, 0, 0)
    });
    server.client().ping();
    pass(TIME);
    server.stage.open("gate");
    for client in &mut clients {
        assert_eq!(client.line(), "blocked");
    }
    let stats = server.finish();
    let group = &stats.groups[0];
    assert!(group.detected >= 5 && group.stalls >= 5, "{group:?}");
    assert_eq!(group.blocked, 0, "{group:?}");
    let wait = wait_of(&stats, WaitKind::Detected).expect("it is shown");
    assert_eq!(wait.count, group.detected, "{wait:?}");
    assert!(wait.total >= 5 * TIME, "{wait:?}");
    assert_eq!(wait.total, group.detected_time);
}

fn a_command_that_computes_is_not_taken_for_a_blocked_one(setup: Setup) {
    let server = setup.serve(Options::pool(one_group()));
    let mut client = server.client();
    client.send("SPIN gate");
    until("it is long", || server.group().long == 1);
    // Some looks later it is still.
    pass(5 * TIME);
    let group = server.group();
    assert_eq!((group.long, group.blocked), (1, 0), "{group:?}");
    server.stage.open("gate");
    assert_eq!(client.line(), "spun");
    let stats = server.finish();
    assert_eq!(stats.groups[0].detected, 0, "{stats:?}");
    assert_eq!(wait_of(&stats, WaitKind::Detected), None);
}

fn a_command_that_blocks_and_then_computes_is_long_again(setup: Setup) {
    let server = setup.serve(Options::pool(one_group()));
    let mut client = server.client();
    client.send("STALL gate other");
    until("it is found", || server.group().blocked == 1);
    pass(TIME);
    server.stage.open("gate");
    until("it is long", || {
        let group = server.group();
        (group.long, group.blocked) == (1, 0)
    });
    let known = server.group().detected_time;
    assert!(known >= TIME, "{known:?}");
    server.stage.open("other");
    assert_eq!(client.line(), "stalled");
    server.finish();
}

/// Its thread took no CPU from anybody.
fn a_command_that_was_found_blocked_does_not_make_its_session_a_long_one(setup: Setup) {
    let pool = one_group().oversubscribe(1).kickup(NEVER);
    let server = setup.serve(Options::pool(pool));
    let mut client = server.client();
    let mut long = server.client();
    client.send("BLOCK gate");
    until("it is found", || server.group().blocked == 1);
    server.stage.open("gate");
    assert_eq!(client.line(), "blocked");
    // Now sessions that are known for long commands are kept out, for ever.
    long.send("LONG other");
    until("it is at the bound", || server.group().long == 1);
    client.ping();
    server.stage.open("other");
    assert_eq!(long.line(), "spun");
    server.finish();
}

fn a_wait_that_is_reported_is_not_found_beside_that(setup: Setup) {
    let server = setup.serve(Options::pool(one_group()));
    let mut client = server.client();
    client.send("WAIT gate");
    until("it waits", || server.group().waiting == 1);
    // Past the stall limit, with somebody for whom the monitor ticks.
    let begun = Instant::now();
    let mut other = server.client();
    until("time has passed", || {
        other.ping();
        begun.elapsed() >= 3 * TIME
    });
    let group = server.group();
    assert_eq!(
        (group.waiting, group.blocked, group.stalls),
        (1, 0, 0),
        "{group:?}"
    );
    server.stage.open("gate");
    assert_eq!(client.line(), "waited");
    server.finish();
}
