//! The façade through which everything that two threads share goes.
//!
//! Production code takes its atomics from here and never from `std`, so that the loom models run the
//! production types themselves. Backends: `std`, and loom under the feature `loom`.

#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(feature = "loom")]
pub use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
