//! IPv6 through softnet, to softnet, and past it, beside IPv4.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, TcpStream, UdpSocket};
use std::time::Duration;

use softnet::config::{NeighbourConfig, RouteConfig, RouteTarget};
use softnet_core::ip::v6::addr::link_local;
use softnet_dev::netlink::Netlink;

use super::hosts::{Echo, Icmp, Message, ask, tcp};
use super::world::{World, host, host6, interface, kernel6, softnet6, until};

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

/// Pings `to` until the reply comes.
fn assert_ping(icmp: &Icmp, to: Ipv6Addr, len: usize) {
    until(&format!("a ping of {to}"), || {
        let reply = icmp.ping(to, 64, &payload(len));
        icmp.receive(|message| message.from == IpAddr::V6(to) && message.kind == (129, 0))
            .is_some_and(|message| message.bytes == reply)
    });
}

#[test]
fn ping_udp_and_tcp_pass_intact_in_both_families() {
    let Some(mut world) = World::dual(2) else { return };
    world.start_with(world.config_dual());
    let _echoes = world.echoes();
    for (from, to) in [(0, 1), (1, 0)] {
        let icmp = Icmp::v6(&world.hosts[from]);
        for len in [0, 1, 56, 1452] {
            assert_ping(&icmp, host6(to), len);
            assert_ping(&icmp, softnet6(from), len);
            assert_ping(&icmp, softnet6(to), len);
        }
        for len in [0, 1, 18, 700, 1452] {
            until("an echo", || world.hosts[from].run(|| ask(host6(to), &payload(len))).unwrap());
            until("an echo", || world.hosts[from].run(|| ask(host(to), &payload(len))).unwrap());
        }
        tcp(&world.hosts[from], &world.hosts[to], host6(to), 500_000);
        tcp(&world.hosts[from], &world.hosts[to], host(to), 100_000);
    }
    let (view, of) = (world.view(), |i: usize| IpAddr::V6(host6(i)));
    let known: Vec<_> = view.neighbours().into_iter().filter(|row| row.ip.is_ipv6()).collect();
    for i in 0..2 {
        let row = known.iter().find(|row| row.ip == of(i)).expect("a neighbour");
        assert!(row.mac.is_some() && row.dev == interface(i) && row.state != "failed", "{row:?}");
    }
    // What kernels tell each other by multicast while they start is no loss.
    let drops = view.drops();
    assert!(drops.iter().all(|row| row.reason == "qdisc_overlimit"), "{drops:?}");
    world.end();
}

/// Neighbours ask each other anew when they have forgotten: the kernel softnet, and softnet the kernel.
#[test]
fn neighbours_find_each_other_again() {
    let Some(mut world) = World::dual(2) else { return };
    world.start_with(world.config_dual());
    let _echoes = world.echoes();
    let connected = || until("an echo", || world.hosts[0].run(|| ask(host6(1), b"anybody there?")).unwrap());
    connected();
    let mac = |i: usize| {
        let rows = world.view().neighbours();
        rows.into_iter().find(|row| row.ip == IpAddr::V6(host6(i))).and_then(|row| row.mac)
    };
    let before = mac(1);
    // Down and up, the kernel has forgotten; and its neighbour has another address, of which softnet was not told.
    world.hosts[1]
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.set_down("eth0").unwrap();
            netlink.set_mac("eth0", [2, 0, 0, 0, 0xee, 1]).unwrap();
            netlink.set_up("eth0").unwrap();
            netlink.add_address("eth0", host6(1), 64).unwrap();
            netlink.add_route(Ipv6Addr::UNSPECIFIED, 0, softnet6(1)).unwrap();
        })
        .unwrap();
    // The neighbour is the first to speak, and so tells where it is.
    until("an echo", || world.hosts[1].run(|| ask(host6(0), b"still there?")).unwrap());
    connected();
    assert_eq!((mac(1).as_deref(), before == mac(1)), (Some("02:00:00:00:ee:01"), false));
    world.end();
}

