//! What a router of IPv6 owes the hosts on its links: redirects, and the addresses of all routers.

use super::*;
use crate::ip::Prefix6;
use crate::ip::slow::world::QUEUE;
use crate::ip::v6::addr::ALL_ROUTERS;
use crate::steer::TxChoice;

/// The address of all routers on the client's link (RFC 4291 section 2.6.1).
const ANYCAST: Ipv6Addr = net(0, 0);
const ROUTER_MAC: MacAddr = [2, 0, 0, 0, 0, 0xfd];

/// The source of the echo reply that was sent to the client, intact.
fn replied((dev, frame): &Frame) -> Ipv6Addr {
    assert_eq!((*dev, &frame[..6]), (0, &CLIENT_MAC[..]));
    let packet = &frame[ETH_LEN..];
    assert_eq!(validate(packet), Ok(packet.len()));
    let header = Ipv6Header::new(packet).unwrap();
    assert_eq!((packet[40], message_sum(&packet[40..], header.src(), header.dst())), (129, 0xffff));
    assert_eq!(&packet[44..], &[&[0x77, 0x77, 0, 1][..], b"are you there?"].concat()[..]);
    header.src()
}

/// RFC 6085: what is for a group may come in a frame for one.
#[test]
fn a_solicitation_in_a_unicast_frame_is_answered() {
    let mut world = World::new();
    let mut frame = solicitation(0, CLIENT, Some(CLIENT_MAC), OWN[0]);
    frame[..6].copy_from_slice(&MACS[0]);
    let sent = world.one(0, frame);
    assert_eq!(sent.iter().map(|sent| heard(sent).2).collect::<Vec<_>>(), [OWN[0]]);
    assert_eq!(world.state(CLIENT), NeighState::Stale);
}

#[test]
fn the_address_of_all_routers_is_ours_too() {
    let mut world = World::acquainted();
    for anycast in [ANYCAST, "fe80::".parse().unwrap()] {
        // It is answered for, but others may be before us (RFC 4861 section 7.2.7).
        let sent = world.one(0, solicitation(0, CLIENT, Some(CLIENT_MAC), anycast));
        let says =
            Message::Advertisement { target: anycast, mac: Some(MACS[0]), solicited: true, overrides: false };
        let all: Vec<_> = sent.iter().map(heard).collect();
        assert_eq!(all, [(0, CLIENT_MAC, OWN[0], CLIENT, 0xc0, says)]);
        // A router that is asked by it answers from its own address (RFC 4443 section 4.2).
        assert_eq!(replied(&world.one(0, echo(anycast, 64))[0]), OWN[0]);
    }
    // Also from another link.
    assert_eq!(replied(&world.one(0, echo(net(1, 0), 64))[0]), OWN[0]);
    // In fragments, as a whole.
    let message = [&[128, 0, 0, 0, 0x77, 0x77, 0, 1][..], b"are you there?  "].concat();
    let whole = icmp(0, CLIENT, ANYCAST, 64, &message);
    let piece = |offset: u16, more: u16, bytes: &[u8]| {
        let header = [&[58, 0][..], &(offset | more).to_be_bytes(), &[0, 0, 0, 9]].concat();
        Ipv6Addr::ip(0, CLIENT, ANYCAST, 64, next::FRAGMENT, &[&header, bytes].concat())
    };
    let message = &whole[ETH_LEN + 40..];
    assert!(world.one(0, piece(0, 1, &message[..8])).is_empty());
    let sent = world.one(0, piece(8, 0, &message[8..]));
    let packet = &sent[0].1[ETH_LEN..];
    let header = Ipv6Header::new(packet).unwrap();
    assert_eq!((header.src(), packet[40]), (OWN[0], 129));
    assert_eq!(message_sum(&packet[40..], header.src(), header.dst()), 0xffff);
    // It is no source, and other links have their own.
    world.refused(udp(0, ANYCAST, OWN[0], 64, 10), DropReason::IpInvalidSource, None);
    world.refused(solicitation(0, CLIENT, Some(CLIENT_MAC), net(1, 0)), DropReason::NdiscIgnored, None);
}

#[test]
fn networks_between_two_routers_have_no_such_address() {
    let mut world = World::new();
    for (len, is_anycast) in [(127, false), (126, true)] {
        world.reconfigure(0, |iface| iface.addresses6[0].1 = Prefix6::containing(OWN[0], len).unwrap());
        assert_eq!(world.iface(0).unwrap().is_anycast6(ANYCAST), is_anycast);
    }
}

