//! NAT between kernels: host 0 is inside, host 1 outside, and sees nothing but softnet's address
//! there.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket as KernelSocket};
use std::time::Duration;

use softnet::config::{
    Config, NatConfig, NatForwardConfig, NatProtocol, NatSourceConfig, RouteConfig, RouteTarget,
};
use softnet::control::show::ConntrackRow;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::{Icmp, ask};
use super::world::{World, host, interface, softnet, until};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Where the server outside is, and the one inside that a port leads to.
const OUTSIDE: u16 = 7000;
const INSIDE: u16 = 8000;
const FORWARDED: u16 = 8080;
/// Bytes of a stream.
const STREAM: u32 = 300_000;

/// A second host inside, which is the first's kernel.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);

fn router() -> Option<World> {
    let mut world = World::new(2)?;
    start(&mut world, |_| {});
    Some(world)
}

/// Starts NAT in `world`, and waits until neighbours are known.
fn start(world: &mut World, change: impl FnOnce(&mut NatConfig)) {
    let mut nat = NatConfig::default();
    nat.connections = 4000;
    nat.source = vec![NatSourceConfig::new(interface(1))];
    let forward = |protocol| NatForwardConfig {
        dev: interface(1),
        address: None,
        protocol,
        port: FORWARDED,
        to: std::net::SocketAddrV4::new(host(0), INSIDE),
    };
    nat.forward = vec![forward(NatProtocol::Tcp), forward(NatProtocol::Udp)];
    change(&mut nat);
    // Beyond the host outside there is nothing, but a route.
    let beyond = RouteConfig::new("10.99.0.0/16".parse().unwrap(), RouteTarget::Via(host(1).into()));
    let config = world.config().with(|config: &mut Config| {
        config.nat = Some(nat);
        config.routes.push(beyond);
    });
    world.start_with(config);
    let _echoes = world.echoes();
    until("an echo from outside", || world.hosts[0].run(|| ask(host(1), b"anybody there?")).unwrap());
}

fn udp(world: &World, at: usize, port: u16) -> KernelSocket {
    let socket = world.hosts[at].run(|| KernelSocket::bind((host(at), port)).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub(crate) fn received(socket: &KernelSocket) -> (Vec<u8>, SocketAddr) {
    let mut buf = vec![0; 1 << 16];
    let (n, from) = socket.recv_from(&mut buf).unwrap();
    (buf[..n].to_vec(), from)
}

/// Host `from` connects to `to`, where `listener` is another's, and both send `len` bytes. Returns
/// whom the listener saw.
pub(crate) fn talk(from: &NetNs, to: SocketAddr, listener: &TcpListener, len: u32) -> IpAddr {
    let all: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
    let mut client = from.run(|| TcpStream::connect_timeout(&to, PATIENCE).unwrap()).unwrap();
    let (mut server, peer) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    let expected = all.clone();
    let echo = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        server.read_exact(&mut got).unwrap();
        assert!(got == expected);
        server.write_all(&got).unwrap();
    });
    client.write_all(&all).unwrap();
    let mut back = vec![0; all.len()];
    client.read_exact(&mut back).unwrap();
    echo.join().unwrap();
    assert!(back == all);
    peer.ip()
}

