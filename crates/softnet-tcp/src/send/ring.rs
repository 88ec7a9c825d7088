//! The retransmit queue: a record for each packet that was sent and is not yet acknowledged.
//!
//! Records lie in sequence order in a growable ring, one per packet (never more than an MSS), so
//! that a sequence number is found by binary search, a SACKed range is a run of neighbours, and no
//! block of a peer can split a record (CVE-2019-11478 is the price of splitting super-segments).
//! Only a smaller MSS splits, by filling a ring anew.
//!
//! An empty ring gives its memory back, but for 64 records, which [`Ring::release`] frees: a
//! connection that answers requests allocates once, not once a response. Beyond that, a flight
//! costs little beside the packets that it has.

use crate::{Instant, Seq};

/// Ring slots of the first packets.
const LEAST: usize = 8;
/// Ring slots that an empty queue keeps until [`Ring::release`]: a TSO segment's packets.
const KEPT: usize = 64;

/// The peer has it (S).
pub(super) const SACKED: u8 = 1;
/// A copy sent by loss recovery is in flight (R).
pub(super) const RETRANS: u8 = 2;
/// Counted as lost (L).
pub(super) const LOST: u8 = 4;
/// Was retransmitted at some time, by recovery or as a probe. Never cleared.
pub(super) const EVER: u8 = 8;
/// Carries the SYN, which is its first sequence number.
pub(super) const SYN: u8 = 16;
/// Carries the FIN, which is its last sequence number.
pub(super) const FIN: u8 = 32;
/// The sender had nothing more to send when this went out (rate samples).
pub(super) const APP_LIMITED: u8 = 64;
/// Carries PSH.
pub(super) const PSH: u8 = 128;

/// A packet in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Record {
    /// When it was last sent.
    pub(super) xmit: Instant,
    /// First sequence number.
    pub(super) seq: Seq,
    /// Packets delivered when it was last sent (draft-cheng-iccrg-delivery-rate-estimation 3.1.2).
    pub(super) delivered: u32,
    /// Microseconds, modulo 2³², of the delivery counted last when it was sent.
    pub(super) delivered_at: u32,
    /// Microseconds, modulo 2³², of the send that began its sampling interval.
    pub(super) first_tx: u32,
    /// Sequence numbers: payload, and SYN and FIN if flagged.
    pub(super) len: u16,
    /// Tags and flags, the constants of this module.
    pub(super) tags: u8,
    /// It was the last of the run that it left in first: what is sent again keeps to those runs.
    pub(super) ends_run: bool,
    /// The last of its run, of which an ACK took the beginning alone.
    pub(super) cut: bool,
}

impl Record {
    /// The sequence number after the last.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.seq + u32::from(self.len)
    }

    /// Whether any of `tags` is set.
    #[inline]
    pub(super) fn is(&self, tags: u8) -> bool {
        self.tags & tags != 0
    }
}

/// Records in sequence order.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// A power of two of slots, or none.
    slots: Box<[Record]>,
    head: u32,
    len: u32,
}

