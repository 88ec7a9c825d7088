//! The end of slow start before loss: HyStart++ (RFC 9406), and Linux's HyStart.
//!
//! RFC 9406 4.3 bounds growth by L = 8 packets an ACK where nothing paces. Linux has no such
//! bound, and with GRO an ACK stands for up to 64 KB: none here either.

use crate::send::Cx;
use crate::send::cwnd::Window;
use crate::{Instant, Seq, Span};

/// "MIN_RTT_THRESH = 4 msec", "MAX_RTT_THRESH = 16 msec", "MIN_RTT_DIVISOR = 8" (RFC 9406 4.3).
const MIN_RTT_THRESH: u32 = 4000;
const MAX_RTT_THRESH: u32 = 16_000;
/// "N_RTT_SAMPLE = 8".
const N_RTT_SAMPLE: u32 = 8;
/// "CSS_GROWTH_DIVISOR = 4".
const CSS_GROWTH_DIVISOR: u32 = 4;
/// "CSS_ROUNDS = 5".
const CSS_ROUNDS: u8 = 5;
/// Linux: ACKs at most this far apart are a train, microseconds.
const ACK_DELTA: u32 = 2000;

/// What ends slow start before loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hystart {
    /// Nothing.
    Off,
    /// RFC 9406.
    PlusPlus,
    /// Linux's: trains of ACKs, and rising delay.
    Linux,
}

/// The state of slow start.
#[derive(Debug)]
pub(super) struct Slow {
    kind: Hystart,
    /// It ended, by loss or by what is here.
    done: bool,
    /// The round ends once this is acknowledged; `None` before the first.
    window_end: Option<Seq>,
    /// Least RTT of the round before, and of this one; `u32::MAX` is unknown.
    last_min: u32,
    current_min: u32,
    samples: u32,
    /// Conservative slow start: the RTT that it was entered with.
    css_baseline: Option<u32>,
    css_rounds: u8,
    /// Packets acknowledged toward a packet of growth.
    css_acked: u32,
    /// Least RTT at all (Linux).
    delay_min: u32,
    round_start: Instant,
    last_ack: Instant,
}

impl Slow {
    pub(super) fn new(kind: Hystart) -> Slow {
        Slow {
            kind,
            done: kind == Hystart::Off,
            window_end: None,
            last_min: u32::MAX,
            current_min: u32::MAX,
            samples: 0,
            css_baseline: None,
            css_rounds: 0,
            css_acked: 0,
            delay_min: u32::MAX,
            round_start: Instant::default(),
            last_ack: Instant::default(),
        }
    }

    /// "If any packet is lost or ECN … end" (4.2); it "SHOULD only be used for the initial slow
    /// start".
    pub(super) fn end(&mut self) {
        self.css_baseline = None;
        self.done |= self.kind == Hystart::PlusPlus;
    }

    /// Linux looks again in the slow start after a time-out.
    pub(super) fn restart(&mut self) {
        *self = Slow { delay_min: self.delay_min, ..Slow::new(self.kind) };
    }

    /// What `acked` packets are worth.
    pub(super) fn growth(&mut self, acked: u32) -> u32 {
        if self.css_baseline.is_none() {
            return acked;
        }
        self.css_acked = self.css_acked.saturating_add(acked);
        let worth = self.css_acked / CSS_GROWTH_DIVISOR;
        self.css_acked %= CSS_GROWTH_DIVISOR;
        worth
    }

    /// The least RTT so far.
    pub(super) fn seed(&mut self, least: Span) {
        self.delay_min = least.0;
    }

    /// A sample in slow start.
    pub(super) fn on_rtt(&mut self, cx: &mut Cx<'_>, window: &mut Window, rtt: Span, una: Seq, nxt: Seq) {
        if self.done {
            return;
        }
        self.delay_min = self.delay_min.min(rtt.0);
        match self.kind {
            Hystart::Off => {}
            Hystart::PlusPlus => self.plus_plus(cx, window, rtt.0, una, nxt),
            Hystart::Linux => self.linux(cx, window, rtt.0, una, nxt),
        }
    }

    fn new_round(&mut self, now: Instant, nxt: Seq) {
        self.window_end = Some(nxt);
        self.last_min = self.current_min;
        self.current_min = u32::MAX;
        self.samples = 0;
        self.round_start = now;
        self.last_ack = now;
    }

    /// RFC 9406 4.2.
    fn plus_plus(&mut self, cx: &mut Cx<'_>, window: &mut Window, rtt: u32, una: Seq, nxt: Seq) {
        if self.window_end.is_none_or(|end| una.at_or_after(end)) {
            self.new_round(cx.now, nxt);
            if self.css_baseline.is_some() {
                self.css_rounds += 1;
                if self.css_rounds >= CSS_ROUNDS {
                    self.found(cx, window);
                    return;
                }
            }
        }
        self.current_min = self.current_min.min(rtt);
        self.samples = self.samples.saturating_add(1);
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        match self.css_baseline {
            None if self.last_min != u32::MAX => {
                let thresh = (self.last_min / 8).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if self.current_min >= self.last_min.saturating_add(thresh) {
                    self.css_baseline = Some(self.current_min);
                    self.css_rounds = 0;
                }
            }
            Some(baseline) if self.current_min < baseline => {
                // A jitter, not a queue: slow start goes on.
                self.css_baseline = None;
            }
            _ => {}
        }
    }

    fn found(&mut self, cx: &mut Cx<'_>, window: &mut Window) {
        self.done = true;
        self.css_baseline = None;
        window.ssthresh = window.cwnd;
        cx.counters.tcp_hystart_delay_detect += 1;
        cx.counters.tcp_hystart_delay_cwnd += u64::from(window.cwnd);
    }

