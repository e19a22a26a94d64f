//! Promises to whoever looks at a running server: what each connection does, what it waits for and
//! why, what is measured and counted.

mod common;

use std::time::Duration;

use common::client::Client;
use common::{Harness, Options, Setup, everywhere, in_the_pool, patient_group, until};
use thread_group_pool::wait::WaitKind;
use thread_group_pool::{
    Activity, ConnId, ConnInfo, Histogram, Limits, PoolConfig, Times, WorkerInfo, WorkerState,
};

everywhere! {
    what_a_connection_does_is_shown,
    a_connection_that_is_being_closed_is_shown_as_such,
    a_slow_reader_is_shown_with_what_waits_for_it,
    a_wait_is_shown_with_its_kind_and_holder,
    what_a_connection_takes_is_shown,
    who_waits_is_explained_along_the_chain,
    nobody_is_explained_who_is_not_there,
    every_thread_is_shown_with_what_it_does,
    commands_and_waits_are_measured,
    a_snapshot_is_of_one_piece,
}

in_the_pool! {
    a_queued_command_is_shown_and_explained,
    a_command_that_blocks_unsaid_is_shown_as_a_detected_wait,
    who_is_queued_behind_long_commands_is_told_so,
    time_in_the_lanes_is_measured,
    threads_that_are_called_are_measured_until_they_run,
    long_commands_and_handovers_are_counted,
}

fn info(server: &Harness, id: ConnId) -> ConnInfo {
    let all = server.handle.connections();
    let found = all.into_iter().find(|info| info.id == id);
    found.expect("it is connected")
}

#[track_caller]
fn until_it_does(server: &Harness, client: &Client, what: Activity) {
    until(&format!("it is {what}"), || {
        info(server, client.id).state == what
    });
}

fn explained(server: &Harness, id: ConnId) -> String {
    let explained = server.handle.explain(id);
    explained.expect("it is connected").to_string()
}

fn workers_of(server: &Harness, id: ConnId) -> Vec<WorkerInfo> {
    let mut workers = server.handle.workers();
    workers.retain(|worker| worker.conn == Some(id));
    workers
}

fn what_a_connection_does_is_shown(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.ping();
    until_it_does(&server, &client, Activity::Idle);
    let before = info(&server, client.id).commands;
    client.send("OWE");
    until_it_does(&server, &client, Activity::Reading);
    client.send_bytes(b"ECHO it goes on\n");
    assert_eq!(client.line(), "it goes on");
    client.send("SPIN spin");
    until_it_does(&server, &client, Activity::Running);
    assert_eq!(workers_of(&server, client.id).len(), 1);
    server.stage.open("spin");
    assert_eq!(client.line(), "spun");
    client.send("WAIT wait");
    until_it_does(&server, &client, Activity::Waiting(WaitKind::UserLock));
    server.stage.open("wait");
    assert_eq!(client.line(), "waited");
    client.send("PARK parked");
    until_it_does(&server, &client, Activity::Parked);
    assert!(server.stage.take_resume("parked").resume());
    assert_eq!(client.line(), "resumed");
    until_it_does(&server, &client, Activity::Idle);
    let shown = info(&server, client.id);
    assert!(shown.commands >= before + 6, "{shown:?}");
    assert_eq!(shown.group.is_some(), setup.is_pool());
    assert_eq!(shown.lane.is_some(), setup.is_pool());
    client.send("DETACH detached");
    until_it_does(&server, &client, Activity::Detached);
    server.stage.open("detached");
    server.finish();
}

fn a_connection_that_is_being_closed_is_shown_as_such(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    client.ping();
    server
        .stage
        .close_waits
        .store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(client.ask("CLOSE"), "bye");
    until_it_does(&server, &client, Activity::Closing);
    server.stage.open("close");
    server.finish();
}

fn a_slow_reader_is_shown_with_what_waits_for_it(setup: Setup) {
    let limits = Limits::default().output_bound(64 << 20);
    let server = setup.serve(Options::limits(limits));
    let mut client = server.client();
    client.send("BIG 20000000");
    until_it_does(&server, &client, Activity::Flushing);
    let shown = info(&server, client.id);
    assert!(shown.buffer_bytes > 1_000_000, "{shown:?}");
    let why = explained(&server, client.id);
    assert!(
        why.contains("waits for its client to take a reply"),
        "{why}"
    );
    client.read_big(0, 20_000_000);
    server.finish();
}

fn a_wait_is_shown_with_its_kind_and_holder(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut holder, mut client) = (server.client(), server.client());
    holder.ping();
    client.send(&format!("AWAIT {} row", holder.id));
    until_it_does(&server, &client, Activity::Waiting(WaitKind::RowLock));
    let shown = info(&server, client.id);
    assert_eq!(shown.waits_for, Some(holder.id));
    assert_eq!(shown.state.to_string(), "waiting (RowLock)");
    let long = Duration::from_millis(5);
    until("it has waited for a while", || {
        info(&server, client.id).since >= long
    });
    if setup.is_pool() {
        assert!(info(&server, holder.id).holding, "somebody waits for it");
    }
    server.stage.open("row");
    assert_eq!(client.line(), "waited");
    until_it_does(&server, &client, Activity::Idle);
    assert_eq!(info(&server, client.id).waits_for, None);
    server.finish();
}

