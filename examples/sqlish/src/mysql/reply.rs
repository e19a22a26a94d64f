//! Replies of MySQL's protocol.

use std::io;
use std::io::Write;

use super::login::CHARSET;
use super::packet::put_packet;
use super::wire::{put_bytes, put_lenenc};
use crate::error::SqlError;
use crate::parse::DATABASE;
use crate::reply::{Done, Field, Kind, Names, Reply, Status, Value};

/// Bits of the server's status.
const IN_TRANSACTION: u16 = 1;
pub(super) const AUTOCOMMIT: u16 = 2;

const OK: u8 = 0x00;
const EOF: u8 = 0xfe;
const ERR: u8 = 0xff;
const NULL: u8 = 0xfb;

/// How a client wants its replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    /// The end of columns is not marked, and that of rows is marked with an `OK`.
    pub(super) deprecate_eof: bool,
    /// Values as they are, and not as text.
    pub(super) binary: bool,
}

/// A reply that is being written.
pub(super) struct MysqlReply<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) sequence: &'a mut u8,
    pub(super) style: Style,
    /// Of the columns, if there are any.
    pub(super) kinds: &'a mut Vec<Kind>,
}

impl MysqlReply<'_> {
    pub(super) fn ok(&mut self, done: Done) {
        self.end(OK, done);
    }

    fn end(&mut self, first: u8, done: Done) {
        put_packet(self.out, self.sequence, |out| {
            out.push(first);
            put_lenenc(out, done.affected.unwrap_or(0));
            put_lenenc(out, done.last_id.max(0) as u64);
            out.extend_from_slice(&flags(done.status).to_le_bytes());
            out.extend_from_slice(&[0; 2]); // warnings
        });
    }

    pub(super) fn eof(&mut self, status: Status) {
        put_packet(self.out, self.sequence, |out| {
            out.extend_from_slice(&[EOF, 0, 0]);
            out.extend_from_slice(&flags(status).to_le_bytes());
        });
    }

    /// Definitions of columns, with the mark of their end if the client wants it.
    pub(super) fn columns(&mut self, fields: &[Field<'_>], status: Status) {
        for field in fields {
            put_packet(self.out, self.sequence, |out| put_column(out, field));
        }
        if !self.style.deprecate_eof {
            self.eof(status);
        }
    }
}

fn flags(status: Status) -> u16 {
    let bit = |set: bool, bit: u16| if set { bit } else { 0 };
    bit(status.in_transaction, IN_TRANSACTION) | bit(status.autocommit, AUTOCOMMIT)
}

fn put_column(out: &mut Vec<u8>, field: &Field<'_>) {
    const LONG: u8 = 0x03;
    const LONGLONG: u8 = 0x08;
    const NEWDECIMAL: u8 = 0xf6;
    const VAR_STRING: u8 = 0xfd;
    const BINARY_CHARSET: u8 = 63;
    let (kind, length, charset) = match field.kind {
        Kind::Int => (LONG, 11, BINARY_CHARSET),
        Kind::Long => (LONGLONG, 20, BINARY_CHARSET),
        Kind::Decimal => (NEWDECIMAL, 41, BINARY_CHARSET),
        // Up to four bytes for a character.
        Kind::Text(characters) => (VAR_STRING, characters.saturating_mul(4), CHARSET),
    };
    let database = if field.table.is_empty() { "" } else { DATABASE };
    put_bytes(out, b"def");
    put_bytes(out, database.as_bytes());
    put_bytes(out, field.table.as_bytes());
    put_bytes(out, field.table.as_bytes());
    put_bytes(out, field.name.as_bytes());
    put_bytes(out, field.name.as_bytes());
    out.extend_from_slice(&[12, charset, 0]);
    out.extend_from_slice(&length.to_le_bytes());
    // The type, flags, decimals and two bytes of nothing.
    out.extend_from_slice(&[kind, 0, 0, 0, 0, 0]);
}

/// An error. A client that has not said yet what it understands gets no SQLSTATE.
pub(super) fn put_error(out: &mut Vec<u8>, sequence: &mut u8, error: &SqlError<'_>, state: bool) {
    put_packet(out, sequence, |out| {
        out.push(ERR);
        out.extend_from_slice(&error.code().to_le_bytes());
        if state {
            out.push(b'#');
            out.extend_from_slice(error.sqlstate().as_bytes());
        }
        // A Vec takes everything.
        let _ = write!(out, "{error}");
    });
}

impl Reply for MysqlReply<'_> {
    const MYSQL: bool = true;

    fn header(&mut self, fields: &[Field<'_>], _: Names) -> io::Result<()> {
        self.kinds.clear();
        self.kinds.extend(fields.iter().map(|field| field.kind));
        put_packet(self.out, self.sequence, |out| {
            put_lenenc(out, fields.len() as u64);
        });
        self.columns(
            fields,
            Status {
                autocommit: true,
                ..Status::default()
            },
        );
        Ok(())
    }

    fn row(&mut self, values: &[Value<'_>]) -> io::Result<()> {
        let Self {
            out,
            sequence,
            style,
            kinds,
        } = self;
        put_packet(out, sequence, |out| {
            if style.binary {
                put_binary(out, values, kinds);
            } else {
                for value in values {
                    put_text(out, *value);
                }
            }
        });
        Ok(())
    }

    fn done(&mut self, done: Done) -> io::Result<()> {
        if self.kinds.is_empty() {
            self.ok(done);
        } else if self.style.deprecate_eof {
            self.end(EOF, done);
        } else {
            self.eof(done.status);
        }
        self.kinds.clear();
        Ok(())
    }

    fn error(&mut self, error: &SqlError<'_>) -> io::Result<()> {
        self.kinds.clear();
        put_error(self.out, self.sequence, error, true);
        Ok(())
    }
}

fn put_text(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Null => out.push(NULL),
        Value::Text(text) => put_bytes(out, text),
        Value::Number(number) => {
            // 20 digits at most: the length is one byte.
            let begin = out.len();
            out.push(0);
            // A Vec takes everything.
            let _ = write!(out, "{number}");
            out[begin] = (out.len() - begin - 1) as u8;
        }
    }
}

fn put_binary(out: &mut Vec<u8>, values: &[Value<'_>], kinds: &[Kind]) {
    out.push(OK);
    let nulls = out.len();
    out.resize(nulls + (values.len() + 2).div_ceil(8), 0);
    for (place, (value, kind)) in values.iter().zip(kinds).enumerate() {
        match (value, kind) {
            (Value::Null, _) => out[nulls + (place + 2) / 8] |= 1 << ((place + 2) % 8),
            (Value::Number(number), Kind::Int) => {
                out.extend_from_slice(&(*number as i32).to_le_bytes());
            }
            (Value::Number(number), Kind::Long) => out.extend_from_slice(&number.to_le_bytes()),
            (Value::Text(_), Kind::Int) => out.extend_from_slice(&[0; 4]),
            (Value::Text(_), Kind::Long) => out.extend_from_slice(&[0; 8]),
            (value, Kind::Decimal | Kind::Text(_)) => put_text(out, *value),
        }
    }
}
