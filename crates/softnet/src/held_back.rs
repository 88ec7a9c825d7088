//! Local senders that are held back before a TX queue, since too many packets are pending there for the thread that owns it.
//!
//! They sleep until an owner lets go. Owners must not wait for them, and pay one load while nobody waits; so a wake-up may
//! be missed, and each sleep is bounded. Invariant: a sender that waits is counted before it tries once more.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use softnet_core::qdisc::Sent;
use softnet_core::sync::{AtomicU64, AtomicUsize, Ordering};

use crate::clock::Clock;
use crate::shared::lock;

/// How long a sender that is held back sleeps at most before it tries again.
const HOLD_BACK: Duration = Duration::from_millis(1);

/// See the [module](self).
#[derive(Default)]
pub struct HeldBack {
    /// Senders that wait now.
    waiting: AtomicUsize,
    /// Times that owners let go while somebody waited.
    passes: AtomicU64,
    lock: Mutex<()>,
    go_on: Condvar,
    /// Times a sender was held back.
    pub count: AtomicU64,
    /// ns that they waited.
    pub total: AtomicU64,
    /// The longest of these waits in ns.
    pub longest: AtomicU64,
}

impl HeldBack {
    /// Waits until `attempt`, which is given the time, says something else than [`Sent::Full`], or until it is `until`, in ns
    /// of the clock.
    pub(crate) fn wait(&self, clock: &Clock, until: u64, mut attempt: impl FnMut(u64) -> Sent) -> Sent {
        let since = clock.now();
        self.count.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let (sent, now) = loop {
            let passes = self.passes.load(Ordering::Acquire);
            let now = clock.now();
            let sent = attempt(now);
            if sent != Sent::Full || now >= until {
                break (sent, now);
            }
            let guard = lock(&self.lock);
            if self.passes.load(Ordering::Relaxed) == passes {
                // An owner that did not see us yet lets go without a word, hence the time-out.
                drop(self.go_on.wait_timeout(guard, HOLD_BACK).unwrap_or_else(PoisonError::into_inner));
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let waited = now.saturating_sub(since);
        self.total.fetch_add(waited, Ordering::Relaxed);
        self.longest.fetch_max(waited, Ordering::Relaxed);
        sent
    }

    /// The owner let go: whoever waits may try again. A worker must not wait here for those who wait: if one of them has
    /// the lock, the time-out is for the others.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0
            && let Ok(_guard) = self.lock.try_lock()
        {
            self.passes.fetch_add(1, Ordering::Release);
            self.go_on.notify_all();
        }
    }
}
