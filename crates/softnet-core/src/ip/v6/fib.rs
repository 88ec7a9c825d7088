//! The FIB of IPv6: longest-prefix match of 128-bit destinations, for some hundred thousand routes,
//! built at once and changed route by route.
//!
//! A root of one entry for each value of an address's upper 16 bits, and **nodes** below it, each
//! for the next 8. An entry is a leaf (top bit set; the rest is the next hop and its prefix's
//! length) or says where a node is. Of a node's 256 entries runs of equal ones are kept once: a
//! bitmap says where runs begin, and counting its bits up to an index finds the entry. Prefixes of
//! 128 bits leave nearly all nodes with two or three runs, so a node is one cache line, where a
//! plain array would be sixteen. Every shorter prefix is written out over its range, so a look-up
//! never backtracks.
//!
//! In memory a node is four words of bitmap (of 64 bits), a word with the number of runs before each of them, and its
//! entries. It begins at a cache line's beginning, whatever allocator the lines are from: a node that straddled two would cost
//! two misses a level, and which it is would be the allocator's choice.
//!
//! A change writes the nodes on its way anew, in place as long as they take as many lines; else
//! elsewhere, and the lines that are left are for the next node of that size.
//!
//! As [`v4::fib`](super::super::v4::fib), any number of threads may look up a table that is not
//! changed meanwhile. Invariant: an entry without the leaf bit says where a node begins, which no
//! other entry says, and a node of the last level has only leaves.

use std::net::Ipv6Addr;

use super::super::family::{FibError, Leaf, LongestMatch, MAX_NEXT_HOPS};
use super::super::prefix::Prefix6;
use crate::memory::{Heap, TableMemory, copy, grow};
use crate::skb::{BATCH, prefetch};

/// Entries of the root.
const ROOT: usize = 1 << 16;
/// Bits that the root decides.
const ROOT_BITS: u8 = 16;
/// Marks an entry as a leaf.
const LEAF: u32 = Leaf::LEAF;
/// Words of a cache line.
const LINE: usize = 16;
/// Words of a node before its entries.
const HEADER: usize = 9;
/// Lines at the most (2 GiB): a route takes a line at each level that it is alone at, 14 at the most.
const MAX_LINES: usize = 1 << 25;

/// Lines of the largest node.
const NODE_LINES: usize = (HEADER + 256).div_ceil(LINE);
/// Nodes on the way of a prefix.
const LEVELS: usize = (128 - ROOT_BITS as usize) / 8;

/// See the [module](self).
pub struct Fib6 {
    root: Vec<u32>,
    nodes: Vec<Line>,
    /// Where there is room for nodes of so many lines.
    free: [Vec<u32>; NODE_LINES + 1],
}

/// A cache line of nodes: a node is one or more of these.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Line([u32; LINE]);

const _: () = assert!(size_of::<Line>() == 64 && HEADER < LINE);

impl Default for Fib6 {
    fn default() -> Self {
        Fib6 { root: vec![Leaf::NONE; ROOT], nodes: vec![], free: Default::default() }
    }
}

/// A route to be laid in: first address, length, next hop.
type Entry = (u128, u8, u32);

impl Fib6 {
    /// A snapshot of `routes`, in any order: prefix and index of the next hop, `NO_ROUTE` for a prefix that is to have
    /// none. Of routes with the same prefix the last one counts.
    pub fn build(routes: &[(Prefix6, u32)]) -> Result<Self, FibError> {
        Self::build_in(routes, &Heap)
    }

    /// The next hop for `addr` (host order), `NO_ROUTE` if there is none.
    #[inline]
    pub fn lookup(&self, addr: u128) -> u32 {
        Leaf::nexthop(self.leaf(addr))
    }

    #[inline]
    fn leaf(&self, addr: u128) -> u32 {
        let mut entry = self.root.get((addr >> 112) as usize).copied().unwrap_or(LEAF);
        let mut rest = addr << ROOT_BITS;
        while entry & LEAF == 0 {
            entry = step(&self.nodes, entry, rest);
            rest <<= 8;
        }
        entry
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
            *out = entry;
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
                *out = entry;
                self.prefetch(entry);
                going[left] = (i, rest << 8);
                left += usize::from(entry & LEAF == 0);
            }
            n = left;
        }
        for (out, _) in out.iter_mut().zip(addrs).take(BATCH) {
            *out = Leaf::nexthop(*out);
        }
    }

    /// Starts to load the node that `entry` leads to; of a leaf, nothing that there is.
    #[inline(always)]
    fn prefetch(&self, entry: u32) {
        prefetch(self.nodes.as_ptr().wrapping_add(entry as usize).cast());
    }

    /// Has `leaf` written over what is of up to `len` bits in the range of `prefix` where `entry`,
    /// which is for all of `depth` bits, is or leads. Returns what the entry is now.
    fn write(&mut self, entry: u32, depth: u8, prefix: (u128, u8), leaf: u32) -> u32 {
        let (addr, len) = prefix;
        if entry & LEAF != 0 && len <= depth {
            return if Leaf::is_within(entry, len) { leaf } else { entry };
        }
        let before = match entry & LEAF {
            0 => expand(&self.nodes, entry),
            _ => [entry; 256],
        };
        let (mut entries, end) = (before, depth + 8);
        let at = match len <= depth {
            true => 0..256,
            false => {
                let first = (addr << depth >> 120) as usize;
                first..first + (1 << end.saturating_sub(len).min(8))
            }
        };
        for below in &mut entries[at] {
            *below = self.write(*below, end, prefix, leaf);
        }
        if entries == before {
            return entry;
        }
        let old = (entry & LEAF == 0).then_some(entry);
        if entries[0] & LEAF != 0 && entries.iter().all(|other| *other == entries[0]) {
            self.give_back(old);
            return entries[0];
        }
        let (node, words) = compress(&entries);
        let lines = words.div_ceil(LINE);
        let at = match old {
            Some(at) if self.lines(at) == lines => at,
            _ => {
                self.give_back(old);
                self.take(lines)
            }
        };
        let place = &mut self.nodes[at as usize..at as usize + lines];
        place.iter_mut().zip(lines_of(&node[..words])).for_each(|(place, line)| *place = line);
        at
    }

    /// Lines of the node at `at`.
    fn lines(&self, at: u32) -> usize {
        let Line(first) = &self.nodes[at as usize];
        let runs: u32 = first[..8].iter().map(|word| word.count_ones()).sum();
        (HEADER + runs as usize).div_ceil(LINE)
    }

    fn give_back(&mut self, node: Option<u32>) {
        if let Some(at) = node {
            let lines = self.lines(at);
            self.free[lines].push(at);
        }
    }

    /// Room for a node of so many lines, which was made before.
    fn take(&mut self, lines: usize) -> u32 {
        self.free[lines].pop().unwrap_or_else(|| {
            let at = self.nodes.len();
            self.nodes.resize(at + lines, Line([0; LINE]));
            at as u32
        })
    }
}

