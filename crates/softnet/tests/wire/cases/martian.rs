//! Addresses that no packet has on the wire, or none that is to pass (RFC 1812 4.2.2.11, 5.3.7, RFC 3927, RFC 6890).

use std::net::Ipv4Addr;

use crate::case::Cases;
use crate::net::{A, B, group_mac4, router4};
use crate::packet::{Frame, Ip4};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("martian");
    let c = &mut cases;
    let addrs = [
        ("zero", [0, 0, 0, 0]),
        ("this-network", [0, 1, 2, 3]),
        ("loopback", [127, 0, 0, 1]),
        ("loopback-net", [127, 9, 9, 9]),
        ("link-local", [169, 254, 9, 9]),
        ("router", [10, 1, 0, 1]),
        ("router-of-b", [10, 2, 0, 1]),
        ("subnet-broadcast-a", [10, 1, 255, 255]),
        ("subnet-broadcast-b", [10, 2, 255, 255]),
        ("subnet-zero-a", [10, 1, 0, 0]),
        ("subnet-zero-b", [10, 2, 0, 0]),
        ("group-link", [224, 0, 0, 1]),
        ("group-routers", [224, 0, 0, 2]),
        ("group-rip", [224, 0, 0, 9]),
        ("group-global", [224, 1, 2, 3]),
        ("group-admin", [239, 1, 2, 3]),
        ("class-e", [240, 0, 0, 1]),
        ("class-e-last", [255, 255, 255, 254]),
        ("broadcast", [255, 255, 255, 255]),
        ("test-net", [192, 0, 2, 1]),
        ("as112", [192, 175, 48, 1]),
    ]
    .map(|(name, octets)| (name, Ipv4Addr::from(octets)));
    for (name, addr) in addrs {
        c.add(format!("from-{name}"), move |n| n.a(Ip4::new(addr, n.remote4(B)).udp(5, 20))).alone();
        c.add(format!("from-{name}-ttl-1"), move |n| n.a(Ip4::new(addr, n.remote4(B)).ttl(1).udp(5, 20)))
            .alone();
        c.add(format!("from-{name}-echo"), move |n| n.a(Ip4::new(addr, router4(A)).echo(20))).alone();
        c.add(format!("from-{name}-closed-port"), move |n| n.a(Ip4::new(addr, router4(A)).udp(5, 20)))
            .alone();
        c.add(format!("to-{name}-echo"), move |n| n.a(Ip4::new(n.remote4(A), addr).echo(20))).alone();
        c.add(format!("to-{name}-udp"), move |n| n.a(Ip4::new(n.remote4(A), addr).udp(5, 20))).alone();
        c.add(format!("to-{name}-ttl-1"), move |n| n.a(Ip4::new(n.remote4(A), addr).ttl(1).udp(5, 20)))
            .alone();
        if addr.is_multicast() || addr.octets()[3] == 255 {
            let mac = if addr.is_multicast() { group_mac4(addr) } else { [0xff; 6] };
            c.add(format!("to-{name}-echo-frame-for-all"), move |n| {
                Frame::new(A, (n.host_mac(A), mac), &Ip4::new(n.host4(A), addr).echo(20))
            });
            c.add(format!("to-{name}-udp-frame-for-all"), move |n| {
                Frame::new(A, (n.host_mac(A), mac), &Ip4::new(n.host4(A), addr).udp(5, 20))
            });
            c.add(format!("to-{name}-open-port-frame-for-all"), move |n| {
                Frame::new(A, (n.host_mac(A), mac), &Ip4::new(n.host4(A), addr).udp(7, 20))
            });
        }
    }
    cases
}
