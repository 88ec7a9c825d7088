//! What leaves: onto the TX queues, and what is known of that which waits there.
//!
//! Called by the holder of a shard. Invariant: what is reserved before a device is released once it is
//! on a TX queue, or dropped.

use softnet_core::SoftnetData;
use softnet_core::ip::hooks::{HookContext, Made, Passage, Slot};
use softnet_core::qdisc::Origin;
use softnet_core::skb::{Batch, DropReason, SkbList};
use softnet_core::steer::{TxChoice, skb_get_hash};
use softnet_core::sync::Ordering;

use super::{Caller, TcpTable};
use crate::stack::StackInner;

/// Bytes of this stack that wait before device `dev`, or are about to.
pub(super) fn backlog(shared: &StackInner, dev: u16) -> u64 {
    let waits = |device: &crate::device::StackDevice| {
        let reserved = device.reserved.load(Ordering::Relaxed);
        Some(device.live.load().as_deref()?.tx.local_backlog() + reserved)
    };
    shared.netdevs.get(usize::from(dev)).and_then(|netdev| waits(&netdev.device)).unwrap_or(0)
}

/// So many bytes are about to wait before device `dev`: whether they are in its [`backlog`] until they are
/// [released](release). Only of a device that has packets wait.
pub(super) fn reserve(shared: &StackInner, dev: u16, bytes: u64) -> bool {
    let Some(netdev) = shared.netdevs.get(usize::from(dev)) else { return false };
    let live = netdev.device.live.load();
    let shaped = live.as_deref().is_some_and(|live| live.tx.shaped.load(Ordering::Relaxed));
    if shaped {
        netdev.device.reserved.fetch_add(bytes, Ordering::Relaxed);
    }
    shaped
}

/// What was reserved is on the TX queues.
pub(super) fn release(shared: &StackInner, reserved: &mut Vec<(u16, u64)>) {
    for (dev, bytes) in reserved.drain(..) {
        if let Some(netdev) = shared.netdevs.get(usize::from(dev)) {
            netdev.device.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl TcpTable {
    /// Puts what leaves on the TX queues.
    pub(super) fn transmit(&self, ctx: &mut SoftnetData, caller: &Caller<'_>, list: &mut SkbList) {
        if list.is_empty() {
            // The usual case of a read.
            return;
        }
        let mut batch = Batch::new();
        let mut to = None;
        while let Some(skb) = list.pop_front() {
            let dev = skb.head().dev;
            if to != Some(dev) || batch.room() == 0 {
                self.xmit(ctx, caller, to.unwrap_or(dev), &mut batch);
                to = Some(dev);
            }
            if let Err(skb) = batch.push(skb) {
                ctx.free_at(skb, dev, DropReason::DevReady);
            }
        }
        self.xmit(ctx, caller, to.unwrap_or(0), &mut batch);
    }

    fn xmit(&self, ctx: &mut SoftnetData, caller: &Caller<'_>, dev: u16, batch: &mut Batch) {
        let Some(first) = batch.as_mut_slice().first_mut() else { return };
        let hash = skb_get_hash(first);
        ctx.originated(batch.len() as u64);
        let Caller { shared, tables, now, .. } = *caller;
        if [Slot::Output, Slot::Postrouting].iter().any(|slot| tables.hooks.is_set(*slot)) {
            let mut made = Made::default();
            let mut cx = HookContext::new(ctx, now, tables, &mut made);
            for slot in [Slot::Output, Slot::Postrouting] {
                cx.run(Passage::new(slot, None, Some(dev)), batch);
            }
            if !made.is_empty() && self.timers.made(&mut made) {
                made.drain().for_each(|(skb, _)| ctx.free(skb, DropReason::SocketBacklog));
            }
        }
        let Some(netdev) = shared.netdevs.get(usize::from(dev)) else {
            return ctx.free_batch(batch, DropReason::DevReady);
        };
        let live = netdev.device.live.load();
        let queue = live
            .as_deref()
            .filter(|live| !live.tx.queues.is_empty())
            .map_or(0, |live| live.tx.pick(None, crate::device::current_cpu, || hash));
        let to = crate::device::TxHint { choice: TxChoice::Queue(queue), origin: Origin::Forwarded };
        crate::device::dev_queue_xmit(ctx, netdev, now, to, batch);
    }
}
