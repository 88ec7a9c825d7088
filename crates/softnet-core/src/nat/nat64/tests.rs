//! Hosts of IPv6 on the client's link, hosts of IPv4 on the server's: packets in, packets out, all sums
//! computed afresh.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;

use crate::conntrack::{Conntrack, Timeouts};
use crate::filter::{Action, Chain, Filter, FlowState, Rule, Rules};
use crate::fold::FoldKey;
use crate::gro::{GroMode, GroParams};
use crate::ip::slow::world::v4::mend;
use crate::ip::slow::world::{SECOND, SERVER_MAC, Sent, TestFamily, World, packet, set};
use crate::ip::v4::header::{protocol, validate, validate_part};
use crate::ip::v6::header::next;
use crate::ip::{ETH_LEN, Family, LongestMatch, checksum};
use crate::nat::{Filtering, Nat, NatRules, NatState, SourceNat, seconds};
use crate::skb::DropReason;

const CLIENT: Ipv6Addr = Ipv6Addr::CLIENT;
const SERVER: Ipv4Addr = Ipv4Addr::SERVER;
const FAR: Ipv4Addr = Ipv4Addr::FAR;
const OUTSIDE: Ipv4Addr = Ipv4Addr::OWN[1];
const ACK: u8 = 16;

/// Router of both families, whose hosts of IPv6 reach those of IPv4.
pub(in crate::nat) fn router() -> World<Ipv6Addr> {
    Router::new().world
}

/// `addr` under the prefix.
pub(in crate::nat) fn under(addr: Ipv4Addr) -> Ipv6Addr {
    let [a, b] = [0, 16].map(|shift| (addr.to_bits() >> shift) as u16);
    Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, b, a)
}

fn nat_rules() -> NatRules {
    NatRules {
        source: vec![SourceNat::new(1, vec![OUTSIDE])],
        pool6: Some("2001:db8:64::/96".parse().unwrap()),
        ..NatRules::default()
    }
}

struct Router {
    world: World<Ipv6Addr>,
    state: Arc<NatState>,
}

impl Router {
    /// Both families on both links, and the server's neighbours known.
    fn new() -> Router {
        let mut world: World<Ipv6Addr> = World::acquainted();
        let routes = Ipv4Addr::routes();
        let routing = Ipv4Addr::routing_mut(&mut world.tables);
        routing.next_hops.extend(routes.iter().map(|(_, hop)| *hop));
        let fib: Vec<_> = routes.iter().zip(1..).map(|((p, _), i)| (p.parse().unwrap(), i)).collect();
        routing.fib = Arc::new(<Ipv4Addr as Family>::Fib::build_in(&fib, &crate::memory::Heap).unwrap());
        for dev in 0..2 {
            let addresses = Ipv4Addr::iface(dev).addresses;
            world.reconfigure(dev, |iface| (iface.addresses, iface.mtu) = (addresses, 1500));
        }
        let conntrack =
            Conntrack::new(1 << 10, FoldKey::new([5, 6]), &Timeouts::default(), &crate::memory::Heap);
        let conntrack = Arc::new(conntrack.with_ipv6());
        let state = Arc::new(NatState::on(conntrack, [1, 2, 3, 4], &crate::memory::Heap));
        world.tracked = true;
        let mut router = Router { world, state };
        router.configure(&nat_rules());
        for (to, neighbour) in [(SERVER, SERVER), (FAR, Ipv4Addr::GATEWAY)] {
            assert!(
                router.world.one(0, udp(CLIENT, 5000, to, 53)).iter().all(|(_, f)| Ipv4Addr::is_question(f))
            );
            assert_eq!(router.world.one(1, Ipv4Addr::answer(1, neighbour, SERVER_MAC)).len(), 1);
        }
        router
    }

    fn configure(&mut self, rules: &NatRules) {
        let nat = Arc::new(Nat::new(self.state.clone(), rules).unwrap());
        nat.clone().install(&mut self.world.tables);
        nat.end_others(seconds(self.world.now));
    }

