//! A TX queue of an open device (the kernel's `netdev_queue`): its discipline, its ring, and when it is to be run again.
//!
//! Any thread with a context sends through it: the thread owns the queue for a while, or leaves its packets to the thread
//! that does (see [`DeferList`]). Packets still queued when the owner releases the queue are sent by that queue's worker: a
//! share was used up, the time of a packet has not come, or the ring is full. Before it releases the queue the owner sets
//! *when* (`Due`), and the worker is woken if it sleeps for longer ([`TxWake`]). Workers do this in every context in which
//! instances are polled, as the kernel's CPUs run `NET_TX_SOFTIRQ`.
//!
//! Invariant: while packets are queued, a thread owns the queue, or its worker has a time at which to run it.

mod freeze;

use std::collections::VecDeque;
use std::sync::Arc;

pub use freeze::FrozenQueue;

use super::device::{QueueStats, Reaped, TxQueue};
use crate::SoftnetData;
use crate::gso::{self, TxOffloads, pkt_len};
use crate::qdisc::{
    self, DeferList, DeferStats, Dql, NextRun, Origin, Qdisc, QueueGuard, Quota, Ring, Sent, ToFree,
};
use crate::skb::{BATCH, Batch, DropReason, Region, Skb, SkbList};
use crate::sync::{AbortOnPanic, AtomicU64, AtomicUsize, Ordering};
use crate::tap::trace::Step;
use crate::vlan;

/// ns after which a full ring is looked at again, if no thread sends meanwhile. No device tells of its completions;
/// this is about the shortest sleep that does not cost much of a core. Doubled each time that nothing has left the
/// ring, up to 1.6 ms.
const TX_RETRY: u64 = 50_000;
const TX_RETRY_DOUBLINGS: u32 = 5;

/// No run is wanted.
pub const NEVER: u64 = u64::MAX;

/// How a TX queue wakes the threads that are not its owner.
pub trait TxWake: Send + Sync {
    /// The queue is to be run at `at`, in ns of the stack's clock, which is earlier than it was to be: by its worker, which
    /// looks at the time of each of its queues after it was woken.
    fn run_at(&self, at: u64);
    /// The owner made room on the pending list, and released the queue: local senders that are held back may go on. Called
    /// often; must not wait.
    fn made_room(&self);
    /// A packet was dropped before it was on the ring, as there was no room for it: its sender may be told. Called with the
    /// queue released; must not wait.
    fn dropped(&self, _skb: &Skb, _reason: DropReason) {}
    /// The number of the queue among those of its device, for captures.
    fn number(&self) -> u16 {
        0
    }
}

/// What the owner's thread brings along.
struct XmitContext<'a> {
    ctx: &'a mut SoftnetData,
    now: u64,
}

/// When a queue's worker is to run it. Any thread may set it.
struct Due<W> {
    /// In ns of the stack's clock.
    at: AtomicU64,
    wake: W,
}

