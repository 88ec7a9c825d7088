//! SACK processing (RFC 2018 4–5, RFC 2883; Linux `tcp_sacktag_write_queue`).
//!
//! Blocks tag records that lie in them whole; a record is a packet, and receivers SACK whole
//! packets. The last blocks are remembered, so that a repeated block costs nothing and a grown
//! one its new part.

use super::ack::{Ack, flag};
use super::ring::{EVER, LOST, RETRANS, SACKED};
use super::{Cx, Sender};
use crate::Seq;
use crate::wire::SackRange;

/// Most blocks in an option (RFC 2018 3).
const MOST_BLOCKS: usize = 4;

/// Records of one DSACK that are looked at; it reports one packet, or a few after GRO.
const MOST_DUPLICATES: usize = 64;

/// The blocks of the last ACKs that are processed in full.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SackCache {
    blocks: [SackRange; MOST_BLOCKS],
    len: u8,
}

impl SackCache {
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Forgets blocks that SND.UNA has passed, before their numbers mean other data.
    pub(super) fn forget_below(&mut self, una: Seq) {
        let mut kept = 0;
        for i in 0..usize::from(self.len) {
            if self.blocks[i].end.after(una) {
                self.blocks[kept] = self.blocks[i];
                kept += 1;
            }
        }
        self.len = kept as u8;
    }

    fn as_slice(&self) -> &[SackRange] {
        &self.blocks[..usize::from(self.len)]
    }

    /// The part of `block` that no remembered block covers, as far as that is one range: what
    /// overlaps its start or its end is cut off.
    pub(super) fn news(&self, block: SackRange) -> Option<SackRange> {
        let SackRange { mut start, mut end } = block;
        for known in self.as_slice() {
            if known.start.at_or_before(start) && known.end.after(start) {
                start = start.max(known.end);
            }
            if known.end.at_or_after(end) && known.start.before(end) {
                end = end.min(known.start);
            }
        }
        start.before(end).then_some(SackRange { start, end })
    }

    pub(super) fn remember(&mut self, blocks: &[SackRange]) {
        self.len = 0;
        for (to, &from) in self.blocks.iter_mut().zip(blocks) {
            *to = from;
            self.len += 1;
        }
    }
}

impl Sender {
    /// The end of the highest SACKed record, or SND.UNA.
    #[inline]
    pub(super) fn highest_sacked(&self) -> Seq {
        match &self.cold {
            Some(cold) if self.sacked_out > 0 && self.sack_ok => cold.fack,
            _ => self.una,
        }
    }

    /// Takes the SACK blocks of an ACK in. SND.UNA has moved already.
    pub(super) fn take_sack(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, blocks: &[SackRange]) {
        if blocks.is_empty() || !self.sack_ok {
            return;
        }
        let blocks = &blocks[..blocks.len().min(MOST_BLOCKS)];
        let duplicate = self.check_dsack(cx, ack, blocks);
        let reported = blocks[0];
        // "Eliminate too old ACKs": what they say may be of another life of the numbers.
        if ack.ack.before(ack.prior_una - ack.max_window) || self.ring.is_empty() {
            return;
        }
        let mut used = [SackRange::default(); MOST_BLOCKS];
        let mut n = 0;
        for (i, &block) in blocks.iter().enumerate() {
            let dup = duplicate && i == 0;
            if !self.is_valid(ack, block, dup) {
                self.count_discard(cx, dup, i == 0 && block.end.before(ack.ack));
                continue;
            }
            if block.end.at_or_before(ack.prior_una) {
                continue;
            }
            used[n] = block;
            n += 1;
        }
        let used = &mut used[..n];
        // Insertion sort by start: at most four.
        for i in 1..used.len() {
            let mut j = i;
            while j > 0 && used[j].start.before(used[j - 1].start) {
                used.swap(j, j - 1);
                j -= 1;
            }
        }
        self.cold();
        for &block in used.iter() {
            let Some(cold) = &self.cold else { break };
            if let Some(news) = cold.cache.news(block) {
                self.tag_block(cx, ack, block, news);
            }
        }
        if let Some(cold) = &mut self.cold {
            cold.cache.remember(used);
        }
        if duplicate && reported.end.after(ack.prior_una) {
            self.take_duplicate(ack, reported);
        }
        if let Some(low) = ack.reord.take() {
            let fack = self.highest_sacked();
            self.note_sack_reordering(cx, low, fack, false);
        }
    }

