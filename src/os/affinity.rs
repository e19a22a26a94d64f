//! Pinning threads, through core_affinity, which has two traps: an id above 1,023 aborts the
//! process, and a thread that is created by a pinned one inherits the pin. So the ids are read once
//! at start and checked, and every thread sets its own.

use core_affinity::CoreId;

/// The CPUs that the process may use, as the thread that starts the server sees them.
#[derive(Clone, Debug)]
pub(crate) struct Cpus(Vec<CoreId>);

/// One past the largest id that core_affinity can take.
const IDS: usize = 1024;

impl Cpus {
    pub(crate) fn of_this_thread() -> Self {
        let mut ids = core_affinity::get_core_ids().unwrap_or_default();
        ids.retain(|core| core.id < IDS);
        Self(ids)
    }

    /// Pins the calling thread to the `n`-th of them, round and round. False: it stays as it is,
    /// because no ids could be read or the system refused; the thread works all the same.
    pub(crate) fn pin_to(&self, n: usize) -> bool {
        match self.0.len() {
            0 => false,
            len => core_affinity::set_for_current(self.0[n % len]),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ids_that_would_abort_the_process_are_never_used() {
        let cpus = Cpus::of_this_thread();
        assert!(cpus.0.iter().all(|core| core.id < IDS));
        std::thread::spawn(move || {
            assert!(cpus.pin_to(7), "wraps around the CPUs there are");
            assert!(!Cpus(Vec::new()).pin_to(0));
        })
        .join()
        .unwrap();
    }
}
