//! The key of a device's RSS hash, and what is done to a packet's fields before they are hashed.
//!
//! A hash with a key of one's own is looked up in tables that are made from the key once, one for
//! each byte of the input. Control threads make a [`RssHash`]; any thread hashes with it.
//! Invariant: its key is not singular.
//!
//! **Singular keys.** The hash is linear: each input bit contributes 32 bits of the key. With a key
//! that is not chosen with care, flows that differ do not differ in their hash, and all of them go
//! to one queue. So a key is refused, together with the transformation that it is used with, if
//!
//! * a bit of the input (of addresses and ports, of either family) contributes nothing: flows that
//!   differ in that bit alone never part. (With a symmetric transformation: a bit of what the
//!   transformation makes. A key with a period of 16 bits has none that contributes then, since
//!   what is put in twice cancels out.)
//! * of the hash's low bits, which choose the entry of the indirection table, some depend on others
//!   for every pair of addresses of a family: part of the table is then never used. An all-ones key
//!   is such a one.

use std::fmt;

use super::toeplitz::{self, KEY_LEN};
use crate::skb::{Gfni, KeyMatrices};

/// What is hashed of a packet of IPv4: addresses and ports; and of IPv6.
const IPV4: Layout = Layout { name: "IPv4", address: 4 };
const IPV6: Layout = Layout { name: "IPv6", address: 16 };

/// Fields of the input: two addresses of so many bytes, two ports.
struct Layout {
    name: &'static str,
    address: usize,
}

/// What is hashed in place of a packet's fields, so that both directions of a flow have one hash.
/// In `ethtool`'s words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xfrm {
    /// The fields themselves.
    #[default]
    None,
    /// Source XOR destination, twice; of ports likewise.
    SymmetricXor,
    /// Source OR destination, then source XOR destination; of ports likewise. Keeps more of the
    /// flow.
    SymmetricOrXor,
}

impl Xfrm {
    /// All of them.
    pub const ALL: [Xfrm; 3] = [Xfrm::None, Xfrm::SymmetricXor, Xfrm::SymmetricOrXor];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Xfrm::None => "none",
            Xfrm::SymmetricXor => "symmetric-xor",
            Xfrm::SymmetricOrXor => "symmetric-or-xor",
        }
    }

    /// Source and destination of `2 * N` bytes as they are hashed.
    #[inline(always)]
    fn apply(self, fields: &mut [u8]) {
        let (source, destination) = fields.split_at_mut(fields.len() / 2);
        for (s, d) in source.iter_mut().zip(destination) {
            match self {
                Xfrm::None => {}
                Xfrm::SymmetricXor => (*s, *d) = (*s ^ *d, *s ^ *d),
                Xfrm::SymmetricOrXor => (*s, *d) = (*s | *d, *s ^ *d),
            }
        }
    }
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is too short or too long.
    #[error("hkey: expected {KEY_LEN} bytes, found {0}")]
    Length(usize),
    /// A bit of the input changes nothing.
    #[error(
        "hkey: singular with xfrm {}: bit {bit} of {family} addresses and ports changes nothing in the hash; a random \
         key is not", xfrm.name()
    )]
    NoEffect {
        /// Which bit of what is hashed, from the first.
        bit: usize,
        /// Of which family.
        family: &'static str,
        /// With what it is used.
        xfrm: Xfrm,
    },
    /// Low bits of the hash depend on others.
    #[error(
        "hkey: singular with xfrm {}: of the hash's low {bits} bits, which choose the entry of the table, only {rank} \
         are independent for {family} addresses; a random key is not", xfrm.name()
    )]
    Dependent {
        /// Bits that choose the entry.
        bits: u32,
        /// Of these so many are independent.
        rank: u32,
        /// Of which family.
        family: &'static str,
        /// With what it is used.
        xfrm: Xfrm,
    },
}

/// The 32 bits of the key that begin at `bit`.
fn window(key: &[u8; KEY_LEN], bit: usize) -> u32 {
    let five = (0..5).fold(0u64, |five, i| five << 8 | u64::from(key.get(bit / 8 + i).copied().unwrap_or(0)));
    (five >> (8 - bit % 8)) as u32
}

