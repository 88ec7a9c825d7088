//! Extension headers: their orders, lengths and options (RFC 8200 4).

use std::net::Ipv6Addr;

use crate::case::Cases;
use crate::net::{A, B, gateway6, router6};
use crate::packet::{DESTINATION, FRAGMENT, HOP_BY_HOP, Ip6, ROUTING, data};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("extension");
    let c = &mut cases;
    // Options, in a header of either kind, to the router and through it.
    let options: Vec<(String, Vec<u8>)> = [
        ("none", vec![]),
        ("pad1", vec![0; 6]),
        ("padn-0", vec![1, 0]),
        ("padn-not-zero", vec![1, 4, 9, 9, 9, 9]),
        ("padn-long", [&[1, 20][..], &[0; 20]].concat()),
        ("padn-beyond", vec![1, 9, 0, 0, 0, 0]),
        ("pad-beyond-7", vec![0; 14]),
        ("option-cut", vec![0, 0, 0, 0, 0, 30]),
        ("router-alert", vec![5, 2, 0, 0]),
        ("router-alert-length-4", vec![5, 4, 0, 0, 0, 0]),
        ("jumbo", vec![0xc2, 4, 0, 1, 0, 0]),
        ("jumbo-small", vec![0xc2, 4, 0, 0, 0, 40]),
        ("jumbo-length-2", vec![0xc2, 2, 0, 0]),
        ("tunnel-limit", vec![4, 1, 3]),
        ("home-address", [&[0xc9, 16][..], &[0x20; 16]].concat()),
        ("skip-unknown", vec![0x1e, 2, 1, 2]),
        ("skip-unknown-mutable", vec![0x3e, 2, 1, 2]),
        ("discard-unknown", vec![0x5e, 2, 1, 2]),
        ("report-unknown", vec![0x9e, 2, 1, 2]),
        ("report-unless-group-unknown", vec![0xde, 2, 1, 2]),
        ("skip-then-report", vec![0x1e, 2, 1, 2, 0x9e, 2, 1, 2]),
        ("option-beyond", vec![0x1e, 40, 1, 2]),
        ("ioam", vec![0x31, 2, 0, 0]),
        ("rpl", vec![0x63, 4, 0, 0, 0, 0]),
        ("calipso", [&[7, 8][..], &[0, 0, 0, 1, 0, 0, 0, 0]].concat()),
    ]
    .map(|(name, option)| (name.to_owned(), option))
    .into();
    for (header, kind) in [("hbh", HOP_BY_HOP), ("dst", DESTINATION)] {
        for (name, option) in &options {
            let given = option.clone();
            c.add(format!("{header}-{name}-through"), move |n| {
                n.a(n.through6().opts(kind, &given).udp(5, 20))
            });
            let given = option.clone();
            c.add(format!("{header}-{name}-to-router"), move |n| {
                n.a(n.to_router6().opts(kind, &given).echo(20))
            });
        }
    }
    for (name, kind) in [("hbh", HOP_BY_HOP), ("dst", DESTINATION), ("rh", ROUTING)] {
        // A header that is longer than the packet.
        c.add(format!("{name}-length-beyond-through"), move |n| {
            n.a(n.through6().header(kind, &[200, 1, 4, 0, 0, 0, 0]).udp(5, 20))
        });
        c.add(format!("{name}-length-beyond-to-router"), move |n| {
            n.a(n.to_router6().header(kind, &[200, 1, 4, 0, 0, 0, 0]).echo(20))
        });
        c.add(format!("{name}-cut-through"), move |n| n.a(n.through6().proto(kind, &[17, 0, 1, 4])));
        c.add(format!("{name}-cut-to-router"), move |n| n.a(n.to_router6().proto(kind, &[17, 0, 1, 4])));
        c.add(format!("{name}-empty-through"), move |n| n.a(n.through6().proto(kind, &[])));
        c.add(format!("{name}-empty-to-router"), move |n| n.a(n.to_router6().proto(kind, &[])));
        c.add(format!("{name}-hops-1"), move |n| {
            let packet = n.through6().hops(1);
            n.a(if kind == ROUTING { packet.routing(2, 0, &[n.remote6(B)]) } else { packet.opts(kind, &[]) }
                .udp(5, 20))
        });
        c.add(format!("{name}-long-through"), move |n| {
            n.a(n.through6().header(kind, &[&[31, 1, 253][..], &[0; 252]].concat()).udp(5, 20))
        });
        c.add(format!("{name}-closed-port"), move |n| {
            let packet = n.to_router6();
            n.a(if kind == ROUTING { packet.routing(2, 0, &[router6(A)]) } else { packet.opts(kind, &[]) }
                .udp(5, 20))
        });
    }
    // Orders.
    let orders: [(&str, &[u8]); 14] = [
        ("hbh-dst", &[0, 60]),
        ("dst-hbh", &[60, 0]),
        ("hbh-hbh", &[0, 0]),
        ("dst-dst", &[60, 60]),
        ("dst-dst-dst", &[60, 60, 60]),
        ("hbh-dst-rh-dst", &[0, 60, 43, 60]),
        ("rh-dst", &[43, 60]),
        ("rh-rh", &[43, 43]),
        ("rh-hbh", &[43, 0]),
        ("frag-dst", &[44, 60]),
        ("dst-frag", &[60, 44]),
        ("frag-hbh", &[44, 0]),
        ("frag-frag", &[44, 44]),
        ("hbh-frag-dst", &[0, 44, 60]),
    ];
    let build = |packet: Ip6, order: &[u8], via: Ipv6Addr| {
        order.iter().fold(packet, |packet, kind| match *kind {
            ROUTING => packet.routing(2, 0, &[via]),
            FRAGMENT => packet.fragment(0, false),
            kind => packet.opts(kind, &[]),
        })
    };
    for (name, order) in orders {
        c.add(format!("order-{name}-through"), move |n| {
            n.a(build(n.through6(), order, n.remote6(B)).udp(5, 20))
        });
        c.add(format!("order-{name}-to-router"), move |n| {
            n.a(build(n.to_router6(), order, router6(A)).echo(20))
        });
        c.add(format!("order-{name}-closed-port"), move |n| {
            n.a(build(n.to_router6(), order, router6(A)).udp(5, 20))
        });
    }
    for count in [8, 9, 16, 17, 40] {
        c.add(format!("dst-{count}-times-to-router"), move |n| {
            n.a((0..count).fold(n.to_router6(), |packet, _| packet.opts(DESTINATION, &[])).echo(20))
        });
        c.add(format!("dst-{count}-times-through"), move |n| {
            n.a((0..count).fold(n.through6(), |packet, _| packet.opts(DESTINATION, &[])).udp(5, 20))
        });
    }
    // Routing headers, by type and how far they are.
    for kind in [0, 1, 2, 3, 4, 5, 253] {
        for left in [0, 1, 2] {
            c.add(format!("rh-type-{kind}-left-{left}-to-router"), move |n| {
                n.a(n.to_router6().routing(kind, left, &[n.remote6(B)]).echo(20))
            });
            c.add(format!("rh-type-{kind}-left-{left}-through"), move |n| {
                n.a(n.through6().routing(kind, left, &[gateway6(B)]).udp(5, 20))
            });
        }
    }
    c.add("rh-type-0-own-address", |n| n.a(n.to_router6().routing(0, 1, &[router6(B)]).echo(20)));
    c.add("rh-type-2-own-address", |n| n.a(n.to_router6().routing(2, 1, &[router6(B)]).echo(20)));
    c.add("rh-type-0-odd-length", |n| {
        n.a(n.to_router6().header(ROUTING, &[1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).echo(20))
    });
    c.add("rh-type-0-group", |n| n.a(n.to_router6().routing(0, 1, &["ff02::1".parse().unwrap()]).echo(20)));
    // What is not known, or not served.
    for next in [50, 51, 135, 139, 140, 141, 252, 253] {
        c.add(format!("unknown-{next}-behind-dst"), move |n| {
            n.a(n.to_router6().opts(DESTINATION, &[]).proto(next, &data(24)))
        });
    }
    c.add("no-next-header-behind-hbh", |n| n.a(n.to_router6().opts(HOP_BY_HOP, &[]).proto(59, &data(8))));
    c.add("no-next-header-behind-hbh-through", |n| {
        n.a(n.through6().opts(HOP_BY_HOP, &[]).proto(59, &data(8)))
    });
    c.add("hbh-router-alert-no-route", |n| {
        n.a(Ip6::new(n.remote6(A), crate::net::NO_ROUTE6).opts(HOP_BY_HOP, &[5, 2, 0, 0]).udp(5, 20))
    });
    c.add("hbh-report-hops-1", |n| n.a(n.through6().hops(1).opts(HOP_BY_HOP, &[0x9e, 2, 1, 2]).udp(5, 20)));
    c.add("hbh-report-no-route", |n| {
        n.a(Ip6::new(n.remote6(A), crate::net::NO_ROUTE6).opts(HOP_BY_HOP, &[0x9e, 2, 1, 2]).udp(5, 20))
    });
    c.add("hbh-report-in-icmp-error", |n| {
        n.a(n.through6().opts(HOP_BY_HOP, &[0x9e, 2, 1, 2]).icmp(1, 0, 0, &data(48)))
    });
    c.add("hbh-report-long", |n| n.a(n.through6().opts(HOP_BY_HOP, &[0x9e, 2, 1, 2]).udp(5, 1400)));
    c.add("dst-report-long", |n| n.a(n.to_router6().opts(DESTINATION, &[0x9e, 2, 1, 2]).udp(5, 1400)));
    cases
}
