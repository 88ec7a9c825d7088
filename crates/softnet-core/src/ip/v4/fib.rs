//! The FIB of IPv4: longest-prefix match of destinations, as an immutable snapshot built for a million routes.
//!
//! Two arrays of `u32` entries. The root has one entry for each value of an address's upper 16 bits. An entry is
//! a **leaf** (top bit set; the rest is the next hop) or the number of a **chunk** of 256 entries, indexed by
//! the next 8 bits; an entry of a second-level chunk may name a third-level one for the last 8. Every shorter
//! prefix is written out over the range it covers, so a look-up is one to three dependent loads and never
//! backtracks.
//!
//! The routes of a table live elsewhere; code that changes them builds a new snapshot and publishes it. Any number
//! of threads may look up. Invariant: an entry without the leaf bit names a chunk that exists, and a third-level
//! chunk has only leaves.

use std::net::Ipv4Addr;

use super::super::family::{FibError, LongestMatch, NO_ROUTE};
use super::super::prefix::Prefix;
use crate::memory::{Heap, TableMemory};

/// Entries of the root.
const ROOT: usize = 1 << 16;
/// Entries of a chunk.
const CHUNK: usize = 1 << 8;
/// Marks an entry as a leaf.
const LEAF: u32 = 1 << 31;
/// Chunks at the most (2 GiB): a million routes need at most 65,536 chunks of the second level and one of the
/// third for each route.
pub(in crate::ip) const MAX_CHUNKS: usize = 1 << 21;

/// A snapshot of the routes, for look-ups.
pub struct Fib {
    root: Vec<u32>,
    chunks: Vec<u32>,
}

impl Default for Fib {
    fn default() -> Self {
        Fib { root: vec![LEAF | NO_ROUTE; ROOT], chunks: vec![] }
    }
}

impl Fib {
    /// A snapshot of `routes`, in any order: prefix and index of the next hop, [`NO_ROUTE`] for a prefix that
    /// is to have none. Of routes with the same prefix the last one counts.
    pub fn build(routes: &[(Prefix, u32)]) -> Result<Self, FibError> {
        Self::build_in(routes, &Heap)
    }

    /// Writes `leaf` to all of `addr/len`. No longer prefix may have been painted before.
    fn paint(&mut self, addr: u32, len: u32, leaf: u32) {
        let (high, middle, low) = split(addr);
        if len <= 16 {
            self.root[high..high + (ROOT >> len)].fill(leaf);
            return;
        }
        let chunk = descend(&mut self.root[high], &mut self.chunks);
        if len <= 24 {
            let first = chunk + middle;
            self.chunks[first..first + (1 << (24 - len))].fill(leaf);
            return;
        }
        let mut entry = self.chunks[chunk + middle];
        let below = descend(&mut entry, &mut self.chunks);
        self.chunks[chunk + middle] = entry;
        let first = below + low;
        self.chunks[first..first + (1 << (32 - len))].fill(leaf);
    }

    /// The next hop for `addr` (host order), [`NO_ROUTE`] if there is none.
    #[inline]
    pub fn lookup(&self, addr: u32) -> u32 {
        let (high, middle, low) = split(addr);
        let entry = self.root.get(high).copied().unwrap_or(LEAF);
        let entry = step(&self.chunks, entry, middle);
        step(&self.chunks, entry, low) & !LEAF
    }

    /// Looks up each of `addrs` (host order) and writes its next hop to the same place of `out`; as many as the
    /// shorter of the two has. All go down level by level, so that their cache misses overlap: meant for the
    /// up to 64 of a batch.
    #[inline]
    pub fn lookup_batch(&self, addrs: &[u32], out: &mut [u32]) {
        let Some(root) = self.root.first_chunk::<ROOT>() else { return };
        let mut leaves = LEAF;
        for (addr, out) in addrs.iter().zip(&mut *out) {
            *out = root[(addr >> 16) as usize];
            leaves &= *out;
        }
        if leaves & LEAF == 0 {
            leaves = LEAF;
            for (addr, out) in addrs.iter().zip(&mut *out) {
                *out = step(&self.chunks, *out, split(*addr).1);
                leaves &= *out;
            }
            if leaves & LEAF == 0 {
                for (addr, out) in addrs.iter().zip(&mut *out) {
                    *out = step(&self.chunks, *out, split(*addr).2);
                }
            }
        }
        for (out, _) in out.iter_mut().zip(addrs) {
            *out &= !LEAF;
        }
    }

    /// The two arrays, root first, for the embedding to advise the kernel about.
    pub fn tables(&self) -> [&[u32]; 2] {
        [&self.root, &self.chunks]
    }
}

