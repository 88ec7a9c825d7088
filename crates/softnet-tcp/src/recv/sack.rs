//! Which blocks an acknowledgement reports (RFC 2018 4, RFC 2883).
//!
//! "The first SACK block … MUST specify the contiguous block of data containing the segment which
//! triggered this ACK", the others repeat "the most recently reported SACK blocks". So the list is
//! kept in the order of reporting: what grows moves to the front, what is new pushes the last out.

use crate::seq::Seq;
use crate::wire::{SackBlocks, SackRange};

/// As many as an option without timestamps can hold.
const MAX: usize = 4;

/// The blocks to report, the most recent first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SackList {
    ranges: [SackRange; MAX],
    len: u8,
}

impl SackList {
    pub(crate) fn as_slice(&self) -> &[SackRange] {
        &self.ranges[..usize::from(self.len)]
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    fn remove(&mut self, at: usize) {
        self.ranges.copy_within(at + 1..usize::from(self.len), at);
        self.len -= 1;
    }

    /// Data from `start` to `end` arrived beyond a hole.
    pub(crate) fn add(&mut self, start: Seq, end: Seq) {
        let mut range = SackRange { start, end };
        let mut at = 0;
        // Whatever the new data touches becomes one block with it.
        while at < usize::from(self.len) {
            let old = self.ranges[at];
            if range.start.at_or_before(old.end) && old.start.at_or_before(range.end) {
                range = SackRange { start: range.start.min(old.start), end: range.end.max(old.end) };
                self.remove(at);
                at = 0;
            } else {
                at += 1;
            }
        }
        let keep = usize::from(self.len).min(MAX - 1);
        self.ranges.copy_within(0..keep, 1);
        self.ranges[0] = range;
        self.len = keep as u8 + 1;
    }

    /// Everything before `rcv_nxt` is acknowledged.
    pub(crate) fn acked_to(&mut self, rcv_nxt: Seq) {
        let mut at = 0;
        while at < usize::from(self.len) {
            if self.ranges[at].end.at_or_before(rcv_nxt) {
                self.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// The option: the duplicate first (RFC 2883 4), if there is one, then the blocks.
    pub(crate) fn blocks(&self, dsack: Option<SackRange>) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        dsack.into_iter().chain(self.as_slice().iter().copied()).for_each(|range| blocks.push(range));
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ranges: &[(u32, u32)]) -> SackList {
        let mut list = SackList::default();
        ranges.iter().for_each(|(a, b)| list.add(Seq(*a), Seq(*b)));
        list
    }

    fn told(list: &SackList) -> Vec<(u32, u32)> {
        list.as_slice().iter().map(|r| (r.start.0, r.end.0)).collect()
    }

    #[test]
    fn the_most_recent_block_comes_first() {
        assert_eq!(told(&list(&[(10, 20), (30, 40), (50, 60)])), [(50, 60), (30, 40), (10, 20)]);
        assert_eq!(told(&list(&[(10, 20), (30, 40), (20, 25)])), [(10, 25), (30, 40)]);
        assert_eq!(told(&list(&[(10, 20), (30, 40), (20, 30)])), [(10, 40)], "the hole between is filled");
        let five = list(&[(10, 20), (30, 40), (50, 60), (70, 80), (90, 100)]);
        assert_eq!(told(&five), [(90, 100), (70, 80), (50, 60), (30, 40)], "the oldest goes");
    }

    #[test]
    fn what_is_acknowledged_goes_and_a_duplicate_leads() {
        let mut some = list(&[(10, 20), (30, 40)]);
        some.acked_to(Seq(20));
        assert_eq!(told(&some), [(30, 40)]);
        let dup = SackRange { start: Seq(1), end: Seq(5) };
        assert_eq!(*some.blocks(Some(dup)), [dup, SackRange { start: Seq(30), end: Seq(40) }]);
        some.clear();
        assert!(some.blocks(None).is_empty());
    }
}
