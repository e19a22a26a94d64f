//! What is written down of a run.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// Who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// A client, an administrator, a fault.
    Outside,
    /// The monitor.
    Monitor,
    /// A worker, by its number.
    Worker(usize),
}

/// What was done. Connections and workers by number; a connection's number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // they are what they are called
pub enum What {
    Attach { conn: usize, class: usize },
    Send { conn: usize, commands: usize },
    HangUp { conn: usize },
    Kill { conn: usize },
    Drain,
    Stop,
    Run { conn: usize },
    Answer { conn: usize },
    Settle { conn: usize, end: Ended },
    Poll { block: bool },
    Harvest { events: usize },
    Park,
    Slept { stays: bool },
    Exit,
    WaitBegin,
    WaitEnd,
    Block,
    SayLong,
    Tick { again: bool },
    TimerLost,
    Sleep { until: Option<u64> },
    Spawning { worker: usize },
    Spawned { worker: usize },
    SpawnFailed { worker: usize },
    Capped,
    CallWorker { worker: usize },
    RingPoller,
    RingMonitor,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The connection waits for input.
    Idle,
    /// It has more to do, and let others go first.
    Again,
    /// It is closed.
    Closed,
}

/// A line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Since the start.
    pub at: Duration,
    /// Who.
    pub who: Who,
    /// What.
    pub what: What,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_nanos();
        let (ms, ns) = (at / 1_000_000, at % 1_000_000);
        let who = match self.who {
            Who::Outside => "outside".into(),
            Who::Monitor => "monitor".into(),
            Who::Worker(worker) => format!("worker {worker}"),
        };
        write!(f, "{ms:>7}.{ns:06} ms  {who:<10} {:?}", self.what)
    }
}

/// FNV-1a; the standard library's hasher may change with its version.
#[derive(Clone, Debug)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(super) fn hash(trace: &[Entry]) -> u64 {
    let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
    trace.hash(&mut fnv);
    fnv.finish()
}
