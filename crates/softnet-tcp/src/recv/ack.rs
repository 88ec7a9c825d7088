//! When an acknowledgement leaves (RFC 9293 3.8.6.3, RFC 5681 4.2), as Linux decides it.
//!
//! "A TCP endpoint SHOULD implement a delayed ACK" (SHLD-18), "the delay MUST be less than
//! 0.5 seconds" (MUST-40) and there "SHOULD be an ACK for at least every second full-sized
//! segment" (SHLD-19). A connection starts in quick mode (every segment is acknowledged), so that
//! the peer's slow start is not slowed; it turns interactive ("pingpong") when the application
//! answers what it reads, and then data carries the acknowledgements. `ato` is the delay, adapted
//! to the spacing of segments.

use crate::time::{Instant, Span};

/// Shortest delay, and the one to start with.
pub(crate) const ATO_MIN: Span = Span(40_000);
/// Longest delay of an interactive connection.
const DELACK_MAX: Span = Span(200_000);
/// Longest delay.
const ATO_MAX: Span = Span(500_000);
/// Segments acknowledged at once after a start or a pause.
pub(crate) const MAX_QUICK: u8 = 16;
/// What a peer's segment is taken to hold before one arrived.
pub(crate) const MSS_DEFAULT: u16 = 536;
/// The least that `rcv_mss` is taken for.
pub(crate) const MIN_MSS: u16 = 88;
/// The most bytes of options.
const MAX_OPTIONS: u32 = 40;

/// An ACK is owed.
const SCHEDULED: u8 = 1;
/// A segment smaller than the rest arrived: the peer has nothing more to say.
const PUSHED: u8 = 2;
/// Another one did.
const PUSHED2: u8 = 4;
/// It must not wait.
const NOW: u8 = 8;
/// Memory for received data ran out: the window to tell is 0.
const NO_MEMORY: u8 = 16;

/// The state of the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckPolicy {
    /// When data last arrived.
    pub(crate) last_data: Instant,
    /// When the delayed or compressed ACK is due.
    pub(crate) deadline: Instant,
    ato: Span,
    /// An estimate of the peer's segment size.
    pub(crate) rcv_mss: u16,
    last_seg: u16,
    pub(crate) quick: u8,
    pingpong: u8,
    pending: u8,
}

/// What ends the decision about an ACK that is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Now,
    /// The deadline is set.
    Later,
}

impl AckPolicy {
    /// A policy for a peer whose segments are taken to hold `rcv_mss` bytes.
    pub(crate) fn new(rcv_mss: u16) -> AckPolicy {
        AckPolicy {
            last_data: Instant(0),
            deadline: Instant::NEVER,
            ato: Span::ZERO,
            rcv_mss,
            last_seg: 0,
            quick: 0,
            pingpong: 0,
            pending: 0,
        }
    }

    /// The estimate before any segment arrived.
    pub(crate) fn initial_rcv_mss(advmss: u16, snd_mss: u16, rcv_wnd: u32) -> u16 {
        let half = u16::try_from(rcv_wnd / 2).unwrap_or(u16::MAX);
        advmss.min(snd_mss).min(half).clamp(MIN_MSS, MSS_DEFAULT)
    }

    pub(crate) fn is_scheduled(&self) -> bool {
        self.pending & SCHEDULED != 0
    }

    pub(crate) fn schedule(&mut self) {
        self.pending |= SCHEDULED;
    }

    pub(crate) fn schedule_now(&mut self) {
        self.pending |= SCHEDULED | NOW;
    }

    pub(crate) fn is_now(&self) -> bool {
        self.pending & NOW != 0
    }

    /// Data had to be dropped.
    pub(crate) fn out_of_memory(&mut self) {
        self.pending |= SCHEDULED | NOW | NO_MEMORY;
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.pending & NO_MEMORY != 0
    }

    /// Whether an ACK in quick mode is due.
    pub(crate) fn is_quick(&self, thresh: u8) -> bool {
        self.quick > 0 && !self.is_pingpong(thresh)
    }

    pub(crate) fn is_pingpong(&self, thresh: u8) -> bool {
        self.pingpong >= thresh.max(1)
    }

