//! softnet: a user-space network stack for Linux that polls when busy and sleeps when idle.
//!
//! A [`Stack`] is started from a [`Config`](config::Config) and runs until it is stopped. Its threads: one
//! [worker](poll) per configured CPU, a [housekeeper](assembly::Housekeeper) for links and neighbour timers, and a [control] thread
//! that answers `softnet show` and `softnet set`. All of them sleep when there is nothing to do. Instances that are
//! polled in another [context](config::Context) than `softirq` bring [threads of their own](poll).

pub mod app;
pub mod assembly;
pub mod config;
pub mod control;
pub mod device;
pub mod driver;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod napi;
pub mod net;
pub mod notify;
pub mod poll;
pub mod stack;
#[cfg(test)]
mod testing;
pub mod tx;
pub mod util;

pub use assembly::{Assembly, Stack, StartError};

/// The Rust blocks of the README and the book are compiled as doctests; `tests/docs.rs` runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/src/polling.md")]
#[doc = include_str!("../../../docs/src/udp.md")]
mod readme {}
