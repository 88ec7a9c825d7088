//! What passes as it is, and what is about the frame around it.

use crate::case::Cases;
use crate::net::{A, B, C, router_mac};
use crate::packet::{DESTINATION, Frame, Ip4, Ip6};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("forward");
    let c = &mut cases;
    for len in [0, 1, 17, 18, 19, 500, 1371, 1372, 1471, 1472] {
        c.add(format!("v4-{len}"), move |n| n.a(n.through().udp(5, len)));
    }
    for len in [0, 1, 500, 1351, 1352, 1451, 1452] {
        c.add(format!("v6-{len}"), move |n| n.a(n.through6().udp(5, len)));
    }
    for tos in [1, 2, 3, 0x10, 0xb8, 0xff] {
        c.add(format!("v4-tos-{tos:02x}"), move |n| n.a(n.through().tos(tos).udp(5, 20)));
        c.add(format!("v6-class-{tos:02x}"), move |n| n.a(n.through6().class(tos).udp(5, 20)));
    }
    c.add("v6-flow", |n| n.a(n.through6().flow(0xfffff).udp(5, 20)));
    c.add("v4-udp-bad-checksum", |n| n.a(n.through().udp(5, 20).bad_payload_check()));
    c.add("v4-udp-zero-checksum", |n| n.a(n.through().udp(5, 20).patch(6, &[0, 0])));
    c.add("v6-udp-bad-checksum", |n| n.a(n.through6().udp(5, 20).bad_payload_check()));
    c.add("v6-udp-zero-checksum", |n| n.a(n.through6().udp(5, 20).patch(6, &[0, 0])));
    c.add("v4-udp-bad-length", |n| n.a(n.through().udp(5, 20).patch(4, &[0, 3])));
    c.add("v4-tcp-bad-checksum", |n| n.a(n.through().tcp(2, 80, 10).bad_payload_check()));
    c.add("v6-tcp-bad-checksum", |n| n.a(n.through6().tcp(2, 80, 10).bad_payload_check()));
    c.add("v4-icmp-bad-checksum", |n| n.a(n.through().echo(20).bad_payload_check()));
    c.add("v6-icmp-bad-checksum", |n| n.a(n.through6().echo(20).bad_payload_check()));
    c.add("v4-padded", |n| n.a(n.through().udp(5, 1)).padded());
    c.add("v6-padded", |n| n.a(n.through6().udp(5, 1)).padded());
    c.add("v4-trailer", |n| n.a(n.through().udp(5, 20)).trailer(30));
    c.add("v6-trailer", |n| n.a(n.through6().udp(5, 20)).trailer(30));
    c.add("v6-destination-options", |n| n.a(n.through6().opts(DESTINATION, &[]).udp(5, 20)));
    for (name, from, to) in [("b-to-a", B, A), ("c-to-a", C, A), ("c-to-b", C, B), ("b-to-c", B, C)] {
        c.add(format!("v4-{name}"), move |n| n.by(from, Ip4::new(n.remote4(from), n.remote4(to)).udp(5, 20)));
        c.add(format!("v6-{name}"), move |n| n.by(from, Ip6::new(n.remote6(from), n.remote6(to)).udp(5, 20)));
    }
    c.add("v4-to-host", |n| n.a(Ip4::new(n.remote4(A), n.host4(B)).udp(5, 20)));
    c.add("v6-to-host", |n| n.a(Ip6::new(n.remote6(A), n.host6(B)).udp(5, 20)));
    c.add("v4-from-host", |n| n.host(Ip4::new(n.host4(A), n.remote4(B)).udp(5, 20)));
    c.add("v6-from-host", |n| n.host(Ip6::new(n.host6(A), n.remote6(B)).udp(5, 20)));
    c.add("v4-host-to-host", |n| n.host(Ip4::new(n.host4(A), n.host4(B)).udp(5, 20)));
    c.add("v6-host-to-host", |n| n.host(Ip6::new(n.host6(A), n.host6(B)).udp(5, 20)));
    c.add("v4-source-of-another-link", |n| n.a(Ip4::new(n.remote4(C), n.remote4(B)).udp(5, 20)));
    c.add("v6-source-of-another-link", |n| n.a(Ip6::new(n.remote6(C), n.remote6(B)).udp(5, 20)));
    c.add("v4-source-without-route", |n| n.a(Ip4::new([203, 0, 113, 7].into(), n.remote4(B)).udp(5, 20)));
    // Frames that are not for the router, or not only.
    let macs = [
        ("other-mac", [2, 9, 9, 9, 9, 9]),
        ("mac-of-another-link", router_mac(B)),
        ("broadcast-mac", [0xff; 6]),
        ("group-mac", [1, 0, 0x5e, 0, 0, 1]),
        ("group6-mac", [0x33, 0x33, 0, 0, 0, 1]),
        ("zero-mac", [0; 6]),
    ];
    for (name, mac) in macs {
        c.add(format!("v4-{name}"), move |n| n.a(n.through().udp(5, 20)).to(mac));
        c.add(format!("v6-{name}"), move |n| n.a(n.through6().udp(5, 20)).to(mac));
        c.add(format!("v4-{name}-ttl-1"), move |n| n.a(n.through().ttl(1).udp(5, 20)).to(mac));
        c.add(format!("v6-{name}-hops-1"), move |n| n.a(n.through6().hops(1).udp(5, 20)).to(mac));
        c.add(format!("v4-{name}-echo"), move |n| n.a(n.to_router().echo(20)).to(mac));
        c.add(format!("v6-{name}-echo"), move |n| n.a(n.to_router6().echo(20)).to(mac));
    }
    let sources = [
        ("broadcast", [0xff; 6]),
        ("group", [1, 0, 0x5e, 0, 0, 1]),
        ("router", router_mac(A)),
        ("zero", [0; 6]),
    ];
    for (name, mac) in sources {
        c.add(format!("v4-from-{name}-mac"), move |n| n.a(n.through().udp(5, 20)).from(mac));
        c.add(format!("v6-from-{name}-mac"), move |n| n.a(n.through6().udp(5, 20)).from(mac));
    }
    for ethertype in [0x0200, 0x0800 - 1, 0x8137, 0x8847, 0x8863, 0x88cc, 0x9000] {
        c.add(format!("ethertype-{ethertype:04x}"), move |n| {
            n.a(n.through().udp(5, 20)).ethertype(ethertype)
        });
    }
    c.add("v4-as-v6", |n| n.a(n.through().udp(5, 40)).ethertype(0x86dd));
    c.add("v6-as-v4", |n| n.a(n.through6().udp(5, 40)).ethertype(0x0800));
    c.add("v4-many", |n| (0..20).map(|i| n.a(n.through().id(i + 1).udp(5, 20))).collect::<Vec<Frame>>());
    cases
}
