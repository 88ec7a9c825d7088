//! The states of loss recovery: entering, staying, leaving (RFC 5681, 6675 5, 8985; Linux
//! `tcp_fastretrans_alert`, `tcp_enter_loss`, `tcp_process_loss`).

use super::ack::{Ack, flag};
use super::cc::Cause;
use super::ring::{EVER, LOST, RETRANS};
use super::{CaState, Cx, Sender};

impl Sender {
    pub(super) fn set_state(&mut self, state: CaState) {
        self.state = state;
    }

    /// Whether something in flight was, or may have been, retransmitted.
    pub(super) fn any_retransmitted(&self) -> bool {
        self.retrans_out > 0 || self.ring.front().is_some_and(|head| head.is(EVER))
    }

    /// Open, or Disorder if something is SACKed, lost or retransmitted.
    pub(super) fn try_keep_open(&mut self) {
        let quiet = self.sacked_out + self.lost_out == 0 && !self.any_retransmitted();
        let state = if quiet { CaState::Open } else { CaState::Disorder };
        if self.state != state {
            self.set_state(state);
            self.high_seq = self.nxt;
        }
    }

    fn try_to_open(&mut self, ack: &Ack) {
        if !self.any_retransmitted()
            && let Some(cold) = &mut self.cold
        {
            cold.retrans_stamp = None;
        }
        if ack.is(flag::ECE) {
            self.enter_cwr();
        }
        if self.state != CaState::Cwr {
            self.try_keep_open();
        }
    }

    /// One reduction for the window in which ECE came (RFC 3168 6.1.2), without undo.
    fn enter_cwr(&mut self) {
        self.cold().prior_ssthresh = 0;
        if self.state < CaState::Cwr {
            self.cold().undo_marker = None;
            self.begin_reduction(Cause::Ecn);
            self.set_state(CaState::Cwr);
        }
    }

    /// Fast recovery (RFC 6675 5 step 4). `ece`: the ACK asks for a reduction anyway, so that
    /// nothing may be undone.
    pub(super) fn enter_recovery(&mut self, cx: &mut Cx<'_>, ece: bool) {
        if self.sack_ok {
            cx.counters.tcp_sack_recovery += 1;
        } else {
            cx.counters.tcp_reno_recovery += 1;
        }
        self.cold().prior_ssthresh = 0;
        self.begin_undo();
        if !self.in_reduction() {
            if !ece {
                self.cold().prior_ssthresh = self.window.current_ssthresh(false);
            }
            self.begin_reduction(Cause::Loss);
        }
        self.set_state(CaState::Recovery);
    }

    /// A dubious ACK. `dups`: the duplicate ACKs that it stands for.
    pub(super) fn alert(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, dups: u32) {
        let ece = ack.is(flag::ECE);
        if self.packets_out == 0 {
            self.sacked_out = 0;
        }
        if ece {
            self.cold().prior_ssthresh = 0;
        }
        if self.check_reneging(cx, ack) {
            return;
        }
        if self.state == CaState::Open {
            if let Some(cold) = &mut self.cold {
                cold.retrans_stamp = None;
            }
        } else if self.una.at_or_after(self.high_seq) {
            match self.state {
                CaState::Cwr if self.una != self.high_seq => {
                    self.end_reduction(cx);
                    self.set_state(CaState::Open);
                }
                CaState::Recovery => {
                    if !self.sack_ok {
                        self.sacked_out = 0;
                    }
                    if self.try_undo_recovery(cx, ack) {
                        return;
                    }
                    self.end_reduction(cx);
                }
                _ => {}
            }
        }
        match self.state {
            CaState::Recovery => {
                if !ack.is(flag::UNA_ADVANCED) {
                    self.add_reno_sacks(cx, dups);
                } else if self.try_undo_partial(cx, ack) {
                    return;
                }
                if self.try_undo_dsack(cx) {
                    self.try_to_open(ack);
                }
                self.identify_loss(cx, ack);
                if self.state != CaState::Recovery && self.lost_out > 0 {
                    // Undone, and a loss all the same: a recovery of its own.
                    self.enter_recovery(cx, ece);
                }
            }
            CaState::Loss => {
                self.process_loss(cx, ack, dups);
                self.identify_loss(cx, ack);
                if self.state == CaState::Open || ack.is(flag::LOST_RETRANS) {
                    self.disorder(cx, ack, dups);
                }
            }
            _ => self.disorder(cx, ack, dups),
        }
    }

    /// An ACK in no recovery, or one that ends it early.
    fn disorder(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, dups: u32) {
        if !self.sack_ok {
            if ack.is(flag::UNA_ADVANCED) {
                self.sacked_out = 0;
            }
            self.add_reno_sacks(cx, dups);
        }
        if self.state <= CaState::Disorder {
            self.try_undo_dsack(cx);
        }
        self.identify_loss(cx, ack);
        if self.lost_out == 0 {
            self.try_to_open(ack);
        } else {
            self.enter_recovery(cx, ack.is(flag::ECE));
        }
    }

    /// Marks what this ACK shows to be lost: by RACK, or by RFC 6582 without SACK.
    fn identify_loss(&mut self, cx: &mut Cx<'_>, ack: &mut Ack) {
        if self.ring.is_empty() {
            return;
        }
        if self.sack_ok {
            self.rack_mark_lost(cx, ack);
        } else {
            self.reno_mark_lost(cx, ack.is(flag::UNA_ADVANCED));
        }
    }

