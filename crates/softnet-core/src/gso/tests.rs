//! Aggregates on their way out: by a TX queue that cuts or does not, that is full, through
//! disciplines; and copies of them.

use std::sync::{Arc, Mutex};

use super::*;
use crate::gro::GroMode;
use crate::gro::rig::{ACK, PSH, Packet, Rig, is_sound};
use crate::qdisc::{DevParams, Origin, Spec};
use crate::skb::{BATCH, Region};
use crate::stack::device::{QueueStats, Reaped, TxQueue};
use crate::stack::tx_queue::{NEVER, NetdevQueue, TxWake};

/// What a device sent, and how much room it has.
#[derive(Default)]
struct Wire {
    sent: Vec<Vec<u8>>,
    room: usize,
    aggregates: usize,
}

struct Nic {
    wire: Arc<Mutex<Wire>>,
    stats: Arc<QueueStats>,
    offloads: TxOffloads,
}

impl TxQueue for Nic {
    fn offloads(&self) -> TxOffloads {
        self.offloads
    }

    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        Reaped { freed: 0, held: 0, room: self.wire.lock().unwrap().room }
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let mut wire = self.wire.lock().unwrap();
        let n = wire.room.min(batch.len());
        for skb in batch.drain().take(n) {
            self.stats.packets.add(1);
            self.stats.bytes.add(skb.len() as u64);
            wire.room -= 1;
            wire.aggregates += usize::from(is_aggregate(&skb));
            wire.sent.push(skb.frames().flatten().copied().collect());
            ctx.free_skb(skb);
        }
        n
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        0
    }

    fn close(self: Box<Self>, _: &mut SoftnetData) {}
}

struct Nothing;

impl TxWake for Nothing {
    fn run_at(&self, _: u64) {}
    fn made_room(&self) {}
}

type Queue = NetdevQueue<Nothing>;

fn queue(
    region: &Region,
    qdisc: Option<&str>,
    offloads: TxOffloads,
    room: usize,
) -> (Queue, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire { room, ..Wire::default() }));
    let nic = Nic { wire: wire.clone(), stats: Arc::default(), offloads };
    let qdisc = qdisc.map(|spec| {
        let spec: Spec = spec.parse().unwrap();
        spec.build(&DevParams { mtu: 1500, tx_queue_len: 1000 }).unwrap().unwrap()
    });
    (NetdevQueue::new(region, 0, qdisc, Box::new(nic), 1000, Nothing), wire)
}

/// `n` segments of `len` bytes, and what GRO makes of them.
fn aggregate(rig: &mut Rig, n: usize, len: usize) -> (Vec<Vec<u8>>, Skb) {
    let packets: Vec<Packet> = (0..n)
        .map(|i| Packet {
            id: 5 + i as u16,
            seq: (i * len) as u32,
            payload: vec![i as u8; len],
            flags: if i + 1 == n { ACK | PSH } else { ACK },
            ..Packet::new(false, true)
        })
        .collect();
    let mut skbs = rig.receive(&packets);
    assert_eq!(skbs.len(), 1);
    (packets.iter().map(Packet::bytes).collect(), skbs.pop().unwrap())
}

/// The same of more segments than come at once.
fn long_aggregate(rig: &mut Rig, n: usize, len: usize) -> (Vec<Vec<u8>>, Skb) {
    let packets: Vec<Packet> = (0..n)
        .map(|i| Packet {
            id: i as u16,
            seq: (i * len) as u32,
            payload: vec![i as u8; len],
            ..Packet::new(false, true)
        })
        .collect();
    packets.chunks(64).for_each(|some| assert!(rig.receive(some).is_empty()));
    let skb = rig.flush(false).pop().unwrap();
    assert_eq!(skb.segments(), n);
    (packets.iter().map(Packet::bytes).collect(), skb)
}

/// What was sent is no more the rig's.
fn settle(rig: &mut Rig, sent: usize) {
    rig.ctx.delivered(sent as u64);
}

const QDISCS: [Option<&str>; 3] = [None, Some("pfifo_fast"), Some("bfifo limit 1000000")];

