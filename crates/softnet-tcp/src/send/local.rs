//! What this host dropped before it was on the wire: a discipline that was full, a ring without room
//! (Linux `tcp_transmit_skb` and `tcp_enter_cwr` on `NET_XMIT_DROP`).
//!
//! No ACK has to tell of it. What was dropped is to be sent again, and the window is reduced, once in
//! a round trip as for any congestion. Nothing is undone later: the original can't turn up.

use super::cc::Cause;
use super::ring::SYN;
use super::{CaState, Cx, Sender, Timer};
use crate::Seq;

impl Sender {
    /// The packets between `start` and `end` never left. Returns whether any of them was in flight.
    pub fn on_local_drop(&mut self, cx: &mut Cx<'_>, start: Seq, end: Seq) -> bool {
        self.cold();
        let (before, mut lost_again) = (self.total_lost(), 0);
        let mut i = self.ring.find(start);
        while let Some(record) = self.ring.get(i)
            && record.seq.before(end)
        {
            // A SYN has its own time-out.
            if !record.is(SYN) {
                self.mark_lost(i, &mut lost_again);
            }
            i += 1;
        }
        cx.counters.tcp_lost_retransmit += lost_again;
        let lost = self.total_lost().wrapping_sub(before);
        if lost == 0 {
            return false;
        }
        if !self.sack_ok {
            self.limit_reno_sacks();
        }
        if self.state < CaState::Recovery {
            self.cold().prior_ssthresh = 0;
            self.begin_undo();
            if !self.in_reduction() {
                self.begin_reduction(Cause::Ecn);
            }
            self.set_state(CaState::Recovery);
            self.prr(cx, 1, lost, false);
        }
        self.cold().dropped_here = true;
        self.tlp_due = false;
        if self.timer == Timer::Tlp {
            self.rearm_rto(cx);
        }
        true
    }
}
