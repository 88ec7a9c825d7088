//! What every other folder may use: the clock, locks, wake-ups, threads and messages.
//!
//! Knows nothing of packets, devices or the stack.

mod appended;
pub(crate) mod cgroup;
mod clock;
mod limit;
mod lock;
pub mod log;
mod thread;
mod wake;

pub(crate) use appended::Appended;
pub(crate) use clock::{Clock, timespec};
pub(crate) use limit::{Limit, power, range};
pub(crate) use lock::lock;
pub(crate) use log::{debug, fail, note, warn};
pub use thread::{Body, spawn, thread_cpu_ns};
pub(crate) use thread::{Spawn, current_tid};
pub(crate) use wake::Waker;
