//! CUBIC as Linux computes it (`net/ipv4/tcp_cubic.c`): RFC 8312's shape in whole packets and
//! milliseconds, β = 717/1024. Scripts that assert Linux's windows need its roundings.

use super::Growth;
use super::cubic::cbrt;
use crate::send::cwnd::Window;
use crate::{Instant, Span};

/// β in 1/1024.
const BETA: u64 = 717;
/// C·2¹⁰·10, C being about 0.4.
const CUBE_RTT_SCALE: u64 = 410;
/// 8·(1024 + β)/(3·(1024 − β)): packets that Reno needs for an increase, in eighths of a window.
const BETA_SCALE: u64 = 8 * (1024 + BETA) / 3 / (1024 - BETA);

#[derive(Debug, Default)]
pub(super) struct LinuxCurve {
    /// Packets for one increase.
    cnt: u32,
    last_max_cwnd: u32,
    last_cwnd: u32,
    /// When `cnt` was computed, milliseconds.
    last_time: u64,
    origin: u32,
    /// 1/1024 s.
    k: u64,
    /// Milliseconds.
    epoch: Option<u64>,
    ack_cnt: u64,
    /// The window that Reno would have.
    tcp_cwnd: u32,
    /// Least RTT seen, microseconds; 0 before the first.
    delay_min: u32,
}

impl LinuxCurve {
    pub(super) fn ssthresh(&mut self, cwnd: u32) -> u32 {
        self.epoch = None;
        self.last_max_cwnd =
            if cwnd < self.last_max_cwnd { (u64::from(cwnd) * (1024 + BETA) / 2048) as u32 } else { cwnd };
        ((u64::from(cwnd) * BETA / 1024) as u32).max(2)
    }

    /// The least RTT so far.
    pub(super) fn seed(&mut self, least: Span) {
        self.delay_min = least.0;
    }

    /// Returns whether the sample may end slow start: not right after a recovery.
    pub(super) fn on_rtt(&mut self, rtt: Span, now: Instant) -> bool {
        if self.epoch.is_some_and(|epoch| now.0 / 1000 < epoch + 1000) {
            return false;
        }
        let rtt = rtt.0.max(1);
        if self.delay_min == 0 || rtt < self.delay_min {
            self.delay_min = rtt;
        }
        true
    }

