//! `netem`: a bad network before a TX queue (`net/sched/sch_netem.c`): loss, delay, jitter,
//! reordering, corruption, a rate. [`softnet_netem`] decides what becomes of a packet; the
//! discipline holds it until then.
//!
//! The kernel's `duplicate` is missing: a TX queue has no packet memory to copy into.
//!
//! Invariant: packets leave in the order of the times that were decided, those of the same time in
//! the order in which they came.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use softnet_netem::{Fate, Netem as Model, Params};

use super::fifo::push;
use super::{DevParams, Qdisc, QdiscStats, Quota, Spec, SpecError, ToFree, Verdict};
use crate::gso::pkt_len;
use crate::skb::{Batch, Csum, DropReason, Skb};

/// Packets for which there is room from the start; beyond, the heap grows.
const RESERVED: u32 = 1000;

/// A packet, and when it leaves.
struct Held {
    at: u64,
    order: u64,
    skb: Skb,
}

/// A `netem`.
pub struct Netem {
    model: Model,
    heap: BinaryHeap<Reverse<Held>>,
    order: u64,
    stats: Arc<QdiscStats>,
}

impl Held {
    fn key(&self) -> (u64, u64) {
        (self.at, self.order)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Netem {
    /// One with these parameters, which [`Spec`] has checked.
    pub fn new(params: &Params) -> Self {
        let room = params.limit.min(RESERVED) as usize;
        Netem {
            model: Model::new(*params),
            heap: BinaryHeap::with_capacity(room),
            order: 0,
            stats: Arc::default(),
        }
    }

    fn drop(&self, skb: Skb, reason: DropReason, to_free: &mut ToFree) -> Verdict {
        self.stats.dropped(reason);
        to_free.push(skb, reason);
        Verdict::Drop
    }
}

/// Flips a bit: the `which`th, modulo their number. Where the device completes the checksum, it
/// flips one of that, so that it is wrong then too.
fn flip(skb: &mut Skb, which: u32) {
    let partial = match skb.head().csum {
        Csum::Partial { start, offset } => Some(usize::from(start) + usize::from(offset)),
        _ => None,
    };
    let data = skb.data_mut();
    let (byte, bit) = match partial {
        Some(at) => (at + (which as usize / 8) % 2, which % 8),
        None if data.is_empty() => return,
        None => (which as usize / 8 % data.len(), which % 8),
    };
    if let Some(byte) = data.get_mut(byte) {
        *byte ^= 1 << bit;
    }
}

impl Qdisc for Netem {
    fn enqueue(&mut self, mut skb: Skb, now: u64, to_free: &mut ToFree) -> Verdict {
        let len = pkt_len(&skb);
        match self.model.decide(now, len, self.heap.len()).packet {
            // Its sender must not know: to it, the packet is on its way.
            Fate::Lost => {
                self.drop(skb, DropReason::QdiscLoss, to_free);
                Verdict::Success
            }
            Fate::Overlimit => self.drop(skb, DropReason::QdiscOverlimit, to_free),
            Fate::Leaves { at, corrupt, .. } => {
                if let Some(which) = corrupt {
                    flip(&mut skb, which);
                }
                self.order += 1;
                self.heap.push(Reverse(Held { at, order: self.order, skb }));
                self.stats.queued(len);
                Verdict::Success
            }
        }
    }

    fn dequeue(&mut self, now: u64, quota: &mut Quota, out: &mut Batch, _to_free: &mut ToFree) {
        while quota.is_open()
            && out.room() > 0
            && let Some(Reverse(first)) = self.heap.peek()
        {
            if first.at > now {
                self.stats.overlimit();
                return;
            }
            let Some(Reverse(Held { skb, .. })) = self.heap.pop() else { return };
            let len = pkt_len(&skb);
            quota.take(len);
            self.stats.unqueued(len);
            self.stats.sent(skb.segments(), len as u64);
            push(out, skb);
        }
    }

    fn next_event(&self, now: u64) -> Option<u64> {
        self.heap.peek().map(|Reverse(first)| first.at).filter(|at| *at > now)
    }

    /// Each segment has a fate of its own: nothing that stands for several passes whole.
    fn max_len(&self) -> usize {
        0
    }

    fn can_bypass(&self) -> bool {
        false
    }

    /// It stands for a path, on which much is under way.
    fn holds_back(&self) -> bool {
        false
    }

    fn reset(&mut self, reason: DropReason, to_free: &mut ToFree) {
        while let Some(Reverse(Held { skb, .. })) = self.heap.pop() {
            self.stats.unqueued(pkt_len(&skb));
            self.stats.dropped(reason);
            to_free.push(skb, reason);
        }
    }

    /// What is queued keeps its time.
    fn change(&mut self, spec: &Spec, _dev: &DevParams) -> Result<(), SpecError> {
        let Spec::Netem(params) = spec else {
            return Err(SpecError::OtherKind { is: "netem", asked: spec.kind() });
        };
        self.model.change(*params);
        Ok(())
    }

    fn stats(&self) -> &Arc<QdiscStats> {
        &self.stats
    }
}
