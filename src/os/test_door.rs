//! A socket of the test kit: it reads and writes in small pieces, and waits by a clock that the test
//! moves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::os::clock::Clock;
use crate::os::socket::Socket;
use crate::os::words::{Cut, For, Received};
use crate::sync::Mutex;

/// What the sockets of one kit have in common.
#[derive(Debug)]
pub(crate) struct TestDoor {
    pub(crate) clock: Clock,
    /// The most that one call reads or writes.
    reads: usize,
    writes: usize,
    /// When it is over for those who wait by the clock.
    deadlines: Mutex<Vec<u64>>,
}

impl TestDoor {
    pub(crate) fn new(reads: usize, writes: usize) -> Arc<Self> {
        Arc::new(Self {
            clock: Clock::movable(),
            reads: reads.max(1),
            writes: writes.max(1),
            deadlines: Mutex::default(),
        })
    }

    /// How many wait by the clock; `None`: somebody is about to find that his time is over.
    pub(crate) fn waiting(&self) -> Option<usize> {
        let deadlines = self.deadlines.lock();
        let now = self.clock.now();
        let all_wait = deadlines.iter().all(|deadline| *deadline > now);
        all_wait.then_some(deadlines.len())
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct OfTest {
    pub(in crate::os) socket: Socket,
    door: Arc<TestDoor>,
    /// Nobody blocks in a read. Relaxed: set before what has arrived is taken, so that whoever sees that
    /// gone sees this.
    away: AtomicBool,
}

/// How often who waits looks at the clock.
const SLICE: Duration = Duration::from_millis(2);

impl OfTest {
    pub(crate) fn new(socket: Socket, door: Arc<TestDoor>) -> Self {
        Self {
            socket,
            door,
            away: AtomicBool::new(true),
        }
    }

    /// Whether nobody blocks in a read.
    pub(in crate::os) fn is_away(&self) -> bool {
        // Relaxed: see the field.
        self.away.load(Relaxed)
    }

    pub(in crate::os) fn most_written(&self) -> usize {
        self.door.writes
    }

    pub(in crate::os) fn read_now(&self, buffer: &mut [u8], ask: bool) -> io::Result<Received> {
        let got = self.socket.read_now(self.piece(buffer), ask)?;
        // One that was full may have left something.
        let cut = got.bytes == self.door.reads || got.cut == Cut::Yes;
        let cut = if cut { Cut::Yes } else { got.cut };
        Ok(Received { cut, ..got })
    }

    pub(in crate::os) fn read_blocking(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait_for_ever(For::Input)?;
        self.socket.read_blocking(self.piece(buffer))
    }

    /// Until there is something, and it has not been taken yet.
    fn wait_for_ever(&self, what: For) -> io::Result<bool> {
        // Relaxed: see the field.
        self.away.store(false, Relaxed);
        let ready = self.socket.wait(what, Duration::MAX);
        // Relaxed: see the field.
        self.away.store(true, Relaxed);
        ready
    }

    fn piece<'b>(&self, buffer: &'b mut [u8]) -> &'b mut [u8] {
        let size = buffer.len().min(self.door.reads);
        &mut buffer[..size]
    }

    pub(in crate::os) fn wait(&self, what: For, timeout: Duration) -> io::Result<bool> {
        if timeout == Duration::MAX {
            return self.wait_for_ever(what);
        }
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline = self.door.clock.now().saturating_add(timeout);
        self.door.deadlines.lock().push(deadline);
        let ready = loop {
            let over = self.door.clock.now() >= deadline;
            let slice = if over { Duration::ZERO } else { SLICE };
            match self.socket.wait(what, slice) {
                Ok(false) if !over => {}
                ready => break ready,
            }
        };
        let mut deadlines = self.door.deadlines.lock();
        if let Some(at) = deadlines.iter().position(|d| *d == deadline) {
            deadlines.swap_remove(at);
        }
        ready
    }
}
