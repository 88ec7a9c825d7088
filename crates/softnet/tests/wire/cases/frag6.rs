//! Fragments of IPv6, to the router and through it (RFC 8200 4.5, RFC 5722, RFC 6946, RFC 7112).

use crate::case::Cases;
use crate::net::{A, Net};
use crate::packet::{DESTINATION, FRAGMENT, Frame, HOP_BY_HOP, ICMP6, Ip6, UDP, data};

/// The parts of an echo request of 3008 bytes to the router.
fn parts(n: Net, parts: &[(usize, usize)]) -> Vec<Frame> {
    n.all_a(n.to_router6().echo(3000).fragments(parts))
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
    ("two", &[(0, 1448), (1448, 2896)]),
    ("overlap-by-8", &[X, (992, 2000), Z]),
    ("overlap-by-8-backwards", &[Z, (992, 2000), X]),
    ("overlap-within", &[X, Y, (1096, 1200), Z]),
    ("overlap-around", &[X, (1096, 1200), Y, Z]),
    ("overlap-all", &[X, (0, 1440), Y, Z]),
    ("overlap-of-last", &[X, Z, (1992, 2992), Y]),
    ("gap", &[X, Z]),
    ("without-first", &[Y, Z]),
];

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("frag6");
    let c = &mut cases;
    for (name, order) in ORDERS {
        c.add(name, move |n| parts(n, order));
    }
    for size in [8, 16, 24, 64] {
        c.add(format!("tiny-{size}"), move |n| {
            let cuts: Vec<_> =
                (0..264usize.div_ceil(size)).map(|i| (i * size, (i * size + size).min(264))).collect();
            n.all_a(n.to_router6().echo(256).fragments(&cuts))
        });
    }
    c.add("atomic-echo", |n| n.a(n.to_router6().fragment(0, false).echo(20)));
    c.add("atomic-closed-port", |n| n.a(n.to_router6().fragment(0, false).udp(5, 20)));
    c.add("atomic-open-port", |n| n.a(n.to_router6().fragment(0, false).udp(7, 20)));
    c.add("atomic-through", |n| n.a(n.through6().fragment(0, false).udp(5, 20)));
    c.add("atomic-protocol", |n| n.a(n.to_router6().fragment(0, false).proto(99, &data(20))));
    c.add("atomic-twice", |n| {
        [n.a(n.to_router6().fragment(0, false).echo(20)), n.a(n.to_router6().fragment(0, false).echo(20))]
    });
    c.add("atomic-while-others-wait", |n| {
        let mut frames = parts(n, &[X, Y]);
        frames.push(n.a(n.to_router6().fragment(0, false).echo(20)));
        frames.extend(parts(n, &[Z]));
        frames
    });
    c.add("first-of-8-bytes-udp", |n| n.all_a(n.to_router6().udp(7, 100).fragments(&[(0, 8), (8, 108)])));
    c.add("first-of-8-bytes-tcp", |n| n.all_a(n.to_router6().tcp(2, 80, 100).fragments(&[(0, 8), (8, 120)])));
    c.add("headers-not-in-first", |n| {
        // The destination options reach beyond the first fragment (RFC 7112).
        let options = [&[UDP, 9][..], &[0x1e, 76], &[0; 76]].concat();
        let whole = [options, n.to_router6().udp(7, 20).payload].concat();
        n.all_a(n.to_router6().proto(DESTINATION, &whole).fragments(&[(0, 40), (40, whole.len())]))
    });
    c.add("headers-in-first", |n| {
        let options = [&[UDP, 0][..], &[1, 4], &[0; 4]].concat();
        let whole = [options, n.to_router6().udp(7, 1200).payload].concat();
        n.all_a(n.to_router6().proto(DESTINATION, &whole).fragments(&[(0, 640), (640, whole.len())]))
    });
    c.add("report-option-in-fragments", |n| {
        let options = [&[UDP, 0][..], &[0x9e, 2, 1, 2, 0, 0]].concat();
        let whole = [options, n.to_router6().udp(7, 1200).payload].concat();
        n.all_a(n.to_router6().proto(DESTINATION, &whole).fragments(&[(0, 640), (640, whole.len())]))
    });
    c.add("closed-port", |n| n.all_a(n.to_router6().udp(5, 2000).fragments(&[(0, 1000), (1000, 2008)])));
    c.add("closed-port-short", |n| n.all_a(n.to_router6().udp(5, 200).fragments(&[(0, 104), (104, 208)])));
    c.add("protocol", |n| {
        let packet = n.to_router6().proto(99, &data(2000));
        n.all_a(packet.fragments(&[(0, 1000), (1000, 2000)]))
    });
    c.add("bad-icmp-checksum", |n| {
        n.all_a(n.to_router6().echo(2000).bad_payload_check().fragments(&[(0, 1000), (1000, 2008)]))
    });
    for len in [9, 1001, 1004, 1007] {
        // All but the last are multiples of eight.
        c.add(format!("length-{len}-of-first"), move |n| {
            let mut frames = n.to_router6().echo(3000).fragments(&[X, Y, Z]);
            frames[0].payload.resize(len, 0x99);
            n.all_a(frames)
        });
        c.add(format!("length-{len}-of-later"), move |n| {
            n.a(n.to_router6().fragment(64, true).proto(ICMP6, &data(len)))
        });
        c.add(format!("length-{len}-of-later-udp"), move |n| {
            n.a(n.to_router6().fragment(64, true).proto(UDP, &data(len)))
        });
        c.add(format!("length-{len}-through"), move |n| {
            n.a(n.through6().fragment(0, true).proto(UDP, &data(len)))
        });
    }
    c.add("empty-first", |n| n.a(n.to_router6().fragment(0, true).proto(ICMP6, &[])));
    c.add("empty-middle", |n| n.a(n.to_router6().fragment(64, true).proto(ICMP6, &[])));
    c.add("empty-last", |n| n.a(n.to_router6().fragment(64, false).proto(ICMP6, &[])));
    c.add("empty-last-completes", |n| {
        let mut frames = vec![n.to_router6().fragment(0, true).echo(1000)];
        frames.push(n.to_router6().fragment(1008, false).proto(ICMP6, &[]));
        n.all_a(frames)
    });
    for (name, offset, len) in [("to-65535", 65528, 7), ("to-65536", 65528, 8), ("past-64k", 65528, 800)] {
        c.add(format!("end-{name}"), move |n| {
            n.a(n.to_router6().fragment(offset, false).proto(ICMP6, &data(len)))
        });
        c.add(format!("end-{name}-udp"), move |n| {
            n.a(n.to_router6().fragment(offset, false).proto(UDP, &data(len)))
        });
        c.add(format!("end-{name}-through"), move |n| {
            n.a(n.through6().fragment(offset, false).proto(ICMP6, &data(len)))
        });
    }
    c.add("end-past-64k-after-first", |n| {
        let mut frames = n.to_router6().echo(3000).fragments(&[X]);
        frames.push(n.to_router6().fragment(65528, false).proto(ICMP6, &data(800)));
        n.all_a(frames)
    });
    c.add("last-of-different-lengths", |n| {
        let mut frames = n.to_router6().echo(3000).fragments(&[X, Z]);
        frames.extend(n.to_router6().echo(2000).fragments(&[(1000, 2008)]));
        n.all_a(frames)
    });
    c.add("data-beyond-last", |n| {
        let mut frames = n.to_router6().echo(2000).fragments(&[(0, 1000), (1000, 2008)]);
        frames.insert(0, n.to_router6().fragment(4000, true).proto(ICMP6, &data(800)));
        n.all_a(frames)
    });
    c.add("another-next-header", |n| {
        let mut frames = n.to_router6().echo(3000).fragments(&[X, Y]);
        frames.push(
            n.to_router6().fragment(2000, false).proto(UDP, &n.to_router6().echo(3000).payload[2000..]),
        );
        n.all_a(frames)
    });
    c.add("another-class", |n| {
        let mut frames = n.to_router6().echo(3000).fragments(&[X, Y, Z]);
        frames[1] = frames[1].clone().class(0xb8);
        n.all_a(frames)
    });
    for (name, marks) in [("ce-of-ect", [2, 3, 2]), ("ce-of-not-ect", [0, 3, 0]), ("ect-and-not", [2, 0, 2])]
    {
        c.add(format!("ecn-{name}"), move |n| {
            let frames = n.to_router6().echo(3000).fragments(&[X, Y, Z]);
            n.all_a(frames.into_iter().zip(marks).map(|(packet, class)| packet.class(class)).collect())
        });
    }
    c.add("behind-hop-by-hop", |n| {
        n.all_a(n.to_router6().opts(HOP_BY_HOP, &[]).echo(3000).fragments(&[X, Y, Z]))
    });
    c.add("hop-by-hop-behind", |n| {
        let options = [&[ICMP6, 0][..], &[1, 4], &[0; 4]].concat();
        let whole = [options, n.to_router6().echo(1200).payload].concat();
        n.all_a(n.to_router6().proto(HOP_BY_HOP, &whole).fragments(&[(0, 640), (640, whole.len())]))
    });
    c.add("fragment-in-fragments", |n| {
        let inner = [&[ICMP6, 0, 0, 0, 0, 0, 0, 9][..], &n.to_router6().echo(1200).payload].concat();
        n.all_a(n.to_router6().proto(FRAGMENT, &inner).fragments(&[(0, 640), (640, inner.len())]))
    });
    c.add("header-cut", |n| n.a(n.to_router6().proto(FRAGMENT, &[58, 0, 0, 1])));
    c.add("header-cut-through", |n| n.a(n.through6().proto(FRAGMENT, &[58, 0, 0, 1])));
    c.add("reserved-bits", |n| {
        let body = [0xff, 0, 6, 0, 0, 0x12, 0x34];
        n.a(n.to_router6().header(FRAGMENT, &body).echo(20))
    });
    c.add("trailer", |n| parts(n, &[X, Y, Z]).into_iter().map(|frame| frame.trailer(20)).collect::<Vec<_>>());
    c.add("through", |n| n.all_a(n.through6().udp(5, 3000).fragments(&[X, Y, Z])));
    c.add("through-overlap", |n| n.all_a(n.through6().udp(5, 3000).fragments(&[X, (992, 2000), Z])));
    c.add("through-hops-1", |n| n.all_a(n.through6().hops(1).udp(5, 3000).fragments(&[X, Y, Z])));
    c.add("through-tiny", |n| n.all_a(n.through6().udp(5, 56).fragments(&[(0, 8), (8, 16), (16, 64)])));
    c.add("no-route", |n| {
        let packet = Ip6::new(n.remote6(A), crate::net::NO_ROUTE6).udp(5, 3000);
        n.all_a(packet.fragments(&[X, Y, Z]))
    });
    c.add("too-big", |n| n.all_a(n.to_small6().udp(5, 2800).fragments(&[(0, 1448), (1448, 2808)])));
    c.add("open-port", |n| n.all_a(n.to_router6().udp(7, 3000).fragments(&[X, Y, Z])));
    c.add("largest", |n| {
        let cuts: Vec<_> = (0..46).map(|i| (i * 1440, (i * 1440 + 1440).min(65_535))).collect();
        n.all_a(n.to_router6().echo(65_527).fragments(&cuts))
    });
    c.add("from-host", |n| {
        let frames = Ip6::new(n.host6(A), crate::net::router6(A)).echo(3000).fragments(&[X, Y, Z]);
        frames.into_iter().map(|packet| n.host(packet)).collect::<Vec<_>>()
    });
    cases
}
