//! A connected socket: blocking as such, non-blocking by the call.

use std::io::{self, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send};

#[cfg(feature = "test-util")]
use crate::os::test_door::OfTest;
use crate::os::words::{Cut, For, Received};
use crate::stream::{Credentials, Peer, Stream};

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "test-util")]
    OfTest(Box<OfTest>),
}

/// Without SIGPIPE, of which Apple's systems have no flag: there std has made that an option of the socket.
#[cfg(not(target_vendor = "apple"))]
const NOW: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const NOW: SendFlags = SendFlags::DONTWAIT;

impl Socket {
    /// Takes a stream in that a listener of ours has accepted: blocking, with the listener's options.
    pub(crate) fn accepted(stream: Stream) -> Self {
        match stream {
            Stream::Tcp(tcp) => Self::Tcp(tcp),
            Stream::Unix(unix) => Self::Unix(unix),
        }
    }

    /// Takes a stream in, whatever state its owner left it in.
    pub(crate) fn new(stream: Stream) -> Result<Self, (Stream, io::Error)> {
        let made_ready = match &stream {
            // Small replies must not wait for the acknowledgement of the last one.
            Stream::Tcp(tcp) => tcp.set_nodelay(true).and(tcp.set_nonblocking(false)),
            Stream::Unix(unix) => unix.set_nonblocking(false),
        };
        match (made_ready, stream) {
            (Err(error), stream) => Err((stream, error)),
            (Ok(()), Stream::Tcp(tcp)) => Ok(Self::Tcp(tcp)),
            (Ok(()), Stream::Unix(unix)) => Ok(Self::Unix(unix)),
        }
    }

    pub(crate) fn into_stream(self) -> Stream {
        match self {
            Self::Tcp(tcp) => Stream::Tcp(tcp),
            Self::Unix(unix) => Stream::Unix(unix),
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.socket.into_stream(),
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().map_or(Peer::Unknown, Peer::Tcp),
            Self::Unix(_) => Peer::Unix,
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.socket.peer(),
        }
    }

    /// Which process has connected, if that can be known.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        #[cfg(feature = "test-util")]
        if let Self::OfTest(of_test) = self {
            return of_test.socket.credentials();
        }
        let Self::Unix(unix) = self else {
            return None;
        };
        let cred = rustix::net::sockopt::socket_peercred(unix).ok()?;
        Some(Credentials {
            pid: cred.pid.as_raw_nonzero().get().unsigned_abs(),
            uid: cred.uid.as_raw(),
            gid: cred.gid.as_raw(),
        })
    }

    /// Which process has connected, if that can be known.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[allow(clippy::unused_self)] // as it is elsewhere
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Reads what is there, without blocking.
    ///
    /// On a Unix socket a message that carries descriptors ends a read early. `ask` finds out, by
    /// `recvmsg`, whose flags tell; that costs half as much again as the plain read.
    pub(crate) fn read_now(&self, buffer: &mut [u8], ask: bool) -> io::Result<Received> {
        match self {
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.read_now(buffer, ask),
            Self::Unix(unix) if ask => {
                let mut no_room = RecvAncillaryBuffer::default();
                let mut into = [IoSliceMut::new(buffer)];
                let got = recvmsg(unix, &mut into, &mut no_room, RecvFlags::DONTWAIT)?;
                let cut = got.flags.contains(ReturnFlags::CTRUNC);
                Ok(Received {
                    bytes: got.bytes,
                    cut: if cut { Cut::Yes } else { Cut::No },
                })
            }
            _ => {
                let (_, bytes) = recv(self, buffer, RecvFlags::DONTWAIT)?;
                let cut = match self {
                    Self::Tcp(_) => Cut::No,
                    _ => Cut::Unknown,
                };
                Ok(Received { bytes, cut })
            }
        }
    }

    /// Reads, blocking until there is something or the socket is shut down.
    pub(crate) fn read_blocking(&self, buffer: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "test-util")]
        if let Self::OfTest(of_test) = self {
            return of_test.read_blocking(buffer);
        }
        let (_, bytes) = recv(self, buffer, RecvFlags::empty())?;
        Ok(bytes)
    }

    /// Writes what fits, without blocking and without SIGPIPE.
    pub(crate) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "test-util")]
        let bytes = &bytes[..bytes.len().min(self.most_written())];
        Ok(send(self, bytes, NOW)?)
    }

    /// Waits until the socket is ready or broken. False: the time was over first.
    pub(crate) fn wait(&self, what: For, timeout: Duration) -> io::Result<bool> {
        #[cfg(feature = "test-util")]
        if let Self::OfTest(of_test) = self {
            return of_test.wait(what, timeout);
        }
        let flags = match what {
            For::Input => PollFlags::IN,
            For::Output => PollFlags::OUT,
            For::Either => PollFlags::IN | PollFlags::OUT,
        };
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // No deadline: further away than the clock reaches.
            let left = deadline
                .map(|at| at.saturating_duration_since(Instant::now()))
                .and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(self, flags)], left.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends reading, writing or both, and so wakes whoever waits for the socket. That the peer has
    /// gone already is no error.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(how),
            Self::Unix(unix) => unix.shutdown(how),
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => return of_test.socket.shutdown(how),
        };
    }

    /// Whether something has arrived and has not been read.
    #[cfg(feature = "test-util")]
    pub(crate) fn has_input(&self) -> bool {
        rustix::io::ioctl_fionread(self).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether nobody blocks in a read of it, as far as a test can tell.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::OfTest(of_test) => of_test.is_away(),
            _ => false,
        }
    }

    /// How much one call writes at most.
    #[cfg(feature = "test-util")]
    pub(crate) fn most_written(&self) -> usize {
        match self {
            Self::OfTest(of_test) => of_test.most_written(),
            _ => usize::MAX,
        }
    }
}

/// Which peers have gone, or will send no more; by one call, that does not wait.
pub(crate) fn hung_up<'a>(sockets: impl Iterator<Item = &'a Socket>) -> Vec<bool> {
    let mut fds: Vec<_> = sockets.map(|s| PollFd::new(s, LEFT)).collect();
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if fds.is_empty() || poll(&mut fds, Some(&now)).is_err() {
        return vec![false; fds.len()];
    }
    let gone = LEFT | PollFlags::HUP | PollFlags::ERR;
    fds.iter().map(|fd| fd.revents().intersects(gone)).collect()
}

/// What says that a peer will send no more. Elsewhere than on Linux only that it has gone is seen.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LEFT: PollFlags = PollFlags::RDHUP;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const LEFT: PollFlags = PollFlags::empty();

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.socket.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
