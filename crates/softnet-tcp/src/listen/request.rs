//! A handshake that a peer began (SYN-RECEIVED, RFC 9293 3.10.7.4).

use super::cookies::{self, CookieOptions};
use super::{Accepted, ListenCx, Listener};
use crate::conn::ConnOptions;
use crate::counters::DropReason;
use crate::isn::{KeyedHash, Tuple};
use crate::reset::reset_for;
use crate::seq::Seq;
use crate::time::{Instant, Span};
use crate::wire::{Emit, Flags, Segment, Timestamps};

/// The first wait for the ACK of a SYN-ACK.
const TIMEOUT: Span = Span(1_000_000);
/// What a peer takes that does not say (RFC 9293 MUST-15).
pub(crate) const DEFAULT_MSS: [u16; 2] = [536, 1220];

const TS: u8 = 1;
const WSCALE: u8 = 2;
const SACK: u8 = 4;
const ECN: u8 = 8;
/// The ACK came, but the connection was not made.
const ACKED: u8 = 16;
const ANSWERED: u8 = 32;

/// A handshake that waits for its ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    deadline: Instant,
    first_sent: Instant,
    iss: Seq,
    irs: Seq,
    ts_recent: u32,
    ts_offset: u32,
    /// Milliseconds of the clock when the last SYN-ACK went, and the last other answer.
    last_sent: u32,
    answered: u32,
    rcv_wnd: u32,
    window: u16,
    peer_mss: u16,
    path_mss: u16,
    advmss: u16,
    snd_wscale: u8,
    rcv_wscale: u8,
    timeouts: u8,
    /// SYN-ACKs sent.
    sent: u8,
    flags: u8,
}

/// What to do with a segment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestVerdict {
    /// Nothing.
    Drop(DropReason),
    /// Send this; the segment is of no other use.
    Answer(Emit),
    /// The handshake is done: forget the request, make a connection, give it the segment, and put
    /// it into the accept queue.
    Accept(Accepted),
    /// Forget the request, and send this reset, if any.
    Gone(Option<Emit>, DropReason),
    /// The segment is for the listener: the answer is a reset. The request stays.
    Refuse(Option<Emit>),
}

/// What a request's timer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Send this SYN-ACK.
    Resend(Emit),
    /// Wait on.
    Wait,
    /// Forget the request.
    Gone,
}