/// Dimension of the space over GF(2) that `columns` span.
fn rank(columns: impl Iterator<Item = u32>) -> u32 {
    let mut basis = [0u32; 32];
    for mut column in columns {
        while column != 0 {
            let place = &mut basis[column.leading_zeros() as usize];
            if *place == 0 {
                *place = column;
                break;
            }
            column ^= *place;
        }
    }
    basis.iter().filter(|column| **column != 0).count() as u32
}

/// Refuses a key that is singular (see the module) with `xfrm` and a table whose entry `bits` bits
/// choose.
pub(super) fn check(key: &[u8; KEY_LEN], xfrm: Xfrm, bits: u32) -> Result<(), KeyError> {
    for Layout { name: family, address } in [IPV4, IPV6] {
        // Where a bit of a source is, and how far behind it the same bit of its destination.
        let pairs = (0..address * 8).map(|bit| (bit, address * 8));
        let ports = (0..16).map(|bit| (address * 16 + bit, 16));
        for (bit, distance) in pairs.clone().chain(ports) {
            let (a, b) = (window(key, bit), window(key, bit + distance));
            // What a source, a destination, and both together that are set contribute.
            let parts = match xfrm {
                Xfrm::None => [a, b, u32::MAX],
                Xfrm::SymmetricXor => [a ^ b, u32::MAX, u32::MAX],
                Xfrm::SymmetricOrXor => [a, b, a ^ b],
            };
            if let Some(at) = parts.iter().position(|part| *part == 0) {
                return Err(KeyError::NoEffect { bit: bit + [0, distance, 0][at], family, xfrm });
            }
        }
        let low = u32::MAX.checked_shr(32 - bits.min(32)).unwrap_or(0);
        let columns = pairs.flat_map(|(bit, distance)| {
            let (a, b) = (window(key, bit), window(key, bit + distance));
            if xfrm == Xfrm::SymmetricXor { [a ^ b, 0] } else { [a, b] }
        });
        let rank = rank(columns.map(|column| column & low));
        if rank < bits {
            return Err(KeyError::Dependent { bits, rank, family, xfrm });
        }
    }
    Ok(())
}

/// A Toeplitz hash with a key of its own.
#[derive(Clone)]
pub struct RssHash {
    key: [u8; KEY_LEN],
    xfrm: Xfrm,
    tables: Box<[[u32; 256]; toeplitz::MAX_INPUT]>,
    /// The same, if the CPU multiplies with matrices.
    matrices: Option<(Gfni, Box<KeyMatrices>)>,
}

impl fmt::Debug for RssHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RssHash { key, xfrm, .. } = self;
        f.debug_struct("RssHash").field("key", key).field("xfrm", xfrm).finish_non_exhaustive()
    }
}

impl RssHash {
    /// With this key and transformation, for a table whose entry `bits` bits choose.
    ///
    /// # Errors
    /// The key is of another length, or singular.
    pub fn new(key: &[u8], xfrm: Xfrm, bits: u32) -> Result<Self, KeyError> {
        let key: [u8; KEY_LEN] = key.try_into().map_err(|_| KeyError::Length(key.len()))?;
        check(&key, xfrm, bits)?;
        let mut tables = Box::new([[0; 256]; toeplitz::MAX_INPUT]);
        for (at, table) in tables.iter_mut().enumerate() {
            for (value, entry) in table.iter_mut().enumerate() {
                let set = (0..8).filter(|bit| value & 0x80 >> bit != 0);
                *entry = set.fold(0, |hash, bit| hash ^ window(&key, at * 8 + bit));
            }
        }
        let matrices = Gfni::detect().map(|gfni| (gfni, Box::new(KeyMatrices::new(&key))));
        Ok(RssHash { key, xfrm, tables, matrices })
    }

    /// Its key.
    pub fn key(&self) -> &[u8; KEY_LEN] {
        &self.key
    }

    /// What is done to the fields before.
    pub fn xfrm(&self) -> Xfrm {
        self.xfrm
    }

    /// Whether it is what [`flow_hash`](super::flow_hash) computes.
    pub fn is_flow_hash(&self) -> bool {
        self.key == *toeplitz::flow_hkey() && self.xfrm == Xfrm::None
    }

