//! Rows of `show conntrack` and `show nat`.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConntrackRow {
    /// `tcp`, `udp`, `icmp`, `icmpv6`.
    pub protocol: String,
    /// `unreplied`, `assured`, `query`, `syn-sent`, `syn-recv`, `established`, `fin-wait`, `time-wait`, `close`.
    pub state: String,
    /// Source of the packet that opened it, as that came: address and port (of ICMP, the identifier).
    pub src: SocketAddr,
    /// Its destination.
    pub dst: SocketAddr,
    /// Source of the answers, as they come.
    pub reply_src: SocketAddr,
    /// Their destination.
    pub reply_dst: SocketAddr,
    /// Whether sources are translated (of answers, destinations).
    pub snat: bool,
    /// Whether destinations are (of answers, sources).
    pub dnat: bool,
    /// Seconds since it was opened.
    pub age_s: u32,
    /// Seconds until it expires, if no packet comes.
    pub expires_s: u32,
}

/// What NAT has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NatStats {
    /// Connections that there can be; 0: nothing is translated.
    pub connections_max: u64,
    /// Entries of connections in use.
    pub connections: u64,
    /// Connections that were made.
    pub created: u64,
    /// Those that expired.
    pub expired: u64,
    /// Those that were ended because their rule, or address outside, was no more.
    pub ended: u64,
    /// Those that were not answered yet, and were ended to make room for others (the kernel's `early_drop`).
    pub early_drop: u64,
    /// Those that there was no room for.
    pub full: u64,
    /// Those that were refused because their host inside has as many as `connlimit` says.
    pub connlimit: u64,
    /// Hosts inside that have connections, if those are limited.
    pub hosts: u64,
    /// The most that one of them has.
    pub most_of_a_host: u64,
    /// Internal endpoints that have an external one.
    pub mappings: u64,
    /// Times that no port was free for one.
    pub ports_exhausted: u64,
    /// Bytes that connections and mappings take.
    pub bytes: u64,
    /// External addresses that sources are hidden behind.
    pub addresses: Vec<NatAddressRow>,
}

/// An external address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NatAddressRow {
    /// The device that it is behind.
    pub dev: String,
    /// The address.
    pub address: Ipv4Addr,
    /// Ports of TCP in use.
    pub tcp: u32,
    /// Ports of UDP in use.
    pub udp: u32,
    /// Identifiers of ICMP in use.
    pub icmp: u32,
}
