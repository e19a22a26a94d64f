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
        // Not `as_nanos`, which is 128 bits wide: this is read once for each command.
        let passed = self.0.elapsed();
        passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
    }
}
