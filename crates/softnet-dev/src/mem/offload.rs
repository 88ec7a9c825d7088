//! The TX queue of an emulated NIC with offloads: it takes aggregates and partial checksums, and
//! does in hardware, as it were, what software need not do then.
//!
//! Called by the holder of the TX queue's lock. The driver's half keeps each packet until it is
//! completed, as a driver with a descriptor per fragment does. The hardware's half ([`Segmenter`])
//! shares no code with [`softnet_core::gso`], so that one can be compared with the other; a
//! [`Sink`] that only counts need not have it run at all.
//!
//! Invariant: a packet on the ring is freed once, by the reap after its kick or by closing; one
//! whose head speaks of bytes that it does not have is refused and counted in `ring_drops`.

use std::collections::VecDeque;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{Batch, Csum, DropReason, GsoType, Skb};

use super::nic::Sink;
use crate::device::{QueueStats, Reaped, TxQueue};
use crate::vnet;

/// What a NIC like virtio's is told of `skb`: checksum and segments (`struct virtio_net_hdr`), for a
/// wire on which packets stay as they are. All zero for one that says of itself what it has not.
pub fn vnet_header(skb: &Skb) -> [u8; vnet::LEN] {
    vnet::transmit(skb).unwrap_or_default().to_bytes()
}

/// Bytes of an IPv4 header without options, of an IPv6 header, and of a UDP header.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// TCP flags that are the last segment's alone, and the first one's.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

pub(super) struct OffloadTx<K> {
    sink: K,
    dev: u16,
    offloads: TxOffloads,
    /// Packets of which the device was not told yet, oldest first.
    unsent: VecDeque<Skb>,
    /// Packets that are sent.
    sent: VecDeque<Skb>,
    /// How many the [sink](Sink::read_offloaded) has kept.
    kept: usize,
    slots: usize,
    segmenter: Segmenter,
    stats: Arc<QueueStats>,
}

impl<K> OffloadTx<K> {
    pub(super) fn new(sink: K, dev: u16, offloads: TxOffloads, slots: usize) -> Self {
        let slots = slots.next_power_of_two();
        OffloadTx {
            sink,
            dev,
            offloads,
            unsent: VecDeque::with_capacity(slots),
            sent: VecDeque::with_capacity(slots),
            kept: 0,
            slots,
            segmenter: Segmenter::default(),
            stats: Arc::default(),
        }
    }

    /// Packets that take a place in the ring.
    fn filled(&self) -> usize {
        self.unsent.len() + self.kept + self.sent.len()
    }
}

impl<K: Sink> TxQueue for OffloadTx<K> {
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped {
        while self.kept > 0
            && let Some(skb) = self.sink.completed(false)
        {
            self.kept -= 1;
            self.sent.push_back(skb);
        }
        let freed = self.sent.len();
        let mut batch = Batch::new();
        for skb in self.sent.drain(..) {
            if let Err(skb) = batch.push(skb) {
                ctx.free_skbs(&mut batch, |_| {});
                // There is room now.
                batch.push(skb).unwrap_or_else(|skb| ctx.free_skb(skb));
            }
        }
        ctx.free_skbs(&mut batch, |_| {});
        Reaped { freed, held: self.unsent.len() + self.kept, room: self.slots - self.filled() }
    }

    fn offloads(&self) -> TxOffloads {
        self.offloads
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let n = batch.len().min(self.slots - self.filled());
        let (mut packets, mut bytes) = (0_u64, 0);
        for skb in batch.drain().take(n) {
            if !is_sane(&skb) {
                self.stats.ring_drops.add(1);
                ctx.free_at(skb, self.dev, DropReason::PktTooSmall);
                continue;
            }
            packets += 1;
            bytes += skb.len() as u64;
            self.unsent.push_back(skb);
        }
        self.stats.packets.add(packets);
        self.stats.bytes.add(bytes);
        n
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        self.sink.begin();
        for skb in self.unsent.drain(..) {
            match self.sink.read_offloaded(skb, &mut self.segmenter) {
                Some(skb) => self.sent.push_back(skb),
                None => self.kept += 1,
            }
        }
        self.sink.end();
        self.stats.kicks.add(1);
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.filled()
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        let kept = std::iter::from_fn(|| self.sink.completed(true));
        kept.chain(self.unsent.drain(..)).chain(self.sent.drain(..)).for_each(|skb| ctx.free_skb(skb));
    }
}

/// Where the L4 header begins, and the offset of the checksum in it, if that is to be completed.
fn partial(skb: &Skb) -> Option<(usize, usize)> {
    match skb.head().csum {
        Csum::Partial { start, offset } => Some((start.into(), offset.into())),
        _ => None,
    }
}

/// Bytes of the L4 header at `start`.
fn l4_len(kind: GsoType, data: &[u8], start: usize) -> Option<usize> {
    match kind {
        GsoType::UdpL4 => Some(UDP_LEN),
        GsoType::TcpV4 | GsoType::TcpV6 => Some(usize::from(data.get(start + 12)? >> 4) * 4),
        GsoType::None | GsoType::FragList => None,
    }
}

