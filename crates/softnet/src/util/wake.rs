//! An eventfd that wakes a thread which announced that it sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use softnet_core::sync::Sleeper;

/// How others wake one thread.
pub struct Waker {
    /// The announcement, for the thread itself.
    pub sleeper: Sleeper,
    fd: OwnedFd,
}

impl Waker {
    /// Of a thread that is awake.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { sleeper: Sleeper::new(), fd })
    }

    /// After an input was made visible: wakes the thread if it sleeps or is about to.
    pub fn wake(&self) {
        if self.sleeper.wake() {
            self.wake_now();
        }
    }

    /// Of a thread whose announcement the caller took: makes the descriptor readable.
    pub(crate) fn wake_now(&self) {
        // Can fail only if the counter is full, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes a wake-up back, so that the descriptor is not readable any more.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// What the thread blocks on (readable).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
