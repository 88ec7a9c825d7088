//! Loss without SACK: duplicate ACKs (RFC 5681 3.2, RFC 6582; Linux `tcp_add_reno_sack` and
//! neighbours).
//!
//! A duplicate ACK says that a packet arrived, not which. `sacked_out` counts them; no record is
//! tagged.

use super::{CaState, Cx, Sender};

impl Sender {
    /// At most what is in flight without a hole may be counted as arrived.
    pub(super) fn limit_reno_sacks(&mut self) -> bool {
        let holes = self.lost_out.max(1).min(self.packets_out);
        let over = self.sacked_out + holes > self.packets_out;
        if over {
            self.sacked_out = self.packets_out - holes;
        }
        over
    }

    /// More duplicates than packets could cause: reordering.
    fn check_reno_reordering(&mut self, cx: &mut Cx<'_>, acked: u32) {
        if self.limit_reno_sacks() {
            let degree = (self.packets_out + acked).min(cx.cfg.tcp_max_reordering);
            let cold = self.cold();
            cold.reordering = degree;
            cold.reord_seen = cold.reord_seen.wrapping_add(1);
            cx.counters.tcp_reno_reorder += 1;
        }
    }

    /// Counts `dups` duplicate ACKs; nothing with SACK.
    pub(super) fn add_reno_sacks(&mut self, cx: &mut Cx<'_>, dups: u32) {
        if self.sack_ok || dups == 0 {
            return;
        }
        let prior = self.sacked_out;
        self.sacked_out = self.sacked_out.saturating_add(dups.min(self.packets_out));
        self.check_reno_reordering(cx, 0);
        let delivered = self.sacked_out.saturating_sub(prior);
        self.rate.delivered = self.rate.delivered.wrapping_add(delivered);
    }

    /// SND.UNA passed `acked` packets: one was the hole, the others were counted as they came.
    pub(super) fn remove_reno_sacks(&mut self, cx: &mut Cx<'_>, acked: u32) {
        if acked > 0 {
            let news = acked.saturating_sub(self.sacked_out).max(1);
            self.rate.delivered = self.rate.delivered.wrapping_add(news);
            self.sacked_out = self.sacked_out.saturating_sub(acked - 1);
        }
        self.check_reno_reordering(cx, acked);
    }

    /// "the third duplicate ACK" (RFC 5681 3.2 step 2), and the next hole at each partial ACK
    /// (RFC 6582 3.2 step 3): the head is lost.
    pub(super) fn reno_mark_lost(&mut self, cx: &mut Cx<'_>, una_advanced: bool) {
        let start = self.state < CaState::Recovery && self.sacked_out >= self.reordering(cx.cfg);
        let partial = self.state == CaState::Recovery && una_advanced;
        if (start || partial) && !self.ring.front().is_some_and(|head| head.is(super::ring::LOST)) {
            self.cold();
            let mut lost_again = 0;
            self.mark_lost(0, &mut lost_again);
            self.limit_reno_sacks();
        }
    }
}
