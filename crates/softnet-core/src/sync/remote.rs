//! Remote free (the kernel's `skb_attempt_defer_free`): what a thread frees that another one took
//! goes home to it.
//!
//! A [`Home`] is one thread's list of what others freed: a [`Handover`] with a permanent owner, and
//! a count of its own that bounds it as the kernel's does. Any thread may [defer](Home::defer)
//! elements to it, a chain in one compare-exchange; the thread that [opened](HomeOwner::open) it
//! takes them all when it polls, refills, or goes to sleep. A thread that frees so much that half
//! the bound is passed is told to kick the owner, once for each time that the owner took what was
//! there; from the bound on elements are refused, and freed where they are. So a home whose owner
//! never looks costs no more than that.
//!
//! Invariant: an element that was taken over by a home reaches its owner, once; one that was
//! refused is the caller's still.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use super::{AtomicU32, Handover, Links, Mutant, Ordering, OwnLine, Owner, model_failed, mutated};

/// What others freed and one thread is to have back.
pub struct Home {
    handover: OwnLine<Handover>,
    /// Of elements since the owner last took what was there; those that were refused may be among
    /// them.
    count: AtomicU32,
    /// From so many on elements are refused (`net.core.skb_defer_max`).
    limit: u32,
}

/// What became of elements that were to go home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// How many, the first ones, went home; the others are the caller's still.
    pub taken: usize,
    /// The owner should be woken: half of what fits is there.
    pub kick: bool,
}

impl Home {
    /// One without an owner, which takes nothing.
    pub fn new(limit: u32) -> Self {
        Home { handover: OwnLine(Handover::new()), count: AtomicU32::new(0), limit }
    }

    /// Whether anything is there: one load.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.handover.has_pending()
    }

    /// Elements that are there, about.
    pub fn len(&self) -> u32 {
        if self.has_pending() { self.count.load(Ordering::Relaxed).min(self.limit) } else { 0 }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.has_pending()
    }

    /// Sends `elements` home, whose order does not matter.
    pub fn defer(&self, links: &(impl Links + ?Sized), elements: &[u32]) -> Deferred {
        const NONE: Deferred = Deferred { taken: 0, kick: false };
        // The look before keeps the count from running away while the owner does not look.
        if self.count.load(Ordering::Relaxed) >= self.limit {
            return NONE;
        }
        let n = elements.len() as u32;
        let before = self.count.fetch_add(n, Ordering::Relaxed);
        let taken = self.limit.saturating_sub(1).saturating_sub(before).min(n);
        let Some(([oldest, ..], newest)) =
            elements.get(..taken as usize).zip(elements.get(taken.wrapping_sub(1) as usize))
        else {
            return NONE;
        };
        for pair in elements[..taken as usize].windows(2) {
            links.set_next(pair[1], pair[0]);
        }
        if self.handover.push_chain_beyond(links, *oldest, *newest).is_err() {
            return NONE;
        }
        let before = if mutated(Mutant::KickByLook) {
            self.count.load(Ordering::Relaxed).wrapping_sub(n)
        } else {
            before
        };
        let half = self.limit / 2;
        Deferred { taken: taken as usize, kick: before <= half && before + taken > half }
    }
}

/// What leads to the word of a home. Private: only [`Home::defer`] may push.
struct HomeWord(Arc<Home>);

impl Deref for HomeWord {
    type Target = Handover;

    #[inline(always)]
    fn deref(&self) -> &Handover {
        &self.0.handover
    }
}

/// The thread that a home is of. It must be [closed](Self::close).
pub struct HomeOwner {
    owner: Owner<HomeWord>,
    home: Arc<Home>,
}

impl HomeOwner {
    /// Makes the caller the owner, if there is none.
    pub fn open(home: Arc<Home>) -> Option<Self> {
        let owner = Handover::claim(HomeWord(home.clone())).ok()?;
        home.count.store(0, Ordering::Relaxed);
        Some(HomeOwner { owner, home })
    }

    /// Whether anything is there: one load.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.owner.has_pending()
    }

    /// Hands all that is there to `each`.
    pub fn take(&mut self, links: &(impl Links + ?Sized), each: impl FnMut(u32)) {
        // Before the list is detached: what is pushed in between is counted for the next time and
        // was taken now, which errs on the side of fewer.
        self.home.count.store(0, Ordering::Relaxed);
        self.owner.drain(links).for_each(each);
    }

    /// Hands all that is there to `each`, and closes the home: what is freed from now on stays
    /// where it is freed.
    pub fn close(mut self, links: &(impl Links + ?Sized), mut each: impl FnMut(u32)) {
        while !model_failed() {
            self.take(links, &mut each);
            if self.owner.try_leave() {
                return;
            }
        }
    }
}

