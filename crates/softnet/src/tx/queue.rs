//! TX queues as the runtime has them: each is run by a worker, and holds local senders back.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{Origin, Sent};
use softnet_core::skb::{Batch, DropReason, Skb};
use softnet_core::stack::tx_queue::{self, TxWake};

use super::{TxBackpressure, TxDue};
use crate::stack::LocalDrops;
use crate::util::Clock;

pub(crate) use softnet_core::stack::tx_queue::NEVER;

/// A TX queue of an open device.
pub(crate) type NetdevQueue = tx_queue::NetdevQueue<QueueWake>;

/// The threads that a TX queue wakes.
pub struct QueueWake {
    /// The times of the worker that runs it.
    pub due: Arc<TxDue>,
    /// Local senders that wait for room on the pending list.
    pub held_back: TxBackpressure,
    /// Connections that are told of what was dropped.
    pub(crate) drops: Arc<LocalDrops>,
    /// The queue's number.
    pub number: u16,
}

impl TxWake for QueueWake {
    fn run_at(&self, at: u64) {
        self.due.set(at);
    }

    #[inline(always)]
    fn made_room(&self) {
        self.held_back.wake();
    }

    #[cold]
    fn dropped(&self, skb: &Skb, reason: DropReason) {
        self.drops.dropped(skb, reason);
    }

    fn number(&self) -> u16 {
        self.number
    }
}

/// As [`NetdevQueue::xmit`], for a local sender that can wait: it is held back while too many packets are pending, but no
/// longer than until `until`, in ns of the clock.
pub(crate) fn xmit_waiting(
    queue: &NetdevQueue,
    ctx: &mut SoftnetData,
    clock: &Clock,
    until: u64,
    batch: &mut Batch,
) -> Sent {
    match queue.xmit(ctx, clock.now(), Origin::Local, batch) {
        Sent::Full => {
            let held_back = &queue.wake().held_back;
            held_back.wait(clock, until, |now| queue.xmit(ctx, now, Origin::Local, batch))
        }
        sent => sent,
    }
}
