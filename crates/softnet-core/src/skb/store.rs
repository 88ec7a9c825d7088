//! What one thread has of a region's memory: the caches of heads and frames, and the ways in and out of them.
//!
//! Part of [`SoftnetData`](crate::SoftnetData), which adds the counters; only its thread touches it.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::batch::{BATCH, Batch};
use super::bulk::{FrameBulk, HeadBulk};
use super::cache::{CacheSizes, IndexCache};
use super::cache_stats::CacheStats;
use super::chain::linked;
use super::fragment::Fragment;
use super::handle::{Frame, Skb};
use super::head::{GsoType, Head, NONE};
use super::region::{FRAME_SIZE, HEADROOM, Region, head_ptr};
use crate::sync::{Kick, Pool, model_failed};

/// A thread's store of free heads and frames of one region.
pub struct Store {
    pub(super) region: Arc<Region>,
    pub(super) heads: IndexCache,
    pub(super) frames: IndexCache,
}

/// Indices on their way back to a cache, collected so that the cache is touched once.
pub(super) struct Homecoming {
    n: usize,
    indices: [MaybeUninit<u32>; BATCH],
}

impl Homecoming {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Homecoming { n: 0, indices: [const { MaybeUninit::uninit() }; BATCH] }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, cache: &mut IndexCache, pool: &Pool, index: u32) {
        if self.n == BATCH {
            self.flush(cache, pool);
        }
        self.indices[self.n % BATCH].write(index);
        self.n += 1;
    }

    #[inline(always)]
    pub(super) fn flush(&mut self, cache: &mut IndexCache, pool: &Pool) {
        // SAFETY: the first `n` were written, and `n` is at most `BATCH`.
        let indices = unsafe { std::slice::from_raw_parts(self.indices.as_ptr().cast(), self.n) };
        cache.push_bulk(pool, indices);
        self.n = 0;
    }
}

impl Store {
    /// An empty store on `region`, with caches of one size.
    pub fn new(region: Arc<Region>, sizes: CacheSizes) -> Self {
        Store::with_caches(region, sizes, sizes)
    }

    /// An empty store on `region`, with caches of these sizes for heads and for frames.
    pub fn with_caches(region: Arc<Region>, heads: CacheSizes, frames: CacheSizes) -> Self {
        let heads = IndexCache::on(&region.heads, heads);
        let frames = IndexCache::on(&region.frames, frames);
        Store { region, heads, frames }
    }

    /// What its caches count, of heads and of frames.
    pub fn stats(&self) -> [Arc<CacheStats>; 2] {
        [self.heads.stats().clone(), self.frames.stats().clone()]
    }

    /// How its thread is woken when others have freed much of what it took.
    pub fn set_kick(&self, kick: &Kick) {
        self.heads.set_kick(&self.region.heads, kick);
        self.frames.set_kick(&self.region.frames, kick);
    }

    /// Takes back what others freed that this thread took: in each iteration of a loop that polls,
    /// and before sleeping.
    #[inline(always)]
    pub fn purge_deferred(&mut self) {
        self.heads.purge(&self.region.heads);
        self.frames.purge(&self.region.frames);
    }

    /// Says in its counters how much lies in the caches now.
    pub fn note_cached(&self) {
        self.heads.note_cached();
        self.frames.note_cached();
    }

    /// The region it serves.
    #[inline(always)]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A free frame; `None` (counted by the region) if there is none. Its bytes are whatever they were.
    #[inline(always)]
    pub fn alloc_frame(&mut self) -> Option<Frame> {
        match self.frames.pop(&self.region.frames) {
            Some(index) => {
                #[cfg(feature = "debug-poison")]
                super::poison::frame_taken(&self.region, index);
                Some(Frame::new(self.region.id(), index))
            }
            None => {
                self.region.note_exhausted();
                None
            }
        }
    }

    /// Takes up to `n` free frames at once, and hands each to `take`. Returns how many there were.
    #[inline]
    pub fn alloc_frames(&mut self, n: usize, mut take: impl FnMut(Frame)) -> usize {
        let mut done = 0;
        while done < n {
            let mut bulk = self.alloc_frame_bulk(n - done);
            if bulk.len() == 0 {
                break;
            }
            done += bulk.len();
            bulk.by_ref().for_each(&mut take);
        }
        done
    }

