//! Two ports connected back to back: what one sends on queue *i*, the other receives on queue *i*;
//! or, with RSS, on the queue that its table says (`steered.rs`).
//!
//! A queue's wire is a ring of descriptors with one producer (the holder of the TX lock) and one consumer (the
//! owner of the NAPI instance at the other end). Frames change hands; no byte is copied.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason, Frame, Region};
use softnet_core::steer::{FLOW_LOCATIONS, FlowKey};
use softnet_core::sync::{AtomicBool, AtomicU64, Ordering};

use super::doorbell::MemDoorbell;
use super::steered::{Direction, PortClass, direction};
use crate::device::{
    Device, DeviceInfo, Doorbell, Features, LinkState, OpenDevice, QueueStats, Reaped, RxQueue, TxQueue,
};
use crate::rx_class::{RssChange, RssView, RuleOrder, RuleView, RxClassError};

/// Parameters of a [`pair`].
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Queue pairs of each port.
    pub queues: usize,
    /// Descriptors of each queue; a power of two.
    pub ring: usize,
    /// MAC addresses of the two ports.
    pub macs: [[u8; 6]; 2],
    /// Names of the two ports.
    pub names: [String; 2],
    /// Largest L3 packet.
    pub mtu: u16,
    /// Each port has RSS and filters: by which queue a packet is received does not depend on the
    /// queue that it was sent by. Takes a ring for each pair of queues.
    pub rss: bool,
}

impl Default for PairConfig {
    fn default() -> Self {
        PairConfig {
            queues: 1,
            ring: 1024,
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            names: ["mem0".into(), "mem1".into()],
            mtu: 1500,
            rss: false,
        }
    }
}

/// One direction of one queue.
struct Wire {
    region: Arc<Region>,
    slots: Box<[AtomicU64]>,
    bell: Arc<MemDoorbell>,
    /// The receiving end was closed, or dropped: nothing may be put on any more.
    closed: AtomicBool,
}

struct Port {
    info: DeviceInfo,
    peer: Arc<AtomicBool>,
    alive: Arc<AtomicBool>,
    /// RSS and filters of what it receives.
    class: Option<Arc<PortClass>>,
}

impl Port {
    fn class(&self) -> Result<&PortClass, RxClassError> {
        let wired = || "its queues are wired one to one to those of its peer (PairConfig::rss is off)".into();
        self.class.as_deref().ok_or_else(|| RxClassError::NotSupported(wired()))
    }
}

impl Device for Port {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn link(&self) -> LinkState {
        if self.peer.load(Ordering::Relaxed) { LinkState::Up } else { LinkState::Down }
    }
    fn losses(&self) -> Vec<(DropReason, u64)> {
        self.class.iter().map(|class| (DropReason::NtupleDrop, class.dropped())).collect()
    }
    fn rss(&self) -> Result<RssView, RxClassError> {
        Ok(self.class()?.rss())
    }
    fn set_rss(&self, change: &RssChange) -> Result<Option<u32>, RxClassError> {
        self.class()?.set_rss(change)
    }
    fn rules(&self) -> Result<Vec<RuleView>, RxClassError> {
        Ok(self.class()?.rules())
    }
    fn set_rule(&self, order: &RuleOrder) -> Result<u32, RxClassError> {
        self.class()?.set_rule(order)
    }
    fn flow_filters(&self) -> u32 {
        if self.class.is_some() { FLOW_LOCATIONS } else { 0 }
    }
    fn set_flow_filter(&self, at: u32, to: Option<(&FlowKey, u16)>) -> Result<(), RxClassError> {
        self.class()?.set_flow_filter(at, to)
    }
    fn filters_settled(&self) -> bool {
        self.class.as_ref().is_none_or(|class| class.is_settled())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}

/// Makes two connected ports on `region`; their device indices are `devs`.
pub fn pair(region: &Arc<Region>, devs: [u16; 2], config: &PairConfig) -> std::io::Result<[OpenDevice; 2]> {
    let (ends, classes) = match config.rss {
        true => steered(region, devs, config)?,
        false => (wired(region, devs, config)?, [None, None]),
    };
    let alive = [Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true))];
    let [first, second] = ends;
    let [first_class, second_class] = classes;
    let port = |side: usize, Direction { rx, tx }, class| OpenDevice {
        device: Arc::new(Port {
            info: DeviceInfo {
                name: config.names[side].clone(),
                driver: "mem",
                mode: String::new(),
                ifindex: 0,
                mac: config.macs[side],
                kernel_mac: None,
                mtu: config.mtu,
                features: Features { zero_copy: true, ..Features::default() },
            },
            alive: alive[side].clone(),
            peer: alive[1 - side].clone(),
            class,
        }),
        rx,
        tx,
    };
    Ok([port(0, first, first_class), port(1, second, second_class)])
}

