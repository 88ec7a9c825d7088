//! The congestion window that all algorithms share: initial window, slow start, avoidance, and
//! what idle or application-limited times do to it.
//!
//! RFC 6928 (initial window), RFC 5681 3.1, RFC 2861 in Linux's shape (`tcp_slow_start`,
//! `tcp_cong_avoid_ai`, `tcp_cwnd_validate`, `tcp_cwnd_restart`). Windows are packets.

use crate::{Instant, Seq, Span};

/// "min (10*MSS, max (2*MSS, 14600))" (RFC 6928 2), for an MSS of up to 1460 bytes.
pub(super) const INIT_CWND: u32 = 10;
/// No threshold yet.
pub(super) const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// A bound that arithmetic stays far below overflow under: 2²⁸ packets.
const MOST_CWND: u32 = 1 << 28;

#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    /// Packets acknowledged toward the next increase.
    pub(super) cnt: u32,
    /// Most packets out in the current window, if it was not limited by `cwnd`.
    max_packets_out: u32,
    /// Most packets out since `stamp`.
    used: u32,
    /// The current window ends here.
    usage_seq: Seq,
    /// The current window was limited by `cwnd`.
    limited: bool,
    /// The pause since the last packet has had its effect.
    pub(super) idle_checked: bool,
    /// When the window was last found full, or changed: milliseconds, modulo 2³².
    stamp: u32,
}

#[inline]
fn millis(at: Instant) -> u32 {
    (at.0 / 1000) as u32
}

impl Window {
    pub(super) fn new(nxt: Seq, now: Instant) -> Window {
        Window {
            cwnd: INIT_CWND,
            ssthresh: INFINITE_SSTHRESH,
            cnt: 0,
            max_packets_out: 0,
            used: 0,
            usage_seq: nxt,
            limited: false,
            idle_checked: false,
            stamp: millis(now),
        }
    }

    /// The window after the handshake.
    pub(super) fn begin(&mut self, syn_retransmitted: bool, nxt: Seq) {
        *self = Window { stamp: self.stamp, ..Window::new(nxt, Instant::default()) };
        if syn_retransmitted {
            self.cwnd = 1;
        }
    }

    #[inline]
    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Sets the window; it is never 0.
    pub(super) fn set(&mut self, cwnd: u32, now: Instant) {
        self.cwnd = cwnd.clamp(1, MOST_CWND);
        self.stamp = millis(now);
    }

    /// What is left of `acked` packets after slow start took its share.
    pub(super) fn slow_start(&mut self, acked: u32) -> u32 {
        let to = self.cwnd.saturating_add(acked).min(self.ssthresh).max(self.cwnd);
        let left = acked - (to - self.cwnd).min(acked);
        self.cwnd = to.min(MOST_CWND);
        left
    }

    /// One packet more for every `w` acknowledged.
    pub(super) fn avoid(&mut self, w: u32, acked: u32) {
        let w = w.max(1);
        // Credit from a time of a larger `w` is worth one packet at most.
        if self.cnt >= w {
            self.cnt = 0;
            self.cwnd += 1;
        }
        self.cnt = self.cnt.saturating_add(acked);
        if self.cnt >= w {
            let more = self.cnt / w;
            self.cnt -= more * w;
            self.cwnd = self.cwnd.saturating_add(more);
        }
        self.cwnd = self.cwnd.min(MOST_CWND);
    }

    /// Whether growth is earned: the window was full, or in slow start at least half used.
    pub(super) fn is_limited(&self) -> bool {
        self.limited || (self.in_slow_start() && u64::from(self.cwnd) < 2 * u64::from(self.max_packets_out))
    }

    /// Notes at the end of a run of output how far the window was used.
    /// `decay` is the threshold to remember if an unused part may shrink.
    pub(super) fn validate(
        &mut self,
        limited: bool,
        packets_out: u32,
        (una, nxt): (Seq, Seq),
        now: Instant,
        rto: Span,
        decay: Option<u32>,
    ) {
        if una.at_or_after(self.usage_seq) || limited || (!self.limited && packets_out > self.max_packets_out)
        {
            self.limited = limited;
            self.max_packets_out = packets_out;
            self.usage_seq = nxt;
        }
        if self.is_limited() {
            self.used = 0;
            self.stamp = millis(now);
            return;
        }
        self.used = self.used.max(packets_out);
        // "Not cwnd-limited for an RTO" (RFC 2861 3): the part that was not used halves.
        if let Some(ssthresh) = decay
            && millis(now).wrapping_sub(self.stamp) >= rto.as_millis()
        {
            let used = self.used.max(INIT_CWND);
            if used < self.cwnd {
                self.ssthresh = ssthresh;
                self.cwnd = (self.cwnd + used) >> 1;
            }
            self.used = 0;
            self.stamp = millis(now);
        }
    }

