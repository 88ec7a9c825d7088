//! The per-thread cache of indices (the kernel's `napi_alloc_cache`): one array, refilled in bulk when
//! empty, its upper half-or-less flushed in bulk when full.
//!
//! Only its thread touches it. Invariant: the newest index is handed out first, because it is still in L1.
//!
//! The kernel's cache was first posted with two arrays, one to allocate from and one to free to.
//! That variant is there for comparison ([`CacheSizes::separate`]); the choice is made when a cache
//! is made, and falls on the paths for an array that is full or empty, which are out of line.

use std::sync::Arc;

use super::cache_stats::CacheStats;
use crate::sync::{HomeOwner, Kick, Pool};

/// Sizes of a cache: entries, and how many a refill and a flush move. The kernel's are 128 / 32 / 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Entries of the array.
    pub size: usize,
    /// Indices a refill brings at the most.
    pub refill: usize,
    /// Indices a flush takes away, the newest first.
    pub flush: usize,
    /// What is freed goes to a second array of this size, as the kernel's cache was first posted
    /// (January 2021). An allocation that finds the first array empty takes over the second, and
    /// only if that is empty too asks the pool.
    pub separate: bool,
}

impl CacheSizes {
    /// One array; the kernel's as merged in 2021 is `unified(64, 16, 32)`.
    pub const fn unified(size: usize, refill: usize, flush: usize) -> Self {
        CacheSizes { size, refill, flush, separate: false }
    }

    /// As good as no cache: each index comes from the pool, and goes back there, by itself.
    pub const OFF: CacheSizes = CacheSizes::unified(1, 1, 1);

    /// Two arrays of 64, as first posted.
    pub const SEPARATE: CacheSizes = CacheSizes { size: 64, refill: 64, flush: 64, separate: true };
}

impl Default for CacheSizes {
    fn default() -> Self {
        CacheSizes::unified(128, 32, 32)
    }
}

/// A last-in-first-out array of free indices.
pub struct IndexCache {
    len: usize,
    /// With so many there is no room for another without more ado: one less than there are slots.
    /// None at all if what is freed goes elsewhere.
    fill_to: usize,
    sizes: CacheSizes,
    slots: Box<[u32]>,
    /// What was freed, if that is [separate](CacheSizes::separate); what is to go to home `to`, if
    /// there are homes.
    freed: Vec<u32>,
    to: u32,
    /// Its own home, from which others send what they free.
    home: u32,
    owner: Option<HomeOwner>,
    stats: Arc<CacheStats>,
}

/// Indices that go home together.
const HOMEWARD: usize = 32;

impl IndexCache {
    /// An empty cache.
    ///
    /// # Panics
    /// If the sizes contradict each other (`refill` or `flush` of 0 or above `size`).
    pub fn new(sizes: CacheSizes) -> Self {
        assert!(
            (1..=sizes.size).contains(&sizes.refill) && (1..=sizes.size).contains(&sizes.flush),
            "cache sizes: expected 1 <= refill, flush <= size, got {sizes:?}"
        );
        let (fill_to, freed) = match sizes.separate {
            false => (sizes.size - 1, Vec::new()),
            true => (0, Vec::with_capacity(sizes.size)),
        };
        let (slots, stats) = (vec![0; sizes.size].into(), Arc::default());
        IndexCache { len: 0, fill_to, sizes, slots, freed, to: 0, home: 0, owner: None, stats }
    }

