//! The token bucket.

use proptest::prelude::*;

use super::*;

fn tbf(spec: &str) -> Tbf {
    let Spec::Tbf(spec) = spec.parse().unwrap() else { panic!("a tbf") };
    Tbf::new(&spec).unwrap()
}

fn fill(world: &mut World, tbf: &mut Tbf, lens: impl IntoIterator<Item = usize>) {
    for (id, len) in lens.into_iter().enumerate() {
        let skb = world.skb(id as u8, len);
        tbf.enqueue(skb, 0, &mut world.to_free);
    }
}

/// Follows the watchdog until nothing is left: when each packet left.
fn drain(world: &mut World, tbf: &mut Tbf, mut now: u64) -> Vec<(u64, u8)> {
    let mut left = Vec::new();
    loop {
        left.extend(world.dequeue(tbf, now, Quota::BATCH).into_iter().map(|id| (now, id)));
        match tbf.next_event(now) {
            Some(at) => now = at,
            None => return left,
        }
    }
}

#[test]
fn ten_packets_against_a_full_bucket() {
    let mut world = World::new();
    let mut tbf = tbf("tbf rate 1mbps burst 10240 limit 100000");
    fill(&mut world, &mut tbf, [1500; 10]);
    let times: Vec<u64> = drain(&mut world, &mut tbf, 0).into_iter().map(|(at, _)| at).collect();
    assert_eq!(times, [0, 0, 0, 0, 0, 0, 260_000, 1_760_000, 3_260_000, 4_760_000]);
    assert_eq!(tbf.stats().totals().overlimits, 4);
}

#[test]
fn a_shorter_packet_does_not_pass_and_one_longer_than_the_bucket_is_dropped() {
    let mut world = World::new();
    let mut tbf = tbf("tbf rate 8kbit burst 1000 limit 10000");
    fill(&mut world, &mut tbf, [600, 600, 1, 1001]);
    assert_eq!(world.dropped(), [(3, DropReason::QdiscDrop)]);
    let times = drain(&mut world, &mut tbf, 0);
    assert_eq!(times, [(0, 0), (200_000_000, 1), (201_000_000, 2)]);
}

#[test]
fn a_bucket_is_capped_and_an_idle_one_full() {
    let mut world = World::new();
    let mut tbf = tbf("tbf rate 8kbit burst 1000 limit 10000");
    fill(&mut world, &mut tbf, [1000]);
    assert_eq!(drain(&mut world, &mut tbf, 0), [(0, 0)]);
    fill(&mut world, &mut tbf, [1000, 1000]);
    let hour = 3_600_000_000_000;
    assert_eq!(drain(&mut world, &mut tbf, hour), [(hour, 0), (hour + 1_000_000_000, 1)]);
    // A clock that goes back brings nothing, and takes nothing.
    fill(&mut world, &mut tbf, [1000]);
    assert_eq!(tbf.next_event(0), Some(1_000_000_000));
    assert_eq!(drain(&mut world, &mut tbf, hour + 2_000_000_000), [(hour + 2_000_000_000, 0)]);
}

#[test]
fn the_peak_rate_spaces_a_burst() {
    let mut world = World::new();
    let mut tbf = tbf("tbf rate 8kbit burst 3000 limit 100000 peakrate 80kbit mtu 1000");
    fill(&mut world, &mut tbf, [1000; 5]);
    let times: Vec<u64> = drain(&mut world, &mut tbf, 0).into_iter().map(|(at, _)| at).collect();
    // 10000 bytes/s within the burst of 3000 (and what comes meanwhile), then 1000 bytes/s.
    assert_eq!(times, [0, 100_000_000, 200_000_000, 1_000_000_000, 2_000_000_000]);
    fill(&mut world, &mut tbf, [1001]);
    assert_eq!(world.dropped(), [(0, DropReason::QdiscDrop)], "longer than the peak's mtu");
}

#[test]
fn latency_means_what_leaves_in_that_time() {
    let mut world = World::new();
    for (spec, limit) in [
        ("tbf rate 1mbps burst 10000 latency 50ms", 60_000),
        ("tbf rate 1mbps burst 10000 latency 50ms peakrate 1.1mbps mtu 1500", 56_500),
    ] {
        let mut tbf = tbf(spec);
        fill(&mut world, &mut tbf, [500; 130]);
        assert_eq!(tbf.stats().backlog(), limit, "{spec}");
        tbf.reset(DropReason::Shutdown, &mut world.to_free);
        world.dropped();
    }
}

#[test]
fn a_change_to_a_smaller_bucket_does_not_stop_what_is_queued() {
    let mut world = World::new();
    let mut tbf = tbf("tbf rate 8kbit burst 1000 limit 10000");
    fill(&mut world, &mut tbf, [1000, 1000]);
    tbf.change(&"tbf rate 8kbit burst 100 limit 10000".parse().unwrap(), &DEV).unwrap();
    assert_eq!(drain(&mut world, &mut tbf, 0), [(0, 0), (100_000_000, 1)]);
}