#[test]
fn hosts_inside_are_seen_by_the_routers_address() {
    let Some(world) = router() else { return };
    let outer = IpAddr::from(softnet(1));
    // Datagrams, from one port to two servers: by one port outside.
    let servers = [udp(&world, 1, OUTSIDE), udp(&world, 1, OUTSIDE + 1)];
    let client = udp(&world, 0, 5001);
    let mut seen = Vec::new();
    for (server, port) in servers.iter().zip([OUTSIDE, OUTSIDE + 1]) {
        client.send_to(b"hello", (host(1), port)).unwrap();
        let (said, from) = received(server);
        assert_eq!((&said[..], from.ip()), (&b"hello"[..], outer));
        server.send_to(b"and back", from).unwrap();
        assert_eq!(received(&client), (b"and back".to_vec(), (host(1), port).into()));
        seen.push(from.port());
    }
    assert_eq!(seen[0], seen[1]);
    // A stream.
    let listener = world.hosts[1].run(|| TcpListener::bind((host(1), OUTSIDE)).unwrap()).unwrap();
    assert_eq!(talk(&world.hosts[0], (host(1), OUTSIDE).into(), &listener, STREAM), outer);
    let shown = world.view().connections();
    let answered = |row: &&ConntrackRow| row.src.port() == 5001 && row.snat && row.state == "assured";
    assert_eq!(shown.iter().filter(answered).count(), 2);
    assert!(shown.iter().any(|row| row.protocol == "tcp" && row.reply_dst.ip() == softnet(1)), "{shown:?}");
    let nat = world.view().nat();
    assert!(nat.connections >= 3 && nat.mappings < nat.connections);
    assert_eq!(nat.addresses[0].address, softnet(1));
}

#[test]
fn pings_go_out_and_are_answered() {
    let Some(world) = router() else { return };
    let icmp = Icmp::new(&world.hosts[0]);
    for to in [host(1), softnet(0), softnet(1)] {
        until(&format!("a ping of {to}"), || {
            let reply = icmp.ping(to, 64, b"there?");
            let answered = icmp.receive(|message| message.from == to && message.kind == (0, 0));
            answered.is_some_and(|message| message.bytes == reply)
        });
    }
    assert!(world.view().connections().iter().any(|row| row.protocol == "icmp" && row.snat));
}

