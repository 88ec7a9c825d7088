use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, CacheSizes, DropReason, HeapMemory, Region, Skb};

use super::*;
use crate::device::{Doorbell, LinkState, OpenDevice};

mod offload;
mod steered;
mod wire;

const FRAMES: u32 = 512;

fn context() -> SoftnetData {
    let memory = HeapMemory::new(Region::bytes(FRAMES, FRAMES));
    SoftnetData::new(Region::new(Box::new(memory), FRAMES, FRAMES).unwrap(), CacheSizes::default())
}

fn packet(ctx: &mut SoftnetData, tag: u8, len: usize) -> Skb {
    let mut skb = ctx.alloc_skb().unwrap();
    skb.put(len).unwrap().fill(tag);
    skb
}

fn all_home(mut ctx: SoftnetData) {
    ctx.drain();
    let region = ctx.region().clone();
    assert_eq!((region.frames_free(), region.heads_free()), (FRAMES.into(), FRAMES.into()));
}

fn close(open: OpenDevice, ctx: &mut SoftnetData) {
    open.rx.into_iter().for_each(|queue| queue.close(ctx));
    open.tx.into_iter().for_each(|queue| queue.close(ctx));
}

/// Whether the doorbell's descriptor is readable now.
fn rings(bell: &dyn Doorbell) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn a_pair_carries_each_queue_in_order_and_refuses_when_full() {
    let mut ctx = context();
    let config = PairConfig { queues: 2, ring: 4, ..PairConfig::default() };
    let [mut a, mut b] = pair(ctx.region(), [3, 4], &config).unwrap();
    let mut batch = Batch::new();
    for tag in 0..6 {
        let skb = packet(&mut ctx, tag, 60 + usize::from(tag));
        batch.push(skb).unwrap();
    }
    assert_eq!(a.tx[1].tx_burst(&mut ctx, &mut batch), 4);
    assert!(!b.rx[1].doorbell().pending(), "nothing is on the wire before the kick");
    a.tx[1].kick(&mut ctx);
    let mut got = Batch::new();
    assert_eq!(b.rx[0].rx_burst(&mut ctx, &mut got, 64), 0);
    assert_eq!(b.rx[1].rx_burst(&mut ctx, &mut got, 3), 3);
    assert_eq!(a.tx[1].tx_burst(&mut ctx, &mut batch), 2);
    a.tx[1].kick(&mut ctx);
    assert_eq!(b.rx[1].rx_burst(&mut ctx, &mut got, 64), 3);
    for (tag, skb) in got.drain().enumerate() {
        assert_eq!(skb.data(), vec![tag as u8; 60 + tag]);
        assert_eq!((skb.head().dev, skb.head().queue), (4, 1));
        ctx.free_skb(skb);
    }
    assert_eq!((b.rx[1].stats().packets.get(), b.rx[1].stats().bytes.get()), (6, 375));
    assert_eq!(b.device.link(), LinkState::Up);
    close(a, &mut ctx);
    assert_eq!(b.device.link(), LinkState::Down);
    close(b, &mut ctx);
    all_home(ctx);
}

/// A packet of several frames leaves in one; one that does not fit is freed, counted, and takes no place in the ring.
#[test]
fn packets_of_several_frames_leave_in_one_or_not_at_all() {
    let mut ctx = context();
    let chain = |ctx: &mut SoftnetData, lens: &[usize]| {
        let mut skb = packet(ctx, 7, lens[0]);
        lens[1..].iter().for_each(|len| skb.append(packet(ctx, 7, *len)).unwrap());
        skb
    };
    let three = |ctx: &mut SoftnetData| {
        let mut batch = Batch::new();
        for lens in [&[40, 30, 30][..], &[1500, 1500], &[100]] {
            batch.push(chain(ctx, lens)).unwrap();
        }
        batch
    };
    let config = PairConfig { ring: 4, ..PairConfig::default() };
    let [mut a, mut b] = pair(ctx.region(), [2, 3], &config).unwrap();
    for sent in [2, 4] {
        let mut batch = three(&mut ctx);
        // The second time there is room for two, one of which does not need it.
        while !batch.is_empty() {
            assert!(a.tx[0].tx_burst(&mut ctx, &mut batch) > 0);
        }
        let stats = a.tx[0].stats();
        assert_eq!((stats.packets.get(), stats.bytes.get()), (sent, sent * 100));
    }
    assert_eq!(a.tx[0].reap(&mut ctx).room, 0);
    a.tx[0].kick(&mut ctx);
    let mut got = Batch::new();
    assert_eq!(b.rx[0].rx_burst(&mut ctx, &mut got, 64), 4);
    for skb in got.drain() {
        assert_eq!((skb.data(), skb.is_chained()), (&[7; 100][..], false));
        ctx.free_skb(skb);
    }
    [a, b].into_iter().for_each(|end| close(end, &mut ctx));
    let sum = Arc::new(AtomicU64::new(0));
    let Nic { open: mut nic, .. } =
        nic(5, &NicConfig::default(), vec![(Count(0), Sum(sum.clone()))]).unwrap();
    let mut batch = three(&mut ctx);
    assert_eq!(nic.tx[0].tx_burst(&mut ctx, &mut batch), 3);
    nic.tx[0].kick(&mut ctx);
    assert_eq!((sum.load(Ordering::Relaxed), nic.tx[0].reap(&mut ctx).freed), (14, 2));
    close(nic, &mut ctx);
    // They came by device 0: what counts is by which they were to leave.
    assert_eq!([0, 2, 5].map(|dev| ctx.stats().drops(dev, DropReason::Nonlinear)), [0, 2, 1]);
    all_home(ctx);
}

