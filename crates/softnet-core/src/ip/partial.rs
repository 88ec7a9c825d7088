//! Completion of partial L4 checksums: a veth or TAP peer hands packets of local sockets over with only the
//! pseudo-header sum in the checksum field, for "hardware" to complete.
//!
//! Used only on devices configured so, before a packet is looked at otherwise.

use super::checksum;
use super::input::ETH_LEN;

/// Completes the TCP or UDP checksum of an Ethernet/IPv4 `packet` if its field holds just the pseudo-header sum;
/// else leaves it alone. Completing a packet whose checksum was right already changes nothing, even if
/// it happens to equal that sum.
#[inline]
pub fn complete(packet: &mut [u8]) {
    let Some(ip) = packet.get_mut(ETH_LEN..) else { return };
    let Some(&[vihl, _, t0, t1, _, _, f0, f1, _, proto, ..]) = ip.first_chunk::<20>() else { return };
    // Fragments never carry a partial checksum that we could complete.
    if packet_is_not_ipv4(vihl) || (f0 & 0x3f) != 0 || f1 != 0 {
        return;
    }
    let field = match proto {
        6 => 16,
        17 => 6,
        _ => return,
    };
    let header = usize::from(vihl & 15) * 4;
    let total = usize::from(u16::from_be_bytes([t0, t1]));
    if header < 20 || total > ip.len() || total < header + field + 2 {
        return;
    }
    let address = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    let pseudo = checksum::pseudo_header_sum(address(12), address(16), proto, (total - header) as u16);
    let l4 = &mut ip[header..total];
    if l4[field..field + 2] != pseudo.to_be_bytes() {
        return;
    }
    let mut sum = checksum::checksum(l4);
    if sum == 0 && proto == 17 {
        // RFC 768: 0 means none; its complement says the same sum.
        sum = 0xffff;
    }
    l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn packet_is_not_ipv4(vihl: u8) -> bool {
    vihl >> 4 != 4
}
