//! Where the memory of large tables comes from.
//!
//! The core makes no system calls, so a host that can have large pages for a table (as `softnet-dev` does by
//! `MADV_HUGEPAGE`) passes its allocator to the table's constructor. A look-up in a table of a
//! hundred megabytes otherwise costs a page walk for each cache line that it misses. Invariant: the
//! memory is the vector's alone.

/// An allocator of vectors that may become large.
pub trait TableMemory {
    /// An empty vector with room for `n` values.
    fn vec<T>(&self, n: usize) -> Vec<T>;

    /// `n` values, made one by one in memory of this kind.
    fn filled<T>(&self, n: usize, value: impl FnMut() -> T) -> Box<[T]>
    where
        Self: Sized,
    {
        let mut all = self.vec(n);
        all.extend(std::iter::repeat_with(value).take(n));
        all.into_boxed_slice()
    }
}

/// Memory as it comes from the program's allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

impl TableMemory for Heap {
    fn vec<T>(&self, n: usize) -> Vec<T> {
        Vec::with_capacity(n)
    }
}

/// The same, which notes how many values it was asked for each time.
#[cfg(all(test, not(feature = "loom")))]
#[derive(Default)]
pub(crate) struct Asked(pub(crate) std::cell::RefCell<Vec<usize>>);

#[cfg(all(test, not(feature = "loom")))]
impl TableMemory for Asked {
    fn vec<T>(&self, n: usize) -> Vec<T> {
        self.0.borrow_mut().push(n);
        Heap.vec(n)
    }
}
