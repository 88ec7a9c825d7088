//! IPv4: header and options, routes, ARP and ICMP.
//!
//! Addresses are `u32` in host order where every packet passes (header, checksum, FIB look-up) and
//! [`Ipv4Addr`](std::net::Ipv4Addr) everywhere else. What both families share is beside, as for [`v6`](super::v6); nothing here
//! knows of the other family, reads a clock or sends a packet.

pub mod arp;
pub mod fib;
pub mod header;
pub mod icmp;
pub mod options;
pub(super) mod redirect;
