//! ICMP errors from one family to the other: types and codes, MTUs, pointers, and the packet that
//! they quote (RFC 7915 sections 4.2, 4.3, 5.2 and 5.3).
//!
//! Called for a packet that is an error. What has no counterpart is dropped ("silently"), and so is
//! an error that quotes too little to say what it is about.

use std::net::Ipv6Addr;

use super::packet::{Ends, Header4, To, cross, reframe, write6};
use crate::ip::ETH_LEN;
use crate::ip::checksum::{add, checksum, pseudo_header_sum6, sum, sum_skb};
use crate::ip::ethernet::ethertype;
use crate::ip::v4::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN, next, upper};
use crate::skb::{Csum, DropReason, Flags, Skb};

/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;
/// IPv6's smallest MTU: an error is no longer (RFC 4443 section 2.4(c)).
const MIN_MTU6: usize = 1280;
/// What MTUs a router that does not say may mean (RFC 1191 section 7).
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];

/// What stands for the addresses of a packet that is quoted.
pub(super) struct Inner<'a> {
    /// Of one that was IPv6: its source and destination in IPv4.
    pub(super) v4: &'a dyn Fn([Ipv6Addr; 2]) -> Option<[u32; 2]>,
    /// Of one that was IPv4: in IPv6.
    pub(super) v6: &'a dyn Fn([u32; 2]) -> Option<[Ipv6Addr; 2]>,
}

/// The first eight bytes of a message, but for its checksum, that says in ICMP what `message` says
/// in ICMPv6 (RFC 7915 section 5.2).
pub(super) fn icmp_of(message: &[u8; ICMP_LEN]) -> Option<[u8; ICMP_LEN]> {
    let &[kind, code, _, _, a, b, c, d] = message;
    let value = u32::from_be_bytes([a, b, c, d]);
    let plain = |kind, code| Some([kind, code, 0, 0, 0, 0, 0, 0]);
    match (kind, code) {
        (1, 0 | 2 | 3) => plain(3, 1),
        (1, 1) => plain(3, 10),
        (1, 4) => plain(3, 3),
        (2, _) => {
            // The header is shorter by 20 bytes. A way that takes less than IPv6 must is not taken.
            let mtu = value.max(MIN_MTU6 as u32).min(u16::MAX.into()) - (LEN - MIN_LEN) as u32;
            let [_, _, c, d] = mtu.to_be_bytes();
            Some([3, 4, 0, 0, 0, 0, c, d])
        }
        (3, code @ (0 | 1)) => plain(11, code),
        (4, 0) => {
            let pointer = match value {
                0 | 1 => value as u8,
                4 | 5 => 2,
                6 => 9,
                7 => 8,
                8..=23 => 12,
                24..=39 => 16,
                _ => return None,
            };
            Some([12, 0, 0, 0, pointer, 0, 0, 0])
        }
        (4, 1) => plain(3, 2),
        _ => None,
    }
}

/// The reverse (RFC 7915 section 4.2); the packet that is quoted says that it has `total` bytes.
pub(super) fn icmpv6_of(message: &[u8; ICMP_LEN], total: u16) -> Option<[u8; ICMP_LEN]> {
    let &[kind, code, _, _, pointer, _, a, b] = message;
    let plain = |kind, code| Some([kind, code, 0, 0, 0, 0, 0, 0]);
    let about = |pointer| Some([4, 0, 0, 0, 0, 0, 0, pointer]);
    match (kind, code) {
        (3, 0 | 1 | 5..=8 | 11 | 12) => plain(1, 0),
        (3, 2) => Some([4, 1, 0, 0, 0, 0, 0, 6]),
        (3, 3) => plain(1, 4),
        (3, 4) => {
            let mtu = match u16::from_be_bytes([a, b]) {
                0 => PLATEAUS.into_iter().find(|plateau| *plateau < total).unwrap_or(68),
                mtu => mtu,
            };
            let mtu = (u32::from(mtu) + (LEN - MIN_LEN) as u32).max(MIN_MTU6 as u32);
            let [a, b, c, d] = mtu.to_be_bytes();
            Some([2, 0, 0, 0, a, b, c, d])
        }
        (3, 9 | 10 | 13 | 15) => plain(1, 1),
        (11, code @ (0 | 1)) => plain(3, code),
        (12, 0 | 2) => match pointer {
            0 | 1 => about(pointer),
            2 | 3 => about(4),
            8 => about(7),
            9 => about(6),
            12..=15 => about(8),
            16..=19 => about(24),
            _ => None,
        },
        _ => None,
    }
}