#[test]
fn a_queue_cuts_what_its_device_does_not() {
    for qdisc in QDISCS {
        for (offloads, whole) in [
            (TxOffloads::default(), false),
            (TxOffloads { csum: true, ..TxOffloads::default() }, false),
            (TxOffloads { tso4: true, ..TxOffloads::default() }, false),
            (TxOffloads { csum: true, tso6: true, uso: true, tso4: false }, false),
            (TxOffloads { csum: true, tso4: true, ..TxOffloads::default() }, true),
        ] {
            let mut rig = Rig::new(GroMode::Frags);
            let (queue, wire) = queue(&rig.region, qdisc, offloads, 1000);
            let (packets, skb) = aggregate(&mut rig, 40, 1000);
            let (more, other) = aggregate(&mut rig, 2, 10);
            let mut batch = Batch::from(skb);
            batch.push(other).unwrap();
            queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut batch);
            let sent = std::mem::take(&mut *wire.lock().unwrap());
            let n = if whole { 2 } else { 42 };
            assert_eq!((sent.sent.len(), sent.aggregates), (n, if whole { 2 } else { 0 }));
            assert!(whole || sent.sent == [packets, more].concat());
            assert_eq!(queue.stats().packets.get(), n as u64);
            queue.close(&mut rig.ctx);
            settle(&mut rig, n);
        }
    }
}

/// The ring has room for a few at a time: the rest waits, and leaves in order, before what is sent
/// later.
#[test]
fn segments_that_do_not_fit_leave_later_and_first() {
    for qdisc in QDISCS {
        let mut rig = Rig::new(GroMode::Frags);
        let (queue, wire) = queue(&rig.region, qdisc, TxOffloads::default(), 7);
        let (mut expected, skb) = long_aggregate(&mut rig, 200, 100);
        queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut skb.into());
        assert_eq!(wire.lock().unwrap().sent, expected[..7]);
        assert_eq!(queue.ring().held.load(std::sync::atomic::Ordering::Relaxed), 7 + 193);
        if qdisc.is_some() {
            // It waits in the discipline; without one it is sent at once, and finds no room.
            let (more, skb) = aggregate(&mut rig, 3, 50);
            queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut skb.into());
            expected.extend(more);
        }
        let mut now = 0;
        while wire.lock().unwrap().sent.len() < expected.len() {
            assert!(queue.next_due() != NEVER, "no run is wanted");
            now = now.max(queue.next_due());
            wire.lock().unwrap().room = 10;
            assert!(queue.run(&mut rig.ctx, now));
        }
        assert_eq!(wire.lock().unwrap().sent, expected);
        queue.close(&mut rig.ctx);
        let n = expected.len();
        settle(&mut rig, n);
    }
}

#[test]
fn a_queue_that_is_closed_drops_the_segments_that_wait() {
    let mut rig = Rig::new(GroMode::Frags);
    let (queue, wire) = queue(&rig.region, Some("pfifo_fast"), TxOffloads::default(), 7);
    let (_, skb) = aggregate(&mut rig, 20, 100);
    queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut skb.into());
    queue.close(&mut rig.ctx);
    assert_eq!(rig.ctx.stats().drops(0, DropReason::Shutdown), 13);
    settle(&mut rig, wire.lock().unwrap().sent.len());
}

/// Disciplines count what leaves, and a short bucket gets segments.
#[test]
fn disciplines_count_segments_and_bytes_on_the_wire() {
    for (spec, cut) in [
        ("pfifo_fast", false),
        ("tbf rate 1gbit burst 100kb limit 1mb", false),
        ("tbf rate 1gbit burst 2kb limit 1mb", true),
    ] {
        let mut rig = Rig::new(GroMode::Frags);
        let (queue, wire) = queue(&rig.region, Some(spec), TxOffloads::default(), 0);
        let (packets, skb) = aggregate(&mut rig, 20, 1000);
        let bytes: usize = packets.iter().map(Vec::len).sum();
        assert_eq!(pkt_len(&skb), bytes);
        queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut skb.into());
        let totals = queue.change(&mut rig.ctx, 0, |qdisc| qdisc.stats().totals()).unwrap();
        assert_eq!((totals.qlen, totals.backlog), (if cut { 20 } else { 1 }, bytes as u64), "{spec}");
        wire.lock().unwrap().room = 100;
        let mut now = 0;
        while wire.lock().unwrap().sent.len() < 20 {
            now = now.max(queue.next_due());
            assert!(now != NEVER && queue.run(&mut rig.ctx, now), "{spec}");
        }
        let totals = queue.change(&mut rig.ctx, 0, |qdisc| qdisc.stats().totals()).unwrap();
        assert_eq!((totals.packets, totals.bytes, totals.qlen, totals.backlog), (20, bytes as u64, 0, 0));
        assert_eq!(wire.lock().unwrap().sent, packets);
        queue.close(&mut rig.ctx);
        settle(&mut rig, 20);
    }
}

