//! Whether new data waits for the next ACK to leave in one longer run (Linux
//! `tcp_tso_should_defer`).
//!
//! Only the windows' last crumbs wait, and only while an ACK is due in a moment: something is in
//! flight, so that its ACK or the timer asks again.

use super::{CaState, Cx, Limits, Sender};
use crate::Span;

/// The part of a window that is worth sending at once (Linux `tcp_tso_win_divisor`).
const WIN_DIVISOR: u32 = 3;

/// A pause after which nothing is deferred, and the longest wait for an ACK.
const MOMENT: Span = Span(1000);

/// What defers new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferred {
    No,
    ByCwnd,
    ByPeer,
}

impl Sender {
    /// Whether what the windows admit waits for more. What is queued is never held back if the
    /// windows admit all of it: then there is nothing to wait for.
    pub(super) fn defers(&self, cx: &Cx<'_>, limits: &Limits) -> Deferred {
        let queued = limits.write_seq.past(self.nxt);
        let (mss, cwnd) = (self.mss, self.window.cwnd);
        let Some(head) = self.ring.front().filter(|_| queued > mss) else { return Deferred::No };
        if self.state >= CaState::Recovery || cx.now.since(self.last_send) > MOMENT {
            return Deferred::No;
        }
        let peer = limits.edge.past(self.nxt);
        let own = cwnd.saturating_sub(self.in_flight()).saturating_mul(mss);
        let room = peer.min(own);
        let chunk = limits.edge.past(self.una).min(cwnd.saturating_mul(mss)) / WIN_DIVISOR;
        if room >= limits.max_len.min(queued) || room >= chunk {
            return Deferred::No;
        }
        // The ACK of the oldest packet is the next one.
        let srtt = self.rtt.srtt().unwrap_or(Span::MAX);
        let due = head.xmit + srtt;
        if due.since(cx.now) > MOMENT.min(Span(srtt.0 / 2)) {
            return Deferred::No;
        }
        if own < peer { Deferred::ByCwnd } else { Deferred::ByPeer }
    }
}
