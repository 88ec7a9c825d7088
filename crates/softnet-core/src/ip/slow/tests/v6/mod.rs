//! What is IPv6's alone.

pub(super) mod frags;
mod router;
mod scope;
mod wire;

use std::net::Ipv6Addr;

use super::super::world::v6::*;
use super::*;
use crate::ip::neigh::NeighState;
use crate::ip::v6::addr::{ALL_NODES, link_local, multicast_mac, solicited_node};
use crate::ip::v6::header::{Ipv6Header, next, validate};
use crate::ip::v6::icmp::message_sum;
use crate::ip::v6::nd::Message;
use crate::ip::{ETH_LEN, MacAddr};
use crate::skb::DropReason;

type World = super::World<Ipv6Addr>;

#[test]
fn a_solicitation_for_each_of_our_addresses_is_answered() {
    for own in [OWN[0], link_local(MACS[0])] {
        let mut world = World::new();
        let sent = world.one(0, solicitation(0, CLIENT, Some(CLIENT_MAC), own));
        assert_eq!(sent.len(), 1);
        Ipv6Addr::assert_answered(&sent[0], 0, own, (CLIENT, CLIENT_MAC));
        assert_eq!(world.state(CLIENT), NeighState::Stale);
        let to_client = udp(1, SERVER, CLIENT, 64, 10);
        Ipv6Addr::assert_forwarded(&world.one(1, to_client.clone())[0], &to_client, 0, CLIENT_MAC);
        let asked = world.pass(5 * SECOND);
        assert_eq!(asked.len(), 1);
        Ipv6Addr::assert_asked(&asked[0], 0, CLIENT, Some(CLIENT_MAC));
        // The answer to a unicast question may leave the address out.
        world.one(0, icmp(0, CLIENT, OWN[0], 255, &discovery(136, 0x40, CLIENT, None)));
        assert_eq!(world.state(CLIENT), NeighState::Reachable);
    }
}

/// A host would like to have an address of ours (RFC 4862 section 5.4.3): all nodes are told that it is taken.
#[test]
fn a_host_that_tries_to_take_our_address_is_told() {
    let mut world = World::new();
    let sent = world.one(0, solicitation(0, Ipv6Addr::UNSPECIFIED, None, OWN[0]));
    let says =
        Message::Advertisement { target: OWN[0], mac: Some(MACS[0]), solicited: false, overrides: true };
    let all = (0, multicast_mac(ALL_NODES), OWN[0], ALL_NODES, 0xa0, says);
    assert_eq!(sent.iter().map(heard).collect::<Vec<_>>(), [all]);
    assert_eq!(world.control.slow.neighbours().entries().len(), 0);
}

#[test]
fn discovery_that_is_none_of_our_business_or_not_sound() {
    let mut world = World::new();
    let good = solicitation(0, CLIENT, Some(CLIENT_MAC), OWN[0]);
    let message = good[ETH_LEN + 40..].to_vec();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = message.clone();
        message[2..4].fill(0);
        change(&mut message);
        icmp(0, CLIENT, solicited_node(OWN[0]), 255, &message)
    };
    let limit = |hop_limit| {
        icmp(0, CLIENT, solicited_node(OWN[0]), hop_limit, &[&message[..2], &[0, 0], &message[4..]].concat())
    };
    let about_us = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &OWN[0].octets(), &[2, 1], &CLIENT_MAC].concat();
    use DropReason::*;
    for (frame, reason) in [
        (limit(254), NdiscHopLimit),
        (with(&|m| m[1] = 1), NdiscMalformed),
        (with(&|m| m.truncate(23)), NdiscMalformed),
        (with(&|m| m[8] = 0xff), NdiscMalformed),
        (with(&|m| m[25] = 0), NdiscMalformed),
        (with(&|m| m[25] = 2), NdiscMalformed),
        (with(&|m| m.push(14)), NdiscMalformed),
        (with(&|m| m[26] = 3), NdiscMalformed),
        (with(&|m| m[26..32].fill(0)), NdiscMalformed),
        (solicitation(0, Ipv6Addr::UNSPECIFIED, Some(CLIENT_MAC), OWN[0]), NdiscMalformed),
        // The group fits, the address does not.
        (with(&|m| m[12] = 9), NdiscIgnored),
        (solicitation(0, OWN[0], Some(CLIENT_MAC), OWN[0]), IpInvalidSource),
        (advert(0, OWN[0], CLIENT_MAC, 0x60), IpInvalidSource),
        (icmp(0, CLIENT, OWN[0], 255, &about_us), NdiscIgnored),
        (solicitation(0, CLIENT, Some(CLIENT_MAC), SERVER), IpInvalidDest),
        (solicitation(0, "::1".parse().unwrap(), Some(CLIENT_MAC), OWN[0]), IpInvalidSource),
        ([&good[..good.len() - 1], &[8]].concat(), IcmpCsum),
    ] {
        world.refused(frame, reason, None);
    }
    let solicited_to_all = icmp(
        0,
        CLIENT,
        solicited_node(OWN[0]),
        255,
        &[&[136, 0, 0, 0, 0x40, 0, 0, 0][..], &CLIENT.octets()].concat(),
    );
    world.refused(solicited_to_all, NdiscMalformed, None);
    assert_eq!(world.control.slow.neighbours().entries().len(), 0);
    // Options that are not known are skipped; a host that is not on the link is answered, where the frame
    // says, but not remembered.
    let stranger: Ipv6Addr = "2001:db8:ffff::1".parse().unwrap();
    let message = [&message[..2], &[0, 0], &message[4..24], &[14, 1, 0, 0, 0, 0, 0, 0]].concat();
    let sent = world.one(0, icmp(0, stranger, solicited_node(OWN[0]), 255, &message));
    assert_eq!((heard(&sent[0]).1, heard(&sent[0]).3), (CLIENT_MAC, stranger));
    assert_eq!(world.control.slow.neighbours().entries().len(), 0);
}

