//! What tests and fuzzing of reassembly share: a reassembler with its books, and fragments to feed it.

use std::sync::Arc;

use super::*;
use crate::ip::ETH_LEN;
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::skb::{CacheSizes, HeapMemory, Region};

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const UDP: u8 = protocol::UDP;

/// A reassembler with memory of its own, which must all be home in the end.
pub(super) struct Rig {
    pub(super) ctx: SoftnetData,
    pub(super) frags: Reassembly,
    pub(super) now: u64,
    fed: u64,
    expired: u64,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(FragParams::default(), 2048)
    }

    pub(super) fn with(params: FragParams, frames: u32) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        Rig {
            ctx: SoftnetData::new(Region::new(memory, frames, frames).unwrap(), CacheSizes::default()),
            frags: Reassembly::new(params, SipKey::new([3, 4])),
            now: 0,
            fed: 0,
            expired: 0,
        }
    }

    /// Feeds one packet. The datagram that it completed, or what it was dropped for.
    pub(super) fn feed(&mut self, packet: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
        self.feed_in(packet, 1)
    }

    /// The same of a packet in so many frames.
    pub(super) fn feed_in(&mut self, packet: &[u8], frames: usize) -> Result<Option<Vec<u8>>, DropReason> {
        // All headers are in the first.
        let first = if frames == 1 { packet.len() } else { packet.len().min(1200) / frames.min(2) };
        let mut skb = self.ctx.alloc_skb().unwrap();
        skb.put(ETH_LEN + first).unwrap()[ETH_LEN..].copy_from_slice(&packet[..first]);
        let rest = packet.len() - first;
        for i in 1..frames {
            let [from, to] = [i - 1, i].map(|i| first + rest * i / (frames - 1));
            let mut part = self.ctx.alloc_skb().unwrap();
            part.put(to - from).unwrap().copy_from_slice(&packet[from..to]);
            skb.append(part).unwrap();
        }
        skb.head_mut().l3 = ETH_LEN as u16;
        self.fed += 1;
        let done = match packet[0] >> 4 {
            6 => self.frags.ipv6(&mut self.ctx, self.now, skb),
            _ => self.frags.ipv4(&mut self.ctx, self.now, skb),
        };
        let whole = match done {
            Ok(None) => Ok(None),
            Ok(Some(skb)) => Ok(Some(self.open(skb))),
            Err((skb, reason)) => {
                self.ctx.free(skb, reason);
                Err(reason)
            }
        };
        let stats = self.ctx.stats();
        let ended = stats.delivered.get() + stats.dropped() + stats.merged.get() + self.expired;
        assert_eq!(self.fed, ended + self.frags.held() as u64);
        assert!(self.frags.held() <= 512 && self.frags.datagrams() <= 512);
        whole
    }

    /// The bytes of a datagram.
    pub(super) fn open(&mut self, skb: Skb) -> Vec<u8> {
        assert_eq!(skb.head().l3, ETH_LEN as u16);
        assert_eq!(skb.frames().count(), skb.frame_count());
        let bytes = skb.pieces(ETH_LEN, usize::MAX).flatten().copied().collect::<Vec<_>>();
        assert_eq!(bytes.len() + ETH_LEN, skb.len());
        self.ctx.deliver(skb);
        bytes
    }

    /// Lets `seconds` pass. For each datagram that was given up how many fragments it had, and whether the first.
    pub(super) fn pass(&mut self, seconds: u64) -> Vec<(usize, bool)> {
        self.now += seconds * SECOND;
        let mut late = Vec::new();
        while let Some(Expired { first, mut rest }) = self.frags.expire(self.now) {
            late.push((rest.len() + usize::from(first.is_some()), first.is_some()));
            for skb in first.into_iter().chain(std::iter::from_fn(|| rest.pop_front())) {
                self.ctx.free_skb(skb);
                self.expired += 1;
            }
        }
        assert!(self.frags.next_deadline().is_none_or(|at| at > self.now));
        late
    }

    pub(super) fn drops(&self, reason: DropReason) -> u64 {
        self.ctx.stats().drops(0, reason)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.frags.shutdown(&mut self.ctx);
        assert!((self.frags.held(), self.frags.datagrams(), self.frags.peers.len()) == (0, 0, 0));
        self.ctx.drain();
        if !std::thread::panicking() {
            let region: &Arc<Region> = self.ctx.region();
            assert_eq!(region.frames_free(), u64::from(region.frame_count()));
            assert_eq!(region.heads_free(), u64::from(region.head_count()));
        }
    }
}

/// A payload in which no two stretches are alike.
pub(super) fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) ^ (i >> 8)) as u8).collect()
}

/// An IPv4 packet with these options, type of service and fragment word.
pub(super) fn v4(id: u16, proto: u8, options: &[u8], tos: u8, word: u16, payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut packet = [&[0; 20], options, payload].concat();
    let total = packet.len() as u16;
    let mut fields = Ipv4Header::new_mut(&mut packet).unwrap();
    fields.fill(total, id, 64, proto, 0x0a00_0002, 0x0a00_0001);
    fields.set_tos(tos);
    packet[0] = 0x40 | (header / 4) as u8;
    packet[6..8].copy_from_slice(&word.to_be_bytes());
    packet[10..12].fill(0);
    let check = crate::ip::checksum::checksum(&packet[..header]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

/// The fragment of UDP datagram `id` with the bytes `range` of `payload`.
pub(super) fn part(id: u16, payload: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let more = u16::from(range.end < payload.len()) << 13;
    v4(id, UDP, &[], 0, more | (range.start / 8) as u16, &payload[range])
}

/// The datagram that `part` cuts.
pub(super) fn whole(id: u16, payload: &[u8]) -> Vec<u8> {
    v4(id, UDP, &[], 0, 0, payload)
}

/// An IPv6 packet with these headers before the Fragment header (`first` announces them), and this payload.
pub(super) fn v6(first: u8, before: &[u8], next: u8, id: u32, word: u16, payload: &[u8]) -> Vec<u8> {
    let len = before.len() + 8 + payload.len();
    let mut packet = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, first, 64];
    packet.extend([0xfd; 16]);
    packet.extend([0xfc; 16]);
    packet.extend(before);
    packet.extend([next, 0]);
    packet.extend(word.to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(payload);
    packet
}
