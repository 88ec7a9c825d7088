//! Aggregates in fragments form: in place, where each frame is a segment's payload already, as GRO
//! has them; by copying, whatever the frames are like.

use super::header::{TCP_FLAGS, put, tcp_flags};
use super::inherit;
use super::layout::{L4, Layout, MAX_HEADERS};
use crate::SoftnetData;
use crate::skb::{Csum, DropReason, FRAME_SIZE, Flags, GsoType, HEADROOM, Skb, SkbList};

/// What all segments are written from.
struct Template {
    headers: [u8; MAX_HEADERS],
    layout: Layout,
    size: usize,
    first_id: u16,
    first_seq: u32,
    flags: u8,
    fixed_id: bool,
}

impl Template {
    fn of(skb: &Skb, layout: &Layout) -> Self {
        let data = skb.data();
        let mut headers = [0; MAX_HEADERS];
        headers[..layout.payload()].copy_from_slice(&data[..layout.payload()]);
        Template {
            headers,
            layout: *layout,
            size: skb.head().gso_size.into(),
            first_id: layout.id(data),
            first_seq: layout.seq(data),
            flags: data.get(layout.l4() + TCP_FLAGS).copied().unwrap_or_default(),
            fixed_id: skb.head().flags & Flags::GSO_FIXED_ID != 0,
        }
    }

    /// Writes the headers of segment number `i`, of which the payload is in place. It `is_last` or
    /// not.
    fn write(&self, skb: &mut Skb, i: usize, is_last: bool) {
        let layout = &self.layout;
        let len = skb.len() - layout.payload();
        let data = skb.data_mut();
        data[..layout.payload()].copy_from_slice(&self.headers[..layout.payload()]);
        let id = if self.fixed_id { self.first_id } else { self.first_id.wrapping_add(i as u16) };
        layout.set_lengths(data, len, Some(id));
        if layout.l4_is == L4::Tcp {
            let seq = self.first_seq.wrapping_add((i * self.size) as u32);
            put(data, layout.l4() + 4, seq.to_be_bytes());
            let ends = if is_last { 0 } else { tcp_flags::FIN | tcp_flags::PSH };
            let begins = if i == 0 { 0 } else { tcp_flags::CWR };
            put(data, layout.l4() + TCP_FLAGS, [self.flags & !(ends | begins)]);
        }
        put(data, layout.check(), [0, 0]);
        let len = layout.l4_headers() + len;
        let check = layout.checksum(skb.data(), len, skb.pieces(layout.l4(), len));
        put(skb.data_mut(), layout.check(), check);
    }
}

/// Whether each frame is the payload of one segment, with room in front for headers.
pub(super) fn is_aligned(skb: &Skb, layout: &Layout) -> bool {
    let size = usize::from(skb.head().gso_size);
    let mut last = skb.head_len() - layout.payload();
    let mut aligned = last > 0 && last <= size;
    skb.each_part(|part| {
        // All but the last are of that size.
        aligned &= last == size && part.len() <= size && !part.is_empty();
        aligned &= part.headroom() >= layout.payload();
        last = part.len();
    });
    aligned
}

/// Cuts a packet that [is aligned](is_aligned).
pub(super) fn in_place(
    ctx: &mut SoftnetData,
    mut skb: Skb,
    layout: &Layout,
) -> Result<SkbList, (Skb, DropReason)> {
    let template = Template::of(&skb, layout);
    let Some(mut chain) = ctx.take_chain(&mut skb) else { return Err((skb, DropReason::NoHead)) };
    let mut out = SkbList::new();
    let n = 1 + chain.len();
    for i in 1..n {
        let Some(mut part) = chain.pop_front() else { break };
        // There is room, and it is of the same region as the others.
        let _ = part.push(layout.payload());
        template.write(&mut part, i, i + 1 == n);
        inherit(part.head_mut(), skb.head(), layout);
        part.head_mut().csum = Csum::Unnecessary;
        append(&mut out, part);
    }
    template.write(&mut skb, 0, n == 1);
    ended(&mut skb);
    if let Err(skb) = out.push_front(skb) {
        // Not reached: a chain is of one region.
        drop(skb);
    }
    Ok(out)
}

/// Appends to a list of the same region.
pub(super) fn append(list: &mut SkbList, skb: Skb) {
    if let Err(skb) = list.push_back(skb) {
        // Not reached: a chain is of one region. Dropping it makes a mistake there show as a leak.
        drop(skb);
    }
}

/// The head of what was an aggregate, and is a segment now.
pub(super) fn ended(skb: &mut Skb) {
    let head = skb.head_mut();
    head.flags &= !Flags::GSO_FIXED_ID;
    (head.gso_size, head.gso_segs, head.gso_type) = (0, 0, GsoType::None);
    head.csum = Csum::Unnecessary;
}

/// Cuts any packet, into new frames.
pub(super) fn copying(
    ctx: &mut SoftnetData,
    skb: Skb,
    layout: &Layout,
) -> Result<SkbList, (Skb, DropReason)> {
    let template = Template::of(&skb, layout);
    let payload = skb.len() - layout.payload();
    let n = payload.div_ceil(template.size).max(1);
    let mut out = SkbList::new();
    for i in 0..n {
        let at = i * template.size;
        let len = template.size.min(payload - at);
        let Some(mut segment) = copy_payload(ctx, &skb, layout.payload(), at, len) else {
            while let Some(skb) = out.pop_front() {
                ctx.free_skb(skb);
            }
            return Err((skb, DropReason::NoFrame));
        };
        template.write(&mut segment, i, i + 1 == n);
        inherit(segment.head_mut(), skb.head(), layout);
        segment.head_mut().csum = Csum::Unnecessary;
        append(&mut out, segment);
    }
    ctx.free_skb(skb);
    Ok(out)
}

/// A packet with room for headers, and behind these `len` bytes of the payload from `at` on: in as
/// many frames as that takes.
fn copy_payload(ctx: &mut SoftnetData, skb: &Skb, headers: usize, at: usize, len: usize) -> Option<Skb> {
    const ROOM: usize = FRAME_SIZE - HEADROOM;
    let mut copy = ctx.alloc_skb()?;
    let first = len.min(ROOM - headers);
    let mut done = 0;
    let whole = loop {
        let (front, now) = if done == 0 { (headers, first) } else { (0, ROOM.min(len - done)) };
        let mut part = match done {
            0 => None,
            _ => match ctx.alloc_skb() {
                Some(part) => Some(part),
                None => break false,
            },
        };
        let to = part.as_mut().unwrap_or(&mut copy);
        if let Some(bytes) = to.put(front + now) {
            skb.copy_bits(headers + at + done, &mut bytes[front..]);
        }
        done += now;
        if let Some(part) = part
            && let Err(part) = copy.append(part)
        {
            ctx.free_skb(part);
            break false;
        }
        if done >= len {
            break true;
        }
    };
    if !whole {
        ctx.free_skb(copy);
        return None;
    }
    Some(copy)
}
