//! Frames of a chain that share a head: a head in a chain stands for its own frame and for up to
//! [`MORE`] further ones, which are words in the half of it that would be the control block.
//!
//! Receive offload makes such chains: a segment that becomes part of an aggregate then needs no
//! head, which would be written, linked and freed for nothing. Code outside of this module sees the
//! frames of a packet in one order by one iterator ([`Skb::frames`], [`Skb::each_part`]), however
//! many heads there are; who needs a head for each frame asks [`Store::take_chain`].
//!
//! Invariants: of a head in a chain, `frag_count` is the number of words that are frames, and
//! `frag_list` is not read but in the first one; a frame is named once, by a head or by a word.

use std::marker::PhantomData;

use super::batch::BATCH;
use super::chain::linked;
use super::handle::{Frame, Skb, leak, prefetch};
use super::head::{Csum, MORE, NONE, RawHead};
use super::list::SkbList;
use super::region::{FRAME_SIZE, Region, frame_ptr, head_ptr};
use super::store::{Homecoming, Store, free_foreign_frame, free_foreign_head};

/// A frame, and where in it the bytes of a packet are; `off + len` is at most the frame's size.
#[derive(Clone, Copy)]
pub(super) struct Fragment {
    pub(super) frame: u32,
    pub(super) off: u16,
    pub(super) len: u16,
}

impl Fragment {
    #[inline(always)]
    pub(super) fn word(self) -> u64 {
        u64::from(self.frame) | u64::from(self.off) << 32 | u64::from(self.len) << 48
    }

    #[inline(always)]
    pub(super) fn of(word: u64) -> Self {
        Fragment { frame: word as u32, off: (word >> 32) as u16, len: (word >> 48) as u16 }
    }

    /// A [word](Self::word) without the first `n` bytes, or as many as it has; and how many are left.
    #[inline(always)]
    fn pulled(word: u64, n: u16) -> (u64, u16) {
        let len = (word >> 48) as u16;
        let n = len.min(n);
        // `off` goes up, and can't overflow; `len` goes down.
        (word + (u64::from(n) << 32) - (u64::from(n) << 48), len - n)
    }

    /// Its bytes.
    ///
    /// # Safety
    /// It is of `region`, and the caller owns it, or has borrowed it for `'a`.
    #[inline(always)]
    pub(super) unsafe fn bytes<'a>(self, region: u32) -> &'a [u8] {
        let at = frame_ptr(region, self.frame).wrapping_add(usize::from(self.off));
        // SAFETY: by the contract above, and the range lies within the frame.
        unsafe { std::slice::from_raw_parts(at, usize::from(self.len)) }
    }
}

impl RawHead {
    /// The frame of its own.
    #[inline(always)]
    pub(super) fn own(&self) -> Fragment {
        Fragment { frame: self.frame, off: self.off, len: self.head_len }
    }

    /// The further frames of a head in a chain, as words.
    #[inline(always)]
    pub(super) fn more(&self) -> &[u64] {
        self.words().get(..usize::from(self.head.frag_count)).unwrap_or_default()
    }
}

/// A further frame of a packet, to look at.
pub struct Part<'a> {
    region: u32,
    fragment: Fragment,
    packet: PhantomData<&'a Skb>,
}

impl<'a> Part<'a> {
    /// The packet must be borrowed for `'a`, and `fragment` be of its chain.
    pub(super) fn new(region: u32, fragment: Fragment) -> Self {
        Part { region, fragment, packet: PhantomData }
    }

    /// Bytes of the packet in it.
    pub fn len(&self) -> usize {
        self.fragment.len.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fragment.len == 0
    }

    /// Bytes of the frame in front of them.
    pub fn headroom(&self) -> usize {
        self.fragment.off.into()
    }

    /// The `n` bytes in front of those of the packet; `None` if there are not so many.
    pub fn pulled(&self, n: usize) -> Option<&'a [u8]> {
        let off = self.fragment.off.checked_sub(u16::try_from(n).ok()?)?;
        let front = Fragment { off, len: n as u16, ..self.fragment };
        // SAFETY: the frame is of the packet's chain, and the packet is borrowed.
        Some(unsafe { front.bytes(self.region) })
    }
}

/// Frames that are to be a packet's chain, with a head for as many as one has room for.
pub struct FrameChain {
    region: u32,
    first: u32,
    last: u32,
    frames: u32,
    bytes: u32,
}