#[test]
fn softnet_says_what_is_wrong() {
    let Some(mut world) = World::dual(2) else { return };
    for (ns, name) in [(&world.middle, interface(1)), (&world.hosts[1], "eth0".into())] {
        ns.run(|| Netlink::new().unwrap().set_mtu(&name, 1400).unwrap()).unwrap();
    }
    world.start_with(world.config_dual());
    let _echoes = world.echoes();
    let client = &world.hosts[0];
    let icmp = Icmp::v6(client);
    assert_ping(&icmp, host6(1), 10);
    // Traceroute: the first hop is softnet, the second is there.
    let says = |message: &Message, kind| message.from == IpAddr::V6(softnet6(0)) && message.kind == kind;
    until("time exceeded", || {
        icmp.ping(host6(1), 1, b"how far?");
        icmp.receive(|message| says(message, (3, 0))).is_some_and(|message| {
            assert!(message.bytes.ends_with(b"how far?"));
            true
        })
    });
    until("the second hop", || {
        icmp.ping(host6(1), 2, b"how far?");
        icmp.receive(|message| message.from == IpAddr::V6(host6(1)) && message.kind == (129, 0)).is_some()
    });
    // No socket serves UDP here.
    until("port unreachable", || {
        let socket = client.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect((softnet6(0), 9)).unwrap();
        let _ = socket.send(b"anybody?");
        socket.recv(&mut [0; 9]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    // Nor TCP.
    until("a reset", || {
        let connected = client.run(|| TcpStream::connect((softnet6(0), 9))).unwrap();
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    until("no route", || {
        icmp.ping(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 64, b"");
        icmp.receive(|message| says(message, (1, 0))).is_some()
    });
    until("address unreachable", || {
        icmp.ping(Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 0x77), 64, b"");
        icmp.receive(|message| says(message, (1, 3))).is_some()
    });
    until("too big", || {
        icmp.ping(host6(1), 64, &payload(1400));
        let too_big =
            |message: &Message| says(message, (2, 0)) && message.bytes[4..8] == 1400u32.to_be_bytes();
        icmp.receive(too_big).is_some()
    });
    // The kernel is told what fits, and sends fragments from then on.
    until("path MTU discovery", || client.run(|| ask(host6(1), &payload(1390))).unwrap());
    tcp(client, &world.hosts[1], host6(1), 100_000);
    world.end();
}

/// The interface is softnet's and the kernel's: what is addressed to the kernel there goes to the kernel, and the two do not
/// disturb each other's neighbours.
#[test]
fn the_kernel_keeps_its_own_address() {
    let Some(mut world) = World::dual(2) else { return };
    let _kernels = Echo::start(&world.middle);
    world.start_with(world.config_dual());
    let _echoes = world.echoes();
    for i in [0, 1] {
        assert_ping(&Icmp::v6(&world.hosts[i]), kernel6(i), 100);
        let ask_kernel = || world.hosts[i].run(|| ask(kernel6(i), &payload(900))).unwrap();
        until("an echo of the kernel", ask_kernel);
        tcp(&world.hosts[i], &world.middle, kernel6(i), 100_000);
    }
    // softnet had no part in it.
    let stats = world.view().stats();
    assert!(stats.received < 20, "{stats:?}");
    until("an echo", || world.hosts[0].run(|| ask(host6(1), b"anybody there?")).unwrap());
    world.end();
}

/// Where softnet has no address of it, IPv6 is the kernel's.
#[test]
fn without_an_address_ipv6_is_left_to_the_kernel() {
    let Some(mut world) = World::dual(2) else { return };
    world.start();
    let icmp = Icmp::v6(&world.hosts[0]);
    assert_ping(&icmp, kernel6(0), 100);
    icmp.ping(softnet6(0), 64, b"anybody?");
    assert!(icmp.receive(|message| message.from == IpAddr::V6(softnet6(0))).is_none());
    assert!(world.view().devs().iter().all(|row| row.addresses.len() == 1));
    world.end();
}

/// A route by way of a link-local gateway, and a neighbour that is configured; what `show` says of both.
#[test]
fn link_local_gateways_and_permanent_neighbours() {
    let Some(mut world) = World::dual(2) else { return };
    let mac_of = |i: usize| {
        let link = world.hosts[i].run(|| Netlink::new().unwrap().existing_link("eth0").unwrap()).unwrap();
        link.mac
    };
    let far: Ipv6Addr = "fd00:9::9".parse().unwrap();
    world.hosts[1].run(|| Netlink::new().unwrap().add_address("eth0", far, 128).unwrap()).unwrap();
    let mut config = world.config_dual();
    let gateway = link_local(mac_of(1));
    config.routes.push(RouteConfig::new(
        "fd00:9::/32".parse().unwrap(),
        RouteTarget::ViaLinkLocal(gateway, interface(1)),
    ));
    config.neighbours.push(NeighbourConfig::new(interface(0), host6(0), mac_of(0)));
    world.start_with(config);
    assert_ping(&Icmp::v6(&world.hosts[0]), far, 56);
    let view = world.view();
    let route = view.routes().into_iter().find(|row| row.prefix == "fd00:9::/32").expect("the route");
    assert_eq!(
        (route.kind.as_str(), route.via, route.dev),
        ("via", Some(gateway.into()), Some(interface(1)))
    );
    let states = |ip: IpAddr| view.neighbours().into_iter().find(|row| row.ip == ip).map(|row| row.state);
    assert_eq!(states(host6(0).into()).as_deref(), Some("permanent"));
    assert_eq!(states(gateway.into()).as_deref(), Some("reachable"));
    let dev = view.devs().swap_remove(0);
    let own = world.middle.run(|| Netlink::new().unwrap().existing_link(&interface(0)).unwrap()).unwrap().mac;
    assert_eq!(dev.addresses, ["10.0.0.1/24".into(), "fd00::1/64".into(), format!("{}/64", link_local(own))]);
    world.end();
}

/// The groups in which others look for softnet's addresses are the interface's, for as long as softnet has it.
#[test]
fn the_interface_is_in_the_groups_of_softnets_addresses() {
    let Some(mut world) = World::dual(1) else { return };
    let middle = world.middle.try_clone().unwrap();
    let joined = || {
        let groups = middle.run(|| std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap()).unwrap();
        // Of fd00::1. The kernel's own addresses there have others.
        groups.contains("ff0200000000000000000001ff000001")
    };
    assert!(!joined());
    world.start_with(world.config_dual());
    assert!(joined());
    world.end();
    assert!(!joined());
}

/// Nothing smaller than 1280 bytes can carry IPv6 (RFC 8200 section 5).
#[test]
fn an_interface_that_is_too_small_is_refused() {
    let Some(world) = World::dual(1) else { return };
    world.middle.run(|| Netlink::new().unwrap().set_mtu(&interface(0), 1279).unwrap()).unwrap();
    let error = world.try_start(world.config_dual()).expect_err("too small").to_string();
    assert!(error.contains("s0: expected an MTU of at least 1280 for IPv6, found 1279"), "{error}");
    // IPv4 alone is fine.
    drop(world.try_start(world.config()).unwrap());
}
