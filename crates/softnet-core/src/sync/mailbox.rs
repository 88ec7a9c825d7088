//! A bounded mailbox: many senders, one receiver, values of any type, on the [`Handover`] primitive.
//!
//! Any thread may push; the receiver's thread drains. A value waits in a slot whose index was taken
//! from a lock-free pool and travels through the pending list; so nothing is allocated, and each sender's values
//! arrive in its order. The receiver owns the word for as long as it lives; once it is gone, senders are told.
//!
//! Invariant: a slot's index is in the pool (slot empty), with one sender, on the list, or with the receiver,
//! and only the one that has the index touches the slot.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;

use super::handover::{Drain, Handover, LinkTable, NIL, OwnLine, Owner};
use super::pool::Pool;
use super::{UnsafeCell, model_failed};

struct Shared<T> {
    handover: OwnLine<Handover>,
    links: LinkTable,
    free: Pool,
    slots: Box<[UnsafeCell<Option<T>>]>,
}

// SAFETY: a value is moved in by one thread and out by another, and never shared (module invariant).
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Empties a slot whose index the caller has, and gives the index up.
    fn take(&self, slot: u32) -> Option<T> {
        // SAFETY: the holder of the index has the slot.
        let value = self.slots[slot as usize].with_mut(|p| unsafe { (*p).take() });
        self.free.push(&[slot]);
        value
    }
}

/// The senders' side. A clone leads to the same receiver.
pub struct Mailbox<T>(Arc<Shared<T>>);

/// The receiver's side. Dropping it drops what is pending and closes the mailbox.
pub struct Receiver<T> {
    owner: Owner<Held<T>>,
    shared: Arc<Shared<T>>,
    closed: bool,
}

/// What the receiver owns its word by. Private: pushing bare indices would break the module's invariant.
struct Held<T>(Arc<Shared<T>>);

impl<T> Deref for Held<T> {
    type Target = Handover;

    #[inline(always)]
    fn deref(&self) -> &Handover {
        &self.0.handover
    }
}

/// Why a value was not taken; it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// Every slot is taken.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

/// A mailbox for up to `capacity` pending values, and its receiver.
pub fn mailbox<T: Send>(capacity: u32) -> (Mailbox<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        handover: OwnLine(Handover::new()),
        links: LinkTable::new(capacity),
        free: Pool::full(capacity, 1),
        slots: (0..capacity).map(|_| UnsafeCell::new(None)).collect(),
    });
    let owner =
        Handover::claim(Held(shared.clone())).unwrap_or_else(|_| unreachable!("a fresh word is free"));
    (Mailbox(shared.clone()), Receiver { owner, shared, closed: false })
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Mailbox(self.0.clone())
    }
}

impl<T: Send> Mailbox<T> {
    /// Sends `value`. Returns whether nothing else was pending, in which case it is for the caller to wake the
    /// receiver, if that sleeps.
    pub fn push(&self, value: T) -> Result<bool, PushError<T>> {
        let shared = &*self.0;
        let mut slot = NIL;
        // Slots go into the pool one by one, so one comes out.
        if shared.free.pop(|index| slot = index) == 0 {
            return Err(PushError::Full(value));
        }
        // SAFETY: the index came from the pool, so no other thread has the slot.
        shared.slots[slot as usize].with_mut(|p| unsafe { *p = Some(value) });
        shared.handover.push(&shared.links, slot).map_err(|_| {
            // The list has no limit beside the slots: it was refused because no thread owns it.
            PushError::Closed(shared.take(slot).expect("put there a moment ago"))
        })
    }

    /// Values that were sent and not taken yet. Exact when no other thread sends or takes.
    pub(super) fn count(&self) -> usize {
        let free = &self.0.free;
        u64::from(free.size()).saturating_sub(free.free()) as usize
    }

    /// Whether anything is pending that the receiver has not begun to take.
    pub(super) fn has_pending(&self) -> bool {
        self.0.handover.has_pending()
    }
}

impl<T: Send> Receiver<T> {
    /// The values pending now, in the order in which they were pushed. What is not taken stays pending.
    #[inline]
    pub fn drain(&mut self) -> Received<'_, T> {
        Received { indices: self.owner.drain(&self.shared.links), shared: &self.shared }
    }

    /// Whether anything is pending: one load.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.owner.has_pending()
    }

    /// Closes the mailbox, and gives what was pending to `each`.
    pub fn close(mut self, each: impl FnMut(T)) {
        self.leave(each);
    }
}

impl<T> Receiver<T> {
    fn leave(&mut self, mut each: impl FnMut(T)) {
        while !self.closed && !model_failed() {
            self.closed = self.owner.try_leave();
            if !self.closed {
                for slot in self.owner.drain(&self.shared.links) {
                    self.shared.take(slot).into_iter().for_each(&mut each);
                }
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.leave(drop);
    }
}

/// See [`Receiver::drain`].
pub struct Received<'a, T> {
    indices: Drain<'a, Held<T>, LinkTable>,
    shared: &'a Shared<T>,
}

impl<T> Iterator for Received<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.shared.take(self.indices.next()?)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn tells_the_first_keeps_order_and_bounds() {
        let (tx, mut rx) = mailbox(3);
        assert!(!rx.has_pending());
        assert_eq!(tx.push("a"), Ok(true));
        assert_eq!(tx.clone().push("b"), Ok(false));
        assert_eq!(rx.drain().next(), Some("a"));
        assert!(rx.has_pending(), "what was not taken stays");
        assert_eq!(tx.push("c"), Ok(true), "the list itself was empty");
        assert_eq!(tx.push("d"), Ok(false));
        assert_eq!(tx.push("e"), Err(PushError::Full("e")));
        assert_eq!(tx.count(), 3);
        assert_eq!(rx.drain().collect::<Vec<_>>(), ["b"]);
        assert_eq!(rx.drain().collect::<Vec<_>>(), ["c", "d"]);
        assert_eq!(tx.count(), 0);
        assert_eq!(tx.push("f"), Ok(true));
    }

    #[test]
    fn a_closed_mailbox_drops_what_it_held_and_gives_back_the_rest() {
        let value = Arc::new(());
        let (tx, rx) = mailbox(2);
        assert_eq!(tx.push(value.clone()), Ok(true));
        drop(rx);
        assert_eq!(Arc::strong_count(&value), 1);
        for _ in 0..3 {
            assert!(matches!(tx.push(value.clone()), Err(PushError::Closed(_))));
        }
    }

    #[test]
    fn threads_lose_nothing_and_each_keeps_its_order() {
        const EACH: usize = 10_000;
        let (tx, mut rx) = mailbox(64);
        let threads: Vec<_> = (0..3)
            .map(|t| {
                let tx = tx.clone();
                std::thread::spawn(move || {
                    for i in 0..EACH {
                        let mut value = (t, i);
                        while let Err(PushError::Full(back)) = tx.push(value) {
                            value = back;
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0; 3];
        while next != [EACH; 3] {
            for (t, i) in rx.drain() {
                assert_eq!(next[t], i);
                next[t] += 1;
            }
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
