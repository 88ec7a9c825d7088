//! Local senders that are held back before a TX queue, since too many packets are pending there for the thread that owns it.
//!
//! They sleep until an owner has made room and let go. Owners must not wait for them, and pay a fence and a load for having made room
//! while no sender waits; if a waiting sender has the lock, the wake-up is missed, so that each sleep is bounded. A socket that
//! does not block leaves its slot here, and becomes writable when an owner lets go.
//!
//! Invariant: a sender that waits is counted before it tries, or looks, once more, and an owner has made room before it looks which
//! wait, with a full fence between on both sides: one sees the other.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use softnet_core::qdisc::Sent;
use softnet_core::sync::{AtomicU64, AtomicUsize, Ordering, fence};

use crate::notify::ReadinessNotifier;
use crate::util::{Clock, lock};

/// How long a sender that is held back sleeps at most before it tries again.
const HOLD_BACK: Duration = Duration::from_millis(1);

/// See the module.
pub struct TxBackpressure {
    /// Senders that wait now.
    waiting: AtomicUsize,
    /// Times that owners let go while senders waited.
    passes: AtomicU64,
    lock: Mutex<()>,
    room: Condvar,
    /// Slots of sockets that are to be told.
    slots: Mutex<HashSet<u32>>,
    notifier: Arc<ReadinessNotifier>,
    /// Times a sender was held back.
    pub count: AtomicU64,
    /// ns that they waited.
    pub total: AtomicU64,
    /// The longest of these waits in ns.
    pub longest: AtomicU64,
}

impl TxBackpressure {
    /// Before a TX queue that the sockets send by which `told` tells.
    pub(crate) fn new(notifier: Arc<ReadinessNotifier>) -> Self {
        TxBackpressure {
            waiting: AtomicUsize::new(0),
            passes: AtomicU64::new(0),
            lock: Mutex::default(),
            room: Condvar::new(),
            slots: Mutex::default(),
            notifier,
            count: AtomicU64::new(0),
            total: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// The socket in slot `index` is to be told when it may send. `is_full` looks whether it still may not.
    pub(crate) fn wait_for_room(&self, index: u32, is_full: impl Fn() -> bool) {
        let mut slots = lock(&self.slots);
        // Even if the slot is here: it may have been another socket's, since closed.
        if let Some(slot) = self.notifier.sockets.slot(index) {
            slot.set_held_back(true);
        }
        if slots.insert(index) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        drop(slots);
        // An owner that made room before it saw us, or while we had the lock, will not look again.
        fence(Ordering::SeqCst);
        if !is_full() {
            self.wake_sockets();
        }
    }

    /// Tells the sockets that wait that they may send.
    #[cold]
    fn wake_sockets(&self) {
        let Ok(mut slots) = self.slots.try_lock() else { return };
        for index in slots.drain() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some(slot) = self.notifier.sockets.slot(index) {
                slot.set_held_back(false);
            }
            self.notifier.wake(index);
        }
    }

    /// Waits until `attempt`, which is given the time, says something else than [`Sent::Full`], or until it is `until`, in ns
    /// of the clock.
    pub(crate) fn wait(&self, clock: &Clock, until: u64, mut attempt: impl FnMut(u64) -> Sent) -> Sent {
        let since = clock.now();
        self.count.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
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
                drop(self.room.wait_timeout(guard, HOLD_BACK).unwrap_or_else(PoisonError::into_inner));
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let waited = now.saturating_sub(since);
        self.total.fetch_add(waited, Ordering::Relaxed);
        self.longest.fetch_max(waited, Ordering::Relaxed);
        sent
    }

    /// The owner made room and let go: waiting senders may try again. A worker must not wait here for them: if one of
    /// them has the lock, the others go on after their time-out.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Ok(_guard) = self.lock.try_lock() {
            self.passes.fetch_add(1, Ordering::Release);
            self.room.notify_all();
        }
        self.wake_sockets();
    }
}
