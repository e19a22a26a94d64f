//! A client that sends lines and reads lines, and fails when it has waited for too long.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

use thread_group_pool::{ConnId, LocalAddr};

use super::stage::PATTERN;
use super::{PATIENCE, PIECE};

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    #[track_caller]
    pub(crate) fn connect(at: &LocalAddr) -> Self {
        let socket = match at {
            LocalAddr::Tcp(at) => TcpStream::connect(at).map(Self::Tcp),
            #[cfg(unix)]
            LocalAddr::Unix(at) => UnixStream::connect(at).map(Self::Unix),
            at => unreachable!("another kind of address: {at}"),
        };
        let socket = socket.unwrap_or_else(|error| panic!("connecting to {at}: {error}"));
        socket.be_impatient();
        socket
    }

    fn be_impatient(&self) {
        let piece = Some(PIECE);
        match self {
            Self::Tcp(tcp) => tcp
                .set_nodelay(true)
                .and(tcp.set_read_timeout(piece))
                .and(tcp.set_write_timeout(piece)),
            #[cfg(unix)]
            Self::Unix(unix) => unix
                .set_read_timeout(piece)
                .and(unix.set_write_timeout(piece)),
        }
        .expect("time-outs are set");
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        match self {
            Self::Tcp(tcp) => tcp.shutdown(how),
            #[cfg(unix)]
            Self::Unix(unix) => unix.shutdown(how),
        }
        .expect("the client's side is shut");
    }
}

#[cfg(unix)]
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }
}

/// What a read or write says whose time is over, on Unix and on Windows.
fn is_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Tries again until all patience is gone.
fn patiently(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut waited = Duration::ZERO;
    loop {
        match call() {
            Err(error) if is_over(&error) && waited < PATIENCE => {
                waited += PIECE;
            }
            Err(error) if is_over(&error) => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            result => return result,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        patiently(|| match self {
            Self::Tcp(tcp) => tcp.read(into),
            #[cfg(unix)]
            Self::Unix(unix) => unix.read(into),
        })
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        patiently(|| match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            #[cfg(unix)]
            Self::Unix(unix) => unix.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    /// By which the server knows it.
    pub(crate) id: ConnId,
    reader: BufReader<Socket>,
}

impl Client {
    /// Connects, and reads the greeting.
    #[track_caller]
    pub(crate) fn connect(at: &LocalAddr) -> Self {
        Self::over(Socket::connect(at))
    }

    /// Reads the greeting from a connected socket.
    #[track_caller]
    pub(crate) fn over(socket: Socket) -> Self {
        let mut client = Self::stranger(socket);
        let greeting = client.line();
        let id: Option<u64> = greeting
            .strip_prefix("hello ")
            .and_then(|id| id.parse().ok());
        client.id = id
            .unwrap_or_else(|| panic!("not a greeting: {greeting:?}"))
            .into();
        client
    }

    /// Connects, and expects no greeting.
    #[track_caller]
    pub(crate) fn connect_only(at: &LocalAddr) -> Self {
        Self::stranger(Socket::connect(at))
    }

    fn stranger(socket: Socket) -> Self {
        socket.be_impatient();
        Self {
            id: 0.into(),
            reader: BufReader::new(socket),
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.reader.get_ref()
    }

    #[track_caller]
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let sent = self.reader.get_mut().write_all(bytes);
        sent.unwrap_or_else(|error| panic!("sending {} bytes: {error}", bytes.len()));
    }

    /// Sends, unless the server has closed the connection.
    pub(crate) fn try_to_send(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    /// Sends a line, or several.
    #[track_caller]
    pub(crate) fn send(&mut self, lines: &str) {
        self.send_bytes(format!("{lines}\n").as_bytes());
    }

    /// Reads a line, without its end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => {
                line.pop();
                line
            }
            Ok(_) => panic!("the server closed the connection, after {line:?}"),
            Err(error) => panic!("reading a line: {error}; so far {line:?}"),
        }
    }

    /// Reads a line, without its end; `None` at the end of the connection, made in whatever way.
    pub(crate) fn line_or_end(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(_) => line.strip_suffix('\n').map(str::to_owned),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("reading a line: {error}; so far {line:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    /// A command that is answered at once, if anything is.
    #[track_caller]
    pub(crate) fn ping(&mut self) {
        assert_eq!(self.ask("ECHO ping"), "ping");
    }

    /// Everything up to the end that the server makes, which is no reset.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        if let Err(error) = self.reader.read_to_end(&mut rest) {
            let rest = String::from_utf8_lossy(&rest[rest.len().saturating_sub(200)..]);
            panic!("reading to the end: {error}, after {rest:?}");
        }
        String::from_utf8(rest).expect("the server's words are text")
    }

    /// Everything up to the end, made in whatever way, whatever it is.
    #[track_caller]
    pub(crate) fn rest_bytes(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
                panic!("reading to the end: {error}")
            }
            _ => rest,
        }
    }

    /// Reads as the socket does.
    pub(crate) fn read_raw(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }

    /// Reads the reply to `BIG n` from its byte `from` to its byte `to`.
    #[track_caller]
    pub(crate) fn read_big(&mut self, from: usize, to: usize) {
        let mut got = [0; PATTERN.len()];
        let mut at = from;
        while at < to {
            let begin = at % PATTERN.len();
            let n = (PATTERN.len() - begin).min(to - at);
            let read = self.reader.read_exact(&mut got[..n]);
            read.unwrap_or_else(|error| panic!("byte {at} of a reply: {error}"));
            assert!(
                got[..n] == PATTERN[begin..begin + n],
                "bytes {at} to {} differ",
                at + n
            );
            at += n;
        }
    }

    /// Whether not even a byte can be sent.
    pub(crate) fn is_refused_a_byte(&mut self) -> bool {
        self.reader.get_mut().write_all(b"x").is_err()
    }

    /// The same connection, for another thread to send on.
    #[track_caller]
    pub(crate) fn twin(&self) -> Self {
        let socket = match self.socket() {
            Socket::Tcp(tcp) => tcp.try_clone().map(Socket::Tcp),
            #[cfg(unix)]
            Socket::Unix(unix) => unix.try_clone().map(Socket::Unix),
        };
        Self {
            id: self.id,
            reader: BufReader::new(socket.expect("a descriptor")),
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn half_close(&self) {
        self.socket().shutdown(Shutdown::Write);
    }

    /// Hangs up by a reset: what either side has sent and not received is lost.
    ///
    /// A Unix socket has no reset of its own; what comes nearest is to close with unread bytes.
    pub(crate) fn reset(self) {
        match self.socket() {
            Socket::Tcp(tcp) => socket2::SockRef::from(tcp)
                .set_linger(Some(Duration::ZERO))
                .expect("linger is set"),
            #[cfg(unix)]
            Socket::Unix(_) => {}
        }
        drop(self);
    }
}
