//! The TCP header and its options, as bytes (RFC 9293 3.1, 3.2; RFC 7323; RFC 2018).
//!
//! [`Segment`] is what the engine sees of an arriving segment, [`Emit`] what it says of one that
//! is to leave. Both are plain values: the host reads and writes packets, and owns checksums. The
//! parser is total: every string of bytes is a segment or a [`WireError`], in bounded time.

mod emit;
mod options;
mod segment;

pub use emit::{Emit, MAX_HEADER};
pub use options::{Options, SackBlocks, SackRange, Timestamps};
pub use segment::{Segment, WireError};

/// The control bits of a header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field counts.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer counts.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo.
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced.
    pub const CWR: Flags = Flags(0x80);

    /// Whether any bit of `other` is set.
    #[inline]
    pub const fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every bit of `other` is set.
    #[inline]
    pub const fn all(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These bits and those of `other`.
    #[inline]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// These bits without those of `other`.
    #[inline]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// What SYN and FIN take of the sequence space.
    #[inline]
    pub const fn seq_len(self) -> u32 {
        (self.0 & 1) as u32 + ((self.0 >> 1) & 1) as u32
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        self.with(other)
    }
}

impl std::fmt::Debug for Flags {
    /// In packetdrill's manner: `S.`, `P.`, `R`, `.`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (bit, c) in [
            (Flags::SYN, 'S'),
            (Flags::FIN, 'F'),
            (Flags::RST, 'R'),
            (Flags::PSH, 'P'),
            (Flags::URG, 'U'),
            (Flags::ECE, 'E'),
            (Flags::CWR, 'W'),
            (Flags::ACK, '.'),
        ] {
            if self.any(bit) {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}
