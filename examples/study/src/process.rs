//! What the kernel knows about a process: threads, memory, CPU time, descriptors; and the limit on
//! those.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};

/// Size of a process at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Threads.
    pub threads: u64,
    /// Resident memory.
    pub rss_kib: u64,
}

impl Size {
    /// The larger of each.
    pub fn max(self, other: Size) -> Size {
        Size {
            threads: self.threads.max(other.threads),
            rss_kib: self.rss_kib.max(other.rss_kib),
        }
    }
}

/// The size of process `pid` now.
pub fn size(pid: u32) -> io::Result<Size> {
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
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
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
pub fn busy_time(cpus: &[usize]) -> io::Result<Duration> {
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

/// Who has used how much of some CPUs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuUse {
    /// The server process.
    pub(crate) server: Duration,
    /// The calling thread, or the process that loads the server.
    pub(crate) client: Duration,
    /// Everybody, on these CPUs.
    all: Duration,
}

impl CpuUse {
    /// So far. A server that has died has used nothing; its clients' errors say the rest.
    pub(crate) fn read(server: u32, cpus: &[usize]) -> CpuUse {
        CpuUse {
            server: cpu_time(server).unwrap_or_default(),
            client: thread_cpu_time(),
            all: busy_time(cpus).unwrap_or_default(),
        }
    }

    /// The same with a process that loads the server.
    pub(crate) fn of_both(server: u32, client: u32, cpus: &[usize]) -> CpuUse {
        CpuUse {
            client: cpu_time(client).unwrap_or_default(),
            ..CpuUse::read(server, cpus)
        }
    }

    /// Since an earlier look.
    pub(crate) fn since(self, earlier: CpuUse) -> CpuUse {
        CpuUse {
            server: self.server.saturating_sub(earlier.server),
            client: self.client.saturating_sub(earlier.client),
            all: self.all.saturating_sub(earlier.all),
        }
    }

    /// Whether others used more than [`DISTURBED`] of a CPU during `window`.
    pub(crate) fn is_disturbed(self, window: Duration) -> bool {
        let others = self.all.saturating_sub(self.server + self.client);
        others > window.mul_f64(DISTURBED)
    }
}

/// The part of a CPU that others may take from a round before it counts as disturbed. Less than
/// this the clocks of the kernel, which count ticks, do not tell.
pub const DISTURBED: f64 = 0.1;

/// CPU time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Open descriptors of `pid`.
pub fn descriptors(pid: u32) -> io::Result<usize> {
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