    /// An empty cache on `pool`, with a home of its own if the pool has homes.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn on(pool: &Pool, sizes: CacheSizes) -> Self {
        let mut cache =
            IndexCache::new(CacheSizes { separate: sizes.separate && pool.homes().is_none(), ..sizes });
        if let Some(homes) = pool.homes() {
            (cache.fill_to, cache.freed) = (0, Vec::with_capacity(HOMEWARD));
            if let Some((home, owner)) = homes.open() {
                (cache.home, cache.owner) = (home, Some(owner));
                cache.stats.home.set(home.into());
            }
        }
        cache
    }

    /// What it counts.
    pub fn stats(&self) -> &Arc<CacheStats> {
        &self.stats
    }

    /// How its thread is woken when much has come to its home.
    pub fn set_kick(&self, pool: &Pool, kick: &Kick) {
        if let Some(homes) = pool.homes() {
            homes.set_kick(self.home, Some(kick.clone()));
        }
    }

    /// Says in its counters how many it holds.
    pub fn note_cached(&self) {
        self.stats.cached.set(self.len() as u64);
    }

    /// Takes back what others sent to its home.
    #[inline(always)]
    pub fn purge(&mut self, pool: &Pool) {
        if self.owner.as_ref().is_some_and(HomeOwner::has_pending) {
            self.come_home(pool);
        }
    }

    #[cold]
    #[inline(never)]
    fn come_home(&mut self, pool: &Pool) {
        let Some(mut owner) = self.owner.take() else { return };
        let (mut chunk, mut n) = ([0; HOMEWARD], 0);
        owner.take(pool, |index| {
            chunk[n % HOMEWARD] = index;
            n += 1;
            if n % HOMEWARD == 0 {
                self.put(pool, &chunk);
            }
        });
        self.put(pool, &chunk[..n % HOMEWARD]);
        self.stats.came_home.add(n as u64);
        self.owner = Some(owner);
    }

    /// How many indices it holds.
    pub fn len(&self) -> usize {
        self.len + self.freed.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the newest index; refills from `pool` first if there is none.
    #[inline(always)]
    pub fn pop(&mut self, pool: &Pool) -> Option<u32> {
        if self.len == 0 {
            self.fill(pool);
        }
        let at = self.len.wrapping_sub(1);
        let index = *self.slots.get(at)?;
        self.len = at;
        Some(index)
    }

    /// Puts an index back; flushes to `pool` if that filled the cache.
    #[inline(always)]
    pub fn push(&mut self, pool: &Pool, index: u32) {
        match self.slots.get_mut(self.len) {
            Some(slot) if self.len < self.fill_to => {
                *slot = index;
                self.len += 1;
            }
            _ => self.push_full(pool, &[index]),
        }
    }

    /// The newest up to `n` indices, newest last, still in the cache; none only if `pool` is empty too.
    #[inline(always)]
    pub fn peek(&mut self, pool: &Pool, n: usize) -> &[u32] {
        if self.len == 0 {
            self.fill(pool);
        }
        // `len` never exceeds the array; `get` says so without a panic.
        self.slots.get(self.len - n.min(self.len)..self.len).unwrap_or_default()
    }

    /// Takes the newest `n` of those that were [peeked](Self::peek) at.
    #[inline(always)]
    pub fn consume(&mut self, n: usize) {
        self.len -= n.min(self.len);
    }

    /// Takes up to `out.len()` indices in one copy. Returns how many.
    #[inline]
    pub fn pop_bulk(&mut self, pool: &Pool, out: &mut [u32]) -> usize {
        let mut done = 0;
        while done < out.len() {
            if self.len == 0 && !self.fill(pool) {
                break;
            }
            let n = self.len.min(out.len() - done);
            out[done..done + n].copy_from_slice(&self.slots[self.len - n..self.len]);
            self.len -= n;
            done += n;
        }
        done
    }

    /// Puts `indices` back in one copy (more if they do not fit at once).
    #[inline]
    pub fn push_bulk(&mut self, pool: &Pool, indices: &[u32]) {
        let end = self.len + indices.len();
        match self.slots.get_mut(self.len..end) {
            Some(slots) if end <= self.fill_to => {
                slots.copy_from_slice(indices);
                self.len = end;
            }
            _ => self.push_full(pool, indices),
        }
    }

    /// The same if they fill the cache, or may have to go elsewhere.
    #[cold]
    #[inline(never)]
    fn push_full(&mut self, pool: &Pool, indices: &[u32]) {
        let Some(homes) = pool.homes() else { return self.put(pool, indices) };
        let home = self.home;
        let is_foreign = |index: &u32| ![0, home].contains(&homes.of(*index));
        if !indices.iter().any(is_foreign) {
            return self.put(pool, indices);
        }
        for index in indices {
            let to = homes.of(*index);
            if !is_foreign(index) {
                self.put(pool, &[*index]);
                continue;
            }
            if self.freed.len() == HOMEWARD || self.to != to {
                self.send_home(pool);
            }
            self.to = to;
            self.freed.push(*index);
        }
    }

    /// Sends what is to go home; what can't, stays here.
    fn send_home(&mut self, pool: &Pool) {
        let (Some(homes), false) = (pool.homes(), self.freed.is_empty()) else { return };
        let mut freed = std::mem::take(&mut self.freed);
        let deferred = homes.defer(pool, self.to, &freed);
        let kept = &freed[deferred.taken..];
        kept.iter().for_each(|index| homes.set(*index, self.home));
        self.put(pool, kept);
        self.stats.remote_frees.add(deferred.taken as u64);
        self.stats.local_at_limit.add(kept.len() as u64);
        self.stats.kicks.add(deferred.kick.into());
        freed.clear();
        self.freed = freed;
    }

    /// Gives up what is not in the array.
    fn let_go_of_freed(&mut self, pool: &Pool) {
        if pool.homes().is_some() {
            return self.send_home(pool);
        }
        self.freed.chunks(self.sizes.flush).for_each(|chunk| pool.push(chunk));
        self.freed.clear();
    }

    /// Puts indices back that are this cache's to have.
    fn put(&mut self, pool: &Pool, mut indices: &[u32]) {
        while !indices.is_empty() {
            let (n, full) = if self.sizes.separate {
                let n = indices.len().min(self.sizes.size - self.freed.len());
                self.freed.extend_from_slice(&indices[..n]);
                (n, self.freed.len() == self.sizes.size)
            } else {
                let n = indices.len().min(self.slots.len() - self.len);
                self.slots[self.len..self.len + n].copy_from_slice(&indices[..n]);
                self.len += n;
                (n, self.len == self.slots.len())
            };
            if full {
                self.flush(pool, self.sizes.flush);
            }
            indices = &indices[n..];
        }
    }

    /// If it holds more than `most`, gives back to `pool` all but half of that, the oldest first. Half: so that what goes back
    /// is in few chunks, however often this is called.
    #[inline(always)]
    pub fn trim(&mut self, pool: &Pool, most: usize) {
        if self.len > most || !self.freed.is_empty() {
            self.give_back(pool, most);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_back(&mut self, pool: &Pool, most: usize) {
        if self.len() <= most {
            return;
        }
        self.let_go_of_freed(pool);
        let n = self.len - self.len.min(most / 2);
        // In no more chunks than are full ones: what is left over makes these longer.
        let chunk = n.div_ceil((n / self.sizes.flush).max(1)).max(1);
        self.slots[..n].chunks(chunk).for_each(|chunk| pool.push(chunk));
        self.slots.copy_within(n..self.len, 0);
        self.len -= n;
        self.note_cached();
    }

    /// Gives everything back to `pool`, and its home up.
    pub fn drain(&mut self, pool: &Pool) {
        self.let_go_of_freed(pool);
        if let (Some(owner), Some(homes)) = (self.owner.take(), pool.homes()) {
            homes.set_kick(self.home, None);
            let mut all = Vec::new();
            owner.close(pool, |index| all.push(index));
            self.stats.came_home.add(all.len() as u64);
            all.chunks(HOMEWARD).for_each(|chunk| self.put(pool, chunk));
            self.home = 0;
            self.stats.home.set(0);
        }
        while self.len > 0 {
            self.flush_slots(pool, self.sizes.flush);
        }
    }

    #[cold]
    #[inline(never)]
    fn fill(&mut self, pool: &Pool) -> bool {
        self.purge(pool);
        if self.len > 0 {
            return true;
        }
        if self.sizes.separate && !self.freed.is_empty() {
            // The early refill: what was freed is as good as what the pool has, and nearer.
            self.len = self.freed.len();
            self.slots[..self.len].copy_from_slice(&self.freed);
            self.freed.clear();
            return true;
        }
        while self.len < self.sizes.refill {
            // A chunk may be larger than what is still wanted, never larger than the room for it: what
            // does not fit goes back.
            let mut over = Vec::new();
            let (len, slots, home) = (&mut self.len, &mut self.slots, self.home);
            let n = pool.pop(|index| match slots.get_mut(*len) {
                Some(slot) => {
                    if let Some(homes) = pool.homes() {
                        homes.set(index, home);
                    }
                    *slot = index;
                    *len += 1;
                }
                None => over.push(index),
            });
            if n == 0 {
                break;
            }
            pool.push(&over);
        }
        self.stats.refills.add(u64::from(self.len > 0));
        self.len > 0
    }

    #[cold]
    #[inline(never)]
    fn flush(&mut self, pool: &Pool, n: usize) {
        if self.sizes.separate {
            let from = self.freed.len().saturating_sub(n);
            pool.push(&self.freed[from..]);
            self.freed.truncate(from);
        } else {
            self.flush_slots(pool, n);
        }
        self.stats.flushes.add(1);
    }

    fn flush_slots(&mut self, pool: &Pool, n: usize) {
        let n = n.min(self.len);
        pool.push(&self.slots[self.len - n..self.len]);
        self.len -= n;
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// The 128th put flushes the 32 newest, leaving 96; an empty get loads 32.
    #[test]
    fn e15_flush_and_refill() {
        let pool = Pool::full(0, 32);
        let mut cache = IndexCache::new(CacheSizes::default());
        let pool = {
            drop(pool);
            let pool = Pool::full(256, 32);
            while pool.pop(|_| ()) > 0 {}
            pool
        };
        for i in 0..127 {
            cache.push(&pool, i);
        }
        assert_eq!((cache.len(), pool.free()), (127, 0));
        cache.push(&pool, 127);
        assert_eq!((cache.len(), pool.free()), (96, 32));
        let mut newest = vec![];
        pool.pop(|i| newest.push(i));
        assert_eq!(newest, (96..128).rev().collect::<Vec<_>>());
        pool.push(&newest);

        let mut empty = IndexCache::new(CacheSizes::default());
        assert!(empty.pop(&pool).is_some());
        assert_eq!((empty.len(), pool.free()), (31, 0));
        assert_eq!(IndexCache::new(CacheSizes::default()).pop(&pool), None);
    }

    /// The kernel's older sizes: size 64, put of the 64th frees 32; an empty get loads 16.
    #[test]
    fn e15_size_64() {
        let sizes = CacheSizes::unified(64, 16, 32);
        let pool = Pool::full(256, 16);
        let mut cache = IndexCache::new(sizes);
        let first = cache.pop(&pool).unwrap();
        assert_eq!(cache.len(), 15);
        cache.push(&pool, first);
        let mut more = [0; 47];
        let before = pool.free();
        while pool.pop(|_| ()) > 0 {}
        assert_eq!(before, 240);
        for (i, slot) in more.iter_mut().enumerate() {
            *slot = 100 + i as u32;
            cache.push(&pool, *slot);
        }
        assert_eq!(cache.len(), 63);
        cache.push(&pool, 200);
        assert_eq!((cache.len(), pool.free()), (32, 32));
    }

    /// As first posted: what is freed goes to an array of its own, which is all flushed when it is
    /// full, and taken over before the pool is asked.
    #[test]
    fn separate_arrays_refill_early() {
        let pool = Pool::full(256, 64);
        let mut cache = IndexCache::new(CacheSizes::SEPARATE);
        let mut out = [0; 64];
        assert_eq!(cache.pop_bulk(&pool, &mut out), 64);
        assert_eq!((cache.len(), pool.free()), (0, 192));
        cache.push_bulk(&pool, &out[..40]);
        cache.push(&pool, out[40]);
        assert_eq!((cache.len(), pool.free()), (41, 192));
        assert_eq!(cache.pop(&pool), Some(out[40]), "the early refill, newest first");
        assert_eq!((cache.len(), pool.free()), (40, 192));
        cache.push_bulk(&pool, &out[40..]);
        assert_eq!((cache.len(), pool.free()), (64, 192), "two arrays, neither full");
        let mut more = [0; 104];
        assert_eq!(cache.pop_bulk(&pool, &mut more), 104);
        assert_eq!((cache.len(), pool.free()), (24, 128), "what was left, what was freed, and a refill");
        cache.push_bulk(&pool, &more);
        assert_eq!((cache.len(), pool.free()), (24 + 40, 192), "64 of the 104 filled the array");
        cache.trim(&pool, 64);
        assert_eq!(cache.len(), 64, "no more than it may");
        cache.trim(&pool, 20);
        assert_eq!((cache.len(), pool.free()), (10, 246));
        cache.drain(&pool);
        let mut seen = vec![];
        while pool.pop(|i| seen.push(i)) > 0 {}
        seen.sort_unstable();
        assert_eq!((cache.is_empty(), seen), (true, (0..256).collect()));
    }

    #[test]
    fn a_cache_that_is_off_keeps_nothing() {
        let pool = Pool::full(64, 32);
        let mut cache = IndexCache::new(CacheSizes::OFF);
        let first = cache.pop(&pool).unwrap();
        assert_eq!((cache.len(), pool.free()), (0, 63));
        cache.push(&pool, first);
        assert_eq!((cache.len(), pool.free(), cache.pop(&pool)), (0, 64, Some(first)));
        let mut out = [0; 10];
        assert_eq!(cache.pop_bulk(&pool, &mut out), 10);
        cache.push_bulk(&pool, &out);
        assert_eq!((cache.len(), pool.free()), (0, 63));
    }

    #[test]
    fn a_trimmed_cache_keeps_the_newest() {
        let pool = Pool::full(300, 32);
        let mut cache = IndexCache::new(CacheSizes::default());
        let mut out = [0; 100];
        assert_eq!(cache.pop_bulk(&pool, &mut out), 100);
        cache.drain(&pool);
        cache.push_bulk(&pool, &out);
        cache.trim(&pool, 100);
        assert_eq!((cache.len(), pool.free()), (100, 200), "no more than it may");
        cache.trim(&pool, 99);
        assert_eq!((cache.len(), pool.free()), (49, 251));
        let mut oldest = vec![];
        assert_eq!(pool.pop(|index| oldest.push(index)), 51, "one chunk and a bit are one chunk");
        oldest.reverse();
        assert_eq!(oldest, out[..51]);
        pool.push(&oldest);
        let mut newest = [0; 49];
        cache.pop_bulk(&pool, &mut newest);
        assert_eq!(newest, out[51..]);
        cache.push_bulk(&pool, &newest);
        cache.trim(&pool, 0);
        let mut seen = vec![];
        while pool.pop(|i| seen.push(i)) > 0 {}
        seen.sort_unstable();
        assert_eq!((cache.len(), seen), (0, (0..300).collect()));
    }

    #[test]
    fn bulk_moves_across_refills_and_flushes() {
        let pool = Pool::full(300, 32);
        let mut cache = IndexCache::new(CacheSizes::default());
        let mut out = [0; 200];
        assert_eq!(cache.pop_bulk(&pool, &mut out), 200);
        let mut sorted = out.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 200);
        cache.push_bulk(&pool, &out);
        cache.drain(&pool);
        assert_eq!(pool.free(), 300);
        assert_eq!(cache.pop_bulk(&pool, &mut [0; 400]), 300);
    }
}
