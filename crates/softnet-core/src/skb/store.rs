//! What one thread has of a region's memory: the caches of heads and frames, and the ways in and out of them.
//!
//! Part of [`SoftnetData`](crate::SoftnetData), which adds the counters; only its thread touches it.

use std::sync::Arc;

use super::cache::{CacheSizes, IndexCache};
use super::handle::{Frame, Skb};
use super::region::{FRAME_SIZE, HEADROOM, Region, head_ptr};

/// A thread's store of free heads and frames of one region.
pub struct Store {
    region: Arc<Region>,
    heads: IndexCache,
    frames: IndexCache,
}

/// Heads without frames, owned; to be given back to a store.
pub struct HeadBulk {
    pub(super) region: u32,
    pub(super) len: usize,
    pub(super) heads: [u32; Self::SIZE],
}

impl HeadBulk {
    /// Heads it holds at the most.
    pub const SIZE: usize = 32;

    /// How many it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for HeadBulk {
    fn drop(&mut self) {
        for index in &self.heads[..self.len] {
            super::handle::leak("head", self.region, *index);
        }
    }
}

impl Store {
    /// An empty store on `region`.
    pub fn new(region: Arc<Region>, sizes: CacheSizes) -> Self {
        Store { region, heads: IndexCache::new(sizes), frames: IndexCache::new(sizes) }
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
        // SAFETY: the index is free, so nobody else has the head.
        unsafe { (*head_ptr(self.region.id(), index)).init(frame.into_raw(), off as u16, len as u16) };
        Ok(Skb::new(self.region.id(), index))
    }

    /// An skb on a fresh frame, empty, with the usual headroom.
    pub fn alloc_skb(&mut self) -> Option<Skb> {
        let frame = self.alloc_frame()?;
        self.build_skb(frame, HEADROOM, 0).map_err(|frame| self.free_frame(frame)).ok()
    }

    /// Takes an skb apart: frees the head, returns the frame with the packet's offset and length in it.
    #[inline(always)]
    pub fn take_frame(&mut self, skb: Skb) -> (Frame, usize, usize) {
        let head = skb.head();
        let (frame, off, len) = (head.frame, usize::from(head.off), usize::from(head.len));
        let (region, index) = (skb.region(), skb.into_raw());
        if region == self.region.id() {
            #[cfg(feature = "debug-poison")]
            super::poison::head_freed(&self.region, index);
            self.heads.push(&self.region.heads, index);
        } else {
            free_foreign_head(region, index);
        }
        (Frame::new(region, frame), off, len)
    }

    /// Frees an skb, head and frame.
    #[inline(always)]
    pub fn free_skb(&mut self, skb: Skb) {
        let (frame, ..) = self.take_frame(skb);
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

    /// Gives all cached memory back to the region.
    pub fn drain(&mut self) {
        self.heads.drain(&self.region.heads);
        self.frames.drain(&self.region.frames);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cold]
#[inline(never)]
fn free_foreign_frame(region: u32, index: u32) {
    Region::with(region, |r| {
        #[cfg(feature = "debug-poison")]
        super::poison::frame_freed(r, index);
        r.frames.push(&[index]);
    });
}

#[cold]
#[inline(never)]
fn free_foreign_head(region: u32, index: u32) {
    Region::with(region, |r| {
        #[cfg(feature = "debug-poison")]
        super::poison::head_freed(r, index);
        r.heads.push(&[index]);
    });
}
