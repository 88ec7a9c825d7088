//! How connections begin: with a SYN of this end, or with a request that was answered.
//!
//! RFC 9293 3.7.1: "TCP endpoints MUST implement both sending and receiving the MSS Option"
//! (MUST-14), "if an MSS Option is not received at connection setup, TCP implementations MUST
//! assume a default send MSS of 536 (576 − 40) for IPv4 or 1220 (1280 − 60) for IPv6" (MUST-15).

use super::{Conn, ConnFlags, Cx, Error, Events, State, Tuned};
use crate::config::{Config, CongestionControl};
use crate::isn::Initial;
use crate::listen::{Accepted, DEFAULT_MSS};
use crate::recv::ack::AckPolicy;
use crate::recv::window::RecvWindow;
use crate::send::{CubicParams, Sender, SenderInit};
use crate::seq::Seq;
use crate::time::{Instant, Span};
use crate::wire::SackRange;

/// What timestamps take of each segment.
pub(crate) const TS_LEN: u16 = 12;

/// A small window makes no smaller segments: 68 bytes, less the largest header without SACK (Linux).
const LEAST_MSS: u16 = 68 - 20 - TS_LEN;

/// Options that are set before there is a connection: a listener's children have its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnOptions {
    /// `SO_RCVBUF`, bytes of memory, already doubled; `None` is `tcp_rmem`, with autotuning.
    pub rcvbuf: Option<u32>,
    /// `SO_SNDBUF`, likewise.
    pub sndbuf: Option<u32>,
    /// `TCP_WINDOW_CLAMP`, bytes; 0 is none.
    pub window_clamp: u32,
    /// `TCP_CONGESTION`; `None` is `tcp_congestion_control`.
    pub congestion: Option<CongestionControl>,
    /// How CUBIC behaves.
    pub cubic: CubicParams,
    /// Whether what [`Conn::connect`] opens goes over IPv6: a peer that announces no MSS takes 1220
    /// bytes then, not 536 (RFC 9293 3.7.1). A listener sees that by the address.
    pub ipv6: bool,
    pub(crate) flags: u32,
    pub(crate) tuned: Tuned,
}

impl ConnOptions {
    /// The MSS to announce over a path of `path_mss` (its MTU less IP header and 20).
    pub(crate) fn advmss(&self, path_mss: u16) -> u16 {
        self.tuned.user_mss.map_or(path_mss, |user| user.min(path_mss))
    }

    /// Its congestion control.
    fn control(&self, cfg: &Config) -> CongestionControl {
        self.congestion.unwrap_or(cfg.tcp_congestion_control)
    }

    /// Whether that lives by ECN (Linux `tcp_ca_needs_ecn`).
    pub(crate) fn needs_ecn(&self, cfg: &Config) -> bool {
        self.control(cfg) == CongestionControl::Dctcp
    }

    /// The receive window before a handshake.
    pub(crate) fn window(&self, cfg: &Config, advmss: u16) -> RecvWindow {
        let buf = self.rcvbuf.unwrap_or(cfg.tcp_rmem[1]);
        let locked = self.rcvbuf.is_some();
        let mut window = RecvWindow::new(cfg, buf, locked, self.window_clamp, advmss, cfg.tcp_window_scaling);
        self.tuned.rcvlowat.iter().for_each(|bytes| _ = window.hold(cfg, *bytes));
        window
    }
}

/// The least MSS that an ICMP message of a too large packet makes: a smaller one would have each
/// byte carried by forty of headers (CVE-2019-11479).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PathFloor {
    /// Linux's `min_pmtu`, 552 bytes.
    Ipv4 = 552 - 40,
    /// RFC 8201 4: "a node MUST NOT reduce its estimate … below the IPv6 minimum link MTU", 1280.
    Ipv6 = 1280 - 60,
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The path's MTU leaves no room for a segment.
    PathMtu,
}

/// What both kinds of opening have in common.
struct Start {
    state: State,
    iss: Seq,
    nxt: Seq,
    ts_offset: u32,
    path_mss: u16,
    peer_mss: u16,
    win: RecvWindow,
}

