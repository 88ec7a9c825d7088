//! The sending half of a connection: what may be sent, what was lost, when to try again.
//!
//! [`Sender`] knows sequence numbers and times, no payload: its connection keeps the bytes, builds
//! the segments, and decides about Nagle, silly windows and corking. A run of output is
//!
//! ```text
//! while let Some(transmit) = sender.next(&mut cx, &limits) {
//!     // build and queue the segment; if the device is full: stop, nothing is recorded
//!     sender.on_sent(&mut cx, &transmit);
//! }
//! ```
//!
//! and follows every [`Sender::on_ack`], every [`Sender::on_time`] that asks for it, and every
//! write. One algorithm a file; constants and order of steps are those of Linux
//! (`net/ipv4/tcp_input.c`, `tcp_output.c`, `tcp_recovery.c`, `tcp_timer.c`), which decide where
//! RFCs leave a choice.
//!
//! Invariants, asserted by `check` in tests after every step: `una ≤` every record's numbers
//! `< nxt`; `sacked + lost ≤ packets_out`; no SACKed packet is lost; the counts are those of the
//! tags; while something is in flight a timer is armed.

mod ack;
mod cc;
mod check;
mod cold;
mod counters;
mod cwnd;
mod defer;
mod icmp;
mod local;
mod output;
mod pacing;
mod prr;
mod rack;
mod rate;
mod recovery;
mod reneging;
mod reno;
mod ring;
mod rtt;
mod scoreboard;
mod timers;
mod tlp;
mod undo;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub use ack::{AckInput, AckOutcome};
pub use cc::{CubicParams, Hystart};
pub use counters::SendCounters;
pub use output::{Kind, Limits, Transmit};
pub use timers::Fired;

use crate::config::CongestionControl;
use crate::{Config, Instant, Seq, Span};

/// What every entry is given: the time, the knobs, and the counters to count in.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The host's clock: for an ACK, its arrival.
    pub now: Instant,
    /// Knobs.
    pub cfg: &'a Config,
    /// Counters of the owner of the connection.
    pub counters: &'a mut SendCounters,
}

/// States of loss recovery, numbered as in `tcpi_ca_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum CaState {
    /// Nothing dubious.
    #[default]
    Open,
    /// SACKs or duplicate ACKs, no loss yet.
    Disorder,
    /// The window shrinks by ECN or a probe, without loss to repair.
    Cwr,
    /// Fast recovery.
    Recovery,
    /// Recovery from a time-out.
    Loss,
}

/// The one timer of the sending half, as `icsk_pending` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Timer {
    /// None is armed.
    #[default]
    Idle,
    /// Retransmission.
    Rto,
    /// Tail-loss probe.
    Tlp,
    /// The reordering window of RACK.
    Reo,
    /// The window probe.
    Persist,
}

/// What a connection is created with.
#[derive(Clone, Copy, Debug)]
pub struct SenderInit {
    /// The first number to be sent: ISS, or ISS + 1 where a request has sent the SYN-ACK.
    pub nxt: Seq,
    /// Payload of a full segment, bytes.
    pub mss: u16,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// How CUBIC behaves.
    pub cubic: CubicParams,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    una: Seq,
    nxt: Seq,
    mss: u32,
    packets_out: u32,
    sacked_out: u32,
    lost_out: u32,
    retrans_out: u32,
    high_seq: Seq,
    window: cwnd::Window,
    timer_at: Instant,
    timer: Timer,
    state: CaState,
    /// Doublings of RTO.
    backoff: u8,
    /// Time-outs since the last ACK of new data.
    retransmits: u8,
    /// Window probes without an answer.
    probes_out: u8,
    /// The peer permits SACK.
    sack_ok: bool,
    /// ECN was agreed.
    ecn_ok: bool,
    /// CWR goes out with the next new data.
    cwr_pending: bool,
    /// A tail-loss probe is due.
    tlp_due: bool,
    /// The probe that is out was a retransmission.
    tlp_retrans: bool,
    /// Something was sent since the run began.
    sent_in_run: bool,
    /// F-RTO runs.
    frto: bool,
    /// F-RTO sends new data before anything is retransmitted.
    frto_new: bool,
    /// A tail-loss probe is out.
    tlp_out: bool,
    /// SND.NXT after that probe.
    tlp_high_seq: Seq,
    rtt: rtt::Rtt,
    rate: rate::Rate,
    /// When data was last sent.
    last_send: Instant,
    bytes_acked: u64,
    ring: ring::Ring,
    cc: cc::Cc,
    cold: Option<Box<cold::Cold>>,
}

