//! Multicast of IPv6 between sockets and the wire: members get theirs, on the devices where they are members; senders choose the
//! device and how far it goes.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use softnet::net::UdpSocket;
use softnet_core::ip::v6::addr::ALL_NODES;

use super::frames::{Mac, own_mac};
use super::frames6::{Sent, datagram6, host6, own6};
use super::scope::{HOST, OWN, errno, next6, on, start6};
use super::world::{Lane, until};

/// Groups of one link, and of a site; the first looks as if it had a scope in it, which groups have not.
const LINK: Ipv6Addr = Ipv6Addr::new(0xff12, 0x1234, 0, 0, 0, 0, 0x8765, 0x4321);
const SITE: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x1234);

const EINVAL: Option<i32> = Some(22);
const ENODEV: Option<i32> = Some(19);
const EADDRINUSE: Option<i32> = Some(98);
const EADDRNOTAVAIL: Option<i32> = Some(99);
const ENOPROTOOPT: Option<i32> = Some(92);

fn payload(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 64];
    let n = socket.recv(&mut buffer).unwrap();
    buffer[..n].to_vec()
}

fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[test]
fn members_get_what_comes_by_their_device() {
    let (world, mut lanes, handle) = start6();
    let open = |addr: SocketAddr| UdpSocket::builder(&handle).reuse_port(true).bind(addr).unwrap();
    let any: SocketAddr = "[::]:7".parse().unwrap();
    let [first, second, both] = [(); 3].map(|()| open(any));
    let group = open(on(LINK, 7, 2));
    let stranger = UdpSocket::bind(&handle, "[::]:8").unwrap();
    let none = open(any);
    for (socket, interface) in
        [(&first, 1), (&second, 2), (&both, 1), (&both, 2), (&group, 2), (&stranger, 1)]
    {
        socket.join_multicast_v6(&LINK, interface).unwrap();
    }
    let sends = |lane: &mut Lane, src, payload: &[u8]| {
        assert_eq!(lane.send(&[datagram6(lane.port, (src, LINK), (999, 7), payload)]), 1);
    };
    sends(&mut lanes[0], HOST, b"by mem0");
    sends(&mut lanes[1], HOST, b"by mem1");
    let mut buffer = [0; 64];
    for (socket, index) in [(&first, 1), (&second, 2), (&group, 2)] {
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..n], from),
            (&*format!("by mem{}", index - 1).into_bytes(), on(HOST, 999, index))
        );
    }
    let mut got = [payload(&both), payload(&both)];
    got.sort();
    assert_eq!(got, [b"by mem0", b"by mem1"]);
    // One that is bound to the group and connected hears its peer alone; one that was bound to nothing is bound to its own
    // address then, and hears of no group.
    group.connect(on(HOST, 999, 2)).unwrap();
    both.connect(on(HOST, 999, 2)).unwrap();
    sends(&mut lanes[0], HOST, b"not he");
    sends(&mut lanes[1], host6(1), b"nor he");
    sends(&mut lanes[1], HOST, b"but he");
    assert_eq!([payload(&first), payload(&second), payload(&second)], [b"not he", b"nor he", b"but he"]);
    assert_eq!(payload(&group), b"but he");
    world.settle(5);
    // With 0, whichever membership there is.
    second.leave_multicast_v6(&LINK, 0).unwrap();
    group.leave_multicast_v6(&LINK, 2).unwrap();
    sends(&mut lanes[1], HOST, b"nobody");
    world.settle(6);
    let sockets = [first, second, both, group, stranger, none];
    assert!(sockets.iter().all(|socket| !socket.readiness().readable));
    drop(sockets);
    world.end(lanes);
}

/// What the wire gets of one datagram.
fn sent_by(lanes: &mut [Lane], port: usize) -> Sent {
    next6(&mut lanes[port]).0
}

#[test]
fn senders_choose_the_device_and_how_far() {
    let (world, mut lanes, handle) = start6();
    let socket = UdpSocket::bind(&handle, "[::]:7").unwrap();
    assert_eq!((socket.multicast_hops_v6().unwrap(), socket.multicast_if_v6().unwrap()), (1, 0));
    // To the link from the address there, further from one that is known there.
    for (group, own, hops) in
        [(LINK, [OWN, OWN], 1), (SITE, [own6(0), own6(1)], 1), (SITE, [own6(0), own6(1)], 5)]
    {
        socket.set_multicast_hops_v6(hops).unwrap();
        for (chosen, index, port) in [(0, 0, 0), (0, 2, 1), (2, 0, 1), (2, 1, 0)] {
            socket.set_multicast_if_v6(chosen).unwrap();
            socket.send_to(b"to all", on(group, 9, index)).unwrap();
            let sent = sent_by(&mut lanes, port);
            assert_eq!((sent.from.ip(), sent.to), (&own[port], SocketAddrV6::new(group, 9, 0, 0)));
            assert_eq!((sent.macs, sent.hops), ([group_mac(group), own_mac(port)], hops as u8));
        }
        socket.set_multicast_if_v6(0).unwrap();
    }
    // Bound to a link, or to an address there, it is for that link.
    for (bound, port) in
        [(on(OWN, 0, 2), 1), (on(LINK, 0, 2), 1), (on(own6(1), 0, 0), 1), (on(own6(0), 0, 0), 0)]
    {
        let socket = UdpSocket::bind(&handle, bound).unwrap();
        socket.send_to(b"to all", on(LINK, 9, 0)).unwrap();
        assert_eq!(sent_by(&mut lanes, port).payload, b"to all");
    }
    socket.connect(on(LINK, 9, 2)).unwrap();
    assert_eq!((socket.peer_addr().unwrap(), socket.local_addr().unwrap()), (on(LINK, 9, 2), on(OWN, 7, 2)));
    socket.send(b"connected").unwrap();
    assert_eq!(sent_by(&mut lanes, 1).payload, b"connected");
    drop(socket);
    world.end(lanes);
}

