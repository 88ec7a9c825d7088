//! The slow path behind the fast one.

use proptest::prelude::*;

use super::*;
use crate::ip::checksum;
use crate::ip::neigh::NeighState;
use crate::ip::v4::arp::{ArpPacket, BROADCAST, Operation};
use crate::skb::BATCH;

#[path = "v4_frag.rs"]
mod frags;
#[path = "v4_option.rs"]
mod options;
#[path = "v4_router.rs"]
mod router;
#[path = "v4_wire.rs"]
mod wire;

use super::world::*;

#[test]
fn an_arp_request_is_answered_and_its_sender_remembered() {
    let mut world = World::new();
    let sent = world.one(0, request(0, CLIENT, CLIENT_MAC));
    assert_eq!(sent.len(), 1);
    let (dev, to, answer) = heard(&sent[0]);
    assert_eq!((dev, to, answer.operation), (0, CLIENT_MAC, Operation::Reply));
    assert_eq!((answer.sender_ip, answer.sender_mac), (OWN[0], MACS[0]));
    assert_eq!((answer.target_ip, answer.target_mac), (CLIENT, CLIENT_MAC));
    assert_eq!(world.state(CLIENT), NeighState::Stale);
    // Known, so nothing waits; used while stale, so it is asked after a while, by unicast.
    let to_client = udp(1, SERVER, CLIENT, 64, 10);
    for _ in 0..2 {
        let sent = world.one(1, to_client.clone());
        assert_eq!(sent.len(), 1);
        assert_forwarded(&sent[0], &to_client, 0, CLIENT_MAC);
        assert_eq!(world.state(CLIENT), NeighState::Delay);
    }
    let sent = world.pass(5 * SECOND);
    assert_eq!(sent.len(), 1);
    let (dev, to, question) = heard(&sent[0]);
    assert_eq!(
        (dev, to, question.operation, question.target_ip),
        (0, CLIENT_MAC, Operation::Request, CLIENT)
    );
    world.one(0, reply(0, CLIENT, CLIENT_MAC));
    assert_eq!(world.state(CLIENT), NeighState::Reachable);
}

#[test]
fn arp_that_is_none_of_our_business() {
    let mut world = World::new();
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    let refused = [
        // For others, from off the link, from nobody; and one that claims to be us.
        (arp(BROADCAST, ArpPacket::request(CLIENT_MAC, stranger, CLIENT)), DropReason::ArpIgnored),
        (arp(BROADCAST, ArpPacket::probe(CLIENT_MAC, CLIENT)), DropReason::ArpIgnored),
        (arp(BROADCAST, ArpPacket::announcement(CLIENT_MAC, OWN[1])), DropReason::ArpIgnored),
        (set(request(0, CLIENT, CLIENT_MAC), 14, &[9]), DropReason::ArpMalformed),
        (request(0, CLIENT, CLIENT_MAC)[..30].to_vec(), DropReason::ArpMalformed),
        (set(request(0, CLIENT, CLIENT_MAC), 0, &SERVER_MAC), DropReason::OtherHost),
    ];
    for (frame, reason) in refused {
        world.refused(frame, reason, None);
    }
    // A probe for our address must be told that it is taken, and teaches nothing.
    let sent = world.one(0, arp(BROADCAST, ArpPacket::probe(CLIENT_MAC, OWN[0])));
    assert_eq!(heard(&sent[0]).2.sender_ip, OWN[0]);
    // Neither does a request between others.
    assert!(world.one(0, arp(BROADCAST, ArpPacket::request(CLIENT_MAC, CLIENT, SERVER))).is_empty());
    assert_eq!(world.slow.neighbours().entries().len(), 0);
}

