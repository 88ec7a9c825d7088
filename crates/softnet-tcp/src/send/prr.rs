//! Proportional rate reduction (RFC 9937; Linux `tcp_cwnd_reduction`).
//!
//! A reduction spreads over the round trip: for every packet delivered `ssthresh / prior_cwnd`
//! packets go out, so that the flight is at `ssthresh` when recovery ends. Where losses took the
//! flight below `ssthresh`, the reduction bound is what was delivered (CRB), plus one where the
//! ACK shows that all goes well (SSRB).

use super::cc::Cause;
use super::{CaState, Cx, Sender};

/// Packets that may be sent in answer to an ACK (RFC 9937 6).
///
/// `delivered` > 0: by this ACK. `safe`: SND.UNA advanced and nothing was found lost.
pub(super) fn sndcnt(
    in_flight: u32,
    ssthresh: u32,
    prior_cwnd: u32,
    prr_delivered: u32,
    prr_out: u32,
    delivered: u32,
    safe: bool,
) -> u32 {
    let sndcnt = if in_flight > ssthresh {
        let share = u64::from(prr_delivered) * u64::from(ssthresh);
        let share = share.div_ceil(u64::from(prior_cwnd.max(1)));
        share.saturating_sub(u64::from(prr_out)).min(u64::from(u32::MAX)) as u32
    } else {
        let bound = prr_delivered.saturating_sub(prr_out).max(delivered);
        (bound + u32::from(safe)).min(ssthresh - in_flight)
    };
    // "Force a fast retransmit upon entering recovery".
    sndcnt.max(u32::from(prr_out == 0))
}

impl Sender {
    /// Whether the window follows this module.
    #[inline]
    pub(super) fn in_reduction(&self) -> bool {
        matches!(self.state, CaState::Cwr | CaState::Recovery)
    }

    /// Begins a reduction: at most one for each window. `cause`: what asks for it.
    pub(super) fn begin_reduction(&mut self, cause: Cause) {
        self.high_seq = self.nxt;
        self.tlp_out = false;
        self.window.cnt = 0;
        let cwnd = self.window.cwnd;
        let cold = self.cold();
        cold.prior_cwnd = cwnd;
        cold.prr_delivered = 0;
        cold.prr_out = 0;
        self.window.ssthresh = self.cc.ssthresh(cwnd, cause);
        self.cwr_pending = self.ecn_ok;
    }

    /// The window after an ACK that delivered `delivered` packets and showed `lost` to be lost.
    pub(super) fn prr(&mut self, cx: &Cx<'_>, delivered: u32, lost: u32, una_advanced: bool) {
        let (in_flight, ssthresh) = (self.in_flight(), self.window.ssthresh);
        let Some(cold) = &mut self.cold else { return };
        // "If DeliveredData is 0, return": such an ACK changes nothing.
        if delivered == 0 || cold.prior_cwnd == 0 {
            return;
        }
        cold.prr_delivered = cold.prr_delivered.saturating_add(delivered);
        let (prior, sum, out) = (cold.prior_cwnd, cold.prr_delivered, cold.prr_out);
        let safe = una_advanced && lost == 0;
        let sndcnt = sndcnt(in_flight, ssthresh, prior, sum, out, delivered, safe);
        self.window.set(in_flight.saturating_add(sndcnt), cx.now);
    }

    /// The reduction is done.
    pub(super) fn end_reduction(&mut self, cx: &Cx<'_>) {
        let undoable = self.cold.as_ref().is_some_and(|cold| cold.undo_marker.is_some());
        if self.window.ssthresh < super::cwnd::INFINITE_SSTHRESH && (self.state == CaState::Cwr || undoable) {
            self.window.set(self.window.ssthresh, cx.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent for each of `acks` deliveries, nothing else being lost.
    fn run(prior: u32, ssthresh: u32, mut flight: u32, acks: u32, safe: bool) -> Vec<u32> {
        let mut out = 0;
        (1..=acks)
            .map(|sum| {
                flight -= 1;
                let n = sndcnt(flight, ssthresh, prior, sum, out, 1, safe);
                out += n;
                flight += n;
                out
            })
            .collect()
    }

    #[test]
    fn twenty_to_fourteen_sends_seven_of_ten() {
        // One of 20 is lost: in flight 19.
        let sent = run(20, 14, 19, 10, false);
        assert_eq!(sent, [1, 2, 3, 3, 4, 5, 5, 6, 7, 7]);
        assert_eq!(run(20, 14, 19, 19, false).last(), Some(&14));
    }

    #[test]
    fn below_the_threshold_it_conserves_packets_or_slow_starts() {
        // Conservation bound: one out for one delivered; slow start bound: two, up to ssthresh.
        assert_eq!(run(20, 10, 5, 3, false), [1, 2, 3]);
        assert_eq!(run(20, 10, 5, 6, true), [2, 4, 6, 8, 10, 11]);
        // What was held back while the flight was above may be sent below.
        assert_eq!(sndcnt(4, 10, 20, 9, 5, 1, false), 4);
        assert_eq!(sndcnt(9, 10, 20, 9, 5, 1, false), 1);
    }

    #[test]
    fn the_first_packet_goes_whatever_the_window_says() {
        assert_eq!(sndcnt(100, 1, 100, 0, 0, 0, false), 1);
        assert_eq!(sndcnt(10, 10, 20, 1, 0, 1, false), 1);
        assert_eq!(sndcnt(100, 1, 100, 1, 1, 1, false), 0);
    }
}
