//! The doorbell of in-process devices: an eventfd, written only when a sleeper has announced itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use softnet_core::sync::{AtomicU64, Ordering, Sleeper};

use crate::device::Doorbell;

/// Two monotonic counters, of packets that came and of packets that were taken, and the way to wake whoever
/// waits for them to differ.
pub struct MemDoorbell {
    fd: OwnedFd,
    sleeper: Sleeper,
    came: AtomicU64,
    taken: AtomicU64,
}

impl MemDoorbell {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(MemDoorbell {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeper: Sleeper::new(),
            came: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        })
    }

    /// Packets that wait. For the consumer.
    #[inline]
    pub(super) fn waiting(&self) -> u64 {
        self.came.load(Ordering::Acquire).wrapping_sub(self.taken.load(Ordering::Relaxed))
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

    /// `n` more packets can be taken; wakes the sleeper if there is one. One producer at a time.
    pub(super) fn ring(&self, n: u64) {
        self.came.store(self.came.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
        if self.sleeper.wake() {
            // Can fail only when the counter is full, and then it is readable anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Doorbell for MemDoorbell {
    #[inline]
    fn pending(&self) -> bool {
        self.waiting() > 0
    }

    fn mask(&self) {
        if self.sleeper.disarm() {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    fn unmask(&self) {
        self.sleeper.arm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
