//! VLANs over a wire: received, answered, and forwarded between each other and what has no tag.

use std::net::Ipv4Addr;

use softnet::config::{Config, DeviceConfig, InterfaceAddr, NeighbourConfig};
use softnet::driver::{Vlan, VlanProtocol};
use softnet::net::UdpSocket;
use softnet_core::ip::v4::arp::{ArpPacket, BROADCAST, Operation};

use super::frames::{host, host_mac, number_of, numbered, own, own_mac, to_port};
use super::world::{Lane, Setup, World, until};

/// Devices: two wires, VLAN 5 over the first, provider's VLAN 7, and VLAN 9 over that.
const NAMES: [&str; 5] = ["mem0", "mem1", "mem0.5", "s7", "s7.9"];
const TAGS: [&[u8]; 5] =
    [&[], &[], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 7], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9]];

fn start(workers: usize) -> (World, Vec<Lane>) {
    let setup = Setup { ports: &[1, 1], workers, known: true, ..Setup::default() };
    setup.start_with(add_vlans)
}

/// The same, where the VLANs are added to the wires while it runs.
fn start_and_add(workers: usize) -> (World, Vec<Lane>) {
    let setup = Setup { ports: &[1, 1], workers, known: true, ..Setup::default() };
    let mut config = Config::default();
    let (world, lanes) = setup.start_with(|wires| config = wires.clone());
    add_vlans(&mut config);
    let changes = world.view.apply(config).unwrap().changes;
    assert!(NAMES[2..].iter().all(|name| changes.contains(&format!("{name}: added"))), "{changes:?}");
    (world, lanes)
}

fn add_vlans(config: &mut Config) {
    let provider = |vlan: &mut Vlan| vlan.protocol = VlanProtocol::Dot1ad;
    let vlans = [Vlan::new("mem0", 5), Vlan::new("mem0", 7).with(provider), Vlan::new("s7", 9)];
    // Links may come behind what is over them.
    for (dev, vlan) in vlans.into_iter().enumerate().map(|(i, vlan)| (i + 2, vlan)).rev() {
        config.devices.push(DeviceConfig::new(NAMES[dev]).with(|device| {
            device.addresses = vec![InterfaceAddr::new(own(dev), 24).unwrap()];
            device.driver = vlan.into();
        }));
        config.neighbours.push(NeighbourConfig::new(NAMES[dev], host(dev), host_mac(dev)));
    }
}

/// The wire of a device.
fn wire(dev: usize) -> usize {
    usize::from(dev == 1)
}

fn tagged(mut frame: Vec<u8>, dev: usize) -> Vec<u8> {
    frame[..6].copy_from_slice(&own_mac(wire(dev)));
    frame.splice(12..12, TAGS[dev].iter().copied());
    frame
}

/// The device that a frame leaves by, and the frame without its tags.
fn untagged(port: usize, frame: &[u8]) -> (usize, Vec<u8>) {
    let is = |dev: &usize| wire(*dev) == port && frame[12..].starts_with(TAGS[*dev]);
    let dev = (0..5).filter(is).max_by_key(|dev| TAGS[*dev].len()).unwrap();
    (dev, [&frame[..12], &frame[12 + TAGS[dev].len()..]].concat())
}

/// The next IPv4 frame that softnet sends, and by which device.
fn next(lanes: &mut [Lane]) -> (usize, Vec<u8>) {
    let mut got = None;
    until("a frame", || {
        for lane in &mut *lanes {
            let port = lane.port;
            lane.receive(|frame| assert!(got.replace(untagged(port, frame)).is_none(), "two frames"));
        }
        got.is_some()
    });
    got.unwrap()
}

