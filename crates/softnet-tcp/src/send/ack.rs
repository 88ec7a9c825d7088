//! What an acknowledgement does (RFC 9293 3.10.7.4 "ACK field"; Linux `tcp_ack`,
//! `tcp_clean_rtx_queue`, `tcp_ack_update_rtt`).
//!
//! Order: SACK blocks, cumulative part, RTT, reordering window, tail-loss probe, recovery state,
//! timer, rate sample, congestion window. Work is bounded by the records that leave or change.

use super::cc::Growth;
use super::rate::RateSample;
use super::{CaState, Cx, Sender, Timer, ring, ts_clock};
use crate::wire::SackRange;
use crate::{Instant, Seq, Span};

/// What a segment with ACK says about the sending side. The connection has checked that it is
/// acceptable (RFC 9293 3.10.7.4, RFC 5961) and has taken the window from it.
#[derive(Clone, Copy, Debug)]
pub struct AckInput<'a> {
    /// SEG.ACK.
    pub ack: Seq,
    /// SACK blocks in the order received; at most four are looked at.
    pub sack: &'a [SackRange],
    /// TSecr in [`ts_clock`](super::ts_clock)'s ticks, the connection's offset taken off.
    pub tsecr: Option<u32>,
    /// ECE is set, and is not part of a handshake.
    pub ece: bool,
    /// The segment has payload, SYN or FIN: no duplicate ACK.
    pub payload: bool,
    /// SND.WND changed: no duplicate ACK.
    pub window_changed: bool,
    /// Segments on the wire that this one stands for.
    pub segs: u16,
    /// The largest window that the peer ever offered, bytes.
    pub max_window: u32,
}

/// What an ACK did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AckOutcome {
    /// SEG.ACK lies beyond SND.NXT: nothing was done.
    pub invalid: bool,
    /// Sequence numbers by which SND.UNA moved.
    pub acked: u32,
    /// Packets that the peer has now and had not before.
    pub delivered: u32,
    /// Packets found lost.
    pub lost: u32,
    /// The SYN was acknowledged.
    pub syn_acked: bool,
    /// The RTT sample, if there was one.
    pub rtt: Option<Span>,
}

/// Facts of one ACK, Linux's `FLAG_*`.
pub(super) mod flag {
    pub(in super::super) const DATA_ACKED: u16 = 1;
    pub(in super::super) const SYN_ACKED: u16 = 1 << 1;
    pub(in super::super) const UNA_ADVANCED: u16 = 1 << 2;
    pub(in super::super) const DATA_SACKED: u16 = 1 << 3;
    pub(in super::super) const ECE: u16 = 1 << 4;
    /// Data sent before the recovery point and never retransmitted was delivered.
    pub(in super::super) const ORIG_SACK_ACKED: u16 = 1 << 5;
    pub(in super::super) const RETRANS_ACKED: u16 = 1 << 6;
    pub(in super::super) const DSACK: u16 = 1 << 7;
    pub(in super::super) const DSACK_TLP: u16 = 1 << 8;
    /// The new head is SACKed.
    pub(in super::super) const RENEGING: u16 = 1 << 9;
    pub(in super::super) const SET_TIMER: u16 = 1 << 10;
    pub(in super::super) const LOST_RETRANS: u16 = 1 << 11;
    pub(in super::super) const PAYLOAD: u16 = 1 << 12;
    pub(in super::super) const WINDOW: u16 = 1 << 13;
    pub(in super::super) const MAYBE_DELAYED: u16 = 1 << 14;
    pub(in super::super) const ACKED: u16 = DATA_ACKED | SYN_ACKED;
    pub(in super::super) const NOT_DUP: u16 = PAYLOAD | WINDOW | ACKED;
    pub(in super::super) const ALERT: u16 = DATA_SACKED | ECE | DSACK;
    pub(in super::super) const PROGRESS: u16 = ACKED | DATA_SACKED;
}

/// An ACK while it is worked on.
#[derive(Debug)]
pub(super) struct Ack {
    pub(super) flags: u16,
    pub(super) ack: Seq,
    pub(super) tsecr: Option<u32>,
    pub(super) max_window: u32,
    /// SND.UNA before.
    pub(super) prior_una: Seq,
    /// The highest number SACKed before.
    pub(super) prior_fack: Seq,
    /// The lowest number delivered late, without a retransmission.
    pub(super) reord: Option<Seq>,
    /// When the first and the last of the newly SACKed packets were sent.
    pub(super) sacked_sent: Option<(Instant, Instant)>,
    pub(super) rate: RateSample,
}

