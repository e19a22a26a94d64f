//! What wakes a thread that waits for a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};

use super::socket::Socket;
use crate::os::words::{Awaited, Seen};

/// A bell that stays rung until it is heard: an eventfd, or elsewhere a pipe.
#[derive(Debug)]
pub(crate) struct Bell {
    end: OwnedFd,
    /// A pipe's writing end.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    ringing_end: OwnedFd,
}

impl Bell {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { end })
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn new() -> io::Result<Self> {
        let (end, ringing_end) = std::os::unix::net::UnixStream::pair()?;
        end.set_nonblocking(true)?;
        ringing_end.set_nonblocking(true)?;
        Ok(Self {
            end: end.into(),
            ringing_end: ringing_end.into(),
        })
    }

    pub(crate) fn ring(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let end = &self.end;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let end = &self.ringing_end;
        // Full means that it has been rung often enough.
        let _ = write(end, &1_u64.to_ne_bytes());
    }

    pub(crate) fn hear(&self) {
        let mut rings = [0; 64];
        // Nothing means that it was not rung.
        let _ = read(&self.end, &mut rings);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Waits until there is something with the socket, `bell` is rung or the time is over.
pub(crate) fn wait(
    socket: &Socket,
    awaited: Awaited,
    bell: Option<&Bell>,
    timeout: Option<Duration>,
) -> io::Result<Seen> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, awaited.input);
    flags.set(PollFlags::OUT, awaited.output);
    let mut fds = vec![PollFd::new(socket, flags)];
    fds.extend(bell.map(|bell| PollFd::new(&bell.end, PollFlags::IN)));
    // No time-out: further away than the clock reaches.
    let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(Seen::default()),
        Err(error) => return Err(error.into()),
    }
    let seen = fds[0].revents();
    if let Some(bell) = bell
        && fds.last().is_some_and(|fd| !fd.revents().is_empty())
    {
        bell.hear();
    }
    Ok(Seen {
        input: seen.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
        output: seen.contains(PollFlags::OUT),
        hung_up: seen.intersects(PollFlags::HUP | PollFlags::ERR),
    })
}
