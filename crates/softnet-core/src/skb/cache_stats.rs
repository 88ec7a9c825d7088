//! What a cache of indices counts: written by the thread of the cache, read by any.
//!
//! All of it is counted where an array is full or empty, or when the thread rests, so that it costs
//! nothing per packet.

use crate::softnet_data::Counter;

/// See the module. Counts are of indices (heads or frames) unless they say otherwise.
#[derive(Debug, Default)]
pub struct CacheStats {
    /// How many it held when that was last noted: when its thread rested, or a while ago.
    pub cached: Counter,
    /// The home that it has for what others free ([`Homes`](crate::sync::Homes)), 0: none.
    pub home: Counter,
    /// Times that it was empty, and filled from the pool.
    pub refills: Counter,
    /// Times that it was full, and gave some to the pool.
    pub flushes: Counter,
    /// Freed here, and sent home to the threads that had taken them (the kernel's
    /// `skb_attempt_defer_free`).
    pub remote_frees: Counter,
    /// Times that such a thread was kicked, because half of what fits was on its way to it.
    pub kicks: Counter,
    /// Of other threads, and kept here, because the limit was reached or the thread had ended.
    pub local_at_limit: Counter,
    /// Freed by others, and taken back.
    pub came_home: Counter,
}

impl CacheStats {
    /// Adds what `other` counted, whose thread ended; what it held is gone.
    pub(crate) fn absorb(&self, other: &CacheStats) {
        for (mine, theirs) in [
            (&self.refills, &other.refills),
            (&self.flushes, &other.flushes),
            (&self.remote_frees, &other.remote_frees),
            (&self.kicks, &other.kicks),
            (&self.local_at_limit, &other.local_at_limit),
            (&self.came_home, &other.came_home),
        ] {
            mine.add(theirs.get());
        }
    }
}
