//! What goes out next, and what is noted once it went.
//!
//! The order is Linux's: a tail-loss probe that is due; lost packets, lowest first (RFC 6675
//! NextSeg rule 1); new data within the congestion window and the peer's. F-RTO turns the last two
//! round for one ACK (RFC 5682 3.1 step 2b).

use super::defer::Deferred;
use super::ring::{self, Record};
use super::{CaState, Cx, Sender, Timer, ts_clock};
use crate::Seq;

/// What the connection lets out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number after the last that is queued, FIN included.
    pub write_seq: Seq,
    /// The number after the last that the peer's window admits: SND.UNA + SND.WND.
    pub edge: Seq,
    /// Most payload of one [`Transmit`], bytes; at least one full segment is offered.
    pub max_len: u32,
    /// Whether the queue's tail may go although it is no full segment (Nagle, cork).
    pub partial_ok: bool,
    /// Whether the last number of `write_seq` is a FIN.
    pub fin: bool,
}

/// Why something is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For the first time.
    New,
    /// Because it was lost.
    Retransmit,
    /// To find out whether the tail was lost (RFC 8985 7); new data, or the last packet again.
    Probe,
}

/// One segment, or several of [`mss`](Sender::mss) bytes each, of which the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// First sequence number.
    pub seq: Seq,
    /// Sequence numbers: payload, SYN and FIN.
    pub len: u32,
    /// Why.
    pub kind: Kind,
    /// The first number is a SYN.
    pub syn: bool,
    /// The last number is a FIN.
    pub fin: bool,
    /// The IP header says ECT(0): new data only (RFC 3168 6.1.5).
    pub ect: bool,
    /// The first segment carries CWR (RFC 3168 6.1.2).
    pub cwr: bool,
    /// The last segment carries PSH. Of new data the connection says so before
    /// [`Sender::on_sent`]; what is sent again has it as it had it first.
    pub psh: bool,
}

impl Transmit {
    /// The SYN or SYN-ACK numbered `iss`, sent for the first time.
    pub fn syn(iss: Seq) -> Transmit {
        Transmit {
            seq: iss,
            len: 1,
            kind: Kind::New,
            syn: true,
            fin: false,
            ect: false,
            cwr: false,
            psh: false,
        }
    }

    /// Bytes of payload.
    pub fn payload(&self) -> u32 {
        self.len - u32::from(self.syn) - u32::from(self.fin)
    }
}

impl Sender {
    /// What may be sent now; the caller sends it and says so by [`on_sent`](Self::on_sent), or
    /// stops. `None` ends the run of output.
    pub fn next(&mut self, cx: &mut Cx<'_>, limits: &Limits) -> Option<Transmit> {
        self.restart_after_idle(cx, limits);
        if self.tlp_due {
            if let Some(probe) = self.probe(limits) {
                return Some(probe);
            }
            self.tlp_due = false;
        }
        if !self.frto_new
            && let Some(lost) = self.retransmission(limits)
        {
            return Some(lost);
        }
        let mut deferred = Deferred::No;
        if let Some(new) = self.new_data(limits, self.allowance(), self.frto_new) {
            deferred = self.defers(cx, limits);
            if deferred == Deferred::No {
                return Some(new);
            }
        }
        if self.frto_new && !self.nxt.after(self.high_seq) {
            // No new data to tell by: the conventional recovery.
            self.frto = false;
            self.frto_new = false;
            if let Some(lost) = self.retransmission(limits) {
                return Some(lost);
            }
        }
        self.end_run(cx, limits, deferred == Deferred::ByCwnd);
        None
    }

    /// Notes that `transmit` was sent at `cx.now`.
    pub fn on_sent(&mut self, cx: &mut Cx<'_>, transmit: &Transmit) {
        match transmit.kind {
            Kind::New => self.sent_new(cx, transmit),
            Kind::Retransmit => self.sent_again(cx, transmit),
            Kind::Probe => self.sent_probe(cx, transmit),
        }
    }

    /// One packet of new data, whatever the congestion window and Nagle say, and cut to the peer's
    /// window (Linux `tcp_write_wakeup`); `None` if that is closed. [`on_sent`](Self::on_sent)
    /// follows.
    pub fn force_new(&self, limits: &Limits) -> Option<Transmit> {
        let queued = limits.write_seq.past(self.nxt);
        let fin = u32::from(limits.fin);
        let room = limits.edge.past(self.nxt);
        let payload = queued.saturating_sub(fin).min(self.mss).min(room);
        let with_fin = limits.fin && payload + fin == queued && payload < room;
        let len = payload + u32::from(with_fin);
        (len > 0).then_some(Transmit {
            seq: self.nxt,
            len,
            kind: Kind::New,
            syn: false,
            fin: with_fin,
            ect: self.ecn_ok,
            cwr: self.cwr_pending && payload > 0,
            psh: false,
        })
    }

