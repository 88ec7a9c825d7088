//! Each way of sending with few packets: all arrive, in order, whatever the discipline and however many send. What a run
//! checks itself (order, payload, sums, memory) is not repeated here, but that it notices what is wrong.

use serde_json::json;
use softnet_core::SoftnetData;
use softnet_core::qdisc::{Ring, ToFree};
use softnet_core::skb::{Batch, CacheSizes, DropReason, Skb};

use super::queue::Way;
use super::rig::{Load, region};
use super::wire::{Accounts, SIZE, Wire, write};
use super::{Discipline, params};

fn load(way: Way, qdisc: Discipline, senders: usize, pinned: bool) -> Load {
    Load { way, qdisc: qdisc.spec().unwrap(), queues: qdisc.queues(), senders, pinned }
}

#[test]
fn every_way_delivers_all_in_order() {
    let region = region(6).unwrap();
    for way in Way::ALL {
        for (qdisc, senders, pinned) in [
            (Discipline::Tbf, 1, false),
            (Discipline::Tbf, 5, true),
            (Discipline::Pfifo, 1, true),
            (Discipline::Pfifo, 3, false),
            (Discipline::Mq, 6, false),
        ] {
            let load = load(way, qdisc, senders, pinned);
            // More than a window, so that senders wait for it.
            let sample = load.send(&region, 1000).unwrap_or_else(|e| panic!("{load:?}: {e}"));
            let figure = |name| sample.iter().find(|(figure, _)| *figure == name).unwrap().1;
            assert_eq!(figure("drops_percent"), 0.0, "{load:?}");
        }
    }
}

#[test]
fn a_discipline_that_waits_or_drops_loses_nothing_unseen() {
    let region = region(2).unwrap();
    for way in Way::ALL {
        // 120 KB at 100 MB a second, after a burst of 10 packets: the worker's timer sends them.
        let slow = "tbf rate 800mbit burst 1200 limit 1mb".parse().unwrap();
        let waits = Load { qdisc: slow, ..load(way, Discipline::Tbf, 2, false) };
        waits.send(&region, 500).unwrap();
        // Nothing leaves before the next packet comes, so that most are dropped.
        let short = "tbf rate 8mbit burst 120 limit 240".parse().unwrap();
        let drops = Load { qdisc: short, ..load(way, Discipline::Tbf, 2, false) };
        let sample = drops.send(&region, 500).unwrap();
        let dropped = sample.iter().find(|(name, _)| *name == "drops_percent").unwrap().1;
        assert!(dropped > 0.0, "{way:?}");
    }
}

/// What a wire that compares every frame says of some that were changed on the way: how many it saw, and how many were wrong.
fn judge(ctx: &mut SoftnetData, change: impl Fn(&mut Vec<Skb>)) -> (u64, u64) {
    let accounts = Accounts::new(2);
    let mut frames: Vec<Skb> = (0..4)
        .map(|i| {
            let mut skb = ctx.alloc_skb().unwrap();
            write(&mut skb, i % 2, i as u64 / 2);
            skb
        })
        .collect();
    change(&mut frames);
    let mut batch = Batch::new();
    frames.into_iter().for_each(|skb| batch.push(skb).unwrap());
    Wire::new(accounts.clone(), 1).xmit(ctx, &mut batch);
    (accounts.seen(), accounts.wrong())
}

#[test]
fn the_wire_notices_damage_and_disorder() {
    let ctx = &mut SoftnetData::new(region(1).unwrap(), CacheSizes::default());
    assert_eq!(judge(ctx, |_| {}), (4, 0));
    assert_eq!(judge(ctx, |frames| frames.swap(0, 1)), (4, 0), "two senders, each in order");
    assert_eq!(judge(ctx, |frames| frames.swap(0, 2)), (3, 1));
    for at in 0..SIZE {
        assert_eq!(judge(ctx, |frames| frames[1].data_mut()[at] ^= 1), (3, 1), "byte {at}");
    }
    assert_eq!(judge(ctx, |frames| frames[3].head_mut().queue = 2), (3, 1), "no such sender");
    assert_eq!(judge(ctx, |frames| frames[3].trim(SIZE - 1)), (3, 1));
}

#[test]
fn dropped_packets_are_done_but_not_seen() {
    let mut ctx = SoftnetData::new(region(1).unwrap(), CacheSizes::default());
    let accounts = Accounts::new(1);
    let mut to_free = ToFree::new();
    let mut skb = ctx.alloc_skb().unwrap();
    write(&mut skb, 0, 0);
    to_free.push(skb, DropReason::QdiscOverlimit);
    accounts.free(&mut ctx, &mut to_free);
    assert_eq!((accounts.done(0), accounts.seen(), accounts.dropped()), (1, 0, 1));
}

#[test]
fn rows_have_the_keys_that_were_promised() {
    let keys: Vec<_> = params(Discipline::Mq, 8, true).into_iter().collect();
    assert_eq!(keys, [("qdisc", json!("mq")), ("threads", json!(8)), ("pinned", json!(true))]);
    let sample = load(Way::Deferred, Discipline::Pfifo, 1, false).send(&region(1).unwrap(), 10).unwrap();
    let names: Vec<_> = sample.iter().map(|(name, _)| *name).collect();
    for name in [
        "mpps",
        "cpu_ns_per_packet",
        "p50_us",
        "p99_us",
        "p999_us",
        "max_us",
        "switches_per_s",
        "drops_percent",
    ] {
        assert!(names.contains(&name), "{name}");
    }
}
