//! Promises about events: what is told, that who is told holds nobody up, and that a flood is counted
//! and not told.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::client::Client;
use common::stage::Stage;
use common::{AMPLE, Options, PATIENCE, Setup, everywhere, in_the_pool, until};
use thread_group_pool::event::Level;
use thread_group_pool::{
    ConnId, Event, EventKind, Limits, PoolConfig, Refusal, Server, ThreadPerConnectionConfig,
};

everywhere! {
    a_refused_client_is_told_of,
    a_callback_that_panics_is_told_of,
    a_drain_tells_of_its_stages,
    a_flood_is_counted_and_not_told,
    who_is_told_may_panic,
    who_is_told_may_block_and_holds_up_no_client,
    who_is_told_may_ask_the_server,
    a_thread_that_is_created_is_told_of,
    the_cap_is_told_of,
}

in_the_pool! {
    a_command_past_the_stall_limit_is_told_of,
    a_forgotten_hook_is_told_of,
    a_queue_that_nobody_comes_to_is_told_of,
}

/// A server that tells of its events.
struct Told {
    server: Server,
    stage: Arc<Stage>,
    events: Receiver<Event>,
}

impl Told {
    fn new(setup: Setup, options: Options) -> Self {
        let (tell, events) = channel();
        let tell = Mutex::new(tell);
        Self::with(setup, options, events, move |event| {
            // The test may be over.
            let _ = tell.lock().expect("nobody panics").send(event.clone());
        })
    }

    fn with(
        setup: Setup,
        options: Options,
        events: Receiver<Event>,
        hook: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Self {
        let stage = Arc::new(Stage::default());
        let server = Server::builder()
            .scheduler(setup.scheduler(&options))
            .limits(options.limits)
            .on_event(hook)
            .listen(setup.listen(), Arc::clone(&stage))
            .build()
            .expect("the server starts");
        Self {
            server,
            stage,
            events,
        }
    }

    fn client(&self) -> Client {
        Client::connect(&self.server.local_addrs()[0])
    }

    /// Waits for an event like this.
    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&EventKind) -> bool) -> Event {
        loop {
            match self.events.recv_timeout(PATIENCE) {
                Ok(event) if is(&event.kind) => {
                    assert!(!event.to_string().is_empty());
                    return event;
                }
                Ok(_) => {}
                Err(_) => panic!("nobody is told: {what}"),
            }
        }
    }

    /// Ends the server. Returns what has been told and not been waited for.
    fn finish(self) -> Vec<Event> {
        self.stage.open_all();
        let report = self.server.drain(AMPLE);
        assert!(report.clean(), "{report}");
        self.events.try_iter().collect()
    }
}

fn a_refused_client_is_told_of(setup: Setup) {
    let limits = Limits::default().max_connections(1);
    let told = Told::new(setup, Options::limits(limits));
    let _first = told.client();
    let mut second = Client::connect_only(&told.server.local_addrs()[0]);
    second.rest();
    let event = told.until("the refusal", |kind| {
        let why = Refusal::TooManyConnections { limit: 1 };
        *kind == EventKind::Refused { why }
    });
    assert_eq!((event.level(), event.suppressed), (Level::Warn, 0));
    told.finish();
}

fn a_callback_that_panics_is_told_of(setup: Setup) {
    let told = Told::new(setup, Options::default());
    let mut client = told.client();
    let id = client.id;
    client.send("PANIC");
    client.rest();
    told.until("the panic", |kind| {
        *kind == EventKind::Panicked { conn: Some(id) }
    });
    // One that was given to `on_cancel`, and is called by who kills, too.
    let mut client = told.client();
    let id = client.id;
    client.send("SPITE never");
    until("it waits", || told.stage.running("SPITE").now == 1);
    let command = told
        .server
        .handle()
        .find(id)
        .and_then(|conn| conn.command());
    assert!(
        told.server
            .handle()
            .kill_command(id, command.expect("it runs"))
    );
    told.until("the panic of the callback", |kind| {
        *kind == EventKind::Panicked { conn: Some(id) }
    });
    client.rest();
    told.finish();
}

fn a_drain_tells_of_its_stages(setup: Setup) {
    let told = Told::new(setup, Options::default());
    let _idle = told.client();
    let stages: Vec<_> = told
        .finish()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Drain { stage, left } => Some((stage, left)),
            _ => None,
        })
        .collect();
    assert!(stages.len() >= 2, "{stages:?}");
    assert_eq!(stages[0].1, 1, "{stages:?}");
    assert_eq!(stages.last().map(|(_, left)| *left), Some(0), "{stages:?}");
}

fn a_flood_is_counted_and_not_told(setup: Setup) {
    const REFUSED: u64 = 100;
    let limits = Limits::default().max_connections(1);
    let told = Told::new(setup, Options::limits(limits));
    let _first = told.client();
    for _ in 0..REFUSED {
        Client::connect_only(&told.server.local_addrs()[0]).rest();
    }
    let handle = told.server.handle();
    until("all are counted", || handle.stats().refused == REFUSED);
    let refusals: Vec<_> = told
        .finish()
        .into_iter()
        .filter(|event| matches!(event.kind, EventKind::Refused { .. }))
        .collect();
    let suppressed: u64 = refusals.iter().map(|event| event.suppressed).sum();
    assert_eq!(refusals.len() as u64 + suppressed, REFUSED);
}

fn who_is_told_may_panic(setup: Setup) {
    let (tell, events) = channel();
    let tell = Mutex::new(tell);
    let told = Told::with(setup, Options::default(), events, move |event| {
        if let EventKind::Panicked { .. } = event.kind {
            let _ = tell
                .lock()
                .expect("the panic is not in here")
                .send(event.clone());
            panic!("told to, in on_event");
        }
    });
    let handle = told.server.handle();
    for n in 1..=2 {
        let mut client = told.client();
        client.send("PANIC");
        client.rest();
        told.until("the panic of the command", |_| true);
        until("both are counted", || handle.stats().panics == 2 * n);
    }
    told.client().ping();
    told.finish();
}

