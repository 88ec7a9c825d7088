//! `parking_lot::Mutex`: spins for a moment, then blocks.

use parking_lot::Mutex;

use super::RootLock;

pub(in super::super) struct ParkingLot<T>(Mutex<T>);

impl<T: Send> RootLock<T> for ParkingLot<T> {
    type Busy<'a>
        = ()
    where
        T: 'a;

    fn new(value: T) -> Self {
        ParkingLot(Mutex::new(value))
    }

    fn contended(&self) {}

    fn with<Out>(&self, work: impl FnOnce(&mut T) -> Out) -> Out {
        work(&mut self.0.lock())
    }
}
