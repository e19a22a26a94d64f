//! The simulator: the scheduler's own code over virtual time and virtual cores. **Unstable**: what
//! is here follows the scheduler and may change with any version.
//!
//! [`run`] plays a [`Scenario`] with everything that a server is made of but the server: clients,
//! sockets, a poller, threads on time-sliced cores, locks, a monitor. Only the decisions are not
//! simulated; they are made by the code that ships. One seed gives one run, to the last event: the
//! same trace and the same [`Report::trace_hash`].
//!
//! After every event a book that is kept beside the scheduler, from what can be seen of it, is
//! compared with what it says of itself, and the invariants are looked at. A run ends at the first
//! [`Violation`], whose number says which one it breaks:
//!
//! | | |
//! |---|---|
//! | 1 | work conservation: work, an open gate and somebody to do it do not coexist for longer than a tick and what the cores cost |
//! | 2 | poll coverage: nor do a connection at rest, somebody to poll and nobody who polls |
//! | 3 | ownership: a connection is in one place; a request is answered once, in its turn |
//! | 4 | no lost wake-up: nothing that has happened to a connection is forgotten; whatever is asked is answered in the end |
//! | 5 | the counts are those of what happened; waits balance |
//! | 6 | an idle server has no timer wake-ups |
//! | 7 | no cap is exceeded: threads, slots, long commands |
//! | 9 | a turn ends within its bounds, and what is at the head of a lane goes first |
//! | 11 | a drain closes everybody; a stop sends every worker home |
//! | 13 | a thread that could not be created is counted out, and asked for again, not too soon |
//!
//! What the cores cost is not a guess: time in which a called worker or the monitor waits for a
//! core, or in which the monitor's timer is overdue, does not count.
//!
//! There is one group in a world; groups share nothing but the monitor and the thread cap. The
//! group's lock costs time and is never contended. Every connection is opened without a login.

mod book;
mod cpu;
pub mod crowd;
mod policy;
mod rng;
mod scenarios;
mod trace;
mod world;

use std::fmt;
use std::time::Duration;

use crate::config::PoolConfig;

pub use scenarios::{NAMES, scenario};
pub use trace::{Entry, What, Who};
pub use world::run;

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time that is drawn evenly between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The least.
    pub least: Duration,
    /// The most, inclusive.
    pub most: Duration,
}

impl Span {
    /// Between two times in microseconds.
    pub const fn us(least: u64, most: u64) -> Self {
        Self {
            least: Duration::from_micros(least),
            most: Duration::from_micros(most),
        }
    }
}

/// When a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// So long after the last answer.
    Closed(Span),
    /// So long after it last sent, answered or not.
    Open(Span),
    /// All clients of the class in the same moment, again and again.
    Burst(Duration),
}

/// A step of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Uses the CPU.
    Burn(Span),
    /// Waits, and says so: a disk that reports.
    Wait(Span),
    /// Blocks without a word.
    Block(Span),
    /// Takes a lock, by number; first come, first served. Waiting for it is reported.
    Lock(usize),
    /// Gives it to whoever has waited longest. A command must give back what it took.
    Unlock(usize),
    /// Says that it will be long.
    SayLong,
}

/// Clients that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// What it is called in the report.
    pub name: &'static str,
    /// How many there are; each has one connection at a time.
    pub clients: usize,
    /// When they send.
    pub load: Load,
    /// How many commands they send at once.
    pub pipeline: usize,
    /// Whether their sessions are of high priority.
    pub high: bool,
    /// What a command does.
    pub command: Vec<Op>,
    /// How often a client hangs up instead of waiting for its answer, in a thousand; it comes back.
    pub hang_up_per_mille: u32,
}

/// Which thread creations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnFailure {
    /// None.
    Never,
    /// So many in a thousand.
    PerMille(u32),
    /// The k-th after the start, from 1, and no other.
    Nth(u64),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Thread creations that fail.
    pub spawns: SpawnFailure,
    /// How many of the monitor's timers in a thousand come up to twenty ticks late.
    pub lost_ticks_per_mille: u32,
    /// Every so often somebody kills a connection.
    pub kill_every: Option<Duration>,
}

/// A world to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The cores that all threads share.
    pub cores: usize,
    /// How long a thread runs until another one has its turn.
    pub slice: Duration,
    /// What it costs to switch a core to another thread.
    pub switch: Duration,
    /// For how long clients send. Then the world finishes what was begun, is idle for a while,
    /// drains and stops.
    pub duration: Duration,
    /// It drains when clients stop, with commands under way.
    pub abrupt: bool,
    /// The pool's limits. Of `groups` there is one whatever it says.
    pub pool: PoolConfig,
    /// The clients.
    pub classes: Vec<Class>,
    /// What goes wrong.
    pub faults: Faults,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one; see the [module's head](self).
    pub invariant: u8,
    /// When, since the start.
    pub at: Duration,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            invariant,
            at,
            what,
        } = self;
        write!(f, "invariant {invariant} at {at:?}: {what}")
    }
}

/// Latencies of a class, from sent to answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// The class.
    pub name: &'static str,
    /// Commands sent by clients that were there to the end of them.
    pub answered: usize,
    /// Commands whose client hung up or was killed.
    pub abandoned: usize,
    /// Half of the answers came faster.
    pub p50: Duration,
    /// 99 of 100 did.
    pub p99: Duration,
    /// The slowest.
    pub max: Duration,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Report {
    /// Over every event of the run; equal for equal scenarios and seeds, in the same build.
    pub trace_hash: u64,
    /// Every event.
    pub trace: Vec<Entry>,
    /// By class, in the scenario's order.
    pub classes: Vec<Latencies>,
    /// The most worker threads there were.
    pub threads_peak: usize,
    /// How often the monitor looked.
    pub ticks: u64,
    /// What was not kept; empty, or the one that ended the run.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "trace {:016x} of {} events, {} threads at most, {} ticks",
            self.trace_hash,
            self.trace.len(),
            self.threads_peak,
            self.ticks
        )?;
        for class in &self.classes {
            writeln!(
                f,
                "{:<10} {:>6} answered, {:>4} abandoned, p50 {:?}, p99 {:?}, max {:?}",
                class.name, class.answered, class.abandoned, class.p50, class.p99, class.max
            )?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        Ok(())
    }
}
