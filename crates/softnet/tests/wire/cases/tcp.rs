//! TCP to the router, which serves none, and through it.

use crate::case::Cases;
use crate::net::{A, router4, router6};
use crate::packet::{Ip4, Ip6, TCP};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("tcp");
    let c = &mut cases;
    let kinds = [
        ("syn", 2),
        ("syn-ack", 0x12),
        ("ack", 0x10),
        ("fin", 1),
        ("rst", 4),
        ("rst-ack", 0x14),
        ("none", 0),
        ("all", 0xff),
    ];
    for (name, flags) in kinds {
        c.add(format!("v4-{name}"), move |n| n.a(n.to_router().tcp(flags, 80, 0)));
        c.add(format!("v4-{name}-data"), move |n| n.a(n.to_router().tcp(flags, 80, 10)));
        c.add(format!("v4-{name}-bad-checksum"), move |n| {
            n.a(n.to_router().tcp(flags, 80, 0).bad_payload_check())
        });
        c.add(format!("v4-{name}-through"), move |n| n.a(n.through().tcp(flags, 80, 10)));
        c.add(format!("v6-{name}"), move |n| n.a(n.to_router6().tcp(flags, 80, 0)));
        c.add(format!("v6-{name}-data"), move |n| n.a(n.to_router6().tcp(flags, 80, 10)));
        c.add(format!("v6-{name}-bad-checksum"), move |n| {
            n.a(n.to_router6().tcp(flags, 80, 0).bad_payload_check())
        });
        c.add(format!("v6-{name}-through"), move |n| n.a(n.through6().tcp(flags, 80, 10)));
    }
    for len in [0, 4, 8, 19] {
        c.add(format!("v4-cut-{len}"), move |n| {
            n.a(n.to_router().proto(TCP, &n.to_router().tcp(2, 80, 0).payload[..len]))
        });
        c.add(format!("v6-cut-{len}"), move |n| {
            n.a(n.to_router6().proto(TCP, &n.to_router6().tcp(2, 80, 0).payload[..len]))
        });
    }
    for words in [0, 4, 6, 15] {
        c.add(format!("v4-header-length-{words}"), move |n| {
            n.a(n.to_router().tcp(2, 80, 0).patch(12, &[words << 4]).checked())
        });
        c.add(format!("v6-header-length-{words}"), move |n| {
            n.a(n.to_router6().tcp(2, 80, 0).patch(12, &[words << 4]).checked())
        });
    }
    c.add("v4-port-0", |n| n.a(n.to_router().tcp(2, 0, 0)));
    c.add("v6-port-0", |n| n.a(n.to_router6().tcp(2, 0, 0)));
    c.add("v4-from-host", |n| n.host(Ip4::new(n.host4(A), router4(A)).tcp(2, 80, 0)));
    c.add("v6-from-host", |n| n.host(Ip6::new(n.host6(A), router6(A)).tcp(2, 80, 0)));
    cases
}