/// The entries of the node at `at`.
fn expand(nodes: &[Line], at: u32) -> [u32; 256] {
    let at = at as usize;
    let Line(first) = nodes[at];
    let mut entry = HEADER - 1;
    std::array::from_fn(|i| {
        entry += (first[i / 32] >> (i % 32) & 1) as usize;
        nodes[at + entry / LINE].0[entry % LINE]
    })
}

/// A node of these entries, and the words that it takes.
fn compress(entries: &[u32; 256]) -> ([u32; HEADER + 256], usize) {
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
    (node, HEADER + runs)
}

/// These words in lines.
fn lines_of(words: &[u32]) -> impl Iterator<Item = Line> {
    words.chunks(LINE).map(|words| {
        let mut line = [0; LINE];
        line[..words.len()].copy_from_slice(words);
        Line(line)
    })
}

impl LongestMatch<Ipv6Addr> for Fib6 {
    fn build_in(routes: &[(Prefix6, u32)], memory: &impl TableMemory) -> Result<Self, FibError> {
        let sorted = sorted(routes)?;
        let mut builder = Builder { nodes: Vec::new(), max_lines: MAX_LINES };
        let mut root = vec![Leaf::NONE; ROOT];
        builder.lay(&sorted, 0, &mut root)?;
        // Now that it is known how many they are.
        let mut nodes = memory.vec(builder.nodes.len());
        nodes.clear();
        let bytes = builder.nodes.len() * size_of::<Line>();
        nodes.try_reserve_exact(builder.nodes.len()).map_err(|_| FibError::NoMemory { bytes })?;
        nodes.extend_from_slice(&builder.nodes);
        Ok(Fib6 { root, nodes, free: Default::default() })
    }

    fn copy_in(&self, memory: &impl TableMemory) -> Result<Self, FibError> {
        let nodes = copy(&self.nodes, self.nodes.len() + self.nodes.len() / 8, memory);
        let nodes = nodes.map_err(|bytes| FibError::NoMemory { bytes })?;
        Ok(Fib6 { root: self.root.clone(), nodes, free: self.free.clone() })
    }

    fn put(
        &mut self,
        prefix: Prefix6,
        of_len: u8,
        nexthop: u32,
        memory: &impl TableMemory,
    ) -> Result<(), FibError> {
        check(prefix, nexthop)?;
        // Nodes on the way may grow; those below it have no more runs than before.
        const MORE: usize = LEVELS * NODE_LINES;
        if self.nodes.len() + MORE > MAX_LINES {
            return Err(FibError::TooLarge6);
        }
        grow(&mut self.nodes, MORE, memory).map_err(|bytes| FibError::NoMemory { bytes })?;
        let (addr, len) = (prefix.addr().to_bits(), prefix.len());
        let first = (addr >> 112) as usize;
        for i in first..first + (ROOT >> len.min(ROOT_BITS)) {
            self.root[i] = self.write(self.root[i], ROOT_BITS, (addr, len), Leaf::of(of_len, nexthop));
        }
        Ok(())
    }

    #[inline(always)]
    fn lookup_batch(&self, dst: &[u128], hops: &mut [u32]) {
        self.lookup_batch(dst, hops);
    }

    fn longest_match(&self, addr: Ipv6Addr) -> u32 {
        self.lookup(addr.to_bits())
    }

    fn matched_len(&self, addr: Ipv6Addr) -> u8 {
        Leaf::prefix_len(self.leaf(addr.to_bits()))
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
        check(prefix, nexthop)?;
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

fn check(prefix: Prefix6, nexthop: u32) -> Result<(), FibError> {
    match nexthop < MAX_NEXT_HOPS {
        true => Ok(()),
        false => Err(FibError::NextHop { prefix: prefix.any(), nexthop }),
    }
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
            entries[first..first + (1 << (end - len))].fill(Leaf::of(len, nexthop));
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
        let (node, words) = compress(&entries);
        let (at, lines) = (self.nodes.len(), words.div_ceil(LINE));
        if at + lines > self.max_lines {
            return Err(FibError::TooLarge6);
        }
        let bytes = (at + lines) * size_of::<Line>();
        self.nodes.try_reserve(lines).map_err(|_| FibError::NoMemory { bytes })?;
        self.nodes.extend(lines_of(&node[..words]));
        Ok(at as u32)
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "fib_tests.rs"]
mod tests;
