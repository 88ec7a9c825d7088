//! The wire's end of an emulated NIC's RX queue: what arrives, what finds no place, and when the NIC interrupts.
//!
//! A [`NicPort`] belongs to one thread, which plays the wire: the same that runs the stack, or another that keeps its
//! own time and calls [`offer_at`](NicPort::offer_at) and [`tick`](NicPort::tick) while it spins. Times are nanoseconds
//! of any one clock that does not go back.
//!
//! Invariant: while packets wait at an unmasked doorbell, [`next_due`](NicPort::next_due) says when, and a tick at that
//! time rings. A delayed ring loses no wake-up, since what decides is looked at afresh by every tick: how many packets
//! wait, since when, and then, behind a fence, whether the doorbell is unmasked. A consumer that went to sleep without
//! seeing a packet had unmasked the doorbell before that fence.

use std::sync::Arc;

use softnet_core::softnet_data::Counter;

use super::coalesce::{Coalesce, Coalescer};
use super::doorbell::MemDoorbell;

/// Lets packets of one RX queue arrive.
pub struct NicPort {
    bell: Arc<MemDoorbell>,
    /// Packets for which there was no place; the queue takes the number over into its own counters.
    lost: Arc<Counter>,
    places: u64,
    coalescer: Option<Coalescer>,
    interrupts: u64,
}

impl NicPort {
    pub(super) fn new(
        bell: Arc<MemDoorbell>,
        lost: Arc<Counter>,
        places: usize,
        coalesce: Coalesce,
    ) -> Result<Self, String> {
        let coalescer = Coalescer::new(coalesce, places)?;
        Ok(NicPort { bell, lost, places: places as u64, coalescer, interrupts: 0 })
    }

    /// `n` packets arrive, and the NIC interrupts at once, whatever its coalescing. Returns how many found a place in
    /// the ring; the others are lost, and counted in the queue's `ring_drops` by its next `rx_burst`.
    #[inline]
    pub fn offer(&mut self, n: u64) -> u64 {
        let accepted = self.arrive(n, 0);
        if accepted > 0 {
            self.interrupt();
        }
        accepted
    }

    /// `n` packets arrive at `now` (ns), and the NIC interrupts if that is due. Returns as [`offer`](Self::offer).
    #[inline]
    pub fn offer_at(&mut self, n: u64, now: u64) -> u64 {
        let accepted = self.arrive(n, now);
        self.tick(now);
        accepted
    }

    /// It is `now` (ns): interrupts if that is due.
    #[inline]
    pub fn tick(&mut self, now: u64) {
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.tick(now);
        }
        if self.due_at().is_some_and(|due| due <= now) {
            self.interrupt();
        }
    }

    /// When (ns) a [`tick`](Self::tick) will interrupt if nothing else happens; may be past. `None` if no packet waits,
    /// or the doorbell is masked: the thread that unmasks it looks for packets itself.
    pub fn next_due(&self) -> Option<u64> {
        self.due_at().filter(|_| self.bell.unmasked())
    }

    /// Packets that arrived and that the driver has not yet taken.
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.bell.waiting()
    }

    /// How many more packets would find a place now.
    #[inline]
    pub fn room(&self) -> u64 {
        self.places - self.waiting()
    }

    /// How often the NIC has interrupted: rings of the doorbell.
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// The coalescing in force: as configured, or the present choice if it is adaptive; the default if every packet
    /// interrupts.
    pub fn coalesce(&self) -> Coalesce {
        self.coalescer.as_ref().map(Coalescer::values).unwrap_or_default()
    }

    #[inline]
    fn arrive(&mut self, n: u64, now: u64) -> u64 {
        let accepted = n.min(self.room());
        if accepted < n {
            self.lost.add(n - accepted);
        }
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.arrived(self.bell.total_came(), accepted, now);
        }
        self.bell.came(accepted);
        accepted
    }

    #[inline]
    fn due_at(&self) -> Option<u64> {
        let taken = self.bell.total_taken();
        let waiting = self.bell.total_came().wrapping_sub(taken);
        match &self.coalescer {
            Some(coalescer) => coalescer.due_at(taken, waiting),
            None => (waiting > 0).then_some(0),
        }
    }

    #[inline]
    fn interrupt(&mut self) {
        if self.bell.wake() {
            self.interrupts += 1;
            if let Some(coalescer) = &mut self.coalescer {
                coalescer.interrupted();
            }
        }
    }
}
