//! The transmitting half of a queue: transmit ring and completion ring.
//!
//! Called by the holder of the TX queue's lock only. A packet's head is freed when its descriptor is written; its
//! frame is in `sent` until the kernel has completed it. There are never more such frames than the rings
//! have slots, so neither ring can overflow, and the kernel never waits for room to complete.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use softnet_core::SoftnetData;
use softnet_core::gso::{self, TxOffloads};
use softnet_core::skb::{Batch, DropReason, FRAME_SIZE, Frame, Skb, Store};

use super::aggregates::Aggregates;
use super::frames::FrameSet;
use super::ring::{Consumer, Producer, RingMemory};
use super::socket::Xsk;
use crate::device::{QueueStats, Reaped, TxQueue};

/// An Ethernet header: the least the kernel takes for a packet.
const ETH_HLEN: usize = 14;

/// Frames of a packet at the most, where packets have several: those that the kernel attaches to an
/// skb (`MAX_SKB_FRAGS`).
const MAX_FRAGS: usize = 17;

/// System calls in a row that may try to send what is on the ring: enough for a full one at 32 packets a call.
const MAX_PUSHES: u32 = 128;

/// How long a queue that is closed waits for the packets that it has accepted.
const DRAIN_TRIES: u32 = 50;
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct XdpTx {
    ring: Producer<libc::xdp_desc>,
    done: Consumer<u64>,
    sent: FrameSet,
    xsk: Arc<Xsk>,
    /// Index of the device.
    dev: u16,
    stats: Arc<QueueStats>,
    /// The kernel has not yet taken all that was submitted.
    pending: bool,
    /// The interface is down or gone: packets are dropped, as by any driver, until a call finds it up again.
    down: bool,
    /// Another process has the queue still.
    elsewhere: bool,
    /// Where segments are not cut before they leave.
    aggregates: Option<Aggregates>,
}

impl XdpTx {
    pub(super) fn new(
        xsk: Arc<Xsk>,
        dev: u16,
        (tx, done): (RingMemory, RingMemory),
        aggregates: Option<Aggregates>,
    ) -> Self {
        XdpTx {
            ring: Producer::new(tx),
            done: Consumer::new(Arc::new(done)),
            sent: FrameSet::new(xsk.umem().region().frame_count()),
            xsk,
            dev,
            stats: Arc::default(),
            pending: false,
            down: false,
            elsewhere: false,
            aggregates,
        }
    }

    /// The same of a queue that another process has until it is [taken over](TxQueue::take_over).
    pub(super) fn elsewhere(self) -> Self {
        XdpTx { elsewhere: true, ..self }
    }

    /// Has the kernel send what is on the ring.
    fn push(&mut self) {
        let Some(socket) = self.xsk.tx_fd() else { return };
        let mut consumed = self.ring.consumed();
        // Each call sends or drops at least one packet, or is the last. Bounded, for others wait for the queue's lock; the
        // rest is for the next call.
        for _ in 0..MAX_PUSHES {
            self.stats.kicks.add(1);
            let result = rustix::net::send(socket, &[], SendFlags::DONTWAIT);
            self.down = matches!(result, Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV));
            match result {
                // While the kernel's instance is polled by us, the call only polls it, and does not even that if
                // another thread does: then another call must follow.
                Ok(_) => {
                    self.pending = self.xsk.irq.is_polled() && self.ring.consumed() != self.ring.submitted()
                }
                // One packet was dropped by the interface (its queue was full): completed, not sent.
                Err(Errno::BUSY) => {
                    self.stats.ring_drops.add(1);
                    continue;
                }
                // The budget of a call is used up. Or a limit was met that time alone mends.
                Err(Errno::AGAIN) => {
                    let before = std::mem::replace(&mut consumed, self.ring.consumed());
                    if before != consumed {
                        continue;
                    }
                }
                Err(_) => {}
            }
            break;
        }
    }
}

impl XdpTx {
    fn room(&self) -> usize {
        (self.ring.size() as usize).saturating_sub(self.sent.len())
    }

    /// How many packets of `batch` there is room for.
    fn fitting(&self, batch: &Batch) -> usize {
        let room = self.room();
        if !self.xsk.has_frags() {
            return batch.len().min(room);
        }
        let mut frames = 0;
        let fits = |skb: &&Skb| {
            frames += skb.frame_count().min(MAX_FRAGS);
            frames <= room
        };
        batch.as_slice().iter().take_while(fits).count()
    }

    /// Writes the descriptor of a frame, with offset and length of its bytes. The kernel has it from then on.
    #[inline(always)]
    fn stage(&mut self, (frame, off, len): (Frame, usize, usize), options: u32) {
        let index = frame.into_raw();
        self.sent.insert(index);
        let addr = u64::from(index) * FRAME_SIZE as u64 + off as u64;
        self.ring.stage(libc::xdp_desc { addr, len: len as u32, options });
    }

    /// Writes the descriptors of a packet of several frames. Hands it back if it has too many.
    #[cold]
    fn stage_frags(&mut self, ctx: &mut SoftnetData, skb: Skb) -> Result<usize, Skb> {
        if !self.xsk.has_frags() || skb.frame_count() > MAX_FRAGS {
            return Err(skb);
        }
        let bytes = skb.len();
        let mut left = bytes;
        let stage = |store: &mut Store, frame: Frame, off: usize, len: usize| {
            left -= len;
            // A descriptor of nothing is refused.
            if len == 0 {
                return store.free_frame(frame);
            }
            let options = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            self.stage((frame, off, len), options);
        };
        ctx.take_all_frames(skb, stage);
        Ok(bytes)
    }

