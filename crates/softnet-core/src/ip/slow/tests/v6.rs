//! The slow path behind the fast one.

use proptest::prelude::*;

use super::*;
use crate::ip::neigh::NeighState;
use crate::ip::v6::addr::{ALL_NODES, link_local, multicast_mac};

#[path = "v6_frag.rs"]
mod frags;
#[path = "v6_router.rs"]
mod router;
#[path = "v6_snoop.rs"]
mod snoop;

#[path = "v6_scope.rs"]
mod scope;
#[path = "v6_wire.rs"]
mod wire;

use super::world::*;

#[test]
fn a_solicitation_is_answered_and_its_sender_remembered() {
    for own in [OWN[0], link_local(MACS[0])] {
        let mut world = World::new();
        let sent = world.one(0, solicitation(0, CLIENT, Some(CLIENT_MAC), own));
        let says =
            Message::Advertisement { target: own, mac: Some(MACS[0]), solicited: true, overrides: true };
        assert_eq!(sent.iter().map(heard).collect::<Vec<_>>(), [(0, CLIENT_MAC, own, CLIENT, 0xe0, says)]);
        assert_eq!(world.state(CLIENT), NeighState::Stale);
        // Known, so nothing waits; used while stale, so it is asked after a while, by unicast.
        let to_client = udp(1, SERVER, CLIENT, 64, 10);
        assert_forwarded(&world.one(1, to_client.clone())[0], &to_client, 0, CLIENT_MAC);
        let asked = world.pass(5 * SECOND);
        let says = Message::Solicitation { target: CLIENT, mac: Some(MACS[0]) };
        assert_eq!(asked.iter().map(heard).collect::<Vec<_>>(), [(0, CLIENT_MAC, OWN[0], CLIENT, 0, says)]);
        // The answer to a unicast question may leave the address out.
        let message = [&[136, 0, 0, 0, 0x40, 0, 0, 0][..], &CLIENT.octets()].concat();
        world.one(0, icmp(0, CLIENT, OWN[0], 255, &message));
        assert_eq!(world.state(CLIENT), NeighState::Reachable);
    }
}

/// Somebody would like to have an address of ours (RFC 4862 section 5.4.3): everybody is told that it is taken.
#[test]
fn who_tries_to_take_our_address_is_told() {
    let mut world = World::new();
    let sent = world.one(0, solicitation(0, Ipv6Addr::UNSPECIFIED, None, OWN[0]));
    let says =
        Message::Advertisement { target: OWN[0], mac: Some(MACS[0]), solicited: false, overrides: true };
    let all = (0, multicast_mac(ALL_NODES), OWN[0], ALL_NODES, 0xa0, says);
    assert_eq!(sent.iter().map(heard).collect::<Vec<_>>(), [all]);
    assert_eq!(world.slow.neighbours().entries().len(), 0);
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
    assert_eq!(world.slow.neighbours().entries().len(), 0);
    // Options that are not known are skipped; who is not on the link is answered, where the frame says, but not remembered.
    let stranger: Ipv6Addr = "2001:db8:ffff::1".parse().unwrap();
    let message = [&message[..2], &[0, 0], &message[4..24], &[14, 1, 0, 0, 0, 0, 0, 0]].concat();
    let sent = world.one(0, icmp(0, stranger, solicited_node(OWN[0]), 255, &message));
    assert_eq!((heard(&sent[0]).1, heard(&sent[0]).3), (CLIENT_MAC, stranger));
    assert_eq!(world.slow.neighbours().entries().len(), 0);
}

#[test]
fn packets_wait_for_the_neighbour_and_leave_in_order() {
    for (dst, neighbour, source) in [(SERVER, SERVER, OWN[1]), (FAR, GATEWAY, link_local(MACS[1]))] {
        let mut world = World::new();
        let packets: Vec<_> = (0..5).map(|i| udp(0, CLIENT, dst, 64 - i, 20 + usize::from(i))).collect();
        let sent = world.input(0, &packets[..2]);
        let group = solicited_node(neighbour);
        let says = Message::Solicitation { target: neighbour, mac: Some(MACS[1]) };
        // One question for all.
        assert_eq!(
            sent.iter().map(heard).collect::<Vec<_>>(),
            [(1, multicast_mac(group), source, group, 0, says)]
        );
        assert!(world.input(0, &packets[2..4]).is_empty());
        assert_eq!(world.held(), 4);
        let sent = world.one(1, advert(1, neighbour, SERVER_MAC, 0x60));
        assert_eq!(sent.len(), 4);
        for (sent, original) in sent.iter().zip(&packets) {
            assert_forwarded(sent, original, 1, SERVER_MAC);
        }
        // From now on by the fast path.
        let sent = world.one(0, packets[4].clone());
        assert_forwarded(&sent[0], &packets[4], 1, SERVER_MAC);
        assert_eq!(world.ctx.stats().dropped(), 0);
    }
}

