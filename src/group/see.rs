//! What there is to see of a group, and how it is looked at without holding it up.
//!
//! Whoever looks takes the lock once for each [`LOOK`] entries that it copies, into memory that it
//! has got before, and lets go in between. So the group is held up for as long as that takes, some
//! microseconds, however many connections, workers and queued commands it has; and what is seen is
//! each entry at one moment, but not all of them at the same one.

use super::{Group, Guarded, Task};
use crate::histogram::Histogram;
use crate::port::Doors;
use crate::sched::{Key, Lane, Nanos, SeenConn, SeenWorker, WorkerId};
use crate::wait::WaitKind;

/// Entries that are copied under the lock at a time.
pub(crate) const LOOK: usize = 256;

/// What a group measures. It is under the group's lock, which whoever has something to count holds
/// anyway.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {
    /// How long connections were queued, by lane.
    pub(crate) queued: [Histogram; Lane::ALL.len()],
    /// How long commands took.
    pub(crate) commands: Histogram,
    /// How long workers took to come that had been called, or created.
    pub(crate) came: Histogram,
    /// How many waits have begun, by kind, and how long those lasted that are over.
    pub(crate) waits_begun: [u64; WaitKind::COUNTED.len()],
    pub(crate) waits: [Histogram; WaitKind::COUNTED.len()],
}

impl Meters {
    pub(super) fn dequeued(&mut self, lane: Lane, time: Nanos) {
        self.queued[lane as usize].add(time.0, 1);
    }

    pub(super) fn ran(&mut self, time: Nanos, commands: u32) {
        self.commands.add(time.0, u64::from(commands));
    }

    pub(super) fn waits(&mut self, kind: WaitKind) {
        self.waits_begun[kind.index()] += 1;
    }

    pub(super) fn waited(&mut self, kind: WaitKind, time: Nanos) {
        self.waits[kind.index()].add(time.0, 1);
    }
}

impl<T> Guarded<T> {
    /// The worker looks at the state: how long it took to, if it was called.
    pub(super) fn came(&mut self, worker: WorkerId, now: Nanos) {
        if let Some(called) = self.sched.called_at(worker) {
            self.meters.came.add(now.since(called).0, 1);
        }
    }

    /// Whoever was in the poller looks at the state: how long it took to, if it was rung.
    pub(super) fn rung(&mut self, now: Nanos) {
        if let Some(rung) = self.sched.rung_at() {
            self.meters.came.add(now.since(rung).0, 1);
        }
    }

    pub(super) fn id(&self, key: Key) -> u64 {
        self.ids.get(key.slot()).copied().unwrap_or(0)
    }
}

/// A connection of a group, with its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedConn {
    pub(crate) id: u64,
    pub(crate) seen: SeenConn,
}

/// A worker of a group, with the id of the connection whose command it runs, and what that waits
/// for, if it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedWorker {
    pub(crate) id: Option<u64>,
    pub(crate) seen: SeenWorker,
    pub(crate) wait: WaitKind,
}

fn connections<T>(
    guarded: &mut Guarded<T>,
    from: usize,
    seen: &mut Vec<SeenConn>,
    named: &mut Vec<NamedConn>,
) -> Option<usize> {
    let next = guarded.sched.see_table(from, seen);
    named.extend(seen.drain(..).map(|seen| NamedConn {
        id: guarded.id(seen.key),
        seen,
    }));
    next
}

impl<D: Doors, T: Task<D::Interest>> Group<D, T> {
    pub(crate) fn see_connections(&self) -> Vec<NamedConn> {
        self.in_pieces(connections)
    }

    /// Who is in a lane: which connection, and since when.
    pub(crate) fn see_lane(&self, lane: Lane) -> Vec<(u64, Nanos)> {
        self.in_pieces(|guarded, from, seen, named: &mut Vec<(u64, Nanos)>| {
            let next = guarded.sched.see_lane(lane, from, seen);
            named.extend(seen.drain(..).map(|(key, at)| (guarded.id(key), at)));
            next
        })
    }

    pub(crate) fn see_workers(&self) -> Vec<NamedWorker> {
        self.in_pieces(|guarded, from, seen, named: &mut Vec<NamedWorker>| {
            let next = guarded.sched.see_crew(from, seen);
            named.extend(seen.drain(..).map(|seen: SeenWorker| NamedWorker {
                id: seen.conn.map(|key| guarded.id(key)),
                wait: guarded.waits[seen.worker.index()],
                seen,
            }));
            next
        })
    }

    pub(crate) fn meters(&self) -> Box<Meters> {
        let mut copy: Box<Meters> = Box::default();
        copy.clone_from(&self.guarded.lock().meters);
        copy
    }

