//! Owner word and pending list in one: the primitive that carries every hand-over between threads.
//!
//! Any thread may call it with an element. A thread that finds the word free owns it and runs; one that finds it taken
//! pushes its element to the pending list and goes on; the owner drains before it lets go. One atomic word is
//! free, owned with nothing pending, or owned with the index of the newest pending element:
//!
//! * a push is one compare-exchange, and says whether the list was empty: the pusher that made it non-empty
//!   is the one that wakes the owner, if owners sleep;
//! * the owner detaches the whole list by one swap, so that no element is ever popped under a pusher's hands
//!   and a stale head does no harm (no ABA), and reverses it: first in, first out;
//! * letting go is a compare-exchange from "owned, nothing pending", which a push in between defeats;
//! * an owner that has done its share may park ownership instead: the word stays taken, pushes go on, and the
//!   first that unparks it is the owner.
//!
//! Elements are indices; their links live wherever [`Links`] says (in packet heads, in a side table).
//! An element may be on one list at a time, and belongs to the list until the owner gets it.
//!
//! Invariant: at most one [`Owner`] exists per word, and every element pushed reaches one.

use std::ops::Deref;

use super::{AtomicU32, Mutant, Ordering, model_failed, mutated, weakened};

/// The index that is none: the link of a last element.
pub const NIL: u32 = u32::MAX;

const FREE: u32 = u32::MAX;
const EMPTY: u32 = u32::MAX - 1;
const NO_LIMIT: u32 = u32::MAX;
const NOT_PARKED: u32 = u32::MAX - 1;

/// Where the links of elements live. Only the thread that holds element `i` calls it for `i`.
pub trait Links {
    /// Sets the link of element `i`.
    fn set_next(&self, i: u32, next: u32);
    /// The link of element `i`.
    fn next(&self, i: u32) -> u32;
}

/// Links in a table of their own, for the indices `0..n`.
pub struct LinkTable(Box<[AtomicU32]>);

impl LinkTable {
    /// A table for `n` elements.
    pub fn new(n: u32) -> Self {
        LinkTable((0..n).map(|_| AtomicU32::new(NIL)).collect())
    }
}

impl Links for LinkTable {
    // Relaxed: the owner word orders a link with the element it belongs to.
    #[inline(always)]
    fn set_next(&self, i: u32, next: u32) {
        self.0[i as usize].store(next, Ordering::Relaxed);
    }

    #[inline(always)]
    fn next(&self, i: u32) -> u32 {
        self.0[i as usize].load(Ordering::Relaxed)
    }
}

/// A value on a cache line of its own: what other threads write beside it does not slow it down.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct OwnLine<T>(pub T);

impl<T> Deref for OwnLine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Owner word and pending list. [`OwnLine`] keeps them off what others write; a socket's slot, of which
/// there are a million, has them beside what the same threads write.
pub struct Handover {
    word: AtomicU32,
    count: AtomicU32,
    /// While ownership is parked, what the owner had detached and not yielded.
    parked: AtomicU32,
    limit: u32,
}

/// What [`Handover::enter`] came to.
pub enum Entered<'a> {
    /// The caller owns the word, and still has its element.
    Owner(Owner<&'a Handover>),
    /// The element was handed over to the owner.
    Pending {
        /// Whether it is the only one pending.
        was_empty: bool,
    },
    /// Too many are pending; the caller still has its element.
    Full,
}

/// Why an element was not taken; the caller still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Too many are pending.
    Full,
    /// No thread owns the word.
    Unowned,
}

impl Default for Handover {
    fn default() -> Self {
        Self::new()
    }
}

impl Handover {
    /// A free word without a limit: for elements that are bounded by nature.
    pub fn new() -> Self {
        Self::with_limit(NO_LIMIT)
    }

    /// A free word with room for `limit` pending elements beyond the first. Pushes are counted only when the list
    /// is non-empty, so that the uncontended path pays nothing; the count is not reset in the same instant as
    /// the list is detached, so that a few more or fewer may get in while both happen.
    pub fn with_limit(limit: u32) -> Self {
        let (word, parked) = (AtomicU32::new(FREE), AtomicU32::new(NOT_PARKED));
        Handover { word, count: AtomicU32::new(0), parked, limit }
    }

