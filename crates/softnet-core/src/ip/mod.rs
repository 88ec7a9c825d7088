//! IPv4 and IPv6: header checks, checksums, routes, neighbours and ICMP. What is one family's alone is in [`v4`] and
//! [`v6`]; modules here serve both.
//!
//! Nothing here reads a clock or sends a packet: time comes in, packets and actions go out.

pub mod adjacency;
pub mod checksum;
pub mod echo;
pub mod ethernet;
pub mod family;
#[cfg(all(test, not(feature = "loom")))]
mod fib_model;
pub mod fib_twins;
pub mod fragment;
pub mod hooks;
pub mod icmp_error;
pub mod icmp_limit;
pub mod ident;
pub mod iface;
pub mod input;
pub mod neigh;
pub mod partial;
pub mod pmtu;
pub mod prefix;
pub mod reassembly;
pub mod redirect;
pub mod slow;
pub mod source;
pub mod tables;
mod unserved;
pub mod v4;
pub mod v6;

pub use family::{Address, Family, FibError, LongestMatch};
pub use prefix::{IpPrefix, Prefix, Prefix6, PrefixError};

/// Bytes of an Ethernet header without VLAN tag.
pub const ETH_LEN: usize = 14;

/// An Ethernet address.
pub type MacAddr = [u8; 6];

/// Whether `mac` is a multicast or broadcast address (IEEE 802.3: the first bit on the wire).
#[inline(always)]
pub const fn is_group(mac: &MacAddr) -> bool {
    mac[0] & 1 != 0
}

#[cfg(all(test, not(feature = "loom")))]
pub(crate) mod testing {
    //! What several tests need.

    use std::sync::{Arc, OnceLock};

    use crate::SoftnetData;
    use crate::skb::{CacheSizes, HeapMemory, Region};

    /// A thread context on the one region that these tests share, as a process may not have many.
    pub(crate) fn context() -> SoftnetData {
        static REGION: OnceLock<Arc<Region>> = OnceLock::new();
        let region = REGION.get_or_init(|| {
            let (frames, heads) = (8192, 8192);
            Region::new(Box::new(HeapMemory::new(Region::bytes(frames, heads))), frames, heads).unwrap()
        });
        SoftnetData::new(region.clone(), CacheSizes::default())
    }
}
