//! What there is to see of a running server, put together from those who know a part of it each.
//!
//! Groups are looked at a piece at a time (`src/group/see.rs`), and so is the list of connections,
//! so that whoever looks holds nobody up. What is seen of one connection was so at one moment; two
//! connections are seen at different ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::pool::PoolGroup;
use super::registry::ThreadMeters;
use super::{Runner, ServerHandle};
use crate::conn::{ConnId, Shared, Waiting};
use crate::explain::Explanation;
use crate::group::see::{NamedConn, NamedWorker};
use crate::histogram::Histogram;
use crate::os::thread_state::ThreadId;
use crate::sched::{At, Kind, Lane, NEVER, Nanos, Phase};
use crate::stats::{
    Activity, ConnInfo, QueueEntry, Snapshot, Stats, Times, WaitStats, WorkerInfo, WorkerState,
};
use crate::wait::WaitKind;

impl ServerHandle {
    /// The counters, now.
    pub fn stats(&self) -> Stats {
        let core = &self.0;
        let threads = core.runner.threads().counts();
        let (lingering, not_lingered) = core.linger.counts();
        let mut stats = Stats {
            threads: threads.live,
            threads_peak: threads.peak,
            threads_created: threads.created,
            spawn_failures: threads.failures,
            lingering,
            not_lingered,
            ..core.registry.stats()
        };
        if let Some(part) = &core.admin {
            let admin = part.registry.stats();
            stats.admin_connections = admin.connections;
            stats.admin_refused = admin.refused;
        }
        let (begun, times) = self.waits();
        stats.waits = WaitKind::COUNTED
            .into_iter()
            .zip(begun.iter().zip(&times))
            .filter(|(_, (count, _))| **count > 0)
            .map(|(kind, (count, times))| WaitStats {
                kind,
                count: *count,
                total: times.sum(),
            })
            .collect();
        if let Runner::Pool(pool) = &core.runner {
            stats.groups = pool.stats();
            stats.commands = stats.groups.iter().map(|g| g.commands).sum();
            stats.detects_blocking = ThreadId::of_this_thread().is_blocked().is_some();
            let count = stats.groups.iter().map(|g| g.detected).sum();
            if count > 0 {
                stats.waits.push(WaitStats {
                    kind: WaitKind::Detected,
                    count,
                    total: stats.groups.iter().map(|g| g.detected_time).sum(),
                });
            }
        }
        stats
    }

    /// The connections, now, by id: what each is doing and for how long, what it waits for, what it
    /// takes.
    ///
    /// Nobody is held up for it: a group's lock is held for 256 entries at a time, some microseconds,
    /// and let go in between. So each connection is shown as it was at one moment, and not all at the
    /// same one.
    pub fn connections(&self) -> Vec<ConnInfo> {
        self.look().connections(self)
    }

    /// Who is queued, now, group by group and in the order in which they will be served. Empty under
    /// thread-per-connection, where nobody is queued. Looked at as [`connections`](Self::connections)
    /// are.
    pub fn queues(&self) -> Vec<QueueEntry> {
        let mut looked = Look::default();
        looked.at_queues(self);
        looked.queues
    }

