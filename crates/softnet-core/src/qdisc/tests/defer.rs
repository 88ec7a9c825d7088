//! The root of a TX queue.

use super::*;

fn list(world: &World, spec: &str, burst: u32) -> DeferList<Wire> {
    let qdisc = spec.parse::<Spec>().unwrap().build(&DEV).unwrap();
    DeferList::new(&world.region, qdisc, Wire::new(), burst)
}

/// Sends as a local sender, with nothing going on meanwhile.
fn send(world: &mut World, list: &DeferList<Wire>, batch: &mut Batch) -> Sent {
    list.send(&mut || (), 0, Origin::Local, batch, &mut world.to_free)
}

fn set(list: &DeferList<Wire>, room: usize, takes: usize) {
    let mut guard = list.own().expect("no other thread");
    (guard.ring().room, guard.ring().takes) = (room, takes);
    assert!(matches!(guard.finish(&mut || (), 0, &mut ToFree::new()), NextRun::Idle | NextRun::Stopped));
}

fn ids(list: &DeferList<Wire>) -> Vec<u8> {
    let mut guard = list.own().expect("no other thread");
    let ids = guard.ring().ids();
    guard.finish(&mut || (), 0, &mut ToFree::new());
    ids
}

const OWNED: Sent = Sent::Owned { verdict: Verdict::Success, next_run: NextRun::Idle, drained: false };
/// It sent what others handed over, too.
const OWNED_FOR_ALL: Sent = Sent::Owned { verdict: Verdict::Success, next_run: NextRun::Idle, drained: true };

#[test]
fn senders_that_come_while_a_batch_is_on_the_wire_hand_over_and_the_owner_sends_for_all() {
    let mut world = World::new();
    let list = list(&world, "pfifo", 1000);
    let mut a = world.batch([b'A']);
    let mut rounds = [world.batch([b'B']), world.batch([b'C']), world.batch([b'D'])];
    let mut round = 0;
    let during = &mut || {
        // B and C while A is on the wire, D while B and C are.
        let now: &mut [Batch] = match round {
            0 => &mut rounds[..2],
            1 => &mut rounds[2..],
            _ => &mut [],
        };
        round += 1;
        for batch in now {
            let mut to_free = ToFree::new();
            let sent = list.send(&mut || (), 0, Origin::Local, batch, &mut to_free);
            assert!(sent == Sent::Deferred && batch.is_empty() && to_free.is_empty());
        }
    };
    assert_eq!(list.send(during, 0, Origin::Local, &mut a, &mut world.to_free), OWNED_FOR_ALL);
    let mut guard = list.own().unwrap();
    assert_eq!((guard.ring().ids(), &guard.ring().calls[..]), (b"ABCD".to_vec(), &[1, 2, 1][..]));
    let totals = guard.change(|qdisc| qdisc.stats().totals()).unwrap();
    assert_eq!((totals.packets, totals.bytes, totals.qlen, totals.backlog), (4, 400, 0, 0));
    guard.finish(&mut || (), 0, &mut world.to_free);
    world.end(list);
}

#[test]
fn burst_1000_holds_1000_beside_the_owner_then_local_senders_hold_back_and_forwarded_packets_drop() {
    let mut world = World::new();
    let list = list(&world, "pfifo limit 1000", 1000);
    for _ in 0..2 {
        let guard = list.own().unwrap();
        for i in 0..1000u32 {
            let mut batch = world.batch([i as u8]);
            assert_eq!(send(&mut world, &list, &mut batch), Sent::Deferred);
        }
        let mut late = world.batch([77]);
        assert_eq!((send(&mut world, &list, &mut late), late.len()), (Sent::Full, 1), "still the sender's");
        let sent = list.send(&mut || (), 0, Origin::Forwarded, &mut late, &mut world.to_free);
        assert_eq!((sent, late.len()), (Sent::Full, 0));
        assert_eq!(world.dropped(), [(77, DropReason::QdiscBurstDrop)]);
        // The owner comes back: it queues all, and sends as many, so that no discipline of that length drops any.
        assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Idle);
        assert!(ids(&list).into_iter().eq((0..1000).map(|i| i as u8)));
        let sent = std::mem::take(&mut list.own().unwrap().ring().sent);
        sent.into_iter().for_each(|skb| world.ctx.free_skb(skb));
    }
    world.end(list);
}