    /// The hash of addresses (two of `A / 2` bytes) and ports in network order; 0 in place of ports
    /// that do not count.
    #[inline(always)]
    pub(super) fn hash<const A: usize>(&self, addresses: &[u8; A], ports: [u8; 4]) -> u32 {
        let (mut addresses, mut ports) = (*addresses, ports);
        if self.xfrm != Xfrm::None {
            self.xfrm.apply(&mut addresses);
            self.xfrm.apply(&mut ports);
        }
        let Some((gfni, matrices)) = &self.matrices else { return self.by_tables(&addresses, ports) };
        let mut input = [0; toeplitz::MAX_INPUT];
        input[..A].copy_from_slice(&addresses);
        input[A..A + 4].copy_from_slice(&ports);
        match input.first_chunk::<12>() {
            Some(ipv4) if A == 8 => gfni.hash(matrices, ipv4),
            _ => gfni.hash(matrices, &input),
        }
    }

    /// [`hash`](Self::hash) of what was transformed, without the CPU's help.
    #[inline(always)]
    fn by_tables<const A: usize>(&self, addresses: &[u8; A], ports: [u8; 4]) -> u32 {
        // Four at a time, which do not wait for each other.
        let (words, _) = addresses.as_chunks::<4>();
        let (tables, _) = self.tables.as_chunks::<4>();
        let word = |tables: &[[u32; 256]; 4], bytes: &[u8; 4]| -> [u32; 4] {
            std::array::from_fn(|i| tables[i][usize::from(bytes[i])])
        };
        let mut parts = tables.get(words.len()).map_or([0; 4], |tables| word(tables, &ports));
        for (tables, bytes) in tables.iter().zip(words) {
            let more = word(tables, bytes);
            (0..4).for_each(|i| parts[i] ^= more[i]);
        }
        parts[0] ^ parts[1] ^ parts[2] ^ parts[3]
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::toeplitz::PUBLISHED_HKEY as KEY;
    use super::super::toeplitz::tests::naive;
    use super::*;

    const PERIODIC: [u8; KEY_LEN] = {
        let mut key = [0x6d; KEY_LEN];
        let mut i = 1;
        while i < KEY_LEN {
            key[i] = 0x5a;
            i += 2;
        }
        key
    };

    fn hash(key: &[u8], xfrm: Xfrm) -> RssHash {
        RssHash::new(key, xfrm, 7).unwrap()
    }

    #[test]
    fn a_key_of_period_16_is_symmetric() {
        // 66.9.149.187:2794 and 161.142.100.80:1766.
        let hash = hash(&PERIODIC, Xfrm::None);
        let there = hash.hash(&[66, 9, 149, 187, 161, 142, 100, 80], [0x0a, 0xea, 0x06, 0xe6]);
        let back = hash.hash(&[161, 142, 100, 80, 66, 9, 149, 187], [0x06, 0xe6, 0x0a, 0xea]);
        assert_eq!((there, back), (0x9fcc_9fcc, 0x9fcc_9fcc));
    }

    #[test]
    fn singular_keys_are_refused() {
        let refused = |key: &[u8], xfrm| RssHash::new(key, xfrm, 7).err();
        for xfrm in Xfrm::ALL {
            let error = KeyError::NoEffect { bit: 0, family: "IPv4", xfrm };
            assert_eq!(refused(&[0; KEY_LEN], xfrm), Some(error));
            assert_eq!(refused(&KEY, xfrm), None);
            assert_eq!(refused(&KEY[1..], xfrm), Some(KeyError::Length(KEY_LEN - 1)));
        }
        let ones = KeyError::Dependent { bits: 7, rank: 1, family: "IPv4", xfrm: Xfrm::None };
        assert_eq!(refused(&[0xff; KEY_LEN], Xfrm::None), Some(ones));
        // What is put in twice cancels out.
        assert_eq!(refused(&PERIODIC, Xfrm::None), None);
        for xfrm in [Xfrm::SymmetricXor, Xfrm::SymmetricOrXor] {
            assert_eq!(refused(&PERIODIC, xfrm), Some(KeyError::NoEffect { bit: 0, family: "IPv4", xfrm }));
        }
        // 32 bits of 0 anywhere: here those of a destination port of IPv6, the last window that
        // there is.
        let mut end = KEY;
        end[35] &= 0xfe;
        end[36..].fill(0);
        let error = KeyError::NoEffect { bit: 287, family: "IPv6", xfrm: Xfrm::None };
        assert_eq!(refused(&end, Xfrm::None), Some(error));
        end[39] = 2;
        assert_eq!(refused(&end, Xfrm::None), None);
        assert!(refused(&[0; KEY_LEN], Xfrm::None).unwrap().to_string().contains("singular"));
        // A table of one entry needs no bit of the hash, but each bit of a flow must still count.
        assert!(RssHash::new(&[0xff; KEY_LEN], Xfrm::None, 0).is_ok());
    }

    /// Where a key is not refused, a table of 128 entries is used whole, by flows that differ in a
    /// few bits.
    #[test]
    fn a_key_that_is_taken_uses_the_whole_table() {
        for (key, xfrm) in [
            (KEY, Xfrm::None),
            (PERIODIC, Xfrm::None),
            (KEY, Xfrm::SymmetricXor),
            (KEY, Xfrm::SymmetricOrXor),
        ] {
            let hash = hash(&key, xfrm);
            let mut seen = [false; 128];
            let mut state = 1u64;
            for _ in 0..4096 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                seen[hash.hash(&state.to_be_bytes(), [0; 4]) as usize & 127] = true;
            }
            assert_eq!(seen, [true; 128], "{xfrm:?}");
        }
    }

