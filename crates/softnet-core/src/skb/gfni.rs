//! Toeplitz hashes by instructions that multiply bytes with matrices of bits: GFNI, with AVX-512
//! to lay the bytes out (Intel since Ice Lake, AMD since Zen 4).
//!
//! The hash is linear over GF(2): what byte `p` of the input contributes to byte `o` of the hash is
//! that byte times an 8×8 matrix of key bits, and the matrix depends on `p + o` alone, since a row
//! of it is eight consecutive bits of the key. So there is one matrix for each `m = p + o`, and
//! lane `m` of a vector gets the up to four bytes of the input that are multiplied with it. The
//! lanes XORed are the hash.
//!
//! It stands here because of its `unsafe`. Invariant: a [`Gfni`] exists only where the CPU has the
//! instructions, so everything that takes one is safe.

/// Bytes of the longest input: two IPv6 addresses and two ports.
pub(crate) const MAX_INPUT: usize = 36;

/// Vectors that a key's matrices take: one for each byte of the longest input and three more.
const VECTORS: usize = (MAX_INPUT + 3).div_ceil(8);

/// The matrices of a key.
#[derive(Clone)]
#[repr(align(64))]
pub(crate) struct KeyMatrices([[u64; 8]; VECTORS]);

impl KeyMatrices {
    /// Of this key.
    pub(crate) const fn new(key: &[u8; MAX_INPUT + 4]) -> Self {
        let mut vectors = [[0; 8]; VECTORS];
        let mut m = 0;
        while m < MAX_INPUT + 3 {
            let bits = (key[m] as u64) << 8 | key[m + 1] as u64;
            // Row `q`: the key's bits from `8 * m + q`. The first row makes the result's high bit.
            let mut q = 0;
            while q < 8 {
                vectors[m / 8][m % 8] |= (bits >> (8 - q) & 0xff) << (8 * q);
                q += 1;
            }
            m += 1;
        }
        KeyMatrices(vectors)
    }
}

/// What is hashed of a packet.
pub(crate) enum Input<'a> {
    /// Two IPv4 addresses and two ports.
    V4(&'a [u8; 12]),
    /// Two IPv6 addresses and two ports.
    V6(&'a [u8; MAX_INPUT]),
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;

    use super::{Input, KeyMatrices, VECTORS};

    /// Leave to use the instructions.
    #[derive(Clone, Copy)]
    pub(crate) struct Gfni(());

    /// For each lane's low four bytes, which bytes of the input they are: `m - 3` to `m`. All that
    /// is not in the input is taken from byte 63 of the loaded vector, which is 0.
    #[repr(align(64))]
    struct Layout([[u8; 64]; VECTORS]);

    static LAYOUT: Layout = {
        let mut layout = [[63; 64]; VECTORS];
        let mut m = 0;
        while m < VECTORS * 8 {
            let mut byte = 0;
            while byte < 4 {
                if m + byte >= 3 {
                    layout[m / 8][m % 8 * 8 + byte] = (m + byte - 3) as u8;
                }
                byte += 1;
            }
            m += 1;
        }
        Layout(layout)
    };

    impl Gfni {
        /// If the CPU has them: a few loads, after the first time.
        #[inline]
        pub(crate) fn detect() -> Option<Self> {
            let has = is_x86_feature_detected!("gfni")
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi");
            has.then_some(Gfni(()))
        }

        /// The hash of `input`, which has 4 to 36 bytes, with a key.
        #[inline]
        pub(crate) fn hash<const N: usize>(self, key: &KeyMatrices, input: &[u8; N]) -> u32 {
            // SAFETY: `self` says that the CPU has the features.
            unsafe { hash(key, input) }
        }

        /// Gives `put` the hash of each item that has an input: 1 where it comes to 0, which says that
        /// there is none. `input` should call nothing that is not inlined, so that the vectors of
        /// the key stay in registers.
        #[inline]
        pub(crate) fn each<T>(
            self,
            key: &KeyMatrices,
            items: &mut [T],
            input: impl FnMut(&T) -> Option<Input<'_>>,
            put: impl FnMut(&mut T, u32),
        ) {
            // SAFETY: `self` says that the CPU has the features.
            unsafe { each(key, items, input, put) }
        }
    }

    #[target_feature(enable = "gfni,avx512f,avx512bw,avx512vl,avx512vbmi")]
    fn each<T>(
        key: &KeyMatrices,
        items: &mut [T],
        mut input: impl FnMut(&T) -> Option<Input<'_>>,
        mut put: impl FnMut(&mut T, u32),
    ) {
        for item in items {
            let hash = match input(item) {
                Some(Input::V4(input)) => hash(key, input),
                Some(Input::V6(input)) => hash(key, input),
                None => continue,
            };
            put(item, hash.max(1));
        }
    }

    #[inline]
    #[target_feature(enable = "gfni,avx512f,avx512bw,avx512vl,avx512vbmi")]
    fn hash<const N: usize>(key: &KeyMatrices, input: &[u8; N]) -> u32 {
        const { assert!(N == 12 || N == 36) };
        // No load of 64 bytes: that would cross a cache line more often than not.
        // SAFETY: the loads touch bytes of `input` alone: its first 12, of which the mask sees to;
        // or its first 32, and the 4 behind them.
        let bytes = unsafe {
            if N == 12 {
                _mm512_zextsi128_si512(_mm_maskz_loadu_epi8(0xfff, input.as_ptr().cast()))
            } else {
                let (ends, ports) = (input.as_ptr().cast(), input.as_ptr().byte_add(32));
                let low = _mm512_zextsi256_si512(_mm256_loadu_si256(ends));
                _mm512_inserti64x4::<1>(low, _mm256_zextsi128_si256(_mm_loadu_si32(ports)))
            }
        };
        let mut sum = _mm512_setzero_si512();
        for (layout, matrices) in LAYOUT.0.iter().zip(&key.0).take((N + 3).div_ceil(8)) {
            // SAFETY: both arrays have the 64 bytes of a vector.
            let (layout, matrices) = unsafe {
                (_mm512_loadu_si512(layout.as_ptr().cast()), _mm512_loadu_si512(matrices.as_ptr().cast()))
            };
            let lanes = _mm512_permutexvar_epi8(layout, bytes);
            sum = _mm512_xor_si512(sum, _mm512_gf2p8affine_epi64_epi8::<0>(lanes, matrices));
        }
        let four = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
        let two = _mm_xor_si128(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
        (_mm_cvtsi128_si32(two) ^ _mm_extract_epi32::<2>(two)) as u32
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::Gfni;

/// No CPU of this architecture has the instructions.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
pub(crate) enum Gfni {}

#[cfg(not(target_arch = "x86_64"))]
impl Gfni {
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    pub(crate) fn hash<const N: usize>(self, _: &KeyMatrices, _: &[u8; N]) -> u32 {
        match self {}
    }

    pub(crate) fn each<T>(
        self,
        _: &KeyMatrices,
        _: &mut [T],
        _: impl FnMut(&T) -> Option<Input<'_>>,
        _: impl FnMut(&mut T, u32),
    ) {
        match self {}
    }
}