fn what_a_connection_takes_is_shown(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    assert_eq!(client.ask("WEIGH 12345"), "weighed");
    until_it_does(&server, &client, Activity::Idle);
    let shown = info(&server, client.id);
    assert_eq!(shown.session_bytes, 12345);
    if setup.is_pool() {
        assert_eq!(shown.buffer_bytes, 0, "one at rest has none");
    }
    client.send_bytes(b"ECHO half");
    until_it_does(&server, &client, Activity::Reading);
    until("half a command is somewhere", || {
        info(&server, client.id).buffer_bytes > 0
    });
    client.send_bytes(b" a command\n");
    assert_eq!(client.line(), "half a command");
    server.finish();
}

fn who_waits_is_explained_along_the_chain(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut last, mut middle, mut first) = (server.client(), server.client(), server.client());
    last.ping();
    middle.send(&format!("AWAIT {} last", last.id));
    until_it_does(&server, &middle, Activity::Waiting(WaitKind::RowLock));
    first.send(&format!("AWAIT {} middle", middle.id));
    until_it_does(&server, &first, Activity::Waiting(WaitKind::RowLock));
    until_it_does(&server, &last, Activity::Idle);
    let explained = server.handle.explain(first.id).expect("it is connected");
    let chain: Vec<ConnId> = explained.chain.iter().map(|conn| conn.id).collect();
    assert_eq!(chain, [middle.id, last.id]);
    let told = explained.to_string();
    let start = format!("connection {} waits for ", first.id);
    assert!(told.starts_with(&start), "{told}");
    let end = "its client has sent no command";
    assert!(told.ends_with(end), "{told}");
    server.stage.open("last");
    server.stage.open("middle");
    assert_eq!(
        (middle.line(), first.line()),
        ("waited".into(), "waited".into())
    );
    server.finish();
}

fn nobody_is_explained_who_is_not_there(setup: Setup) {
    let server = setup.serve(Options::default());
    let id = server.client().id;
    server.until_all_closed();
    assert!(server.handle.explain(id).is_none());
    let mut client = server.client();
    client.send("AWAIT 77777 row");
    until_it_does(&server, &client, Activity::Waiting(WaitKind::RowLock));
    let told = explained(&server, client.id);
    assert!(
        told.ends_with("for connection 77777, which has gone"),
        "{told}"
    );
    server.finish();
}

fn every_thread_is_shown_with_what_it_does(setup: Setup) {
    let server = setup.serve(Options::default());
    let (mut waits, mut runs) = (server.client(), server.client());
    waits.send("WAIT gate");
    runs.send("SPIN gate");
    let state = |client: &Client| {
        let workers = workers_of(&server, client.id);
        workers.first().map(|worker| worker.state)
    };
    until("one waits and one runs", || {
        state(&waits) == Some(WorkerState::Waiting(WaitKind::UserLock))
            && state(&runs) == Some(WorkerState::Running)
    });
    until("as many are shown as there are", || {
        server.handle.workers().len() == server.stats().threads
    });
    server.stage.open("gate");
    assert_eq!(
        (waits.line(), runs.line()),
        ("waited".into(), "spun".into())
    );
    server.finish();
}

fn commands_and_waits_are_measured(setup: Setup) {
    // Enough that some are measured where not each of them is.
    const COMMANDS: u64 = 4 * Times::SAMPLED;
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for _ in 0..COMMANDS {
        client.ping();
    }
    assert_eq!(client.ask("NUDGE 10"), "nudged");
    server.stage.open("gate");
    assert_eq!(client.ask("WAIT gate"), "waited");
    let commands = |times: &Times| times.commands.count();
    let least = if setup.is_pool() { COMMANDS } else { 3 };
    until("the last of them has been measured", || {
        commands(&server.handle.times()) >= least
    });
    let times = server.handle.times();
    assert!(commands(&times) <= COMMANDS + 10, "{times:?}");
    assert!(times.commands.sum() > Duration::ZERO);
    let waits = |kind| {
        let of = times.waits.iter().find(|(k, _)| *k == kind);
        of.map_or(0, |(_, times)| times.count())
    };
    assert_eq!(waits(WaitKind::Other("other")), 10);
    assert_eq!(waits(WaitKind::UserLock), 1);
    let stats = server.stats();
    let counted = |kind| {
        let of = stats.waits.iter().find(|wait| wait.kind == kind);
        of.map_or(0, |wait| wait.count)
    };
    assert_eq!(counted(WaitKind::Other("other")), 10);
    assert_eq!(counted(WaitKind::UserLock), 1);
    server.finish();
}

fn a_snapshot_is_of_one_piece(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut clients = server.clients(20);
    clients.iter_mut().for_each(Client::ping);
    let seen = server.handle.snapshot();
    assert_eq!(seen.connections.len(), 20);
    assert!(seen.connections.is_sorted_by_key(|conn| conn.id));
    assert!(seen.workers.is_sorted_by_key(|worker| worker.group));
    for conn in &seen.connections {
        let told = seen.explain(conn.id).expect("it is there").to_string();
        assert!(
            told.starts_with(&format!("connection {} ", conn.id)),
            "{told}"
        );
    }
    server.finish();
}

