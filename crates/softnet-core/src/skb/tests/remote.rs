//! Remote free as contexts do it: what another thread frees goes home, up to the limit.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::sync::Kick;

const N: u32 = 1024;

fn deferring(limit: u32) -> Arc<Region> {
    Region::with_defer(Box::new(HeapMemory::new(Region::bytes(N, N))), N, N, limit).unwrap()
}

/// Heads and frames that are freed and on their way to the context that came first.
fn pending(region: &Region) -> [u32; 2] {
    region.homes().map(|homes| homes.map_or(0, |homes| homes.pending(1)))
}

#[test]
fn what_another_frees_goes_home_and_the_owner_is_kicked() {
    let region = deferring(128);
    let (mut a, mut b) = (context(&region), context(&region));
    let kicks = Arc::new(AtomicUsize::new(0));
    let kick: Kick = Arc::new({
        let kicks = kicks.clone();
        move || _ = kicks.fetch_add(1, Ordering::Relaxed)
    });
    a.set_kick(&kick);
    for round in 1..=3 {
        let skbs: Vec<Skb> = (0..96).map(|_| a.alloc_skb().unwrap()).collect();
        skbs.into_iter().for_each(|skb| b.free_skb(skb));
        // Three times 32; the last ones are on their way until there are more, or the thread rests.
        assert_eq!(pending(&region), [64, 64], "{round}");
        b.trim(0);
        assert_eq!(pending(&region), [96, 96], "{round}");
        assert_eq!(b.cached(), (0, 0), "none of it stayed");
        // Of heads and of frames.
        assert_eq!(kicks.load(Ordering::Relaxed), 2 * round);
        a.purge_deferred();
        assert_eq!(pending(&region), [0, 0]);
    }
    let [heads, frames] = b.stats().caches.clone();
    for counts in [&heads, &frames] {
        assert_eq!((counts.remote_frees.get(), counts.local_at_limit.get()), (288, 0));
        assert_eq!(counts.kicks.get(), 3);
    }
    assert_eq!(a.stats().caches[0].came_home.get(), 288);
    drop((a, b));
    assert_eq!((region.frames_free(), region.heads_free()), (N.into(), N.into()));
}

/// A batch may be of several threads, and of the one that frees it.
#[test]
fn each_of_a_batch_goes_to_its_own_home() {
    let region = deferring(128);
    let mut ctx = [(); 3].map(|()| context(&region));
    for _ in 0..4 {
        let mut batch = Batch::new();
        for i in 0..BATCH {
            batch.push(ctx[i % 3].alloc_skb().unwrap()).unwrap();
        }
        ctx[1].free_batch(&mut batch, DropReason::IpTtl);
    }
    ctx[1].trim(0);
    ctx.iter_mut().for_each(|ctx| ctx.purge_deferred());
    let home: Vec<u64> = ctx.iter().map(|ctx| ctx.stats().caches[0].came_home.get()).collect();
    assert_eq!(home, [4 * 22, 0, 4 * 21]);
    // An empty cache looks at what came home before it asks the pool.
    let skb = ctx[0].alloc_skb().unwrap();
    ctx[0].deliver(skb);
    drop(ctx);
    assert_eq!((region.frames_free(), region.heads_free()), (N.into(), N.into()));
}

#[test]
fn at_the_limit_and_after_the_end_of_a_thread_it_stays() {
    let region = deferring(64);
    let (mut a, mut b) = (context(&region), context(&region));
    let mut all: Vec<Skb> = (0..200).map(|_| a.alloc_skb().unwrap()).collect();
    all.drain(..100).for_each(|skb| b.free_skb(skb));
    b.trim(0);
    assert_eq!(pending(&region), [64, 64], "63, and as many as were refused fill it");
    let counts = &b.stats().caches[1];
    assert_eq!((counts.remote_frees.get(), counts.local_at_limit.get()), (63, 37));
    // What stayed is its own now.
    let skb = b.alloc_skb().unwrap();
    b.free_skb(skb);
    assert_eq!(b.stats().caches[1].remote_frees.get(), 63);
    drop(a);
    assert_eq!(pending(&region), [0, 0]);
    all.drain(..).for_each(|skb| b.free_skb(skb));
    b.trim(0);
    assert_eq!(b.stats().caches[0].local_at_limit.get(), 137);
    drop(b);
    assert_eq!((region.frames_free(), region.heads_free()), (N.into(), N.into()));
}

#[test]
fn threads_free_for_each_other_and_nothing_is_lost() {
    let region = deferring(128);
    let (to_b, from_a) = std::sync::mpsc::sync_channel::<Vec<Skb>>(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut a = context(&region);
            let to_b = to_b;
            for _ in 0..2000 {
                a.purge_deferred();
                let some: Vec<Skb> = (0..40).map_while(|_| a.alloc_skb()).collect();
                if to_b.send(some).is_err() {
                    break;
                }
            }
        });
        scope.spawn(|| {
            let mut b = context(&region);
            for some in from_a {
                some.into_iter().for_each(|skb| b.deliver(skb));
                b.purge_deferred();
            }
        });
    });
    assert_eq!((region.frames_free(), region.heads_free()), (N.into(), N.into()));
}
