//! A wire between the emulated NICs of two stacks, each of which has a packet memory of its own.
//!
//! Packets of the MTU are copied into a slot of the wire by the thread that sends, as DMA would read
//! them, and from there into frames by the thread that polls the other NIC, as DMA would write them.
//! Both copies are on the CPUs that are measured. Checksums are neither computed nor verified, as
//! between cards that do both. Runs of segments pass [whole](Lane::whole), as between two virtual
//! machines: such a packet is kept by the wire, copied once, by the thread that polls, and then
//! completed. Or they are cut (TSO) by the thread that sends. What a NIC sends to the
//! [gateway](GATEWAY) leaves by another port, as of a switch: nothing there receives it.
//!
//! Invariant: a slot is written before its packet is offered, and read once; what finds no place in
//! the other's ring is lost, and counted. A packet that is kept goes back to the NIC that sent it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use softnet_core::ip::v4::header::Ipv4Header;
use softnet_core::skb::Skb;
use softnet_dev::mem::{NicPort, Segmenter, Sink, Source, vnet_header};

use super::flood::GATEWAY;

/// Descriptors of each ring.
pub(in crate::bench) const RING: usize = 4096;
/// The same, of NICs that carry a few streams: as many as network cards have by default. A frame waits in
/// the ring until all before it are used, and more of them are in no cache.
pub(super) const STREAM_RING: usize = 1024;
/// Longest frame.
const LEN: usize = 1514;
const IP: usize = 14;

struct Packet {
    len: usize,
    header: [u8; 10],
    bytes: [u8; LEN],
    /// In place of `bytes`: one that stands for several.
    kept: Option<Skb>,
}

/// One direction.
pub(super) struct Lane {
    slots: Box<[Mutex<Packet>]>,
    /// The receiving NIC's end, once it is open.
    pub(super) port: OnceLock<Mutex<NicPort>>,
    /// Packets that found no place in the receiver's ring.
    pub(super) refused: AtomicUsize,
    /// Slots written so far, under the lock of `port`.
    written: AtomicUsize,
    /// Runs of segments are not cut.
    whole: bool,
    /// Packets that were kept and have been read. Taken with a slot held, so that a packet is in one
    /// or the other.
    read: Mutex<Vec<Skb>>,
}

impl Lane {
    pub(super) fn new(whole: bool, ring: usize) -> Arc<Self> {
        let slot = || Mutex::new(Packet { len: 0, header: [0; 10], bytes: [0; LEN], kept: None });
        Arc::new(Lane {
            slots: (0..ring).map(|_| slot()).collect(),
            port: OnceLock::new(),
            refused: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            whole,
            read: Mutex::new(Vec::with_capacity(ring)),
        })
    }

    /// Packets that it holds, which is as many as the rings at its ends.
    pub(super) fn ring(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, number: usize) -> MutexGuard<'_, Packet> {
        self.slots[number % self.slots.len()].lock()
    }
}

/// What a NIC, or a generator beside it, sends.
pub(super) struct Sends {
    pub(super) lane: Arc<Lane>,
}

impl Sends {
    /// Puts packets on the wire: `write` writes number so much, and says how long it is. Returns how many
    /// there was room for.
    pub(super) fn put(
        &mut self,
        n: usize,
        mut write: impl FnMut(usize, &mut [u8; LEN]) -> Option<usize>,
    ) -> usize {
        let Some(port) = self.lane.port.get() else { return 0 };
        let mut port = port.lock();
        // Room may come meanwhile: no more is offered than was written.
        let (fits, next) = (n.min(port.room() as usize), self.lane.written.load(Ordering::Relaxed));
        for i in 0..fits {
            let mut slot = self.lane.slot(next.wrapping_add(i));
            slot.header = [0; 10];
            slot.len = write(i, &mut slot.bytes).unwrap_or_else(|| {
                self.lane.refused.fetch_add(1, Ordering::Relaxed);
                0
            });
        }
        self.lane.written.store(next.wrapping_add(fits), Ordering::Relaxed);
        self.lane.refused.fetch_add(n - fits, Ordering::Relaxed);
        port.offer(fits as u64);
        fits
    }