#[test]
fn packets_wait_for_the_neighbour_and_leave_in_order() {
    for (dst, neighbour) in [(SERVER, SERVER), (FAR, GATEWAY), (STRANGER, STRANGER)] {
        let mut world = World::new();
        let packets: Vec<_> = (0..5).map(|i| udp(0, CLIENT, dst, 64 - i, 20 + usize::from(i))).collect();
        let sent = world.input(0, &packets[..2]);
        assert_eq!(sent.len(), 1, "one question for all");
        let (dev, to, question) = heard(&sent[0]);
        assert_eq!((dev, to), (1, BROADCAST));
        assert_eq!(question, ArpPacket::request(MACS[1], OWN[1], neighbour));
        assert!(world.input(0, &packets[2..4]).is_empty());
        assert_eq!(world.held(), 4);
        let sent = world.one(1, reply(1, neighbour, SERVER_MAC));
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
fn a_queue_that_is_full_drops_the_oldest() {
    let mut world = World::new();
    let packets: Vec<_> = (0..110).map(|i| udp(0, CLIENT, SERVER, 64, i)).collect();
    for some in packets.chunks(BATCH) {
        world.input(0, some);
    }
    let qlen = NeighParams::default().unres_qlen;
    assert_eq!((world.held(), world.drops(DropReason::NeighQueueFull)), (qlen as u64, 110 - qlen as u64));
    let sent = world.one(1, reply(1, SERVER, SERVER_MAC));
    assert_eq!(sent.len(), qlen);
    for (sent, original) in sent.iter().zip(&packets[110 - qlen..]) {
        assert_forwarded(sent, original, 1, SERVER_MAC);
    }
}

#[test]
fn a_neighbour_that_does_not_answer_is_unreachable() {
    let mut world = World::acquainted();
    let nobody = Ipv4Addr::new(10, 1, 0, 77);
    let packets = [udp(0, CLIENT, nobody, 64, 1), udp(0, CLIENT, nobody, 2, 500)];
    assert_eq!(world.one(0, packets[0].clone()).len(), 1);
    assert!(world.one(0, packets[1].clone()).is_empty());
    // It is asked three times, a second apart.
    let asked = world.pass(3 * SECOND - 1);
    assert_eq!(asked.iter().map(|s| heard(s).2.target_ip).collect::<Vec<_>>(), [nobody; 2]);
    let sent = world.pass(1);
    assert_eq!(sent.len(), 2);
    for (sent, original) in sent.iter().zip(&packets) {
        // The quote shows the packet as it was to leave.
        let left = mend(set(original.clone(), ETH_LEN + 8, &[original[ETH_LEN + 8] - 1]));
        assert_eq!(error(sent, &left), (3, 1, 0));
    }
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (2, 0));
    // For a second more packets fail at once, then it is asked again.
    let sent = world.one(0, packets[0].clone());
    assert_eq!((sent.len(), sent[0].1[ETH_LEN + 20], world.drops(DropReason::NeighFailed)), (1, 3, 3));
    world.pass(SECOND);
    let sent = world.one(0, packets[0].clone());
    assert_eq!((heard(&sent[0]).2.target_ip, world.held()), (nobody, 1));
}

/// The error's own way may be unknown too: it waits like any packet, and if it fails, nobody hears of it.
#[test]
fn an_error_to_an_unknown_host_waits_and_fails_in_silence() {
    let mut world = World::new();
    let frame = udp(0, CLIENT, SERVER, 1, 10);
    let sent = world.one(0, frame.clone());
    assert_eq!((heard(&sent[0]).2.target_ip, world.held()), (CLIENT, 1));
    assert_eq!(world.drops(DropReason::IpTtl), 1);
    let sent = world.one(0, reply(0, CLIENT, CLIENT_MAC));
    assert_eq!(error(&sent[0], &frame), (11, 0, 0));

    let mut world = World::new();
    world.one(0, frame);
    let sent = world.pass(10 * SECOND);
    assert!(sent.iter().all(|s| s.1[12..14] == [8, 6]), "{sent:?}");
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (1, 0));
}

