//! Reads replies as they come off the socket, in whatever pieces.
//!
//! A reply is any number of `ROW` lines and then one `OK` or `ERR` line. The first bytes of a
//! line say which it is, and which error, so they are all that has to survive from one piece to the next:
//! a reader is sixteen bytes, and thousands of them fit in a cache.

use memchr::memchr;

/// What a complete reply said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// `ROW` lines before the last one.
    pub rows: u32,
    /// Whether the last line was `OK`; else it was `ERR`.
    pub ok: bool,
    /// Whether that was a deadlock or a lock wait that took too long: nobody's fault.
    pub lost: Option<Lost>,
}

/// How a transaction came to be without a lock that it wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It was picked to end a circle of waits: error 1213.
    Deadlock,
    /// It waited too long: error 1205.
    TimedOut,
}

/// A line that is none of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The state between two pieces of a reply.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplyReader {
    rows: u32,
    head: [u8; 8],
    head_len: u8,
}

impl ReplyReader {
    /// Takes the next piece. `Some` is a complete reply and how many bytes of the piece belong to
    /// it; the reader is then ready for the next reply. `None` means that the piece is used up.
    pub fn feed(&mut self, piece: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
        let mut rest = piece;
        while let Some(end) = memchr(b'\n', rest) {
            self.keep_head(&rest[..end]);
            rest = &rest[end + 1..];
            let ok = match &self.head[..usize::from(self.head_len)] {
                [b'R', b'O', b'W', b'\t', ..] => {
                    self.rows += 1;
                    self.head_len = 0;
                    continue;
                }
                [b'E', b'R', b'R', b'\t', ..] => false,
                // Bare or with the number of rows affected behind a tab.
                [b'O', b'K'] | [b'O', b'K', b'\t', ..] => true,
                _ => return Err(Malformed),
            };
            let reply = Reply {
                rows: self.rows,
                ok,
                lost: match &self.head {
                    b"ERR\t1213" => Some(Lost::Deadlock),
                    b"ERR\t1205" => Some(Lost::TimedOut),
                    _ => None,
                },
            };
            *self = ReplyReader::default();
            return Ok(Some((reply, piece.len() - rest.len())));
        }
        self.keep_head(rest);
        Ok(None)
    }

    /// Whether a reply has begun and not ended.
    pub fn is_inside(&self) -> bool {
        self.rows > 0 || self.head_len > 0
    }

    fn keep_head(&mut self, line: &[u8]) {
        let have = usize::from(self.head_len);
        let take = line.len().min(self.head.len() - have);
        self.head[have..have + take].copy_from_slice(&line[..take]);
        self.head_len += take as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All replies in `bytes`, fed in pieces that end at the given places.
    fn read(bytes: &[u8], cuts: &[usize]) -> Result<(Vec<Reply>, bool), Malformed> {
        let mut reader = ReplyReader::default();
        let mut replies = Vec::new();
        let mut from = 0;
        for &to in cuts.iter().chain([&bytes.len()]) {
            let mut piece = &bytes[from..to];
            while let Some((reply, used)) = reader.feed(piece)? {
                replies.push(reply);
                piece = &piece[used..];
            }
            from = to;
        }
        Ok((replies, reader.is_inside()))
    }

    #[test]
    fn any_chunking_reads_the_same_replies() {
        let bytes = b"OK\nROW\tabc\tdef\nROW\t\nOK\t2\n\
                      ERR\t1064\tno such statement\nROW\tOK\nOK\t1\nOK\t\n";
        let expected =
            [(0, true), (2, true), (0, false), (1, true), (0, true)].map(|(rows, ok)| Reply {
                rows,
                ok,
                lost: None,
            });
        for one in 0..=bytes.len() {
            for two in one..=bytes.len() {
                let (replies, inside) = read(bytes, &[one, two]).unwrap();
                assert_eq!(replies, expected, "cut at {one} and {two}");
                assert!(!inside);
            }
        }
        let every: Vec<_> = (0..bytes.len()).collect();
        assert_eq!(read(bytes, &every).unwrap().0, expected, "byte by byte");
    }

    #[test]
    fn a_lost_lock_is_told_from_other_errors_in_any_chunking() {
        for (code, expected) in [
            (1213, Some(Lost::Deadlock)),
            (1205, Some(Lost::TimedOut)),
            (1064, None),
            (1062, None),
        ] {
            let bytes = format!("ROW\tx\nERR\t{code}\tDeadlock found\n").into_bytes();
            for cut in 0..=bytes.len() {
                let (replies, _) = read(&bytes, &[cut]).unwrap();
                assert_eq!(replies[0].lost, expected, "{code} cut at {cut}");
            }
        }
    }

    #[test]
    fn half_a_reply_is_no_reply() {
        for bytes in [&b"O"[..], b"OK", b"OK\t12", b"ROW\tx\n", b"ERR\t1"] {
            assert_eq!(read(bytes, &[]), Ok((vec![], true)), "{bytes:?}");
        }
    }

    #[test]
    fn a_line_that_is_none_of_the_three_is_malformed_in_any_chunking() {
        for bytes in [
            &b"\n"[..],
            b"O\n",
            b"OKAY\n",
            b"ROW\n",
            b"ERR\n",
            b"ok\n",
            b"READY\t1\tx\n",
            b"ROW\tx\nROWS\t\n",
        ] {
            for cut in 0..=bytes.len() {
                assert_eq!(
                    read(bytes, &[cut]),
                    Err(Malformed),
                    "{bytes:?} cut at {cut}"
                );
            }
        }
    }
}
