//! Connections of each inside host, which are limited: one host's scan must not take the table from
//! the others (RFC 6888 REQ-5, the kernel's `xt_connlimit`).
//!
//! A host stands in one of the sixteen slots that its address' hash says, with how many connections
//! it has; a slot of none is free. Any thread counts, without locks: a slot is one word, which is
//! compared and exchanged. Invariant: each [count](Hosts::count) is undone by one
//! [release](Hosts::release). Threads that count the first connections of the same host at once may
//! give it two slots; the sum of both is what is limited.

use std::hash::Hasher;

use crate::fold::FoldKey;
use crate::sync::{AtomicU64, Ordering};

/// Slots of a cache line.
const LINE: usize = 8;

#[repr(align(64))]
struct Line([AtomicU64; LINE]);

/// See the [module](self).
pub(super) struct Hosts {
    lines: Box<[Line]>,
    key: FoldKey,
    refused: AtomicU64,
}

/// Why a connection is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotCounted {
    /// Its host has as many as it may.
    Limit,
    /// Too many hosts have some.
    Full,
}

fn slot_of(addr: u32, count: u32) -> u64 {
    u64::from(addr) << 32 | u64::from(count)
}

impl Hosts {
    /// For so many connections, a quarter as many hosts at the most.
    pub(super) fn new(connections: u32, key: FoldKey) -> Self {
        let lines = (connections as usize / 4).div_ceil(LINE).max(8);
        let line = || Line([0; LINE].map(AtomicU64::new));
        Hosts { lines: (0..lines).map(|_| line()).collect(), key, refused: AtomicU64::new(0) }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Connections that were refused because of the limit.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Numbers of the slots that a host may be in.
    fn slots(&self, addr: u32) -> impl Iterator<Item = usize> {
        let hash = self.key.hash(|hasher| hasher.write_u64(addr.into()));
        let lines = self.lines.len();
        let at = |half: u64| (((half & 0xffff_ffff) * lines as u64) >> 32) as usize;
        let (first, second) = (at(hash), at(hash >> 32));
        let second = if second == first { (second + 1) % lines } else { second };
        [first, second].into_iter().flat_map(|line| line * LINE..(line + 1) * LINE)
    }

    fn slot(&self, number: usize) -> Option<&AtomicU64> {
        self.lines.get(number / LINE)?.0.get(number % LINE)
    }

    /// Counts one more connection of host `addr`, which may have `limit`. Returns what is to be
    /// [released](Self::release) when it ends.
    pub(super) fn count(&self, addr: u32, limit: u32) -> Result<u32, NotCounted> {
        loop {
            let (mut own, mut free, mut total) = (None, None, 0u32);
            for number in self.slots(addr) {
                let Some(word) = self.slot(number).map(|slot| slot.load(Ordering::Relaxed)) else { continue };
                match ((word >> 32) as u32, word as u32) {
                    (_, 0) => free = free.or(Some((number, word))),
                    (of, count) if of == addr => {
                        total = total.saturating_add(count);
                        own = own.or(Some((number, word)));
                    }
                    _ => {}
                }
            }
            if total >= limit {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(NotCounted::Limit);
            }
            let (number, word) = own.or(free).ok_or(NotCounted::Full)?;
            let new = slot_of(addr, word as u32 + 1);
            let slot = self.slot(number).ok_or(NotCounted::Full)?;
            if slot.compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(number as u32);
            }
        }
    }

    /// Undoes a count.
    pub(super) fn release(&self, number: u32) {
        if let Some(slot) = self.slot(number as usize) {
            // Its host stays there until another takes a slot without connections.
            slot.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Hosts that have connections, and the most that one of them has.
    pub(super) fn census(&self) -> (u32, u32) {
        let counts =
            self.lines.iter().flat_map(|line| &line.0).map(|slot| slot.load(Ordering::Relaxed) as u32);
        counts.filter(|count| *count > 0).fold((0, 0), |(hosts, most), count| (hosts + 1, most.max(count)))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn hosts(connections: u32) -> Hosts {
        Hosts::new(connections, FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]))
    }

    proptest! {
        /// Beside a map: a host has no more than it may, and what is released may be had again.
        #[test]
        fn counts_as_a_map_does(steps in prop::collection::vec((0u32..20, any::<bool>()), 1..400)) {
            const LIMIT: u32 = 5;
            let hosts = hosts(64);
            let mut model: HashMap<u32, Vec<u32>> = HashMap::new();
            let mut refused = 0;
            for (addr, release) in steps {
                let held = model.entry(addr).or_default();
                if release {
                    held.pop().into_iter().for_each(|slot| hosts.release(slot));
                    continue;
                }
                match hosts.count(addr, LIMIT) {
                    Ok(slot) => held.push(slot),
                    Err(why) => {
                        prop_assert_eq!((why, held.len()), (NotCounted::Limit, LIMIT as usize));
                        refused += 1;
                    }
                }
                prop_assert!(held.len() <= LIMIT as usize);
            }
            prop_assert_eq!(hosts.refused(), refused);
            let busy = model.values().filter(|held| !held.is_empty()).count();
            let most = model.values().map(Vec::len).max().unwrap_or(0);
            prop_assert_eq!(hosts.census(), (busy as u32, most as u32));
        }
    }

    /// Room for a quarter as many hosts as connections, nearly: the hash spreads them.
    #[test]
    fn there_is_room_for_many_hosts() {
        let hosts = hosts(1 << 16);
        let counted = (0..1 << 14).take_while(|addr| hosts.count(0x0a00_0000 + addr, 1).is_ok()).count();
        assert!(counted > (1 << 14) * 3 / 4, "{counted}");
        assert_eq!(hosts.count(0x0a00_0000, 1), Err(NotCounted::Limit));
        let more = (1 << 14..1 << 16).filter_map(|addr| hosts.count(0x0a00_0000 + addr, 1).err()).last();
        assert_eq!(more, Some(NotCounted::Full));
    }

    /// Threads of one host go over its limit by no more than one each, and all is given back.
    #[test]
    fn threads_share_a_limit() {
        const LIMIT: u32 = 100;
        let hosts = hosts(1024);
        let taken: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let take = || (0..LIMIT).filter_map(|_| hosts.count(7, LIMIT).ok()).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let total: usize = taken.iter().map(Vec::len).sum();
        assert!((LIMIT as usize..LIMIT as usize + 4).contains(&total), "{total}");
        taken.iter().flatten().for_each(|slot| hosts.release(*slot));
        assert_eq!(hosts.census(), (0, 0));
    }
}
