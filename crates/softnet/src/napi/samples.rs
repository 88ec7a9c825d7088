//! What the packets of an instance cost, by samples of its polls: what the automatic choice of steering goes by.
//!
//! Written by the thread that owns the instance, in one poll of [`EVERY`]; read by the housekeeper.
//!
//! **Samples that do not count.** A thread that loses its CPU during a poll (to another thread, or all
//! of the machine to its host's others) measures what those did. One such sample of 4 ms among
//! hundreds of 20 µs doubles their mean. So a sample that took [`ODD`] times as long as is
//! [`Usual`] is left out; when [`AGAIN`] in a row do, that is usual now. Clocks of CPU time would say
//! it, too, for a system call in each sample, and not in a guest whose CPU was taken.

use softnet_core::skb::Batch;
use softnet_core::softnet_data::Counter;
use softnet_core::steer::policy::SLICES;
use softnet_core::steer::{scale, skb_get_hash};
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::util::Waker;

/// One poll of so many is sampled.
pub(crate) const EVERY: u32 = 32;

/// Packets of a sampled poll whose flows are looked at.
const HASHED: usize = 16;

/// A sample that took so many times as long as usual does not count.
const ODD: u64 = 8;

/// But when so many in a row do, something has changed.
const AGAIN: u32 = 8;

/// What a packet usually takes, of samples of any number of them.
#[derive(Default)]
struct Usual {
    /// ns for each packet, and for each of [`Self::EMPTY`] beside them: what a poll takes by itself;
    /// 0: there was no sample yet.
    ns: AtomicU64,
    odd: AtomicU32,
}

impl Usual {
    /// A poll takes as long as so many packets, if it brings none.
    const EMPTY: u64 = 8;

    /// Whether a sample of so many packets counts. (Two threads at once may lose one of two
    /// samples' share in what is usual, which is an estimate.)
    fn counts(&self, packets: usize, ns: u64) -> bool {
        let each = (ns / (packets as u64 + Self::EMPTY)).max(1);
        let usual = self.ns.load(Ordering::Relaxed);
        if usual != 0 && each > usual.saturating_mul(ODD) {
            let odd = self.odd.load(Ordering::Relaxed) + 1;
            if odd < AGAIN {
                self.odd.store(odd, Ordering::Relaxed);
                return false;
            }
            self.ns.store(each, Ordering::Relaxed);
        } else {
            // What was least is what was disturbed least: it goes there at once, and back slowly.
            let next = if each < usual || usual == 0 { each } else { usual + (each - usual).div_ceil(16) };
            self.ns.store(next, Ordering::Relaxed);
        }
        self.odd.store(0, Ordering::Relaxed);
        true
    }
}

/// Sums over the sampled polls of an instance.
#[derive(Default)]
pub(crate) struct Samples {
    /// Packets.
    pub(crate) packets: Counter,
    /// ns that collecting them took.
    pub(crate) receive_ns: Counter,
    /// ns that the calling thread then spent on them: on all of their way, or on handing them over.
    pub(crate) service_ns: Counter,
    slices: Slices,
    /// By which samples are judged: of collecting, of the rest, and of packets that were steered.
    usual: [Usual; 3],
    /// Samples that did not count.
    pub(crate) odd: AtomicU64,
    /// Packets that were steered, and ns that the workers spent on them. Any of these may add, in a
    /// sampled poll of its backlog.
    steered_packets: AtomicU64,
    steered_ns: AtomicU64,
}

struct Slices([Counter; SLICES]);

impl Default for Slices {
    fn default() -> Self {
        Slices(std::array::from_fn(|_| Counter::default()))
    }
}

impl Samples {
    /// Takes note of a poll's packets, and of what they took.
    pub(crate) fn add(&self, packets: usize, receive_ns: u64, service_ns: u64) {
        let [receive, service, _] = &self.usual;
        // Both are asked, so that both learn.
        if !(receive.counts(packets, receive_ns) & service.counts(packets, service_ns)) {
            self.odd.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.packets.add(packets as u64);
        self.receive_ns.add(receive_ns);
        self.service_ns.add(service_ns);
    }

    /// Takes note of packets that were steered, and of what they took where they went.
    pub(crate) fn add_steered(&self, packets: usize, ns: u64) {
        if !self.usual[2].counts(packets, ns) {
            self.odd.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.steered_packets.fetch_add(packets as u64, Ordering::Relaxed);
        self.steered_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Packets that were steered and looked at, and ns that they took.
    pub(crate) fn steered(&self) -> (u64, u64) {
        (self.steered_packets.load(Ordering::Relaxed), self.steered_ns.load(Ordering::Relaxed))
    }

    /// Takes note of which flows the packets are of.
    pub(crate) fn look_at(&self, batch: &mut Batch) {
        for skb in batch.as_mut_slice().iter_mut().take(HASHED) {
            let hash = skb_get_hash(skb);
            if hash != 0 {
                self.slices.0[scale(hash, SLICES)].add(1);
            }
        }
    }

    /// Packets that were looked at, by slices of the hash space.
    pub(crate) fn slices(&self) -> [u64; SLICES] {
        std::array::from_fn(|at| self.slices.0[at].get())
    }
}

/// Whether the automatic choice goes on, and how polling threads set it going.
pub(crate) struct AutoWatch {
    /// Whether polls are sampled: as soon as there is a queue to choose for.
    samples: AtomicBool,
    going: AtomicBool,
    wake_ns: AtomicU64,
}

impl AutoWatch {
    /// With `samples`, polls are to be sampled.
    pub(crate) fn new(samples: bool) -> Self {
        AutoWatch {
            samples: AtomicBool::new(samples),
            going: AtomicBool::new(false),
            wake_ns: AtomicU64::new(0),
        }
    }

    /// Whether polls are sampled: one load.
    #[inline(always)]
    pub(crate) fn samples(&self) -> bool {
        self.samples.load(Ordering::Relaxed)
    }

    /// There is a queue to choose for from now on.
    pub(crate) fn enable(&self) {
        self.samples.store(true, Ordering::Relaxed);
    }

    /// A poll was full: there may be more than its worker carries.
    pub(crate) fn is_busy(&self, housekeeper: &Waker) {
        if !self.is_going() && !self.going.swap(true, Ordering::Relaxed) {
            housekeeper.wake();
        }
    }

    /// ns that a thread spends on waking another; 0: not measured.
    pub(crate) fn wake_ns(&self) -> u64 {
        self.wake_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wake_ns(&self, ns: u64) {
        self.wake_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn is_going(&self) -> bool {
        self.going.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.going.store(false, Ordering::Relaxed);
    }
}

/// What was chosen for a queue, for display.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    /// Why it is steered as it is.
    pub(crate) why: String,
    /// What it would take to be steered otherwise.
    pub(crate) otherwise: String,
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
