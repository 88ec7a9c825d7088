//! What is told of packet memory.

use softnet_core::skb::{CacheSizes, CacheStats, FRAME_SIZE, leaked};
use softnet_core::sync::Homes;

use super::Introspect;
use crate::control::show::{SkbCacheRow, SkbContextRow, SkbPool, SkbStats};

fn cache(stats: &CacheStats, homes: Option<&Homes>) -> SkbCacheRow {
    SkbCacheRow {
        cached: stats.cached.get(),
        deferred: homes.map_or(0, |homes| homes.pending(stats.home.get() as u32).into()),
        refills: stats.refills.get(),
        flushes: stats.flushes.get(),
        remote_frees: stats.remote_frees.get(),
        kicks: stats.kicks.get(),
        local_at_limit: stats.local_at_limit.get(),
        came_home: stats.came_home.get(),
    }
}

fn pool<'a>(
    total: u32,
    free: u64,
    sizes: CacheSizes,
    caches: impl Iterator<Item = &'a SkbCacheRow> + Clone,
) -> SkbPool {
    let (total, cached) = (u64::from(total), caches.clone().map(|cache| cache.cached).sum());
    let deferred = caches.map(|cache| cache.deferred).sum();
    SkbPool {
        total,
        free,
        cached,
        deferred,
        in_use: total.saturating_sub(free + cached + deferred),
        cache_size: sizes.size as u64,
        cache_refill: sizes.refill as u64,
        cache_flush: sizes.flush as u64,
    }
}

impl Introspect {
    /// Packet memory, and what each thread has of it.
    pub fn skb(&self) -> SkbStats {
        let (shared, region) = (&self.shared, &self.shared.region);
        let [head_homes, frame_homes] = region.homes();
        let row =
            |(at, stats): (usize, &std::sync::Arc<softnet_core::softnet_data::ContextStats>)| SkbContextRow {
                // The first is that of threads that ended.
                thread: if at == 0 {
                    "(ended)".into()
                } else {
                    stats.name.get().cloned().unwrap_or_default()
                },
                heads: cache(&stats.caches[0], head_homes),
                frames: cache(&stats.caches[1], frame_homes),
            };
        let contexts: Vec<SkbContextRow> = shared.contexts().iter().enumerate().map(row).collect();
        let [head_sizes, frame_sizes] = shared.caches;
        SkbStats {
            region: region.id(),
            frame_size: FRAME_SIZE as u64,
            heads: pool(
                region.head_count(),
                region.heads_free(),
                head_sizes,
                contexts.iter().map(|context| &context.heads),
            ),
            frames: pool(
                region.frame_count(),
                region.frames_free(),
                frame_sizes,
                contexts.iter().map(|context| &context.frames),
            ),
            skb_defer_max: self.config.load().stack.skb_defer_max.into(),
            exhausted: region.exhausted(),
            leaked: leaked(),
            contexts,
        }
    }
}
