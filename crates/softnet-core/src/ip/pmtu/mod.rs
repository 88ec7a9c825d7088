//! What is known of path MTUs (RFC 1191, RFC 8201): how long a packet to a destination may be,
//! where that is less than the first link takes.
//!
//! For local senders, which look in [`PathMtus`] without a lock. [`PmtuCache`] is its one writer,
//! by way of the slow path. The caller that reports "fragmentation needed" or "packet too big" to
//! [`PmtuCache::update`] has made sure that it is about a packet which may well have been sent from
//! here (RFC 8201 section 4, RFC 5927 section 7): quoted is a flow of a connected socket, or one to
//! a destination that was sent something lately ([`RecentPeers`]). All that a forged report can do
//! then is what its author could do by dropping packets, and to this destination alone. Invariant:
//! bounded; of IPv6 no entry says less than 1280, of IPv4 less than 68, and no packet is cut
//! shorter than `min_pmtu`; an entry never grows, and does not live for longer than `mtu_expires`.

mod paths;
mod recent;

#[cfg(all(test, feature = "loom"))]
mod models;

use std::sync::Arc;

pub use paths::PathMtus;
pub use recent::{RECENT, RecentPeers};

use crate::fold::FoldKey;
use crate::sock::key::{Addr, is_v4};
use crate::time::{Timer, TimerWheel};

/// Least MTU of a link that carries IPv6 (RFC 8200 section 5).
pub const IPV6_MIN_MTU: u16 = 1280;

/// The kernel's default of `min_pmtu`.
pub const MIN_PMTU: u16 = 552;

/// Least MTU of a link that carries IPv4 (RFC 791 section 3.2).
const IPV4_MIN_MTU: u16 = 68;

/// MTUs that links used to have (RFC 1191 section 7.1): routers of old do not say what would fit.
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508];

/// The kernel's knobs of `net.ipv4.route.*`, with its names and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmtuParams {
    /// How long an entry holds, in ns; then the path is tried with longer packets again.
    pub mtu_expires: u64,
    /// IPv4 packets are not cut into shorter ones, or attempts to have everything sent in the
    /// tiniest of pieces would succeed. On a path that takes even less they may be fragmented on
    /// the way (the kernel's locked MTU).
    pub min_pmtu: u16,
}

impl Default for PmtuParams {
    fn default() -> Self {
        PmtuParams { mtu_expires: 600_000_000_000, min_pmtu: MIN_PMTU }
    }
}

/// The one writer of a set of paths.
pub struct PmtuCache {
    params: PmtuParams,
    paths: Arc<PathMtus>,
    /// The timer of each place: armed while a path is there, which it says the place of when that expires.
    timers: Box<[Timer]>,
    wheel: TimerWheel<u16>,
    ignored: u64,
}

impl PmtuCache {
    /// Nothing known. `key` hashes the destinations.
    pub fn new(params: PmtuParams, key: FoldKey) -> Self {
        let mut wheel = TimerWheel::new();
        let timers = (0..paths::PLACES as u16).map(|at| wheel.add(at)).collect();
        PmtuCache { params, paths: Arc::new(PathMtus::new(key)), timers, wheel, ignored: 0 }
    }

    /// What senders look in.
    pub fn paths(&self) -> &Arc<PathMtus> {
        &self.paths
    }

    /// Paths that are known to take less than their first link.
    pub fn len(&self) -> usize {
        self.wheel.armed()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long packets to `dst` are to be by a device with `mtu`, in bytes from the IP header on.
    pub fn mtu(&self, dst: Addr, mtu: u16) -> u16 {
        let least = if is_v4(dst) { self.params.min_pmtu } else { IPV6_MIN_MTU };
        self.paths.limit(dst).map_or(mtu, |limit| limit.max(least).min(mtu))
    }

    /// A packet of `len` bytes to `dst`, by a device with `mtu`, was too long somewhere; `reported`
    /// is what would have fitted there, 0 if that is not known. Whether packets to `dst` are to be
    /// shorter from now on.
    pub fn update(&mut self, now: u64, dst: Addr, (len, mtu): (u16, u16), reported: u32) -> bool {
        let limit = match (reported, is_v4(dst)) {
            (0, true) => PLATEAUS.into_iter().find(|plateau| *plateau < len).unwrap_or(IPV4_MIN_MTU),
            (_, true) => u16::try_from(reported).unwrap_or(u16::MAX).max(IPV4_MIN_MTU),
            // To be ignored: nothing shorter is ever needed (RFC 8201 section 4).
            (0..1280, false) => return false,
            (_, false) => u16::try_from(reported).unwrap_or(u16::MAX),
        };
        // Never up by a report, and not by what is no news: an old one may come late. Nor by one
        // about a packet that would have fitted.
        if limit >= self.paths.limit(dst).unwrap_or(mtu).min(mtu) || limit >= len {
            return false;
        }
        let (places, has) = self.paths.places(dst);
        let expires = |at: usize| self.wheel.deadline(&self.timers[at]);
        // One that is free before one that is taken, and of these that which expires first.
        let Some(at) = has.or(places.min_by_key(|at| expires(*at))) else { return false };
        let evicted = has.is_none() && expires(at).is_some();
        self.wheel.arm(&self.timers[at], now, now.saturating_add(self.params.mtu_expires));
        self.paths.put(at, dst, limit);
        if evicted {
            self.paths.raise();
        }
        true
    }

    /// Counts a report that was not believed.
    pub fn ignore(&mut self) {
        self.ignored += 1;
    }

    /// Reports that were not believed, since nothing of the kind was sent lately.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.wheel.next_deadline()
    }