    /// A retransmission time-out (RFC 6298 5.4, RFC 5681 3.1, RFC 5682 3.1 step 1).
    pub(super) fn enter_loss(&mut self, cx: &mut Cx<'_>) {
        let fresh = self.state < CaState::Recovery;
        self.cold();
        self.mark_timed_out(cx);
        // "ssthresh … not … reduced again" within one window.
        if self.state <= CaState::Disorder
            || self.una.at_or_after(self.high_seq)
            || (self.state == CaState::Loss && self.retransmits == 0)
        {
            let cwnd = self.window.cwnd;
            let remember = self.window.current_ssthresh(self.in_reduction());
            let cold = self.cold();
            cold.prior_ssthresh = remember;
            cold.prior_cwnd = cwnd;
            self.window.ssthresh = self.cc.ssthresh(cwnd, Cause::Loss);
            self.begin_undo();
        }
        self.window.set(self.in_flight() + 1, cx.now);
        self.window.cnt = 0;
        self.cc.on_timeout();
        if self.state <= CaState::Disorder && self.sacked_out >= cx.cfg.tcp_reordering {
            // The degree of reordering was over-estimated, or the time-out would not have been.
            let cold = self.cold();
            cold.reordering = cold.reordering.min(cx.cfg.tcp_reordering);
        }
        self.set_state(CaState::Loss);
        self.high_seq = self.nxt;
        self.tlp_out = false;
        self.tlp_due = false;
        self.frto_new = false;
        self.cwr_pending = self.ecn_ok;
        self.frto = cx.cfg.tcp_frto && (fresh || self.retransmits > 0);
    }

    /// Marks the head lost, and what was sent an RTT ago or more: very recent packets may well
    /// arrive (RFC 8985 6.3).
    fn mark_timed_out(&mut self, cx: &mut Cx<'_>) {
        let all = self.forget_reneged(cx);
        if !self.sack_ok {
            self.sacked_out = 0;
        }
        let mut rtt = self.cold.as_ref().map_or(crate::Span::ZERO, |cold| cold.rack.rtt);
        if rtt == crate::Span::ZERO && self.sack_ok {
            // RACK measures from the first loss on, which this may be.
            rtt = self.rtt.srtt().unwrap_or(rtt);
        }
        let mut lost_again = 0;
        for i in 0..self.ring.len() {
            let Some(record) = self.ring.get(i) else { break };
            if all || i == 0 || cx.now.since(record.xmit) >= rtt {
                self.mark_lost(i, &mut lost_again);
            }
        }
        cx.counters.tcp_lost_retransmit += lost_again;
        if all {
            self.rebuild_order();
        }
    }

    /// An ACK in Loss, F-RTO first (RFC 5682 3.1).
    fn process_loss(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, dups: u32) {
        let recovered = self.una.at_or_after(self.high_seq);
        if ack.is(flag::UNA_ADVANCED) && self.try_undo_loss(cx, ack, false) {
            return;
        }
        if self.frto {
            // Step 3b: data never retransmitted was delivered.
            if ack.is(flag::ORIG_SACK_ACKED) && self.try_undo_loss(cx, ack, true) {
                return;
            }
            if self.nxt.after(self.high_seq) {
                if ack.is(flag::DATA_SACKED) || dups > 0 {
                    // Step 3a: the loss was real.
                    self.frto = false;
                }
            } else if ack.is(flag::UNA_ADVANCED) && !recovered {
                // Step 2b: new data, if there is any; `next` knows.
                self.high_seq = self.nxt;
                self.frto_new = true;
                return;
            }
        }
        if recovered {
            // Step 2a, and the ordinary end.
            self.try_undo_recovery(cx, ack);
            return;
        }
        if !self.sack_ok {
            if self.nxt.after(self.high_seq) && dups > 0 {
                self.add_reno_sacks(cx, dups);
            } else if ack.is(flag::UNA_ADVANCED) {
                self.sacked_out = 0;
            }
        }
    }

    /// What a time-out failed to prevent (Linux `tcp_retransmit_timer`).
    pub(super) fn count_failure(&self, cx: &mut Cx<'_>) {
        match (self.state, self.sack_ok) {
            (CaState::Recovery, true) => cx.counters.tcp_sack_recovery_fail += 1,
            (CaState::Recovery, false) => cx.counters.tcp_reno_recovery_fail += 1,
            (CaState::Loss, _) => cx.counters.tcp_loss_failures += 1,
            (_, true) if self.state == CaState::Disorder || self.sacked_out > 0 => {
                cx.counters.tcp_sack_failures += 1;
            }
            (_, false) if self.state == CaState::Disorder || self.sacked_out > 0 => {
                cx.counters.tcp_reno_failures += 1;
            }
            _ => {}
        }
    }

    /// Takes all loss marks back.
    pub(super) fn unmark_lost(&mut self) {
        for i in 0..self.ring.len() {
            if let Some(record) = self.ring.get_mut(i) {
                record.tags &= !LOST;
            }
        }
        self.lost_out = 0;
        self.rebuild_order();
    }

    /// Takes back the marks of what was not sent again. RACK looks at it anew, with what it has
    /// learnt since about lateness.
    pub(super) fn unmark_unsent(&mut self) {
        // Every copy that is out is of a packet that is marked.
        if self.lost_out <= self.retrans_out {
            return;
        }
        for i in 0..self.ring.len() {
            if let Some(record) = self.ring.get_mut(i)
                && record.tags & (LOST | RETRANS) == LOST
            {
                record.tags &= !LOST;
                self.lost_out -= 1;
            }
        }
        self.rebuild_order();
        if let Some(cold) = &mut self.cold {
            cold.rack.advanced = true;
        }
    }

    /// Whether TSval of the first retransmission is later than what the ACK echoes, or nothing
    /// was retransmitted: what was delivered is the original.
    pub(super) fn packet_delayed(&self, ack: &Ack) -> bool {
        match self.cold.as_ref().and_then(|cold| cold.retrans_stamp) {
            Some(stamp) => ack.echo_before(stamp),
            None => true,
        }
    }
}
