//! The Ethernet header: a view of its fields (IEEE 802.3 clause 3), and the EtherTypes that softnet knows.
//!
//! Any code that reads or writes frames may use it. A view exists only over 14 whole bytes, so no accessor can fail.

use std::ops::{Deref, DerefMut};

use super::{ETH_LEN, MacAddr};

/// EtherTypes (IANA's IEEE 802 numbers), as they are on the wire.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// The VLAN tag of a customer (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// The VLAN tag of a provider (IEEE 802.1ad).
    pub const PROVIDER_VLAN: u16 = 0x88a8;
}

/// Bytes of a VLAN tag.
pub const TAG_LEN: usize = 4;

/// A view of the header that a frame begins with. `T` is `&[u8; 14]` or `&mut [u8; 14]`.
#[derive(Clone, Copy, Debug)]
pub struct EthHeader<T>(T);

impl<'a> EthHeader<&'a [u8; ETH_LEN]> {
    /// A view of the header of `frame`; `None` if it is too short.
    #[inline(always)]
    pub fn new(frame: &'a [u8]) -> Option<Self> {
        frame.first_chunk().map(EthHeader)
    }
}

impl<'a> EthHeader<&'a mut [u8; ETH_LEN]> {
    /// As [`new`](EthHeader::new), to write.
    #[inline(always)]
    pub fn new_mut(frame: &'a mut [u8]) -> Option<Self> {
        frame.first_chunk_mut().map(EthHeader)
    }
}

impl<T: Deref<Target = [u8; ETH_LEN]>> EthHeader<T> {
    /// Where the frame goes.
    #[inline(always)]
    pub fn dst(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = *self.0;
        [a, b, c, d, e, f]
    }

    /// Whether the frame is for the station `mac` alone. In two halves, as a compiler makes of six bytes a long sum of shifts.
    #[inline(always)]
    pub fn is_to(&self, mac: &MacAddr) -> bool {
        let [a, b, c, d, e, f, ..] = *self.0;
        let [g, h, i, j, k, l] = *mac;
        u32::from_ne_bytes([a, b, c, d]) == u32::from_ne_bytes([g, h, i, j])
            && u16::from_ne_bytes([e, f]) == u16::from_ne_bytes([k, l])
    }

    /// What the frame carries, see [`ethertype`].
    #[inline(always)]
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.0[12], self.0[13]])
    }

    /// Whether the frame is for the station `mac` alone, or for a group, which that may be in.
    #[inline(always)]
    pub fn is_for(&self, mac: &MacAddr) -> bool {
        self.is_to(mac) || self.0[0] & 1 != 0
    }
}

impl<T: DerefMut<Target = [u8; ETH_LEN]>> EthHeader<T> {
    /// Replaces the whole header.
    #[inline(always)]
    pub fn set(&mut self, header: &[u8; ETH_LEN]) {
        *self.0 = *header;
    }
}
