//! An emulated NIC: packets are written afresh into posted frames, as DMA would, and read out of sent ones.
//!
//! [`Source`] and [`Sink`] stand for the wire. Both run inside the queue's own calls, on the caller's CPU,
//! so that a benchmark can subtract what the emulation costs. Packets come when the holder of the queue's [`NicPort`]
//! says so; the source writes those alone that found a place in the ring.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{
    BATCH, Batch, Csum, DropReason, FRAME_SIZE, Frame, FrameBatch, FrameChain, HEADROOM, MAX_FRAMES, Skb,
};
use softnet_core::softnet_data::Counter;

use super::coalesce::Coalesce;
use super::doorbell::MemDoorbell;
use super::offload::{OffloadTx, Segmenter};
use super::port::NicPort;
use crate::device::{
    Device, DeviceInfo, Doorbell, Features, LinkState, OpenDevice, QueueStats, Reaped, RxQueue, TxQueue,
};
use crate::vnet::{self, VnetHdr};

/// Where the NIC's packets come from.
pub trait Source: Send {
    /// Whether all packets of a poll are written before the driver's half looks at the ring,
    /// between [`begin`](Self::begin) and [`end`](Self::end): so that what the emulation takes can
    /// be timed, by the poll, and be left out of what the driver and the stack take. Else each is
    /// written when the driver comes to it.
    const AHEAD: bool = false;

    /// Whether packets may be longer than a frame, and come with what `virtio_net_hdr` says of
    /// them: then they are shown by [`pieces`](Self::pieces), and none is written ahead.
    const AGGREGATES: bool = false;

    /// The packets of a poll are going to be written.
    fn begin(&mut self) {}
    /// They were.
    fn end(&mut self) {}
    /// Writes the next packet to the start of `buf` and returns its length in bytes.
    fn write(&mut self, buf: &mut [u8]) -> usize;
    /// Length of the next packet, so that the NIC can place it.
    fn next_len(&self) -> usize;
    /// Shows the bytes of the next packet to `write`, piece by piece, from where they lie.
    fn pieces(&mut self, _write: impl FnMut(&[u8])) {}
    /// The packet was written, all of it. Returns its header ([`vnet_header`](super::vnet_header)).
    fn end_packet(&mut self) -> [u8; vnet::LEN] {
        [0; vnet::LEN]
    }
}

/// Where packets that the NIC sends go.
pub trait Sink: Send {
    /// The packets of a kick are going to be read: what comes until [`end`](Self::end) is the
    /// emulation's work.
    fn begin(&mut self) {}
    /// They were.
    fn end(&mut self) {}

    /// One packet, from its first byte to its last.
    fn read(&mut self, packet: &[u8]);

    /// One packet as a NIC with [offloads](NicConfig::offloads) was given it: perhaps an aggregate,
    /// perhaps with a partial checksum. By default the NIC cuts and completes it, and
    /// [reads](Self::read) what comes of it; that takes time on the caller's CPU, which real
    /// hardware does not, so a sink in a measured loop looks at `skb` itself.
    ///
    /// Returns the packet, which is sent; `None` if the sink has kept it, as a NIC whose DMA is under
    /// way: then it is sent when [`completed`](Self::completed) returns it.
    fn read_offloaded(&mut self, skb: Skb, segmenter: &mut Segmenter) -> Option<Skb> {
        segmenter.cut(&skb, |packet| self.read(packet));
        Some(skb)
    }

    /// A packet that was kept, and is not needed any more. If the device is `closing`, each that was
    /// kept comes back so, whether it was read or not.
    fn completed(&mut self, _closing: bool) -> Option<Skb> {
        None
    }
}

