//! Why a connection does not go on, in one sentence.

use std::fmt;
use std::time::Duration;

use crate::conn::ConnId;
use crate::stats::{Activity, ConnInfo, Snapshot, WorkerInfo, WorkerState};
use crate::wait::WaitKind;

/// So many are named; the others are counted.
const NAMED: usize = 3;

/// How far a chain of those who wait for each other is told.
const CHAIN: usize = 4;

/// Why a connection does not go on; see [`ServerHandle::explain`](crate::ServerHandle::explain). Shown
/// as one sentence.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// What is known of it.
    pub conn: ConnInfo,
    /// For whom it waits, as far as they have said so: whom it waits for, whom that one waits for, and
    /// so on.
    pub chain: Vec<ConnInfo>,
    /// If it is queued: the threads whose commands it is queued behind, the longest first.
    pub behind: Vec<WorkerInfo>,
    /// If it is queued: why no thread comes for it, if nothing runs.
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Its session's last command was long, and so many long ones run already.
    LongOnes,
    /// Every slot is taken, or the last command has just begun.
    Slots,
    /// A thread is on the way, or about to be.
    Coming,
}

impl Snapshot {
    /// As [`ServerHandle::explain`](crate::ServerHandle::explain), of the moment of the snapshot.
    pub fn explain(&self, id: ConnId) -> Option<Explanation> {
        let conn = self.connection(id)?.clone();
        let mut chain: Vec<ConnInfo> = Vec::new();
        let mut next = conn.waits_for;
        while let Some(link) = next.and_then(|id| self.connection(id))
            && chain.len() < CHAIN
            && link.id != id
            && chain.iter().all(|known| known.id != link.id)
        {
            chain.push(link.clone());
            next = link.waits_for;
        }
        let behind = self.behind(&conn);
        let cause = match conn.lane {
            Some("long") if behind.iter().any(|worker| worker.long) => Cause::LongOnes,
            _ if behind.is_empty() => Cause::Coming,
            _ => Cause::Slots,
        };
        Some(Explanation {
            conn,
            chain,
            behind,
            cause,
        })
    }

    fn connection(&self, id: ConnId) -> Option<&ConnInfo> {
        let at = self.connections.binary_search_by_key(&id, |conn| conn.id);
        Some(&self.connections[at.ok()?])
    }

    /// The threads of its group whose commands run.
    fn behind(&self, conn: &ConnInfo) -> Vec<WorkerInfo> {
        if conn.state != Activity::Queued {
            return Vec::new();
        }
        // They are in the order of their groups.
        let from = self.workers.partition_point(|w| w.group < conn.group);
        let to = self.workers.partition_point(|w| w.group <= conn.group);
        let running = |worker: &&WorkerInfo| worker.state == WorkerState::Running;
        let mut behind: Vec<WorkerInfo> = self.workers[from..to]
            .iter()
            .filter(running)
            .copied()
            .collect();
        behind.sort_by_key(|worker| std::cmp::Reverse(worker.since));
        behind
    }
}

/// A time in three digits.
struct For(Duration);

impl fmt::Display for For {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_secs_f64() * 1000.0;
        match ms {
            ms if ms < 1.0 => write!(f, "{:.0} µs", ms * 1000.0),
            ms if ms < 10.0 => write!(f, "{ms:.1} ms"),
            ms if ms < 1000.0 => write!(f, "{ms:.0} ms"),
            ms if ms < 60_000.0 => write!(f, "{:.1} s", ms / 1000.0),
            ms => write!(f, "{:.0} s", ms / 1000.0),
        }
    }
}

