//! What deferred enqueue is compared with: one lock around the discipline, of three kinds. Of this bench alone.

mod busylock;
mod locked;
mod mcs;
mod parking_lot;

pub(super) use busylock::BusyLock;
pub(super) use locked::Locked;
pub(super) use mcs::Mcs;
pub(super) use parking_lot::ParkingLot;

/// A lock around the root of a TX queue.
pub(super) trait RootLock<T>: Sync {
    /// Whether it wants to know that the queue is running.
    const ASKS: bool = false;
    /// What is held until the root lock was had, by senders that may have to wait for it for long.
    type Busy<'a>
    where
        Self: 'a;

    fn new(value: T) -> Self;

    /// Called before the root lock is asked for, by a sender that saw the queue running.
    fn contended(&self) -> Self::Busy<'_>;

    /// Runs `work` under the root lock.
    fn with<Out>(&self, work: impl FnOnce(&mut T) -> Out) -> Out;
}