impl LongestMatch<Ipv4Addr> for Fib {
    /// `memory` is asked once for each of the two arrays, before anything touches it. A vector with
    /// less room is grown.
    fn build_in(routes: &[(Prefix, u32)], memory: &impl TableMemory) -> Result<Self, FibError> {
        // Short before long, so that each route is painted over those it is more specific than; then by
        // address, so that chunks lie in the order of addresses and each is painted while it is in the cache.
        // The sort is stable: of equal prefixes the last one given comes last.
        let mut sorted = Vec::with_capacity(routes.len());
        for &(prefix, nexthop) in routes {
            if nexthop >= LEAF {
                return Err(FibError::NextHop { prefix: prefix.any(), nexthop });
            }
            sorted.push((u64::from(prefix.len()) << 32 | u64::from(prefix.addr().to_bits()), nexthop));
        }
        sorted.sort_by_key(|(key, _)| *key);

        let chunks = chunks_needed(&sorted);
        if chunks > MAX_CHUNKS {
            return Err(FibError::TooLarge { chunks });
        }
        let mut fib = Fib { root: room(memory, ROOT)?, chunks: room(memory, chunks * CHUNK)? };
        fib.root.resize(ROOT, LEAF | NO_ROUTE);
        for (i, &(key, nexthop)) in sorted.iter().enumerate() {
            // Painting a wide prefix over and over would cost without bound.
            if sorted.get(i + 1).is_none_or(|&(next, _)| next != key) {
                fib.paint(key as u32, (key >> 32) as u32, LEAF | nexthop);
            }
        }
        Ok(fib)
    }

    #[inline(always)]
    fn lookup_batch(&self, dst: &[u32], hops: &mut [u32]) {
        self.lookup_batch(dst, hops);
    }

    fn longest_match(&self, addr: Ipv4Addr) -> u32 {
        self.lookup(addr.to_bits())
    }

    fn bytes(&self) -> usize {
        (self.root.len() + self.chunks.len()) * size_of::<u32>()
    }
}

/// The indices of `addr` in the three levels.
#[inline(always)]
fn split(addr: u32) -> (usize, usize, usize) {
    ((addr >> 16) as usize, (addr >> 8 & 0xff) as usize, (addr & 0xff) as usize)
}

/// One level down from `entry`. A leaf stays as it is: its top bit puts the index far beyond the array, so that
/// the bounds check is the leaf test too.
#[inline(always)]
fn step(chunks: &[u32], entry: u32, index: usize) -> u32 {
    const { assert!(usize::BITS == 64 && MAX_CHUNKS < LEAF as usize) };
    chunks.get((entry as usize) << 8 | index).copied().unwrap_or(entry)
}

/// First entry of the chunk that `entry` names; a leaf is turned into a chunk full of itself.
fn descend(entry: &mut u32, chunks: &mut Vec<u32>) -> usize {
    if *entry & LEAF != 0 {
        let leaf = std::mem::replace(entry, (chunks.len() / CHUNK) as u32);
        chunks.resize(chunks.len() + CHUNK, leaf);
    }
    *entry as usize * CHUNK
}

/// Chunks that `sorted` routes take: one for each /16 that has longer ones, and one for each /24 that has.
fn chunks_needed(sorted: &[(u64, u32)]) -> usize {
    let nets_of_longer = |len: u64| {
        let from = sorted.partition_point(|(key, _)| *key < (len + 1) << 32);
        let mut nets: Vec<u32> = sorted[from..].iter().map(|(key, _)| *key as u32 >> (32 - len)).collect();
        nets.sort_unstable();
        nets.dedup();
        nets.len()
    };
    nets_of_longer(16) + nets_of_longer(24)
}

