//! The worlds that the tests run and `examples/simulate.rs` replays.

use std::time::Duration;

use super::rng::Rng;
use super::{Class, Faults, Load, Op, Scenario, Span, SpawnFailure};
use crate::config::PoolConfig;

/// What [`scenario`] knows.
pub const NAMES: [&str; 9] = [
    "steady",
    "heavy",
    "blockers",
    "convoy",
    "bursts",
    "lost-ticks",
    "kills",
    "chain",
    "swarm",
];

const fn ms(least: u64, most: u64) -> Span {
    Span::us(1000 * least, 1000 * most)
}

fn class(name: &'static str, clients: usize, load: Load, command: &[Op]) -> Class {
    Class {
        name,
        clients,
        load,
        pipeline: 1,
        high: false,
        command: command.to_vec(),
        hang_up_per_mille: 0,
    }
}

fn light(clients: usize) -> Class {
    let load = Load::Open(ms(5, 35));
    class("light", clients, load, &[Op::Burn(Span::us(5, 60))])
}

fn heavy(clients: usize) -> Class {
    let load = Load::Closed(Span::us(10, 1000));
    class("heavy", clients, load, &[Op::Burn(ms(5, 60))])
}

fn blocker(clients: usize) -> Class {
    let command = [
        Op::Burn(Span::us(5, 50)),
        Op::Block(ms(1, 40)),
        Op::Burn(Span::us(5, 50)),
    ];
    class("blocker", clients, Load::Closed(ms(1, 10)), &command)
}

fn waiter(clients: usize) -> Class {
    let command = [Op::Burn(Span::us(5, 50)), Op::Wait(ms(1, 40))];
    class("waiter", clients, Load::Closed(ms(1, 10)), &command)
}

/// Everybody wants the lock of one, and some of these that of another.
fn convoy(clients: usize, hold: Span) -> Class {
    let command = [
        Op::Burn(Span::us(5, 50)),
        Op::Lock(0),
        Op::Burn(Span::us(20, 200)),
        Op::Lock(1),
        Op::Wait(hold),
        Op::Unlock(1),
        Op::Unlock(0),
        Op::Burn(Span::us(5, 50)),
    ];
    class("convoy", clients, Load::Closed(Span::us(0, 3000)), &command)
}

/// A world where all is well.
fn world(classes: Vec<Class>) -> Scenario {
    Scenario {
        cores: 2,
        slice: Duration::from_millis(3),
        switch: Duration::from_micros(2),
        duration: Duration::from_millis(300),
        abrupt: false,
        pool: PoolConfig::default()
            .groups(1)
            .max_threads(64)
            .kickup(Duration::from_millis(100)),
        classes,
        faults: Faults {
            spawns: SpawnFailure::Never,
            lost_ticks_per_mille: 0,
            kill_every: None,
        },
    }
}

fn pipelining(class: Class) -> Class {
    Class {
        name: "pipeline",
        pipeline: 150,
        load: Load::Closed(ms(5, 20)),
        ..class
    }
}

/// One of [`NAMES`]. The seed is that of the run; only `swarm` draws its world from it.
pub fn scenario(name: &str, seed: u64) -> Option<Scenario> {
    let scenario = match name {
        "steady" => {
            let urgent = Class {
                name: "urgent",
                high: true,
                ..light(4)
            };
            world(vec![light(20), urgent, pipelining(light(1))])
        }
        "heavy" => Scenario {
            cores: 1,
            ..world(vec![light(12), heavy(5)])
        },
        "blockers" => world(vec![light(12), blocker(12)]),
        "convoy" => world(vec![light(12), convoy(16, ms(0, 3)), waiter(4)]),
        "chain" => {
            let command = [
                Op::Lock(0),
                Op::Burn(Span::us(900, 1500)),
                Op::Unlock(0),
                Op::Burn(Span::us(5, 50)),
            ];
            let chain = class("chain", 60, Load::Closed(ms(0, 40)), &command);
            world(vec![light(12), chain])
        }
        "bursts" => {
            let burst = Load::Burst(Duration::from_millis(40));
            let load = |class: Class| Class {
                load: burst,
                ..class
            };
            let mut bursts = world(vec![load(light(30)), load(blocker(8)), waiter(6)]);
            bursts.faults.spawns = SpawnFailure::PerMille(400);
            bursts
        }
        "lost-ticks" => {
            let mut lost = world(vec![light(12), blocker(6), heavy(2)]);
            lost.faults.lost_ticks_per_mille = 100;
            lost
        }
        "kills" => {
            let hasty = |class: Class| Class {
                hang_up_per_mille: 150,
                ..class
            };
            let classes = [light(12), blocker(4), convoy(4, ms(0, 3)), heavy(1)];
            let mut kills = world(classes.into_iter().map(hasty).collect());
            kills.faults.kill_every = Some(Duration::from_millis(2));
            kills
        }
        "swarm" => swarm(&mut Rng::new(!seed)),
        _ => return None,
    };
    Some(scenario)
}

/// Everything from the seed.
fn swarm(rng: &mut Rng) -> Scenario {
    #[allow(clippy::cast_possible_truncation)] // a small number
    fn some(rng: &mut Rng, most: u64) -> usize {
        rng.below(most + 1) as usize
    }
    let mut said = heavy(some(rng, 2));
    said.name = "said";
    said.command.insert(0, Op::SayLong);
    let all = [
        light(1 + some(rng, 15)),
        pipelining(light(some(rng, 2))),
        heavy(some(rng, 4)),
        said,
        blocker(some(rng, 8)),
        waiter(some(rng, 8)),
        convoy(some(rng, 8), ms(0, 5)),
    ];
    let mut classes: Vec<Class> = all.into_iter().filter(|class| class.clients > 0).collect();
    for class in &mut classes {
        class.high = rng.chance(200);
        if rng.chance(300) {
            class.hang_up_per_mille = 100;
        }
    }
    let mut swarm = world(classes);
    swarm.cores = 1 + some(rng, 2);
    swarm.abrupt = rng.chance(300);
    swarm.slice = Duration::from_micros(500 + rng.below(8000));
    swarm.pool = swarm
        .pool
        .oversubscribe(1 + some(rng, 5))
        .max_threads(2 + some(rng, 30))
        .idle_timeout(Duration::from_millis(5 + rng.below(500)))
        .stall_limit(Duration::from_millis(1 + rng.below(20)))
        .kickup(Duration::from_millis(10 + rng.below(100)))
        .creation_throttle(Duration::from_millis(rng.below(60)));
    if rng.chance(300) {
        swarm.faults.spawns = SpawnFailure::PerMille(300);
    } else if rng.chance(300) {
        swarm.faults.spawns = SpawnFailure::Nth(1 + rng.below(4));
    }
    if rng.chance(300) {
        swarm.faults.lost_ticks_per_mille = 100;
    }
    if rng.chance(300) {
        swarm.faults.kill_every = Some(Duration::from_millis(1 + rng.below(10)));
    }
    swarm
}
