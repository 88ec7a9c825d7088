//! Link-local addresses: two links with the same addresses on them are two links, from the socket's address to the wire.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use softnet::config::InterfaceAddr;
use softnet::net::{Handle, UdpSocket};

use super::frames::{host_mac, own_mac};
use super::frames6::{Sent, advert6, datagram6, host6, own6, sent6, unreachable6};
use super::world::{Lane, Setup, World, until};

/// softnet's on both links, and the host's at the far end of both.
pub(crate) const OWN: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const HOST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);

/// Two links of both families. `OWN` is on both.
pub(crate) fn start6() -> (World, Vec<Lane>, Handle) {
    let setup = Setup { ports: &[1, 1], workers: 2, known: true, ..Setup::default() };
    let (world, lanes) = setup.start_with(|config| {
        for (port, device) in config.devices.iter_mut().enumerate() {
            device.addresses.extend([own6(port), OWN].map(|own| InterfaceAddr::new(own, 64).unwrap()));
        }
    });
    let handle = world.handle();
    (world, lanes, handle)
}

/// `addr` on the device that programs call `index`.
pub(crate) fn on(addr: Ipv6Addr, port: u16, index: u32) -> SocketAddr {
    SocketAddrV6::new(addr, port, 0, index).into()
}

/// What softnet sends by `lane` until there is a datagram; where its addresses are asked for they are told.
pub(crate) fn next6(lane: &mut Lane) -> (Sent, Vec<u8>) {
    let mut got = None;
    until("a datagram is sent", || {
        let mut answers = Vec::new();
        lane.receive(|frame| {
            answers.extend([HOST, host6(0), host6(1)].map(|host| advert6(frame_port(frame), host, frame)));
            if let Some(sent) = sent6(frame) {
                assert!(got.replace((sent, frame.to_vec())).is_none(), "two of them");
            }
        });
        answers.into_iter().flatten().for_each(|answer| assert_eq!(lane.send(&[answer]), 1));
        got.is_some()
    });
    got.unwrap()
}

/// The port by which softnet sent `frame`, by its MAC address.
fn frame_port(frame: &[u8]) -> usize {
    (0..2).find(|port| frame[6..12] == own_mac(*port)).unwrap()
}

pub(crate) fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

const EINVAL: Option<i32> = Some(22);
const ENODEV: Option<i32> = Some(19);
const ENETUNREACH: Option<i32> = Some(101);
const EADDRNOTAVAIL: Option<i32> = Some(99);

#[test]
fn devices_have_indices_and_names() {
    let (world, lanes, handle) = start6();
    for (name, index) in [("mem0", 1), ("mem1", 2)] {
        assert_eq!(handle.if_nametoindex(name).unwrap(), index);
        assert_eq!(handle.if_indextoname(index).unwrap(), name);
    }
    assert_eq!(errno(handle.if_nametoindex("mem2")), ENODEV);
    for index in [0, 3, 0x1_0001] {
        assert_eq!(errno(handle.if_indextoname(index)), Some(6), "ENXIO");
    }
    world.end(lanes);
}

/// A host of one address on either link writes to one socket, and to one on each link: the two hosts are told apart,
/// and answered there.
#[test]
fn one_address_on_two_links_is_two_hosts() {
    let (world, mut lanes, handle) = start6();
    let any = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let bound = [1, 2].map(|index| UdpSocket::bind(&handle, on(OWN, 8, index)).unwrap());
    let mut buffer = [0; 64];
    for port in [0, 1] {
        let index = port as u32 + 1;
        assert_eq!(bound[port].local_addr().unwrap(), on(OWN, 8, index));
        let sends = |lane: &mut Lane, to: u16, what: &[u8]| {
            assert_eq!(lane.send(&[datagram6(port, (HOST, OWN), (999, to), what)]), 1);
        };
        for (socket, to) in [(&any, 7), (&bound[port], 8)] {
            sends(&mut lanes[port], to, b"who am I?");
            let (n, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..n], from), (&b"who am I?"[..], on(HOST, 999, index)));
            socket.send_to(b"on this link", from).unwrap();
            let (sent, _) = next6(&mut lanes[port]);
            assert_eq!(sent.from, SocketAddrV6::new(OWN, to, 0, 0));
            assert_eq!(sent.to, SocketAddrV6::new(HOST, 999, 0, 0));
            assert_eq!((sent.macs, sent.hops), ([host_mac(port), own_mac(port)], 64));
            assert_eq!(sent.payload, b"on this link");
        }
        // A socket bound to the link need not say it.
        bound[port].send_to(b"here", on(HOST, 999, 0)).unwrap();
        assert_eq!(next6(&mut lanes[port]).0.payload, b"here");
    }
    assert!(bound.iter().all(|socket| !socket.readiness().readable));
    drop((any, bound));
    world.end(lanes);
}

