//! Where sockets register for readiness: by their descriptors, edge-triggered.

use std::io;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Interest, Poll, Registry, Token};

use crate::os::socket::Socket;

/// A poller's door for them.
#[derive(Debug)]
pub(crate) struct Registrar {
    registry: Registry,
    /// Each connection is re-armed when its turn ends.
    #[cfg(feature = "one-shot")]
    one_shot: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const READ: Interest = Interest::READABLE.add(Interest::PRIORITY);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const READ: Interest = Interest::READABLE;

impl Registrar {
    pub(in crate::os) fn new(poll: &Poll) -> io::Result<Self> {
        Ok(Self {
            registry: poll.registry().try_clone()?,
            #[cfg(feature = "one-shot")]
            one_shot: false,
        })
    }

    #[cfg(feature = "one-shot")]
    pub(in crate::os) fn set_one_shot(&mut self, on: bool) {
        self.one_shot = on;
    }

    /// The end of a turn, where a pool with one-shot registrations has the kernel look again. That is the
    /// same system call. What differs, because mio has no one-shot interest: input that comes during a turn
    /// is reported then already, so that a client that sends without waiting for replies may have a turn too
    /// many.
    #[cfg(feature = "one-shot")]
    pub(crate) fn turn_ended(&self, socket: &Socket, token: usize) {
        if self.one_shot {
            // Fails only for a socket that is not registered; this one is until it is closed.
            let _ = self.writable(socket, token, false);
        }
    }

    /// Registers a socket, once for its life. What is ready already is reported.
    pub(crate) fn add(&self, socket: &Socket, token: usize) -> io::Result<()> {
        self.registry
            .register(&mut SourceFd(&socket.as_raw_fd()), Token(token), READ)
    }

    /// Whether writability is reported too. The kernel looks again at what is ready, so nothing
    /// that has happened before this call is missed.
    pub(crate) fn writable(&self, socket: &Socket, token: usize, on: bool) -> io::Result<()> {
        let interest = if on { READ | Interest::WRITABLE } else { READ };
        self.registry
            .reregister(&mut SourceFd(&socket.as_raw_fd()), Token(token), interest)
    }

    /// Registers a socket of no group: its input is reported, and room for output.
    pub(in crate::os) fn add_stray(&self, socket: &Socket, token: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(&mut SourceFd(&socket.as_raw_fd()), Token(token), both)
    }

    /// Takes a socket out. Needed before it is closed: a duplicate of the descriptor elsewhere
    /// would keep the registration alive.
    pub(crate) fn remove(&self, socket: &Socket) {
        // Fails only for a socket that is not registered, which is what was wanted.
        let _ = self.registry.deregister(&mut SourceFd(&socket.as_raw_fd()));
    }
}