impl Explanation {
    /// What one of the chain does, after its name.
    fn doing(f: &mut fmt::Formatter<'_>, conn: &ConnInfo) -> fmt::Result {
        let time = For(conn.since);
        match conn.state {
            Activity::New => write!(f, "has come {time} ago and waits to be opened"),
            Activity::Idle if conn.holding => write!(
                f,
                "is idle for {time}, holding something: its client has sent no command"
            ),
            Activity::Idle if !conn.logged_in => {
                write!(f, "waits for its client to log in for {time}")
            }
            Activity::Idle if conn.in_transaction => write!(
                f,
                "is idle in a transaction for {time}: its client has sent no command"
            ),
            Activity::Idle => write!(f, "is idle for {time}: its client has sent no command"),
            Activity::Reading => {
                write!(
                    f,
                    "waits for the rest of a command from its client for {time}"
                )
            }
            Activity::Queued => {
                let lane = conn.lane.unwrap_or("");
                write!(f, "is queued for {time} in the {lane} lane")?;
                match conn.group {
                    Some(group) => write!(f, " of group {group}"),
                    None => Ok(()),
                }
            }
            Activity::Running => write!(f, "runs for {time}"),
            Activity::Waiting(WaitKind::Detected) => write!(
                f,
                "blocks, and has not reported what for; its command has run for {time}"
            ),
            Activity::Waiting(kind) => write!(f, "waits for {time} ({kind})"),
            Activity::Flushing => write!(f, "waits for its client to take a reply for {time}"),
            Activity::Parked => write!(f, "is parked for {time}, until it is resumed"),
            Activity::Detached => write!(f, "has left the scheduler"),
            Activity::Closing => write!(f, "is being closed"),
        }
    }

    fn queue(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.conn.ahead {
            Some(0) => f.write_str(", the next one to be served")?,
            Some(1) => f.write_str(", behind 1 other")?,
            Some(n) => write!(f, ", behind {n} others")?,
            None => {}
        }
        let long: Vec<_> = self.behind.iter().filter(|worker| worker.long).collect();
        let slots: Vec<_> = self.behind.iter().filter(|worker| !worker.long).collect();
        match self.cause {
            Cause::Coming => f.write_str("; a thread is on the way"),
            Cause::LongOnes => {
                f.write_str("; its last command was long, and ")?;
                Self::commands(f, &long, "long command", "runs", "run")
            }
            Cause::Slots => {
                f.write_str("; ")?;
                Self::commands(f, &slots, "command", "holds a slot", "hold the slots")?;
                if !slots.is_empty() && !long.is_empty() {
                    f.write_str("; ")?;
                }
                Self::commands(f, &long, "long command", "runs", "run")
            }
        }
    }

