//! One shard: a hash table with chains, over a list of items.
//!
//! Items never move in their list; chains and the hand of the eviction go by their places in it.

use std::ops::Add;

use super::{Counted, Ends, MAX_VALUE, Stored};
use crate::proto::{Arith, MAX_KEY, Storage, Verb, decimal};

/// End of a chain.
const NONE: u32 = u32::MAX;
/// What an item takes besides its key and value: its place in the list, in the table, and what the allocator adds.
const OVERHEAD: usize = 64;
/// Bytes of a typical small item: the table has a chain for each of these that fit.
const TYPICAL: usize = 256;

/// An item that was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Opaque to the server.
    pub flags: u32,
    /// Changes whenever the item is changed.
    pub cas: u64,
    /// Its value.
    pub value: &'a [u8],
}

/// What happened in a shard, in memcached's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items asked for and found.
    pub get_hits: u64,
    /// Items asked for and not found.
    pub get_misses: u64,
    /// Requests to store something.
    pub cmd_set: u64,
    /// Items deleted.
    pub delete_hits: u64,
    /// Items to delete that were not there.
    pub delete_misses: u64,
    /// Items stored, ever.
    pub total_items: u64,
    /// Items there are.
    pub curr_items: u64,
    /// Bytes they take.
    pub bytes: u64,
    /// Items dropped for want of room before their time.
    pub evictions: u64,
    /// Items that were found expired.
    pub reclaimed: u64,
}

impl Counters {
    pub(super) fn reset(&mut self) {
        *self = Counters { curr_items: self.curr_items, bytes: self.bytes, ..Counters::default() };
    }
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            get_hits: self.get_hits + other.get_hits,
            get_misses: self.get_misses + other.get_misses,
            cmd_set: self.cmd_set + other.cmd_set,
            delete_hits: self.delete_hits + other.delete_hits,
            delete_misses: self.delete_misses + other.delete_misses,
            total_items: self.total_items + other.total_items,
            curr_items: self.curr_items + other.curr_items,
            bytes: self.bytes + other.bytes,
            evictions: self.evictions + other.evictions,
            reclaimed: self.reclaimed + other.reclaimed,
        }
    }
}

/// A place for an item. Without a key it is free: `next` then leads to the next free one.
struct Slot {
    hash: u32,
    next: u32,
    ends: Ends,
    flags: u32,
    cas: u64,
    /// Key, then value. Allocated for exactly this.
    data: Box<[u8]>,
    key_len: u8,
    /// It was asked for since the hand passed.
    used: bool,
}

impl Slot {
    fn key(&self) -> &[u8] {
        &self.data[..usize::from(self.key_len)]
    }

    fn value(&self) -> &[u8] {
        &self.data[usize::from(self.key_len)..]
    }

    fn is_free(&self) -> bool {
        self.key_len == 0
    }

    fn size(&self) -> usize {
        OVERHEAD + self.data.len()
    }
}

pub(super) struct Shard {
    /// First item of each chain; as many as a power of two.
    table: Box<[u32]>,
    slots: Vec<Slot>,
    free: u32,
    /// Where the search for an item that can go continues.
    hand: usize,
    limit: usize,
    last_cas: u64,
    pub(super) counters: Counters,
}

impl Shard {
    pub(super) fn new(limit: usize) -> Self {
        let chains = (limit / TYPICAL).next_power_of_two().clamp(64, 1 << 24);
        Shard {
            table: vec![NONE; chains].into(),
            slots: Vec::new(),
            free: NONE,
            hand: 0,
            limit,
            last_cas: 0,
            counters: Counters::default(),
        }
    }