/// The message at `at` of the packet, of `len` bytes: its header, and what is quoted of a packet, of
/// which `least` bytes must be there.
fn message(
    skb: &Skb,
    (at, len): (usize, usize),
    least: usize,
) -> Result<([u8; ICMP_LEN], &[u8]), DropReason> {
    // One that was wrong must not become right.
    Ok(skb.data().get(ETH_LEN + at..))
        .and_then(|message| message.ok_or(DropReason::PktTooSmall))
        .map(|message| &message[..len.min(message.len())])
        .and_then(|message| message.split_first_chunk().ok_or(DropReason::IcmpMalformed))
        .and_then(|(header, quote)| match quote.len() >= least {
            true => Ok((*header, quote)),
            false => Err(DropReason::IcmpMalformed),
        })
}

/// Cuts the packet to `header` bytes of IP header and the message's `len`, brings its head up to
/// date, and returns the message.
fn finish(skb: &mut Skb, header: usize, protocol: u8, len: usize) -> &mut [u8] {
    skb.trim(ETH_LEN + header + len);
    let head = skb.head_mut();
    (head.l3, head.l4, head.protocol) = (ETH_LEN as u16, (ETH_LEN + header) as u16, protocol);
    (head.hash, head.csum) = (0, Csum::None);
    head.flags = head.flags & !Flags::FRAG | Flags::CROSSED;
    skb.data_mut().get_mut(ETH_LEN + header..).unwrap_or_default()
}

