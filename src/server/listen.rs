//! Where to listen, and how; and what can be seen of a listener.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::BuildError;
use crate::os::listener::Acceptor;
use crate::stream::{Keepalive, ListenOptions, Listener, LocalAddr};
use crate::sync::Mutex;

/// Where to listen.
///
/// Every option is stated and none is the system's default, but for the TCP user time-out.
/// ```
/// # use std::time::Duration;
/// # use thread_group_pool::{Keepalive, Listen};
/// let keepalive = Keepalive { idle: Duration::from_secs(60), ..Keepalive::default() };
/// let tcp = Listen::tcp("[::]:6400").dual_stack(true).keepalive(Some(keepalive));
/// let unix = Listen::unix("/run/kv.sock").mode(0o660);
/// ```
#[derive(Clone, Debug)]
pub struct Listen {
    place: Place,
    options: ListenOptions,
}

#[derive(Clone, Debug)]
enum Place {
    Tcp(String),
    Unix(PathBuf),
    Inherited(Arc<Listener>),
}

impl Listen {
    fn at(place: Place) -> Self {
        Self {
            place,
            options: ListenOptions::default(),
        }
    }

    /// A TCP address, `host:port`; port 0 lets the system choose. Of several addresses that a name stands
    /// for, the first one that can be bound.
    pub fn tcp(address: impl Into<String>) -> Self {
        Self::at(Place::Tcp(address.into()))
    }

    /// A Unix socket at `path`. A socket that a dead server left there is replaced; one in use, or
    /// a file that is no socket, is refused. The path is removed at the end if it is still ours. On Windows
    /// there are none: building the server is an error of the kind `Unsupported`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(Place::Unix(path.into()))
    }

    /// A listener that somebody else has made, such as a predecessor
    /// ([`Server::stop_accepting`](crate::Server::stop_accepting)) or a service manager. It is made
    /// non-blocking, for all who have it. Of the options, those of binding ([`backlog`](Self::backlog),
    /// reuse, [`dual_stack`](Self::dual_stack), [`mode`](Self::mode)) do not apply.
    pub fn inherited(listener: impl Into<Listener>) -> Self {
        Self::at(Place::Inherited(Arc::new(listener.into())))
    }

    /// How many connections may wait to be accepted. Default 4096; Linux cuts it down to
    /// `net.core.somaxconn`.
    #[doc(alias = "back_log")]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.options.backlog = i32::from(backlog);
        self
    }

    /// TCP: whether the address may be bound although connections of a former server linger there.
    /// Default on. On Windows it may always, and this has no effect.
    pub fn reuse_address(mut self, yes: bool) -> Self {
        self.options.reuse_address = yes;
        self
    }

    /// TCP: whether others of the same user may listen on the same port, each for a share of the
    /// connections. Default off. What waits in the backlog of one that closes is lost; hand the listener
    /// over instead ([`Server::stop_accepting`](crate::Server::stop_accepting)).
    /// On Windows on is an error of the kind `Unsupported` when the server is built.
    pub fn reuse_port(mut self, yes: bool) -> Self {
        self.options.reuse_port = yes;
        self
    }

    /// TCP: whether an IPv6 address takes IPv4 clients too. Default off, whatever the system's default
    /// is.
    pub fn dual_stack(mut self, yes: bool) -> Self {
        self.options.dual_stack = yes;
        self
    }

    /// TCP: whether small replies leave without waiting for the acknowledgement of the last one. Default
    /// on.
    pub fn no_delay(mut self, yes: bool) -> Self {
        self.options.no_delay = yes;
        self
    }

    /// TCP: how clients are found whose machine has gone; `None`: not before the idle time-out. Default
    /// [`Keepalive::default`].
    #[doc(alias = "tcp_keepalive_time")]
    pub fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.options.keepalive = keepalive;
        self
    }

    /// TCP on Linux: after how long without an acknowledgement of what was sent a connection is broken;
    /// elsewhere it has no effect. Default: the system's, some 15 minutes.
    pub fn user_timeout(mut self, timeout: Duration) -> Self {
        self.options.user_timeout = Some(timeout);
        self
    }

    /// Unix: the mode of the path, set before anybody can connect. Default: what the process's umask
    /// leaves.
    pub fn mode(mut self, mode: u32) -> Self {
        self.options.mode = Some(mode);
        self
    }

    /// Whether the path of an [inherited](Self::inherited) Unix listener is removed at the end, if it is
    /// still the same file then. Default off: it is its maker's.
    pub fn remove_path(mut self, yes: bool) -> Self {
        self.options.remove = yes;
        self
    }

    pub(super) fn bind(self) -> Result<(Acceptor, LocalAddr), BuildError> {
        let address = self.to_string();
        let options = &self.options;
        let bound = match self.place {
            Place::Tcp(address) => Acceptor::tcp(&address, options),
            Place::Unix(path) => Acceptor::unix(&path, options),
            Place::Inherited(listener) => {
                let own = match Arc::try_unwrap(listener) {
                    Ok(listener) => Ok(listener),
                    // Somebody has kept a clone of this.
                    Err(shared) => match &*shared {
                        Listener::Tcp(tcp) => tcp.try_clone().map(Listener::Tcp),
                        #[cfg(unix)]
                        Listener::Unix(unix) => unix.try_clone().map(Listener::Unix),
                    },
                };
                own.and_then(|listener| Acceptor::inherited(listener, options))
            }
        };
        bound
            .and_then(|acceptor| {
                let at = acceptor.local_addr()?;
                Ok((acceptor, at))
            })
            .map_err(|source| BuildError::Listen { address, source })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(address) => write!(f, "tcp {address}"),
            Place::Unix(path) => write!(f, "unix {}", path.display()),
            Place::Inherited(listener) => match &**listener {
                Listener::Tcp(tcp) => match tcp.local_addr() {
                    Ok(at) => write!(f, "tcp {at}"),
                    Err(_) => f.write_str("tcp, inherited"),
                },
                #[cfg(unix)]
                Listener::Unix(_) => f.write_str("unix, inherited"),
            },
        }
    }
}

