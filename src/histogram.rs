//! Times by size: how many were how long, to within a third.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// One for less than a microsecond (1,024 ns), then two for each power of two, and the last for all
/// beyond 36 minutes.
const BUCKETS: usize = 64;

/// The first bucket is below 2 to the power of this, in nanoseconds.
const FIRST: u32 = 10;

/// How many times were how long.
///
/// The sizes are fixed: up to 1.024 µs, and from there on two to each power of two, so what is read
/// from it is too large by half at most. It allocates nothing, is half a kilobyte, and two of them can be [merged](Self::merge).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    /// Nanoseconds, of all together.
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum: 0,
        }
    }
}

/// Which bucket a time falls into.
#[inline]
fn bucket(nanos: u64) -> usize {
    if nanos < 1 << FIRST {
        return 0;
    }
    let power = nanos.ilog2();
    let upper_half = (nanos >> (power - 1)) & 1;
    let bucket = 1 + 2 * (power - FIRST) as usize + usize::from(upper_half == 1);
    bucket.min(BUCKETS - 1)
}

/// Where a bucket ends, in nanoseconds. The last has no end.
fn end(bucket: usize) -> u64 {
    match bucket.checked_sub(1) {
        None => 1 << FIRST,
        Some(_) if bucket == BUCKETS - 1 => u64::MAX,
        Some(n) if n % 2 == 1 => 1 << (FIRST as usize + n / 2 + 1),
        Some(n) => 3 << (FIRST as usize + n / 2 - 1),
    }
}

impl Histogram {
    /// Counts `n` times of this length.
    #[inline]
    pub(crate) fn add(&mut self, nanos: u64, n: u64) {
        // One that fits into no word together is 584 years; it may wrap.
        self.sum = self.sum.wrapping_add(nanos.wrapping_mul(n));
        self.counts[bucket(nanos)] += n;
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// The mean; zero if there was none.
    pub fn mean(&self) -> Duration {
        match self.count() {
            0 => Duration::ZERO,
            count => Duration::from_nanos(self.sum / count),
        }
    }

    /// The time that the share `q` of all, from 0 to 1, did not exceed: the end of the size in which it
    /// lies. Zero if there was none, [`Duration::MAX`] beyond 36 minutes.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )]
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        // What is not a share becomes the nearest one, and NaN the least.
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        for (end, n) in self.sizes() {
            below += n;
            if below >= rank {
                return end;
            }
        }
        Duration::ZERO
    }

    /// The sizes in order: where each ends, and how many fell into it. The last one ends at
    /// [`Duration::MAX`].
    pub fn sizes(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .map(|(bucket, n)| match end(bucket) {
                u64::MAX => (Duration::MAX, *n),
                end => (Duration::from_nanos(end), *n),
            })
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("mean", &self.mean())
            .field("median", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.quantile(1.0))
            .finish()
    }
}

/// One that any thread may add to. Plain statistics: Relaxed, because nothing is concluded from one
/// count about another.
#[derive(Debug)]
pub(crate) struct SharedHistogram {
    // Relaxed: see above.
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for SharedHistogram {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            sum: AtomicU64::new(0),
        }
    }
}

impl SharedHistogram {
    pub(crate) fn add(&self, nanos: u64) {
        // Relaxed: see the type.
        self.counts[bucket(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
    }

    pub(crate) fn read(&self) -> Histogram {
        // Relaxed: see the type.
        Histogram {
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Relaxed)),
            sum: self.sum.load(Relaxed),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_the_size_that_ends_behind_it() {
        for n in 0..BUCKETS - 1 {
            assert_eq!(bucket(end(n) - 1), n);
            assert_eq!(bucket(end(n)), n + 1);
            if n > 0 {
                let (before, after) = (end(n - 1), end(n));
                assert!(
                    after > before && 2 * after <= 3 * before,
                    "{before} {after}"
                );
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket(0), 0);
    }

    #[test]
    fn a_share_of_the_times_is_no_longer_than_it_says() {
        let mut times = Histogram::default();
        for ms in 1..=100 {
            times.add(ms * 1_000_000, 1);
        }
        assert_eq!(times.count(), 100);
        assert_eq!(times.mean(), Duration::from_micros(50_500));
        for (q, ms) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100), (7.0, 100)] {
            let (read, exact) = (times.quantile(q), Duration::from_millis(ms));
            assert!(read >= exact && read <= exact * 3 / 2, "{q}: {read:?}");
        }
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn two_that_are_merged_count_what_both_have_counted() {
        let (mut one, shared) = (Histogram::default(), SharedHistogram::default());
        one.add(5_000, 3);
        shared.add(u64::MAX / 2);
        shared.add(5_000);
        one.merge(&shared.read());
        assert_eq!(one.count(), 5);
        let filled: Vec<_> = one.sizes().filter(|(_, n)| *n > 0).collect();
        assert_eq!(filled.len(), 2);
        assert_eq!(filled[0].1, 4);
        assert_eq!(filled[1], (Duration::MAX, 1));
    }
}
