//! The hand-over of packets to sockets that were found, by threads that received them.
//!
//! Called by the input of each protocol. Invariant: what is handed over is in an inbox, or freed with its reason.

use super::memory::Room;
use super::slot::{Refusal, Slot, split_off};
use super::table::{Hit, Sockets};
use crate::SoftnetData;
use crate::skb::{Batch, DropReason};

/// The origin of a batch of packets for sockets, and the outcome.
pub struct Arrivals<'a> {
    /// The sockets.
    pub sockets: &'a Sockets,
    /// Id of the NAPI instance that they came by; 0: sent on this stack.
    pub napi_id: u32,
    /// The room in packet memory.
    pub room: Room,
    /// Frames of the packets that the sockets accepted.
    pub queued: usize,
    /// Slots of the sockets that were empty, or that notify of every arrival: the caller notifies
    /// their waiters.
    pub ready: &'a mut Vec<u32>,
}

impl Arrivals<'_> {
    /// Hands the packets of `run` over to a socket, and leaves it empty.
    #[inline]
    pub fn hand_over(&mut self, ctx: &mut SoftnetData, hit: Hit, run: &mut Batch) {
        if run.is_empty() {
            return;
        }
        let Some(slot) = self.sockets.slot(hit.slot) else {
            return ctx.free_batch(run, DropReason::SocketClose);
        };
        if !self.room.has(self.queued + run.frames()) {
            self.squeeze(ctx, slot, run);
            if run.is_empty() {
                return;
            }
        }
        let pushed = slot.push(run, hit.generation, self.napi_id);
        ctx.stats().sk_queued.add(pushed.queued as u64);
        self.queued += pushed.frames;
        if pushed.first || pushed.again && !self.ready.contains(&hit.slot) {
            self.ready.push(hit.slot);
        }
        match pushed.refused {
            None => {}
            Some(Refusal::Full) => ctx.free_batch(run, DropReason::SocketRcvbuff),
            Some(Refusal::Closed) => ctx.free_batch(run, DropReason::SocketClose),
        }
    }

    /// Memory is short: keeps in `run` the first datagrams for which there is room, in the shared
    /// part or below the socket's minimum.
    #[cold]
    fn squeeze(&self, ctx: &mut SoftnetData, slot: &Slot, run: &mut Batch) {
        let queued = slot.queued();
        if queued >= slot.limit() {
            // The socket itself refuses them.
            return;
        }
        let mut room = self.room.allows(self.queued, queued as usize);
        let fits = run.as_slice().iter().take_while(|skb| {
            let fits = skb.frame_count() <= room;
            room = room.saturating_sub(skb.frame_count());
            fits
        });
        let fits = fits.count();
        if fits < run.len() {
            let mut rest = split_off(run, fits);
            slot.dropped(rest.len() as u64);
            ctx.free_batch(&mut rest, DropReason::ProtoMem);
        }
    }
}
