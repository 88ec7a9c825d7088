//! Packets offered to an emulated NIC, each stamped with when it came.
//!
//! One thread offers them; the one that polls the NIC writes them, in a bench's `Source`, and reads the stamp that belongs to a
//! packet's number. Invariant: a packet is offered only when it has a place in the ring, so its stamp is there when
//! it is written, and there still is the one that belongs to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnet_dev::mem::NicPort;

/// Descriptors of the RX ring.
pub(super) const RING: usize = 4096;
/// Stamps that are kept: more than a ring has places.
const STAMPS: usize = 4 * RING;
/// How often packets are offered.
pub(super) const TICK: Duration = Duration::from_micros(50);

/// When packets came, by their numbers.
pub(super) struct Stamps {
    clock: Instant,
    stamps: Box<[AtomicU64]>,
}

impl Stamps {
    pub(super) fn new() -> Arc<Self> {
        let stamps = (0..STAMPS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Stamps { clock: Instant::now(), stamps })
    }

    /// ns since the start.
    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// When the packet with this number came.
    pub(super) fn of(&self, number: u64) -> u64 {
        self.stamps[number as usize % STAMPS].load(Ordering::Relaxed)
    }

    fn stamp(&self, number: u64, ns: u64) {
        self.stamps[number as usize % STAMPS].store(ns, Ordering::Relaxed);
    }
}

/// How many packets are offered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// So many a second, whether there is room for them or not.
    Pps(f64),
    /// As many as there is room for, so often: the ring stays full.
    Full(Duration),
}

/// The thread's side of a NIC that packets are offered to.
pub(super) struct Offer {
    pub(super) port: NicPort,
    stamps: Arc<Stamps>,
    /// Packets that found a place in the ring, and those that did not.
    pub(super) offered: u64,
    pub(super) refused: u64,
}

impl Offer {
    /// To a NIC with a ring of [`RING`].
    pub(super) fn new(port: NicPort, stamps: Arc<Stamps>) -> Self {
        Offer { port, stamps, offered: 0, refused: 0 }
    }

    /// Offers packets for `time`.
    pub(super) fn offer(&mut self, pace: Pace, time: Duration) {
        let (start, from) = (Instant::now(), self.stamps.now());
        let mut due = 0u64;
        loop {
            let elapsed = start.elapsed().min(time);
            let room = self.port.room();
            let (want, tick) = match pace {
                Pace::Pps(pps) => ((elapsed.as_secs_f64() * pps) as u64 - due, TICK),
                Pace::Full(tick) => (room, tick),
            };
            let some = want.min(room);
            let now = self.stamps.now();
            for i in 0..some {
                let at = match pace {
                    // When it should have come, whenever this thread gets to it.
                    Pace::Pps(pps) => from + ((due + i) as f64 * 1e9 / pps) as u64,
                    Pace::Full(_) => now,
                };
                self.stamps.stamp(self.offered + i, at);
            }
            due += want;
            self.refused += want - some;
            self.offered += some;
            if some > 0 {
                self.port.offer(some);
            }
            if elapsed == time {
                return;
            }
            std::thread::sleep(tick);
        }
    }
}
