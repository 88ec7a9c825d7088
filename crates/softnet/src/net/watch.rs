//! Who watches which socket: what a poller notifies when a socket's readiness changed.
//!
//! For each slot a snapshot of those who watch it, which pollers read without a lock. Whoever adds or removes one replaces it. A
//! notification may reach somebody who has just stopped watching, or watches the slot for the socket that had it before: that is
//! for them to notice.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use rustix::thread::futex;
use softnet_core::sock::{ReadyList, Slot, Sockets};

use crate::wake::Waker;

/// Slots of a chunk.
const CHUNK: u32 = 256;

/// An epoll set as those see it who notify.
pub(super) struct Set {
    pub(super) list: Arc<ReadyList>,
    pub(super) waker: Waker,
}

impl Set {
    /// Puts item `index` on the list, and wakes whoever waits for that.
    pub(super) fn notify(&self, index: u32) {
        if self.list.notify(index) {
            self.waker.wake();
        }
    }
}

/// One who watches a socket.
#[derive(Clone)]
pub(super) enum Watch {
    /// An epoll set.
    Set {
        set: Arc<Set>,
        /// Its number there.
        index: u32,
        /// Of those that are, one is enough to be told.
        exclusive: bool,
    },
    /// An eventfd, for event loops of others.
    Fd(Arc<OwnedFd>),
}

impl Watch {
    fn notify(&self) {
        match self {
            Watch::Set { set, index, .. } => set.notify(*index),
            // Can fail only if the counter is full, and then it is readable anyway.
            Watch::Fd(fd) => _ = rustix::io::write(fd, &1u64.to_ne_bytes()),
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

/// See the [module](self).
pub(super) struct Watchers(Box<[OnceLock<Chunk>]>);

impl Watchers {
    /// For `slots` slots, which nobody watches.
    pub(super) fn new(slots: u32) -> Self {
        Watchers((0..slots.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }

    fn get(&self, slot: u32) -> Option<&ArcSwapOption<Vec<Watch>>> {
        self.0.get((slot / CHUNK) as usize)?.get()?.get((slot % CHUNK) as usize)
    }

    /// How many watch, all slots together.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let slots = self.0.iter().filter_map(|chunk| chunk.get()).flatten();
        slots.filter_map(|slot| slot.load().as_ref().map(|watchers| watchers.len())).sum()
    }

    /// Notifies those who watch `slot`.
    #[inline]
    pub(super) fn notify(&self, slot: u32) {
        if let Some(watchers) = self.get(slot)
            && let Some(watchers) = watchers.load().as_deref()
        {
            tell(watchers);
        }
    }

    /// Adds one, in place of what was there of the same watcher.
    pub(super) fn add(&self, slot: u32, watch: Watch) {
        let Some(chunk) = self.0.get((slot / CHUNK) as usize) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| ArcSwapOption::empty()).collect());
        if let Some(watchers) = chunk.get((slot % CHUNK) as usize) {
            watchers.rcu(|old| {
                let others = old.iter().flat_map(|old| old.iter()).filter(|other| !other.is_of(&watch));
                Some(Arc::new(others.chain([&watch]).cloned().collect::<Vec<_>>()))
            });
        }
    }

    /// Removes one.
    pub(super) fn remove(&self, slot: u32, watch: &Watch) {
        if let Some(watchers) = self.get(slot) {
            watchers.rcu(|old| {
                let others = old.iter().flat_map(|old| old.iter()).filter(|other| !other.is_of(watch));
                let others: Vec<_> = others.cloned().collect();
                (!others.is_empty()).then(|| Arc::new(others))
            });
        }
    }

    /// The socket in `slot` is closed: those who watched it are told once more.
    pub(super) fn forget(&self, slot: u32) {
        if let Some(watchers) = self.get(slot)
            && let Some(watchers) = watchers.swap(None)
        {
            watchers.iter().for_each(Watch::notify);
        }
    }
}

/// Wakes up to so many of the threads that are blocked on `slot`.
pub(super) fn wake(slot: &Slot, threads: u32) {
    // It can't fail: the word is there.
    let _ = futex::wake(slot.wait().word(), futex::Flags::PRIVATE, threads);
}

fn tell(watchers: &[Watch]) {
    let mut exclusive: Option<(&Arc<Set>, u32)> = None;
    for watch in watchers {
        match watch {
            Watch::Set { set, index, exclusive: true } => {
                // One that sleeps rather than one that is busy with something else.
                if exclusive.is_none_or(|(first, _)| {
                    !first.waker.sleeper.is_announced() && set.waker.sleeper.is_announced()
                }) {
                    exclusive = Some((set, *index));
                }
            }
            watch => watch.notify(),
        }
    }
    if let Some((set, index)) = exclusive {
        set.notify(index);
    }
}

/// Those who wait for the sockets of a table, be it blocked in a call or by watching.
pub struct Told {
    pub(crate) sockets: Arc<Sockets>,
    pub(super) watchers: Watchers,
}

impl Told {
    pub(super) fn new(sockets: Arc<Sockets>, slots: u32) -> Self {
        Told { sockets, watchers: Watchers::new(slots) }
    }

    /// The readiness of the socket in slot `index` changed: tells those who wait for it.
    pub(crate) fn notify(&self, index: u32) {
        self.tell(index, i32::MAX as u32);
    }

    /// The same after datagrams came to the socket while it had none: of those who are blocked in a call, one is enough.
    pub(super) fn arrived(&self, index: u32) {
        self.tell(index, 1);
    }

    fn tell(&self, index: u32, threads: u32) {
        let Some(slot) = self.sockets.slot(index) else { return };
        if slot.wait().notify() {
            wake(slot, threads);
        }
        self.watchers.notify(index);
    }
}
