//! A backlog: packets that any thread hands to the thread that polls a NAPI instance, whole lists
//! at a time (the kernel's `input_pkt_queue`, and the alien queue that was proposed before it).
//!
//! Each worker has one for what is steered to it, and each instance one for what is redirected to
//! it. Any thread [pushes](Backlog::push); the owner of the instance has the [`BacklogQueue`].
//! Whether there is room is for the pushing thread to ask first, so that a list gets in whole or
//! not at all: as many lists as threads push at a time may get in beyond the limit.
//!
//! Two counters tell how far it has come. The tail counts packets before they are on the list; the
//! head counts those that the owner has done with, freed ones too. So a thread that reads the tail
//! after it pushed reads no less than what is in front of its packets and they themselves; once the
//! head has come to that, all of them were processed. That is what lets a flow go elsewhere without
//! overtaking itself.
//!
//! Frames are counted beside packets, since one packet may have many: they say what a backlog takes
//! of packet memory.
//!
//! Invariant: a packet that was pushed is taken by the owner, in the order of the pushes, and the
//! head never is beyond a packet that the owner has not done with.

use std::ops::Deref;
use std::sync::Arc;
// Of frames: a figure that orders nothing, which models need not look at.
use std::sync::atomic::{
    AtomicU64 as Figure,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::skb::{BATCH, Batch, Region, Skb, SkbInbox, SkbList, SkbReceiver};
use crate::sync::{AtomicBool, AtomicU64, Mutant, Ordering, OwnLine, fence, mutated, weakened};

/// What any thread sees of a backlog.
pub struct Backlog {
    inbox: OwnLine<SkbInbox>,
    /// The most packets that may wait: one more list gets in as long as there are no more than so
    /// many.
    max: usize,
    tail: AtomicU64,
    /// Frames of all packets that were pushed.
    frames_in: Figure,
    head: Head,
}

/// The owner's line: not written by threads that push.
#[repr(align(64))]
struct Head {
    done: AtomicU64,
    /// Frames of all packets that the owner has done with.
    frames_out: Figure,
    closed: AtomicBool,
}

/// What a push came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Nothing else was pending: it is for the caller to have the owner's instance scheduled.
    pub was_empty: bool,
    /// The list has been processed when the head has come to this.
    pub tail: u64,
}

/// Why a list was not taken: its owner is gone. The caller still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl Backlog {
    /// An empty one for packets of `region`, of which `max` may wait, and its owner's side.
    pub fn new(region: &Region, max: usize) -> (Arc<Self>, BacklogQueue) {
        let backlog = Arc::new(Backlog {
            inbox: OwnLine(SkbInbox::new(region)),
            max,
            tail: AtomicU64::new(0),
            frames_in: Figure::new(0),
            head: Head {
                done: AtomicU64::new(0),
                frames_out: Figure::new(0),
                closed: AtomicBool::new(false),
            },
        });
        let lists = SkbReceiver::open(InboxOf(backlog.clone()));
        let lists = lists.unwrap_or_else(|| unreachable!("a new inbox has no receiver"));
        let queue = BacklogQueue { backlog: backlog.clone(), lists, taken: 0, done: 0, frames: 0 };
        (backlog, queue)
    }

    /// Packets in it, those included that its owner is processing.
    #[inline]
    pub fn len(&self) -> usize {
        // In this order, so that it does not come out as less than nothing.
        let done = self.head.done.load(Ordering::Acquire);
        self.tail.load(Ordering::Relaxed).saturating_sub(done) as usize
    }

    /// Whether a list of any length gets in and leaves it within its limit. A queue that hands all it
    /// brings to the owner collects nothing otherwise.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.len() <= self.max.saturating_sub(BATCH)
    }

    /// Frames of the packets in it: what it takes of packet memory.
    #[inline]
    pub fn frames(&self) -> usize {
        // As above.
        let out = self.head.frames_out.load(Acquire);
        self.frames_in.load(Relaxed).saturating_sub(out) as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The limit.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Packets that the owner has done with.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head.done.load(Ordering::Acquire)
    }

    /// Packets that were pushed, or are just being pushed.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Whether all that was in front of `tail` has been processed, or the owner is gone and nothing
    /// will be. What the owner did with it then comes before what the caller does next.
    #[inline]
    pub fn is_done(&self, tail: u64) -> bool {
        let order = weakened(Mutant::HeadRelaxed, Ordering::Acquire);
        // Signed: a tail may be far behind.
        self.head.done.load(order).wrapping_sub(tail) as i64 >= 0 || self.head.closed.load(Ordering::Acquire)
    }

    /// Hands the packets of `batch`, which is not empty, over to the owner, whatever the limit, and
    /// leaves it empty.
    #[inline]
    pub fn push(&self, batch: &mut Batch) -> Result<Pushed, Gone> {
        let (n, frames) = (batch.len() as u64, batch.frames() as u64);
        // Before they are on the list, as the tail: the owner counts none out that was not counted in.
        self.frames_in.fetch_add(frames, Relaxed);
        let early = self.tail.load(Ordering::Relaxed);
        if !mutated(Mutant::TailCountedLate) {
            // Before they are on the list: a push behind them then counts them too.
            self.tail.fetch_add(n, Ordering::Relaxed);
        }
        let Ok(was_empty) = self.inbox.push(batch) else {
            self.tail.fetch_sub(n, Ordering::Relaxed);
            self.frames_in.fetch_sub(frames, Relaxed);
            return Err(Gone);
        };
        if mutated(Mutant::TailCountedLate) {
            self.tail.fetch_add(n, Ordering::Relaxed);
        }
        if !mutated(Mutant::TailNoFence) {
            // With the push before this one, which it read: what that counted is seen.
            fence(Ordering::Acquire);
        }
        let tail = match mutated(Mutant::TailReadEarly) {
            true => early + n,
            false => self.tail.load(Ordering::Relaxed),
        };
        Ok(Pushed { was_empty, tail })
    }
}

