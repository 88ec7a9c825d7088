//! What a next hop means: the snapshot that the FIB's leaves index.
//!
//! Immutable once published. A writer (configuration, the neighbour table) makes a changed copy and publishes
//! that; a reader takes the snapshot once per batch.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::family::{Family, LongestMatch};
use super::slow::Iface;
use super::source::Sources;

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

/// Hashes a key of [`Routing::hosts`] by one multiplication for each word: the table is looked up per packet, and only the
/// neighbours of connected networks, whose number is bounded, get into it.
#[derive(Default)]
pub struct HostHasher(u64);

impl Hasher for HostHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    #[inline(always)]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
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
    /// Tables without a route.
    pub fn empty() -> Self {
        Tables { v4: Arc::new(Routing::empty()), v6: Arc::new(Routing::empty()), ifaces: Arc::default() }
    }
}

/// The forwarding tables of one family.
pub struct Routing<A: Family> {
    /// Prefix → index into `next_hops`.
    pub fib: Arc<A::Fib>,
    /// What the FIB's leaves mean; entry 0 is [`Kind::NoRoute`].
    pub next_hops: Vec<Adjacency<A>>,
    /// softnet's own addresses, which no packet comes from.
    pub sources: Arc<Sources<A>>,
    /// Neighbours of connected networks that are usable now, by device and address.
    pub hosts: HashMap<A::HostKey, Adjacency<A>, BuildHasherDefault<HostHasher>>,
}

impl<A: Family> Clone for Routing<A> {
    fn clone(&self) -> Self {
        let (fib, sources) = (self.fib.clone(), self.sources.clone());
        Routing { fib, next_hops: self.next_hops.clone(), sources, hosts: self.hosts.clone() }
    }
}

impl<A: Family> Routing<A> {
    fn empty() -> Self {
        Routing {
            fib: Arc::new(A::Fib::default()),
            next_hops: vec![Adjacency::special(Kind::NoRoute)],
            sources: Arc::new(Sources::new(Vec::new())),
            hosts: HashMap::default(),
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
