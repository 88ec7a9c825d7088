//! The identities of the sending half, for tests and fuzzing.

use super::ring::{EVER, LOST, RETRANS, SACKED};
use super::{CaState, Sender, Timer};

impl Sender {
    /// Asserts what must hold after every input (the list of `mod.rs`).
    ///
    /// # Panics
    ///
    /// If it does not hold.
    pub fn check(&self) {
        let (mut sacked, mut lost, mut retrans) = (0, 0, 0);
        let mut seq = None;
        let mut xmit = crate::Instant::default();
        for record in (0..self.ring.len()).filter_map(|i| self.ring.get(i)) {
            assert!(record.len > 0, "an empty record");
            assert_eq!(*seq.get_or_insert(record.seq), record.seq, "a gap in the queue");
            seq = Some(record.end());
            assert!(!record.is(SACKED) || !record.is(LOST), "{record:?}: SACKed and lost");
            assert!(!record.is(RETRANS) || record.is(EVER), "{record:?}");
            sacked += u32::from(record.is(SACKED));
            lost += u32::from(record.is(LOST));
            retrans += u32::from(record.is(RETRANS));
            if !record.is(EVER) {
                assert!(record.xmit >= xmit, "originals out of order of time");
                xmit = record.xmit;
            }
        }
        assert_eq!(self.ring.front().map_or(self.nxt, |head| head.seq), self.una);
        assert_eq!(seq.unwrap_or(self.nxt), self.nxt);
        assert_eq!(self.packets_out as usize, self.ring.len());
        if self.sack_ok {
            assert_eq!(self.sacked_out, sacked, "sacked_out");
        } else {
            assert_eq!(sacked, 0, "a SACK tag without SACK");
        }
        assert_eq!((self.lost_out, self.retrans_out), (lost, retrans), "lost_out, retrans_out");
        assert!(self.sacked_out + self.lost_out <= self.packets_out, "left_out");
        assert!(self.window.cwnd >= 1);
        assert_eq!(self.timer == Timer::Idle, !self.timer_at.is_armed());
        assert!(
            self.ring.is_empty() || matches!(self.timer, Timer::Rto | Timer::Tlp | Timer::Reo),
            "{:?} while {} are out",
            self.timer,
            self.packets_out
        );
        if self.state == CaState::Open {
            assert_eq!(self.sacked_out + self.lost_out, 0, "left out in Open");
        }
        self.check_order();
    }

    /// Every packet that may still arrive can be found by time: by the cursor, or in the FIFO; and
    /// no lost packet lies below the hint.
    fn check_order(&self) {
        let Some(cold) = &self.cold else { return };
        for record in (0..self.ring.len()).filter_map(|i| self.ring.get(i)) {
            if record.is(LOST) && !record.is(RETRANS) {
                assert!(record.end().after(cold.rtx_hint), "{record:?} is below the hint");
            }
            if record.is(SACKED) || (record.is(LOST) && !record.is(RETRANS)) {
                continue;
            }
            if record.is(EVER) {
                let found = cold.fifo.iter().any(|&(seq, at)| {
                    at == record.xmit
                        && self.ring.get(self.ring.find(seq)).is_some_and(|found| found == record)
                });
                assert!(found, "{record:?} is in no order of time");
            } else {
                assert!(record.end().after(cold.rack.cursor()), "{record:?} is below the cursor");
            }
        }
        let mut last = crate::Instant::default();
        for &(_, at) in &cold.fifo {
            assert!(at >= last, "retransmissions out of order of time");
            last = at;
        }
        assert!(cold.fifo.len() <= 2 * self.ring.len() + 17, "stale retransmissions");
    }
}
