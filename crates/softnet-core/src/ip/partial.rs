//! Completion of partial L4 checksums: a veth or TAP peer hands packets of local sockets over with only the
//! pseudo-header sum in the checksum field, for "hardware" to complete.
//!
//! Used only on devices configured so, before a packet is looked at otherwise.

use super::v6::header::{Ipv6Header, next, upper, validate_part};
use super::{ETH_LEN, checksum};
use crate::skb::{Csum, Skb};

/// Where a packet's L4 header and payload are.
struct Segment {
    /// Offset from the IP header.
    at: usize,
    len: usize,
    /// Offset of the checksum field in it.
    field: usize,
    protocol: u8,
    /// Sum of the pseudo-header.
    pseudo: u16,
}

/// Completes the L4 checksum of an Ethernet packet with IPv4 (TCP, UDP) or IPv6 (ICMPv6, too) if its field holds just the
/// pseudo-header sum; else leaves it alone. Completing a packet whose checksum was right already changes nothing, even if
/// it happens to equal that sum.
#[inline]
pub fn complete(skb: &mut Skb) {
    if skb.head().csum != Csum::None {
        // It is known what it is: an aggregate's, for one, is completed when that is cut.
        return;
    }
    let Some(ip) = skb.data().get(ETH_LEN..) else { return };
    let len = skb.len() - ETH_LEN;
    let segment = match ip.first() {
        Some(first) if first >> 4 == 4 => ipv4(ip, len),
        Some(first) if first >> 4 == 6 => ipv6(ip, len),
        _ => None,
    };
    let Some(Segment { at, len, field, protocol, pseudo }) = segment else { return };
    if field + 2 > len || ip.get(at + field..at + field + 2) != Some(&pseudo.to_be_bytes()) {
        return;
    }
    let mut check = !checksum::sum_skb(skb, ETH_LEN + at, len).1;
    if check == 0 && protocol == next::UDP {
        // RFC 768: 0 means none (RFC 8200 section 8.1: may not be); its complement says the same sum.
        check = 0xffff;
    }
    if let Some(to) = skb.data_mut().get_mut(ETH_LEN + at + field..ETH_LEN + at + field + 2) {
        to.copy_from_slice(&check.to_be_bytes());
    }
}

#[inline]
fn ipv4(ip: &[u8], len: usize) -> Option<Segment> {
    let &[vihl, _, t0, t1, _, _, f0, f1, _, protocol, ..] = ip.first_chunk::<20>()?;
    // Fragments never carry a partial checksum that we could complete.
    if (f0 & 0x3f) != 0 || f1 != 0 || protocol == next::ICMPV6 {
        return None;
    }
    let header = usize::from(vihl & 15) * 4;
    let total = usize::from(u16::from_be_bytes([t0, t1]));
    if header < 20 || total > len || total < header {
        return None;
    }
    let address = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    let pseudo = checksum::pseudo_header_sum(address(12), address(16), protocol, (total - header) as u16);
    Some(Segment { at: header, len: total - header, field: field(protocol)?, protocol, pseudo })
}

#[inline]
fn ipv6(ip: &[u8], len: usize) -> Option<Segment> {
    let (total, upper, header) = (validate_part(ip, len).ok()?, upper(ip).ok()?, Ipv6Header::new(ip)?);
    let len = total.checked_sub(upper.at)?;
    let protocol = upper.protocol;
    let pseudo = checksum::pseudo_header_sum6(header.src(), header.dst(), protocol, len as u16);
    Some(Segment { at: upper.at, len, field: field(protocol)?, protocol, pseudo })
}

/// Offset of the checksum in a header of `protocol`.
#[inline]
fn field(protocol: u8) -> Option<usize> {
    match protocol {
        next::TCP => Some(16),
        next::UDP => Some(6),
        next::ICMPV6 => Some(2),
        _ => None,
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::context;
    use super::*;

    /// Completes a packet, and the same packet in frames cut at `cut`, which comes to the same.
    fn complete_in(packet: &mut [u8], cut: usize) {
        let mut ctx = context();
        let before = packet.to_vec();
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(packet.len()).unwrap().copy_from_slice(packet);
        super::complete(&mut skb);
        packet.copy_from_slice(skb.data());
        ctx.free_skb(skb);
        // The headers are in the first frame.
        let (first, rest) = before.split_at(cut.min(before.len()));
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(first.len()).unwrap().copy_from_slice(first);
        // Of odd length, too.
        for part in rest.chunks(33) {
            let mut more = ctx.alloc_skb().unwrap();
            more.put(part.len()).unwrap().copy_from_slice(part);
            skb.append(more).unwrap();
        }
        super::complete(&mut skb);
        assert!(skb.frames().flatten().eq(&*packet), "cut at {}", first.len());
        ctx.free_skb(skb);
    }

    fn complete(packet: &mut [u8]) {
        complete_in(packet, 117);
    }

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
        fn completes_partial_ones(
            tcp: bool,
            l4 in prop::collection::vec(any::<u8>(), 20..300),
            cut in 54usize..300,
        ) {
            let mut p = packet(if tcp { 6 } else { 17 }, l4, None);
            complete_in(&mut p, cut);
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
