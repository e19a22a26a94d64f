//! The user's contract: what a server implements ([`Handler`]) and what it answers ([`Next`]).

use std::fmt;
use std::io;
use std::time::Instant;

use crate::conn::Conn;

/// A server's protocol and engine, seen from its connections. How to write one, step by step, is in
/// [`guide::embedding`](crate::guide::embedding).
///
/// One handler serves any number of connections, from any number of threads at once; what belongs
/// to one connection is in its [`Session`](Handler::Session). For one connection the callbacks
/// never overlap, but **each may run on another thread than the last**, which is why a session must
/// be `Send`. Engine objects that are bound to a thread (LMDB transactions, some C clients) can be
/// kept in a thread-local, and only under
/// [`Scheduler::ThreadPerConnection`](crate::Scheduler::ThreadPerConnection), where one thread runs
/// all callbacks of a connection.
///
/// | callback | thread | may block | locks of this crate held |
/// |---|---|---|---|
/// | [`open`](Handler::open) | worker | no | none |
/// | [`command`](Handler::command), [`woken`](Handler::woken) | worker | yes; tell it with [`wait`](crate::wait) | none |
/// | [`detached`](Handler::detached) | its own | yes | none |
/// | [`farewell`](Handler::farewell) | worker | no | none |
/// | [`refuse`](Handler::refuse) | acceptor, or a worker | no | none |
/// | [`close`](Handler::close), the session's `Drop` | worker | yes | none |
/// | [`session_bytes`](Handler::session_bytes) | worker | no | none |
/// | what is given to [`Conn::on_cancel`] | whoever kills; a thread of the server's for time-outs and hang-ups | no | none |
///
/// "Worker" means a thread of the connection's group, or, under thread-per-connection, the
/// connection's own. All callbacks may call any method of [`ServerHandle`](crate::ServerHandle) and
/// [`ConnHandle`](crate::ConnHandle).
///
/// **Panics.** A panic in any callback closes that connection with [`CloseReason::Panicked`], is
/// counted, and affects nothing else: the worker goes on. The session is still given to `close`, so
/// it must not rely on invariants that the panicking callback may have left broken. With
/// `panic = "abort"` the process ends, as always.
pub trait Handler: Send + Sync + 'static {
    /// What belongs to one connection. Dropped on a worker, never by a listener or the monitor.
    type Session: Send + 'static;

    /// A connection has been accepted. Nothing has been read yet; a greeting may be written (it is
    /// queued and leaves after this call). Must not block: the logins of others wait behind it. A server
    /// without a login calls [`Conn::logged_in`] here; one that never calls it loses its clients after
    /// [`Limits::login_timeout`](crate::Limits).
    ///
    /// # Errors
    /// An error closes the connection: [`refuse`](Handler::refuse) is asked for last words, and
    /// since there is no session, `close` is not called.
    fn open(&self, conn: &mut Conn) -> io::Result<Self::Session>;

    /// New bytes have arrived, or the end of input ([`Conn::at_end`]).
    ///
    /// Take **one** command off the front of the buffer, answer it, return [`Next::input`]. If that
    /// left bytes over, the call is repeated at once, within the fairness budget
    /// ([`PoolConfig::turn_commands`](crate::PoolConfig)). If nothing was consumed (half a
    /// command), it is repeated only when more bytes have arrived; no thread is held meanwhile, and
    /// it counts as [`Next::more_input`], which need not be returned for it.
    /// The call is made only with bytes that it has not been shown or once at the end of input, so
    /// a spurious readiness event never reaches it. When the client has ended its input, the call is made once more,
    /// with nothing or half a command [buffered](Conn::buffered); then the connection closes, as soon as what
    /// that call began is over ([`Next::flush`] goes on until then).
    ///
    /// # Errors
    /// An error closes the connection with [`CloseReason::Handler`], or with the reason that the
    /// connection already has (killed, timed out) when the error came from [`Conn`] itself. An
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) at the end of input, before anything of a command has been
    /// read, is the client that has left: [`CloseReason::ClientClosed`].
    fn command(&self, session: &mut Self::Session, conn: &mut Conn) -> io::Result<Next>;

    /// The connection runs again for another reason than input; see [`Woken`]. A handler that
    /// returns [`Next::again`], [`flush`](Next::flush) or [`park`](Next::park), uses
    /// [`until`](Next::until), or whose connections are [poked](crate::ConnHandle::poke), implements
    /// this: the default closes the connection, with [`CloseReason::Handler`] of
    /// [`io::ErrorKind::Unsupported`].
    ///
    /// # Errors
    /// As [`command`](Handler::command).
    fn woken(
        &self,
        _session: &mut Self::Session,
        _conn: &mut Conn,
        _why: Woken,
    ) -> io::Result<Next> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The connection has left the scheduler by [`Next::detach`] and is the callee's for as long as
    /// this call lasts. The default returns at once, so the connection closes. Reading and writing block, within the time-outs of
    /// [`Limits`](crate::Limits), and fail when it is killed. The connection ends with the call, as
    /// all others do, by [`close`](Handler::close).
    ///
    /// A drain waits for it until its deadline and then kills it, and does not call it: a stream without
    /// an end looks now and then whether its connection [is draining](Conn::is_draining), and returns. A wait for something
    /// else than the client, such as new entries of a log, is the callee's own: a kill ends it by
    /// [`Conn::on_cancel`], or it has a time-out, after which [`is_cancelled`](Conn::is_cancelled) is
    /// looked at.
    ///
    /// # Errors
    /// As [`command`](Handler::command). Without one, what is queued is sent, and the reason for the
    /// close is [`CloseReason::HandlerClosed`]; in a drain [`CloseReason::Draining`], as after a command.
    fn detached(&self, _session: &mut Self::Session, _conn: &mut Conn) -> io::Result<()> {
        Ok(())
    }

    /// Last words to a client whose connection is being closed by the server. They are sent after the
    /// replies that are queued, without blocking: a client that has just been answered may find them
    /// behind its answer. What does not fit into the socket is sent while that
    /// [lingers](crate::Limits::linger_timeout), if it is 64 KiB at most with the rest of the replies;
    /// so a client that is still sending reads them, too. Not called when the client left by itself, when
    /// the handler asked for the close, or when writing has already failed.
    fn farewell(&self, _session: &mut Self::Session, _out: &mut Vec<u8>, _why: &CloseReason) {}

    /// Words to a client that gets no session: over a limit, while draining, or after a failed
    /// [`open`](Handler::open). Sent as [`farewell`](Handler::farewell)'s, without blocking.
    fn refuse(&self, _out: &mut Vec<u8>, _why: &Refusal) {}

    /// How many bytes a session takes, as far as that is easily known, for
    /// [`ConnInfo::session_bytes`](crate::ConnInfo). Called after each command, so it should do no more
    /// than read a few fields.
    fn session_bytes(&self, _session: &Self::Session) -> usize {
        0
    }

    /// The end of a connection that had a session. Called exactly once, after the socket has left
    /// the poller. A panic here is counted and ends there.
    fn close(&self, _session: Self::Session, _why: CloseReason) {}
}