    /// Looks at as many entries at a time as [`LOOK`] says. `look` looks from an index on, names what it
    /// has seen, and says where to go on.
    fn in_pieces<S, N>(
        &self,
        mut look: impl FnMut(&mut Guarded<T>, usize, &mut Vec<S>, &mut Vec<N>) -> Option<usize>,
    ) -> Vec<N> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        let mut seen = Vec::with_capacity(LOOK);
        while let Some(from) = next {
            // Before the lock, as it may have to move what there is.
            all.reserve(LOOK);
            next = look(&mut self.guarded.lock(), from, &mut seen, &mut all);
        }
        all
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::group::monitor::Bell;
    use crate::port::Event;
    use crate::sched::{Bounds, Phase, Turn, Wake};

    /// Doors behind which nothing happens.
    pub(in crate::group) struct Still;

    impl Doors for Still {
        type Interest = ();

        fn interest(&self) -> &() {
            &()
        }

        fn poll(&self, _: bool, _: &mut Vec<Event>) {}

        fn wake(&self) {}

        fn now(&self) -> u64 {
            7
        }
    }

    pub(in crate::group) struct Conn(pub(in crate::group) u64);

    impl Task<()> for Conn {
        type Desk = ();

        fn id(&mut self) -> u64 {
            self.0
        }

        fn turn(&mut self, _: Key, _: Wake, _: Nanos, _: &(), _: &mut ()) -> Turn {
            unreachable!("there are no workers")
        }
    }

    #[test]
    fn what_is_looked_at_in_pieces_is_all_there_and_nothing_twice() {
        let bounds = Bounds::new(&Default::default(), &Default::default());
        for count in [0, 1, LOOK, LOOK + 1, 10 * LOOK] {
            let group = Group::new(bounds.clone(), Still, Arc::new(Bell::default()));
            let ids = 1000..1000 + count as u64;
            for id in ids.clone() {
                assert!(group.attach(Conn(id)).is_ok());
            }
            let seen = group.see_connections();
            assert!(seen.iter().map(|conn| conn.id).eq(ids.clone()));
            let queued = |conn: &NamedConn| matches!(conn.seen.phase, Phase::Queued { .. });
            assert!(seen.iter().all(queued));
            let queue = group.see_lane(Lane::Control);
            assert!(queue.iter().map(|(id, _)| *id).eq(ids));
            assert!(group.see_workers().is_empty());
        }
    }

    #[test]
    fn who_looks_at_a_crowd_takes_the_lock_once_for_each_piece() {
        let bounds = Bounds::new(&Default::default(), &Default::default());
        let group = Group::new(bounds, Still, Arc::new(Bell::default()));
        for id in 0..10 * LOOK as u64 {
            assert!(group.attach(Conn(id)).is_ok());
        }
        let mut pieces = Vec::new();
        group.in_pieces(|guarded, from, seen, named: &mut Vec<NamedConn>| {
            let before = named.len();
            let next = connections(guarded, from, seen, named);
            pieces.push(named.len() - before);
            next
        });
        assert_eq!(pieces, [LOOK; 10]);
    }

    /// Prints for how long the lock was held at most, with 10,000 connections that are all queued. Run it
    /// by name, optimized: `cargo test --release --lib -- --ignored --nocapture holds_the_lock`.
    #[test]
    #[ignore = "it measures, and promises nothing"]
    fn how_long_a_look_at_ten_thousand_holds_the_lock() {
        let bounds = Bounds::new(&Default::default(), &Default::default());
        let group = Group::new(bounds, Still, Arc::new(Bell::default()));
        for id in 0..10_000 {
            assert!(group.attach(Conn(id)).is_ok());
        }
        let (mut held, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let begun = std::time::Instant::now();
            let all = group.in_pieces(|guarded, from, seen, named: &mut Vec<NamedConn>| {
                let begun = std::time::Instant::now();
                let next = connections(guarded, from, seen, named);
                held.push(begun.elapsed());
                next
            });
            whole.push(begun.elapsed());
            assert_eq!(all.len(), 10_000);
        }
        let middle = |times: &mut Vec<std::time::Duration>| {
            times.sort_unstable();
            (times[times.len() / 2], times[times.len() * 99 / 100])
        };
        println!(
            "{} connections: the lock is held {} times for {:?} (median, p99), the whole look takes {:?}",
            10_000,
            held.len() / 100,
            middle(&mut held),
            middle(&mut whole)
        );
        let meters = std::time::Instant::now();
        (0..1000).for_each(|_| drop(std::hint::black_box(group.meters())));
        println!("the meters are copied in {:?}", meters.elapsed() / 1000);
    }
}
