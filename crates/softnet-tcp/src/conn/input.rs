//! Segments (RFC 9293 3.10.7, RFC 5961, RFC 7323 5): the order of checks is Linux's.
//!
//! Most segments are predicted: established, in order, the window as it was, timestamps alone as
//! options. They skip the checks, which they would pass, and nothing else.

use super::{Conn, ConnFlags, Cx, Output, State};
use crate::counters::DropReason;
use crate::recv::ack::MAX_QUICK;
use crate::time::Instant;
use crate::wire::{Flags, SackRange, Segment};

/// After this long without a segment, timestamps prove nothing (RFC 7323 5.5): 24 days.
const PAWS_24_DAYS_MS: u64 = 24 * 24 * 3600 * 1000;

/// A segment's payload: what the host holds, and the memory that it takes.
pub(crate) struct Payload<H> {
    pub(crate) handle: H,
    pub(crate) charge: u32,
}

impl<H> Conn<H> {
    /// A segment for this connection has arrived. `handle` is its payload as the host holds it,
    /// and `charge` the bytes of memory that it takes; a segment without payload has none.
    ///
    /// # Errors
    ///
    /// Why the segment was dropped. Its handle went to [`Output::discard`] then.
    pub fn input<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        handle: Option<H>,
        charge: u32,
    ) -> Result<(), DropReason> {
        cx.counters.in_segs += u64::from(segment.segs);
        self.segs_in = self.segs_in.wrapping_add(u32::from(segment.segs));
        if segment.len > 0 {
            self.data_segs_in = self.data_segs_in.wrapping_add(u32::from(segment.segs));
        }
        self.look_at_memory(cx);
        let mut payload = handle.map(|handle| Payload { handle, charge });
        let result = match self.state {
            State::Closed => Err(DropReason::TcpClose),
            State::SynSent => self.in_syn_sent(cx, segment),
            _ if self.is_predicted(segment) => {
                self.predicted(cx, segment, &mut payload);
                Ok(())
            }
            _ => self.slowly(cx, segment, &mut payload),
        };
        if let Some(payload) = payload {
            cx.out.discard(payload.handle, result.err().unwrap_or(DropReason::TcpOldData));
        }
        if self.state != State::Closed {
            self.set(ConnFlags::DIRTY, true);
            let decide = self.ack.is_scheduled() && !self.is(ConnFlags::DECIDED);
            self.set(ConnFlags::DECIDE, self.is(ConnFlags::DECIDE) || decide);
            self.set(ConnFlags::DECIDED, false);
        }
        result
    }

    /// Header prediction.
    fn is_predicted(&self, segment: &Segment) -> bool {
        let fits = segment.len == 0 || (segment.len <= self.win.current(self.rcv_nxt) && self.win.fits());
        let ts = match segment.options.timestamps {
            Some(ts) => self.is(ConnFlags::TS) && ts.val.wrapping_sub(self.ts_recent) as i32 >= 0,
            None => !self.is(ConnFlags::TS),
        };
        self.state == State::Established
            && segment.flags.without(Flags::PSH) == Flags::ACK
            && segment.seq == self.rcv_nxt
            && ts
            && fits
            && self.ooo.is_none()
            && segment.options.sack.is_empty()
            && segment.ack.between(self.tx.una(), self.tx.nxt())
            && u32::from(segment.window) << self.snd_wscale == self.snd_wnd
            && !segment.ce
            && !self.is(ConnFlags::RCV_SHUT | ConnFlags::ECN_ECHO | ConnFlags::LAST_CE | ConnFlags::EXHAUSTED)
    }

    fn predicted<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        payload: &mut Option<Payload<H>>,
    ) {
        self.update_ts_recent(cx, segment);
        self.snd_wl1 = segment.seq;
        self.last_ack = cx.now;
        self.keep_probes = 0;
        if segment.len == 0 {
            cx.counters.hp_acks += 1;
            self.feed_ack(cx, segment, false);
            return;
        }
        cx.counters.hp_hits += 1;
        if segment.ack != self.tx.una() {
            self.feed_ack(cx, segment, false);
        }
        if let Some(payload) = payload.take() {
            self.in_order(cx, segment, 0, segment.len, payload);
        }
    }

    fn slowly<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        payload: &mut Option<Payload<H>>,
    ) -> Result<(), DropReason> {
        if !segment.flags.any(Flags::ACK | Flags::RST | Flags::SYN) {
            return Err(DropReason::TcpFlags);
        }
        self.validate(cx, segment)?;
        if !segment.flags.any(Flags::ACK) {
            return Err(DropReason::TcpFlags);
        }
        if segment.len == 0 {
            cx.counters.pure_acks += 1;
        }
        if self.state == State::SynReceived {
            self.ack_of_crossed_syn(cx, segment)?;
        } else {
            self.take_ack(cx, segment)?;
        }
        self.moves_by_ack(cx, segment)?;
        self.text(cx, segment, payload)
    }

    /// Timestamps, sequence number, RST, SYN: what fails is answered, or not, and dropped.
    fn validate<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let (rst, syn) = (segment.flags.any(Flags::RST), segment.flags.any(Flags::SYN));
        // RFC 7323 5.3 R1.
        if self.paws_rejects(cx, segment) && !rst {
            return Err(self.dropped_by_paws(cx, segment, syn));
        }
        if let Err(reason) = self.check_sequence(segment) {
            if rst {
                // "RCV.NXT − 1" is where a reset stands that was sent before a FIN was taken.
                if self.reset_before_fin(segment) {
                    self.reset_by_peer(cx);
                    return Err(DropReason::TcpReset);
                }
            } else if syn {
                return Err(self.challenge_syn(cx, segment));
            } else if segment.seq_len() > 0 || !self.oow_limited(cx) {
                self.duplicate_ack(cx, segment);
            } else {
                cx.counters.ack_skipped_seq += 1;
            }
            return Err(reason);
        }
        if rst {
            // RFC 5961 3.2: "If the RST bit is set and the sequence number exactly matches the next
            // expected sequence number (RCV.NXT), then TCP endpoints MUST reset the connection";
            // else, in the window, "MUST send an acknowledgment (challenge ACK)".
            let at_sack = self.ooo.as_ref().and_then(|ooo| ooo.highest_sacked()) == Some(segment.seq);
            if segment.seq == self.rcv_nxt || self.reset_before_fin(segment) || at_sack {
                self.reset_by_peer(cx);
            } else {
                self.challenge_ack(cx);
            }
            return Err(DropReason::TcpReset);
        }
        if syn && !self.is_crossed_syn_ack(segment) {
            // RFC 5961 4.2: "irrespective of the sequence number, TCP endpoints MUST send a
            // challenge ACK".
            return Err(self.challenge_syn(cx, segment));
        }
        Ok(())
    }

    /// The SYN-ACK that ends a simultaneous open.
    fn is_crossed_syn_ack(&self, segment: &Segment) -> bool {
        self.state == State::SynReceived
            && segment.flags.all(Flags::SYN | Flags::ACK)
            && segment.len == 0
            && segment.seq + 1 == self.rcv_nxt
            && segment.ack == self.tx.nxt()
    }

    fn reset_before_fin(&self, segment: &Segment) -> bool {
        segment.seq + 1 == self.rcv_nxt
            && matches!(self.state, State::CloseWait | State::LastAck | State::Closing)
    }

    fn challenge_syn<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment) -> DropReason {
        if self.state == State::SynReceived && segment.seq + 1 == self.rcv_nxt {
            // The peer's SYN came again: so does the answer to it.
            if !self.oow_limited(cx) {
                self.send_syn_ack_again(cx);
            }
            return DropReason::TcpInvalidSyn;
        }
        cx.counters.syn_challenge += 1;
        self.challenge_ack(cx);
        DropReason::TcpInvalidSyn
    }

    pub(crate) fn ts_recent_expired(&self, now: Instant) -> bool {
        self.ts_recent == 0 || now.millis_since(self.ts_recent_at) >= PAWS_24_DAYS_MS
    }

    /// "If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent
    /// is valid, and if the RST bit is not set, then treat the arriving segment as not acceptable".
    fn paws_rejects<O>(&self, cx: &Cx<'_, O>, segment: &Segment) -> bool {
        let Some(ts) = segment.options.timestamps else { return false };
        self.is(ConnFlags::TS)
            && (ts.val.wrapping_sub(self.ts_recent) as i32) < 0
            && !self.ts_recent_expired(cx.now)
            && !self.is_disordered_ack(cx, segment, ts.val)
    }

    /// A pure duplicate ACK that a later one overtook is harmless (Linux `tcp_disordered_ack`).
    fn is_disordered_ack<O>(&self, cx: &Cx<'_, O>, segment: &Segment, ts_val: u32) -> bool {
        let behind = self.ts_recent.wrapping_sub(ts_val);
        let allowed = u64::from(self.rto(cx.cfg).as_millis()) * 6 / 5;
        segment.seq_len() == 0
            && segment.flags.any(Flags::ACK)
            && segment.seq == self.rcv_nxt
            && segment.ack == self.tx.una()
            && self.window_of(segment) == self.snd_wnd
            && u64::from(behind) <= allowed
    }

    fn dropped_by_paws<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        syn: bool,
    ) -> DropReason {
        if syn {
            return self.challenge_syn(cx, segment);
        }
        if segment.seq_len() == 0 && segment.seq.before(self.rcv_nxt) {
            cx.counters.paws_old_ack += 1;
            return DropReason::TcpRfc7323PawsAck;
        }
        cx.counters.paws_estab += 1;
        if segment.seq_len() > 0 || !self.oow_limited(cx) {
            self.duplicate_ack(cx, segment);
        } else {
            cx.counters.ack_skipped_paws += 1;
        }
        DropReason::TcpRfc7323Paws
    }

    /// RFC 9293 3.10.7.4 "first, check sequence number". Linux is lenient about what is before
    /// `RCV.NXT` and was not acknowledged yet, about a FIN just beyond the window, and, while the
    /// application has read everything, about a tail beyond it.
    fn check_sequence(&self, segment: &Segment) -> Result<(), DropReason> {
        let end = segment.end();
        if end.before(self.win.told_at) {
            return Err(DropReason::TcpOldSequence);
        }
        let limit = self.win.max_edge.max(self.rcv_nxt);
        if end.after(limit) {
            let fin = u32::from(segment.flags.any(Flags::FIN));
            if (end - fin).at_or_before(limit) {
                return Ok(());
            }
            if segment.seq.after(limit) {
                return Err(DropReason::TcpInvalidSequence);
            }
            if self.unread() > 0 {
                return Err(DropReason::TcpInvalidEndSequence);
            }
        }
        Ok(())
    }

    /// An ACK for a segment that is not acceptable; what of it arrived before is reported.
    fn duplicate_ack<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment) {
        if segment.seq_len() > 0 && segment.seq.before(self.rcv_nxt) {
            cx.counters.delayed_ack_lost += 1;
            self.ack.enter_quick(self.win.wnd, MAX_QUICK);
            self.report_duplicate(cx, segment.seq, segment.end().min(self.rcv_nxt));
        }
        self.send_ack(cx);
    }

    /// RFC 2883: what arrived again is told.
    pub(crate) fn report_duplicate<O>(&mut self, cx: &mut Cx<'_, O>, start: crate::Seq, end: crate::Seq) {
        if !self.is(ConnFlags::SACK) || !cx.cfg.tcp_dsack || start == end {
            return;
        }
        if start.before(self.rcv_nxt) {
            cx.counters.dsack_old_sent += 1;
        } else {
            cx.counters.dsack_ofo_sent += 1;
        }
        self.dsack = SackRange { start, end };
    }
}
