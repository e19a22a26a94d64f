//! What an operator wants to be told: events, and adapters to the usual ways of logging.
//!
//! ```
//! # use thread_group_pool::{Server, event};
//! let server = Server::builder()
//!     .on_event(|event| eprintln!("{:?}: {event}", event.level()))
//!     .build()?;
//! # Ok::<_, thread_group_pool::BuildError>(())
//! ```
//!
//! | question | answer |
//! |---|---|
//! | which thread | one of its own, `tgp-event`, which exists only if there is somebody to tell |
//! | which locks of this crate are held | none |
//! | may it block | yes; events wait meanwhile, up to [`WAITING`](Event::WAITING), and further ones are counted as suppressed |
//! | may it panic | yes; that is counted in [`Stats::panics`](crate::Stats), and the next event is told again |
//! | may it call the server | any method of [`ServerHandle`](crate::ServerHandle) |
//! | in which order | that in which things happened, as far as one thread saw them |
//! | how often | [`PER_SECOND`](Event::PER_SECOND) of a kind in a second at most; how many more there were is told with the last of them, a second later |
//! | until when | those of the drain are told before [`Server::drain`](crate::Server::drain) returns, unless the callback blocks |
//!
//! What happens all the time (connections come and go, commands run) is no event: see
//! [`Stats`](crate::Stats). A thread is one, also where each connection has its own.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::handler::Refusal;
use crate::id::ConnId;
use crate::stream::LocalAddr;

/// Something that an operator may want to know; see the [module](crate::event).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What has happened.
    pub kind: EventKind,
    /// How many more of the same kind there were, of which nothing was told.
    pub suppressed: u64,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A command has run past the stall limit, and gives its slot to others.
    Stalled {
        /// The group.
        group: usize,
        /// Whose command; unknown under [`Policy::Mariadb`](crate::Policy), which finds groups stalled.
        conn: Option<ConnId>,
        /// For how long it has run.
        running: Duration,
    },
    /// A command blocks and has not said so: its handler has forgotten a
    /// [wait](crate::wait). Found where the states of threads can be read (Linux).
    HookForgotten {
        /// The group.
        group: usize,
        /// Whose command.
        conn: Option<ConnId>,
        /// For how long it has run.
        running: Duration,
    },
    /// A thread was created after the start.
    ThreadCreated {
        /// The group; `None` under thread-per-connection.
        group: Option<usize>,
        /// Because a command was past the handover bound or the stall limit.
        due_to_stall: bool,
        /// Beyond `max_threads`, for a session that holds something.
        over_cap: bool,
    },
    /// The operating system gave no thread. It is asked again.
    CreationFailed {
        /// The group; `None` under thread-per-connection.
        group: Option<usize>,
        /// What it said.
        error: io::ErrorKind,
    },
    /// A thread was wanted, and there are `max_threads`.
    CapReached {
        /// The group; `None` under thread-per-connection, where a client was refused.
        group: Option<usize>,
    },
    /// Somebody has been queued for longer than [`kickup`](crate::PoolConfig::kickup).
    Overloaded {
        /// The group.
        group: usize,
        /// How many are queued.
        queued: usize,
        /// For how long the oldest of them.
        oldest: Duration,
    },
    /// A listener cannot accept: no descriptors, no memory. It rests for a moment.
    ListenerOut,
    /// The operating system failed a listener for good: nobody can connect there any more, and the server
    /// goes on without it.
    ListenerDied {
        /// Where it listened.
        at: LocalAddr,
        /// What it said.
        error: io::ErrorKind,
    },
    /// A client got no session.
    Refused {
        /// Why.
        why: Refusal,
    },
    /// A callback panicked. The panic itself has been reported by the panic hook.
    Panicked {
        /// Whose, if it was a connection's.
        conn: Option<ConnId>,
    },
    /// A connection had input which no readiness event had announced; see
    /// [`Stats::lost_edges`](crate::Stats).
    LostEdge,
    /// The drain has come to its next stage.
    Drain {
        /// Which: "accepting stopped", "idle closed", "killed", ...
        stage: &'static str,
        /// Connections that are left.
        left: usize,
    },
}

/// How bad an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Info,
    /// Worth a look when there are many of them.
    Warn,
    /// Something is wrong: in the handler, the configuration, or the machine's limits.
    Error,
}

impl Event {
    /// So many events of a kind are told in a second at most.
    pub const PER_SECOND: u32 = 10;

    /// So many events wait at most while the callback is busy.
    pub const WAITING: usize = 256;

    /// How bad it is.
    pub fn level(&self) -> Level {
        match &self.kind {
            EventKind::ThreadCreated { .. } | EventKind::Drain { .. } => Level::Info,
            EventKind::Stalled { .. }
            | EventKind::HookForgotten { .. }
            | EventKind::CapReached { .. }
            | EventKind::Refused { .. } => Level::Warn,
            EventKind::CreationFailed { .. }
            | EventKind::Overloaded { .. }
            | EventKind::ListenerOut
            | EventKind::ListenerDied { .. }
            | EventKind::Panicked { .. }
            | EventKind::LostEdge => Level::Error,
        }
    }
}

