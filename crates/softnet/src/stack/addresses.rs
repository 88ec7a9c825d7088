//! What an address is to this stack: one of its own, a loopback address, or a multicast group.
//!
//! Asked by sockets and by the slow path, of one snapshot of the tables.

use std::net::Ipv6Addr;

use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::slow::Iface;
use softnet_core::ip::tables::Tables;
use softnet_core::ip::v4::header::is_multicast;
use softnet_core::sock::key::{Addr, unmapped};
use softnet_core::sock::scope::{device, unscoped};

/// Whether `addr` is a loopback address, which leads to this stack whatever the routes say.
pub(crate) fn is_loopback(addr: u32) -> bool {
    addr >> 24 == 127
}

/// Whether `addr` is one of our own addresses; for a link-local one, on its device.
pub(crate) fn is_own(tables: &Tables, addr: Addr) -> bool {
    let Some(addr) = unmapped(addr) else {
        let v6 = Ipv6Addr::from_bits(addr);
        if let Some(dev) = device(addr) {
            return iface(tables, dev).is_some_and(|iface| iface.owns6(wire(addr)));
        }
        return v6.is_loopback() || tables.v6.next_hop(tables.v6.fib.lookup(addr)).kind == Kind::Local;
    };
    is_loopback(addr) || tables.v4.next_hop(tables.v4.fib.lookup(addr)).kind == Kind::Local
}

/// An IPv6 address in its form on the wire.
pub(crate) fn wire(addr: Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(unscoped(addr))
}

/// Device `dev`, if its interface is there.
pub(crate) fn iface(tables: &Tables, dev: u16) -> Option<&Iface> {
    tables.ifaces.get(usize::from(dev))?.as_ref()
}

/// Whether `addr` is a multicast group.
#[inline]
pub(crate) fn is_group(addr: u128) -> bool {
    unmapped(addr).map_or(Ipv6Addr::from_bits(addr).is_multicast(), is_multicast)
}
