//! The rate limit of ICMP messages: one bucket for all of them, and one for each host that they are
//! sent to (the kernel's `icmp_global_allow` and `inet_peer_xrlim_allow`; RFC 1812 section 4.3.2.8,
//! RFC 4443 section 2.4(f)).
//!
//! Called by the slow path, in virtual time. Invariants: a message that path MTU discovery needs is
//! never held back, for its loss is a black hole; the bucket of a host is asked before that for all
//! is charged, so that one sender's flood silences the answers to that sender alone; and what a
//! message takes from the bucket for all is random, so that its level does not tell which messages
//! were sent to others (CVE-2020-25705).
//!
//! The table of hosts is bounded and its hash is keyed. In a set that is full, the host that was
//! silent for longest makes room: with the defaults a bucket is full again after six seconds, and
//! is then as good as none.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::siphash::SipKey;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Messages that a host may be sent at once, after a silence (the kernel's `XRLIM_BURST_FACTOR`).
const BURST: u64 = 6;
/// The bucket for all is filled no more often than this, as the kernel does.
const REFILL: u64 = 20 * MS;
/// Hosts that are known: `SETS` times `WAYS`. `SETS` is a power of two.
const SETS: usize = 512;
const WAYS: usize = 8;
/// What the clock is ahead of that of the caller, so that a bucket can be full when that starts.
const EPOCH: u64 = 1 << 62;

/// The kernel's knobs of `net.ipv4.icmp_*` and `net.ipv6.icmp.*`, with its names and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpParams {
    /// Time between two messages to a host of IPv4, in ns; 0: no limit for each.
    pub icmp_ratelimit: u64,
    /// The types of ICMP that are limited, a bit for each: 3 (destination unreachable), 4, 11 (time
    /// exceeded) and 12 (parameter problem). "Fragmentation needed" never is.
    pub icmp_ratemask: u32,
    /// The same time for IPv6, all of whose errors are limited but "packet too big". (The kernel
    /// allows more to a host behind a route with a short prefix.)
    pub icmpv6_ratelimit: u64,
    /// Messages to all hosts in a second.
    pub icmp_msgs_per_sec: u32,
    /// How many of these may be sent at once.
    pub icmp_msgs_burst: u32,
}

impl Default for IcmpParams {
    fn default() -> Self {
        IcmpParams {
            icmp_ratelimit: 1000 * MS,
            icmp_ratemask: 1 << 3 | 1 << 4 | 1 << 11 | 1 << 12,
            icmpv6_ratelimit: 100 * MS,
            icmp_msgs_per_sec: 1000,
            icmp_msgs_burst: 50,
        }
    }
}

/// A host that messages were sent to.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// 0: none.
    addr: u128,
    /// When its bucket was empty, had nothing been taken from it since; a message costs the time
    /// between two.
    empty_at: u64,
}

/// See the [module](self).
pub struct IcmpLimit {
    params: IcmpParams,
    key: SipKey,
    peers: Box<[[Peer; WAYS]]>,
    credit: i64,
    filled: u64,
    /// What has been drawn from the generator.
    drawn: u64,
    limited_global: u64,
    limited_host: u64,
}

impl IcmpLimit {
    /// Full buckets. `key` hashes the table, and says what messages cost.
    pub fn new(params: IcmpParams, key: SipKey) -> Self {
        IcmpLimit {
            credit: params.icmp_msgs_burst.into(),
            params,
            key,
            peers: vec![[Peer::default(); WAYS]; SETS].into_boxed_slice(),
            filled: EPOCH,
            drawn: 0,
            limited_global: 0,
            limited_host: 0,
        }
    }

    /// Sets what is allowed from now on; the bucket for all is full then.
    pub fn configure(&mut self, params: IcmpParams) {
        self.credit = params.icmp_msgs_burst.into();
        self.params = params;
    }

    /// Whether an ICMP message of this type and code may be sent to `to` at `now` (ns); if so, it
    /// is paid for.
    pub fn allow(&mut self, now: u64, (kind, code): (u8, u8), to: Ipv4Addr) -> bool {
        let limited = 1_u32.checked_shl(kind.into()).is_some_and(|bit| self.params.icmp_ratemask & bit != 0);
        let every = self.params.icmp_ratelimit;
        !limited || (kind, code) == (3, 4) || self.pay(now, to.to_ipv6_mapped(), every)
    }

