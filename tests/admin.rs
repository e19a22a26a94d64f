//! Promises about the admin listener: whoever looks after the server gets in and is served when nobody
//! else is.

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::client::Client;
use common::stage::Stage;
use common::{AMPLE, Options, Setup, everywhere, in_the_pool, until};
use thread_group_pool::{
    Limits, Listen, ListenerState, LocalAddr, PoolConfig, Server, ServerHandle,
};

everywhere! {
    an_admin_is_seen_and_kills_and_is_killed_as_all_others,
    an_admin_counts_for_no_limit_but_that_of_admins,
    an_admin_can_look_until_the_drain_is_over,
    other_limits_hold_for_admins_too,
    #[cfg(unix)]
    an_admin_gets_in_when_no_descriptor_is_left,
    #[cfg(unix)]
    without_threads_an_admin_has_one,
}

in_the_pool! {
    an_admin_is_served_when_every_worker_is_blocked,
}

struct Site {
    server: Server,
    handle: ServerHandle,
    stage: Arc<Stage>,
    at: LocalAddr,
    admin_at: LocalAddr,
}

fn site(setup: Setup, options: Options) -> Site {
    let stage = Arc::new(Stage::default());
    let server = Server::builder()
        .scheduler(setup.scheduler(&options))
        .limits(options.limits)
        .admin(setup.listen(), Arc::clone(&stage))
        .listen(setup.listen(), Arc::clone(&stage))
        .build()
        .expect("the server starts");
    Site {
        handle: server.handle(),
        at: server.local_addrs()[1].clone(),
        admin_at: server.local_addrs()[0].clone(),
        server,
        stage,
    }
}

impl Site {
    fn client(&self) -> Client {
        Client::connect(&self.at)
    }

    fn admin(&self) -> Client {
        Client::connect(&self.admin_at)
    }

    fn finish(self) {
        self.stage.open_all();
        let report = self.server.drain(AMPLE);
        assert!(report.clean(), "{report}");
        let stats = self.handle.stats();
        assert_eq!((stats.connections, stats.admin_connections), (0, 0));
        let sessions = self.stage.sessions();
        assert_eq!(sessions.opened, sessions.dropped, "each session is dropped");
    }
}

fn an_admin_is_seen_and_kills_and_is_killed_as_all_others(setup: Setup) {
    let site = site(setup, Options::default());
    let mut client = site.client();
    let mut admin = site.admin();
    let mut other = site.admin();
    let shown: Vec<_> = site
        .handle
        .connections()
        .iter()
        .map(|info| info.id)
        .collect();
    let mut ids = [client.id, admin.id, other.id];
    ids.sort_unstable();
    assert_eq!(shown, ids);
    assert_eq!(admin.ask("LISTENER"), "0");
    assert_eq!(client.ask("LISTENER"), "1");
    let infos = site.handle.listeners();
    assert_eq!((infos[0].admin, infos[1].admin), (true, false));
    assert_eq!((infos[0].accepted, infos[1].accepted), (2, 1));
    assert!(
        infos
            .iter()
            .all(|info| info.state == ListenerState::Accepting)
    );
    assert_eq!(admin.ask(&format!("KILL {}", other.id)), "true");
    assert!(other.rest().contains("killed"));
    assert_eq!(admin.ask(&format!("KILL {}", client.id)), "true");
    assert!(client.rest().contains("killed"));
    let mut client = site.client();
    assert_eq!(client.ask(&format!("KILL {}", admin.id)), "true");
    admin.rest();
    client.ping();
    site.finish();
}

fn other_limits_hold_for_admins_too(setup: Setup) {
    let limits = Limits::default().max_admin_connections(1);
    let site = site(setup, Options::limits(limits));
    let change = |change: &dyn Fn(Limits) -> Limits| {
        let (scheduler, limits) = site.handle.configuration();
        let changed = site.handle.reconfigure(scheduler, change(limits));
        changed.expect("it may be changed")
    };
    let mut admins = vec![site.admin()];
    change(&|limits| limits.max_admin_connections(5));
    // Each of them has a thread.
    admins.extend([(); 4].map(|()| site.admin()));
    admins.iter_mut().for_each(Client::ping);
    let soon = Duration::from_millis(100);
    change(&|limits| limits.read_timeout(soon).idle_timeout(soon));
    for admin in &mut admins {
        assert!(admin.rest().contains("idle_timeout"));
    }
    site.finish();
}

fn an_admin_counts_for_no_limit_but_that_of_admins(setup: Setup) {
    let limits = Limits::default()
        .max_connections(1)
        .max_logins(1)
        .max_per_address(2)
        .max_admin_connections(2);
    let site = site(setup, Options::limits(limits));
    let mut client = site.client();
    let mut admins = [site.admin(), site.admin()];
    for _ in 0..3 {
        let refused = Client::connect_only(&site.admin_at).rest();
        assert!(refused.contains("refused: too many"), "{refused}");
    }
    until("all is counted", || {
        let stats = site.handle.stats();
        (stats.admin_connections, stats.admin_refused) == (2, 3)
    });
    admins.iter_mut().for_each(Client::ping);
    client.ping();
    let stats = site.handle.stats();
    assert_eq!((stats.connections, stats.sessions), (1, 1));
    assert_eq!(stats.refused, 0);
    drop(admins);
    until("there is room", || {
        site.handle.stats().admin_connections == 0
    });
    site.admin().ping();
    site.finish();
}