#[test]
fn members_here_get_a_copy_if_the_sender_says_so() {
    let (world, mut lanes, handle) = start6();
    let member = UdpSocket::bind(&handle, on(LINK, 7, 2)).unwrap();
    member.join_multicast_v6(&LINK, 2).unwrap();
    let sender = UdpSocket::bind(&handle, "[::]:0").unwrap();
    let port = sender.local_addr().unwrap().port();
    let mut buffer = [0; 64];
    sender.send_to(b"looped", on(LINK, 7, 2)).unwrap();
    assert_eq!(member.recv_from(&mut buffer).unwrap(), (6, on(OWN, port, 2)));
    assert_eq!(sent_by(&mut lanes, 1).payload, b"looped");
    // With no hops it is for members here alone.
    sender.set_multicast_hops_v6(0).unwrap();
    sender.send_to(b"stays", on(LINK, 7, 2)).unwrap();
    assert_eq!(payload(&member), b"stays");
    sender.set_multicast_hops_v6(1).unwrap();
    sender.set_multicast_loop_v6(false).unwrap();
    sender.send_to(b"goes", on(LINK, 7, 2)).unwrap();
    sender.set_multicast_loop_v6(true).unwrap();
    sender.send_to(b"elsewhere", on(LINK, 7, 1)).unwrap();
    assert_eq!(
        [sent_by(&mut lanes, 1).payload, sent_by(&mut lanes, 0).payload],
        [&b"goes"[..], b"elsewhere"]
    );
    // So is what is of one interface only.
    let interface: Ipv6Addr = "ff01::77".parse().unwrap();
    let inside = UdpSocket::bind(&handle, on(interface, 8, 1)).unwrap();
    inside.join_multicast_v6(&interface, 1).unwrap();
    sender.send_to(b"inside", on(interface, 8, 1)).unwrap();
    assert_eq!(payload(&inside), b"inside");
    assert_eq!(lanes[0].send(&[datagram6(0, (HOST, interface), (999, 8), b"from outside")]), 1);
    world.settle(1);
    assert!(!member.readiness().readable && !inside.readiness().readable);
    assert_eq!(world.view.stats().transmitted, 3);
    drop((member, sender, inside));
    world.end(lanes);
}

/// The kernel has every socket in the group of all nodes, if it is bound to the port and to no other address.
#[test]
fn all_nodes_are_everybody() {
    let (world, mut lanes, handle) = start6();
    let open = |addr: SocketAddr| UdpSocket::builder(&handle).reuse_port(true).bind(addr).unwrap();
    let any: SocketAddr = "[::]:7".parse().unwrap();
    let they = [open(any), open(any), open(on(ALL_NODES, 7, 1))];
    let others = [open(on(OWN, 7, 1)), open(on(ALL_NODES, 7, 2)), open("0.0.0.0:7".parse().unwrap())];
    let other_port = open("[::]:8".parse().unwrap());
    assert_eq!(lanes[0].send(&[datagram6(0, (HOST, ALL_NODES), (999, 7), b"to all")]), 1);
    for socket in &they {
        let mut buffer = [0; 64];
        assert_eq!(socket.recv_from(&mut buffer).unwrap(), (6, on(HOST, 999, 1)));
    }
    other_port.send_to(b"also here", on(ALL_NODES, 7, 1)).unwrap();
    assert!(they.iter().all(|socket| payload(socket) == b"also here"));
    assert_eq!(sent_by(&mut lanes, 0).payload, b"also here");
    assert!(others.iter().chain([&other_port]).all(|socket| !socket.readiness().readable));
    drop((they, others, other_port));
    world.end(lanes);
}

