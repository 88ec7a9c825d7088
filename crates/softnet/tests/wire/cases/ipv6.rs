//! The IPv6 header, and addresses that no packet has on the wire (RFC 8200 3, RFC 4291 2).

use std::net::Ipv6Addr;

use crate::case::Cases;
use crate::net::{A, B, router6};
use crate::packet::{Ip6, NO_NEXT, data};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("ipv6");
    let c = &mut cases;
    for hops in [0, 1, 2, 3, 64, 255] {
        c.add(format!("hops-{hops}-udp"), move |n| n.a(n.through6().hops(hops).udp(5, 20)));
        c.add(format!("hops-{hops}-echo"), move |n| n.a(n.through6().hops(hops).echo(20)));
        c.add(format!("hops-{hops}-tcp"), move |n| n.a(n.through6().hops(hops).tcp(2, 80, 0)));
        c.add(format!("hops-{hops}-to-router"), move |n| n.a(n.to_router6().hops(hops).udp(7, 20)));
    }
    for version in [0, 4, 5, 7, 15] {
        c.add(format!("version-{version}"), move |n| n.a(n.through6().version(version).udp(5, 20)));
        c.add(format!("version-{version}-to-router"), move |n| n.a(n.to_router6().version(version).echo(20)));
    }
    for len in [0, 1, 7, 8, 27] {
        c.add(format!("length-{len}-of-28"), move |n| n.a(n.through6().len(len).udp(5, 20)));
        c.add(format!("length-{len}-of-28-to-router"), move |n| n.a(n.to_router6().len(len).udp(7, 20)));
    }
    for more in [1, 8, 1000] {
        c.add(format!("length-{more}-beyond"), move |n| n.a(n.through6().len(28 + more).udp(5, 20)));
        c.add(format!("length-{more}-beyond-to-router"), move |n| {
            n.a(n.to_router6().len(28 + more).udp(7, 20))
        });
    }
    c.add("length-65535", |n| n.a(n.through6().len(65535).udp(5, 20)));
    for len in [0, 1, 20, 39] {
        c.add(format!("frame-cut-{len}"), move |n| n.a(n.through6().udp(5, 20)).cut(len));
    }
    for len in [0, 8, 20] {
        c.add(format!("no-next-header-{len}"), move |n| n.a(n.through6().proto(NO_NEXT, &data(len))));
        c.add(format!("no-next-header-{len}-to-router"), move |n| {
            n.a(n.to_router6().proto(NO_NEXT, &data(len)))
        });
    }
    c.add("same-source-and-destination", |n| n.a(Ip6::new(n.remote6(A), n.remote6(A)).udp(5, 20)));
    c.add("land", |n| n.a(Ip6::new(router6(A), router6(A)).echo(8)));
    for proto in [1, 2, 4, 41, 46, 47, 50, 89, 103, 112, 115, 132, 136, 139, 140, 253, 254, 255] {
        c.add(format!("protocol-{proto}"), move |n| n.a(n.through6().proto(proto, &data(24))));
        c.add(format!("protocol-{proto}-to-router"), move |n| n.a(n.to_router6().proto(proto, &data(24))));
    }
    let addrs = [
        ("unspecified", "::"),
        ("loopback", "::1"),
        ("compatible", "::10.9.9.9"),
        ("mapped", "::ffff:10.9.9.9"),
        ("nat64", "64:ff9b::a09:909"),
        ("discard", "100::9"),
        ("6to4", "2002:a09:909::9"),
        ("6to4-private-loopback", "2002:7f00:1::9"),
        ("teredo", "2001:0:a09:909::9"),
        ("orchid", "2001:10::9"),
        ("site-local", "fec0::9"),
        ("router", "fd00:0:0:1::1"),
        ("router-of-b", "fd00:0:0:2::1"),
        ("router-local", "fe80::ff:fe00:101"),
        ("group-interface", "ff01::1"),
        ("group-nodes", "ff02::1"),
        ("group-global", "ff0e::99"),
    ];
    for (name, addr) in addrs {
        let addr: Ipv6Addr = addr.parse().unwrap();
        c.add(format!("from-{name}"), move |n| n.a(Ip6::new(addr, n.remote6(B)).udp(5, 20))).alone();
        c.add(format!("from-{name}-hops-1"), move |n| n.a(Ip6::new(addr, n.remote6(B)).hops(1).udp(5, 20)))
            .alone();
        c.add(format!("from-{name}-echo"), move |n| n.a(Ip6::new(addr, router6(A)).echo(20))).alone();
        c.add(format!("from-{name}-closed-port"), move |n| n.a(Ip6::new(addr, router6(A)).udp(5, 20)))
            .alone();
        c.add(format!("to-{name}-echo"), move |n| n.a(Ip6::new(n.remote6(A), addr).echo(20))).alone();
        c.add(format!("to-{name}-udp"), move |n| n.a(Ip6::new(n.remote6(A), addr).udp(5, 20))).alone();
        c.add(format!("to-{name}-hops-1"), move |n| n.a(Ip6::new(n.remote6(A), addr).hops(1).udp(5, 20)))
            .alone();
    }
    cases
}
