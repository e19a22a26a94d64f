//! The server's clock: monotonic nanoseconds since it started, in a word.

use std::time::Instant;

/// A clock that starts at zero. Copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> u64 {
        self.at(Instant::now())
    }

    /// What it says at a moment; 0 at one before it started.
    pub(crate) fn at(self, moment: Instant) -> u64 {
        // Not `as_nanos`, which is 128 bits wide: this is called once for each command.
        let passed = moment.saturating_duration_since(self.0);
        passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
    }
}
