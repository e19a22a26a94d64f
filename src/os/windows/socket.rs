//! A connected socket: non-blocking as such; who blocks waits first.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Waker;

use super::bell::Bell;
use super::registrar::Registration;
#[cfg(feature = "test-util")]
use crate::os::test_door::OfTest;
use crate::os::words::{Awaited, Cut, For, Received, Seen};
use crate::stream::{Credentials, Peer, Stream};
use crate::sync::Mutex;

#[derive(Debug)]
pub(crate) enum Socket {
    /// Elsewhere it is four bytes.
    Tcp(Box<Tcp>),
    #[cfg(feature = "test-util")]
    OfTest(Box<OfTest>),
}

#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    /// In the poller of a group, or where closed sockets linger.
    registration: Mutex<Option<Registration>>,
    waits: Mutex<Waits>,
}

/// Who waits for a socket, and may be woken.
#[derive(Debug, Default)]
struct Waits {
    /// It has been shut by us, for reading and for writing.
    shut: [bool; 2],
    /// Made when somebody waits first: one for whoever waits for input, one for output.
    bells: [Option<Arc<Bell>>; 2],
    /// Of the bell of a thread that has its own.
    waker: Option<Arc<Waker>>,
}

const INPUT: usize = 0;
const OUTPUT: usize = 1;

fn would_block<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl Tcp {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            registration: Mutex::new(None),
            waits: Mutex::default(),
        }
    }

    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut got = (&self.stream).read(buffer);
        // After the end there is nothing to wait for but a break, which is reported anyway.
        if would_block(&got)
            || matches!(got, Ok(1..) if got.as_ref().is_ok_and(|n| *n < buffer.len()))
        {
            self.emptied()?;
        }
        if would_block(&got) && self.waits.lock().shut[INPUT] {
            got = Ok(0);
        }
        got
    }

    fn emptied(&self) -> io::Result<()> {
        match &mut *self.registration.lock() {
            Some(registration) => registration.was_emptied(),
            None => Ok(()),
        }
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = (&self.stream).write(bytes);
        let short = would_block(&sent) || sent.as_ref().is_ok_and(|n| *n < bytes.len());
        if let Some(registration) = &mut *self.registration.lock() {
            registration.was_written(short)?;
        }
        sent
    }

    fn wait(&self, what: For, timeout: Duration) -> io::Result<bool> {
        let awaited = Awaited {
            input: what != For::Output,
            output: what != For::Input,
        };
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let bell = {
                let mut waits = self.waits.lock();
                let [read, write] = waits.shut;
                if (awaited.input && read) || (awaited.output && write) {
                    return Ok(true);
                }
                let side = if awaited.input { INPUT } else { OUTPUT };
                match &waits.bells[side] {
                    Some(bell) => Arc::clone(bell),
                    None => {
                        let bell = Arc::new(Bell::new()?);
                        waits.bells[side] = Some(Arc::clone(&bell));
                        bell
                    }
                }
            };
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if bell.wait(&self.stream, awaited, left)? != Seen::default() {
                return Ok(true);
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return Ok(false);
            }
        }
    }

    fn shutdown(&self, how: Shutdown) {
        let (input, output) = (how != Shutdown::Write, how != Shutdown::Read);
        if output {
            // That the peer has gone already is no error.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        let (bells, waker) = {
            let mut waits = self.waits.lock();
            waits.shut[INPUT] |= input;
            waits.shut[OUTPUT] |= output;
            (waits.bells.clone(), waits.waker.clone())
        };
        for bell in bells.iter().flatten() {
            bell.ring();
        }
        if let Some(waker) = waker {
            // As for a bell.
            let _ = waker.wake();
        }
    }
}

impl Socket {
    /// Takes a stream in that a listener of ours has accepted: non-blocking, with the listener's options.
    pub(crate) fn accepted(stream: Stream) -> Self {
        let Stream::Tcp(tcp) = stream;
        Self::Tcp(Box::new(Tcp::new(tcp)))
    }

    /// Takes a stream in, whatever state its owner left it in.
    pub(crate) fn new(stream: Stream) -> Result<Self, (Stream, io::Error)> {
        let Stream::Tcp(tcp) = stream;
        // Small replies must not wait for the acknowledgement of the last one.
        match tcp.set_nodelay(true).and(tcp.set_nonblocking(true)) {
            Ok(()) => Ok(Self::Tcp(Box::new(Tcp::new(tcp)))),
            Err(error) => Err((tcp.into(), error)),
        }
    }

