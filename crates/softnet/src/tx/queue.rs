//! A TX queue of an open device (the kernel's `netdev_queue`): its discipline, its ring, and who runs it when there is
//! more to do.
//!
//! Any thread with a context sends through it: it owns the queue for a while, or leaves its packets to the thread that
//! does (see [`DeferList`]). What is left when a sender lets go is the queue's worker's: a share used up, a packet whose time
//! has not come, a full ring. Before it lets go the sender says *when* (`Due`), and wakes the worker if that sleeps for
//! longer. Workers do this whatever the context their instances are polled in, as the kernel's CPUs run
//! `NET_TX_SOFTIRQ`.
//!
//! Invariant: while packets are queued, somebody owns the queue, or its worker has a time at which to run it.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{
    After, DeferList, DeferStats, Dql, Lead, Origin, Qdisc, Quota, Ring, Sent, ToFree,
};
use softnet_core::skb::{BATCH, Batch, Region};
use softnet_core::sync::{AtomicU64, AtomicUsize, Ordering};
use softnet_dev::{QueueStats, Reaped, TxQueue};

use super::TxBackpressure;
use crate::napi::WorkerShared;
use crate::notify::ReadinessNotifier;
use crate::util::{AbortOnPanic, Clock};

/// ns after which a full ring is looked at again, if nobody sends meanwhile. No device tells of its completions; this is
/// about the shortest sleep that does not cost much of a core. Doubled each time that nothing has left the ring, up to
/// 1.6 ms.
const TX_RETRY: u64 = 50_000;
const TX_RETRY_DOUBLINGS: u32 = 5;

/// No run is wanted.
pub(crate) const NEVER: u64 = u64::MAX;

/// What the owner's thread brings along.
struct XmitContext<'a> {
    ctx: &'a mut SoftnetData,
    now: u64,
}

/// When a queue's worker is to run it. Any thread may set it.
struct Due {
    /// In ns of the stack's clock.
    at: AtomicU64,
    worker: Arc<WorkerShared>,
}

impl Due {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Has the worker run the queue at `at`, unless it will sooner, and wakes it if it sleeps for longer.
    #[cold]
    fn set(&self, at: u64) {
        if self.at.fetch_min(at, Ordering::Release) > at {
            // After it: the worker forgets this before it looks at each queue's.
            self.worker.tx_due.fetch_min(at, Ordering::Release);
            self.worker.waker.wake();
        }
    }
}

/// What others may know of a ring; written by the queue's owner.
#[derive(Default)]
pub struct RingState {
    /// Frames in the ring: waiting to be sent, or to be taken back.
    pub held: AtomicUsize,
    /// Bytes that byte queue limits allow in it, and bytes in it.
    pub limit: AtomicU64,
    /// See [`limit`](Self::limit).
    pub inflight: AtomicU64,
}

/// The ring as the discipline's owner uses it, within the byte queue limits of what it completes.
struct LimitedRing {
    /// `None` once it was closed.
    queue: Option<Box<dyn TxQueue>>,
    stats: Arc<QueueStats>,
    state: Arc<RingState>,
    dql: Dql,
    /// Frames in the ring when it was last looked at, and those put on it since.
    in_ring: usize,
    due: Arc<Due>,
    /// The device must be told again of what is in the ring.
    stalled: bool,
    /// Times in a row that the ring was full, and nothing had left it.
    stuck: u32,
}

impl LimitedRing {
    /// Takes back what was sent, has the device go on with the rest, and counts the bytes that left. Returns how many
    /// packets it takes.
    #[inline]
    fn reap(&mut self, ctx: &mut SoftnetData, now: u64) -> usize {
        let Some(queue) = &mut self.queue else { return 0 };
        let Reaped { held, room, .. } = queue.reap(ctx);
        // Reaping is what ends that the device is stalled; until then it is done again, and at once if it got on.
        self.stalled = self.stalled && queue.stalled();
        match held < self.in_ring {
            true => self.stuck = 0,
            false if self.stalled => self.stuck = self.stuck.saturating_add(1),
            false => {}
        }
        if self.stalled {
            self.due.set(now + self.retry());
        }
        if self.dql.inflight() > 0 {
            let bytes = match held {
                0 => self.dql.inflight(),
                _ => self.left(held),
            };
            if bytes > 0 {
                self.dql.completed(bytes, now);
                self.state.limit.store(self.dql.limit(), Ordering::Relaxed);
            }
            self.state.inflight.store(self.dql.inflight(), Ordering::Relaxed);
        }
        self.in_ring = held;
        self.state.held.store(held, Ordering::Relaxed);
        room
    }

    /// ns after which to try again.
    fn retry(&self) -> u64 {
        match self.stuck {
            0 => 0,
            stuck => TX_RETRY << (stuck - 1).min(TX_RETRY_DOUBLINGS),
        }
    }