#[test]
fn packets_on_the_wire_of_a_closed_pair_go_home() {
    let mut ctx = context();
    let [mut a, b] = pair(ctx.region(), [0, 1], &PairConfig::default()).unwrap();
    let mut batch = Batch::new();
    let skb = packet(&mut ctx, 1, 60);
    batch.push(skb).unwrap();
    a.tx[0].tx_burst(&mut ctx, &mut batch);
    a.tx[0].kick(&mut ctx);
    close(b, &mut ctx);
    assert_eq!(ctx.stats().dropped(), 1);
    let skb = packet(&mut ctx, 1, 60);
    batch.push(skb).unwrap();
    assert_eq!(a.tx[0].tx_burst(&mut ctx, &mut batch), 1, "taken, but the other end is gone");
    assert!(batch.is_empty() && a.tx[0].down());
    assert_eq!((ctx.stats().drops(0, DropReason::DevReady), ctx.stats().dropped()), (1, 2));
    close(a, &mut ctx);
    all_home(ctx);
}

#[test]
fn an_end_that_is_dropped_is_closed() {
    let mut ctx = context();
    let config = PairConfig { ring: 2, ..PairConfig::default() };
    let [mut a, b] = pair(ctx.region(), [0, 1], &config).unwrap();
    drop(b);
    let mut batch = Batch::new();
    for _ in 0..5 {
        let skb = packet(&mut ctx, 1, 60);
        batch.push(skb).unwrap();
    }
    assert_eq!((a.tx[0].tx_burst(&mut ctx, &mut batch), batch.len()), (5, 0));
    assert_eq!(ctx.stats().drops(0, DropReason::DevReady), 5);
    close(a, &mut ctx);
    all_home(ctx);
}

#[test]
fn a_doorbell_rings_only_for_a_sleeper() {
    let mut ctx = context();
    let [mut a, mut b] = pair(ctx.region(), [0, 1], &PairConfig::default()).unwrap();
    let bell = b.rx[0].doorbell();
    let mut send = |ctx: &mut SoftnetData| {
        let mut batch = Batch::new();
        let skb = packet(ctx, 1, 60);
        batch.push(skb).unwrap();
        a.tx[0].tx_burst(ctx, &mut batch);
        a.tx[0].kick(ctx);
    };
    send(&mut ctx);
    assert!(bell.pending() && !rings(&*bell), "masked: seen by a look, not heard");
    bell.unmask();
    assert!(bell.pending(), "the look after unmasking finds what came before");
    send(&mut ctx);
    assert!(rings(&*bell));
    bell.mask();
    assert!(!rings(&*bell));
    send(&mut ctx);
    assert!(!rings(&*bell));
    let mut got = Batch::new();
    assert_eq!(b.rx[0].rx_burst(&mut ctx, &mut got, 64), 3);
    got.drain().for_each(|skb| ctx.free_skb(skb));
    close(a, &mut ctx);
    close(b, &mut ctx);
    all_home(ctx);
}

struct Count(u8);

impl Source for Count {
    fn next_len(&self) -> usize {
        100
    }
    fn write(&mut self, buf: &mut [u8]) -> usize {
        buf[..100].fill(self.0);
        self.0 = self.0.wrapping_add(1);
        100
    }
}

struct Sum(Arc<AtomicU64>);

impl Sink for Sum {
    fn read(&mut self, packet: &[u8]) {
        assert_eq!(packet, [packet[0]; 100]);
        self.0.fetch_add(packet[0].into(), Ordering::Relaxed);
    }
}