impl EventKind {
    /// How many kinds there are.
    pub(crate) const COUNT: usize = 12;

    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Stalled { .. } => 0,
            Self::HookForgotten { .. } => 1,
            Self::ThreadCreated { .. } => 2,
            Self::CreationFailed { .. } => 3,
            Self::CapReached { .. } => 4,
            Self::Overloaded { .. } => 5,
            Self::ListenerOut => 6,
            Self::Refused { .. } => 7,
            Self::Panicked { .. } => 8,
            Self::LostEdge => 9,
            Self::Drain { .. } => 10,
            Self::ListenerDied { .. } => 11,
        }
    }

    /// Its name, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stalled { .. } => "stalled",
            Self::HookForgotten { .. } => "hook_forgotten",
            Self::ThreadCreated { .. } => "thread_created",
            Self::CreationFailed { .. } => "creation_failed",
            Self::CapReached { .. } => "cap_reached",
            Self::Overloaded { .. } => "overloaded",
            Self::ListenerOut => "listener_out",
            Self::ListenerDied { .. } => "listener_died",
            Self::Refused { .. } => "refused",
            Self::Panicked { .. } => "panicked",
            Self::LostEdge => "lost_edge",
            Self::Drain { .. } => "drain",
        }
    }
}

/// " of group 3", or nothing.
struct Of(Option<usize>);

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(group) => write!(f, " of group {group}"),
            None => Ok(()),
        }
    }
}

/// "connection 17", or "a connection".
struct Whose(Option<ConnId>);

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "connection {id}"),
            None => f.write_str("a connection"),
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled {
                group, conn: None, ..
            } => write!(f, "group {group} is stalled"),
            Self::Stalled {
                group,
                conn,
                running,
            } => {
                let whose = Whose(*conn);
                write!(
                    f,
                    "the command of {whose} has run for {running:.1?}, past the stall limit of group {group}"
                )
            }
            Self::HookForgotten {
                group,
                conn,
                running,
            } => {
                let whose = Whose(*conn);
                write!(
                    f,
                    "the command of {whose} in group {group} blocks and has not reported a wait; \
                     it has run for {running:.1?}"
                )
            }
            Self::ThreadCreated {
                group,
                due_to_stall,
                over_cap,
            } => {
                write!(f, "a thread{} was created", Of(*group))?;
                if *due_to_stall {
                    f.write_str(", for a command takes long")?;
                }
                if *over_cap {
                    f.write_str(", beyond max_threads")?;
                }
                Ok(())
            }
            Self::CreationFailed { group, error } => {
                let of = Of(*group);
                write!(f, "the operating system gave no thread{of}: {error}")
            }
            Self::CapReached { group } => {
                write!(f, "a thread{} is wanted beyond max_threads", Of(*group))
            }
            Self::Overloaded {
                group,
                queued,
                oldest,
            } => write!(
                f,
                "group {group} is overloaded: {queued} are queued, the oldest for {oldest:.1?}"
            ),
            Self::ListenerOut => {
                f.write_str("a listener has no descriptor or memory to accept with")
            }
            Self::ListenerDied { at, error } => {
                write!(f, "nobody can connect to {at} any more: {error}")
            }
            Self::Refused { why } => write!(f, "a client was refused: {why}"),
            Self::Panicked { conn } => write!(f, "a callback of {} panicked", Whose(*conn)),
            Self::LostEdge => f.write_str("a connection had input that no event had announced"),
            Self::Drain { stage, left } => write!(f, "drain: {stage}, {left} connections left"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        match self.suppressed {
            0 => Ok(()),
            n => write!(f, " (and {n} more of the kind)"),
        }
    }
}

/// Gives events to the `log` crate: `.on_event(event::to_log)`. Target `thread_group_pool`.
#[cfg(feature = "log")]
pub fn to_log(event: &Event) {
    let level = match event.level() {
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    };
    log::log!(target: "thread_group_pool", level, "{event}");
}

/// Gives events to the `tracing` crate: `.on_event(event::to_tracing)`. Target `thread_group_pool`,
/// with the fields `kind` and `suppressed` beside the message. There is no span around them: they
/// come from a thread of their own.
#[cfg(feature = "tracing")]
pub fn to_tracing(event: &Event) {
    macro_rules! at {
        ($level:ident) => {
            tracing::event!(
                target: "thread_group_pool",
                tracing::Level::$level,
                kind = event.kind.name(),
                suppressed = event.suppressed,
                "{}",
                event.kind
            )
        };
    }
    match event.level() {
        Level::Info => at!(INFO),
        Level::Warn => at!(WARN),
        Level::Error => at!(ERROR),
    }
}