/// What a connection does after a callback.
///
/// | what is wanted | return |
/// |---|---|
/// | the next command, or more of this one that is still in the buffer | [`input`](Next::input) |
/// | more of this command, of which a part has been consumed | [`more_input`](Next::more_input) |
/// | to go on after the others had their turn | [`again`](Next::again) |
/// | to go on when what was written has left: replies of any size | [`flush`](Next::flush) |
/// | to go on when somebody else says so, or at a time | [`park`](Next::park), with [`until`](Next::until) |
/// | a thread of its own, for good | [`detach`](Next::detach) |
/// | the end, after what is queued has left | [`close`](Next::close) |
///
/// Small and `Copy`. Built by its constructors:
/// ```
/// # use std::time::{Duration, Instant};
/// # use thread_group_pool::{Next, Priority};
/// let soon = Instant::now() + Duration::from_secs(1);
/// let next = Next::input().until(soon).priority(Priority::High);
/// assert_ne!(next, Next::input());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the scheduler acts on it only when the callback returns it"]
pub struct Next {
    pub(crate) step: Step,
    pub(crate) until: Option<Instant>,
    pub(crate) priority: Option<Priority>,
}

/// The kinds of [`Next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Input,
    MoreInput,
    Again,
    Flush,
    Park,
    Detach,
    Close,
}

impl Next {
    const fn of(step: Step) -> Self {
        Self {
            step,
            until: None,
            priority: None,
        }
    }

    /// Wait for a command. Between commands the idle clock runs
    /// ([`Limits::idle_timeout`](crate::Limits)) and no thread is held.
    pub const fn input() -> Self {
        Self::of(Step::Input)
    }

    /// Wait for the rest of a command, of which a part has been consumed. The read clock runs
    /// ([`Limits::read_timeout`](crate::Limits)) instead of the idle clock, and a drain counts the
    /// command as in flight. A part that is still in the buffer makes [`input`](Next::input) do the
    /// same.
    pub const fn more_input() -> Self {
        Self::of(Step::MoreInput)
    }

