//! NAPI: which thread polls a queue, and when.
//!
//! * [`Napi`] is the instance of one queue pair: a state word, statistics that any thread may read, and a body (the
//!   RX queue, GRO, mitigation, scratch) that only the holder of the word's SCHED bit may touch.
//! * [`Scheduled`] is that ownership. It comes from [`Napi::schedule_prep`], [`Napi::watchdog`] or
//!   [`Disabled::enable`], waits on a poll list or travels through a [mailbox](crate::sync::mailbox), and ends
//!   in [`Scheduled::complete`].
//! * [`BusyPolling`] is the ownership of an application that polls by itself; it ends in [`BusyPolling::stop`].
//! * [`Mitigation`] decides how long the doorbell stays masked after either, by the knobs of [`MitigationConfig`].
//! * [`NetRx`] is the softirq loop: it polls the instances of one worker's poll list within a budget.
//!
//! Invariant (no lost wake-up): at every moment an enabled instance's doorbell is unmasked, or its timer is armed,
//! or a thread holds its `Scheduled` or `BusyPolling`.

mod hooks;
mod instance;
mod mitigation;
#[cfg(all(test, feature = "loom"))]
mod models;
mod net_rx;
mod scheduled;
mod state;

pub use hooks::Gro;
pub use instance::{Body, MIN_NAPI_ID, Napi, NapiInfo, NapiStats};
pub use mitigation::{BusyPolling, MAX_DEFER_HARD_IRQS, Mitigation, MitigationConfig, OutOfRange};
pub use net_rx::{Budget, Driver, NetRx, NetRxStats, PollList, Run, WEIGHT};
pub use scheduled::{Completion, Disabled, Released, Scheduled};
pub use state::State;
