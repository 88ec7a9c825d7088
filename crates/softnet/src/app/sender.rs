//! Local senders: threads that put packets of their own on a device.
//!
//! A sender keeps to its TX queue (the kernel's `sk_tx_queue_mapping`), so that its packets stay in order, and chooses
//! anew only as [`TxSticky`] says. Where a forwarded packet would be dropped because too many are pending for the
//! queue's owner, a local sender is *held back*: it waits, or is told that it would have to.
//!
//! [`RawSender`] is one for any thread; a [`NapiPoller`](crate::app::NapiPoller) has one inside.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{Origin, Sent, Verdict};
use softnet_core::skb::{Batch, DropReason};
use softnet_core::steer::{TxChoice, TxSticky, skb_get_hash};

use crate::control::ControlError;
use crate::device::{OpenParts, current_cpu, find_netdev};
use crate::stack::{Handle, StackInner};
use crate::tx::{NetdevQueue, xmit_waiting};

/// Too many packets are pending for the thread that owns the TX queue; the caller still has its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many packets are pending before the TX queue: try again")]
pub struct WouldBlock;

/// A time, in ns of the clock, that never is.
pub(crate) const FOR_EVER: u64 = u64::MAX;

/// What becomes of packets while too many are pending for the thread that owns the TX queue.
#[derive(Clone, Copy)]
enum Full {
    /// They stay with their sender, which waits until this time at the latest.
    HoldBack(Option<u64>),
    /// They are taken all the same: they cannot be given back.
    Exceed,
}

/// What a sender remembers from packet to packet.
#[derive(Default)]
pub(crate) struct LocalSender {
    sticky: TxSticky,
    /// Device and TX queue that it was held back before last.
    full: (u16, usize),
}

impl LocalSender {
    /// By which TX queue of device `dev` a packet leaves that is made at `now`, and whose flow hash is `hash`. `None` while the
    /// device is not open.
    pub(crate) fn choose(
        &mut self,
        shared: &StackInner,
        now: u64,
        dev: u16,
        hash: impl FnOnce() -> u32,
    ) -> Option<TxChoice> {
        let live = shared.netdevs.get(usize::from(dev))?.device.live.load();
        let live = live.as_deref().filter(|live| !live.tx.queues.is_empty())?;
        Some(TxChoice::Queue(self.pick(shared, now, live, None, hash)))
    }

    fn pick(
        &mut self,
        shared: &StackInner,
        now: u64,
        live: &OpenParts,
        rx_queue: Option<u16>,
        hash: impl FnOnce() -> u32,
    ) -> u16 {
        let choose = || live.tx.pick(rx_queue, current_cpu, hash);
        let queues = live.tx.real_num_tx_queues();
        // Completions do not say whose packets left, so packets of this sender may always be on their way.
        self.sticky.pick(now, false, shared.txq_reselection, queues, choose)
    }

    /// Waits for room on the pending list of TX queue `choice` of device `dev`, but no longer than until `wait`.
    pub(crate) fn wait_for_room(
        &mut self,
        shared: &StackInner,
        ctx: &mut SoftnetData,
        (dev, choice): (u16, TxChoice),
        wait: Option<u64>,
    ) -> Result<(), WouldBlock> {
        let live = shared.netdevs.get(usize::from(dev)).and_then(|dev| dev.device.live.load_full());
        let number = usize::from(choice.number());
        match live.as_ref().and_then(|live| live.tx.queues.get(number)) {
            Some(queue) => self.room_in(shared, ctx, (dev, number), queue, wait),
            None => Ok(()),
        }
    }

    /// Waits until `queue`, which is TX queue `number` of device `dev`, is not full, but no longer
    /// than until `wait`.
    fn room_in(
        &mut self,
        shared: &StackInner,
        ctx: &mut SoftnetData,
        (dev, number): (u16, usize),
        queue: &NetdevQueue,
        wait: Option<u64>,
    ) -> Result<(), WouldBlock> {
        let attempt = |_| if queue.is_full() { Sent::Full } else { Sent::Deferred };
        let mut sent = attempt(0);
        if let (Sent::Full, Some(until)) = (sent, wait) {
            shared.cache_share.before_wait(ctx);
            sent = queue.wake().held_back.wait(&shared.clock, until, attempt);
        }
        if sent == Sent::Full {
            self.full = (dev, number);
            return Err(WouldBlock);
        }
        Ok(())
    }

    /// Sends `batch` at `now` out of device `dev`, whose packets in the other direction come by `rx_queue`. While it is held back it
    /// blocks, but no longer than until `wait`, in ns of the stack's clock. On success the batch is empty; what could not be
    /// sent was freed and counted.
    pub(crate) fn send(
        &mut self,
        shared: &StackInner,
        ctx: &mut SoftnetData,
        now: u64,
        (dev, rx_queue): (u16, Option<u16>),
        batch: &mut Batch,
        wait: Option<u64>,
    ) -> Result<Verdict, WouldBlock> {
        let n = batch.len() as u64;
        self.send_uncounted(shared, ctx, now, (dev, rx_queue), batch, (Full::HoldBack(wait), n))
    }

