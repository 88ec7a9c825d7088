//! How waiting threads learn of a socket's changes: its readiness, and the count that blocked
//! threads sleep on.
//!
//! A thread that changes a socket's readiness (a poller that pushed to an empty queue, the slow
//! path that set an error) makes the change visible and then calls [`Wait::notify`], the one place
//! where waiters are notified. A thread that is about to block takes a [`ticket`](Wait::ticket),
//! looks again at what it waits for, and blocks on the [`word`](Wait::word) while that has the
//! ticket's value (a futex). Each side has a full fence between its two steps, so that one of them
//! sees the other.
//!
//! An arrival is for one thread: one blocked thread is woken for it, and wakes the next if it
//! leaves any datagrams ([`Slot::pass_on`](super::Slot::pass_on)), whether they came before or
//! after it was woken. An event for all (an error, the end) wakes all.
//!
//! Invariant: if a thread blocks although what it waits for is there, then it is woken, or another
//! thread is woken or is about to look.

use crate::sync::{AtomicU32, Mutant, Ordering, fence, model_failed, mutated};

/// What can be done with a socket without blocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A datagram, bytes, the end of a stream, or a connection can be received.
    pub readable: bool,
    /// A datagram, or bytes, can be sent.
    pub writable: bool,
    /// An error is pending.
    pub error: bool,
    /// The peer of a stream sends no more (`EPOLLRDHUP`).
    pub peer_closed: bool,
    /// Neither end of a stream sends any more (`EPOLLHUP`).
    pub hung_up: bool,
}

/// The waiters of one socket.
#[derive(Default)]
pub struct Wait {
    /// Number of notifications; threads block on it.
    word: AtomicU32,
    /// Threads that block or are about to.
    blocked: AtomicU32,
}

/// A thread that is about to block.
#[must_use = "it counts as blocked until this is dropped"]
pub struct Ticket<'a> {
    wait: &'a Wait,
    value: u32,
}

impl Wait {
    /// Announces that the calling thread is about to block. It must look at what it waits for again
    /// before it does.
    pub fn ticket(&self) -> Ticket<'_> {
        self.blocked.fetch_add(1, Ordering::Relaxed);
        if !mutated(Mutant::TicketNoFence) {
            fence(Ordering::SeqCst);
        }
        // After the announcement: a later change ends the wait. Acquire: an earlier change is seen
        // at the second look.
        Ticket { wait: self, value: self.word.load(Ordering::Acquire) }
    }

    /// Called after a change was made visible: returns whether threads are blocked, of which the
    /// caller wakes one or all. Costs a fence and a load if no thread waits.
    #[inline]
    pub fn notify(&self) -> bool {
        if !mutated(Mutant::NotifyNoFence) {
            fence(Ordering::SeqCst);
        }
        if self.blocked.load(Ordering::Relaxed) == 0 {
            return false;
        }
        if !mutated(Mutant::NotifyUncounted) {
            self.word.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// What to block on.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }
}

impl Ticket<'_> {
    /// The value of the [word](Wait::word) that means that nothing has changed.
    pub fn value(&self) -> u32 {
        self.value
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !model_failed() {
            self.wait.blocked.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn only_waiters_are_told() {
        let wait = Wait::default();
        assert!(!wait.notify());
        let ticket = wait.ticket();
        assert_eq!(ticket.value(), wait.word().load(Ordering::Relaxed));
        assert!(wait.notify());
        assert_ne!(ticket.value(), wait.word().load(Ordering::Relaxed));
        drop(ticket);
        assert!(!wait.notify());
    }
}
