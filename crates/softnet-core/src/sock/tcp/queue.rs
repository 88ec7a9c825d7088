//! The bytes of a connection: what is queued to be sent, and what arrived and is not read.
//!
//! Both are in packet memory, so that the limits on it hold for them. Owned by their connection.
//! Invariants: every frame of a [`SendQueue`] but the last is full, so that a byte is found by one
//! division; a packet of a [`RecvQueue`] goes home when its last byte is read.

use std::collections::VecDeque;

use softnet_tcp::Seq;

use crate::SoftnetData;
use crate::skb::{DropReason, Skb};

/// Bytes of memory that a frame and its head take, which is what buffers are charged for.
pub const TRUESIZE: u32 = 2176;

/// What an application queued and the peer has not acknowledged.
#[derive(Default)]
pub struct SendQueue {
    frames: VecDeque<Skb>,
    /// The number of the first byte kept.
    base: Seq,
    /// Where that is in the first frame.
    front: u32,
    len: u32,
}

impl SendQueue {
    /// Of a connection whose first byte has number `base`.
    pub fn new(base: Seq) -> Self {
        SendQueue { base, ..Self::default() }
    }

    /// The number of the first byte kept.
    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn base(&self) -> Seq {
        self.base
    }

    /// Bytes queued.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frames of packet memory.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Appends as much of `data` as there is memory for. Returns how many bytes.
    pub fn push(&mut self, ctx: &mut SoftnetData, mut data: &[u8]) -> usize {
        let before = data.len();
        while !data.is_empty() {
            let room = self.frames.back().map_or(0, |last| last.tailroom());
            if room == 0 {
                let Some(skb) = ctx.alloc_skb() else { break };
                self.frames.push_back(skb);
                continue;
            }
            let (now, later) = data.split_at(room.min(data.len()));
            let to = self.frames.back_mut().and_then(|last| last.put(now.len()));
            to.into_iter().for_each(|to| to.copy_from_slice(now));
            self.len += now.len() as u32;
            data = later;
        }
        before - data.len()
    }

