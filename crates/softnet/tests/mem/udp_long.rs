//! Datagrams that do not fit a frame, to sockets here and to many at once.

use std::net::{Ipv4Addr, SocketAddr};

use softnet::net::{RecvBatch, UdpSocket};
use softnet_core::ip::v4::header::Ipv4Header;

use super::frames::{own, own_mac};
use super::udp::{payload, start};
use super::world::until;

#[test]
fn a_datagram_to_oneself_may_be_as_long_as_any() {
    let (world, lanes, handle) = start(&[1], true);
    for (addr, most) in [
        (SocketAddr::from((own(0), 7)), 65_507),
        ("127.0.0.1:7".parse().unwrap(), 65_507),
        ("[::1]:7".parse().unwrap(), 65_527),
    ] {
        let server = UdpSocket::bind(&handle, addr).unwrap();
        let client = UdpSocket::bind(&handle, (addr.ip(), 0)).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let from = client.local_addr().unwrap();
        for len in [1600, 1672, 1673, 1700, 1722, 1750, 1751, 3000, 9000, most] {
            assert_eq!(client.send_to(&payload(len), addr).unwrap(), len);
            assert_eq!(server.recv_from(&mut buffer).unwrap(), (len, from));
            assert!(buffer[..len] == payload(len), "{len} bytes to {addr}");
        }
        let too_long = client.send_to(&payload(most + 1), addr);
        assert_eq!(too_long.unwrap_err().raw_os_error(), Some(90), "EMSGSIZE");
        // Several at once, the long one in pieces.
        for len in [10, 5000, 20] {
            client.send_to(&payload(len), addr).unwrap();
        }
        let mut batch = RecvBatch::new();
        assert_eq!(server.recv_batch(&mut batch, 64).unwrap(), 3);
        assert!(batch.iter().map(|datagram| datagram.data().is_some()).eq([true, false, true]));
        assert_eq!(batch.get(1).unwrap().parts().collect::<Vec<_>>().concat(), payload(5000));
        // To a port without a socket: told as if by ICMP.
        drop(server);
        client.connect(addr).unwrap();
        client.send(&payload(9000)).unwrap();
        assert_eq!(client.send(b"x").unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    }
    world.end(lanes);
}

/// What is too long for the link leaves in fragments to all; members here get it whole.
#[test]
fn a_datagram_to_many_may_be_longer_than_the_link_takes() {
    let (world, mut lanes, handle) = start(&[1], true);
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let sender = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    sender.set_broadcast(true).unwrap();
    let member = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    member.join_multicast_v4(&group, &own(0)).unwrap();
    let len = 4000;
    for (dst, mac, ttl) in [
        (group, [1, 0, 0x5e, 1, 2, 3], 1),
        (Ipv4Addr::BROADCAST, [0xff; 6], 64),
        (Ipv4Addr::new(10, 0, 0, 255), [0xff; 6], 64),
    ] {
        assert_eq!(sender.send_to(&payload(len), (dst, 7)).unwrap(), len);
        let mut parts = Vec::new();
        until("all fragments are sent", || {
            lanes[0].receive(|frame| parts.push(frame.to_vec()));
            parts.len() == 3
        });
        let mut whole: Vec<u8> = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            assert_eq!((&part[..6], &part[6..12], &part[12..14]), (&mac[..], &own_mac(0)[..], &[8, 0][..]));
            let header = Ipv4Header::new(&part[14..]).unwrap();
            assert_eq!((header.src(), header.dst(), header.ttl()), (own(0).into(), dst.into(), ttl));
            assert_eq!(
                (usize::from(header.fragment_offset()) * 8, header.more_fragments()),
                (whole.len(), i < 2)
            );
            whole.extend(&part[34..]);
        }
        assert_eq!(whole[8..], payload(len));
        let mut buffer = vec![0; len + 1];
        assert_eq!(member.recv_from(&mut buffer).unwrap(), (len, (own(0), 8).into()));
        assert_eq!(buffer[..len], payload(len));
    }
    drop((sender, member));
    world.end(lanes);
}
