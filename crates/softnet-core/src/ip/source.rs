//! What the fast path asks of a packet's source address: that it is not one of softnet's own (RFC
//! 1812 section 5.3.8), and on devices that ask for it that packets to it would leave by the device
//! it came by (RFC 3704; the kernel's `rp_filter`).
//!
//! Called by `input`. The first is asked of every packet, so it is a hash of the address that is
//! looked up in a small table; only where an address of ours has the same are the two compared.

use super::adjacency::Routing;
use super::family::{Family, LongestMatch};
use super::input::Ingress;
use crate::SoftnetData;
use crate::skb::{BATCH, Batch, DropReason};

/// Entries of the table. Of the addresses of other hosts, one in so many has the hash of an address
/// of ours, for each that we have.
const SLOTS: usize = 1024;

/// softnet's own addresses of a family.
pub struct Sources<A> {
    table: [u8; SLOTS],
    own: Vec<A>,
}

/// Where an address, of which these are the bits, is in the table.
#[inline(always)]
fn slot(bits: u128) -> usize {
    let folded = bits as u64 ^ ((bits >> 64) as u64).rotate_left(32);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.ilog2())) as usize
}

impl<A: Family> Sources<A> {
    /// [`suspect`](Self::suspect) of an address that may be one of softnet's own.
    pub(super) const OWN: u8 = 1 << 7;

    /// Of a stack with these addresses.
    pub fn new(own: Vec<A>) -> Self {
        let mut table = [0; SLOTS];
        own.iter().for_each(|addr| table[slot(addr.bits())] = Self::OWN);
        Sources { table, own }
    }

    /// [`OWN`](Self::OWN) if the address with these bits may be one of softnet's, else 0.
    #[inline(always)]
    pub(super) fn suspect(&self, bits: u128) -> u8 {
        self.table[slot(bits)]
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
        /// Every own address is a suspect, and only those are own.
        #[test]
        fn none_of_ours_is_missed(own: Vec<u32>, own6: Vec<u128>, other: u32, other6: u128) {
            let all: Vec<Ipv4Addr> = own.iter().map(|addr| Ipv4Addr::from_bits(*addr)).collect();
            let sources = Sources::new(all.clone());
            for addr in all.iter().copied().chain([Ipv4Addr::from_bits(other)]) {
                prop_assert_eq!(sources.is_own(addr), all.contains(&addr));
                let suspect = sources.suspect(addr.to_bits().into());
                prop_assert!(suspect != 0 || !all.contains(&addr));
            }
            let all: Vec<Ipv6Addr> = own6.iter().map(|addr| Ipv6Addr::from_bits(*addr)).collect();
            let sources = Sources::new(all.clone());
            for addr in all.iter().copied().chain([Ipv6Addr::from_bits(other6)]) {
                prop_assert_eq!(sources.is_own(addr), all.contains(&addr));
                prop_assert!(sources.suspect(addr.to_bits()) != 0 || !all.contains(&addr));
            }
        }
    }

    /// Neighbours of ours and whole networks are hardly ever taken for us.
    #[test]
    fn few_others_are_suspects() {
        let own = ["10.0.0.1", "10.1.0.1", "192.168.1.1", "203.0.113.1"];
        let sources = Sources::new(own.map(|addr| addr.parse::<Ipv4Addr>().unwrap()).to_vec());
        let suspects = |from: u32, n: u32| (from..from + n).filter(|n| sources.suspect((*n).into()) != 0);
        for net in [0x0a00_0000, 0x0a01_0000, 0xc0a8_0100, 0x0808_0000] {
            assert!(suspects(net, 256).count() < 6, "{net:x}");
            let many = suspects(net, 1 << 16).count();
            assert!(many < 2 * 4 * (1 << 16) / SLOTS, "{net:x}: {many}");
        }
    }
}
