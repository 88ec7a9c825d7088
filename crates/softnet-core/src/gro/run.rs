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

use super::arrived::Arrived;
use super::merge::{ENDS, Form, Held, flags};
use super::{AHEAD, MAX_SIZE};
use crate::gso::header::{TCP_FLAGS, be16, be32, tcp_flags};
use crate::gso::layout::{L4, Layout};
use crate::ip::checksum;
use crate::skb::{FrameBatch, VlanProto};
use crate::vlan;

/// Bytes that are compared: Ethernet with a tag, IPv6, TCP with timestamps. What has more is looked
/// up each time.
const LEN: usize = 96;
const WORDS: usize = LEN / 8;
/// Words in a cache line.
const LINE: usize = 64 / 8;

/// What all segments of a flow have in common.
struct Template {
    /// The header of the first segment, and which bits the next has to have in common with it.
    header: [u64; WORDS],
    mask: [u64; WORDS],
    layout: Layout,
    /// Bytes of a segment's packet, and of its payload.
    len: usize,
    size: u16,
    /// By how much the IPv4 identification steps.
    step: u16,
}

impl Template {
    /// Whether these bytes differ from what all segments have in common.
    ///
    /// A function of its own, of two words at a time: so the compiler uses SSE2 for it, where it
    /// used general registers, and spilled them, when this was part of the loop that calls it.
    #[inline(never)]
    fn differs(&self, bytes: &[u8; LEN]) -> bool {
        let (words, _) = bytes.as_chunks::<8>();
        let differ = |range: std::ops::Range<usize>| {
            let mut differ = [0; 2];
            for at in range {
                differ[at % 2] |= (u64::from_ne_bytes(words[at]) ^ self.header[at]) & self.mask[at];
            }
            differ[0] | differ[1]
        };
        // Without TCP options, or with IPv4 and few, all of it is in the first line.
        differ(0..LINE) != 0 || self.layout.payload() > LINE * 8 && differ(LINE..WORDS) != 0
    }
}

/// What is the next segment's alone.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    /// IPv4 identification and header checksum.
    id: u16,
    check: u16,
    seq: u32,
}

impl Expected {
    /// Whether these are the bytes of the next segment, its L4 checksum aside: with which flags (0
    /// of UDP).
    #[inline(always)]
    fn is(&self, template: &Template, data: &[u8]) -> Option<u8> {
        let layout = &template.layout;
        let bytes = data.first_chunk::<LEN>()?;
        if template.differs(bytes) {
            return None;
        }
        let check = be16(bytes, layout.check());
        let l4 = match layout.l4_is {
            // 0xffff is how a sum of 0 would be written, and none is.
            L4::Tcp => (check != 0xffff) & (be32(bytes, layout.l4() + 4) == self.seq),
            L4::Udp => check != 0,
        };
        let ip = layout.is_v6 || {
            let check = be16(bytes, layout.l3() + 10);
            (be16(bytes, layout.l3() + 4) == self.id) & (check == self.check) & (check != 0xffff)
        };
        (l4 & ip & (data.len() == template.len)).then(|| flags(bytes, layout))
    }

    /// That packet came.
    #[inline(always)]
    fn step(&mut self, template: &Template) {
        let next = self.id.wrapping_add(template.step);
        self.check = checksum::update16(self.check, self.id, next);
        self.id = next;
        self.seq = self.seq.wrapping_add(template.size.into());
    }
}

/// See the [module](self).
pub(super) struct Run {
    template: Template,
    expected: Expected,
    tag: Option<(VlanProto, u16)>,
    /// Of the flow.
    pub(super) hash: u32,
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

#[inline(always)]
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
        if layout.l4_is == L4::Tcp {
            // The first one's alone.
            header[layout.l4() + TCP_FLAGS] &= !tcp_flags::CWR;
        }
        let template = Template {
            header: words(&header),
            mask: mask_of(&layout),
            layout,
            len: layout.payload() + usize::from(held.size),
            size: held.size,
            step: 0,
        };
        let expected = Expected { id: 0, check: 0, seq: 0 };
        let mut run = Run { template, expected, tag: vlan::get(held.skb.head()), hash: held.hash };
        run.renew(held);
        Some(run)
    }

    /// Takes what differs between segments from `held` as it is now.
    pub(super) fn renew(&mut self, held: &Held) {
        let (Template { layout, step, .. }, data) = (&mut self.template, held.skb.data());
        *step = u16::from(!held.fixed_id);
        let first = layout.id(data);
        let id = first.wrapping_add(step.wrapping_mul(held.count));
        let check = checksum::update16(be16(data, layout.l3() + 10), first, id);
        let seq = layout.seq(data).wrapping_add((held.len - layout.headers()) as u32);
        self.expected = Expected { id, check, seq };
    }

    /// Where the headers of its packets are.
    pub(super) fn layout(&self) -> Layout {
        self.template.layout
    }

    /// Bytes of payload in a segment.
    #[inline(always)]
    pub(super) fn size(&self) -> usize {
        self.template.size.into()
    }

    /// Whether packets have no tag beside them.
    #[inline(always)]
    pub(super) fn is_untagged(&self) -> bool {
        self.tag.is_none()
    }

    /// Whether all segments have the same IPv4 identification.
    #[inline(always)]
    pub(super) fn has_fixed_id(&self) -> bool {
        self.template.step == 0 && !self.template.layout.is_v6
    }

    /// Whether the packet is the next segment, its L4 checksum aside, of `held`, or of what comes
    /// after it.
    #[inline(always)]
    pub(super) fn is_next(&self, held: Option<&Held>, packet: &impl Arrived) -> Option<Foreseen> {
        if !packet.is_plain(self.tag) {
            return None;
        }
        let flags = self.expected.is(&self.template, packet.data())?;
        match held {
            Some(held) if held.len + self.size() < MAX_SIZE => Some(Foreseen::Next(flags)),
            // One that ends at once need not be held.
            _ if flags & ENDS != 0 => None,
            Some(_) => Some(Foreseen::AfterFull),
            None => Some(Foreseen::First),
        }
    }

    /// That packet came.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        self.expected.step(&self.template);
    }

    /// How many of the first `most` frames are next segments one after the other that end nothing,
    /// and that `is_right` is true of; and what is foreseen after those.
    #[inline(always)]
    pub(super) fn in_a_row(
        &self,
        frames: &FrameBatch,
        most: usize,
        mut is_right: impl FnMut(&[u8]) -> bool,
    ) -> (usize, Expected) {
        let (mut expected, mut n) = (self.expected, 0);
        while n < most {
            frames.prefetch_headers(n + AHEAD);
            let data = frames.peek(n).unwrap_or_default();
            let is_next = expected.is(&self.template, data).is_some_and(|flags| flags & ENDS == 0);
            if !is_next || !is_right(data) {
                break;
            }
            expected.step(&self.template);
            n += 1;
        }
        (n, expected)
    }

    /// That many of what [came in a row](Self::in_a_row) were merged: all, after which `expected`
    /// is foreseen, or fewer.
    #[inline(always)]
    pub(super) fn went_on(&mut self, merged: usize, (n, expected): (usize, Expected)) {
        if merged == n {
            self.expected = expected;
        } else {
            (0..merged).for_each(|_| self.step());
        }
    }
}