impl Ack {
    #[inline]
    pub(super) fn is(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// Whether TSecr proves that what was delivered is older than a packet sent at `stamp` (Eifel,
    /// RFC 3522 3.2).
    #[inline]
    pub(super) fn echo_before(&self, stamp: u32) -> bool {
        self.tsecr.is_some_and(|echo| (echo.wrapping_sub(stamp) as i32) < 0)
    }

    pub(super) fn note_reordering(&mut self, seq: Seq) {
        self.reord = Some(self.reord.map_or(seq, |low| low.min(seq)));
    }
}

impl Sender {
    /// Takes an acknowledgement in. A run of output follows.
    pub fn on_ack(&mut self, cx: &mut Cx<'_>, input: &AckInput<'_>) -> AckOutcome {
        if input.ack.after(self.nxt) {
            return AckOutcome { invalid: true, ..AckOutcome::default() };
        }
        let mut ack = Ack {
            flags: 0,
            ack: input.ack,
            tsecr: input.tsecr.filter(|&echo| echo != 0),
            max_window: input.max_window,
            prior_una: self.una,
            prior_fack: self.highest_sacked(),
            reord: None,
            sacked_sent: None,
            rate: RateSample::default(),
        };
        let (prior_delivered, prior_lost) = (self.rate.delivered, self.total_lost());
        let prior_sacked = self.sacked_out;
        for (set, flag) in
            [(input.ece, flag::ECE), (input.payload, flag::PAYLOAD), (input.window_changed, flag::WINDOW)]
        {
            ack.flags |= if set { flag } else { 0 };
        }
        self.tlp_due = false;
        self.frto_new = false;
        self.probes_out = 0;
        if input.ack.before(self.una) {
            // Old, but its SACK blocks may be news.
            self.take_sack(cx, &mut ack, input.sack);
            if !self.ring.is_empty() && !input.sack.is_empty() {
                self.alert(cx, &mut ack, 0);
            }
            return self.outcome(cx, &ack, prior_delivered, prior_lost, None);
        }
        if input.ack.after(self.una) {
            ack.flags |= flag::UNA_ADVANCED;
            self.bytes_acked += u64::from(input.ack - self.una);
            self.una = input.ack;
            self.retransmits = 0;
            if let Some(cold) = &mut self.cold {
                cold.retrans_began = None;
                cold.dropped_here = false;
            }
        }
        self.take_sack(cx, &mut ack, input.sack);
        if self.ring.is_empty() {
            if ack.is(flag::DSACK) {
                self.alert(cx, &mut ack, 0);
            }
            self.process_tlp_ack(cx, &ack);
            return self.outcome(cx, &ack, prior_delivered, prior_lost, None);
        }
        let rtt = self.take_cumulative(cx, &mut ack, prior_sacked);
        self.update_reo_wnd(&ack);
        let delivered = self.rate.delivered.wrapping_sub(prior_delivered);
        self.cc.on_ack(input.ece, self.una, self.nxt, delivered);
        self.process_tlp_ack(cx, &ack);
        let dubious = !ack.is(flag::NOT_DUP) || ack.is(flag::ALERT) || self.state != CaState::Open;
        if dubious {
            let dups = if ack.is(flag::UNA_ADVANCED | flag::NOT_DUP | flag::DSACK) {
                0
            } else {
                u32::from(input.segs.max(1))
            };
            self.alert(cx, &mut ack, dups);
        }
        if ack.is(flag::SET_TIMER) {
            self.set_xmit_timer(cx);
        }
        let outcome = self.outcome(cx, &ack, prior_delivered, prior_lost, rtt);
        if self.cold.as_ref().is_some_and(|cold| cold.reneged) {
            // What SACK said was delivered was not.
            ack.rate = RateSample::default();
        }
        self.rate.take(&ack.rate, cx.now, outcome.delivered, self.rtt.min());
        self.congestion_control(cx, &ack, outcome.delivered, outcome.lost);
        outcome
    }

