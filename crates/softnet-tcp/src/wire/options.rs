//! Options (RFC 9293 3.2, RFC 7323 2.2 and 3.2, RFC 2018 2 and 3).
//!
//! "A TCP implementation MUST be able to receive a TCP Option in any segment" (MUST-5), "MUST
//! ignore without error any TCP Option it does not implement, assuming that the option has a
//! length field" (MUST-6). A length of 0 or 1, or one that reaches past the header, ends the
//! parsing and drops nothing, like Linux's.

use crate::seq::Seq;

pub(super) const EOL: u8 = 0;
pub(super) const NOP: u8 = 1;
pub(super) const MSS: u8 = 2;
pub(super) const WSCALE: u8 = 3;
pub(super) const SACK_PERMITTED: u8 = 4;
pub(super) const SACK: u8 = 5;
pub(super) const TIMESTAMPS: u8 = 8;

/// The first word of options that are timestamps alone, as nearly all are: NOP, NOP, 8, 10.
pub(super) const ALIGNED_TIMESTAMPS: u32 = 0x0101_080a;

/// The timestamps option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub val: u32,
    /// TSecr: the receiver's clock, echoed.
    pub ecr: u32,
}

/// A range of sequence numbers, `end` excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SackRange {
    /// The first.
    pub start: Seq,
    /// One past the last.
    pub end: Seq,
}

/// Up to four ranges, in the order of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    len: u8,
    blocks: [SackRange; 4],
}

impl SackBlocks {
    /// No ranges.
    pub const EMPTY: SackBlocks =
        SackBlocks { len: 0, blocks: [SackRange { start: Seq(0), end: Seq(0) }; 4] };

    /// Adds a range behind those that are there; a fifth is left out.
    pub fn push(&mut self, range: SackRange) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.len)) {
            *slot = range;
            self.len += 1;
        }
    }

    /// Keeps the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.len = n.min(usize::from(self.len)) as u8;
        // Equality looks at every block.
        self.blocks[usize::from(self.len)..].fill(SackRange::default());
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[SackRange] {
        &self.blocks[..usize::from(self.len)]
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::ops::Deref for SackBlocks {
    type Target = [SackRange];
    fn deref(&self) -> &[SackRange] {
        self.as_slice()
    }
}

impl std::fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice().iter().map(|r| (r.start, r.end))).finish()
    }
}

/// The options of a segment that the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// RFC 7323 3.
    pub timestamps: Option<Timestamps>,
    /// RFC 2018 3.
    pub sack: SackBlocks,
    /// The largest segment that the sender takes; in SYN segments only.
    pub mss: Option<u16>,
    /// The shift of the sender's windows, at most 14 (RFC 7323 2.3); in SYN segments only.
    pub window_scale: Option<u8>,
    /// Whether the sender takes selective acknowledgements; in SYN segments only.
    pub sack_permitted: bool,
}

impl Options {
    /// The options in `bytes`, those of a SYN if `syn`.
    pub fn parse(bytes: &[u8], syn: bool) -> Options {
        let mut options = Options::default();
        if let [a, b, c, d, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes
            && u32::from_be_bytes([a, b, c, d]) == ALIGNED_TIMESTAMPS
        {
            options.timestamps = Some(Timestamps {
                val: u32::from_be_bytes([v0, v1, v2, v3]),
                ecr: u32::from_be_bytes([e0, e1, e2, e3]),
            });
            return options;
        }
        options.parse_each(bytes, syn);
        options
    }

    fn parse_each(&mut self, mut bytes: &[u8], syn: bool) {
        while let [kind, rest @ ..] = bytes {
            match *kind {
                EOL => return,
                NOP => bytes = rest,
                kind => {
                    let Some(len) = rest.first().map(|len| usize::from(*len)) else { return };
                    if len < 2 || len > bytes.len() {
                        return;
                    }
                    self.take(kind, &bytes[2..len], syn);
                    bytes = &bytes[len..];
                }
            }
        }
    }

    fn take(&mut self, kind: u8, body: &[u8], syn: bool) {
        match (kind, body) {
            // An MSS of zero says nothing: the default stands.
            (MSS, &[hi, lo]) if syn && (hi, lo) != (0, 0) => {
                self.mss = Some(u16::from_be_bytes([hi, lo]));
            }
            // "If a Window Scale option is received with a shift.cnt value larger than 14, the TCP
            // SHOULD log the error but MUST use 14 instead of the specified value."
            (WSCALE, &[shift]) if syn => self.window_scale = Some(shift.min(14)),
            (SACK_PERMITTED, &[]) if syn => self.sack_permitted = true,
            (TIMESTAMPS, body) if body.len() == 8 => {
                self.timestamps = Some(Timestamps { val: be32(&body[..4]), ecr: be32(&body[4..]) });
            }
            (SACK, body) if !body.is_empty() && body.len() % 8 == 0 => {
                self.sack = SackBlocks::EMPTY;
                for block in body.chunks_exact(8) {
                    self.sack.push(SackRange { start: Seq(be32(&block[..4])), end: Seq(be32(&block[4..])) });
                }
            }
            _ => {}
        }
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_syn() {
        let bytes = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 3, 3, 200];
        let options = Options::parse(&bytes, true);
        assert_eq!(options.mss, Some(1460));
        assert_eq!(options.window_scale, Some(14), "more than 14 is 14");
        assert!(options.sack_permitted);
        assert_eq!(options.timestamps, Some(Timestamps { val: 7, ecr: 9 }));
        let options = Options::parse(&bytes, false);
        assert_eq!((options.mss, options.window_scale, options.sack_permitted), (None, None, false));
        assert!(options.timestamps.is_some());
    }

    #[test]
    fn unknown_options_are_passed_over_and_bad_lengths_end_the_parsing() {
        let ts = [8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let after = |head: &[u8]| Options::parse(&[head, &ts].concat(), false).timestamps.is_some();
        assert!(after(&[]) && after(&[1]) && after(&[99, 3, 7]) && after(&[99, 2]));
        assert!(!after(&[99, 0]) && !after(&[99, 1]) && !after(&[99, 200]) && !after(&[0]));
        assert_eq!(Options::parse(&[8], false), Options::default());
        assert_eq!(Options::parse(&[8, 9, 0, 0, 0, 0, 0, 0, 0], false).timestamps, None);
    }

    #[test]
    fn sack_blocks_keep_their_order() {
        let bytes = [1, 1, 5, 18, 0, 0, 0, 9, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 3];
        let range = |a, b| SackRange { start: Seq(a), end: Seq(b) };
        assert_eq!(*Options::parse(&bytes, false).sack, [range(9, 12), range(1, 3)]);
        assert!(Options::parse(&[5, 9, 0, 0, 0, 0, 0, 0, 0], false).sack.is_empty());
    }
}
