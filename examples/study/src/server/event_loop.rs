//! One thread, one epoll instance, no scheduler: what the statements and the system calls cost by
//! themselves. Whatever a scheduler adds shows against this. It uses nothing of the library.
//!
//! A connection is registered once, edge-triggered. Its event is answered by reading into a buffer
//! that all share, running the statements straight out of it and sending the replies from another
//! that all share: two system calls a statement and `epoll_wait` for a batch. A connection owns
//! memory only while half a statement or half a reply is under way. Then, and only then, its
//! registration changes: who does not take its replies is asked for write readiness and read no
//! further, and re-registering for reading makes the kernel look again, so nothing has to be
//! remembered.
//!
//! A read that comes back short has emptied the socket; the end of the stream may hide behind it,
//! and is flagged in the event. (Descriptors passed along and urgent data can cut a read short too.
//! These clients send neither; the library has to care, this loop does not.) Statements run here,
//! so one that blocks stops everybody: right for a floor, and why there are schedulers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};
use socket2::Socket;
use sqlish::{Engine, Flow, Session};

use super::answer;

/// Events taken from the kernel at once.
const BATCH: usize = 512;

/// One `recv`'s worth.
const INBOX: usize = 64 * 1024;

/// The listening socket's token; connections have their slot's number.
const LISTENER: u64 = u64::MAX;

/// The token of what ends the loop.
const END: u64 = u64::MAX - 1;

const READING: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
const WRITING: EventFlags = EventFlags::OUT.union(EventFlags::ET);
const OVER: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);

