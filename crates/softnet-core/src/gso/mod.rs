//! GSO: one packet that stands for many segments, and how it is cut into them (the kernel's
//! `skb_segment`).
//!
//! A packet with a [`gso_size`](crate::skb::Head::gso_size) is an *aggregate*. It comes from
//! [`gro`](crate::gro), or from a device or sender that leaves cutting to a later stage, in one of
//! two forms:
//!
//! * **Fragments**: the headers once, for all of the payload, which lies in the first frame and
//!   those of the chain. The checksum field has the sum of the pseudo-header, and the head says
//!   [`Csum::Partial`].
//! * **Frame list** ([`GsoType::FragList`]): the first frame is the first segment, but for the
//!   lengths in its headers, which are those of the whole. Each frame of the chain is a further
//!   segment, whose own headers lie in front of its bytes, in the headroom. Each segment's checksum
//!   is its own.
//!
//! A stage that only passes packets on, or rewrites headers, need not care: it rewrites those of
//! the first frame, and the segments get the same. What looks at segments has them cut: the [TX
//! queue](crate::stack::tx_queue) for a device that does not cut by itself, sockets, and the slow
//! path.
//!
//! Invariants: the segments of an aggregate that [`gro`](crate::gro) made are byte for byte the
//! packets that it was made of, but for what was rewritten meanwhile; cutting is all or nothing.
//! Each segment beyond the first counts as [originated](SoftnetData::originated).

mod cut;
mod fraglist;
pub(crate) mod header;
pub(crate) mod layout;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::borrow::BorrowMut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::SoftnetData;
use crate::ip::checksum;
use crate::skb::{Batch, Csum, DropReason, Flags, GsoType, Head, Skb, SkbList};
use layout::Layout;

/// Whether any packet has been an aggregate, or had a partial checksum: as long as none has, none
/// is looked for. What hands a packet over to another thread orders this, too.
static SEEN: AtomicBool = AtomicBool::new(false);

/// What a device does by itself with what is put on a TX queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffloads {
    /// Completes [partial](Csum::Partial) checksums.
    pub csum: bool,
    /// Cuts TCP over IPv4 in fragments form, whose checksum it completes.
    pub tso4: bool,
    /// The same over IPv6.
    pub tso6: bool,
    /// The same for UDP.
    pub uso: bool,
}

impl TxOffloads {
    /// Whether the device takes the packet as it is.
    pub(crate) fn takes(&self, head: &Head) -> bool {
        let cuts = match head.gso_type {
            _ if head.gso_size == 0 => true,
            GsoType::TcpV4 => self.tso4,
            GsoType::TcpV6 => self.tso6,
            GsoType::UdpL4 => self.uso,
            GsoType::None | GsoType::FragList => false,
        };
        cuts && (self.csum || !matches!(head.csum, Csum::Partial { .. }))
    }
}

/// To be called before a packet with a [`gso_size`](Head::gso_size), or a [partial](Csum::Partial)
/// checksum, is handed on.
#[inline]
pub fn announce() {
    if !SEEN.load(Relaxed) {
        SEEN.store(true, Relaxed);
    }
}

/// Whether the packet stands for several segments, or for one that is to look as if it were cut off
/// such a packet.
#[inline(always)]
pub fn is_aggregate(skb: &Skb) -> bool {
    skb.head().gso_size != 0
}

/// Whether there are aggregates in `batch`: a load, where there never were any.
#[inline(always)]
pub fn any(batch: &Batch) -> bool {
    SEEN.load(Relaxed) && batch.as_slice().iter().any(is_aggregate)
}

/// Whether the packet has to be [cut, or completed](segment), before its bytes say what they seem to.
#[inline(always)]
pub fn is_unfinished(skb: &Skb) -> bool {
    is_aggregate(skb) || matches!(skb.head().csum, Csum::Partial { .. })
}

/// Whether there are such packets in `batch`: a load, where there never were any.
#[inline(always)]
pub fn any_unfinished(batch: &Batch) -> bool {
    SEEN.load(Relaxed) && batch.as_slice().iter().any(is_unfinished)
}

/// Whether there are aggregates in `batch` whose segments have headers of their own: a load, where
/// there never were any.
#[inline(always)]
pub fn any_lists(batch: &Batch) -> bool {
    SEEN.load(Relaxed) && batch.as_slice().iter().any(|skb| skb.head().gso_type == GsoType::FragList)
}

/// Whether there are packets in `batch` that a device with these offloads does not take: a load,
/// where there never were any.
#[inline(always)]
pub(crate) fn any_refused(batch: &Batch, offloads: TxOffloads) -> bool {
    SEEN.load(Relaxed) && batch.as_slice().iter().any(|skb| !offloads.takes(skb.head()))
}

