//! Any sequence of what may happen to a group leaves the scheduler in order, under each policy.
//!
//! The first byte of an input chooses the policy, each other one a move of the walk in
//! `src/sched/walk.rs`, whose checks these are.
//! Run it by `cargo fuzz run -s none sched_events`, with `fuzz/seeds/sched_events` to start from.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| thread_group_pool::walk_by_bytes(input));
