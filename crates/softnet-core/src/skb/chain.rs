//! Packets of several frames: the chain of an skb (the kernel's `frag_list`).
//!
//! The further frames of a packet hang, each by a head of its own or [some by one](super::fragment), from the skb of the first one. They have no handles:
//! the packet's handle owns them, they go where it goes, and freeing it frees them. For code that makes, reads or takes
//! apart such packets; code that only passes packets on need not know of it.
//!
//! Invariants: an skb in a chain is of the region of the packet's skb, and has no chain itself; the head of the packet's
//! skb has the number and the bytes of the frames in its chain. The first skb of a chain knows its last one.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use super::fragment::{Fragment, FrameChain, Part};
use super::handle::Skb;
use super::head::{MORE, NONE};
use super::list::SkbList;

/// Frames of a packet at the most.
pub const MAX_FRAMES: usize = 1 + u8::MAX as usize;

/// An skb of a list or chain, for the time of a borrow of the list or of the packet.
///
/// # Safety
/// `index` must be of an skb of `region` that the caller owns, or has borrowed, by the list or chain that it is in.
#[inline(always)]
pub(super) unsafe fn linked(region: u32, index: u32) -> ManuallyDrop<Skb> {
    // SAFETY: by the contract above; and the handle is not dropped, so it is no second owner.
    ManuallyDrop::new(unsafe { Skb::from_raw(region, index) })
}

impl Skb {
    /// Whether the packet has more than one frame.
    #[inline(always)]
    pub fn is_chained(&self) -> bool {
        self.raw().frag_list != NONE
    }

    /// How many frames the packet has.
    #[inline(always)]
    pub fn frame_count(&self) -> usize {
        1 + usize::from(self.head().frag_count)
    }

    /// Appends the frames of `skb` to the packet; what else the head of `skb` says is lost. Hands `skb` back if it is of
    /// another region, or if the packet would have more than [`MAX_FRAMES`].
    pub fn append(&mut self, mut skb: Skb) -> Result<(), Skb> {
        let (frames, bytes) = (skb.frame_count(), skb.len());
        if skb.region() != self.region() || self.frame_count() + frames > MAX_FRAMES {
            return Err(skb);
        }
        let more = skb.raw().frag_list;
        let last = match more {
            NONE => skb.index(),
            // SAFETY: the chain is that skb's, which is owned here; its first skb names its last one.
            _ => unsafe { linked(self.region(), more) }.raw().frag_list,
        };
        skb.detach();
        skb.raw_mut().next = more;
        self.append_heads(skb.into_raw(), last, frames, bytes);
        Ok(())
    }

    /// Appends the frames of `chain`. Hands them back if they are of another region, or if the packet would have more
    /// than [`MAX_FRAMES`].
    pub fn append_chain(&mut self, chain: FrameChain) -> Result<(), FrameChain> {
        if chain.is_empty() {
            return Ok(());
        }
        let (frames, bytes) = (chain.len(), chain.bytes());
        if chain.region() != self.region() || self.frame_count() + frames > MAX_FRAMES {
            return Err(chain);
        }
        let (first, last) = chain.into_ends();
        self.append_heads(first, last, frames, bytes);
        Ok(())
    }

    /// Appends what is linked from `first` to `last`, which is owned by nothing else any more.
    fn append_heads(&mut self, first: u32, last: u32, frames: usize, bytes: usize) {
        let region = self.region();
        let raw = self.raw_mut();
        // At most `MAX_FRAMES`, so neither sum overflows.
        raw.head.frag_count += frames as u8;
        raw.head.frag_len += bytes as u32;
        if raw.frag_list == NONE {
            raw.frag_list = first;
        } else {
            // SAFETY: the chain is this skb's, of which there is `&mut`; its first skb names its last one.
            let last = unsafe { linked(region, raw.frag_list) }.raw().frag_list;
            // SAFETY: as above.
            unsafe { linked(region, last) }.raw_mut().next = first;
        }
        // SAFETY: as above.
        unsafe { linked(region, raw.frag_list) }.raw_mut().frag_list = last;
    }

