//! The Toeplitz hash, as NICs compute it for RSS: for every bit of the input that is set, the 32 bits of the key that
//! begin at its place, all of them XORed.
//!
//! A CPU that multiplies with matrices of bits does that ([`Gfni`](crate::skb::Gfni)). On others,
//! whatever four bits of the input contribute is looked up in a table that is made when this is
//! compiled. A table for each half byte takes 4.5 KiB, of which IPv4 uses 1.5: twice the look-ups
//! of one for each byte, but it leaves the first-level cache to the packets.

use crate::skb::KeyMatrices;

/// Bytes that the key is long enough for: two IPv6 addresses and two ports.
pub(super) const MAX_INPUT: usize = 36;

/// The key of Microsoft's RSS specification, the default of most NICs and the one with published test vectors.
pub(super) const KEY: [u8; MAX_INPUT + 4] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The same for [`Gfni`](crate::skb::Gfni).
pub(super) static MATRICES: KeyMatrices = KeyMatrices::new(&KEY);

/// For each byte of the input: what its high half contributes, and its low half, by their value.
type Table = [[[u32; 16]; 2]; MAX_INPUT];

static TABLE: Table = {
    let mut table = [[[0; 16]; 2]; MAX_INPUT];
    let mut at = 0;
    while at < MAX_INPUT {
        // The 40 bits of the key that this byte's eight windows lie in.
        let (mut key, mut i) = (0u64, 0);
        while i < 5 {
            key = key << 8 | KEY[at + i] as u64;
            i += 1;
        }
        let mut bit = 0;
        while bit < 8 {
            let window = (key >> (8 - bit)) as u32;
            let mut value = 0;
            while value < 16 {
                if value & 8 >> (bit % 4) != 0 {
                    table[at][bit / 4][value] ^= window;
                }
                value += 1;
            }
            bit += 1;
        }
        at += 1;
    }
    table
};

/// The hash of input that is 0 but for `bytes`, which are at offset `AT` of it. Hashes of the parts of an input,
/// XORed, are the hash of the whole.
#[inline(always)]
pub(super) fn toeplitz<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + N <= MAX_INPUT) };
    // Two at a time, which do not wait for each other.
    let (mut highs, mut lows) = (0, 0);
    for ([high, low], byte) in TABLE[AT..].iter().zip(bytes) {
        highs ^= high[usize::from(byte >> 4)];
        lows ^= low[usize::from(byte & 15)];
    }
    highs ^ lows
}

#[cfg(all(test, not(feature = "loom")))]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::skb::Gfni;

    /// By the definition, bit by bit.
    pub(in super::super) fn naive(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], i: usize| u32::from(bytes[i / 8] >> (7 - i % 8) & 1);
        let window = |i| (i..i + 32).fold(0, |w, i| w << 1 | bit(key, i));
        (0..input.len() * 8).filter(|i| bit(input, *i) == 1).fold(0, |hash, i| hash ^ window(i))
    }

    pub(in super::super) fn naive_default(input: &[u8]) -> u32 {
        naive(&KEY, input)
    }

    #[test]
    fn the_naive_one_is_symmetric_with_a_key_of_period_16() {
        // 66.9.149.187:2794 and 161.142.100.80:1766.
        let there = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        let back = [161, 142, 100, 80, 66, 9, 149, 187, 0x06, 0xe6, 0x0a, 0xea];
        let key = [0x6d, 0x5a].repeat(20);
        assert_eq!((naive(&key, &there), naive(&key, &back)), (0x9fcc_9fcc, 0x9fcc_9fcc));
        assert_eq!(naive_default(&there), 0x51cc_c178);
    }

    proptest! {
        #[test]
        fn is_the_naive_one(a: [u8; 32], b: [u8; 4]) {
            let whole = [&a[..], &b].concat();
            prop_assert_eq!(toeplitz::<0, 32>(&a) ^ toeplitz::<32, 4>(&b), naive_default(&whole));
            prop_assert_eq!(toeplitz::<0, 4>(&b), naive_default(&b));
        }

        /// With any key, where the CPU can.
        #[test]
        fn matrices_give_the_naive_one(key: [[u8; 8]; 5], input: [[u8; 4]; 9]) {
            let Some(gfni) = Gfni::detect() else { return Ok(()) };
            let key: [u8; 40] = key.as_flattened().try_into().unwrap();
            let input: [u8; 36] = input.as_flattened().try_into().unwrap();
            let matrices = KeyMatrices::new(&key);
            prop_assert_eq!(gfni.hash(&matrices, &input), naive(&key, &input));
            let ipv4: &[u8; 12] = input.first_chunk().unwrap();
            prop_assert_eq!(gfni.hash(&matrices, ipv4), naive(&key, ipv4));
        }
    }
}
