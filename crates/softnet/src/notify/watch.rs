//! The watchers of sockets: what a poller notifies when a socket's readiness changes.
//!
//! Each slot has a snapshot of its watchers, which pollers read without a lock; adding or removing
//! a watcher replaces it. A notification may reach a watcher that has just stopped watching, or
//! that watches the slot for its previous socket: watchers must expect that.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use rustix::thread::futex;
use softnet_core::sock::{Exclusive, ReadyList, Slot, Sockets, notify_exclusive};

use crate::util::Waker;

/// Slots per chunk.
const CHUNK: u32 = 256;

/// An epoll set, as seen by notifying threads.
pub(crate) struct Set {
    pub(crate) list: Arc<ReadyList>,
    pub(crate) waker: Waker,
}

impl Set {
    /// Puts item `index` on the list, and wakes the set's thread if it waits for that.
    pub(crate) fn wake(&self, index: u32) {
        if self.list.notify(index) {
            self.waker.wake();
        }
    }
}

/// A watcher of a socket.
#[derive(Clone)]
pub(crate) enum Watch {
    /// An epoll set.
    Set {
        set: Arc<Set>,
        /// The item's number in the set.
        index: u32,
        /// Among exclusive sets, notifying one whose thread waits is enough.
        exclusive: bool,
    },
    /// An eventfd, for other event loops.
    Fd(Arc<OwnedFd>),
}

impl Watch {
    fn wake(&self) {
        match self {
            Watch::Set { set, index, .. } => set.wake(*index),
            // Fails only if the counter is full, and then the eventfd is readable anyway.
            Watch::Fd(fd) => _ = rustix::io::write(fd, &1u64.to_ne_bytes()),
        }
    }

    /// The set, and the socket's item in it, if it watches exclusively.
    fn exclusive(&self) -> Option<(&Set, u32)> {
        match self {
            Watch::Set { set, index, exclusive: true } => Some((set, *index)),
            _ => None,
        }
    }

    fn is_of(&self, other: &Watch) -> bool {
        match (self, other) {
            (Watch::Set { set, .. }, Watch::Set { set: other, .. }) => Arc::ptr_eq(set, other),
            (Watch::Fd(fd), Watch::Fd(other)) => Arc::ptr_eq(fd, other),
            _ => false,
        }
    }
}

type Chunk = Box<[ArcSwapOption<Vec<Watch>>]>;

/// See the module.
pub(crate) struct Watchers(Box<[OnceLock<Chunk>]>);

impl Watchers {
    /// For `slots` slots, without watchers.
    pub(crate) fn new(slots: u32) -> Self {
        Watchers((0..slots.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }

    fn get(&self, slot: u32) -> Option<&ArcSwapOption<Vec<Watch>>> {
        self.0.get((slot / CHUNK) as usize)?.get()?.get((slot % CHUNK) as usize)
    }

    /// Number of watchers of all slots together.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let slots = self.0.iter().filter_map(|chunk| chunk.get()).flatten();
        slots.filter_map(|slot| slot.load().as_ref().map(|watchers| watchers.len())).sum()
    }

    /// Notifies the watchers of `slot`.
    #[inline]
    pub(crate) fn wake(&self, slot: u32) {
        if let Some(watchers) = self.get(slot)
            && let Some(watchers) = watchers.load().as_deref()
        {
            wake_all(watchers);
        }
    }

    /// Adds a watcher, in place of an earlier entry of the same one.
    pub(crate) fn add(&self, slot: u32, watch: Watch) {
        let Some(chunk) = self.0.get((slot / CHUNK) as usize) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| ArcSwapOption::empty()).collect());
        if let Some(watchers) = chunk.get((slot % CHUNK) as usize) {
            let before = watchers.rcu(|old| {
                let others = old.iter().flat_map(|old| old.iter()).filter(|other| !other.is_of(&watch));
                Some(Arc::new(others.chain([&watch]).cloned().collect::<Vec<_>>()))
            });
            let was = |old: &Watch| old.is_of(&watch) && old.exclusive().is_some();
            if watch.exclusive().is_none() && before.iter().flat_map(|old| old.iter()).any(was) {
                self.wake(slot);
            }
        }
    }

    /// Removes a watcher. An exclusive one may have been notified in place of the others, which are
    /// then notified.
    pub(crate) fn remove(&self, slot: u32, watch: &Watch) {
        let Some(watchers) = self.get(slot) else { return };
        let before = watchers.rcu(|old| {
            let others = old.iter().flat_map(|old| old.iter()).filter(|other| !other.is_of(watch));
            let others: Vec<_> = others.cloned().collect();
            (!others.is_empty()).then(|| Arc::new(others))
        });
        if before.iter().flat_map(|old| old.iter()).any(|old| old.is_of(watch) && old.exclusive().is_some()) {
            self.wake(slot);
        }
    }

    /// The socket in `slot` is closed: its watchers are notified once more.
    pub(crate) fn forget(&self, slot: u32) {
        if let Some(watchers) = self.get(slot)
            && let Some(watchers) = watchers.swap(None)
        {
            watchers.iter().for_each(Watch::wake);
        }
    }
}

