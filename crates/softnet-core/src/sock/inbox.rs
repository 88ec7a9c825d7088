//! The receiving side of a socket: takes the packets that pollers pushed to its slot, and hands
//! them out one by one, each as a [`Message`] of the socket's protocol.
//!
//! One thread at a time has it (the runtime keeps it behind a lock of the socket). Pollers only
//! push to the slot; the receiver detaches all packets at once, and again when it has handed out
//! the last one. Packets that were meant for the slot's previous socket, or that arrived from
//! another peer before the socket was connected, are freed.
//!
//! Invariant: the slot counts as queued the frames that the inbox holds, and part of those handed
//! out; and while the inbox holds any, the slot is readable.

use std::ops::Deref;
use std::sync::Arc;

use super::key::{Addr, Flow};
use super::slot::Slot;
use super::table::Sockets;
use crate::SoftnetData;
use crate::skb::{BATCH, DropReason, Skb, SkbInbox, SkbList, SkbReceiver};
use crate::sync::{Mutant, mutated};

/// A slot, and the table that it is in.
#[derive(Clone)]
pub struct SlotRef {
    sockets: Arc<Sockets>,
    index: u32,
}

impl SlotRef {
    /// Slot `index`, if there is one.
    pub(super) fn new(sockets: Arc<Sockets>, index: u32) -> Option<Self> {
        sockets.slot(index)?;
        Some(SlotRef { sockets, index })
    }

    /// Its index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The slot.
    #[inline(always)]
    pub fn slot(&self) -> &Slot {
        self.sockets.slot(self.index).unwrap_or_else(|| unreachable!("it was there, and slots do not go"))
    }
}

impl Deref for SlotRef {
    type Target = SkbInbox;

    #[inline(always)]
    fn deref(&self) -> &SkbInbox {
        &self.slot().inbox
    }
}

/// A packet as a socket hands it out, read by the socket's protocol.
pub trait Message: Sized {
    /// IANA's number of the protocol.
    const PROTOCOL: u8;
    /// Reads the packet, which was pushed to a socket of the protocol; `Err` if it can't be read.
    fn read(skb: Skb) -> Result<Self, Skb>;
    /// Its ends.
    fn flow(&self) -> &Flow;
    /// The packet.
    fn into_skb(self) -> Skb;
}

/// The receiving side of a socket.
pub struct Inbox<M> {
    receiver: SkbReceiver<SlotRef>,
    slot: SlotRef,
    queue: SkbList,
    /// A message that was peeked at, and is still to be handed out.
    front: Option<M>,
    /// What the slot was last told: whether the inbox holds any packets.
    holds: bool,
    /// Frames of packets that were handed out but which the slot still counts: up to a quarter of
    /// the limit.
    taken: u32,
    quarter: u32,
    /// Frames of packets that were handed out and are not yet reported by [`gone`](Self::gone).
    gone: usize,
    /// The slot's generations: when this socket took it, and now.
    generations: (u32, u32),
    peer: Option<(Addr, u16)>,
    /// Flow hashes of messages that were handed out; `None`: not to be kept.
    hashes: Option<Vec<u32>>,
}

/// Flow hashes that an inbox keeps at the most.
const HASHES: usize = BATCH;

impl<M: Message> Inbox<M> {
    /// The inbox of a slot without a receiver.
    pub(super) fn open(slot: SlotRef) -> Option<Self> {
        Some(Inbox {
            receiver: SkbReceiver::open(slot.clone())?,
            slot,
            queue: SkbList::new(),
            front: None,
            holds: false,
            taken: 0,
            quarter: 0,
            gone: 0,
            generations: (0, 0),
            peer: None,
            hashes: None,
        })
    }

    pub(super) fn opened(&mut self, generation: u32) {
        self.generations = (generation, generation);
    }

    /// Gives the slot up before any look-up could find it.
    pub(super) fn abandon(self) {
        self.receiver.close(&mut SkbList::new());
    }

    /// Its slot.
    pub fn slot(&self) -> &SlotRef {
        &self.slot
    }

    /// The socket was connected, and the slot is of `generation` now: packets that did not come
    /// from `peer` are no longer for it.
    pub fn connected(&mut self, ctx: &mut SoftnetData, peer: (Addr, u16), generation: u32) {
        self.peer = Some(peer);
        self.generations.1 = generation;
        if let Some(front) = self.front.take_if(|front| (front.flow().remote, front.flow().rport) != peer) {
            ctx.free_skb(front.into_skb());
        }
        self.account();
    }

