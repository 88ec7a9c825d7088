//! Links, addresses, routes and neighbours of the kernel, by rtnetlink; what happens to them; the few knobs of a link
//! that rtnetlink does not have; the kernel's NAPI instances; and routes that zebra tells in the same words.
//!
//! Control-path code, synchronous: a request returns when the kernel has answered. Any thread may call it; a socket
//! belongs to the network namespace its thread was in when it was made, and may be used from anywhere afterwards.
//! Answers are read attribute by attribute, and attributes that are not asked for here are not even looked at, so
//! that a kernel newer than this code is no trouble.

mod fib;
mod fpm;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod knobs;
mod link;
mod monitor;
mod netdev;
mod route;
mod socket;
#[cfg(test)]
mod tests;

pub use fib::{FibEvent, FibMonitor, KernelHop, KernelNeighbour, KernelRoute, RouteKind, RoutePlace};
pub use fpm::{FpmEvent, FpmMonitor, FpmState, Malformed};
pub use knobs::{Offload, pin_napi_threads, set_offload, set_rps, set_threaded};
pub use link::{Link, LinkCounters};
pub use monitor::{LinkEvent, LinkMonitor};
pub use netdev::{KernelNapi, NapiKnobs, NetdevFamily};
pub use route::InterfaceAddress;
pub use socket::Netlink;