#[test]
fn a_nic_moves_packets_between_wires_and_holds_its_rings() {
    let mut ctx = context();
    let sum = Arc::new(AtomicU64::new(0));
    let config = NicConfig { rx_ring: 64, tx_ring: 16, ..NicConfig::default() };
    let Nic { open: mut nic, mut ports } = nic(7, &config, vec![(Count(0), Sum(sum.clone()))]).unwrap();
    let mut batch = Batch::new();
    assert_eq!(nic.rx[0].rx_burst(&mut ctx, &mut batch, 64), 0, "nothing was offered");
    assert_eq!(nic.rx[0].held(), 64);
    ports[0].offer(20);
    assert_eq!(nic.rx[0].rx_burst(&mut ctx, &mut batch, 64), 20);
    assert_eq!(batch.as_slice()[0].head().dev, 7);
    assert_eq!(nic.tx[0].tx_burst(&mut ctx, &mut batch), 16, "the ring has room for 16");
    nic.tx[0].kick(&mut ctx);
    assert_eq!((batch.len(), nic.tx[0].held()), (4, 16));
    assert_eq!(nic.tx[0].reap(&mut ctx).freed, 16);
    assert_eq!(nic.tx[0].tx_burst(&mut ctx, &mut batch), 4);
    assert_eq!(nic.tx[0].reap(&mut ctx).freed, 0, "not sent yet");
    nic.tx[0].kick(&mut ctx);
    assert_eq!(sum.load(Ordering::Relaxed), (0..20).sum());
    close(nic, &mut ctx);
    all_home(ctx);
}

#[test]
fn a_nic_without_frames_or_heads_leaves_packets_on_the_wire() {
    let memory = HeapMemory::new(Region::bytes(128, 4));
    let region = Region::new(Box::new(memory), 128, 4).unwrap();
    let mut ctx = SoftnetData::new(region.clone(), CacheSizes::default());
    let sum = Arc::new(AtomicU64::new(0));
    let Nic { open: mut nic, mut ports } = nic(0, &NicConfig::default(), vec![(Count(0), Sum(sum))]).unwrap();
    ports[0].offer(10);
    let mut batch = Batch::new();
    assert_eq!(nic.rx[0].rx_burst(&mut ctx, &mut batch, 64), 4);
    assert_eq!((ports[0].waiting(), region.exhausted()), (6, 1));
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    assert_eq!(nic.rx[0].rx_burst(&mut ctx, &mut batch, 64), 4);
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    close(nic, &mut ctx);
    drop(ctx);
    assert_eq!((region.frames_free(), region.heads_free()), (128, 4));
}

/// Writes packets of a poll ahead, and sees to it that there is one begin and one end around them.
struct Ahead(Count, Arc<AtomicU64>, bool);

impl Source for Ahead {
    const AHEAD: bool = true;

    fn begin(&mut self) {
        assert!(!std::mem::replace(&mut self.2, true));
    }
    fn end(&mut self) {
        assert!(std::mem::replace(&mut self.2, false));
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn next_len(&self) -> usize {
        self.0.next_len()
    }
    fn write(&mut self, buf: &mut [u8]) -> usize {
        assert!(self.2);
        self.0.write(buf)
    }
}

/// What was written ahead and found no head comes later, once, and in order; whatever way round the
/// ring.
#[test]
fn packets_that_are_written_ahead_come_once() {
    let memory = HeapMemory::new(Region::bytes(128, 24));
    let region = Region::new(Box::new(memory), 128, 24).unwrap();
    let mut ctx = SoftnetData::new(region.clone(), CacheSizes::default());
    let (sum, polls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let config = NicConfig { rx_ring: 64, ..NicConfig::default() };
    let source = Ahead(Count(0), polls.clone(), false);
    let Nic { open: mut nic, mut ports } = nic(0, &config, vec![(source, Sum(sum))]).unwrap();
    let mut batch = Batch::new();
    let mut next = 0u8;
    for offered in [10, 30, 30, 64, 5] {
        ports[0].offer(offered);
        while ports[0].waiting() > 0 {
            let got = nic.rx[0].rx_burst(&mut ctx, &mut batch, 64);
            assert!((1..=24).contains(&got));
            for skb in batch.drain() {
                assert_eq!(skb.data(), [next; 100]);
                next = next.wrapping_add(1);
                ctx.free_skb(skb);
            }
        }
    }
    assert_eq!(next, 139);
    assert!(polls.load(Ordering::Relaxed) >= 5);
    close(nic, &mut ctx);
    drop(ctx);
    assert_eq!((region.frames_free(), region.heads_free()), (128, 24));
}
