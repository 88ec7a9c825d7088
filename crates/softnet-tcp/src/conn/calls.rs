//! What the application does: queueing, reading, options (RFC 9293 3.9.1).

use super::{Conn, ConnFlags, Cx, Error, Output, State, Tuned};
use crate::config::{Config, CongestionControl};
use crate::recv::ack::{MAX_QUICK, MIN_MSS};
use crate::send::CubicParams;

/// Why nothing can be queued, or how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// Room for so many bytes.
    Room(u32),
    /// Not before the handshake is done (queued bytes would wait; Linux has the caller wait).
    NotYet,
    /// `EPIPE`.
    Shut,
}

/// An option of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SockOpt {
    /// `TCP_NODELAY`.
    NoDelay(bool),
    /// `TCP_CORK`.
    Cork(bool),
    /// `TCP_QUICKACK`.
    QuickAck(bool),
    /// `TCP_MAXSEG`, 88 to 32,767 bytes.
    MaxSeg(u16),
    /// `SO_KEEPALIVE`.
    KeepAlive(bool),
    /// `TCP_KEEPIDLE`, seconds, 1 to 32,767.
    KeepIdle(u32),
    /// `TCP_KEEPINTVL`, seconds, 1 to 32,767.
    KeepIntvl(u32),
    /// `TCP_KEEPCNT`, 1 to 127.
    KeepCnt(u8),
    /// `TCP_SYNCNT`, 1 to 127.
    SynCnt(u8),
    /// `TCP_LINGER2`, seconds; negative: no wait in FIN-WAIT-2.
    Linger2(i32),
    /// `TCP_USER_TIMEOUT`, milliseconds; 0 is none.
    UserTimeout(u32),
    /// `TCP_NOTSENT_LOWAT`, bytes; 0 is the stack's `tcp_notsent_lowat`.
    NotsentLowat(u32),
    /// `SO_RCVLOWAT`, bytes, cut to half of what the receive buffer may be; the buffer grows to hold
    /// them, if it was not set.
    RcvLowat(u32),
    /// `TCP_WINDOW_CLAMP`, bytes.
    WindowClamp(u32),
    /// `SO_RCVBUF`, bytes of memory, already doubled; ends autotuning.
    RcvBuf(u32),
    /// `SO_SNDBUF`, likewise.
    SndBuf(u32),
    /// `SO_LINGER` with zero seconds: closing resets.
    LingerZero(bool),
    /// `TCP_CONGESTION`.
    Congestion(CongestionControl),
}

/// `EINVAL`: an option's value is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidOption;

const KEEPALIVE_MAX: u32 = 32_767;

impl super::ConnOptions {
    /// Sets an option of a socket that is not connected, or of a listener.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`], if its value is out of range.
    pub fn set(&mut self, option: SockOpt) -> Result<(), InvalidOption> {
        check(option)?;
        match option {
            SockOpt::WindowClamp(bytes) => self.window_clamp = bytes,
            SockOpt::RcvBuf(bytes) => self.rcvbuf = Some(bytes),
            SockOpt::SndBuf(bytes) => self.sndbuf = Some(bytes),
            SockOpt::QuickAck(_) => {}
            SockOpt::Congestion(control) => self.congestion = Some(control),
            option => match flag_of(option) {
                Some((flag, on)) => self.flags = if on { self.flags | flag } else { self.flags & !flag },
                None => self.tuned.set(option),
            },
        }
        Ok(())
    }
}

/// The options that are one bit of a connection.
fn flag_of(option: SockOpt) -> Option<(u32, bool)> {
    Some(match option {
        SockOpt::NoDelay(on) => (ConnFlags::NODELAY, on),
        SockOpt::Cork(on) => (ConnFlags::CORK, on),
        SockOpt::KeepAlive(on) => (ConnFlags::KEEPALIVE, on),
        SockOpt::LingerZero(on) => (ConnFlags::LINGER_ZERO, on),
        _ => return None,
    })
}

fn check(option: SockOpt) -> Result<(), InvalidOption> {
    let good = match option {
        SockOpt::MaxSeg(bytes) => (MIN_MSS..=32_767).contains(&bytes),
        SockOpt::KeepIdle(s) | SockOpt::KeepIntvl(s) => (1..=KEEPALIVE_MAX).contains(&s),
        SockOpt::KeepCnt(n) | SockOpt::SynCnt(n) => (1..=127).contains(&n),
        SockOpt::UserTimeout(ms) => i32::try_from(ms).is_ok(),
        _ => true,
    };
    if good { Ok(()) } else { Err(InvalidOption) }
}