#[test]
fn a_neighbour_that_does_not_answer_is_unreachable() {
    let mut world = World::acquainted();
    let nobody = net(1, 77);
    let packet = udp(0, CLIENT, nobody, 64, 1);
    assert_eq!(world.one(0, packet.clone()).len(), 1);
    // It is asked three times, a second apart.
    assert_eq!(world.pass(3 * SECOND - 1).len(), 2);
    let sent = world.pass(1);
    // The quote shows the packet as it was to leave.
    let mut left = packet;
    left[ETH_LEN + 7] -= 1;
    assert_eq!(sent.iter().map(|s| error(s, &left)).collect::<Vec<_>>(), [(1, 3, 0)]);
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (1, 0));
}

#[test]
fn errors_about_what_cannot_go_on() {
    let mut world = World::acquainted();
    let in_net = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, 0, 1);
    use DropReason::*;
    world.refused(udp(0, CLIENT, SERVER, 1, 10), IpTtl, Some((3, 0, 0)));
    world.refused(udp(0, CLIENT, FAR, 0, 10), IpTtl, Some((3, 0, 0)));
    world.refused(udp(0, CLIENT, in_net(0x77), 64, 10), IpNoRoute, Some((1, 0, 0)));
    world.refused(udp(0, CLIENT, in_net(0x66), 64, 10), IpBlackhole, None);
    world.refused(udp(0, CLIENT, in_net(0x67), 64, 10), IpNoRoute, Some((1, 3, 0)));
    world.refused(udp(0, CLIENT, FAR, 64, 1280 - 47), PktTooBig, Some((2, 0, 1280)));
    let fits = udp(0, CLIENT, FAR, 64, 1280 - 48);
    assert_forwarded(&world.one(0, fits.clone())[0], &fits, 1, SERVER_MAC);
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
        world.refused(ip(0, CLIENT, SERVER, 1, next::FRAGMENT, &fragment), IpTtl, answer);
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
fn packets_to_softnet_itself() {
    let mut world = World::acquainted();
    use DropReason::*;
    world.refused(udp(0, CLIENT, OWN[0], 1, 10), IpNoProto, Some((1, 4, 0)));
    world.refused(udp(0, CLIENT, OWN[1], 64, 10), IpNoProto, Some((1, 4, 0)));
    world.refused(ip(0, CLIENT, OWN[0], 64, 132, &[0; 20]), IpNoProto, Some((4, 1, 6)));
    world.refused(ip(0, CLIENT, OWN[0], 64, next::NONE, &[]), IpNoProto, None);
    world.refused(
        ip(0, CLIENT, OWN[0], 64, next::FRAGMENT, &[17, 0, 0, 1, 0, 0, 0, 1, 9]),
        FragInvalid,
        Some((4, 0, 4)),
    );
    world.refused(ip(0, CLIENT, OWN[0], 64, next::ICMPV6, &[128, 0]), IcmpMalformed, None);
    world.refused(icmp(0, CLIENT, OWN[0], 64, &[129, 0, 0, 0, 0, 0, 0, 0]), IcmpIgnored, None);
    // A router advertisement, sound as it is.
    world.refused(
        icmp(0, link_local(CLIENT_MAC), OWN[0], 255, &[134, 0, 0, 0, 64, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]),
        IcmpIgnored,
        None,
    );
    let mut damaged = echo(OWN[0], 64);
    damaged[ETH_LEN + 50] ^= 1;
    world.refused(damaged, IcmpCsum, None);
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
        assert_forwarded(&world.one(0, frame.clone())[0], &frame, 1, SERVER_MAC);
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
fn echo_is_answered_also_through_a_stale_neighbour() {
    let mut world = World::new();
    world.one(0, solicitation(0, CLIENT, Some(CLIENT_MAC), OWN[0]));
    for (own, hop_limit) in [(OWN[0], 1), (OWN[1], 64)] {
        let mut question = echo(own, hop_limit);
        let message = question[ETH_LEN + 44..].to_vec();
        question.resize(120, 0);
        let sent = world.one(0, question);
        let (dev, frame) = &sent[0];
        assert_eq!((sent.len(), *dev, &frame[..12]), (1, 0, &[CLIENT_MAC, MACS[0]].concat()[..]));
        let packet = &frame[ETH_LEN..];
        let header = Ipv6Header::new(packet).unwrap();
        assert_eq!((validate(packet), header.src(), header.dst()), (Ok(packet.len()), own, CLIENT));
        assert_eq!((header.hop_limit(), message_sum(&packet[40..], own, CLIENT)), (64, 0xffff));
        assert_eq!((packet[40], &packet[44..]), (129, &message[..]));
        assert_eq!(world.state(CLIENT), NeighState::Delay);
    }
    let stats = world.ctx.stats();
    // Two echoes and a solicitation came here, and were answered.
    assert_eq!((stats.delivered.get(), stats.originated.get(), stats.dropped()), (3, 3, 0));
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
        world.refused(ip(0, CLIENT, dst, 1, next::TCP, &[0; 20]), IpInvalidDest, None);
        world.refused(icmp(0, CLIENT, dst, 64, &[128, 0, 0, 0, 0, 1, 0, 1]), IpInvalidDest, None);
        // Whoever is not in the group does not complain.
        let option = ip(0, CLIENT, dst, 9, next::DESTINATION, &[17, 0, 1, 0, 0xbe, 0, 1, 0]);
        world.refused(option, Ipv6BadExthdr, None);
    }
    // A group in a unicast frame, and the other way round.
    let to = |mac: MacAddr, dst: Ipv6Addr| [&mac[..], &udp(0, CLIENT, dst, 1, 10)[6..]].concat();
    world.refused(to([0x33, 0x33, 0, 0, 0, 1], OWN[0]), IpInvalidDest, None);
    // To the one group that softnet is in there is no error, but for an option that asks for it.
    world.refused(udp(0, CLIENT, solicited_node(OWN[0]), 9, 10), IpNoProto, None);
    let option =
        |kind| ip(0, CLIENT, solicited_node(OWN[0]), 9, next::DESTINATION, &[17, 0, 1, 0, kind, 0, 1, 0]);
    world.refused(option(0xfe), Ipv6BadExthdr, None);
    world.refused(option(0xbe), Ipv6BadExthdr, Some((4, 2, 44)));
    // Cut off, or no IPv6 at all.
    let mut odd = udp(0, CLIENT, ALL_NODES, 9, 10);
    odd[ETH_LEN] = 0x45;
    world.refused(odd.clone(), IpInHdr, None);
    world.refused(udp(0, CLIENT, ALL_NODES, 9, 10)[..70].to_vec(), PktTooSmall, None);
}

