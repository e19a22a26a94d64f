//! A turn of a connection: fill, call the handler, settle. The same for both schedulers.
//!
//! [`Served::advance`] runs a connection as far as it goes without waiting for the peer, and says
//! what it waits for then. The pool puts it back into the table with that; thread-per-connection
//! waits on the spot and goes round again.
//!
//! The handler is called for input, and for what [`Calls`] holds. A park is a rest in which nothing
//! is read; what was queued for the client goes on leaving.

use std::fmt;
use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::config::{IO_CHUNK, PoolConfig, STRIDE};
use crate::conn::{Conn, Desk, Filled, Taken};
use crate::handler::{CloseReason, Handler, Next, Priority, Refusal, Step, Woken};
use crate::os::poller::Registrar;
use crate::port::Readiness;
use crate::sched::{End, Lane, NEVER, Nanos, Told, Turn, Wake};
use crate::server::bed::{Bed, Rest};
use crate::server::registry::ConnState;
use crate::wait;

/// How much one turn may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) commands: u32,
    pub(crate) time: Nanos,
}

impl Budget {
    pub(crate) fn of(pool: &PoolConfig) -> Self {
        Self {
            commands: pool.turn_commands,
            time: Nanos::from_duration(pool.turn_time),
        }
    }

    pub(crate) const UNBOUNDED: Self = Self {
        commands: u32::MAX,
        time: NEVER,
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

    /// Runs as far as it has cause to, with the buffers on `desk` if it has none of its own. After
    /// `End::Closed` it is over for the scheduler.
    fn advance(&mut self, place: Place<'_>, cause: Cause, desk: &mut Desk) -> Turn;

    /// Waits for what the last turn ended with, on the spot; thread-per-connection's rest. Returns
    /// why the connection runs next.
    fn wait(&mut self, turn: &Turn, bed: &Bed) -> Cause;

    /// Whether it has left the scheduler alive, and [`run_detached`](Self::run_detached) is to be
    /// called, on a thread of its own.
    fn is_detached(&self) -> bool;

    /// The rest of the life of a connection that has left the scheduler.
    fn run_detached(&mut self);

    /// Ends a connection that never got a worker, or whose scheduler has ended.
    fn abandon(&mut self, why: CloseReason);
}

/// Drops what a handler has made, whose destructor may panic as well. What that panics with is
/// leaked: it could do the same.
pub(crate) fn discard<T>(made: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(made))) {
        std::mem::forget(payload);
    }
}

/// Why a connection closes whose handler has returned this error.
fn reason(error: &io::Error, otherwise: CloseReason) -> CloseReason {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Refusal::TooManyConnections { .. }) => CloseReason::TooManyConnections,
        _ => otherwise,
    }
}

impl fmt::Debug for dyn Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// Why a connection runs, and when, if whoever runs it knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cause {
    pub(crate) wake: Wake,
    pub(crate) now: Option<Nanos>,
}

/// For what the handler is to be called, beside input; in the order of [`Woken`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls(u8);

