//! The ready list of an epoll set: which of its items changed since its thread last looked.
//!
//! An item is a number, for a socket that the set watches. A thread that changes a socket's
//! readiness makes the change visible, then (after the full fence of
//! [`Wait::notify`](super::Wait::notify)) [notifies](ReadyList::notify) the items that watch it. An
//! item is on the list at most once: its mark says so. The set's thread takes items off the list,
//! *unmarks* each, and then looks at its socket. Between mark and socket stands a full fence on
//! each side, so the look sees the change, or the change finds the item unmarked and puts it on the
//! list again.
//!
//! Any thread may notify; one thread has the [`ReadyItems`]. Invariant: an item whose socket
//! changed after its thread looked is on the list.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::skb::prefetch_whole;
use crate::sync::{
    AtomicBool, AtomicU32, Handover, Links, Mutant, NIL, Ordering, OwnLine, Owner, Sleeper, fence, mutated,
};

/// Cells of the first chunk; each further one has twice as many as the one before.
const FIRST: u32 = 64;
const CHUNKS: usize = 15;
/// Most items of a set.
pub const MAX_ITEMS: u32 = FIRST * ((1 << CHUNKS) - 1);

struct Cell {
    next: AtomicU32,
    marked: AtomicBool,
}

/// The side of a set that notifies.
#[derive(Default)]
pub struct ReadyList {
    handover: OwnLine<Handover>,
    /// Chunks never move, since notifying threads take no lock.
    chunks: [OnceLock<Box<[Cell]>>; CHUNKS],
}

impl ReadyList {
    /// Makes room for item `index`; one that is not below [`MAX_ITEMS`] is ignored.
    pub fn reserve(&self, index: u32) {
        let (chunk, _) = place(index);
        if let Some(cells) = self.chunks.get(chunk) {
            let new = || Cell { next: AtomicU32::new(NIL), marked: AtomicBool::new(false) };
            cells.get_or_init(|| (0..FIRST << chunk).map(|_| new()).collect());
        }
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> Option<&Cell> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// Starts to load what there is of item `index`.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        self.cell(index).into_iter().for_each(prefetch_whole);
    }

    /// Puts item `index` on the list, unless it is there. Returns whether the list was empty: then
    /// the caller wakes the set's thread if it sleeps.
    #[inline]
    pub fn notify(&self, index: u32) -> bool {
        let Some(cell) = self.cell(index) else { return false };
        !cell.marked.swap(true, Ordering::AcqRel) && self.handover.push(self, index).unwrap_or(false)
    }

    /// From now on a change puts item `index` on the list again. Called before its socket is looked
    /// at, by the set's thread, or before the first notification.
    #[inline]
    pub fn unmark(&self, index: u32) {
        let Some(cell) = self.cell(index) else { return };
        cell.marked.store(false, Ordering::Release);
        if !mutated(Mutant::UnmarkNoFence) {
            fence(Ordering::SeqCst);
        }
    }
}

/// One of several sets that watch a socket exclusively: waking one of them is enough
/// (`EPOLLEXCLUSIVE`).
#[derive(Clone, Copy)]
pub struct Exclusive<'a> {
    /// Its list.
    pub list: &'a ReadyList,
    /// The socket's item there.
    pub index: u32,
    /// Its thread.
    pub sleeper: &'a Sleeper,
}

/// The socket that `sets` watch changed: puts its item on their lists, one after the other, up to
/// the first set whose thread waits; returns that set's place, and the caller wakes its thread. The
/// kernel's `__wake_up_common` does the same over `ep_poll_callback`: a set without a waiter finds
/// the item if its thread returns, and is no reason not to notify the next.
pub fn notify_exclusive<'a>(sets: impl Iterator<Item = Exclusive<'a>>) -> Option<usize> {
    for (place, set) in sets.enumerate() {
        set.list.notify(set.index);
        // After the item is on the list: a thread that announces its sleep later finds it there.
        if set.sleeper.wake() {
            return Some(place);
        }
        if mutated(Mutant::ExclusiveStops) {
            break;
        }
    }
    None
}

/// The chunk and cell of an item.
#[inline(always)]
fn place(index: u32) -> (usize, usize) {
    let nth = u64::from(index) + u64::from(FIRST);
    let chunk = nth.ilog2() - FIRST.ilog2();
    (chunk as usize, (nth - (u64::from(FIRST) << chunk)) as usize)
}

