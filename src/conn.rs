//! A connection as the handler sees it: buffered input, queued output, and a few words on how it
//! wants to be scheduled.
//!
//! Full duplex never deadlocks: whatever waits for output, a handler's write or a connection at rest,
//! takes input meanwhile, up to `max_input` (`Ahead`).
//!
//! Reading and writing have *blocking* semantics, so any synchronous protocol code works on it. The
//! usual case does not block: the scheduler fills the input buffer before it calls the handler, and
//! replies are queued and leave in one call at the end of the turn. Whenever a read or a write here
//! really has to wait, queued output is sent first (the peer may be waiting for just that) and the
//! wait is reported to the scheduler. A handler that is going to wait for something else, with
//! replies to earlier pipelined commands still queued, calls `flush` first if they must not wait
//! with it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::marker::PhantomData;
use std::net::Shutdown;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::command::{Cause, Command, Registered, Verdict, Whose};
use crate::config::{CRAMMED, IO_CHUNK, Limits, STRIDE};
use crate::handler::{Cancelled, Class, CloseReason, Priority, Refusal};
pub use crate::id::ConnId;
use crate::id::Ticket;
use crate::os::socket::Socket;
use crate::os::words::{Cut, For, Received};
use crate::server::ServerHandle;
use crate::server::registry::{Cancels, ConnState, Registry};
use crate::stream::{Credentials, Peer};
use crate::sync::{Mutex, OnceLock};
use crate::transport::{Raw, Transport, Upgraded, Wire};
use crate::wait::{self, WaitKind};

// ---- the part that others reach while the connection runs ----

/// Where a connection is scheduled, for whoever wants something of it. Callable under any lock of
/// the user's.
pub(crate) trait Place: Send + Sync + fmt::Debug {
    /// Brings the connection to a worker to be closed; false if it has gone.
    fn kill(&self, token: usize) -> bool;

    /// Has the handler called, as soon as the connection rests.
    fn poke(&self, token: usize);

    /// Its command has been cancelled: has the handler called, if it rests in one.
    fn interrupt(&self, token: usize);

    /// What the connection has parked for has happened, or never will: `dropped`.
    fn resume(&self, token: usize, ticket: Ticket, dropped: bool);

    /// Somebody waits for what the connection holds.
    fn boost(&self, token: usize);

    /// That one has stopped waiting.
    fn unboost(&self, token: usize);

    /// Whether its thread lies where it waits for more than its socket, and has heard all that it was
    /// called for; `None`: it does not lie there.
    #[cfg(feature = "test-util")]
    fn has_heard(&self) -> Option<bool> {
        None
    }
}

/// What is known of a connection outside its worker. Held by the connection and by the registry
/// while it is open, and by nobody for longer than a call: the descriptor goes with it.
#[derive(Debug)]
#[repr(C, align(64))] // what each turn touches comes first, and is one cache line
pub(crate) struct Shared {
    socket: Socket,
    /// Set under `fate`'s lock; read without it by whoever only wants to stop early.
    cancelled: AtomicBool,
    input_ended: AtomicBool,
    // What `ServerHandle::connections` shows. Written by the connection's worker, one at a time,
    // Relaxed: a reader may see one newer than the other, which is all right for a list.
    // `buffers` and `session` are in bytes, the latter as its handler says.
    pub(crate) state: AtomicU8,
    in_transaction: AtomicBool,
    buffers: AtomicU32,
    pub(crate) since: AtomicU64,
    pub(crate) commands: AtomicU64,
    session: AtomicU32,
    /// For showing: the connection has its own. Relaxed.
    logged_in: AtomicBool,
    // Eight bytes of this, too.
    command: Command,
    /// The memory of half a command, as the registry's budget has it. Relaxed: the sum is what counts, and each
    /// change of this one is made of that too.
    held_input: AtomicUsize,
    /// Those of the commands that were not for what the client asked for. As the others.
    unheard: AtomicU64,
    /// When its time to log in began, or `LOGGED_IN`. Read and written under the registry's lock, by which it
    /// is ordered: Relaxed.
    login: AtomicU64,
    id: ConnId,
    fate: Mutex<Fate>,
    peer: Peer,
    /// Whom somebody in between has named, if the handler believes it.
    named: Mutex<Option<Box<Peer>>>,
    /// What is counted of all connections.
    cancels: Arc<Cancels>,
    rare: OnceLock<Box<Rare>>,
}

/// What a connection has that is watched, or has a thread of its own: not an idle one of a pool.
#[derive(Debug, Default)]
struct Rare {
    /// The watch's own notes.
    watched: Watched,
    /// What its command waits for, under thread-per-connection. In the pool, its group knows.
    waiting: Mutex<Option<Waiting>>,
}

const LOGGED_IN: u64 = u64::MAX;

// Without what only some connections have: five lines with those of the counts before it.
#[cfg(not(any(loom, shuttle, feature = "test-util")))]
const _: () = assert!(size_of::<Shared>() <= 256);

/// A wait that has been reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) kind: WaitKind,
    /// On the registry's clock.
    pub(crate) since: u64,
    pub(crate) holder: Option<ConnId>,
}

/// What the watch has seen at its last look. Relaxed, all of it: nobody else looks here.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Calls of the handler for what the client asked for, and since when there are so many.
    pub(crate) calls: AtomicU64,
    pub(crate) silent_since: AtomicU64,
    /// The command, and since when it is there.
    pub(crate) command: AtomicU64,
    pub(crate) began: AtomicU64,
}

#[derive(Debug)]
struct Fate {
    /// Over: there is nothing left to kill.
    closed: bool,
    why: Option<CloseReason>,
    /// Why its input was ended.
    ended: Option<CloseReason>,
    /// Where it is scheduled, and from the first turn on under which token; before that there is
    /// nothing that a kill would have to wake.
    place: Option<Weak<dyn Place>>,
    token: Token,
    /// The connection blocks in a write, out of which only a shutdown of that side helps.
    writing: bool,
    /// The same for a read of the handler's.
    reading: bool,
    /// A thread of its own blocks in `recv` between commands: out of that, too.
    receives: bool,
    /// The reading side was shut for one of these.
    deaf: bool,
}

/// Half of an `Option<usize>`: that of the poller's own waker is no connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token(usize);

impl Token {
    const NONE: Self = Self(usize::MAX);

    fn get(self) -> Option<usize> {
        (self != Self::NONE).then_some(self.0)
    }
}

impl Fate {
    fn place(&self) -> Option<(Arc<dyn Place>, usize)> {
        let place = self.place.as_ref().and_then(Weak::upgrade);
        place.zip(self.token.get())
    }
}

impl Shared {
    pub(crate) fn new(id: ConnId, socket: Socket, peer: Peer, cancels: Arc<Cancels>) -> Self {
        Self {
            peer,
            named: Mutex::new(None),
            cancels,
            socket,
            id,
            cancelled: AtomicBool::new(false),
            input_ended: AtomicBool::new(false),
            state: AtomicU8::new(ConnState::New as u8),
            in_transaction: AtomicBool::new(false),
            buffers: AtomicU32::new(0),
            since: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            session: AtomicU32::new(0),
            logged_in: AtomicBool::new(false),
            rare: OnceLock::new(),
            unheard: AtomicU64::new(0),
            command: Command::new(),
            held_input: AtomicUsize::new(0),
            login: AtomicU64::new(LOGGED_IN),
            fate: Mutex::new(Fate {
                closed: false,
                why: None,
                ended: None,
                place: None,
                token: Token::NONE,
                writing: false,
                reading: false,
                receives: false,
                deaf: false,
            }),
        }
    }