    fn chain(&self, hash: u64) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    /// The place of an item that has not expired. One that has is removed.
    fn find(&mut self, hash: u64, key: &[u8], now: u32) -> Option<usize> {
        let mut at = self.table[self.chain(hash)];
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.hash == hash as u32 && slot.key() == key {
                if slot.ends.passed(now) {
                    self.counters.reclaimed += 1;
                    self.remove(at as usize);
                    return None;
                }
                return Some(at as usize);
            }
            at = slot.next;
        }
        None
    }

    pub(super) fn get(&mut self, hash: u64, key: &[u8], now: u32) -> Option<Item<'_>> {
        let Some(at) = self.find(hash, key, now) else {
            self.counters.get_misses += 1;
            return None;
        };
        self.counters.get_hits += 1;
        let slot = &mut self.slots[at];
        // Only if need be: a line that is only read stays in the caches of all.
        if !slot.used {
            slot.used = true;
        }
        Some(Item { flags: slot.flags, cas: slot.cas, value: slot.value() })
    }

    pub(super) fn store(&mut self, hash: u64, storage: &Storage<'_>, ends: Ends, now: u32) -> Stored {
        self.counters.cmd_set += 1;
        let Storage { verb, key, flags, value, .. } = *storage;
        let found = self.find(hash, key, now);
        let (before, after) = match (verb, found) {
            (Verb::Add, Some(at)) => {
                // As memcached does: a request of this kind keeps it.
                self.slots[at].used = true;
                return Stored::NotStored;
            }
            (Verb::Replace | Verb::Append | Verb::Prepend, None) => return Stored::NotStored,
            (Verb::Cas(_) | Verb::Swap(_), None) => return Stored::NotFound,
            (Verb::Cas(cas) | Verb::Swap(cas), Some(at)) if self.slots[at].cas != cas => {
                return Stored::Exists;
            }
            (Verb::Append, Some(at)) => (self.slots[at].value().len(), 0),
            (Verb::Prepend, Some(at)) => (0, self.slots[at].value().len()),
            _ => (0, 0),
        };
        let len = key.len() + before + value.len() + after;
        if value.len() + before + after > MAX_VALUE
            || OVERHEAD + len > self.limit
            || !(1..=MAX_KEY).contains(&key.len())
        {
            // What was there is older than what the client believes to have stored.
            if let (Verb::Set, Some(at)) = (verb, found) {
                self.remove(at);
            }
            return Stored::TooLarge;
        }
        self.counters.total_items += 1;
        self.last_cas += 1;
        let cas = self.last_cas;
        if let Some(at) = found {
            let joined = matches!(verb, Verb::Append | Verb::Prepend);
            let keeps = joined || matches!(verb, Verb::Swap(_));
            let slot = &mut self.slots[at];
            slot.cas = cas;
            if !keeps {
                (slot.flags, slot.ends) = (flags, ends);
            }
            if slot.data.len() == len && !joined {
                slot.data[key.len()..].copy_from_slice(value);
                return Stored::Stored;
            }
            let old = self.slots[at].value();
            let mut data = Vec::with_capacity(len);
            data.extend_from_slice(key);
            data.extend_from_slice(&old[..before]);
            data.extend_from_slice(value);
            data.extend_from_slice(&old[..after]);
            self.replace(at, data.into(), now);
        } else {
            let mut data = Vec::with_capacity(len);
            data.extend_from_slice(key);
            data.extend_from_slice(value);
            let size = OVERHEAD + len;
            self.make_room(size, None, now);
            let chain = self.chain(hash);
            let slot = Slot {
                hash: hash as u32,
                next: self.table[chain],
                ends,
                flags,
                cas,
                data: data.into(),
                key_len: key.len() as u8,
                used: false,
            };
            self.table[chain] = self.put(slot);
            self.counters.curr_items += 1;
            self.counters.bytes += size as u64;
        }
        Stored::Stored
    }

    /// Puts `slot` where a place is free.
    fn put(&mut self, slot: Slot) -> u32 {
        let at = self.free;
        match self.slots.get_mut(at as usize) {
            Some(free) => {
                self.free = free.next;
                *free = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Other data for an item, which stays where it is.
    fn replace(&mut self, at: usize, data: Box<[u8]>, now: u32) {
        let (old, new) = (self.slots[at].data.len(), data.len());
        if new > old {
            self.make_room(new - old, Some(at), now);
        }
        self.slots[at].data = data;
        self.counters.bytes = self.counters.bytes + new as u64 - old as u64;
    }

    /// Lets items go until `size` bytes more have room; not the one at `keep`. The limit has room for them without
    /// others.
    fn make_room(&mut self, size: usize, keep: Option<usize>, now: u32) {
        while self.counters.bytes as usize + size > self.limit {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let at = self.hand;
            self.hand += 1;
            let slot = &mut self.slots[at];
            if slot.is_free() || keep == Some(at) {
                continue;
            }
            if slot.ends.passed(now) {
                self.counters.reclaimed += 1;
            } else if slot.used {
                slot.used = false;
                continue;
            } else {
                self.counters.evictions += 1;
            }
            self.remove(at);
        }
    }

    /// Takes the item at `at` out.
    fn remove(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        let (size, next, hash) = (slot.size(), slot.next, slot.hash);
        (slot.data, slot.key_len, slot.next) = (Box::default(), 0, self.free);
        self.free = at as u32;
        self.counters.curr_items -= 1;
        self.counters.bytes -= size as u64;
        // The chain's number is in the lower bits, all of which are kept.
        let chain = self.chain(u64::from(hash));
        let mut before = self.table[chain];
        if before as usize == at {
            self.table[chain] = next;
            return;
        }
        while self.slots[before as usize].next as usize != at {
            before = self.slots[before as usize].next;
        }
        self.slots[before as usize].next = next;
    }

    pub(super) fn delete(&mut self, hash: u64, key: &[u8], now: u32) -> bool {
        let found = self.find(hash, key, now);
        match found {
            Some(at) => {
                self.counters.delete_hits += 1;
                self.remove(at);
            }
            None => self.counters.delete_misses += 1,
        }
        found.is_some()
    }

    pub(super) fn arith(&mut self, hash: u64, arith: &Arith<'_>, now: u32) -> Counted {
        let Some(at) = self.find(hash, arith.key, now) else { return Counted::NotFound };
        let slot = &mut self.slots[at];
        let text = std::str::from_utf8(slot.value()).unwrap_or_default();
        // Where a number became shorter blanks follow it, see below.
        let Ok(old) = text.trim_end_matches(' ').parse::<u64>() else { return Counted::NotNumeric };
        let new = if arith.up { old.wrapping_add(arith.delta) } else { old.saturating_sub(arith.delta) };
        let mut digits = [0; 20];
        let digits = decimal(new, &mut digits);
        self.last_cas += 1;
        slot.cas = self.last_cas;
        slot.used = true;
        let (key_len, len) = (usize::from(slot.key_len), slot.value().len());
        if digits.len() <= len {
            // An item does not become shorter, as in memcached.
            let value = &mut slot.data[key_len..];
            value[..digits.len()].copy_from_slice(digits);
            value[digits.len()..].fill(b' ');
        } else {
            let data = [slot.key(), digits].concat();
            self.replace(at, data.into(), now);
        }
        Counted::Value(new)
    }

    pub(super) fn touch(&mut self, hash: u64, key: &[u8], ends: Ends, now: u32) -> bool {
        let found = self.find(hash, key, now);
        if let Some(at) = found {
            self.slots[at].ends = ends;
            self.slots[at].used = true;
        }
        found.is_some()
    }

    /// Forgets all items.
    pub(super) fn flush(&mut self) {
        self.table.fill(NONE);
        self.slots.clear();
        (self.free, self.hand) = (NONE, 0);
        (self.counters.curr_items, self.counters.bytes) = (0, 0);
    }
}
