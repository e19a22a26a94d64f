//! Unix: epoll and kqueue through mio, sockets through std, socket2 and rustix.

pub(crate) mod bell;
pub(crate) mod listener;
pub(crate) mod registrar;
pub(crate) mod socket;