    /// Takes the socket out of a connection that was not started.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    pub(crate) fn id(&self) -> ConnId {
        self.id
    }

    /// Who is at the other end, as its handler sees it.
    pub(crate) fn peer(&self) -> Peer {
        self.named.lock().as_deref().unwrap_or(&self.peer).clone()
    }

    /// Under the registry's lock.
    pub(crate) fn set_named(&self, peer: Peer) {
        *self.named.lock() = Some(Box::new(peer));
    }

    /// When its time to log in began, if it has not. Under the registry's lock.
    pub(crate) fn login(&self) -> Option<u64> {
        let began = self.login.load(Relaxed);
        (began != LOGGED_IN).then_some(began)
    }

    /// Under the registry's lock.
    pub(crate) fn set_login(&self, began: Option<u64>) {
        self.login.store(began.unwrap_or(LOGGED_IN), Relaxed);
    }

    /// For the watch alone, and for who has it made beforehand.
    pub(crate) fn watched(&self) -> &Watched {
        &self.rare.get_or_init(Box::default).watched
    }

    /// What its command waits for, as a thread of its own says.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        *self.rare.get()?.waiting.lock()
    }

    pub(crate) fn set_waiting(&self, waiting: Option<Waiting>) {
        *self.rare.get_or_init(Box::default).waiting.lock() = waiting;
    }

    /// Says where the connection will be scheduled.
    pub(crate) fn place(&self, place: Weak<dyn Place>) {
        self.fate.lock().place = Some(place);
    }

    /// Says that a thread of its own blocks in `recv` between commands.
    pub(crate) fn receives(&self) {
        self.fate.lock().receives = true;
    }

    /// Says under which token, in its first turn.
    pub(crate) fn placed(&self, token: usize) {
        self.fate.lock().token = Token(token);
    }

    /// Ends the connection: blocked reads and writes return, and a worker comes to close it. False
    /// if it is closed already. Nothing is shut that nobody blocks in, and the reading side only
    /// where that is enough, so that the client can still be told why.
    pub(crate) fn cancel(&self, why: CloseReason) -> bool {
        let mut fate = self.fate.lock();
        if fate.closed {
            return false;
        }
        fate.why.get_or_insert(why);
        // Before the shutdown: whoever is woken by that must not take it for the client's.
        self.cancelled.store(true, Relaxed);
        if fate.writing {
            fate.deaf = true;
            self.socket.shutdown(Shutdown::Both);
        } else if fate.reading || fate.receives {
            fate.deaf = true;
            self.socket.shutdown(Shutdown::Read);
        }
        let place = fate.place();
        drop(fate);
        if let Some((place, token)) = place {
            place.kill(token);
        }
        self.call(Whose::All);
        true
    }

    /// Cancels the command of this number, if that is what it is at. False: it is over, or has not begun.
    pub(crate) fn cancel_command(&self, number: u64, cause: Cause) -> bool {
        match self.command.cancel(number, cause) {
            Verdict::Over => return false,
            Verdict::Already => return true,
            Verdict::Cancelled => {}
        }
        let count = match cause {
            Cause::Killed => &self.cancels.killed,
            Cause::TimedOut => &self.cancels.timed_out,
            Cause::HungUp => &self.cancels.hung_up,
        };
        // Relaxed: a statistic.
        count.fetch_add(1, Relaxed);
        if let Some((place, token)) = self.scheduled() {
            place.interrupt(token);
        }
        self.call(Whose::Command(number));
        true
    }

    /// Calls whom a cancellation concerns. Without any lock.
    fn call(&self, whose: Whose) {
        let panics = self.command.call(whose);
        if panics > 0 {
            self.panicked(panics);
        }
    }

    /// So many callbacks have panicked.
    pub(crate) fn panicked(&self, panics: usize) {
        for _ in 0..panics {
            self.cancels.panicked(self.id);
        }
        self.cancel(CloseReason::Panicked);
    }

    /// A call of the handler was not for what the client asked for. Before or after the call is counted
    /// itself: whoever looks in between takes it for a client's, once.
    pub(crate) fn count_unheard(&self) {
        // Relaxed, and no `fetch_add`: see the field.
        self.unheard.store(self.unheard.load(Relaxed) + 1, Relaxed);
    }

    /// Whether its silence is one in a transaction.
    pub(crate) fn is_logged_in(&self) -> bool {
        // Relaxed: see the field.
        self.logged_in.load(Relaxed)
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        // Relaxed: as the state that it is looked at with.
        self.in_transaction.load(Relaxed)
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether an end of its input would be the client's doing.
    pub(crate) fn may_hang_up(&self) -> bool {
        // Relaxed: set before the shutdown that is not to be taken for the client's.
        !self.is_cancelled() && !self.input_ended.load(Relaxed)
    }

    /// How often the handler has been called for what the client asked for.
    pub(crate) fn heard(&self) -> u64 {
        // Relaxed: see the fields.
        let all = self.commands.load(Relaxed);
        all.wrapping_sub(self.unheard.load(Relaxed))
    }

    /// What it is at, as others see it.
    pub(crate) fn command(&self) -> &Command {
        &self.command
    }

    /// Under which token it is scheduled, if it has had its first turn.
    pub(crate) fn token(&self) -> Option<usize> {
        self.fate.lock().token.get()
    }

    /// Where it is scheduled, if it lives and has had its first turn.
    pub(crate) fn scheduled(&self) -> Option<(Arc<dyn Place>, usize)> {
        let fate = self.fate.lock();
        if fate.closed { None } else { fate.place() }
    }

    /// Ends reading: how a silent connection under thread-per-connection is told that it is to
    /// close. What was received before is still read.
    pub(crate) fn end_input(&self, why: CloseReason) {
        let mut fate = self.fate.lock();
        if fate.ended.is_none() && !fate.closed {
            fate.ended = Some(why);
            // Before the shutdown: whoever is woken by that must not take it for the client's.
            self.input_ended.store(true, Relaxed);
            fate.deaf = true;
            self.socket.shutdown(Shutdown::Read);
        }
    }

    /// Whether its reading side has been shut: then the client's end cannot be seen any more.
    pub(crate) fn is_deaf(&self) -> bool {
        self.fate.lock().deaf
    }

    /// Why the end of input was made by [`end_input`](Self::end_input), if it was.
    pub(crate) fn input_ended(&self) -> Option<CloseReason> {
        // Relaxed: whoever sees the end of input has it from the kernel, after the store.
        if self.input_ended.load(Relaxed) {
            self.fate.lock().ended
        } else {
            None
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        // Relaxed: nothing else is read on the strength of it; the reason is read under the lock.
        self.cancelled.load(Relaxed)
    }

    /// Why it was cancelled, if it was.
    pub(crate) fn cancelled(&self) -> Option<CloseReason> {
        if self.is_cancelled() {
            self.fate.lock().why
        } else {
            None
        }
    }

    /// Why the command is to stop, if it is.
    fn why_cancelled(&self) -> Option<Cancelled> {
        if let Some(why) = self.cancelled() {
            return Some(Cancelled::Closing(why));
        }
        self.command.cause().map(|cause| match cause {
            Cause::Killed => Cancelled::Killed,
            Cause::TimedOut => Cancelled::TimedOut,
            Cause::HungUp => Cancelled::HungUp,
        })
    }

    /// How often the handler has been called.
    pub(crate) fn calls(&self) -> u64 {
        // Relaxed: a statistic.
        self.commands.load(Relaxed)
    }

    /// For how long its command has been running.
    pub(crate) fn running_for(&self, now: u64) -> Duration {
        // Relaxed: a statistic.
        Duration::from_nanos(now.saturating_sub(self.since.load(Relaxed)))
    }

    pub(crate) fn state(&self) -> ConnState {
        ConnState::from_u8(self.state.load(Relaxed))
    }

    /// What the session takes, for those who look.
    pub(crate) fn set_session_bytes(&self, bytes: usize) {
        // Relaxed: see the fields.
        self.session.store(short(bytes), Relaxed);
    }

    /// What half a command of it takes; returns what that was before.
    pub(crate) fn set_held_input(&self, bytes: usize) -> usize {
        self.held_input.swap(bytes, Relaxed)
    }

    pub(crate) fn held_input(&self) -> usize {
        self.held_input.load(Relaxed)
    }

    pub(crate) fn set_buffer_bytes(&self, bytes: usize) {
        // Relaxed: see the fields.
        self.buffers.store(short(bytes), Relaxed);
    }

    /// Bytes of its own buffers, and of its session.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        // Relaxed: see the fields.
        let (buffers, session) = (self.buffers.load(Relaxed), self.session.load(Relaxed));
        (buffers as usize, session as usize)
    }

    /// Kills from now on find nothing.
    fn close(&self) {
        self.fate.lock().closed = true;
    }

    /// Enters or leaves a blocking write; entering fails once the connection is cancelled.
    fn set_writing(&self, writing: bool) -> bool {
        let mut fate = self.fate.lock();
        fate.writing = writing;
        fate.why.is_none()
    }

    /// The same for a blocking read.
    fn set_reading(&self, reading: bool) -> bool {
        let mut fate = self.fate.lock();
        fate.reading = reading;
        fate.why.is_none()
    }
}

impl Wire for Shared {
    fn wire(&self) -> &Socket {
        &self.socket
    }
}

