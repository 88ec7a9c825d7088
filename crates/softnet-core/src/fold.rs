//! A keyed hash of a few words by one multiplication for each: for tables that are looked up per
//! packet, and whose keys strangers choose.
//!
//! The two halves of a 128-bit product are folded into one word, and both factors depend on the
//! key: without the key it cannot be told which keys of a table collide. It is weaker than
//! [`siphash`](crate::siphash), and several times as fast: only for what never leaves the host,
//! such as places in tables. Numbers that leave the host are not made with it. The key comes from
//! the runtime, one for each stack.

use std::hash::{BuildHasher, Hasher};

/// The two halves of a product as one word.
#[inline(always)]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// A secret key.
#[derive(Clone, Copy)]
pub struct FoldKey([u64; 2]);

impl FoldKey {
    /// The key with these words.
    pub const fn new([start, factor]: [u64; 2]) -> Self {
        // An even factor would lose the highest bits of what it is multiplied with.
        FoldKey([start, factor | 1])
    }

    /// The hash of what `write` puts in.
    #[inline(always)]
    pub fn hash(&self, write: impl FnOnce(&mut FoldHasher)) -> u64 {
        let mut hasher = self.build_hasher();
        write(&mut hasher);
        hasher.finish()
    }
}

impl std::fmt::Debug for FoldKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FoldKey")
    }
}

impl BuildHasher for FoldKey {
    type Hasher = FoldHasher;

    #[inline(always)]
    fn build_hasher(&self) -> FoldHasher {
        let FoldKey([state, factor]) = *self;
        FoldHasher { state, factor }
    }
}

/// A hash in the making.
pub struct FoldHasher {
    state: u64,
    factor: u64,
}

impl Hasher for FoldHasher {
    /// What is shorter than a word is one.
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.factor);
    }

    /// The upper half first: addresses on one link have it in common.
    #[inline(always)]
    fn write_u128(&mut self, words: u128) {
        self.write_u64((words >> 64) as u64);
        self.write_u64(words as u64);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const KEYS: [[u64; 2]; 2] =
        [[0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344], [0xa409_3822_299f_31d0, 0xd82e_fa98_ec4e_6c89]];

    /// Numbers in a row spread over buckets nearly as chance would have it, by their lowest bits
    /// and by their highest, as one word and as either half of two.
    #[test]
    fn hashes_spread() {
        const N: u64 = 1 << 13;
        type Put = fn(&mut FoldHasher, u64);
        let put: [(&str, Put); 3] = [
            ("words", |hasher, i| hasher.write_u64(i)),
            ("lower half", |hasher, i| hasher.write_u128(0x20010db8 << 96 | u128::from(i))),
            ("upper half", |hasher, i| hasher.write_u128(u128::from(i) << 64 | 1)),
        ];
        for key in KEYS {
            for (what, put) in put {
                let hashes: Vec<u64> =
                    (0..N).map(|i| FoldKey::new(key).hash(|hasher| put(hasher, i))).collect();
                for shift in [0, 64 - 13] {
                    let buckets: HashSet<u64> = hashes.iter().map(|hash| (hash >> shift) % N).collect();
                    // Of as many balls as bins, 1 - 1/e of the bins get one.
                    let share = buckets.len() as f64 / N as f64;
                    assert!(share > 0.5, "{what} by {key:?} >> {shift}: {share}");
                }
            }
        }
    }

    proptest! {
        /// Another key is another order.
        #[test]
        fn depends_on_all_of_key_and_words(key: [u64; 2], words: (u64, u128), at in 0usize..320) {
            let hash = |[a, b]: [u64; 2], (word, words): (u64, u128)| {
                FoldKey::new([a, b | 1]).hash(|hasher| {
                    hasher.write_u64(word);
                    hasher.write_u128(words);
                })
            };
            let (mut other, mut changed) = (key, words);
            match at {
                0..64 => other[0] ^= 1 << at,
                // Always set.
                64 => return Ok(()),
                65..128 => other[1] ^= 1 << (at - 64),
                128..192 => changed.0 ^= 1 << (at - 128),
                _ => changed.1 ^= 1 << (at - 192),
            }
            prop_assert_ne!(hash(key, words), hash(other, changed));
        }
    }
}
