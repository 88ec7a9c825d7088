//! `TCP_INFO`.

use super::{Conn, ConnFlags, State};
use crate::config::Config;
use crate::send::SendInfo;
use crate::time::{Instant, Span};

/// What `TCP_INFO` tells of a connection, under the names of Linux's `struct tcp_info`; the host
/// lays it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// `tcpi_state`, as [`linux_state`] numbers it.
    pub state: u8,
    /// `tcpi_options`: bits 1 timestamps, 2 SACK, 4 window scaling, 8 ECN.
    pub options: u8,
    /// `tcpi_snd_wscale`.
    pub snd_wscale: u8,
    /// `tcpi_rcv_wscale`.
    pub rcv_wscale: u8,
    /// `tcpi_ato`, of the delayed ACK.
    pub ato: Span,
    /// `tcpi_rcv_mss`, bytes.
    pub rcv_mss: u32,
    /// `tcpi_last_data_recv`: when.
    pub last_data_recv: Instant,
    /// `tcpi_last_ack_recv`: when.
    pub last_ack_recv: Instant,
    /// `tcpi_pmtu`, without the IP header and the fixed part of TCP's: bytes.
    pub path_mss: u32,
    /// `tcpi_rcv_ssthresh`, bytes.
    pub rcv_ssthresh: u32,
    /// `tcpi_advmss`, bytes.
    pub advmss: u32,
    /// `tcpi_rcv_rtt`.
    pub rcv_rtt: Span,
    /// `tcpi_rcv_space`, bytes.
    pub rcv_space: u32,
    /// `tcpi_bytes_received`.
    pub bytes_received: u64,
    /// `tcpi_segs_out`.
    pub segs_out: u32,
    /// `tcpi_segs_in`.
    pub segs_in: u32,
    /// `tcpi_notsent_bytes`.
    pub notsent_bytes: u32,
    /// `tcpi_data_segs_in`.
    pub data_segs_in: u32,
    /// `tcpi_data_segs_out`.
    pub data_segs_out: u32,
    /// `tcpi_rcv_ooopack`.
    pub rcv_ooopack: u32,
    /// `tcpi_snd_wnd`, bytes.
    pub snd_wnd: u32,
    /// `tcpi_rcv_wnd`, bytes.
    pub rcv_wnd: u32,
    /// Bytes of memory that received data holds and may hold (`SO_MEMINFO`).
    pub rmem: (u32, u32),
    /// Bytes queued for sending, and the buffer.
    pub wmem: (u32, u32),
    /// `tcpi_busy_time` and what is part of it.
    pub chrono: super::Chrono,
    /// The sending half.
    pub send: SendInfo,
}

/// A state's number in Linux (`include/net/tcp_states.h`).
pub fn linux_state(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

impl<H> Conn<H> {
    /// What `TCP_INFO` tells at `now`.
    pub fn info_at(&self, cfg: &Config, now: Instant) -> TcpInfo {
        let mut info = self.info(cfg);
        info.chrono.spend(self.bound, now);
        info
    }

    /// What `TCP_INFO` tells; its times are those of the last run of output.
    pub fn info(&self, cfg: &Config) -> TcpInfo {
        let option = |flag, bit| if self.is(flag) { bit } else { 0u8 };
        TcpInfo {
            state: linux_state(self.state),
            options: option(ConnFlags::TS, 1)
                | option(ConnFlags::SACK, 2)
                | option(ConnFlags::WSCALE, 4)
                | if self.tx.ecn_ok() { 8 } else { 0 },
            snd_wscale: self.snd_wscale,
            rcv_wscale: self.win.scale,
            ato: self.ack.ato(),
            rcv_mss: u32::from(self.ack.rcv_mss),
            last_data_recv: self.ack.last_data,
            last_ack_recv: self.last_ack,
            path_mss: u32::from(self.path_mss),
            rcv_ssthresh: self.win.ssthresh,
            advmss: u32::from(self.win.advmss),
            rcv_rtt: self.win.rtt(),
            rcv_space: self.win.drs_space(),
            bytes_received: self.bytes_received,
            segs_out: self.segs_out,
            segs_in: self.segs_in,
            notsent_bytes: self.unsent(),
            data_segs_in: self.data_segs_in,
            data_segs_out: self.data_segs_out,
            rcv_ooopack: self.rcv_ooopack,
            snd_wnd: self.snd_wnd,
            rcv_wnd: self.win.wnd,
            rmem: (self.win.held, self.win.buf),
            wmem: (self.unacked(), self.sndbuf),
            chrono: self.chrono,
            send: self.tx.info(cfg),
        }
    }
}
