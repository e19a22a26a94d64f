//! A connected stream of either kind, as users have it: std's own types.

use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

/// A connected stream to be served; see [`ServerHandle::attach`](crate::ServerHandle::attach).
#[derive(Debug)]
#[non_exhaustive]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(UnixStream),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

#[cfg(unix)]
impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

/// A listening socket of either kind: one that the server is given
/// ([`Listen::inherited`](crate::Listen::inherited)), or that it hands over
/// ([`Server::stop_accepting`](crate::Server::stop_accepting)).
#[derive(Debug)]
#[non_exhaustive]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(unix)]
impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// When the kernel looks whether the other end of a silent TCP connection is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// After so long without a word.
    pub idle: Duration,
    /// Again after so long without an answer.
    pub interval: Duration,
    /// So often, before the connection counts as broken.
    pub probes: u32,
}

impl Default for Keepalive {
    /// After 5 minutes, 6 times in another minute: a client whose machine has gone is not kept for the 8
    /// hours of the idle time-out, and the one in a silent network costs nothing.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(300),
            interval: Duration::from_secs(10),
            probes: 6,
        }
    }
}

/// How to listen. Every option is stated, none is the system's, but for the time-out.
#[derive(Clone, Debug)]
pub(crate) struct ListenOptions {
    pub(crate) backlog: i32,
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
    pub(crate) dual_stack: bool,
    pub(crate) no_delay: bool,
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) user_timeout: Option<Duration>,
    /// The mode of a path.
    pub(crate) mode: Option<u32>,
    /// Whether the path of a listener that was made by somebody else is removed at the end.
    pub(crate) remove: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            // Linux cuts it down to `net.core.somaxconn`, which is 4096 by default.
            backlog: 4096,
            reuse_address: true,
            reuse_port: false,
            dual_stack: false,
            no_delay: true,
            keepalive: Some(Keepalive::default()),
            user_timeout: None,
            mode: None,
            remove: false,
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A TCP client's address.
    Tcp(SocketAddr),
    /// A client of a Unix socket, which has no address.
    Unix,
    /// The address could not be read: the client had gone already.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The process at the other end of a Unix socket; see
/// [`Conn::peer_credentials`](crate::Conn::peer_credentials).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Credentials {
    /// Its number. It may have ended, and the number be another's by now.
    pub pid: u32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its effective group then.
    pub gid: u32,
}

/// Where a server listens, with the port that the operating system chose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for LocalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "tcp {addr}"),
            Self::Unix(path) => write!(f, "unix {}", path.display()),
        }
    }
}
