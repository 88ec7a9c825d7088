//! The doorbell of in-process devices: an eventfd, written only when a sleeper has announced itself.
//!
//! A ringer that finds the doorbell unmasked claims it and then writes the descriptor. Between the two it may be
//! preempted, and the owner may mask the doorbell before the write has come: such a write is *owed*, and taken back by a
//! later mask. Invariant: a descriptor that is readable for nothing wakes at most one sleeper.
//!
//! Making packets visible and ringing for them are two steps, since a NIC that coalesces interrupts rings later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use softnet_core::sync::{AtomicU64, Ordering, Sleeper, fence};

use crate::device::Doorbell;

/// Two monotonic counters, of packets that came and of packets that were taken, and the way to wake the thread that
/// waits for them to differ.
pub struct MemDoorbell {
    fd: OwnedFd,
    sleeper: Sleeper,
    /// Writes that masks did not find, and that are still to come. Touched by the consumer only.
    owed: AtomicU64,
    came: AtomicU64,
    taken: AtomicU64,
}

impl MemDoorbell {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(MemDoorbell {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeper: Sleeper::new(),
            owed: AtomicU64::new(0),
            came: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        })
    }

    /// Packets that wait. Acquire both ways: the consumer then reads what was put there, and the producer may use the
    /// place of what was taken.
    #[inline]
    pub(super) fn waiting(&self) -> u64 {
        let taken = self.taken.load(Ordering::Acquire);
        self.came.load(Ordering::Acquire).wrapping_sub(taken)
    }

    /// The consumer took `n`.
    #[inline]
    pub(super) fn took(&self, n: u64) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    /// How many were taken so far.
    pub(super) fn total_taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// How many came so far. For the producer.
    #[inline]
    pub(super) fn total_came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// `n` more packets can be taken; the sleeper is not told yet. One producer at a time.
    #[inline]
    pub(super) fn came(&self, n: u64) {
        self.came.store(self.came.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    /// Wakes the sleeper if there is one; returns whether. At once after [`came`](Self::came), or later: what came
    /// before this is seen by the thread that unmasks the doorbell after it.
    #[inline]
    pub(super) fn wake(&self) -> bool {
        let asleep = self.sleeper.wake();
        if asleep {
            self.write();
        }
        asleep
    }

    /// [`came`](Self::came), then [`wake`](Self::wake).
    pub(super) fn ring(&self, n: u64) {
        self.came(n);
        self.wake();
    }

    /// As [`ring`](Self::ring), of one of many producers.
    pub(super) fn ring_shared(&self, n: u64) {
        self.came.fetch_add(n, Ordering::Release);
        self.wake();
    }

    /// Whether [`wake`](Self::wake) would ring. For the producer: if not, the consumer sees what came when it unmasks.
    pub(super) fn unmasked(&self) -> bool {
        // As in `Sleeper::wake`: what came is visible before the look.
        fence(Ordering::SeqCst);
        self.sleeper.is_announced()
    }

    fn write(&self) {
        // Can fail only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}

impl Doorbell for MemDoorbell {
    #[inline]
    fn pending(&self) -> bool {
        self.waiting() > 0
    }

    fn mask(&self) {
        let owed = self.owed.load(Ordering::Relaxed) + u64::from(self.sleeper.disarm());
        if owed > 0 {
            // The descriptor counts writes: one found may be an earlier ring's, and the last one's is to come.
            let mut writes = [0; 8];
            let found = rustix::io::read(&self.fd, &mut writes).map_or(0, |_| u64::from_ne_bytes(writes));
            self.owed.store(owed.saturating_sub(found), Ordering::Relaxed);
        }
    }

    fn unmask(&self) {
        self.sleeper.arm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn readable(bell: &MemDoorbell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&bell.fd, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn rings_once_for_each_unmask() {
        let bell = MemDoorbell::new().unwrap();
        bell.ring(1);
        assert!(!readable(&bell) && bell.pending(), "masked");
        bell.unmask();
        bell.ring(1);
        assert!(readable(&bell));
        bell.mask();
        assert!(!readable(&bell));
        bell.ring(1);
        assert!(!readable(&bell));
        assert_eq!(bell.waiting(), 3);
    }

    /// The ringer was preempted twice: what a mask finds is the first write, and the second is to come.
    #[test]
    fn each_late_ring_is_taken_back() {
        let bell = MemDoorbell::new().unwrap();
        for _ in 0..2 {
            bell.unmask();
            assert!(bell.sleeper.wake());
            bell.mask();
            bell.write();
        }
        bell.unmask();
        assert!(bell.sleeper.wake());
        bell.mask();
        bell.write();
        assert!(readable(&bell));
        bell.unmask();
        bell.mask();
        assert!(!readable(&bell));
    }

    /// The ringer was preempted between its claim and its write. The late write may wake the next sleeper for nothing,
    /// but not every one after it.
    #[test]
    fn a_late_ring_wakes_one_sleeper_at_most() {
        let bell = MemDoorbell::new().unwrap();
        bell.unmask();
        assert!(bell.sleeper.wake());
        bell.mask();
        bell.unmask();
        bell.write();
        assert!(readable(&bell));
        bell.mask();
        bell.unmask();
        assert!(!readable(&bell));
        bell.ring(1);
        assert!(readable(&bell));
        bell.mask();
        assert!(!readable(&bell));
    }
}