impl Links for ReadyList {
    // Relaxed: the list's word orders a link with the item it belongs to.
    #[inline(always)]
    fn set_next(&self, i: u32, next: u32) {
        if let Some(cell) = self.cell(i) {
            cell.next.store(next, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn next(&self, i: u32) -> u32 {
        self.cell(i).map_or(NIL, |cell| cell.next.load(Ordering::Relaxed))
    }
}

/// The set thread's ownership of the list.
struct Held(Arc<ReadyList>);

impl Deref for Held {
    type Target = Handover;

    #[inline(always)]
    fn deref(&self) -> &Handover {
        &self.0.handover
    }
}

/// The side of a set that looks. Dropping it closes the list: later notifications have no effect.
pub struct ReadyItems {
    list: Arc<ReadyList>,
    owner: Option<Owner<Held>>,
}

impl ReadyItems {
    /// Of a new set.
    pub fn new() -> (Arc<ReadyList>, Self) {
        let list = Arc::<ReadyList>::default();
        let owner = Handover::claim(Held(list.clone())).ok();
        (list.clone(), ReadyItems { list, owner })
    }

    /// Whether any are on the list: one load.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.owner.as_ref().is_some_and(Owner::has_pending)
    }

    /// Takes the items off the list, in the order in which they were put there. They stay marked
    /// until they are [unmarked](ReadyList::unmark).
    #[inline]
    pub fn drain(&mut self, each: impl FnMut(u32)) {
        if let Some(owner) = &mut self.owner {
            owner.drain(&*self.list).for_each(each);
        }
    }
}

impl Drop for ReadyItems {
    fn drop(&mut self) {
        let Some(mut owner) = self.owner.take().filter(|_| !crate::sync::model_failed()) else { return };
        loop {
            // No thread looks at them any more.
            owner.drain(&*self.list).for_each(drop);
            match owner.leave() {
                Ok(()) => return,
                Err(still) => owner = still,
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn places_follow_one_another() {
        let (mut chunk, mut at) = (0, 0);
        for index in 0..10_000 {
            assert_eq!(place(index), (chunk, at), "{index}");
            at += 1;
            if at == (FIRST as usize) << chunk {
                (chunk, at) = (chunk + 1, 0);
            }
        }
        assert_eq!(place(MAX_ITEMS - 1), (CHUNKS - 1, ((FIRST as usize) << (CHUNKS - 1)) - 1));
        assert_eq!(place(MAX_ITEMS).0, CHUNKS);
        assert!(place(u32::MAX).0 >= CHUNKS);
    }

    #[test]
    fn of_exclusive_sets_the_first_that_waits_is_woken_and_those_before_it_know() {
        let mut sets = [(); 4].map(|()| (ReadyItems::new(), Sleeper::new()));
        sets.iter().for_each(|((list, _), _)| list.reserve(1));
        let told = |sets: &[((Arc<ReadyList>, ReadyItems), Sleeper)]| {
            let told = sets.iter().map(|((list, _), sleeper)| Exclusive { list, index: 1, sleeper });
            notify_exclusive(told)
        };
        let know = |sets: &mut [((Arc<ReadyList>, ReadyItems), Sleeper)]| -> Vec<usize> {
            let mut know = vec![];
            for (i, ((list, items), _)) in sets.iter_mut().enumerate() {
                items.drain(|index| {
                    list.unmark(index);
                    know.push(i);
                });
            }
            know
        };
        // No thread waits: the first that comes finds it, whichever that is.
        assert_eq!((told(&sets), know(&mut sets)), (None, vec![0, 1, 2, 3]));
        [1, 3].into_iter().for_each(|i: usize| sets[i].1.arm());
        assert_eq!((told(&sets), know(&mut sets)), (Some(1), vec![0, 1]));
        // That one was woken, and has not come.
        assert_eq!((told(&sets), told(&sets)), (Some(3), None));
        assert_eq!(know(&mut sets), [0, 1, 2, 3]);
    }

    #[test]
    fn an_item_is_on_the_list_once_until_it_is_unmarked() {
        let (list, mut items) = ReadyItems::new();
        assert!(!list.notify(3), "not there");
        [3, 200].into_iter().for_each(|index| list.reserve(index));
        assert!(list.notify(3) && !list.notify(3) && !list.notify(200));
        let mut seen = vec![];
        items.drain(|index| seen.push(index));
        assert_eq!(seen, [3, 200]);
        assert!(!list.notify(3), "still marked");
        list.unmark(3);
        assert!(list.notify(3) && items.has_pending());
        drop(items);
        list.unmark(3);
        assert!(!list.notify(3), "closed");
    }
}
