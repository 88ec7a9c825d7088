//! The receiving side of a socket: takes the packets that pollers pushed to its slot, and hands
//! them out datagram by datagram.
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
use super::udp::parse;
use crate::SoftnetData;
use crate::skb::{DropReason, Flags, Skb, SkbInbox, SkbList, SkbReceiver};
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

/// A received datagram, and the place of its payload in the packet.
pub struct Datagram {
    skb: Skb,
    flow: Flow,
    at: usize,
    len: usize,
}

impl Datagram {
    /// The datagram in `skb`, if there is one.
    fn new(skb: Skb) -> Result<Self, Skb> {
        match parse(&skb) {
            Ok(parsed) => {
                Ok(Datagram { flow: parsed.flow, at: parsed.payload_at(), len: parsed.payload_len(), skb })
            }
            Err(_) => Err(skb),
        }
    }

    /// Its source and destination.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The device that it came by; `None` if it was sent here.
    pub fn dev(&self) -> Option<u16> {
        let head = self.skb.head();
        (head.flags & Flags::ORIGINATED == 0).then_some(head.dev)
    }

    /// Index of its skb.
    #[cfg(all(test, feature = "loom"))]
    pub(super) fn index(&self) -> u32 {
        self.skb.index()
    }

    /// Bytes of its payload.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its payload, piece by piece. A datagram that fits a frame and was not fragmented is one
    /// piece.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.skb.pieces(self.at, self.len)
    }

    /// Copies as much of its payload as fits. Returns the number of bytes copied.
    #[inline]
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.len);
        self.skb.copy_bits(self.at, &mut buffer[..n]);
        n
    }

    /// Frees it.
    #[inline]
    pub fn free(self, ctx: &mut SoftnetData) {
        ctx.free_skb(self.skb);
    }
}

/// The receiving side of a socket.
pub struct Inbox {
    receiver: SkbReceiver<SlotRef>,
    slot: SlotRef,
    queue: SkbList,
    /// A datagram that was peeked at, and is still to be handed out.
    front: Option<Datagram>,
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
}

impl Inbox {
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
        if let Some(front) = self.front.take_if(|front| (front.flow.remote, front.flow.rport) != peer) {
            front.free(ctx);
        }
        self.account();
    }

    /// The socket was disconnected, and the slot is of `generation` now.
    pub fn disconnected(&mut self, generation: u32) {
        self.peer = None;
        self.generations.1 = generation;
    }

    /// Peeks at the next datagram.
    pub fn peek(&mut self, ctx: &mut SoftnetData) -> Option<&Datagram> {
        if self.front.is_none() {
            self.front = self.dequeue(ctx);
            self.account();
        }
        self.front.as_ref()
    }

    /// Takes the next datagram. The caller frees it.
    #[inline]
    pub fn next(&mut self, ctx: &mut SoftnetData) -> Option<Datagram> {
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
    fn dequeue(&mut self, ctx: &mut SoftnetData) -> Option<Datagram> {
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
            let generation = skb.head().sk_generation;
            let skb = match Datagram::new(skb) {
                Ok(datagram) if self.is_ours(generation, &datagram.flow) => {
                    ctx.delivered(1);
                    return Some(datagram);
                }
                Ok(datagram) => datagram.skb,
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
        front.into_iter().for_each(|front| front.free(ctx));
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
