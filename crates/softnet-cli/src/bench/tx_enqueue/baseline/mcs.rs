//! The queue lock of Mellor-Crummey and Scott: first come, first served, each waiter on a line of its own; here one that
//! yields its CPU after it has spun for a while.

use mcslock::raw::Mutex;
use mcslock::relax::YieldBackoff;

use super::RootLock;

pub(in super::super) struct Mcs<T>(Mutex<T, YieldBackoff>);

impl<T: Send> RootLock<T> for Mcs<T> {
    type Busy<'a>
        = ()
    where
        T: 'a;

    fn new(value: T) -> Self {
        Mcs(Mutex::new(value))
    }

    fn contended(&self) {}

    fn with<Out>(&self, work: impl FnOnce(&mut T) -> Out) -> Out {
        self.0.lock_then(work)
    }
}
