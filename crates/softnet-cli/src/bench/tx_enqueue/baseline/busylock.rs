//! The kernel's scheme until 6.18: two spin locks. A sender that sees the queue running takes `busylock` first and keeps it
//! until it has had the root lock, so that of many that wait only one waits for the root lock, and the thread that runs the
//! queue, which takes that lock for every batch, gets it more often.
//!
//! In the kernel a thread that holds a spin lock, or spins, is not preempted. Here it may be, so a waiter spins for a bounded
//! time and then yields its CPU: one that never did would be unfair to this scheme.

use spin::mutex::{SpinMutex, SpinMutexGuard};

use super::RootLock;

/// Looks at a lock before the CPU is given away: about as long as a batch is on its way to the ring.
const SPINS: usize = 100;

pub(in super::super) struct BusyLock<T> {
    busylock: Aligned<SpinMutex<()>>,
    root: Aligned<SpinMutex<T>>,
}

/// On lines of its own, so that waiters for one lock do not disturb the other.
#[repr(align(128))]
struct Aligned<T>(T);

fn lock<T>(mutex: &SpinMutex<T>) -> SpinMutexGuard<'_, T> {
    loop {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        let mut spins = 0;
        while mutex.is_locked() {
            if spins == SPINS {
                std::thread::yield_now();
                spins = 0;
            }
            spins += 1;
            std::hint::spin_loop();
        }
    }
}

impl<T: Send> RootLock<T> for BusyLock<T> {
    const ASKS: bool = true;
    type Busy<'a>
        = SpinMutexGuard<'a, ()>
    where
        T: 'a;

    fn new(value: T) -> Self {
        BusyLock { busylock: Aligned(SpinMutex::new(())), root: Aligned(SpinMutex::new(value)) }
    }

    fn contended(&self) -> SpinMutexGuard<'_, ()> {
        lock(&self.busylock.0)
    }

    fn with<Out>(&self, work: impl FnOnce(&mut T) -> Out) -> Out {
        work(&mut lock(&self.root.0))
    }
}
