//! A wire between the emulated NICs of two stacks, each of which has a packet memory of its own.
//!
//! What one NIC sends is copied into a slot of the wire by the thread that sends, as DMA would read
//! it, and from there into frames by the thread that polls the other, as DMA would write it. Both
//! copies are on the CPUs that are measured. Checksums are neither computed nor verified, as between
//! cards that do both. Runs of segments pass [whole](Lane::whole), as between two virtual machines,
//! or are cut (TSO) by the thread that sends.
//!
//! Invariant: a slot is written before its packet is offered, and read once; what finds no place in
//! the other's ring is lost, and counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use softnet_core::ip::v4::header::Ipv4Header;
use softnet_core::skb::Skb;
use softnet_dev::mem::{NicPort, Segmenter, Sink, Source, vnet_header};

/// Descriptors of each ring.
pub(super) const RING: usize = 4096;
/// Longest frame.
const LEN: usize = 1514;
const IP: usize = 14;

/// Bytes of the longest packet that stands for several, with room for headers.
const LONGEST: usize = 66_000;

struct Packet {
    len: usize,
    header: [u8; 10],
    bytes: [u8; LEN],
    /// In place of `bytes`, for one that is longer.
    long: Option<Box<[u8]>>,
}

/// One direction.
pub(super) struct Lane {
    slots: Box<[Mutex<Packet>]>,
    /// The receiving NIC's end, once it is open.
    pub(super) port: OnceLock<Mutex<NicPort>>,
    /// Packets that were too long, or found no place in the receiver's ring.
    pub(super) refused: AtomicUsize,
    /// Slots written so far, under the lock of `port`.
    written: AtomicUsize,
    /// Runs of segments are not cut.
    whole: bool,
    /// What long packets lay in: the last one is the next one's, for its bytes are in some cache.
    spare: Mutex<Vec<Box<[u8]>>>,
}

impl Lane {
    pub(super) fn new(whole: bool) -> Arc<Self> {
        let slot = || Mutex::new(Packet { len: 0, header: [0; 10], bytes: [0; LEN], long: None });
        Arc::new(Lane {
            slots: (0..RING).map(|_| slot()).collect(),
            port: OnceLock::new(),
            refused: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            whole,
            spare: Mutex::default(),
        })
    }

    fn buffer(&self) -> Box<[u8]> {
        self.spare.lock().pop().unwrap_or_else(|| vec![0; LONGEST].into())
    }
}

/// What a NIC, or a generator beside it, sends.
pub(super) struct Sends {
    pub(super) lane: Arc<Lane>,
}

impl Sends {
    /// Puts packets on the wire: `write` writes number so much, and says how long it is.
    fn put(&mut self, n: usize, mut write: impl FnMut(usize, &mut [u8; LEN]) -> Option<usize>) {
        let Some(port) = self.lane.port.get() else { return };
        let mut port = port.lock();
        // Room may come meanwhile: no more is offered than was written.
        let (fits, next) = (n.min(port.room() as usize), self.lane.written.load(Ordering::Relaxed));
        for i in 0..fits {
            let mut slot = self.lane.slots[next.wrapping_add(i) % RING].lock();
            slot.header = [0; 10];
            slot.len = write(i, &mut slot.bytes).unwrap_or_else(|| {
                self.lane.refused.fetch_add(1, Ordering::Relaxed);
                0
            });
        }
        self.lane.written.store(next.wrapping_add(fits), Ordering::Relaxed);
        self.lane.refused.fetch_add(n - fits, Ordering::Relaxed);
        port.offer(fits as u64);
    }

    /// Puts a packet that stands for several on the wire.
    fn put_whole(&mut self, skb: &Skb) {
        let Some(port) = self.lane.port.get() else { return };
        let mut port = port.lock();
        if port.room() == 0 || skb.len() > LONGEST {
            self.lane.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (mut bytes, mut at) = (self.lane.buffer(), 0);
        for frame in skb.frames() {
            bytes[at..at + frame.len()].copy_from_slice(frame);
            at += frame.len();
        }
        let next = self.lane.written.load(Ordering::Relaxed);
        let mut slot = self.lane.slots[next % RING].lock();
        (slot.len, slot.header, slot.long) = (at, vnet_header(skb), Some(bytes));
        drop(slot);
        self.lane.written.store(next.wrapping_add(1), Ordering::Relaxed);
        port.offer(1);
    }
}

impl Sink for Sends {
    fn read(&mut self, packet: &[u8]) {
        self.put(1, |_, bytes| {
            bytes.get_mut(..packet.len())?.copy_from_slice(packet);
            Some(packet.len())
        });
    }

    fn read_offloaded(&mut self, skb: &Skb, _: &mut Segmenter) {
        let (head, data, len) = (skb.head(), skb.data(), skb.len());
        let size = usize::from(head.gso_size);
        if size == 0 {
            return self.put(1, |_, bytes| {
                skb.copy_bits(0, bytes.get_mut(..len)?);
                Some(len)
            });
        }
        if self.lane.whole {
            return self.put_whole(skb);
        }
        let l4 = usize::from(head.l4);
        let headers = l4 + 4 * usize::from(data.get(l4 + 12).map_or(0, |at| at >> 4));
        let Some(header) = data.get(..headers) else { return };
        let n = (len - headers).div_ceil(size);
        self.put(n, |i, bytes| {
            let from = headers + i * size;
            let payload = size.min(len - from);
            bytes[..headers].copy_from_slice(header);
            skb.copy_bits(from, bytes.get_mut(headers..headers + payload)?);
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

/// What a NIC receives.
pub(super) struct Receives {
    pub(super) lane: Arc<Lane>,
    pub(super) next: usize,
}

impl Source for Receives {
    const AGGREGATES: bool = true;

    fn next_len(&self) -> usize {
        self.lane.slots[self.next % RING].lock().len
    }

    fn write(&mut self, buf: &mut [u8]) -> usize {
        let len = self.next_len();
        self.write_part(0, &mut buf[..len]);
        self.end_packet();
        len
    }

    fn write_part(&mut self, at: usize, buf: &mut [u8]) {
        let slot = self.lane.slots[self.next % RING].lock();
        let bytes = slot.long.as_deref().unwrap_or(&slot.bytes);
        buf.copy_from_slice(&bytes[at..at + buf.len()]);
    }

    fn end_packet(&mut self) -> [u8; 10] {
        let mut slot = self.lane.slots[self.next % RING].lock();
        self.next += 1;
        self.lane.spare.lock().extend(slot.long.take());
        slot.header
    }
}