impl Default for FrameChain {
    fn default() -> Self {
        FrameChain::new()
    }
}

impl FrameChain {
    /// An empty one.
    pub const fn new() -> Self {
        FrameChain { region: 0, first: NONE, last: NONE, frames: 0, bytes: 0 }
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.frames as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Bytes in them.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Of its frames; says nothing if there are none.
    pub(super) fn region(&self) -> u32 {
        self.region
    }

    /// Gives it up, which is not empty, for its first and its last head.
    pub(super) fn into_ends(self) -> (u32, u32) {
        self.say_more(self.frames - 1);
        let ends = (self.first, self.last);
        std::mem::forget(self);
        ends
    }

    /// The last head names its own frame and those after it up to number `last`.
    fn say_more(&self, last: u32) {
        // SAFETY: the chain owns the head.
        unsafe { linked(self.region, self.last) }.raw_mut().head.frag_count =
            (last % (1 + MORE as u32)) as u8;
    }
}

impl Drop for FrameChain {
    #[inline]
    fn drop(&mut self) {
        if self.frames > 0 {
            leak("chain", self.region, self.first);
        }
    }
}

impl Store {
    /// Appends a frame of this store's region, with the range of its bytes, to `chain`. Hands it
    /// back if no head is free where one is needed (counted by the region), if it is of another
    /// region, or if the range is outside of it.
    #[inline(always)]
    pub fn chain_frame(
        &mut self,
        chain: &mut FrameChain,
        frame: Frame,
        off: usize,
        len: usize,
    ) -> Result<(), Frame> {
        let at = chain.frames as usize % (1 + MORE);
        if off > FRAME_SIZE || len > FRAME_SIZE - off || frame.region() != self.region.id() {
            return Err(frame);
        }
        if at == 0 {
            return self.chain_head(chain, frame, off, len);
        }
        if chain.region != frame.region() {
            return Err(frame);
        }
        let region = chain.region;
        let fragment = Fragment { frame: frame.into_raw(), off: off as u16, len: len as u16 };
        // SAFETY: the chain owns its last head; `at` is 1 to `MORE`.
        unsafe { RawHead::word(head_ptr(region, chain.last), at - 1).write(fragment.word()) };
        chain.frames += 1;
        chain.bytes += len as u32;
        Ok(())
    }

    /// The same of the first `n` frames of `frames`, which are of this store's region, each without
    /// its first `headers` bytes, which it has. Returns how many were appended: all but for want of
    /// heads.
    #[inline(always)]
    pub fn chain_frames(
        &mut self,
        chain: &mut FrameChain,
        frames: &mut FrameBatch,
        n: usize,
        headers: usize,
    ) -> usize {
        let mut done = 0;
        while done < n {
            let at = chain.frames as usize % (1 + MORE);
            let room = if at == 0 { 0 } else { (1 + MORE - at).min(n - done) };
            if room == 0 || chain.region != frames.region {
                let Some((frame, off, len)) = frames.pop() else { break };
                let appended = self.chain_frame(chain, frame, off + headers, len.saturating_sub(headers));
                if let Err(frame) = appended {
                    // Back to where it was.
                    let _ = frame.into_raw();
                    frames.from -= 1;
                    break;
                }
                done += 1;
                continue;
            }
            // SAFETY: the chain owns its last head, of which `room` words from `at - 1` on are within
            // `MORE`.
            let to = unsafe {
                std::slice::from_raw_parts_mut(
                    RawHead::word(head_ptr(chain.region, chain.last), at - 1),
                    room,
                )
            };
            let from = frames.words[..frames.to].get(frames.from..).unwrap_or_default();
            let (mut moved, mut bytes) = (0, 0);
            for (to, word) in to.iter_mut().zip(from) {
                let (more, len) = Fragment::pulled(*word, headers as u16);
                *to = more;
                bytes += u32::from(len);
                moved += 1;
            }
            if moved == 0 {
                break;
            }
            frames.from += moved;
            chain.frames += moved as u32;
            chain.bytes += bytes;
            done += moved;
        }
        done
    }

