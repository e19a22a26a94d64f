//! Pinning threads, through core_affinity, which has two traps: an id above 1,023 aborts the
//! process, and a thread that is created by a pinned one inherits the pin. So the ids are read once
//! at start and checked, and every thread sets its own.

use core_affinity::CoreId;

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the process may use, as the thread that starts the server sees them.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    ids: Vec<CoreId>,
    /// All of them at once; `None` if they could not be read.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    all: Option<CpuSet>,
}

/// One past the largest id that core_affinity can take.
const IDS: usize = 1024;

impl Cpus {
    pub(crate) fn of_this_thread() -> Self {
        let mut ids = core_affinity::get_core_ids().unwrap_or_default();
        ids.retain(|core| core.id < IDS);
        Self {
            ids,
            #[cfg(any(target_os = "linux", target_os = "android"))]
            all: sched_getaffinity(None).ok(),
        }
    }

    /// Lets the calling thread have all of them, whatever its creator had. Elsewhere than on Linux pins
    /// are not inherited.
    pub(crate) fn unpin(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(all) = &self.all {
            // If the system refuses, it stays where its creator was.
            let _ = sched_setaffinity(None, all);
        }
    }

    /// Pins the calling thread to the `n`-th of them, round and round. False: it stays as it is,
    /// because no ids could be read or the system refused; the thread works all the same.
    pub(crate) fn pin_to(&self, n: usize) -> bool {
        match self.ids.len() {
            0 => false,
            len => core_affinity::set_for_current(self.ids[n % len]),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ids_that_would_abort_the_process_are_never_used() {
        let cpus = Cpus::of_this_thread();
        assert!(cpus.ids.iter().all(|core| core.id < IDS));
        std::thread::spawn(move || {
            assert!(cpus.pin_to(7), "wraps around the CPUs there are");
            let none = Cpus {
                ids: Vec::new(),
                ..cpus.clone()
            };
            assert!(!none.pin_to(0));
        })
        .join()
        .unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_of_a_pinned_one_may_have_every_cpu_again() {
        let cpus = Cpus::of_this_thread();
        let before = cpus.all;
        std::thread::spawn(move || {
            assert!(cpus.pin_to(0));
            let inherited = cpus.clone();
            std::thread::spawn(move || {
                assert_eq!(Cpus::of_this_thread().ids.len(), 1);
                inherited.unpin();
                assert_eq!(Cpus::of_this_thread().all, before);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }
}
