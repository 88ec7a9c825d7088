//! The end of a connection (RFC 9293 3.6, 3.10.4, 3.10.5; RFC 2525 2.17; Linux `__tcp_close`,
//! `tcp_shutdown`).

use super::{Conn, ConnFlags, Cx, Error, Events, Output, State};
use crate::config::Config;
use crate::counters::DropReason;
use crate::time::{Instant, Span};
use crate::timewait::{Substate, TIMEWAIT_LEN, TimeWait};
use crate::wire::{Flags, Segment};

/// The longest wait in FIN-WAIT-2 that `TCP_LINGER2` sets, seconds.
const FIN_TIMEOUT_MAX: i32 = 120;

/// Which direction the application ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// It reads no more.
    Read,
    /// It sends no more.
    Write,
    /// Neither.
    Both,
}

impl<H> Conn<H> {
    /// Ends one direction, or both (`shutdown`). Ending the receiving one is local: the peer is not
    /// told. In SYN-SENT there is nothing to end but the attempt: the connection is as if it had never
    /// been begun, closed, without an end of either direction.
    pub fn shutdown<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, how: Shutdown) {
        if self.state == State::SynSent {
            // "SYN-SENT STATE: Delete the TCB and return 'error: closing' responses".
            self.end(cx, None);
            self.set(ConnFlags::RCV_SHUT | ConnFlags::SEND_SHUT, false);
            return;
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.set(ConnFlags::RCV_SHUT, true);
            self.raise(Events(Events::READABLE.0 | Events::PEER_FIN.0));
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.close_sending();
        }
    }

    /// Queues the FIN behind what is queued: the state changes at once, whatever the peer's window
    /// says; in SYN-RECEIVED once the connection is established (RFC 9293 3.10.4 "queue for
    /// processing after entering ESTABLISHED state").
    fn close_sending(&mut self) {
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
        self.set(ConnFlags::SEND_SHUT, self.state != State::Closed);
        self.set(ConnFlags::DIRTY, true);
        self.raise(Events::WRITABLE);
    }

    /// The application has closed, and will not ask again: the connection goes on by itself until
    /// it reports [`Events::CLOSED`]. Data that was not read is lost, which a reset tells.
    pub fn close<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        let unread = self.unread() > 0;
        self.set(ConnFlags::ORPHAN, true);
        self.set(ConnFlags::RCV_SHUT, true);
        self.win.held = 0;
        match self.state {
            State::Closed => {}
            State::SynSent => self.end(cx, None),
            _ if unread => {
                // "If such a host issues a CLOSE call while received data is still pending in TCP
                // …, its TCP SHOULD send a RST to show that data was lost."
                cx.counters.abort_on_close += 1;
                self.abort(cx, None);
            }
            _ if self.is(ConnFlags::LINGER_ZERO) => {
                cx.counters.abort_on_data += 1;
                self.abort(cx, None);
            }
            State::FinWait2 => self.orphan_in_fin_wait2(cx),
            _ => self.close_sending(),
        }
        self.purge_ooo(cx);
    }

    /// Resets the connection.
    pub fn abort<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, error: Option<Error>) {
        // Where the peer knows of no connection, or of none any more, no reset is due.
        let told = !matches!(self.state, State::Closed | State::SynSent | State::LastAck | State::Closing)
            || self.unsent() > 0;
        if told && !matches!(self.state, State::Closed | State::SynSent) {
            self.send_reset(cx);
        }
        self.end(cx, error);
    }

    /// The connection is over.
    pub(crate) fn end<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, error: Option<Error>) {
        let unacked = self.unacked();
        if unacked > 0 {
            // What was queued is lost: the host forgets it.
            cx.out.acked(unacked);
        }
        self.state = State::Closed;
        self.write_seq = self.tx.una();
        self.purge_ooo(cx);
        self.keep_at = Instant::NEVER;
        self.ack.deadline = Instant::NEVER;
        self.tx.stop();
        self.set(ConnFlags::DIRTY, false);
        self.set(ConnFlags::RCV_SHUT, true);
        self.set(ConnFlags::SEND_SHUT, true);
        let mut events = Events::CLOSED.0 | Events::READABLE.0 | Events::WRITABLE.0;
        if let Some(error) = error {
            self.error = Some(error);
            events |= Events::ERROR.0;
        }
        self.raise(Events(events));
    }

    /// Both FINs are acknowledged, this end's first: the numbers stay for a minute.
    pub(crate) fn time_wait<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        self.leave_to(cx, Substate::TimeWait, TIMEWAIT_LEN);
    }

    fn leave_to<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, substate: Substate, wait: Span) {
        // The peer's FIN still has to be acknowledged, where an ACK is owed.
        if self.ack.is_scheduled() && substate == Substate::TimeWait {
            self.send_ack(cx);
        }
        let time_wait = TimeWait::new(
            substate,
            cx.now + wait,
            (self.tx.nxt(), self.rcv_nxt),
            self.win.current(self.rcv_nxt),
            self.win.scale,
            self.is(ConnFlags::TS).then_some((self.ts_recent, self.ts_recent_at)),
            self.ts_offset,
        );
        cx.out.time_wait(time_wait);
        self.end(cx, None);
    }

    /// How long an orphan waits for the peer's FIN; `None`: not at all.
    fn fin_time(&self, cfg: &Config) -> Option<Span> {
        let seconds = self.tuned().linger2.unwrap_or(cfg.tcp_fin_timeout.min(1 << 20) as i32);
        if seconds < 0 {
            return None;
        }
        // RTO's 3.5-fold, so that a lost ACK of the peer's FIN can be made good.
        let rto = self.rto(cfg);
        Some(Span::from_millis(seconds as u32 * 1000).max(rto.times(4) - Span(rto.0 / 2)))
    }

    /// This end's FIN is acknowledged; the peer may still send.
    pub(crate) fn fin_wait2<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        segment: &Segment,
    ) -> Result<(), DropReason> {
        self.state = State::FinWait2;
        if !self.is(ConnFlags::ORPHAN) {
            return Ok(());
        }
        if self.tuned().linger2.is_some_and(|linger| linger < 0) {
            cx.counters.abort_on_data += 1;
            self.reset_in_answer(cx, segment);
            self.end(cx, None);
            return Err(DropReason::TcpAbortOnData);
        }
        let data = segment.len > 0 && (segment.seq + segment.len).after(self.rcv_nxt);
        if data {
            cx.counters.abort_on_data += 1;
            self.reset_in_answer(cx, segment);
            self.end(cx, None);
            return Err(DropReason::TcpAbortOnData);
        }
        if segment.flags.any(Flags::FIN) {
            // The FIN is taken right away, by `text`.
            if let Some(wait) = self.fin_time(cx.cfg) {
                self.keep_at = cx.now + wait;
            }
            return Ok(());
        }
        self.orphan_in_fin_wait2(cx);
        if self.state == State::Closed { Err(DropReason::TcpClose) } else { Ok(()) }
    }

    /// Nothing is left but to wait for the peer's FIN: a small object can do that.
    pub(crate) fn orphan_in_fin_wait2<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        match self.fin_time(cx.cfg) {
            None => {
                cx.counters.abort_on_linger += 1;
                self.send_reset(cx);
                self.end(cx, None);
            }
            Some(wait) if wait > TIMEWAIT_LEN => self.keep_at = cx.now + (wait - TIMEWAIT_LEN),
            Some(wait) => self.leave_to(cx, Substate::FinWait2, wait),
        }
    }

    /// The time beyond [`TIMEWAIT_LEN`] is over: the small object waits for the rest.
    pub(crate) fn rest_of_fin_wait2<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        match self.fin_time(cx.cfg) {
            Some(wait) if wait > TIMEWAIT_LEN => self.leave_to(cx, Substate::FinWait2, TIMEWAIT_LEN),
            _ => {
                self.send_reset(cx);
                self.end(cx, None);
            }
        }
    }

    /// Checks a `TCP_LINGER2` value as Linux does: negative is −1, more than two minutes is refused
    /// (and then `tcp_fin_timeout` stands).
    pub(crate) fn linger2_of(seconds: i32) -> Option<i32> {
        match seconds {
            ..0 => Some(-1),
            0 => None,
            seconds if seconds > FIN_TIMEOUT_MAX => Some(FIN_TIMEOUT_MAX),
            seconds => Some(seconds),
        }
    }
}
