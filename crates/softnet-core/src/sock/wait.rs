//! What a socket tells those who wait for it: its readiness, and the count by which blocked threads learn of changes.
//!
//! Whoever changes a socket's readiness (a poller that pushed to an empty queue, the slow path that set an error) makes
//! that visible and then calls [`Wait::notify`]: the one place where waiters are told. A thread that is about to block takes a [`ticket`](Wait::ticket), looks
//! again at what it waits for, and blocks on the [`word`](Wait::word) while that has the ticket's value (a futex). Between the two
//! stands a full fence on each side, so that one of them sees the other.
//!
//! An arrival is for one thread: of those that are blocked one is woken for it, and wakes the next if it leaves anything
//! ([`Slot::pass_on`](super::Slot::pass_on)), whether that came before or after it was woken. What is for all (an error, the end) wakes all.
//!
//! Invariant: a thread that blocks although what it waits for was there before is woken, or another is, or is about to look.

use crate::sync::{AtomicU32, Mutant, Ordering, fence, model_failed, mutated};

/// What may be done with a socket without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A datagram waits.
    pub readable: bool,
    /// A datagram can be sent.
    pub writable: bool,
    /// An error waits.
    pub error: bool,
}

/// Those who wait for one socket.
#[derive(Default)]
pub struct Wait {
    /// How often waiters were told; what threads block on.
    word: AtomicU32,
    /// Threads that block, or are about to.
    blocked: AtomicU32,
}

/// A thread is about to block.
#[must_use = "it counts as blocked until this is dropped"]
pub struct Ticket<'a> {
    wait: &'a Wait,
    value: u32,
}

impl Wait {
    /// Announces that the calling thread is about to block. It must look at what it waits for again before it does.
    pub fn ticket(&self) -> Ticket<'_> {
        self.blocked.fetch_add(1, Ordering::Relaxed);
        if !mutated(Mutant::TicketNoFence) {
            fence(Ordering::SeqCst);
        }
        // After the announcement: whoever changes it later ends the wait. Acquire: what was changed before is seen at the
        // second look.
        Ticket { wait: self, value: self.word.load(Ordering::Acquire) }
    }

    /// After a change was made visible: whether threads are blocked, of which the caller wakes one or all then. Costs a fence and
    /// a load if nobody waits.
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
    fn only_those_who_wait_are_told() {
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