impl<W: TxWake> Due<W> {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Has the worker run the queue at `at`, unless it will sooner, and wakes it if it sleeps for longer.
    #[cold]
    fn set(&self, at: u64) {
        if self.at.fetch_min(at, Ordering::Release) > at {
            self.wake.run_at(at);
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
    /// Bytes before it, in the discipline, that this stack made and did not forward.
    pub local: AtomicU64,
    /// Such bytes that were handed over to the queue's owner and that it has not taken yet. Its senders add them after they
    /// have handed over, so that for a moment it may be less than 0, modulo 2⁶⁴.
    pub pending: AtomicU64,
}

impl RingState {
    /// Bytes before the ring that this stack made, handed over or queued.
    pub fn local_backlog(&self) -> u64 {
        let pending = self.pending.load(Ordering::Relaxed).cast_signed().max(0);
        self.local.load(Ordering::Relaxed) + pending.cast_unsigned()
    }
}

/// The ring as the discipline's owner uses it, within the byte queue limits of what it completes.
struct LimitedRing<W> {
    /// Index of the device it belongs to.
    dev: u16,
    /// `None` once it was closed.
    queue: Option<Box<dyn TxQueue>>,
    stats: Arc<QueueStats>,
    state: Arc<RingState>,
    dql: Dql,
    /// Frames in the ring when it was last looked at, and those put on it since.
    in_ring: usize,
    due: Arc<Due<W>>,
    /// The device must be told again of what is in the ring.
    stalled: bool,
    /// Times in a row that the ring was full, and nothing had left it.
    stuck: u32,
    /// What the device does by itself.
    offloads: TxOffloads,
    /// Segments of a packet of which others are on the ring, and for which it had no room. They
    /// leave before anything else.
    segments: VecDeque<Skb>,
}

impl<W: TxWake> LimitedRing<W> {
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
        if !self.segments.is_empty() {
            return self.send_segments(ctx, now, room);
        }
        self.state.held.store(held, Ordering::Relaxed);
        room
    }

    /// Puts segments that are left over on the ring, which has so much `room`. Returns how much
    /// there is then: none as long as some are left; when to go on with them is set.
    #[cold]
    fn send_segments(&mut self, ctx: &mut SoftnetData, now: u64, room: usize) -> usize {
        let before = self.segments.len();
        let mut batch = Batch::new();
        while !self.segments.is_empty() {
            while batch.room() > 0
                && let Some(skb) = self.segments.pop_front()
            {
                put(&mut batch, skb);
            }
            self.burst(ctx, now, &mut batch);
            if !batch.is_empty() {
                break;
            }
        }
        self.keep_segments(now, &mut batch, true);
        if self.segments.is_empty() { room.saturating_sub(before) } else { 0 }
    }

    /// Keeps the segments of `batch` for later: those that come first, or those that come last.
    #[cold]
    fn keep_segments(&mut self, now: u64, batch: &mut Batch, first: bool) {
        match first {
            true => {
                while let Some(skb) = batch.pop() {
                    self.segments.push_front(skb);
                }
            }
            false => self.segments.extend(batch.drain()),
        }
        if !self.segments.is_empty() {
            self.stuck = self.stuck.saturating_add(1);
            self.due.set(now + self.retry());
        }
        self.state.held.store(self.in_ring + self.segments.len(), Ordering::Relaxed);
    }

    /// Puts packets on the ring, and tells the device. What the ring has no room for stays in
    /// `batch`.
    #[inline(always)]
    fn burst(&mut self, ctx: &mut SoftnetData, now: u64, batch: &mut Batch) -> (usize, u64) {
        let Some(queue) = &mut self.queue else { return (0, 0) };
        let before = (self.stats.packets.get(), self.stats.bytes.get());
        queue.tx_burst(ctx, batch);
        let mut stalled = queue.kick(ctx);
        if !batch.is_empty() {
            // The kick may have sent what filled the ring.
            queue.reap(ctx);
            queue.tx_burst(ctx, batch);
            stalled = queue.kick(ctx);
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
            self.due.set(now);
        }
        (packets as usize, bytes)
    }

    /// The same of packets of which the device does not take some as they are: these are cut into
    /// segments. Counts each segment, those that are kept for later, too.
    #[cold]
    #[inline(never)]
    fn burst_cut(&mut self, ctx: &mut SoftnetData, now: u64, batch: &mut Batch) -> (usize, u64) {
        let (mut out, mut packets, mut bytes) = (Batch::new(), 0, 0);
        let mut packets_in = batch.drain();
        let mut full = false;
        while !full && let Some(skb) = packets_in.next() {
            let mut segments = match self.offloads.takes(skb.head()) {
                true => SkbList::from(skb),
                false => match gso::segment(ctx, skb) {
                    Ok(segments) => segments,
                    Err((skb, reason)) => {
                        ctx.free_at(skb, self.dev, reason);
                        continue;
                    }
                },
            };
            while let Some(skb) = segments.pop_front() {
                if out.room() == 0 && !full {
                    let sent = self.burst(ctx, now, &mut out);
                    (packets, bytes) = (packets + sent.0, bytes + sent.1);
                    full = !out.is_empty();
                }
                match full {
                    true => self.segments.push_back(skb),
                    false => put(&mut out, skb),
                }
            }
        }
        drop(packets_in);
        if !full {
            let sent = self.burst(ctx, now, &mut out);
            (packets, bytes) = (packets + sent.0, bytes + sent.1);
        }
        if !out.is_empty() || !self.segments.is_empty() {
            self.keep_segments(now, &mut out, true);
            packets += self.segments.len();
            bytes += self.segments.iter().map(|skb| pkt_len(skb) as u64).sum::<u64>();
        }
        (packets, bytes)
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
        while let Some(skb) = self.segments.pop_front() {
            ctx.free_at(skb, self.dev, DropReason::Shutdown);
        }
        self.stalled = false;
        self.state.held.store(0, Ordering::Relaxed);
        self.state.inflight.store(0, Ordering::Relaxed);
    }
}

impl<W: TxWake> Ring<XmitContext<'_>> for LimitedRing<W> {
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
    fn xmit(&mut self, cx: &mut XmitContext<'_>, batch: &mut Batch) -> (usize, u64) {
        // Here every packet passes that leaves, and disciplines and filters have seen it without.
        vlan::put_back_all(cx.ctx, self.dev, batch);
        cx.ctx.tap_out(cx.now, self.dev, self.due.wake.number(), batch);
        match gso::any_refused(batch, self.offloads) {
            false => self.burst(cx.ctx, cx.now, batch),
            true => self.burst_cut(cx.ctx, cx.now, batch),
        }
    }