    pub(crate) fn enter_pingpong(&mut self, thresh: u8) {
        self.pingpong = thresh.max(1);
    }

    pub(crate) fn leave_pingpong(&mut self) {
        self.pingpong = 0;
    }

    pub(crate) fn ato(&self) -> Span {
        self.ato
    }

    fn raise_quick(&mut self, rcv_wnd: u32, most: u8) {
        let fit = rcv_wnd / (2 * u32::from(self.rcv_mss.max(1)));
        let quick = if fit == 0 { 2 } else { fit.min(u32::from(most)) as u8 };
        self.quick = self.quick.max(quick);
    }

    /// Something is wrong at the other end, or in between: every segment is acknowledged for a
    /// while.
    pub(crate) fn enter_quick(&mut self, rcv_wnd: u32, most: u8) {
        self.raise_quick(rcv_wnd, most);
        self.pingpong = 0;
        self.ato = ATO_MIN;
    }

    /// Data arrived in order: an ACK is owed, and the delay adapts.
    pub(crate) fn data_arrived(&mut self, now: Instant, rcv_wnd: u32, rto: Span) {
        self.schedule();
        if self.ato == Span::ZERO {
            self.raise_quick(rcv_wnd, MAX_QUICK);
            self.ato = ATO_MIN;
        } else {
            let gap = now.since(self.last_data);
            if gap <= Span(ATO_MIN.0 / 2) {
                self.ato = Span(self.ato.0 / 2 + ATO_MIN.0 / 2);
            } else if gap < self.ato {
                self.ato = (Span(self.ato.0 / 2) + gap).min(rto);
            } else if gap > rto {
                // The peer may have restarted slowly after its pause.
                self.raise_quick(rcv_wnd, MAX_QUICK);
            }
        }
        self.last_data = now;
    }

    /// Learns the peer's segment size from a segment of `len` bytes. Returns whether its size is
    /// a new one, so that the share of payload in memory is worth measuring.
    pub(crate) fn measure(
        &mut self,
        len: u32,
        header: u32,
        psh_or_fin: bool,
        advmss: u16,
        tx_header: u32,
    ) -> bool {
        let len = len.min(u32::from(u16::MAX));
        if len >= u32::from(self.rcv_mss) {
            let news = len != u32::from(self.rcv_mss);
            self.rcv_mss = (len as u16).min(advmss);
            if len > u32::from(self.rcv_mss) + MAX_OPTIONS {
                self.pending |= PUSHED;
            }
            return news;
        }
        // A smaller segment counts as the peer's size only if it comes twice: the size with its
        // header is what stays the same when SACK blocks take room.
        let with_header = len + header;
        if with_header >= u32::from(MSS_DEFAULT) + 20
            || (with_header >= u32::from(MIN_MSS) + 20 && !psh_or_fin)
        {
            let bare = with_header.saturating_sub(tx_header) as u16;
            let twice = bare == self.last_seg;
            self.last_seg = bare;
            if twice {
                self.rcv_mss = bare.max(1);
                return false;
            }
        }
        if self.pending & PUSHED != 0 {
            self.pending |= PUSHED2;
        }
        self.pending |= PUSHED;
        false
    }

    /// Data is sent: if soon after data arrived, the connection is interactive.
    pub(crate) fn data_sent(&mut self, now: Instant) {
        if now.since(self.last_data) < self.ato {
            self.pingpong = self.pingpong.saturating_add(1);
        }
    }

    /// A segment with an acknowledgement has left.
    pub(crate) fn sent(&mut self) {
        if self.quick > 0 {
            self.quick -= 1;
            if self.quick == 0 {
                self.ato = ATO_MIN;
            }
        }
        self.pending = 0;
        self.deadline = Instant::NEVER;
    }

