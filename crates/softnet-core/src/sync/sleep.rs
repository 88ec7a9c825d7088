//! How one thread goes to sleep without missing the wake-up of many others.
//!
//! The sleeper *announces* that it is about to sleep, then looks at every input once more, and only then
//! blocks on a descriptor. A waker first makes its input visible, then asks [`wake`](Sleeper::wake) whether the
//! descriptor must be written. Between the two stands a full fence on each side, so at least one of them sees the
//! other: either the sleeper finds the input, or the waker finds it announced.
//!
//! Invariant: for each announcement at most one waker is told to write the descriptor, and if the sleeper's second
//! look missed an input, one is.

use super::{AtomicBool, Mutant, Ordering, fence, model_failed, mutated};

/// The sleeping flag of one thread. Only that thread may [`announce`](Self::announce).
#[derive(Default)]
#[repr(align(64))]
pub struct Sleeper {
    announced: AtomicBool,
}

/// Sleep is announced, until this is dropped or [`awake`](Self::awake).
#[must_use = "dropping it takes the announcement back"]
pub struct Announced<'a> {
    sleeper: &'a Sleeper,
}

impl Sleeper {
    /// Of a thread that is awake.
    pub fn new() -> Self {
        Sleeper { announced: AtomicBool::new(false) }
    }

    /// Announces sleep. The caller must look at every input again before it blocks.
    #[inline]
    pub fn announce(&self) -> Announced<'_> {
        self.arm();
        Announced { sleeper: self }
    }

    /// As [`announce`](Self::announce), until [`disarm`](Self::disarm): for an announcement that outlives the call, as an
    /// unmasked doorbell's does.
    #[inline]
    pub fn arm(&self) {
        self.announced.store(true, Ordering::Relaxed);
        if mutated(Mutant::AnnounceWeakFence) {
            fence(Ordering::AcqRel);
        } else if !mutated(Mutant::AnnounceNoFence) {
            fence(Ordering::SeqCst);
        }
    }

    /// For wakers, after the input was made visible: whether the sleeper's descriptor must be written. Costs a
    /// fence and a load while the thread is awake.
    #[inline]
    pub fn wake(&self) -> bool {
        if !mutated(Mutant::WakeNoFence) {
            fence(Ordering::SeqCst);
        }
        // Writes only to take an announcement, so that no waker's write can come between two of them.
        self.announced.load(Ordering::Relaxed)
            && self.announced.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes an announcement back. Returns whether there is none: a waker got there first, so that the descriptor is or
    /// will soon be readable.
    #[inline]
    pub fn disarm(&self) -> bool {
        !self.announced.swap(false, Ordering::Relaxed)
    }

    /// Whether sleep is announced now; orders nothing.
    pub fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Relaxed)
    }
}

impl Announced<'_> {
    /// Takes the announcement back. Returns whether a waker got there first, in which case the descriptor is
    /// or will soon be readable.
    #[inline]
    pub fn awake(self) -> bool {
        let sleeper = self.sleeper;
        std::mem::forget(self);
        sleeper.disarm()
    }
}

impl Drop for Announced<'_> {
    #[inline]
    fn drop(&mut self) {
        if !model_failed() {
            self.sleeper.disarm();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn one_wake_up_per_announcement() {
        let sleeper = Sleeper::new();
        assert!(!sleeper.wake(), "awake: nothing to write");
        let announced = sleeper.announce();
        assert!(sleeper.is_announced());
        assert!(sleeper.wake());
        assert!(!sleeper.wake());
        assert!(announced.awake(), "a waker was there");
        assert!(!sleeper.announce().awake());
        drop(sleeper.announce());
        assert!(!sleeper.wake());
    }
}