/// What waited for a neighbour is taken however much is pending, in order, and takes no room from senders that the
/// limit holds back.
#[test]
fn what_the_neighbour_table_held_is_taken_beyond_the_limit() {
    let mut world = World::new();
    let list = list(&world, "pfifo limit 1000", 4);
    let guard = list.own().unwrap();
    let mut to_free = ToFree::new();
    let mut expected = Vec::new();
    for id in 0..8 {
        let mut held = world.batch([100 + id, 110 + id]);
        let sent = list.send(&mut || (), 0, Origin::Held, &mut held, &mut to_free);
        assert_eq!((sent, held.len()), (Sent::Deferred, 0));
        expected.extend([100 + id, 110 + id]);
        let mut local = world.batch([id]);
        // Four may be pending, and only those that are limited count.
        match send(&mut world, &list, &mut local) {
            Sent::Deferred => expected.push(id),
            full => {
                assert_eq!((full, local.len()), (Sent::Full, 1));
                assert!(id >= 3 && list.is_full());
                let sent = list.send(&mut || (), 0, Origin::Forwarded, &mut local, &mut world.to_free);
                assert_eq!((sent, world.dropped()), (Sent::Full, vec![(id, DropReason::QdiscBurstDrop)]));
            }
        }
    }
    assert!(to_free.is_empty());
    assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Idle);
    assert_eq!(ids(&list), expected);
    // A queue that no thread owns is owned, as by any other sender.
    let mut held = world.batch([1]);
    assert_eq!(list.send(&mut || (), 0, Origin::Held, &mut held, &mut world.to_free), OWNED);
    world.end(list);
}

/// One whose owner parked is left to the run that is owed: what was held goes behind what is pending.
#[test]
fn what_was_held_does_not_take_up_parked_ownership() {
    let mut world = World::new();
    let list = list(&world, "pfifo", 1000);
    set(&list, 0, 0);
    for mut batch in [world.batch(0..60), world.batch(60..120)] {
        send(&mut world, &list, &mut batch);
    }
    let mut guard = list.own().unwrap();
    (guard.ring().room, guard.ring().takes) = (1000, 1000);
    assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Again);
    let mut held = world.batch([120, 121]);
    let sent = list.send(&mut || (), 0, Origin::Held, &mut held, &mut world.to_free);
    assert_eq!(sent, Sent::Deferred);
    assert_eq!(list.run(&mut || (), 0, &mut world.to_free), Some(NextRun::Idle));
    assert!(ids(&list).into_iter().eq(0..=121));
    world.end(list);
}

#[test]
fn a_burst_of_one_overshoots_by_no_more_than_a_batch_and_0_still_takes_one() {
    for burst in [0, 1] {
        let mut world = World::new();
        let list = list(&world, "pfifo", burst);
        let guard = list.own().unwrap();
        let mut full = world.batch(0..64);
        assert_eq!(send(&mut world, &list, &mut full), Sent::Deferred);
        let mut next = world.batch([64]);
        assert_eq!(send(&mut world, &list, &mut next), Sent::Full);
        guard.finish(&mut || (), 0, &mut world.to_free);
        assert_eq!(send(&mut world, &list, &mut next), OWNED);
        assert!(ids(&list).into_iter().eq(0..65));
        world.end(list);
    }
}

#[test]
fn bypass_only_if_nothing_is_queued_and_the_ring_has_room() {
    let mut world = World::new();
    let list = list(&world, "pfifo_fast", 1000);
    set(&list, 2, 100);
    let mut batches = [world.batch([1, 2]), world.batch([3]), world.batch([4])];
    assert_eq!(send(&mut world, &list, &mut batches[0]), OWNED);
    for batch in &mut batches[1..] {
        let sent = Sent::Owned { verdict: Verdict::Success, next_run: NextRun::Stopped, drained: false };
        assert_eq!(send(&mut world, &list, batch), sent);
    }
    // There is room again, but others wait: an urgent packet does not pass by them, it is sorted in.
    let mut guard = list.own().unwrap();
    guard.ring().room = 100;
    let mut urgent = Batch::new();
    urgent.push(world.ipv4(5, 0x10)).unwrap();
    assert_eq!(send(&mut world, &list, &mut urgent), Sent::Deferred);
    assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Idle);
    assert_eq!(ids(&list), [1, 2, 5, 3, 4]);
    world.end(list);
}