    /// Takes up to [`BATCH`] free frames at once, as one owned value.
    #[inline]
    pub fn alloc_frame_bulk(&mut self, n: usize) -> FrameBulk {
        let mut bulk = FrameBulk { region: self.region.id(), from: 0, to: 0, frames: [0; BATCH] };
        let want = n.min(BATCH);
        bulk.to = self.frames.pop_bulk(&self.region.frames, &mut bulk.frames[..want]);
        if bulk.to < want {
            self.region.note_exhausted();
        }
        #[cfg(feature = "debug-poison")]
        bulk.frames[..bulk.to].iter().for_each(|i| super::poison::frame_taken(&self.region, *i));
        bulk
    }

    /// Gives frames back, all of one batch at once.
    #[inline]
    pub fn free_frames(&mut self, frames: impl Iterator<Item = Frame>) {
        let mut home = Homecoming::new();
        for frame in frames {
            let (region, index) = (frame.region(), frame.into_raw());
            if region != self.region.id() {
                free_foreign_frame(region, index);
                continue;
            }
            #[cfg(feature = "debug-poison")]
            super::poison::frame_freed(&self.region, index);
            home.add(&mut self.frames, &self.region.frames, index);
        }
        home.flush(&mut self.frames, &self.region.frames);
    }

    /// Gives a frame back.
    #[inline(always)]
    pub fn free_frame(&mut self, frame: Frame) {
        let (region, index) = (frame.region(), frame.into_raw());
        if region == self.region.id() {
            #[cfg(feature = "debug-poison")]
            super::poison::frame_freed(&self.region, index);
            self.frames.push(&self.region.frames, index);
        } else {
            free_foreign_frame(region, index);
        }
    }

    /// Attaches a head to `frame`, whose packet is the `len` bytes at `off`, and initialises its first line.
    /// Hands the frame back if no head is free (counted by the region) or the range is outside the frame.
    #[inline(always)]
    pub fn build_skb(&mut self, frame: Frame, off: usize, len: usize) -> Result<Skb, Frame> {
        if off > FRAME_SIZE || len > FRAME_SIZE - off || frame.region() != self.region.id() {
            return Err(frame);
        }
        let Some(index) = self.heads.pop(&self.region.heads) else {
            self.region.note_exhausted();
            return Err(frame);
        };
        #[cfg(feature = "debug-poison")]
        super::poison::head_taken(&self.region, index);
        // SAFETY: the index is free, so no other code has the head.
        unsafe { (*head_ptr(self.region.id(), index)).init(frame.into_raw(), off as u16, len as u16) };
        Ok(Skb::new(self.region.id(), index))
    }

    /// Attaches heads to the next `n` frames of `packets` (of this store's region; others go home; each with the offset and length of its packet, which lie
    /// within it), lets `set` fill in their first lines, and appends them to `batch`. Returns how many: fewer if
    /// `batch` has no more room, `packets` ends, or heads run out (counted by the region); `packets` is then not
    /// taken from any further.
    #[inline(always)]
    pub fn build_skbs(
        &mut self,
        n: usize,
        mut packets: impl Iterator<Item = (Frame, usize, usize)>,
        batch: &mut Batch,
        mut set: impl FnMut(&mut Head),
    ) -> usize {
        let want = n.min(batch.room());
        let region = self.region.id();
        let base = head_ptr(region, 0);
        let mut done = 0;
        while done < want {
            let heads = self.heads.peek(&self.region.heads, want - done);
            let asked = heads.len();
            if asked == 0 {
                self.region.note_exhausted();
                break;
            }
            // The newest first, as single allocations would.
            let mut newest = heads.iter().rev();
            let got = batch.extend(asked, || {
                let (frame, off, len) = loop {
                    let next = packets.next()?;
                    if next.0.region() == region {
                        break next;
                    }
                    // A head of this region can't name it.
                    free_foreign_frame(next.0.region(), next.0.into_raw());
                };
                debug_assert!(off + len <= FRAME_SIZE);
                let &index = newest.next()?;
                #[cfg(feature = "debug-poison")]
                super::poison::head_taken(&self.region, index);
                // SAFETY: a head of this store's region; the index is free, so no other code has it.
                let head = unsafe { &mut *base.add(index as usize) };
                let off = off.min(FRAME_SIZE);
                head.init(frame.into_raw(), off as u16, len.min(FRAME_SIZE - off) as u16);
                set(&mut head.head);
                Some(Skb::new(region, index))
            });
            self.heads.consume(got);
            done += got;
            if got < asked {
                break;
            }
        }
        done
    }

