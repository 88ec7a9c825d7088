//! The wires of a pair with RSS: what one port sends by whichever TX queue, the other receives by
//! the RX queue that its filters and its table say.
//!
//! From each TX queue to each RX queue there is a lane of its own, with one producer (the owner of
//! the TX queue) and one consumer (the owner of the NAPI instance); an RX queue takes from its
//! lanes in turn, and has one doorbell for all. Packets of a flow that one TX queue sends stay in
//! order as long as filters and table stay as they are. After a change what is still in a lane may
//! be overtaken, as on any NIC; nothing is lost. A TX queue goes by one [`Revision`] of them from
//! its first packet to its kick, so that it is known when nothing more comes by an old one.
//!
//! A lane that is full holds back its TX queue as a whole (as pause frames would), so a pair loses
//! nothing but what a filter drops. Invariant: an RX queue's doorbell counts no packet before it
//! can be taken.

use std::sync::{Arc, Mutex, PoisonError};

use softnet_core::SoftnetData;
use softnet_core::skb::{BATCH, Batch, DropReason, Frame, Region};
use softnet_core::steer::{FlowKey, Follower, Revision, RssChange, Rule, RuleOrder, RxClass, Verdict};
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::doorbell::MemDoorbell;
use super::pair::{only_of, pack, unpack};
use crate::device::{Doorbell, QueueStats, Reaped, RxQueue, TxQueue};
use crate::rx_class::{RssView, RuleView, RxClassError};

/// Filters and RSS of a port: changed by control threads, followed by the TX queues of the other
/// port.
pub(super) struct PortClass {
    class: Mutex<Arc<RxClass>>,
    /// Counts the changes, so that a sender looks at the lock only after one.
    revision: Revision,
    /// The other port's TX queues.
    senders: Mutex<Vec<Arc<Follower>>>,
    /// Packets that filters dropped.
    dropped: AtomicU64,
}

impl PortClass {
    pub(super) fn new(queues: u16) -> std::io::Result<Self> {
        let class = RxClass::new(queues).map_err(std::io::Error::other)?;
        Ok(PortClass {
            class: Mutex::new(Arc::new(class)),
            revision: Revision::default(),
            senders: Mutex::default(),
            dropped: AtomicU64::new(0),
        })
    }

    fn now(&self) -> Arc<RxClass> {
        self.class.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change<T, E>(&self, change: impl FnOnce(&mut RxClass) -> Result<T, E>) -> Result<T, E> {
        let mut class = self.class.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = RxClass::clone(&class);
        let done = change(&mut next)?;
        *class = Arc::new(next);
        // Under the lock: a sender that sees the number finds what it stands for, or something
        // newer.
        self.revision.publish();
        Ok(done)
    }

    pub(super) fn rss(&self) -> RssView {
        RssView::from(&*self.now())
    }

    pub(super) fn set_rss(&self, change: &RssChange) -> Result<Option<u32>, RxClassError> {
        Ok(self.change(|class| class.set_rss(change))?)
    }

    pub(super) fn rules(&self) -> Vec<RuleView> {
        let view = |(location, rule, packets): (u32, Rule, u64), rfs| RuleView {
            location,
            rule: rule.to_string(),
            packets: Some(packets),
            rfs,
        };
        let now = self.now();
        let rules = now.filters().map(|(at, rule, packets)| view((at, *rule, packets), false));
        let mut flows: Vec<RuleView> = now.flow_filters().map(|of| view(of, true)).collect();
        flows.sort_by_key(|view| view.location);
        rules.chain(flows).collect()
    }

    pub(super) fn set_rule(&self, order: &RuleOrder) -> Result<u32, RxClassError> {
        Ok(self.change(|class| class.set_rule(order))?)
    }

    pub(super) fn set_flow_filter(&self, at: u32, to: Option<(&FlowKey, u16)>) -> Result<(), RxClassError> {
        Ok(self.change(|class| class.set_flow_filter(at, to))?)
    }

    /// Whether all that went by older filters than those of now is in its lane.
    pub(super) fn is_settled(&self) -> bool {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        self.revision.is_settled(senders.iter().map(|sender| &**sender))
    }

    fn add_sender(&self) -> Arc<Follower> {
        let sender = Arc::<Follower>::default();
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).push(sender.clone());
        sender
    }