    /// What an ACK did.
    fn outcome(
        &mut self,
        cx: &mut Cx<'_>,
        ack: &Ack,
        prior_delivered: u32,
        prior_lost: u32,
        rtt: Option<Span>,
    ) -> AckOutcome {
        let delivered = self.rate.delivered.wrapping_sub(prior_delivered);
        let lost = self.total_lost().wrapping_sub(prior_lost);
        cx.counters.tcp_delivered += u64::from(delivered);
        if ack.is(flag::ECE) {
            self.rate.delivered_ce = self.rate.delivered_ce.wrapping_add(delivered);
            cx.counters.tcp_delivered_ce += u64::from(delivered);
        }
        AckOutcome {
            invalid: false,
            acked: self.una - ack.prior_una,
            delivered,
            lost,
            syn_acked: ack.is(flag::SYN_ACKED),
            rtt,
        }
    }

    /// Drops what SND.UNA covers, and measures RTT by it. Returns the sample.
    fn take_cumulative(&mut self, cx: &mut Cx<'_>, ack: &mut Ack, prior_sacked: u32) -> Option<Span> {
        let mut acked_sent: Option<(Instant, Instant)> = None;
        let mut acked = 0;
        let prior_delivered = self.rate.delivered;
        while let Some(&record) = self.ring.front() {
            if record.end().after(self.una) {
                self.trim_head();
                break;
            }
            self.drop_head(cx, ack, &record, &mut acked_sent);
            acked += 1;
        }
        self.ring.shrink();
        self.trim_fifo();
        self.follow_una();
        let head = self.ring.front().copied();
        if head.is_some_and(|head| head.is(ring::SACKED)) {
            ack.flags |= flag::RENEGING;
        }
        let mut rtt = None;
        let mut recent = None;
        if let Some((first, last)) = acked_sent
            && !ack.is(flag::RETRANS_ACKED)
        {
            rtt = Some(cx.now.since(first));
            recent = Some(cx.now.since(last));
            if acked == 1
                && prior_sacked == 0
                && self.una - ack.prior_una < self.mss
                && ack.rate.prior_delivered == Some(prior_delivered)
                && !ack.is(flag::ALERT | flag::SYN_ACKED)
            {
                // A lone short packet: its ACK may have been delayed.
                ack.flags |= flag::MAYBE_DELAYED;
            }
        }
        let sack_rtt = ack.sacked_sent.map(|(first, _)| cx.now.since(first));
        if let Some((_, last)) = ack.sacked_sent {
            recent = Some(cx.now.since(last));
        }
        let sample = self.take_rtt(cx, ack, rtt.or(sack_rtt), recent);
        if ack.is(flag::ACKED) {
            ack.flags |= flag::SET_TIMER;
            if self.sack_ok {
                if let Some(low) = ack.reord.filter(|low| low.before(ack.prior_fack)) {
                    // A hole that was filled without a retransmission.
                    self.note_sack_reordering(cx, low, ack.prior_fack, false);
                }
            } else {
                self.remove_reno_sacks(cx, acked);
                if ack.is(flag::RETRANS_ACKED) {
                    // Without SACK it can't be told which copy made the progress.
                    ack.flags &= !flag::ORIG_SACK_ACKED;
                }
            }
        } else if let (Some(head), Some(_), Some(sack_rtt)) = (head, sample, sack_rtt)
            && sack_rtt > cx.now.since(head.xmit)
        {
            // Only what was sent before the head moves the timer, else SACKs of later data would
            // put RTO off for ever.
            ack.flags |= flag::SET_TIMER;
        }
        if let Some(recent) = recent.or(sample) {
            let rtts = (recent, self.rtt.min().unwrap_or(recent));
            self.cc.on_rtt(cx, &mut self.window, rtts, self.una, self.nxt);
        }
        sample
    }

