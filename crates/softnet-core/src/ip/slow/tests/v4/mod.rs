//! What is IPv4's alone.

pub(super) mod frags;
mod options;
mod router;
mod wire;

use std::net::Ipv4Addr;

use super::super::world::v4::*;
use super::*;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v4::header::{Ipv4Header, protocol, validate};
use crate::ip::{ETH_LEN, MacAddr, checksum};
use crate::skb::DropReason;
use crate::sock::{Flow, SocketError};

type World = super::World<Ipv4Addr>;

#[test]
fn arp_that_is_none_of_our_business() {
    let mut world = World::new();
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    let refused = [
        // For others, from off the link, without a sender; and one that claims to be us.
        (arp(BROADCAST, ArpPacket::request(CLIENT_MAC, stranger, CLIENT)), DropReason::ArpIgnored),
        (arp(BROADCAST, ArpPacket::probe(CLIENT_MAC, CLIENT)), DropReason::ArpIgnored),
        (arp(BROADCAST, ArpPacket::announcement(CLIENT_MAC, OWN[1])), DropReason::ArpIgnored),
        (set(Ipv4Addr::question(0, CLIENT, CLIENT_MAC), 14, &[9]), DropReason::ArpMalformed),
        (Ipv4Addr::question(0, CLIENT, CLIENT_MAC)[..30].to_vec(), DropReason::ArpMalformed),
        (set(Ipv4Addr::question(0, CLIENT, CLIENT_MAC), 0, &SERVER_MAC), DropReason::OtherHost),
    ];
    for (frame, reason) in refused {
        world.refused(frame, reason, None);
    }
    // A probe for our address must be told that it is taken, and teaches nothing.
    let sent = world.one(0, arp(BROADCAST, ArpPacket::probe(CLIENT_MAC, OWN[0])));
    assert_eq!(heard(&sent[0]).2.sender_ip, OWN[0]);
    // Neither does a request between others.
    assert!(world.one(0, arp(BROADCAST, ArpPacket::request(CLIENT_MAC, CLIENT, SERVER))).is_empty());
    assert_eq!(world.control.slow.neighbours().entries().len(), 0);
}

#[test]
fn no_error_is_about_an_icmp_error_or_a_later_fragment() {
    let mut world = World::acquainted();
    let unreachable = Ipv4Addr::ip(0, CLIENT, SERVER, 1, protocol::ICMP, &[3, 1, 0, 0, 0, 0, 0, 0]);
    world.refused(unreachable, DropReason::IpTtl, None);
    let second = mend(set(udp(0, CLIENT, SERVER, 1, 10), ETH_LEN + 7, &[9]));
    world.refused(second, DropReason::IpTtl, None);
    let first = mend(set(udp(0, CLIENT, SERVER, 1, 10), ETH_LEN + 6, &[0x20]));
    world.refused(first, DropReason::IpTtl, Some((11, 0, 0)));
}

/// An ICMP message from the client that says of a datagram that we sent it that it was not delivered.
fn unreachable(code: u8, sent: &[u8]) -> Vec<u8> {
    let mut message = [&[3, code, 0, 0, 0, 0, 0, 0][..], &sent[ETH_LEN..][..28]].concat();
    let check = checksum::checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    Ipv4Addr::ip(0, CLIENT, OWN[0], 64, protocol::ICMP, &message)
}

#[test]
fn errors_about_what_sockets_sent_are_theirs() {
    use crate::sock::key::mapped;
    let mut world = World::acquainted();
    let sent = udp(0, OWN[0], CLIENT, 64, 10);
    let flow = Flow {
        local: mapped(OWN[0].into()),
        remote: mapped(CLIENT.into()),
        lport: 0x1234,
        rport: 7,
        protocol: 17,
    };
    let delivered = world.ctx.stats().delivered.get();
    for (code, error) in [
        (0, SocketError::NetUnreachable),
        (1, SocketError::HostUnreachable),
        (3, SocketError::ConnectionRefused),
        (13, SocketError::HostUnreachable),
    ] {
        assert_eq!(world.one(0, unreachable(code, &sent)), []);
        assert_eq!(std::mem::take(&mut world.errors), [(flow, error)]);
    }
    assert_eq!(world.ctx.stats().delivered.get(), delivered + 4);
    // Of another protocol, a later fragment, a broken sum.
    let of_tcp = unreachable(3, &set(sent.clone(), ETH_LEN + 9, &[6]));
    let of_fragment = unreachable(3, &set(sent.clone(), ETH_LEN + 7, &[1]));
    for other in [of_tcp, of_fragment, set(unreachable(3, &sent), ETH_LEN + 22, &[9, 9])] {
        world.one(0, other);
        assert_eq!(world.errors, []);
    }
}

