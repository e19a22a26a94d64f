//! Where sockets register for readiness: by their descriptors, edge-triggered.

use std::io;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Interest, Poll, Registry, Token};

use crate::os::socket::Socket;

/// A poller's door for them.
#[derive(Debug)]
pub(crate) struct Registrar(Registry);

#[cfg(any(target_os = "linux", target_os = "android"))]
const READ: Interest = Interest::READABLE.add(Interest::PRIORITY);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const READ: Interest = Interest::READABLE;

impl Registrar {
    pub(in crate::os) fn new(poll: &Poll) -> io::Result<Self> {
        poll.registry().try_clone().map(Self)
    }

    /// Registers a socket, once for its life. What is ready already is reported.
    pub(crate) fn add(&self, socket: &Socket, token: usize) -> io::Result<()> {
        self.0
            .register(&mut SourceFd(&socket.as_raw_fd()), Token(token), READ)
    }

    /// Whether writability is reported too. The kernel looks again at what is ready, so nothing
    /// that has happened before this call is missed.
    pub(crate) fn writable(&self, socket: &Socket, token: usize, on: bool) -> io::Result<()> {
        let interest = if on { READ | Interest::WRITABLE } else { READ };
        self.0
            .reregister(&mut SourceFd(&socket.as_raw_fd()), Token(token), interest)
    }

    /// Registers a socket of no group: its input is reported, and room for output.
    pub(in crate::os) fn add_stray(&self, socket: &Socket, token: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.0
            .register(&mut SourceFd(&socket.as_raw_fd()), Token(token), both)
    }

    /// Takes a socket out. Needed before it is closed: a duplicate of the descriptor elsewhere
    /// would keep the registration alive.
    pub(crate) fn remove(&self, socket: &Socket) {
        // Fails only for a socket that is not registered, which is what was wanted.
        let _ = self.0.deregister(&mut SourceFd(&socket.as_raw_fd()));
    }
}