    proptest! {
        #[test]
        fn is_the_naive_one(key: [u8; 32], end: [u8; 8], v4: [u8; 8], v6: [u8; 32], ports: [u8; 4]) {
            let key = [&key[..], &end].concat();
            let Ok(hash) = RssHash::new(&key, Xfrm::None, 7) else { return Ok(()) };
            for hash in [&hash, &RssHash { matrices: None, ..hash.clone() }] {
                prop_assert_eq!(hash.hash(&v4, ports), naive(&key, &[&v4[..], &ports].concat()));
                prop_assert_eq!(hash.hash(&v6, ports), naive(&key, &[&v6[..], &ports].concat()));
            }
        }

        #[test]
        fn symmetric_transformations_are(
            key: [u8; 32], end: [u8; 8],
            (s4, d4) in any::<([u8; 4], [u8; 4])>(),
            (s6, d6) in any::<([u8; 16], [u8; 16])>(),
            (sp, dp) in any::<([u8; 2], [u8; 2])>(),
        ) {
            let key = [&key[..], &end].concat();
            let two = |a: &[u8], b: &[u8]| [a, b].concat();
            let of = |hash: &RssHash, [s4, d4]: [&[u8]; 2], [s6, d6]: [&[u8]; 2], [sp, dp]: [&[u8]; 2]| {
                let ports = two(sp, dp).try_into().unwrap();
                let v4: [u8; 8] = two(s4, d4).try_into().unwrap();
                let v6: [u8; 32] = two(s6, d6).try_into().unwrap();
                (hash.hash(&v4, ports), hash.hash(&v6, ports))
            };
            for xfrm in [Xfrm::SymmetricXor, Xfrm::SymmetricOrXor] {
                let Ok(hash) = RssHash::new(&key, xfrm, 7) else { continue };
                let there = of(&hash, [&s4, &d4], [&s6, &d6], [&sp, &dp]);
                prop_assert_eq!(there, of(&hash, [&d4, &s4], [&d6, &s6], [&dp, &sp]));
                // By the definition, from the fields.
                let op = |a: &[u8], b: &[u8], or: bool| -> Vec<u8> {
                    a.iter().zip(b).map(|(a, b)| if or { a | b } else { a ^ b }).collect()
                };
                let or = xfrm == Xfrm::SymmetricOrXor;
                let input = [op(&s4, &d4, or), op(&s4, &d4, false), op(&sp, &dp, or), op(&sp, &dp, false)];
                prop_assert_eq!(there.0, naive(&key, &input.concat()));
            }
            let periodic = hash(&PERIODIC, Xfrm::None);
            prop_assert_eq!(
                of(&periodic, [&s4, &d4], [&s6, &d6], [&sp, &dp]),
                of(&periodic, [&d4, &s4], [&d6, &s6], [&dp, &sp])
            );
        }
    }
}
