//! CUBIC (RFC 9438), in fixed point: windows are packets in Q16, times 1/1024 s.
//!
//! `C·t³` with C = 0.4 packets/s³ is `Δ³ / 40960` in Q16 packets with Δ in 1/1024 s, since
//! 0.4·2¹⁶/2³⁰ = 1/40960. Integers alone: results are the same on every machine.

use super::cubic_linux::LinuxCurve;
use super::hystart::{Hystart, Slow};
use super::{Cx, Growth};
use crate::send::cwnd::Window;
use crate::{Instant, Seq, Span};

/// 1/(0.4·2¹⁶/2³⁰): see above.
const INVERSE_C: u64 = 40_960;
/// Longest distance from K, 1/1024 s: its cube fits in 60 bits.
const MOST_TIME: u64 = 1 << 20;
/// α_cubic = 3·(1 − β)/(1 + β) = 9/17 (RFC 9438 4.3), Q16.
const ALPHA: u64 = (9 << 16) / 17;

/// How CUBIC behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CubicParams {
    /// The curve as Linux's `tcp_cubic.c` has it (RFC 8312's shape, in whole packets) instead of
    /// RFC 9438's: for scripts that assert Linux's windows.
    pub linux: bool,
    /// What ends slow start without loss.
    pub hystart: Hystart,
}

impl Default for CubicParams {
    fn default() -> Self {
        CubicParams { linux: false, hystart: Hystart::PlusPlus }
    }
}

impl CubicParams {
    /// All as in Linux.
    pub const LINUX: CubicParams = CubicParams { linux: true, hystart: Hystart::Linux };
}

/// A connection's CUBIC.
#[derive(Debug)]
pub(in crate::send) struct Cubic {
    slow: Slow,
    curve: Curve,
    /// The curve before the last congestion event, which an undo restores.
    saved: RfcCurve,
}

#[derive(Debug)]
enum Curve {
    Rfc(RfcCurve),
    Linux(LinuxCurve),
}

/// RFC 9438's variables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RfcCurve {
    /// `W_max`, Q16; 0 while unknown.
    w_max: u64,
    /// `W_est`, Q16.
    w_est: u64,
    /// The window's part below one packet, Q16.
    frac: u32,
    /// `cwnd_prior`, packets.
    cwnd_prior: u32,
    /// K, 1/1024 s.
    k: u32,
    /// The start of this congestion-avoidance stage.
    epoch: Option<Instant>,
    /// The last event was a time-out.
    timed_out: bool,
}

impl RfcCurve {
    /// 4.6, 4.7. The reduced window keeps its part below one packet: of a small window, as on a path
    /// of a short round trip, it is some percent.
    fn ssthresh(&mut self, cwnd: u32) -> u32 {
        let window = (u64::from(cwnd) << 16) + u64::from(self.frac);
        // Fast convergence: a flow that did not get back to its maximum gives way.
        self.w_max = if window < self.w_max { window * 17 / 20 } else { window };
        self.cwnd_prior = cwnd;
        self.epoch = None;
        self.timed_out = false;
        let reduced = (window * 7 / 10).max(2 << 16);
        self.frac = (reduced & 0xffff) as u32;
        (reduced >> 16) as u32
    }

    /// `W_cubic(t)` (4.2), Q16.
    fn at(&self, t: u64) -> u64 {
        let k = u64::from(self.k);
        let far = t.abs_diff(k).min(MOST_TIME);
        let delta = far * far * far / INVERSE_C;
        if t < k { self.w_max.saturating_sub(delta) } else { self.w_max + delta }
    }

