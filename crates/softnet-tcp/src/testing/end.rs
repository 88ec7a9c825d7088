//! One end of a conversation: what a host is to the engine, in a few lines.

use std::collections::VecDeque;

use crate::conn::{Conn, ConnOptions, Cx, Events, Memory, Output, Piece, Shutdown, State};
use crate::counters::{Counters, DropReason};
use crate::isn::Initial;
use crate::listen::{self, ListenCx, Listener, Request, RequestVerdict, Timeout, Verdict};
use crate::reset::reset_for;
use crate::testing::{test_hash, tuple};
use crate::timewait::{self, TimeWait};
use crate::wire::{Emit, Segment};
use crate::{Config, Instant, Seq};

/// Payload as the host of tests holds it: the number of its first byte, and the memory it takes.
pub(crate) type Handle = (Seq, u32);

/// What the engine told its host.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) sent: VecDeque<(Instant, Emit)>,
    pub(crate) now: Instant,
    /// Delivered and not read: bytes, and the memory that goes back with the last of them.
    inbox: VecDeque<(u32, u32)>,
    next: Option<Seq>,
    /// Handles given, and handed back or delivered.
    handles: (u64, u64),
    /// Bytes of the send queue that the engine has freed.
    pub(crate) acked: u64,
    pub(crate) delivered: u64,
    pub(crate) time_wait: Option<TimeWait>,
    pub(crate) refuse: bool,
    /// What there is for all connections; what was exhausted is scarce when something was discarded.
    pub(crate) memory: Memory,
    /// Bytes that wait before the device; how often the engine heard that these are too many.
    pub(crate) backlog: u64,
    pub(crate) throttled: u32,
    /// Records of the send queue, by their last numbers.
    pub(crate) pieces: Vec<Piece>,
    /// Segments refused; and those in a row.
    pub(crate) refused: u64,
    pub(crate) refused_in_row: u32,
    pub(crate) drops: Vec<DropReason>,
}

impl Output for Host {
    type Handle = Handle;

    fn piece(&self, seq: Seq) -> Option<Piece> {
        self.pieces.iter().copied().find(|piece| piece.end.after(seq))
    }

    fn send(&mut self, emit: &Emit) -> bool {
        if self.refuse {
            self.refused += 1;
            self.refused_in_row += 1;
        } else {
            self.refused_in_row = 0;
            self.sent.push_back((self.now, *emit));
        }
        !self.refuse
    }

    fn memory(&mut self) -> Memory {
        self.memory
    }

    fn backlog(&mut self) -> u64 {
        self.backlog
    }

    fn throttled(&mut self) {
        self.throttled += 1;
    }

    fn held(&mut self) {
        self.throttled += 1;
    }

    fn deliver(&mut self, handle: Handle, front: u32, len: u32) {
        let at = handle.0 + front;
        assert_eq!(*self.next.get_or_insert(at), at, "bytes in order, each once");
        self.next = Some(at + len);
        self.delivered += u64::from(len);
        self.handles.1 += 1;
        self.inbox.push_back((len, handle.1));
    }

    fn discard(&mut self, _: Handle, why: DropReason) {
        self.handles.1 += 1;
        self.drops.push(why);
        if self.memory == Memory::Exhausted && why == DropReason::TcpOfoQueuePrune {
            self.memory = Memory::Scarce;
        }
    }

    fn acked(&mut self, bytes: u32) {
        self.acked += u64::from(bytes);
    }

    fn time_wait(&mut self, time_wait: TimeWait) {
        assert!(self.time_wait.is_none());
        self.time_wait = Some(time_wait);
    }
}

impl Host {
    /// A connection begins.
    fn begin(&mut self) {
        self.inbox.clear();
        (self.next, self.acked, self.delivered) = (None, 0, 0);
    }

    /// Takes up to `bytes` out, and the memory that they free.
    fn read(&mut self, bytes: u32) -> (u32, u32) {
        let (mut read, mut memory) = (0, 0);
        while read < bytes
            && let Some((len, charge)) = self.inbox.front_mut()
        {
            let take = (*len).min(bytes - read);
            read += take;
            *len -= take;
            if *len == 0 {
                memory += *charge;
                self.inbox.pop_front();
            }
        }
        (read, memory)
    }

    pub(crate) fn unread_memory(&self) -> u32 {
        self.inbox.iter().map(|(_, charge)| charge).sum()
    }
}

/// An end: a listener, a request, a connection, a TIME-WAIT object, or nothing.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) cfg: Config,
    pub(crate) options: ConnOptions,
    pub(crate) now: Instant,
    pub(crate) counters: Counters,
    pub(crate) host: Host,
    pub(crate) listener: Option<Listener>,
    pub(crate) request: Option<Request>,
    pub(crate) conn: Option<Conn<Handle>>,
    pub(crate) iss: Seq,
    pub(crate) path_mss: u16,
    pub(crate) events: Events,
    /// Bytes that an application queued.
    pub(crate) queued: u64,
    edge: Option<Seq>,
    /// The peer's initial number, once known.
    pub(crate) irs: Option<Seq>,
}