    /// Takes ownership without an element; hands `this` back if another thread has it. For a permanent owner,
    /// `this` may be an `Arc` or whatever else leads to the word.
    #[inline]
    pub fn claim<H: Deref<Target = Handover>>(this: H) -> Result<Owner<H>, H> {
        // The look before leaves the line to the pushers while another thread owns the word.
        if this.word.load(Ordering::Relaxed) != FREE {
            return Err(this);
        }
        // Acquire: what former owners did comes before what this one does.
        match this.word.compare_exchange(FREE, EMPTY, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Owner { handover: this, rest: NIL, left: false }),
            Err(_) => Err(this),
        }
    }

    /// Takes ownership that was [parked](Owner::park); hands `this` back if it is not, or another thread was first.
    #[inline]
    pub fn unpark<H: Deref<Target = Handover>>(this: H) -> Result<Owner<H>, H> {
        let rest = this.parked.load(Ordering::Relaxed);
        if rest == NOT_PARKED {
            return Err(this);
        }
        let taken = if mutated(Mutant::UnparkNotAtomic) {
            let now = this.parked.load(Ordering::Acquire);
            this.parked.store(NOT_PARKED, Ordering::Relaxed);
            now == rest
        } else {
            // Acquire: what the owner that parked did comes before what this one does.
            let (order, never) = (Ordering::Acquire, Ordering::Relaxed);
            this.parked.compare_exchange(rest, NOT_PARKED, order, never).is_ok()
        };
        if taken { Ok(Owner { handover: this, rest, left: false }) } else { Err(this) }
    }

    /// Becomes the owner, or hands element `i` over to the owner. An owner runs its own element first, then what
    /// it drains.
    #[inline]
    pub fn enter(&self, links: &(impl Links + ?Sized), i: u32) -> Entered<'_> {
        loop {
            if let Ok(owner) = Self::claim(self) {
                return Entered::Owner(owner);
            }
            match self.push(links, i) {
                Ok(was_empty) => return Entered::Pending { was_empty },
                Err(Refused::Full) => return Entered::Full,
                Err(Refused::Unowned) => {}
            }
        }
    }

    /// Hands element `i` over to the owner. Returns whether the list was empty, in which case it is for the
    /// caller to wake the owner.
    #[inline]
    pub fn push(&self, links: &(impl Links + ?Sized), i: u32) -> Result<bool, Refused> {
        self.push_chain(links, i, i, 1)
    }

    /// As [`push`](Self::push) for `n` elements at once, all or none. They are linked already as the list is: `newest`
    /// to the one pushed before it, and so on down to `oldest`. A chain counts as `n`, and gets in as long as
    /// there is room for one.
    #[inline]
    pub fn push_chain(
        &self,
        links: &(impl Links + ?Sized),
        oldest: u32,
        newest: u32,
        n: u32,
    ) -> Result<bool, Refused> {
        self.push_counted(links, oldest, newest, Some(n))
    }

    /// As [`push_chain`](Self::push_chain), whatever the limit: of elements that another limit bounds. Never
    /// [`Full`](Refused::Full).
    #[inline]
    pub fn push_chain_beyond(
        &self,
        links: &(impl Links + ?Sized),
        oldest: u32,
        newest: u32,
    ) -> Result<bool, Refused> {
        self.push_counted(links, oldest, newest, None)
    }

    #[inline(always)]
    fn push_counted(
        &self,
        links: &(impl Links + ?Sized),
        oldest: u32,
        newest: u32,
        n: Option<u32>,
    ) -> Result<bool, Refused> {
        debug_assert!(oldest < EMPTY && newest < EMPTY);
        // Release: the element, and its link, must be visible to the owner that detaches it.
        let order = weakened(Mutant::PushRelaxed, Ordering::Release);
        let mut counted = self.limit == NO_LIMIT || n.is_none();
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let next = match now {
                FREE => return Err(Refused::Unowned),
                EMPTY => NIL,
                head => {
                    if !counted && !n.is_none_or(|n| self.count(n)) {
                        return Err(Refused::Full);
                    }
                    counted = true;
                    head
                }
            };
            links.set_next(oldest, next);
            match self.word.compare_exchange_weak(now, newest, order, Ordering::Relaxed) {
                Ok(_) => return Ok((now == EMPTY) != mutated(Mutant::FirstNotTold)),
                Err(other) => now = other,
            }
        }
    }

    /// Whether anything is pending that has not been detached yet.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.word.load(Ordering::Relaxed) < EMPTY
    }

    /// Whether a push would be refused, were a thread to try now.
    pub fn is_full(&self) -> bool {
        // Only what is pushed to a list that is not empty is counted; what was counted may have found it empty after all.
        self.has_pending() && self.count.load(Ordering::Relaxed) >= self.limit
    }

    fn count(&self, n: u32) -> bool {
        // The look before keeps the count from running away while an owner is held up.
        self.count.load(Ordering::Relaxed) < self.limit
            && self.count.fetch_add(n, Ordering::Relaxed) < self.limit
    }
}

