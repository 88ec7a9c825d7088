//! A peer that drops what it SACKed (RFC 2018 8 permits it).
//!
//! SND.UNA stops at a SACKed record: the peer named it and does not have it. Nothing is believed
//! or dropped at once: if the next ACK does not come within half an RTT, at least 10 ms, a
//! time-out clears all SACK tags and sends everything again (Linux `tcp_check_sack_reneging`).

use super::ack::{Ack, flag};
use super::ring::SACKED;
use super::{Cx, Sender, Timer};
use crate::Span;

/// The least time that the peer is given.
const LEAST_WAIT: Span = Span(10_000);

impl Sender {
    /// Whether this ACK shows reneging; the timer is armed then.
    pub(super) fn check_reneging(&mut self, cx: &Cx<'_>, ack: &mut Ack) -> bool {
        let reneging = ack.is(flag::RENEGING) && ack.is(flag::UNA_ADVANCED);
        if reneging {
            let half = Span(self.rtt.srtt().map_or(0, |srtt| srtt.0 / 2));
            self.arm(Timer::Rto, cx.now + half.max(LEAST_WAIT));
            ack.flags &= !flag::SET_TIMER;
        }
        reneging
    }

    /// At a time-out: forgets what a reneging peer SACKed. Returns whether it did.
    pub(super) fn forget_reneged(&mut self, cx: &mut Cx<'_>) -> bool {
        if !self.ring.front().is_some_and(|head| head.is(SACKED)) {
            return false;
        }
        for i in 0..self.ring.len() {
            if let Some(record) = self.ring.get_mut(i) {
                record.tags &= !SACKED;
            }
        }
        self.sacked_out = 0;
        cx.counters.tcp_sack_reneging += 1;
        if let Some(cold) = &mut self.cold {
            cold.cache.clear();
            cold.reneged = true;
        }
        true
    }

    /// Recovery is over.
    pub(super) fn forgive_reneging(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.reneged = false;
        }
    }
}
