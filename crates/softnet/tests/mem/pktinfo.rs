//! Which of our addresses a datagram was sent to, and which an answer comes from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use softnet::config::InterfaceAddr;
use softnet::net::{Handle, MsgHdr, PktInfo, RecvBatch, SendBatch, UdpSocket};
use softnet_core::ip::checksum;
use softnet_core::ip::v6::addr::link_local;

use super::frames::{host, own, own_mac};
use super::frames6::{Sent, datagram6, host6, own6};
use super::scope::{HOST, OWN, errno, next6, on};
use super::udp::{datagram, payload, sent};
use super::world::{Lane, Setup, World, until};

const EINVAL: Option<i32> = Some(22);
const ENETUNREACH: Option<i32> = Some(101);

/// softnet's other addresses on port 0.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x77);

/// Two links of both families; several addresses on the first, and `OWN` on both.
fn start() -> (World, Vec<Lane>, Handle) {
    let setup = Setup { ports: &[1, 1], workers: 2, known: true, ..Setup::default() };
    let (world, lanes) = setup.start_with(|config| {
        for (port, device) in config.devices.iter_mut().enumerate() {
            device.addresses.extend([own6(port), OWN].map(|own| InterfaceAddr::new(own, 64).unwrap()));
        }
        let others = [InterfaceAddr::new(OTHER, 24), InterfaceAddr::new(OTHER6, 64)];
        config.devices[0].addresses.extend(others.map(Result::unwrap));
    });
    let handle = world.handle();
    (world, lanes, handle)
}

/// What softnet sends by `lane` until there is a datagram of IPv4.
fn next4(lane: &mut Lane) -> (SocketAddrV4, SocketAddrV4, Vec<u8>) {
    let mut got = None;
    until("a datagram is sent", || {
        lane.receive(|frame| got = got.take().or(sent(frame)));
        got.is_some()
    });
    got.unwrap()
}

fn info(addr: impl Into<IpAddr>, if_index: u32) -> PktInfo {
    PktInfo { addr: addr.into(), if_index }
}

/// As a socket of IPv6 sees an address.
fn mapped(addr: Ipv4Addr) -> Ipv6Addr {
    addr.to_ipv6_mapped()
}

/// A socket that is bound to no address is told which was asked, and answers from it: by single
/// calls, by a batch, and by one for many sockets.
#[test]
fn answers_come_from_the_address_that_was_asked() {
    let (world, mut lanes, handle) = start();
    let both = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let v4 = UdpSocket::bind(&handle, "0.0.0.0:8").unwrap();
    let (mut batch, mut out) = (RecvBatch::new(), SendBatch::new(&handle));
    let mut buffer = [0; 64];
    // One of the other device's, too.
    for asked in [own(0), OTHER, own(1)] {
        for (socket, port, addr) in [(&both, 7, mapped(asked).into()), (&v4, 8, IpAddr::from(asked))] {
            let from: SocketAddr = match addr {
                IpAddr::V4(_) => (host(0), 999).into(),
                IpAddr::V6(_) => (mapped(host(0)), 999).into(),
            };
            let asks = |lane: &mut Lane| {
                assert_eq!(lane.send(&[datagram(0, asked, (999, port), b"who are you?")]), 1);
            };
            let answered = |lane: &mut Lane| {
                let (from, to, payload) = next4(lane);
                assert_eq!((from, to), (SocketAddrV4::new(asked, port), SocketAddrV4::new(host(0), 999)));
                assert_eq!(payload, b"me");
            };
            asks(&mut lanes[0]);
            assert_eq!(socket.recv_msg(&mut buffer).unwrap(), (12, from, info(addr, 1)));
            assert_eq!(socket.send_msg(b"me", (from, info(addr, 1))).unwrap(), 2);
            answered(&mut lanes[0]);
            asks(&mut lanes[0]);
            assert_eq!(socket.recv_batch(&mut batch, 64).unwrap(), 1);
            let reply = batch.get(0).unwrap().reply();
            assert_eq!(reply, MsgHdr::new(Some(from), Some(info(addr, 1))));
            assert_eq!(socket.send_batch(&[(&b"me"[..], reply)]).unwrap(), 1);
            answered(&mut lanes[0]);
            out.push(socket, b"me", reply).unwrap();
            out.flush(std::time::Duration::ZERO).unwrap();
            answered(&mut lanes[0]);
        }
    }
    for asked in [own6(0), OTHER6, own6(1)] {
        assert_eq!(lanes[0].send(&[datagram6(0, (host6(0), asked), (999, 7), b"who are you?")]), 1);
        let (_, from, told) = both.recv_msg(&mut buffer).unwrap();
        assert_eq!((from, told), ((host6(0), 999).into(), info(asked, 1)));
        both.send_msg(b"me", (from, told)).unwrap();
        let Sent { from, payload, .. } = next6(&mut lanes[0]).0;
        assert_eq!((from, &payload[..]), (SocketAddrV6::new(asked, 7, 0, 0), &b"me"[..]));
    }
    // A long answer, in fragments.
    both.send_msg(&payload(3000), ((mapped(host(0)), 999).into(), info(OTHER, 0))).unwrap();
    let mut sources = Vec::new();
    until("all fragments are sent", || {
        lanes[0].receive(|frame| sources.push(frame[26..30].to_vec()));
        sources.len() == 3
    });
    assert!(sources.iter().all(|source| *source == OTHER.octets()));
    drop((both, v4, batch, out));
    world.end(lanes);
}

