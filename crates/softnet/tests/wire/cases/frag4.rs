//! Fragments of IPv4, to the router and through it (RFC 791, RFC 1858, RFC 3128).

use crate::case::Cases;
use crate::net::{A, Net};
use crate::packet::{Frame, ICMP, Ip4, UDP, data};

/// The parts of an echo request of 3008 bytes to the router.
fn parts(n: Net, parts: &[(usize, usize)]) -> Vec<Frame> {
    n.all_a(n.to_router().echo(3000).fragments(parts))
}

/// From where to where a fragment has bytes of the payload.
type Part = (usize, usize);

const X: Part = (0, 1000);
const Y: Part = (1000, 2000);
const Z: Part = (2000, 3008);

const ORDERS: [(&str, &[Part]); 17] = [
    ("in-order", &[X, Y, Z]),
    ("backwards", &[Z, Y, X]),
    ("middle-last", &[X, Z, Y]),
    ("first-last", &[Y, Z, X]),
    ("first-twice", &[X, X, Y, Z]),
    ("middle-twice", &[X, Y, Y, Z]),
    ("last-twice", &[Z, Z, Y, X]),
    ("all-twice", &[X, Y, Z, X, Y, Z]),
    ("two", &[(0, 1480), (1480, 2960)]),
    ("overlap-by-8", &[X, (992, 2000), Z]),
    ("overlap-by-8-backwards", &[Z, (992, 2000), X]),
    ("overlap-within", &[X, Y, (1096, 1200), Z]),
    ("overlap-around", &[X, (1096, 1200), Y, Z]),
    ("overlap-all", &[X, (0, 1480), Y, Z]),
    ("overlap-of-last", &[X, Z, (1992, 2992), Y]),
    ("gap", &[X, Z]),
    ("without-first", &[Y, Z]),
];

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("frag4");
    let c = &mut cases;
    for (name, order) in ORDERS {
        c.add(name, move |n| parts(n, order));
    }
    for size in [8, 16, 24, 64] {
        c.add(format!("tiny-{size}"), move |n| {
            let cuts: Vec<_> =
                (0..264usize.div_ceil(size)).map(|i| (i * size, (i * size + size).min(264))).collect();
            n.all_a(n.to_router().echo(256).fragments(&cuts))
        });
    }
    c.add("first-of-8-bytes-udp", |n| n.all_a(n.to_router().udp(7, 100).fragments(&[(0, 8), (8, 108)])));
    c.add("first-of-8-bytes-tcp", |n| n.all_a(n.to_router().tcp(2, 80, 100).fragments(&[(0, 8), (8, 120)])));
    c.add("first-of-16-bytes-tcp", |n| {
        n.all_a(n.to_router().tcp(2, 80, 100).fragments(&[(0, 16), (16, 120)]))
    });
    c.add("tcp-offset-8-alone", |n| n.a(n.to_router().offset(8).mf().proto(6, &data(24))));
    c.add("tcp-offset-8-through", |n| n.a(n.through().offset(8).mf().proto(6, &data(24))));
    c.add("tcp-first-of-8-through", |n| n.a(n.through().mf().proto(6, &data(8))));
    c.add("closed-port", |n| n.all_a(n.to_router().udp(5, 2000).fragments(&[(0, 1000), (1000, 2008)])));
    c.add("protocol", |n| {
        let packet = n.to_router().proto(99, &data(2000));
        n.all_a(packet.fragments(&[(0, 1000), (1000, 2000)]))
    });
    c.add("bad-icmp-checksum", |n| {
        n.all_a(n.to_router().echo(2000).bad_payload_check().fragments(&[(0, 1000), (1000, 2008)]))
    });
    c.add("bad-udp-checksum", |n| {
        n.all_a(n.to_router().udp(7, 2000).bad_payload_check().fragments(&[(0, 1000), (1000, 2008)]))
    });
    for len in [9, 1001, 1004, 1007] {
        // All but the last are multiples of eight.
        c.add(format!("length-{len}-of-first"), move |n| {
            let mut frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
            frames[0].payload.resize(len, 0x99);
            n.all_a(frames)
        });
        c.add(format!("length-{len}-of-first-through"), move |n| {
            n.a(n.through().mf().proto(UDP, &data(len)))
        });
    }
    c.add("empty-first", |n| n.a(n.to_router().mf().proto(ICMP, &[])));
    c.add("empty-middle", |n| n.a(n.to_router().mf().offset(64).proto(ICMP, &[])));
    c.add("empty-last", |n| n.a(n.to_router().offset(64).proto(ICMP, &[])));
    c.add("empty-last-completes", |n| {
        let packet = n.to_router().echo(1000);
        let mut frames = packet.fragments(&[(0, 1008)]);
        frames[0] = frames[0].clone().mf();
        frames.push(n.to_router().offset(1008).proto(ICMP, &[]));
        n.all_a(frames)
    });
    c.add("empty-through", |n| n.a(n.through().offset(64).proto(ICMP, &[])));
    for (name, offset, len) in [("to-65535", 65512, 3), ("to-65536", 65512, 24), ("past-64k", 65528, 800)] {
        c.add(format!("end-{name}"), move |n| n.a(n.to_router().offset(offset).proto(ICMP, &data(len))));
        c.add(format!("end-{name}-through"), move |n| {
            n.a(n.through().offset(offset).proto(ICMP, &data(len)))
        });
    }
    c.add("last-of-different-lengths", |n| {
        let mut frames = n.to_router().echo(3000).fragments(&[X, Z]);
        frames.extend(n.to_router().echo(2000).fragments(&[(1000, 2008)]));
        n.all_a(frames)
    });
    c.add("data-beyond-last", |n| {
        let mut frames = n.to_router().echo(2000).fragments(&[(0, 1000), (1000, 2008)]);
        frames.insert(0, n.to_router().offset(4000).mf().proto(ICMP, &data(800)));
        n.all_a(frames)
    });
    c.add("df", |n| {
        let frames = n.to_router().df().echo(3000).fragments(&[X, Y, Z]);
        n.all_a(frames)
    });
    c.add("reserved-flag", |n| n.all_a(n.to_router().reserved_flag().echo(3000).fragments(&[X, Y, Z])));
    c.add("another-id", |n| {
        let mut frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
        frames[1] = frames[1].clone().id(77);
        n.all_a(frames)
    });
    c.add("another-protocol", |n| {
        let mut frames = n.to_router().echo(3000).fragments(&[X, Y]);
        frames.push(n.to_router().offset(2000).proto(UDP, &data(1008)));
        n.all_a(frames)
    });
    c.add("another-tos", |n| {
        let mut frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
        frames[1] = frames[1].clone().tos(0xb8);
        n.all_a(frames)
    });
    for (name, marks) in [
        ("ce-of-ect", [2, 3, 2]),
        ("ce-of-not-ect", [0, 3, 0]),
        ("ect-0-and-1", [1, 2, 1]),
        ("ect-and-not", [2, 0, 2]),
    ] {
        c.add(format!("ecn-{name}"), move |n| {
            let frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
            n.all_a(frames.into_iter().zip(marks).map(|(packet, tos)| packet.tos(tos)).collect())
        });
    }
    c.add("other-ttl", |n| {
        let frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
        n.all_a(frames.into_iter().zip([1, 64, 255]).map(|(packet, ttl)| packet.ttl(ttl)).collect())
    });
    c.add("options-in-first", |n| {
        let mut frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
        frames[0] = frames[0].clone().options(&[1; 4]);
        n.all_a(frames)
    });
    c.add("options-in-second", |n| {
        let mut frames = n.to_router().echo(3000).fragments(&[X, Y, Z]);
        frames[1] = frames[1].clone().options(&[1; 4]);
        n.all_a(frames)
    });
    c.add("trailer", |n| parts(n, &[X, Y, Z]).into_iter().map(|frame| frame.trailer(20)).collect::<Vec<_>>());
    c.add("from-two-links", |n| {
        let mut frames = parts(n, &[X, Z]);
        frames.extend(n.to_router().echo(3000).fragments(&[Y]).into_iter().map(|packet| n.by(1, packet)));
        frames
    });
    c.add("through", |n| n.all_a(n.through().udp(5, 3000).fragments(&[X, Y, Z])));
    c.add("through-backwards", |n| n.all_a(n.through().udp(5, 3000).fragments(&[Z, Y, X])));
    c.add("through-overlap", |n| n.all_a(n.through().udp(5, 3000).fragments(&[X, (992, 2000), Z])));
    c.add("through-df", |n| n.all_a(n.through().df().udp(5, 3000).fragments(&[X, Y, Z])));
    c.add("through-tiny", |n| n.all_a(n.through().udp(5, 56).fragments(&[(0, 8), (8, 16), (16, 64)])));
    c.add("through-ttl-1", |n| n.all_a(n.through().ttl(1).udp(5, 3000).fragments(&[X, Y, Z])));
    c.add("through-ttl-1-later-first", |n| n.all_a(n.through().ttl(1).udp(5, 3000).fragments(&[Y, X])));
    c.add("no-route", |n| {
        let packet = Ip4::new(n.remote4(A), crate::net::NO_ROUTE4).udp(5, 3000);
        n.all_a(packet.fragments(&[X, Y, Z]))
    });
    c.add("through-cut-again", |n| n.all_a(n.to_small().udp(5, 2900).fragments(&[(0, 1480), (1480, 2908)])));
    c.add("from-host", |n| {
        let frames = Ip4::new(n.host4(A), crate::net::router4(A)).echo(3000).fragments(&[X, Y, Z]);
        frames.into_iter().map(|packet| n.host(packet)).collect::<Vec<_>>()
    });
    c.add("large-60000", |n| {
        let cuts: Vec<_> = (0..41).map(|i| (i * 1480, (i * 1480 + 1480).min(60_008))).collect();
        n.all_a(n.to_router().echo(60_000).fragments(&cuts))
    });
    c.add("largest", |n| {
        let cuts: Vec<_> = (0..45).map(|i| (i * 1480, (i * 1480 + 1480).min(65_515))).collect();
        n.all_a(n.to_router().echo(65_507).fragments(&cuts))
    });
    cases
}
