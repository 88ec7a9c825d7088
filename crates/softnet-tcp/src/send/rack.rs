//! RACK: loss by time (RFC 8985 6; Linux `tcp_recovery.c`).
//!
//! A packet is lost once one that was sent after it was delivered, and the reordering window has
//! passed since. Packets never retransmitted are in order of time by their numbers, which a cursor
//! follows; retransmissions are in order of time in a FIFO. So an ACK costs what it marks, what it
//! passes for good, and at most [`LOOKS`] packets that still wait.

use super::ack::{Ack, flag};
use super::ring::{EVER, LOST, RETRANS, Record, SACKED};
use super::{CaState, Cx, Sender, Timer, ts_clock};
use crate::{Config, Instant, Seq, Span};

/// Waiting packets that one walk looks at to find how long to wait. More of them only means that
/// the timer fires for the first ones, and walks again.
const LOOKS: u32 = 64;

/// Recoveries for which a wider reordering window is kept (RFC 8985 6.2 step 4).
pub(super) const REO_WND_PERSIST: u8 = 16;

/// What the reordering timer adds: two of Linux's ticks.
const TIMEOUT_MIN: Span = Span(2000);

#[derive(Debug, Clone, Copy)]
pub(super) struct Rack {
    /// When the most recently sent of the delivered packets was sent.
    xmit: Instant,
    /// Its end.
    end: Seq,
    /// Its RTT.
    pub(super) rtt: Span,
    /// RTT of the latest packet that proved to be late, not lost; zero if none did of late. Others
    /// may take as long, though the most recently sent one was fast.
    late: Span,
    /// Something was delivered since the last walk.
    pub(super) advanced: bool,
    /// A DSACK came since the window was last adapted.
    pub(super) dsack_seen: bool,
    /// Quarters of the least RTT.
    steps: u8,
    /// Recoveries until the window is one quarter again.
    pub(super) persist: u8,
    /// Packets delivered when the window was last adapted.
    last_delivered: u32,
    /// Every packet below is delivered, lost, or was retransmitted.
    cursor: Seq,
}

impl Rack {
    pub(super) fn new(una: Seq) -> Rack {
        Rack {
            xmit: Instant::default(),
            end: una,
            rtt: Span::ZERO,
            late: Span::ZERO,
            advanced: false,
            dsack_seen: false,
            steps: 1,
            persist: 0,
            last_delivered: 0,
            cursor: una,
        }
    }

    pub(super) fn cursor(&self) -> Seq {
        self.cursor
    }

    /// "RACK_sent_after": whether the most recent delivery was sent after `record`.
    fn sent_after(&self, record: &Record) -> bool {
        self.xmit > record.xmit || (self.xmit == record.xmit && self.end.after(record.end()))
    }
}

impl Sender {
    /// `record` was delivered (RFC 8985 6.2 step 2). An RTT below the least one of a packet that
    /// was retransmitted belongs to another copy.
    pub(super) fn rack_advance(&mut self, cx: &Cx<'_>, record: &Record) {
        let least = self.rtt.min();
        let Some(cold) = &mut self.cold else { return };
        let rtt = cx.now.since(record.xmit);
        if record.is(EVER) && least.is_some_and(|least| rtt < least) {
            return;
        }
        let rack = &mut cold.rack;
        rack.advanced = true;
        rack.rtt = rtt;
        if record.xmit > rack.xmit || (record.xmit == rack.xmit && record.end().after(rack.end)) {
            rack.xmit = record.xmit;
            rack.end = record.end();
        }
    }

    /// A packet was delivered that was sent when the clock of TSval showed `echo`, and retransmitted
    /// in vain (Eifel, RFC 3522): so long packets may take, and what an undo takes back is not
    /// marked again by the RTT of the packet that was ahead. It is kept as long as a wider window.
    pub(super) fn rack_late(&mut self, cx: &Cx<'_>, echo: u32) {
        let Some(cold) = &mut self.cold else { return };
        // Either reading of the clock may have been a tick's end.
        let ticks = ts_clock(cx.now).wrapping_sub(echo).saturating_add(1);
        let rtt = Span(ticks.saturating_mul(1000)).min(self.rtt.rto());
        cold.rack.late = cold.rack.late.max(rtt);
        cold.rack.persist = REO_WND_PERSIST;
    }

    /// A recovery ended, and not by an undo.
    pub(super) fn rack_recovered(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        cold.rack.persist = cold.rack.persist.saturating_sub(1);
        cold.rack.late = Span(cold.rack.late.0 / 4 * 3);
    }

