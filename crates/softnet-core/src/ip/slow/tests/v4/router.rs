//! What a router owes the hosts on its links: redirects, and a neighbour table that a scan does not fill.

use super::*;
use crate::ip::neigh::{NeighParams, NeighState};
use crate::ip::slow::SlowPath;
use crate::ip::slow::world::QUEUE;
use crate::steer::TxChoice;

/// On the client's link, too.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
const ROUTER_MAC: MacAddr = [2, 0, 0, 0, 0, 0xfe];

/// The redirect that `sent` has to be, about `original`: the first hop to send to.
fn redirect(sent: &Frame, original: &[u8]) -> Ipv4Addr {
    let (kind, code, _) = Ipv4Addr::error(sent, original);
    assert_eq!((kind, code), (5, 1));
    Ipv4Addr::from(<[u8; 4]>::try_from(&sent.1[ETH_LEN + 24..][..4]).unwrap())
}

/// The client, and the other router on its link, have answered.
fn world() -> World {
    let mut world = World::acquainted();
    let packet = udp(0, CLIENT, BEYOND, 64, 10);
    // While the router is not known, the packet comes by the slow path, and the client is told at once.
    let sent = world.one(0, packet.clone());
    let (asked, told): (Vec<_>, Vec<_>) = sent.into_iter().partition(|(_, frame)| frame[12..14] == [8, 6]);
    assert_eq!((asked.len(), told.len()), (1, 1));
    assert_eq!(redirect(&told[0], &packet), ROUTER);
    assert!(world.choices.contains(&TxChoice::RxQueue(QUEUE)));
    let sent = world.one(0, Ipv4Addr::answer(0, ROUTER, ROUTER_MAC));
    Ipv4Addr::assert_forwarded(&sent[0], &packet, 0, ROUTER_MAC);
    world
}

/// RFC 1812 section 5.2.7.2, as often as the kernel's `ip_rt_send_redirect`.
#[test]
fn a_host_is_told_of_a_better_router_on_its_link() {
    let mut world = world();
    let packet = udp(0, CLIENT, BEYOND, 64, 700);
    let mut told = vec![];
    for ms in 0..20_000u64 {
        world.now = 20 * SECOND + ms * 1_000_000;
        let sent = world.one(0, packet.clone());
        // The packet goes on all the same, first of all.
        Ipv4Addr::assert_forwarded(&sent[0], &packet, 0, ROUTER_MAC);
        if sent.len() > 1 {
            assert_eq!((sent.len(), redirect(&sent[1], &packet)), (2, ROUTER));
            // By the TX queue of the flow that it answers.
            assert_eq!(world.choices, [TxChoice::RxQueue(QUEUE); 2]);
            told.push(ms);
        }
        if ms == 100 {
            break;
        }
    }
    // It was told once 20 s ago, which counts: the next gap is of four times 20 ms.
    assert_eq!(told, [0, 81]);
}

#[test]
fn a_redirect_says_which_packet_and_which_first_hop() {
    let mut world = world();
    world.now += 30 * SECOND;
    // Options of the packet are quoted as they came.
    let packet = with_options(BEYOND, 9, &[7, 7, 4, 0, 0, 0, 0]);
    let sent = world.one(0, packet.clone());
    let told: Vec<_> = sent.iter().filter(|(_, frame)| frame[ETH_LEN + 9] == 1).collect();
    assert_eq!(told.iter().map(|told| redirect(told, &packet)).collect::<Vec<_>>(), [ROUTER]);
    // To a host on the same link the first hop is that host.
    world.now += 30 * SECOND;
    let packet = udp(0, CLIENT, OTHER, 64, 10);
    let sent = world.one(0, packet.clone());
    assert_eq!(redirect(sent.iter().find(|(_, frame)| frame[12..14] == [8, 0]).unwrap(), &packet), OTHER);
    // By the fast path, in a batch with others.
    world.one(0, Ipv4Addr::answer(0, OTHER, ROUTER_MAC));
    world.now += 30 * SECOND;
    let away = udp(0, CLIENT, SERVER, 64, 10);
    let sent = world.input(0, &[away.clone(), packet.clone(), away]);
    let told: Vec<_> = sent.iter().filter(|(dev, frame)| *dev == 0 && frame[ETH_LEN + 9] == 1).collect();
    assert_eq!(told.iter().map(|told| redirect(told, &packet)).collect::<Vec<_>>(), [OTHER]);
}