/// An empty vector with room for `entries`, of `memory`.
fn room(memory: &impl TableMemory, entries: usize) -> Result<Vec<u32>, FibError> {
    let mut table = memory.vec(entries);
    table.clear();
    let bytes = entries * size_of::<u32>();
    table.try_reserve_exact(entries).map_err(|_| FibError::NoMemory { bytes })?;
    Ok(table)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use prefix_trie::PrefixMap;
    use proptest::prelude::*;

    use super::super::super::fib_model::agrees;
    use super::*;
    use crate::memory::Asked;

    fn prefix(addr: u32, len: u8) -> Prefix {
        Prefix::containing(Ipv4Addr::from_bits(addr), len).unwrap()
    }

    /// Routes that nest and collide: few distinct bits in the addresses, all lengths.
    fn routes() -> impl Strategy<Value = Vec<(Prefix, u32)>> {
        let addr = prop_oneof![
            any::<u32>(),
            prop::collection::vec(prop::sample::select(vec![0u8, 1, 10, 127, 128, 255]), 4)
                .prop_map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
        ];
        let len =
            prop_oneof![4 => 0u8..=32, 1 => prop::sample::select(vec![0, 8, 15, 16, 17, 23, 24, 25, 32])];
        prop::collection::vec((addr, len, 0u32..50).prop_map(|(a, l, n)| (prefix(a, l), n)), 0..60)
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(routes in routes(), random in prop::collection::vec(any::<Ipv4Addr>(), 0..20)) {
            let fib = Fib::build(&routes).unwrap();
            agrees::<Ipv4Addr>(&fib, &routes, &random)?;
            prop_assert_eq!(fib.tables().map(<[u32]>::len).iter().sum::<usize>() * 4, fib.bytes());
        }
    }

    #[test]
    fn every_length_over_the_same_address() {
        let routes: Vec<_> =
            (0..=32).rev().map(|len| (prefix(0xc0a8_1234, len), u32::from(len) + 1)).collect();
        let fib = Fib::build(&routes).unwrap();
        for len in 0..=32u32 {
            // Differs from the address in the bit right behind the prefix.
            let addr = 0xc0a8_1234 ^ 1u32.checked_shl(31u32.wrapping_sub(len)).unwrap_or(0);
            assert_eq!(fib.lookup(addr), len + 1);
        }
    }

    #[test]
    fn empty_and_default() {
        let fib = Fib::default();
        assert_eq!((fib.lookup(0), fib.lookup(u32::MAX), fib.bytes()), (NO_ROUTE, NO_ROUTE, 4 * ROOT));
        assert_eq!(Fib::build(&[]).unwrap().tables(), fib.tables());
        let fib = Fib::build(&[(Prefix::DEFAULT, 9), (Prefix::DEFAULT, 7)]).unwrap();
        assert_eq!((fib.lookup(0), fib.lookup(u32::MAX), fib.bytes()), (7, 7, 4 * ROOT));
    }

    #[test]
    fn a_route_to_nothing_hides_a_shorter_one() {
        let fib = Fib::build(&[(prefix(0x0a00_0000, 8), 3), (prefix(0x0a01_0200, 24), NO_ROUTE)]).unwrap();
        assert_eq!((fib.lookup(0x0a01_0201), fib.lookup(0x0a01_0301)), (NO_ROUTE, 3));
    }

    #[test]
    fn batches_of_any_shape() {
        let fib = Fib::build(&[(prefix(0x0a00_0000, 8), 3)]).unwrap();
        let mut out = [9; 2];
        fib.lookup_batch(&[0x0a00_0001; 5], &mut out);
        assert_eq!(out, [3, 3]);
        fib.lookup_batch(&[1], &mut out);
        assert_eq!(out, [0, 3]);
        fib.lookup_batch(&[], &mut []);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let route = (prefix(0, 8), LEAF);
        assert_eq!(
            Fib::build(&[route]).err(),
            Some(FibError::NextHop { prefix: route.0.any(), nexthop: LEAF })
        );
        assert_eq!(Fib::build(&[(prefix(0, 8), LEAF - 1)]).unwrap().lookup(5), LEAF - 1);

        let scattered: Vec<_> = (0..=MAX_CHUNKS as u32).map(|i| (prefix(i << 8, 32), 1)).collect();
        let chunks = MAX_CHUNKS + 1 + (MAX_CHUNKS >> 8) + 1;
        assert_eq!(Fib::build(&scattered).err(), Some(FibError::TooLarge { chunks }));
    }

    #[test]
    fn memory_is_asked_for_once_and_fits_exactly() {
        // Chunks: two /16 with longer ones (the second only through a /32), three /24 with longer ones.
        let routes = [
            (prefix(0x0a00_0000, 17), 1),
            (prefix(0x0a00_0180, 25), 2),
            (prefix(0x0a00_0190, 32), 3),
            (prefix(0x0a00_0200, 26), 4),
            (prefix(0x0b00_0001, 32), 5),
            (prefix(0x0c00_0000, 16), 6),
        ];
        let memory = Asked::default();
        let fib = Fib::build_in(&routes, &memory).unwrap();
        assert_eq!(*memory.0.borrow(), [ROOT, 5 * CHUNK]);
        assert_eq!(fib.tables().map(<[u32]>::len), [ROOT, 5 * CHUNK]);
        assert_eq!([fib.root.capacity(), fib.chunks.capacity()], [ROOT, 5 * CHUNK]);
    }

    #[test]
    fn a_large_table_agrees_with_a_trie() {
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 32) as u32
        };
        let lens = [8u8, 16, 19, 20, 22, 23, 24, 24, 24, 24, 24, 28, 32];
        let routes: Vec<_> =
            (1..=20_000).map(|n| (prefix(next(), lens[next() as usize % lens.len()]), n)).collect();
        let fib = Fib::build(&routes).unwrap();
        let mut trie: PrefixMap<(u32, u8), u32> = PrefixMap::new();
        for (p, n) in &routes {
            trie.insert((p.addr().to_bits(), p.len()), *n);
        }
        for _ in 0..20_000 {
            let addr =
                routes[next() as usize % routes.len()].0.addr().to_bits() ^ next() >> (next() % 33).min(31);
            let want = trie.get_lpm(&(addr, 32)).map_or(NO_ROUTE, |(_, n)| *n);
            assert_eq!(fib.lookup(addr), want, "{addr:#x}");
        }
    }
}