/// There is no memory for a copy: the packet is dropped whole, and counted.
#[test]
fn what_cannot_be_cut_is_dropped() {
    let mut rig = Rig::of(GroMode::Frags, 8);
    let (queue, wire) = queue(&rig.region, None, TxOffloads::default(), 100);
    let (_, mut skb) = aggregate(&mut rig, 6, 100);
    // Its frames are no segments any more.
    skb.head_mut().gso_size = 33;
    queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut skb.into());
    assert_eq!((rig.ctx.stats().drops(0, DropReason::NoFrame), wire.lock().unwrap().sent.len()), (1, 0));
    queue.close(&mut rig.ctx);
}

/// A packet with a partial checksum that is no aggregate is completed, or left to the device.
#[test]
fn a_partial_checksum_is_completed() {
    for csum in [false, true] {
        for tcp in [false, true] {
            let mut rig = Rig::new(GroMode::Frags);
            let (queue, wire) = queue(&rig.region, None, TxOffloads { csum, ..TxOffloads::default() }, 10);
            let packet = Packet { payload: vec![3; 77], ..Packet::new(true, tcp) };
            let partial = Packet { check: crate::gro::rig::Check::Partial, ..packet.clone() };
            let mut skb = rig.skb(&partial);
            skb.head_mut().csum = Csum::Partial { start: 54, offset: if tcp { 16 } else { 6 } };
            announce();
            rig.ctx.originate();
            queue.xmit(&mut rig.ctx, 0, Origin::Forwarded, &mut skb.into());
            let expected = if csum { partial.bytes() } else { packet.bytes() };
            assert_eq!(wire.lock().unwrap().sent, [expected]);
            queue.close(&mut rig.ctx);
            settle(&mut rig, 1);
        }
    }
}

/// A copy, as a mirror makes it, is cut into the same segments; a list is not made one frame.
#[test]
fn copies_are_cut_alike() {
    for (mode, tcp) in
        [(GroMode::Frags, true), (GroMode::FragsUdp, false), (GroMode::List, true), (GroMode::List, false)]
    {
        let mut rig = Rig::new(mode);
        let packets: Vec<Packet> = (0..5)
            .map(|i| Packet {
                id: i,
                seq: u32::from(i) * 60,
                payload: vec![i as u8; 60],
                ..Packet::new(false, tcp)
            })
            .collect();
        assert!(rig.receive(&packets).is_empty());
        let mut skb = rig.flush(false).pop().unwrap();
        let copy = rig.ctx.copy(&skb).unwrap();
        rig.ctx.originate();
        assert_eq!(rig.ctx.linearize(&mut skb), mode != GroMode::List);
        let (a, b) = (rig.cut(skb), rig.cut(copy));
        let expected: Vec<_> = packets.iter().map(|packet| (None, packet.bytes())).collect();
        assert_eq!((&a, &b), (&expected, &expected));
        assert!(a.iter().all(|(_, frame)| is_sound(frame, 14)));
    }
}

/// More segments than a batch holds come in several.
#[test]
fn a_batch_is_cut_into_batches() {
    let mut rig = Rig::new(GroMode::Frags);
    let (mut expected, skb) = aggregate(&mut rig, 50, 20);
    let mut batch = Batch::from(skb);
    let (more, skb) = aggregate(&mut rig, 64, 20);
    batch.push(skb).unwrap();
    expected.extend(more);
    let (mut got, mut lens) = (vec![], vec![]);
    segment_batch(&mut rig.ctx, &mut batch, |ctx, segments| {
        lens.push(segments.len());
        for skb in segments.drain() {
            got.push(skb.data().to_vec());
            ctx.deliver(skb);
        }
    });
    assert_eq!((batch.len(), lens), (0, vec![BATCH, 50]));
    assert_eq!(got, expected);
}

/// Headers that were changed to another family's: a list is cut as one piece of payload.
#[test]
fn a_list_whose_headers_are_others_is_cut_by_the_first() {
    let mut rig = Rig::new(GroMode::List);
    let packets: Vec<Packet> = (0..4)
        .map(|i| Packet { seq: i * 100, payload: vec![i as u8; 100], ..Packet::new(true, true) })
        .collect();
    assert!(rig.receive(&packets).is_empty());
    let mut skb = rig.flush(false).pop().unwrap();
    let ipv4: Vec<Packet> = packets.iter().map(|p| Packet { v6: false, ..p.clone() }).collect();
    skb.pull(20).unwrap();
    let headers = ipv4[0].bytes();
    skb.data_mut()[..54].copy_from_slice(&headers[..54]);
    let frames = rig.cut(skb);
    assert_eq!(frames.len(), 4);
    for (i, (_, frame)) in frames.iter().enumerate() {
        let expected = Packet { id: ipv4[0].id.wrapping_add(i as u16), ..ipv4[i].clone() };
        assert_eq!(*frame, expected.bytes());
    }
}
