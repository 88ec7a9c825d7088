//! What leaves: data as far as windows and Nagle let it, then the ACK that is owed
//! (RFC 9293 3.7.4, 3.8.6.2.1; Linux `tcp_write_xmit`, `tcp_transmit_skb`).
//!
//! "A TCP implementation SHOULD implement the Nagle algorithm" (SHLD-7), "there MUST be a way for
//! an application to disable the Nagle algorithm" (MUST-17). Linux's variant, Minshall's, holds a
//! small segment back only while an earlier small one is unacknowledged. Every segment but a reset
//! carries timestamps once they are agreed on (RFC 7323 3.2).

use super::{Conn, ConnFlags, Cx, Output, State};
use crate::recv::ack::Decision;
use crate::send::{CaState, Kind, Limits, Transmit};
use crate::seq::Seq;
use crate::time::Span;
use crate::wire::{Emit, Flags, Options, SackBlocks, SackRange, Timestamps};

/// Payload of one super-segment: what an IP packet of 64 KB holds with its headers.
const GSO_MAX: u32 = 65_000;

/// What a segment with ACK tells the peer of what has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Acks {
    /// All of it: no ACK is owed any more.
    All,
    /// There was no room for every SACK block.
    Part,
}

impl<H> Conn<H> {
    /// Sends what may be sent: data, then the ACK that is owed. The host calls it once for every
    /// connection that segments, calls or time have touched.
    pub fn flush<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        self.set(ConnFlags::DIRTY, false);
        if self.state == State::Closed {
            return;
        }
        self.output(cx);
        self.check_space(cx.cfg);
        self.note_bound(cx.now);
        if self.tuned.is_some() {
            self.clamp_rto(cx);
        }
        if self.is(ConnFlags::DECIDE) && self.ack.is_scheduled() {
            self.decide_ack(cx);
        }
        self.set(ConnFlags::DECIDE | ConnFlags::MORE_NOW, false);
    }

    /// Sends data, retransmissions and probes as far as they may go.
    pub(crate) fn output<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return self.output_syn(cx);
        }
        if self.is(ConnFlags::HELD) {
            self.set(ConnFlags::HELD, false);
            cx.out.held();
            self.set(ConnFlags::DIRTY, true);
            return;
        }
        loop {
            let limits = self.limits(cx);
            let Some(mut transmit) = self.tx.next(&mut cx.send(), &limits) else { break };
            let again = transmit.kind == Kind::Retransmit;
            let limit = self.tx.queue_limit(cx.cfg, transmit.payload(), again);
            // Of what others have waiting there nothing is the connection's. Only what is limited asks: the
            // host looks for the way there.
            let in_flight = u64::from(self.tx.nxt() - self.tx.una());
            if limit.is_some_and(|limit| in_flight >= limit && cx.out.backlog() >= limit) {
                cx.out.throttled();
                self.tx.end_run(&mut cx.send(), &limits, false);
                self.set(ConnFlags::DIRTY, true);
                return;
            }
            if !self.send_data(cx, &mut transmit) {
                self.tx.on_tx_refused(&cx.send());
                self.set(ConnFlags::DIRTY, true);
                return;
            }
            self.tx.on_sent(&mut cx.send(), &transmit);
        }
        self.set(ConnFlags::PUSH_NOW, self.is(ConnFlags::PUSH_NOW) && self.write_end().after(self.tx.nxt()));
        if self.tx.packets_out() == 0 && self.write_end().after(self.tx.nxt()) {
            self.tx.arm_persist(&cx.send());
        }
    }

    /// The `len` sequence numbers from `seq` on were sent and never left: this host dropped them, since what
    /// waits before the device is too long. The window is reduced, and they are sent again when an ACK comes
    /// or the host [asks](Output::held) anew; a [`flush`](Self::flush) follows.
    pub fn local_drop<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, seq: Seq, len: u32) {
        if matches!(self.state, State::SynSent | State::SynReceived | State::Closed) {
            return;
        }
        if self.tx.on_local_drop(&mut cx.send(), seq, seq + len) {
            self.set(ConnFlags::HELD, true);
            self.set(ConnFlags::DIRTY, true);
        }
    }

    fn output_syn<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.tx.nxt() == self.iss {
            let syn = Transmit::syn(self.iss);
            if self.send_syn(cx, false) {
                self.tx.on_sent(&mut cx.send(), &syn);
            } else {
                self.tx.on_tx_refused(&cx.send());
                self.set(ConnFlags::DIRTY, true);
            }
            return;
        }
        // Again, if it was lost: the sender says when.
        let limits =
            Limits { write_seq: self.iss + 1, edge: self.iss + 1, max_len: 1, partial_ok: false, fin: false };
        while let Some(transmit) = self.tx.next(&mut cx.send(), &limits) {
            if !self.send_syn(cx, true) {
                self.tx.on_tx_refused(&cx.send());
                return;
            }
            self.tx.on_sent(&mut cx.send(), &transmit);
        }
    }

    pub(crate) fn limits<O: Output<Handle = H>>(&self, cx: &Cx<'_, O>) -> Limits {
        let limits = Limits {
            write_seq: self.write_end(),
            edge: self.snd_edge(),
            max_len: self.tx.run_len(cx.cfg, GSO_MAX),
            partial_ok: self.partial_ok(),
            fin: self.is(ConnFlags::SEND_SHUT),
        };
        match cx.out.piece(self.tx.nxt()) {
            Some(piece) if piece.end.before(self.write_seq) => {
                Limits { write_seq: piece.end, partial_ok: true, fin: false, ..limits }
            }
            _ => limits,
        }
    }

    /// Whether the queue's tail may leave though it is no full segment.
    fn partial_ok(&self) -> bool {
        if self.is(ConnFlags::SEND_SHUT | ConnFlags::PUSH_NOW) {
            return true;
        }
        if self.is(ConnFlags::CORK | ConnFlags::MORE_NOW) {
            return false;
        }
        self.is(ConnFlags::NODELAY) || self.tx.packets_out() == 0 || !self.small_unacked()
    }

    /// Minshall's test: a small segment is out.
    fn small_unacked(&self) -> bool {
        self.snd_sml.after(self.tx.una()) && self.snd_sml.at_or_before(self.tx.nxt())
    }

    /// The SYN-ACK of crossed SYNs, again: its record is the SYN's.
    pub(crate) fn send_syn_ack_again<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        self.send_syn(cx, true);
    }

    /// Sends a run of data that the sender chose. Returns whether the host took it.
    pub(crate) fn send_data<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        transmit: &mut Transmit,
    ) -> bool {
        let payload = transmit.payload();
        let end = transmit.seq + payload;
        let new = transmit.seq == self.tx.nxt();
        if new && payload > 0 {
            transmit.psh |= match cx.out.piece(transmit.seq) {
                Some(piece) => piece.psh && piece.end == end,
                None => {
                    let last = end == self.write_seq && !self.is(ConnFlags::MORE);
                    last || end.after(self.pushed_seq + (self.max_window / 2).max(1))
                }
            };
        }
        // A run ends with PSH, so that the peer's GRO hands it up at once: this time, for what is
        // sent again may be another run (Linux `__tcp_transmit_skb`).
        let psh = transmit.psh || payload > self.tx.mss();
        let mut flags = Flags::ACK;
        flags = flags.with(if psh { Flags::PSH } else { Flags::NONE });
        flags = flags.with(if transmit.fin { Flags::FIN } else { Flags::NONE });
        flags = flags.with(if transmit.cwr { Flags::CWR } else { Flags::NONE });
        let mut emit = self.emit(cx, transmit.seq, flags);
        emit.len = payload;
        emit.mss = self.tx.mss() as u16;
        emit.ect = transmit.ect;
        emit.retransmit = transmit.kind == Kind::Retransmit || !new;
        // Blocks must not make a segment longer than the path carries. An ACK without them is not
        // all that is owed.
        let (blocks, room) = (emit.options.sack.len(), self.tx.mss().saturating_sub(payload));
        emit.options.sack.truncate(room.saturating_sub(4) as usize / 8);
        let acks = if emit.options.sack.len() == blocks { Acks::All } else { Acks::Part };
        if !self.emit_out(cx, &emit, acks) {
            return false;
        }
        if new {
            if transmit.psh {
                self.pushed_seq = end;
            }
            if !payload.is_multiple_of(self.tx.mss()) {
                self.snd_sml = end;
            }
        }
        if payload > 0 {
            self.data_segs_out = self.data_segs_out.wrapping_add(emit.segs());
        }
        if new {
            self.ack.data_sent(cx.now);
        }
        true
    }

    /// A segment with these numbers and flags, and the options that every segment has. ACK is
    /// filled in if the flags say so, the window too.
    pub(crate) fn emit<O>(&mut self, cx: &mut Cx<'_, O>, seq: Seq, flags: Flags) -> Emit {
        let mut emit = Emit { seq, flags, mss: self.tx.mss() as u16, ..Emit::default() };
        if flags.any(Flags::ACK) {
            emit.ack = self.rcv_nxt;
            if self.is(ConnFlags::ECN_ECHO) && !flags.any(Flags::SYN | Flags::RST) {
                emit.flags = emit.flags.with(Flags::ECE);
            }
        }
        if !flags.any(Flags::RST) {
            emit.window = self.window_field(cx);
        }
        emit.options = self.options(cx);
        emit
    }

    fn options<O>(&self, cx: &Cx<'_, O>) -> Options {
        let mut options = Options::default();
        if self.is(ConnFlags::TS) {
            options.timestamps = Some(Timestamps { val: self.ts_now(cx.now), ecr: self.ts_recent });
        }
        if self.is(ConnFlags::SACK) {
            let dsack = (self.dsack.start != self.dsack.end).then_some(self.dsack);
            options.sack = match &self.ooo {
                Some(ooo) => ooo.sacks.blocks(dsack),
                None => dsack.map_or(SackBlocks::EMPTY, |range| {
                    let mut blocks = SackBlocks::EMPTY;
                    blocks.push(range);
                    blocks
                }),
            };
            options.sack.truncate(if self.is(ConnFlags::TS) { 3 } else { 4 });
        }
        options
    }

    /// The window field of a segment that is to leave.
    fn window_field<O>(&mut self, cx: &Cx<'_, O>) -> u16 {
        let no_memory = self.ack.is_out_of_memory();
        let (mut field, scarce) = self.win.field(cx.cfg, self.rcv_nxt, self.ack.rcv_mss, no_memory);
        if scarce {
            self.ack.quick = 0;
            if self.is(ConnFlags::PRESSED) {
                self.win.press();
                field = self.win.field(cx.cfg, self.rcv_nxt, self.ack.rcv_mss, no_memory).0;
            }
        }
        field
    }

    /// A segment with this window field has left.
    fn window_told<O>(&mut self, cx: &mut Cx<'_, O>, field: u16) {
        self.win.told(self.rcv_nxt, field);
        if (field == 0) != self.is(ConnFlags::TOLD_ZERO) {
            self.set(ConnFlags::TOLD_ZERO, field == 0);
            if field == 0 {
                cx.counters.to_zero_window_adv += 1;
            } else {
                cx.counters.from_zero_window_adv += 1;
            }
        }
    }

    /// Hands a segment to the host, and takes note that an ACK has left with it.
    fn emit_out<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, emit: &Emit, acks: Acks) -> bool {
        if !cx.out.send(emit) {
            return false;
        }
        if !emit.flags.any(Flags::SYN | Flags::RST) {
            self.window_told(cx, emit.window);
        }
        self.segs_out = self.segs_out.wrapping_add(emit.segs());
        if !emit.retransmit {
            cx.counters.out_segs += u64::from(emit.segs());
        }
        if emit.flags.any(Flags::RST) {
            cx.counters.out_rsts += 1;
        } else if emit.flags.any(Flags::ACK) && acks == Acks::All {
            self.ack.sent();
            if !emit.options.sack.is_empty() || self.ooo.is_none() {
                self.dsack = SackRange::default();
            }
            if let Some(ooo) = &mut self.ooo {
                ooo.compressed = 0;
            }
        }
        true
    }

    /// The SYN, or the SYN-ACK of a crossed one.
    fn send_syn<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, again: bool) -> bool {
        let crossed = self.state == State::SynReceived;
        let mut emit = Emit { seq: self.iss, flags: Flags::SYN, retransmit: again, ..Emit::default() };
        let offers = if crossed {
            emit.flags = Flags::SYN | Flags::ACK;
            emit.ack = self.rcv_nxt;
            (self.is(ConnFlags::TS), self.is(ConnFlags::WSCALE), self.is(ConnFlags::SACK))
        } else {
            // RFC 3168 6.1.1: a SYN with ECE and CWR asks; one that is sent again does not, in
            // case that is what was dropped.
            let ask =
                (cx.cfg.tcp_ecn == 1 || self.is(ConnFlags::DCTCP)) && !(again && cx.cfg.tcp_ecn_fallback);
            self.set(ConnFlags::ECN_ASKED, ask);
            if ask {
                emit.flags = emit.flags | Flags::ECE | Flags::CWR;
            }
            (cx.cfg.tcp_timestamps != 0, cx.cfg.tcp_window_scaling, cx.cfg.tcp_sack)
        };
        let (ts, wscale, sack) = offers;
        emit.options.mss = Some(self.win.advmss + if crossed && ts { super::open::TS_LEN } else { 0 });
        emit.options.timestamps = ts.then(|| Timestamps { val: self.ts_now(cx.now), ecr: self.ts_recent });
        emit.options.window_scale = wscale.then_some(self.win.scale);
        emit.options.sack_permitted = sack;
        // "The window field in a segment where the SYN bit is set MUST NOT be scaled."
        emit.window = self.win.wnd.min(65_535) as u16;
        self.emit_out(cx, &emit, Acks::All)
    }

    /// Sends an ACK now.
    pub(crate) fn send_ack<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if matches!(self.state, State::Closed | State::SynSent) {
            return;
        }
        let seq = self.acceptable_seq();
        let emit = self.emit(cx, seq, Flags::ACK);
        if !self.emit_out(cx, &emit, Acks::All) {
            // No memory: it stays owed.
            self.ack.schedule_now();
            self.ack.deadline = self.ack.deadline.min(cx.now + Span(200_000));
        }
    }

    /// The number of a segment without data, such that the peer accepts it even if it has taken
    /// its window back.
    pub(crate) fn acceptable_seq(&self) -> Seq {
        let (edge, nxt) = (self.snd_edge(), self.tx.nxt());
        if edge.at_or_after(nxt) || (self.is(ConnFlags::WSCALE) && nxt - edge < 1 << self.win.scale) {
            nxt
        } else {
            edge
        }
    }

    /// Sends an empty segment that the peer has to answer: its number is already acknowledged.
    pub(crate) fn send_probe<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) -> bool {
        let seq = self.tx.una() - 1;
        let emit = self.emit(cx, seq, Flags::ACK);
        self.emit_out(cx, &emit, Acks::All)
    }

    /// Sends a reset (RFC 9293 3.5.2), and nothing after it.
    pub(crate) fn send_reset<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        let seq = self.acceptable_seq();
        let emit = self.emit(cx, seq, Flags::RST | Flags::ACK);
        let emit = Emit { options: Options { sack: SackBlocks::EMPTY, ..emit.options }, ..emit };
        self.emit_out(cx, &emit, Acks::All);
    }

    /// Decides about the ACK that is owed (Linux `__tcp_ack_snd_check`).
    pub(crate) fn decide_ack<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        let thresh = cx.cfg.tcp_pingpong_thresh;
        let full = self.rcv_nxt - self.win.told_at > u32::from(self.ack.rcv_mss);
        let lowat = self.tuned().rcvlowat.unwrap_or(1);
        let unread = self.rcv_nxt - self.copied;
        let opens = || self.win.offer(cx.cfg, self.ack.rcv_mss).0 >= self.win.wnd;
        if (full && (unread < lowat || opens())) || self.ack.is_quick(thresh) || self.ack.is_now() {
            return self.send_ack(cx);
        }
        if !self.has_hole() {
            return self.delay_ack(cx);
        }
        let most = cx.cfg.tcp_comp_sack_nr;
        let (rcv_nxt, sack) = (self.rcv_nxt, self.is(ConnFlags::SACK));
        let rtt = match (self.win.rtt(), self.tx.srtt()) {
            (Span::ZERO, srtt) => srtt.unwrap_or(Span::ZERO),
            (rtt, srtt) => srtt.map_or(rtt, |srtt| srtt.min(rtt)),
        };
        let Some(ooo) = self.ooo.as_mut() else { return };
        if !sack || ooo.compressed >= most {
            return self.send_ack(cx);
        }
        if ooo.compressed_rcv_nxt != rcv_nxt {
            ooo.compressed_rcv_nxt = rcv_nxt;
            ooo.dup_acks = 0;
        }
        // The peer's fast retransmission wants three of them at once.
        if ooo.dup_acks < 3 {
            ooo.dup_acks += 1;
            return self.send_ack(cx);
        }
        ooo.compressed += 1;
        cx.counters.ack_compressed += 1;
        let share = u64::from(rtt.0) * u64::from(cx.cfg.tcp_comp_sack_rtt_percent) / 100;
        let delay = Span(share.min(u64::from(cx.cfg.tcp_comp_sack_delay_us)) as u32);
        self.ack.deadline = self.ack.deadline.min(cx.now + delay);
    }

    fn delay_ack<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        let srtt = self.tx.srtt().unwrap_or(Span::ZERO);
        let rto_min = Span(cx.cfg.tcp_rto_min_us);
        if self.ack.delay(cx.now, srtt, rto_min, cx.cfg.tcp_pingpong_thresh) == Decision::Now {
            self.send_ack(cx);
        }
    }

    /// Whether loss recovery is under way: then the buffer does not grow.
    pub(crate) fn in_recovery(&self) -> bool {
        matches!(self.tx.ca_state(), CaState::Recovery | CaState::Loss)
    }
}
