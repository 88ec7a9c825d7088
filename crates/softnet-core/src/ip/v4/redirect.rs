//! The redirect message of IPv4 (RFC 792). What leads to one is in [`redirect`](super::super::redirect).

use std::net::Ipv4Addr;

use super::super::checksum::checksum;
use super::super::{ETH_LEN, Family};
use super::header::{Ipv4Header, MIN_LEN, protocol};
use super::icmp::{ICMP_LEN, TTL};
use crate::skb::{Flags, Skb, Store};

/// A message is no longer than this, from its IPv4 header on (RFC 1812 section 4.3.2.3).
const MESSAGE_MAX: usize = 576;

/// Writes the message that tells the sender of `packet`, which begins at its IPv4 header, to send to `gateway` what is for
/// the same host. `None` if there is no memory, or the packet is too short.
pub(in crate::ip) fn build(
    store: &mut Store,
    packet: &[u8],
    gateway: Ipv4Addr,
    source: Ipv4Addr,
) -> Option<Skb> {
    let header = Ipv4Header::new(packet)?;
    let quote =
        &packet[..packet.len().min(usize::from(header.total_len())).min(MESSAGE_MAX - MIN_LEN - ICMP_LEN)];
    let total = MIN_LEN + ICMP_LEN + quote.len();
    let mut skb = store.alloc_skb()?;
    let Some(data) = skb.put(ETH_LEN + total) else {
        store.free_skb(skb);
        return None;
    };
    let (eth, ip) = data.split_at_mut(ETH_LEN);
    eth.fill(0);
    eth[12..].copy_from_slice(&Ipv4Addr::ETHERTYPE.to_be_bytes());
    let message = &mut ip[MIN_LEN..];
    // For the host; of networks routers must not speak any more (RFC 1812 section 5.2.7.2).
    message[..4].copy_from_slice(&[5, 1, 0, 0]);
    message[4..ICMP_LEN].copy_from_slice(&gateway.octets());
    message[ICMP_LEN..].copy_from_slice(quote);
    let check = checksum(message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    if let Some(mut to) = Ipv4Header::new_mut(ip) {
        to.fill(total as u16, 0, TTL, protocol::ICMP, source.to_bits(), header.src());
        // As of ICMP errors.
        to.set_dont_fragment(true);
        to.set_tos((header.tos() & 0x1c) | 0xc0);
        to.renew_check();
    }
    let head = skb.head_mut();
    (head.l3, head.flags) = (ETH_LEN as u16, Flags::ORIGINATED);
    Some(skb)
}
