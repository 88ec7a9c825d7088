//! The FIB of IPv6: longest-prefix match of 128-bit destinations, as an immutable snapshot built for some hundred
//! thousand routes.
//!
//! A root of one entry for each value of an address's upper 16 bits, and **nodes** below it, each for the next 8. An entry is
//! a leaf (top bit set; the rest is the next hop) or says where a node is. Of a node's 256 entries runs of equal ones are
//! kept once: a bitmap says where runs begin, and counting its bits up to an index finds the entry. Prefixes of 128 bits
//! leave nearly all nodes with two or three runs, so a node is one cache line, where a plain array would be sixteen. Every
//! shorter prefix is written out over its range, so a look-up never backtracks.
//!
//! In memory a node is four words of bitmap (of 64 bits), a word with the number of runs before each of them, and its
//! entries. It begins at a cache line's beginning, whatever allocator the lines are from: a node that straddled two would cost
//! two misses a level, and which it is would be the allocator's choice.
//!
//! As [`v4::fib`](super::super::v4::fib): code that changes routes builds a new snapshot; any number of threads may look up.
//! Invariant: an entry without the leaf bit says where a node begins, and a node of the last level has only leaves.

use std::net::Ipv6Addr;

use super::super::family::{FibError, LongestMatch, NO_ROUTE};
use super::super::prefix::Prefix6;
use crate::memory::{Heap, TableMemory};
use crate::skb::{BATCH, prefetch};

/// Entries of the root.
const ROOT: usize = 1 << 16;
/// Bits that the root decides.
const ROOT_BITS: u8 = 16;
/// Marks an entry as a leaf.
const LEAF: u32 = 1 << 31;
/// Words of a cache line.
const LINE: usize = 16;
/// Words of a node before its entries.
const HEADER: usize = 9;
/// Lines at the most (2 GiB): a route takes a line at each level that it is alone at, 14 at the most.
const MAX_LINES: usize = 1 << 25;

/// A snapshot of the routes, for look-ups.
pub struct Fib6 {
    root: Vec<u32>,
    nodes: Vec<Line>,
}

/// A cache line of nodes: a node is one or more of these.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Line([u32; LINE]);

const _: () = assert!(size_of::<Line>() == 64 && HEADER < LINE);

impl Default for Fib6 {
    fn default() -> Self {
        Fib6 { root: vec![LEAF | NO_ROUTE; ROOT], nodes: vec![] }
    }
}

/// A route to be laid in: first address, length, next hop.
type Entry = (u128, u8, u32);

impl Fib6 {
    /// A snapshot of `routes`, in any order: prefix and index of the next hop, [`NO_ROUTE`] for a prefix that is to have
    /// none. Of routes with the same prefix the last one counts.
    pub fn build(routes: &[(Prefix6, u32)]) -> Result<Self, FibError> {
        Self::build_in(routes, &Heap)
    }

    /// The next hop for `addr` (host order), [`NO_ROUTE`] if there is none.
    #[inline]
    pub fn lookup(&self, addr: u128) -> u32 {
        let mut entry = self.root.get((addr >> 112) as usize).copied().unwrap_or(LEAF);
        let mut rest = addr << ROOT_BITS;
        while entry & LEAF == 0 {
            entry = step(&self.nodes, entry, rest);
            rest <<= 8;
        }
        entry & !LEAF
    }

    /// Looks up each of `addrs` (host order) and writes its next hop to the same place of `out`; as many as the shorter of
    /// the two has, and no more than a batch. All go down level by level, those that have arrived dropping out, and each node
    /// is fetched while the others of the level are looked at: so their cache misses overlap.
    #[inline]
    pub fn lookup_batch(&self, addrs: &[u128], out: &mut [u32]) {
        let Some(root) = self.root.first_chunk::<ROOT>() else { return };
        // Which addresses are still on the way, and the bits that are left of each.
        let mut going = [(0u8, 0u128); BATCH];
        let mut n = 0;
        for (i, (addr, out)) in addrs.iter().zip(&mut *out).take(BATCH).enumerate() {
            let entry = root[(addr >> 112) as usize];
            *out = entry & !LEAF;
            self.prefetch(entry);
            going[n] = (i as u8, addr << ROOT_BITS);
            n += usize::from(entry & LEAF == 0);
        }
        while n > 0 {
            let mut left = 0;
            for k in 0..n {
                let (i, rest) = going[k];
                let Some(out) = out.get_mut(usize::from(i)) else { continue };
                let entry = step(&self.nodes, *out, rest);
                *out = entry & !LEAF;
                self.prefetch(entry);
                going[left] = (i, rest << 8);
                left += usize::from(entry & LEAF == 0);
            }
            n = left;
        }
    }

    /// Starts to load the node that `entry` leads to; of a leaf, nothing that there is.
    #[inline(always)]
    fn prefetch(&self, entry: u32) {
        prefetch(self.nodes.as_ptr().wrapping_add(entry as usize).cast());
    }
}