/// What comes from outside is not from here; who asks for our address is told that it is taken all the same.
#[test]
fn nobody_else_speaks_for_us() {
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

/// Who moved tells everybody: those that know him believe it, if he insists, and nobody learns of a stranger.
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
        assert_forwarded(&sent[0], &to_client, 0, mac);
        // What is in use is asked whether it is still so.
        assert_eq!(world.state(CLIENT), NeighState::Delay);
    }
    let mut world = World::acquainted();
    let known = world.slow.neighbours().entries().len();
    assert!(world.one(0, says("2001:db8::77".parse().unwrap(), 0x20)).is_empty());
    assert_eq!(world.slow.neighbours().entries().len(), known);
    world.refused(says(CLIENT, 0x60), DropReason::NdiscMalformed, None);
    // Nothing else is taken that is to all.
    world.refused(
        icmp(0, CLIENT, ALL_NODES, 64, &[128, 0, 0, 0, 0, 1, 0, 1]),
        DropReason::IpInvalidDest,
        None,
    );
    world.refused(ip(0, CLIENT, ALL_NODES, 64, next::NONE, &[]), DropReason::IpInvalidDest, None);
    world.ifaces[0].as_mut().unwrap().addresses6.clear();
    world.refused(says(CLIENT, 0x20), DropReason::IpInvalidDest, None);
}

#[test]
fn a_device_that_is_gone_holds_nothing() {
    let mut world = World::new();
    world.input(0, &vec![udp(0, CLIENT, SERVER, 64, 10); 3]);
    assert_eq!(world.held(), 3);
    world.vanish(1);
    assert_eq!((world.held(), world.drops(DropReason::NeighDead)), (0, 3));
    world.refused(udp(0, CLIENT, FAR, 64, 10), DropReason::DevReady, None);
    assert!(world.one(1, advert(1, SERVER, SERVER_MAC, 0x60)).is_empty());
    assert_eq!(world.slow.next_deadline(), None);
}

/// What a device without IPv6 hears of it is not answered, and nobody is asked by it.
#[test]
fn a_device_without_an_address_is_silent() {
    let mut world = World::new();
    world.ifaces[0].as_mut().unwrap().addresses6.clear();
    world.refused(solicitation(0, CLIENT, Some(CLIENT_MAC), OWN[0]), DropReason::IpInvalidDest, None);
    world.refused(udp(0, CLIENT, net(0x77, 1), 64, 10), DropReason::IpNoRoute, None);
    assert!(world.one(1, udp(1, SERVER, CLIENT, 64, 10)).is_empty());
    assert!(world.pass(3 * SECOND).iter().all(|(dev, _)| *dev == 1));
    // The error about it waits for its own neighbour.
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (1, 1));
}

