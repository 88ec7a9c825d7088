//! A segment that is to leave, and its header in Linux's order of options.
//!
//! SYN with timestamps: MSS, SACK permitted, timestamps, NOP, window scale. Without: MSS, NOP NOP
//! SACK permitted, NOP window scale. Others: NOP NOP timestamps, NOP NOP SACK. RFC 9293 3.1: the
//! padding is zero, the reserved bits are zero.

use super::options::{MSS, NOP, SACK, SACK_PERMITTED, TIMESTAMPS, WSCALE};
use super::{Flags, Options};
use crate::seq::Seq;

/// The most bytes of a header.
pub const MAX_HEADER: usize = 60;

/// A segment that the engine sends, or a run of segments of [`mss`](Emit::mss) bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Emit {
    /// SEG.SEQ.
    pub seq: Seq,
    /// SEG.ACK, if [`Flags::ACK`] is set; else 0.
    pub ack: Seq,
    /// The control bits. Of a run, FIN and PSH belong to the last segment, CWR to the first.
    pub flags: Flags,
    /// The window field as it goes on the wire.
    pub window: u16,
    /// Bytes of payload, from [`seq`](Emit::seq) on (one later behind a SYN).
    pub len: u32,
    /// Bytes of payload of each segment but the last.
    pub mss: u16,
    /// Whether these bytes were sent before.
    pub retransmit: bool,
    /// Whether the IP header says ECT(0): ECN was agreed, and this is new data.
    pub ect: bool,
    /// Options.
    pub options: Options,
}

impl Emit {
    /// Segments on the wire.
    pub fn segs(&self) -> u32 {
        self.len.div_ceil(u32::from(self.mss.max(1))).max(1)
    }

    /// One past the last number that the segment takes.
    pub fn end(&self) -> Seq {
        self.seq + self.len + self.flags.seq_len()
    }

    /// Bytes of the header with its options.
    pub fn header_len(&self) -> usize {
        let o = &self.options;
        let mut len = 20;
        if self.flags.any(Flags::SYN) {
            len += if o.mss.is_some() { 4 } else { 0 };
            len += match (o.timestamps.is_some(), o.sack_permitted) {
                (true, _) => 12,
                (false, true) => 4,
                (false, false) => 0,
            };
            len += if o.window_scale.is_some() { 4 } else { 0 };
        } else if o.timestamps.is_some() {
            len += 12;
        }
        let sack = self.sack_fits(len);
        len + if sack > 0 { 4 + 8 * sack } else { 0 }
    }

    /// How many SACK blocks there is room for behind `used` bytes.
    fn sack_fits(&self, used: usize) -> usize {
        self.options.sack.len().min((MAX_HEADER - used).saturating_sub(4) / 8)
    }

    /// Writes the header, its checksum zero, and returns its length.
    pub fn write_header(&self, ports: (u16, u16), out: &mut [u8; MAX_HEADER]) -> usize {
        let mut w = Writer { out, at: 20 };
        let o = &self.options;
        if self.flags.any(Flags::SYN) {
            if let Some(mss) = o.mss {
                w.put(&[MSS, 4]);
                w.put(&mss.to_be_bytes());
            }
            match (o.timestamps.is_some(), o.sack_permitted) {
                (true, true) => w.put(&[SACK_PERMITTED, 2]),
                (true, false) => w.put(&[NOP, NOP]),
                (false, true) => w.put(&[NOP, NOP, SACK_PERMITTED, 2]),
                (false, false) => {}
            }
            w.timestamps(o);
            if let Some(shift) = o.window_scale {
                w.put(&[NOP, WSCALE, 3, shift]);
            }
        } else if o.timestamps.is_some() {
            w.put(&[NOP, NOP]);
            w.timestamps(o);
        }
        let fits = self.sack_fits(w.at);
        if fits > 0 {
            w.put(&[NOP, NOP, SACK, 2 + 8 * fits as u8]);
            for range in &o.sack[..fits] {
                w.put(&range.start.0.to_be_bytes());
                w.put(&range.end.0.to_be_bytes());
            }
        }
        let len = w.at;
        out[0..2].copy_from_slice(&ports.0.to_be_bytes());
        out[2..4].copy_from_slice(&ports.1.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        out[12] = (len as u8 / 4) << 4;
        out[13] = self.flags.0;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..20].fill(0);
        len
    }
}

struct Writer<'a> {
    out: &'a mut [u8; MAX_HEADER],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn timestamps(&mut self, options: &Options) {
        if let Some(ts) = options.timestamps {
            self.put(&[TIMESTAMPS, 10]);
            self.put(&ts.val.to_be_bytes());
            self.put(&ts.ecr.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SackBlocks, SackRange, Segment, Timestamps};
    use super::*;
    use proptest::prelude::*;

    fn options(emit: &Emit) -> Vec<u8> {
        let mut out = [0xaa; MAX_HEADER];
        let len = emit.write_header((1, 2), &mut out);
        assert_eq!(len, emit.header_len());
        out[20..len].to_vec()
    }

    #[test]
    fn the_order_of_options_is_linux() {
        let mut emit = Emit { flags: Flags::SYN, ..Emit::default() };
        emit.options.mss = Some(1460);
        emit.options.sack_permitted = true;
        emit.options.window_scale = Some(7);
        assert_eq!(options(&emit), [2, 4, 5, 180, 1, 1, 4, 2, 1, 3, 3, 7]);
        emit.options.timestamps = Some(Timestamps { val: 1, ecr: 2 });
        assert_eq!(options(&emit), [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
        emit.options.sack_permitted = false;
        assert_eq!(options(&emit)[4..8], [1, 1, 8, 10]);
        emit.flags = Flags::ACK;
        emit.options = Options { timestamps: emit.options.timestamps, ..Options::default() };
        assert_eq!(options(&emit), [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    }

    #[test]
    fn three_sack_blocks_fit_beside_timestamps_and_four_without() {
        let mut emit = Emit { flags: Flags::ACK, ..Emit::default() };
        for i in 0..4 {
            emit.options.sack.push(SackRange { start: Seq(i * 10), end: Seq(i * 10 + 5) });
        }
        assert_eq!(options(&emit)[..4], [1, 1, 5, 34]);
        emit.options.timestamps = Some(Timestamps::default());
        assert_eq!(options(&emit)[12..16], [1, 1, 5, 26]);
        assert_eq!(emit.header_len(), 60);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            seq: u32, ack: u32, window: u16, bits: u8, ts: Option<(u32, u32)>, mss in prop::option::of(1u16..),
            shift in prop::option::of(0u8..15), sack_permitted: bool, blocks in 0u32..3,
        ) {
            let flags = Flags(bits);
            let syn = flags.any(Flags::SYN);
            let mut sack = SackBlocks::EMPTY;
            for i in 0..if syn { 0 } else { blocks } {
                sack.push(SackRange { start: Seq(seq) + i, end: Seq(ack) + i });
            }
            let options = Options {
                timestamps: ts.map(|(val, ecr)| Timestamps { val, ecr }),
                sack,
                mss: mss.filter(|_| syn),
                window_scale: shift.filter(|_| syn),
                sack_permitted: sack_permitted && syn,
            };
            let emit = Emit { seq: Seq(seq), ack: Seq(ack), flags, window, options, ..Emit::default() };
            let mut out = [0; MAX_HEADER];
            let len = emit.write_header((80, 443), &mut out);
            let read = Segment::parse(&out[..len]).unwrap();
            prop_assert_eq!((read.seq, read.ack, read.flags, read.window, read.len), (emit.seq, emit.ack, flags, window, 0));
            prop_assert_eq!(read.options, options);
        }
    }
}