    /// Puts the first packets of `batch`, at most so many, on the ring.
    #[inline]
    fn burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, most: usize) -> usize {
        if self.fitting(batch) < batch.len().min(most) {
            self.reap(ctx);
        }
        let region = self.xsk.umem().region().id();
        let n = self.fitting(batch).min(most);
        let (mut packets, mut bytes) = (0, 0);
        for skb in batch.drain().take(n) {
            if skb.len() < ETH_HLEN {
                ctx.free_at(skb, self.dev, DropReason::PktTooSmall);
                continue;
            }
            if skb.region() != region {
                // Not in the memory that this socket knows.
                ctx.free_at(skb, self.dev, DropReason::NoFrame);
                continue;
            }
            let (frame, off, len) = match ctx.take_frame(skb) {
                Ok(taken) => taken,
                Err(skb) => {
                    match self.stage_frags(ctx, skb) {
                        Ok(len) => {
                            packets += 1;
                            bytes += len as u64;
                        }
                        Err(skb) => ctx.free_at(skb, self.dev, DropReason::Nonlinear),
                    }
                    continue;
                }
            };
            self.stage((frame, off, len), 0);
            packets += 1;
            bytes += len as u64;
        }
        self.stats.packets.add(packets);
        self.stats.bytes.add(bytes);
        n
    }

    /// The same of a batch with aggregates, or with checksums that are to be completed.
    #[cold]
    fn burst_unfinished(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let before = batch.len();
        while !batch.is_empty() && !self.down {
            let n = Aggregates::leading(batch.as_slice());
            if n == 0 {
                let single = |skb: &&mut Skb| !gso::is_aggregate(skb);
                let packets = batch.as_mut_slice().iter_mut().take_while(single);
                let n = packets.map(gso::complete).count();
                if self.burst(ctx, batch, n) < n {
                    break;
                }
                continue;
            }
            // What is on the ring leaves first.
            self.kick(ctx);
            if self.ring.consumed() != self.ring.submitted() {
                break;
            }
            let Some(aggregates) = &mut self.aggregates else { break };
            self.down |= !aggregates.send(ctx, batch, n, &self.stats);
            if aggregates.blocked {
                break;
            }
        }
        before - batch.len()
    }
}

impl TxQueue for XdpTx {
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped {
        let n = self.done.available(self.ring.size());
        let mut freed = 0;
        for i in 0..n {
            let index = self.done.read(i) / FRAME_SIZE as u64;
            if self.sent.remove(index) {
                // SAFETY: the set held the number, so it is that of a frame of this region that
                // `tx_burst` gave up with `into_raw`; and it holds it no more, so this is the only
                // way back.
                ctx.free_frame(unsafe { Frame::from_raw(self.xsk.umem().region(), index as u32) });
                freed += 1;
            } else {
                self.stats.ring_drops.add(1);
            }
        }
        self.done.release(n);
        self.pending &= self.sent.len() > 0;
        if self.pending && !self.down {
            self.push();
        }
        // Once: the next look is after a pause.
        let blocked = self.aggregates.as_mut().is_some_and(|to| std::mem::take(&mut to.blocked));
        let room = if blocked { 0 } else { self.room() };
        Reaped { freed, held: self.sent.len(), room }
    }

    fn offloads(&self) -> TxOffloads {
        self.aggregates.as_ref().map_or_else(TxOffloads::default, |_| Aggregates::offloads())
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        if self.down {
            let n = batch.len();
            ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
            return n;
        }
        match self.aggregates.is_some() && gso::any_unfinished(batch) {
            true => self.burst_unfinished(ctx, batch),
            false => self.burst(ctx, batch, usize::MAX),
        }
    }

    fn kick(&mut self, _ctx: &mut SoftnetData) -> bool {
        self.pending |= self.ring.submit() > 0;
        if self.down || (self.pending && self.ring.needs_wakeup()) {
            self.push();
        }
        self.stalled()
    }

    fn stalled(&self) -> bool {
        // While the interface is down no thread needs to stay awake for the rest.
        self.pending && !self.down
    }

    fn down(&self) -> bool {
        self.down
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.sent.len()
    }

    fn held_frames(&self) -> Option<Vec<u32>> {
        Some(self.sent.numbers())
    }

    fn take_over(&mut self, frames: Vec<Frame>) -> Vec<Frame> {
        self.ring.take_over();
        self.done.take_over();
        let region = self.xsk.umem().region().id();
        let (ours, others): (Vec<_>, Vec<_>) = frames.into_iter().partition(|frame| frame.region() == region);
        ours.into_iter().for_each(|frame| _ = self.sent.insert(frame.into_raw()));
        (self.pending, self.elsewhere) = (self.ring.consumed() != self.ring.submitted(), false);
        others
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        if self.elsewhere {
            return;
        }
        self.kick(ctx);
        for _ in 0..DRAIN_TRIES {
            self.reap(ctx);
            if self.sent.len() == 0 || self.down {
                break;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
        self.stats.ring_drops.add(self.xsk.refused());
        let XdpTx { ring, done, sent, xsk, .. } = *self;
        drop((ring, done));
        xsk.half_closed(ctx, sent, false);
    }
}
