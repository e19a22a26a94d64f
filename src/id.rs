//! Names of what is neither the scheduler's alone nor the connection's.

use std::fmt;

/// Names a connection for the life of the server; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u64);

impl ConnId {
    /// The plain number, as a client types it.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for ConnId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One park of a connection: counts up from 1, and a [`Resume`](crate::Resume) that is too late
/// names an earlier one. 0: nobody can resume it.
pub(crate) type Ticket = u32;
