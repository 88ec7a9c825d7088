//! The thread that runs queues again when a sender's [`NextRun`] asks for it: what the kernel does in a softirq
//! (`net_tx_action`), and the runtime on a worker. One for all queues, for every way of sending alike.
//!
//! Invariant: a queue that a sender asked for is run after that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use softnet_core::SoftnetData;
use softnet_core::qdisc::{NextRun, ToFree};

use super::queue::TxQueue;
use super::wire::Accounts;

/// What senders tell the worker.
pub(super) struct Worker {
    scheduled: Box<[Scheduled]>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

/// One queue's word, on a line of its own.
#[repr(align(128))]
struct Scheduled {
    /// It is to be run: the kernel's `__QDISC_STATE_SCHED`.
    now: AtomicBool,
    /// It is to be run at this time, in ns.
    at: AtomicU64,
}

/// No time.
const NEVER: u64 = u64::MAX;

impl Worker {
    pub(super) fn new(queues: usize) -> Self {
        let scheduled = |_| Scheduled { now: AtomicBool::new(false), at: AtomicU64::new(NEVER) };
        let scheduled = (0..queues).map(scheduled).collect();
        Worker { scheduled, stop: AtomicBool::new(false), thread: OnceLock::new() }
    }

    /// Sees to what a sender, or a run, of `queue` was told.
    #[inline]
    pub(super) fn see_to(&self, queue: usize, next_run: NextRun) {
        let scheduled = &self.scheduled[queue];
        let is_news = match next_run {
            // The wire is never full.
            NextRun::Idle | NextRun::Stopped => false,
            // Always written: the worker that clears it sees what came before.
            NextRun::Again => !scheduled.now.swap(true, Ordering::AcqRel),
            NextRun::Watchdog(at) => scheduled.at.fetch_min(at, Ordering::AcqRel) > at,
        };
        if is_news {
            self.wake();
        }
    }

    /// `thread` is the one that runs [`run`](Self::run). Before any sender starts.
    pub(super) fn sign(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Ends [`run`](Self::run).
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// The worker's thread. `epoch` is when the senders' clock began.
    pub(super) fn run(
        &self,
        queues: &[Box<dyn TxQueue>],
        ctx: &mut SoftnetData,
        accounts: &Accounts,
        epoch: Instant,
    ) {
        let mut to_free = ToFree::new();
        while !self.stop.load(Ordering::Acquire) {
            let mut until = NEVER;
            for (i, (scheduled, queue)) in self.scheduled.iter().zip(queues).enumerate() {
                let now = epoch.elapsed().as_nanos() as u64;
                let at = scheduled.at.load(Ordering::Relaxed);
                // An earlier time that comes in between stays.
                let is_due = at <= now
                    && scheduled.at.compare_exchange(at, NEVER, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                if scheduled.now.swap(false, Ordering::AcqRel) || is_due {
                    if let Some(next_run) = queue.run(ctx, now, &mut to_free) {
                        self.see_to(i, next_run);
                    }
                    accounts.free(ctx, &mut to_free);
                }
                until = until.min(scheduled.at.load(Ordering::Relaxed));
            }
            if self.scheduled.iter().any(|scheduled| scheduled.now.load(Ordering::Relaxed)) {
                continue;
            }
            match until {
                NEVER => std::thread::park(),
                at => {
                    let now = epoch.elapsed().as_nanos() as u64;
                    std::thread::park_timeout(Duration::from_nanos(at.saturating_sub(now)));
                }
            }
        }
    }
}