impl Tuned {
    fn set(&mut self, option: SockOpt) {
        match option {
            SockOpt::MaxSeg(bytes) => self.user_mss = Some(bytes),
            SockOpt::KeepIdle(s) => self.keepidle = Some(s),
            SockOpt::KeepIntvl(s) => self.keepintvl = Some(s),
            SockOpt::KeepCnt(n) => self.keepcnt = Some(n),
            SockOpt::SynCnt(n) => self.syncnt = Some(n),
            SockOpt::Linger2(s) => self.linger2 = Conn::<()>::linger2_of(s),
            SockOpt::UserTimeout(ms) => self.user_timeout = ms,
            SockOpt::NotsentLowat(bytes) => self.notsent_lowat = (bytes != 0).then_some(bytes),
            SockOpt::RcvLowat(bytes) => self.rcvlowat = Some(bytes.max(1)),
            _ => {}
        }
    }
}

impl<H> Conn<H> {
    /// How much may be queued now.
    pub fn writable(&self) -> Writable {
        if self.is(ConnFlags::SEND_SHUT) || self.state == State::Closed {
            return Writable::Shut;
        }
        match self.state {
            State::SynSent | State::SynReceived => Writable::NotYet,
            _ => Writable::Room(self.sndbuf.saturating_sub(self.unacked())),
        }
    }

    /// `TCP_NOTSENT_LOWAT`, or `tcp_notsent_lowat`: bytes unsent from which no more should be queued.
    pub fn notsent_lowat(&self, cfg: &Config) -> u32 {
        self.tuned().notsent_lowat.unwrap_or(cfg.tcp_notsent_lowat)
    }

    /// Whether a poller is told that writing is possible: a third of the buffer is free, and what
    /// is not sent is less than half of `TCP_NOTSENT_LOWAT` (Linux `sk_stream_is_writeable`).
    pub fn is_writable(&self, cfg: &Config) -> bool {
        match self.writable() {
            Writable::Shut => true,
            Writable::NotYet => false,
            Writable::Room(room) => {
                // Twice as much unsent suffices not to be woken for, so that a writer finds room
                // for some while (Linux `__tcp_stream_memory_free`).
                let unsent = u64::from(self.unsent()) * 2;
                room >= self.unacked() / 2 && room > 0 && unsent < u64::from(self.notsent_lowat(cfg))
            }
        }
    }

    /// Whether a poller is told that reading is possible: `SO_RCVLOWAT` bytes, the end, or a
    /// buffer so full that no more may come.
    pub fn is_readable(&self) -> bool {
        let unread = self.unread();
        let tuned = self.tuned.as_deref();
        let lowat = tuned.map_or(1, |tuned| {
            let mark = tuned.rcvlowat.unwrap_or(1);
            if tuned.reader > 0 { mark.min(tuned.reader) } else { mark }
        });
        unread >= lowat
            || self.is(ConnFlags::RCV_SHUT)
            || (unread > 0
                && (self.win.held > self.win.buf - self.win.buf / 8
                    || self.win.current(self.rcv_nxt) <= u32::from(self.ack.rcv_mss)))
    }

    /// Bytes that a read of `len` bytes that blocks waits for (Linux `sock_rcvlowat`).
    pub fn read_target(&self, len: u32) -> u32 {
        let lowat = self.tuned.as_deref().and_then(|tuned| tuned.rcvlowat);
        lowat.unwrap_or(1).min(len).max(1)
    }

    /// A reader blocks until `target` bytes are there, perhaps fewer than `SO_RCVLOWAT`: until
    /// the next read they are enough for all.
    pub fn reader_waits(&mut self, target: u32) {
        if let Some(tuned) = &mut self.tuned {
            tuned.reader = if tuned.reader == 0 { target } else { target.min(tuned.reader) };
        }
    }

    /// Whether the receiving direction has ended, by the peer or by `shutdown`.
    pub fn receive_ended(&self) -> bool {
        self.is(ConnFlags::RCV_SHUT)
    }

    /// Whether the sending direction has ended.
    pub fn send_ended(&self) -> bool {
        self.is(ConnFlags::SEND_SHUT)
    }

    /// `bytes` were queued behind what is queued; at most what [`writable`](Self::writable) said,
    /// or more in SYN-SENT, where they wait. `more`: the [`flush`](Self::flush) that follows holds a
    /// partial segment back for what comes behind it (`MSG_MORE`); a later one asks Nagle's rule.
    pub fn write(&mut self, bytes: u32, more: bool) {
        if self.is(ConnFlags::SEND_SHUT) || self.state == State::Closed {
            return;
        }
        self.write_seq += bytes;
        self.set(ConnFlags::MORE | ConnFlags::MORE_NOW, more);
        self.set(ConnFlags::DIRTY, true);
    }

