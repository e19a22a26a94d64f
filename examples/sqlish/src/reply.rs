//! What a statement answers, apart from how a protocol writes it.

use std::io::{self, Write};

use crate::error::SqlError;
use crate::protocol;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 32 bits with a sign.
    Int,
    /// 64 bits with a sign.
    Long,
    /// A sum: a number of any size.
    Decimal,
    /// Up to so many characters.
    Text(u32),
}

/// A column of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: Kind,
    /// Of a table's column: which table.
    pub(crate) table: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Null,
    Number(i64),
    Text(&'a [u8]),
}

/// How a session stands after a statement, as clients are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) in_transaction: bool,
    pub(crate) autocommit: bool,
}

/// The end of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Of a statement that changes rows: how many.
    pub(crate) affected: Option<u64>,
    /// The first id that the server chose, or 0.
    pub(crate) last_id: i64,
    pub(crate) status: Status,
}

/// Whether the client sees the names of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// As a protocol does it.
    Usual,
    /// In any case: without them nobody would know what the values mean.
    Shown,
}

/// Takes a reply: [`header`](Reply::header) and rows if there are any, then one of `done` and `error`.
pub(crate) trait Reply {
    /// It is MySQL's protocol, and lists look as MariaDB's.
    const MYSQL: bool;

    fn header(&mut self, fields: &[Field<'_>], names: Names) -> io::Result<()>;

    fn row(&mut self, values: &[Value<'_>]) -> io::Result<()>;

    fn done(&mut self, done: Done) -> io::Result<()>;

    fn error(&mut self, error: &SqlError<'_>) -> io::Result<()>;
}

/// Replies of the text protocol.
pub(crate) struct TextReply<'a, W>(pub(crate) &'a mut W);

impl<W: Write> Reply for TextReply<'_, W> {
    const MYSQL: bool = false;

    #[inline]
    fn header(&mut self, fields: &[Field<'_>], names: Names) -> io::Result<()> {
        match names {
            Names::Usual => Ok(()),
            Names::Shown => protocol::row(self.0, fields.iter().map(|field| field.name)),
        }
    }

    #[inline]
    fn row(&mut self, values: &[Value<'_>]) -> io::Result<()> {
        if let [Value::Text(text)] = values {
            return protocol::row_of_one(self.0, text);
        }
        self.0.write_all(b"ROW")?;
        for value in values {
            match value {
                Value::Null => self.0.write_all(b"\tNULL")?,
                Value::Number(number) => write!(self.0, "\t{number}")?,
                Value::Text(text) => {
                    self.0.write_all(b"\t")?;
                    protocol::escaped(self.0, text)?;
                }
            }
        }
        self.0.write_all(b"\n")
    }

    #[inline]
    fn done(&mut self, done: Done) -> io::Result<()> {
        match done.affected {
            None => protocol::ok(self.0),
            Some(affected) => protocol::ok_rows(self.0, affected),
        }
    }

    #[cold]
    fn error(&mut self, error: &SqlError<'_>) -> io::Result<()> {
        protocol::error(self.0, error)
    }
}