/// Parameters of a [`nic`].
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Largest L3 packet.
    pub mtu: u16,
    /// Descriptors of each RX ring; a power of two. What arrives while so many packets wait is lost.
    pub rx_ring: usize,
    /// Descriptors of each TX ring; a power of two.
    pub tx_ring: usize,
    /// How long each RX queue gathers packets before it interrupts.
    pub coalesce: Coalesce,
    /// It has found the L4 checksum of what it receives right (`rx-checksumming`); the source has
    /// to see that it is.
    pub rx_csum: bool,
    /// What it does by itself with what is sent.
    pub offloads: TxOffloads,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            name: "nic0".into(),
            mac: [2, 0, 0, 0, 1, 0],
            mtu: 1500,
            rx_ring: 128,
            tx_ring: 128,
            coalesce: Coalesce::default(),
            rx_csum: false,
            offloads: TxOffloads::default(),
        }
    }
}

/// An open emulated NIC.
#[derive(Debug)]
pub struct Nic {
    /// The device in its parts.
    pub open: OpenDevice,
    /// One per RX queue.
    pub ports: Vec<NicPort>,
}

struct NicDevice(DeviceInfo);

impl Device for NicDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }
    fn link(&self) -> LinkState {
        LinkState::Up
    }
}

/// Opens an emulated NIC with one queue pair per element of `wires`; `dev` is its device index. Refuses a coalescing
/// that would let packets wait for ever ([`InvalidInput`](std::io::ErrorKind::InvalidInput)).
pub fn nic<S: Source + 'static, K: Sink + 'static>(
    dev: u16,
    config: &NicConfig,
    wires: Vec<(S, K)>,
) -> std::io::Result<Nic> {
    let info = DeviceInfo {
        name: config.name.clone(),
        driver: "mem",
        mode: "emulated NIC".into(),
        ifindex: 0,
        mac: config.mac,
        kernel_mac: None,
        mtu: config.mtu,
        features: Features::default(),
    };
    let mut nic =
        Nic { open: OpenDevice { device: Arc::new(NicDevice(info)), rx: vec![], tx: vec![] }, ports: vec![] };
    for (queue, (source, sink)) in wires.into_iter().enumerate() {
        let bell = Arc::new(MemDoorbell::new()?);
        let lost = Arc::new(Counter::default());
        let ring = Ring::new(config.rx_ring);
        let port = NicPort::new(bell.clone(), lost.clone(), ring.slots.len(), config.coalesce);
        nic.ports.push(port.map_err(|why| std::io::Error::new(std::io::ErrorKind::InvalidInput, why))?);
        let (queue, stats) = (queue as u16, Arc::default());
        nic.open.rx.push(match config.rx_csum {
            false => Box::new(NicRx::<_, false> { bell, source, ring, ahead: 0, lost, dev, queue, stats }),
            true => Box::new(NicRx::<_, true> { bell, source, ring, ahead: 0, lost, dev, queue, stats }),
        });
        nic.open.tx.push(match config.offloads == TxOffloads::default() {
            true => Box::new(NicTx {
                sink,
                dev,
                ring: Ring::new(config.tx_ring),
                unsent: 0,
                stats: Arc::default(),
            }),
            false => Box::new(OffloadTx::new(sink, dev, config.offloads, config.tx_ring)),
        });
    }
    Ok(nic)
}

/// A descriptor: a frame, and where the packet lies in it.
struct Descriptor {
    frame: Frame,
    off: u16,
    len: u16,
}

impl Descriptor {
    /// What "DMA" does to a posted frame, and the driver then finds.
    #[inline(always)]
    fn arrive(&mut self, source: &mut impl Source) {
        let off = stagger(self.frame.index(), source.next_len());
        let len = source.write(&mut self.frame.bytes_mut()[off..]);
        (self.off, self.len) = (off as u16, len as u16);
    }
}

/// A ring of descriptors; `tail..head` are filled.
struct Ring {
    slots: Box<[Option<Descriptor>]>,
    head: usize,
    tail: usize,
}

impl Ring {
    fn new(size: usize) -> Self {
        let size = size.next_power_of_two();
        Ring { slots: (0..size).map(|_| None).collect(), head: 0, tail: 0 }
    }

    #[inline(always)]
    fn filled(&self) -> usize {
        self.head - self.tail
    }

