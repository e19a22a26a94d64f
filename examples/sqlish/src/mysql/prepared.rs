//! Prepared statements: texts with question marks in them, for which values are put when they are run.
//!
//! The text is parsed when it is prepared, so that mistakes are told then, and again each time that it is
//! run with its values, which for these statements costs less than keeping a parsed form would gain.

use std::collections::HashMap;

use super::wire::Reader;
use crate::error::SqlError;

/// How many a client may have at a time; MySQL's limit for all together.
const MAX: usize = 16_382;

#[derive(Debug, Default)]
pub(super) struct Statements {
    all: HashMap<u32, Prepared>,
    last: u32,
}

#[derive(Debug)]
pub(super) struct Prepared {
    text: String,
    /// Where its question marks are.
    marks: Vec<usize>,
    /// What kinds of values were given last.
    types: Vec<u16>,
    /// Values that were sent before, piece by piece.
    long: HashMap<usize, Vec<u8>>,
}

impl Statements {
    /// # Errors
    /// If there are too many.
    pub(super) fn add(&mut self, text: &str) -> Result<(u32, &Prepared), SqlError<'static>> {
        if self.all.len() >= MAX {
            return Err(SqlError::TooManyPrepared);
        }
        // Each is used once, until four billion have been.
        self.last = self.last.wrapping_add(1);
        let prepared = Prepared {
            text: text.to_owned(),
            marks: marks(text),
            types: Vec::new(),
            long: HashMap::new(),
        };
        Ok((
            self.last,
            self.all.entry(self.last).insert_entry(prepared).into_mut(),
        ))
    }

    pub(super) fn get(&mut self, id: u32) -> Option<&mut Prepared> {
        self.all.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.all.remove(&id);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

/// Where question marks stand for values: not in strings, names or comments.
fn marks(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut marks = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let rest = &text[at..];
        at += match byte {
            b'?' => {
                marks.push(at);
                1
            }
            quote @ (b'\'' | b'"' | b'`') => end_of_quoted(&bytes[at..], *quote),
            b'/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            b'#' => rest.find('\n').unwrap_or(rest.len()),
            b'-' if rest.starts_with("-- ") => rest.find('\n').unwrap_or(rest.len()),
            // No character is cut: what is looked for is ASCII, and the rest is skipped byte by byte.
            _ => (1..).find(|n| text.is_char_boundary(at + n)).unwrap_or(1),
        };
    }
    marks
}

fn end_of_quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        if *byte == b'\\' && quote != b'`' {
            at += 1;
        } else if *byte == quote {
            break;
        }
    }
    at.min(bytes.len())
}

impl Prepared {
    pub(super) fn parameters(&self) -> usize {
        self.marks.len()
    }

    /// The text with nothing in particular for every value, to see whether it is a statement.
    pub(super) fn example(&self) -> String {
        self.text_with(|_, out| out.push('0'))
    }

    fn text_with(&self, mut put: impl FnMut(usize, &mut String)) -> String {
        let mut out = String::with_capacity(self.text.len() + 16 * self.marks.len());
        let mut from = 0;
        for (number, mark) in self.marks.iter().enumerate() {
            out.push_str(&self.text[from..*mark]);
            put(number, &mut out);
            from = mark + 1;
        }
        out.push_str(&self.text[from..]);
        out
    }

    /// Takes a piece of a value.
    pub(super) fn append(&mut self, parameter: usize, piece: &[u8], max: usize) {
        let length: usize = self.long.values().map(Vec::len).sum();
        // What does not fit cannot become a statement either; running it will tell.
        if parameter < self.marks.len() && length + piece.len() <= max {
            self.long
                .entry(parameter)
                .or_default()
                .extend_from_slice(piece);
        }
    }

    pub(super) fn reset(&mut self) {
        self.long.clear();
    }

    /// Writes the text with the values of an execution into `out`.
    ///
    /// # Errors
    /// If the packet ends early, or has values of a kind that no column here holds.
    pub(super) fn bind(
        &mut self,
        mut values: Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), SqlError<'static>> {
        const MALFORMED: SqlError<'static> = SqlError::Malformed;
        let count = self.marks.len();
        let mut nulls: &[u8] = &[];
        if count > 0 {
            nulls = values.bytes(count.div_ceil(8)).ok_or(MALFORMED)?;
            if values.u8().ok_or(MALFORMED)? == 1 {
                self.types.clear();
                for _ in 0..count {
                    self.types.push(values.u16().ok_or(MALFORMED)?);
                }
            }
        }
        if self.types.len() != count {
            return Err(MALFORMED);
        }
        out.clear();
        let mut from = 0;
        for (number, mark) in self.marks.iter().enumerate() {
            out.extend_from_slice(&self.text.as_bytes()[from..*mark]);
            from = mark + 1;
            if let Some(long) = self.long.get(&number) {
                put_quoted(out, long);
            } else if nulls[number / 8] & 1 << (number % 8) != 0 {
                out.extend_from_slice(b"NULL");
            } else {
                put_value(out, self.types[number], &mut values)?;
            }
        }
        out.extend_from_slice(&self.text.as_bytes()[from..]);
        self.long.clear();
        Ok(())
    }
}

