//! What may stand between a connection and its socket: TLS, or whatever else makes plaintext of the bytes
//! that come, and other bytes of the plaintext that goes.
//!
//! The library knows the contract ([`Transport`]) and no implementation. A transport never blocks: its
//! socket ([`Raw`]) says `WouldBlock`, it passes that on, and the connection above it waits, be it by
//! going back to the poller or on the spot. So a peer that falls silent in the middle of a handshake, or
//! of a record, holds no worker.
//!
//! The trap is input that a transport has taken off the socket and not handed out, for which no event will
//! come. [`Raw`] notes that something has been taken, whatever the transport was doing then, and the
//! connection does not rest before a read of the transport has said that there is no more.

use std::any::Any;
use std::fmt;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::os::socket::Socket;

/// What a connection speaks through, after [`Conn::upgrade`](crate::Conn::upgrade).
///
/// `read` and `write` are those of the plaintext. **None of its methods waits**: they do what they can with
/// what [`Raw`] gives and takes, and pass on its `WouldBlock`. They are called by one thread at a time,
/// though not always the same, and may panic as the callbacks of a [`Handler`](crate::Handler) may. When the
/// connection has closed, `write`, `flush` and `close` may still be called for a while, for the last words to a
/// client that takes them slowly; then it is dropped.
///
/// | method | is called | `Ok` | `WouldBlock` |
/// |---|---|---|---|
/// | `handshake` | before all others, at once and when something has come, until it is done | `true`: done | as `Ok(false)` |
/// | `read` | until it says `WouldBlock` | plaintext; 0: the peer has ended its side properly | neither it nor the socket has any |
/// | `write` | with plaintext | how much of it has been taken, at least a byte | no more now; what it has kept has not left |
/// | `flush` | after each of the others | all has left that it has kept | not all |
/// | `close` | at the end, once, when all that was written has left | told the peer that this is the end | what it has kept has not left |
///
/// An end of the socket that the peer has not announced is an error of `read`, of the kind `UnexpectedEof`:
/// somebody in between may have cut the input short, and the handler does not see it as an end. The
/// connection closes with [`CloseReason::Truncated`](crate::CloseReason). Other errors close it with
/// [`CloseReason::Transport`](crate::CloseReason), after a `flush` for what the peer is to know.
///
/// What `write` keeps should be no more than a few records: memory of its own does not count for
/// [`output_bound`](crate::Limits::output_bound). A `write` or `flush` that reads from [`Raw`] may do so; what
/// it finds is not forgotten. One that must read before it can write, as a renegotiation would have it, is
/// not provided for: once the handshake is done, writing waits for nothing but the socket.
///
/// `examples/tls_echo/transport.rs` is one for rustls.
pub trait Transport: Read + Write + Any + Send {
    /// Goes on with the handshake, as far as it goes with what has come. `Ok(false)`: it needs more, or
    /// has more to send than the socket takes.
    ///
    /// # Errors
    /// It has failed.
    fn handshake(&mut self) -> io::Result<bool>;

    /// Tells the peer that nothing more will be sent: TLS's `close_notify`. What the socket does not take of it
    /// is kept for `flush`. Not called if something that was written has not left: that would be no proper end.
    ///
    /// # Errors
    /// They are ignored: the peer may have gone.
    fn close(&mut self) -> io::Result<()>;

    /// How many bytes of memory it has for what has come and has not been read: half a record, half a
    /// handshake. They count for [`input_budget`](crate::Limits::input_budget), with the rest of the
    /// connection's input. Called when the connection has had its turn, so it should be quick. The default, 0,
    /// is for those that keep no more than a few records, as rustls does.
    fn input_bytes(&self) -> usize {
        0
    }
}

/// A socket that a transport reads from and writes to. It never blocks: the error is `WouldBlock` then.
pub struct Raw {
    wire: Arc<dyn Wire>,
    /// Came before there was a transport, and is for it.
    ahead: io::Cursor<Vec<u8>>,
    flow: Arc<Flow>,
}

