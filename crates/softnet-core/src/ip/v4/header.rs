//! The IPv4 header: a view of its fields, what makes one acceptable, and what kinds of addresses there are.
//!
//! For the slow path, builders and tests; the fast path has its own fused checks and takes only the inline
//! functions from here. A view exists only over 20 whole bytes, so no accessor can fail.

use std::ops::{Deref, DerefMut};

use super::super::checksum;
use crate::skb::DropReason;

/// Bytes of a header without options.
pub const MIN_LEN: usize = 20;

/// Protocol numbers (IANA) that softnet knows.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
}

/// A view of the first 20 bytes of a header (RFC 791 section 3.1). `T` is `&[u8; 20]` or `&mut [u8; 20]`.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Header<T>(T);

impl<'a> Ipv4Header<&'a [u8; MIN_LEN]> {
    /// A view of the header `data` begins with; `None` if it is too short.
    #[inline(always)]
    pub fn new(data: &'a [u8]) -> Option<Self> {
        data.first_chunk().map(Ipv4Header)
    }
}

impl<'a> Ipv4Header<&'a mut [u8; MIN_LEN]> {
    /// As [`new`](Ipv4Header::new), to write.
    #[inline(always)]
    pub fn new_mut(data: &'a mut [u8]) -> Option<Self> {
        data.first_chunk_mut().map(Ipv4Header)
    }
}

impl<T: Deref<Target = [u8; MIN_LEN]>> Ipv4Header<T> {
    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        u16::from_be_bytes([self.0[AT], self.0[AT + 1]])
    }

    #[inline(always)]
    fn be32<const AT: usize>(&self) -> u32 {
        u32::from_be_bytes([self.0[AT], self.0[AT + 1], self.0[AT + 2], self.0[AT + 3]])
    }

    /// A view of a whole header.
    #[inline(always)]
    pub fn over(header: T) -> Self {
        Ipv4Header(header)
    }

    /// Version and length of the header, in units of four bytes, in one: 0x45 without options.
    #[inline(always)]
    pub fn version_and_len(&self) -> u8 {
        self.0[0]
    }

    /// Version; 4.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Length of the header in bytes, as it says.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[0] & 15) * 4
    }

    /// Type of service: DSCP and ECN.
    #[inline(always)]
    pub fn tos(&self) -> u8 {
        self.0[1]
    }

    /// Length of header and payload in bytes, as it says.
    #[inline(always)]
    pub fn total_len(&self) -> u16 {
        self.be16::<2>()
    }

    /// Identification.
    #[inline(always)]
    pub fn id(&self) -> u16 {
        self.be16::<4>()
    }

    /// Whether the packet must not be fragmented.
    #[inline(always)]
    pub fn dont_fragment(&self) -> bool {
        self.0[6] & 0x40 != 0
    }

    /// Whether more fragments follow this one.
    #[inline(always)]
    pub fn more_fragments(&self) -> bool {
        self.0[6] & 0x20 != 0
    }

    /// Offset of this fragment in units of 8 bytes.
    #[inline(always)]
    pub fn fragment_offset(&self) -> u16 {
        self.be16::<6>() & 0x1fff
    }

    /// Whether this is a piece of a packet, the first one included.
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.be16::<6>() & 0x3fff != 0
    }

    /// Time to live.
    #[inline(always)]
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// Protocol of the payload, see [`protocol`].
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.0[9]
    }

    /// Header checksum.
    #[inline(always)]
    pub fn check(&self) -> u16 {
        self.be16::<10>()
    }

    /// Source address, host order.
    #[inline(always)]
    pub fn src(&self) -> u32 {
        self.be32::<12>()
    }

    /// Destination address, host order.
    #[inline(always)]
    pub fn dst(&self) -> u32 {
        self.be32::<16>()
    }
}

impl<T: DerefMut<Target = [u8; MIN_LEN]>> Ipv4Header<T> {
    #[inline(always)]
    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    /// Writes a header without options or fragmentation, checksum included. `total_len` in bytes; addresses
    /// in host order.
    pub fn fill(&mut self, total_len: u16, id: u16, ttl: u8, protocol: u8, src: u32, dst: u32) {
        *self.0 = [0; MIN_LEN];
        self.0[0] = 0x45;
        self.set(2, total_len.to_be_bytes());
        self.set(4, id.to_be_bytes());
        self.0[8] = ttl;
        self.0[9] = protocol;
        self.set(12, src.to_be_bytes());
        self.set(16, dst.to_be_bytes());
        self.renew_check();
    }

    /// Sets the length of header and payload in bytes. Leaves the checksum alone, as every setter
    /// does.
    #[inline(always)]
    pub fn set_total_len(&mut self, total_len: u16) {
        self.set(2, total_len.to_be_bytes());
    }

    /// Computes the checksum of a header without options anew.
    #[inline(always)]
    pub fn renew_check(&mut self) {
        self.set_check(0);
        let check = !checksum::ipv4_header_sum(&self.0);
        self.set_check(check);
    }

    /// Sets the identification.
    #[inline(always)]
    pub fn set_id(&mut self, id: u16) {
        self.set(4, id.to_be_bytes());
    }

