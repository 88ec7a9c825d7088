//! Pseudo-random numbers, the same in every run (SplitMix64).

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number `at` of the sequence that begins with `seed`: any of them at once.
pub(super) fn number(seed: u64, at: u64) -> u64 {
    let mut x = seed.wrapping_add(at.wrapping_add(1).wrapping_mul(GOLDEN));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number as a share, evenly between 0 and 1, never either of them.
pub(super) fn share(number: u64) -> f64 {
    ((number >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// One number after the other.
pub(super) struct Random {
    seed: u64,
    at: u64,
}

impl Random {
    /// Sequences with different seeds have nothing to do with each other.
    pub(super) fn new(seed: u64) -> Self {
        Random { seed: number(seed, 0), at: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.at += 1;
        number(self.seed, self.at)
    }

    pub(super) fn share(&mut self) -> f64 {
        share(self.next())
    }

    /// Evenly below `n` (`n` > 0).
    pub(super) fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}
