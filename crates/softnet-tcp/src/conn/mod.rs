//! A connection (RFC 9293 3.3.2): its state, its two halves, and what its host gives and gets.
//!
//! Segments, calls and time are three kinds of message to one owner. Each entry takes a [`Cx`]: the
//! time, the knobs, counters, and the host itself as an [`Output`]. An entry may send at once what
//! must not wait (resets, duplicate ACKs); everything else leaves in [`Conn::flush`], which the
//! host calls once for every connection that a batch touched.
//!
//! Invariants, asserted by `check` in tests after every step: `SND.UNA ≤ SND.NXT ≤` the end of what
//! is queued; the receive window's edge never retreats; memory held is the sum of what was
//! delivered and not read and of what waits beyond a hole.

mod ack;
mod calls;
mod check;
mod chrono;
mod close;
mod info;
mod input;
mod open;
mod output;
mod synsent;
mod text;
mod timers;

pub use calls::{InvalidOption, SockOpt, Writable};
pub use chrono::Chrono;
pub use close::Shutdown;
pub use info::{TcpInfo, linux_state};
pub use open::{ConnOptions, OpenError, PathFloor};

use crate::config::Config;
use crate::counters::{Counters, DropReason};
use crate::recv::ack::AckPolicy;
use crate::recv::reassembly::Reassembly;
use crate::recv::window::RecvWindow;
use crate::send::{self, Sender};
use crate::seq::Seq;
use crate::time::{Instant, Span};
use crate::timewait::TimeWait;
use crate::wire::{Emit, SackRange};

/// Memory that the host has for all of its connections together (Linux `tcp_mem`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Memory {
    /// There is enough.
    #[default]
    Ample,
    /// It becomes scarce: windows and buffers stop growing.
    Scarce,
    /// There is none for what has arrived: what lies beyond holes gives way to it.
    Exhausted,
}

/// What surrounds the engine: it sends segments, and keeps bytes.
pub trait Output {
    /// Received payload, as the host holds it.
    type Handle;

    /// Where the piece of the send queue ends that `seq` lies in, if the host keeps records
    /// (`MSG_EOR`) or otherwise holds the queue in pieces: no segment reaches from one into the
    /// next, and Nagle's rule holds back the last alone. `None`: the queue is one.
    fn piece(&self, seq: Seq) -> Option<Piece> {
        let _ = seq;
        None
    }

    /// Sends a segment, or a run of them. What is queued from [`Emit::seq`] on is copied or
    /// referred to; the oldest byte that the host keeps is that of `SND.UNA`. Returns whether it
    /// could: if not (no memory), nothing is taken note of, and the engine tries again later.
    fn send(&mut self, emit: &Emit) -> bool;

    /// The next bytes in order: `len` of the payload behind `handle`, from `front` on. The host
    /// tells by [`Conn::read`] when they have been read.
    fn deliver(&mut self, handle: Self::Handle, front: u32, len: u32);

    /// Payload that is not needed.
    fn discard(&mut self, handle: Self::Handle, why: DropReason);

    /// The memory that there is for the payload that [`Conn::input`] was given, and in general. Asked again
    /// when payload has been discarded.
    fn memory(&mut self) -> Memory {
        Memory::Ample
    }

    /// Bytes of this host that wait before the device which the connection's segments leave by.
    fn backlog(&mut self) -> u64 {
        0
    }

    /// Too many wait there for the connection to add to them. It has some in flight, so that an ACK, or
    /// a time-out, has it look again; the host may call [`flush`](Conn::flush) sooner, as when some have left.
    fn throttled(&mut self) {}

    /// Some found no room there just now: the host calls [`flush`](Conn::flush) in a while.
    fn held(&mut self) {}

    /// The first `bytes` of what is queued have arrived: the host forgets them.
    fn acked(&mut self, bytes: u32);