/// Four gigabytes are as good as more.
fn short(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Reaches a connection from anywhere, for as long as it lives and harmlessly afterwards. Keeping
/// it keeps neither the connection nor its descriptor.
#[derive(Clone, Debug)]
pub struct ConnHandle {
    id: ConnId,
    shared: Weak<Shared>,
}

impl ConnHandle {
    pub(crate) fn of(shared: &Arc<Shared>) -> Self {
        Self {
            id: shared.id,
            shared: Arc::downgrade(shared),
        }
    }

    /// The connection's id.
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Closes the connection, whatever it is doing: a blocked read or write returns, a queued or
    /// idle one is closed by the next worker. A command that is running is not interrupted, but its
    /// [`Conn::is_cancelled`] turns true, and what it has given to [`Conn::on_cancel`] is called before this
    /// returns. Does not block, if that does not, and may be called under any lock that no such callback
    /// takes; on oneself too. False if the connection has gone already.
    pub fn kill(&self) -> bool {
        self.shared
            .upgrade()
            .is_some_and(|shared| shared.cancel(CloseReason::Killed))
    }

    /// Stops one command, by its number, and leaves the connection open; what
    /// [`kill`](ConnHandle::kill) says of a command that is running holds for this. One that is parked,
    /// or waits for its output to leave or for the rest of its input, is called with
    /// [`Woken::Cancelled`](crate::Woken::Cancelled); under thread-per-connection, in the case of output, when
    /// what is on its way has left. What the command answers is its own affair.
    ///
    /// It does not end a read or a write that waits for the client: half a message cannot be taken
    /// back. Those have time-outs of their own.
    ///
    /// False if that command is over, or has not begun: the next one is never hit.
    pub fn kill_command(&self, number: u64) -> bool {
        self.shared
            .upgrade()
            .is_some_and(|shared| shared.cancel_command(number, Cause::Killed))
    }

    /// The number of the command that the connection is at, for
    /// [`kill_command`](ConnHandle::kill_command). `None` between two commands: that is, while it is idle,
    /// or its next one is only queued.
    pub fn command(&self) -> Option<u64> {
        self.shared.upgrade()?.command.current()
    }

    /// Has the handler called with [`Woken::Poked`](crate::Woken::Poked) as soon as the connection
    /// is idle or parked: at once if it is, else after the command that runs and the output that is
    /// leaving. Pokes that come before that are one. Does not block and may be called under any lock.
    /// False if the connection has gone already, or has not had its `open` yet.
    ///
    /// Under thread-per-connection, a poke ends the rest only of connections whose handler has called
    /// [`Conn::handle`] or used [`Next::until`](crate::Next::until), and of parked ones; it reaches
    /// others with their next command.
    pub fn poke(&self) -> bool {
        match self.shared.upgrade().and_then(|shared| shared.scheduled()) {
            Some((place, token)) => {
                place.poke(token);
                true
            }
            None => false,
        }
    }

    /// Whether the connection has been killed, or has ended otherwise. Of a command that was killed this
    /// says nothing.
    pub fn is_cancelled(&self) -> bool {
        self.shared
            .upgrade()
            .is_none_or(|shared| shared.is_cancelled() || shared.fate.lock().closed)
    }
}

/// Ends the park of a connection; made by [`Conn::resume`] for the next
/// [`Next::park`](crate::Next::park).
///
/// May be used once, from any thread, under any lock, and before the handler has returned too: the
/// park then ends at once. Clones are the same `Resume`. When the last one is dropped unused the
/// connection is closed with [`CloseReason::Unresumed`], for nobody is left who could resume it; so an
/// engine that loses a request, or panics, does not leave its client waiting for ever.
///
/// A resume, a kill, a client's hang-up, a poke and the time given to
/// [`Next::until`](crate::Next::until) may come together. The connection runs for the first; a
/// `Resume` that comes after the park is over does nothing. After a poke the park goes on, with the
/// same `Resume`, if the handler answers with [`Next::park`](crate::Next::park), and ends otherwise; a
/// time is not kept, and is given again with [`Next::until`](crate::Next::until).
#[derive(Clone, Debug)]
pub struct Resume(Arc<Pledge>);

#[derive(Debug)]
struct Pledge {
    conn: ConnHandle,
    ticket: Ticket,
    state: Arc<PledgeState>,
}

impl Pledge {
    fn settle(&self, dropped: bool) -> bool {
        if !self.state.leave_open(if dropped { OVER } else { USED }) {
            return false;
        }
        let alive = self.conn.shared.upgrade().filter(|s| !s.is_cancelled());
        let Some((place, token)) = alive.and_then(|s| s.scheduled()) else {
            return false;
        };
        // That the scheduler may not have it any more does not matter: it went after this.
        place.resume(token, self.ticket, dropped);
        true
    }
}

/// Whether a [`Resume`] is open still, has been used, or is of no use any more: dropped, or its park
/// is over. Whoever moves it away from open decides; nobody moves it after that.
#[derive(Debug, Default)]
struct PledgeState(AtomicU8);

const OPEN: u8 = 0;
const USED: u8 = 1;
const OVER: u8 = 2;

impl PledgeState {
    /// False: it was not open.
    fn leave_open(&self, to: u8) -> bool {
        // Release: for the acquire in `is_used`, where a park ends just as it is resumed. Else what was
        // written before the resume is carried to the handler by the lock of the scheduler.
        self.0.compare_exchange(OPEN, to, Release, Relaxed).is_ok()
    }

    fn is_used(&self) -> bool {
        // Acquire: of the release in `leave_open`.
        self.0.load(Acquire) == USED
    }
}

impl Drop for Pledge {
    fn drop(&mut self) {
        self.settle(true);
    }
}

impl Resume {
    /// Resumes the connection: its handler is called with
    /// [`Woken::Resumed`](crate::Woken::Resumed), through the control lane. False if that has been
    /// done, if the park is over for another reason, or if the connection has gone.
    pub fn resume(&self) -> bool {
        self.0.settle(false)
    }

    /// Which connection it resumes.
    pub fn id(&self) -> ConnId {
        self.0.conn.id
    }
}

/// The scope of a callback; see [`Conn::on_cancel`]. Bound to its thread.
#[derive(Debug)]
#[must_use = "the callback is forgotten when this is dropped"]
pub struct OnCancel {
    /// `None`: it has been called.
    callback: Option<(Weak<Shared>, u64)>,
    _not_send: PhantomData<*const ()>,
}

impl Drop for OnCancel {
    fn drop(&mut self) {
        if let Some((shared, id)) = self.callback.take()
            && let Some(shared) = shared.upgrade()
            && !shared.command.forget(id)
        {
            shared.panicked(1);
        }
    }
}

// ---- buffers ----

/// Received bytes that have not been consumed.
#[derive(Debug, Default)]
struct InBuf {
    /// Initialised throughout; its length is the capacity.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl InBuf {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    fn consume(&mut self, n: usize) {
        assert!(
            n <= self.len(),
            "consumed {n} bytes of {} that are buffered",
            self.len()
        );
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Room for a read, half of `IO_CHUNK` at least unless `max` forbids it; empty when `max` is reached.
    fn room(&mut self, max: usize) -> &mut [u8] {
        if !self.has_room(max) {
            self.make_room(max);
        }
        self.top(max)
    }

    /// Whether there is enough of it.
    fn has_room(&self, max: usize) -> bool {
        // A buffer that was lent may be larger than its borrower may use.
        self.bytes.len().min(max) >= self.end + IO_CHUNK / 2
    }

    /// Such room as there is.
    fn top(&mut self, max: usize) -> &mut [u8] {
        let top = self.bytes.len().min(max).max(self.end);
        &mut self.bytes[self.end..top]
    }

    #[cold]
    fn make_room(&mut self, max: usize) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < IO_CHUNK / 2 {
            let wanted = (self.bytes.len() * 2).clamp(IO_CHUNK, max.max(IO_CHUNK));
            if wanted > self.bytes.len() {
                // Not resized: memory that nothing has been read into is not touched, and costs nothing.
                let mut bytes = vec![0; wanted];
                bytes[..self.end].copy_from_slice(&self.bytes[..self.end]);
                self.bytes = bytes;
            }
        }
    }

    /// Gives up memory that a larger command once needed.
    fn shrink(&mut self) {
        let len = self.len();
        if self.bytes.len() > IO_CHUNK && len * 4 < self.bytes.len() {
            self.bytes = self.unread().to_vec();
            self.start = 0;
            self.end = len;
        }
    }
}

/// Queued output.
#[derive(Debug, Default)]
struct OutBuf {
    bytes: Vec<u8>,
    /// How much of `bytes` has left.
    sent: usize,
}

impl OutBuf {
    fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn take_unsent(&mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.sent);
        self.bytes.clear();
        self.sent = 0;
        rest
    }
}

/// Input that was taken while output waited; it comes before what the socket holds.
#[derive(Debug, Default)]
struct Ahead {
    bytes: Vec<u8>,
    start: usize,
    /// The client will send no more, or is gone.
    ended: bool,
}

/// Whether more input can be taken while output waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// All that there was.
    All,
    /// All that there will ever be.
    Last,
    /// As much as may be held.
    Full,
}

impl Ahead {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn is_empty(&self) -> bool {
        self.unread().is_empty()
    }

    fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Reads on, as far as `max` bytes. Keeps no memory for nothing.
    fn read(&mut self, max: usize, read: impl Fn(&mut [u8]) -> io::Result<usize>) -> Taken {
        let taken = self.read_on(max, read);
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
        taken
    }

    fn read_on(&mut self, max: usize, read: impl Fn(&mut [u8]) -> io::Result<usize>) -> Taken {
        // It may never be empty: what has been taken is given up as soon as it is as much as is left.
        if self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        loop {
            let len = self.bytes.len();
            let room = max.saturating_sub(len - self.start).min(IO_CHUNK);
            if self.ended {
                return Taken::Last;
            }
            if room == 0 {
                return Taken::Full;
            }
            self.bytes.resize(len + room, 0);
            let got = read(&mut self.bytes[len..]);
            let bytes = *got.as_ref().unwrap_or(&0);
            self.bytes.truncate(len + bytes);
            match got {
                Ok(_) if bytes > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Taken::All,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An error shows in the next write.
                Ok(_) | Err(_) => self.ended = true,
            }
        }
    }

    /// Moves what fits to where it is read from.
    fn move_to(&mut self, input: &mut InBuf, max: usize) -> Filled {
        let room = input.room(max);
        if room.is_empty() {
            return Filled::Full;
        }
        let n = room.len().min(self.bytes.len() - self.start);
        room[..n].copy_from_slice(&self.bytes[self.start..self.start + n]);
        input.end += n;
        self.start += n;
        Filled::Bytes
    }
}

/// What a worker lends to the connection that it runs, and gets back empty. A connection at rest
/// owns none, unless half a command or half a reply is in it.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    input: InBuf,
    output: RefCell<OutBuf>,
}

