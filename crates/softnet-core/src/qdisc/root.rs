//! What the owner of a TX queue works on: the discipline, the packets it took out of it, and the device's ring.
//!
//! Called under ownership only (see [`DeferList`](super::DeferList)).
//!
//! Invariant: packets leave the discipline in batches of at most 64, and only as many as the ring says it has room for;
//! what it refuses all the same leaves before anything else.

use std::sync::Arc;

use super::fifo::push;
use super::{Qdisc, QdiscStats, Quota, ToFree, Verdict};
use crate::gso::{self, is_aggregate, pkt_len};
use crate::skb::{Batch, DropReason, Flags, Skb, SkbList};

/// The ring of a TX queue, as its owner uses it. `C` is what the caller's thread brings along: its context.
pub trait Ring<C: ?Sized> {
    /// How much it takes now. Takes back what was sent, if that makes room.
    fn avail(&mut self, ctx: &mut C) -> Quota;
    /// Puts packets on the ring, first ones first, and tells the device once. Leaves in `batch` what did not fit; returns
    /// how many packets and bytes did, of a packet that was cut into segments each segment.
    fn xmit(&mut self, ctx: &mut C, batch: &mut Batch) -> (usize, u64);
    /// Cuts a packet into its segments; hands it back with the reason if it can't be.
    fn segment(&mut self, _ctx: &mut C, skb: Skb) -> Result<SkbList, (Skb, DropReason)> {
        Ok(SkbList::from(skb))
    }
    /// So many bytes that this stack made, and did not forward, are queued. Called when that has changed, before the owner
    /// lets go.
    fn local_backlog(&mut self, _bytes: u64) {}
    /// So many bytes that this stack made were taken from what others had handed over.
    fn taken(&mut self, _bytes: u64) {}
    /// The queue is to be run again as `next_run` says, which is not `Idle`. Called before the owner lets go, so that there
    /// is no moment at which packets are queued, no thread owns the queue, and no run is scheduled.
    fn reschedule(&mut self, _next_run: NextRun, _now: u64) {}
}

/// When a queue is to be run again for what is still queued, when a run has ended. Later runs may change it; acting on an
/// old one does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRun {
    /// Nothing: nothing is queued.
    Idle,
    /// The runtime must run the queue again soon: its share (64 packets, the kernel's `dev_tx_weight`, and as many as it took
    /// from others) was used up, or ownership is parked.
    Again,
    /// It must run the queue at this time, in ns.
    Watchdog(u64),
    /// The ring is full: it must run the queue when frames have come back.
    Stopped,
}

/// The owner's part of a TX queue.
pub(super) struct Root<R> {
    pub(super) qdisc: Option<Box<dyn Qdisc>>,
    /// Its counters, if packets may pass by it: what each batch asks for.
    pass: Option<Arc<QdiscStats>>,
    pub(super) ring: R,
    /// Bytes queued of packets that this stack made, about: what the discipline drops of its own
    /// accord is noticed when it is empty.
    local: u64,
    /// What the ring was last told of that.
    told: u64,
    /// Taken out of the discipline, and not taken by the ring; counted as queued. Without a discipline: gathered
    /// to be sent at once.
    held: Batch,
}

impl<R> Root<R> {
    pub(super) fn new(qdisc: Option<Box<dyn Qdisc>>, ring: R) -> Self {
        let mut root = Root { qdisc, pass: None, ring, local: 0, told: 0, held: Batch::new() };
        root.changed();
        root
    }

    /// To be called when the discipline may be another, or another's parameters.
    pub(super) fn changed(&mut self) {
        self.pass = self.qdisc.as_ref().filter(|qdisc| qdisc.can_bypass()).map(|qdisc| qdisc.stats().clone());
    }

    /// Queues a packet, or, without a discipline, sends it with others.
    #[inline]
    pub(super) fn enqueue<C: ?Sized>(
        &mut self,
        ctx: &mut C,
        skb: Skb,
        now: u64,
        to_free: &mut ToFree,
    ) -> Verdict
    where
        R: Ring<C>,
    {
        if let Some(qdisc) = &mut self.qdisc {
            if is_aggregate(&skb) && pkt_len(&skb) > qdisc.max_len() {
                return self.enqueue_cut(ctx, skb, now, to_free);
            }
            return enqueue(&mut **qdisc, &mut self.local, skb, now, to_free);
        }
        if self.held.room() == 0 {
            self.flush(ctx, to_free);
        }
        push(&mut self.held, skb);
        Verdict::Success
    }