/// What has gone through a [`Raw`]. Relaxed, all of it: the transport is with one thread at a time, and whoever
/// hands it on synchronises.
#[derive(Debug, Default)]
struct Flow {
    /// Something has been taken since a read of the transport said that there is no more.
    taken: AtomicBool,
    /// The socket was seen empty, and has not been waited for since.
    dry: AtomicBool,
    /// Bytes that have left.
    sent: AtomicU64,
    /// The memory of what is ahead.
    ahead: AtomicUsize,
}

/// Who has a socket.
pub(crate) trait Wire: Send + Sync {
    fn wire(&self) -> &Socket;
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

impl Read for Raw {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let ahead = self.ahead.get_ref().len();
        if ahead > 0 {
            let n = self.ahead.read(into)?;
            if self.ahead.position() == ahead as u64 {
                self.ahead = io::Cursor::default();
                // Relaxed: see there.
                self.flow.ahead.store(0, Relaxed);
            }
            return Ok(n);
        }
        let got = loop {
            match self.wire.wire().read_now(into, false) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        // Relaxed: see there.
        let dry = got.as_ref().err().is_some_and(would_block);
        self.flow.dry.store(dry, Relaxed);
        let got = got?;
        // The end too: what the transport makes of it is to be seen.
        self.flow.taken.store(true, Relaxed);
        Ok(got.bytes)
    }
}

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.wire.wire().write_now(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => {
                    let n = *sent.as_ref().unwrap_or(&0) as u64;
                    // Relaxed: see there.
                    self.flow.sent.fetch_add(n, Relaxed);
                    return sent;
                }
            }
        }
    }

    /// Nothing is kept here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection's transport, and what is known of it.
pub(crate) struct Upgraded {
    /// `None`: it has panicked, or the connection is over.
    transport: Option<Box<dyn Transport>>,
    /// The handshake is done.
    shaken: bool,
    /// It has kept something for the peer that the socket did not take.
    owes: bool,
    /// It has said that this is the end.
    closed: bool,
    flow: Arc<Flow>,
    panicked: bool,
    /// Why reading has failed: it does so again, whatever the transport would say, for who saw it first may have
    /// had no use for it.
    failed: Option<io::ErrorKind>,
}

