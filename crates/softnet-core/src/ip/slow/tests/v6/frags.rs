//! Fragments of IPv6 to softnet.

use super::super::frags::ping;
use super::*;
use crate::ip::v6::addr::ALL_ROUTERS;

/// The IPv6 packet in `whole`, cut into fragments of identification `id` to fit 1500 bytes.
pub(in super::super) fn cut(whole: &[u8], id: u8) -> Vec<Vec<u8>> {
    let (header, payload) = whole.split_at(ETH_LEN + 40);
    let pieces = payload.chunks(1448).enumerate().map(|(i, piece)| {
        let word = (i * 1448) as u16 | u16::from((i + 1) * 1448 < payload.len());
        fragment(header, word, id, piece)
    });
    pieces.collect()
}

fn fragment(header: &[u8], word: u16, id: u8, piece: &[u8]) -> Vec<u8> {
    let mut frame = header.to_vec();
    let next = std::mem::replace(&mut frame[ETH_LEN + 6], next::FRAGMENT);
    frame[ETH_LEN + 4..][..2].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
    frame.extend([next, 0, (word >> 8) as u8, word as u8, 0, 0, 0, id]);
    frame.extend(piece);
    frame
}

/// Puts what was sent together by hand: the payload of the one or more packets.
pub(in super::super) fn join(sent: &Sent) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, (_, frame)) in sent.iter().enumerate() {
        let packet = &frame[ETH_LEN..];
        assert_eq!(validate(packet), Ok(packet.len()));
        if sent.len() == 1 {
            return packet[40..].to_vec();
        }
        assert_eq!((packet[6], packet[40]), (next::FRAGMENT, next::ICMPV6));
        let word = u16::from_be_bytes([packet[42], packet[43]]);
        assert_eq!(usize::from(word & !7), payload.len());
        assert_eq!(word & 1 != 0, i + 1 < sent.len());
        assert_eq!(packet[44..48], sent[0].1[ETH_LEN + 44..][..4]);
        payload.extend(&packet[48..]);
    }
    payload
}

/// Of a host that is only known on its link, the answer goes there.
#[test]
fn a_link_local_echo_comes_back() {
    let mut world = World::new();
    let (theirs, own) = (link_local(CLIENT_MAC), link_local(MACS[0]));
    world.one(0, solicitation(0, theirs, Some(CLIENT_MAC), own));
    let request = ping(theirs, own, 2000);
    let sent = world.input(0, &cut(&request, 1));
    assert!(sent.len() == 2 && sent.iter().all(|(dev, frame)| *dev == 0 && frame[..6] == CLIENT_MAC));
    assert_eq!(join(&sent)[4..], request[ETH_LEN + 44..]);
}

#[test]
fn what_is_refused_is_told() {
    let mut world = World::acquainted();
    use DropReason::*;
    let whole = udp(0, CLIENT, OWN[0], 64, 2000);
    let (header, payload) = whole.split_at(ETH_LEN + 40);
    // Lengths, the end, and a chain of headers that does not end in the first (RFC 7112).
    world.refused(fragment(header, 1, 1, &payload[..12]), FragInvalid, Some((4, 0, 4)));
    world.refused(fragment(header, 0xfff8, 1, &payload[..8]), FragInvalid, Some((4, 0, 42)));
    let mut tcp = header.to_vec();
    tcp[ETH_LEN + 6] = next::TCP;
    world.refused(fragment(&tcp, 1, 1, &payload[..16]), FragInvalid, Some((4, 3, 0)));
    world.refused(fragment(header, 8, 1, &[]), FragInvalid, None);
    // Also of a message of ICMPv6, later pieces of which do not say what it is.
    let mut of_icmp = header.to_vec();
    of_icmp[ETH_LEN + 6] = next::ICMPV6;
    world.refused(fragment(&of_icmp, 0xfff8, 1, &payload[..8]), FragInvalid, Some((4, 0, 42)));
    world.refused(fragment(&of_icmp, 0x0801, 1, &payload[..12]), FragInvalid, Some((4, 0, 4)));
    // Hop-by-hop options are in front of everything, or an unrecognized header (RFC 8200 section
    // 4.1).
    let mut options = header.to_vec();
    options[ETH_LEN + 6] = next::HOP_BY_HOP;
    let behind = [&[next::UDP, 0, 1, 4, 0, 0, 0, 0][..], &payload[..16]].concat();
    world.refused(fragment(&options, 0, 5, &behind), FragInvalid, Some((4, 1, 40)));
    world.refused(fragment(&options, 1, 6, &behind), FragInvalid, Some((4, 1, 40)));
    assert_eq!(world.held(), 0);
}