/// Wakes the owner of a home.
pub type Kick = Arc<dyn Fn() + Send + Sync>;

/// A home, and how its owner is woken.
type Slot = (Arc<Home>, Mutex<Option<Kick>>);

/// Homes of the elements of one table, one for each thread that opened one.
pub struct Homes {
    /// By element: the home that it is of, plus one; 0: none. Written by the thread that has the
    /// element.
    of: Box<[AtomicU32]>,
    slots: Box<[Slot]>,
}

impl Homes {
    /// Threads that can have one at a time; others do without.
    pub const MAX: usize = 64;

    /// For the elements `0..n`, each home with this limit.
    pub fn new(n: u32, limit: u32) -> Self {
        Homes {
            of: (0..n).map(|_| AtomicU32::new(0)).collect(),
            slots: (0..Self::MAX).map(|_| (Arc::new(Home::new(limit)), Mutex::default())).collect(),
        }
    }

    /// Opens a home that is free. Returns its number, which is not 0.
    pub fn open(&self) -> Option<(u32, HomeOwner)> {
        let free =
            |(at, (home, _)): (usize, &(Arc<Home>, _))| Some((at as u32 + 1, HomeOwner::open(home.clone())?));
        self.slots.iter().enumerate().find_map(free)
    }

    /// How the owner of home `number` is woken, from now on.
    pub fn set_kick(&self, number: u32, kick: Option<Kick>) {
        if let Some((_, slot)) = self.slot(number) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = kick;
        }
    }

    /// The home of element `i`; 0: none. For the thread that has the element.
    #[inline(always)]
    pub fn of(&self, i: u32) -> u32 {
        // Relaxed: the element itself came with an order.
        self.of[i as usize].load(Ordering::Relaxed)
    }

    /// Makes `number` the home of element `i`. For the thread that has the element.
    #[inline(always)]
    pub fn set(&self, i: u32, number: u32) {
        self.of[i as usize].store(number, Ordering::Relaxed);
    }

    /// Sends `elements` to home `number`, and kicks its owner if that is due.
    pub fn defer(&self, links: &(impl Links + ?Sized), number: u32, elements: &[u32]) -> Deferred {
        let Some((home, kick)) = self.slot(number) else { return Deferred { taken: 0, kick: false } };
        let deferred = home.defer(links, elements);
        if deferred.kick {
            let kick = kick.lock().unwrap_or_else(PoisonError::into_inner).clone();
            kick.into_iter().for_each(|kick| kick());
        }
        deferred
    }

    /// Elements on the list of home `number`, about.
    pub fn pending(&self, number: u32) -> u32 {
        self.slot(number).map_or(0, |(home, _)| home.len())
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get((number as usize).checked_sub(1)?)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::sync::LinkTable;

    fn take(owner: &mut HomeOwner, links: &LinkTable) -> Vec<u32> {
        let mut all = vec![];
        owner.take(links, |i| all.push(i));
        all
    }

    /// A kick when the 65th is queued; from the 128th on each stays where it is freed, until the
    /// owner looks.
    #[test]
    fn e16_kick_at_half_and_refused_at_the_limit() {
        let (home, links) = (Arc::new(Home::new(128)), LinkTable::new(512));
        assert_eq!(home.defer(&links, &[0]), Deferred { taken: 0, kick: false }, "it has no owner");
        let mut owner = HomeOwner::open(home.clone()).unwrap();
        assert!(HomeOwner::open(home.clone()).is_none());
        for round in 0..3 {
            for i in 0..200 {
                let told = home.defer(&links, &[i]);
                assert_eq!(told, Deferred { taken: usize::from(i < 127), kick: i == 64 }, "{round}: {i}");
            }
            assert_eq!(home.len(), 128);
            assert_eq!(take(&mut owner, &links), (0..127).collect::<Vec<_>>());
            assert!(home.is_empty());
            assert_eq!(home.len(), 0);
        }
        // In chains: the one that passes half kicks, the one that passes the limit goes home in
        // part.
        let chain = |from: u32| (from..from + 50).collect::<Vec<_>>();
        assert_eq!(home.defer(&links, &chain(0)), Deferred { taken: 50, kick: false });
        assert_eq!(home.defer(&links, &chain(50)), Deferred { taken: 50, kick: true });
        assert_eq!(home.defer(&links, &chain(100)), Deferred { taken: 27, kick: false });
        assert_eq!(home.defer(&links, &chain(150)), Deferred { taken: 0, kick: false });
        assert_eq!(take(&mut owner, &links), (0..127).collect::<Vec<_>>());
        assert_eq!(home.defer(&links, &[]), Deferred { taken: 0, kick: false });
        home.defer(&links, &[7]);
        let mut last = vec![];
        owner.close(&links, |i| last.push(i));
        assert_eq!((last, home.defer(&links, &[8]).taken), (vec![7], 0));
        assert!(HomeOwner::open(home).is_some_and(|owner| {
            owner.close(&links, |_| unreachable!());
            true
        }));
    }

    #[test]
    fn a_limit_of_nothing_takes_nothing() {
        for limit in [0, 1] {
            let (home, links) = (Arc::new(Home::new(limit)), LinkTable::new(4));
            let owner = HomeOwner::open(home.clone()).unwrap();
            assert_eq!(home.defer(&links, &[0, 1]), Deferred { taken: 0, kick: false });
            owner.close(&links, |_| unreachable!());
        }
    }
}