/// The sending half's part of `TCP_INFO`. Packets where no unit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SendInfo {
    /// `TCP_CONGESTION`.
    pub congestion: CongestionControl,
    /// `tcpi_ca_state`.
    pub ca_state: CaState,
    /// `tcpi_retransmits`: time-outs since the last ACK of new data.
    pub retransmits: u8,
    /// `tcpi_probes`: window probes without an answer.
    pub probes: u8,
    /// `tcpi_backoff`.
    pub backoff: u8,
    /// `tcpi_rto`, backed off.
    pub rto: Span,
    /// `tcpi_snd_mss`, bytes.
    pub snd_mss: u32,
    /// `tcpi_unacked`.
    pub unacked: u32,
    /// `tcpi_sacked`.
    pub sacked: u32,
    /// `tcpi_lost`.
    pub lost: u32,
    /// `tcpi_retrans`.
    pub retrans: u32,
    /// `tcpi_last_data_sent`: when.
    pub last_data_sent: Instant,
    /// `tcpi_rtt`; zero before the first sample.
    pub rtt: Span,
    /// `tcpi_rttvar`.
    pub rttvar: Span,
    /// `tcpi_min_rtt`; [`Span::MAX`] before the first sample.
    pub min_rtt: Span,
    /// `tcpi_snd_ssthresh`; `0x7fffffff` is none.
    pub snd_ssthresh: u32,
    /// `tcpi_snd_cwnd`.
    pub snd_cwnd: u32,
    /// `tcpi_reordering`.
    pub reordering: u32,
    /// `tcpi_total_retrans`.
    pub total_retrans: u32,
    /// `tcpi_bytes_acked`.
    pub bytes_acked: u64,
    /// `tcpi_bytes_retrans`.
    pub bytes_retrans: u64,
    /// `tcpi_bytes_sent`, retransmissions included.
    pub bytes_sent: u64,
    /// `tcpi_delivered`.
    pub delivered: u32,
    /// `tcpi_delivered_ce`.
    pub delivered_ce: u32,
    /// `tcpi_dsack_dups`.
    pub dsack_dups: u32,
    /// `tcpi_reord_seen`.
    pub reord_seen: u32,
    /// `tcpi_total_rto`.
    pub total_rto: u32,
    /// `tcpi_pacing_rate`, bytes a second; `u64::MAX` before the first sample.
    pub pacing_rate: u64,
    /// `tcpi_delivery_rate`, bytes a second; 0 before the first sample.
    pub delivery_rate: u64,
    /// `tcpi_delivery_rate_app_limited`.
    pub delivery_rate_app_limited: bool,
}

impl Sender {
    /// A sender that has sent nothing.
    pub fn new(init: &SenderInit, now: Instant) -> Sender {
        Sender {
            una: init.nxt,
            nxt: init.nxt,
            mss: u32::from(init.mss.max(1)),
            packets_out: 0,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            high_seq: init.nxt,
            window: cwnd::Window::new(init.nxt, now),
            timer_at: Instant::NEVER,
            timer: Timer::Idle,
            state: CaState::Open,
            backoff: 0,
            retransmits: 0,
            probes_out: 0,
            sack_ok: false,
            ecn_ok: false,
            cwr_pending: false,
            tlp_due: false,
            tlp_retrans: false,
            sent_in_run: false,
            frto: false,
            frto_new: false,
            tlp_out: false,
            tlp_high_seq: init.nxt,
            rtt: rtt::Rtt::new(init.nxt),
            rate: rate::Rate::default(),
            last_send: now,
            bytes_acked: 0,
            ring: ring::Ring::default(),
            cc: cc::Cc::new(init.congestion, init.cubic),
            cold: None,
        }
    }

