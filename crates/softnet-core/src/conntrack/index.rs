//! The index of a table: from a hash to the identifiers of what may have it, without locks.
//!
//! An identifier stands with a tag of the hash in one of the sixteen slots of a cache line, or, if
//! those were taken, of a second line; either half of a line is compared at once, and the half that
//! the hash says is looked at first. Of those few that find no place there it is counted that there
//! are any, and only then are two more lines looked at. Any thread may call it. Invariant: a slot
//! is written by compare-exchange only, so that each insertion is undone by one removal. What an
//! identifier stands for may be another than that which had the hash: the caller compares.

use crate::memory::TableMemory;
use crate::skb::prefetch;
use crate::sync::{AtomicU32, AtomicU64, Mutant, Ordering, weakened};

/// Words of half a line; a word is two slots.
const WORDS: usize = 4;
/// Slots of a line.
const SLOTS: usize = 4 * WORDS;
/// Bits of an identifier; above them is the tag.
const ID_BITS: u32 = 24;
/// The most identifiers that there can be.
pub(crate) const MAX_IDS: u32 = 1 << ID_BITS;

#[repr(align(64))]
struct Line([[AtomicU64; WORDS]; 2]);

/// See the [module](self).
pub(crate) struct Index {
    lines: Box<[Line]>,
    /// Identifiers in the third and fourth line of their hash.
    deep: AtomicU32,
}

/// Halves of the two lines that are always looked at, and of all.
const SHALLOW: usize = 4;
const ALL: usize = 8;

/// Lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// Where the tags of a word's two slots are.
const TAGS: u64 = 0xff00_0000_ff00_0000;

/// The tag of a hash, never 0.
#[inline(always)]
fn tag(hash: u64) -> u64 {
    (hash & 0xff).max(1)
}

/// Which slots of a half may have a tag: the highest bit of a byte for each, byte `w` for the lower
/// slot of word `w` and byte `4 + w` for the upper. The lowest bit that is set is right; one above it
/// may be of a tag that differs by one.
#[inline(always)]
fn matches([a, b, c, d]: [u64; WORDS], tag: u64) -> u64 {
    let tags = (a & TAGS) >> 24 | (b & TAGS) >> 16 | (c & TAGS) >> 8 | d & TAGS;
    let other = tags ^ (tag * ONES);
    other.wrapping_sub(ONES) & !other & ONES << 7
}

/// The identifier in the slot that is the lowest bit of `found`, by now.
#[inline(always)]
fn id_of(half: &[AtomicU64; WORDS], found: u64) -> u32 {
    let slot = found.trailing_zeros() as usize / 8;
    (half[slot % WORDS].load(slot_ordering()) >> (slot / WORDS * 32)) as u32 & (MAX_IDS - 1)
}

#[inline(always)]
fn slot_ordering() -> Ordering {
    weakened(Mutant::SlotRelaxed, Ordering::Acquire)
}

#[inline(always)]
fn load(half: &[AtomicU64; WORDS]) -> [u64; WORDS] {
    let word = |at: usize| half[at].load(slot_ordering());
    [word(0), word(1), word(2), word(3)]
}

impl Index {
    /// For `ids` identifiers, of which half would fill it.
    pub(crate) fn new(ids: u32, memory: &impl TableMemory) -> Self {
        let lines = (2 * ids as usize).div_ceil(SLOTS).max(1);
        let half = || [0; WORDS].map(AtomicU64::new);
        let lines = memory.filled(lines, || Line([half(), half()]));
        Index { lines, deep: AtomicU32::new(0) }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// The number of the line that a hash says, by its upper half.
    #[inline(always)]
    fn at(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// The halves that a hash may be in, first ones first.
    #[inline(always)]
    fn half(&self, hash: u64, nth: usize) -> &[AtomicU64; WORDS] {
        let hash = match nth / 2 {
            0 => hash,
            line => hash.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (line as u64) << 3),
        };
        let at = self.at(hash);
        &self.lines[at].0[(hash >> 8) as usize & 1 ^ nth & 1]
    }

    /// Starts to load what a look-up of `hash` looks at.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(std::ptr::from_ref(&self.lines[self.at(hash)]).cast());
    }

