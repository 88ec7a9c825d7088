//! The shared pool behind the per-thread caches: a lock-free stack of chunks of indices.
//!
//! Any thread may call it. A chunk is a chain of up to a bulk's worth of indices; chunks are pushed and popped
//! whole, by one compare-exchange on a word of (tag, first index). The tag changes with every success,
//! so a pop that read a stale link fails (no ABA). Links live in side tables, never in packet memory, so
//! a stray write to a freed frame cannot corrupt the pool.
//!
//! Invariant: an index is in at most one of {pool, one cache, one handle}.

use crate::sync::{AtomicU32, AtomicU64, Homes, Links, Mutant, Ordering, mutated, weakened};

const NIL: u32 = u32::MAX;

/// A lock-free pool of the indices `0..n`.
pub struct Pool {
    top: AtomicU64,
    free: AtomicU64,
    next: Box<[AtomicU32]>,
    next_chunk: Box<[AtomicU32]>,
    /// Where indices go that other threads free than took them, if not just anywhere.
    homes: Option<Homes>,
}

/// An index that is not in the pool may be on another list, through the same table.
impl Links for Pool {
    // Relaxed: the word of the list orders a link with the index it belongs to.
    #[inline(always)]
    fn set_next(&self, i: u32, next: u32) {
        self.next[i as usize].store(next, Ordering::Relaxed);
    }

    #[inline(always)]
    fn next(&self, i: u32) -> u32 {
        self.next[i as usize].load(Ordering::Relaxed)
    }
}

fn word(tag: u64, index: u32) -> u64 {
    tag << 32 | u64::from(index)
}

/// What replaces `top` when chunk `first` becomes the top one.
fn successor(top: u64, first: u32) -> u64 {
    let step = if mutated(Mutant::PoolNoTag) { 0 } else { 1 };
    word((top >> 32).wrapping_add(step), first)
}

impl Pool {
    /// A pool of the indices `0..n` that holds none of them.
    pub fn empty(n: u32) -> Self {
        let table = || (0..n).map(|_| AtomicU32::new(NIL)).collect();
        Pool {
            top: AtomicU64::new(word(0, NIL)),
            free: AtomicU64::new(0),
            next: table(),
            next_chunk: table(),
            homes: None,
        }
    }

    /// A pool that holds every index of `0..n`, in chunks of `bulk`.
    pub fn full(n: u32, bulk: u32) -> Self {
        let pool = Pool::empty(n);
        let all: Vec<u32> = (0..n).rev().collect();
        for chunk in all.chunks(bulk.max(1) as usize) {
            pool.push(chunk);
        }
        pool
    }

    /// The same, with homes for what threads take from it, each for less than `limit`.
    pub fn with_homes(self, limit: u32) -> Self {
        Pool { homes: Some(Homes::new(self.size(), limit)), ..self }
    }

    /// Its homes, if it has any.
    pub fn homes(&self) -> Option<&Homes> {
        self.homes.as_ref()
    }

    /// How many indices the pool holds. Exact when no other thread is in it.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// How many indices there are in all.
    pub fn size(&self) -> u32 {
        self.next.len() as u32
    }