    /// Tags the records of `block`, of which only `news` is new.
    fn tag_block(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, block: SackRange, news: SackRange) {
        let mut i = self.ring.find(news.start);
        while let Some(record) = self.ring.get(i) {
            if !record.seq.before(news.end) {
                break;
            }
            let whole = block.start.at_or_before(record.seq) && record.end().at_or_before(block.end);
            if whole && !record.is(SACKED) {
                self.tag(cx, ack, i);
            }
            i += 1;
        }
    }

    /// The peer has the `i`th record.
    fn tag(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, i: usize) {
        let fack = self.highest_sacked();
        let Some(&record) = self.ring.get(i) else { return };
        self.rack_advance(cx, &record);
        let mut tags = record.tags;
        if tags & RETRANS != 0 {
            // Of a packet that is not lost the copy is still on its way.
            if tags & LOST != 0 {
                tags &= !(LOST | RETRANS);
                self.lost_out -= 1;
                self.retrans_out -= 1;
            }
        } else {
            if tags & EVER == 0 {
                if record.seq.before(fack) {
                    ack.note_reordering(record.seq);
                }
                if record.end().at_or_before(self.high_seq) {
                    ack.flags |= flag::ORIG_SACK_ACKED;
                }
                let first = ack.sacked_sent.map_or(record.xmit, |(first, _)| first);
                ack.sacked_sent = Some((first, record.xmit));
            }
            if tags & LOST != 0 {
                tags &= !LOST;
                self.lost_out -= 1;
            }
        }
        tags |= SACKED;
        if let Some(record) = self.ring.get_mut(i) {
            record.tags = tags;
        }
        self.sacked_out += 1;
        self.rate.delivered = self.rate.delivered.wrapping_add(1);
        ack.rate.delivered(&record);
        ack.flags |= flag::DATA_SACKED;
        let cold = self.cold();
        cold.fack = fack.max(record.end());
    }

    /// A duplicate above SND.UNA: one of the copies that recovery sent was needless.
    fn take_duplicate(&mut self, ack: &mut Ack, block: SackRange) {
        let first = self.ring.find(block.start);
        for i in first..first + MOST_DUPLICATES {
            let (Some(record), Some(cold)) = (self.ring.get_mut(i), &mut self.cold) else { break };
            if !record.seq.before(block.end) {
                break;
            }
            let whole = block.start.at_or_before(record.seq) && record.end().at_or_before(block.end);
            if whole && record.is(EVER) {
                if cold.undo_retrans > 0 && cold.undo_marker.is_some_and(|mark| record.end().after(mark)) {
                    cold.undo_retrans -= 1;
                }
                if record.is(SACKED) {
                    ack.note_reordering(record.seq);
                }
                if record.tags & (SACKED | RETRANS) == SACKED | RETRANS {
                    record.tags &= !RETRANS;
                    self.retrans_out -= 1;
                }
            }
        }
    }

    /// Whether the first block is a DSACK that can be believed (RFC 2883 4; Linux
    /// `tcp_check_dsack`, `tcp_dsack_seen`).
    fn check_dsack(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, blocks: &[SackRange]) -> bool {
        let Some(&first) = blocks.first() else { return false };
        if !first.start.before(first.end) {
            return false;
        }
        let old = first.start.before(ack.ack);
        let nested = blocks.get(1).is_some_and(|second| {
            first.end.at_or_before(second.end) && first.start.at_or_after(second.start)
        });
        if !old && !nested {
            return false;
        }
        let len = first.end - first.start;
        let segs = if len > self.mss { len.div_ceil(self.mss) } else { 1 };
        let cold = self.cold();
        if cold.dsack_dups.saturating_add(segs) > cold.total_retrans {
            // More duplicates than were ever made: the network's, or a liar's.
            cx.counters.tcp_dsack_ignored_dubious += 1;
            return false;
        }
        cold.dsack_dups += segs;
        cold.rack.dsack_seen = true;
        if cold.undo_retrans > 0
            && first.end.at_or_before(ack.prior_una)
            && cold.undo_marker.is_some_and(|mark| first.end.after(mark))
        {
            // Data already forgotten: counted, not looked up.
            cold.undo_retrans = (cold.undo_retrans - segs as i32).max(0);
        }
        ack.flags |= flag::DSACK;
        if self.tlp_out && self.tlp_high_seq == first.end {
            ack.flags |= flag::DSACK_TLP;
        }
        self.rate.delivered = self.rate.delivered.wrapping_add(segs);
        cx.counters.tcp_dsack_recv_segs += u64::from(segs);
        if old {
            cx.counters.tcp_dsack_recv += 1;
        } else {
            cx.counters.tcp_dsack_ofo_recv += 1;
        }
        true
    }

