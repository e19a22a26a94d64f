//! The three numbers that stand for several rounds, and the one that stands for fairness.

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
    fn fairness_is_one_for_equals_and_one_nth_for_a_monopoly() {
        assert_eq!(jain([5, 5, 5, 5]), 1.0);
        assert_eq!(jain([8, 0, 0, 0]), 0.25);
        assert_eq!(jain([2, 4]), 0.9);
        assert_eq!(jain([0, 0]), 0.0);
        assert_eq!(jain([]), 0.0);
    }
}
