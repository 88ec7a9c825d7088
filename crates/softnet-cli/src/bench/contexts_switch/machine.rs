//! Whether the machine itself stood still: threads that do nothing but sleep for a millisecond, one on each CPU, and how
//! late they woke; and what the hypervisor took.
//!
//! A thread that wakes late may have waited for the measured threads, too: there are more of these than CPUs on a small
//! machine. So a stall shorter than the control's is not the program's; a longer one is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    /// The latest that a thread woke.
    pub(super) stall: Duration,
    /// Time that the hypervisor took, of all CPUs, to 10 ms.
    pub(super) steal: Duration,
}

/// Shared by the threads.
#[derive(Default)]
pub(super) struct Control {
    latest_ns: AtomicU64,
    over: AtomicBool,
}

impl Control {
    /// Watches `cpu` until it is over.
    pub(super) fn watch(&self, cpu: usize) {
        const NAP: Duration = Duration::from_millis(1);
        // Where it may not be pinned it watches whichever CPU it is on.
        let _ = crate::bench::pin(cpu);
        while !self.over.load(Ordering::Relaxed) {
            let start = Instant::now();
            std::thread::sleep(NAP);
            let late = start.elapsed().saturating_sub(NAP);
            self.latest_ns.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Forgets what was.
    pub(super) fn start(&self) {
        self.latest_ns.store(0, Ordering::Relaxed);
    }

    /// How late a thread woke since the start.
    pub(super) fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest_ns.load(Ordering::Relaxed))
    }

    /// Ends the threads.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Time stolen from all CPUs so far.
pub(super) fn stolen() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    Duration::from_millis(10 * ticks.unwrap_or(0))
}