impl Buffers {
    fn is_empty(&mut self) -> bool {
        self.input.len() == 0 && self.output.get_mut().len() == 0
    }

    /// Gives up what is too large to be kept.
    fn trim(&mut self) {
        let out = &mut self.output.get_mut().bytes;
        if self.input.bytes.len() > KEEP {
            self.input = InBuf::default();
        }
        if out.capacity() > KEEP {
            *out = Vec::new();
        }
    }
}

/// What a worker keeps between two connections.
pub(crate) type Desk = Option<Box<Buffers>>;

/// A buffer that has grown beyond this is freed and not kept for the next connection.
const KEEP: usize = 4 * IO_CHUNK;

// ---- the connection ----

/// What a fill found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Bytes,
    Nothing,
    /// Seen now or earlier.
    End,
    /// The buffer holds `max_input` bytes already.
    Full,
}

/// The socket and what belongs to it, apart from the buffers so that these can be split.
#[derive(Debug)]
#[repr(C)] // what each turn touches comes first
struct Link {
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    /// Bytes that have left as they were queued, not through a transport.
    sent: Cell<u64>,
    /// What waiting input takes, as the registry's budget has been told.
    told: Cell<usize>,
    /// Input that was taken while output waited, if there is any.
    ahead: RefCell<Option<Box<Ahead>>>,
    /// What is between it and the socket, if anything is. Borrowed for the length of a call.
    upgraded: RefCell<Option<Box<Upgraded>>>,
    /// Why the last operation failed; the reason for the close when the handler returns the error.
    failed: Cell<Option<CloseReason>>,
    /// A write has failed: the client may have got a part of what was queued, and is to get no more.
    broken: Cell<bool>,
    logged_in: Cell<bool>,
    /// Where it is counted.
    registry: Arc<Registry>,
}

/// A connection, as [`Handler`](crate::Handler)'s callbacks see it.
///
/// | to | use |
/// |---|---|
/// | parse what has arrived, without blocking | [`buffered`](Conn::buffered), [`consume`](Conn::consume), [`at_end`](Conn::at_end) |
/// | answer | `Write`: it is queued, and leaves at the end of the turn in one call |
/// | read and write with code that blocks | `Read`, `BufRead`, `Write`; [`split`](Conn::split) for both at once |
/// | finish a login | [`logged_in`](Conn::logged_in) |
/// | say what the session is in | [`set_in_transaction`](Conn::set_in_transaction), [`set_holding`](Conn::set_holding), [`set_priority`](Conn::set_priority) |
/// | notice a kill in a long computation | [`is_cancelled`](Conn::is_cancelled) |
/// | be resumed, poked or killed by others | [`resume`](Conn::resume), [`handle`](Conn::handle) |
/// | ask about the server, or kill another one | [`server`](Conn::server) |
///
/// `Read`, `BufRead` and `Write` block where they must, as a std stream does. To parse without
/// blocking, look at [`buffered`](Conn::buffered) and return
/// [`Next::input`](crate::Next::input) when a command is not complete yet: then no thread is held
/// while the rest arrives.
///
/// **Writing.** What is written is queued, and leaves in one call at the end of the turn, when 16 KiB are
/// queued, or before a read that waits. What the client does not take then stays queued: the
/// handler returns, no thread is held, and its next command is run when all has left. Who
/// writes more than [`output_bound`](Limits::output_bound) within one call waits for the client,
/// which is a reported wait that holds a thread; so a large reply is better written in pieces, with
/// [`Next::flush`](crate::Next::flush) after each: a cursor of any size in the memory of a piece. In
/// either case 64 KiB must leave in each [`write_timeout`](Limits::write_timeout). A write that has
/// failed closes the connection, whatever the handler makes of the error, since nobody knows how much
/// of it has arrived. While output waits, input is taken, up to [`max_input`](Limits::max_input).
///
/// **Errors** of reading and writing: `TimedOut` when the peer was silent for
/// [`read_timeout`](Limits::read_timeout) or took too little for
/// [`write_timeout`](Limits::write_timeout), `ConnectionAborted` when it had to wait and the
/// connection was killed (what needs no waiting still succeeds; see
/// [`is_cancelled`](Conn::is_cancelled)), otherwise what the operating system said; never
/// `WouldBlock` or `Interrupted`. Return them with
/// `?`: the connection is then closed for the true reason.
#[derive(Debug)]
#[repr(C)] // what each turn touches comes first
pub struct Conn {
    link: Link,
    /// Lent by a worker; see [`Buffers`].
    buffers: Option<Box<Buffers>>,
    reading: Reading,
    /// The park that the last `Resume` is for; and that, until its park is over.
    pledge: Option<Arc<PledgeState>>,
    ticket: Ticket,
    standing: Standing,
    /// Somebody may poke it.
    reachable: Cell<bool>,
    /// The handler has registered callbacks.
    calls_back: Cell<bool>,
    /// The socket may hold more than has been read: nobody has seen it empty since the last event.
    pub(crate) undrained: bool,
    /// Read on until the socket says that it is empty or at its end, although a read was short.
    pub(crate) reread: bool,
    server: ServerHandle,
    listener: usize,
    /// Who is said to be behind the other end.
    named: Option<Box<Peer>>,
}

/// What is known of the reading side.
#[derive(Debug, Default)]
struct Reading {
    /// Bytes consumed in all.
    consumed: u64,
    /// The peer will send no more.
    at_end: bool,
    /// The last read did not tell whether it had been cut short.
    unsure: bool,
    /// The peer has passed descriptors before: each read asks.
    ask: bool,
}

/// How a connection is scheduled; sticky.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) in_transaction: bool,
    /// Unknown until the handler says.
    pub(crate) holding: Option<bool>,
    pub(crate) priority: Priority,
}

impl Conn {
    pub(crate) fn new(
        shared: Arc<Shared>,
        limits: Arc<Limits>,
        server: ServerHandle,
        registry: Arc<Registry>,
        listener: usize,
    ) -> Self {
        Self {
            link: Link {
                shared,
                limits,
                sent: Cell::new(0),
                told: Cell::new(0),
                ahead: RefCell::default(),
                upgraded: RefCell::default(),
                failed: Cell::new(None),
                broken: Cell::new(false),
                logged_in: Cell::new(false),
                registry,
            },
            buffers: None,
            reading: Reading::default(),
            server,
            listener,
            named: None,
            ticket: 0,
            pledge: None,
            reachable: Cell::new(false),
            calls_back: Cell::new(false),
            undrained: false,
            reread: false,
            standing: Standing::default(),
        }
    }

    /// The connection's id.
    pub fn id(&self) -> ConnId {
        self.link.shared.id
    }

    /// Who is at the other end: of the socket, or of the proxy if it has been told by
    /// [`set_peer`](Conn::set_peer).
    pub fn peer(&self) -> &Peer {
        self.named.as_deref().unwrap_or(&self.link.shared.peer)
    }