/// A port that is closed outside: the ICMP error reaches the host that asked.
#[test]
fn errors_reach_the_host_inside() {
    let Some(world) = router() else { return };
    let client = udp(&world, 0, 5001);
    client.connect((host(1), 9)).unwrap();
    client.send(b"anyone?").unwrap();
    let error = client.recv(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
}

/// `ping -s 3000`, and long datagrams, both ways through NAT; the link outside takes less.
#[test]
fn long_datagrams_pass_in_fragments() {
    let Some(mut world) = World::new(2) else { return };
    for (ns, name) in [(&world.middle, interface(1)), (&world.hosts[1], "eth0".into())] {
        ns.run(|| Netlink::new().unwrap().set_mtu(&name, 1400).unwrap()).unwrap();
    }
    start(&mut world, |_| {});
    let icmp = Icmp::new(&world.hosts[0]);
    let payload: Vec<u8> = (0..65_000u32).map(|n| (n % 251) as u8).collect();
    for len in [1472, 3000, 20_000] {
        until(&format!("a ping with {len} bytes"), || {
            let reply = icmp.ping(host(1), 64, &payload[..len]);
            let answered = icmp.receive(|message| message.from == host(1) && message.kind == (0, 0));
            answered.is_some_and(|message| message.bytes == reply)
        });
    }
    let (server, client) = (udp(&world, 1, OUTSIDE), udp(&world, 0, 5001));
    for len in [5000, 40_000] {
        client.send_to(&payload[..len], (host(1), OUTSIDE)).unwrap();
        let (said, from) = received(&server);
        assert!(said == payload[..len] && from.ip() == IpAddr::from(softnet(1)), "{len} from {from}");
        server.send_to(&payload[..len], from).unwrap();
        assert_eq!(received(&client), (payload[..len].to_vec(), (host(1), OUTSIDE).into()));
    }
    let fragments = world.view().stats().fragments;
    assert!(fragments.reassembled >= 8 && fragments.cut >= 4, "{fragments:?}");
    world.end();
}

/// A host inside looks at all of a /16, by way of a table that is much smaller: what others have
/// open goes on.
#[test]
fn a_scan_of_a_16_bit_network_ends_no_established_connection() {
    let Some(mut world) = World::new(2) else { return };
    start(&mut world, |nat| nat.connections = 512);
    let (server, client) = (udp(&world, 1, OUTSIDE), udp(&world, 0, 5001));
    client.send_to(b"hello", (host(1), OUTSIDE)).unwrap();
    let mapped = received(&server).1;
    server.send_to(b"and back", mapped).unwrap();
    received(&client);
    let listener = world.hosts[1].run(|| TcpListener::bind((host(1), OUTSIDE)).unwrap()).unwrap();
    let mut stream = world.hosts[0].run(|| TcpStream::connect((host(1), OUTSIDE)).unwrap()).unwrap();
    let (mut accepted, peer) = listener.accept().unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    let scanner = udp(&world, 0, 6001);
    for n in 0..=u16::MAX {
        let target = Ipv4Addr::new(10, 99, (n >> 8) as u8, n as u8);
        // What the interface has no room for now is not the scan's concern.
        let _ = scanner.send_to(b"?", (target, 9));
    }
    until("a full table", || {
        let _ = scanner.send_to(b"?", (Ipv4Addr::new(10, 99, 0, 1), 10));
        world.view().nat().early_drop > 10_000
    });
    stream.write_all(b"still there").unwrap();
    let mut said = [0; 11];
    accepted.read_exact(&mut said).unwrap();
    assert_eq!((&said, accepted.peer_addr().unwrap()), (b"still there", peer));
    client.send_to(b"still there", (host(1), OUTSIDE)).unwrap();
    assert_eq!(received(&server), (b"still there".to_vec(), mapped));
    server.send_to(b"still here", mapped).unwrap();
    assert_eq!(received(&client).0, b"still here");
}

/// A host has no more connections than it may, and an address no more ports: others are refused, counted
/// and told why.
#[test]
fn limits_are_told() {
    let Some(mut world) = World::new(2) else { return };
    start(&mut world, |nat| nat.connlimit = Some(1100));
    let drops = |world: &World, reason: &str| {
        let rows = world.view().drops();
        rows.iter().filter(|row| row.reason == reason).map(|row| row.packets).sum::<u64>()
    };
    // Ports below 1024 stay below it (RFC 4787 REQ-3a): of these there are fewest.
    let ask = |from: u16| {
        let _ = udp(&world, 0, from).send_to(b"?", (host(1), OUTSIDE));
    };
    until("no port", || {
        world.hosts[0].run(|| Netlink::new().unwrap().add_address("eth0", OTHER, 32)).unwrap().ok();
        let other = world.hosts[0].run(|| KernelSocket::bind((OTHER, 7)).unwrap()).unwrap();
        (1..1024).filter(|port| *port != 7).for_each(ask);
        let _ = other.send_to(b"?", (host(1), OUTSIDE));
        let _ = udp(&world, 0, 7).send_to(b"?", (host(1), OUTSIDE));
        drops(&world, "nat_ports") > 0
    });
    assert!(world.view().nat().ports_exhausted > 0);
    until("the limit", || {
        (2000..2200).for_each(ask);
        drops(&world, "conntrack_limit") > 0
    });
    let nat = world.view().nat();
    assert!(nat.connlimit > 0 && nat.most_of_a_host == 1100, "{nat:?}");
}

#[test]
fn a_forwarded_port_leads_inside() {
    let Some(world) = router() else { return };
    let listener = world.hosts[0].run(|| TcpListener::bind((host(0), INSIDE)).unwrap()).unwrap();
    assert_eq!(
        talk(&world.hosts[1], (softnet(1), FORWARDED).into(), &listener, STREAM),
        IpAddr::from(host(1))
    );
    let (server, client) = (udp(&world, 0, INSIDE), udp(&world, 1, 6000));
    client.send_to(b"hello", (softnet(1), FORWARDED)).unwrap();
    let (said, from) = received(&server);
    assert_eq!((&said[..], from), (&b"hello"[..], (host(1), 6000).into()));
    server.send_to(b"and back", from).unwrap();
    assert_eq!(received(&client), (b"and back".to_vec(), (softnet(1), FORWARDED).into()));
}
