//! `pfifo` and `bfifo`: first in, first out, at most so many packets or bytes (`net/sched/sch_fifo.c`).

use std::sync::Arc;

use super::{DevParams, Qdisc, QdiscStats, Quota, Spec, SpecError, ToFree, Verdict};
use crate::gso::pkt_len;
use crate::skb::{Batch, DropReason, Skb, SkbList};

/// What a [`Fifo`] holds at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Packets(u32),
    Bytes(u32),
}

/// A `pfifo` or `bfifo`.
pub struct Fifo {
    list: SkbList,
    limit: Limit,
    /// The longest frame that the device takes.
    frame: u32,
    stats: Arc<QdiscStats>,
}

impl Fifo {
    /// A `pfifo` that holds up to `limit` packets, before `dev`.
    pub fn packets(limit: u32, dev: &DevParams) -> Self {
        Self::new(Limit::Packets(limit), dev)
    }

    /// A `bfifo` that holds up to `limit` bytes, before `dev`.
    pub fn bytes(limit: u32, dev: &DevParams) -> Self {
        Self::new(Limit::Bytes(limit), dev)
    }

    fn new(limit: Limit, dev: &DevParams) -> Self {
        Fifo { list: SkbList::new(), limit, frame: dev.frame(), stats: Arc::default() }
    }

    fn has_room(&self, len: usize) -> bool {
        match self.limit {
            Limit::Packets(limit) => self.stats.qlen() < limit as usize,
            Limit::Bytes(limit) => self.stats.backlog() + len as u64 <= u64::from(limit),
        }
    }
}

/// Appends `skb` to `list` if it has room, and counts either outcome.
#[inline]
pub(super) fn append(
    list: &mut SkbList,
    room: bool,
    skb: Skb,
    stats: &QdiscStats,
    to_free: &mut ToFree,
) -> Verdict {
    let len = pkt_len(&skb);
    let refused = if room { list.push_back(skb).err() } else { Some(skb) };
    let Some(skb) = refused else {
        stats.queued(len);
        return Verdict::Success;
    };
    // With room left it is of another region than those queued, and can't be linked to them.
    let reason = if room { DropReason::QdiscDrop } else { DropReason::QdiscOverlimit };
    stats.dropped(reason);
    to_free.push(skb, reason);
    Verdict::Drop
}

/// Moves packets from `list` to `out`, as long as there are any and `quota` and the batch have room.
#[inline]
pub(super) fn take(list: &mut SkbList, quota: &mut Quota, out: &mut Batch, stats: &QdiscStats) {
    while quota.is_open()
        && out.room() > 0
        && let Some(skb) = list.pop_front()
    {
        let len = pkt_len(&skb);
        quota.take(len);
        stats.unqueued(len);
        stats.sent(skb.segments(), len as u64);
        push(out, skb);
    }
}

/// Appends to a batch that has room.
#[inline(always)]
pub(super) fn push(out: &mut Batch, skb: Skb) {
    if let Err(skb) = out.push(skb) {
        // Not reached: the caller looked. Dropping it makes a mistake there show as a leak.
        drop(skb);
    }
}

/// Empties `list`, for `reason`.
pub(super) fn purge(list: &mut SkbList, reason: DropReason, stats: &QdiscStats, to_free: &mut ToFree) {
    while let Some(skb) = list.pop_front() {
        stats.unqueued(pkt_len(&skb));
        stats.dropped(reason);
        to_free.push(skb, reason);
    }
}

impl Qdisc for Fifo {
    fn enqueue(&mut self, skb: Skb, _now: u64, to_free: &mut ToFree) -> Verdict {
        let room = self.has_room(pkt_len(&skb));
        append(&mut self.list, room, skb, &self.stats, to_free)
    }

    fn dequeue(&mut self, _now: u64, quota: &mut Quota, out: &mut Batch, _to_free: &mut ToFree) {
        take(&mut self.list, quota, out, &self.stats);
    }

    fn next_event(&self, _now: u64) -> Option<u64> {
        None
    }

    fn can_bypass(&self) -> bool {
        // What it could not hold must not pass either.
        match self.limit {
            Limit::Packets(limit) => limit > 0,
            Limit::Bytes(limit) => limit >= self.frame,
        }
    }

    fn reset(&mut self, reason: DropReason, to_free: &mut ToFree) {
        purge(&mut self.list, reason, &self.stats, to_free);
    }

    fn change(&mut self, spec: &Spec, dev: &DevParams) -> Result<(), SpecError> {
        self.limit = match (self.limit, spec) {
            (Limit::Packets(_), Spec::Pfifo { limit }) => Limit::Packets(limit.unwrap_or(dev.pfifo_limit())),
            (Limit::Bytes(_), Spec::Bfifo { limit }) => Limit::Bytes(limit.unwrap_or(dev.bfifo_limit())),
            (Limit::Packets(_), _) => return Err(SpecError::OtherKind { is: "pfifo", asked: spec.kind() }),
            (Limit::Bytes(_), _) => return Err(SpecError::OtherKind { is: "bfifo", asked: spec.kind() }),
        };
        Ok(())
    }

    fn stats(&self) -> &Arc<QdiscStats> {
        &self.stats
    }
}
