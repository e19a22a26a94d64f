//! Linux: epoll, `/proc`, rustix.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};
use crate::process::Size;
use crate::wires::{BACKLOG_PAUSE, BATCH, Endpoint, open_tcp};

// ---- sockets ----

/// A client's end.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// A full backlog is waited out until `deadline`.
pub(crate) fn open(endpoint: &Endpoint, deadline: Instant) -> io::Result<Socket> {
    match endpoint {
        Endpoint::Unix(path) => open_unix(path, deadline),
        Endpoint::Tcp(address) => open_tcp(*address, deadline).map(|tcp| Socket(tcp.into())),
    }
}

/// Non-blocking from the start: a blocking connect to a full Unix backlog cannot be given a
/// deadline.
fn open_unix(path: &Path, deadline: Instant) -> io::Result<Socket> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(Socket(socket)),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                thread::sleep(BACKLOG_PAUSE)
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Socket {
    /// What is there now.
    pub(crate) fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.0, into, RecvFlags::DONTWAIT)?.0)
    }

    /// What fits now.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(send(&self.0, bytes, flags)?)
    }

    /// Waits for something to receive, for so long at most.
    pub(crate) fn wait(&self, time: Duration) -> io::Result<()> {
        let mut ends = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut ends, Some(&timespec(time))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Sockets that are waited for together. Each is registered once, edge-triggered, and never touched
/// again.
pub(crate) struct Watch {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Watch> {
        Ok(Watch {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(BATCH),
        })
    }

    pub(crate) fn add(&self, socket: &mut Socket, index: usize) -> io::Result<()> {
        let interest = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(index as u64);
        Ok(epoll::add(&self.epoll, &socket.0, data, interest)?)
    }

    /// Waits until some are ready, for so long at most, and returns how many.
    pub(crate) fn wait(&mut self, time: Duration) -> io::Result<usize> {
        self.events.clear();
        let room = spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, Some(&timespec(time))) {
            Ok(_) | Err(Errno::INTR) => Ok(self.events.len()),
            Err(error) => Err(error.into()),
        }
    }

    /// The `at`-th of them: its index, and whether it must be read until nothing comes. Where not, a
    /// read that comes back short has emptied it.
    pub(crate) fn ready(&self, at: usize) -> (usize, bool) {
        let over = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let event = &self.events[at];
        let (data, flags) = (event.data, event.flags);
        (data.u64() as usize, flags.intersects(over))
    }
}

/// Two that are connected.
pub(crate) fn pair() -> io::Result<(UnixStream, UnixStream)> {
    UnixStream::pair()
}

/// A read of it waits for so long at most.
pub(crate) fn connect_unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

// ---- files ----

/// Past the page cache, if `direct`.
pub(crate) fn open_to_write(path: &Path, direct: bool) -> io::Result<File> {
    let flags = match direct {
        false => OFlags::empty(),
        true => OFlags::DIRECT,
    };
    OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

pub(crate) fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

// ---- affinity ----

/// The kernel's interface has room for this many.
pub const CPUS_MAX: usize = CpuSet::MAX_CPU;

/// The CPUs this process may run on, ascending.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CPUS_MAX).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Binds the calling thread, and every thread and process that it starts from now on, to `cpus`, all
/// below [`CPUS_MAX`].
pub(crate) fn run_on(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

// ---- what the kernel knows of a process ----

/// The size of process `pid` now.
pub(crate) fn size(pid: u32) -> io::Result<Size> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Size {
        threads: status_field(&status, "Threads:"),
        rss_kib: status_field(&status, "VmRSS:"),
    })
}

fn status_field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// CPU time of all threads of `pid`, past ones included, in steps of a clock tick (10 ms nearly
/// everywhere).
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = stat_ticks(&stat).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// utime + stime, the 14th and 15th field; the second is a name in parentheses that may hold
/// anything.
fn stat_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// How long `cpus` have been busy in all, for whomever, since the machine was started.
pub(crate) fn busy_time(cpus: &[usize]) -> io::Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let ticks: u64 = cpus.iter().map(|cpu| busy_ticks(&stat, *cpu)).sum();
    Ok(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// user, nice, system, then idle and waiting for a disk, which are no work, then interrupts of both
/// kinds and what the host took away. Guests, the last two, are part of user.
fn busy_ticks(stat: &str, cpu: usize) -> u64 {
    let name = format!("cpu{cpu} ");
    let Some(fields) = stat.lines().find_map(|line| line.strip_prefix(&name)) else {
        return 0;
    };
    let ticks = fields
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0));
    let busy = ticks
        .take(8)
        .enumerate()
        .filter(|(at, _)| !matches!(at, 3 | 4));
    busy.map(|(_, ticks)| ticks).sum::<u64>()
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Open descriptors of `pid`.
pub(crate) fn descriptors(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Raises this process's limit on open descriptors as far as it may go, and fails when that is not
/// enough for `needed`. Processes started later inherit the limit.
pub fn raise_file_limit(needed: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    // What counts is what is in force now, not what the call said.
    match getrlimit(Resource::Nofile).current {
        Some(files) if files < needed as u64 => Err(Error::usage(format!(
            "{needed} open files are needed, and the limit cannot be raised above {files}: \
             ask for fewer clients \
             or raise the hard limit (ulimit -Hn)"
        ))),
        _ => Ok(()),
    }
}

// ---- this process and its children ----

/// A sleep may end up to 50 us late by default, which every statement would show. A kernel that does
/// not know the call keeps its habit.
pub(crate) fn wake_precisely() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// This program, to be started again: the running image itself, which stays right when the file is
/// rebuilt under a long run.
pub(crate) fn this_program() -> io::Result<Command> {
    let mut program = Command::new("/proc/self/exe");
    program.process_group(0); // out of reach of the terminal's Ctrl-C
    Ok(program)
}

/// Whether this process may do anything.
pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// The system's name and release.
pub(crate) fn system() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    format!("Linux {}", release.as_deref().map_or("unknown", str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194560 1 0 0 0 12 30 0 0 20 0 5 0 100 1 1";
        assert_eq!(stat_ticks(stat), Some(42));
        assert_eq!(stat_ticks("77 (cut"), None);
    }

    #[test]
    fn idle_is_not_busy_and_cpu_1_is_not_cpu_10() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                    cpu1 1 2 4 100 100 8 16 32 64 64\ncpu10 5 0 0 0 0 0 0 0 0 0\n";
        assert_eq!([1, 10, 2].map(|cpu| busy_ticks(stat, cpu)), [63, 5, 0]);
    }

    #[test]
    fn the_status_page_gives_threads_and_memory() {
        let status = "Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t17\n";
        assert_eq!(
            (
                status_field(status, "VmRSS:"),
                status_field(status, "Threads:")
            ),
            (1234, 17)
        );
        assert_eq!(status_field(status, "VmHWM:"), 0);
    }

    #[test]
    fn this_process_has_threads_memory_and_descriptors() {
        let me = std::process::id();
        let size = size(me).unwrap();
        assert!(size.threads >= 1 && size.rss_kib > 0, "{size:?}");
        assert!(descriptors(me).unwrap() >= 1);
        assert!(cpu_time(me).is_ok());
    }

    #[test]
    fn an_impossible_file_limit_is_an_error_that_names_both_numbers() {
        let error = raise_file_limit(usize::MAX).map_err(|error| error.to_string());
        // Only an unlimited process may have it.
        if let Err(error) = error {
            assert!(error.contains(&usize::MAX.to_string()), "{error}");
        }
    }
}