    /// Queues the packets of `batch`, or, without a discipline, sends them. The worst that became of them.
    #[inline]
    pub(super) fn enqueue_batch<C: ?Sized>(
        &mut self,
        ctx: &mut C,
        now: u64,
        batch: &mut Batch,
        to_free: &mut ToFree,
    ) -> Verdict
    where
        R: Ring<C>,
    {
        let Some(qdisc) = &mut self.qdisc else {
            // What was taken before goes first.
            self.flush(ctx, to_free);
            return self.direct(ctx, batch, to_free);
        };
        if gso::any(batch) && qdisc.max_len() < usize::MAX {
            let skbs = batch.drain();
            return skbs.fold(Verdict::Success, |worst, skb| worst.max(self.enqueue(ctx, skb, now, to_free)));
        }
        let local = &mut self.local;
        batch
            .drain()
            .fold(Verdict::Success, |worst, skb| worst.max(enqueue(&mut **qdisc, local, skb, now, to_free)))
    }

    /// Queues the segments of a packet that is too long for the discipline (the kernel's
    /// `tbf_segment`).
    #[cold]
    fn enqueue_cut<C: ?Sized>(&mut self, ctx: &mut C, skb: Skb, now: u64, to_free: &mut ToFree) -> Verdict
    where
        R: Ring<C>,
    {
        let Some(qdisc) = &mut self.qdisc else { return Verdict::Success };
        match self.ring.segment(ctx, skb) {
            Ok(mut segments) => {
                let mut worst = Verdict::Success;
                while let Some(skb) = segments.pop_front() {
                    worst = worst.max(enqueue(&mut **qdisc, &mut self.local, skb, now, to_free));
                }
                worst
            }
            Err((skb, reason)) => {
                qdisc.stats().dropped(reason);
                to_free.push(skb, reason);
                Verdict::Drop
            }
        }
    }

    /// Passes the packets of `batch` by the discipline if that is allowed, leaves it empty then, and says what has to happen
    /// next. The caller knows that nothing older is pending.
    ///
    /// The kernel lets a packet pass if it is alone and nothing is queued, and such a packet may be a GSO one. A batch is
    /// one sender's packets in a row, and passes as one: it may exceed the quota's bytes as the last packet may.
    /// More than one sender's never pass.
    #[inline]
    pub(super) fn bypass<C: ?Sized>(&mut self, ctx: &mut C, batch: &mut Batch) -> Option<NextRun>
    where
        R: Ring<C>,
    {
        let stats = self.pass.as_ref().filter(|stats| stats.qlen() == 0)?;
        let quota = self.ring.avail(ctx);
        let n = batch.len();
        if n > quota.packets || quota.bytes < 0 {
            return None;
        }
        let (packets, bytes) = self.ring.xmit(ctx, batch);
        stats.sent(packets, bytes);
        if batch.is_empty() {
            return Some(NextRun::Idle);
        }
        batch.as_slice().iter().for_each(|skb| stats.sent(skb.segments(), pkt_len(skb) as u64));
        requeue(batch, stats);
        self.local += all_local_bytes(batch);
        self.held.append(batch);
        Some(NextRun::Stopped)
    }

    /// Sends a batch without a discipline. What the ring does not take is dropped.
    pub(super) fn direct<C: ?Sized>(
        &mut self,
        ctx: &mut C,
        batch: &mut Batch,
        to_free: &mut ToFree,
    ) -> Verdict
    where
        R: Ring<C>,
    {
        // For what it takes back.
        self.ring.avail(ctx);
        self.ring.xmit(ctx, batch);
        if batch.is_empty() {
            return Verdict::Success;
        }
        to_free.push_batch(batch, DropReason::FullRing);
        Verdict::Drop
    }

    fn flush<C: ?Sized>(&mut self, ctx: &mut C, to_free: &mut ToFree)
    where
        R: Ring<C>,
    {
        if !self.held.is_empty() {
            let mut batch = std::mem::take(&mut self.held);
            self.direct(ctx, &mut batch, to_free);
        }
    }