/// DSCP, ECN and time to live are told of each datagram, and chosen for each, in both families: what
/// QUIC's congestion control and a traceroute need.
#[test]
fn type_of_service_and_time_to_live_go_with_each_datagram() {
    let (world, mut lanes, handle) = start();
    let socket = UdpSocket::bind(&handle, "[::]:7").unwrap();
    socket.set_tos(0x20).unwrap();
    let mut four = datagram(0, own(0), (999, 7), b"x");
    (four[15], four[22]) = (0xb9, 3);
    four[24..26].fill(0);
    let check = !checksum::sum(&four[14..34]);
    four[24..26].copy_from_slice(&check.to_be_bytes());
    let mut six = datagram6(0, (host6(0), own6(0)), (999, 7), b"x");
    // Traffic class, between version and flow label; hop limit.
    (six[14], six[15], six[21]) = (0x6b, 0x90, 4);
    let mut batch = RecvBatch::new();
    for (frame, ttl, v4) in [(four, 3, true), (six, 4, false)] {
        assert_eq!(lanes[0].send(&[frame]), 1);
        assert_eq!(socket.recv_batch(&mut batch, 64).unwrap(), 1);
        let got = batch.get(0).unwrap();
        assert_eq!((got.tos(), got.ttl()), (0xb9, ttl));
        for (msg, tos, ttl) in [
            (got.reply().with_tos(0x02), 0x02, 64),
            (got.reply().with_ttl(1), 0x20, 1),
            (got.reply(), 0x20, 64),
        ] {
            socket.send_msg(b"me", msg).unwrap();
            let frame = if v4 {
                let mut frame = Vec::new();
                until("it is sent", || {
                    lanes[0].receive(|bytes| frame = bytes.to_vec());
                    !frame.is_empty()
                });
                frame
            } else {
                next6(&mut lanes[0]).1
            };
            let sent = if v4 { (frame[15], frame[22]) } else { (frame[14] << 4 | frame[15] >> 4, frame[21]) };
            assert_eq!(sent, (tos, ttl), "{msg:?}");
        }
        assert_eq!(errno(socket.send_msg(b"me", got.reply().with_ttl(0))), EINVAL);
    }
    batch.clear();
    drop((socket, batch));
    world.end(lanes);
}

/// Many datagrams of one size in a call.
#[test]
fn a_payload_is_cut_into_datagrams() {
    let (world, mut lanes, handle) = start();
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let (to, all) = (SocketAddr::from((host(0), 999)), payload(1200 * 9 + 5));
    assert_eq!(socket.send_segments(&all, 1200, to).unwrap(), all.len());
    let mut got = Vec::new();
    until("all are sent", || {
        lanes[0].receive(|frame| got.extend(sent(frame).map(|(.., payload)| payload)));
        got.len() == 10
    });
    assert!(got.iter().map(Vec::len).eq([1200; 9].into_iter().chain([5])));
    assert!(got.concat() == all);
    assert_eq!(errno(socket.send_segments(&all, 0, to)), EINVAL);
    assert_eq!(errno(socket.send_segments(&all, 100, to)), EINVAL, "more than 64");
    // To this stack itself as well.
    let here = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    assert_eq!(socket.send_segments(&all, 5000, here.local_addr().unwrap()).unwrap(), all.len());
    let mut batch = RecvBatch::new();
    assert_eq!(here.recv_batch(&mut batch, 64).unwrap(), 3);
    assert!(
        batch.iter().flat_map(|got| got.parts().map(<[u8]>::to_vec).collect::<Vec<_>>()).flatten().eq(all)
    );
    drop((socket, here, batch));
    world.end(lanes);
}