impl Calls {
    const AGAIN: Self = Self(1);
    const FLUSHED: Self = Self(1 << 1);
    const RESUMED: Self = Self(1 << 2);
    const CANCELLED: Self = Self(1 << 3);
    const DUE: Self = Self(1 << 4);
    const POKED: Self = Self(1 << 5);
    /// Asked for by the handler itself: the others in the queue come first.
    const OWN: Self = Self(Self::AGAIN.0 | Self::FLUSHED.0);

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn has_any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    fn drop(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    fn take(&mut self) -> Option<Woken> {
        let first = self.0.trailing_zeros();
        let woken = *[
            Woken::Again,
            Woken::Flushed,
            Woken::Resumed,
            Woken::Cancelled,
            Woken::Due,
            Woken::Poked,
        ]
        .get(first as usize)?;
        self.0 &= self.0 - 1;
        Some(woken)
    }
}

#[repr(C, align(64))] // what each turn touches comes first
pub(crate) struct Served<H: Handler> {
    handler: Arc<H>,
    budget: Budget,
    /// When the handler asked to be woken at the latest.
    until: Nanos,
    /// How much had been consumed when the handler was last shown input.
    shown_at: u64,
    /// What else the handler is to be told.
    calls: Calls,
    /// To be closed as soon as all output has left.
    closing: Option<CloseReason>,
    /// The priority of the next turn, if it is not the session's.
    priority: Option<Priority>,
    registered: bool,
    /// Output is left that the socket did not take, or is to leave before anything else.
    flushing: bool,
    /// Writability is being reported.
    write_interest: bool,
    /// The handler is to be told when that is done.
    flush_asked: bool,
    /// The handler asked for nothing to be read until it is resumed.
    parked: bool,
    /// The peer has gone: it will neither send nor receive.
    hung_up: bool,
    /// It leaves the scheduler.
    detached: bool,
    /// There are bytes, or an end, that the handler has not been shown.
    unshown: bool,
    /// The handler has been shown the end of input.
    end_shown: bool,
    /// The rest of a command is owed.
    in_command: bool,
    /// A command has begun, as others see it, and is not over.
    underway: bool,
    /// The client has asked for it. Otherwise it was a poke, or a moment that the handler asked for.
    asked: bool,
    /// This turn has had a call for what the client has asked for.
    heard: bool,
    /// The next read is to find out whether the last one stopped short.
    looking: bool,
    /// It has been served once more since the drain began.
    drained: bool,
    /// Input was found that no event had announced; a later event clears it.
    unannounced: bool,
    conn: Conn,
    session: Option<H::Session>,
    /// How much had left when the write clock was last set, while it runs.
    stride_from: Option<Mark>,
    /// How much had left when its client's pipeline became too long to take more of it.
    crammed_from: Option<Mark>,
}

/// A number of bytes that have left, in half the room of an `Option<u64>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark(NonZero<u64>);

impl Mark {
    fn at(sent: u64) -> Self {
        Self(NonZero::<u64>::MIN.saturating_add(sent))
    }

    /// How many have left since, when `sent` have in all.
    fn until(self, sent: u64) -> u64 {
        sent - (self.0.get() - 1)
    }
}

impl<H: Handler> Served<H> {
    pub(crate) fn new(handler: Arc<H>, conn: Conn, budget: Budget) -> Self {
        Self {
            handler,
            session: None,
            conn,
            budget,
            registered: false,
            flushing: false,
            write_interest: false,
            stride_from: None,
            crammed_from: None,
            flush_asked: false,
            calls: Calls::default(),
            parked: false,
            hung_up: false,
            until: NEVER,
            priority: None,
            detached: false,
            unshown: false,
            shown_at: 0,
            end_shown: false,
            in_command: false,
            underway: false,
            asked: false,
            heard: false,
            closing: None,
            looking: false,
            drained: false,
            unannounced: false,
        }
    }

    fn lane(&self) -> Lane {
        let standing = self.conn.standing();
        if !self.conn.is_logged_in() {
            return Lane::Control;
        }
        match self.priority.unwrap_or(standing.priority) {
            Priority::High => Lane::High,
            Priority::Auto if standing.in_transaction => Lane::High,
            Priority::Auto | Priority::Low => Lane::Low,
        }
    }

