//! Heads or frames by themselves, many in one owned value: what a [`Store`](super::Store) hands out
//! in bulk.
//!
//! The holder of the value has the memory; dropping it with some left is a leak, which is noticed
//! as of a single one.

use super::batch::BATCH;
use super::handle::Frame;
use super::region::head_ptr;

/// Frames without heads, owned; taken out one by one.
pub struct FrameBulk {
    pub(super) region: u32,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) frames: [u32; BATCH],
}

impl Iterator for FrameBulk {
    type Item = Frame;

    #[inline(always)]
    fn next(&mut self) -> Option<Frame> {
        let index = *self.frames[..self.to].get(self.from)?;
        self.from += 1;
        Some(Frame::new(self.region, index))
    }
}

impl ExactSizeIterator for FrameBulk {
    #[inline(always)]
    fn len(&self) -> usize {
        self.to - self.from
    }
}

impl Drop for FrameBulk {
    #[inline(always)]
    fn drop(&mut self) {
        for frame in self.by_ref() {
            drop(frame);
        }
    }
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

    /// Writes the first byte of each: what a head is taken for begins with touching it.
    #[inline]
    pub fn write(&mut self, byte: u8) {
        for index in &self.heads[..self.len] {
            // SAFETY: the bulk owns the heads, of which nothing is read before it was written, and
            // a registered region outlives them.
            unsafe { head_ptr(self.region, *index).cast::<u8>().write(byte) };
        }
    }
}

impl Drop for HeadBulk {
    fn drop(&mut self) {
        for index in &self.heads[..self.len] {
            super::handle::leak("head", self.region, *index);
        }
    }
}
