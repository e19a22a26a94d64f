//! A turn of a connection: fill, call the handler, settle. The same for both schedulers.
//!
//! [`Served::advance`] runs a connection as far as it goes without waiting for the peer, and says
//! what it waits for then. The pool puts it back into the table with that; thread-per-connection
//! waits on the spot and goes round again.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::config::{IO_CHUNK, PoolConfig};
use crate::conn::{Conn, Filled};
use crate::handler::{CloseReason, Handler, Next, Priority, Refusal, Step, Woken};
use crate::os::poller::Registrar;
use crate::port::Readiness;
use crate::sched::{End, Lane, Turn};
use crate::server::registry::{ConnState, Registry};
use crate::wait;

/// How much one turn may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) commands: u32,
    pub(crate) time: Duration,
}

impl Budget {
    pub(crate) fn of(pool: &PoolConfig) -> Self {
        Self {
            commands: pool.turn_commands,
            time: pool.turn_time,
        }
    }

    pub(crate) const UNBOUNDED: Self = Self {
        commands: u32::MAX,
        time: Duration::MAX,
    };
}

/// Where a connection registers for readiness; under thread-per-connection nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Poller(&'a Registrar, usize),
    Thread,
}

/// A connection with its handler and session, whatever their types are.
pub(crate) trait Connection: Send {
    fn conn(&mut self) -> &mut Conn;

    /// Runs as far as the peer has given cause to. After `End::Closed` it is over.
    fn advance(&mut self, place: Place<'_>, cause: Cause) -> Turn;

    /// Waits for what the last turn ended with, on the spot; thread-per-connection's rest. Returns
    /// why the connection runs next.
    fn wait(&mut self, end: End) -> Cause;

    /// Ends a connection that never got a worker, or whose scheduler has ended.
    fn abandon(&mut self, why: CloseReason);
}

/// Drops what a handler has made, whose destructor may panic as well. What that panics with is
/// leaked: it could do the same.
fn discard<T>(made: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(made))) {
        std::mem::forget(payload);
    }
}

impl fmt::Debug for dyn Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// Why a connection runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause {
    pub(crate) ready: Readiness,
    pub(crate) close: Option<CloseReason>,
    /// To look whether the last read stopped short.
    pub(crate) look: bool,
    /// When, on the server's clock, if whoever runs it knows.
    pub(crate) now: Option<u64>,
}

pub(crate) struct Served<H: Handler> {
    handler: Arc<H>,
    session: Option<H::Session>,
    conn: Conn,
    registry: Arc<Registry>,
    budget: Budget,
    registered: bool,
    /// Output is left that the socket did not take, or is to leave before anything else.
    flushing: bool,
    /// Writability is being reported.
    write_interest: bool,
    /// The handler asked to run again without input.
    again: bool,
    /// There are bytes, or an end, that the handler has not been shown.
    unshown: bool,
    /// How much had been consumed when the handler was last shown input.
    shown_at: u64,
    /// The handler has been shown the end of input.
    end_shown: bool,
    /// The rest of a command is owed.
    in_command: bool,
    /// To be closed as soon as all output has left.
    closing: Option<CloseReason>,
    /// The next read is to find out whether the last one stopped short.
    looking: bool,
    /// It has been served once more since the drain began.
    drained: bool,
    /// Input was found that no event had announced; a later event clears it.
    unannounced: bool,
}

impl<H: Handler> Served<H> {
    pub(crate) fn new(
        handler: Arc<H>,
        conn: Conn,
        registry: Arc<Registry>,
        budget: Budget,
    ) -> Self {
        Self {
            handler,
            session: None,
            conn,
            registry,
            budget,
            registered: false,
            flushing: false,
            write_interest: false,
            again: false,
            unshown: false,
            shown_at: 0,
            end_shown: false,
            in_command: false,
            closing: None,
            looking: false,
            drained: false,
            unannounced: false,
        }
    }

    fn lane(&self) -> Lane {
        let standing = self.conn.standing();
        if !standing.logged_in || standing.holding {
            return Lane::Control;
        }
        match standing.priority {
            Priority::High => Lane::High,
            Priority::Auto if standing.in_transaction => Lane::High,
            Priority::Auto | Priority::Low => Lane::Low,
        }
    }

