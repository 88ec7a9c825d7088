//! The answer to an echo request that came in fragments. (One that came in one packet is answered in its own buffer,
//! by [`echo_reply`](super::v4::icmp::echo_reply).)

use std::net::Ipv4Addr;

use super::checksum;
use super::fragment::{Addresses, Datagram};
use super::v4::header::{Ipv4Header, protocol, validate_part};
use super::v4::icmp::{ECHO_REPLY, ECHO_REQUEST, ICMP_LEN, TTL, is_answerable, reply_check};
use super::v6::{self, addr::is_unicast, header::Ipv6Header};
use super::{ETH_LEN, is_group};
use crate::skb::{DropReason, Skb};

/// An echo reply, to be [emitted](super::fragment::emit).
#[derive(Debug)]
pub struct EchoReply {
    /// Its header but for the identification.
    pub datagram: Datagram,
    /// Bytes of the ICMP message.
    pub len: usize,
    message: [u8; ICMP_LEN],
    /// Where the payload begins in the request.
    payload: usize,
}

impl EchoReply {
    /// The ICMP message: a new header, and the payload of the `request`.
    pub fn pieces<'a>(&'a self, request: &'a Skb) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(&self.message[..]).chain(request.pieces(self.payload, usize::MAX))
    }
}

/// What answers the echo request to softnet that `skb` holds, of IPv6, whose message begins at `at` of the packet. The
/// reasons are those of [`echo_reply`](super::v6::icmp::echo_reply), and that of a wrong checksum.
pub fn echo6_reply_in_fragments(skb: &Skb, at: usize) -> Result<EchoReply, DropReason> {
    let packet = skb.data().get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let header = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (src, dst) = (header.src(), header.dst());
    let begins = packet.get(at..).ok_or(DropReason::PktTooSmall)?;
    let Some(&[kind, code, high, low, a, b, c, d]) = begins.first_chunk::<ICMP_LEN>() else {
        return Err(DropReason::IcmpMalformed);
    };
    let (len, sum) = checksum::sum_skb(skb, ETH_LEN + at, usize::MAX);
    let pseudo = checksum::pseudo_header_sum6(src, dst, v6::header::next::ICMPV6, len as u16);
    if checksum::add(pseudo, sum) != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    if kind != v6::icmp::ECHO_REQUEST || !is_unicast(src) || !is_unicast(dst) {
        return Err(DropReason::IcmpIgnored);
    }
    let [old, new] = [v6::icmp::ECHO_REQUEST, v6::icmp::ECHO_REPLY].map(|kind| u16::from(kind) << 8);
    let [high, low] = checksum::update16(u16::from_be_bytes([high, low]), old, new).to_be_bytes();
    let datagram = Datagram {
        addresses: Addresses::V6 { src: dst, dst: src, dev: skb.head().dev },
        protocol: v6::header::next::ICMPV6,
        ttl: v6::icmp::HOP_LIMIT,
        tos: header.traffic_class(),
        id: 0,
        dont_fragment: false,
    };
    let message = [v6::icmp::ECHO_REPLY, code, high, low, a, b, c, d];
    Ok(EchoReply { datagram, len, message, payload: ETH_LEN + at + ICMP_LEN })
}

/// What answers the echo request to softnet that `skb` holds, with an Ethernet header before the IPv4 header. `broadcast`
/// and the reasons as for [`echo_reply`](super::v4::icmp::echo_reply).
pub fn echo_reply_in_fragments(
    skb: &Skb,
    broadcast: impl Fn(Ipv4Addr) -> bool,
) -> Result<EchoReply, DropReason> {
    let packet = skb.data().get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate_part(packet, skb.len() - ETH_LEN)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let begins = packet.get(lengths.header..).ok_or(DropReason::PktTooSmall)?;
    let Some(&[kind, code, high, low, a, b, c, d]) = begins.first_chunk::<ICMP_LEN>() else {
        return Err(DropReason::IcmpMalformed);
    };
    let message = ETH_LEN + lengths.header;
    let (len, sum) = checksum::sum_skb(skb, message, lengths.total - lengths.header);
    if sum != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    let group = skb.data().first_chunk().is_some_and(is_group);
    if kind != ECHO_REQUEST || group || !is_answerable(header.src(), header.dst(), broadcast) {
        return Err(DropReason::IcmpIgnored);
    }
    let zeros = || checksum::sum_skb(skb, message + 4, len - 4).1 == 0;
    let [high, low] = reply_check([high, low], zeros).to_be_bytes();
    let (from, to) = (Ipv4Addr::from(header.dst()), Ipv4Addr::from(header.src()));
    let datagram = Datagram {
        addresses: Addresses::V4 { src: from, dst: to },
        protocol: protocol::ICMP,
        ttl: TTL,
        tos: header.tos(),
        id: 0,
        dont_fragment: false,
    };
    let payload = message + ICMP_LEN;
    Ok(EchoReply { datagram, len, message: [ECHO_REPLY, code, high, low, a, b, c, d], payload })
}
