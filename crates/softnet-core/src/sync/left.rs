//! What is left to the holder of a lock by threads that must not wait for it.
//!
//! A thread that finds the lock held leaves its work in a mailbox and goes on; a holder that let go of the lock looks whether
//! something was left meanwhile, and takes the lock again for it, unless another holder has it by then, which does the same.
//! The mailbox's receiver is among what the lock guards. Which lock that is, is the user's.
//!
//! Invariant: a thread that left something, and a holder that let go, each make that visible, fence, and then look at the
//! other's side: the one tries the lock once more, the other looks for what was left. So one of them finds it.

use super::{Mailbox, Mutant, Ordering, Receiver, fence, mailbox, mutated};

/// The side of those that leave something.
pub struct Left<T>(Mailbox<T>);

/// With room for `capacity` values; the receiver is for the thread that holds the lock.
pub fn left<T: Send>(capacity: u32) -> (Left<T>, Receiver<T>) {
    let (sender, receiver) = mailbox(capacity);
    (Left(sender), receiver)
}

impl<T: Send> Left<T> {
    /// Leaves `value` to the lock's holder. It comes back if there is no room: then the caller has to wait for the lock.
    /// After the last value, [`left`](Self::left).
    pub fn leave(&self, value: T) -> Result<(), T> {
        use super::PushError::{Closed, Full};
        self.0.push(value).map(drop).map_err(|(Full(value) | Closed(value))| value)
    }

    /// The caller left something, and tries the lock once more after this: its holder may have let go without seeing it.
    pub fn left(&self) {
        if !mutated(Mutant::LeftNoFence) {
            fence(Ordering::SeqCst);
        }
    }

    /// Whether something was left that has no holder to see to it. To be called after the lock was let go.
    pub fn any(&self) -> bool {
        if !mutated(Mutant::LetGoNoFence) {
            fence(Ordering::SeqCst);
        }
        self.0.has_pending()
    }

    /// How much is left now. Under the lock none of it is taken by others.
    pub fn count(&self) -> usize {
        self.0.count()
    }
}
