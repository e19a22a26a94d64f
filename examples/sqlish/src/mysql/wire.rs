//! Numbers and strings as they are on the wire.

/// Reads a packet from its front; `None` when it is too short for what is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(packet: &'a [u8]) -> Self {
        Self { rest: packet }
    }

    pub(super) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of one, three, four or nine bytes.
    pub(super) fn lenenc(&mut self) -> Option<u64> {
        match self.u8()? {
            small @ 0..=0xfa => Some(u64::from(small)),
            0xfc => self.u16().map(u64::from),
            0xfd => {
                let [a, b, c] = self.array()?;
                Some(u64::from(u32::from_le_bytes([a, b, c, 0])))
            }
            0xfe => self.u64(),
            _ => None,
        }
    }

    /// A string behind its length.
    pub(super) fn lenenc_bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.lenenc()?).ok()?;
        self.bytes(length)
    }

    /// A string up to its zero byte, which may be missing at the end of the packet.
    pub(super) fn nul_bytes(&mut self) -> &'a [u8] {
        match memchr::memchr(0, self.rest) {
            Some(end) => {
                let taken = &self.rest[..end];
                self.rest = &self.rest[end + 1..];
                taken
            }
            None => self.remainder(),
        }
    }

    pub(super) fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

pub(super) fn put_lenenc(out: &mut Vec<u8>, number: u64) {
    let bytes = number.to_le_bytes();
    match number {
        0..=0xfa => out.push(bytes[0]),
        0xfb..=0xffff => {
            out.push(0xfc);
            out.extend_from_slice(&bytes[..2]);
        }
        0x1_0000..=0xff_ffff => {
            out.push(0xfd);
            out.extend_from_slice(&bytes[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&bytes);
        }
    }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_lenenc(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        for number in [
            0,
            1,
            250,
            251,
            252,
            65535,
            65536,
            0xff_ffff,
            0x100_0000,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_lenenc(&mut out, number);
            let mut reader = Reader::new(&out);
            assert_eq!(
                (reader.lenenc(), reader.remainder()),
                (Some(number), &[][..])
            );
            for cut in 0..out.len() {
                assert_eq!(Reader::new(&out[..cut]).lenenc(), None);
            }
        }
    }

    #[test]
    fn a_string_that_says_it_is_longer_than_the_packet_is_none() {
        let mut packet = vec![0xfe];
        packet.extend_from_slice(&u64::MAX.to_le_bytes());
        packet.push(b'x');
        assert_eq!(Reader::new(&packet).lenenc_bytes(), None);
        assert_eq!(Reader::new(&[0xfb]).lenenc_bytes(), None);
        assert_eq!(Reader::new(b"ab\0c").nul_bytes(), b"ab");
        assert_eq!(Reader::new(b"ab").nul_bytes(), b"ab");
    }
}
