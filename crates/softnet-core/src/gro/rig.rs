//! What tests of GRO and GSO have in common: packets written byte by byte, and checks that share no
//! code with what they check.

use std::net::IpAddr;
use std::sync::Arc;

use super::{GroMode, GroParams, GroStats, GroTable};
use crate::SoftnetData;
use crate::gso;
use crate::napi::Gro;
use crate::skb::{Batch, CacheSizes, Csum, DropReason, FrameBatch, HeapMemory, Region, Skb, VlanProto};
use crate::vlan;

pub(crate) const ACK: u8 = 0x10;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const CWR: u8 = 0x80;
pub(crate) const ECE: u8 = 0x40;
pub(crate) const URG: u8 = 0x20;

/// A packet to be written.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) v6: bool,
    pub(crate) tcp: bool,
    /// Tags in the frame.
    pub(crate) tags: Vec<u16>,
    /// The tag in the head.
    pub(crate) vlan: Option<u16>,
    /// Last byte of the source address.
    pub(crate) host: u8,
    /// The addresses, if they are to be others; of the packet's family.
    pub(crate) ends: Option<(IpAddr, IpAddr)>,
    pub(crate) sport: u16,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) id: u16,
    /// The fragment word of IPv4.
    pub(crate) frag: u16,
    pub(crate) flow_label: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    /// A multiple of 4 bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// Bytes behind the packet.
    pub(crate) padding: usize,
    pub(crate) check: Check,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Right,
    Wrong,
    /// UDP only.
    Zero,
    /// The pseudo-header's sum.
    Partial,
}

impl Packet {
    pub(crate) fn new(v6: bool, tcp: bool) -> Self {
        Packet {
            v6,
            tcp,
            tags: vec![],
            vlan: None,
            host: 1,
            ends: None,
            sport: 1000,
            tos: 0,
            ttl: 64,
            id: 0xfffe,
            frag: 0x4000,
            flow_label: 0x1234,
            seq: 0xffff_fc00,
            ack: 77,
            flags: ACK,
            window: 512,
            urgent: 0,
            options: vec![],
            payload: vec![],
            padding: 0,
            check: Check::Right,
        }
    }

