//! Sums over many words, in the widest registers that the CPU has: what checksums of whole packets
//! are made of.
//!
//! Pure. For 1448 bytes AVX2 takes 20 ns where SSE2, which every x86-64 has, takes 77.

/// From so many words on the CPU is asked what it has.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 64;

/// Sum of words of 32 bits, in the machine's byte order. 2^32 of them would have to come before it
/// could overflow.
#[inline(always)]
pub(crate) fn sum_words(words: &[[u8; 4]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= LONG && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { sum_avx2(words) };
    }
    sum(words)
}

#[inline(always)]
fn sum(words: &[[u8; 4]]) -> u64 {
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}

/// The same, for the compiler to use AVX2 for.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline(never)]
fn sum_avx2(words: &[[u8; 4]]) -> u64 {
    sum(words)
}