    fn segment(&mut self, cx: &mut XmitContext<'_>, skb: Skb) -> Result<SkbList, (Skb, DropReason)> {
        gso::segment(cx.ctx, skb)
    }

    fn local_backlog(&mut self, bytes: u64) {
        self.state.local.store(bytes, Ordering::Relaxed);
    }

    fn taken(&mut self, bytes: u64) {
        self.state.pending.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn reschedule(&mut self, next_run: NextRun, now: u64) {
        self.due.set(match next_run {
            NextRun::Idle => return,
            NextRun::Again => now,
            NextRun::Watchdog(at) => at,
            NextRun::Stopped => {
                self.stuck = self.stuck.saturating_add(1);
                now + self.retry()
            }
        });
    }
}

/// Appends to a batch that has room.
#[inline(always)]
fn put(batch: &mut Batch, skb: Skb) {
    if let Err(skb) = batch.push(skb) {
        // Not reached: the caller looked. Dropping it makes a mistake there show as a leak.
        drop(skb);
    }
}

/// See the [module](self).
pub struct NetdevQueue<W> {
    /// Index of the device it belongs to.
    dev: u16,
    root: DeferList<LimitedRing<W>>,
    stats: Arc<QueueStats>,
    state: Arc<RingState>,
    due: Arc<Due<W>>,
}

impl<W: TxWake> NetdevQueue<W> {
    /// Puts `qdisc` (`None`: `noqueue`) before `queue`, which is of device `dev`, for packets of `region`. `qdisc_max_burst`
    /// packets may be pending for its owner.
    pub fn new(
        region: &Region,
        dev: u16,
        qdisc: Option<Box<dyn Qdisc>>,
        queue: Box<dyn TxQueue>,
        qdisc_max_burst: u32,
        wake: W,
    ) -> Self {
        let (stats, state) = (queue.stats(), Arc::<RingState>::default());
        let due = Arc::new(Due { at: AtomicU64::new(NEVER), wake });
        let queue_offloads = queue.offloads();
        let ring = LimitedRing {
            dev,
            queue: Some(queue),
            stats: stats.clone(),
            state: state.clone(),
            dql: Dql::default(),
            in_ring: 0,
            due: due.clone(),
            stalled: false,
            stuck: 0,
            offloads: queue_offloads,
            segments: VecDeque::new(),
        };
        NetdevQueue { dev, root: DeferList::new(region, qdisc, ring, qdisc_max_burst), stats, state, due }
    }

    /// How it wakes other threads.
    pub fn wake(&self) -> &W {
        &self.due.wake
    }

    /// Counters of its ring.
    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }

