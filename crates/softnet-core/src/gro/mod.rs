//! GRO: packets of one flow that follow each other become one, which costs the stages behind no
//! more than one packet (the kernel's `net/core/gro.c`). [`gso`](crate::gso) says what such an
//! *aggregate* is, and cuts it into the same packets again.
//!
//! A [`GroTable`] belongs to a NAPI instance and is touched by its owner alone. It holds packets
//! for more to come: in eight buckets by flow hash, up to eight in each. The rules are the
//! kernel's: what packets must have in common to be of one flow, and what besides to be merged
//! (`merge.rs`); a packet that is of a flow and can't be merged ends what is held of it, and so the
//! order of a flow is kept. They are stricter where the kernel's would lose bits: a TCP urgent
//! pointer or an IPv6 flow label that changes ends an aggregate, as does a checksum that is right
//! but written in another way.
//!
//! What is held is given up when its bucket is full, at the end of a poll, or, if
//! `gro_flush_timeout` has the instance polled again, when it is [old](OLD). So nothing is held
//! without a timer to come: that is for [`Scheduled`](crate::napi::Scheduled) to see to.
//!
//! L4 checksums are verified when the second packet of a flow comes, as a single one is no better
//! for it. A frame list has its segments' own checksums and is not verified: that is the
//! receiver's, as without GRO.
//!
//! Invariant: every packet that comes in goes out, is held, or became part of one that is or did.
//! An aggregate ends below [`MAX_SIZE`] bytes, which its IP header can say.

mod arrived;
mod merge;
mod run;
mod slots;
mod stats;
mod table;

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;
#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) mod rig;
#[cfg(all(test, not(feature = "loom")))]
mod round_trip;
#[cfg(all(test, not(feature = "loom")))]
pub(crate) mod streams;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use stats::{Flushed, GroStats};
pub use table::GroTable;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Buckets of held packets.
const BUCKETS: usize = 8;

/// Packets held in a bucket at the most (the kernel's `MAX_GRO_SKBS`).
const MAX_HELD: usize = 8;

/// An aggregate is shorter than this, from its IP header on (the kernel's `GRO_LEGACY_MAX_SIZE`).
pub const MAX_SIZE: usize = 65_536;

/// Datagrams of an aggregate at the most, and segments of a list of TCP's (the kernel's
/// `UDP_GRO_CNT_MAX`).
pub const MAX_DATAGRAMS: usize = 64;

/// ns after which a held packet is old: a jiffy of a kernel with `HZ` 1000.
pub const OLD: u64 = 1_000_000;

/// The headers of a packet are prefetched while so many others are looked at.
const AHEAD: usize = 3;

/// What GRO does with the packets of an instance: the knob `gro`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum GroMode {
    /// Nothing.
    #[default]
    Off,
    /// TCP in fragments form (the kernel's `rx-gro`).
    Frags,
    /// The same of UDP, too (`rx-udp-gro-forwarding`).
    FragsUdp,
    /// TCP and UDP as frame lists (`rx-gro-list`).
    List,
}

impl GroMode {
    /// All of them.
    pub const ALL: [GroMode; 4] = [GroMode::Off, GroMode::Frags, GroMode::FragsUdp, GroMode::List];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        ["off", "frags", "frags-udp", "list"][self as usize]
    }
}

impl fmt::Display for GroMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A [`GroMode`] that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected off, frags, frags-udp or list, found \"{0}\"")]
pub struct NoSuchMode(pub String);

impl FromStr for GroMode {
    type Err = NoSuchMode;

    fn from_str(text: &str) -> Result<Self, NoSuchMode> {
        GroMode::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| NoSuchMode(text.into()))
    }
}

/// The knob of an instance. Any thread may set it; its owner reads it once a poll.
//
// It orders nothing, hence is a plain relaxed atomic.
#[derive(Debug, Default)]
pub struct GroConfig(AtomicU8);

impl GroConfig {
    /// What is set.
    #[inline(always)]
    pub fn mode(&self) -> GroMode {
        match self.0.load(Relaxed) {
            0 => GroMode::Off,
            1 => GroMode::Frags,
            2 => GroMode::FragsUdp,
            _ => GroMode::List,
        }
    }

    /// Sets it, from the next poll on.
    pub fn set_mode(&self, mode: GroMode) {
        self.0.store(mode as u8, Relaxed);
    }
}

/// How the packets of a poll are to be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroParams {
    /// What is to be merged. With [`Off`](GroMode::Off) all that is held is given up.
    pub mode: GroMode,
    /// Whether partial checksums may arrive without a word from the device, see
    /// [`partial`](crate::ip::partial).
    pub partial_csum: bool,
    /// When they came, in ns of the stack's clock.
    pub now: u64,
}