/// Ownership of a [`Handover`].
///
/// It must end by [`leave`](Self::leave) or [`park`](Self::park). An owner that is dropped while something is pending
/// leaves the word owned for ever, since no thread is left to run those elements; that is a bug, and debug builds say
/// so.
#[must_use = "an owner must drain and leave"]
pub struct Owner<H: Deref<Target = Handover>> {
    handover: H,
    rest: u32,
    left: bool,
}

impl<H: Deref<Target = Handover>> Owner<H> {
    /// The elements pending now, first to last. If a former drain was not taken to its end, what it left (and
    /// only that) comes first.
    #[inline]
    pub fn drain<'a, L: Links + ?Sized>(&'a mut self, links: &'a L) -> Drain<'a, H, L> {
        if self.rest == NIL && self.handover.has_pending() {
            self.detach(links);
        }
        Drain { owner: self, links }
    }

    /// What the next drain yields first, if it was detached before.
    #[inline(always)]
    pub(crate) fn upcoming(&self) -> Option<u32> {
        (self.rest != NIL).then_some(self.rest)
    }

    /// Whether there is something to drain.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.rest != NIL || self.handover.has_pending()
    }

    /// Lets go; succeeds only if nothing is pending. Otherwise the caller must drain again.
    #[inline]
    pub fn leave(mut self) -> Result<(), Self> {
        if self.try_leave() { Ok(()) } else { Err(self) }
    }

    /// Leaves the word taken and ownership to the thread that [unparks](Handover::unpark) it, which the caller must
    /// see to.
    pub fn park(mut self) {
        self.left = true;
        // Release: what this owner did comes before what the next one does.
        let order = weakened(Mutant::ParkRelaxed, Ordering::Release);
        self.handover.parked.store(self.rest, order);
    }

    /// As [`leave`](Self::leave), for an owner in a field. Nothing may be done with it after it said yes.
    #[inline]
    pub(crate) fn try_leave(&mut self) -> bool {
        if mutated(Mutant::LeaveBlind) {
            self.handover.word.store(FREE, Ordering::Release);
            self.left = true;
        } else if self.rest == NIL {
            // Release: what this owner did comes before what the next one does.
            let order = weakened(Mutant::LeaveRelaxed, Ordering::Release);
            self.left = self.handover.word.compare_exchange(EMPTY, FREE, order, Ordering::Relaxed).is_ok();
        }
        self.left
    }

    fn detach(&mut self, links: &(impl Links + ?Sized)) {
        // Acquire: every element and link below was pushed with release, and each push reads the one before.
        let order = weakened(Mutant::DetachRelaxed, Ordering::Acquire);
        let mut newest = self.handover.word.swap(EMPTY, order);
        if self.handover.limit != NO_LIMIT {
            self.handover.count.store(0, Ordering::Relaxed);
        }
        if mutated(Mutant::NotReversed) {
            self.rest = newest;
            return;
        }
        while newest != NIL {
            let older = links.next(newest);
            links.set_next(newest, self.rest);
            self.rest = newest;
            newest = older;
        }
    }
}

