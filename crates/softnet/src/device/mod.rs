//! Devices as the stack sees them: they keep name, index, settings and counters while the interfaces behind them come
//! and go.
//!
//! The housekeeper opens and closes them; any thread with a context sends through them.

pub mod filter;
pub(crate) mod groups;
mod netdev;
mod opener;

pub(crate) use groups::Groups;
pub(crate) use netdev::OpenCache;
pub use netdev::{Netdev, OpenNetdev, QueueTotals, Totals, dev_queue_xmit};
pub use opener::{Opener, XdpOpener};