    /// Forgets what has expired at `now`.
    pub fn poll(&mut self, now: u64) {
        let mut expired = false;
        while let Some(at) = self.wheel.expire(now) {
            self.paths.clear(at.into());
            expired = true;
        }
        if expired {
            self.paths.raise();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashMap;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::sock::key::addr_of;

    const SECOND: u64 = 1_000_000_000;

    fn v4(n: u32) -> Addr {
        addr_of(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)))
    }

    fn v6(n: u128) -> Addr {
        addr_of(IpAddr::V6(Ipv6Addr::from((0xfd << 120) + n)))
    }

    fn cache() -> PmtuCache {
        let key = FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]);
        PmtuCache::new(PmtuParams::default(), key)
    }

    #[test]
    fn shrinks_by_reports_and_grows_by_time() {
        let mut cache = cache();
        assert_eq!((cache.mtu(v4(1), 1500), cache.next_deadline()), (1500, None));
        assert!(cache.update(0, v4(1), (1500, 1500), 1400));
        assert_eq!(cache.next_deadline(), Some(600 * SECOND));
        assert_eq!((cache.mtu(v4(1), 1500), cache.mtu(v4(2), 1500)), (1400, 1500));
        // A device with less has the last word.
        assert_eq!(cache.mtu(v4(1), 1300), 1300);
        // No news, and no growth, which would also make it last.
        assert!(!cache.update(300 * SECOND, v4(1), (1500, 1500), 1400));
        assert!(!cache.update(300 * SECOND, v4(1), (1500, 1500), 1450));
        cache.poll(600 * SECOND - 1);
        assert_eq!((cache.mtu(v4(1), 1500), cache.len()), (1400, 1));
        cache.poll(600 * SECOND);
        assert_eq!((cache.mtu(v4(1), 1500), cache.len(), cache.next_deadline()), (1500, 0, None));
        assert!(cache.update(600 * SECOND, v4(1), (1500, 1500), 1450));
        assert!(cache.update(700 * SECOND, v4(1), (1450, 1500), 1000));
        cache.poll(1299 * SECOND);
        assert_eq!((cache.mtu(v4(1), 1500), cache.len()), (1000, 1));
        assert_eq!(cache.next_deadline(), Some(1300 * SECOND));
    }

    #[test]
    fn reports_that_say_too_little() {
        let mut cache = cache();
        for (dst, len, reported, limit, want) in [
            // Not cut shorter than 552, but longer ones than 68 are not told that they may not be
            // fragmented.
            (v4(1), 1500, 68, Some(68), 552),
            (v4(2), 1500, 1, Some(68), 552),
            (v4(3), 1500, 0, Some(1492), 1492),
            (v4(4), 1492, 0, Some(1006), 1006),
            (v4(5), 508, 0, Some(68), 552),
            (v4(6), 1500, 1500, None, 1500),
            (v4(7), 1500, 100_000, None, 1500),
            // That packet would have fitted.
            (v4(8), 1000, 1000, None, 1500),
            (v4(9), 100, 1400, None, 1500),
            (v6(1), 1500, 1280, Some(1280), 1280),
            (v6(2), 1500, 1279, None, 1500),
            (v6(3), 1500, 0, None, 1500),
            (v6(4), 1300, 1400, None, 1500),
        ] {
            assert_eq!(cache.update(0, dst, (len, 1500), reported), limit.is_some(), "{dst:#x}");
            assert_eq!((cache.paths().limit(dst), cache.mtu(dst, 1500)), (limit, want), "{dst:#x}");
            let too_long = |len| cache.paths().is_too_long(dst, len);
            let most = usize::from(limit.unwrap_or(u16::MAX));
            assert!(!too_long(most) && (too_long(most + 1) || limit.is_none()), "{dst:#x}");
        }
        // Of what one device can't carry anyway no path takes less.
        assert!(!cache.update(0, v4(10), (501, 500), 500));
        assert_eq!(cache.mtu(v4(10), 500), 500);
        assert!(cache.update(0, v4(10), (500, 500), 100), "its routers may cut what it sends");
        assert_eq!((cache.mtu(v4(10), 500), cache.paths().limit(v4(10))), (500, Some(100)));
    }

    /// Senders to others look nowhere for packets that every path takes, and for none once all is
    /// forgotten.
    #[test]
    fn what_every_path_takes_is_known() {
        let mut cache = cache();
        let (paths, long) = (cache.paths().clone(), |n| usize::from(u16::MAX) - n);
        assert!(!paths.is_too_long(v4(1), long(0)));
        for (second, dst, mtu) in [(0, v4(1), 1400), (1, v6(1), 1300), (2, v4(2), 1000)] {
            assert!(cache.update(second * SECOND, dst, (1500, 1500), mtu));
        }
        assert_eq!(
            [v4(1), v6(1), v4(2), v4(3)].map(|dst| paths.is_too_long(dst, 1400)),
            [false, true, true, false]
        );
        assert_eq!([v4(1), v6(1), v4(2)].map(|dst| paths.is_too_long(dst, 1001)), [false, false, true]);
        cache.poll(602 * SECOND);
        assert_eq!([v4(1), v6(1), v4(2), v4(3)].map(|dst| paths.is_too_long(dst, long(0))), [false; 4]);
    }

    /// Far more destinations than places: those that expire first make room, and the set says of
    /// none what is another's.
    #[test]
    fn what_expires_first_makes_room() {
        let mut cache = cache();
        let mtu = |n: u32| 600 + n as u16 % 800;
        let n = 4 * paths::PLACES as u32;
        for i in 0..n {
            assert!(cache.update(u64::from(i) * SECOND / 100, v4(i), (1500, 1500), mtu(i).into()));
        }
        assert!(cache.len() <= paths::PLACES && cache.len() > paths::PLACES * 9 / 10, "{}", cache.len());
        let known: Vec<u32> = (0..n).filter(|i| cache.paths().limit(v4(*i)).is_some()).collect();
        assert_eq!(known.len(), cache.len());
        assert!(known.iter().all(|i| cache.mtu(v4(*i), 1500) == mtu(*i)));
        let old = known.iter().filter(|i| **i < n / 2).count();
        assert!(old < paths::PLACES / 10, "{old} of the older half");
        assert!((n - 100..n).all(|i| known.contains(&i)), "the newest are there");
    }

    proptest! {
        #[test]
        fn always_within_bounds(
            events in prop::collection::vec((0u64..200, 0u32..9, any::<u16>(), prop_oneof![0u32..2000, any::<u32>()]), 0..60)
        ) {
            let mut cache = cache();
            let mut now = 0;
            let mut model: HashMap<Addr, (u16, u64)> = HashMap::new();
            for (seconds, n, len, reported) in events {
                now += seconds * SECOND;
                cache.poll(now);
                model.retain(|_, (_, expires)| *expires > now);
                let dst = if n % 2 == 0 { v4(n) } else { v6(n.into()) };
                let before = cache.paths().limit(dst);
                prop_assert_eq!(before, model.get(&dst).map(|(limit, _)| *limit));
                let shrinks = cache.update(now, dst, (len, 1500), reported);
                let after = cache.paths().limit(dst);
                prop_assert_eq!(after.unwrap_or(1500) < before.unwrap_or(1500), shrinks);
                if let Some(limit) = after.filter(|_| shrinks) {
                    let least = if is_v4(dst) { 68 } else { 1280 };
                    prop_assert!(limit < len && limit >= least);
                    model.insert(dst, (limit, now + 600 * SECOND));
                }
                let least = if is_v4(dst) { 552 } else { 1280 };
                prop_assert!(cache.mtu(dst, 1500) >= least);
                prop_assert_eq!(cache.len(), model.len());
                let first = model.values().map(|(_, expires)| *expires).min();
                prop_assert_eq!(cache.next_deadline(), first);
                for (dst, (limit, _)) in &model {
                    prop_assert!(cache.paths().is_too_long(*dst, usize::from(*limit) + 1));
                    prop_assert!(!cache.paths().is_too_long(*dst, (*limit).into()));
                }
            }
        }
    }
}
