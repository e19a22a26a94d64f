//! A connected stream of either kind, as users have it: std's own types.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

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
