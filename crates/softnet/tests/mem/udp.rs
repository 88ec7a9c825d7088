//! UDP sockets: what softnet's own send and receive, and what becomes of their packets in the end.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use softnet::net::{Handle, MtuDiscover, RecvBatch, SendBatch, UdpSocket};
use softnet_core::ip::checksum;

use super::frames::{arp_answer, host, host_mac, ip, own, own_mac};
use super::world::{Lane, Setup, World, on_all, until};

/// A datagram from the host at port `port`, with its checksum.
pub(crate) fn datagram(port: usize, dst: Ipv4Addr, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    let mut udp = [ports.0, ports.1, len, 0].map(u16::to_be_bytes).concat();
    udp.extend(payload);
    let pseudo = checksum::pseudo_header_sum(host(port).to_bits(), dst.to_bits(), 17, len);
    let check = !checksum::add(pseudo, checksum::sum(&udp));
    udp[6..8].copy_from_slice(&if check == 0 { 0xffff } else { check }.to_be_bytes());
    ip(port, dst, 64, 17, &udp)
}

/// Source and destination of a UDP frame that softnet sent, and its payload; the frame is sound.
pub(crate) fn sent(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, Vec<u8>)> {
    if frame[12..14] != [8, 0] || frame[23] != 17 {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let addr = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    assert_eq!(checksum::sum(&frame[14..34]), 0xffff, "header checksum");
    assert_eq!(usize::from(word(16)), frame.len() - 14);
    assert_eq!(usize::from(word(38)), frame.len() - 34);
    let pseudo = checksum::pseudo_header_sum(addr(26).to_bits(), addr(30).to_bits(), 17, word(38));
    assert_eq!(checksum::add(pseudo, checksum::sum(&frame[34..])), 0xffff, "UDP checksum");
    let (from, to) = (SocketAddrV4::new(addr(26), word(34)), SocketAddrV4::new(addr(30), word(36)));
    Some((from, to, frame[42..].to_vec()))
}

pub(crate) fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

pub(crate) fn start(ports: &[usize], known: bool) -> (World, Vec<Lane>, Handle) {
    let (world, lanes) = Setup { ports, workers: 2, known, ..Setup::default() }.start();
    let handle = world.handle();
    (world, lanes, handle)
}

/// What `lane` brings until there is a datagram.
fn next_sent(lane: &mut Lane) -> (SocketAddrV4, SocketAddrV4, Vec<u8>) {
    let mut got = None;
    until("a datagram is sent", || {
        lane.receive(|frame| {
            if let Some(datagram) = sent(frame) {
                assert!(got.replace(datagram).is_none(), "two of them");
            }
        });
        got.is_some()
    });
    got.unwrap()
}

#[test]
fn datagrams_of_every_size_come_and_go() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let other = UdpSocket::bind(&handle, "0.0.0.0:0").unwrap();
    let mut buffer = [0; 2048];
    for len in (0..=1472).step_by(64).chain([1, 2, 1471, 1472]) {
        assert_eq!(lanes[0].send(&[datagram(0, own(0), (999, 7), &payload(len))]), 1);
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..n], from), (&payload(len)[..], SocketAddr::from((host(0), 999))));
        assert_eq!(socket.send_to(&buffer[..n], from).unwrap(), len);
        let (from, to, echoed) = next_sent(&mut lanes[0]);
        assert_eq!((from, to), (SocketAddrV4::new(own(0), 7), SocketAddrV4::new(host(0), 999)));
        assert_eq!(echoed, payload(len));
    }
    assert_eq!(
        socket.send_to(&payload(65_508), (host(0), 9)).unwrap_err().raw_os_error(),
        Some(90),
        "EMSGSIZE"
    );
    // The source of one that is bound to no address is what routing says.
    other.send_to(b"x", (host(0), 9)).unwrap();
    let (from, ..) = next_sent(&mut lanes[0]);
    assert_eq!((*from.ip(), from.port()), (own(0), other.local_addr().unwrap().port()));
    assert!(socket.incoming_napi_id() >= 8193);
    let row = &world.view.sockets()[0];
    assert_eq!((&*row.local, &row.peer, row.queued), ("10.0.0.1:7", &None, 0));
    assert_eq!((row.napi.as_deref(), row.tid as u32), (Some("mem0-0"), this_tid()));
    drop((socket, other));
    assert!(world.view.sockets().is_empty());
    world.end(lanes);
}

