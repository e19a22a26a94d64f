//! What the kernel knows about a process: threads, memory, CPU time, descriptors; and the limit on
//! those.

use std::time::Duration;

pub use crate::os::raise_file_limit;
pub(crate) use crate::os::{busy_time, cpu_time, descriptors, size, thread_cpu_time};

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
