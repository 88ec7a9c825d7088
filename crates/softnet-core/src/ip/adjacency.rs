//! What a next hop means: the snapshot that the FIB's leaves index.
//!
//! Immutable once published. A writer (configuration, the neighbour table) makes a changed copy and publishes
//! that; a reader takes the snapshot once per batch.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::family::{Family, LongestMatch};
use super::slow::Iface;
use crate::fold::FoldKey;

/// What to do with a packet whose look-up ended at a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// No route.
    NoRoute = 0,
    /// Rewrite and send: the neighbour is usable.
    Rewrite,
    /// The destination is itself a neighbour on the device: find it in the host table.
    Connected,
    /// The gateway is not resolved, or is due for a probe: ask the neighbour table.
    Resolve,
    /// Addressed to softnet.
    Local,
    /// Directed broadcast of a connected network: not forwarded (RFC 2644).
    Broadcast,
    /// Configured to be discarded without a word.
    Blackhole,
    /// Configured to be answered by host unreachable.
    Unreachable,
}

/// One next hop: half a cache line, and for IPv6 the gateway on the other half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Adjacency<A = Ipv4Addr> {
    /// Destination MAC, source MAC, EtherType: what [`Kind::Rewrite`] puts in front.
    pub rewrite: [u8; 14],
    /// Largest L3 packet of the device.
    pub mtu: u16,
    /// Outgoing device.
    pub dev: u16,
    /// See [`Kind`].
    pub kind: Kind,
    /// Neighbour to resolve: the gateway ([`Kind::Resolve`], [`Kind::Rewrite`]); of the other kinds, nobody.
    pub gateway: A,
}

const _: () = assert!(size_of::<Adjacency>() == 32 && size_of::<Adjacency<Ipv6Addr>>() == 64);

impl<A: Family> Adjacency<A> {
    /// A next hop that is not sent to a neighbour.
    pub const fn special(kind: Kind) -> Self {
        Adjacency { rewrite: [0; 14], mtu: 0, dev: 0, kind, gateway: A::UNSPECIFIED }
    }

    /// The destination is a neighbour on `dev`.
    pub fn connected(dev: u16, mtu: u16) -> Self {
        Adjacency { dev, mtu, ..Self::special(Kind::Connected) }
    }

    /// By `gateway` on `dev`, not yet resolved.
    pub fn gateway(dev: u16, mtu: u16, gateway: A) -> Self {
        Adjacency { dev, mtu, gateway, ..Self::special(Kind::Resolve) }
    }

    /// Whether packets are sent by it, as soon as its neighbour is known.
    pub fn is_reachable(&self) -> bool {
        matches!(self.kind, Kind::Rewrite | Kind::Connected | Kind::Resolve)
    }

    /// The same next hop with its neighbour's MAC known.
    pub fn resolved(self, from: [u8; 6], to: [u8; 6]) -> Self {
        let mut rewrite = [0; 14];
        rewrite[..6].copy_from_slice(&to);
        rewrite[6..12].copy_from_slice(&from);
        rewrite[12..].copy_from_slice(&A::ETHERTYPE.to_be_bytes());
        Adjacency { rewrite, kind: Kind::Rewrite, ..self }
    }
}

/// Key of an IPv4 neighbour in [`Routing::hosts`].
#[inline(always)]
pub fn host_key(dev: u16, addr: u32) -> u64 {
    u64::from(dev) << 32 | u64::from(addr)
}

/// Key of an IPv6 neighbour there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostKey6 {
    addr: u128,
    dev: u16,
}

impl HostKey6 {
    /// Of neighbour `addr` on device `dev`.
    #[inline(always)]
    pub fn new(dev: u16, addr: Ipv6Addr) -> Self {
        HostKey6 { addr: addr.to_bits(), dev }
    }
}

impl Hash for HostKey6 {
    /// In words: what is derived puts a length and single bytes in.
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.addr);
        state.write_u64(self.dev.into());
    }
}

/// The forwarding tables of one moment. A changed copy ([`Arc::make_mut`]) has new tables only of the family that changed.
#[derive(Clone)]
pub struct Tables {
    /// Of IPv4.
    pub v4: Arc<Routing<Ipv4Addr>>,
    /// Of IPv6.
    pub v6: Arc<Routing<Ipv6Addr>>,
    /// The devices, by index; `None` for one whose interface is not there.
    pub ifaces: Arc<[Option<Iface>]>,
}

impl Tables {
    /// Tables without a route. `key` hashes neighbours, and must be random: strangers choose their addresses.
    pub fn new(key: FoldKey) -> Self {
        let (v4, v6) = (Arc::new(Routing::new(key)), Arc::new(Routing::new(key)));
        Tables { v4, v6, ifaces: Arc::default() }
    }
}

/// The forwarding tables of one family.
pub struct Routing<A: Family> {
    /// Prefix → index into `next_hops`.
    pub fib: Arc<A::Fib>,
    /// What the FIB's leaves mean; entry 0 is [`Kind::NoRoute`].
    pub next_hops: Vec<Adjacency<A>>,
    /// Neighbours of connected networks that are usable now, by device and address. Looked up per packet, so that the hash is
    /// the fast one; of an IPv6 neighbour three multiplications.
    pub hosts: HashMap<A::HostKey, Adjacency<A>, FoldKey>,
}

