//! The IPv6 header and the extension headers behind it (RFC 8200).
//!
//! For the slow path, builders and tests; the fast path has its own fused checks. A view exists only over 40 whole bytes,
//! so no accessor can fail. The walk along extension headers is bounded: at most [`MAX_EXTENSIONS`] of them.

use std::net::Ipv6Addr;
use std::ops::{Deref, DerefMut};

use crate::skb::DropReason;

/// Bytes of the header.
pub const LEN: usize = 40;

/// Extension headers of a packet that are looked behind. RFC 8200 section 4.1 has four kinds of them, one twice.
pub const MAX_EXTENSIONS: usize = 8;

/// What may follow a header (IANA's protocol numbers).
pub mod next {
    /// Hop-by-hop options: for every router on the way.
    pub const HOP_BY_HOP: u8 = 0;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// Addresses that the packet is to visit.
    pub const ROUTING: u8 = 43;
    /// This is a piece of a packet.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// Nothing.
    pub const NONE: u8 = 59;
    /// Options for the destination.
    pub const DESTINATION: u8 = 60;
}

/// A view of a header (RFC 8200 section 3). `T` is `&[u8; 40]` or `&mut [u8; 40]`.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Header<T>(T);

impl<'a> Ipv6Header<&'a [u8; LEN]> {
    /// A view of the header `data` begins with; `None` if it is too short.
    #[inline(always)]
    pub fn new(data: &'a [u8]) -> Option<Self> {
        data.first_chunk().map(Ipv6Header)
    }
}

impl<'a> Ipv6Header<&'a mut [u8; LEN]> {
    /// As [`new`](Ipv6Header::new), to write.
    #[inline(always)]
    pub fn new_mut(data: &'a mut [u8]) -> Option<Self> {
        data.first_chunk_mut().map(Ipv6Header)
    }
}

impl<T: Deref<Target = [u8; LEN]>> Ipv6Header<T> {
    #[inline(always)]
    fn address(&self, at: usize) -> Ipv6Addr {
        Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| self.0[at + i]))
    }

    /// Version; 6.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Traffic class: DSCP and ECN.
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        self.0[0] << 4 | self.0[1] >> 4
    }

    /// Bytes behind the header, extension headers included.
    #[inline(always)]
    pub fn payload_len(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// What follows, see [`next`].
    #[inline(always)]
    pub fn next_header(&self) -> u8 {
        self.0[6]
    }

    /// Hop limit.
    #[inline(always)]
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// Source address.
    #[inline(always)]
    pub fn src(&self) -> Ipv6Addr {
        self.address(8)
    }

    /// Destination address.
    #[inline(always)]
    pub fn dst(&self) -> Ipv6Addr {
        self.address(24)
    }
}

