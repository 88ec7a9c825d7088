//! Neighbours: which are asked and answered, and what becomes of packets that wait for them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::ip::neigh::{NeighParams, NeighState};
use crate::ip::slow::Announce;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v6::addr::{ALL_NODES, link_local, multicast_mac};
use crate::ip::v6::nd::Message;
use crate::skb::{BATCH, DropReason};
use crate::sock::key::addr_of;
use crate::sock::udp::output::UdpHead;
use crate::sock::{Flow, SocketError};

for_each_family! {
    a_question_is_answered_and_its_sender_remembered,
    packets_wait_for_the_neighbour_and_leave_in_order,
    a_queue_that_is_full_drops_the_oldest,
    a_neighbour_that_does_not_answer_is_unreachable,
    an_error_to_an_unknown_host_waits_and_fails_in_silence,
    a_socket_learns_that_the_neighbour_of_what_it_sent_does_not_answer,
    a_device_that_is_gone_holds_nothing,
    without_memory_questions_are_lost_but_counted,
    a_device_s_addresses_are_announced_twice,
}

fn a_question_is_answered_and_its_sender_remembered<F: TestFamily>() {
    let mut world = World::<F>::new();
    let sent = world.one(0, F::question(0, F::CLIENT, CLIENT_MAC));
    assert_eq!(sent.len(), 1);
    F::assert_answered(&sent[0], 0, F::OWN[0], (F::CLIENT, CLIENT_MAC));
    assert_eq!(world.state(F::CLIENT), NeighState::Stale);
    // Known, so nothing waits; used while stale, so it is asked after a while, by unicast.
    let to_client = udp(1, F::SERVER, F::CLIENT, 64, 10);
    for _ in 0..2 {
        let sent = world.one(1, to_client.clone());
        assert_eq!(sent.len(), 1);
        F::assert_forwarded(&sent[0], &to_client, 0, CLIENT_MAC);
        assert_eq!(world.state(F::CLIENT), NeighState::Delay);
    }
    let sent = world.pass(5 * SECOND);
    assert_eq!(sent.len(), 1);
    F::assert_asked(&sent[0], 0, F::CLIENT, Some(CLIENT_MAC));
    world.one(0, F::answer(0, F::CLIENT, CLIENT_MAC));
    assert_eq!(world.state(F::CLIENT), NeighState::Reachable);
}

fn packets_wait_for_the_neighbour_and_leave_in_order<F: TestFamily>() {
    for &(dst, neighbour) in F::WAYS {
        let mut world = World::<F>::new();
        let packets: Vec<_> = (0..5).map(|i| udp(0, F::CLIENT, dst, 64 - i, 20 + usize::from(i))).collect();
        let sent = world.input(0, &packets[..2]);
        assert_eq!(sent.len(), 1, "one question for all");
        F::assert_asked(&sent[0], 1, neighbour, None);
        assert!(world.input(0, &packets[2..4]).is_empty());
        assert_eq!(world.held(), 4);
        let sent = world.one(1, F::answer(1, neighbour, SERVER_MAC));
        assert_eq!(sent.len(), 4);
        for (sent, original) in sent.iter().zip(&packets) {
            F::assert_forwarded(sent, original, 1, SERVER_MAC);
        }
        // From now on by the fast path.
        let sent = world.one(0, packets[4].clone());
        F::assert_forwarded(&sent[0], &packets[4], 1, SERVER_MAC);
        assert_eq!(world.ctx.stats().dropped(), 0);
    }
}

fn a_queue_that_is_full_drops_the_oldest<F: TestFamily>() {
    let mut world = World::<F>::new();
    let packets: Vec<_> = (0..110).map(|i| udp(0, F::CLIENT, F::SERVER, 64, i)).collect();
    for some in packets.chunks(BATCH) {
        world.input(0, some);
    }
    let qlen = NeighParams::default().unres_qlen;
    assert_eq!((world.held(), world.drops(DropReason::NeighQueueFull)), (qlen as u64, 110 - qlen as u64));
    let sent = world.one(1, F::answer(1, F::SERVER, SERVER_MAC));
    assert_eq!(sent.len(), qlen);
    for (sent, original) in sent.iter().zip(&packets[110 - qlen..]) {
        F::assert_forwarded(sent, original, 1, SERVER_MAC);
    }
}

fn a_neighbour_that_does_not_answer_is_unreachable<F: TestFamily>() {
    let mut world = World::<F>::acquainted();
    let silent = F::host(1, 77);
    let packets = [udp(0, F::CLIENT, silent, 64, 1), udp(0, F::CLIENT, silent, 2, 500)];
    // The quote shows a packet as it was to leave.
    let left = packets.clone().map(F::hop);
    assert_eq!(world.one(0, packets[0].clone()).len(), 1);
    assert!(world.one(0, packets[1].clone()).is_empty());
    // It is asked three times, a second apart.
    let asked = world.pass(3 * SECOND - 1);
    assert_eq!(asked.len(), 2);
    asked.iter().for_each(|asked| F::assert_asked(asked, 1, silent, None));
    let sent = world.pass(1);
    assert_eq!(sent.len(), 2);
    for (sent, left) in sent.iter().zip(&left) {
        assert_eq!(F::error(sent, left), F::HOST_UNREACHABLE);
    }
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (2, 0));
    // For a second more packets fail at once, then it is asked again.
    let sent = world.one(0, packets[0].clone());
    assert_eq!((sent.len(), world.drops(DropReason::NeighFailed)), (1, 3));
    assert_eq!(F::error(&sent[0], &left[0]), F::HOST_UNREACHABLE);
    world.pass(SECOND);
    let sent = world.one(0, packets[0].clone());
    F::assert_asked(&sent[0], 1, silent, None);
    assert_eq!(world.held(), 1);
}

