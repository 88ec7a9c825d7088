//! Random numbers that are the same on every machine.

use crate::{Chance, Random};

/// SplitMix64: small, fast, and good from any seed on.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }

    pub(crate) fn chance(&mut self, chance: Chance) -> bool {
        chance != Chance::NEVER && u64::from(self.next()) < chance.threshold()
    }
}

/// Numbers each of which depends on the last (`get_crandom` of `sch_netem`).
#[derive(Clone, Debug)]
pub(crate) struct Correlated {
    threshold: u64,
    /// Weight of the last number, of 2³².
    rho: u64,
    last: u32,
}

impl Correlated {
    pub(crate) fn new(random: Random) -> Correlated {
        let (threshold, rho) = (random.chance.threshold(), random.correlation.threshold());
        // In the middle, not at 0: else the first packets of a correlated loss are all lost.
        Correlated { threshold, rho, last: u32::MAX / 2 }
    }

    pub(crate) fn next(&mut self, rng: &mut Rng) -> u32 {
        let number = rng.next();
        if self.rho == 0 {
            return number;
        }
        let mixed = u128::from(number) * u128::from((1 << 32) - self.rho)
            + u128::from(self.last) * u128::from(self.rho);
        self.last = (mixed >> 32) as u32;
        self.last
    }

    /// Whether it happens to this packet. What never happens takes no number.
    pub(crate) fn happens(&mut self, rng: &mut Rng) -> bool {
        self.threshold > 0 && u64::from(self.next(rng)) < self.threshold
    }
}
