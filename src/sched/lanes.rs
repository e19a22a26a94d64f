//! The lanes: who is served next.

use std::collections::VecDeque;

use super::Nanos;
use super::table::Key;

/// A queue of a group, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Sessions that others may be waiting for. They may have a thread beyond the cap.
    Holding,
    /// Logins, and connections that are to be closed or have been resumed.
    Control,
    High,
    Low,
    /// Low, by sessions whose last command was long. Served like `Low` while fewer than
    /// `oversubscribe` long commands run, not at all otherwise.
    Long,
}

impl Lane {
    pub(crate) const ALL: [Self; 5] = [
        Self::Holding,
        Self::Control,
        Self::High,
        Self::Low,
        Self::Long,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Holding => "holding",
            Self::Control => "control",
            Self::High => "high",
            Self::Low => "low",
            Self::Long => "long",
        }
    }
}

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneSet(u8);

impl LaneSet {
    pub(super) const ALL: Self = Self(0b11111);
    /// All but the long one.
    pub(super) const SHORT: Self = Self(0b01111);
    /// What may run beyond the cap.
    pub(super) const HOLDING: Self = Self::of(Lane::Holding);
    const AGEING: Self = Self(Self::of(Lane::Low).0 | Self::of(Lane::Long).0);
    /// What goes first by its nature, and not because it has come first.
    const URGENT: Self = Self(Self::of(Lane::Holding).0 | Self::of(Lane::Control).0);

    const fn of(lane: Lane) -> Self {
        Self(1 << lane as u8)
    }

    const fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    const fn without(self, lane: Lane) -> Self {
        Self(self.0 & !Self::of(lane).0)
    }

    const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn has(self, lane: Lane) -> bool {
        !self.and(Self::of(lane)).is_empty()
    }

    /// The most urgent one.
    fn first(self) -> Option<Lane> {
        Lane::ALL.get(self.0.trailing_zeros() as usize).copied()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    lanes: [VecDeque<(Key, Nanos)>; 5],
    /// Those that are not empty.
    filled: LaneSet,
    len: usize,
    /// Somebody who had grown old was let past the urgent ones just now: they are next.
    yielded: bool,
}

impl Lanes {
    fn lane(&mut self, lane: Lane) -> &mut VecDeque<(Key, Nanos)> {
        &mut self.lanes[lane as usize]
    }