impl<T: DerefMut<Target = [u8; LEN]>> Ipv6Header<T> {
    /// Writes a header of traffic class and flow label 0.
    pub fn fill(&mut self, payload_len: u16, next: u8, hop_limit: u8, src: Ipv6Addr, dst: Ipv6Addr) {
        self.0[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        self.0[4..6].copy_from_slice(&payload_len.to_be_bytes());
        self.0[6] = next;
        self.0[7] = hop_limit;
        self.0[8..24].copy_from_slice(&src.octets());
        self.0[24..].copy_from_slice(&dst.octets());
    }

    /// Sets the destination address.
    pub fn set_dst(&mut self, dst: Ipv6Addr) {
        self.0[24..].copy_from_slice(&dst.octets());
    }

    /// Puts one back on the hop limit.
    pub fn increase_hop_limit(&mut self) {
        self.0[7] = self.0[7].saturating_add(1);
    }

    /// Sets the traffic class.
    pub fn set_traffic_class(&mut self, class: u8) {
        self.0[0] = self.0[0] & 0xf0 | class >> 4;
        self.0[1] = self.0[1] & 0x0f | class << 4;
    }

    /// Takes one off the hop limit. The caller has seen that it is above 0.
    #[inline(always)]
    pub fn decrease_hop_limit(&mut self) {
        self.0[7] = self.0[7].wrapping_sub(1);
    }
}

/// Checks the header `data` begins with; `data` ends where the frame ends. Returns the bytes of the whole packet: what
/// follows is link-layer padding. The reason is [`PktTooSmall`](DropReason::PktTooSmall) if bytes are missing,
/// [`IpInHdr`](DropReason::IpInHdr) if it is no IPv6.
pub fn validate(data: &[u8]) -> Result<usize, DropReason> {
    validate_part(data, data.len())
}

/// As [`validate`], of a packet of which there are `len` bytes, the first of them in `data`.
pub fn validate_part(data: &[u8], len: usize) -> Result<usize, DropReason> {
    let view = Ipv6Header::new(data).ok_or(DropReason::PktTooSmall)?;
    if view.version() != 6 {
        return Err(DropReason::IpInHdr);
    }
    let total = LEN + usize::from(view.payload_len());
    if total > len { Err(DropReason::PktTooSmall) } else { Ok(total) }
}

/// Where the extension headers that can be looked behind end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// What is there: a transport protocol, [`next::FRAGMENT`], or what is not known here.
    pub protocol: u8,
    /// Where it begins, from the first byte of the IPv6 header.
    pub at: usize,
    /// Where the byte is that says so.
    pub said_at: usize,
}

/// Walks along the extension headers of `packet`, which begins with its IPv6 header, and has `visit` look at each: which
/// it is, where it begins, its bytes. Ends at anything else than options or a routing header. A header that is cut off is
/// [`Ipv6BadExthdr`](DropReason::Ipv6BadExthdr), and so are too many.
pub fn walk<E: From<DropReason>>(
    packet: &[u8],
    mut visit: impl FnMut(u8, usize, &[u8]) -> Result<(), E>,
) -> Result<Upper, E> {
    let header = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let mut upper = Upper { protocol: header.next_header(), at: LEN, said_at: 6 };
    for n in 0.. {
        let known = match upper.protocol {
            // Anywhere but in front it is as good as unknown (RFC 8200 section 4.1).
            next::HOP_BY_HOP => n == 0,
            next::ROUTING | next::DESTINATION => true,
            _ => false,
        };
        if !known {
            break;
        }
        let rest = packet.get(upper.at..).unwrap_or_default();
        let bytes = match rest {
            &[_, len, ..] if n < MAX_EXTENSIONS => rest.get(..(usize::from(len) + 1) * 8),
            _ => None,
        };
        let bytes = bytes.ok_or(DropReason::Ipv6BadExthdr)?;
        visit(upper.protocol, upper.at, bytes)?;
        upper = Upper { protocol: bytes[0], at: upper.at + bytes.len(), said_at: upper.at };
    }
    Ok(upper)
}

/// As [`walk`], looking at nothing on the way.
pub fn upper(packet: &[u8]) -> Result<Upper, DropReason> {
    walk(packet, |_, _, _| Ok(()))
}

/// Why a packet is not taken because of its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Without a word.
    Drop(DropReason),
    /// Its sender is to be told by a parameter problem with this code, about the byte at `pointer` (RFC 4443 section 3.4).
    Report {
        /// 0: erroneous field, 1: unknown next header, 2: unknown option.
        code: u8,
        /// From the first byte of the IPv6 header.
        pointer: u32,
    },
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Self {
        Refusal::Drop(reason)
    }
}

/// What the hop-by-hop options of `packet` say to a router, if it has some.
pub fn check_hop_by_hop(packet: &[u8]) -> Result<(), Refusal> {
    let header = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    if header.next_header() != next::HOP_BY_HOP {
        return Ok(());
    }
    let rest = packet.get(LEN..).unwrap_or_default();
    let bytes = rest.get(1).and_then(|len| rest.get(..(usize::from(*len) + 1) * 8));
    check_options(bytes.ok_or(DropReason::Ipv6BadExthdr)?, LEN, header.dst().is_multicast())
}