    /// Run again without waiting for input, after the others in the queue (those of its own lane, and whoever
    /// has waited for [`kickup`](crate::PoolConfig) in another): the next step of long work. [`Handler::woken`] is called with [`Woken::Again`]. Nothing is read meanwhile, so a client
    /// that leaves is noticed when the handler writes, or goes back to [`input`](Next::input).
    pub const fn again() -> Self {
        Self::of(Step::Again)
    }

    /// Run again ([`Woken::Flushed`]) when all output has left, after the others in the queue: how a
    /// reply of any size is sent in bounded memory, with no thread held while the client is slow. One
    /// that takes less than 64 KiB in [`Limits::write_timeout`](crate::Limits), or not what is left, is
    /// closed.
    pub const fn flush() -> Self {
        Self::of(Step::Flush)
    }

    /// Give up the worker until the [`Resume`](crate::Resume) that [`Conn::resume`] made last is used
    /// ([`Woken::Resumed`]); if that has happened already, run again at once. What is queued for the
    /// client is sent first. Nothing is read meanwhile. A drain waits for it, a kill, and a client
    /// that has closed both directions, end it. With [`until`](Next::until) it ends at that time at
    /// the latest, and needs no `Resume`: a sleep that holds no thread. Without either of them the
    /// connection closes, with [`CloseReason::Unresumed`].
    pub const fn park() -> Self {
        Self::of(Step::Park)
    }

    /// Leave the scheduler for good: [`Handler::detached`] gets the connection, on a thread of its
    /// own that counts neither for the gate nor for the cap.
    pub const fn detach() -> Self {
        Self::of(Step::Detach)
    }

    /// Send what is queued, then close.
    pub const fn close() -> Self {
        Self::of(Step::Close)
    }

    /// With [`input`](Next::input), [`more_input`](Next::more_input) and [`park`](Next::park): be
    /// woken ([`Woken::Due`]) at `at` at the latest, to within about two milliseconds (under
    /// [`Policy::Mariadb`](crate::Policy), to within one or two `stall_limit`s). With the
    /// others it is ignored. Input, a poke or a resume that comes before cancels it: it is given again
    /// with each `Next` for which it is to hold, a park that goes on after a poke included. A client that
    /// is silent meanwhile is silent: the idle clock goes on over it, and over pokes.
    pub const fn until(mut self, at: Instant) -> Self {
        self.until = Some(at);
        self
    }

    /// The priority of the connection's next turn alone, over that of the session.
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }
}

/// Why [`Handler::woken`] is called. When there are several reasons the first of these is given, and
/// the others come with the next calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Woken {
    /// The handler asked for it by [`Next::again`].
    Again,
    /// All output has left, after [`Next::flush`].
    Flushed,
    /// Somebody resumed the connection, after [`Next::park`].
    Resumed,
    /// The command has been cancelled, but not the connection, while it was parked, waited for its output
    /// to leave, or for the rest of its input; [`Conn::cancelled`] says why. A park is over, unless the
    /// handler parks again. One that streams is called with this in place of `Flushed`; under
    /// thread-per-connection, when what is on its way has left.
    Cancelled,
    /// The time given to [`Next::until`] has come.
    Due,
    /// Somebody called [`ConnHandle::poke`](crate::ConnHandle::poke). Pokes that come together are one.
    Poked,
}

/// Why a command is to stop; see [`Conn::cancelled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cancelled {
    /// The connection is to be closed, for this reason.
    Closing(CloseReason),
    /// Somebody called [`ConnHandle::kill_command`](crate::ConnHandle::kill_command).
    Killed,
    /// It has taken longer than [`Limits::command_timeout`](crate::Limits).
    TimedOut,
    /// The client has left, and [`Limits::hang_up`](crate::Limits) says that it be told.
    HungUp,
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closing(why) => why.fmt(f),
            Self::Killed => f.write_str("the command was killed"),
            Self::TimedOut => f.write_str("the command took longer than command_timeout"),
            Self::HungUp => f.write_str("the client left while its command ran"),
        }
    }
}

/// Which lane the commands of a session take, as MariaDB's `thread_pool_priority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "thread_pool_priority")]
pub enum Priority {
    /// High inside a transaction, low outside: whoever holds something that others wait for gets
    /// through first.
    #[default]
    Auto,
    /// Always the high lane.
    High,
    /// Always the low lane.
    Low,
}

/// How long a command is expected to take; see [`Conn::class`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Unknown or short. The scheduler finds out by itself.
    #[default]
    Normal,
    /// Longer than the stall bound: give the slot to others from the start.
    Long,
}

