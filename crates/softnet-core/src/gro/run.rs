//! A flow whose next segment is foreseen: of one that has been merged before, all of the next
//! header is known but for the L4 checksum and the flags that end an aggregate. That holds for the
//! first segment of its next aggregate, too.
//!
//! Used by the table alone, for a packet before anything else is looked up. What is foreseen is
//! compared in a few wide words, without a hash, and without reading the header for what it says.
//!
//! Invariant: a packet [is next](Run::is_next) only if the rules of `merge.rs` find it mergeable,
//! of the flow, and acceptable. The other way round need not hold: what is not foreseen is looked
//! up.

use super::MAX_SIZE;
use super::arrived::Arrived;
use super::merge::{ENDS, Form, Held, flags};
use crate::gso::header::{TCP_FLAGS, be16, be32, tcp_flags};
use crate::gso::layout::{L4, Layout};
use crate::ip::checksum;
use crate::skb::VlanProto;
use crate::vlan;

/// Bytes that are compared: Ethernet with a tag, IPv6, TCP with timestamps. What has more is looked
/// up each time.
const LEN: usize = 96;
const WORDS: usize = LEN / 8;

/// See the [module](self).
pub(super) struct Run {
    /// The header of the first segment, and which bits the next has to have in common with it.
    header: [u64; WORDS],
    mask: [u64; WORDS],
    pub(super) layout: Layout,
    tag: Option<(VlanProto, u16)>,
    /// Of the flow.
    pub(super) hash: u32,
    /// Bytes of payload in a segment.
    pub(super) size: u16,
    /// Bytes of a segment's packet.
    len: usize,
    /// IPv4 identification and header checksum of the next, and by how much the first steps.
    id: u16,
    check: u16,
    step: u16,
    seq: u32,
}

/// What a packet is to the flow that foresees it, and which flags it has (0 of UDP).
pub(super) enum Foreseen {
    /// The next segment of what is held.
    Next(u8),
    /// The same, and there is no more room: the first of another aggregate.
    AfterFull,
    /// Nothing is held: the first of another aggregate.
    First,
}

fn words(bytes: &[u8; LEN]) -> [u64; WORDS] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_ne_bytes(words[at]))
}

/// 0xff where the bytes of all segments' headers are the same.
fn mask_of(layout: &Layout) -> [u64; WORDS] {
    let (mut mask, l3, l4) = ([0; LEN], layout.l3(), layout.l4());
    mask[..layout.payload()].fill(0xff);
    if !layout.is_v6 {
        mask[l3 + 4..l3 + 6].fill(0);
        mask[l3 + 10..l3 + 12].fill(0);
    }
    mask[layout.check()..layout.check() + 2].fill(0);
    if layout.l4_is == L4::Tcp {
        mask[l4 + 4..l4 + 8].fill(0);
        mask[l4 + TCP_FLAGS] = !(tcp_flags::FIN | tcp_flags::PSH);
    }
    words(&mask)
}

impl Run {
    /// What is to follow `held`, which has been merged before.
    pub(super) fn of(held: &Held) -> Option<Run> {
        let (layout, data) = (held.layout, held.skb.data());
        if held.form != Form::Frags || layout.payload() > LEN {
            return None;
        }
        // A frame that ends before has nothing there that counts.
        let mut header = [0; LEN];
        header[..layout.payload()].copy_from_slice(data.get(..layout.payload())?);
        let mut run = Run {
            header: words(&header),
            mask: mask_of(&layout),
            layout,
            tag: vlan::get(held.skb.head()),
            hash: held.hash,
            size: held.size,
            len: layout.payload() + usize::from(held.size),
            id: 0,
            check: 0,
            step: 0,
            seq: 0,
        };
        run.renew(held);
        Some(run)
    }

    /// Takes what differs between segments from `held` as it is now.
    pub(super) fn renew(&mut self, held: &Held) {
        let (layout, data) = (&self.layout, held.skb.data());
        self.step = u16::from(!held.fixed_id);
        let first = layout.id(data);
        self.id = first.wrapping_add(self.step.wrapping_mul(held.count));
        self.check = checksum::update16(be16(data, layout.l3() + 10), first, self.id);
        self.seq = layout.seq(data).wrapping_add((held.len - layout.headers()) as u32);
    }

    /// Whether all segments have the same IPv4 identification.
    pub(super) fn has_fixed_id(&self) -> bool {
        self.step == 0 && !self.layout.is_v6
    }

    /// Whether the packet is the next segment, its L4 checksum aside, of `held`, or of what comes
    /// after it.
    #[inline(always)]
    pub(super) fn is_next(&self, held: Option<&Held>, packet: &impl Arrived) -> Option<Foreseen> {
        let (data, layout) = (packet.data(), &self.layout);
        let bytes = data.first_chunk::<LEN>()?;
        let theirs = words(bytes);
        let differ = (0..WORDS).fold(0, |differ, at| differ | (theirs[at] ^ self.header[at]) & self.mask[at]);
        let check = be16(bytes, layout.check());
        let l4 = match layout.l4_is {
            // 0xffff is how a sum of 0 would be written, and none is.
            L4::Tcp => check != 0xffff && be32(bytes, layout.l4() + 4) == self.seq,
            L4::Udp => check != 0,
        };
        let ip = layout.is_v6 || {
            let check = be16(bytes, layout.l3() + 10);
            be16(bytes, layout.l3() + 4) == self.id && check == self.check && check != 0xffff
        };
        if differ != 0 || !l4 || !ip || data.len() != self.len || !packet.is_plain(self.tag) {
            return None;
        }
        let flags = flags(bytes, layout);
        match held {
            Some(held) if held.len + usize::from(self.size) < MAX_SIZE => Some(Foreseen::Next(flags)),
            // One that ends at once need not be held.
            _ if flags & ENDS != 0 => None,
            Some(_) => Some(Foreseen::AfterFull),
            None => Some(Foreseen::First),
        }
    }

    /// That packet came.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        let next = self.id.wrapping_add(self.step);
        self.check = checksum::update16(self.check, self.id, next);
        self.id = next;
        self.seq = self.seq.wrapping_add(self.size.into());
    }
}
