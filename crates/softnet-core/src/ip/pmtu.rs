//! What is known of path MTUs (RFC 1191, RFC 8201): how long a packet to a destination may be, where that is less than
//! the first link takes.
//!
//! For local senders, by way of the slow path. Whoever reports "fragmentation needed" or "packet too big" to
//! [`PmtuCache::update`] has made sure that it is about a packet which really was sent from here (RFC 8201 section 4):
//! all that a forged report can do then is what its author could do by dropping packets. Invariant: bounded, and no
//! entry says less than `min_pmtu` (IPv6: 1280) or lives for longer than `mtu_expires`.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::siphash::SipKey;

/// Least MTU of a link that carries IPv6 (RFC 8200 section 5).
pub const IPV6_MIN_MTU: u16 = 1280;

/// The kernel's default of `min_pmtu`.
pub const MIN_PMTU: u16 = 552;

/// MTUs that links used to have (RFC 1191 section 7.1): routers of old do not say what would fit.
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508];

/// The kernel's knobs of `net.ipv4.route.*`, with its names and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmtuParams {
    /// How long an entry holds, in ns; then the path is tried with longer packets again.
    pub mtu_expires: u64,
    /// IPv4 paths are not believed to be narrower. What else would be cut off are attempts to have everything sent in
    /// the tiniest of pieces.
    pub min_pmtu: u16,
    /// Destinations at the most; with one more that which expires first goes.
    pub max_entries: usize,
}

impl Default for PmtuParams {
    fn default() -> Self {
        PmtuParams { mtu_expires: 600_000_000_000, min_pmtu: MIN_PMTU, max_entries: 1024 }
    }
}

struct Entry {
    mtu: u16,
    expires: u64,
}

/// See the [module](self).
pub struct PmtuCache {
    params: PmtuParams,
    entries: HashMap<IpAddr, Entry, SipKey>,
    by_age: BTreeSet<(u64, IpAddr)>,
}

impl PmtuCache {
    /// Nothing known. `key` hashes the table.
    pub fn new(params: PmtuParams, key: SipKey) -> Self {
        PmtuCache { params, entries: HashMap::with_hasher(key), by_age: BTreeSet::new() }
    }

    /// How long packets to `dst` may be at `now` (ns) by a device with `mtu`, in bytes from the IP header on.
    pub fn mtu(&self, now: u64, dst: IpAddr, mtu: u16) -> u16 {
        match self.entries.get(&dst) {
            Some(entry) if entry.expires > now => entry.mtu.min(mtu),
            _ => mtu,
        }
    }

    /// A packet of `len` bytes to `dst`, by a device with `mtu`, was too long somewhere; `reported` is what would have
    /// fitted there, 0 if nobody said. If packets to `dst` are to be shorter from now on: until when, in ns.
    pub fn update(&mut self, now: u64, dst: IpAddr, (len, mtu): (u16, u16), reported: u32) -> Option<u64> {
        let least = if dst.is_ipv6() { IPV6_MIN_MTU } else { self.params.min_pmtu };
        let reported = match (reported, dst) {
            (0, IpAddr::V4(_)) => PLATEAUS.into_iter().find(|plateau| *plateau < len).unwrap_or(0),
            // To be ignored: nothing shorter is ever needed (RFC 8201 section 4).
            (0..1280, IpAddr::V6(_)) => return None,
            _ => u16::try_from(reported).unwrap_or(u16::MAX),
        };
        let known = self.mtu(now, dst, mtu);
        let new = reported.max(least);
        // Never up by a report, and not by what is no news: an old one may come late.
        if new >= known {
            return None;
        }
        self.forget(dst);
        while let Some(&(expires, old)) = self.by_age.first()
            && (expires <= now || self.entries.len() >= self.params.max_entries)
        {
            self.forget(old);
        }
        if self.entries.len() >= self.params.max_entries {
            return None;
        }
        let expires = now.saturating_add(self.params.mtu_expires);
        self.entries.insert(dst, Entry { mtu: new, expires });
        self.by_age.insert((expires, dst));
        Some(expires)
    }