    /// Takes the first `n` packets of `batch` apart: frees the heads at once, and hands frame, offset
    /// and length of each to `take`, first to last. A packet of several frames is
    /// [linearized](Self::linearize); one that is too long for that is freed, after `refused` got a
    /// look at its head.
    #[inline(always)]
    pub fn take_frames(
        &mut self,
        batch: &mut Batch,
        n: usize,
        mut take: impl FnMut(Frame, usize, usize),
        mut refused: impl FnMut(&Head),
    ) {
        let region = self.region.id();
        let base = head_ptr(region, 0);
        let n = n.min(batch.len());
        let foreign = batch.as_slice()[..n].iter().fold(0, |foreign, skb| foreign | (skb.region() ^ region));
        let mut drain = batch.drain();
        let mut heads = [const { MaybeUninit::<u32>::uninit() }; BATCH];
        let mut done = 0;
        let given_up = if foreign == 0 { n } else { 0 };
        for (skb, home) in drain.give_up(given_up).iter().zip(&mut heads) {
            let index = skb.index();
            // SAFETY: the handle, which is given up, owned this head, and it is freed below, not before.
            let head = unsafe { &*base.wrapping_add(index as usize) };
            if head.frag_list != NONE {
                break;
            }
            home.write(index);
            done += 1;
            let (frame, off, len) = (head.frame, usize::from(head.off), usize::from(head.head_len));
            take(Frame::new(region, frame), off, len);
        }
        // SAFETY: a batch has at most `BATCH`, so each of those done wrote one.
        let heads = unsafe { std::slice::from_raw_parts(heads.as_ptr().cast::<u32>(), done) };
        #[cfg(feature = "debug-poison")]
        heads.iter().for_each(|head| super::poison::head_freed(&self.region, *head));
        self.heads.push_bulk(&self.region.heads, heads);
        // From the first unusual one on, one by one.
        drain.take_back(given_up - done);
        for skb in drain.take(n - done) {
            if let Some((frame, off, len)) = self.take_unusual(skb, &mut refused) {
                take(frame, off, len);
            }
        }
    }

    /// Takes a packet apart that may have a chain, or be of another region.
    #[cold]
    #[inline(never)]
    fn take_unusual(&mut self, skb: Skb, refused: &mut dyn FnMut(&Head)) -> Option<(Frame, usize, usize)> {
        match self.take_frame(skb) {
            Ok(taken) => Some(taken),
            Err(skb) => {
                refused(skb.head());
                self.free_skb(skb);
                None
            }
        }
    }

    /// Frees every packet of `batch`, heads and frames. `see` gets a look at each packet's head before.
    #[inline]
    pub fn free_skbs(&mut self, batch: &mut Batch, mut see: impl FnMut(&Head)) {
        let region = self.region.id();
        // Looked at apart, for all of them: the loop below has one counter then, which stays in a register.
        if batch.as_slice().iter().fold(0, |foreign, skb| foreign | (skb.region() ^ region)) != 0 {
            for skb in batch.drain() {
                see(skb.head());
                self.free_skb(skb);
            }
            return;
        }
        let base = head_ptr(region, 0);
        let mut heads = [const { MaybeUninit::<u32>::uninit() }; BATCH];
        let mut frames = [const { MaybeUninit::<u32>::uninit() }; BATCH];
        let mut chained = false;
        let skbs = batch.give_up();
        let n = skbs.len();
        for (skb, (home, frame)) in skbs.iter().zip(heads.iter_mut().zip(&mut frames)) {
            #[cfg(feature = "debug-poison")]
            super::poison::head_in_use(skb);
            let index = skb.index();
            // SAFETY: the handle, which is given up, owned this head, and it is freed below, not before.
            let head = unsafe { &*base.wrapping_add(index as usize) };
            see(&head.head);
            chained |= head.frag_list != NONE;
            frame.write(head.frame);
            home.write(index);
        }
        // SAFETY: a batch has at most `BATCH`, so each of its `n` wrote one of each.
        let (heads, frames) = unsafe {
            (
                std::slice::from_raw_parts(heads.as_ptr().cast::<u32>(), n),
                std::slice::from_raw_parts(frames.as_ptr().cast::<u32>(), n),
            )
        };
        if chained {
            for index in heads {
                // SAFETY: as above; the heads are freed below.
                let mut skb = unsafe { linked(region, *index) };
                self.free_chain(&mut skb);
            }
        }
        #[cfg(feature = "debug-poison")]
        for (frame, head) in frames.iter().zip(heads) {
            super::poison::frame_freed(&self.region, *frame);
            super::poison::head_freed(&self.region, *head);
        }
        self.heads.push_bulk(&self.region.heads, heads);
        self.frames.push_bulk(&self.region.frames, frames);
    }