    fn avoid(&mut self, window: &mut Window, growth: Growth) {
        // No ACK delivers more; the products below stay within 63 bits.
        let acked = u64::from(growth.acked.min(1 << 16));
        let mut cwnd = (u64::from(window.cwnd) << 16) + u64::from(self.frac);
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => {
                if self.timed_out || cwnd >= self.w_max {
                    // "W_max = cwnd, K = 0" (4.8, 4.10).
                    self.w_max = cwnd;
                    self.k = 0;
                } else {
                    // K = cbrt((W_max − cwnd_epoch)/C) (4.2).
                    self.k = cbrt((self.w_max - cwnd) * INVERSE_C).min(MOST_TIME) as u32;
                }
                self.timed_out = false;
                self.w_est = cwnd;
                self.epoch = Some(growth.now);
                growth.now
            }
        };
        let t = ticks(growth.now.since(epoch));
        let rtt = ticks(growth.srtt.unwrap_or(Span::ZERO));
        // 4.3: α is 1 once the window lost is won back.
        let alpha = if self.w_est >= u64::from(self.cwnd_prior) << 16 { 1 << 16 } else { ALPHA };
        self.w_est += ((alpha * acked) << 16) / cwnd;
        if self.at(t) < self.w_est {
            cwnd = cwnd.max(self.w_est);
        } else {
            // 4.4, 4.5: "target − cwnd over cwnd" for each packet.
            let target = self.at(t + rtt).clamp(cwnd, cwnd + cwnd / 2);
            cwnd += ((target - cwnd) * acked / (cwnd >> 16).max(1)).min(cwnd / 2);
        }
        window.cwnd = ((cwnd >> 16) as u32).min(1 << 28);
        self.frac = (cwnd & 0xffff) as u32;
    }
}

impl Cubic {
    pub(super) fn new(params: CubicParams) -> Cubic {
        let curve =
            if params.linux { Curve::Linux(LinuxCurve::default()) } else { Curve::Rfc(RfcCurve::default()) };
        Cubic { slow: Slow::new(params.hystart), curve, saved: RfcCurve::default() }
    }

    pub(super) fn ssthresh(&mut self, cwnd: u32) -> u32 {
        self.slow.end();
        match &mut self.curve {
            Curve::Rfc(curve) => {
                self.saved = *curve;
                curve.ssthresh(cwnd)
            }
            Curve::Linux(curve) => curve.ssthresh(cwnd),
        }
    }

    pub(super) fn slow_start(&mut self, window: &mut Window, acked: u32) -> u32 {
        window.slow_start(self.slow.growth(acked))
    }

    pub(super) fn avoid(&mut self, window: &mut Window, growth: Growth) {
        match &mut self.curve {
            Curve::Rfc(curve) => curve.avoid(window, growth),
            Curve::Linux(curve) => curve.avoid(window, growth),
        }
    }

    /// The least RTT so far.
    pub(super) fn seed(&mut self, least: Span) {
        self.slow.seed(least);
        if let Curve::Linux(curve) = &mut self.curve {
            curve.seed(least);
        }
    }

    pub(super) fn on_rtt(&mut self, cx: &mut Cx<'_>, window: &mut Window, rtt: Span, una: Seq, nxt: Seq) {
        if let Curve::Linux(curve) = &mut self.curve
            && !curve.on_rtt(rtt, cx.now)
        {
            return;
        }
        if window.in_slow_start() {
            self.slow.on_rtt(cx, window, rtt, una, nxt);
        }
    }

    /// "t … excludes periods during which cwnd has not been updated" for want of data (4.2).
    pub(super) fn on_idle(&mut self, idle: Span, now: Instant) {
        match &mut self.curve {
            Curve::Rfc(curve) => {
                if let Some(epoch) = &mut curve.epoch {
                    *epoch = (*epoch + idle).min(now);
                }
            }
            Curve::Linux(curve) => curve.on_idle(idle, now),
        }
    }

    pub(super) fn on_timeout(&mut self) {
        match &mut self.curve {
            Curve::Rfc(curve) => {
                curve.timed_out = true;
                curve.epoch = None;
            }
            Curve::Linux(curve) => {
                *curve = LinuxCurve::default();
                self.slow.restart();
            }
        }
    }

