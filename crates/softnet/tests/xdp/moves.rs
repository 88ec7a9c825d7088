//! Neighbours that move: what they say of that to all reaches softnet and the kernel, which share the interface.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use softnet::driver::{Xdp, XdpMode};
use softnet_core::ip::checksum;
use softnet_core::ip::v4::arp::{self, ArpPacket, BROADCAST};
use softnet_core::ip::v6::addr::{ALL_NODES, multicast_mac};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_dev::packet::PacketSocket;

use super::hosts::ask;
use super::world::{World, host, host6, interface, until};

type Mac = [u8; 6];

/// A packet socket on the host's interface, which sees whatever comes by its wire.
fn wire(host: &NetNs) -> PacketSocket {
    let open = || PacketSocket::open(Netlink::new().unwrap().existing_link("eth0").unwrap().index, &[]);
    host.run(open).unwrap().unwrap()
}

fn framed(dst: Mac, src: Mac, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    [&dst[..], &src, &ethertype.to_be_bytes(), packet].concat()
}

fn arp_frame(packet: ArpPacket) -> Vec<u8> {
    let mut bytes = [0; arp::LEN];
    packet.write(&mut bytes);
    framed(BROADCAST, packet.sender_mac, arp::ETHERTYPE, &bytes)
}

/// `target` tells all nodes that it is at `mac` (RFC 4861 section 7.2.6).
fn advertisement(target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets(), &[2, 1], &mac].concat();
    let pseudo = checksum::pseudo_header_sum6(target, ALL_NODES, 58, message.len() as u16);
    let sum = !checksum::add(pseudo, checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = [&[0x60, 0, 0, 0, 0, message.len() as u8, 58, 255][..], &target.octets()].concat();
    framed(multicast_mac(ALL_NODES), mac, 0x86dd, &[&header[..], &ALL_NODES.octets(), &message].concat())
}

/// Has `sender` send to `to` until a datagram leaves for `mac`. Of what passes the wire meanwhile, nothing may ask.
fn assert_goes_to(wire: &PacketSocket, sender: &NetNs, to: IpAddr, mac: Mac) {
    let socket = sender.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
    let to_all_families = match to {
        IpAddr::V4(to) => to.to_ipv6_mapped(),
        IpAddr::V6(to) => to,
    };
    let mut buffer = [0; 2048];
    until(&format!("a datagram to {to} for {mac:x?}"), || {
        socket.send_to(b"where are you?", (to_all_families, 9)).unwrap();
        while let Some(len) = wire.recv(&mut buffer).unwrap() {
            if buffer[..len].ends_with(b"where are you?") && buffer[..6] == mac {
                return true;
            }
        }
        false
    });
}

#[test]
fn a_neighbour_that_moves_is_followed_by_softnet_and_by_the_kernel() {
    for mode in [XdpMode::Auto, XdpMode::Skb] {
        let Some(mut world) = World::dual(2) else { return };
        let mut config = world.config_dual();
        config.devices.iter_mut().for_each(|device| device.driver.get_mut::<Xdp>().unwrap().mode = mode);
        world.start_with(config);
        let _echoes = world.echoes();
        let (v4, v6) = (IpAddr::from(host(1)), IpAddr::from(host6(1)));
        for to in [v4, v6] {
            for from in [&world.hosts[0], &world.middle] {
                until("an echo", || from.run(|| ask(to, b"here?")).unwrap());
            }
        }
        let known = |ip: IpAddr| {
            let rows = world.view().neighbours();
            rows.into_iter().find(|row| row.ip == ip && row.dev == interface(1)).and_then(|row| row.mac)
        };
        let wire = wire(&world.hosts[1]);
        let said = |n: u8| -> Mac { [2, 0, 0, 0, 0x77, n] };
        let request = ArpPacket::announcement(said(1), host(1));
        let reply = ArpPacket { target_mac: said(2), ..request.reply(said(2)) };
        for (n, ip, frame) in [
            (1, v4, arp_frame(request)),
            (2, v4, arp_frame(reply)),
            (3, v6, advertisement(host6(1), said(3))),
        ] {
            // It really is where it was, so that nothing else than the frame can say so.
            wire.send(&frame).unwrap();
            let mac = said(n).map(|byte| format!("{byte:02x}")).join(":");
            until(&format!("{ip} at {mac}"), || known(ip).as_deref() == Some(&mac[..]));
            assert_goes_to(&wire, &world.hosts[0], ip, said(n));
            wire.send(&frame).unwrap();
            assert_goes_to(&wire, &world.middle, ip, said(n));
        }
        assert!(world.devs()[1].snooped >= 6);
        world.end();
    }
}

/// However much is said to all, the housekeeper looks now and then, and what counts is heard in the end.
#[test]
fn a_storm_is_survived_and_counted() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    until("an echo", || world.hosts[0].run(|| ask(host(1), b"here?")).unwrap());
    let wire = wire(&world.hosts[1]);
    let stranger =
        |i: u32| ArpPacket::announcement([2, 0, 0, 1, 0, i as u8], (0x0a01_0100 + i % 0xfe00).into());
    let moved = arp_frame(ArpPacket::announcement([2, 0, 0, 0, 0x77, 9], host(1)));
    (0..20_000).for_each(|i| _ = wire.send(&arp_frame(stranger(i))));
    let known = || {
        let rows = world.view().neighbours();
        rows.into_iter().find(|row| row.ip == IpAddr::from(host(1))).and_then(|row| row.mac)
    };
    until("the one that is known", || {
        wire.send(&moved).unwrap();
        known().as_deref() == Some("02:00:00:00:77:09")
    });
    assert!(world.view().neighbours().len() <= 2, "strangers are not remembered");
    world.end();
}
