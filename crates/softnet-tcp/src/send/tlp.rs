//! Tail-loss probe (RFC 8985 7; Linux `tcp_schedule_loss_probe`, `tcp_send_loss_probe`,
//! `tcp_process_tlp_ack`).
//!
//! A loss at the end of a flight leaves no later packet whose SACK would show it. One packet, new
//! or the last again, after two round trips asks for that SACK, where RTO would take 200 ms and
//! collapse the window.

use super::ack::{Ack, flag};
use super::output::{Kind, Limits, Transmit};
use super::rtt::TIMEOUT_INIT;
use super::{CaState, Cx, Sender, Timer, ring};
use crate::Span;

/// What is added to two round trips where several packets are out: two of Linux's ticks.
const TIMEOUT_MIN: Span = Span(2000);

impl Sender {
    /// Arms the probe where one is due (RFC 8985 7.2). `advancing`: RTO would start now, else it
    /// runs since the head was sent.
    pub(super) fn schedule_probe(&mut self, cx: &Cx<'_>, advancing: bool) -> bool {
        let Some(&head) = self.ring.front() else { return false };
        if cx.cfg.tcp_early_retrans < 3
            || !self.sack_ok
            || !matches!(self.state, CaState::Open | CaState::Cwr)
            // "The connection has no SACKed sequences": in CWR the timer of reneging, or of a head
            // that is overdue, must not be put off by every packet sent.
            || self.sacked_out > 0
        {
            return false;
        }
        let pto = match self.rtt.srtt() {
            // "If FlightSize is one segment: PTO += WCDelAckT", for which `rto_min` stands.
            Some(srtt) if self.packets_out == 1 => srtt.times(2) + Span(cx.cfg.tcp_rto_min_us),
            Some(srtt) => srtt.times(2) + TIMEOUT_MIN,
            None => TIMEOUT_INIT,
        };
        let rto = self.rto(cx.cfg);
        let rto_at = if advancing { cx.now + rto } else { head.xmit + rto };
        let mut at = cx.now + pto;
        if rto_at > cx.now {
            // "If RTO expires earlier: PTO = RTO".
            at = at.min(rto_at);
        }
        self.arm(Timer::Tlp, at);
        true
    }

    /// The probe's timer expired. The next run of output sends the probe, unless one is out already
    /// ("one TLP per tail loss episode"). RTO runs since the head was sent, as if there had been no
    /// probe's timer; a probe that leaves starts it anew.
    pub(super) fn on_probe_timer(&mut self, cx: &Cx<'_>) {
        self.tlp_due = !self.tlp_out && !self.ring.is_empty();
        self.timer = Timer::Tlp;
        self.rearm_rto(cx);
    }

    /// The probe: one packet of new data if there is some and the peer's window admits it,
    /// whatever the congestion window says; else the last packet.
    pub(super) fn probe(&self, limits: &Limits) -> Option<Transmit> {
        if let Some(new) = self.new_data(limits, 1, true) {
            return Some(Transmit { kind: Kind::Probe, ..new });
        }
        let last = self.ring.back()?;
        if last.end().after(limits.edge) && last.seq != self.una {
            // The window shrank over it.
            return None;
        }
        Some(Transmit {
            seq: last.seq,
            len: u32::from(last.len),
            kind: Kind::Probe,
            syn: last.is(ring::SYN),
            fin: last.is(ring::FIN),
            ect: false,
            cwr: false,
            psh: last.is(ring::PSH),
        })
    }

    pub(super) fn sent_probe(&mut self, cx: &mut Cx<'_>, transmit: &Transmit) {
        self.tlp_due = false;
        if transmit.seq == self.nxt {
            self.tlp_retrans = false;
            self.on_sent(cx, &Transmit { kind: Kind::New, ..*transmit });
        } else {
            let i = self.ring.find(transmit.seq);
            self.cold();
            if let (Some(record), Some(cold)) = (self.ring.get_mut(i), &mut self.cold) {
                // Not R: the probe adds nothing to what is in flight.
                record.tags |= ring::EVER;
                record.xmit = cx.now;
                self.rate.stamp(record);
                cold.fifo.push_back((record.seq, cx.now));
                cold.total_retrans = cold.total_retrans.wrapping_add(1);
                cold.bytes_retrans += u64::from(transmit.len);
            }
            self.trim_fifo();
            cx.counters.retrans_segs += 1;
            self.tlp_retrans = true;
            self.last_send = cx.now;
        }
        cx.counters.tcp_loss_probes += 1;
        self.tlp_out = true;
        self.tlp_high_seq = self.nxt;
        // A probe is not followed by a probe: RTO, from now.
        self.sent_in_run = false;
        self.timer = Timer::Idle;
        self.rearm_rto(cx);
    }

    /// Ends the episode of a probe (RFC 8985 7.4).
    pub(super) fn process_tlp_ack(&mut self, cx: &mut Cx<'_>, ack: &Ack) {
        let high = self.tlp_high_seq;
        if !self.tlp_out || ack.ack.before(high) {
            return;
        }
        if !self.tlp_retrans || ack.is(flag::DSACK_TLP) {
            // New data arrived, or both copies did.
            self.tlp_out = false;
        } else if ack.ack.after(high) {
            // "TLP_is_retrans and no DSACK": the probe repaired a loss, which costs one reduction.
            self.begin_reduction(super::cc::Cause::Loss);
            self.set_state(CaState::Cwr);
            self.end_reduction(cx);
            self.try_keep_open();
            cx.counters.tcp_loss_probe_recovery += 1;
        } else if !ack.is(flag::UNA_ADVANCED | flag::NOT_DUP | flag::DATA_SACKED) {
            // A pure duplicate ACK: both copies arrived.
            self.tlp_out = false;
        }
    }
}
