//! Tests in virtual time. A packet is known by its last byte; the ring is a list of what was put on it, and lets the
//! test act while a batch is "on the wire". Memory that does not come home aborts the test.

mod defer;
mod disciplines;
mod mirred;
mod netem;
mod spec;
mod tbf;

use std::sync::Arc;

use super::*;
use crate::SoftnetData;
use crate::skb::{CacheSizes, HeapMemory, Region};

const DEV: DevParams = DevParams { mtu: 1500, tx_queue_len: 1000 };

/// Packet memory, and the thread that uses it.
struct World {
    region: Arc<Region>,
    ctx: SoftnetData,
    to_free: ToFree,
}

impl World {
    fn new() -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(2048, 2048)));
        let region = Region::new(memory, 2048, 2048).unwrap();
        let ctx = SoftnetData::new(region.clone(), CacheSizes::default());
        World { region, ctx, to_free: ToFree::new() }
    }

    /// A packet of `len` bytes that ends in `id`.
    fn skb(&mut self, id: u8, len: usize) -> Skb {
        let mut skb = self.ctx.alloc_skb().expect("memory for a test");
        let data = skb.put(len).expect("fits a frame");
        data.fill(0);
        data[len - 1] = id;
        skb
    }

    /// An IPv4 packet with type of service `tos`.
    fn ipv4(&mut self, id: u8, tos: u8) -> Skb {
        let mut skb = self.skb(id, 60);
        skb.data_mut()[12..16].copy_from_slice(&[8, 0, 0x45, tos]);
        skb
    }

    fn batch(&mut self, ids: impl IntoIterator<Item = u8>) -> Batch {
        let mut batch = Batch::new();
        ids.into_iter().for_each(|id| batch.push(self.skb(id, 100)).expect("a batch"));
        batch
    }

    /// Dequeues at `now` as much as `quota` allows; ids.
    fn dequeue(&mut self, qdisc: &mut dyn Qdisc, now: u64, mut quota: Quota) -> Vec<u8> {
        let mut out = Batch::new();
        qdisc.dequeue(now, &mut quota, &mut out, &mut self.to_free);
        out.drain().map(|skb| self.eat(skb)).collect()
    }

    fn eat(&mut self, skb: Skb) -> u8 {
        let id = id(&skb);
        self.ctx.free_skb(skb);
        id
    }

    /// Frees what was dropped: ids and reasons.
    fn dropped(&mut self) -> Vec<(u8, DropReason)> {
        let mut dropped = Vec::new();
        while let Some((skb, reason)) = self.to_free.pop() {
            dropped.push((self.eat(skb), reason));
        }
        dropped
    }

    /// Ends the life of a queue: what it holds is dropped, what is on its ring freed.
    fn end(mut self, list: DeferList<Wire>) {
        list.deactivate();
        let mut guard = list.own().expect("no other thread");
        let sent = std::mem::take(&mut guard.ring().sent);
        assert_eq!(guard.finish(&mut || (), 0, &mut self.to_free), NextRun::Idle);
        sent.into_iter().for_each(|skb| self.ctx.free_skb(skb));
        self.to_free.free(&mut self.ctx, 0);
        drop(self.ctx);
        assert_eq!((self.region.frames_free(), self.region.heads_free()), (2048, 2048), "all memory at home");
    }
}

fn id(skb: &Skb) -> u8 {
    *skb.data().last().expect("not empty")
}

/// A ring that says it takes `room` packets, and takes `takes`.
struct Wire {
    room: usize,
    takes: usize,
    sent: Vec<Skb>,
    /// How many packets each call offered.
    calls: Vec<usize>,
}

impl Wire {
    fn new() -> Self {
        Wire { room: 1 << 20, takes: 1 << 20, sent: Vec::new(), calls: Vec::new() }
    }

    fn ids(&self) -> Vec<u8> {
        self.sent.iter().map(id).collect()
    }
}

/// The caller's context is what happens while the batch is on the wire.
impl<'h> Ring<dyn FnMut() + 'h> for Wire {
    fn avail(&mut self, _: &mut (dyn FnMut() + 'h)) -> Quota {
        Quota { packets: self.room, ..Quota::BATCH }
    }

    fn xmit(&mut self, during: &mut (dyn FnMut() + 'h), batch: &mut Batch) -> (usize, u64) {
        during();
        self.calls.push(batch.len());
        let (mut packets, mut bytes) = (0, 0);
        for skb in batch.drain().take(self.takes) {
            (self.room, self.takes) = (self.room.saturating_sub(1), self.takes - 1);
            packets += skb.segments();
            bytes += skb.len() as u64;
            self.sent.push(skb);
        }
        (packets, bytes)
    }
}
