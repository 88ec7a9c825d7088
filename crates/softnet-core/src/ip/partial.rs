//! Completion of partial L4 checksums: a veth or TAP peer hands packets of local sockets over with only the
//! pseudo-header sum in the checksum field, for "hardware" to complete.
//!
//! Used only on devices configured so, before a packet is looked at otherwise.

use super::ETH_LEN;
use super::checksum;

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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An Ethernet/IPv4 packet of `proto` with this L4 payload and its checksum field.
    fn packet(proto: u8, mut l4: Vec<u8>, check: Option<u16>) -> Vec<u8> {
        let field = if proto == 6 { 16 } else { 6 };
        let total = (20 + l4.len()) as u16;
        let pseudo = checksum::pseudo_header_sum(0x0a00_0001, 0x0a00_0002, proto, l4.len() as u16);
        l4[field..field + 2].copy_from_slice(&check.unwrap_or(pseudo).to_be_bytes());
        let mut p = vec![0; 14];
        p.extend([0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0x40, 0, 64, proto, 0, 0]);
        p.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        p.extend(l4);
        p
    }

    /// The sum that a receiver computes: 0xffff if the checksum is right.
    fn received_sum(p: &[u8]) -> u16 {
        let pseudo = checksum::pseudo_header_sum(0x0a00_0001, 0x0a00_0002, p[23], (p.len() - 34) as u16);
        checksum::add(pseudo, checksum::sum(&p[34..]))
    }

    proptest! {
        #[test]
        fn completes_partial_ones(tcp: bool, l4 in prop::collection::vec(any::<u8>(), 20..300)) {
            let mut p = packet(if tcp { 6 } else { 17 }, l4, None);
            complete(&mut p);
            prop_assert_eq!(received_sum(&p), 0xffff);
            let done = p.clone();
            complete(&mut p);
            prop_assert_eq!(p, done);
        }

        #[test]
        fn leaves_others_alone(l4 in prop::collection::vec(any::<u8>(), 20..100), check: u16, proto: u8) {
            let before = packet(proto, l4, Some(check));
            let pseudo = checksum::pseudo_header_sum(0x0a00_0001, 0x0a00_0002, proto, (before.len() - 34) as u16);
            prop_assume!(check != pseudo || (proto != 6 && proto != 17));
            let mut p = before.clone();
            complete(&mut p);
            prop_assert_eq!(p, before);
        }

        #[test]
        fn survives_anything(mut p in prop::collection::vec(any::<u8>(), 0..120)) {
            complete(&mut p);
        }
    }

    #[test]
    fn fragments_are_left_alone() {
        let mut p = packet(17, vec![1; 40], None);
        for flags in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
            p[20..22].copy_from_slice(&flags);
            let before = p.clone();
            complete(&mut p);
            assert_eq!(p, before);
        }
    }
}