    /// Gives `chunk` back. Its last element is the first that a later pop hands out.
    pub fn push(&self, chunk: &[u32]) {
        let Some((&first, rest)) = chunk.split_last() else { return };
        let mut last = first;
        for &index in rest.iter().rev() {
            self.next[last as usize].store(index, Ordering::Relaxed);
            last = index;
        }
        self.next[last as usize].store(NIL, Ordering::Relaxed);
        // Before the chunk can be popped, so that the count is never below what pops take from it.
        self.free.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        // Release: the chain's links must be visible to the thread that pops it.
        let order = weakened(Mutant::PoolPushRelaxed, Ordering::Release);
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            self.next_chunk[first as usize].store(top as u32, Ordering::Relaxed);
            let new = successor(top, first);
            match self.top.compare_exchange_weak(top, new, order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
    }

    /// Takes one chunk, and hands each of its indices to `take`. Returns how many there were, 0 if the pool
    /// is empty.
    pub fn pop(&self, mut take: impl FnMut(u32)) -> usize {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let first = top as u32;
            if first == NIL {
                return 0;
            }
            // May read a link that changes under us; the tag makes the exchange fail then.
            let below = self.next_chunk[first as usize].load(Ordering::Relaxed);
            let new = successor(top, below);
            match self.top.compare_exchange_weak(top, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        let (mut index, mut n) = (top as u32, 0);
        while index != NIL {
            let next = self.next[index as usize].load(Ordering::Relaxed);
            take(index);
            n += 1;
            index = next;
        }
        self.free.fetch_sub(n as u64, Ordering::Relaxed);
        n
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn hands_out_every_index_once() {
        let pool = Pool::full(100, 32);
        let mut seen = [false; 100];
        while pool.pop(|i| assert!(!std::mem::replace(&mut seen[i as usize], true))) > 0 {}
        assert!(seen.iter().all(|s| *s));
        assert_eq!(pool.free(), 0);
    }

    #[test]
    fn chunk_comes_back_whole_newest_first() {
        let pool = Pool::full(0, 32);
        assert_eq!(pool.pop(|_| unreachable!()), 0);
        let pool = Pool::full(64, 32);
        let mut got = vec![];
        while pool.pop(|i| got.push(i)) > 0 {}
        pool.push(&[7, 8, 9]);
        pool.push(&[1]);
        let mut got = vec![];
        assert_eq!(pool.pop(|i| got.push(i)), 1);
        assert_eq!(pool.pop(|i| got.push(i)), 3);
        assert_eq!(got, [1, 9, 8, 7]);
    }

    #[test]
    fn threads_lose_nothing() {
        let pool = std::sync::Arc::new(Pool::full(256, 32));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let pool = pool.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut chunk = vec![];
                        pool.pop(|i| chunk.push(i));
                        let (a, b) = chunk.split_at(chunk.len() / 2);
                        pool.push(a);
                        pool.push(b);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let mut seen = [false; 256];
        while pool.pop(|i| assert!(!std::mem::replace(&mut seen[i as usize], true))) > 0 {}
        assert!(seen.iter().all(|s| *s));
    }
}

#[cfg(all(test, feature = "loom"))]
#[allow(unsafe_code)]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync::{UnsafeCell, check, must_fail};

    /// What an index stands for.
    struct Value(UnsafeCell<u32>);

    // SAFETY: loom stops the model at the first access that nothing orders.
    unsafe impl Sync for Value {}

    /// One thread takes two indices and gives the first back, while another takes one and gives it back. The thread
    /// that has an index writes to what it stands for. Afterwards every index is in one place.
    fn take_and_give() {
        let shared = Arc::new((Pool::full(3, 1), [0; 3].map(|v| Value(UnsafeCell::new(v)))));
        let take = |shared: &(Pool, [Value; 3])| {
            let mut index = NIL;
            assert_eq!(shared.0.pop(|i| index = i), 1);
            // SAFETY: as above.
            shared.1[index as usize].0.with_mut(|value| unsafe { *value += 1 });
            index
        };
        let other = thread::spawn({
            let shared = shared.clone();
            move || {
                let index = take(&shared);
                shared.0.push(&[index]);
            }
        });
        let (first, second) = (take(&shared), take(&shared));
        shared.0.push(&[first]);
        other.join().unwrap();
        let mut all = vec![second];
        while shared.0.pop(|index| all.push(index)) > 0 {}
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!(shared.0.free(), 0);
    }

    #[test]
    fn an_index_is_in_one_place() {
        check(3, take_and_give);
        must_fail(Mutant::PoolNoTag, 3, take_and_give);
        must_fail(Mutant::PoolPushRelaxed, 3, take_and_give);
    }
}