/// What a listener is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenerState {
    /// It accepts.
    Accepting,
    /// It rests for a moment, because the system had no descriptor or no memory for a connection.
    Resting,
    /// The operating system failed it for good: nobody can connect there any more, and the server goes on
    /// without it. Whoever runs the server is to be told.
    Dead,
    /// It has been closed, or handed over to a successor.
    Closed,
}

/// One listener, as [`ServerHandle::listeners`](crate::ServerHandle::listeners) shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Where it listens.
    pub at: LocalAddr,
    /// Whether it is an [admin listener](crate::ServerBuilder::admin).
    pub admin: bool,
    /// What it is doing.
    pub state: ListenerState,
    /// Connections that it has accepted, ever.
    pub accepted: u64,
    /// How often it had to rest, ever.
    pub shortages: u64,
    /// The last error that made it rest or die.
    pub last_error: Option<String>,
}

/// A listener's record, written by its accept thread.
#[derive(Debug)]
pub(super) struct Record {
    at: LocalAddr,
    admin: bool,
    // Relaxed, all three: shown, and nothing is concluded from one about another.
    state: AtomicU8,
    accepted: AtomicU64,
    shortages: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Record {
    pub(super) fn new(at: LocalAddr, admin: bool) -> Self {
        Self {
            at,
            admin,
            state: AtomicU8::new(ListenerState::Accepting as u8),
            accepted: AtomicU64::new(0),
            shortages: AtomicU64::new(0),
            last_error: Mutex::default(),
        }
    }

    pub(super) fn at(&self) -> &LocalAddr {
        &self.at
    }

    pub(super) fn set(&self, state: ListenerState) {
        self.state.store(state as u8, Relaxed);
    }

    pub(super) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(super) fn failed(&self, state: ListenerState, error: &std::io::Error) {
        if state == ListenerState::Resting {
            self.shortages.fetch_add(1, Relaxed);
        }
        *self.last_error.lock() = Some(error.to_string());
        self.set(state);
    }

    pub(super) fn info(&self) -> ListenerInfo {
        let states = [
            ListenerState::Accepting,
            ListenerState::Resting,
            ListenerState::Dead,
        ];
        let state = usize::from(self.state.load(Relaxed));
        ListenerInfo {
            at: self.at.clone(),
            admin: self.admin,
            state: *states.get(state).unwrap_or(&ListenerState::Closed),
            accepted: self.accepted.load(Relaxed),
            shortages: self.shortages.load(Relaxed),
            last_error: self.last_error.lock().clone(),
        }
    }
}
