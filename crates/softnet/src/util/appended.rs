//! A list that grows at its end while other threads read it.
//!
//! One thread appends; any thread reads, without a lock. Invariant: what is in it stays where it
//! is, and a thread that learned of an index after the element was appended finds it there.

use std::ops::Index;

/// See the [module](self).
#[derive(Debug)]
pub struct Appended<T>(boxcar::Vec<T>);

impl<T> Appended<T> {
    /// Appends `value`. One thread at a time: indices are without gaps then.
    pub fn push(&self, value: T) {
        self.0.push(value);
    }

    /// The element with index `at`.
    #[inline(always)]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at)
    }

    /// How many there are. All of them are found by their indices.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// All of them, in order; also those that are appended meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..).map_while(|at| self.get(at))
    }
}

impl<T> Index<usize> for Appended<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, at: usize) -> &T {
        &self.0[at]
    }
}

impl<T> FromIterator<T> for Appended<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Appended(boxcar::Vec::from_iter(values))
    }
}
