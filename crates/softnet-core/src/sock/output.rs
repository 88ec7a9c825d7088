//! What sockets send: UDP over IPv4 or IPv6 over Ethernet, written into a fresh skb.
//!
//! Pure; whoever sends calls it, with the way that routing found.

use std::net::Ipv6Addr;

use super::udp::IPV6_LEN;
pub use super::udp::UDP_LEN;
use crate::ip::ETH_LEN;
use crate::ip::checksum;
use crate::ip::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::Ipv6Header;
use crate::skb::{Flags, Skb};

/// Bytes of IPv4 and UDP header.
pub const HEADERS: usize = MIN_LEN + UDP_LEN;
/// Bytes of IPv6 and UDP header.
pub const HEADERS_6: usize = IPV6_LEN + UDP_LEN;

/// The headers of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp4 {
    /// Addresses, host order.
    pub src: u32,
    /// See [`src`](Self::src).
    pub dst: u32,
    /// Ports.
    pub sport: u16,
    /// See [`sport`](Self::sport).
    pub dport: u16,
    /// Time to live.
    pub ttl: u8,
    /// Type of service.
    pub tos: u8,
}

/// The headers of a datagram over IPv6.
#[derive(Clone, Copy, Debug)]
pub struct Udp6 {
    /// Addresses.
    pub src: Ipv6Addr,
    /// See [`src`](Self::src).
    pub dst: Ipv6Addr,
    /// Ports.
    pub sport: u16,
    /// See [`sport`](Self::sport).
    pub dport: u16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub class: u8,
}

/// Writes a datagram into `skb`, which is empty: link header `link`, the headers, `payload`. `None` (and an skb to be freed) if
/// it does not fit.
#[inline]
pub fn write_udp4(skb: &mut Skb, link: &[u8; ETH_LEN], to: &Udp4, payload: &[u8]) -> Option<()> {
    let total = u16::try_from(HEADERS + payload.len()).ok()?;
    let data = skb.put(ETH_LEN + usize::from(total))?;
    let (head, body) = data.split_first_chunk_mut::<{ ETH_LEN + HEADERS }>()?;
    body.copy_from_slice(payload);
    head[..ETH_LEN].copy_from_slice(link);
    let mut ip = Ipv4Header::new_mut(&mut head[ETH_LEN..])?;
    // Never fragmented on the way, so the identification need not be unique (RFC 6864 section 4.1).
    ip.fill(total, 0, to.ttl, protocol::UDP, to.src, to.dst);
    ip.set_dont_fragment(true);
    ip.set_tos(to.tos);
    ip.renew_check();
    let len = total - MIN_LEN as u16;
    let pseudo = checksum::pseudo_header_sum(to.src, to.dst, protocol::UDP, len);
    head[ETH_LEN + MIN_LEN..].copy_from_slice(&udp_header((to.sport, to.dport), len, pseudo, payload));
    made_here(skb);
    Some(())
}

/// As [`write_udp4`], over IPv6.
#[inline]
pub fn write_udp6(skb: &mut Skb, link: &[u8; ETH_LEN], to: &Udp6, payload: &[u8]) -> Option<()> {
    let len = u16::try_from(UDP_LEN + payload.len()).ok()?;
    let data = skb.put(ETH_LEN + IPV6_LEN + usize::from(len))?;
    let (head, body) = data.split_first_chunk_mut::<{ ETH_LEN + HEADERS_6 }>()?;
    body.copy_from_slice(payload);
    head[..ETH_LEN].copy_from_slice(link);
    let mut ip = Ipv6Header::new_mut(&mut head[ETH_LEN..])?;
    ip.fill(len, protocol::UDP, to.hop_limit, to.src, to.dst);
    // Between version and flow label (RFC 8200 section 3).
    head[ETH_LEN] = 0x60 | to.class >> 4;
    head[ETH_LEN + 1] = to.class << 4;
    let udp = udp_header((to.sport, to.dport), len, pseudo_header_sum_6(to.src, to.dst, len), payload);
    head[ETH_LEN + IPV6_LEN..].copy_from_slice(&udp);
    made_here(skb);
    Some(())
}

/// The sum of the pseudo-header of UDP over IPv6 (RFC 8200 section 8.1), for a datagram of `len` bytes.
pub fn pseudo_header_sum_6(src: Ipv6Addr, dst: Ipv6Addr, len: u16) -> u16 {
    let addresses = checksum::add(checksum::sum(&src.octets()), checksum::sum(&dst.octets()));
    checksum::add(addresses, checksum::add(protocol::UDP.into(), len))
}

/// The UDP header of a datagram of `len` bytes, whose pseudo-header has the sum `pseudo`.
#[inline]
pub fn udp_header((sport, dport): (u16, u16), len: u16, pseudo: u16, payload: &[u8]) -> [u8; UDP_LEN] {
    let header = checksum::add(checksum::add(sport, dport), len);
    let check = match !checksum::add(checksum::add(pseudo, header), checksum::sum(payload)) {
        // 0 means that there is none (RFC 768).
        0 => 0xffff,
        check => check,
    };
    let mut udp = [0; UDP_LEN];
    for (at, word) in [sport, dport, len, check].into_iter().enumerate() {
        udp[2 * at..2 * at + 2].copy_from_slice(&word.to_be_bytes());
    }
    udp
}

fn made_here(skb: &mut Skb) {
    let head = skb.head_mut();
    head.l3 = ETH_LEN as u16;
    head.flags = Flags::ORIGINATED;
}