    /// The same of ICMPv6.
    pub fn allow6(&mut self, now: u64, kind: u8, to: Ipv6Addr) -> bool {
        let every = self.params.icmpv6_ratelimit;
        kind == 2 || kind >= 128 || self.pay(now, to, every)
    }

    /// Messages that were not sent: for the sake of all hosts, and of the one that they were for.
    pub fn limited(&self) -> (u64, u64) {
        (self.limited_global, self.limited_host)
    }

    fn pay(&mut self, now: u64, to: Ipv6Addr, every: u64) -> bool {
        let now = now.saturating_add(EPOCH);
        if !self.has_credit(now) {
            self.limited_global += 1;
            return false;
        }
        if !self.peer(now, to, every) {
            self.limited_host += 1;
            return false;
        }
        // Nothing, one or two, one in the mean.
        self.drawn = self.drawn.wrapping_add(1);
        self.credit -= (self.key.hash(&[self.drawn]) % 3) as i64;
        true
    }

    fn has_credit(&mut self, now: u64) -> bool {
        if self.credit > 0 {
            return true;
        }
        let passed = now.saturating_sub(self.filled).min(SECOND);
        let earned = (u64::from(self.params.icmp_msgs_per_sec) * passed / SECOND) as i64;
        if passed < REFILL || earned == 0 {
            return false;
        }
        self.filled = now;
        self.credit = (self.credit + earned).min(self.params.icmp_msgs_burst.into());
        self.credit > 0
    }

    /// Takes a message out of the bucket of `to`, if there is one in it.
    fn peer(&mut self, now: u64, to: Ipv6Addr, every: u64) -> bool {
        let (addr, most) = (to.to_bits(), every.saturating_mul(BURST));
        let at = self.key.hash(&[(addr >> 64) as u64, addr as u64]) as usize % SETS;
        let Some(set) = self.peers.get_mut(at) else { return true };
        let known = set.iter().position(|peer| peer.addr == addr);
        let oldest = || (0..WAYS).min_by_key(|way| set[*way].empty_at).unwrap_or(0);
        let peer = &mut set[known.unwrap_or_else(oldest)];
        if known.is_none() {
            *peer = Peer { addr, empty_at: 0 };
        }
        let empty_at = peer.empty_at.max(now.saturating_sub(most));
        let enough = now.saturating_sub(empty_at) >= every;
        peer.empty_at = empty_at.saturating_add(if enough { every } else { 0 });
        enough
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: (u8, u8) = (11, 0);
    const TOO_BIG: (u8, u8) = (3, 4);

    fn limit(seed: u64) -> IcmpLimit {
        IcmpLimit::new(IcmpParams::default(), SipKey::new([seed, 1]))
    }

    fn host(n: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0a00_0000 + n)
    }

    /// How many of `n` messages to `hosts` in turn may be sent at `now`.
    fn sent(limit: &mut IcmpLimit, now: u64, n: u32, hosts: u32) -> u32 {
        (0..n).filter(|i| limit.allow(now, TTL, host(i % hosts))).count() as u32
    }

    #[test]
    fn a_host_is_sent_six_at_once_and_one_a_second() {
        let mut limit = limit(1);
        assert_eq!(sent(&mut limit, 0, 100, 1), 6);
        assert_eq!(limit.limited(), (0, 94));
        assert_eq!(sent(&mut limit, SECOND - 1, 100, 1), 0);
        assert_eq!(sent(&mut limit, SECOND, 100, 1), 1);
        assert_eq!(sent(&mut limit, 3 * SECOND, 100, 1), 2);
        // Time that runs backwards earns nothing.
        assert_eq!(sent(&mut limit, 2 * SECOND, 100, 1), 0);
        assert_eq!(sent(&mut limit, 100 * SECOND, 100, 1), 6);
        assert_eq!(sent(&mut limit, u64::MAX, 100, 1), 6);
        // To others nothing was lost by it.
        assert!(limit.allow(u64::MAX, TTL, host(7)));
        assert_eq!(limit.limited().0, 0);
    }

    /// One sender's flood, however long, takes nothing from the others, and nothing from path MTU
    /// discovery.
    #[test]
    fn a_flood_silences_its_sender_only() {
        let mut limit = limit(2);
        for ms in 0..2000 {
            sent(&mut limit, ms * MS, 100, 1);
            if ms % 100 == 0 {
                assert!(limit.allow(ms * MS, TTL, host(1000 + ms as u32)), "{ms}");
            }
            assert!(limit.allow(ms * MS, TOO_BIG, host(0)));
        }
        // Nor does one from everywhere take the latter.
        sent(&mut limit, 5 * SECOND, 10_000, 10_000);
        assert!(limit.limited().0 > 9000);
        assert!((0..10_000).all(|i| limit.allow(5 * SECOND, TOO_BIG, host(i))));
        let six = |i: u128| Ipv6Addr::from_bits((0x2001_0db8 << 96) + i);
        assert!(!limit.allow6(5 * SECOND, 3, six(1)));
        assert!((0..10_000).all(|i| limit.allow6(5 * SECOND, 2, six(i))));
    }

