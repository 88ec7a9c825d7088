//! `setsockopt` and `getsockopt`.

use libc::{
    IPPROTO_IP, IPPROTO_IPV6, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_RCVBUF, SO_RCVLOWAT, SO_SNDBUF,
    SOL_SOCKET, SOL_TCP, TCP_CONGESTION, TCP_CORK, TCP_DEFER_ACCEPT, TCP_INFO, TCP_KEEPCNT, TCP_KEEPIDLE,
    TCP_KEEPINTVL, TCP_LINGER2, TCP_MAXSEG, TCP_NODELAY, TCP_NOTSENT_LOWAT, TCP_QUICKACK, TCP_SYNCNT,
    TCP_USER_TIMEOUT, TCP_WINDOW_CLAMP,
};
use softnet_tcp::conn::SockOpt;

use crate::info;
use crate::settings::congestion;
use crate::sock::{Body, SockId, errno};
use crate::stack::Stack;

pub(crate) const TCP_CC_INFO: i32 = 26;
pub(crate) const TCP_INQ: i32 = 36;
const SO_MEMINFO: i32 = 55;
/// Linux's least `SO_RCVBUF` and `SO_SNDBUF`, doubled.
const LEAST_RCVBUF: u32 = 2304;
const LEAST_SNDBUF: u32 = 4608;

/// Options that are remembered, and have no effect in a run. `SO_ZEROCOPY` may be set, as bytes
/// may always be copied instead; the notification that would follow does not.
fn is_inert(level: i32, name: i32) -> bool {
    match level {
        SOL_SOCKET => {
            matches!(name, libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_PRIORITY | libc::SO_ZEROCOPY)
        }
        SOL_TCP => name == TCP_INQ,
        IPPROTO_IP => matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_MTU_DISCOVER | libc::IP_RECVERR),
        IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_TCLASS | libc::IPV6_V6ONLY | libc::IPV6_MTU_DISCOVER | libc::IPV6_RECVERR
        ),
        _ => false,
    }
}

impl Stack {
    pub(crate) fn set_option(&mut self, id: SockId, level: i32, name: i32, bytes: &[u8]) -> Result<(), i32> {
        if (level, name) == (SOL_TCP, TCP_CONGESTION) {
            let text = String::from_utf8_lossy(bytes);
            let control = congestion(text.trim_end_matches('\0')).ok_or(libc::ENOENT)?;
            self.sock(id)?.options.congestion = Some(control);
            return Ok(());
        }
        let value = match *bytes {
            // Options of IP take a byte as well.
            [byte, ..] if bytes.len() < 4 && level == IPPROTO_IP => i32::from(byte),
            _ => i32::from_ne_bytes(*bytes.first_chunk().ok_or(libc::EINVAL)?),
        };
        let on = value != 0;
        let unsigned = value.max(0) as u32;
        let at_least = |least: i32| if value < least { Err(libc::EINVAL) } else { Ok(unsigned) };
        let option = match (level, name) {
            (SOL_SOCKET, SO_KEEPALIVE) => SockOpt::KeepAlive(on),
            (SOL_SOCKET, SO_RCVLOWAT) => SockOpt::RcvLowat(unsigned.max(1)),
            (SOL_SOCKET, SO_RCVBUF) => {
                SockOpt::RcvBuf((unsigned.min(self.cfg.rmem_max) * 2).max(LEAST_RCVBUF))
            }
            (SOL_SOCKET, SO_SNDBUF) => {
                SockOpt::SndBuf((unsigned.min(self.cfg.wmem_max) * 2).max(LEAST_SNDBUF))
            }
            (SOL_SOCKET, SO_LINGER) => {
                let seconds = bytes.get(4..8).and_then(|b| b.first_chunk()).ok_or(libc::EINVAL)?;
                SockOpt::LingerZero(on && i32::from_ne_bytes(*seconds) == 0)
            }
            (SOL_TCP, TCP_NODELAY) => SockOpt::NoDelay(on),
            (SOL_TCP, TCP_CORK) => SockOpt::Cork(on),
            (SOL_TCP, TCP_QUICKACK) => SockOpt::QuickAck(on),
            (SOL_TCP, TCP_MAXSEG) => SockOpt::MaxSeg(u16::try_from(at_least(0)?).map_err(|_| libc::EINVAL)?),
            (SOL_TCP, TCP_KEEPIDLE) => SockOpt::KeepIdle(at_least(1)?),
            (SOL_TCP, TCP_KEEPINTVL) => SockOpt::KeepIntvl(at_least(1)?),
            (SOL_TCP, TCP_KEEPCNT) => SockOpt::KeepCnt(u8::try_from(at_least(1)?).map_err(|_| libc::EINVAL)?),
            (SOL_TCP, TCP_SYNCNT) => SockOpt::SynCnt(u8::try_from(at_least(1)?).map_err(|_| libc::EINVAL)?),
            (SOL_TCP, TCP_LINGER2) => SockOpt::Linger2(value),
            (SOL_TCP, TCP_USER_TIMEOUT) => SockOpt::UserTimeout(at_least(0)?),
            (SOL_TCP, TCP_NOTSENT_LOWAT) => SockOpt::NotsentLowat(value as u32),
            (SOL_TCP, TCP_WINDOW_CLAMP) => SockOpt::WindowClamp(at_least(0)?),
            (SOL_TCP, TCP_DEFER_ACCEPT) => {
                let cfg = &self.cfg;
                if let Some(Body::Listener(listener, _)) = self.socks.get_mut(&id).map(|sock| &mut sock.body)
                {
                    listener.set_defer_accept(cfg, unsigned);
                }
                return Ok(());
            }
            _ if is_inert(level, name) => {
                self.sock(id)?.values.insert((level, name), value);
                return Ok(());
            }
            _ => return Err(libc::ENOPROTOOPT),
        };
        let sock = self.sock(id)?;
        let told = match option {
            SockOpt::RcvBuf(bytes) | SockOpt::SndBuf(bytes) => bytes as i32,
            SockOpt::RcvLowat(bytes) => bytes as i32,
            _ => value,
        };
        match &mut sock.body {
            Body::Fresh => sock.options.set(option).map_err(|_| libc::EINVAL)?,
            Body::Listener(listener, _) => listener.options.set(option).map_err(|_| libc::EINVAL)?,
            Body::Live(_) => {
                if let Some(Err(_)) = self.enter(id, |conn, cx| conn.set_option(cx, option)) {
                    return Err(libc::EINVAL);
                }
            }
        }
        self.sock(id)?.values.insert((level, name), told);
        Ok(())
    }

