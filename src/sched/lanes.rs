//! The lanes: who is served next.

use std::collections::VecDeque;

use super::Nanos;
use super::table::Key;

/// A queue of a group, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Logins, connections that are to be closed, and sessions that others may wait for.
    Control,
    High,
    Low,
    /// Low, by sessions whose last command was long. Served like `Low` while fewer than
    /// `oversubscribe` long commands run, not at all otherwise.
    Long,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    control: VecDeque<(Key, Nanos)>,
    high: VecDeque<(Key, Nanos)>,
    low: VecDeque<(Key, Nanos)>,
    long: VecDeque<(Key, Nanos)>,
}

impl Lanes {
    fn lane(&mut self, lane: Lane) -> &mut VecDeque<(Key, Nanos)> {
        match lane {
            Lane::Control => &mut self.control,
            Lane::High => &mut self.high,
            Lane::Low => &mut self.low,
            Lane::Long => &mut self.long,
        }
    }

    pub(super) fn push(&mut self, lane: Lane, key: Key, now: Nanos) {
        self.lane(lane).push_back((key, now));
    }

    pub(super) fn len(&self) -> usize {
        self.control.len() + self.high.len() + self.low.len() + self.long.len()
    }

    /// Whether `pop` would find somebody.
    pub(super) fn offer(&self, long_allowed: bool) -> bool {
        !self.control.is_empty()
            || !self.high.is_empty()
            || !self.low.is_empty()
            || (long_allowed && !self.long.is_empty())
    }

    /// Takes the next connection: control first, then whoever has waited for `kickup` in a lower
    /// lane (the oldest such), then high, low, long.
    pub(super) fn pop(&mut self, long_allowed: bool, now: Nanos, kickup: Nanos) -> Option<Key> {
        let aged = |lane: &VecDeque<(Key, Nanos)>| {
            lane.front()
                .map(|(_, at)| *at)
                .filter(|at| now.since(*at) >= kickup)
        };
        let low = aged(&self.low);
        let long = aged(&self.long).filter(|_| long_allowed);
        let lane = if !self.control.is_empty() {
            Lane::Control
        } else if let Some(at) = long.filter(|at| low.is_none_or(|low| *at < low)) {
            debug_assert!(at <= now);
            Lane::Long
        } else if low.is_some() {
            Lane::Low
        } else if !self.high.is_empty() {
            Lane::High
        } else if !self.low.is_empty() {
            Lane::Low
        } else if long_allowed {
            Lane::Long
        } else {
            return None;
        };
        self.lane(lane).pop_front().map(|(key, _)| key)
    }

    /// Moves whoever has waited longest in the long lane, and for `kickup` at least, to the low one.
    pub(super) fn kick_up(&mut self, now: Nanos, kickup: Nanos) -> Option<Key> {
        let (key, at) = *self.long.front()?;
        if now.since(at) < kickup {
            return None;
        }
        self.long.pop_front();
        self.low.push_front((key, at));
        Some(key)
    }

    /// Moves a connection to the control lane. Searches for it: a kill is rare.
    pub(super) fn promote(&mut self, from: Lane, key: Key) {
        let lane = self.lane(from);
        if let Some(entry) = lane
            .iter()
            .position(|(k, _)| *k == key)
            .and_then(|at| lane.remove(at))
        {
            self.control.push_back(entry);
        }
    }

    pub(super) fn clear(&mut self) {
        for lane in [Lane::Control, Lane::High, Lane::Low, Lane::Long] {
            self.lane(lane).clear();
        }
    }
}

#[cfg(all(test, not(loom)))]
impl Lanes {
    /// Everybody, lane by lane, each with when it came.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Lane, Key, Nanos)> {
        [
            (Lane::Control, &self.control),
            (Lane::High, &self.high),
            (Lane::Low, &self.low),
            (Lane::Long, &self.long),
        ]
        .into_iter()
        .flat_map(|(lane, queue)| queue.iter().map(move |(key, at)| (lane, *key, *at)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::from_token(n)
    }

    #[test]
    fn control_goes_first_and_then_high_before_low_before_long() {
        let mut lanes = Lanes::default();
        for (n, lane) in [Lane::Long, Lane::Low, Lane::High, Lane::Control]
            .into_iter()
            .enumerate()
        {
            lanes.push(lane, key(n), Nanos(0));
        }
        let order: Vec<_> = std::iter::from_fn(|| lanes.pop(true, Nanos(1), Nanos(1000))).collect();
        assert_eq!(order, [key(3), key(2), key(1), key(0)]);
    }

    #[test]
    fn age_promotes_when_a_command_is_taken() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Long, key(1), Nanos(0));
        lanes.push(Lane::Low, key(2), Nanos(5));
        lanes.push(Lane::High, key(3), Nanos(9));
        let order: Vec<_> =
            std::iter::from_fn(|| lanes.pop(true, Nanos(1005), Nanos(1000))).collect();
        assert_eq!(order, [key(1), key(2), key(3)]);
    }

    #[test]
    fn age_moves_the_oldest_of_the_long_to_the_head_of_the_low() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Long, key(1), Nanos(0));
        lanes.push(Lane::Long, key(2), Nanos(5));
        lanes.push(Lane::Low, key(3), Nanos(9));
        assert_eq!(lanes.kick_up(Nanos(999), Nanos(1000)), None);
        assert_eq!(lanes.kick_up(Nanos(1005), Nanos(1000)), Some(key(1)));
        let order: Vec<_> =
            std::iter::from_fn(|| lanes.pop(false, Nanos(1005), Nanos(1000))).collect();
        assert_eq!(order, [key(1), key(3)]);
    }

    #[test]
    fn at_the_bound_the_long_wait_and_the_short_do_not() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Long, key(1), Nanos(0));
        assert!(!lanes.offer(false));
        assert_eq!(lanes.pop(false, Nanos(9999), Nanos(10)), None);
        lanes.push(Lane::Low, key(2), Nanos(0));
        assert_eq!(lanes.pop(false, Nanos(9999), Nanos(10)), Some(key(2)));
        assert_eq!(lanes.pop(true, Nanos(9999), Nanos(10)), Some(key(1)));
    }
}
