//! A word with an ownership bit, and the state that only the bit's holder may touch.
//!
//! Any thread may try to set bit [`OWNED`] together with whatever else the word says; the one whose
//! compare-exchange takes it from clear to set gets the [`Guard`], and with it `&mut` to the body. The guard may
//! wait in a list or travel to another thread. Giving it up is one compare-exchange too, so that a bit another
//! thread sets meanwhile is either seen by the leaver or finds the word free.
//!
//! Invariant: as long as `OWNED` is set there is at most one guard, and only guards clear it.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::{AtomicU32, Mutant, Ordering, UnsafeCell, model_failed, mutated, weakened};

/// The ownership bit. The others are the user's.
pub const OWNED: u32 = 1;

/// The word has a cache line of its own: others write to it while the owner works on the body.
#[repr(align(64))]
struct Line(AtomicU32);

/// State `B` guarded by the ownership bit of a word, beside state `S` that any thread may read.
pub struct Owned<S, B> {
    word: Line,
    shared: S,
    body: UnsafeCell<B>,
}

// SAFETY: `&Owned` gives out `&S`; `&mut B` goes to the one holder of the guard, whichever thread that is.
unsafe impl<S: Sync, B: Send> Sync for Owned<S, B> {}

/// What a word means, beyond its ownership bit.
pub trait Word {
    /// What `word` becomes when its guard is dropped instead of released.
    fn dropped(word: u32) -> u32;
}

/// Ownership of an [`Owned`].
#[must_use = "dropping a guard ends ownership as if its holder had failed"]
pub struct Guard<S: Word, B> {
    cell: Arc<Owned<S, B>>,
}

impl<S: Word, B> Owned<S, B> {
    /// An owned word with `bits` besides, and its guard.
    pub fn held(bits: u32, shared: S, body: B) -> Guard<S, B> {
        let (word, body) = (Line(AtomicU32::new(bits | OWNED)), UnsafeCell::new(body));
        Guard { cell: Arc::new(Owned { word, shared, body }) }
    }

    /// The word now.
    #[inline]
    pub fn word(&self) -> u32 {
        self.word.0.load(Ordering::Relaxed)
    }

    /// What any thread may read.
    #[inline(always)]
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// Sets bits other than [`OWNED`].
    pub fn set(&self, bits: u32) {
        self.word.0.fetch_or(bits & !OWNED, Ordering::AcqRel);
    }

    /// Exchanges the word for what `f` makes of it, unless that is `None`, and returns the guard if that set
    /// [`OWNED`]. It cannot clear it. The write happens even if the value stays: what this thread wrote before is
    /// visible to the thread that owns the word when it next looks.
    #[inline]
    pub fn acquire(this: &Arc<Self>, mut f: impl FnMut(u32) -> Option<u32>) -> Option<Guard<S, B>> {
        let mut now = this.word.0.load(Ordering::Relaxed);
        loop {
            let new = f(now)? | now & OWNED;
            let done = if mutated(Mutant::AcquireNotAtomic) {
                this.word.0.store(new, Ordering::Release);
                Ok(now)
            } else {
                this.word.0.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Relaxed)
            };
            match done {
                Ok(_) => return (!now & new & OWNED != 0).then(|| Guard { cell: this.clone() }),
                Err(other) => now = other,
            }
        }
    }
}

impl<S: Word, B> Guard<S, B> {
    /// The cell it owns.
    #[inline(always)]
    pub fn cell(&self) -> &Arc<Owned<S, B>> {
        &self.cell
    }

    /// What any thread may read, and what only the owner may touch.
    #[inline(always)]
    pub fn parts(&mut self) -> (&S, &mut B) {
        // SAFETY: this is the only guard, and `&mut self` makes this the only reference from it.
        (&self.cell.shared, self.cell.body.with_mut(|body| unsafe { &mut *body }))
    }

    /// Exchanges the word for what `f` makes of it. If that cleared [`OWNED`] the guard is gone and its cell
    /// is returned; else the caller still is the owner.
    #[inline]
    pub fn release(self, mut f: impl FnMut(u32) -> u32) -> Result<Arc<Owned<S, B>>, Self> {
        let order = weakened(Mutant::ReleaseRelaxed, Ordering::AcqRel);
        let mut now = self.cell.word.0.load(Ordering::Relaxed);
        loop {
            let new = f(now);
            let done = if mutated(Mutant::ReleaseNotFolded) {
                self.cell.word.0.store(new, Ordering::Release);
                Ok(now)
            } else {
                self.cell.word.0.compare_exchange_weak(now, new, order, Ordering::Relaxed)
            };
            match done {
                Ok(_) if new & OWNED != 0 => return Err(self),
                Ok(_) => {
                    let this = ManuallyDrop::new(self);
                    // SAFETY: read once, and what it is read from is not dropped.
                    return Ok(unsafe { std::ptr::read(&this.cell) });
                }
                Err(other) => now = other,
            }
        }
    }
}

impl<S: Word, B> Drop for Guard<S, B> {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let mut now = self.cell.word.0.load(Ordering::Relaxed);
        while let Err(other) =
            self.cell.word.0.compare_exchange_weak(now, S::dropped(now), Ordering::AcqRel, Ordering::Relaxed)
        {
            now = other;
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Shared;

    /// Bit 8 outlives its holder.
    impl Word for Shared {
        fn dropped(word: u32) -> u32 {
            if word & 8 == 0 { word & !OWNED } else { word }
        }
    }

    #[test]
    fn one_guard_at_a_time() {
        let mut guard = Owned::held(4, Shared, 7);
        let cell = guard.cell().clone();
        assert_eq!((cell.word(), cell.shared()), (5, &Shared));
        assert!(Owned::acquire(&cell, |w| Some(w | OWNED)).is_none());
        *guard.parts().1 += 1;
        assert!(Owned::acquire(&cell, |w| Some(w & !OWNED | 2)).is_none());
        assert_eq!(cell.word(), 7, "only the guard clears the bit");
        let guard = guard.release(|w| w & !2).err().unwrap();
        assert!(guard.release(|w| w & !OWNED).is_ok());
        assert_eq!(cell.word(), 4);
        assert!(Owned::acquire(&cell, |_| None).is_none());
        let mut guard = Owned::acquire(&cell, |w| Some(w | OWNED)).unwrap();
        assert_eq!(*guard.parts().1, 8);
    }

    #[test]
    fn a_dropped_guard_leaves_what_the_word_says() {
        let guard = Owned::held(0, Shared, ());
        let cell = guard.cell().clone();
        drop(guard);
        let guard = Owned::acquire(&cell, |w| Some(w | OWNED | 8)).expect("was free");
        drop(guard);
        assert!(Owned::acquire(&cell, |w| Some(w | OWNED)).is_none());
    }
}