/// Why a connection was closed. Every closed connection is counted under exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client closed, reset or half-closed the connection.
    ClientClosed,
    /// The handler returned [`Next::close`].
    HandlerClosed,
    /// [`ConnHandle::kill`](crate::ConnHandle::kill), or the deadline of a drain.
    Killed,
    /// Silent for [`Limits::idle_timeout`](crate::Limits) between commands.
    IdleTimeout,
    /// Silent for [`Limits::idle_in_transaction_timeout`](crate::Limits) between commands, in a
    /// transaction.
    IdleInTransaction,
    /// Silent for [`Limits::read_timeout`](crate::Limits) in the middle of a command.
    ReadTimeout,
    /// Took less than 64 KiB of a reply in [`Limits::write_timeout`](crate::Limits), and not what was
    /// left of it either.
    WriteTimeout,
    /// A command larger than [`Limits::max_input`](crate::Limits).
    InputTooLong,
    /// The operating system failed a read, a write or a registration.
    Io(io::ErrorKind),
    /// The handler returned an error of this kind. Its text is the handler's to log before it returns.
    Handler(io::ErrorKind),
    /// A callback panicked.
    Panicked,
    /// The server is draining.
    Draining,
    /// [`Handler::open`] failed.
    OpenFailed,
    /// It was parked, and the last [`Resume`](crate::Resume) was dropped unused.
    Unresumed,
    /// The handler asked to [detach](Next::detach), and there was no thread to be had.
    NoThread,
    /// It had not logged in within [`Limits::login_timeout`](crate::Limits).
    LoginTimeout,
    /// It would have been one session too many ([`Limits::max_connections`](crate::Limits)), and its
    /// handler returned the error of [`Conn::logged_in`]. [`Handler::refuse`] is asked for last words.
    TooManyConnections,
    /// The client left while its command ran, and [`Limits::hang_up`](crate::Limits) says that this
    /// ends it.
    HungUp,
    /// The input ended without the word that its transport ends with, TLS's `close_notify`: the client
    /// left without it, as many do, or somebody has cut it short. The handler was not shown that end.
    Truncated,
    /// The [`Transport`](crate::Transport) failed: no handshake, or bytes that it makes nothing of.
    Transport(io::ErrorKind),
    /// The half commands of all connections took more than [`Limits::input_budget`](crate::Limits), and
    /// this one was the largest.
    InputBudget,
    /// Sent [`Limits::max_input`](crate::Limits) bytes of commands behind a reply of which it took nothing.
    PipelineTooLong,
}

