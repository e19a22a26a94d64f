//! The three numbers that stand for several rounds, the one that stands for fairness, and how sure a
//! ratio is.

use crate::request::Random;

/// The middle of some rounds and how far they were apart.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of any number of values; all zero for none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Spread::default();
        };
        let upper = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[upper]
        } else {
            (sorted[upper - 1] + sorted[upper]) / 2.0
        };
        Spread { median, min, max }
    }
}

/// A ratio, and between what it may be by chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median of the pairs' ratios.
    pub median: f64,
    /// The lower end of the interval that holds 95 % of the medians of resampled pairs.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// How often the pairs are drawn again. The ends of the interval are then those of 250 draws: enough for
/// the two digits that are shown.
const DRAWS: u64 = 10_000;

impl Estimate {
    /// Of the ratio of what was measured in pairs, one right after the other; `None` without a pair. The
    /// bootstrap draws whole pairs, so that what disturbs both of them disturbs no ratio.
    pub fn of_pairs(above: &[f64], below: &[f64]) -> Option<Estimate> {
        let pairs = above.iter().zip(below).filter(|(_, below)| **below > 0.0);
        let ratios: Vec<f64> = pairs.map(|(above, below)| above / below).collect();
        if ratios.is_empty() {
            return None;
        }
        // The same draws for the same rounds.
        let mut random = Random::new(0);
        let mut draw = || {
            let n = ratios.len() as u64;
            let drawn = (0..n).map(|_| ratios[random.below(n) as usize]);
            Spread::of(drawn).median
        };
        let mut medians: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
        medians.sort_by(f64::total_cmp);
        let tail = medians.len() / 40;
        Some(Estimate {
            median: Spread::of(ratios).median,
            low: medians[tail],
            high: medians[medians.len() - 1 - tail],
        })
    }
}

/// Jain's fairness index over what each client got: 1 when all got the same, 1/n when one got
/// everything. 0 when nobody got anything: such a round is not fair, it is broken.
pub fn jain(shares: impl IntoIterator<Item = u64>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        let share = share as f64;
        n += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 {
        0.0
    } else {
        sum * sum / (n * squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(
            Spread::of([3.0, 1.0, 2.0]),
            Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert_eq!(
            Spread::of([4.0, 1.0, 2.0, 3.0]),
            Spread {
                median: 2.5,
                min: 1.0,
                max: 4.0
            }
        );
        assert_eq!(
            Spread::of([5.0]),
            Spread {
                median: 5.0,
                min: 5.0,
                max: 5.0
            }
        );
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn a_ratio_is_as_sure_as_its_pairs_agree() {
        let same = Estimate::of_pairs(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((same.median, same.low, same.high), (2.0, 2.0, 2.0));
        // Two of five pairs may be drawn thrice, which then is the median: at either end.
        let unsure = Estimate::of_pairs(&[1.0, 2.0, 3.0, 4.0, 5.0], &[1.0; 5]).unwrap();
        assert_eq!(unsure.median, 3.0);
        assert_eq!((unsure.low, unsure.high), (1.0, 5.0));
        let with_one_bad = Estimate::of_pairs(&[1.0, 1.1, 1.2, 1.3, 9.0], &[1.0; 5]).unwrap();
        assert!(with_one_bad.median < 1.3 && with_one_bad.high == 9.0);
        assert_eq!(Estimate::of_pairs(&[], &[]), None);
        assert_eq!(Estimate::of_pairs(&[1.0], &[0.0]), None);
    }

    #[test]
    fn fairness_is_one_for_equals_and_one_nth_for_a_monopoly() {
        assert_eq!(jain([5, 5, 5, 5]), 1.0);
        assert_eq!(jain([8, 0, 0, 0]), 0.25);
        assert_eq!(jain([2, 4]), 0.9);
        assert_eq!(jain([0, 0]), 0.0);
        assert_eq!(jain([]), 0.0);
    }
}