    /// The same of a frame that needs a head.
    #[inline(never)]
    fn chain_head(
        &mut self,
        chain: &mut FrameChain,
        frame: Frame,
        off: usize,
        len: usize,
    ) -> Result<(), Frame> {
        if chain.frames > 0 && chain.region != frame.region() {
            return Err(frame);
        }
        let index = self.build_skb(frame, off, len)?.into_raw();
        let region = self.region.id();
        if chain.frames == 0 {
            (chain.region, chain.first) = (region, index);
        } else {
            chain.say_more(MORE as u32);
            // SAFETY: the chain owns its last head.
            unsafe { linked(region, chain.last) }.raw_mut().next = index;
        }
        chain.last = index;
        chain.frames += 1;
        chain.bytes += len as u32;
        Ok(())
    }

    /// Takes all frames but the first off the packet, each as a packet of its own. Their heads say
    /// nothing. `None`, and nothing is taken off, if there are not as many heads (counted by the
    /// region).
    pub fn take_chain(&mut self, skb: &mut Skb) -> Option<SkbList> {
        self.unpack(skb).then(|| skb.detach_list())
    }

    /// Takes a packet apart: hands each frame, with offset and length of its bytes, to `take`, first
    /// to last, and frees the heads.
    pub fn take_all_frames(&mut self, mut skb: Skb, mut take: impl FnMut(&mut Store, Frame, usize, usize)) {
        let region = skb.region();
        let rest = skb.detach();
        let (frame, off, len) = self.take_first_frame(skb);
        take(self, frame, off, len);
        self.take_heads(region, rest, take);
    }

    /// The same of what was [taken off](Skb::detach) a packet of `region`.
    pub(super) fn take_heads(
        &mut self,
        region: u32,
        first: u32,
        mut take: impl FnMut(&mut Store, Frame, usize, usize),
    ) {
        let mut next = first;
        while next != NONE {
            // SAFETY: the chain was the packet's, and is owned by nothing else any more.
            let part = unsafe { linked(region, next) };
            let raw = part.raw();
            for fragment in std::iter::once(raw.own()).chain(raw.more().iter().map(|w| Fragment::of(*w))) {
                take(self, Frame::new(region, fragment.frame), fragment.off.into(), fragment.len.into());
            }
            let index = std::mem::replace(&mut next, raw.next);
            self.free_head(region, index);
        }
    }

    /// Has each frame of the chain have a head of its own. Returns whether there were enough; if
    /// not, some have.
    fn unpack(&mut self, skb: &mut Skb) -> bool {
        let (region, first) = (skb.region(), skb.raw().frag_list);
        let mut at = first;
        while at != NONE {
            // SAFETY: it is of the packet's chain, of which there is `&mut`.
            let mut part = unsafe { linked(region, at) };
            let is_last = part.raw().next == NONE;
            let packed = part.raw().more().len();
            let mut last = at;
            for _ in 0..packed {
                let raw = part.raw_mut();
                let Some(word) = raw.more().last() else { break };
                let Fragment { frame, off, len } = Fragment::of(*word);
                if region != self.region.id() {
                    return false;
                }
                // The last of its words becomes the head behind it.
                let built = self.build_skb(Frame::new(region, frame), off.into(), len.into());
                let mut built = match built {
                    Ok(built) => built,
                    Err(frame) => {
                        let _ = frame.into_raw();
                        self.set_last(region, first, last, is_last);
                        return false;
                    }
                };
                built.raw_mut().next = raw.next;
                let index = built.into_raw();
                if last == at {
                    last = index;
                }
                raw.next = index;
                raw.head.frag_count -= 1;
            }
            self.set_last(region, first, last, is_last);
            // SAFETY: as above.
            at = unsafe { linked(region, last) }.raw().next;
        }
        true
    }

    /// If `is_last`, has the first skb of a chain know `last`.
    fn set_last(&self, region: u32, first: u32, last: u32, is_last: bool) {
        if is_last {
            // SAFETY: it is of the packet's chain, of which the caller has `&mut`.
            unsafe { linked(region, first) }.raw_mut().frag_list = last;
        }
    }

