//! What sockets send: UDP over IPv4 over Ethernet, written into a fresh skb.
//!
//! Pure; whoever sends calls it, with the way that routing found.

use super::udp::UDP_LEN;
use crate::ip::ETH_LEN;
use crate::ip::checksum;
use crate::ip::header::{Ipv4Header, MIN_LEN, protocol};
use crate::skb::{Flags, Skb};

/// Bytes of IPv4 and UDP header.
pub const HEADERS: usize = MIN_LEN + UDP_LEN;

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

/// Writes a datagram into `skb`, which is empty: link header `link`, the headers, `payload`. `None` (and an skb to be freed) if
/// it does not fit.
#[inline]
pub fn write_udp4(skb: &mut Skb, link: &[u8; ETH_LEN], to: &Udp4, payload: &[u8]) -> Option<()> {
    let total = u16::try_from(HEADERS + payload.len()).ok()?;
    let len = (UDP_LEN + payload.len()) as u16;
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
    let udp = &mut head[ETH_LEN + MIN_LEN..];
    udp[..2].copy_from_slice(&to.sport.to_be_bytes());
    udp[2..4].copy_from_slice(&to.dport.to_be_bytes());
    udp[4..6].copy_from_slice(&len.to_be_bytes());
    let pseudo = checksum::pseudo_header_sum(to.src, to.dst, protocol::UDP, len);
    let header = checksum::add(checksum::add(to.sport, to.dport), len);
    let check = match !checksum::add(checksum::add(pseudo, header), checksum::sum(payload)) {
        // 0 means that there is none (RFC 768).
        0 => 0xffff,
        check => check,
    };
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    let head = skb.head_mut();
    head.l3 = ETH_LEN as u16;
    head.flags = Flags::ORIGINATED;
    Some(())
}
