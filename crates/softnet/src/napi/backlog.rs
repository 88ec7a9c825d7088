//! What an instance polls: its RX queue, and its backlog. The latter holds packets that another
//! device redirects to this one, to be received as if they had come by this RX queue; or, of an
//! instance that has no queue, what is steered to its worker.
//!
//! Any thread puts them there, whatever lock or poll it is in, since they are received later: the instance is scheduled, and
//! the thread that polls it takes them along with what its queue brings (the kernel's `netif_rx`). So a queue has one poller, as
//! ever, and nothing is called twice on one stack.
//!
//! Invariants: a poll that leaves any behind has brought as much as it might, so that another follows, as for packets left
//! in the ring. There are at most [`MAX_BACKLOG`] of redirected ones, beyond which a sender that was racing may bring a
//! batch, and no more than a batch while an eighth of packet memory is not free; how many are
//! steered to a worker is for the steering thread to see to.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::napi::NapiInfo;
use softnet_core::skb::{BATCH, Batch, DropReason, FrameBatch, Region, Skb};
use softnet_core::steer::{Backlog, BacklogQueue};
use softnet_dev::RxQueue;

/// Packets that may wait in a backlog (the kernel's default of `netdev_max_backlog`).
pub const MAX_BACKLOG: usize = 1000;

/// Appends the packets of `batch` to `backlog`, as ones of the instance `napi`, and leaves it
/// empty. What there is no room for is dropped, and counted against the device they would have come
/// by.
pub(crate) fn enqueue(backlog: &Backlog, ctx: &mut SoftnetData, napi: &NapiInfo, batch: &mut Batch) {
    let (mut max, mut reason) = (backlog.max(), DropReason::CpuBacklog);
    // RX rings are to be filled first. There may be many such backlogs, so what is free says more than what this one has.
    let region = ctx.region();
    if region.frames_free() < u64::from(region.frame_count() / 8) && max > BATCH {
        (max, reason) = (BATCH, DropReason::BacklogMem);
    }
    let mut room = max.saturating_sub(backlog.len());
    let mut taken = Batch::new();
    for mut skb in batch.drain() {
        let head = skb.head_mut();
        (head.dev, head.queue) = (napi.dev, napi.queue);
        let refused: Option<Skb> = if room > 0 { taken.push(skb).err() } else { Some(skb) };
        room = room.saturating_sub(1);
        refused.into_iter().for_each(|skb| ctx.free(skb, reason));
    }
    if !taken.is_empty() && backlog.push(&mut taken).is_err() {
        ctx.free_batch(&mut taken, DropReason::DevReady);
    }
}

/// What an instance polls: an RX queue and a backlog, or a backlog alone.
pub struct Input {
    queue: Option<Box<dyn RxQueue>>,
    backlog: BacklogQueue,
}

impl Input {
    /// Of `queue`, and a backlog for packets of `region` that is empty.
    pub fn new(region: &Region, queue: Box<dyn RxQueue>) -> Self {
        Input { queue: Some(queue), backlog: Backlog::new(region, MAX_BACKLOG).1 }
    }

    /// Of a backlog alone.
    pub(crate) fn steered(backlog: BacklogQueue) -> Self {
        Input { queue: None, backlog }
    }

    /// The backlog, for others.
    pub fn backlog(&self) -> &Arc<Backlog> {
        self.backlog.backlog()
    }

    /// Receives up to `budget` packets into `batch`. Half of it is for the backlog, so that neither keeps the other waiting
    /// for ever; each may use what the other leaves.
    #[inline]
    pub(crate) fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        let Some(queue) = &mut self.queue else { return self.backlog.take(batch, budget) };
        if !self.backlog.has_pending() {
            return queue.rx_burst(ctx, batch, budget);
        }
        let mut n = self.backlog.take(batch, budget.div_ceil(2));
        if n < budget {
            n += queue.rx_burst(ctx, batch, budget - n);
        }
        n + self.backlog.take(batch, budget - n)
    }

    /// The same of frames without heads, from the queue alone: `None` if packets wait in the
    /// backlog, or if the queue [can't](RxQueue::rx_frames).
    #[inline]
    pub(crate) fn rx_frames(
        &mut self,
        ctx: &mut SoftnetData,
        frames: &mut FrameBatch,
        budget: usize,
    ) -> Option<usize> {
        let queue = self.queue.as_mut().filter(|_| !self.backlog.has_pending())?;
        queue.rx_frames(ctx, frames, budget)
    }

    /// Frames that the queue holds: no fewer than packets that wait in it.
    pub(crate) fn held(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.held())
    }

    /// The queue itself.
    pub(crate) fn queue(&mut self) -> Option<&mut (dyn RxQueue + 'static)> {
        self.queue.as_deref_mut()
    }

    /// What was received so far has been processed.
    #[inline(always)]
    pub(crate) fn processed(&mut self) {
        self.backlog.done();
    }

    /// Closes the queue, and drops what is in the backlog, as all that is put there from now on.
    pub fn close(self, ctx: &mut SoftnetData) {
        self.backlog.close(|skb| ctx.free(skb, DropReason::Shutdown));
        if let Some(queue) = self.queue {
            queue.close(ctx);
        }
    }
}
