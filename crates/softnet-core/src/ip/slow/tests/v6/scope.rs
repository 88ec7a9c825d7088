//! Link-local addresses by their devices: what one link's says nothing of another's.

use super::*;
use crate::ip::fragment::{Addresses, Datagram};
use crate::ip::slow::TooBig;
use crate::sock::key::Addr;
use crate::sock::scope::scoped;
use crate::sock::udp::output::UdpHead;
use crate::sock::{Flow, SocketError};
use crate::steer::TxChoice;

/// A neighbour's address, on both links.
const PEER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);

/// The flow between softnet's link-local address on `dev` and [`PEER`] there.
fn flow(dev: u16) -> Flow {
    let on_link = |addr: Ipv6Addr| -> Addr { scoped(addr.to_bits(), dev) };
    let local = on_link(link_local(MACS[usize::from(dev)]));
    Flow { local, remote: on_link(PEER), lport: 7, rport: 9, protocol: 17 }
}

#[test]
fn an_address_with_a_scope_in_it_is_refused() {
    let mut world = World::acquainted();
    let [scope, own] = ["fe80:2::9".parse().unwrap(), "fe80:1::ff:fe00:1".parse().unwrap()];
    for (src, dst) in [(scope, OWN[0]), (scope, SERVER), (scope, ALL_NODES), (CLIENT, own), (scope, scope)] {
        world.refused(udp(0, src, dst, 64, 10), DropReason::Ipv6BadScope, None);
        world.refused(echo_from(src, dst), DropReason::Ipv6BadScope, None);
    }
    assert_eq!(world.control.slow.neighbours().entries().len(), 3, "those that were known before");
}

fn echo_from(src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    icmp(0, src, dst, 64, &[128, 0, 0, 0, 0x77, 0x77, 0, 1])
}

/// A neighbour that is asked for on one link, and does not answer there, is of no concern on the other.
#[test]
fn neighbours_and_their_silence_are_one_link_s() {
    let mut world = World::new();
    for dev in [0, 1] {
        let Flow { local, remote, lport, rport, .. } = flow(dev);
        let head = UdpHead { src: local, dst: remote, sport: lport, dport: rport, ttl: 64, tos: 0 };
        let sent = world.send(&head, b"are you there?");
        let says = Message::Solicitation { target: PEER, mac: Some(MACS[usize::from(dev)]) };
        let (group, own) = (solicited_node(PEER), link_local(MACS[usize::from(dev)]));
        assert_eq!(
            sent.iter().map(heard).collect::<Vec<_>>(),
            [(dev, multicast_mac(group), own, group, 0, says)]
        );
    }
    // The one of the second link answers: what waited for it leaves, without a scope.
    let advert = advert_to(1, PEER, link_local(MACS[1]), SERVER_MAC, 0x60);
    let sent = world.one(1, advert);
    assert_eq!((sent.len(), sent[0].0, &sent[0].1[..6]), (1, 1, &SERVER_MAC[..]));
    let header = Ipv6Header::new(&sent[0].1[ETH_LEN..]).unwrap();
    assert_eq!((header.src(), header.dst()), (link_local(MACS[1]), PEER));
    assert!(world.errors.is_empty());
    world.pass(4 * SECOND);
    assert_eq!(world.errors, [(flow(0), SocketError::HostUnreachable)]);
}

#[test]
fn a_path_s_mtu_is_one_link_s() {
    let mut world = World::new();
    world.reconfigure(1, |iface| iface.mtu = 1500);
    let report = TooBig { flow: flow(0), len: 1500, mtu: 1300 };
    for (known, say) in [(false, "it is news"), (true, "it is known")] {
        let (_, news) = world.call(|slow, _, view, _| slow.too_big(view, &report));
        assert_eq!(news, !known, "{say}");
    }
    let mut packets = 0;
    for (dev, expected) in [(0, 2), (1, 1)] {
        let addresses = Addresses::V6 { src: link_local(MACS[usize::from(dev)]), dst: PEER, dev };
        let datagram =
            Datagram { addresses, protocol: next::UDP, ttl: 64, tos: 0, id: 0, dont_fragment: false };
        let pieces = (1400, [&[0; 1400][..]]);
        let choice = TxChoice::RxQueue(0);
        let (_, done) =
            world.call(|slow, ctx, view, out| slow.send_datagram(ctx, view, datagram, choice, pieces, out));
        assert_eq!(done, Ok(()));
        assert_eq!(world.held() - packets, expected, "device {dev}");
        packets = world.held();
    }
}