    /// Drops the oldest record, which SND.UNA covers.
    fn drop_head(
        &mut self,
        cx: &mut Cx<'_>,
        ack: &mut Ack,
        record: &ring::Record,
        acked_sent: &mut Option<(Instant, Instant)>,
    ) {
        if record.is(ring::RETRANS) {
            self.retrans_out -= 1;
        }
        if record.is(ring::EVER) {
            ack.flags |= flag::RETRANS_ACKED;
        } else if !record.is(ring::SACKED) {
            *acked_sent = Some((acked_sent.map_or(record.xmit, |(first, _)| first), record.xmit));
            // What is acknowledged in pieces is late, in Linux: it keeps a packet's number until the
            // whole packet is acknowledged, and then finds it below SND.UNA.
            ack.note_reordering(record.seq - u32::from(record.cut));
            if record.end().at_or_before(self.high_seq) {
                ack.flags |= flag::ORIG_SACK_ACKED;
            }
        }
        if record.is(ring::SACKED) {
            self.sacked_out -= 1;
        } else if self.sack_ok {
            self.rate.delivered = self.rate.delivered.wrapping_add(1);
            match ack.tsecr.filter(|_| record.is(ring::EVER) && ack.echo_before(ts_clock(record.xmit))) {
                // The original was delivered.
                Some(echo) => self.rack_late(cx, echo),
                None => self.rack_advance(cx, record),
            }
        }
        if record.is(ring::LOST) {
            self.lost_out -= 1;
        }
        ack.rate.delivered(record);
        self.packets_out -= 1;
        self.ring.pop();
        if record.is(ring::SYN) {
            ack.flags |= flag::SYN_ACKED;
            if let Some(cold) = &mut self.cold {
                cold.retrans_stamp = None;
            }
        } else {
            ack.flags |= flag::DATA_ACKED;
        }
    }

    /// SND.UNA lies within the head: what lies below it is gone.
    fn trim_head(&mut self) {
        let una = self.una;
        if let Some(head) = self.ring.get_mut(0) {
            let gone = una.past(head.seq);
            if gone > 0 {
                head.seq = una;
                head.len -= gone as u16;
                head.tags &= !ring::SYN;
                head.cut |= head.ends_run;
            }
        }
    }

    /// Takes RTT in (RFC 6298 3 with Karn's rule; RFC 7323 4.3). `rtt`: by the first packet never
    /// retransmitted; `recent`: by the last.
    fn take_rtt(
        &mut self,
        cx: &mut Cx<'_>,
        ack: &Ack,
        rtt: Option<Span>,
        recent: Option<Span>,
    ) -> Option<Span> {
        let (rtt, recent) = match (rtt, ack.tsecr) {
            (None, Some(echo)) if ack.is(flag::ACKED) => {
                // "RTTM Rule: … only if the segment acknowledges some new data". A negative
                // difference is no echo of ours.
                let ticks = ts_clock(cx.now).wrapping_sub(echo);
                if ticks as i32 >= 0 {
                    let rtt = Span(ticks.saturating_mul(1000).max(1000));
                    (rtt, rtt)
                } else {
                    return None;
                }
            }
            (None, _) => return None,
            (Some(rtt), _) => (rtt, recent.unwrap_or(rtt)),
        };
        if !(ack.is(flag::MAYBE_DELAYED) && self.rtt.min().is_some_and(|least| recent > least)) {
            self.rtt.sample_min(recent, cx.now, cx.cfg);
        }
        self.rtt.sample(rtt, self.una, self.nxt, cx.cfg);
        // "only reset backoff on valid RTT measurement" (RFC 6298 5.7). Linux lets a timer that was
        // armed with the backed-off RTO run on, for seconds; the path is alive, so it is cut here.
        if self.backoff > 0 {
            self.backoff = 0;
            if self.timer == Timer::Rto {
                self.timer_at = self.timer_at.min(cx.now + self.rto(cx.cfg));
            }
        }
        Some(rtt)
    }

    /// Lets the congestion window move (Linux `tcp_cong_control`).
    fn congestion_control(&mut self, cx: &mut Cx<'_>, ack: &Ack, delivered: u32, lost: u32) {
        if self.in_reduction() {
            self.prr(cx, delivered, lost, ack.is(flag::UNA_ADVANCED));
            return;
        }
        // Where reordering is known, SACKs clock the window too.
        let reordered = self.reordering(cx.cfg) > cx.cfg.tcp_reordering;
        let earned = if reordered { flag::PROGRESS } else { flag::DATA_ACKED };
        if ack.is(earned) && self.window.is_limited() {
            let growth = Growth { acked: delivered, srtt: self.rtt.srtt(), now: cx.now };
            self.cc.on_growth(&mut self.window, growth);
        }
    }
}