    /// Runs until the connection has to wait (`Ok`) or is over (`Err` with the reason).
    #[inline]
    fn run(&mut self, place: Place<'_>, wake: Wake, calls: &mut u32) -> Result<End, CloseReason> {
        self.note(wake);
        if self.session.is_none() {
            if let Place::Poller(_, token) = place {
                self.conn.shared().placed(token);
            }
            // Killed before that: nobody was woken.
            if let Some(why) = self.conn.shared().cancelled() {
                return Err(why);
            }
            self.open(place)?;
        }
        if let Some(why) = self.conn.shared().cancelled() {
            return Err(why);
        }
        if let Some(why) = wake.close {
            self.close_if_silent(place, why)?;
        }
        let mut begun: Option<Instant> = None;
        loop {
            if self.flushing || self.flush_asked || self.closing.is_some() {
                // Whoever streams is told at once that it is to stop.
                let told = self.flush_asked && self.calls.has_any_of(Calls::CANCELLED);
                if self.flushing && !self.flush(place)? && !told {
                    return Ok(self.wait_for_room(place));
                }
                if let Some(why) = self.closing.take() {
                    return Err(why);
                }
                if std::mem::take(&mut self.flush_asked) && !self.flushing && !told {
                    self.calls.add(Calls::FLUSHED);
                }
            }
            let more = !self.calls.is_empty() || (!self.parked && (self.unshown || self.fill()?));
            if self.closing.is_some() {
                continue;
            }
            let after_others = *calls > 0 && self.calls.has_any_of(Calls::OWN);
            let spent = *calls >= self.budget.commands
                || begun.is_some_and(|at| Nanos::from_duration(at.elapsed()) >= self.budget.time);
            if !more || after_others || spent {
                return self.end(place, more);
            }
            // The clock is read from the second command of a turn on: most have only one.
            if *calls == 1 && self.budget.time != NEVER {
                begun = Some(Instant::now());
            }
            // A client that does not take its replies gets no further ones made: they would pile up
            // to the bound, and then hold the worker.
            if *calls > 0 && self.conn.unsent() >= IO_CHUNK && !self.flush(place)? {
                return Ok(self.wait_for_room(place));
            }
            *calls += 1;
            self.call()?;
            // What has been pipelined behind a command that was killed is not run.
            if let Some(why) = self.conn.shared().cancelled() {
                return Err(why);
            }
            if self.detached {
                return Ok(self.leave(place));
            }
        }
    }

    /// Ends a turn: with all output sent, or as much of it as the socket takes.
    #[inline]
    fn end(&mut self, place: Place<'_>, more: bool) -> Result<End, CloseReason> {
        let sent = self.flush(place)?;
        // A transport may have read while it wrote.
        let more = more || (!self.parked && self.conn.may_hold_input());
        if self.parked && !more {
            // What is left goes on leaving meanwhile: whoever holds something is not to wait for a
            // client that does not read.
            self.flushing = false;
            // It may have been said with the command, and is not said again.
            if self.hung_up {
                return Err(CloseReason::ClientClosed);
            }
            let ticket = self.conn.ticket().unwrap_or(0);
            if ticket == 0 && self.until == NEVER {
                return Err(CloseReason::Unresumed);
            }
            return Ok(End::Park { ticket });
        }
        Ok(if !sent {
            self.wait_for_room(place)
        } else if more {
            End::Again
        } else {
            End::Idle {
                in_command: self.in_command,
            }
        })
    }

    /// Ends a turn because output waits. What comes in meanwhile is taken, as long as it is not too
    /// much; a thread of its own does so where it waits.
    fn wait_for_room(&mut self, place: Place<'_>) -> End {
        let sent = self.conn.sent();
        let mut moved = self
            .stride_from
            .is_none_or(|from| from.until(sent) >= STRIDE);
        let taken = match place {
            Place::Poller(..) => self.conn.read_ahead(),
            Place::Thread => Taken::All,
        };
        let crammed = taken == Taken::Full;
        if crammed {
            // Whatever it takes counts now, and sets the clock.
            moved |= self.crammed_from != Some(Mark::at(sent));
        }
        self.crammed_from = crammed.then(|| Mark::at(sent));
        if moved {
            self.stride_from = Some(Mark::at(sent));
        }
        End::Flush { crammed, moved }
    }

    /// What has happened since the last turn.
    fn note(&mut self, wake: Wake) {
        let ready = wake.ready;
        if ready.input() {
            self.conn.undrained = true;
            self.unannounced = false;
        }
        if ready.has_any_of(Readiness::RARE) {
            self.conn.reread |= ready.has_any_of(Readiness::READ_CLOSED.and(Readiness::PRIORITY));
            self.hung_up |= ready.has_any_of(Readiness::HUNG_UP);
        }
        if wake.told != Told::default() {
            self.note_told(wake);
        }
    }

