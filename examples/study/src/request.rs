//! Makes the statements, one after the other, without allocating.

use crate::plan::Workload;
use crate::script::Script;

/// How many different values the updates write, in turn. Enough that an update changes something,
/// few enough to stay in the first cache.
const VALUES: usize = 16;

/// Characters of a new `c`.
pub(crate) const VALUE_LEN: usize = 120;

/// An endless supply of statements.
#[derive(Debug)]
pub struct Requests {
    workload: Workload,
    rows: u64,
    random: Random,
    /// Statements up to the id; one of them for each value written.
    heads: Vec<Vec<u8>>,
    turn: usize,
    line: Vec<u8>,
    ends_in_id: bool,
}

impl Requests {
    /// Statements of `workload` against a table with ids from 1 to `rows`. The same seed gives the
    /// same statements.
    pub fn new(workload: Workload, rows: u64, seed: u64) -> Requests {
        let mut random = Random::new(seed);
        let heads = match workload {
            Workload::Ping => vec![b"PING".to_vec()],
            Workload::PointSelect => vec![b"SELECT c FROM sbtest1 WHERE id=".to_vec()],
            Workload::UpdateNokey => (0..VALUES).map(|_| update_head(&mut random)).collect(),
            Workload::Disk => vec![b"WRITE ".to_vec()],
            // Their statements are those of a script.
            Workload::OltpRo | Workload::OltpRw | Workload::Convoy | Workload::Mixed => {
                vec![Vec::new()]
            }
        };
        let ends_in_id = workload != Workload::Ping;
        Requests {
            workload,
            rows: rows.max(1),
            random,
            heads,
            turn: 0,
            line: Vec::with_capacity(256),
            ends_in_id,
        }
    }

    /// Whether there are several kinds of transaction.
    pub(crate) fn are_of_kinds(&self) -> bool {
        self.workload == Workload::Mixed
    }

    /// The next statement of a client, with its end of line, and the `ROW` lines of a correct reply.
    pub(crate) fn next_of(&mut self, script: &mut Script) -> (&[u8], u32) {
        if !self.workload.is_transaction() {
            let expected = self.workload.rows_per_reply();
            return (self.next_line(), expected);
        }
        self.line.clear();
        let expected = script.next(self.workload, self.rows, &mut self.random, &mut self.line);
        self.line.push(b'\n');
        (&self.line, expected)
    }

    /// The next statement of a workload of single ones, with its end of line.
    pub fn next_line(&mut self) -> &[u8] {
        self.line.clear();
        self.line.extend_from_slice(&self.heads[self.turn]);
        self.turn = (self.turn + 1) % self.heads.len();
        if self.ends_in_id {
            push_decimal(&mut self.line, 1 + self.random.below(self.rows));
        }
        self.line.push(b'\n');
        &self.line
    }
}

/// Digits in groups of ten with a dash between, as sysbench fills the column.
fn update_head(random: &mut Random) -> Vec<u8> {
    let mut head = b"UPDATE sbtest1 SET c='".to_vec();
    push_digits(&mut head, VALUE_LEN, random);
    head.extend_from_slice(b"' WHERE id=");
    head
}

pub(crate) fn push_digits(line: &mut Vec<u8>, length: usize, random: &mut Random) {
    line.extend((0..length).map(|at| {
        if at % 11 == 10 {
            b'-'
        } else {
            b'0' + random.below(10) as u8
        }
    }));
}

fn push_decimal(line: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    line.extend_from_slice(&digits[at..]);
}

/// splitmix64: two multiplications a number, and any seed will do.
#[derive(Debug)]
pub(crate) struct Random(u64);

/// What the state moves by with each number.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The number that comes after `n` others.
    pub(crate) fn nth(seed: u64, n: u64) -> u64 {
        Random(seed.wrapping_add(STEP.wrapping_mul(n))).next()
    }

    /// True this often.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // The 53 bits that a double holds, so that 1 is always and 0 is never.
        ((self.next() >> 11) as f64) < probability * 2f64.powi(53)
    }

    /// From 0 to `n` - 1; the bias of the multiplication is below one in 2^40 for any table that
    /// fits a memory.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_within_the_table_and_reach_both_ends() {
        let mut requests = Requests::new(Workload::PointSelect, 3, 7);
        let mut seen = [0; 3];
        for _ in 0..300 {
            let line = std::str::from_utf8(requests.next_line()).unwrap();
            let id: usize = line
                .strip_prefix("SELECT c FROM sbtest1 WHERE id=")
                .unwrap()
                .trim_end()
                .parse()
                .unwrap();
            seen[id - 1] += 1;
        }
        assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
    }

    #[test]
    fn updates_write_120_characters() {
        let mut requests = Requests::new(Workload::UpdateNokey, 1, 7);
        for _ in 0..2 * VALUES {
            let line = std::str::from_utf8(requests.next_line()).unwrap();
            let value = line
                .strip_prefix("UPDATE sbtest1 SET c='")
                .unwrap()
                .strip_suffix("' WHERE id=1\n")
                .unwrap();
            assert_eq!(value.len(), VALUE_LEN);
        }
    }

    #[test]
    fn any_number_of_a_sequence_can_be_had_alone() {
        let mut random = Random::new(5);
        assert!((0..100).all(|n| random.next() == Random::nth(5, n)));
    }

    #[test]
    fn a_chance_of_one_is_always_and_of_zero_never() {
        let mut random = Random::new(5);
        assert!((0..1_000).all(|_| random.chance(1.0) && !random.chance(0.0)));
        let third = (0..3_000).filter(|_| random.chance(1.0 / 3.0)).count();
        assert!((800..1_200).contains(&third), "{third}");
    }

    #[test]
    fn ping_is_ping() {
        assert_eq!(Requests::new(Workload::Ping, 5, 1).next_line(), b"PING\n");
    }

    #[test]
    fn decimals_are_written_as_std_writes_them() {
        for n in [0, 1, 9, 10, 99, 100, 1_000_000, u64::MAX] {
            let mut line = Vec::new();
            push_decimal(&mut line, n);
            assert_eq!(line, n.to_string().into_bytes());
        }
    }
}