    /// Blocking, as its owner expects it.
    pub(crate) fn into_stream(self) -> Stream {
        match self {
            Self::Tcp(tcp) => {
                // Fails for a socket that is of no use any more, which its owner finds out.
                let _ = tcp.stream.set_nonblocking(false);
                Stream::Tcp(tcp.stream)
            }
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.socket.into_stream(),
        }
    }

    fn tcp(&self) -> &Tcp {
        match self {
            Self::Tcp(tcp) => tcp,
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.socket.tcp(),
        }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.tcp().stream
    }

    /// Has a shutdown ring a bell that is not the socket's, which one thread waits with.
    pub(super) fn rings(&self, waker: Option<Arc<Waker>>) {
        self.tcp().waits.lock().waker = waker;
    }

    /// What there is with a socket that has been shut by us, as the system would say it elsewhere.
    pub(super) fn ended(&self, awaited: Awaited) -> Seen {
        let [input, output] = self.tcp().waits.lock().shut;
        Seen {
            input: awaited.input && input,
            output: awaited.output && output,
            hung_up: input && output,
        }
    }

    pub(super) fn registration(&self) -> &Mutex<Option<Registration>> {
        &self.tcp().registration
    }

    pub(crate) fn peer(&self) -> Peer {
        self.stream().peer_addr().map_or(Peer::Unknown, Peer::Tcp)
    }

    /// Which process has connected: of TCP nobody knows.
    #[allow(clippy::unused_self)] // as it is elsewhere
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Reads what is there, without blocking. Nothing can cut a read of TCP short, so it need not `ask`.
    pub(crate) fn read_now(&self, buffer: &mut [u8], ask: bool) -> io::Result<Received> {
        match self {
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.read_now(buffer, ask),
            Self::Tcp(tcp) => {
                let _ = ask;
                Ok(Received {
                    bytes: tcp.read_now(buffer)?,
                    cut: Cut::No,
                })
            }
        }
    }

    /// Reads, blocking until there is something or the socket is shut down.
    pub(crate) fn read_blocking(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.read_blocking(buffer),
            Self::Tcp(tcp) => loop {
                let got = tcp.read_now(buffer);
                if !would_block(&got) {
                    return got;
                }
                tcp.wait(For::Input, Duration::MAX)?;
            },
        }
    }

    /// Writes what fits, without blocking.
    pub(crate) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "test-util")]
        let bytes = &bytes[..bytes.len().min(self.most_written())];
        self.tcp().write_now(bytes)
    }

    /// Waits until the socket is ready or broken. False: the time was over first.
    pub(crate) fn wait(&self, what: For, timeout: Duration) -> io::Result<bool> {
        match self {
            #[cfg(feature = "test-util")]
            Self::OfTest(of_test) => of_test.wait(what, timeout),
            Self::Tcp(tcp) => tcp.wait(what, timeout),
        }
    }

    /// Ends reading, writing or both, and so wakes whoever waits for the socket. That the peer has
    /// gone already is no error.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        self.tcp().shutdown(how);
    }

    /// Whether something has arrived and has not been read.
    #[cfg(feature = "test-util")]
    pub(crate) fn has_input(&self) -> bool {
        self.stream().peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether nobody blocks in a read of it, as far as a test can tell.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::OfTest(of_test) => of_test.is_away(),
            Self::Tcp(_) => false,
        }
    }

    /// How much one call writes at most.
    #[cfg(feature = "test-util")]
    pub(crate) fn most_written(&self) -> usize {
        match self {
            Self::OfTest(of_test) => of_test.most_written(),
            Self::Tcp(_) => usize::MAX,
        }
    }
}

/// Which peers have gone, or will send no more; by a call for each, that does not wait. Behind input that
/// has not been read an end cannot be seen.
pub(crate) fn hung_up<'a>(sockets: impl Iterator<Item = &'a Socket>) -> Vec<bool> {
    let gone = |socket: &Socket| match socket.stream().peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    };
    sockets.map(gone).collect()
}