    /// The one packet that comes of `frame`, by the device that it leaves by.
    fn one(&mut self, dev: u16, frame: Vec<u8>) -> (u16, Vec<u8>) {
        let mut sent = self.world.one(dev, frame);
        assert_eq!(sent.len(), 1, "{sent:x?}");
        let (dev, frame) = sent.remove(0);
        (dev, packet(&frame).to_vec())
    }

    /// What a packet of the client is as IPv4.
    fn out(&mut self, frame: Vec<u8>) -> Said {
        let (dev, packet) = self.one(0, frame);
        assert_eq!((dev, packet[0] >> 4), (1, 4));
        said4(&packet)
    }

    /// What a packet of the server is as IPv6.
    fn back(&mut self, frame: Vec<u8>) -> Said {
        let (dev, packet) = self.one(1, frame);
        assert_eq!((dev, packet[0] >> 4), (0, 6));
        said6(&packet)
    }

    fn dropped(&mut self, dev: u16, frame: Vec<u8>, reason: DropReason) {
        let before = self.world.drops(reason);
        assert_eq!(
            (self.world.one(dev, frame).len(), self.world.drops(reason)),
            (0, before + 1),
            "{reason:?}"
        );
    }
}

/// What a packet says: protocol as IPv4 has it, addresses, ports (of ICMP the identifier), payload, and
/// time to live.
#[derive(Debug, PartialEq)]
struct Said {
    protocol: u8,
    src: (std::net::IpAddr, u16),
    dst: (std::net::IpAddr, u16),
    payload: Vec<u8>,
    ttl: u8,
}

fn said4(packet: &[u8]) -> Said {
    let lengths = validate(packet).expect("a sound header");
    let (src, dst) = Ipv4Addr::ends(packet).unwrap();
    let (number, l4) = (packet[9], &packet[20..lengths.total]);
    assert_eq!(Ipv4Addr::sum(number, src, dst, l4), 0xffff, "{packet:x?}");
    let (sport, dport, at) = ports(number, l4, l4[0] == 8);
    Said {
        protocol: number,
        src: (src.into(), sport),
        dst: (dst.into(), dport),
        payload: l4[at..].to_vec(),
        ttl: packet[8],
    }
}

fn said6(packet: &[u8]) -> Said {
    let header = Ipv6Addr::header(packet);
    let l4 = &packet[40..];
    assert_eq!(Ipv6Addr::sum(header.protocol, header.src, header.dst, l4), 0xffff, "{packet:x?}");
    let number = if header.protocol == next::ICMPV6 { protocol::ICMP } else { header.protocol };
    let (sport, dport, at) = ports(number, l4, l4[0] == 128);
    let (src, dst) = ((header.src.into(), sport), (header.dst.into(), dport));
    Said { protocol: number, src, dst, payload: l4[at..].to_vec(), ttl: header.ttl }
}

fn ports(number: u8, l4: &[u8], question: bool) -> (u16, u16, usize) {
    let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
    match number {
        protocol::UDP => (port(0), port(2), 8),
        protocol::TCP => (port(0), port(2), 20),
        _ if question => (port(4), 0, 8),
        _ => (0, port(4), 8),
    }
}

/// An L4 packet without its checksum, and where that is. `types` are those of an echo request and reply.
fn l4(number: u8, sport: u16, dport: u16, types: [u8; 2], payload: &[u8]) -> (Vec<u8>, usize) {
    let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    let (header, at) = match number {
        protocol::UDP => ([&ports[..], &(8 + payload.len() as u16).to_be_bytes(), &[0, 0]].concat(), 6),
        protocol::TCP => {
            ([&ports[..], &[0, 0, 0, 1, 0, 0, 0, 2, 0x50, ACK, 0x10, 0, 0, 0, 0, 0]].concat(), 16)
        }
        _ => {
            let (kind, id) = if sport != 0 { (types[0], sport) } else { (types[1], dport) };
            let [a, b] = id.to_be_bytes();
            (vec![kind, 0, 0, 0, a, b, 0, 1], 2)
        }
    };
    ([&header, payload].concat(), at)
}