impl<A: Family> Clone for Routing<A> {
    fn clone(&self) -> Self {
        Routing { fib: self.fib.clone(), next_hops: self.next_hops.clone(), hosts: self.hosts.clone() }
    }
}

impl<A: Family> Routing<A> {
    fn new(key: FoldKey) -> Self {
        Routing {
            fib: Arc::new(A::Fib::default()),
            next_hops: vec![Adjacency::special(Kind::NoRoute)],
            hosts: HashMap::with_hasher(key),
        }
    }

    /// The next hop with this index; one that does not exist means no route.
    #[inline(always)]
    pub fn next_hop(&self, index: u32) -> &Adjacency<A> {
        self.next_hops.get(index as usize).unwrap_or(A::NO_ROUTE)
    }

    /// The next hop towards `dst`, connected ones resolved through the host table.
    pub fn route(&self, dst: A) -> Adjacency<A> {
        let hop = *self.next_hop(self.fib.longest_match(dst));
        match hop.kind {
            Kind::Connected => self.on_link(hop.dev, hop.mtu, dst),
            _ => hop,
        }
    }

    /// Whether a packet that came from outside can't be from `addr`, since that is one of ours, or that of all on a link
    /// (RFC 1812 section 5.3.7; the kernel's `fib_validate_source`).
    #[inline]
    pub fn is_martian_source(&self, addr: A) -> bool {
        matches!(self.next_hop(self.fib.longest_match(addr)).kind, Kind::Local | Kind::Broadcast)
    }

    /// The next hop towards `neighbour`, which is one on the link of `dev`.
    pub fn on_link(&self, dev: u16, mtu: u16, neighbour: A) -> Adjacency<A> {
        let host = self.hosts.get(&A::host_key(dev, neighbour)).copied();
        host.unwrap_or(Adjacency::gateway(dev, mtu, neighbour))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    const KEYS: [FoldKey; 2] = [
        FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]),
        FoldKey::new([0xa409_3822_299f_31d0, 0xd82e_fa98_ec4e_6c89]),
    ];

    /// By one multiplication for each word with a factor that everybody knows.
    fn known(words: &[u64]) -> u64 {
        words.iter().fold(0, |state, word| {
            let product = u128::from(state ^ word) * 0x9e37_79b9_7f4a_7c15;
            (product >> 64) as u64 ^ product as u64
        })
    }

    /// What a table of 2,048 places looks at first: where a key belongs, and the seven bits that it keeps beside it.
    fn place(hash: u64) -> (u64, u64) {
        (hash % 2048, hash >> 57)
    }

    /// The most of `hashes` that would be in one place, tags apart.
    fn crowd(hashes: impl Iterator<Item = u64>) -> usize {
        let mut places = HashMap::new();
        hashes.for_each(|hash| *places.entry(place(hash).0).or_insert(0) += 1);
        places.into_values().max().unwrap()
    }

    /// A thousand hosts that took addresses on a link which all belong in one place by a hash without a secret, are where
    /// chance has them.
    #[test]
    fn nobody_can_choose_neighbours_that_collide() {
        let target = place(known(&[host_key(1, 0x0a00_0001)])).0;
        let v4: Vec<u64> = (0x0a00_0000..0x0b00_0000)
            .map(|addr| host_key(1, addr))
            .filter(|key| place(known(&[*key])).0 == target)
            .take(1000)
            .collect();
        assert_eq!((v4.len(), crowd(v4.iter().map(|key| known(&[*key])))), (1000, 1000));
        const NET: u64 = 0x2001_0db8_0000_0001;
        let v6: Vec<u64> = (0..).filter(|low| place(known(&[NET, *low, 1])).0 == target).take(1000).collect();
        let mut orders = Vec::new();
        for key in KEYS {
            let hashes: Vec<u64> = v4.iter().map(|host| key.hash_one(host)).collect();
            assert!(crowd(hashes.iter().copied()) < 8);
            let host =
                |low: &u64| HostKey6::new(1, Ipv6Addr::from_bits(u128::from(NET) << 64 | u128::from(*low)));
            let hashes6: Vec<u64> = v6.iter().map(|low| key.hash_one(host(low))).collect();
            assert!(crowd(hashes6.iter().copied()) < 8);
            orders.push((hashes, hashes6));
        }
        assert!(orders[0].0 != orders[1].0 && orders[0].1 != orders[1].1, "each stack has its own");
    }

    /// Words, and not bytes: what is written is what is multiplied.
    #[test]
    fn keys_are_hashed_in_words() {
        #[derive(Default)]
        struct Count(usize);
        impl Hasher for Count {
            fn write(&mut self, bytes: &[u8]) {
                panic!("{} single bytes", bytes.len());
            }
            fn write_u64(&mut self, _: u64) {
                self.0 += 1;
            }
            fn write_u128(&mut self, _: u128) {
                self.0 += 2;
            }
            fn finish(&self) -> u64 {
                0
            }
        }
        let words = |key: &dyn Fn(&mut Count)| {
            let mut count = Count::default();
            key(&mut count);
            count.0
        };
        assert_eq!(words(&|to| Ipv4Addr::host_key(1, Ipv4Addr::LOCALHOST).hash(to)), 1);
        assert_eq!(words(&|to| Ipv6Addr::host_key(1, Ipv6Addr::LOCALHOST).hash(to)), 3);
    }
}