    pub(crate) fn option(&mut self, id: SockId, level: i32, name: i32) -> Result<Vec<u8>, i32> {
        let (cfg, now) = (&self.cfg, self.now);
        let sock = self.socks.get_mut(&id).ok_or(libc::EBADF)?;
        let word = |value: i32| Ok(value.to_ne_bytes().to_vec());
        match (level, name) {
            (SOL_TCP, TCP_INFO) => Ok(info::tcp_info(sock, cfg, now)),
            // None of the algorithms tells more than `TCP_INFO`.
            (SOL_TCP, TCP_CC_INFO) => Ok(Vec::new()),
            (SOL_SOCKET, SO_MEMINFO) => Ok(info::mem_info(sock, cfg)),
            (SOL_SOCKET, SO_ERROR) => {
                word(sock.live_mut().and_then(|live| live.conn.take_error()).map_or(0, errno))
            }
            (SOL_TCP, TCP_MAXSEG) => {
                let set = sock.value(level, name, 0);
                let live = sock.live().map(|live| live.conn.info(cfg).send.snd_mss as i32);
                word(live.unwrap_or(if set == 0 { 536 } else { set }))
            }
            (SOL_SOCKET, SO_SNDBUF | SO_RCVBUF) => {
                let live = sock.live().map(|live| {
                    let info = live.conn.info(cfg);
                    (if name == SO_SNDBUF { info.wmem.1 } else { info.rmem.1 }) as i32
                });
                let begin = if name == SO_SNDBUF { cfg.tcp_wmem[1] } else { cfg.tcp_rmem[1] };
                word(live.unwrap_or(sock.value(level, name, begin as i32)))
            }
            (SOL_TCP, TCP_CONGESTION) => {
                let control = sock.options.congestion.unwrap_or(cfg.tcp_congestion_control);
                let mut text = format!("{control:?}").to_lowercase().into_bytes();
                text.resize(16, 0);
                Ok(text)
            }
            (SOL_TCP, TCP_NOTSENT_LOWAT) => word(sock.value(level, name, 0)),
            _ => {
                let default = match (level, name) {
                    (SOL_SOCKET, SO_RCVLOWAT) => 1,
                    (SOL_TCP, TCP_KEEPIDLE) => cfg.tcp_keepalive_time as i32,
                    (SOL_TCP, TCP_KEEPINTVL) => cfg.tcp_keepalive_intvl as i32,
                    (SOL_TCP, TCP_KEEPCNT) => i32::from(cfg.tcp_keepalive_probes),
                    (SOL_TCP, TCP_SYNCNT) => i32::from(cfg.tcp_syn_retries),
                    (SOL_TCP, TCP_NODELAY | TCP_CORK | TCP_USER_TIMEOUT | TCP_WINDOW_CLAMP)
                    | (SOL_SOCKET, SO_KEEPALIVE) => 0,
                    _ if is_inert(level, name) => 0,
                    _ => return Err(libc::ENOPROTOOPT),
                };
                word(sock.value(level, name, default))
            }
        }
    }
}
