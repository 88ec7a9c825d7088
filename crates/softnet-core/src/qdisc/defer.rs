//! The root of a TX queue, with deferred enqueue: contending senders leave their packets on a lock-free list, and one
//! of them queues and transmits for all.
//!
//! Any thread may send. It is the kernel's deferred enqueue (`__dev_xmit_skb` since 6.19) on the
//! hand-over primitive, with one difference: there is no lock to wait for. The kernel's leader is the sender that
//! found the list empty, and it waits for the root lock, which the thread that dequeues may hold. Here the word that
//! says "owned" *is* the lock: a sender that finds it free owns the queue; every other one, while the owner enqueues,
//! dequeues or transmits, pushes and returns; the owner takes the list until it finds it empty.
//!
//! What the kernel's form guarantees, and why this one does:
//!
//! * *One leader for each generation of the list.* One owner at a time, by compare-exchange; only owners detach.
//! * *Its batch begins with its own packets, and is not empty.* An owner that found the word free has its own in hand,
//!   and the list was empty. One that takes over parked ownership takes the list first: it is older.
//! * *First in, first out, each sender's order kept.* A sender's packets are on the list, or it owns the queue and
//!   queues them after what it had pushed before; the list is detached whole and reversed.
//! * *The count is not reset in the instant of the detachment*, so that a few more than `qdisc_max_burst` may get in.
//! * *A leader learns what really became of its packets*; a sender whose packets were handed over is told that they
//!   were taken, whatever comes later.
//! * *Bypass* only if nothing is queued, and nothing older is pending.
//! * *Drops are freed after the queue was let go.* They come out in a [`ToFree`].
//! * *Deactivation drops each waiting packet once.* It is a flag that stops senders at the door, and then one more
//!   owner, which finds the flag and drops everything. The owner before it has ended by then.
//!
//! What differs in user space: an owner can be preempted at any point, and nothing leaves the queue until it runs
//! again. No thread spins meanwhile; senders return in constant time. The list is bounded: a *local* sender that finds
//! it full is told to hold back, with its packets, since it can wait; a forwarded packet can't, and is dropped and
//! counted. An owner sends what it took, so that what waits does so where this bound is, and not in the discipline, which
//! would drop packets whose senders were told that they were taken. And it must come to an end although others keep
//! pushing: when it has sent 64 packets more than it took, or taken 64, it *parks* ownership, and the runtime must run the queue
//! again, which goes on from there. Until then senders hand over as before: the one that came next would do others' work, in a
//! call of its own, and the run would find nothing to do. Only when the list is full, because the run is late, does the
//! next sender take ownership up.
//!
//! Invariant: a packet that was sent is queued, pending, on the ring, or in a caller's `ToFree`. Packets are pending
//! only while a thread owns the queue, or a run is scheduled.

use std::sync::Arc;

use super::root::{NextRun, Ring, Root, own_len};
use super::{Qdisc, ToFree, Verdict};
use crate::skb::{BATCH, Batch, DropReason, Ending, Region, SkbEntered, SkbHandover, SkbOwner};
use crate::softnet_data::Counter;
use crate::sync::{AtomicBool, Mutant, Ordering, mutated};

/// Where packets come from, which decides what happens when too many are pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From a sender in this process, which can wait.
    Local,
    /// From another device, or an answer to what came by one.
    Forwarded,
    /// From the neighbour table, whose limits bound them: what waited there, and what asks for a neighbour. They are taken even
    /// if too many are pending: the senders of the former were told that they were accepted, and the latter are what others
    /// wait for.
    Held,
}

/// What [`DeferList::send`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The caller owned the queue for a while.
    Owned {
        /// The worst that became of its own packets.
        verdict: Verdict,
        /// When the caller must have it run again.
        next_run: NextRun,
        /// It took what was pending, so that there is room for senders that were held back.
        drained: bool,
    },
    /// The packets were handed over to the owner.
    Deferred,
    /// Too many are pending. A local sender still has its packets: it waits, or tells the application to.
    /// Others were dropped.
    Full,
}

/// How often the word of a [`DeferList`] was owned, and why. Written by its owner, read by any thread.
#[derive(Default)]
pub struct DeferStats {
    /// Times a thread owned it.
    pub owned: Counter,
    /// Packets that others had handed over to the owner.
    pub handed_over: Counter,
    /// Times an owner parked it, since others pushed faster than it could go on.
    pub parked: Counter,
}

/// A TX queue: its discipline, its ring, and the list of what waits for the owner of both.
pub struct DeferList<R> {
    cell: SkbHandover<Root<R>>,
    stats: Arc<DeferStats>,
    /// Packets of others that an owner takes before it parks; fewer than a batch only if fewer may be pending.
    share: usize,
    deactivated: AtomicBool,
}