/// Whether what the head says lies within the first frame.
fn is_sane(skb: &Skb) -> bool {
    let (head, data) = (skb.head(), skb.data());
    // A driver walks the frames to fill a descriptor for each.
    if skb.frames().map(<[u8]>::len).sum::<usize>() != skb.len() {
        return false;
    }
    if head.gso_size == 0 {
        return partial(skb).is_none_or(|(start, offset)| start + offset + 2 <= data.len());
    }
    // What is to be cut has a checksum to be completed.
    let Some((start, offset)) = partial(skb) else { return false };
    let l3_len = if is_v6(head.gso_type, data, start) { IPV6_LEN } else { IPV4_LEN };
    let l4_len = l4_len(head.gso_type, data, start);
    l4_len.is_some_and(|l4_len| {
        offset + 2 <= l4_len && start >= l3_len && start + l4_len <= data.len().min(skb.len() - 1)
    })
}

/// Whether the IP header in front of the L4 header at `start` is of IPv6. UDP's kind does not tell.
fn is_v6(kind: GsoType, data: &[u8], start: usize) -> bool {
    match kind {
        GsoType::UdpL4 => {
            start.checked_sub(IPV6_LEN + 2).and_then(|at| data.get(at..at + 2)) == Some(&[0x86, 0xdd])
        }
        kind => kind == GsoType::TcpV6,
    }
}

/// Ones' complement sum (RFC 1071), straightforward: what everything else is compared with.
fn sum(bytes: &[u8], from: u32) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum = words.iter().fold(from, |sum, word| sum + u32::from(u16::from_be_bytes(*word)));
    let sum = sum + rest.first().map_or(0, |last| u32::from(*last) << 8);
    (sum & 0xffff) + (sum >> 16)
}

fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Cuts packets into segments and completes checksums, as a network card does.
#[derive(Debug, Default)]
pub struct Segmenter {
    /// The packet at hand, in one piece, and a segment of it.
    whole: Vec<u8>,
    segment: Vec<u8>,
}

impl Segmenter {
    /// Hands each packet that goes on the wire for `skb` to `each`, from the first to the last.
    pub fn cut(&mut self, skb: &Skb, mut each: impl FnMut(&[u8])) {
        let Segmenter { whole, segment } = self;
        whole.clear();
        skb.frames().for_each(|frame| whole.extend_from_slice(frame));
        let (size, kind) = (usize::from(skb.head().gso_size), skb.head().gso_type);
        let Some((start, offset)) = partial(skb) else { return each(whole) };
        let l4_len = l4_len(kind, whole, start).filter(|_| size > 0);
        let Some(headers) = l4_len.map(|len| start + len) else {
            complete(whole, start, offset, 0xffff);
            return each(whole);
        };
        let is_v6 = is_v6(kind, whole, start);
        let l3 = start - if is_v6 { IPV6_LEN } else { IPV4_LEN };
        let is_tcp = kind != GsoType::UdpL4;
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        // The sum of the pseudo-header has the length of the whole.
        let (l4_whole, pseudo) = (whole.len() - start, word(whole, start + offset));
        let payloads = whole[headers..].chunks(size);
        let n = payloads.len();
        for (i, payload) in payloads.enumerate() {
            segment.clear();
            segment.extend_from_slice(&whole[..headers]);
            segment.extend_from_slice(payload);
            let mut put = |at: usize, value: u16| segment[at..at + 2].copy_from_slice(&value.to_be_bytes());
            let l4_len = headers - start + payload.len();
            if is_v6 {
                put(l3 + 4, l4_len as u16);
            } else {
                put(l3 + 2, (IPV4_LEN + l4_len) as u16);
                let fixed = skb.head().flags & softnet_core::skb::Flags::GSO_FIXED_ID != 0;
                put(l3 + 4, word(whole, l3 + 4).wrapping_add(if fixed { 0 } else { i as u16 }));
                put(l3 + 10, 0);
                let check = !folded(sum(&segment[l3..start], 0));
                segment[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
            }
            if is_tcp {
                let seq = u32::from_be_bytes([
                    whole[start + 4],
                    whole[start + 5],
                    whole[start + 6],
                    whole[start + 7],
                ]);
                let seq = seq.wrapping_add((i * size) as u32);
                segment[start + 4..start + 8].copy_from_slice(&seq.to_be_bytes());
                segment[start + 13] &= !(if i + 1 < n { FIN_PSH } else { 0 } | if i > 0 { CWR } else { 0 });
            } else {
                segment[start + 4..start + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
            }
            // The pseudo-header's sum with this segment's length instead of the whole's (RFC 1624).
            let pseudo = folded(u32::from(pseudo) + u32::from(!(l4_whole as u16)) + l4_len as u32);
            segment[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
            // Of UDP 0 would mean: none (RFC 768). Of TCP it is a sum as any.
            complete(segment, start, offset, if is_tcp { 0 } else { 0xffff });
            each(segment);
        }
    }
}

/// Completes the checksum at `offset` of the L4 header at `start`, where the pseudo-header's sum
/// stands; a sum of 0 is written as `zero`.
fn complete(packet: &mut [u8], start: usize, offset: usize, zero: u16) {
    let check = match !folded(sum(&packet[start..], 0)) {
        0 => zero,
        check => check,
    };
    packet[start + offset..start + offset + 2].copy_from_slice(&check.to_be_bytes());
}