/// Of an address that is on both links, the link where it was asked; both of the device's own, and
/// the one that follows from its MAC address.
#[test]
fn link_local_addresses_answer_on_their_link() {
    let (world, mut lanes, handle) = start();
    let socket = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let mut buffer = [0; 64];
    for port in [0, 1] {
        let index = port as u32 + 1;
        for asked in [OWN, link_local(own_mac(port))] {
            assert_eq!(lanes[port].send(&[datagram6(port, (HOST, asked), (999, 7), b"x")]), 1);
            let (_, from, told) = socket.recv_msg(&mut buffer).unwrap();
            assert_eq!((from, told), (on(HOST, 999, index), info(asked, index)));
            // Where it goes says on which link it is from.
            for told in [told, info(asked, 0)] {
                socket.send_msg(b"me", (from, told)).unwrap();
                let sent = next6(&mut lanes[port]).0;
                assert_eq!((*sent.from.ip(), *sent.to.ip()), (asked, HOST));
            }
            // On the other link it is another's.
            let there = on(HOST, 999, 3 - index);
            assert_eq!(errno(socket.send_msg(b"me", (there, told))), EINVAL);
        }
    }
    // To a host that is on no link in particular, by which it leaves all the same; not by another.
    socket.send_msg(b"me", ((host6(1), 999).into(), info(OWN, 2))).unwrap();
    assert_eq!(*next6(&mut lanes[1]).0.from.ip(), OWN);
    assert_eq!(errno(socket.send_msg(b"me", ((host6(0), 999).into(), info(OWN, 2)))), ENETUNREACH);
    assert_eq!(errno(socket.send_msg(b"me", ((host6(0), 999).into(), info(OWN, 0)))), EINVAL);
    assert_eq!(errno(socket.send_msg(b"me", ((host6(0), 999).into(), info(OWN, 3)))), ENETUNREACH);
    drop(socket);
    world.end(lanes);
}

/// Between sockets of one stack, at any address that leads here; and in several pieces.
#[test]
fn sockets_here_are_answered_from_where_they_ask() {
    let (world, lanes, handle) = start();
    let server = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let mut buffer = vec![0; 6000];
    let asked: [SocketAddr; 6] = [
        (own(0), 7).into(),
        (OTHER, 7).into(),
        (Ipv4Addr::new(127, 0, 0, 5), 7).into(),
        (Ipv6Addr::LOCALHOST, 7).into(),
        (OTHER6, 7).into(),
        on(OWN, 7, 2),
    ];
    for asked in asked {
        let any: IpAddr =
            if asked.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let client = UdpSocket::bind(&handle, (any, 0)).unwrap();
        client.connect(asked).unwrap();
        for len in [3, 5000] {
            client.send(&payload(len)).unwrap();
            let (n, from, told) = server.recv_msg(&mut buffer).unwrap();
            // By no device, but for what is on one link.
            assert_eq!((n, told.if_index), (len, if asked == on(OWN, 7, 2) { 2 } else { 0 }), "{asked}");
            server.send_msg(&buffer[..n], (from, told)).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), len, "{asked}");
        }
    }
    drop(server);
    world.end(lanes);
}

/// What was sent to many is answered from an address of one host; and what is not ours is refused.
#[test]
fn an_answer_comes_from_an_address_of_ours() {
    let (world, mut lanes, handle) = start();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let socket = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    socket.join_multicast_v4(&group, &own(0)).unwrap();
    let mut buffer = [0; 64];
    for to in [group, Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        let mut frame = datagram(0, to, (999, 7), b"anybody?");
        frame[..6].copy_from_slice(&if to == group { [1, 0, 0x5e, 1, 2, 3] } else { [0xff; 6] });
        assert_eq!(lanes[0].send(&[frame]), 1);
        let (_, from, told) = socket.recv_msg(&mut buffer).unwrap();
        assert_eq!(told, info(to, 1));
        socket.send_msg(b"me", (from, told)).unwrap();
        assert_eq!(*next4(&mut lanes[0]).0.ip(), own(0));
    }
    let to = SocketAddr::from((host(0), 999));
    socket.send_msg(b"me", (to, info(Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    assert_eq!(*next4(&mut lanes[0]).0.ip(), own(0));
    for strange in [host(0), Ipv4Addr::new(8, 8, 8, 8), Ipv4Addr::new(127, 0, 0, 1)] {
        assert_eq!(errno(socket.send_msg(b"me", (to, info(strange, 0)))), EINVAL, "{strange}");
    }
    assert_eq!(errno(socket.send_msg(b"me", (to, info(own6(0), 0)))), ENETUNREACH);
    // One that is bound, or connected, may say another all the same, as the kernel's may.
    let bound = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    bound.connect(to).unwrap();
    for (name, addr, source) in [(Some(to), OTHER, OTHER), (None, OTHER, OTHER), (None, group, own(0))] {
        bound.send_msg(b"me", MsgHdr::new(name, Some(info(addr, 0)))).unwrap();
        assert_eq!(*next4(&mut lanes[0]).0.ip(), source);
    }
    bound.send_msg(b"me", None).unwrap();
    assert_eq!(*next4(&mut lanes[0]).0.ip(), own(0));
    drop((socket, bound));
    world.end(lanes);
}