    /// Sends packets that cannot be given back and were counted: those that the slow path made, or
    /// hook slots let pass. They are taken even if too many are pending by now; the caller has
    /// [seen room](Self::wait_for_room) before it made them, so that no sender exceeds the bound by
    /// more than one datagram or batch.
    pub(crate) fn send_counted(
        &mut self,
        shared: &StackInner,
        ctx: &mut SoftnetData,
        dev: u16,
        batch: &mut Batch,
    ) {
        let now = shared.clock.now();
        let sent = self.send_uncounted(shared, ctx, now, (dev, None), batch, (Full::Exceed, 0));
        debug_assert!(sent.is_ok(), "it is never held back");
    }

    /// As [`send`](Self::send), and counts `n` packets as originated.
    #[inline(always)]
    fn send_uncounted(
        &mut self,
        shared: &StackInner,
        ctx: &mut SoftnetData,
        now: u64,
        (dev, rx_queue): (u16, Option<u16>),
        batch: &mut Batch,
        (mut full, n): (Full, u64),
    ) -> Result<Verdict, WouldBlock> {
        let empty = batch.is_empty();
        let netdev = shared.netdevs.get(usize::from(dev));
        let live =
            netdev.and_then(|dev| dev.device.live.load_full()).filter(|live| !live.tx.queues.is_empty());
        let (Some(netdev), Some(live), Some(first)) = (netdev, live, batch.as_mut_slice().first_mut()) else {
            ctx.originated(n);
            ctx.free_batch_at(batch, dev, DropReason::DevReady);
            return Ok(if empty { Verdict::Success } else { Verdict::Drop });
        };
        let number = usize::from(self.pick(shared, now, &live, rx_queue, || skb_get_hash(first)));
        let queue = &live.tx.queues[number];
        let mut uncounted = n;
        if netdev.alters_tx() {
            // Held back before the filter has had the packets, for it would get them once more, or
            // they a second tag. Those that pass are taken even if the queue is full by then.
            if let Full::HoldBack(wait) = full {
                self.room_in(shared, ctx, (dev, number), queue, wait)?;
            }
            ctx.originated(std::mem::take(&mut uncounted));
            netdev.to_link(ctx, now, number, batch);
            full = Full::Exceed;
        }
        // Counted first, whatever follows: packets beyond the bound do not count towards it.
        let mut sent = queue.xmit(ctx, now, Origin::Local, batch);
        if sent == Sent::Full {
            match full {
                Full::HoldBack(None) => {}
                Full::HoldBack(Some(until)) => {
                    shared.cache_share.before_wait(ctx);
                    sent = xmit_waiting(queue, ctx, &shared.clock, until, batch);
                }
                Full::Exceed => sent = queue.xmit(ctx, now, Origin::Held, batch),
            }
        }
        let verdict = match sent {
            Sent::Full => {
                self.full = (dev, number);
                return Err(WouldBlock);
            }
            Sent::Owned { verdict, .. } => verdict,
            Sent::Deferred => Verdict::Success,
        };
        ctx.originated(uncounted);
        Ok(verdict)
    }
}

impl LocalSender {
    /// After it was held back: the socket in slot `index` is to be told when it may send.
    pub(crate) fn wake_when_room(&self, shared: &StackInner, index: u32) {
        let (dev, number) = self.full;
        let live = shared.netdevs.get(usize::from(dev)).and_then(|dev| dev.device.live.load_full());
        if let Some(queue) = live.as_ref().and_then(|live| live.tx.queues.get(number)) {
            queue.wake().held_back.wait_for_room(index, || queue.is_full());
        } else {
            // The device was closed, or has fewer queues now: the next attempt finds that out.
            shared.sockets.notifier.wake(index);
        }
    }
}

/// A sender of raw frames on one device, for one thread.
pub struct RawSender {
    shared: Arc<StackInner>,
    ctx: SoftnetData,
    dev: u16,
    sender: LocalSender,
}

impl RawSender {
    /// On the netdev `name` of a stack.
    pub fn new(on: &Handle, name: &str) -> Result<Self, ControlError> {
        let shared = on.shared();
        let (dev, ctx) = (find_netdev(&shared.netdevs, name)?.index, shared.context());
        Ok(RawSender { shared: shared.clone(), ctx, dev, sender: LocalSender::default() })
    }

    /// Packet memory of this sender, to make packets with: frames from the Ethernet header on.
    pub fn ctx(&mut self) -> &mut SoftnetData {
        &mut self.ctx
    }

    /// Sends `batch` and leaves it empty; blocks while the sender is held back. Says the worst that became of its packets,
    /// as far as that is known when it returns.
    pub fn send(&mut self, batch: &mut Batch) -> Verdict {
        self.send_or(batch, true).unwrap_or(Verdict::Drop)
    }

    /// The same without blocking: the batch stays as it is if it would have to.
    pub fn try_send(&mut self, batch: &mut Batch) -> Result<Verdict, WouldBlock> {
        self.send_or(batch, false)
    }

    fn send_or(&mut self, batch: &mut Batch, wait: bool) -> Result<Verdict, WouldBlock> {
        let wait = wait.then_some(FOR_EVER);
        let now = self.shared.clock.now();
        let sent = self.sender.send(&self.shared, &mut self.ctx, now, (self.dev, None), batch, wait);
        self.shared.cache_share.after_call(&mut self.ctx);
        sent
    }
}

impl Drop for RawSender {
    /// Gives back what it has of packet memory.
    fn drop(&mut self) {
        self.ctx.drain();
    }
}
