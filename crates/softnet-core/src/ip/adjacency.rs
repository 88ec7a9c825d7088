//! What a next hop means: the snapshot that the FIB's leaves index.
//!
//! Immutable once published. A writer (configuration, the neighbour table) makes a changed copy and publishes
//! that; a reader takes the snapshot once per batch.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::fib::Fib;
use super::slow::Iface;

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

/// One next hop: half a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Adjacency {
    /// Destination MAC, source MAC, EtherType: what [`Kind::Rewrite`] puts in front.
    pub rewrite: [u8; 14],
    /// Largest L3 packet of the device.
    pub mtu: u16,
    /// Outgoing device.
    pub dev: u16,
    /// See [`Kind`].
    pub kind: Kind,
    /// Neighbour to resolve: the gateway ([`Kind::Resolve`], [`Kind::Rewrite`]).
    pub gateway: u32,
}

const _: () = assert!(size_of::<Adjacency>() == 32);

impl Adjacency {
    /// A next hop that is not sent to a neighbour.
    pub fn special(kind: Kind) -> Self {
        Adjacency { rewrite: [0; 14], mtu: 0, dev: 0, kind, gateway: 0 }
    }

    /// The destination is a neighbour on `dev`.
    pub fn connected(dev: u16, mtu: u16) -> Self {
        Adjacency { dev, mtu, ..Self::special(Kind::Connected) }
    }

    /// By `gateway` on `dev`, not yet resolved.
    pub fn gateway(dev: u16, mtu: u16, gateway: Ipv4Addr) -> Self {
        Adjacency { dev, mtu, gateway: gateway.into(), ..Self::special(Kind::Resolve) }
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
        rewrite[12..].copy_from_slice(&[0x08, 0x00]);
        Adjacency { rewrite, kind: Kind::Rewrite, ..self }
    }
}

/// Key of a neighbour in [`Tables::hosts`].
#[inline(always)]
pub fn host_key(dev: u16, addr: u32) -> u64 {
    u64::from(dev) << 32 | u64::from(addr)
}

/// Hashes a [`host_key`] by one multiplication: the table is looked up per packet, and only the neighbours of
/// connected networks, whose number is bounded, get into it.
#[derive(Default)]
pub struct HostHasher(u64);

impl Hasher for HostHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
    #[inline(always)]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Neighbours by [`host_key`].
pub type Hosts = HashMap<u64, Adjacency, BuildHasherDefault<HostHasher>>;

/// The forwarding tables of one moment.
#[derive(Clone)]
pub struct Tables {
    /// Prefix → index into `next_hops`.
    pub fib: Arc<Fib>,
    /// What the FIB's leaves mean; entry 0 is [`Kind::NoRoute`].
    pub next_hops: Vec<Adjacency>,
    /// Neighbours of connected networks that are usable now, by device and address.
    pub hosts: Hosts,
    /// The devices, by index; `None` for one whose interface is not there.
    pub ifaces: Arc<[Option<Iface>]>,
}

impl Tables {
    /// Tables without a route.
    pub fn empty() -> Self {
        Tables {
            fib: Arc::new(Fib::default()),
            next_hops: vec![Adjacency::special(Kind::NoRoute)],
            hosts: Hosts::default(),
            ifaces: Arc::default(),
        }
    }

    /// The next hop with this index; one that does not exist means no route.
    #[inline(always)]
    pub fn next_hop(&self, index: u32) -> &Adjacency {
        const NO_ROUTE: Adjacency =
            Adjacency { rewrite: [0; 14], mtu: 0, dev: 0, kind: Kind::NoRoute, gateway: 0 };
        self.next_hops.get(index as usize).unwrap_or(&NO_ROUTE)
    }

    /// The next hop towards `dst`, connected ones resolved through the host table.
    pub fn route(&self, dst: Ipv4Addr) -> Adjacency {
        let hop = *self.next_hop(self.fib.lookup(dst.into()));
        match hop.kind {
            Kind::Connected => self
                .hosts
                .get(&host_key(hop.dev, dst.into()))
                .copied()
                .unwrap_or(Adjacency::gateway(hop.dev, hop.mtu, dst)),
            _ => hop,
        }
    }
}
