//! A flow whose next segment is foreseen: of one that has been merged before, all of the next
//! header is known but for the L4 checksum and the flags that end an aggregate.
//!
//! Used by the table alone, for a packet before anything else is looked up. What is foreseen is
//! compared in a few wide words, without a hash, and without reading the header for what it says.
//!
//! Invariant: a packet [is next](Run::is_next) only if the rules of `merge.rs` find it mergeable,
//! of the flow, and acceptable. The other way round need not hold: what is not foreseen is looked
//! up.

use super::merge::{Form, Held, flags};
use super::{BUCKETS, MAX_HELD, MAX_SIZE};
use crate::gso::header::{TCP_FLAGS, be16, be32, tcp_flags};
use crate::gso::layout::{L4, Layout};
use crate::ip::checksum;
use crate::skb::{Skb, VlanProto};
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
    layout: Layout,
    tag: Option<(VlanProto, u16)>,
    /// Bytes of a segment's packet.
    len: usize,
    /// IPv4 identification and header checksum of the next, and by how much the first steps.
    id: u16,
    check: u16,
    step: u16,
    seq: u32,
    /// Where the held packet is.
    bucket: u8,
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
    pub(super) fn of(held: &Held, bucket: u8) -> Option<Run> {
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
            len: layout.payload() + usize::from(held.size),
            id: 0,
            check: 0,
            step: u16::from(!held.fixed_id),
            seq: 0,
            bucket,
        };
        run.renew(held);
        Some(run)
    }

    /// Takes what differs between segments from `held` as it is now.
    fn renew(&mut self, held: &Held) {
        let (layout, data) = (&self.layout, held.skb.data());
        let first = layout.id(data);
        self.id = first.wrapping_add(self.step.wrapping_mul(held.count));
        self.check = checksum::update16(be16(data, layout.l3() + 10), first, self.id);
        self.seq = layout.seq(data).wrapping_add((held.len - layout.headers()) as u32);
    }

    /// Whether the packet is the next segment, its L4 checksum aside: with which flags (0 of UDP).
    #[inline(always)]
    fn is_next(&self, held: &Held, skb: &Skb) -> Option<u8> {
        let (data, head, layout) = (skb.data(), skb.head(), &self.layout);
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
        let plain = data.len() == self.len && !skb.is_chained() && head.gso_size == 0 && head.flags == 0;
        let is_next = differ == 0
            && l4
            && ip
            && plain
            && vlan::get(head) == self.tag
            && held.len + usize::from(held.size) < MAX_SIZE;
        is_next.then(|| flags(bytes, layout))
    }

    /// That packet was merged.
    #[inline(always)]
    pub(super) fn step(&mut self, size: u16) {
        let next = self.id.wrapping_add(self.step);
        self.check = checksum::update16(self.check, self.id, next);
        self.id = next;
        self.seq = self.seq.wrapping_add(size.into());
    }
}

/// A packet that is the next segment of what is held at `at` in `bucket`, with these TCP flags.
pub(super) struct Foreseen {
    pub(super) bucket: usize,
    pub(super) at: usize,
    pub(super) flags: u8,
}

/// In place of a run: there is none.
pub(super) const NO_RUN: u8 = u8::MAX;

/// Those of all packets that are held.
pub(super) struct Runs {
    all: Box<[Option<Run>]>,
    /// A bit for each that is not in use.
    free: u64,
    /// By run: the one that was found when the packet after one of it was not of it.
    then: [u8; BUCKETS * MAX_HELD],
    /// That of the packet before.
    last: u8,
}

impl Runs {
    pub(super) fn new() -> Self {
        Runs {
            all: (0..BUCKETS * MAX_HELD).map(|_| None).collect(),
            free: u64::MAX,
            then: [0; BUCKETS * MAX_HELD],
            last: 0,
        }
    }

    /// Where what is held is that the packet is the next segment of, if that is one of the likely
    /// two: that of the packet before, or the one that followed it the last time.
    #[inline(always)]
    pub(super) fn find(&mut self, buckets: &[Vec<Held>; BUCKETS], skb: &Skb) -> Option<Foreseen> {
        if let Some(at) = self.is_next(buckets, self.last, skb) {
            return Some(at);
        }
        let then = *self.then.get(usize::from(self.last))?;
        let at = self.is_next(buckets, then, skb)?;
        self.last = then;
        Some(at)
    }

    #[inline(always)]
    fn is_next(&self, buckets: &[Vec<Held>; BUCKETS], number: u8, skb: &Skb) -> Option<Foreseen> {
        let run = self.all.get(usize::from(number))?.as_ref()?;
        let bucket = buckets.get(usize::from(run.bucket))?;
        let at = bucket.iter().position(|held| held.run == number)?;
        let flags = run.is_next(&bucket[at], skb)?;
        Some(Foreseen { bucket: run.bucket.into(), at, flags })
    }

    /// The packet that was [found](Self::find) was merged.
    #[inline(always)]
    pub(super) fn step(&mut self, size: u16) {
        if let Some(Some(run)) = self.all.get_mut(usize::from(self.last)) {
            run.step(size);
        }
    }

    /// A packet was merged with `held` in `bucket`, which had not been foreseen.
    pub(super) fn renew(&mut self, held: &mut Held, bucket: usize) {
        if held.run == NO_RUN {
            let Some(run) = Run::of(held, bucket as u8) else { return };
            let free = self.free.trailing_zeros();
            let Some(slot) = self.all.get_mut(free as usize) else { return };
            *slot = Some(run);
            self.free &= !(1 << free);
            held.run = free as u8;
        } else if let Some(Some(run)) = self.all.get_mut(usize::from(held.run)) {
            run.renew(held);
        }
        if let Some(then) = self.then.get_mut(usize::from(self.last)) {
            *then = held.run;
        }
        self.last = held.run;
    }

    /// What has run `number`, if it has one, is held no more.
    #[inline(always)]
    pub(super) fn end(&mut self, number: u8) {
        if let Some(run) = self.all.get_mut(usize::from(number)) {
            *run = None;
            self.free |= 1 << number;
        }
    }
}

const _: () = assert!(BUCKETS * MAX_HELD == u64::BITS as usize);