/// What several sockets send by a [`SendBatch`] leaves when that is flushed, full, turned to another device, or dropped.
#[test]
fn what_many_sockets_send_leaves_together() {
    let (world, mut lanes, handle) = start(&[1, 1], true);
    let sockets: Vec<UdpSocket> =
        (0..100).map(|i| UdpSocket::bind(&handle, ("0.0.0.0", 5000 + i)).unwrap()).collect();
    let mut out = SendBatch::new(&handle);
    let to = |port: usize| Some(SocketAddr::from((host(port), 9)));
    let mut take = |lane: usize, ports: std::ops::Range<u16>| {
        let mut got = Vec::new();
        until("they leave", || {
            lanes[lane].receive(|frame| got.extend(sent(frame)));
            got.len() == ports.len()
        });
        for ((from, dst, payload), port) in got.into_iter().zip(ports) {
            assert_eq!((from, dst), (SocketAddrV4::new(own(lane), port), SocketAddrV4::new(host(lane), 9)));
            assert_eq!(payload, port.to_be_bytes());
        }
    };
    for (socket, port) in sockets.iter().zip(5000u16..) {
        out.push(socket, &port.to_be_bytes(), to(0)).unwrap();
    }
    assert_eq!(out.len(), 100 - RecvBatch::MAX, "a full one left");
    take(0, 5000..5064);
    out.flush(Duration::ZERO).unwrap();
    assert!(out.is_empty());
    take(0, 5064..5100);
    for (socket, port) in sockets.iter().zip(5000u16..).take(3) {
        out.push(socket, &port.to_be_bytes(), to(usize::from(port == 5002))).unwrap();
    }
    take(0, 5000..5002);
    // One that can't be sent is refused, and the others are not concerned.
    assert_eq!(out.push(&sockets[0], b"x", None).unwrap_err().raw_os_error(), Some(89), "EDESTADDRREQ");
    assert_eq!(out.push(&sockets[0], &[0; 65_508], to(0)).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
    assert_eq!(out.len(), 1);
    drop(out);
    take(1, 5002..5003);
    // To a socket here, at once.
    let mut out = SendBatch::new(&handle);
    out.push(&sockets[0], b"here", Some((own(0), 5001).into())).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(sockets[1].recv(&mut buffer).unwrap(), 4);
    let (other, other_lanes, other_handle) = start(&[1], true);
    let foreign = UdpSocket::bind(&other_handle, (own(0), 7)).unwrap();
    assert_eq!(out.push(&foreign, b"x", to(0)).unwrap_err().kind(), ErrorKind::InvalidInput);
    drop((foreign, other_handle));
    other.end(other_lanes);
    drop((out, sockets));
    world.end(lanes);
}

fn this_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

#[test]
fn a_receiver_that_waits_is_woken_by_a_datagram_a_time_out_or_the_end() {
    let (mut world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let mut buffer = [0; 64];
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    assert!(socket.set_read_timeout(Some(Duration::ZERO)).is_err());
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    socket.set_read_timeout(None).unwrap();
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (socket, received) = (socket.try_clone().unwrap(), &received);
            scope.spawn(move || {
                let mut buffer = [0; 64];
                while socket.recv(&mut buffer).is_ok() {
                    received.fetch_add(1, Ordering::Relaxed);
                }
                let error = socket.recv(&mut buffer).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NetworkDown);
            });
        }
        for n in 1..=200 {
            assert_eq!(lanes[0].send(&[datagram(0, own(0), (999, 7), b"wake up")]), 1);
            until("it is received", || received.load(Ordering::Relaxed) == n);
        }
        world.stop();
    });
    assert_eq!(UdpSocket::bind(&handle, "0.0.0.0:0").unwrap_err().kind(), ErrorKind::NetworkDown);
    drop(socket);
    world.end(lanes);
}

