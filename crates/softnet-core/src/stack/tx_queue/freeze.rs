//! A TX queue held still, while another process takes its device over; and one that was taken over.
//!
//! For control only. Invariant: while a [`FrozenQueue`] lives no other thread touches the ring:
//! what is sent meanwhile waits on the pending list, which is bounded.

use super::{LimitedRing, NetdevQueue, TxQueue, TxWake, XmitContext};
use crate::SoftnetData;
use crate::qdisc::{QueueGuard, ToFree};
use crate::skb::Frame;
use crate::sync::AbortOnPanic;

/// See the module.
#[must_use = "a queue that is not thawed sends nothing any more"]
pub struct FrozenQueue<'a, W> {
    queue: &'a NetdevQueue<W>,
    guard: QueueGuard<'a, LimitedRing<W>>,
}

impl<W: TxWake> NetdevQueue<W> {
    /// Owns the queue until it is [thawed](FrozenQueue::thaw). Waits for its owner; takes back what
    /// was sent.
    pub fn freeze(&self, ctx: &mut SoftnetData, now: u64) -> FrozenQueue<'_, W> {
        let _owner = AbortOnPanic::new();
        let mut guard = self.own();
        guard.ring().reap(ctx, now);
        FrozenQueue { queue: self, guard }
    }

    /// Has the ring go on with `frames`, as [`TxQueue::take_over`] says. Returns those that it did
    /// not want, if it can't be taken over.
    pub fn take_over(&self, ctx: &mut SoftnetData, now: u64, frames: Vec<Frame>) -> Vec<Frame> {
        let _owner = AbortOnPanic::new();
        let mut to_free = ToFree::new();
        let mut guard = self.own();
        let left = match &mut guard.ring().queue {
            Some(queue) => queue.take_over(frames),
            None => frames,
        };
        // What is on the ring, and was not sent when the other stopped, is told to the device
        // again.
        let ring = guard.ring();
        ring.stalled = ring.queue.as_ref().is_some_and(|queue| queue.stalled());
        guard.ring().reap(ctx, now);
        guard.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.let_go(ctx, &mut to_free);
        left
    }
}

impl<W: TxWake> FrozenQueue<'_, W> {
    /// The device's queue; `None` once it was closed.
    pub fn queue(&mut self) -> Option<&mut (dyn TxQueue + 'static)> {
        self.guard.ring().queue.as_deref_mut()
    }

    /// The queue goes on, with what was sent meanwhile, too.
    pub fn thaw(self, ctx: &mut SoftnetData, now: u64) {
        let _owner = AbortOnPanic::new();
        let mut to_free = ToFree::new();
        self.guard.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.queue.let_go(ctx, &mut to_free);
    }
}
