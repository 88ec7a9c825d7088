//! What thread contexts may keep of packet memory while they do not use it.
//!
//! A context caches free heads and frames for its thread alone. A thread that blocks, or has ceased to call, would keep them
//! from all others, and threads of applications are as many as these like. So the context of such a thread keeps no more than a
//! *share* between two calls, the smaller the more contexts there are; before the thread blocks, no more than one refill, and
//! nothing while memory is short. The stack's own threads, which are few, give back before they sleep while memory is short.
//!
//! Any thread may call it. Invariant: contexts of applications that are not in a call hold less than half of the frames (with
//! caches of 128: two sevenths), whatever their number, and if each was in a call since the last was made, a 16th.

use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_core::sync::{AtomicUsize, Ordering};

/// Of packet memory, what all contexts of applications may keep: one part of so many.
const PARTS: u32 = 16;
/// Memory is short when less than one part of so many is free.
const SHORT: u64 = 8;
/// What a context keeps of each kind while its thread is blocked.
const BLOCKED: usize = 32;

/// See the module.
pub(crate) struct CacheShare {
    /// What all keep.
    part: usize,
    /// What each keeps.
    share: AtomicUsize,
}

impl CacheShare {
    /// Of a region of `frames` frames.
    pub(crate) fn new(frames: u32) -> Self {
        let part = (frames / PARTS) as usize;
        CacheShare { part, share: AtomicUsize::new(part) }
    }

    /// There are `contexts` now.
    pub(crate) fn divide(&self, contexts: usize) {
        self.share.store(share(self.part, contexts), Ordering::Relaxed);
    }

    /// At the end of an application's call: `ctx` keeps its share.
    #[inline(always)]
    pub(crate) fn after_call(&self, ctx: &mut SoftnetData) {
        ctx.purge_deferred();
        ctx.trim(self.share.load(Ordering::Relaxed));
    }

    /// An application's thread is about to block.
    pub(crate) fn before_wait(&self, ctx: &mut SoftnetData) {
        ctx.purge_deferred();
        let share = self.share.load(Ordering::Relaxed).min(BLOCKED);
        let most = if is_short(ctx.region()) { 0 } else { share };
        ctx.trim(most);
        ctx.note_cached();
    }

    /// A thread of the stack is about to sleep.
    pub(crate) fn before_sleep(ctx: &mut SoftnetData) {
        ctx.purge_deferred();
        if is_short(ctx.region()) {
            ctx.trim(0);
        }
    }
}

/// Of `part`, what each of so many may keep: a power of two, so that it changes seldom.
fn share(part: usize, contexts: usize) -> usize {
    (part / contexts.max(1)).checked_ilog2().map_or(0, |log| 1 << log)
}

fn is_short(region: &Region) -> bool {
    let is_short = |free: u64, all: u32| free * SHORT < u64::from(all);
    is_short(region.frames_free(), region.frame_count()) || is_short(region.heads_free(), region.head_count())
}

#[cfg(test)]
mod tests {
    use softnet_core::skb::{CacheSizes, HeapMemory};

    use super::*;

    /// Contexts that are made one after the other, each of which keeps what it may at that time.
    #[test]
    fn however_many_there_are_they_keep_a_part() {
        for (frames, cache, sevenths) in
            [(1024, 128, 2), (16384, 128, 2), (524_288, 128, 2), (16384, 4096, 3)]
        {
            let part = (frames / PARTS) as usize;
            let mut kept = 0;
            for contexts in 1..100_000 {
                let share = share(part, contexts);
                assert!(
                    share * contexts <= part && 2 * share.max(1) * contexts > part.min(contexts),
                    "{contexts}"
                );
                kept += share.min(cache);
                assert!(
                    kept <= frames as usize * sevenths / 7,
                    "{frames} frames, {contexts} contexts keep {kept}"
                );
            }
        }
    }

    #[test]
    fn a_blocked_thread_keeps_little_and_nothing_when_memory_is_short() {
        let memory = Box::new(HeapMemory::new(Region::bytes(4096, 4096)));
        let region = Region::new(memory, 4096, 4096).unwrap();
        let context = || SoftnetData::new(region.clone(), CacheSizes::default());
        let fill = |ctx: &mut SoftnetData| {
            let skbs: Vec<_> = (0..96).map(|_| ctx.alloc_skb().unwrap()).collect();
            skbs.into_iter().for_each(|skb| ctx.free_skb(skb));
            assert!(ctx.cached().0 >= 96 && ctx.cached().1 >= 96);
        };
        let (share, mut ctx, mut other) = (CacheShare::new(4096), context(), context());
        fill(&mut ctx);
        share.after_call(&mut ctx);
        assert!(ctx.cached().0 >= 96, "it is alone");
        share.before_wait(&mut ctx);
        assert_eq!(ctx.cached(), (BLOCKED / 2, BLOCKED / 2));
        share.divide(16);
        fill(&mut ctx);
        share.after_call(&mut ctx);
        assert_eq!(ctx.cached(), (8, 8));
        fill(&mut ctx);
        CacheShare::before_sleep(&mut ctx);
        assert!(ctx.cached().0 >= 96);
        let taken: Vec<_> = std::iter::from_fn(|| other.alloc_skb()).collect();
        CacheShare::before_sleep(&mut ctx);
        assert_eq!(ctx.cached(), (0, 0));
        taken.into_iter().for_each(|skb| other.free_skb(skb));
    }
}
