//! The one timer: retransmission (RFC 6298 5), tail-loss probe, reordering window, window probe.
//!
//! As in Linux (`icsk_pending`) one of them is armed at a time. The owner keeps its own timer at
//! or before [`Sender::deadline`], and may fire early or late: a firing before the deadline does
//! nothing.

use super::{Cx, Sender, Timer, rtt};
use crate::{Config, Instant, Span};

/// What the timer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// Nothing was due.
    Nothing,
    /// Retransmission time-out: a run of output sends the head.
    Rto,
    /// A run of output may have something to send: a tail-loss probe, or packets found lost.
    Output,
    /// The connection sends a window probe.
    Persist,
}

/// How long after a packet that the device refused another try is made (Linux
/// `TCP_RESOURCE_PROBE_INTERVAL`).
const RESOURCE_PROBE_INTERVAL: Span = Span(500_000);

impl Sender {
    /// When [`on_time`](Self::on_time) is due; [`Instant::NEVER`] if it is not.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.timer_at
    }

    /// What [`on_time`](Self::on_time) would do at `now`: a connection that has had enough
    /// time-outs ends instead.
    #[inline]
    pub fn due(&self, now: Instant) -> Fired {
        if now < self.timer_at {
            return Fired::Nothing;
        }
        match self.timer {
            Timer::Idle => Fired::Nothing,
            Timer::Rto => Fired::Rto,
            Timer::Tlp | Timer::Reo => Fired::Output,
            Timer::Persist => Fired::Persist,
        }
    }

    /// Time passed. `zero_window`: the peer took its window back, so that a time-out is a probe,
    /// and does not count toward giving up.
    pub fn on_time(&mut self, cx: &mut Cx<'_>, zero_window: bool) -> Fired {
        let fired = self.due(cx.now);
        if fired != Fired::Nothing {
            match std::mem::take(&mut self.timer) {
                Timer::Rto => self.on_rto(cx, zero_window),
                Timer::Tlp => self.on_probe_timer(cx),
                Timer::Reo => self.on_reo_timer(cx),
                Timer::Persist => self.on_persist_timer(cx),
                Timer::Idle => {}
            }
        }
        fired
    }

    fn on_rto(&mut self, cx: &mut Cx<'_>, zero_window: bool) {
        if self.ring.is_empty() {
            self.stop_timer();
            return;
        }
        let syn = self.ring.front().is_some_and(|head| head.is(super::ring::SYN));
        cx.counters.tcp_timeouts += 1;
        if self.retransmits == 0 {
            self.count_failure(cx);
        }
        self.enter_loss(cx);
        if !zero_window {
            self.retransmits = self.retransmits.saturating_add(1);
        }
        let cold = self.cold();
        cold.total_rto = cold.total_rto.wrapping_add(1);
        cold.retrans_began.get_or_insert(cx.now);
        // RFC 6298 5.5 doubles; SYNs, and thin streams where asked, do not at first.
        let linear = if syn {
            self.retransmits <= cx.cfg.tcp_syn_linear_timeouts
        } else {
            cx.cfg.tcp_thin_linear_timeouts
                && self.packets_out < 4
                && !self.window_is_initial()
                && self.retransmits <= 6
        };
        if linear {
            self.backoff = 0;
        } else {
            self.backoff = (self.backoff + 1).min(32);
        }
        self.arm(Timer::Rto, cx.now + self.rto(cx.cfg));
    }

    /// The device refused what [`next`](Self::next) or [`force_new`](Self::force_new) gave: no
    /// backoff, another try in half a second.
    pub fn on_tx_refused(&mut self, cx: &Cx<'_>) {
        if self.ring.is_empty() {
            // Nothing is in flight whose time-out would try again: the probe does, which counts as
            // one though it is not sent, and does not back off (Linux `tcp_send_probe0`).
            if self.timer == Timer::Idle {
                let first = self.persist_interval(cx.cfg).min(RESOURCE_PROBE_INTERVAL);
                self.arm(Timer::Persist, cx.now + first);
            } else if self.timer_at <= cx.now {
                self.probes_out = self.probes_out.saturating_add(1);
                self.arm(Timer::Persist, cx.now + RESOURCE_PROBE_INTERVAL);
            }
            return;
        }
        // A time-out that probes a closed window backs off without being a retransmission.
        if self.timer == Timer::Rto && (self.retransmits > 0 || self.backoff > 0) {
            self.backoff = self.backoff.saturating_sub(1);
            self.arm(Timer::Rto, cx.now + self.rto(cx.cfg).min(RESOURCE_PROBE_INTERVAL));
        }
    }

    /// An armed timer goes off at `at` at the latest (RFC 5482: a user time-out is on time).
    pub fn clamp_timer(&mut self, at: Instant) {
        if self.timer != Timer::Idle {
            self.timer_at = self.timer_at.min(at);
        }
    }

    /// An old connection answered the SYN, which nothing has repeated yet: it goes again at once
    /// (Linux `TCP_TIMEOUT_MIN`).
    pub fn hurry_syn(&mut self, cx: &Cx<'_>) {
        if self.timer == Timer::Rto {
            self.timer_at = cx.now + Span(2000);
        }
    }

    /// The connection has ended: nothing is in flight, and no timer runs.
    pub fn stop(&mut self) {
        self.stop_timer();
        self.una = self.nxt;
        self.packets_out = 0;
        self.sacked_out = 0;
        self.lost_out = 0;
        self.retrans_out = 0;
        self.tlp_due = false;
        self.tlp_out = false;
        self.ring = super::ring::Ring::default();
        if let Some(cold) = &mut self.cold {
            cold.fifo = std::collections::VecDeque::new();
        }
    }

    /// Arms the window probe if nothing is in flight and no timer runs (RFC 9293 3.8.6.1): first
    /// after RTO or 200 ms, then twice as long each time.
    pub fn arm_persist(&mut self, cx: &Cx<'_>) {
        if self.ring.is_empty() && self.timer == Timer::Idle {
            self.arm(Timer::Persist, cx.now + self.persist_interval(cx.cfg));
        }
    }

    /// The window admits data again: no more probes.
    pub fn cancel_persist(&mut self) {
        if self.timer == Timer::Persist {
            self.stop_timer();
            self.backoff = 0;
            self.probes_out = 0;
        }
    }

    /// A probe was new data, which is in flight: its time-outs are a retransmission's (Linux
    /// `tcp_send_probe0`).
    pub fn probed_with_data(&mut self, cx: &Cx<'_>) {
        self.backoff = 0;
        self.probes_out = 0;
        self.rearm_rto(cx);
    }

    fn on_persist_timer(&mut self, cx: &Cx<'_>) {
        self.stop_timer();
        if self.ring.is_empty() {
            self.probes_out = self.probes_out.saturating_add(1);
            self.backoff = (self.backoff + 1).min(cx.cfg.tcp_retries2.min(32));
            self.arm_persist(cx);
        }
    }

    /// Whether window probes have become as rare as they get.
    pub fn probes_are_slowest(&self, cfg: &Config) -> bool {
        self.persist_interval(cfg) >= rtt::rto_max(cfg)
    }

    fn persist_interval(&self, cfg: &Config) -> Span {
        let base = self.rtt.rto().max(Span(cfg.tcp_rto_min_us));
        base.doubled(u32::from(self.backoff)).min(rtt::rto_max(cfg))
    }

    pub(super) fn arm(&mut self, timer: Timer, at: Instant) {
        self.timer = timer;
        self.timer_at = at;
    }

    pub(super) fn stop_timer(&mut self) {
        self.timer = Timer::Idle;
        self.timer_at = Instant::NEVER;
    }

    /// RTO anew (Linux `tcp_rearm_rto`): from now where it ran or nothing did, and from the time
    /// at which the head was sent where another timer had taken its place.
    pub(super) fn rearm_rto(&mut self, cx: &Cx<'_>) {
        let Some(head) = self.ring.front() else { return self.stop_timer() };
        let rto = self.rto(cx.cfg);
        let at = match self.timer {
            Timer::Tlp | Timer::Reo => (head.xmit + rto).max(cx.now + Span(1)),
            _ => cx.now + rto,
        };
        self.arm(Timer::Rto, at);
    }

    /// After progress: the probe's timer, or the retransmission's.
    pub(super) fn set_xmit_timer(&mut self, cx: &Cx<'_>) {
        if !self.schedule_probe(cx, true) {
            self.rearm_rto(cx);
        }
    }

    fn window_is_initial(&self) -> bool {
        self.window.ssthresh == super::cwnd::INFINITE_SSTHRESH
    }
}
