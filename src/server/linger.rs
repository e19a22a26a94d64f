//! Where closed sockets stay until their clients have read the last words.
//!
//! A socket that is closed with input unread, or that gets more afterwards, is answered by the kernel
//! with a reset, which may overtake what was sent last. So whoever closes a connection gives its
//! socket to the one thread here: it sends what did not fit, ends the output, and discards input until
//! the client has closed as well, or the time is over. No worker is held meanwhile. If the connection spoke
//! through a transport, that comes along: what is left goes through it, and so does its word that this is
//! the end.
//!
//! **Blind** are TCP sockets whose reading side had to be shut, to wake a thread that was blocked in
//! it. Their client's end cannot be seen any more, and when their output has been ended too, the
//! kernel answers more input with that reset. So their output is ended by the close, when the client
//! has been [quiet](QUIET) for a moment. Once the server ends all are treated like that: a client
//! that does not look at its connection does not hold up the end.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::conn::Shared;
use crate::os::lookout::Lookout;
use crate::os::socket::Socket;
use crate::sync::Mutex;
use crate::transport::Upgraded;

/// How much unsent output is kept for a client: last words, and the end of a reply before them. One
/// that has not taken more than that would not come to the words in time.
const REST: usize = 64 * 1024;

/// How often blind sockets are looked at, and all of them at the end.
const LOOK: Duration = Duration::from_millis(20);

/// A client that has sent nothing for so long has stopped, as far as can be told.
const QUIET: Duration = Duration::from_millis(50);

/// Read from one socket before the others have their turn.
const GULP: usize = 64;

/// A transport may encrypt the last words here.
const STACK: usize = 1024 * 1024;

/// A socket, by whomever it is held.
#[derive(Debug)]
enum Held {
    Conn(Arc<Shared>),
    /// Of a client that got no session.
    Socket(Socket),
}

impl Held {
    fn socket(&self) -> &Socket {
        match self {
            Self::Conn(shared) => shared.socket(),
            Self::Socket(socket) => socket,
        }
    }
}

/// A socket that stays for a while.
#[derive(Debug)]
struct Guest {
    held: Held,
    /// What is still to be sent.
    rest: Vec<u8>,
    sent: usize,
    /// Through which that goes, if it does not go as it is.
    upgraded: Option<Box<Upgraded>>,
    /// All has left, and the end has been announced.
    told: bool,
    blind: bool,
    until: Instant,
    /// When it last sent something.
    heard_at: Instant,
}

/// What became of a guest that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Gone,
    Stays,
    /// It sends faster than it was read.
    Again,
}

impl Guest {
    fn new(held: Held, rest: Vec<u8>, upgraded: Option<Box<Upgraded>>, blind: bool) -> Self {
        let now = Instant::now();
        Self {
            held,
            rest,
            sent: 0,
            upgraded,
            told: false,
            blind,
            until: now,
            heard_at: now,
        }
    }

    /// Sends what is left; false: the client has gone.
    fn send(&mut self) -> bool {
        if self.told {
            return true;
        }
        while self.sent < self.rest.len() {
            let bytes = &self.rest[self.sent..];
            let sent = match &mut self.upgraded {
                Some(upgraded) => upgraded.send(bytes),
                None => self.held.socket().write_now(bytes),
            };
            match sent {
                Ok(n) => self.sent += n,
                Err(error) => return waits(&error),
            }
        }
        match self.upgraded.as_mut().map_or(Ok(true), |u| u.end()) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
        self.told = true;
        self.discard();
        if !self.blind {
            self.held.socket().shutdown(Shutdown::Write);
        }
        true
    }

    /// Drops the transport, which may have panicked, or do so now.
    fn discard(&mut self) {
        if let Some(mut upgraded) = self.upgraded.take() {
            upgraded.discard();
            if let (true, Held::Conn(shared)) = (upgraded.take_panic(), &self.held) {
                shared.panicked(1);
            }
        }
    }