    /// An skb on a fresh frame, empty, with the usual headroom.
    pub fn alloc_skb(&mut self) -> Option<Skb> {
        let frame = self.alloc_frame()?;
        self.build_skb(frame, HEADROOM, 0).map_err(|frame| self.free_frame(frame)).ok()
    }

    /// A second packet like `skb`, which may be of any region: on as many fresh frames, with the same headroom, bytes and
    /// metadata, except the control block. `None` (counted by the region) if there are not enough frames or heads. It is
    /// one packet more: its maker counts it as originated.
    pub fn copy(&mut self, skb: &Skb) -> Option<Skb> {
        let mut copy = self.copy_frame(skb.region(), skb.raw().own(), 0)?;
        copy.head_mut().copy_from(skb.head());
        match skb.is_chained() {
            true => self.copy_chain(skb, copy),
            false => Some(copy),
        }
    }

    /// Appends copies of the chain of `skb` to `copy`.
    #[cold]
    fn copy_chain(&mut self, skb: &Skb, mut copy: Skb) -> Option<Skb> {
        // The segments of a list have their headers in front.
        let is_list = skb.head().gso_type == GsoType::FragList;
        for part in skb.chain() {
            let front = if is_list { part.off.into() } else { 0 };
            let part = self.copy_frame(skb.region(), part, front).map(|part| copy.append(part));
            if let Some(Ok(())) = part {
                continue;
            }
            if let Some(Err(part)) = part {
                self.free_skb(part);
            }
            self.free_skb(copy);
            return None;
        }
        Some(copy)
    }

    /// A new skb with the bytes of a frame of `region`, and their headroom, of which `front` bytes
    /// are copied, too. The caller has borrowed the frame's packet.
    #[inline]
    fn copy_frame(&mut self, region: u32, from: Fragment, front: usize) -> Option<Skb> {
        let (off, len) = (usize::from(from.off), usize::from(from.len));
        let mut frame = self.alloc_frame()?;
        let front = front.min(off);
        let all = Fragment { frame: from.frame, off: (off - front) as u16, len: (front + len) as u16 };
        // SAFETY: the frame's packet is borrowed, and its bytes are in front of, and in, its range.
        frame.bytes_mut()[off - front..off + len].copy_from_slice(unsafe { all.bytes(region) });
        self.build_skb(frame, off, len).map_err(|frame| self.free_frame(frame)).ok()
    }

    /// Moves all bytes of a packet into its first frame, without headroom if need be. Returns
    /// whether that holds them; if not nothing has changed. Not of a [list of
    /// segments](GsoType::FragList), whose headers would be lost.
    #[cold]
    pub fn linearize(&mut self, skb: &mut Skb) -> bool {
        if skb.head().gso_type == GsoType::FragList {
            return false;
        }
        let (head_len, len) = (skb.head_len(), skb.len());
        let Some(room) = FRAME_SIZE.checked_sub(len) else { return false };
        let (region, chain) = (skb.region(), skb.detach());
        let missing = skb.headroom().saturating_sub(room);
        if missing > 0 && skb.push(missing).is_some() {
            skb.data_mut().copy_within(missing.., 0);
            skb.trim(head_len);
        }
        self.take_heads(region, chain, |store, frame, off, len| {
            if let Some(to) = skb.put(len) {
                to.copy_from_slice(&frame.bytes()[off..off + len]);
            }
            store.free_frame(frame);
        });
        true
    }

