use std::sync::Arc;

use super::*;
use crate::SoftnetData;

fn region(frames: u32, heads: u32) -> Arc<Region> {
    Region::new(Box::new(HeapMemory::new(Region::bytes(frames, heads))), frames, heads).unwrap()
}

fn context(region: &Arc<Region>) -> SoftnetData {
    SoftnetData::new(region.clone(), CacheSizes::default())
}

#[test]
fn handles_are_eight_bytes() {
    assert_eq!((size_of::<Skb>(), size_of::<Option<Skb>>()), (8, 8));
    assert_eq!((size_of::<Frame>(), size_of::<Option<Frame>>()), (8, 8));
}

#[test]
fn push_pull_put_trim_stay_within_the_frame() {
    let region = region(4, 4);
    let mut ctx = context(&region);
    let mut skb = ctx.alloc_skb().unwrap();
    skb.put(100).unwrap().fill(7);
    skb.push(14).unwrap().fill(1);
    assert_eq!(
        (skb.len(), skb.headroom(), skb.tailroom()),
        (114, HEADROOM - 14, FRAME_SIZE - HEADROOM - 100)
    );
    assert_eq!((skb.data()[13], skb.data()[14]), (1, 7));
    skb.pull(14).unwrap();
    skb.trim(60);
    assert_eq!(skb.data(), [7; 60]);
    assert!(skb.pull(61).is_none());
    assert!(skb.push(HEADROOM + 1).is_none());
    assert!(skb.put(FRAME_SIZE).is_none());
    assert_eq!(skb.len(), 60);
    ctx.free(skb, DropReason::Shutdown);
}

#[test]
fn exhaustion_is_counted_and_recovers() {
    let region = region(3, 2);
    let mut ctx = context(&region);
    let a = ctx.alloc_skb().unwrap();
    let b = ctx.alloc_skb().unwrap();
    // A frame is left, a head is not: the frame must not get lost.
    assert!(ctx.alloc_skb().is_none());
    assert_eq!(region.exhausted(), 1);
    ctx.free(a, DropReason::NoHead);
    let a = ctx.alloc_skb().unwrap();
    ctx.deliver(a);
    ctx.free(b, DropReason::IpTtl);
    assert_eq!(ctx.stats().drops(0, DropReason::IpTtl), 1);
    assert_eq!((ctx.stats().dropped(), ctx.stats().delivered.get()), (2, 1));
    drop(ctx);
    assert_eq!((region.frames_free(), region.heads_free()), (3, 2));
}

#[test]
fn build_refuses_a_range_outside_the_frame() {
    let region = region(2, 2);
    let mut ctx = context(&region);
    let frame = ctx.alloc_frame().unwrap();
    let frame = ctx.build_skb(frame, 2000, 49).unwrap_err();
    let frame = ctx.build_skb(frame, 5000, 0).unwrap_err();
    let skb = ctx.build_skb(frame, 2000, 48).unwrap();
    ctx.free_skb(skb);
}

#[test]
fn foreign_skb_goes_home() {
    let (mine, other) = (region(2, 2), region(2, 2));
    let (mut a, mut b) = (context(&mine), context(&other));
    let skb = a.alloc_skb().unwrap();
    b.free(skb, DropReason::Shutdown);
    drop((a, b));
    assert_eq!((mine.frames_free(), mine.heads_free()), (2, 2));
    assert_eq!((other.frames_free(), other.heads_free()), (2, 2));
}

#[test]
fn a_copy_is_alike_and_apart() {
    let (mine, other) = (region(3, 3), region(2, 2));
    let (mut a, mut b) = (context(&mine), context(&other));
    let mut skb = a.alloc_skb().unwrap();
    skb.put(100).unwrap().fill(7);
    skb.push(14).unwrap().fill(1);
    let head = skb.head_mut();
    (head.dev, head.queue, head.hash, head.l3) = (3, 4, 5, 14);
    (head.flags, head.tc_depth, head.mark) = (Flags::FRAG, 2, 6);
    head.frag = 77;
    head.csum = Csum::Partial { start: 34, offset: 6 };
    // Also when the memory is another region's.
    let copies = [a.copy(&skb).unwrap(), b.copy(&skb).unwrap()];
    assert_eq!([copies[0].region(), copies[1].region()], [mine.id(), other.id()]);
    skb.data_mut().fill(9);
    skb.head_mut().dev = 9;
    for copy in copies {
        assert_eq!((copy.headroom(), copy.len()), (HEADROOM - 14, 114));
        assert!(copy.data()[..14] == [1; 14] && copy.data()[14..] == [7; 100]);
        let head = copy.head();
        assert_eq!((head.dev, head.queue, head.hash, head.l3), (3, 4, 5, 14));
        assert_eq!((head.flags, head.frag, head.tc_depth, head.mark), (Flags::FRAG, 77, 2, 6));
        assert_eq!(head.csum, Csum::Partial { start: 34, offset: 6 });
        a.free_skb(copy);
    }
    // A head that is used again says nothing of the packet before.
    a.free_skb(skb);
    let skb = a.alloc_skb().unwrap();
    assert_eq!((skb.head().dev, skb.head().hash, skb.head().tc_depth), (0, 0, 0));
    assert_eq!((skb.head().flags, skb.head().mark, skb.head().csum), (0, 0, Csum::None));
    a.free_skb(skb);
    drop((a, b));
    assert_eq!((mine.frames_free(), mine.heads_free()), (3, 3));
    assert_eq!((other.frames_free(), other.heads_free()), (2, 2));
}