#[test]
fn the_owner_learns_what_became_of_its_packets() {
    let mut world = World::new();
    let list = list(&world, "pfifo limit 2", 1000);
    set(&list, 0, 0);
    let owned = |verdict| Sent::Owned { verdict, next_run: NextRun::Stopped, drained: false };
    let mut batches = [world.batch([1]), world.batch([2, 3]), world.batch([4])];
    assert_eq!(send(&mut world, &list, &mut batches[0]), owned(Verdict::Success));
    assert_eq!(send(&mut world, &list, &mut batches[1]), owned(Verdict::Drop), "the second did not fit");
    assert_eq!(send(&mut world, &list, &mut batches[2]), owned(Verdict::Drop));
    let over = DropReason::QdiscOverlimit;
    assert_eq!(world.dropped(), [(3, over), (4, over)]);
    let stats = list.own().unwrap().change(|qdisc| qdisc.stats().clone()).unwrap();
    assert_eq!((stats.drops(over), stats.qlen(), stats.backlog()), (2, 2, 200));
    world.end(list);
    assert_eq!((stats.drops(DropReason::Shutdown), stats.qlen(), stats.backlog()), (2, 0, 0));
}

#[test]
fn what_the_ring_refuses_leaves_first() {
    let mut world = World::new();
    let list = list(&world, "pfifo", 1000);
    // It says 100 and takes 3: once for a batch that passes by, once for one that was queued.
    set(&list, 100, 3);
    let stopped = Sent::Owned { verdict: Verdict::Success, next_run: NextRun::Stopped, drained: false };
    let mut batches = [world.batch(0..5), world.batch(5..9)];
    assert_eq!(send(&mut world, &list, &mut batches[0]), stopped);
    let stats = list.own().unwrap().change(|qdisc| qdisc.stats().clone()).unwrap();
    assert_eq!((stats.totals().requeues, stats.qlen(), stats.totals().packets), (2, 2, 5));
    assert_eq!(send(&mut world, &list, &mut batches[1]), stopped);
    set(&list, 100, 100);
    assert!(ids(&list).into_iter().eq(0..9));
    let totals = stats.totals();
    assert_eq!(
        (totals.packets, totals.bytes, totals.qlen, totals.backlog),
        (9, 900, 0, 0),
        "none counted twice"
    );
    world.end(list);
}

#[test]
fn deactivated_while_owned_drops_each_once() {
    let mut world = World::new();
    let list = list(&world, "pfifo", 1000);
    set(&list, 0, 0);
    let mut batches = [world.batch([1]), world.batch([2, 3]), world.batch([4]), world.batch([5])];
    send(&mut world, &list, &mut batches[0]);
    let guard = list.own().unwrap();
    assert!(list.own().is_none() && list.run(&mut || (), 0, &mut world.to_free).is_none(), "contended");
    for batch in &mut batches[1..3] {
        assert_eq!(send(&mut world, &list, batch), Sent::Deferred);
    }
    list.deactivate();
    assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Idle);
    let ready = DropReason::DevReady;
    assert_eq!(world.dropped(), [(2, ready), (3, ready), (4, ready), (1, DropReason::Shutdown)]);
    let refused = Sent::Owned { verdict: Verdict::Drop, next_run: NextRun::Idle, drained: false };
    assert_eq!(send(&mut world, &list, &mut batches[3]), refused);
    assert_eq!(world.dropped(), [(5, ready)]);
    assert!(ids(&list).is_empty());
    world.end(list);
}

