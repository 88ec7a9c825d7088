//! Counters of GRO, written by the instance's owner, read by any thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::softnet_data::Counter;

/// Why a packet is held no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flushed {
    /// Its last segment said that it is: shorter than the others, or with PSH or FIN.
    Last,
    /// One of its flow came that could not be merged.
    Mismatch,
    /// It is as long, or of as many segments, as may be.
    Full,
    /// Another flow came, and its bucket was full.
    Evicted,
    /// It had been held for long.
    Old,
    /// The poll ended, and no timer is armed; or GRO was switched off.
    PollEnd,
}

impl Flushed {
    /// All of them.
    pub const ALL: [Flushed; 6] =
        [Flushed::Last, Flushed::Mismatch, Flushed::Full, Flushed::Evicted, Flushed::Old, Flushed::PollEnd];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        ["last", "mismatch", "full", "evicted", "old", "poll_end"][self as usize]
    }
}

/// What GRO did with the packets of an instance.
#[derive(Default)]
pub struct GroStats {
    /// Packets that became part of another.
    pub merged: Counter,
    /// Packets made of several.
    pub aggregates: Counter,
    /// Segments in these.
    pub segments: Counter,
    flushed: [Counter; Flushed::ALL.len()],
    held: AtomicUsize,
}

impl GroStats {
    /// Packets that were held, and no more for this reason.
    pub fn flushed(&self, why: Flushed) -> u64 {
        self.flushed[why as usize].get()
    }

    /// Packets held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn count_flushed(&self, why: Flushed) {
        self.flushed[why as usize].add(1);
    }

    pub(super) fn set_held(&self, held: usize) {
        self.held.store(held, Ordering::Relaxed);
    }
}
