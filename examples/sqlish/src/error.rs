//! What a statement can fail with, under MySQL's error codes.

use std::fmt;

/// Why a statement (or a connection) got `ERR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SqlError<'a> {
    /// The statement is not one of ours, from this text on.
    Syntax {
        near: &'a str,
    },
    /// `\'` without its partner, or bytes that end before their newline.
    Unterminated,
    /// The line is not UTF-8 from this byte on.
    InvalidUtf8 {
        at: usize,
    },
    /// No newline within the limit; the connection closes.
    LineTooLong,
    NoSuchTable(&'a str),
    UnknownColumn(&'a str),
    /// A string longer than its column.
    TooLong {
        column: &'static str,
    },
    /// A number that its column cannot hold.
    OutOfRange {
        column: &'static str,
    },
    /// An argument that the function named here cannot take.
    WrongArguments(&'static str),
    /// Nothing but a semicolon.
    EmptyQuery,
    UnknownVariable(&'a str),
    WrongValue {
        variable: &'static str,
        value: &'a str,
    },
    /// No name, or a longer one than locks have.
    WrongLockName(String),
    /// Waiting for this named lock would have closed a circle. Nothing has been given up.
    UserLockDeadlock,
    /// The row stayed locked for the lock wait timeout. The transaction goes on without the statement.
    LockWaitTimeout,
    /// Waiting would have closed a circle. The whole transaction has been rolled back.
    Deadlock,
    /// The connection was killed while the statement waited or ran.
    Interrupted,
    AccessDenied(&'static str),
    NoSuchThread(u64),
    /// The server has nothing to answer this from.
    Unavailable(&'static str),
    /// The server could not do its part (no randomness for a challenge).
    Internal(&'static str),
    /// The connection could not be taken, or was ended, for a reason of the server's.
    Server {
        code: u16,
        message: &'a str,
    },
}

/// How much of a statement an error message quotes, in characters.
const QUOTED_MAX: usize = 80;

impl SqlError<'_> {
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Syntax { .. } | Self::Unterminated => 1064,
            Self::InvalidUtf8 { .. } => 1300,
            Self::LineTooLong => 1153,
            Self::NoSuchTable(_) => 1146,
            Self::UnknownColumn(_) => 1054,
            Self::TooLong { .. } => 1406,
            Self::OutOfRange { .. } => 1264,
            Self::WrongArguments(_) => 1210,
            Self::EmptyQuery => 1065,
            Self::UnknownVariable(_) => 1193,
            Self::WrongValue { .. } => 1231,
            Self::WrongLockName(_) => 3057,
            Self::UserLockDeadlock => 3058,
            Self::LockWaitTimeout => 1205,
            Self::Deadlock => 1213,
            Self::Interrupted => 1317,
            Self::AccessDenied(_) => 1045,
            Self::NoSuchThread(_) => 1094,
            Self::Unavailable(_) => 1235,
            Self::Internal(_) => 1105,
            Self::Server { code, .. } => *code,
        }
    }
}

impl fmt::Display for SqlError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { near: "" } => {
                f.write_str("You have an error in your statement near its end")
            }
            Self::Syntax { near } => {
                write!(
                    f,
                    "You have an error in your statement near '{}'",
                    start_of(near)
                )
            }
            Self::Unterminated => f.write_str(
                "The input ended before the end of the line; the statement was not executed",
            ),
            Self::InvalidUtf8 { at } => write!(f, "Invalid utf8 character string at byte {at}"),
            Self::LineTooLong => f.write_str("Got a line longer than 1 MiB; closing"),
            Self::NoSuchTable(name) => write!(f, "Table '{}' doesn't exist", start_of(name)),
            Self::UnknownColumn(name) => write!(f, "Unknown column '{}'", start_of(name)),
            Self::TooLong { column } => write!(f, "Data too long for column '{column}' at row 1"),
            Self::OutOfRange { column } => {
                write!(f, "Out of range value for column '{column}' at row 1")
            }
            Self::WrongArguments(function) => write!(f, "Incorrect arguments to {function}"),
            Self::EmptyQuery => f.write_str("Query was empty"),
            Self::UnknownVariable(name) => {
                write!(f, "Unknown system variable '{}'", start_of(name))
            }
            Self::WrongValue { variable, value } => write!(
                f,
                "Variable '{variable}' can't be set to the value of '{}'",
                start_of(value)
            ),
            Self::WrongLockName(name) => {
                write!(f, "Incorrect user-level lock name '{}'", start_of(name))
            }
            Self::UserLockDeadlock => f.write_str(
                "Deadlock found when trying to get user-level lock; release locks and try again",
            ),
            Self::LockWaitTimeout => {
                f.write_str("Lock wait timeout exceeded; try restarting transaction")
            }
            Self::Deadlock => {
                f.write_str("Deadlock found when trying to get lock; try restarting transaction")
            }
            Self::Interrupted => f.write_str("Query execution was interrupted"),
            Self::AccessDenied(why) => write!(f, "Access denied: {why}"),
            Self::NoSuchThread(id) => write!(f, "Unknown thread id: {id}"),
            Self::Unavailable(what) => write!(f, "{what} is not available under this scheduler"),
            Self::Internal(what) => f.write_str(what),
            Self::Server { message, .. } => f.write_str(message),
        }
    }
}

/// The first [`QUOTED_MAX`] characters.
fn start_of(text: &str) -> &str {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_quotes_a_bounded_piece_of_the_statement_cut_between_characters() {
        let long = "ä".repeat(1000);
        let message = SqlError::Syntax { near: &long }.to_string();
        assert!(message.contains(&"ä".repeat(QUOTED_MAX)));
        assert!(!message.contains(&"ä".repeat(QUOTED_MAX + 1)));
    }
}
