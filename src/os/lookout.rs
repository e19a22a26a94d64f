//! A poller with a time-out, for sockets that belong to no group any more.

use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};

use super::registrar::Registrar;
use super::socket::Socket;
use crate::sync::Mutex;

/// The waker's token: no socket's, for those count up from 0.
const WAKER: Token = Token(usize::MAX);

const BATCH: usize = 256;

/// One thread waits here; any other may wake it.
#[derive(Debug)]
pub(crate) struct Lookout {
    registrar: Registrar,
    waker: Waker,
    /// Locked by the one thread that waits. See `Poller` for why there is a lock at all.
    poll: Mutex<(Poll, Events)>,
}

impl Lookout {
    pub(crate) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        Ok(Self {
            registrar: Registrar::new(&poll)?,
            waker: Waker::new(poll.registry(), WAKER)?,
            poll: Mutex::new((poll, Events::with_capacity(BATCH))),
        })
    }

    /// Has input of a socket reported, and room for output. What is ready already is reported too;
    /// after that, only what is new.
    pub(crate) fn add(&self, socket: &Socket, token: usize) -> io::Result<()> {
        self.registrar.add_stray(socket, token)
    }

    /// Takes a socket out. Needed before it is closed, for a duplicate would keep it in.
    pub(crate) fn remove(&self, socket: &Socket) {
        self.registrar.remove(socket);
    }

    /// Waits until something is ready, somebody wakes it or the time is over, and puts what is ready
    /// into `ready`.
    pub(crate) fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<usize>) {
        let mut guard = self.poll.lock();
        let (poll, events) = &mut *guard;
        if let Err(error) = poll.poll(events, timeout) {
            if error.kind() != io::ErrorKind::Interrupted {
                // Not to be expected. It must not burn a CPU either.
                std::thread::sleep(Duration::from_millis(1));
            }
            return;
        }
        let tokens = events.iter().map(|event| event.token());
        ready.extend(tokens.filter(|token| *token != WAKER).map(|token| token.0));
    }

    /// Makes the current or else the next wait return.
    pub(crate) fn wake(&self) {
        // Fails only if it has been called so often that it is awake already.
        let _ = self.waker.wake();
    }
}