    /// About how many bytes have left, with `held` frames still in the ring. Devices say how many frames they completed, not
    /// how long these were: they are taken for average ones, and what that is off is made up for when the ring is empty.
    #[cold]
    fn left(&self, held: usize) -> u64 {
        let inflight = u128::from(self.dql.inflight());
        let done = self.in_ring.saturating_sub(held) as u128;
        (inflight * done / (self.in_ring.max(1) as u128)) as u64
    }

    /// Closes it; what is on it goes home.
    fn close(&mut self, ctx: &mut SoftnetData) {
        if let Some(queue) = self.queue.take() {
            queue.close(ctx);
        }
        self.stalled = false;
        self.state.held.store(0, Ordering::Relaxed);
        self.state.inflight.store(0, Ordering::Relaxed);
    }
}

impl Ring<XmitContext<'_>> for LimitedRing {
    #[inline]
    fn avail(&mut self, cx: &mut XmitContext<'_>) -> Quota {
        let room = self.reap(cx.ctx, cx.now);
        let quota = Quota { packets: room.min(BATCH), bytes: self.dql.avail() };
        // While the interface is down packets are dropped, whatever lies in the ring; by trying it is found up again.
        if quota.is_open() || !self.queue.as_ref().is_some_and(|queue| queue.down()) {
            quota
        } else {
            Quota::BATCH
        }
    }

    #[inline]
    fn xmit(&mut self, cx: &mut XmitContext<'_>, batch: &mut Batch) -> u64 {
        let Some(queue) = &mut self.queue else { return 0 };
        let before = (self.stats.packets.get(), self.stats.bytes.get());
        queue.tx_burst(cx.ctx, batch);
        let mut stalled = queue.kick(cx.ctx);
        if !batch.is_empty() {
            // The kick may have sent what filled the ring.
            queue.reap(cx.ctx);
            queue.tx_burst(cx.ctx, batch);
            stalled = queue.kick(cx.ctx);
        }
        let packets = self.stats.packets.get().wrapping_sub(before.0);
        let bytes = self.stats.bytes.get().wrapping_sub(before.1);
        self.dql.sent(bytes);
        self.in_ring += packets as usize;
        self.state.held.store(self.in_ring, Ordering::Relaxed);
        if packets > 0 {
            self.stuck = 0;
        }
        if stalled {
            self.stalled = true;
            self.due.set(cx.now);
        }
        bytes
    }

    fn owe(&mut self, after: After, now: u64) {
        self.due.set(match after {
            After::Idle => return,
            After::Again => now,
            After::Watchdog(at) => at,
            After::Stopped => {
                self.stuck = self.stuck.saturating_add(1);
                now + self.retry()
            }
        });
    }
}

/// See the module.
pub struct NetdevQueue {
    /// Index of the device it belongs to.
    dev: u16,
    root: DeferList<LimitedRing>,
    stats: Arc<QueueStats>,
    state: Arc<RingState>,
    /// Who waits for room on the pending list.
    pub held_back: TxBackpressure,
    due: Arc<Due>,
}

/// What a queue is made with.
pub struct QueueParams {
    /// Index of its device.
    pub dev: u16,
    /// Packets that may be pending for its owner.
    pub qdisc_max_burst: u32,
    /// Who runs it.
    pub worker: Arc<WorkerShared>,
    /// Whose senders may be held back.
    pub told: Arc<ReadinessNotifier>,
}

impl NetdevQueue {
    /// Puts `qdisc` (`None`: `noqueue`) before `queue`, for packets of `region`.
    pub fn new(
        region: &Region,
        qdisc: Option<Box<dyn Qdisc>>,
        queue: Box<dyn TxQueue>,
        params: QueueParams,
    ) -> Self {
        let (stats, state) = (queue.stats(), Arc::<RingState>::default());
        let due = Arc::new(Due { at: AtomicU64::new(NEVER), worker: params.worker });
        let ring = LimitedRing {
            queue: Some(queue),
            stats: stats.clone(),
            state: state.clone(),
            dql: Dql::default(),
            in_ring: 0,
            due: due.clone(),
            stalled: false,
            stuck: 0,
        };
        NetdevQueue {
            dev: params.dev,
            root: DeferList::new(region, qdisc, ring, params.qdisc_max_burst),
            stats,
            state,
            held_back: TxBackpressure::new(params.told),
            due,
        }
    }

