#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod command;
mod config;
mod conn;
mod error;
pub mod event;
mod explain;
mod group;
mod handler;
mod histogram;
mod id;
mod mutant;
mod os;
mod port;
mod sched;
mod serve;
mod server;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
mod stats;
mod stream;
mod sync;
#[cfg(all(feature = "test-util", not(any(loom, shuttle))))]
pub mod test_util;
mod transport;
pub mod wait;

/// The design note of the scheduler: states, protocols, races, refused alternatives.
#[doc = include_str!("sched/README.md")]
pub mod design {}

/// Pages for those who embed the crate.
pub mod guide {
    #[doc = include_str!("guide/benchmarking.md")]
    pub mod benchmarking {}

    #[doc = include_str!("guide/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("guide/drain.md")]
    pub mod drain {}

    #[doc = include_str!("guide/embedding.md")]
    pub mod embedding {}

    #[doc = include_str!("guide/known_limits.md")]
    pub mod known_limits {}

    #[doc = include_str!("guide/loom.md")]
    pub mod loom {}

    #[doc = include_str!("guide/mariadb.md")]
    pub mod mariadb {}

    #[doc = include_str!("guide/tuning.md")]
    pub mod tuning {}

    #[doc = include_str!("guide/tutorial.md")]
    pub mod tutorial {}

    #[doc = include_str!("guide/verification.md")]
    pub mod verification {}

    #[doc = include_str!("guide/waits.md")]
    pub mod waits {}

    #[doc = include_str!("guide/why.md")]
    pub mod why {}
}

// For the fuzz target; no part of the interface.
#[cfg(all(feature = "walk", not(loom)))]
#[doc(hidden)]
pub use sched::walk::walk_by_bytes;

// The public interface, all of it.
pub use config::{HangUp, Limits, Policy, PoolConfig, Scheduler, ThreadPerConnectionConfig};
pub use conn::{Conn, ConnHandle, ConnId, Input, OnCancel, Output, Resume};
pub use error::{AttachError, BuildError};
pub use event::{Event, EventKind};
pub use explain::Explanation;
pub use handler::{Cancelled, Class, CloseReason, Handler, Next, Priority, Refusal, Woken};
pub use histogram::Histogram;
pub use server::{
    AbandonedThread, Applied, Drain, DrainReport, Listen, ListenerInfo, ListenerState, Rejected,
    Server, ServerBuilder, ServerHandle,
};
pub use stats::{
    Activity, ConnInfo, GroupStats, QueueEntry, Snapshot, Stats, Times, WaitStats, WorkerInfo,
    WorkerState,
};
pub use stream::{Credentials, Keepalive, Listener, LocalAddr, Peer, Stream};
pub use transport::{Raw, Transport};
