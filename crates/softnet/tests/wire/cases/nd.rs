//! Neighbour discovery: what is answered, what is believed, and what is malformed (RFC 4861, RFC 4862, RFC 6980).

use std::net::Ipv6Addr;

use crate::case::Cases;
use crate::net::{A, B, Net, group_mac, router_local, router_mac, router6, solicited_node};
use crate::packet::{Frame, Ip6, Mac};

/// An option with a MAC address.
fn mac_option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}

/// A solicitation for `target`, of the case's host, to the group of it.
fn solicit(_: Net, src: Ipv6Addr, target: Ipv6Addr, options: &[u8]) -> Ip6 {
    let body = [&target.octets()[..], options].concat();
    Ip6::new(src, solicited_node(target)).hops(255).icmp(135, 0, 0, &body)
}

/// The frame for a packet to a group.
fn to_group(n: Net, packet: &Ip6) -> Frame {
    Frame::new(A, (n.host_mac(A), group_mac(packet.dst)), packet)
}

/// The usual one, with the option that says from where.
fn usual(n: Net) -> Ip6 {
    solicit(n, n.host6(A), router6(A), &mac_option(1, n.host_mac(A)))
}

/// An advertisement of the host.
fn advertise(n: Net, dst: Ipv6Addr, flags: u32, options: &[u8]) -> Ip6 {
    let body = [&n.host6(A).octets()[..], options].concat();
    Ip6::new(n.host6(A), dst).hops(255).icmp(136, 0, flags << 28, &body)
}

/// Something for the case's host, from behind link b: it comes out to where the router believes it is.
fn through_to_host(n: Net) -> Frame {
    n.by(B, Ip6::new(n.remote6(B), n.host6(A)).udp(5, 20))
}

