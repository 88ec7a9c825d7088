//! The FIB of IPv4: longest-prefix match of destinations, for a million routes, built at once and
//! changed route by route.
//!
//! Two arrays of `u32` entries. The root has one entry for each value of an address's upper 16
//! bits. An entry is a **leaf** (top bit set; the rest is the next hop and its prefix's length) or
//! the number of a **chunk** of 256 entries, indexed by the next 8 bits; an entry of a second-level
//! chunk may name a third-level one for the last 8. Every shorter prefix is written out over the
//! range it covers, so a look-up is one to three dependent loads and never backtracks.
//!
//! A route that changes is written over its range, but for leaves of longer prefixes: what it costs
//! is its range, and the routes of a table, which live elsewhere, are not asked for. A chunk that
//! has become one leaf is given back.
//!
//! Any number of threads may look up a table that is not changed meanwhile. Invariant: an entry
//! without the leaf bit names a chunk that exists and that no other entry names, and a third-level
//! chunk has only leaves.

use std::net::Ipv4Addr;
use std::ops::Range;

use super::super::family::{FibError, Leaf, LongestMatch, MAX_NEXT_HOPS};
use super::super::prefix::Prefix;
use crate::memory::{Heap, TableMemory, copy, grow};

/// Entries of the root.
const ROOT: usize = 1 << 16;
/// Entries of a chunk.
const CHUNK: usize = 1 << 8;
/// Marks an entry as a leaf.
const LEAF: u32 = Leaf::LEAF;
/// Chunks at the most (2 GiB): a million routes need at most 65,536 chunks of the second level and one of the
/// third for each route.
pub(in crate::ip) const MAX_CHUNKS: usize = 1 << 21;

/// See the [module](self).
pub struct Fib {
    root: Vec<u32>,
    chunks: Vec<u32>,
    /// Numbers of chunks that no entry names.
    free: Vec<u32>,
}

impl Default for Fib {
    fn default() -> Self {
        Fib { root: vec![Leaf::NONE; ROOT], chunks: vec![], free: vec![] }
    }
}

impl Fib {
    /// A snapshot of `routes`, in any order: prefix and index of the next hop, `NO_ROUTE` for a prefix that
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

    /// The next hop for `addr` (host order), `NO_ROUTE` if there is none.
    #[inline]
    pub fn lookup(&self, addr: u32) -> u32 {
        Leaf::nexthop(self.leaf(addr))
    }