impl<H> Conn<H> {
    fn start<O>(cx: &Cx<'_, O>, options: &ConnOptions, start: Start) -> Conn<H> {
        let congestion = options.control(cx.cfg);
        let init = SenderInit { nxt: start.nxt, mss: start.peer_mss, congestion, cubic: options.cubic };
        let mut flags = options.flags;
        flags |= if options.sndbuf.is_some() { ConnFlags::SNDBUF_LOCKED } else { 0 };
        flags |= if congestion == CongestionControl::Dctcp { ConnFlags::DCTCP } else { 0 };
        Conn {
            state: start.state,
            flags: ConnFlags(flags | ConnFlags::DIRTY),
            events: Events::default(),
            snd_wscale: 0,
            rcv_nxt: Seq(0),
            copied: Seq(0),
            snd_wnd: 0,
            snd_wl1: Seq(0),
            ts_recent: 0,
            ts_offset: start.ts_offset,
            ts_recent_at: Instant(0),
            ack: AckPolicy::new(crate::recv::ack::MSS_DEFAULT),
            win: start.win,
            ooo: None,
            write_seq: start.iss + 1,
            pushed_seq: start.iss + 1,
            snd_sml: start.iss + 1,
            max_window: 0,
            tx: Sender::new(&init, cx.now),
            dsack: SackRange::default(),
            last_ack: cx.now,
            last_oow: Instant::NEVER,
            keep_at: Instant::NEVER,
            iss: start.iss,
            peer_mss: start.peer_mss,
            path_mss: start.path_mss,
            sndbuf: options.sndbuf.unwrap_or(cx.cfg.tcp_wmem[1]),
            error: None,
            soft_error: None,
            keep_probes: 0,
            bytes_received: 0,
            segs_in: 0,
            segs_out: 0,
            data_segs_in: 0,
            data_segs_out: 0,
            rcv_ooopack: 0,
            probes_began: Instant::NEVER,
            chrono: super::Chrono::default(),
            bound: Default::default(),
            tuned: options.tuned.is_set().then(|| {
                let rcvlowat = options.tuned.rcvlowat.map(|bytes| bytes.min(start.win.most_held(cx.cfg)));
                Box::new(Tuned { rcvlowat, ..options.tuned })
            }),
        }
    }

    /// The connection takes the ports of one in TIME-WAIT: its first segment echoes the last timestamp
    /// that the peer sent there.
    pub fn succeed(&mut self, now: Instant, ts_recent: u32) {
        (self.ts_recent, self.ts_recent_at) = (ts_recent, now);
    }

    /// An active open (RFC 9293 3.10.1): the next [`flush`](Self::flush) sends the SYN. `path_mss`
    /// is the MTU less the IP header and 20.
    ///
    /// # Errors
    ///
    /// [`OpenError`], if nothing fits the path.
    pub fn connect<O>(
        cx: &mut Cx<'_, O>,
        options: &ConnOptions,
        initial: Initial,
        path_mss: u16,
    ) -> Result<Conn<H>, OpenError> {
        if path_mss < cx.cfg.tcp_min_snd_mss {
            return Err(OpenError::PathMtu);
        }
        cx.counters.active_opens += 1;
        let win = options.window(cx.cfg, options.advmss(path_mss));
        let start = Start {
            state: State::SynSent,
            iss: initial.seq,
            nxt: initial.seq,
            ts_offset: initial.ts_offset,
            path_mss,
            peer_mss: if options.ipv6 { DEFAULT_MSS[1] } else { DEFAULT_MSS[0] },
            win,
        };
        Ok(Conn::start(cx, options, start))
    }

    /// A passive open whose handshake is done: the ACK that completed it follows as
    /// [`input`](Self::input).
    pub fn accept<O>(cx: &mut Cx<'_, O>, options: &ConnOptions, accepted: &Accepted) -> Conn<H> {
        cx.counters.passive_opens += 1;
        let mut win = options.window(cx.cfg, accepted.advmss);
        if accepted.window_scale.is_none() {
            win.no_scale();
        } else {
            win.scale = accepted.rcv_wscale;
        }
        let start = Start {
            state: State::SynReceived,
            iss: accepted.iss,
            nxt: accepted.iss + 1,
            ts_offset: accepted.ts_offset,
            path_mss: accepted.path_mss,
            peer_mss: accepted.peer_mss,
            win,
        };
        let mut conn = Conn::start(cx, options, start);
        conn.set(ConnFlags::WSCALE, accepted.window_scale.is_some());
        conn.snd_wscale = accepted.window_scale.unwrap_or(0);
        conn.set(ConnFlags::SACK, accepted.sack);
        if let Some(ts_recent) = accepted.ts_recent {
            conn.agree_timestamps(cx.now, ts_recent);
        }
        conn.set_irs(accepted.irs);
        conn.snd_wnd = accepted.window;
        conn.max_window = accepted.window;
        conn.established(cx, accepted.ecn, accepted.retransmitted);
        if let Some(rtt) = accepted.rtt {
            conn.tx.seed_rtt(&cx.send(), rtt);
        } else if accepted.retransmitted {
            // RFC 6298 5.7: "If the timer expires awaiting the ACK of a SYN segment … the RTO MUST
            // be re-initialized to 3 seconds when data transmission begins."
            conn.tx.set_initial_rto(Span(3_000_000));
        }
        conn
    }

    /// The peer's SYN had the number `irs`.
    pub(crate) fn set_irs(&mut self, irs: Seq) {
        self.rcv_nxt = irs + 1;
        self.copied = irs + 1;
        self.snd_wl1 = irs;
        self.win.start(self.rcv_nxt);
    }

    pub(crate) fn agree_timestamps(&mut self, now: Instant, ts_recent: u32) {
        self.set(ConnFlags::TS, true);
        self.ts_recent = ts_recent;
        self.ts_recent_at = now;
        self.win.advmss = self.win.advmss.saturating_sub(TS_LEN);
    }