/// Memory that a payload of `len` bytes takes.
pub(crate) fn charge_of(len: u32) -> u32 {
    len + 640
}

/// Every entry of a connection, with its context made of the end's fields.
macro_rules! enter {
    ($end:expr, $conn:ident, $cx:ident => $body:expr) => {{
        let end = &mut *$end;
        end.host.now = end.now;
        let $conn = end.conn.as_mut().expect("a connection");
        let $cx = &mut crate::conn::Cx {
            now: end.now,
            cfg: &end.cfg,
            counters: &mut end.counters,
            out: &mut end.host,
        };
        $body
    }};
}
pub(crate) use enter;

impl End {
    pub(crate) fn new(cfg: Config, iss: Seq) -> End {
        End {
            cfg,
            options: ConnOptions::default(),
            now: Instant(1_000_000_000),
            counters: Counters::default(),
            host: Host::default(),
            listener: None,
            request: None,
            conn: None,
            iss,
            path_mss: 1460,
            events: Events::default(),
            queued: 0,
            edge: None,
            irs: None,
        }
    }

    pub(crate) fn listen(&mut self, backlog: i32) {
        self.listener = Some(Listener::new(&self.cfg, backlog, self.options));
    }

    pub(crate) fn connect(&mut self) {
        let mut cx = Cx { now: self.now, cfg: &self.cfg, counters: &mut self.counters, out: &mut self.host };
        let initial = Initial { seq: self.iss, ts_offset: 0 };
        self.conn = Some(Conn::connect(&mut cx, &self.options, initial, self.path_mss).unwrap());
        self.after();
    }

    /// The furthest edge of the receive window that was told.
    pub(crate) fn edge(&self) -> Option<Seq> {
        self.edge
    }

    pub(crate) fn conn(&self) -> &Conn<Handle> {
        self.conn.as_ref().expect("a connection")
    }

    pub(crate) fn state(&self) -> Option<State> {
        self.conn.as_ref().map(|conn| conn.state())
    }

    fn answer(&mut self, emit: Emit) {
        self.host.sent.push_back((self.now, emit));
    }

    /// A segment arrives.
    pub(crate) fn segment(&mut self, segment: &Segment) {
        self.segment_in_batch(segment);
        self.after();
    }

    /// A segment arrives, and others of its batch follow.
    pub(crate) fn segment_in_batch(&mut self, segment: &Segment) {
        if segment.flags.any(crate::Flags::SYN) && self.irs.is_none() {
            self.irs = Some(segment.seq);
        }
        if self.state().is_some_and(|state| state != State::Closed) {
            return self.give_conn(segment);
        }
        let has_listener = self.listener.is_some();
        if let Some(mut time_wait) = self.host.time_wait.take() {
            match time_wait.input(self.now, &self.cfg, &mut self.counters, segment, has_listener) {
                timewait::Verdict::Drop => self.host.time_wait = Some(time_wait),
                timewait::Verdict::Answer(emit) => {
                    self.host.time_wait = Some(time_wait);
                    self.answer(emit);
                }
                timewait::Verdict::Gone(reset) => reset.into_iter().for_each(|reset| self.answer(reset)),
                timewait::Verdict::NewConnection(iss) => {
                    self.conn = None;
                    (self.iss, self.irs, self.edge) = (iss, Some(segment.seq), None);
                    self.host.next = None;
                    self.give_listener(segment);
                }
            }
            return;
        }
        if let Some(mut request) = self.request.take() {
            return self.give_request(&mut request, segment);
        }
        self.give_listener(segment);
    }

    fn give_conn(&mut self, segment: &Segment) {
        let syn = u32::from(segment.flags.any(crate::Flags::SYN));
        let charge = charge_of(segment.len);
        let handle = (segment.len > 0).then_some((segment.seq + syn, charge));
        self.host.handles.0 += u64::from(handle.is_some());
        let result = enter!(self, conn, cx => conn.input(cx, segment, handle, charge));
        if let Err(reason) = result
            && segment.len == 0
        {
            self.host.drops.push(reason);
        }
    }

    fn give_request(&mut self, request: &mut Request, segment: &Segment) {
        let listener = self.listener.as_mut().expect("a listener");
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        match listener.request_input(&mut cx, request, segment) {
            RequestVerdict::Drop(reason) => {
                self.host.drops.push(reason);
                self.request = Some(*request);
            }
            RequestVerdict::Answer(emit) => {
                self.request = Some(*request);
                self.answer(emit);
            }
            RequestVerdict::Refuse(reset) => {
                self.request = Some(*request);
                reset.into_iter().for_each(|reset| self.answer(reset));
            }
            RequestVerdict::Gone(reset, reason) => {
                self.host.drops.push(reason);
                reset.into_iter().for_each(|reset| self.answer(reset));
            }
            RequestVerdict::Accept(accepted) => self.accept(&accepted, segment),
        }
    }

