//! The server's clock: monotonic nanoseconds since it started, in a word.

#[cfg(feature = "test-util")]
use std::sync::Arc;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A clock that starts at zero. Clones tell the same time.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// By how much a test has moved it, in nanoseconds.
    #[cfg(feature = "test-util")]
    ahead: Option<Arc<AtomicU64>>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            #[cfg(feature = "test-util")]
            ahead: None,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// What it says at a moment; 0 at one before it started.
    pub(crate) fn at(&self, moment: Instant) -> u64 {
        // Not `as_nanos`, which is 128 bits wide: this is called once for each command.
        let passed = moment.saturating_duration_since(self.start);
        passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos()) + self.ahead()
    }

    #[cfg(not(feature = "test-util"))]
    #[inline(always)]
    #[allow(clippy::unused_self)] // it has one in a build for tests
    const fn ahead(&self) -> u64 {
        0
    }

    #[cfg(feature = "test-util")]
    fn ahead(&self) -> u64 {
        // Relaxed: whoever moved it wakes those who are to see it, by locks and system calls.
        self.ahead.as_ref().map_or(0, |ahead| ahead.load(Relaxed))
    }
}

#[cfg(feature = "test-util")]
impl Clock {
    /// One that a test moves.
    pub(crate) fn movable() -> Self {
        Self {
            ahead: Some(Arc::default()),
            ..Self::start()
        }
    }

    /// Moves it, and all its clones.
    pub(crate) fn pass(&self, time: std::time::Duration) {
        if let Some(ahead) = &self.ahead {
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            // Relaxed: as `ahead`. Not beyond what fits with the time that passes by itself.
            let _ = ahead.fetch_update(Relaxed, Relaxed, |now| {
                Some(now.saturating_add(time).min(u64::MAX / 4))
            });
        }
    }
}
