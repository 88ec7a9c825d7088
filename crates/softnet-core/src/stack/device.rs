//! What the stack asks of a device: a TX queue to put packets on. (RX queues are polled by the runtime, which has the
//! doorbells to wait for.)
//!
//! Implemented by drivers; called by the owner of the TX queue alone.

use std::sync::Arc;

use crate::SoftnetData;
use crate::gso::TxOffloads;
use crate::skb::{Batch, Frame};
use crate::softnet_data::Counter;

/// Counters of one queue, written by its owner, read by any thread.
#[derive(Debug, Default)]
pub struct QueueStats {
    /// Packets through the queue.
    pub packets: Counter,
    /// Their bytes, from the Ethernet header on.
    pub bytes: Counter,
    /// System calls (or the like) made to get the device going: fill or transmit wake-ups.
    pub kicks: Counter,
    /// Packets the device lost because no frame was posted (RX), or descriptors it refused as invalid.
    pub ring_drops: Counter,
}

/// A TX ring after it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Frames that were taken back.
    pub freed: usize,
    /// Frames that it holds still: queued, or sent and not yet taken back.
    pub held: usize,
    /// Descriptors that are free: as many packets a burst takes now.
    pub room: usize,
}

/// One TX queue. Called only by the holder of its lock.
pub trait TxQueue: Send {
    /// Takes back frames of packets that were sent.
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped;
    /// What the device does by itself; packets that need more are cut, or have their checksum
    /// completed, before they are put on the ring. Does not change.
    fn offloads(&self) -> TxOffloads {
        TxOffloads::default()
    }
    /// Puts packets of `batch` on the ring, first to last, each in one frame, and frees their heads; those for which the
    /// ring has no room stay in `batch`. Returns how many it took; those among them that it cannot send are freed with
    /// their reason. Nothing is on the wire before [`kick`](Self::kick).
    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize;
    /// Tells the device that there is something to send: once per batch. Returns whether it [stalled](Self::stalled).
    fn kick(&mut self, ctx: &mut SoftnetData) -> bool;
    /// Whether the device did not take all that it was told of, and must be told again: [reaping](Self::reap) does.
    fn stalled(&self) -> bool {
        false
    }
    /// Whether the interface was found down: packets are dropped, what the queue holds may stay there, and
    /// [telling the device](Self::kick) is how it is found up again. A sender must not wait for completions then.
    fn down(&self) -> bool {
        false
    }
    /// Its counters.
    fn stats(&self) -> Arc<QueueStats>;
    /// Frames it holds now (queued, or sent and not yet reaped).
    fn held(&self) -> usize;
    /// The numbers of these frames, for another process that is to go on with the queue: it has
    /// told the device of all of them. `None`: it can't be handed over.
    fn held_frames(&self) -> Option<Vec<u32>> {
        None
    }
    /// Goes on where another process stopped, which held `frames`: before anything else is done
    /// with a queue that was opened for that. Returns those that it has no use for.
    fn take_over(&mut self, frames: Vec<Frame>) -> Vec<Frame> {
        frames
    }
    /// Gives every frame back and closes the queue.
    fn close(self: Box<Self>, ctx: &mut SoftnetData);
}