/// Nothing is sent to no address or to no port. As a key, such a flow is that of a socket that is not connected, which any
/// host could leave errors with.
#[test]
fn errors_about_what_no_socket_can_have_sent_are_no_sockets() {
    let mut world = World::acquainted();
    let sent = udp(0, OWN[0], CLIENT, 64, 10);
    let to_no_address = set(sent.clone(), ETH_LEN + 16, &[0; 4]);
    let to_no_port = set(sent, ETH_LEN + 22, &[0; 2]);
    let to_neither = set(to_no_address.clone(), ETH_LEN + 22, &[0; 2]);
    for quoted in [to_no_address, to_no_port, to_neither] {
        for code in [3, 4] {
            assert_eq!(world.one(0, unreachable(code, &quoted)), []);
            assert_eq!((&world.errors[..], world.control.slow.pmtu().len()), (&[][..], 0));
        }
    }
    assert_eq!(world.drops(DropReason::IcmpIgnored), 6);
}

#[test]
fn broadcasts_and_groups_are_neither_forwarded_nor_answered() {
    let mut world = World::acquainted();
    let in_frame = |to: MacAddr, dst: [u8; 4], ttl: u8| set(udp(0, CLIENT, dst.into(), ttl, 10), 0, &to);
    let group = [1, 0, 0x5e, 0, 0, 1];
    // Sockets may listen to these, for datagrams.
    for (to, dst) in
        [(BROADCAST, [255, 255, 255, 255]), (BROADCAST, [10, 0, 0, 255]), (group, [224, 0, 0, 1])]
    {
        for ttl in [1, 64] {
            world.refused(in_frame(to, dst, ttl), DropReason::IpNoProto, None);
        }
    }
    for (to, dst) in [
        (BROADCAST, OWN[0].octets()),
        (BROADCAST, SERVER.octets()),
        (group, SERVER.octets()),
        (MACS[0], [10, 0, 0, 255]),
        (MACS[0], [10, 1, 0, 255]),
        (MACS[0], [10, 1, 0, 0]),
        (MACS[0], [224, 0, 0, 1]),
        (MACS[0], [127, 0, 0, 1]),
    ] {
        for ttl in [1, 64] {
            world.refused(in_frame(to, dst, ttl), DropReason::IpInvalidDest, None);
        }
    }
    let martian = mend(set(in_frame(BROADCAST, [10, 0, 0, 255], 9), ETH_LEN + 12, &[127]));
    world.refused(martian, DropReason::IpInvalidSource, None);
    let broken = set(in_frame(BROADCAST, [10, 0, 0, 255], 9), ETH_LEN + 10, &[1, 2]);
    world.refused(broken, DropReason::IpCsum, None);
    // An error to a broadcast address would reach many.
    world.refused(udp(0, Ipv4Addr::new(10, 0, 0, 255), SERVER, 1, 10), DropReason::IpTtl, None);
}

/// What comes from outside is not from here, nor from all on a link, whichever of our addresses or groups it is for; probes for
/// our addresses are answered all the same.
#[test]
fn no_other_host_speaks_for_us() {
    let mut world = World::acquainted();
    let subnet_broadcast = [10, 1, 0, 255].into();
    let group = |src, dst: [u8; 4], mac: MacAddr| set(udp(0, src, dst.into(), 9, 10), 0, &mac);
    for src in [OWN[0], OWN[1], subnet_broadcast] {
        let message = &echo(OWN[0], 64)[ETH_LEN + 20..];
        let fragment = mend(set(udp(0, src, OWN[0], 64, 8), ETH_LEN + 6, &[0x20, 0]));
        for frame in [
            udp(0, src, OWN[0], 64, 10),
            Ipv4Addr::ip(0, src, OWN[0], 64, protocol::ICMP, message),
            fragment,
            group(src, [10, 0, 0, 255], BROADCAST),
            group(src, [255; 4], BROADCAST),
            group(src, [239, 1, 2, 3], [1, 0, 0x5e, 1, 2, 3]),
        ] {
            world.refused(frame, DropReason::IpInvalidSource, None);
        }
    }
    assert_eq!(world.one(0, echo(OWN[0], 64)).len(), 1);
    let sent = world.one(0, arp(BROADCAST, ArpPacket::probe(CLIENT_MAC, OWN[0])));
    assert_eq!(heard(&sent[0]).2.sender_ip, OWN[0]);
}
