//! What `show skb` tells.

use serde::{Deserialize, Serialize};

/// Packet memory: a region of heads and frames, and what each thread's context keeps of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkbStats {
    /// Number of the region.
    pub region: u32,
    /// Bytes of a frame.
    pub frame_size: u64,
    /// Its heads.
    pub heads: SkbPool,
    /// Its frames.
    pub frames: SkbPool,
    /// Heads, or frames, that may be on their way home to a thread (`net.core.skb_defer_max`); 0:
    /// remote free is off.
    pub skb_defer_max: u64,
    /// Times that an allocation found neither cache nor pool filled.
    pub exhausted: u64,
    /// Handles that were lost; anything above 0 is a bug in softnet.
    pub leaked: u64,
    /// Thread contexts; the first stands for all that ended.
    pub contexts: Vec<SkbContextRow>,
}

/// Where heads, or frames, are. Read one after the other while they move, so that a few may be
/// counted twice or missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkbPool {
    /// All there are.
    pub total: u64,
    /// In the pool that all threads share.
    pub free: u64,
    /// In the caches of threads, when these last noted it: when they rested, or a while ago.
    pub cached: u64,
    /// Freed, and on their way home to the threads that took them.
    pub deferred: u64,
    /// The others: in packets, and posted to devices.
    pub in_use: u64,
    /// Entries of each thread's cache.
    pub cache_size: u64,
    /// Fetched by a refill of a cache.
    pub cache_refill: u64,
    /// Given back by a flush.
    pub cache_flush: u64,
}

/// A thread's context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkbContextRow {
    /// Its thread; empty if that has no name, `(ended)` of those that ended.
    pub thread: String,
    /// Its cache of heads.
    pub heads: SkbCacheRow,
    /// Its cache of frames.
    pub frames: SkbCacheRow,
}

/// A cache. All but the first two are counters since its thread began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkbCacheRow {
    /// How many it held when its thread last noted it.
    pub cached: u64,
    /// Freed by others, and on their way here.
    pub deferred: u64,
    /// Times that it was empty, and filled from the pool.
    pub refills: u64,
    /// Times that it was full, and gave some to the pool.
    pub flushes: u64,
    /// Freed here, and sent home to other threads.
    pub remote_frees: u64,
    /// Times that such a thread was kicked, since half of what fits was on its way to it.
    pub kicks: u64,
    /// Of other threads, and kept here, since the limit was reached or the thread had ended.
    pub local_at_limit: u64,
    /// Freed by others, and taken back.
    pub came_home: u64,
}