    fn forget(&mut self, dst: IpAddr) {
        if let Some(entry) = self.entries.remove(&dst) {
            self.by_age.remove(&(entry.expires, dst));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn v4(n: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn v6(n: u128) -> IpAddr {
        Ipv6Addr::from((0xfd << 120) + n).into()
    }

    fn cache() -> PmtuCache {
        PmtuCache::new(PmtuParams { max_entries: 4, ..PmtuParams::default() }, SipKey::new([5, 6]))
    }

    #[test]
    fn shrinks_by_reports_and_grows_by_time() {
        let mut cache = cache();
        assert_eq!(cache.mtu(0, v4(1), 1500), 1500);
        assert_eq!(cache.update(0, v4(1), (1500, 1500), 1400), Some(600 * SECOND));
        assert_eq!((cache.mtu(0, v4(1), 1500), cache.mtu(0, v4(2), 1500)), (1400, 1500));
        // A device with less has the last word.
        assert_eq!(cache.mtu(0, v4(1), 1300), 1300);
        // No news, and no growth, which would also make it last.
        assert_eq!(cache.update(300 * SECOND, v4(1), (1500, 1500), 1400), None);
        assert_eq!(cache.update(300 * SECOND, v4(1), (1500, 1500), 1450), None);
        assert_eq!(cache.mtu(600 * SECOND - 1, v4(1), 1500), 1400);
        assert_eq!(cache.mtu(600 * SECOND, v4(1), 1500), 1500);
        assert!(cache.update(600 * SECOND, v4(1), (1500, 1500), 1450).is_some());
        assert!(cache.update(700 * SECOND, v4(1), (1450, 1500), 1000).is_some());
        assert_eq!(cache.mtu(1299 * SECOND, v4(1), 1500), 1000);
        assert_eq!(cache.entries.len(), 1);
    }

    #[test]
    fn reports_that_say_too_little() {
        let mut cache = cache();
        for (dst, len, reported, want) in [
            (v4(1), 1500, 68, 552),
            (v4(2), 1500, 0, 1492),
            (v4(3), 1492, 0, 1006),
            (v4(4), 508, 0, 552),
            (v4(5), 1500, 1500, 1500),
            (v4(6), 1500, 100_000, 1500),
            (v6(1), 1500, 1280, 1280),
            (v6(2), 1500, 1279, 1500),
            (v6(3), 1500, 0, 1500),
        ] {
            assert_eq!(cache.update(0, dst, (len, 1500), reported).is_some(), want < 1500, "{dst}");
            assert_eq!(cache.mtu(0, dst, 1500), want, "{dst}");
        }
        // What one device can't carry anyway is left alone.
        assert_eq!(cache.update(0, v4(9), (500, 500), 100), None);
        assert_eq!(cache.mtu(0, v4(9), 500), 500);
    }

    #[test]
    fn what_expires_first_makes_room() {
        let mut cache = cache();
        for n in 0..4 {
            assert!(cache.update(n * SECOND, v4(n as u32), (1500, 1500), 1400).is_some());
        }
        assert!(cache.update(5 * SECOND, v4(0), (1400, 1500), 1300).is_some());
        assert!(cache.update(6 * SECOND, v6(9), (1500, 1500), 1400).is_some());
        let of = |n| cache.mtu(6 * SECOND, v4(n), 1500);
        assert_eq!([of(0), of(1), of(2), of(3)], [1300, 1500, 1400, 1400]);
        let mut none =
            PmtuCache::new(PmtuParams { max_entries: 0, ..PmtuParams::default() }, SipKey::new([0, 0]));
        assert_eq!(none.update(0, v4(1), (1500, 1500), 1400), None);
        assert_eq!(none.mtu(0, v4(1), 1500), 1500);
    }

    proptest! {
        #[test]
        fn always_within_bounds(
            events in prop::collection::vec((0u64..200, 0u32..9, any::<u16>(), prop_oneof![0u32..2000, any::<u32>()]), 0..60)
        ) {
            let mut cache = cache();
            let mut now = 0;
            for (seconds, n, len, reported) in events {
                now += seconds * SECOND;
                let dst = if n % 2 == 0 { v4(n) } else { v6(n.into()) };
                let before = cache.mtu(now, dst, 1500);
                let shrinks = cache.update(now, dst, (len, 1500), reported).is_some();
                let after = cache.mtu(now, dst, 1500);
                prop_assert_eq!(after < before, shrinks);
                let least = if dst.is_ipv6() { IPV6_MIN_MTU } else { 552 };
                prop_assert!(after >= least);
                prop_assert!(cache.entries.len() <= 4 && cache.by_age.len() == cache.entries.len());
            }
        }
    }
}
