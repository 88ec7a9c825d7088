//! What passes a router and what does not.

use super::super::errors::segment;
use super::*;
use crate::ip::source::RpFilter;
use crate::skb::DropReason::*;

/// Neither the filter nor what it asks knows anything of a link's addresses.
#[test]
fn a_filter_leaves_link_local_sources_alone() {
    let theirs = link_local(CLIENT_MAC);
    for filter in [RpFilter::Off, RpFilter::Loose, RpFilter::Strict] {
        let mut world = World::acquainted();
        world.reconfigure(0, |iface| iface.rp_filter = filter);
        assert_eq!(world.one(0, solicitation(0, theirs, Some(CLIENT_MAC), OWN[0])).len(), 1);
        assert_eq!(world.one(0, solicitation(0, Ipv6Addr::UNSPECIFIED, None, OWN[0])).len(), 1);
        // But none is from here, with options or without.
        for (dst, hops) in [(SERVER, 64), (FAR, 64), (SERVER, 1), (NOWHERE, 64)] {
            let frame = udp(0, link_local(MACS[0]), dst, hops, 10);
            world.refused(frame.clone(), IpInvalidSource, None);
            world.refused(Ipv6Addr::with_options(frame), IpInvalidSource, None);
        }
    }
}

#[test]
fn tcp_is_a_header_that_softnet_does_not_know() {
    let mut world = World::acquainted();
    let behind = [&[next::TCP, 0, 1, 4, 0, 0, 0, 0][..], &segment::<Ipv6Addr>(2, 20)].concat();
    world.refused(
        Ipv6Addr::ip(0, CLIENT, OWN[0], 64, next::DESTINATION, &behind),
        IpNoProto,
        Some((4, 1, 40)),
    );
}

/// Answers are not errors.
#[test]
fn solicitations_without_an_address_are_all_answered() {
    let mut world = World::acquainted();
    world.control.slow.configure(Default::default(), Default::default());
    assert_eq!(world.input(0, &vec![solicitation(0, CLIENT, None, OWN[0]); 60]).len(), 60);
}

/// A message has eight bytes, or is none.
#[test]
fn short_messages_are_not_answered() {
    let mut world = World::acquainted();
    for len in 4..8 {
        let message = &[128, 0, 0, 0, 1, 2, 3][..len];
        world.refused(icmp(0, CLIENT, OWN[0], 64, message), IcmpMalformed, None);
    }
    assert_eq!(world.one(0, icmp(0, CLIENT, OWN[0], 64, &[128, 0, 0, 0, 0, 0, 0, 0])).len(), 1);
}

#[test]
fn an_echo_reply_has_the_traffic_class_of_the_request() {
    let mut world = World::acquainted();
    for class in [0, 0x28, 0xb8, 0xff] {
        let mut question = echo(OWN[0], 64);
        Ipv6Header::new_mut(&mut question[ETH_LEN..]).unwrap().set_traffic_class(class);
        // The flow label is not the answer's.
        question[ETH_LEN + 3] = 0x77;
        let sent = world.one(0, question);
        let header = Ipv6Header::new(&sent[0].1[ETH_LEN..]).unwrap();
        assert_eq!((header.version(), header.traffic_class()), (6, class));
        assert_eq!(sent[0].1[ETH_LEN + 3], 0);
    }
}