    /// Widens the window by a quarter of the least RTT for each round trip with a DSACK, and
    /// narrows it after sixteen recoveries without one (RFC 8985 6.2 step 4).
    pub(super) fn update_reo_wnd(&mut self, ack: &Ack) {
        let delivered = self.rate.delivered;
        let (Some(cold), Some(prior)) = (&mut self.cold, ack.rate.prior_delivered) else { return };
        let rack = &mut cold.rack;
        if (prior.wrapping_sub(rack.last_delivered) as i32) < 0 {
            // Not yet a round trip since.
            rack.dsack_seen = false;
        }
        if rack.dsack_seen {
            rack.steps = rack.steps.saturating_add(1);
            rack.dsack_seen = false;
            rack.last_delivered = delivered;
            rack.persist = REO_WND_PERSIST;
        } else if rack.persist == 0 {
            rack.steps = 1;
            rack.late = Span::ZERO;
        }
    }

    /// How long a packet may be late (RFC 8985 6.2 step 4).
    pub(super) fn reo_wnd(&self, cfg: &Config) -> Span {
        let Some(cold) = &self.cold else { return Span::ZERO };
        let no_dupthresh = cfg.tcp_recovery & 4 != 0;
        if cold.reord_seen == 0
            && (self.state >= CaState::Recovery || (self.sacked_out >= self.reordering(cfg) && !no_dupthresh))
        {
            // "If no reordering has been observed: RACK is prompt".
            return Span::ZERO;
        }
        let quarter = Span(self.rtt.min().map_or(0, |least| least.0 / 4));
        let steps = if cfg.tcp_recovery & 2 != 0 { 1 } else { u32::from(cold.rack.steps) };
        quarter.times(steps).min(self.rtt.srtt().unwrap_or(Span::ZERO))
    }

    /// Marks packets lost after an ACK (RFC 8985 6.2 step 5), and arms the timer for those that
    /// may still come.
    pub(super) fn rack_mark_lost(&mut self, cx: &mut Cx<'_>, ack: &mut Ack) {
        let Some(cold) = &mut self.cold else { return };
        if !std::mem::take(&mut cold.rack.advanced) {
            return;
        }
        let prior_retrans = self.retrans_out;
        if let Some(wait) = self.detect_loss(cx) {
            let wait = (wait + TIMEOUT_MIN).min(self.rto(cx.cfg));
            self.arm(Timer::Reo, cx.now + wait);
            ack.flags &= !flag::SET_TIMER;
        }
        if self.retrans_out < prior_retrans {
            ack.flags |= flag::LOST_RETRANS;
        }
    }

    /// Marks what is lost by now. Returns how long the last of what was sent before the most
    /// recent delivery may still take.
    fn detect_loss(&mut self, cx: &mut Cx<'_>) -> Option<Span> {
        let rack = self.cold.as_ref()?.rack;
        let limit = rack.rtt.max(rack.late) + self.reo_wnd(cx.cfg);
        let waits = |record: &Record| {
            let age = cx.now.since(record.xmit);
            (age < limit).then(|| limit - age)
        };
        let mut lost_again = 0;
        let originals = self.lose_originals(&rack, waits, &mut lost_again);
        let copies = self.lose_copies(&rack, waits, &mut lost_again);
        cx.counters.tcp_lost_retransmit += lost_again;
        originals.max(copies)
    }

    /// Of the packets that were sent once. The cursor passes those that are settled.
    fn lose_originals(
        &mut self,
        rack: &Rack,
        waits: impl Fn(&Record) -> Option<Span>,
        lost_again: &mut u64,
    ) -> Option<Span> {
        let mut longest = None;
        let mut cursor = rack.cursor.max(self.una);
        let mut settled = true;
        let mut looks = LOOKS;
        let mut i = self.ring.find(cursor);
        while looks > 0
            && let Some(&record) = self.ring.get(i)
        {
            if !record.is(SACKED | LOST | EVER) {
                if !rack.sent_after(&record) {
                    break;
                }
                match waits(&record) {
                    Some(wait) => {
                        settled = false;
                        longest = longest.max(Some(wait));
                    }
                    None => self.mark_lost(i, lost_again),
                }
            }
            if settled {
                cursor = record.end();
            } else {
                looks -= 1;
            }
            i += 1;
        }
        self.cold.as_mut()?.rack.cursor = cursor;
        longest
    }

