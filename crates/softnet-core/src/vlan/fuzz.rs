//! Tags of frames that a stranger makes up: taken out, sorted by VLAN, and put back.
//!
//! Invariant: a frame whose tag was taken out and put back is the same, and no memory is lost.

use super::{VlanGroup, get, put_back_all, take_out};
use crate::SoftnetData;
use crate::skb::{Batch, CacheSizes, HeapMemory, Region, VlanProto};

const FRAMES: u32 = 8;

/// A frame of any bytes.
pub fn vlan(data: &[u8]) {
    let memory = Box::new(HeapMemory::new(Region::bytes(FRAMES, FRAMES)));
    let region = Region::new(memory, FRAMES, FRAMES).expect("room for a region");
    let mut ctx = SoftnetData::new(region, CacheSizes::default());
    let group = VlanGroup::new();
    group.insert(VlanProto::Dot1q, 7, 1);
    group.insert(VlanProto::Dot1ad, 7, 2);
    let mut batch = Batch::new();
    let mut came = Vec::new();
    if let Some(mut skb) = ctx.alloc_skb() {
        let len = data.len().min(skb.tailroom());
        if let Some(to) = skb.put(len) {
            to.copy_from_slice(&data[..len]);
        }
        came.extend_from_slice(skb.data());
        let tagged = take_out(&mut skb);
        assert_eq!(tagged, get(skb.head()).is_some());
        if let Err(skb) = batch.push(skb) {
            ctx.deliver(skb);
        }
    }
    put_back_all(&mut ctx, 0, &mut batch);
    for skb in batch.as_slice() {
        assert_eq!(skb.data(), came);
    }
    // Twice tagged frames have a second tag after the first.
    for skb in batch.as_mut_slice() {
        take_out(skb);
    }
    while let Some((_, mut of)) = group.next(&mut ctx, &mut batch) {
        for skb in of.as_mut_slice() {
            take_out(skb);
        }
        put_back_all(&mut ctx, 0, &mut of);
        while let Some(skb) = of.pop() {
            ctx.deliver(skb);
        }
    }
    while let Some(skb) = batch.pop() {
        ctx.deliver(skb);
    }
    ctx.drain();
    assert_eq!((ctx.region().frames_free(), ctx.region().heads_free()), (FRAMES.into(), FRAMES.into()));
}
