//! IPv4: header checks, checksums, routes, neighbours, ARP and ICMP.
//!
//! Addresses are `u32` in host order where packets are handled and [`Ipv4Addr`](std::net::Ipv4Addr) where
//! people are. Nothing here reads a clock or sends a packet: time comes in, packets and actions go out.

pub mod adjacency;
pub mod checksum;
pub mod fib;
pub mod header;
pub mod input;
pub mod partial;
pub mod prefix;

pub use fib::{Fib, FibError};
pub use prefix::{Prefix, PrefixError};