    /// Of the retransmissions. What is stale, or lost now, leaves the FIFO at its front.
    fn lose_copies(
        &mut self,
        rack: &Rack,
        waits: impl Fn(&Record) -> Option<Span>,
        lost_again: &mut u64,
    ) -> Option<Span> {
        let mut longest = None;
        let mut at = 0;
        let mut looks = LOOKS;
        while looks > 0
            && let Some(&(seq, xmit)) = self.cold.as_ref()?.fifo.get(at)
            && xmit <= rack.xmit
        {
            let i = self.ring.find(seq);
            let record = self.ring.get(i).copied().filter(|record| is_flying(record, xmit));
            let sent_before = record.filter(|record| rack.sent_after(record));
            let wait = sent_before.and_then(|record| waits(&record));
            longest = longest.max(wait);
            let stays = record.is_some() && (sent_before.is_none() || wait.is_some());
            if !stays && record.is_some() {
                self.mark_lost(i, lost_again);
            }
            if !stays && at == 0 {
                self.cold.as_mut()?.fifo.pop_front();
            } else {
                at += 1;
                looks -= 1;
            }
        }
        longest
    }

    /// Marks the `i`th packet lost; a copy of it that was on its way is lost too, and counted.
    pub(super) fn mark_lost(&mut self, i: usize, lost_again: &mut u64) {
        let (Some(record), Some(cold)) = (self.ring.get_mut(i), &mut self.cold) else { return };
        if record.is(SACKED) {
            return;
        }
        cold.rtx_hint = cold.rtx_hint.min(record.seq);
        if record.tags & (LOST | RETRANS) == LOST {
            return;
        }
        if record.is(RETRANS) {
            record.tags &= !RETRANS;
            self.retrans_out -= 1;
            *lost_again += 1;
        }
        if !record.is(LOST) {
            record.tags |= LOST;
            self.lost_out += 1;
        }
        cold.total_lost = cold.total_lost.wrapping_add(1);
    }

    /// The reordering window closed (RFC 8985 6.2 step 5, at its end).
    pub(super) fn on_reo_timer(&mut self, cx: &mut Cx<'_>) {
        let (flight, lost) = (self.in_flight(), self.total_lost());
        let wait = self.detect_loss(cx);
        if self.in_flight() != flight {
            if self.state != CaState::Recovery {
                self.enter_recovery(cx, false);
                let lost = self.total_lost().wrapping_sub(lost);
                self.prr(cx, 1, lost, false);
            }
        } else if let Some(wait) = wait {
            let wait = (wait + TIMEOUT_MIN).min(self.rto(cx.cfg));
            self.arm(Timer::Reo, cx.now + wait);
            return;
        }
        self.timer = Timer::Reo;
        self.rearm_rto(cx);
    }

    /// Packets ever marked lost.
    #[inline]
    pub(super) fn total_lost(&self) -> u32 {
        self.cold.as_ref().map_or(0, |cold| cold.total_lost)
    }

    /// Time and number of packets have to be followed anew: tags were taken back, or records
    /// cut up.
    pub(super) fn rebuild_order(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.rack.cursor = self.una;
            cold.rtx_hint = self.una;
        }
        self.rebuild_fifo();
    }

    /// Fills the FIFO anew, in order of time.
    fn rebuild_fifo(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        cold.fifo.clear();
        for i in 0..self.ring.len() {
            if let Some(record) = self.ring.get(i).filter(|record| is_flying(record, record.xmit)) {
                cold.fifo.push_back((record.seq, record.xmit));
            }
        }
        let una = self.una;
        cold.fifo.make_contiguous().sort_unstable_by_key(|&(seq, xmit)| (xmit, seq - una));
    }

    /// What SND.UNA has passed follows it: 2³¹ numbers later it would compare as lying ahead.
    pub(super) fn follow_una(&mut self) {
        let una = self.una;
        if let Some(cold) = &mut self.cold {
            cold.rack.cursor = cold.rack.cursor.max(una);
            cold.rtx_hint = cold.rtx_hint.max(una);
            cold.cache.forget_below(una);
        }
    }

    /// Keeps the FIFO as long as what it stands for: stale entries go once they are most of it.
    pub(super) fn trim_fifo(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        if cold.fifo.is_empty() {
            return;
        }
        if self.ring.is_empty() {
            cold.fifo = std::collections::VecDeque::new();
        } else if cold.fifo.len() > 2 * self.ring.len() + 16 {
            self.rebuild_fifo();
        }
    }
}

/// Whether the copy of `record` that was sent at `xmit` may still arrive and was retransmitted.
fn is_flying(record: &Record, xmit: Instant) -> bool {
    record.xmit == xmit && record.is(EVER) && !record.is(SACKED) && record.tags & (LOST | RETRANS) != LOST
}