#[test]
fn an_unknown_neighbour_is_asked_for_first_and_errors_come_back() {
    let (world, mut lanes, handle) = start(&[1], false);
    let socket = UdpSocket::bind(&handle, (own(0), 0)).unwrap();
    socket.connect((host(0), 9)).unwrap();
    let local = socket.local_addr().unwrap();
    for i in 0..3u8 {
        socket.send(&[i]).unwrap();
    }
    let mut got = Vec::new();
    until("the neighbour was asked for, and they were sent", || {
        let mut answer = None;
        lanes[0].receive(|frame| {
            answer = answer.take().or(arp_answer(0, host(0), frame));
            got.extend(sent(frame).map(|(from, to, payload)| {
                assert_eq!((SocketAddr::from(from), to), (local, SocketAddrV4::new(host(0), 9)));
                payload[0]
            }));
        });
        answer.into_iter().for_each(|answer| assert_eq!(lanes[0].send(&[answer]), 1));
        got.len() == 3
    });
    assert_eq!(got, [0, 1, 2], "in order");
    // Port unreachable, about what it sent: ports and addresses are quoted.
    let quote = |dport: u16| {
        let mut udp = [local.port(), dport, 9, 0].map(u16::to_be_bytes).concat();
        udp.push(0);
        let mut sent = ip(0, own(0), 64, 17, &udp)[14..].to_vec();
        sent[12..16].copy_from_slice(&own(0).octets());
        sent[16..20].copy_from_slice(&host(0).octets());
        let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0], &sent[..28]].concat();
        let check = checksum::checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        ip(0, own(0), 64, 1, &message)
    };
    assert_eq!(lanes[0].send(&[quote(10), quote(9)]), 2);
    let mut buffer = [0; 9];
    assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(socket.take_error().unwrap().is_none(), "told once");
    drop(socket);
    world.end(lanes);
}

#[test]
fn sockets_here_talk_to_each_other() {
    let (world, lanes, handle) = start(&[1], true);
    let server = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    // One after the other: a socket that was connected keeps its address.
    let clients = [own(0), Ipv4Addr::LOCALHOST].map(|to| {
        let client = UdpSocket::bind(&handle, "[::]:0").unwrap();
        client.connect((to, 7)).unwrap();
        assert_eq!(client.send(b"hello").unwrap(), 5);
        let mut buffer = [0; 64];
        let (n, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..n], from.ip(), from.port()),
            (&b"hello"[..], to.into(), client.local_addr().unwrap().port())
        );
        server.send_to(b"there", from).unwrap();
        assert_eq!(client.peek(&mut buffer).unwrap(), 5);
        let (n, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..n], from), (&b"there"[..], SocketAddr::from((to.to_ipv6_mapped(), 7))));
        assert_eq!(client.peer_addr().unwrap(), from);
        client
    });
    drop(server);
    let client = &clients[1];
    client.send(b"is anybody there?").unwrap();
    assert_eq!(client.send(b"no").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    drop(clients);
    world.end(lanes);
}

#[test]
fn what_cannot_be_is_refused_as_the_kernel_does() {
    let (world, lanes, handle) = start(&[1], true);
    let bind = |addr: &str| UdpSocket::bind(&handle, addr);
    let kind = |result: std::io::Result<UdpSocket>| result.unwrap_err().kind();
    assert_eq!(kind(bind("10.9.9.9:7")), ErrorKind::AddrNotAvailable);
    assert_eq!(kind(bind("[2001:db8::1]:7")), ErrorKind::AddrNotAvailable);
    let socket = bind("10.0.0.1:7").unwrap();
    for addr in ["10.0.0.1:7", "0.0.0.0:7", "[::]:7"] {
        assert_eq!(kind(bind(addr)), ErrorKind::AddrInUse);
    }
    let errno = |result: std::io::Result<usize>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(socket.send(b"x")), Some(89), "EDESTADDRREQ");
    assert_eq!(errno(socket.send_to(b"x", "172.16.0.1:7")), Some(101), "ENETUNREACH");
    assert_eq!(errno(socket.send_to(b"x", "10.0.0.255:7")), Some(13), "EACCES");
    assert_eq!(errno(socket.send_to(b"x", "[2001:db8::1]:7")), Some(97), "EAFNOSUPPORT");
    assert_eq!(errno(socket.send_to(b"x", "10.0.0.2:0")), Some(22), "EINVAL");
    assert_eq!(socket.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert!(socket.set_ttl(0).is_err() && socket.set_ttl(256).is_err());
    drop(socket);
    let only = UdpSocket::builder(&handle).only_v6(true).bind("[::]:7").unwrap();
    let both = bind("0.0.0.0:7").unwrap();
    drop((only, both));
    world.end(lanes);
}