    /// An identifier with this hash's tag, if there is one where it is looked for first.
    #[inline(always)]
    pub(crate) fn first(&self, hash: u64) -> Option<u32> {
        let half = self.half(hash, 0);
        let found = matches(load(half), tag(hash));
        (found != 0).then(|| id_of(half, found))
    }

    /// The first identifier with this hash's tag of which `is` says so.
    pub(crate) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        for nth in 0..self.depth() {
            let half = self.half(hash, nth);
            let mut found = matches(load(half), tag(hash));
            while found != 0 {
                let id = id_of(half, found);
                if is(id) {
                    return Some(id);
                }
                found &= found - 1;
            }
        }
        None
    }

    /// Halves that a look-up looks at.
    fn depth(&self) -> usize {
        if self.deep.load(Ordering::Relaxed) == 0 { SHALLOW } else { ALL }
    }

    /// Puts `id` in, unless there is no room for it.
    #[must_use]
    pub(crate) fn insert(&self, hash: u64, id: u32) -> bool {
        let value = value(hash, id);
        if self.replace(hash, 0..SHALLOW, 0, value) {
            return true;
        }
        // Before it can be looked for.
        self.deep.fetch_add(1, Ordering::Relaxed);
        let done = self.replace(hash, SHALLOW..ALL, 0, value);
        if !done {
            self.deep.fetch_sub(1, Ordering::Relaxed);
        }
        done
    }

    /// Takes `id` out.
    pub(crate) fn remove(&self, hash: u64, id: u32) -> bool {
        let value = value(hash, id);
        if self.replace(hash, 0..SHALLOW, value, 0) {
            return true;
        }
        let done = self.depth() == ALL && self.replace(hash, SHALLOW..ALL, value, 0);
        if done {
            self.deep.fetch_sub(1, Ordering::Relaxed);
        }
        done
    }

    /// Writes `to` to the first slot of these halves that is `from`, if there is one.
    fn replace(&self, hash: u64, halves: std::ops::Range<usize>, from: u32, to: u32) -> bool {
        for word in halves.flat_map(|nth| self.half(hash, nth)) {
            let mut now = word.load(Ordering::Relaxed);
            loop {
                let new = match [now as u32, (now >> 32) as u32] {
                    [low, high] if low == from => u64::from(high) << 32 | u64::from(to),
                    [low, high] if high == from => u64::from(to) << 32 | u64::from(low),
                    _ => break,
                };
                match word.compare_exchange_weak(now, new, Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => return true,
                    Err(other) => now = other,
                }
            }
        }
        false
    }
}

#[inline(always)]
fn value(hash: u64, id: u32) -> u32 {
    debug_assert!(id < MAX_IDS);
    (tag(hash) as u32) << ID_BITS | id
}

/// A stack of free indices, linked by the elements themselves, and those that were never used.
pub(crate) struct FreeList {
    /// A tag against ABA, and the first one.
    top: AtomicU64,
    /// The first one that was never used.
    fresh: AtomicU32,
    capacity: u32,
}

const NIL: u32 = u32::MAX;

impl FreeList {
    /// Of `0..capacity`.
    pub(crate) fn new(capacity: u32) -> Self {
        FreeList { top: AtomicU64::new(NIL.into()), fresh: AtomicU32::new(0), capacity }
    }

    /// How many were ever used: all of them below this.
    pub(crate) fn used(&self) -> u32 {
        self.fresh.load(Ordering::Relaxed).min(self.capacity)
    }

