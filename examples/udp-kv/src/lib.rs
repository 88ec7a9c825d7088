//! A key-value server that speaks memcached's text protocol over UDP, on whichever datagram sockets it is given.
//!
//! ```text
//!  DatagramSet ─► serve ─► proto: frame, request ─► store ─► proto: reply ─► Outbox ─► DatagramSet
//! ```
//!
//! [`Server::start`] runs it in threads of the calling process, one for each set of sockets, as the program does
//! and as a benchmark may. A request is parsed in place, its item is looked up under the lock of one shard, and the
//! value is copied once, into the datagram that carries it; nothing is allocated for a `get`.
#![deny(unsafe_code)]

mod answer;
pub mod commands;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod proto;
mod server;
mod softnet_sockets;
pub mod store;

pub use server::{Counters, Server};
pub use softnet_sockets::{SoftnetSockets, Waiting};
