//! An arriving segment (RFC 9293 3.1).

use super::{Flags, Options};
use crate::seq::Seq;

/// What the engine sees of an arriving segment, or of several that GRO made one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// SEG.SEQ: the number of the first byte, or of the SYN.
    pub seq: Seq,
    /// SEG.ACK, if [`Flags::ACK`] is set.
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// The urgent pointer, if [`Flags::URG`] is set.
    pub urgent: u16,
    /// Bytes of payload.
    pub len: u32,
    /// Segments on the wire that this one stands for: 1, or more after GRO.
    pub segs: u16,
    /// Whether the IP header says "congestion experienced".
    pub ce: bool,
    /// Options.
    pub options: Options,
}

/// Why bytes are not a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Less than a header of 20 bytes.
    Short,
    /// The data offset is less than 5, or past the end.
    DataOffset,
}

impl Segment {
    /// The segment in `bytes`, whose checksum the host has verified.
    ///
    /// # Errors
    ///
    /// [`WireError`], for what cannot hold a header. No option is an error.
    pub fn parse(bytes: &[u8]) -> Result<Segment, WireError> {
        let header_len = Segment::header_len(bytes)?;
        Ok(Segment::of_header(&bytes[..header_len], (bytes.len() - header_len) as u32))
    }

    /// Bytes of the header that `bytes` begin with.
    ///
    /// # Errors
    ///
    /// [`WireError`], if it does not lie within `bytes`.
    pub fn header_len(bytes: &[u8]) -> Result<usize, WireError> {
        let fixed: &[u8; 20] = bytes.first_chunk().ok_or(WireError::Short)?;
        let len = usize::from(fixed[12] >> 4) * 4;
        if (20..=bytes.len()).contains(&len) { Ok(len) } else { Err(WireError::DataOffset) }
    }

    /// The segment with this header, as long as [`header_len`](Self::header_len) says, and `len`
    /// bytes of payload.
    fn of_header(header: &[u8], len: u32) -> Segment {
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let flags = Flags(header[13]);
        Segment {
            seq: Seq(word(4)),
            ack: Seq(word(8)),
            flags,
            window: half(14),
            urgent: half(18),
            len,
            segs: 1,
            ce: false,
            options: Options::parse(&header[20..], flags.any(Flags::SYN)),
        }
    }

    /// SEG.LEN: what payload, SYN and FIN take of the sequence space.
    #[inline]
    pub fn seq_len(&self) -> u32 {
        self.len.wrapping_add(self.flags.seq_len())
    }

    /// One past the last number that the segment takes.
    #[inline]
    pub fn end(&self) -> Seq {
        self.seq + self.seq_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_where_the_header_has_them() {
        let mut bytes = vec![0x1f, 0x90, 0, 80, 0, 0, 0, 5, 0, 0, 0, 6, 0x50, 0x12, 0x10, 0, 0, 0, 0, 9];
        bytes.extend([1, 2, 3]);
        let segment = Segment::parse(&bytes).unwrap();
        assert_eq!((segment.seq, segment.ack, segment.window, segment.urgent), (Seq(5), Seq(6), 4096, 9));
        assert_eq!(segment.flags, Flags::SYN | Flags::ACK);
        assert_eq!((segment.len, segment.seq_len(), segment.end()), (3, 4, Seq(9)));
        bytes[12] = 0x40;
        assert_eq!(Segment::parse(&bytes), Err(WireError::DataOffset));
        bytes[12] = 0x60;
        assert_eq!(Segment::parse(&bytes), Err(WireError::DataOffset));
        assert_eq!(Segment::parse(&bytes[..19]), Err(WireError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_segment_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(segment) = Segment::parse(&bytes) {
                let header = Segment::header_len(&bytes).unwrap();
                prop_assert_eq!(segment.len as usize + header, bytes.len());
                prop_assert!(segment.options.sack.len() <= 4);
            }
        }
    }
}
