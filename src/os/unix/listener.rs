//! Listening sockets: every option stated, none inherited.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket as Socket2, TcpKeepalive, Type};

use super::bell::Bell;
use crate::os::words::unresolved;
use crate::stream::{Keepalive, ListenOptions, Listener, LocalAddr, Stream};

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// Before the listener: a path that somebody still listens on is no dead server's.
    own_path: Option<OwnPath>,
    listener: Listener,
    /// Where it listens, as it is shown.
    path: Option<PathBuf>,
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    options: ListenOptions,
}

impl Acceptor {
    /// Binds a TCP address: the first of those that `address` stands for which can be bound.
    pub(crate) fn tcp(address: &str, options: &ListenOptions) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in address.to_socket_addrs().map_err(unresolved)? {
            match Self::tcp_at(address, options) {
                Ok(acceptor) => return Ok(acceptor),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tcp_at(address: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = Socket2::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(!options.dual_stack)?;
        }
        socket.set_reuse_address(options.reuse_address)?;
        socket.set_reuse_port(options.reuse_port)?;
        socket.bind(&address.into())?;
        socket.listen(options.backlog)?;
        Self::of(Listener::Tcp(socket.into()), options)
    }

    /// Binds a path. A socket that nobody listens on any more is replaced; one in use, and anything
    /// that is not a socket, is refused. Of several servers that replace the same one at once, one gets it.
    pub(crate) fn unix(path: &Path, options: &ListenOptions) -> io::Result<Self> {
        // Until there is a listener: a socket that is only bound looks stale.
        let _folder = locked_folder(path)?;
        let socket = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
        let address = SockAddr::unix(path)?;
        if let Err(error) = socket.bind(&address) {
            if error.kind() != io::ErrorKind::AddrInUse {
                return Err(error);
            }
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                let message = "there is something else than a socket";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            if !is_stale(path)? {
                return Err(error);
            }
            fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        let mut acceptor = Self::of(Listener::Unix(socket.into()), options)?;
        acceptor.path = Some(path.to_owned());
        acceptor.remove_at_end()?;
        // Before anybody can connect.
        if let Some(mode) = options.mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        SockRef::from(&acceptor).listen(options.backlog)?;
        // Somebody who does not ask for the folder may have taken it for a dead server's.
        let own = acceptor.own_path.as_ref().and_then(|own| own.file);
        if file_at(path).ok() != own {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(acceptor)
    }

    /// Takes a listener that somebody else has made.
    pub(crate) fn inherited(listener: Listener, options: &ListenOptions) -> io::Result<Self> {
        let path = match &listener {
            Listener::Tcp(_) => None,
            Listener::Unix(unix) => unix.local_addr()?.as_pathname().map(Path::to_owned),
        };
        let mut acceptor = Self::of(listener, options)?;
        acceptor.path = path;
        if options.remove {
            acceptor.remove_at_end()?;
        }
        Ok(acceptor)
    }

    /// States what connections are to be like. Linux gives them the listener's options; elsewhere each
    /// one gets them.
    fn of(listener: Listener, options: &ListenOptions) -> io::Result<Self> {
        match &listener {
            Listener::Tcp(tcp) => {
                tcp.set_nonblocking(true)?;
                tune(SockRef::from(tcp), options)?;
            }
            Listener::Unix(unix) => unix.set_nonblocking(true)?,
        }
        Ok(Self {
            own_path: None,
            listener,
            path: None,
            #[cfg(not(any(target_os = "linux", target_os = "android")))]
            options: options.clone(),
        })
    }

    /// Notes what the path leads to now.
    fn remove_at_end(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.own_path = Some(OwnPath {
                path: path.clone(),
                file: Some(file_at(path)?),
            });
        }
        Ok(())
    }

    pub(crate) fn local_addr(&self) -> io::Result<LocalAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().map(LocalAddr::Tcp),
            Listener::Unix(_) => Ok(LocalAddr::Unix(self.path.clone().unwrap_or_default())),
        }
    }

    /// Takes the next connection, without blocking; the connection itself blocks.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let stream: Stream = match &self.listener {
            Listener::Tcp(listener) => listener.accept()?.0.into(),
            Listener::Unix(listener) => listener.accept()?.0.into(),
        };
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        match &stream {
            Stream::Tcp(tcp) => {
                tcp.set_nonblocking(false)?;
                tune(SockRef::from(tcp), &self.options)?;
            }
            Stream::Unix(unix) => unix.set_nonblocking(false)?,
        }
        Ok(stream)
    }

    /// The listener, for a successor. Its path stays.
    pub(crate) fn hand_over(self) -> Listener {
        if let Some(mut own_path) = self.own_path {
            own_path.file = None;
        }
        self.listener
    }
}

