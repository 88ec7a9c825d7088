//! Neighbour messages that were not for softnet.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::ip::MacAddr;
use crate::ip::neigh::NeighState;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v6::addr::ALL_NODES;
use crate::skb::DropReason;

for_each_family! { a_neighbour_that_moved_is_where_it_says }

const MOVED: MacAddr = [2, 0, 0, 0, 0, 0x77];

impl<F: TestFamily> World<F> {
    fn overhear(&mut self, dev: u16, frame: &[u8]) -> (Sent, Result<(), DropReason>) {
        self.call(|slow, ctx, view, out| slow.overhear(ctx, view, (dev, frame), out))
    }
}

trait Mover: TestFamily {
    /// What the client may say that is at [`MOVED`] now, and whether it is believed.
    fn news() -> Vec<(Vec<u8>, bool)>;
}

impl Mover for Ipv4Addr {
    fn news() -> Vec<(Vec<u8>, bool)> {
        let gratuitous = ArpPacket::announcement(MOVED, Self::CLIENT);
        // Between strangers it says so, too.
        let other = ArpPacket::request(MOVED, Self::CLIENT, Self::host(0, 77));
        let all = [gratuitous, gratuitous.reply(MOVED), other];
        all.map(|said| (super::super::world::v4::arp(BROADCAST, said), true)).into()
    }
}

/// The client tells `dst`, overriding what was known.
fn advert_to(dst: Ipv6Addr) -> Vec<u8> {
    super::super::world::v6::advert_to(0, Ipv6Addr::CLIENT, dst, MOVED, 0x20)
}

impl Mover for Ipv6Addr {
    fn news() -> Vec<(Vec<u8>, bool)> {
        let to = [(ALL_NODES, true), (Self::OWN[0], true), (Self::host(0, 0x33), false)];
        to.map(|(dst, believed)| (advert_to(dst), believed)).into()
    }
}

fn a_neighbour_that_moved_is_where_it_says<F: Mover>() {
    for (said, believed) in F::news() {
        let mut world = World::<F>::acquainted();
        world.pass(2 * SECOND);
        assert_eq!(world.overhear(0, &said), (vec![], Ok(())));
        let (state, mac) =
            if believed { (NeighState::Stale, MOVED) } else { (NeighState::Reachable, CLIENT_MAC) };
        assert_eq!(world.state(F::CLIENT), state);
        let to_it = udp(1, F::SERVER, F::CLIENT, 9, 10);
        let sent = world.one(1, to_it.clone());
        assert_eq!(sent.len(), 1);
        F::assert_forwarded(&sent[0], &to_it, 0, mac);
    }
}

#[test]
fn what_is_overheard_of_arp_makes_no_entry_and_no_answer() {
    use super::super::world::v4::*;
    let mut world = World::<Ipv4Addr>::acquainted();
    let unknown = Ipv4Addr::host(0, 78);
    let mine = ArpPacket::announcement(MOVED, OWN[0]);
    let asked = ArpPacket::request(MOVED, unknown, OWN[0]);
    for said in [ArpPacket::announcement(MOVED, unknown), mine, asked] {
        assert_eq!(world.overhear(0, &arp(BROADCAST, said)), (vec![], Ok(())));
    }
    assert_eq!((world.state(unknown), world.state(OWN[0])), (NeighState::None, NeighState::None));
    // On the other link this address is unknown.
    let moved = arp(BROADCAST, ArpPacket::announcement(MOVED, CLIENT));
    assert_eq!(world.overhear(1, &moved), (vec![], Ok(())));
    assert_eq!(world.state(CLIENT), NeighState::Reachable);
    let malformed = set(moved, crate::ip::ETH_LEN + 8, &[1]);
    assert_eq!(world.overhear(0, &malformed).1, Err(DropReason::ArpMalformed));
}

/// Of what is for others not even the checksum is looked at.
#[test]
fn a_damaged_advertisement_is_not_believed() {
    for (mut said, believed) in Ipv6Addr::news() {
        let mut world = World::<Ipv6Addr>::acquainted();
        *said.last_mut().unwrap() ^= 1;
        let (sent, heard) = world.overhear(0, &said);
        assert_eq!((sent, heard.is_err()), (vec![], believed), "{heard:?}");
        assert_eq!(world.state(Ipv6Addr::CLIENT), NeighState::Reachable);
    }
}

/// An address of ours that another host says is his is counted, told once, and stays ours; what the kernel, which
/// has our MAC address, says of one that it shares is no conflict.
#[test]
fn an_own_address_that_a_neighbour_claims_is_told() {
    use super::super::world::v4::*;
    use crate::ip::slow::Conflict;
    let mut world = World::<Ipv4Addr>::acquainted();
    let conflict = Conflict { dev: 0, ip: OWN[0].into(), mac: MOVED };
    let claim = |mac| arp(BROADCAST, ArpPacket::announcement(mac, OWN[0]));
    let told = |world: &mut World<Ipv4Addr>| world.call(|slow, _, _, _| slow.take_conflicts()).1;
    let own = arp(BROADCAST, ArpPacket::announcement(super::super::world::MACS[0], OWN[0]));
    assert_eq!((world.overhear(0, &own), told(&mut world)), ((vec![], Ok(())), vec![]));
    assert_eq!((world.overhear(0, &claim(MOVED)), told(&mut world)), ((vec![], Ok(())), vec![conflict]));
    // By the queues, too: here it asks for a third.
    let asks = arp(BROADCAST, ArpPacket::request(MOVED, OWN[0], Ipv4Addr::host(0, 77)));
    assert_eq!((world.one(0, asks), told(&mut world)), (vec![], vec![]));
    let count = world.call(|slow, _, _, _| slow.address_conflicts()).1;
    assert_eq!((count, world.state(OWN[0])), (2, NeighState::None));

    let mut world = World::<Ipv6Addr>::acquainted();
    let own = Ipv6Addr::OWN[0];
    let claim = super::super::world::v6::advert_to(0, own, ALL_NODES, MOVED, 0x20);
    assert_eq!(world.overhear(0, &claim), (vec![], Ok(())));
    let conflict = Conflict { dev: 0, ip: own.into(), mac: MOVED };
    assert_eq!(world.call(|slow, _, _, _| slow.take_conflicts()).1, [conflict]);
}

proptest::proptest! {
    #[test]
    fn survives_anything(mut frame in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120), family in 0u8..3) {
        if frame.len() > 14 && family < 2 {
            frame[12..14].copy_from_slice(&[[8, 6], [0x86, 0xdd]][usize::from(family)]);
        }
        let mut world = World::<Ipv4Addr>::new();
        proptest::prop_assert!(world.overhear(0, &frame).0.is_empty());
        let mut world = World::<Ipv6Addr>::new();
        proptest::prop_assert!(world.overhear(0, &frame).0.is_empty());
    }
}