    fn linux(&mut self, cx: &mut Cx<'_>, window: &mut Window, rtt: u32, una: Seq, nxt: Seq) {
        if self.window_end.is_none_or(|end| una.after(end)) {
            self.new_round(cx.now, nxt);
        }
        if window.cwnd < super::LOW_WINDOW {
            return;
        }
        if cx.now.since(self.last_ack).0 <= ACK_DELTA {
            self.last_ack = cx.now;
            let full = self.delay_min;
            let limit = if cx.cfg.pacing { full } else { full / 2 };
            if cx.now.since(self.round_start).0 > limit {
                self.done = true;
                window.ssthresh = window.cwnd;
                cx.counters.tcp_hystart_train_detect += 1;
                cx.counters.tcp_hystart_train_cwnd += u64::from(window.cwnd);
            }
        }
        self.current_min = self.current_min.min(rtt);
        if self.samples < N_RTT_SAMPLE {
            self.samples += 1;
        } else if !self.done {
            let thresh = (self.delay_min / 8).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
            if self.current_min > self.delay_min.saturating_add(thresh) {
                self.found(cx, window);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::send::SendCounters;

    /// Rounds of slow start, each of `acks` ACKs with one RTT; returns the windows after each.
    fn rounds(kind: Hystart, rtts: &[u32]) -> (Vec<u32>, SendCounters, Window) {
        let cfg = Config::default();
        let mut counters = SendCounters::default();
        let mut slow = Slow::new(kind);
        let mut window = Window::new(Seq(0), Instant(0));
        window.cwnd = 16;
        let (mut una, mut now, mut out) = (0, 0u64, Vec::new());
        for &rtt in rtts {
            now += u64::from(rtt);
            let flight = window.cwnd;
            let end = una + flight;
            for i in 0..flight {
                una += 1;
                // ACKs 10 ms apart at first are no train.
                let mut cx = Cx { now: Instant(now + u64::from(i)), cfg: &cfg, counters: &mut counters };
                if window.in_slow_start() {
                    let nxt = Seq(end + i + 1);
                    slow.on_rtt(&mut cx, &mut window, Span(rtt), Seq(una), nxt);
                    let worth = slow.growth(1);
                    window.slow_start(worth);
                }
            }
            una = end;
            out.push(window.cwnd);
        }
        (out, counters, window)
    }

    #[test]
    fn steady_times_double_to_the_end() {
        let (windows, _, window) = rounds(Hystart::PlusPlus, &[40_000; 5]);
        assert_eq!(windows, [32, 64, 128, 256, 512]);
        assert!(window.in_slow_start());
    }

    #[test]
    fn a_rise_by_an_eighth_slows_growth_and_five_rounds_end_it() {
        let (windows, counters, window) =
            rounds(Hystart::PlusPlus, &[40_000, 40_000, 46_000, 46_000, 46_000, 46_000, 46_000, 46_000]);
        assert_eq!(windows[1], 64);
        // Seven packets grew by one each before the eighth sample; then by a quarter.
        assert!((75..=90).contains(&windows[2]), "{windows:?}");
        assert!(windows[3] < windows[2] * 13 / 10 && windows[3] > windows[2] * 12 / 10, "{windows:?}");
        assert!(!window.in_slow_start());
        assert_eq!(window.ssthresh, window.cwnd);
        assert_eq!(counters.tcp_hystart_delay_detect, 1);
        assert_eq!(counters.tcp_hystart_delay_cwnd, u64::from(window.cwnd));
    }

    #[test]
    fn a_rise_below_the_threshold_is_none_and_a_fall_is_a_false_alarm() {
        let (windows, ..) = rounds(Hystart::PlusPlus, &[40_000, 44_900, 44_900]);
        assert_eq!(windows, [32, 64, 128]);
        let (windows, counters, window) = rounds(Hystart::PlusPlus, &[40_000, 46_000, 40_000, 40_000]);
        assert!(windows[3] > windows[2] * 19 / 10, "{windows:?}");
        assert!(window.in_slow_start());
        assert_eq!(counters.tcp_hystart_delay_detect, 0);
    }

    #[test]
    fn thresholds_are_clamped_to_4_and_16_ms() {
        assert_eq!(rounds(Hystart::PlusPlus, &[1000, 4900]).0, [32, 64]);
        assert!(rounds(Hystart::PlusPlus, &[1000, 5000]).0[1] < 64);
        assert_eq!(rounds(Hystart::PlusPlus, &[400_000, 415_900]).0, [32, 64]);
        assert!(rounds(Hystart::PlusPlus, &[400_000, 416_000]).0[1] < 64);
    }

    #[test]
    fn a_loss_ends_it_for_good() {
        let mut slow = Slow::new(Hystart::PlusPlus);
        slow.css_baseline = Some(5);
        slow.end();
        assert!(slow.done);
        assert_eq!(slow.growth(7), 7);
    }

    #[test]
    fn linux_ends_by_delay_at_once_and_by_a_train() {
        let (_, counters, window) = rounds(Hystart::Linux, &[40_000, 46_000]);
        assert_eq!(window.ssthresh, window.cwnd);
        assert_eq!((counters.tcp_hystart_delay_detect, counters.tcp_hystart_train_detect), (1, 0));
        // With 20 µs of RTT, ACKs 1 µs apart are a train after 10 µs.
        let (_, counters, window) = rounds(Hystart::Linux, &[20]);
        assert_eq!((counters.tcp_hystart_train_detect, window.cwnd), (1, 27));
    }
}