/// The queues of both ports, and what their packets are steered by.
type Steered = ([Direction; 2], [Option<Arc<PortClass>>; 2]);

fn steered(region: &Arc<Region>, devs: [u16; 2], config: &PairConfig) -> std::io::Result<Steered> {
    let queues = u16::try_from(config.queues).map_err(std::io::Error::other)?;
    // The ports hash by it.
    crate::flow_hkey::draw();
    let classes = [Arc::new(PortClass::new(queues)?), Arc::new(PortClass::new(queues)?)];
    let size = (config.queues, config.ring);
    let there = direction(region, &classes[1], size, (devs[0], devs[1]))?;
    let back = direction(region, &classes[0], size, (devs[1], devs[0]))?;
    let first = Direction { rx: back.rx, tx: there.tx };
    let second = Direction { rx: there.rx, tx: back.tx };
    Ok(([first, second], classes.map(Some)))
}

fn wired(region: &Arc<Region>, devs: [u16; 2], config: &PairConfig) -> std::io::Result<[Direction; 2]> {
    let wire = || -> std::io::Result<Arc<Wire>> {
        Ok(Arc::new(Wire {
            region: region.clone(),
            slots: (0..config.ring.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
            bell: Arc::new(MemDoorbell::new()?),
            closed: AtomicBool::new(false),
        }))
    };
    let mut wires: [Vec<Arc<Wire>>; 2] = [vec![], vec![]];
    for _ in 0..config.queues {
        wires[0].push(wire()?);
        wires[1].push(wire()?);
    }
    Ok([0, 1].map(|side| Direction {
        rx: (0..config.queues)
            .map(|q| {
                let wire = wires[1 - side][q].clone();
                let stats = Arc::default();
                Box::new(PairRx { wire, dev: devs[side], queue: q as u16, stats }) as Box<dyn RxQueue>
            })
            .collect(),
        tx: (0..config.queues)
            .map(|q| {
                let wire = wires[side][q].clone();
                let stats = Arc::default();
                Box::new(PairTx { wire, dev: devs[side], pending: 0, head: 0, stats }) as Box<dyn TxQueue>
            })
            .collect(),
    }))
}

/// A descriptor: a frame, and where the packet lies in it.
pub(super) fn pack(frame: Frame, off: usize, len: usize) -> u64 {
    u64::from(frame.into_raw()) << 32 | (off as u64) << 16 | len as u64
}

/// What [`pack`] made.
///
/// # Safety
/// As of [`Frame::from_raw`]: the frame is of `region`, and each word is unpacked once.
pub(super) unsafe fn unpack(region: &Region, word: u64) -> (Frame, usize, usize) {
    // SAFETY: the caller's promise.
    let frame = unsafe { Frame::from_raw(region, (word >> 32) as u32) };
    (frame, (word >> 16) as u16 as usize, word as u16 as usize)
}

/// Frees what is not of `region`, the one that the other end knows frames of.
pub(super) fn only_of(region: &Region, ctx: &mut SoftnetData, dev: u16, batch: &mut Batch) {
    let region = region.id();
    if batch.as_slice().iter().all(|skb| skb.region() == region) {
        return;
    }
    let mut ours = Batch::new();
    for skb in batch.drain() {
        if skb.region() != region {
            ctx.free_at(skb, dev, DropReason::NoFrame);
        } else if let Err(skb) = ours.push(skb) {
            ctx.free_at(skb, dev, DropReason::FullRing);
        }
    }
    std::mem::swap(batch, &mut ours);
}

struct PairRx {
    wire: Arc<Wire>,
    dev: u16,
    queue: u16,
    stats: Arc<QueueStats>,
}

impl PairRx {
    fn take(&self, at: u64) -> (Frame, usize, usize) {
        let slot = &self.wire.slots[at as usize & (self.wire.slots.len() - 1)];
        let word = slot.load(Ordering::Relaxed);
        // SAFETY: the producer gave the handle up when it wrote the slot, and published it by the doorbell's
        // counter; this end takes each position once.
        unsafe { unpack(&self.wire.region, word) }
    }
}

impl RxQueue for PairRx {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        let n = (self.wire.bell.waiting() as usize).min(budget).min(batch.room());
        let first = self.wire.bell.total_taken();
        let mut bytes = 0;
        let packets = (0..n as u64).map(|i| {
            let (frame, off, len) = self.take(first + i);
            bytes += len as u64;
            (frame, off, len)
        });
        // Packets for which there is no head stay on the wire.
        let got = ctx.build_skbs(n, packets, batch, |head| {
            head.dev = self.dev;
            head.queue = self.queue;
        });
        self.wire.bell.took(got as u64);
        self.stats.packets.add(got as u64);
        self.stats.bytes.add(bytes);
        got
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.wire.bell.clone()
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.wire.bell.waiting() as usize
    }

    fn close(self: Box<Self>, ctx: &mut SoftnetData) {
        self.wire.closed.store(true, Ordering::SeqCst);
        while self.wire.bell.waiting() > 0 {
            let (frame, ..) = self.take(self.wire.bell.total_taken());
            self.wire.bell.took(1);
            ctx.free_frame(frame);
            ctx.count_drops(self.dev, DropReason::Shutdown, 1);
            self.stats.packets.add(1);
        }
    }
}