    /// Takes one, whose link `next` gives.
    pub(crate) fn pop<'a>(&self, next: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        while top as u32 != NIL {
            let first = top as u32;
            // May be a link of another list by now; the tag makes the exchange fail then.
            let below = next(first).load(Ordering::Relaxed);
            match self.top.compare_exchange_weak(top, step(top, below), Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(first),
                Err(now) => top = now,
            }
        }
        let mut fresh = self.fresh.load(Ordering::Relaxed);
        while fresh < self.capacity {
            match self.fresh.compare_exchange_weak(fresh, fresh + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(fresh),
                Err(now) => fresh = now,
            }
        }
        None
    }

    /// Gives one back.
    pub(crate) fn push<'a>(&self, index: u32, next: impl Fn(u32) -> &'a AtomicU32) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            next(index).store(top as u32, Ordering::Relaxed);
            match self.top.compare_exchange_weak(top, step(top, index), Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// What replaces `top` when `first` becomes the first one.
fn step(top: u64, first: u32) -> u64 {
    ((top >> 32).wrapping_add(1) & 0xffff_ffff) << 32 | u64::from(first)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::Heap;

    proptest! {
        /// The comparison of all slots at once finds each that one by one does, and the lowest is right.
        #[test]
        fn tags_are_found(tags in prop::array::uniform8(0u8..4), ids in prop::array::uniform8(0..MAX_IDS), want in 1u8..4) {
            let slot = |i: usize| u64::from(u32::from(tags[i]) << ID_BITS | ids[i]);
            let words: [u64; WORDS] = std::array::from_fn(|w| slot(w) | slot(4 + w) << 32);
            let half = words.map(AtomicU64::new);
            let found = matches(words, u64::from(want));
            let first = tags.iter().position(|tag| *tag == want);
            prop_assert_eq!((found != 0).then(|| found.trailing_zeros()), first.map(|i| 8 * i as u32 + 7));
            for (i, (tag, id)) in tags.iter().zip(ids).enumerate() {
                let bit = 1 << (8 * i + 7);
                match found & bit != 0 {
                    true => {
                        prop_assert!(*tag == want || *tag == want ^ 1);
                        prop_assert_eq!(id_of(&half, bit), id);
                    }
                    false => prop_assert!(*tag != want),
                }
            }
            prop_assert_eq!(found & !(ONES << 7), 0);
        }

        /// Beside a model: what was put in and not taken out is found, whatever came and went.
        #[test]
        fn what_is_in_is_found(steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u32..8), 1..200)) {
            let index = Index::new(64, &Heap);
            let hash = |n: u64| n.wrapping_mul(0xd6e8_feb8_6659_fd93);
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (insert, n, id) in steps {
                let at = model.iter().position(|element| *element == (n, id));
                if insert {
                    if index.insert(hash(n), id) {
                        model.push((n, id));
                    }
                } else {
                    prop_assert!(index.remove(hash(n), id) || at.is_none());
                    at.map(|at| model.swap_remove(at));
                }
                for (n, id) in &model {
                    prop_assert_eq!(index.find(hash(*n), |found| found == *id), Some(*id));
                }
            }
        }
    }

    /// Half full, the table takes all: and a slot is not wasted by those that came and went.
    #[test]
    fn there_is_room_for_all() {
        let n = 1u32 << 20;
        let index = Index::new(n, &Heap);
        let hash = |id: u32| {
            u64::from(id)
                .wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(31)
                .wrapping_mul(0xd6e8_feb8_6659_fd93)
        };
        for _ in 0..3 {
            let refused = (0..n).filter(|id| !index.insert(hash(*id), *id)).count();
            assert_eq!(refused, 0);
            assert!((0..n).all(|id| index.find(hash(id), |found| found == id) == Some(id)));
            assert!((0..n).all(|id| index.remove(hash(id), id)));
            assert_eq!(index.deep.load(Ordering::Relaxed), 0);
        }
        assert!(
            index
                .lines
                .iter()
                .flat_map(|line| line.0.iter().flatten())
                .all(|w| w.load(Ordering::Relaxed) == 0)
        );
    }

    #[test]
    fn each_free_index_is_taken_once() {
        let links: Vec<_> = (0..5).map(|_| AtomicU32::new(0)).collect();
        let link = |i: u32| &links[i as usize];
        let list = FreeList::new(5);
        let mut all: Vec<_> = std::iter::from_fn(|| list.pop(link)).collect();
        assert_eq!((&all[..], list.used()), (&[0, 1, 2, 3, 4][..], 5));
        all.iter().for_each(|i| list.push(*i, link));
        all = std::iter::from_fn(|| list.pop(link)).collect();
        assert_eq!(all, [4, 3, 2, 1, 0]);
    }
}