#[test]
fn packets_pass_between_vlans_and_what_has_no_tag() {
    for (workers, added) in [(1, false), (2, false), (1, true), (2, true)] {
        let (world, mut lanes) = if added { start_and_add(workers) } else { start(workers) };
        let (mut sent, mut passed) = (0, [[0u64; 2]; 5]);
        for (from, to) in (0..25).map(|n| (n / 5, n % 5)).filter(|(from, to)| from != to) {
            let frames: Vec<_> =
                (0..40).map(|number| tagged(numbered(from, host(to), 7, number), from)).collect();
            assert_eq!(lanes[wire(from)].send(&frames), 40);
            let mut got = Vec::new();
            until("all packets", || {
                for lane in &mut lanes {
                    let port = lane.port;
                    lane.receive(|frame| {
                        let (dev, frame) = untagged(port, frame);
                        assert_eq!((dev, &frame[..6]), (to, &host_mac(to)[..]));
                        assert_eq!(frame[6..12], own_mac(wire(to)));
                        got.extend(number_of(&frame));
                    });
                }
                got.len() == 40
            });
            assert_eq!(got, (0..40).map(|number| (7, number)).collect::<Vec<_>>(), "from {from} to {to}");
            sent += 40;
            (passed[from][0], passed[to][1]) = (passed[from][0] + 40, passed[to][1] + 40);
        }
        world.settle(sent);
        let rows = world.view.devs();
        let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        for dev in [1, 2, 4] {
            let row = of(NAMES[dev]);
            assert_eq!([row.rx_packets, row.tx_packets], passed[dev], "{row:?}");
        }
        // What is over it passes it, too.
        let outer = of("s7");
        assert_eq!([outer.rx_packets, outer.tx_packets], [0, 1].map(|i| passed[3][i] + passed[4][i]));
        assert_eq!((&outer.driver[..], &outer.mode[..]), ("vlan", "802.1ad id 7 over mem0"));
        assert_eq!((&outer.link[..], outer.mtu, &outer.mac), ("up", 1500, &of("mem0").mac));
        assert_eq!(world.view.drops().len(), 0, "{:?}", world.view.drops());
        world.end(lanes);
    }
}

#[test]
fn what_is_of_no_vlan_here_is_counted_and_a_priority_is_none() {
    let (world, mut lanes) = start(1);
    let frame = |tag: &[u8]| {
        let mut frame = numbered(0, host(1), 1, 1);
        frame.splice(12..12, tag.iter().copied());
        frame
    };
    let (id5, id6) = ([0x81, 0, 0, 5], [0x81, 0, 0xe0, 6]);
    let other_kind = [0x88, 0xa8, 0, 5];
    let unknown_inside = [TAGS[3], &id6].concat();
    for tag in [&id6[..], &other_kind, &unknown_inside] {
        assert_eq!(lanes[0].send(&[frame(tag)]), 1);
    }
    // Twice of the same VLAN is not of that VLAN.
    assert_eq!(lanes[0].send(&[frame(&[id5, id5].concat())]), 1);
    assert_eq!(lanes[0].send(&[frame(&[0x81, 0, 0xe0, 0])]), 1);
    assert_eq!(next(&mut lanes).0, 1);
    world.settle(5);
    let drops: Vec<_> =
        world.view.drops().into_iter().map(|row| (row.dev, row.reason, row.packets)).collect();
    let of = |dev: &str, reason: &str, n| (dev.to_owned(), reason.to_owned(), n);
    let want =
        [of("mem0", "vlan_unknown", 2), of("s7", "vlan_unknown", 1), of("mem0.5", "unhandled_proto", 1)];
    assert!(want.iter().all(|row| drops.contains(row)) && drops.len() == 3, "{drops:?}");
    world.end(lanes);
}

#[test]
fn a_vlan_answers_for_its_own_addresses_and_has_sockets() {
    let (world, mut lanes) = start(2);
    let socket = UdpSocket::bind(&world.handle(), (Ipv4Addr::UNSPECIFIED, 7)).unwrap();
    let mut sent = 0;
    for dev in [2, 3, 4, 0] {
        // Asked for in its VLAN, and in the next.
        let ask = |of: usize, dev: usize| {
            let packet = ArpPacket::request(host_mac(dev), host(of), own(of));
            let mut frame = [&BROADCAST[..], &host_mac(dev), &[8, 6], &[0; 28]].concat();
            packet.write(frame[14..].first_chunk_mut().unwrap());
            frame.splice(12..12, TAGS[dev].iter().copied());
            frame
        };
        let other = if dev == 2 { 3 } else { 2 };
        assert_eq!(lanes[0].send(&[ask(dev, other)]), 1);
        assert_eq!(lanes[0].send(&[ask(dev, dev)]), 1);
        let (by, reply) = next(&mut lanes);
        let reply = ArpPacket::parse(&reply[14..]).unwrap();
        assert_eq!((by, reply.operation, reply.sender_ip), (dev, Operation::Reply, own(dev)));
        assert_eq!(reply.sender_mac, own_mac(0));

        let frame = to_port(numbered(dev, own(dev), 3, 4), 7);
        assert_eq!(lanes[0].send(&[tagged(frame, dev)]), 1);
        let mut buf = [0; 64];
        let (n, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!(from.ip(), host(dev));
        socket.send_to(&buf[..n], from).unwrap();
        let (by, frame) = next(&mut lanes);
        assert_eq!((by, number_of(&frame)), (dev, Some((3, 4))));
        sent += 3;
    }
    world.settle(sent);
    drop(socket);
    world.end(lanes);
}