    /// Runs until the connection has to wait (`Ok`) or is over (`Err` with the reason).
    fn run(&mut self, place: Place<'_>, cause: Cause, calls: &mut u32) -> Result<End, CloseReason> {
        self.note(&cause);
        if self.session.is_none() {
            if let Place::Poller(_, token) = place {
                self.conn.shared().placed(token);
                // Killed before that: nobody was woken.
                if let Some(why) = self.conn.shared().cancelled() {
                    return Err(why);
                }
            }
            self.open(place)?;
        }
        if let Some(why) = self.conn.shared().cancelled() {
            return Err(why);
        }
        if let Some(why) = cause.close {
            self.close_if_silent(why)?;
        }
        let mut begun: Option<Instant> = None;
        loop {
            if self.flushing && !self.flush(place)? {
                return Ok(End::Flush);
            }
            if self.closing.is_some()
                && let Some(why) = self.closing.take()
            {
                return Err(why);
            }
            let more = self.again || self.unshown || self.fill()?;
            if self.closing.is_some() {
                continue;
            }
            let asked_again = self.again && *calls > 0;
            let spent = *calls >= self.budget.commands
                || begun.is_some_and(|at| at.elapsed() >= self.budget.time);
            if !more || asked_again || spent {
                let end = if more {
                    End::Again
                } else {
                    End::Idle {
                        in_command: self.in_command,
                    }
                };
                return Ok(if self.flush(place)? { end } else { End::Flush });
            }
            // The clock is read from the second command of a turn on: most have only one.
            if *calls == 1 && self.budget.time != Duration::MAX {
                begun = Some(Instant::now());
            }
            // A client that does not take its replies gets no further ones made: they would pile up
            // to the bound, and then hold the worker.
            if *calls > 0 && self.conn.unsent() >= IO_CHUNK && !self.flush(place)? {
                return Ok(End::Flush);
            }
            *calls += 1;
            self.call()?;
            // What has been pipelined behind a command that was killed is not run.
            if let Some(why) = self.conn.shared().cancelled() {
                return Err(why);
            }
        }
    }

    /// What the poller, or whoever wants the connection closed, has said.
    fn note(&mut self, cause: &Cause) {
        let ready = cause.ready;
        if ready.input() {
            self.conn.undrained = true;
            self.unannounced = false;
        }
        if ready.read_closed || ready.priority {
            self.conn.reread = true;
        }
        if cause.look && !ready.input() {
            self.conn.undrained = true;
            self.looking = true;
        }
    }

    fn open(&mut self, place: Place<'_>) -> Result<(), CloseReason> {
        let (handler, conn) = (&self.handler, &mut self.conn);
        let opened = catch_unwind(AssertUnwindSafe(|| handler.open(conn)));
        wait::command_ended();
        match opened {
            Ok(Ok(session)) => self.session = Some(session),
            Ok(Err(error)) => {
                discard(error);
                return Err(CloseReason::OpenFailed);
            }
            Err(payload) => {
                discard(payload);
                self.registry.count_panic();
                return Err(CloseReason::Panicked);
            }
        }
        if let Place::Poller(registrar, token) = place {
            // Whatever has arrived by now is reported by the registration itself.
            registrar
                .add(self.conn.socket(), token)
                .map_err(|error| CloseReason::Io(error.kind()))?;
            self.registered = true;
        }
        // The greeting; if it does not fit, the loop that follows sees to it.
        self.flush(place)?;
        Ok(())
    }

    /// A deadline has passed, or the server drains. Whoever has sent something is served first: its
    /// silence was our queueing.
    fn close_if_silent(&mut self, why: CloseReason) -> Result<(), CloseReason> {
        match why {
            // What had arrived when the drain began has been served; a client that goes on sending
            // does not keep the server up.
            CloseReason::Draining if std::mem::replace(&mut self.drained, true) => Err(why),
            CloseReason::IdleTimeout | CloseReason::ReadTimeout | CloseReason::Draining => {
                // Or nobody can tell, which is not the poller's fault.
                let announced = self.conn.undrained || self.conn.unsure();
                if self.unshown || self.again || self.flushing {
                    return Ok(());
                }
                match self.conn.fill() {
                    Ok(Filled::Bytes) => {
                        self.unshown = true;
                        if !announced {
                            // The event may be on its way still. Only if none has come by the next
                            // time that the connection is found silent was there none.
                            if self.unannounced {
                                self.registry.count_lost_edge();
                            }
                            self.unannounced = true;
                        }
                        Ok(())
                    }
                    // Thread-per-connection is told by an end of its input.
                    Ok(Filled::End) if self.conn.shared().input_ended().is_some() => Err(why),
                    Ok(Filled::End) => Err(CloseReason::ClientClosed),
                    Ok(Filled::Nothing | Filled::Full) => {
                        if self.unannounced {
                            self.registry.count_lost_edge();
                        }
                        Err(why)
                    }
                    Err(_) => Err(self.failure(CloseReason::ClientClosed)),
                }
            }
            why => Err(why),
        }
    }