    #[inline]
    fn leaf(&self, addr: u32) -> u32 {
        let (high, middle, low) = split(addr);
        let entry = self.root.get(high).copied().unwrap_or(LEAF);
        let entry = step(&self.chunks, entry, middle);
        step(&self.chunks, entry, low)
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
            *out = Leaf::nexthop(*out);
        }
    }

    /// Makes sure that `chunks` more can be taken.
    fn reserve(&mut self, chunks: usize, memory: &impl TableMemory) -> Result<(), FibError> {
        let more = chunks.saturating_sub(self.free.len());
        let all = self.chunks.len() / CHUNK + more;
        if all > MAX_CHUNKS {
            return Err(FibError::TooLarge { chunks: all });
        }
        grow(&mut self.chunks, more * CHUNK, memory).map_err(|bytes| FibError::NoMemory { bytes })
    }

    /// First entry of the chunk that `entry` names; a leaf is turned into a chunk full of itself,
    /// for which room was made.
    fn chunk_of(&mut self, entry: &mut u32) -> usize {
        if *entry & LEAF == 0 {
            return *entry as usize * CHUNK;
        }
        let Some(number) = self.free.pop() else { return descend(entry, &mut self.chunks) };
        let at = number as usize * CHUNK;
        self.chunks[at..at + CHUNK].fill(std::mem::replace(entry, number));
        at
    }

    /// Writes `leaf` over those of the entries `at` that are leaves of up to `len` bits, and of chunks below.
    fn write(&mut self, at: Range<usize>, len: u8, leaf: u32) {
        for i in at {
            let mut entry = self.chunks[i];
            self.write_entry(&mut entry, len, leaf);
            self.chunks[i] = entry;
        }
    }

    fn write_entry(&mut self, entry: &mut u32, len: u8, leaf: u32) {
        if *entry & LEAF == 0 {
            let at = *entry as usize * CHUNK;
            self.write(at..at + CHUNK, len, leaf);
            self.give_back(entry);
        } else if Leaf::is_within(*entry, len) {
            *entry = leaf;
        }
    }

    /// Gives the chunk of `entry` back, if it is all one leaf.
    fn give_back(&mut self, entry: &mut u32) {
        let at = *entry as usize * CHUNK;
        let chunk = &self.chunks[at..at + CHUNK];
        if chunk[0] & LEAF != 0 && chunk.iter().all(|other| *other == chunk[0]) {
            self.free.push(std::mem::replace(entry, chunk[0]));
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
            check(prefix, nexthop)?;
            sorted.push((u64::from(prefix.len()) << 32 | u64::from(prefix.addr().to_bits()), nexthop));
        }
        sorted.sort_by_key(|(key, _)| *key);

        let chunks = chunks_needed(&sorted);
        if chunks > MAX_CHUNKS {
            return Err(FibError::TooLarge { chunks });
        }
        let mut fib = Fib { root: room(memory, ROOT)?, chunks: room(memory, chunks * CHUNK)?, free: vec![] };
        fib.root.resize(ROOT, Leaf::NONE);
        for (i, &(key, nexthop)) in sorted.iter().enumerate() {
            // Painting a wide prefix over and over would cost without bound.
            if sorted.get(i + 1).is_none_or(|&(next, _)| next != key) {
                let len = (key >> 32) as u32;
                fib.paint(key as u32, len, Leaf::of(len as u8, nexthop));
            }
        }
        Ok(fib)
    }

    fn copy_in(&self, memory: &impl TableMemory) -> Result<Self, FibError> {
        let all = |table: &Vec<u32>, room| copy(table, room, memory);
        let chunks = all(&self.chunks, self.chunks.len() + self.chunks.len() / 8);
        let tables = all(&self.root, ROOT).and_then(|root| Ok((root, chunks?)));
        let (root, chunks) = tables.map_err(|bytes| FibError::NoMemory { bytes })?;
        Ok(Fib { root, chunks, free: self.free.clone() })
    }

    fn put(
        &mut self,
        prefix: Prefix,
        of_len: u8,
        nexthop: u32,
        memory: &impl TableMemory,
    ) -> Result<(), FibError> {
        check(prefix, nexthop)?;
        let (len, leaf) = (prefix.len(), Leaf::of(of_len, nexthop));
        let (high, middle, low) = split(prefix.addr().to_bits());
        if len <= 16 {
            for i in high..high + (ROOT >> len) {
                let mut entry = self.root[i];
                self.write_entry(&mut entry, len, leaf);
                self.root[i] = entry;
            }
            return Ok(());
        }
        self.reserve(2, memory)?;
        let mut entry = self.root[high];
        let chunk = self.chunk_of(&mut entry);
        if len <= 24 {
            self.write(chunk + middle..chunk + middle + (1 << (24 - len)), len, leaf);
        } else {
            let mut inner = self.chunks[chunk + middle];
            let below = self.chunk_of(&mut inner);
            self.write(below + low..below + low + (1 << (32 - len)), len, leaf);
            self.give_back(&mut inner);
            self.chunks[chunk + middle] = inner;
        }
        self.give_back(&mut entry);
        self.root[high] = entry;
        Ok(())
    }

    #[inline(always)]
    fn lookup_batch(&self, dst: &[u32], hops: &mut [u32]) {
        self.lookup_batch(dst, hops);
    }

    fn longest_match(&self, addr: Ipv4Addr) -> u32 {
        self.lookup(addr.to_bits())
    }

    fn matched_len(&self, addr: Ipv4Addr) -> u8 {
        Leaf::prefix_len(self.leaf(addr.to_bits()))
    }

    fn bytes(&self) -> usize {
        (self.root.len() + self.chunks.len()) * size_of::<u32>()
    }
}

fn check(prefix: Prefix, nexthop: u32) -> Result<(), FibError> {
    match nexthop < MAX_NEXT_HOPS {
        true => Ok(()),
        false => Err(FibError::NextHop { prefix: prefix.any(), nexthop }),
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

    use super::super::super::family::NO_ROUTE;
    use super::super::super::fib_model::{Step, agrees, run};
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

        /// Changed route by route it is what it would be if it were built of what is left; and what
        /// is empty again takes no room.
        #[test]
        fn follows_changes(
            built in routes(),
            steps in prop::collection::vec((routes(), any::<bool>()), 0..4),
            random in prop::collection::vec(any::<Ipv4Addr>(), 0..20),
        ) {
            let mut fib = Fib::build(&built).unwrap();
            let steps = steps.into_iter().flat_map(|(routes, add)| {
                routes.into_iter().map(move |(prefix, hop)| if add { Step::Add(prefix, hop) } else { Step::Remove(prefix) })
            });
            let left = run::<Ipv4Addr>(&mut fib, &built, steps)?;
            agrees::<Ipv4Addr>(&fib, &left, &random)?;
            let all = left.iter().map(|(prefix, _)| Step::Remove(*prefix));
            run::<Ipv4Addr>(&mut fib, &left, all.collect::<Vec<_>>().into_iter())?;
            prop_assert!(fib.root.iter().all(|entry| *entry == Leaf::NONE));
            prop_assert_eq!(fib.free.len() * CHUNK, fib.chunks.len());
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
        let route = (prefix(0, 8), MAX_NEXT_HOPS);
        let error = FibError::NextHop { prefix: route.0.any(), nexthop: MAX_NEXT_HOPS };
        assert_eq!(Fib::build(&[route]).err(), Some(error.clone()));
        let mut fib = Fib::build(&[(prefix(0, 8), MAX_NEXT_HOPS - 1)]).unwrap();
        assert_eq!(fib.lookup(5), MAX_NEXT_HOPS - 1);
        assert_eq!(fib.put(route.0, 8, MAX_NEXT_HOPS, &Heap), Err(error));

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