#[test]
fn options_are_on_the_wire() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    socket.set_ttl(9).unwrap();
    socket.set_tos(0xb8).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_multicast_ttl_v4(3).unwrap();
    let group = Ipv4Addr::new(239, 129, 2, 3);
    for (to, mac, ttl) in [
        (host(0), host_mac(0), 9),
        (Ipv4Addr::new(10, 0, 0, 255), [0xff; 6], 9),
        (Ipv4Addr::BROADCAST, [0xff; 6], 9),
        (group, [1, 0, 0x5e, 1, 2, 3], 3),
    ] {
        socket.send_to(b"x", (to, 9)).unwrap();
        let mut frame = Vec::new();
        until("it is sent", || {
            lanes[0].receive(|bytes| frame = bytes.to_vec());
            !frame.is_empty()
        });
        assert_eq!((&frame[..6], &frame[6..12]), (&mac[..], &own_mac(0)[..]), "{to}");
        assert_eq!((frame[15], frame[22], &frame[30..34]), (0xb8, ttl, &to.octets()[..]));
    }
    drop(socket);
    world.end(lanes);
}

#[test]
fn members_of_a_group_and_listeners_to_broadcasts_get_theirs() {
    let (world, mut lanes, handle) = start(&[1], true);
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let open = |addr: &str| UdpSocket::builder(&handle).reuse_port(true).bind(addr).unwrap();
    let sockets = [open("0.0.0.0:7"), open("239.1.2.3:7"), open("0.0.0.0:7")];
    let stranger = UdpSocket::bind(&handle, "0.0.0.0:8").unwrap();
    let any = Ipv4Addr::UNSPECIFIED;
    sockets[0].join_multicast_v4(&group, &own(0)).unwrap();
    sockets[1].join_multicast_v4(&group, &any).unwrap();
    stranger.join_multicast_v4(&group, &any).unwrap();
    assert!(
        stranger.join_multicast_v4(&host(0), &any).is_err()
            && stranger.join_multicast_v4(&group, &host(0)).is_err()
    );
    let to_all = |mac: [u8; 6], dst: Ipv4Addr| {
        let mut frame = datagram(0, dst, (999, 7), b"to all");
        frame[..6].copy_from_slice(&mac);
        frame
    };
    let mut buffer = [0; 64];
    let mut expect = |socket: &UdpSocket| assert_eq!(socket.recv(&mut buffer).unwrap(), 6);
    lanes[0].send(&[to_all([1, 0, 0x5e, 1, 2, 3], group)]);
    sockets[..2].iter().for_each(&mut expect);
    // What is sent here is looped back, unless that is not wanted.
    stranger.send_to(b"to all", (group, 7)).unwrap();
    sockets[..2].iter().for_each(&mut expect);
    stranger.set_multicast_loop_v4(false).unwrap();
    stranger.send_to(b"to all", (group, 7)).unwrap();
    sockets[1].leave_multicast_v4(&group, &any).unwrap();
    lanes[0].send(&[to_all([1, 0, 0x5e, 1, 2, 3], group), to_all([0xff; 6], Ipv4Addr::BROADCAST)]);
    expect(&sockets[0]);
    // A broadcast is for all that are bound to the port, and to no address that it was not sent to.
    expect(&sockets[0]);
    expect(&sockets[2]);
    world.settle(3);
    let connected = open("0.0.0.0:7");
    connected.connect((host(0), 999)).unwrap();
    let others = [connected, open("10.0.0.1:7")];
    let only_v6 = UdpSocket::builder(&handle).only_v6(true).reuse_port(true).bind("[::]:7").unwrap();
    lanes[0].send(&[to_all([0xff; 6], Ipv4Addr::new(10, 0, 0, 255))]);
    expect(&sockets[0]);
    expect(&sockets[2]);
    // What is sent here is looped back, to its sender, too, be multicast looped back or not.
    sockets[2].set_broadcast(true).unwrap();
    sockets[2].set_multicast_loop_v4(false).unwrap();
    for dst in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        assert_eq!(sockets[2].send_to(b"to all", (dst, 7)).unwrap(), 6);
        expect(&sockets[0]);
        expect(&sockets[2]);
    }
    world.settle(4);
    for socket in sockets.into_iter().chain(others).chain([stranger, only_v6]) {
        assert!(!socket.readiness().readable, "{socket:?}");
    }
    world.end(lanes);
}

