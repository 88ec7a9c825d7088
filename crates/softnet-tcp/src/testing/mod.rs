//! What the tests and the fuzzing of this crate share.
// Fuzzing needs a part of it.
#![cfg_attr(not(test), allow(dead_code, unused_macros, unused_imports))]

pub(crate) mod end;

use crate::isn::Tuple;

/// A hash for tests: mixed well enough, and the same everywhere.
pub(crate) fn test_hash(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash: u64, word| {
        let mixed = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ (mixed >> 29)
    })
}

/// The two ends of tests.
pub(crate) fn tuple() -> Tuple {
    Tuple {
        local: "192.0.2.1".parse().unwrap(),
        remote: "192.0.2.2".parse().unwrap(),
        local_port: 8080,
        remote_port: 40_000,
    }
}
