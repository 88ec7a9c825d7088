//! What users of the kernel's UDP sockets rely on in the odd cases: which addresses go together, and what a buffer holds.

use std::io::ErrorKind;

use softnet::net::UdpSocket;

use super::frames::{host, own};
use super::udp::{datagram, start};

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
fn the_address_of_nobody_stands_for_this_host() {
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
