//! Kinds of IPv6 addresses, and those that follow from others (RFC 4291).
//!
//! Any code may call it.

use std::net::Ipv6Addr;

use super::super::{MacAddr, Prefix6};

/// Every router on the link, and at the site (RFC 4291 section 2.7.1).
pub const ALL_ROUTERS: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2)];

/// Every node on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The link-local address of the interface with this MAC address: fe80::/64 and the modified EUI-64 identifier (RFC 2464
/// sections 4 and 5).
pub const fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(0xfe80 << 112 | id as u128)
}

/// The group that a node with `addr` listens to (RFC 4291 section 2.7.1).
pub const fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | addr.to_bits() & 0xff_ffff)
}

/// The MAC address that frames to a group are sent to (RFC 2464 section 7).
pub const fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The scope of a group (RFC 4291 section 2.7, RFC 7346): 1 is the interface, 2 the link, 14 everywhere.
#[inline]
pub const fn group_scope(group: Ipv6Addr) -> u8 {
    group.octets()[1] & 0xf
}

/// Whether `addr` is a group whose members are on one link, or one interface, only.
#[inline]
pub const fn is_group_of_link(addr: Ipv6Addr) -> bool {
    addr.is_multicast() && matches!(group_scope(addr), 1 | 2)
}

/// The address of every router on the link of `network` (RFC 4291 section 2.6.1): the first one. Networks between two
/// routers, and single addresses, have none (RFC 6164 section 5.1).
pub fn subnet_router_anycast(network: Prefix6) -> Option<Ipv6Addr> {
    (network.len() <= 126).then_some(network.addr())
}

/// Whether `addr` is in fe80::/10, and so means nothing beyond its link.
#[inline]
pub const fn is_link_local(addr: Ipv6Addr) -> bool {
    addr.is_unicast_link_local()
}

/// Whether `addr` may not be on a wire at all: loopback, or an IPv4 address in the form that sockets know it by (RFC 4291
/// sections 2.5.3 and 2.5.5.2).
pub const fn never_on_a_wire(addr: Ipv6Addr) -> bool {
    addr.is_loopback() || addr.to_bits() >> 32 == 0xffff
}

/// Whether a packet may not have `addr` as its destination: the above, and the unspecified address.
pub const fn is_martian_destination(addr: Ipv6Addr) -> bool {
    never_on_a_wire(addr) || addr.is_unspecified()
}

/// Whether `addr` is one that a single interface may have: no group, no martian.
pub const fn is_unicast(addr: Ipv6Addr) -> bool {
    !is_martian_destination(addr) && !addr.is_multicast()
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn addr(s: &str) -> Ipv6Addr {
        s.parse().unwrap()
    }

    #[test]
    fn addresses_that_follow_from_others() {
        // RFC 2464 section 4: 34-56-78-9A-BC-DE.
        assert_eq!(link_local([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]), addr("fe80::3656:78ff:fe9a:bcde"));
        // RFC 4291 section 2.7.1.
        assert_eq!(solicited_node(addr("4037::01:800:200e:8c6c")), addr("ff02::1:ff0e:8c6c"));
        assert_eq!(multicast_mac(addr("ff02::1:ff0e:8c6c")), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
        assert_eq!(multicast_mac(ALL_NODES), [0x33, 0x33, 0, 0, 0, 1]);
        for (group, of_link) in [("ff01::1", true), ("ff32::1", true), ("ff05::1", false), ("fe82::1", false)]
        {
            assert_eq!(is_group_of_link(addr(group)), of_link, "{group}");
        }
    }

    #[test]
    fn kinds_of_addresses() {
        for (text, unicast, never, link_local) in [
            ("::", false, false, false),
            ("::1", false, true, false),
            ("::2", true, false, false),
            ("::ffff:10.0.0.1", false, true, false),
            ("::fffe:10.0.0.1", true, false, false),
            ("::1:0:0:0", true, false, false),
            ("64:ff9b::1", true, false, false),
            ("2001:db8::1", true, false, false),
            ("fd00::1", true, false, false),
            ("fe7f::1", true, false, false),
            ("fe80::1", true, false, true),
            ("febf:ffff::1", true, false, true),
            ("fec0::1", true, false, false),
            ("ff02::1", false, false, false),
        ] {
            let a = addr(text);
            assert_eq!(
                (is_unicast(a), never_on_a_wire(a), is_link_local(a)),
                (unicast, never, link_local),
                "{text}"
            );
            assert_eq!(is_martian_destination(a), never || a.is_unspecified());
        }
    }
}