    /// Takes a packet apart: frees its head, returns the frame with the packet's offset and length in it. One of several
    /// frames is [linearized](Self::linearize); it is handed back if it is too long for that.
    #[inline(always)]
    pub fn take_frame(&mut self, mut skb: Skb) -> Result<(Frame, usize, usize), Skb> {
        if skb.is_chained() && !self.linearize(&mut skb) {
            return Err(skb);
        }
        Ok(self.take_first_frame(skb))
    }

    /// Takes an skb apart, which has no chain.
    #[inline(always)]
    pub(super) fn take_first_frame(&mut self, skb: Skb) -> (Frame, usize, usize) {
        let head = skb.raw();
        debug_assert!(head.frag_list == NONE);
        let (frame, off, len) = (head.frame, usize::from(head.off), usize::from(head.head_len));
        let (region, index) = (skb.region(), skb.into_raw());
        self.free_head(region, index);
        (Frame::new(region, frame), off, len)
    }

    /// Gives a head back whose handle is given up.
    #[inline(always)]
    pub(super) fn free_head(&mut self, region: u32, index: u32) {
        if region == self.region.id() {
            #[cfg(feature = "debug-poison")]
            super::poison::head_freed(&self.region, index);
            self.heads.push(&self.region.heads, index);
        } else {
            free_foreign_head(region, index);
        }
    }

    /// Frees a packet, heads and frames.
    #[inline(always)]
    pub fn free_skb(&mut self, mut skb: Skb) {
        if skb.is_chained() {
            self.free_chain(&mut skb);
        }
        let (frame, ..) = self.take_first_frame(skb);
        self.free_frame(frame);
    }

    /// Takes up to [`HeadBulk::SIZE`] heads at once, uninitialised.
    #[inline]
    pub fn alloc_heads(&mut self) -> HeadBulk {
        let mut bulk = HeadBulk { region: self.region.id(), len: 0, heads: [0; HeadBulk::SIZE] };
        bulk.len = self.heads.pop_bulk(&self.region.heads, &mut bulk.heads);
        #[cfg(feature = "debug-poison")]
        bulk.heads[..bulk.len].iter().for_each(|i| super::poison::head_taken(&self.region, *i));
        bulk
    }

    /// Gives heads back.
    #[inline]
    pub fn free_heads(&mut self, bulk: HeadBulk) {
        let heads = &bulk.heads[..bulk.len];
        if bulk.region == self.region.id() {
            #[cfg(feature = "debug-poison")]
            heads.iter().for_each(|i| super::poison::head_freed(&self.region, *i));
            self.heads.push_bulk(&self.region.heads, heads);
        } else {
            heads.iter().for_each(|i| free_foreign_head(bulk.region, *i));
        }
        std::mem::forget(bulk);
    }

    /// Heads and frames that lie in the caches now.
    pub fn cached(&self) -> (usize, usize) {
        (self.heads.len(), self.frames.len())
    }

    /// Gives back to the region what lies in the caches beyond `most` heads and as many frames.
    #[inline(always)]
    pub fn trim(&mut self, most: usize) {
        self.heads.trim(&self.region.heads, most);
        self.frames.trim(&self.region.frames, most);
    }

    /// Gives all cached memory back to the region; what others free from now on does not come here.
    pub fn drain(&mut self) {
        self.heads.drain(&self.region.heads);
        self.frames.drain(&self.region.frames);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !model_failed() {
            self.drain();
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn free_foreign_frame(region: u32, index: u32) {
    // A region that is going finds the frame missing and stays mapped.
    if let Some(region) = Region::by_id(region) {
        #[cfg(feature = "debug-poison")]
        super::poison::frame_freed(&region, index);
        region.frames.push(&[index]);
    }
}

#[cold]
#[inline(never)]
pub(super) fn free_foreign_head(region: u32, index: u32) {
    if let Some(region) = Region::by_id(region) {
        #[cfg(feature = "debug-poison")]
        super::poison::head_freed(&region, index);
        region.heads.push(&[index]);
    }
}