#[test]
fn an_owner_parks_when_it_has_taken_its_share_and_senders_hand_over_until_there_is_no_room() {
    let mut world = World::new();
    let list = list(&world, "tbf rate 1gbit burst 1mb limit 1mb", 4);
    // Others push as fast as the owner sends.
    let mut others = Vec::from_iter((1..=9).map(|id| world.batch([id]))).into_iter();
    let during = &mut || {
        if let Some(mut batch) = others.next() {
            let sent = list.send(&mut || (), 0, Origin::Local, &mut batch, &mut ToFree::new());
            assert_eq!(sent, Sent::Deferred);
        }
    };
    let mut first = world.batch([0]);
    let again = Sent::Owned { verdict: Verdict::Success, next_run: NextRun::Again, drained: true };
    assert_eq!(list.send(during, 0, Origin::Local, &mut first, &mut world.to_free), again);
    // One is pending, and four may be.
    for id in 100..103 {
        let mut next = world.batch([id]);
        assert_eq!(send(&mut world, &list, &mut next), Sent::Deferred);
    }
    // The run is late: a sender goes on, with what is pending before its own.
    let mut next = world.batch([103]);
    assert_eq!(list.send(during, 0, Origin::Local, &mut next, &mut world.to_free), again);
    // The run that is owed ends it.
    assert_eq!(list.run(during, 0, &mut world.to_free), Some(NextRun::Idle));
    let ids = ids(&list);
    assert_eq!(ids.len(), 14);
    let of = |range: std::ops::Range<u8>| ids.iter().copied().filter(move |id| range.contains(id));
    assert!(of(0..10).eq(0..10) && of(100..104).eq(100..104), "{ids:?}");
    assert_eq!(ids[5..9], [5, 100, 101, 102]);
    world.end(list);
}

#[test]
fn an_owner_that_sent_its_share_parks_for_the_run_and_senders_do_not_take_it_up() {
    let mut world = World::new();
    let list = list(&world, "pfifo", 1000);
    set(&list, 0, 0);
    let mut batches = [world.batch(0..60), world.batch(60..120)];
    for batch in &mut batches {
        send(&mut world, &list, batch);
    }
    let mut guard = list.own().unwrap();
    (guard.ring().room, guard.ring().takes) = (1000, 1000);
    assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Again);
    let mut next = world.batch([120]);
    assert_eq!(send(&mut world, &list, &mut next), Sent::Deferred, "the run is owed");
    assert_eq!(list.run(&mut || (), 0, &mut world.to_free), Some(NextRun::Idle));
    assert!(ids(&list).into_iter().eq(0..=120));
    world.end(list);
}

#[test]
fn without_a_discipline_the_ring_takes_all_or_it_is_dropped() {
    let mut world = World::new();
    let list = list(&world, "noqueue", 1000);
    set(&list, 4, 4);
    let mut others = Some(world.batch([3, 4, 5]));
    let during = &mut || {
        if let Some(mut batch) = others.take() {
            let sent = list.send(&mut || (), 0, Origin::Local, &mut batch, &mut ToFree::new());
            assert_eq!(sent, Sent::Deferred);
        }
    };
    let mut batch = world.batch([1, 2]);
    assert_eq!(list.send(during, 0, Origin::Local, &mut batch, &mut world.to_free), OWNED_FOR_ALL);
    let mut late = world.batch([6]);
    let dropped = Sent::Owned { verdict: Verdict::Drop, next_run: NextRun::Idle, drained: false };
    assert_eq!(send(&mut world, &list, &mut late), dropped);
    assert_eq!(world.dropped(), [(5, DropReason::FullRing), (6, DropReason::FullRing)]);
    assert_eq!(ids(&list), [1, 2, 3, 4]);
    world.end(list);
}

#[test]
fn deactivated_between_two_batches_without_a_discipline_drops_the_second() {
    let mut world = World::new();
    let list = list(&world, "noqueue", 1000);
    let guard = list.own().unwrap();
    let mut batches = [world.batch(0..64), world.batch([64])];
    for batch in &mut batches {
        assert_eq!(send(&mut world, &list, batch), Sent::Deferred);
    }
    // While the first is on the wire, a thread begins to close the device.
    assert_eq!(guard.finish(&mut || list.deactivate(), 0, &mut world.to_free), NextRun::Idle);
    assert_eq!(world.dropped(), [(64, DropReason::Shutdown)]);
    assert!(ids(&list).into_iter().eq(0..64));
    world.end(list);
}

