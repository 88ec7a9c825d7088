//! The ACK field (RFC 9293 3.10.7.4 "fifth, check the ACK field"; RFC 5961 5.2).

use super::{Conn, ConnFlags, Cx, Error, Events, Output, State};
use crate::config::Config;
use crate::counters::DropReason;
use crate::send::AckInput;
use crate::seq::Seq;
use crate::time::Instant;
use crate::wire::{Flags, Segment};

/// What a send buffer may grow to on any path, bytes: 100 µs at 40 Gbit/s, and part of an L2 cache.
const NEAR_SNDBUF: u64 = 512 << 10;
/// How many times as long as a short round trip one may take by waiting in the hosts: for other threads of
/// their CPUs, each of which has some milliseconds.
const WAITS: u32 = 10;

impl<H> Conn<H> {
    /// Takes the ACK field in. A segment whose ACK field is out of range is dropped.
    pub(crate) fn take_ack<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let una = self.tx.una();
        if segment.ack.before(una) {
            // "The ACK value is considered acceptable only if it is in the range of
            // ((SND.UNA − MAX.SND.WND) <= SEG.ACK <= SND.NXT)." Of that, as in Linux, only numbers
            // that were sent; the SYN's is the first.
            let numbered = match i32::try_from(self.tx.bytes_acked()) {
                Ok(_) => una - self.iss,
                Err(_) => u32::MAX,
            };
            if segment.ack.before(una - self.max_window.min(numbered)) {
                self.challenge_ack(cx);
                return Err(DropReason::TcpTooOldAck);
            }
        } else if segment.ack.after(self.tx.nxt()) {
            // "If the ACK acks something not yet sent, then send an ACK, drop the segment." Linux
            // leaves out the ACK while the connection is established (`tcp_rcv_established`): it
            // would answer a blind sender, and the peer has not sent this.
            if self.state != State::Established {
                self.challenge_ack(cx);
            }
            return Err(DropReason::TcpAckUnsentData);
        } else {
            self.update_ts_recent(cx, segment);
        }
        let window_changed = segment.ack.at_or_after(una) && self.update_window(cx.cfg, segment);
        if segment.ack.at_or_after(una) {
            self.last_ack = cx.now;
            self.soft_error = None;
            self.keep_probes = 0;
        }
        self.feed_ack(cx, segment, window_changed);
        Ok(())
    }

    /// Gives an acknowledgement to the sending half, and what it freed to the host.
    pub(crate) fn feed_ack<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        window_changed: bool,
    ) {
        let before = self.data_una();
        let tsecr = segment.options.timestamps.filter(|_| self.is(ConnFlags::TS)).map(|ts| ts.ecr);
        let input = AckInput {
            ack: segment.ack,
            sack: if self.is(ConnFlags::SACK) { &segment.options.sack } else { &[] },
            tsecr: tsecr.filter(|ecr| *ecr != 0).map(|ecr| ecr.wrapping_sub(self.ts_offset)),
            ece: segment.flags.any(Flags::ECE) && self.tx.ecn_ok() && !segment.flags.any(Flags::SYN),
            payload: segment.seq_len() > 0,
            window_changed,
            segs: segment.segs,
            max_window: self.max_window,
        };
        let outcome = self.tx.on_ack(&mut cx.send(), &input);
        if outcome.acked > 0 {
            let freed = self.data_una().min(self.write_seq).past(before);
            if freed > 0 {
                cx.out.acked(freed);
                self.set(ConnFlags::FREED, true);
                self.raise(Events::WRITABLE);
            }
        }
        self.ack_of_probe();
        self.set(ConnFlags::DIRTY, true);
    }

    /// The window that a segment tells, if it is newer than what is known (Linux
    /// `tcp_may_update_window`). Returns whether it changed.
    fn update_window(&mut self, cfg: &Config, segment: &Segment) -> bool {
        let window = self.window_of(segment);
        let newer = segment.ack.after(self.tx.una())
            || segment.seq.after(self.snd_wl1)
            || (segment.seq == self.snd_wl1 && (window > self.snd_wnd || window == 0));
        if !newer {
            return false;
        }
        self.snd_wl1 = segment.seq;
        let changed = window != self.snd_wnd;
        self.snd_wnd = window;
        self.raise_max_window(cfg, window);
        changed
    }

    /// SEG.WND, scaled.
    pub(crate) fn window_of(&self, segment: &Segment) -> u32 {
        if segment.flags.any(Flags::SYN) {
            u32::from(segment.window)
        } else {
            u32::from(segment.window) << self.snd_wscale
        }
    }

    /// "If SEG.TSval ≥ TS.Recent and SEG.SEQ ≤ Last.ACK.sent, then save SEG.TSval" (RFC 7323 4.3).
    pub(crate) fn update_ts_recent<O>(&mut self, cx: &Cx<'_, O>, segment: &Segment) {
        if let Some(ts) = segment.options.timestamps
            && self.is(ConnFlags::TS)
            && segment.seq.at_or_before(self.win.told_at)
            && (ts.val.wrapping_sub(self.ts_recent) as i32 >= 0 || self.ts_recent_expired(cx.now))
        {
            self.ts_recent = ts.val;
            self.ts_recent_at = cx.now;
        }
    }

    /// After the ACK: states that waited for it (RFC 9293 3.10.7.4).
    pub(crate) fn moves_by_ack<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        if !self.fin_acked() {
            return Ok(());
        }
        match self.state {
            State::FinWait1 => self.fin_wait2(cx, segment),
            State::Closing => {
                self.time_wait(cx);
                Err(DropReason::TcpClose)
            }
            State::LastAck => {
                self.end(cx, None);
                Err(DropReason::TcpClose)
            }
            _ => Ok(()),
        }
    }

    /// Crossed SYNs: the ACK of this end's SYN establishes the connection.
    pub(crate) fn ack_of_crossed_syn<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        let acceptable = segment.ack.after(self.tx.una()) && segment.ack.at_or_before(self.tx.nxt());
        if !acceptable {
            // "If the segment acknowledgment is not acceptable, form a reset segment
            // <SEQ=SEG.ACK><CTL=RST> and send it."
            self.reset_in_answer(cx, segment);
            return Err(DropReason::TcpInvalidAckSequence);
        }
        let retransmitted = self.tx.retransmits() > 0;
        self.update_ts_recent(cx, segment);
        self.feed_ack(cx, segment, false);
        self.snd_wnd = self.window_of(segment);
        self.snd_wl1 = segment.seq;
        self.max_window = self.max_window.max(self.snd_wnd);
        let shut = self.is(ConnFlags::SEND_SHUT);
        let ecn = self.tx.ecn_ok();
        self.established(cx, ecn, retransmitted);
        if shut {
            self.state = State::FinWait1;
        }
        Ok(())
    }

    /// The peer answered while nothing was in flight (Linux `tcp_ack_probe`). Only a window that
    /// admits data ends probing: an answer without one does not put giving up off.
    fn ack_of_probe(&mut self) {
        let next = self.write_end().past(self.tx.nxt()).min(self.tx.mss());
        if self.tx.packets_out() == 0 && (self.tx.nxt() + next).at_or_before(self.snd_edge()) {
            self.tx.cancel_persist();
            self.probes_began = Instant::NEVER;
        }
    }

    /// The send buffer follows the congestion window (Linux `tcp_sndbuf_expand`), where it is not
    /// the window that limits (`tcp_should_expand_sndbuf`).
    pub(crate) fn check_space(&mut self, cfg: &Config) {
        if self.is(ConnFlags::FREED) {
            self.set(ConnFlags::FREED, false);
            let waits = !self.is(ConnFlags::ROOM_TOLD) || self.is(ConnFlags::NO_ROOM);
            if waits && !self.in_recovery() && self.tx.in_flight() < self.tx.cwnd() {
                self.expand_sndbuf(cfg);
            }
        }
    }

    /// The send buffer holds twice what may be in flight at least, as far as it
    /// [may grow](Self::most_sndbuf).
    pub(crate) fn expand_sndbuf(&mut self, cfg: &Config) {
        if self.is(ConnFlags::SNDBUF_LOCKED | ConnFlags::PRESSED) {
            return;
        }
        // A segment's memory: its payload and head, as a power of two, and what describes it.
        let segment = u64::from((u32::from(self.tx.mss() as u16) + 640).next_power_of_two() + 256);
        let segments = self.tx.cwnd().max(10).max(cfg.tcp_reordering + 1);
        let want = (2 * segment * u64::from(segments)).min(self.most_sndbuf(cfg, segment));
        self.sndbuf = self.sndbuf.max(want as u32);
    }

    /// What the send buffer may grow to, where a segment takes `segment` bytes of memory. Linux bounds it
    /// by `tcp_wmem` alone; but what is written and waits for long is no longer in the CPU's caches when
    /// it leaves. So beyond [`NEAR_SNDBUF`]
    ///
    /// * it grows to no more than the memory of two of the peer's windows,
    /// * and on a short path to the fraction of `tcp_wmem` that the least round trip is of
    ///   `tcp_rcvbuf_low_rtt`: there the congestion window says how long packets wait in the hosts, not
    ///   what the path holds, and grows with it.
    ///
    /// The least round trip may be of a proxy that answered the handshake, or of minutes ago. A path on
    /// which round trips take ten times as long as a short one is none.
    fn most_sndbuf(&self, cfg: &Config, segment: u64) -> u64 {
        let (most, low) = (u64::from(cfg.tcp_wmem[2]), cfg.tcp_rcvbuf_low_rtt_us);
        let windows = 2 * segment * u64::from(self.max_window.div_ceil(self.tx.mss().max(1)));
        let is_short = self.tx.srtt().is_none_or(|srtt| srtt.0 / WAITS < low);
        let part = match self.tx.min_rtt() {
            Some(rtt) if rtt.0 < low && is_short => most * u64::from(rtt.0) / u64::from(low),
            _ => most,
        };
        most.min(windows.min(part).max(NEAR_SNDBUF))
    }

    /// An answer to a segment that is not believed (RFC 5961 7): at most one for each
    /// `tcp_invalid_ratelimit`.
    pub(crate) fn challenge_ack<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.oow_limited(cx) {
            cx.counters.ack_skipped_challenge += 1;
            return;
        }
        cx.counters.challenge_ack += 1;
        self.send_ack(cx);
    }

    /// Whether an invalid segment was answered a moment ago.
    pub(crate) fn oow_limited<O>(&mut self, cx: &Cx<'_, O>) -> bool {
        let limit = u64::from(cx.cfg.tcp_invalid_ratelimit);
        if self.last_oow.is_armed() && cx.now.millis_since(self.last_oow) < limit {
            return true;
        }
        self.last_oow = cx.now;
        false
    }

    /// Resets as an answer, with the numbers of what is answered.
    pub(crate) fn reset_in_answer<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment) {
        if let Some(mut reset) = crate::reset::reset_for(segment) {
            if self.is(ConnFlags::TS) {
                reset.options.timestamps =
                    Some(crate::wire::Timestamps { val: self.ts_now(cx.now), ecr: self.ts_recent });
            }
            if cx.out.send(&reset) {
                cx.counters.out_rsts += 1;
                self.segs_out = self.segs_out.wrapping_add(1);
            }
        }
    }

    /// The peer reset the connection (Linux `tcp_reset`).
    pub(crate) fn reset_by_peer<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        let error = match self.state {
            State::SynSent => Error::ConnectionRefused,
            State::CloseWait => Error::BrokenPipe,
            State::Closed => return,
            _ => Error::ConnectionReset,
        };
        if matches!(self.state, State::Established | State::CloseWait) {
            cx.counters.estab_resets += 1;
        } else if matches!(self.state, State::SynSent | State::SynReceived) {
            cx.counters.attempt_fails += 1;
        }
        self.end(cx, Some(error));
    }

    /// Forgets a hole's reports when everything before `rcv_nxt` is there.
    pub(crate) fn sacks_acked(&mut self, rcv_nxt: Seq) {
        if let Some(ooo) = &mut self.ooo {
            ooo.sacks.acked_to(rcv_nxt);
            if ooo.is_empty() {
                self.ooo = None;
            }
        }
    }
}
