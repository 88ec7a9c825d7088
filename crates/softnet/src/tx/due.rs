//! When a worker is to run its TX queues, and how it is woken for that.
//!
//! Any thread may set the time. The worker forgets it before it looks at the time of each of its queues; so a queue whose time
//! is set after that look sets this time, too.

use std::sync::Arc;

use softnet_core::sync::{AtomicU64, Ordering};

use super::NEVER;
use crate::util::Waker;

/// See the module.
pub struct TxDue {
    /// No later than the earliest of the worker's queues, in ns of the stack's clock.
    at: AtomicU64,
    waker: Arc<Waker>,
}

impl TxDue {
    /// Of the worker that `waker` wakes; none of its queues is due.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        TxDue { at: AtomicU64::new(NEVER), waker }
    }

    /// Has the worker look at its queues at `at`, and wakes it if it sleeps.
    pub(crate) fn set(&self, at: u64) {
        // Release: with this time the worker gets that of the queue.
        self.at.fetch_min(at, Ordering::Release);
        self.waker.wake();
    }

    /// Whether a queue is due at some time.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.at.load(Ordering::Relaxed) != NEVER
    }

    /// The worker is about to look at the times of its queues.
    pub(crate) fn forget(&self) {
        self.at.swap(NEVER, Ordering::Acquire);
    }

    /// The worker found that the earliest of its queues is due at `at`.
    pub(crate) fn lower(&self, at: u64) {
        self.at.fetch_min(at, Ordering::Relaxed);
    }
}
