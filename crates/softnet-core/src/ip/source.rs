//! What the fast path asks of a packet's source address: that it is not one of softnet's own (RFC
//! 1812 section 5.3.8), and on devices that ask for it that packets to it would leave by the device
//! it came by (RFC 3704; the kernel's `rp_filter`).
//!
//! Called by `input`. The first is asked of every packet, so it is two bytes of the address that
//! are looked up in two small tables; only where both are those of an address of ours, which few
//! are, is the whole address looked at.

use super::adjacency::Routing;
use super::family::{Family, LongestMatch};
use super::header::is_martian_source;
use super::input::Ingress;
use crate::SoftnetData;
use crate::skb::{BATCH, Batch, DropReason};

/// The source can't be on a wire (IPv4).
pub(super) const MARTIAN_SOURCE: u8 = 1 << 0;
/// The destination can't be.
pub(super) const MARTIAN_DEST: u8 = 1 << 1;
/// It is a group.
pub(super) const GROUP: u8 = 1 << 2;
/// An address that may be link-local (IPv4).
pub(super) const LINK_LOCAL: u8 = 1 << 3;
/// The source may be one of softnet's own.
pub(super) const OWN: u8 = 1 << 4;

/// softnet's own addresses of a family, and which others may not be sources.
pub struct Sources<A> {
    /// By the byte of an address that says which network it is in: the first of IPv4, of IPv6 the
    /// eighth.
    network: [u8; 256],
    /// By its last byte.
    host: [u8; 256],
    own: Vec<A>,
}

impl<A: Family> Sources<A> {
    /// Of a stack with these addresses.
    pub fn new(own: Vec<A>) -> Self {
        let (ipv4, always) = (A::UNSPECIFIED.width() == 32, MARTIAN_SOURCE | LINK_LOCAL);
        let mut sources = Sources { network: [0; 256], host: [always; 256], own };
        for (first, entry) in (0u32..).zip(&mut sources.network).filter(|_| ipv4) {
            *entry |= if is_martian_source(first << 24) { MARTIAN_SOURCE } else { 0 };
            *entry |= if first == 169 { LINK_LOCAL } else { 0 };
        }
        for addr in &sources.own {
            let network = addr.bits() >> if ipv4 { 24 } else { 64 };
            sources.network[usize::from(network as u8)] |= OWN;
            sources.host[usize::from(addr.bits() as u8)] |= OWN;
        }
        sources
    }

    /// Tells by two bytes of a source address (see the fields) what it may be; 0: nothing but one
    /// of any other host's.
    #[inline(always)]
    pub(super) fn suspect(&self, network: u8, host: u8) -> u8 {
        self.network[usize::from(network)] & self.host[usize::from(host)]
    }

    /// Whether `addr` is one of softnet's.
    #[cold]
    #[inline(never)]
    pub(super) fn is_own(&self, addr: A) -> bool {
        self.own.contains(&addr)
    }
}

/// How a device's packets are asked for their way back (the kernel's `rp_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RpFilter {
    /// Not at all.
    #[default]
    Off,
    /// Packets to the source must leave by the device that it came by (RFC 3704 section 2.2).
    Strict,
    /// There must be a route to the source, by whichever device (RFC 3704 section 2.4).
    Loose,
}

impl RpFilter {
    /// Whether a packet from `src` may come by `dev`.
    pub(super) fn allows<A: Family>(self, tables: &Routing<A>, dev: u16, src: A) -> bool {
        let hop = || tables.next_hop(tables.fib.longest_match(src));
        match self {
            RpFilter::Off => true,
            RpFilter::Strict => hop().is_reachable() && hop().dev == dev,
            RpFilter::Loose => hop().is_reachable(),
        }
    }
}

/// Drops those packets of `batch` that the device's filter does not allow. `src` reads the source
/// of a packet; `dst` is what the caller knows of each, and stays in step. Returns how many are
/// left.
#[cold]
#[inline(never)]
pub(super) fn reverse_path<A: Family, D: Copy>(
    ctx: &mut SoftnetData,
    tables: &Routing<A>,
    ingress: &Ingress,
    batch: &mut Batch,
    dst: &mut [D; BATCH],
    src: impl Fn(&[u8]) -> Option<A>,
) -> usize {
    let (mut good, known) = (Batch::new(), *dst);
    for (skb, known) in batch.drain().zip(known) {
        if !src(skb.data()).is_some_and(|src| ingress.rp_filter.allows(tables, ingress.dev, src)) {
            ctx.free(skb, DropReason::IpRpFilter);
            continue;
        }
        if let Some(slot) = dst.get_mut(good.len()) {
            *slot = known;
        }
        // All batches have as many places.
        if let Err(skb) = good.push(skb) {
            ctx.free(skb, DropReason::Shutdown);
        }
    }
    std::mem::swap(batch, &mut good);
    batch.len()
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every own address is a suspect, and every suspect is looked at.
        #[test]
        fn none_of_ours_is_missed(own: Vec<u32>, own6: Vec<u128>, other: u32, other6: u128) {
            let all: Vec<Ipv4Addr> = own.iter().map(|addr| Ipv4Addr::from_bits(*addr)).collect();
            let sources = Sources::new(all.clone());
            for addr in all.iter().copied().chain([Ipv4Addr::from_bits(other)]) {
                let [first, .., last] = addr.octets();
                let suspect = sources.suspect(first, last);
                let (own, martian) = (all.contains(&addr), is_martian_source(addr.to_bits()));
                prop_assert_eq!(sources.is_own(addr), own);
                prop_assert!(suspect & OWN != 0 || !own);
                prop_assert_eq!(suspect & MARTIAN_SOURCE != 0, martian);
                prop_assert_eq!(suspect & LINK_LOCAL != 0, first == 169);
            }
            let all: Vec<Ipv6Addr> = own6.iter().map(|addr| Ipv6Addr::from_bits(*addr)).collect();
            let sources = Sources::new(all.clone());
            for addr in all.iter().copied().chain([Ipv6Addr::from_bits(other6)]) {
                let suspect = sources.suspect(addr.octets()[7], addr.octets()[15]);
                prop_assert_eq!(sources.is_own(addr), all.contains(&addr));
                prop_assert!(suspect & OWN != 0 || !all.contains(&addr));
                prop_assert_eq!(suspect & !OWN, 0);
            }
        }
    }
}