    /// RFC 2018's and 2883's bounds (Linux `tcp_is_sackblock_valid`).
    fn is_valid(&self, ack: &Ack, block: SackRange, dup: bool) -> bool {
        if !block.start.before(block.end) || block.end.after(self.nxt) || !block.start.before(self.nxt) {
            return false;
        }
        if block.start.after(self.una) {
            return true;
        }
        let Some(mark) = self.cold.as_ref().and_then(|cold| cold.undo_marker).filter(|_| dup) else {
            return false;
        };
        if block.end.after(self.una) {
            return false;
        }
        // Of this recovery, or across its start by no more than a window.
        block.start.at_or_after(mark)
            || (block.end.after(mark) && block.start.at_or_after(block.end - ack.max_window))
    }

    fn count_discard(&self, cx: &mut Cx<'_>, dup: bool, old: bool) {
        if dup {
            if self.cold.as_ref().is_some_and(|cold| cold.undo_marker.is_some()) {
                cx.counters.tcp_dsack_ignored_old += 1;
            } else {
                cx.counters.tcp_dsack_ignored_no_undo += 1;
            }
        } else if !old {
            cx.counters.tcp_sack_discard += 1;
        }
    }

    /// A packet numbered `low`, never retransmitted, came after one that ends at `fack`: the
    /// degree of reordering (Linux `tcp_check_sack_reordering`). `by_ts`: a timestamp proves it.
    pub(super) fn note_sack_reordering(&mut self, cx: &mut Cx<'_>, low: Seq, fack: Seq, by_ts: bool) {
        if !low.before(fack) {
            return;
        }
        let (mss, degree, most) = (self.mss, self.reordering(cx.cfg), cx.cfg.tcp_max_reordering);
        let metric = fack - low;
        let cold = self.cold();
        if metric > degree.saturating_mul(mss) {
            cold.reordering = metric.div_ceil(mss).min(most);
        }
        cold.reord_seen = cold.reord_seen.wrapping_add(1);
        if by_ts {
            cx.counters.tcp_ts_reorder += 1;
        } else {
            cx.counters.tcp_sack_reorder += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(start: u32, end: u32) -> SackRange {
        SackRange { start: Seq(start), end: Seq(end) }
    }

    #[test]
    fn only_the_new_part_of_a_block_is_walked() {
        let mut cache = SackCache::default();
        assert_eq!(cache.news(block(10, 20)), Some(block(10, 20)));
        cache.remember(&[block(10, 20), block(40, 50)]);
        assert_eq!(cache.news(block(10, 20)), None);
        assert_eq!(cache.news(block(12, 18)), None);
        assert_eq!(cache.news(block(10, 25)), Some(block(20, 25)));
        assert_eq!(cache.news(block(5, 20)), Some(block(5, 10)));
        assert_eq!(cache.news(block(5, 25)), Some(block(5, 25)));
        assert_eq!(cache.news(block(10, 50)), Some(block(20, 40)));
        assert_eq!(cache.news(block(20, 40)), Some(block(20, 40)));
        cache.clear();
        assert_eq!(cache.news(block(10, 20)), Some(block(10, 20)));
    }

    #[test]
    fn the_cache_holds_across_the_wrap() {
        let mut cache = SackCache::default();
        cache.remember(&[block(u32::MAX - 9, 10)]);
        assert_eq!(cache.news(block(u32::MAX - 9, 30)), Some(block(10, 30)));
        assert_eq!(cache.news(block(u32::MAX - 19, 10)), Some(block(u32::MAX - 19, u32::MAX - 9)));
    }
}
