//! What ICMP says about packets in flight (RFC 5927: the connection has checked that the quoted
//! number lies in SND.UNA..SND.NXT).

use super::ring::{FIN, LOST, PSH, RETRANS, SACKED, SYN};
use super::{CaState, Cx, Sender, Timer};

impl Sender {
    /// The payload of a full segment changed. Where it shrank because a router said so, packets
    /// that no longer fit are cut up and count as lost, without a reduction: the path is too
    /// narrow, not too full (RFC 1191 6.5; Linux `tcp_simple_retransmit`). A run of output follows.
    pub fn set_mss(&mut self, mss: u16) {
        let mss = u32::from(mss.max(1));
        if mss == self.mss {
            return;
        }
        let shrank = mss < self.mss;
        self.mss = mss;
        if !shrank || self.ring.is_empty() {
            return;
        }
        if !self.recut() {
            return;
        }
        if !self.sack_ok {
            self.limit_reno_sacks();
        }
        if self.state != CaState::Loss {
            self.high_seq = self.nxt;
            self.window.ssthresh = self.window.current_ssthresh(self.in_reduction());
            let cold = self.cold();
            cold.prior_ssthresh = 0;
            cold.undo_marker = None;
            self.frto = false;
            self.set_state(CaState::Loss);
        }
    }

    /// Cuts every record to the MSS and marks the parts of those that were too long as lost.
    /// Returns whether there were any.
    fn recut(&mut self) -> bool {
        let mss = self.mss;
        let old = std::mem::take(&mut self.ring);
        let mut cut = Vec::new();
        let (mut sacked, mut lost, mut retrans) = (0, 0, 0);
        for mut rest in (0..old.len()).filter_map(|i| old.get(i).copied()) {
            loop {
                let ends = u32::from(rest.is(SYN)) + u32::from(rest.is(FIN));
                let over = u32::from(rest.len) - ends > mss;
                let mut part = rest;
                if over {
                    part.len = (mss + u32::from(rest.is(SYN))) as u16;
                    part.tags &= !(FIN | PSH);
                    cut.push(self.ring.len());
                } else if rest.seq != old.get(old.find(rest.seq)).map_or(rest.seq, |whole| whole.seq) {
                    cut.push(self.ring.len());
                }
                sacked += u32::from(part.is(SACKED));
                lost += u32::from(part.is(LOST));
                retrans += u32::from(part.is(RETRANS));
                self.ring.push(part);
                if !over {
                    break;
                }
                rest.seq = part.end();
                rest.len -= part.len;
                rest.tags &= !SYN;
            }
        }
        self.packets_out = self.ring.len() as u32;
        if self.sack_ok {
            self.sacked_out = sacked;
        }
        self.lost_out = lost;
        self.retrans_out = retrans;
        self.cold();
        let mut lost_again = 0;
        for &i in &cut {
            self.mark_lost(i, &mut lost_again);
        }
        self.rebuild_order();
        !cut.is_empty()
    }

    /// Net or host unreachable, quoting the head while RTO is backed off: one doubling is taken
    /// back (RFC 6069 4.2), and the timer runs for what is left of the shorter RTO.
    pub fn on_unreachable(&mut self, cx: &Cx<'_>) {
        let Some(head) = self.ring.front().copied() else { return };
        if self.timer != Timer::Rto || self.retransmits == 0 || self.backoff == 0 {
            return;
        }
        self.backoff -= 1;
        let at = (head.xmit + self.rto(cx.cfg)).max(cx.now);
        self.arm(Timer::Rto, at);
    }
}
