//! Scopes of IPv6: what is link-local stays on its link (RFC 4007, RFC 4291 2.5.6).

use std::net::Ipv6Addr;

use crate::case::Cases;
use crate::net::{A, B, C, router_local, router6};
use crate::packet::Ip6;

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("scope");
    let c = &mut cases;
    c.add("echo-local-to-local", |n| n.host(Ip6::new(n.host_local(A), router_local(A)).echo(20)));
    c.add("echo-local-to-global", |n| n.host(Ip6::new(n.host_local(A), router6(A)).echo(20)));
    c.add("echo-global-to-local", |n| n.host(Ip6::new(n.host6(A), router_local(A)).echo(20)));
    c.add("echo-remote-to-local", |n| n.a(Ip6::new(n.remote6(A), router_local(A)).echo(20)));
    c.add("echo-local-to-global-of-b", |n| n.host(Ip6::new(n.host_local(A), router6(B)).echo(20)));
    c.add("closed-port-local", |n| n.host(Ip6::new(n.host_local(A), router_local(A)).udp(5, 20)));
    c.add("closed-port-local-to-global", |n| n.host(Ip6::new(n.host_local(A), router6(A)).udp(5, 20)));
    c.add("closed-port-local-to-global-of-b", |n| n.host(Ip6::new(n.host_local(A), router6(B)).udp(5, 20)));
    c.add("open-port-local-to-global", |n| n.host(Ip6::new(n.host_local(A), router6(A)).udp(7, 20)));
    c.add("tcp-local", |n| n.host(Ip6::new(n.host_local(A), router_local(A)).tcp(2, 80, 0)));
    c.add("local-through", |n| n.host(Ip6::new(n.host_local(A), n.remote6(B)).udp(5, 20)));
    c.add("local-through-hops-1", |n| n.host(Ip6::new(n.host_local(A), n.remote6(B)).hops(1).udp(5, 20)));
    c.add("local-through-to-host", |n| n.host(Ip6::new(n.host_local(A), n.host6(B)).udp(5, 20)));
    c.add("local-without-route", |n| {
        n.host(Ip6::new(n.host_local(A), Ipv6Addr::new(0x2001, 0xdb8, 0x13, 0, 0, 0, 0, 7)).udp(5, 20))
    });
    c.add("local-unreachable", |n| {
        n.host(Ip6::new(n.host_local(A), Ipv6Addr::new(0x2001, 0xdb8, 0x11, 0, 0, 0, 0, 7)).udp(5, 20))
    });
    c.add("local-too-big", |n| n.host(Ip6::new(n.host_local(A), n.remote6(2)).udp(5, 1400)));
    c.add("local-icmp-error-through", |n| {
        n.host(Ip6::new(n.host_local(A), n.remote6(B)).icmp(1, 0, 0, &[0x60; 48]))
    });
    c.add("to-local-host-of-a", |n| n.a(Ip6::new(n.remote6(A), n.host_local(A)).udp(5, 20))).silent().wait(4);
    c.add("to-local-host-of-b", |n| n.a(Ip6::new(n.remote6(A), n.host_local(B)).udp(5, 20))).silent().wait(4);
    c.add("local-to-local-host", |n| n.host(Ip6::new(n.host_local(A), n.host_local(C)).udp(5, 20)))
        .silent()
        .wait(4);
    // A link-local address has 54 zeros behind its prefix, but not all have.
    let odd = [("with-bits", "fe80:0:0:7::"), ("with-device", "fe80:1::"), ("beyond-10-bits", "febf::")];
    for (name, prefix) in odd {
        let prefix: Ipv6Addr = prefix.parse().unwrap();
        c.add(format!("from-local-{name}"), move |n| {
            n.host(Ip6::new(n.within(prefix), n.remote6(B)).udp(5, 20))
        })
        .alone();
        c.add(format!("from-local-{name}-echo"), move |n| {
            n.host(Ip6::new(n.within(prefix), router6(A)).echo(20))
        })
        .alone();
        c.add(format!("to-local-{name}"), move |n| {
            n.host(Ip6::new(n.host_local(A), n.within(prefix)).echo(20))
        })
        .alone();
    }
    cases
}
