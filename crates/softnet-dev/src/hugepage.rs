//! Tables that the kernel may back with huge pages.

use softnet_core::memory::TableMemory;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// An empty vector with room for `n` values, whose memory the kernel is asked to back with huge pages where it
/// can (`MADV_HUGEPAGE`): look-ups in a large table then miss the TLB less. Refusal is silent.
pub fn huge_vec<T>(n: usize) -> Vec<T> {
    const PAGE: usize = 4096;
    let vec = Vec::<T>::with_capacity(n);
    let bytes = vec.capacity() * size_of::<T>();
    if bytes < HUGE {
        return vec;
    }
    // A large vector is a mapping of its own, which the kernel (6.7) begins at a huge page; its own page is the first, behind
    // the allocator's header. So the advice is for whole small pages: huge ones fit where the mapping lets them.
    let from = vec.as_ptr() as usize & !(PAGE - 1);
    let to = (vec.as_ptr() as usize + bytes) & !(PAGE - 1);
    if from < to {
        // SAFETY: the range is of pages that the vector lies on, and the advice changes no byte of them.
        let _ = unsafe { rustix::mm::madvise(from as *mut _, to - from, rustix::mm::Advice::LinuxHugepage) };
    }
    vec
}

/// Memory for the core's tables, see [`huge_vec`].
#[derive(Clone, Copy, Debug, Default)]
pub struct HugePages;

impl TableMemory for HugePages {
    fn vec<T>(&self, n: usize) -> Vec<T> {
        huge_vec(n)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn holds_what_was_asked_for() {
        let mut vec = super::huge_vec::<u32>(3 << 20);
        let at = vec.as_ptr();
        vec.resize(3 << 20, 7);
        assert_eq!((vec.as_ptr(), vec[12345]), (at, 7));
        assert_eq!(super::huge_vec::<u8>(0).capacity(), 0);
    }
}
