//! A bad network.

use super::*;
use crate::skb::Csum;

fn netem(spec: &str) -> Netem {
    let Spec::Netem(params) = spec.parse().unwrap() else { panic!("a netem") };
    Netem::new(&params)
}

/// Queues packets at `now`, follows the watchdog: when each packet left.
fn pass(world: &mut World, netem: &mut Netem, mut now: u64, ids: std::ops::Range<u8>) -> Vec<(u64, u8)> {
    for id in ids {
        let skb = world.skb(id, 1000);
        netem.enqueue(skb, now, &mut world.to_free);
    }
    let mut left = Vec::new();
    loop {
        left.extend(world.dequeue(netem, now, Quota::BATCH).into_iter().map(|id| (now, id)));
        match netem.next_event(now) {
            Some(at) => now = at,
            None => return left,
        }
    }
}

#[test]
fn a_delay_and_a_rate_space_packets() {
    let mut world = World::new();
    let mut netem = netem("netem delay 20ms rate 1mbps");
    let ms = 1_000_000;
    let left = pass(&mut world, &mut netem, 5 * ms, 0..3);
    assert_eq!(left, [(26 * ms, 0), (27 * ms, 1), (28 * ms, 2)]);
    assert_eq!(netem.stats().totals().overlimits, 3);
}

#[test]
fn what_is_lost_has_a_reason_of_its_own_and_its_sender_does_not_know() {
    let mut world = World::new();
    let mut netem = netem("netem loss 100%");
    let skb = world.skb(1, 100);
    assert_eq!(netem.enqueue(skb, 0, &mut world.to_free), Verdict::Success);
    assert_eq!(world.dropped(), [(1, DropReason::QdiscLoss)]);
    assert_eq!((netem.stats().drops(DropReason::QdiscLoss), netem.len()), (1, 0));
}

#[test]
fn what_is_ahead_passes_what_waits() {
    let mut world = World::new();
    let mut netem = netem("netem delay 10us reorder 100% gap 3");
    assert_eq!(
        pass(&mut world, &mut netem, 0, 0..6),
        [(0, 2), (0, 5), (10_000, 0), (10_000, 1), (10_000, 3), (10_000, 4)]
    );
}

#[test]
fn jitter_reorders_and_nothing_leaves_early() {
    let mut world = World::new();
    let mut netem = netem("netem delay 10us 5us seed 3");
    let left = pass(&mut world, &mut netem, 0, 0..50);
    assert!(left.iter().all(|(at, _)| (5_000..=15_000).contains(at)));
    assert!(left.is_sorted_by_key(|(at, _)| *at) && !left.is_sorted_by_key(|(_, id)| *id));
}

#[test]
fn a_full_queue_drops_and_a_change_keeps_what_waits() {
    let mut world = World::new();
    let mut netem = netem("netem delay 1s limit 2");
    for id in 0..3 {
        let skb = world.skb(id, 100);
        netem.enqueue(skb, 0, &mut world.to_free);
    }
    assert_eq!(world.dropped(), [(2, DropReason::QdiscOverlimit)]);
    netem.change(&"netem loss 100%".parse().unwrap(), &DEV).unwrap();
    assert_eq!(pass(&mut world, &mut netem, 0, 0..0), [(1_000_000_000, 0), (1_000_000_000, 1)]);
    let other = netem.change(&Spec::Mq, &DEV).unwrap_err().to_string();
    assert_eq!(other, "a netem cannot be changed to mq: replace it");
}

#[test]
fn one_bit_flips_and_of_a_partial_checksum_one_of_the_sum() {
    let mut world = World::new();
    let mut netem = netem("netem corrupt 100%");
    for partial in [false, true] {
        for seed in 0..20u8 {
            let mut skb = world.skb(seed, 100);
            if partial {
                skb.head_mut().csum = Csum::Partial { start: 34, offset: 6 };
            }
            let before = skb.data().to_vec();
            netem.enqueue(skb, 0, &mut world.to_free);
            let (mut out, mut quota) = (Batch::new(), Quota::BATCH);
            netem.dequeue(0, &mut quota, &mut out, &mut world.to_free);
            let skb = out.drain().next().unwrap();
            let flipped: Vec<usize> = (0..100).filter(|i| skb.data()[*i] != before[*i]).collect();
            let bits: u32 = before.iter().zip(skb.data()).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!((flipped.len(), bits), (1, 1));
            assert!(!partial || (40..42).contains(&flipped[0]), "{flipped:?}");
            world.eat(skb);
        }
    }
}
