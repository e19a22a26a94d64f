//! Where a client is in its transaction: sysbench's `oltp_ro` and `oltp_rw`, statement by statement.
//!
//! A transaction is `BEGIN`, ten point selects, four ranges of a hundred rows (as they come, their sum,
//! in order, and the different ones in order), with `oltp_rw` two updates, a delete and an insert of the
//! same row, and `COMMIT`. It counts once, when its commit has been answered. One that was ended by a
//! deadlock or a lock wait counts as begun again and not as an error, as with sysbench.
//!
//! The mixed business has transactions of four kinds: a catalogue is read (five rows), a register is
//! updated (two rows), something temporary is made (a row that goes and comes), and a report is drawn
//! up (a sum over ten thousand rows, and two ranges).
//!
//! The convoy's transaction is `BEGIN`, the update of row 1, and `COMMIT`.

use std::io::Write;

use crate::plan::{KINDS, Workload};
use crate::request::{Random, VALUE_LEN, push_digits};

/// Rows of a range.
const RANGE: u64 = 100;

const POINTS: u8 = 10;

/// Of a reading of the catalogue.
const CATALOGUE_POINTS: u8 = 5;

/// Rows that a report sums up.
const REPORT: u64 = 10_000;

const CATALOGUE: u8 = 0;
const REGISTER: u8 = 1;
const TEMPORARY: u8 = 2;

/// Digits in a new `pad`, with their dashes.
const PAD_LEN: usize = 59;

/// Where a client is; also for workloads of single statements, whose every statement is the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Script {
    /// The statement that is under way; 0 before the first.
    step: Step,
    /// Of the mixed business, its place among [`KINDS`].
    kind: u8,
    /// Of the point selects, which one.
    point: u8,
    /// The row that is deleted and inserted.
    id: u32,
    /// When the transaction, or the statement that is one, was begun.
    pub(crate) began_at: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Ended,
    Begin,
    Point,
    Range,
    Sum,
    Ordered,
    Distinct,
    UpdateIndex,
    UpdateOther,
    Delete,
    Insert,
    Hot,
    Commit,
    Rollback,
}

/// What a correct reply to a statement has.
pub(crate) const ANY_ROWS: u32 = u32::MAX;

impl Script {
    /// Whether what comes next is the first statement of a transaction.
    pub(crate) fn has_ended(&self) -> bool {
        self.step == Step::Ended
    }

    /// The kind of the transaction, by its place among [`KINDS`].
    pub(crate) fn kind(&self) -> usize {
        self.kind.into()
    }

    /// Whether the statement under way is a commit.
    pub(crate) fn is_committing(&self) -> bool {
        self.step == Step::Commit
    }

    /// Whether it is a rollback: the transaction is to begin again.
    pub(crate) fn is_rolling_back(&self) -> bool {
        self.step == Step::Rollback
    }

    /// A reply has come; whether it was the last of a transaction that was committed.
    pub(crate) fn answered(&mut self, correct: bool) -> bool {
        let ended = matches!(self.step, Step::Commit | Step::Rollback | Step::Ended);
        let committed = correct && matches!(self.step, Step::Commit | Step::Ended);
        if ended {
            self.step = Step::Ended;
        } else if !correct {
            self.step = Step::Rollback;
        }
        committed
    }

    /// Writes the next statement; the rows of a correct reply.
    pub(crate) fn next(
        &mut self,
        workload: Workload,
        rows: u64,
        random: &mut Random,
        line: &mut Vec<u8>,
    ) -> u32 {
        let writes = workload == Workload::OltpRw;
        let mixed = workload == Workload::Mixed;
        let points = if mixed { CATALOGUE_POINTS } else { POINTS };
        self.step = match self.step {
            Step::Begin if mixed => {
                self.point = 0;
                self.kind = pick(random.below(100));
                match self.kind {
                    CATALOGUE => Step::Point,
                    REGISTER => Step::UpdateIndex,
                    TEMPORARY => Step::Delete,
                    _ => Step::Sum,
                }
            }
            Step::Point if mixed && self.point + 1 == points => Step::Commit,
            Step::UpdateOther if mixed => Step::Commit,
            Step::Ended | Step::Commit => Step::Begin,
            Step::Begin if workload == Workload::Convoy => Step::Hot,
            Step::Hot => Step::Commit,
            Step::Begin => {
                self.point = 0;
                Step::Point
            }
            Step::Point if self.point + 1 < points => {
                self.point += 1;
                Step::Point
            }
            Step::Point => Step::Range,
            Step::Range => Step::Sum,
            Step::Sum => Step::Ordered,
            Step::Ordered => Step::Distinct,
            Step::Distinct if writes => Step::UpdateIndex,
            Step::Distinct => Step::Commit,
            Step::UpdateIndex => Step::UpdateOther,
            Step::UpdateOther => Step::Delete,
            Step::Delete => Step::Insert,
            Step::Insert => Step::Commit,
            Step::Rollback => Step::Rollback,
        };
        let id = 1 + random.below(rows);
        let length = if mixed && self.step == Step::Sum {
            REPORT.min(rows)
        } else {
            RANGE.min(rows)
        };
        let from = 1 + random.below(rows - length + 1);
        let to = from + length - 1;
        let between = format_args!("FROM sbtest1 WHERE id BETWEEN {from} AND {to}");
        // A Vec takes everything.
        let (written, expected) = match self.step {
            Step::Begin => (write!(line, "BEGIN"), 0),
            // A row that comes and goes may be gone.
            Step::Point => (
                write!(line, "SELECT c FROM sbtest1 WHERE id={id}"),
                if mixed { ANY_ROWS } else { 1 },
            ),
            Step::Range => (write!(line, "SELECT c {between}"), length as u32),
            Step::Sum => (write!(line, "SELECT SUM(k) {between}"), 1),
            Step::Ordered => (
                write!(line, "SELECT c {between} ORDER BY c"),
                if mixed { ANY_ROWS } else { length as u32 },
            ),
            // The updates write the same values again.
            Step::Distinct => (
                write!(line, "SELECT DISTINCT c {between} ORDER BY c"),
                if writes || mixed {
                    ANY_ROWS
                } else {
                    length as u32
                },
            ),
            Step::UpdateIndex => (write!(line, "UPDATE sbtest1 SET k=k+1 WHERE id={id}"), 0),
            Step::UpdateOther => {
                line.extend_from_slice(b"UPDATE sbtest1 SET c='");
                push_digits(line, VALUE_LEN, random);
                (write!(line, "' WHERE id={id}"), 0)
            }
            Step::Delete => {
                self.id = id as u32;
                (write!(line, "DELETE FROM sbtest1 WHERE id={id}"), 0)
            }
            Step::Insert => {
                let (same, k) = (self.id, id);
                let _ = write!(
                    line,
                    "INSERT INTO sbtest1 (id, k, c, pad) VALUES ({same}, {k}, '"
                );
                push_digits(line, VALUE_LEN, random);
                line.extend_from_slice(b"', '");
                push_digits(line, PAD_LEN, random);
                (write!(line, "')"), 0)
            }
            Step::Hot => (write!(line, "UPDATE sbtest1 SET k=k+1 WHERE id=1"), 0),
            Step::Commit | Step::Ended => (write!(line, "COMMIT"), 0),
            Step::Rollback => (write!(line, "ROLLBACK"), 0),
        };
        let _ = written;
        expected
    }
}

