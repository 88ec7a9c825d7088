//! A mutex with priority inheritance: while a thread waits for it, its holder runs with the waiter's priority, if that is
//! higher (`PTHREAD_PRIO_INHERIT`, futex(2)).
//!
//! For what a polling thread shares with threads of an application and of control, which are not real-time threads when
//! it is (`stack.worker_policy`). A std mutex does not inherit: a holder that others keep from its CPU would keep a real-time
//! worker waiting for as long, whatever CPU that is on. Any thread may lock it. Without waiters it costs one atomic exchange on
//! either side, as a std mutex does.
//!
//! It is not poisoned by a panic under it.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use softnet_core::sync::Lock;

/// See the [module](self).
pub struct PiMutex<T> {
    /// At an address of its own, for it must not move.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives `&mut T` to one thread at a time, which may be any.
unsafe impl<T: Send> Send for PiMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PiMutex<T> {}

/// Holds a [`PiMutex`] until it is dropped, by the thread that locked it.
#[must_use = "the lock is held as long as this"]
pub struct PiGuard<'a, T> {
    mutex: &'a PiMutex<T>,
    /// Only the thread that locked may unlock.
    _stays: PhantomData<*const ()>,
}

impl<T> PiMutex<T> {
    /// A mutex that is not locked.
    pub fn new(value: T) -> Self {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let mut raw = MaybeUninit::<libc::pthread_mutex_t>::uninit();
        // SAFETY: the attributes are initialised before they are used, and destroyed once, afterwards; the mutex is
        // initialised before it is locked, and moved once, into its box, before that. (POSIX has it that a copy of a mutex that
        // was never locked is none; in glibc and musl, which are what there is on Linux, it holds no address of its own.)
        let raw = unsafe {
            let attributes = attributes.as_mut_ptr();
            assert_eq!(libc::pthread_mutexattr_init(attributes), 0, "attributes of a mutex");
            // Linux has futexes that inherit; where there are none, it is a plain mutex.
            let _ = libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_INHERIT);
            let made = libc::pthread_mutex_init(raw.as_mut_ptr(), attributes);
            libc::pthread_mutexattr_destroy(attributes);
            assert_eq!(made, 0, "a mutex with priority inheritance");
            raw.assume_init()
        };
        PiMutex { raw: Box::new(UnsafeCell::new(raw)), value: UnsafeCell::new(value) }
    }

    /// Locks it; waits for its holder, which has the caller's priority meanwhile.
    #[inline]
    pub fn lock(&self) -> PiGuard<'_, T> {
        // SAFETY: an initialised mutex at a stable address.
        let locked = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        assert_eq!(locked, 0, "locked by its own holder");
        PiGuard { mutex: self, _stays: PhantomData }
    }

    /// Locks it, unless it is locked.
    #[inline]
    pub fn try_lock(&self) -> Option<PiGuard<'_, T>> {
        // SAFETY: as above.
        let locked = unsafe { libc::pthread_mutex_trylock(self.raw.get()) };
        // Only then: a guard that is dropped unlocks.
        (locked == 0).then(|| PiGuard { mutex: self, _stays: PhantomData })
    }

    /// The value, for the only holder of the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> Lock<T> for PiMutex<T> {
    type Guard<'a>
        = PiGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self::new(value)
    }

    #[inline]
    fn lock(&self) -> PiGuard<'_, T> {
        self.lock()
    }
}

impl<T: Default> Default for PiMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for PiMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PiMutex").finish_non_exhaustive()
    }
}

impl<T> Drop for PiMutex<T> {
    fn drop(&mut self) {
        // SAFETY: it is not locked, for a guard would borrow it, unless one was forgotten; then this fails and does nothing.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this borrows the only guard.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this thread locked it, and has not unlocked it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softnet_testkit::lock_while_holder_is_hogged;

    #[test]
    fn one_holder_at_a_time() {
        let mutex = PiMutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *mutex.lock() += 1));
            }
        });
        let held = mutex.lock();
        assert_eq!(*held, 40_000);
        assert!(mutex.try_lock().is_none(), "nor by its holder, which holds it still");
        std::thread::scope(|scope| assert!(scope.spawn(|| mutex.try_lock().is_none()).join().unwrap()));
        drop(held);
        assert!(mutex.try_lock().is_some());
        let panicked = std::thread::scope(|scope| {
            let panics = || {
                let _held = mutex.lock();
                panic!("under the lock");
            };
            scope.spawn(panics).join().is_err()
        });
        assert!(panicked && mutex.try_lock().is_some());
    }

    #[test]
    fn a_real_time_thread_lends_its_priority_to_the_holder() {
        let mutex = PiMutex::new(());
        let Some(got) = lock_while_holder_is_hogged(|| mutex.lock()) else {
            return eprintln!("skipped: no real-time threads for this user");
        };
        assert!(got, "the hog had to end first");
    }
}