/// An error about a datagram in fragments quotes the first as it came, and points into that (RFC
/// 4443 section 2.4(c)).
#[test]
fn a_first_fragment_is_quoted_as_it_came() {
    let mut world = World::acquainted();
    use DropReason::*;
    let whole = udp(0, CLIENT, OWN[0], 64, 2000);
    let mut fragments = cut(&whole, 2);
    let class = |frame: &mut Vec<u8>, ecn: u8| {
        Ipv6Header::new_mut(&mut frame[ETH_LEN..]).unwrap().set_traffic_class(0xb8 | ecn)
    };
    // That the other saw congestion is not what this one says.
    class(&mut fragments[0], 2);
    class(&mut fragments[1], 3);
    for order in [[0, 1], [1, 0]] {
        let sent = world.input(0, &order.map(|i| fragments[i].clone()));
        assert_eq!(
            sent.iter().map(|sent| Ipv6Addr::error(sent, &fragments[0])).collect::<Vec<_>>(),
            [(1, 4, 0)]
        );
    }
    assert_eq!((world.drops(IpNoProto), world.ctx.stats().merged.get()), (2, 2));
    // One that had such a header for nothing (RFC 6946), behind another, and padded.
    let whole = udp(0, CLIENT, OWN[0], 64, 20);
    let (header, payload) = whole.split_at(ETH_LEN + 40);
    let single = fragment(header, 0, 3, payload);
    let sent = world.one(0, [&single[..], &[0xee; 9]].concat());
    assert_eq!(Ipv6Addr::error(&sent[0], &single), (1, 4, 0));
    let mut behind = single.clone();
    behind.splice(ETH_LEN + 40..ETH_LEN + 40, [next::FRAGMENT, 0, 1, 4, 0, 0, 0, 0]);
    (behind[ETH_LEN + 5], behind[ETH_LEN + 6]) = (behind[ETH_LEN + 5] + 8, next::DESTINATION);
    world.refused(behind.clone(), IpNoProto, Some((1, 4, 0)));
    // What is not served was announced by the Fragment header, and options behind it are where they
    // were.
    let sctp = |frame: &[u8], at: usize| {
        let mut frame = frame.to_vec();
        frame[ETH_LEN + at] = 132;
        frame
    };
    world.refused(sctp(&single, 40), IpNoProto, Some((4, 1, 40)));
    world.refused(sctp(&behind, 48), IpNoProto, Some((4, 1, 48)));
    let mut options = header.to_vec();
    options[ETH_LEN + 6] = next::DESTINATION;
    let report = [&[next::UDP, 0, 1, 0, 0xbe, 0, 1, 0][..], payload].concat();
    world.refused(fragment(&options, 0, 4, &report), Ipv6BadExthdr, Some((4, 2, 52)));
    let late = [&[132, 0, 1, 4, 0, 0, 0, 0][..], payload].concat();
    world.refused(fragment(&options, 0, 4, &late), IpNoProto, Some((4, 1, 48)));
}

/// The reply's traffic class is the request's, in fragments, too.
#[test]
fn an_echo_in_fragments_keeps_its_traffic_class() {
    let mut world = World::acquainted();
    let mut fragments = cut(&ping(CLIENT, OWN[0], 2000), 1);
    for frame in &mut fragments {
        Ipv6Header::new_mut(&mut frame[ETH_LEN..]).unwrap().set_traffic_class(0xb8);
    }
    let sent = world.input(0, &fragments);
    assert_eq!(sent.len(), 2);
    let class = |frame: &[u8]| Ipv6Header::new(&frame[ETH_LEN..]).unwrap().traffic_class();
    assert!(sent.iter().all(|(_, frame)| class(frame) == 0xb8));
}

/// RFC 6980.
#[test]
fn neighbour_discovery_comes_in_one_piece() {
    let mut world = World::new();
    let whole = solicitation(0, CLIENT, Some(CLIENT_MAC), OWN[0]);
    let (header, payload) = whole.split_at(ETH_LEN + 40);
    world.refused(fragment(header, 0, 1, payload), DropReason::Ipv6NdiscFrag, None);
    assert_eq!(
        world.input(0, &[fragment(header, 1, 2, &payload[..16]), fragment(header, 16, 2, &payload[16..])]),
        []
    );
    assert_eq!((world.drops(DropReason::Ipv6NdiscFrag), world.ctx.stats().merged.get()), (2, 1));
    assert_eq!(world.state(CLIENT), NeighState::None);
}

/// A group is asked in fragments as it is in one packet: only routers answer, each from an address of its own.
#[test]
fn an_echo_in_fragments_to_a_group_is_for_routers() {
    for (group, answered) in [(ALL_ROUTERS[0], true), (ALL_NODES, false), ("ff0e::1".parse().unwrap(), false)]
    {
        let mut world = World::acquainted();
        let request = ping(CLIENT, group, 2000);
        let sent = world.input(0, &cut(&request, 1));
        assert_eq!(
            (sent.len(), world.drops(DropReason::IpInvalidDest)),
            if answered { (2, 0) } else { (0, 1) }
        );
        if answered {
            let message = join(&sent);
            assert_eq!((message[0], &message[4..]), (129, &packet(&request)[44..]));
            assert_eq!(Ipv6Addr::sum(next::ICMPV6, OWN[0], CLIENT, &message), 0xffff);
        }
    }
}