    pub(super) fn push(&mut self, lane: Lane, key: Key, now: Nanos) {
        self.lane(lane).push_back((key, now));
        self.filled.0 |= LaneSet::of(lane).0;
        self.len += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether `pop` would find somebody.
    pub(super) fn offer(&self, from: LaneSet) -> bool {
        !self.filled.and(from).is_empty()
    }

    /// Takes the next connection: holders and control first, then whoever has waited for `kickup`
    /// in a lower lane (the oldest such), then high, low, long.
    /// Says since when it has waited too.
    ///
    /// Those who have waited for `kickup` take turns with holders and control: one of these may have
    /// more to do whenever it is asked, and would be alone in the group.
    pub(super) fn pop(
        &mut self,
        from: LaneSet,
        now: Nanos,
        kickup: Nanos,
    ) -> Option<(Lane, Key, Nanos)> {
        let open = self.filled.and(from);
        let first = open.first()?;
        let mut lane = first;
        let yielded = std::mem::take(&mut self.yielded);
        if open != LaneSet::of(first) {
            let urgent = LaneSet::URGENT.has(first);
            let ageing = match first {
                Lane::Holding | Lane::Control if yielded => LaneSet::default(),
                Lane::Holding | Lane::Control => open.without(first),
                Lane::High | Lane::Low => open.and(LaneSet::AGEING),
                Lane::Long => LaneSet::default(),
            };
            lane = self.aged(ageing, now, kickup).unwrap_or(first);
            self.yielded = urgent && lane != first;
        }
        let (key, at) = self.lane(lane).pop_front()?;
        self.popped(lane);
        Some((lane, key, at))
    }

    fn popped(&mut self, lane: Lane) {
        self.len -= 1;
        if self.lane(lane).is_empty() {
            self.filled.0 &= !LaneSet::of(lane).0;
        }
    }

    /// The one of these lanes in which somebody has waited longest, and for `kickup` at least.
    fn aged(&self, lanes: LaneSet, now: Nanos, kickup: Nanos) -> Option<Lane> {
        [Lane::Control, Lane::High, Lane::Low, Lane::Long]
            .into_iter()
            .filter(|lane| lanes.has(*lane))
            .filter_map(|lane| Some((self.lanes[lane as usize].front()?.1, lane)))
            .filter(|(at, _)| now.since(*at) >= kickup)
            .min_by_key(|(at, _)| *at)
            .map(|(_, lane)| lane)
    }

    /// Moves whoever has waited longest in the lane `from`, and for `kickup` at least, to another:
    /// to its head, or behind whoever is there.
    pub(super) fn kick_up(
        &mut self,
        (from, to): (Lane, Lane),
        ahead: bool,
        now: Nanos,
        kickup: Nanos,
    ) -> Option<Key> {
        let (key, at) = *self.lane(from).front()?;
        if now.since(at) < kickup {
            return None;
        }
        self.lane(from).pop_front();
        self.popped(from);
        self.push(to, key, at);
        if ahead {
            self.lane(to).rotate_right(1);
        }
        Some(key)
    }

    /// Moves a connection to another lane. Searches for it: a kill is rare.
    pub(super) fn promote(&mut self, key: Key, (from, to): (Lane, Lane)) {
        let lane = self.lane(from);
        if let Some((key, at)) = lane
            .iter()
            .position(|(k, _)| *k == key)
            .and_then(|at| lane.remove(at))
        {
            self.popped(from);
            self.push(to, key, at);
        }
    }

    /// What, beside who is where, says who is next.
    #[cfg(all(any(test, feature = "walk"), not(loom)))]
    pub(super) fn yielded(&self) -> bool {
        self.yielded
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Since when whoever has waited longest in a lane has waited.
    pub(super) fn oldest(&self, lane: Lane) -> Option<Nanos> {
        self.lanes[lane as usize].front().map(|(_, at)| *at)
    }

    /// Who is in a lane from this place on, each with when it came, as many as there is room for.
    /// Returns where to go on.
    pub(super) fn see(
        &self,
        lane: Lane,
        from: usize,
        into: &mut Vec<(Key, Nanos)>,
    ) -> Option<usize> {
        let queue = &self.lanes[lane as usize];
        let to = queue.len().min(from + into.capacity() - into.len());
        into.extend(queue.range(from.min(to)..to));
        (to < queue.len()).then_some(to)
    }

    /// Everybody, lane by lane, each with when it came.
    #[cfg(all(any(test, feature = "walk"), not(loom)))]
    pub(super) fn entries(&self) -> impl Iterator<Item = (Lane, Key, Nanos)> {
        Lane::ALL
            .into_iter()
            .zip(&self.lanes)
            .flat_map(|(lane, queue)| queue.iter().map(move |(key, at)| (lane, *key, *at)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::from_token(n)
    }

    const UP: (Lane, Lane) = (Lane::Long, Lane::Low);

    fn drained(lanes: &mut Lanes, from: LaneSet, now: Nanos) -> Vec<Key> {
        std::iter::from_fn(|| lanes.pop(from, now, Nanos(1000)))
            .map(|(_, key, _)| key)
            .collect()
    }

    #[test]
    fn holders_and_control_go_first_and_then_high_before_low_before_long() {
        let mut lanes = Lanes::default();
        for (n, lane) in [
            Lane::Long,
            Lane::Low,
            Lane::High,
            Lane::Control,
            Lane::Holding,
        ]
        .into_iter()
        .enumerate()
        {
            lanes.push(lane, key(n), Nanos(0));
        }
        let order = drained(&mut lanes, LaneSet::ALL, Nanos(1));
        assert_eq!(order, [4, 3, 2, 1, 0].map(key));
    }

    #[test]
    fn age_promotes_when_a_command_is_taken() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Long, key(1), Nanos(0));
        lanes.push(Lane::Low, key(2), Nanos(5));
        lanes.push(Lane::High, key(3), Nanos(9));
        let order = drained(&mut lanes, LaneSet::ALL, Nanos(1005));
        assert_eq!(order, [key(1), key(2), key(3)]);
    }

    #[test]
    fn the_old_take_turns_with_those_who_always_go_first() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Low, key(1), Nanos(0));
        lanes.push(Lane::High, key(2), Nanos(1));
        lanes.push(Lane::Control, key(3), Nanos(2));
        lanes.push(Lane::Low, key(4), Nanos(900));
        // Whoever holds something is back as soon as it has had its turn.
        lanes.push(Lane::Holding, key(0), Nanos(0));
        let mut take = |now| {
            let (lane, taken, _) = lanes.pop(LaneSet::ALL, now, Nanos(1000)).unwrap();
            if lane == Lane::Holding {
                lanes.push(lane, taken, now);
            }
            taken
        };
        let order = [999, 1000, 1001, 1002, 1003, 1004, 1005].map(|now| take(Nanos(now)));
        assert_eq!(
            order,
            [0, 1, 0, 2, 0, 3, 0].map(key),
            "the last one is not old yet"
        );
    }

    #[test]
    fn age_moves_the_oldest_of_the_long_to_the_head_of_the_low() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Long, key(1), Nanos(0));
        lanes.push(Lane::Long, key(2), Nanos(5));
        lanes.push(Lane::Low, key(3), Nanos(9));
        assert_eq!(lanes.kick_up(UP, true, Nanos(999), Nanos(1000)), None);
        assert_eq!(
            lanes.kick_up(UP, true, Nanos(1005), Nanos(1000)),
            Some(key(1))
        );
        let order = drained(&mut lanes, LaneSet::SHORT, Nanos(1005));
        assert_eq!(order, [key(1), key(3)]);
    }

    #[test]
    fn at_the_bound_the_long_wait_and_the_short_do_not() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Long, key(1), Nanos(0));
        assert!(!lanes.offer(LaneSet::SHORT));
        assert_eq!(lanes.pop(LaneSet::SHORT, Nanos(9999), Nanos(10)), None);
        lanes.push(Lane::Low, key(2), Nanos(0));
        assert_eq!(drained(&mut lanes, LaneSet::SHORT, Nanos(9999)), [key(2)]);
        assert_eq!(drained(&mut lanes, LaneSet::ALL, Nanos(9999)), [key(1)]);
    }
}