    /// The threads that run connections, now, by group. Under thread-per-connection these are one for
    /// each connection, and those in the cache. Looked at as [`connections`](Self::connections) are.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let look = self.look();
        look.workers(self, &look.connections(self))
    }

    /// How long things took, since the server started: commands, queueing, waits, and threads that
    /// were runnable and not running yet.
    pub fn times(&self) -> Times {
        let (_, waits) = self.waits();
        let waits = WaitKind::COUNTED
            .into_iter()
            .zip(waits)
            .filter(|(_, times)| times.count() > 0)
            .collect();
        let mut times = Times {
            waits,
            ..Times::default()
        };
        match &self.0.runner {
            Runner::Pool(pool) => {
                let mut queued = [Histogram::default(); Lane::ALL.len()];
                for group in pool.groups() {
                    let meters = group.meters();
                    times.commands.merge(&meters.commands);
                    times.started.merge(&meters.came);
                    for (all, one) in queued.iter_mut().zip(&meters.queued) {
                        all.merge(one);
                    }
                }
                times.queued = Lane::ALL
                    .into_iter()
                    .zip(queued)
                    .filter(|(_, times)| times.count() > 0)
                    .map(|(lane, times)| (lane.name(), times))
                    .collect();
            }
            Runner::Thread(_) => {
                let meters = self.0.registry.meters();
                times.commands = meters.commands.read();
                times.started = meters.came.read();
            }
        }
        times
    }

    /// Everything that is to be seen, and from which any connection can be
    /// [explained](Snapshot::explain). Looked at as [`connections`](Self::connections) are.
    pub fn snapshot(&self) -> Snapshot {
        let look = self.look();
        let connections = look.connections(self);
        let workers = look.workers(self, &connections);
        Snapshot {
            stats: self.stats(),
            queues: look.queues,
            workers,
            connections,
            times: self.times(),
        }
    }

    /// In one sentence, why a connection does not go on: what it waits for, behind what, for whom and
    /// since when. `None` if there is no connection with this id. To explain many, take one
    /// [`snapshot`](Self::snapshot): this takes one each time.
    ///
    /// "connection 7 is queued for 12 ms in the low lane of group 3, behind 5 others; 2 long commands run:
    /// connection 17 for 4.1 s, connection 18 for 1.0 s"
    pub fn explain(&self, id: ConnId) -> Option<Explanation> {
        self.snapshot().explain(id)
    }

    /// How many waits of each kind have begun, and how long those took that are over.
    fn waits(&self) -> (Vec<u64>, Vec<Histogram>) {
        match &self.0.runner {
            Runner::Pool(pool) => {
                let mut begun = vec![0; WaitKind::COUNTED.len()];
                let mut times = vec![Histogram::default(); WaitKind::COUNTED.len()];
                for group in pool.groups() {
                    let meters = group.meters();
                    for (all, one) in begun.iter_mut().zip(&meters.waits_begun) {
                        *all += one;
                    }
                    for (all, one) in times.iter_mut().zip(&meters.waits) {
                        all.merge(one);
                    }
                }
                (begun, times)
            }
            Runner::Thread(_) => {
                let ThreadMeters {
                    waits_begun, waits, ..
                } = self.0.registry.meters();
                // Relaxed: statistics.
                let begun = waits_begun.iter().map(|n| n.load(Relaxed)).collect();
                (begun, waits.iter().map(|waits| waits.read()).collect())
            }
        }
    }

    fn look(&self) -> Look {
        let mut look = Look::default();
        look.at_queues(self);
        if let Runner::Pool(pool) = &self.0.runner {
            for (group, g) in pool.groups().iter().enumerate() {
                look.at_group(group, g);
            }
        }
        look
    }
}

/// What the groups have shown; under thread-per-connection nothing.
#[derive(Default)]
struct Look {
    connections: HashMap<u64, (usize, NamedConn)>,
    /// By group.
    workers: Vec<(usize, NamedWorker)>,
    /// Of those that run or wait: where in `workers`.
    running: HashMap<u64, usize>,
    queues: Vec<QueueEntry>,
    /// Where in `queues`.
    queued: HashMap<u64, usize>,
}

impl Look {
    fn at_queues(&mut self, server: &ServerHandle) {
        let Runner::Pool(pool) = &server.0.runner else {
            return;
        };
        for (group, g) in pool.groups().iter().enumerate() {
            let mut ahead = 0;
            for lane in Lane::ALL {
                for (position, (id, since)) in g.see_lane(lane).into_iter().enumerate() {
                    self.queued.insert(id, self.queues.len());
                    self.queues.push(QueueEntry {
                        group,
                        position,
                        ahead,
                        lane: lane.name(),
                        id: Some(ConnId::from(id)),
                        time: g.now().since(since).to_duration(),
                    });
                    ahead += 1;
                }
            }
        }
    }

    fn at_group(&mut self, group: usize, g: &PoolGroup) {
        for worker in g.see_workers() {
            if let Some(id) = worker.id {
                self.running.insert(id, self.workers.len());
            }
            self.workers.push((group, worker));
        }
        for conn in g.see_connections() {
            self.connections.insert(conn.id, (group, conn));
        }
    }

    fn connections(&self, server: &ServerHandle) -> Vec<ConnInfo> {
        let mut all = server.0.registry.all();
        if let Some(part) = &server.0.admin {
            all.extend(part.registry.all());
            all.sort_unstable_by_key(|shared| shared.id());
        }
        let now = server.0.registry.now();
        all.iter().map(|shared| self.info(shared, now)).collect()
    }

    fn info(&self, shared: &Arc<Shared>, now: u64) -> ConnInfo {
        let ago = |at: u64| Duration::from_nanos(now.saturating_sub(at));
        let (buffer_bytes, session_bytes) = shared.bytes();
        // Relaxed, as all of these: they are for showing.
        let begun = shared.since.load(Relaxed);
        let mut info = ConnInfo {
            id: shared.id(),
            peer: shared.peer().to_string(),
            state: shared.state().activity(),
            since: ago(begun),
            commands: shared.commands.load(Relaxed),
            command: shared.command().current(),
            group: None,
            lane: None,
            ahead: None,
            waits_for: None,
            holding: false,
            logged_in: shared.is_logged_in(),
            in_transaction: shared.is_in_transaction(),
            cancelled: shared.is_cancelled(),
            buffer_bytes,
            session_bytes,
        };
        if let Some((group, conn)) = self.connections.get(&info.id.get()) {
            info.group = Some(*group);
            info.lane = Some(conn.seen.lane.name());
            info.holding = conn.seen.holding;
            self.place(&mut info, conn, now);
        } else if let Some(Waiting {
            kind,
            since,
            holder,
        }) = shared.waiting()
            && info.state == Activity::Running
        {
            info.state = Activity::Waiting(kind);
            info.since = ago(since);
            info.waits_for = holder;
        }
        info
    }