impl Request {
    pub(super) fn new(
        cx: &ListenCx<'_>,
        options: &ConnOptions,
        tuple: &Tuple,
        segment: &Segment,
        path_mss: u16,
        iss: Seq,
        ts_offset: u32,
    ) -> Request {
        let offered = &segment.options;
        let advmss = options.advmss(path_mss);
        let win = options.window(cx.cfg, advmss);
        let ts = offered.timestamps.filter(|_| cx.cfg.tcp_timestamps != 0);
        let wscale = offered.window_scale.filter(|_| cx.cfg.tcp_window_scaling);
        // RFC 3168 6.1.1: a SYN with ECE and CWR asks for ECN. DCTCP lives by it, whatever `tcp_ecn` says, and
        // its SYNs may be marked (RFC 8257 section 3.1, Linux `tcp_ecn_create_request`).
        let agrees = cx.cfg.tcp_ecn != 0 && !segment.ce || options.needs_ecn(cx.cfg);
        let ecn = agrees && segment.flags.all(Flags::ECE | Flags::CWR);
        let sack = offered.sack_permitted && cx.cfg.tcp_sack;
        let default = DEFAULT_MSS[usize::from(tuple.local.to_canonical().is_ipv6())];
        let flag = |on: bool, bit| if on { bit } else { 0 };
        Request {
            deadline: cx.now + TIMEOUT,
            first_sent: cx.now,
            iss,
            irs: segment.seq,
            ts_recent: ts.map_or(0, |ts| ts.val),
            ts_offset,
            last_sent: 0,
            answered: 0,
            rcv_wnd: win.wnd,
            window: segment.window,
            peer_mss: offered.mss.unwrap_or(default),
            path_mss,
            advmss,
            snd_wscale: wscale.unwrap_or(0),
            rcv_wscale: wscale.map_or(0, |_| win.scale),
            timeouts: 0,
            sent: 0,
            flags: flag(ts.is_some(), TS)
                | flag(wscale.is_some(), WSCALE)
                | flag(sack, SACK)
                | flag(ecn, ECN),
        }
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// When [`Listener::request_timeout`] is due.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether no time-out has come yet.
    pub fn is_young(&self) -> bool {
        self.timeouts == 0
    }

    pub(super) fn set_acked(&mut self) {
        self.flags |= ACKED;
    }

    /// The SYN-ACK, which goes now.
    pub(super) fn syn_ack(&mut self, now: Instant) -> Emit {
        self.sent = self.sent.saturating_add(1);
        self.last_sent = Listener::clock(now);
        self.build(self.iss, self.ts_val(now))
    }

    fn ts_val(&self, now: Instant) -> u32 {
        Listener::clock(now).wrapping_add(self.ts_offset)
    }

    fn build(&self, iss: Seq, ts_val: u32) -> Emit {
        let mut emit = Emit {
            seq: iss,
            ack: self.irs + 1,
            flags: Flags::SYN | Flags::ACK,
            window: self.rcv_wnd.min(65_535) as u16,
            retransmit: self.sent > 1,
            ..Emit::default()
        };
        if self.is(ECN) {
            emit.flags = emit.flags | Flags::ECE;
        }
        emit.options.mss = Some(self.advmss);
        emit.options.timestamps = self.is(TS).then_some(Timestamps { val: ts_val, ecr: self.ts_recent });
        emit.options.window_scale = self.is(WSCALE).then_some(self.rcv_wscale);
        emit.options.sack_permitted = self.is(SACK);
        emit
    }

    /// The SYN-ACK of a request that is not kept.
    pub(super) fn cookie(
        &mut self,
        cx: &ListenCx<'_>,
        key: &impl KeyedHash,
        tuple: &Tuple,
        segment: &Segment,
    ) -> Emit {
        if !self.is(TS) {
            // Nothing can carry the options.
            self.flags = 0;
        }
        let (iss, _) = cookies::cookie(key, tuple, cx.now, segment.seq, self.peer_mss);
        let options = CookieOptions {
            window_scale: self.is(WSCALE).then_some(self.snd_wscale),
            sack: self.is(SACK),
            ecn: self.is(ECN),
        };
        let clock = cookies::timestamp(Listener::clock(cx.now), options);
        self.build(iss, clock.wrapping_add(self.ts_offset))
    }

    fn limited(&mut self, cx: &ListenCx<'_>) -> bool {
        let clock = Listener::clock(cx.now);
        if self.is(ANSWERED) && clock.wrapping_sub(self.answered) < cx.cfg.tcp_invalid_ratelimit {
            return true;
        }
        self.answered = clock;
        self.flags |= ANSWERED;
        false
    }

    pub(super) fn input(&mut self, cx: &mut ListenCx<'_>, segment: &Segment, defer: u8) -> RequestVerdict {
        let has = |flags| segment.flags.any(flags);
        let ts = segment.options.timestamps.filter(|_| self.is(TS));
        let paws_rejects =
            ts.is_some_and(|ts| (ts.val.wrapping_sub(self.ts_recent) as i32) < 0) && !has(Flags::RST);
        let control = Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN;
        if segment.seq == self.irs && segment.flags.0 & control.0 == Flags::SYN.0 && !paws_rejects {
            // The SYN again: its answer was lost.
            if self.limited(cx) {
                cx.counters.ack_skipped_syn_recv += 1;
                return RequestVerdict::Drop(DropReason::TcpInvalidSyn);
            }
            let timeout = self.interval(cx);
            self.deadline = cx.now + timeout;
            return RequestVerdict::Answer(self.syn_ack(cx.now));
        }
        if has(Flags::ACK) && segment.ack != self.iss + 1 {
            // "If the segment acknowledgment is not acceptable, form a reset segment".
            return RequestVerdict::Refuse(reset_for(segment));
        }
        let echo_is_foreign = ts.filter(|ts| ts.ecr != 0).is_some_and(|ts| {
            let (first, last) = (self.ts_val(self.first_sent), self.last_sent.wrapping_add(self.ts_offset));
            !Seq(ts.ecr).between(Seq(first), Seq(last))
        });
        if paws_rejects || echo_is_foreign || !self.in_window(segment) {
            if paws_rejects {
                cx.counters.paws_estab += 1;
            }
            if has(Flags::RST) || self.limited(cx) {
                return RequestVerdict::Drop(DropReason::TcpInvalidSequence);
            }
            return RequestVerdict::Answer(self.ack(cx.now));
        }
        if let Some(ts) = ts
            && segment.seq.at_or_before(self.irs + 1)
        {
            self.ts_recent = ts.val;
        }
        // A SYN at its own number is before the window, and no new one.
        let syn = has(Flags::SYN) && segment.seq != self.irs;
        if has(Flags::RST) {
            return RequestVerdict::Gone(None, DropReason::TcpReset);
        }
        if syn {
            return RequestVerdict::Gone(reset_for(segment), DropReason::TcpInvalidSyn);
        }
        if !has(Flags::ACK) {
            return RequestVerdict::Drop(DropReason::TcpFlags);
        }
        if self.timeouts < defer && segment.end() == self.irs + 1 {
            self.flags |= ACKED;
            cx.counters.defer_accept_drop += 1;
            return RequestVerdict::Drop(DropReason::TcpDeferAccept);
        }
        RequestVerdict::Accept(self.accepted(cx.now, segment))
    }

    fn in_window(&self, segment: &Segment) -> bool {
        let (seq, end, next) = (segment.seq, segment.end(), self.irs + 1);
        let edge = next + self.rcv_wnd;
        seq == next || (end.after(next) && seq.before(edge)) || (seq == edge && seq == end)
    }

    /// An ACK with the numbers of the handshake.
    fn ack(&self, now: Instant) -> Emit {
        let mut emit = Emit {
            seq: self.iss + 1,
            ack: self.irs + 1,
            flags: Flags::ACK,
            window: (self.rcv_wnd >> self.rcv_wscale).min(65_535) as u16,
            ..Emit::default()
        };
        emit.options.timestamps =
            self.is(TS).then(|| Timestamps { val: self.ts_val(now), ecr: self.ts_recent });
        emit
    }

    fn accepted(&self, now: Instant, segment: &Segment) -> Accepted {
        let once = self.sent == 1;
        Accepted {
            iss: self.iss,
            irs: self.irs,
            peer_mss: self.peer_mss,
            path_mss: self.path_mss,
            advmss: self.advmss,
            ts_recent: self.is(TS).then_some(self.ts_recent),
            ts_offset: self.ts_offset,
            window_scale: self.is(WSCALE).then_some(self.snd_wscale),
            rcv_wscale: self.rcv_wscale,
            window: u32::from(segment.window) << self.snd_wscale,
            sack: self.is(SACK),
            ecn: self.is(ECN),
            // The ACK came long before what completes the handshake, where that waits for data or
            // for room in the queue: what passed since measures no round trip.
            rtt: (once && !self.is(ACKED)).then(|| now.since(self.first_sent)),
            retransmitted: self.timeouts > 0,
        }
    }

    fn interval(&self, cx: &ListenCx<'_>) -> Span {
        TIMEOUT.doubled(u32::from(self.timeouts)).min(Span::from_millis(cx.cfg.tcp_rto_max_ms))
    }

    pub(super) fn timeout(&mut self, cx: &mut ListenCx<'_>, retries: u8, defer: u8) -> Timeout {
        let acked = self.is(ACKED);
        let spent = self.timeouts >= retries;
        let (expired, resend) = if defer == 0 {
            (spent, true)
        } else {
            // While data is waited for, nothing is asked; towards the end it is.
            (spent && (!acked || self.timeouts >= defer), !acked || self.timeouts >= defer - 1)
        };
        if expired {
            return Timeout::Gone;
        }
        self.timeouts += 1;
        self.deadline = cx.now + self.interval(cx);
        if !resend {
            return Timeout::Wait;
        }
        cx.counters.send.retrans_segs += 1;
        Timeout::Resend(self.syn_ack(cx.now))
    }
}
