//! When a thread is to do what others have for it, at the earliest: TCP's timer thread, and the shards whose
//! deadlines it keeps.
//!
//! A holder of a shard leaves the shard's first deadline with it ([`Deadline::leave`]), and then lowers the
//! thread's ([`Due::lower`]). The thread takes its own time back ([`Due::take`]) before it looks at the shards'
//! deadlines, and lowers it by those that are not due; before it sleeps it announces that, and reads its
//! time once more.
//!
//! Invariant: both sides write the one, fence, and then read the other. So a deadline that the thread did not
//! find with its shard is one by which the holder lowered the thread's time after it had been taken back, and the
//! thread is awake or woken.

use super::{AtomicU64, Mutant, Ordering, fence, mutated};

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The time of the thread.
pub struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Due(AtomicU64::new(NEVER))
    }
}

impl Due {
    /// There is something to do at `at`. Returns whether the thread is to be woken, since it may sleep for
    /// longer.
    #[inline]
    pub fn lower(&self, at: u64) -> bool {
        at < self.get() && self.0.fetch_min(at, Ordering::AcqRel) > at
    }

    /// There is something to do now; the thread is to be woken.
    pub fn now(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether there is something to do at `now`: then nothing is known any more, and the thread asks all who may have
    /// something.
    pub fn take(&self, now: u64) -> bool {
        let is = self.get() <= now;
        if is {
            // What others did before they lowered it is seen.
            self.0.swap(NEVER, Ordering::AcqRel);
            if !mutated(Mutant::DueNoFence) {
                fence(Ordering::SeqCst);
            }
        }
        is
    }

    /// When there is something to do. Asked before the thread sleeps, and after it has announced that.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A first deadline, as the last to change what it is of left it.
pub struct Deadline(AtomicU64);

impl Default for Deadline {
    fn default() -> Self {
        Deadline(AtomicU64::new(NEVER))
    }
}

impl Deadline {
    /// It is `at`, from now on. By the one that has the lock of what it is of; [`Due::lower`] follows.
    #[inline]
    pub fn leave(&self, at: u64) {
        if self.0.load(Ordering::Relaxed) != at {
            self.0.store(at, Ordering::Relaxed);
            if !mutated(Mutant::DeadlineNoFence) {
                fence(Ordering::SeqCst);
            }
        }
    }

    /// What it is.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_woken_for_what_is_earlier() {
        let due = Due::default();
        assert!(due.lower(10) && !due.lower(10) && !due.lower(11) && due.lower(9));
        assert!(!due.take(8) && due.take(9) && !due.take(1000));
        due.now();
        assert!(due.take(0));
        let deadline = Deadline::default();
        deadline.leave(5);
        assert_eq!((deadline.get(), due.get()), (5, NEVER));
    }
}