    /// The connection has ended, but its numbers must be remembered: the host puts this into its
    /// table in the connection's place.
    fn time_wait(&mut self, time_wait: TimeWait);
}

/// A piece of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// One past its last number.
    pub end: Seq,
    /// Whether its last segment carries PSH.
    pub psh: bool,
}

/// What every entry is given.
#[derive(Debug)]
pub struct Cx<'a, O> {
    /// The host's clock; for a segment, its arrival.
    pub now: Instant,
    /// Knobs.
    pub cfg: &'a Config,
    /// Counters of the owner.
    pub counters: &'a mut Counters,
    /// The host.
    pub out: &'a mut O,
}

impl<O> Cx<'_, O> {
    pub(crate) fn send(&mut self) -> send::Cx<'_> {
        send::Cx { now: self.now, cfg: self.cfg, counters: &mut self.counters.send }
    }
}

/// The states of a connection. A listener is none, and TIME-WAIT is a [`TimeWait`] of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// SYNs crossed.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// This end's FIN waits for its ACK.
    FinWait1,
    /// The peer's FIN is awaited.
    FinWait2,
    /// The peer's FIN arrived.
    CloseWait,
    /// FINs crossed.
    Closing,
    /// Both FINs are out, the peer's first.
    LastAck,
    /// Ended.
    Closed,
}

/// Why a connection ended, as the application's next call tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// `ECONNREFUSED`.
    ConnectionRefused,
    /// `ECONNRESET`.
    ConnectionReset,
    /// `ECONNABORTED`.
    ConnectionAborted,
    /// `EPIPE`.
    BrokenPipe,
    /// `ETIMEDOUT`.
    TimedOut,
    /// `EHOSTUNREACH`.
    HostUnreachable,
    /// `ENETUNREACH`.
    NetworkUnreachable,
    /// `EPROTO`, and other hard errors that ICMP tells.
    Protocol,
}

/// What has changed for the application since the host asked last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Events(pub u8);

impl Events {
    /// The handshake is done.
    pub const CONNECTED: Events = Events(1);
    /// Data arrived in order.
    pub const READABLE: Events = Events(2);
    /// What was queued was acknowledged: there may be room.
    pub const WRITABLE: Events = Events(4);
    /// The peer sends no more.
    pub const PEER_FIN: Events = Events(8);
    /// [`Conn::error`] has something to tell.
    pub const ERROR: Events = Events(16);
    /// The state is [`State::Closed`]: the table forgets the connection.
    pub const CLOSED: Events = Events(32);

    /// Whether any of `other` is set.
    pub fn any(self, other: Events) -> bool {
        self.0 & other.0 != 0
    }
}

/// A connection, whose received payload is held behind handles `H`.
#[derive(Debug)]
pub struct Conn<H> {
    // What a segment in order needs.
    state: State,
    flags: ConnFlags,
    events: Events,
    snd_wscale: u8,
    rcv_nxt: Seq,
    /// The first byte that the application has not read.
    copied: Seq,
    snd_wnd: u32,
    snd_wl1: Seq,
    ts_recent: u32,
    ts_offset: u32,
    /// When `ts_recent` was learnt.
    ts_recent_at: Instant,
    ack: AckPolicy,
    win: RecvWindow,
    ooo: Option<Box<Reassembly<H>>>,
    // What sending needs.
    /// One past the last byte queued; a FIN comes behind it.
    write_seq: Seq,
    pushed_seq: Seq,
    snd_sml: Seq,
    max_window: u32,
    tx: Sender,
    // Warm.
    /// A duplicate to be reported, if not empty.
    dsack: SackRange,
    /// When an acknowledgement last arrived.
    last_ack: Instant,
    /// When the last answer to an invalid segment was sent, or [`Instant::NEVER`].
    last_oow: Instant,
    /// Keepalive, FIN-WAIT-2.
    keep_at: Instant,
    iss: Seq,
    peer_mss: u16,
    path_mss: u16,
    sndbuf: u32,
    error: Option<Error>,
    soft_error: Option<Error>,
    keep_probes: u8,
    bytes_received: u64,
    segs_in: u32,
    segs_out: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    rcv_ooopack: u32,
    /// When the first probe of a window that is closed since went, or [`Instant::NEVER`].
    probes_began: Instant,
    chrono: Chrono,
    bound: chrono::Bound,
    /// Options that few connections set.
    tuned: Option<Box<Tuned>>,
}