impl<H: Deref<Target = Handover>> Drop for Owner<H> {
    fn drop(&mut self) {
        if !model_failed() && !self.left && !self.try_leave() {
            debug_assert!(std::thread::panicking(), "an owner was dropped with elements pending");
        }
    }
}

/// See [`Owner::drain`]. What it has not yielded when it is dropped stays with the owner.
pub struct Drain<'a, H: Deref<Target = Handover>, L: Links + ?Sized> {
    owner: &'a mut Owner<H>,
    links: &'a L,
}

impl<H: Deref<Target = Handover>, L: Links + ?Sized> Iterator for Drain<'_, H, L> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let i = self.owner.rest;
        if i == NIL {
            return None;
        }
        self.owner.rest = self.links.next(i);
        // The thread that gets it may put it on another list.
        self.links.set_next(i, NIL);
        Some(i)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::sync::AtomicBool;

    #[test]
    fn the_first_owns_and_the_rest_queue() {
        let (h, links) = (Handover::new(), LinkTable::new(8));
        let Entered::Owner(mut owner) = h.enter(&links, 0) else { panic!("was free") };
        assert!(Handover::claim(&h).is_err());
        assert!(matches!(h.enter(&links, 1), Entered::Pending { was_empty: true }));
        assert!(matches!(h.enter(&links, 2), Entered::Pending { was_empty: false }));
        assert_eq!(h.push(&links, 3), Ok(false));
        let mut owner = {
            assert_eq!(owner.drain(&links).next(), Some(1));
            assert_eq!(links.next(1), NIL, "cleared before it is handed out");
            assert_eq!(h.push(&links, 4), Ok(true));
            owner.leave().expect_err("elements are left over")
        };
        assert_eq!(owner.drain(&links).collect::<Vec<_>>(), [2, 3]);
        let mut owner = owner.leave().expect_err("one is pending");
        assert_eq!(owner.drain(&links).collect::<Vec<_>>(), [4]);
        assert_eq!(owner.drain(&links).next(), None);
        assert!(owner.leave().is_ok());
        assert_eq!(h.push(&links, 5), Err(Refused::Unowned));
        assert!(matches!(h.enter(&links, 5), Entered::Owner(_)), "dropped idle: left");
        assert!(Handover::claim(std::sync::Arc::new(h)).is_ok());
    }

    #[test]
    fn a_limit_of_1000_holds_1001_and_starts_anew_after_a_drain() {
        let (h, links) = (Handover::with_limit(1000), LinkTable::new(2000));
        let mut owner = Handover::claim(&h).ok().unwrap();
        for _ in 0..2 {
            for i in 0..1001 {
                assert_eq!(h.push(&links, i), Ok(i == 0));
            }
            for _ in 0..3 {
                assert_eq!(h.push(&links, 1001), Err(Refused::Full));
            }
            assert!(matches!(h.enter(&links, 1001), Entered::Full));
            assert!(owner.drain(&links).eq(0..1001));
        }
        assert!(owner.leave().is_ok());
    }

    #[test]
    fn a_list_is_full_if_a_push_would_be_refused() {
        let (h, links) = (Handover::with_limit(0), LinkTable::new(2));
        assert!(!h.is_full(), "free");
        let mut owner = Handover::claim(&h).ok().unwrap();
        for _ in 0..2 {
            assert!(!h.is_full(), "nothing is pending");
            assert_eq!(h.push(&links, 0), Ok(true));
            assert!(h.is_full());
            assert_eq!(h.push(&links, 1), Err(Refused::Full));
            assert!(owner.drain(&links).eq([0]));
        }
        assert!(owner.leave().is_ok());
    }

    #[test]
    fn a_chain_is_pushed_at_once_and_counts_in_full() {
        let (h, links) = (Handover::with_limit(3), LinkTable::new(16));
        let chain = |oldest: u32, newest: u32| {
            (oldest..newest).for_each(|i| links.set_next(i + 1, i));
            h.push_chain(&links, oldest, newest, newest - oldest + 1)
        };
        assert_eq!(chain(0, 3), Err(Refused::Unowned));
        let mut owner = Handover::claim(&h).ok().unwrap();
        assert_eq!((chain(0, 3), chain(4, 5), chain(6, 9)), (Ok(true), Ok(false), Ok(false)));
        assert_eq!(chain(10, 10), Err(Refused::Full), "4 not counted, 2, and 4 that found room for one");
        assert!(owner.drain(&links).eq(0..10));
        assert!(owner.leave().is_ok());
    }

    #[test]
    fn a_chain_beyond_the_limit_is_taken_and_does_not_count() {
        let (h, links) = (Handover::with_limit(2), LinkTable::new(16));
        links.set_next(1, 0);
        assert_eq!(h.push_chain_beyond(&links, 0, 1), Err(Refused::Unowned));
        let mut owner = Handover::claim(&h).ok().unwrap();
        assert_eq!((h.push_chain_beyond(&links, 0, 1), h.push(&links, 2)), (Ok(true), Ok(false)));
        links.set_next(4, 3);
        assert_eq!(h.push_chain_beyond(&links, 3, 4), Ok(false));
        assert!(!h.is_full());
        assert_eq!((h.push(&links, 5), h.push(&links, 6)), (Ok(false), Err(Refused::Full)));
        assert!(h.is_full());
        links.set_next(7, 6);
        assert_eq!(h.push_chain_beyond(&links, 6, 7), Ok(false), "full for others");
        assert!(owner.drain(&links).eq(0..8));
        assert!(owner.leave().is_ok());
    }

    #[test]
    fn parked_ownership_goes_to_the_first_that_takes_it_with_what_was_left() {
        let (h, links) = (Handover::new(), LinkTable::new(8));
        assert!(Handover::unpark(&h).is_err());
        let mut owner = Handover::claim(&h).ok().unwrap();
        (0..3).for_each(|i| assert_eq!(h.push(&links, i), Ok(i == 0)));
        assert_eq!(owner.drain(&links).next(), Some(0));
        assert_eq!(h.push(&links, 3), Ok(true));
        owner.park();
        assert!(Handover::claim(&h).is_err(), "still taken");
        assert_eq!(h.push(&links, 4), Ok(false));
        let mut owner = Handover::unpark(&h).ok().unwrap();
        assert!(Handover::unpark(&h).is_err());
        assert!(owner.drain(&links).eq([1, 2]));
        assert!(owner.drain(&links).eq([3, 4]));
        assert!(owner.leave().is_ok());
        assert!(Handover::unpark(&h).is_err() && Handover::claim(&h).is_ok());
    }

    #[test]
    fn threads_lose_nothing_and_each_keeps_its_order() {
        const EACH: u32 = 20_000;
        let (h, links) = (Handover::new(), LinkTable::new(4 * EACH));
        let (run, busy) = ([const { AtomicU32::new(0) }; 4], AtomicBool::new(false));
        std::thread::scope(|s| {
            for t in 0..4 {
                let (h, links, run, busy) = (&h, &links, &run, &busy);
                // Not atomic as a whole: a second owner would be noticed.
                let took = |i: u32| {
                    assert!(!busy.swap(true, Ordering::Relaxed), "one owner at a time");
                    let done = &run[(i / EACH) as usize];
                    assert_eq!(done.load(Ordering::Relaxed), i % EACH);
                    done.store(i % EACH + 1, Ordering::Relaxed);
                    busy.store(false, Ordering::Relaxed);
                };
                s.spawn(move || {
                    for i in t * EACH..(t + 1) * EACH {
                        let Entered::Owner(mut owner) = h.enter(links, i) else { continue };
                        took(i);
                        while let Err(mut still) = owner.leave() {
                            still.drain(links).for_each(took);
                            owner = still;
                        }
                    }
                });
            }
        });
        assert!(run.iter().all(|done| done.load(Ordering::Relaxed) == EACH));
    }
}