/// Which kind a draw of a hundred is.
fn pick(mut draw: u64) -> u8 {
    for (kind, (_, weight)) in (0..).zip(KINDS) {
        if draw < weight {
            return kind;
        }
        draw -= weight;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statements of a transaction, every one answered well.
    fn transaction(workload: Workload, rows: u64) -> Vec<(String, u32)> {
        let mut script = Script::default();
        let mut random = Random::new(3);
        let mut all = Vec::new();
        loop {
            let mut line = Vec::new();
            let expected = script.next(workload, rows, &mut random, &mut line);
            all.push((String::from_utf8(line).unwrap(), expected));
            if script.answered(true) {
                assert!(script.has_ended());
                return all;
            }
        }
    }

    #[test]
    fn a_transaction_is_what_sysbench_sends() {
        let heads = |workload| -> Vec<String> {
            let all = transaction(workload, 1000);
            let words = all.iter().map(|(line, _)| line.split(' ').next().unwrap());
            words.map(str::to_owned).collect()
        };
        let ro = heads(Workload::OltpRo);
        assert_eq!(ro.len(), 1 + 10 + 4 + 1);
        let rw = heads(Workload::OltpRw);
        assert_eq!(rw.len(), 1 + 10 + 4 + 4 + 1);
        assert_eq!(rw[15..], ["UPDATE", "UPDATE", "DELETE", "INSERT", "COMMIT"]);
        assert_eq!((rw[0].as_str(), ro[15].as_str()), ("BEGIN", "COMMIT"));
        let convoy = transaction(Workload::Convoy, 1000);
        let lines: Vec<&str> = convoy.iter().map(|(line, _)| line.as_str()).collect();
        let update = "UPDATE sbtest1 SET k=k+1 WHERE id=1";
        assert_eq!(lines, ["BEGIN", update, "COMMIT"]);
        // A table that is smaller than a range is one.
        let small = transaction(Workload::OltpRo, 7);
        assert_eq!(small[11].1, 7);
        assert!(small[11].0.ends_with("BETWEEN 1 AND 7"), "{}", small[11].0);
    }

    #[test]
    fn a_transaction_that_failed_is_rolled_back_and_does_not_count() {
        let mut script = Script::default();
        let mut random = Random::new(3);
        let mut next = |script: &mut Script| {
            let mut line = Vec::new();
            script.next(Workload::OltpRw, 1000, &mut random, &mut line);
            String::from_utf8(line).unwrap()
        };
        assert_eq!(next(&mut script), "BEGIN");
        assert!(!script.answered(true));
        next(&mut script);
        assert!(!script.answered(false));
        assert_eq!(next(&mut script), "ROLLBACK");
        assert!(!script.answered(true));
        assert!(script.has_ended());
        assert_eq!(next(&mut script), "BEGIN");
    }

    #[test]
    fn the_mixed_business_has_its_kinds_by_weight() {
        let mut kinds = [0; KINDS.len()];
        for draw in 0..100 {
            kinds[usize::from(pick(draw))] += 1;
        }
        assert_eq!(kinds, KINDS.map(|(_, weight)| weight));
        let mut random = Random::new(3);
        let mut script = Script::default();
        let mut seen = [const { Vec::new() }; KINDS.len()];
        while seen.iter().any(Vec::is_empty) {
            let mut words = Vec::new();
            loop {
                let mut line = Vec::new();
                script.next(Workload::Mixed, 1_000, &mut random, &mut line);
                let line = String::from_utf8(line).unwrap();
                words.push(line.split(' ').next().unwrap().to_string());
                if script.answered(true) {
                    break;
                }
            }
            seen[script.kind()] = words;
        }
        assert_eq!(seen[0].len(), 2 + 5);
        assert_eq!(seen[1], ["BEGIN", "UPDATE", "UPDATE", "COMMIT"]);
        assert_eq!(seen[2], ["BEGIN", "DELETE", "INSERT", "COMMIT"]);
        assert_eq!(seen[3], ["BEGIN", "SELECT", "SELECT", "SELECT", "COMMIT"]);
    }
}