impl Ring {
    /// Records held.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is in flight.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn slot(&self, i: usize) -> usize {
        (self.head as usize + i) & (self.slots.len().wrapping_sub(1))
    }

    /// The `i`th record from the oldest.
    #[inline]
    pub(super) fn get(&self, i: usize) -> Option<&Record> {
        if i < self.len() { self.slots.get(self.slot(i)) } else { None }
    }

    /// The `i`th record from the oldest, to change.
    #[inline]
    pub(super) fn get_mut(&mut self, i: usize) -> Option<&mut Record> {
        if i < self.len() {
            let slot = self.slot(i);
            self.slots.get_mut(slot)
        } else {
            None
        }
    }

    /// The oldest record.
    #[inline]
    pub(super) fn front(&self) -> Option<&Record> {
        self.get(0)
    }

    /// The newest record.
    #[inline]
    pub(super) fn back(&self) -> Option<&Record> {
        self.get(self.len().wrapping_sub(1))
    }

    /// Appends a record, which begins where the last one ends.
    #[inline]
    pub(super) fn push(&mut self, record: Record) {
        debug_assert!(self.back().is_none_or(|back| back.end() == record.seq));
        if self.len() == self.slots.len() {
            self.grow();
        }
        self.len += 1;
        if let Some(slot) = self.get_mut(self.len() - 1) {
            *slot = record;
        }
    }

    /// Drops the oldest record. The caller calls [`shrink`](Self::shrink) after the last of a run.
    #[inline]
    pub(super) fn pop(&mut self) {
        if self.len > 0 {
            self.head = self.slot(1) as u32;
            self.len -= 1;
        }
    }

    /// Gives memory back if nothing is in flight.
    #[inline]
    pub(super) fn shrink(&mut self) {
        if self.len == 0 && self.slots.len() > KEPT {
            *self = Ring::default();
        }
    }

    /// Gives the last memory back if nothing is in flight.
    pub(super) fn release(&mut self) {
        if self.len == 0 {
            *self = Ring::default();
        }
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> usize {
        self.slots.len() * size_of::<Record>()
    }

    /// The index of the first record that ends after `seq`; [`len`](Self::len) if none does.
    #[inline]
    pub(super) fn find(&self, seq: Seq) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.slots[self.slot(middle)].end().after(seq) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(LEAST);
        let mut grown = Vec::with_capacity(slots);
        grown.extend((0..self.len()).map(|i| self.slots[self.slot(i)]));
        grown.resize(slots, Record::default());
        self.slots = grown.into_boxed_slice();
        self.head = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: Seq, len: u16) -> Record {
        Record { seq, len, ..Record::default() }
    }

    fn ring(start: Seq, lens: &[u16]) -> Ring {
        let mut ring = Ring::default();
        let mut seq = start;
        for &len in lens {
            ring.push(record(seq, len));
            seq += u32::from(len);
        }
        ring
    }

    #[test]
    fn a_record_takes_32_bytes() {
        assert_eq!((size_of::<Record>(), size_of::<Ring>()), (32, 24));
    }

    #[test]
    fn numbers_are_found_across_the_wrap() {
        for start in [Seq(0), Seq(u32::MAX - 15), Seq(0x7fff_fff0)] {
            let ring = ring(start, &[10, 20, 30]);
            for (off, at) in [(0, 0), (9, 0), (10, 1), (29, 1), (30, 2), (59, 2), (60, 3)] {
                assert_eq!(ring.find(start + off), at, "{off}");
            }
            assert_eq!(ring.find(start - 5), 0);
        }
    }

    #[test]
    fn an_empty_ring_gives_memory_back() {
        let mut ring = ring(Seq(5), &[1; 100]);
        assert_eq!(ring.memory(), 128 * 32);
        for _ in 0..100 {
            ring.pop();
        }
        ring.shrink();
        assert_eq!(ring.memory(), 0);
        ring.push(record(Seq(7), 1));
        ring.release();
        assert_eq!((ring.memory(), ring.len()), (8 * 32, 1));
        ring.pop();
        ring.shrink();
        assert_eq!(ring.memory(), 8 * 32);
        ring.release();
        assert_eq!(ring.memory(), 0);
    }

    #[test]
    fn it_keeps_order_while_it_turns_and_grows() {
        let mut ring = ring(Seq(u32::MAX - 100), &[7; 5]);
        let mut next = Seq(u32::MAX - 100) + 35;
        for round in 0..200 {
            for _ in 0..(round % 7) {
                ring.push(record(next, 7));
                next += 7;
            }
            for _ in 0..(round % 5) {
                ring.pop();
            }
            let mut seq = next - 7 * ring.len() as u32;
            for i in 0..ring.len() {
                assert_eq!(ring.get(i).map(|record| record.seq), Some(seq));
                seq += 7;
            }
        }
        assert!(ring.len() > 100);
    }
}
