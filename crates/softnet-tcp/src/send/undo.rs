//! Taking back a reduction whose cause proves to be no loss.
//!
//! Three proofs: a timestamp older than the first retransmission (Eifel, RFC 3522 and 4015); DSACKs
//! for every retransmission (RFC 3708); and after a time-out, delivery of data never retransmitted
//! (F-RTO, RFC 5682, whose steps are in `recovery`). A recovery is undone once: the marker that
//! allows it goes with it, so that a lying peer gains one restored window and no more.

use super::ack::Ack;
use super::{CaState, Cx, Sender};

impl Sender {
    /// From here on an undo restores what there is now.
    pub(super) fn begin_undo(&mut self) {
        let (una, retrans) = (self.una, self.retrans_out);
        let probe = self.tlp_out && self.tlp_retrans;
        let cold = self.cold();
        cold.undo_marker = Some(una);
        // Copies that are out may bring DSACKs too.
        let copies = (retrans + u32::from(probe)) as i32;
        cold.undo_retrans = if copies == 0 { -1 } else { copies };
    }

    fn may_undo(&self, ack: &Ack) -> bool {
        self.cold.as_ref().is_some_and(|cold| {
            cold.undo_marker.is_some() && (cold.undo_retrans == 0 || self.packet_delayed(ack))
        })
    }

    /// Restores window and threshold; with `unmark` nothing is lost any more.
    fn undo_reduction(&mut self, cx: &Cx<'_>, unmark: bool) {
        if unmark {
            self.unmark_lost();
        }
        let Some(cold) = &mut self.cold else { return };
        cold.undo_marker = None;
        cold.rack.advanced = true;
        let (prior_cwnd, prior_ssthresh) = (cold.prior_cwnd, cold.prior_ssthresh);
        if prior_ssthresh > 0 {
            self.window.set(self.window.cwnd.max(prior_cwnd), cx.now);
            self.cc.on_undo();
            if prior_ssthresh > self.window.ssthresh {
                self.window.ssthresh = prior_ssthresh;
                self.cwr_pending = false;
            }
        }
    }

    /// Without SACK an old duplicate ACK at the recovery point would start a second recovery:
    /// the state is held until something above it is acknowledged (RFC 6582 4).
    fn holds_recovery_point(&mut self) -> bool {
        let held = self.una == self.high_seq && !self.sack_ok;
        if held
            && !self.any_retransmitted()
            && let Some(cold) = &mut self.cold
        {
            cold.retrans_stamp = None;
        }
        held
    }

    /// SND.UNA reached the recovery point. Returns whether the state is held.
    pub(super) fn try_undo_recovery(&mut self, cx: &mut Cx<'_>, ack: &Ack) -> bool {
        if self.may_undo(ack) {
            let loss = self.state == CaState::Loss;
            self.undo_reduction(cx, false);
            if loss {
                cx.counters.tcp_loss_undo += 1;
            } else {
                cx.counters.tcp_full_undo += 1;
            }
        } else {
            self.rack_recovered();
        }
        if self.holds_recovery_point() {
            return true;
        }
        self.forgive_reneging();
        self.set_state(CaState::Open);
        self.frto = false;
        false
    }

    /// Every retransmission was reported as a duplicate.
    pub(super) fn try_undo_dsack(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(cold) = &mut self.cold else { return false };
        if cold.undo_marker.is_none() || cold.undo_retrans != 0 {
            return false;
        }
        cold.rack.persist = (cold.rack.persist + 1).min(super::rack::REO_WND_PERSIST);
        self.undo_reduction(cx, false);
        cx.counters.tcp_dsack_undo += 1;
        true
    }

    /// A time-out that was spurious. `frto`: F-RTO says so.
    pub(super) fn try_undo_loss(&mut self, cx: &mut Cx<'_>, ack: &Ack, frto: bool) -> bool {
        if !frto && !self.may_undo(ack) {
            return false;
        }
        self.undo_reduction(cx, true);
        cx.counters.tcp_loss_undo += 1;
        if frto {
            cx.counters.tcp_spurious_rtos += 1;
        }
        self.retransmits = 0;
        if self.holds_recovery_point() {
            return true;
        }
        if frto || self.sack_ok {
            self.forgive_reneging();
            self.set_state(CaState::Open);
            self.frto = false;
        }
        true
    }

    /// A partial ACK that a timestamp shows to be of originals. Returns whether the rest of the
    /// ACK is of no interest: copies are still out, and their fate decides.
    pub(super) fn try_undo_partial(&mut self, cx: &mut Cx<'_>, ack: &Ack) -> bool {
        let marked = self.cold.as_ref().is_some_and(|cold| cold.undo_marker.is_some());
        if !marked || !self.packet_delayed(ack) {
            return false;
        }
        if self.sack_ok {
            let fack = self.highest_sacked();
            self.note_sack_reordering(cx, ack.prior_una, fack, true);
        }
        if self.retrans_out > 0 {
            self.unmark_unsent();
            return true;
        }
        if !self.any_retransmitted()
            && let Some(cold) = &mut self.cold
        {
            cold.retrans_stamp = None;
        }
        self.undo_reduction(cx, true);
        cx.counters.tcp_partial_undo += 1;
        self.try_keep_open();
        false
    }
}
