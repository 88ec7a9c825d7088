//! The redirect message of IPv4 (RFC 792). What leads to one is in [`redirect`](super::super::redirect).

use std::net::Ipv4Addr;

use super::header::Ipv4Header;
use super::icmp::write_about;
use crate::skb::{Skb, Store};

/// Writes the message that tells the sender of `packet`, which begins at its IPv4 header, to send to `gateway` what is for
/// the same host. `None` if there is no memory, or the packet is too short.
pub(in crate::ip) fn build(
    store: &mut Store,
    packet: &[u8],
    gateway: Ipv4Addr,
    source: Ipv4Addr,
) -> Option<Skb> {
    let header = Ipv4Header::new(packet)?;
    let len = packet.len().min(header.total_len().into());
    let [a, b, c, d] = gateway.octets();
    // For the host; of networks routers must not speak any more (RFC 1812 section 5.2.7.2).
    let quote = |quote: &mut [u8]| quote.copy_from_slice(&packet[..quote.len()]);
    write_about(store, [5, 1, 0, 0, a, b, c, d], source, (header, len), quote)
}
