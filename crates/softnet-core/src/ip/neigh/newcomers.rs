//! How many new neighbours are asked for: a scan of a link's addresses has a router ask for each, so that a few packets of
//! a distant host become as many broadcasts on the link (RFC 6583 section 3).
//!
//! Called by the [table](super::table) alone, for neighbours that were never heard and are no gateways, as a packet is to go
//! to them; what is known, and what speaks first, is not limited. A family on a device has a bucket of its own.
//!
//! The limit is about the kernel's. A table of its has `gc_thresh3` entries, and those that are asked for stay for three
//! requests, a second apart: `gc_thresh3` requests a second, after as many at once. Here entries make room
//! [sooner](super::gc), so the table does not limit requests, and the bucket does: as many new neighbours at once and in a
//! second. Entries that stay for another request a second later add no more than the table has.
//!
//! Invariant: a bucket lets no more than `burst` neighbours through at once, and on the average no more than `burst` a second.

use std::collections::BTreeMap;

use super::NeighParams;
use super::table::Key;

const SECOND: u64 = 1_000_000_000;

/// New neighbours of a table that are asked for in a second, at the least.
const MIN_RATE: usize = 1024;

/// The buckets, each as the time at which it is full again.
pub(super) struct Newcomers {
    burst: u64,
    full_at: BTreeMap<(u16, bool), u64>,
}

impl Newcomers {
    /// All buckets are full.
    pub(super) fn new(params: &NeighParams) -> Self {
        // No more than there are ns in a second: a token takes some time.
        let burst = (params.gc_thresh3.max(MIN_RATE) as u64).min(SECOND);
        Newcomers { burst, full_at: BTreeMap::new() }
    }

    /// Nanoseconds for a token.
    fn interval(&self) -> u64 {
        SECOND / self.burst
    }

    /// Whether the neighbour of `key` may be asked for.
    pub(super) fn may_ask(&self, now: u64, (dev, ip): Key) -> bool {
        let full_at = self.full_at.get(&(dev, ip.is_ipv6())).copied().unwrap_or(0);
        full_at.saturating_sub(now) <= self.interval() * (self.burst - 1)
    }

    /// It is.
    pub(super) fn asked(&mut self, now: u64, (dev, ip): Key) {
        let interval = self.interval();
        let full_at = self.full_at.entry((dev, ip.is_ipv6())).or_default();
        *full_at = (*full_at).max(now).saturating_add(interval);
    }
}
