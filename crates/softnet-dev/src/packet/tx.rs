//! The transmitting half of a queue: a batch is sent by one system call (sendmmsg(2)).
//!
//! Called by the holder of the TX queue's lock only. The kernel copies a packet before the call
//! returns, so nothing is held, and one that the socket had no room for is still here to be sent
//! again. One that the kernel drops behind the socket, by a discipline or a rule of the interface's
//! own, is tried once more and then dropped here: those behind it do not wait for it. (A transmit
//! ring saves that copy, but takes one into its slots instead, which packets of several frames and
//! of many segments would have to fit.)

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{BATCH, Batch, DropReason};

use super::messages::{Messages, Outlet, Stop};
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
        let to =
            Outlet { socket: &self.queue.socket, control: &self.control, dev: self.dev, stats: &self.stats };
        let stopped = self.messages.send_first(ctx, &to, batch, before).err();
        (self.down, self.blocked) = (stopped == Some(Stop::Down), stopped == Some(Stop::Full));
        if self.down {
            ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
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
