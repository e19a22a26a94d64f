//! Where sockets register for readiness: mio's one-shot readiness made into the edges of epoll.
//!
//! After an event mio reports nothing more of that kind before the socket is registered once more, which
//! looks at what is ready. An edge means that something has come since a read found all that there was;
//! so it is then, at the end of such a read, that is registered once more. What has come in between is
//! found by the look.

use std::io;
use std::net::TcpStream;

use mio::{Interest, Poll, Registry, Token};

use super::socket::Socket;

/// A poller's door for them.
#[derive(Debug)]
pub(crate) struct Registrar(Registry);

impl Registrar {
    pub(in crate::os) fn new(poll: &Poll) -> io::Result<Self> {
        poll.registry().try_clone().map(Self)
    }

    /// Registers a socket, once for its life. What is ready already is reported.
    pub(crate) fn add(&self, socket: &Socket, token: usize) -> io::Result<()> {
        self.register(socket, token, Output::When(false))
    }

    /// Registers a socket of no group: its input is reported, and room for output.
    pub(in crate::os) fn add_stray(&self, socket: &Socket, token: usize) -> io::Result<()> {
        self.register(socket, token, Output::AfterShort(true))
    }

    fn register(&self, socket: &Socket, token: usize, output: Output) -> io::Result<()> {
        let made = Registration::new(&self.0, socket.stream(), Token(token), output)?;
        *socket.registration().lock() = Some(made);
        Ok(())
    }

    /// Whether writability is reported too. What has happened before this call is not missed.
    #[allow(clippy::unused_self)] // as it is elsewhere
    pub(crate) fn writable(&self, socket: &Socket, _token: usize, on: bool) -> io::Result<()> {
        match &mut *socket.registration().lock() {
            Some(registration) => registration.writable(on),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Takes a socket out. Needed before it is closed: the registration has a handle of it.
    #[allow(clippy::unused_self)] // as it is elsewhere
    pub(crate) fn remove(&self, socket: &Socket) {
        socket.registration().lock().take();
    }
}

/// Whether room for output is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// When somebody says so.
    When(bool),
    /// Since a write was cut short.
    AfterShort(bool),
}

/// A socket's place in a poller.
#[derive(Debug)]
pub(super) struct Registration {
    /// The second handle.
    source: mio::net::TcpStream,
    registry: Registry,
    token: Token,
    output: Output,
}

impl Registration {
    /// What is ready already is reported.
    fn new(
        registry: &Registry,
        stream: &TcpStream,
        token: Token,
        output: Output,
    ) -> io::Result<Self> {
        let mut made = Self {
            source: mio::net::TcpStream::from_std(stream.try_clone()?),
            registry: registry.try_clone()?,
            token,
            output,
        };
        let interest = made.interest();
        registry.register(&mut made.source, token, interest)?;
        Ok(made)
    }

    fn interest(&self) -> Interest {
        match self.output {
            Output::When(true) | Output::AfterShort(true) => {
                Interest::READABLE | Interest::WRITABLE
            }
            Output::When(false) | Output::AfterShort(false) => Interest::READABLE,
        }
    }

    fn rearm(&mut self) -> io::Result<()> {
        let interest = self.interest();
        self.registry
            .reregister(&mut self.source, self.token, interest)
    }

    /// Whether room is reported too, from now on.
    fn writable(&mut self, on: bool) -> io::Result<()> {
        self.output = Output::When(on);
        // Nobody asks for less: an event too many does no harm.
        if on { self.rearm() } else { Ok(()) }
    }

    /// A read has found all that there was.
    pub(super) fn was_emptied(&mut self) -> io::Result<()> {
        self.rearm()
    }

    /// A write has been cut short, or not.
    pub(super) fn was_written(&mut self, short: bool) -> io::Result<()> {
        match &mut self.output {
            Output::When(on) if !*on => return Ok(()),
            Output::When(_) => {}
            Output::AfterShort(on) => *on = short,
        }
        if short { self.rearm() } else { Ok(()) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Fails only for one that is not registered, which is what was wanted.
        let _ = self.registry.deregister(&mut self.source);
    }
}