    /// The socket was disconnected, and the slot is of `generation` now.
    pub fn disconnected(&mut self, generation: u32) {
        self.peer = None;
        self.generations.1 = generation;
    }

    /// From now on it keeps the flow hashes of the messages that it hands out, for
    /// [`hashes`](Self::hashes).
    pub fn keep_hashes(&mut self) {
        self.hashes.get_or_insert_with(|| Vec::with_capacity(HASHES));
    }

    /// Flow hashes of messages that were handed out since the last call, so many at the most as a
    /// batch holds. Of messages of one flow in a row there is one.
    #[inline]
    pub fn hashes(&mut self) -> impl Iterator<Item = u32> {
        self.hashes.as_mut().map(|hashes| hashes.drain(..)).into_iter().flatten()
    }

    /// Whether it has a peer.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// Peeks at the next message.
    pub fn peek(&mut self, ctx: &mut SoftnetData) -> Option<&M> {
        if self.front.is_none() {
            self.front = self.dequeue(ctx);
            self.account();
        }
        self.front.as_ref()
    }

    /// Takes the next message. The caller frees it.
    #[inline]
    pub fn next(&mut self, ctx: &mut SoftnetData) -> Option<M> {
        let next = self.front.take().or_else(|| self.dequeue(ctx));
        self.account();
        next
    }

    /// Frames that left the inbox since the last call: the count of what all sockets hold goes
    /// down by as many. They are reported once the inbox is empty, or a quarter of the limit has
    /// left.
    #[inline]
    pub fn gone(&mut self) -> usize {
        std::mem::take(&mut self.gone)
    }

    #[inline]
    fn dequeue(&mut self, ctx: &mut SoftnetData) -> Option<M> {
        loop {
            if self.queue.is_empty() && self.receiver.has_pending() {
                let late = mutated(Mutant::HeldSaidLate);
                self.hold(!late);
                self.quarter = self.slot.slot().limit() / 4;
                self.receiver.take(&mut self.queue);
                self.hold(true);
            }
            let skb = self.queue.pop_front()?;
            self.taken += skb.frame_count() as u32;
            ctx.stats().sk_taken.add(1);
            let (generation, hash) = (skb.head().sk_generation, skb.head().hash);
            let skb = match M::read(skb) {
                Ok(message) if self.is_ours(generation, message.flow()) => {
                    ctx.delivered(1);
                    if let Some(hashes) = &mut self.hashes
                        && hashes.len() < HASHES
                        && hashes.last() != Some(&hash)
                    {
                        hashes.push(hash);
                    }
                    return Some(message);
                }
                Ok(message) => message.into_skb(),
                Err(skb) => skb,
            };
            ctx.free(skb, DropReason::SocketClose);
        }
    }

    fn is_ours(&self, generation: u32, flow: &Flow) -> bool {
        let (opened, now) = self.generations;
        let since = |generation: u32| generation.wrapping_sub(opened);
        let fresh = mutated(Mutant::StampNotChecked) || since(generation) <= since(now);
        fresh && self.peer.is_none_or(|peer| peer == (flow.remote, flow.rport))
    }

    /// Updates the slot's counts. Packets that were handed out are subtracted only now and then, so
    /// that pushing threads keep the cache line meanwhile (the kernel's `udp_rmem_release`).
    #[inline]
    fn account(&mut self) {
        let empty = self.queue.is_empty();
        if self.front.is_some() || !empty && self.taken <= self.quarter {
            return;
        }
        if self.taken > 0 {
            self.slot.slot().took(self.taken);
            self.gone += self.taken as usize;
            self.taken = 0;
        }
        if empty {
            self.hold(false);
        }
    }

    #[inline]
    fn hold(&mut self, holds: bool) {
        if self.holds != holds {
            self.holds = holds;
            self.slot.slot().set_held(holds);
        }
    }

    /// Closes the inbox and frees the waiting packets. Returns how many frames left it since the
    /// last call of [`gone`](Self::gone).
    pub fn close(mut self, ctx: &mut SoftnetData) -> usize {
        let front = self.front.take();
        front.into_iter().for_each(|front| ctx.free_skb(front.into_skb()));
        self.receiver.close(&mut self.queue);
        while let Some(skb) = self.queue.pop_front() {
            self.taken += skb.frame_count() as u32;
            ctx.stats().sk_taken.add(1);
            ctx.free(skb, DropReason::SocketClose);
        }
        self.slot.slot().took(self.taken);
        self.gone + self.taken as usize
    }
}
