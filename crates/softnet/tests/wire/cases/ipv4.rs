//! The IPv4 header: what is dropped in silence, what is answered, and what passes (RFC 791, RFC 1812 5.2.2).

use crate::case::Cases;
use crate::net::{A, router4};
use crate::packet::{Ip4, UDP, data};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("ipv4");
    let c = &mut cases;
    for ttl in [0, 1, 2, 3, 64, 128, 255] {
        c.add(format!("ttl-{ttl}-udp"), move |n| n.a(n.through().ttl(ttl).udp(5, 20)));
        c.add(format!("ttl-{ttl}-echo"), move |n| n.a(n.through().ttl(ttl).echo(20)));
        c.add(format!("ttl-{ttl}-tcp"), move |n| n.a(n.through().ttl(ttl).tcp(2, 80, 0)));
        c.add(format!("ttl-{ttl}-to-router"), move |n| n.a(n.to_router().ttl(ttl).udp(7, 20)));
    }
    for version in [0, 1, 3, 5, 6, 15] {
        c.add(format!("version-{version}"), move |n| {
            n.a(n.through().first_byte(version << 4 | 5).udp(5, 20))
        });
        c.add(format!("version-{version}-to-router"), move |n| {
            n.a(n.to_router().first_byte(version << 4 | 5).echo(20))
        });
    }
    for words in [0, 1, 4, 6, 7, 15] {
        // Longer than what the packet has of options: payload is read as such.
        c.add(format!("header-length-{words}"), move |n| {
            n.a(n.through().first_byte(0x40 | words).udp(5, 60))
        });
        c.add(format!("header-length-{words}-short"), move |n| {
            n.a(n.through().first_byte(0x40 | words).udp(5, 0))
        });
        c.add(format!("header-length-{words}-to-router"), move |n| {
            n.a(n.to_router().first_byte(0x40 | words).echo(60))
        });
    }
    for total in [0, 19, 20, 21, 27, 28, 47] {
        c.add(format!("total-{total}-of-48"), move |n| n.a(n.through().total(total).udp(5, 20)));
        c.add(format!("total-{total}-of-48-to-router"), move |n| n.a(n.to_router().total(total).udp(7, 20)));
    }
    for more in [1, 2, 100, 1000] {
        c.add(format!("total-{more}-beyond"), move |n| n.a(n.through().total(48 + more).udp(5, 20)));
        c.add(format!("total-{more}-beyond-to-router"), move |n| {
            n.a(n.to_router().total(48 + more).udp(7, 20))
        });
    }
    c.add("total-65535", |n| n.a(n.through().total(65535).udp(5, 20)));
    for len in [0, 1, 10, 19] {
        c.add(format!("frame-cut-{len}"), move |n| n.a(n.through().udp(5, 20)).cut(len));
    }
    c.add("no-payload", |n| n.a(n.through().proto(UDP, &[])));
    c.add("no-payload-to-router", |n| n.a(n.to_router().proto(UDP, &[])));
    c.add("bad-checksum", |n| n.a(n.through().bad_check().udp(5, 20)));
    c.add("bad-checksum-to-router", |n| n.a(n.to_router().bad_check().echo(20)));
    c.add("bad-checksum-ttl-1", |n| n.a(n.through().ttl(1).bad_check().udp(5, 20)));
    c.add("reserved-flag", |n| n.a(n.through().reserved_flag().udp(5, 20)));
    c.add("reserved-flag-df", |n| n.a(n.through().reserved_flag().df().udp(5, 20)));
    c.add("id-zero", |n| n.a(n.through().id(0).df().udp(5, 20)));
    c.add("same-source-and-destination", |n| n.a(Ip4::new(n.remote4(A), n.remote4(A)).udp(5, 20)));
    c.add("land", |n| n.a(Ip4::new(router4(A), router4(A)).echo(8)));
    for proto in [0, 2, 4, 41, 46, 47, 50, 51, 89, 94, 103, 108, 112, 132, 136, 253, 255] {
        c.add(format!("protocol-{proto}"), move |n| n.a(n.through().proto(proto, &data(24))));
        c.add(format!("protocol-{proto}-to-router"), move |n| n.a(n.to_router().proto(proto, &data(24))));
    }
    cases
}