fn frame6(number: u8, src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16), payload: &[u8]) -> Vec<u8> {
    let (mut l4, at) = l4(number, src.1, dst.1, [128, 129], payload);
    let next = if number == protocol::ICMP { next::ICMPV6 } else { number };
    let check = !Ipv6Addr::sum(next, src.0, dst.0, &l4);
    l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
    Ipv6Addr::ip(0, src.0, dst.0, 9, next, &l4)
}

fn frame4(number: u8, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let (mut l4, at) = l4(number, src.1, dst.1, [8, 0], payload);
    let check = !Ipv4Addr::sum(number, src.0, dst.0, &l4);
    l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
    Ipv4Addr::ip(1, src.0, dst.0, 9, number, &l4)
}

fn udp(src: Ipv6Addr, port: u16, dst: Ipv4Addr, to: u16) -> Vec<u8> {
    frame6(protocol::UDP, (src, port), (under(dst), to), b"a datagram")
}

const PROTOCOLS: [u8; 3] = [protocol::UDP, protocol::TCP, protocol::ICMP];

fn service(number: u8) -> u16 {
    if number == protocol::ICMP { 0 } else { 53 }
}

#[test]
fn packets_cross_both_ways() {
    for number in PROTOCOLS {
        let mut router = Router::new();
        let port = service(number);
        let payload: Vec<u8> = (0..99).collect();
        let out = router.out(frame6(number, (CLIENT, 5001), (under(SERVER), port), &payload));
        assert_eq!((out.protocol, out.src.0, out.dst), (number, OUTSIDE.into(), (SERVER.into(), port)));
        assert_eq!((out.ttl, &out.payload), (8, &payload));
        let back = router.back(frame4(number, (SERVER, port), (OUTSIDE, out.src.1), &payload));
        assert_eq!(
            (back.protocol, back.src, back.dst),
            (number, (under(SERVER).into(), port), (CLIENT.into(), 5001))
        );
        assert_eq!((back.ttl, &back.payload), (8, &payload));
        // Another host has another port, and the same one elsewhere (RFC 6146 section 3.5.1: endpoint-independent).
        let again = router.out(frame6(number, (CLIENT, 5001), (under(FAR), port), &payload));
        assert_eq!(again.src, out.src);
        let other = router.out(frame6(number, (Ipv6Addr::host(0, 77), 5001), (under(SERVER), port), b""));
        assert_ne!(other.src, out.src);
    }
}

/// What is told of a connection leads to its host, and its host's time is that of the connection.
#[test]
fn connections_know_their_hosts() {
    let mut router = Router::new();
    router.world.now += 1000 * SECOND;
    (0..20).for_each(|_| _ = router.state.sweep(seconds(router.world.now), 64));
    router.out(udp(CLIENT, 5001, SERVER, 53));
    let shown: Vec<_> = router.state.conntrack().connections(seconds(router.world.now)).collect();
    let (addr, port) = shown[0].tuples[0].src();
    assert_eq!((shown.len(), router.state.host6(addr), port), (1, Some(CLIENT), 5001));
    assert_eq!(router.state.mapping_counts().hosts, 1);
    router.world.now += 1000 * SECOND;
    (0..20).for_each(|_| _ = router.state.sweep(seconds(router.world.now), 64));
    assert_eq!((router.state.mapping_counts().hosts, router.state.mapping_counts().mappings), (0, 0));
}

/// RFC 7915 section 5.1: short packets may be cut on the way, long ones are told about it.
#[test]
fn dont_fragment_is_for_long_packets() {
    let mut router = Router::new();
    for (len, flag) in [(1260 - 28, 0), (1261 - 28, 0x40)] {
        let frame = frame6(protocol::UDP, (CLIENT, 5001), (under(SERVER), 53), &vec![1; len]);
        let (_, packet) = router.one(0, frame);
        assert_eq!((packet[6], packet.len()), (flag, len + 28));
    }
}