impl Drop for PairRx {
    fn drop(&mut self) {
        self.wire.closed.store(true, Ordering::SeqCst);
    }
}

struct PairTx {
    wire: Arc<Wire>,
    dev: u16,
    /// Written to the ring, not yet kicked.
    pending: u64,
    /// Position of the next descriptor.
    head: u64,
    stats: Arc<QueueStats>,
}

impl PairTx {
    fn room(&self) -> usize {
        self.wire.slots.len() - (self.wire.bell.waiting() + self.pending) as usize
    }
}

impl TxQueue for PairTx {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        Reaped { freed: 0, held: self.pending as usize, room: self.room() }
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        if self.wire.closed.load(Ordering::SeqCst) {
            // The other end never takes anything again: what waited for it would wait for ever.
            let n = batch.len();
            ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
            return n;
        }
        only_of(&self.wire.region, ctx, self.dev, batch);
        let n = self.room().min(batch.len());
        let (mut packets, mut bytes) = (0, 0);
        ctx.take_frames(self.dev, batch, n, |frame, off, len| {
            packets += 1;
            bytes += len as u64;
            let slot = &self.wire.slots[self.head as usize & (self.wire.slots.len() - 1)];
            slot.store(pack(frame, off, len), Ordering::Relaxed);
            self.head += 1;
        });
        self.pending += packets;
        self.stats.packets.add(packets);
        self.stats.bytes.add(bytes);
        n
    }

    fn down(&self) -> bool {
        self.wire.closed.load(Ordering::SeqCst)
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        if self.pending > 0 {
            self.wire.bell.ring(std::mem::take(&mut self.pending));
            self.stats.kicks.add(1);
        }
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.pending as usize
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        self.kick(ctx);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Both ends are gone. A packet sent while the receiving end was being closed goes home here.
        let (mut at, left) = (self.bell.total_taken(), self.bell.waiting());
        let mut home = SoftnetData::new(self.region.clone(), Default::default());
        for _ in 0..left {
            let word = self.slots[at as usize & (self.slots.len() - 1)].load(Ordering::Relaxed);
            // SAFETY: as in `PairRx::take`; no other code is left to take it.
            home.free_frame(unsafe { Frame::from_raw(&self.region, (word >> 32) as u32) });
            at += 1;
        }
    }
}
