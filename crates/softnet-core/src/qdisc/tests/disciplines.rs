//! `pfifo`, `bfifo`, `pfifo_fast` and `mq`, and what all have in common.

use proptest::prelude::*;

use super::*;

fn build(spec: &str) -> Box<dyn Qdisc> {
    spec.parse::<Spec>().unwrap().build(&DEV).unwrap().expect("not noqueue")
}

const OVER: DropReason = DropReason::QdiscOverlimit;

#[test]
fn pfifo_counts_packets_and_bfifo_bytes() {
    let mut world = World::new();
    for (spec, fit) in [("pfifo limit 3", 3), ("bfifo limit 299", 2), ("bfifo limit 300", 3)] {
        let mut qdisc = build(spec);
        for id in 0..4u8 {
            let skb = world.skb(id, 100);
            let verdict = qdisc.enqueue(skb, 0, &mut world.to_free);
            assert_eq!(verdict, if id < fit { Verdict::Success } else { Verdict::Drop }, "{spec}");
        }
        assert!(world.dropped().into_iter().eq((fit..4).map(|id| (id, OVER))));
        assert_eq!((qdisc.len(), qdisc.stats().backlog()), (fit.into(), 100 * u64::from(fit)));
        assert!(world.dequeue(&mut *qdisc, 0, Quota::BATCH).into_iter().eq(0..fit));
        let totals = qdisc.stats().totals();
        assert_eq!((totals.packets, totals.bytes), (fit.into(), 100 * u64::from(fit)));
        assert_eq!((totals.drops, totals.qlen, totals.backlog), (4 - u64::from(fit), 0, 0));
    }
    assert!(build("pfifo limit 1").can_bypass() && !build("pfifo limit 0").can_bypass());
    assert!(build("bfifo limit 1514").can_bypass() && !build("bfifo limit 1513").can_bypass());
}

#[test]
fn defaults_are_the_kernels() {
    let mut world = World::new();
    let mut small = DevParams { mtu: 1500, tx_queue_len: 2 };
    let mut pfifo = Spec::Pfifo { limit: None }.build(&small).unwrap().unwrap();
    let mut bfifo = Spec::Bfifo { limit: None }.build(&small).unwrap().unwrap();
    for qdisc in [&mut pfifo, &mut bfifo] {
        for id in 0..3 {
            let skb = world.skb(id, 1514);
            qdisc.enqueue(skb, 0, &mut world.to_free);
        }
        assert_eq!(world.dropped(), [(2, OVER)]);
        qdisc.reset(DropReason::Shutdown, &mut world.to_free);
        assert_eq!((world.dropped().len(), qdisc.len()), (2, 0));
    }
    small.tx_queue_len = 0;
    assert_eq!((small.pfifo_limit(), small.bfifo_limit()), (1, 1514));
    assert_eq!((DEV.pfifo_limit(), DEV.bfifo_limit()), (1000, 1_514_000));
}

#[test]
fn a_change_keeps_what_is_queued() {
    let mut world = World::new();
    let mut qdisc = build("pfifo");
    for id in 0..3 {
        let skb = world.skb(id, 100);
        qdisc.enqueue(skb, 0, &mut world.to_free);
    }
    qdisc.change(&"pfifo limit 1".parse().unwrap(), &DEV).unwrap();
    let skb = world.skb(3, 100);
    assert_eq!(qdisc.enqueue(skb, 0, &mut world.to_free), Verdict::Drop);
    assert_eq!(world.dropped(), [(3, OVER)]);
    let why = qdisc.change(&"bfifo".parse().unwrap(), &DEV).unwrap_err();
    assert_eq!(why.to_string(), "a pfifo cannot be changed to bfifo: replace it");
    assert_eq!(world.dequeue(&mut *qdisc, 0, Quota::BATCH), [0, 1, 2]);
}

#[test]
fn a_quota_ends_a_batch_with_the_packet_that_exceeds_it() {
    let mut world = World::new();
    for (spec, bytes, taken) in [
        ("pfifo", 0, 1),
        ("pfifo", 200, 3),
        ("pfifo_fast", 199, 2),
        ("pfifo", -1, 0),
        ("pfifo_fast", 1000, 4),
    ] {
        let mut qdisc = build(spec);
        for id in 0..6 {
            let skb = world.skb(id, 100);
            qdisc.enqueue(skb, 0, &mut world.to_free);
        }
        let ids = world.dequeue(&mut *qdisc, 0, Quota { packets: 4, bytes });
        assert!(ids.into_iter().eq(0..taken), "{spec} {bytes}");
        qdisc.reset(DropReason::Shutdown, &mut world.to_free);
        world.dropped();
    }
}