    /// What the group knows of a connection.
    fn place(&self, info: &mut ConnInfo, conn: &NamedConn, now: u64) {
        let now = Nanos(now);
        let at_rest = now.since(conn.seen.since).to_duration();
        (info.state, info.since) = match conn.seen.phase {
            Phase::Idle { in_command: false } => (Activity::Idle, at_rest),
            Phase::Idle { in_command: true } => (Activity::Reading, at_rest),
            Phase::Flushing { .. } => (Activity::Flushing, at_rest),
            Phase::Parked => (Activity::Parked, at_rest),
            Phase::Queued { .. } => {
                // Looked at before: it may have been queued since.
                let entry = self.queued.get(&conn.id).map(|at| &self.queues[*at]);
                info.ahead = entry.map(|entry| entry.ahead);
                let since = entry.map_or(Duration::ZERO, |entry| entry.time);
                (Activity::Queued, since)
            }
            Phase::Running | Phase::Free => {
                if info.state != Activity::Closing {
                    info.state = Activity::Running;
                }
                let Some(at) = self.running.get(&conn.id) else {
                    return;
                };
                let (_, worker) = &self.workers[*at];
                if let WorkerState::Waiting(kind) = state_of(worker) {
                    info.state = Activity::Waiting(kind);
                    if worker.seen.at == At::Waiting {
                        info.waits_for = worker.seen.waits_for.map(ConnId::from);
                        info.since = now.since(worker.seen.since).to_duration();
                    }
                }
                return;
            }
        };
    }

    fn workers(&self, server: &ServerHandle, connections: &[ConnInfo]) -> Vec<WorkerInfo> {
        match &server.0.runner {
            Runner::Pool(_) => {
                let now = Nanos(server.0.registry.now());
                let each = self.workers.iter();
                each.map(|(group, worker)| worker_info(*group, worker, now))
                    .collect()
            }
            Runner::Thread(threads) => {
                let served = connections
                    .iter()
                    .filter(|conn| conn.state != Activity::New)
                    .map(|conn| WorkerInfo {
                        group: None,
                        worker: 0,
                        state: match conn.state {
                            Activity::Waiting(kind) => WorkerState::Waiting(kind),
                            Activity::Idle | Activity::Reading => WorkerState::Polling,
                            _ => WorkerState::Running,
                        },
                        conn: Some(conn.id),
                        since: conn.since,
                        long: false,
                        waits_for: conn.waits_for,
                    });
                let cached = WorkerInfo {
                    group: None,
                    worker: 0,
                    state: WorkerState::Parked,
                    conn: None,
                    since: Duration::ZERO,
                    long: false,
                    waits_for: None,
                };
                served
                    .chain(std::iter::repeat_n(cached, threads.cached()))
                    .collect()
            }
        }
    }
}

fn state_of(worker: &NamedWorker) -> WorkerState {
    match worker.seen.at {
        At::Starting => WorkerState::Starting,
        At::Coming => WorkerState::Coming,
        At::Free | At::Idle => WorkerState::Looking,
        At::Polling => WorkerState::Polling,
        At::Parked => WorkerState::Parked,
        At::Running if worker.seen.kind == Kind::Detected => {
            WorkerState::Waiting(WaitKind::Detected)
        }
        At::Running => WorkerState::Running,
        At::Waiting => WorkerState::Waiting(worker.wait),
    }
}

fn worker_info(group: usize, worker: &NamedWorker, now: Nanos) -> WorkerInfo {
    let seen = &worker.seen;
    let since = match seen.at {
        At::Running => Some(seen.started),
        At::Starting | At::Coming | At::Waiting => Some(seen.since),
        _ => None,
    };
    let since = since.filter(|since| *since != NEVER);
    let busy = matches!(seen.at, At::Running | At::Waiting);
    WorkerInfo {
        group: Some(group),
        worker: seen.worker.index(),
        state: state_of(worker),
        conn: worker.id.map(ConnId::from),
        since: since.map_or(Duration::ZERO, |since| now.since(since).to_duration()),
        long: busy && seen.kind == Kind::Long,
        waits_for: seen.waits_for.map(ConnId::from),
    }
}
