//! Whether a thread is blocked: the state letter that Linux shows of it.
//!
//! CPU time alone does not tell. With more busy threads than CPUs, one that only waits for its turn
//! stands still for long stretches too, but its letter stays R.

/// How the operating system names a thread; of no use where there are no letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadId(i32);

impl ThreadId {
    pub(crate) fn of_this_thread() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return Self(rustix::thread::gettid().as_raw_nonzero().get());
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        Self(0)
    }

    /// Whether it sleeps or waits for a device. `None`: that cannot be read here. Costs some three
    /// microseconds.
    pub(crate) fn is_blocked(self) -> Option<bool> {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.0)).ok()?;
        Some(matches!(letter(&stat)?, 'S' | 'D'))
    }
}

/// The letter stands behind the thread's name, which may hold anything, parentheses too.
fn letter(stat: &str) -> Option<char> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_strange_name_has_its_letter_read() {
        assert_eq!(letter("17 (a) S (b) R 1 17"), Some('R'));
        assert_eq!(letter("17 (tgp-g0-w1) D 1 17"), Some('D'));
        assert_eq!(letter("17"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_asks_about_itself_runs_and_one_that_receives_is_blocked() {
        assert_eq!(ThreadId::of_this_thread().is_blocked(), Some(false));
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut there = there;
            let id = ThreadId::of_this_thread();
            std::io::Write::write_all(&mut there, &id.0.to_ne_bytes()).unwrap();
            std::io::Read::read(&mut there, &mut [0])
        });
        let mut id = [0; 4];
        std::io::Read::read_exact(&mut &here, &mut id).unwrap();
        let id = ThreadId(i32::from_ne_bytes(id));
        while id.is_blocked() != Some(true) {
            std::thread::yield_now();
        }
        drop(here);
        assert_eq!(thread.join().unwrap().unwrap(), 0);
        // It is joined a moment before it has gone.
        while id.is_blocked().is_some() {
            std::thread::yield_now();
        }
    }
}