/// Does what the extension headers of `packet`, which reached its destination, ask for (RFC 8200 section 4): nothing but to
/// look whether it may be taken. Returns what is behind them.
pub fn receive(packet: &[u8]) -> Result<Upper, Refusal> {
    let group = Ipv6Header::new(packet).is_some_and(|header| header.dst().is_multicast());
    walk(packet, |kind, at, bytes| match kind {
        // Segments left: a packet that goes on from here by a route in its header. RFC 5095 forbids that of type 0, and
        // no other type is served.
        next::ROUTING if bytes[3] != 0 => Err(Refusal::Report { code: 0, pointer: at as u32 + 2 }),
        next::ROUTING => Ok(()),
        _ => check_options(bytes, at, group),
    })
}

/// Whether the options of a header, which begins at `at`, allow it to be taken (RFC 8200 section 4.2). `group`: the packet
/// goes to one.
fn check_options(header: &[u8], at: usize, group: bool) -> Result<(), Refusal> {
    let mut offset = 2;
    while let Some(&kind) = header.get(offset) {
        if kind == 0 {
            // Pad1, a byte without length.
            offset += 1;
            continue;
        }
        let end = header.get(offset + 1).map(|len| offset + 2 + usize::from(*len));
        let Some(end) = end.filter(|end| *end <= header.len()) else {
            return Err(DropReason::Ipv6BadExthdr.into());
        };
        // What to do with an option that is not known. None is: those that say to be skipped need no serving here.
        match kind >> 6 {
            0 => {}
            2 => return Err(Refusal::Report { code: 2, pointer: (at + offset) as u32 }),
            3 if !group => return Err(Refusal::Report { code: 2, pointer: (at + offset) as u32 }),
            _ => return Err(DropReason::Ipv6BadExthdr.into()),
        }
        offset = end;
    }
    Ok(())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    fn packet_to(dst: Ipv6Addr, first: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; LEN];
        Ipv6Header::new_mut(&mut packet).unwrap().fill(payload.len() as u16, first, 64, A, dst);
        packet.extend(payload);
        packet
    }

    fn packet(first: u8, payload: &[u8]) -> Vec<u8> {
        packet_to(B, first, payload)
    }

    #[test]
    fn fields_come_back() {
        let mut data = packet(next::UDP, &[1; 9]);
        let mut h = Ipv6Header::new_mut(&mut data).unwrap();
        assert_eq!((h.version(), h.payload_len(), h.next_header(), h.hop_limit()), (6, 9, 17, 64));
        assert_eq!((h.src(), h.dst()), (A, B));
        h.decrease_hop_limit();
        assert_eq!(h.hop_limit(), 63);
        h.set_traffic_class(0xa5);
        assert_eq!((h.version(), h.traffic_class(), h.0[1]), (6, 0xa5, 0x50));
    }

    #[test]
    fn each_fault_has_its_reason() {
        let good = packet(next::UDP, &[0; 20]);
        assert_eq!(validate(&good), Ok(60));
        assert_eq!(validate(&[&good[..], &[0; 9]].concat()), Ok(60), "padded");
        assert_eq!(validate(&good[..39]), Err(DropReason::PktTooSmall));
        assert_eq!(validate(&good[..59]), Err(DropReason::PktTooSmall));
        assert_eq!(validate(&[&[0x45], &good[1..]].concat()), Err(DropReason::IpInHdr));
    }

    /// An extension header with these options, padded.
    fn options(following: u8, options: &[u8]) -> Vec<u8> {
        let mut header = [&[following, 0][..], options].concat();
        header.resize(header.len().next_multiple_of(8), 0);
        header[1] = (header.len() / 8 - 1) as u8;
        header
    }

    #[test]
    fn extension_headers_are_looked_behind() {
        let chain =
            [options(43, &[1, 2, 0, 0]), vec![60, 0, 0, 0, 0, 0, 0, 0], options(17, &[0; 9]), vec![7; 8]];
        let whole = packet(next::HOP_BY_HOP, &chain.concat());
        assert_eq!(receive(&whole), Ok(Upper { protocol: 17, at: 72, said_at: 56 }));
        assert_eq!(upper(&whole), Ok(Upper { protocol: 17, at: 72, said_at: 56 }));
        assert_eq!(upper(&packet(next::ICMPV6, &[])), Ok(Upper { protocol: 58, at: 40, said_at: 6 }));
        for len in LEN..72 {
            assert_eq!(upper(&whole[..len]), Err(DropReason::Ipv6BadExthdr), "{len}");
        }
        // What comes behind a fragment header is not this packet's alone.
        let fragment = packet(next::DESTINATION, &[options(44, &[]), vec![17, 0, 0, 1, 0, 0, 0, 9]].concat());
        assert_eq!(receive(&fragment), Ok(Upper { protocol: 44, at: 48, said_at: 40 }));
        let late = packet(next::DESTINATION, &[options(0, &[]), options(17, &[])].concat());
        assert_eq!(
            receive(&late),
            Ok(Upper { protocol: 0, at: 48, said_at: 40 }),
            "hop-by-hop only comes first"
        );
        for (n, ok) in [(MAX_EXTENSIONS, true), (MAX_EXTENSIONS + 1, false)] {
            let chain = [options(60, &[]).repeat(n - 1), options(17, &[])].concat();
            assert_eq!(upper(&packet(60, &chain)).is_ok(), ok, "{n} headers");
        }
    }

    #[test]
    fn options_say_what_to_do_if_they_are_unknown() {
        let bad = Err(Refusal::Drop(DropReason::Ipv6BadExthdr));
        let report = |pointer| Err(Refusal::Report { code: 2, pointer });
        for (option, alone, group) in [
            (&[5, 2, 0, 0][..], Ok(()), Ok(())),
            (&[0x3e, 0], Ok(()), Ok(())),
            (&[0x7e, 0], bad, bad),
            (&[0xbe, 1, 9], report(42), report(42)),
            (&[1, 0, 0, 0xfe, 0], report(45), bad),
            (&[0, 0, 0, 0, 0, 1], bad, bad),
            (&[5, 5, 0, 0, 0, 0], bad, bad),
        ] {
            for kind in [next::HOP_BY_HOP, next::DESTINATION] {
                let to = |dst| packet_to(dst, kind, &options(17, option));
                let groups = "ff02::1".parse().unwrap();
                assert_eq!(receive(&to(B)).map(|_| ()), alone, "{option:?}");
                assert_eq!(receive(&to(groups)).map(|_| ()), group, "{option:?}");
                let on_the_way = if kind == next::HOP_BY_HOP { alone } else { Ok(()) };
                assert_eq!(check_hop_by_hop(&to(B)), on_the_way, "{option:?}");
            }
        }
        assert_eq!(check_hop_by_hop(&packet(0, &[17, 1, 0, 0, 0, 0, 0, 0])), bad);
    }

    #[test]
    fn no_route_in_a_header_is_followed() {
        for kind in [0, 2, 4] {
            let with = |left| packet(next::ROUTING, &[&[17, 2, kind, left][..], &[0; 20]].concat());
            assert_eq!(receive(&with(1)), Err(Refusal::Report { code: 0, pointer: 42 }));
            assert_eq!(receive(&with(0)), Ok(Upper { protocol: 17, at: 64, said_at: 40 }));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            first in prop::sample::select(vec![0u8, 43, 60, 17, 44]),
            payload in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(43), Just(60), any::<u8>()], 0..120),
            cut in 0usize..160,
        ) {
            let mut data = packet(first, &payload);
            data.truncate(cut);
            let _ = validate(&data);
            let _ = check_hop_by_hop(&data);
            // A strict reader finds the same end.
            if let Ok(end) = receive(&data) {
                prop_assert_eq!(upper(&data), Ok(end));
                prop_assert!(end.at <= data.len() && end.said_at < end.at);
            }
        }
    }
}