impl<R> DeferList<R> {
    /// A TX queue for packets of `region`. `qdisc_max_burst` packets may be pending beside the owner's own (the
    /// kernel's default is 1000); `None` for a discipline is `noqueue`.
    ///
    /// It must be deactivated, owned and finished once more, before it is dropped.
    pub fn new(region: &Region, qdisc: Option<Box<dyn Qdisc>>, ring: R, qdisc_max_burst: u32) -> Self {
        // The first to push is not counted.
        let limit = qdisc_max_burst.saturating_sub(1);
        DeferList {
            cell: SkbHandover::new(region, limit, Root::new(qdisc, ring)),
            stats: Arc::default(),
            share: (qdisc_max_burst as usize).clamp(1, BATCH),
            deactivated: AtomicBool::new(false),
        }
    }

    /// Its counters.
    pub fn stats(&self) -> &Arc<DeferStats> {
        &self.stats
    }

    /// Sends the packets of `batch` at `now`, in ns; afterwards it is empty unless a local sender is told to hold
    /// back. The caller frees what is in `to_free` then, and sees to [`NextRun`].
    #[inline]
    pub fn send<C: ?Sized>(
        &self,
        ctx: &mut C,
        now: u64,
        origin: Origin,
        batch: &mut Batch,
        to_free: &mut ToFree,
    ) -> Sent
    where
        R: Ring<C>,
    {
        if batch.is_empty() {
            return Sent::Owned { verdict: Verdict::Success, next_run: NextRun::Idle, drained: false };
        }
        if self.is_deactivated() {
            to_free.push_batch(batch, DropReason::DevReady);
            return Sent::Owned { verdict: Verdict::Drop, next_run: NextRun::Idle, drained: false };
        }
        let entered = match origin {
            Origin::Held => self.cell.enter_beyond(batch),
            Origin::Local | Origin::Forwarded => self.cell.enter(batch),
        };
        match entered {
            SkbEntered::Owner { owner, parked } => {
                self.stats.owned.add(1);
                let mut work = Work::new(self);
                let mut verdict = None;
                let next_run = owner.work(|owner| {
                    let mut known = None;
                    if verdict.is_none() {
                        let queued = work.queue(owner, ctx, now, batch, parked, to_free);
                        (verdict, known) = (Some(queued.0), queued.1);
                    } else {
                        work.take(owner, ctx, now, to_free);
                    }
                    work.run(owner, known, ctx, now, to_free)
                });
                let drained = work.taken > 0 && !mutated(Mutant::DrainNotSaid);
                Sent::Owned { verdict: verdict.unwrap_or_default(), next_run, drained }
            }
            SkbEntered::Pending => Sent::Deferred,
            SkbEntered::Full => {
                if origin != Origin::Local {
                    to_free.push_batch(batch, DropReason::QdiscBurstDrop);
                }
                Sent::Full
            }
        }
    }

    /// Whether a local sender would be told to hold back, were it to send now.
    pub fn is_full(&self) -> bool {
        self.cell.is_full()
    }

    /// Runs the queue, as [`NextRun`] asked for: the kernel's `net_tx_action`. `None`: another thread owns it, and
    /// reschedules it if need be.
    pub fn run<C: ?Sized>(&self, ctx: &mut C, now: u64, to_free: &mut ToFree) -> Option<NextRun>
    where
        R: Ring<C>,
    {
        Some(self.own()?.finish(ctx, now, to_free))
    }

    /// Owns the queue, to do something about its discipline or its ring. `None` (contended): another thread does, for
    /// a bounded time; try again.
    #[inline]
    pub fn own(&self) -> Option<QueueGuard<'_, R>> {
        let owner = self.cell.own()?;
        self.stats.owned.add(1);
        Some(QueueGuard { list: self, owner })
    }

    /// From now on every packet is dropped as `dev_ready`. The caller must [own](Self::own) the queue once more, and
    /// finish: that drops what is queued (`shutdown`), and after it the ring is not touched any more.
    pub fn deactivate(&self) {
        // Relaxed: the ownership that follows orders it before all later ones.
        self.deactivated.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    fn is_deactivated(&self) -> bool {
        self.deactivated.load(Ordering::Relaxed)
    }
}

/// Ownership of a TX queue. It must end by [`finish`](Self::finish).
#[must_use = "an owner must finish"]
pub struct QueueGuard<'a, R> {
    list: &'a DeferList<R>,
    owner: SkbOwner<'a, Root<R>>,
}