impl fmt::Debug for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgraded")
            .field("shaken", &self.shaken)
            .field("owes", &self.owes)
            .finish_non_exhaustive()
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Upgraded {
    /// `ahead`: bytes that came before, and are for the transport.
    pub(crate) fn new<T: Transport>(
        wire: Arc<dyn Wire>,
        ahead: Vec<u8>,
        make: impl FnOnce(Raw) -> io::Result<T>,
    ) -> io::Result<Self> {
        // Nobody has seen the socket empty, and there may be something ahead.
        let flow = Arc::new(Flow {
            taken: AtomicBool::new(true),
            ahead: AtomicUsize::new(ahead.capacity()),
            ..Flow::default()
        });
        let raw = Raw {
            wire,
            ahead: io::Cursor::new(ahead),
            flow: Arc::clone(&flow),
        };
        Ok(Self {
            transport: Some(Box::new(make(raw)?)),
            shaken: false,
            owes: false,
            closed: false,
            flow,
            panicked: false,
            failed: None,
        })
    }

    /// Calls the transport; what it panics with ends there, and it with it.
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn Transport) -> io::Result<T>) -> io::Result<T> {
        let Some(transport) = self.transport.as_deref_mut() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        match catch_unwind(AssertUnwindSafe(|| call(transport))) {
            Ok(result) => result,
            Err(payload) => {
                std::mem::forget(payload);
                self.panicked = true;
                self.discard();
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// Drops the transport, whose destructor may panic as well.
    pub(crate) fn discard(&mut self) {
        let transport = self.transport.take();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(transport))) {
            std::mem::forget(payload);
            self.panicked = true;
        }
    }

    /// Whether it has panicked; says so once.
    pub(crate) fn take_panic(&mut self) -> bool {
        std::mem::take(&mut self.panicked)
    }

    /// The transport itself, if it is of that type.
    pub(crate) fn downcast<T: Transport>(&mut self) -> Option<&mut T> {
        let transport: &mut dyn Any = self.transport.as_deref_mut()?;
        transport.downcast_mut()
    }

    /// Whether there may be input that no event will announce.
    pub(crate) fn may_hold_input(&self) -> bool {
        // Relaxed: see the field.
        self.flow.taken.load(Relaxed)
    }

    /// Whether the socket has been found empty; says so once. If not, waiting for input that is there already
    /// is of no use: a transport that `owes` may take none.
    pub(crate) fn take_dry(&self) -> bool {
        // Relaxed: see the field.
        self.flow.dry.swap(false, Relaxed)
    }

    /// Bytes that have left, as they are on the wire.
    pub(crate) fn sent(&self) -> u64 {
        // Relaxed: see the field.
        self.flow.sent.load(Relaxed)
    }

    /// The memory of input in it and before it.
    pub(crate) fn input_bytes(&mut self) -> usize {
        let kept = self.call(|transport| Ok(transport.input_bytes()));
        // Relaxed: see the field.
        self.flow.ahead.load(Relaxed) + kept.unwrap_or(0)
    }

    /// Whether it has something that the socket did not take.
    pub(crate) fn owes(&self) -> bool {
        self.owes
    }

    /// Whether plaintext may be written. Until then it waits with the connection.
    pub(crate) fn is_shaken(&self) -> bool {
        self.shaken
    }

    /// Goes on with the handshake. What it has found behind that waits to be received.
    pub(crate) fn shake(&mut self) -> io::Result<bool> {
        if !self.shaken {
            let shaken = loop {
                match self.call(|transport| transport.handshake()) {
                    Err(error) if would_block(&error) => break Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    shaken => break shaken,
                }
            };
            // Its part of the handshake, or why there is none.
            let left = self.flush();
            self.shaken = shaken?;
            left?;
        }
        Ok(self.shaken)
    }

    /// Reads plaintext. `WouldBlock`: there is none, neither here nor at the socket.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(kind) = self.failed {
            return Err(kind.into());
        }
        let got = match self.shake() {
            Ok(true) => self.receive_shaken(into),
            Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error),
        };
        match &got {
            // One that cannot send may not have looked for more.
            Err(error) if would_block(error) => {
                if !self.owes {
                    // Relaxed: see the field.
                    self.flow.taken.store(false, Relaxed);
                }
            }
            Err(error) => self.failed = Some(error.kind()),
            Ok(_) => {}
        }
        got
    }

    fn receive_shaken(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = loop {
            match self.call(|transport| transport.read(into)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        // An answer of its own, or why it has failed. That this fails is seen when something is written.
        let _ = self.flush();
        got
    }

    /// Takes some plaintext. `WouldBlock`: no more now.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.call(|transport| transport.write(bytes)) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if would_block(&error) => {
                self.owes = true;
                Err(error)
            }
            sent => sent,
        }
    }

    /// Sends what it has kept. False: the socket did not take all of it.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let left = loop {
            match self.call(Write::flush) {
                Ok(()) => break true,
                Err(error) if would_block(&error) => break false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.owes = false;
                    return Err(error);
                }
            }
        };
        self.owes = !left;
        Ok(left)
    }

    /// The end, as far as the socket takes it: what has been kept leaves, and then the word that this was all.
    /// False: some of it is left.
    pub(crate) fn end(&mut self) -> io::Result<bool> {
        if !self.flush()? {
            return Ok(false);
        }
        if self.shaken && !std::mem::replace(&mut self.closed, true) {
            let _ = self.call(Transport::close);
            return self.flush();
        }
        Ok(true)
    }
}
