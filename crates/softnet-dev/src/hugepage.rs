//! Tables that the kernel may back with huge pages.

/// An empty vector with room for `n` values, whose memory the kernel is asked to back with huge pages where it
/// can (`MADV_HUGEPAGE`): look-ups in a large table then miss the TLB less. Refusal is silent.
pub fn huge_vec<T>(n: usize) -> Vec<T> {
    const HUGE: usize = 2 << 20;
    let vec = Vec::<T>::with_capacity(n);
    let from = (vec.as_ptr() as usize).next_multiple_of(HUGE);
    let to = (vec.as_ptr() as usize + vec.capacity() * size_of::<T>()) & !(HUGE - 1);
    if from < to {
        // SAFETY: the range lies within the vector's own allocation, and the advice changes no byte of it.
        let _ = unsafe { rustix::mm::madvise(from as *mut _, to - from, rustix::mm::Advice::LinuxHugepage) };
    }
    vec
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
