//! What users of the kernel's UDP sockets rely on in the odd cases: which addresses go together, and what a buffer holds.

use std::io::ErrorKind;

use softnet::net::UdpSocket;

use super::frames::{host, own};
use super::udp::{datagram, start};
use super::world::until;

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

#[test]
fn a_loopback_address_is_on_no_wire() {
    let (world, lanes, handle) = start(&[1], true);
    for bound in ["127.0.0.1:7", "[::1]:7"] {
        let socket = UdpSocket::bind(&handle, bound).unwrap();
        if socket.local_addr().unwrap().is_ipv4() {
            assert_eq!(errno(socket.send_to(b"x", (host(0), 9))), Some(22), "EINVAL");
            assert_eq!(errno(socket.connect((host(0), 9))), Some(22), "EINVAL");
        }
        // To one's own it may be.
        assert_eq!(socket.send_to(b"x", bound).unwrap(), 1);
    }
    let socket = UdpSocket::bind(&handle, "127.0.0.1:7").unwrap();
    assert_eq!(socket.send_to(b"x", (own(0), 7)).unwrap(), 1);
    drop(socket);
    assert_eq!(world.view.stats().transmitted, 0);
    world.end(lanes);
}

#[test]
fn a_socket_for_ipv6_alone_has_nothing_to_do_with_ipv4() {
    let (world, lanes, handle) = start(&[1], true);
    let only = UdpSocket::builder(&handle).only_v6(true).bind("[::]:7").unwrap();
    let other = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    assert_eq!(errno(only.send_to(b"x", (host(0), 9))), Some(101), "ENETUNREACH");
    assert_eq!(errno(only.connect((own(0), 7))), Some(101), "ENETUNREACH");
    assert_eq!(only.send_to(b"x", "[::1]:7").unwrap(), 1);
    drop((only, other));
    world.end(lanes);
}

#[test]
fn the_unspecified_address_stands_for_this_host() {
    let (world, lanes, handle) = start(&[1], true);
    for any in ["0.0.0.0:0", "[::]:0"] {
        let server = UdpSocket::bind(&handle, any).unwrap();
        let client = UdpSocket::bind(&handle, any).unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        assert!(client.peer_addr().unwrap().ip().is_loopback());
        client.send(b"hello").unwrap();
        let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(from, client.local_addr().unwrap());
    }
    world.end(lanes);
}

/// Room is there again as datagrams are taken, not only when the last one was.
#[test]
fn a_buffer_has_room_for_what_was_taken_from_it() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::builder(&handle).recv_buffer_size(40 * 2176).bind((own(0), 7)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut send = |n: u8| {
        let frames: Vec<_> = (0..n).map(|i| datagram(0, own(0), (999, 7), &[i])).collect();
        assert_eq!(lanes[0].send(&frames), usize::from(n));
    };
    send(40);
    world.settle(40);
    for _ in 0..30 {
        socket.recv(&mut [0; 9]).unwrap();
    }
    send(20);
    world.settle(60);
    let got = std::iter::from_fn(|| socket.recv(&mut [0; 9]).ok()).count();
    assert_eq!((got, world.view.sockets()[0].drops), (30, 0));
    assert_eq!(socket.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(socket);
    world.end(lanes);
}

/// One that is disconnected is what it was before it was connected.
#[test]
fn a_socket_that_is_disconnected_hears_of_any_sender() {
    let (world, mut lanes, handle) = start(&[1, 1], true);
    let socket = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    let bound = socket.local_addr().unwrap();
    socket.disconnect().unwrap();
    let mut buffer = [0; 9];
    for _ in 0..2 {
        socket.connect((host(0), 999)).unwrap();
        assert_eq!(socket.local_addr().unwrap(), (own(0), 7).into());
        // No other socket may have what it was bound to, if it is to have it back.
        let other = UdpSocket::bind(&handle, (own(1), 7)).unwrap();
        assert_eq!(socket.disconnect().unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(socket.peer_addr().unwrap(), (host(0), 999).into());
        drop(other);
        lanes[0].send(&[datagram(0, own(0), (999, 7), b"from the peer")]);
        until("it waits", || socket.readiness().readable);
        socket.disconnect().unwrap();
        assert_eq!(socket.local_addr().unwrap(), bound);
        assert_eq!(socket.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(errno(socket.send(b"x")), Some(89), "EDESTADDRREQ");
        lanes[0].send(&[datagram(0, own(0), (998, 7), b"x")]);
        lanes[1].send(&[datagram(1, own(1), (997, 7), b"x")]);
        let mut from = [(); 3].map(|()| socket.recv_from(&mut buffer).unwrap().1.port());
        from.sort_unstable();
        assert_eq!(from, [997, 998, 999]);
    }
    drop(socket);
    world.end(lanes);
}

/// In its group it is as good a member as the others.
#[test]
fn a_socket_that_is_disconnected_is_in_its_group_again() {
    let (world, mut lanes, handle) = start(&[1], true);
    let sockets = [(); 2].map(|()| UdpSocket::builder(&handle).reuse_port(true).bind((own(0), 7)).unwrap());
    for socket in &sockets {
        socket.set_nonblocking(true).unwrap();
        socket.connect((host(0), 999)).unwrap();
        socket.disconnect().unwrap();
    }
    let frames: Vec<_> = (1000..1100).map(|port| datagram(0, own(0), (port, 7), b"x")).collect();
    assert_eq!(lanes[0].send(&frames), 100);
    world.settle(100);
    let [one, other] =
        sockets.each_ref().map(|socket| std::iter::from_fn(|| socket.recv(&mut [0; 9]).ok()).count());
    assert!(one > 20 && other > 20 && one + other == 100, "{one} and {other}");
    drop(sockets);
    world.end(lanes);
}