    /// Puts a packet that stands for several on the wire. Returns it if there is no room.
    fn put_whole(&mut self, skb: Skb) -> Option<Skb> {
        let Some(port) = self.lane.port.get() else { return Some(skb) };
        let mut port = port.lock();
        if port.room() == 0 {
            self.lane.refused.fetch_add(1, Ordering::Relaxed);
            return Some(skb);
        }
        let next = self.lane.written.load(Ordering::Relaxed);
        let mut slot = self.lane.slot(next);
        (slot.len, slot.header, slot.kept) = (skb.len(), vnet_header(&skb), Some(skb));
        drop(slot);
        self.lane.written.store(next.wrapping_add(1), Ordering::Relaxed);
        port.offer(1);
        None
    }

    /// Puts the segments that `skb` stands for on the wire.
    fn put_cut(&mut self, skb: &Skb) {
        let (head, data, len) = (skb.head(), skb.data(), skb.len());
        let size = usize::from(head.gso_size);
        let l4 = usize::from(head.l4);
        let headers = l4 + 4 * usize::from(data.get(l4 + 12).map_or(0, |at| at >> 4));
        let Some(header) = data.get(..headers) else { return };
        let n = (len - headers).div_ceil(size);
        let (mut pieces, mut piece): (_, &[u8]) = (skb.pieces(headers, len), &[]);
        self.put(n, |i, bytes| {
            let payload = size.min(len - headers - i * size);
            bytes[..headers].copy_from_slice(header);
            let mut to = bytes.get_mut(headers..headers + payload)?;
            while !to.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(to.len()));
                let (filled, left) = to.split_at_mut(now.len());
                filled.copy_from_slice(now);
                (to, piece) = (left, later);
                if piece.is_empty() && !to.is_empty() {
                    piece = pieces.next()?;
                }
            }
            let mut ip = Ipv4Header::new_mut(&mut bytes[IP..])?;
            ip.set_total_len((headers - IP + payload) as u16);
            ip.renew_check();
            let seq: [u8; 4] = *header.get(l4 + 4..)?.first_chunk()?;
            let seq = u32::from_be_bytes(seq).wrapping_add((i * size) as u32);
            bytes[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
            if i + 1 < n {
                // FIN and PSH are the last one's.
                bytes[l4 + 13] &= !0x09;
            }
            Some(headers + payload)
        });
    }
}

impl Sink for Sends {
    fn read(&mut self, packet: &[u8]) {
        self.put(1, |_, bytes| {
            bytes.get_mut(..packet.len())?.copy_from_slice(packet);
            Some(packet.len())
        });
    }

    fn read_offloaded(&mut self, skb: Skb, _: &mut Segmenter) -> Option<Skb> {
        let len = skb.len();
        if skb.data().starts_with(&GATEWAY.1) {
            // By another port of the wire.
            return Some(skb);
        }
        if skb.head().gso_size == 0 {
            self.put(1, |_, bytes| {
                skb.copy_bits(0, bytes.get_mut(..len)?);
                Some(len)
            });
        } else if self.lane.whole {
            return self.put_whole(skb);
        } else {
            self.put_cut(&skb);
        }
        Some(skb)
    }

    fn completed(&mut self, closing: bool) -> Option<Skb> {
        for slot in self.lane.slots.iter().filter(|_| closing) {
            let mut slot = slot.lock();
            if let Some(skb) = slot.kept.take() {
                // What is left of the packet is none.
                slot.len = 0;
                self.lane.read.lock().push(skb);
            }
        }
        self.lane.read.lock().pop()
    }
}

/// What a NIC receives.
pub(super) struct Receives {
    pub(super) lane: Arc<Lane>,
    pub(super) next: usize,
}

impl Source for Receives {
    const AGGREGATES: bool = true;

    fn next_len(&self) -> usize {
        self.lane.slot(self.next).len
    }

    fn write(&mut self, buf: &mut [u8]) -> usize {
        let slot = self.lane.slot(self.next);
        let len = slot.len;
        buf[..len].copy_from_slice(&slot.bytes[..len]);
        drop(slot);
        self.end_packet();
        len
    }

    fn pieces(&mut self, write: impl FnMut(&[u8])) {
        let slot = self.lane.slot(self.next);
        match &slot.kept {
            Some(skb) => skb.frames().for_each(write),
            None => std::iter::once(&slot.bytes[..slot.len]).for_each(write),
        }
    }

    fn end_packet(&mut self) -> [u8; 10] {
        let mut slot = self.lane.slot(self.next);
        self.next += 1;
        if let Some(skb) = slot.kept.take() {
            self.lane.read.lock().push(skb);
        }
        slot.header
    }
}