/// Makes of the ICMPv6 error in `skb`, whose message has `len` bytes at `at`, one of ICMP.
pub(super) fn to_v4(
    skb: &mut Skb,
    ends: &Ends,
    (at, len): (usize, usize),
    (tos, ttl): (u8, u8),
    inner: &Inner<'_>,
) -> Result<(), DropReason> {
    if sum_skb(skb, ETH_LEN + at, len).1
        != !pseudo_header_sum6(ends.v6[0], ends.v6[1], next::ICMPV6, len as u16)
    {
        return Err(DropReason::IcmpCsum);
    }
    let (header, quote) = message(skb, (at, len), LEN + ICMP_LEN)?;
    let icmp = icmp_of(&header).ok_or(DropReason::Nat64)?;
    let about =
        Ipv6Header::new(quote).filter(|about| about.version() == 6).ok_or(DropReason::IcmpMalformed)?;
    let behind = upper(quote).map_err(|_| DropReason::IcmpMalformed)?;
    let number = match behind.protocol {
        next::ICMPV6 => protocol::ICMP,
        number @ (protocol::TCP | protocol::UDP) => number,
        _ => return Err(DropReason::Nat64),
    };
    let of = [about.src(), about.dst()];
    let inner = Ends { v4: (inner.v4)(of).ok_or(DropReason::Nat64)?, v6: of };
    let l4_len = (LEN + usize::from(about.payload_len())).saturating_sub(behind.at);
    let rest = quote.len() - behind.at;
    let total = (MIN_LEN + l4_len).min(u16::MAX.into()) as u16;
    let quoted = Header4 {
        tos: about.traffic_class(),
        total,
        id: 0,
        dont_fragment: usize::from(total) > 1260,
        ttl: about.hop_limit(),
        protocol: number,
        ends: inner.v4,
    };
    let len = ICMP_LEN + MIN_LEN + rest;
    let outer = Header4 {
        tos,
        total: (MIN_LEN + len) as u16,
        id: 0,
        dont_fragment: MIN_LEN + len > 1260,
        ttl,
        protocol: protocol::ICMP,
        ends: ends.v4,
    };
    let mut front = [0; MIN_LEN + ICMP_LEN + MIN_LEN];
    outer.write(&mut front);
    front[MIN_LEN..MIN_LEN + ICMP_LEN].copy_from_slice(&icmp);
    quoted.write(&mut front[MIN_LEN + ICMP_LEN..]);
    let old = at + ICMP_LEN + behind.at;
    reframe(skb, old, &front, ethertype::IPV4)?;
    let message = finish(skb, MIN_LEN, protocol::ICMP, len);
    let l4 = message.get_mut(ICMP_LEN + MIN_LEN..).unwrap_or_default();
    cross(l4, (number, l4_len as u16), false, &inner, To::V4)?;
    let check = checksum(message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    Ok(())
}

/// Makes of the ICMP error in `skb`, whose message has `len` bytes at `at`, one of ICMPv6.
pub(super) fn to_v6(
    skb: &mut Skb,
    ends: &Ends,
    (at, len): (usize, usize),
    (class, hops): (u8, u8),
    inner: &Inner<'_>,
) -> Result<(), DropReason> {
    if sum_skb(skb, ETH_LEN + at, len).1 != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    let (header, quote) = message(skb, (at, len), MIN_LEN + ICMP_LEN)?;
    let about =
        Ipv4Header::new(quote).filter(|about| about.version() == 4).ok_or(DropReason::IcmpMalformed)?;
    let (behind, number) = (about.header_len(), about.protocol());
    if behind < MIN_LEN || quote.len() < behind + ICMP_LEN || about.fragment_offset() != 0 {
        return Err(DropReason::IcmpMalformed);
    }
    let icmp = icmpv6_of(&header, about.total_len()).ok_or(DropReason::Nat64)?;
    let of = [about.src(), about.dst()];
    let inner = Ends { v6: (inner.v6)(of).ok_or(DropReason::Nat64)?, v4: of };
    let l4_len = usize::from(about.total_len()).saturating_sub(behind);
    let next = match number {
        protocol::ICMP => next::ICMPV6,
        protocol::TCP | protocol::UDP => number,
        _ => return Err(DropReason::Nat64),
    };
    const FRONT: usize = LEN + ICMP_LEN + LEN;
    let rest = (quote.len() - behind).min(MIN_MTU6 - FRONT);
    let len = ICMP_LEN + LEN + rest;
    let mut front = [0; FRONT];
    write6(&mut front, (class, hops), len as u16, next::ICMPV6, ends.v6);
    front[LEN..LEN + ICMP_LEN].copy_from_slice(&icmp);
    write6(&mut front[LEN + ICMP_LEN..], (about.tos(), about.ttl()), l4_len as u16, next, inner.v6);
    let old = at + ICMP_LEN + behind;
    reframe(skb, old, &front, ethertype::IPV6)?;
    let message = finish(skb, LEN, next::ICMPV6, len);
    let l4 = message.get_mut(ICMP_LEN + LEN..).unwrap_or_default();
    cross(l4, (number, l4_len as u16), false, &inner, To::V6)?;
    let pseudo = pseudo_header_sum6(ends.v6[0], ends.v6[1], next::ICMPV6, message.len() as u16);
    let check = !add(pseudo, sum(message));
    message[2..4].copy_from_slice(&check.to_be_bytes());
    Ok(())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// The tables of RFC 7915 section 5.2.
    #[test]
    fn what_icmpv6_errors_become() {
        let of = |kind: u8, code: u8, value: u32| {
            let [a, b, c, d] = value.to_be_bytes();
            icmp_of(&[kind, code, 9, 9, a, b, c, d])
        };
        let plain = |kind, code| Some([kind, code, 0, 0, 0, 0, 0, 0]);
        for (code, expected) in [
            (0, plain(3, 1)),
            (1, plain(3, 10)),
            (2, plain(3, 1)),
            (3, plain(3, 1)),
            (4, plain(3, 3)),
            (5, None),
        ] {
            assert_eq!(of(1, code, 0), expected, "{code}");
        }
        let mtu = |mtu: u16| Some([3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8]);
        assert_eq!((of(2, 0, 1500), of(2, 0, 1280), of(2, 0, 100)), (mtu(1480), mtu(1260), mtu(1260)));
        assert_eq!(of(2, 0, u32::MAX), mtu(65_515));
        assert_eq!((of(3, 0, 0), of(3, 1, 0), of(3, 2, 0)), (plain(11, 0), plain(11, 1), None));
        for (pointer, expected) in
            [(0, 0), (1, 1), (4, 2), (5, 2), (6, 9), (7, 8), (8, 12), (23, 12), (24, 16), (39, 16)]
        {
            assert_eq!(of(4, 0, pointer), Some([12, 0, 0, 0, expected, 0, 0, 0]), "{pointer}");
        }
        assert_eq!((of(4, 0, 2), of(4, 0, 40), of(4, 1, 6), of(4, 2, 0)), (None, None, plain(3, 2), None));
        assert_eq!((of(137, 0, 0), of(100, 0, 0)), (None, None));
    }

    /// Those of section 4.2.
    #[test]
    fn what_icmp_errors_become() {
        let of = |kind: u8, code: u8, rest: [u8; 4]| {
            let [a, b, c, d] = rest;
            icmpv6_of(&[kind, code, 9, 9, a, b, c, d], 1500)
        };
        let plain = |kind, code| Some([kind, code, 0, 0, 0, 0, 0, 0]);
        for code in [0, 1, 5, 6, 7, 8, 11, 12] {
            assert_eq!(of(3, code, [0; 4]), plain(1, 0), "{code}");
        }
        for code in [9, 10, 13, 15] {
            assert_eq!(of(3, code, [0; 4]), plain(1, 1), "{code}");
        }
        assert_eq!(of(3, 2, [0; 4]), Some([4, 1, 0, 0, 0, 0, 0, 6]));
        assert_eq!((of(3, 3, [0; 4]), of(3, 14, [0; 4]), of(3, 16, [0; 4])), (plain(1, 4), None, None));
        let mtu = |mtu: u32| Some([[2, 0, 0, 0], mtu.to_be_bytes()].concat().try_into().unwrap());
        assert_eq!(of(3, 4, [0, 0, 0x05, 0x78]), mtu(1420));
        // "if the MTU field is zero, ... the plateau values"; less than IPv6 takes everywhere is not told.
        assert_eq!((of(3, 4, [0; 4]), of(3, 4, [0, 0, 2, 0])), (mtu(1512), mtu(1280)));
        assert_eq!(
            (of(11, 0, [0; 4]), of(11, 1, [0; 4]), of(11, 2, [0; 4])),
            (plain(3, 0), plain(3, 1), None)
        );
        for (pointer, expected) in
            [(0, 0), (1, 1), (2, 4), (3, 4), (8, 7), (9, 6), (12, 8), (15, 8), (16, 24), (19, 24)]
        {
            for code in [0, 2] {
                assert_eq!(
                    of(12, code, [pointer, 0, 0, 0]),
                    Some([4, 0, 0, 0, 0, 0, 0, expected]),
                    "{pointer}"
                );
            }
        }
        for pointer in [4, 5, 6, 7, 10, 11, 20] {
            assert_eq!(of(12, 0, [pointer, 0, 0, 0]), None, "{pointer}");
        }
        assert_eq!((of(12, 1, [0; 4]), of(4, 0, [0; 4]), of(5, 1, [0; 4])), (None, None, None));
    }
}