    pub(super) fn on_idle(&mut self, idle: Span, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            *epoch = (*epoch + u64::from(idle.as_millis())).min(now.0 / 1000);
        }
    }

    pub(super) fn avoid(&mut self, window: &mut Window, growth: Growth) {
        self.update(window.cwnd, growth.acked, growth.now.0 / 1000);
        window.avoid(self.cnt, growth.acked);
    }

    fn update(&mut self, cwnd: u32, acked: u32, now: u64) {
        self.ack_cnt += u64::from(acked);
        if self.last_cwnd == cwnd && now.saturating_sub(self.last_time) <= 1000 / 32 {
            return;
        }
        if self.epoch.is_none() || now != self.last_time {
            self.curve(cwnd, acked, now);
        }
        // Friendliness: at least as fast as Reno.
        let per = (u64::from(cwnd) * BETA_SCALE) >> 3;
        if let Some(more) = self.ack_cnt.checked_div(per) {
            // "while (ack_cnt > delta)": a multiple leaves one delta over.
            let more = if more > 0 && self.ack_cnt.is_multiple_of(per) { more - 1 } else { more };
            self.ack_cnt -= more * per;
            self.tcp_cwnd = self.tcp_cwnd.saturating_add(more.min(u64::from(u32::MAX)) as u32);
        }
        if self.tcp_cwnd > cwnd {
            self.cnt = self.cnt.min(cwnd / (self.tcp_cwnd - cwnd));
        }
        // At most one packet for two acknowledged.
        self.cnt = self.cnt.max(2);
    }

    fn curve(&mut self, cwnd: u32, acked: u32, now: u64) {
        self.last_cwnd = cwnd;
        self.last_time = now;
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.ack_cnt = u64::from(acked);
            self.tcp_cwnd = cwnd;
            if self.last_max_cwnd <= cwnd {
                self.k = 0;
                self.origin = cwnd;
            } else {
                self.k = cbrt(((1 << 40) / CUBE_RTT_SCALE) * u64::from(self.last_max_cwnd - cwnd));
                self.origin = self.last_max_cwnd;
            }
            now
        });
        let t = (now.saturating_sub(epoch) + u64::from(self.delay_min.div_ceil(1000))) * 1024 / 1000;
        let far = t.abs_diff(self.k).min(1 << 17);
        let delta = ((CUBE_RTT_SCALE * far * far * far) >> 40) as u32;
        let target =
            if t < self.k { self.origin.saturating_sub(delta) } else { self.origin.saturating_add(delta) };
        self.cnt = if target > cwnd { cwnd / (target - cwnd) } else { cwnd.saturating_mul(100) };
        // While the maximum is unknown growth is 5 % a round trip at least.
        if self.last_max_cwnd == 0 {
            self.cnt = self.cnt.min(20);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seq;

    fn run(curve: &mut LinuxCurve, window: &mut Window, now_ms: &mut u64, rtt_ms: u64, rtts: u32) {
        for _ in 0..rtts {
            let cwnd = window.cwnd;
            for i in 0..u64::from(cwnd) {
                let now = Instant((*now_ms * 1000) + rtt_ms * 1000 * i / u64::from(cwnd));
                curve.avoid(window, Growth { acked: 1, srtt: None, now });
            }
            *now_ms += rtt_ms;
        }
    }

    #[test]
    fn the_reduction_is_717_of_1024() {
        let mut curve = LinuxCurve::default();
        assert_eq!((curve.ssthresh(10), curve.last_max_cwnd), (7, 10));
        assert_eq!((curve.ssthresh(7), curve.last_max_cwnd), (4, 5));
        assert_eq!((curve.ssthresh(1), curve.last_max_cwnd), (2, 0));
    }

    #[test]
    fn it_comes_back_to_the_maximum_in_k_and_passes_it() {
        let mut curve = LinuxCurve::default();
        let mut window = Window::new(Seq(0), Instant(0));
        window.cwnd = curve.ssthresh(100);
        window.ssthresh = window.cwnd;
        curve.on_rtt(Span(100_000), Instant(0));
        let mut now = 0;
        run(&mut curve, &mut window, &mut now, 100, 10);
        assert!((85..=89).contains(&window.cwnd), "{}", window.cwnd);
        assert!((4300..=4330).contains(&curve.k), "{}", curve.k);
        run(&mut curve, &mut window, &mut now, 100, 32);
        assert!((98..=101).contains(&window.cwnd), "{}", window.cwnd);
        run(&mut curve, &mut window, &mut now, 100, 60);
        assert!(window.cwnd > 140, "{}", window.cwnd);
    }

    #[test]
    fn with_the_maximum_unknown_it_grows_by_a_twentieth() {
        let mut curve = LinuxCurve::default();
        let mut window = Window::new(Seq(0), Instant(0));
        (window.cwnd, window.ssthresh) = (100, 100);
        let mut now = 0;
        run(&mut curve, &mut window, &mut now, 10, 1);
        assert_eq!(window.cwnd, 105);
    }

    #[test]
    fn nothing_overflows() {
        let mut curve = LinuxCurve::default();
        curve.ssthresh(1 << 28);
        let mut window = Window::new(Seq(0), Instant(0));
        for now in [0, 1, u64::MAX / 4, u64::MAX / 2] {
            curve.avoid(&mut window, Growth { acked: u32::MAX, srtt: None, now: Instant(now) });
        }
        assert!(window.cwnd <= 1 << 28);
    }

    #[test]
    fn at_a_short_rtt_it_is_as_fast_as_reno() {
        let mut curve = LinuxCurve::default();
        let mut window = Window::new(Seq(0), Instant(0));
        window.cwnd = curve.ssthresh(100);
        window.ssthresh = window.cwnd;
        let mut now = 0;
        run(&mut curve, &mut window, &mut now, 10, 40);
        // The curve alone would be near 78 after 0.4 s; Reno's share gives 9/17 a round trip.
        assert!((86..=93).contains(&window.cwnd), "{}", window.cwnd);
    }
}
