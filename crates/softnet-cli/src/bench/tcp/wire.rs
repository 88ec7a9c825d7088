//! A wire between the emulated NICs of two stacks, each of which has a packet memory of its own.
//!
//! What one NIC sends is copied into a slot of the wire by the thread that sends, as DMA would read
//! it, and from there into a frame by the thread that polls the other, as DMA would write it. Both
//! copies, and the cutting of aggregates (TSO), are on the CPUs that are measured. Checksums are
//! neither computed nor verified, as between cards that do both.
//!
//! Invariant: a slot is written before its packet is offered, and read once; what finds no place in
//! the other's ring is lost, and counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use softnet_core::ip::v4::header::Ipv4Header;
use softnet_core::skb::Skb;
use softnet_dev::mem::{NicPort, Segmenter, Sink, Source};

/// Descriptors of each ring.
pub(super) const RING: usize = 4096;
/// Longest frame.
const LEN: usize = 1514;
const IP: usize = 14;

struct Packet {
    len: usize,
    bytes: [u8; LEN],
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
}

impl Lane {
    pub(super) fn new() -> Arc<Self> {
        let slot = || Mutex::new(Packet { len: 0, bytes: [0; LEN] });
        Arc::new(Lane {
            slots: (0..RING).map(|_| slot()).collect(),
            port: OnceLock::new(),
            refused: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        })
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
            slot.len = write(i, &mut slot.bytes).unwrap_or_else(|| {
                self.lane.refused.fetch_add(1, Ordering::Relaxed);
                0
            });
        }
        self.lane.written.store(next.wrapping_add(fits), Ordering::Relaxed);
        self.lane.refused.fetch_add(n - fits, Ordering::Relaxed);
        port.offer(fits as u64);
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
    fn next_len(&self) -> usize {
        self.lane.slots[self.next % RING].lock().len
    }

    fn write(&mut self, buf: &mut [u8]) -> usize {
        let slot = self.lane.slots[self.next % RING].lock();
        self.next += 1;
        buf[..slot.len].copy_from_slice(&slot.bytes[..slot.len]);
        slot.len
    }
}