    /// Says who the client is when a proxy is at the other end of the socket, as the header of the PROXY
    /// protocol names it (`examples/proxy_protocol.rs`). From then on [`peer`](Conn::peer) and
    /// [`ConnInfo::peer`](crate::ConnInfo) show it, and it is the address that counts for
    /// [`max_per_address`](Limits::max_per_address), while the proxy's own counts one less. Whether the
    /// proxy is to be believed is for the handler to know: look at `peer` first.
    ///
    /// # Errors
    /// `max_per_address` are connected from that address: a [`Refusal`] in an error of the kind
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), and nothing has changed.
    pub fn set_peer(&mut self, peer: Peer) -> io::Result<()> {
        let shared = &self.link.shared;
        let limit = self.link.limits.max_per_address;
        self.link
            .registry
            .recount(shared, &peer, limit)
            .map_err(|refusal| io::Error::new(io::ErrorKind::QuotaExceeded, refusal))?;
        self.named = Some(Box::new(peer));
        Ok(())
    }

    /// Which process has connected, as the operating system vouches for it: for clients of Unix sockets, on
    /// Linux. It is whoever called `connect`, and may have passed the socket on since.
    pub fn peer_credentials(&self) -> Option<Credentials> {
        self.link.shared.socket.credentials()
    }

    /// By which listener it came, in the order in which they were given to the builder;
    /// `usize::MAX` if it was attached.
    pub fn listener(&self) -> usize {
        self.listener
    }

    /// The server, for statistics and kills.
    pub fn server(&self) -> &ServerHandle {
        &self.server
    }

    /// A handle that may be kept and used from anywhere.
    pub fn handle(&self) -> ConnHandle {
        self.reachable.set(true);
        ConnHandle::of(&self.link.shared)
    }

    /// What ends the next [`Next::park`](crate::Next::park). Give it to whoever knows when the
    /// connection may go on, then return `park`. Making another one makes this one useless.
    pub fn resume(&mut self) -> Resume {
        self.end_park();
        self.ticket += 1;
        let state = Arc::clone(self.pledge.insert(Arc::default()));
        Resume(Arc::new(Pledge {
            conn: ConnHandle::of(&self.link.shared),
            ticket: self.ticket,
            state,
        }))
    }

    /// Whether the command is to stop: it has been killed or has taken too long, or the connection has
    /// been killed. Long computations look now and then; what blocks uses
    /// [`on_cancel`](Conn::on_cancel).
    pub fn is_cancelled(&self) -> bool {
        let shared = &self.link.shared;
        shared.is_cancelled() || shared.command.cause().is_some()
    }

    /// Why the command is to stop, if it is.
    pub fn cancelled(&self) -> Option<Cancelled> {
        self.link.shared.why_cancelled()
    }

    /// Whether the server has begun to [drain](crate::Server::drain), as far as this connection is
    /// concerned: the admin listeners' are drained when all others have ended. From then on commands that run
    /// may finish, and no time is given to what has no end: a stream that has
    /// [detached](crate::Handler::detached) looks at this now and then, and returns.
    pub fn is_draining(&self) -> bool {
        self.link.registry.is_draining()
    }

    /// The number of the command that is being run; it counts up. A command is what the handler does from
    /// the call that begins it until it returns [`Next::input`](crate::Next::input): further
    /// steps, parks, flushes and inputs ([`Next::more_input`](crate::Next::more_input)) belong to it,
    /// and so does what it does when it has detached. A call for a poke or for a moment between two
    /// commands is one of its own.
    pub fn command_number(&self) -> u64 {
        self.link.shared.command.number()
    }

    /// Calls `call` if the command is cancelled before the scope that this returns has ended: what
    /// ends a wait of one's own, as SQLite's `interrupt` does, or a condition variable's `notify_all`.
    ///
    /// | question | answer |
    /// |---|---|
    /// | when | once: when the command, or the connection, is killed, the command has taken too long or its client has left; at once, if that has happened already |
    /// | which thread | whoever kills: any thread, this one too |
    /// | which locks of this crate are held | none |
    /// | which of its caller's | those that are held around the kill. So it takes none that somebody kills under |
    /// | may it block | no: it holds up who kills, a drain for one |
    /// | may it call back | yes, other kills and pokes |
    /// | panics | end this connection, with [`CloseReason::Panicked`](crate::CloseReason), and nothing else |
    /// | the end of the scope | waits for it if it is being called, so that it never hits the next command. So do not end the scope under a lock that it takes |
    ///
    /// ```
    /// use std::sync::{Arc, Condvar, Mutex};
    /// use thread_group_pool::{Conn, wait::{self, WaitKind}};
    ///
    /// /// Waits until it is so, or the command is cancelled.
    /// fn wait_for(conn: &Conn, it_is: &Arc<(Mutex<bool>, Condvar)>) -> bool {
    ///     let bell = Arc::clone(it_is);
    ///     let _scope = conn.on_cancel(move || {
    ///         // Not between the waiter's look and its sleep.
    ///         drop(bell.0.lock());
    ///         bell.1.notify_all();
    ///     });
    ///     wait::during(WaitKind::UserLock, || {
    ///         let mut so = it_is.0.lock().unwrap();
    ///         while !*so && !conn.is_cancelled() {
    ///             so = it_is.1.wait(so).unwrap();
    ///         }
    ///         *so
    ///     })
    /// }
    /// ```
    #[must_use = "the callback is forgotten when this is dropped"]
    pub fn on_cancel(&self, call: impl FnOnce() + Send + 'static) -> OnCancel {
        let shared = &self.link.shared;
        let callback = match shared.command.register(|| self.is_cancelled(), call) {
            Registered::Kept(id) => {
                self.calls_back.set(true);
                Some((Arc::downgrade(shared), id))
            }
            Registered::Called { panicked } => {
                if panicked {
                    shared.panicked(1);
                }
                None
            }
        };
        OnCancel {
            callback,
            _not_send: PhantomData,
        }
    }

    /// A callback has returned: what it has leaked of [`OnCancel`]s is over.
    #[inline]
    pub(crate) fn end_scopes(&self) {
        if self.calls_back.get() {
            self.forget_callbacks();
        }
    }

    #[cold]
    fn forget_callbacks(&self) {
        self.calls_back.set(false);
        let panics = self.link.shared.command.forget_all();
        if panics > 0 {
            self.link.shared.panicked(panics);
        }
    }

    /// Bytes that have been received and not consumed. Does not read.
    pub fn buffered(&self) -> &[u8] {
        self.buffers.as_ref().map_or(&[], |b| b.input.unread())
    }

    /// Takes `n` bytes off the front of [`buffered`](Conn::buffered).
    ///
    /// # Panics
    /// If fewer are buffered.
    pub fn consume(&mut self, n: usize) {
        self.reading.consumed += n as u64;
        self.buffers().input.consume(n);
    }

    /// Whether the client will send nothing after what is [`buffered`](Conn::buffered).
    pub fn at_end(&self) -> bool {
        self.reading.at_end
    }

    /// Both directions at once: parse a command in place while writing the reply.
    pub fn split(&mut self) -> (Input<'_>, Output<'_>) {
        let max = self.link.max_input();
        let link = &self.link;
        let buffers = &mut **self.buffers.get_or_insert_default();
        let output = &buffers.output;
        (
            Input {
                link,
                max,
                input: &mut buffers.input,
                reading: &mut self.reading,
                output,
            },
            Output { link, output },
        )
    }

    /// From here on the connection speaks through a transport: STARTTLS, or, in
    /// [`open`](crate::Handler::open), TLS from the first byte. What is queued is sent as it is, now. The
    /// handshake is not waited for: it begins when the callback is over, and goes on whenever the client has sent
    /// something, with no worker held in between, and the handler is called when there is plaintext. What the handler writes before that leaves
    /// after the handshake. A client that does not get through it has the time of a login
    /// ([`login_timeout`](Limits::login_timeout)), so call [`logged_in`](Conn::logged_in) later than that: in
    /// the first command.
    ///
    /// Words to those who are [refused](crate::Handler::refuse) before they have a connection are sent as
    /// they are.
    ///
    /// # Errors
    /// Bytes are [buffered](Conn::buffered): a client that waits for the answer to its STARTTLS sends none, so
    /// somebody in between may have put them there, for the server to take them for the client's. For a
    /// protocol whose clients begin with the handshake at once, as MySQL's do, there is
    /// [`upgrade_with_buffered`](Conn::upgrade_with_buffered). There is a transport already; or `make` failed.
    pub fn upgrade<T: Transport>(
        &mut self,
        make: impl FnOnce(Raw) -> io::Result<T>,
    ) -> io::Result<()> {
        self.upgrade_over(false, make)
    }

    /// As [`upgrade`](Conn::upgrade), and what is [buffered](Conn::buffered) is taken for the beginning of the
    /// handshake. It is never taken for plaintext.
    ///
    /// # Errors
    /// There is a transport already; or `make` failed.
    pub fn upgrade_with_buffered<T: Transport>(
        &mut self,
        make: impl FnOnce(Raw) -> io::Result<T>,
    ) -> io::Result<()> {
        self.upgrade_over(true, make)
    }

    fn upgrade_over<T: Transport>(
        &mut self,
        buffered: bool,
        make: impl FnOnce(Raw) -> io::Result<T>,
    ) -> io::Result<()> {
        if self.link.upgraded.get_mut().is_some() {
            let what = "there is a transport already";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        // Which may take input ahead.
        self.flush_blocking()?;
        let n = self.buffered().len();
        let mut ahead = self.buffered().to_vec();
        if let Some(behind) = self.link.ahead.get_mut() {
            ahead.extend_from_slice(behind.unread());
        }
        if !buffered && !ahead.is_empty() {
            let what = "plaintext is buffered where a handshake is to begin";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let wire = Arc::clone(&self.link.shared);
        let upgraded = Upgraded::new(wire, ahead, make)?;
        *self.link.upgraded.get_mut() = Some(Box::new(upgraded));
        *self.link.ahead.get_mut() = None;
        self.consume(n);
        self.reading.unsure = false;
        Ok(())
    }

    /// The transport that it speaks through, if it is a `T`: to ask it for whom a certificate names.
    pub fn transport<T: Transport>(&mut self) -> Option<&mut T> {
        self.link.upgraded.get_mut().as_mut()?.downcast()
    }

    /// The client has proved who it is, and gets one of the
    /// [`max_connections`](Limits::max_connections) sessions. Until then its commands are login steps,
    /// which go through the control lane, and it counts among the [`max_logins`](Limits::max_logins),
    /// with the [`login_timeout`](Limits::login_timeout) running. A server without a login calls it in
    /// [`open`](crate::Handler::open). Calling it again does nothing.
    ///
    /// # Errors
    /// All sessions are taken: a [`Refusal`] in an error of the kind
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded). Return it, and the connection closes with
    /// [`CloseReason::TooManyConnections`]; or go on without a session, for what needs none, such as a
    /// request to cancel somebody's command.
    pub fn logged_in(&mut self) -> io::Result<()> {
        let limit = self.link.limits.max_connections;
        self.log_in(limit)
            .map_err(|refusal| io::Error::new(io::ErrorKind::QuotaExceeded, refusal))
    }

    /// As [`logged_in`](Self::logged_in), but never refused: for those who must get in when all sessions
    /// are taken, because they are the ones who can end some. They count as sessions.
    pub fn logged_in_privileged(&mut self) {
        // Without a limit nobody is refused.
        let _ = self.log_in(usize::MAX);
    }

    fn log_in(&mut self, limit: usize) -> Result<(), Refusal> {
        if !self.is_logged_in() {
            self.link.registry.log_in(self.link.shared.id, limit)?;
            self.link.logged_in.set(true);
            // Relaxed: see the field.
            self.link.shared.logged_in.store(true, Relaxed);
        }
        Ok(())
    }

    /// Sticky: whether the session is in a transaction. With [`Priority::Auto`] its commands then
    /// go before those of others, and between two of them its client may be silent for
    /// [`idle_in_transaction_timeout`](Limits::idle_in_transaction_timeout) only. A drain lets it be
    /// finished if [`Drain::transactions`](crate::Drain) says so.
    pub fn set_in_transaction(&mut self, yes: bool) {
        self.standing.in_transaction = yes;
        // Relaxed: see where it is read.
        self.link.shared.in_transaction.store(yes, Relaxed);
    }

    /// Sticky: whether others may be waiting for what the session holds (row locks, a named lock).
    /// Its commands then go before all others: whoever holds up others is not made to queue behind them.
    ///
    /// A session that says no is taken at its word. Those who began to [wait for
    /// it](crate::wait::during_for) and are still waiting, because somebody else came before them, do not
    /// count from the end of the turn on.
    pub fn set_holding(&mut self, yes: bool) {
        self.standing.holding = Some(yes);
    }

    /// Sticky: the session's priority.
    pub fn set_priority(&mut self, priority: Priority) {
        self.standing.priority = priority;
    }

    /// What is known about the command that is being run. [`Class::Long`] gives its slot to others
    /// now and not after the stall bound.
    pub fn class(&mut self, class: Class) {
        if class == Class::Long {
            wait::declare_long();
        }
    }

    // ---- the scheduler's side ----

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.link.shared
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.link.shared.socket
    }

    /// Which park the last `Resume` is for, if that has not ended one yet.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.pledge.is_some().then_some(self.ticket)
    }

    /// The park that the last `Resume` is for is over: that does nothing any more. True: it has been
    /// used before, and the handler is to be told.
    pub(crate) fn end_park(&mut self) -> bool {
        let pledge = self.pledge.take();
        pledge.is_some_and(|state| !state.leave_open(OVER) && state.is_used())
    }

    /// Whether that has been used.
    pub(crate) fn is_resumed(&self) -> bool {
        self.pledge.as_ref().is_some_and(|state| state.is_used())
    }

    /// Whether somebody may poke it.
    pub(crate) fn is_reachable(&self) -> bool {
        self.reachable.get()
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// Bytes consumed in all.
    pub(crate) fn consumed(&self) -> u64 {
        self.reading.consumed
    }

    /// Where it is counted.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.link.registry
    }

    /// Why an operation failed, if one did; the first reason.
    pub(crate) fn take_failure(&mut self) -> Option<CloseReason> {
        self.link.failed.take()
    }

    /// The limit of sessions that it met.
    pub(crate) fn session_limit(&self) -> usize {
        self.link.limits.max_connections
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.link.logged_in.get()
    }

    fn buffers(&mut self) -> &mut Buffers {
        self.buffers.get_or_insert_default()
    }

    /// Borrows a worker's buffers, if it has none of its own.
    pub(crate) fn borrow(&mut self, desk: &mut Desk) {
        if self.buffers.is_none() {
            self.buffers = desk.take();
        }
    }

    /// Tells the registry's budget what the input takes that waits. That may close this connection, or another
    /// one.
    #[inline]
    pub(crate) fn hold_input(&mut self) {
        let waiting = match &self.buffers {
            Some(buffers) if buffers.input.len() > 0 => buffers.input.bytes.len(),
            _ => 0,
        };
        let held = waiting + self.link.beside();
        if held != self.link.told.get() {
            self.link.hold(held);
        }
    }

    /// Gives up what is too large to be kept by a connection at rest, if its buffers are its thread's. Returns how
    /// much it keeps.
    pub(crate) fn slim(&mut self) -> usize {
        if let Some(buffers) = &mut self.buffers {
            if buffers.is_empty() {
                buffers.trim();
            } else {
                buffers.input.shrink();
            }
        }
        self.buffer_bytes()
    }

    /// How much of the memory is its own.
    pub(crate) fn buffer_bytes(&mut self) -> usize {
        let beside = self.link.beside();
        match &mut self.buffers {
            Some(buffers) => {
                beside + buffers.input.bytes.len() + buffers.output.get_mut().bytes.capacity()
            }
            None => beside,
        }
    }

    /// Gives them back, unless they hold something. Returns how much memory it keeps.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, desk: &mut Desk) -> usize {
        let Some(buffers) = &mut self.buffers else {
            return self.buffer_bytes();
        };
        if buffers.is_empty() {
            buffers.trim();
            *desk = self.buffers.take();
            self.link.beside()
        } else {
            // Half a command waits; it must not hold a large buffer that once was needed.
            buffers.input.shrink();
            self.buffer_bytes()
        }
    }

    /// Reads once without blocking. `Filled::Nothing` means that the socket is empty for sure.
    #[inline(always)]
    pub(crate) fn fill(&mut self) -> io::Result<Filled> {
        let max = self.link.max_input();
        let input = &mut self.buffers.get_or_insert_default().input;
        if self.link.ahead.get_mut().is_some()
            && let Some(taken) = self.link.take_ahead(input, max)
        {
            return Ok(taken);
        }
        if self.reading.at_end {
            return Ok(Filled::End);
        }
        if !input.has_room(max) && !self.make_room(max)? {
            return Ok(Filled::Full);
        }
        if self.link.upgraded.get_mut().is_some() {
            return self.fill_through();
        }
        let (link, reading) = (&mut self.link, &mut self.reading);
        let room = self.buffers.get_or_insert_default().input.top(max);
        let size = room.len();
        loop {
            match link.shared.socket.read_now(room, reading.ask) {
                Ok(got) if got.bytes == 0 => {
                    reading.at_end = true;
                    reading.unsure = false;
                    self.undrained = false;
                    return Ok(Filled::End);
                }
                Ok(got) => {
                    self.buffers.get_or_insert_default().input.end += got.bytes;
                    // Shorter than asked for: that was all, but for the known traps.
                    self.undrained = got.bytes == size || got.cut == Cut::Yes || self.reread;
                    reading.unsure = got.cut == Cut::Unknown;
                    return Ok(Filled::Bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.undrained = false;
                    self.reread = false;
                    reading.unsure = false;
                    return Ok(Filled::Nothing);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(link.fail(error)),
            }
        }
    }

    /// Makes room for more input, within the budget of all connections. False: there is no more to be had.
    #[cold]
    fn make_room(&mut self, max: usize) -> io::Result<bool> {
        let input = &mut self.buffers.get_or_insert_default().input;
        let before = input.bytes.len();
        input.make_room(max);
        let (full, grown) = (input.len() >= max, input.bytes.len() > before.max(KEEP));
        if grown {
            self.hold_input();
            if self.link.shared.is_cancelled() {
                return Err(self.link.fail(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        Ok(!full)
    }

    /// As [`fill`](Self::fill), through the transport; there is room.
    fn fill_through(&mut self) -> io::Result<Filled> {
        let max = self.link.max_input();
        let input = &mut self.buffers.get_or_insert_default().input;
        match self.link.receive(input.room(max)) {
            Ok(0) => {
                self.reading.at_end = true;
                self.undrained = false;
                Ok(Filled::End)
            }
            Ok(n) => {
                input.end += n;
                // Until it says that there is no more.
                self.undrained = true;
                Ok(Filled::Bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.undrained = false;
                self.reread = false;
                Ok(Filled::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether its transport may hold input, for which no event will come.
    pub(crate) fn may_hold_input(&mut self) -> bool {
        let upgraded = self.link.upgraded.get_mut();
        upgraded.as_ref().is_some_and(|u| u.may_hold_input()) && !self.reading.at_end
    }

    /// Whether there may be something to read.
    pub(crate) fn may_fill(&mut self) -> bool {
        self.undrained
            || self.reading.at_end
            || self.link.ahead.get_mut().is_some()
            || self.may_hold_input()
    }

    /// Takes the input that has come while output waits: its client may be one that reads no reply
    /// before it has sent all of its commands.
    pub(crate) fn read_ahead(&mut self) -> Taken {
        if !self.undrained && !self.may_hold_input() {
            return Taken::All;
        }
        let taken = self.link.read_ahead();
        if taken == Taken::All {
            self.undrained = false;
            self.reread = false;
            self.reading.unsure = false;
        }
        taken
    }

    /// Whether there may be input that no event will announce: the last read, if it was cut short,
    /// did not tell.
    pub(crate) fn unsure(&self) -> bool {
        self.reading.unsure
    }

    /// The peer is one who passes descriptors: ask at each read from now on.
    pub(crate) fn ask(&mut self) {
        self.reading.ask = true;
    }

    /// Reads, blocking until there is something: thread-per-connection's way to wait for a command.
    /// Nothing but the peer and a shutdown of the socket ends it.
    pub(crate) fn fill_blocking(&mut self) -> io::Result<Filled> {
        if self.link.upgraded.get_mut().is_some() {
            // Its own turn reads: there may be an answer to send first.
            if !self.may_hold_input() {
                let socket = &self.link.shared.socket;
                socket
                    .wait(For::Input, Duration::MAX)
                    .map_err(|error| self.link.fail(error))?;
            }
            self.undrained = true;
            return Ok(Filled::Nothing);
        }
        let max = self.link.max_input();
        let input = &mut self.buffers.get_or_insert_default().input;
        let room = input.room(max);
        if room.is_empty() {
            return Ok(Filled::Full);
        }
        let size = room.len();
        let got = loop {
            match self.link.shared.socket.read_blocking(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => break got.map_err(|error| self.link.fail(error))?,
            }
        };
        if got == 0 {
            self.reading.at_end = true;
            self.undrained = false;
            return Ok(Filled::End);
        }
        input.end += got;
        self.undrained = got == size;
        Ok(Filled::Bytes)
    }

    /// Sends queued output without blocking. True: all of it has left.
    #[inline]
    pub(crate) fn flush_now(&mut self) -> io::Result<bool> {
        match &mut self.buffers {
            Some(buffers) => self.link.send_now(buffers.output.get_mut()),
            None => self.link.send_now(&mut OutBuf::default()),
        }
    }

    /// Sends queued output, blocking.
    pub(crate) fn flush_blocking(&mut self) -> io::Result<()> {
        match &mut self.buffers {
            Some(buffers) => self.link.send_all(buffers.output.get_mut()),
            None => self.link.send_all(&mut OutBuf::default()),
        }
    }

    /// How much the socket is to take.
    pub(crate) fn unsent(&mut self) -> usize {
        let queued = self.queued();
        match self.link.upgraded.get_mut() {
            // What it owes is not known to the byte.
            Some(upgraded) if upgraded.is_shaken() => queued + usize::from(upgraded.owes()),
            Some(upgraded) => upgraded.owes().into(),
            None => queued,
        }
    }

    /// Bytes that have left in all.
    pub(crate) fn sent(&self) -> u64 {
        self.link.sent()
    }

    /// Whether a write has failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.link.broken.get()
    }

    /// How much is queued.
    fn queued(&mut self) -> usize {
        match &mut self.buffers {
            Some(buffers) => buffers.output.get_mut().len(),
            None => 0,
        }
    }

    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        let out = self.buffers().output.get_mut();
        out.bytes.extend_from_slice(bytes);
    }

    /// The end. What the client has not been sent yet, it gets while its socket lingers, if it is not
    /// much; see [`linger`](crate::server::linger).
    pub(crate) fn shut(&mut self) {
        let broken = self.link.broken.get();
        let mut rest = match &mut self.buffers {
            Some(buffers) if !broken => buffers.output.get_mut().take_unsent(),
            _ => Vec::new(),
        };
        self.link.shared.close();
        let mut upgraded = self.link.upgraded.get_mut().take();
        if let Some(upgraded) = &mut upgraded {
            if !upgraded.is_shaken() {
                // Plaintext is for the transport alone.
                rest = Vec::new();
            }
            if broken {
                upgraded.discard();
            }
        }
        let linger = self.server.linger();
        linger.close(&self.link.shared, rest, upgraded);
    }
}

impl Link {
    /// How much input may be buffered.
    fn max_input(&self) -> usize {
        let limits = &self.limits;
        if self.logged_in.get() {
            limits.max_input
        } else {
            limits.max_login_input.min(limits.max_input)
        }
    }

    /// The memory of input that is not in the buffer.
    #[inline]
    fn beside(&mut self) -> usize {
        let ahead = self.ahead.get_mut().as_ref().map_or(0, |a| a.memory());
        match self.upgraded.get_mut() {
            Some(_) => ahead + self.held_by_transport(),
            None => ahead,
        }
    }

    #[cold]
    fn held_by_transport(&self) -> usize {
        let held = self.through_fenced(|upgraded| Ok(upgraded.input_bytes()));
        held.unwrap_or(0)
    }

    /// The first reason stays.
    fn note_failure(&self, why: CloseReason) {
        self.failed.set(self.failed.get().or(Some(why)));
    }

    /// Notes why an operation failed and turns the error into what the handler may see.
    fn fail(&self, error: io::Error) -> io::Error {
        let (why, error) = if let Some(why) = self.shared.cancelled() {
            (why, io::ErrorKind::ConnectionAborted.into())
        } else {
            let why = match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    CloseReason::ClientClosed
                }
                kind => CloseReason::Io(kind),
            };
            (why, error)
        };
        self.note_failure(why);
        error
    }

    /// The same for an operation of the transport's.
    fn fail_through(&self, error: io::Error) -> io::Error {
        match error.kind() {
            _ if self.shared.is_cancelled() => {}
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {}
            io::ErrorKind::UnexpectedEof => {
                self.note_failure(CloseReason::Truncated);
            }
            kind => {
                let why = CloseReason::Transport(kind);
                self.note_failure(why);
            }
        }
        self.fail(error)
    }

    /// Does something with the transport, which there is.
    fn through<T>(&self, call: impl FnOnce(&mut Upgraded) -> io::Result<T>) -> io::Result<T> {
        let mut upgraded = self.upgraded.borrow_mut();
        let Some(upgraded) = upgraded.as_deref_mut() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        call(upgraded)
    }

    /// The same, and a panic of the transport's ends the connection.
    fn through_fenced<T>(
        &self,
        call: impl FnOnce(&mut Upgraded) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut panicked = false;
        let done = self.through(|upgraded| {
            let done = call(upgraded);
            panicked = upgraded.take_panic();
            done
        });
        if panicked {
            self.shared.panicked(1);
        }
        done
    }

    fn through_or_fail<T>(
        &self,
        call: impl FnOnce(&mut Upgraded) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.through_fenced(call) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                Err(self.fail_through(error))
            }
            done => done,
        }
    }

    /// Reads plaintext through the transport, without blocking.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        self.through_or_fail(|upgraded| match upgraded.receive(into) {
            // An end that we have made ourselves is none that the peer has cut short.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock && self.has_ended_input() => {
                Ok(0)
            }
            got => got,
        })
    }

    fn has_ended_input(&self) -> bool {
        self.shared.is_cancelled() || self.shared.input_ended().is_some()
    }

    /// As [`send_now`](Self::send_now), through the transport. What is queued before the handshake is done
    /// waits for that, and not for the socket.
    fn send_through(&self, out: &mut OutBuf) -> io::Result<bool> {
        let left = self.through_or_fail(|upgraded| {
            if out.len() == 0 || !upgraded.is_shaken() {
                return Ok(!upgraded.owes() || upgraded.flush()?);
            }
            while out.len() > 0 {
                match upgraded.send(&out.bytes[out.sent..]) {
                    Ok(n) => out.sent += n,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            upgraded.flush()
        })?;
        if out.len() == 0 {
            out.bytes.clear();
            out.sent = 0;
        }
        Ok(left)
    }

    fn timed_out(&self, why: CloseReason) -> io::Error {
        self.note_failure(why);
        io::ErrorKind::TimedOut.into()
    }

    /// Waits until there is something to read, or the transport can send what it `owes`. False: the time
    /// was over first.
    fn wait_for_input(&self, owes: bool) -> io::Result<bool> {
        let timeout = self.limits.read_timeout;
        let what = match owes {
            false => For::Input,
            true if self.may_bring_input() => For::Either,
            true => For::Output,
        };
        wait::during(WaitKind::Net, || {
            let ready = if self.shared.set_reading(true) {
                self.shared.socket.wait(what, timeout)
            } else {
                Err(self.fail(io::ErrorKind::ConnectionAborted.into()))
            };
            self.shared.set_reading(false);
            ready
        })
    }

    /// Whether waiting for input may bring some that is not there already, and that a transport with
    /// something to send does not take.
    fn may_bring_input(&self) -> bool {
        let upgraded = self.upgraded.borrow();
        upgraded.as_ref().is_none_or(|upgraded| upgraded.take_dry())
    }

    fn read_ahead(&self) -> Taken {
        let max = self.max_input();
        let through = self.upgraded.borrow().is_some();
        let mut place = self.ahead.borrow_mut();
        let ahead = place.get_or_insert_default();
        let before = ahead.memory();
        let taken = ahead.read(max, |into| {
            if through {
                // Why it fails is noted when somebody wants to read it.
                self.through_fenced(|upgraded| upgraded.receive(into))
            } else {
                let got = self.shared.socket.read_now(into, false);
                got.map(|got| got.bytes)
            }
        });
        if ahead.is_empty() && !ahead.ended {
            *place = None;
        } else if ahead.memory() != before {
            self.hold(self.told.get() + ahead.memory() - before);
        }
        taken
    }

    /// Moves some of what was read ahead to where it is read from; `None`: there is none.
    fn take_ahead(&self, input: &mut InBuf, max: usize) -> Option<Filled> {
        let mut place = self.ahead.borrow_mut();
        let taken = match &mut *place {
            Some(ahead) if !ahead.is_empty() => Some(ahead.move_to(input, max)),
            _ => None,
        };
        // That there will be no more is found out again.
        if let Some(spent) = place.take_if(|ahead| ahead.is_empty()) {
            // A command that goes on for long may do so often.
            self.hold(self.told.get().saturating_sub(spent.memory()));
        }
        taken
    }

    /// Tells the registry's budget what waiting input takes.
    #[cold]
    fn hold(&self, held: usize) {
        self.told.set(held);
        let budget = self.limits.input_budget;
        self.registry.hold_input(&self.shared, held, budget);
    }

    /// Sends without blocking. False: the socket takes no more now.
    #[inline(always)]
    fn send_now(&self, out: &mut OutBuf) -> io::Result<bool> {
        if out.len() > 0 && self.broken.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = if self.upgraded.borrow().is_some() {
            self.send_through(out)
        } else {
            self.send_plain(out)
        };
        if sent.is_err() {
            self.broken.set(true);
        }
        sent
    }

    /// Bytes that have left in all. What a transport keeps has not.
    fn sent(&self) -> u64 {
        let upgraded = self.upgraded.borrow();
        self.sent.get() + upgraded.as_ref().map_or(0, |upgraded| upgraded.sent())
    }

    #[inline(always)]
    fn send_plain(&self, out: &mut OutBuf) -> io::Result<bool> {
        while out.len() > 0 {
            match self.shared.socket.write_now(&out.bytes[out.sent..]) {
                Ok(n) => {
                    out.sent += n;
                    self.sent.set(self.sent.get() + n as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        out.bytes.clear();
        out.sent = 0;
        Ok(true)
    }

    fn send_all(&self, out: &mut OutBuf) -> io::Result<()> {
        if self.send_now(out)? && out.len() == 0 {
            return Ok(());
        }
        wait::during(WaitKind::Net, || {
            let sent = if self.shared.set_writing(true) {
                self.send_waiting(out)
            } else {
                Err(self.fail(io::ErrorKind::ConnectionAborted.into()))
            };
            self.shared.set_writing(false);
            self.broken.set(self.broken.get() || sent.is_err());
            sent
        })
    }

    /// Sends while the client takes [`STRIDE`] in each `write_timeout`. What it sends meanwhile is
    /// taken; when that has come to `max_input`, it has [`CRAMMED`] for taking anything. A handshake
    /// that has to come first goes on by what is read.
    fn send_waiting(&self, out: &mut OutBuf) -> io::Result<()> {
        let (mut stride_at, mut stride_from) = (self.registry.now(), self.sent());
        let mut crammed_at: Option<u64> = None;
        loop {
            let before = self.sent();
            let to_shake = self.send_now(out)?;
            if to_shake && out.len() == 0 {
                return Ok(());
            }
            let (now, sent) = (self.registry.now(), self.sent());
            let since = |then: u64| Duration::from_nanos(now - then);
            if sent - stride_from >= STRIDE {
                (stride_at, stride_from) = (now, sent);
            }
            if sent > before {
                crammed_at = None;
            }
            let taken = self.read_ahead();
            if to_shake {
                if self.through(|upgraded| Ok(upgraded.is_shaken()))? {
                    continue;
                } else if taken == Taken::Last {
                    // As it fails again.
                    self.receive(&mut [])?;
                    return Err(self.fail(io::ErrorKind::BrokenPipe.into()));
                }
            }
            let (timeout, mut why) = match to_shake {
                true => (self.limits.read_timeout, CloseReason::ReadTimeout),
                false => (self.limits.write_timeout, CloseReason::WriteTimeout),
            };
            let mut left = timeout.saturating_sub(since(stride_at));
            if taken == Taken::Full {
                let crammed = CRAMMED.saturating_sub(since(*crammed_at.get_or_insert(now)));
                if crammed < left {
                    (left, why) = (crammed, CloseReason::PipelineTooLong);
                }
            }
            if left.is_zero() {
                return Err(self.timed_out(why));
            }
            let what = match taken {
                _ if to_shake && !self.through(|upgraded| Ok(upgraded.owes()))? => For::Input,
                Taken::All if self.may_bring_input() => For::Either,
                Taken::All | Taken::Last | Taken::Full => For::Output,
            };
            self.shared.socket.wait(what, left)?;
        }
    }
}

// ---- both directions ----

/// The reading half of a split [`Conn`]. What [`buffered`](Input::buffered) returned may be kept while
/// the reply is written to the other half.
#[derive(Debug)]
pub struct Input<'a> {
    link: &'a Link,
    /// Bytes that may be buffered.
    max: usize,
    input: &'a mut InBuf,
    reading: &'a mut Reading,
    output: &'a RefCell<OutBuf>,
}

/// The writing half of a split [`Conn`]. What is written is queued, and leaves at the end of the turn,
/// when there is much of it, or before a read that has to wait.
#[derive(Debug)]
pub struct Output<'a> {
    link: &'a Link,
    output: &'a RefCell<OutBuf>,
}

impl Input<'_> {
    /// As [`Conn::buffered`].
    pub fn buffered(&self) -> &[u8] {
        self.input.unread()
    }

    /// As [`Conn::consume`].
    ///
    /// # Panics
    /// If fewer are buffered.
    pub fn consume(&mut self, n: usize) {
        self.reading.consumed += n as u64;
        self.input.consume(n);
    }

    /// As [`Conn::at_end`].
    pub fn at_end(&self) -> bool {
        self.reading.at_end
    }

    /// Waits until the buffer is not empty or the input has ended. What is queued for the peer
    /// leaves first: it may be what the peer is waiting for.
    fn wait_for_input(&mut self) -> io::Result<()> {
        if self.input.len() > 0 || self.reading.at_end {
            return Ok(());
        }
        if self.link.take_ahead(self.input, self.max).is_some() {
            return Ok(());
        }
        self.link.send_all(&mut self.output.borrow_mut())?;
        // Which takes what comes meanwhile.
        if self.link.take_ahead(self.input, self.max).is_some() {
            return Ok(());
        }
        let room = self.input.room(self.max);
        let upgraded = self.link.upgraded.borrow().is_some();
        let got = loop {
            let got = if upgraded {
                let got = self.link.receive(room);
                got.map(|bytes| Received {
                    bytes,
                    cut: Cut::No,
                })
            } else {
                self.link.shared.socket.read_now(room, false)
            };
            match got {
                Ok(got) => {
                    self.reading.unsure = got.cut == Cut::Unknown;
                    break got.bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let owes = upgraded && self.link.through(|u| Ok(u.owes()))?;
                    if !self.link.wait_for_input(owes)? {
                        return Err(self.link.timed_out(CloseReason::ReadTimeout));
                    }
                }
                Err(error) if upgraded => return Err(error),
                Err(error) => return Err(self.link.fail(error)),
            }
        };
        self.input.end += got;
        if got == 0 {
            if self.link.shared.is_cancelled() {
                return Err(self.link.fail(io::ErrorKind::ConnectionAborted.into()));
            }
            self.reading.at_end = true;
        }
        Ok(())
    }
}

impl Read for Input<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.wait_for_input()?;
        let n = into.len().min(self.input.len());
        into[..n].copy_from_slice(&self.input.unread()[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.wait_for_input()?;
        Ok(self.input.unread())
    }

    fn consume(&mut self, n: usize) {
        Input::consume(self, n);
    }
}

impl Output<'_> {
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.link.broken.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut out = self.output.borrow_mut();
        out.bytes.extend_from_slice(bytes);
        if out.len() < IO_CHUNK {
            return Ok(());
        }
        // Enough for a call of its own. What the peer does not take stays, up to the bound, and so does what
        // a handshake has to come before.
        self.link.send_now(&mut out)?;
        if out.len() > 0 {
            if out.sent >= IO_CHUNK {
                let sent = std::mem::take(&mut out.sent);
                out.bytes.drain(..sent);
            }
            if out.len() > self.link.limits.output_bound {
                self.link.send_all(&mut out)?;
            }
        }
        Ok(())
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // In pieces, so that one large write does not go beyond the bound.
        let n = bytes.len().min(4 * IO_CHUNK);
        #[cfg(feature = "test-util")]
        let n = n.min(self.link.shared.socket.most_written());
        self.push(&bytes[..n])?;
        Ok(n)
    }

    /// Blocks until everything queued has left. Not needed before returning from the handler.
    fn flush(&mut self) -> io::Result<()> {
        self.link.send_all(&mut self.output.borrow_mut())
    }
}

impl Read for Conn {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.split().0.read(into)
    }
}

