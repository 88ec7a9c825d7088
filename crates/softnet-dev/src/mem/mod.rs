//! Devices inside the process: a pair of connected ports ([`pair`]), and an emulated NIC ([`nic`]) whose frames
//! come from a [`Source`] and go to a [`Sink`]. For tests, benchmarks and programs that talk to themselves.
//!
//! Both keep to the contract of a real device: frames are posted to a ring before packets can arrive, a
//! full ring refuses, completions come later, and the doorbell is an eventfd that is written only when a
//! sleeper has announced itself.

mod coalesce;
mod dim;
mod doorbell;
mod nic;
mod offload;
mod pair;
mod port;
mod steered;

pub use coalesce::Coalesce;
pub use doorbell::MemDoorbell;
pub use nic::{Nic, NicConfig, Sink, Source, nic};
pub use offload::{Segmenter, vnet_header};
pub use pair::{PairConfig, pair};
pub use port::NicPort;

#[cfg(test)]
mod tests;