    #[inline(always)]
    fn room(&self) -> usize {
        self.slots.len() - self.filled()
    }

    /// The caller has seen that there is room.
    #[inline(always)]
    fn put(&mut self, frame: Frame, off: usize, len: usize) {
        let mask = self.slots.len() - 1;
        let old =
            self.slots[self.head & mask].replace(Descriptor { frame, off: off as u16, len: len as u16 });
        debug_assert!(old.is_none());
        std::mem::forget(old);
        self.head += 1;
    }

    /// The next `n` that are filled, to be written to.
    fn next(&mut self, n: usize) -> impl Iterator<Item = &mut Descriptor> {
        let mask = self.slots.len() - 1;
        let (tail, n) = (self.tail & mask, n.min(self.filled()));
        let (around, ahead) = self.slots.split_at_mut(tail);
        ahead.iter_mut().chain(around).take(n).flatten()
    }

    #[inline(always)]
    fn take(&mut self) -> Option<Descriptor> {
        if self.head == self.tail {
            return None;
        }
        let mask = self.slots.len() - 1;
        self.tail += 1;
        self.slots[(self.tail - 1) & mask].take()
    }
}

/// With `CHECKED`, packets come with their checksum found right. (A parameter, so that queues
/// without pay nothing.)
struct NicRx<S, const CHECKED: bool> {
    bell: Arc<MemDoorbell>,
    source: S,
    ring: Ring,
    /// Descriptors at the tail that were written [ahead](Source::AHEAD).
    ahead: usize,
    /// What the port lost; `ring_drops` follows it, which the queue alone writes.
    lost: Arc<Counter>,
    dev: u16,
    queue: u16,
    stats: Arc<QueueStats>,
}

/// Where the NIC puts a packet of `len` bytes in frame `index`: staggered over cache lines as far as there is
/// room, since packets at the same offset of every 2 KiB frame would share two of L1's 64 sets.
#[inline(always)]
fn stagger(index: u32, len: usize) -> usize {
    const FIRST: usize = 128;
    let colours = if len <= 512 {
        16
    } else if len <= FRAME_SIZE - FIRST - 4 * 64 {
        4
    } else {
        1
    };
    FIRST + (index as usize >> 1 & (colours - 1)) * 64
}

impl<S, const CHECKED: bool> NicRx<S, CHECKED> {
    #[inline(always)]
    fn count_lost(&self) {
        let drops = &self.stats.ring_drops;
        drops.add(self.lost.get().wrapping_sub(drops.get()));
    }
}

impl<S: Source, const CHECKED: bool> NicRx<S, CHECKED> {
    /// [`rx_burst`](RxQueue::rx_burst) where packets may take several frames.
    fn rx_aggregates(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        let want = (self.bell.waiting() as usize).min(budget).min(batch.room());
        let (mut got, mut bytes) = (0, 0);
        while got < want {
            if self.source.next_len() == 0 {
                // Nothing of it can be received, and those behind it are not to wait for it.
                self.source.end_packet();
                ctx.count_drops(self.dev, DropReason::PktTooSmall, 1);
                got += 1;
                continue;
            }
            let Some(mut skb) = self.scatter(ctx) else { break };
            got += 1;
            bytes += skb.len() as u64;
            let head = skb.head_mut();
            (head.dev, head.queue) = (self.dev, self.queue);
            if CHECKED {
                head.csum = Csum::Unnecessary;
            }
            let header = VnetHdr::from_bytes(self.source.end_packet());
            if let Err(reason) = vnet::receive(header, &mut skb, true) {
                ctx.free_at(skb, self.dev, reason);
            } else if let Err(skb) = batch.push(skb) {
                // Not reached: there is room.
                ctx.free_at(skb, self.dev, DropReason::NoFrame);
            }
        }
        self.bell.took(got as u64);
        self.stats.packets.add(got as u64);
        self.stats.bytes.add(bytes);
        self.count_lost();
        got
    }

