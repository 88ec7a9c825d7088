//! The listeners of a stack: each behind a lock of its own, found by its slot.
//!
//! Opening and closing replaces a snapshot, which threads that poll read without a lock. Invariant: a
//! listener's slot is readable while its queue has connections.

use std::sync::Arc;

use arc_swap::ArcSwap;
use softnet_core::sock::tcp::{Child, ListenState, Listeners};
use softnet_core::sock::{Sockets, stream};
use softnet_dev::PiMutex;

/// A listener.
pub(crate) struct Listening {
    slot: u32,
    generation: u32,
    state: PiMutex<Option<ListenState>>,
}

impl Listening {
    /// The one in this slot, of this generation.
    pub(crate) fn new(slot: u32, generation: u32, state: ListenState) -> Self {
        Listening { slot, generation, state: PiMutex::new(Some(state)) }
    }

    /// The slot that it is known by.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Runs `f` on its state; `None` once it is closed.
    pub(crate) fn with<R>(&self, sockets: &Sockets, f: impl FnOnce(&mut ListenState) -> R) -> Option<R> {
        let mut state = self.state.lock();
        let state = state.as_mut()?;
        let result = f(state);
        if let Some(slot) = sockets.slot(self.slot) {
            slot.set_stream(if state.is_empty() { 0 } else { stream::READABLE });
        }
        Some(result)
    }

    /// Closes it. Returns the connections that no application will accept.
    fn close(&self) -> Vec<Child> {
        let mut children = Vec::new();
        if let Some(mut state) = self.state.lock().take() {
            children.extend(std::iter::from_fn(|| state.pop()));
        }
        children
    }
}

/// See the module. By slot, ascending: there are few, and each SYN looks.
#[derive(Default)]
pub(crate) struct ListenTable(ArcSwap<Vec<Arc<Listening>>>);

impl ListenTable {
    /// Adds a listener.
    pub(crate) fn add(&self, listening: &Arc<Listening>) {
        self.0.rcu(|old| {
            let mut new = Vec::clone(old);
            match place(&new, listening.slot) {
                Ok(at) => new[at] = listening.clone(),
                Err(at) => new.insert(at, listening.clone()),
            }
            new
        });
    }

    /// Removes a listener, and closes it. Returns the connections that no application will accept.
    pub(crate) fn remove(&self, listening: &Listening) -> Vec<Child> {
        self.0.rcu(|old| {
            let mut new = Vec::clone(old);
            if let Ok(at) = place(&new, listening.slot) {
                new.remove(at);
            }
            new
        });
        listening.close()
    }

    /// All listeners, by slot.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Listening>>> {
        self.0.load_full()
    }
}

/// Where the listener of `slot` stands, or would.
fn place(all: &[Arc<Listening>], slot: u32) -> Result<usize, usize> {
    all.binary_search_by_key(&slot, |listening| listening.slot)
}

/// How shards find them.
pub(super) struct Finder<'a> {
    pub(super) table: &'a ListenTable,
    pub(super) sockets: &'a Sockets,
}

impl Listeners for Finder<'_> {
    fn with<R>(
        &mut self,
        (slot, generation): (u32, u32),
        f: impl FnOnce(&mut ListenState) -> R,
    ) -> Option<R> {
        let table = self.table.0.load();
        let listening = &table[place(&table, slot).ok()?];
        if listening.generation != generation {
            return None;
        }
        listening.with(self.sockets, f)
    }
}