fn a_queued_command_is_shown_and_explained(setup: Setup) {
    let server = setup.serve(Options::pool(patient_group()));
    let (mut runs, mut first, mut second) = (server.client(), server.client(), server.client());
    second.ping();
    runs.send("SPIN gate");
    until("it runs", || server.stage.running("SPIN").now == 1);
    // Nobody is in the poller, so that nobody would notice what they send: kill and poke are heard.
    for client in [&mut first, &mut second] {
        let id = client.id;
        assert!(server.handle.find(id).is_some_and(|conn| conn.poke()));
        until("it is queued", || {
            info(&server, id).state == Activity::Queued
        });
    }
    let shown = info(&server, second.id);
    assert_eq!((shown.ahead, shown.lane), (Some(1), Some("low")));
    let entries = server.handle.queues();
    let ids: Vec<_> = entries.iter().filter_map(|entry| entry.id).collect();
    assert_eq!(ids, [first.id, second.id]);
    let told = explained(&server, second.id);
    let parts = [
        format!("connection {} is queued for ", second.id),
        " in the low lane of group 0, behind 1 other; ".to_owned(),
        format!("1 command holds a slot: connection {} for ", runs.id),
    ];
    for part in parts {
        assert!(told.contains(&part), "{told}");
    }
    server.stage.open("gate");
    assert_eq!(runs.line(), "spun");
    assert_eq!(
        (first.line(), second.line()),
        ("poked".into(), "poked".into())
    );
    server.finish();
}

fn a_command_that_blocks_unsaid_is_shown_as_a_detected_wait(setup: Setup) {
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    if !server.stats().detects_blocking {
        return;
    }
    let mut client = server.client();
    client.send("BLOCK gate");
    until_it_does(&server, &client, Activity::Waiting(WaitKind::Detected));
    let told = explained(&server, client.id);
    assert!(
        told.contains("blocks, and has not reported what for"),
        "{told}"
    );
    server.stage.open("gate");
    assert_eq!(client.line(), "blocked");
    server.finish();
}

fn who_is_queued_behind_long_commands_is_told_so(setup: Setup) {
    let pool = PoolConfig::default()
        .groups(1)
        .oversubscribe(1)
        .kickup(common::NEVER);
    let server = setup.serve(Options::pool(pool));
    let (mut long, mut other) = (server.client(), server.client());
    // So that its next command is likely to be long.
    server.stage.open("at once");
    assert_eq!(other.ask("LONG at once"), "spun");
    long.send("LONG gate");
    until("it is long", || server.group().long == 1);
    other.send("ECHO late");
    until_it_does(&server, &other, Activity::Queued);
    let told = explained(&server, other.id);
    let why = format!(
        "in the long lane of group 0, the next one to be served; its last command was long, and 1 long \
         command runs: connection {} for ",
        long.id
    );
    assert!(told.contains(&why), "{told}");
    server.stage.open("gate");
    assert_eq!((long.line(), other.line()), ("spun".into(), "late".into()));
    server.finish();
}

fn time_in_the_lanes_is_measured(setup: Setup) {
    let server = setup.serve(Options::default());
    let mut client = server.client();
    for _ in 0..10 {
        client.ping();
    }
    let times = server.handle.times();
    let queued: u64 = times.queued.iter().map(|(_, times)| times.count()).sum();
    let dequeues: u64 = server.stats().groups.iter().map(|g| g.dequeues).sum();
    assert_eq!(queued, dequeues);
    let lanes: Vec<_> = times.queued.iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, ["control", "low"], "opened, and then ten commands");
    server.finish();
}

fn threads_that_are_called_are_measured_until_they_run(setup: Setup) {
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    let started = || server.handle.times().started;
    let before = started().count();
    let (mut waits, mut other) = (server.client(), server.client());
    waits.send("WAIT gate");
    until("it waits", || server.group().waiting == 1);
    other.ping();
    until("another thread has been called or created", || {
        started().count() > before
    });
    assert!(started().quantile(1.0) < Duration::MAX);
    server.stage.open("gate");
    assert_eq!(waits.line(), "waited");
    let group = server.group();
    let least = group.wakes + group.creations;
    until("all of them were", || started().count() >= least);
    server.finish();
}

fn long_commands_and_handovers_are_counted(setup: Setup) {
    let server = setup.serve(Options::pool(PoolConfig::default().groups(1)));
    let mut client = server.client();
    server.stage.open("gate");
    assert_eq!(client.ask("LONG gate"), "spun");
    client.ping();
    let group = server.group();
    assert_eq!(group.long_commands, 1, "{group:?}");
    assert!(group.handovers >= 1, "{group:?}");
    assert_eq!(group.creation_failures, 0);
    let none = Histogram::default();
    assert_eq!((none.count(), none.mean()), (0, Duration::ZERO));
    server.finish();
}
