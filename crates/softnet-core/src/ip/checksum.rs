//! The Internet checksum: over bytes (RFC 1071) and by difference (RFC 1624).
//!
//! Any code may call it. A *sum* here is the one's-complement sum of big-endian 16-bit words, folded to 16 bits
//! and not complemented; a *checksum* is its complement, the value that goes into a header field. Sums are 0 only
//! if every byte summed is 0. Words are added in the machine's own byte order and swapped once at the end, which
//! RFC 1071 section 2(B) allows.

use std::net::Ipv6Addr;

use crate::skb::{Skb, sum_words};

/// Adds two sums.
#[inline(always)]
pub const fn add(a: u16, b: u16) -> u16 {
    let (s, carry) = a.overflowing_add(b);
    s + carry as u16
}

/// Folds a one's-complement sum of 64 bits to 16. Adding a value to itself turned by half its width leaves
/// high + low + carry in the upper half.
#[inline(always)]
pub(crate) const fn fold(s: u64) -> u16 {
    let s = (s.wrapping_add(s.rotate_left(32)) >> 32) as u32;
    (s.wrapping_add(s.rotate_left(16)) >> 16) as u16
}

/// Sum of `data`; an odd last byte counts as if a zero followed (RFC 1071 section 4.1).
#[inline]
pub fn sum(data: &[u8]) -> u16 {
    let (words, rest) = data.as_chunks::<4>();
    let mut acc = sum_words(words);
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    acc += u64::from(u32::from_ne_bytes(last));
    fold(acc).to_be()
}

/// Bytes and sum of what lies in `pieces`.
#[inline]
pub fn sum_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (usize, u16) {
    pieces.fold((0, 0), |(len, all), piece| {
        let of_piece = sum(piece);
        // A piece that begins at an odd offset is summed in the other byte order (RFC 1071 section 2(B)).
        let of_piece = if len % 2 == 0 { of_piece } else { of_piece.swap_bytes() };
        (len + piece.len(), add(all, of_piece))
    })
}

/// The same of `len` bytes of a packet from `at` on, or as many as there are.
#[inline]
pub fn sum_skb(skb: &Skb, at: usize, len: usize) -> (usize, u16) {
    // Nearly always they are in one frame, and then need no walk along the chain.
    match at.checked_add(len).and_then(|end| skb.data().get(at..end)) {
        Some(whole) => (len, sum(whole)),
        None => sum_pieces(skb.pieces(at, len)),
    }
}

/// Checksum of `data`, whose checksum field must be zero.
#[inline]
pub fn checksum(data: &[u8]) -> u16 {
    !sum(data)
}

/// Sum of a header without options: 0xffff if its checksum is right.
#[inline(always)]
pub fn ipv4_header_sum(header: &[u8; 20]) -> u16 {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = *header;
    let (x, carry) = u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        .overflowing_add(u64::from_ne_bytes([i, j, k, l, m, n, o, p]));
    let last = u64::from(u32::from_ne_bytes([q, r, s, t])) + u64::from(carry);
    let (x, carry) = x.overflowing_add(last);
    fold(x + u64::from(carry)).to_be()
}

/// Sum of the pseudo-header of UDP and TCP (RFC 768, RFC 9293 section 3.1). `len` is the length of the L4
/// header and its payload in bytes.
#[inline]
pub fn pseudo_header_sum(src: u32, dst: u32, protocol: u8, len: u16) -> u16 {
    let s = u64::from(src) + u64::from(dst) + u64::from(protocol) + u64::from(len);
    fold(s)
}

/// As [`pseudo_header_sum`], for IPv6 (RFC 8200 section 8.1). `next` is the protocol's number.
#[inline]
pub fn pseudo_header_sum6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, len: u16) -> u16 {
    add(add(sum(&src.octets()), sum(&dst.octets())), fold(u64::from(next) + u64::from(len)))
}

/// The checksum after one 16-bit word it covers went from `old` to `new` (RFC 1624, equation 3).
#[inline(always)]
pub const fn update16(check: u16, old: u16, new: u16) -> u16 {
    !add(add(!check, !old), new)
}

/// The checksum after two adjacent words, taken as one `u32`, went from `old` to `new`.
#[inline(always)]
pub const fn update32(check: u16, old: u32, new: u32) -> u16 {
    let check = update16(check, (old >> 16) as u16, (new >> 16) as u16);
    update16(check, old as u16, new as u16)
}