#[test]
fn errors_about_what_cannot_go_on() {
    let mut world = World::acquainted();
    let big = |dont_fragment: bool| {
        let frame = udp(0, CLIENT, FAR, 64, 573);
        mend(set(frame, ETH_LEN + 6, &[u8::from(dont_fragment) << 6]))
    };
    let nowhere = Ipv4Addr::new(172, 16, 0, 1);
    world.refused(udp(0, CLIENT, SERVER, 1, 10), DropReason::IpTtl, Some((11, 0, 0)));
    world.refused(udp(0, CLIENT, FAR, 0, 10), DropReason::IpTtl, Some((11, 0, 0)));
    world.refused(udp(0, CLIENT, nowhere, 64, 10), DropReason::IpNoRoute, Some((3, 0, 0)));
    world.refused(udp(0, CLIENT, nowhere, 1, 10), DropReason::IpNoRoute, Some((3, 0, 0)));
    world.refused(big(true), DropReason::PktTooBig, Some((3, 4, MTUS[1])));
    world.refused(udp(0, CLIENT, Ipv4Addr::new(10, 66, 1, 1), 64, 10), DropReason::IpBlackhole, None);
    world.refused(
        udp(0, CLIENT, Ipv4Addr::new(10, 67, 1, 1), 64, 10),
        DropReason::IpNoRoute,
        Some((3, 1, 0)),
    );
    // One byte less fits.
    let fits = udp(0, CLIENT, FAR, 64, 572);
    assert_forwarded(&world.one(0, fits.clone())[0], &fits, 1, SERVER_MAC);
    // No error about an ICMP error, nor about any fragment but the first.
    let unreachable = ip(0, CLIENT, SERVER, 1, protocol::ICMP, &[3, 1, 0, 0, 0, 0, 0, 0]);
    world.refused(unreachable, DropReason::IpTtl, None);
    let second = mend(set(udp(0, CLIENT, SERVER, 1, 10), ETH_LEN + 7, &[9]));
    world.refused(second, DropReason::IpTtl, None);
    let first = mend(set(udp(0, CLIENT, SERVER, 1, 10), ETH_LEN + 6, &[0x20]));
    world.refused(first, DropReason::IpTtl, Some((11, 0, 0)));
}

#[test]
fn packets_to_softnet_itself() {
    let mut world = World::acquainted();
    world.refused(udp(0, CLIENT, OWN[0], 1, 10), DropReason::IpNoProto, Some((3, 3, 0)));
    world.refused(udp(0, CLIENT, OWN[1], 64, 10), DropReason::IpNoProto, Some((3, 3, 0)));
    let sctp = ip(0, CLIENT, OWN[0], 64, 132, &[0; 20]);
    world.refused(sctp, DropReason::IpNoProto, Some((3, 2, 0)));
    world.refused(echo(OWN[0], 64, 0), DropReason::IcmpIgnored, None);
    world.refused(set(echo(OWN[0], 64, 8), ETH_LEN + 30, b"X"), DropReason::IcmpCsum, None);
    world.refused(ip(0, CLIENT, OWN[0], 64, protocol::ICMP, &[8, 0]), DropReason::IcmpMalformed, None);
}

/// An ICMP message from the client that says of a datagram that we sent it that it was not delivered.
fn unreachable(code: u8, sent: &[u8]) -> Vec<u8> {
    let mut message = [&[3, code, 0, 0, 0, 0, 0, 0][..], &sent[ETH_LEN..][..28]].concat();
    let check = checksum::checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ip(0, CLIENT, OWN[0], 64, protocol::ICMP, &message)
}