    fn look(&mut self) -> Look {
        if !self.send() {
            return Look::Gone;
        }
        let unsent = !self.told;
        let mut sink = [0; 16 * 1024];
        for _ in 0..GULP {
            match self.held.socket().read_now(&mut sink, false) {
                // Only half-closed perhaps, and reading.
                Ok(got) if got.bytes == 0 && (unsent || self.blind) => return Look::Stays,
                Ok(got) if got.bytes == 0 => return Look::Gone,
                Ok(_) => self.heard_at = Instant::now(),
                Err(error) if waits(&error) => return Look::Stays,
                Err(_) => return Look::Gone,
            }
        }
        Look::Again
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.told && now.saturating_duration_since(self.heard_at) >= QUIET
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Whether the socket is all right and has only nothing to read, or no room.
fn waits(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// What its thread and those who bring sockets share.
#[derive(Debug)]
struct Desk {
    arrived: Vec<Guest>,
    /// All of them, arrived or not.
    guests: usize,
    /// How many there may be, and for how long each.
    most: usize,
    time: Duration,
    /// Closed at once, because there were too many.
    turned_away: u64,
    /// When the last ones must have gone.
    end: Option<Instant>,
}

#[derive(Debug)]
struct Lounge {
    desk: Mutex<Desk>,
    lookout: Lookout,
}

/// The place; dropped, it ends at once.
#[derive(Debug)]
pub(crate) struct Linger {
    lounge: Arc<Lounge>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Linger {
    /// Starts the thread. It sleeps while nobody lingers.
    pub(crate) fn start(most: usize, time: Duration) -> io::Result<Self> {
        let lounge = Arc::new(Lounge {
            desk: Mutex::new(Desk {
                arrived: Vec::new(),
                guests: 0,
                most,
                time,
                turned_away: 0,
                end: None,
            }),
            lookout: Lookout::new()?,
        });
        let thread = {
            let lounge = Arc::clone(&lounge);
            thread::Builder::new()
                .name("tgp-linger".into())
                .stack_size(STACK)
                .spawn(move || lounge.run())?
        };
        Ok(Self {
            lounge,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Other limits, for those that come.
    pub(crate) fn set(&self, most: usize, time: Duration) {
        let mut desk = self.lounge.desk.lock();
        desk.most = most;
        desk.time = time;
    }

    /// Closes the socket of a connection, of whose output `rest` has not left: as it is, or through the
    /// transport, if it has one.
    pub(crate) fn close(
        &self,
        shared: &Arc<Shared>,
        rest: Vec<u8>,
        upgraded: Option<Box<Upgraded>>,
    ) {
        let blind = shared.is_deaf() && matches!(shared.socket(), Socket::Tcp(_));
        let held = Held::Conn(Arc::clone(shared));
        self.lounge.take(Guest::new(held, rest, upgraded, blind));
    }

    /// Closes the socket of a client that got no session.
    pub(crate) fn close_socket(&self, socket: Socket, rest: Vec<u8>) {
        let held = Held::Socket(socket);
        self.lounge.take(Guest::new(held, rest, None, false));
    }

    /// How many linger, and how many were closed at once because so many did.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let desk = self.lounge.desk.lock();
        (desk.guests, desk.turned_away)
    }

    /// Waits until all have gone, as soon as they are quiet, and ends the thread. Sockets that come
    /// later are closed at once.
    pub(crate) fn end(&self, by: Instant) {
        self.lounge.desk.lock().end = Some(by);
        self.lounge.lookout.wake();
        if let Some(thread) = self.thread.lock().take() {
            // An error is a panic of ours, which the panic hook has reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}

impl Lounge {
    fn take(&self, mut guest: Guest) {
        if guest.rest.len() > REST {
            guest.rest = Vec::new();
            // Nor would the transport's word that this was all be true.
            guest.discard();
        }
        // Most clients have closed already, or are about to.
        if guest.look() == Look::Gone {
            return;
        }
        let mut desk = self.desk.lock();
        if desk.guests >= desk.most || desk.end.is_some() {
            desk.turned_away += u64::from(desk.end.is_none());
            // Closed here, after the lock.
            drop(desk);
            return drop(guest);
        }
        guest.until = guest.heard_at + desk.time;
        desk.guests += 1;
        desk.arrived.push(guest);
        let first = desk.arrived.len() == 1;
        drop(desk);
        if first {
            self.lookout.wake();
        }
    }

    /// The thread's life.
    fn run(&self) {
        let mut room = Room::default();
        let mut ready = Vec::new();
        loop {
            let end = {
                let mut desk = self.desk.lock();
                let arrived = std::mem::take(&mut desk.arrived);
                let end = desk.end;
                drop(desk);
                arrived
                    .into_iter()
                    .for_each(|guest| room.enter(guest, self));
                end
            };
            let now = Instant::now();
            let mut gone = room.look(&mut ready, self);
            gone += room.sweep(now, end, self);
            let mut desk = self.desk.lock();
            desk.guests -= gone;
            if end.is_some() && desk.guests == 0 {
                return;
            }
            drop(desk);
            self.lookout
                .wait(room.timeout(now, end.is_some()), &mut ready);
        }
    }
}

/// Those that have come in; the thread's own.
#[derive(Debug, Default)]
struct Room {
    guests: HashMap<usize, Guest>,
    next: usize,
    /// Whose time is over next; some have gone before.
    order: VecDeque<(Instant, usize)>,
    blind: Vec<usize>,
    /// To be looked at once more although nothing new will be reported.
    again: Vec<usize>,
}

impl Room {
    fn enter(&mut self, guest: Guest, lounge: &Lounge) {
        let token = self.next;
        self.next += 1;
        // Without a place in the poller it is looked at now and then, like a blind one.
        if guest.blind || lounge.lookout.add(guest.held.socket(), token).is_err() {
            self.blind.push(token);
        }
        self.order.push_back((guest.until, token));
        self.guests.insert(token, guest);
    }

    fn leave(&mut self, token: usize, lounge: &Lounge) -> usize {
        let Some(guest) = self.guests.remove(&token) else {
            return 0;
        };
        lounge.lookout.remove(guest.held.socket());
        // Whoever looks at the list of connections just now may keep it open.
        guest.held.socket().shutdown(Shutdown::Write);
        1
    }

    /// Looks at those that are ready. Returns how many have gone.
    fn look(&mut self, ready: &mut Vec<usize>, lounge: &Lounge) -> usize {
        ready.append(&mut self.again);
        let mut gone = 0;
        for token in ready.drain(..) {
            match self.guests.get_mut(&token).map(Guest::look) {
                Some(Look::Gone) => gone += self.leave(token, lounge),
                Some(Look::Again) => self.again.push(token),
                Some(Look::Stays) | None => {}
            }
        }
        gone
    }

    /// Sends those away whose time is over, and the quiet ones of those that are watched for it.
    fn sweep(&mut self, now: Instant, end: Option<Instant>, lounge: &Lounge) -> usize {
        let mut gone = 0;
        let over = end.is_some_and(|end| end <= now);
        while let Some((until, token)) = self.order.front().copied()
            && (over || until <= now || !self.guests.contains_key(&token))
        {
            self.order.pop_front();
            gone += self.leave(token, lounge);
        }
        let watched: Vec<usize> = match end {
            Some(_) => self.guests.keys().copied().collect(),
            None => self.blind.clone(),
        };
        for token in watched {
            let leaves = self
                .guests
                .get_mut(&token)
                .is_some_and(|guest| guest.look() == Look::Gone || guest.is_quiet(now));
            if leaves {
                gone += self.leave(token, lounge);
            }
        }
        let guests = &self.guests;
        self.blind.retain(|token| guests.contains_key(token));
        gone
    }

    fn timeout(&self, now: Instant, ending: bool) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self
            .order
            .front()
            .map(|(until, _)| until.saturating_duration_since(now));
        let watched = !self.blind.is_empty() || (ending && !self.guests.is_empty());
        due.into_iter().chain(watched.then_some(LOOK)).min()
    }
}
