//! softnet: a user-space network stack for Linux that polls when busy and sleeps when idle.
//!
//! A [`Stack`] is started from a [`Config`](config::Config) and runs until it is stopped. Its threads: one
//! [worker] per configured CPU, a [housekeeper] for links and neighbour timers, and a [control] thread
//! that answers `softnet show`. All of them sleep when there is nothing to do.

pub mod clock;
pub mod config;
pub mod control;
pub mod housekeeper;
pub mod log;
pub mod netdev;
pub mod opener;
pub mod routes;
pub mod rows;
pub mod shared;
pub mod show;
pub mod stack;
pub mod wake;
pub mod worker;

pub use stack::{Assembly, Stack, StartError};