    /// Reads if there may be something. True: the handler has something to see.
    fn fill(&mut self) -> Result<bool, CloseReason> {
        if !self.conn.undrained && !self.conn.at_end() {
            return Ok(false);
        }
        let looking = std::mem::take(&mut self.looking);
        match self.conn.fill() {
            Ok(Filled::Bytes) => {
                self.unshown = true;
                if looking {
                    self.conn.ask();
                }
            }
            Ok(Filled::End) if self.end_shown => {
                // It may be half-closed only, and reading: what it asked for is sent first.
                self.close_after_flush(CloseReason::ClientClosed);
            }
            Ok(Filled::End) => {
                // A kill shuts the reading side, and that is no end that the client made.
                if let Some(why) = self.conn.shared().cancelled() {
                    return Err(why);
                }
                self.unshown = true;
            }
            Ok(Filled::Full) => return Err(CloseReason::InputTooLong),
            Ok(Filled::Nothing) => {}
            Err(_) => return Err(self.failure(CloseReason::ClientClosed)),
        }
        Ok(self.unshown)
    }

    /// Calls the handler once and takes in what it answers.
    fn call(&mut self) -> Result<(), CloseReason> {
        let Some(session) = &mut self.session else {
            return Err(CloseReason::OpenFailed);
        };
        let (handler, conn) = (&self.handler, &mut self.conn);
        let commands = &conn.shared().commands;
        // Relaxed, and no `fetch_add`: a statistic with one writer.
        commands.store(commands.load(Relaxed) + 1, Relaxed);
        let woken = std::mem::take(&mut self.again);
        if !woken {
            self.unshown = false;
            self.shown_at = conn.consumed();
            self.end_shown = conn.at_end();
        }
        let answer = catch_unwind(AssertUnwindSafe(|| {
            if woken {
                handler.woken(session, conn, Woken::Again)
            } else {
                handler.command(session, conn)
            }
        }));
        wait::command_ended();
        let next = match answer {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => {
                let why = CloseReason::Handler(error.kind());
                discard(error);
                return Err(self.failure(why));
            }
            Err(payload) => {
                discard(payload);
                self.registry.count_panic();
                return Err(CloseReason::Panicked);
            }
        };
        self.take_next(next)
    }

    fn take_next(&mut self, next: Next) -> Result<(), CloseReason> {
        if next.until.is_some() {
            return Err(CloseReason::Unsupported("Next::until"));
        }
        let left = self.conn.buffered().len();
        // Something was taken, be it some steps ago, and something is left: that may be a command,
        // or the rest of one.
        let progress = left > 0 && self.conn.consumed() != self.shown_at;
        if progress && matches!(next.step, Step::Input | Step::MoreInput) {
            self.unshown = true;
            self.end_shown = false;
        }
        match next.step {
            Step::Input => self.in_command = left > 0 && !progress,
            Step::MoreInput => self.in_command = true,
            Step::Again => {
                self.in_command = true;
                self.again = true;
            }
            Step::Close => self.close_after_flush(CloseReason::HandlerClosed),
            Step::Flush => return Err(CloseReason::Unsupported("Next::flush")),
            Step::Park => return Err(CloseReason::Unsupported("Next::park")),
            Step::Detach => return Err(CloseReason::Unsupported("Next::detach")),
        }
        Ok(())
    }

    fn close_after_flush(&mut self, why: CloseReason) {
        self.closing = Some(why);
        self.flushing = true;
    }

