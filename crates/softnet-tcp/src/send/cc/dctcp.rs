//! DCTCP (RFC 8257): the window shrinks by half the share of marked packets. The receiver's half,
//! an ACK for every change of CE, is the ACK policy's.

use super::{Cause, newreno};
use crate::Seq;

/// One in α's fixed point.
const ONE: u32 = 1 << 10;
/// g = 1/16 (RFC 8257 4.2).
const G_SHIFT: u32 = 4;

#[derive(Debug)]
pub(in crate::send) struct Dctcp {
    /// The smoothed share of marked packets, in 1/1024. "SHOULD be initialized to 1" (3.3).
    alpha: u32,
    /// Packets delivered in this observation window, and those with ECE.
    delivered: u32,
    marked: u32,
    /// The observation window ends here; `None` before the first.
    window_end: Option<Seq>,
}

impl Default for Dctcp {
    fn default() -> Self {
        Dctcp { alpha: ONE, delivered: 0, marked: 0, window_end: None }
    }
}

impl Dctcp {
    pub(super) fn on_ack(&mut self, ece: bool, una: Seq, nxt: Seq, delivered: u32) {
        self.delivered = self.delivered.saturating_add(delivered);
        self.marked = self.marked.saturating_add(if ece { delivered } else { 0 });
        let Some(end) = self.window_end else {
            self.window_end = Some(nxt);
            return;
        };
        if una.before(end) {
            return;
        }
        // α = (1 − g)·α + g·F (3.3 step 6). A small α falls to 0, not to the shift's floor.
        let decay = if self.alpha >> G_SHIFT == 0 { self.alpha } else { self.alpha >> G_SHIFT };
        self.alpha -= decay;
        if self.marked > 0 {
            let share = (u64::from(self.marked) << (10 - G_SHIFT)) / u64::from(self.delivered.max(1));
            self.alpha = (self.alpha + share as u32).min(ONE);
        }
        self.delivered = 0;
        self.marked = 0;
        self.window_end = Some(nxt);
    }

    /// "cwnd = cwnd * (1 - DCTCP.Alpha / 2)" (3.3 step 8); a loss halves (3.5).
    pub(super) fn ssthresh(&self, cwnd: u32, cause: Cause) -> u32 {
        match cause {
            Cause::Loss => newreno::ssthresh(cwnd),
            Cause::Ecn => {
                let cut = (u64::from(cwnd) * u64::from(self.alpha)) >> 11;
                (cwnd - cut as u32).max(2)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_follows_the_share_of_marks() {
        let mut dctcp = Dctcp::default();
        assert_eq!(dctcp.ssthresh(100, Cause::Ecn), 50);
        let window = |dctcp: &mut Dctcp, at: u32, marked: u32| {
            dctcp.on_ack(true, Seq(at), Seq(at), marked);
            dctcp.on_ack(false, Seq(at), Seq(at + 100), 100 - marked);
        };
        dctcp.on_ack(false, Seq(0), Seq(0), 0);
        for i in 0..200 {
            window(&mut dctcp, i * 100, 0);
        }
        assert_eq!(dctcp.alpha, 0);
        assert_eq!(dctcp.ssthresh(100, Cause::Ecn), 100);
        assert_eq!(dctcp.ssthresh(100, Cause::Loss), 50);
        // One quarter marked for ever: α tends to a quarter, and the cut to an eighth.
        let mut dctcp = Dctcp { window_end: Some(Seq(0)), ..Dctcp::default() };
        for i in 1..300 {
            dctcp.on_ack(true, Seq(i * 100 - 50), Seq(i * 100), 25);
            dctcp.on_ack(false, Seq(i * 100), Seq(i * 100 + 100), 75);
        }
        // In whole 1/1024 it stops within one sixteenth above.
        assert!((256..=271).contains(&dctcp.alpha), "{}", dctcp.alpha);
        assert!((87..=89).contains(&dctcp.ssthresh(100, Cause::Ecn)));
    }

    #[test]
    fn the_window_stays_at_two() {
        assert_eq!(Dctcp::default().ssthresh(1, Cause::Ecn), 2);
        assert_eq!(Dctcp::default().ssthresh(3, Cause::Ecn), 2);
    }
}
