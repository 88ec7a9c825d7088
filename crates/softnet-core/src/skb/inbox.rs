//! A list of packets with many senders and one receiver that comes and goes: where packets wait for a socket.
//!
//! Any thread may push, a run of packets in one compare-exchange; it is told whether nothing else was pending. The
//! owner of the [`SkbReceiver`] takes all that is pending at once. While there is none, the inbox is closed and refuses
//! packets; it may be opened again for another receiver. It is [`Handover`] with a permanent owner, made safe for
//! skbs, which travel in [bundles](super::bundle). It has no bound of its own: the pushing thread counts.
//!
//! Invariant: a packet is with its sender, on the list, or with the receiver, and only that one touches its head; what
//! is pushed to an open inbox reaches its receiver, and nothing is on the list of a closed one.

use std::ops::Deref;

use super::batch::Batch;
use super::bundle::{self, Followers};
use super::handle::Skb;
use super::handover::HeadLinks;
use super::list::SkbList;
use super::region::Region;
use crate::sync::{Handover, Owner, model_failed};

/// Where packets of many senders wait for one receiver, while there is one.
pub struct SkbInbox {
    handover: Handover,
    region: u32,
}

/// Why packets were not taken; the sender still has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl SkbInbox {
    /// A closed one, for packets of `region`.
    pub fn new(region: &Region) -> Self {
        SkbInbox { handover: Handover::new(), region: region.id() }
    }

    /// Whether anything is pending: one load. `false` of a closed one.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.handover.has_pending()
    }

    /// Hands the packets of `batch`, which is not empty, over to the receiver, and leaves it empty. Returns whether nothing else was
    /// pending: then it is for the caller to tell the receiver.
    #[inline]
    pub fn push(&self, batch: &mut Batch) -> Result<bool, Closed> {
        let skbs = batch.as_mut_slice();
        if skbs.iter().any(|skb| skb.region() != self.region) {
            return Err(Closed);
        }
        let links = HeadLinks::of(self.region);
        let Some((first, last)) = bundle::tie(&links, skbs) else { return Ok(false) };
        match self.handover.push_chain(&links, first, last, skbs.len() as u32) {
            Ok(was_empty) => {
                // The packets are the receiver's from now on; only the handles are left to be forgotten.
                batch.drain().for_each(|skb| _ = skb.into_raw());
                Ok(was_empty)
            }
            Err(_) => {
                bundle::untie(&links, skbs);
                Err(Closed)
            }
        }
    }
}

/// The receiver of the inbox that `H` leads to. Dropping it drops what is pending, which is noticed as a leak:
/// it should be [closed](Self::close).
pub struct SkbReceiver<H: Deref<Target = SkbInbox>> {
    owner: Owner<Word<H>>,
    /// Of the last lead that was taken.
    followers: Followers,
    region: u32,
    closed: bool,
}

/// What the receiver owns its word by. Private: pushing bare indices would break the module's invariant.
struct Word<H>(H);

impl<H: Deref<Target = SkbInbox>> Deref for Word<H> {
    type Target = Handover;

    #[inline(always)]
    fn deref(&self) -> &Handover {
        &self.0.handover
    }
}

impl<H: Deref<Target = SkbInbox>> SkbReceiver<H> {
    /// Opens an inbox; `None` if it has a receiver already.
    pub fn open(inbox: H) -> Option<Self> {
        let region = inbox.region;
        let owner = Handover::claim(Word(inbox)).ok()?;
        Some(SkbReceiver { owner, followers: Followers::NONE, region, closed: false })
    }

    /// Whether anything is pending: one load.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.has_rest() || self.owner.has_pending()
    }

    /// Whether it is amid what it took off the inbox before.
    #[inline(always)]
    pub fn has_rest(&self) -> bool {
        !self.followers.is_empty() || self.owner.upcoming().is_some()
    }

    /// The next packet. When none is left of what was taken off the inbox, all that is pending is taken.
    #[inline]
    pub fn next_skb(&mut self) -> Option<Skb> {
        // SAFETY: the index is of an skb of this region that `push` gave up, and each bundle yields it once.
        let skb = |index| unsafe { Skb::from_raw(self.region, index) };
        if let Some(index) = self.followers.next() {
            return Some(skb(index));
        }
        let mut lead = skb(self.owner.drain(&HeadLinks::of(self.region)).next()?);
        if lead.head().followers > 0 {
            self.followers = Followers::of(&mut lead);
        }
        if let Some(next) = self.owner.upcoming() {
            bundle::expect(self.region, next);
        }
        Some(lead)
    }

    /// Takes what is pending, first to last, and appends it to `list`, whose packets are of the same region.
    #[inline]
    pub fn take(&mut self, list: &mut SkbList) {
        while let Some(skb) = self.next_skb() {
            if let Err(skb) = list.push_back(skb) {
                drop(skb);
            }
            if !self.has_rest() {
                return;
            }
        }
    }

    /// Closes the inbox, and appends what was pending to `list`.
    pub fn close(mut self, list: &mut SkbList) {
        self.leave(list);
    }

    fn leave(&mut self, list: &mut SkbList) {
        while !self.closed && !model_failed() {
            self.take(list);
            self.closed = self.owner.try_leave();
        }
    }
}

