//! Devices as the stack sees them: they keep name, index, settings and counters while the interfaces behind them come
//! and go.
//!
//! The housekeeper opens and closes them; any thread with a context sends through them.

mod error;
pub(crate) mod filter;
mod groups;
mod netdev;
mod opener;

pub use error::DeviceError;
pub(crate) use groups::{Groups, group_ip};
pub use netdev::{Netdev, OpenNetdev, TxHint, dev_queue_xmit};
pub(crate) use netdev::{OpenCache, current_cpu, find_device};
pub use opener::{Opener, XdpOpener};
