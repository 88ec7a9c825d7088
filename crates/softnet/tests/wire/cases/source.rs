//! Which of its addresses the router answers from (RFC 1812 4.3.2.4, RFC 4443 2.2, RFC 6724).

use crate::case::Cases;
use crate::net::{A, B, C, LINKS, NO_ROUTE4, NO_ROUTE6, router4, router6};
use crate::packet::{Ip4, Ip6};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("source");
    let c = &mut cases;
    let letter = |link: usize| ['a', 'b', 'c'][link];
    for by in LINKS {
        for from in LINKS {
            let name = format!("by-{}-from-{}", letter(by), letter(from));
            // An error leaves by where the sender is, whichever link the packet came by.
            let to = [B, C, A][from];
            c.add(format!("v4-ttl-1-{name}"), move |n| {
                n.by(by, Ip4::new(n.remote4(from), n.remote4(to)).ttl(1).udp(5, 20))
            });
            c.add(format!("v6-hops-1-{name}"), move |n| {
                n.by(by, Ip6::new(n.remote6(from), n.remote6(to)).hops(1).udp(5, 20))
            });
            c.add(format!("v4-no-route-{name}"), move |n| {
                n.by(by, Ip4::new(n.remote4(from), NO_ROUTE4).udp(5, 20))
            });
            c.add(format!("v6-no-route-{name}"), move |n| {
                n.by(by, Ip6::new(n.remote6(from), NO_ROUTE6).udp(5, 20))
            });
            for own in LINKS {
                c.add(format!("v4-closed-port-{name}-to-{}", letter(own)), move |n| {
                    n.by(by, Ip4::new(n.remote4(from), router4(own)).udp(5, 20))
                });
                c.add(format!("v6-closed-port-{name}-to-{}", letter(own)), move |n| {
                    n.by(by, Ip6::new(n.remote6(from), router6(own)).udp(5, 20))
                });
                c.add(format!("v4-echo-{name}-to-{}", letter(own)), move |n| {
                    n.by(by, Ip4::new(n.remote4(from), router4(own)).echo(20))
                });
            }
        }
    }
    c.add("v4-too-big-by-b-from-a", |n| n.by(B, Ip4::new(n.remote4(A), n.remote4(C)).df().udp(5, 1400)));
    c.add("v6-too-big-by-b-from-a", |n| n.by(B, Ip6::new(n.remote6(A), n.remote6(C)).udp(5, 1400)));
    c.add("v4-host-of-b-by-a", |n| n.a(Ip4::new(n.host4(B), n.remote4(C)).ttl(1).udp(5, 20)));
    c.add("v6-host-of-b-by-a", |n| n.a(Ip6::new(n.host6(B), n.remote6(C)).hops(1).udp(5, 20)));
    c.add("v4-protocol-to-b", |n| n.a(Ip4::new(n.remote4(A), router4(B)).proto(99, &[0x81; 20])));
    c.add("v6-protocol-to-b", |n| n.a(Ip6::new(n.remote6(A), router6(B)).proto(99, &[0x81; 20])));
    c.add("v6-option-to-b", |n| n.a(Ip6::new(n.remote6(A), router6(B)).opts(60, &[0x85, 2, 1, 2]).echo(8)));
    c.add("v6-option-through-by-b-from-a", |n| {
        n.by(B, Ip6::new(n.remote6(A), n.remote6(C)).opts(0, &[0x85, 2, 1, 2]).echo(8))
    });
    // A source that no answer can go to.
    c.add("v4-unroutable-ttl-1", |n| n.a(Ip4::new(NO_ROUTE4, n.remote4(B)).ttl(1).udp(5, 20))).alone();
    c.add("v4-unroutable-echo", |n| n.a(Ip4::new(NO_ROUTE4, router4(A)).echo(20))).alone();
    c.add("v6-unroutable-hops-1", |n| n.a(Ip6::new(NO_ROUTE6, n.remote6(B)).hops(1).udp(5, 20))).alone();
    c.add("v6-unroutable-echo", |n| n.a(Ip6::new(NO_ROUTE6, router6(A)).echo(20))).alone();
    cases
}
