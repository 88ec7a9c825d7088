//! A key-value server over TCP that speaks memcached's text protocol and redis' on one port, with
//! the store of `udp-kv`, on the kernel's sockets or on softnet's.
//!
//! ```text
//!  Net (epoll) ─► server: connections ─► desk: memcached's lines, redis' RESP ─► store of udp-kv
//! ```
//!
//! Each request says by its first bytes which protocol it is of, so a connection may even change
//! between them. Requests are parsed in place, answers gathered and written once for all that came
//! together. A connection that is idle holds no buffer.
#![deny(unsafe_code)]

pub mod desk;
pub mod net;
pub mod redis;
mod server;

pub use server::{Counters, Server};