    fn accept(&mut self, accepted: &listen::Accepted, segment: &Segment) {
        // What an earlier connection left is no part of this one.
        (self.iss, self.irs, self.edge) = (accepted.iss, Some(accepted.irs), None);
        self.host.begin();
        self.queued = 0;
        let listener = self.listener.as_ref().expect("a listener");
        let mut cx = Cx { now: self.now, cfg: &self.cfg, counters: &mut self.counters, out: &mut self.host };
        self.conn = Some(Conn::accept(&mut cx, &listener.options, accepted));
        self.give_conn(segment);
    }

    fn give_listener(&mut self, segment: &Segment) {
        let Some(listener) = &mut self.listener else {
            reset_for(segment).into_iter().for_each(|reset| self.answer(reset));
            return;
        };
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        let iss = segment.flags.any(crate::Flags::SYN).then_some(self.iss);
        let cookies = self.cfg.tcp_syncookies == 2;
        let iss = iss.filter(|_| !cookies);
        match listener.input(&mut cx, &test_hash, &tuple(), segment, self.path_mss, iss) {
            Verdict::Drop(reason) => self.host.drops.push(reason),
            Verdict::Answer(emit) => {
                if cookies && emit.flags.any(crate::Flags::SYN) {
                    self.iss = emit.seq;
                }
                self.answer(emit);
            }
            Verdict::Request(request, emit) => {
                self.request = Some(request);
                self.answer(emit);
            }
            Verdict::Accept(accepted) => self.accept(&accepted, segment),
        }
    }

    /// When time matters next.
    pub(crate) fn deadline(&self) -> Instant {
        let conn = self.conn.as_ref().map_or(Instant::NEVER, |conn| conn.next_deadline());
        let request = self.request.as_ref().map_or(Instant::NEVER, |request| request.deadline());
        let time_wait = self.host.time_wait.as_ref().map_or(Instant::NEVER, |tw| tw.deadline());
        conn.min(request).min(time_wait)
    }

    /// Time is `now`: what is due happens.
    pub(crate) fn time(&mut self, now: Instant) {
        self.now = now;
        if self.conn.is_some() {
            enter!(self, conn, cx => conn.on_time(cx));
        }
        if let Some(mut request) = self.request
            && request.deadline() <= now
        {
            let listener = self.listener.as_mut().expect("a listener");
            let mut cx = ListenCx { now, cfg: &self.cfg, counters: &mut self.counters };
            let timeout = listener.request_timeout(&mut cx, &mut request);
            self.request = (timeout != Timeout::Gone).then_some(request);
            if let Timeout::Resend(emit) = timeout {
                self.answer(emit);
            }
        }
        if self.host.time_wait.as_ref().is_some_and(|tw| tw.deadline() <= now) {
            self.host.time_wait = None;
        }
        self.after();
    }

    /// The end of a batch: what is due leaves, and the invariants hold.
    pub(crate) fn after(&mut self) {
        if self.conn.is_none() {
            return;
        }
        enter!(self, conn, cx => conn.flush(cx));
        self.check();
        let events = self.conn.as_mut().map(|conn| conn.take_events()).unwrap_or_default();
        self.events.0 |= events.0;
    }

    fn check(&mut self) {
        let memory = self.host.unread_memory();
        let conn = self.conn.as_ref().expect("a connection");
        self.edge = conn.check(memory, self.edge);
        assert!(self.host.handles.1 <= self.host.handles.0, "a handle ends once");
        if conn.state() == State::Closed {
            assert_eq!(self.host.handles.0, self.host.handles.1, "each handle ends somewhere");
        }
        let freed = self.queued - self.host.acked;
        assert!(u64::from(conn.unacked()) <= freed, "what is queued");
    }

    pub(crate) fn write(&mut self, bytes: u32, more: bool) {
        self.queued += u64::from(bytes);
        enter!(self, conn, cx => { let _ = cx; conn.write(bytes, more) });
        self.after();
    }

    pub(crate) fn read(&mut self, bytes: u32) -> u32 {
        let (read, memory) = self.host.read(bytes);
        enter!(self, conn, cx => conn.read(cx, read, memory));
        self.after();
        read
    }

    pub(crate) fn shutdown(&mut self, how: Shutdown) {
        enter!(self, conn, cx => conn.shutdown(cx, how));
        self.after();
    }

    pub(crate) fn close(&mut self) {
        enter!(self, conn, cx => conn.close(cx));
        self.after();
    }
}
