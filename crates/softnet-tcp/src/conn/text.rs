//! The text of a segment, and its FIN (RFC 9293 3.10.7.4 "seventh, process the segment text",
//! "eighth, check the FIN bit"; Linux `tcp_data_queue`, `tcp_data_queue_ofo`, `tcp_fin`).

use super::input::Payload;
use super::{Conn, ConnFlags, Cx, Events, Output, State};
use crate::counters::DropReason;
use crate::recv::ack::MAX_QUICK;
use crate::recv::reassembly::{Piece, Reassembly};
use crate::seq::Seq;
use crate::wire::{Flags, Segment};

impl<H> Conn<H> {
    pub(crate) fn text<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        payload: &mut Option<Payload<H>>,
    ) -> Result<(), DropReason> {
        if matches!(self.state, State::FinWait1 | State::FinWait2) && self.is(ConnFlags::RCV_SHUT) {
            // "A TCP implementation MAY implement a 'half-duplex' close sequence … if … data is
            // received after CLOSE is called, its TCP SHOULD send a RST to show that data was lost"
            // (RFC 9293 3.6.1).
            if segment.len > 0 && (segment.seq + segment.len).after(self.rcv_nxt) {
                cx.counters.abort_on_data += 1;
                self.reset_in_answer(cx, segment);
                self.reset_by_peer(cx);
                return Err(DropReason::TcpAbortOnData);
            }
        }
        if segment.seq_len() == 0 {
            return Ok(());
        }
        if self.is(ConnFlags::PEER_FIN) {
            // Nothing follows a FIN; what comes again from before it is acknowledged.
            if segment.seq.at_or_after(self.rcv_nxt) {
                return Err(DropReason::TcpOverwindow);
            }
            cx.counters.delayed_ack_lost += 1;
            self.report_duplicate(cx, segment.seq, segment.end().min(self.rcv_nxt));
            return Err(self.out_of_window(DropReason::TcpOldData));
        }
        self.ecn_of(cx, segment);
        self.queue(cx, segment, payload)
    }

    fn queue<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        payload: &mut Option<Payload<H>>,
    ) -> Result<(), DropReason> {
        let (fin, end) = (segment.flags.any(Flags::FIN), segment.end());
        // A SYN's number is no text; it gets here only to end a simultaneous open.
        let start = segment.seq + u32::from(segment.flags.any(Flags::SYN));
        let window = self.win.current(self.rcv_nxt);
        if start == self.rcv_nxt {
            if window == 0 && segment.len > 0 && !self.hole_has_the_memory() {
                cx.counters.zero_window_drop += 1;
                return Err(self.out_of_window(DropReason::TcpZeroWindow));
            }
            return self.take(cx, segment, 0, fin, payload);
        }
        if end.at_or_before(self.rcv_nxt) {
            // All of it was there: its ACK was lost.
            cx.counters.delayed_ack_lost += 1;
            self.report_duplicate(cx, start, end);
            return Err(self.out_of_window(DropReason::TcpOldData));
        }
        if start.before(self.rcv_nxt) {
            self.report_duplicate(cx, start, self.rcv_nxt);
            if window == 0 && !self.hole_has_the_memory() {
                cx.counters.zero_window_drop += 1;
                return Err(self.out_of_window(DropReason::TcpZeroWindow));
            }
            return self.take(cx, segment, self.rcv_nxt - start, fin, payload);
        }
        if !start.before(self.win.max_edge) {
            return Err(self.out_of_window(DropReason::TcpOverwindow));
        }
        self.beyond_hole(cx, segment, fin, payload)
    }

    /// Whether the window is closed only because of what waits beyond a hole: the application has
    /// read everything, so that no read will ever open it. What fills the hole is taken then, and
    /// what waits gives way to it.
    fn hole_has_the_memory(&self) -> bool {
        self.has_hole() && self.unread() == 0 && self.rcv_nxt.before(self.win.max_edge)
    }

    /// The peer is out of step: it is told at once, and quickly for a while.
    fn out_of_window(&mut self, why: DropReason) -> DropReason {
        self.ack.enter_quick(self.win.wnd, MAX_QUICK);
        self.ack.schedule();
        why
    }

    /// The segment's text continues what is there, from `front` on.
    fn take<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        front: u32,
        fin: bool,
        payload: &mut Option<Payload<H>>,
    ) -> Result<(), DropReason> {
        let mut len = segment.len.saturating_sub(front);
        let mut fin = fin;
        // What lies beyond every window told is left out, and the FIN behind it.
        let room = self.win.max_edge.past(self.rcv_nxt);
        if len > room {
            (len, fin) = (room, false);
        }
        if let Some(payload) = payload.take() {
            if len == 0 {
                cx.out.discard(payload.handle, DropReason::TcpOldData);
            } else if !self.make_room(cx, self.rcv_nxt) {
                self.ack.out_of_memory();
                self.raise(Events::READABLE);
                if self.unread() > 0 || self.is(ConnFlags::EXHAUSTED) {
                    cx.counters.rcv_q_drop += 1;
                    cx.out.discard(payload.handle, DropReason::ProtoMem);
                    return Err(DropReason::ProtoMem);
                }
                // An application that has read everything gets the next segment in any case.
                self.in_order(cx, segment, front, len, payload);
            } else {
                self.in_order(cx, segment, front, len, payload);
            }
        }
        if fin {
            self.peer_fin(cx);
        }
        self.close_hole(cx);
        Ok(())
    }

    /// `len` bytes from `front` on are next in order, and accepted.
    pub(crate) fn in_order<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        front: u32,
        len: u32,
        payload: Payload<H>,
    ) {
        let rto = self.rto(cx.cfg);
        self.win.held = self.win.held.saturating_add(payload.charge);
        let before = self.rcv_nxt;
        self.rcv_nxt += len;
        self.bytes_received += u64::from(len);
        cx.out.deliver(payload.handle, front, len);
        self.measure(cx, segment, before, payload.charge);
        self.ack.data_arrived(cx.now, self.win.wnd, rto);
        let grows = len >= 128 && !self.is(ConnFlags::PRESSED);
        if grows && self.win.grow(cx.cfg, segment.len, payload.charge, self.ack.rcv_mss) {
            self.ack.quick |= 1;
        }
        self.raise(Events::READABLE);
    }

    /// Learns from a segment: its sender's segment size, the share of payload in memory, the round
    /// trip.
    fn measure<O>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment, _before: Seq, charge: u32) {
        let ts = self.is(ConnFlags::TS);
        let header = 20 + if ts { 12 } else { 0 };
        let per = segment_len(segment);
        let pushed = segment.flags.any(Flags::PSH | Flags::FIN);
        if self.ack.measure(per, header, pushed, self.win.advmss, header) {
            self.win.learn_ratio(segment.len, charge);
        }
        if let Some(ts) = segment.options.timestamps.filter(|ts| self.is(ConnFlags::TS) && ts.ecr != 0) {
            let ticks = self.ts_now(cx.now).wrapping_sub(ts.ecr) as i32;
            let full = segment.len >= u32::from(self.ack.rcv_mss);
            self.win.rtt_by_timestamp(ts.ecr, ticks, full, self.unread() == segment.len);
        }
        self.win.rtt_by_window(cx.now, self.rcv_nxt);
    }

    /// Takes over what waited for the hole that was closed.
    fn close_hole<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.ooo.is_none() {
            return;
        }
        while let Some(ooo) = &mut self.ooo
            && let Some(piece) = ooo.pop(self.rcv_nxt)
        {
            let len = piece.end - piece.start;
            if len == 0 {
                self.win.held = self.win.held.saturating_sub(piece.charge);
                cx.out.discard(piece.handle, DropReason::TcpOldData);
                continue;
            }
            self.rcv_nxt += len;
            self.bytes_received += u64::from(len);
            cx.out.deliver(piece.handle, piece.front, len);
        }
        if self.ooo.as_ref().is_some_and(|ooo| ooo.fin == Some(self.rcv_nxt)) {
            self.peer_fin(cx);
        }
        if !self.has_hole() {
            // RFC 5681 4.2: "a TCP receiver SHOULD send an immediate ACK when it receives a data
            // segment that fills in all or part of a gap".
            self.ack.schedule_now();
        }
        self.sacks_acked(self.rcv_nxt);
    }

    fn beyond_hole<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
        fin: bool,
        payload: &mut Option<Payload<H>>,
    ) -> Result<(), DropReason> {
        let (start, mut end) = (segment.seq, segment.seq + segment.len);
        let edge = self.win.max_edge;
        let mut fin = fin;
        if end.after(edge) {
            (end, fin) = (edge, false);
        }
        self.ack.schedule();
        if payload.is_some() && !self.make_room(cx, start) {
            cx.counters.ofo_drop += 1;
            return Err(DropReason::ProtoMem);
        }
        self.rcv_ooopack = self.rcv_ooopack.wrapping_add(u32::from(segment.segs));
        cx.counters.ofo_queue += 1;
        let sack = self.is(ConnFlags::SACK);
        let ooo = self.ooo.get_or_insert_with(|| Box::new(Reassembly::default()));
        // Nothing follows a FIN that is known.
        if let Some(known) = ooo.fin
            && end.after(known)
        {
            end = known.max(start);
        }
        let memory = payload.as_ref().map_or(0, |payload| payload.charge);
        let mut result = Ok(());
        let mut dup = None;
        if start == end && segment.len > 0 {
            // All of it lies behind the FIN, or beyond the window.
            result = Err(DropReason::TcpOverwindow);
        } else if let Some(Payload { handle, charge }) = payload.take() {
            let win = &mut self.win;
            win.held = win.held.saturating_add(charge);
            let out = &mut *cx.out;
            let merged = &mut cx.counters.ofo_merge;
            let inserted = ooo.insert(Piece { start, end, front: 0, charge, handle }, |old| {
                win.held = win.held.saturating_sub(old.charge);
                *merged += 1;
                out.discard(old.handle, DropReason::TcpOfoMerge);
            });
            dup = inserted.dup;
            if let Some(handle) = inserted.rejected {
                win.held = win.held.saturating_sub(charge);
                *merged += 1;
                out.discard(handle, DropReason::TcpOfoMerge);
                result = Err(DropReason::TcpOfoMerge);
            }
        }
        if fin && ooo.fin.is_none() {
            ooo.fin = Some(end);
        }
        // A duplicate is news too: its block is the one to follow the DSACK (RFC 2883 4).
        if (result.is_ok() || dup.is_some()) && sack {
            ooo.sacks.add(start, end + u32::from(fin));
        }
        if let Some(dup) = dup {
            self.report_duplicate(cx, dup.start, dup.end);
        }
        if result.is_ok() && sack && segment.len >= 128 && !self.is(ConnFlags::PRESSED) {
            self.win.grow(cx.cfg, segment.len, memory, self.ack.rcv_mss);
        }
        if self.ooo.as_ref().is_some_and(|ooo| ooo.is_empty()) {
            self.ooo = None;
        }
        // A duplicate ACK goes for each segment: a batch must not make one of them.
        self.decide_ack(cx);
        self.set(ConnFlags::DECIDED, true);
        result
    }

    /// Makes room for a segment from `start` on; false if there is none
    /// (Linux `tcp_prune_queue`, but for collapsing, which is the host's).
    ///
    /// Where the host's memory is scarce windows do not grow; what is held gives way when there is none.
    fn make_room<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, start: Seq) -> bool {
        if self.is(ConnFlags::EXHAUSTED) {
            return self.make_room_of_none(cx, start);
        }
        if self.win.fits() {
            return true;
        }
        cx.counters.prune_called += 1;
        self.win.clamp_to_memory(cx.cfg);
        // What is furthest from being read goes first, an eighth of the buffer at a time, but not
        // for what is further still.
        let goal = self.win.held.saturating_sub(self.win.buf / 8);
        let Some(ooo) = &mut self.ooo else { return self.win.fits() };
        let mut pruned = false;
        while (!self.win.fits() || (pruned && self.win.held > goal))
            && let Some(piece) = ooo.pop_last_behind(start)
        {
            self.win.held = self.win.held.saturating_sub(piece.charge);
            cx.counters.ofo_pruned += 1;
            cx.out.discard(piece.handle, DropReason::TcpOfoQueuePrune);
            pruned = true;
        }
        if pruned {
            self.was_pruned();
        }
        self.win.fits()
    }

    /// The same while the host has no memory: what lies furthest beyond a hole goes, down to a few segments.
    #[cold]
    fn make_room_of_none<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, start: Seq) -> bool {
        let share = self.win.pressed_memory();
        // What is next in order is taken as far as there is memory, or no hole would ever be closed.
        let beyond = start.after(self.rcv_nxt);
        let mut pruned = false;
        while self.is(ConnFlags::EXHAUSTED) || self.win.held > share {
            let Some(piece) = self.ooo.as_mut().and_then(|ooo| ooo.pop_last_behind(start)) else { break };
            self.win.held = self.win.held.saturating_sub(piece.charge);
            cx.counters.ofo_pruned += 1;
            cx.out.discard(piece.handle, DropReason::TcpOfoQueuePrune);
            pruned = true;
            if self.is(ConnFlags::EXHAUSTED) {
                self.look_at_memory(cx);
                self.set(ConnFlags::PRESSED, true);
            }
        }
        cx.counters.prune_called += 1;
        self.win.press();
        if pruned {
            self.was_pruned();
        }
        self.win.fits() && !self.is(ConnFlags::EXHAUSTED) && !(beyond && self.win.held > share)
    }

    /// Pieces beyond a hole were dropped. RFC 2018 8: "the data receiver is permitted to discard data in
    /// its queue that has not been acknowledged". Its reports go too.
    fn was_pruned(&mut self) {
        if let Some(ooo) = &mut self.ooo {
            ooo.fin = None;
            ooo.rebuild_sacks();
            if ooo.is_empty() {
                self.ooo = None;
            }
        }
    }

    /// The peer sends no more: all of its data is there.
    fn peer_fin<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.is(ConnFlags::PEER_FIN) {
            return;
        }
        self.rcv_nxt += 1;
        self.set(ConnFlags::PEER_FIN, true);
        self.set(ConnFlags::RCV_SHUT, true);
        self.ack.schedule();
        self.raise(Events(Events::PEER_FIN.0 | Events::READABLE.0));
        self.purge_ooo(cx);
        match self.state {
            State::SynReceived | State::Established => {
                self.state = State::CloseWait;
                self.ack.enter_pingpong(cx.cfg.tcp_pingpong_thresh);
                self.ack.schedule_now();
            }
            State::FinWait1 => {
                self.send_ack(cx);
                self.state = State::Closing;
            }
            State::FinWait2 => {
                self.send_ack(cx);
                self.time_wait(cx);
            }
            _ => {}
        }
    }

    /// Drops what waits beyond a hole.
    pub(crate) fn purge_ooo<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if let Some(mut ooo) = self.ooo.take() {
            while let Some(piece) = ooo.pop_last() {
                self.win.held = self.win.held.saturating_sub(piece.charge);
                cx.out.discard(piece.handle, DropReason::TcpOfoQueuePrune);
            }
        }
    }

    /// RFC 3168 6.1.3: "the TCP data receiver … sets the ECN-Echo flag in the TCP header of the
    /// subsequent ACK packet", until CWR arrives.
    fn ecn_of<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, segment: &Segment) {
        if !self.tx.ecn_ok() {
            return;
        }
        if self.is(ConnFlags::DCTCP) {
            // RFC 8257 3.2: an ACK covers one state of the mark only.
            if segment.ce != self.is(ConnFlags::LAST_CE) {
                if self.ack.is_scheduled() {
                    self.send_ack(cx);
                }
                self.set(ConnFlags::LAST_CE, segment.ce);
                self.set(ConnFlags::ECN_ECHO, segment.ce);
                self.ack.schedule_now();
            }
            return;
        }
        if segment.flags.any(Flags::CWR) {
            self.set(ConnFlags::ECN_ECHO, false);
            if segment.len > 0 {
                // The peer's window may be one segment now: it must not wait for an ACK.
                self.ack.schedule_now();
            }
        }
        if segment.ce && !self.is(ConnFlags::ECN_ECHO) {
            self.ack.enter_quick(self.win.wnd, 2);
            self.set(ConnFlags::ECN_ECHO, true);
        }
    }
}

/// Payload of each segment that this one stands for.
fn segment_len(segment: &Segment) -> u32 {
    segment.len.div_ceil(u32::from(segment.segs.max(1)))
}
