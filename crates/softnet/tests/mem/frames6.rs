//! Frames of IPv6 that pass on the wires: UDP, neighbour discovery, ICMPv6 errors.

use std::net::{Ipv6Addr, SocketAddrV6};

use softnet_core::ip::checksum;
use softnet_core::ip::v6::addr::multicast_mac;
use softnet_core::ip::v6::header::{Ipv6Header, next};
use softnet_core::ip::v6::nd::{self, Message};

use super::frames::{Mac, host_mac, own_mac};

const ETH: usize = 14;
const PAYLOAD: usize = ETH + 40;

/// softnet's address on port `port`.
pub(crate) fn own6(port: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, port as u16, 0, 0, 0, 1)
}

/// The host's there.
pub(crate) fn host6(port: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, port as u16, 0, 0, 0, 2)
}

/// Where the checksum of what follows an IPv6 header is.
fn check_at(protocol: u8) -> usize {
    if protocol == next::UDP { 6 } else { 2 }
}

/// Sum of what follows the IPv6 header, with the pseudo-header: 0xffff if it is sound.
fn sum(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, bytes: &[u8]) -> u16 {
    let pseudo = checksum::pseudo_header_sum6(src, dst, protocol, bytes.len() as u16);
    checksum::add(pseudo, checksum::sum(bytes))
}

/// A frame of the host at port `port` to softnet there, or to the group that `dst` is.
fn ip6(port: usize, (src, dst): (Ipv6Addr, Ipv6Addr), hops: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let to = if dst.is_multicast() { multicast_mac(dst) } else { own_mac(port) };
    let mut frame = [&to[..], &host_mac(port), &[0x86, 0xdd], &[0; 40], payload].concat();
    let len = payload.len() as u16;
    Ipv6Header::new_mut(&mut frame[ETH..]).unwrap().fill(len, protocol, hops, src, dst);
    let check = !sum(src, dst, protocol, payload);
    frame[PAYLOAD + check_at(protocol)..][..2].copy_from_slice(&check.to_be_bytes());
    frame
}

/// A datagram from `src`, which is at port `port`.
pub(crate) fn datagram6(
    port: usize,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut udp = [ports.0, ports.1, 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat();
    udp.extend(payload);
    ip6(port, (src, dst), 64, next::UDP, &udp)
}

/// A datagram that softnet sent: its addresses, as they are on the wire, MAC addresses, hop limit and payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) from: SocketAddrV6,
    pub(crate) to: SocketAddrV6,
    pub(crate) macs: [Mac; 2],
    pub(crate) hops: u8,
    pub(crate) payload: Vec<u8>,
}

/// The datagram in `frame`, which is sound, if it is one of IPv6.
pub(crate) fn sent6(frame: &[u8]) -> Option<Sent> {
    if frame[12..14] != [0x86, 0xdd] || frame[ETH + 6] != next::UDP {
        return None;
    }
    let header = Ipv6Header::new(&frame[ETH..]).unwrap();
    let (src, dst) = (header.src(), header.dst());
    let udp = &frame[PAYLOAD..];
    let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    assert_eq!((usize::from(header.payload_len()), usize::from(word(4))), (udp.len(), udp.len()));
    assert_eq!(sum(src, dst, next::UDP, udp), 0xffff, "UDP checksum");
    Some(Sent {
        from: SocketAddrV6::new(src, word(0), 0, 0),
        to: SocketAddrV6::new(dst, word(2), 0, 0),
        macs: [0, 6].map(|at| frame[at..at + 6].try_into().unwrap()),
        hops: header.hop_limit(),
        payload: udp[8..].to_vec(),
    })
}

/// The answer of the host at port `port` to `frame`, if it is a question for `target`.
pub(crate) fn advert6(port: usize, target: Ipv6Addr, frame: &[u8]) -> Option<Vec<u8>> {
    let is_icmp = frame[12..14] == [0x86, 0xdd] && frame[ETH + 6] == next::ICMPV6;
    let header = Ipv6Header::new(frame.get(ETH..).filter(|_| is_icmp)?)?;
    let question = nd::parse(&frame[PAYLOAD..], header.hop_limit(), header.src(), header.dst()).ok()?;
    if !matches!(question, Message::Solicitation { target: asked, .. } if asked == target) {
        return None;
    }
    let mut message = [&[nd::ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets()].concat();
    message.extend([&[2, 1][..], &host_mac(port)].concat());
    Some(ip6(port, (target, header.src()), 255, next::ICMPV6, &message))
}

/// What `from`, which is at port `port`, says to softnet's address `to` of the frame that was sent: that the port is
/// not served there.
pub(crate) fn unreachable6(port: usize, (from, to): (Ipv6Addr, Ipv6Addr), frame: &[u8]) -> Vec<u8> {
    let message = [&[1, 4, 0, 0, 0, 0, 0, 0], &frame[ETH..]].concat();
    ip6(port, (from, to), 64, next::ICMPV6, &message)
}

/// What `from` says of it: that it takes only packets of `mtu` bytes.
pub(crate) fn too_big6(port: usize, (from, to): (Ipv6Addr, Ipv6Addr), frame: &[u8], mtu: u32) -> Vec<u8> {
    let quoted = &frame[ETH..frame.len().min(ETH + 1000)];
    let message = [&[2, 0, 0, 0][..], &mtu.to_be_bytes(), quoted].concat();
    ip6(port, (from, to), 64, next::ICMPV6, &message)
}
