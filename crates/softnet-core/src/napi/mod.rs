//! NAPI: who polls a queue, and when.
//!
//! * [`Napi`] is the instance of one queue pair: a state word, statistics that anybody may read, and a body (the
//!   RX queue, GRO, mitigation, scratch) that only the holder of the word's SCHED bit may touch.
//! * [`Scheduled`] is that ownership. It comes from [`Napi::schedule_prep`], [`Napi::watchdog`] or
//!   [`Disabled::enable`], waits on a poll list or travels through a [mailbox](crate::sync::mailbox), and ends
//!   in [`Scheduled::complete`].
//! * [`NetRx`] is the softirq loop: it polls the instances of one worker's poll list within a budget.
//!
//! Invariant (no lost wake-up): at every moment an enabled instance's doorbell is unmasked, or its timer is armed,
//! or somebody holds its `Scheduled`.

mod hooks;
mod instance;
#[cfg(all(test, feature = "loom"))]
mod models;
mod net_rx;
mod scheduled;
mod state;

pub use hooks::{Deferral, Gro, Mitigation};
pub use instance::{Body, MIN_NAPI_ID, Napi, NapiInfo, NapiStats};
pub use net_rx::{Budget, Driver, NetRx, NetRxStats, PollList, Run, WEIGHT};
pub use scheduled::{Completion, Disabled, Released, Scheduled};
pub use state::State;
