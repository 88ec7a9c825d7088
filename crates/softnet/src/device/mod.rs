//! Devices as the stack sees them, and the netdevs that they carry: they keep name, index, settings and counters while the
//! interfaces behind them come and go.
//!
//! The housekeeper opens and closes devices; any thread with a context sends through netdevs.

pub(crate) mod filter;
mod groups;
mod netdev;
mod rss;
mod stack_device;
#[cfg(test)]
mod tests;
pub(crate) mod vlan;

pub(crate) use groups::{Groups, group_ip};
pub(crate) use netdev::Netdev;
pub(crate) use netdev::{OpenCache, current_cpu, find_netdev};
pub use netdev::{TxHint, dev_queue_xmit};
pub(crate) use stack_device::{OpenParts, StackDevice};
