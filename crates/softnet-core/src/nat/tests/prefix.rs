//! Prefixes of IPv6 that stand for one another.

use std::net::Ipv6Addr;

use super::{Nat, NatRules, NatState, PrefixNat, Timeouts};
use crate::conntrack::Conntrack;
use crate::filter::{Action, Chain, Filter, FlowState, Rule, Rules};
use crate::fold::FoldKey;
use crate::ip::slow::world::v6::net;
use crate::ip::slow::world::{TestFamily, World, icmp, packet, udp};
use crate::ip::v6::header::next;
use crate::ip::{Prefix6, checksum};
use crate::skb::DropReason;
use std::sync::Arc;

const CLIENT: Ipv6Addr = Ipv6Addr::CLIENT;
const SERVER: Ipv6Addr = Ipv6Addr::SERVER;

/// The client's network is another one on the server's side.
pub(super) fn router() -> World<Ipv6Addr> {
    router_with(None)
}

/// The same with rules that ask for states, which see addresses inside.
fn router_with(filter: Option<&Rules>) -> World<Ipv6Addr> {
    let mut world = World::acquainted();
    let prefix = |addr: Ipv6Addr| Prefix6::containing(addr, 64).unwrap();
    let external = Ipv6Addr::new(0x2001, 0xdb8, 0xe, 0xe, 0, 0, 0, 0);
    let rule = PrefixNat { dev: 1, internal: prefix(CLIENT), external: prefix(external) };
    let rules = NatRules { prefix: vec![rule], ..NatRules::default() };
    let conntrack = Conntrack::new(16, FoldKey::new([5, 6]), &Timeouts::default(), &crate::memory::Heap);
    let conntrack = Arc::new(conntrack.with_ipv6());
    let state = Arc::new(NatState::on(conntrack.clone(), [1, 2, 3, 4], &crate::memory::Heap));
    Arc::new(Nat::new(state.clone(), &rules).unwrap()).install(&mut world.tables);
    if let Some(rules) = filter {
        let filter = Filter::new(rules, Some((conntrack, Some(state)))).unwrap();
        filter.stand(rules, &mut world.tables.hooks);
    }
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

/// Answers are of the connection that was opened inside, errors too, and nothing else comes in.
#[test]
fn rules_know_the_answers() {
    let on = |input: Vec<u16>, state: &[FlowState]| Rule {
        chains: vec![Chain::Forward],
        input,
        state: state.to_vec(),
        action: Action::Allow,
        ..Rule::default()
    };
    let rules =
        vec![on(vec![], &[FlowState::Established, FlowState::Related]), on(vec![0], &[FlowState::New])];
    let policies = [Action::Allow, Action::Drop, Action::Allow];
    let mut world = router_with(Some(&Rules { rules, sets: vec![], policies }));
    let outside = ends(&router().one(0, udp(0, CLIENT, SERVER, 9, 20))[0].1).0;
    let reply = |src: Ipv6Addr| {
        // The ports of `udp`, the other way round.
        let mut frame = udp(1, src, outside, 9, 20);
        frame[54..58].copy_from_slice(&[0, 7, 0x12, 0x34]);
        frame
    };
    assert!(world.one(1, reply(SERVER)).is_empty(), "nothing asked for it");
    let out = world.one(0, udp(0, CLIENT, SERVER, 9, 20)).remove(0).1;
    assert_eq!(ends(&out), (outside, SERVER));
    let back = world.one(1, reply(SERVER));
    assert_eq!((back.len(), ends(&back[0].1)), (1, (SERVER, CLIENT)));
    assert!(world.one(1, reply(Ipv6Addr::FAR)).is_empty());
    let message = [&[1, 4, 0, 0, 0, 0, 0, 0][..], packet(&out)].concat();
    assert_eq!(world.one(1, icmp(1, Ipv6Addr::FAR, outside, 9, &message)).len(), 1, "related");
    let counted = [0, 1, usize::from(Chain::Forward.policy_number())];
    assert_eq!(counted.map(|number| world.ctx.stats().rule(number)[0]), [2, 1, 2]);
}
