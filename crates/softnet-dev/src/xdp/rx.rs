//! The receiving half of a queue: fill ring and receive ring.
//!
//! Called by the owner of the queue's NAPI instance only. `posted` names every frame that is on the fill ring, in the
//! kernel's hands, or on the receive ring unread; there are never more than the fill ring has slots, so the
//! receive ring, which has as many, can't overflow.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::net::RecvFlags;
use softnet_core::SoftnetData;
use softnet_core::skb::{BATCH, Batch, Csum, DropReason, FRAME_SIZE, Frame, FrameBatch, Skb};

use super::frames::FrameSet;
use super::ring::{Consumer, Producer, RingMemory};
use super::socket::Xsk;
use crate::device::{Doorbell, QueueStats, RxQueue};
use crate::hand_over::HeldFrames;

/// Frames that have to be missing before new ones are posted: a batch, so that posting is done for many at once.
const REFILL: usize = BATCH;

/// Fewest slots of a ring: two batches, so that one can be missing while the other is there.
pub(super) const MIN_RING: u32 = 2 * REFILL as u32;

pub(super) struct XdpRx {
    ring: Consumer<libc::xdp_desc>,
    fill: Producer<u64>,
    posted: FrameSet,
    memory: Arc<RingMemory>,
    xsk: Arc<Xsk>,
    stats: Arc<QueueStats>,
    /// A packet of which more is to come, where packets come in several frames.
    unfinished: Option<Skb>,
    /// A frame of the packet that comes was lost: so is the rest of it.
    skipping: bool,
    /// Another process has the queue still.
    elsewhere: bool,
    dev: u16,
    queue: u16,
}

impl XdpRx {
    pub(super) fn new(xsk: Arc<Xsk>, fill: RingMemory, rx: Arc<RingMemory>, dev: u16, queue: u16) -> Self {
        XdpRx {
            ring: Consumer::new(rx.clone()),
            fill: Producer::new(fill),
            posted: FrameSet::new(xsk.umem().region().frame_count()),
            memory: rx,
            stats: xsk.rx_stats().clone(),
            xsk,
            unfinished: None,
            skipping: false,
            elsewhere: false,
            dev,
            queue,
        }
    }

    /// The same of a queue that another process has until it is [taken over](RxQueue::take_over).
    pub(super) fn elsewhere(self) -> Self {
        XdpRx { elsewhere: true, ..self }
    }

