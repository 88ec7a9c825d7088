//! The threads that poll: workers, threads of an instance's own and the pool, what they do with an instance, and switching
//! an instance from one of them to another.
//!
//! Each thread owns its state here; others reach it by the shared part alone
//! ([`WorkerShared`](crate::napi::WorkerShared), [`Pool`](crate::napi::Pool)). The housekeeper
//! switches.

mod net_tx;
mod polling;
mod switch;
mod vlan;
mod worker;
mod workqueue;

pub(crate) use polling::{OnRelease, PollContext};
pub(crate) use switch::Contexts;
pub use worker::Worker;
pub(crate) use workqueue::PoolThread;