impl LongestMatch<Ipv6Addr> for Fib6 {
    fn build_in(routes: &[(Prefix6, u32)], memory: &impl TableMemory) -> Result<Self, FibError> {
        let sorted = sorted(routes)?;
        let mut builder = Builder { nodes: Vec::new(), max_lines: MAX_LINES };
        let mut root = vec![LEAF | NO_ROUTE; ROOT];
        builder.lay(&sorted, 0, &mut root)?;
        // Now that it is known how many they are.
        let mut nodes = memory.vec(builder.nodes.len());
        nodes.clear();
        let bytes = builder.nodes.len() * size_of::<Line>();
        nodes.try_reserve_exact(builder.nodes.len()).map_err(|_| FibError::NoMemory { bytes })?;
        nodes.extend_from_slice(&builder.nodes);
        Ok(Fib6 { root, nodes })
    }

    #[inline(always)]
    fn lookup_batch(&self, dst: &[u128], hops: &mut [u32]) {
        self.lookup_batch(dst, hops);
    }

    fn longest_match(&self, addr: Ipv6Addr) -> u32 {
        self.lookup(addr.to_bits())
    }

    fn bytes(&self) -> usize {
        self.root.len() * size_of::<u32>() + self.nodes.len() * size_of::<Line>()
    }
}

/// One level down: the entry of the node at line `at` for the upper 8 bits of `rest`. What is no node is a leaf without a
/// route.
#[inline(always)]
fn step(nodes: &[Line], at: u32, rest: u128) -> u32 {
    let at = at as usize;
    let Some(Line(first)) = nodes.get(at) else { return LEAF };
    let index = (rest >> 120) as usize;
    let (word, bit) = (index / 64, index % 64);
    let bits = u64::from(first[2 * word]) | u64::from(first[2 * word + 1]) << 32;
    let before = first[8] >> (8 * word) & 0xff;
    // Bit `bit` and those below.
    let run = before + (bits << (63 - bit)).count_ones();
    let entry = HEADER - 1 + run as usize;
    nodes.get(at + entry / LINE).map_or(LEAF, |Line(words)| words[entry % LINE])
}

/// The routes by address, and short before long: so each comes behind those it is more specific than, and all that are
/// within a prefix are together. Of equal prefixes only the last one given is left: painting a wide one over and over would
/// cost without bound.
fn sorted(routes: &[(Prefix6, u32)]) -> Result<Vec<Entry>, FibError> {
    let mut sorted: Vec<Entry> = Vec::with_capacity(routes.len());
    for &(prefix, nexthop) in routes {
        if nexthop >= LEAF {
            return Err(FibError::NextHop { prefix: prefix.any(), nexthop });
        }
        sorted.push((prefix.addr().to_bits(), prefix.len(), nexthop));
    }
    // Stable.
    sorted.sort_by_key(|(addr, len, _)| (*addr, *len));
    sorted.dedup_by(|next, kept| {
        let same = (next.0, next.1) == (kept.0, kept.1);
        if same {
            kept.2 = next.2;
        }
        same
    });
    Ok(sorted)
}

/// The nodes so far.
struct Builder {
    nodes: Vec<Line>,
    max_lines: usize,
}

impl Builder {
    /// Lays `routes`, all within one prefix of `depth` bits and none shorter, into `entries`, which are for the bits that
    /// follow: those that end here as leaves, the others as nodes of their own.
    fn lay(&mut self, routes: &[Entry], depth: u8, entries: &mut [u32]) -> Result<(), FibError> {
        let bits = entries.len().ilog2() as u8;
        let (end, index) = (depth + bits, |addr: u128| (addr << depth >> (128 - bits)) as usize);
        for &(addr, len, nexthop) in routes.iter().filter(|(_, len, _)| *len <= end) {
            let first = index(addr);
            entries[first..first + (1 << (end - len))].fill(LEAF | nexthop);
        }
        for group in routes.chunk_by(|a, b| index(a.0) == index(b.0)) {
            // Those that end here are shorter, and so in front.
            let (at, short) = (index(group[0].0), group.partition_point(|(_, len, _)| *len <= end));
            if short < group.len() {
                entries[at] = self.node(&group[short..], end, entries[at])?;
            }
        }
        Ok(())
    }

    /// A node for `routes`, all of which are longer than `depth` and within one prefix of that length, where `outer` holds
    /// otherwise. Returns the entry that leads there.
    fn node(&mut self, routes: &[Entry], depth: u8, outer: u32) -> Result<u32, FibError> {
        let mut entries = [outer; 256];
        self.lay(routes, depth, &mut entries)?;
        let mut node = [0; HEADER + 256];
        let mut runs = 0;
        for (i, entry) in entries.iter().enumerate() {
            if i % 64 == 0 {
                // At most 192.
                node[8] |= (runs as u32) << (8 * (i / 64));
            }
            if i == 0 || *entry != entries[i - 1] {
                node[i / 32] |= 1 << (i % 32);
                node[HEADER + runs] = *entry;
                runs += 1;
            }
        }
        let (at, words) = (self.nodes.len(), &node[..HEADER + runs]);
        let lines = words.len().div_ceil(LINE);
        if at + lines > self.max_lines {
            return Err(FibError::TooLarge6);
        }
        let bytes = (at + lines) * size_of::<Line>();
        self.nodes.try_reserve(lines).map_err(|_| FibError::NoMemory { bytes })?;
        self.nodes.extend(words.chunks(LINE).map(|words| {
            let mut line = [0; LINE];
            line[..words.len()].copy_from_slice(words);
            Line(line)
        }));
        Ok(at as u32)
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "fib_tests.rs"]
mod tests;
