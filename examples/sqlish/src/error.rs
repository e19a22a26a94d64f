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
    /// The table was dropped while the statement ran.
    TableDropped,
    TableExists(&'a str),
    NoSuchDatabase(&'a str),
    /// No such table of the server's own.
    NoSuchInformation(&'a str),
    /// An index by this name is there already.
    IndexExists(&'a str),
    /// A row with this id is there already.
    Duplicate {
        id: i64,
    },
    /// Every id is taken.
    NoIdLeft,
    /// Not as many values as columns, in this row.
    ValueCount {
        row: usize,
    },
    /// This is SQL, and not what these tables can do.
    NotSupported(&'static str),
    ReadOnlyVariable(&'a str),
    /// A variable that only `SET GLOBAL` sets.
    GlobalVariable(&'a str),
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
    /// A subscriber has missed commits.
    Lagging,
    AccessDenied(&'static str),
    /// No such user, or another password.
    WrongPassword {
        user: String,
        with_password: bool,
    },
    /// A packet that is shorter than what it should hold.
    Malformed,
    /// A packet beyond the limit; the connection closes.
    PacketTooLong,
    /// A packet with another number than was due; the connection closes.
    OutOfOrder,
    /// The client's half of the handshake is none, or asks for what was not offered.
    BadHandshake,
    UnknownCommand,
    NoSuchPrepared,
    TooManyPrepared,
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
            Self::NoSuchTable(_) | Self::TableDropped => 1146,
            Self::TableExists(_) => 1050,
            Self::NoSuchDatabase(_) => 1049,
            Self::NoSuchInformation(_) => 1109,
            Self::IndexExists(_) => 1061,
            Self::Duplicate { .. } => 1062,
            Self::NoIdLeft => 1467,
            Self::ValueCount { .. } => 1136,
            Self::NotSupported(_) => 1235,
            Self::ReadOnlyVariable(_) => 1238,
            Self::GlobalVariable(_) => 1229,
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
            Self::Lagging => 1236,
            Self::AccessDenied(_) | Self::WrongPassword { .. } => 1045,
            Self::Malformed => 1835,
            Self::PacketTooLong => 1153,
            Self::OutOfOrder => 1156,
            Self::BadHandshake => 1043,
            Self::UnknownCommand => 1047,
            Self::NoSuchPrepared => 1243,
            Self::TooManyPrepared => 1461,
            Self::NoSuchThread(_) => 1094,
            Self::Unavailable(_) => 1235,
            Self::Internal(_) => 1105,
            Self::Server { code, .. } => *code,
        }
    }

    /// What standard SQL calls it.
    pub(crate) fn sqlstate(&self) -> &'static str {
        match self.code() {
            1040 => "08004",
            1043 | 1047 | 1053 | 1156 | 1158 | 1159 | 1160 | 1161 | 1153 => "08S01",
            1045 => "28000",
            1046 => "3D000",
            1049 | 1064 | 1065 | 1210 | 1235 | 1305 => "42000",
            1050 => "42S01",
            1051 | 1109 | 1146 => "42S02",
            1054 => "42S22",
            1061 => "42000",
            1062 => "23000",
            1136 => "21S01",
            1205 => "HY000",
            1213 => "40001",
            1231 => "42000",
            1264 => "22003",
            1317 => "70100",
            1406 => "22001",
            1927 => "70100",
            _ => "HY000",
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
            Self::TableDropped => f.write_str("The table doesn't exist any more"),
            Self::TableExists(name) => write!(f, "Table '{}' already exists", start_of(name)),
            Self::NoSuchDatabase(name) => write!(f, "Unknown database '{}'", start_of(name)),
            Self::NoSuchInformation(name) => {
                write!(
                    f,
                    "Unknown table '{}' in information_schema",
                    start_of(name)
                )
            }
            Self::IndexExists(name) => write!(f, "Duplicate key name '{}'", start_of(name)),
            Self::Duplicate { id } => write!(f, "Duplicate entry '{id}' for key 'PRIMARY'"),
            Self::NoIdLeft => {
                f.write_str("Failed to read auto-increment value from storage engine")
            }
            Self::ValueCount { row } => {
                write!(f, "Column count doesn't match value count at row {row}")
            }
            Self::NotSupported(what) => {
                write!(f, "This version of sqlish doesn't yet support '{what}'")
            }
            Self::ReadOnlyVariable(name) => {
                write!(f, "Variable '{}' is a read only variable", start_of(name))
            }
            Self::GlobalVariable(name) => write!(
                f,
                "Variable '{}' is a GLOBAL variable and should be set with SET GLOBAL",
                start_of(name)
            ),
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
            Self::Lagging => {
                f.write_str("The subscriber was too slow: commits are missing from here on")
            }
            Self::AccessDenied(why) => write!(f, "Access denied: {why}"),
            Self::WrongPassword {
                user,
                with_password,
            } => write!(
                f,
                "Access denied for user '{}' (using password: {})",
                start_of(user),
                if *with_password { "YES" } else { "NO" }
            ),
            Self::Malformed => f.write_str("Malformed communication packet"),
            Self::PacketTooLong => {
                f.write_str("Got a packet bigger than 'max_allowed_packet' bytes")
            }
            Self::OutOfOrder => f.write_str("Got packets out of order"),
            Self::BadHandshake => f.write_str("Bad handshake"),
            Self::UnknownCommand => f.write_str("Unknown command"),
            Self::NoSuchPrepared => f.write_str("Unknown prepared statement handler"),
            Self::TooManyPrepared => {
                f.write_str("Can't create more prepared statements, or one of so many parameters")
            }
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
