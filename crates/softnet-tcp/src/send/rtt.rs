//! Round-trip time and retransmission time-out (RFC 6298, in Linux's form; RFC 7323 4.3).
//!
//! Linux (`net/ipv4/tcp_input.c`, `tcp_rtt_estimator`) keeps 8·SRTT and 4·mdev in microseconds,
//! lets a falling RTT raise the deviation by an eighth only, and takes as RTTVAR the greatest
//! deviation of a round trip, at least `rto_min`. So RTO ≥ SRTT + `rto_min` always, where RFC 6298
//! 2.4 rounds the sum up to one second.

use crate::{Config, Instant, Seq, Span};

/// RTO before the first sample (RFC 6298 2.1), microseconds.
pub(crate) const TIMEOUT_INIT: Span = Span(1_000_000);

/// The estimator of a connection. All times in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rtt {
    /// Eight times the smoothed RTT; 0 before the first sample.
    srtt8: u32,
    /// Four times the mean deviation.
    mdev4: u32,
    /// Greatest `mdev4` of this round trip.
    mdev_max: u32,
    /// What is added to SRTT: four times RFC 6298's RTTVAR.
    rttvar: u32,
    /// `SND.NXT` when this round trip began.
    rtt_seq: Seq,
    /// RTO without backoff.
    rto: Span,
    min: MinRtt,
}

impl Rtt {
    pub(super) fn new(iss: Seq) -> Rtt {
        Rtt {
            srtt8: 0,
            mdev4: 0,
            mdev_max: 0,
            rttvar: 0,
            rtt_seq: iss,
            rto: TIMEOUT_INIT,
            min: MinRtt::default(),
        }
    }

    /// Takes a sample in: [`min`](Self::min) by [`MinRtt`], and SRTT, RTTVAR and RTO.
    pub(super) fn sample(&mut self, rtt: Span, una: Seq, nxt: Seq, cfg: &Config) {
        // 30 bits hold eight times 134 s: more than the longest RTO.
        let rtt = rtt.0.clamp(1, 1 << 27);
        let rto_min = cfg.tcp_rto_min_us.min(1 << 28);
        if self.srtt8 == 0 {
            self.srtt8 = rtt << 3;
            self.mdev4 = rtt << 1;
            self.rttvar = self.mdev4.max(rto_min);
            self.mdev_max = self.rttvar;
            self.rtt_seq = nxt;
        } else {
            let err = rtt as i32 - (self.srtt8 >> 3) as i32;
            self.srtt8 = self.srtt8.saturating_add_signed(err);
            let mut more = err.abs() - (self.mdev4 >> 2) as i32;
            if err < 0 && more > 0 {
                // "A falling RTT": Linux's guard against a variance that rises when RTT drops.
                more >>= 3;
            }
            self.mdev4 = self.mdev4.saturating_add_signed(more);
            if self.mdev4 > self.mdev_max {
                self.mdev_max = self.mdev4;
                self.rttvar = self.rttvar.max(self.mdev_max);
            }
            if una.after(self.rtt_seq) {
                if self.mdev_max < self.rttvar {
                    self.rttvar -= (self.rttvar - self.mdev_max) >> 2;
                }
                self.rtt_seq = nxt;
                self.mdev_max = rto_min;
            }
        }
        self.srtt8 = self.srtt8.max(1);
        self.rto = Span((self.srtt8 >> 3).saturating_add(self.rttvar)).min(rto_max(cfg));
    }

    /// Takes a sample into the minimum.
    pub(super) fn sample_min(&mut self, rtt: Span, now: Instant, cfg: &Config) {
        self.min.sample(rtt.0.max(1), now, cfg.tcp_min_rtt_wlen);
    }

    /// The smoothed RTT; `None` before the first sample.
    pub(super) fn srtt(&self) -> Option<Span> {
        (self.srtt8 != 0).then_some(Span(self.srtt8 >> 3))
    }

    /// Linux's `tcpi_rttvar`: the mean deviation.
    pub(super) fn mdev(&self) -> Span {
        Span(self.mdev4 >> 2)
    }

    /// The least RTT of the last `tcp_min_rtt_wlen` seconds; `None` before the first sample.
    pub(super) fn min(&self) -> Option<Span> {
        self.min.get().map(Span)
    }

    /// RTO without backoff.
    pub(super) fn rto(&self) -> Span {
        self.rto
    }

    /// The time-out before any sample; RFC 6298 5.7 asks for 3 s where a SYN was retransmitted.
    pub(super) fn set_initial_rto(&mut self, rto: Span) {
        if self.srtt8 == 0 {
            self.rto = rto;
        }
    }
}

/// The bound of RTO (RFC 6298 2.5), backed off or not.
#[inline]
pub(super) fn rto_max(cfg: &Config) -> Span {
    Span::from_millis(cfg.tcp_rto_max_ms.clamp(1000, 120_000))
}

