//! The subnet-router anycast address, and the groups that a router is in (RFC 4291 2.6.1, 2.8).

use std::net::Ipv6Addr;

use crate::case::Cases;
use crate::net::{A, B, group_mac, router_local, solicited_node};
use crate::packet::{Frame, Ip6};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("anycast");
    let c = &mut cases;
    let subnet = |link: usize| Ipv6Addr::new(0xfd00, 0, 0, link as u16 + 1, 0, 0, 0, 0);
    for (name, link) in [("a", A), ("b", B)] {
        c.add(format!("echo-{name}"), move |n| n.a(Ip6::new(n.remote6(A), subnet(link)).echo(20))).alone();
        c.add(format!("echo-{name}-from-host"), move |n| n.host(Ip6::new(n.host6(A), subnet(link)).echo(20)))
            .alone();
        c.add(format!("closed-port-{name}"), move |n| n.a(Ip6::new(n.remote6(A), subnet(link)).udp(5, 20)))
            .alone();
        c.add(format!("open-port-{name}"), move |n| n.a(Ip6::new(n.remote6(A), subnet(link)).udp(7, 20)))
            .alone();
        c.add(format!("tcp-{name}"), move |n| n.a(Ip6::new(n.remote6(A), subnet(link)).tcp(2, 80, 0)))
            .alone();
        c.add(format!("hops-1-{name}"), move |n| n.a(Ip6::new(n.remote6(A), subnet(link)).hops(1).echo(20)))
            .alone();
        c.add(format!("from-{name}"), move |n| n.a(Ip6::new(subnet(link), n.remote6(B)).udp(5, 20))).alone();
        c.add(format!("solicitation-{name}"), move |n| {
            let body = [&subnet(link).octets()[..], &[1, 1], &n.host_mac(A)].concat();
            let group = solicited_node(subnet(link));
            let packet = Ip6::new(n.host6(A), group).hops(255).icmp(135, 0, 0, &body);
            Frame::new(A, (n.host_mac(A), group_mac(group)), &packet)
        })
        .alone();
    }
    // As anycast address of the link-local prefix.
    c.add("echo-local", |n| {
        n.host(Ip6::new(n.host_local(A), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)).echo(20))
    })
    .alone();
    let groups = [
        ("nodes-interface", "ff01::1"),
        ("nodes", "ff02::1"),
        ("routers-interface", "ff01::2"),
        ("routers", "ff02::2"),
        ("routers-site", "ff05::2"),
        ("ospf", "ff02::5"),
        ("mld", "ff02::16"),
        ("dhcp", "ff02::1:2"),
        ("mdns", "ff02::fb"),
        ("site", "ff05::99"),
        ("global", "ff0e::99"),
        ("reserved-0", "ff00::1"),
        ("reserved-f", "ff0f::1"),
        ("subnet-prefix", "ff32::1"),
    ];
    for (name, group) in groups {
        let group: Ipv6Addr = group.parse().unwrap();
        let to_group =
            move |n: crate::net::Net, packet: Ip6| Frame::new(A, (n.host_mac(A), group_mac(group)), &packet);
        c.add(format!("group-{name}-echo"), move |n| to_group(n, Ip6::new(n.host6(A), group).echo(20)));
        c.add(format!("group-{name}-echo-from-local"), move |n| {
            to_group(n, Ip6::new(n.host_local(A), group).echo(20))
        });
        c.add(format!("group-{name}-udp"), move |n| to_group(n, Ip6::new(n.host6(A), group).udp(5, 20)));
        c.add(format!("group-{name}-tcp"), move |n| to_group(n, Ip6::new(n.host6(A), group).tcp(2, 80, 0)));
        c.add(format!("group-{name}-echo-unicast-frame"), move |n| {
            n.host(Ip6::new(n.host6(A), group).echo(20))
        });
    }
    c.add("group-solicited-node-echo", |n| {
        let group = solicited_node(router_local(A));
        Frame::new(A, (n.host_mac(A), group_mac(group)), &Ip6::new(n.host6(A), group).echo(20))
    });
    c.add("group-nodes-echo-from-remote", |n| {
        let group: Ipv6Addr = "ff02::1".parse().unwrap();
        Frame::new(A, (n.host_mac(A), group_mac(group)), &Ip6::new(n.remote6(A), group).echo(20))
    });
    c.add("group-nodes-bad-option", |n| {
        let group: Ipv6Addr = "ff02::1".parse().unwrap();
        let packet = Ip6::new(n.host6(A), group).opts(60, &[0x85, 2, 1, 2]).echo(20);
        Frame::new(A, (n.host_mac(A), group_mac(group)), &packet)
    });
    c.add("group-nodes-bad-option-unless-group", |n| {
        let group: Ipv6Addr = "ff02::1".parse().unwrap();
        let packet = Ip6::new(n.host6(A), group).opts(60, &[0xc5, 2, 1, 2]).echo(20);
        Frame::new(A, (n.host_mac(A), group_mac(group)), &packet)
    });
    cases
}