impl<H: Deref<Target = SkbInbox>> Drop for SkbReceiver<H> {
    fn drop(&mut self) {
        self.leave(&mut SkbList::new());
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SoftnetData;
    use crate::ip::testing::context;

    fn batch(ctx: &mut SoftnetData, tags: impl IntoIterator<Item = u32>) -> Batch {
        let mut batch = Batch::new();
        for tag in tags {
            let mut skb = ctx.alloc_skb().unwrap();
            skb.head_mut().hash = tag;
            batch.push(skb).unwrap();
        }
        batch
    }

    fn tags(ctx: &mut SoftnetData, mut list: SkbList) -> Vec<u32> {
        std::iter::from_fn(|| {
            let skb = list.pop_front()?;
            let tag = skb.head().hash;
            ctx.free_skb(skb);
            Some(tag)
        })
        .collect()
    }

    #[test]
    fn batches_of_every_size_arrive_in_order_however_they_are_taken() {
        let mut ctx = context();
        let inbox = Arc::new(SkbInbox::new(ctx.region()));
        for n in 1..=64 {
            // Refused first: that leaves no trace.
            let mut second = batch(&mut ctx, 1000..1000 + n);
            assert_eq!(inbox.push(&mut second), Err(Closed));
            assert!(second.as_slice().iter().all(|skb| skb.head().followers == 0));
            let mut receiver = SkbReceiver::open(inbox.clone()).unwrap();
            assert_eq!(inbox.push(&mut batch(&mut ctx, 0..n)), Ok(true));
            assert_eq!(inbox.push(&mut second), Ok(false));
            let mut list = SkbList::new();
            for at in 0..n / 2 {
                let skb = receiver.next_skb().unwrap();
                assert_eq!((skb.head().hash, skb.head().followers), (at, 0));
                ctx.free_skb(skb);
                assert!(receiver.has_rest());
            }
            assert_eq!(inbox.push(&mut batch(&mut ctx, 2000..2000 + n)), Ok(n >= 2), "the rest was detached");
            if n % 2 == 0 {
                receiver.take(&mut list);
            }
            receiver.close(&mut list);
            let all = (n / 2..n).chain(1000..1000 + n).chain(2000..2000 + n);
            assert_eq!(tags(&mut ctx, list), all.collect::<Vec<_>>());
        }
    }

    #[test]
    fn runs_arrive_in_order_and_a_closed_inbox_refuses_them() {
        let mut ctx = context();
        let inbox = Arc::new(SkbInbox::new(ctx.region()));
        let mut refused = batch(&mut ctx, [9]);
        assert_eq!(inbox.push(&mut refused), Err(Closed));
        assert_eq!((refused.len(), inbox.has_pending()), (1, false), "still the sender's");
        for _ in 0..2 {
            let mut receiver = SkbReceiver::open(inbox.clone()).expect("no receiver");
            assert!(SkbReceiver::open(inbox.clone()).is_none());
            assert_eq!(inbox.push(&mut batch(&mut ctx, [1, 2, 3])), Ok(true));
            assert_eq!(inbox.push(&mut batch(&mut ctx, [4])), Ok(false));
            let mut list = SkbList::new();
            receiver.take(&mut list);
            assert!(!receiver.has_pending());
            assert_eq!(inbox.push(&mut batch(&mut ctx, [5])), Ok(true), "all was taken");
            receiver.close(&mut list);
            assert_eq!(tags(&mut ctx, list), [1, 2, 3, 4, 5]);
            assert_eq!(inbox.push(&mut refused), Err(Closed));
        }
        let mut receiver = SkbReceiver::open(inbox.clone()).unwrap();
        assert_eq!(inbox.push(&mut refused), Ok(true), "what was refused may be sent again");
        let mut list = SkbList::new();
        receiver.take(&mut list);
        assert_eq!(tags(&mut ctx, list), [9]);
    }
}