fn error4(src: Ipv4Addr, dst: Ipv4Addr, head: [u8; 4], rest: [u8; 4], about: &[u8]) -> Vec<u8> {
    let mut message = [&head[..], &rest, about].concat();
    let check = checksum::checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    Ipv4Addr::ip(1, src, dst, 9, protocol::ICMP, &message)
}

fn error6(src: Ipv6Addr, dst: Ipv6Addr, head: [u8; 4], rest: [u8; 4], about: &[u8]) -> Vec<u8> {
    let mut message = [&head[..], &rest, about].concat();
    let check = !Ipv6Addr::sum(next::ICMPV6, src, dst, &message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    Ipv6Addr::ip(0, src, dst, 9, next::ICMPV6, &message)
}

/// Errors from IPv4 are about what the client sent, whole: from the server, and from a router.
#[test]
fn errors_reach_the_client() {
    for number in PROTOCOLS {
        let mut router = Router::new();
        let port = service(number);
        let (_, sent) = router.one(0, frame6(number, (CLIENT, 5001), (under(SERVER), port), &[7; 40]));
        for (head, rest, expected) in [
            ([3, 3, 0, 0], [0; 4], [1, 4, 0, 0, 0, 0]),
            ([11, 0, 0, 0], [0; 4], [3, 0, 0, 0, 0, 0]),
            ([3, 4, 0, 0], [0, 0, 0x05, 0x14], [2, 0, 0, 0, 0x05, 0x28]),
        ] {
            let from = if head[0] == 11 { FAR } else { SERVER };
            let (dev, packet) = router.one(1, error4(from, OUTSIDE, head, rest, &sent));
            let header = Ipv6Addr::header(&packet);
            assert_eq!(
                (dev, header.src, header.dst, header.protocol),
                (0, under(from), CLIENT, next::ICMPV6)
            );
            assert_eq!(Ipv6Addr::sum(next::ICMPV6, header.src, header.dst, &packet[40..]), 0xffff);
            let [kind, code, _, _, rest @ ..] = packet[40..48].first_chunk::<8>().unwrap();
            assert_eq!([&[*kind, *code], &rest[..]].concat(), expected);
            let about = said6(&packet[48..]);
            assert_eq!((about.src, about.dst), ((CLIENT.into(), 5001), (under(SERVER).into(), port)));
            assert_eq!(about.payload, [7; 40]);
        }
    }
}

/// And those from IPv6 are about what the server sent.
#[test]
fn errors_reach_the_server() {
    for number in PROTOCOLS {
        let mut router = Router::new();
        let port = service(number);
        let outside = router.out(frame6(number, (CLIENT, 5001), (under(SERVER), port), b"")).src.1;
        let (_, came) = router.one(1, frame4(number, (SERVER, port), (OUTSIDE, outside), &[7; 40]));
        for (src, head, rest, expected) in [
            (CLIENT, [1, 4, 0, 0], [0; 4], [3, 3, 0, 0, 0, 0]),
            (Ipv6Addr::host(0, 66), [2, 0, 0, 0], [0, 0, 0x05, 0x14], [3, 4, 0, 0, 0x05, 0]),
        ] {
            let (dev, packet) = router.one(0, error6(src, under(SERVER), head, rest, &came));
            let lengths = validate(&packet).unwrap();
            assert_eq!((dev, Ipv4Addr::ends(&packet).unwrap()), (1, (OUTSIDE, SERVER)));
            assert_eq!(checksum::sum(&packet[20..lengths.total]), 0xffff);
            let [kind, code, _, _, rest @ ..] = packet[20..28].first_chunk::<8>().unwrap();
            assert_eq!([&[*kind, *code], &rest[..]].concat(), expected);
            let about = said4(&packet[28..]);
            assert_eq!((about.src, about.dst), ((SERVER.into(), port), (OUTSIDE.into(), outside)));
            assert_eq!(about.payload, [7; 40]);
        }
    }
}

/// softnet's own errors, about packets that crossed and went no further.
#[test]
fn errors_that_are_made_here_cross_too() {
    let mut router = Router::new();
    // The hop limit ran out.
    let frame = set(udp(CLIENT, 5001, SERVER, 53), ETH_LEN + 7, &[1]);
    let (dev, packet) = router.one(0, frame);
    let header = Ipv6Addr::header(&packet);
    assert_eq!((dev, header.dst, packet[40], packet[41]), (0, CLIENT, 3, 0));
    assert_eq!(Ipv6Addr::sum(next::ICMPV6, header.src, header.dst, &packet[40..]), 0xffff);
    let about = said6(&packet[48..]);
    assert_eq!((about.src, about.dst), ((CLIENT.into(), 5001), (under(SERVER).into(), 53)));
    // Too long for the server's link.
    router.world.reconfigure(1, |iface| iface.mtu = 1400);
    let frame = frame6(protocol::UDP, (CLIENT, 5001), (under(FAR), 53), &[1; 1440]);
    let (dev, packet) = router.one(0, frame);
    assert_eq!((dev, &packet[40..42], &packet[44..48]), (0, &[2, 0][..], &1420u32.to_be_bytes()[..]));
    // And the other way: too long for the client's link, once it is IPv6.
    router.world.reconfigure(1, |iface| iface.mtu = 1500);
    let outside = router.out(udp(CLIENT, 5001, SERVER, 53)).src.1;
    let long =
        |len: usize| Ipv4Addr::whole(frame4(protocol::UDP, (SERVER, 53), (OUTSIDE, outside), &vec![1; len]));
    assert_eq!(router.back(long(1480 - 28)).payload.len(), 1480 - 28);
    let (dev, packet) = router.one(1, long(1481 - 28));
    assert_eq!((dev, Ipv4Addr::ends(&packet).unwrap().1, &packet[20..22]), (1, SERVER, &[3, 4][..]));
    assert_eq!(packet[26..28], 1480u16.to_be_bytes());
    let about = &packet[28..];
    assert_eq!(Ipv4Addr::ends(about), Some((SERVER, OUTSIDE)));
    assert_eq!(about[22..24], outside.to_be_bytes());
}

/// What fragments of IPv6 say together: source, destination, next header, payload.
fn whole6(sent: &Sent) -> (Ipv6Addr, Ipv6Addr, u8, Vec<u8>) {
    let mut pieces: Vec<_> = sent.iter().map(|(_, frame)| packet(frame).to_vec()).collect();
    pieces.sort_by_key(|piece| u16::from_be_bytes([piece[42], piece[43]]));
    let mut payload = Vec::new();
    for (n, piece) in pieces.iter().enumerate() {
        let word = u16::from_be_bytes([piece[42], piece[43]]);
        assert_eq!(
            (piece[6], usize::from(word & !7), word & 1 == 1),
            (next::FRAGMENT, payload.len(), n + 1 < pieces.len())
        );
        assert!(piece.len() <= 1280);
        payload.extend(&piece[48..]);
    }
    let header = Ipv6Addr::header(&pieces[0]);
    (header.src, header.dst, pieces[0][40], payload)
}

/// A datagram that may be cut becomes fragments that fit IPv6's smallest MTU; one that comes in
/// fragments, too, whatever their order (RFC 6146 section 3.4).
#[test]
fn long_datagrams_reach_the_client_in_fragments() {
    let mut router = Router::new();
    let outside = router.out(udp(CLIENT, 5001, SERVER, 53)).src.1;
    let payload: Vec<u8> = (0..2900u16).map(|n| (n % 251) as u8).collect();
    for len in [1400, 2900] {
        let frame = frame4(protocol::UDP, (SERVER, 53), (OUTSIDE, outside), &payload[..len]);
        let (head, body) = frame.split_at(ETH_LEN + 20);
        let mut pieces: Vec<_> = body
            .chunks(1480)
            .enumerate()
            .map(|(n, piece)| {
                let more = if (n + 1) * 1480 < body.len() { 0x2000 } else { 0 };
                let word = (n * 1480 / 8) as u16 | more;
                let frame =
                    set([head, piece].concat(), ETH_LEN + 2, &(20 + piece.len() as u16).to_be_bytes());
                mend(set(frame, ETH_LEN + 6, &word.to_be_bytes()))
            })
            .collect();
        pieces.reverse();
        let sent: Sent = pieces.into_iter().flat_map(|piece| router.world.one(1, piece)).collect();
        assert!(sent.len() >= 2 && sent.iter().all(|(dev, _)| *dev == 0));
        let (src, dst, number, l4) = whole6(&sent);
        assert_eq!((src, dst, number, &l4[8..]), (under(SERVER), CLIENT, next::UDP, &payload[..len]));
        assert_eq!(Ipv6Addr::sum(next::UDP, src, dst, &l4), 0xffff);
    }
}

/// The other way: gathered, translated, and cut as the server's link wants it.
#[test]
fn long_datagrams_reach_the_server_in_fragments() {
    let mut router = Router::new();
    let payload: Vec<u8> = (0..2900u16).map(|n| (n % 251) as u8).collect();
    for number in [protocol::UDP, protocol::ICMP] {
        let frame = frame6(number, (CLIENT, 5001), (under(SERVER), service(number)), &payload);
        let (head, body) = frame.split_at(ETH_LEN + 40);
        let number6 = head[ETH_LEN + 6];
        let mut pieces: Vec<_> = body
            .chunks(1232)
            .enumerate()
            .map(|(n, piece)| {
                let word = (n * 1232) as u16 | u16::from((n + 1) * 1232 < body.len());
                let extension = [&[number6, 0][..], &word.to_be_bytes(), &[0, 0, 0, 9]].concat();
                let head = set(head.to_vec(), ETH_LEN + 4, &(8 + piece.len() as u16).to_be_bytes());
                [&set(head, ETH_LEN + 6, &[next::FRAGMENT])[..], &extension, piece].concat()
            })
            .collect();
        pieces.rotate_left(1);
        let sent: Sent = pieces.into_iter().flat_map(|piece| router.world.one(0, piece)).collect();
        let mut all: Vec<_> = sent.iter().map(|(dev, frame)| (*dev, packet(frame))).collect();
        assert_eq!(all.len(), 2);
        all.sort_by_key(|(_, piece)| u16::from_be_bytes([piece[6], piece[7]]) & 0x1fff);
        let mut l4 = Vec::new();
        for (dev, piece) in &all {
            let lengths = validate_part(piece, piece.len()).unwrap();
            assert_eq!((*dev, Ipv4Addr::ends(piece)), (1, Some((OUTSIDE, SERVER))));
            l4.extend(&piece[lengths.header..lengths.total]);
        }
        assert_eq!((all[0].1[9], &l4[8..]), (number, &payload[..]));
        assert_eq!(Ipv4Addr::sum(number, OUTSIDE, SERVER, &l4), 0xffff);
    }
}

/// RFC 7915 section 4.5.
#[test]
fn udp_without_a_checksum_gets_one() {
    let mut router = Router::new();
    let outside = router.out(udp(CLIENT, 5001, SERVER, 53)).src.1;
    let frame =
        set(frame4(protocol::UDP, (SERVER, 53), (OUTSIDE, outside), b"no sum"), ETH_LEN + 26, &[0, 0]);
    assert_eq!(router.back(frame).payload, b"no sum");
}

/// From one host of IPv6 to another by the address outside (RFC 6146 section 3.5.2's hairpin).
#[test]
fn the_hairpin() {
    let mut router = Router::new();
    let outside = router.out(udp(CLIENT, 5001, SERVER, 53)).src.1;
    let other = Ipv6Addr::host(0, 77);
    let own = router.out(udp(other, 6001, SERVER, 53)).src.1;
    let (dev, packet) =
        router.one(0, frame6(protocol::UDP, (other, 6001), (under(OUTSIDE), outside), b"hello"));
    let said = said6(&packet);
    assert_eq!((dev, said.src, said.dst), (0, (under(OUTSIDE).into(), own), (CLIENT.into(), 5001)));
}

/// The router answers for its IPv4 address, too.
#[test]
fn the_router_can_be_pinged_by_its_ipv4_address() {
    let mut router = Router::new();
    let (dev, packet) = router.one(0, frame6(protocol::ICMP, (CLIENT, 77), (under(OUTSIDE), 0), b"ping"));
    let said = said6(&packet);
    assert_eq!(
        (dev, said.src, said.dst, &said.payload[..]),
        (0, (under(OUTSIDE).into(), 0), (CLIENT.into(), 77), &b"ping"[..])
    );
}

#[test]
fn what_cannot_cross_is_dropped() {
    let mut router = Router::new();
    let gre = Ipv6Addr::ip(0, CLIENT, under(SERVER), 9, 47, &[0; 20]);
    router.dropped(0, gre, DropReason::Nat64);
    // From the prefix to the prefix: it would go round.
    router.dropped(0, frame6(protocol::UDP, (under(FAR), 1), (under(SERVER), 2), b""), DropReason::Nat64);
    router.dropped(0, udp(CLIENT, 5001, Ipv4Addr::LOCALHOST, 53), DropReason::Nat64);
    // An address that stands for a host is on no wire.
    let stands = Ipv4Addr::new(198, 18, 0, 7);
    router.dropped(1, frame4(protocol::UDP, (SERVER, 53), (stands, 5001), b""), DropReason::IpInvalidDest);
    router.dropped(1, frame4(protocol::UDP, (stands, 53), (OUTSIDE, 5001), b""), DropReason::IpInvalidSource);
    // Nor does one leave where no sources are hidden.
    let frame = frame6(protocol::UDP, (CLIENT, 5001), (under(Ipv4Addr::CLIENT), 53), b"");
    router.dropped(0, frame, DropReason::Nat64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever comes, from whichever side: no panic, the books balance, and no address that stands for a
    /// host is seen.
    #[test]
    fn survives_anything(
        frames in prop::collection::vec((0usize..4, prop::collection::vec((14usize..130, any::<u8>()), 0..6), 20usize..140), 1..20),
    ) {
        let mut router = Router::new();
        let (_, sent) = router.one(0, udp(CLIENT, 5001, SERVER, 53));
        let outside = u16::from_be_bytes([sent[20], sent[21]]);
        let (_, came) = router.one(1, frame4(protocol::UDP, (SERVER, 53), (OUTSIDE, outside), &[7; 20]));
        for (kind, changes, len) in frames {
            let (dev, mut frame) = match kind {
                0 => (0, udp(CLIENT, 5001, SERVER, 53)),
                1 => (1, frame4(protocol::UDP, (SERVER, 53), (OUTSIDE, outside), &[7; 20])),
                2 => (0, error6(CLIENT, under(SERVER), [1, 4, 0, 0], [0; 4], &came)),
                _ => (1, error4(SERVER, OUTSIDE, [3, 3, 0, 0], [0; 4], &sent)),
            };
            changes.iter().for_each(|(at, byte)| if let Some(to) = frame.get_mut(*at) { *to = *byte });
            frame.truncate(len);
            for (_, frame) in router.world.input(dev, &[frame]) {
                let packet = packet(&frame);
                if packet[0] >> 4 == 4 {
                    let (src, dst) = Ipv4Addr::ends(packet).unwrap();
                    prop_assert!(![src, dst].iter().any(|addr| super::is_stand_in(addr.to_bits())));
                }
            }
        }
    }
}

/// Rules that ask for states: answers, and errors, are of the connection that the host opened; what
/// nothing asked for is not, though a mapping lets it in.
#[test]
fn rules_know_the_answers() {
    let on = |input: Vec<u16>, state: &[FlowState]| Rule {
        chains: vec![Chain::Forward],
        input,
        state: state.to_vec(),
        action: Action::Allow,
        ..Rule::default()
    };
    let belongs = [FlowState::Established, FlowState::Related];
    let invalid = Rule { action: Action::Drop, ..on(vec![], &[FlowState::Invalid]) };
    let made = Rule { chains: vec![Chain::Output], ..on(vec![], &[FlowState::Related]) };
    let rules = vec![invalid, on(vec![], &belongs), on(vec![0], &[FlowState::New]), made];
    let rules = Rules { rules, sets: vec![], policies: [Action::Allow, Action::Drop, Action::Allow] };
    for number in PROTOCOLS {
        let mut router = Router::new();
        router.configure(&NatRules { filtering: Filtering::EndpointIndependent, ..nat_rules() });
        let tracked = Some((router.state.conntrack().clone(), Some(router.state.clone())));
        Filter::new(&rules, tracked).unwrap().stand(&rules, &mut router.world.tables.hooks);
        let before = router.state.conntrack().connections(0).count();
        let count = |router: &Router, number: usize| router.world.ctx.stats().rule(number)[0];
        let policy = usize::from(Chain::Forward.policy_number());
        let port = service(number);
        let frame = frame6(number, (CLIENT, 5001), (under(SERVER), port), b"ask");
        let (_, sent) = router.one(0, frame);
        let out = said4(&sent).src.1;
        let back = router.back(frame4(number, (SERVER, port), (OUTSIDE, out), b"answer"));
        assert_eq!((back.dst, count(&router, 1)), ((CLIENT.into(), 5001), 1));
        // Long ones leave in fragments, which are of it, too.
        let long = frame4(number, (SERVER, port), (OUTSIDE, out), &[7; 1400]);
        assert_eq!((router.world.one(1, long).len(), count(&router, 1)), (2, 3));
        let error = error4(FAR, OUTSIDE, [3, 1, 0, 0], [0; 4], &sent);
        assert_eq!((router.back(error).src.0, count(&router, 1)), (under(FAR).into(), 4));
        if number != protocol::ICMP {
            // From another host to the same mapping, and by a route.
            let stray = frame4(number, (FAR, port), (OUTSIDE, out), b"stray");
            router.dropped(1, stray, DropReason::NetfilterDrop);
        }
        let strays = count(&router, policy);
        let mut direct = frame6(number, (Ipv6Addr::SERVER, 9), (CLIENT, 5001), b"stray");
        direct[..ETH_LEN].copy_from_slice(&Ipv6Addr::ip(1, CLIENT, CLIENT, 9, 0, &[])[..ETH_LEN]);
        router.dropped(1, direct, DropReason::NetfilterDrop);
        assert_eq!((count(&router, policy), count(&router, 0)), (strays + 1, 0));
        let opened: Vec<_> = router.state.conntrack().connections(0).skip(before).collect();
        assert!(opened.iter().all(|connection| connection.ends6.is_none()), "{opened:?}");
        // So is softnet's own error about what went no further.
        let old = set(frame6(number, (CLIENT, 5001), (under(SERVER), port), b"old"), ETH_LEN + 7, &[1]);
        let told = router.world.one(0, old);
        assert_eq!((told.len(), told[0].0, count(&router, 3)), (1, 0, 1));
    }
}

/// What GRO put into a list on its way back, and what came behind it.
#[test]
fn lists_go_back_in_order() {
    let lens = [100, 100, 100, 40, 100, 100, 100, 100, 9];
    // The second server's connection is opened by the list.
    for server in [53, 54] {
        let of = |port| {
            let to = (OUTSIDE, port);
            lens.map(|len| frame4(protocol::UDP, (SERVER, server), to, &vec![len as u8; len]))
        };
        let [(list, merged), (plain, none)] = [GroMode::List, GroMode::Off].map(|mode| {
            let mut router = Router::new();
            router.configure(&NatRules { filtering: Filtering::EndpointIndependent, ..nat_rules() });
            let port = router.out(udp(CLIENT, 5000, SERVER, 53)).src.1;
            let params = GroParams { mode, ..GroParams::default() };
            let sent = router.world.input_merged(1, &of(port), &params);
            assert_eq!(router.world.drops(DropReason::IpInvalidDest), 0);
            (sent, router.world.ctx.stats().merged.get())
        });
        assert!(merged > 0 && none == 0, "{merged} {none}");
        assert_eq!(list.iter().map(|(_, frame)| frame.len() - 62).collect::<Vec<_>>(), lens);
        assert_eq!(list, plain);
    }
}