    /// Packets that filters dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// From one TX queue to one RX queue.
struct Lane {
    region: Arc<Region>,
    slots: Box<[AtomicU64]>,
    /// Flow hashes of the packets, where the device's is softnet's own.
    hashes: Box<[AtomicU32]>,
    /// Written by the producer: behind the last packet that can be taken.
    head: AtomicU64,
    /// Written by the consumer: the next packet.
    tail: AtomicU64,
}

impl Lane {
    fn new(region: &Arc<Region>, ring: usize) -> Self {
        let ring = ring.next_power_of_two();
        Lane {
            region: region.clone(),
            slots: (0..ring).map(|_| AtomicU64::new(0)).collect(),
            hashes: (0..ring).map(|_| AtomicU32::new(0)).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }

    /// Takes the next packet, with its hash. For the consumer.
    fn take(&self) -> Option<((Frame, usize, usize), u32)> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail == self.head.load(Ordering::Acquire) {
            return None;
        }
        let at = tail as usize & (self.slots.len() - 1);
        let word = self.slots[at].load(Ordering::Relaxed);
        let hash = self.hashes[at].load(Ordering::Relaxed);
        // SAFETY: the producer gave the handle up when it wrote the slot, and published it by
        // `head`; the consumer takes each position once.
        let packet = unsafe { unpack(&self.region, word) };
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some((packet, hash))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Both ends are gone. A packet sent while the receiving end was being closed goes home
        // here.
        let mut home = SoftnetData::new(self.region.clone(), Default::default());
        while let Some(((frame, ..), _)) = self.take() {
            home.free_frame(frame);
        }
    }
}

/// An RX queue, for those that send to it.
struct Entrance {
    bell: Arc<MemDoorbell>,
    /// It was closed, or dropped: nothing may be sent there any more.
    closed: AtomicBool,
}

/// The queues of one direction.
pub(super) struct Direction {
    pub(super) rx: Vec<Box<dyn RxQueue>>,
    pub(super) tx: Vec<Box<dyn TxQueue>>,
}

/// Queues of one direction, to the port that `class` is of; `from` and `to` are the device indices
/// of both.
pub(super) fn direction(
    region: &Arc<Region>,
    class: &Arc<PortClass>,
    (queues, ring): (usize, usize),
    (from, to): (u16, u16),
) -> std::io::Result<Direction> {
    let entrance = |_| -> std::io::Result<Arc<Entrance>> {
        Ok(Arc::new(Entrance { bell: Arc::new(MemDoorbell::new()?), closed: AtomicBool::new(false) }))
    };
    let entrances: Vec<Arc<Entrance>> = (0..queues).map(entrance).collect::<Result<_, _>>()?;
    // By TX queue, then by RX queue.
    let lanes: Vec<Vec<Arc<Lane>>> =
        (0..queues).map(|_| (0..queues).map(|_| Arc::new(Lane::new(region, ring))).collect()).collect();
    let rx = |(queue, entrance): (usize, &Arc<Entrance>)| {
        let lanes = lanes.iter().map(|lanes| lanes[queue].clone()).collect();
        let (entrance, stats) = (entrance.clone(), Arc::default());
        Box::new(SteeredRx { entrance, lanes, turn: 0, dev: to, queue: queue as u16, stats })
            as Box<dyn RxQueue>
    };
    let tx = |lanes: &Vec<Arc<Lane>>| {
        let out = |(lane, entrance): (&Arc<Lane>, &Arc<Entrance>)| Out {
            lane: lane.clone(),
            entrance: entrance.clone(),
            head: 0,
            pending: 0,
        };
        Box::new(SteeredTx {
            region: region.clone(),
            outs: lanes.iter().zip(&entrances).map(out).collect(),
            revision: class.revision.now(),
            class: class.now(),
            follower: class.add_sender(),
            follows: false,
            port: class.clone(),
            dev: from,
            stats: Arc::default(),
        }) as Box<dyn TxQueue>
    };
    Ok(Direction { rx: entrances.iter().enumerate().map(rx).collect(), tx: lanes.iter().map(tx).collect() })
}

struct SteeredRx {
    entrance: Arc<Entrance>,
    lanes: Vec<Arc<Lane>>,
    /// The lane that is looked at first.
    turn: usize,
    dev: u16,
    queue: u16,
    stats: Arc<QueueStats>,
}

impl RxQueue for SteeredRx {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        let bell = &self.entrance.bell;
        // No more than the doorbell counts: what is in a lane already may not be counted yet.
        let n = (bell.waiting() as usize).min(budget).min(batch.room());
        if n == 0 {
            return 0;
        }
        let (lanes, first) = (&self.lanes, self.turn);
        self.turn = (first + 1) % lanes.len();
        let mut hashes = [0; BATCH];
        let (mut lane, mut taken, mut bytes) = (0, 0, 0);
        let packets = std::iter::from_fn(|| {
            while lane < lanes.len() {
                if let Some((packet, hash)) = lanes[(first + lane) % lanes.len()].take() {
                    hashes[taken & (BATCH - 1)] = hash;
                    taken += 1;
                    bytes += packet.2 as u64;
                    return Some(packet);
                }
                lane += 1;
            }
            None
        });
        let before = batch.len();
        // Packets for which there is no head stay on the wire: none is taken without one.
        let got = ctx.build_skbs(n, packets, batch, |head| {
            head.dev = self.dev;
            head.queue = self.queue;
        });
        for (skb, hash) in batch.as_mut_slice()[before..].iter_mut().zip(hashes) {
            skb.head_mut().hash = hash;
        }
        bell.took(got as u64);
        self.stats.packets.add(got as u64);
        self.stats.bytes.add(bytes);
        got
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.entrance.bell.clone()
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.entrance.bell.waiting() as usize
    }