    /// Payload of a full segment, bytes: what the peer takes and the path carries, less options.
    pub(crate) fn effective_mss(&self, cfg: &Config) -> u16 {
        let whole = self.peer_mss.min(self.path_mss).max(cfg.tcp_min_snd_mss);
        let whole = self.tuned().user_mss.map_or(whole, |user| whole.min(user));
        let mss = whole - if self.is(ConnFlags::TS) { TS_LEN } else { 0 };
        // RFC 9293 3.8.6.2.1 (3): send "if at least a fraction Fs of the maximum window can be
        // sent", and Fs "is recommended to be 1/2" (Linux `tcp_bound_to_half_wnd`): a peer whose
        // window never holds a full segment is not left to the window probe.
        let bound = self.half_window().max(LEAST_MSS.into());
        mss.min(u16::try_from(bound).unwrap_or(u16::MAX))
    }

    /// The peer offered a larger window than ever: it may take larger segments.
    pub(crate) fn raise_max_window(&mut self, cfg: &Config, window: u32) {
        if window <= self.max_window {
            return;
        }
        let bound = self.half_window();
        self.max_window = window;
        if self.tx.mss() >= bound {
            let mss = self.effective_mss(cfg);
            if u32::from(mss) > self.tx.mss() {
                self.tx.set_mss(mss);
            }
        }
    }

    /// The most that a segment may hold by the peer's largest window, bytes (Linux
    /// `tcp_bound_to_half_wnd`).
    pub fn half_window(&self) -> u32 {
        match self.max_window {
            0 => u32::MAX,
            small if small <= u32::from(crate::recv::ack::MSS_DEFAULT) => small,
            window => window / 2,
        }
    }

    /// The handshake is done, as far as numbers go: data may flow.
    pub(crate) fn established<O>(&mut self, cx: &mut Cx<'_, O>, ecn: bool, syn_retransmitted: bool) {
        let mss = self.effective_mss(cx.cfg);
        self.tx.on_established(mss, self.is(ConnFlags::SACK), ecn, syn_retransmitted);
        let rcv_mss = AckPolicy::initial_rcv_mss(self.win.advmss, mss, self.win.wnd);
        self.ack.rcv_mss = rcv_mss;
        self.win.established(cx.now, self.rcv_nxt);
        self.state = State::Established;
        self.expand_sndbuf(cx.cfg);
        self.last_ack = cx.now;
        self.ack.last_data = cx.now;
        if self.is(ConnFlags::KEEPALIVE) {
            self.arm_keepalive(cx.now, cx.cfg);
        }
        self.raise(Events(Events::CONNECTED.0 | Events::WRITABLE.0));
        self.set(ConnFlags::DIRTY, true);
    }

    /// An error that ICMP tells (RFC 5927): `quoted` is the sequence number in the segment that it
    /// quotes. A connection that is being opened ends; an established one keeps the error in mind
    /// until it times out.
    pub fn icmp_error<O: super::Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        quoted: Seq,
        error: Error,
    ) {
        if !quoted.between(self.tx.una(), self.tx.nxt()) {
            return;
        }
        match self.state {
            State::SynSent | State::SynReceived => {
                cx.counters.attempt_fails += 1;
                self.end(cx, Some(error));
            }
            State::Closed => {}
            _ => {
                self.soft_error = Some(error);
                // RFC 6069 4.2: only what was lost on the way to a router that has no way on
                // speaks of the retransmission that is out.
                let unreachable = matches!(error, Error::HostUnreachable | Error::NetworkUnreachable);
                if unreachable && quoted == self.tx.una() {
                    self.tx.on_unreachable(&cx.send());
                }
            }
        }
    }

    /// The path carries less, as ICMP tells: `path_mss` is its MTU less the IP header and 20,
    /// `quoted` the sequence number in the segment that the message quotes, and `floor` the least
    /// that is believed. What is not in flight is no reason (RFC 5927 7.2), and a message does not
    /// raise the MSS. Segments that are too large are sent again in smaller ones. Returns whether the MSS
    /// is smaller since.
    pub fn path_mss_changed<O>(
        &mut self,
        cx: &mut Cx<'_, O>,
        quoted: Seq,
        path_mss: u16,
        floor: PathFloor,
    ) -> bool {
        let path_mss = path_mss.max(floor as u16).max(cx.cfg.tcp_min_snd_mss);
        if !quoted.between(self.tx.una(), self.tx.nxt()) || path_mss >= self.path_mss {
            return false;
        }
        self.path_mss = path_mss;
        if !matches!(self.state, State::SynSent | State::Closed) {
            let mss = self.effective_mss(cx.cfg);
            self.tx.set_mss(mss);
            self.set(ConnFlags::DIRTY, true);
        }
        true
    }
}

impl Tuned {
    fn is_set(&self) -> bool {
        let Tuned {
            keepidle,
            keepintvl,
            keepcnt,
            syncnt,
            user_timeout,
            linger2,
            notsent_lowat,
            rcvlowat,
            reader: _,
            user_mss,
        } = self;
        keepidle.is_some()
            || keepintvl.is_some()
            || keepcnt.is_some()
            || syncnt.is_some()
            || *user_timeout != 0
            || linger2.is_some()
            || notsent_lowat.is_some()
            || rcvlowat.is_some()
            || user_mss.is_some()
    }
}