#[test]
fn a_batch_is_received_where_it_lies_and_sent_at_once() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let frames: Vec<_> =
        (0..100).map(|i| datagram(0, own(0), (1000 + i, 7), &payload(usize::from(i)))).collect();
    assert_eq!(lanes[0].send(&frames), 100);
    let (mut batch, mut got) = (RecvBatch::new(), 0);
    while got < 100 {
        let n = socket.recv_batch(&mut batch, 48).unwrap();
        assert!(n == batch.len() && n <= 48);
        for (received, i) in batch.iter().zip(got..) {
            assert_eq!(received.from, SocketAddr::from((host(0), 1000 + i as u16)));
            assert_eq!(received.data(), Some(&payload(i)[..]));
        }
        let answers: Vec<Vec<u8>> = batch.iter().map(|r| r.data().unwrap().to_vec()).collect();
        let to: Vec<SocketAddr> = batch.iter().map(|r| r.from).collect();
        let messages = answers.iter().zip(&to).map(|(answer, to)| (&answer[..], Some(*to)));
        assert_eq!(socket.send_batch(&messages.collect::<Vec<_>>()).unwrap(), n);
        got += n;
    }
    let mut back = 0;
    until("all are answered", || {
        lanes[0].receive(|frame| {
            let (_, to, answer) = sent(frame).unwrap();
            assert_eq!((to.port(), answer), (1000 + back as u16, payload(back)));
            back += 1;
        });
        back == 100
    });
    // Those that cannot be sent end a batch.
    let host = Some(SocketAddr::from((host(0), 9)));
    let mixed = [(&b"a"[..], host), (b"b", Some("172.16.0.1:1".parse().unwrap())), (b"c", host)];
    assert_eq!(socket.send_batch(&mixed).unwrap(), 1);
    assert_eq!(socket.send_batch(&mixed[1..]).unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    // A batch may outlive its socket, but not the books.
    lanes[0].send(&frames[..10]);
    socket.recv_batch(&mut batch, 64).unwrap();
    drop(socket);
    assert!(batch.iter().all(|received| received.data().is_some()));
    drop(batch);
    world.end(lanes);
}

#[test]
fn flows_are_shared_among_sockets_that_share_a_port() {
    let (world, mut lanes, handle) = start(&[1], true);
    let open = || UdpSocket::builder(&handle).reuse_port(true).bind((own(0), 7)).unwrap();
    let sockets: Vec<UdpSocket> = (0..4).map(|_| open()).collect();
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let mut first = vec![None; 200];
    for round in 0..3 {
        let frames: Vec<_> = (0..200u16).map(|i| datagram(0, own(0), (1000 + i, 7), b"x")).collect();
        assert_eq!(lanes[0].send(&frames), 200);
        let mut got = 0;
        until("all are received", || {
            for (member, socket) in sockets.iter().enumerate() {
                while let Ok((_, from)) = socket.recv_from(&mut [0; 9]) {
                    let flow = &mut first[usize::from(from.port() - 1000)];
                    assert_eq!(*flow.get_or_insert(member), member, "a flow stays with one, round {round}");
                    got += 1;
                }
            }
            got == 200
        });
    }
    let each = (0..4).map(|member| first.iter().filter(|flow| **flow == Some(member)).count());
    assert!(each.clone().all(|n| n > 20), "{:?}", each.collect::<Vec<_>>());
    // One of them asks for the instance that all come by.
    sockets[3].set_reuse_port_napi(Some(sockets[0].incoming_napi_id()));
    lanes[0].send(&[datagram(0, own(0), (1, 7), b"x"), datagram(0, own(0), (2, 7), b"x")]);
    let mut got = 0;
    until("it gets them", || {
        got += usize::from(sockets[3].recv(&mut [0; 9]).is_ok());
        got == 2
    });
    drop(sockets);
    world.end(lanes);
}

/// Sockets come and go under traffic, on threads that come and go as well: nothing is lost or left over.
#[test]
fn sockets_are_closed_under_traffic() {
    let (world, lanes, handle) = start(&[2, 1], true);
    let over = AtomicBool::new(false);
    let lanes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3u16)
            .map(|me| {
                let (handle, over) = (&handle, &over);
                scope.spawn(move || {
                    let mut received = 0;
                    while !over.load(Ordering::Relaxed) {
                        // Each socket on a thread that ends with it, now and then with something left in it.
                        let handle = handle.clone();
                        received += std::thread::spawn(move || {
                            let socket = UdpSocket::bind(&handle, ("0.0.0.0", 7 + me)).unwrap();
                            socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
                            if me == 1 {
                                socket.connect((host(0), 999)).unwrap();
                            }
                            let mut buffer = [0; 64];
                            let mut n = 0;
                            while n < 50
                                && let Ok((len, from)) = socket.recv_from(&mut buffer)
                            {
                                n += 1;
                                let _ = socket.send_to(&buffer[..len], from);
                            }
                            n
                        })
                        .join()
                        .unwrap();
                    }
                    received
                })
            })
            .collect();
        let lanes = on_all(lanes, |lane| {
            for round in 0..200u16 {
                let frames: Vec<_> = (0..32)
                    .map(|i| {
                        datagram(
                            lane.port,
                            own(i & 1),
                            (999 + (i as u16 & 1), 7 + (round + i as u16) % 4),
                            b"traffic",
                        )
                    })
                    .collect();
                lane.send(&frames);
                lane.receive(|_| {});
                std::thread::yield_now();
            }
        });
        over.store(true, Ordering::Relaxed);
        let received: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(received.iter().sum::<usize>() > 0, "{received:?}");
        lanes
    });
    assert_eq!((world.view.stats().sockets, world.view.sockets().len()), (0, 0));
    world.end(lanes);
}

