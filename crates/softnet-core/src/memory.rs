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

/// Room for `more` values behind those of `table`, and for an eighth beside, in `memory`. Says how
/// many bytes could not be had.
pub(crate) fn grow<T: Copy>(table: &mut Vec<T>, more: usize, memory: &impl TableMemory) -> Result<(), usize> {
    if table.capacity() - table.len() >= more {
        return Ok(());
    }
    let larger = table.len() + more + table.len() / 8;
    let copied = copy(table, larger, memory)?;
    *table = copied;
    Ok(())
}

/// The values of `table`, with room for `room` of them, in `memory`. Says how many bytes could not be had.
pub(crate) fn copy<T: Copy>(table: &[T], room: usize, memory: &impl TableMemory) -> Result<Vec<T>, usize> {
    let mut copy = memory.vec(room);
    copy.clear();
    copy.try_reserve_exact(room).map_err(|_| room * size_of::<T>())?;
    copy.extend_from_slice(table);
    Ok(copy)
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