#[test]
fn without_memory_questions_are_lost_but_counted() {
    let mut world = World::with_frames(1);
    assert!(world.one(0, udp(0, CLIENT, SERVER, 64, 10)).is_empty());
    assert_eq!((world.held(), world.drops(DropReason::NoFrame)), (1, 1));
    world.pass(3 * SECOND);
    assert_eq!((world.held(), world.drops(DropReason::NoFrame)), (0, 3));
}

/// What may happen to the world.
#[derive(Clone, Debug)]
enum Event {
    /// Frames arrive at a device.
    Frames(u16, Vec<Vec<u8>>),
    /// Milliseconds pass.
    Pass(u64),
    /// A device vanishes, or returns.
    Toggle(u16),
}

fn any_ip() -> impl Strategy<Value = Ipv6Addr> {
    let known = [
        CLIENT,
        SERVER,
        GATEWAY,
        FAR,
        OWN[0],
        OWN[1],
        link_local(MACS[0]),
        solicited_node(OWN[0]),
        ALL_NODES,
    ];
    prop_oneof![
        6 => proptest::sample::select(known.to_vec()),
        2 => (0u16..2, 0u16..4).prop_map(|(dev, host)| net(dev, host)),
        1 => any::<u128>().prop_map(Ipv6Addr::from_bits),
    ]
}

/// A frame for device `dev`: mostly sensible, sometimes with a few bytes changed, sometimes noise.
fn any_frame(dev: u16) -> impl Strategy<Value = Vec<u8>> {
    let mac = prop_oneof![Just(CLIENT_MAC), Just(SERVER_MAC)];
    let header = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(58), any::<u8>()], 8..40);
    let first = prop::sample::select(vec![0u8, 43, 44, 60, 58]);
    let sensible = prop_oneof![
        // Fragments of few datagrams, so that some become whole, and some overlap.
        4 => (any_ip(), 0u16..4, 0u16..2, 1usize..3, any::<bool>()).prop_map(move |(dst, at, more, n, udp)| {
            let kind = if udp { next::UDP } else { next::ICMPV6 };
            let header = [kind, 0, 0, (at * 8 + more) as u8, 0, 0, 0, 7];
            ip(dev, CLIENT, dst, 9, next::FRAGMENT, &[&header[..], &vec![128; n * 8]].concat())
        }),
        4 => (any_ip(), any_ip(), 0u8..4, 0usize..1400).prop_map(move |(s, d, t, n)| udp(dev, s, d, t * 20 + 1, n)),
        2 => (any_ip(), any_ip(), any::<u8>(), 8usize..50).prop_map(move |(s, d, kind, n)| {
            icmp(dev, s, d, 255, &[&[kind, 0, 0, 0][..], &vec![0; n]].concat())
        }),
        2 => (any_ip(), any_ip(), first, header).prop_map(move |(s, d, first, mut header)| {
            header[1] %= 4;
            ip(dev, s, d, 9, first, &header)
        }),
        2 => (any_ip(), mac.clone(), any::<u8>()).prop_map(move |(ip, mac, flags)| advert(dev, ip, mac, flags)),
        2 => (any_ip(), mac, any_ip()).prop_map(move |(ip, mac, to)| solicitation(dev, ip, Some(mac), to)),
    ];
    let edits = prop_oneof![Just(vec![]), prop::collection::vec(any::<(u16, u8)>(), 1..3)];
    let changed = (sensible, edits).prop_map(|(mut frame, edits)| {
        for (at, to) in edits {
            let at = usize::from(at) % frame.len();
            frame[at] = to;
        }
        frame
    });
    prop_oneof![9 => changed, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn any_event() -> impl Strategy<Value = Event> {
    let frames = |dev| prop::collection::vec(any_frame(dev), 1..20).prop_map(move |f| Event::Frames(dev, f));
    prop_oneof![
        5 => frames(0),
        5 => frames(1),
        4 => (0u64..4000).prop_map(Event::Pass),
        1 => (0u16..2).prop_map(Event::Toggle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever comes when, each step's books balance and all memory comes home (`World` asserts both), also when
    /// memory is short.
    #[test]
    fn nothing_is_lost(events in prop::collection::vec(any_event(), 1..40), scarce: bool) {
        let mut world = World::with_frames(if scarce { 6 } else { 2048 });
        for event in events {
            match event {
                Event::Frames(dev, frames) => drop(world.input(dev, &frames)),
                Event::Pass(ms) => drop(world.pass(ms * 1_000_000)),
                Event::Toggle(dev) => match world.ifaces[usize::from(dev)] {
                    Some(_) => world.vanish(dev),
                    None => world.ifaces[usize::from(dev)] = Some(iface(usize::from(dev))),
                },
            }
        }
    }
}
