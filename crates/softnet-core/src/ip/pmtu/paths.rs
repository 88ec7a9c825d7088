//! The set of paths that take less than their first link, as senders look in it: without a lock,
//! and for one load and a comparison as long as no packet is longer than what every path is known
//! to take.
//!
//! One word for each path: what is left of its destination's keyed hash, and its limit. So a reader
//! sees a path as it was at some moment, and never one path's limit for another; of two
//! destinations in 2^48 it takes one for the other, which then has its longest datagrams cut. A
//! word's place follows from the rest of the hash; where all places of a set are taken the writer
//! gives up what expires first. There is one writer, [`PmtuCache`](super::PmtuCache), which also
//! takes out what has expired: readers need no clock.
//!
//! Invariant: `least` is at most the least limit of all paths in the set. It is lowered after the
//! path was put in, so that a reader that finds it lowered finds the path; and raised after the path was
//! taken out.

use std::hash::Hasher;

use crate::fold::FoldKey;
use crate::sock::key::Addr;
use crate::sync::{AtomicU32, AtomicU64, Mutant, Ordering, mutated, weakened};

/// Places of a set: a cache line.
const WAYS: usize = if cfg!(feature = "loom") { 1 } else { 8 };
/// A power of two.
const SETS: usize = if cfg!(feature = "loom") { 2 } else { 256 };

/// Paths at the most.
pub(super) const PLACES: usize = WAYS * SETS;

/// That no path takes less than its first link.
const NONE: u32 = u32::MAX;

/// The set of lowered path MTUs. Looked up per packet, without a lock.
pub struct PathMtus {
    key: FoldKey,
    /// Packets of no more than so many bytes fit every path.
    least: AtomicU32,
    sets: Box<[Set]>,
}

#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// A path's word: 48 bits of the hash, and 16 of the limit. 0: none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(hash: u64, limit: u16) -> Self {
        Word(hash & !0xffff | u64::from(limit))
    }

    fn limit(self) -> u16 {
        self.0 as u16
    }

    fn is_of(self, hash: u64) -> bool {
        self.0 != 0 && (self.0 ^ hash) >> 16 == 0
    }
}

impl PathMtus {
    pub(super) fn new(key: FoldKey) -> Self {
        let set = |_| Set([const { 0 }; WAYS].map(AtomicU64::new));
        PathMtus { key, least: AtomicU32::new(NONE), sets: (0..SETS).map(set).collect() }
    }

    /// Whether a packet of `len` bytes to `dst`, from the IP header on, is known to be too long for
    /// the path there.
    #[inline(always)]
    pub fn is_too_long(&self, dst: Addr, len: usize) -> bool {
        self.is_for_some(len) && self.limit(dst).is_some_and(|limit| len > limit.into())
    }

    /// Whether a packet of `len` bytes is too long for any path in the set.
    #[inline(always)]
    pub(super) fn is_for_some(&self, len: usize) -> bool {
        // Acquire: the path that it was lowered for is found.
        len > self.least.load(Ordering::Acquire) as usize
    }

    /// What the path to `dst` is known to take, if that is less than its first link does.
    #[cold]
    pub fn limit(&self, dst: Addr) -> Option<u16> {
        let hash = self.hash(dst);
        let mut words = self.set(hash).0.iter().map(|word| Word(word.load(Ordering::Relaxed)));
        words.find(|word| word.is_of(hash)).map(Word::limit)
    }

    fn hash(&self, dst: Addr) -> u64 {
        self.key.hash(|hasher| hasher.write_u128(dst))
    }

    fn number(hash: u64) -> usize {
        hash as usize % SETS
    }

    fn set(&self, hash: u64) -> &Set {
        &self.sets[Self::number(hash)]
    }

    /// The places that `dst` may have, and that which it has. For the writer, as all that follows.
    pub(super) fn places(&self, dst: Addr) -> (std::ops::Range<usize>, Option<usize>) {
        let hash = self.hash(dst);
        let first = Self::number(hash) * WAYS;
        let has = self.set(hash).0.iter().position(|word| Word(word.load(Ordering::Relaxed)).is_of(hash));
        (first..first + WAYS, has.map(|way| first + way))
    }

    fn place(&self, at: usize) -> Option<&AtomicU64> {
        self.sets.get(at / WAYS)?.0.get(at % WAYS)
    }

    /// Puts the path to `dst` at `at`, one of its places, instead of what is there.
    pub(super) fn put(&self, at: usize, dst: Addr, limit: u16) {
        let Some(place) = self.place(at) else { return };
        let lower = || {
            let least = self.least.load(Ordering::Relaxed).min(limit.into());
            self.least.store(least, weakened(Mutant::PathRelaxed, Ordering::Release));
        };
        if mutated(Mutant::PathLate) {
            lower();
        }
        place.store(Word::new(self.hash(dst), limit).0, Ordering::Relaxed);
        lower();
    }

    /// Takes out what is at `at`. To be followed by [`raise`](Self::raise).
    pub(super) fn clear(&self, at: usize) {
        if let Some(place) = self.place(at) {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// Looks anew what every path takes.
    pub(super) fn raise(&self) {
        let words = self.sets.iter().flat_map(|set| &set.0).map(|word| Word(word.load(Ordering::Relaxed)));
        let least = words.filter(|word| word.0 != 0).map(|word| word.limit().into()).min();
        self.least.store(least.unwrap_or(NONE), Ordering::Release);
    }
}