/// Wakes up to this many of the threads that are blocked on `slot`.
pub(crate) fn wake_blocked(slot: &Slot, threads: u32) {
    // It cannot fail: the word exists.
    let _ = futex::wake(slot.wait().word(), futex::Flags::PRIVATE, threads);
}

fn wake_all(watchers: &[Watch]) {
    let mut some_exclusive = false;
    for watch in watchers {
        match watch.exclusive() {
            Some(_) => some_exclusive = true,
            None => watch.wake(),
        }
    }
    if some_exclusive {
        wake_exclusive(watchers);
    }
}

/// Wakes one set whose thread waits; the sets before it have the item on their lists too, and find
/// it when their threads return.
fn wake_exclusive(watchers: &[Watch]) {
    let sets = || watchers.iter().filter_map(Watch::exclusive);
    let woken = notify_exclusive(sets().map(|(set, index)| Exclusive {
        list: &set.list,
        index,
        sleeper: &set.waker.sleeper,
    }));
    if let Some((set, _)) = woken.and_then(|place| sets().nth(place)) {
        set.waker.wake_now();
    }
}

/// The waiters of a table's sockets: threads that are blocked in a call, and watchers.
pub(crate) struct ReadinessNotifier {
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) watchers: Watchers,
}

impl ReadinessNotifier {
    pub(crate) fn new(sockets: Arc<Sockets>, slots: u32) -> Self {
        ReadinessNotifier { sockets, watchers: Watchers::new(slots) }
    }

    /// The readiness of the socket in slot `index` changed: notifies its waiters.
    pub(crate) fn wake(&self, index: u32) {
        self.wake_some(index, i32::MAX as u32);
    }

    /// The same after datagrams came to an empty socket: of the threads that are blocked in a call,
    /// waking one is enough.
    pub(crate) fn arrived(&self, index: u32) {
        self.wake_some(index, 1);
    }

    fn wake_some(&self, index: u32, threads: u32) {
        let Some(slot) = self.sockets.slot(index) else { return };
        if slot.wait().notify() {
            wake_blocked(slot, threads);
        }
        self.watchers.wake(index);
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::sock::ReadyItems;

    use super::*;

    const ITEM: u32 = 3;

    fn set(exclusive: bool) -> (ReadyItems, Arc<Set>, Watch) {
        let (list, items) = ReadyItems::new();
        list.reserve(ITEM);
        let set = Arc::new(Set { list, waker: Waker::new().unwrap() });
        (items, set.clone(), Watch::Set { set, index: ITEM, exclusive })
    }

    /// Whether the set's thread was woken, and whether it would find the item.
    fn woken_and_found((items, set, _): &mut (ReadyItems, Arc<Set>, Watch)) -> (bool, bool) {
        let woken = rustix::io::read(set.waker.fd(), &mut [0; 8]).is_ok();
        let mut found = false;
        items.drain(|index| {
            set.list.unmark(index);
            found = index == ITEM;
        });
        (woken, found)
    }

    #[test]
    fn one_exclusive_set_that_waits_is_woken_and_another_for_what_it_leaves() {
        let watchers = Watchers::new(1);
        let mut sets = [true, false, true, true].map(set);
        sets.iter().for_each(|(.., watch)| watchers.add(0, watch.clone()));
        let look = |sets: &mut [_; 4]| sets.each_mut().map(woken_and_found);
        watchers.wake(0);
        assert_eq!(look(&mut sets), [(false, true); 4], "no thread waits: whichever comes finds it");
        [1, 2, 3].into_iter().for_each(|i: usize| sets[i].1.waker.sleeper.arm());
        watchers.wake(0);
        let (here, woken_and_found, nothing) = ((false, true), (true, true), (false, false));
        assert_eq!(look(&mut sets), [here, woken_and_found, woken_and_found, nothing]);
        watchers.wake(0);
        assert_eq!(
            look(&mut sets),
            [here, here, here, woken_and_found],
            "the one that was woken has not come back"
        );
        // The watcher is removed before its thread looks.
        sets[0].1.waker.sleeper.arm();
        watchers.wake(0);
        sets[3].1.waker.sleeper.arm();
        watchers.remove(0, &sets[0].2);
        assert_eq!(look(&mut sets), [woken_and_found, here, here, woken_and_found]);
    }
}