/// What is true of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ConnFlags(u32);

impl ConnFlags {
    /// Timestamps were agreed on.
    pub(crate) const TS: u32 = 1;
    /// Window scaling was agreed on.
    pub(crate) const WSCALE: u32 = 1 << 1;
    /// The application sends no more: a FIN is queued behind the data.
    pub(crate) const SEND_SHUT: u32 = 1 << 2;
    /// The application, or the peer, ended receiving.
    pub(crate) const RCV_SHUT: u32 = 1 << 3;
    /// The peer's FIN was taken.
    pub(crate) const PEER_FIN: u32 = 1 << 4;
    /// The application has closed.
    pub(crate) const ORPHAN: u32 = 1 << 5;
    /// `SO_KEEPALIVE`.
    pub(crate) const KEEPALIVE: u32 = 1 << 6;
    /// `TCP_NODELAY`.
    pub(crate) const NODELAY: u32 = 1 << 7;
    /// `TCP_CORK`.
    pub(crate) const CORK: u32 = 1 << 8;
    /// What is queued leaves at once, whatever Nagle says.
    pub(crate) const PUSH_NOW: u32 = 1 << 9;
    /// `SO_LINGER` with zero.
    pub(crate) const LINGER_ZERO: u32 = 1 << 10;
    /// ECE on every ACK until CWR arrives.
    pub(crate) const ECN_ECHO: u32 = 1 << 11;
    /// The SYN asked for ECN.
    pub(crate) const ECN_ASKED: u32 = 1 << 12;
    /// `flush` has something to look at.
    pub(crate) const DIRTY: u32 = 1 << 13;
    /// The peer was told a window of zero.
    pub(crate) const TOLD_ZERO: u32 = 1 << 14;
    /// `SO_SNDBUF` was set.
    pub(crate) const SNDBUF_LOCKED: u32 = 1 << 15;
    /// Segments of the peer's last flight carried the congestion mark (DCTCP).
    pub(crate) const LAST_CE: u32 = 1 << 16;
    /// ECN is answered in DCTCP's manner.
    pub(crate) const DCTCP: u32 = 1 << 18;
    /// SACK was agreed on.
    pub(crate) const SACK: u32 = 1 << 19;
    /// More follows what was queued last (`MSG_MORE`): it carries no PSH.
    pub(crate) const MORE: u32 = 1 << 20;
    /// And it was queued just now: the `flush` that follows holds a partial segment back.
    pub(crate) const MORE_NOW: u32 = 1 << 22;
    /// The host tells whether a writer waits for room, and one does.
    pub(crate) const ROOM_TOLD: u32 = 1 << 24;
    pub(crate) const NO_ROOM: u32 = 1 << 25;
    /// The peer has acknowledged data since the last `flush`.
    pub(crate) const FREED: u32 = 1 << 23;
    /// `flush` decides about the ACK that is owed: a segment has come since it did last.
    pub(crate) const DECIDE: u32 = 1 << 17;
    /// It was decided on already, for a segment beyond a hole.
    pub(crate) const DECIDED: u32 = 1 << 21;
    /// Something was dropped before the device just now: the next `flush` sends nothing into what is full.
    pub(crate) const HELD: u32 = 1 << 26;
    /// The host's memory was scarce when it was last asked.
    pub(crate) const PRESSED: u32 = 1 << 27;
    /// It has none for the segment that is worked on.
    pub(crate) const EXHAUSTED: u32 = 1 << 28;
}