    /// Posts frames until the ring is full or `ctx` has none left.
    pub(super) fn refill(&mut self, ctx: &mut SoftnetData) {
        let region = self.xsk.umem().region();
        let want = self.fill.size() as usize - self.posted.len();
        let ours = ctx.region().id() == region.id();
        for _ in 0..if ours { want } else { 0 } {
            let Some(frame) = ctx.alloc_frame() else { break };
            let index = frame.into_raw();
            self.posted.insert(index);
            self.fill.stage(u64::from(index) * FRAME_SIZE as u64);
        }
        if self.fill.submit() > 0 && self.fill.needs_wakeup() {
            self.stats.kicks.add(1);
            // Only makes the driver look at the ring; what it says is no news.
            let _ = rustix::net::recv(self.xsk.fd(), &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
        self.xsk.set_starved(self.posted.len() == 0);
    }

    /// The ring is empty, and the kernel's instance masked, if it is left to us: polls it, once. Returns whether it was.
    #[cold]
    fn busy_poll(&self) -> bool {
        let ours = self.xsk.irq.is_polled();
        if ours {
            self.stats.kicks.add(1);
            // Receives nothing: packets come by the ring.
            let _ = rustix::net::recv(self.xsk.fd(), &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
        ours
    }

    /// The frame of a received descriptor, and where the packet lies in it. `None` if the descriptor can't be.
    #[inline(always)]
    fn take(&mut self, ctx: &mut SoftnetData, desc: libc::xdp_desc) -> Option<(Frame, usize, usize)> {
        let (index, off) = (desc.addr / FRAME_SIZE as u64, (desc.addr % FRAME_SIZE as u64) as usize);
        if self.posted.remove(index) {
            // SAFETY: the set held the number, so it is that of a frame of this region that `refill` gave up with
            // `into_raw`; and it holds it no more, so this is the only way back.
            let frame = unsafe { Frame::from_raw(self.xsk.umem().region(), index as u32) };
            let len = desc.len as usize;
            if len <= FRAME_SIZE - off && (desc.options & libc::XDP_PKT_CONTD == 0 || self.xsk.has_frags()) {
                return Some((frame, off, len));
            }
            ctx.free_frame(frame);
        }
        self.xsk.bad_descriptors.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl XdpRx {
    /// As [`rx_burst`](RxQueue::rx_burst), where a packet may have several descriptors.
    fn rx_burst_frags(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, want: usize) -> usize {
        let n = self.ring.available(self.fill.size());
        let (mut read, mut taken, mut bytes, mut lost) = (0, 0, 0, 0);
        while read < n && taken < want {
            let desc = self.ring.read(read);
            read += 1;
            let part = self.take(ctx, desc).and_then(|(frame, off, len)| {
                ctx.build_skb(frame, off, len).map_err(|frame| ctx.free_frame(frame)).ok()
            });
            let whole = self.join(ctx, part);
            if desc.options & libc::XDP_PKT_CONTD != 0 {
                self.skipping |= whole.is_none();
                self.unfinished = whole;
                continue;
            }
            self.skipping = false;
            let Some(mut skb) = whole else {
                lost += 1;
                continue;
            };
            (skb.head_mut().dev, skb.head_mut().queue) = (self.dev, self.queue);
            bytes += skb.len() as u64;
            match batch.push(skb) {
                Ok(()) => taken += 1,
                // Can't be: there is room.
                Err(skb) => ctx.free(skb, DropReason::NoHead),
            }
        }
        self.ring.release(read);
        self.stats.packets.add(taken as u64 + lost);
        self.stats.bytes.add(bytes);
        ctx.count_drops(self.dev, DropReason::NoHead, lost);
        taken
    }

    /// The packet so far, and `part`; `None` if anything of it is lost.
    fn join(&mut self, ctx: &mut SoftnetData, part: Option<Skb>) -> Option<Skb> {
        match (self.unfinished.take(), part) {
            (None, Some(part)) if !self.skipping => Some(part),
            (Some(mut skb), Some(part)) => match skb.append(part) {
                Ok(()) => Some(skb),
                Err(part) => {
                    ctx.free_skb(part);
                    ctx.free_skb(skb);
                    None
                }
            },
            (skb, part) => {
                skb.into_iter().chain(part).for_each(|skb| ctx.free_skb(skb));
                None
            }
        }
    }

    fn refill_if_worth(&mut self, ctx: &mut SoftnetData, budget: usize) {
        if budget > 0 && self.fill.size() as usize - self.posted.len() >= REFILL {
            self.refill(ctx);
        }
    }
}

impl RxQueue for XdpRx {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        if self.xsk.has_frags() {
            let want = budget.min(batch.room());
            if want > 0 && self.ring.available(1) == 0 {
                self.busy_poll();
            }
            let taken = self.rx_burst_frags(ctx, batch, want);
            self.refill_if_worth(ctx, budget);
            return taken;
        }
        let want = budget.min(batch.room()) as u32;
        let mut n = self.ring.available(want);
        if n == 0 && want > 0 && self.busy_poll() {
            n = self.ring.available(want);
        }
        let (mut taken, mut bytes, mut headless) = (0, 0, 0);
        for i in 0..n {
            let desc = self.ring.read(i);
            let Some((frame, off, len)) = self.take(ctx, desc) else { continue };
            let mut skb = match ctx.build_skb(frame, off, len) {
                Ok(skb) => skb,
                Err(frame) => {
                    ctx.free_frame(frame);
                    headless += 1;
                    continue;
                }
            };
            skb.prefetch_data();
            let head = skb.head_mut();
            head.dev = self.dev;
            head.queue = self.queue;
            taken += 1;
            bytes += len;
            if let Err(skb) = batch.push(skb) {
                // Can't be: no more than there was room for was read.
                ctx.free(skb, DropReason::NoHead);
            }
        }
        self.ring.release(n);
        if n > 0 {
            // What is dropped for want of a head was received all the same.
            self.stats.packets.add(taken as u64 + headless);
            self.stats.bytes.add(bytes as u64);
        }
        if headless > 0 {
            ctx.count_drops(self.dev, DropReason::NoHead, headless);
        }
        self.refill_if_worth(ctx, budget);
        taken
    }

    fn rx_frames(&mut self, ctx: &mut SoftnetData, frames: &mut FrameBatch, budget: usize) -> Option<usize> {
        let want = budget.min(frames.room()) as u32;
        if self.unfinished.is_some() || self.skipping {
            return None;
        }
        let mut n = self.ring.available(want);
        if n == 0 && want > 0 && self.busy_poll() {
            n = self.ring.available(want);
        }
        if n > 0 && self.ring.read(0).options & libc::XDP_PKT_CONTD != 0 {
            return None;
        }
        (frames.dev, frames.queue, frames.csum) = (self.dev, self.queue, Csum::None);
        let (mut read, mut taken, mut bytes) = (0, 0, 0);
        while read < n {
            let desc = self.ring.read(read);
            if desc.options & libc::XDP_PKT_CONTD != 0 {
                break;
            }
            read += 1;
            let Some((frame, off, len)) = self.take(ctx, desc) else { continue };
            match frames.push(frame, off, len) {
                Ok(()) => (taken, bytes) = (taken + 1, bytes + len),
                // Can't be: it is within a frame of the region that this queue's are of.
                Err(frame) => {
                    ctx.free_frame(frame);
                    ctx.count_drops(self.dev, DropReason::NoHead, 1);
                }
            }
        }
        self.ring.release(read);
        if taken > 0 {
            self.stats.packets.add(taken as u64);
            self.stats.bytes.add(bytes as u64);
        }
        self.refill_if_worth(ctx, budget);
        Some(taken)
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.xsk.clone()
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.posted.len()
    }

    fn held_frames(&self) -> Option<HeldFrames> {
        let is_amid = self.unfinished.is_some() || self.skipping;
        Some(HeldFrames { frames: self.posted.numbers(), is_amid })
    }

    fn take_over(&mut self, frames: Vec<Frame>, is_amid: bool) -> Vec<Frame> {
        self.ring.take_over();
        self.fill.take_over();
        (self.skipping, self.elsewhere) = (is_amid, false);
        let region = self.xsk.umem().region().id();
        let (ours, others): (Vec<_>, Vec<_>) = frames.into_iter().partition(|frame| frame.region() == region);
        ours.into_iter().for_each(|frame| _ = self.posted.insert(frame.into_raw()));
        self.xsk.set_starved(self.posted.len() == 0);
        others
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        if self.elsewhere {
            return;
        }
        self.xsk.irq.close(self.xsk.pollable());
        // Packets that will not be read.
        let unread = self.ring.available(self.fill.size());
        self.stats.packets.add(u64::from(unread));
        ctx.count_drops(self.dev, DropReason::Shutdown, u64::from(unread));
        let XdpRx { fill, memory, posted, xsk, unfinished, .. } = *self;
        unfinished.into_iter().for_each(|skb| ctx.free_skb(skb));
        drop(fill);
        let stuck = memory.detach().is_err();
        xsk.half_closed(ctx, posted, stuck);
    }
}