    /// Frees all frames of a packet but the first, and their heads.
    #[inline(never)]
    pub(super) fn free_chain(&mut self, skb: &mut Skb) {
        let (region, mut next) = (skb.region(), skb.detach());
        if region != self.region.id() {
            while next != NONE {
                // SAFETY: the chain was the packet's, and is owned by nothing else any more.
                let part = unsafe { linked(region, next) };
                let raw = part.raw();
                free_foreign_frame(region, raw.frame);
                raw.more().iter().for_each(|word| free_foreign_frame(region, Fragment::of(*word).frame));
                let index = std::mem::replace(&mut next, raw.next);
                free_foreign_head(region, index);
            }
            return;
        }
        let (mut heads, mut frames) = (Homecoming::new(), Homecoming::new());
        while next != NONE {
            // SAFETY: as above.
            let part = unsafe { linked(region, next) };
            let raw = part.raw();
            prefetch(head_ptr(region, raw.next).cast_const().cast());
            let own = std::iter::once(raw.frame);
            for frame in own.chain(raw.more().iter().map(|word| Fragment::of(*word).frame)) {
                #[cfg(feature = "debug-poison")]
                super::poison::frame_freed(&self.region, frame);
                frames.add(&mut self.frames, &self.region.frames, frame);
            }
            let head = std::mem::replace(&mut next, raw.next);
            #[cfg(feature = "debug-poison")]
            super::poison::head_freed(&self.region, head);
            heads.add(&mut self.heads, &self.region.heads, head);
        }
        frames.flush(&mut self.frames, &self.region.frames);
        heads.flush(&mut self.heads, &self.region.heads);
    }
}

/// Frames that an RX queue received, without heads: up to [`BATCH`], in order, all of one region and
/// alike in what the device says of them.
pub struct FrameBatch {
    region: u32,
    /// Device and RX queue that they came by.
    pub dev: u16,
    /// See `dev`.
    pub queue: u16,
    /// What the device knows of their L4 checksums.
    pub csum: Csum,
    from: usize,
    to: usize,
    words: [u64; BATCH],
}

impl FrameBatch {
    /// An empty one, for frames of `region`.
    #[inline]
    pub fn new(region: &Region) -> Self {
        let region = region.id();
        FrameBatch { region, dev: 0, queue: 0, csum: Csum::None, from: 0, to: 0, words: [0; BATCH] }
    }

    /// The region of its frames.
    #[inline(always)]
    pub fn region(&self) -> u32 {
        self.region
    }

    /// Frames in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.to - self.from
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Frames that still fit.
    #[inline(always)]
    pub fn room(&self) -> usize {
        BATCH - self.to
    }

    /// Appends a frame, whose packet is the `len` bytes at `off`, or hands it back: if there is no
    /// room, if it is of another region, or if the range is outside of it.
    #[inline(always)]
    pub fn push(&mut self, frame: Frame, off: usize, len: usize) -> Result<(), Frame> {
        let fits = off <= FRAME_SIZE && len <= FRAME_SIZE - off && frame.region() == self.region;
        match self.words.get_mut(self.to) {
            Some(word) if fits => {
                *word = Fragment { frame: frame.into_raw(), off: off as u16, len: len as u16 }.word();
                self.to += 1;
                Ok(())
            }
            _ => Err(frame),
        }
    }

    #[inline(always)]
    fn get(&self, n: usize) -> Option<Fragment> {
        self.words[..self.to].get(self.from + n).map(|word| Fragment::of(*word))
    }

    /// Bytes of the first packet.
    #[inline(always)]
    pub fn front(&self) -> Option<&[u8]> {
        self.peek(0)
    }

    /// Bytes of the packet that comes after `n` others.
    #[inline(always)]
    pub fn peek(&self, n: usize) -> Option<&[u8]> {
        // SAFETY: the batch owns its frames, and `push` has seen that the range is within.
        self.get(n).map(|fragment| unsafe { fragment.bytes(self.region) })
    }

    /// Takes the first frame, with offset and length of its packet.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<(Frame, usize, usize)> {
        let Fragment { frame, off, len } = self.get(0)?;
        self.from += 1;
        Some((Frame::new(self.region, frame), off.into(), len.into()))
    }

    /// Starts to load the first two lines of the packet that comes after `n` others.
    #[inline(always)]
    pub fn prefetch_headers(&self, n: usize) {
        if let Some(Fragment { frame, off, .. }) = self.get(n) {
            let data = frame_ptr(self.region, frame).wrapping_add(usize::from(off));
            prefetch(data);
            prefetch(data.wrapping_add(64));
        }
    }
}

impl Drop for FrameBatch {
    #[inline]
    fn drop(&mut self) {
        while let Some((frame, ..)) = self.pop() {
            drop(frame);
        }
    }
}