    /// Delays the ACK that is owed; `srtt` is zero while unknown.
    pub(crate) fn delay(&mut self, now: Instant, srtt: Span, rto_min: Span, thresh: u8) -> Decision {
        let mut ato = self.ato;
        if ato > ATO_MIN {
            let interactive = self.is_pingpong(thresh) || self.pending & PUSHED != 0;
            let mut most = if interactive { DELACK_MAX } else { ATO_MAX };
            if srtt != Span::ZERO {
                most = most.min(srtt.max(ATO_MIN));
            }
            ato = ato.min(most);
        }
        // The peer's time-out may be as short as ours.
        let ato = ato.min(DELACK_MAX).min(rto_min - Span(1000));
        if self.deadline.is_armed() && self.deadline <= now + Span(ato.0 / 4) {
            return Decision::Now;
        }
        self.pending |= SCHEDULED;
        self.deadline = self.deadline.min(now + ato);
        Decision::Later
    }

    /// The delay is over. Returns whether an ACK has to leave.
    pub(crate) fn expired(&mut self, rto: Span, thresh: u8) -> bool {
        self.deadline = Instant::NEVER;
        if !self.is_scheduled() {
            return false;
        }
        if self.is_pingpong(thresh) {
            self.pingpong = 0;
            self.ato = ATO_MIN;
        } else {
            self.ato = self.ato.times(2).min(rto);
        }
        true
    }

    /// Whether the application's read ends the delay: it emptied the queue, and the peer waits for
    /// nothing else.
    pub(crate) fn read_ends_delay(&self, thresh: u8) -> bool {
        self.pending & PUSHED2 != 0 || (self.pending & PUSHED != 0 && !self.is_pingpong(thresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Span = Span(200_000);

    #[test]
    fn quick_mode_ends_after_its_acks() {
        let mut ack = AckPolicy::new(1000);
        ack.data_arrived(Instant(1), 65_535, RTO);
        assert_eq!((ack.quick, ack.is_quick(1)), (16, true));
        (0..16).for_each(|_| ack.sent());
        assert!(!ack.is_quick(1) && !ack.is_scheduled());
        ack.data_arrived(Instant(2), 65_535, RTO);
        assert_eq!(ack.delay(Instant(2), Span(10_000), RTO, 1), Decision::Later);
        assert_eq!(ack.deadline, Instant(2) + ATO_MIN);
        ack.data_arrived(Instant(31_000), 65_535, RTO);
        assert_eq!(
            ack.delay(Instant(31_000), Span(10_000), RTO, 1),
            Decision::Now,
            "less than a quarter is left"
        );
    }

    #[test]
    fn a_small_window_still_gives_two_quick_acks_and_a_pause_gives_more() {
        let mut ack = AckPolicy::new(1000);
        ack.data_arrived(Instant(1), 100, RTO);
        assert_eq!(ack.quick, 2);
        ack.data_arrived(Instant(300_000), 20_000, RTO);
        assert_eq!(ack.quick, 10);
    }

    #[test]
    fn an_answer_makes_it_interactive_and_a_missed_one_does_not() {
        let mut ack = AckPolicy::new(1000);
        ack.data_arrived(Instant(1000), 65_535, RTO);
        ack.data_sent(Instant(2000));
        assert!(ack.is_pingpong(1) && !ack.is_quick(1));
        assert_eq!(ack.delay(Instant(2000), Span::ZERO, RTO, 1), Decision::Later);
        assert!(ack.expired(RTO, 1) && !ack.is_pingpong(1));
        assert!(ack.expired(RTO, 1));
        assert_eq!(ack.ato(), Span(80_000), "outside of it, the delay doubles");
    }

    #[test]
    fn the_peers_size_is_learnt_and_smaller_segments_are_pushes() {
        let mut ack = AckPolicy::new(536);
        assert!(ack.measure(1448, 32, false, 1460, 32));
        assert_eq!(ack.rcv_mss, 1448);
        assert!(!ack.measure(1448, 32, false, 1460, 32) && !ack.read_ends_delay(1));
        ack.measure(100, 32, true, 1460, 32);
        assert!(ack.read_ends_delay(1));
        ack.enter_pingpong(1);
        assert!(!ack.read_ends_delay(1));
        ack.measure(100, 32, true, 1460, 32);
        assert!(ack.read_ends_delay(1), "two small ones end it even there");
        ack.measure(1000, 32, false, 1460, 32);
        ack.measure(1000, 32, false, 1460, 32);
        assert_eq!(ack.rcv_mss, 1000, "a smaller size that comes twice is the peer's");
    }
}