/// Two sockets of one port are connected to one address on either link. Each gets its own datagrams, and its own errors.
#[test]
fn connections_on_two_links_are_two() {
    let (world, mut lanes, handle) = start6();
    let sockets = [1, 2].map(|index| {
        let socket = UdpSocket::bind(&handle, on(OWN, 7, index)).unwrap();
        socket.connect(on(HOST, 9, index)).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), on(HOST, 9, index));
        socket
    });
    let mut buffer = [0; 64];
    for port in [0, 1] {
        assert_eq!(lanes[port].send(&[datagram6(port, (HOST, OWN), (9, 7), &[port as u8])]), 1);
        let (_, from) = sockets[port].recv_from(&mut buffer).unwrap();
        assert_eq!((buffer[0], from), (port as u8, on(HOST, 9, port as u32 + 1)));
        sockets[port].send(b"x").unwrap();
        let (_, frame) = next6(&mut lanes[port]);
        // About what only the other one sent: from this link it says nothing.
        let mut foreign = frame.clone();
        foreign[14 + 10..14 + 12].copy_from_slice(&[0, 2 - port as u8]);
        let scoped = unreachable6(port, (HOST, OWN), &foreign);
        assert_eq!(lanes[port].send(&[scoped]), 1);
        let ignored = || {
            world
                .view
                .drops()
                .iter()
                .filter(|row| row.reason == "icmp_ignored")
                .map(|row| row.packets)
                .sum::<u64>()
        };
        until("it is ignored", || ignored() == port as u64 + 1);
        assert!(sockets.iter().all(|socket| !socket.readiness().error));
        assert_eq!(lanes[port].send(&[unreachable6(port, (HOST, OWN), &frame)]), 1);
        until("the socket is told", || sockets[port].readiness().error);
        assert!(!sockets[1 - port].readiness().error);
        assert_eq!(sockets[port].send(b"x").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    assert!(sockets.iter().all(|socket| !socket.readiness().readable && !socket.readiness().error));
    // One that is bound to nothing is bound to the address there.
    let socket = UdpSocket::bind(&handle, "[::]:0").unwrap();
    socket.connect(on(HOST, 9, 2)).unwrap();
    assert_eq!(socket.local_addr().unwrap(), on(OWN, socket.local_addr().unwrap().port(), 2));
    socket.send(b"by mem1").unwrap();
    assert_eq!(next6(&mut lanes[1]).0.payload, b"by mem1");
    drop((socket, sockets));
    world.end(lanes);
}

#[test]
fn what_cannot_be_is_refused_as_the_kernel_does() {
    let (world, lanes, handle) = start6();
    let bind = |addr: SocketAddr| UdpSocket::bind(&handle, addr);
    assert_eq!(errno(bind(on(OWN, 7, 0))), EINVAL);
    assert_eq!(errno(bind(on(OWN, 7, 3))), ENODEV);
    assert_eq!(errno(bind(on(HOST, 7, 1))), EADDRNOTAVAIL);
    // The scope is not the address's to say.
    assert_eq!(errno(bind(on("fe80:1::1".parse().unwrap(), 7, 1))), EADDRNOTAVAIL);
    // Where it means nothing it is not looked at.
    assert_eq!(bind(on(own6(0), 7, 77)).unwrap().local_addr().unwrap(), on(own6(0), 7, 0));
    let any = bind("[::]:0".parse().unwrap()).unwrap();
    let bound = bind(on(OWN, 7, 1)).unwrap();
    assert_eq!(errno(any.send_to(b"x", on(HOST, 9, 0))), EINVAL);
    assert_eq!(errno(any.connect(on(HOST, 9, 0))), EINVAL);
    assert_eq!(errno(any.send_to(b"x", on(HOST, 9, 3))), ENETUNREACH);
    assert_eq!(errno(any.send_to(b"x", on("fe80:1::9".parse().unwrap(), 9, 1))), ENETUNREACH);
    assert_eq!(errno(bound.send_to(b"x", on(HOST, 9, 2))), EINVAL);
    assert_eq!(errno(bound.connect(on(HOST, 9, 2))), EINVAL);
    // What is known on one link only is no source on another.
    assert_eq!(errno(bound.send_to(b"x", on(host6(1), 9, 0))), ENETUNREACH);
    assert_eq!(errno(bound.send_to(b"x", "[::1]:9")), ENETUNREACH);
    assert_eq!(bound.send_to(b"x", on(host6(0), 9, 0)).unwrap(), 1);
    drop((any, bound));
    world.end(lanes);
}

/// To an address of ours: the sender is on that link, too.
#[test]
fn sockets_here_talk_by_their_links() {
    let (world, lanes, handle) = start6();
    let servers = [1, 2].map(|index| UdpSocket::bind(&handle, on(OWN, 7, index)).unwrap());
    let client = UdpSocket::bind(&handle, "[::]:0").unwrap();
    let port = client.local_addr().unwrap().port();
    let mut buffer = [0; 64];
    for (server, index) in servers.iter().zip([1, 2]) {
        client.send_to(b"hello", on(OWN, 7, index)).unwrap();
        let (_, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(from, on(OWN, port, index));
        server.send_to(b"there", from).unwrap();
        assert_eq!(client.recv_from(&mut buffer).unwrap(), (5, on(OWN, 7, index)));
    }
    assert_eq!(world.view.stats().transmitted, 0);
    let shown: Vec<String> = world.view.sockets().into_iter().map(|row| row.local).collect();
    assert_eq!(shown[..2], ["[fe80::1%mem0]:7", "[fe80::1%mem1]:7"]);
    drop((servers, client));
    world.end(lanes);
}

/// A packet that names the link itself would be taken for one of another link.
#[test]
fn an_address_with_a_scope_in_it_does_not_come_in() {
    let (world, mut lanes, handle) = start6();
    let any = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let foreign: Ipv6Addr = "fe80:2::9".parse().unwrap();
    let frames = [(foreign, OWN), (foreign, own6(0)), (HOST, "fe80:1::1".parse().unwrap())]
        .map(|ends| datagram6(0, ends, (999, 7), b"x"));
    assert_eq!(lanes[0].send(&frames), 3);
    world.settle(3);
    assert!(!any.readiness().readable);
    let drops = world.view.drops();
    assert_eq!(
        drops.iter().map(|row| (&*row.reason, row.packets)).collect::<Vec<_>>(),
        [("ipv6_bad_scope", 3)]
    );
    drop(any);
    world.end(lanes);
}
