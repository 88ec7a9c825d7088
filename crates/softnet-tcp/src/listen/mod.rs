//! Passive opens (RFC 9293 3.10.7.2; RFC 4987; Linux `tcp_conn_request`, `tcp_check_req`,
//! `reqsk_timer_handler`).
//!
//! A SYN makes a [`Request`], 96 bytes at most, which the host keeps in its table under the four
//! numbers of the connection and gives back here with each of its segments and when its timer is
//! due. The ACK that completes the handshake makes a connection, which waits in the accept queue.
//! When requests are too many, SYN cookies answer instead, and nothing is kept.
//!
//! The counts of both queues are kept here; the queues themselves are the host's. For each request
//! that it forgets on its own account (the listener is closed, say) it calls
//! [`Listener::forget`]; for each connection that leaves the accept queue,
//! [`Listener::accepted`].

pub mod cookies;
mod request;

pub(crate) use request::DEFAULT_MSS;
pub use request::{Request, RequestVerdict, Timeout};

use crate::config::Config;
use crate::conn::ConnOptions;
use crate::counters::{Counters, DropReason};
use crate::isn::{self, KeyedHash, Tuple};
use crate::reset::reset_for;
use crate::send::ts_clock;
use crate::seq::Seq;
use crate::time::{Instant, Span};
use crate::wire::{Emit, Flags, Segment};

/// How long after an overflow ACKs are tested for cookies.
const COOKIE_VALID: Span = Span(120_000_000);

/// What a connection is made of, once its handshake is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// This end's initial number.
    pub iss: Seq,
    /// The peer's.
    pub irs: Seq,
    /// The largest segment that the peer takes.
    pub peer_mss: u16,
    /// The path's MTU less the IP header and 20.
    pub path_mss: u16,
    /// The MSS announced.
    pub advmss: u16,
    /// The peer's last timestamp, if timestamps were agreed on.
    pub ts_recent: Option<u32>,
    /// What is added to the clock for TSval.
    pub ts_offset: u32,
    /// The shift of the peer's windows, if scaling was agreed on.
    pub window_scale: Option<u8>,
    /// The shift of this end's windows.
    pub rcv_wscale: u8,
    /// The peer's window, scaled.
    pub window: u32,
    /// SACK was agreed on.
    pub sack: bool,
    /// ECN was agreed on.
    pub ecn: bool,
    /// The round trip of the SYN-ACK, if it was sent once.
    pub rtt: Option<Span>,
    /// The SYN-ACK was sent more than once.
    pub retransmitted: bool,
}

/// What to do with a segment that belongs to no connection and no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Drop(DropReason),
    /// Send this: a reset, or a SYN-ACK with a cookie.
    Answer(Emit),
    /// Keep the request, and send its SYN-ACK.
    Request(Request, Emit),
    /// The handshake is done, by a cookie: make a connection, give it the segment, and put it into
    /// the accept queue.
    Accept(Accepted),
}

/// The time, the knobs, and counters.
#[derive(Debug)]
pub struct ListenCx<'a> {
    /// The host's clock.
    pub now: Instant,
    /// Knobs.
    pub cfg: &'a Config,
    /// Counters of the owner.
    pub counters: &'a mut Counters,
}

/// A socket that listens.
#[derive(Clone, Debug)]
pub struct Listener {
    /// What connections begin with.
    pub options: ConnOptions,
    backlog: u32,
    /// Requests, and those that have met no time-out yet.
    requests: u32,
    young: u32,
    /// Connections to be accepted.
    waiting: u32,
    last_overflow: Option<Instant>,
    /// SYN-ACK time-outs during which bare ACKs are dropped.
    defer: u8,
}

impl Listener {
    /// A listener with Linux's reading of `listen`'s argument: negative and too large ones are
    /// `somaxconn`.
    pub fn new(cfg: &Config, backlog: i32, options: ConnOptions) -> Listener {
        let mut listener = Listener {
            options,
            backlog: 0,
            requests: 0,
            young: 0,
            waiting: 0,
            last_overflow: None,
            defer: 0,
        };
        listener.set_backlog(cfg, backlog);
        listener
    }

    /// `listen` again.
    pub fn set_backlog(&mut self, cfg: &Config, backlog: i32) {
        self.backlog = u32::try_from(backlog).unwrap_or(u32::MAX).min(cfg.somaxconn);
    }

    /// `TCP_DEFER_ACCEPT`: seconds, kept as a number of SYN-ACK time-outs.
    pub fn set_defer_accept(&mut self, cfg: &Config, seconds: u32) {
        self.defer = u8::from(seconds > 0);
        let (mut passed, mut timeout) = (1, 1);
        while passed < seconds && self.defer < u8::MAX {
            timeout = (timeout * 2).min(cfg.tcp_rto_max_ms / 1000);
            passed += timeout;
            self.defer += 1;
        }
    }