    /// Sets the type of service.
    #[inline(always)]
    pub fn set_tos(&mut self, tos: u8) {
        self.0[1] = tos;
    }

    /// Sets or clears the don't-fragment bit and clears the rest of the fragment word.
    #[inline(always)]
    pub fn set_dont_fragment(&mut self, dont: bool) {
        self.set(6, (u16::from(dont) << 14).to_be_bytes());
    }

    /// Sets the fragment word: flags, and the offset in units of 8 bytes.
    #[inline(always)]
    pub fn set_fragment(&mut self, dont: bool, more: bool, offset: u16) {
        self.set(6, (u16::from(dont) << 14 | u16::from(more) << 13 | offset & 0x1fff).to_be_bytes());
    }

    /// Sets the time to live.
    #[inline(always)]
    pub fn set_ttl(&mut self, ttl: u8) {
        self.0[8] = ttl;
    }

    /// Sets the checksum field.
    #[inline(always)]
    pub fn set_check(&mut self, check: u16) {
        self.set(10, check.to_be_bytes());
    }

    /// Sets the source address.
    #[inline(always)]
    pub fn set_src(&mut self, addr: u32) {
        self.set(12, addr.to_be_bytes());
    }

    /// Sets the destination address.
    #[inline(always)]
    pub fn set_dst(&mut self, addr: u32) {
        self.set(16, addr.to_be_bytes());
    }

    /// Takes one off the time to live and mends the checksum (the kernel's `ip_decrease_ttl`). The caller has
    /// seen that it is above 0.
    #[inline(always)]
    pub fn decrease_ttl(&mut self) {
        self.0[8] = self.0[8].wrapping_sub(1);
        [self.0[10], self.0[11]] = checksum::ttl_decremented([self.0[10], self.0[11]]);
    }
}

/// Where header and packet end, both from the first byte of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the header with its options: 20 to 60.
    pub header: usize,
    /// Bytes of the whole packet; what follows is link-layer padding, to be trimmed.
    pub total: usize,
}

/// Checks the header `data` begins with (RFC 1812 section 5.2.2, the kernel's `ip_rcv_core`); `data` ends where
/// the frame ends. The reason is [`PktTooSmall`](DropReason::PktTooSmall) if bytes are missing,
/// [`IpInHdr`](DropReason::IpInHdr) if the header contradicts itself, [`IpCsum`](DropReason::IpCsum) if its
/// checksum is wrong. Options are summed but not looked at.
pub fn validate(data: &[u8]) -> Result<Lengths, DropReason> {
    validate_part(data, data.len())
}

/// As [`validate`], of a packet of which there are `len` bytes, the first of them in `data`.
pub fn validate_part(data: &[u8], len: usize) -> Result<Lengths, DropReason> {
    let lengths = validate_header(data)?;
    if lengths.total > len {
        return Err(DropReason::PktTooSmall);
    }
    Ok(lengths)
}

/// As [`validate`], of a packet that need not be all there, as one that is quoted.
pub fn validate_header(data: &[u8]) -> Result<Lengths, DropReason> {
    let view = Ipv4Header::new(data).ok_or(DropReason::PktTooSmall)?;
    let (header, total) = (view.header_len(), usize::from(view.total_len()));
    if view.version() != 4 || header < MIN_LEN {
        return Err(DropReason::IpInHdr);
    }
    let bytes = data.get(..header).ok_or(DropReason::PktTooSmall)?;
    if checksum::sum(bytes) != 0xffff {
        return Err(DropReason::IpCsum);
    }
    if total < header {
        return Err(DropReason::IpInHdr);
    }
    Ok(Lengths { header, total })
}

/// Whether `addr` is a unicast address that may be on a wire, 1/8 to 223/8 without 127/8 (RFC 6890, RFC 1812
/// section 5.3.7): the only kind that is valid as a source, and the only kind that is forwarded to. Directed
/// broadcasts are the FIB's to know.
#[inline(always)]
pub const fn is_unicast(addr: u32) -> bool {
    let net = addr >> 24;
    (net.wrapping_sub(1) < 223) & (net != 127)
}

/// Whether a packet may not have `addr` as its source: 0/8, 127/8, 224/4, 240/4.
#[inline(always)]
pub const fn is_martian_source(addr: u32) -> bool {
    !is_unicast(addr)
}

/// Whether a packet may not have `addr` as its destination on a wire: 0/8, 127/8, 240/4. The limited broadcast
/// counts too, as it may never be forwarded; code that serves it looks for it first.
#[inline(always)]
pub const fn is_martian_destination(addr: u32) -> bool {
    !is_unicast(addr) & !is_multicast(addr)
}

/// Whether `addr` is in 224/4.
#[inline(always)]
pub const fn is_multicast(addr: u32) -> bool {
    addr >> 28 == 0xe
}

