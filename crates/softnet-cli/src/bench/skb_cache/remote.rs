//! What it costs that another thread frees packets than took them: into its own caches, from which
//! they go to the pool and back by chunks, or home by remote free. The figure is for both threads,
//! which run side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, CacheSizes, DropReason, HEADROOM, Region, SkbInbox, SkbReceiver};
use softnet_dev::memfd::MemfdMemory;

use super::BULK;
use crate::bench::harness::Case;
use crate::bench::pin;
use crate::bench::report::{Row, Sample};

/// Packets on their way from one thread to the other at the most: as in a socket's queue.
const AHEAD: u64 = 512;

/// With and without remote free; `other` is the CPU of the thread that frees.
pub(super) fn cases(bulks: usize, other: usize) -> impl Iterator<Item = Case<'static>> {
    [0, 128].into_iter().map(move |limit| Case {
        row: Row::new(
            "remote",
            vec![
                ("bulk", json!(BULK)),
                ("bytes", json!(Region::bytes(0, 1))),
                ("skb_defer_max", json!(limit)),
            ],
        ),
        measure: Box::new(move || measure(limit, bulks, other)),
    })
}

fn measure(limit: u32, bulks: usize, other: usize) -> Result<Sample, String> {
    const N: u32 = 4096;
    let memory = MemfdMemory::new(Region::bytes(N, N)).map_err(|e| format!("packet memory: {e}"))?;
    let region = Region::with_defer(Box::new(memory), N, N, limit).map_err(|e| e.to_string())?;
    let inbox = Arc::new(SkbInbox::new(&region));
    let freed = AtomicU64::new(0);
    let total = (bulks * BULK) as u64;
    let mut receiver = SkbReceiver::open(inbox.clone()).ok_or("the inbox has a receiver")?;
    let mut ctx = SoftnetData::new(region.clone(), CacheSizes::default());
    let ns = std::thread::scope(|scope| {
        let (freed, region) = (&freed, region.clone());
        let thread = scope.spawn(move || -> Result<(), String> {
            pin(other)?;
            let mut ctx = SoftnetData::new(region, CacheSizes::default());
            let mut n = 0;
            while n < total {
                // As a socket's reader takes them: one after the other.
                while let Some(skb) = receiver.next_skb() {
                    ctx.deliver(skb);
                    n += 1;
                    if n % BULK as u64 == 0 {
                        freed.store(n, Ordering::Release);
                    }
                }
                std::hint::spin_loop();
            }
            receiver.close(&mut softnet_core::skb::SkbList::new());
            Ok(())
        });
        let start = Instant::now();
        let (mut sent, mut batch) = (0, Batch::new());
        while sent < total && !thread.is_finished() {
            ctx.purge_deferred();
            if sent - freed.load(Ordering::Acquire) > AHEAD {
                std::hint::spin_loop();
                continue;
            }
            let frames = ctx.alloc_frame_bulk(BULK).map(|frame| (frame, HEADROOM, 64));
            sent += ctx.build_skbs(BULK, frames, &mut batch, |head| head.dev = 1) as u64;
            if inbox.push(&mut batch).is_err() {
                break;
            }
        }
        let ended = thread.join().map_err(|_| "the thread that frees panicked")?;
        ctx.free_batch(&mut batch, DropReason::Shutdown);
        ended.map(|()| start.elapsed().as_nanos() as f64)
    })?;
    drop(ctx);
    if (region.heads_free(), region.frames_free()) != (N.into(), N.into()) || freed.into_inner() != total {
        return Err("packet memory is missing".into());
    }
    Ok(vec![("ns_per_pair", ns / total as f64)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_come_back_either_way() {
        for limit in [0, 2, 128] {
            assert!(measure(limit, 200, 0).unwrap()[0].1 > 0.0);
        }
    }
}
