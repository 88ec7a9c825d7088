//! softnet: a user-space network stack for Linux that polls when busy and sleeps when idle.
//!
//! A [`Stack`] is started from a [`Config`] and runs until it is dropped. Its threads: one worker per configured CPU, a
//! housekeeper for links and neighbour timers, and, if wanted, a control thread that answers `softnet show` and
//! `softnet set`. All of them sleep when there is nothing to do. Instances that are polled in another [`Context`] than
//! `softirq` bring threads of their own.
//!
//! * [`config`]: what a stack is started from, in code or from a file.
//! * [`driver`]: what opens devices.
//! * [`net`]: UDP sockets and epoll sets, in the manner of `std::net` and `epoll(7)`.
//! * [`NapiPoller`] and [`RawSender`]: packets as they are, taken from and sent by a queue.
//! * [`Introspect`] and [`control`]: what a stack tells of itself, and how it is changed while it runs, from within and from
//!   other processes.
//!
//! The features `mio` and `tokio` bring sockets for their event loops.

#![warn(missing_debug_implementations)]

mod app;
mod assembly;
pub mod config;
pub mod control;
mod debug;
mod device;
pub mod driver;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod internals;
mod live;
mod metrics;
mod napi;
pub mod net;
mod notify;
mod poll;
pub mod prelude;
pub use util::log;
mod stack;
mod steering;
#[cfg(test)]
mod testing;
mod tx;
mod util;

pub use app::{NapiPoller, PollerError, PollerParams, RawSender, WouldBlock};
pub use assembly::{Introspect, Stack, StackBuilder, StartError};
pub use config::{Config, Context};
pub use control::TakeOverError;
pub use driver::DeviceError;
pub use napi::PacketFilter;
pub use softnet_core::SoftnetData;
pub use softnet_core::qdisc::Verdict;
pub use softnet_core::skb::{Batch, Skb};
pub use stack::Handle;

/// Wires within the process.
pub mod mem {
    pub use softnet_dev::mem::{PairConfig, pair};
}

/// The Rust blocks of the README and the book are compiled as doctests; `tests/docs.rs` runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/src/polling.md")]
#[doc = include_str!("../../../docs/src/udp.md")]
mod readme {}