/// Bytes of the packet as they leave, headers of each segment included (the kernel's
/// `qdisc_pkt_len_init`): what disciplines count.
#[inline(always)]
pub fn pkt_len(skb: &Skb) -> usize {
    if is_aggregate(skb) { aggregate_len(skb) } else { skb.len() }
}

#[cold]
fn aggregate_len(skb: &Skb) -> usize {
    let headers = Layout::of(skb.data()).map_or(0, |layout| layout.payload());
    skb.len() + (skb.segments() - 1) * headers
}

/// Bytes of the longest segment of an aggregate from its IP header on; `None` if it is none (the
/// kernel's `skb_gso_network_seglen`).
#[cold]
pub fn network_len(skb: &Skb) -> Option<usize> {
    let size = usize::from(skb.head().gso_size);
    let layout = Layout::of(skb.data()).filter(|_| size > 0)?;
    Some(layout.headers() + size.min(skb.len() - layout.payload()))
}

/// The same from the Ethernet header on (`skb_gso_mac_seglen`).
#[cold]
pub fn mac_len(skb: &Skb) -> Option<usize> {
    let layout = Layout::of(skb.data())?;
    Some(network_len(skb)? + layout.l3())
}

/// Cuts an aggregate into its segments, in order, with their checksums. A packet that is none is
/// the one segment.
///
/// Hands it back, for [`NoFrame`](DropReason::NoFrame) or [`NoHead`](DropReason::NoHead), if memory
/// runs out, and for
/// [`PktTooSmall`](DropReason::PktTooSmall) if its headers can't be read any more.
pub fn segment(ctx: &mut SoftnetData, mut skb: Skb) -> Result<SkbList, (Skb, DropReason)> {
    if !is_aggregate(&skb) {
        complete(&mut skb);
        return Ok(SkbList::from(skb));
    }
    let Some(layout) = Layout::of(skb.data()) else { return Err((skb, DropReason::PktTooSmall)) };
    let segments = match skb.head().gso_type {
        GsoType::FragList if fraglist::is_intact(&skb, &layout) => fraglist::split(ctx, skb, &layout)?,
        _ if cut::is_aligned(&skb, &layout) => cut::in_place(ctx, skb, &layout)?,
        _ => cut::copying(ctx, skb, &layout)?,
    };
    // One of them is the packet that was counted already.
    ctx.originated(segments.len() as u64 - 1);
    Ok(segments)
}

/// Hands the packets of `batch`, aggregates cut, to `each`, a batch at a time, in order, and leaves
/// it empty. `cx` has the thread's context, or is it. What `each` leaves in a batch is in the next one. An aggregate that can't be cut is
/// dropped.
#[cold]
pub fn segment_batch<C: BorrowMut<SoftnetData>>(
    cx: &mut C,
    batch: &mut Batch,
    mut each: impl FnMut(&mut C, &mut Batch),
) {
    let mut out = Batch::new();
    for skb in batch.drain() {
        let mut segments = match segment(cx.borrow_mut(), skb) {
            Ok(segments) => segments,
            Err((skb, reason)) => {
                cx.borrow_mut().free(skb, reason);
                continue;
            }
        };
        while let Some(skb) = segments.pop_front() {
            if out.room() == 0 {
                each(cx, &mut out);
            }
            if let Err(skb) = out.push(skb) {
                cx.borrow_mut().free(skb, DropReason::Shutdown);
            }
        }
    }
    if !out.is_empty() {
        each(cx, &mut out);
        cx.borrow_mut().free_batch(&mut out, DropReason::Shutdown);
    }
}

/// Completes a [partial](Csum::Partial) checksum (the kernel's `skb_checksum_help`).
pub fn complete(skb: &mut Skb) {
    let Csum::Partial { start, offset } = skb.head().csum else { return };
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    let len = skb.len().saturating_sub(start);
    // The field has the sum of the pseudo-header, and is summed with the rest.
    let check = match !checksum::sum_skb(skb, start, len).1 {
        // Of TCP it would mean the same, but for UDP 0 means none (RFC 768).
        0 => 0xffff,
        check => check,
    };
    if let Some(to) = skb.data_mut().get_mut(field..field + 2) {
        to.copy_from_slice(&check.to_be_bytes());
    }
    skb.head_mut().csum = Csum::Unnecessary;
}

/// What a segment's head takes over of the aggregate's: all that is known of the packet, but that
/// it is an aggregate.
fn inherit(to: &mut Head, of: &Head, layout: &Layout) {
    to.copy_metadata(of);
    to.flags &= !Flags::GSO_FIXED_ID;
    to.hash = of.hash;
    (to.l3, to.l4, to.protocol) = (layout.l3, layout.l4, layout.l4_is.number());
    (to.gso_size, to.gso_segs, to.gso_type) = (0, 0, GsoType::None);
}