impl CloseReason {
    /// The name under which [`Stats::closes`](crate::Stats) counts it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientClosed => "client_closed",
            Self::HandlerClosed => "handler_closed",
            Self::Killed => "killed",
            Self::IdleTimeout => "idle_timeout",
            Self::ReadTimeout => "read_timeout",
            Self::WriteTimeout => "write_timeout",
            Self::InputTooLong => "input_too_long",
            Self::Io(_) => "io",
            Self::Handler(_) => "handler",
            Self::Panicked => "panicked",
            Self::Draining => "draining",
            Self::OpenFailed => "open_failed",
            Self::Unresumed => "unresumed",
            Self::NoThread => "no_thread",
            Self::LoginTimeout => "login_timeout",
            Self::TooManyConnections => "too_many_connections",
            Self::IdleInTransaction => "idle_in_transaction",
            Self::HungUp => "hung_up",
            Self::Truncated => "truncated",
            Self::Transport(_) => "transport",
            Self::InputBudget => "input_budget",
            Self::PipelineTooLong => "pipeline_too_long",
        }
    }

    /// All names, in the order of [`index`](Self::index).
    pub(crate) const NAMES: [&'static str; 22] = [
        "client_closed",
        "handler_closed",
        "killed",
        "idle_timeout",
        "read_timeout",
        "write_timeout",
        "input_too_long",
        "io",
        "handler",
        "panicked",
        "draining",
        "open_failed",
        "unresumed",
        "no_thread",
        "login_timeout",
        "too_many_connections",
        "idle_in_transaction",
        "hung_up",
        "truncated",
        "transport",
        "input_budget",
        "pipeline_too_long",
    ];

    pub(crate) fn index(self) -> usize {
        let name = self.name();
        Self::NAMES.iter().position(|n| *n == name).unwrap_or(0)
    }

    /// Whether the server ended it, so that the client is owed a word.
    pub(crate) fn by_server(self) -> bool {
        !matches!(
            self,
            Self::ClientClosed
                | Self::HandlerClosed
                | Self::Io(_)
                | Self::WriteTimeout
                | Self::HungUp
                | Self::Truncated
                | Self::Transport(_)
        )
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientClosed => f.write_str("the client closed the connection"),
            Self::HandlerClosed => f.write_str("the handler closed the connection"),
            Self::Killed => f.write_str("the connection was killed"),
            Self::IdleTimeout => f.write_str("the client was silent for longer than idle_timeout"),
            Self::ReadTimeout => {
                f.write_str("the rest of a command did not arrive within read_timeout")
            }
            Self::WriteTimeout => {
                f.write_str("the client took too little of a reply within write_timeout")
            }
            Self::InputTooLong => f.write_str("a command was longer than max_input"),
            Self::Io(kind) => write!(f, "reading or writing failed: {kind}"),
            // What `woken` says where there is none.
            Self::Handler(io::ErrorKind::Unsupported) => {
                f.write_str("the handler failed: unsupported (or it has no `woken`)")
            }
            Self::Handler(kind) => write!(f, "the handler failed: {kind}"),
            Self::Panicked => f.write_str("the handler panicked"),
            Self::Draining => f.write_str("the server is shutting down"),
            Self::OpenFailed => f.write_str("the handler refused the connection"),
            Self::Unresumed => f.write_str("nobody is left who could resume the connection"),
            Self::NoThread => f.write_str("no thread is free for the detached connection"),
            Self::LoginTimeout => f.write_str("the client did not log in within login_timeout"),
            Self::TooManyConnections => f.write_str("there are as many sessions as may be"),
            Self::IdleInTransaction => f.write_str(
                "the client was silent in a transaction for longer than idle_in_transaction_timeout",
            ),
            Self::HungUp => f.write_str("the client left while its command ran"),
            Self::Truncated => f.write_str("the client left without ending its side properly"),
            Self::Transport(kind) => write!(f, "the transport failed: {kind}"),
            Self::InputBudget => {
                f.write_str("half commands took more than input_budget, and this was the largest")
            }
            Self::PipelineTooLong => {
                f.write_str("more than max_input was sent behind a reply that was not taken")
            }
        }
    }
}

/// Why a client gets no session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// There are [`Limits::max_connections`](crate::Limits) sessions.
    TooManyConnections {
        /// The limit that was met.
        limit: usize,
    },
    /// [`Limits::max_logins`](crate::Limits) are connected and have not logged in.
    TooManyLogins {
        /// The limit that was met.
        limit: usize,
    },
    /// [`Limits::max_per_address`](crate::Limits) are connected from the same address.
    TooManyFromAddress {
        /// The limit that was met.
        limit: usize,
    },
    /// The server is draining.
    Draining,
    /// Thread-per-connection could not get a thread from the operating system, or is at
    /// its limit.
    NoThread,
    /// [`Handler::open`] returned an error or panicked.
    OpenFailed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyConnections { limit } => {
                write!(f, "too many connections (max_connections is {limit})")
            }
            Self::TooManyLogins { limit } => {
                write!(
                    f,
                    "too many clients that have not logged in (max_logins is {limit})"
                )
            }
            Self::TooManyFromAddress { limit } => write!(
                f,
                "too many connections from this address (max_per_address is {limit})"
            ),
            Self::Draining => f.write_str("the server is shutting down"),
            Self::NoThread => f.write_str("no thread is free to serve the connection"),
            Self::OpenFailed => f.write_str("the handler refused the connection"),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_close_reason_is_counted_under_its_own_name() {
        let all = [
            CloseReason::ClientClosed,
            CloseReason::HandlerClosed,
            CloseReason::Killed,
            CloseReason::IdleTimeout,
            CloseReason::ReadTimeout,
            CloseReason::WriteTimeout,
            CloseReason::InputTooLong,
            CloseReason::Io(io::ErrorKind::Other),
            CloseReason::Handler(io::ErrorKind::Other),
            CloseReason::Panicked,
            CloseReason::Draining,
            CloseReason::OpenFailed,
            CloseReason::Unresumed,
            CloseReason::NoThread,
            CloseReason::LoginTimeout,
            CloseReason::TooManyConnections,
            CloseReason::IdleInTransaction,
            CloseReason::HungUp,
            CloseReason::Truncated,
            CloseReason::Transport(io::ErrorKind::Other),
            CloseReason::InputBudget,
            CloseReason::PipelineTooLong,
        ];
        assert_eq!(all.len(), CloseReason::NAMES.len());
        for (i, reason) in all.iter().enumerate() {
            assert_eq!(reason.index(), i, "{reason}");
        }
    }
}