    /// Takes the chain off the packet, for its first skb: it, and what is linked from it, is the caller's.
    pub(super) fn detach(&mut self) -> u32 {
        let region = self.region();
        let raw = self.raw_mut();
        let first = std::mem::replace(&mut raw.frag_list, NONE);
        raw.head.frag_count = 0;
        raw.head.frag_len = 0;
        if first != NONE {
            // SAFETY: the chain was this skb's, of which there is `&mut`.
            unsafe { linked(region, first) }.raw_mut().frag_list = NONE;
        }
        first
    }

    /// The same, as a list of packets. Each frame of the chain must have a head of its own.
    pub(super) fn detach_list(&mut self) -> SkbList {
        let (region, n, first) = (self.region(), usize::from(self.head().frag_count), self.raw().frag_list);
        if first == NONE {
            return SkbList::new();
        }
        // SAFETY: the chain is this skb's, of which there is `&mut`.
        let last = unsafe { linked(region, first) }.raw().frag_list;
        self.detach();
        // SAFETY: the skbs of the chain are linked from `first` to `last`, and are owned by nothing else any more.
        unsafe { SkbList::from_ends(region, first, last, n) }
    }

    /// The frames of the chain, first to last. They are the packet's still.
    pub(super) fn chain(&self) -> impl Iterator<Item = Fragment> {
        let mut frames = self.frames();
        // The packet's own.
        frames.next_fragment();
        std::iter::from_fn(move || frames.next_fragment())
    }

    /// Shows each further frame of the packet to `look`, first to last.
    pub fn each_part(&self, mut look: impl FnMut(Part<'_>)) {
        self.chain().for_each(|fragment| look(Part::new(self.region(), fragment)));
    }

    /// The bytes of each frame, first to last.
    #[inline(always)]
    pub fn frames(&self) -> Frames<'_> {
        Frames { region: self.region(), next: self.index(), at: 0, is_first: true, packet: PhantomData }
    }

    /// The `len` bytes of the packet from `at` on, as far as there are any: a piece of each frame, which may be empty.
    #[inline(always)]
    pub fn pieces(&self, at: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        let (mut skip, mut left) = (at, len);
        self.frames().map(move |frame| {
            let piece = frame.get(skip..).unwrap_or_default();
            skip -= frame.len() - piece.len();
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            piece
        })
    }

    /// Copies the bytes of the packet from `at` on to `to`, as far as there are any.
    #[inline]
    pub fn copy_bits(&self, at: usize, to: &mut [u8]) {
        let mut to = to;
        for piece in self.pieces(at, to.len()) {
            let (now, later) = to.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            to = later;
        }
    }

    /// Cuts a packet of several frames to `len` bytes. Frames of which nothing is left stay in the chain.
    #[cold]
    pub(super) fn trim_chain(&mut self, len: usize) {
        let (region, mut left) = (self.region(), len);
        let mut cut = |head_len: &mut u16| {
            *head_len = usize::from(*head_len).min(left) as u16;
            left -= usize::from(*head_len);
        };
        let raw = self.raw_mut();
        cut(&mut raw.head_len);
        let (mut next, mut bytes) = (raw.frag_list, 0);
        while next != NONE {
            // SAFETY: the chain is this skb's, of which there is `&mut`.
            let mut skb = unsafe { linked(region, next) };
            let raw = skb.raw_mut();
            cut(&mut raw.head_len);
            bytes += u32::from(raw.head_len);
            let more = usize::from(raw.head.frag_count);
            for word in raw.words_mut().iter_mut().take(more) {
                let mut fragment = Fragment::of(*word);
                cut(&mut fragment.len);
                bytes += u32::from(fragment.len);
                *word = fragment.word();
            }
            next = raw.next;
        }
        self.raw_mut().head.frag_len = bytes;
    }
}

/// See [`Skb::frames`].
#[derive(Clone)]
pub struct Frames<'a> {
    region: u32,
    /// The skb of the next frame.
    next: u32,
    /// Frames of that skb that have been.
    at: u8,
    is_first: bool,
    packet: PhantomData<&'a Skb>,
}