    /// Twenty milliseconds bring twenty messages, each of which takes one in the mean; how many it
    /// were that others were sent can't be told from how many are left.
    #[test]
    fn the_bucket_for_all_can_not_be_counted_in() {
        let mut bursts = Vec::new();
        for seed in 0..50 {
            let mut limit = limit(seed);
            let burst = sent(&mut limit, 0, 1000, 1000);
            bursts.push(burst);
            assert!((25..=120).contains(&burst), "{burst}");
            assert_eq!(sent(&mut limit, REFILL - 1, 1000, 1000), 0);
            let more = sent(&mut limit, REFILL, 1000, 1000);
            assert!((9..=60).contains(&more), "{more}");
        }
        let mean = bursts.iter().sum::<u32>() / 50;
        assert!((45..=56).contains(&mean), "{mean}");
        bursts.sort_unstable();
        bursts.dedup();
        assert!(bursts.len() > 8, "{bursts:?}");
    }

    #[test]
    fn over_time_no_more_than_the_rate() {
        let mut limit = limit(3);
        let all = (0..200_000).filter(|n| limit.allow(u64::from(n / 20) * MS, TTL, host(*n))).count();
        assert!((9_000..=11_000).contains(&all), "{all}");
    }

    #[test]
    fn the_mask_and_zero_mean_no_limit() {
        let mut limit = limit(4);
        // Echo replies, and what is beyond the mask.
        assert!((0..1000).all(|_| limit.allow(0, (0, 0), host(1)) && limit.allow(0, (255, 0), host(1))));
        assert!((0..1000).all(|_| limit.allow6(0, 129, Ipv6Addr::LOCALHOST)));
        let params = IcmpParams { icmp_ratelimit: 0, icmp_ratemask: 1, ..IcmpParams::default() };
        let mut limit = IcmpLimit::new(params, SipKey::new([1, 1]));
        assert!((0..1000).all(|_| limit.allow(0, TTL, host(1))));
        let replies = (0..1000).filter(|_| limit.allow(0, (0, 0), host(1))).count();
        assert!((25..=120).contains(&replies), "only the bucket for all: {replies}");
        let params = IcmpParams { icmp_msgs_per_sec: 0, icmp_msgs_burst: 0, ..IcmpParams::default() };
        let mut limit = IcmpLimit::new(params, SipKey::new([1, 1]));
        assert!(!limit.allow(u64::MAX, TTL, host(1)));
    }

    /// Hosts of IPv4 and of IPv6 are told apart, and so are all of a table that is not full.
    #[test]
    fn more_hosts_than_there_is_room_for() {
        let params =
            IcmpParams { icmp_msgs_per_sec: u32::MAX, icmp_msgs_burst: u32::MAX, ..IcmpParams::default() };
        let mut limit = IcmpLimit::new(params, SipKey::new([5, 5]));
        for n in 0..600 {
            assert_eq!(sent_to(&mut limit, n), 6);
        }
        for n in 0..600 {
            assert_eq!(sent_to(&mut limit, n), 0, "{n}");
        }
        // Hosts that come now are not turned away.
        for n in 600..20_000 {
            assert_eq!(sent_to(&mut limit, n), 6);
        }
        assert!(limit.allow6(0, 1, host(19_999).to_ipv6_compatible()));
        fn sent_to(limit: &mut IcmpLimit, n: u32) -> usize {
            (0..10).filter(|_| limit.allow(0, TTL, host(n))).count()
        }
    }

    proptest! {
        /// Whatever is asked for when: a host never gets more than the burst and one for each time
        /// between two.
        #[test]
        fn a_host_never_gets_more(steps in prop::collection::vec((0u64..3000, 1u32..9), 1..60)) {
            let mut limit = limit(6);
            let (mut now, mut all) = (0, 0);
            for (ms, n) in steps {
                now += ms * MS;
                all += u64::from(sent(&mut limit, now, n, 1));
                prop_assert!(all <= BURST + now / SECOND);
            }
        }
    }
}
