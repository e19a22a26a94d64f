//! The operating system behind the doors of [`port`](crate::port): poller, sockets, affinity.

pub(crate) mod affinity;
pub(crate) mod clock;
pub(crate) mod lookout;
pub(crate) mod poller;
#[cfg(feature = "test-util")]
pub(crate) mod test_door;
pub(crate) mod thread_state;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;
pub(crate) mod words;

#[cfg(unix)]
use unix::registrar;
#[cfg(unix)]
pub(crate) use unix::{bell, listener, socket};
#[cfg(windows)]
use windows::registrar;
#[cfg(windows)]
pub(crate) use windows::{bell, listener, socket};

/// A file that is always there, and nothing in it.
#[cfg(unix)]
pub(crate) const NULL_DEVICE: &str = "/dev/null";
#[cfg(windows)]
pub(crate) const NULL_DEVICE: &str = "NUL";

#[cfg(not(any(unix, windows)))]
compile_error!(
    "thread-group-pool has no os layer for this platform yet: see src/os, where one is to stand beside unix"
);
