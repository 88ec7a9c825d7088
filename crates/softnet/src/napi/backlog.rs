//! The backlog of a NAPI instance: packets that another device redirects to this one, to be received as if they had come
//! by this RX queue.
//!
//! Any thread puts them there, whatever lock or poll it is in, since they are received later: the instance is scheduled, and
//! the thread that polls it takes them along with what its queue brings (the kernel's `netif_rx`). So a queue has one poller, as
//! ever, and nothing is called twice on one stack.
//!
//! Invariants: a poll that leaves any behind has brought as much as it might, so that another follows, as for packets left
//! in the ring. There are at most [`MAX_BACKLOG`], beyond which a sender that was racing may bring a batch.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::napi::NapiInfo;
use softnet_core::skb::{Batch, DropReason, Skb, SkbList};
use softnet_core::sync::{AtomicUsize, Mailbox, Ordering, PushError, Receiver, mailbox};
use softnet_dev::RxQueue;

/// Packets that may wait in a backlog (the kernel's default of `netdev_max_backlog`).
pub const MAX_BACKLOG: usize = 1000;

/// The side of a backlog that others see.
pub struct Backlog {
    lists: Mailbox<SkbList>,
    queued: AtomicUsize,
}

impl Backlog {
    /// Packets in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the packets of `batch`, as ones of the instance `napi`, and leaves it empty. What there is no room for is
    /// dropped, and counted against the device they would have come by.
    pub(crate) fn enqueue(&self, ctx: &mut SoftnetData, napi: &NapiInfo, batch: &mut Batch) {
        let room = MAX_BACKLOG.saturating_sub(self.len());
        let mut list = SkbList::new();
        for mut skb in batch.drain() {
            let head = skb.head_mut();
            (head.dev, head.queue) = (napi.dev, napi.queue);
            // A list refuses only what is of another region than the rest, and there is one.
            let refused = if list.len() < room { list.push_back(skb).err() } else { Some(skb) };
            refused.into_iter().for_each(|skb| ctx.free(skb, DropReason::CpuBacklog));
        }
        let n = list.len();
        if n == 0 {
            return;
        }
        // Before the poller can take them.
        self.queued.fetch_add(n, Ordering::Relaxed);
        let (list, reason) = match self.lists.push(list) {
            Ok(_) => return,
            Err(PushError::Full(list)) => (list, DropReason::CpuBacklog),
            Err(PushError::Closed(list)) => (list, DropReason::DevReady),
        };
        self.queued.fetch_sub(n, Ordering::Relaxed);
        free(ctx, list, reason);
    }
}

fn free(ctx: &mut SoftnetData, mut list: SkbList, reason: DropReason) {
    while let Some(skb) = list.pop_front() {
        ctx.free(skb, reason);
    }
}

/// What an instance polls: its RX queue, and its backlog.
pub struct Input {
    queue: Box<dyn RxQueue>,
    backlog: Arc<Backlog>,
    lists: Receiver<SkbList>,
    /// Of what was taken from the backlog, what did not fit the batch.
    rest: SkbList,
}

impl Input {
    /// Of `queue`, and a backlog that is empty.
    pub fn new(queue: Box<dyn RxQueue>) -> Self {
        // Each list holds a packet at least.
        let (sender, lists) = mailbox(MAX_BACKLOG as u32);
        let backlog = Arc::new(Backlog { lists: sender, queued: AtomicUsize::new(0) });
        Input { queue, backlog, lists, rest: SkbList::new() }
    }

    /// The backlog, for others.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Receives up to `budget` packets into `batch`. Half of it is for the backlog, so that neither keeps the other waiting
    /// for ever; each may use what the other leaves.
    #[inline]
    pub(crate) fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        if !self.has_backlog() {
            return self.queue.rx_burst(ctx, batch, budget);
        }
        let mut n = self.take(batch, budget.div_ceil(2));
        if n < budget {
            n += self.queue.rx_burst(ctx, batch, budget - n);
        }
        n + self.take(batch, budget - n)
    }

    /// Whether packets wait in the backlog, those included that were taken from it and not received yet.
    #[inline(always)]
    pub(crate) fn has_backlog(&self) -> bool {
        !self.rest.is_empty() || self.lists.has_pending()
    }

    /// Receives up to `budget` packets of the backlog.
    fn take(&mut self, batch: &mut Batch, budget: usize) -> usize {
        let budget = budget.min(batch.room());
        let mut n = 0;
        while n < budget {
            let Some(skb) = self.next() else { break };
            // There is room.
            let _ = batch.push(skb);
            n += 1;
        }
        self.backlog.queued.fetch_sub(n, Ordering::Relaxed);
        n
    }

    fn next(&mut self) -> Option<Skb> {
        if self.rest.is_empty() {
            self.rest = self.lists.drain().next()?;
        }
        self.rest.pop_front()
    }

    /// Closes the queue, and drops what is in the backlog, as all that is put there from now on.
    pub fn close(self, ctx: &mut SoftnetData) {
        free(ctx, self.rest, DropReason::Shutdown);
        self.lists.close(|list| free(ctx, list, DropReason::Shutdown));
        self.queue.close(ctx);
    }
}