fn who_is_told_may_block_and_holds_up_no_client(setup: Setup) {
    let (gate, blocks) = channel::<()>();
    let (inside, events) = (Arc::new(AtomicBool::new(false)), channel().1);
    let (entered, blocks) = (Arc::clone(&inside), Mutex::new(blocks));
    let told = Told::with(setup, Options::default(), events, move |_| {
        entered.store(true, SeqCst);
        // Until the gate is dropped.
        let _ = blocks.lock().expect("nobody panics").recv();
    });
    let mut client = told.client();
    client.send("PANIC");
    client.rest();
    until("it blocks", || inside.load(SeqCst));
    for _ in 0..20 {
        let mut client = told.client();
        client.ping();
        client.send("PANIC");
        client.rest();
    }
    told.client().ping();
    told.stage.open_all();
    // It is left to itself, and named.
    let report = told.server.drain(AMPLE);
    assert!(report.killed.is_empty() && report.abandoned.is_empty());
    let names: Vec<_> = report.abandoned_threads.iter().map(|t| &t.name).collect();
    assert_eq!(names, ["tgp-event"], "{report}");
    drop(gate);
}

fn who_is_told_may_ask_the_server(setup: Setup) {
    let handle: Arc<Mutex<Option<thread_group_pool::ServerHandle>>> = Arc::default();
    let (tell, events) = channel();
    let (asks, tell) = (Arc::clone(&handle), Mutex::new(tell));
    let told = Told::with(setup, Options::default(), events, move |event| {
        if let EventKind::Panicked { .. } = event.kind
            && let Some(handle) = &*asks.lock().expect("nobody panics")
        {
            assert!(handle.snapshot().stats.panics > 0);
            handle.kill(ConnId::from(1));
            let _ = tell.lock().expect("nobody panics").send(event.clone());
        }
    });
    *handle.lock().expect("nobody panics") = Some(told.server.handle());
    let (mut first, mut second) = (told.client(), told.client());
    assert_eq!(first.id, ConnId::from(1));
    second.send("PANIC");
    told.until("the panic", |_| true);
    assert!(first.rest().contains("killed"));
    *handle.lock().expect("nobody panics") = None;
    told.finish();
}

fn a_thread_that_is_created_is_told_of(setup: Setup) {
    let told = Told::new(setup, Options::pool(PoolConfig::default().groups(1)));
    let mut clients: Vec<_> = (0..3).map(|_| told.client()).collect();
    for client in &mut clients {
        client.send("WAIT gate");
    }
    let group = setup.is_pool().then_some(0);
    let event = told.until(
        "the thread",
        |kind| matches!(kind, EventKind::ThreadCreated { group: g, .. } if *g == group),
    );
    assert_eq!(event.level(), Level::Info);
    told.finish();
}

fn the_cap_is_told_of(setup: Setup) {
    let options = Options {
        pool: PoolConfig::default().groups(1).max_threads(2),
        threads: ThreadPerConnectionConfig::default()
            .thread_cache(2)
            .max_threads(2),
        limits: Limits::default(),
    };
    let told = Told::new(setup, options);
    let mut clients: Vec<_> = (0..2).map(|_| told.client()).collect();
    for client in &mut clients {
        client.send("WAIT gate");
    }
    until("both wait", || told.stage.running("WAIT").now == 2);
    let group = setup.is_pool().then_some(0);
    let third = Client::connect_only(&told.server.local_addrs()[0]);
    told.until("the cap", |kind| *kind == EventKind::CapReached { group });
    drop(third);
    told.finish();
}

fn a_command_past_the_stall_limit_is_told_of(setup: Setup) {
    let told = Told::new(setup, Options::pool(PoolConfig::default().groups(1)));
    let mut client = told.client();
    let id = client.id;
    client.send("SPIN gate");
    let event = told.until(
        "the stall",
        |kind| matches!(kind, EventKind::Stalled { conn, .. } if *conn == Some(id)),
    );
    let EventKind::Stalled { running, .. } = event.kind else {
        unreachable!("it was looked for")
    };
    assert!(running >= Duration::from_millis(10), "{running:?}");
    told.finish();
}

fn a_forgotten_hook_is_told_of(setup: Setup) {
    let told = Told::new(setup, Options::pool(PoolConfig::default().groups(1)));
    if !told.server.handle().stats().detects_blocking {
        return;
    }
    let mut client = told.client();
    let id = client.id;
    client.send("BLOCK gate");
    told.until(
        "the wait that nobody reported",
        |kind| matches!(kind, EventKind::HookForgotten { conn, .. } if *conn == Some(id)),
    );
    told.finish();
}

fn a_queue_that_nobody_comes_to_is_told_of(setup: Setup) {
    let pool = PoolConfig::default()
        .groups(1)
        .max_threads(2)
        .kickup(Duration::from_millis(20));
    let told = Told::new(setup, Options::pool(pool));
    let mut clients: Vec<_> = (0..3).map(|_| told.client()).collect();
    let [first, second, third] = &mut clients[..] else {
        unreachable!("there are three")
    };
    first.send("WAIT gate");
    second.send("WAIT gate");
    until("both wait", || told.stage.running("WAIT").now == 2);
    let handle = told.server.handle();
    assert!(handle.find(third.id).is_some_and(|conn| conn.poke()));
    told.until("the overload", |kind| {
        matches!(kind, EventKind::Overloaded { group: 0, .. })
    });
    told.finish();
}
