//! The operating system behind the doors of [`port`](crate::port): poller, sockets, affinity.

pub(crate) mod affinity;
pub(crate) mod clock;
pub(crate) mod thread_state;
#[cfg(unix)]
mod unix;

#[cfg(all(unix, feature = "test-util"))]
pub(crate) use unix::test_door;
#[cfg(unix)]
pub(crate) use unix::{bell, listener, lookout, poller, socket};

#[cfg(not(unix))]
compile_error!(
    "thread-group-pool has no os layer for this platform yet: see src/os, where one is to stand beside unix"
);