    /// Counters of its ring.
    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }

    /// What is in its ring.
    pub fn ring(&self) -> &RingState {
        &self.state
    }

    /// Who runs it.
    pub(crate) fn worker(&self) -> &WorkerShared {
        &self.due.worker
    }

    /// How often it was owned, and how many packets were handed over.
    pub fn lock_stats(&self) -> &DeferStats {
        self.root.stats()
    }

    /// Sends `batch` at `now`. Afterwards it is empty, unless `origin` is local and the sender must hold back; what can't be
    /// sent is freed and counted against the device.
    #[inline]
    pub fn xmit(&self, ctx: &mut SoftnetData, now: u64, origin: Origin, batch: &mut Batch) -> Sent {
        let _owner = AbortOnPanic::new();
        let mut to_free = ToFree::new();
        let sent = self.root.send(&mut XmitContext { ctx, now }, now, origin, batch, &mut to_free);
        self.free(ctx, &mut to_free);
        // Only who took what was pending has made room. Were one that found none to wake others, those who wait would keep
        // each other awake.
        if let Sent::Led { drained: true, .. } = sent {
            self.held_back.wake();
        }
        sent
    }

    /// As [`xmit`](Self::xmit), for a sender here that can wait: it is held back while too many packets are pending, or
    /// until it is `until`, in ns of the clock.
    pub fn xmit_waiting(&self, ctx: &mut SoftnetData, clock: &Clock, until: u64, batch: &mut Batch) -> Sent {
        match self.xmit(ctx, clock.now(), Origin::Local, batch) {
            Sent::Full => self.held_back.wait(clock, until, |now| self.xmit(ctx, now, Origin::Local, batch)),
            sent => sent,
        }
    }

    /// Whether a sender here would be held back now.
    pub(crate) fn is_full(&self) -> bool {
        self.root.is_full()
    }

    /// Runs it, if it is time and nobody else does: what its worker is for. Returns whether it did.
    pub(crate) fn run(&self, ctx: &mut SoftnetData, now: u64) -> bool {
        if self.next_due() > now {
            return false;
        }
        // Before the run, which may set it anew. Acquire: of whoever set it, and what it did to the queue before.
        self.due.at.swap(NEVER, Ordering::AcqRel);
        if !self.reap_and_run(ctx, now) {
            // Its owner may have said before that when to run it, and is about to let go.
            self.due.set(now + TX_RETRY);
        }
        true
    }

    /// When its worker is to run it.
    #[inline(always)]
    pub(crate) fn next_due(&self) -> u64 {
        self.due.get()
    }

    /// Takes back what was sent meanwhile, if anything is left in the ring, and goes on with what is queued.
    pub(crate) fn reap(&self, ctx: &mut SoftnetData, now: u64) {
        if self.state.held.load(Ordering::Relaxed) > 0 {
            // Whoever owns it does the same.
            let _ = self.reap_and_run(ctx, now);
        }
    }

    /// Says whether it did; otherwise somebody else owns the queue.
    fn reap_and_run(&self, ctx: &mut SoftnetData, now: u64) -> bool {
        let _owner = AbortOnPanic::new();
        let Some(mut lead) = self.root.lead() else { return false };
        lead.ring().reap(ctx, now);
        let mut to_free = ToFree::new();
        lead.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.let_go(ctx, &mut to_free);
        true
    }

    /// Puts another discipline in place; what the old one held is dropped, as the kernel has it.
    pub fn graft(&self, ctx: &mut SoftnetData, now: u64, qdisc: Option<Box<dyn Qdisc>>) {
        let _owner = AbortOnPanic::new();
        let mut to_free = ToFree::new();
        let mut lead = self.lead();
        lead.graft(qdisc, &mut to_free);
        lead.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.let_go(ctx, &mut to_free);
    }

    /// Has the discipline changed by `change`; what it holds stays. `None`: there is none.
    pub fn change<T>(
        &self,
        ctx: &mut SoftnetData,
        now: u64,
        change: impl FnOnce(&mut (dyn Qdisc + 'static)) -> T,
    ) -> Option<T> {
        let _owner = AbortOnPanic::new();
        let mut to_free = ToFree::new();
        let mut lead = self.lead();
        let changed = lead.change(change);
        lead.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.let_go(ctx, &mut to_free);
        changed
    }

    /// Closes the queue; packets sent from now on are dropped as `dev_ready`.
    pub fn close(&self, ctx: &mut SoftnetData) {
        self.root.deactivate();
        let _owner = AbortOnPanic::new();
        let mut lead = self.lead();
        lead.ring().close(ctx);
        let mut to_free = ToFree::new();
        lead.finish(&mut XmitContext { ctx, now: 0 }, 0, &mut to_free);
        self.let_go(ctx, &mut to_free);
    }

    /// Owns it; waits for its owner. For control only. An owner does not end without letting go: if it panics, the process
    /// ends.
    fn lead(&self) -> Lead<'_, LimitedRing> {
        loop {
            match self.root.lead() {
                Some(lead) => return lead,
                // Its owner is bounded, but may be preempted.
                None => std::thread::yield_now(),
            }
        }
    }

    /// After the caller owned the queue: frees what was dropped, and has those go on who wait.
    #[inline(always)]
    fn let_go(&self, ctx: &mut SoftnetData, to_free: &mut ToFree) {
        self.free(ctx, to_free);
        self.held_back.wake();
    }

    #[inline(always)]
    fn free(&self, ctx: &mut SoftnetData, to_free: &mut ToFree) {
        if !to_free.is_empty() {
            to_free.free(ctx, self.dev);
        }
    }
}

#[cfg(test)]
mod tests;