    /// After `idle` without anything in flight: a halving for each RTO (RFC 5681 4.1 asks for the
    /// restart window at once; Linux and RFC 2861 decay to it).
    pub(super) fn restart(&mut self, idle: Span, rto: Span, reduced_ssthresh: u32, now: Instant) {
        let restart = self.cwnd.min(INIT_CWND);
        self.ssthresh = reduced_ssthresh;
        let mut left = idle.0;
        while left > rto.0 && self.cwnd > restart {
            left -= rto.0.max(1);
            self.cwnd >>= 1;
        }
        self.cwnd = self.cwnd.max(restart);
        self.stamp = millis(now);
        self.used = 0;
    }

    /// The threshold to remember: three quarters of the window where that is more (Linux
    /// `tcp_current_ssthresh`), outside of a reduction.
    pub(super) fn current_ssthresh(&self, reducing: bool) -> u32 {
        if reducing { self.ssthresh } else { self.ssthresh.max((self.cwnd >> 1) + (self.cwnd >> 2)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(cwnd: u32, ssthresh: u32) -> Window {
        Window { cwnd, ssthresh, ..Window::new(Seq(0), Instant(0)) }
    }

    #[test]
    fn slow_start_stops_at_the_threshold() {
        let mut w = window(10, 14);
        assert_eq!((w.slow_start(3), w.cwnd), (0, 13));
        assert_eq!((w.slow_start(3), w.cwnd), (2, 14));
        let mut w = window(20, 14);
        assert_eq!((w.slow_start(3), w.cwnd), (3, 20));
    }

    #[test]
    fn avoidance_adds_one_a_window_and_takes_stretch_acks() {
        let mut w = window(10, 10);
        for _ in 0..9 {
            w.avoid(10, 1);
        }
        assert_eq!(w.cwnd, 10);
        w.avoid(10, 1);
        assert_eq!((w.cwnd, w.cnt), (11, 0));
        w.avoid(11, 35);
        assert_eq!((w.cwnd, w.cnt), (14, 2));
        // A smaller divisor than the credit gives one packet, not many.
        w.cnt = 100;
        w.avoid(2, 0);
        assert_eq!((w.cwnd, w.cnt), (15, 0));
    }

    #[test]
    fn growth_has_to_be_earned() {
        let mut w = window(10, INFINITE_SSTHRESH);
        let end = |w: &mut Window, limited, out| {
            w.validate(limited, out, (Seq(0), Seq(100)), Instant(0), Span(1), None);
        };
        end(&mut w, false, 5);
        assert!(!w.is_limited(), "cwnd 10 is not below 2 × 5");
        end(&mut w, false, 6);
        assert!(w.is_limited());
        w.ssthresh = 5;
        assert!(!w.is_limited(), "avoidance wants the window full");
        end(&mut w, true, 10);
        assert!(w.is_limited());
    }

    #[test]
    fn an_unused_part_halves_after_an_rto() {
        let mut w = window(40, 20);
        let rto = Span(200_000);
        w.validate(false, 3, (Seq(1), Seq(100)), Instant(199_999), rto, Some(30));
        assert_eq!((w.cwnd, w.ssthresh), (40, 20));
        w.validate(false, 4, (Seq(1), Seq(100)), Instant(200_000), rto, Some(30));
        assert_eq!((w.cwnd, w.ssthresh), (25, 30));
    }

    #[test]
    fn idle_time_halves_once_an_rto_down_to_the_restart_window() {
        let rto = Span(200_000);
        for (idle, want) in [(200_000, 100), (200_001, 50), (400_001, 25), (u32::MAX, 10)] {
            let mut w = window(100, 20);
            w.restart(Span(idle), rto, 75, Instant(0));
            assert_eq!((w.cwnd, w.ssthresh), (want, 75), "{idle}");
        }
        let mut w = window(4, 20);
        w.restart(Span::MAX, rto, 75, Instant(0));
        assert_eq!(w.cwnd, 4);
    }

    #[test]
    fn the_threshold_to_remember_is_at_least_three_quarters() {
        assert_eq!(window(10, 3).current_ssthresh(false), 7);
        assert_eq!(window(10, 8).current_ssthresh(false), 8);
        assert_eq!(window(10, 3).current_ssthresh(true), 3);
    }
}