fn put_value(
    out: &mut Vec<u8>,
    kind: u16,
    values: &mut Reader<'_>,
) -> Result<(), SqlError<'static>> {
    use std::io::Write;

    let unsigned = kind & 0x8000 != 0;
    let malformed = || SqlError::Malformed;
    let number = match kind & 0xff {
        0x01 => {
            let byte = values.u8().ok_or_else(malformed)?;
            signed(byte.into(), unsigned, i64::from(byte as i8))
        }
        0x02 | 0x0d => {
            let short = values.u16().ok_or_else(malformed)?;
            signed(short.into(), unsigned, i64::from(short as i16))
        }
        0x03 | 0x09 => {
            let long = values.u32().ok_or_else(malformed)?;
            signed(long.into(), unsigned, i64::from(long as i32))
        }
        0x08 => {
            let long = values.u64().ok_or_else(malformed)?;
            signed(long, unsigned, long as i64)
        }
        0x04 => {
            let bits = values.u32().ok_or_else(malformed)?;
            // A Vec takes everything.
            let _ = write!(out, "{}", f32::from_bits(bits));
            return Ok(());
        }
        0x05 => {
            let bits = values.u64().ok_or_else(malformed)?;
            let _ = write!(out, "{}", f64::from_bits(bits));
            return Ok(());
        }
        0x06 => {
            out.extend_from_slice(b"NULL");
            return Ok(());
        }
        0x0f | 0xf6 | 0xf9..=0xfe => {
            put_quoted(out, values.lenenc_bytes().ok_or_else(malformed)?);
            return Ok(());
        }
        _ => return Err(SqlError::NotSupported("parameters of this type")),
    };
    let _ = write!(out, "{number}");
    Ok(())
}

fn signed(unsigned_value: u64, unsigned: bool, signed_value: i64) -> i128 {
    if unsigned {
        i128::from(unsigned_value)
    } else {
        i128::from(signed_value)
    }
}

fn put_quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'\'');
    let mut rest = text;
    while let Some(at) = memchr::memchr2(b'\'', b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(&[rest[at]; 2]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_marks_are_values_where_they_are_not_text() {
        for (text, expected) in [
            ("SELECT ?", &[7][..]),
            ("? '?' \"?\" `?` ?", &[0, 14]),
            (r"'\'?' ? '?''?' ?", &[6, 15]),
            ("/* ? */ ? # ?\n? -- ?\n?", &[8, 14, 21]),
            ("é ?", &[3]),
            ("'unclosed ?", &[]),
            ("", &[]),
        ] {
            assert_eq!(marks(text), expected, "{text}");
        }
    }

    #[test]
    fn values_become_literals() {
        let mut statements = Statements::default();
        let (id, prepared) = statements.add("f(?, ?, ?, ?)").expect("there is room");
        assert_eq!(prepared.example(), "f(0, 0, 0, 0)");
        let prepared = statements.get(id).expect("it was added");
        let mut packet = vec![0b1000, 1];
        packet.extend_from_slice(&[3, 0, 8, 0x80, 0xfd, 0, 3, 0]);
        packet.extend_from_slice(&(-5i32).to_le_bytes());
        packet.extend_from_slice(&u64::MAX.to_le_bytes());
        packet.extend_from_slice(b"\x05a'b\\c");
        let mut out = Vec::new();
        assert_eq!(prepared.bind(Reader::new(&packet), &mut out), Ok(()));
        let expected = r"f(-5, 18446744073709551615, 'a''b\\c', NULL)";
        assert_eq!(String::from_utf8_lossy(&out), expected);
        for cut in 0..packet.len() {
            let mut other = Statements::default();
            let (id, _) = other.add("f(?, ?, ?, ?)").expect("there is room");
            let prepared = other.get(id).expect("it was added");
            let bound = prepared.bind(Reader::new(&packet[..cut]), &mut out);
            assert_eq!(bound, Err(SqlError::Malformed), "{cut}");
        }
    }
}