    /// "2 long commands run: connection 17 for 4.1 s, connection 18 for 1.0 s".
    fn commands(
        f: &mut fmt::Formatter<'_>,
        workers: &[&WorkerInfo],
        noun: &str,
        one: &str,
        many: &str,
    ) -> fmt::Result {
        match workers.len() {
            0 => return Ok(()),
            1 => write!(f, "1 {noun} {one}: ")?,
            n => write!(f, "{n} {noun}s {many}: ")?,
        }
        for (n, worker) in workers.iter().take(NAMED).enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            match worker.conn {
                Some(id) => write!(f, "connection {id} for {}", For(worker.since))?,
                None => write!(f, "one for {}", For(worker.since))?,
            }
        }
        match workers.len().saturating_sub(NAMED) {
            0 => Ok(()),
            n => write!(f, " and {n} more"),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} ", self.conn.id)?;
        Self::doing(f, &self.conn)?;
        if self.conn.state == Activity::Queued {
            self.queue(f)?;
        }
        for link in &self.chain {
            write!(f, " for connection {}, which ", link.id)?;
            Self::doing(f, link)?;
        }
        if let Some(id) = self.conn.waits_for
            && self.chain.is_empty()
        {
            write!(f, " for connection {id}, which has gone")?;
        }
        if self.conn.cancelled && self.conn.state != Activity::Closing {
            f.write_str("; it is to be closed")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stats::{Stats, Times};

    fn conn(id: u64, state: Activity, ms: u64) -> ConnInfo {
        ConnInfo {
            id: id.into(),
            peer: "unix".to_owned(),
            state,
            since: Duration::from_millis(ms),
            commands: 1,
            command: None,
            group: Some(3),
            lane: Some("low"),
            ahead: None,
            waits_for: None,
            holding: false,
            logged_in: true,
            in_transaction: false,
            cancelled: false,
            buffer_bytes: 0,
            session_bytes: 0,
        }
    }

    fn worker(group: usize, id: u64, ms: u64, long: bool) -> WorkerInfo {
        WorkerInfo {
            group: Some(group),
            worker: 0,
            state: WorkerState::Running,
            conn: Some(id.into()),
            since: Duration::from_millis(ms),
            long,
            waits_for: None,
        }
    }

    fn sentence(connections: Vec<ConnInfo>, workers: Vec<WorkerInfo>) -> String {
        let id = connections[0].id;
        let mut connections = connections;
        connections.sort_by_key(|conn| conn.id);
        let snapshot = Snapshot {
            stats: Stats::default(),
            connections,
            queues: Vec::new(),
            workers,
            times: Times::default(),
        };
        snapshot.explain(id).expect("it is there").to_string()
    }

    #[test]
    fn who_is_queued_is_told_behind_whom() {
        let queued = ConnInfo {
            ahead: Some(5),
            ..conn(7, Activity::Queued, 12)
        };
        let workers = vec![
            worker(2, 1, 9999, false),
            worker(3, 18, 1000, true),
            worker(3, 17, 4100, true),
            worker(3, 5, 3, false),
            worker(4, 2, 9999, false),
        ];
        assert_eq!(
            sentence(vec![queued], workers),
            "connection 7 is queued for 12 ms in the low lane of group 3, behind 5 others; 1 command holds \
             a slot: connection 5 for 3.0 ms; 2 long commands run: connection 17 for 4.1 s, \
             connection 18 for 1.0 s"
        );
    }

    #[test]
    fn who_is_queued_while_nothing_runs_is_told_that_a_thread_comes() {
        let queued = ConnInfo {
            ahead: Some(0),
            ..conn(7, Activity::Queued, 0)
        };
        assert_eq!(
            sentence(vec![queued], Vec::new()),
            "connection 7 is queued for 0 µs in the low lane of group 3, the next one to be served; a \
             thread is on the way"
        );
    }

    #[test]
    fn who_waits_at_the_bound_on_long_commands_is_told_so() {
        let queued = ConnInfo {
            ahead: Some(1),
            lane: Some("long"),
            ..conn(7, Activity::Queued, 200)
        };
        let workers = (0..5).map(|n| worker(3, n, 1000 * n, true)).collect();
        assert_eq!(
            sentence(vec![queued], workers),
            "connection 7 is queued for 200 ms in the long lane of group 3, behind 1 other; its last \
             command was long, and 5 long commands run: connection 4 for 4.0 s, connection 3 for 3.0 s, \
             connection 2 for 2.0 s and 2 more"
        );
    }

    #[test]
    fn who_waits_is_told_for_whom_and_what_that_one_does() {
        let waits = |id, on: u64, kind| ConnInfo {
            waits_for: Some(on.into()),
            ..conn(id, Activity::Waiting(kind), 100)
        };
        let idle = ConnInfo {
            holding: true,
            ..conn(9, Activity::Idle, 5_000)
        };
        let chain = vec![
            waits(7, 8, WaitKind::RowLock),
            waits(8, 9, WaitKind::UserLock),
            idle,
        ];
        assert_eq!(
            sentence(chain, Vec::new()),
            "connection 7 waits for 100 ms (RowLock) for connection 8, which waits for 100 ms (UserLock) \
             for connection 9, which is idle for 5.0 s, holding something: its client has sent no command"
        );
        assert_eq!(
            sentence(vec![waits(7, 8, WaitKind::RowLock)], Vec::new()),
            "connection 7 waits for 100 ms (RowLock) for connection 8, which has gone"
        );
    }

    #[test]
    fn a_circle_of_those_that_wait_for_each_other_is_told_once() {
        let waits = |id, on: u64| ConnInfo {
            waits_for: Some(on.into()),
            ..conn(id, Activity::Waiting(WaitKind::RowLock), 1)
        };
        let told = sentence(vec![waits(7, 8), waits(8, 7)], Vec::new());
        assert_eq!(told.matches("connection").count(), 2, "{told}");
    }
}
