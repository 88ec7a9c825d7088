//! The IPv4 header: what is dropped in silence, and what passes (RFC 791, RFC 1812 section 5.2.2).

use crate::case::Cases;

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("ipv4");
    let c = &mut cases;
    c.add("forward", |n| n.a(n.through().udp(5, 20)));
    for ttl in [0, 1, 2, 3, 64, 128, 255] {
        c.add(format!("ttl-{ttl}"), move |n| n.a(n.through().ttl(ttl).udp(5, 20)));
    }
    cases
}
