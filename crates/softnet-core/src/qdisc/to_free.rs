//! Packets that were dropped while a TX queue was owned, to be freed after it was let go: freeing touches caches and
//! may touch pools, and no thread should wait for that.

use crate::SoftnetData;
use crate::skb::{Batch, DropReason, Skb, SkbList};

/// Dropped packets, each with its reason. Must be [freed](Self::free).
#[derive(Default)]
#[must_use = "packets on it are leaked unless they are freed"]
pub struct ToFree {
    list: SkbList,
    /// Those of other regions than `list`'s, one list for each. Empty but in a stack with several regions.
    foreign: Vec<SkbList>,
}

impl ToFree {
    /// Nothing to free yet.
    pub const fn new() -> Self {
        ToFree { list: SkbList::new(), foreign: Vec::new() }
    }

    /// Whether there is nothing to free.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.foreign.is_empty()
    }

    /// How many packets there are to free.
    pub fn len(&self) -> usize {
        self.list.len() + self.foreign.iter().map(SkbList::len).sum::<usize>()
    }

    /// Takes `skb`, dropped for `reason`.
    pub fn push(&mut self, mut skb: Skb, reason: DropReason) {
        // A dropped packet's control block is not used any more.
        skb.head_mut().cb[0] = reason as u64;
        let mut lists = std::iter::once(&mut self.list).chain(&mut self.foreign);
        let refused = lists.try_fold(skb, |skb, list| match list.push_back(skb) {
            Ok(()) => Err(()),
            Err(skb) => Ok(skb),
        });
        if let Ok(skb) = refused {
            let mut list = SkbList::new();
            // An empty list takes any region's.
            if let Err(skb) = list.push_back(skb) {
                drop(skb);
            }
            self.foreign.push(list);
        }
    }

    /// Takes all of `batch`, dropped for `reason`.
    pub fn push_batch(&mut self, batch: &mut Batch, reason: DropReason) {
        batch.drain().for_each(|skb| self.push(skb, reason));
    }

    /// Takes one out, with its reason.
    pub fn pop(&mut self) -> Option<(Skb, DropReason)> {
        let skb = self.list.pop_front().or_else(|| self.foreign.iter_mut().find_map(SkbList::pop_front))?;
        let reason = DropReason::ALL.get(skb.head().cb[0] as usize).copied();
        Some((skb, reason.unwrap_or(DropReason::QdiscDrop)))
    }

    /// Frees all of them, and counts them against `dev`, the device that was to send them.
    pub fn free(&mut self, ctx: &mut SoftnetData, dev: u16) {
        self.free_telling(ctx, dev, |_, _| ());
    }

    /// The same, after `tell` has seen each.
    pub fn free_telling(&mut self, ctx: &mut SoftnetData, dev: u16, tell: impl Fn(&Skb, DropReason)) {
        let (mut batch, mut last) = (Batch::new(), DropReason::QdiscDrop);
        while let Some((skb, reason)) = self.pop() {
            tell(&skb, reason);
            if batch.room() == 0 || reason != last {
                ctx.free_batch_at(&mut batch, dev, last);
                last = reason;
            }
            if let Err(skb) = batch.push(skb) {
                ctx.free_at(skb, dev, reason);
            }
        }
        ctx.free_batch_at(&mut batch, dev, last);
        self.foreign.clear();
    }
}
