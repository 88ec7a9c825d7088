//! Aggregates in frame-list form: each segment has its own headers still, which get what was
//! rewritten in the first one's.
//!
//! The fields that GRO found equal in all segments are taken from the first one; its own each has
//! of those in which they may differ (length, identification, sequence number, checksums), the
//! latter [updated](checksum::update16) for what is new.

use super::cut::{append, ended};
use super::header::{be16, put};
use super::inherit;
use super::layout::{L4, Layout, MAX_HEADERS};
use crate::SoftnetData;
use crate::ip::checksum;
use crate::skb::{Csum, DropReason, Part, Skb, SkbList};

/// Whether each segment's own headers are where they were, and of the kind of the first one's. They
/// are not if those were translated to another family's, or if others were put in front for which
/// there is no room.
pub(super) fn is_intact(skb: &Skb, layout: &Layout) -> bool {
    let mut intact = skb.head_len() > layout.payload();
    skb.each_part(|part| {
        intact &= !part.is_empty() && own(&part, layout).is_some();
    });
    intact
}

/// The headers of a further segment, as if there were the link header of the first in front of
/// them.
fn own<'a>(part: &Part<'a>, layout: &Layout) -> Option<&'a [u8]> {
    let headers = part.pulled(layout.payload())?;
    let (ip, number) = (headers.get(layout.l3())?, if layout.is_v6 { 6 } else { 9 });
    let same = match layout.is_v6 {
        true => ip >> 4 == 6,
        false => *ip == 0x45,
    };
    let same = same && *headers.get(layout.l3() + number)? == layout.l4_is.number();
    let len = match layout.l4_is {
        L4::Tcp => usize::from(*headers.get(layout.l4() + 12)? >> 4) * 4,
        L4::Udp => super::layout::UDP_LEN,
    };
    (same && len == layout.l4_headers()).then_some(headers)
}

/// Cuts a packet that [is intact](is_intact).
pub(super) fn split(
    ctx: &mut SoftnetData,
    mut skb: Skb,
    layout: &Layout,
) -> Result<SkbList, (Skb, DropReason)> {
    let Some(mut chain) = ctx.take_chain(&mut skb) else { return Err((skb, DropReason::NoHead)) };
    let mut first = [0; MAX_HEADERS];
    let first = &mut first[..layout.payload()];
    first.copy_from_slice(&skb.data()[..layout.payload()]);
    let mut out = SkbList::new();
    let len = skb.head_len() - layout.payload();
    layout.set_lengths(skb.data_mut(), len, None);
    while let Some(mut part) = chain.pop_front() {
        // There is room.
        let _ = part.push(layout.payload());
        repair(part.data_mut(), first, layout, skb.head().csum);
        inherit(part.head_mut(), skb.head(), layout);
        part.head_mut().csum = skb.head().csum;
        append(&mut out, part);
    }
    let csum = skb.head().csum;
    ended(&mut skb);
    skb.head_mut().csum = csum;
    if let Err(skb) = out.push_front(skb) {
        // Not reached: a chain is of one region.
        drop(skb);
    }
    Ok(out)
}

/// Brings the headers that `data` begins with to what was done to those of the first segment.
fn repair(data: &mut [u8], first: &[u8], layout: &Layout, csum: Csum) {
    let (l3, l4) = (layout.l3(), layout.l4());
    data[..l3].copy_from_slice(&first[..l3]);
    // What the L4 checksum covers: addresses and ports.
    let addresses = if layout.is_v6 { l3 + 8 } else { l3 + 12 };
    let both = addresses..l4 + 4;
    if data[both.clone()] != first[both.clone()] {
        let partial = matches!(csum, Csum::Partial { .. });
        // In a partial checksum there are the addresses only, and its complement is not taken.
        let covered = addresses..if partial { l4 } else { l4 + 4 };
        let (before, after) = (checksum::sum(&data[covered.clone()]), checksum::sum(&first[covered]));
        let check = be16(data, layout.check());
        let check = match (partial, layout.l4_is) {
            (true, _) => !checksum::update16(!check, before, after),
            // There is none (RFC 768).
            (false, L4::Udp) if check == 0 => 0,
            (false, _) => layout.written(checksum::update16(check, before, after)),
        };
        put(data, layout.check(), check.to_be_bytes());
        data[both.clone()].copy_from_slice(&first[both]);
    }
    if layout.is_v6 {
        data[l3..l3 + 4].copy_from_slice(&first[l3..l3 + 4]);
        data[l3 + 7] = first[l3 + 7];
        return;
    }
    data[l3 + 1] = first[l3 + 1];
    data[l3 + 8] = first[l3 + 8];
    let payload = usize::from(be16(data, l3 + 2)).saturating_sub(layout.headers());
    layout.set_lengths(data, payload, None);
}
