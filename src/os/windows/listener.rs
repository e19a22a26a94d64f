//! Listening sockets: every option stated, none inherited.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use mio::{Interest, Token};
use socket2::{Domain, Protocol, SockRef, Socket as Socket2, TcpKeepalive, Type};

use super::bell::{Bell, WAKER};
use crate::os::words::unresolved;
use crate::stream::{Keepalive, ListenOptions, Listener, LocalAddr, Stream};
use crate::sync::Mutex;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    options: ListenOptions,
    /// Its second handle, since somebody waits for it.
    source: Mutex<Option<mio::net::TcpListener>>,
}

fn unsupported<T>(what: &str) -> io::Result<T> {
    let message = format!("{what} on Windows");
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
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
        if options.reuse_port {
            return unsupported("a port cannot be shared");
        }
        let socket = Socket2::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(!options.dual_stack)?;
        }
        // Not `SO_REUSEADDR`, which lets anybody take a port that somebody listens on. What it is for
        // elsewhere is so anyway here.
        socket.bind(&address.into())?;
        socket.listen(options.backlog)?;
        Self::of(socket.into(), options)
    }

    /// There are none that std knows of.
    pub(crate) fn unix(_: &Path, _: &ListenOptions) -> io::Result<Self> {
        unsupported("there are no Unix sockets")
    }

    /// Takes a listener that somebody else has made.
    pub(crate) fn inherited(listener: Listener, options: &ListenOptions) -> io::Result<Self> {
        let Listener::Tcp(tcp) = listener;
        Self::of(tcp, options)
    }

    fn of(listener: TcpListener, options: &ListenOptions) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            options: options.clone(),
            source: Mutex::new(None),
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<LocalAddr> {
        self.listener.local_addr().map(LocalAddr::Tcp)
    }

    /// Takes the next connection, without blocking; nor does the connection itself.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let (tcp, _) = self.listener.accept()?;
        tcp.set_nonblocking(true)?;
        // Fails for a client that has gone again, which a read finds out.
        let _ = tune(SockRef::from(&tcp), &self.options);
        Ok(tcp.into())
    }

    /// The listener, for a successor.
    pub(crate) fn hand_over(self) -> Listener {
        Listener::Tcp(self.listener)
    }
}

/// Sets a TCP socket's options.
fn tune(socket: SockRef<'_>, options: &ListenOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.no_delay)?;
    match options.keepalive {
        None => socket.set_keepalive(false),
        Some(Keepalive {
            idle,
            interval,
            probes,
        }) => {
            let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
            // Windows before version 1703 of its tenth, and Wine, know of no number.
            socket
                .set_tcp_keepalive(&keepalive.clone().with_retries(probes))
                .or_else(|_| socket.set_tcp_keepalive(&keepalive))
        }
    }
}

/// What an error of `accept` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptError {
    /// Nobody is there.
    Empty,
    /// It is about one connection, which had gone again or is broken: on to the next.
    Passing,
    /// The system has no handle or memory for a connection: the same would come again at once.
    Shortage,
    /// The listener is of no use any more.
    Dead,
}

/// Winsock's numbers, and the system's for want of memory, of the page file, of its own resources.
const EMPTY: i32 = 10_035;
const SHORT: [i32; 7] = [10_024, 10_055, 8, 14, 1450, 1455, 4];
const DEAD: [i32; 7] = [6, 10_009, 10_014, 10_022, 10_038, 10_045, 10_093];

impl AcceptError {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(EMPTY) => Self::Empty,
            Some(code) if SHORT.contains(&code) => Self::Shortage,
            Some(code) if DEAD.contains(&code) => Self::Dead,
            // Aborted, interrupted, or an error that the network had for this connection.
            Some(_) => Self::Passing,
            None => Self::Dead,
        }
    }
}

/// What there is at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Nobody,
    Somebody,
    /// It is broken: should nobody be there either, it is of no use any more.
    Shut,
}

/// Waits until one of `listeners` has a connection, the bell is rung or the time is over, and says what
/// there is at each. Those that are not waited for this time may be taken for another: then nobody is
/// found there.
pub(crate) fn wait(
    listeners: &[&Acceptor],
    bell: &Bell,
    timeout: Option<Duration>,
) -> io::Result<Vec<At>> {
    let mut seen = vec![At::Nobody; listeners.len()];
    bell.listen(|ear| {
        for (index, acceptor) in listeners.iter().enumerate() {
            let (registry, token) = (ear.poll.registry(), Token(index));
            let mut place = acceptor.source.lock();
            match &mut *place {
                Some(source) => registry.reregister(source, token, Interest::READABLE)?,
                None => {
                    let own = acceptor.listener.try_clone()?;
                    let mut source = mio::net::TcpListener::from_std(own);
                    registry.register(&mut source, token, Interest::READABLE)?;
                    *place = Some(source);
                }
            }
        }
        match ear.poll.poll(&mut ear.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in ear.events.iter().filter(|event| event.token() != WAKER) {
            if let Some(at) = seen.get_mut(event.token().0) {
                *at = match event.is_error() || event.is_write_closed() {
                    true => At::Shut,
                    false => At::Somebody,
                };
            }
        }
        Ok(())
    })
    .map(|()| seen)
}
