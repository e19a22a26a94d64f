//! Unix: epoll and kqueue through mio, sockets through std, socket2 and rustix.

pub(crate) mod bell;
pub(crate) mod listener;
pub(crate) mod lookout;
pub(crate) mod poller;
pub(crate) mod socket;
#[cfg(feature = "test-util")]
pub(crate) mod test_door;
