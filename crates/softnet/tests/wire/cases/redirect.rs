//! Redirects: a better first hop on the link that a packet came by (RFC 1812 5.2.7.2, RFC 4861 8.2).

use crate::case::Cases;
use crate::net::{A, B, router4, router6};
use crate::packet::{Frame, Ip4, Ip6};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("redirect");
    let c = &mut cases;
    c.add("v4-host-to-gateway", |n| n.host(Ip4::new(n.host4(A), n.remote4(A)).udp(5, 20)));
    c.add("v4-host-to-gateway-echo", |n| n.host(Ip4::new(n.host4(A), n.remote4(A)).echo(20)));
    c.add("v4-host-to-gateway-icmp-error", |n| {
        n.host(Ip4::new(n.host4(A), n.remote4(A)).icmp(3, 1, 0, &[0x45; 28]))
    });
    c.add("v4-host-to-gateway-ttl-1", |n| n.host(Ip4::new(n.host4(A), n.remote4(A)).ttl(1).udp(5, 20)));
    c.add("v4-host-to-gateway-tos", |n| n.host(Ip4::new(n.host4(A), n.remote4(A)).tos(0x10).udp(5, 20)));
    c.add("v4-host-to-gateway-fragment", |n| {
        n.host(Ip4::new(n.host4(A), n.remote4(A)).offset(64).proto(17, &[0x81; 32]))
    });
    c.add("v4-host-to-gateway-nops", |n| {
        n.host(Ip4::new(n.host4(A), n.remote4(A)).options(&[1; 4]).udp(5, 20))
    });
    c.add("v4-host-to-gateway-source-route", |n| {
        n.host(Ip4::new(n.host4(A), n.remote4(A)).options(&[131, 7, 8, 9, 9, 9, 9]).udp(5, 20))
    });
    c.add("v4-host-to-gateway-broadcast-frame", |n| {
        n.host(Ip4::new(n.host4(A), n.remote4(A)).udp(5, 20)).to([0xff; 6])
    });
    c.add("v4-remote-to-gateway", |n| n.a(Ip4::new([198, 18, 0, 9].into(), n.remote4(A)).udp(5, 20)));
    c.add("v4-host-to-host", |n| n.host(Ip4::new(n.host4(A), n.other4(A)).udp(5, 20)));
    c.add("v4-to-router-redirect", |n| {
        n.host(Ip4::new(n.host4(A), router4(A)).icmp(5, 1, 0x0a01_0009, &[0x45; 28]))
    });
    c.add("v6-host-to-gateway", |n| n.host(Ip6::new(n.host6(A), n.remote6(A)).udp(5, 20)));
    c.add("v6-host-to-gateway-long", |n| n.host(Ip6::new(n.host6(A), n.remote6(A)).udp(5, 1400)));
    c.add("v6-host-to-gateway-echo", |n| n.host(Ip6::new(n.host6(A), n.remote6(A)).echo(20)));
    c.add("v6-host-to-gateway-icmp-error", |n| {
        n.host(Ip6::new(n.host6(A), n.remote6(A)).icmp(1, 0, 0, &[0x60; 48]))
    });
    c.add("v6-host-to-gateway-hops-1", |n| n.host(Ip6::new(n.host6(A), n.remote6(A)).hops(1).udp(5, 20)));
    // The target of a redirect to a router is its link-local address (RFC 4861 8.2).
    let local = |name: &str| format!("v6-host-to-local-gateway{name}");
    c.add(local(""), |n| n.host(Ip6::new(n.host6(A), n.beyond6(A)).udp(5, 20)));
    c.add(local("-long"), |n| n.host(Ip6::new(n.host6(A), n.beyond6(A)).udp(5, 1400)));
    c.add(local("-echo"), |n| n.host(Ip6::new(n.host6(A), n.beyond6(A)).echo(20)));
    c.add(local("-icmp-error"), |n| n.host(Ip6::new(n.host6(A), n.beyond6(A)).icmp(1, 0, 0, &[0x60; 48])));
    c.add(local("-fragment"), |n| {
        n.host(Ip6::new(n.host6(A), n.beyond6(A)).fragment(64, false).proto(17, &[0x81; 32]))
    });
    c.add(local("-hops-1"), |n| n.host(Ip6::new(n.host6(A), n.beyond6(A)).hops(1).udp(5, 20)));
    c.add(local("-group-frame"), |n| {
        n.host(Ip6::new(n.host6(A), n.beyond6(A)).udp(5, 20)).to([0x33, 0x33, 0, 0, 0, 1])
    });
    c.add("v6-remote-to-local-gateway", |n| n.a(Ip6::new(n.remote6(A), n.beyond6(A)).udp(5, 20)));
    c.add("v6-through-local-gateway", |n| n.a(Ip6::new(n.remote6(A), n.beyond6(B)).udp(5, 20)));
    c.add("v6-remote-to-gateway", |n| {
        n.a(Ip6::new("2001:db8:1::9".parse().unwrap(), n.remote6(A)).udp(5, 20))
    });
    c.add("v6-host-to-host", |n| n.host(Ip6::new(n.host6(A), n.other6(A)).udp(5, 20)));
    c.add("v6-local-to-gateway", |n| n.host(Ip6::new(n.host_local(A), n.remote6(A)).udp(5, 20)));
    c.add("v6-to-router-redirect", |n| {
        let body = [n.host_local(A).octets(), n.remote6(A).octets()].concat();
        n.host(Ip6::new(n.host_local(A), router6(A)).hops(255).icmp(137, 0, 0, &body))
    });
    c.add("v4-many", |n| {
        (0..4).map(|_| n.host(Ip4::new(n.host4(A), n.remote4(A)).udp(5, 20))).collect::<Vec<Frame>>()
    });
    c.add("v6-many", |n| {
        (0..4).map(|_| n.host(Ip6::new(n.host6(A), n.beyond6(A)).udp(5, 20))).collect::<Vec<Frame>>()
    });
    cases
}
