//! The scheduler over virtual time: some hundred worlds, each from its seed.

use std::thread;
use std::time::Duration;

use thread_group_pool::sim::{self, Report, scenario};

/// Runs a named scenario with one seed. What breaks says how to see it again, a panic too.
fn play(name: &'static str, seed: u64) -> Report {
    struct Replay(&'static str, u64);

    impl Drop for Replay {
        fn drop(&mut self) {
            if thread::panicking() {
                let Self(name, seed) = self;
                eprintln!(
                    "to see it again: cargo run --example simulate --features sim -- --seed {seed} --scenario {name}"
                );
            }
        }
    }

    let _replay = Replay(name, seed);
    let report = sim::run(&scenario(name, seed).expect("a scenario"), seed);
    assert!(report.violations.is_empty(), "{name}, {seed}:\n{report}");
    report
}

fn play_all(name: &'static str, seeds: std::ops::Range<u64>) -> Vec<Report> {
    seeds.map(|seed| play(name, seed)).collect()
}

/// The median over runs.
fn median(reports: &[Report], of: impl Fn(&Report) -> Duration) -> Duration {
    let mut all: Vec<_> = reports.iter().map(of).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

#[test]
fn steady_light_load_keeps_the_invariants() {
    let reports = play_all("steady", 0..40);
    assert!(reports.iter().all(|r| r.classes[0].answered > 100));
}

#[test]
fn short_commands_beside_burning_ones_keep_the_invariants() {
    let reports = play_all("heavy", 0..40);
    let slow_light = median(&reports, |r| r.classes[0].p99);
    let heavy = median(&reports, |r| r.classes[1].p50);
    assert!(slow_light < heavy, "{slow_light:?} {heavy:?}");
}

#[test]
fn commands_that_block_unseen_keep_the_invariants() {
    let reports = play_all("blockers", 0..40);
    assert!(reports.iter().all(|r| r.threads_peak > 2));
}

#[test]
fn a_lock_convoy_keeps_the_invariants() {
    let reports = play_all("convoy", 0..40);
    assert!(reports.iter().all(|r| r.classes[1].answered > 10));
}

/// While waiters that return from their wait are on the CPU one after the other, each of them fresh
/// before the last one ends, nobody goes to the poller: each takes the next for who will.
#[test]
fn a_chain_of_returning_waiters_leaves_nobodys_input_unseen() {
    play_all("chain", 0..40);
}

#[test]
fn bursts_with_failing_spawns_keep_the_invariants() {
    play_all("bursts", 0..40);
}

#[test]
fn lost_ticks_keep_the_invariants() {
    play_all("lost-ticks", 0..40);
}

#[test]
fn hang_ups_and_kills_keep_the_invariants() {
    let reports = play_all("kills", 0..40);
    assert!(reports.iter().any(|r| r.classes[0].abandoned > 0));
}

#[test]
fn worlds_drawn_from_a_seed_keep_the_invariants() {
    play_all("swarm", 0..120);
}

#[test]
fn a_seed_gives_the_same_trace_every_time() {
    for name in sim::NAMES {
        let run = |seed| sim::run(&scenario(name, seed).expect("a scenario"), seed);
        let (one, two, other) = (run(7), run(7), run(8));
        assert_eq!(one.trace, two.trace);
        assert_eq!(one.trace_hash, two.trace_hash);
        assert_ne!(one.trace_hash, other.trace_hash, "{name}");
    }
}