    fn note_told(&mut self, wake: Wake) {
        let input = wake.ready.input();
        if wake.is(Told::LOOK) && !input {
            self.conn.undrained = true;
            self.looking = true;
        }
        if wake.is(Told::RESUMED) {
            self.calls.add(Calls::RESUMED);
        }
        if wake.is(Told::POKED) {
            self.calls.add(Calls::POKED);
        }
        // It may be over, or it was another one.
        if wake.is(Told::INTERRUPTED)
            && self.underway
            && self.conn.shared().command().cause().is_some()
        {
            self.calls.add(Calls::CANCELLED);
            // A client that reads fast would be sent the whole stream before.
            self.calls.drop(Calls::FLUSHED);
        }
        // Whatever else has come was first.
        if wake.is(Told::DUE) && self.calls.is_empty() && (self.parked || !input) {
            self.calls.add(Calls::DUE);
        }
    }

    fn open(&mut self, place: Place<'_>) -> Result<(), CloseReason> {
        let (handler, conn) = (&self.handler, &mut self.conn);
        let opened = catch_unwind(AssertUnwindSafe(|| handler.open(conn)));
        wait::command_ended();
        conn.end_scopes();
        match opened {
            Ok(Ok(session)) => self.session = Some(session),
            Ok(Err(error)) => {
                let why = reason(&error, CloseReason::OpenFailed);
                discard(error);
                return Err(why);
            }
            Err(payload) => {
                discard(payload);
                self.conn.registry().count_panic_of(self.conn.id());
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
    fn close_if_silent(&mut self, place: Place<'_>, why: CloseReason) -> Result<(), CloseReason> {
        match why {
            // The kernel reports room when there is much of it. There may be some.
            CloseReason::WriteTimeout | CloseReason::PipelineTooLong
                if self.flushing && !self.conn.is_broken() =>
            {
                let (stride, crammed) = (self.stride_from, self.crammed_from);
                let sent = match self.flush(place)? {
                    true => return Ok(()),
                    false => self.conn.sent(),
                };
                let taken = |from: Option<Mark>| from.map_or(0, |from| from.until(sent));
                if taken(stride) >= STRIDE || taken(crammed) > 0 {
                    return Ok(());
                }
                Err(why)
            }
            // What had arrived when the drain began has been served; a client that goes on sending
            // does not keep the server up.
            CloseReason::Draining if std::mem::replace(&mut self.drained, true) => Err(why),
            CloseReason::IdleTimeout
            | CloseReason::IdleInTransaction
            | CloseReason::ReadTimeout
            | CloseReason::Draining => {
                // Or nobody can tell, which is not the poller's fault.
                let announced = self.conn.undrained || self.conn.unsure();
                if self.unshown || !self.calls.is_empty() || self.flushing {
                    return Ok(());
                }
                match self.conn.fill() {
                    Ok(Filled::Bytes) => {
                        self.unshown = true;
                        if !announced {
                            // The event may be on its way still. Only if none has come by the next
                            // time that the connection is found silent was there none.
                            if self.unannounced {
                                self.conn.registry().count_lost_edge();
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
                            self.conn.registry().count_lost_edge();
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
    #[inline(always)]
    fn fill(&mut self) -> Result<bool, CloseReason> {
        if !self.conn.may_fill() {
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
                // A kill shuts the reading side, as does whoever closes a silent connection under
                // thread-per-connection, and that is no end that the client made.
                let shared = self.conn.shared();
                if let Some(why) = shared.cancelled() {
                    return Err(why);
                }
                match shared.input_ended() {
                    // It had come before that, and its reply is sent first.
                    Some(why) => self.close_after_flush(why),
                    None => self.unshown = true,
                }
            }
            Ok(Filled::Full) => return Err(CloseReason::InputTooLong),
            Ok(Filled::Nothing) => {}
            Err(_) => match self.failure(CloseReason::ClientClosed) {
                // What came before that is answered: the socket may be whole.
                why @ (CloseReason::Truncated | CloseReason::Transport(_)) => {
                    self.close_after_flush(why);
                }
                why => return Err(why),
            },
        }
        Ok(self.unshown)
    }

    /// Calls the handler once and takes in what it answers.
    #[inline]
    fn call(&mut self) -> Result<(), CloseReason> {
        let Some(session) = &mut self.session else {
            return Err(CloseReason::OpenFailed);
        };
        let (handler, conn) = (&self.handler, &mut self.conn);
        let commands = &conn.shared().commands;
        // Relaxed, and no `fetch_add`: a statistic with one writer.
        commands.store(commands.load(Relaxed) + 1, Relaxed);
        let mut woken = self.calls.take();
        let was_parked = std::mem::take(&mut self.parked);
        let was_underway = std::mem::replace(&mut self.underway, true);
        if !was_underway {
            conn.shared().command().begin();
        }
        self.asked = woken.is_none() || (was_underway && self.asked);
        self.until = NEVER;
        self.priority = None;
        match woken {
            None => {
                self.unshown = false;
                self.shown_at = conn.consumed();
                self.end_shown = conn.at_end();
            }
            Some(Woken::Resumed) => _ = conn.end_park(),
            // Whoever resumed it before now was told that it counts.
            Some(Woken::Due) if was_parked && conn.end_park() => woken = Some(Woken::Resumed),
            Some(Woken::Cancelled) if was_parked && conn.is_resumed() => {
                conn.end_park();
                woken = Some(Woken::Resumed);
                self.calls.add(Calls::CANCELLED);
            }
            Some(_) => {}
        }
        let ticket = woken.and_then(|_| conn.ticket());
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let next = match woken {
                None => handler.command(session, conn),
                Some(why) => handler.woken(session, conn, why),
            };
            let bytes = handler.session_bytes(session);
            conn.shared().set_session_bytes(bytes);
            next
        }));
        wait::command_ended();
        conn.end_scopes();
        let next = match answer {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => {
                // Blocking code meets the end of input like that, wherever it reads.
                let kind = error.kind();
                let left = kind == io::ErrorKind::UnexpectedEof
                    && self.conn.at_end()
                    && self.conn.consumed() == self.shown_at;
                let why = match left {
                    true => CloseReason::ClientClosed,
                    false => reason(&error, CloseReason::Handler(kind)),
                };
                discard(error);
                return Err(self.failure(why));
            }
            Err(payload) => {
                discard(payload);
                self.conn.registry().count_panic_of(self.conn.id());
                return Err(CloseReason::Panicked);
            }
        };
        // Whatever the handler made of the error.
        if self.conn.is_broken() {
            return Err(self.failure(CloseReason::ClientClosed));
        }
        self.take_next(next)?;
        self.underway = !matches!(next.step, Step::Input | Step::Close);
        if !self.underway {
            self.conn.shared().command().end();
            self.calls.drop(Calls::CANCELLED);
        }
        let Some(woken) = woken else {
            self.heard = true;
            return Ok(());
        };
        // A poke is not the client's doing, nor is a moment that the handler asked for: they leave the clock
        // of its silence as it is, unless that of another silence runs from now on.
        let aside = matches!(woken, Woken::Poked | Woken::Due | Woken::Cancelled)
            && !was_parked
            && was_underway == self.underway;
        let owes = next.step == Step::MoreInput && !was_underway;
        if (self.asked && !aside) || owes {
            self.heard = true;
        } else {
            self.conn.shared().count_unheard();
        }
        // A poke has ended the park, unless the handler goes on with it.
        let over = was_parked && !self.parked && ticket.is_some() && self.conn.ticket() == ticket;
        if over && self.conn.end_park() {
            self.calls.add(Calls::RESUMED);
        }
        Ok(())
    }

    fn take_next(&mut self, next: Next) -> Result<(), CloseReason> {
        let left = self.conn.buffered().len();
        // Something was taken, be it some steps ago, and something is left: that may be a command,
        // or the rest of one.
        let progress = left > 0 && self.conn.consumed() != self.shown_at;
        if progress && matches!(next.step, Step::Input | Step::MoreInput) {
            self.unshown = true;
            self.end_shown = false;
        }
        if next.until.is_some() || next.priority.is_some() {
            self.priority = next.priority;
            if let Some(at) = next.until
                && matches!(next.step, Step::Input | Step::MoreInput | Step::Park)
            {
                self.until = Nanos(self.conn.registry().at(at));
            }
        }
        match next.step {
            Step::Input => self.in_command = left > 0 && !progress,
            Step::MoreInput => self.in_command = true,
            Step::Again => {
                self.in_command = true;
                self.calls.add(Calls::AGAIN);
            }
            Step::Flush => {
                self.in_command = true;
                self.flushing = true;
                self.flush_asked = true;
            }
            Step::Park => {
                self.in_command = true;
                self.parked = true;
            }
            Step::Detach => self.detached = true,
            Step::Close => self.close_after_flush(CloseReason::HandlerClosed),
        }
        Ok(())
    }

    /// Leaves the scheduler alive.
    fn leave(&mut self, place: Place<'_>) -> End {
        if let Place::Poller(registrar, _) = place
            && std::mem::take(&mut self.registered)
        {
            registrar.remove(self.conn.socket());
        }
        self.conn.end_park();
        End::Closed
    }

    /// On a thread of its own, whoever streams never lies down to hear of it.
    fn hear_interrupt(&self, bed: &Bed, wake: &mut Wake) {
        let streams = self.flush_asked || self.calls.has_any_of(Calls::FLUSHED);
        wake.tell_if(streams && bed.take_interrupted(), Told::INTERRUPTED);
    }

    fn close_after_flush(&mut self, why: CloseReason) {
        self.closing = Some(why);
        self.flushing = true;
    }

    /// Sends what is queued. False: the socket takes no more now, and its writability is waited
    /// for.
    #[inline(always)]
    fn flush(&mut self, place: Place<'_>) -> Result<bool, CloseReason> {
        let done = match self.conn.flush_now() {
            Ok(done) => done,
            Err(_) => return Err(self.failure(CloseReason::ClientClosed)),
        };
        self.flushing = !done;
        if done {
            self.stride_from = None;
            self.crammed_from = None;
        }
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
        // Relaxed, as all that is shown of a connection.
        let closing = ConnState::Closing as u8;
        self.conn.shared().state.store(closing, Relaxed);
        if let Place::Poller(registrar, _) = place
            && self.registered
        {
            registrar.remove(self.conn.socket());
        }
        self.conn.shared().command().end();
        self.last_words(&why);
        if let Some(session) = self.session.take() {
            let handler = &self.handler;
            // The session is dropped in there, or by the unwinding.
            let closed = catch_unwind(AssertUnwindSafe(|| handler.close(session, why)));
            if let Err(payload) = closed {
                discard(payload);
                self.conn.registry().count_panic_of(self.conn.id());
            }
            wait::command_ended();
        }
        self.conn.shut();
        self.conn.registry().closed(self.conn.shared(), &why);
    }

    fn last_words(&mut self, why: &CloseReason) {
        if !why.by_server() {
            return;
        }
        let mut out = Vec::new();
        let limit = self.conn.session_limit();
        let said = catch_unwind(AssertUnwindSafe(|| match &mut self.session {
            _ if *why == CloseReason::TooManyConnections => {
                let why = Refusal::TooManyConnections { limit };
                self.handler.refuse(&mut out, &why);
            }
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
            self.conn.registry().count_panic_of(self.conn.id());
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

    fn advance(&mut self, place: Place<'_>, cause: Cause, desk: &mut Desk) -> Turn {
        self.conn.borrow(desk);
        let shared = self.conn.shared();
        shared.state.store(ConnState::Running as u8, Relaxed);
        if let Some(now) = cause.now {
            shared.since.store(now.0, Relaxed);
        }
        let mut calls = 0;
        self.heard = false;
        let end = match self.run(place, cause.wake, &mut calls) {
            Ok(end) => end,
            Err(why) => {
                self.finish(place, why);
                End::Closed
            }
        };
        let (state, until) = match end {
            End::Idle { in_command: false } => (ConnState::Idle, self.until),
            End::Idle { in_command: true } => (ConnState::Reading, self.until),
            End::Flush { .. } => (ConnState::Flushing, NEVER),
            End::Park { .. } => (ConnState::Parked, self.until),
            End::Again => (ConnState::Running, NEVER),
            End::Closed if self.detached => (ConnState::Detached, NEVER),
            End::Closed => (ConnState::Closing, NEVER),
        };
        // A thread of its own keeps them to the end.
        let bytes = match place {
            Place::Poller(..) => self.conn.give_back(desk),
            Place::Thread => self.conn.slim(),
        };
        if end != End::Closed {
            self.conn.hold_input();
        }
        // Last: whoever looks for what it holds finds that of this turn.
        self.conn.shared().state.store(state as u8, Relaxed);
        self.conn.shared().set_buffer_bytes(bytes);
        Turn {
            end,
            lane: self.lane(),
            holding: self.conn.standing().holding,
            in_transaction: self.conn.standing().in_transaction,
            look_again: self.conn.unsure(),
            calls,
            heard: self.heard,
            until,
        }
    }

    fn wait(&mut self, turn: &Turn, bed: &Bed) -> Cause {
        let mut wake = Wake::default();
        let rest = match turn.end {
            End::Closed => return Cause::default(),
            End::Again => {
                self.hear_interrupt(bed, &mut wake);
                return Cause { wake, now: None };
            }
            End::Flush { .. } => {
                if self.conn.flush_blocking().is_err() {
                    wake.close = Some(self.failure(CloseReason::ClientClosed));
                }
                self.hear_interrupt(bed, &mut wake);
                return Cause { wake, now: None };
            }
            End::Park { ticket } => Some(Rest::Park {
                ticket,
                unsent: self.conn.unsent() > 0,
            }),
            // A plain `recv` is faster, but nothing else ends it.
            End::Idle { in_command } => {
                let others = self.conn.is_reachable() || bed.is_reached();
                let others = others || (in_command && self.underway);
                (others || turn.until != NEVER).then_some(Rest::Idle)
            }
        };
        if let Some(rest) = rest {
            wake = bed.rest(rest, self.conn.socket(), turn.until, self.conn.registry());
            return Cause { wake, now: None };
        }
        match self.conn.fill_blocking() {
            Ok(Filled::End) if self.conn.shared().input_ended().is_some() => {
                wake.close = self.conn.shared().input_ended();
            }
            Ok(Filled::Bytes | Filled::End) => self.unshown = true,
            Ok(Filled::Full) => wake.close = Some(CloseReason::InputTooLong),
            // A blocking read that finds nothing does not return.
            Ok(Filled::Nothing) => {}
            Err(_) => wake.close = Some(self.failure(CloseReason::ClientClosed)),
        }
        Cause { wake, now: None }
    }

    fn is_detached(&self) -> bool {
        self.detached
    }

    fn run_detached(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        let (handler, conn) = (&self.handler, &mut self.conn);
        let answer = catch_unwind(AssertUnwindSafe(|| handler.detached(session, conn)));
        conn.end_scopes();
        let why = match answer {
            Ok(Ok(())) => match self.conn.flush_blocking() {
                Ok(()) if self.conn.is_draining() => CloseReason::Draining,
                Ok(()) => CloseReason::HandlerClosed,
                Err(_) => self.failure(CloseReason::ClientClosed),
            },
            Ok(Err(error)) => {
                let why = reason(&error, CloseReason::Handler(error.kind()));
                discard(error);
                self.failure(why)
            }
            Err(payload) => {
                discard(payload);
                self.conn.registry().count_panic_of(self.conn.id());
                CloseReason::Panicked
            }
        };
        let why = self.conn.shared().cancelled().unwrap_or(why);
        self.finish(Place::Thread, why);
    }

    fn abandon(&mut self, why: CloseReason) {
        self.finish(Place::Thread, why);
    }
}
