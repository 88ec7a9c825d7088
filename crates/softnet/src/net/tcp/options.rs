//! The options of a stream.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::sync::Ordering;
use softnet_tcp::Config;
use softnet_tcp::config::CongestionControl;
use softnet_tcp::conn::SockOpt;

use super::super::options::{errno, set_timeout, timeout};
use super::super::{EpollParams, OutOfRange};
use super::stream::TcpStream;

impl TcpStream {
    fn set_option(&self, option: SockOpt) -> io::Result<()> {
        let id = self.0.id;
        let set = self.call(|shard, ctx, env, out| shard.set_option(ctx, env, id, option, out))?;
        set.map_err(|_| errno(Errno::INVAL))
    }

    /// Whether calls fail with [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.options.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// How calls that wait poll before they block (`SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`):
    /// the thread polls the NAPI instance that the connection's last packet came by, rather than be woken by the thread
    /// that would. Writing polls, too, while there is no room, unlike the kernel's. At most 33 s; the default does not poll,
    /// nor do calls that do not block. With `prefer_busy_poll` what comes for others may wait for `gro_flush_timeout`.
    pub fn set_busy_poll(&self, params: EpollParams) -> Result<(), OutOfRange> {
        self.0.options.busy_poll.set(&params)
    }

    /// See [`set_busy_poll`](Self::set_busy_poll).
    pub fn busy_poll(&self) -> EpollParams {
        self.0.options.busy_poll.get()
    }

    /// Time-out of reading; `None`: none. A time-out of 0 is an error.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.0.options.read_timeout, timeout)
    }

    /// See [`set_read_timeout`](Self::set_read_timeout).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.0.options.read_timeout))
    }

    /// Time-out of writing while there is no room; `None`: none. A time-out of 0 is an error.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.0.options.write_timeout, timeout)
    }

    /// See [`set_write_timeout`](Self::set_write_timeout).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.0.options.write_timeout))
    }

    /// Whether small segments leave at once (`TCP_NODELAY`); else they wait for the acknowledgement
    /// of earlier small ones.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(SockOpt::NoDelay(nodelay))
    }

    /// Whether only full segments leave (`TCP_CORK`), for 200 ms at the most.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        self.set_option(SockOpt::Cork(cork))
    }

    /// Acknowledges at once, for a while (`TCP_QUICKACK`).
    pub fn set_quickack(&self, quick: bool) -> io::Result<()> {
        self.set_option(SockOpt::QuickAck(quick))
    }

    /// With zero, closing resets the connection and forgets what was not sent (`SO_LINGER`);
    /// `None`: closing sends all. Waiting in `close` is not provided: other durations are refused.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        match linger {
            None => self.set_option(SockOpt::LingerZero(false)),
            Some(Duration::ZERO) => self.set_option(SockOpt::LingerZero(true)),
            Some(_) => Err(errno(Errno::OPNOTSUPP)),
        }
    }

    /// Whether an idle connection asks now and then whether the peer is there (`SO_KEEPALIVE`).
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.set_option(SockOpt::KeepAlive(keepalive))
    }

    /// After how long idle it asks first (`TCP_KEEPIDLE`), in seconds.
    pub fn set_keepalive_idle(&self, idle: Duration) -> io::Result<()> {
        self.set_option(SockOpt::KeepIdle(seconds(idle)))
    }

    /// How often it asks (`TCP_KEEPINTVL`), in seconds.
    pub fn set_keepalive_interval(&self, interval: Duration) -> io::Result<()> {
        self.set_option(SockOpt::KeepIntvl(seconds(interval)))
    }

    /// After how many questions without answer it ends (`TCP_KEEPCNT`).
    pub fn set_keepalive_count(&self, count: u8) -> io::Result<()> {
        self.set_option(SockOpt::KeepCnt(count))
    }

    /// How long what was sent may stay without acknowledgement (`TCP_USER_TIMEOUT`); `None`: as
    /// `tcp_retries2` says.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ms = timeout.map_or(0, |timeout| timeout.as_millis().min(u32::MAX.into()) as u32);
        self.set_option(SockOpt::UserTimeout(ms))
    }

    /// Less than so many bytes wait to be sent (`TCP_NOTSENT_LOWAT`): beyond, writing waits or fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock), but for a run of up to 64 KiB that began below; writable is
    /// the stream again when half of them are left. 0: as `tcp_notsent_lowat` says.
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SockOpt::NotsentLowat(bytes))
    }

    /// Readable only from so many bytes on (`SO_RCVLOWAT`), or at the end, or if the buffer has no more room; a
    /// read that blocks waits for as many, or as many as it asks for. The buffer grows to hold them, if it was not
    /// set; half of what it may be is the most.
    pub fn set_recv_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SockOpt::RcvLowat(bytes))
    }

    /// Another congestion control from now on, by its name (`TCP_CONGESTION`): `cubic`, `reno` or `dctcp`. The
    /// window stays as it is. ECN, which `dctcp` lives by, is agreed on in the handshake: see
    /// [`TcpBuilder::congestion`](super::TcpBuilder::congestion).
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound): there is none of that name.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.set_option(SockOpt::Congestion(congestion(name)?))
    }

    /// See [`set_congestion`](Self::set_congestion).
    pub fn congestion(&self) -> io::Result<&'static str> {
        Ok(self.info()?.send.congestion.name())
    }

    /// Bytes of packet memory that may wait to be read (`SO_RCVBUF`), up to `rmem_max`; ends autotuning.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SockOpt::RcvBuf(recv_buffer(&self.0.shared.sockets.tcp.cfg, bytes)))
    }

    /// Bytes that may be queued (`SO_SNDBUF`), up to `wmem_max`; ends autotuning.
    pub fn set_send_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SockOpt::SndBuf(send_buffer(&self.0.shared.sockets.tcp.cfg, bytes)))
    }
}

/// What `SO_RCVBUF` of so many bytes makes (the kernel's `rmem_max` and `SOCK_MIN_RCVBUF`): twice as much.
pub(super) fn recv_buffer(cfg: &Config, bytes: u32) -> u32 {
    bytes.min(cfg.rmem_max).saturating_mul(2).max(2304)
}

/// The same of `SO_SNDBUF` (`wmem_max`, `SOCK_MIN_SNDBUF`).
pub(super) fn send_buffer(cfg: &Config, bytes: u32) -> u32 {
    bytes.min(cfg.wmem_max).saturating_mul(2).max(4608)
}

/// The congestion control of that name.
pub(super) fn congestion(name: &str) -> io::Result<CongestionControl> {
    CongestionControl::from_name(name).ok_or_else(|| errno(Errno::NOENT))
}

fn seconds(duration: Duration) -> u32 {
    duration.as_secs().min(u32::MAX.into()) as u32
}
