//! Duplicate address detection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;
use crate::ip::slow::{Announce, Conflict};
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v6::addr::{ALL_NODES, link_local};
use crate::ip::v6::nd::Message;
use crate::ip::{MacAddr, Prefix6};

const OTHER: MacAddr = [2, 0, 0, 0, 0, 0x66];

impl<F: TestFamily> World<F> {
    fn detect(&mut self, ip: impl Into<IpAddr>) -> Sent {
        let ips = [ip.into()];
        self.call(|slow, ctx, view, out| slow.detect_duplicates(ctx, view, (0, &ips), out)).0
    }

    fn announce(&mut self) -> Sent {
        let both = Announce { arp: true, nd: true };
        self.call(|slow, ctx, view, out| slow.announce(ctx, view, 0, both, out)).0
    }

    fn found(&mut self) -> Vec<Conflict> {
        self.call(|slow, _, _, _| slow.take_duplicates()).1
    }
}

#[test]
fn an_ipv4_address_is_asked_for_three_times_and_announced_when_none_objects() {
    use super::super::world::v4::*;
    let mut world = World::<Ipv4Addr>::new();
    // What leaves has no padding yet.
    let probe = arp(BROADCAST, ArpPacket::probe(super::super::world::MACS[0], OWN[0]))[..42].to_vec();
    let probe = vec![(0, probe)];
    assert_eq!(world.detect(OWN[0]), probe);
    assert!(world.announce().is_empty());
    assert_eq!(world.pass(SECOND / 5).len(), 1, "announced");
    assert_eq!(world.pass(SECOND * 4 / 5), probe);
    assert_eq!(world.pass(SECOND), probe);
    assert_eq!(world.pass(SECOND).len(), 1, "announced again");
    assert!(world.pass(100 * SECOND).is_empty());
    assert_eq!(world.control.slow.next_deadline(), None);
    // From now on it is a conflict, and the address stays.
    let claim = arp(BROADCAST, ArpPacket::announcement(OTHER, OWN[0]));
    world.one(0, claim);
    assert_eq!(world.found(), []);
    assert_eq!(world.call(|slow, _, _, _| slow.take_conflicts()).1.len(), 1);
}

#[test]
fn a_duplicate_of_an_ipv4_address_is_found() {
    use super::super::world::v4::*;
    let mac = super::super::world::MACS[0];
    let claims = [ArpPacket::announcement(OTHER, OWN[0]), ArpPacket::probe(mac, OWN[0]).reply(OTHER)];
    for claim in claims {
        for overheard in [false, true] {
            let mut world = World::<Ipv4Addr>::new();
            world.detect(OWN[0]);
            let own = ArpPacket::probe(mac, OWN[0]);
            world.one(0, arp(BROADCAST, own));
            assert_eq!(world.found(), [], "what is our own says nothing");
            world.detect(OWN[0]);
            let frame = arp(mac, claim);
            match overheard {
                false => assert_eq!(world.one(0, frame), []),
                true => _ = world.call(|slow, ctx, view, out| slow.overhear(ctx, view, (0, &frame), out)),
            }
            assert_eq!(world.found(), [Conflict { dev: 0, ip: OWN[0].into(), mac: OTHER }]);
            assert_eq!(world.call(|slow, _, _, _| slow.address_conflicts()).1, 1);
            assert!(world.pass(100 * SECOND).is_empty(), "it is not asked for any more");
        }
    }
}

/// A station that would like to have it is answered: it is used already (RFC 5227 section 2.4).
#[test]
fn an_ipv4_address_is_defended_from_the_start() {
    use super::super::world::v4::*;
    let mut world = World::<Ipv4Addr>::new();
    world.detect(OWN[0]);
    let answers = world.one(0, arp(BROADCAST, ArpPacket::probe(OTHER, OWN[0])));
    assert_eq!((answers.len(), world.found()), (1, vec![]));
}

#[test]
fn an_ipv6_address_is_tentative_for_a_second() {
    use super::super::world::v6::*;
    let own = Ipv6Addr::OWN[0];
    let mut world = World::<Ipv6Addr>::new();
    let asked = world.detect(own);
    assert_eq!(asked.len(), 2, "and the link-local one");
    let (dev, _, src, _, _, said) = heard(&asked[0]);
    assert_eq!((dev, src), (0, Ipv6Addr::UNSPECIFIED));
    assert_eq!(said, Message::Solicitation { target: own, mac: None });
    assert!(world.announce().is_empty() && world.pass(SECOND).is_empty());
    assert!(!world.pass(SECOND / 10).is_empty(), "announced");

    let mut world = World::<Ipv6Addr>::new();
    world.detect(own);
    let claim = advert_to(0, own, ALL_NODES, OTHER, 0x20);
    let heard = world.call(|slow, ctx, view, out| slow.overhear(ctx, view, (0, &claim), out));
    assert_eq!(heard.1, Ok(()));
    assert_eq!(world.found(), [Conflict { dev: 0, ip: own.into(), mac: OTHER }]);
    assert!(world.pass(100 * SECOND).is_empty());
}

/// The link-local address that follows from the MAC address is one like the others: it is asked for
/// when the device comes.
#[test]
fn a_link_local_address_is_asked_for_with_the_first_others() {
    use super::super::world::v6::*;
    let (own, mac) = (Ipv6Addr::OWN[0], super::super::world::MACS[0]);
    let derived = link_local(mac);
    let mut world = World::<Ipv6Addr>::new();
    let targets: Vec<_> = world
        .detect(own)
        .iter()
        .map(|sent| {
            let (dev, _, src, _, _, said) = heard(sent);
            assert_eq!((dev, src), (0, Ipv6Addr::UNSPECIFIED));
            said
        })
        .collect();
    assert_eq!(targets, [own, derived].map(|target| Message::Solicitation { target, mac: None }));
    // Another station has it.
    let claim = advert_to(0, derived, ALL_NODES, OTHER, 0x20);
    let mut duplicate = World::<Ipv6Addr>::new();
    duplicate.detect(own);
    let heard = duplicate.call(|slow, ctx, view, out| slow.overhear(ctx, view, (0, &claim), out));
    assert_eq!(heard.1, Ok(()));
    assert_eq!(duplicate.found(), [Conflict { dev: 0, ip: derived.into(), mac: OTHER }]);
    // After a second without an objection it is softnet's.
    world.pass(SECOND);
    _ = world.call(|slow, ctx, view, out| slow.overhear(ctx, view, (0, &claim), out));
    assert_eq!(world.found(), []);
    // An address that comes later brings it no more into question; nor does one of IPv4.
    assert!(world.detect(Ipv4Addr::new(10, 0, 0, 1)).is_empty());
    let later: Ipv6Addr = "2001:db8:77::1".parse().unwrap();
    let net = Prefix6::containing(later, 64).unwrap();
    world.reconfigure(0, |iface| iface.addresses6.push((later, net)));
    let asked = world.detect(later);
    assert_eq!(asked.len(), 1);
}