/// What waits counts as held until it is received or its socket closed, and is bounded.
#[test]
fn a_buffer_that_is_full_drops_and_the_books_balance() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::builder(&handle).recv_buffer_size(10 * 2176).bind((own(0), 7)).unwrap();
    let frames: Vec<_> = (0..30).map(|i| datagram(0, own(0), (999, 7), &[i])).collect();
    assert_eq!(lanes[0].send(&frames), 30);
    world.settle(30);
    let row = &world.view.sockets()[0];
    assert_eq!((row.queued, row.limit, row.drops), (10, 10, 20));
    assert_eq!(world.view.stats().held, 10);
    let drops = |reason: &str| {
        world.view.drops().iter().filter(|row| row.reason == reason).map(|row| row.packets).sum::<u64>()
    };
    assert_eq!(drops("socket_rcvbuff"), 20);
    let mut buffer = [0; 9];
    for i in 0..4 {
        socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[0], i);
    }
    assert_eq!(world.view.stats().held, 6);
    drop(socket);
    assert_eq!((world.view.stats().held, drops("socket_close")), (0, 6));
    world.end(lanes);
}

/// A router far away has no room for what a socket sends: its error is believed if it quotes what was sent, and the rest goes
/// in fragments that fit.
#[test]
fn a_path_that_takes_less_is_learnt_of() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let frames = |lane: &mut Lane, n: usize| {
        let mut got: Vec<Vec<u8>> = Vec::new();
        until("frames are sent", || {
            lane.receive(|frame| got.extend((frame[12..14] == [8, 0]).then(|| frame.to_vec())));
            got.len() >= n
        });
        got
    };
    let too_big = |quoted: &[u8]| {
        let mut message = vec![3, 4, 0, 0, 0, 0];
        message.extend(1000u16.to_be_bytes());
        message.extend(&quoted[14..14 + 28]);
        let check = !checksum::sum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        ip(0, own(0), 64, 1, &message)
    };
    socket.connect((host(0), 999)).unwrap();
    socket.send(&payload(1400)).unwrap();
    let sent = frames(&mut lanes[0], 1).remove(0);
    assert_eq!((sent.len(), sent[20] & 0x40), (14 + 28 + 1400, 0x40));
    // One that quotes what was never sent changes nothing.
    let mut made_up = sent.clone();
    made_up[34..36].copy_from_slice(&8u16.to_be_bytes());
    assert_eq!(lanes[0].send(&[too_big(&made_up)]), 1);
    world.settle(1);
    socket.send(&payload(1400)).unwrap();
    assert_eq!(frames(&mut lanes[0], 1).len(), 1);
    assert_eq!(lanes[0].send(&[too_big(&sent)]), 1);
    until("the socket is told", || socket.readiness().error);
    assert_eq!(socket.send(&payload(1400)).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
    socket.send(&payload(1400)).unwrap();
    let parts = frames(&mut lanes[0], 2);
    let lens: Vec<_> = parts.iter().map(|frame| frame.len() - 14).collect();
    assert_eq!(lens, [20 + 976, 20 + 1408 - 976]);
    // A program that wants no fragments is told; one that finds out by itself is not hindered below the device's MTU.
    socket.set_mtu_discover(MtuDiscover::Do).unwrap();
    assert_eq!(socket.send(&payload(973)).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
    assert_eq!(socket.send(&payload(972)).unwrap(), 972);
    assert_eq!(frames(&mut lanes[0], 1)[0].len(), 14 + 1000);
    socket.set_mtu_discover(MtuDiscover::Probe).unwrap();
    assert_eq!(socket.send(&payload(1472)).unwrap(), 1472);
    let probe = frames(&mut lanes[0], 1).remove(0);
    assert_eq!((probe.len(), probe[20] & 0x40), (14 + 1500, 0x40));
    assert_eq!(socket.send(&payload(1473)).unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
    drop(socket);
    world.end(lanes);
}
