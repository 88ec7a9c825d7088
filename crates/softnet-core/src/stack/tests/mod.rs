//! The composition's stages, each with a host that notes what it is asked for.

mod dev_tx;
mod receive;
mod slow;

use crate::SoftnetData;
use crate::skb::{Batch, Skb};

/// A packet that ends in `id`.
fn packet(ctx: &mut SoftnetData, id: u8) -> Skb {
    let mut skb = ctx.alloc_skb().unwrap();
    let data = skb.put(60).unwrap();
    data.fill(0);
    data[59] = id;
    skb
}

fn batch(ctx: &mut SoftnetData, ids: impl IntoIterator<Item = u8>) -> Batch {
    let mut batch = Batch::new();
    ids.into_iter().for_each(|id| batch.push(packet(ctx, id)).unwrap());
    batch
}

/// Frees the packets of `batch`: what they end in.
fn ids(ctx: &mut SoftnetData, batch: &mut Batch) -> Vec<u8> {
    let end = |skb: Skb| {
        let id = *skb.data().last().unwrap();
        ctx.free_skb(skb);
        id
    };
    batch.drain().map(end).collect()
}