#[test]
fn errors_are_about_queries_and_fragments_but_not_about_errors() {
    let mut world = World::acquainted();
    use DropReason::*;
    // No error about an error or a redirect; about a query, yes, and about a later fragment, as
    // none of these needs any.
    for (kind, answer) in
        [(1, None), (4, None), (127, None), (137, None), (128, Some((3, 0, 0))), (135, Some((3, 0, 0)))]
    {
        world.refused(icmp(0, CLIENT, SERVER, 1, &[kind, 0, 0, 0, 0, 0, 0, 0]), IpTtl, answer);
    }
    for (next, offset, kind, answer) in [
        (58, 8u16, 128, Some((3, 0, 0))),
        (58, 0, 128, Some((3, 0, 0))),
        (58, 0, 1, None),
        (17, 8, 0, Some((3, 0, 0))),
    ] {
        let fragment = [&[next, 0][..], &offset.to_be_bytes(), &[0, 0, 0, 1, kind, 0, 0, 0]].concat();
        world.refused(Ipv6Addr::ip(0, CLIENT, SERVER, 1, next::FRAGMENT, &fragment), IpTtl, answer);
    }
}

#[test]
fn link_local_packets_stay_on_the_link() {
    let mut world = World::acquainted();
    let theirs = link_local(CLIENT_MAC);
    world.one(0, solicitation(0, theirs, Some(CLIENT_MAC), OWN[0]));
    use DropReason::*;
    world.refused(udp(0, theirs, SERVER, 64, 10), IpInvalidSource, Some((1, 2, 0)));
    world.refused(udp(0, CLIENT, "fe80::77".parse().unwrap(), 64, 10), IpInvalidDest, None);
    // It is the address of the other device.
    world.refused(udp(0, CLIENT, link_local(MACS[1]), 64, 10), IpInvalidDest, None);
    // To us, and answered from the address that was asked, by the same device.
    for own in [link_local(MACS[0]), OWN[0]] {
        let sent = world.one(0, icmp(0, theirs, own, 64, &[128, 0, 0, 0, 1, 2, 3, 4]));
        let header = Ipv6Header::new(&sent[0].1[ETH_LEN..]).unwrap();
        assert_eq!((sent[0].0, header.src(), header.dst()), (0, own, theirs));
        assert_eq!(sent[0].1[..6], CLIENT_MAC);
    }
    world.refused(udp(0, theirs, link_local(MACS[0]), 64, 10), IpNoProto, Some((1, 4, 0)));
}

#[test]
fn packets_to_softnet_itself_that_only_ipv6_has() {
    let mut world = World::acquainted();
    use DropReason::*;
    world.refused(Ipv6Addr::ip(0, CLIENT, OWN[0], 64, next::NONE, &[]), IpNoProto, None);
    world.refused(
        Ipv6Addr::ip(0, CLIENT, OWN[0], 64, next::FRAGMENT, &[17, 0, 0, 1, 0, 0, 0, 1, 9]),
        FragInvalid,
        Some((4, 0, 4)),
    );
    // A router advertisement, sound as it is.
    world.refused(
        icmp(0, link_local(CLIENT_MAC), OWN[0], 255, &[134, 0, 0, 0, 64, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]),
        IcmpIgnored,
        None,
    );
}