    /// Sends what may leave at `now`, as far as `budget` goes, which it lowers.
    pub(super) fn run<C: ?Sized>(
        &mut self,
        ctx: &mut C,
        now: u64,
        budget: &mut usize,
        to_free: &mut ToFree,
    ) -> NextRun
    where
        R: Ring<C>,
    {
        let Some(qdisc) = &mut self.qdisc else {
            self.flush(ctx, to_free);
            return NextRun::Idle;
        };
        loop {
            if *budget == 0 {
                return if qdisc.is_empty() { NextRun::Idle } else { NextRun::Again };
            }
            let mut quota = self.ring.avail(ctx);
            if !quota.is_open() {
                return if qdisc.is_empty() { NextRun::Idle } else { NextRun::Stopped };
            }
            if self.held.is_empty() {
                quota.packets = quota.packets.min(*budget);
                qdisc.dequeue(now, &mut quota, &mut self.held, to_free);
                if self.held.is_empty() {
                    return match qdisc.next_event(now) {
                        _ if qdisc.is_empty() => NextRun::Idle,
                        Some(at) => NextRun::Watchdog(at),
                        None => NextRun::Again,
                    };
                }
            } else {
                offer_again(&self.held, &**qdisc);
            }
            let offered = self.held.len();
            // A queue of forwarded packets alone does not pay for it.
            let local = if self.local > 0 { all_local_bytes(&self.held) } else { 0 };
            self.ring.xmit(ctx, &mut self.held);
            if local > 0 {
                self.local = self.local.saturating_sub(local - all_local_bytes(&self.held).min(local));
            }
            *budget = budget.saturating_sub(offered - self.held.len());
            if !self.held.is_empty() {
                requeue(&self.held, qdisc.stats());
                return NextRun::Stopped;
            }
            if qdisc.is_empty() {
                return NextRun::Idle;
            }
        }
    }

    /// Tells the ring how much of what is queued this stack made, if it does not know. Called before the owner lets go.
    #[inline(always)]
    pub(super) fn tell_backlog<C: ?Sized>(&mut self)
    where
        R: Ring<C>,
    {
        if self.local > 0 && self.qdisc.as_ref().is_none_or(|qdisc| qdisc.is_empty()) {
            self.local = 0;
        }
        if self.local != self.told {
            self.told = self.local;
            self.ring.local_backlog(self.local);
        }
    }

    /// Drops everything queued, for `reason`.
    pub(super) fn reset(&mut self, reason: DropReason, to_free: &mut ToFree) {
        if let Some(qdisc) = &mut self.qdisc {
            for skb in self.held.drain() {
                qdisc.stats().unqueued(pkt_len(&skb));
                qdisc.stats().dropped(reason);
                to_free.push(skb, reason);
            }
            qdisc.reset(reason, to_free);
        } else {
            // Gathered, and not sent any more.
            to_free.push_batch(&mut self.held, reason);
        }
    }
}

/// Queues a packet, and counts it if this stack made it.
#[inline]
fn enqueue(qdisc: &mut dyn Qdisc, local: &mut u64, skb: Skb, now: u64, to_free: &mut ToFree) -> Verdict {
    let bytes = own_len(&skb);
    let verdict = qdisc.enqueue(skb, now, to_free);
    if bytes > 0 && verdict != Verdict::Drop && qdisc.holds_back() {
        *local += bytes;
    }
    verdict
}

/// Bytes of a packet that this stack made; of another 0.
#[inline]
pub(super) fn own_len(skb: &Skb) -> u64 {
    if skb.head().flags & Flags::ORIGINATED == 0 { 0 } else { pkt_len(skb) as u64 }
}

/// The same of several. Those of a batch are nearly always all made here, or all forwarded: what begins and ends
/// with forwarded ones is not looked at.
#[inline]
pub(crate) fn local_bytes(batch: &Batch) -> u64 {
    match batch.as_slice() {
        [first, .., last] if own_len(first) + own_len(last) > 0 => all_local_bytes(batch),
        [one] => own_len(one),
        _ => 0,
    }
}

/// The same of several, of any senders.
fn all_local_bytes(batch: &Batch) -> u64 {
    batch.as_slice().iter().map(own_len).sum()
}

/// `held` was queued once more, and is offered to the ring again.
#[cold]
fn offer_again(held: &Batch, qdisc: &dyn Qdisc) {
    held.as_slice().iter().for_each(|skb| qdisc.stats().unqueued(pkt_len(skb)));
}

/// The ring did not take `held`.
#[cold]
fn requeue(held: &Batch, stats: &QdiscStats) {
    held.as_slice().iter().for_each(|skb| stats.requeued(pkt_len(skb)));
}