#[test]
fn no_other_sender_is_redirected() {
    let mut world = world();
    world.now += 30 * SECOND;
    let far = BEYOND;
    let mut silent = |frame: Vec<u8>, sender: Ipv4Addr| {
        world.now += 30 * SECOND;
        let sent = world.one(0, frame.clone());
        let told = sent.iter().any(|(_, frame)| frame[12..14] == [8, 0] && frame[ETH_LEN + 20] == 5);
        assert!(!told, "{sender}");
    };
    // From beyond the link; from the router itself; of another network on the same wire; an error about something.
    let frame = |src, dst| udp(0, src, dst, 64, 10);
    silent(frame(FAR, far), FAR);
    silent(frame(ROUTER, far), ROUTER);
    silent(frame(STRANGER, far), STRANGER);
    let error = unreachable(3, &frame(far, CLIENT));
    silent(mend(set(error, ETH_LEN + 16, &far.octets())), CLIENT);
    // What can't go on is told that alone.
    silent(udp(0, CLIENT, far, 1, 10), CLIENT);
    // Switched off.
    world.reconfigure(0, |iface| iface.send_redirects = false);
    world.now += 30 * SECOND;
    let packet = frame(CLIENT, far);
    assert_eq!(world.one(0, packet).len(), 1);
}

/// The packets of a scan of the server's link, one for each address, from the client.
fn scan(world: &mut World, addresses: std::ops::Range<u32>) {
    for n in addresses {
        world.now += 100_000;
        world.pass(0);
        world.one(0, udp(0, CLIENT, Ipv4Addr::from_bits(0xcb00_7100 + n % 256), 64, 1));
        world.one(0, udp(0, CLIENT, Ipv4Addr::from_bits(0x0a01_0002 + n % 250), 64, 1));
    }
}

#[test]
fn a_new_neighbour_is_answered_while_a_link_is_scanned() {
    let mut world = World::with_frames(4096);
    let small = NeighParams { gc_thresh1: 8, gc_thresh2: 16, gc_thresh3: 32, ..NeighParams::default() };
    world.control.slow = SlowPath::new(small, [1, 2]);
    world.control.slow.set_gateways([(1, GATEWAY.into())]);
    world.one(0, udp(0, CLIENT, FAR, 64, 10));
    world.one(1, Ipv4Addr::answer(1, GATEWAY, SERVER_MAC));
    world.one(0, Ipv4Addr::question(0, CLIENT, CLIENT_MAC));
    for round in 0..20 {
        scan(&mut world, round * 200..(round + 1) * 200);
        // It asks for softnet, and pings it.
        let new = Ipv4Addr::new(10, 1, 0, 100 + round as u8);
        let mac = [2, 0, 0, 0, 9, round as u8];
        assert_eq!(heard(&world.one(1, Ipv4Addr::question(1, new, mac))[0]).1, mac);
        let mut ping = echo(OWN[1], 64);
        ping[..12].copy_from_slice(&[&MACS[1][..], &mac].concat());
        ping[ETH_LEN + 12..][..4].copy_from_slice(&new.octets());
        let sent = world.one(1, mend(ping));
        assert_eq!((sent.len(), sent[0].0, &sent[0].1[..6]), (1, 1, &mac[..]), "round {round}");
        assert_ne!(world.state(GATEWAY), NeighState::None);
    }
    assert_eq!(world.one(0, udp(0, CLIENT, FAR, 64, 10))[0].1[..6], SERVER_MAC);
}
