//! Echo requests to the router, of both families (RFC 792, RFC 4443 section 4).

use crate::case::Cases;
use crate::net::{A, B, C, router4, router6};
use crate::packet::{Ip4, Ip6};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("echo");
    let c = &mut cases;
    for len in [0, 1, 2, 3, 17, 18, 19, 56, 500, 1471, 1472] {
        c.add(format!("v4-{len}"), move |n| n.a(n.to_router().echo(len)));
        c.add(format!("v4-host-{len}"), move |n| n.host(Ip4::new(n.host4(A), router4(A)).echo(len)));
    }
    for len in [0, 1, 2, 3, 17, 56, 500, 1451, 1452] {
        c.add(format!("v6-{len}"), move |n| n.a(n.to_router6().echo(len)));
        c.add(format!("v6-host-{len}"), move |n| n.host(Ip6::new(n.host6(A), router6(A)).echo(len)));
    }
    for link in [B, C] {
        c.add(format!("v4-address-of-link-{link}"), move |n| {
            n.a(Ip4::new(n.remote4(A), router4(link)).echo(8))
        });
        c.add(format!("v6-address-of-link-{link}"), move |n| {
            n.a(Ip6::new(n.remote6(A), router6(link)).echo(8))
        });
    }
    for ttl in [0, 1, 2, 255] {
        c.add(format!("v4-ttl-{ttl}"), move |n| n.a(n.to_router().ttl(ttl).echo(8)));
        c.add(format!("v6-hops-{ttl}"), move |n| n.a(n.to_router6().hops(ttl).echo(8)));
    }
    for tos in [1, 2, 3, 0x10, 0xb8, 0xff] {
        c.add(format!("v4-tos-{tos:02x}"), move |n| n.a(n.to_router().tos(tos).echo(8)));
        c.add(format!("v6-class-{tos:02x}"), move |n| n.a(n.to_router6().class(tos).echo(8)));
    }
    c.add("v4-df", |n| n.a(n.to_router().df().echo(8)));
    c.add("v4-reserved-flag", |n| n.a(n.to_router().reserved_flag().echo(8)));
    c.add("v4-reserved-flag-df", |n| n.a(n.to_router().reserved_flag().df().echo(8)));
    c.add("v6-flow", |n| n.a(n.to_router6().flow(0x12345).echo(8)));
    for code in [1, 255] {
        c.add(format!("v4-code-{code}"), move |n| n.a(n.to_router().icmp(8, code, 7, &[1, 2, 3])));
        c.add(format!("v6-code-{code}"), move |n| n.a(n.to_router6().icmp(128, code, 7, &[1, 2, 3])));
    }
    c.add("v4-all-zero", |n| n.a(n.to_router().icmp(8, 0, 0, &[0; 20])));
    c.add("v4-all-ones-checksum", |n| n.a(n.to_router().icmp(8, 0, 0, &[0xf7, 0xff])));
    c.add("v4-bad-checksum", |n| n.a(n.to_router().echo(8).bad_payload_check()));
    c.add("v4-zero-checksum", |n| n.a(n.to_router().echo(8).patch(2, &[0, 0])));
    c.add("v6-bad-checksum", |n| n.a(n.to_router6().echo(8).bad_payload_check()));
    c.add("v6-zero-checksum", |n| n.a(n.to_router6().echo(8).patch(2, &[0, 0])));
    for len in [0, 1, 4, 7] {
        c.add(format!("v4-short-{len}"), move |n| {
            let mut message = vec![8, 0, 0, 0, 1, 2, 3];
            message.truncate(len);
            let packet = n.to_router().proto(1, &message);
            n.a(if len < 4 { packet } else { packet.checked() })
        });
        c.add(format!("v6-short-{len}"), move |n| {
            let mut message = vec![128, 0, 0, 0, 1, 2, 3];
            message.truncate(len);
            let packet = n.to_router6().proto(58, &message);
            n.a(if len < 4 { packet } else { packet.checked() })
        });
    }
    c.add("v4-reply-unasked", |n| n.a(n.to_router().icmp(0, 0, 0x4321_0001, &[1, 2])));
    c.add("v6-reply-unasked", |n| n.a(n.to_router6().icmp(129, 0, 0x4321_0001, &[1, 2])));
    for kind in [4, 6, 10, 13, 15, 17, 37, 42, 200] {
        c.add(format!("v4-type-{kind}"), move |n| n.a(n.to_router().icmp(kind, 0, 0x4321_0001, &[0; 12])));
    }
    for kind in [0, 5, 99, 100, 127, 130, 139, 141, 144, 160, 200, 255] {
        c.add(format!("v6-type-{kind}"), move |n| n.a(n.to_router6().icmp(kind, 0, 0x4321_0001, &[0; 16])));
    }
    c.add("v4-padded-frame", |n| n.a(n.to_router().echo(4)).padded());
    c.add("v6-trailer", |n| n.a(n.to_router6().echo(4)).trailer(20));
    cases
}
