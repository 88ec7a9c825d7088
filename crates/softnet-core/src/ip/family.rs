//! What differs between IPv4 and IPv6 for code that serves both: how wide an address is, which structure finds its
//! longest match, how its packets are marked on the link.
//!
//! Any code may call it. [`Address`] is also `IpAddr`, for prefixes of either family in one list; a [`Family`] is one
//! of the two.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::adjacency::{Adjacency, Kind};
use super::iface::Iface;
use super::prefix::{IpPrefix, Prefix};
use super::tables::{HostKey6, Routing, Tables, host_key};
use super::v4::fib::{Fib, MAX_CHUNKS};
use super::v4::header::Ipv4Header;
use super::v6::fib::Fib6;
use super::v6::header::{Ipv6Header, LEN};
use crate::memory::TableMemory;

/// An address as prefixes see it: a row of bits.
pub trait Address: Copy + Ord + Hash + Debug + Display + FromStr + Into<IpAddr> + 'static {
    /// How many bits it has.
    fn width(self) -> u8;
    /// Its bits, the last one lowest.
    fn bits(self) -> u128;
    /// The address of the same family with these bits; those above its width do not count.
    fn with_bits(self, bits: u128) -> Self;
}

impl Address for Ipv4Addr {
    #[inline]
    fn width(self) -> u8 {
        32
    }
    #[inline]
    fn bits(self) -> u128 {
        self.to_bits().into()
    }
    #[inline]
    fn with_bits(self, bits: u128) -> Self {
        Ipv4Addr::from_bits(bits as u32)
    }
}

impl Address for Ipv6Addr {
    #[inline]
    fn width(self) -> u8 {
        128
    }
    #[inline]
    fn bits(self) -> u128 {
        self.to_bits()
    }
    #[inline]
    fn with_bits(self, bits: u128) -> Self {
        Ipv6Addr::from_bits(bits)
    }
}

impl Address for IpAddr {
    fn width(self) -> u8 {
        match self {
            IpAddr::V4(addr) => addr.width(),
            IpAddr::V6(addr) => addr.width(),
        }
    }
    fn bits(self) -> u128 {
        match self {
            IpAddr::V4(addr) => addr.bits(),
            IpAddr::V6(addr) => addr.bits(),
        }
    }
    fn with_bits(self, bits: u128) -> Self {
        match self {
            IpAddr::V4(addr) => addr.with_bits(bits).into(),
            IpAddr::V6(addr) => addr.with_bits(bits).into(),
        }
    }
}

/// One of the two families.
pub trait Family: Address {
    /// Its bits, as a number.
    type Bits: Copy + Default + PartialEq;

    /// EtherType of its packets.
    const ETHERTYPE: u16;
    /// The address that is none.
    const UNSPECIFIED: Self;
    /// What a next hop means that does not exist.
    const NO_ROUTE: &'static Adjacency<Self>;
    /// Finds the longest match of a destination.
    type Fib: LongestMatch<Self>;
    /// What a neighbour is found by, see [`Routing::hosts`](super::tables::Routing::hosts).
    type HostKey: Copy + Eq + Hash + Debug;

    /// The address with these bits.
    fn from_bits(bits: Self::Bits) -> Self;
    /// The key of neighbour `addr` on device `dev`.
    fn host_key(dev: u16, addr: Self) -> Self::HostKey;
    /// `addr`, if it is of this family.
    fn of(addr: IpAddr) -> Option<Self>;
    /// Its routes.
    fn routing(tables: &Tables) -> &Routing<Self>;
    /// softnet's addresses of it on a device, each with its connected network.
    fn addresses(iface: &Iface) -> &[(Self, Prefix<Self>)];
    /// Source and destination of a packet, which begins at its IP header.
    fn ends(packet: &[u8]) -> Option<(Self, Self)>;
    /// Bytes of a packet from its IP header on, as that says.
    fn total_len(packet: &[u8]) -> Option<usize>;
}

impl Family for Ipv4Addr {
    type Bits = u32;

    const ETHERTYPE: u16 = 0x0800;
    const UNSPECIFIED: Self = Ipv4Addr::UNSPECIFIED;
    const NO_ROUTE: &'static Adjacency<Self> = &Adjacency::special(Kind::NoRoute);
    type Fib = Fib;
    type HostKey = u64;

    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        Ipv4Addr::from_bits(bits)
    }
    #[inline(always)]
    fn host_key(dev: u16, addr: Self) -> u64 {
        host_key(dev, addr.to_bits())
    }
    fn of(addr: IpAddr) -> Option<Self> {
        match addr {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        }
    }
    fn routing(tables: &Tables) -> &Routing<Self> {
        &tables.v4
    }
    fn addresses(iface: &Iface) -> &[(Self, Prefix<Self>)] {
        &iface.addresses
    }
    fn ends(packet: &[u8]) -> Option<(Self, Self)> {
        Ipv4Header::new(packet).map(|header| (header.src().into(), header.dst().into()))
    }
    fn total_len(packet: &[u8]) -> Option<usize> {
        Ipv4Header::new(packet).map(|header| header.total_len().into())
    }
}

impl Family for Ipv6Addr {
    type Bits = u128;

    const ETHERTYPE: u16 = 0x86dd;
    const UNSPECIFIED: Self = Ipv6Addr::UNSPECIFIED;
    const NO_ROUTE: &'static Adjacency<Self> = &Adjacency::special(Kind::NoRoute);
    type Fib = Fib6;
    type HostKey = HostKey6;