#[test]
fn errors_about_what_sockets_sent_are_theirs() {
    use crate::sock::key::mapped;
    let mut world = World::acquainted();
    let sent = udp(0, OWN[0], CLIENT, 64, 10);
    let flow = Flow { local: mapped(OWN[0].into()), remote: mapped(CLIENT.into()), lport: 0x1234, rport: 7 };
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

#[test]
fn a_socket_learns_that_the_neighbour_of_what_it_sent_does_not_answer() {
    let mut world = World::new();
    let mut out = Effects::default();
    let view = RouteSnapshot { now: 0, tables: &world.tables, ifaces: &world.ifaces };
    let mut skb = world.ctx.alloc_skb().unwrap();
    let frame = udp(1, OWN[1], SERVER, 64, 10);
    skb.put(frame.len()).unwrap().copy_from_slice(&frame);
    world.ctx.originate();
    world.slow.send(&mut world.ctx, view, skb, &mut out);
    assert_eq!(world.carry_out(out).len(), 1, "a question");
    world.pass(10 * SECOND);
    let [(flow, SocketError::HostUnreachable)] = world.errors[..] else { panic!("{:?}", world.errors) };
    assert_eq!((flow.lport, flow.rport), (0x1234, 7));
}

#[test]
fn echo_is_answered_also_through_a_stale_neighbour() {
    let mut world = World::new();
    world.one(0, request(0, CLIENT, CLIENT_MAC));
    for (own, ttl) in [(OWN[0], 1), (OWN[1], 64)] {
        let question = echo(own, ttl, ECHO_REQUEST);
        let sent = world.one(0, question.clone());
        assert_eq!(sent.len(), 1);
        let (dev, frame) = &sent[0];
        assert_eq!((*dev, &frame[..12]), (0, &[CLIENT_MAC, MACS[0]].concat()[..]));
        let header = Ipv4Header::new(&frame[ETH_LEN..]).unwrap();
        assert_eq!((header.src(), header.dst(), header.ttl()), (own.into(), CLIENT.into(), 64));
        assert!(validate(&frame[ETH_LEN..]).is_ok());
        assert_eq!(checksum::sum(&frame[ETH_LEN + 20..]), 0xffff);
        assert_eq!((frame[ETH_LEN + 20], &frame[ETH_LEN + 24..]), (0, &question[ETH_LEN + 24..]));
        assert_eq!(world.state(CLIENT), NeighState::Delay);
    }
    let stats = world.ctx.stats();
    // Two echoes and an ARP request came here, and were answered.
    assert_eq!((stats.delivered.get(), stats.originated.get(), stats.dropped()), (3, 3, 0));
}

#[test]
fn broadcasts_and_groups_are_neither_forwarded_nor_answered() {
    let mut world = World::acquainted();
    let in_frame = |to: MacAddr, dst: [u8; 4], ttl: u8| set(udp(0, CLIENT, dst.into(), ttl, 10), 0, &to);
    let group = [1, 0, 0x5e, 0, 0, 1];
    for (to, dst) in [
        (BROADCAST, [255, 255, 255, 255]),
        (BROADCAST, [10, 0, 0, 255]),
        (BROADCAST, OWN[0].octets()),
        (BROADCAST, SERVER.octets()),
        (group, [224, 0, 0, 1]),
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
fn nobody_else_speaks_for_us() {
    let mut world = World::acquainted();
    let everybody = [10, 1, 0, 255].into();
    let group = |src, dst: [u8; 4], mac: MacAddr| set(udp(0, src, dst.into(), 9, 10), 0, &mac);
    for src in [OWN[0], OWN[1], everybody] {
        let message = &echo(OWN[0], 64, ECHO_REQUEST)[ETH_LEN + 20..];
        let fragment = mend(set(udp(0, src, OWN[0], 64, 8), ETH_LEN + 6, &[0x20, 0]));
        for frame in [
            udp(0, src, OWN[0], 64, 10),
            ip(0, src, OWN[0], 64, protocol::ICMP, message),
            fragment,
            group(src, [10, 0, 0, 255], BROADCAST),
            group(src, [255; 4], BROADCAST),
            group(src, [239, 1, 2, 3], [1, 0, 0x5e, 1, 2, 3]),
        ] {
            world.refused(frame, DropReason::IpInvalidSource, None);
        }
    }
    assert_eq!(world.one(0, echo(OWN[0], 64, ECHO_REQUEST)).len(), 1);
    let sent = world.one(0, arp(BROADCAST, ArpPacket::probe(CLIENT_MAC, OWN[0])));
    assert_eq!(heard(&sent[0]).2.sender_ip, OWN[0]);
}

#[test]
fn a_device_that_is_gone_holds_nothing() {
    let mut world = World::new();
    world.input(0, &vec![udp(0, CLIENT, SERVER, 64, 10); 3]);
    assert_eq!(world.held(), 3);
    world.vanish(1);
    assert_eq!((world.held(), world.drops(DropReason::NeighDead)), (0, 3));
    world.refused(udp(0, CLIENT, SERVER, 64, 10), DropReason::DevReady, None);
    world.refused(udp(0, CLIENT, FAR, 64, 10), DropReason::DevReady, None);
    assert!(world.one(1, reply(1, SERVER, SERVER_MAC)).is_empty());
    assert_eq!(world.slow.next_deadline(), None);
    // Back again, it starts from nothing.
    world.ifaces[1] = Some(iface(1));
    assert_eq!(world.one(0, udp(0, CLIENT, SERVER, 64, 10)).len(), 1);
    assert_eq!(world.held(), 1);
}

#[test]
fn without_memory_questions_are_lost_but_counted() {
    let mut world = World::with_frames(1);
    assert!(world.one(0, udp(0, CLIENT, SERVER, 64, 10)).is_empty());
    assert_eq!((world.held(), world.drops(DropReason::NoFrame)), (1, 1));
    // Nobody was asked, so nobody answers.
    assert!(world.pass(2 * SECOND).is_empty());
    world.pass(SECOND);
    assert_eq!(
        (world.held(), world.drops(DropReason::NoFrame), world.drops(DropReason::NeighFailed)),
        (0, 3, 1)
    );
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

fn any_ip() -> impl Strategy<Value = Ipv4Addr> {
    let known = [CLIENT, SERVER, GATEWAY, FAR, OWN[0], OWN[1], Ipv4Addr::new(10, 1, 0, 255)];
    prop_oneof![
        5 => proptest::sample::select(known.to_vec()),
        2 => (0u8..12, 0u8..4).prop_map(|(a, b)| Ipv4Addr::new(10, a % 2, 0, b)),
        1 => any::<u32>().prop_map(Ipv4Addr::from),
    ]
}

/// A frame for device `dev`: mostly sensible, sometimes with a few bytes changed, sometimes noise.
fn any_frame(dev: u16) -> impl Strategy<Value = Vec<u8>> {
    let mac = prop_oneof![Just(CLIENT_MAC), Just(SERVER_MAC)];
    let options = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(131), any::<u8>()], 0..12);
    let sensible = prop_oneof![
        4 => (any_ip(), any_ip(), 0u8..4, 0usize..900).prop_map(move |(s, d, t, n)| udp(dev, s, d, t * 20 + 1, n)),
        2 => (any_ip(), prop_oneof![Just(8u8), any::<u8>()]).prop_map(|(d, kind)| echo(d, 3, kind)),
        2 => (any_ip(), options).prop_map(|(d, options)| with_options(d, 2, &options)),
        // Fragments of few datagrams, so that some become whole, and some overlap.
        4 => (any_ip(), 0u16..4, any::<bool>(), 1usize..3, any::<bool>()).prop_map(|(dst, at, more, n, udp)| {
            let kind = if udp { protocol::UDP } else { protocol::ICMP };
            let word = u16::from(more) << 13 | at;
            mend(set(ip(0, CLIENT, dst, 9, kind, &vec![8; n * 8]), ETH_LEN + 6, &word.to_be_bytes()))
        }),
        2 => (any_ip(), mac.clone()).prop_map(move |(ip, mac)| reply(dev, ip, mac)),
        1 => (any_ip(), mac.clone()).prop_map(move |(ip, mac)| request(dev, ip, mac)),
        1 => (any_ip(), any_ip(), mac).prop_map(|(a, b, mac)| arp(BROADCAST, ArpPacket::request(mac, a, b))),
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
