//! A queue that several threads take from, each of which sleeps when it finds nothing.
//!
//! Any thread may push and take. One that finds the queue empty is counted as idle in the same critical section, and from
//! then on waits for a wake-up of the caller's own kind (a semaphore); a thread that pushes while another is idle is
//! told to wake one. Too many wake-ups may be sent, since an idle thread counts until it says that it is awake; too
//! few never are.
//!
//! The one place in this crate that needs a lock, for [`Handover`](super::Handover) has one owner to take everything, and here
//! each of many takes one. Which [`Lock`] that is, the user says: threads with real-time priorities that push or take want one
//! whose holder inherits them, which takes system calls. It is held for a few instructions, and nothing else is locked or
//! called under it.
//!
//! Invariant: if anything is in the queue, then a thread that was not idle when it was pushed has yet to look, or a wake-up
//! was asked for.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::DerefMut;

use super::{Mutant, mutated};

/// A mutex around a `V`. One that can be poisoned by a panic is not to be.
pub trait Lock<V> {
    /// Holds it until it is dropped.
    type Guard<'a>: DerefMut<Target = V>
    where
        Self: 'a;

    /// One that is not held.
    fn new(value: V) -> Self;

    /// Takes it; waits for its holder.
    fn lock(&self) -> Self::Guard<'_>;
}

/// The mutex of tests and models.
#[cfg(test)]
impl<V> Lock<V> for super::Mutex<V> {
    type Guard<'a>
        = super::MutexGuard<'a, V>
    where
        V: 'a;

    fn new(value: V) -> Self {
        Self::new(value)
    }

    fn lock(&self) -> Self::Guard<'_> {
        self.lock().expect("no test panics under it")
    }
}

/// A queue that several threads take from, each of which sleeps when it finds nothing.
pub struct ReadyQueue<T, L: Lock<Ready<T>>>(L, PhantomData<fn() -> T>);

/// What the lock of a [`ReadyQueue`] guards.
pub struct Ready<T> {
    queue: VecDeque<T>,
    /// Threads that found it empty, and wait or are about to.
    idle: usize,
}

impl<T, L: Lock<Ready<T>>> Default for ReadyQueue<T, L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, L: Lock<Ready<T>>> ReadyQueue<T, L> {
    /// An empty queue, and no idle thread.
    pub fn new() -> Self {
        ReadyQueue(L::new(Ready { queue: VecDeque::with_capacity(16), idle: 0 }), PhantomData)
    }

    /// Its lock, taken: threads that push or take wait for as long as it is held.
    #[inline]
    pub fn lock(&self) -> L::Guard<'_> {
        self.0.lock()
    }

    /// Appends `value`. Returns whether the caller must wake an idle thread.
    #[inline]
    pub fn push(&self, value: T) -> bool {
        let looked = mutated(Mutant::IdleLookedTooEarly).then(|| self.lock().idle > 0);
        let mut inner = self.lock();
        let was_empty = inner.queue.is_empty();
        inner.queue.push_back(value);
        let wake = looked.unwrap_or(inner.idle > 0);
        wake && (was_empty || !mutated(Mutant::WakeOnlyIfEmpty))
    }

    /// The first element. `None`: the caller is idle now, and must wait to be woken; after that, or if it does not wait, it
    /// says so by [`awake`](Self::awake).
    #[inline]
    pub fn take(&self) -> Option<T> {
        let mut inner = self.lock();
        let value = inner.queue.pop_front();
        if mutated(Mutant::IdleCountedLate) {
            drop(inner);
            inner = self.lock();
        }
        inner.idle += usize::from(value.is_none());
        value
    }

    /// The caller, which a [`take`](Self::take) made idle, is so no more.
    #[inline]
    pub fn awake(&self) {
        self.lock().idle -= 1;
    }

    /// The first element, after `value` was put at the end: the caller stays busy, so no thread need be woken.
    #[inline]
    pub fn exchange(&self, value: T) -> T {
        let mut inner = self.lock();
        match inner.queue.pop_front() {
            Some(next) => {
                inner.queue.push_back(value);
                next
            }
            None => value,
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    #[test]
    fn first_in_first_out_and_wakes_while_a_thread_is_idle() {
        let ready = ReadyQueue::<char, Mutex<_>>::new();
        assert!(!ready.push('a'), "no thread is idle");
        assert!(!ready.push('b'));
        assert_eq!(ready.exchange('c'), 'a');
        assert_eq!([ready.take(), ready.take()], [Some('b'), Some('c')]);
        assert_eq!(ready.exchange('d'), 'd', "nothing else waits");
        assert_eq!([ready.take(), ready.take()], [None, None]);
        assert!(ready.push('e') && ready.push('f'), "two are idle");
        ready.awake();
        assert!(ready.push('g'), "one has not woken yet");
        ready.awake();
        assert!(!ready.push('h'));
        assert_eq!(ready.take(), Some('e'));
    }
}