#[test]
fn a_copy_needs_a_frame_and_a_head() {
    for (frames, heads) in [(1, 2), (2, 1)] {
        let region = region(frames, heads);
        let mut ctx = context(&region);
        let skb = ctx.alloc_skb().unwrap();
        assert!(ctx.copy(&skb).is_none());
        assert_eq!(region.exhausted(), 1);
        ctx.free_skb(skb);
        drop(ctx);
        assert_eq!((region.frames_free(), region.heads_free()), (frames.into(), heads.into()));
    }
}

#[test]
fn list_is_first_in_first_out() {
    let region = region(8, 8);
    let mut ctx = context(&region);
    let mut list = SkbList::new();
    for i in 0..5u8 {
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(1).unwrap()[0] = i;
        list.push_back(skb).unwrap();
    }
    for i in 0..5 {
        let skb = list.pop_front().unwrap();
        assert_eq!((skb.data()[0], list.len()), (i, 4 - usize::from(i)));
        ctx.free_skb(skb);
    }
    assert!(list.pop_front().is_none());
}

/// A list shows what it holds, and takes an skb at its front.
#[test]
fn list_shows_its_bytes() {
    let region = region(16, 16);
    let mut ctx = context(&region);
    let mut skb = |byte: u8| {
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(3).unwrap().fill(byte);
        skb
    };
    let mut list = SkbList::from(skb(1));
    list.push_back(skb(2)).unwrap();
    list.push_front(skb(0)).unwrap();
    let shown: Vec<Vec<u8>> = list.data().map(<[u8]>::to_vec).collect();
    assert_eq!(shown, [[0; 3], [1; 3], [2; 3]]);
    assert_eq!((list.len(), list.front_len()), (3, Some(3)));
    for byte in 0..3 {
        let skb = list.pop_front().unwrap();
        assert_eq!(skb.data(), [byte; 3]);
        ctx.free_skb(skb);
    }
    assert_eq!(list.data().count(), 0);
    // An empty list takes an skb of any region, at either end.
    let other = self::region(4, 4);
    let mut alien = context(&other);
    list.push_front(alien.alloc_skb().unwrap()).unwrap();
    let refused = list.push_front(ctx.alloc_skb().unwrap()).unwrap_err();
    ctx.free_skb(refused);
    alien.free_list(list, DropReason::Shutdown);
}

#[test]
fn batch_drain_keeps_what_it_did_not_yield() {
    let region = region(BATCH as u32 + 1, BATCH as u32 + 1);
    let mut ctx = context(&region);
    let mut batch = Batch::new();
    for i in 0..BATCH {
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(1).unwrap()[0] = i as u8;
        batch.push(skb).unwrap();
    }
    let over = ctx.alloc_skb().unwrap();
    let over = batch.push(over).unwrap_err();
    ctx.free_skb(over);
    for skb in batch.drain().take(10) {
        ctx.free_skb(skb);
    }
    assert_eq!((batch.len(), batch.as_slice()[0].data()[0]), (BATCH - 10, 10));
    let mut other = Batch::new();
    other.append(&mut batch);
    assert!(batch.is_empty());
    let last = other.pop().unwrap();
    assert_eq!(last.data()[0], BATCH as u8 - 1);
    ctx.free_skb(last);
    other.drain().for_each(|skb| ctx.free_skb(skb));
}

/// Dropping a handle aborts in debug builds: seen from outside, in a child process.
#[test]
#[cfg(debug_assertions)]
fn a_leaked_skb_aborts() {
    const CHILD: &str = "SOFTNET_TEST_LEAK";
    if std::env::var_os(CHILD).is_some() {
        let region = region(1, 1);
        drop(context(&region).alloc_skb());
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "skb::tests::a_leaked_skb_aborts", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.status.signal(), Some(6), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stderr).contains("dropped without free(skb, reason)"));
}

mod packed;
#[cfg(feature = "debug-poison")]
mod poison;
mod remote;
