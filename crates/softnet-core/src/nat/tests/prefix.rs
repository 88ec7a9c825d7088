//! Prefixes of IPv6 that stand for one another.

use std::net::Ipv6Addr;

use super::{Nat, NatRules, NatState, PrefixNat, Timeouts};
use crate::ip::slow::world::v6::net;
use crate::ip::slow::world::{TestFamily, World, icmp, packet, udp};
use crate::ip::v6::header::next;
use crate::ip::{Prefix6, checksum};
use crate::skb::DropReason;
use std::sync::Arc;

const CLIENT: Ipv6Addr = Ipv6Addr::CLIENT;
const SERVER: Ipv6Addr = Ipv6Addr::SERVER;

/// The client's network is another one on the server's side.
fn router() -> World<Ipv6Addr> {
    let mut world = World::acquainted();
    let prefix = |addr: Ipv6Addr| Prefix6::containing(addr, 64).unwrap();
    let external = Ipv6Addr::new(0x2001, 0xdb8, 0xe, 0xe, 0, 0, 0, 0);
    let rule = PrefixNat { dev: 1, internal: prefix(CLIENT), external: prefix(external) };
    let rules = NatRules { prefix: vec![rule], ..NatRules::default() };
    let state = Arc::new(NatState::new(16, [1, 2, 3, 4], &Timeouts::default(), &crate::memory::Heap));
    Arc::new(Nat::new(state, &rules).unwrap()).install(&mut world.tables, 0);
    world.tracked = true;
    world
}

fn ends(frame: &[u8]) -> (Ipv6Addr, Ipv6Addr) {
    let header = Ipv6Addr::header(packet(frame));
    (header.src, header.dst)
}

/// Whether the checksum of the message in an ICMPv6 packet is right.
fn is_right(frame: &[u8]) -> bool {
    let (src, dst) = ends(frame);
    Ipv6Addr::sum(next::ICMPV6, src, dst, &packet(frame)[40..]) == 0xffff
}

/// Any protocol, and its checksums stay as they are.
#[test]
fn hosts_have_an_address_outside() {
    let mut world = router();
    let out = world.one(0, udp(0, CLIENT, SERVER, 9, 20));
    assert_eq!(out[0].0, 1);
    let (outside, dst) = ends(&out[0].1);
    assert_eq!((outside.segments()[..4].to_vec(), dst), (vec![0x2001, 0xdb8, 0xe, 0xe], SERVER));
    assert_eq!(checksum::sum(&outside.octets()), checksum::sum(&CLIENT.octets()));
    let back = world.one(1, udp(1, SERVER, outside, 9, 20));
    assert_eq!((back[0].0, ends(&back[0].1)), (0, (SERVER, CLIENT)));
    let other = Ipv6Addr::ip(0, CLIENT, SERVER, 9, 47, &[7; 30]);
    assert_eq!(ends(&world.one(0, other)[0].1).0, outside);
}

/// What errors quote is what their receivers sent; one that is made here, too.
#[test]
fn errors_are_about_what_was_sent() {
    let mut world = router();
    let out = world.one(0, udp(0, CLIENT, SERVER, 9, 20)).remove(0).1;
    let outside = ends(&out).0;
    let message = [&[1, 4, 0, 0, 0, 0, 0, 0][..], packet(&out)].concat();
    let sent = world.one(1, icmp(1, SERVER, outside, 9, &message)).remove(0);
    assert_eq!((sent.0, ends(&sent.1), is_right(&sent.1)), (0, (SERVER, CLIENT), true));
    let quoted = |frame: &[u8]| {
        let quote = &packet(frame)[48..];
        let addr = |at: usize| Ipv6Addr::from(*quote[at..].first_chunk::<16>().unwrap());
        (addr(8), addr(24))
    };
    assert_eq!(quoted(&sent.1), (CLIENT, SERVER));
    // From inside, about what came.
    let back = world.one(1, udp(1, SERVER, outside, 9, 20)).remove(0).1;
    let message = [&[1, 4, 0, 0, 0, 0, 0, 0][..], packet(&back)].concat();
    let sent = world.one(0, icmp(0, CLIENT, SERVER, 9, &message)).remove(0);
    assert_eq!((sent.0, ends(&sent.1), is_right(&sent.1)), (1, (outside, SERVER), true));
    assert_eq!(quoted(&sent.1), (SERVER, outside));
    // softnet's own, about what came and went no further.
    let sent = world.one(1, udp(1, SERVER, outside, 1, 20)).remove(0);
    assert_eq!((sent.0, ends(&sent.1), is_right(&sent.1)), (1, (net(1, 1), SERVER), true));
    assert_eq!(quoted(&sent.1), (SERVER, outside));
}

/// From inside to the address outside of another inside: each sees the other's there.
#[test]
fn the_hairpin() {
    let mut world = router();
    let [outside, other] = [CLIENT, net(0, 7)].map(|own| {
        let mut sent = world.one(0, udp(0, own, SERVER, 9, 20));
        ends(&sent.remove(0).1).0
    });
    let sent = world.one(0, udp(0, net(0, 7), outside, 9, 20));
    let (_, frame) = sent.iter().find(|(dev, frame)| *dev == 0 && packet(frame)[6] == next::UDP).unwrap();
    assert_eq!(ends(frame), (other, CLIENT));
}

#[test]
fn addresses_without_a_counterpart_are_dropped() {
    let mut world = router();
    let none = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff);
    assert!(world.one(0, udp(0, none, SERVER, 9, 20)).is_empty());
    assert_eq!(world.drops(DropReason::NatPrefix), 1);
}