    /// The handshake is done: what it agreed on. `syn_retransmitted`: the SYN or SYN-ACK was sent
    /// more than once, and not because of a time-out that proved spurious, which makes the initial
    /// window one packet (RFC 5681 3.1; Linux `tcp_init_transfer`).
    pub fn on_established(&mut self, mss: u16, sack_ok: bool, ecn_ok: bool, syn_retransmitted: bool) {
        self.mss = u32::from(mss.max(1));
        self.sack_ok = sack_ok;
        self.ecn_ok = ecn_ok;
        self.window.begin(syn_retransmitted, self.nxt);
        self.state = CaState::Open;
        self.high_seq = self.nxt;
        self.frto = false;
        self.frto_new = false;
        if let Some(cold) = &mut self.cold {
            cold.undo_marker = None;
            cold.retrans_stamp = None;
        }
    }

    /// A round trip measured before this sender existed: SYN-ACK to its ACK.
    pub fn seed_rtt(&mut self, cx: &Cx<'_>, rtt: Span) {
        self.rtt.sample_min(rtt, cx.now, cx.cfg);
        self.rtt.sample(rtt, self.una, self.nxt, cx.cfg);
    }

    /// RTO before the first sample: 3 s where a SYN was retransmitted (RFC 6298 5.7).
    pub fn set_initial_rto(&mut self, rto: Span) {
        self.rtt.set_initial_rto(rto);
    }

    /// Another congestion control takes over, without a memory; window and threshold stay (Linux
    /// `tcp_reinit_congestion_control`).
    pub fn set_congestion(&mut self, congestion: CongestionControl, cubic: CubicParams) {
        if self.cc.kind() != congestion {
            self.cc = cc::Cc::new(congestion, cubic);
        }
    }

    /// SND.UNA.
    #[inline]
    pub fn una(&self) -> Seq {
        self.una
    }

    /// SND.NXT.
    #[inline]
    pub fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Payload of a full segment, bytes.
    #[inline]
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// Packets sent and not acknowledged.
    #[inline]
    pub fn packets_out(&self) -> u32 {
        self.packets_out
    }

    /// Packets believed in the network (RFC 6675's pipe): sent, neither SACKed nor lost, and
    /// copies of lost ones.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        (self.packets_out + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }

    /// The congestion window, packets.
    #[inline]
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// Packets that the congestion window lets through now.
    #[inline]
    pub fn allowance(&self) -> u32 {
        self.window.cwnd.saturating_sub(self.in_flight())
    }

    /// The state of loss recovery.
    #[inline]
    pub fn ca_state(&self) -> CaState {
        self.state
    }

    /// Whether the sender wants new data at once, whole segment or not: F-RTO or a probe decides
    /// by it. Nagle's rule has to wait.
    #[inline]
    pub fn wants_new_data(&self) -> bool {
        self.frto_new || self.tlp_due
    }

    /// Whether ECN was agreed.
    #[inline]
    pub fn ecn_ok(&self) -> bool {
        self.ecn_ok
    }

    /// Whether the peer permits SACK.
    #[inline]
    pub fn sack_ok(&self) -> bool {
        self.sack_ok
    }

    /// Time-outs since the last ACK of new data: with [`first_retransmit`](Self::first_retransmit)
    /// what a connection gives up by.
    #[inline]
    pub fn retransmits(&self) -> u8 {
        self.retransmits
    }

