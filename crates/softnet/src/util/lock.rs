//! Mutexes whose holder may have panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that panicked under the lock left nothing half done that matters more than going on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