const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("nd");
    let c = &mut cases;
    c.add("solicitation", |n| to_group(n, &usual(n)));
    c.add("solicitation-from-local", |n| {
        to_group(n, &solicit(n, n.host_local(A), router6(A), &mac_option(1, n.host_mac(A))))
    });
    c.add("solicitation-for-local", |n| {
        to_group(n, &solicit(n, n.host6(A), router_local(A), &mac_option(1, n.host_mac(A))))
    });
    c.add("solicitation-local-to-local", |n| {
        to_group(n, &solicit(n, n.host_local(A), router_local(A), &mac_option(1, n.host_mac(A))))
    });
    c.add("solicitation-unicast", |n| {
        let mut packet = usual(n);
        packet.dst = router6(A);
        n.host(packet.checked())
    });
    c.add("solicitation-unicast-without-mac", |n| {
        let mut packet = solicit(n, n.host6(A), router6(A), &[]);
        packet.dst = router6(A);
        n.host(packet.checked())
    });
    c.add("solicitation-unicast-to-other-own", |n| {
        let mut packet = usual(n);
        packet.dst = router_local(A);
        n.host(packet.checked())
    });
    c.add("solicitation-without-mac", |n| to_group(n, &solicit(n, n.host6(A), router6(A), &[])));
    c.add("solicitation-to-group-in-unicast-frame", |n| n.host(usual(n)));
    c.add("solicitation-to-wrong-group-mac", |n| to_group(n, &usual(n)).to(group_mac(NODES)));
    c.add("solicitation-in-broadcast-frame", |n| to_group(n, &usual(n)).to([0xff; 6]));
    for group in [NODES, ROUTERS, "ff02::1:ff12:3456".parse().unwrap(), "ff05::1".parse().unwrap()] {
        c.add(format!("solicitation-to-{group}"), move |n| {
            let mut packet = usual(n);
            packet.dst = group;
            to_group(n, &packet.checked())
        });
    }
    for hops in [0, 1, 64, 254] {
        c.add(format!("solicitation-hops-{hops}"), move |n| to_group(n, &usual(n).hops(hops)));
    }
    c.add("solicitation-code-1", |n| to_group(n, &usual(n).patch(1, &[1]).checked()));
    c.add("solicitation-reserved-bits", |n| to_group(n, &usual(n).patch(4, &[0xff; 4]).checked()));
    c.add("solicitation-bad-checksum", |n| to_group(n, &usual(n).bad_payload_check()));
    c.add("solicitation-zero-checksum", |n| to_group(n, &usual(n).patch(2, &[0, 0])));
    for len in [0, 4, 8, 16, 20, 23] {
        c.add(format!("solicitation-cut-{len}"), move |n| {
            let mut packet = usual(n);
            packet.payload.truncate(len);
            to_group(n, &if len < 4 { packet } else { packet.checked() })
        });
    }
    let options: [(&str, Vec<u8>); 12] = [
        ("option-length-0", vec![1, 0, 2, 0, 0, 0, 0, 1]),
        ("option-length-2", [&[1, 2][..], &[2; 14]].concat()),
        ("option-beyond-end", [&[1, 9][..], &[2; 6]].concat()),
        ("option-cut", vec![1, 1, 2, 0]),
        ("option-unknown", vec![99, 1, 0, 0, 0, 0, 0, 0]),
        ("option-nonce", vec![14, 1, 1, 2, 3, 4, 5, 6]),
        ("option-target-mac", vec![2, 1, 2, 9, 9, 9, 9, 9]),
        ("option-prefix", [&[3, 4][..], &[0; 30]].concat()),
        ("option-mtu", vec![5, 1, 0, 0, 0, 0, 5, 0xdc]),
        ("option-multicast-mac", vec![1, 1, 0x33, 0x33, 0, 0, 0, 1]),
        ("option-broadcast-mac", vec![1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("option-zero-mac", vec![1, 1, 0, 0, 0, 0, 0, 0]),
    ];
    for (name, option) in options {
        let alone = option.clone();
        c.add(format!("solicitation-{name}"), move |n| {
            to_group(n, &solicit(n, n.host6(A), router6(A), &alone))
        });
        c.add(format!("solicitation-mac-then-{name}"), move |n| {
            let options = [mac_option(1, n.host_mac(A)), option.clone()].concat();
            to_group(n, &solicit(n, n.host6(A), router6(A), &options))
        });
    }
    let targets = [
        ("of-b", router6(B)),
        ("nobody", "fd00:0:0:1::99".parse().unwrap()),
        ("group", NODES),
        ("loopback", Ipv6Addr::LOCALHOST),
        ("unspecified", Ipv6Addr::UNSPECIFIED),
        ("remote", "2001:db8:2::9".parse().unwrap()),
    ];
    for (name, target) in targets {
        c.add(format!("solicitation-target-{name}"), move |n| {
            to_group(n, &solicit(n, n.host6(A), target, &mac_option(1, n.host_mac(A))))
        })
        .alone();
    }
    let sources: [(&str, Ipv6Addr); 6] = [
        ("router", router6(A)),
        ("group", NODES),
        ("loopback", Ipv6Addr::LOCALHOST),
        ("remote", "2001:db8:1::9".parse().unwrap()),
        ("host-of-b", "fd00:0:0:2::9".parse().unwrap()),
        ("mapped", "::ffff:10.1.0.9".parse().unwrap()),
    ];
    for (name, src) in sources {
        c.add(format!("solicitation-from-{name}"), move |n| {
            to_group(n, &solicit(n, src, router6(A), &mac_option(1, n.host_mac(A))))
        })
        .alone();
    }
    // RFC 6980: none of it in fragments. Other headers may be there.
    c.add("solicitation-atomic-fragment", |n| to_group(n, &usual(n).fragment(0, false)));
    c.add("solicitation-unicast-atomic-fragment", |n| {
        let mut packet = usual(n);
        packet.dst = router6(A);
        n.host(packet.checked().fragment(0, false))
    });
    c.add("solicitation-hop-by-hop", |n| to_group(n, &usual(n).opts(0, &[])));
    c.add("solicitation-destination-options", |n| to_group(n, &usual(n).opts(60, &[])));
    // Does a host have it already (RFC 4862 5.4.3).
    let zero = Ipv6Addr::UNSPECIFIED;
    c.add("dad", move |n| to_group(n, &solicit(n, zero, router6(A), &[]))).told_all();
    c.add("dad-local", move |n| to_group(n, &solicit(n, zero, router_local(A), &[]))).told_all();
    c.add("dad-nonce", move |n| to_group(n, &solicit(n, zero, router6(A), &[14, 1, 1, 2, 3, 4, 5, 6])))
        .told_all();
    c.add("dad-with-mac", move |n| to_group(n, &solicit(n, zero, router6(A), &mac_option(1, n.host_mac(A)))))
        .told_all();
    c.add("dad-unicast", move |n| {
        let mut packet = solicit(n, zero, router6(A), &[]);
        packet.dst = router6(A);
        n.host(packet.checked())
    })
    .told_all();
    c.add("dad-to-all-nodes", move |n| {
        let mut packet = solicit(n, zero, router6(A), &[]);
        packet.dst = NODES;
        to_group(n, &packet.checked())
    })
    .told_all();
    c.add("dad-hops-64", move |n| to_group(n, &solicit(n, zero, router6(A), &[]).hops(64))).told_all();
    c.add("dad-for-host", move |n| to_group(n, &solicit(n, zero, n.host6(A), &[]))).told_all();
    // Resolution, and what is believed.
    c.add("resolve", |n| vec![vec![through_to_host(n)]]);
    c.add("resolve-five", |n| vec![(0..5).map(|_| through_to_host(n)).collect::<Vec<_>>()]);
    c.add("resolve-silent", |n| vec![vec![through_to_host(n)]]).silent().wait(4);
    c.add("learn-from-solicitation", |n| vec![vec![to_group(n, &usual(n))], vec![through_to_host(n)]])
        .silent();
    c.add("learn-from-unicast-solicitation", |n| {
        let mut packet = usual(n);
        packet.dst = router6(A);
        vec![vec![n.host(packet.checked())], vec![through_to_host(n)]]
    })
    .silent();
    c.add("learn-from-unasked-advertisement", |n| {
        let packet = advertise(n, router6(A), 2, &mac_option(2, n.host_mac(A)));
        vec![vec![n.host(packet)], vec![through_to_host(n)]]
    })
    .silent();
    c.add("learn-from-router-solicitation", |n| {
        let packet = Ip6::new(n.host6(A), ROUTERS).hops(255).icmp(133, 0, 0, &mac_option(1, n.host_mac(A)));
        vec![vec![to_group(n, &packet)], vec![through_to_host(n)]]
    })
    .silent();
    // 4: from a router. 2: solicited, 1 of the upper nibble's bits is override: R 8, S 4, O 2.
    for (name, flags) in
        [("plain", 0), ("override", 2), ("solicited", 4), ("solicited-override", 6), ("router-override", 10)]
    {
        c.add(format!("move-told-all-{name}"), move |n| {
            let packet = advertise(n, NODES, flags, &mac_option(2, n.other_mac(A)));
            vec![
                vec![through_to_host(n)],
                vec![Frame::new(A, (n.other_mac(A), group_mac(NODES)), &packet)],
                vec![through_to_host(n)],
            ]
        });
        c.add(format!("move-told-router-{name}"), move |n| {
            let packet = advertise(n, router6(A), flags, &mac_option(2, n.other_mac(A)));
            vec![
                vec![through_to_host(n)],
                vec![Frame::new(A, (n.other_mac(A), router_mac(A)), &packet)],
                vec![through_to_host(n)],
            ]
        });
    }
    c.add("move-told-router-without-mac", |n| {
        let packet = advertise(n, router6(A), 2, &[]);
        vec![vec![through_to_host(n)], vec![n.host(packet)], vec![through_to_host(n)]]
    });
    c.add("move-told-router-hops-254", |n| {
        let packet = advertise(n, router6(A), 6, &mac_option(2, n.other_mac(A))).hops(254);
        vec![vec![through_to_host(n)], vec![n.host(packet)], vec![through_to_host(n)]]
    });
    c.add("move-told-router-code-1", |n| {
        let packet = advertise(n, router6(A), 6, &mac_option(2, n.other_mac(A))).patch(1, &[1]).checked();
        vec![vec![through_to_host(n)], vec![n.host(packet)], vec![through_to_host(n)]]
    });
    c.add("move-by-solicitation", |n| {
        let packet = solicit(n, n.host6(A), router6(A), &mac_option(1, n.other_mac(A)));
        vec![vec![through_to_host(n)], vec![to_group(n, &packet)], vec![through_to_host(n)]]
    });
    c.add("move-on-another-link", |n| {
        let packet = advertise(n, NODES, 2, &mac_option(2, n.other_mac(B)));
        vec![
            vec![through_to_host(n)],
            vec![Frame::new(B, (n.other_mac(B), group_mac(NODES)), &packet)],
            vec![through_to_host(n)],
        ]
    });
    c.add("advertisement-of-routers-address", |n| {
        let body = [&router6(A).octets()[..], &mac_option(2, n.host_mac(A))].concat();
        let packet = Ip6::new(n.host6(A), NODES).hops(255).icmp(136, 0, 0x2000_0000, &body);
        to_group(n, &packet)
    });
    c.add("advertisement-solicited-to-all", |n| {
        to_group(n, &advertise(n, NODES, 4, &mac_option(2, n.host_mac(A))))
    });
    // Routers and redirects are none of its business.
    c.add("router-solicitation", |n| {
        let packet =
            Ip6::new(n.host_local(A), ROUTERS).hops(255).icmp(133, 0, 0, &mac_option(1, n.host_mac(A)));
        to_group(n, &packet)
    });
    c.add("router-advertisement", |n| {
        let body = [&[0; 8][..], &mac_option(1, n.host_mac(A))].concat();
        to_group(n, &Ip6::new(n.host_local(A), NODES).hops(255).icmp(134, 0, 0x4000_0708, &body))
    });
    c.add("solicitation-through", |n| {
        let body = [&n.remote6(B).octets()[..], &mac_option(1, n.host_mac(A))].concat();
        n.host(Ip6::new(n.host6(A), n.remote6(B)).hops(255).icmp(135, 0, 0, &body))
    });
    cases
}
