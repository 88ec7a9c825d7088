//! A packet that has come, in one of two forms: with a head, or as a frame that has none yet.
//!
//! Used by the table alone. What becomes part of an aggregate leaves its head behind, or never gets
//! one; what does not is given one.

use crate::SoftnetData;
use crate::skb::{Csum, DropReason, Frame, FrameBatch, FrameChain, Skb, VlanProto};
use crate::vlan;

/// See the [module](self).
pub(super) trait Arrived: Sized {
    /// The bytes in its first frame.
    fn data(&self) -> &[u8];

    /// Whether it is one frame and one segment with this tag beside it, and nothing else is known
    /// of it that an aggregate can't have.
    fn is_plain(&self, tag: Option<(VlanProto, u16)>) -> bool;

    /// What is known of its L4 checksum.
    fn csum(&self) -> Csum;

    /// The region of its memory.
    fn region(&self) -> u32;

    /// Appends its frame to `chain`, without its first `headers` bytes. It is plain, and of the
    /// region of `ctx`, as is the chain. Without memory for that it is dropped; returns whether it
    /// was not.
    fn append_to(self, ctx: &mut SoftnetData, chain: &mut FrameChain, headers: usize) -> bool;

    /// It, with a head; `None` if it had none, and there is none: then it is dropped.
    fn into_skb(self, ctx: &mut SoftnetData) -> Option<Skb>;
}

/// Appends a frame, with offset and length of its bytes, to `chain`, without its first `headers`
/// bytes; or drops it, which came by `dev`. Returns whether it did the first.
#[inline(always)]
fn append(
    ctx: &mut SoftnetData,
    chain: &mut FrameChain,
    (frame, off, len): (Frame, usize, usize),
    headers: usize,
    dev: u16,
) -> bool {
    let appended = ctx.chain_frame(chain, frame, off + headers, len.saturating_sub(headers));
    let Err(frame) = appended else { return true };
    ctx.free_frame(frame);
    ctx.count_drops(dev, DropReason::NoHead, 1);
    false
}

impl Arrived for Skb {
    #[inline(always)]
    fn data(&self) -> &[u8] {
        Skb::data(self)
    }

    #[inline(always)]
    fn is_plain(&self, tag: Option<(VlanProto, u16)>) -> bool {
        let head = self.head();
        !self.is_chained() && head.gso_size == 0 && head.flags == 0 && vlan::get(head) == tag
    }

    #[inline(always)]
    fn csum(&self) -> Csum {
        self.head().csum
    }

    #[inline(always)]
    fn region(&self) -> u32 {
        Skb::region(self)
    }

    #[inline(always)]
    fn append_to(self, ctx: &mut SoftnetData, chain: &mut FrameChain, headers: usize) -> bool {
        let dev = self.head().dev;
        match ctx.take_frame(self) {
            Ok(taken) => append(ctx, chain, taken, headers, dev),
            // Not reached: it has one frame.
            Err(skb) => {
                ctx.free(skb, DropReason::Nonlinear);
                false
            }
        }
    }

    #[inline(always)]
    fn into_skb(self, _: &mut SoftnetData) -> Option<Skb> {
        Some(self)
    }
}

/// The first of a batch of frames, which is not empty.
pub(super) struct Bare<'a>(pub(super) &'a mut FrameBatch);

impl Arrived for Bare<'_> {
    #[inline(always)]
    fn data(&self) -> &[u8] {
        self.0.front().unwrap_or_default()
    }

    #[inline(always)]
    fn is_plain(&self, tag: Option<(VlanProto, u16)>) -> bool {
        tag.is_none()
    }

    #[inline(always)]
    fn csum(&self) -> Csum {
        self.0.csum
    }

    #[inline(always)]
    fn region(&self) -> u32 {
        self.0.region()
    }

    #[inline(always)]
    fn append_to(self, ctx: &mut SoftnetData, chain: &mut FrameChain, headers: usize) -> bool {
        let Some(taken) = self.0.pop() else { return false };
        append(ctx, chain, taken, headers, self.0.dev)
    }

    #[inline(always)]
    fn into_skb(self, ctx: &mut SoftnetData) -> Option<Skb> {
        let (frame, off, len) = self.0.pop()?;
        match ctx.build_skb(frame, off, len) {
            Ok(mut skb) => {
                let head = skb.head_mut();
                (head.dev, head.queue, head.csum) = (self.0.dev, self.0.queue, self.0.csum);
                Some(skb)
            }
            Err(frame) => {
                ctx.free_frame(frame);
                ctx.count_drops(self.0.dev, DropReason::NoHead, 1);
                None
            }
        }
    }
}
