//! Devices as the stack sees them: they keep name, index, settings and counters while the interfaces behind them come
//! and go.
//!
//! The housekeeper opens and closes them; any thread with a context sends through them.

pub mod filter;
pub(crate) mod groups;
mod netdev;
mod opener;

pub(crate) use groups::Groups;
pub use netdev::{Knobs, Netdev, OpenNetdev, QueueTotals, Totals, TxHint, dev_queue_xmit};
pub(crate) use netdev::{OpenCache, current_cpu};
pub use opener::{Opener, XdpOpener};
