//! The TX queues of an open device, and by which of them a packet leaves (the kernel's `netdev_pick_tx`).
//!
//! Any thread with a context sends by them. Invariant: packets of one flow leave by one TX queue from the first on, since each
//! names its choice (see [`TxChoice`]) wherever it waited meanwhile; a device whose maps choose by CPU asks for otherwise.

use std::sync::Arc;

use super::tx_queue::{NetdevQueue, TxWake};
use crate::SoftnetData;
use crate::qdisc::Origin;
use crate::skb::{Batch, DropReason};
use crate::steer::{Hint, TxChoice, XpsMaps, pick_tx, skb_get_hash};
use crate::sync::{AtomicBool, Ordering};

/// See the [module](self).
pub struct DevTx<W> {
    /// By number.
    pub queues: Vec<Arc<NetdevQueue<W>>>,
    /// All packets pass through TX queue 0, where the root discipline is.
    pub single: AtomicBool,
    /// A discipline lets packets wait that the ring would take: senders that look how much waits say what they are about
    /// to add.
    pub shaped: AtomicBool,
    /// Which TX queue packets leave by, if it is not that with the number of their RX queue.
    pub xps: XpsMaps,
}

impl<W: TxWake> DevTx<W> {
    /// How many TX queues packets may leave by: one, if the root discipline leads all of them through it.
    #[inline(always)]
    pub fn real_num_tx_queues(&self) -> u16 {
        match self.single.load(Ordering::Relaxed) {
            true => 1,
            false => self.queues.len() as u16,
        }
    }

    /// The TX queue for a packet that came by RX queue `rx_queue`, if any. If they are asked, `cpu` tells the calling thread's
    /// CPU, and `hash` the packet's flow hash.
    pub fn pick(&self, rx_queue: Option<u16>, cpu: impl FnOnce() -> u32, hash: impl FnOnce() -> u32) -> u16 {
        let cpu = self.xps.by_cpu().then(cpu);
        pick_tx(&self.xps, self.real_num_tx_queues(), Hint { rx_queue, cpu, hash })
    }

    /// Sends `batch` at `now` and leaves it empty; the device has at least one queue.
    #[inline(always)]
    pub fn xmit(
        &self,
        ctx: &mut SoftnetData,
        now: u64,
        choice: TxChoice,
        origin: Origin,
        cpu: impl FnOnce() -> u32,
        batch: &mut Batch,
    ) {
        let queue = match choice {
            TxChoice::RxQueue(queue) if !self.xps.is_off() => {
                return self.xmit_by_maps(ctx, now, queue, origin, cpu, batch);
            }
            TxChoice::RxQueue(queue) | TxChoice::Queue(queue) => modulo(queue, self.real_num_tx_queues()),
        };
        self.queues[queue].xmit(ctx, now, origin, batch);
    }

    /// Sends received packets, each by the TX queue that the maps say; the device has maps.
    #[cold]
    fn xmit_by_maps(
        &self,
        ctx: &mut SoftnetData,
        now: u64,
        rx_queue: u16,
        origin: Origin,
        cpu: impl FnOnce() -> u32,
        batch: &mut Batch,
    ) {
        let cpu = if self.xps.by_cpu() { cpu() } else { 0 };
        let (mut some, mut to) = (Batch::new(), 0);
        for mut skb in batch.drain() {
            let queue = self.pick(Some(rx_queue), || cpu, || skb_get_hash(&mut skb));
            if queue != to && !some.is_empty() {
                self.queues[usize::from(to)].xmit(ctx, now, origin, &mut some);
            }
            to = queue;
            if let Err(skb) = some.push(skb) {
                // It holds as many as the batch these come from.
                ctx.free(skb, DropReason::QdiscDrop);
            }
        }
        self.queues[usize::from(to)].xmit(ctx, now, origin, &mut some);
    }

    /// Bytes that this stack made and that wait in the disciplines of its queues.
    pub fn local_backlog(&self) -> u64 {
        self.queues.iter().map(|queue| queue.ring().local_backlog()).sum()
    }

    /// Takes back frames that were sent by queue `queue` (modulo how many there are).
    pub fn reap(&self, ctx: &mut SoftnetData, now: u64, queue: usize) {
        if !self.queues.is_empty() {
            self.queues[queue % self.queues.len()].reap(ctx, now);
        }
    }
}

/// A division costs more than to see that none is needed.
#[inline(always)]
fn modulo(queue: u16, n: u16) -> usize {
    usize::from(if queue < n { queue } else { queue % n })
}
