//! When errors are sent, and what they quote (RFC 1812 4.3, RFC 4443 2.4).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::case::Cases;
use crate::net::{A, B, BLACKHOLE4, BLACKHOLE6, NO_ROUTE4, NO_ROUTE6, Net, UNREACHABLE4, UNREACHABLE6};
use crate::packet::{Frame, Ip4, Ip6, Layer3, data};

fn within4(net: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(net) + 7)
}
fn within6(net: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(net) + 7)
}

/// An error about a packet of the remote host's own, as it might come from a router.
fn error4(n: Net, kind: u8, code: u8) -> Vec<u8> {
    let quoted = Ip4::new(n.remote4(B), n.remote4(A)).udp(5, 20).bytes();
    Ip4::new(n.remote4(A), n.remote4(B)).icmp(kind, code, 0, &quoted[..28]).payload
}
fn error6(n: Net, kind: u8, code: u8) -> Vec<u8> {
    let quoted = Ip6::new(n.remote6(B), n.remote6(A)).udp(5, 20).bytes();
    Ip6::new(n.remote6(A), n.remote6(B)).icmp(kind, code, 0, &quoted).payload
}

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("errors");
    let c = &mut cases;
    let routes = [
        ("no-route", NO_ROUTE4, NO_ROUTE6),
        ("unreachable", UNREACHABLE4, UNREACHABLE6),
        ("blackhole", BLACKHOLE4, BLACKHOLE6),
    ];
    for (name, net4, net6) in routes {
        let (to4, to6) = (within4(net4), within6(net6));
        c.add(format!("v4-{name}-udp"), move |n| n.a(Ip4::new(n.remote4(A), to4).udp(5, 20)));
        c.add(format!("v4-{name}-tcp"), move |n| n.a(Ip4::new(n.remote4(A), to4).tcp(2, 80, 0)));
        c.add(format!("v4-{name}-echo"), move |n| n.a(Ip4::new(n.remote4(A), to4).echo(20)));
        c.add(format!("v4-{name}-ttl-1"), move |n| n.a(Ip4::new(n.remote4(A), to4).ttl(1).udp(5, 20)));
        c.add(format!("v4-{name}-from-host"), move |n| n.host(Ip4::new(n.host4(A), to4).udp(5, 20)));
        c.add(format!("v4-{name}-tos"), move |n| n.a(Ip4::new(n.remote4(A), to4).tos(0xb8).udp(5, 20)));
        c.add(format!("v6-{name}-udp"), move |n| n.a(Ip6::new(n.remote6(A), to6).udp(5, 20)));
        c.add(format!("v6-{name}-tcp"), move |n| n.a(Ip6::new(n.remote6(A), to6).tcp(2, 80, 0)));
        c.add(format!("v6-{name}-echo"), move |n| n.a(Ip6::new(n.remote6(A), to6).echo(20)));
        c.add(format!("v6-{name}-hops-1"), move |n| n.a(Ip6::new(n.remote6(A), to6).hops(1).udp(5, 20)));
        c.add(format!("v6-{name}-from-host"), move |n| n.host(Ip6::new(n.host6(A), to6).udp(5, 20)));
        c.add(format!("v6-{name}-class"), move |n| n.a(Ip6::new(n.remote6(A), to6).class(0xb8).udp(5, 20)));
    }
    // How much is quoted.
    for len in [0, 1, 7, 8, 100, 519, 520, 521, 547, 548, 549, 1000, 1472] {
        c.add(format!("v4-quote-{len}"), move |n| n.a(n.through().ttl(1).udp(5, len)));
    }
    for len in [0, 1, 7, 8, 100, 1183, 1184, 1185, 1192, 1232, 1233, 1452] {
        c.add(format!("v6-quote-{len}"), move |n| n.a(n.through6().hops(1).udp(5, len)));
    }
    c.add("v4-quote-trailer", |n| n.a(n.through().ttl(1).udp(5, 20)).trailer(30));
    c.add("v6-quote-trailer", |n| n.a(n.through6().hops(1).udp(5, 20)).trailer(30));
    for tos in [0, 0x10, 0xb8, 0xff] {
        c.add(format!("v4-ttl-1-tos-{tos:02x}"), move |n| n.a(n.through().ttl(1).tos(tos).udp(5, 20)));
        c.add(format!("v6-hops-1-class-{tos:02x}"), move |n| n.a(n.through6().hops(1).class(tos).udp(5, 20)));
        c.add(format!("v4-closed-port-tos-{tos:02x}"), move |n| n.a(n.to_router().tos(tos).udp(5, 20)));
        c.add(format!("v6-closed-port-class-{tos:02x}"), move |n| n.a(n.to_router6().class(tos).udp(5, 20)));
    }
    // What no error is about: errors. About questions there may be some.
    for kind in [0, 3, 4, 5, 8, 11, 12, 13, 14, 15, 17, 40, 200] {
        c.add(format!("v4-about-icmp-{kind}"), move |n| {
            n.a(n.through().ttl(1).proto(1, &error4(n, kind, 0)))
        });
        let to = within4(NO_ROUTE4);
        c.add(format!("v4-no-route-about-icmp-{kind}"), move |n| {
            n.a(Ip4::new(n.remote4(A), to).proto(1, &error4(n, kind, 0)))
        });
    }
    for kind in [0, 1, 2, 3, 4, 100, 127, 128, 129, 135, 137, 200, 255] {
        c.add(format!("v6-about-icmp-{kind}"), move |n| {
            n.a(n.through6().hops(1).proto(58, &error6(n, kind, 0)))
        });
        let to = within6(NO_ROUTE6);
        c.add(format!("v6-no-route-about-icmp-{kind}"), move |n| {
            n.a(Ip6::new(n.remote6(A), to).proto(58, &error6(n, kind, 0)))
        });
    }
    c.add("v4-about-short-icmp", |n| n.a(n.through().ttl(1).proto(1, &[])));
    c.add("v6-about-short-icmp", |n| n.a(n.through6().hops(1).proto(58, &[])));
    c.add("v4-about-cut-icmp-error", |n| n.a(n.through().ttl(1).proto(1, &[3])));
    c.add("v6-about-cut-icmp-error", |n| n.a(n.through6().hops(1).proto(58, &[1])));
    c.add("v4-about-first-fragment", |n| n.a(n.through().ttl(1).mf().proto(17, &data(64))));
    c.add("v4-about-later-fragment", |n| n.a(n.through().ttl(1).offset(64).proto(17, &data(64))));
    c.add("v6-about-first-fragment", |n| n.a(n.through6().hops(1).fragment(0, true).proto(17, &data(64))));
    c.add("v6-about-later-fragment", |n| n.a(n.through6().hops(1).fragment(64, false).proto(17, &data(64))));
    c.add("v4-about-later-fragment-of-icmp", |n| n.a(n.through().ttl(1).offset(64).proto(1, &[3; 64])));
    c.add("v6-about-icmp-error-behind-options", |n| {
        n.a(n.through6().hops(1).opts(60, &[]).proto(58, &error6(n, 1, 0)))
    });
    // Errors to the router itself are about nothing that it sent.
    for (kind, code) in [(3, 0), (3, 1), (3, 3), (3, 4), (4, 0), (5, 1), (11, 0), (12, 0)] {
        c.add(format!("v4-error-{kind}-{code}-to-router"), move |n| {
            n.a(n.to_router().proto(1, &error4(n, kind, code)))
        });
    }
    for (kind, code) in [(1, 0), (1, 4), (2, 0), (3, 0), (4, 0), (4, 1), (137, 0)] {
        c.add(format!("v6-error-{kind}-{code}-to-router"), move |n| {
            let mut packet = n.to_router6().proto(58, &error6(n, kind, code));
            packet = packet.checked();
            n.a(packet)
        });
    }
    // A few at once: errors of both families are paced, and these are below any limit.
    c.add("v4-five-at-once", |n| (0..5).map(|_| n.a(n.through().ttl(1).udp(5, 20))).collect::<Vec<Frame>>());
    c.add("v6-five-at-once", |n| {
        (0..5).map(|_| n.a(n.through6().hops(1).udp(5, 20))).collect::<Vec<Frame>>()
    });
    // The host that is asked for does not answer.
    c.add("v4-host-silent", |n| n.a(Ip4::new(n.remote4(A), n.host4(B)).udp(5, 20))).silent().wait(4);
    c.add("v4-host-silent-tcp", |n| n.a(Ip4::new(n.remote4(A), n.host4(B)).tcp(2, 80, 0))).silent().wait(4);
    c.add("v4-host-silent-icmp-error", |n| {
        n.a(Ip4::new(n.remote4(A), n.host4(B)).proto(1, &error4(n, 3, 1)))
    })
    .silent()
    .wait(4);
    c.add("v6-host-silent", |n| n.a(Ip6::new(n.remote6(A), n.host6(B)).udp(5, 20))).silent().wait(4);
    c.add("v6-host-silent-tcp", |n| n.a(Ip6::new(n.remote6(A), n.host6(B)).tcp(2, 80, 0))).silent().wait(4);
    c.add("v4-host-silent-five", |n| {
        (0..5).map(|_| n.a(Ip4::new(n.remote4(A), n.host4(B)).udp(5, 20))).collect::<Vec<Frame>>()
    })
    .silent()
    .wait(4);
    cases
}
