//! Telling threads that wait for sockets to end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Whether to stop, for any number of threads, with a descriptor that becomes readable for good when they are to.
#[derive(Debug)]
pub struct Stop {
    told: AtomicBool,
    fd: OwnedFd,
}

impl Stop {
    /// Not yet.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { told: AtomicBool::new(false), fd })
    }

    /// Tells all to stop.
    pub fn stop(&self) {
        // The flag first: a thread that the descriptor wakes finds it set.
        self.told.store(true, Ordering::Release);
        // It can fail only where the counter is at its limit, and then the descriptor is readable.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Whether to stop.
    pub fn told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }
}

/// Readable once told to stop; never to be read.
impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