    /// Writes the next packet to as many posted frames as it takes. `None` if there are too few
    /// frames or heads: it stays on the wire.
    fn scatter(&mut self, ctx: &mut SoftnetData) -> Option<Skb> {
        if self.ring.filled() < self.source.next_len().div_ceil(ROOM) {
            return None;
        }
        let NicRx { ring, source, .. } = self;
        let mut to = Scatter { ctx, ring, packet: None, chain: FrameChain::new(), frame: None, len: 0 };
        let mut all = true;
        source.pieces(|piece| all = all && to.write(piece));
        let all = all && to.end_frame();
        let Scatter { ctx, packet, chain, frame, .. } = to;
        frame.into_iter().for_each(|frame| ctx.free_frame(frame));
        let mut packet = packet?;
        // It is of the same region, and not too long.
        packet.append_chain(chain).unwrap_or_else(|_| unreachable!("a chain of a packet's length"));
        if !all {
            ctx.free_skb(packet);
            return None;
        }
        Some(packet)
    }

    /// Posts frames: by the batch, and so that as many are posted as a burst takes, or as the ring
    /// has.
    #[inline(always)]
    fn post(&mut self, ctx: &mut SoftnetData) {
        let room = self.ring.room();
        if room >= self.ring.slots.len().saturating_sub(BATCH).clamp(1, BATCH) {
            ctx.alloc_frames(room, |frame| self.ring.put(frame, 0, 0));
        }
    }

    /// Posts frames, and has packets arrive of which up to `most` are to be taken. Returns how many
    /// are.
    #[inline(always)]
    fn prepare(&mut self, ctx: &mut SoftnetData, most: usize) -> usize {
        self.post(ctx);
        let waiting = self.bell.waiting() as usize;
        let want = waiting.min(most);
        let NicRx { ring, source, ahead, .. } = self;
        if S::AHEAD && want > *ahead {
            source.begin();
            ring.next(want).skip(*ahead).for_each(|posted| posted.arrive(source));
            source.end();
            *ahead = want.min(ring.filled());
        }
        want
    }

    /// `got` packets of `bytes` bytes were taken.
    #[inline(always)]
    fn took(&mut self, got: usize, bytes: u64) {
        self.ahead = self.ahead.saturating_sub(got);
        self.bell.took(got as u64);
        self.stats.packets.add(got as u64);
        self.stats.bytes.add(bytes);
        self.count_lost();
    }
}

/// Bytes of a posted frame that are written.
const ROOM: usize = FRAME_SIZE - HEADROOM;

/// A packet that is being written to posted frames, each filled before the next is begun.
struct Scatter<'a> {
    ctx: &'a mut SoftnetData,
    ring: &'a mut Ring,
    /// The first frame.
    packet: Option<Skb>,
    /// The further ones that are full.
    chain: FrameChain,
    /// The one that is being written, and how many bytes it has.
    frame: Option<Frame>,
    len: usize,
}

impl Scatter<'_> {
    /// Writes `piece` behind what is there. Returns whether there were frames and heads for it.
    fn write(&mut self, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            if self.len == ROOM && !self.end_frame() {
                return false;
            }
            if self.frame.is_none() {
                self.frame = self.ring.take().map(|posted| posted.frame);
            }
            let Some(frame) = &mut self.frame else { return false };
            let (now, later) = piece.split_at(piece.len().min(ROOM - self.len));
            let at = HEADROOM + self.len;
            frame.bytes_mut()[at..at + now.len()].copy_from_slice(now);
            (self.len, piece) = (self.len + now.len(), later);
        }
        true
    }

    /// Makes the frame that was written a part of the packet. Returns whether there was a head for it,
    /// and the packet not too long.
    fn end_frame(&mut self) -> bool {
        let Some(frame) = self.frame.take() else { return true };
        let len = std::mem::take(&mut self.len);
        let Scatter { ctx, packet, chain, .. } = self;
        let refused = match packet {
            Some(_) if chain.len() + 1 == MAX_FRAMES => Some(frame),
            Some(_) => ctx.chain_frame(chain, frame, HEADROOM, len).err(),
            None => match ctx.build_skb(frame, HEADROOM, len) {
                Ok(skb) => {
                    *packet = Some(skb);
                    None
                }
                Err(frame) => Some(frame),
            },
        };
        self.frame = refused;
        self.frame.is_none()
    }
}

