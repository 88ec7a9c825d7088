//! The state that all threads of a stack share: devices, workers, forwarding tables, sockets, and the slow path behind its
//! lock.
//!
//! Only data and the rules for touching it; the threads that do so are in [`poll`](crate::poll),
//! [`app`](crate::app) and [`net`](crate::net), and [`assembly`](crate::assembly) puts it together.

mod app_thread;
mod cache_share;
pub(crate) mod follow;
mod handle;
mod inner;
pub(crate) mod nat;
mod ports;
pub(crate) mod rib;
pub(crate) mod routes;
pub(crate) mod rules;
mod slow_lock;
mod sockets;
pub(crate) mod tcp;
mod udp;

pub(crate) use app_thread::{AppThread, Parked, before_wait, with};
pub(crate) use cache_share::CacheShare;
pub use handle::Handle;
pub use inner::StackInner;
pub(crate) use slow_lock::SlowLock;
pub(crate) use sockets::SocketTable;
pub(crate) use tcp::LocalDrops;
