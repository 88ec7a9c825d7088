//! Blocks of a general-purpose allocator, owned: for benches that compare packet memory with one. Here, because
//! the benches are compiled without `unsafe`.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

/// A block of a given layout, freed on drop.
pub struct Block<'a, A: GlobalAlloc> {
    at: NonNull<u8>,
    layout: Layout,
    allocator: &'a A,
}

impl<'a, A: GlobalAlloc> Block<'a, A> {
    /// A block of `size` bytes (above 0), aligned as allocators do by themselves, its first byte written. `None` if there is no memory.
    #[inline(always)]
    pub fn new(allocator: &'a A, size: usize) -> Option<Self> {
        let layout = Layout::from_size_align(size.max(1), 16).ok()?;
        // SAFETY: the layout has a size above 0.
        let at = NonNull::new(unsafe { allocator.alloc(layout) })?;
        // SAFETY: just allocated, at least one byte.
        unsafe { at.write(1) };
        Some(Block { at, layout, allocator })
    }
}

impl<A: GlobalAlloc> Drop for Block<'_, A> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: allocated in `new` from this allocator with this layout, freed once.
        unsafe { self.allocator.dealloc(self.at.as_ptr(), self.layout) }
    }
}
