//! The rate at which a paced connection sends (Linux `tcp_update_pacing_rate`), and how much of it
//! leaves in one run (`tcp_tso_autosize`). When a paced segment leaves is the transmit path's: it
//! stamps departure times.

use super::cwnd::INIT_CWND;
use super::{CaState, Sender};
use crate::{Config, Span};

/// A run is sent in 2⁻¹⁰ s, about a millisecond (Linux `sk_pacing_shift`).
const PACING_SHIFT: u32 = 10;

impl Sender {
    /// The most payload of one run, bytes: a millisecond at the rate at which the connection sends,
    /// more on short paths (`tcp_tso_rtt_log`), at least `tcp_min_tso_segs` segments, and at most
    /// `most` bytes.
    pub fn run_len(&self, cfg: &Config, most: u32) -> u32 {
        let paced = self.pacing_rate(cfg) >> PACING_SHIFT;
        let halvings = self.rtt.min().unwrap_or(Span::MAX).0 >> cfg.tcp_tso_rtt_log.min(31);
        let short = if halvings < u32::BITS { most >> halvings } else { 0 };
        let bytes = paced.saturating_add(u64::from(short)).min(u64::from(most)) as u32;
        let segments = (bytes / self.mss).max(cfg.tcp_min_tso_segs).max(1);
        segments.saturating_mul(self.mss).min(most.max(self.mss))
    }

    /// Bytes of the sender's that may wait before the device when `len` more come to wait there (Linux
    /// `tcp_small_queue_check`): two such runs, a millisecond of the rate, or a first window, so that a short
    /// flight is never divided; and twice as much of what is sent again. `None`: no limit, as for a sender
    /// with one packet in flight, or one that a time-out has send again: else no ACK would have it go on.
    pub fn queue_limit(&self, cfg: &Config, len: u32, again: bool) -> Option<u64> {
        if self.packets_out <= 1 || again && self.state == CaState::Loss {
            return None;
        }
        let first = u64::from(INIT_CWND) * u64::from(self.mss);
        let limit = (self.pacing_rate(cfg) >> PACING_SHIFT).max(2 * u64::from(len)).max(first);
        Some(limit.min(cfg.tcp_limit_output_bytes.into()) << u32::from(again))
    }

    /// Bytes a second: a window a round trip, times 200 % in the first half of slow start and
    /// 120 % after (`tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`). `u64::MAX`, no pacing, before
    /// the first RTT sample.
    pub fn pacing_rate(&self, cfg: &Config) -> u64 {
        let Some(srtt) = self.rtt.srtt() else { return u64::MAX };
        let window = u64::from(self.window.cwnd.max(self.packets_out)) * u64::from(self.mss);
        let ratio = if self.window.cwnd < self.window.ssthresh / 2 {
            cfg.tcp_pacing_ss_ratio
        } else {
            cfg.tcp_pacing_ca_ratio
        };
        window.saturating_mul(10_000).saturating_mul(u64::from(ratio)) / u64::from(srtt.0.max(1))
    }
}
