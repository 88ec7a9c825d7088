//! The items: shards, each behind a lock of its own, bounded in memory.
//!
//! Any thread may call. The time is an argument, in seconds since the store was made; it reads no clock. A key is
//! always in the same shard, and a look-up copies the value out under the shard's lock, without allocating. When a
//! shard has no room for an item, others go: those that expired, else those that were not asked for since the hand
//! last passed them (second chance). Invariant: the bytes that a shard accounts for its items never exceed its
//! share of the limit.

mod shard;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::proto::{Arith, Expire, Storage};
use shard::Shard;
pub use shard::{Counters, Item};

/// Longest value, in bytes; what a datagram can bring is less.
pub const MAX_VALUE: usize = 1 << 20;
/// Relative times are no longer than this; larger numbers are Unix time.
const MONTH: i64 = 60 * 60 * 24 * 30;

/// What became of a value that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is there.
    Stored,
    /// `add` found one, or `replace`, `append` or `prepend` none.
    NotStored,
    /// `cas`: it was changed.
    Exists,
    /// `cas`: there is none.
    NotFound,
    /// It is larger than an item may be (or its key is: 1 to 250 bytes).
    TooLarge,
}

/// What became of a number that was to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// What it is now.
    Value(u64),
    /// There is none.
    NotFound,
    /// It is no number.
    NotNumeric,
}

/// The items, and their counters.
pub struct Store {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// Unix time when the store was made.
    epoch: Duration,
    limit: usize,
    /// When a `flush_all` is due; `u64::MAX` if none is.
    flush_at: AtomicU64,
    flushes: AtomicU64,
}

/// When an item ends, in the store's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Never,
    At(u32),
}

impl Ends {
    fn passed(self, now: u32) -> bool {
        matches!(self, Ends::At(at) if at <= now)
    }
}

impl Store {
    /// An empty store for `limit` bytes of items (their keys, values and 64 bytes for each), in `shards` shards or
    /// a few more. Tables for as many items as are likely to fit are made at once, on top of the limit.
    pub fn new(limit: usize, shards: usize) -> Self {
        let shards = shards.next_power_of_two().min(1 << 12);
        // A share has room for at least a few items of the largest size that a datagram brings.
        let share = (limit / shards).max(1 << 20);
        Store {
            shards: (0..shards).map(|_| Mutex::new(Shard::new(share))).collect(),
            hasher: RandomState::default(),
            epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            limit: share * shards,
            flush_at: AtomicU64::new(u64::MAX),
            flushes: AtomicU64::new(0),
        }
    }

    /// The memory that items may take, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    fn shard(&self, key: &[u8]) -> (&Mutex<Shard>, u64) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        // Its upper bits; the shard's table uses the lower ones.
        let index = (u128::from(hash) * self.shards.len() as u128) >> 64;
        (&self.shards[index as usize], hash)
    }

    fn ends(&self, expire: Expire, now: u32) -> Ends {
        let at = match i64::from(expire.0) {
            0 => return Ends::Never,
            ..0 => 0,
            relative @ 1..=MONTH => i64::from(now) + relative,
            unix => unix - self.epoch.as_secs() as i64,
        };
        Ends::At(u32::try_from(at.max(0)).unwrap_or(u32::MAX))
    }

    /// Hands the item with that key to `found`, under the shard's lock, if there is one.
    pub fn get<R>(&self, key: &[u8], now: u32, found: impl FnOnce(Item<'_>) -> R) -> Option<R> {
        let (shard, hash) = self.shard(key);
        shard.lock().get(hash, key, now).map(found)
    }

    /// Stores a value, in the way that it says.
    pub fn store(&self, storage: &Storage<'_>, now: u32) -> Stored {
        let (shard, hash) = self.shard(storage.key);
        let ends = self.ends(storage.expire, now);
        shard.lock().store(hash, storage, ends, now)
    }

    /// Deletes an item; whether there was one.
    pub fn delete(&self, key: &[u8], now: u32) -> bool {
        let (shard, hash) = self.shard(key);
        shard.lock().delete(hash, key, now)
    }

    /// Counts a number up (and past the largest around to 0) or down (to no less than 0).
    pub fn arith(&self, arith: &Arith<'_>, now: u32) -> Counted {
        let (shard, hash) = self.shard(arith.key);
        shard.lock().arith(hash, arith, now)
    }

    /// Gives an item another expiry; whether there is one.
    pub fn touch(&self, key: &[u8], expire: Expire, now: u32) -> bool {
        let (shard, hash) = self.shard(key);
        let ends = self.ends(expire, now);
        shard.lock().touch(hash, key, ends, now)
    }

    /// Forgets all items at `at`. Of several, the last counts.
    pub fn flush_all(&self, at: Expire, now: u32) {
        let at = match self.ends(at, now) {
            Ends::At(at) if at > now => u64::from(at),
            _ => u64::from(now),
        };
        self.flushes.fetch_add(1, Relaxed);
        self.flush_at.store(at, Relaxed);
        self.advance(now);
    }

    /// How often `flush_all` was asked for.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Relaxed)
    }

    /// It is `now`: carries out a `flush_all` that is due. To be called before requests are served.
    pub fn advance(&self, now: u32) {
        let due = self.flush_at.load(Relaxed);
        if u64::from(now) < due {
            return;
        }
        // Of the threads that see it due, one does it.
        if self.flush_at.compare_exchange(due, u64::MAX, Relaxed, Relaxed).is_ok() {
            self.shards.iter().for_each(|shard| shard.lock().flush());
        }
    }

    /// Counters of all shards.
    pub fn counters(&self) -> Counters {
        self.shards.iter().map(|shard| shard.lock().counters).fold(Counters::default(), |a, b| a + b)
    }

    /// Sets the counters of events to 0, not those of what there is.
    pub fn reset_counters(&self) {
        self.shards.iter().for_each(|shard| shard.lock().counters.reset());
        self.flushes.store(0, Relaxed);
    }
}
