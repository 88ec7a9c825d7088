//! ICMP errors about what a socket sent (RFC 1122 section 4.1.3.3): which socket, and which error.
//!
//! Called by the slow path, with messages that came from the network: whoever guesses addresses and ports can make one up, so all
//! it does is to leave an error with a *connected* socket, as the kernel does.

use super::key::{Flow, mapped};
use super::slot::SocketError;
use crate::ip::checksum;
use crate::ip::header::{Ipv4Header, protocol, validate};
use crate::skb::Skb;

const DESTINATION_UNREACHABLE: u8 = 3;
const ICMP_LEN: usize = 8;

/// The flow of the datagram that the ICMP message in `skb` is about, and what is wrong with it; `None` if it is not a sound message
/// that says that a host, a network or a port can't be reached, about UDP.
pub fn of_message(skb: &Skb) -> Option<(Flow, SocketError)> {
    let packet = skb.data().get(usize::from(skb.head().l3)..)?;
    let lengths = validate(packet).ok()?;
    let header = Ipv4Header::new(packet)?;
    if header.protocol() != protocol::ICMP || header.is_fragment() {
        return None;
    }
    let message = packet.get(lengths.header..lengths.total)?;
    let &[DESTINATION_UNREACHABLE, code, ..] = message else { return None };
    let error = match code {
        0 => SocketError::NetUnreachable,
        1 => SocketError::HostUnreachable,
        3 => SocketError::ConnectionRefused,
        _ => return None,
    };
    if checksum::sum(message) != 0xffff {
        return None;
    }
    // Sent by us: what was our source is our end.
    Some((of_sent(message.get(ICMP_LEN..)?)?, error))
}

/// The flow of a datagram that was sent, of which `packet` is the beginning, from its IPv4 header on: at least its ports.
pub fn of_sent(packet: &[u8]) -> Option<Flow> {
    let ip = Ipv4Header::new(packet)?;
    if ip.version() != 4 || ip.protocol() != protocol::UDP || ip.fragment_offset() != 0 {
        return None;
    }
    let &[s0, s1, d0, d1] = packet.get(ip.header_len()..)?.first_chunk()?;
    Some(Flow {
        local: mapped(ip.src()),
        remote: mapped(ip.dst()),
        lport: u16::from_be_bytes([s0, s1]),
        rport: u16::from_be_bytes([d0, d1]),
    })
}