/// A path that is removed at the end.
#[derive(Debug)]
struct OwnPath {
    path: PathBuf,
    /// Its device and inode, so that only our own is removed.
    file: Option<(u64, u64)>,
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

impl Drop for OwnPath {
    fn drop(&mut self) {
        // A successor may have put its own socket there.
        if self.file.is_some() && file_at(&self.path).ok() == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Sets a TCP socket's options.
fn tune(socket: SockRef<'_>, options: &ListenOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.no_delay)?;
    match options.keepalive {
        None => socket.set_keepalive(false)?,
        Some(Keepalive {
            idle,
            interval,
            probes,
        }) => {
            let keepalive = TcpKeepalive::new()
                .with_time(idle)
                .with_interval(interval)
                .with_retries(probes);
            socket.set_tcp_keepalive(&keepalive)?;
        }
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(timeout) = options.user_timeout {
        socket.set_tcp_user_timeout(Some(timeout))?;
    }
    Ok(())
}

/// What an error of `accept` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptError {
    /// Nobody is there.
    Empty,
    /// It is about one connection, which had gone again or is broken: on to the next.
    Passing,
    /// The system has no descriptor or memory for a connection: the same would come again at once.
    Shortage,
    /// The listener is of no use any more.
    Dead,
}

impl AcceptError {
    pub(crate) fn of(error: &io::Error) -> Self {
        let Some(errno) = Errno::from_io_error(error) else {
            return Self::Dead;
        };
        match errno {
            Errno::WOULDBLOCK => Self::Empty,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Self::Shortage,
            Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP | Errno::FAULT => {
                Self::Dead
            }
            // Aborted, interrupted, forbidden by a firewall, or an error that the network had for this
            // connection, which Linux hands on.
            _ => Self::Passing,
        }
    }
}

/// How long a folder may be locked by others: as long as binding takes, many times over.
const LOCKED_WITHIN: Duration = Duration::from_secs(1);

/// Keeps other servers from the sockets of a path's folder. A folder that may not be read, or that its
/// file system cannot lock, is used without.
fn locked_folder(path: &Path) -> io::Result<Option<File>> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Ok(file) = File::open(folder) else {
        return Ok(None);
    };
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCKED_WITHIN => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => {
                let message = format!("somebody has locked the folder {}", folder.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
            }
        }
    }
}

/// Whether nobody listens on the socket with this path.
fn is_stale(path: &Path) -> io::Result<bool> {
    // Not blocking: somebody may listen there whose backlog is full.
    let probe = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) => Ok(error.kind() == io::ErrorKind::ConnectionRefused),
        Ok(()) => Ok(false),
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// That the reading side was shut, which for Linux's Unix listeners looks like a connection otherwise, and
/// for ever.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHUT: PollFlags = PollFlags::RDHUP;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const SHUT: PollFlags = PollFlags::empty();

/// What there is at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Nobody,
    Somebody,
    /// It is shut, or broken: should nobody be there either, it is of no use any more.
    Shut,
}

impl At {
    fn of(flags: PollFlags) -> Self {
        if flags.intersects(SHUT | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            Self::Shut
        } else if flags.is_empty() {
            Self::Nobody
        } else {
            Self::Somebody
        }
    }
}

