//! Where the headers of a TCP or UDP packet are, if it is one of those that can be merged and cut.
//!
//! Pure; reads whatever bytes there are. Invariant: `l3 < l4 < payload`, and the bytes up to
//! `payload` are in the slice that was read.

use crate::ip::ETH_LEN;
use crate::ip::ethernet::{TAG_LEN, ethertype};
use crate::ip::v4::header::{MIN_LEN as IPV4_LEN, protocol};
use crate::ip::v6::header::LEN as IPV6_LEN;

/// VLAN tags that are looked behind, beside one that is in the head.
const MAX_TAGS: usize = 2;

/// Bytes of a UDP header.
pub(crate) const UDP_LEN: usize = 8;
/// Bytes of the shortest TCP header.
pub(crate) const TCP_LEN: usize = 20;

/// Bytes of the longest headers: Ethernet with tags, IPv6, TCP with options.
pub(crate) const MAX_HEADERS: usize = ETH_LEN + (MAX_TAGS + 1) * TAG_LEN + IPV6_LEN + 60;

/// The two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum L4 {
    Tcp,
    Udp,
}

impl L4 {
    /// Offset of the checksum field in the header.
    pub(crate) fn check_at(self) -> usize {
        match self {
            L4::Tcp => 16,
            L4::Udp => 6,
        }
    }

    /// IANA's number.
    pub(crate) fn number(self) -> u8 {
        match self {
            L4::Tcp => protocol::TCP,
            L4::Udp => protocol::UDP,
        }
    }
}

/// Offsets from the first byte of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) is_v6: bool,
    pub(crate) l4_is: L4,
    /// Of the IP header.
    pub(crate) l3: u16,
    /// Of the TCP or UDP header.
    pub(crate) l4: u16,
    /// Of what is behind that, options included.
    pub(crate) payload: u16,
}

impl Layout {
    /// Of an Ethernet frame with TCP or UDP right behind IPv4 without options, or IPv6 without
    /// extension headers. `None` of any other, of a fragment, and of one that ends within these
    /// headers.
    #[inline(always)]
    pub(crate) fn of(frame: &[u8]) -> Option<Layout> {
        let (l3, is_v6) = l3_of(frame)?;
        let packet = frame.get(l3..)?;
        let (number, header) = match packet.first()? {
            0x45 if !is_v6 => {
                let ip: &[u8; IPV4_LEN] = packet.first_chunk()?;
                // All but "don't fragment".
                let is_plain = ip[6] & !0x40 == 0 && ip[7] == 0;
                (is_plain.then_some(ip[9])?, IPV4_LEN)
            }
            first if is_v6 && first >> 4 == 6 => (*packet.get(6)?, IPV6_LEN),
            _ => return None,
        };
        let segment = packet.get(header..)?;
        let (l4_is, len) = match number {
            protocol::TCP => (L4::Tcp, usize::from(segment.first_chunk::<TCP_LEN>()?[12] >> 4) * 4),
            protocol::UDP => (L4::Udp, UDP_LEN),
            _ => return None,
        };
        if l4_is == L4::Tcp && len < TCP_LEN || segment.len() < len {
            return None;
        }
        let l4 = l3 + header;
        Some(Layout { is_v6, l4_is, l3: l3 as u16, l4: l4 as u16, payload: (l4 + len) as u16 })
    }

    /// Bytes of the headers from the IP header on.
    pub(crate) fn headers(&self) -> usize {
        usize::from(self.payload - self.l3)
    }

    /// Bytes of the TCP or UDP header.
    pub(crate) fn l4_headers(&self) -> usize {
        usize::from(self.payload - self.l4)
    }
}

/// Where the IP header is, behind VLAN tags, and whether it is said to be of IPv6.
#[inline(always)]
pub(crate) fn l3_of(frame: &[u8]) -> Option<(usize, bool)> {
    let mut at = ETH_LEN;
    loop {
        let [high, low] = *frame.get(at - 2..)?.first_chunk()?;
        match u16::from_be_bytes([high, low]) {
            ethertype::IPV4 => return Some((at, false)),
            ethertype::IPV6 => return Some((at, true)),
            ethertype::VLAN | ethertype::PROVIDER_VLAN if at < ETH_LEN + (MAX_TAGS + 1) * TAG_LEN => {
                at += TAG_LEN;
            }
            _ => return None,
        }
    }
}

/// Length from the IP header on, as that says.
#[inline(always)]
pub(crate) fn l3_len(packet: &[u8], is_v6: bool) -> usize {
    let at = if is_v6 { 4 } else { 2 };
    let len = packet.get(at..at + 2).map_or(0, |len| u16::from_be_bytes([len[0], len[1]]));
    usize::from(len) + if is_v6 { IPV6_LEN } else { 0 }
}
