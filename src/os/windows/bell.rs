//! What wakes a thread that waits for a socket, and what it waits with.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Registry, Token, Waker};

use super::socket::Socket;
use crate::os::words::{Awaited, Seen};
use crate::sync::Mutex;

/// The waker's token: no socket's, for those count up from 0.
pub(super) const WAKER: Token = Token(usize::MAX);

const SOCKET: Token = Token(0);

const BATCH: usize = 64;

/// A bell that stays rung until it is heard: a completion port of its own, where what is waited for is
/// registered too. One thread waits, for the same socket or listeners each time.
#[derive(Debug)]
pub(crate) struct Bell {
    waker: Arc<Waker>,
    ear: Mutex<Ear>,
}

/// Locked by the thread that waits.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) poll: Poll,
    pub(super) events: Events,
    /// The socket's second handle, since it was waited for first.
    source: Option<mio::net::TcpStream>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        Ok(Self {
            waker: Arc::new(Waker::new(poll.registry(), WAKER)?),
            ear: Mutex::new(Ear {
                poll,
                events: Events::with_capacity(BATCH),
                source: None,
            }),
        })
    }

    pub(crate) fn ring(&self) {
        // Fails only for want of memory; whoever waits with a time-out looks again.
        let _ = self.waker.wake();
    }

    /// What else may ring it.
    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Lets the waiting thread have the poll.
    pub(super) fn listen<T>(&self, with: impl FnOnce(&mut Ear) -> T) -> T {
        with(&mut self.ear.lock())
    }

    /// Waits for a socket, the bell or the time.
    pub(super) fn wait(
        &self,
        stream: &TcpStream,
        awaited: Awaited,
        timeout: Option<Duration>,
    ) -> io::Result<Seen> {
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        self.listen(|ear| {
            ear.ask(stream, awaited)?;
            loop {
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                match ear.poll.poll(&mut ear.events, left) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    polled => polled?,
                }
                let mut seen = Seen::default();
                for event in ear.events.iter().filter(|event| event.token() == SOCKET) {
                    seen.input |= awaited.input && event.is_readable();
                    seen.output |= awaited.output && event.is_writable();
                    seen.hung_up |= event.is_write_closed();
                }
                let rung = ear.events.iter().any(|event| event.token() == WAKER);
                let over = deadline.is_some_and(|at| at <= Instant::now());
                if rung || over || seen != Seen::default() {
                    return Ok(seen);
                }
            }
        })
    }
}

impl Ear {
    /// Asks for what there is now and what comes. Whoever waits for neither input nor output asks for
    /// output, whose event comes once and is passed over: with it a break is reported.
    fn ask(&mut self, stream: &TcpStream, awaited: Awaited) -> io::Result<()> {
        let interest = match (awaited.input, awaited.output) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, _) => Interest::WRITABLE,
        };
        let registry: &Registry = self.poll.registry();
        match &mut self.source {
            Some(source) => registry.reregister(source, SOCKET, interest),
            None => {
                let mut source = mio::net::TcpStream::from_std(stream.try_clone()?);
                registry.register(&mut source, SOCKET, interest)?;
                self.source = Some(source);
                Ok(())
            }
        }
    }
}

/// Waits until there is something with the socket, `bell` is rung or the time is over.
pub(crate) fn wait(
    socket: &Socket,
    awaited: Awaited,
    bell: Option<&Bell>,
    timeout: Option<Duration>,
) -> io::Result<Seen> {
    // Before the look: whoever shuts the socket after it finds the bell.
    socket.rings(bell.map(Bell::waker));
    let ended = socket.ended(awaited);
    if ended != Seen::default() {
        return Ok(ended);
    }
    let seen = match bell {
        Some(bell) => bell.wait(socket.stream(), awaited, timeout)?,
        None => look(socket, awaited, timeout),
    };
    match seen == Seen::default() {
        true => Ok(socket.ended(awaited)),
        false => Ok(seen),
    }
}

/// There was no handle for a bell. Somebody looks again soon.
fn look(socket: &Socket, awaited: Awaited, timeout: Option<Duration>) -> Seen {
    let mut seen = Seen {
        output: awaited.output,
        ..Seen::default()
    };
    match socket.stream().peek(&mut [0]) {
        Ok(_) => seen.input = awaited.input,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(_) => (seen.input, seen.hung_up) = (awaited.input, true),
    }
    if seen == Seen::default() {
        thread::sleep(timeout.unwrap_or(LOOK).min(LOOK));
    }
    seen
}

/// How often is looked without a bell.
const LOOK: Duration = Duration::from_millis(10);