/// All threads that there may be wait for one lock, and whoever comes waits behind them.
fn an_admin_is_served_when_every_worker_is_blocked(setup: Setup) {
    for word in ["WAIT", "BLOCK"] {
        let pool = PoolConfig::default().groups(2).max_threads(4);
        let site = site(setup, Options::pool(pool));
        let mut clients: Vec<_> = (0..12).map(|_| site.client()).collect();
        for client in &mut clients {
            client.send(&format!("{word} gate"));
        }
        until("every worker is blocked", || {
            site.stage.running(word).now >= 4 || site.handle.stats().threads >= 4
        });
        let mut admin = site.admin();
        admin.ping();
        // One that waits in the queue, and goes without a worker's help when there is one.
        let id = clients.last().expect("one of twelve").id;
        assert_eq!(admin.ask(&format!("KILL {id}")), "true");
        site.handle.queues();
        assert!(site.handle.connections().len() >= 12);
        assert_eq!(admin.ask("OPEN gate"), "open");
        for client in &mut clients[..11] {
            assert_eq!(
                client.line(),
                if word == "WAIT" { "waited" } else { "blocked" }
            );
        }
        site.client().ping();
        site.finish();
    }
}

fn an_admin_can_look_until_the_drain_is_over(setup: Setup) {
    let site = site(setup, Options::default());
    let mut busy = site.client();
    busy.send("WAIT gate");
    until("it waits", || site.stage.running("WAIT").now == 1);
    let mut idle = site.client();
    let mut admin = site.admin();
    let Site {
        server,
        handle,
        stage,
        admin_at,
        ..
    } = site;
    let drain = thread::spawn(move || server.drain(AMPLE));
    assert!(idle.rest().starts_with("farewell"));
    admin.ping();
    let mut late = Client::connect(&admin_at);
    assert_eq!(late.ask(&format!("KILL {}", idle.id)), "false");
    until("three are left", || handle.connections().len() == 3);
    assert_eq!(late.ask("OPEN gate"), "open");
    assert_eq!(busy.line(), "waited");
    assert!(late.rest().contains("shutting down"));
    assert!(admin.rest().contains("shutting down"));
    assert!(drain.join().expect("no panic").clean());
    assert_eq!(stage.sessions().opened, 4);
}

/// The admin's acceptor has kept one back.
#[cfg(unix)]
fn an_admin_gets_in_when_no_descriptor_is_left(setup: Setup) {
    use std::fs::File;

    use common::process::{alone, descriptors, limit};
    use rustix::process::{Resource, getrlimit};

    alone(setup.test, || {
        let site = site(setup, Options::default());
        let mut client = site.client();
        // The client's own sockets exist before.
        let spare: Vec<_> = (0..2).map(|_| File::open("/dev/null")).collect();
        let before = getrlimit(Resource::Nofile).current;
        limit(Resource::Nofile, Some(descriptors() as u64 + 20));
        let mut fill = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            fill.push(file);
        }
        // Room for the client's end, and none for the server's.
        drop(fill.pop());
        let mut admin = site.admin();
        admin.ping();
        client.ping();
        assert_eq!(admin.ask(&format!("KILL {}", client.id)), "true");
        client.rest();
        drop((fill, spare));
        limit(Resource::Nofile, before);
        site.admin().ping();
        site.client().ping();
        site.finish();
    });
}

/// It was started with the server, and is kept.
#[cfg(unix)]
fn without_threads_an_admin_has_one(setup: Setup) {
    use common::process::{allow_threads, alone, forbid_threads};

    alone(setup.test, || {
        let site = site(setup, Options::default());
        let mut client = site.client();
        client.ping();
        // Its thread has begun, and has what memory it takes.
        Client::connect(&site.admin_at).ping();
        forbid_threads();
        let refused = thread::Builder::new().spawn(|| ());
        assert!(refused.is_err(), "there are threads still");
        // It may be on its way back from the one before, and that is a refusal.
        let admin = || loop {
            let mut admin = Client::connect_only(&site.admin_at);
            if admin.line().starts_with("hello") {
                return admin;
            }
        };
        for _ in 0..100 {
            admin().ping();
        }
        let mut admin = admin();
        assert_eq!(admin.ask(&format!("KILL {}", client.id)), "true");
        client.rest();
        allow_threads();
        site.client().ping();
        drop(admin);
        site.finish();
    });
}

#[test]
fn a_server_may_have_nothing_but_an_admin_listener() {
    let stage = Arc::new(Stage::default());
    let server = Server::builder()
        .admin(Listen::tcp("127.0.0.1:0"), Arc::clone(&stage))
        .build()
        .expect("the server starts");
    Client::connect(&server.local_addrs()[0]).ping();
    assert!(server.drain(AMPLE).clean());
}
