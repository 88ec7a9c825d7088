//! The stack's clock: ns since the stack was made, monotonic.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::Timespec;

/// Started once, read from any thread.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at 0.
    pub fn start() -> Self {
        Clock(Instant::now())
    }

    /// Time since the start in ns.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// The time of day, UT, at which the clock started, in ns; as the machine's clock sees it now.
    pub fn midnight(&self) -> u64 {
        const DAY: u128 = 86_400_000_000_000;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        ((unix % DAY + DAY - u128::from(self.now()) % DAY) % DAY) as u64
    }

    /// The time `wait` from now on, in ns since the start.
    pub fn after(&self, wait: Duration) -> u64 {
        self.now().saturating_add(wait.as_nanos() as u64)
    }
}

/// `ns` as system calls take it.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
