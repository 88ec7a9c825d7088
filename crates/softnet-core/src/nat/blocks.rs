//! Deterministic ports (RFC 7422): an inside host has a block of ports of one external address,
//! which arithmetic tells from its address, and its address from any of them. So a provider that is
//! asked which host a packet was of needs no log of connections.
//!
//! Plain values, part of one version of the rules. Blocks are given out one after the other, of each
//! address in turn (RFC 7422 section 2.2: sequential); ports below 1024 are in none. Invariant: blocks
//! of different hosts have no port in common.

use std::net::Ipv4Addr;
use std::ops::{Range, RangeInclusive};

use super::ports::{LOW, WORDS};
use crate::ip::Prefix;

/// Blocks that one address can have, of 64 ports each.
const MOST: u32 = (WORDS - LOW) as u32;

/// Which ports of which external address belong to each inside host, by arithmetic (RFC 7422 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    hosts: Prefix<Ipv4Addr>,
    /// Hosts that one address is for.
    each: u32,
    /// Words of 64 ports of a block.
    words: usize,
}

impl Blocks {
    /// For each host of `hosts` a block of as many ports, a multiple of 64, as `addresses` external
    /// addresses have for it; `None` if there are fewer than 64.
    pub fn new(hosts: Prefix<Ipv4Addr>, addresses: usize) -> Option<Self> {
        let all = 1u64 << (32 - u32::from(hosts.len()));
        let each = u32::try_from(all.div_ceil(addresses.max(1) as u64)).ok().filter(|each| *each <= MOST)?;
        Some(Blocks { hosts, each, words: (MOST / each) as usize })
    }

    /// External addresses that all of `hosts` need.
    pub fn addresses_for(hosts: Prefix<Ipv4Addr>) -> u64 {
        (1u64 << (32 - u32::from(hosts.len()))).div_ceil(u64::from(MOST))
    }

    /// Ports of a block.
    pub fn ports(&self) -> usize {
        64 * self.words
    }

    /// Whether `host` has one.
    pub(super) fn has(&self, host: u32) -> bool {
        self.hosts.contains(Ipv4Addr::from_bits(host))
    }

    /// Which of the external addresses is that of `host`, and the words of its ports.
    pub(super) fn words_of(&self, host: u32) -> Option<(usize, Range<usize>)> {
        let nth = self.has(host).then(|| host - self.hosts.addr().to_bits())?;
        let first = LOW + (nth % self.each) as usize * self.words;
        Some(((nth / self.each) as usize, first..first + self.words))
    }

    /// The same as ports.
    pub fn of_host(&self, host: Ipv4Addr) -> Option<(usize, RangeInclusive<u16>)> {
        let (address, words) = self.words_of(host.to_bits())?;
        // A port has 16 bits, and so have the ends of words below `WORDS`.
        Some((address, (64 * words.start) as u16..=(64 * words.end - 1) as u16))
    }

    /// Whether this port of external address number `address` is in the block of `host`.
    pub(super) fn is_of(&self, address: usize, port: u16, host: u32) -> bool {
        self.host_of(address, port).map(Ipv4Addr::to_bits) == Some(host)
    }

    /// The host whose block has this port of external address number `address`.
    pub fn host_of(&self, address: usize, port: u16) -> Option<Ipv4Addr> {
        let at = usize::from(port / 64).checked_sub(LOW)? / self.words;
        let nth = u32::try_from(at).ok().filter(|at| *at < self.each)?;
        let host = u32::try_from(address).ok()?.checked_mul(self.each)?.checked_add(nth)?;
        let host = Ipv4Addr::from_bits(self.hosts.addr().to_bits().checked_add(host)?);
        self.hosts.contains(host).then_some(host)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(hosts: &str, addresses: usize) -> Option<Blocks> {
        Blocks::new(hosts.parse().unwrap(), addresses)
    }

    #[test]
    fn ports_are_shared_out() {
        // 256 hosts behind four addresses: 64 each, of 15 words of ports.
        let blocks = blocks("100.64.0.0/24", 4).unwrap();
        assert_eq!(blocks.ports(), 960);
        let of = |last| blocks.of_host(Ipv4Addr::new(100, 64, 0, last));
        assert_eq!(of(0), Some((0, 1024..=1983)));
        assert_eq!(of(1), Some((0, 1984..=2943)));
        assert_eq!(of(63), Some((0, 61_504..=62_463)));
        assert_eq!(of(64), Some((1, 1024..=1983)));
        assert_eq!(blocks.of_host(Ipv4Addr::new(100, 64, 1, 0)), None);
        assert_eq!(blocks.host_of(1, 1983), Some(Ipv4Addr::new(100, 64, 0, 64)));
        for (address, port) in [(0, 1023), (0, 62_464), (4, 1024), (usize::MAX, 1024)] {
            assert_eq!(blocks.host_of(address, port), None);
        }
    }

    #[test]
    fn too_many_hosts_are_refused() {
        assert_eq!(blocks("100.64.0.0/22", 1), None);
        assert_eq!(Blocks::addresses_for("100.64.0.0/22".parse().unwrap()), 2);
        assert_eq!(blocks("100.64.0.0/22", 2).unwrap().ports(), 64);
        assert_eq!(blocks("10.0.0.0/8", 256), None);
        // All ports but the lowest.
        assert_eq!(blocks("192.168.1.7/32", 1).unwrap().ports(), 64_512);
        assert_eq!(blocks("0.0.0.0/0", 1), None);
    }

    proptest! {
        #[test]
        fn a_port_tells_its_host(len in 16u8..=32, addresses in 1usize..=256, numbers: [u16; 2]) {
            let hosts = Prefix::containing(Ipv4Addr::new(100, 64, 0, 0), len).unwrap();
            let Some(blocks) = Blocks::new(hosts, addresses) else { return Ok(()) };
            let mask = u32::MAX.checked_shr(len.into()).unwrap_or(0);
            let [one, two] = numbers.map(|n| Ipv4Addr::from_bits(0x6440_0000 | u32::from(n) & mask));
            let (address, ports) = blocks.of_host(one).unwrap();
            prop_assert!(address < addresses && ports.len() == blocks.ports() && *ports.start() >= 1024);
            for port in [*ports.start(), *ports.end()] {
                prop_assert_eq!(blocks.host_of(address, port), Some(one));
            }
            let other = blocks.of_host(two).unwrap();
            prop_assert!(one == two || address != other.0 || !other.1.contains(ports.start()));
        }
    }
}