    /// New data of at most `quota` packets.
    pub(super) fn new_data(&self, limits: &Limits, quota: u32, partial_ok: bool) -> Option<Transmit> {
        let partial_ok = partial_ok || limits.partial_ok;
        let queued = limits.write_seq.past(self.nxt);
        // "Don't be strict about the congestion window for the final FIN" (Linux `tcp_cwnd_test`):
        // the last packet, if a FIN is on it.
        let last = limits.fin && queued <= self.mss + 1;
        let quota = if last { quota.max(1) } else { quota };
        if queued == 0 || quota == 0 {
            return None;
        }
        let fin = u32::from(limits.fin);
        let payload = queued - fin.min(queued);
        let avail = limits.edge.past(self.nxt);
        let mss = self.mss;
        // Two runs in flight at least, so that ACKs clock the next one (Linux `tcp_cwnd_test`).
        let quota = quota.min((self.window.cwnd / 2).max(1));
        let whole = quota.min(payload / mss).min(avail / mss).min((limits.max_len / mss).max(1));
        let mut len = whole * mss;
        let tail = payload - len;
        let mut with_fin = false;
        if tail == 0 {
            // FIN rides on the last full segment, or goes alone.
            with_fin = limits.fin && len < avail;
            len += u32::from(with_fin);
        } else if tail < mss
            && partial_ok
            && whole < quota
            && (whole == 0 || len + tail <= limits.max_len)
            && len + tail + fin <= avail
        {
            len += tail + fin;
            with_fin = limits.fin;
        }
        if len == 0 {
            return None;
        }
        Some(Transmit {
            seq: self.nxt,
            len,
            kind: Kind::New,
            syn: false,
            fin: with_fin,
            ect: self.ecn_ok,
            cwr: self.cwr_pending && len > u32::from(with_fin),
            psh: false,
        })
    }

    /// The lowest run of lost packets, as far as the congestion window and the peer's reach.
    fn retransmission(&mut self, limits: &Limits) -> Option<Transmit> {
        if self.lost_out == 0 {
            return None;
        }
        let quota = self.allowance() as usize;
        let mss = self.mss;
        let from = self.next_lost()?;
        if quota == 0 {
            return None;
        }
        let first = *self.ring.get(from)?;
        let room = limits.edge.past(first.seq);
        if room < u32::from(first.len) && first.seq != self.una {
            // The window shrank over it: it waits until the window, or the head, gets there. To
            // send what fits would let a peer have the queue cut into bytes.
            return None;
        }
        let mut transmit = Transmit {
            seq: first.seq,
            len: u32::from(first.len),
            kind: Kind::Retransmit,
            syn: first.is(ring::SYN),
            fin: first.is(ring::FIN),
            ect: false,
            cwr: false,
            psh: first.is(ring::PSH),
        };
        // Segmentation cuts into full segments: only those may follow one another.
        let mut last = first;
        for i in from + 1..from + quota {
            let ends = last.ends_run || last.is(ring::SYN | ring::FIN | ring::PSH);
            let full = u32::from(last.len) == mss && !ends;
            let Some(&next) = self.ring.get(i).filter(|_| full) else { break };
            let end = next.end() - transmit.seq;
            if !next.is(ring::LOST)
                || next.is(ring::RETRANS | ring::SACKED)
                || u32::from(next.len) > mss + u32::from(next.is(ring::FIN))
                || end > limits.max_len
                || next.end().after(limits.edge)
            {
                break;
            }
            transmit.len = end;
            transmit.fin = next.is(ring::FIN);
            transmit.psh = next.is(ring::PSH);
            last = next;
        }
        Some(transmit)
    }

    /// The index of the lowest lost packet that is not on its way again.
    fn next_lost(&mut self) -> Option<usize> {
        let cold = self.cold.as_mut()?;
        let mut i = self.ring.find(cold.rtx_hint);
        while let Some(record) = self.ring.get(i) {
            if record.is(ring::LOST) && !record.is(ring::RETRANS | ring::SACKED) {
                cold.rtx_hint = record.seq;
                return Some(i);
            }
            i += 1;
        }
        cold.rtx_hint = self.nxt;
        None
    }

