//! The text protocol: cutting lines off a buffer, and the lines of a reply.
//!
//! Nothing here knows sockets or statements, so every server that wants to speak the protocol can
//! use it over its own loop.

use std::io::{self, Write};

use crate::error::SqlError;

/// The longest line, its newline included.
pub const LINE_MAX: usize = 1 << 20;

/// What the front of a receive buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A whole statement.
    Complete {
        /// The statement without its newline.
        line: &'a [u8],
        /// How much of the buffer it took, its newline included.
        consumed: usize,
    },
    /// No newline yet: more bytes are needed.
    Incomplete,
    /// More than [`LINE_MAX`] bytes and no end of line among them: answer [`too_long`] and close,
    /// because where the next statement begins will never be known.
    TooLong,
}

/// Looks for a statement at the front of `buffered`.
#[inline]
pub fn next_line(buffered: &[u8]) -> Line<'_> {
    let window = &buffered[..buffered.len().min(LINE_MAX)];
    match memchr::memchr(b'\n', window) {
        Some(end) => Line::Complete {
            line: &buffered[..end],
            consumed: end + 1,
        },
        None if window.len() == LINE_MAX => Line::TooLong,
        None => Line::Incomplete,
    }
}

/// The first line that a client sees.
///
/// # Errors
/// Only those of `out`.
pub fn greeting(id: u64, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "READY\t{id}\tsqlish-{}", env!("CARGO_PKG_VERSION"))
}

/// The reply to [`Line::TooLong`].
///
/// # Errors
/// Only those of `out`.
pub fn too_long(out: &mut impl Write) -> io::Result<()> {
    error(out, &SqlError::LineTooLong)
}

/// The reply to bytes that end, with the input, before their newline. They are **not** executed:
/// what is left of `... WHERE id=123` when a client dies in the middle may be `... WHERE id=12`.
///
/// # Errors
/// Only those of `out`.
pub fn unterminated(out: &mut impl Write) -> io::Result<()> {
    error(out, &SqlError::Unterminated)
}

/// `OK`.
#[inline]
pub(crate) fn ok(out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"OK\n")
}

/// `OK\t<rows affected>`.
#[inline]
pub(crate) fn ok_rows(out: &mut impl Write, affected: u64) -> io::Result<()> {
    match affected {
        0 => out.write_all(b"OK\t0\n"),
        1 => out.write_all(b"OK\t1\n"),
        many => writeln!(out, "OK\t{many}"),
    }
}

/// `ERR\t<code>\t<message>`.
#[cold]
pub(crate) fn error(out: &mut impl Write, error: &SqlError<'_>) -> io::Result<()> {
    write!(out, "ERR\t{}\t", error.code())?;
    escaped(out, error.to_string().as_bytes())?;
    out.write_all(b"\n")
}

/// A `ROW` line of any number of values.
pub(crate) fn row<V: AsRef<[u8]>>(
    out: &mut impl Write,
    values: impl IntoIterator<Item = V>,
) -> io::Result<()> {
    out.write_all(b"ROW")?;
    for value in values {
        out.write_all(b"\t")?;
        escaped(out, value.as_ref())?;
    }
    out.write_all(b"\n")
}

/// A `ROW` line of one value.
#[inline]
pub(crate) fn row_of_one(out: &mut impl Write, value: &[u8]) -> io::Result<()> {
    out.write_all(b"ROW\t")?;
    escaped(out, value)?;
    out.write_all(b"\n")
}

/// Writes `value` with tab, newline and backslash as `\t`, `\n` and `\\`.
#[inline]
pub(crate) fn escaped(out: &mut impl Write, mut value: &[u8]) -> io::Result<()> {
    while let Some(at) = memchr::memchr3(b'\t', b'\n', b'\\', value) {
        out.write_all(&value[..at])?;
        out.write_all(match value[at] {
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            _ => b"\\\\",
        })?;
        value = &value[at + 1..];
    }
    out.write_all(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).expect("a Vec takes everything");
        String::from_utf8(out).expect("replies are UTF-8")
    }

    #[test]
    fn a_line_is_cut_at_its_newline_and_the_rest_is_left() {
        assert_eq!(
            next_line(b"PING\nPI"),
            Line::Complete {
                line: b"PING",
                consumed: 5
            }
        );
        assert_eq!(
            next_line(b"\nPING\n"),
            Line::Complete {
                line: b"",
                consumed: 1
            }
        );
        assert_eq!(next_line(b"PI"), Line::Incomplete);
        assert_eq!(next_line(b""), Line::Incomplete);
    }

    #[test]
    fn a_line_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
        let mut longest = vec![b'x'; LINE_MAX - 1];
        assert_eq!(next_line(&longest), Line::Incomplete);
        longest.push(b'\n');
        assert!(matches!(
            next_line(&longest),
            Line::Complete {
                consumed: LINE_MAX,
                ..
            }
        ));
        longest.insert(0, b'x');
        assert_eq!(next_line(&longest), Line::TooLong);
        assert_eq!(next_line(&longest[..LINE_MAX]), Line::TooLong);
    }

    #[test]
    fn values_are_separated_by_tabs_and_never_contain_one() {
        assert_eq!(
            written(|out| row(out, ["a\tb", "", "c\nd\\"])),
            "ROW\ta\\tb\t\tc\\nd\\\\\n"
        );
        assert_eq!(written(|out| row_of_one(out, b"\t\t")), "ROW\t\\t\\t\n");
    }

    #[test]
    fn an_error_is_one_line_whatever_its_text_holds() {
        let near = SqlError::Syntax { near: "a\tb" };
        assert_eq!(
            written(|out| error(out, &near)),
            "ERR\t1064\tYou have an error in your statement near 'a\\tb'\n"
        );
    }

    #[test]
    fn the_last_line_of_a_reply_tells_the_rows_affected() {
        assert_eq!(written(ok), "OK\n");
        assert_eq!(written(|out| ok_rows(out, 1)), "OK\t1\n");
        assert_eq!(written(|out| ok_rows(out, 20)), "OK\t20\n");
    }
}