/// Options with another value than the stack's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tuned {
    pub(crate) keepidle: Option<u32>,
    pub(crate) keepintvl: Option<u32>,
    pub(crate) keepcnt: Option<u8>,
    pub(crate) syncnt: Option<u8>,
    /// Milliseconds; 0 is none.
    pub(crate) user_timeout: u32,
    pub(crate) linger2: Option<i32>,
    pub(crate) notsent_lowat: Option<u32>,
    pub(crate) rcvlowat: Option<u32>,
    /// A reader that blocks waits for so many bytes; 0: none does.
    pub(crate) reader: u32,
    pub(crate) user_mss: Option<u16>,
}

impl<H> Conn<H> {
    #[inline]
    pub(crate) fn is(&self, flag: u32) -> bool {
        self.flags.0 & flag != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: u32, on: bool) {
        self.flags.0 = if on { self.flags.0 | flag } else { self.flags.0 & !flag };
    }

    pub(crate) fn raise(&mut self, events: Events) {
        self.events.0 |= events.0;
    }

    pub(crate) fn tuned(&self) -> Tuned {
        self.tuned.as_deref().copied().unwrap_or_default()
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What has changed since this was asked last.
    pub fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// The error of the connection, which is told once (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take().or_else(|| self.soft_error.take())
    }

    /// The error that [`take_error`](Self::take_error) would tell, but for soft ones.
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// Bytes delivered and not read.
    pub fn unread(&self) -> u32 {
        let fin = u32::from(self.is(ConnFlags::PEER_FIN));
        (self.rcv_nxt - self.copied).saturating_sub(fin)
    }

    /// Bytes queued and not acknowledged (`SIOCOUTQ`, which counts neither SYN nor FIN).
    pub fn unacked(&self) -> u32 {
        self.write_seq.past(self.data_una())
    }

    /// Bytes queued and not sent (`SIOCOUTQNSD`).
    pub fn unsent(&self) -> u32 {
        self.write_seq.past(self.tx.nxt())
    }

    /// `SND.UNA`, without the SYN. Only while that is not acknowledged may the number be compared with
    /// ISS, which after 2³¹ bytes is no longer behind it.
    pub(crate) fn data_una(&self) -> Seq {
        let una = self.tx.una();
        match self.state {
            State::SynSent | State::SynReceived => una.max(self.iss + 1),
            _ => una,
        }
    }

    /// One past the last number queued.
    pub(crate) fn write_end(&self) -> Seq {
        self.write_seq + u32::from(self.is(ConnFlags::SEND_SHUT))
    }

    /// Whether this end's FIN is acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.is(ConnFlags::SEND_SHUT) && self.tx.una() == self.write_seq + 1
    }

    /// The right edge of the peer's window.
    pub(crate) fn snd_edge(&self) -> Seq {
        self.tx.una() + self.snd_wnd
    }

    /// The millisecond clock with this connection's offset (TSval).
    pub(crate) fn ts_now(&self, now: Instant) -> u32 {
        send::ts_clock(now).wrapping_add(self.ts_offset)
    }

    pub(crate) fn rto(&self, cfg: &Config) -> Span {
        self.tx.rto(cfg)
    }

    /// Asks the host for its memory.
    pub(crate) fn look_at_memory<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        let memory = cx.out.memory();
        self.set(ConnFlags::PRESSED, memory != Memory::Ample);
        self.set(ConnFlags::EXHAUSTED, memory == Memory::Exhausted);
    }

    /// Whether data waits beyond a hole.
    pub(crate) fn has_hole(&self) -> bool {
        self.ooo.as_ref().is_some_and(|ooo| !ooo.is_empty())
    }

    /// Whether [`flush`](Self::flush) has something to do.
    pub fn is_dirty(&self) -> bool {
        self.is(ConnFlags::DIRTY)
    }
}
