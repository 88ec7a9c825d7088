//! The options of a stream.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::sync::Ordering;
use softnet_tcp::Config;
use softnet_tcp::conn::SockOpt;

use super::super::options::{errno, set_timeout, timeout};
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

    /// Writable only while less than so many bytes were not sent (`TCP_NOTSENT_LOWAT`).
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SockOpt::NotsentLowat(bytes))
    }

    /// Readable only from so many bytes on (`SO_RCVLOWAT`).
    pub fn set_recv_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SockOpt::RcvLowat(bytes))
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

fn seconds(duration: Duration) -> u32 {
    duration.as_secs().min(u32::MAX.into()) as u32
}