#[test]
fn priorities_of_tos_are_the_kernels() {
    // rt_tos2priority: (tos & 0x1e) >> 1 indexes best effort ×4, bulk ×4, interactive ×4, interactive bulk ×4.
    let table = [0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4];
    for tos in 0..=255u8 {
        assert_eq!(rt_tos2priority(tos), table[usize::from((tos & 0x1e) >> 1)]);
    }
}

#[test]
fn pfifo_fast_serves_interactive_then_best_effort_then_bulk() {
    let mut world = World::new();
    let mut qdisc = build("pfifo_fast");
    // Bulk, best effort, interactive, interactive bulk, and a frame that is not IPv4.
    for (id, tos) in [(1, 8), (2, 0), (3, 0x10), (4, 0x18), (5, 8), (6, 0xb8 & 0x10)] {
        let skb = world.ipv4(id, tos);
        qdisc.enqueue(skb, 0, &mut world.to_free);
    }
    let arp = world.skb(7, 13);
    qdisc.enqueue(arp, 0, &mut world.to_free);
    assert_eq!(world.dequeue(&mut *qdisc, 0, Quota { packets: 1, ..Quota::BATCH }), [3]);
    let late = world.ipv4(8, 0x10);
    qdisc.enqueue(late, 0, &mut world.to_free);
    assert_eq!(world.dequeue(&mut *qdisc, 0, Quota::BATCH), [6, 8, 2, 4, 7, 1, 5]);
}

#[test]
fn each_band_of_pfifo_fast_has_the_whole_limit() {
    let mut world = World::new();
    let mut qdisc = Spec::PfifoFast.build(&DevParams { tx_queue_len: 2, ..DEV }).unwrap().unwrap();
    for (id, tos) in [(1, 0x10), (2, 0x10), (3, 0x10), (4, 0), (5, 0), (6, 0), (7, 8)] {
        let skb = world.ipv4(id, tos);
        qdisc.enqueue(skb, 0, &mut world.to_free);
    }
    assert_eq!(world.dropped(), [(3, OVER), (6, OVER)]);
    assert_eq!(world.dequeue(&mut *qdisc, 0, Quota::BATCH), [1, 2, 4, 5, 7]);
}

#[test]
fn to_free_counts_each_reason_against_the_device() {
    let mut world = World::new();
    for i in 0..200u8 {
        let skb = world.skb(i, 100);
        world.to_free.push(skb, if i % 3 == 0 { OVER } else { DropReason::QdiscDrop });
    }
    assert_eq!(world.to_free.len(), 200);
    world.to_free.free(&mut world.ctx, 7);
    assert!(world.to_free.is_empty());
    let stats = world.ctx.stats();
    assert_eq!(
        (stats.drops(7, OVER), stats.drops(7, DropReason::QdiscDrop), stats.dropped()),
        (67, 133, 200)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, every packet leaves once, and the counters say how.
    #[test]
    fn nothing_is_lost(
        spec in prop::sample::select(vec![
            "pfifo limit 5", "bfifo limit 900", "pfifo_fast", "tbf rate 1mbit burst 400 limit 1000",
            "tbf rate 1mbit burst 2kb latency 3ms peakrate 5mbit mtu 300",
            "netem loss 10% delay 1ms 500us reorder 20% corrupt 5% rate 1mbit limit 5",
        ]),
        steps in prop::collection::vec((0u8..4, 1usize..500, 0u64..2_000_000), 1..100),
    ) {
        let mut world = World::new();
        let mut qdisc = build(spec);
        let (mut now, mut id, mut left, mut dropped) = (0, 0u64, 0u64, 0u64);
        for (what, n, passed) in steps {
            now += passed;
            match what {
                0 | 1 => {
                    let skb = world.ipv4(id as u8, n as u8);
                    id += 1;
                    qdisc.enqueue(skb, now, &mut world.to_free);
                }
                2 => {
                    let quota = Quota { packets: n % 8, bytes: n as i64 };
                    left += world.dequeue(&mut *qdisc, now, quota).len() as u64;
                }
                _ if n > 480 => qdisc.reset(DropReason::Shutdown, &mut world.to_free),
                // Nothing leaves only if there is nothing, or it says when.
                _ => {
                    let got = world.dequeue(&mut *qdisc, now, Quota::BATCH).len() as u64;
                    left += got;
                    match qdisc.next_event(now) {
                        Some(at) => prop_assert!(at > now && !qdisc.is_empty()),
                        None => prop_assert!(qdisc.is_empty()),
                    }
                }
            }
            dropped += world.dropped().len() as u64;
            let totals = qdisc.stats().totals();
            prop_assert_eq!((totals.packets, totals.drops), (left, dropped));
            prop_assert_eq!(totals.qlen, id - left - dropped);
            prop_assert!(totals.backlog == 60 * totals.qlen);
        }
        qdisc.reset(DropReason::Shutdown, &mut world.to_free);
        world.dropped();
    }
}