/// The bytes of the header checksum after the TTL went down by one: [`update16`] with the difference known.
///
/// A field that is less by one in its upper byte makes the complement of the sum more by one there (RFC 1624), with the carry
/// brought round. In which order the two bytes lie does not matter for that, so they are not swapped.
#[inline(always)]
pub const fn ttl_decremented(check: [u8; 2]) -> [u8; 2] {
    let (sum, carry) = u16::from_ne_bytes(check).overflowing_add(u16::from_ne_bytes([1, 0]));
    sum.wrapping_add((carry | (sum == u16::MAX)) as u16).to_ne_bytes()
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Word by word, as RFC 1071 writes it.
    fn naive(data: &[u8]) -> u16 {
        let mut s = 0u32;
        for w in data.chunks(2) {
            s += u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0));
            s = (s & 0xffff) + (s >> 16);
        }
        s as u16
    }

    #[test]
    fn known_values() {
        // RFC 1071 section 3.
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[]), 0);
        assert_eq!(sum(&[0xab]), 0xab00);
        // Carries out of both additions.
        assert_eq!(ipv4_header_sum(&[0xff; 20]), 0xffff);
        // RFC 1624 section 4: the case in which equation 2 gave 0xffff.
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn ttl_step_is_the_general_update() {
        for check in 0..=u16::MAX {
            for ttl in [1u16, 2, 64, 255] {
                let old = ttl << 8 | 17;
                let expected = update16(check, old, old - 0x100).to_be_bytes();
                assert_eq!(ttl_decremented(check.to_be_bytes()), expected, "{check:#x}");
            }
        }
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_model(data in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(sum(&data), naive(&data));
        }

        #[test]
        fn header_sum_agrees(header: [u8; 20]) {
            prop_assert_eq!(ipv4_header_sum(&header), naive(&header));
        }

        #[test]
        fn header_sum_agrees_on_extremes(words in prop::array::uniform20(prop_oneof![Just(0u8), Just(0xff), Just(1)])) {
            prop_assert_eq!(ipv4_header_sum(&words), naive(&words));
        }

        #[test]
        fn split_sums_add_up(data in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index) {
            let at = at.index(data.len() / 2 + 1) * 2;
            prop_assert_eq!(add(sum(&data[..at]), sum(&data[at..])), sum(&data));
        }

        #[test]
        fn pseudo_header(src: u32, dst: u32, protocol: u8, len: u16) {
            let mut bytes = vec![];
            bytes.extend(src.to_be_bytes());
            bytes.extend(dst.to_be_bytes());
            bytes.extend([0, protocol]);
            bytes.extend(len.to_be_bytes());
            prop_assert_eq!(pseudo_header_sum(src, dst, protocol, len), naive(&bytes));
        }

        #[test]
        fn pseudo_header_of_ipv6(src: u128, dst: u128, next: u8, len: u16) {
            let mut bytes = vec![];
            bytes.extend(src.to_be_bytes());
            bytes.extend(dst.to_be_bytes());
            bytes.extend(u32::from(len).to_be_bytes());
            bytes.extend([0, 0, 0, next]);
            let (src, dst) = (Ipv6Addr::from_bits(src), Ipv6Addr::from_bits(dst));
            prop_assert_eq!(pseudo_header_sum6(src, dst, next, len), naive(&bytes));
        }

        #[test]
        fn updates_keep_a_header_right(mut h: [u8; 20], new: u32, at in 0usize..4) {
            h[10] = 0;
            h[11] = 0;
            // Anything but an all-zero packet, for which 0 and 0xffff are both the sum.
            h[0] = 0x45;
            let check = checksum(&h);
            let at = [4, 8, 12, 16][at];
            let old = u32::from_be_bytes(h[at..at + 4].try_into().unwrap());
            // Bytes 8..12 contain the field itself: change only the word before it there.
            let (check, bytes) = if at == 8 {
                h[8..10].copy_from_slice(&(new as u16).to_be_bytes());
                (update16(check, (old >> 16) as u16, new as u16), &mut h)
            } else {
                h[at..at + 4].copy_from_slice(&new.to_be_bytes());
                (update32(check, old, new), &mut h)
            };
            bytes[10..12].copy_from_slice(&check.to_be_bytes());
            prop_assert_eq!(ipv4_header_sum(bytes), 0xffff);
        }
    }
}