    fn sent_new(&mut self, cx: &mut Cx<'_>, transmit: &Transmit) {
        debug_assert_eq!(transmit.seq, self.nxt);
        let idle = self.packets_out == 0;
        if idle {
            self.cc.on_tx_start(self.last_send, cx.now);
            self.rate.begin(cx.now);
        }
        let mut seq = transmit.seq;
        let end = transmit.seq + transmit.len;
        let mut packets = 0;
        while seq != end {
            let left = end - seq;
            let fin = transmit.fin && left <= self.mss + 1;
            let len = if fin { left } else { left.min(self.mss) };
            let first = packets == 0;
            let mut tags = 0;
            for (is, tag) in [
                (transmit.syn && first, ring::SYN),
                (fin, ring::FIN),
                (transmit.psh && left == len, ring::PSH),
            ] {
                tags |= if is { tag } else { 0 };
            }
            let ends_run = left == len;
            let mut record =
                Record { seq, len: len as u16, tags, ends_run, xmit: cx.now, ..Record::default() };
            self.rate.stamp(&mut record);
            self.ring.push(record);
            packets += 1;
            seq += len;
        }
        self.packets_out += packets;
        self.nxt = end;
        self.note_sent(cx, packets);
        if transmit.cwr {
            self.cwr_pending = false;
        }
        if idle || self.timer == Timer::Tlp {
            self.rearm_rto(cx);
        }
    }

    fn sent_again(&mut self, cx: &mut Cx<'_>, transmit: &Transmit) {
        let mut packets = 0;
        let first = self.ring.find(transmit.seq);
        let end = transmit.seq + transmit.len;
        self.cold();
        let mut i = first;
        while let (Some(record), Some(cold)) = (self.ring.get_mut(i), &mut self.cold) {
            if !record.seq.before(end) {
                break;
            }
            if !record.is(ring::RETRANS) {
                record.tags |= ring::RETRANS;
                self.retrans_out += 1;
            }
            record.tags |= ring::EVER;
            record.xmit = cx.now;
            self.rate.stamp(record);
            cold.fifo.push_back((record.seq, cx.now));
            packets += 1;
            i += 1;
        }
        self.trim_fifo();
        let cold = self.cold();
        cold.total_retrans = cold.total_retrans.wrapping_add(packets);
        cold.bytes_retrans += u64::from(transmit.len);
        cold.retrans_stamp.get_or_insert(ts_clock(cx.now));
        cold.undo_retrans = cold.undo_retrans.max(0).saturating_add(packets as i32);
        cold.rtx_hint = end;
        cx.counters.retrans_segs += u64::from(packets);
        if self.state == CaState::Loss {
            cx.counters.tcp_slow_start_retrans += u64::from(packets);
        } else {
            cx.counters.tcp_fast_retrans += u64::from(packets);
        }
        self.note_sent(cx, packets);
        // What goes into a queue that stays full again and again is to time out in the end.
        let waits = self.timer == Timer::Rto && self.cold.as_ref().is_some_and(|cold| cold.dropped_here);
        if first == 0 && self.timer != Timer::Reo && !waits {
            self.arm(Timer::Rto, cx.now + self.rto(cx.cfg));
        }
    }

    /// What every transmission that loss recovery or the connection chose has in common.
    fn note_sent(&mut self, cx: &Cx<'_>, packets: u32) {
        if self.in_reduction() {
            let cold = self.cold();
            cold.prr_out = cold.prr_out.saturating_add(packets);
        }
        self.last_send = cx.now;
        self.window.idle_checked = false;
        self.sent_in_run = true;
    }

    /// Before the first packet after a pause.
    fn restart_after_idle(&mut self, cx: &Cx<'_>, limits: &Limits) {
        if self.packets_out == 0
            && !self.window.idle_checked
            && cx.cfg.tcp_slow_start_after_idle
            && limits.write_seq.after(self.nxt)
        {
            let (idle, rto) = (cx.now.since(self.last_send), self.rto(cx.cfg));
            if idle > rto {
                self.window.idle_checked = true;
                let ssthresh = self.window.current_ssthresh(self.in_reduction());
                self.window.restart(idle, rto, ssthresh, cx.now);
            }
        }
    }

    /// The end of a run of output.
    pub(crate) fn end_run(&mut self, cx: &mut Cx<'_>, limits: &Limits, deferred: bool) {
        let sent = std::mem::take(&mut self.sent_in_run);
        let limited = deferred || self.in_flight() >= self.window.cwnd;
        let unsent = limits.write_seq.after(self.nxt);
        if sent || (limited && unsent) {
            let decay = cx.cfg.tcp_slow_start_after_idle && self.state == CaState::Open;
            let ssthresh = self.window.current_ssthresh(self.in_reduction());
            let (rto, sides) = (self.rto(cx.cfg), (self.una, self.nxt));
            self.window.validate(limited, self.packets_out, sides, cx.now, rto, decay.then_some(ssthresh));
        }
        if !limited && !unsent && self.lost_out == 0 {
            self.rate.note_app_limited(self.in_flight());
        }
        if sent {
            self.schedule_probe(cx, false);
        }
    }
}
