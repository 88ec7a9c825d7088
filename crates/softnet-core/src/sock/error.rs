//! Which socket sent a packet that went wrong (RFC 1122 section 4.1.3.3).

use super::key::Flow;
use super::udp::flow_of;

/// The flow of a datagram that was sent by device `dev`, of which `packet` is the beginning, from its IP header on: at least its
/// ports. `None` if it is no UDP, or not the beginning of one.
pub fn of_sent(packet: &[u8], dev: u16) -> Option<Flow> {
    let Flow { local, remote, lport, rport } = flow_of(packet, dev)?;
    // Sent by us: what was its source is our end.
    Some(Flow { local: remote, remote: local, lport: rport, rport: lport })
}
