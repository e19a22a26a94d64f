//! What can go wrong before a connection is served: who is at fault, and what to do about it.

use std::error::Error;
use std::fmt;
use std::io;

use crate::handler::Refusal;
use crate::stream::Stream;

/// Why [`ServerBuilder::build`](crate::ServerBuilder::build) refused. Nothing is left behind: no
/// thread, no bound socket.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A limit outside its range. The configuration is at fault; the limit's documentation says
    /// what the range is for.
    OutOfRange {
        /// The limit.
        name: &'static str,
        /// What was asked for.
        value: String,
        /// What is possible.
        range: String,
    },
    /// Two limits that cannot hold together. The configuration is at fault; change either.
    Contradiction {
        /// One limit and its value.
        one: (&'static str, String),
        /// The other limit and its value.
        other: (&'static str, String),
        /// What would go wrong.
        why: &'static str,
    },
    /// An address could not be bound: taken, not this machine's, a path that is not a socket, or
    /// no permission. The source says which; whoever deploys the server is at fault.
    Listen {
        /// The address as it was given.
        address: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operating system gave no poller or no thread: its limits (`ulimit -n`, `ulimit -u`,
    /// the container's `pids.max`) are at fault.
    Resources {
        /// What was asked for.
        what: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

impl BuildError {
    pub(crate) fn contradiction(
        one: (&'static str, impl fmt::Display),
        other: (&'static str, impl fmt::Display),
        why: &'static str,
    ) -> Self {
        Self::Contradiction {
            one: (one.0, one.1.to_string()),
            other: (other.0, other.1.to_string()),
            why,
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { name, value, range } => {
                write!(f, "{name} is {value}, but must be {range}")
            }
            Self::Contradiction { one, other, why } => write!(
                f,
                "{} = {} and {} = {} contradict each other: {why}",
                one.0, one.1, other.0, other.1
            ),
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Resources { what, source } => {
                write!(f, "the operating system refused {what}: {source}")
            }
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Listen { source, .. } | Self::Resources { source, .. } => Some(source),
            Self::OutOfRange { .. } | Self::Contradiction { .. } => None,
        }
    }
}

/// A stream that [`ServerHandle::attach`](crate::ServerHandle::attach) did not take, given back.
#[derive(Debug)]
pub struct AttachError {
    /// The stream, still open. What to tell the client is the caller's to decide.
    pub stream: Stream,
    /// Why it was not taken.
    pub why: Refusal,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection was not taken: {}", self.why)
    }
}

impl Error for AttachError {}
