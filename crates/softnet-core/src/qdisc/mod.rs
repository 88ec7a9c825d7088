//! Queueing disciplines: what waits before a TX queue, in which order it leaves, and when.
//!
//! * [`Qdisc`] is a discipline: [`Fifo`] (`pfifo`, `bfifo`), [`PfifoFast`], [`Tbf`], [`Netem`]. It
//!   is a plain data structure that one thread at a time calls, with the time as an argument; it
//!   never touches a device.
//! * [`Spec`] says which one and with which parameters, in `tc`'s words and units, and builds it.
//! * [`DeferList`] is the root of one TX queue: senders that find it taken leave their packets on a lock-free list
//!   and go on; the one that owns it enqueues for all, dequeues and transmits.
//! * [`Mirred`] is the action that redirects or mirrors packets to a device; it finds out when that goes in circles.
//! * [`Dql`] limits the bytes in a device's ring, so that packets wait in the discipline, where order is decided.
//!
//! Invariant: every packet that goes in comes out by [`Qdisc::dequeue`] or in a [`ToFree`], with a reason.

mod defer;
mod dql;
mod fifo;
mod mirred;
mod netem;
mod netem_spec;
mod pfifo_fast;
mod root;
mod spec;
mod stats;
mod tbf;
mod to_free;
mod units;

#[cfg(all(test, feature = "loom"))]
mod models;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use defer::{DeferList, DeferStats, Origin, QueueGuard, Sent};
pub use dql::Dql;
pub use fifo::Fifo;
pub use mirred::{MIRRED_DEFER_LIMIT, MIRRED_NEST_LIMIT, Mirred, MirredOutcome, MirredStack};
pub use netem::Netem;
pub use pfifo_fast::{PfifoFast, rt_tos2priority};
pub(crate) use root::local_bytes;
pub use root::{NextRun, Ring};
pub use spec::{DevParams, Spec, SpecError};
pub use stats::{QdiscStats, QdiscTotals};
pub use tbf::{Tbf, TbfLimit, TbfPeak, TbfSpec};
pub use to_free::ToFree;
pub use units::{Rate, Size, Time, UnitError};

use std::sync::Arc;

use crate::skb::{Batch, DropReason, Skb};

/// What became of a packet that was enqueued (the kernel's `NET_XMIT_*`). Ordered: the later, the worse for its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It was taken.
    #[default]
    Success,
    /// It was taken, or another of its flow dropped for it: the sender should slow down.
    Cn,
    /// It was dropped.
    Drop,
}

/// How much may be dequeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Packets.
    pub packets: usize,
    /// Bytes. A packet may go as long as this is not below 0, so that the last one may exceed it: the rule of [`Dql`].
    pub bytes: i64,
}

impl Quota {
    /// Without a limit but that of a batch.
    pub const BATCH: Quota = Quota { packets: crate::skb::BATCH, bytes: i64::MAX };

    /// Whether another packet may go.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.packets > 0 && self.bytes >= 0
    }

    /// Accounts for a packet of `len` bytes.
    #[inline(always)]
    pub fn take(&mut self, len: usize) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len as i64);
    }
}

/// A queueing discipline. Times are in ns of one monotonic clock.
pub trait Qdisc: Send {
    /// Takes `skb`, or puts it, or another in its place, on `to_free`.
    fn enqueue(&mut self, skb: Skb, now: u64, to_free: &mut ToFree) -> Verdict;

    /// Appends packets that may leave now to `out`, in order, as long as `quota` and the batch have room. It takes at
    /// least one if it may, so that nothing appended means: empty, or [`next_event`](Self::next_event).
    fn dequeue(&mut self, now: u64, quota: &mut Quota, out: &mut Batch, to_free: &mut ToFree);

    /// When to dequeue again, if no packet may leave at `now`: when the next may, or a little later, so that several leave.
    /// `None`: one may leave, or there is none.
    fn next_event(&self, now: u64) -> Option<u64>;

    /// Bytes of the longest packet that it takes, [all that leaves](crate::gso::pkt_len) counted;
    /// one that stands for several segments is cut for it.
    fn max_len(&self) -> usize {
        usize::MAX
    }

    /// Whether a packet may pass by, when nothing is queued.
    fn can_bypass(&self) -> bool;

    /// Whether what is queued waits for its turn: so that local senders are to send less. Not what is only
    /// late (Linux `skb_orphan_partial`).
    fn holds_back(&self) -> bool {
        true
    }

    /// Puts everything queued on `to_free`, for `reason`.
    fn reset(&mut self, reason: DropReason, to_free: &mut ToFree);

    /// Takes other parameters of the same kind, and keeps what is queued, even beyond a new limit.
    fn change(&mut self, spec: &Spec, dev: &DevParams) -> Result<(), SpecError>;

    /// What `tc -s` shows of it. Any thread may read them at any time; they are written under ownership.
    fn stats(&self) -> &Arc<QdiscStats>;

    /// Packets queued, those included that the device gave back.
    fn len(&self) -> usize {
        self.stats().qlen()
    }

    /// Whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
