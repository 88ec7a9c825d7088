//! The rate at which a paced connection sends (Linux `tcp_update_pacing_rate`). Who paces, and
//! when, is the transmit path's: it stamps departure times.

use super::Sender;
use crate::Config;

impl Sender {
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
