//! What a next hop means: the entries of [`Routing::next_hops`](super::tables::Routing::next_hops), which the FIB's leaves
//! index.
//!
//! Plain values that any code may make. The tables that hold them are immutable once published, see
//! [`tables`](super::tables).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::family::Family;

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
    /// Configured to be answered by administratively prohibited.
    Prohibit,
    /// One of several next hops, chosen by the flow: see [`Routing::groups`](super::tables::Routing::groups).
    Multipath,
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
    /// Neighbour to resolve: the gateway ([`Kind::Resolve`], [`Kind::Rewrite`]); of the other kinds, none.
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

    /// By one of the next hops of group `group`.
    pub fn multipath(group: u32) -> Self {
        let mut hop = Adjacency { dev: u16::MAX, ..Self::special(Kind::Multipath) };
        hop.rewrite[..4].copy_from_slice(&group.to_ne_bytes());
        hop
    }

    /// The group of one that is [`Kind::Multipath`].
    #[inline]
    pub(super) fn group(&self) -> usize {
        self.rewrite.first_chunk().map_or(usize::MAX, |bytes| u32::from_ne_bytes(*bytes) as usize)
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
