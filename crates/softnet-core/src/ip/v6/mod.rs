//! IPv6: header and extension headers, kinds of addresses, routes, neighbour discovery and ICMPv6.
//!
//! Addresses are `u128` in host order where every packet passes, and [`Ipv6Addr`](std::net::Ipv6Addr) everywhere else.
//! What both families share is beside: [`neigh`](super::neigh), [`tables`](super::tables), the slow path's owner
//! [`SlowPath`](super::slow::SlowPath). As there, nothing reads a clock or sends a packet.
//!
//! Not there: router advertisements (softnet sends none and takes none: addresses and routes are configured), redirects,
//! duplicate address detection of softnet's own addresses (others are told when they try to take one), multicast routing
//! (datagrams to groups are left to sockets).

pub mod addr;
pub mod fib;
pub mod header;
pub mod icmp;
pub mod nd;
