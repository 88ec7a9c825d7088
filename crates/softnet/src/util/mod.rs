//! What every other folder may use: the clock, locks, wake-ups, threads and messages.
//!
//! Knows nothing of packets, devices or the stack.

mod clock;
mod limit;
mod lock;
mod log;
mod thread;
mod wake;

pub use clock::Clock;
pub(crate) use clock::timespec;
pub(crate) use limit::{Limit, power, range};
pub(crate) use lock::lock;
pub(crate) use log::note;
pub(crate) use thread::current_tid;
pub use thread::{Body, Spawn, spawn};
pub use wake::Waker;