#[test]
fn the_groups_of_all_routers_are_answered() {
    for group in ALL_ROUTERS {
        let mut world = World::acquainted();
        assert_eq!(replied(&world.one(0, echo(group, 64))[0]), OWN[0], "{group}");
        // In a unicast frame, too.
        let mut frame = echo(group, 64);
        frame[..6].copy_from_slice(&MACS[0]);
        assert_eq!(replied(&world.one(0, frame)[0]), OWN[0]);
        // Nothing else of them is ours, and there are no errors about groups.
        world.refused(
            Ipv6Addr::ip(0, CLIENT, group, 1, next::TCP, &[0; 20]),
            DropReason::IpInvalidDest,
            None,
        );
        let solicit = icmp(0, CLIENT, group, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
        world.refused(solicit, DropReason::IpInvalidDest, None);
        world.refused(udp(0, CLIENT, group, 1, 10), DropReason::IpNoProto, None);
    }
    // What is the interface's own comes from nowhere else.
    let mut world = World::acquainted();
    world.refused(echo::<Ipv6Addr>("ff01::2".parse().unwrap(), 64), DropReason::IpInvalidDest, None);
}

/// The redirect that `sent` has to be, about `original`: target, destination, and the target's MAC address.
fn redirect((dev, frame): &Frame, original: &[u8]) -> (Ipv6Addr, Ipv6Addr, Option<MacAddr>) {
    assert_eq!((*dev, &frame[..6]), (0, &CLIENT_MAC[..]));
    let packet = &frame[ETH_LEN..];
    assert_eq!(validate(packet), Ok(packet.len()));
    let header = Ipv6Header::new(packet).unwrap();
    // From where the client knows its router, and from no farther.
    assert_eq!((header.src(), header.dst(), header.hop_limit()), (link_local(MACS[0]), CLIENT, 255));
    let message = &packet[40..];
    assert_eq!(message_sum(message, header.src(), header.dst()), 0xffff);
    assert_eq!(message[..2], [137, 0]);
    let addr = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&message[at..at + 16]).unwrap());
    let mut options = &message[40..];
    let mac = (options[..2] == [2, 1]).then(|| options[2..8].try_into().unwrap());
    if mac.is_some() {
        options = &options[8..];
    }
    let quoted = &original[ETH_LEN..];
    let room = (1280 - (packet.len() - options.len())) / 8 * 8 - 8;
    let quoted = &quoted[..quoted.len().min(room) / 8 * 8];
    assert_eq!((options[0], usize::from(options[1])), (4, quoted.len() / 8 + 1));
    assert_eq!(&options[8..], quoted);
    (addr(8), addr(24), mac)
}

fn is_icmp(kind: u8) -> impl Fn(&&Frame) -> bool {
    move |(_, frame)| frame[ETH_LEN + 6] == next::ICMPV6 && frame[ETH_LEN + 40] == kind
}

/// RFC 4861 section 8.2.
#[test]
fn a_host_is_told_of_a_better_router_on_its_link() {
    let mut world = World::acquainted();
    for len in [10, 1400] {
        world.now += 30 * SECOND;
        let packet = udp(0, CLIENT, BEYOND, 64, len);
        let sent = world.one(0, packet.clone());
        let told: Vec<_> = sent.iter().filter(is_icmp(137)).map(|told| redirect(told, &packet)).collect();
        let mac = (len > 10).then_some(ROUTER_MAC);
        assert_eq!(told, [(ROUTER, BEYOND, mac)]);
        let of_flow = world.choices.iter().filter(|choice| **choice == TxChoice::RxQueue(QUEUE));
        assert_eq!(of_flow.count(), if len > 10 { 2 } else { 1 });
        if len == 10 {
            let sent = world.one(0, advert(0, ROUTER, ROUTER_MAC, 0x60));
            Ipv6Addr::assert_forwarded(&sent[0], &packet, 0, ROUTER_MAC);
        }
        // Again at once: no more words.
        let sent = world.one(0, packet.clone());
        assert_eq!(sent.len(), 1);
        Ipv6Addr::assert_forwarded(&sent[0], &packet, 0, ROUTER_MAC);
    }
    // To a host on the link, which need not be told of by its link-local address.
    world.now += 30 * SECOND;
    let packet = udp(0, CLIENT, net(0, 0x77), 64, 10);
    let sent = world.one(0, packet.clone());
    let told: Vec<_> = sent.iter().filter(is_icmp(137)).map(|told| redirect(told, &packet)).collect();
    assert_eq!(told, [(net(0, 0x77), net(0, 0x77), None)]);
}

#[test]
fn no_other_sender_is_redirected() {
    let mut world = World::acquainted();
    for (src, dst) in [
        // From beyond the link; by way of a router whose link-local address is not known; away from the link.
        (FAR, BEYOND),
        (CLIENT, "2001:db8:7::1".parse().unwrap()),
        (CLIENT, SERVER),
    ] {
        world.now += 30 * SECOND;
        let sent = world.one(0, udp(0, src, dst, 64, 10));
        assert!(!sent.iter().any(|sent| is_icmp(137)(&sent)), "{src} {dst}");
    }
    world.reconfigure(0, |iface| iface.send_redirects = false);
    world.now += 30 * SECOND;
    let sent = world.one(0, udp(0, CLIENT, BEYOND, 64, 10));
    assert!(!sent.iter().any(|sent| is_icmp(137)(&sent)));
}