/// A thousand packets at 1 Gbit/s, 12 µs each: the watchdog is set once for what leaves in 100 µs. The last leaves when it
/// would with a watchdog for each, and those before it no more than 100 µs late.
#[test]
fn one_wake_up_for_what_leaves_within_the_slack() {
    let mut world = World::new();
    for (spec, wake_ups) in [
        ("tbf rate 1gbit burst 100000 latency 1s", 104),
        // There must be room in the bucket for a worker that is late: four packets, of which half of one may be used.
        ("tbf rate 1gbit burst 6056 latency 1s", 996),
        // No two of them within the slack.
        ("tbf rate 100mbit burst 100000 latency 1s", 934),
        ("tbf rate 1gbit burst 100000 latency 1s peakrate 2gbit mtu 1514", 999),
    ] {
        let mut tbf = tbf(spec);
        let Spec::Tbf(TbfSpec { rate, burst, .. }) = spec.parse().unwrap() else { unreachable!() };
        let (mut now, mut left, mut asked) = (0, 0u64, 0);
        let mut behind = 1000;
        while left < 1000 * 1514 {
            // No more than the world has packets for wait at a time.
            while behind > 0 && tbf.len() < 50 {
                let skb = world.skb(0, 1514);
                tbf.enqueue(skb, now, &mut world.to_free);
                behind -= 1;
            }
            let packets = world.dequeue(&mut tbf, now, Quota::BATCH).len() as u64;
            left += packets * 1514;
            let Some(at) = tbf.next_event(now) else { continue };
            assert!(at > now);
            let due = |bytes: u64| (bytes.saturating_sub(burst.0.into()) * 1_000_000_000).div_ceil(rate.0);
            if !spec.contains("peak") {
                assert!(at >= due(left + 1514) && at <= due(left + 1514) + 100_000, "{spec}: {at}");
            }
            (now, asked) = (at, asked + 1);
        }
        assert_eq!(asked, wake_ups, "{spec}");
        let exact = (1_514_000 - u64::from(burst.0)) * 1_000_000_000;
        assert_eq!(now, exact.div_ceil(rate.0), "{spec}");
    }
}

proptest! {
    /// Between any two instants no more than burst + rate·t leaves, nothing out of order, and nothing 100 µs later than
    /// it may. When the watchdog was asked for, something leaves, and no token was lost.
    #[test]
    fn never_exceeds_burst_plus_rate_times_time(
        rate in 1u64..2_000_000_000,
        burst in 200u32..20_000,
        steps in prop::collection::vec((1usize..1500, 0u64..3_000_000), 1..60),
    ) {
        let mut world = World::new();
        let spec = TbfSpec {
            rate: Rate(rate), burst: Size(burst), limit: TbfLimit::Limit(Size(u32::MAX)), peak: None,
        };
        let mut tbf = Tbf::new(&spec).unwrap();
        let (mut now, mut sent): (u64, Vec<(u64, usize)>) = (0, Vec::new());
        let mut leave = |world: &mut World, tbf: &mut Tbf, now: u64| {
            let mut out = Batch::new();
            tbf.dequeue(now, &mut Quota::BATCH.clone(), &mut out, &mut ToFree::new());
            for skb in out.drain() {
                sent.push((now, skb.len()));
                world.eat(skb);
            }
        };
        for (len, passed) in steps {
            now += passed;
            let skb = world.skb(0, len);
            tbf.enqueue(skb, now, &mut world.to_free);
            world.dropped();
            leave(&mut world, &mut tbf, now);
        }
        while let Some(at) = tbf.next_event(now) {
            let before = tbf.len();
            if before == 1 {
                // Nothing to wait for with it: a nanosecond earlier is too early.
                leave(&mut world, &mut tbf, at - 1);
                prop_assert_eq!(tbf.len(), before);
            }
            let early = (at - now).min(100_001);
            if early < at - now {
                leave(&mut world, &mut tbf, at - early);
                prop_assert_eq!(tbf.len(), before, "more than 100 µs late");
            }
            leave(&mut world, &mut tbf, at);
            prop_assert!(tbf.len() < before);
            now = at;
        }
        for (i, (from, _)) in sent.iter().enumerate() {
            let mut bytes = 0;
            for (to, len) in &sent[i..] {
                bytes += *len as u128;
                let allowed = u128::from(burst) * 1_000_000_000 + u128::from(rate) * u128::from(to - from);
                prop_assert!(bytes * 1_000_000_000 <= allowed, "{bytes} bytes in {} ns", to - from);
            }
        }
    }
}