    #[inline(always)]
    fn from_bits(bits: u128) -> Self {
        Ipv6Addr::from_bits(bits)
    }
    #[inline(always)]
    fn host_key(dev: u16, addr: Self) -> HostKey6 {
        HostKey6::new(dev, addr)
    }
    fn of(addr: IpAddr) -> Option<Self> {
        match addr {
            IpAddr::V4(_) => None,
            IpAddr::V6(addr) => Some(addr),
        }
    }
    fn routing(tables: &Tables) -> &Routing<Self> {
        &tables.v6
    }
    fn addresses(iface: &Iface) -> &[(Self, Prefix<Self>)] {
        &iface.addresses6
    }
    fn ends(packet: &[u8]) -> Option<(Self, Self)> {
        Ipv6Header::new(packet).map(|header| (header.src(), header.dst()))
    }
    fn total_len(packet: &[u8]) -> Option<usize> {
        Ipv6Header::new(packet).map(|header| LEN + usize::from(header.payload_len()))
    }
}

/// The index of a next hop that means: no route.
pub const NO_ROUTE: u32 = 0;

/// Next hops that a FIB can tell apart.
pub const MAX_NEXT_HOPS: u32 = 1 << HOP_BITS;

const HOP_BITS: u32 = 23;

/// What a FIB has at the end of a look-up: the next hop, and how long the prefix is that it is of,
/// by which a change tells what it replaces from what is more specific. Marked by
/// [`LEAF`](Self::LEAF), which links within a FIB are without.
pub(super) struct Leaf;

impl Leaf {
    /// The mark.
    pub(super) const LEAF: u32 = 1 << 31;
    /// No route.
    pub(super) const NONE: u32 = Self::LEAF | NO_ROUTE;

    /// `nexthop`, which must be below [`MAX_NEXT_HOPS`], of a prefix of `len` bits.
    #[inline(always)]
    pub(super) const fn of(len: u8, nexthop: u32) -> u32 {
        Self::LEAF | (len as u32) << HOP_BITS | nexthop
    }

    /// The next hop of a leaf.
    #[inline(always)]
    pub(super) const fn nexthop(leaf: u32) -> u32 {
        leaf & (MAX_NEXT_HOPS - 1)
    }

    /// Bits of the prefix that a leaf is of.
    #[inline(always)]
    pub(super) const fn prefix_len(leaf: u32) -> u8 {
        (leaf >> HOP_BITS) as u8
    }

    /// Whether `entry` is a leaf of a prefix of at most `len` bits.
    #[inline(always)]
    pub(super) const fn is_within(entry: u32, len: u8) -> bool {
        entry & Self::LEAF != 0 && entry >> HOP_BITS & 0xff <= len as u32
    }
}

/// Routes, and what finds the longest match among them. Next hops are indices; [`NO_ROUTE`] means
/// that there is none. What is published is not changed any more: see
/// [`FibTwins`](super::fib_twins::FibTwins).
pub trait LongestMatch<A: Family>: Default {
    /// A snapshot of `routes`, in any order, whose large tables are in `memory`; of routes with the
    /// same prefix the last one counts.
    fn build_in(routes: &[(Prefix<A>, u32)], memory: &impl TableMemory) -> Result<Self, FibError>;
    /// The same, in memory of its own.
    fn copy_in(&self, memory: &impl TableMemory) -> Result<Self, FibError>;
    /// Has `prefix` lead to `nexthop`, whatever it led to before, but for what is more specific. To
    /// take a route away, say the next hop of the longest other prefix that it is in, whose length
    /// is `of_len`; else that is the prefix's own. On an error nothing has changed.
    fn put(
        &mut self,
        prefix: Prefix<A>,
        of_len: u8,
        nexthop: u32,
        memory: &impl TableMemory,
    ) -> Result<(), FibError>;
    /// Writes the next hop for each of `dst` to the same place of `hops`; as many as the shorter of the two has, and no more
    /// than a batch.
    fn lookup_batch(&self, dst: &[A::Bits], hops: &mut [u32]);
    /// The next hop for `addr`.
    fn longest_match(&self, addr: A) -> u32;
    /// How many bits the prefix has that was found for `addr`; 0 as well if there is none.
    fn matched_len(&self, addr: A) -> u8;
    /// Bytes that it takes.
    fn bytes(&self) -> usize;
}

/// Why a snapshot could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FibError {
    /// The next hop's index does not fit an entry.
    #[error("next hop {nexthop} of {prefix}: expected less than {MAX_NEXT_HOPS}")]
    NextHop {
        /// The route's prefix.
        prefix: IpPrefix,
        /// Its next hop.
        nexthop: u32,
    },
    /// The table would take more than 2 GiB.
    #[error("the routes need {chunks} chunks of the FIB, {MAX_CHUNKS} are allowed")]
    TooLarge {
        /// Chunks of 1 KiB needed.
        chunks: usize,
    },
    /// The table of IPv6 would.
    #[error("the IPv6 routes need more than 2 GiB of the FIB")]
    TooLarge6,
    /// The memory for it could not be had.
    #[error("no memory for {bytes} bytes of the FIB")]
    NoMemory {
        /// Bytes of the array that failed.
        bytes: usize,
    },
}