    /// 4.9: what the false event changed is as before; Linux restores the window alone.
    pub(super) fn on_undo(&mut self) {
        if let Curve::Rfc(curve) = &mut self.curve {
            *curve = self.saved;
        }
    }
}

/// Microseconds as 1/1024 s.
fn ticks(span: Span) -> u64 {
    u64::from(span.0) * 128 / 125_000
}

/// The integer cube root, by Newton's method from above.
pub(super) fn cbrt(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let bits = 64 - n.leading_zeros();
    let mut x = 1u64 << bits.div_ceil(3);
    loop {
        let next = (2 * x + n / (x * x)) / 3;
        if next >= x {
            return x;
        }
        x = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CWND_MAX: u32 = 100;

    /// A curve after the loss at 100 packets, and its window of 70.
    fn reduced() -> (RfcCurve, Window) {
        let mut curve = RfcCurve::default();
        let mut window = Window::new(Seq(0), Instant(0));
        window.cwnd = curve.ssthresh(CWND_MAX);
        window.ssthresh = window.cwnd;
        assert_eq!(window.cwnd, 70);
        (curve, window)
    }

    /// Runs `rtts` round trips, an ACK for each packet.
    fn run(curve: &mut RfcCurve, window: &mut Window, now: &mut u64, rtt_us: u64, rtts: u32) {
        for _ in 0..rtts {
            let cwnd = window.cwnd;
            for i in 0..u64::from(cwnd) {
                let now = Instant(*now + rtt_us * i / u64::from(cwnd));
                let growth = Growth { acked: 1, srtt: Some(Span(rtt_us as u32)), now };
                curve.avoid(window, growth);
            }
            *now += rtt_us;
        }
    }

    #[test]
    fn cube_roots_are_floors() {
        for n in (0..2000).chain([u64::MAX, 1 << 60, (1 << 60) - 1, 999_999_999_999]) {
            let root = cbrt(n);
            assert!(u128::from(root).pow(3) <= u128::from(n), "{n}");
            assert!(u128::from(root + 1).pow(3) > u128::from(n), "{n}");
        }
    }

    #[test]
    fn k_and_the_curve_are_those_of_the_formula() {
        let (mut curve, mut window) = reduced();
        curve.avoid(&mut window, Growth { acked: 1, srtt: None, now: Instant(0) });
        // K = cbrt(75) = 4.2172 s.
        assert!((4317..=4319).contains(&curve.k), "{}", curve.k);
        let packets = |t_ms: u64| (curve.at(t_ms * 1024 / 1000) * 10 + (1 << 15)) >> 16;
        assert_eq!((packets(0), packets(1000), packets(2000)), (700, 867, 956));
        // 0.4·(6 − 4.217)³ = 2.27.
        assert_eq!((packets(4217), packets(6000)), (1000, 1023));
    }

    #[test]
    fn at_100_ms_the_curve_governs_and_at_10_ms_reno() {
        let (mut curve, mut window) = reduced();
        let mut now = 0;
        run(&mut curve, &mut window, &mut now, 100_000, 10);
        // After 1 s W_est is 70 + 10·9/17 = 75.3; the curve is at W(1 s) and more.
        assert!((75..77).contains(&(curve.w_est >> 16)), "{}", curve.w_est >> 16);
        assert!((86..=88).contains(&window.cwnd), "{}", window.cwnd);

        let (mut curve, mut window) = reduced();
        let mut now = 0;
        run(&mut curve, &mut window, &mut now, 10_000, 56);
        assert!((98..=100).contains(&window.cwnd), "{}", window.cwnd);
        // Beyond the prior window α is 1: one packet a round trip.
        run(&mut curve, &mut window, &mut now, 10_000, 4);
        let at = window.cwnd;
        run(&mut curve, &mut window, &mut now, 10_000, 20);
        assert!((19..=21).contains(&(window.cwnd - at)), "{}", window.cwnd - at);
    }

    #[test]
    fn fast_convergence_gives_way() {
        let (mut curve, _) = reduced();
        assert_eq!(curve.ssthresh(80), 56);
        assert_eq!(curve.w_max >> 16, 68);
        assert_eq!(curve.ssthresh(90), 63);
        assert_eq!(curve.w_max >> 16, 90);
    }

    #[test]
    fn a_reduced_window_keeps_its_part_below_one_packet() {
        // 43.9 packets, of which 0.7 are 30.73.
        let mut curve = RfcCurve { frac: 0x1_0000 / 10 * 9, ..RfcCurve::default() };
        assert_eq!(curve.ssthresh(43), 30);
        assert_eq!((curve.frac * 100) >> 16, 72);
        // Two packets are the least, and no part of a third.
        let mut curve = RfcCurve { frac: 0x1_0000 / 10 * 8, ..RfcCurve::default() };
        assert_eq!((curve.ssthresh(2), curve.frac), (2, 0));
    }

    #[test]
    fn after_a_time_out_the_curve_starts_flat() {
        let mut cubic = Cubic::new(CubicParams::default());
        assert_eq!(cubic.ssthresh(100), 70);
        cubic.on_timeout();
        let mut window = Window::new(Seq(0), Instant(0));
        window.cwnd = 70;
        window.ssthresh = 70;
        cubic.avoid(&mut window, Growth { acked: 1, srtt: None, now: Instant(9) });
        let Curve::Rfc(curve) = &cubic.curve else { panic!() };
        assert_eq!((curve.k, curve.w_max >> 16), (0, 70));
    }

    #[test]
    fn an_undo_restores_the_curve_and_idle_time_moves_it() {
        let mut cubic = Cubic::new(CubicParams::default());
        let mut window = Window::new(Seq(0), Instant(0));
        cubic.ssthresh(100);
        window.cwnd = 70;
        cubic.avoid(&mut window, Growth { acked: 1, srtt: None, now: Instant(1000) });
        let Curve::Rfc(before) = cubic.curve else { panic!() };
        cubic.ssthresh(71);
        cubic.on_timeout();
        cubic.on_undo();
        let Curve::Rfc(after) = cubic.curve else { panic!() };
        assert_eq!(after, before);
        cubic.on_idle(Span(5_000_000), Instant(9_000_000));
        let Curve::Rfc(after) = cubic.curve else { panic!() };
        assert_eq!(after.epoch, Some(Instant(5_001_000)));
        cubic.on_idle(Span(50_000_000), Instant(9_000_000));
        let Curve::Rfc(after) = cubic.curve else { panic!() };
        assert_eq!(after.epoch, Some(Instant(9_000_000)));
    }

    #[test]
    fn growth_is_bounded_and_nothing_overflows() {
        let (mut curve, mut window) = reduced();
        curve.avoid(&mut window, Growth { acked: 1, srtt: None, now: Instant(0) });
        let far = Growth { acked: u32::MAX, srtt: Some(Span::MAX), now: Instant(u64::MAX / 2) };
        for _ in 0..100 {
            let before = window.cwnd;
            curve.avoid(&mut window, far);
            assert!(window.cwnd >= before);
        }
        assert!(window.cwnd <= 1 << 28);
    }

    #[test]
    fn a_round_trip_grows_the_window_by_half_at_most() {
        let (mut curve, mut window) = reduced();
        curve.avoid(&mut window, Growth { acked: 1, srtt: None, now: Instant(0) });
        curve.avoid(&mut window, Growth { acked: 70, srtt: None, now: Instant(60_000_000) });
        assert!((100..=106).contains(&window.cwnd), "{}", window.cwnd);
        for _ in 0..106 {
            curve.avoid(&mut window, Growth { acked: 1, srtt: None, now: Instant(60_000_000) });
        }
        assert!(window.cwnd <= 176, "{}", window.cwnd);
    }
}
