//! Where packets may say that they are from.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::ip::source::RpFilter;
use crate::skb::DropReason::*;

for_each_family! { a_filter_forwards_nothing_that_says_it_is_from_softnet }

/// RFC 1812 section 5.3.8: on the fast path and on the slow one.
fn a_filter_forwards_nothing_that_says_it_is_from_softnet<F: TestFamily>() {
    let mut world = World::<F>::acquainted();
    world.reconfigure(0, |iface| iface.rp_filter = RpFilter::Loose);
    for src in F::OWN {
        for (dst, ttl) in [(F::SERVER, 64), (F::FAR, 64), (F::SERVER, 1), (F::NOWHERE, 64)] {
            world.refused(udp(0, src, dst, ttl, 10), IpInvalidSource, None);
        }
        world.refused(F::with_options(udp(0, src, F::SERVER, 64, 10)), IpRpFilter, None);
    }
    // What comes with it passes.
    let frames = [F::CLIENT, F::OWN[1], F::FAR].map(|src| udp(0, src, F::SERVER, 64, 10));
    let sent = world.input(0, &frames);
    assert_eq!(sent.len(), 2);
    F::assert_forwarded(&sent[1], &frames[2], 1, SERVER_MAC);
}

/// The kernel's `rp_filter`: strict asks for the device, loose for any way; blackholes, what is unreachable, and what is of
/// no single host (`odd`) are none.
fn a_source_is_asked_for_its_way_back<F: TestFamily>(odd: &[F]) {
    let all = [F::CLIENT, F::SERVER, F::FAR, F::NOWHERE, F::BLACKHOLE, F::UNREACHABLE];
    let all = [&all, odd].concat();
    for (filter, allowed) in [
        (RpFilter::Off, &all[..]),
        (RpFilter::Loose, &[F::CLIENT, F::SERVER, F::FAR]),
        (RpFilter::Strict, &[F::CLIENT]),
    ] {
        let mut world = World::<F>::acquainted();
        world.reconfigure(0, |iface| iface.rp_filter = filter);
        let frames: Vec<_> = all.iter().map(|src| udp(0, *src, F::FAR, 64, 10)).collect();
        // Behind options the slow path asks.
        let optioned: Vec<_> = frames.iter().cloned().map(F::with_options).collect();
        for frames in [&frames, &optioned] {
            for (src, frame) in all.iter().zip(frames) {
                let refused = world.drops(IpRpFilter);
                let sent = world.one(0, frame.clone());
                assert_eq!(sent.len() == 1, allowed.contains(src), "{filter:?} {src}");
                assert_eq!(world.drops(IpRpFilter) - refused, 1 - sent.len() as u64);
            }
            // Of a batch the others go on, in order.
            let sent: Vec<_> =
                world.input(0, frames).iter().map(|sent| F::ends(packet(&sent.1)).unwrap().0).collect();
            assert_eq!(sent, allowed);
        }
        assert_eq!(world.drops(IpRpFilter), 4 * (all.len() - allowed.len()) as u64);
        // To softnet itself it is the same, and on the other device nothing is asked.
        let before = world.drops(IpRpFilter);
        world.one(0, udp(0, F::FAR, F::OWN[0], 64, 10));
        assert_eq!(world.drops(IpRpFilter) - before, u64::from(filter == RpFilter::Strict));
        assert_eq!(world.one(1, udp(1, F::NOWHERE, F::CLIENT, 64, 10)).len(), 1);
    }
}

#[test]
fn a_source_of_ipv4_is_asked_for_its_way_back() {
    a_source_is_asked_for_its_way_back(&[Ipv4Addr::new(10, 1, 0, 255)]);
}

#[test]
fn a_source_of_ipv6_is_asked_for_its_way_back() {
    a_source_is_asked_for_its_way_back::<Ipv6Addr>(&[]);
}
