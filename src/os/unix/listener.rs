//! Listening sockets: every option stated, none inherited.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket as Socket2, Type};

use crate::stream::{LocalAddr, Stream};

#[derive(Debug)]
pub(crate) enum Acceptor {
    Tcp(TcpListener),
    /// With the path's device and inode, so that only our own is removed.
    Unix {
        listener: UnixListener,
        path: PathBuf,
        file: (u64, u64),
    },
}

impl Acceptor {
    /// Binds a TCP address: the first of those that `address` stands for which can be bound. Reuse
    /// is on (a restart must not wait for old connections to time out); an IPv6 address takes IPv6
    /// only, whatever the system's default is.
    pub(crate) fn tcp(address: &str, backlog: i32) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in address.to_socket_addrs()? {
            match Self::tcp_at(address, backlog) {
                Ok(acceptor) => return Ok(acceptor),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tcp_at(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        let socket = Socket2::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        Ok(Self::Tcp(socket.into()))
    }

    /// Binds a path. A socket that nobody listens on any more is replaced; one in use, and anything
    /// that is not a socket, is refused.
    pub(crate) fn unix(path: &Path, backlog: i32) -> io::Result<Self> {
        let socket = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
        let address = SockAddr::unix(path)?;
        if let Err(error) = socket.bind(&address) {
            if error.kind() != io::ErrorKind::AddrInUse || !is_stale(path)? {
                return Err(error);
            }
            fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        socket.listen(backlog)?;
        socket.set_nonblocking(true)?;
        let meta = fs::symlink_metadata(path)?;
        Ok(Self::Unix {
            listener: socket.into(),
            path: path.to_owned(),
            file: (meta.dev(), meta.ino()),
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<LocalAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(LocalAddr::Tcp),
            Self::Unix { path, .. } => Ok(LocalAddr::Unix(path.clone())),
        }
    }

    /// Takes the next connection, without blocking.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Self::Unix { listener, .. } => listener.accept().map(|(stream, _)| stream.into()),
        }
    }
}

/// Whether the path is a socket without a listener.
fn is_stale(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    // Not blocking: somebody may listen there whose backlog is full.
    let probe = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) => Ok(error.kind() == io::ErrorKind::ConnectionRefused),
        Ok(()) => Ok(false),
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Self::Unix { path, file, .. } = self {
            // A successor may have put its own socket there.
            let ours =
                fs::symlink_metadata(&*path).is_ok_and(|meta| (meta.dev(), meta.ino()) == *file);
            if ours {
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

/// Waits for connections on several listeners, and can be told to stop.
#[derive(Debug)]
pub(crate) struct Door {
    wake: UnixStream,
    woken: UnixStream,
}

impl Door {
    pub(crate) fn new() -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        Ok(Self { wake, woken })
    }

    /// Ends every [`wait`](Self::wait) from now on.
    pub(crate) fn wake(&self) {
        // Full means that it has been woken often enough.
        let _ = io::Write::write(&mut &self.wake, &[0]);
    }

    /// Waits until one of `listeners` has a connection, and says which have. Nobody: the time is
    /// over, or somebody called [`wake`](Self::wake).
    pub(crate) fn wait(
        &self,
        listeners: &[&Acceptor],
        timeout: Option<Duration>,
    ) -> io::Result<Vec<bool>> {
        let mut fds: Vec<PollFd<'_>> = listeners
            .iter()
            .map(|l| PollFd::new(*l, PollFlags::IN))
            .collect();
        fds.push(PollFd::new(&self.woken, PollFlags::IN));
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        fds.pop();
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }
}
