//! SYN-SENT (RFC 9293 3.10.7.3): the answer to this end's SYN, or a SYN that crosses it.

use super::{Conn, ConnFlags, Cx, Output, State};
use crate::counters::DropReason;
use crate::recv::ack::MAX_QUICK;
use crate::send::ts_clock;
use crate::time::Span;
use crate::wire::{Flags, Segment};

/// How long the first data waits for the application, before the SYN-ACK is acknowledged bare.
const HOLD: Span = Span(200_000);

impl<H> Conn<H> {
    pub(crate) fn in_syn_sent<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let rst = segment.flags.any(Flags::RST);
        let syn = segment.flags.any(Flags::SYN);
        if segment.flags.any(Flags::ACK) {
            // "If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set…)".
            let acceptable = segment.ack.after(self.tx.una()) && segment.ack.at_or_before(self.tx.nxt());
            if !acceptable {
                self.reset_in_answer(cx, segment);
                if self.tx.retransmits() == 0 && self.tx.nxt() != self.iss {
                    // An old connection answered: the SYN goes again at once.
                    self.tx.hurry_syn(&cx.send());
                }
                return Err(DropReason::TcpInvalidAckSequence);
            }
            if !self.echo_is_ours(cx, segment) {
                cx.counters.paws_active += 1;
                self.reset_in_answer(cx, segment);
                return Err(DropReason::TcpRfc7323Paws);
            }
            if rst {
                // "If the ACK was acceptable, then signal to the user 'error: connection reset'".
                self.reset_by_peer(cx);
                return Err(DropReason::TcpReset);
            }
            if !syn {
                return Err(DropReason::TcpFlags);
            }
            self.connected(cx, segment);
            return Ok(());
        }
        if rst {
            return Err(DropReason::TcpReset);
        }
        if !syn {
            return Err(DropReason::TcpFlags);
        }
        self.crossed(cx, segment);
        Ok(())
    }

    /// Whether the timestamp echoed, if any, is of a SYN that was sent.
    fn echo_is_ours<O>(&self, cx: &Cx<'_, O>, segment: &Segment) -> bool {
        let Some(ts) = segment.options.timestamps.filter(|ts| ts.ecr != 0) else { return true };
        let echo = ts.ecr.wrapping_sub(self.ts_offset);
        // The first SYN was sent when the connection was made, or later.
        let first = ts_clock(self.last_ack);
        ts_clock(cx.now).wrapping_sub(first) >= echo.wrapping_sub(first)
    }

    /// What both ends offered, from the peer's SYN.
    fn agree<O>(&mut self, cx: &Cx<'_, O>, segment: &Segment) {
        let options = &segment.options;
        self.peer_mss = options.mss.unwrap_or(self.peer_mss);
        match options.window_scale.filter(|_| cx.cfg.tcp_window_scaling) {
            Some(shift) => {
                self.set(ConnFlags::WSCALE, true);
                self.snd_wscale = shift;
            }
            None => {
                self.snd_wscale = 0;
                self.win.no_scale();
            }
        }
        self.set(ConnFlags::SACK, options.sack_permitted && cx.cfg.tcp_sack);
        if let Some(ts) = options.timestamps.filter(|_| cx.cfg.tcp_timestamps != 0) {
            self.agree_timestamps(cx.now, ts.val);
        }
        self.set_irs(segment.seq);
        self.snd_wnd = u32::from(segment.window);
        self.max_window = self.snd_wnd;
    }

    /// "If SND.UNA > ISS (our SYN has been ACKed), change the connection state to ESTABLISHED,
    /// form an ACK segment <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK> and send it."
    fn connected<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment) {
        let retransmitted = self.tx.retransmits() > 0;
        self.agree(cx, segment);
        // RFC 3168 6.1.1: ECE without CWR on a SYN-ACK agrees.
        let ecn =
            self.is(ConnFlags::ECN_ASKED) && segment.flags.any(Flags::ECE) && !segment.flags.any(Flags::CWR);
        self.feed_ack(cx, segment, false);
        let shut = self.is(ConnFlags::SEND_SHUT);
        self.established(cx, ecn, retransmitted);
        if shut {
            self.state = State::FinWait1;
        }
        let thresh = cx.cfg.tcp_pingpong_thresh;
        if self.write_end().after(self.tx.nxt()) {
            // Data is queued: it carries the ACK.
            self.ack.schedule();
        } else if self.ack.is_pingpong(thresh) {
            self.ack.schedule();
            self.ack.enter_quick(self.win.wnd, MAX_QUICK);
            self.ack.enter_pingpong(thresh);
            self.ack.deadline = cx.now + HOLD;
        } else {
            self.send_ack(cx);
        }
    }

    /// "Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
    /// and send it."
    fn crossed<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment) {
        self.agree(cx, segment);
        self.state = State::SynReceived;
        self.send_syn_ack_again(cx);
    }
}
