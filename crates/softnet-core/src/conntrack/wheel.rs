//! When entries are to be looked at: a list of them for each second, round and round.
//!
//! Any thread files an entry; the one that owns the wheel takes the list of a second that is over
//! and looks at its entries one by one, as many as it likes at a time. A connection that a packet
//! kept alive is not filed anew: it is, when the wheel finds it. So nothing is done for a packet,
//! and each entry is looked at once in its time, or in a round of the wheel.
//!
//! Invariant: an entry is on one list at the most, and comes off it by the owner of the wheel
//! alone.

use super::entry::NIL;
use crate::sync::{AtomicU32, Ordering};

/// See the [module](self).
pub(super) struct Wheel {
    /// First entry of each list.
    lists: Box<[AtomicU32]>,
    /// Whether a thread owns the wheel.
    owned: AtomicU32,
    /// The last second whose list was taken.
    swept: AtomicU32,
    /// What is left of that list.
    rest: AtomicU32,
}

/// Ownership of the wheel.
pub(super) struct Sweep<'a>(&'a Wheel);

impl Wheel {
    /// With lists for so many seconds.
    pub(super) fn new(seconds: u32) -> Self {
        Wheel {
            lists: (0..seconds).map(|_| AtomicU32::new(NIL)).collect(),
            owned: AtomicU32::new(0),
            swept: AtomicU32::new(0),
            rest: AtomicU32::new(NIL),
        }
    }

    fn list(&self, second: u32) -> &AtomicU32 {
        &self.lists[second as usize % self.lists.len()]
    }

    /// Files entry `index`, whose link is `next`, to be looked at in the second `at`, or once round
    /// if that is further off.
    pub(super) fn file(&self, index: u32, at: u32, next: &AtomicU32) {
        let swept = self.swept.load(Ordering::Relaxed);
        let ahead = (at.wrapping_sub(swept) as i32).clamp(1, self.lists.len() as i32 - 1);
        let list = self.list(swept.wrapping_add(ahead as u32));
        let mut first = list.load(Ordering::Relaxed);
        loop {
            next.store(first, Ordering::Relaxed);
            match list.compare_exchange_weak(first, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Whether there may be an entry to look at.
    #[inline(always)]
    pub(super) fn is_due(&self, now: u32) -> bool {
        self.swept.load(Ordering::Relaxed) != now || self.rest.load(Ordering::Relaxed) != NIL
    }

    /// Ownership, unless a thread has it.
    pub(super) fn own(&self) -> Option<Sweep<'_>> {
        self.owned.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Sweep(self))
    }
}

impl Sweep<'_> {
    /// Takes the next entry that is to be looked at by `now`, whose link `next` gives.
    pub(super) fn next<'a>(&mut self, now: u32, next: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let wheel = self.0;
        let mut first = wheel.rest.load(Ordering::Relaxed);
        let mut swept = wheel.swept.load(Ordering::Relaxed);
        // After a long pause one round is enough.
        let round = wheel.lists.len() as u32;
        if now.wrapping_sub(swept) as i32 > round as i32 {
            swept = now.wrapping_sub(round);
        }
        while first == NIL {
            if (now.wrapping_sub(swept) as i32) <= 0 {
                return None;
            }
            swept = swept.wrapping_add(1);
            wheel.swept.store(swept, Ordering::Relaxed);
            let list = wheel.list(swept);
            if list.load(Ordering::Relaxed) != NIL {
                first = list.swap(NIL, Ordering::Acquire);
            }
        }
        wheel.rest.store(next(first).load(Ordering::Relaxed), Ordering::Relaxed);
        Some(first)
    }

    /// What comes after that on the same list.
    pub(super) fn peek(&self) -> Option<u32> {
        Some(self.0.rest.load(Ordering::Relaxed)).filter(|index| *index != NIL)
    }
}

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        self.0.owned.store(0, Ordering::Release);
    }
}