    /// Window probes without an answer.
    #[inline]
    pub fn probes_out(&self) -> u8 {
        self.probes_out
    }

    /// Bytes acknowledged in all.
    #[inline]
    pub fn bytes_acked(&self) -> u64 {
        self.bytes_acked
    }

    /// Doublings of RTO or of the persist interval.
    #[inline]
    pub fn backoff(&self) -> u8 {
        self.backoff
    }

    /// The smoothed RTT, once there was a sample.
    #[inline]
    pub fn srtt(&self) -> Option<Span> {
        self.rtt.srtt()
    }

    /// The least RTT of `tcp_min_rtt_wlen`, once there was a sample.
    #[inline]
    pub fn min_rtt(&self) -> Option<Span> {
        self.rtt.min()
    }

    /// RTO, backed off.
    #[inline]
    pub fn rto(&self, cfg: &Config) -> Span {
        self.rtt.rto().doubled(u32::from(self.backoff)).min(rtt::rto_max(cfg))
    }

    /// When data was last sent.
    #[inline]
    pub fn last_send(&self) -> Instant {
        self.last_send
    }

    /// When the oldest packet in flight was last sent.
    pub fn head_sent(&self) -> Option<Instant> {
        self.ring.front().map(|head| head.xmit)
    }

    /// When retransmission of the present window began: the start of `retries2` and of the user
    /// time-out.
    pub fn first_retransmit(&self) -> Option<Instant> {
        self.cold.as_ref().and_then(|cold| cold.retrans_began)
    }

    /// Frees memory that an idle connection keeps for its next flight (256 B).
    pub fn release_memory(&mut self) {
        self.ring.release();
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        let cold = self.cold.as_ref().map_or(0, |cold| size_of::<cold::Cold>() + cold.memory());
        self.ring.memory() + self.cc.memory() + cold
    }

    /// The sending half of `TCP_INFO`.
    pub fn info(&self, cfg: &Config) -> SendInfo {
        let cold = self.cold.as_deref();
        let bytes_retrans = cold.map_or(0, |cold| cold.bytes_retrans);
        SendInfo {
            congestion: self.cc.kind(),
            ca_state: self.state,
            retransmits: self.retransmits,
            probes: self.probes_out,
            backoff: self.backoff,
            rto: self.rto(cfg),
            snd_mss: self.mss,
            unacked: self.packets_out,
            sacked: self.sacked_out,
            lost: self.lost_out,
            retrans: self.retrans_out,
            last_data_sent: self.last_send,
            rtt: self.rtt.srtt().unwrap_or(Span::ZERO),
            rttvar: self.rtt.mdev(),
            min_rtt: self.rtt.min().unwrap_or(Span::MAX),
            snd_ssthresh: self.window.ssthresh,
            snd_cwnd: self.window.cwnd,
            reordering: self.reordering(cfg),
            total_retrans: cold.map_or(0, |cold| cold.total_retrans),
            bytes_acked: self.bytes_acked,
            bytes_retrans,
            bytes_sent: self.bytes_acked + u64::from(self.nxt - self.una) + bytes_retrans,
            delivered: self.rate.delivered,
            delivered_ce: self.rate.delivered_ce,
            dsack_dups: cold.map_or(0, |cold| cold.dsack_dups),
            reord_seen: cold.map_or(0, |cold| cold.reord_seen),
            total_rto: cold.map_or(0, |cold| cold.total_rto),
            pacing_rate: self.pacing_rate(cfg),
            delivery_rate: self.rate.bytes_per_second(self.mss),
            delivery_rate_app_limited: self.rate.is_app_limited(),
        }
    }
}

/// The clock of TSval: milliseconds, modulo 2³² (RFC 7323 5.4), before the connection's offset.
#[inline]
pub fn ts_clock(at: Instant) -> u32 {
    (at.0 / 1000) as u32
}
