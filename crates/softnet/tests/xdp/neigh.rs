//! Neighbours: many of them, new ones while a link is scanned, and what softnet tells the kernels on its links.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use softnet::config::InterfaceAddr;
use softnet_core::ip::v6::addr::ALL_ROUTERS;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::follow::ip;
use super::hosts::Icmp;
use super::world::{World, host, host6, interface, softnet, softnet6, until};

/// Whether a datagram from `src`, in `ns`, to the echo server at `dst` comes back in time.
fn answered(ns: &NetNs, src: IpAddr, dst: IpAddr) -> bool {
    ns.run(|| {
        let Ok(socket) = UdpSocket::bind((src, 0)) else { return false };
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let sent = socket.connect((dst, 7)).and_then(|()| socket.send(b"am I heard?"));
        sent.is_ok() && socket.recv(&mut [0; 16]).is_ok_and(|n| n == 11)
    })
    .unwrap()
}

/// What the kernel of `ns` knows of its IPv4 neighbours: addresses, and where they are.
fn arp_table(ns: &NetNs) -> Vec<(Ipv4Addr, String)> {
    let table = ns.run(|| std::fs::read_to_string("/proc/thread-self/net/arp").unwrap()).unwrap();
    let row = |line: &str| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?.parse().ok()?, fields.nth(2)?.to_owned()))
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Twelve hundred entries of one device, where the kernel has room for 1024 of each family.
#[test]
fn six_hundred_hosts_of_both_families_are_answered() {
    const HOSTS: u16 = 600;
    let Some(mut world) = World::dual(2) else { return };
    let mut config = world.config_dual();
    config.devices[1].addresses[0] = InterfaceAddr::new(softnet(1), 16).unwrap();
    let hosts: Vec<IpAddr> = (0..HOSTS)
        .flat_map(|n| {
            let [high, low] = (n + 256).to_be_bytes();
            let v6 = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 1, n);
            [Ipv4Addr::new(10, 1, high, low).into(), v6.into()]
        })
        .collect();
    world.hosts[1]
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            hosts.iter().for_each(|ip| {
                netlink.add_address("eth0", *ip, if ip.is_ipv4() { 16 } else { 64 }).unwrap();
            });
        })
        .unwrap();
    world.start_with(config);
    let _echoes = world.echoes();
    for ip in &hosts {
        let to: IpAddr = if ip.is_ipv4() { host(0).into() } else { host6(0).into() };
        until(&format!("an answer to {ip}"), || answered(&world.hosts[1], *ip, to));
    }
    let drops = world.view().drops();
    assert!(!drops.iter().any(|row| row.reason == "neigh_tablefull"), "{drops:?}");
    world.end();
}

/// A host scans the /16 of another link. New neighbours there, which ask for softnet and use it, are answered meanwhile.
#[test]
fn new_neighbours_are_answered_while_their_link_is_scanned() {
    let Some(mut world) = World::new(2) else { return };
    let mut config = world.config();
    config.devices[1].addresses = vec![InterfaceAddr::new(softnet(1), 16).unwrap()];
    let new: Vec<_> = (10..45).map(|n| Ipv4Addr::new(10, 1, 0, n)).collect();
    world.hosts[1]
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            new.iter().for_each(|ip| netlink.add_address("eth0", *ip, 24).unwrap());
        })
        .unwrap();
    world.start_with(config);
    let _echoes = world.echoes();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = world.hosts[0].run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
            let mut n = 0u16;
            while !done.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    // From 10.1.1.0 on, and round again.
                    let [high, low] = (n % 0xfe00 + 0x100).to_be_bytes();
                    let to = SocketAddr::from((Ipv4Addr::new(10, 1, high, low), 9));
                    // What the sender's queue has no room for is none of the scan.
                    let _ = socket.send_to(b"who is there?", to);
                    n = n.wrapping_add(1);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        until("a full table", || world.view().neighbours().len() >= 1000);
        for ip in &new {
            until(&format!("an answer to {ip}"), || answered(&world.hosts[1], (*ip).into(), host(0).into()));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(world.view().neighbours().len() <= 1024 + 2);
    world.end();
}