impl BufRead for Conn {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.split().0.wait_for_input()?;
        Ok(self.buffered())
    }

    fn consume(&mut self, n: usize) {
        Conn::consume(self, n);
    }
}

impl Write for Conn {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let output = &self.buffers.get_or_insert_default().output;
        let link = &self.link;
        Output { link, output }.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_blocking()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A client that always sends more, behind replies that it always takes too slowly.
    #[test]
    fn what_is_read_ahead_takes_bounded_memory_though_there_is_always_some() {
        let max = 4 * IO_CHUNK;
        let (mut ahead, mut input) = (Ahead::default(), InBuf::default());
        let (sent, mut got) = (Cell::new(0u8), 0u8);
        for _ in 0..1000 {
            let more = |into: &mut [u8]| {
                for byte in &mut *into {
                    *byte = sent.get();
                    sent.set(sent.get().wrapping_add(1));
                }
                Ok(into.len())
            };
            assert_eq!(ahead.read(max, more), Taken::Full);
            assert_eq!(ahead.move_to(&mut input, IO_CHUNK), Filled::Bytes);
            for byte in input.unread() {
                assert_eq!(*byte, got, "in order");
                got = got.wrapping_add(1);
            }
            input.consume(input.len());
            assert!(!ahead.is_empty() && ahead.memory() <= 4 * max);
        }
    }
}