#[test]
fn a_graft_drops_what_the_old_discipline_held() {
    let mut world = World::new();
    let list = list(&world, "pfifo", 1000);
    set(&list, 0, 0);
    let mut batch = world.batch([1, 2]);
    send(&mut world, &list, &mut batch);
    let mut guard = list.own().unwrap();
    guard.graft(Spec::Noqueue.build(&DEV).unwrap(), &mut world.to_free);
    assert_eq!(guard.finish(&mut || (), 0, &mut world.to_free), NextRun::Idle);
    assert_eq!(world.dropped(), [(1, DropReason::QdiscDrop), (2, DropReason::QdiscDrop)]);
    world.end(list);
}

#[test]
fn a_packet_of_another_region_waits_for_ownership_and_is_freed_at_home() {
    let (mut world, mut other) = (World::new(), World::new());
    let list = list(&world, "pfifo", 1000);
    let guard = list.own().unwrap();
    let mut mixed = Batch::new();
    mixed.push(world.skb(1, 100)).unwrap();
    mixed.push(other.skb(2, 100)).unwrap();
    assert_eq!((send(&mut world, &list, &mut mixed), mixed.len()), (Sent::Full, 2), "cannot be linked");
    guard.finish(&mut || (), 0, &mut world.to_free);
    set(&list, 0, 0);
    send(&mut world, &list, &mut mixed);
    assert_eq!(world.to_free.len(), 1);
    assert_eq!(world.dropped(), [(2, DropReason::QdiscDrop)]);
    world.end(list);
}

/// A ring that frees what it takes, and looks at each sender's order.
struct Sink([usize; 4]);

impl Ring<SoftnetData> for Sink {
    fn avail(&mut self, _: &mut SoftnetData) -> Quota {
        Quota::BATCH
    }

    fn xmit(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> (usize, u64) {
        let sent = (batch.len(), batch.as_slice().iter().map(|skb| skb.len() as u64).sum());
        for skb in batch.drain() {
            let &[high, low, t] = skb.data() else { panic!("three bytes") };
            let (n, next) = (usize::from(high) << 8 | usize::from(low), &mut self.0[usize::from(t)]);
            assert_eq!(n, *next, "sender {t}");
            *next += 1;
            ctx.free_skb(skb);
        }
        sent
    }
}

#[test]
fn threads_lose_nothing_and_each_keeps_its_order() {
    const EACH: usize = 5000;
    for spec in ["pfifo", "noqueue"] {
        let world = World::new();
        let qdisc = spec.parse::<Spec>().unwrap().build(&DEV).unwrap();
        let list = DeferList::new(&world.region, qdisc, Sink([0; 4]), 16);
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let (list, region) = (&list, &world.region);
                s.spawn(move || {
                    let mut ctx = SoftnetData::new(region.clone(), CacheSizes::default());
                    let mut to_free = ToFree::new();
                    for i in 0..EACH {
                        let mut batch = Batch::new();
                        let mut skb = ctx.alloc_skb().expect("64 for each, and what is cached");
                        skb.put(3).unwrap().copy_from_slice(&[(i >> 8) as u8, i as u8, t]);
                        batch.push(skb).unwrap();
                        let mut sent = Sent::Full;
                        while sent == Sent::Full {
                            sent = list.send(&mut ctx, 0, Origin::Local, &mut batch, &mut to_free);
                            std::thread::yield_now();
                        }
                        let Sent::Owned { mut next_run, .. } = sent else { continue };
                        while next_run == NextRun::Again {
                            next_run = list.run(&mut ctx, 0, &mut to_free).unwrap_or(NextRun::Idle);
                        }
                        assert!(to_free.is_empty());
                    }
                });
            }
        });
        let mut guard = list.own().expect("no other thread");
        assert_eq!(guard.ring().0, [EACH; 4], "{spec}");
        let mut ctx = SoftnetData::new(world.region.clone(), CacheSizes::default());
        assert_eq!(guard.finish(&mut ctx, 0, &mut ToFree::new()), NextRun::Idle);
        drop((list, ctx));
        assert_eq!(world.region.frames_free() + world.ctx.cached().1 as u64, 2048);
    }
}
