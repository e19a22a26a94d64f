//! Packets: three bytes of length, a number that counts up within a command and its reply, and so many
//! bytes. What is longer goes on in the next packet.

use std::borrow::Cow;

/// The longest part; a packet of just this length is followed by another, if an empty one.
pub(super) const PART_MAX: usize = 0xff_ffff;

const HEADER: usize = 4;

/// What the front of a receive buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framed<'a> {
    /// More bytes are needed.
    Incomplete,
    Packet {
        payload: Cow<'a, [u8]>,
        /// How much of the buffer it took, headers included.
        consumed: usize,
        /// The number of the packet that follows.
        next: u8,
    },
    /// It would take more than the limit.
    TooLong,
    /// It has another number than the one that is due.
    OutOfOrder,
}

/// Looks for a packet of `max` bytes at most, headers included, that has the number `sequence`.
pub(super) fn next_packet(buffered: &[u8], sequence: u8, max: usize) -> Framed<'_> {
    let (mut end, mut next, mut parts) = (0, sequence, 0);
    loop {
        let Some(&[a, b, c, number]) = buffered.get(end..end + HEADER) else {
            return Framed::Incomplete;
        };
        if number != next {
            return Framed::OutOfOrder;
        }
        let length = u32::from_le_bytes([a, b, c, 0]) as usize;
        end += HEADER + length;
        next = next.wrapping_add(1);
        parts += 1;
        if end > max {
            return Framed::TooLong;
        }
        if end > buffered.len() {
            return Framed::Incomplete;
        }
        if length < PART_MAX {
            break;
        }
    }
    let payload = if parts == 1 {
        Cow::Borrowed(&buffered[HEADER..end])
    } else {
        let parts = buffered[..end].chunks(HEADER + PART_MAX);
        Cow::Owned(parts.flat_map(|part| &part[HEADER..]).copied().collect())
    };
    Framed::Packet {
        payload,
        consumed: end,
        next,
    }
}

/// Appends a packet whose payload `fill` writes.
#[inline]
pub(super) fn put_packet(out: &mut Vec<u8>, sequence: &mut u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; HEADER]);
    fill(out);
    let length = out.len() - begin - HEADER;
    if length < PART_MAX {
        let [a, b, c, ..] = (length as u32).to_le_bytes();
        out[begin..begin + HEADER].copy_from_slice(&[a, b, c, *sequence]);
        *sequence = sequence.wrapping_add(1);
    } else {
        split(out, begin, sequence);
    }
}

#[cold]
fn split(out: &mut Vec<u8>, begin: usize, sequence: &mut u8) {
    let payload = out.split_off(begin + HEADER);
    out.truncate(begin);
    let mut rest = &payload[..];
    loop {
        let (part, after) = rest.split_at(rest.len().min(PART_MAX));
        let [a, b, c, ..] = (part.len() as u32).to_le_bytes();
        out.extend_from_slice(&[a, b, c, *sequence]);
        out.extend_from_slice(part);
        *sequence = sequence.wrapping_add(1);
        rest = after;
        if part.len() < PART_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8], mut sequence: u8) -> Vec<u8> {
        let mut out = b"before".to_vec();
        put_packet(&mut out, &mut sequence, |out| {
            out.extend_from_slice(payload)
        });
        out.split_off(6)
    }

    #[test]
    fn packets_come_back_as_they_went_whatever_their_length() {
        for length in [
            0,
            1,
            255,
            65536,
            PART_MAX - 1,
            PART_MAX,
            PART_MAX + 1,
            2 * PART_MAX,
        ] {
            let payload: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let bytes = packet(&payload, 255);
            let parts = length / PART_MAX + 1;
            assert_eq!(bytes.len(), length + parts * HEADER);
            let whole = Framed::Packet {
                payload: Cow::Borrowed(&payload),
                consumed: bytes.len(),
                next: 255u8.wrapping_add(parts as u8),
            };
            assert!(next_packet(&bytes, 255, usize::MAX) == whole, "{length}");
            let cut = &bytes[..bytes.len() - 1];
            assert!(next_packet(cut, 255, usize::MAX) == Framed::Incomplete);
            assert!(next_packet(&bytes, 255, bytes.len() - 1) == Framed::TooLong);
        }
    }

    #[test]
    fn what_cannot_become_a_packet_is_told_by_its_header() {
        assert_eq!(next_packet(&[1, 0, 0], 0, 100), Framed::Incomplete);
        assert_eq!(next_packet(&[1, 0, 0, 1], 0, 100), Framed::OutOfOrder);
        assert_eq!(next_packet(&[255, 255, 255, 0], 0, 100), Framed::TooLong);
    }
}