/// A loop that is ready to run.
pub(super) fn new(listener: Socket, engine: Arc<Engine>) -> io::Result<EventLoop> {
    listener.set_nonblocking(true)?;
    let listener = OwnedFd::from(listener);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // Level-triggered: clients left in the backlog, for want of descriptors, are reported again.
    epoll::add(
        &epoll,
        &listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    Ok(EventLoop {
        epoll,
        listener,
        engine,
        connections: Vec::new(),
        free: Vec::new(),
        opened: 0,
        inbox: vec![0; INBOX].into_boxed_slice(),
        out: Vec::with_capacity(INBOX),
    })
}

pub(super) struct EventLoop {
    epoll: OwnedFd,
    listener: OwnedFd,
    engine: Arc<Engine>,
    /// By slot.
    connections: Vec<Option<Connection>>,
    /// Slots to be used again.
    free: Vec<usize>,
    opened: u64,
    /// Shared: what was just received, for as long as it takes to run it.
    inbox: Box<[u8]>,
    /// Shared: replies, for as long as it takes to send them.
    out: Vec<u8>,
}

struct Connection {
    socket: OwnedFd,
    session: Session,
    /// The beginning of a statement whose end has not come.
    half: Vec<u8>,
    /// Replies that the socket did not take. While there are any, nothing is read.
    unsent: Vec<u8>,
    /// Closes once `unsent` is out.
    quitting: bool,
}

/// The connection is over, for whatever reason; it is dropped, and with it its socket.
struct Closed;

impl From<Errno> for Closed {
    fn from(_: Errno) -> Closed {
        Closed
    }
}

impl From<io::Error> for Closed {
    fn from(_: io::Error) -> Closed {
        Closed
    }
}

impl EventLoop {
    /// Serves until something happens to `end`: input that nobody sends, or its end. On the thread
    /// that calls, which is the only one of the process: then the kernel need not count who holds a
    /// descriptor during a call.
    pub(super) fn run_until(&mut self, end: impl AsFd) -> io::Result<()> {
        epoll::add(&self.epoll, end, EventData::new_u64(END), EventFlags::IN)?;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(BATCH);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    END => return Ok(()),
                    slot => self.on_ready(slot as usize, event.flags),
                }
            }
        }
    }

    /// Takes in whoever knocks.
    fn accept(&mut self) {
        loop {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        // Fails on a Unix socket, which has no delay to be switched off.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        self.opened += 1;
        let session = Session::new(&self.engine, self.opened);
        let mut connection = Connection {
            socket,
            session,
            half: Vec::new(),
            unsent: Vec::new(),
            quitting: false,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let token = EventData::new_u64(slot as u64);
        let greeted = epoll::add(&self.epoll, &connection.socket, token, READING)
            .map_err(Closed::from)
            .and_then(|()| Ok(sqlish::greeting(self.opened, &mut self.out)?))
            .and_then(|()| connection.send_all(&mut self.out, &self.epoll, slot));
        match greeted {
            Ok(()) => self.connections[slot] = Some(connection),
            Err(Closed) => self.free.push(slot),
        }
    }

    fn on_ready(&mut self, slot: usize, flags: EventFlags) {
        let EventLoop {
            epoll,
            connections,
            inbox,
            out,
            ..
        } = self;
        // A slot is given away only by `accept`, and an event that is still in the batch for its
        // former owner then merely makes the new one look at its socket.
        let Some(connection) = connections.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let result = if connection.unsent.is_empty() {
            connection.on_readable(inbox, out, flags.intersects(OVER), epoll, slot)
        } else {
            connection.on_writable(epoll, slot)
        };
        if let Err(Closed) = result {
            out.clear();
            connections[slot] = None;
            self.free.push(slot);
        }
    }
}

impl Connection {
    /// Reads until the socket is empty, and to the end of the stream if that is near.
    fn on_readable(
        &mut self,
        inbox: &mut [u8],
        out: &mut Vec<u8>,
        to_the_end: bool,
        epoll: &OwnedFd,
        slot: usize,
    ) -> Result<(), Closed> {
        loop {
            let n = match recv(&self.socket, &mut inbox[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Closed),
                Ok((n, _)) => n,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.run(&inbox[..n], out)?;
            self.send_all(out, epoll, slot)?;
            if !self.unsent.is_empty() || (n < inbox.len() && !to_the_end) {
                return Ok(());
            }
        }
    }

    fn run(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Closed> {
        // Nearly always nothing is left over from before and nothing will be left over for later.
        let flow = if self.half.is_empty() {
            let (used, flow) = answer(&mut self.session, input, out)?;
            self.half.extend_from_slice(&input[used..]);
            flow
        } else {
            self.half.extend_from_slice(input);
            let (used, flow) = answer(&mut self.session, &self.half, out)?;
            self.half.drain(..used);
            if self.half.is_empty() {
                self.half = Vec::new();
            }
            flow
        };
        self.quitting = matches!(flow, Flow::Quit);
        Ok(())
    }

    /// Sends what is in `out` and leaves it empty; what the socket does not take is kept for when
    /// it does.
    fn send_all(&mut self, out: &mut Vec<u8>, epoll: &OwnedFd, slot: usize) -> Result<(), Closed> {
        let sent = send_some(&self.socket, out)?;
        if sent < out.len() {
            self.unsent.extend_from_slice(&out[sent..]);
            epoll::modify(
                epoll,
                &self.socket,
                EventData::new_u64(slot as u64),
                WRITING,
            )?;
        }
        out.clear();
        if self.quitting && self.unsent.is_empty() {
            Err(Closed)
        } else {
            Ok(())
        }
    }

    fn on_writable(&mut self, epoll: &OwnedFd, slot: usize) -> Result<(), Closed> {
        let sent = send_some(&self.socket, &self.unsent)?;
        self.unsent.drain(..sent);
        if !self.unsent.is_empty() {
            return Ok(());
        }
        if self.quitting {
            return Err(Closed);
        }
        self.unsent = Vec::new();
        epoll::modify(
            epoll,
            &self.socket,
            EventData::new_u64(slot as u64),
            READING,
        )?;
        Ok(())
    }
}

/// Sends until all is out or the socket is full.
fn send_some(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Closed> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(
            socket,
            &bytes[sent..],
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(n) => sent += n,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}
