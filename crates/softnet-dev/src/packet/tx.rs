//! The transmitting half of a queue: a batch is sent by one system call (sendmmsg(2)).
//!
//! Called by the holder of the TX queue's lock only. The kernel copies a packet before the call
//! returns, so nothing is held, and one that the socket had no room for is still here to be sent
//! again. One that the kernel drops behind the socket, by a discipline or a rule of the interface's
//! own, is tried once more and then dropped here: those behind it do not wait for it. (A transmit
//! ring saves that copy, but takes one into its slots instead, which packets of several frames and
//! of many segments would have to fit.)

use std::io;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{BATCH, Batch, DropReason};

use super::messages::{Messages, Refusal, refusal};
use super::rx::Queue;
use crate::device::{QueueStats, Reaped, TxQueue};
use crate::vnet;
use crate::xdp::control::Control;

pub(super) struct PacketTx {
    queue: Arc<Queue>,
    control: Arc<Control>,
    dev: u16,
    messages: Messages,
    stats: Arc<QueueStats>,
    /// The interface is down or gone: packets are dropped until one is taken again.
    down: bool,
    /// The socket had no room for a packet: it is tried again after a while.
    blocked: bool,
}

impl PacketTx {
    pub(super) fn new(queue: Arc<Queue>, control: Arc<Control>, dev: u16) -> Self {
        PacketTx {
            queue,
            control,
            dev,
            messages: Messages::new(),
            stats: Arc::default(),
            down: false,
            blocked: false,
        }
    }

    /// What becomes of the first packet of a batch, which the kernel refused with `error`: dropped
    /// for a reason, or tried again. `retried`: the kernel has dropped it before, which is noted.
    fn refused(&mut self, error: &io::Error, retried: &mut bool) -> Option<DropReason> {
        match refusal(error, || self.control.link()) {
            Refusal::Again => {}
            // At once: a rule that drops one flow must not keep the others waiting.
            Refusal::Dropped if std::mem::replace(retried, true) => return Some(DropReason::KernelEgress),
            Refusal::Dropped => {}
            Refusal::Down => self.down = true,
            Refusal::Full => self.blocked = true,
            Refusal::Drop(reason) => return Some(reason),
        }
        None
    }
}

impl TxQueue for PacketTx {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        // Once: the next look is after a pause.
        let room = if std::mem::take(&mut self.blocked) { 0 } else { BATCH };
        Reaped { freed: 0, held: 0, room }
    }

    /// Whether the kernel knows segments of UDP here is not to be asked for.
    fn offloads(&self) -> TxOffloads {
        vnet::offloads(false)
    }

    /// What it takes is on the wire at once.
    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let before = batch.len();
        (self.down, self.blocked) = (false, false);
        let mut retried = false;
        while !batch.is_empty() && !self.blocked {
            if self.down {
                ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
                break;
            }
            self.stats.kicks.add(1);
            let (sent, error) = self.messages.send(&self.queue.socket, batch.as_slice());
            let mut bytes = 0;
            for skb in batch.drain().take(sent) {
                bytes += skb.len() as u64;
                ctx.free_skb(skb);
            }
            self.stats.packets.add(sent as u64);
            self.stats.bytes.add(bytes);
            retried &= sent == 0;
            if let Some(reason) = error.and_then(|error| self.refused(&error, &mut retried)) {
                retried = false;
                batch.drain().take(1).for_each(|skb| ctx.free_at(skb, self.dev, reason));
            }
        }
        before - batch.len()
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        false
    }

    fn down(&self) -> bool {
        self.down
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        0
    }

    fn close(self: Box<Self>, _: &mut SoftnetData) {}
}