    /// The bytes from number `seq` on, in pieces; none of what is not kept.
    pub fn pieces(&self, seq: Seq, len: usize) -> impl Iterator<Item = &[u8]> {
        let from = (seq - self.base) as usize;
        let (from, mut left) = match from <= self.len() {
            true => (from + self.front as usize, len.min(self.len() - from)),
            false => (0, 0),
        };
        // All frames but the last hold the same number of bytes.
        let full = self.frames.front().map_or(1, |first| first.len()).max(1);
        let (skip, mut at) = (from / full, from % full);
        self.frames.iter().skip(skip).map_while(move |frame| {
            let data = frame.data().get(std::mem::take(&mut at)..)?;
            let piece = data.get(..left.min(data.len()))?;
            left -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// The first `n` bytes have arrived.
    pub fn acked(&mut self, ctx: &mut SoftnetData, n: u32) {
        let n = n.min(self.len);
        self.base += n;
        self.len -= n;
        self.front += n;
        while let Some(first) = self.frames.front()
            && (self.front >= first.len() as u32 || self.len == 0)
        {
            self.front = self.front.saturating_sub(first.len() as u32);
            self.frames.pop_front().into_iter().for_each(|frame| ctx.free_skb(frame));
        }
        if self.frames.is_empty() {
            self.front = 0;
            if self.frames.capacity() > KEPT {
                self.frames = VecDeque::new();
            }
        }
    }

    /// Frees all that is left.
    pub fn clear(&mut self, ctx: &mut SoftnetData) {
        self.acked(ctx, self.len);
        self.frames.drain(..).for_each(|frame| ctx.free_skb(frame));
    }
}

/// Places that an empty queue keeps.
const KEPT: usize = 8;

/// A packet whose payload, in part or in whole, is to be read.
pub struct Piece {
    skb: Skb,
    at: usize,
    len: usize,
}

impl Piece {
    /// Bytes to be read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether all were read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes to be read, frame by frame.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.skb.pieces(self.at, self.len).filter(|part| !part.is_empty())
    }

    /// The first `n` bytes were read.
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        (self.at, self.len) = (self.at + n, self.len - n);
    }

    /// Frees it. Returns how many frames that were.
    fn free(self, ctx: &mut SoftnetData) -> usize {
        let frames = self.skb.frame_count();
        ctx.stats().sk_taken.add(1);
        ctx.delivered(1);
        ctx.free_skb(self.skb);
        frames
    }
}

/// Frees pieces that were [lent](RecvQueue::lend). Returns how many frames that were.
pub(super) fn free_lent(ctx: &mut SoftnetData, pieces: impl Iterator<Item = Piece>) -> usize {
    pieces.map(|piece| piece.free(ctx)).sum()
}

/// What arrived in order and the application has not read.
#[derive(Default)]
pub struct RecvQueue {
    pieces: VecDeque<Piece>,
    frames: u32,
    /// Memory of packets whose payload was copied behind another's.
    saved: u32,
}

/// Payloads up to so many bytes are copied behind what waits, if there is room: a frame for each would
/// use up a buffer by a few dozen small messages (the kernel's `tcp_try_coalesce`).
const SMALL: usize = 256;

impl RecvQueue {
    /// Frames of packet memory.
    pub fn frames(&self) -> usize {
        self.frames as usize
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Memory that went back since the last call, because small payloads share frames.
    pub fn saved(&mut self) -> u32 {
        std::mem::take(&mut self.saved)
    }

    /// Appends `len` bytes of `skb`, those from `at` on.
    pub fn push(&mut self, ctx: &mut SoftnetData, skb: Skb, at: usize, len: usize) {
        if len <= SMALL
            && !skb.is_chained()
            && let Some(last) = self.pieces.back_mut()
            && !last.skb.is_chained()
            && last.skb.tailroom() >= len
        {
            // What lies behind the payload, such as padding, is not read any more.
            last.skb.trim(last.at + last.len);
            if let Some(to) = last.skb.put(len) {
                skb.copy_bits(at, to);
                last.len += len;
                self.saved += TRUESIZE;
                ctx.stats().sk_taken.add(1);
                ctx.delivered(1);
                return ctx.free_skb(skb);
            }
        }
        self.frames += skb.frame_count() as u32;
        self.pieces.push_back(Piece { skb, at, len });
    }

    /// Copies the next bytes to `to`. Returns how many, and how much memory went back.
    pub fn read(&mut self, ctx: &mut SoftnetData, mut to: &mut [u8]) -> (usize, u32) {
        let (mut read, mut memory) = (0, 0);
        while let Some(piece) = self.pieces.front_mut()
            && !to.is_empty()
        {
            let n = piece.len.min(to.len());
            let (now, later) = to.split_at_mut(n);
            piece.skb.copy_bits(piece.at, now);
            (to, read) = (later, read + n);
            piece.advance(n);
            if piece.len == 0 {
                memory += self.pop(ctx);
            }
        }
        (read, memory)
    }

    /// Copies the next bytes to `to` and leaves them where they are.
    pub fn peek(&self, mut to: &mut [u8]) -> usize {
        let all = to.len();
        for piece in &self.pieces {
            let (now, later) = to.split_at_mut(piece.len.min(to.len()));
            piece.skb.copy_bits(piece.at, now);
            to = later;
            if to.is_empty() {
                break;
            }
        }
        all - to.len()
    }

    /// Moves all that waits to `to`. Returns how many bytes, and in how many frames.
    pub fn lend(&mut self, to: &mut VecDeque<Piece>) -> (usize, usize) {
        let bytes = self.pieces.iter().map(Piece::len).sum();
        to.append(&mut self.pieces);
        self.shrink();
        (bytes, std::mem::take(&mut self.frames) as usize)
    }

    fn pop(&mut self, ctx: &mut SoftnetData) -> u32 {
        let Some(piece) = self.pieces.pop_front() else { return 0 };
        let frames = piece.free(ctx);
        self.frames -= frames as u32;
        self.shrink();
        frames as u32 * TRUESIZE
    }

    fn shrink(&mut self) {
        if self.pieces.is_empty() && self.pieces.capacity() > KEPT {
            self.pieces = VecDeque::new();
        }
    }

    /// Frees what is left unread. Returns how much memory that was.
    pub fn clear(&mut self, ctx: &mut SoftnetData) -> u32 {
        let frames = std::mem::take(&mut self.frames);
        for Piece { skb, .. } in self.pieces.drain(..) {
            ctx.stats().sk_taken.add(1);
            ctx.free(skb, DropReason::SocketClose);
        }
        frames * TRUESIZE
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::testing::context;

    proptest! {
        /// Whatever is queued, acknowledged and looked up in between, the bytes are those of the stream.
        #[test]
        fn the_send_queue_is_a_window_of_the_stream(
            base: u32,
            steps in prop::collection::vec((0usize..6000, 0usize..6000, 0usize..9000, 0usize..9000), 1..30),
        ) {
            let mut ctx = context();
            let mut queue = SendQueue::new(Seq(base));
            let byte = |at: usize| (at * 31 % 251) as u8;
            let (mut queued, mut acked) = (0, 0);
            for (push, ack, from, len) in steps {
                let data: Vec<u8> = (queued..queued + push).map(byte).collect();
                prop_assert_eq!(queue.push(&mut ctx, &data), push);
                queued += push;
                let ack = ack.min(queued - acked);
                queue.acked(&mut ctx, ack as u32);
                acked += ack;
                prop_assert_eq!(queue.len(), queued - acked);
                let from = acked + from.min(queued - acked);
                let got: Vec<u8> = queue.pieces(Seq(base) + from as u32, len).flatten().copied().collect();
                let want: Vec<u8> = (from..queued.min(from + len)).map(byte).collect();
                prop_assert_eq!(got, want);
            }
            queue.clear(&mut ctx);
            prop_assert_eq!((queue.len(), queue.frames()), (0, 0));
            ctx.drain();
        }
    }
}
