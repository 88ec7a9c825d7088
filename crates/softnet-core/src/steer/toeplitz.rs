//! The Toeplitz hash, as NICs compute it for RSS: for every bit of the input that is set, the 32 bits of the key that
//! begin at its place, all of them XORed.
//!
//! A CPU that multiplies with matrices of bits does that ([`Gfni`](crate::skb::Gfni)). On others,
//! whatever four bits of the input contribute is looked up in a table that is made from the key. A
//! table for each half byte takes 4.5 KiB, of which IPv4 uses 1.5: twice the look-ups of one for
//! each byte, but it leaves the first-level cache to the packets.
//!
//! **The key of the flow hash** is one for the process, as the kernel has one for each boot: what a
//! device hashed with it holds in any stack. It is a secret that the runtime draws
//! ([`set_flow_hkey`]): with a key that is known, a sender can choose flows that all come to one
//! worker, and load that alone. Until one is set, which only tests of this crate do without, it is
//! Microsoft's. Invariant: it changes once at most, and not after packets were hashed.

use std::sync::OnceLock;

use super::key::{KeyError, Xfrm, check};
use crate::skb::KeyMatrices;

/// Bytes that the key is long enough for: two IPv6 addresses and two ports.
pub(super) const MAX_INPUT: usize = 36;

/// Bytes of a key.
pub const KEY_LEN: usize = MAX_INPUT + 4;

/// The key of Microsoft's RSS specification, the one with published test vectors: for tests and
/// benchmarks, which are to put flows on the same workers each time.
pub const PUBLISHED_HKEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Low bits of the hash that have to be independent: those that choose the entry of the largest
/// table that a device may have.
const BITS: u32 = 16;

static USUAL: Toeplitz = Toeplitz::new(&PUBLISHED_HKEY);

static CHOSEN: OnceLock<Toeplitz> = OnceLock::new();

/// The hash of the process: a load and a branch.
#[inline(always)]
pub(super) fn flow_toeplitz() -> &'static Toeplitz {
    CHOSEN.get().unwrap_or(&USUAL)
}

/// The key of [`flow_hash`](super::flow_hash), which is also the one that [`Rss`](super::Rss)
/// begins with.
pub fn flow_hkey() -> &'static [u8; KEY_LEN] {
    &flow_toeplitz().key
}

/// Sets the key of [`flow_hash`](super::flow_hash), for the whole process and as long as that
/// lives. To be done before the first packet is hashed: afterwards packets of one flow would have
/// two hashes. Returns whether `key` is the key now; if not, another one was set before and stays.
///
/// # Errors
/// The key is singular, by itself or with one of the symmetric transformations.
pub fn set_flow_hkey(key: &[u8; KEY_LEN]) -> Result<bool, KeyError> {
    Xfrm::ALL.into_iter().try_for_each(|xfrm| check(key, xfrm, BITS))?;
    Ok(CHOSEN.get_or_init(|| Toeplitz::new(key)).key == *key)
}

/// For each byte of the input: what its high half contributes, and its low half, by their value.
type Table = [[[u32; 16]; 2]; MAX_INPUT];

/// The hash with one key.
pub(super) struct Toeplitz {
    pub(super) key: [u8; KEY_LEN],
    /// For [`Gfni`](crate::skb::Gfni).
    pub(super) matrices: KeyMatrices,
    table: Table,
}

impl Toeplitz {
    const fn new(key: &[u8; KEY_LEN]) -> Self {
        Toeplitz { key: *key, matrices: KeyMatrices::new(key), table: table(key) }
    }

    /// The hash of input that is 0 but for `bytes`, which are at offset `AT` of it. Hashes of the
    /// parts of an input, XORed, are the hash of the whole.
    #[inline(always)]
    pub(super) fn hash<const AT: usize, const N: usize>(&self, bytes: &[u8; N]) -> u32 {
        const { assert!(AT + N <= MAX_INPUT) };
        // Two at a time, which do not wait for each other.
        let (mut highs, mut lows) = (0, 0);
        for ([high, low], byte) in self.table[AT..].iter().zip(bytes) {
            highs ^= high[usize::from(byte >> 4)];
            lows ^= low[usize::from(byte & 15)];
        }
        highs ^ lows
    }
}

const fn table(key: &[u8; KEY_LEN]) -> Table {
    let mut table = [[[0; 16]; 2]; MAX_INPUT];
    let mut at = 0;
    while at < MAX_INPUT {
        // The 40 bits of the key that this byte's eight windows lie in.
        let (mut five, mut i) = (0u64, 0);
        while i < 5 {
            five = five << 8 | key[at + i] as u64;
            i += 1;
        }
        let mut bit = 0;
        while bit < 8 {
            let window = (five >> (8 - bit)) as u32;
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
        naive(&PUBLISHED_HKEY, input)
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

    /// (That a key is set is for tests of other crates: it holds for the whole process.)
    #[test]
    fn a_singular_key_is_not_set() {
        for bytes in [[0, 0], [0xff, 0xff], [0x6d, 0x5a]] {
            let key = bytes.repeat(KEY_LEN / 2).try_into().unwrap();
            assert!(set_flow_hkey(&key).is_err(), "{bytes:x?}");
        }
        assert!(Xfrm::ALL.into_iter().all(|xfrm| check(&PUBLISHED_HKEY, xfrm, BITS).is_ok()));
        assert_eq!(flow_hkey(), &PUBLISHED_HKEY);
    }

    proptest! {
        #[test]
        fn is_the_naive_one(key: [[u8; 8]; 5], a: [u8; 32], b: [u8; 4]) {
            let (key, whole) = (key.as_flattened().try_into().unwrap(), [&a[..], &b].concat());
            let toeplitz = Toeplitz::new(&key);
            prop_assert_eq!(toeplitz.hash::<0, 32>(&a) ^ toeplitz.hash::<32, 4>(&b), naive(&key, &whole));
            prop_assert_eq!(toeplitz.hash::<0, 4>(&b), naive(&key, &b));
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
