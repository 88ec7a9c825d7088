//! How connections end: in their time, or because another thread says so.
//!
//! Any thread may call this. Invariant: an entry is freed once, by the thread that took its life from it.

use super::Tuple;
use super::entry::Holds;
use super::table::{Conntrack, Found};
use crate::skb::prefetch;
use crate::sync::{Mutant, Ordering, mutated};

impl Conntrack {
    /// Looks at up to `max` of the connections that may have expired by `now`, unless another
    /// thread does; of those that have, `released` gets what they held. Returns how many it looked
    /// at.
    #[inline(always)]
    pub(crate) fn sweep_with(&self, now: u32, max: usize, released: impl FnMut(Holds)) -> usize {
        if self.wheel.is_due(now) { self.sweep_due(now, max, released) } else { 0 }
    }

    /// The same of a table without mappings.
    pub fn sweep(&self, now: u32, max: usize) -> usize {
        self.sweep_with(now, max, |_| {})
    }

    #[inline(never)]
    fn sweep_due(&self, now: u32, max: usize, mut released: impl FnMut(Holds)) -> usize {
        let Some(mut sweep) = self.wheel.own() else { return 0 };
        for n in 0..max {
            let Some(index) = sweep.next(now, |i| self.link(i)) else { return n };
            if let Some(entry) = sweep.peek().and_then(|next| self.entries.get(next as usize)) {
                prefetch(std::ptr::from_ref(entry).cast());
            }
            if let Some(holds) = self.expire(index, now) {
                released(holds);
            }
        }
        max
    }

    /// Frees an entry that came off the wheel, if its time is over; otherwise files it anew.
    /// Returns what it held.
    fn expire(&self, index: u32, now: u32) -> Option<Holds> {
        let entry = &self.entries[index as usize];
        let mut life = entry.life();
        loop {
            // Another thread dropped it early, and uses it again.
            if !life.is_live() && !mutated(Mutant::DeadExpires) {
                self.wheel.file(index, now.wrapping_add(1), &entry.next);
                return None;
            }
            if !life.is_over(now) {
                self.wheel.file(index, life.expires().wrapping_add(1), &entry.next);
                return None;
            }
            match entry.exchange(life, life.ended()) {
                Ok(()) => break,
                Err(other) => life = other,
            }
        }
        // Nothing changes from here until the entry is free.
        let contents = entry.contents();
        self.unlink(index, &contents.tuples);
        self.expired.fetch_add(1, Ordering::Relaxed);
        self.free.push(index, |i| self.link(i));
        Some(contents.holds)
    }

    /// Ends the connections of which `which`, told the tuples and what is translated, says so: no
    /// packet finds them from now on, and their entries are freed in their time. Returns how many
    /// there were.
    pub(crate) fn end_where(&self, now: u32, which: impl Fn(&[Tuple; 2], u8) -> bool) -> u64 {
        let mut ended = 0;
        for entry in &self.entries[..self.free.used() as usize] {
            let mut life = entry.life();
            let tuples = entry.contents().tuples;
            // A packet may move it on meanwhile.
            while life.is_live() && !life.is_over(now) && entry.is_still(life) && which(&tuples, life.flags())
            {
                let over = life.with(life.state_number(), now.wrapping_sub(1));
                match entry.exchange(life, over) {
                    Ok(()) => {
                        ended += 1;
                        break;
                    }
                    Err(other) if other.generation() == life.generation() => life = other,
                    Err(_) => break,
                }
            }
        }
        self.ended.fetch_add(ended, Ordering::Relaxed);
        ended
    }

    /// Ends the connection that was found: no packet finds it from now on, and its entry is freed in its
    /// time.
    pub(crate) fn end(&self, now: u32, found: Found) {
        let (Some(entry), mut life) = (self.entry(found.id), found.life) else { return };
        // A packet may move it on meanwhile.
        while life.is_live() && !life.is_over(now) {
            match entry.exchange(life, life.with(life.state_number(), now.wrapping_sub(1))) {
                Ok(()) => {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(other) if other.generation() == life.generation() => life = other,
                Err(_) => return,
            }
        }
    }
}
