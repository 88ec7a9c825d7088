//! softnet: a user-space network stack for Linux that polls when busy and sleeps when idle.
//!
//! A [`Stack`] is started from a [`Config`](config::Config) and runs until it is stopped. Its threads: one
//! [worker] per configured CPU, a [housekeeper] for links and neighbour timers, and a [control] thread
//! that answers `softnet show` and `softnet set`. All of them sleep when there is nothing to do. Instances that are
//! polled in another [context](context::Context) than `softirq` bring [threads of their own](contexts).

pub mod app;
pub mod backlog;
pub mod busy_poll;
mod cache_share;
pub mod clock;
pub mod config;
pub mod context;
pub mod contexts;
pub mod control;
pub mod filter;
pub mod housekeeper;
pub mod instance;
pub mod log;
pub mod net;
mod net_tx;
pub mod netdev;
pub mod opener;
pub mod poller;
mod polling;
pub mod pool;
pub mod qdisc;
pub mod residency;
pub mod routes;
pub mod rows;
pub mod sender;
pub mod set;
pub mod shared;
pub mod show;
mod slow_lock;
mod snooper;
pub mod stack;
#[cfg(test)]
mod testing;
pub mod thread;
pub mod timer;
pub mod tx_backpressure;
pub mod tx_queue;
pub mod wake;
pub mod worker;

pub use stack::{Assembly, Stack, StartError};

/// The Rust blocks of the README and the book are compiled as doctests; `tests/docs.rs` runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/src/polling.md")]
#[doc = include_str!("../../../docs/src/udp.md")]
mod readme {}
