//! NAT64 and NPTv6 between kernels. Host 0 reaches softnet by IPv6 alone, host 1 by IPv4 alone (in the
//! last test by IPv6, too).

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use softnet::config::{Config, InterfaceAddr, NatConfig, NatPrefixConfig, NatSourceConfig};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::{Icmp, ask, tcp};
use super::nat::{PATIENCE, received};
use super::world::{World, host, host6, interface, softnet, softnet6, until};

const PORT: u16 = 7000;

/// The prefix under which host 0 sees IPv4.
fn under(addr: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = addr.octets();
    let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, word(a, b), word(c, d))
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

/// The router, whose link to host 1 takes `mtu` bytes. Neighbours are known afterwards.
fn router(mtu: u32) -> Option<World> {
    let mut world = World::dual(2)?;
    for (ns, name) in [(&world.middle, interface(1)), (&world.hosts[1], "eth0".into())] {
        ns.run(|| Netlink::new().unwrap().set_mtu(&name, mtu).unwrap()).unwrap();
    }
    let mut nat = NatConfig::default();
    nat.connections = 1000;
    nat.source = vec![NatSourceConfig::new(interface(1))];
    nat.pool6 = Some("2001:db8:64::/96".parse().unwrap());
    let config = world.config().with(|config: &mut Config| {
        config.nat = Some(nat);
        config.devices[0].addresses = vec![InterfaceAddr::new(softnet6(0), 64).unwrap()];
    });
    world.start_with(config);
    let _echoes = world.echoes();
    until("an echo from IPv4", || world.hosts[0].run(|| ask(under(host(1)), b"anybody there?")).unwrap());
    Some(world)
}

fn udp(ns: &NetNs, own: IpAddr, port: u16) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind((own, port)).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_host_of_ipv6_reaches_one_of_ipv4() {
    let Some(world) = router(1500) else { return };
    let (inside, outside) = (&world.hosts[0], &world.hosts[1]);
    let (client, server) = (udp(inside, host6(0).into(), 5001), udp(outside, host(1).into(), PORT));
    let to = (under(host(1)), PORT);
    // Short ones, one that IPv6's smallest MTU takes no more, and such as come in fragments.
    for len in [1, 1200, 1400, 5000, 20_000] {
        client.send_to(&payload(len), to).unwrap();
        let (said, from) = received(&server);
        assert!(said == payload(len) && from.ip() == IpAddr::from(softnet(1)), "{len} from {from}");
        server.send_to(&said, from).unwrap();
        assert_eq!(received(&client), (said, to.into()));
    }
    tcp(inside, outside, under(host(1)), 500_000);
    let icmp = Icmp::v6(inside);
    for (addr, len) in [(host(1), 0), (host(1), 1400), (host(1), 3000), (softnet(1), 56)] {
        until(&format!("a ping of {addr} with {len} bytes"), || {
            let reply = icmp.ping(under(addr), 64, &payload(len));
            let from = IpAddr::from(under(addr));
            let answered = icmp.receive(|message| message.from == from && message.kind == (129, 0));
            answered.is_some_and(|message| message.bytes == reply)
        });
    }
    let shown = world.view().connections();
    let of_client = |row: &&softnet::control::show::ConntrackRow| row.src == (host6(0), 5001).into();
    let row = shown.iter().find(of_client).expect("the client's connection");
    assert_eq!((row.dst, row.reply_src), (to.into(), (host(1), PORT).into()));
    assert_eq!((row.reply_dst.ip(), &row.state[..], row.snat), (softnet(1).into(), "assured", true));
    world.end();
}

/// Traceroute: the router, then the host; a port that is closed there.
#[test]
fn errors_of_ipv4_reach_a_host_of_ipv6() {
    let Some(world) = router(1500) else { return };
    let icmp = Icmp::v6(&world.hosts[0]);
    until("time exceeded", || {
        icmp.ping(under(host(1)), 1, b"how far?");
        icmp.receive(|message| message.kind == (3, 0)).is_some_and(|message| {
            assert!(message.bytes.ends_with(b"how far?"));
            message.from == IpAddr::from(under(softnet(1)))
        })
    });
    until("the second hop", || {
        icmp.ping(under(host(1)), 2, b"how far?");
        icmp.receive(|message| message.from == IpAddr::from(under(host(1))) && message.kind == (129, 0))
            .is_some()
    });
    let client = udp(&world.hosts[0], host6(0).into(), 5001);
    client.connect((under(host(1)), 9)).unwrap();
    client.send(b"anyone?").unwrap();
    assert_eq!(client.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // And one of IPv6 the host of IPv4: the client's port is closed by now.
    let server = udp(&world.hosts[1], host(1).into(), PORT);
    let own = {
        let client = udp(&world.hosts[0], host6(0).into(), 5002);
        client.send_to(b"and gone", (under(host(1)), PORT)).unwrap();
        received(&server).1
    };
    server.connect(own).unwrap();
    server.send(b"still there?").unwrap();
    assert_eq!(server.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    world.end();
}

/// The link to IPv4 takes less than the client believes: it is told, and its stream goes on.
#[test]
fn path_mtu_discovery_works_through_nat64() {
    let Some(world) = router(1400) else { return };
    tcp(&world.hosts[0], &world.hosts[1], under(host(1)), 500_000);
    let icmp = Icmp::v6(&world.hosts[0]);
    until("packet too big", || {
        icmp.ping(under(host(1)), 64, &payload(1440));
        let told = icmp.receive(|message| message.kind == (2, 0));
        // 20 bytes more than IPv4 has there.
        told.is_some_and(|message| message.bytes[4..8] == 1420u32.to_be_bytes())
            // The kernel may have learned it from its stream.
            || icmp.receive(|message| message.kind == (129, 0)).is_some()
    });
    world.end();
}

/// A prefix outside stands for the one inside.
#[test]
fn prefixes_stand_for_one_another() {
    let Some(mut world) = World::dual(2) else { return };
    let mut nat = NatConfig::default();
    let prefix = |text: &str| text.parse().unwrap();
    nat.prefix = vec![NatPrefixConfig {
        dev: interface(1),
        internal: prefix("fd00::/64"),
        external: prefix("2001:db8:e::/64"),
    }];
    let config = world.config_dual().with(|config: &mut Config| config.nat = Some(nat));
    world.start_with(config);
    let _echoes = world.echoes();
    until("an echo", || world.hosts[0].run(|| ask(host6(1), b"anybody there?")).unwrap());
    let (client, server) =
        (udp(&world.hosts[0], host6(0).into(), 5001), udp(&world.hosts[1], host6(1).into(), PORT));
    client.send_to(&payload(4000), (host6(1), PORT)).unwrap();
    let (said, from) = received(&server);
    let IpAddr::V6(outside) = from.ip() else { panic!("{from}") };
    assert_eq!((said, outside.segments()[..4].to_vec()), (payload(4000), vec![0x2001, 0xdb8, 0xe, 0]));
    server.send_to(&payload(4000), from).unwrap();
    assert_eq!(received(&client), (payload(4000), (host6(1), PORT).into()));
    tcp(&world.hosts[0], &world.hosts[1], host6(1), 200_000);
    // From outside to inside, by the address outside: no state is asked for.
    tcp(&world.hosts[1], &world.hosts[0], outside, 200_000);
    client.connect((host6(1), 9)).unwrap();
    client.send(b"anyone?").unwrap();
    assert_eq!(client.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    world.end();
}