    /// `TCP_DEFER_ACCEPT`, rounded to what time-outs make of it, seconds.
    pub fn defer_accept(&self, cfg: &Config) -> u32 {
        let (mut passed, mut timeout) = (0, 1);
        for _ in 0..self.defer {
            passed += timeout;
            timeout = (timeout * 2).min(cfg.tcp_rto_max_ms / 1000);
        }
        passed
    }

    /// The longest accept queue (`tcpi_sacked` of a listener).
    pub fn backlog(&self) -> u32 {
        self.backlog
    }

    /// Connections to be accepted (`tcpi_unacked` of a listener).
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Requests.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Whether the accept queue is full: one more than the backlog fits.
    pub fn is_full(&self) -> bool {
        self.waiting > self.backlog
    }

    /// A connection has left the accept queue.
    pub fn accepted(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The host has forgotten a request.
    pub fn forget(&mut self, request: &Request) {
        self.requests = self.requests.saturating_sub(1);
        if request.is_young() {
            self.young = self.young.saturating_sub(1);
        }
    }

    /// A segment came for which there is neither connection nor request. `initial` is the number
    /// to start at, if a TIME-WAIT object gave one.
    pub fn input(
        &mut self,
        cx: &mut ListenCx<'_>,
        key: &impl KeyedHash,
        tuple: &Tuple,
        segment: &Segment,
        path_mss: u16,
        initial: Option<Seq>,
    ) -> Verdict {
        cx.counters.in_segs += u64::from(segment.segs);
        // RFC 9293 3.10.7.2: "An incoming RST should be ignored"; "any acknowledgment is bad if it
        // arrives on a connection still in the LISTEN state".
        if segment.flags.any(Flags::RST) {
            return Verdict::Drop(DropReason::TcpReset);
        }
        if segment.flags.any(Flags::ACK) {
            return self.cookie_back(cx, key, tuple, segment, path_mss);
        }
        if !segment.flags.any(Flags::SYN) || segment.flags.any(Flags::FIN) {
            return Verdict::Drop(DropReason::TcpFlags);
        }
        self.syn(cx, key, tuple, segment, path_mss, initial)
    }

    fn syn(
        &mut self,
        cx: &mut ListenCx<'_>,
        key: &impl KeyedHash,
        tuple: &Tuple,
        segment: &Segment,
        path_mss: u16,
        initial: Option<Seq>,
    ) -> Verdict {
        let full = self.requests >= self.backlog.max(1);
        let cookie = initial.is_none() && (cx.cfg.tcp_syncookies == 2 || full);
        if cookie {
            self.last_overflow = Some(cx.now);
            if cx.cfg.tcp_syncookies == 0 {
                cx.counters.req_q_full_drop += 1;
                cx.counters.listen_drops += 1;
                return Verdict::Drop(DropReason::TcpReqQFullDrop);
            }
            cx.counters.req_q_full_do_cookies += 1;
        }
        if self.is_full() {
            cx.counters.listen_overflows += 1;
            cx.counters.listen_drops += 1;
            return Verdict::Drop(DropReason::TcpListenOverflow);
        }
        if !cookie && initial.is_none() && cx.cfg.tcp_syncookies == 0 {
            // What is left of the queue is for peers that are known.
            let left = cx.cfg.tcp_max_syn_backlog.saturating_sub(self.requests);
            if left < cx.cfg.tcp_max_syn_backlog / 4 {
                cx.counters.listen_drops += 1;
                return Verdict::Drop(DropReason::TcpReqQFullDrop);
            }
        }
        let start = isn::initial(key, tuple, cx.now, cx.cfg.tcp_timestamps == 1);
        let iss = initial.unwrap_or(start.seq);
        let mut request = Request::new(cx, &self.options, tuple, segment, path_mss, iss, start.ts_offset);
        if cookie {
            let emit = request.cookie(cx, key, tuple, segment);
            cx.counters.syncookies_sent += 1;
            return Verdict::Answer(emit);
        }
        self.requests += 1;
        self.young += 1;
        let emit = request.syn_ack(cx.now);
        Verdict::Request(request, emit)
    }

    /// An ACK may bring a cookie back.
    fn cookie_back(
        &mut self,
        cx: &mut ListenCx<'_>,
        key: &impl KeyedHash,
        tuple: &Tuple,
        segment: &Segment,
        path_mss: u16,
    ) -> Verdict {
        let reset = |segment| reset_for(segment).map_or(Verdict::Drop(DropReason::NoSocket), Verdict::Answer);
        let recent = self.last_overflow.is_some_and(|at| cx.now.since(at) <= COOKIE_VALID);
        if segment.flags.any(Flags::SYN)
            || cx.cfg.tcp_syncookies == 0
            || !(recent || cx.cfg.tcp_syncookies == 2)
        {
            return reset(segment);
        }
        let Some(mss) = cookies::check(key, tuple, cx.now, segment.seq - 1, segment.ack - 1) else {
            cx.counters.syncookies_failed += 1;
            return reset(segment);
        };
        cx.counters.syncookies_recv += 1;
        if self.is_full() {
            cx.counters.listen_overflows += 1;
            cx.counters.listen_drops += 1;
            return Verdict::Drop(DropReason::TcpListenOverflow);
        }
        let offset = isn::initial(key, tuple, cx.now, cx.cfg.tcp_timestamps == 1).ts_offset;
        let ts = segment.options.timestamps.filter(|ts| ts.ecr != 0 && cx.cfg.tcp_timestamps != 0);
        let told = ts.map(|ts| cookies::options_of(ts.ecr.wrapping_sub(offset)));
        // Bits that this end would not have agreed to are no cookie's.
        if let Some(told) = told
            && ((told.sack && !cx.cfg.tcp_sack)
                || (told.window_scale.is_some() && !cx.cfg.tcp_window_scaling))
        {
            cx.counters.syncookies_failed += 1;
            return reset(segment);
        }
        let advmss = self.options.advmss(path_mss);
        let window_scale = told.and_then(|told| told.window_scale);
        self.waiting += 1;
        Verdict::Accept(Accepted {
            iss: segment.ack - 1,
            irs: segment.seq - 1,
            peer_mss: mss,
            path_mss,
            advmss,
            ts_recent: ts.map(|ts| ts.val),
            ts_offset: offset,
            window_scale,
            rcv_wscale: window_scale.map_or(0, |_| self.options.window(cx.cfg, advmss).scale),
            window: u32::from(segment.window) << window_scale.unwrap_or(0),
            sack: told.is_some_and(|told| told.sack),
            ecn: told.is_some_and(|told| told.ecn) && (cx.cfg.tcp_ecn != 0 || self.options.needs_ecn(cx.cfg)),
            rtt: None,
            retransmitted: false,
        })
    }

    /// A segment came for a request.
    pub fn request_input(
        &mut self,
        cx: &mut ListenCx<'_>,
        request: &mut Request,
        segment: &Segment,
    ) -> RequestVerdict {
        cx.counters.in_segs += u64::from(segment.segs);
        let verdict = request.input(cx, segment, self.defer);
        match verdict {
            RequestVerdict::Accept(_) if self.is_full() => {
                cx.counters.listen_overflows += 1;
                if cx.cfg.tcp_abort_on_overflow {
                    self.forget(request);
                    return RequestVerdict::Gone(reset_for(segment), DropReason::TcpListenOverflow);
                }
                // The peer's next data, or the SYN-ACK that comes again, makes another try.
                request.set_acked();
                RequestVerdict::Drop(DropReason::TcpListenOverflow)
            }
            RequestVerdict::Accept(_) => {
                self.forget(request);
                self.waiting += 1;
                verdict
            }
            RequestVerdict::Gone(..) => {
                cx.counters.attempt_fails += 1;
                self.forget(request);
                verdict
            }
            other => other,
        }
    }

    /// A request's timer went off; before its deadline that does nothing.
    pub fn request_timeout(&mut self, cx: &mut ListenCx<'_>, request: &mut Request) -> Timeout {
        if cx.now < request.deadline() {
            return Timeout::Wait;
        }
        let mut retries = self.options.tuned.syncnt.unwrap_or(cx.cfg.tcp_synack_retries);
        // A queue that is more than half full sheds what is old, and spares what is young.
        if self.requests * 2 > self.backlog.max(8) {
            let mut young = self.young * 2;
            while retries > 2 && self.requests >= young {
                retries -= 1;
                young = young.saturating_mul(2);
            }
        }
        let was_young = request.is_young();
        let timeout = request.timeout(cx, retries, self.defer);
        if timeout == Timeout::Gone {
            self.requests = self.requests.saturating_sub(1);
            cx.counters.attempt_fails += 1;
        }
        if was_young {
            self.young = self.young.saturating_sub(1);
        }
        timeout
    }

    /// TSval's clock, without an offset.
    pub(crate) fn clock(now: Instant) -> u32 {
        ts_clock(now)
    }
}
