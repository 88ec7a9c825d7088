//! The invariants of a connection, for tests.

#![cfg(any(test, fuzzing))]

use super::{Conn, State};
use crate::seq::Seq;

impl<H> Conn<H> {
    /// Panics if an invariant does not hold. `delivered_charge` is the memory of what was delivered
    /// and not read; `last_edge` is the furthest edge of the receive window that was told, which is
    /// returned anew.
    pub(crate) fn check(&self, delivered_charge: u32, last_edge: Option<Seq>) -> Option<Seq> {
        let (una, nxt) = (self.tx.una(), self.tx.nxt());
        assert!(una.at_or_before(nxt), "SND.UNA {una:?} after SND.NXT {nxt:?}");
        if !matches!(self.state, State::Closed | State::SynSent | State::SynReceived) {
            assert!(nxt.at_or_before(self.write_end()), "sent {nxt:?} what is not queued");
            assert!(self.copied.at_or_before(self.rcv_nxt), "read what did not arrive");
        }
        self.tx.check();
        let waiting = match &self.ooo {
            Some(ooo) => {
                assert!(!ooo.is_empty(), "an empty queue is kept");
                assert!(ooo.is_sound(self.rcv_nxt), "pieces out of order at {:?}", self.rcv_nxt);
                ooo.charge()
            }
            None => 0,
        };
        if !self.is(super::ConnFlags::ORPHAN) {
            assert_eq!(self.win.held, delivered_charge + waiting, "memory held");
        }
        if matches!(self.state, State::SynSent | State::Closed) {
            return last_edge;
        }
        let edge = self.win.max_edge;
        if let Some(last) = last_edge {
            assert!(edge.at_or_after(last), "the window's edge went back from {last:?} to {edge:?}");
        }
        if self.ack.is_scheduled() && !self.is_dirty() {
            assert!(self.next_deadline().is_armed(), "an ACK is owed and no timer runs");
        }
        Some(edge)
    }
}