impl<R> QueueGuard<'_, R> {
    /// The ring.
    pub fn ring(&mut self) -> &mut R {
        &mut self.owner.body().ring
    }

    /// Changes the discipline by `change`; `None`: there is none.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut (dyn Qdisc + 'static)) -> T) -> Option<T> {
        let root = self.owner.body();
        let changed = root.qdisc.as_deref_mut().map(change);
        root.changed();
        changed
    }

    /// Replaces the discipline. What the old one held is dropped, as the kernel has it.
    pub fn graft(&mut self, qdisc: Option<Box<dyn Qdisc>>, to_free: &mut ToFree) {
        let root = self.owner.body();
        root.reset(DropReason::QdiscDrop, to_free);
        root.qdisc = qdisc;
        root.changed();
    }

    /// Queues what is pending, sends what may leave, until nothing is pending; lets go. If that is more than its share,
    /// parks.
    pub fn finish<C: ?Sized>(self, ctx: &mut C, now: u64, to_free: &mut ToFree) -> NextRun
    where
        R: Ring<C>,
    {
        let QueueGuard { list, owner } = self;
        let mut work = Work::new(list);
        owner.work(|owner| {
            work.take(owner, ctx, now, to_free);
            work.run(owner, None, ctx, now, to_free)
        })
    }
}

/// What an owner has done of its share.
struct Work<'a, R> {
    list: &'a DeferList<R>,
    /// Packets of others taken so far.
    taken: usize,
    /// Packets that may still be sent: a batch, and as many as were taken. An owner that took more than it sends would move
    /// the backlog to the discipline, which has to drop, from the list, whose bound holds senders back.
    budget: usize,
    /// Times it tried to let go after it had taken its share.
    attempts: u32,
}

/// See there.
const ATTEMPTS: u32 = 4;

impl<'a, R> Work<'a, R> {
    fn new(list: &'a DeferList<R>) -> Self {
        Work { list, taken: 0, budget: BATCH, attempts: 0 }
    }

    /// Queues the owner's own packets, or has them pass, in which case it is known what a run would come to. If ownership
    /// was parked, what is pending is older; otherwise it is younger, and to look for it now costs more than to be refused
    /// when letting go.
    #[inline(always)]
    fn queue<C: ?Sized>(
        &mut self,
        owner: &mut SkbOwner<'_, Root<R>>,
        ctx: &mut C,
        now: u64,
        batch: &mut Batch,
        parked: bool,
        to_free: &mut ToFree,
    ) -> (Verdict, Option<NextRun>)
    where
        R: Ring<C>,
    {
        if self.list.is_deactivated() && !mutated(Mutant::DeactivatedNotSeen) {
            to_free.push_batch(batch, DropReason::DevReady);
            return (Verdict::Drop, None);
        }
        if parked && !mutated(Mutant::OwnBeforePending) {
            self.take(owner, ctx, now, to_free);
        }
        let root = owner.body();
        if !parked && let Some(next_run) = root.bypass(ctx, batch) {
            return (Verdict::Success, Some(next_run));
        }
        (root.enqueue_batch(ctx, now, batch, to_free), None)
    }

    /// Detaches the pending list and queues, or drops, all of it.
    fn take<C: ?Sized>(
        &mut self,
        owner: &mut SkbOwner<'_, Root<R>>,
        ctx: &mut C,
        now: u64,
        to_free: &mut ToFree,
    ) where
        R: Ring<C>,
    {
        if !owner.has_pending() {
            return;
        }
        let deactivated = self.list.is_deactivated();
        let mut made_here = 0;
        let taken = owner.drain(|root, skb| {
            made_here += own_len(&skb);
            if deactivated {
                to_free.push(skb, DropReason::DevReady);
            } else {
                // Its sender was told that it was taken.
                let _ = root.enqueue(ctx, skb, now, to_free);
            }
        });
        if made_here > 0 {
            owner.body().ring.taken(made_here);
        }
        if taken > 0 {
            self.taken += taken;
            self.budget += taken;
            self.list.stats.handed_over.add(taken as u64);
        }
    }

    /// Sends what may leave, unless it is `known` what that would come to.
    #[inline(always)]
    fn run<C: ?Sized>(
        &mut self,
        owner: &mut SkbOwner<'_, Root<R>>,
        known: Option<NextRun>,
        ctx: &mut C,
        now: u64,
        to_free: &mut ToFree,
    ) -> Ending<NextRun>
    where
        R: Ring<C>,
    {
        let Work { list, taken, .. } = *self;
        if list.is_deactivated() {
            owner.body().reset(DropReason::Shutdown, to_free);
            // Those that got past the flag are few, and no thread may be left to unpark.
            return Ending::Leave(NextRun::Idle);
        }
        let mut next_run = known.unwrap_or_else(|| owner.body().run(ctx, now, &mut self.budget, to_free));
        if taken >= list.share {
            // Others may push between this look and its letting go, but not for ever.
            self.attempts += 1;
            if owner.has_pending() || self.attempts > ATTEMPTS {
                next_run = NextRun::Again;
            }
        }
        owner.body().tell_backlog();
        if next_run != NextRun::Idle {
            owner.body().ring.reschedule(next_run, now);
        }
        match next_run {
            NextRun::Again => {
                list.stats.parked.add(1);
                Ending::Park(next_run)
            }
            _ => Ending::Leave(next_run),
        }
    }
}