/// What the receiver of the inbox holds it by.
struct InboxOf(Arc<Backlog>);

impl Deref for InboxOf {
    type Target = SkbInbox;

    #[inline(always)]
    fn deref(&self) -> &SkbInbox {
        &self.0.inbox
    }
}

/// The owner's side of a backlog.
pub struct BacklogQueue {
    backlog: Arc<Backlog>,
    /// What is pending, and of what was, what did not fit a batch (the kernel's `process_queue`).
    lists: SkbReceiver<InboxOf>,
    /// Packets that were taken, and of these those that the head counts. (Which is this thread's to
    /// write, so that it need not be read.)
    taken: u64,
    done: u64,
    /// Frames of those that were taken.
    frames: u64,
}

impl BacklogQueue {
    /// The side that others see.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Whether packets wait that were not taken yet.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.lists.has_pending()
    }

    /// Whether it has packets of lists that it took before.
    #[cfg(all(test, feature = "loom"))]
    pub(super) fn has_rest(&self) -> bool {
        self.lists.has_rest()
    }

    /// Appends up to `budget` packets to `batch`, and no more than fit. Returns how many.
    #[inline]
    pub fn take(&mut self, batch: &mut Batch, budget: usize) -> usize {
        let budget = budget.min(batch.room());
        let mut n = 0;
        while n < budget {
            let Some(skb) = self.lists.next_skb() else { break };
            self.frames += skb.frame_count() as u64;
            // There is room.
            let _ = batch.push(skb);
            n += 1;
        }
        self.taken += n as u64;
        if mutated(Mutant::HeadBeforeWork) {
            self.done();
        }
        n
    }

    /// What was taken so far has been processed.
    #[inline]
    pub fn done(&mut self) {
        if self.done != self.taken && !mutated(Mutant::HeadNotMoved) {
            self.done = self.taken;
            // Release: what became of the packets comes before whatever follows from their being
            // done.
            let order = weakened(Mutant::HeadNotReleased, Ordering::Release);
            self.backlog.head.done.store(self.done, order);
            self.backlog.head.frames_out.store(self.frames, Release);
        }
    }

    /// Closes the backlog: it takes no more, and `each` gets what was in it, which is then done.
    pub fn close(mut self, mut each: impl FnMut(Skb)) {
        self.done();
        let BacklogQueue { backlog, lists, mut done, mut frames, .. } = self;
        let mut rest = SkbList::new();
        lists.close(&mut rest);
        while let Some(skb) = rest.pop_front() {
            frames += skb.frame_count() as u64;
            each(skb);
            done += 1;
        }
        backlog.head.done.store(done, Ordering::Release);
        backlog.head.frames_out.store(frames, Release);
        backlog.head.closed.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
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

    fn take(ctx: &mut SoftnetData, queue: &mut BacklogQueue, budget: usize) -> Vec<u32> {
        let mut batch = Batch::new();
        queue.take(&mut batch, budget);
        let tags = batch.as_slice().iter().map(|skb| skb.head().hash).collect();
        batch.drain().for_each(|skb| ctx.free_skb(skb));
        tags
    }

    #[test]
    fn lists_arrive_in_order_and_are_counted_until_they_are_done() {
        let mut ctx = context();
        let (backlog, mut queue) = Backlog::new(ctx.region(), 10);
        let first = backlog.push(&mut batch(&mut ctx, 0..3)).unwrap();
        assert_eq!(first, Pushed { was_empty: true, tail: 3 });
        let second = backlog.push(&mut batch(&mut ctx, 3..5)).unwrap();
        assert_eq!(second, Pushed { was_empty: false, tail: 5 });
        assert_eq!(take(&mut ctx, &mut queue, 2), [0, 1]);
        assert!(queue.has_pending());
        let third = backlog.push(&mut batch(&mut ctx, 5..6)).unwrap();
        assert_eq!(third, Pushed { was_empty: true, tail: 6 }, "the list itself was empty");
        assert_eq!((backlog.len(), backlog.head()), (6, 0), "being processed");
        queue.done();
        assert_eq!((backlog.len(), backlog.head(), backlog.tail()), (4, 2, 6));
        assert_eq!(take(&mut ctx, &mut queue, 64), [2, 3, 4, 5]);
        assert!(!queue.has_pending() && !backlog.is_done(3));
        queue.done();
        assert!(backlog.is_done(first.tail) && backlog.is_done(6) && !backlog.is_done(7));
        queue.close(|_| panic!("nothing is left"));
    }

    #[test]
    fn a_closed_one_frees_what_it_held_and_gives_the_rest_back() {
        let mut ctx = context();
        let (backlog, mut queue) = Backlog::new(ctx.region(), 10);
        let pushed = backlog.push(&mut batch(&mut ctx, 0..3)).unwrap();
        assert_eq!(take(&mut ctx, &mut queue, 1), [0]);
        let mut flushed = Vec::new();
        queue.close(|skb| {
            flushed.push(skb.head().hash);
            ctx.free_skb(skb);
        });
        assert_eq!((flushed, backlog.head(), backlog.len()), (vec![1, 2], 3, 0));
        assert!(backlog.is_done(pushed.tail) && backlog.is_done(pushed.tail + 1), "nothing will be");
        let mut refused = batch(&mut ctx, [7]);
        assert_eq!(backlog.push(&mut refused), Err(Gone));
        assert_eq!((refused.len(), backlog.len()), (1, 0));
        refused.drain().for_each(|skb| ctx.free_skb(skb));
    }

    #[test]
    fn frames_are_counted_until_they_are_done() {
        let mut ctx = context();
        let (backlog, mut queue) = Backlog::new(ctx.region(), 10);
        let push = |ctx: &mut SoftnetData, more: usize| {
            let mut list = batch(ctx, 0..2);
            let parts: Vec<_> = (0..more).map(|_| ctx.alloc_skb().unwrap()).collect();
            parts.into_iter().for_each(|part| list.as_mut_slice()[0].append(part).unwrap());
            let refused = backlog.push(&mut list).is_err();
            list.drain().for_each(|skb| ctx.free_skb(skb));
            refused
        };
        assert!(!push(&mut ctx, 3) && !push(&mut ctx, 0));
        assert_eq!((backlog.len(), backlog.frames()), (4, 7));
        assert_eq!(take(&mut ctx, &mut queue, 1).len(), 1);
        assert_eq!((backlog.len(), backlog.frames()), (4, 7), "being processed");
        queue.done();
        assert_eq!((backlog.len(), backlog.frames()), (3, 3));
        assert!(!push(&mut ctx, 2));
        queue.close(|skb| ctx.free_skb(skb));
        assert_eq!((backlog.len(), backlog.frames()), (0, 0));
        assert!(push(&mut ctx, 1));
        assert_eq!(backlog.frames(), 0, "refused");
    }

    /// E9 of the RFS rule: the head is behind the tail that was noted, however large the numbers.
    #[test]
    fn a_tail_is_done_by_signed_comparison() {
        let ctx = context();
        let (backlog, queue) = Backlog::new(ctx.region(), 10);
        backlog.head.done.store(100, Ordering::Relaxed);
        for (tail, done) in [(107, false), (101, false), (100, true), (99, true), (u64::MAX - 5, true)] {
            assert_eq!(backlog.is_done(tail), done, "{tail}");
        }
        queue.close(|_| ());
    }
}
