//! Fields that differ between a packet and its segments: lengths, identification, sequence number,
//! flags, checksums.
//!
//! Every function is given the bytes of the first frame and the [`Layout`] that was read from them;
//! what does not fit (it always does) is left alone. Checksums are as RFC 1071 and RFC 768 have
//! them.

use super::layout::{L4, Layout};
use crate::ip::checksum;
use crate::ip::v4::header::Ipv4Header;
use crate::ip::v6::header::LEN as IPV6_LEN;

/// TCP flags, in the byte at offset 13 of its header (RFC 9293 section 3.1, RFC 3168).
pub(crate) mod tcp_flags {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const PSH: u8 = 0x08;
    pub(crate) const URG: u8 = 0x20;
    pub(crate) const CWR: u8 = 0x80;
}

/// Offset of the flags in the TCP header.
pub(crate) const TCP_FLAGS: usize = 13;

#[inline(always)]
pub(crate) fn be16(data: &[u8], at: usize) -> u16 {
    data.get(at..at + 2).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]))
}

#[inline(always)]
pub(crate) fn be32(data: &[u8], at: usize) -> u32 {
    data.get(at..).and_then(|field| field.first_chunk()).map_or(0, |field| u32::from_be_bytes(*field))
}

#[inline(always)]
pub(crate) fn put<const N: usize>(data: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(field) = data.get_mut(at..at + N) {
        field.copy_from_slice(&bytes);
    }
}

impl Layout {
    /// Offset of the L4 header.
    #[inline(always)]
    pub(crate) fn l4(&self) -> usize {
        self.l4.into()
    }

    /// Offset of the L3 header.
    #[inline(always)]
    pub(crate) fn l3(&self) -> usize {
        self.l3.into()
    }

    /// Offset of the L4 payload.
    #[inline(always)]
    pub(crate) fn payload(&self) -> usize {
        self.payload.into()
    }

    /// Offset of the L4 checksum.
    #[inline(always)]
    pub(crate) fn check(&self) -> usize {
        self.l4() + self.l4_is.check_at()
    }

    /// Identification of an IPv4 packet.
    #[inline(always)]
    pub(crate) fn id(&self, data: &[u8]) -> u16 {
        be16(data, self.l3() + 4)
    }

    /// Sequence number of a TCP segment.
    #[inline(always)]
    pub(crate) fn seq(&self, data: &[u8]) -> u32 {
        be32(data, self.l4() + 4)
    }

    /// Sum of the pseudo-header of a segment of `len` bytes, L4 header included.
    pub(crate) fn pseudo(&self, data: &[u8], len: usize) -> u16 {
        let addresses =
            if self.is_v6 { self.l3() + 8..self.l3() + IPV6_LEN } else { self.l3() + 12..self.l4() };
        let addresses = checksum::sum(data.get(addresses).unwrap_or_default());
        checksum::add(addresses, checksum::add(self.l4_is.number().into(), len as u16))
    }

    /// Has the headers say that the payload has `payload` bytes, and for IPv4 that the
    /// identification is `id`, with the checksum of the IPv4 header. The L4 checksum is left alone.
    pub(crate) fn set_lengths(&self, data: &mut [u8], payload: usize, id: Option<u16>) {
        let len = self.l4_headers() + payload;
        if self.is_v6 {
            put(data, self.l3() + 4, (len as u16).to_be_bytes());
        } else if let Some(mut ip) = data.get_mut(self.l3()..).and_then(Ipv4Header::new_mut) {
            ip.set_total_len((usize::from(self.l4 - self.l3) + len) as u16);
            if let Some(id) = id {
                ip.set_id(id);
            }
            ip.renew_check();
        }
        if self.l4_is == L4::Udp {
            put(data, self.l4() + 4, (len as u16).to_be_bytes());
        }
    }

    /// Writes the L4 checksum of a segment whose bytes from its L4 header on are `len`, and lie in
    /// `pieces`, with 0 in the checksum field.
    pub(crate) fn checksum<'a>(
        &self,
        data: &[u8],
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> [u8; 2] {
        let (_, sum) = checksum::sum_pieces(pieces);
        self.written(!checksum::add(self.pseudo(data, len), sum)).to_be_bytes()
    }

    /// A checksum as it is written: that of UDP is never 0, which means none (RFC 768).
    #[inline(always)]
    pub(crate) fn written(&self, check: u16) -> u16 {
        if check == 0 && self.l4_is == L4::Udp { 0xffff } else { check }
    }
}