    /// The application has read `bytes`, and `memory` bytes of packet memory went back with them, or
    /// of what it read before. Where the window opens by much, the peer is told at once.
    pub fn read<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, bytes: u32, memory: u32) {
        let bytes = bytes.min(self.unread());
        if bytes > 0
            && let Some(tuned) = &mut self.tuned
        {
            tuned.reader = 0;
        }
        self.copied += bytes;
        self.win.held = self.win.held.saturating_sub(memory);
        if self.state == State::Closed {
            return;
        }
        let beyond = self.ooo.as_ref().map_or(0, |ooo| ooo.span());
        self.look_at_memory(cx);
        if !self.is(ConnFlags::PRESSED) {
            self.win.right_size(cx.now, cx.cfg, self.copied, self.rcv_nxt, beyond);
        }
        let thresh = cx.cfg.tcp_pingpong_thresh;
        let full = self.rcv_nxt - self.win.told_at > u32::from(self.ack.rcv_mss);
        let emptied = bytes > 0 && self.unread() == 0 && self.ack.read_ends_delay(thresh);
        let mut due = self.ack.is_scheduled() && (full || emptied);
        if (bytes > 0 || memory > 0) && !due && !self.is(ConnFlags::RCV_SHUT) {
            let now = self.win.current(self.rcv_nxt);
            if now.saturating_mul(2) <= self.win.clamp {
                let (new, scarce) = self.win.offer(cx.cfg, self.ack.rcv_mss);
                if scarce {
                    self.ack.quick = 0;
                }
                due = new > 0 && new >= now * 2;
            }
        }
        if due {
            self.send_ack(cx);
        }
    }

    /// Sets an option. A [`flush`](Self::flush) follows.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`], if its value is out of range.
    pub fn set_option<O: Output<Handle = H>>(
        &mut self,
        cx: &mut Cx<'_, O>,
        option: SockOpt,
    ) -> Result<(), InvalidOption> {
        check(option)?;
        self.set(ConnFlags::DIRTY, true);
        if let Some((flag, on)) = flag_of(option) {
            self.set(flag, on);
            match option {
                // What is held back leaves, corked or not (Linux `__tcp_sock_set_nodelay`).
                SockOpt::NoDelay(true) => self.set(ConnFlags::PUSH_NOW, true),
                SockOpt::Cork(false) => {
                    let nodelay = self.is(ConnFlags::NODELAY);
                    self.set(ConnFlags::PUSH_NOW, nodelay || self.is(ConnFlags::PUSH_NOW));
                }
                SockOpt::KeepAlive(true) if self.state != State::SynSent => {
                    self.arm_keepalive(cx.now, cx.cfg);
                }
                _ => {}
            }
            return Ok(());
        }
        match option {
            SockOpt::QuickAck(on) => self.quick_ack(cx, on),
            SockOpt::WindowClamp(bytes) => {
                self.win.clamp = if bytes == 0 { self.win.clamp } else { bytes };
                self.win.ssthresh = self.win.ssthresh.min(self.win.clamp);
            }
            SockOpt::RcvBuf(bytes) => {
                self.win.buf = bytes;
                self.win.lock();
            }
            SockOpt::SndBuf(bytes) => {
                self.sndbuf = bytes;
                self.set(ConnFlags::SNDBUF_LOCKED, true);
            }
            SockOpt::Congestion(control) => {
                self.tx.set_congestion(control, CubicParams::default());
                self.set(ConnFlags::DCTCP, control == CongestionControl::Dctcp);
            }
            SockOpt::RcvLowat(bytes) => {
                let bytes = self.win.hold(cx.cfg, bytes);
                self.tuned.get_or_insert_default().set(SockOpt::RcvLowat(bytes));
            }
            option => {
                self.tuned.get_or_insert_default().set(option);
                if matches!(option, SockOpt::KeepIdle(_)) && self.is(ConnFlags::KEEPALIVE) {
                    self.arm_keepalive(cx.now, cx.cfg);
                }
                if matches!(option, SockOpt::MaxSeg(_))
                    && !matches!(self.state, State::SynSent | State::Closed)
                {
                    let mss = self.effective_mss(cx.cfg);
                    self.tx.set_mss(mss);
                }
            }
        }
        Ok(())
    }

    fn quick_ack<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>, on: bool) {
        if !on {
            return self.ack.enter_pingpong(cx.cfg.tcp_pingpong_thresh);
        }
        self.ack.leave_pingpong();
        if self.ack.is_scheduled() && !matches!(self.state, State::SynSent | State::Closed) {
            self.send_ack(cx);
        }
        self.ack.quick = self.ack.quick.max(MAX_QUICK);
    }

    /// Gives up at once, for want of memory or because a listener closed: the peer is told.
    pub fn kill<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        cx.counters.abort_on_memory += 1;
        self.abort(cx, Some(Error::ConnectionAborted));
    }

    /// Frees memory that an idle connection does not need.
    pub fn release_memory(&mut self) {
        self.tx.release_memory();
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        let tuned = self.tuned.as_ref().map_or(0, |_| size_of::<Tuned>());
        self.tx.memory() + tuned
    }
}