impl Frames<'_> {
    #[inline(always)]
    fn next_fragment(&mut self) -> Option<Fragment> {
        if self.next == NONE {
            return None;
        }
        // SAFETY: it is the packet's skb or one of its chain, and the packet is borrowed.
        let skb = unsafe { linked(self.region, self.next) };
        let raw = skb.raw();
        if std::mem::replace(&mut self.is_first, false) {
            self.next = raw.frag_list;
            return Some(raw.own());
        }
        let fragment = match usize::from(self.at) {
            0 => raw.own(),
            at => Fragment::of(raw.words()[(at - 1) % MORE]),
        };
        if self.at < raw.head.frag_count {
            self.at += 1;
        } else {
            (self.next, self.at) = (raw.next, 0);
        }
        Some(fragment)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a [u8]> {
        let fragment = self.next_fragment()?;
        // SAFETY: the bytes are the packet's as long as it is borrowed, as it is by this iterator and what it yields.
        Some(unsafe { fragment.bytes(self.region) })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use crate::SoftnetData;
    use crate::qdisc::ToFree;
    use crate::skb::{
        Batch, CacheSizes, DropReason, FRAME_SIZE, HEADROOM, HeapMemory, MAX_FRAMES, Region, Skb, SkbInbox,
        SkbList, SkbReceiver,
    };

    /// A region of `n` frames and heads, all of which must be home in the end.
    struct Rig {
        ctx: SoftnetData,
        region: Arc<Region>,
    }

    impl Rig {
        fn new(n: u32) -> Self {
            let memory = Box::new(HeapMemory::new(Region::bytes(n, n)));
            let region = Region::new(memory, n, n).unwrap();
            Rig { ctx: SoftnetData::new(region.clone(), CacheSizes::default()), region }
        }

        /// A packet with `lens` bytes in its frames, all of them different in a row.
        fn packet(&mut self, lens: &[usize]) -> Skb {
            let mut at = 0;
            let mut frames = lens.iter().map(|len| {
                let mut skb = self.ctx.alloc_skb().unwrap();
                let bytes = skb.put(*len).unwrap();
                bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (at + i) as u8);
                at += len;
                skb
            });
            let mut skb = frames.next().unwrap();
            frames.for_each(|frame| skb.append(frame).unwrap());
            skb
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            self.ctx.drain();
            if !std::thread::panicking() {
                let home = (self.region.frames_free(), self.region.heads_free());
                assert_eq!(home, (self.region.frame_count().into(), self.region.head_count().into()));
            }
        }
    }

    fn bytes(skb: &Skb) -> Vec<u8> {
        assert_eq!(skb.frames().count(), skb.frame_count());
        let bytes: Vec<u8> = skb.frames().flatten().copied().collect();
        assert_eq!((bytes.len(), skb.data().len()), (skb.len(), skb.head_len()));
        bytes
    }

    fn row(range: std::ops::Range<usize>) -> Vec<u8> {
        range.map(|i| i as u8).collect()
    }

    #[test]
    fn a_packet_is_all_of_its_frames() {
        let mut rig = Rig::new(16);
        let mut skb = rig.packet(&[10]);
        assert_eq!(
            (skb.is_chained(), skb.frame_count(), skb.tailroom()),
            (false, 1, FRAME_SIZE - HEADROOM - 10)
        );
        rig.ctx.free_skb(skb);
        skb = rig.packet(&[10, 0, 7, 3]);
        assert_eq!((skb.is_chained(), skb.frame_count(), skb.len(), skb.head_len()), (true, 4, 20, 10));
        assert_eq!(bytes(&skb), row(0..20));
        for (at, len, want) in [(0, 99, 0..20), (3, 4, 3..7), (9, 2, 9..11), (10, 7, 10..17), (18, 9, 18..20)]
        {
            let pieces: Vec<&[u8]> = skb.pieces(at, len).collect();
            assert_eq!((pieces.len(), pieces.concat()), (4, row(want)), "{at} {len}");
        }
        assert!(skb.pieces(20, 1).all(<[u8]>::is_empty) && skb.pieces(99, 1).all(<[u8]>::is_empty));
        // The first frame grows and shrinks at its front only.
        assert!(skb.put(1).is_none() && skb.tailroom() == 0);
        skb.push(2).unwrap().copy_from_slice(&[254, 255]);
        assert_eq!((skb.len(), skb.head_len(), bytes(&skb)[..3] == [254, 255, 0]), (22, 12, true));
        assert!(skb.pull(13).is_none());
        skb.pull(7).unwrap();
        assert_eq!(bytes(&skb), row(5..20));
        skb.trim(99);
        assert_eq!(bytes(&skb), row(5..20));
        for len in [14, 12, 11, 5, 3, 0] {
            skb.trim(len);
            assert_eq!((skb.frame_count(), bytes(&skb)), (4, row(5..5 + len)));
        }
        assert!(skb.is_empty());
        rig.ctx.free_skb(skb);
    }

    #[test]
    fn chains_are_joined_and_taken_off() {
        let mut rig = Rig::new(MAX_FRAMES as u32 + 8);
        let (mut skb, other) = (rig.packet(&[1, 2]), rig.packet(&[3, 4, 5]));
        skb.append(other).unwrap();
        let more = rig.packet(&[6]);
        skb.append(more).unwrap();
        let lens: Vec<usize> = skb.frames().map(<[u8]>::len).collect();
        assert_eq!((lens, skb.len(), skb.frame_count()), (vec![1, 2, 3, 4, 5, 6], 21, 6));
        let mut chain = rig.ctx.take_chain(&mut skb).unwrap();
        assert_eq!((chain.len(), skb.len(), skb.is_chained(), skb.frame_count()), (5, 1, false, 1));
        assert!(rig.ctx.take_chain(&mut skb).unwrap().is_empty());
        let mut lens = Vec::new();
        while let Some(part) = chain.pop_front() {
            lens.push(part.len());
            assert!(!part.is_chained());
            skb.append(part).unwrap();
        }
        assert_eq!((lens, skb.len()), (vec![2, 3, 4, 5, 6], 21));
        // A packet of another region, and one frame too many, are refused.
        let mut alien = Rig::new(4);
        let foreign = skb.append(alien.packet(&[1, 1])).unwrap_err();
        assert_eq!((foreign.len(), foreign.frame_count(), skb.len()), (2, 2, 21));
        rig.ctx.free_skb(foreign);
        while skb.frame_count() < MAX_FRAMES - 1 {
            skb.append(rig.packet(&[1])).unwrap();
        }
        let two = skb.append(rig.packet(&[1, 1])).unwrap_err();
        assert_eq!((two.frame_count(), skb.frame_count()), (2, MAX_FRAMES - 1));
        rig.ctx.free_skb(two);
        skb.append(rig.packet(&[1])).unwrap();
        let one = skb.append(rig.packet(&[1])).unwrap_err();
        assert_eq!((skb.frames().count(), skb.frame_count()), (MAX_FRAMES, MAX_FRAMES));
        rig.ctx.free_skb(one);
        rig.ctx.free_skb(skb);
    }

    /// Whatever way a packet goes, all of its frames go with it.
    #[test]
    fn a_chain_goes_where_its_packet_goes() {
        // By the context of their own region, and by another's.
        for foreign in [false, true] {
            let (mut rig, mut other) = (Rig::new(64), Rig::new(4));
            let mut packets = |n: usize| {
                let mut batch = Batch::new();
                (0..n).for_each(|i| batch.push(rig.packet(&[1, 2, 3][..1 + i % 3])).unwrap());
                batch
            };
            let [mut freed, mut dropped, mut listed, mut sent, mut queued] =
                [7, 6, 5, 4, 6].map(&mut packets);
            let (inbox, region) = (Arc::new(SkbInbox::new(&rig.region)), rig.region.id());
            let ctx = if foreign { &mut other.ctx } else { &mut rig.ctx };
            let mut seen = 0;
            ctx.free_skbs(&mut freed, |_| seen += 1);
            assert_eq!(seen, 7);
            ctx.free_batch(&mut dropped, DropReason::IpTtl);
            let mut list = SkbList::new();
            listed.drain().for_each(|skb| list.push_back(skb).unwrap());
            assert_eq!(list.front_len(), Some(1));
            ctx.free_list(list, DropReason::IpTtl);
            let mut to_free = ToFree::new();
            sent.drain().for_each(|skb| to_free.push(skb, DropReason::IpTtl));
            assert_eq!(to_free.len(), 4);
            to_free.free(ctx, 0);
            let mut receiver = SkbReceiver::open(inbox.clone()).unwrap();
            assert_eq!((queued.frames(), queued.len()), (12, 6));
            inbox.push(&mut queued).unwrap();
            let mut list = SkbList::new();
            receiver.take(&mut list);
            receiver.close(&mut list);
            let mut got = Vec::new();
            while let Some(skb) = list.pop_front() {
                assert_eq!(skb.region(), region);
                got.push((skb.frame_count(), bytes(&skb)));
                ctx.deliver(skb);
            }
            assert_eq!(got, [1, 2, 3, 1, 2, 3].map(|n| (n, row(0..n * (n + 1) / 2))));
            let stats = ctx.stats();
            assert_eq!((stats.drops(0, DropReason::IpTtl), stats.delivered.get()), (6 + 5 + 4, 6), "packets");
        }
    }

    #[test]
    fn a_copy_is_of_all_frames_or_none() {
        for n in 3..=6 {
            let (mut rig, mut other) = (Rig::new(n), Rig::new((n - 3).max(1)));
            let mut skb = rig.packet(&[5, 0, 6]);
            skb.head_mut().hash = 7;
            for ctx in [&mut rig.ctx, &mut other.ctx] {
                let copy = ctx.copy(&skb);
                assert_eq!(copy.is_some(), n == 6, "{n}");
                if let Some(copy) = copy {
                    assert_eq!((bytes(&copy), copy.frame_count(), copy.head().hash), (row(0..11), 3, 7));
                    ctx.free_skb(copy);
                }
            }
            rig.ctx.free_skb(skb);
        }
    }

    #[test]
    fn what_fits_a_frame_is_linearized() {
        let tail = FRAME_SIZE - HEADROOM;
        for (lens, off) in [
            (&[20, 30, 0, 1][..], Some(HEADROOM)),
            (&[20], Some(HEADROOM)),
            (&[20, tail - 20], Some(HEADROOM)),
            (&[20, tail - 20, 1], Some(HEADROOM - 1)),
            (&[20, tail - 20, HEADROOM], Some(0)),
            (&[20, tail - 20, HEADROOM + 1], None),
        ] {
            let mut rig = Rig::new(16);
            let mut skb = rig.packet(lens);
            let all: usize = lens.iter().sum();
            assert_eq!(rig.ctx.linearize(&mut skb), off.is_some(), "{lens:?}");
            assert_eq!(bytes(&skb), row(0..all));
            let frames = if off.is_some() { 1 } else { lens.len() };
            assert_eq!((skb.frame_count(), skb.headroom()), (frames, off.unwrap_or(HEADROOM)));
            rig.ctx.free_skb(skb);
            // A device gets it in one frame, or not at all.
            let skb = rig.packet(lens);
            match rig.ctx.take_frame(skb) {
                Ok((frame, at, len)) => {
                    assert_eq!((Some(at), len, &frame.bytes()[at..at + len]), (off, all, &row(0..all)[..]));
                    rig.ctx.free_frame(frame);
                }
                Err(skb) => {
                    assert_eq!((off, bytes(&skb)), (None, row(0..all)));
                    rig.ctx.free_skb(skb);
                }
            }
        }
    }

    #[test]
    fn devices_get_frames_and_refuse_what_is_too_long() {
        let (mut rig, mut other) = (Rig::new(32), Rig::new(4));
        for foreign in [false, true] {
            let mut batch = Batch::new();
            for lens in [&[9][..], &[1, 2, 3], &[1500, 1500], &[4], &[5, 6]] {
                batch.push(rig.packet(lens)).unwrap();
            }
            let ctx = if foreign { &mut other.ctx } else { &mut rig.ctx };
            let (mut lens, mut frames) = (Vec::new(), Vec::new());
            // They came by device 0, and leave by 3.
            let n = batch.len();
            ctx.take_frames(3, &mut batch, n, |frame, off, len| {
                assert_eq!(frame.bytes()[off..off + len], row(0..len));
                lens.push(len);
                frames.push(frame);
            });
            assert_eq!(lens, [9, 6, 4, 11]);
            assert_eq!([0, 3].map(|dev| ctx.stats().drops(dev, DropReason::Nonlinear)), [0, 1]);
            ctx.free_frames(frames.into_iter());
        }
    }

    /// A head that is used again has nothing of the chain that it once had, or was in.
    #[test]
    fn heads_forget_their_chain() {
        let mut rig = Rig::new(3);
        for _ in 0..4 {
            let skb = rig.packet(&[1, 2, 3]);
            rig.ctx.free_skb(skb);
            let singles: Vec<Skb> = (0..3).map(|_| rig.packet(&[4])).collect();
            for skb in singles {
                assert_eq!((skb.len(), skb.frame_count(), skb.frames().count()), (4, 1, 1));
                rig.ctx.free_skb(skb);
            }
        }
    }
}
