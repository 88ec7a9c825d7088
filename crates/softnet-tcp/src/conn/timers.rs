//! Time: retransmission and giving up, delayed ACK, window probes, keepalive (RFC 9293 3.8.3,
//! 3.8.4, 3.8.6.1; RFC 5482; Linux `tcp_timer.c`).
//!
//! The timers are deadlines; the host keeps one timer for the earliest. A firing before a deadline
//! does nothing, so a stale one is harmless.

use super::{Conn, ConnFlags, Cx, Error, Output, State};
use crate::config::Config;
use crate::send::Fired;
use crate::time::{Instant, Span};

/// The least RTO by which `retries2` is made a time (Linux `TCP_RTO_MIN`).
const MODEL_RTO: Span = Span(200_000);

impl<H> Conn<H> {
    /// When [`on_time`](Self::on_time) is due; [`Instant::NEVER`] if no timer is armed.
    #[inline]
    pub fn next_deadline(&self) -> Instant {
        self.tx.deadline().min(self.ack.deadline).min(self.keep_at)
    }

    /// Time has passed. A [`flush`](Self::flush) follows.
    pub fn on_time<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.ack.deadline <= cx.now {
            self.ack_is_due(cx);
        }
        match self.tx.due(cx.now) {
            Fired::Nothing => {}
            Fired::Rto => self.retransmission_is_due(cx),
            Fired::Output => {
                self.tx.on_time(&mut cx.send(), false);
            }
            Fired::Persist => self.window_probe_is_due(cx),
        }
        if self.keep_at <= cx.now {
            self.keep_at = Instant::NEVER;
            self.keepalive_is_due(cx);
        }
        if self.state != State::Closed {
            self.set(ConnFlags::DIRTY, true);
        }
    }

    fn ack_is_due<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.ooo.as_ref().is_some_and(|ooo| ooo.compressed > 0) {
            // What is refused is not due at once again.
            self.ack.deadline = Instant::NEVER;
            return self.send_ack(cx);
        }
        let rto = self.rto(cx.cfg);
        if self.ack.expired(rto, cx.cfg.tcp_pingpong_thresh) {
            cx.counters.delayed_acks += 1;
            self.send_ack(cx);
        }
    }

    fn retransmission_is_due<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        // A peer that took its window back is probed, not given up, while it answers.
        let zero_window = self.snd_wnd == 0
            && !self.is(ConnFlags::ORPHAN)
            && !matches!(self.state, State::SynSent | State::SynReceived);
        let silent = cx.now.since(self.last_ack) > Span::from_millis(cx.cfg.tcp_rto_max_ms).times(2);
        let gives_up = if zero_window { silent || self.user_timed_out(cx) } else { self.has_had_enough(cx) };
        if gives_up {
            return self.give_up(cx);
        }
        self.tx.on_time(&mut cx.send(), zero_window);
    }

    /// RFC 5482: expiry is on time, whatever the interval of retransmissions.
    pub(crate) fn clamp_rto<O>(&mut self, cx: &Cx<'_, O>) {
        let timeout = self.tuned().user_timeout;
        if timeout != 0
            && let Some(began) = self.tx.first_retransmit()
        {
            self.tx.clamp_timer(began.plus_millis(u64::from(timeout)).max(cx.now + Span(1000)));
        }
    }

    fn user_timed_out<O>(&self, cx: &Cx<'_, O>) -> bool {
        let timeout = u64::from(self.tuned().user_timeout);
        timeout != 0 && self.tx.first_retransmit().is_some_and(|began| cx.now.millis_since(began) >= timeout)
    }

    /// Whether this time-out is the last (RFC 9293 3.8.3; Linux `tcp_write_timeout`).
    fn has_had_enough<O>(&self, cx: &Cx<'_, O>) -> bool {
        let retransmits = u32::from(self.tx.retransmits());
        if matches!(self.state, State::SynSent | State::SynReceived) {
            let mut retries = u32::from(self.tuned().syncnt.unwrap_or(cx.cfg.tcp_syn_retries));
            if self.state == State::SynSent {
                retries += u32::from(cx.cfg.tcp_syn_linear_timeouts);
            }
            return retransmits >= retries || self.user_timed_out(cx);
        }
        let Some(began) = self.tx.first_retransmit() else { return false };
        let user = self.tuned().user_timeout;
        let limit = if user != 0 {
            u64::from(user)
        } else if self.is(ConnFlags::ORPHAN) {
            modelled(cx.cfg, self.orphan_retries(cx.cfg))
        } else {
            modelled(cx.cfg, cx.cfg.tcp_retries2)
        };
        cx.now.millis_since(began) >= limit
    }

    fn orphan_retries(&self, cfg: &Config) -> u8 {
        if cfg.tcp_orphan_retries != 0 {
            return cfg.tcp_orphan_retries;
        }
        // An orphan whose peer was reachable until now has eight tries.
        8
    }

    fn give_up<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        cx.counters.abort_on_timeout += 1;
        if matches!(self.state, State::SynSent | State::SynReceived) {
            cx.counters.attempt_fails += 1;
        }
        let error = self.soft_error.take().unwrap_or(Error::TimedOut);
        self.end(cx, Some(error));
    }

    fn window_probe_is_due<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        // A SYN that was refused leaves by `flush`, not by force.
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        if opening || self.tx.packets_out() != 0 || !self.write_end().after(self.tx.nxt()) {
            self.tx.on_time(&mut cx.send(), false);
            self.tx.cancel_persist();
            self.probes_began = Instant::NEVER;
            return;
        }
        if !self.probes_began.is_armed() {
            self.probes_began = cx.now;
        }
        let began = self.probes_began;
        let user = u64::from(self.tuned().user_timeout);
        let mut most = cx.cfg.tcp_retries2;
        let mut hopeless = false;
        if self.is(ConnFlags::ORPHAN) {
            // However well the peer answers: what an orphan holds is not held for ever (Linux
            // `tcp_probe_timer`, `tcp_orphan_retries`).
            let slowest = self.tx.probes_are_slowest(cx.cfg);
            most = if slowest { cx.cfg.tcp_orphan_retries } else { self.orphan_retries(cx.cfg) };
            hopeless = slowest && self.tx.backoff() >= most;
        }
        let expired = user != 0 && began != cx.now && cx.now.millis_since(began) >= user;
        if expired || hopeless || self.tx.probes_out() >= most {
            return self.give_up(cx);
        }
        // RFC 9293 3.8.6.1: "the transmitting TCP peer must regularly transmit at least one octet
        // of new data … or retransmit"; where the window is open, but for less than a segment, what
        // fits goes; else an empty segment that has to be answered.
        let limits = self.limits(cx);
        match self.tx.force_new(&limits) {
            Some(mut transmit) => {
                transmit.psh = true;
                if !self.send_data(cx, &mut transmit) {
                    return self.tx.on_tx_refused(&cx.send());
                }
                self.tx.on_sent(&mut cx.send(), &transmit);
                self.tx.probed_with_data(&cx.send());
                self.probes_began = Instant::NEVER;
                return;
            }
            None => {
                cx.counters.win_probe += 1;
                self.tx.on_time(&mut cx.send(), false);
                self.send_probe(cx);
            }
        }
        if user != 0 {
            self.tx.clamp_timer(began.plus_millis(user).max(cx.now + Span(1000)));
        }
    }

    pub(crate) fn keepidle(&self, cfg: &Config) -> u64 {
        u64::from(self.tuned().keepidle.unwrap_or(cfg.tcp_keepalive_time)) * 1000
    }

    pub(crate) fn keepintvl(&self, cfg: &Config) -> u64 {
        u64::from(self.tuned().keepintvl.unwrap_or(cfg.tcp_keepalive_intvl)) * 1000
    }

    /// Arms keepalive anew.
    pub(crate) fn arm_keepalive(&mut self, now: Instant, cfg: &Config) {
        self.keep_at = now.plus_millis(self.keepidle(cfg));
    }

    /// RFC 9293 3.8.4: "keep-alive packets MUST only be sent when no sent data is outstanding, and
    /// no data or acknowledgment packets have been received for the connection within an interval"
    /// (MUST-25).
    fn keepalive_is_due<O: Output<Handle = H>>(&mut self, cx: &mut Cx<'_, O>) {
        if self.state == State::FinWait2 && self.is(ConnFlags::ORPHAN) {
            return self.rest_of_fin_wait2(cx);
        }
        if !self.is(ConnFlags::KEEPALIVE) || matches!(self.state, State::SynSent | State::Closed) {
            return;
        }
        let idle = self.keepidle(cx.cfg);
        if self.tx.packets_out() != 0 || self.write_end().after(self.tx.nxt()) {
            self.keep_at = cx.now.plus_millis(idle);
            return;
        }
        let silent = cx.now.millis_since(self.last_ack.max(self.ack.last_data));
        if silent < idle {
            self.keep_at = cx.now.plus_millis(idle - silent);
            return;
        }
        let user = u64::from(self.tuned().user_timeout);
        let most = self.tuned().keepcnt.unwrap_or(cx.cfg.tcp_keepalive_probes);
        let dead = if user != 0 { silent >= user && self.keep_probes > 0 } else { self.keep_probes >= most };
        if dead {
            self.send_reset(cx);
            return self.give_up(cx);
        }
        cx.counters.keep_alive += 1;
        if self.send_probe(cx) {
            self.keep_probes = self.keep_probes.saturating_add(1);
            self.keep_at = cx.now.plus_millis(self.keepintvl(cx.cfg));
        } else {
            self.keep_at = cx.now.plus_millis(500);
        }
    }
}

/// How long `retries` retransmissions take with the least RTO, milliseconds (Linux
/// `tcp_model_timeout`).
fn modelled(cfg: &Config, retries: u8) -> u64 {
    let base = u64::from(MODEL_RTO.as_millis());
    let most = u64::from(cfg.tcp_rto_max_ms);
    let thresh = u32::from((most / base).max(1).ilog2() as u8);
    let retries = u32::from(retries);
    if retries <= thresh {
        ((2u64 << retries) - 1) * base
    } else {
        ((2u64 << thresh) - 1) * base + u64::from(retries - thresh) * most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_modelled_in_time() {
        let cfg = Config::default();
        assert_eq!(modelled(&cfg, 15), 924_600);
        assert_eq!(modelled(&cfg, 8), 102_200);
        assert_eq!(modelled(&cfg, 0), 200);
    }
}
