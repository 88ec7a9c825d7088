//! Which destinations were sent something lately that a path may have been too narrow for.
//!
//! An ICMP error that says so comes within a round trip or two; about a destination that nothing
//! was sent to it is made up (RFC 5927 section 7.2). Senders note where their long datagrams go,
//! before these leave, and what has to judge an error asks. Any thread may call either. A word
//! for each of many destinations, by a keyed hash, holds the rest of the hash and when, in seconds;
//! the last one to use a place has it. Threads that send to the same destinations only read, but
//! for once a second.

use std::hash::Hasher;

use crate::fold::FoldKey;
use crate::sock::key::Addr;
use crate::sync::{AtomicU32, Ordering};

/// A power of two.
const PLACES: usize = if cfg!(feature = "loom") { 2 } else { 8192 };
const NS_PER_S: u64 = 1_000_000_000;
/// What a word has of the time.
const TIME: u32 = 0xfff;

/// Seconds for which a destination is known: many round trips, however a buffer on the way bloats
/// them.
pub const RECENT: u32 = 10;

/// Destinations that something long was sent to lately.
pub struct RecentPeers {
    key: FoldKey,
    places: Box<[AtomicU32]>,
}

impl RecentPeers {
    /// No destination. `key` hashes the destinations.
    pub fn new(key: FoldKey) -> Self {
        RecentPeers { key, places: (0..PLACES).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The place of `dst`, and its word without the time.
    fn find(&self, dst: Addr) -> (Option<&AtomicU32>, u32) {
        let hash = self.key.hash(|hasher| hasher.write_u128(dst));
        // A word that is used is not 0.
        let tag = (hash >> 32) as u32 & !TIME | (TIME + 1);
        (self.places.get(hash as usize % PLACES), tag)
    }

    /// Something goes to `dst` at `now` (ns).
    #[inline]
    pub fn note(&self, dst: Addr, now: u64) {
        let (place, tag) = self.find(dst);
        let word = tag | (now / NS_PER_S) as u32 & TIME;
        if let Some(place) = place
            && place.load(Ordering::Relaxed) != word
        {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Whether something went to `dst` within the last [`RECENT`] seconds before `now` (ns).
    pub fn contains(&self, dst: Addr, now: u64) -> bool {
        let (place, tag) = self.find(dst);
        let word = place.map_or(0, |place| place.load(Ordering::Relaxed));
        let passed = ((now / NS_PER_S) as u32).wrapping_sub(word) & TIME;
        // The thread that asks may have looked at the clock before the one that sends.
        word & !TIME == tag && (passed <= RECENT || passed == TIME)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::sock::key::mapped;

    #[test]
    fn a_destination_is_known_for_a_while() {
        let recent = RecentPeers::new(FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]));
        let dst = |i: u32| mapped(0x0a00_0000 + i);
        assert!(!recent.contains(dst(1), 0), "nothing was sent to it");
        // Also where the seconds that are kept begin anew.
        for second in [0, 7, 4090, 4095, 4096, 100_000] {
            let at = second * NS_PER_S + 999_999_999;
            recent.note(dst(1), at);
            let contains = |after: u64| recent.contains(dst(1), at + after * NS_PER_S);
            assert!(contains(0) && contains(RECENT.into()) && !contains(u64::from(RECENT) + 1), "{second}");
            assert!(
                recent.contains(dst(1), at.saturating_sub(NS_PER_S)),
                "clocks that were read in the other order"
            );
            assert!(!recent.contains(dst(2), at));
        }
        recent.note(dst(1), 500_000 * NS_PER_S);
        let others = (2..3000).filter(|i| recent.contains(dst(*i), 500_000 * NS_PER_S)).count();
        assert_eq!(others, 0, "taken for it");
        // As many as there are places: most of them are known.
        (0..4096).for_each(|i| recent.note(dst(i), 500_000 * NS_PER_S));
        let known = (0..4096).filter(|i| recent.contains(dst(*i), 500_000 * NS_PER_S)).count();
        assert!(known > 2500, "{known}");
    }
}
