//! SipHash-2-4 (Aumasson and Bernstein, 2012): a short hash that cannot be predicted without the key.
//!
//! For tables whose keys come from packets, so that no sender can aim at one bucket, and for numbers on the wire that
//! must not be guessed. The key comes from the runtime. Everything is taken in words of eight bytes; what is shorter
//! is a word of its own, so the hash of bytes is that of the reference only if their number is a multiple of eight.

use std::hash::{BuildHasher, Hasher};

/// A secret key.
#[derive(Clone, Copy)]
pub struct SipKey([u64; 2]);

impl SipKey {
    /// The key with these words.
    pub const fn new(key: [u64; 2]) -> Self {
        SipKey(key)
    }

    /// The hash of `words`.
    pub fn hash(&self, words: &[u64]) -> u64 {
        let mut hasher = self.build_hasher();
        words.iter().for_each(|word| hasher.write_u64(*word));
        hasher.finish()
    }
}

impl std::fmt::Debug for SipKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SipKey")
    }
}

impl BuildHasher for SipKey {
    type Hasher = SipHasher;

    fn build_hasher(&self) -> SipHasher {
        let [k0, k1] = self.0;
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        SipHasher { v, len: 0 }
    }
}

/// A hash in the making.
pub struct SipHasher {
    v: [u64; 4],
    /// Bytes so far.
    len: u8,
}

impl SipHasher {
    fn rounds(&mut self, n: usize) {
        let [v0, v1, v2, v3] = &mut self.v;
        for _ in 0..n {
            *v0 = v0.wrapping_add(*v1);
            *v1 = v1.rotate_left(13) ^ *v0;
            *v0 = v0.rotate_left(32);
            *v2 = v2.wrapping_add(*v3);
            *v3 = v3.rotate_left(16) ^ *v2;
            *v0 = v0.wrapping_add(*v3);
            *v3 = v3.rotate_left(21) ^ *v0;
            *v2 = v2.wrapping_add(*v1);
            *v1 = v1.rotate_left(17) ^ *v2;
            *v2 = v2.rotate_left(32);
        }
    }

    fn absorb(&mut self, word: u64) {
        self.v[3] ^= word;
        self.rounds(2);
        self.v[0] ^= word;
    }
}

impl Hasher for SipHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.absorb(word);
        self.len = self.len.wrapping_add(8);
    }

    fn finish(&self) -> u64 {
        let mut last = SipHasher { ..*self };
        last.absorb(u64::from(self.len) << 56);
        last.v[2] ^= 0xff;
        last.rounds(4);
        last.v.into_iter().fold(0, |hash, v| hash ^ v)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Of the reference implementation's vectors: the key is the bytes 0 to 15, the input the bytes 0, 1, 2, …
    #[test]
    fn reference_vectors() {
        let key = SipKey::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(key.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.hash(&words[..1]), 0x93f5_f579_9a93_2462);
        assert_eq!(key.hash(&words), 0x3f2a_cc7f_57c2_9bdb);
        let mut hasher = key.build_hasher();
        hasher.write(&(0..16).collect::<Vec<u8>>());
        assert_eq!(hasher.finish(), 0x3f2a_cc7f_57c2_9bdb);
        assert_ne!(SipKey::new([0, 0]).hash(&[]), key.hash(&[]));
    }
}