    /// Sends what is queued. False: the socket takes no more now, and its writability is waited
    /// for.
    fn flush(&mut self, place: Place<'_>) -> Result<bool, CloseReason> {
        let done = match self.conn.flush_now() {
            Ok(done) => done,
            Err(_) => return Err(self.failure(CloseReason::ClientClosed)),
        };
        self.flushing = !done;
        if let Place::Poller(registrar, token) = place
            && self.write_interest == done
        {
            registrar
                .writable(self.conn.socket(), token, !done)
                .map_err(|error| CloseReason::Io(error.kind()))?;
            self.write_interest = !done;
        }
        Ok(done)
    }

    /// The reason to close for after an operation or the handler failed: the connection's own, if
    /// it has one.
    fn failure(&mut self, otherwise: CloseReason) -> CloseReason {
        let why = self.conn.take_failure();
        self.conn.shared().cancelled().or(why).unwrap_or(otherwise)
    }

    /// The end of the connection, for whatever reason: out of the poller, last words, session
    /// closed, socket closed, counted.
    fn finish(&mut self, place: Place<'_>, why: CloseReason) {
        if let Place::Poller(registrar, _) = place
            && self.registered
        {
            registrar.remove(self.conn.socket());
        }
        self.last_words(&why);
        if let Some(session) = self.session.take() {
            let handler = &self.handler;
            let why = why.clone();
            // The session is dropped in there, or by the unwinding.
            let closed = catch_unwind(AssertUnwindSafe(|| handler.close(session, why)));
            if let Err(payload) = closed {
                discard(payload);
                self.registry.count_panic();
            }
            wait::command_ended();
        }
        self.conn.shut();
        self.registry.closed(self.conn.shared(), &why);
    }

    fn last_words(&mut self, why: &CloseReason) {
        if !why.by_server() {
            return;
        }
        let mut out = Vec::new();
        let said = catch_unwind(AssertUnwindSafe(|| match &mut self.session {
            Some(session) => self.handler.farewell(session, &mut out, why),
            None if *why == CloseReason::Draining => {
                self.handler.refuse(&mut out, &Refusal::Draining);
            }
            None if matches!(why, CloseReason::OpenFailed | CloseReason::Panicked) => {
                self.handler.refuse(&mut out, &Refusal::OpenFailed);
            }
            None => {}
        }));
        wait::command_ended();
        if let Err(payload) = said {
            discard(payload);
            self.registry.count_panic();
            return;
        }
        self.conn.queue(&out);
        // If it does not fit, the client was not reading anyway.
        let _ = self.conn.flush_now();
    }
}

impl<H: Handler> Connection for Served<H> {
    fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    fn advance(&mut self, place: Place<'_>, cause: Cause) -> Turn {
        let shared = self.conn.shared();
        shared.state.store(ConnState::Running as u8, Relaxed);
        if let Some(now) = cause.now {
            shared.since.store(now, Relaxed);
        }
        let mut calls = 0;
        let end = match self.run(place, cause, &mut calls) {
            Ok(end) => end,
            Err(why) => {
                self.finish(place, why);
                End::Closed
            }
        };
        let shared = self.conn.shared();
        let state = match end {
            End::Idle { in_command: false } => ConnState::Idle,
            End::Idle { in_command: true } => ConnState::Reading,
            End::Flush => ConnState::Writing,
            End::Again | End::Closed => ConnState::Running,
        };
        shared.state.store(state as u8, Relaxed);
        Turn {
            end,
            lane: self.lane(),
            calls,
            look_again: self.conn.unsure(),
        }
    }

    fn wait(&mut self, end: End) -> Cause {
        let close = match end {
            End::Again | End::Closed => None,
            End::Flush => self
                .conn
                .flush_blocking()
                .err()
                .map(|_| self.failure(CloseReason::ClientClosed)),
            End::Idle { .. } => match self.conn.fill_blocking() {
                Ok(Filled::End) if self.conn.shared().input_ended().is_some() => {
                    self.conn.shared().input_ended()
                }
                Ok(Filled::Bytes | Filled::End) => {
                    self.unshown = true;
                    None
                }
                Ok(Filled::Full) => Some(CloseReason::InputTooLong),
                // A blocking read that finds nothing does not return.
                Ok(Filled::Nothing) => None,
                Err(_) => Some(self.failure(CloseReason::ClientClosed)),
            },
        };
        Cause {
            close,
            ..Cause::default()
        }
    }

    fn abandon(&mut self, why: CloseReason) {
        self.finish(Place::Thread, why);
    }
}
