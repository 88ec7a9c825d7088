//! ARP: which hosts the router answers, and which it believes (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use crate::case::Cases;
use crate::net::{A, B, BROADCAST, Net, gateway4, router_mac, router4};
use crate::packet::{Arp, Frame, Mac};

const ZERO: Mac = [0; 6];

/// A broadcast of the case's host.
fn to_all(net: Net, arp: &Arp) -> Frame {
    Frame::new(A, (net.host_mac(A), BROADCAST), arp)
}

/// The same to the router alone.
fn to_router(net: Net, arp: &Arp) -> Frame {
    Frame::new(A, (net.host_mac(A), router_mac(A)), arp)
}

/// Something for the case's host, from behind link b: it comes out to where the router believes it is.
fn through_to_host(net: Net) -> Frame {
    net.by(B, crate::packet::Ip4::new(net.remote4(B), net.host4(A)).udp(5, 20))
}

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("arp");
    let c = &mut cases;
    c.add("request", |n| to_all(n, &n.who_has(router4(A))));
    c.add("request-unicast", |n| to_router(n, &n.who_has(router4(A))));
    c.add("request-padded", |n| to_all(n, &n.who_has(router4(A))).padded());
    c.add("request-trailer", |n| to_all(n, &n.who_has(router4(A))).trailer(100));
    c.add("request-other-link-address", |n| to_all(n, &n.who_has(router4(B))));
    c.add("request-gateway", |n| to_all(n, &n.who_has(gateway4(A))));
    c.add("request-nobody", |n| to_all(n, &n.who_has(Ipv4Addr::new(10, 1, 0, 99))));
    c.add("request-remote", |n| to_all(n, &n.who_has(n.remote4(B))));
    c.add("request-zero", |n| to_all(n, &n.who_has(Ipv4Addr::UNSPECIFIED)));
    c.add("request-loopback", |n| to_all(n, &n.who_has(Ipv4Addr::LOCALHOST)));
    c.add("request-broadcast-address", |n| to_all(n, &n.who_has(Ipv4Addr::new(10, 1, 255, 255))));
    c.add("request-multicast-address", |n| to_all(n, &n.who_has(Ipv4Addr::new(224, 0, 0, 1))));
    c.add("probe", |n| to_all(n, &Arp::new(1, (n.host_mac(A), Ipv4Addr::UNSPECIFIED), (ZERO, router4(A)))));
    c.add("probe-unicast", |n| {
        to_router(n, &Arp::new(1, (n.host_mac(A), Ipv4Addr::UNSPECIFIED), (ZERO, router4(A))))
    });
    c.add("conflict-announcement", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), router4(A)), (ZERO, router4(A))))
    })
    .told_all();
    c.add("conflict-reply", |n| {
        to_all(n, &Arp::new(2, (n.host_mac(A), router4(A)), (BROADCAST, router4(A))))
    })
    .told_all();
    c.add("sender-off-link", |n| to_all(n, &Arp::new(1, (n.host_mac(A), n.remote4(A)), (ZERO, router4(A)))));
    c.add("sender-of-other-link", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), n.host4(B)), (ZERO, router4(A))))
    });
    c.add("sender-loopback", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), Ipv4Addr::LOCALHOST), (ZERO, router4(A))))
    });
    c.add("sender-multicast", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), Ipv4Addr::new(224, 0, 0, 9)), (ZERO, router4(A))))
    });
    c.add("sender-broadcast", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), Ipv4Addr::BROADCAST), (ZERO, router4(A))))
    });
    c.add("sender-subnet-broadcast", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), Ipv4Addr::new(10, 1, 255, 255)), (ZERO, router4(A))))
    });
    c.add("sender-mac-differs-from-frame", |n| {
        to_all(n, &Arp::new(1, (n.other_mac(A), n.host4(A)), (ZERO, router4(A))))
    });
    c.add("sender-mac-multicast", |n| {
        to_all(n, &Arp::new(1, ([1, 0, 0x5e, 0, 0, 9], n.host4(A)), (ZERO, router4(A))))
    });
    c.add("sender-mac-zero", |n| to_all(n, &Arp::new(1, (ZERO, n.host4(A)), (ZERO, router4(A)))));
    c.add("target-mac-filled", |n| {
        to_all(n, &Arp::new(1, (n.host_mac(A), n.host4(A)), ([9; 6], router4(A))))
    });
    for (name, format) in [
        ("hardware-ieee802", [0, 6, 8, 0, 6, 4]),
        ("hardware-unknown", [0, 99, 8, 0, 6, 4]),
        ("protocol-ipv6", [0, 1, 0x86, 0xdd, 6, 4]),
        ("hardware-length-8", [0, 1, 8, 0, 8, 4]),
        ("protocol-length-16", [0, 1, 8, 0, 6, 16]),
        ("lengths-zero", [0, 1, 8, 0, 0, 0]),
    ] {
        c.add(name, move |n| to_all(n, &n.who_has(router4(A)).format(format)));
    }
    for operation in [0, 2, 3, 8, 9, 255] {
        c.add(format!("operation-{operation}"), move |n| {
            to_all(n, &Arp::new(operation, (n.host_mac(A), n.host4(A)), (ZERO, router4(A))))
        });
    }
    for len in [0, 8, 24, 27] {
        c.add(format!("cut-{len}"), move |n| to_all(n, &n.who_has(router4(A))).cut(len));
    }
    c.add("request-to-another-mac", |n| to_all(n, &n.who_has(router4(A))).to([2, 9, 9, 9, 9, 9]));
    c.add("request-to-multicast-mac", |n| to_all(n, &n.who_has(router4(A))).to([1, 0, 0x5e, 0, 0, 1]));

    // What is believed: a packet for the host shows where the router sends it.
    c.add("resolve", |n| vec![vec![through_to_host(n)]]);
    c.add("resolve-five", |n| vec![(0..5).map(|_| through_to_host(n)).collect::<Vec<_>>()]);
    c.add("resolve-silent", |n| vec![vec![through_to_host(n)]]).silent().wait(4);
    c.add("learn-from-request", |n| vec![vec![to_all(n, &n.who_has(router4(A)))], vec![through_to_host(n)]])
        .silent();
    c.add("learn-from-request-for-other", |n| {
        vec![vec![to_all(n, &n.who_has(gateway4(A)))], vec![through_to_host(n)]]
    })
    .silent();
    c.add("learn-from-probe", |n| {
        let probe = Arp::new(1, (n.host_mac(A), Ipv4Addr::UNSPECIFIED), (ZERO, router4(A)));
        vec![vec![to_all(n, &probe)], vec![through_to_host(n)]]
    })
    .silent();
    c.add("learn-from-unasked-reply", |n| {
        let reply = Arp::new(2, (n.host_mac(A), n.host4(A)), (router_mac(A), router4(A)));
        vec![vec![to_router(n, &reply)], vec![through_to_host(n)]]
    })
    .silent();
    c.add("learn-from-announcement", |n| {
        let announcement = Arp::new(1, (n.host_mac(A), n.host4(A)), (ZERO, n.host4(A)));
        vec![vec![to_all(n, &announcement)], vec![through_to_host(n)]]
    })
    .silent();
    for (name, operation) in [("request", 1), ("reply", 2)] {
        // A neighbour that is known, and moves.
        c.add(format!("move-announced-by-{name}"), move |n| {
            let moved = Arp::new(operation, (n.other_mac(A), n.host4(A)), (BROADCAST, n.host4(A)));
            vec![
                vec![through_to_host(n)],
                vec![Frame::new(A, (n.other_mac(A), BROADCAST), &moved)],
                vec![through_to_host(n)],
            ]
        });
        c.add(format!("move-told-by-{name}"), move |n| {
            let moved = Arp::new(operation, (n.other_mac(A), n.host4(A)), (router_mac(A), router4(A)));
            vec![
                vec![through_to_host(n)],
                vec![Frame::new(A, (n.other_mac(A), router_mac(A)), &moved)],
                vec![through_to_host(n)],
            ]
        });
    }
    c.add("move-announced-by-reply-in-full", |n| {
        let moved = Arp::new(2, (n.other_mac(A), n.host4(A)), (n.other_mac(A), n.host4(A)));
        vec![
            vec![through_to_host(n)],
            vec![Frame::new(A, (n.other_mac(A), BROADCAST), &moved)],
            vec![through_to_host(n)],
        ]
    });
    c.add("move-on-another-link", |n| {
        let moved = Arp::new(1, (n.other_mac(B), n.host4(A)), (ZERO, n.host4(A)));
        vec![
            vec![through_to_host(n)],
            vec![Frame::new(B, (n.other_mac(B), BROADCAST), &moved)],
            vec![through_to_host(n)],
        ]
    });
    cases
}