/// A member gets a datagram that came in fragments; one without a member is given up.
#[test]
fn fragments_to_a_group_are_put_together() {
    let (world, mut lanes, handle) = start6();
    let member = UdpSocket::bind(&handle, "[::]:7").unwrap();
    member.join_multicast_v6(&SITE, 1).unwrap();
    let data: Vec<u8> = (0..2000).map(|i| (i * 7) as u8).collect();
    let pieces = |lane: &mut Lane, dst| {
        let whole = datagram6(lane.port, (host6(lane.port), dst), (999, 7), &data);
        let frames: Vec<Vec<u8>> = [(0, 1), (1, 0)]
            .map(|(part, more): (u16, u16)| {
                let udp = &whole[54..];
                let (from, to) = if part == 0 { (0, 1024) } else { (1024, udp.len()) };
                let [high, low] = (from as u16 | more).to_be_bytes();
                let mut frame = whole[..54].to_vec();
                frame[18..20].copy_from_slice(&((to - from + 8) as u16).to_be_bytes());
                frame[20] = 44;
                frame.extend([&[17, 0, high, low, 0, 0, 0, 9], &udp[from..to]].concat());
                frame
            })
            .to_vec();
        assert_eq!(lane.send(&frames), 2);
    };
    pieces(&mut lanes[0], SITE);
    let mut buffer = [0; 4096];
    assert_eq!(member.recv_from(&mut buffer).unwrap(), (data.len(), on(host6(0), 999, 0)));
    assert_eq!(buffer[..data.len()], data);
    pieces(&mut lanes[1], SITE);
    world.settle(4);
    until("both are put together", || world.view.stats().held == 0);
    assert!(!member.readiness().readable);
    // And the other way round, and to itself.
    member.send_to(&data, on(SITE, 7, 1)).unwrap();
    assert_eq!(member.recv_from(&mut buffer).unwrap(), (data.len(), on(own6(0), 7, 0)));
    assert_eq!(buffer[..data.len()], data);
    let mut sent = Vec::new();
    until("both fragments are sent", || {
        lanes[0].receive(|frame| sent.push((frame[20], frame[..6].to_vec())));
        sent.len() == 2
    });
    assert_eq!(sent, [(44, group_mac(SITE).to_vec()), (44, group_mac(SITE).to_vec())]);
    drop(member);
    world.end(lanes);
}

#[test]
fn what_cannot_be_is_refused_as_the_kernel_does() {
    let (world, lanes, handle) = start6();
    let bind = |addr: SocketAddr| UdpSocket::bind(&handle, addr);
    assert_eq!(errno(bind(on(LINK, 7, 0))), EINVAL);
    assert_eq!(errno(bind(on(LINK, 7, 3))), ENODEV);
    // Further than a link, a group is on all of them.
    assert_eq!(bind(on(SITE, 7, 1)).unwrap().local_addr().unwrap(), on(SITE, 7, 0));
    let [one, two] = [1, 2].map(|index| bind(on(LINK, 7, index)).unwrap());
    assert_eq!((one.local_addr().unwrap(), two.local_addr().unwrap()), (on(LINK, 7, 1), on(LINK, 7, 2)));
    assert_eq!(errno(bind(on(LINK, 7, 2))), EADDRINUSE);
    assert_eq!(errno(one.send_to(b"x", on(SITE, 9, 2))), EINVAL);
    assert_eq!(errno(one.set_multicast_if_v6(2)), EINVAL);
    assert_eq!(errno(one.set_multicast_if_v6(3)), ENODEV);
    assert_eq!(errno(one.set_multicast_hops_v6(256)), EINVAL);
    assert_eq!(errno(one.send_to(b"x", on("ff00::1".parse().unwrap(), 9, 1))), EINVAL);
    assert_eq!(errno(one.send_to(b"x", on(SITE, 9, 3))), Some(101), "ENETUNREACH");
    assert_eq!(errno(one.join_multicast_v6(&OWN, 1)), EINVAL);
    assert_eq!(errno(one.join_multicast_v6(&SITE, 3)), ENODEV);
    one.join_multicast_v6(&SITE, 0).unwrap();
    assert_eq!(errno(one.join_multicast_v6(&SITE, 1)), EADDRINUSE);
    one.join_multicast_v6(&SITE, 2).unwrap();
    assert_eq!(errno(one.leave_multicast_v6(&LINK, 0)), EADDRNOTAVAIL);
    assert_eq!(errno(one.leave_multicast_v6(&SITE, 3)), EADDRNOTAVAIL);
    assert_eq!([0, 0].map(|index| one.leave_multicast_v6(&SITE, index).is_ok()), [true; 2]);
    assert_eq!(errno(one.leave_multicast_v6(&SITE, 0)), EADDRNOTAVAIL);
    let four = bind("0.0.0.0:0".parse().unwrap()).unwrap();
    assert_eq!(errno(four.join_multicast_v6(&SITE, 1)), ENOPROTOOPT);
    assert_eq!(errno(four.multicast_loop_v6()), ENOPROTOOPT);
    drop((one, two, four));
    world.end(lanes);
}