#[cfg(all(test, feature = "loom"))]
#[allow(unsafe_code)]
mod models {
    use loom::thread;

    use super::*;
    use crate::sync::{LinkTable, UnsafeCell, check, must_fail};

    /// What an element stands for.
    struct Value(UnsafeCell<u32>);

    // SAFETY: loom stops the model at the first access that nothing orders.
    unsafe impl Sync for Value {}

    struct Shared {
        home: Arc<Home>,
        links: LinkTable,
        values: [Value; 4],
    }

    fn shared(limit: u32) -> Arc<Shared> {
        Arc::new(Shared {
            home: Arc::new(Home::new(limit)),
            links: LinkTable::new(4),
            values: [0; 4].map(|v| Value(UnsafeCell::new(v))),
        })
    }

    /// Writes to what element `i` stands for: the calling thread has it.
    fn touch(shared: &Shared, i: u32) {
        // SAFETY: as above.
        shared.values[i as usize].0.with_mut(|value| unsafe { *value += 1 });
    }

    /// Two threads free two elements each while the owner takes, and then closes. Each element ends
    /// in one place: with the owner, or with the thread that freed it.
    fn every_element_ends_once() {
        let shared = shared(3);
        let mut owner = HomeOwner::open(shared.home.clone()).unwrap();
        let threads = [[0, 1], [2, 3]].map(|mine| {
            let shared = shared.clone();
            thread::spawn(move || {
                mine.iter().for_each(|i| touch(&shared, *i));
                let taken = shared.home.defer(&shared.links, &mine).taken;
                mine[taken..].iter().for_each(|i| touch(&shared, *i));
                mine[taken..].to_vec()
            })
        });
        let mut all = vec![];
        owner.take(&shared.links, |i| all.push(i));
        owner.close(&shared.links, |i| all.push(i));
        all.iter().for_each(|i| touch(&shared, *i));
        threads.into_iter().for_each(|thread| all.extend(thread.join().unwrap()));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3], "each in one place");
    }

    /// Two threads free two elements each, one by one, and the owner does not look: one of them is
    /// told to kick it.
    fn one_kick_at_half() {
        let shared = shared(8);
        let owner = HomeOwner::open(shared.home.clone()).unwrap();
        // The third of what follows passes half of 8.
        assert!(!shared.home.defer(&LinkTable::new(0), &[]).kick);
        shared.home.count.store(2, Ordering::Relaxed);
        let threads = [[0, 1], [2, 3]].map(|mine| {
            let shared = shared.clone();
            thread::spawn(move || {
                mine.iter().filter(|i| shared.home.defer(&shared.links, &[**i]).kick).count()
            })
        });
        let kicks: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(kicks, 1);
        let mut n = 0;
        owner.close(&shared.links, |_| n += 1);
        assert_eq!(n, 4);
    }

    #[test]
    fn remote_frees_end_in_one_place() {
        check(3, every_element_ends_once);
        // Home gone with elements on its list; frees that do not come after what was done before.
        for m in [Mutant::LeaveBlind, Mutant::PushRelaxed, Mutant::DetachRelaxed] {
            must_fail(m, 3, every_element_ends_once);
        }
    }

    #[test]
    fn a_kick_is_not_lost() {
        check(3, one_kick_at_half);
        must_fail(Mutant::KickByLook, 3, one_kick_at_half);
    }
}
