//! A group's poller: mio, each connection registered once, for edges.

use std::io;
use std::thread;
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};

pub(crate) use super::registrar::Registrar;
use crate::os::clock::Clock;
use crate::port::{Doors, Event, Readiness};
use crate::sync::Mutex;

/// The waker's token: no connection's, whose index would have to be the largest there is.
const WAKER: Token = Token(usize::MAX);

/// The doors of one group.
#[derive(Debug)]
pub(crate) struct Poller {
    interest: Registrar,
    waker: Waker,
    /// Locked by the listener while it polls, and by nobody else: the role is given to one thread
    /// at a time. The lock is what lets `Poll::poll`, which is `&mut`, be called through a shared
    /// reference without unsafe code; it is never waited for.
    poll: Mutex<(Poll, Events)>,
    clock: Clock,
}

impl Poller {
    /// A poller that takes up to `batch` events at a time; its clock is the server's.
    pub(crate) fn new(batch: usize, clock: Clock) -> io::Result<Self> {
        let poll = Poll::new()?;
        Ok(Self {
            interest: Registrar::new(&poll)?,
            waker: Waker::new(poll.registry(), WAKER)?,
            poll: Mutex::new((poll, Events::with_capacity(batch))),
            clock,
        })
    }

    /// Whether connections are re-armed.
    #[cfg(all(unix, feature = "one-shot"))]
    pub(crate) fn one_shot(mut self, on: bool) -> Self {
        self.interest.set_one_shot(on);
        self
    }
}

fn readiness(event: &mio::event::Event) -> Readiness {
    // An error is found by reading; a hang-up ends writing as well.
    let failed = event.is_error();
    let hung_up = event.is_write_closed();
    Readiness::READABLE
        .when(event.is_readable())
        .and(Readiness::READ_CLOSED.when(failed || event.is_read_closed()))
        .and(Readiness::PRIORITY.when(event.is_priority()))
        .and(Readiness::WRITABLE.when(failed || hung_up || event.is_writable()))
        .and(Readiness::HUNG_UP.when(failed || hung_up))
}

impl Doors for Poller {
    type Interest = Registrar;

    fn interest(&self) -> &Registrar {
        &self.interest
    }

    fn poll(&self, block: bool, out: &mut Vec<Event>) {
        let mut guard = self.poll.lock();
        let (poll, events) = &mut *guard;
        let timeout = (!block).then_some(Duration::ZERO);
        loop {
            match poll.poll(events, timeout) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Not to be expected of a descriptor that is ours. Should it ever be lasting,
                    // the group must neither die of it nor burn a CPU.
                    thread::sleep(Duration::from_millis(1));
                    return;
                }
            }
        }
        out.extend(
            events
                .iter()
                .filter(|event| event.token() != WAKER)
                .map(|event| Event {
                    token: event.token().0,
                    readiness: readiness(event),
                }),
        );
    }

    fn wake(&self) {
        // Fails only if it has been called so often that it is awake already.
        let _ = self.waker.wake();
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }
}