/// The error's own way may be unknown too: it waits like any packet, and if it fails, there is no error about it.
fn an_error_to_an_unknown_host_waits_and_fails_in_silence<F: TestFamily>() {
    let mut world = World::<F>::new();
    let frame = udp(0, F::CLIENT, F::SERVER, 1, 10);
    let sent = world.one(0, frame.clone());
    F::assert_asked(&sent[0], 0, F::CLIENT, None);
    assert_eq!((world.held(), world.drops(DropReason::IpTtl)), (1, 1));
    let sent = world.one(0, F::answer(0, F::CLIENT, CLIENT_MAC));
    assert_eq!(F::error(&sent[0], &frame), F::TTL_EXCEEDED);

    let mut world = World::<F>::new();
    world.one(0, frame);
    let sent = world.pass(10 * SECOND);
    assert!(sent.iter().all(|(_, frame)| F::is_question(frame)), "{sent:?}");
    assert_eq!((world.drops(DropReason::NeighFailed), world.held()), (1, 0));
}

fn a_socket_learns_that_the_neighbour_of_what_it_sent_does_not_answer<F: TestFamily>() {
    let mut world = World::<F>::new();
    let [src, dst] = [F::OWN[1], F::SERVER].map(|addr| addr_of(addr.into()));
    let sent = world.send(&UdpHead { src, dst, sport: 0x1234, dport: 7, ttl: 64, tos: 0 }, &[0x5a; 10]);
    assert_eq!(sent.len(), 1);
    F::assert_asked(&sent[0], 1, F::SERVER, None);
    world.pass(10 * SECOND);
    let flow = Flow { local: src, remote: dst, lport: 0x1234, rport: 7, protocol: 17 };
    assert_eq!(world.errors, [(flow, SocketError::HostUnreachable)]);
}

fn a_device_that_is_gone_holds_nothing<F: TestFamily>() {
    let mut world = World::<F>::new();
    world.input(0, &vec![udp(0, F::CLIENT, F::SERVER, 64, 10); 3]);
    assert_eq!(world.held(), 3);
    world.vanish(1);
    assert_eq!((world.held(), world.drops(DropReason::NeighDead)), (0, 3));
    world.refused(udp(0, F::CLIENT, F::SERVER, 64, 10), DropReason::DevReady, None);
    world.refused(udp(0, F::CLIENT, F::FAR, 64, 10), DropReason::DevReady, None);
    assert!(world.one(1, F::answer(1, F::SERVER, SERVER_MAC)).is_empty());
    assert_eq!(world.control.slow.next_deadline(), None);
    // Back again, it starts from nothing.
    world.appear(1);
    assert_eq!(world.one(0, udp(0, F::CLIENT, F::SERVER, 64, 10)).len(), 1);
    assert_eq!(world.held(), 1);
}

fn without_memory_questions_are_lost_but_counted<F: TestFamily>() {
    let mut world = World::<F>::with_frames(1);
    assert!(world.one(0, udp(0, F::CLIENT, F::SERVER, 64, 10)).is_empty());
    assert_eq!((world.held(), world.drops(DropReason::NoFrame)), (1, 1));
    // No neighbour was asked, so none answers.
    assert!(world.pass(2 * SECOND).is_empty());
    world.pass(SECOND);
    assert_eq!(
        (world.held(), world.drops(DropReason::NoFrame), world.drops(DropReason::NeighFailed)),
        (0, 3, 1)
    );
}

/// How a family announces addresses.
trait Announced: TestFamily {
    const WHAT: Announce;
    /// Checks that `sent` announces all addresses of device `dev`, and nothing else.
    fn assert_announced(sent: &Sent, dev: u16);
}

impl Announced for Ipv4Addr {
    const WHAT: Announce = Announce { arp: true, nd: false };
    fn assert_announced(sent: &Sent, dev: u16) {
        let said = ArpPacket::announcement(MACS[usize::from(dev)], Self::OWN[usize::from(dev)]);
        assert_eq!(
            sent.iter().map(super::super::world::v4::heard).collect::<Vec<_>>(),
            [(dev, BROADCAST, said)]
        );
    }
}

impl Announced for Ipv6Addr {
    const WHAT: Announce = Announce { arp: false, nd: true };
    fn assert_announced(sent: &Sent, dev: u16) {
        let mac = MACS[usize::from(dev)];
        let said = |target| {
            let says = Message::Advertisement { target, mac: Some(mac), solicited: false, overrides: true };
            (dev, multicast_mac(ALL_NODES), target, ALL_NODES, 0xa0, says)
        };
        let all = [Self::OWN[usize::from(dev)], link_local(mac)].map(said);
        assert_eq!(sent.iter().map(super::super::world::v6::heard).collect::<Vec<_>>(), all);
    }
}

fn a_device_s_addresses_are_announced_twice<F: Announced>() {
    let mut world = World::<F>::new();
    let announce = |world: &mut World<F>, what| {
        world.call(|slow, ctx, view, out| slow.announce(ctx, view, 1, what, out)).0
    };
    let other = Announce { arp: !F::WHAT.arp, nd: !F::WHAT.nd };
    assert_eq!(announce(&mut world, other), [], "it has no address of the other family");
    world.pass(10 * SECOND);
    F::assert_announced(&announce(&mut world, Announce { arp: true, nd: true }), 1);
    assert!(world.pass(2 * SECOND - 1).is_empty());
    F::assert_announced(&world.pass(1), 1);
    assert!(world.pass(100 * SECOND).is_empty());
    assert_eq!(world.control.slow.next_deadline(), None);
    // Of a device that is gone there is nothing to tell.
    announce(&mut world, F::WHAT);
    world.vanish(1);
    assert!(world.pass(100 * SECOND).is_empty());
}