/// softnet's interface gets another MAC address: the kernels on the link learn it without asking.
#[test]
fn a_new_mac_address_is_announced() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    let icmp = Icmp::v6(&world.hosts[0]);
    let announced = |icmp: &Icmp| {
        let of_softnet = |from: IpAddr| from == IpAddr::V6(softnet6(0));
        icmp.receive(|message| of_softnet(message.from) && message.kind == (136, 0)).is_some()
    };
    // As it starts.
    until("an unsolicited advertisement", || announced(&icmp));
    let known =
        || arp_table(&world.hosts[0]).into_iter().find(|(ip, _)| *ip == softnet(0)).map(|(_, mac)| mac);
    until("a neighbour", || {
        let _ = Icmp::new(&world.hosts[0]).ping(softnet(0), 64, b"where are you?");
        known().is_some_and(|mac| mac != "00:00:00:00:00:00")
    });
    let icmp = Icmp::v6(&world.hosts[0]);
    let set = || Netlink::new().unwrap().set_mac(&interface(0), [2, 0, 0, 0, 0xaa, 1]).unwrap();
    world.middle.run(set).unwrap();
    // The kernel does not speak to it, so it has nothing to ask.
    until("the new MAC address", || known().as_deref() == Some("02:00:00:00:aa:01"));
    until("an unsolicited advertisement", || announced(&icmp));
    world.end();
}

/// A host sends by way of softnet what it could send itself: its kernel is told, and believes it.
#[test]
fn kernels_believe_redirects() {
    let Some(mut world) = World::dual(1) else { return };
    let beside = Ipv4Addr::new(10, 0, 0, 77);
    let beside6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x77);
    world.hosts[0]
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_route(beside, 32, softnet(0)).unwrap();
            netlink.add_route(beside6, 128, softnet6(0)).unwrap();
        })
        .unwrap();
    world.start_with(world.config_dual());
    let (icmp, icmp6) = (Icmp::new(&world.hosts[0]), Icmp::v6(&world.hosts[0]));
    until("a redirect", || {
        icmp.ping(beside, 64, b"over there?");
        icmp.receive(|message| message.kind == (5, 1)).is_some_and(|message| {
            assert_eq!((message.from, &message.bytes[4..8]), (softnet(0).into(), &beside.octets()[..]));
            true
        })
    });
    // It looks for the host itself now.
    until("a question", || arp_table(&world.hosts[0]).iter().any(|(ip, _)| *ip == beside));
    until("a redirect of IPv6", || {
        icmp6.ping(beside6, 64, b"over there?");
        icmp6.receive(|message| message.kind == (137, 0)).is_some_and(|message| {
            let both = [beside6.octets(), beside6.octets()].concat();
            assert_eq!((&message.bytes[8..40], message.bytes[40]), (&both[..], 4));
            true
        })
    });
    world.end();
}

/// RFC 4291 section 2.6.1.
#[test]
fn the_address_of_all_routers_is_answered() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    let icmp = Icmp::v6(&world.hosts[0]);
    until("an echo", || {
        icmp.ping(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 64, b"a router?");
        icmp.receive(|message| message.kind == (129, 0)).is_some_and(|message| {
            assert_eq!(message.from, IpAddr::V6(softnet6(0)));
            true
        })
    });
    let index = || Netlink::new().unwrap().link("eth0").unwrap().unwrap().index;
    let ifindex = world.hosts[0].run(index).unwrap();
    for group in ALL_ROUTERS {
        until(&format!("an answer from {group}"), || {
            icmp.ping_on(group, ifindex, 64, b"a router?");
            icmp.receive(|message| message.kind == (129, 0)).is_some()
        });
    }
    world.end();
}

/// A host that takes an address of softnet's is noticed; softnet goes on answering for it.
#[test]
fn a_neighbour_with_an_own_address_is_counted() {
    let Some(mut world) = World::new(2) else { return };
    world.start_with(world.config());
    let conflicts = |world: &World| world.view().stats().address_conflicts;
    assert_eq!(conflicts(&world), 0);
    let host = &world.hosts[0];
    ip(host, &format!("addr add {}/24 dev eth0", softnet(0)));
    until("a conflict", || {
        // It asks as the one that has the address.
        ip(host, "neigh flush dev eth0");
        let socket = host.run(|| UdpSocket::bind((softnet(0), 0)).unwrap()).unwrap();
        socket.send_to(b"I am it", (Ipv4Addr::new(10, 0, 0, 77), 9)).unwrap();
        conflicts(&world) > 0
    });
    ip(host, &format!("addr del {}/24 dev eth0", softnet(0)));
    world.end();
}
