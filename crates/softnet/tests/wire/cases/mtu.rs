//! What is too long for the next link: cut, or told (RFC 791, RFC 1191, RFC 8201).

use crate::case::Cases;
use crate::net::{A, B, C};
use crate::packet::{Frame, Ip4, Ip6, data};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("mtu");
    let c = &mut cases;
    // Payload of UDP; 1372 fills a packet of 1400 bytes.
    for len in [1371, 1372, 1373, 1379, 1380, 1381, 1400, 1471, 1472] {
        c.add(format!("v4-{len}"), move |n| n.a(n.to_small().udp(5, len)));
        c.add(format!("v4-df-{len}"), move |n| n.a(n.to_small().df().udp(5, len)));
        c.add(format!("v4-echo-df-{len}"), move |n| n.a(n.to_small().df().echo(len)));
        c.add(format!("v4-ttl-1-{len}"), move |n| n.a(n.to_small().df().ttl(1).udp(5, len)));
        c.add(format!("v4-ttl-2-{len}"), move |n| n.a(n.to_small().ttl(2).tos(0xb8).udp(5, len)));
    }
    for len in [1351, 1352, 1353, 1400, 1451, 1452] {
        c.add(format!("v6-{len}"), move |n| n.a(n.to_small6().udp(5, len)));
        c.add(format!("v6-echo-{len}"), move |n| n.a(n.to_small6().echo(len)));
        c.add(format!("v6-hops-1-{len}"), move |n| n.a(n.to_small6().hops(1).udp(5, len)));
    }
    c.add("v4-reserved-flag", |n| n.a(n.to_small().reserved_flag().udp(5, 1400)));
    c.add("v4-bad-payload-checksum", |n| n.a(n.to_small().udp(5, 1400).bad_payload_check()));
    c.add("v4-id-zero", |n| n.a(n.to_small().id(0).udp(5, 1400)));
    for (name, packet) in [("first", 0), ("middle", 1480)] {
        c.add(format!("v4-{name}-fragment"), move |n| {
            n.a(n.to_small().mf().offset(packet).proto(17, &data(1480)))
        });
        c.add(format!("v4-{name}-fragment-df"), move |n| {
            n.a(n.to_small().df().mf().offset(packet).proto(17, &data(1480)))
        });
    }
    c.add("v4-last-fragment", |n| n.a(n.to_small().offset(2960).proto(17, &data(1479))));
    c.add("v4-nops", |n| n.a(n.to_small().options(&[1; 40]).udp(5, 1400)));
    c.add("v4-nops-df", |n| n.a(n.to_small().df().options(&[1; 40]).udp(5, 1400)));
    c.add("v4-unknown-options", |n| n.a(n.to_small().options(&[158, 4, 1, 2, 30, 4, 3, 4]).udp(5, 1400)));
    c.add("v6-first-fragment", |n| n.a(n.to_small6().fragment(0, true).proto(17, &data(1448))));
    c.add("v6-later-fragment", |n| n.a(n.to_small6().fragment(1448, false).proto(17, &data(1448))));
    c.add("v6-destination-options", |n| n.a(n.to_small6().opts(60, &[]).udp(5, 1400)));
    c.add("v6-hop-by-hop-options", |n| n.a(n.to_small6().opts(0, &[]).udp(5, 1400)));
    c.add("v4-df-to-host", |n| n.a(Ip4::new(n.remote4(A), n.host4(C)).df().udp(5, 1400)));
    c.add("v4-to-host", |n| n.a(Ip4::new(n.remote4(A), n.host4(C)).udp(5, 1400)));
    c.add("v6-to-host", |n| n.a(Ip6::new(n.remote6(A), n.host6(C)).udp(5, 1400)));
    c.add("v4-df-from-host", |n| n.host(Ip4::new(n.host4(A), n.remote4(C)).df().udp(5, 1400)));
    c.add("v6-from-host", |n| n.host(Ip6::new(n.host6(A), n.remote6(C)).udp(5, 1400)));
    c.add("v4-df-from-b", |n| n.by(B, Ip4::new(n.remote4(B), n.remote4(C)).df().udp(5, 1400)));
    c.add("v6-from-b", |n| n.by(B, Ip6::new(n.remote6(B), n.remote6(C)).udp(5, 1400)));
    c.add("v4-df-icmp-error", |n| n.a(n.to_small().df().icmp(3, 1, 0, &data(1400))));
    c.add("v6-icmp-error", |n| n.a(n.to_small6().icmp(1, 0, 0, &data(1400))));
    c.add("v6-packet-too-big", |n| n.a(n.to_small6().icmp(2, 0, 1300, &data(1400))));
    c.add("v6-to-group-source", |n| {
        let mut packet = n.to_small6();
        packet.src = "ff02::9".parse().unwrap();
        n.a(packet.udp(5, 1400))
    });
    c.add("v4-df-three", |n| (0..3).map(|_| n.a(n.to_small().df().udp(5, 1400))).collect::<Vec<Frame>>());
    // Replies of the router by the small link.
    for len in [1372, 1373, 1400] {
        c.add(format!("v4-reply-{len}"), move |n| {
            let parts = Ip4::new(n.remote4(C), crate::net::router4(C)).echo(len);
            let frames = parts.fragments(&[(0, 1000), (1000, len + 8)]);
            frames.into_iter().map(|packet| n.by(C, packet)).collect::<Vec<Frame>>()
        });
        c.add(format!("v6-reply-{len}"), move |n| {
            let parts = Ip6::new(n.remote6(C), crate::net::router6(C)).echo(len);
            let frames = parts.fragments(&[(0, 1000), (1000, len + 8)]);
            frames.into_iter().map(|packet| n.by(C, packet)).collect::<Vec<Frame>>()
        });
    }
    cases
}