/// The next packet of a ring.
#[inline(always)]
fn arrive<S: Source>(ring: &mut Ring, source: &mut S, bytes: &mut u64) -> Option<(Frame, usize, usize)> {
    let mut posted = ring.take()?;
    if !S::AHEAD {
        posted.arrive(source);
    }
    *bytes += u64::from(posted.len);
    Some((posted.frame, posted.off.into(), posted.len.into()))
}

impl<S: Source, const CHECKED: bool> RxQueue for NicRx<S, CHECKED> {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        if S::AGGREGATES {
            self.post(ctx);
            return self.rx_aggregates(ctx, batch, budget);
        }
        let want = self.prepare(ctx, budget.min(batch.room()));
        let mut bytes = 0;
        let NicRx { ring, source, dev, queue, .. } = self;
        let packets = std::iter::from_fn(|| arrive(ring, source, &mut bytes));
        // Packets for which there is no head or frame stay on the wire, as those a real NIC can't place.
        let got = ctx.build_skbs(want, packets, batch, |head| {
            head.dev = *dev;
            head.queue = *queue;
            if CHECKED {
                head.csum = Csum::Unnecessary;
            }
        });
        self.took(got, bytes);
        got
    }

    fn rx_frames(&mut self, ctx: &mut SoftnetData, frames: &mut FrameBatch, budget: usize) -> Option<usize> {
        if S::AGGREGATES {
            return None;
        }
        let want = self.prepare(ctx, budget.min(frames.room()));
        (frames.dev, frames.queue) = (self.dev, self.queue);
        frames.csum = if CHECKED { Csum::Unnecessary } else { Csum::None };
        let (mut bytes, mut got) = (0, 0);
        while got < want
            && let Some((frame, off, len)) = arrive(&mut self.ring, &mut self.source, &mut bytes)
        {
            got += 1;
            if let Err(frame) = frames.push(frame, off, len) {
                ctx.free_frame(frame);
                self.stats.ring_drops.add(1);
            }
        }
        self.took(got, bytes);
        Some(got)
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.bell.clone()
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.ring.filled()
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        self.count_lost();
        while let Some(d) = self.ring.take() {
            ctx.free_frame(d.frame);
        }
    }
}

struct NicTx<K> {
    sink: K,
    dev: u16,
    ring: Ring,
    /// Descriptors at the head that were not yet kicked.
    unsent: usize,
    stats: Arc<QueueStats>,
}

impl<K: Sink> TxQueue for NicTx<K> {
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped {
        let freed = self.ring.filled() - self.unsent;
        ctx.free_frames((0..freed).filter_map(|_| Some(self.ring.take()?.frame)));
        Reaped { freed, held: self.unsent, room: self.ring.room() }
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let n = self.ring.room().min(batch.len());
        let (mut packets, mut bytes) = (0, 0);
        ctx.take_frames(self.dev, batch, n, |frame, off, len| {
            packets += 1;
            bytes += len as u64;
            self.ring.put(frame, off, len);
        });
        self.unsent += packets;
        self.stats.packets.add(packets as u64);
        self.stats.bytes.add(bytes);
        n
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        let mask = self.ring.slots.len() - 1;
        self.sink.begin();
        for at in self.ring.head - self.unsent..self.ring.head {
            if let Some(d) = &self.ring.slots[at & mask] {
                self.sink.read(&d.frame.bytes()[usize::from(d.off)..][..usize::from(d.len)]);
            }
        }
        self.sink.end();
        self.unsent = 0;
        self.stats.kicks.add(1);
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.ring.filled()
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        while let Some(d) = self.ring.take() {
            ctx.free_frame(d.frame);
        }
    }
}
