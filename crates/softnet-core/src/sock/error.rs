//! Finds the socket that an ICMP error is about (RFC 1122 section 4.1.3.3).

use super::key::Flow;
use super::udp::flow_of;

/// The flow of a datagram that was sent by device `dev`. `packet` is its beginning, from the IP
/// header to at least the ports. `None` if it is no UDP, or not a first fragment.
pub fn of_sent(packet: &[u8], dev: u16) -> Option<Flow> {
    let Flow { local, remote, lport, rport } = flow_of(packet, dev)?;
    // We sent the packet, so its source is our end.
    Some(Flow { local: remote, remote: local, lport: rport, rport: lport })
}
