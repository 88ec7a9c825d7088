//! The cell of the façade: `std`'s behind loom's interface, or loom's own, which sees unordered accesses.

#[cfg(feature = "loom")]
pub use loom::cell::UnsafeCell;

/// A cell whose content is reached through a raw pointer.
#[cfg(not(feature = "loom"))]
#[derive(Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(feature = "loom"))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Runs `f` on the pointer to the content, for exclusive access.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