/// Waits until one of `listeners` has a connection, the bell is rung or the time is over, and says what
/// there is at each.
pub(crate) fn wait(
    listeners: &[&Acceptor],
    bell: &Bell,
    timeout: Option<Duration>,
) -> io::Result<Vec<At>> {
    let mut fds: Vec<PollFd<'_>> = listeners
        .iter()
        .map(|l| PollFd::new(*l, PollFlags::IN | SHUT))
        .chain([PollFd::new(bell, PollFlags::IN)])
        .collect();
    // No time-out: further away than the clock reaches.
    let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        // What was seen then does not count.
        Err(Errno::INTR) => return Ok(vec![At::Nobody; listeners.len()]),
        Err(error) => return Err(error.into()),
    }
    if fds.pop().is_some_and(|fd| !fd.revents().is_empty()) {
        bell.hear();
    }
    Ok(fds.iter().map(|fd| At::of(fd.revents())).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn accepted(acceptor: &Acceptor) -> (TcpStream, TcpStream) {
        let LocalAddr::Tcp(at) = acceptor.local_addr().unwrap() else {
            unreachable!("it is TCP")
        };
        let client = TcpStream::connect(at).unwrap();
        wait(&[acceptor], &Bell::new().unwrap(), None).unwrap();
        match acceptor.accept().unwrap() {
            Stream::Tcp(stream) => (stream, client),
            Stream::Unix(_) => unreachable!("it is TCP"),
        }
    }

    #[test]
    fn a_connection_has_the_options_that_its_listener_was_given() {
        let second = Duration::from_secs(1);
        let options = ListenOptions {
            no_delay: false,
            keepalive: Some(Keepalive {
                idle: 77 * second,
                interval: 7 * second,
                probes: 3,
            }),
            user_timeout: Some(33 * second),
            ..ListenOptions::default()
        };
        let acceptor = Acceptor::tcp("127.0.0.1:0", &options).unwrap();
        let (stream, _client) = accepted(&acceptor);
        let socket = SockRef::from(&stream);
        assert!(!socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), 77 * second);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), 7 * second);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(33 * second));

        let plain = ListenOptions {
            keepalive: None,
            ..ListenOptions::default()
        };
        let acceptor = Acceptor::tcp("127.0.0.1:0", &plain).unwrap();
        let (stream, _client) = accepted(&acceptor);
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(!socket.keepalive().unwrap());
    }

    #[test]
    fn a_dual_stack_takes_both_families_and_a_port_can_be_shared() {
        let options = ListenOptions {
            dual_stack: true,
            reuse_port: true,
            ..ListenOptions::default()
        };
        // Not every machine has IPv6.
        let Ok(acceptor) = Acceptor::tcp("[::]:0", &options) else {
            return;
        };
        let LocalAddr::Tcp(at) = acceptor.local_addr().unwrap() else {
            unreachable!("it is TCP")
        };
        TcpStream::connect(("127.0.0.1", at.port())).unwrap();
        let shared = format!("[::]:{}", at.port());
        Acceptor::tcp(&shared, &options).unwrap();
        // By default an IPv6 address takes IPv6 only, whatever the system's default is.
        let acceptor = Acceptor::tcp("[::]:0", &ListenOptions::default()).unwrap();
        let LocalAddr::Tcp(at) = acceptor.local_addr().unwrap() else {
            unreachable!("it is TCP")
        };
        TcpStream::connect(("127.0.0.1", at.port())).unwrap_err();
    }

    #[test]
    fn every_error_of_accept_has_its_kind() {
        let of = |errno: Errno| AcceptError::of(&errno.into());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(of(errno), AcceptError::Shortage, "{errno:?}");
        }
        for errno in [
            Errno::CONNABORTED,
            Errno::CONNRESET,
            Errno::INTR,
            Errno::PROTO,
            Errno::PERM,
            Errno::NETDOWN,
            Errno::HOSTUNREACH,
        ] {
            assert_eq!(of(errno), AcceptError::Passing, "{errno:?}");
        }
        for errno in [Errno::BADF, Errno::INVAL, Errno::NOTSOCK] {
            assert_eq!(of(errno), AcceptError::Dead, "{errno:?}");
        }
        assert_eq!(of(Errno::WOULDBLOCK), AcceptError::Empty);
    }

    #[test]
    fn of_many_who_replace_a_stale_path_one_gets_it() {
        let path = std::env::temp_dir().join(format!("tgp-stale-{}.sock", std::process::id()));
        for _ in 0..200 {
            drop(std::os::unix::net::UnixListener::bind(&path));
            let options = ListenOptions::default();
            let bound: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| Acceptor::unix(&path, &options)))
                    .collect();
                let all = all.into_iter().map(|one| one.join().unwrap());
                all.filter_map(Result::ok).collect()
            });
            let [acceptor] = bound.as_slice() else {
                panic!("{bound:?}");
            };
            UnixStream::connect(&path).unwrap();
            acceptor.accept().unwrap();
        }
    }

    #[test]
    fn a_path_has_the_mode_that_it_was_given() {
        let path = std::env::temp_dir().join(format!("tgp-mode-{}.sock", std::process::id()));
        let options = ListenOptions {
            mode: Some(0o600),
            ..ListenOptions::default()
        };
        let acceptor = Acceptor::unix(&path, &options).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(acceptor);
        assert!(!path.exists());
    }
}