    /// What is in its ring.
    pub fn ring(&self) -> &RingState {
        &self.state
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
        let made_here = qdisc::local_bytes(batch);
        ctx.trace_all(now, batch, (self.dev, self.due.wake.number()), Step::Queued);
        let sent = self.root.send(&mut XmitContext { ctx, now }, now, origin, batch, &mut to_free);
        self.free(ctx, &mut to_free);
        if made_here > 0 && sent == Sent::Deferred {
            self.state.pending.fetch_add(made_here, Ordering::Relaxed);
        }
        // Only an owner that took what was pending has made room. Were one that found none to wake others, waiting senders
        // would keep each other awake.
        if let Sent::Owned { drained: true, .. } = sent {
            self.due.wake.made_room();
        }
        sent
    }

    /// Whether a local sender would be held back now.
    pub fn is_full(&self) -> bool {
        self.root.is_full()
    }

    /// Runs it, if it is due: what its worker is for. Returns whether it was.
    pub fn run(&self, ctx: &mut SoftnetData, now: u64) -> bool {
        if self.next_due() > now {
            return false;
        }
        // Before the run, which may set it anew. Acquire: with the time comes what its setter did to the queue before.
        self.due.at.swap(NEVER, Ordering::AcqRel);
        if !self.reap_and_run(ctx, now) {
            // Its owner may have said before that when to run it, and is about to let go.
            self.due.set(now + TX_RETRY);
        }
        true
    }

    /// When its worker is to run it.
    #[inline(always)]
    pub fn next_due(&self) -> u64 {
        self.due.get()
    }

    /// Takes back what was sent meanwhile, if anything is left in the ring, and goes on with what is queued.
    pub fn reap(&self, ctx: &mut SoftnetData, now: u64) {
        if self.state.held.load(Ordering::Relaxed) > 0 {
            // Another owner does the same.
            let _ = self.reap_and_run(ctx, now);
        }
    }

    /// Returns whether it did; otherwise another thread owns the queue.
    fn reap_and_run(&self, ctx: &mut SoftnetData, now: u64) -> bool {
        let _owner = AbortOnPanic::new();
        let Some(mut guard) = self.root.own() else { return false };
        guard.ring().reap(ctx, now);
        let mut to_free = ToFree::new();
        guard.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.let_go(ctx, &mut to_free);
        true
    }

    /// Puts another discipline in place; what the old one held is dropped, as the kernel has it.
    pub fn graft(&self, ctx: &mut SoftnetData, now: u64, qdisc: Option<Box<dyn Qdisc>>) {
        let _owner = AbortOnPanic::new();
        let mut to_free = ToFree::new();
        let mut guard = self.own();
        guard.graft(qdisc, &mut to_free);
        guard.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
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
        let mut guard = self.own();
        let changed = guard.change(change);
        guard.finish(&mut XmitContext { ctx, now }, now, &mut to_free);
        self.let_go(ctx, &mut to_free);
        changed
    }

    /// Closes the queue; packets sent from now on are dropped as `dev_ready`.
    pub fn close(&self, ctx: &mut SoftnetData) {
        self.root.deactivate();
        let _owner = AbortOnPanic::new();
        let mut guard = self.own();
        guard.ring().close(ctx);
        let mut to_free = ToFree::new();
        guard.finish(&mut XmitContext { ctx, now: 0 }, 0, &mut to_free);
        self.let_go(ctx, &mut to_free);
    }

    /// Owns it; waits for its owner. For control only. An owner does not end without letting go: if it panics, the process
    /// ends.
    fn own(&self) -> QueueGuard<'_, LimitedRing<W>> {
        loop {
            match self.root.own() {
                Some(guard) => return guard,
                // Its owner is bounded, but may be preempted.
                None => std::thread::yield_now(),
            }
        }
    }

    /// After the caller owned the queue: frees what was dropped, and wakes the senders that wait for room.
    #[inline(always)]
    fn let_go(&self, ctx: &mut SoftnetData, to_free: &mut ToFree) {
        self.free(ctx, to_free);
        self.due.wake.made_room();
    }

    #[inline(always)]
    fn free(&self, ctx: &mut SoftnetData, to_free: &mut ToFree) {
        if !to_free.is_empty() {
            to_free.free_telling(ctx, self.dev, |skb, reason| self.due.wake.dropped(skb, reason));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
