//! Completion of partial L4 checksums: a veth or TAP peer hands packets of local sockets over with only the
//! pseudo-header sum in the checksum field, for "hardware" to complete.
//!
//! Used only on devices configured so, before a packet is looked at otherwise.

use super::v6::header::{Ipv6Header, next, upper, validate};
use super::{ETH_LEN, checksum};

/// Completes the L4 checksum of an Ethernet `packet` with IPv4 (TCP, UDP) or IPv6 (ICMPv6, too) if its field holds just the
/// pseudo-header sum; else leaves it alone. Completing a packet whose checksum was right already changes nothing, even if
/// it happens to equal that sum.
#[inline]
pub fn complete(packet: &mut [u8]) {
    let Some(ip) = packet.get_mut(ETH_LEN..) else { return };
    match ip.first() {
        Some(first) if first >> 4 == 4 => complete_ipv4(ip),
        Some(first) if first >> 4 == 6 => complete_ipv6(ip),
        _ => {}
    }
}

#[inline]
fn complete_ipv4(ip: &mut [u8]) {
    let Some(&[vihl, _, t0, t1, _, _, f0, f1, _, proto, ..]) = ip.first_chunk::<20>() else { return };
    // Fragments never carry a partial checksum that we could complete.
    if (f0 & 0x3f) != 0 || f1 != 0 || proto == next::ICMPV6 {
        return;
    }
    let header = usize::from(vihl & 15) * 4;
    let total = usize::from(u16::from_be_bytes([t0, t1]));
    if header < 20 || total > ip.len() || total < header {
        return;
    }
    let address = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    let pseudo = checksum::pseudo_header_sum(address(12), address(16), proto, (total - header) as u16);
    complete_l4(&mut ip[header..total], proto, pseudo);
}

#[inline]
fn complete_ipv6(ip: &mut [u8]) {
    let (Ok(total), Ok(upper), Some(header)) = (validate(ip), upper(ip), Ipv6Header::new(ip)) else { return };
    let Some(len) = total.checked_sub(upper.at) else { return };
    let pseudo = checksum::pseudo_header_sum6(header.src(), header.dst(), upper.protocol, len as u16);
    complete_l4(&mut ip[upper.at..total], upper.protocol, pseudo);
}

/// The same for what is behind the IP header.
#[inline]
fn complete_l4(l4: &mut [u8], protocol: u8, pseudo: u16) {
    let field = match protocol {
        next::TCP => 16,
        next::UDP => 6,
        next::ICMPV6 => 2,
        _ => return,
    };
    if l4.get(field..field + 2) != Some(&pseudo.to_be_bytes()) {
        return;
    }
    let mut sum = checksum::checksum(l4);
    if sum == 0 && protocol == next::UDP {
        // RFC 768: 0 means none (RFC 8200 section 8.1: may not be); its complement says the same sum.
        sum = 0xffff;
    }
    l4[field..field + 2].copy_from_slice(&sum.to_be_bytes());
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

    const A: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const B: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    fn field(proto: u8) -> usize {
        match proto {
            6 => 16,
            17 => 6,
            _ => 2,
        }
    }

    /// The same with IPv6, behind these extension headers, the first of which is `first`.
    fn packet6(first: u8, chain: &[u8], proto: u8, mut l4: Vec<u8>) -> Vec<u8> {
        let pseudo = checksum::pseudo_header_sum6(A, B, proto, l4.len() as u16);
        l4[field(proto)..field(proto) + 2].copy_from_slice(&pseudo.to_be_bytes());
        let mut p = [0; 14 + 40];
        let len = (chain.len() + l4.len()) as u16;
        Ipv6Header::new_mut(&mut p[14..]).unwrap().fill(len, first, 64, A, B);
        [&p[..], chain, &l4].concat()
    }

    #[test]
    fn completes_behind_extension_headers_but_not_in_fragments() {
        for proto in [6, 17, 58] {
            let l4: Vec<u8> = (0..60).collect();
            for (first, chain) in
                [(proto, &[][..]), (0, &[60, 0, 5, 2, 0, 0, 1, 0, proto, 0, 1, 4, 0, 0, 0, 0])]
            {
                let mut p = [&packet6(first, chain, proto, l4.clone())[..], &[0xee; 3]].concat();
                let unchanged = p.clone();
                complete(&mut p);
                let at = 54 + chain.len();
                let l4 = &p[at..p.len() - 3];
                let pseudo = checksum::pseudo_header_sum6(A, B, proto, l4.len() as u16);
                assert_eq!(checksum::add(pseudo, checksum::sum(l4)), 0xffff);
                let mut others = [p.clone(), unchanged];
                others.iter_mut().for_each(|p| p[at + field(proto)..][..2].fill(0));
                assert_eq!(others[0], others[1], "and nothing else");
                let done = p.clone();
                complete(&mut p);
                assert_eq!(p, done);
            }
            let fragment = packet6(next::FRAGMENT, &[proto, 0, 0, 1, 0, 0, 0, 9], proto, l4);
            let mut p = fragment.clone();
            complete(&mut p);
            assert_eq!(p, fragment);
        }
    }

    proptest! {
        #[test]
        fn survives_anything_like_ipv6(
            first in prop::sample::select(vec![0u8, 6, 17, 43, 58, 60]),
            payload in prop::collection::vec(any::<u8>(), 20..100),
            len: u8,
            cut in 0usize..160,
        ) {
            let mut p = packet6(first, &[], 6, payload);
            p[14 + 5] = len;
            p.truncate(cut);
            complete(&mut p);
        }

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
