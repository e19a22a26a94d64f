//! Where a connection's own thread waits for more than its socket.
//!
//! A plain `recv` is what a loop written by hand costs, and nothing but the socket ends it. So a
//! thread waits here only where something else may: while its connection is parked, when the handler
//! asked to be woken, or when a [`ConnHandle`](crate::ConnHandle) was taken, by which it may be poked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::registry::Registry;
use crate::conn;
use crate::handler::CloseReason;
use crate::os::bell::{self, Bell};
use crate::os::socket::Socket;
use crate::os::words::Awaited;
use crate::port::Readiness;
use crate::sched::{NEVER, Nanos, Ticket, Told, Wake};
use crate::sync::Mutex;

/// How often is looked where no bell was to be had, for want of descriptors.
const WITHOUT_BELL: Duration = Duration::from_millis(50);

/// One connection's.
#[derive(Debug, Default)]
pub(crate) struct Bed {
    called: Mutex<Called>,
    /// Somebody has poked it. Relaxed: what it stands for is under the lock.
    reached: AtomicBool,
}

#[derive(Debug, Default)]
struct Called {
    killed: bool,
    poked: bool,
    interrupted: bool,
    /// The last park that has been resumed.
    resumed: Ticket,
    /// Its `Resume` was dropped unused.
    dropped: bool,
    /// The thread is here.
    #[cfg(feature = "test-util")]
    lies: bool,
    /// Made when it is needed first: a descriptor, which most connections do without.
    bell: Option<Arc<Bell>>,
}

/// For what a thread lies down.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rest {
    Idle,
    Park {
        ticket: Ticket,
        /// Something is queued for the client.
        unsent: bool,
    },
}

impl Bed {
    /// Waits until there is cause to get up, and says what it is. `until`: on the registry's clock.
    pub(crate) fn rest(
        &self,
        rest: Rest,
        socket: &Socket,
        until: Nanos,
        registry: &Registry,
    ) -> Wake {
        #[cfg(feature = "test-util")]
        self.call(|called| called.lies = true);
        let wake = self.lie(rest, socket, until, registry);
        #[cfg(feature = "test-util")]
        self.call(|called| called.lies = false);
        wake
    }

    fn lie(&self, rest: Rest, socket: &Socket, until: Nanos, registry: &Registry) -> Wake {
        let mut wake = Wake::default();
        let awaited = match rest {
            Rest::Idle => Awaited {
                input: true,
                output: false,
            },
            Rest::Park { unsent, .. } => Awaited {
                input: false,
                output: unsent,
            },
        };
        // Before the look at what has been called: whoever calls after it finds the bell.
        let bell = self.bell();
        let bell = bell.as_deref();
        loop {
            if self.is_called(rest, &mut wake) {
                return wake;
            }
            let now = Nanos(registry.now());
            if now >= until {
                wake.tell(Told::DUE);
                return wake;
            }
            let left = (until != NEVER).then(|| until.since(now).to_duration());
            let slice = bell.is_none().then_some(WITHOUT_BELL);
            let timeout = left.into_iter().chain(slice).min();
            let Ok(seen) = bell::wait(socket, awaited, bell, timeout) else {
                // Not to be expected. A read finds out, or says that there is nothing.
                wake.ready = Readiness::READABLE;
                return wake;
            };
            // Whoever called before that is heard before the socket is.
            if self.is_called(rest, &mut wake) {
                return wake;
            }
            wake.ready = match rest {
                Rest::Idle => Readiness::READABLE.when(seen.input),
                Rest::Park { .. } => Readiness::HUNG_UP
                    .when(seen.hung_up)
                    .and(Readiness::WRITABLE.when(seen.output)),
            };
            if wake.ready != Readiness::NOTHING {
                return wake;
            }
        }
    }

    /// Whether somebody has poked it, although its handler has made no way to: from then on it lies
    /// down here. Costs a load for each command.
    pub(crate) fn is_reached(&self) -> bool {
        self.reached.load(Relaxed)
    }

    /// Whether its command has been interrupted, which is heard with this.
    pub(crate) fn take_interrupted(&self) -> bool {
        std::mem::take(&mut self.called.lock().interrupted)
    }

    fn is_called(&self, rest: Rest, wake: &mut Wake) -> bool {
        let mut called = self.called.lock();
        wake.tell_if(std::mem::take(&mut called.poked), Told::POKED);
        wake.tell_if(std::mem::take(&mut called.interrupted), Told::INTERRUPTED);
        if let Rest::Park { ticket, .. } = rest
            && ticket != 0
            && called.resumed == ticket
        {
            if called.dropped {
                wake.close = Some(CloseReason::Unresumed);
            } else {
                wake.tell(Told::RESUMED);
            }
        }
        let told = wake.is(Told::POKED) || wake.is(Told::INTERRUPTED);
        called.killed || told || wake.is(Told::RESUMED) || wake.close.is_some()
    }

    fn bell(&self) -> Option<Arc<Bell>> {
        let mut called = self.called.lock();
        if called.bell.is_none() {
            called.bell = Bell::new().ok().map(Arc::new);
        }
        called.bell.clone()
    }

    /// Notes something, and wakes the thread if it is there.
    fn call(&self, note: impl FnOnce(&mut Called)) {
        let mut called = self.called.lock();
        note(&mut called);
        let bell = called.bell.clone();
        drop(called);
        if let Some(bell) = bell {
            bell.ring();
        }
    }
}

impl conn::Place for Bed {
    fn kill(&self, _: usize) -> bool {
        self.call(|called| called.killed = true);
        true
    }

    fn poke(&self, _: usize) {
        self.reached.store(true, Relaxed);
        self.call(|called| called.poked = true);
    }

    fn interrupt(&self, _: usize) {
        self.call(|called| called.interrupted = true);
    }

    fn resume(&self, _: usize, ticket: Ticket, dropped: bool) {
        self.call(|called| {
            if called.resumed < ticket {
                called.resumed = ticket;
                called.dropped = dropped;
            }
        });
    }

    #[cfg(feature = "test-util")]
    fn has_heard(&self) -> Option<bool> {
        let called = self.called.lock();
        let heard = !(called.poked || called.interrupted);
        called.lies.then_some(heard)
    }

    // Every connection has a thread here: nobody is queued.
    fn boost(&self, _: usize) {}

    fn unboost(&self, _: usize) {}
}

impl Bed {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }
}