/// Whether `addr` is in 169.254/16, and so means nothing beyond its link: never forwarded, from
/// there or to it (RFC 3927 section 2.7).
#[inline(always)]
pub const fn is_link_local(addr: u32) -> bool {
    addr >> 16 == 0xa9fe
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn good(len: usize, header: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        Ipv4Header::new_mut(&mut data).unwrap().fill(
            len as u16,
            7,
            64,
            protocol::UDP,
            0x0a00_0001,
            0xc0a8_0102,
        );
        data[0] = 0x40 | (header / 4) as u8;
        rehash(&mut data, header);
        data
    }

    fn rehash(data: &mut [u8], header: usize) {
        data[10..12].fill(0);
        let check = checksum::checksum(&data[..header]);
        data[10..12].copy_from_slice(&check.to_be_bytes());
    }

    #[test]
    fn fields_come_back() {
        let mut data = good(60, 20);
        let mut h = Ipv4Header::new_mut(&mut data).unwrap();
        assert_eq!((h.version(), h.header_len(), h.total_len(), h.id()), (4, 20, 60, 7));
        assert_eq!((h.ttl(), h.protocol(), h.src(), h.dst()), (64, 17, 0x0a00_0001, 0xc0a8_0102));
        h.set_dont_fragment(true);
        assert!(h.dont_fragment() && !h.is_fragment() && h.fragment_offset() == 0);
        h.0[6] = 0x20;
        assert!(h.is_fragment() && h.more_fragments() && !h.dont_fragment());
        h.0[6..8].copy_from_slice(&[0x1f, 0xff]);
        assert!(h.is_fragment() && !h.more_fragments() && h.fragment_offset() == 0x1fff);
        h.set_tos(3);
        h.set_ttl(9);
        h.set_total_len(40);
        h.set_src(1);
        h.set_dst(2);
        h.set_check(5);
        assert_eq!((h.tos(), h.ttl(), h.total_len(), h.src(), h.dst(), h.check()), (3, 9, 40, 1, 2, 5));
    }

    #[test]
    fn each_fault_has_its_reason() {
        assert_eq!(validate(&good(60, 20)), Ok(Lengths { header: 20, total: 60 }));
        assert_eq!(validate(&good(60, 24)), Ok(Lengths { header: 24, total: 60 }));
        let mut padded = good(28, 20);
        padded.resize(46, 0);
        assert_eq!(validate(&padded), Ok(Lengths { header: 20, total: 28 }));

        assert_eq!(validate(&good(60, 20)[..19]), Err(DropReason::PktTooSmall));
        assert_eq!(validate(&good(60, 20)[..59]), Err(DropReason::PktTooSmall));
        assert_eq!(validate(&good(60, 60)[..40]), Err(DropReason::PktTooSmall));
        let broken = |at: usize, value: u8| {
            let mut data = good(60, 20);
            data[at] = value;
            if at != 0 {
                rehash(&mut data, 20);
            }
            validate(&data)
        };
        assert_eq!(broken(0, 0x65), Err(DropReason::IpInHdr));
        assert_eq!(broken(0, 0x44), Err(DropReason::IpInHdr));
        assert_eq!(broken(3, 19), Err(DropReason::IpInHdr));
        assert_eq!(broken(2, 1), Err(DropReason::PktTooSmall));
        let mut shorter_than_its_options = good(60, 24);
        shorter_than_its_options[3] = 23;
        rehash(&mut shorter_than_its_options, 24);
        assert_eq!(validate(&shorter_than_its_options), Err(DropReason::IpInHdr));
        let mut data = good(60, 20);
        data[19] ^= 1;
        assert_eq!(validate(&data), Err(DropReason::IpCsum));
    }

    #[test]
    fn ttl_keeps_the_checksum_right() {
        let mut data = good(40, 20);
        for ttl in (0..64).rev() {
            Ipv4Header::new_mut(&mut data).unwrap().decrease_ttl();
            assert_eq!(Ipv4Header::new(&data).unwrap().ttl(), ttl);
            assert!(validate(&data).is_ok());
        }
    }

    #[test]
    fn kinds_of_addresses_at_their_edges() {
        for (addr, unicast, multicast) in [
            (0, false, false),
            (0x00ff_ffff, false, false),
            (0x0100_0000, true, false),
            (0x7eff_ffff, true, false),
            (0x7f00_0000, false, false),
            (0x7fff_ffff, false, false),
            (0x8000_0000, true, false),
            (0xdfff_ffff, true, false),
            (0xe000_0000, false, true),
            (0xefff_ffff, false, true),
            (0xf000_0000, false, false),
            (0xffff_ffff, false, false),
        ] {
            assert_eq!((is_unicast(addr), is_multicast(addr)), (unicast, multicast), "{addr:#x}");
            assert_eq!(is_martian_source(addr), !unicast);
            assert_eq!(is_martian_destination(addr), !unicast && !multicast);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(data in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(l) = validate(&data) {
                prop_assert!(l.header >= MIN_LEN && l.header <= l.total && l.total <= data.len());
            }
        }

        #[test]
        fn mangled_headers_do_not_panic(at in 0usize..20, value: u8, len in 0usize..70) {
            let mut data = good(60, 20);
            data[at] = value;
            data.resize(len, 0);
            if let Ok(l) = validate(&data) {
                prop_assert!(l.header <= l.total && l.total <= len);
            }
        }
    }
}