    fn close(self: Box<Self>, ctx: &mut SoftnetData) {
        self.entrance.closed.store(true, Ordering::SeqCst);
        // What a sender publishes from now on goes home with the lane.
        for lane in &self.lanes {
            while self.entrance.bell.waiting() > 0
                && let Some(((frame, ..), _)) = lane.take()
            {
                self.entrance.bell.took(1);
                ctx.free_frame(frame);
                ctx.count_drops(self.dev, DropReason::Shutdown, 1);
                self.stats.packets.add(1);
            }
        }
    }
}

impl Drop for SteeredRx {
    fn drop(&mut self) {
        self.entrance.closed.store(true, Ordering::SeqCst);
    }
}

/// A TX queue's way to one RX queue.
struct Out {
    lane: Arc<Lane>,
    entrance: Arc<Entrance>,
    /// Position of the next descriptor.
    head: u64,
    /// Written to the lane, not yet kicked.
    pending: u64,
}

impl Out {
    fn room(&self) -> usize {
        let filled = self.head.wrapping_sub(self.lane.tail.load(Ordering::Acquire));
        self.lane.slots.len() - filled as usize
    }

    /// The caller has seen that there is room.
    fn put(&mut self, (frame, off, len): (Frame, usize, usize), hash: u32) {
        let at = self.head as usize & (self.lane.slots.len() - 1);
        self.lane.hashes[at].store(hash, Ordering::Relaxed);
        self.lane.slots[at].store(pack(frame, off, len), Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
        self.pending += 1;
    }

    fn kick(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        if pending > 0 {
            // First what can be taken, then that there is something to take.
            self.lane.head.store(self.head, Ordering::Release);
            self.entrance.bell.ring_shared(pending);
        }
        pending > 0
    }
}

struct SteeredTx {
    region: Arc<Region>,
    outs: Vec<Out>,
    class: Arc<RxClass>,
    /// That of `class`, or of an older one.
    revision: u64,
    /// By which it tells that it goes by `class`; whether it does so now.
    follower: Arc<Follower>,
    follows: bool,
    port: Arc<PortClass>,
    dev: u16,
    stats: Arc<QueueStats>,
}

impl SteeredTx {
    /// Whichever RX queue its packets are for.
    fn room(&self) -> usize {
        self.outs.iter().map(Out::room).min().unwrap_or(0)
    }

    fn pending(&self) -> usize {
        self.outs.iter().map(|out| out.pending as usize).sum()
    }

    /// Before packets are classified: from now on it goes by the filters of now.
    #[inline]
    fn follow(&mut self) {
        if self.follows {
            if self.port.revision.now() == self.revision {
                return;
            }
            self.publish();
        }
        let revision = self.follower.enter(&self.port.revision);
        self.follows = true;
        if revision != self.revision {
            (self.class, self.revision) = (self.port.now(), revision);
        }
    }

    /// What it has put into lanes can be taken, so that it does not matter any more what it went
    /// by. Returns whether there was any.
    fn publish(&mut self) -> bool {
        let any = self.outs.iter_mut().fold(false, |any, out| out.kick() | any);
        if std::mem::take(&mut self.follows) {
            self.follower.leave();
        }
        any
    }
}

impl Drop for SteeredTx {
    fn drop(&mut self) {
        self.follower.leave();
    }
}

impl TxQueue for SteeredTx {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        Reaped { freed: 0, held: self.pending(), room: self.room() }
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        if self.down() {
            // The other end never takes anything again: what waited for it would wait for ever.
            let n = batch.len();
            ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
            return n;
        }
        self.follow();
        only_of(&self.region, ctx, self.dev, batch);
        let n = self.room().min(batch.len());
        let (mut packets, mut bytes) = (0, 0);
        let mut dropped = [const { None }; BATCH];
        let mut drops = 0;
        let SteeredTx { class, outs, .. } = self;
        ctx.take_frames(self.dev, batch, n, |frame, off, len| {
            packets += 1;
            bytes += len as u64;
            match class.classify(&frame.bytes()[off..][..len]) {
                Verdict::Queue { queue, hash } => outs[usize::from(queue)].put((frame, off, len), hash),
                Verdict::Drop => {
                    dropped[drops] = Some(frame);
                    drops += 1;
                }
            }
        });
        if drops > 0 {
            ctx.free_frames(dropped.into_iter().flatten());
            self.port.dropped.fetch_add(drops as u64, Ordering::Relaxed);
        }
        self.stats.packets.add(packets);
        self.stats.bytes.add(bytes);
        if self.pending() == 0 {
            // It may not be kicked.
            self.publish();
        }
        n
    }

    fn down(&self) -> bool {
        self.outs.iter().any(|out| out.entrance.closed.load(Ordering::SeqCst))
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        if self.publish() {
            self.stats.kicks.add(1);
        }
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.pending()
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        self.kick(ctx);
    }
}
