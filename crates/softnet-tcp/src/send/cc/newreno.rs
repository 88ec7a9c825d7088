//! Reno (RFC 5681 3.1, RFC 6582): one packet a round trip, half the window at a loss.

use crate::send::cwnd::Window;

/// "max (FlightSize / 2, 2*SMSS)", of the window as in Linux: growth while it is not full is
/// forbidden, so the window is the flight.
pub(super) fn ssthresh(cwnd: u32) -> u32 {
    (cwnd / 2).max(2)
}

/// Congestion avoidance.
pub(super) fn avoid(window: &mut Window, acked: u32) {
    window.avoid(window.cwnd, acked);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instant, Seq};

    #[test]
    fn half_and_one_a_round_trip() {
        assert_eq!((ssthresh(20), ssthresh(5), ssthresh(3), ssthresh(1)), (10, 2, 2, 2));
        let mut window = Window::new(Seq(0), Instant(0));
        window.ssthresh = 10;
        for rtt in 1..=5 {
            for _ in 0..window.cwnd {
                avoid(&mut window, 1);
            }
            assert_eq!(window.cwnd, 10 + rtt);
        }
    }
}
