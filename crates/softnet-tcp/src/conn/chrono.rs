//! What a connection waits for while it has something to send (Linux `tcp_chrono_start`).
//!
//! Time is told apart by what bounds it at the end of each run of output: the peer's window, the
//! send buffer that the application has filled, or the network, congestion window included.
//! `tcpi_busy_time`, `tcpi_rwnd_limited` and `tcpi_sndbuf_limited` tell it.

use super::{Conn, ConnFlags};
use crate::time::Instant;

/// What bounds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Bound {
    /// Nothing: all that was queued has arrived.
    #[default]
    Idle,
    Network,
    Window,
    Buffer,
}

/// Milliseconds of each bound but the first, and when the one that holds now began, modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Chrono {
    spent: [u32; 3],
    since: u32,
}

impl Chrono {
    /// `tcpi_busy_time`, `tcpi_rwnd_limited` and `tcpi_sndbuf_limited`, microseconds; the first
    /// includes the others.
    pub fn times(&self) -> (u64, u64, u64) {
        let [network, window, buffer] = self.spent.map(|millis| u64::from(millis) * 1000);
        (network + window + buffer, window, buffer)
    }

    /// The time since `bound` began counts up to `now`.
    pub(crate) fn spend(&mut self, bound: Bound, now: Instant) {
        let millis = (now.0 / 1000) as u32;
        let passed = millis.wrapping_sub(std::mem::replace(&mut self.since, millis));
        let slot = match bound {
            Bound::Idle => return,
            Bound::Network => 0,
            Bound::Window => 1,
            Bound::Buffer => 2,
        };
        self.spent[slot] = self.spent[slot].saturating_add(passed);
    }
}

impl<H> Conn<H> {
    /// A writer or a poller has found no room and waits for it, or waits no more (Linux
    /// `SOCK_NOSPACE`). A host that never says so is taken to have one that waits.
    pub fn waits_for_room(&mut self, waits: bool) {
        self.set(ConnFlags::ROOM_TOLD, true);
        self.set(ConnFlags::NO_ROOM, waits);
        self.set(ConnFlags::DIRTY, true);
    }

    /// Notes what bounds the connection now that what could leave has left.
    pub(crate) fn note_bound(&mut self, now: Instant) {
        let unsent = self.unsent();
        let open = self.tx.in_flight() < self.tx.cwnd();
        let bound = if self.unacked() == 0 {
            Bound::Idle
        } else if unsent > 0 && open && self.snd_edge().past(self.tx.nxt()) < unsent.min(self.tx.mss()) {
            Bound::Window
        } else if unsent == 0 && open && self.is(ConnFlags::NO_ROOM) {
            Bound::Buffer
        } else {
            Bound::Network
        };
        self.chrono.spend(std::mem::replace(&mut self.bound, bound), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_the_bound_that_held() {
        let at = |millis: u64| Instant(millis * 1000);
        let mut chrono = Chrono::default();
        chrono.spend(Bound::Idle, at(100));
        chrono.spend(Bound::Network, at(130));
        chrono.spend(Bound::Window, at(150));
        assert_eq!(chrono.times(), (50_000, 20_000, 0));
        chrono.spend(Bound::Buffer, at(155));
        chrono.spend(Bound::Idle, at(999));
        assert_eq!(chrono.times(), (55_000, 20_000, 5000));
    }
}
