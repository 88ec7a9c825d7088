//! Exceptions of an instance that are left to the holder of the slow path's lock, and by which tables the instance's batches
//! go meanwhile.
//!
//! The holder may just publish what it learned of a neighbour. A batch that went by those newer tables would be forwarded
//! at once, before what is left of the same flows. So the batches of an instance go by the tables of its first
//! exception that is left until all of them are seen to: packets of a flow take one way until then.
//!
//! The instance's owner begins, and takes the tables for its batches; a thread that holds the slow path's lock ends.
//! Invariant: there are tables exactly while exceptions of a batch are left.

use std::sync::Arc;

use softnet_core::ip::tables::Tables;
use softnet_core::sync::{AtomicBool, Ordering};
use softnet_dev::PiMutex;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct LeftOf {
    /// Whether there are tables.
    any: AtomicBool,
    batches: PiMutex<Batches>,
}

#[derive(Default)]
struct Batches {
    /// Of which exceptions are left.
    left: u32,
    tables: Option<Arc<Tables>>,
}

impl LeftOf {
    /// Exceptions of a batch that went by `tables` are about to be left.
    pub(crate) fn begin(&self, tables: &Arc<Tables>) {
        let mut batches = self.batches.lock();
        batches.left += 1;
        batches.tables.get_or_insert_with(|| tables.clone());
        self.any.store(true, Ordering::Relaxed);
    }

    /// All exceptions of a batch were seen to, and what came of it was sent.
    pub(crate) fn end(&self) {
        let mut batches = self.batches.lock();
        batches.left = batches.left.saturating_sub(1);
        if batches.left == 0 {
            batches.tables = None;
            // Release: what was sent comes before what the owner sends by newer tables.
            self.any.store(false, Ordering::Release);
        }
    }

    /// Whether exceptions are left. If not, what came of former ones was sent.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The tables for the next batch, unless these are the newest.
    #[inline(always)]
    pub(crate) fn tables(&self) -> Option<Arc<Tables>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.batches.lock().tables.clone()
    }
}