/// The minimum of the last window, kept as that of two halves: a sample stays for at least half
/// the window and at most all of it.
#[derive(Debug, Clone, Copy, Default)]
struct MinRtt {
    /// Least of the current half; 0 if there is none.
    now: u32,
    /// Least of the half before.
    before: u32,
    /// When the current half began, in milliseconds modulo 2³².
    since: u32,
}

impl MinRtt {
    fn sample(&mut self, rtt: u32, now: Instant, wlen_s: u32) {
        let millis = (now.0 / 1000) as u32;
        let half = wlen_s.saturating_mul(500);
        let age = millis.wrapping_sub(self.since);
        if self.now == 0 {
            *self = MinRtt { now: rtt, before: 0, since: millis };
        } else if age > half {
            self.before = if age > half.saturating_mul(2) { 0 } else { self.now };
            self.now = rtt;
            self.since = millis;
        } else {
            self.now = self.now.min(rtt);
        }
    }

    fn get(&self) -> Option<u32> {
        let least = if self.before != 0 { self.now.min(self.before) } else { self.now };
        (least != 0).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: &[u32]) -> Rtt {
        let cfg = Config::default();
        let mut rtt = Rtt::new(Seq(0));
        for (i, &sample) in samples.iter().enumerate() {
            // Each sample in a round trip of its own.
            rtt.sample(Span(sample), Seq(i as u32 * 10), Seq(i as u32 * 10 + 5), &cfg);
        }
        rtt
    }

    #[test]
    fn the_first_sample_gives_three_times_or_plus_200_ms() {
        assert_eq!(after(&[]).rto(), Span(1_000_000));
        assert_eq!(after(&[300_000]).rto(), Span(900_000));
        assert_eq!(after(&[10_000]).rto(), Span(210_000));
        assert_eq!(after(&[10_000]).mdev(), Span(5_000));
    }

    #[test]
    fn steady_times_tend_to_srtt_plus_200_ms() {
        assert_eq!(after(&[10_000; 100]).rto(), Span(210_000));
        let slow = after(&[1_000_000; 100]).rto();
        assert!((1_200_000..1_200_010).contains(&slow.0), "{slow:?}");
    }

    #[test]
    fn a_falling_time_raises_the_deviation_by_an_eighth_only() {
        // Steady 1 s, then one sample 0.8 s away, upward and downward.
        let steady = [1_000_000; 60];
        let up = after(&[&steady[..], &[1_800_000]].concat());
        let down = after(&[&steady[..], &[200_000]].concat());
        assert!(up.mdev().0 >= 200_000, "{up:?}");
        assert!((24_000..27_000).contains(&down.mdev().0), "{down:?}");
        assert_eq!(up.srtt(), Some(Span(1_100_000)));
        assert_eq!(down.srtt(), Some(Span(900_000)));
    }

    #[test]
    fn the_variance_decays_once_a_round_trip() {
        let cfg = Config::default();
        let mut rtt = after(&[400_000]);
        assert_eq!(rtt.rttvar, 800_000);
        // Samples within the first round trip (una ≤ rtt_seq) leave RTTVAR alone.
        for _ in 0..20 {
            rtt.sample(Span(400_000), Seq(5), Seq(50), &cfg);
        }
        assert_eq!(rtt.rttvar, 800_000);
        // `mdev_max` was still the first sample's: it falls one round trip later.
        rtt.sample(Span(400_000), Seq(6), Seq(60), &cfg);
        assert_eq!((rtt.rttvar, rtt.mdev_max), (800_000, 200_000));
        rtt.sample(Span(400_000), Seq(61), Seq(70), &cfg);
        assert_eq!(rtt.rttvar, 650_000);
    }

    #[test]
    fn rto_is_bounded_and_nothing_overflows() {
        assert_eq!(after(&[u32::MAX; 5]).rto(), Span(120_000_000));
        assert_eq!(after(&[0]).srtt(), Some(Span(1)));
        let cfg = Config { tcp_rto_max_ms: 5000, ..Config::default() };
        let mut rtt = Rtt::new(Seq(0));
        rtt.sample(Span(4_000_000), Seq(0), Seq(1), &cfg);
        assert_eq!(rtt.rto(), Span(5_000_000));
    }

    #[test]
    fn the_minimum_leaves_after_its_window() {
        let cfg = Config::default();
        let mut rtt = Rtt::new(Seq(0));
        assert_eq!(rtt.min(), None);
        let at = |s: u64| Instant(s * 1_000_000);
        rtt.sample_min(Span(50), at(0), &cfg);
        rtt.sample_min(Span(80), at(100), &cfg);
        assert_eq!(rtt.min(), Some(Span(50)));
        rtt.sample_min(Span(90), at(160), &cfg);
        assert_eq!(rtt.min(), Some(Span(50)));
        rtt.sample_min(Span(95), at(320), &cfg);
        assert_eq!(rtt.min(), Some(Span(90)));
        rtt.sample_min(Span(99), at(3200), &cfg);
        assert_eq!(rtt.min(), Some(Span(99)));
        rtt.sample_min(Span::ZERO, at(3201), &cfg);
        assert_eq!(rtt.min(), Some(Span(1)));
    }
}
