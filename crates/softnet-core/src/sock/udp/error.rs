//! Finds the socket that an ICMP error is about (RFC 1122 section 4.1.3.3).

use super::super::key::Flow;
use super::datagram::ends;
use crate::ip::v4::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN as IPV6_LEN, receive};

/// The flow of a datagram that was sent by device `dev`. `packet` is its beginning, from the IP
/// header to at least the ports. `None` if it is no UDP, or not a first fragment.
pub fn of_sent(packet: &[u8], dev: u16) -> Option<Flow> {
    Some(flow_of_sent(packet, dev, protocol::UDP)?.0)
}

/// The same of any protocol with ports, and what of the packet begins with them.
pub(in crate::sock) fn flow_of_sent(packet: &[u8], dev: u16, protocol: u8) -> Option<(Flow, &[u8])> {
    let at = match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4Header::new(packet)?;
            let is_it = ip.protocol() == protocol && ip.fragment_offset() == 0;
            is_it.then_some(ip.header_len().max(MIN_LEN))?
        }
        _ if Ipv6Header::new(packet)?.next_header() == protocol => IPV6_LEN,
        _ => receive(packet).ok().filter(|upper| upper.protocol == protocol)?.at,
    };
    let l4 = packet.get(at..)?;
    let &[s0, s1, d0, d1] = l4.first_chunk()?;
    // We sent the packet, so its source is our end.
    let (remote, local, _) = ends(packet, dev).ok()?;
    let (lport, rport) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    Some((Flow { local, remote, lport, rport, protocol }, l4))
}