    pub(crate) fn l3(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut l4 = self.sport.to_be_bytes().to_vec();
        l4.extend(443u16.to_be_bytes());
        if self.tcp {
            l4.extend(self.seq.to_be_bytes());
            l4.extend(self.ack.to_be_bytes());
            l4.extend([((20 + self.options.len()) / 4 * 16) as u8, self.flags]);
            l4.extend(self.window.to_be_bytes());
            l4.extend([0, 0]);
            l4.extend(self.urgent.to_be_bytes());
            l4.extend(&self.options);
        } else {
            l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            l4.extend([0, 0]);
        }
        l4.extend(&self.payload);
        let protocol = if self.tcp { 6 } else { 17 };
        let (mut ip, addresses) = if self.v6 {
            let mut ip = vec![0x60 | self.tos >> 4, self.tos << 4];
            ip.extend(self.flow_label.to_be_bytes());
            ip.extend((l4.len() as u16).to_be_bytes());
            ip.extend([protocol, self.ttl]);
            let addresses = match self.ends {
                Some((IpAddr::V6(src), IpAddr::V6(dst))) => [src.octets(), dst.octets()].concat(),
                _ => [[0x20; 15].as_slice(), &[self.host], &[0x30; 16]].concat(),
            };
            ip.extend(&addresses);
            (ip, addresses)
        } else {
            let mut ip = vec![0x45, self.tos];
            ip.extend(((20 + l4.len()) as u16).to_be_bytes());
            ip.extend(self.id.to_be_bytes());
            ip.extend(self.frag.to_be_bytes());
            ip.extend([self.ttl, protocol, 0, 0]);
            let addresses = match self.ends {
                Some((IpAddr::V4(src), IpAddr::V4(dst))) => [src.octets(), dst.octets()].concat(),
                _ => vec![10, 0, 0, self.host, 10, 0, 1, 9],
            };
            ip.extend(&addresses);
            let check = !sum(&ip);
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            (ip, addresses)
        };
        let field = if self.tcp { 16 } else { 6 };
        let pseudo = [&addresses[..], &(l4.len() as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat();
        let check = match self.check {
            Check::Zero => 0,
            Check::Partial => sum(&pseudo),
            check => {
                let right = match !sum(&[&pseudo[..], &l4].concat()) {
                    0 if !self.tcp => 0xffff,
                    right => right,
                };
                right ^ if check == Check::Wrong { 0x0100 } else { 0 }
            }
        };
        l4[field..field + 2].copy_from_slice(&check.to_be_bytes());
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for tag in &self.tags {
            frame.extend([0x81, 0x00]);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.append(&mut ip);
        frame.append(&mut l4);
        frame.resize(frame.len() + self.padding, 0xee);
        frame
    }
}

/// Word by word, as RFC 1071 writes it.
pub(crate) fn sum(data: &[u8]) -> u16 {
    let mut s = 0u32;
    for w in data.chunks(2) {
        s += u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0));
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// Whether all checksums of a frame with IP at `l3` are right, and its lengths.
pub(crate) fn is_sound(frame: &[u8], l3: usize) -> bool {
    let ip = &frame[l3..];
    let (addresses, l4, protocol) = if ip[0] >> 4 == 6 {
        (ip[8..40].to_vec(), &ip[40..], ip[6])
    } else {
        if sum(&ip[..20]) != 0xffff || usize::from(u16::from_be_bytes([ip[2], ip[3]])) != ip.len() {
            return false;
        }
        (ip[12..20].to_vec(), &ip[20..], ip[9])
    };
    let pseudo = [&addresses[..], &(l4.len() as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat();
    sum(&[&pseudo[..], l4].concat()) == 0xffff
}

/// A table, and memory of which nothing may be missing in the end.
pub(crate) struct Rig {
    pub(crate) ctx: SoftnetData,
    pub(crate) table: GroTable,
    pub(crate) stats: GroStats,
    pub(crate) params: GroParams,
    pub(crate) region: Arc<Region>,
    pub(crate) received: u64,
    pub(crate) out: u64,
}

impl Rig {
    pub(crate) fn new(mode: GroMode) -> Self {
        Self::of(mode, 1024)
    }

    pub(crate) fn of(mode: GroMode, frames: u32) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        let region = Region::new(memory, frames, frames).unwrap();
        Rig {
            ctx: SoftnetData::new(region.clone(), CacheSizes::default()),
            table: GroTable::new(),
            stats: GroStats::default(),
            params: GroParams { mode, ..GroParams::default() },
            region,
            received: 0,
            out: 0,
        }
    }

    pub(crate) fn skb(&mut self, packet: &Packet) -> Skb {
        let bytes = packet.bytes();
        let mut skb = self.ctx.alloc_skb().expect("memory");
        skb.put(bytes.len()).expect("it fits").copy_from_slice(&bytes);
        if let Some(tci) = packet.vlan {
            vlan::set(skb.head_mut(), VlanProto::Dot1q, tci);
        }
        skb
    }

    /// Has a batch received, and returns what goes on.
    pub(crate) fn receive(&mut self, packets: &[Packet]) -> Vec<Skb> {
        let mut batch = Batch::new();
        for packet in packets {
            let skb = self.skb(packet);
            batch.push(skb).expect("a batch of packets");
        }
        self.receive_skbs(batch)
    }

    /// The same, of frames that have no heads yet.
    pub(crate) fn receive_bare(&mut self, packets: &[Packet]) -> Vec<Skb> {
        let mut frames = FrameBatch::new(&self.region);
        for packet in packets {
            assert_eq!(packet.vlan, None, "a tag beside a frame");
            let skb = self.skb(packet);
            let (frame, off, len) = self.ctx.take_frame(skb).expect("it is one frame");
            frames.push(frame, off, len).expect("a batch of packets");
        }
        self.received += packets.len() as u64;
        let mut batch = Batch::new();
        self.table.receive_frames(&mut self.ctx, &self.stats, &self.params, &mut frames, &mut batch);
        assert!(frames.is_empty());
        self.taken(batch)
    }

    /// The same of packets that are there.
    pub(crate) fn receive_skbs(&mut self, mut batch: Batch) -> Vec<Skb> {
        self.received += batch.len() as u64;
        self.table.receive(&mut self.ctx, &self.stats, &self.params, &mut batch);
        self.taken(batch)
    }

    fn taken(&mut self, mut batch: Batch) -> Vec<Skb> {
        let mut out: Vec<Skb> = batch.drain().collect();
        self.table.more(&mut batch);
        out.extend(batch.drain());
        self.out += out.len() as u64;
        out
    }

    pub(crate) fn flush(&mut self, old_only: bool) -> Vec<Skb> {
        let (mut batch, mut out) = (Batch::new(), vec![]);
        loop {
            self.table.flush(&self.stats, &mut batch, old_only);
            if batch.is_empty() {
                break;
            }
            out.extend(batch.drain());
        }
        self.out += out.len() as u64;
        out
    }

    /// The frames that leave, each with its tag.
    pub(crate) fn cut(&mut self, skb: Skb) -> Vec<(Option<u16>, Vec<u8>)> {
        let mut segments = gso::segment(&mut self.ctx, skb).map_err(|(skb, why)| {
            self.ctx.free(skb, why);
            why
        });
        let segments = segments.as_mut().expect("memory");
        let mut frames = vec![];
        while let Some(skb) = segments.pop_front() {
            assert!(!gso::is_aggregate(&skb) && skb.segments() == 1);
            assert!(!matches!(skb.head().csum, Csum::Partial { .. }) || skb.head().hash == 0);
            frames
                .push((vlan::get(skb.head()).map(|(_, tci)| tci), skb.frames().flatten().copied().collect()));
            self.ctx.deliver(skb);
        }
        frames
    }

    /// Segments of each packet, which are freed.
    pub(crate) fn counts(&mut self, skbs: Vec<Skb>) -> Vec<usize> {
        skbs.into_iter()
            .map(|skb| {
                let n = skb.segments();
                self.ctx.free(skb, DropReason::Shutdown);
                n
            })
            .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let rest = self.flush(false);
        self.counts(rest);
        assert_eq!((self.table.held(), self.stats.held()), (0, 0));
        assert_eq!(self.received, self.out + self.stats.merged.get());
        let stats = self.ctx.stats().clone();
        assert_eq!(
            self.received + stats.originated.get(),
            stats.delivered.get() + stats.dropped() + stats.merged.get()
        );
        self.ctx.drain();
        let home = (self.region.frames_free(), self.region.heads_free());
        assert_eq!(home, (self.region.frame_count().into(), self.region.head_count().into()));
    }
}
