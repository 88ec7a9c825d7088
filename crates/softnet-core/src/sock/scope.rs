//! Scopes of IPv6 addresses (RFC 4007): the device whose link a link-local address is on.
//!
//! Inside the stack the address contains it, as in the KAME stack: the 16 bits behind fe80, which
//! are 0 on every wire, hold the device's index, counted from 1. So keys of sockets, their hash and
//! their look-up know nothing of scopes. The scope is put in where a received datagram or a
//! program's address is read ([`scoped`]), and taken out where one is written ([`unscoped`]).
//! Invariant: no scope appears on a wire; a received packet with one is dropped
//! ([`Ipv6BadScope`](crate::skb::DropReason::Ipv6BadScope)), since it would name the neighbour of
//! another device.
//!
//! Plain values; any thread may call it.

use super::key::Addr;

/// The bits of the scope.
const SHIFT: u32 = 96;
const MASK: Addr = 0xffff << SHIFT;

/// Whether `addr` is in fe80::/10.
#[inline(always)]
pub const fn is_link_local(addr: Addr) -> bool {
    addr >> 118 == 0xfe80 >> 6
}

/// The index by which programs know device `dev`: 0 is none.
#[inline(always)]
pub const fn index_of(dev: u16) -> u16 {
    dev.wrapping_add(1)
}

/// `addr` in its form inside the stack, for an address that came by device `dev` or is on that
/// device's link.
#[inline(always)]
pub const fn scoped(addr: Addr, dev: u16) -> Addr {
    if is_link_local(addr) { addr & !MASK | (index_of(dev) as Addr) << SHIFT } else { addr }
}

/// `addr` in its form on the wire.
#[inline(always)]
pub const fn unscoped(addr: Addr) -> Addr {
    if is_link_local(addr) { addr & !MASK } else { addr }
}

/// The index of the device that a link-local address is on; 0 if it has none, and for any other
/// address.
#[inline(always)]
pub const fn scope_id(addr: Addr) -> u16 {
    if is_link_local(addr) { (addr >> SHIFT) as u16 } else { 0 }
}

/// The device whose link `addr` is on, if it is link-local and has a scope.
#[inline(always)]
pub const fn device(addr: Addr) -> Option<u16> {
    scope_id(addr).checked_sub(1)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::sock::key::mapped;

    #[test]
    fn only_link_local_addresses_have_one() {
        let addr = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
        assert_eq!(scoped(addr("fe80::1"), 0), addr("fe80:1::1"));
        assert_eq!((device(addr("fe80:1::1")), device(addr("fe80::1"))), (Some(0), None));
        for text in ["::", "::1", "2001:db8::1", "fec0::1", "fe7f::1", "ff02::1", "::ffff:10.0.0.1"] {
            assert_eq!((scoped(addr(text), 5), scope_id(addr(text))), (addr(text), 0), "{text}");
        }
        assert_eq!(scoped(mapped(0xfe80_0001), 5), mapped(0xfe80_0001));
    }

    proptest! {
        /// A scope that is put in comes out, changes nothing else, and tells addresses on two links
        /// apart.
        #[test]
        fn what_is_put_in_comes_out(addr: u128, local: bool, dev in 0u16..1000, other in 0u16..1000) {
            let addr = if local { addr >> 10 | 0xfe80 << 112 } else { addr };
            prop_assert_eq!(is_link_local(addr), Ipv6Addr::from_bits(addr).is_unicast_link_local());
            let wire = unscoped(addr);
            let inside = scoped(wire, dev);
            prop_assert_eq!(unscoped(inside), wire);
            prop_assert_eq!(scoped(inside, dev), inside);
            prop_assert_eq!(device(inside), is_link_local(addr).then_some(dev));
            prop_assert_eq!(scope_id(wire), 0);
            prop_assert_eq!(inside == scoped(wire, other), dev == other || !is_link_local(addr));
            prop_assert_eq!(inside & !MASK, wire & !MASK);
        }
    }
}