#[test]
fn extension_headers_are_looked_at_where_they_must_be() {
    let mut world = World::acquainted();
    let with = |dst, first, chain: &[u8]| {
        let mut frame = udp(0, CLIENT, dst, 9, 10);
        frame.splice(ETH_LEN + 40..ETH_LEN + 40, chain.iter().copied());
        frame[ETH_LEN + 6] = first;
        frame[ETH_LEN + 5] += chain.len() as u8;
        frame
    };
    // On the way only hop-by-hop options matter. (5: router alert, 0x3e: skip, 0xbe and 0xfe: report.)
    let alert = [17, 0, 5, 2, 0, 0, 1, 0];
    let report = [17, 0, 1, 0, 0xfe, 0, 1, 0];
    let route = [17, 2, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    for (first, chain) in [(0, &alert[..]), (60, &report[..]), (43, &route[..])] {
        let frame = with(SERVER, first, chain);
        Ipv6Addr::assert_forwarded(&world.one(0, frame.clone())[0], &frame, 1, SERVER_MAC);
    }
    use DropReason::*;
    world.refused(with(SERVER, 0, &report), Ipv6BadExthdr, Some((4, 2, 44)));
    world.refused(with(SERVER, 0, &[17, 9, 0, 0, 0, 0, 0, 0]), Ipv6BadExthdr, None);
    // At the destination all do.
    world.refused(with(OWN[0], 0, &alert), IpNoProto, Some((1, 4, 0)));
    world.refused(with(OWN[0], 60, &report), Ipv6BadExthdr, Some((4, 2, 44)));
    world.refused(with(OWN[0], 43, &route), Ipv6BadExthdr, Some((4, 0, 42)));
    // Errors quote them; echo is answered without them.
    let mut question = echo(OWN[0], 9);
    question.splice(ETH_LEN + 40..ETH_LEN + 40, [58, 0, 1, 4, 0, 0, 0, 0]);
    question[ETH_LEN + 6] = 60;
    question[ETH_LEN + 5] += 8;
    let sent = world.one(0, question.clone());
    assert_eq!((sent[0].1[ETH_LEN + 6], &sent[0].1[ETH_LEN + 44..]), (58, &question[ETH_LEN + 52..]));
}

#[test]
fn martians_and_groups_are_neither_forwarded_nor_answered() {
    let mut world = World::acquainted();
    use DropReason::*;
    for src in ["::", "::1", "::ffff:10.0.0.1", "ff02::1"] {
        world.refused(udp(0, src.parse().unwrap(), SERVER, 1, 10), IpInvalidSource, None);
        world.refused(udp(0, src.parse().unwrap(), OWN[0], 9, 10), IpInvalidSource, None);
    }
    for dst in ["::", "::1", "::ffff:10.0.0.1", "ff00::1", "ff01::1", "ff11::1"] {
        world.refused(udp(0, CLIENT, dst.parse().unwrap(), 1, 10), IpInvalidDest, None);
    }
    // Sockets may be in other groups, for datagrams.
    for dst in ["ff02::1", "ff0e::1", "ff32:40:fd00::1", "ff02::1:ff00:9"].map(|dst| dst.parse().unwrap()) {
        world.refused(udp(0, CLIENT, dst, 1, 10), IpNoProto, None);
        world.refused(udp(0, Ipv6Addr::UNSPECIFIED, dst, 1, 10), IpInvalidSource, None);
        world.refused(Ipv6Addr::ip(0, CLIENT, dst, 1, next::TCP, &[0; 20]), IpInvalidDest, None);
        world.refused(icmp(0, CLIENT, dst, 64, &[128, 0, 0, 0, 0, 1, 0, 1]), IpInvalidDest, None);
        // A host that is not in the group does not complain.
        let option = Ipv6Addr::ip(0, CLIENT, dst, 9, next::DESTINATION, &[17, 0, 1, 0, 0xbe, 0, 1, 0]);
        world.refused(option, Ipv6BadExthdr, None);
    }
    // A group in a unicast frame, and the other way round.
    let to = |mac: MacAddr, dst: Ipv6Addr| [&mac[..], &udp(0, CLIENT, dst, 1, 10)[6..]].concat();
    world.refused(to([0x33, 0x33, 0, 0, 0, 1], OWN[0]), IpInvalidDest, None);
    // To the one group that softnet is in there is no error, but for an option that asks for it.
    world.refused(udp(0, CLIENT, solicited_node(OWN[0]), 9, 10), IpNoProto, None);
    let option = |kind| {
        Ipv6Addr::ip(0, CLIENT, solicited_node(OWN[0]), 9, next::DESTINATION, &[17, 0, 1, 0, kind, 0, 1, 0])
    };
    world.refused(option(0xfe), Ipv6BadExthdr, None);
    world.refused(option(0xbe), Ipv6BadExthdr, Some((4, 2, 44)));
    // Cut off, or no IPv6 at all.
    let mut odd = udp(0, CLIENT, ALL_NODES, 9, 10);
    odd[ETH_LEN] = 0x45;
    world.refused(odd.clone(), IpInHdr, None);
    world.refused(udp(0, CLIENT, ALL_NODES, 9, 10)[..70].to_vec(), PktTooSmall, None);
}

/// What comes from outside is not from here; a host that asks for our address is told that it is taken all the same.
#[test]
fn no_other_host_speaks_for_us() {
    let mut world = World::acquainted();
    let message = [&[128, 0, 0, 0, 0x77, 0x77, 0, 1][..], b"are you there?"].concat();
    for src in [OWN[0], OWN[1], link_local(MACS[0])] {
        for dst in [OWN[0], link_local(MACS[0])] {
            world.refused(udp(0, src, dst, 64, 10), DropReason::IpInvalidSource, None);
            world.refused(icmp(0, src, dst, 64, &message), DropReason::IpInvalidSource, None);
        }
        let asks = solicitation(0, src, Some(CLIENT_MAC), OWN[0]);
        world.refused(asks, DropReason::IpInvalidSource, None);
    }
    let sent = world.one(0, solicitation(0, Ipv6Addr::UNSPECIFIED, None, OWN[0]));
    assert_eq!(heard(&sent[0]).3, ALL_NODES);
}

/// A neighbour that moved tells all nodes: those that know it believe it, if it insists, and none learns of a stranger.
#[test]
fn a_neighbour_that_moved_tells_all() {
    const NEW_MAC: MacAddr = [2, 0, 0, 0, 0, 0x99];
    let says = |target: Ipv6Addr, flags: u8| {
        let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), &[2, 1], &NEW_MAC].concat();
        icmp(0, target, ALL_NODES, 255, &message)
    };
    let to_client = udp(1, SERVER, CLIENT, 64, 10);
    for (flags, mac) in [(0, CLIENT_MAC), (0x20, NEW_MAC)] {
        let mut world = World::acquainted();
        assert!(world.one(0, says(CLIENT, flags)).is_empty());
        assert_eq!(world.state(CLIENT), NeighState::Stale);
        let sent = world.one(1, to_client.clone());
        Ipv6Addr::assert_forwarded(&sent[0], &to_client, 0, mac);
        // What is in use is asked whether it is still so.
        assert_eq!(world.state(CLIENT), NeighState::Delay);
    }
    let mut world = World::acquainted();
    let known = world.control.slow.neighbours().entries().len();
    assert!(world.one(0, says("2001:db8::77".parse().unwrap(), 0x20)).is_empty());
    assert_eq!(world.control.slow.neighbours().entries().len(), known);
    world.refused(says(CLIENT, 0x60), DropReason::NdiscMalformed, None);
    // Nothing else is taken that is to all.
    world.refused(
        icmp(0, CLIENT, ALL_NODES, 64, &[128, 0, 0, 0, 0, 1, 0, 1]),
        DropReason::IpInvalidDest,
        None,
    );
    world.refused(Ipv6Addr::ip(0, CLIENT, ALL_NODES, 64, next::NONE, &[]), DropReason::IpInvalidDest, None);
    world.reconfigure(0, |iface| iface.addresses6.clear());
    world.refused(says(CLIENT, 0x20), DropReason::IpInvalidDest, None);
}

/// What a device without IPv6 hears of it is not answered, and no neighbour is asked by it.
#[test]
fn a_device_without_an_address_is_silent() {
    let mut world = World::new();
    world.reconfigure(0, |iface| iface.addresses6.clear());
    world.refused(solicitation(0, CLIENT, Some(CLIENT_MAC), OWN[0]), DropReason::IpInvalidDest, None);
    world.refused(udp(0, CLIENT, NOWHERE, 64, 10), DropReason::IpNoRoute, None);
    assert!(world.one(1, udp(1, SERVER, CLIENT, 64, 10)).is_empty());
    assert!(world.pass(3 * SECOND).iter().all(|(dev, _)| *dev == 1));
    // The error about it waits for its own neighbour.
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (1, 1));
}
