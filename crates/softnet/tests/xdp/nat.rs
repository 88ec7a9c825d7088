//! NAT between kernels: host 0 is inside, host 1 outside, and sees nothing but softnet's address
//! there.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket as KernelSocket};
use std::time::Duration;

use softnet::config::{Config, NatConfig, NatForwardConfig, NatProtocol, NatSourceConfig};
use softnet::control::show::ConntrackRow;
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

fn router() -> Option<World> {
    let mut world = World::new(2)?;
    let mut nat = NatConfig::default();
    nat.connections = 1000;
    nat.source = vec![NatSourceConfig { dev: interface(1), addresses: vec![] }];
    let forward = |protocol| NatForwardConfig {
        dev: interface(1),
        address: None,
        protocol,
        port: FORWARDED,
        to: std::net::SocketAddrV4::new(host(0), INSIDE),
    };
    nat.forward = vec![forward(NatProtocol::Tcp), forward(NatProtocol::Udp)];
    let config = world.config().with(|config: &mut Config| config.nat = Some(nat));
    world.start_with(config);
    let _echoes = world.echoes();
    until("an echo from outside", || world.hosts[0].run(|| ask(host(1), b"anybody there?")).unwrap());
    Some(world)
}

fn udp(world: &World, at: usize, port: u16) -> KernelSocket {
    let socket = world.hosts[at].run(|| KernelSocket::bind((host(at), port)).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub(crate) fn received(socket: &KernelSocket) -> (Vec<u8>, SocketAddr) {
    let mut buf = [0; 2000];
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
