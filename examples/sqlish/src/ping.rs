//! What a `PING` costs, if it is to cost anything: a command of a known size, to measure schedulers
//! with.

use std::hint;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thread_group_pool::wait::{self, WaitKind};

/// CPU to be burnt by each `PING`, without a lock and under one that all of them share.
#[derive(Debug)]
pub(crate) struct PingLoad {
    work: u64,
    locked: u64,
    lock: Mutex<()>,
}

impl PingLoad {
    /// Nothing, if both are zero.
    pub(crate) fn new(work: Duration, locked: Duration) -> Option<Self> {
        if work.is_zero() && locked.is_zero() {
            return None;
        }
        let each = turn();
        let turns = |time: Duration| (time.as_nanos() as f64 / each).round() as u64;
        Some(Self {
            work: turns(work),
            locked: turns(locked),
            lock: Mutex::new(()),
        })
    }

    pub(crate) fn carry(&self) {
        burn(self.work);
        if self.locked > 0 {
            // Only who finds the lock taken waits for it, and says so.
            let _held = match self.lock.try_lock() {
                Some(held) => held,
                None => wait::during(WaitKind::TableLock, || self.lock.lock()),
            };
            burn(self.locked);
        }
    }
}

/// Turns of a chain in which each needs the one before, so that no compiler and no core shortens it.
fn burn(turns: u64) {
    let mut x = turns;
    for _ in 0..turns {
        x = hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1);
    }
    hint::black_box(x);
}

/// How long a turn takes, in nanoseconds: the shortest of some tries, the others were disturbed. By
/// turns rather than by the clock, because the clock goes on for a thread that has lost its CPU.
fn turn() -> f64 {
    const TURNS: u64 = 100_000;
    let tries = (0..20).map(|_| {
        let begun = Instant::now();
        burn(TURNS);
        begun.elapsed()
    });
    let least = tries.min().unwrap_or_default();
    least.as_nanos().max(1) as f64 / TURNS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_costs_nothing_unless_it_is_to() {
        assert!(PingLoad::new(Duration::ZERO, Duration::ZERO).is_none());
    }

    #[test]
    fn twice_the_time_is_twice_the_turns() {
        let load = PingLoad::new(Duration::from_micros(100), Duration::from_micros(200));
        let load = load.expect("it costs something");
        assert!(load.work > 0);
        let ratio = load.locked as f64 / load.work as f64;
        assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
        load.carry();
        assert!(!load.lock.is_locked());
    }
}
