//! UDP to the router: ports that are served, and ports that are not (RFC 768, RFC 8200 8.1).

use crate::case::Cases;
use crate::net::{A, B, C, router4, router6};
use crate::packet::{Frame, Ip4, Ip6, UDP};

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("udp");
    let c = &mut cases;
    // 7 sends back, 9 discards, 5 is not served.
    for port in [7, 9, 5] {
        for len in [0, 1, 2, 17, 18, 100, 1471, 1472] {
            c.add(format!("v4-port-{port}-{len}"), move |n| n.a(n.to_router().udp(port, len)));
        }
        for len in [0, 1, 2, 100, 1451, 1452] {
            c.add(format!("v6-port-{port}-{len}"), move |n| n.a(n.to_router6().udp(port, len)));
        }
        c.add(format!("v4-port-{port}-from-host"), move |n| {
            n.host(Ip4::new(n.host4(A), router4(A)).udp(port, 20))
        });
        c.add(format!("v6-port-{port}-from-host"), move |n| {
            n.host(Ip6::new(n.host6(A), router6(A)).udp(port, 20))
        });
        for link in [B, C] {
            c.add(format!("v4-port-{port}-address-of-link-{link}"), move |n| {
                n.a(Ip4::new(n.remote4(A), router4(link)).udp(port, 20))
            });
            c.add(format!("v6-port-{port}-address-of-link-{link}"), move |n| {
                n.a(Ip6::new(n.remote6(A), router6(link)).udp(port, 20))
            });
        }
        c.add(format!("v4-port-{port}-bad-checksum"), move |n| {
            n.a(n.to_router().udp(port, 20).bad_payload_check())
        });
        c.add(format!("v6-port-{port}-bad-checksum"), move |n| {
            n.a(n.to_router6().udp(port, 20).bad_payload_check())
        });
        c.add(format!("v4-port-{port}-no-checksum"), move |n| {
            n.a(n.to_router().udp(port, 20).patch(6, &[0, 0]))
        });
        c.add(format!("v6-port-{port}-no-checksum"), move |n| {
            n.a(n.to_router6().udp(port, 20).patch(6, &[0, 0]))
        });
        for said in [0u16, 1, 7, 8, 20, 27, 29, 1000] {
            // The length of UDP, with a checksum that is right for all that there is, or for what it says.
            c.add(format!("v4-port-{port}-length-{said}-of-28"), move |n| {
                n.a(n.to_router().udp(port, 20).patch(4, &said.to_be_bytes()).patch(6, &[0, 0]))
            });
            c.add(format!("v6-port-{port}-length-{said}-of-28"), move |n| {
                n.a(n.to_router6().udp(port, 20).patch(4, &said.to_be_bytes()).checked())
            });
        }
        for short in [1, 4, 7] {
            c.add(format!("v4-port-{port}-cut-{short}"), move |n| {
                let datagram = n.to_router().udp(port, 0).payload;
                n.a(n.to_router().proto(UDP, &datagram[..short]))
            });
            c.add(format!("v6-port-{port}-cut-{short}"), move |n| {
                let datagram = n.to_router6().udp(port, 0).payload;
                n.a(n.to_router6().proto(UDP, &datagram[..short]))
            });
        }
        c.add(format!("v4-port-{port}-source-port-0"), move |n| {
            n.a(n.to_router().udp(port, 20).patch(0, &[0, 0]).checked())
        });
        c.add(format!("v6-port-{port}-source-port-0"), move |n| {
            n.a(n.to_router6().udp(port, 20).patch(0, &[0, 0]).checked())
        });
        c.add(format!("v4-port-{port}-df"), move |n| n.a(n.to_router().df().udp(port, 20)));
        c.add(format!("v4-port-{port}-tos"), move |n| n.a(n.to_router().tos(0xb8).udp(port, 20)));
        c.add(format!("v6-port-{port}-class"), move |n| n.a(n.to_router6().class(0xb8).udp(port, 20)));
        c.add(format!("v4-port-{port}-in-fragments"), move |n| {
            n.all_a(n.to_router().udp(port, 3000).fragments(&[(0, 1480), (1480, 2960), (2960, 3008)]))
        });
        c.add(format!("v6-port-{port}-in-fragments"), move |n| {
            n.all_a(n.to_router6().udp(port, 3000).fragments(&[(0, 1448), (1448, 2896), (2896, 3008)]))
        });
        c.add(format!("v4-port-{port}-broadcast"), move |n| {
            let packet = Ip4::new(n.host4(A), [10, 1, 255, 255].into()).udp(port, 20);
            Frame::new(A, (n.host_mac(A), [0xff; 6]), &packet)
        });
    }
    c.add("v4-port-0", |n| n.a(n.to_router().udp(0, 20)));
    c.add("v6-port-0", |n| n.a(n.to_router6().udp(0, 20)));
    c.add("v4-all-ones-checksum", |n| {
        let mut packet = n.to_router().udp(7, 2).patch(8, &[0, 0]).checked();
        let check = u16::from_be_bytes([packet.payload[6], packet.payload[7]]);
        packet = packet.patch(8, &check.to_be_bytes());
        n.a(packet.patch(6, &[0xff, 0xff]))
    });
    c.add("v4-five-closed", |n| {
        (0..5).map(|port| n.a(n.to_router().udp(2000 + port, 20))).collect::<Vec<Frame>>()
    });
    cases
}
